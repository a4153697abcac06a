//! What is done or said about a deployment rests on an authoritative answer to a request that *began* after the fact
//! (design.md 9, Freshness).
//!
//! Heat takes any signal while a resource is in progress and does not look at the run that it belongs to, and it replaces a
//! deployment without a word to the node. So an answer says something of a fact only if its request began after it: an answer
//! that merely arrived later may be older.
//!
//! An answer is one with a list of deployments: what Heat says without one says nothing of any deployment, neither that it is
//! asked for nor that it is gone.
//!
//! A signal completes what Heat waits for at the time that it arrives. So it leaves only while the newest answer is also young:
//! its request began not longer than [`ANSWER_VALIDITY`] ago. Where the source itself takes longer than that to answer, there is
//! no younger one: see [`ListAnswer`].
//!
//! In: [`Moment`]s, which the clock hands out in the order of events, so that no wall clock that is set can confuse them. Out:
//! whether the newest answer covers a fact, and whether a signal about it may leave. Signals and their retries, supersession and the
//! start of scripts all ask here; what is not covered is asked for by `Collector::ask`. Never: a request, or a look at the wall clock.

use std::time::Duration;

use crate::clock::{Clock, Moment, patience};

/// How long after its request began signals may rest on an answer.
pub const ANSWER_VALIDITY: Duration = patience(Duration::from_secs(5));
/// How long after it came signals may rest on an answer of a source that is slow.
const SLOW_SOURCE_VALIDITY: Duration = Duration::from_secs(2);

/// An answer with a list of deployments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListAnswer {
    /// When its request began: the answer is at least as new.
    pub began: Moment,
    /// How long after that signals may rest on it.
    lasts: Duration,
}

impl ListAnswer {
    /// Of a request that began then. `durations`: how long this answer and the one before it of the same source were on their way. One slow
    /// answer makes no slow source: the quicker of the two counts.
    #[must_use]
    pub fn new(began: Moment, durations: [Duration; 2]) -> Self {
        let [this, before] = durations;
        Self { began, lasts: ANSWER_VALIDITY.max(this.min(before) + SLOW_SOURCE_VALIDITY) }
    }
}

/// How new the list of deployments in force is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Freshness {
    /// A source that speaks for Heat is expected to answer with a list and has not in this run of the agent, whatever its cache
    /// holds; or its newest answer has none.
    #[default]
    Awaited,
    /// No source can answer for Heat: what the boot copy and local files say is all there will ever be.
    Unasked,
    /// The list in force is from this answer.
    Answered(ListAnswer),
}

impl Freshness {
    /// Whether what the metadata says now was said after `fact`. A fact of an earlier run of the agent is
    /// [`Moment::EARLIER`]: any answer in this run covers it.
    #[must_use]
    pub fn covers(self, fact: Moment) -> bool {
        match self {
            Self::Awaited => false,
            Self::Unasked => true,
            Self::Answered(list_answer) => list_answer.began > fact,
        }
    }

    /// What an answer must cover before a signal about `fact` may leave; `None` where it may leave now.
    #[must_use]
    pub fn awaits(self, fact: Moment, clock: &Clock) -> Option<Moment> {
        match self {
            _ if !self.covers(fact) => Some(fact),
            // Any answer to a request after the one that grew too old.
            Self::Answered(list_answer) if clock.since(list_answer.began) > list_answer.lasts => Some(list_answer.began),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Timestamp;

    /// An answer that came at once.
    fn answer_at(began: Moment) -> ListAnswer {
        ListAnswer::new(began, [Duration::ZERO; 2])
    }

    #[test]
    fn only_an_answer_to_a_request_that_began_after_the_fact_covers_it() {
        let clock = Clock::manual(Timestamp(10_000));
        let before = clock.moment();
        let fact = clock.moment();
        let after = clock.moment();
        for (freshness, of_this_run, of_an_earlier_one) in [
            (Freshness::Awaited, false, false),
            (Freshness::Unasked, true, true),
            // Under way while it happened: when its answer came does not matter.
            (Freshness::Answered(answer_at(before)), false, true),
            (Freshness::Answered(answer_at(after)), true, true),
        ] {
            let covered = (freshness.covers(fact), freshness.covers(Moment::EARLIER));
            assert_eq!(covered, (of_this_run, of_an_earlier_one), "{freshness:?}");
            let awaited = (freshness.awaits(fact, &clock), freshness.awaits(Moment::EARLIER, &clock));
            let missing = ((!of_this_run).then_some(fact), (!of_an_earlier_one).then_some(Moment::EARLIER));
            assert_eq!(awaited, missing, "{freshness:?}");
        }
        assert_eq!(Freshness::default(), Freshness::Awaited);
    }

    #[test]
    fn one_answer_serves_all_facts_before_its_request_and_none_after_it() {
        let clock = Clock::system();
        let facts = [clock.moment(), clock.moment(), clock.moment()];
        let answer = Freshness::Answered(answer_at(clock.moment()));
        let late = clock.moment();
        assert!(facts.iter().all(|fact| answer.covers(*fact)) && !answer.covers(late));
    }

    #[test]
    fn a_signal_rests_on_no_answer_whose_request_began_long_ago_whatever_the_clock_was_set_to() {
        let clock = Clock::manual(Timestamp(10_000_000));
        let fact = clock.moment();
        let began = clock.moment();
        let (answer, second) = (Freshness::Answered(answer_at(began)), Duration::from_secs(1));
        for set in [0, 99_000_000] {
            clock.set(Timestamp(set));
            assert_eq!(answer.awaits(fact, &clock), None);
        }
        clock.advance(ANSWER_VALIDITY);
        assert_eq!(answer.awaits(fact, &clock), None);
        clock.advance(second);
        clock.set(Timestamp(10_000_000));
        // What was said stays said, but a signal needs an answer to a later request.
        assert_eq!((answer.covers(fact), answer.awaits(fact, &clock)), (true, Some(began)));
        assert_eq!(Freshness::Answered(answer_at(clock.moment())).awaits(fact, &clock), None);
        assert_eq!(Freshness::Unasked.awaits(fact, &clock), None, "nobody could answer");
    }

    #[test]
    fn a_source_that_is_slow_each_time_holds_no_signal_up_for_ever_and_a_machine_that_stood_still_is_none() {
        let clock = Clock::manual(Timestamp(10_000));
        let slow = ANSWER_VALIDITY + Duration::from_secs(3);
        for (before, may_leave) in [(Duration::ZERO, false), (slow, true)] {
            let (fact, began) = (clock.moment(), clock.moment());
            clock.advance(slow);
            let answer = Freshness::Answered(ListAnswer::new(began, [slow, before]));
            assert_eq!(answer.awaits(fact, &clock).is_none(), may_leave, "{before:?}");
            clock.advance(SLOW_SOURCE_VALIDITY + Duration::from_secs(1));
            assert_eq!(answer.awaits(fact, &clock), Some(began));
        }
    }
}
