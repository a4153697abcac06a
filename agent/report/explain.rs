//! The tree of conditions from source to signal, as `explain` shows it. Pure: a status and the time in, conditions or
//! a page for people out.

use std::collections::BTreeSet;

use super::catalog::Code;
use super::component::{ComponentState, ComponentStatus, unhealthy};
use super::condition::ConditionId;
use super::condition_state::ConditionState;
use super::status::{Condition, DeploymentState, DeploymentStatus, FIRST_CHECK, NodeState, NodeStatus, StatusDocument};
use super::text::{argument, duration, escaped, shortened, wrapped};
use crate::clock::Timestamp;

use ConditionState::{Degraded, Failed, Ok, Pending, Waiting};

/// Parts of one condition that are shown each on their own; the rest is counted.
const SHOWN: usize = 4;
/// Longest cause or remedy on the page, in characters.
const LINE: usize = 1000;
/// Lines of cause and remedy together where not everything is asked for: with the way to them a failure takes a dozen.
const NOTES: usize = 8;
/// Columns before the tree: the mark and the state.
const MARGIN: usize = 12;
/// The narrowest text beside the tree.
const NARROWEST: usize = 40;

/// Every condition, in the order in which a node needs them, with the one marked that everything else waits for.
#[must_use]
pub fn tree(status: &StatusDocument, running: bool) -> Vec<Condition> {
    let (settings, early): (Vec<_>, Vec<_>) =
        status.conditions.iter().cloned().partition(|one| one.name == ConditionId::Settings);
    // The agent works on without them.
    let degraded = |one: Condition| if one.state == Failed { Condition { state: Degraded, ..one } } else { one };
    let mut all: Vec<Condition> = settings.into_iter().map(degraded).collect();
    all.push(daemon(status, running));
    all.extend(early);
    all.push(sources(status));
    let mut deployments = deployments(status);
    // The steps of a node that is on its way, or failed, belong to the deployment that asked for them.
    let node = status.node.as_ref().map(node).and_then(|node| nest(node, status, &mut deployments));
    all.push(deployments);
    all.extend(node);
    all.push(signals(status));
    // What failed says more than what is still waited for, wherever it stands, and what has a cause more than what is on its way.
    let _marked = mark(&mut all, Failed, true)
        || mark(&mut all, Failed, false)
        || mark(&mut all, Waiting, true)
        || mark(&mut all, Waiting, false);
    all
}

/// Puts the node below the deployment that it is the work of; gives it back where there is none. A deployment that was
/// refused before it made a generation has its own cause.
fn nest(node: Condition, status: &StatusDocument, deployments: &mut Condition) -> Option<Condition> {
    let known = status.node.as_ref().map(|node| (node.state, node.deployment.as_deref()));
    let asks = |one: &&DeploymentStatus| match known {
        Some((state, id)) if id == Some(one.id.as_str()) => {
            (one.state == DeploymentState::Running && state == NodeState::Applying)
                || (one.failed && state == NodeState::Rejected)
        }
        _ => false,
    };
    let id = status.deployments.iter().find(asks).map(|one| one.id.as_str());
    let part = deployments.parts.iter_mut().find(|part| id.is_some() && part.id.as_deref() == id);
    let Some(part) = part else { return Some(node) };
    (part.cause, part.causes, part.remedy) = (None, Vec::new(), None);
    part.parts.push(node);
    None
}

/// The first condition of this state that is no sum of others. `has_cause`: only one whose cause is known.
fn mark(conditions: &mut [Condition], state: ConditionState, has_cause: bool) -> bool {
    conditions.iter_mut().any(|condition| {
        let is_degraded = condition.state == Degraded && state == Failed;
        if condition.state != state && !is_degraded {
            return false;
        }
        // What is degraded for no cause of its own may only wait for something.
        let only_waits = is_degraded && condition.cause.is_none();
        if mark(&mut condition.parts, state, has_cause) || (only_waits && mark(&mut condition.parts, Waiting, has_cause)) {
            return true;
        }
        let is_sum = has_cause && condition.parts.iter().any(|part| part.state == state);
        condition.first = !is_sum && (condition.cause.is_some() || !has_cause);
        condition.first
    })
}

fn condition(name: ConditionId, state: ConditionState) -> Condition {
    Condition { name, state, ..Condition::default() }
}

/// As bad as the worst of its parts.
fn sum(name: ConditionId, parts: Vec<Condition>) -> Condition {
    let any = |state| parts.iter().any(|part: &Condition| part.state == state);
    let state = if any(Failed) {
        Failed
    } else if any(Degraded) {
        Degraded
    } else if any(Waiting) || any(Pending) {
        Waiting
    } else {
        Ok
    };
    Condition { parts, ..condition(name, state) }
}

