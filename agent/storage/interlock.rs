//! The interlock: whether a volume may be formatted, used as it is, or must be left alone
//! (design.md 6). One pure function over everything that was read; nothing else permits a mkfs.
//!
//! Its order is its safety: first whose disk it is, then what lies at the mount point, then who
//! uses the disk, then what is on it. Each refusal says what was found and the one command or
//! parameter that overrides it.

use super::marker::{VolumeMarker, VolumeRecord, VolumeState};
use super::mkfs;
use super::signatures::Signature;
use super::survey::{Survey, SurveyFinding, SurveyTarget, place};
use super::thin_pool;
use crate::desired::{Content, DiskName, FormatPolicy, Volume};
use crate::error::remedy::{AfterRemedy, Remedy};

/// Everything that was read of the machine for one volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Evidence {
    /// Device nodes of the disks that are meant.
    pub matches: Vec<String>,
    /// All disks of the machine, in words: for whoever misses one.
    pub present: String,
    /// The disk, where exactly one matches.
    pub disk: DiskEvidence,
    /// What lies at the mount point while the disk is not mounted there.
    pub below: MountPointContent,
    /// Our record of this volume, if there is one for its disk.
    pub record: Option<VolumeRecord>,
    /// The marker in the root of the file system.
    pub marker: MarkerEvidence,
    /// Whether the file system holds the data of an etcd member.
    pub etcd_member: MemberEvidence,
    /// What was read of the whole disk; none where nobody looked yet.
    pub survey: Option<Survey>,
}

/// Whether a file system holds the data of an etcd member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MemberEvidence {
    /// It holds none, or nobody has looked yet.
    #[default]
    Absent,
    /// It does, at or below this name in its root.
    In(&'static str),
    /// Its directories cannot be read: there may be one.
    Unknown,
}

/// What was read of the one disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own; any of them may be true beside any other")]
pub struct DiskEvidence {
    /// Its name, which `VOLUME_ADOPT` may give: the first 20 characters of a Cinder id, any other name whole.
    pub serial: String,
    /// Size in bytes.
    pub size: u64,
    /// The kernel refuses writes.
    pub read_only: bool,
    /// Names of its partitions.
    pub partitions: Vec<String>,
    /// Names of devices that are built on it (device mapper, MD).
    pub holders: Vec<String>,
    /// Where it is mounted.
    pub mounts: Vec<String>,
    /// It is used as swap.
    pub swap: bool,
    /// Somebody holds it exclusively.
    pub busy: bool,
    /// Why it could not be read.
    pub unreadable: Option<String>,
    /// What was recognised.
    pub signatures: Vec<Signature>,
    /// First and last MiB are zero; what lies between them is in the survey.
    pub blank: bool,
    /// SHA-256 of both ends; shows later whether anybody wrote there. `None` where they could not be read.
    pub digest: Option<[u8; 32]>,
}

/// What lies at the mount point under the volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum MountPointContent {
    /// Nothing, or an empty directory.
    #[default]
    Empty,
    /// A directory with something in it.
    Store,
    /// A unit that keeps its store there runs.
    Running(String),
    /// Something else is mounted.
    OtherMount(String),
}

/// What is known of the marker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum MarkerEvidence {
    /// Nobody looked yet.
    #[default]
    Unread,
    /// There is none.
    Absent,
    /// The file system cannot be mounted, or LVM says nothing of the disk.
    Unreadable(String),
    /// The file system can be mounted, so it was made to the end, and a marker may be there, but says nothing.
    Damaged(String),
    /// There is one.
    Found(VolumeMarker),
}

/// What to do with a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FormatDecision {
    /// Not there yet, or not ready: look again later.
    Wait(String),
    /// Make a file system. Forced only over the remains of our own interrupted mkfs.
    Format {
        /// Whether mkfs may overwrite what it recognises.
        force: bool,
    },
    /// Mount read-only without replaying its log, read the marker, decide again.
    ReadMarker,
    /// Nothing is known of it at its ends: read it in depth, decide again.
    Survey(SurveyTarget),
    /// Use the file system as it is.
    Reuse,
    /// Leave it alone.
    Refuse {
        /// What was found.
        found: String,
        /// Why that forbids it.
        rule: String,
        /// The one thing that overrides it.
        remedy: Remedy,
    },
}

