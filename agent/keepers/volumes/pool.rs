//! The thin pool on a volume: made by LVM in steps that each can be found done, and activated by a unit at every boot.
//!
//! The disk was labelled for LVM before, in the place of a mkfs; the same record knows it by its UUID. Until the record says
//! "in place" nobody used the pool, so that what an interrupted lvcreate left may be taken away.

use std::path::Path;

use super::attempt::{AttemptResult, Attempts, ReadyDisk, UNIT_LIMIT, event, failed, refused, transient_stop};
use super::keeper::{ProgramOutput, VolumeBackend, VolumeKeeper};
use super::place::{is_mounted_from_its_disk, is_pool_active};
use crate::converge::Failure;
use crate::desired::{Content, Volume};
use crate::error::{Error, Result};
use crate::files::Attributes;
use crate::report::Code;
use crate::storage::interlock::{Evidence, FormatDecision, MarkerEvidence, erase_command};
use crate::storage::marker::{VolumeRecord, VolumeState};
use crate::storage::probe::{Disk, size};
use crate::storage::thin_pool::{self, GROUP, POOL, PhysicalVolume, PoolStep, UNIT, next};

/// Where the unit's file lies.
const UNIT_FILE: &str = "/etc/systemd/system/docker-thin-pool.service";
/// More steps than these are a circle.
const STEPS: usize = 8;

impl<H: VolumeBackend> VolumeKeeper<H> {
    pub(super) fn is_pool_in_place(&self, volume: &Volume, what: &str) -> Result<bool> {
        let text = thin_pool::unit_text(volume, what);
        let there = self.root.read(Path::new(UNIT_FILE), UNIT_LIMIT)?;
        Ok(there.as_deref() == Some(text.as_bytes()) && is_mounted_from_its_disk(&self.probe, volume)?)
    }

    /// LVM's own call of an agent that was ended goes on; it is waited for, as a mkfs is.
    pub(super) async fn wait_for_pool_jobs(&self, volume: &Volume, attempts: &Attempts) -> AttemptResult<()> {
        if volume.content != Content::ThinPool {
            return Ok(());
        }
        self.wait_for_job(&key(volume), "an LVM command", "pool", attempts).await
    }

    /// The marker of a volume group is in its tags.
    pub(super) async fn read_tags(&self, volume: &Volume, disk: &Disk, evidence: &Evidence) -> AttemptResult<MarkerEvidence> {
        let uuid = evidence.disk.signatures.first().and_then(|one| one.uuid.clone()).unwrap_or_default();
        let ran = self.lvm(volume, thin_pool::ask_member(&disk.node.display().to_string())).await?;
        if ran.status != 0 {
            return Ok(MarkerEvidence::Unreadable(format!("LVM {}", complaint(&ran))));
        }
        let member = thin_pool::member(&ran.stdout);
        Ok(thin_pool::marker(&member.tags, &uuid).map_or(MarkerEvidence::Absent, MarkerEvidence::Found))
    }

    pub(super) async fn put_pool_in_place(
        &self,
        volume: &Volume,
        found: &ReadyDisk,
        attempts: &Attempts,
    ) -> AttemptResult<VolumeRecord> {
        let member = self.make_pool(volume, found).await?;
        let what = thin_pool::source(volume, &found.disk.names, &found.fs_uuid);
        let text = thin_pool::unit_text(volume, &what);
        // The unit waits for the link at every boot.
        self.wait_for_link(&what, found, attempts).await.map_err(|error| transient_stop("pool", &error))?;
        let of_file = |error: &Error| Failure { unit: Some(UNIT.to_owned()), ..failed("pool", error) };
        if self.root.read(Path::new(UNIT_FILE), UNIT_LIMIT).map_err(|error| of_file(&error))?.as_deref() != Some(text.as_bytes())
        {
            let attributes = Attributes { mode: 0o644, owner: None };
            self.root.write(Path::new(UNIT_FILE), text.as_bytes(), attributes).map_err(|error| of_file(&error))?;
        }
        self.backend.reload().await.map_err(|error| transient_stop("pool", &error))?;
        self.backend.start(UNIT).await.map_err(|error| transient_stop("pool", &error))?;
        if !is_pool_active(&self.probe, &found.disk) {
            let error = Error::refused(format!("{POOL} is not on {}: it is on another disk", found.disk.node.display()))
                .remedy(format!("find it with `lvs -o +devices {GROUP}` and detach the copy of the volume"));
            return Err(failed("pool", &error).into());
        }
        // LVM's word on it, not the disk's: a pool that was found may lie on a disk that was extended since.
        let record = self.write_record(volume, &found.fs_type, &found.fs_uuid, member.size, VolumeState::InPlace, Some(what))?;
        let message = format!("volume {} holds the thin pool {POOL}", volume.disk);
        self.emit(volume, event(Code::VolumeMounted, volume, message).unit(UNIT).duration(attempts.started.elapsed()));
        Ok(record)
    }

