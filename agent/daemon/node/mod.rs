//! The node's own task: from a kubernetes-node deployment to its result and its wait condition's signal (`bring_up.rs`), and looks
//! at the node in place (`inspection.rs`, `compare.rs`, `pods.rs`, `monitor.rs`).
//!
//! In: a deployment, or what the last generation asked for. Out: what became of it. Never: a deployment's record or a
//! signal, which are the ledger's. What is remembered from one look to the next is
//! in types of its own, each with its rules; this file says which.

mod backend;
mod bring_up;
mod compare;
pub(super) mod deadline;
mod decision;
mod draining;
mod drift;
mod drift_memory;
mod findings;
mod health;
mod in_place;
mod inspection;
mod leave;
mod machine;
mod monitor;
mod once;
mod outline;
mod partial;
mod plan;
mod pods;
mod put_back;
mod renewal;
mod repair;
mod rollback;
mod taints;
mod unsettled;
mod upgrade;
mod wait;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::Notify;

use self::backend::MachineBackend;
pub(super) use self::bring_up::Done;
use self::drift_memory::Remembered;
use self::findings::FindingHistory;
use self::health::{ComponentHealth, HealthEvent};
pub(super) use self::in_place::spec_of;
use self::in_place::{InPlace, Rendered};
pub(super) use self::inspection::NodeInspection;
use self::machine::KnownMachine;
pub(super) use self::once::has_changed;
pub(super) use self::outline::Outline;
pub(crate) use self::plan::{NodePlan, understand};
pub(super) use self::put_back::check as check_rollback;
pub(crate) use self::put_back::{
    Preview as RollbackPreview, parts_not_taken_back, preview as preview_rollback, refuse_early as refuse_rollback,
};
use self::renewal::Renewal;
pub(super) use self::renewal::WaitReason;
pub(crate) use self::repair::NodeUnits;
use self::repair::OrderedRepair;
pub(crate) use self::repair::{asked as asked_of_node, in_place, preview as preview_repair, units as units_of_node};
use self::unsettled::UnsettledUnits;
pub(crate) use self::upgrade::foretold;
pub(super) use self::wait::Wait;
pub(crate) use self::wait::wait_id;
use super::host::Host;
use super::masking::KnownSecrets;
use super::pause::RetryPause;
use crate::deploy::{Generations, Reference};
use crate::error::{Error, Result};
use crate::files::Tree;
use crate::http::Http;
use crate::keepers::certificates;
use crate::keepers::volumes::{GrowthRetries, PoolUsageCache, VolumeKeeper};
use crate::kubernetes::{self, MachineFacts};
use crate::metadata::Deployment;
use crate::openstack::keystone::Keystone;
use crate::programs::Programs;
use crate::progress::Progress;
use crate::storage::probe::{DiskProbe, KnownDisks};
use crate::systemd::Systemd;

/// What the task works with.
#[derive(Debug)]
pub(super) struct Node {
    host: Rc<Host>,
    http: Rc<Http>,
    keystone: Keystone,
    programs: Rc<Programs>,
    /// How far bringing the node up is.
    progress: Progress,
    known: KnownState,
    certificates: certificates::Watcher,
    unsettled: UnsettledUnits,
    pause: RetryPause,
    renewal: Renewal,
    repair: OrderedRepair,
    remembered: Remembered,
    volume_memory: VolumeMemory,
    /// What was found of the network of pods.
    pods: RefCell<FindingHistory>,
    monitor: HealthMonitor,
}

/// What is known of the node and its machine.
#[derive(Debug, Default)]
struct KnownState {
    /// Secrets of the deployment that the node is brought up from, once one was seen.
    secrets: RefCell<Option<Vec<String>>>,
    machine: KnownMachine,
    /// What the node in place was asked to be.
    rendered: Rendered,
    /// Who the node is and what it consists of, once a deployment or a look said so.
    outline: RefCell<Option<Outline>>,
    /// Why a failed update is being rolled back, while it is.
    going_back: RefCell<Option<String>>,
    /// What differed from the parameters at the newest look.
    differences: RefCell<Vec<drift::Cause>>,
    /// Whether a deployment that was deleted has failed, because its cluster would have lost the quorum with this node's member of etcd.
    was_deletion_refused: Cell<bool>,
}

