//! The store of a container engine: whether kernel, engine and file system have what its driver needs. It is looked at
//! before anything is written or stopped, and, as a gate, once more when its volume is in its place.

use std::path::Path;

use nix::sys::statfs::{BTRFS_SUPER_MAGIC, statfs};
use nix::sys::statvfs::{FsFlags, statvfs};

use super::Failure;
use crate::desired::{ContainerEngine, Store};
use crate::error::{Context, Error, Result};
use crate::files::Tree;
use crate::report::Code;
use crate::storage::driver::{StoreSigns, check_store};

/// The failure that a refusal is.
pub(crate) fn unsuitable_store(error: &Error) -> Failure {
    Failure::from_error(Code::StoreRefused, "storage", error)
}

/// Whether the store is as its driver needs it. `last`: the driver that was in use before.
///
/// # Errors
/// The refusal.
pub fn check(root: &Tree, store: &Store, last: Option<&str>) -> Result<()> {
    check_store(store, &inspect(root, store)?, last)
}

/// Looks. A store that is not there yet is judged by the directory that it will be made in.
///
/// # Errors
/// If something of it cannot be read.
fn inspect(root: &Tree, store: &Store) -> Result<StoreSigns> {
    let mut place = Path::new(&store.path);
    while root.facts(place)?.is_none()
        && let Some(above) = place.parent().filter(|above| above.parent().is_some())
    {
        place = above;
    }
    let path = root.on_machine(place);
    let path = path.as_path();
    let doing = || format!("inspecting {}", path.display());
    let kind = statfs(path).context(doing)?.filesystem_type();
    let flags = statvfs(path).context(doing)?.flags();
    Ok(StoreSigns {
        btrfs: kind == BTRFS_SUPER_MAGIC,
        file_types: Some(root.reports_file_types(place)?),
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
    fn layers_show_whose_images_are_there() {
        let dir = tempfile::tempdir().unwrap();
        let tree = Tree::open(dir.path()).unwrap();
        tree.create_dir(Path::new("var"), Attributes::mode(0o755)).unwrap();
        let store = |engine| Store { engine, path: "/var/lib/x".into(), driver: StorageDriver::Overlay2, leaves: None };
        assert_eq!(inspect(&tree, &store(ContainerEngine::Docker)).unwrap().with_data, [""; 0], "judged by what is above it");
        for path in [
            "var/lib/x/image/overlay2/layerdb/sha256/00",
            "var/lib/x/image/aufs/layerdb/sha256",
            "var/lib/x/io.containerd.snapshotter.v1.btrfs/snapshots/1",
            "var/lib/x/io.containerd.snapshotter.v1.overlayfs",
            "var/lib/x/overlay2/l",
        ] {
            tree.create_dir_all(Path::new(path), Attributes::mode(0o700)).unwrap();
        }
        let docker = inspect(&tree, &store(ContainerEngine::Docker)).unwrap();
        assert_eq!((docker.with_data, docker.file_types, docker.read_only), (vec!["overlay2".to_owned()], Some(true), false));
        assert_eq!(inspect(&tree, &store(ContainerEngine::Containerd)).unwrap().with_data, ["btrfs"]);
    }
}