    /// Lets the pool follow its disk, which is at `device`.
    pub(super) async fn grow_pool(&self, volume: &Volume, device: &str) -> AttemptResult<()> {
        let of_growth = |error: &Error| transient_stop("grow", error);
        // One that an earlier agent started would be taken for the answer to the first question.
        self.backend.wait_stopped(&key(volume)).await.map_err(|error| of_growth(&error))?;
        self.ask_member(volume, device).await?;
        self.ask(volume, thin_pool::resize_member(device)).await?;
        let answer = self.ask(volume, thin_pool::ask_sizes()).await?;
        let unclear = || of_growth(&Error::permanent(format!("LVM does not report the sizes of {POOL}: {}", answer.trim())));
        for argv in thin_pool::growing(&thin_pool::sizes(&answer).ok_or_else(unclear)?, device) {
            self.ask(volume, argv).await?;
        }
        Ok(())
    }

    /// What LVM says of the disk. Every step asks anew: that another disk brings a group of the same name is refused before
    /// anything is done to either.
    async fn ask_member(&self, volume: &Volume, device: &str) -> AttemptResult<PhysicalVolume> {
        let member = thin_pool::member(&self.ask(volume, thin_pool::ask_member(device)).await?);
        let groups = self.ask(volume, thin_pool::ask_groups()).await?;
        match thin_pool::namesake(&member, device, &groups) {
            None => Ok(member),
            Some((found, remedy)) => {
                let rule = "LVM finds a volume group by its name, so the name must be unique".to_owned();
                Err(refused(FormatDecision::Refuse { found, rule, remedy: remedy.into() }).into())
            }
        }
    }

    /// Group and pool, each made if it is not there; what LVM says of the disk then.
    async fn make_pool(&self, volume: &Volume, found: &ReadyDisk) -> AttemptResult<PhysicalVolume> {
        let device = found.disk.node.display().to_string();
        let record = self.record(volume).map_err(|error| failed("record", &error))?;
        let unfinished = record.is_some_and(|record| record.state == VolumeState::Formatted && record.fs_uuid == found.fs_uuid);
        for _ in 0..STEPS {
            let member = self.ask_member(volume, &device).await?;
            let volumes = match &member.group {
                Some(group) if group == GROUP => thin_pool::volumes(&self.ask(volume, thin_pool::ask_volumes()).await?),
                _ => Vec::new(),
            };
            let argv = match next(&member, &volumes, unfinished) {
                PoolStep::MakeGroup => thin_pool::make_group(volume, &device),
                PoolStep::Clear => thin_pool::clear(&member.uuid),
                PoolStep::MakePool => thin_pool::make_pool(size(&found.disk).unwrap_or(0), &device),
                PoolStep::Activate => return Ok(member),
                PoolStep::Refuse(found) => {
                    let rule = format!("docker's pool is {POOL}, which has its volume to itself");
                    let remedy = format!("check `lvs {GROUP}`; to discard what is there: {}", erase_command(volume, &device));
                    return Err(refused(FormatDecision::Refuse { found, rule, remedy: remedy.into() }).into());
                }
            };
            self.ask(volume, argv).await?;
        }
        let error = Error::permanent(format!("LVM reported success {STEPS} times, but {POOL} does not exist"));
        Err(failed("pool", &error).into())
    }

    /// The answer of a call of LVM that must succeed.
    async fn ask(&self, volume: &Volume, argv: Vec<String>) -> AttemptResult<String> {
        let words = argv.join(" ");
        let ran = self.lvm(volume, argv).await?;
        if ran.status == 0 {
            return Ok(ran.stdout);
        }
        let error = Error::permanent(format!("`{words}` {}", complaint(&ran)));
        Err(failed("pool", &error.remedy("`pvs; vgs; lvs -a` show how far it got; the next attempt continues from there")).into())
    }

    async fn lvm(&self, volume: &Volume, argv: Vec<String>) -> AttemptResult<ProgramOutput> {
        self.backend.run(&key(volume), argv).await.map_err(|error| transient_stop("pool", &error))
    }
}

/// How a call of LVM that failed ended.
pub(super) fn complaint(ran: &ProgramOutput) -> String {
    // LVM warns before it complains.
    let words = ran.stderr.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or("it printed nothing");
    format!("{}: {words}", ran.end())
}

/// The same for every call about a volume, so that the next agent finds one that still runs.
fn key(volume: &Volume) -> String {
    format!("program-lvm-{}", volume.role)
}

#[cfg(test)]
#[path = "pool_tests.rs"]
mod tests;
