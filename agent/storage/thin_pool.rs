//! LVM's thin pool for docker's devicemapper: its names, which are those of docker-storage-setup (magnum-node.md 1.4), what
//! is still to be made, and how it is known as ours. Pure.
//!
//! A volume group has no root directory for a marker file, so the marker is in the group's tags.

use super::identity::{Names, carries};
use super::marker::VolumeMarker;
use crate::desired::{DiskName, Volume, VolumeRole};
use crate::error::Error;
use crate::systemd::escape_path;

/// The volume group.
pub const GROUP: &str = "docker";
/// The pool in it.
pub const POOL: &str = "docker/docker-pool";
/// The pool's device: device-mapper doubles the dashes within a name.
pub const DEVICE: &str = "/dev/mapper/docker-docker--pool";
/// The pool's data as device-mapper names it: what holds the disk.
pub const DATA: &str = "docker-docker--pool_tdata";
/// The unit that activates it at every boot.
pub const UNIT: &str = "docker-thin-pool.service";

/// Every name of device-mapper in the group begins so.
const HOLDERS: &str = "docker-docker--pool";
const MIB: u64 = 1024 * 1024;
/// Of what is left beside the metadata, this goes to data; the rest is what the metadata may be given by hand.
const DATA_PERCENT: u64 = 95;
/// A machine with a devices file (`lvmdevices(8)`, RHEL 9) hides every disk that is not in it from LVM: on a rebuilt server
/// also our own. `pvcreate` alone is left to the file, because it puts the disk into it. An LVM that does not know the
/// setting says so and goes on.
const EVERY_DISK: [&str; 2] = ["--config", "devices/use_devicesfile=0"];

/// What LVM says of a disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PhysicalVolume {
    /// Name of its volume group.
    pub group: Option<String>,
    /// The group's UUID, as LVM writes it.
    pub uuid: String,
    /// How much of the disk LVM takes, in bytes.
    pub size: u64,
    /// The group's tags.
    pub tags: Vec<String>,
}

/// What is to be done next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PoolStep {
    /// Make the group.
    MakeGroup,
    /// Take away what an interrupted lvcreate left.
    Clear,
    /// Make the pool.
    MakePool,
    /// Activate it.
    Activate,
    /// Something else is there.
    Refuse(String),
}

/// Decides. `volumes`: name and kind of each logical volume of the group; `unfinished`: our record says that the pool was
/// never in use.
#[must_use]
pub fn next(member: &PhysicalVolume, volumes: &[(String, String)], unfinished: bool) -> PoolStep {
    match member.group.as_deref() {
        None => return PoolStep::MakeGroup,
        Some(GROUP) => {}
        Some(other) => return PoolStep::Refuse(format!("the disk belongs to the volume group {other}, not {GROUP}")),
    }
    let pool = POOL.rsplit('/').next().unwrap_or(POOL);
    if volumes.iter().any(|(name, kind)| name == pool && kind == "thin-pool") {
        return PoolStep::Activate;
    }
    match volumes.first() {
        None => PoolStep::MakePool,
        Some(_) if unfinished => PoolStep::Clear,
        Some((name, kind)) => PoolStep::Refuse(format!("the volume group {GROUP} contains {name} ({kind}) and no {POOL}")),
    }
}

/// What asks LVM about a disk.
#[must_use]
pub fn ask_member(device: &str) -> Vec<String> {
    ask("pvs", "vg_name,vg_tags,vg_uuid,pv_size", &[device])
}

/// Its answer.
#[must_use]
pub fn member(answer: &str) -> PhysicalVolume {
    let mut fields = answer.trim().split('|').map(str::trim);
    let mut next = || fields.next().unwrap_or_default();
    let group = Some(next().to_owned()).filter(|group| !group.is_empty());
    let tags = next().split(',').map(|tag| tag.trim().to_owned()).filter(|tag| !tag.is_empty()).collect();
    PhysicalVolume { group, tags, uuid: next().to_owned(), size: next().parse().unwrap_or(0) }
}

