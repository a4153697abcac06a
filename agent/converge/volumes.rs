//! Brings a volume into its place: find, check, format, mount, mark.
//!
//! What may be done is decided by [`decide`] alone. This file reads what the decision
//! needs, carries it out, and records each step before the next, so that a crash at any point is
//! taken up where it happened. A volume that is in place costs one look at sysfs and the mount table.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ring::rand::{SecureRandom, SystemRandom};

use super::{Failure, Volumes};
use crate::clock::{Clock, Stopwatch};
use crate::desired::{Owner, Volume};
use crate::error::{Error, Kind, Result};
use crate::files::{Attributes, Tree};
use crate::report::{Code, Event, Phase, Report};
use crate::storage::identity::{CUT, matching};
use crate::storage::interlock::{Below, Decision, DiskEvidence, Evidence, MarkerEvidence, decide, erase, over_store};
use crate::storage::marker::{FILE, Marker, Record, SCHEMA, State};
use crate::storage::mount_unit;
use crate::storage::probe::{Disk, Mount, Probe};
use crate::watch::AsyncWatch;

/// The net under the events of udev: how often the disks are looked at while one is missing.
const POLL: Duration = Duration::from_secs(1);

/// How often a disk that somebody holds or that cannot be read is looked at again: the kernel claims a new disk while it
/// looks for partitions, and its node may come a moment after it.
const FLEETING_LOOKS: u8 = 3;

/// How long a disk may take to be read at both ends.
const READ_LIMIT: Duration = Duration::from_mins(1);

/// Largest marker that is read, in bytes.
const MARKER_LIMIT: u64 = 64 * 1024;

/// The kind of file system that is made.
const FS_TYPE: &str = "xfs";

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
fn passing(step: &str, error: &Error) -> Stopped {
    Stopped { failure: failed(step, error), passing: error.kind() == Kind::Transient }
}

/// Output of an external program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ran {
    /// Exit status.
    pub status: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

/// What the keeper asks of other rooms: systemd, programs, the passwd file.
pub trait Hands {
    /// Lets systemd read its unit files again.
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
    /// Who is told.
    pub report: Report,
}

/// A volume with the disk that carries it.
struct Found {
    disk: Disk,
    fs_type: String,
    fs_uuid: String,
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
    Ok(misplaced(probe, &[volume])?.is_empty())
}

/// Those of the volumes at whose place another disk than their own is mounted; the machine is read once for all.
///
/// # Errors
/// If the disks or the mount table cannot be read.
pub fn misplaced<'a>(probe: &Probe, volumes: &[&'a Volume]) -> Result<Vec<&'a Volume>> {
    if volumes.is_empty() {
        return Ok(Vec::new());
    }
    let (disks, mounts) = (probe.read_disks()?, probe.read_mounts()?);
    let in_place = |volume: &Volume| match carriers(&disks, volume)[..] {
        [disk] => is_mounted(&mounts, volume, disk),
        _ => false,
    };
    Ok(volumes.iter().copied().filter(|volume| !in_place(volume)).collect())
}

fn is_mounted(mounts: &[Mount], volume: &Volume, disk: &Disk) -> bool {
    mounts.iter().any(|mount| mount.number == disk.number && mount.point == volume.mount_point)
}

/// The disks that carry the volume's id.
fn carriers<'a>(disks: &'a [Disk], volume: &Volume) -> Vec<&'a Disk> {
    let names: Vec<_> = disks.iter().map(|disk| disk.names.clone()).collect();
    matching(&volume.cinder_id, &names).into_iter().filter_map(|at| disks.get(at)).collect()
}

/// The nodes of all disks that carry the id, and the disk if it is one.
fn find(probe: &Probe, volume: &Volume) -> Result<(Vec<String>, Option<Disk>)> {
    let disks = probe.read_disks()?;
    let found = carriers(&disks, volume);
    let nodes = found.iter().map(|disk| disk.node.display().to_string()).collect();
    let only = if let [disk] = found[..] { Some(disk.clone()) } else { None };
    Ok((nodes, only))
}

