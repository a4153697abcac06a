//! The page of `status`: one screen of what is so now. Pure: a status and the time in, text out.
//!
//! What is fine takes a row or is counted; what waits or fails comes with its cause, its next try and what to do.
//!
//! In: a status, the time, what the terminal can show. Out: lines, with colours where they are wanted. Never: a file or a clock that is
//! read here, or a control character out of the status.

mod headline;
mod layout;
#[cfg(test)]
pub(crate) mod tests;

use super::component::{self, ComponentState, ComponentStatus};
use super::condition_state::ConditionState;
use super::event::Phase;
use super::status::{
    CertificatesStatus, Condition, DeploymentState, DeploymentStatus, EtcdSnapshotsStatus, IdentityStatus, NodeState, NodeStatus,
    PodNetworkStatus, ServiceAccountKeysStatus, SourceStatus, StatusDocument, Subject, ThinPoolStatus,
};
use super::text::{escaped, shortened};
use super::volume::VolumeStatus;
use crate::clock::Timestamp;
pub use headline::{OverallState, headline};
pub use layout::Style;
use layout::{PageWriter, REMEDY, Row, Severity};

/// A server is rarely in more; each takes a line.
const STACKS: usize = 3;

/// The page. `room`: how much of the machine's disks is free.
#[must_use]
pub fn screen(status: &StatusDocument, running: bool, now: Timestamp, room: Option<&str>, style: Style) -> String {
    let mut sheet = PageWriter::new(style);
    let (overall, line) = headline(status, running);
    sheet.headline(&line, overall.tone());
    let ignored = status.identity.as_ref().and_then(IdentityStatus::ignored);
    ignored.iter().filter(|ignored| line.contains(*ignored)).for_each(|ignored| sheet.know(ignored));
    sheet.gap();
    facts(status, running, now, &mut sheet);
    if let Some(node) = &status.node {
        // What the first line says of a component its row need not say again.
        let named = component::worst(&node.components).filter(|worst| line.contains(&worst.headline()));
        let named = named.map(|component| component.name.as_str());
        sheet.table(&["COMPONENT", "STATE", "SINCE", "RESTARTS", "DETAIL"], &component_rows(node, named, now));
        sheet.table(&["VOLUME", "STATE", "SINCE", "DISK", "PLACE"], &volume_rows(node, now));
    }
    sheet.table(&["SOURCE", "STATE", "ANSWERED", "DETAIL"], &source_rows(status, now));
    deployments(status, now, &mut sheet);
    signals(status, now, &mut sheet);
    sheet.gap();
    if let Some(node) = &status.node {
        below(node, now, &mut sheet);
    }
    sheet.fact("free space", room.unwrap_or_default());
    if sheet.is_verbose() {
        everything(status, &mut sheet);
    }
    sheet.text()
}

/// Who the node is, and what its agent says of itself.
fn facts(status: &StatusDocument, running: bool, now: Timestamp, sheet: &mut PageWriter) {
    if let Some(node) = &status.node {
        let version = node.kube_version.as_ref().map(|version| format!("Kubernetes {version}"));
        let generation = match node.in_place.filter(|_| node.state == NodeState::Restored) {
            Some(number) => {
                format!("generation {number} is in place by `rollback`, Heat asks for generation {}", node.generation)
            }
            None => format!("generation {} {}", node.generation, node.state_in_words()),
        };
        let all = [node.name.clone(), node.role.clone(), version, Some(generation)];
        sheet.fact("node", &all.into_iter().flatten().collect::<Vec<_>>().join(", "));
        reason(node, sheet);
        if let Some(rollback) = rollback(node) {
            sheet.fact("rollback", &rollback);
        }
        if let Some(drift) =
            node.drift().filter(|_| node.drifted && (node.state == NodeState::Applied || node.in_place.is_some()))
        {
            sheet.fact(if node.has_volume_problem() { "volume" } else { "drift" }, &drift);
            sheet.note(REMEDY, node.drift_remedy());
        }
    }
    if let Some(stacks) = stacks(status) {
        sheet.fact("stack", &stacks);
    }
    let agent = if running {
        let since = ago(Some(&status.agent.started), now);
        let pid = if sheet.is_verbose() { format!(", pid {}", status.agent.pid) } else { String::new() };
        // Nothing is under way in the last of them, however that ended.
        let phase = Some(status.phase).filter(|phase| *phase != Phase::Steady);
        let phase = phase.map_or(String::new(), |phase| format!(", phase {}", phase.as_str()));
        let since = if since.is_empty() { String::new() } else { format!(" for {since}") };
        format!("{}, running{since}{pid}{phase}", status.agent.version)
    } else {
        format!("{}, not running: start it with `systemctl start --no-block heat-node-agent`", status.agent.version)
    };
    sheet.fact("agent", &agent);
    for condition in status.conditions.iter().filter(|one| one.state == ConditionState::Failed) {
        sheet.fact(&escaped(condition.name.as_str()), condition.cause.as_deref().unwrap_or_default());
        remedy(condition.remedy.as_ref(), sheet);
    }
    if let Some(identity) = &status.identity {
        self::identity(identity, sheet);
    }
}

