//! A look at a node, whatever came of its last deployment: what the machine says, before anybody decides what follows.

use std::collections::BTreeSet;
use std::rc::Rc;

use super::Node;
use super::backend::MachineBackend;
use super::drift::{self, Cause};
use super::in_place::InPlace;
use super::outline::Outline;
use super::renewal::{self, WaitReason};
use crate::clock::BUILT;
use crate::converge::health::{StoreProblem, problems};
use crate::converge::{self, EtcdMembership as _, have_restarts_wait};
use crate::deploy::{AppliedExtent, Reference};
use crate::desired::{Content, Desired, Volume};
use crate::error::Result;
use crate::keepers::certificates::{self, RotationProgress};
use crate::keepers::volumes::{self, VolumeKeeper, misplaced};
use crate::kubernetes;
use crate::metadata::Deployment;
use crate::storage::probe::Disk;
use crate::systemd::Systemd;

/// What a look at a node in place found.
#[derive(Debug, Default)]
pub(in crate::daemon) struct NodeInspection {
    pub(in crate::daemon) drifted: bool,
    /// Whether all of the node was looked at.
    pub(in crate::daemon) is_whole: bool,
    /// Its certificates, where they were looked at.
    pub(in crate::daemon) certificates: Option<SeenCertificates>,
    /// docker's thin pool, where there is one in use.
    pub(in crate::daemon) thin_pool: Option<volumes::PoolInspection>,
}

/// Certificates of a node in place.
#[derive(Debug)]
pub(in crate::daemon) struct SeenCertificates {
    pub(in crate::daemon) inspection: Rc<certificates::CertificateInspection>,
    /// How far a CA rotation is.
    pub(in crate::daemon) rotation: Option<RotationProgress>,
    /// What a renewal waits for, or what one left.
    pub(in crate::daemon) renewal: Option<WaitReason>,
}

/// What a look at the machine found.
#[derive(Debug)]
pub(in crate::daemon) struct MachineInspection<'a> {
    /// What differs.
    pub(in crate::daemon) found: Vec<Cause>,
    /// Units whose pending restarts ask etcd's members first, on their way or not.
    pub(in crate::daemon) asking: BTreeSet<String>,
    /// Units are on their way: only files were judged.
    pub(in crate::daemon) is_arriving: bool,
    /// Something else is wrong with the node, and was reported.
    pub(in crate::daemon) is_unhealthy: bool,
    /// Certificates are not as they should be.
    pub(in crate::daemon) is_flawed: bool,
    pub(in crate::daemon) certificates: Option<Rc<certificates::CertificateInspection>>,
    pub(in crate::daemon) mounted: Vec<&'a Volume>,
    pub(in crate::daemon) disks: Rc<[Disk]>,
}

impl Node {
    /// Looks after a node, whatever came of its last deployment: compares it with its parameters and looks at its certificates. What
    /// differs is put back, and what is due is renewed, where the node has all that was asked.
    pub(in crate::daemon) async fn inspect(&self, reference: &Reference) -> Result<NodeInspection> {
        self.repair.begins();
        let Some(systemd) = &self.host.systemd else { return Ok(NodeInspection::default()) };
        let generation = reference.generation;
        // A deployment of this life of the agent has left them.
        if self.known.secrets.borrow().is_none()
            && let Some(deployment) = Deployment::parse(&reference.entry).ok().flatten()
        {
            self.set_secrets(&deployment);
        }
        let node = match self.in_place(reference) {
            Ok(node) => node,
            Err(_) if reference.extent == AppliedExtent::Nothing => return Ok(NodeInspection::default()),
            Err(error) => {
                self.report_unaccepted(generation, &error);
                return Ok(NodeInspection { drifted: true, ..NodeInspection::default() });
            }
        };
        let InPlace { spec, desired, .. } = &*node;
        self.known.outline.replace(Some(Outline::of(spec, desired, &self.hostname())));
        if let Some(join) = &desired.etcd_join {
            // A run that failed, or was cut off, may have left a member that got its data later.
            self.http.protect(&self.host.root, join)?;
        }
        self.release(desired, generation).await;
        let drifted = match reference.extent {
            AppliedExtent::Whole => {
                // What is pending is of no update: those make their own.
                let waiting = renewal::asking_units(desired);
                have_restarts_wait(&self.host.root, &waiting)?;
                self.uncordon(desired, generation).await;
                let drifted = self.compare(spec, desired, systemd, generation).await?;
                have_restarts_wait(&self.host.root, &waiting)?;
                drifted
            }
            AppliedExtent::Part => {
                self.leave_cordon_to_others(desired).await?;
                self.compare_part(spec, desired, systemd, generation).await?
            }
            AppliedExtent::Nothing => false,
        };
        let seen = self.inspect_certificates(desired, generation)?;
        let rotation = certificates::CertificateRecord::inspect(&self.host.state).rotation;
        let renewal = match reference.extent {
            AppliedExtent::Whole => self.renewal.waits(),
            AppliedExtent::Part => {
                let unrenewed = seen.as_deref().and_then(|seen| self.report_unrenewed(seen, desired, reference));
                self.renewal.restarts_wait().or(unrenewed)
            }
            AppliedExtent::Nothing => None,
        };
        let certificates = seen.map(|inspection| SeenCertificates { inspection, rotation, renewal });
        let thin_pool = Box::pin(self.inspect_pool(desired, systemd)).await?;
        Ok(NodeInspection { drifted, is_whole: reference.extent == AppliedExtent::Whole, certificates, thin_pool })
    }

