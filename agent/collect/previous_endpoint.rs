//! The way by which a source answered last, asked on at a slower pace until the one that takes its place has answered.
//!
//! So one wrong update of a stack takes no server off Heat: what corrects it arrives by the way that still works.

use std::time::Duration;

use super::poll::PollCache;
use super::schedule::PollNews;
use super::source_set::SourceSet;
use super::timer::Timer;
use crate::clock::{Clock, Moment};

/// How many times slower it is asked than a source in force.
const SLOWER: u32 = 4;

/// A way that is to be replaced.
pub(super) struct PreviousEndpoint {
    pub(super) set: SourceSet,
    /// Digest of the local files when it answered first: what it says counts only while they are so.
    pub(super) files_digest: String,
    pub(super) memory: PollCache,
    /// Whether a request is under way.
    pub(super) in_flight: bool,
    /// When its last request began.
    pub(super) asked: Moment,
    /// Whether it answered last time.
    pub(super) answers: bool,
    /// Failed tries since the last good one.
    pub(super) failures: u32,
    timer: Timer,
}

impl PreviousEndpoint {
    /// `fresh`: it answered just now; else it is asked at once.
    pub(super) fn new(set: SourceSet, files_digest: String, pace: (Duration, Duration), fresh: bool, clock: &Clock) -> Self {
        let first = (!fresh).then_some(Duration::ZERO);
        Self {
            set,
            files_digest,
            memory: PollCache::default(),
            in_flight: false,
            asked: Moment::EARLIER,
            answers: true,
            failures: 0,
            timer: Timer::new(pace.0 * SLOWER, pace.1 * SLOWER, first, clock),
        }
    }

    pub(super) fn set_pace(&mut self, min: Duration, max: Duration) {
        self.timer.set_pace(min * SLOWER, max * SLOWER);
    }

    /// Sets when it is asked next.
    pub(super) fn reschedule(&mut self, after: PollNews, clock: &Clock) {
        self.in_flight = false;
        self.answers = !matches!(after, PollNews::Failed(_));
        self.failures = if self.answers { 0 } else { self.failures.saturating_add(1) };
        self.timer.next(after, clock);
    }

    /// Time to the next request; `None` while one is under way.
    pub(super) fn due_in(&self) -> Option<Duration> {
        (!self.in_flight).then(|| self.timer.left())
    }

    /// Somebody waits for a fresh answer.
    pub(super) fn start_fast_polling(&mut self, clock: &Clock) {
        let pause = self.timer.start_fast_polling();
        if self.due_in().is_some_and(|due| due > pause) {
            self.timer.set(pause, clock);
        }
    }
}