fn daemon(status: &StatusDocument, running: bool) -> Condition {
    if running {
        let detail = Some(format!("version {}, pid {}", status.agent.version, status.agent.pid));
        return Condition { detail, since: Some(status.agent.started.clone()), ..condition(ConditionId::Daemon, Ok) };
    }
    let last = status.conditions.iter().find(|one| one.name == ConditionId::State && one.state == Failed);
    if let Some(last) = last.filter(|_| status.agent.pid != 0) {
        let cause = format!("it is not running; it stopped because: {}", last.cause.as_deref().unwrap_or("unknown"));
        let start = "`systemctl restart heat-node-agent`";
        let behind = |remedy: &String| format!("{}. Then {start}", remedy.trim_end_matches(['.', ' ']));
        let remedy = last.remedy.as_ref().map_or(start.to_owned(), behind);
        return Condition { cause: Some(cause), remedy: Some(remedy), ..condition(ConditionId::Daemon, Failed) };
    }
    // Early in a boot its start waits for cloud-init; a second `systemctl start` would only wait beside it.
    let (cause, remedy) = if status.agent.pid == 0 {
        (
            "it has not run since boot; everything below is from before the boot",
            "check `systemctl list-jobs` for whether its start waits for cloud-init, and `cloud-init status --long` for \
             cloud-init's progress; otherwise systemctl start --no-block heat-node-agent",
        )
    } else {
        (
            "it is not running; everything below is its last known state",
            "systemctl start heat-node-agent; `journalctl -u heat-node-agent -n 50` shows why it stopped",
        )
    };
    Condition { cause: Some(cause.to_owned()), remedy: Some(remedy.to_owned()), ..condition(ConditionId::Daemon, Failed) }
}

fn sources(status: &StatusDocument) -> Condition {
    let parts: Vec<_> = status
        .sources
        .iter()
        .map(|source| {
            let state = match (source.failures, &source.last_good) {
                (0, Some(_)) => Ok,
                (0, None) => Waiting,
                _ => Failed,
            };
            Condition {
                detail: Some(source.last_good.as_ref().map_or("never read".to_owned(), |at| format!("last good {at}"))),
                attempt: source.failures,
                next_try: source.next_try.clone(),
                cause: source.cause.clone(),
                remedy: source.remedy.clone(),
                ..condition(ConditionId::Named(source.name.clone()), state)
            }
        })
        .collect();
    let mut all = sum(ConditionId::Sources, parts);
    // The node goes on without it.
    if all.state == Failed {
        all.state = Degraded;
    }
    let no_answer = status.metadata.expected && status.metadata.source.is_none();
    let is_ignored = status.identity.as_ref().is_some_and(|identity| !identity.left_over.is_empty());
    if status.sources.is_empty() && is_ignored {
        // The identity says why, and what to do.
        all = condition(ConditionId::Sources, Pending);
    } else if status.sources.is_empty() {
        let entry = Code::NoSource.entry();
        all = Condition {
            cause: Some(entry.subject.to_owned()),
            remedy: Some(entry.remedy.to_owned()),
            ..condition(ConditionId::Sources, Waiting)
        };
    } else if all.state == Ok && no_answer {
        all.state = Waiting;
        all.cause = Some("no authoritative source has answered since the agent started".to_owned());
    }
    all
}

fn deployments(status: &StatusDocument) -> Condition {
    let is_ignored = status.identity.as_ref().is_some_and(|identity| !identity.left_over.is_empty());
    let Some(listed) = status.metadata.listed else {
        if status.sources.is_empty() && is_ignored {
            return condition(ConditionId::Deployments, Pending);
        }
        return Condition {
            cause: Some("no source has provided a list of deployments yet".to_owned()),
            ..condition(ConditionId::Deployments, Waiting)
        };
    };
    let relevant = |one: &&DeploymentStatus| one.listed || one.state == DeploymentState::Running;
    let mut all = sum(ConditionId::Deployments, status.deployments.iter().filter(relevant).map(deployment).collect());
    let done = all.parts.iter().filter(|part| part.state == Ok).count();
    all.detail = Some(format!("{listed} listed, {done} succeeded"));
    all
}

fn deployment(one: &DeploymentStatus) -> Condition {
    let ended = one.state.has_ended();
    let (state, causes, remedy) = match one.state {
        _ if ended && one.failed => (Failed, one.why(), one.remedy()),
        _ if ended => (Ok, Vec::new(), None),
        DeploymentState::Running => {
            (Waiting, vec![one.note.clone().unwrap_or_else(|| "it is running".to_owned())], Some(while_it_runs(one)))
        }
        _ => (Waiting, Vec::new(), None),
    };
    let code = one.code_of_failure().unwrap_or_default();
    let words = [one.group.as_str(), &one.action, &one.id, code].into_iter().filter(|word| !word.is_empty());
    let detail = Some(words.collect::<Vec<_>>().join(" "));
    Condition {
        id: Some(one.id.clone()),
        detail,
        since: one.since.clone(),
        remedy,
        ..condition(ConditionId::Named(one.name.clone()), state)
    }
    .because(causes)
}

fn while_it_runs(one: &DeploymentStatus) -> String {
    let follow = format!("heat-node-agent logs --follow {}", argument(&one.id));
    one.stop_command().map_or(follow.clone(), |stop| format!("{follow}; `{stop}` stops it"))
}

