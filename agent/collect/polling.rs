//! When a source is polled: its timer, the request under way, and who waits for an answer.

use std::time::Duration;

use super::schedule::{PollNews, slot_of};
use super::timer::Timer;
use crate::clock::{Clock, Moment};

/// The longest pause behind a first failure of a source that a result waits for: Heat may wait for that no longer than WAIT_TIMEOUT says. Each
/// further failure adds as much.
const WANTED: Duration = Duration::from_secs(30);

/// The polls of one source.
pub(super) struct Polling {
    /// Whether a request is under way.
    pub(super) in_flight: bool,
    timer: Timer,
    /// When the newest of its polls began that was answered.
    answered: Moment,
    /// An answer to a poll that began after this is waited for.
    wanted: Option<Moment>,
    /// The shortest and the longest pause.
    pub(super) pace: (Duration, Duration),
}

impl Polling {
    /// The first poll is due after `first`.
    pub(super) fn new(pace: (Duration, Duration), first: Duration, clock: &Clock) -> Self {
        let timer = Timer::new(pace.0, pace.1, Some(first), clock);
        Self { in_flight: false, timer, answered: Moment::EARLIER, wanted: None, pace }
    }

    /// Time to the next poll behind so many failures; `None` while one is under way.
    pub(super) fn due_in(&self, failures: u32) -> Option<Duration> {
        (!self.in_flight).then(|| match failures {
            _ if self.wanted < Some(self.answered) => self.timer.left(),
            0 => Duration::ZERO,
            failures => self.timer.left_within(WANTED.saturating_mul(failures)),
        })
    }

    /// A request is under way.
    pub(super) fn begin(&mut self) {
        self.in_flight = true;
    }

    /// A poll that began then is over. One that failed answers nobody who waits.
    pub(super) fn end(&mut self, began: Moment, is_answered: bool) {
        self.in_flight = false;
        if is_answered {
            self.answered = self.answered.max(began);
        }
    }

    /// An answer to a poll is waited for that begins after this.
    pub(super) fn want(&mut self, fact: Moment) {
        self.wanted = self.wanted.max(Some(fact));
    }

    /// Whether an answer is waited for that is newer than one to a poll of this time.
    pub(super) fn wants_since(&self, asked: Moment) -> bool {
        self.wanted >= Some(asked)
    }

    /// Begins the pause that follows a poll, and gives it.
    pub(super) fn next(&mut self, after: PollNews, clock: &Clock) -> Duration {
        self.timer.next(after, clock)
    }

    /// Begins the fast window, and gives the pause with which it begins.
    pub(super) fn start_fast_polling(&mut self) -> Duration {
        self.timer.start_fast_polling()
    }

    /// Begins a pause of this length.
    pub(super) fn set_pause(&mut self, pause: Duration, clock: &Clock) {
        self.timer.set(pause, clock);
    }

    /// Polls in the slot of this name.
    pub(super) fn set_slot(&mut self, name: &str) {
        self.timer.set_slot(slot_of(name));
    }

    pub(super) fn set_pace(&mut self, min: Duration, max: Duration) {
        self.pace = (min, max);
        self.timer.set_pace(min, max);
    }
}
