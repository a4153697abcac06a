//! The mount unit that keeps a volume in its place at every boot.

use super::identity::{Names, carries};
use crate::desired::{DiskName, Volume, VolumeRole};

/// Where the unit's file lies.
#[must_use]
pub fn path(mount_point: &str) -> String {
    format!("/etc/systemd/system/{}", name(mount_point))
}

/// The unit's name: the escaped path, as systemd demands of mount units (systemd.unit(5), "String escaping for inclusion
/// in unit names").
#[must_use]
pub fn name(mount_point: &str) -> String {
    let mut out = String::new();
    for (at, byte) in mount_point.trim_matches('/').bytes().enumerate() {
        match byte {
            b'/' => out.push('-'),
            b'.' if at == 0 => out.push_str("\\x2e"),
            b':' | b'_' | b'.' => out.push(byte.into()),
            byte if byte.is_ascii_alphanumeric() => out.push(byte.into()),
            byte => {
                out.push_str("\\x");
                out.extend([byte >> 4, byte & 15].into_iter().filter_map(|digit| char::from_digit(digit.into(), 16)));
            }
        }
    }
    if out.is_empty() { "-.mount".to_owned() } else { out + ".mount" }
}

/// What the unit mounts: the link that names the disk, so that a copy with the same UUID is never taken for the volume;
/// by the UUID only where udev makes no such link.
#[must_use]
pub fn source(volume: &Volume, names: &Names, fs_uuid: &str) -> String {
    let names_disk = |link: &&String| match &volume.disk {
        DiskName::Cinder(id) => carries(link, id),
        DiskName::Link(name) => *link == name,
        DiskName::Label(_) => false,
    };
    match names.links.iter().filter(|link| DiskName::is_plain(link)).find(names_disk) {
        Some(link) => format!("/dev/disk/by-id/{link}"),
        None => format!("/dev/disk/by-uuid/{fs_uuid}"),
    }
}

/// The unit's text.
///
/// It has no default dependencies, because these would put it before local-fs.target: a volume that is not attached at
/// a boot would then hold up the whole machine, where only the units above it (`RequiresMountsFor`=) have to wait.
#[must_use]
pub fn text(volume: &Volume, fs_type: &str, source: &str) -> String {
    let what = match volume.role {
        VolumeRole::Runtime => "Container runtime's store",
        VolumeRole::Etcd => "etcd's store",
    };
    format!(
        "\
# Made by heat-node-agent.
[Unit]
Description={what} on volume {disk}
DefaultDependencies=no
After=local-fs-pre.target
Conflicts=umount.target
Before=umount.target

[Mount]
What={source}
Where={mount_point}
Type={fs_type}
Options=defaults
# A log may have to be replayed after a power cut.
TimeoutSec=300
",
        disk = volume.disk,
        mount_point = volume.mount_point,
    )
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::desired::{Content, FormatPolicy, Owner};

    pub(crate) fn volume() -> Volume {
        Volume {
            role: VolumeRole::Etcd,
            disk: DiskName::Cinder("7c1f4d0e-93a2-4b86-8d55-2f60c6b1a9e4".into()),
            hint: "/dev/vdc".into(),
            content: Content::Xfs,
            mount_point: "/var/lib/etcd".into(),
            root_mode: 0o700,
            root_owner: Owner::named("etcd"),
            format: FormatPolicy::IfBlank,
            format_parameter: "ETCD_VOLUME_FORMAT",
            adopt: None,
            cluster: "c0ffee".into(),
            users: vec!["etcd.service".into()],
        }
    }

    #[test]
    fn names_are_escaped_as_systemd_does() {
        for (mount_point, expected) in [
            ("/var/lib/docker", "var-lib-docker.mount"),
            ("/var/lib/a-b_c.d/", "var-lib-a\\x2db_c.d.mount"),
            ("/.hidden", "\\x2ehidden.mount"),
            ("/", "-.mount"),
        ] {
            assert_eq!(name(mount_point), expected);
        }
    }

    #[test]
    fn a_volume_is_mounted_by_its_own_id_where_there_is_a_link() {
        let own = "virtio-7c1f4d0e-93a2-4b86-8";
        for (links, expected) in [
            (vec![], "/dev/disk/by-uuid/0b7e"),
            (vec!["virtio-other"], "/dev/disk/by-uuid/0b7e"),
            (vec!["a", own], "/dev/disk/by-id/virtio-7c1f4d0e-93a2-4b86-8"),
            (vec!["odd%x-7c1f4d0e-93a2-4b86-8"], "/dev/disk/by-uuid/0b7e"),
        ] {
            let names = Names { links: links.into_iter().map(str::to_owned).collect(), ..Names::default() };
            assert_eq!(source(&volume(), &names, "0b7e"), expected, "{names:?}");
        }
    }

    #[test]
    fn a_missing_volume_holds_up_its_users_only() {
        let text = text(&volume(), "xfs", "/dev/disk/by-id/virtio-x");
        assert!(text.contains("What=/dev/disk/by-id/virtio-x\nWhere=/var/lib/etcd\nType=xfs\n"));
        assert!(text.contains("DefaultDependencies=no\n") && !text.contains("local-fs.target") && !text.contains("[Install]"));
    }
}
