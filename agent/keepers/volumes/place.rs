//! Whether a volume is in its place, as the kernel sees it. Reads only.

use crate::converge::health::carriers;
use crate::desired::{Content, Volume};
use crate::error::Result;
use crate::storage::probe::{Disk, DiskProbe, Mount};
use crate::storage::thin_pool::DATA;

/// Whether the disk that carries the volume's id is the one that is mounted in its place. Costs a look at sysfs and the
/// mount table.
pub(super) fn is_mounted_from_its_disk(probe: &DiskProbe, volume: &Volume) -> Result<bool> {
    Ok(misplaced(probe, &probe.read_disks()?, &[volume])?.is_empty())
}

/// Those of the volumes at whose place another disk than their own is mounted; the mount table is read once for all.
///
/// # Errors
/// If the mount table cannot be read.
pub fn misplaced<'a>(probe: &DiskProbe, disks: &[Disk], volumes: &[&'a Volume]) -> Result<Vec<&'a Volume>> {
    if volumes.is_empty() {
        return Ok(Vec::new());
    }
    let mounts = probe.read_mounts()?;
    let in_place = |volume: &Volume| match carriers(disks, &volume.disk)[..] {
        [disk] if volume.content == Content::ThinPool => is_pool_active(probe, disk),
        [disk] => is_mounted(&mounts, volume, disk),
        _ => false,
    };
    Ok(volumes.iter().copied().filter(|volume| !in_place(volume)).collect())
}

pub(super) fn is_mounted(mounts: &[Mount], volume: &Volume, disk: &Disk) -> bool {
    mounts.iter().any(|mount| mount.number == disk.number && mount.point == volume.mount_point)
}

/// The nodes of all disks that carry the id, and the disk if it is one.
pub(super) fn find(probe: &DiskProbe, volume: &Volume) -> Result<(Vec<String>, Option<Disk>)> {
    let disks = probe.read_disks()?;
    let found = carriers(&disks, &volume.disk);
    let nodes = found.iter().map(|disk| disk.node.display().to_string()).collect();
    let only = if let [disk] = found[..] { Some(disk.clone()) } else { None };
    Ok((nodes, only))
}

/// Whether the pool's data lies on this disk, as the kernel sees it.
pub(super) fn is_pool_active(probe: &DiskProbe, disk: &Disk) -> bool {
    probe.holders(disk).iter().any(|holder| holder == DATA)
}
