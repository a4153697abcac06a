//! The conditions of the node's own object in Kubernetes: when they are written. Off unless `[report] node_conditions` says so.
//!
//! They follow the status page. A change of a condition is written soon, all of them every few minutes, and none while the node is brought
//! up. What fails is tried again ever more slowly; nothing else waits for it.

use std::rc::Rc;
use std::time::Duration;

use super::subject::{InPlace, Subject};
use super::task::BackgroundTask;
use crate::backoff::{Backoff, Damper};
use crate::clock::{Clock, Stopwatch};
use crate::daemon::host::Host;
use crate::daemon::node::Node;
use crate::deploy::{AppliedExtent, Reference};
use crate::error::{Error, Result};
use crate::http::Http;
use crate::keepers::node_conditions::{NodeObject, Transitions, write};
use crate::report::node_conditions::{NodeCondition, of};
use crate::report::status::StatusDocument;
use crate::report::{Code, Event};

/// A heartbeat: node-problem-detector's is as long.
const HEARTBEAT: Duration = Duration::from_mins(5);
/// From the first measurement on until a condition is called fine: a process that hangs is known by its second bad answer, each of which
/// takes up to 5 s, and one that the agent found running counts as young for a minute. What is wrong before that is written at once.
const FIRST_REPORT_DELAY: Duration = Duration::from_secs(75);
/// Between two writes where a condition became another one: each costs the API a write of the whole node.
const STATE_CHANGE_PAUSE: Duration = Duration::from_secs(5);
/// Between two where only a message did.
const MESSAGE_CHANGE_PAUSE: Duration = Duration::from_mins(1);
/// Between two tries in vain.
const PAUSES: Backoff = Backoff::new(Duration::from_secs(5), Duration::from_mins(5));
/// What the API answers for a node that is not registered.
const NOT_FOUND: u16 = 404;

/// What was written last, and what is to be.
pub(super) struct NodeConditions {
    host: Rc<Host>,
    http: Rc<Http>,
    task: BackgroundTask<Vec<NodeCondition>, Result<Transitions>>,
    wanted: Vec<NodeCondition>,
    /// Since the node has been measured.
    measured: Option<Stopwatch>,
    /// Where they are written to.
    node: Subject<NodeObject>,
    /// Of the object that `schedule` and `known` are about.
    url: Option<String>,
    schedule: Schedule,
    /// Since when they are so, once the API said it or got it.
    known: Option<Transitions>,
    /// Why the newest try failed, or the status that the API answered; that is reported where it changed.
    cause: Option<String>,
}

/// When they are written next.
struct Schedule {
    /// What the API has, and since when.
    written: Option<(Vec<NodeCondition>, Stopwatch)>,
    /// Behind the newest try, where that failed.
    damper: Damper,
}

impl Schedule {
    fn new() -> Self {
        Self { written: None, damper: Damper::new(PAUSES) }
    }

    fn until_due(&self, wanted: &[NodeCondition]) -> Duration {
        let Some((written, since)) = self.written.as_ref().filter(|_| !self.damper.has_begun()) else {
            return self.damper.left();
        };
        let is_same = |one: &NodeCondition, other: &NodeCondition| {
            (one.kind, one.is_problem, one.reason) == (other.kind, other.is_problem, other.reason)
        };
        let pause = if written == wanted {
            HEARTBEAT
        } else if written.len() == wanted.len() && written.iter().zip(wanted).all(|(one, other)| is_same(one, other)) {
            MESSAGE_CHANGE_PAUSE
        } else {
            STATE_CHANGE_PAUSE
        };
        pause.saturating_sub(since.elapsed())
    }

    fn wrote(&mut self, written: Vec<NodeCondition>, clock: &Clock) {
        *self = Self { written: Some((written, clock.start())), ..Self::new() };
    }

    fn failed(&mut self, error: &Error, clock: &Clock) {
        self.damper.hold_by(|pause| error.asked_pause().unwrap_or(pause).clamp(pause, HEARTBEAT), clock);
    }
}

impl NodeConditions {
    pub(super) fn new(host: Rc<Host>, http: Rc<Http>) -> Self {
        Self {
            host,
            http,
            task: BackgroundTask::default(),
            wanted: Vec::new(),
            measured: None,
            node: Subject::unknown(),
            url: None,
            schedule: Schedule::new(),
            known: None,
            cause: None,
        }
    }

