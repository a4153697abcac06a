//! Reads what the decision about a volume needs: its disk, what lies below its mount point, the marker in it. Writes nothing; for the
//! marker it mounts the file system read-only for a moment.

use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::task::JoinHandle;

use super::attempt::{AttemptResult, event, transient_stop};
use super::keeper::{VolumeBackend, VolumeKeeper};
use super::place::find;
use crate::budgets::json;
use crate::desired::{Content, DiskName, Volume};
use crate::error::{Error, ErrorKind, Result};
use crate::files::Tree;
use crate::report::Code;
use crate::storage::identity::CUT;
use crate::storage::interlock::{
    DiskEvidence, Evidence, FormatDecision, MarkerEvidence, MemberEvidence, MountPointContent, decide,
};
use crate::storage::marker::{FILE, SCHEMA, VolumeMarker, VolumeRecord};
use crate::storage::probe::{Disk, DiskProbe, describe};
use crate::storage::survey::{SurveyProgress, SurveyTarget};
use crate::storage::{mkfs, mount_unit};

/// How long a disk may take to be read at both ends, or in a survey to answer at all.
const READ_LIMIT: Duration = Duration::from_mins(1);

/// How many threads may read one disk at a time. A thread whose disk does not answer cannot be ended, and the unit's 64 threads (TasksMax)
/// are also needed to resolve names. Two, so that a disk that takes the place of one that does not answer is read as well.
const THREADS_OF_A_DISK: usize = 2;

/// The nodes of the disks that threads of this process are at, each as often as there are threads.
static AT_WORK: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Lets a thread read a disk, until the thread ends.
struct ThreadPermit(String);

impl ThreadPermit {
    /// `None` if no more threads may go there.
    fn at(node: &str) -> Option<Self> {
        let mut nodes = AT_WORK.lock().unwrap_or_else(PoisonError::into_inner);
        if nodes.iter().filter(|one| *one == node).count() >= THREADS_OF_A_DISK {
            return None;
        }
        nodes.push(node.to_owned());
        Some(Self(node.to_owned()))
    }
}

impl Drop for ThreadPermit {
    fn drop(&mut self) {
        let mut nodes = AT_WORK.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = nodes.iter().position(|one| *one == self.0) {
            nodes.swap_remove(at);
        }
    }
}

/// Largest marker that is read, in bytes.
const MARKER_LIMIT: u64 = 64 * 1024;

impl<H: VolumeBackend> VolumeKeeper<H> {
    pub(super) async fn read_evidence(&self, volume: &Volume, record: Option<VolumeRecord>) -> Result<(Evidence, Option<Disk>)> {
        let (matches, disk) = find(&self.probe, volume)?;
        let mut evidence = Evidence { matches, record, ..Evidence::default() };
        let Some(disk) = disk else {
            evidence.present = describe(&self.probe.read_disks()?, self.probe.has_udev());
            return Ok((evidence, None));
        };
        let serial = match &volume.disk {
            DiskName::Cinder(id) => id.get(..CUT).unwrap_or(id),
            name => name.as_str(),
        };
        evidence.disk = self.read_disk(&disk, serial).await?;
        // Data that is moved is no obstacle; nothing is stopped before the disk is there and may be used.
        if !evidence.disk.mounts.contains(&volume.mount_point) && !self.has_data_below(volume)? {
            evidence.below = self.read_below(volume).await?;
        }
        Ok((evidence, Some(disk)))
    }

    pub(super) async fn read_disk(&self, disk: &Disk, serial: &str) -> Result<DiskEvidence> {
        let serial = serial.to_owned();
        self.run_blocking(disk, move |probe, disk| probe.read_evidence(disk, &serial)).await
    }