impl<H: Hands> Volumes for VolumeKeeper<H> {
    async fn bring_up(&self, volume: &Volume, deadline: Duration) -> std::result::Result<bool, Failure> {
        let mut course = Course { started: self.clock.start(), deadline, found: false, waiting: false };
        let outcome = loop {
            match self.try_bring_up(volume, &mut course).await {
                // systemd or the bus is away for a moment. What was done is on record, and the next try goes on there.
                Err(stopped) if stopped.passing && !course.left().is_zero() => {
                    self.tell_waiting(volume, &mut course, stopped.failure.cause);
                    self.clock.wait(POLL.min(course.left())).await;
                }
                outcome => break outcome.map_err(|stopped| stopped.failure),
            }
        };
        if let Err(failure) = &outcome {
            let message = format!("volume {} ({}): {}", volume.cinder_id, volume.role, failure.cause);
            let mut event = event(failure.code, volume, message).step(failure.step.clone()).cause(failure.cause.clone());
            event = event.remedy(failure.remedy.clone());
            self.report.emit(event);
        }
        // The engine tells of every failure but those of volumes, which it knows by this beginning.
        outcome.map_err(|failure| Failure { step: format!("volume {}: {}", volume.role, failure.step), ..failure })
    }
}

impl<H: Hands> VolumeKeeper<H> {
    async fn try_bring_up(&self, volume: &Volume, course: &mut Course) -> Outcome<bool> {
        let record = self.record(volume).map_err(|error| failed("record", &error))?;
        if self.is_in_place(volume, record.as_ref()).map_err(|error| passing("look", &error))? {
            return Ok(false);
        }
        self.put_in_place(volume, record, course).await.map(|()| true)
    }

    async fn put_in_place(&self, volume: &Volume, record: Option<Record>, course: &mut Course) -> Outcome<()> {
        self.clear_up(volume, record.as_ref(), course).await?;
        let watch = AsyncWatch::open();
        let mut fleeting_looks = 0;
        let found = loop {
            renew(&watch);
            let (mut evidence, disk) =
                self.read_evidence(volume, record.clone()).await.map_err(|error| passing("look", &error))?;
            if let Some(disk) = disk.as_ref().filter(|_| !course.found) {
                course.found = true;
                let message = format!("volume {} is {}", volume.cinder_id, disk.node.display());
                self.report.emit(event(Code::VolumeFound, volume, message).duration(course.started.elapsed()));
            }
            let mut decision = decide(volume, &evidence);
            if let (Decision::ReadMarker, Some(disk)) = (&decision, &disk) {
                self.look_inside(volume, disk, &mut evidence).await?;
                decision = decide(volume, &evidence);
            }
            if let Decision::Refuse { found, .. } = &decision
                && is_fleeting(&evidence, fleeting_looks, course)
            {
                if fleeting_looks >= FLEETING_LOOKS {
                    self.tell_waiting(volume, course, found.clone());
                }
                fleeting_looks = fleeting_looks.saturating_add(1);
                self.next_look(&watch, course).await;
                continue;
            }
            match (decision, disk) {
                (Decision::Format { force }, Some(disk)) => break self.format(volume, disk, force, record.as_ref()).await?,
                (Decision::Reuse, Some(disk)) => {
                    let one = evidence.disk.signatures.first();
                    let fs_uuid = one.and_then(|one| one.uuid.clone()).unwrap_or_default();
                    self.report.emit(event(Code::VolumeReused, volume, format!("volume {} is used as it is", volume.cinder_id)));
                    break Found { disk, fs_type: one.map_or(FS_TYPE, |one| one.kind).to_owned(), fs_uuid };
                }
                (refusal @ Decision::Refuse { .. }, _) => return Err(refused(refusal).into()),
                (Decision::Wait(reason), _) => {
                    if course.left().is_zero() {
                        return Err(missing(volume, &reason, course.deadline).into());
                    }
                    self.tell_waiting(volume, course, reason);
                    self.next_look(&watch, course).await;
                }
                // A decision about a disk that is gone, or a marker that stayed unread: look again.
                (_, _) if !course.left().is_zero() => self.next_look(&watch, course).await,
                (_, _) => return Err(missing(volume, "the disk came and went", course.deadline).into()),
            }
        };
        let what = self.mount(volume, &found, course).await?;
        self.mark(volume, &found).map_err(|error| failed("mark", &error))?;
        self.write_record(volume, &found.fs_type, &found.fs_uuid, State::InPlace, Some(what))?;
        let message = format!("volume {} is mounted at {}", volume.cinder_id, volume.mount_point);
        let unit = mount_unit::name(&volume.mount_point);
        self.report.emit(event(Code::VolumeMounted, volume, message).unit(unit).duration(course.started.elapsed()));
        Ok(())
    }