fn node(node: &NodeStatus) -> Condition {
    let mut all = sum(ConditionId::Node, steps(node));
    all.detail = Some(format!("generation {} {}", node.generation, node.state_in_words()));
    match node.state {
        NodeState::Applied if node.drifted => {
            all.state = Degraded;
            all.cause = node.drift();
            let but = if node.has_volume_problem() { "a volume needs an operator" } else { "the machine differs from it" };
            all.detail = Some(format!("generation {} is in place, but {but}", node.generation));
            all.remedy = all.cause.as_ref().map(|_| node.drift_remedy().to_owned());
        }
        // What waits for somebody once it is in place: its certificates, its network of pods.
        // A component that fails now degrades the node; what an earlier run could not do does not.
        NodeState::Applied => {
            let is_failed = |component: &ComponentStatus| component.state == ComponentState::Failed;
            let is_degraded = node.components.iter().any(is_failed) || all.parts.iter().any(|part| part.state == Waiting);
            all.state = if is_degraded { Degraded } else { Ok };
            if node.unchecked && !is_degraded {
                (all.state, all.cause) = (Waiting, Some(format!("{FIRST_CHECK} has not ended")));
            }
        }
        NodeState::Restored => {
            all.state = Degraded;
            all = all.because(node.why());
            all.remedy.clone_from(&node.remedy);
        }
        NodeState::Rejected => {
            all.state = Failed;
            // The step that failed says the same in its own words.
            if all.parts.iter().any(|step| step.state == Failed) {
                all = all.because(node.failure_before_rollback().unwrap_or_default());
            } else {
                all = all.because(node.why());
                let remedy = "update the stack: its next kubernetes-node deployment continues from here";
                all.remedy = Some(node.remedy.clone().unwrap_or_else(|| remedy.to_owned()));
            }
        }
        _ => all.state = Waiting,
    }
    all
}

/// The steps of bringing it up; of a node in place with what its certificates, its network of pods and others wait for since.
fn steps(node: &NodeStatus) -> Vec<Condition> {
    let mut steps = node.steps.clone();
    // Of a node that has a generation as a whole it is said what waits or fails there, whatever became of a newer one.
    let is_in_place = node.state == NodeState::Applied || node.in_place.is_some();
    if node.state == NodeState::Rejected {
        // Nobody waits for them any more.
        for step in steps.iter_mut().filter(|step| step.state == Waiting) {
            *step = condition(step.name.clone(), Pending);
        }
    }
    let certificates = node.certificates.as_ref().and_then(|all| all.waits.clone());
    let network = node.pod_network.as_ref().and_then(super::status::PodNetworkStatus::condition);
    let pool = node.thin_pool.as_ref().and_then(super::status::ThinPoolStatus::condition);
    let keys = node.service_account_keys.as_ref().and_then(|keys| keys.condition());
    if is_in_place {
        steps.extend(unhealthy(&node.components).filter_map(ComponentStatus::condition));
    }
    // What a CA waits for is of a node that was not put in place whole, too.
    let of_certificates = certificates.filter(|_| is_in_place || node.state == NodeState::Rejected);
    for waits in of_certificates.into_iter().chain(network.into_iter().chain(pool).chain(keys).filter(|_| is_in_place)) {
        // A step that failed says more.
        if !steps.iter().any(|step| step.name == waits.name && step.state == Failed) {
            steps.retain(|step| step.name != waits.name);
            steps.push(waits);
        }
    }
    steps
}

fn signals(status: &StatusDocument) -> Condition {
    let waiting = status.signals.iter().map(|signal| Condition {
        attempt: signal.tries,
        since: signal.since.clone(),
        next_try: signal.next_try.clone(),
        cause: Some(signal.cause.clone().unwrap_or_else(|| "it has not been sent yet".to_owned())),
        remedy: signal.remedy.clone(),
        ..condition(ConditionId::Named(signal.to.clone()), Waiting)
    });
    let lost = status.deployments.iter().filter(|one| one.listed && one.undelivered).map(|one| Condition {
        since: one.since.clone(),
        cause: one.note.clone(),
        remedy: Some(Code::SignalUndeliverable.entry().remedy.to_owned()),
        ..condition(ConditionId::Named(format!("result of {} ({})", one.name, one.id)), Degraded)
    });
    sum(ConditionId::Signals, lost.chain(waiting).collect())
}

/// The page, of so many columns: a line a condition; what is not met with its cause and remedy. What is met, and what comes after what is
/// not, is counted, unless `all` is asked for.
#[must_use]
pub fn page(tree: &[Condition], now: Timestamp, all: bool, width: usize) -> String {
    let lines = wrapped(&headline(tree), width);
    let mut page = Page { now, all, width, lines, reported: BTreeSet::new(), folded: 0, later: 0 };
    for condition in tree {
        if !all && condition.state == Ok {
            page.folded += 1;
        } else if !all && condition.state == Pending {
            page.later += 1;
        } else {
            page.add(condition, 0);
        }
    }
    match (page.folded, page.later) {
        (0, 0) => {}
        (folded, 0) => page.row("", Ok, 0, &format!("{folded} more; --all shows them")),
        (folded, later) => page.row("", Ok, 0, &format!("{folded} more, and {later} that come later; --all shows them")),
    }
    page.lines.join("\n") + "\n"
}

