//! The node's lane: it is brought up, or else looked at; beside that its network of pods is watched.

use std::rc::Rc;
use std::time::Duration;

use super::lane::Lane;
use super::node_conditions::NodeConditions;
use crate::clock::{Clock, Stopwatch};
use crate::daemon::node::{Done, Look, Node, Plan};
use crate::deploy::{Extent, Reference};
use crate::error::Result;
use crate::metadata::Deployment;
use crate::report::component::ComponentStatus;
use crate::report::status::PodNetworkStatus;

/// The shortest interval at which a node is looked at without a poll that says anything.
const LOOK: Duration = Duration::from_mins(1);

/// What is done with the node, and what is known of it.
pub(in crate::daemon) struct NodeLane {
    pub(in crate::daemon) node: Rc<Node>,
    /// The node that is being brought up, by the deployment's id.
    pub(in crate::daemon) bring_up: Lane<String, Done>,
    /// The node that is being compared with its parameters.
    pub(super) watch: Lane<(), Result<Look>>,
    /// Since the last time that this was due.
    since_look: Stopwatch,
    /// The newest look.
    pub(in crate::daemon) look: Look,
    pub(in crate::daemon) pod_network: PodNetworkLane,
    /// The components of the node in place are measured, for which generation and how much of it.
    pub(super) health: Lane<(u64, Extent), ()>,
    /// The conditions of the node's object in Kubernetes are kept.
    pub(super) conditions: NodeConditions,
}

/// The network of pods of the node in place is watched.
#[derive(Default)]
pub(in crate::daemon) struct PodNetworkLane {
    pub(super) lane: Lane<(), Option<PodNetworkStatus>>,
    /// For which generation.
    of: Option<u64>,
    pub(in crate::daemon) status: Option<PodNetworkStatus>,
}

impl NodeLane {
    pub(super) fn new(node: Node, conditions: NodeConditions, clock: &Clock) -> Self {
        Self {
            node: Rc::new(node),
            bring_up: Lane::default(),
            watch: Lane::default(),
            since_look: clock.start(),
            look: Look::default(),
            pod_network: PodNetworkLane::default(),
            health: Lane::default(),
            conditions,
        }
    }

    /// How the components of the node in place are; nothing while it is brought up.
    pub(in crate::daemon) fn components(&self) -> Vec<ComponentStatus> {
        if self.bring_up.is_busy() { Vec::new() } else { self.node.components() }
    }

    /// Whether the node is brought up or looked at now.
    pub(super) fn is_busy(&self) -> bool {
        self.bring_up.is_busy() || self.watch.is_busy()
    }

    /// Brings the node up as planned, in the place of a look. `since`: how long Heat has been waiting.
    pub(super) fn start(&mut self, deployment: Deployment, plan: Plan, generation: u64, since: Duration) {
        let node = Rc::clone(&self.node);
        self.watch.stop();
        let id = deployment.id.clone();
        self.bring_up.start(id, async move { node.bring_up(deployment, plan, generation, since).await });
    }

    /// Compares a node with its parameters, unless it is at work; cheap when nothing changed.
    pub(super) fn look_after(&mut self, reference: Option<Reference>, clock: &Clock) {
        self.since_look = clock.start();
        let Some(reference) = reference.filter(|_| !self.is_busy()) else { return };
        let node = Rc::clone(&self.node);
        self.watch.start((), async move { node.look(&reference).await });
    }

    /// How long until the node is looked at although no poll brought anything: a boot copy that does not change brings nothing.
    pub(super) fn until_look(&self, polling_interval: Duration) -> Duration {
        let at_most = polling_interval.max(LOOK) * 2;
        if self.is_busy() { at_most } else { at_most.saturating_sub(self.since_look.elapsed()) }
    }

    /// Measures the components of the node, whatever came of the last deployment; not while it is brought up, which has its own gates.
    pub(super) fn watch_components(&mut self, reference: Option<&Reference>) {
        let is_there = |reference: &&Reference| reference.extent != Extent::Nothing && !self.bring_up.is_busy();
        let Some(reference) = reference.filter(is_there) else {
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
        let is_there = |reference: &Reference| reference.extent != Extent::Nothing && !self.bring_up.is_busy();
        let Some(reference) = reference.filter(is_there) else {
            self.pod_network = PodNetworkLane::default();
            return;
        };
        let pods = &mut self.pod_network;
        if pods.of.replace(reference.generation) == Some(reference.generation) {
            return;
        }
        let (node, shown) = (Rc::clone(&self.node), pods.status.clone());
        pods.lane.start((), async move { node.watch_pods(&reference, shown).await });
    }
}

impl PodNetworkLane {
    /// Takes in what was seen.
    pub(super) fn saw(&mut self, seen: Option<PodNetworkStatus>) {
        // Nothing to watch: until there is another generation.
        if seen.is_some() {
            (self.status, self.of) = (seen, None);
        }
    }
}