    /// What an agent left that was ended in the middle: its mkfs, which goes on, and its look into the file system.
    async fn clear_up(&self, volume: &Volume, record: Option<&Record>, course: &Course) -> Outcome<()> {
        if record.is_some_and(|record| record.state == State::Formatting) {
            let unfinished = || Error::permanent("a mkfs that was started earlier still runs at the deadline");
            match self.clock.limit(course.left(), self.hands.wait_stopped(&mkfs_key(volume))).await {
                Some(waited) => waited.map_err(|error| passing("mkfs", &error))?,
                None => return Err(failed("mkfs", &unfinished()).into()),
            }
        }
        let inspection = mount_unit::name(&inspection(volume));
        if self.hands.may_run(&inspection).await.map_err(|error| passing("inspect", &error))? {
            self.hands.stop(&inspection).await.map_err(|error| passing("inspect", &error))?;
        }
        Ok(())
    }

    fn tell_waiting(&self, volume: &Volume, course: &mut Course, reason: String) {
        if !course.waiting {
            course.waiting = true;
            self.report.emit(event(Code::VolumeWaiting, volume, reason));
        }
    }

    /// Recorded as ours, mounted from the right disk, its unit as it should be.
    fn is_in_place(&self, volume: &Volume, record: Option<&Record>) -> Result<bool> {
        let Some(record) = record.filter(|record| record.state == State::InPlace && record.cluster == volume.cluster) else {
            return Ok(false);
        };
        let Some(what) = &record.what else { return Ok(false) };
        let text = mount_unit::text(volume, &record.fs_type, what);
        let unit = self.root.read(Path::new(&mount_unit::path(&volume.mount_point)), MARKER_LIMIT)?;
        Ok(unit.as_deref() == Some(text.as_bytes()) && is_mounted_from_its_disk(&self.probe, volume)?)
    }

    async fn read_evidence(&self, volume: &Volume, record: Option<Record>) -> Result<(Evidence, Option<Disk>)> {
        let (matches, disk) = find(&self.probe, volume)?;
        let mut evidence = Evidence { matches, record, ..Evidence::default() };
        let Some(disk) = disk else { return Ok((evidence, None)) };
        let serial = volume.cinder_id.get(..CUT).unwrap_or(&volume.cinder_id);
        evidence.disk = self.read_disk(&disk, serial).await?;
        if !evidence.disk.mounts.contains(&volume.mount_point) {
            evidence.below = self.read_below(volume).await?;
        }
        Ok((evidence, Some(disk)))
    }

    async fn read_disk(&self, disk: &Disk, serial: &str) -> Result<DiskEvidence> {
        let serial = serial.to_owned();
        self.beside_the_loop(disk, move |probe, disk| probe.read_evidence(disk, &serial)).await
    }

