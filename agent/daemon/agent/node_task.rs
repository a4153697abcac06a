//! The node's task: it is brought up, or else looked at; beside that its network of pods is watched.

use std::rc::Rc;
use std::time::Duration;

use super::etcd_snapshots::EtcdSnapshots;
use super::node_conditions::NodeConditions;
use super::task::BackgroundTask;
use super::token_keys::TokenKeyComparisons;
use crate::clock::{Clock, Stopwatch};
use crate::daemon::node::{Done, Node, NodeInspection, NodePlan};
use crate::deploy::{AppliedExtent, Generation, Reference};
use crate::desired::Desired;
use crate::error::Result;
use crate::metadata::Deployment;
use crate::report::component::ComponentStatus;
use crate::report::status::PodNetworkStatus;

/// The shortest interval at which a node is looked at without a poll that says anything.
const MIN_INSPECTION_INTERVAL: Duration = Duration::from_mins(1);

/// What is done with the node, and what is known of it.
pub(in crate::daemon) struct NodeTask {
    pub(in crate::daemon) node: Rc<Node>,
    /// The node that is being brought up, by the deployment's id.
    pub(in crate::daemon) bring_up: BackgroundTask<String, Done>,
    /// The node that is being compared with its parameters.
    pub(super) inspection_task: BackgroundTask<(), Result<NodeInspection>>,
    /// Since the last time that this was due.
    since_inspection: Stopwatch,
    /// The newest look.
    pub(in crate::daemon) inspection: NodeInspection,
    /// This run of the agent has looked at the node.
    pub(super) is_inspected: bool,
    /// This run of the agent has brought it up, with gates of its own.
    is_brought_up: bool,
    pub(in crate::daemon) pod_network: PodNetworkTask,
    /// The components of the node in place are measured, for which generation and how much of it.
    pub(super) health: BackgroundTask<(u64, AppliedExtent), ()>,
    /// The conditions of the node's object in Kubernetes are kept.
    pub(super) conditions: Box<NodeConditions>,
    /// Snapshots of its etcd are taken.
    pub(in crate::daemon) snapshots: Box<EtcdSnapshots>,
    /// Its keys of service accounts are compared with other masters'.
    pub(in crate::daemon) token_keys: Box<TokenKeyComparisons>,
}

/// The network of pods of the node in place is watched.
#[derive(Default)]
pub(in crate::daemon) struct PodNetworkTask {
    pub(super) task: BackgroundTask<(), Option<PodNetworkStatus>>,
    /// For which generation.
    of: Option<u64>,
    pub(in crate::daemon) status: Option<PodNetworkStatus>,
}

impl NodeTask {
    pub(super) fn new(
        node: Node,
        conditions: NodeConditions,
        snapshots: EtcdSnapshots,
        token_keys: TokenKeyComparisons,
        clock: &Clock,
    ) -> Self {
        Self {
            node: Rc::new(node),
            bring_up: BackgroundTask::default(),
            inspection_task: BackgroundTask::default(),
            since_inspection: clock.start(),
            inspection: NodeInspection::default(),
            is_inspected: false,
            is_brought_up: false,
            pod_network: PodNetworkTask::default(),
            health: BackgroundTask::default(),
            conditions: Box::new(conditions),
            snapshots: Box::new(snapshots),
            token_keys: Box::new(token_keys),
        }
    }

    /// How the components of the node in place are; nothing while it is brought up.
    pub(in crate::daemon) fn components(&self) -> Vec<ComponentStatus> {
        if self.bring_up.is_busy() { Vec::new() } else { self.node.components() }
    }

    /// Whether this run of the agent has neither brought the node up nor ended its first look at it.
    pub(in crate::daemon) fn is_unchecked(&self) -> bool {
        let is_seen = || self.is_inspected && (self.inspection.drifted || self.node.knows_components());
        self.node.is_inspectable() && !self.is_brought_up && !is_seen()
    }

    /// Whether the node is brought up or looked at now.
    pub(super) fn is_busy(&self) -> bool {
        self.bring_up.is_busy() || self.inspection_task.is_busy()
    }

    /// Brings the node up as planned, in the place of a look. `since`: how long Heat has been waiting.
    pub(super) fn start(&mut self, deployment: Deployment, plan: NodePlan, generation: u64, since: Duration) {
        let node = Rc::clone(&self.node);
        self.inspection_task.stop();
        self.is_brought_up = true;
        let id = deployment.id.clone();
        self.bring_up.start(id, async move { node.bring_up(deployment, plan, generation, since).await });
    }

    /// Has the node's member of etcd leave its cluster, in the place of a look.
    pub(super) fn leave(&mut self, deployment: String, asked: Vec<Desired>) {
        let node = Rc::clone(&self.node);
        self.inspection_task.stop();
        self.bring_up.start(deployment, async move { node.leave_etcd(asked).await });
    }

    /// Puts the generation before this one back, in the place of a look.
    pub(super) fn put_back(&mut self, current: Generation) {
        let node = Rc::clone(&self.node);
        self.inspection_task.stop();
        self.bring_up.start(current.deployment.clone(), async move { node.put_generation_back(current).await });
    }

    /// Compares a node with its parameters, unless it is at work; cheap when nothing changed.
    pub(super) fn maintain(&mut self, reference: Option<Reference>, clock: &Clock) {
        self.since_inspection = clock.start();
        let Some(reference) = reference.filter(|_| !self.is_busy()) else { return };
        let node = Rc::clone(&self.node);
        self.inspection_task.start((), async move { node.inspect(&reference).await });
    }

    /// How long until the node is looked at although no poll brought anything: a boot copy that does not change brings nothing.
    pub(super) fn until_inspection(&self, polling_interval: Duration) -> Duration {
        let at_most = self.node.repair_interval().unwrap_or(polling_interval.max(MIN_INSPECTION_INTERVAL) * 2);
        if self.is_busy() { at_most } else { at_most.saturating_sub(self.since_inspection.elapsed()) }
    }

    /// Measures the components of the node, whatever came of the last deployment; not while it is brought up, which has its own gates.
    pub(super) fn watch_components(&mut self, reference: Option<&Reference>) {
        let is_present = |reference: &&Reference| reference.extent != AppliedExtent::Nothing && !self.bring_up.is_busy();
        let Some(reference) = reference.filter(is_present) else {
            self.health.stop();
            return;
        };
        let about = (reference.generation, reference.extent);
        if self.health.about() != Some(&about) {
            let (node, reference) = (Rc::clone(&self.node), reference.clone());
            self.health.start(about, async move { node.watch_components(&reference).await });
        }
    }

    /// Keeps watch on the network of pods, whatever came of the last deployment; not while the node is brought up, when units come
    /// and go.
    pub(super) fn watch_pods(&mut self, reference: Option<Reference>) {
        let is_present = |reference: &Reference| reference.extent != AppliedExtent::Nothing && !self.bring_up.is_busy();
        let Some(reference) = reference.filter(is_present) else {
            self.pod_network = PodNetworkTask::default();
            return;
        };
        let pods = &mut self.pod_network;
        if pods.of.replace(reference.generation) == Some(reference.generation) {
            return;
        }
        let (node, shown) = (Rc::clone(&self.node), pods.status.clone());
        pods.task.start((), async move { node.watch_pods(&reference, shown).await });
    }
}

impl PodNetworkTask {
    /// Takes in what was seen.
    pub(super) fn record(&mut self, seen: Option<PodNetworkStatus>) {
        // Nothing to watch: until there is another generation.
        if seen.is_some() {
            (self.status, self.of) = (seen, None);
        }
    }
}