/// What asks LVM for all groups of our name, with the disks that they lie on.
#[must_use]
pub fn ask_groups() -> Vec<String> {
    ask("pvs", "vg_uuid,pv_name", &["--select", &format!("vg_name={GROUP}")])
}

/// Another group of our name, if the answer names one: LVM's calls take groups by their names, and which of two it takes
/// differs between its versions.
#[must_use]
pub fn namesake(member: &PhysicalVolume, device: &str, answer: &str) -> Option<(String, String)> {
    let lines = answer.lines().filter_map(|line| line.trim().split_once('|'));
    let (uuid, disk) = lines.map(|(uuid, disk)| (uuid.trim(), disk.trim())).find(|(uuid, _)| *uuid != member.uuid)?;
    let ours = if member.uuid.is_empty() { format!("to be created on {device}") } else { format!("{} on {device}", member.uuid) };
    let found = format!("there are two volume groups named {GROUP}: {uuid} on {disk}, and this volume's, {ours}");
    Some((found, format!("detach {disk}, or `vgrename {uuid} {GROUP}-other`")))
}

/// What asks LVM for the volumes of the group.
#[must_use]
pub fn ask_volumes() -> Vec<String> {
    ask("lvs", "lv_name,segtype", &[GROUP])
}

/// Its answer.
#[must_use]
pub fn volumes(answer: &str) -> Vec<(String, String)> {
    let lines = answer.lines().filter_map(|line| line.trim().split_once('|'));
    lines.map(|(name, kind)| (name.trim().to_owned(), kind.trim().to_owned())).collect()
}

/// What makes the group, marked as ours.
#[must_use]
pub fn make_group(volume: &Volume, device: &str) -> Vec<String> {
    let tags = tags(volume);
    let mut argv = words("vgcreate", &[]);
    for tag in tags {
        argv.extend(["--addtag".to_owned(), tag]);
    }
    argv.extend([GROUP.to_owned(), device.to_owned()]);
    argv
}

/// What takes away the remains of an interrupted lvcreate: of the group with this UUID, whatever else has its name by then.
#[must_use]
pub fn clear(uuid: &str) -> Vec<String> {
    words("lvremove", &["--force", "--select", &format!("vg_uuid={uuid}"), GROUP])
}

/// Bytes of metadata for a disk of `size` bytes: a thousandth, as docker-storage-setup has it.
fn metadata(size: u64) -> u64 {
    (size / 1000).div_ceil(MIB).max(4) * MIB
}

/// What makes the pool on a disk of `size` bytes, and on no other one. Blocks of 512 KiB that are not zeroed, as docker-storage-setup has them,
/// with a thousandth of the disk for metadata, which takes twice that: LVM keeps a spare.
#[must_use]
pub fn make_pool(size: u64, device: &str) -> Vec<String> {
    let metadata = format!("{}m", metadata(size) / MIB);
    let data = format!("{DATA_PERCENT}%FREE");
    let name = POOL.rsplit('/').next().unwrap_or(POOL);
    let kind = ["--yes", "--type", "thin-pool", "--zero", "n", "--chunksize", "512k"];
    let sizes = ["--poolmetadatasize", &metadata, "--extents", &data, "--name", name, GROUP, device];
    words("lvcreate", &[&kind[..], &sizes].concat())
}

/// Bytes of the pool and its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    data: u64,
    metadata: u64,
    group: u64,
    free: u64,
    extent: u64,
}

/// What lets LVM take all of a disk that was extended.
#[must_use]
pub fn resize_member(device: &str) -> Vec<String> {
    words("pvresize", &[device])
}

/// What asks LVM how large the pool is.
#[must_use]
pub fn ask_sizes() -> Vec<String> {
    ask("lvs", "lv_size,lv_metadata_size,vg_size,vg_free,vg_extent_size", &[POOL])
}

