//! The keeper of volumes, and what it asks of other modules.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::attempt::{AttemptResult, Attempts, attach, event, failed, transient_stop};
use super::growth_retries::GrowthRetries;
use crate::clock::Clock;
use crate::desired::{DiskName, Owner, Volume};
use crate::error::{Error, Result};
use crate::files::Tree;
use crate::identity::Identity;
use crate::progress::{Progress, StepId};
use crate::report::{Code, Event};
use crate::storage::probe::DiskProbe;
use crate::watch::DeviceNews;

/// The fallback poll for the events of udev: how often the disks are looked at while one is missing.
pub(super) const POLL: Duration = Duration::from_secs(1);

/// Output of an external program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProgramOutput {
    /// Exit status; minus the signal's number where a signal ended it.
    pub status: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl ProgramOutput {
    /// Whether somebody ended it: the time limit, the kernel where memory is short. It did not come to a result of its own.
    pub(super) fn was_ended(&self) -> bool {
        self.status < 0
    }

    /// How it ended: `ended with status 1`.
    pub(super) fn end(&self) -> String {
        if self.was_ended() {
            format!("was killed by signal {}", self.status.unsigned_abs())
        } else {
            format!("ended with status {}", self.status)
        }
    }

    /// What a program that failed says of it: `ended with status 1: no space left`.
    pub(super) fn complaint(&self) -> String {
        let words = self.stderr.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("it printed nothing");
        format!("{}: {words}", self.end())
    }
}

/// What the keeper asks of other modules: systemd, programs, the passwd file.
pub trait VolumeBackend {
    /// Lets systemd reloaded its unit files.
    fn reload(&self) -> impl Future<Output = Result<()>>;
    /// Starts a unit and waits; any job result but `done` is an error.
    fn start(&self, unit: &str) -> impl Future<Output = Result<()>>;
    /// Stops a unit and waits.
    fn stop(&self, unit: &str) -> impl Future<Output = Result<()>>;
    /// Whether something of a unit runs: it is active, or on its way there or back.
    fn may_run(&self, unit: &str) -> impl Future<Output = Result<bool>>;
    /// Mounts by a transient unit and waits.
    fn mount(&self, what: &str, place: &str, fs_type: &str, options: &str) -> impl Future<Output = Result<()>>;
    /// Runs an external program as a transient unit, which goes on under its key when the agent ends. That the program
    /// could not be started or vanished is a permanent error.
    fn run(&self, key: &str, argv: Vec<String>) -> impl Future<Output = Result<ProgramOutput>>;
    /// Waits until nothing runs of the program that an earlier agent started under this key, and forgets it.
    fn wait_stopped(&self, key: &str) -> impl Future<Output = Result<()>>;
    /// Numbers of an owner by the machine's passwd and group files.
    fn ids(&self, owner: &Owner) -> Result<(u32, u32)>;
}

/// Keeps volumes in their places.
#[derive(Debug)]
pub struct VolumeKeeper<H> {
    /// The other modules.
    pub backend: H,
    /// The reader of devices.
    pub probe: DiskProbe,
    /// The machine's root directory.
    pub root: Arc<Tree>,
    /// The agent's state directory.
    pub state: Arc<Tree>,
    /// The clock.
    pub clock: Clock,
    /// Where the run's progress is kept, and its events go.
    pub progress: Progress,
    /// Growths that failed.
    pub growths: Rc<GrowthRetries>,
}

impl<H: VolumeBackend> VolumeKeeper<H> {
    /// Waits for a program that an earlier agent started, and that goes on.
    pub(super) async fn wait_for_job(&self, key: &str, what: &str, step: &'static str, attempts: &Attempts) -> AttemptResult<()> {
        let unfinished = || Error::permanent(format!("{what} that was started earlier is still running at the deadline"));
        match self.clock.limit(attempts.left(), self.backend.wait_stopped(key)).await {
            Some(waited) => waited.map_err(|error| transient_stop(step, &error)),
            None => Err(failed(step, &unfinished()).into()),
        }
    }

    /// What `openstack server` calls this machine.
    pub(super) fn server(&self) -> String {
        Identity::server(&self.root)
    }

    pub(super) fn report_waiting(&self, volume: &Volume, attempts: &mut Attempts, reason: String) {
        self.report_waiting_for(volume, attempts, reason, false);
    }

    /// The same where it may be systemd that is waited for, and not the disk.
    pub(super) fn report_waiting_for(&self, volume: &Volume, attempts: &mut Attempts, reason: String, is_of_systemd: bool) {
        if !attempts.waiting {
            attempts.waiting = true;
            let event = event(Code::VolumeWaiting, volume, reason);
            self.emit(
                volume,
                match &volume.disk {
                    DiskName::Cinder(id) if !is_of_systemd => event.remedy(attach(id, &self.server(), volume.parameter())),
                    _ if is_of_systemd => {
                        event.remedy("wait: it is tried again; `systemctl status` shows what keeps systemd busy")
                    }
                    _ => event,
                },
            );
        }
    }

    /// Says something about the step of a volume, not about a part of it.
    pub(super) fn emit(&self, volume: &Volume, event: Event) {
        self.progress.emit(&StepId::Volume(volume.role), event);
    }

    pub(super) async fn next_inspection(&self, news: &DeviceNews, attempts: &Attempts) {
        // A disk that is held is given a few looks even at the deadline.
        let pause = if attempts.left().is_zero() { POLL } else { POLL.min(attempts.left()) };
        tokio::select! {
            () = news.changed() => {}
            () = self.clock.wait(pause) => {}
        }
    }
}
