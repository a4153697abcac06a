//! Brings a volume into its place: find, check, format, mount, mark.
//!
//! What may be done is decided by [`decide`](crate::storage::interlock::decide) alone. A file each: `evidence` reads what the decision needs, `format` and
//! `mounting` carry it out, `record` notes each step before the next, so that a crash at any point is taken up where it
//! happened; `pool`, `data_move` and `growth` are for what lies on a volume. One that is in place costs one look at sysfs
//! and the mount table.

mod data_move;
mod early;
mod evidence;
mod fill;
mod format;
mod growth;
mod mounting;
mod pool;
mod record;
#[cfg(test)]
mod test_keeper;

use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

pub use self::data_move::KEY as MOVE_KEY;
use self::evidence::inspection;
pub use self::fill::{Fills, Sight};
use self::format::mkfs_key;
pub use self::growth::Growths;
use self::mounting::UNIT_LIMIT;
use crate::clock::{Clock, Stopwatch};
use crate::converge::health::carriers;
use crate::converge::{Failure, Volumes, store};
use crate::desired::{Content, Desired, DiskName, Owner, Volume};
use crate::error::{Error, Kind, Result};
use crate::files::Tree;
use crate::progress::{Progress, StepId};
use crate::report::{Code, Event, Phase};
use crate::storage::interlock::{Decision, Evidence};
use crate::storage::marker::{Record, State};
use crate::storage::mount_unit;
use crate::storage::probe::{Disk, Mount, Probe};
use crate::watch::DeviceNews;

/// The net under the events of udev: how often the disks are looked at while one is missing.
const POLL: Duration = Duration::from_secs(1);

/// How long a disk that somebody holds or that cannot be read is looked at again: the kernel claims a new disk while it
/// looks for partitions, and its node may come a moment after it. Time, not looks: at a boot each of udev's many events is a look,
/// and a slow disk takes seconds. Heat is told of a disk that stays so within ten seconds.
const FLEETING: Duration = Duration::from_secs(8);
/// The same where the deadline has passed: shorter than the engine's own patience after it.
const FLEETING_AT_LAST: Duration = Duration::from_secs(3);

/// How long a try may go on behind the deadline, so that it tells of itself: the engine waits for 5 s and knows less.
const LAST_WORDS: Duration = Duration::from_secs(4);

/// What a step ends with.
type Outcome<T> = std::result::Result<T, Stopped>;

/// A failure, and whether it may pass by itself.
#[derive(Debug)]
struct Stopped {
    failure: Failure,
    passing: bool,
}

/// Most failures stay until somebody changes something.
impl From<Failure> for Stopped {
    fn from(failure: Failure) -> Self {
        Self { failure, passing: false }
    }
}

/// The failure of a look or of a question to systemd: one that may pass is tried again.
fn passing(step: &'static str, error: &Error) -> Stopped {
    Stopped { failure: failed(step, error), passing: error.kind() == Kind::Transient }
}

/// Output of an external program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ran {
    /// Exit status; minus the signal's number where a signal ended it.
    pub status: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Ran {
    /// Whether somebody ended it: the time limit, the kernel where memory is short. It did not come to a result of its own.
    fn was_ended(&self) -> bool {
        self.status < 0
    }

    /// How it ended: `ended with status 1`.
    fn end(&self) -> String {
        if self.was_ended() {
            format!("was killed by signal {}", self.status.unsigned_abs())
        } else {
            format!("ended with status {}", self.status)
        }
    }

    /// What a program that failed says of it: `ended with status 1: no space left`.
    fn complaint(&self) -> String {
        let words = self.stderr.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("it printed nothing");
        format!("{}: {words}", self.end())
    }
}

/// What the keeper asks of other rooms: systemd, programs, the passwd file.
pub trait Hands {
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
    fn run(&self, key: &str, argv: Vec<String>) -> impl Future<Output = Result<Ran>>;
    /// Waits until nothing runs of the program that an earlier agent started under this key, and forgets it.
    fn wait_stopped(&self, key: &str) -> impl Future<Output = Result<()>>;
    /// Numbers of an owner by the machine's passwd and group files.
    fn ids(&self, owner: &Owner) -> Result<(u32, u32)>;
}

/// Keeps volumes in their places.
#[derive(Debug)]
pub struct VolumeKeeper<H> {
    /// The other rooms.
    pub hands: H,
    /// The reader of devices.
    pub probe: Probe,
    /// The machine's root directory.
    pub root: Arc<Tree>,
    /// The agent's state directory.
    pub state: Arc<Tree>,
    /// The clock.
    pub clock: Clock,
    /// Where the run is kept, and who is told of it.
    pub progress: Progress,
    /// Growths that failed.
    pub growths: Rc<Growths>,
}

