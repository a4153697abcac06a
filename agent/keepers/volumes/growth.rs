//! Lets what is on a disk follow it: whoever extends a Cinder volume wants the room.
//!
//! How much of the disk it takes is in the volume's record. Growing cannot be undone, so it is reported before it
//! begins; it can be done twice, so a crash in it costs nothing: the record is written behind it. A growth that fails leaves
//! a volume that works with its old size. So it fails nothing else, and is tried again ever more seldom.

use super::attempt::{AttemptResult, event, failed, transient_stop};
use super::keeper::{VolumeBackend, VolumeKeeper};
use super::place::{is_mounted, is_pool_active};
use crate::converge::Failure;
use crate::converge::health::carriers;
use crate::desired::{Content, Volume};
use crate::error::{Error, Result};
use crate::report::Code;
use crate::storage::marker::{VolumeRecord, VolumeState};
use crate::storage::mkfs;
use crate::storage::probe::{Disk, size};

/// What a file system may leave free at the end of its disk, in bytes: XFS makes no allocation group smaller than this
/// (`mkfs.xfs(8)`, agsize).
const SLACK: u64 = 16 << 20;

impl<H: VolumeBackend> VolumeKeeper<H> {
    /// Grows what lies on a volume, one of the disks, that was extended while it is in use; true if that was necessary. A look
    /// at the record, and at most the mount table, where it was not.
    ///
    /// # Errors
    /// If it cannot be looked at, or the program that grows it fails, or failed and is not to be tried again yet.
    pub async fn grow(&self, volume: &Volume, disks: &[Disk]) -> std::result::Result<bool, Failure> {
        let record = self.record(volume).map_err(|error| failed("grow", &error))?;
        match record {
            Some(record) => self.follow_disk(volume, record, disks).await.map_err(|stopped| *stopped.failure),
            None => Ok(false),
        }
    }

    /// The same for a volume that was brought up just now. One that cannot be grown is in its place all the same.
    pub(super) async fn follow_disk_now(&self, volume: &Volume, record: VolumeRecord) -> bool {
        match self.probe.read_disks() {
            // A failure is reported where it happens, and the looks at the node that follow keep it in mind.
            Ok(disks) => self.follow_disk(volume, record, &disks).await.unwrap_or(false),
            Err(error) => {
                self.report_not_grown(volume, &failed("grow", &error));
                false
            }
        }
    }

    async fn follow_disk(&self, volume: &Volume, record: VolumeRecord, disks: &[Disk]) -> AttemptResult<bool> {
        let Some((disk, size)) = self.outgrown(volume, &record, disks).map_err(|error| transient_stop("grow", &error))? else {
            self.growths.done(volume.role);
            return Ok(false);
        };
        if let Some(failure) = self.growths.held(volume.role, size) {
            return Err(failure.into());
        }
        self.growths.begin(volume.role, size, &self.clock);
        match self.try_grow(volume, record, &disk, size).await {
            Ok(()) => {
                self.growths.done(volume.role);
                Ok(true)
            }
            Err(stopped) => {
                self.growths.fail(volume.role, &stopped.failure, &self.clock);
                self.report_not_grown(volume, &stopped.failure);
                Err(stopped)
            }
        }
    }

    fn report_not_grown(&self, volume: &Volume, failure: &Failure) {
        let message = format!("volume {} cannot be grown to its disk's size: {}", volume.disk, failure.cause);
        let event = event(Code::VolumeNotGrown, volume, message).step("grow");
        self.progress.report().emit(event.cause(failure.cause.clone()).remedy(failure.remedy.clone()));
    }

    async fn try_grow(&self, volume: &Volume, record: VolumeRecord, disk: &Disk, size: u64) -> AttemptResult<()> {
        let started = self.clock.start();
        let growth_event = |code, words: String| event(code, volume, format!("volume {}: {words}", volume.disk)).step("grow");
        let smaller = format!("its disk has {} MiB, the volume only {}: growing it", size >> 20, record.size >> 20);
        self.progress.report().emit(growth_event(Code::VolumeGrowing, smaller));
        let device = disk.node.display().to_string();
        if volume.content == Content::ThinPool {
            self.grow_pool(volume, &device).await?;
        } else {
            // It is about what is in place, which is what was checked.
            let argv = mkfs::growing(&record.fs_type, &volume.mount_point, &device);
            let command = argv.join(" ");
            let ran = self
                .backend
                .run(&format!("program-grow-{}", volume.role), argv)
                .await
                .map_err(|error| transient_stop("grow", &error))?;
            if ran.status != 0 {
                let error = Error::permanent(format!("{command} {}", ran.complaint()));
                return Err(failed("grow", &error.remedy(format!("`{command}`; until then the store keeps its old size"))).into());
            }
        }
        self.write_record(volume, &record.fs_type, &record.fs_uuid, size, VolumeState::InPlace, record.what)?;
        self.progress
            .report()
            .emit(growth_event(Code::VolumeGrown, format!("it has {} MiB now", size >> 20)).duration(started.elapsed()));
        Ok(())
    }

    /// The disk and its size in bytes, if the file system on it is ours, mounted, and smaller.
    fn outgrown(&self, volume: &Volume, record: &VolumeRecord, disks: &[Disk]) -> Result<Option<(Disk, u64)>> {
        if record.state != VolumeState::InPlace || record.cluster != volume.cluster {
            return Ok(None);
        }
        let [disk] = carriers(disks, &volume.disk)[..] else { return Ok(None) };
        let larger = |disk: &Disk| size(disk).filter(|size| size.saturating_sub(record.size) >= SLACK);
        let Some(size) = larger(disk) else { return Ok(None) };
        let in_place = match volume.content {
            Content::ThinPool => is_pool_active(&self.probe, disk),
            Content::Xfs | Content::Btrfs => is_mounted(&self.probe.read_mounts()?, volume, disk),
        };
        Ok(in_place.then(|| (disk.clone(), size)))
    }
}
