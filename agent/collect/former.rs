//! The way by which a source answered last, asked on at a slower pace until the one that takes its place has answered.
//!
//! So one wrong update of a stack takes no server off Heat: what corrects it arrives by the way that still works.

use std::time::Duration;

use super::poll::Memory;
use super::schedule::{After, Schedule};
use super::source::{random, whole_millis};
use super::source_set::SourceSet;
use crate::clock::{Clock, Moment, Stopwatch};

/// How many times slower it is asked than a source in force.
const SLOWER: u32 = 4;

/// A way that is to be replaced.
pub(super) struct Former {
    pub(super) set: SourceSet,
    /// Digest of the local files when it answered first: what it says counts only while they are so.
    pub(super) basis: String,
    pub(super) memory: Memory,
    /// Whether a request is under way.
    pub(super) flying: bool,
    /// When its last request began.
    pub(super) asked: Moment,
    /// Whether it answered last time.
    pub(super) answers: bool,
    /// Failed tries since the last good one.
    pub(super) failures: u32,
    schedule: Schedule,
    since: Stopwatch,
    pause: Duration,
}

impl Former {
    /// `fresh`: it answered just now; else it is asked at once.
    pub(super) fn new(set: SourceSet, basis: String, pace: (Duration, Duration), fresh: bool, clock: &Clock) -> Self {
        let mut schedule = Schedule::new(pace.0 * SLOWER, pace.1 * SLOWER, random());
        let pause = if fresh { schedule.hurry(random()) } else { Duration::ZERO };
        Self {
            set,
            basis,
            memory: Memory::default(),
            flying: false,
            asked: Moment::EARLIER,
            answers: true,
            failures: 0,
            schedule,
            since: clock.start(),
            pause: whole_millis(pause),
        }
    }

    pub(super) fn set_pace(&mut self, min: Duration, max: Duration) {
        self.schedule.set_pace(min * SLOWER, max * SLOWER);
    }

    /// Sets when it is asked next.
    pub(super) fn landed(&mut self, after: After, clock: &Clock) {
        self.flying = false;
        self.answers = !matches!(after, After::Failed(_));
        self.failures = if self.answers { 0 } else { self.failures.saturating_add(1) };
        self.pause = whole_millis(self.schedule.next(after, random(), clock.now()));
        self.since = clock.start();
    }

    /// Time to the next request; `None` while one is under way.
    pub(super) fn due_in(&self) -> Option<Duration> {
        (!self.flying).then(|| self.pause.saturating_sub(self.since.elapsed()))
    }

    /// Somebody waits for a fresh answer.
    pub(super) fn hurry(&mut self, clock: &Clock) {
        let pause = self.schedule.hurry(random());
        if self.due_in().is_some_and(|due| due > pause) {
            self.since = clock.start();
            self.pause = whole_millis(pause);
        }
    }
}