/// Where everything stands, in one line.
#[must_use]
pub fn headline(tree: &[Condition]) -> String {
    let Some(path) = path(tree) else { return "OK: every condition is met".to_owned() };
    // The node below its deployment says no more than that does.
    let is_said = |at: usize| at.checked_sub(1).and_then(|above| path.get(above)).is_some_and(|above| above.id.is_some());
    let is_own = |(at, one): &(usize, &&Condition)| !(one.name == ConditionId::Node && !one.first && is_said(*at));
    let names: Vec<_> = path.iter().enumerate().filter(is_own).map(|(_, one)| one.name.as_str()).collect();
    let Some(first) = path.last() else { return String::new() };
    // The same word as in the first line of `status`.
    let is = |state| path.iter().any(|one| one.state == state);
    let verb = if is(Degraded) {
        "DEGRADED at"
    } else if first.state == Failed {
        "FAILED at"
    } else {
        "waiting for"
    };
    escaped(&format!("{verb} {}", names.join(" > ")))
}

/// From the root to the one that is marked.
fn path(tree: &[Condition]) -> Option<Vec<&Condition>> {
    tree.iter().find_map(|condition| {
        if condition.first {
            return Some(vec![condition]);
        }
        let mut below = path(&condition.parts)?;
        below.insert(0, condition);
        Some(below)
    })
}

/// The page in the making.
struct Page {
    now: Timestamp,
    all: bool,
    width: usize,
    lines: Vec<String>,
    /// Causes and remedies so far: of several conditions with one cause the first has it.
    reported: BTreeSet<String>,
    /// Conditions that are met, and that come later: not shown.
    folded: usize,
    later: usize,
}

impl Page {
    fn add(&mut self, condition: &Condition, depth: usize) {
        let marker = if condition.first { "=>" } else { "" };
        let detail = condition.detail.iter().map(|detail| format!(": {}", escaped(detail))).collect::<String>();
        // The node that a deployment brings up needs no row of its own, unless it has something to say.
        let nested = condition
            .parts
            .iter()
            .find(|part| !self.all && part.name == ConditionId::Node && part.cause.is_none() && !part.first);
        let state = nested.and_then(|node| node.detail.as_ref()).map(|state| format!(", {}", escaped(state)));
        let of_node = state.filter(|_| depth > 0).unwrap_or_default();
        let since = if of_node.is_empty() { times(condition, self.now, self.all) } else { String::new() };
        let detail = if of_node.is_empty() { detail } else { detail.replacen("kubernetes-node ", "", 1) };
        let text = format!("{}{detail}{of_node}{since}", escaped(condition.name.as_str()));
        // The first line names what is only the sum of what follows, but not the deployment's id.
        let worst = if condition.state == Degraded { Failed } else { condition.state };
        let is_sum = condition.parts.iter().any(|part| part.state == worst) && condition.cause.is_none();
        let depth = if self.all || !is_sum || condition.id.is_some() {
            self.row(marker, condition.state, depth, &text);
            depth + 1
        } else {
            depth
        };
        if condition.state != Ok {
            // The remedy is whole; what is left of the lines is the cause's, whose fact comes first.
            let width = self.width.saturating_sub(12).max(NARROWEST);
            let of_remedy = condition.remedy.as_ref().map_or(0, |remedy| wrapped(&escaped(remedy), width).len());
            let limit = if self.all { LINE } else { NOTES.saturating_sub(of_remedy).max(2) * width };
            for cause in condition.each_cause() {
                self.note("why:", &shortened(cause, limit));
            }
            if let Some(remedy) = &condition.remedy {
                self.note("remedy:", remedy);
            }
        }
        let parts = match nested.filter(|_| !of_node.is_empty()) {
            Some(node) => &node.parts,
            None => &condition.parts,
        };
        // What is only on its way has nothing to say yet.
        let is_later = |part: &&Condition| {
            part.state == Pending
                || (!self.all && part.state == Waiting && !part.first && part.cause.is_none() && part.parts.is_empty())
        };
        let (later, now): (Vec<&Condition>, Vec<&Condition>) = parts.iter().partition(is_later);
        let (mut shown, mut more) = (0, 0);
        for part in now.iter().filter(|part| part.state != Ok) {
            if shown < SHOWN || part.first {
                self.add(part, depth);
                shown += 1;
            } else {
                more += 1;
            }
        }
        if more > 0 {
            let lead = format!("{:<MARGIN$}{}", "", "  ".repeat(depth));
            self.set(&lead, &format!("and {more} more that are not OK: see --json"));
        }
        let done: Vec<&Condition> = now.into_iter().filter(|part| part.state == Ok).collect();
        if !self.all {
            self.folded += done.len();
            self.later += later.len();
            return;
        }
        for (state, parts) in [(Ok, done), (Pending, later)] {
            let names = parts.into_iter().map(name_with_needs).collect::<Vec<_>>().join(", ");
            if !names.is_empty() {
                self.row("", state, depth, &shortened(&names, LINE));
            }
        }
    }

    fn row(&mut self, marker: &str, state: ConditionState, depth: usize, text: &str) {
        self.set(&format!("{marker:<3}{:<8} {}", word(state), "  ".repeat(depth)), text);
    }

    /// Below a row: why it is so, or what to do.
    fn note(&mut self, label: &str, text: &str) {
        let text = shortened(&escaped(text), LINE);
        if self.reported.insert(text.clone()) {
            self.set(&format!("    {label} "), &text);
        }
    }

