//! What a storage driver asks of kernel, engine and store, and the refusal where one lacks it. Pure.

use crate::desired::{ContainerEngine, StorageDriver, Store};
use crate::error::{Error, Result};

/// What was seen of a store's directory, or of the one that it will be made in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreSigns {
    /// Whether it lies on btrfs.
    pub btrfs: bool,
    /// Whether its directories report the types of files; `None` where nobody could see.
    pub file_types: Option<bool>,
    /// Whether it can be written.
    pub read_only: bool,
    /// Drivers with something in the store, by the engine's names.
    pub with_data: Vec<String>,
}

/// The kernel's module for a driver, and the file system that it brings.
#[must_use]
pub fn module(driver: StorageDriver) -> (&'static str, Option<&'static str>) {
    match driver {
        StorageDriver::Overlay2 | StorageDriver::Overlay => ("overlay", Some("overlay")),
        StorageDriver::Devicemapper => ("dm-thin-pool", None),
        StorageDriver::Btrfs => ("btrfs", Some("btrfs")),
    }
}

/// Whether /proc/filesystems lists one.
#[must_use]
pub fn lists(filesystems: &str, name: &str) -> bool {
    filesystems.lines().any(|line| line.split_whitespace().last() == Some(name))
}

/// The refusal where the kernel has no such module.
#[must_use]
pub fn no_module(driver: StorageDriver, reported: &str) -> Error {
    let (module, _) = module(driver);
    Error::refused(format!("the kernel has no {module}: {reported}"))
        .rule(format!("the storage driver {} needs the kernel's {module}", driver.as_str()))
        .remedy("use an image whose kernel has it, or another DOCKER_STORAGE_DRIVER")
}

/// The first major release of docker without the driver, where one dropped it (docker's list of deprecated features).
#[must_use]
pub fn dropped_by(driver: StorageDriver) -> Option<u16> {
    match driver {
        StorageDriver::Overlay => Some(24),
        StorageDriver::Devicemapper => Some(25),
        StorageDriver::Overlay2 | StorageDriver::Btrfs => None,
    }
}

/// Whether a docker of this version (major, minor) has the driver (docker's list of deprecated features; its changelog for 1.4 and
/// 1.12).
///
/// # Errors
/// The refusal.
pub fn check_version(driver: StorageDriver, version: (u16, u16)) -> Result<()> {
    let since = match driver {
        StorageDriver::Overlay2 => (1, 12),
        StorageDriver::Overlay => (1, 4),
        StorageDriver::Devicemapper => (0, 7),
        StorageDriver::Btrfs => (0, 8),
    };
    let (major, minor) = version;
    let name = driver.as_str();
    let rule = if version < since {
        format!("docker has {name} since {}.{}", since.0, since.1)
    } else if let Some(gone) = dropped_by(driver).filter(|gone| major >= *gone) {
        format!("docker {gone} dropped {name}")
    } else {
        return Ok(());
    };
    Err(Error::refused(format!("docker {major}.{minor} has no storage driver {name}"))
        .rule(rule)
        .remedy("set DOCKER_STORAGE_DRIVER to overlay2, or use an image with another docker"))
}

/// Whether the driver can work in the store. `last`: the driver that our own record names.
///
/// # Errors
/// The refusal.
pub fn check_store(store: &Store, seen: &StoreSigns, last: Option<&str>) -> Result<()> {
    let (path, wanted) = (&store.path, store.driver.name_for(store.engine));
    if seen.read_only {
        return Err(Error::refused(format!("{path} cannot be written"))
            .rule("the runtime writes to its store when it starts")
            .remedy(format!("check `journalctl -k` for I/O errors; then `mount -o remount,rw {path}` and `systemctl restart heat-node-agent`, which has mounts of its own")));
    }
    check_change(store, wanted, seen, last)?;
    match store.driver {
        StorageDriver::Overlay2 | StorageDriver::Overlay if seen.file_types == Some(false) => {
            Err(Error::refused(format!("{path} is on a file system whose directories do not record file types"))
                .rule("overlayfs needs d_type: on xfs this is the feature ftype=1, which only mkfs can set")
                .remedy(format!(
                    "`xfs_info {path}`; use a volume that this agent formats, or create the file system with ftype=1"
                )))
        }
        StorageDriver::Btrfs if !seen.btrfs => Err(Error::refused(format!("{path} is not on btrfs"))
            .rule("the btrfs storage driver creates snapshots in the store's file system")
            .remedy("use a blank DOCKER_VOLUME, or set DOCKER_STORAGE_DRIVER to overlay2")),
        _ => Ok(()),
    }
}

