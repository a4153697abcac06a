//! One try at a volume: how long it may go on, what it has found, and how it ends.

use std::time::Duration;

use crate::clock::Stopwatch;
use crate::converge::Failure;
use crate::desired::{DiskName, Volume};
use crate::error::remedy::Remedy;
use crate::error::{Error, ErrorKind};
use crate::report::{Code, Event, Phase};
use crate::storage::interlock::{Evidence, FormatDecision};
use crate::storage::marker::VolumeState;
use crate::storage::probe::Disk;

/// Largest unit file that is read, in bytes.
pub(super) const UNIT_LIMIT: u64 = 64 * 1024;

/// How long a disk that somebody holds or that cannot be read is looked at again: the kernel claims a new disk while it
/// looks for partitions, and its node may come a moment after it. Time, not looks: at a boot each of udev's many events is a look,
/// and a slow disk takes seconds. A disk that stays so is reported to Heat within ten seconds.
pub(super) const FLEETING: Duration = Duration::from_secs(8);
/// The same where the deadline has passed: shorter than the engine's own patience after it.
const FLEETING_AT_LAST: Duration = Duration::from_secs(3);

/// What a step ends with.
pub(super) type AttemptResult<T> = Result<T, AttemptFailure>;

/// A failure, and whether it may pass by itself.
#[derive(Debug)]
pub(super) struct AttemptFailure {
    pub(super) failure: Box<Failure>,
    pub(super) is_transient: bool,
    /// systemd or its bus did not answer.
    pub(super) is_of_systemd: bool,
}

/// Most failures stay until somebody changes something.
impl From<Failure> for AttemptFailure {
    fn from(failure: Failure) -> Self {
        Self { failure: Box::new(failure), is_transient: false, is_of_systemd: false }
    }
}

/// The failure of a look or of a question to systemd: one that may pass is tried again.
pub(super) fn transient_stop(step: &'static str, error: &Error) -> AttemptFailure {
    let is_transient = error.kind() == ErrorKind::Transient;
    AttemptFailure { failure: Box::new(failed(step, error)), is_transient, is_of_systemd: error.is_bus_error() }
}

/// A volume with the disk that carries it.
pub(super) struct ReadyDisk {
    pub(super) disk: Disk,
    pub(super) fs_type: String,
    pub(super) fs_uuid: String,
    /// How much of the disk it takes, in bytes.
    pub(super) size: u64,
}

/// One call of `bring_up`, over all of its tries.
pub(super) struct Attempts {
    pub(super) started: Stopwatch,
    pub(super) deadline: Duration,
    /// What was reported and is not reported again.
    pub(super) found: bool,
    pub(super) waiting: bool,
}

impl Attempts {
    pub(super) fn left(&self) -> Duration {
        self.deadline.saturating_sub(self.started.elapsed())
    }
}

pub(super) fn event(code: Code, volume: &Volume, message: String) -> Event {
    Event::new(code, message).phase(Phase::Volume).step(volume.role.as_str())
}

pub(super) fn missing(volume: &Volume, reason: &str, deadline: Duration, server: &str) -> Failure {
    Failure::new(Code::VolumeMissing, "find", format!("{reason}, for {} s by now", deadline.as_secs()))
        .rule(format!("the {} store is on volume {}", volume.role, volume.disk))
        .remedy(match &volume.disk {
            DiskName::Cinder(id) => attach(id, server, volume.parameter()),
            DiskName::Link(_) | DiskName::Label(_) => Remedy::stack_update(
                "`ls -l /dev/disk/by-id /dev/disk/by-label` shows the disks that are there: correct DOCKER_DISK in the template and update the stack",
            ),
        })
}

/// What to do about a volume that is not there.
pub(super) fn attach(id: &str, server: &str, parameter: &str) -> Remedy {
    Remedy::stack_update_or(format!(
        "`openstack volume show {id}`: not found, or not the one you mean by name and size: correct {parameter} in the template and update \
         the stack. Available: `openstack server add volume {server} {id}`. In use by another server: ask its owner to detach it; by this \
         one: detach it and attach it again. Other status: ask the cloud's operators"
    ))
}

/// The failure that a refusal of the interlock is.
pub(super) fn refused(decision: FormatDecision) -> Failure {
    let (found, rule, remedy) = match decision {
        FormatDecision::Refuse { found, rule, remedy } => (found, Some(rule), remedy),
        other => (format!("{other:?}"), None, Remedy::default()),
    };
    Failure { rule, remedy, ..Failure::new(Code::VolumeRefused, "check", found) }
}

pub(super) fn failed(step: &'static str, error: &Error) -> Failure {
    Failure::from_error(Code::VolumeFailed, step, error)
}

/// Whether what speaks against a disk, and has done so for this long, may be gone at the next look.
pub(super) fn is_fleeting(evidence: &Evidence, since: Duration, attempts: &Attempts) -> bool {
    let disk = &evidence.disk;
    let is_formatting = evidence.record.as_ref().is_some_and(|record| record.state == VolumeState::Formatting);
    // Nobody but our own mkfs is likely to hold a disk that we were about to format.
    let is_ours = disk.busy && is_formatting && disk.mounts.is_empty() && !attempts.left().is_zero();
    let limit = if attempts.left().is_zero() { FLEETING_AT_LAST } else { FLEETING };
    is_ours || ((disk.busy || disk.unreadable.is_some()) && since < limit)
}
