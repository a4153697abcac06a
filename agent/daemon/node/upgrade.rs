//! What an update that brings another release of Kubernetes or etcd does beside others: a snapshot of etcd before its first change, and
//! restarts one after another; and what any update does before its first change.

use std::collections::BTreeSet;
use std::time::Duration;

use super::draining;
use super::in_place::InPlace;
use super::once::{SAVED, is_marked, mark};
use super::{Node, spec_of};
use crate::converge::Failure;
use crate::converge::gates::passes;
use crate::deploy::{GenerationState, Generations};
use crate::desired::{Desired, EtcdMember, Gate, VolumeRole};
use crate::error::{Error, Result};
use crate::files::Tree;
use crate::keepers::etcd_snapshots::{DIRECTORY, JOB, Snapshot, SnapshotKeeper, Tools};
use crate::kubernetes::checks::upgrade::UPGRADE_ORDER;
use crate::kubernetes::spec::cluster::ClusterSpec;
use crate::kubernetes::{API_SERVER_UNIT, ETCD_UNIT, MachineFacts, NodeSpec};
use crate::machine::replaced_programs;
use crate::progress::StepId;
use crate::report::{Code, Event, Phase};
use crate::systemd::Systemd;

const STEP: &str = "etcd snapshot";
/// How long a snapshot of an etcd that is not healthy may take.
const DOWN_LIMIT: Duration = Duration::from_secs(30);

/// What an update takes a snapshot of first.
struct Saved {
    member: EtcdMember,
    /// Whether etcd answers.
    gates: Vec<Gate>,
}

impl Saved {
    /// Nothing where neither Kubernetes' minor nor a program changes that writes what etcd keeps, or where the snapshot would have no place.
    fn of(before: &InPlace, after: &NodeSpec, replaced: &BTreeSet<String>) -> Option<Self> {
        let is_upgrade =
            before.spec.minor() != after.minor() || [ETCD_UNIT, API_SERVER_UNIT].iter().any(|unit| replaced.contains(*unit));
        let desired = &before.desired;
        let has_volume = desired.volumes.iter().any(|volume| volume.role == VolumeRole::Etcd);
        let member = desired.etcd.clone().filter(|member| is_upgrade && has_volume && !member.keeps_v2)?;
        let gates = desired.gates.iter().filter(|gate| gate.unit.as_deref() == Some(ETCD_UNIT)).cloned().collect();
        Some(Self { member, gates })
    }
}

/// What an update to this does before its first change, as `plan` says it.
pub(crate) fn foretold(
    state: &Tree,
    snapshots: bool,
    after: &NodeSpec,
    (replaced, restart): (&BTreeSet<String>, &[String]),
    facts: &MachineFacts,
) -> Vec<String> {
    let before = Generations::inspect(state).and_then(|current| match current.state {
        GenerationState::Applied => Some(current.entry),
        _ => current.before.map(|before| before.entry),
    });
    let Some(before) = before.and_then(|entry| InPlace::new(&entry, facts.clone()).ok()) else { return Vec::new() };
    let saved = Saved::of(&before, after, replaced).filter(|_| snapshots);
    let snapshot = saved.map(|_| {
        format!("first a snapshot of etcd is taken into {DIRECTORY}; if that fails while etcd is healthy, nothing is changed")
    });
    let drain = draining::reason(&before.spec, after, restart).map(|why| format!("the node is drained first, as {why}"));
    snapshot.into_iter().chain(drain).collect()
}

/// What is said of the snapshot; refuses the update where there is none of an etcd that was healthy.
fn judge(taken: Result<Vec<Snapshot>>, trouble: Option<String>) -> std::result::Result<Event, Failure> {
    match (taken, trouble) {
        (Ok(all), _) => {
            let name = all.last().map(Snapshot::name).unwrap_or_default();
            let line = format!("took snapshot {name} of etcd before the update; {} are kept", all.len());
            Ok(Event::new(Code::EtcdSnapshotTaken, line))
        }
        (Err(error), Some(trouble)) => {
            let line = "no snapshot of etcd could be taken before the update, which goes on: etcd was not healthy";
            Ok(Event::new(Code::EtcdSnapshotFailed, line).error(&error).cause(format!("{trouble}; {error}")))
        }
        (Err(error), None) => Err(Failure::from_error(Code::UpgradeSnapshotFailed, STEP, &error)),
    }
}

