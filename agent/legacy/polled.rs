//! What os-collect-config says to its command of how current the metadata are.
//!
//! A result that is not sent at once is sent only where Heat is known to wait for it still: while it could not be sent, Heat may have put
//! another deployment in the place of this one, which a late result would complete.

use super::machine::variable;
use crate::clock::Timestamp;

/// The variable: when the poll began whose answers list the deployments, in seconds since 1970; empty where a source that lists some has
/// not answered, so that what it said last stands in its place.
pub(super) const POLLED: &str = "HEAT_NODE_AGENT_POLLED";

/// The variable: ids of deployments that are listed and that Heat has replaced, a line each.
pub(super) const REPLACED: &str = "HEAT_NODE_AGENT_REPLACED";

/// Seconds from a poll on in which Heat is taken to wait still for what it listed. What runs before 55-heat-config may take minutes.
const LONGEST: i64 = 600;

/// When the metadata were asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Polled {
    /// By a program that does not say it, or by hand.
    Unsaid,
    /// At no time that is known: they are what was said before.
    Earlier,
    /// At this time, in seconds since 1970.
    At(i64),
}

impl Polled {
    /// What the environment says.
    pub(super) fn said() -> Self {
        Self::of(variable(POLLED).as_deref())
    }

    fn of(text: Option<&str>) -> Self {
        text.map_or(Self::Unsaid, |text| text.parse().map_or(Self::Earlier, Self::At))
    }

    /// Whether they were asked for after this second, and not long before `now`. A poll that is yet to come was made by a clock that was set
    /// back since: nobody knows how old it is.
    pub(super) fn is_after(self, second: i64, now: i64) -> bool {
        matches!(self, Self::At(at) if at > second && (0..=LONGEST).contains(&now.saturating_sub(at)))
    }

    /// The second of a time, as the variable and the file system count.
    pub(super) fn seconds(time: Timestamp) -> i64 {
        i64::try_from(time.0 / 1000).unwrap_or(i64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_time_behind_the_second_is_after_it() {
        assert_eq!(
            [None, Some(""), Some("soon"), Some("12")].map(Polled::of),
            [Polled::Unsaid, Polled::Earlier, Polled::Earlier, Polled::At(12)]
        );
        assert_eq!([11, 12, 13].map(|at| Polled::At(at).is_after(12, 20)), [false, false, true]);
        assert_eq!([613, 614].map(|now| Polled::At(13).is_after(12, now)), [true, false], "a list that is old");
        // Attack: the clock was ahead at the poll, and was set back while the command ran.
        assert_eq!([12, 13].map(|now| Polled::At(13).is_after(11, now)), [false, true], "one that is yet to come");
        assert!(!Polled::Unsaid.is_after(0, 0) && !Polled::Earlier.is_after(0, 0));
        assert_eq!(Polled::seconds(Timestamp(12_999)), 12);
    }
}