/// Its answer; `None` if it is none.
#[must_use]
pub fn sizes(answer: &str) -> Option<Sizes> {
    let mut numbers = answer.trim().split('|').map(|number| number.trim().parse().ok());
    let mut next = || numbers.next().flatten();
    let sizes = Sizes { data: next()?, metadata: next()?, group: next()?, free: next()?, extent: next()? };
    (sizes.extent > 0).then_some(sizes)
}

/// How full the pool is, in hundredths of a percent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolUsage {
    /// Bytes for data.
    pub size: u64,
    /// Bytes for metadata.
    pub metadata_size: u64,
    /// Of the data.
    pub data: u32,
    /// Of the metadata.
    pub metadata: u32,
}

/// From here on the pool counts as nearly full, in hundredths of a percent. docker itself makes no new layer or container where less
/// than a tenth of either is free (`dm.min_free_space`).
pub const NEARLY_FULL: u32 = 8500;

/// What asks LVM how full the pool is.
#[must_use]
pub fn ask_fill() -> Vec<String> {
    ask("lvs", "lv_size,lv_metadata_size,data_percent,metadata_percent", &[POOL])
}

/// Its answer; `None` if it is none. A pool that is not active has no percentages.
#[must_use]
pub fn fill(answer: &str) -> Option<PoolUsage> {
    let mut fields = answer.trim().split('|').map(str::trim);
    let (size, metadata_size) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    let hundredths = |text: &str| {
        // With the decimal comma of whatever locale.
        let (whole, rest) = text.split_once(['.', ',']).unwrap_or((text, "0"));
        let rest: u32 = format!("{rest:0<2}").get(..2)?.parse().ok()?;
        Some(whole.parse::<u32>().ok()?.checked_mul(100)? + rest)
    };
    Some(PoolUsage { size, metadata_size, data: hundredths(fields.next()?)?, metadata: hundredths(fields.next()?)? })
}

/// `43.10`.
#[must_use]
pub fn percent(hundredths: u32) -> String {
    format!("{}.{:02}", hundredths / 100, hundredths % 100)
}

/// What is wrong with a pool that is nearly full.
#[must_use]
pub fn shortage(fill: &PoolUsage, volume: &Volume) -> Option<Error> {
    let space = [("data", fill.data, fill.size), ("metadata", fill.metadata, fill.metadata_size)];
    let short = space.into_iter().filter(|(_, used, _)| *used >= NEARLY_FULL);
    let parts: Vec<String> =
        short.map(|(what, used, size)| format!("{} % of the {} MiB for {what}", percent(used), size / MIB)).collect();
    if parts.is_empty() {
        return None;
    }
    let prune = "`docker system prune` removes unused data, stopped containers and their logs too";
    let remedy = if fill.data >= NEARLY_FULL {
        format!(
            "{prune}; or extend the volume: `openstack --os-volume-api-version 3.42 volume set --size GIB {}`, where GIB is its new size; the pool grows with it",
            volume.disk
        )
    } else {
        let more = (fill.metadata_size / MIB).max(4);
        format!("`lvextend --poolmetadatasize +{more}m {POOL}` uses the space reserved for it; or {prune}")
    };
    Some(
        Error::permanent(format!("the thin pool {POOL} is nearly full: {} are used", parts.join(" and ")))
            .rule(format!(
                "docker creates no new layers with less than 10 % of either free; the agent warns from {} % on",
                NEARLY_FULL / 100
            ))
            .remedy(remedy),
    )
}

