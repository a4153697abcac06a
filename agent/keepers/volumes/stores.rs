//! What can be known of a container engine's store before anything is written or stopped: modules, versions, and the store itself
//! where it can be seen.

use std::path::Path;

use super::keeper::{VolumeBackend, VolumeKeeper};
use crate::converge::store::check;
use crate::desired::{ContainerEngine, Content, Desired, GateProbe, StorageDriver, Store, VolumeRole};
use crate::error::{Error, Result};
use crate::files::{READ_LIMIT, Tree};
use crate::storage::driver::{lists, module, no_module};

impl<H: VolumeBackend> VolumeKeeper<H> {
    /// Everything that can be known before the first file is written: modules, versions, and the store where it can be seen.
    ///
    /// # Errors
    /// The refusal, or the bus that is away (transient).
    pub(super) async fn check_stores_early(&self, desired: &Desired) -> Result<()> {
        let (backend, root, probe) = (&self.backend, &*self.root, &self.probe);
        for gate in &desired.gates {
            let GateProbe::Store(store) = &gate.probe else { continue };
            check_machine(store, backend, root).await?;
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
}

async fn check_machine<H: VolumeBackend>(store: &Store, backend: &H, root: &Tree) -> Result<()> {
    let (module, brings) = module(store.driver);
    if let Some(said) = load_module(module, brings, backend, root).await? {
        return Err(no_module(store.driver, &said));
    }
    if store.driver == StorageDriver::Devicemapper {
        let without = |error: Error| error.remedy("install LVM (lvm2, thin-provisioning-tools) in the image");
        backend.run("program-lvm-version", words(&["lvm", "version"])).await.map_err(without)?;
    }
    Ok(())
}

/// Has the kernel load a module, unless that or the file system that it brings is there. Where it cannot: what modprobe said.
///
/// # Errors
/// If the kernel's lists cannot be read or modprobe cannot be run.
pub(super) async fn load_module<H: VolumeBackend>(
    module: &str,
    file_system: Option<&str>,
    backend: &H,
    root: &Tree,
) -> Result<Option<String>> {
    let filesystems = read(root, "/proc/filesystems")?;
    let loaded = format!("/sys/module/{}", module.replace('-', "_"));
    if file_system.is_some_and(|name| lists(&filesystems, name)) || root.facts(Path::new(&loaded))?.is_some() {
        return Ok(None);
    }
    let ran = backend.run("program-modprobe", words(&["modprobe", module])).await?;
    Ok((ran.status != 0).then(|| ran.stderr.trim().to_owned()))
}

fn words(argv: &[&str]) -> Vec<String> {
    argv.iter().map(|word| (*word).to_owned()).collect()
}

fn read(root: &Tree, path: &str) -> Result<String> {
    let bytes = root.read(Path::new(path), READ_LIMIT)?.unwrap_or_default();
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The driver that the engine was last given.
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