/// Which stacks remedies mean that ask for an update: those of the deployments that Heat lists.
fn stacks(status: &StatusDocument) -> Option<String> {
    let mut all: Vec<&str> = status.deployments.iter().filter(|one| one.listed).filter_map(|one| one.stack.as_deref()).collect();
    all.sort_unstable();
    all.dedup();
    let named = |stack: &&str| match stack.split_once('/') {
        Some((name, id)) => shortened(&format!("{name} ({id})"), 96),
        None => shortened(stack, 96),
    };
    let more = all.len().saturating_sub(STACKS);
    let mut shown: Vec<String> = all.iter().take(STACKS).map(named).collect();
    if more > 0 {
        shown.push(format!("{more} more"));
    }
    (!shown.is_empty()).then(|| shown.join(", "))
}

fn remedy(remedy: Option<&String>, sheet: &mut PageWriter) {
    if let Some(remedy) = remedy {
        sheet.note(REMEDY, remedy);
    }
}

fn identity(identity: &IdentityStatus, sheet: &mut PageWriter) {
    match (&identity.instance, &identity.cause) {
        (Some(instance), _) if sheet.is_verbose() || identity.copy_of.is_some() => sheet.fact("instance", instance),
        (Some(_), _) => {}
        (None, cause) => {
            let cause = cause.as_deref().unwrap_or_default();
            sheet.fact("instance", &format!("UNKNOWN, so nothing is run or sent: {cause}"));
            remedy(identity.remedy.as_ref(), sheet);
        }
    }
    match (&identity.copy_of, &identity.moved_to) {
        (Some(other), Some(place)) if identity.left_over.is_empty() => {
            sheet.note("", &format!("the disk is a copy of instance {other}, whose state is kept in {place} and not used"));
        }
        (_, Some(place)) => sheet.note("", &format!("the other instance's state is kept in {place} and not used")),
        _ => {}
    }
    if let Some(ignored) = identity.ignored() {
        sheet.note("why", &ignored);
    }
    for remedy in identity.left_over_remedies() {
        sheet.note(REMEDY, &remedy);
    }
}

/// A row a component as it was measured; of a node on its way, and before the first measurement, as its steps are.
fn component_rows(node: &NodeStatus, named: Option<&str>, now: Timestamp) -> Vec<Row> {
    if node.has_measured_components() {
        let failed = node.failed_steps().filter_map(|step| Some(step_row(&row_of(step)?, step, true, now)));
        let row = |component: &ComponentStatus| measured(component, named, now);
        return node.components.iter().map(row).chain(failed).collect();
    }
    let mut rows: Vec<(String, &Condition)> = Vec::new();
    for step in &node.steps {
        let Some(name) = row_of(step) else { continue };
        // Which of the gates without a row of their unit has been asked by now is chance; what they answered is not.
        let is_shown =
            |cause: &String| node.steps.iter().any(|other| other.name != step.name && other.cause.as_ref() == Some(cause));
        let is_waiting_gate = step.state == ConditionState::Waiting && matches!(step.subject, Some(Subject::Gate(_)));
        match rows.iter_mut().find(|(other, _)| *other == name) {
            // Its gate comes after its unit.
            Some((_, worst)) if rank(step) >= rank(worst) => *worst = step,
            Some(_) => {}
            None if is_waiting_gate && step.cause.as_ref().is_none_or(is_shown) => {}
            None => rows.push((name, step)),
        }
    }
    let is_given_up = node.state == NodeState::Rejected;
    // What came up before the failure may have failed since.
    let fails_now = |name: &str, step: &Condition| {
        let is_over = is_given_up && step.state == ConditionState::Ok;
        node.components.iter().find(|component| is_over && component.name == name && component.is_unhealthy())
    };
    let row = |(name, step): (String, &Condition)| match fails_now(&name, step) {
        Some(component) => measured(component, named, now),
        None => step_row(&name, step, is_given_up, now),
    };
    rows.into_iter().map(row).collect()
}

