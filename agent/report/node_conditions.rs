//! The status as conditions of the node's own object in Kubernetes, as node-problem-detector writes them. Pure.
//!
//! A condition is True where there is a problem. Types have a prefix of their own: node-problem-detector, the kubelet and cloud controllers
//! write conditions of the same node. What nothing is known of is left out, and stays in the API as it is.
//!
//! Whoever may read nodes reads the messages: they name what there is a problem with, and quote no output of programs.

use super::component::{ComponentState, ComponentStatus};
use super::condition_state::ConditionState;
use super::status::{NodeState, NodeStatus, StatusDocument};
use super::text::{escaped, shortened};

/// Most characters of a message: conditions are read in a table.
const MESSAGE: usize = 500;
/// So many tries in vain count: one that fails is no news.
const TRIES: u32 = 3;

/// A condition, before it is known since when it is so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeCondition {
    /// Its type: `HeatNodeComponentProblem`.
    pub kind: &'static str,
    /// Whether there is a problem.
    pub is_problem: bool,
    /// One word in `CamelCase`.
    pub reason: &'static str,
    /// For people, in one line.
    pub message: String,
}

/// A type, and its reason and message where there is no problem.
struct ConditionType {
    name: &'static str,
    fine: &'static str,
    text: &'static str,
}

const COMPONENTS: ConditionType = ConditionType {
    name: "HeatNodeComponentProblem",
    fine: "ComponentsAreHealthy",
    text: "every component of the node is healthy",
};
const DRIFT: ConditionType =
    ConditionType { name: "HeatNodeDriftProblem", fine: "NodeMatchesParameters", text: "the node is as its parameters say" };
const CERTIFICATES: ConditionType = ConditionType {
    name: "HeatNodeCertificateProblem",
    fine: "CertificatesAreCurrent",
    text: "no certificate is near its end, and no CA rotation waits",
};
const VOLUMES: ConditionType =
    ConditionType { name: "HeatNodeVolumeProblem", fine: "VolumesAreInPlace", text: "every volume of the node is in place" };
const POD_NETWORK: ConditionType = ConditionType {
    name: "HeatNodePodNetworkProblem",
    fine: "PodNetworkIsCorrect",
    text: "the routes to the pods of other nodes are correct",
};
const DEPLOYMENTS: ConditionType = ConditionType {
    name: "HeatNodeDeploymentProblem",
    fine: "DeploymentsSucceeded",
    text: "no deployment of this server has failed",
};
const HEAT: ConditionType =
    ConditionType { name: "HeatNodeOrchestrationProblem", fine: "HeatIsReachable", text: "Heat answers, and no signal waits" };
const AGENT: ConditionType = ConditionType { name: "HeatNodeAgentProblem", fine: "AgentIsHealthy", text: "the agent works" };

/// Every type that is ever written.
pub const KINDS: [&str; 8] =
    [COMPONENTS.name, DRIFT.name, CERTIFICATES.name, VOLUMES.name, POD_NETWORK.name, DEPLOYMENTS.name, HEAT.name, AGENT.name];

