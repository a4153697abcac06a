//! The notifications that systemd gets of the service: READY=1, STATUS=, WATCHDOG=1, STOPPING=1 (sd_notify(3)).

use std::time::Duration;

use sd_notify::NotifyState;

use super::text::{escaped, shortened};
use crate::clock::{Clock, Stopwatch};

/// Of the time that systemd waits for WATCHDOG=1, the part after which it is sent again: with a turn of the loop at least after each
/// half of that time, it comes well before the end, and not at each of many turns.
const FEED: u32 = 8;

/// Tells systemd; silent where nobody listens.
#[derive(Debug, Default)]
pub struct Notify {
    status: String,
    /// Since WATCHDOG=1 was last sent.
    last_ping: Option<Stopwatch>,
}

impl Notify {
    /// Whether systemd listens, as it does to the main process of a unit of the type notify.
    #[must_use]
    pub fn is_heard() -> bool {
        std::env::var_os("NOTIFY_SOCKET").is_some()
    }

    /// Settings are loaded and the bus answers.
    pub fn ready(&self) {
        notify(NotifyState::Ready);
    }

    /// The service is ending.
    pub fn stopping(&self) {
        notify(NotifyState::Stopping);
    }

    /// One sentence for `systemctl status`; repeated ones are not sent.
    pub fn status(&mut self, sentence: &str) {
        let sentence = shortened(&escaped(sentence), 200);
        if sentence != self.status {
            notify(NotifyState::Status(&sentence));
            self.status = sentence;
        }
    }

    /// The loop made progress.
    pub fn alive(&mut self, clock: &Clock) {
        let Some(limit) = sd_notify::watchdog_enabled() else { return };
        if self.last_ping.as_ref().is_none_or(|last_ping| last_ping.elapsed() >= limit / FEED) {
            notify(NotifyState::Watchdog);
            self.last_ping = Some(clock.start());
        }
    }

    /// How often systemd wants to hear that: half of WATCHDOG_USEC.
    #[must_use]
    pub fn interval() -> Option<Duration> {
        sd_notify::watchdog_enabled().map(|limit| limit / 2)
    }
}

fn notify(state: NotifyState<'_>) {
    // A service manager that is gone cannot be notified; nothing depends on it.
    let _ = sd_notify::notify(&[state]);
}
