//! Which disk is meant.
//!
//! Cinder's id is the serial that Nova gives to the disk: whole where the bus has room for it, cut to 20 characters on
//! virtio-blk and `NVMe` (magnum-node.md 1.4). A disk without one is known by a link that names it. A kernel name is
//! never looked at.

use crate::desired::DiskName;

/// How many characters of the id the shortest serial holds.
pub const CUT: usize = 20;

/// The names that a disk has, all but its kernel name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    /// Serials that the disk itself reports: virtio-blk's and `NVMe`'s `serial`, SCSI's VPD pages 0x80 and 0x83.
    pub serials: Vec<String>,
    /// Names of the links in /dev/disk/by-id that lead to it.
    pub links: Vec<String>,
    /// Names of the links in /dev/disk/by-label that lead to it.
    pub labels: Vec<String>,
    /// It is a part of a disk. Cinder attaches whole ones; Ironic's ephemeral disk is a part of the server's.
    pub is_partition: bool,
}

/// The positions of the disks that are meant. Those of a Cinder id are known by their own serials, and by links only where
/// no serial carries it, because a link is made by rules that somebody can change.
#[must_use]
pub fn matching(disk: &DiskName, disks: &[Names]) -> Vec<usize> {
    let by = |meant: &dyn Fn(&Names) -> bool| -> Vec<usize> {
        disks.iter().enumerate().filter(|(_, names)| meant(names)).map(|(at, _)| at).collect()
    };
    match disk {
        DiskName::Cinder(id) => {
            let any = |names: &[String]| names.iter().any(|name| carries(name, id));
            let by_serial = by(&|names| !names.is_partition && any(&names.serials));
            if by_serial.is_empty() { by(&|names| !names.is_partition && any(&names.links)) } else { by_serial }
        }
        DiskName::Link(link) => by(&|names| names.links.contains(link)),
        DiskName::Label(label) => by(&|names| names.labels.contains(label)),
    }
}

/// Whether a name holds the id, whole or cut to its first 20 characters, between any prefix and suffix.
#[must_use]
pub fn carries(name: &str, id: &str) -> bool {
    let (Some(cut), Some(rest)) = (id.get(..CUT), id.get(CUT..)) else { return false };
    let partition =
        name.rsplit_once("-part").is_some_and(|(_, digits)| !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()));
    !partition
        && name.match_indices(cut).any(|(at, found)| {
            let (before, after) = (name.get(..at).unwrap_or_default(), name.get(at + found.len()..).unwrap_or_default());
            // A hexadecimal digit on either side means that this is the middle of another id.
            let is_hex = |c: char| c.is_ascii_hexdigit();
            let after = after.strip_prefix(rest).unwrap_or(after);
            !before.ends_with(is_hex) && !after.starts_with(is_hex)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "7c1f4d0e-93a2-4b86-8d55-2f60c6b1a9e4";

    #[test]
    fn names_of_every_bus_are_distinguished() {
        for (name, carried) in [
            ("7c1f4d0e-93a2-4b86-8", true),
            ("7c1f4d0e-93a2-4b86-8d55-2f60c6b1a9e4", true),
            ("virtio-7c1f4d0e-93a2-4b86-8", true),
            ("scsi-0QEMU_QEMU_HARDDISK_7c1f4d0e-93a2-4b86-8", true),
            ("scsi-0QEMU_QEMU_HARDDISK_7c1f4d0e-93a2-4b86-8d55-2f60c6b1a9e4-lun-0", true),
            ("QEMU    QEMU HARDDISK   7c1f4d0e-93a2-4b86-8d55-2f60c6b1a9e4", true),
            ("nvme-QEMU_NVMe_Ctrl_7c1f4d0e-93a2-4b86-8_1", true),
            ("virtio-7c1f4d0e-93a2-4b86-8-part1", false),
            ("7c1f4d0e-93a2-4b86-8d55-2f60c6b1a9e5", false),
            ("7c1f4d0e-93a2-4b86-9", false),
            ("7c1f4d0e-93a2-4b86", false),
            ("7C1F4D0E-93A2-4B86-8", false),
            ("virtio-a7c1f4d0e-93a2-4b86-8", false),
            ("", false),
        ] {
            assert_eq!(carries(name, ID), carried, "{name}");
        }
        assert!(!carries("7c1f", "7c1f"));
    }

    #[test]
    fn serials_come_before_links_and_two_disks_are_both_named() {
        let serial = |text: &str| Names { serials: vec![text.into()], ..Names::default() };
        let link = |text: &str| Names { links: vec![text.into()], ..Names::default() };
        let part = |disk: Names| Names { is_partition: true, ..disk };
        let cinder = DiskName::Cinder(ID.into());
        let cut = "7c1f4d0e-93a2-4b86-8";
        for (disks, found) in [
            (vec![serial("other"), serial(cut)], vec![1]),
            (vec![serial(cut), link("virtio-7c1f4d0e-93a2-4b86-8")], vec![0]),
            (vec![Names::default(), link("virtio-7c1f4d0e-93a2-4b86-8")], vec![1]),
            (vec![serial(cut), serial(ID)], vec![0, 1]),
            (vec![link("x"), Names::default()], vec![]),
            (vec![part(serial(cut)), part(link("virtio-7c1f4d0e-93a2-4b86-8")), serial(ID)], vec![2]),
        ] {
            assert_eq!(matching(&cinder, &disks), found, "{disks:?}");
        }
        // A name is the whole name, and a part of a disk may be meant by it.
        let label = Names { labels: vec!["ephemeral0".into()], is_partition: true, ..Names::default() };
        let disks = [link("wwn-0x5000c500a1b2c3d4"), part(link("wwn-0x5000c500a1b2c3d4-part1")), label];
        for (disk, found) in [
            (DiskName::Link("wwn-0x5000c500a1b2c3d4".into()), vec![0]),
            (DiskName::Link("wwn-0x5000c500a1b2c3d4-part1".into()), vec![1]),
            (DiskName::Link("wwn-0x5000c500a1b2c3d".into()), vec![]),
            (DiskName::Link("ephemeral0".into()), vec![]),
            (DiskName::Label("ephemeral0".into()), vec![2]),
            (DiskName::Label("ephemeral".into()), vec![]),
        ] {
            assert_eq!(matching(&disk, &disks), found, "{disk:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_name_breaks_it(name in "\\PC*", id in "\\PC*") {
            proptest::prop_assert!(!carries(&name, &id) || name.contains(id.get(..CUT).unwrap()));
        }
    }
}
