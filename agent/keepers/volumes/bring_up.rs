//! Brings one volume into its place, over as many tries as its time allows.

use std::path::Path;
use std::time::Duration;

use super::attempt::{
    AttemptResult, Attempts, FLEETING, ReadyDisk, UNIT_LIMIT, event, failed, is_fleeting, missing, refused, transient_stop,
};
use super::evidence::inspection_point;
use super::format::mkfs_key;
use super::keeper::{POLL, VolumeBackend, VolumeKeeper};
use super::place::is_mounted_from_its_disk;
use crate::converge::{Failure, Volumes};
use crate::desired::{Content, Desired, Volume};
use crate::error::Result;
use crate::progress::StepId;
use crate::report::Code;
use crate::storage::interlock::FormatDecision;
use crate::storage::marker::{VolumeRecord, VolumeState};
use crate::storage::mount_unit;
use crate::watch::DeviceNews;

/// How long a try may go on behind the deadline, so that it reports its own cause: the engine waits for 5 s and knows less.
const LAST_WORDS: Duration = Duration::from_secs(4);

impl<H: VolumeBackend> Volumes for VolumeKeeper<H> {
    async fn check_stores(&self, desired: &Desired) -> Result<()> {
        self.check_stores_early(desired).await
    }

    async fn check_places(&self, desired: &Desired, deadline: Duration, is_deployment: bool) -> std::result::Result<(), Failure> {
        if is_deployment {
            self.refuse_orphaned_store(desired)?;
        }
        let check = |volume| {
            self.carry_out(volume, deadline, async move |attempts: &mut Attempts| {
                self.check_place(volume, attempts, is_deployment).await
            })
        };
        futures_util::future::try_join_all(desired.volumes.iter().map(check)).await.map(drop)
    }

    async fn bring_up(&self, volume: &Volume, deadline: Duration) -> std::result::Result<bool, Failure> {
        self.carry_out(volume, deadline, async |attempts| self.try_bring_up(volume, attempts).await).await
    }
}

impl<H: VolumeBackend> VolumeKeeper<H> {
    /// Tries until it is done, or nothing passes by itself any more; a failure is reported.
    async fn carry_out<T>(
        &self,
        volume: &Volume,
        deadline: Duration,
        attempt: impl AsyncFn(&mut Attempts) -> AttemptResult<T>,
    ) -> std::result::Result<T, Failure> {
        let mut attempts = Attempts { started: self.clock.start(), deadline, found: false, waiting: false };
        let mut outcome = loop {
            match self.clock.limit(attempts.left() + LAST_WORDS, attempt(&mut attempts)).await {
                // systemd or the bus is away for a moment. What was done is on record, and the next try goes on there.
                Some(Err(stopped)) if stopped.is_transient && !attempts.left().is_zero() => {
                    self.report_waiting_for(volume, &mut attempts, stopped.failure.cause, stopped.is_of_systemd);
                    self.clock.wait(POLL.min(attempts.left())).await;
                }
                Some(outcome) => break outcome.map_err(|stopped| *stopped.failure),
                None => break Err(Failure::new(Code::VolumeFailed, "deadline", "not finished at the deadline")),
            }
        };
        if let Err(failure) = &mut outcome {
            self.add_stopped_units(volume, failure).await;
            failure.remedy = self.progress.remedy_of_failure(&failure.remedy);
            let message = format!("volume {} ({}): {}", volume.disk, volume.role, failure.cause);
            let mut event = event(failure.code, volume, message).step(failure.doing()).cause(failure.cause.clone());
            event = event.remedy(failure.remedy.clone());
            self.progress.report().emit(event);
        }
        outcome.map_err(|failure| failure.part_of(StepId::Volume(volume.role)))
    }

    async fn try_bring_up(&self, volume: &Volume, attempts: &mut Attempts) -> AttemptResult<bool> {
        let record = self.record(volume).map_err(|error| failed("record", &error))?;
        match record {
            Some(record) if self.is_in_place(volume, &record).map_err(|error| transient_stop("inspect", &error))? => {
                Ok(self.follow_disk_now(volume, record).await)
            }
            record => {
                let record = self.put_in_place(volume, record, attempts).await?;
                self.follow_disk_now(volume, record).await;
                Ok(true)
            }
        }
    }

    async fn put_in_place(
        &self,
        volume: &Volume,
        record: Option<VolumeRecord>,
        attempts: &mut Attempts,
    ) -> AttemptResult<VolumeRecord> {
        self.clean_up(volume, record.as_ref(), attempts).await?;
        let moves = self.has_data_below(volume).map_err(|error| transient_stop("inspect", &error))?;
        let found = self.ready_disk(volume, record, attempts).await?;
        if volume.content == Content::ThinPool {
            return self.put_pool_in_place(volume, &found, attempts).await;
        }
        if moves {
            self.move_data(volume, &found).await?;
        }
        let what = self.mount(volume, &found, attempts).await?;
        self.mark(volume, &found, &volume.mount_point).map_err(|error| failed("mark", &error))?;
        self.set_root_owner(volume).map_err(|error| failed("mark", &error))?;
        self.label(volume).await?;
        // Before the volume counts as in place: nobody looks at a move after that.
        self.end_move(volume).map_err(|error| failed("move", &error))?;
        let record = self.write_record(volume, &found.fs_type, &found.fs_uuid, found.size, VolumeState::InPlace, Some(what))?;
        let message = format!("volume {} is mounted at {}", volume.disk, volume.mount_point);
        let unit = mount_unit::name(&volume.mount_point);
        self.emit(volume, event(Code::VolumeMounted, volume, message).unit(unit).duration(attempts.started.elapsed()));
        Ok(record)
    }