/// What makes the pool as large as a new one would be in its group. The goal is what the whole group has, not what is free:
/// so a try that was cut off takes nothing twice, and the room that is kept stays one share of the whole, however often the
/// disk is extended. Nothing where nothing is to be had.
#[must_use]
pub fn growing(sizes: &Sizes, device: &str) -> Vec<Vec<String>> {
    let extents = |bytes: u64| bytes / sizes.extent * sizes.extent;
    let metadata = metadata(sizes.group).div_ceil(sizes.extent) * sizes.extent;
    let more_metadata = metadata.saturating_sub(sizes.metadata);
    // Its spare is as large.
    let (kept, more_kept) = (metadata.max(sizes.metadata) * 2, more_metadata * 2);
    let data = extents(sizes.group.saturating_sub(kept) / 100 * DATA_PERCENT);
    let more_data = data.saturating_sub(sizes.data).min(extents(sizes.free.saturating_sub(more_kept)));
    let lvextend = |option: &str, bytes: u64| words("lvextend", &[option, &format!("{bytes}b"), POOL, device]);
    let mut calls = Vec::new();
    if more_metadata > 0 && sizes.free >= more_kept {
        calls.push(lvextend("--poolmetadatasize", metadata));
    }
    if more_data > 0 {
        calls.push(lvextend("--size", sizes.data + more_data));
    }
    calls
}

/// A call of LVM, whose first word is the command.
fn words(command: &str, rest: &[&str]) -> Vec<String> {
    ["lvm", command].iter().chain(&EVERY_DISK).chain(rest).map(|word| (*word).to_owned()).collect()
}

/// A question to LVM: these fields of what `rest` names, in bytes where they are sizes.
fn ask(command: &str, fields: &str, rest: &[&str]) -> Vec<String> {
    words(command, &[&["--noheadings", "--separator", "|", "--units", "b", "--nosuffix", "-o", fields], rest].concat())
}

/// The marker as tags.
fn tags(volume: &Volume) -> [String; 3] {
    [("cluster", volume.cluster.as_str()), ("role", volume.role.as_str()), ("volume", volume.disk.as_str())]
        .map(|(name, value)| format!("hna.{name}.{}", encoded(value)))
}

/// The marker that tags are; `None` where one is missing.
#[must_use]
pub fn marker(tags: &[String], uuid: &str) -> Option<VolumeMarker> {
    let value = |name: &str| tags.iter().find_map(|tag| tag.strip_prefix("hna.")?.strip_prefix(name)?.strip_prefix('.'));
    let role = [VolumeRole::Runtime, VolumeRole::Etcd].into_iter().find(|role| value("role") == Some(role.as_str()))?;
    Some(VolumeMarker {
        schema: super::marker::SCHEMA,
        cluster: decoded(value("cluster")?)?,
        role,
        volume: decoded(value("volume")?)?,
        fs_uuid: uuid.to_owned(),
        made_at: String::new(),
    })
}

/// A tag of every LVM holds letters, digits and `_+.-` (lvm(8)): any other byte becomes `_` and two digits.
fn encoded(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b".-".contains(&byte) {
            out.push(byte.into());
        } else {
            out.push_str(&format!("_{byte:02x}"));
        }
    }
    out
}

fn decoded(tag: &str) -> Option<String> {
    let mut out = Vec::new();
    let mut bytes = tag.bytes();
    while let Some(byte) = bytes.next() {
        if byte == b'_' {
            let digits = [bytes.next()?, bytes.next()?];
            out.push(u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?);
        } else {
            out.push(byte);
        }
    }
    String::from_utf8(out).ok()
}

/// Whether everything that holds a disk is the pool.
#[must_use]
pub fn holds_alone(holders: &[String]) -> bool {
    !holders.is_empty() && holders.iter().all(|holder| holder.starts_with(HOLDERS))
}

/// An LVM UUID as pvcreate wants it: 32 characters in groups of 6-4-4-4-4-4-6.
#[must_use]
pub fn dashed(uuid: &str) -> String {
    let parts = [0..6, 6..10, 10..14, 14..18, 18..22, 22..26, 26..32].map(|range| uuid.get(range).unwrap_or_default());
    parts.join("-")
}

