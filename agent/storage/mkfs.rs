//! How a blank volume is made into what it is to be: the first program that writes to it. Pure.

use super::thin_pool;
use crate::desired::{Content, Volume};

/// The program that makes a file system or labels the disk for LVM, with a UUID that was recorded before; `force`: over the
/// remains of our own interrupted try.
#[must_use]
pub fn argv(volume: &Volume, uuid: &str, device: &str, force: bool) -> Vec<String> {
    let uuid = match volume.content {
        Content::Xfs => format!("uuid={uuid}"),
        Content::Btrfs => uuid.to_owned(),
        Content::ThinPool => thin_pool::dashed(uuid),
    };
    let label = format!("hna-{}", volume.role);
    // -K: nothing is discarded. On a large volume that takes longer than a program may run, and a blank one gains nothing by it.
    let words: Vec<&str> = match (volume.content, force) {
        // overlayfs needs the types of files in directories, which xfsprogs before 4.2 leave out.
        (Content::Xfs, false) => vec!["mkfs.xfs", "-q", "-K", "-n", "ftype=1", "-m", &uuid, "-L", &label],
        (Content::Xfs, true) => vec!["mkfs.xfs", "-q", "-K", "-f", "-n", "ftype=1", "-m", &uuid, "-L", &label],
        (Content::Btrfs, false) => vec!["mkfs.btrfs", "-q", "-K", "-U", &uuid, "-L", &label],
        (Content::Btrfs, true) => vec!["mkfs.btrfs", "-q", "-K", "-f", "-U", &uuid, "-L", &label],
        (Content::ThinPool, false) => vec!["lvm", "pvcreate", "--quiet", "--uuid", &uuid, "--norestorefile"],
        (Content::ThinPool, true) => {
            vec!["lvm", "pvcreate", "--quiet", "--yes", "--force", "--force", "--uuid", &uuid, "--norestorefile"]
        }
    };
    words.into_iter().chain([device]).map(str::to_owned).collect()
}

/// The form of a UUID that this content has on the disk.
#[must_use]
pub fn uuid_on_disk(content: Content, uuid: &str) -> String {
    match content {
        Content::Xfs | Content::Btrfs => uuid.to_owned(),
        // LVM's has 32 characters of its own choice; hexadecimal digits are among them.
        Content::ThinPool => uuid.replace('-', ""),
    }
}

/// The bytes by which a UUID stands in what the program wrote; none if it is no UUID.
#[must_use]
pub fn uuid_bytes(content: Content, on_disk: &str) -> Vec<u8> {
    match content {
        Content::ThinPool => on_disk.as_bytes().to_vec(),
        Content::Xfs | Content::Btrfs => {
            u128::from_str_radix(&on_disk.replace('-', ""), 16).map(|number| number.to_be_bytes().to_vec()).unwrap_or_default()
        }
    }
}

/// Options of a mount that looks into a file system and changes no byte of it: even a read-only mount replays a log unless
/// told not to, and the original of a copy may be mounted. Several are tried in turn: btrfs has the first spelling since Linux
/// 5.9 (btrfs(5), rescue), and lost the other one later.
#[must_use]
pub fn inspection_mount_options(kind: &str) -> &'static [&'static str] {
    match kind {
        "xfs" => &["norecovery,nouuid"],
        "btrfs" => &["rescue=nologreplay", "nologreplay"],
        _ => &["noload"],
    }
}

/// The program that lets a file system on a grown disk follow it while it is in use. It can be run twice.
#[must_use]
pub fn growing(kind: &str, mount_point: &str, device: &str) -> Vec<String> {
    let argv: &[&str] = match kind {
        "xfs" => &["xfs_growfs", "-d", mount_point],
        "btrfs" => &["btrfs", "filesystem", "resize", "max", mount_point],
        _ => &["resize2fs", device],
    };
    argv.iter().map(|word| (*word).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::super::mount_unit::tests::volume;
    use super::*;

    #[test]
    fn every_content_is_made_with_the_recorded_uuid_and_forced_only_where_it_is_said() {
        let drawn = "0b7e1122-3344-4566-b788-99aabbccddee";
        for (content, force, expected) in [
            (Content::Xfs, false, format!("mkfs.xfs -q -K -n ftype=1 -m uuid={drawn} -L hna-etcd /dev/vdb")),
            (Content::Xfs, true, format!("mkfs.xfs -q -K -f -n ftype=1 -m uuid={drawn} -L hna-etcd /dev/vdb")),
            (Content::Btrfs, false, format!("mkfs.btrfs -q -K -U {drawn} -L hna-etcd /dev/vdb")),
            (
                Content::ThinPool,
                false,
                "lvm pvcreate --quiet --uuid 0b7e11-2233-4445-66b7-8899-aabb-ccddee --norestorefile /dev/vdb".to_owned(),
            ),
        ] {
            let volume = Volume { content, ..volume() };
            let made = argv(&volume, &uuid_on_disk(content, drawn), "/dev/vdb", force).join(" ");
            assert_eq!(made, expected);
        }
    }
}
