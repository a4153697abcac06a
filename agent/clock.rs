//! The one clock. Everything that asks for the time or waits for it does so here, so that tests
//! can set the time themselves.
//!
//! In: durations, limits, futures. Out: times, moments in the order of events, and waits that end. Never: a decision about what is late.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::time::{ClockId, clock_gettime};
use time::OffsetDateTime;
use time::format_description::well_known::{Rfc2822, Rfc3339};

/// How often [`Clock::watched`] looks at the time.
const TICK: Duration = Duration::from_millis(250);
/// A tick that comes so late is one of a process that stood still.
const LATE: Duration = Duration::from_millis(250);

/// Wall-clock time in milliseconds since 1970-01-01T00:00:00Z. Survives a restart; may jump.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// 9999-12-31T23:59:59Z, the last moment that has four digits of a year.
    pub const LAST: Self = Self(253_402_300_799_000);

    /// This moment plus `by`.
    #[must_use]
    pub fn after(self, by: Duration) -> Self {
        Self(self.0.saturating_add(millis(by)))
    }

    /// This moment less `by`.
    #[must_use]
    pub fn before(self, by: Duration) -> Self {
        Self(self.0.saturating_sub(millis(by)))
    }

    /// How long ago `earlier` was; zero if the clock went backwards.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }

    /// `2026-03-01T12:00:00Z`, as Heat writes times (RFC 3339, UTC, whole seconds).
    #[must_use]
    pub fn rfc3339(self) -> String {
        let at = OffsetDateTime::UNIX_EPOCH + Duration::from_millis(self.min(Self::LAST).0 / 1000 * 1000);
        at.format(&Rfc3339).unwrap_or_default()
    }

    /// Reads a time of this form, or with a fraction of a second, which is dropped; anything else is `None`.
    #[must_use]
    pub fn parse_rfc3339(text: &str) -> Option<Self> {
        Self::of(OffsetDateTime::parse(text, &Rfc3339).ok()?)
    }

    /// Reads a date of HTTP, `Wed, 21 Oct 2026 07:28:00 GMT` (RFC 9110, 5.6.7: the one form that servers send today).
    #[must_use]
    pub fn parse_http_date(text: &str) -> Option<Self> {
        Self::of(OffsetDateTime::parse(text, &Rfc2822).ok()?)
    }

    fn of(at: OffsetDateTime) -> Option<Self> {
        u64::try_from(at.unix_timestamp()).ok().map(|seconds| Self(seconds * 1000))
    }
}

/// When this agent was built: seconds since 1970 from the build's environment, which sets them to the date of the commit. A
/// clock that shows a time before it is wrong. A build that does not say it (a developer's) takes every clock for right.
pub const BUILT: Timestamp = match option_env!("HNA_BUILD_DATE") {
    Some(text) => match u64::from_str_radix(text, 10) {
        Ok(seconds) => Timestamp(seconds * 1000),
        Err(_) => panic!("HNA_BUILD_DATE is not a number of seconds"),
    },
    None => Timestamp(0),
};

/// How long after a boot a clock may be wrong that is set from the network.
pub const CLOCK_SETTLES: Duration = Duration::from_mins(3);

/// How long the answer of somebody else is waited for. In tests it comes from the test itself, and a machine that stands still for
/// seconds must turn none: there the limit is only the fallback for one that hangs.
#[must_use]
pub const fn patience(limit: Duration) -> Duration {
    if cfg!(test) { Duration::from_mins(2) } else { limit }
}

/// Less does no harm. A clock that is slewed is slewed with the one that nobody sets.
const STEP: Duration = Duration::from_secs(5);

/// Whole milliseconds.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// What the machine's monotonic clock shows, which systemd's `*TimestampMonotonic` are times of.
#[must_use]
pub fn uptime() -> Duration {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(Duration::ZERO, Duration::from)
}

/// A place in the order of events of this run of the agent, and when that was by the clock that nobody sets. Unlike a
/// [`Timestamp`] it is never confused by a clock that is set, and two are never equal; it means nothing to another run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment {
    order: u64,
    at_ms: u64,
}

impl Moment {
    /// Before everything in this run: when things of an earlier run happened.
    pub const EARLIER: Self = Self { order: 0, at_ms: 0 };
}

/// Where the time comes from: the machine, or a test. Clones tell the same time and share the order of moments.
#[derive(Clone, Debug)]
pub struct Clock {
    source: Source,
    /// What it showed when it was made.
    made: Timestamp,
    moments: Arc<AtomicU64>,
}

#[derive(Clone, Debug)]
enum Source {
    /// With when it was made.
    System(std::time::Instant),
    Manual(Arc<Mutex<TestTime>>),
}

