//! The store of a container engine: whether kernel, engine and file system have what its driver needs. It is looked at
//! before anything is written or stopped, and, as a gate, once more when its volume is in its place.

use std::path::Path;

use nix::sys::statfs::{BTRFS_SUPER_MAGIC, statfs};
use nix::sys::statvfs::{FsFlags, statvfs};

use super::Failure;
use crate::desired::{ContainerEngine, Content, Desired, Probe as Measurement, StorageDriver, Store, VolumeRole};
use crate::error::{Context, Error, Result};
use crate::files::{READ_LIMIT, Tree};
use crate::keepers::volumes::Hands;
use crate::report::Code;
use crate::storage::driver::{Seen, check_store, lists, module, no_module};
use crate::storage::probe::Probe;

/// Everything that can be known before the first file is written: modules, versions, and the store where it can be seen.
///
/// # Errors
/// The refusal, or the bus that is away (transient).
pub async fn check_early<H: Hands>(desired: &Desired, hands: &H, root: &Tree, probe: &Probe) -> Result<()> {
    for gate in &desired.gates {
        let Measurement::Store(store) = &gate.probe else { continue };
        check_machine(store, hands, root).await?;
        let volume = desired.volumes.iter().find(|volume| volume.role == VolumeRole::Runtime);
        let mounts = probe.read_mounts()?;
        let is_visible = volume.is_none_or(|volume| {
            volume.content == Content::ThinPool || mounts.iter().any(|mount| mount.point == volume.mount_point)
        });
        if is_visible {
            check(root, store, last_driver(root, store).as_deref())?;
        }
    }
    Ok(())
}

async fn check_machine<H: Hands>(store: &Store, hands: &H, root: &Tree) -> Result<()> {
    let (module, brings) = module(store.driver);
    let filesystems = read(root, "/proc/filesystems")?;
    let loaded = format!("/sys/module/{}", module.replace('-', "_"));
    if !brings.is_some_and(|name| lists(&filesystems, name)) && root.facts(Path::new(&loaded))?.is_none() {
        let ran = hands.run("program-modprobe", words(&["modprobe", module])).await?;
        if ran.status != 0 {
            return Err(no_module(store.driver, ran.stderr.trim()));
        }
    }
    if store.driver == StorageDriver::Devicemapper {
        let without = |error: Error| error.remedy("install LVM (lvm2, thin-provisioning-tools) in the image");
        hands.run("program-lvm-version", words(&["lvm", "version"])).await.map_err(without)?;
    }
    Ok(())
}

fn words(argv: &[&str]) -> Vec<String> {
    argv.iter().map(|word| (*word).to_owned()).collect()
}

fn read(root: &Tree, path: &str) -> Result<String> {
    let bytes = root.read(Path::new(path), READ_LIMIT)?.unwrap_or_default();
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The driver that the engine was last told of.
fn last_driver(root: &Tree, store: &Store) -> Option<String> {
    let after = |text: String, key: &str| {
        let (_, rest) = text.split_once(key)?;
        let word = rest.trim_start_matches(|c: char| !c.is_ascii_alphanumeric());
        Some(word.split(|c: char| !c.is_ascii_alphanumeric()).next()?.to_owned())
    };
    let (files, key): (&[&str], &str) = match store.engine {
        ContainerEngine::Docker => (&["/etc/docker/daemon.json", "/etc/sysconfig/docker-storage"], "storage-driver"),
        ContainerEngine::Containerd => (&["/etc/containerd/config.toml"], "snapshotter"),
        ContainerEngine::CriO => (&[], ""),
    };
    files.iter().find_map(|path| after(read(root, path).ok()?, key))
}

/// The failure that a refusal is.
pub(crate) fn unfit(error: &Error) -> Failure {
    Failure::from_error(Code::StoreRefused, "storage", error)
}

/// Whether the store is as its driver needs it. `last`: the driver that was in use before.
///
/// # Errors
/// The refusal.
pub fn check(root: &Tree, store: &Store, last: Option<&str>) -> Result<()> {
    check_store(store, &look(root, store)?, last)
}

/// Looks. A store that is not there yet is judged by the directory that it will be made in.
///
/// # Errors
/// If something of it cannot be read.
fn look(root: &Tree, store: &Store) -> Result<Seen> {
    let mut place = Path::new(&store.path);
    while root.facts(place)?.is_none()
        && let Some(above) = place.parent().filter(|above| above.parent().is_some())
    {
        place = above;
    }
    let path = root.base().join(place.strip_prefix("/").unwrap_or(place));
    let path = path.as_path();
    let doing = || format!("inspecting {}", path.display());
    let kind = statfs(path).context(doing)?.filesystem_type();
    let flags = statvfs(path).context(doing)?.flags();
    Ok(Seen {
        btrfs: kind == BTRFS_SUPER_MAGIC,
        file_types: Some(root.tells_types(place)?),
        read_only: flags.contains(FsFlags::ST_RDONLY),
        with_data: with_data(root, store)?,
    })
}

/// Drivers with layers in the store.
fn with_data(root: &Tree, store: &Store) -> Result<Vec<String>> {
    let list = |path: String| root.list(Path::new(&path));
    let mut found = Vec::new();
    let (folder, prefix, layers) = match store.engine {
        // docker keeps a list of layers for each driver (since 1.10).
        ContainerEngine::Docker => (format!("{}/image", store.path), "", "layerdb/sha256"),
        ContainerEngine::Containerd => (store.path.clone(), "io.containerd.snapshotter.v1.", "snapshots"),
        ContainerEngine::CriO => (format!("{}/storage", store.path), "", "layers"),
    };
    for name in list(folder.clone())? {
        let Some(name) = name.to_str() else { continue };
        let Some(driver) = name.strip_prefix(prefix) else { continue };
        let layers = format!("{folder}/{name}/{layers}");
        if root.facts(Path::new(&layers))?.is_some() && !list(layers)?.is_empty() {
            found.push(driver.to_owned());
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::desired::StorageDriver;
    use crate::files::Attributes;

    #[test]
    fn layers_tell_whose_images_are_there() {
        let dir = tempfile::tempdir().unwrap();
        let tree = Tree::open(dir.path()).unwrap();
        tree.create_dir(Path::new("var"), Attributes::mode(0o755)).unwrap();
        let store = |engine| Store { engine, path: "/var/lib/x".into(), driver: StorageDriver::Overlay2, leaves: None };
        assert_eq!(look(&tree, &store(ContainerEngine::Docker)).unwrap().with_data, [""; 0], "judged by what is above it");
        for path in [
            "var/lib/x/image/overlay2/layerdb/sha256/00",
            "var/lib/x/image/aufs/layerdb/sha256",
            "var/lib/x/io.containerd.snapshotter.v1.btrfs/snapshots/1",
            "var/lib/x/io.containerd.snapshotter.v1.overlayfs",
            "var/lib/x/overlay2/l",
        ] {
            tree.create_dir_all(Path::new(path), Attributes::mode(0o700)).unwrap();
        }
        let docker = look(&tree, &store(ContainerEngine::Docker)).unwrap();
        assert_eq!((docker.with_data, docker.file_types, docker.read_only), (vec!["overlay2".to_owned()], Some(true), false));
        assert_eq!(look(&tree, &store(ContainerEngine::Containerd)).unwrap().with_data, ["btrfs"]);
    }
}