    /// Off the loop and bounded in time and in threads: a disk whose storage is gone may never answer.
    pub(super) async fn run_blocking<T: Send + 'static>(
        &self,
        disk: &Disk,
        work: impl FnOnce(&DiskProbe, &Disk) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let node = disk.node.display().to_string();
        let working = self.spawn(&node, disk, work)?;
        self.clock.limit(READ_LIMIT, working).await.ok_or_else(|| silent(&node))?.map_err(Error::transient)?
    }

    /// Starts a thread that reads the disk at `node`, if one more may.
    fn spawn<T: Send + 'static>(
        &self,
        node: &str,
        disk: &Disk,
        work: impl FnOnce(&DiskProbe, &Disk) -> T + Send + 'static,
    ) -> Result<JoinHandle<T>> {
        let permit = ThreadPermit::at(node).ok_or_else(|| silent(node))?;
        let (probe, disk) = (self.probe.clone(), disk.clone());
        Ok(tokio::task::spawn_blocking(move || {
            let _permit = permit;
            work(&probe, &disk)
        }))
    }

    /// What the interlock says of a volume, after whatever else it wants to know.
    pub(super) async fn judge(
        &self,
        volume: &Volume,
        disk: Option<&Disk>,
        evidence: &mut Evidence,
    ) -> AttemptResult<FormatDecision> {
        let mut decision = decide(volume, evidence);
        if let (FormatDecision::ReadMarker, Some(disk)) = (&decision, disk) {
            self.inspect_inside(volume, disk, evidence).await?;
            decision = decide(volume, evidence);
        }
        if let (FormatDecision::Survey(wanted), Some(disk)) = (&decision, disk) {
            self.survey(volume, disk, wanted, evidence).await.map_err(|error| transient_stop("inspect", &error))?;
            decision = decide(volume, evidence);
        }
        Ok(decision)
    }

    /// Reads the disk in depth. That may take minutes; what counts as silent is a disk that does not answer one question.
    async fn survey(&self, volume: &Volume, disk: &Disk, wanted: &SurveyTarget, evidence: &mut Evidence) -> Result<()> {
        let node = disk.node.display().to_string();
        let (watch, progress, wanted) = (self.clock.start(), SurveyProgress::default(), wanted.clone());
        let (started, shared) = (watch.clone(), progress.clone());
        let mut working = self.spawn(&node, disk, move |probe, disk| probe.survey(disk, &wanted, &watch, &shared))?;
        let mut before = 0;
        let surveyed = loop {
            match self.clock.limit(READ_LIMIT, &mut working).await {
                Some(ended) => break ended.map_err(Error::transient)?,
                None if progress.places() == before => return Err(silent(&node)),
                None => before = progress.places(),
            }
        };
        match surveyed {
            Ok(survey) => {
                let outcome = if survey.found.is_none() { "all zeros" } else { "not blank" };
                let message = format!("{node} was scanned for volume {}: {}, {outcome}", volume.disk, survey.summary());
                self.progress
                    .report()
                    .emit(event(Code::VolumeSurveyed, volume, message).step("inspect").duration(started.elapsed()).detail());
                evidence.survey = Some(survey);
            }
            Err(error) => evidence.disk.unreadable = Some(error.to_string()),
        }
        Ok(())
    }

    pub(super) async fn read_below(&self, volume: &Volume) -> Result<MountPointContent> {
        if let Some(other) = self.probe.read_mounts()?.into_iter().find(|mount| mount.point == volume.mount_point) {
            return Ok(MountPointContent::OtherMount(other.source));
        }
        for unit in &volume.users {
            if self.backend.may_run(unit).await? {
                return Ok(MountPointContent::Running(unit.clone()));
            }
        }
        Ok(if self.root.list(Path::new(&volume.mount_point))?.is_empty() {
            MountPointContent::Empty
        } else {
            MountPointContent::Store
        })
    }

    /// Reads the marker, where the file system is mounted or by a mount that changes no byte of it.
    pub(super) async fn inspect_inside(&self, volume: &Volume, disk: &Disk, evidence: &mut Evidence) -> AttemptResult<()> {
        if evidence.disk.mounts.contains(&volume.mount_point) {
            (evidence.marker, evidence.etcd_member) = self.read_marker(&volume.mount_point);
            return Ok(());
        }
        if volume.content == Content::ThinPool {
            evidence.marker = self.read_tags(volume, disk, evidence).await?;
            return Ok(());
        }
        let fs_type = evidence.disk.signatures.first().map_or(volume.content.kind(), |one| one.kind);
        let place = inspection_point(volume);
        let device = disk.node.display().to_string();
        for options in mkfs::inspection_mount_options(fs_type) {
            let options = format!("ro,nosuid,nodev,noexec,{options}");
            match self.backend.mount(&device, &place, fs_type, &options).await {
                Ok(()) => {
                    (evidence.marker, evidence.etcd_member) = self.read_marker(&place);
                    return self.backend.stop(&mount_unit::name(&place)).await.map_err(|error| transient_stop("inspect", &error));
                }
                Err(error) if error.kind() == ErrorKind::Transient => return Err(transient_stop("inspect", &error)),
                Err(error) => evidence.marker = MarkerEvidence::Unreadable(error.to_string()),
            }
        }
        Ok(())
    }

    pub(super) fn read_marker(&self, place: &str) -> (MarkerEvidence, MemberEvidence) {
        let unreadable = |error: Error| MarkerEvidence::Damaged(format!("its marker cannot be read: {error}"));
        let tree = match self.root.subtree(Path::new(place)) {
            Ok(tree) => tree,
            Err(error) => return (unreadable(error), MemberEvidence::Unknown),
        };
        let marker = match tree.read(Path::new(FILE), MARKER_LIMIT) {
            Err(error) => unreadable(error),
            Ok(None) => MarkerEvidence::Absent,
            Ok(Some(bytes)) => match json::typed::<VolumeMarker>(&bytes) {
                Ok(marker) if marker.schema == SCHEMA => MarkerEvidence::Found(marker),
                Ok(marker) => MarkerEvidence::Damaged(format!("its marker has the unknown schema {}", marker.schema)),
                Err(rejection) => MarkerEvidence::Damaged(format!("its marker is damaged: {}", Error::from(rejection))),
            },
        };
        (marker, read_member(&tree))
    }
}

/// A member counts, whatever else cannot be read.
fn read_member(tree: &Tree) -> MemberEvidence {
    let mut found = MemberEvidence::Absent;
    for (name, path) in [("default.etcd", "default.etcd/member"), ("default", "default/member"), ("member", "member")] {
        match tree.facts(Path::new(path)) {
            Ok(Some(_)) => return MemberEvidence::In(name),
            Ok(None) => {}
            Err(_) => found = MemberEvidence::Unknown,
        }
    }
    found
}

fn silent(node: &str) -> Error {
    Error::transient(format!("{node} does not answer within {} s", READ_LIMIT.as_secs()))
}

/// Where a file system is mounted to be looked into.
pub(super) fn inspection_point(volume: &Volume) -> String {
    format!("/run/heat-node-agent/inspect/{}", volume.role)
}