/// What became of the node after a failure, where no row below says so with its cause.
fn rollback(node: &NodeStatus) -> Option<String> {
    match node.state {
        NodeState::Rejected if node.failed_steps().next().is_none() => None,
        NodeState::Rejected => node.failure_before_rollback().map(|why| why.join("; ")).or_else(|| node.rollback.clone()),
        _ => node.rollback.clone(),
    }
}

/// `named`: the component whose problem was said.
fn measured(component: &ComponentStatus, named: Option<&str>, now: Timestamp) -> Row {
    let (word, tone) = match component.state {
        ComponentState::Healthy => ("healthy", Severity::Good),
        ComponentState::Degraded => ("degraded", Severity::Odd),
        ComponentState::Failed => ("FAILED", Severity::Bad),
    };
    let tone_of_restarts = if component.restarts > 0 { Severity::Odd } else { Severity::Plain };
    Row::new(&component.name)
        .cell(word, tone)
        .cell(ago(Some(&component.since), now), Severity::Plain)
        .cell(component.restarts.to_string(), tone_of_restarts)
        .detail(component.problem.clone().unwrap_or_default())
        .said(named == Some(component.name.as_str()))
        .note("why", component.cause.as_ref())
        .note(REMEDY, component.remedy.as_ref())
}

/// The row of a step: a unit's, with the gate of the same name. What comes before and beside them has one while it is not done, and
/// volumes have a table of their own.
fn row_of(step: &Condition) -> Option<String> {
    let is_open = matches!(step.state, ConditionState::Waiting | ConditionState::Failed);
    match &step.subject {
        Some(Subject::Volume(_)) => None,
        Some(Subject::Unit(unit)) => {
            (is_open || !unit.starts_with("systemd-")).then(|| unit.trim_end_matches(".service").to_owned())
        }
        Some(Subject::Gate(gate)) => is_open.then(|| gate.clone()),
        None => is_open.then(|| step.name.to_string()),
    }
}

fn rank(step: &Condition) -> u8 {
    match step.state {
        ConditionState::Ok => 0,
        ConditionState::Pending => 1,
        ConditionState::Waiting => 2,
        ConditionState::Failed | ConditionState::Degraded => 3,
    }
}

fn step_row(name: &str, step: &Condition, is_given_up: bool, now: Timestamp) -> Row {
    let (word, tone) = match step.state {
        ConditionState::Ok => ("up", Severity::Good),
        ConditionState::Pending => ("pending", Severity::Plain),
        ConditionState::Waiting if is_given_up => ("pending", Severity::Plain),
        ConditionState::Waiting => ("waiting", Severity::Odd),
        ConditionState::Failed | ConditionState::Degraded => ("FAILED", Severity::Bad),
    };
    let row = Row::new(name).cell(word, tone).cell(ago(step.since.as_ref(), now), Severity::Plain).cell("", Severity::Plain);
    match step.state {
        ConditionState::Ok => row,
        ConditionState::Pending if step.waits_for.is_empty() => row,
        ConditionState::Pending => row.detail(format!("after {}", step.waits_for.join(" and "))),
        ConditionState::Waiting if is_given_up => row,
        ConditionState::Waiting => {
            row.detail(tries(step, now)).note("why", step.cause.as_ref()).note(REMEDY, step.remedy.as_ref())
        }
        ConditionState::Failed | ConditionState::Degraded => {
            row.note("why", step.cause.as_ref()).note(REMEDY, step.remedy.as_ref())
        }
    }
}