/// What is remembered of volumes from one look to the next.
#[derive(Debug, Default)]
struct VolumeMemory {
    growths: Rc<GrowthRetries>,
    disks: KnownDisks,
    /// How full docker's thin pool is.
    fills: PoolUsageCache,
}

/// How the node's components are, who waits for a change of it, and whether they are being touched now.
#[derive(Debug, Default)]
struct HealthMonitor {
    health: RefCell<ComponentHealth>,
    /// What could not be reported yet.
    unreported: RefCell<Vec<HealthEvent>>,
    news: Notify,
    is_converging: Cell<bool>,
}

impl Node {
    pub(super) fn new(host: Rc<Host>, http: Rc<Http>, keystone: Keystone, programs: Rc<Programs>, progress: Progress) -> Self {
        Self {
            remembered: Remembered::new(Rc::clone(&host)),
            host,
            http,
            keystone,
            programs,
            progress,
            known: KnownState::default(),
            certificates: certificates::Watcher::default(),
            unsettled: UnsettledUnits::default(),
            pause: RetryPause::default(),
            renewal: Renewal::default(),
            repair: OrderedRepair::default(),
            volume_memory: VolumeMemory::default(),
            pods: RefCell::default(),
            monitor: HealthMonitor::default(),
        }
    }

    /// What the machine is.
    pub(super) fn facts(&self) -> MachineFacts {
        self.known.machine.facts(&self.host.root)
    }

    /// What the node in place was asked to be, on the machine as it is now.
    ///
    /// # Errors
    /// If this version of the agent does not accept its parameters, or the machine cannot be made such a node.
    fn in_place(&self, reference: &Reference) -> Result<Rc<InPlace>> {
        self.known.rendered.get(&reference.entry, self.facts())
    }

    /// What differed from the parameters at the newest look, first what has a remedy of its own: it may be why others are there.
    pub(super) fn differences(&self) -> Vec<drift::Cause> {
        let (mut first, rest): (Vec<_>, Vec<_>) =
            self.known.differences.borrow().iter().cloned().partition(|cause| cause.remedy.is_some());
        first.extend(rest);
        first
    }

    /// What to do first about what differed, where that is not to put it back.
    pub(super) fn difference_remedy(&self) -> Option<String> {
        self.known.differences.borrow().iter().find_map(|cause| cause.remedy.clone())
    }

    /// Who the node is and what it consists of.
    pub(super) fn outline(&self) -> Option<Outline> {
        self.known.outline.borrow().clone()
    }

    /// The secrets of this deployment and of those that may be on the node with it: nothing that the agent or a program says shows them.
    fn set_secrets(&self, deployment: &Deployment) {
        let (mut values, mut secrets) = (Vec::new(), Vec::new());
        for deployment in [deployment.clone()].into_iter().chain(recorded(&self.host.state)) {
            let parameters = kubernetes::readable_parameters(&deployment);
            values.extend(parameters.secret_values());
            secrets.extend(parameters.secrets());
        }
        secrets.sort_unstable();
        secrets.dedup();
        self.host.report.hide(&own_secrets(&values));
        self.known.secrets.replace(Some(secrets));
    }

    /// The next look puts back what differs, for an order of the operator; whether that is a new order.
    pub(super) fn order_repair(&self) -> bool {
        self.repair.order(&self.host.clock)
    }

    /// Nobody waits for such an order any more.
    pub(super) fn cancel_repair(&self) {
        self.repair.cancel();
    }

