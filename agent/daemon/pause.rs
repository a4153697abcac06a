//! How long a node in place is let alone between two tries that fail: certificates are several requests to Magnum, perhaps from
//! every node of a cloud at the same time, and one that succeeds restarts who reads the files; what is put back may restart
//! services at each try, too.

use std::cell::RefCell;
use std::time::Duration;

use crate::backoff::{Backoff, Damper};
use crate::clock::{Clock, Timestamp};
use crate::desired::Rotation;

/// After the first try that failed.
const FIRST: Duration = Duration::from_mins(1);

/// The longest; after a renewal that succeeded, too. What is near its end even then (by a clock that is wrong, or because its
/// CA is) would be renewed at each look.
const LONGEST: Duration = Duration::from_hours(1);

/// The longest where no certificates are the reason.
const LONGEST_BESIDE: Duration = Duration::from_mins(10);

/// So much more or less than the time that passed: the clock was set.
const STEP_MS: u64 = 60_000;

/// Why the node is touched. Another reason does not wait for the last one's pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TouchReason {
    pub(super) generation: u64,
    /// The step of a CA rotation that the operator ordered.
    pub(super) ordered: Option<Rotation>,
    /// Some are to be renewed.
    pub(super) renews: bool,
    /// Some are not as they should be.
    pub(super) drifted: bool,
    /// Something else is not, and goes with them: which causes; 0 for none.
    pub(super) beside: u64,
}

impl TouchReason {
    fn is_any(self) -> bool {
        self.beside != 0 || self.is_about_certificates()
    }

    /// Whether it is about certificates, too.
    pub(super) fn is_about_certificates(self) -> bool {
        self.ordered.is_some() || self.renews || self.drifted
    }
}

/// The try before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LastAttempt {
    /// It was for the same reason, and the pause behind it lasts.
    pub(super) holds: bool,
    /// It failed, for whatever reason it was made.
    pub(super) failed: bool,
}

/// How a try ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AttemptOutcome {
    Succeeded,
    Failed,
    /// Nothing failed, and nothing was put back: what differs only passes by itself. It is held back as one that failed, so that it is
    /// not tried at each look.
    Idle,
}

/// What the last try leaves.
#[derive(Debug, Default)]
pub(super) struct RetryPause(RefCell<Option<Last>>);

#[derive(Debug)]
struct Last {
    reason: TouchReason,
    /// What the clock showed when it began.
    began: Timestamp,
    /// The same by the time that nobody sets.
    began_steady: Timestamp,
    clock: Clock,
    damper: Damper,
    failed: bool,
}

impl Last {
    /// Whether somebody has set the clock since: what it then called for is no measure for what is due by the present one.
    fn was_set_since(&self) -> bool {
        self.clock.shown(self.began_steady).0.abs_diff(self.began.0) > STEP_MS
    }
}

impl RetryPause {
    /// What the try before leaves for one of this reason. Without a reason for a try, what was is said once more, and forgotten.
    pub(super) fn last_attempt(&self, reason: TouchReason) -> LastAttempt {
        let mut last = self.0.borrow_mut();
        let failed = last.as_ref().is_some_and(|last| last.failed);
        if !reason.is_any() {
            *last = None;
        }
        let pauses = |last: &Last| last.reason == reason && last.damper.holds() && !last.was_set_since();
        LastAttempt { holds: last.as_ref().is_some_and(pauses), failed }
    }

    /// A try begins: it counts as failed until it ended, because it may be cut off.
    pub(super) fn begin(&self, reason: TouchReason, clock: &Clock) {
        let mut last = self.0.borrow_mut();
        let before = last.as_ref().filter(|last| last.reason == reason && last.failed);
        let longest = if reason.is_about_certificates() { LONGEST } else { LONGEST_BESIDE };
        let mut damper = before.map_or(Damper::new(Backoff::new(FIRST, longest)), |last| last.damper.clone());
        damper.hold(clock);
        *last =
            Some(Last { reason, began: clock.now(), began_steady: clock.steady(), clock: clock.clone(), damper, failed: true });
    }