/// What a store may lie on.
const KINDS: &str = "a store must be on a single file system of the driver's type (xfs, ext4 or ext3; btrfs)";

/// Decides.
#[must_use]
pub fn decide(volume: &Volume, evidence: &Evidence) -> FormatDecision {
    let device = match evidence.matches.as_slice() {
        [] => {
            let lacks = match &volume.disk {
                DiskName::Cinder(id) => format!("volume {id} is not attached (no disk has that serial"),
                DiskName::Link(name) | DiskName::Label(name) => format!("{name} is not on this server (no disk has that name"),
            };
            return FormatDecision::Wait(format!("{lacks}; present: {})", evidence.present));
        }
        [device] => device,
        several => {
            return refuse(
                format!("{} disks have {}: {}", several.len(), volume.disk, several.join(", ")),
                "exactly one disk must have the name",
                "check `openstack server volume list SERVER` and detach the wrong one".to_owned(),
            );
        }
    };
    at_the_mount_point(volume, evidence, device)
        .or_else(|| in_use(volume, &evidence.disk, device))
        .unwrap_or_else(|| by_content(volume, evidence, device))
}

/// Mounted in its place already, or in the way of something there.
fn at_the_mount_point(volume: &Volume, evidence: &Evidence, device: &str) -> Option<FormatDecision> {
    let disk = &evidence.disk;
    // Further mounts do not matter then: docker, for one, mounts parts of its store onto themselves.
    if disk.mounts.contains(&volume.mount_point) {
        return Some(match disk.signatures.as_slice() {
            [one] if serves(volume, one) => by_marker(volume, evidence, device),
            [] => {
                refuse(format!("{device} is mounted at {} but cannot be identified", volume.mount_point), KINDS, umount(volume))
            }
            several => refuse(
                format!("{device} is mounted at {} but contains {}", volume.mount_point, describe(several)),
                KINDS,
                umount(volume),
            ),
        });
    }
    if let Some(place) = disk.mounts.first() {
        return Some(refuse(
            format!("{device} is mounted at {place}"),
            "nothing else may use the disk",
            format!("`umount {place}`"),
        ));
    }
    if volume.content == Content::ThinPool { None } else { over_store(volume, &evidence.below) }
}

/// The refusal to mount over something that is in use or kept below; `None` if nothing is there.
#[must_use]
pub fn over_store(volume: &Volume, below: &MountPointContent) -> Option<FormatDecision> {
    let point = &volume.mount_point;
    let (found, remedy) = match below {
        MountPointContent::Empty => return None,
        MountPointContent::Store => (
            format!("{point} is not empty"),
            format!(
                "`systemctl stop {}; mv {point} {point}.before`; build the image so that nothing writes to it",
                volume.users.join(" ")
            ),
        ),
        MountPointContent::Running(unit) => {
            (format!("{unit} is running with its store in {point} on another disk"), format!("`systemctl stop {unit}`"))
        }
        MountPointContent::OtherMount(source) => (format!("{source} is mounted at {point}"), umount(volume)),
    };
    Some(refuse(found, "a volume is never mounted over a live store", remedy))
}

/// Whatever says that somebody else uses the disk, or that it cannot be used.
fn in_use(volume: &Volume, disk: &DiskEvidence, device: &str) -> Option<FormatDecision> {
    if disk.size == 0 {
        return Some(FormatDecision::Wait(format!("{device} has no size yet")));
    }
    let (found, remedy) = if let Some(error) = &disk.unreadable {
        (format!("{device} cannot be read: {error}"), "`journalctl -k`; then detach and attach the volume".to_owned())
    } else if disk.read_only {
        (format!("{device} is read-only"), "attach the volume read-write".to_owned())
    } else if !disk.partitions.is_empty() {
        (
            format!("{device} has partitions: {}", disk.partitions.join(", ")),
            format!("to discard them: `sfdisk --delete {device} && wipefs -a {device} && blkdiscard -z {device}`"),
        )
    } else if volume.content == Content::ThinPool && thin_pool::holds_alone(&disk.holders) {
        // LVM activates what it knows at every boot.
        return None;
    } else if !disk.holders.is_empty() {
        (
            format!("{device} is part of {}", disk.holders.join(", ")),
            format!(
                "`lsblk {device}` shows what that is: stop it (`mdadm --stop /dev/md0` an array, `vgchange -an GROUP` a volume group)"
            ),
        )
    } else if disk.swap {
        (format!("{device} is used as swap"), format!("`swapoff {device}`"))
    } else if disk.busy {
        (format!("{device} is held exclusively by another process"), format!("stop the process that `fuser -v {device}` shows"))
    } else {
        return None;
    };
    Some(refuse(found, "a disk is only touched if it is readable, writable and unused", remedy))
}