/// The time as a test sets it.
#[derive(Clone, Copy, Debug)]
struct TestTime {
    wall_ms: u64,
    running_ms: u64,
}

impl Clock {
    /// The machine's clock.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "this is the one clock")]
    pub fn system() -> Self {
        Self::new(Source::System(std::time::Instant::now()))
    }

    fn new(source: Source) -> Self {
        let mut clock = Self { source, made: Timestamp(0), moments: Arc::default() };
        clock.made = clock.now();
        clock
    }

    /// A clock that stands still until [`Clock::advance`] moves it; waiting on it moves it.
    #[must_use]
    pub fn manual(start: Timestamp) -> Self {
        let time = TestTime { wall_ms: start.0, running_ms: 0 };
        Self::new(Source::Manual(Arc::new(Mutex::new(time))))
    }

    /// Moves a manual clock; does nothing to the machine's.
    pub fn advance(&self, by: Duration) {
        if let Source::Manual(time) = &self.source {
            let mut time = time.lock().unwrap_or_else(PoisonError::into_inner);
            time.wall_ms = time.wall_ms.saturating_add(millis(by));
            time.running_ms = time.running_ms.saturating_add(millis(by));
        }
    }

    /// Sets the wall clock of a manual one, as NTP or an operator would: no time passes. Does nothing to the machine's.
    pub fn set(&self, to: Timestamp) {
        if let Source::Manual(time) = &self.source {
            time.lock().unwrap_or_else(PoisonError::into_inner).wall_ms = to.0;
        }
    }

    /// The wall-clock time.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "this is the one clock")]
    pub fn now(&self) -> Timestamp {
        match &self.source {
            Source::System(_) => Timestamp(millis(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())),
            Source::Manual(time) => Timestamp(time.lock().unwrap_or_else(PoisonError::into_inner).wall_ms),
        }
    }

    /// Time since the clock was made, whatever it was set to meanwhile.
    fn running_ms(&self) -> u64 {
        match &self.source {
            Source::System(made) => millis(made.elapsed()),
            Source::Manual(time) => time.lock().unwrap_or_else(PoisonError::into_inner).running_ms,
        }
    }

    /// The time as it would be had nobody set the clock since this run of the agent began: for what is measured between two of them.
    #[must_use]
    pub fn steady(&self) -> Timestamp {
        self.made.after(Duration::from_millis(self.running_ms()))
    }

    /// What the wall clock shows now for a time by [`Clock::steady`].
    #[must_use]
    pub fn shown(&self, steady: Timestamp) -> Timestamp {
        self.now().before(self.steady().since(steady))
    }

    /// Whether somebody has set the wall clock since this run of the agent began: what is counted by it is wrong.
    #[must_use]
    pub fn was_set(&self) -> bool {
        self.now().0.abs_diff(self.steady().0) > millis(STEP)
    }

    /// The next place in the order of events: after all that were given out before, and before all that will be.
    #[must_use]
    pub fn moment(&self) -> Moment {
        Moment { order: self.moments.fetch_add(1, Ordering::Relaxed) + 1, at_ms: self.running_ms() }
    }

    /// Time since a moment, whatever the clock was set to meanwhile. Of one in an earlier run of the agent: how long this run
    /// lasts, which is less.
    #[must_use]
    pub fn since(&self, moment: Moment) -> Duration {
        Duration::from_millis(self.running_ms().saturating_sub(moment.at_ms))
    }

    /// A point to measure a duration from, unmoved by changes of the wall clock.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "this is the one clock")]
    pub fn start(&self) -> Stopwatch {
        match &self.source {
            Source::System(_) => Stopwatch(Started::Machine(std::time::Instant::now())),
            Source::Manual(_) => Stopwatch(Started::Manual(self.clone(), self.running_ms())),
        }
    }

    /// Runs `what`, and says how long this process stood still meanwhile: stopped, frozen, or without a processor.
    pub async fn watched<T>(&self, what: impl Future<Output = T>) -> (T, Duration) {
        let Source::System(_) = &self.source else { return (what.await, Duration::ZERO) };
        let mut what = std::pin::pin!(what);
        let mut stood = Duration::ZERO;
        loop {
            let tick = self.start();
            let done = self.limit(TICK, &mut what).await;
            stood += Some(tick.elapsed().saturating_sub(TICK)).filter(|late| *late > LATE).unwrap_or_default();
            if let Some(done) = done {
                return (done, stood);
            }
        }
    }