impl ConditionType {
    /// Of problems, each with its reason; the first one's is shown.
    fn of(&self, problems: Vec<(&'static str, String)>) -> NodeCondition {
        let reason = problems.first().map(|(reason, _)| *reason);
        let texts: Vec<String> = problems.into_iter().map(|(_, text)| text).collect();
        let text = if reason.is_some() { texts.join("; ") } else { self.text.to_owned() };
        NodeCondition {
            kind: self.name,
            is_problem: reason.is_some(),
            reason: reason.unwrap_or(self.fine),
            message: shortened(&escaped(&text), MESSAGE),
        }
    }
}

/// What is to be written; nothing before the components of a node in place were measured, and the rest was looked at.
#[must_use]
pub fn of(status: &StatusDocument) -> Vec<NodeCondition> {
    let Some(node) = status.node.as_ref().filter(|node| !node.components.is_empty() && !node.unchecked) else {
        return Vec::new();
    };
    let mut all = vec![COMPONENTS.of(node.components.iter().filter_map(component).collect()), DRIFT.of(drift(node))];
    if let Some(certificates) = &node.certificates {
        let expiry = || format!("{} expires first, at {}", certificates.first_to_expire, certificates.first_expiry);
        let waits = certificates.waits.as_ref().map(|waits| waits.cause.clone().unwrap_or_else(expiry));
        let mut problems: Vec<_> = waits.map(|why| ("CertificatesNeedAttention", why)).into_iter().collect();
        let keys = node.service_account_keys.iter().flat_map(|keys| &keys.wrong);
        problems.extend(keys.map(|wrong| ("ServiceAccountKeysDiffer", wrong.clone())));
        all.push(CERTIFICATES.of(problems));
    }
    all.extend(volumes(node));
    if let Some(network) = &node.pod_network {
        all.push(POD_NETWORK.of(network.wrong.iter().map(|wrong| ("PodNetworkIsIncorrect", wrong.clone())).collect()));
    }
    all.extend([DEPLOYMENTS.of(deployments(status, node)), HEAT.of(heat(status)), AGENT.of(agent(status))]);
    all
}

fn component(one: &ComponentStatus) -> Option<(&'static str, String)> {
    let reason = match one.state {
        ComponentState::Healthy => return None,
        ComponentState::Degraded => "ComponentIsDegraded",
        ComponentState::Failed => "ComponentFailed",
    };
    Some((reason, one.headline()))
}

fn drift(node: &NodeStatus) -> Vec<(&'static str, String)> {
    let what =
        if node.differences.is_empty() { "it differs from its parameters".to_owned() } else { node.differences.join(", ") };
    if node.drifted { vec![("NodeDiffersFromParameters", what)] } else { Vec::new() }
}

/// Nothing where the node has none, or nobody has looked at them.
fn volumes(node: &NodeStatus) -> Option<NodeCondition> {
    let inspected: Vec<_> = node.volumes.iter().filter_map(|volume| Some((volume, volume.state?))).collect();
    let mut problems = Vec::new();
    for (volume, state) in &inspected {
        let (reason, what) = match state {
            ConditionState::Failed | ConditionState::Degraded => ("VolumeFailed", "failed"),
            ConditionState::Waiting => ("VolumeIsMissing", "is not in place yet"),
            ConditionState::Ok | ConditionState::Pending => continue,
        };
        problems.push((reason, format!("volume {} ({}) {what}", volume.name, volume.place)));
    }
    let pool = node.thin_pool.as_ref();
    problems.extend(pool.and_then(|pool| Some(("ThinPoolNeedsAttention", pool.wrong.clone()?))));
    (!inspected.is_empty() || pool.is_some()).then(|| VOLUMES.of(problems))
}

fn deployments(status: &StatusDocument, node: &NodeStatus) -> Vec<(&'static str, String)> {
    let of_node = (node.state == NodeState::Rejected)
        .then(|| ("UpdateFailed", format!("generation {} of the node failed", node.generation)));
    let failed = status.deployments.iter().filter(|one| one.listed && one.failed && one.group != "kubernetes-node");
    let failed = failed.map(|one| ("DeploymentFailed", format!("deployment {} ({}) failed", one.name, one.id)));
    of_node.into_iter().chain(failed).collect()
}

fn heat(status: &StatusDocument) -> Vec<(&'static str, String)> {
    let away = status.sources.iter().filter(|source| source.failures >= TRIES);
    let away = away.map(|one| ("SourceUnreachable", format!("metadata source {} does not answer", one.name)));
    let waiting = status.signals.iter().filter(|signal| signal.tries >= TRIES).count();
    let waiting = (waiting > 0).then(|| ("SignalsWaiting", format!("signals that Heat does not have yet: {waiting}")));
    let lost = status.deployments.iter().filter(|one| one.listed && one.undelivered);
    let lost =
        lost.map(|one| ("ResultUndelivered", format!("Heat never got the result of deployment {} ({})", one.name, one.id)));
    away.chain(waiting).chain(lost).collect()
}

/// What keeps the agent itself from its work.
fn agent(status: &StatusDocument) -> Vec<(&'static str, String)> {
    let failed = status.conditions.iter().filter(|one| one.state == ConditionState::Failed);
    failed.map(|one| ("AgentNeedsAttention", format!("{} failed", one.name))).collect()
}

#[cfg(test)]
#[path = "node_conditions_tests.rs"]
mod tests;
