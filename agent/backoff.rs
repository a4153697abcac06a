//! Pauses that grow between tries, and the chance that spreads a fleet's.
//!
//! In: how many tries have failed, or a pause that somebody asked for. Out: how long to wait, and what of it is left. Never: the wait itself, or
//! whether there is another try.

use std::time::Duration;

use ring::rand::{SecureRandom, SystemRandom};

use crate::clock::{Clock, Stopwatch};

/// Pauses between tries: each is twice as long as the one before, up to the longest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    tries: u32,
}

impl Backoff {
    /// Begins with the first pause.
    #[must_use]
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest, tries: 0 }
    }

    /// The pause behind a try that failed.
    pub fn next_pause(&mut self) -> Duration {
        let pause = self.after(self.tries);
        self.tries = self.tries.saturating_add(1);
        pause
    }

    /// The pause that has doubled this often, for whoever counts tries by themselves.
    #[must_use]
    pub fn after(self, doublings: u32) -> Duration {
        // 2^16 times any first pause is longer than any longest.
        self.first.saturating_mul(1 << doublings.min(16)).min(self.longest)
    }

    /// Begins anew: something has changed, or succeeded.
    pub fn reset(&mut self) {
        self.tries = 0;
    }
}

/// Holds something back until a pause has passed; behind each try that fails the pause is longer, as its [`Backoff`] says.
#[derive(Clone, Debug)]
pub struct Damper {
    pauses: Backoff,
    /// The pause that has begun, and its length.
    begun: Option<(Stopwatch, Duration)>,
}

impl Damper {
    /// Holds nothing back yet.
    #[must_use]
    pub const fn new(pauses: Backoff) -> Self {
        Self { pauses, begun: None }
    }

    /// A try failed: it is held back for the next pause.
    pub fn hold(&mut self, clock: &Clock) {
        self.hold_by(|pause| pause, clock);
    }

    /// The same for what becomes of the next pause, which is given.
    pub fn hold_by(&mut self, adjust: impl FnOnce(Duration) -> Duration, clock: &Clock) -> Duration {
        let pause = adjust(self.pauses.next_pause());
        self.hold_for(pause, clock);
        pause
    }

    /// It is held back for this long; that is no failure.
    pub fn hold_for(&mut self, pause: Duration, clock: &Clock) {
        self.begun = Some((clock.start(), pause));
    }

    /// The pause that has begun, if any, is counted from now.
    pub fn restart(&mut self, clock: &Clock) {
        if let Some((since, _)) = &mut self.begun {
            *since = clock.start();
        }
    }

    /// What is left of the pause; nothing where none has begun, or it has passed.
    #[must_use]
    pub fn left(&self) -> Duration {
        self.begun.as_ref().map_or(Duration::ZERO, |(since, pause)| pause.saturating_sub(since.elapsed()))
    }

    /// Whether a pause has begun since it was released, if only to pass.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        self.begun.is_some()
    }

    /// Whether the pause lasts.
    #[must_use]
    pub fn holds(&self) -> bool {
        !self.left().is_zero()
    }

    /// Nothing is held back any more, and the pauses begin anew: it succeeded, or something has changed.
    pub fn release(&mut self) {
        self.pauses.reset();
        self.begun = None;
    }
}

/// How long a try that failed is waited behind: as long as the server asked for, at least `own` pause, and never so long that no time is
/// left for another try before the deadline, which is `left` away. `None` where there is none: only the deadline ends tries.
#[must_use]
pub fn pause_before_deadline(own: Duration, asked: Option<Duration>, left: Duration) -> Option<Duration> {
    let most = left.checked_sub(own).filter(|most| !most.is_zero())?;
    Some(asked.unwrap_or_default().clamp(own, most.max(own)))
}

/// Between half and the whole of a pause, so that a fleet does not come back as one; `random` is in `0.0..1.0`.
#[must_use]
pub fn spread(pause: Duration, random: f64) -> Duration {
    pause.mul_f64(f64::midpoint(1.0, random))
}