/// The link that the unit waits for: the one that carries the Cinder id, else the one by LVM's UUID.
#[must_use]
pub fn source(volume: &Volume, names: &Names, uuid: &str) -> String {
    let carried = |link: &&String| match &volume.disk {
        DiskName::Cinder(id) => carries(link, id),
        DiskName::Link(name) => *link == name,
        DiskName::Label(_) => false,
    };
    match names.links.iter().filter(|link| DiskName::is_plain(link)).find(carried) {
        Some(link) => format!("/dev/disk/by-id/{link}"),
        None => format!("/dev/disk/by-id/lvm-pv-uuid-{}", dashed(uuid)),
    }
}

/// Text of [`UNIT`]: docker waits for it, and goes down with the disk.
#[must_use]
pub fn unit_text(volume: &Volume, source: &str) -> String {
    let device = format!("{}.device", escape_path(source));
    format!(
        "\
# Made by heat-node-agent.
[Unit]
Description=Container runtime's thin pool on Cinder volume {id}
DefaultDependencies=no
BindsTo={device}
After={device}
Conflicts=shutdown.target
Before=shutdown.target

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/sbin/lvm vgchange {every_disk} --activate y {GROUP}
# The pool's metadata may have to be checked after a power cut.
TimeoutStartSec=300
",
        id = volume.disk,
        every_disk = EVERY_DISK.join(" "),
    )
}

#[cfg(test)]
mod tests {
    use super::super::mount_unit::tests::volume;
    use super::*;

    #[test]
    fn each_state_of_a_group_has_its_next_step() {
        let of = |group: Option<&str>| PhysicalVolume { group: group.map(str::to_owned), ..PhysicalVolume::default() };
        let pool = ("docker-pool", "thin-pool");
        let refuse = |text: &str| PoolStep::Refuse(text.to_owned());
        for (group, volumes, unfinished, expected) in [
            (None, &[][..], true, PoolStep::MakeGroup),
            (Some("docker"), &[], true, PoolStep::MakePool),
            (Some("docker"), &[], false, PoolStep::MakePool),
            (Some("docker"), &[pool], true, PoolStep::Activate),
            (Some("docker"), &[("root", "linear"), pool], false, PoolStep::Activate),
            (Some("docker"), &[("lvol0", "linear")], true, PoolStep::Clear),
            (Some("docker"), &[("docker-pool", "linear")], true, PoolStep::Clear),
            (
                Some("docker"),
                &[("docker-pool", "linear")],
                false,
                refuse("the volume group docker contains docker-pool (linear) and no docker/docker-pool"),
            ),
            (Some("data"), &[pool], true, refuse("the disk belongs to the volume group data, not docker")),
        ] {
            let volumes: Vec<_> = volumes.iter().map(|(name, kind)| ((*name).to_owned(), (*kind).to_owned())).collect();
            assert_eq!(next(&of(group), &volumes, unfinished), expected, "{group:?} {volumes:?}");
        }
    }

    #[test]
    fn the_marker_survives_as_tags() {
        for cluster in ["c0ffee00-1111-4222-8333-444455556666", "bay/5f1c", "a_b é"] {
            let volume = Volume { cluster: cluster.into(), ..volume() };
            let argv = make_group(&volume, "/dev/vdb");
            assert!(argv.iter().all(|word| word.bytes().all(|byte| byte.is_ascii_graphic())), "{argv:?}");
            let tags = argv.iter().filter(|word| word.starts_with("hna.")).cloned().collect::<Vec<_>>().join(",");
            let found = marker(&member(&format!("  docker|{tags}|u1|1\n")).tags, "u").unwrap();
            assert_eq!(
                (found.cluster.as_str(), found.volume, found.role),
                (cluster, volume.disk.as_str().to_owned(), volume.role)
            );
        }
        assert_eq!(member("  ||| 4290772992\n"), PhysicalVolume { size: 4_290_772_992, ..PhysicalVolume::default() });
        assert_eq!(member(""), PhysicalVolume::default());
        assert_eq!(marker(&["hna.role.etcd".into(), "hna.cluster.a".into()], "u"), None);
        assert_eq!(decoded("_zz"), None);
        assert_eq!(volumes("  docker-pool|thin-pool\n  x|linear\n").len(), 2);
    }

