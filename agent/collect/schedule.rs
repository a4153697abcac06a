//! When a source is polled next. Pure: chance comes in as a number.
//!
//! After a change polls come fast and then ever slower, because dependent deployments arrive one by
//! one (heat-protocol.md R7). In the steady state nodes of one stack must not poll in step (R4): each has a slot of its
//! own in the interval, by the hash of its identity, and keeps it over restarts.

use std::time::Duration;

use ring::digest::{SHA256, digest};

use crate::backoff::Backoff;
use crate::clock::{Timestamp, millis};
use crate::http::LONGEST_ASKED;

/// Longest pause after failures.
const FAILED_CAP: Duration = Duration::from_mins(5);

/// How far a steady poll may lie from its slot, as a part of the interval.
const JITTER: f64 = 0.05;

/// Where in the interval the slot of a name lies, in `0.0..1.0`: near names lie far apart.
pub(super) fn slot_of(name: &str) -> f64 {
    let hash = digest(&SHA256, name.as_bytes());
    let number = hash.as_ref().iter().take(4).fold(0_u32, |number, byte| (number << 8) | u32::from(*byte));
    f64::from(number) / (f64::from(u32::MAX) + 1.0)
}

/// What the poll brought, as far as the pause depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PollNews {
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
    /// Where in the interval steady polls lie, in `0.0..1.0`.
    slot: f64,
    failures: u32,
}

impl Schedule {
    /// A source that has not been polled yet.
    pub(super) fn new(min: Duration, max: Duration, slot: f64) -> Self {
        Self { min: min.min(max), max, step: min.min(max), slot, failures: 0 }
    }

    /// Gives it a slot for good.
    pub(super) fn set_slot(&mut self, slot: f64) {
        self.slot = slot;
    }

    /// Another pace, from the next pause on.
    pub(super) fn set_pace(&mut self, min: Duration, max: Duration) {
        if (self.min, self.max) != (min.min(max), max) {
            (self.min, self.max) = (min.min(max), max);
            self.step = self.step.clamp(self.min, self.max);
        }
    }

    /// The pause from `now` to the next poll; `random` is in `0.0..1.0`.
    pub(super) fn next(&mut self, after: PollNews, random: f64, now: Timestamp) -> Duration {
        match after {
            PollNews::Changed => {
                self.failures = 0;
                self.start_fast_polling(random)
            }
            PollNews::Steady => {
                self.failures = 0;
                if self.step < self.max {
                    let pause = between(self.step, (self.step * 2).min(self.max), random);
                    self.step = (self.step * 2).min(self.max);
                    pause
                } else {
                    self.to_slot(now).saturating_sub(self.max.mul_f64(JITTER)) + self.max.mul_f64(2.0 * JITTER * random)
                }
            }
            PollNews::Failed(asked) => {
                self.failures = self.failures.saturating_add(1);
                let ceiling = Backoff::new(self.step, FAILED_CAP).after(self.failures).max(self.min);
                let pause = between(self.min, ceiling, random);
                match asked.map(|asked| asked.min(LONGEST_ASKED)) {
                    Some(asked) => pause.max(asked.mul_f64(1.0 + 0.1 * random)),
                    None => pause,
                }
            }
        }
    }

    /// Begins the fast window and gives its first pause.
    pub(super) fn start_fast_polling(&mut self, random: f64) -> Duration {
        self.step = (self.min * 2).min(self.max);
        between(self.min, self.step, random)
    }

