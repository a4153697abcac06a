//! Mounts a volume by its unit, and marks it as ours.

use std::path::Path;

use super::attempt::{AttemptFailure, AttemptResult, Attempts, ReadyDisk, UNIT_LIMIT, failed, refused, transient_stop};
use super::keeper::{VolumeBackend, VolumeKeeper};
use super::place::is_mounted;
use crate::converge::Failure;
use crate::desired::Volume;
use crate::error::{Error, Result};
use crate::files::Attributes;
use crate::storage::interlock::{MarkerEvidence, over_store};
use crate::storage::marker::{FILE, SCHEMA, VolumeMarker};
use crate::storage::mount_unit;
use crate::watch::DeviceNews;

/// There where SELinux is on, enforcing or not.
const SELINUX: &str = "/sys/fs/selinux/enforce";

impl<H: VolumeBackend> VolumeKeeper<H> {
    /// Mounts; what the unit mounts is given back for the record.
    pub(super) async fn mount(&self, volume: &Volume, found: &ReadyDisk, attempts: &Attempts) -> AttemptResult<String> {
        let unit = mount_unit::name(&volume.mount_point);
        let stopped = |error: &Error| {
            let stopped = transient_stop("mount", error);
            AttemptFailure { failure: Box::new(stopped.failure.unit(&unit)), ..stopped }
        };
        let of_file = |error: &Error| Failure { unit: Some(unit.clone()), ..failed("mount", error) };
        let what = mount_unit::source(volume, &found.disk.names, &found.fs_uuid);
        let path = mount_unit::path(&volume.mount_point);
        let text = mount_unit::text(volume, &found.fs_type, &what);
        // Before the unit is there: whatever needs the mount point would start it at the next boot.
        self.wait_for_link(&what, found, attempts).await.map_err(|error| stopped(&error))?;
        let there = self.root.read(Path::new(&path), UNIT_LIMIT).map_err(|error| of_file(&error))?;
        if there.as_deref() != Some(text.as_bytes()) {
            self.root
                .write(Path::new(&path), text.as_bytes(), Attributes { mode: 0o644, owner: None })
                .map_err(|error| of_file(&error))?;
        }
        // Even if nothing was written now: an agent may have been ended between its write and its reload.
        self.backend.reload().await.map_err(|error| stopped(&error))?;
        // All this took its time, in which a store may have come up below or a link been turned.
        if !is_mounted(&self.probe.read_mounts().map_err(|error| stopped(&error))?, volume, &found.disk) {
            let below = self.read_below(volume).await.map_err(|error| stopped(&error))?;
            if let Some(refusal) = over_store(volume, &below) {
                return Err(refused(refusal).into());
            }
            self.wait_for_link(&what, found, attempts).await.map_err(|error| stopped(&error))?;
        }
        self.backend.start(&unit).await.map_err(|error| stopped(&error))?;
        if is_mounted(&self.probe.read_mounts().map_err(|error| stopped(&error))?, volume, &found.disk) {
            return Ok(what);
        }
        self.backend.stop(&unit).await.map_err(|error| stopped(&error))?;
        Err(stopped(&another_disk(&what, found)))
    }

    /// Waits for the link that the mount unit names (udev makes one by UUID only after a mkfs), and requires that it leads
    /// to the disk that was checked.
    pub(super) async fn wait_for_link(&self, what: &str, found: &ReadyDisk, attempts: &Attempts) -> Result<()> {
        let news = DeviceNews::open();
        loop {
            match self.probe.leads_to(what, &found.disk) {
                Some(true) => return Ok(()),
                Some(false) => return Err(another_disk(what, found)),
                None if attempts.left().is_zero() => {
                    return Err(Error::permanent(format!("udev has not created the link {what}"))
                        .remedy("`udevadm trigger; udevadm settle`"));
                }
                None => self.next_inspection(&news, attempts).await,
            }
        }
    }

    /// Writes the marker into the root of the file system, which is mounted at `place`.
    pub(super) fn mark(&self, volume: &Volume, found: &ReadyDisk, place: &str) -> Result<()> {
        let tree = self.root.subtree(Path::new(place))?;
        let mut marker = VolumeMarker {
            schema: SCHEMA,
            cluster: volume.cluster.clone(),
            role: volume.role,
            volume: volume.disk.to_string(),
            fs_uuid: found.fs_uuid.clone(),
            made_at: self.clock.now().rfc3339(),
        };
        if let (MarkerEvidence::Found(there), _) = self.read_marker(place) {
            marker.made_at.clone_from(&there.made_at);
            if there == marker {
                return Ok(());
            }
            marker.made_at = self.clock.now().rfc3339();
        }
        tree.write_json(Path::new(FILE), &marker, Attributes::mode(0o600))
    }

    /// Gives the mount point the label that SELinux' policy has for it: a new file system has none, and what the policy confines may not use it then. What
    /// is made below takes its label from there. Nothing where SELinux is off (magnum-node.md, defect 54).
    pub(super) async fn label(&self, volume: &Volume) -> AttemptResult<()> {
        let is_on = self.root.facts(Path::new(SELINUX)).map_err(|error| transient_stop("label", &error))?.is_some();
        if !is_on {
            return Ok(());
        }
        let marker = format!("{}/{FILE}", volume.mount_point);
        let argv: Vec<_> = ["restorecon", "-F", "--", &volume.mount_point, &marker].map(str::to_owned).into();
        let words = argv.join(" ");
        let key = format!("program-label-{}", volume.role);
        let ran = self.backend.run(&key, argv).await.map_err(|error| transient_stop("label", &error))?;
        if ran.status == 0 {
            return Ok(());
        }
        let error = Error::permanent(format!("`{words}` {}", ran.complaint()))
            .rule("where SELinux is on, a new file system is labelled before anybody uses it")
            .remedy("run that command by hand to see why; the image needs the policy's tools (package policycoreutils)");
        Err(failed("label", &error).into())
    }

    pub(super) fn set_root_owner(&self, volume: &Volume) -> Result<()> {
        let owner = Some(self.backend.ids(&volume.root_owner)?);
        self.root.set_attributes(Path::new(&volume.mount_point), Attributes { mode: volume.root_mode, owner })
    }
}

/// The link leads to a copy of the volume, or to whatever somebody turned it to.
fn another_disk(what: &str, found: &ReadyDisk) -> Error {
    Error::refused(format!("{what} leads to a different disk than {}, one with the same UUID", found.disk.node.display()))
        .remedy(format!("find it with `blkid --match-token UUID={}` and detach the copy of the volume", found.fs_uuid))
}
