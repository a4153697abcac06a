//! One step of a run, as it was timed.

use serde::{Deserialize, Serialize};

use super::condition_state::ConditionState;

/// One step of a run. A run's step_timings are in the order of their beginnings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StepTiming {
    /// `gate etcd`.
    pub step: String,
    /// When everything that it needs was there, in milliseconds after the beginning of the run.
    pub began_ms: u64,
    /// How long it took; of one that goes on: so far.
    pub took_ms: u64,
    /// What it waited for, in the order of their ends: the last one released it.
    pub after: Vec<String>,
    /// `ok`: it is done; `failed`: with it the run ended; `waiting`: it goes on, or did when another failed.
    pub state: ConditionState,
}

/// How long each step of a run took and the whole run, in milliseconds, for Heat and for `status`.
#[must_use]
pub fn timings(step_timings: &[StepTiming]) -> Vec<(String, u64)> {
    let mut timings: Vec<(String, u64)> = Vec::new();
    for timing in step_timings {
        // A gate whose process was replaced was measured more than once.
        match timings.iter_mut().find(|(step, _)| *step == timing.step) {
            Some((_, took)) => *took += timing.took_ms,
            None => timings.push((timing.step.clone(), timing.took_ms)),
        }
    }
    let total = step_timings.iter().map(StepTiming::ended_ms).max();
    timings.extend(total.map(|total| ("total".to_owned(), total)));
    timings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timings_have_each_step_once_and_the_whole_run() {
        let timing =
            |step: &str, began_ms, took_ms| StepTiming { step: step.to_owned(), began_ms, took_ms, ..StepTiming::default() };
        let step_timings = [timing("gate a", 0, 40), timing("unit b", 40, 10), timing("gate a", 60, 5)];
        let expected = [("gate a", 45), ("unit b", 10), ("total", 65)].map(|(step, ms)| (step.to_owned(), ms));
        assert_eq!(timings(&step_timings), expected);
        assert_eq!(timings(&[]), [], "a run that was not timed");
    }
}