    /// How full docker's thin pool is.
    async fn inspect_pool(&self, desired: &Desired, systemd: &Systemd) -> Result<Option<volumes::PoolInspection>> {
        let Some(volume) = desired.volumes.iter().find(|volume| volume.content == Content::ThinPool) else { return Ok(None) };
        let volumes = self.volumes(systemd);
        let disks = self.volume_memory.disks.read(&volumes.probe)?;
        Ok(volumes.inspect_pool(volume, &disks, &self.volume_memory.fills).await)
    }

    /// What differs from the parameters; nothing where a problem of the node, which is reported then, keeps that from being seen.
    pub(super) async fn inspect_machine<'a>(
        &self,
        desired: &'a Desired,
        volumes: &VolumeKeeper<MachineBackend>,
        systemd: &Systemd,
        generation: u64,
    ) -> Result<Option<MachineInspection<'a>>> {
        if self.unsettled.is_first_inspection() {
            // It may have run before anybody said which instance this is, and systemd does not come back to what it refused.
            let refused = systemd.unit(kubernetes::GUARD).await?.is_failed();
            self.unsettled.mark_inspected();
            for unit in desired.units.iter().filter(|unit| refused && unit.enable) {
                // What does not start is found below.
                drop(systemd.start(&unit.name).await);
            }
        }
        // What has lost its disk may be on its way forever, and cannot be read.
        let disks = if desired.volumes.is_empty() { Rc::default() } else { self.volume_memory.disks.read(&volumes.probe)? };
        let mut problems = problems(desired, &self.host.root, &disks);
        problems.retain(|problem| problem.lost().is_none_or(|role| volumes.was_in_place(role)));
        let report = |problems: &[StoreProblem]| {
            for problem in problems {
                self.host.report.emit(problem.event().generation(generation));
            }
        };
        let mut observed = match converge::observe(desired, &self.host.root, systemd).await {
            Err(_) if !problems.is_empty() => {
                report(&problems);
                return Ok(None);
            }
            observed => observed?,
        };
        let unsettled = self.unsettled.inspect(&observed.units, &self.host.clock);
        // Who needs a disk that is really away fails after a minute and a half, systemd's time limit for devices.
        problems.retain(|problem| unsettled.is_some() || !self.unsettled.is_boot() || !problem.awaits_disk(&observed));
        report(&problems);
        let is_arriving = unsettled.is_none() && problems.is_empty();
        let certificates = self.inspect_certificates(desired, generation)?;
        let wrong = certificates.iter().flat_map(|inspection| inspection.to_put_back(desired));
        observed.certificates = wrong.map(certificates::Drift::step).collect();
        let mut found = drift::causes(&converge::plan(desired, &observed), &observed);
        let asking = renewal::asking_restarts(desired, &found);
        let mounted: Vec<_> = desired.volumes.iter().filter(|volume| observed.mounted.contains(&volume.role)).collect();
        // What was put back before is remembered from here on, too.
        let added = self.remembered.added(desired)?;
        if is_arriving {
            // A file says what it says; all else is judged when the units have arrived. They may never, for what the file says.
            found.retain(Cause::is_file);
        } else {
            for volume in misplaced(&volumes.probe, &disks, &mounted)? {
                let text = format!("volume {} is not what is at {}", volume.disk, volume.mount_point);
                found.push(Cause::of_volume(volume.role.as_str(), text));
            }
            found.extend(problems.iter().map(Cause::of_store));
            found.extend(unsettled.unwrap_or_default());
            found.extend(added);
        }
        let is_flawed = !observed.certificates.is_empty();
        Ok(Some(MachineInspection {
            found,
            asking,
            is_arriving,
            is_unhealthy: !problems.is_empty(),
            is_flawed,
            certificates,
            mounted,
            disks,
        }))
    }

    /// `None` while the clock is wrong: nothing can be judged by it.
    fn inspect_certificates(
        &self,
        desired: &Desired,
        generation: u64,
    ) -> Result<Option<Rc<certificates::CertificateInspection>>> {
        let now = self.host.clock.now();
        if now < BUILT || desired.trusted_paths().is_empty() {
            return Ok(None);
        }
        self.certificates.inspect(&self.host.root, &self.host.state, desired, generation, now, &self.host.report).map(Some)
    }
}
