//! When a source is polled next. Pure: chance comes in as a number.
//!
//! After a change polls come fast and then ever slower, because dependent deployments arrive one by
//! one (heat-protocol.md R7). In the steady state nodes of one stack must not poll in step (R4), so the
//! first steady pause is anywhere within the interval and the later ones vary a little.

use std::time::Duration;

/// Longest pause after failures.
const FAILED_CAP: Duration = Duration::from_mins(5);

/// Longest pause that a server may ask for.
const ASKED_CAP: Duration = Duration::from_hours(1);

/// What the poll brought, as far as the pause depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum After {
    /// Nothing new.
    Steady,
    /// Something new.
    Changed,
    /// Nothing at all; the server may have asked for a pause (Retry-After).
    Failed(Option<Duration>),
}

/// The pace of one source.
#[derive(Clone, Debug)]
pub(super) struct Schedule {
    min: Duration,
    max: Duration,
    /// Lower end of the next pause of the fast window.
    step: Duration,
    /// Whether the pause that spreads the nodes over the interval was taken.
    spread: bool,
    failures: u32,
}

impl Schedule {
    /// A source that has not been polled yet.
    pub(super) fn new(min: Duration, max: Duration) -> Self {
        Self { min: min.min(max), max, step: min.min(max), spread: false, failures: 0 }
    }

    /// The pause to the next poll; `random` is in `0.0..1.0`.
    pub(super) fn next(&mut self, after: After, random: f64) -> Duration {
        match after {
            After::Changed => {
                self.failures = 0;
                self.hurry(random)
            }
            After::Steady => {
                self.failures = 0;
                if self.step < self.max {
                    let pause = between(self.step, (self.step * 2).min(self.max), random);
                    self.step = (self.step * 2).min(self.max);
                    pause
                } else if self.spread {
                    self.max.mul_f64(0.9 + 0.2 * random)
                } else {
                    self.spread = true;
                    between(self.min, self.max, random)
                }
            }
            After::Failed(asked) => {
                self.failures = self.failures.saturating_add(1);
                let ceiling = self.step.saturating_mul(1 << self.failures.min(16)).min(FAILED_CAP).max(self.min);
                let pause = between(self.min, ceiling, random);
                match asked.map(|asked| asked.min(ASKED_CAP)) {
                    Some(asked) => pause.max(asked.mul_f64(1.0 + 0.1 * random)),
                    None => pause,
                }
            }
        }
    }

    /// Begins the fast window and gives its first pause.
    pub(super) fn hurry(&mut self, random: f64) -> Duration {
        self.spread = false;
        self.step = (self.min * 2).min(self.max);
        between(self.min, self.step, random)
    }
}

fn between(low: Duration, high: Duration, random: f64) -> Duration {
    low + high.saturating_sub(low).mul_f64(random)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn the_fast_window_slows_down_to_the_interval() {
        let mut schedule = Schedule::new(s(1), s(60));
        let pauses =
            |schedule: &mut Schedule, random| (0..9).map(|_| schedule.next(After::Steady, random).as_secs()).collect::<Vec<_>>();
        assert_eq!(schedule.next(After::Changed, 0.0), s(1));
        assert_eq!(pauses(&mut schedule, 0.0), [2, 4, 8, 16, 32, 1, 54, 54, 54]);
        assert_eq!(schedule.next(After::Changed, 0.999).as_secs(), 1);
        assert_eq!(pauses(&mut schedule, 0.9999), [3, 7, 15, 31, 59, 59, 65, 65, 65]);
        assert!(schedule.hurry(0.5) <= s(2));
    }

    #[test]
    fn failures_pause_longer_and_longer_up_to_five_minutes() {
        let mut schedule = Schedule::new(s(1), s(60));
        let failed =
            |schedule: &mut Schedule| (0..6).map(|_| schedule.next(After::Failed(None), 0.9999).as_secs()).collect::<Vec<_>>();
        assert_eq!(failed(&mut schedule), [1, 3, 7, 15, 31, 63]);
        for _ in 0..12 {
            schedule.next(After::Steady, 0.0);
        }
        assert_eq!(failed(&mut schedule), [119, 239, 299, 299, 299, 299]);
        for _ in 0..100 {
            assert!(schedule.next(After::Failed(None), 0.0) >= s(1));
        }
    }

    #[test]
    fn a_server_that_asks_for_a_pause_gets_it_within_reason() {
        let mut schedule = Schedule::new(s(1), s(60));
        assert_eq!(schedule.next(After::Failed(Some(s(120))), 0.0), s(120));
        assert_eq!(schedule.next(After::Failed(Some(s(120))), 0.5), s(126));
        assert_eq!(schedule.next(After::Failed(Some(s(u64::MAX))), 0.0), s(3600));
    }

    #[test]
    fn odd_intervals_do_no_harm() {
        for (min, max) in [(0, 0), (5, 1), (1, 1), (3600, 3600)] {
            let mut schedule = Schedule::new(s(min), s(max));
            for after in [After::Changed, After::Steady, After::Steady, After::Failed(None), After::Steady] {
                assert!(schedule.next(after, 0.9) <= FAILED_CAP.max(s(max) * 2));
            }
        }
    }

    #[test]
    fn ten_thousand_nodes_started_together_do_not_poll_in_step() {
        // A plain generator: the test must give the same numbers each time.
        let mut seed = 1_u32;
        let mut random = move || {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            f64::from(seed >> 8) / f64::from(1_u32 << 24)
        };
        let (from, until) = (s(300), s(900));
        let mut windows = [0_u32; 60];
        for _ in 0..10_000 {
            let mut schedule = Schedule::new(s(1), s(60));
            let mut at = schedule.next(After::Changed, random());
            while at < until {
                if at >= from {
                    windows[usize::try_from(at.saturating_sub(from).as_secs() / 10).unwrap()] += 1;
                }
                at += schedule.next(After::Steady, random());
            }
        }
        let mean = f64::from(windows.iter().sum::<u32>()) / 60.0;
        let peak = f64::from(*windows.iter().max().unwrap());
        // design.md 8.
        assert!(mean / 10.0 <= 170.0 && peak / mean <= 1.3, "mean {} /s, peak/mean {}", mean / 10.0, peak / mean);
    }
}