/// `tried 31 times, next in 12s, gives up in 4m`.
fn tries(step: &Condition, now: Timestamp) -> String {
    let mut parts = Vec::new();
    if step.attempt > 1 {
        parts.push(format!("tried {} times", step.attempt));
    }
    parts.extend(ahead(step.next_try.as_ref(), now).map(|wait| format!("next try in {wait}")));
    parts.extend(ahead(step.given_up.as_ref(), now).map(|wait| format!("gives up in {wait}")));
    parts.join(", ")
}

/// Why a node was refused that no step says, and what to do.
fn reason(node: &NodeStatus, sheet: &mut PageWriter) {
    match node.state {
        NodeState::Rejected if node.failed_steps().next().is_none() => {
            for cause in node.why() {
                sheet.note("why", &cause);
            }
        }
        // The line above says why.
        NodeState::Restored => {}
        _ => return,
    }
    remedy(node.remedy.as_ref(), sheet);
}

fn volume_rows(node: &NodeStatus, now: Timestamp) -> Vec<Row> {
    let row = |volume: &VolumeStatus| {
        let (word, tone) = match volume.state {
            Some(ConditionState::Ok) => ("in place", Severity::Good),
            Some(ConditionState::Waiting) => ("waiting", Severity::Odd),
            Some(ConditionState::Failed | ConditionState::Degraded) => ("FAILED", Severity::Bad),
            Some(ConditionState::Pending) => ("pending", Severity::Plain),
            None => ("unknown", Severity::Plain),
        };
        let is_open = matches!(volume.state, Some(ConditionState::Waiting | ConditionState::Failed));
        let step = node.step_of_volume(&volume.name).filter(|_| volume.state == Some(ConditionState::Waiting));
        let of_step = step.map(|step| tries(step, now));
        Row::new(&volume.name)
            .cell(word, tone)
            .cell(ago(volume.since.as_ref(), now), Severity::Plain)
            .cell(volume.disk.clone(), Severity::Plain)
            .detail(volume.place.clone())
            .note("", of_step.as_ref())
            .note("why", volume.cause.as_ref().filter(|_| is_open))
            .note(REMEDY, volume.remedy.as_ref().filter(|_| is_open))
    };
    node.volumes.iter().map(row).collect()
}

fn source_rows(status: &StatusDocument, now: Timestamp) -> Vec<Row> {
    let row = |source: &SourceStatus| {
        let answered =
            source.last_good.as_ref().map_or("never".to_owned(), |_| format!("{} ago", ago(source.last_good.as_ref(), now)));
        let (word, tone) = match (source.failures, &source.last_good) {
            (0, Some(_)) => ("ok", Severity::Good),
            (0, None) => ("waiting", Severity::Odd),
            _ => ("FAILED", Severity::Bad),
        };
        let row = Row::new(&source.name).cell(word, tone).cell(answered, Severity::Plain);
        if source.failures == 0 {
            let older = if source.older { "a newer list stays in force until it answers again" } else { "" };
            return row.detail(older);
        }
        let next = ahead(source.next_try.as_ref(), now).map(|wait| format!(", next try in {wait}")).unwrap_or_default();
        let times = if source.failures == 1 { "once".to_owned() } else { format!("{} times", source.failures) };
        row.detail(format!("failed {times}{next}")).note("why", source.cause.as_ref()).note(REMEDY, source.remedy.as_ref())
    };
    status.sources.iter().map(row).collect()
}

