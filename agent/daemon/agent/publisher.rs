//! The status document on its way to its file and to systemd: where it changed, and not too often.

use std::rc::Rc;
use std::time::Duration;

use crate::clock::Stopwatch;
use crate::daemon::host::Host;
use crate::daemon::requests::make_directory;
use crate::daemon::status_file;
use crate::files::Tree;
use crate::report::notify::Notify;
use crate::report::status::Status;
use crate::report::{Code, Event, Phase};

/// For each deployment on the page, the pause before it is made anew, where there are more than a few.
const PAUSE: Duration = Duration::from_micros(500);
const SHORT_LIST: u32 = 40;

/// What was published last.
#[derive(Debug)]
pub(in crate::daemon) struct Publisher {
    host: Rc<Host>,
    /// Where the status file goes and orders to stop lie; the agent works without it too.
    pub(super) run_dir: Option<Tree>,
    pub(super) notify: Notify,
    pub(in crate::daemon) phase: Phase,
    pub(super) page: Option<Status>,
    /// Since the page was last made, and whether something moved since.
    since: Stopwatch,
    is_old: bool,
}

impl Publisher {
    pub(super) fn open(host: Rc<Host>) -> Self {
        let run_dir = Tree::open_or_create(&host.settings.run_dir, 0o755);
        let run_dir = run_dir.and_then(|dir| make_directory(&dir).map(|()| dir));
        let tell = |error: &_| {
            host.report.emit(Event::new(Code::StateWriteFailed, "no status file will be written").error(error));
        };
        Self {
            run_dir: run_dir.inspect_err(tell).ok(),
            notify: Notify::default(),
            phase: Phase::Metadata,
            page: None,
            since: host.clock.start(),
            is_old: false,
            host,
        }
    }

    /// How long until the page is made anew. It names every deployment: made at each turn, it would take most of the time of a long
    /// list.
    fn pause(&self, deployments: usize) -> Duration {
        let pause = PAUSE.saturating_mul(u32::try_from(deployments).unwrap_or(u32::MAX));
        if pause < PAUSE * SHORT_LIST { Duration::ZERO } else { pause.saturating_sub(self.since.elapsed()) }
    }

    /// Whether the page is made anew now that something moved; else it is old.
    pub(super) fn is_due(&mut self, deployments: usize, phase: Phase) -> bool {
        let is_due = self.pause(deployments).is_zero() || self.phase != phase;
        self.is_old |= !is_due;
        is_due
    }

    /// How long until a page that is old is made anew.
    pub(super) fn until_due(&self, deployments: usize) -> Option<Duration> {
        self.is_old.then(|| self.pause(deployments))
    }

    /// The page is about to be made.
    pub(super) fn begin(&mut self, phase: Phase) {
        (self.since, self.is_old, self.phase) = (self.host.clock.start(), false, phase);
    }

    /// The status file and systemd's line, where they changed.
    pub(super) fn publish(&mut self, page: Status) {
        self.notify.status(&page.summary);
        if self.page.as_ref() == Some(&page) {
            return;
        }
        if let Some(run_dir) = &self.run_dir
            && let Err(error) = status_file::write(run_dir, &page)
        {
            let event = Event::new(Code::StateWriteFailed, "the status file cannot be written").step("status");
            self.host.report.emit(event.error(&error));
        }
        self.page = Some(page);
    }
}
