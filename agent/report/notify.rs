//! What systemd is told of the service: READY=1, STATUS=, WATCHDOG=1, STOPPING=1 (sd_notify(3)).

use std::time::Duration;

use sd_notify::NotifyState;

use super::text::{escaped, shortened};

/// Tells systemd; silent where nobody listens.
#[derive(Debug, Default)]
pub struct Notify {
    status: String,
}

impl Notify {
    /// Whether systemd listens, as it does to the main process of a unit of the type notify.
    #[must_use]
    pub fn is_heard() -> bool {
        std::env::var_os("NOTIFY_SOCKET").is_some()
    }

    /// Settings are loaded and the bus answers.
    pub fn ready(&self) {
        tell(NotifyState::Ready);
    }

    /// The service is ending.
    pub fn stopping(&self) {
        tell(NotifyState::Stopping);
    }

    /// One sentence for `systemctl status`; repeated ones are not sent.
    pub fn status(&mut self, sentence: &str) {
        let sentence = shortened(&escaped(sentence), 200);
        if sentence != self.status {
            tell(NotifyState::Status(&sentence));
            self.status = sentence;
        }
    }

    /// The loop made progress.
    pub fn alive(&self) {
        tell(NotifyState::Watchdog);
    }

    /// How often systemd wants to hear that: half of WATCHDOG_USEC.
    #[must_use]
    pub fn interval() -> Option<Duration> {
        sd_notify::watchdog_enabled().map(|limit| limit / 2)
    }
}

fn tell(state: NotifyState<'_>) {
    // A service manager that is gone cannot be told; nothing depends on it.
    let _ = sd_notify::notify(&[state]);
}