fn by_content(volume: &Volume, evidence: &Evidence, device: &str) -> FormatDecision {
    let disk = &evidence.disk;
    if let Some(record) = evidence.record.as_ref().filter(|record| record.state == VolumeState::Formatting)
        && is_recorded(record, disk)
        && volume.format != FormatPolicy::Never
    {
        // Only our own mkfs can have written the UUID that was drawn for it. The record alone proves nothing: mkfs may
        // have refused the disk, for what it sees and we do not. What carries a marker, even a damaged one, or a member
        // was in use since: the record is older than the volume, as on a server that was restored from a snapshot.
        return match &evidence.marker {
            MarkerEvidence::Unread => FormatDecision::ReadMarker,
            MarkerEvidence::Absent | MarkerEvidence::Unreadable(_) if evidence.etcd_member == MemberEvidence::Absent => {
                FormatDecision::Format { force: true }
            }
            _ => by_marker(volume, evidence, device),
        };
    }
    match disk.signatures.as_slice() {
        [] if volume.format == FormatPolicy::Never => refuse(
            format!("{device} has no file system"),
            &format!("{} is never", volume.format_parameter),
            format!("{}=if-blank", volume.format_parameter),
        ),
        [] => match &evidence.survey {
            None => FormatDecision::Survey(wanted(volume, evidence)),
            Some(survey) => by_survey(volume, evidence, survey, device),
        },
        [one] if serves(volume, one) => by_marker(volume, evidence, device),
        several => refuse(
            format!("{device} contains {}", describe(several)),
            "a volume with a signature of any kind is never formatted, and a store keeps its format",
            format!("to destroy its data: {}", erase_command(volume, device)),
        ),
    }
}

/// What a survey has to look for.
fn wanted(volume: &Volume, evidence: &Evidence) -> SurveyTarget {
    // A record alone proves nothing, but what carries the UUID that was drawn for it is our own interrupted mkfs.
    let interrupted = evidence.record.as_ref().filter(|record| record.state == VolumeState::Formatting);
    let ours = interrupted.map(|record| mkfs::uuid_bytes(volume.content, &record.fs_uuid)).filter(|uuid| !uuid.is_empty());
    SurveyTarget { unknown_data: accepts_unknown_data(volume, evidence), ours }
}

/// Whether data of no known kind may be formatted over.
fn accepts_unknown_data(volume: &Volume, evidence: &Evidence) -> bool {
    volume.format == FormatPolicy::IfNoSignature && !was_formatted_or_used(evidence)
}