/// A volume with the disk that carries it.
struct Found {
    disk: Disk,
    fs_type: String,
    fs_uuid: String,
    /// How much of the disk it takes, in bytes.
    size: u64,
}

/// One call of `bring_up`, over all of its tries.
struct Course {
    started: Stopwatch,
    deadline: Duration,
    /// What was told and is not told again.
    found: bool,
    waiting: bool,
}

impl Course {
    fn left(&self) -> Duration {
        self.deadline.saturating_sub(self.started.elapsed())
    }
}

/// Whether the disk that carries the volume's id is the one that is mounted in its place. Costs a look at sysfs and the
/// mount table.
fn is_mounted_from_its_disk(probe: &Probe, volume: &Volume) -> Result<bool> {
    Ok(misplaced(probe, &probe.read_disks()?, &[volume])?.is_empty())
}

/// Those of the volumes at whose place another disk than their own is mounted; the mount table is read once for all.
///
/// # Errors
/// If the mount table cannot be read.
pub fn misplaced<'a>(probe: &Probe, disks: &[Disk], volumes: &[&'a Volume]) -> Result<Vec<&'a Volume>> {
    if volumes.is_empty() {
        return Ok(Vec::new());
    }
    let mounts = probe.read_mounts()?;
    let in_place = |volume: &Volume| match carriers(disks, &volume.disk)[..] {
        [disk] if volume.content == Content::ThinPool => pool::is_active(probe, disk),
        [disk] => is_mounted(&mounts, volume, disk),
        _ => false,
    };
    Ok(volumes.iter().copied().filter(|volume| !in_place(volume)).collect())
}

fn is_mounted(mounts: &[Mount], volume: &Volume, disk: &Disk) -> bool {
    mounts.iter().any(|mount| mount.number == disk.number && mount.point == volume.mount_point)
}

/// The nodes of all disks that carry the id, and the disk if it is one.
fn find(probe: &Probe, volume: &Volume) -> Result<(Vec<String>, Option<Disk>)> {
    let disks = probe.read_disks()?;
    let found = carriers(&disks, &volume.disk);
    let nodes = found.iter().map(|disk| disk.node.display().to_string()).collect();
    let only = if let [disk] = found[..] { Some(disk.clone()) } else { None };
    Ok((nodes, only))
}

impl<H: Hands> Volumes for VolumeKeeper<H> {
    async fn check_stores(&self, desired: &Desired) -> Result<()> {
        store::check_early(desired, &self.hands, &self.root, &self.probe).await
    }

    async fn check_places(&self, desired: &Desired, deadline: Duration) -> std::result::Result<(), Failure> {
        self.keep_stores_on_their_volumes(desired)?;
        let look =
            |volume| self.carry_out(volume, deadline, async move |course: &mut Course| self.check_place(volume, course).await);
        futures_util::future::try_join_all(desired.volumes.iter().map(look)).await.map(drop)
    }

    async fn bring_up(&self, volume: &Volume, deadline: Duration) -> std::result::Result<bool, Failure> {
        self.carry_out(volume, deadline, async |course| self.try_bring_up(volume, course).await).await
    }
}

impl<H: Hands> VolumeKeeper<H> {
    /// Tries until it is done, or nothing passes by itself any more; a failure is told.
    async fn carry_out<T>(
        &self,
        volume: &Volume,
        deadline: Duration,
        attempt: impl AsyncFn(&mut Course) -> Outcome<T>,
    ) -> std::result::Result<T, Failure> {
        let mut course = Course { started: self.clock.start(), deadline, found: false, waiting: false };
        let mut outcome = loop {
            match self.clock.limit(course.left() + LAST_WORDS, attempt(&mut course)).await {
                // systemd or the bus is away for a moment. What was done is on record, and the next try goes on there.
                Some(Err(stopped)) if stopped.passing && !course.left().is_zero() => {
                    self.tell_waiting(volume, &mut course, stopped.failure.cause);
                    self.clock.wait(POLL.min(course.left())).await;
                }
                Some(outcome) => break outcome.map_err(|stopped| stopped.failure),
                None => break Err(Failure::new(Code::VolumeFailed, "deadline", "not finished at the deadline")),
            }
        };
        if let Err(failure) = &mut outcome {
            self.add_who_is_stopped(volume, failure).await;
            let message = format!("volume {} ({}): {}", volume.disk, volume.role, failure.cause);
            let mut event = event(failure.code, volume, message).step(failure.doing()).cause(failure.cause.clone());
            event = event.remedy(failure.remedy.clone());
            self.progress.report().emit(event);
        }
        outcome.map_err(|failure| failure.part_of(StepId::Volume(volume.role)))
    }

