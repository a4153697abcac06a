//! Makes the file system, or the label for LVM, on a volume that the interlock allows it on.

use ring::rand::{SecureRandom, SystemRandom};

use super::attempt::{AttemptFailure, AttemptResult, ReadyDisk, event, failed, transient_stop};
use super::keeper::{VolumeBackend, VolumeKeeper};
use super::record::record_path;
use super::stores::load_module;
use crate::converge::Failure;
use crate::desired::{Content, Volume};
use crate::error::{Error, Result};
use crate::report::Code;
use crate::storage::interlock::{DiskEvidence, Evidence, FormatDecision, decide, erase_command};
use crate::storage::marker::VolumeState;
use crate::storage::mkfs;
use crate::storage::probe::{Disk, DiskProbe};

impl<H: VolumeBackend> VolumeKeeper<H> {
    pub(super) async fn format(
        &self,
        volume: &Volume,
        disk: Disk,
        force: bool,
        decided_on: &Evidence,
    ) -> AttemptResult<ReadyDisk> {
        let device = disk.node.display().to_string();
        let started = self.clock.start();
        // mkfs gets a kernel name: while the disk is held open, that name is given to no other one. What was decided
        // on is looked at again behind it.
        let hold = self.run_blocking(&disk, DiskProbe::hold).await.map_err(|error| transient_stop("inspect", &error))?;
        let record = decided_on.record.as_ref();
        let (mut before, again) =
            self.read_evidence(volume, record.cloned()).await.map_err(|error| transient_stop("inspect", &error))?;
        if before.disk == decided_on.disk {
            // The same bytes at both ends: what was seen inside holds.
            (before.marker, before.etcd_member) = (decided_on.marker.clone(), decided_on.etcd_member);
            before.survey.clone_from(&decided_on.survey);
        }
        let same = again.is_some_and(|again| again.number == disk.number && again.node == disk.node);
        if !same || decide(volume, &before) != (FormatDecision::Format { force }) {
            return Err(transient_stop("inspect", &Error::transient(format!("{device} changed while it was being inspected"))));
        }
        let fs_uuid = match record.filter(|_| force) {
            Some(record) => record.fs_uuid.clone(),
            None => mkfs::uuid_on_disk(volume.content, &random_uuid().map_err(|error| transient_stop("mkfs", &error))?),
        };
        let kind = volume.content.kind();
        self.check_kernel(volume).await?;
        self.write_record(volume, kind, &fs_uuid, 0, VolumeState::Formatting, None)?;
        let mut message = format!("formatting {device} for volume {}", volume.disk);
        let holds_data = !before.disk.blank || before.survey.as_ref().is_some_and(|survey| survey.found.is_some());
        if holds_data && !force {
            message.push_str(&format!(", discarding what is on it: {} allows it, this once", volume.format_parameter));
        }
        self.progress.report().emit(event(Code::VolumeFormatting, volume, message).step("mkfs"));
        let argv = mkfs::argv(volume, &fs_uuid, &device, force);
        let program = argv.first().cloned().unwrap_or_default();
        let ran = self.backend.run(&mkfs_key(volume), argv).await.map_err(|error| transient_stop("mkfs", &error))?;
        if ran.status != 0 {
            let words = format!("{program} {device} {}", ran.complaint());
            if ran.was_ended() {
                // It may have come to nothing yet, and has refused nothing. The next try goes on from the record.
                return Err(failed("mkfs", &Error::permanent(words)).into());
            }
            return Err(self.mkfs_failed(volume, &disk, force, &before.disk, &words).await);
        }
        // What counts is on the disk, not what mkfs says.
        let evidence = self.read_disk(&disk, "").await.map_err(|error| transient_stop("mkfs", &error))?;
        drop(hold);
        let size = match evidence.signatures.as_slice() {
            [one] if one.kind == kind && one.uuid.as_deref() == Some(fs_uuid.as_str()) => one.size.unwrap_or_default(),
            _ => {
                let error = Error::permanent(format!(
                    "{device} does not contain what {program} should have created: {kind} with UUID {fs_uuid}"
                ));
                return Err(failed("mkfs", &error).into());
            }
        };
        self.write_record(volume, kind, &fs_uuid, size, VolumeState::Formatted, None)?;
        let message = format!("{device} was formatted for volume {}", volume.disk);
        self.progress.report().emit(event(Code::VolumeFormatted, volume, message).step("mkfs").duration(started.elapsed()));
        Ok(ReadyDisk { disk, fs_type: kind.to_owned(), fs_uuid, size })
    }

    /// A file system that the kernel cannot mount is not made: whoever then changed the image would find a volume in use.
    async fn check_kernel(&self, volume: &Volume) -> AttemptResult<()> {
        if volume.content == Content::ThinPool {
            return Ok(());
        }
        let kind = volume.content.kind();
        let said =
            load_module(kind, Some(kind), &self.backend, &self.root).await.map_err(|error| transient_stop("mkfs", &error))?;
        let Some(said) = said else { return Ok(()) };
        let error = Error::permanent(format!("the kernel has no {kind}, and the volume was not formatted: {said}"));
        Err(failed("mkfs", &error.remedy(format!("`modprobe {kind}` shows why; use an image whose kernel has {kind}"))).into())
    }

    /// A mkfs that wrote nothing refused the disk: it sees something that we do not know, and nothing of ours is on it.
    pub(super) async fn mkfs_failed(
        &self,
        volume: &Volume,
        disk: &Disk,
        force: bool,
        before: &DiskEvidence,
        words: &str,
    ) -> AttemptFailure {
        let device = disk.node.display();
        let error = Error::permanent(words);
        let is_untouched = |after: &DiskEvidence| after.digest.is_some() && after.digest == before.digest;
        if force || !self.read_disk(disk, "").await.is_ok_and(|after| is_untouched(&after)) {
            return failed("mkfs", &error).into();
        }
        if let Err(error) = self.state.remove(&record_path(volume)) {
            return Failure { code: Code::StateWriteFailed, ..failed("record", &error) }.into();
        }
        Failure::from_error(Code::VolumeRefused, "mkfs", &error)
            .rule("a device that mkfs itself refuses is never formatted")
            .remedy(format!(
                "`wipefs {device}` shows what is on it; to destroy its data: {}",
                erase_command(volume, &device.to_string())
            ))
            .into()
    }
}

/// The same for every mkfs of a volume, so that the next agent finds one that still runs.
pub(super) fn mkfs_key(volume: &Volume) -> String {
    format!("program-mkfs-{}", volume.role)
}

/// A version 4 UUID (RFC 9562).
pub(super) fn random_uuid() -> Result<String> {
    let mut bytes = [0_u8; 16];
    SystemRandom::new().fill(&mut bytes).map_err(|_| Error::transient("the kernel provides no random bytes"))?;
    let number = u128::from_be_bytes(bytes) & !(0xf << 76) & !(0b11 << 62) | 0x4 << 76 | 0b10 << 62;
    let digits = format!("{number:032x}");
    let parts = [0..8, 8..12, 12..16, 16..20, 20..32].map(|range| digits.get(range).unwrap_or_default());
    Ok(parts.join("-"))
}
