//! When one way to a source is asked next: its schedule, by the clock.

use std::time::Duration;

use super::schedule::{PollNews, Schedule};
use crate::backoff::random;
use crate::clock::{Clock, Stopwatch, millis};

/// Counts the pause between two requests.
pub(super) struct Timer {
    schedule: Schedule,
    since: Stopwatch,
    pause: Duration,
}

impl Timer {
    /// The first request is due after `first`; where it has none, right after a change.
    pub(super) fn new(min: Duration, max: Duration, first: Option<Duration>, clock: &Clock) -> Self {
        let mut schedule = Schedule::new(min, max, random());
        let first = first.unwrap_or_else(|| schedule.start_fast_polling(random()));
        let mut timer = Self { schedule, since: clock.start(), pause: Duration::ZERO };
        timer.set(first, clock);
        timer
    }

    /// What is left of the pause.
    pub(super) fn left(&self) -> Duration {
        self.pause.saturating_sub(self.since.elapsed())
    }

    /// What would be left of a pause of at most `limit`.
    pub(super) fn left_within(&self, limit: Duration) -> Duration {
        self.pause.min(limit).saturating_sub(self.since.elapsed())
    }

    /// Begins a pause of this length.
    pub(super) fn set(&mut self, pause: Duration, clock: &Clock) {
        self.since = clock.start();
        // As the clock counts: of what is left over it could never be said that it has passed.
        self.pause = Duration::from_millis(millis(pause));
    }

    /// Begins the pause that follows a poll, and gives it.
    pub(super) fn next(&mut self, after: PollNews, clock: &Clock) -> Duration {
        let pause = self.schedule.next(after, random(), clock.now());
        self.set(pause, clock);
        pause
    }

    /// Begins the fast window, and gives the pause with which it begins; the one under way stays as it is.
    pub(super) fn start_fast_polling(&mut self) -> Duration {
        self.schedule.start_fast_polling(random())
    }

    /// Another pace, from the next pause on.
    pub(super) fn set_pace(&mut self, min: Duration, max: Duration) {
        self.schedule.set_pace(min, max);
    }

    /// Gives it a slot for good.
    pub(super) fn set_slot(&mut self, slot: f64) {
        self.schedule.set_slot(slot);
    }
}