    #[test]
    fn the_pool_leaves_room_for_its_metadata() {
        for (gib, expected) in [(3_u64, "4m"), (25, "26m"), (1000, "1024m")] {
            let argv = make_pool(gib << 30, "/dev/vdb");
            assert_eq!(argv.last().unwrap(), "/dev/vdb", "data lies on no other disk");
            let at = argv.iter().position(|word| word == "--poolmetadatasize").unwrap();
            assert_eq!(argv[at + 1], expected, "{gib} GiB");
        }
    }

    #[test]
    fn a_group_of_the_same_name_is_distinguished_by_its_uuid() {
        let ours = PhysicalVolume { group: Some("docker".into()), uuid: "oUr-1".into(), ..PhysicalVolume::default() };
        let none = PhysicalVolume::default();
        for (member, answer, expected) in [
            (&ours, "  oUr-1|/dev/vdb\n", None),
            (&ours, "  oUr-1|/dev/vdb\n  oUr-1|/dev/vdc\n", None),
            (&ours, "  oThEr|/dev/sda\n  oUr-1|/dev/vdb\n", Some(("oThEr on /dev/sda", "oUr-1 on /dev/vdb"))),
            (&ours, "  oUr-1|/dev/vdb\n  oThEr|/dev/sda\n", Some(("oThEr on /dev/sda", "oUr-1 on /dev/vdb"))),
            (&none, "", None),
            (&none, "  oThEr|/dev/sda\n", Some(("oThEr on /dev/sda", "to be created on /dev/vdb"))),
        ] {
            let found = namesake(member, "/dev/vdb", answer);
            assert_eq!(found.is_some(), expected.is_some(), "{answer}");
            if let (Some((found, remedy)), Some((other, own))) = (found, expected) {
                assert!(found.contains(other) && found.contains(own), "{found}");
                assert_eq!(remedy, "detach /dev/sda, or `vgrename oThEr docker-other`");
            }
        }
        assert_eq!(clear("oUr-1")[4..], ["--force", "--select", "vg_uuid=oUr-1", "docker"]);
    }

    #[test]
    fn a_pool_grows_to_what_a_new_one_would_be_and_then_no_more() {
        let extent = 4 * MIB;
        // Group, data and metadata before, whether somebody else took the rest; data and metadata after; all in extents.
        for (group, data, metadata, taken, expected) in [
            // As made on 4 GiB, extended to 6: what was kept before is in the sum.
            (1535, 968, 2, false, (1454, 2)),
            // The same once more, as after a try that was cut off behind its last call.
            (1535, 1454, 2, false, (1454, 2)),
            // 25 GiB to 1 TiB: the metadata grows with the data.
            (262_143, 6068, 7, false, (248_536, 263)),
            // docker-storage-setup's own pool, with 40 % of 25 GiB.
            (12_799, 2560, 7, false, (12_134, 13)),
            // A larger pool is left as it is.
            (1535, 1531, 2, false, (1531, 2)),
            (1535, 968, 2, true, (968, 2)),
            // An old pool without room for more metadata than it has.
            (262_143, 6068, 1, true, (6068, 1)),
        ] {
            let free = if taken { 0 } else { group - data - 2 * metadata };
            let of = |extents: u64| extents * extent;
            let sizes = Sizes { data: of(data), metadata: of(metadata), group: of(group), free: of(free), extent };
            let calls = growing(&sizes, "/dev/vdb");
            let after = |option: &str, before: u64| {
                let call = calls.iter().find(|call| call[4] == option);
                call.map_or(before, |call| call[5].trim_end_matches('b').parse::<u64>().unwrap() / extent)
            };
            let found = (after("--size", data), after("--poolmetadatasize", metadata));
            assert_eq!(found, expected, "{group} {data} {metadata} {taken}");
            assert_eq!(calls.len(), usize::from(found.0 != data) + usize::from(found.1 != metadata));
            assert!(calls.iter().all(|call| call[6..] == ["docker/docker-pool", "/dev/vdb"]), "{calls:?}");
            assert!(found.0 + 2 * found.1 <= group);
            let done = Sizes { data: of(found.0), metadata: of(found.1), free: 0, ..sizes };
            assert!(growing(&done, "/dev/vdb").is_empty(), "a second try has nothing to do");
        }
        assert_eq!(sizes(" 4060086272|8388608|4290772992|213909504|4194304\n").unwrap().extent, extent);
        for answer in ["", "1|2|3|4", "1|2|3|4|0", "1|2|x|4|5"] {
            assert_eq!(sizes(answer), None, "{answer}");
        }
    }

