//! Whether volumes can come into their places at all, before the first file is written: from then on the units of a node that
//! runs assert the mount, and would not start again without it.

use std::path::Path;

use super::attempt::{AttemptResult, Attempts, UNIT_LIMIT, failed, missing, refused, transient_stop};
use super::keeper::{VolumeBackend, VolumeKeeper};
use super::place::{is_mounted, is_pool_active};
use crate::converge::Failure;
use crate::converge::health::carriers;
use crate::desired::{Content, Desired, DiskName, Volume, VolumeRole};
use crate::error::Result;
use crate::error::remedy::Remedy;
use crate::progress::StepId;
use crate::report::{Event, Phase};
use crate::storage::interlock::{FormatDecision, decide};
use crate::storage::marker::{VolumeRecord, VolumeState};
use crate::storage::probe::{Disk, Mount};
use crate::storage::thin_pool;
use crate::watch::DeviceNews;

/// Where stores lie, whatever runtime a node has.
const STORES: [(VolumeRole, &str); 4] = [
    (VolumeRole::Runtime, "/var/lib/docker"),
    (VolumeRole::Runtime, "/var/lib/containerd"),
    (VolumeRole::Runtime, "/var/lib/containers"),
    (VolumeRole::Etcd, "/var/lib/etcd"),
];

impl<H: VolumeBackend> VolumeKeeper<H> {
    /// No store is taken off its volume by parameters that leave the volume out: who serves it would go on from an empty
    /// directory, and Heat, which hears of a success, deletes the volume.
    pub(super) fn refuse_orphaned_store(&self, desired: &Desired) -> std::result::Result<(), Failure> {
        let inspection = || -> Result<Option<(VolumeRole, VolumeRecord, bool)>> {
            for role in [VolumeRole::Runtime, VolumeRole::Etcd] {
                let Some(record) = self.record_of(role)?.filter(|record| record.state == VolumeState::InPlace) else { continue };
                let of_role = || desired.volumes.iter().filter(|volume| volume.role == role);
                if of_role().any(|volume| volume.disk.as_str() == record.volume) {
                    continue;
                }
                let (mounts, disks) = (self.probe.read_mounts()?, self.probe.read_disks()?);
                // What the parameters call by another name is judged by what is on it, as any volume.
                let named: Vec<&Disk> = of_role().flat_map(|volume| carriers(&disks, &volume.disk)).collect();
                let kinds = [DiskName::Cinder, DiskName::Link, DiskName::Label].map(|kind| kind(record.volume.clone()));
                let recorded = kinds.iter().flat_map(|id| carriers(&disks, id));
                for disk in recorded.filter(|disk| named.iter().all(|one| one.number != disk.number)) {
                    let is_store = |mount: &Mount| mount.number == disk.number && STORES.contains(&(role, mount.point.as_str()));
                    let is_pool = role == VolumeRole::Runtime && is_pool_active(&self.probe, disk);
                    if is_pool || mounts.iter().any(is_store) {
                        return Ok(Some((role, record, is_pool)));
                    }
                }
            }
            Ok(None)
        };
        let Some((role, record, is_pool)) = inspection().map_err(|error| failed("inspect", &error))? else { return Ok(()) };
        let by_hand = if is_pool {
            "if its images are not needed: `systemctl stop docker.service docker-thin-pool.service; vgchange --activate n docker`"
        } else {
            "stop the unit, move the data and unmount the volume"
        };
        let found = format!("the {role} store is on volume {}, which the parameters no longer name", record.volume);
        let failure = refused(FormatDecision::Refuse {
            found,
            rule: "a store stays on its volume until it is moved by hand".to_owned(),
            remedy: self.progress.remedy_of_failure(&Remedy::stack_update_or(format!(
                "name the volume in the template again and update the stack; or {by_hand}"
            ))),
        });
        let words = format!("volume {} ({role}): {}", record.volume, failure.cause);
        let event = Event::new(failure.code, words).phase(Phase::Volume).step(failure.doing());
        self.progress.report().emit(event.cause(failure.cause.clone()).remedy(failure.remedy.clone()));
        Err(failure.part_of(StepId::Volume(role)))
    }

