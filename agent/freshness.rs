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
//! In: [`Moment`]s, which the clock hands out in the order of events, so that no wall clock that is set can confuse them. Out:
//! whether the newest answer covers a fact. Signals and their retries, supersession and the start of scripts all ask here; what
//! is not covered is asked for by `Collector::ask`.

use crate::clock::Moment;

/// How new the list of deployments in force is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Freshness {
    /// A source that speaks for Heat is expected to answer with a list and has not in this run of the agent, whatever its cache
    /// holds; or its newest answer has none.
    #[default]
    Awaited,
    /// No source can answer for Heat: what the boot copy and local files say is all there will ever be.
    Unasked,
    /// The list in force answered a request that began at this moment.
    Answered(Moment),
}

impl Freshness {
    /// Whether what the metadata says now was said after `fact`. A fact of an earlier run of the agent is
    /// [`Moment::EARLIER`]: any answer in this run covers it.
    #[must_use]
    pub fn covers(self, fact: Moment) -> bool {
        match self {
            Self::Awaited => false,
            Self::Unasked => true,
            Self::Answered(began) => began > fact,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{Clock, Timestamp};

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
            (Freshness::Answered(before), false, true),
            (Freshness::Answered(after), true, true),
        ] {
            let covered = (freshness.covers(fact), freshness.covers(Moment::EARLIER));
            assert_eq!(covered, (of_this_run, of_an_earlier_one), "{freshness:?}");
        }
        assert_eq!(Freshness::default(), Freshness::Awaited);
    }

    #[test]
    fn one_answer_serves_all_facts_before_its_request_and_none_after_it() {
        let clock = Clock::system();
        let facts = [clock.moment(), clock.moment(), clock.moment()];
        let answer = Freshness::Answered(clock.moment());
        let late = clock.moment();
        assert!(facts.iter().all(|fact| answer.covers(*fact)) && !answer.covers(late));
    }
}