    /// Waits for the disk of a volume, and formats it where it is blank and may be.
    async fn ready_disk(
        &self,
        volume: &Volume,
        record: Option<VolumeRecord>,
        attempts: &mut Attempts,
    ) -> AttemptResult<ReadyDisk> {
        let news = DeviceNews::open();
        let mut fleeting = None;
        loop {
            let (mut evidence, disk) =
                self.read_evidence(volume, record.clone()).await.map_err(|error| transient_stop("inspect", &error))?;
            if let Some(disk) = disk.as_ref().filter(|_| !attempts.found) {
                attempts.found = true;
                let message = format!("volume {} is {}", volume.disk, disk.node.display());
                self.emit(volume, event(Code::VolumeFound, volume, message).duration(attempts.started.elapsed()));
            }
            let decision = self.judge(volume, disk.as_ref(), &mut evidence).await?;
            if let FormatDecision::Refuse { found, .. } = &decision {
                let since = fleeting.get_or_insert_with(|| self.clock.start()).elapsed();
                if is_fleeting(&evidence, since, attempts) {
                    if since >= FLEETING {
                        self.report_waiting(volume, attempts, found.clone());
                    }
                    self.next_inspection(&news, attempts).await;
                    continue;
                }
            } else {
                fleeting = None;
            }
            match (decision, disk) {
                (FormatDecision::Format { force }, Some(disk)) => return self.format(volume, disk, force, &evidence).await,
                (FormatDecision::Reuse, Some(disk)) => {
                    let one = evidence.disk.signatures.first();
                    let fs_uuid = one.and_then(|one| one.uuid.clone()).unwrap_or_default();
                    let size = one.and_then(|one| one.size).unwrap_or_default();
                    self.emit(volume, event(Code::VolumeReused, volume, format!("volume {} is used as it is", volume.disk)));
                    let fs_type = one.map_or(volume.content.kind(), |one| one.kind).to_owned();
                    return Ok(ReadyDisk { disk, fs_type, fs_uuid, size });
                }
                (refusal @ FormatDecision::Refuse { .. }, _) => return Err(refused(refusal).into()),
                (FormatDecision::Wait(reason), _) => {
                    if attempts.left().is_zero() {
                        return Err(missing(volume, &reason, attempts.deadline, &self.server()).into());
                    }
                    self.report_waiting(volume, attempts, reason);
                    self.next_inspection(&news, attempts).await;
                }
                // A decision about a disk that is gone, or a marker that stayed unread: look again.
                (_, _) if !attempts.left().is_zero() => self.next_inspection(&news, attempts).await,
                (_, _) => return Err(missing(volume, "the disk disappeared again", attempts.deadline, &self.server()).into()),
            }
        }
    }

    /// What an agent left that was ended in the middle: its mkfs or copy, which goes on, and its look into the file system.
    async fn clean_up(&self, volume: &Volume, record: Option<&VolumeRecord>, attempts: &Attempts) -> AttemptResult<()> {
        self.wait_for_pool_jobs(volume, attempts).await?;
        if record.is_some_and(|record| record.state == VolumeState::Formatting) {
            self.wait_for_job(&mkfs_key(volume), "a mkfs", "mkfs", attempts).await?;
        }
        self.clean_up_move(volume, attempts).await?;
        let inspection = mount_unit::name(&inspection_point(volume));
        if self.backend.may_run(&inspection).await.map_err(|error| transient_stop("inspect", &error))? {
            self.backend.stop(&inspection).await.map_err(|error| transient_stop("inspect", &error))?;
        }
        Ok(())
    }

    /// Recorded as ours, mounted from the right disk, its unit as it should be.
    pub(super) fn is_in_place(&self, volume: &Volume, record: &VolumeRecord) -> Result<bool> {
        if record.state != VolumeState::InPlace || record.cluster != volume.cluster {
            return Ok(false);
        }
        let Some(what) = &record.what else { return Ok(false) };
        if volume.content == Content::ThinPool {
            return self.is_pool_in_place(volume, what);
        }
        let text = mount_unit::text(volume, &record.fs_type, what);
        let unit = self.root.read(Path::new(&mount_unit::path(&volume.mount_point)), UNIT_LIMIT)?;
        Ok(unit.as_deref() == Some(text.as_bytes()) && is_mounted_from_its_disk(&self.probe, volume)?)
    }
}