    /// The time to the first slot that is at least half an interval away: a poll that came early has had this one.
    fn to_slot(&self, now: Timestamp) -> Duration {
        let interval = millis(self.max).max(1);
        let slot = u64::try_from(self.max.mul_f64(self.slot).as_millis()).unwrap_or(0) % interval;
        let since_slot = (now.0 % interval + interval - slot) % interval;
        let wait = interval - since_slot;
        Duration::from_millis(if wait < interval / 2 { wait + interval } else { wait })
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

    const START: Timestamp = Timestamp(1_772_366_400_000);

    #[test]
    fn the_fast_window_slows_down_to_the_slot_in_the_interval() {
        let mut schedule = Schedule::new(s(1), s(60), 0.5);
        let pauses = |schedule: &mut Schedule, random| {
            let mut now = START;
            let mut next = || {
                let pause = schedule.next(PollNews::Steady, random, now);
                now = now.after(pause);
                pause.as_secs()
            };
            (0..9).map(|_| next()).collect::<Vec<_>>()
        };
        assert_eq!(schedule.next(PollNews::Changed, 0.0, START), s(1));
        // From 62 s on: to 1:30 less 3 s of jitter, half an interval away at least, and from there in steps of a minute.
        assert_eq!(pauses(&mut schedule, 0.0), [2, 4, 8, 16, 32, 85, 60, 60, 60]);
        assert_eq!(schedule.next(PollNews::Changed, 0.999, START).as_secs(), 1);
        assert_eq!(pauses(&mut schedule, 0.9999), [3, 7, 15, 31, 59, 33, 60, 60, 60]);
        assert!(schedule.start_fast_polling(0.5) <= s(2));
    }

    #[test]
    fn a_node_keeps_its_slot_over_restarts_and_near_names_lie_far_apart() {
        let slot = |name| {
            let mut schedule = Schedule::new(s(60), s(60), slot_of(name));
            schedule.next(PollNews::Steady, 0.5, START).as_millis() % 60_000
        };
        let (a, b) = ("4f8b2c1d-93a2-4b86-8d55-2f60c6b1a9e4/cfn", "4f8b2c1d-93a2-4b86-8d55-2f60c6b1a9e5/cfn");
        assert_eq!(slot(a), slot(a));
        assert!(slot(a).abs_diff(slot(b)) > 1000);
        // Started at any time, it polls at the same second of the minute.
        for late in [0, 7, 29, 31, 59] {
            let now = START.after(s(late));
            let pause = Schedule::new(s(60), s(60), slot_of(a)).next(PollNews::Steady, 0.5, now);
            assert_eq!(u128::from(now.after(pause).0 - START.0) % 60_000, slot(a), "{late}");
            assert!(pause >= s(30) && pause < s(90), "{late} {pause:?}");
        }
    }

    #[test]
    fn failures_pause_longer_and_longer_up_to_five_minutes() {
        let mut schedule = Schedule::new(s(1), s(60), 0.0);
        let failed = |schedule: &mut Schedule| {
            (0..6).map(|_| schedule.next(PollNews::Failed(None), 0.9999, START).as_secs()).collect::<Vec<_>>()
        };
        assert_eq!(failed(&mut schedule), [1, 3, 7, 15, 31, 63]);
        for _ in 0..12 {
            schedule.next(PollNews::Steady, 0.0, START);
        }
        assert_eq!(failed(&mut schedule), [119, 239, 299, 299, 299, 299]);
        // Full jitter: anywhere from the shortest pause to the ceiling.
        for _ in 0..100 {
            assert_eq!(schedule.next(PollNews::Failed(None), 0.0, START), s(1));
        }
    }

    #[test]
    fn a_server_that_asks_for_a_pause_gets_it_within_reason() {
        let mut schedule = Schedule::new(s(1), s(60), 0.0);
        assert_eq!(schedule.next(PollNews::Failed(Some(s(120))), 0.0, START), s(120));
        assert_eq!(schedule.next(PollNews::Failed(Some(s(120))), 0.5, START), s(126));
        assert_eq!(schedule.next(PollNews::Failed(Some(s(u64::MAX))), 0.0, START), s(300));
    }

    #[test]
    fn odd_intervals_do_no_harm() {
        for (min, max) in [(0, 0), (5, 1), (1, 1), (3600, 3600)] {
            let mut schedule = Schedule::new(s(min), s(max), 0.999_999_999);
            for after in [PollNews::Changed, PollNews::Steady, PollNews::Steady, PollNews::Failed(None), PollNews::Steady] {
                assert!(schedule.next(after, 0.9, START) <= FAILED_CAP.max(s(max) * 2));
            }
            schedule.set_pace(s(max), s(min));
            assert!(schedule.next(PollNews::Steady, 0.9, START) <= FAILED_CAP.max(s(min) * 2));
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
        for node in 0..10_000 {
            // The worst case for a hash: identities in sequence.
            let mut schedule = Schedule::new(s(1), s(60), slot_of(&format!("4f8b2c1d-93a2-4b86-8d55-{node:012x}/cfn")));
            let mut at = schedule.next(PollNews::Changed, random(), START);
            while at < until {
                if at >= from {
                    windows[usize::try_from(at.saturating_sub(from).as_secs() / 10).unwrap()] += 1;
                }
                at += schedule.next(PollNews::Steady, random(), START.after(at));
            }
        }
        let mean = f64::from(windows.iter().sum::<u32>()) / 60.0;
        let peak = f64::from(*windows.iter().max().unwrap());
        // design.md 8.
        assert!(mean / 10.0 <= 170.0 && peak / mean <= 1.3, "mean {} /s, peak/mean {}", mean / 10.0, peak / mean);
    }
}
