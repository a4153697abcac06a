//! How long a node may take, by Heat's clock: pure.
//!
//! Heat counts a wait condition's timeout from about when it made the deployment, which may be long before a slow boot comes to
//! read it. Its own timeout must never be the first news of a failure.

use std::time::Duration;

use crate::clock::{BUILT, Timestamp};

/// The shortest time for bringing a node up, where the wait condition's timeout allows it.
pub(super) const LEAST_BRING_UP: Duration = Duration::from_mins(1);

/// What there is to judge by.
#[derive(Clone, Copy, Debug)]
pub(in crate::daemon) struct DeadlineInputs<'a> {
    /// `creation_time` of the deployment, by Heat's clock; empty where the operator ordered the run.
    pub(in crate::daemon) made: &'a str,
    /// When the deployment was first seen, by this machine's.
    pub(in crate::daemon) seen: Timestamp,
    /// `WAIT_TIMEOUT`.
    pub(in crate::daemon) timeout: Duration,
}

impl DeadlineInputs<'_> {
    /// How long ago Heat began to wait: since it made the deployment where that time can be right, else since the deployment
    /// was first seen.
    ///
    /// A time in the future of the first look cannot be right: one of the two clocks is wrong. Nor does one count that lies
    /// `WAIT_TIMEOUT` or more before the first look: Heat has given up by then, and whoever has its old deployments before it
    /// for the first time is a server that was rebuilt, for which nobody waits.
    pub(in crate::daemon) fn waiting_time(self, now: Timestamp) -> Duration {
        // A time from before the clock was right says nothing.
        let seen = if self.seen >= BUILT { self.seen } else { now };
        let made = Timestamp::parse_rfc3339(self.made);
        let is_sane = |made: &Timestamp| *made <= seen && seen.since(*made) < self.timeout;
        now.since(made.filter(is_sane).unwrap_or(seen))
    }
}

/// What is left of the node's own `deadline`. Where little is left, half of what Heat still waits: it must hear of it before. Where
/// Heat waits no more, a run of its own for whoever looks at the node.
pub(in crate::daemon) fn time_left(timeout: Duration, deadline: Duration, since: Duration) -> Duration {
    let heat = timeout.saturating_sub(since);
    let least = if heat.is_zero() { deadline } else { heat / 2 };
    deadline.saturating_sub(since).max(LEAST_BRING_UP.min(least))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOON: &str = "2026-03-01T12:00:00Z";

    fn at(minutes: u64) -> Timestamp {
        Timestamp::parse_rfc3339(NOON).unwrap().after(Duration::from_mins(minutes))
    }

    #[test]
    fn the_deadline_counts_from_heats_own_clock_where_that_can_be_right() {
        let hour = Duration::from_hours(1);
        for (why, made, seen, now, minutes) in [
            ("a slow boot", NOON, at(25), at(26), 26),
            ("the agent was away meanwhile", NOON, at(25), at(90), 90),
            ("made in the future", "2026-03-01T12:26:00Z", at(25), at(30), 5),
            ("made long before a rebuilt server saw it", NOON, at(60), at(61), 1),
            ("made just before Heat would give up", NOON, at(59), at(60), 60),
            ("no time", "", at(25), at(30), 5),
            ("no time that anybody could read", "noon", at(25), at(30), 5),
            ("the clock was set back", NOON, at(25), at(20), 20),
        ] {
            let ago = DeadlineInputs { made, seen, timeout: hour }.waiting_time(now);
            assert_eq!(ago, Duration::from_mins(minutes), "{why}");
        }
    }

    #[test]
    fn heat_hears_before_it_gives_up_however_little_is_left() {
        let seconds = Duration::from_secs;
        for (timeout, since, left) in [
            (6000, 0, 5940),
            (6000, 600, 5340),
            (6000, 5870, 70),
            (6000, 5900, 50),
            (6000, 5990, 5),
            // Heat has given up.
            (6000, 6000, 60),
            (6000, 900_000, 60),
            (90, 0, 45),
            (90, 60, 15),
            (20, 3600, 10),
        ] {
            let deadline = seconds(timeout).saturating_sub(seconds(60)).max(seconds(timeout) / 2);
            assert_eq!(time_left(seconds(timeout), deadline, seconds(since)), seconds(left), "{timeout} {since}");
        }
    }
}