/// What is not done or ended badly, a row each; the rest is counted.
fn deployments(status: &StatusDocument, now: Timestamp, sheet: &mut PageWriter) {
    let all = sheet.is_verbose();
    let is_open =
        |one: &DeploymentStatus| one.listed && (one.failed || one.undelivered || one.state != DeploymentState::Signalled);
    let is_shown = |one: &&DeploymentStatus| all || is_open(one) || one.state == DeploymentState::Running;
    let node = status.node.as_ref();
    let rows: Vec<Row> = status.deployments.iter().filter(is_shown).map(|one| deployment_row(one, node, all, now)).collect();
    let (heads, done) =
        (["DEPLOYMENT", "STATE", "SINCE", "ID", "DETAIL"], status.deployments.iter().filter(|one| !is_shown(one)));
    let (listed, gone): (Vec<_>, Vec<_>) = done.partition(|one| one.listed);
    sheet.table(&heads, &rows);
    let mut counted = Vec::new();
    match &listed[..] {
        [] => {}
        [one] => counted.push(format!("{} succeeded", one.name)),
        many => counted.push(format!("{} succeeded", many.len())),
    }
    if !gone.is_empty() {
        counted.push(format!("{} no longer in the stack", gone.len()));
    }
    if counted.is_empty() && rows.is_empty() {
        counted.push("none".to_owned());
    }
    if rows.is_empty() {
        sheet.gap();
    }
    let also = if rows.is_empty() || counted.is_empty() { "" } else { "also " };
    sheet.fact("deployments", &format!("{also}{}", counted.join(", ")));
}

fn deployment_row(one: &DeploymentStatus, node: Option<&NodeStatus>, all: bool, now: Timestamp) -> Row {
    let ended = one.state.has_ended();
    let (word, tone) = match one.state {
        _ if ended && one.failed => ("FAILED", Severity::Bad),
        _ if ended && one.undelivered => ("unheard", Severity::Bad),
        DeploymentState::Signalled => ("succeeded", Severity::Good),
        // Its result waits in the outbox.
        DeploymentState::Finished => ("finished", Severity::Odd),
        DeploymentState::Running => ("running", Severity::Odd),
        DeploymentState::Seen => ("waiting", Severity::Plain),
    };
    // Why it failed is below.
    let code = one.status_code.filter(|code| *code != 0 && !one.failed).map(|code| format!("status {code}"));
    let gone = (!one.listed).then(|| "it left the stack".to_owned());
    let detail: Vec<String> = code.into_iter().chain(gone).collect();
    let row = Row::new(&one.name)
        .cell(word, tone)
        .cell(ago(one.since.as_ref(), now), Severity::Plain)
        .cell(one.id.clone(), Severity::Plain)
        .detail(detail.join("; "));
    // The node's own rows say why.
    let is_of_node =
        !all && node.is_some_and(|node| node.deployment.as_ref() == Some(&one.id) && node.state == NodeState::Rejected);
    let is_own = ended && !is_of_node;
    row.note("", one.run_time(now).as_ref())
        .notes("why", if is_own { one.why() } else { Vec::new() })
        .note("note", one.note.as_ref())
        .note(REMEDY, one.remedy().filter(|_| is_own).as_ref())
}

fn signals(status: &StatusDocument, now: Timestamp, sheet: &mut PageWriter) {
    let row = |signal: &super::status::SignalStatus| {
        let named = |id: &String| status.deployments.iter().find(|one| one.id == *id).map(|one| one.name.clone());
        let about = signal.deployment.as_ref().and_then(named);
        let next = ahead(signal.next_try.as_ref(), now).map(|wait| format!(", next try in {wait}")).unwrap_or_default();
        let tried = match signal.tries {
            0 => "not sent yet".to_owned(),
            1 => format!("sent once{next}"),
            tries => format!("sent {tries} times{next}"),
        };
        Row::new(about.as_deref().unwrap_or("wait condition"))
            .cell(ago(signal.since.as_ref(), now), Severity::Plain)
            .detail(tried)
            .note("to", Some(&signal.to))
            .note("why", signal.cause.as_ref())
            .note(REMEDY, signal.remedy.as_ref())
    };
    sheet.table(&["PENDING SIGNAL", "SINCE", "DETAIL"], &status.signals.iter().map(row).collect::<Vec<_>>());
}

/// What is said of the node below the tables.
fn below(node: &NodeStatus, now: Timestamp, sheet: &mut PageWriter) {
    if let Some(all) = &node.certificates {
        certificates(all, now, sheet);
    }
    if let Some(network) = &node.pod_network {
        pod_network(network, sheet);
    }
    if let Some(pool) = &node.thin_pool {
        thin_pool(pool, sheet);
    }
    if let Some(all) = &node.etcd_snapshots {
        etcd_snapshots(all, now, sheet);
    }
    if let Some(keys) = &node.service_account_keys {
        service_account_keys(keys, sheet);
    }
}