    /// A text with a hanging indent.
    fn set(&mut self, lead: &str, text: &str) {
        let indent = lead.chars().count();
        for (at, line) in wrapped(text, self.width.saturating_sub(indent).max(NARROWEST)).iter().enumerate() {
            self.lines.push(if at == 0 { format!("{lead}{line}") } else { format!("{:indent$}{line}", "") });
        }
    }
}

/// `gate etcd (after unit etcd.service)`, where it waits for something.
fn name_with_needs(condition: &Condition) -> String {
    let mut name = escaped(condition.name.as_str());
    if !condition.waits_for.is_empty() {
        name.push_str(&format!(" (after {})", escaped(&condition.waits_for.join(" and "))));
    }
    name
}

/// `, for 4m05s, tried 31 times, next in 12s`; with `all` `, since 2026-… (4m05s), …`.
fn times(condition: &Condition, now: Timestamp, all: bool) -> String {
    let mut text = String::new();
    if let Some(since) = &condition.since {
        let lasts = Timestamp::parse_rfc3339(since).filter(|_| condition.state != Ok).map(|at| duration(now.since(at)));
        text.push_str(&match lasts {
            Some(lasts) if all => format!(", since {} ({lasts})", escaped(since)),
            Some(lasts) => format!(", for {lasts}"),
            None => format!(", since {}", escaped(since)),
        });
    }
    if let Some(at) = condition.given_up.as_deref().and_then(Timestamp::parse_rfc3339) {
        text.push_str(&format!(", gives up in {}", duration(at.since(now))));
    }
    if condition.attempt > 0 {
        text.push_str(&format!(", tried {} times", condition.attempt));
    }
    if let Some(at) = condition.next_try.as_deref().and_then(Timestamp::parse_rfc3339) {
        let wait = at.since(now);
        text.push_str(&if wait.is_zero() { ", next try now".to_owned() } else { format!(", next try in {}", duration(wait)) });
    }
    text
}