/// A disk without a signature of its own: is there anything on it?
fn by_survey(volume: &Volume, evidence: &Evidence, survey: &Survey, device: &str) -> FormatDecision {
    let data = match &survey.found {
        Some(SurveyFinding::Begins(at, signature)) => {
            return refuse(
                format!(
                    "{device} contains {} that begins at {}, but no partition table lists it: the table seems to have been wiped",
                    signature.description(),
                    place(*at)
                ),
                "a volume with a signature of any kind is never formatted, wherever it begins",
                format!(
                    "`losetup --find --show --read-only --offset {at} {device}` makes it available for inspection; to destroy its data: {}",
                    erase_command(volume, device)
                ),
            );
        }
        Some(SurveyFinding::Mark(at, signature)) => {
            return refuse(
                format!("{device} has a signature of {} at {}", signature.description(), place(*at)),
                "a volume with a signature of any kind is never formatted, wherever it is",
                format!("`wipefs {device}` may show more; to destroy its data: {}", erase_command(volume, device)),
            );
        }
        Some(SurveyFinding::Data(at)) => format!("{device} contains unknown data at {}", place(*at)),
        None if evidence.disk.blank => return FormatDecision::Format { force: false },
        None => format!("{device} contains unknown data"),
    };
    if accepts_unknown_data(volume, evidence) {
        return FormatDecision::Format { force: false };
    }
    if was_formatted_or_used(evidence) {
        return refuse(
            format!("{data}, but this agent created or used a file system there"),
            "a volume that is not blank is formatted at most once, whatever the parameters say",
            format!("inspect it by hand; or to destroy its data: {}", erase_command(volume, device)),
        );
    }
    refuse(
        data,
        "only a volume that reads as zeros in every place that is checked is formatted",
        format!(
            "{}=if-no-signature, if it is encrypted below this machine; or to destroy its data: {}",
            volume.format_parameter,
            erase_command(volume, device)
        ),
    )
}

/// Whether this agent has already formatted the disk for the volume, or used it as such. A permission to format over unknown data
/// (`if-no-signature`) is then used up: it holds for one mkfs.
fn was_formatted_or_used(evidence: &Evidence) -> bool {
    evidence.record.as_ref().is_some_and(|record| record.state != VolumeState::Formatting)
}

/// Whether what is on the disk is of the kind that the volume is to hold.
fn serves(volume: &Volume, one: &Signature) -> bool {
    one.uuid.is_some()
        && match volume.content {
            Content::Xfs => one.is_mountable(),
            other => one.kind == other.kind(),
        }
}

/// One file system that we can mount, or one member of a volume group: is it ours?
fn by_marker(volume: &Volume, evidence: &Evidence, device: &str) -> FormatDecision {
    let recorded = evidence.record.as_ref().is_some_and(|record| {
        record.state != VolumeState::Formatting && record.cluster == volume.cluster && is_recorded(record, &evidence.disk)
    });
    if recorded {
        return FormatDecision::Reuse;
    }
    let adopted = volume.adopt.as_ref().is_some_and(|serial| names_disk(serial, volume, &evidence.disk));
    let what = evidence.disk.signatures.first().map_or_else(|| "a file system".to_owned(), Signature::description);
    let (found, foreign) = match &evidence.marker {
        MarkerEvidence::Unread => return FormatDecision::ReadMarker,
        MarkerEvidence::Absent => (format!("{device} contains {what}, which this agent did not make"), true),
        MarkerEvidence::Unreadable(why) => (format!("{device} contains {what}, which cannot be inspected: {why}"), true),
        MarkerEvidence::Damaged(why) => (format!("{device} contains {what}, but {why}"), true),
        MarkerEvidence::Found(marker) if marker.cluster != volume.cluster || marker.role != volume.role => {
            (format!("{device} contains the {} store of cluster {}", marker.role, marker.cluster), true)
        }
        MarkerEvidence::Found(marker) if marker.volume != volume.disk.as_str() => {
            (format!("{device} contains a copy of volume {}", marker.volume), false)
        }
        MarkerEvidence::Found(_) => return FormatDecision::Reuse,
    };
    if foreign && evidence.etcd_member != MemberEvidence::Absent {
        return refuse_member(&found, volume, evidence, device);
    }
    let remedy = match &evidence.marker {
        MarkerEvidence::Unreadable(_) if volume.content == Content::ThinPool => {
            format!(
                "`vgck --config devices/use_devicesfile=0 {}` shows more; or to destroy its data: {}",
                thin_pool::GROUP,
                erase_command(volume, device)
            )
        }
        MarkerEvidence::Unreadable(_) => inspect(volume, evidence, device),
        _ if adopted => return FormatDecision::Reuse,
        _ => {
            let look = match &volume.disk {
                DiskName::Cinder(id) => format!("`openstack volume show {id}` and `lsblk -fo +SERIAL {device}` show"),
                DiskName::Link(_) | DiskName::Label(_) => format!("`lsblk -fo +SERIAL {device}` shows"),
            };
            let ways = format!(
                "{look} what it is. Wrong volume: correct {} in the template. Right volume, and its data is to be used as {}: set \
                 VOLUME_ADOPT={} there. Then update the stack. Only if nobody needs the data, DESTROY it: {}",
                volume.parameter(),
                volume.mount_point,
                adoptable(volume, &evidence.disk),
                erase_command(volume, device)
            );
            let remedy = match &volume.disk {
                DiskName::Label(_) => Remedy::stack_update(format!("{ways} in the template and update the stack")),
                DiskName::Cinder(_) | DiskName::Link(_) => Remedy::new(ways, AfterRemedy::LastWayResumes),
            };
            return refuse(found, MARKED, remedy);
        }
    };
    refuse(found, MARKED, remedy)
}

