//! What looks at the network of pods lead to, from one to the next: what is wrong twice is reported once, and a unit is restarted once for
//! a cause. Pure.

use std::time::Duration;

use crate::clock::{Clock, Timestamp};
use crate::report::Code;
use crate::report::reported_once::ReportedOnce;

/// Between two looks, and up to half a second more, so that the nodes of a cluster do not ask etcd at the same moment.
pub(super) const EVERY: Duration = Duration::from_secs(4);
pub(super) const SPREAD_MS: u64 = 500;
/// A unit is not restarted again for the same cause before this has passed.
const REPAIRED_FOR: Duration = Duration::from_hours(1);
/// Nor for another one before this has.
const BETWEEN_REPAIRS: Duration = Duration::from_mins(1);

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) code: Code,
    pub(super) cause: String,
}

/// What a look leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RouteAction {
    /// It is wrong for the second time.
    Report(Finding),
    /// The unit that sets routes is restarted for this cause.
    Repair(String),
    /// All is right again.
    Recovered,
}

/// What was found before.
#[derive(Debug, Default)]
pub(super) struct FindingHistory {
    last: Vec<Finding>,
    pub(super) reported_once: ReportedOnce<Finding>,
    /// By [`Clock::steady`].
    repaired: Vec<(String, Timestamp)>,
    /// Something was reported, and nothing of its end yet.
    was_reported: bool,
}

impl FindingHistory {
    /// Whether something was wrong at the last look alone.
    pub(super) fn is_unsure(&self) -> bool {
        self.last.iter().any(|finding| !self.reported_once.reported().contains(finding))
    }

