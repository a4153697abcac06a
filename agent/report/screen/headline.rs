//! What is so, in one line: the first of `status`.

use super::layout::Severity;
use crate::report::component::{self, ComponentState, ComponentStatus};
use crate::report::condition_state::ConditionState;
use crate::report::status::{
    Condition, ConditionId, DeploymentState, DeploymentStatus, FIRST_CHECK, IdentityStatus, NodeState, NodeStatus, StatusDocument,
};
use crate::report::text::shortened;

/// How everything stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OverallState {
    /// All that is asked for is done, and is so now.
    Ready,
    /// Something is on its way.
    Waiting,
    /// It works, but not as it should.
    Degraded,
    /// Something ended badly, and somebody has to look.
    Failed,
    /// The agent is down.
    Down,
}

impl OverallState {
    /// For monitoring.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Waiting => "waiting",
            Self::Degraded => "degraded",
            Self::Failed => "failed",
            Self::Down => "down",
        }
    }

    pub(super) fn tone(self) -> Severity {
        match self {
            Self::Ready => Severity::Good,
            Self::Waiting | Self::Degraded => Severity::Odd,
            Self::Failed | Self::Down => Severity::Bad,
        }
    }
}

/// How everything stands, and the line that says so.
#[must_use]
pub fn headline(status: &StatusDocument, running: bool) -> (OverallState, String) {
    if running {
        return judge(status);
    }
    let line = if status.agent.pid == 0 {
        "NOT RUNNING: the agent has not run since boot".to_owned()
    } else {
        format!("NOT RUNNING: the agent is down; it last said: {}", judge(status).1)
    };
    (OverallState::Down, line)
}

fn judge(status: &StatusDocument) -> (OverallState, String) {
    let (overall, what) =
        [of_agent, of_failures, of_work, of_troubles, of_waiting].iter().find_map(|part| part(status)).unwrap_or_else(|| {
            // Whatever it is: the exit code says the same.
            if status.is_degraded() {
                (OverallState::Degraded, "see the rows below".to_owned())
            } else {
                (OverallState::Ready, String::new())
            }
        });
    let line = match overall {
        OverallState::Ready | OverallState::Down => "READY".to_owned(),
        OverallState::Waiting => format!("WAITING for {what}"),
        OverallState::Degraded => format!("DEGRADED: {what}"),
        OverallState::Failed => format!("FAILED {what}"),
    };
    (overall, line)
}

/// What keeps the agent from its work.
fn of_agent(status: &StatusDocument) -> Option<(OverallState, String)> {
    if status.identity.as_ref().is_some_and(|identity| identity.instance.is_none()) {
        return Some((OverallState::Waiting, "the identity of this instance".to_owned()));
    }
    let failed = |one: &&Condition| one.state == ConditionState::Failed && one.name != ConditionId::Settings;
    let all = || status.conditions.iter().filter(failed);
    // The image's phases keep it from less than whatever else fails.
    let condition = all().find(|one| one.name != ConditionId::Phases).or_else(|| all().next())?;
    let what = match condition.name {
        ConditionId::Bus => "systemd does not answer",
        ConditionId::State => {
            condition.fact.as_deref().or(condition.cause.as_deref()).unwrap_or("the agent cannot do its own work")
        }
        ConditionId::Phases => condition.fact.as_deref().or(condition.cause.as_deref()).unwrap_or("they failed"),
        _ => "the metadata cannot be understood",
    };
    // What keeps it from its own work names itself.
    let of_name = if condition.name == ConditionId::State { "the agent's own work" } else { condition.name.as_str() };
    Some((OverallState::Failed, format!("{of_name}: {what}")))
}

/// What ended badly.
fn of_failures(status: &StatusDocument) -> Option<(OverallState, String)> {
    let node = status.node.as_ref();
    if let Some(node) = node.filter(|node| node.state == NodeState::Rejected) {
        return Some((OverallState::Failed, generation(node)));
    }
    if let Some(what) = node.and_then(|node| of_components(node, |one| one.state == ComponentState::Failed)) {
        return Some((OverallState::Degraded, what));
    }
    let failed = |one: &&DeploymentStatus| one.listed && one.failed;
    let mut all = status.deployments.iter().filter(failed);
    let first = all.next()?;
    let more = match all.count() {
        0 => String::new(),
        more => format!(", and {more} more"),
    };
    let words = first.ended_as().map_or(String::new(), |words| format!(" ({words})"));
    Some((OverallState::Failed, format!("deployment {}{words}{more}", first.name)))
}

/// `generation 2 at volume etcd (HNA-0306)`.
fn generation(node: &NodeStatus) -> String {
    let step = node.failed_steps().next();
    let at = step.map_or(String::new(), |step| format!(" at {}", step.name));
    let code = node.code.as_ref().map_or(String::new(), |code| format!(" ({code})"));
    format!("generation {}{at}{code}", node.generation)
}

fn of_components(node: &NodeStatus, is: impl Fn(&ComponentStatus) -> bool) -> Option<String> {
    let found = (node.state == NodeState::Applied || node.in_place.is_some()) && node.components.iter().any(is);
    found.then(|| component::headline(&node.components)).flatten()
}

