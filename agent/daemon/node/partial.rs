//! A node that has only a part of what was asked, because its last update failed on the way: it is looked at like any other, and
//! nothing is put back. That would carry out the update that failed. Only certificates that have expired are renewed: whoever reads them
//! serves nobody any more.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;

use super::Node;
use super::drift::{self, Cause, Subject, UpdateRemains};
use super::renewal::{self, WaitReason};
use crate::converge::pending_restarts;
use crate::daemon::pause::TouchReason;
use crate::deploy::Reference;
use crate::desired::{Dependency, Desired};
use crate::error::Result;
use crate::error::remedy::Remedy;
use crate::files::{Attributes, Tree};
use crate::gather::Gather;
use crate::keepers::certificates::quorum::RenewalLease;
use crate::keepers::certificates::{CertificateInspection, Due, due, first_end};
use crate::kubernetes::NodeSpec;
use crate::report::{Code, Event, Phase};
use crate::systemd::Systemd;

/// What is listed of it.
const LIMIT: usize = 2000;
/// There while expired certificates are renewed: one that is killed behind the first file has units left to restart, and nothing that has
/// expired. Of one generation, which it holds: what another update left undone is none of it. Those restarts ask etcd's members, as every one that a
/// renewal left. Below /run, as the notes of them: a boot starts every unit anew.
const UNFINISHED: &str = "/run/heat-node-agent/expired-renewal";

/// The same node with nothing but its certificates, its files that are as they should be, and its units that read certificates and run, or
/// have failed for want of one: what an update left undone stays undone.
async fn expired_alone(desired: &Desired, found: &[Cause], systemd: &Systemd) -> Result<Desired> {
    let mut alone = renewal::none(renewal::leaving(desired, found));
    let mut units = Vec::new();
    let readers: BTreeSet<&str> = desired.certificate_readers().map(|unit| unit.name.as_str()).gather();
    for unit in std::mem::take(&mut alone.units).into_iter().filter(|unit| readers.contains(unit.name.as_str())) {
        let state = systemd.unit(&unit.name).await?;
        if state.load_state == "loaded" && (state.may_run() || state.is_failed()) {
            units.push(unit);
        }
    }
    let (names, directories) = (units.iter().map(|unit| unit.name.clone()).collect(), &alone.directories);
    let directories: BTreeSet<String> = directories.iter().map(|directory| directory.path.clone()).collect();
    let remains = |need: &Dependency| provides(&names, &directories, need);
    for unit in &mut units {
        unit.needs.retain(remains);
    }
    for directory in &mut alone.directories {
        directory.needs.retain(remains);
    }
    Ok(Desired {
        units,
        volumes: Vec::new(),
        gates: Vec::new(),
        watched: Vec::new(),
        objects: Vec::new(),
        add_ons: Vec::new(),
        flannel: None,
        etcd_join: None,
        ..alone
    })
}

/// What does not run of the reduced plan's units.
fn down(alone: &Desired, found: &[Cause]) -> Vec<Cause> {
    let is_ours = |cause: &&Cause| alone.units.iter().any(|unit| cause.subject == Subject::Unit(unit.name.clone()));
    found.iter().filter(is_ours).filter(|cause| cause.pending_restart().is_none() && !cause.is_foreign()).cloned().collect()
}

/// Whether the reduced plan still provides this dependency.
fn provides(units: &BTreeSet<String>, directories: &BTreeSet<String>, need: &Dependency) -> bool {
    match need {
        Dependency::Certificates => true,
        Dependency::Unit(name) => units.contains(name),
        Dependency::Directory(path) => directories.contains(path),
        Dependency::Volume(_)
        | Dependency::Gate(_)
        | Dependency::Object(_)
        | Dependency::AddOn(_)
        | Dependency::FlannelKey
        | Dependency::EtcdMember => false,
    }
}

/// Whether a renewal of expired certificates was cut off on a node that this generation's update left.
fn is_unfinished(root: &Tree, generation: u64) -> Result<bool> {
    Ok(root.read(Path::new(UNFINISHED), 64)?.is_some_and(|of| of == generation.to_string().as_bytes()))
}