    /// Off the loop and bounded: a disk whose storage is gone may never answer.
    async fn beside_the_loop<T: Send + 'static>(
        &self,
        disk: &Disk,
        work: impl FnOnce(&Probe, &Disk) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let node = disk.node.display().to_string();
        let (probe, disk) = (self.probe.clone(), disk.clone());
        let working = tokio::task::spawn_blocking(move || work(&probe, &disk));
        let silent = || Error::transient(format!("{node} does not answer within {} s", READ_LIMIT.as_secs()));
        self.clock.limit(READ_LIMIT, working).await.ok_or_else(silent)?.map_err(Error::transient)?
    }

    async fn read_below(&self, volume: &Volume) -> Result<Below> {
        if let Some(other) = self.probe.read_mounts()?.into_iter().find(|mount| mount.point == volume.mount_point) {
            return Ok(Below::OtherMount(other.source));
        }
        for unit in &volume.users {
            if self.hands.may_run(unit).await? {
                return Ok(Below::Running(unit.clone()));
            }
        }
        Ok(if self.root.list(Path::new(&volume.mount_point))?.is_empty() { Below::Empty } else { Below::Store })
    }

    /// Reads the marker, where the file system is mounted or by a mount that changes no byte of it.
    async fn look_inside(&self, volume: &Volume, disk: &Disk, evidence: &mut Evidence) -> Outcome<()> {
        if evidence.disk.mounts.contains(&volume.mount_point) {
            (evidence.marker, evidence.etcd_member) = self.read_marker(&volume.mount_point);
            return Ok(());
        }
        let fs_type = evidence.disk.signatures.first().map_or(FS_TYPE, |one| one.kind);
        // Even a read-only mount replays the log unless told not to; nouuid: the original of a copy may be mounted.
        let log = if fs_type == "xfs" { "norecovery,nouuid" } else { "noload" };
        let place = inspection(volume);
        let options = format!("ro,nosuid,nodev,noexec,{log}");
        if let Err(error) = self.hands.mount(&disk.node.display().to_string(), &place, fs_type, &options).await {
            if error.kind() == Kind::Transient {
                return Err(passing("inspect", &error));
            }
            evidence.marker = MarkerEvidence::Unreadable(error.to_string());
            return Ok(());
        }
        (evidence.marker, evidence.etcd_member) = self.read_marker(&place);
        self.hands.stop(&mount_unit::name(&place)).await.map_err(|error| passing("inspect", &error))
    }

    fn read_marker(&self, place: &str) -> (MarkerEvidence, bool) {
        let read = || -> Result<(Option<Vec<u8>>, bool)> {
            let tree = self.root.subtree(Path::new(place))?;
            let mut member = false;
            for path in ["default.etcd/member", "default/member", "member"] {
                // What cannot be looked at may be one.
                member |= tree.facts(Path::new(path))?.is_some();
            }
            Ok((tree.read(Path::new(FILE), MARKER_LIMIT)?, member))
        };
        match read() {
            Err(error) => (MarkerEvidence::Unreadable(error.to_string()), false),
            Ok((None, member)) => (MarkerEvidence::Absent, member),
            Ok((Some(bytes), member)) => match serde_json::from_slice::<Marker>(&bytes) {
                Ok(marker) if marker.schema == SCHEMA => (MarkerEvidence::Found(marker), member),
                Ok(marker) => {
                    (MarkerEvidence::Unreadable(format!("its marker has the unknown schema {}", marker.schema)), member)
                }
                Err(error) => (MarkerEvidence::Unreadable(format!("its marker is damaged: {error}")), member),
            },
        }
    }

    async fn format(&self, volume: &Volume, disk: Disk, force: bool, record: Option<&Record>) -> Outcome<Found> {
        let device = disk.node.display().to_string();
        let started = self.clock.start();
        // mkfs is told a kernel name: while the disk is held open, that name is given to no other one. What was decided
        // on is looked at again behind it.
        let hold = self.beside_the_loop(&disk, Probe::hold).await.map_err(|error| passing("look", &error))?;
        let (before, again) = self.read_evidence(volume, record.cloned()).await.map_err(|error| passing("look", &error))?;
        let same = again.is_some_and(|again| again.number == disk.number && again.node == disk.node);
        if !same || decide(volume, &before) != (Decision::Format { force }) {
            return Err(passing("look", &Error::transient(format!("{device} changed while it was looked at"))));
        }
        let fs_uuid = match record.filter(|_| force) {
            Some(record) => record.fs_uuid.clone(),
            None => random_uuid().map_err(|error| passing("mkfs", &error))?,
        };
        self.write_record(volume, FS_TYPE, &fs_uuid, State::Formatting, None)?;
        self.report.emit(
            event(Code::VolumeFormatting, volume, format!("{device} is formatted for volume {}", volume.cinder_id)).step("mkfs"),
        );
        let mut argv = vec!["mkfs.xfs".to_owned(), "-q".to_owned()];
        if force {
            argv.push("-f".to_owned());
        }
        argv.extend([
            "-m".to_owned(),
            format!("uuid={fs_uuid}"),
            "-L".to_owned(),
            format!("hna-{}", volume.role),
            device.clone(),
        ]);
        let ran = self.hands.run(&mkfs_key(volume), argv).await.map_err(|error| passing("mkfs", &error))?;
        if ran.status != 0 {
            let words = ran.stderr.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("it said nothing");
            return Err(self.mkfs_failed(volume, &disk, force, &before.disk, &format!("status {}: {words}", ran.status)).await);
        }
        // What counts is on the disk, not what mkfs says.
        let evidence = self.read_disk(&disk, "").await.map_err(|error| passing("mkfs", &error))?;
        drop(hold);
        if !matches!(evidence.signatures.as_slice(), [one] if one.kind == FS_TYPE && one.uuid.as_deref() == Some(fs_uuid.as_str()))
        {
            let error = Error::permanent(format!("{device} does not hold the file system that mkfs.xfs was to make"));
            return Err(failed("mkfs", &error).into());
        }
        self.write_record(volume, FS_TYPE, &fs_uuid, State::Formatted, None)?;
        let message = format!("{device} was formatted for volume {}", volume.cinder_id);
        self.report.emit(event(Code::VolumeFormatted, volume, message).step("mkfs").duration(started.elapsed()));
        Ok(Found { disk, fs_type: FS_TYPE.to_owned(), fs_uuid })
    }

    /// A mkfs that wrote nothing refused the disk: it sees something that we do not know, and nothing of ours is on it.
    async fn mkfs_failed(&self, volume: &Volume, disk: &Disk, force: bool, before: &DiskEvidence, words: &str) -> Stopped {
        let device = disk.node.display();
        let error = Error::permanent(format!("mkfs.xfs {device} ended with {words}"));
        let is_untouched = |after: &DiskEvidence| after.digest.is_some() && after.digest == before.digest;
        if force || !self.read_disk(disk, "").await.is_ok_and(|after| is_untouched(&after)) {
            return failed("mkfs", &error).into();
        }
        if let Err(error) = self.state.remove(&record_path(volume)) {
            return Failure { code: Code::StateWriteFailed, ..failed("record", &error) }.into();
        }
        Failure::from_error(Code::VolumeRefused, "mkfs", &error)
            .rule("what mkfs itself does not take is never formatted")
            .remedy(format!("`wipefs {device}` shows what is on it; to lose it {}", erase(&device.to_string())))
            .into()
    }

    /// Mounts; what the unit mounts is given back for the record.
    async fn mount(&self, volume: &Volume, found: &Found, course: &Course) -> Outcome<String> {
        let unit = mount_unit::name(&volume.mount_point);
        let stopped = |error: &Error| {
            let stopped = passing("mount", error);
            Stopped { failure: stopped.failure.unit(&unit), ..stopped }
        };
        let of_file = |error: &Error| Failure { unit: Some(unit.clone()), ..failed("mount", error) };
        let what = mount_unit::source(volume, &found.disk.names, &found.fs_uuid);
        let path = mount_unit::path(&volume.mount_point);
        let text = mount_unit::text(volume, &found.fs_type, &what);
        // Before the unit is there: whatever needs the mount point would start it at the next boot.
        self.wait_for_link(&what, found, course).await.map_err(|error| stopped(&error))?;
        let there = self.root.read(Path::new(&path), MARKER_LIMIT).map_err(|error| of_file(&error))?;
        if there.as_deref() != Some(text.as_bytes()) {
            self.root
                .write(Path::new(&path), text.as_bytes(), Attributes { mode: 0o644, owner: None })
                .map_err(|error| of_file(&error))?;
        }
        // Even if nothing was written now: an agent may have been ended between its write and its reload.
        self.hands.reload().await.map_err(|error| stopped(&error))?;
        // All this took its time, in which a store may have come up below or a link been turned.
        if !is_mounted(&self.probe.read_mounts().map_err(|error| stopped(&error))?, volume, &found.disk) {
            let below = self.read_below(volume).await.map_err(|error| stopped(&error))?;
            if let Some(refusal) = over_store(volume, &below) {
                return Err(refused(refusal).into());
            }
            self.wait_for_link(&what, found, course).await.map_err(|error| stopped(&error))?;
        }
        self.hands.start(&unit).await.map_err(|error| stopped(&error))?;
        if is_mounted(&self.probe.read_mounts().map_err(|error| stopped(&error))?, volume, &found.disk) {
            return Ok(what);
        }
        self.hands.stop(&unit).await.map_err(|error| stopped(&error))?;
        Err(stopped(&another_disk(&what, found)))
    }

    /// Waits for the link that the mount unit names (udev makes one by UUID only after a mkfs), and requires that it leads
    /// to the disk that was checked.
    async fn wait_for_link(&self, what: &str, found: &Found, course: &Course) -> Result<()> {
        loop {
            match self.probe.leads_to(what, &found.disk) {
                Some(true) => return Ok(()),
                Some(false) => return Err(another_disk(what, found)),
                None if course.left().is_zero() => {
                    return Err(Error::permanent(format!("udev made no link {what}")).remedy("`udevadm trigger; udevadm settle`"));
                }
                None => self.clock.wait(POLL.min(course.left())).await,
            }
        }
    }

    fn mark(&self, volume: &Volume, found: &Found) -> Result<()> {
        let tree = self.root.subtree(Path::new(&volume.mount_point))?;
        let mut marker = Marker {
            schema: SCHEMA,
            cluster: volume.cluster.clone(),
            role: volume.role,
            volume: volume.cinder_id.clone(),
            fs_uuid: found.fs_uuid.clone(),
            made_at: self.clock.now().rfc3339(),
        };
        if let (MarkerEvidence::Found(there), _) = self.read_marker(&volume.mount_point) {
            marker.made_at.clone_from(&there.made_at);
            if there == marker {
                return self.own_root(volume);
            }
            marker.made_at = self.clock.now().rfc3339();
        }
        tree.write_json(Path::new(FILE), &marker, Attributes::mode(0o600))?;
        self.own_root(volume)
    }

    fn own_root(&self, volume: &Volume) -> Result<()> {
        let owner = Some(self.hands.ids(&volume.root_owner)?);
        self.root.set_attributes(Path::new(&volume.mount_point), Attributes { mode: volume.root_mode, owner })
    }

    /// The record of this volume; that of another one that had its role before says nothing, and neither does a damaged
    /// one: without it less is allowed, never more.
    fn record(&self, volume: &Volume) -> Result<Option<Record>> {
        let path = record_path(volume);
        let record: Option<Record> = self.state.read_state(&path, &self.report, Code::StatePutAside)?;
        Ok(record.filter(|record| record.schema == SCHEMA && record.role == volume.role && record.volume == volume.cinder_id))
    }

    fn write_record(&self, volume: &Volume, fs_type: &str, fs_uuid: &str, state: State, what: Option<String>) -> Outcome<()> {
        let record = Record {
            schema: SCHEMA,
            role: volume.role,
            cluster: volume.cluster.clone(),
            volume: volume.cinder_id.clone(),
            fs_type: fs_type.to_owned(),
            fs_uuid: fs_uuid.to_owned(),
            state,
            what,
            at: self.clock.now(),
        };
        let write = || {
            self.state.create_dir(Path::new("volumes"), Attributes::mode(0o700))?;
            self.state.write_json(&record_path(volume), &record, Attributes::mode(0o600))
        };
        write().map_err(|error| Failure { code: Code::StateWriteFailed, ..failed("record", &error) }.into())
    }

    async fn next_look(&self, watch: &AsyncWatch, course: &Course) {
        // A disk that is held is given its few looks even at the deadline.
        let pause = if course.left().is_zero() { POLL } else { POLL.min(course.left()) };
        tokio::select! {
            () = watch.changed() => {}
            () = self.clock.wait(pause) => {}
        }
    }
}