    /// The try ended.
    pub(super) fn end(&self, outcome: AttemptOutcome, clock: &Clock) {
        let failed = outcome != AttemptOutcome::Succeeded;
        let mut last = self.0.borrow_mut();
        let Some(tried) = last.as_mut() else { return };
        tried.damper.restart(clock);
        tried.failed = failed;
        if !failed && tried.reason.renews {
            tried.damper.hold_for(LONGEST, clock);
        } else if !failed {
            *last = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: TouchReason = TouchReason { generation: 1, ordered: None, renews: false, drifted: false, beside: 0 };
    const RENEWAL: TouchReason = TouchReason { renews: true, ..NOTHING };
    const REPAIR: TouchReason = TouchReason { beside: 7, ..NOTHING };
    const ORDER: TouchReason = TouchReason { ordered: Some(Rotation::Switch), ..NOTHING };

    fn ended(failed: bool) -> AttemptOutcome {
        if failed { AttemptOutcome::Failed } else { AttemptOutcome::Succeeded }
    }

    /// How many tries a look every half a minute makes in a day.
    fn tries(pause: &RetryPause, reason: TouchReason, failed: bool) -> u32 {
        let clock = Clock::manual(Timestamp(0));
        let mut tries = 0;
        for _ in 0..2 * 60 * 24 {
            if reason.is_any() && !pause.last_attempt(reason).holds {
                tries += 1;
                pause.begin(reason, &clock);
                clock.advance(Duration::from_secs(1));
                pause.end(ended(failed), &clock);
                assert_eq!(pause.last_attempt(reason).failed, failed);
            }
            clock.advance(Duration::from_secs(30));
        }
        tries
    }

    #[test]
    fn what_fails_or_comes_to_nothing_is_tried_ever_more_seldom() {
        for (reason, failed, most) in [(RENEWAL, true, 30), (ORDER, true, 30), (RENEWAL, false, 24), (REPAIR, true, 160)] {
            let tries = tries(&RetryPause::default(), reason, failed);
            assert!((20..=most).contains(&tries), "{tries}: {reason:?} {failed}");
        }
    }

    /// Attack: what was signed under a clock that was years ahead was not valid yet once the clock was right, for up to an hour.
    #[test]
    fn what_another_clock_called_for_says_nothing_of_what_is_due_by_this_one() {
        for failed in [false, true] {
            let (pause, clock) = (RetryPause::default(), Clock::manual(Timestamp(2_000_000_000_000)));
            pause.begin(RENEWAL, &clock);
            clock.advance(Duration::from_secs(5));
            pause.end(ended(failed), &clock);
            assert!(pause.last_attempt(RENEWAL).holds);
            clock.set(Timestamp(clock.now().0 - 2_000));
            assert!(pause.last_attempt(RENEWAL).holds, "a correction of two seconds is nothing");
            clock.set(Timestamp(1_772_366_400_000));
            assert!(!pause.last_attempt(RENEWAL).holds);
            pause.begin(RENEWAL, &clock);
            pause.end(ended(failed), &clock);
            clock.advance(Duration::from_secs(30));
            assert!(pause.last_attempt(RENEWAL).holds);
        }
    }

    #[test]
    fn another_reason_is_not_held_back_nor_the_next_one_after_nothing_was_due() {
        let (pause, clock) = (RetryPause::default(), Clock::manual(Timestamp(0)));
        let fail = |reason| {
            pause.begin(reason, &clock);
            pause.end(AttemptOutcome::Failed, &clock);
        };
        fail(RENEWAL);
        assert!(pause.last_attempt(RENEWAL).holds);
        for other in [
            ORDER,
            TouchReason { drifted: true, ..RENEWAL },
            TouchReason { beside: 7, ..RENEWAL },
            TouchReason { generation: 2, ..RENEWAL },
        ] {
            assert!(!pause.last_attempt(other).holds, "{other:?}");
        }
        assert!(!pause.last_attempt(NOTHING).holds);
        assert!(pause.last_attempt(RENEWAL) == LastAttempt { holds: false, failed: false });
        // What was put back may be put back again at once.
        let drift = TouchReason { drifted: true, ..NOTHING };
        pause.begin(drift, &clock);
        assert!(pause.last_attempt(drift).holds, "cut off");
        pause.end(AttemptOutcome::Succeeded, &clock);
        assert!(!pause.last_attempt(drift).holds);
    }
}