impl Node {
    /// Whether somebody changed the node since its update failed. What the update left undone is reported once.
    pub(super) async fn compare_part(
        &self,
        spec: &NodeSpec,
        desired: &Desired,
        systemd: &Systemd,
        generation: u64,
    ) -> Result<bool> {
        let volumes = self.volumes(systemd);
        let Some(inspection) = self.inspect_machine(desired, &volumes, systemd, generation).await? else { return Ok(true) };
        let (is_whole, is_unhealthy) = (!inspection.is_arriving, inspection.is_unhealthy);
        let seen = inspection.certificates.as_deref();
        let is_expired = seen.is_some_and(|seen| due(seen, desired, self.host.clock.now()) == Due::Expired);
        if is_expired || is_unfinished(&self.host.root, generation)? {
            let alone = expired_alone(desired, &inspection.found, systemd).await?;
            // Who reads what has expired waits for nobody.
            let held = seen.filter(|_| is_expired).map(|seen| renewal::held_beside_expired(&alone, Some(seen)));
            let asking = inspection.asking.into_iter().filter(|unit| held.as_ref().is_none_or(|held| held.contains(unit)));
            let (asking, down) = (asking.gather(), down(&alone, &inspection.found));
            self.renew_expired(spec, &alone, generation, held, (&asking, &down)).await?;
        } else {
            self.renewal.restarts_begin();
        }
        let UpdateRemains { left, news } = self.remembered.separate_remains(generation, inspection.found, is_whole)?;
        let emit = |code, message, causes: &[Cause]| {
            let texts: Vec<&str> = causes.iter().map(|cause| cause.text.as_str()).collect();
            let event = Event::new(code, message).generation(generation).step("drift");
            self.host.report.emit(event.cause(self.host.report.cut(&texts.join(", "), LIMIT)));
        };
        if !left.is_empty() {
            emit(Code::UpdateIncomplete, "the failed update left the node different from its parameters", &left);
        }
        if !news.is_empty() {
            emit(Code::NodeDrift, "the node was changed after its update failed", &news);
        }
        Ok(is_unhealthy || !news.is_empty())
    }

    /// `held`: where a certificate has expired, whose restarts wait for etcd's members; `asking`: of whom one is pending; `down`: what does not run, and is
    /// started even while those wait.
    async fn renew_expired(
        &self,
        spec: &NodeSpec,
        alone: &Desired,
        generation: u64,
        held: Option<BTreeSet<String>>,
        (asking, down): (&BTreeSet<String>, &[Cause]),
    ) -> Result<()> {
        let beside = if asking.is_empty() { drift::digest(&[]) } else { drift::digest(down) };
        let reason = TouchReason { generation, ordered: None, renews: true, drifted: true, beside };
        if self.pause.last_attempt(reason).holds {
            return Ok(());
        }
        let turn = if asking.is_empty() {
            self.renewal.restarts_begin();
            held.as_ref().is_none_or(BTreeSet::is_empty).then_some(RenewalLease::Nothing)
        } else {
            self.ask_for_restarts(alone, generation).await
        };
        let Some(held) = held.or_else(|| turn.as_ref().map(|_| BTreeSet::new())) else {
            self.put_back_rest(spec, alone, reason, down).await;
            return Ok(());
        };
        self.host.root.write(Path::new(UNFINISHED), generation.to_string().as_bytes(), Attributes::mode(0o600))?;
        let is_finished = match turn {
            Some(turn) => self.put_back_in_turn(turn, spec, alone, reason, &[]).await,
            None => {
                self.put_back_holding(&held, spec, alone, reason, down).await
                    && pending_restarts(&self.host.root).is_disjoint(&held)
            }
        };
        if is_finished {
            self.host.root.remove(Path::new(UNFINISHED))?;
        }
        Ok(())
    }

    /// What a renewal that is due waits for, which is reported: the node may run well for months, and would fail at the end of a
    /// certificate.
    pub(super) fn report_unrenewed(
        &self,
        inspection: &CertificateInspection,
        desired: &Desired,
        reference: &Reference,
    ) -> Option<WaitReason> {
        let deployment = reference.entry.get("id").and_then(Value::as_str).unwrap_or_default();
        let now = self.host.clock.now();
        let reason = renewal::awaits_deployment(first_end(inspection, desired, now)?, deployment, now);
        if self.renewal.waits_for(reason.clone())
            && let WaitReason::Deployment { cause, remedy } = &reason
        {
            let event = Event::new(Code::CertificateNearExpiry, "certificates that near their ends are not renewed");
            let event = event.generation(reference.generation).phase(Phase::Certificates).cause(cause);
            self.host.report.emit(event.remedy(Remedy::said(remedy)));
        }
        Some(reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Attack: the mark outlived a good deployment, and the next update that failed had its restarts carried out.
    #[test]
    fn a_renewal_that_was_cut_off_is_of_its_own_generation() {
        let dir = tempfile::tempdir().unwrap();
        let root = Tree::open(dir.path()).unwrap();
        assert_eq!(is_unfinished(&root, 3), Ok(false));
        root.create_dir_all(Path::new("/run/heat-node-agent"), Attributes::mode(0o755)).unwrap();
        root.write(Path::new(UNFINISHED), b"3", Attributes::mode(0o600)).unwrap();
        assert_eq!((is_unfinished(&root, 3), is_unfinished(&root, 4)), (Ok(true), Ok(false)));
    }
}