fn event(code: Code, volume: &Volume, message: String) -> Event {
    Event::new(code, message).phase(Phase::Volume).step(volume.role.as_str())
}

fn record_path(volume: &Volume) -> PathBuf {
    PathBuf::from(format!("volumes/{}.json", volume.role))
}

/// The same for every mkfs of a volume, so that the next agent finds one that still runs.
fn mkfs_key(volume: &Volume) -> String {
    format!("program-mkfs-{}", volume.role)
}

fn inspection(volume: &Volume) -> String {
    format!("/run/heat-node-agent/inspect/{}", volume.role)
}

fn missing(volume: &Volume, reason: &str, deadline: Duration) -> Failure {
    Failure {
        code: Code::VolumeMissing,
        step: "find".to_owned(),
        unit: None,
        cause: format!("{reason} after {} s", deadline.as_secs()),
        rule: Some(format!("the {} store lies on Cinder volume {}", volume.role, volume.cinder_id)),
        remedy: format!("attach volume {} to this server: `openstack server add volume`", volume.cinder_id),
    }
}

/// Whether what speaks against a disk may be gone at the next look.
fn is_fleeting(evidence: &Evidence, looks: u8, course: &Course) -> bool {
    let disk = &evidence.disk;
    let is_formatting = evidence.record.as_ref().is_some_and(|record| record.state == State::Formatting);
    // Nobody but our own mkfs is likely to hold a disk that we were about to format.
    let is_ours = disk.busy && is_formatting && disk.mounts.is_empty() && !course.left().is_zero();
    is_ours || ((disk.busy || disk.unreadable.is_some()) && looks < FLEETING_LOOKS)
}