    /// Takes in what a look found.
    pub(super) fn take(&mut self, found: Vec<Finding>, repair: bool, clock: &Clock) -> Vec<RouteAction> {
        // A clock that is set neither holds a repair off nor has it made too early.
        let now = clock.steady();
        let confirmed: Vec<Finding> = found.iter().filter(|finding| self.last.contains(finding)).cloned().collect();
        // One of several causes that went says nothing of the others.
        let has_recovered = found.is_empty() && self.was_reported;
        let mut actions: Vec<RouteAction> = self.reported_once.news(&confirmed).into_iter().map(RouteAction::Report).collect();
        self.was_reported = !has_recovered && (self.was_reported || !actions.is_empty());
        actions.extend(has_recovered.then_some(RouteAction::Recovered));
        self.repaired.retain(|(_, at)| now.since(*at) < REPAIRED_FOR);
        let rests = self.repaired.iter().any(|(_, at)| now.since(*at) < BETWEEN_REPAIRS);
        let is_new = |finding: &&Finding| {
            matches!(finding.code, Code::RouteMissing | Code::RouteMisdirected | Code::OwnSubnetRouted)
                && !self.repaired.iter().any(|(cause, _)| *cause == finding.cause)
        };
        let causes: Vec<String> =
            self.reported_once.reported().iter().filter(is_new).map(|finding| finding.cause.clone()).collect();
        if let Some(first) = causes.first().filter(|_| repair && !rests) {
            actions.push(RouteAction::Repair(first.clone()));
            // One restart is for all of them.
            self.repaired.extend(causes.iter().map(|cause| (cause.clone(), now)));
        }
        self.last = found;
        actions
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn missing(cause: &str) -> Finding {
        Finding { code: Code::RouteMissing, cause: cause.to_owned() }
    }

    /// What each look, 4 s after the last one, leads to.
    fn looks(memory: &mut FindingHistory, repair: bool, found: &[&[Finding]]) -> Vec<Vec<RouteAction>> {
        looks_by(memory, repair, found, &Clock::manual(Timestamp(0)))
    }

    fn looks_by(memory: &mut FindingHistory, repair: bool, found: &[&[Finding]], clock: &Clock) -> Vec<Vec<RouteAction>> {
        let mut inspection = |found: &&[Finding]| {
            clock.advance(EVERY);
            memory.take(found.to_vec(), repair, clock)
        };
        found.iter().map(&mut inspection).collect()
    }

    #[test]
    fn what_is_wrong_twice_is_reported_once_and_its_end_too() {
        let (a, b) = (missing("a"), missing("b"));
        let report = |finding: &Finding| RouteAction::Report(finding.clone());
        let only = |finding: &Finding| vec![finding.clone()];
        let both = [a.clone(), b.clone()];
        let actions = looks(
            &mut FindingHistory::default(),
            false,
            &[&[], &only(&a), &[], &only(&a), &only(&a), &only(&a), &both, &both, &only(&b), &[], &[]],
        );
        let none = Vec::new;
        let expected = [
            none(),
            none(),
            none(),
            none(),
            vec![report(&a)],
            none(),
            none(),
            vec![report(&b)],
            none(),
            vec![RouteAction::Recovered],
            none(),
        ];
        assert_eq!(actions, expected);
    }

    #[test]
    fn the_end_is_reported_although_another_thing_was_seen_once_before_it() {
        let (a, b) = ([missing("a")], [missing("b")]);
        let actions = looks(&mut FindingHistory::default(), false, &[&a, &a, &b, &[], &[]]);
        assert_eq!(actions[3..], [vec![RouteAction::Recovered], Vec::new()]);
    }

    #[test]
    fn what_was_wrong_once_is_looked_at_again_soon() {
        let (mut memory, a) = (FindingHistory::default(), missing("a"));
        let found: [(&[Finding], bool); 4] =
            [(&[], false), (std::slice::from_ref(&a), true), (std::slice::from_ref(&a), false), (&[], false)];
        for (found, unsure) in found {
            memory.take(found.to_vec(), false, &Clock::manual(Timestamp(0)));
            assert_eq!(memory.is_unsure(), unsure, "{found:?}");
        }
    }

    #[test]
    fn a_unit_is_restarted_once_for_a_cause_and_never_in_a_loop() {
        let a = [missing("a")];
        let count = |actions: &[Vec<RouteAction>]| {
            actions.iter().flatten().filter(|action| matches!(action, RouteAction::Repair(_))).count()
        };
        // For ten minutes, as it stays and as it comes and goes.
        let stays: Vec<&[Finding]> = vec![&a; 150];
        assert_eq!(count(&looks(&mut FindingHistory::default(), true, &stays)), 1);
        assert_eq!(count(&looks(&mut FindingHistory::default(), false, &stays)), 0);
        let comes: Vec<&[Finding]> = [&a[..], &a, &[], &[]].repeat(40);
        assert_eq!(count(&looks(&mut FindingHistory::default(), true, &comes)), 1);
        // What no restart mends.
        for code in [Code::PeerOffSegment, Code::PodPacketsLost, Code::LeasesUnknown, Code::RouteLeftOver, Code::PeerSilent] {
            let other = [Finding { code, cause: "x".to_owned() }];
            let stays: Vec<&[Finding]> = vec![&other; 10];
            assert_eq!(count(&looks(&mut FindingHistory::default(), true, &stays)), 0, "{code:?}");
        }
        // Two at once are one restart; another one later waits a minute.
        let two = [missing("a"), missing("b")];
        let stays: Vec<&[Finding]> = vec![&two; 40];
        assert_eq!(count(&looks(&mut FindingHistory::default(), true, &stays)), 1);
        let later: Vec<&[Finding]> = [vec![&two[..1]; 5], vec![&two; 25]].concat();
        let actions = looks(&mut FindingHistory::default(), true, &later);
        let at: Vec<usize> = (0..actions.len()).filter(|at| count(&actions[*at..=*at]) == 1).collect();
        assert!(at.len() == 2 && EVERY * u32::try_from(at[1] - at[0]).unwrap() >= BETWEEN_REPAIRS, "{at:?}");
    }

    /// Attack: a route was repaired while the clock was ahead; once that was set back, no other one was repaired before its time had come again.
    #[test]
    fn a_clock_that_is_set_back_holds_no_repair_off() {
        let (mut memory, clock) = (FindingHistory::default(), Clock::manual(Timestamp(7_200_000)));
        let (a, b) = ([missing("a")], [missing("b")]);
        let repairs = |actions: &[Vec<RouteAction>]| actions.concat().contains(&RouteAction::Repair("b".to_owned()));
        assert!(!repairs(&looks_by(&mut memory, true, &[&a[..]; 3], &clock)));
        clock.set(Timestamp(0));
        assert!(repairs(&looks_by(&mut memory, true, &[&b[..]; 20], &clock)));
    }

    #[test]
    fn a_missing_route_is_reported_within_ten_seconds() {
        assert!(2 * (EVERY + Duration::from_millis(SPREAD_MS)) < Duration::from_secs(10));
    }
}