/// A random number in `0.0..1.0`.
#[must_use]
pub fn random() -> f64 {
    let mut bytes = [0; 4];
    // Without randomness every node takes the middle: slower to spread, never wrong.
    match SystemRandom::new().fill(&mut bytes) {
        Ok(()) => f64::from(u32::from_le_bytes(bytes)) / (f64::from(u32::MAX) + 1.0),
        Err(_) => 0.5,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn pauses_double_up_to_the_longest_and_begin_anew() {
        let mut pauses = Backoff::new(s(1), s(30));
        let mut next = || [(); 7].map(|()| pauses.next_pause().as_secs());
        assert_eq!(next(), [1, 2, 4, 8, 16, 30, 30]);
        pauses.reset();
        assert_eq!((pauses.next_pause(), pauses.next_pause()), (s(1), s(2)));
    }

    #[test]
    fn what_failed_is_held_back_ever_longer_until_it_is_released() {
        let clock = Clock::manual(crate::clock::Timestamp(0));
        let mut damper = Damper::new(Backoff::new(s(1), s(3)));
        assert!(!damper.holds());
        for pause in [1, 2, 3, 3] {
            assert_eq!((damper.hold_by(|pause| pause, &clock), damper.left()), (s(pause), s(pause)));
            clock.advance(s(pause - 1));
            assert!(damper.holds());
            clock.advance(s(1));
            assert!(!damper.holds());
        }
        damper.hold(&clock);
        clock.advance(s(2));
        damper.restart(&clock);
        assert_eq!(damper.left(), s(3), "counted anew, and no longer");
        assert!(damper.has_begun());
        damper.release();
        assert!(!damper.holds() && !damper.has_begun());
        damper.hold_for(s(9), &clock);
        assert_eq!(
            (damper.left(), damper.hold_by(|pause| pause, &clock)),
            (s(9), s(1)),
            "a pause that was asked for is no failure"
        );
        assert_eq!((damper.hold_by(|pause| pause * 2, &clock), damper.left()), (s(4), s(4)));
    }

    #[test]
    fn a_count_of_doublings_gives_the_same_pauses_and_never_overflows() {
        let pauses = Backoff::new(s(2), s(300));
        let of = |doublings| pauses.after(doublings).as_secs();
        assert_eq!([0, 1, 2, 7, 8, 31, 32, u32::MAX].map(of), [2, 4, 8, 256, 300, 300, 300, 300]);
        assert_eq!(Backoff::new(s(u64::MAX), s(5)).after(9), s(5));
        let mut endless = Backoff { tries: u32::MAX, ..pauses };
        assert_eq!((endless.next_pause(), endless.next_pause()), (s(300), s(300)));
    }

    #[test]
    fn a_server_that_asks_for_an_hour_does_not_end_the_tries_before_the_deadline() {
        let pause =
            |own, asked: Option<u64>, left| pause_before_deadline(s(own), asked.map(s), s(left)).map(|pause| pause.as_secs());
        assert_eq!(pause(2, None, 60), Some(2));
        assert_eq!(pause(2, Some(0), 60), Some(2), "never below the own pause");
        assert_eq!(pause(2, Some(20), 60), Some(20));
        assert_eq!(pause(2, Some(3600), 60), Some(58), "another try before the deadline");
        assert_eq!(pause(2, Some(u64::MAX), 60), Some(58));
        assert_eq!(pause(2, Some(3600), 3), Some(2));
        assert_eq!([pause(2, None, 2), pause(2, Some(1), 1), pause(2, None, 0)], [None; 3]);
    }

    #[test]
    fn a_spread_pause_is_between_half_and_the_whole() {
        assert_eq!([0.0, 0.5].map(|random| spread(s(4), random)), [s(2), s(3)]);
        assert!(spread(s(4), 0.999_999) <= s(4));
        for _ in 0..100 {
            assert!((0.0..1.0).contains(&random()));
        }
    }
}