    #[test]
    fn a_pool_that_is_nearly_full_is_reported_with_the_command_that_helps() {
        for (answer, message, remedy) in [
            ("  102005473280|113246208|43.10|12.00\n", None, ""),
            ("  102005473280|113246208|84.99|84.99\n", None, ""),
            (
                "102005473280|113246208|85.00|3.5",
                Some("the thin pool docker/docker-pool is nearly full: 85.00 % of the 97280 MiB for data are used"),
                "extend the volume: `openstack --os-volume-api-version 3.42 volume set --size GIB 7c1f4d0e-93a2-4b86-8d55-2f60c6b1a9e4`, where GIB is its new size; the pool grows with it",
            ),
            (
                "102005473280|113246208|3,5|91,25",
                Some("the thin pool docker/docker-pool is nearly full: 91.25 % of the 108 MiB for metadata are used"),
                "`lvextend --poolmetadatasize +108m docker/docker-pool`",
            ),
            (
                "4194304|4194304|100.00|99.02",
                Some(
                    "the thin pool docker/docker-pool is nearly full: 100.00 % of the 4 MiB for data and 99.02 % of the 4 MiB for metadata are used",
                ),
                "`docker system prune`",
            ),
        ] {
            let error = shortage(&fill(answer).unwrap(), &volume());
            assert_eq!(error.as_ref().map(ToString::to_string).as_deref(), message, "{answer}");
            assert!(error.is_none_or(|error| error.suggested_remedy().unwrap().contains(remedy)), "{answer}");
        }
        for answer in ["", "1|2||", "1|2|3", "1|2|x|4"] {
            assert_eq!(fill(answer), None, "{answer}");
        }
        let all = fill("1|2|100|0.07").unwrap();
        assert_eq!((percent(all.data).as_str(), percent(all.metadata).as_str()), ("100.00", "0.07"));
    }

    #[test]
    fn the_unit_goes_with_the_disk() {
        let names = Names { links: vec!["virtio-7c1f4d0e-93a2-4b86-8".into()], ..Names::default() };
        let text = unit_text(&volume(), &source(&volume(), &names, "u"));
        let device = r"dev-disk-by\x2did-virtio\x2d7c1f4d0e\x2d93a2\x2d4b86\x2d8.device";
        assert!(text.contains(&format!("BindsTo={device}\nAfter={device}\n")), "{text}");
        let none = Names::default();
        let uuid = "0123456789abcdef0123456789abcdef";
        assert_eq!(source(&volume(), &none, uuid), "/dev/disk/by-id/lvm-pv-uuid-012345-6789-abcd-ef01-2345-6789-abcdef");
        assert!(holds_alone(&[DATA.into(), "docker-docker--pool_tmeta".into()]));
        assert!(!holds_alone(&[]) && !holds_alone(&[DATA.into(), "data-root".into()]));
    }
}