    async fn try_bring_up(&self, volume: &Volume, course: &mut Course) -> Outcome<bool> {
        let record = self.record(volume).map_err(|error| failed("record", &error))?;
        match record {
            Some(record) if self.is_in_place(volume, &record).map_err(|error| passing("look", &error))? => {
                Ok(self.follow_disk_now(volume, record).await)
            }
            record => {
                let record = self.put_in_place(volume, record, course).await?;
                self.follow_disk_now(volume, record).await;
                Ok(true)
            }
        }
    }

    async fn put_in_place(&self, volume: &Volume, record: Option<Record>, course: &mut Course) -> Outcome<Record> {
        self.clear_up(volume, record.as_ref(), course).await?;
        let moves = self.has_data_below(volume).map_err(|error| passing("look", &error))?;
        let news = DeviceNews::open();
        let mut fleeting = None;
        let found = loop {
            let (mut evidence, disk) =
                self.read_evidence(volume, record.clone()).await.map_err(|error| passing("look", &error))?;
            if let Some(disk) = disk.as_ref().filter(|_| !course.found) {
                course.found = true;
                let message = format!("volume {} is {}", volume.disk, disk.node.display());
                self.tell(volume, event(Code::VolumeFound, volume, message).duration(course.started.elapsed()));
            }
            let decision = self.judge(volume, disk.as_ref(), &mut evidence).await?;
            if let Decision::Refuse { found, .. } = &decision {
                let since = fleeting.get_or_insert_with(|| self.clock.start()).elapsed();
                if is_fleeting(&evidence, since, course) {
                    if since >= FLEETING {
                        self.tell_waiting(volume, course, found.clone());
                    }
                    self.next_look(&news, course).await;
                    continue;
                }
            } else {
                fleeting = None;
            }
            match (decision, disk) {
                (Decision::Format { force }, Some(disk)) => break self.format(volume, disk, force, &evidence).await?,
                (Decision::Reuse, Some(disk)) => {
                    let one = evidence.disk.signatures.first();
                    let fs_uuid = one.and_then(|one| one.uuid.clone()).unwrap_or_default();
                    let size = one.and_then(|one| one.size).unwrap_or_default();
                    self.tell(volume, event(Code::VolumeReused, volume, format!("volume {} is used as it is", volume.disk)));
                    break Found { disk, fs_type: one.map_or(volume.content.kind(), |one| one.kind).to_owned(), fs_uuid, size };
                }
                (refusal @ Decision::Refuse { .. }, _) => return Err(refused(refusal).into()),
                (Decision::Wait(reason), _) => {
                    if course.left().is_zero() {
                        return Err(missing(volume, &reason, course.deadline).into());
                    }
                    self.tell_waiting(volume, course, reason);
                    self.next_look(&news, course).await;
                }
                // A decision about a disk that is gone, or a marker that stayed unread: look again.
                (_, _) if !course.left().is_zero() => self.next_look(&news, course).await,
                (_, _) => return Err(missing(volume, "the disk disappeared again", course.deadline).into()),
            }
        };
        if volume.content == Content::ThinPool {
            return self.put_pool_in_place(volume, &found, course).await;
        }
        if moves {
            self.move_data(volume, &found).await?;
        }
        let what = self.mount(volume, &found, course).await?;
        self.mark(volume, &found, &volume.mount_point).map_err(|error| failed("mark", &error))?;
        self.own_root(volume).map_err(|error| failed("mark", &error))?;
        // Before the volume counts as in place: nobody looks at a move after that.
        self.end_move(volume).map_err(|error| failed("move", &error))?;
        let record = self.write_record(volume, &found.fs_type, &found.fs_uuid, found.size, State::InPlace, Some(what))?;
        let message = format!("volume {} is mounted at {}", volume.disk, volume.mount_point);
        let unit = mount_unit::name(&volume.mount_point);
        self.tell(volume, event(Code::VolumeMounted, volume, message).unit(unit).duration(course.started.elapsed()));
        Ok(record)
    }