fn word(state: ConditionState) -> &'static str {
    match state {
        Ok => "ok",
        Waiting => "waiting",
        Degraded => "DEGRADED",
        Failed => "FAILED",
        Pending => "pending",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Phase;
    use crate::report::status::{
        AgentStatus, CertificatesStatus, MetadataStatus, PodNetworkStatus, SCHEMA_VERSION, ServiceAccountKeysStatus,
        SignalStatus, SourceStatus, ThinPoolStatus, WaitProgress,
    };

    const AT: &str = "2026-03-01T12:00:00Z";

    fn source(failures: u32) -> SourceStatus {
        SourceStatus {
            name: "cfn".into(),
            last_good: Some(AT.into()),
            older: false,
            failures,
            cause: (failures > 0).then(|| "connection refused".into()),
            remedy: (failures > 0).then(|| "look at heat-api-cfn".into()),
            next_try: (failures > 0).then(|| "2026-03-01T12:05:00Z".into()),
        }
    }

    fn deployment(id: &str, group: &str, state: DeploymentState, failed: bool) -> DeploymentStatus {
        DeploymentStatus {
            id: id.into(),
            name: format!("name-{id}"),
            group: group.into(),
            state,
            status_code: Some(i32::from(failed) * 3),
            failed,
            since: Some(AT.into()),
            ..DeploymentStatus::signalled()
        }
    }

    fn step(name: &str, state: ConditionState) -> Condition {
        Condition { since: Some(AT.into()), ..condition(name.into(), state) }
    }

    fn node(state: NodeState, steps: Vec<Condition>) -> NodeStatus {
        NodeStatus {
            generation: 2,
            state,
            deployment: Some("n".into()),
            reason: Some("HNA-0703 the whole reason".into()),
            steps,
            ..NodeStatus::default()
        }
    }

    /// A node in place, one of whose components is so.
    fn with_component(state: ComponentState) -> StatusDocument {
        let component = ComponentStatus { name: "kubelet".into(), state, since: AT.into(), ..ComponentStatus::default() };
        changed(|s| s.node.as_mut().unwrap().components = vec![component])
    }

    #[test]
    fn a_component_that_is_not_healthy_is_exit_code_2_and_no_failed_deployment() {
        for (state, degraded) in
            [(ComponentState::Healthy, false), (ComponentState::Degraded, true), (ComponentState::Failed, true)]
        {
            let status = with_component(state);
            assert_eq!((status.is_degraded(), status.verdict(true)), (degraded, WaitProgress::Done), "{state:?}");
        }
    }

    /// Certificates of which one is near its end.
    fn near_end() -> CertificatesStatus {
        let waits = Condition {
            cause: Some("server ends at 2026-06-01T00:00:00Z".into()),
            remedy: Some("set CERTIFICATE_RENEWAL".into()),
            ..step("certificates", Waiting)
        };
        let (first_to_expire, first_expiry) = ("server".into(), "2026-06-01T00:00:00Z".into());
        CertificatesStatus { first_to_expire, first_expiry, waits: Some(waits), ends: Vec::new() }
    }

    fn signal() -> SignalStatus {
        SignalStatus {
            to: "http://heat/signal".into(),
            deployment: None,
            tries: 3,
            cause: Some("503".into()),
            remedy: None,
            since: Some(AT.into()),
            next_try: None,
        }
    }

    fn finished() -> StatusDocument {
        StatusDocument {
            schema_version: SCHEMA_VERSION,
            agent: AgentStatus { version: "1".into(), pid: 7, started: AT.into() },
            identity: None,
            phase: Phase::Steady,
            summary: String::new(),
            sources: vec![source(0)],
            deployments: vec![
                deployment("a", "script", DeploymentState::Signalled, false),
                deployment("n", "kubernetes-node", DeploymentState::Signalled, false),
            ],
            node: Some(node(NodeState::Applied, vec![step("files", Ok), step("gate etcd", Ok)])),
            signals: vec![],
            conditions: vec![condition(ConditionId::Settings, Ok), condition(ConditionId::Bus, Ok)],
            metadata: MetadataStatus { source: Some("cfn".into()), expected: true, listed: Some(2) },
            budgets: Vec::new(),
            set_aside: Vec::new(),
        }
    }

    fn changed(change: impl FnOnce(&mut StatusDocument)) -> StatusDocument {
        let mut status = finished();
        change(&mut status);
        status
    }

    #[test]
    fn of_a_node_that_was_rolled_back_what_waits_there_is_said() {
        let parts = |state, in_place| {
            let network = PodNetworkStatus { wrong: vec!["no route".into()], ..PodNetworkStatus::default() };
            let known = NodeStatus { in_place, pod_network: Some(network), ..node(state, vec![]) };
            super::node(&known).parts.into_iter().map(|part| part.name.to_string()).collect::<Vec<_>>()
        };
        for state in [NodeState::Rejected, NodeState::Restored] {
            assert_eq!(parts(state, Some(1)), ["pod network"], "{state:?}");
        }
        assert!(parts(NodeState::Rejected, None).is_empty(), "it is between two generations");
    }

    #[test]
    #[expect(clippy::too_many_lines, reason = "one table")]
    fn the_first_that_fails_is_named_and_else_the_first_that_is_waited_for() {
        use WaitProgress::{Done, Failed as Bad, Waiting as Wait};
        let failing_gate =
            || node(NodeState::Rejected, vec![step("files", Ok), step("gate etcd", Failed), step("gate docker", Pending)]);
        let applying = |steps| {
            changed(|s| (s.node, s.deployments[1].state) = (Some(node(NodeState::Applying, steps)), DeploymentState::Running))
        };
        for (case, status, running, headline_, verdict) in vec![
            ("finished", finished(), true, "OK: every condition is met", Done),
            ("no daemon", finished(), false, "FAILED at daemon", Wait),
            ("no daemon yet", changed(|s| s.agent.pid = 0), false, "FAILED at daemon", Wait),
            ("a skipped drop-in", changed(|s| s.conditions[0].state = Failed), true, "DEGRADED at settings", Done),
            ("no systemd", changed(|s| s.conditions[1].state = Failed), true, "FAILED at bus", Done),
            ("a full disk", changed(|s| s.conditions.push(condition(ConditionId::State, Failed))), true, "FAILED at state", Wait),
            (
                "phases run",
                changed(|s| s.conditions.push(condition(ConditionId::Phases, Waiting))),
                true,
                "waiting for phases",
                Wait,
            ),
            (
                "phases fail",
                changed(|s| s.conditions.push(condition(ConditionId::Phases, Failed))),
                true,
                "FAILED at phases",
                Wait,
            ),
            (
                "phases succeeded",
                changed(|s| s.conditions.push(condition(ConditionId::Phases, Ok))),
                true,
                "OK: every condition is met",
                Done,
            ),
            ("a source fails", changed(|s| s.sources = vec![source(3)]), true, "DEGRADED at sources > cfn", Wait),
            ("no source", changed(|s| s.sources.clear()), true, "waiting for sources", Done),
            ("no answer yet", changed(|s| s.metadata.source = None), true, "waiting for sources", Wait),
            (
                "only the boot copy",
                changed(|s| s.metadata = MetadataStatus { source: None, expected: false, listed: Some(0) }),
                true,
                "OK: every condition is met",
                Done,
            ),
            ("no list", changed(|s| s.metadata.listed = None), true, "waiting for deployments", Wait),
            (
                "a script runs",
                changed(|s| s.deployments[0].state = DeploymentState::Running),
                true,
                "waiting for deployments > name-a",
                Wait,
            ),
            (
                "one waits",
                changed(|s| s.deployments[0].state = DeploymentState::Seen),
                true,
                "waiting for deployments > name-a",
                Wait,
            ),
            ("one failed", changed(|s| s.deployments[0].failed = true), true, "FAILED at deployments > name-a", Bad),
            (
                "one that nobody asks for any more failed",
                changed(|s| (s.deployments[0].failed, s.deployments[0].listed) = (true, false)),
                true,
                "OK: every condition is met",
                Done,
            ),
            (
                "a step is waited for",
                applying(vec![step("files", Ok), step("volume etcd", Waiting), step("gate etcd", Pending)]),
                true,
                "waiting for deployments > name-n > volume etcd",
                Wait,
            ),
            ("a component fails now", with_component(ComponentState::Failed), true, "DEGRADED at node > component kubelet", Done),
            (
                "a component is on its way",
                with_component(ComponentState::Degraded),
                true,
                "DEGRADED at node > component kubelet",
                Done,
            ),
            ("every component is healthy", with_component(ComponentState::Healthy), true, "OK: every condition is met", Done),
            ("a gate is red", changed(|s| s.node = Some(failing_gate())), true, "FAILED at node > gate etcd", Bad),
            (
                "a red gate, as its deployment has it",
                changed(|s| (s.node, s.deployments[1].failed) = (Some(failing_gate()), true)),
                true,
                "FAILED at deployments > name-n > gate etcd",
                Bad,
            ),
            (
                "bad parameters leave the node as it was",
                changed(|s| (s.deployments[1].failed, s.deployments[1].reason) = (true, Some("HNA-0502".into()))),
                true,
                "FAILED at deployments > name-n",
                Bad,
            ),
            (
                "taken back by the operator, and healthy",
                changed(|s| {
                    s.node =
                        Some(NodeStatus { in_place: Some(1), reason: Some("why".into()), ..node(NodeState::Restored, vec![]) });
                }),
                true,
                "DEGRADED at node",
                Bad,
            ),
            (
                "being taken back by the operator",
                changed(|s| s.node = Some(node(NodeState::Restoring, vec![step("gate etcd", Waiting)]))),
                true,
                "waiting for node > gate etcd",
                Wait,
            ),
            (
                "rejected before a restart",
                changed(|s| s.node = Some(node(NodeState::Rejected, vec![]))),
                true,
                "FAILED at node",
                Bad,
            ),
            ("drift", changed(|s| s.node.as_mut().unwrap().drifted = true), true, "DEGRADED at node", Bad),
            ("unchecked", changed(|s| s.node.as_mut().unwrap().unchecked = true), true, "waiting for node", Wait),
            (
                "a route is missing",
                changed(|s| {
                    let wrong = vec!["there is no route to 10.100.3.0/24 of node 192.0.2.13".to_owned()];
                    let network = PodNetworkStatus { wrong, remedy: Some("restart".into()), ..PodNetworkStatus::default() };
                    s.node =
                        Some(NodeStatus { pod_network: Some(network), ..node(NodeState::Applied, vec![step("gate pods", Ok)]) });
                }),
                true,
                "DEGRADED at node > pod network",
                Done,
            ),
            (
                "a thin pool is nearly full",
                changed(|s| {
                    let pool = ThinPoolStatus { wrong: Some("91 % are used".into()), ..ThinPoolStatus::default() };
                    s.node =
                        Some(NodeStatus { thin_pool: Some(pool), ..node(NodeState::Applied, vec![step("gate docker", Ok)]) });
                }),
                true,
                "DEGRADED at node > thin pool",
                Done,
            ),
            (
                "masters have different service account keys",
                changed(|s| {
                    let keys =
                        ServiceAccountKeysStatus { wrong: vec!["m2 differs".into()], ..ServiceAccountKeysStatus::default() };
                    s.node = Some(NodeStatus {
                        service_account_keys: Some(Box::new(keys)),
                        ..node(NodeState::Applied, vec![step("gate docker", Ok)])
                    });
                }),
                true,
                "DEGRADED at node > service account keys",
                Done,
            ),
            (
                "a certificate is near its end",
                changed(|s| {
                    let steps = vec![step("certificates", Ok), step("gate etcd", Ok)];
                    s.node = Some(NodeStatus { certificates: Some(near_end()), ..node(NodeState::Applied, steps) });
                }),
                true,
                "DEGRADED at node > certificates",
                Done,
            ),
            (
                "a step that failed says more than what its certificates wait for",
                changed(|s| {
                    let steps = vec![step("certificates", Failed), step("gate etcd", Waiting)];
                    s.node = Some(NodeStatus { certificates: Some(near_end()), ..node(NodeState::Rejected, steps) });
                }),
                true,
                "FAILED at node > certificates",
                Bad,
            ),
            ("a signal waits", changed(|s| s.signals = vec![signal()]), true, "waiting for signals > http://heat/signal", Wait),
            (
                "a signal was refused for good",
                changed(|s| s.deployments[0].undelivered = true),
                true,
                "DEGRADED at signals > result of name-a (a)",
                Bad,
            ),
            (
                "what failed says more than what is waited for before it",
                changed(|s| (s.metadata.source, s.node) = (None, Some(failing_gate()))),
                true,
                "FAILED at node > gate etcd",
                Bad,
            ),
        ] {
            let tree = tree(&status, running);
            assert_eq!(headline(&tree), headline_, "{case}");
            assert_eq!(status.verdict(running), verdict, "{case}");
            let text = page(&tree, Timestamp::parse_rfc3339("2026-03-01T12:04:05Z").unwrap(), true, 200);
            assert!((5..=25).contains(&text.lines().count()), "{case}:\n{text}");
            assert_eq!(text.matches("=>").count(), usize::from(!headline_.starts_with("OK")), "{case}:\n{text}");
            assert_eq!(text.contains("its start waits for cloud-init"), case == "no daemon yet", "{text}");
        }
    }

    #[test]
    fn what_waiting_does_not_fix_has_failed_by_its_own_cause() {
        let left =
            || NodeStatus { deployment: Some("old".into()), ..node(NodeState::Rejected, vec![step("volume etcd", Waiting)]) };
        let refused = changed(|s| (s.node, s.deployments[1].failed) = (Some(left()), true));
        let superseded = changed(|s| s.node = Some(left()));
        let nothing_received = changed(|s| s.conditions.push(condition(ConditionId::Metadata, Failed)));
        for (status, headline_) in [
            (refused, "FAILED at deployments > name-n"),
            (superseded, "FAILED at node"),
            (nothing_received, "FAILED at metadata"),
        ] {
            let tree = tree(&status, true);
            assert_eq!((headline(&tree).as_str(), status.verdict(true)), (headline_, WaitProgress::Failed));
            let text = page(&tree, Timestamp(0), true, 200);
            assert!(!text.contains("waiting") && text.contains("remedy:") == (headline_ != "FAILED at metadata"), "{text}");
        }
    }

    #[test]
    fn degraded_is_what_failed_or_is_tried_again_not_what_is_on_its_way() {
        for (status, degraded) in vec![
            (finished(), false),
            (changed(|s| s.deployments[0].state = DeploymentState::Running), false),
            (changed(|s| s.deployments[0].failed = true), true),
            (changed(|s| s.deployments[0].undelivered = true), true),
            (changed(|s| s.conditions[0].state = Failed), true),
            (changed(|s| s.signals = vec![signal()]), true),
            (changed(|s| s.sources = vec![source(1)]), true),
            (changed(|s| s.node = Some(node(NodeState::Applying, vec![]))), true),
            (changed(|s| s.sources.clear()), true),
            (changed(|s| s.node.as_mut().unwrap().certificates = Some(near_end())), true),
            (
                changed(|s| {
                    let quiet = CertificatesStatus { waits: None, ..near_end() };
                    s.node.as_mut().unwrap().certificates = Some(quiet);
                }),
                false,
            ),
        ] {
            assert_eq!(status.is_degraded(), degraded, "{status:?}");
        }
    }

    #[test]
    fn the_page_says_since_when_how_often_when_next_why_and_what_to_do() {
        let mut status = changed(|s| s.sources = vec![source(3)]);
        status.sources[0].cause = Some("refused\x1b[2J".into());
        status.deployments.extend((0..40).map(|n| deployment(&format!("x{n}"), "script", DeploymentState::Seen, false)));
        let text = page(&tree(&status, true), Timestamp::parse_rfc3339("2026-03-01T12:04:05Z").unwrap(), true, 200);
        for part in [
            "DEGRADED at sources > cfn",
            "=> FAILED     cfn: last good 2026-03-01T12:00:00Z, tried 3 times, next try in 55.0s",
            "why: refused\\u{1b}[2J",
            "remedy: look at heat-api-cfn",
            "waiting    name-x0: script CREATE x0, since 2026-03-01T12:00:00Z (4m05s)",
            "and 36 more that are not OK",
            "ok         name-a, name-n",
            "ok       daemon: version 1, pid 7",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        let folded = page(&tree(&status, true), Timestamp(0), false, 200);
        assert!(!folded.contains("name-a") && !folded.contains("daemon"), "{folded}");
        assert!(folded.ends_with("   ok       7 more, and 40 that come later; --all shows them\n"), "{folded}");
        let mut gate = step("gate etcd", Waiting);
        gate.given_up = Some("2026-03-01T12:20:00Z".into());
        let status = changed(|s| s.node = Some(node(NodeState::Applying, vec![gate])));
        let text = page(&tree(&status, true), Timestamp::parse_rfc3339("2026-03-01T12:04:05Z").unwrap(), true, 200);
        assert!(text.contains("gate etcd, since 2026-03-01T12:00:00Z (4m05s), gives up in 15m55s"), "{text}");
        let later =
            Condition { waits_for: vec!["volume etcd".into(), "certificates".into()], ..condition("unit etcd".into(), Pending) };
        let steps = vec![step("files", Ok), step("volume etcd", Waiting), later];
        let status = changed(|s| s.node = Some(node(NodeState::Applying, steps)));
        let text = page(&tree(&status, true), Timestamp(0), true, 200);
        assert!(text.contains("pending    unit etcd (after volume etcd and certificates)"), "{text}");
        let status = changed(|s| s.node.as_mut().unwrap().certificates = Some(near_end()));
        let text = page(&tree(&status, true), Timestamp::parse_rfc3339("2026-03-01T12:04:05Z").unwrap(), true, 200);
        for part in ["=> waiting    certificates, since 2026", "why: server ends at 2026-06", "remedy: set CERTIFICATE_RENEWAL"] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        let running = changed(|s| {
            s.deployments = vec![
                deployment("a", "script", DeploymentState::Running, false),
                deployment("n", "kubernetes-node", DeploymentState::Running, false),
            ];
            s.deployments[0].note = Some("Heat replaced it by b".into());
        });
        let now = Timestamp::parse_rfc3339("2026-03-01T12:04:05Z").unwrap();
        let text = page(&tree(&running, true), now, true, 200);
        assert!(text.contains("logs --follow a; `heat-node-agent stop a` stops it") && !text.contains("stop n"), "{text}");
        assert!(text.contains("why: Heat replaced it by b"), "{text}");
    }
}