    /// Waits. Only for deadlines, back-off and the poll that is the fallback for an event.
    #[expect(clippy::disallowed_methods, reason = "this is the one clock")]
    pub async fn wait(&self, duration: Duration) {
        match &self.source {
            Source::System(_) => tokio::time::sleep(duration).await,
            Source::Manual(_) => {
                self.advance(duration);
                tokio::task::yield_now().await;
            }
        }
    }

    /// The same for a process of one job, which has nothing else to do meanwhile.
    #[expect(clippy::disallowed_methods, reason = "this is the one clock")]
    pub fn pause(&self, duration: Duration) {
        match &self.source {
            Source::System(_) => std::thread::sleep(duration),
            Source::Manual(_) => {
                self.advance(duration);
                std::thread::yield_now();
            }
        }
    }

    /// Runs `future` for at most `limit`; `None` when time is up.
    #[expect(clippy::disallowed_methods, reason = "this is the one clock")]
    pub async fn limit<F: Future>(&self, limit: Duration, future: F) -> Option<F::Output> {
        tokio::time::timeout(limit, future).await.ok()
    }
}

/// Measures a duration from where [`Clock::start`] was called.
#[derive(Clone, Debug)]
pub struct Stopwatch(Started);

#[derive(Clone, Debug)]
enum Started {
    Machine(std::time::Instant),
    /// With how long that clock had run.
    Manual(Clock, u64),
}

impl Stopwatch {
    /// Time since the start.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        match &self.0 {
            Started::Machine(at) => at.elapsed(),
            Started::Manual(clock, at) => Duration::from_millis(clock.running_ms().saturating_sub(*at)),
        }
    }

    /// Time since the start in whole milliseconds.
    #[must_use]
    pub fn millis(&self) -> u64 {
        millis(self.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_time_for_which_this_process_stood_still_is_known() {
        let clock = Clock::system();
        let pause = TICK + LATE + Duration::from_millis(200);
        let (reported, stood) = clock.watched(async { 7 }).await;
        assert_eq!((reported, stood), (7, Duration::ZERO));
        // Nothing else runs on this thread meanwhile, as if it was stopped.
        let twice = async {
            for _ in 0..2 {
                tokio::task::yield_now().await;
                clock.pause(pause);
            }
        };
        let ((), stood) = clock.watched(twice).await;
        assert!(stood + TICK * 2 >= pause * 2, "{stood:?}");
        assert_eq!(Clock::manual(Timestamp(0)).watched(async { 7 }).await, (7, Duration::ZERO));
    }

    #[test]
    fn times_are_written_and_read_as_heat_does() {
        for (millis, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400_000, "2000-02-29T00:00:00Z"),
            (1_772_366_399_000, "2026-03-01T11:59:59Z"),
            (4_102_444_799_000, "2099-12-31T23:59:59Z"),
        ] {
            assert_eq!(Timestamp(millis).rfc3339(), text);
            assert_eq!(Timestamp::parse_rfc3339(text), Some(Timestamp(millis)));
        }
        assert_eq!(Timestamp(u64::MAX).rfc3339(), "9999-12-31T23:59:59Z");
        for bad in [
            "",
            "2026-03-01",
            "2026-13-01T00:00:00Z",
            "2026-03-01T00:00Z",
            "yesterday",
            "1969-12-31T00:00:00Z",
            "2026-03-01T24:00:00Z",
            "2026-03-01T18446744073709551615:00:00Z",
            "2026-03-01T00:00:18446744073709551615Z",
        ] {
            assert_eq!(Timestamp::parse_rfc3339(bad), None, "{bad}");
        }
        assert_eq!(Timestamp::parse_rfc3339("2026-03-01T11:59:59.123456Z"), Some(Timestamp(1_772_366_399_000)));
    }

    #[test]
    fn a_clock_that_is_set_changes_no_duration() {
        let clock = Clock::manual(Timestamp(5_000_000));
        clock.advance(Duration::from_secs(1));
        let (moment, watch) = (clock.moment(), clock.start());
        for set in [0, 9_000_000] {
            clock.set(Timestamp(set));
            clock.advance(Duration::from_secs(2));
        }
        assert!(clock.was_set() && !Clock::manual(Timestamp(7)).was_set());
        assert_eq!((clock.now(), clock.since(moment)), (Timestamp(9_002_000), Duration::from_secs(4)));
        assert_eq!((clock.steady(), clock.shown(Timestamp(5_004_000))), (Timestamp(5_005_000), Timestamp(9_001_000)));
        assert_eq!((watch.elapsed(), clock.since(Moment::EARLIER)), (Duration::from_secs(4), Duration::from_secs(5)));
    }

    #[test]
    fn a_clock_that_goes_backwards_gives_no_negative_time() {
        assert_eq!(Timestamp(5).since(Timestamp(9)), Duration::ZERO);
    }
}