/// What is on its way.
fn of_work(status: &StatusDocument) -> Option<(OverallState, String)> {
    if let Some(node) = status.node.as_ref().filter(|node| matches!(node.state, NodeState::Applying | NodeState::Restoring)) {
        return Some((OverallState::Waiting, step_of(node)));
    }
    if status.phases() == Some(ConditionState::Waiting) {
        return Some((OverallState::Waiting, "the phases of os-refresh-config, which are running".to_owned()));
    }
    let running = status.deployments.iter().find(|one| one.state == DeploymentState::Running)?;
    Some((OverallState::Waiting, format!("deployment {}, which is running", running.name)))
}

/// The step that a node that is brought up waits for.
fn step_of(node: &NodeStatus) -> String {
    let waits = |step: &&Condition| step.state == ConditionState::Waiting;
    // One that complained is why the others wait.
    let mut waiting = node.steps.iter().filter(waits);
    let first = waiting.clone().find(|step| step.cause.is_some()).or_else(|| waiting.next());
    match first {
        Some(step) if node.rollback.is_some() => format!("{} (rollback of generation {})", step.name, node.generation),
        Some(step) => format!("{} (generation {})", step.name, node.generation),
        None if node.rollback.is_some() => format!("the rollback of generation {}", node.generation),
        None => format!("the node: generation {} is being applied", node.generation),
    }
}

/// What works, but not as it should.
fn of_troubles(status: &StatusDocument) -> Option<(OverallState, String)> {
    let node = status.node.as_ref();
    let degraded = |what: String| Some((OverallState::Degraded, what));
    // What has a remedy of its own is why components that use it are on their way up.
    if let Some(what) = node.and_then(NodeStatus::volume_problem) {
        let down = node.and_then(|node| of_components(node, ComponentStatus::is_unhealthy));
        let down = down.map_or(String::new(), |down| format!("{down}; "));
        return degraded(format!("{down}{}", shortened(what, 80)));
    }
    if let Some(what) = node.and_then(|node| of_components(node, ComponentStatus::is_unhealthy)) {
        return degraded(what);
    }
    if let Some(node) = node.filter(|node| node.state == NodeState::Restored) {
        let number = node.in_place.unwrap_or_default();
        return degraded(format!("generation {number} is in place by `rollback`, not generation {}", node.generation));
    }
    if node.is_some_and(|node| node.drifted) {
        return degraded("the node differs from what the stack asks for".to_owned());
    }
    if let Some(source) = status.sources.iter().find(|source| source.failures > 0) {
        let of_heat = ["cfn", "heat", "request", "zaqar"].contains(&source.name.as_str());
        let what = if of_heat { "Heat's metadata cannot be read" } else { "metadata cannot be read" };
        return degraded(format!("{what} (source {})", source.name));
    }
    let of_node = |node: &NodeStatus| {
        if node.thin_pool.as_ref().is_some_and(|pool| pool.wrong.is_some()) {
            return Some("docker's thin pool");
        }
        if node.pod_network.as_ref().is_some_and(|network| !network.wrong.is_empty()) {
            return Some("the network of pods");
        }
        if node.has_key_problem() {
            return Some("masters do not verify each other's service account tokens");
        }
        node.certificates.as_ref().is_some_and(|all| all.waits.is_some()).then_some("certificates wait for an operator")
    };
    if let Some(what) = node.and_then(of_node) {
        return degraded(what.to_owned());
    }
    if let Some(lost) = status.deployments.iter().find(|one| one.listed && one.undelivered) {
        return degraded(format!("Heat does not have the result of {}", lost.name));
    }
    let settings = status.conditions.iter().any(|one| one.state == ConditionState::Failed);
    if settings { degraded("a settings file is skipped".to_owned()) } else { None }
}

/// What is waited for before everything is done.
fn of_waiting(status: &StatusDocument) -> Option<(OverallState, String)> {
    let waiting = |what: String| Some((OverallState::Waiting, what));
    if status.sources.is_empty() {
        let ignored = status.identity.as_ref().and_then(IdentityStatus::ignored);
        return waiting(ignored.map_or("metadata: no source is known yet".to_owned(), |why| format!("an operator: {why}")));
    }
    if status.metadata.expected && status.metadata.source.is_none() {
        return waiting("metadata: no source has answered yet".to_owned());
    }
    if status.metadata.listed.is_none() {
        return waiting("metadata: no list of deployments has come yet".to_owned());
    }
    if !status.signals.is_empty() {
        let name_of = |id: &String| status.deployments.iter().find(|one| one.id == *id).map(|one| one.name.clone());
        let name = status.signals.first().and_then(|signal| signal.deployment.as_ref()).and_then(name_of);
        return waiting(match (status.signals.len(), name) {
            (1, Some(name)) => format!("Heat to take the result of {name}"),
            (1, None) => "Heat to take 1 signal".to_owned(),
            (several, _) => format!("Heat to take {several} signals"),
        });
    }
    if let Some(turn) = status.deployments.iter().find(|one| one.listed && one.state != DeploymentState::Signalled) {
        return waiting(format!("deployment {}", turn.name));
    }
    let unchecked = status.node.as_ref().is_some_and(|node| node.unchecked);
    if unchecked { waiting(FIRST_CHECK.to_owned()) } else { None }
}