/// Images of another driver stay where they are, but nobody sees them any more: that is asked for or refused.
fn check_change(store: &Store, wanted: &str, seen: &StoreSigns, last: Option<&str>) -> Result<()> {
    let has = |name: &str| seen.with_data.iter().any(|one| one == name);
    let current = match last {
        Some(last) => Some(last).filter(|last| has(last)),
        None if has(wanted) => None,
        None => seen.with_data.first().map(String::as_str),
    };
    let Some(current) = current.filter(|current| *current != wanted) else { return Ok(()) };
    if store.leaves.as_deref() == Some(current) {
        return Ok(());
    }
    let driver = if store.engine == ContainerEngine::Docker { "storage driver" } else { "snapshotter" };
    Err(Error::refused(format!(
        "{} contains images or containers of the {driver} {current}, but {wanted} is requested",
        store.path
    ))
    .rule("images are never wiped, and a change of driver would silently abandon them")
    .remedy(format!("DOCKER_STORAGE_CHANGE={current} to abandon them, or restore DOCKER_STORAGE_DRIVER")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(driver: StorageDriver, leaves: Option<&str>) -> Store {
        Store { engine: ContainerEngine::Docker, path: "/var/lib/docker".into(), driver, leaves: leaves.map(str::to_owned) }
    }

    #[test]
    fn a_docker_without_the_driver_is_refused_by_name() {
        use StorageDriver::{Btrfs, Devicemapper, Overlay, Overlay2};
        for (version, driver, expected) in [
            ((20, 10), Devicemapper, None),
            ((24, 0), Devicemapper, None),
            ((25, 0), Devicemapper, Some("docker 25 dropped devicemapper")),
            ((29, 1), Devicemapper, Some("docker 25 dropped devicemapper")),
            ((23, 0), Overlay, None),
            ((24, 0), Overlay, Some("docker 24 dropped overlay")),
            ((1, 11), Overlay2, Some("docker has overlay2 since 1.12")),
            ((1, 12), Overlay2, None),
            ((28, 0), Btrfs, None),
        ] {
            let found = check_version(driver, version).err();
            assert_eq!(found.as_ref().and_then(Error::broken_rule), expected, "{version:?} {driver:?}");
        }
    }

    #[test]
    fn a_store_that_the_driver_cannot_use_is_refused() {
        use StorageDriver::{Btrfs, Devicemapper, Overlay2};
        let good = StoreSigns { file_types: Some(true), ..StoreSigns::default() };
        for (driver, seen, expected) in [
            (Overlay2, good.clone(), None),
            (Overlay2, StoreSigns { file_types: None, ..StoreSigns::default() }, None),
            (Overlay2, StoreSigns { file_types: Some(false), ..StoreSigns::default() }, Some("do not record file types")),
            (Devicemapper, StoreSigns { file_types: Some(false), ..StoreSigns::default() }, None),
            (Btrfs, good.clone(), Some("is not on btrfs")),
            (Btrfs, StoreSigns { btrfs: true, ..good.clone() }, None),
            (Overlay2, StoreSigns { read_only: true, ..good }, Some("cannot be written")),
        ] {
            let found = check_store(&store(driver, None), &seen, None).err().map(|error| error.to_string());
            assert_eq!(found.is_some(), expected.is_some(), "{driver:?} {seen:?}: {found:?}");
            assert!(found.unwrap_or_default().contains(expected.unwrap_or_default()));
        }
    }

    #[test]
    fn a_change_of_driver_over_data_is_asked_for_or_refused() {
        // drivers with data, our record, DOCKER_STORAGE_CHANGE -> refused?
        for (with_data, last, leaves, refused) in [
            (&[][..], None, None, false),
            (&["btrfs"], None, None, false),
            (&["overlay2"], None, None, true),
            (&["overlay2"], None, Some("overlay2"), false),
            (&["overlay2"], None, Some("aufs"), true),
            // Both have data: the record says which is in use.
            (&["btrfs", "overlay2"], None, None, false),
            (&["btrfs", "overlay2"], Some("btrfs"), None, false),
            (&["btrfs", "overlay2"], Some("overlay2"), None, true),
            // Allowed once: a record that says so lets a stale parameter allow nothing else.
            (&["btrfs", "overlay2"], Some("overlay2"), Some("aufs"), true),
            // The volume with that data is not there any more.
            (&[], Some("overlay2"), None, false),
        ] {
            let with_data = with_data.iter().map(|one| (*one).to_owned()).collect();
            let seen = StoreSigns { btrfs: true, file_types: Some(true), with_data, ..StoreSigns::default() };
            let found = check_store(&store(StorageDriver::Btrfs, leaves), &seen, last);
            assert_eq!(found.is_err(), refused, "{seen:?} {last:?} {leaves:?}: {found:?}");
        }
    }

    #[test]
    fn file_systems_of_the_kernel_are_recognised_by_whole_names() {
        let text = "nodev\tsysfs\nnodev\toverlay\n\text4\n\tbtrfs\n";
        assert!(lists(text, "overlay") && lists(text, "btrfs") && !lists(text, "over") && !lists(text, "nodev"));
    }
}