    /// What an agent left that was ended in the middle: its mkfs or copy, which goes on, and its look into the file system.
    async fn clear_up(&self, volume: &Volume, record: Option<&Record>, course: &Course) -> Outcome<()> {
        self.wait_for_pool_jobs(volume, course).await?;
        if record.is_some_and(|record| record.state == State::Formatting) {
            self.wait_for_job(&mkfs_key(volume), "a mkfs", "mkfs", course).await?;
        }
        self.clear_up_move(volume, course).await?;
        let inspection = mount_unit::name(&inspection(volume));
        if self.hands.may_run(&inspection).await.map_err(|error| passing("inspect", &error))? {
            self.hands.stop(&inspection).await.map_err(|error| passing("inspect", &error))?;
        }
        Ok(())
    }

    /// Waits for a program that an earlier agent started, and that goes on.
    async fn wait_for_job(&self, key: &str, what: &str, step: &'static str, course: &Course) -> Outcome<()> {
        let unfinished = || Error::permanent(format!("{what} that was started earlier is still running at the deadline"));
        match self.clock.limit(course.left(), self.hands.wait_stopped(key)).await {
            Some(waited) => waited.map_err(|error| passing(step, &error)),
            None => Err(failed(step, &unfinished()).into()),
        }
    }

    fn tell_waiting(&self, volume: &Volume, course: &mut Course, reason: String) {
        if !course.waiting {
            course.waiting = true;
            self.tell(volume, event(Code::VolumeWaiting, volume, reason));
        }
    }

    /// Says something about the step of a volume, not about a part of it.
    fn tell(&self, volume: &Volume, event: Event) {
        self.progress.tell(&StepId::Volume(volume.role), event);
    }

    /// Recorded as ours, mounted from the right disk, its unit as it should be.
    fn is_in_place(&self, volume: &Volume, record: &Record) -> Result<bool> {
        if record.state != State::InPlace || record.cluster != volume.cluster {
            return Ok(false);
        }
        let Some(what) = &record.what else { return Ok(false) };
        if volume.content == Content::ThinPool {
            return self.is_pool_in_place(volume, what);
        }
        let text = mount_unit::text(volume, &record.fs_type, what);
        let unit = self.root.read(Path::new(&mount_unit::path(&volume.mount_point)), UNIT_LIMIT)?;
        Ok(unit.as_deref() == Some(text.as_bytes()) && is_mounted_from_its_disk(&self.probe, volume)?)
    }

    async fn next_look(&self, news: &DeviceNews, course: &Course) {
        // A disk that is held is given a few looks even at the deadline.
        let pause = if course.left().is_zero() { POLL } else { POLL.min(course.left()) };
        tokio::select! {
            () = news.changed() => {}
            () = self.clock.wait(pause) => {}
        }
    }
}

fn event(code: Code, volume: &Volume, message: String) -> Event {
    Event::new(code, message).phase(Phase::Volume).step(volume.role.as_str())
}

fn missing(volume: &Volume, reason: &str, deadline: Duration) -> Failure {
    Failure::new(Code::VolumeMissing, "find", format!("within {} s: {reason}", deadline.as_secs()))
        .rule(format!("the {} store is on volume {}", volume.role, volume.disk))
        .remedy(match &volume.disk {
            DiskName::Cinder(id) => format!("attach volume {id} to this server: `openstack server add volume`"),
            DiskName::Link(_) | DiskName::Label(_) => {
                "`ls -l /dev/disk/by-id /dev/disk/by-label`: correct DOCKER_DISK".to_owned()
            }
        })
}

/// Whether what speaks against a disk, and has done so for this long, may be gone at the next look.
fn is_fleeting(evidence: &Evidence, since: Duration, course: &Course) -> bool {
    let disk = &evidence.disk;
    let is_formatting = evidence.record.as_ref().is_some_and(|record| record.state == State::Formatting);
    // Nobody but our own mkfs is likely to hold a disk that we were about to format.
    let is_ours = disk.busy && is_formatting && disk.mounts.is_empty() && !course.left().is_zero();
    let limit = if course.left().is_zero() { FLEETING_AT_LAST } else { FLEETING };
    is_ours || ((disk.busy || disk.unreadable.is_some()) && since < limit)
}

/// The failure that a refusal of the interlock is.
fn refused(decision: Decision) -> Failure {
    let (found, rule, remedy) = match decision {
        Decision::Refuse { found, rule, remedy } => (found, Some(rule), remedy),
        other => (format!("{other:?}"), None, String::new()),
    };
    Failure { rule, remedy, ..Failure::new(Code::VolumeRefused, "check", found) }
}

fn failed(step: &'static str, error: &Error) -> Failure {
    Failure::from_error(Code::VolumeFailed, step, error)
}

#[cfg(test)]
mod tests;