/// Not even `VOLUME_ADOPT` permits it: the member would join, or split, the cluster that it came from.
fn refuse_member(found: &str, volume: &Volume, evidence: &Evidence, device: &str) -> FormatDecision {
    let (what, remedy) = match evidence.etcd_member {
        MemberEvidence::In(name) => {
            let serial = &evidence.disk.serial;
            let aside =
                format!("`mount {device} /mnt && mv /mnt/{name} /mnt/{name}.before; umount /mnt`, then VOLUME_ADOPT={serial}");
            (", with an etcd member in it", aside)
        }
        MemberEvidence::Absent | MemberEvidence::Unknown => {
            ("; there may be an etcd member in it", inspect(volume, evidence, device))
        }
    };
    refuse(format!("{found}{what}"), "a member of another etcd cluster is never started here", remedy)
}

/// With the options that keep a read-only mount from replaying the log, which would be a write.
fn inspect(volume: &Volume, evidence: &Evidence, device: &str) -> String {
    let kind = evidence.disk.signatures.first().map_or(volume.content.kind(), |one| one.kind);
    let options = mkfs::inspection_mount_options(kind).first().copied().unwrap_or_default();
    format!(
        "inspect it by hand: `mount -o ro,{options} {device} /mnt`; or to destroy its data: {}",
        erase_command(volume, device)
    )
}

/// Which file systems are used.
const MARKED: &str = "a file system is used only if it has the marker of this cluster, role and volume";

/// Whether what is on the disk is the one file system of the record.
fn is_recorded(record: &VolumeRecord, disk: &DiskEvidence) -> bool {
    matches!(disk.signatures.as_slice(), [one] if one.kind == record.fs_type && one.uuid.as_deref() == Some(record.fs_uuid.as_str()))
}

fn names_disk(serial: &str, volume: &Volume, disk: &DiskEvidence) -> bool {
    serial == disk.serial || serial == volume.disk.as_str()
}

/// The name by which `VOLUME_ADOPT` permits to use what is on it.
fn adoptable<'a>(volume: &'a Volume, disk: &'a DiskEvidence) -> &'a str {
    match &volume.disk {
        DiskName::Cinder(id) => id,
        DiskName::Link(_) | DiskName::Label(_) => &disk.serial,
    }
}

fn describe(signatures: &[Signature]) -> String {
    signatures.iter().map(Signature::description).collect::<Vec<_>>().join(" and ")
}

fn umount(volume: &Volume) -> String {
    format!("`umount {}`", volume.mount_point)
}

/// The one command after which a disk counts as blank; what is known by its label needs one afterwards too.
#[must_use]
pub fn erase_command(volume: &Volume, device: &str) -> String {
    match &volume.disk {
        DiskName::Label(label) => format!("`mkfs.xfs -f -L {label} {device}`, then VOLUME_ADOPT={label}"),
        DiskName::Cinder(_) | DiskName::Link(_) => format!("`wipefs -a {device} && blkdiscard -z {device}`"),
    }
}

fn refuse(found: String, rule: &str, remedy: impl Into<Remedy>) -> FormatDecision {
    FormatDecision::Refuse { found, rule: rule.to_owned(), remedy: remedy.into() }
}

#[cfg(test)]
#[path = "interlock_tests.rs"]
mod tests;