    /// Waits for the disk if a unit is running that would not start again without it, and refuses a volume that could otherwise be
    /// refused only after that unit was stopped.
    pub(super) async fn check_place(&self, volume: &Volume, attempts: &mut Attempts, is_deployment: bool) -> AttemptResult<()> {
        let record = self.record(volume).map_err(|error| failed("record", &error))?;
        if let Some(record) = &record
            && self.is_in_place(volume, record).map_err(|error| transient_stop("inspect", &error))?
        {
            return Ok(());
        }
        let news = DeviceNews::open();
        // The units that use it cannot run without it: without the disk an update would stop partway.
        let was_in_place = is_deployment && record.as_ref().is_some_and(|record| record.state == VolumeState::InPlace);
        loop {
            match self.obstacle(volume, record.clone(), was_in_place).await? {
                None => return Ok(()),
                Some(FormatDecision::Wait(reason)) if attempts.left().is_zero() => {
                    return Err(missing(volume, &reason, attempts.deadline, &self.server()).into());
                }
                Some(FormatDecision::Wait(reason)) => {
                    if !attempts.waiting {
                        self.progress.begin_early(&StepId::Volume(volume.role));
                    }
                    self.report_waiting(volume, attempts, reason);
                    self.next_inspection(&news, attempts).await;
                }
                Some(refusal) => return Err(refused(refusal).into()),
            }
        }
    }

    async fn obstacle(
        &self,
        volume: &Volume,
        record: Option<VolumeRecord>,
        was_in_place: bool,
    ) -> AttemptResult<Option<FormatDecision>> {
        if let Some(refusal) = self.in_another_place(volume).map_err(|error| transient_stop("inspect", &error))? {
            return Ok(Some(refusal));
        }
        if !was_in_place && !self.runs_without(volume).await.map_err(|error| transient_stop("inspect", &error))? {
            return Ok(None);
        }
        let (mut evidence, disk) = self.read_evidence(volume, record).await.map_err(|error| transient_stop("inspect", &error))?;
        // What may be gone in seconds is judged when its turn comes.
        if evidence.disk.busy || evidence.disk.unreadable.is_some() {
            return Ok(None);
        }
        let decision = match decide(volume, &evidence) {
            // Nobody looks into a file system here: a mount is a change.
            FormatDecision::Survey(_) => self.judge(volume, disk.as_ref(), &mut evidence).await?,
            decision => decision,
        };
        Ok(Some(decision).filter(|decision| matches!(decision, FormatDecision::Wait(_) | FormatDecision::Refuse { .. })))
    }

    /// The refusal of a volume that is another store, or one in another form.
    fn in_another_place(&self, volume: &Volume) -> Result<Option<FormatDecision>> {
        let (mounts, disks) = (self.probe.read_mounts()?, self.probe.read_disks()?);
        let [disk] = carriers(&disks, &volume.disk)[..] else { return Ok(None) };
        // Of a pool nothing is mounted.
        if volume.content != Content::ThinPool && is_mounted(&mounts, volume, disk) {
            return Ok(None);
        }
        let is_store = |mount: &&Mount| mount.number == disk.number && STORES.iter().any(|(_, place)| *place == mount.point);
        let place = mounts.iter().find(is_store).map(|mount| mount.point.as_str());
        let is_pool = volume.content != Content::ThinPool && is_pool_active(&self.probe, disk);
        Ok(place.or(is_pool.then_some("docker's thin pool")).map(|place| FormatDecision::Refuse {
            found: format!(
                "it is in use as {place}, but the parameters require {} at {}",
                volume.content.kind(),
                volume.mount_point
            ),
            rule: "a volume keeps its mount point and its format; nothing is stopped for a change that is impossible".to_owned(),
            remedy:
                "restore the former CONTAINER_RUNTIME and DOCKER_STORAGE_DRIVER; or unmount this volume by hand and use another"
                    .into(),
        }))
    }

    /// Whether a unit of the node runs that does not ask for the volume yet.
    async fn runs_without(&self, volume: &Volume) -> Result<bool> {
        let asked = match volume.content {
            Content::ThinPool => thin_pool::DEVICE.to_owned(),
            Content::Xfs | Content::Btrfs => format!("AssertPathIsMountPoint={}\n", volume.mount_point),
        };
        for unit in &volume.users {
            let drop_in = format!("/etc/systemd/system/{unit}.d/50-heat-node-agent.conf");
            // Without one it is as the image has it, and nobody knows of a store yet.
            let Some(text) = self.root.read(Path::new(&drop_in), UNIT_LIMIT)? else { continue };
            if !String::from_utf8_lossy(&text).contains(&asked) && self.backend.may_run(unit).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