fn certificates(all: &CertificatesStatus, now: Timestamp, sheet: &mut PageWriter) {
    let date = all.first_expiry.split('T').next().unwrap_or_default();
    let line = match ahead(Some(&all.first_expiry), now) {
        Some(left) => format!("the next to expire is {}, in {left} ({date})", all.first_to_expire),
        None => format!("{} expired on {date}", all.first_to_expire),
    };
    sheet.fact("certificates", &line);
    if let Some(waits) = &all.waits {
        sheet.note("", waits.cause.as_deref().unwrap_or_default());
        remedy(waits.remedy.as_ref(), sheet);
    }
}

fn pod_network(network: &PodNetworkStatus, sheet: &mut PageWriter) {
    let subnet = network.subnet.as_deref().unwrap_or("unknown");
    sheet.fact("pod network", &format!("{}, subnet {subnet}, other nodes: {}", network.driver, network.peers));
    for wrong in &network.wrong {
        sheet.note("WRONG", wrong);
    }
    remedy(network.remedy.as_ref(), sheet);
}

fn thin_pool(pool: &ThinPoolStatus, sheet: &mut PageWriter) {
    let unknown = || "unknown".to_owned();
    let shown = |percent: &Option<String>| percent.as_ref().map_or_else(unknown, |percent| format!("{percent} %"));
    let size = pool.size_mib.map_or_else(unknown, |size| format!("{size} MiB"));
    sheet.fact(
        "thin pool",
        &format!("{size}, data {} used, metadata {} used", shown(&pool.data_percent), shown(&pool.metadata_percent)),
    );
    if let Some(wrong) = &pool.wrong {
        sheet.note("WRONG", wrong);
    }
    remedy(pool.remedy.as_ref(), sheet);
}

fn etcd_snapshots(all: &EtcdSnapshotsStatus, now: Timestamp, sheet: &mut PageWriter) {
    let newest = all.newest.as_ref().map(|at| format!(", the newest from {} ago", ago(Some(at), now))).unwrap_or_default();
    sheet.fact("snapshots", &format!("{} of etcd{newest}, {} MiB", all.kept, all.bytes.div_ceil(1024 * 1024)));
    if let Some(wrong) = &all.wrong {
        sheet.note("WRONG", wrong);
    }
    remedy(all.remedy.as_ref(), sheet);
}

fn service_account_keys(keys: &ServiceAccountKeysStatus, sheet: &mut PageWriter) {
    let many = if keys.masters == 1 { "master" } else { "masters" };
    sheet.fact("token keys", &format!("compared with {} other {many}", keys.masters));
    for wrong in &keys.wrong {
        sheet.note("WRONG", wrong);
    }
    if let Some(why) = &keys.unknown {
        sheet.note("", &format!("not compared since: {why}"));
    }
    remedy(keys.remedy.as_ref(), sheet);
}

/// What only who asks for everything wants to see.
fn everything(status: &StatusDocument, sheet: &mut PageWriter) {
    sheet.fact("started", &status.agent.started);
    for budget in &status.budgets {
        let amount_of =
            |amount: u64| if budget.unit == "bytes" { format!("{} KiB", amount.div_ceil(1024)) } else { amount.to_string() };
        sheet.fact("budget", &format!("{}: {} of {}", budget.name, amount_of(budget.used), amount_of(budget.limit)));
    }
    for kept in &status.set_aside {
        sheet.fact("set aside", &format!("{} ({}), which nothing uses; `{}` removes it", kept.path, kept.size(), kept.remove));
    }
}

/// How long ago that was: `12s`, `4m`, `5h`, `3d`.
fn ago(at: Option<&String>, now: Timestamp) -> String {
    at.and_then(|at| Timestamp::parse_rfc3339(at)).map_or(String::new(), |at| span(now.since(at)))
}

/// How long until then; nothing where that is past.
fn ahead(at: Option<&String>, now: Timestamp) -> Option<String> {
    let left = at.and_then(|at| Timestamp::parse_rfc3339(at))?.since(now);
    (!left.is_zero()).then(|| span(left))
}

fn span(span: std::time::Duration) -> String {
    let seconds = span.as_secs();
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7_200 => format!("{}m", seconds / 60),
        7_200..172_800 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}
