//! Something of our own failed: a full disk, a bus that is gone. For a moment nothing is begun.

use std::rc::Rc;
use std::time::Duration;

use crate::clock::Stopwatch;
use crate::daemon::host::Host;
use crate::error::Error;
use crate::report::condition_state::ConditionState;
use crate::report::follow_up::FollowUp;
use crate::report::status::{Condition, ConditionId};
use crate::report::{Code, Event, Phase};

/// Pause after a failure that should not happen.
const PAUSE: Duration = Duration::from_secs(5);
/// Within this it is tried again, as the report says: behind the pause, and with as much again for the try itself.
const TRIED_AGAIN_WITHIN: Duration = PAUSE.saturating_mul(2);
/// A single pass gives up after this many failures of our own; the daemon never does.
const LIMIT: u32 = 3;

/// What failed last, until it succeeds again.
#[derive(Debug)]
pub(in crate::daemon) struct FailurePause {
    host: Rc<Host>,
    since: Option<Stopwatch>,
    count: u32,
    condition: Option<Condition>,
}

impl FailurePause {
    pub(super) fn new(host: Rc<Host>) -> Self {
        Self { host, since: None, count: 0, condition: None }
    }

    /// Takes in that something failed, and reports it.
    pub(super) fn record(&mut self, doing: &str, error: &Error) {
        let remedy = error.typed_remedy().cloned().unwrap_or_else(|| Code::of_trouble(error).remedy());
        let remedy = FollowUp::Continues(TRIED_AGAIN_WITHIN).of(&remedy);
        let event = Event::new(Code::of_trouble(error), format!("failed: {doing}")).phase(Phase::Deploy).step(doing).error(error);
        self.host.report.emit(event.remedy(&remedy).next_try(PAUSE));
        // What fails meanwhile makes the pause no longer: orders, and what has to end, wait for its end.
        self.since.get_or_insert_with(|| self.host.clock.start());
        self.count += 1;
        let before = self.condition.take().unwrap_or_default();
        self.condition = Some(Condition {
            name: ConditionId::State,
            state: ConditionState::Failed,
            since: before.since.or_else(|| Some(self.host.clock.now().rfc3339())),
            attempt: before.attempt.saturating_add(1),
            fact: Some(error.cause().to_owned()),
            cause: Some(error.clone().context(doing).cause_first()),
            remedy: Some(remedy.to_string()),
            ..Condition::default()
        });
    }

    /// Whether nothing is begun.
    pub(super) fn is_paused(&self) -> bool {
        self.since.is_some()
    }

    /// What is left of the pause; `None` without trouble.
    pub(super) fn remaining(&self) -> Option<Duration> {
        self.since.as_ref().map(|since| PAUSE.saturating_sub(since.elapsed()))
    }

    /// Everything is tried anew; `false` while the pause lasts.
    pub(super) fn resume_if_due(&mut self) -> bool {
        let is_over = self.remaining().is_none_or(|rest| rest.is_zero());
        if is_over {
            self.since = None;
        }
        is_over
    }

    /// All that was tried anew succeeded.
    pub(super) fn clear(&mut self) {
        self.condition = None;
    }

    /// Whether a single pass gives up.
    pub(super) fn has_given_up(&self) -> bool {
        self.count >= LIMIT
    }

    pub(in crate::daemon) fn condition(&self) -> Option<&Condition> {
        self.condition.as_ref()
    }
}