    /// Takes over what a page shows.
    pub(super) fn follow(&mut self, page: &StatusDocument) {
        if self.host.settings.node_conditions {
            let mask = |one: NodeCondition| NodeCondition { message: self.host.report.masked(&one.message).into_owned(), ..one };
            self.wanted = of(page).into_iter().map(mask).collect();
            self.measured = self.measured.take().or_else(|| Some(self.host.clock.start())).filter(|_| !self.wanted.is_empty());
        }
    }

    /// What is certain by now, and how long until the rest is.
    fn certain(&self) -> (Vec<NodeCondition>, Option<Duration>) {
        let rest =
            self.measured.as_ref().map(|since| FIRST_REPORT_DELAY.saturating_sub(since.elapsed())).filter(|rest| !rest.is_zero());
        (self.wanted.iter().filter(|one| one.is_problem || rest.is_none()).cloned().collect(), rest)
    }

    /// How long until they are written, or more of them can be; nothing where there is nothing to write, or it is on its way.
    pub(super) fn until_due(&self) -> Option<Duration> {
        if self.node.get().is_none() || self.task.is_busy() {
            return None;
        }
        let (certain, rest) = self.certain();
        let due = (!certain.is_empty()).then(|| self.schedule.until_due(&certain));
        [due, rest].into_iter().flatten().min()
    }

    /// Starts to write them where that is due. `reference`: the node in place; none while it is brought up.
    pub(super) fn begin(&mut self, reference: Option<&Reference>, node: &Node) {
        if !self.host.settings.node_conditions {
            return;
        }
        let Some(reference) = reference.filter(|reference| reference.extent != AppliedExtent::Nothing) else {
            self.node = Subject::unknown();
            return;
        };
        let there = (reference.generation, reference.extent);
        if !self.node.is_of(there) {
            self.write_to(there, node.object(reference));
        }
        self.start();
    }

    /// What is known of another node's object says nothing of this one.
    fn write_to(&mut self, there: InPlace, object: Option<NodeObject>) {
        if let Some(object) = object.as_ref().filter(|object| self.url.as_ref() != Some(&object.url)) {
            self.url = Some(object.url.clone());
            (self.known, self.schedule) = (None, Schedule::new());
        }
        self.node = Subject::found(there, object);
    }

    fn start(&mut self) {
        if self.until_due() != Some(Duration::ZERO) {
            return;
        }
        let Some(object) = self.node.get() else { return };
        let (http, object, known) = (Rc::clone(&self.http), object.clone(), self.known.clone());
        let (conditions, _) = self.certain();
        self.task.start(conditions.clone(), async move { write(&http, &object, &conditions, known).await });
    }

    /// Waits until they are written, or were not. Safe to drop.
    pub(super) async fn ended(&mut self) -> (Vec<NodeCondition>, Result<Transitions>) {
        self.task.ended().await
    }

    /// Takes that in.
    pub(super) fn record_write(&mut self, written: Vec<NodeCondition>, result: Result<Transitions>) {
        let clock = &self.host.clock;
        match result {
            Ok(known) => {
                let is_news = self.schedule.written.is_none() || self.cause.is_some();
                self.schedule.wrote(written, clock);
                (self.known, self.cause) = (Some(known), None);
                if is_news {
                    let line = "the node's conditions in Kubernetes are up to date";
                    self.host.report.emit(Event::new(Code::NodeConditionsWritten, line).step("node conditions"));
                }
            }
            Err(error) => {
                self.schedule.failed(&error, clock);
                // Who else wrote them meanwhile is seen by asking.
                self.known = None;
                // Registration has a gate of its own, which says what it waits for.
                if error.answered() == Some(NOT_FOUND) {
                    return;
                }
                self.report_write_failure(&error);
            }
        }
    }

    /// Says why they cannot be written, once a cause.
    fn report_write_failure(&mut self, error: &Error) {
        // What a server says of the same failure may differ each time.
        let cause = error.answered().map_or_else(|| error.cause().to_owned(), |status| status.to_string());
        if self.cause.as_ref() != Some(&cause) {
            let line = "the node's conditions in Kubernetes cannot be written";
            self.host.report.emit(Event::new(Code::NodeConditionsFailed, line).step("node conditions").error(error));
        }
        self.cause = Some(cause);
    }
}

#[cfg(test)]
#[path = "node_conditions_tests.rs"]
mod tests;
