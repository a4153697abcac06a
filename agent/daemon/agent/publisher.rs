//! The status document on its way to its file and to systemd: where it changed, and not too often.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use crate::clock::Stopwatch;
use crate::daemon::host::Host;
use crate::daemon::order_files::make_directory;
use crate::daemon::status_file;
use crate::error::{Error, Result};
use crate::files::{Attributes, Tree};
use crate::report::metrics;
use crate::report::notify::Notify;
use crate::report::status::{Condition, StatusDocument};
use crate::report::{Code, Event, Phase};

/// For each deployment on the page, the pause before it is made anew, where there are more than a few.
const PAUSE: Duration = Duration::from_micros(500);
const SHORT_LIST: u32 = 40;

/// The most memory that the process had is asked for again after this: a look at the node makes several pages, and the kernel's answer takes
/// as long as some of them.
const MEMORY_AGE: Duration = Duration::from_secs(1);

/// The metrics are written at least so often, also while they stay the same, whenever the agent turns: whoever collects them sees by
/// the age of the file that it is alive.
const METRICS_AGE: Duration = Duration::from_mins(1);

/// What was published last.
#[derive(Debug)]
pub(in crate::daemon) struct Publisher {
    host: Rc<Host>,
    /// Where the status file goes and orders to stop lie; the agent works without it too.
    pub(super) run_dir: Option<Tree>,
    pub(super) notify: Notify,
    pub(in crate::daemon) phase: Phase,
    pub(super) page: Option<StatusDocument>,
    /// What was found before the loop began, which every page shows.
    pub(in crate::daemon) conditions: Vec<Condition>,
    /// It is in the status file.
    is_written: bool,
    /// Since the page was last made, and whether something moved since.
    since: Stopwatch,
    is_old: bool,
    metrics: Metrics,
    most_memory: (Option<Stopwatch>, u64),
}

/// The file of metrics.
#[derive(Debug)]
struct Metrics {
    path: Option<PathBuf>,
    /// Since it was last written.
    since: Stopwatch,
    /// Why it could not be; that is reported where it changed.
    cause: Option<String>,
}

impl Metrics {
    fn write(path: &Path, page: &StatusDocument) -> Result<()> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(Error::permanent(format!("{} is no path of a file", path.display())));
        };
        Tree::open(parent)?.write(Path::new(name), metrics::page(page).as_bytes(), Attributes::mode(0o644))
    }
}

impl Publisher {
    pub(super) fn open(host: Rc<Host>) -> Self {
        let run_dir = Tree::open_or_create(&host.settings.run_dir, 0o755);
        let run_dir = run_dir.and_then(|dir| make_directory(&dir).map(|()| dir));
        let report = |error: &_| {
            host.report.emit(Event::new(Code::StateWriteFailed, "no status file will be written").error(error));
        };
        Self {
            run_dir: run_dir.inspect_err(report).ok(),
            notify: Notify::default(),
            phase: Phase::Metadata,
            page: None,
            conditions: Vec::new(),
            is_written: false,
            since: host.clock.start(),
            is_old: false,
            metrics: Metrics { path: host.settings.metrics_file(), since: host.clock.start(), cause: None },
            most_memory: (None, 0),
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
        if self.most_memory.0.as_ref().is_none_or(|since| since.elapsed() >= MEMORY_AGE) {
            self.most_memory = (Some(self.host.clock.start()), most_memory());
        }
    }

    /// The most memory that this process had, in bytes.
    pub(in crate::daemon) fn most_memory(&self) -> u64 {
        self.most_memory.1
    }

    fn write_metrics(&mut self, page: &StatusDocument) {
        let Some(path) = &self.metrics.path else { return };
        self.metrics.since = self.host.clock.start();
        let error = Metrics::write(path, page).err();
        let cause = error.as_ref().map(ToString::to_string);
        if let Some(error) = error.filter(|_| cause != self.metrics.cause) {
            let message = format!("the metrics file {} cannot be written", path.display());
            let remedy = "create its directory, below /etc, /var or /run, or set report.metrics to another path";
            let event = Event::new(Code::StateWriteFailed, message).step("metrics");
            self.host.report.emit(event.error(&error.remedy(remedy)));
        }
        self.metrics.cause = cause;
    }

    /// The status file and systemd's line, where they changed.
    pub(super) fn publish(&mut self, page: StatusDocument) {
        self.notify.status(&page.summary);
        let is_same = self.page.as_ref() == Some(&page);
        if !is_same || self.metrics.since.elapsed() >= METRICS_AGE {
            self.write_metrics(&page);
        }
        if is_same && self.is_written {
            return;
        }
        self.is_written = true;
        if let Some(run_dir) = &self.run_dir
            && let Err(error) = status_file::write(run_dir, &page)
        {
            let event = Event::new(Code::StateWriteFailed, "the status file cannot be written").step("status");
            self.host.report.emit(event.error(&error));
            self.is_written = false;
        }
        self.page = Some(page);
    }
}

/// The most memory that this process had, in whole MiB: the page is not to change by less.
fn most_memory() -> u64 {
    let status = Tree::open(Path::new("/proc/self")).and_then(|tree| tree.read(Path::new("status"), 64 * 1024));
    let text = String::from_utf8(status.ok().flatten().unwrap_or_default()).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:")?.split_whitespace().next()?.parse::<u64>().ok());
    line.unwrap_or_default().div_ceil(1024) * 1024 * 1024
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collect::Snapshot;
    use crate::daemon::of_state;

    #[test]
    fn the_metrics_are_a_file_that_others_may_read_and_a_directory_that_is_not_there_is_never_made() {
        let dir = tempfile::tempdir().unwrap();
        let page = of_state(&Snapshot::default(), &[], None, &[], &Tree::open(dir.path()).unwrap());
        let path = dir.path().join("agent.prom");
        Metrics::write(&path, &page).unwrap();
        let tree = Tree::open(dir.path()).unwrap();
        assert_eq!(tree.facts(Path::new("agent.prom")).unwrap().unwrap().mode & 0o777, 0o644);
        assert!(std::fs::read_to_string(&path).unwrap().starts_with("# HELP heat_node_agent_build_info "));
        // The collector reads every file that ends in .prom: nothing else does.
        assert_eq!(tree.list(Path::new(".")).unwrap(), ["agent.prom"]);
        let missing = dir.path().join("node_exporter/agent.prom");
        assert!(Metrics::write(&missing, &page).is_err() && !missing.parent().unwrap().exists());
    }
}