/// What an update restarts otherwise than its files have it.
#[derive(Default)]
pub(super) struct Upgrade {
    /// Units whose program was replaced on disk.
    pub(super) replaced: BTreeSet<String>,
    /// In which order units are restarted.
    pub(super) order: &'static [&'static [&'static str]],
}

impl Node {
    /// Finds out what an update restarts beside what its files have it restart, takes a snapshot of etcd and drains the node where
    /// that is to come first.
    pub(super) async fn prepare_upgrade(
        &self,
        (spec, desired): (&NodeSpec, &Desired),
        systemd: &Systemd,
        generation: u64,
        deadline: Duration,
    ) -> std::result::Result<Upgrade, Failure> {
        // A bus that is away for a moment is waited for where that matters.
        let replaced = self.units_with_replaced_programs(desired, systemd).await.unwrap_or_default();
        let current = Generations::inspect(&self.host.state).filter(|current| current.number == generation);
        let before = current.and_then(|current| current.before);
        if let Some(before) = before.and_then(|before| InPlace::new(&before.entry, self.facts()).ok()) {
            if let Some(saved) = Saved::of(&before, spec, &replaced).filter(|_| self.host.settings.snapshot_interval.is_some()) {
                self.save_etcd(&saved, generation, deadline / 2).await?;
            }
            self.drain_first(&before, (spec, desired), systemd, &replaced, (generation, deadline)).await;
        }
        Ok(Upgrade { order: self.restart_order(spec, &replaced, generation), replaced })
    }

    /// Takes a snapshot of etcd before the first change of an update that may leave no other way back; once for an update, wherever it is gone
    /// on with.
    async fn save_etcd(&self, saved: &Saved, generation: u64, limit: Duration) -> std::result::Result<(), Failure> {
        let (state, report) = (&self.host.state, &self.host.report);
        let unrecorded = |error: Error| Failure::from_error(Code::NodeFailed, STEP, &error);
        if is_marked(state, SAVED, generation, report).map_err(unrecorded)? {
            return Ok(());
        }
        let step = self.progress.begin_next(STEP);
        let keeper = SnapshotKeeper {
            root: &self.host.root,
            tools: Tools { programs: &self.programs, key: JOB },
            clock: &self.host.clock,
            own: &saved.member,
        };
        // One without a quorum can be saved, too; for one that is down etcdctl waits.
        let trouble = self.trouble(&saved.gates).await;
        let limit = if trouble.is_some() { limit.min(DOWN_LIMIT) } else { limit };
        let late =
            || Error::transient(format!("it was not taken within {} s", limit.as_secs())).remedy("check `journalctl -u etcd`");
        let taken = self.host.clock.limit(limit, keeper.take_in_turn(self.host.settings.snapshots_kept)).await;
        let taken = taken.unwrap_or_else(|| Err(late()));
        let judged = judge(taken, trouble).and_then(|event| mark(state, SAVED, generation).map(|()| event).map_err(unrecorded));
        let event = judged.map_err(|failure| self.refused(&step, failure, generation))?;
        report.emit(event.phase(Phase::Units).step(STEP).generation(generation));
        self.progress.end(&step);
        Ok(())
    }

    /// Why etcd is not healthy.
    async fn trouble(&self, gates: &[Gate]) -> Option<String> {
        for gate in gates {
            if let Err(bad) = passes(&self.host.root, &*self.http, &self.host.clock, gate).await {
                return Some(bad.cause);
            }
        }
        None
    }

    /// Reports a failure before the first change.
    fn refused(&self, step: &StepId, failure: Failure, generation: u64) -> Failure {
        let remedy = self.progress.remedy_of_failure(&failure.remedy);
        let failure = failure.remedy(remedy);
        self.progress.fail(step, &failure.step, &failure.cause, &failure.remedy);
        self.host.report.emit(failure.event().generation(generation));
        failure
    }

    /// The units that run a program which was replaced since they were started: nothing else of an upgrade within a release may have changed.
    async fn units_with_replaced_programs(&self, desired: &Desired, systemd: &Systemd) -> Result<BTreeSet<String>> {
        let units = systemd.units(desired.units.iter().map(|unit| &unit.name)).await?;
        let processes = replaced_programs::processes(&units);
        if processes.is_empty() {
            return Ok(BTreeSet::new());
        }
        let running = self.backend(systemd).running_files(&processes).await;
        Ok(replaced_programs::replaced(&self.host.root, &units, &running))
    }

    /// In which order an update restarts units: where it brings another release of Kubernetes, its components one after another.
    fn restart_order(&self, spec: &NodeSpec, replaced: &BTreeSet<String>, generation: u64) -> &'static [&'static [&'static str]] {
        let is_another = |before: ClusterSpec| spec.minor() != Some(before.minor);
        let is_upgrade = self.cluster_before(generation).is_some_and(is_another);
        if is_upgrade || !replaced.is_empty() { &UPGRADE_ORDER } else { &[] }
    }

    /// The cluster as the generation before this one asked for it.
    pub(super) fn cluster_before(&self, generation: u64) -> Option<ClusterSpec> {
        self.spec_before(generation)?.kubernetes
    }