/// The failure that a refusal of the interlock is.
fn refused(decision: Decision) -> Failure {
    let (found, rule, remedy) = match decision {
        Decision::Refuse { found, rule, remedy } => (found, Some(rule), remedy),
        other => (format!("{other:?}"), None, String::new()),
    };
    Failure { code: Code::VolumeRefused, step: "check".to_owned(), unit: None, cause: found, rule, remedy }
}

/// The link leads to a copy of the volume, or to whatever somebody turned it to.
fn another_disk(what: &str, found: &Found) -> Error {
    Error::refused(format!("{what} leads to another disk than {}: one that carries the same UUID", found.disk.node.display()))
        .remedy(format!("`blkid --match-token UUID={}`: detach the copy of the volume", found.fs_uuid))
}

fn failed(step: &str, error: &Error) -> Failure {
    Failure::from_error(Code::VolumeFailed, step, error)
}

/// A version 4 UUID (RFC 9562).
fn random_uuid() -> Result<String> {
    let mut bytes = [0_u8; 16];
    SystemRandom::new().fill(&mut bytes).map_err(|_| Error::transient("the kernel gives no random bytes"))?;
    let number = u128::from_be_bytes(bytes) & !(0xf << 76) & !(0b11 << 62) | 0x4 << 76 | 0b10 << 62;
    let digits = format!("{number:032x}");
    let parts = [0..8, 8..12, 12..16, 16..20, 20..32].map(|range| digits.get(range).unwrap_or_default());
    Ok(parts.join("-"))
}

/// udev makes its directories with the first link in them: one that was not there is watched at the next look.
fn renew(watch: &AsyncWatch) {
    for path in ["/dev", "/dev/disk", "/dev/disk/by-id"] {
        watch.add(Path::new(path));
    }
}

#[cfg(test)]
mod tests;