    /// How soon the node is to be looked at for such an order.
    pub(super) fn repair_interval(&self) -> Option<Duration> {
        self.repair.interval()
    }

    /// What became of such an order, once a look has ended.
    pub(super) fn repaired(&self, inspection: Option<&Error>) -> Option<Result<Vec<String>>> {
        self.repair.ends(inspection)
    }

    fn backend(&self, systemd: &Systemd) -> MachineBackend {
        MachineBackend {
            systemd: systemd.clone(),
            programs: Rc::clone(&self.programs),
            root: Arc::clone(&self.host.root),
            secrets: self.known.secrets.borrow().clone().unwrap_or_default(),
        }
    }

    fn volumes(&self, systemd: &Systemd) -> VolumeKeeper<MachineBackend> {
        VolumeKeeper {
            backend: self.backend(systemd),
            probe: DiskProbe::machine(),
            root: Arc::clone(&self.host.root),
            state: Arc::clone(&self.host.state),
            clock: self.host.clock.clone(),
            progress: self.progress.clone(),
            growths: Rc::clone(&self.volume_memory.growths),
        }
    }

    fn hostname(&self) -> String {
        outline::hostname(&self.host.root)
    }
}

/// The deployments of the newest generation and of the one that was in place before it. Until the newest is in place, services of the old
/// one may run with its secrets.
fn recorded(state: &Tree) -> impl Iterator<Item = Deployment> {
    let generation = Generations::inspect(state);
    let entries = generation.into_iter().flat_map(|one| [Some(one.entry), one.before.map(|before| before.entry)]);
    entries.flatten().filter_map(|entry| Deployment::parse(&entry).ok().flatten())
}

/// Values that are secret, and what is secret within those that are JSON: of a handle's map the password, not the address of Keystone.
fn own_secrets(values: &[String]) -> Vec<String> {
    let mut known = KnownSecrets::default();
    for value in values {
        known.extend([value.clone()]);
        known.learn(&Value::String(value.clone()));
    }
    known.all().unwrap_or_else(|| values.to_vec())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::clock::Clock;
    use crate::deploy::GenerationState;
    use crate::report::Report;

    #[test]
    fn until_a_generation_is_in_place_the_secrets_of_the_one_before_it_are_known_too() {
        let dir = tempfile::tempdir().unwrap();
        let state = Arc::new(Tree::open(dir.path()).unwrap());
        let mut generations = Generations::open(Arc::clone(&state), Clock::system(), &Report::kept()).unwrap();
        let recorded = || recorded(&state).map(|one| one.id).collect::<Vec<_>>();
        assert!(recorded().is_empty());
        let mut begin = |id: &str| {
            generations.begin(id, id, json!({"id": id, "group": "kubernetes-node", "config": {}})).unwrap();
            let after_begin = recorded();
            generations.end(GenerationState::Applied, None, Vec::new()).unwrap();
            (after_begin, recorded())
        };
        let ids = |ids: &[&str]| ids.iter().map(|&id| id.to_owned()).collect::<Vec<_>>();
        assert_eq!(begin("a"), (ids(&["a"]), ids(&["a"])));
        assert_eq!(begin("b"), (ids(&["b", "a"]), ids(&["b"])));
    }

    #[test]
    fn of_a_handle_the_password_is_a_secret_and_the_address_of_keystone_is_none() {
        let handle =
            r#"{"auth_url": "http://keystone:5000/v3", "password": "s3cret-pass", "alarm_url": "http://h/a?Signature=s3g"}"#;
        let all = own_secrets(&[handle.to_owned(), "plain-secret".to_owned()]);
        for (text, is_secret) in [
            ("s3cret-pass", true),
            ("plain-secret", true),
            ("http://h/a?Signature=s3g", true),
            ("http://keystone:5000/v3", false),
        ] {
            assert_eq!(all.iter().any(|one| one == text), is_secret, "{text} in {all:?}");
        }
    }
}