    /// The node as it asked for it.
    pub(super) fn spec_before(&self, generation: u64) -> Option<NodeSpec> {
        let current = Generations::inspect(&self.host.state).filter(|current| current.number == generation);
        let before = current.and_then(|current| current.before).filter(|before| before.number != generation);
        spec_of(&before?.entry).ok()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;
    use crate::clock::{Clock, Timestamp};
    use crate::report::Report;

    /// A master with an etcd volume.
    pub(in crate::daemon::node) fn entry(tag: &str, more: &[(&str, &str)]) -> Value {
        let volume = "8c2b6d4e-5a8f-4c43-9d6a-1f6f4c1c2a11";
        let mut config = json!({"KUBE_NODE_IP": "192.0.2.5", "INSTANCE_NAME": "m1", "KUBE_TAG": tag, "CLUSTER_UUID": volume,
            "CERTIFICATES": "given", "CA_CERTIFICATE": "/ca.crt", "CA_KEY": "/ca.key", "CONTAINER_RUNTIME": "containerd",
            "KEYSTONE_AUTH_ENABLED": "false", "ETCD_VOLUME": volume});
        config.as_object_mut().unwrap().extend(more.iter().map(|(name, value)| ((*name).to_owned(), json!(value))));
        json!({"id": tag, "group": "kubernetes-node", "config": config})
    }

    #[test]
    fn a_snapshot_comes_before_another_minor_or_another_program_that_writes_to_etcd() {
        let joins = [("CERTIFICATES", "bootstrap"), ("BOOTSTRAP_TOKEN", "abcdef.0123456789abcdef"), ("CA_KEY", "")];
        let worker = [&joins[..], &[("ROLE", "minion"), ("KUBE_MASTER_IP", "192.0.2.1"), ("ETCD_VOLUME", "")]].concat();
        for (before, after, replaced, expected) in [
            (entry("v1.28.9", &[]), "v1.29.3", vec![], true),
            (entry("v1.28.9", &[]), "v1.27.3", vec![], true),
            (entry("v1.28.9", &[]), "v1.28.12", vec![], false),
            (entry("v1.28.9", &[]), "v1.28.9", vec!["etcd.service"], true),
            (entry("v1.28.9", &[]), "v1.28.9", vec!["kube-apiserver.service"], true),
            (entry("v1.28.9", &[]), "v1.28.9", vec!["kubelet.service", "containerd.service"], false),
            (entry("v1.28.9", &[("ETCD_VOLUME", "")]), "v1.29.3", vec!["etcd.service"], false),
            (entry("v1.28.9", &worker), "v1.29.3", vec!["etcd.service"], false),
        ] {
            let replaced = replaced.iter().map(|unit: &&str| (*unit).to_owned()).collect();
            let asked = spec_of(&entry(after, &[])).unwrap();
            let in_place = InPlace::new(&Arc::new(before.clone()), MachineFacts::default()).unwrap();
            let saved = Saved::of(&in_place, &asked, &replaced);
            assert_eq!(saved.as_ref().map(|saved| saved.gates.len()), expected.then_some(1), "{before} to {after}, {replaced:?}");
        }
    }

    #[test]
    fn plan_compares_with_what_is_in_place() {
        let dir = tempfile::tempdir().unwrap();
        let state = || Tree::open(dir.path()).unwrap();
        let foretold = |tag: &str| {
            let asked = spec_of(&entry(tag, &[])).unwrap();
            let all = foretold(&state(), true, &asked, (&BTreeSet::new(), &[]), &MachineFacts::default());
            assert!(foretold(&state(), false, &asked, (&BTreeSet::new(), &[]), &MachineFacts::default()).is_empty());
            !all.is_empty()
        };
        assert!(!foretold("v1.28.9"), "nothing was ever in place");
        let mut generations = Generations::open(Arc::new(state()), Clock::system(), &Report::kept()).unwrap();
        let mut ended = |tag: &str, how| {
            generations.begin(tag, tag, entry(tag, &[])).unwrap();
            generations.end(how, None, Vec::new()).unwrap();
        };
        ended("v1.28.9", GenerationState::Applied);
        assert_eq!(["v1.28.9", "v1.29.3"].map(foretold), [false, true]);
        ended("v1.29.3", GenerationState::Rejected);
        assert_eq!(["v1.28.9", "v1.29.3"].map(foretold), [false, true], "it is the step from the one before that counts");
    }

    #[test]
    fn an_update_goes_on_without_a_snapshot_only_where_etcd_was_not_healthy() {
        let full = || Error::transient("no space").remedy("extend the volume");
        let taken = Snapshot { taken: Timestamp(1_772_366_400_000), revision: 5, bytes: 9 };
        assert_eq!(judge(Ok(vec![taken]), None).unwrap().code, Code::EtcdSnapshotTaken);
        let refused = judge(Err(full()), None).unwrap_err();
        assert_eq!((refused.code, refused.cause.as_str()), (Code::UpgradeSnapshotFailed, "no space"));
        assert_eq!(refused.remedy.as_str(), "extend the volume");
        let warning = judge(Err(full()), Some("connection refused".to_owned())).unwrap();
        assert_eq!(warning.code, Code::EtcdSnapshotFailed);
    }
}
