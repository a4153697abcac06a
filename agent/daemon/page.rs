//! The daemon's state as the status document.

use super::agent::Agent;
use super::agent::view::ids;
use super::node::{Outline, WaitReason};
use crate::budgets;
use crate::certificates::judge::{Flaw, renewal_due};
use crate::clock::Timestamp;
use crate::collect::{Snapshot, SourceState};
use crate::deploy::{DeploymentRecord, DeploymentState, Generation, GenerationState};
use crate::error::Error;
use crate::error::remedy::Remedy;
use crate::files::Tree;
use crate::keepers::certificates::{CertificateInspection, CertificateVerdict, InspectedCertificate, RotationProgress, next};
use crate::keepers::volumes::PoolInspection;
use crate::report::component::take_in_volume_problem;
use crate::report::condition_state::ConditionState;
use crate::report::follow_up::FollowUp;
use crate::report::reason::FailureReason;
use crate::report::screen::{OverallState, headline};
use crate::report::status::{
    AgentStatus, BudgetStatus, CertificateEnd, CertificatesStatus, Condition, ConditionId, DeploymentStatus, IdentityStatus,
    MetadataStatus, NodeState, NodeStatus, SCHEMA_VERSION, SignalStatus, SourceStatus, StatusDocument, ThinPoolStatus,
};
use crate::report::step_timing::timings;
use crate::report::text::argument;
use crate::report::{Code, Phase};
use crate::settings::Warning;
use crate::signal::QueuedSignal;
use crate::storage::thin_pool::percent;

/// Deployments shown that the metadata does not list any more; older ones are in the journal.
const SHOWN: usize = 50;

/// What there is to show.
pub(super) fn of(agent: &Agent) -> StatusDocument {
    let snapshot = agent.collector.snapshot();
    let identity = identity(agent);
    let waits = snapshot.authority.is_none();
    let planned_stop =
        agent.running().and_then(|record| agent.job_task.planned_stop(record, agent.host.settings.deploy.replaced_grace));
    let mut status = StatusDocument {
        schema_version: SCHEMA_VERSION,
        agent: this_process(agent.started),
        identity: Some(identity.clone()),
        phase: agent.publisher.phase,
        summary: String::new(),
        sources: sources(snapshot),
        deployments: deployments(&agent.ledger.journal.all(), snapshot, planned_stop.as_deref()),
        node: agent.ledger.generations.current().map(|current| node_now(agent, current)),
        signals: signals(&agent.ledger.outbox.waiting()),
        conditions: agent
            .publisher
            .conditions
            .iter()
            .chain(agent.trouble.condition().or(agent.ledger.unstored.condition()))
            .chain(agent.held())
            .cloned()
            .chain([identity.condition(waits)])
            .chain(metadata(snapshot))
            .chain(agent.phases.condition())
            .collect(),
        metadata: MetadataStatus {
            source: snapshot.authority.as_ref().map(|authority| authority.source.to_owned()),
            expected: snapshot.is_expected(),
            listed: snapshot.deployments.as_ref().map(|list| list.len()),
        },
        budgets: budgets(agent),
        set_aside: agent.disk.set_aside.clone(),
    };
    status.summary = summary(headline(&status, true), work(agent), agent.ledger.journal.signalled_count());
    status
}

/// The node as the newest run and the newest look left it.
fn node_now(agent: &Agent, current: &Generation) -> NodeStatus {
    let inspection = &agent.node_task.inspection;
    let seen = inspection.certificates.as_ref();
    let of_record = node(current);
    let found = if inspection.drifted { agent.node_task.node.differences() } else { Vec::new() };
    let difference_fact = found.iter().find_map(|cause| cause.fact.clone());
    let difference_remedy = found.iter().find_map(|cause| cause.remedy.clone());
    let mut components = agent.node_task.components();
    // A volume that needs somebody, in a few words: nothing else has those.
    if difference_fact.is_some() {
        take_in_volume_problem(&mut components);
    }
    let known = NodeStatus {
        unchecked: is_unchecked(agent),
        drifted: inspection.drifted,
        differences: found.iter().map(|cause| cause.text.clone()).collect(),
        difference_units: found.iter().map(|cause| cause.unit().unwrap_or_default().to_owned()).collect(),
        difference_remedy,
        difference_fact,
        steps: agent.progress.steps(),
        // Until it ends they are on no disk.
        step_timings: if current.state == GenerationState::Applying {
            agent.progress.step_timings()
        } else {
            current.step_timings.clone()
        },
        certificates: seen.and_then(|seen| certificates(&seen.inspection, seen.rotation, seen.renewal.as_ref())),
        pod_network: agent.node_task.pod_network.status.clone(),
        thin_pool: inspection.thin_pool.as_ref().map(thin_pool),
        etcd_snapshots: agent.node_task.snapshots.status(),
        service_account_keys: agent.node_task.token_keys.status().map(Box::new),
        components,
        rollback: agent.node_task.node.going_back().or_else(|| of_record.rollback.clone()),
        ..of_record
    };
    match agent.node_task.node.outline() {
        Some(outline) => outline.show(known, inspection.is_whole && !inspection.drifted),
        None => known,
    }
}

/// Whether how a node in place is was found out before this run of the agent alone, so that it may be otherwise by now.
fn is_unchecked(agent: &Agent) -> bool {
    let current = agent.ledger.generations.current();
    current.is_some_and(|current| current.state == GenerationState::Applied) && agent.node_task.is_unchecked()
}

/// What may be taken of memory and disk, and what is.
fn budgets(agent: &Agent) -> Vec<BudgetStatus> {
    let of = |name: &str, unit: &str, used: u64, limit: usize| BudgetStatus {
        name: name.to_owned(),
        unit: unit.to_owned(),
        used,
        limit: limit as u64,
    };
    let listed = agent.collector.snapshot().deployments.as_ref().map_or(0, |list| list.len());
    vec![
        of("memory", "bytes", agent.publisher.most_memory(), budgets::MEMORY),
        of("metadata in memory", "bytes", agent.collector.weight() as u64, budgets::HELD_MEMORY),
        of("deployments listed", "items", listed as u64, budgets::DEPLOYMENTS),
        of("records in memory", "bytes", agent.ledger.journal.weight() as u64, 2 * budgets::RECORDS_MEMORY),
        of("signals on disk", "bytes", agent.ledger.outbox.bytes() as u64, budgets::OUTBOX_DISK),
        of("output of deployments on disk", "bytes", agent.disk.sum, budgets::JOBS_DISK),
        of("states of other instances on disk", "bytes", agent.disk.aside, budgets::ASIDE_DISK),
        of("unreadable files on disk", "bytes", agent.disk.unreadable, budgets::UNREADABLE_DISK),
    ]
}

/// What is known on disk where no daemon has run since the boot: the same page, without a process.
pub(crate) fn of_state(
    snapshot: &Snapshot,
    records: &[DeploymentRecord],
    generation: Option<&Generation>,
    waiting: &[QueuedSignal],
    root: &Tree,
) -> StatusDocument {
    StatusDocument {
        schema_version: SCHEMA_VERSION,
        agent: AgentStatus { version: env!("CARGO_PKG_VERSION").to_owned(), pid: 0, started: "never since boot".to_owned() },
        phase: Phase::Settings,
        identity: None,
        summary: "the daemon has not run since boot".to_owned(),
        sources: sources(snapshot),
        deployments: deployments(&records.iter().collect::<Vec<_>>(), snapshot, None),
        node: generation.map(|generation| match Outline::of_entry(&generation.entry, root) {
            Some(outline) => outline.show(node(generation), false),
            None => node(generation),
        }),
        signals: signals(waiting),
        conditions: Vec::new(),
        metadata: MetadataStatus { source: None, expected: true, listed: snapshot.deployments.as_ref().map(|list| list.len()) },
        budgets: Vec::new(),
        set_aside: Vec::new(),
    }
}

fn sources(snapshot: &Snapshot) -> Vec<SourceStatus> {
    let source = |(name, source): (&&str, &SourceState)| SourceStatus {
        name: (*name).to_owned(),
        last_good: source.last_good.map(Timestamp::rfc3339),
        older: snapshot.awaited == Some(*name),
        failures: source.failures,
        cause: source.cause.clone(),
        remedy: source.remedy.clone(),
        // Of a source that answers it would be news at each poll, and nobody's.
        next_try: source.next_try.filter(|_| source.failures > 0).map(Timestamp::rfc3339),
    };
    snapshot.sources.iter().map(source).collect()
}

/// `planned_stop`: what is known of the end of the one script or hook that runs.
fn deployments(records: &[&DeploymentRecord], snapshot: &Snapshot, planned_stop: Option<&str>) -> Vec<DeploymentStatus> {
    let listed = ids(snapshot);
    let unexplained = |record: &&DeploymentRecord| DeploymentStatus {
        id: record.id.clone(),
        name: record.name.clone(),
        group: record.group.clone(),
        stack: record.resource.as_ref().map(|(stack, _)| stack.clone()),
        action: record.action.clone(),
        state: record.state,
        status_code: record.outcome.as_ref().map(|outcome| outcome.status),
        reason: None,
        code: None,
        causes: Vec::new(),
        remedy: None,
        note: if record.state == DeploymentState::Running && record.is_job() {
            planned_stop.map(str::to_owned)
        } else {
            record.notes().map(str::to_owned)
        },
        listed: listed.contains(&record.id),
        failed: record.failed(),
        since: Some(record.finished.or(record.started).unwrap_or(record.seen).rfc3339()),
        undelivered: record.undelivered,
        said_last: None,
        given_up: None,
    };
    let deployment = |record: &&DeploymentRecord| {
        let mut one = unexplained(record);
        if let Some(reason) = record.outcome.as_ref().and_then(|outcome| outcome.reason.as_ref()) {
            one.explain(reason);
        }
        one
    };
    // What is listed counts for how things stand, however old it is.
    let newest = records.len().saturating_sub(SHOWN);
    let shown = records.iter().enumerate().filter(|(at, record)| *at >= newest || listed.contains(&record.id));
    shown.map(|(_, record)| deployment(record)).collect()
}

fn node(current: &Generation) -> NodeStatus {
    let by_hand = current.back.is_some_and(|back| back.by_hand);
    let state = match current.state {
        GenerationState::Applying => NodeState::Applying,
        GenerationState::Applied => NodeState::Applied,
        GenerationState::Rejected if by_hand => NodeState::Restored,
        GenerationState::Rejected => NodeState::Rejected,
        GenerationState::Restoring => NodeState::Restoring,
    };
    let mut node = NodeStatus {
        generation: current.number,
        state,
        in_place: current.in_place().filter(|number| *number != current.number),
        deployment: Some(current.deployment.clone()),
        timings: if current.state == GenerationState::Applied { timings(&current.step_timings) } else { Vec::new() },
        step_timings: current.step_timings.clone(),
        ..NodeStatus::default()
    };
    if let Some(reason) = &current.reason {
        node.explain(reason);
    } else if let Some(back) = current.back.filter(|_| current.state == GenerationState::Restoring) {
        node.rollback = Some(format!("to generation {} under way, by `heat-node-agent rollback`", back.to));
    } else if let Some(back) = current.back.filter(|back| back.by_hand && current.state == GenerationState::Rejected) {
        let line = format!("generation {} is in place by `rollback`, Heat asks for generation {}", back.to, current.number);
        let remedy = format!("`heat-node-agent rerun {}` applies it again, or update the stack", argument(&current.deployment));
        node.explain(&FailureReason { causes: vec![line], remedy: Some(Remedy::said(&remedy)), ..FailureReason::default() });
    }
    node
}

fn signals(waiting: &[QueuedSignal]) -> Vec<SignalStatus> {
    let signal = |entry: &QueuedSignal| SignalStatus {
        to: entry.destination.shown(),
        deployment: entry.about.as_ref().map(|about| about.id.clone()),
        tries: entry.tries,
        cause: entry.cause.clone(),
        remedy: entry
            .cause
            .as_ref()
            .map(|_| entry.remedy.clone().unwrap_or_else(|| Code::SignalRetry.remedy()))
            .map(|remedy| FollowUp::TriesAgain.of(&remedy).to_string()),
        since: Some(entry.created.rfc3339()),
        next_try: (entry.tries > 0).then(|| entry.not_before.rfc3339()),
    };
    waiting.iter().map(signal).collect()
}

/// How full docker's thin pool is.
fn thin_pool(inspection: &PoolInspection) -> ThinPoolStatus {
    ThinPoolStatus {
        size_mib: inspection.fill.map(|fill| fill.size >> 20),
        data_percent: inspection.fill.map(|fill| percent(fill.data)),
        metadata_percent: inspection.fill.map(|fill| percent(fill.metadata)),
        wrong: inspection.wrong.as_ref().map(ToString::to_string),
        remedy: inspection.wrong.as_ref().and_then(|error| error.suggested_remedy().map(str::to_owned)),
        since: inspection.since.rfc3339(),
    }
}

/// What a look at the certificates of a node in place found; `rotation`: how far a CA rotation is.
fn certificates(
    inspection: &CertificateInspection,
    rotation: Option<RotationProgress>,
    renewal: Option<&WaitReason>,
) -> Option<CertificatesStatus> {
    let ends = inspection.items.iter().filter_map(|item| Some((item.end?, &item.name)));
    let (first_expiry, first_to_expire) = ends.min_by_key(|(end, _)| *end)?;
    let near: Vec<_> = inspection
        .items
        .iter()
        .filter(|item| item.verdict == CertificateVerdict::NearEnd || item.is_outside_its_time())
        .collect();
    let waits = |cause: String, code: Code, since: Option<Timestamp>| Condition {
        name: ConditionId::Certificates,
        state: ConditionState::Waiting,
        since: since.map(Timestamp::rfc3339),
        cause: Some(cause),
        remedy: Some(code.entry().remedy.to_owned()),
        ..Condition::default()
    };
    let next = rotation.and_then(|rotation| Some((rotation.since, next(rotation.step)?)));
    let waits = match next {
        _ if let Some(WaitReason::Restarts(cause)) = renewal => Some(waits(
            format!("restarts of etcd or of readers of certificates are waiting: {cause}"),
            Code::RenewalWaiting,
            None,
        )),
        Some((since, step)) => {
            let cause = format!("a CA rotation is waiting for its next step, {}", step.as_str());
            Some(waits(cause, Code::RotationWaiting, Some(since)))
        }
        None if !near.is_empty() || matches!(renewal, Some(WaitReason::Deployment { .. })) => {
            let when = |item: &InspectedCertificate| match (&item.verdict, item.end) {
                (CertificateVerdict::Flawed(Flaw::NotYetValid(from)), _) => {
                    Some(format!("is not valid before {}", from.rfc3339()))
                }
                (CertificateVerdict::Flawed(_), end) => Some(format!("expired at {}", end?.rfc3339())),
                (_, end) => Some(format!("ends at {}", end?.rfc3339())),
            };
            let names_and_ends = near.iter().filter_map(|item| Some(format!("{} {}", item.name, when(item)?)));
            let names_and_ends = names_and_ends.collect::<Vec<_>>().join(", ");
            let since = near.iter().filter_map(|item| item.chain.first()).map(renewal_due).min();
            Some(match renewal {
                Some(WaitReason::Until(slot)) => {
                    let cause = format!("{names_and_ends}; this node renews from {}", slot.rfc3339());
                    waits(cause, Code::CertificateNearExpiry, since)
                }
                Some(WaitReason::For(cause)) => {
                    waits(format!("{names_and_ends}; the renewal waits: {cause}"), Code::RenewalWaiting, since)
                }
                Some(WaitReason::Deployment { cause, remedy }) => {
                    Condition { remedy: Some(remedy.clone()), ..waits(cause.clone(), Code::CertificateNearExpiry, since) }
                }
                Some(WaitReason::Restarts(_)) | None => waits(names_and_ends, Code::CertificateNearExpiry, since),
            })
        }
        None => None,
    };
    let end = |item: &InspectedCertificate| Some(CertificateEnd { name: item.name.clone(), end: item.end?.rfc3339() });
    let ends = inspection.items.iter().filter_map(end).collect();
    Some(CertificatesStatus { first_to_expire: first_to_expire.clone(), first_expiry: first_expiry.rfc3339(), waits, ends })
}

/// What the metadata has wrong that no source and no deployment shows.
fn metadata(snapshot: &Snapshot) -> Option<Condition> {
    let unidentified = snapshot.deployments.as_ref().map(|list| list.unidentified()).filter(|count| *count > 0)?;
    Some(Condition {
        name: ConditionId::Metadata,
        state: ConditionState::Failed,
        cause: Some(format!("deployments without an id, which can be neither run nor signalled: {unidentified}")),
        remedy: Some("`heat-node-agent verify` shows what is wrong with them; correct the template".to_owned()),
        ..Condition::default()
    })
}

/// What was found before the loop began.
pub(super) fn conditions(warnings: &[Warning], systemd: bool, now: Timestamp) -> Vec<Condition> {
    let condition = |name: ConditionId, failed: Option<(String, &str)>| Condition {
        name,
        state: if failed.is_some() { ConditionState::Failed } else { ConditionState::Ok },
        since: Some(now.rfc3339()),
        remedy: failed.as_ref().map(|(_, remedy)| (*remedy).to_owned()),
        cause: failed.map(|(cause, _)| cause),
        ..Condition::default()
    };
    let skipped = warnings.iter().find(|warning| warning.skipped);
    let skipped = skipped.map(|warning| format!("{} is skipped: {} {}", warning.file.display(), warning.key, warning.message));
    let bus = (!systemd).then(|| Code::NoSystemd.entry()).map(|entry| (entry.subject.to_owned(), entry.remedy));
    vec![
        condition(ConditionId::Settings, skipped.map(|cause| (cause, Code::SettingsFileSkipped.entry().remedy))),
        condition(ConditionId::Bus, bus),
    ]
}

/// What there is to show before it is known which instance this is.
pub(super) fn without_identity(started: Timestamp, error: &Error) -> StatusDocument {
    let identity = IdentityStatus {
        cause: Some(error.cause().to_owned()),
        remedy: error.suggested_remedy().map(str::to_owned),
        ..IdentityStatus::default()
    };
    StatusDocument {
        schema_version: SCHEMA_VERSION,
        agent: this_process(started),
        conditions: vec![identity.condition(true)],
        identity: Some(identity),
        phase: Phase::Settings,
        summary: format!("waiting for the identity of this instance: {}", error.cause()),
        sources: Vec::new(),
        deployments: Vec::new(),
        node: None,
        signals: Vec::new(),
        metadata: MetadataStatus { source: None, expected: true, listed: None },
        budgets: Vec::new(),
        set_aside: Vec::new(),
    }
}

/// What there is to show of a daemon that cannot continue: what it, or one before it, said last, and why it is not there.
pub(super) fn of_stopped(before: Option<StatusDocument>, error: &Error, root: &Tree, now: Timestamp) -> StatusDocument {
    let mut status = before.unwrap_or_else(|| of_state(&Snapshot::default(), &[], None, &[], root));
    status.agent = this_process(now);
    status.summary = format!("the agent cannot continue: {error}");
    status.conditions.retain(|condition| condition.name != ConditionId::State);
    status.conditions.push(Condition {
        name: ConditionId::State,
        state: ConditionState::Failed,
        since: Some(now.rfc3339()),
        cause: Some(error.to_string()),
        remedy: Some(error.suggested_remedy().unwrap_or(Code::of_trouble(error).entry().remedy).to_owned()),
        ..Condition::default()
    });
    status
}

fn this_process(started: Timestamp) -> AgentStatus {
    AgentStatus { version: env!("CARGO_PKG_VERSION").to_owned(), pid: std::process::id(), started: started.rfc3339() }
}

fn identity(agent: &Agent) -> IdentityStatus {
    let before = agent.instance.predecessor.as_ref();
    IdentityStatus {
        instance: Some(agent.instance.instance.to_string()),
        copy_of: before.map(|before| before.instance.to_string()),
        moved_to: before
            .map(|before| agent.host.settings.state_dir.join(format!("aside/{}", before.aside)).display().to_string()),
        left_over: agent.collector.left_over().to_vec(),
        left_over_resource: agent.collector.left_over_resource().map(str::to_owned),
        ..IdentityStatus::default()
    }
}

/// What systemd shows of it: the headline of `status`, with the work in progress.
fn summary((overall, line): (OverallState, String), work: Option<String>, done: usize) -> String {
    let is_bad = !matches!(overall, OverallState::Ready | OverallState::Waiting);
    match work {
        Some(work) if is_bad => format!("{line}; {work}"),
        Some(work) => work,
        None if overall == OverallState::Ready => format!("{line}: {done} deployments done"),
        None => line,
    }
}

/// What the agent works on.
fn work(agent: &Agent) -> Option<String> {
    let restoring = agent.ledger.generations.current().filter(|current| current.state == GenerationState::Restoring);
    if let Some(back) = restoring.and_then(|current| current.back) {
        return Some(format!("rolling the node back to generation {}", back.to));
    }
    if let Some(id) = agent.node_task.bring_up.about() {
        let generation = agent.ledger.generations.current().map_or(0, |current| current.number);
        return Some(match agent.progress.step_waited_for() {
            Some((step, cause)) => format!("bringing up the node: generation {generation} waits for {step}: {cause}"),
            None => format!("bringing up the node: generation {generation}, deployment {id}"),
        });
    }
    let phases = agent.phases.is_busy().then(|| "running the phases of os-refresh-config".to_owned());
    phases.or_else(|| agent.running().map(|record| format!("running deployment {}", record.name)))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use serde_json::{Value, json};

    use super::*;
    use crate::certificates::ca::SigningCa;
    use crate::clock::Clock;
    use crate::collect::Entries;
    use crate::deploy::{DeploymentOutcome, Journal};
    use crate::desired::Rotation;
    use crate::metadata::SignalTarget;
    use crate::report::Report;
    use crate::report::status::SetAsideStatus;

    fn listing(entries: Vec<Value>) -> Snapshot {
        Snapshot { deployments: Some(Arc::new(Entries::new(entries).unwrap())), ..Snapshot::default() }
    }

    #[test]
    fn systemd_shows_what_status_says_and_what_is_worked_on() {
        let failed = "FAILED deployment a (exit status 3)";
        for (overall, line, work, expected) in [
            (OverallState::Ready, "READY", None, "READY: 2 deployments done"),
            (OverallState::Ready, "READY", Some("running deployment b"), "running deployment b"),
            (OverallState::Waiting, "WAITING for metadata", None, "WAITING for metadata"),
            (OverallState::Waiting, "WAITING for etcd", Some("bringing up the node"), "bringing up the node"),
            (OverallState::Failed, failed, None, failed),
            (OverallState::Failed, failed, Some("running b"), "FAILED deployment a (exit status 3); running b"),
            (OverallState::Degraded, "DEGRADED: etcd is down", None, "DEGRADED: etcd is down"),
        ] {
            assert_eq!(summary((overall, line.to_owned()), work.map(str::to_owned), 2), expected);
        }
    }

    #[test]
    fn a_daemon_that_cannot_continue_leaves_the_reason_and_what_was_known() {
        let dir = tempfile::tempdir().unwrap();
        let root = Tree::open(dir.path()).unwrap();
        let full: Error = std::io::Error::from_raw_os_error(28).into();
        let now = Timestamp(1_772_366_400_000);
        let status = of_stopped(None, &full.context("writing lock"), &root, now);
        assert_eq!(status.agent.pid, std::process::id());
        let failed = |status: &StatusDocument| {
            status.conditions.iter().filter(|one| one.name == ConditionId::State).cloned().collect::<Vec<_>>()
        };
        let [condition] = &failed(&status)[..] else { panic!("one reason") };
        assert!(condition.cause.as_ref().unwrap().starts_with("writing lock: ") && status.summary.contains("writing lock: "));
        assert!(condition.remedy.as_ref().unwrap().contains("free space"), "{condition:?}");
        let page = crate::report::explain::page(&crate::report::explain::tree(&status, false), now, false, 200);
        assert!(
            page.starts_with("FAILED at daemon\n") && page.contains("why: it is not running; it stopped because: writing lock"),
            "{page}"
        );
        // Another one, later: the newest reason, beside what was known before.
        let known = StatusDocument {
            summary: "watching".to_owned(),
            set_aside: vec![SetAsideStatus { path: "/x".into(), bytes: 1, is_all: true, remove: String::new() }],
            ..status
        };
        let again = of_stopped(Some(known), &Error::permanent("another"), &root, now);
        assert_eq!((failed(&again).len(), again.set_aside.len()), (1, 1));
        assert_eq!(failed(&again)[0].cause.as_deref(), Some("another"));
    }

    #[test]
    fn what_is_listed_is_shown_however_old_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let state = Arc::new(Tree::open(dir.path()).unwrap());
        let mut journal = Journal::open(state, None, 200, Clock::manual(Timestamp(0)), &Report::kept()).unwrap();
        for number in 0..SHOWN + 10 {
            let outcome = DeploymentOutcome::refused("HNA-0406 why".to_owned());
            journal.refuse(&format!("d{number:02}"), "", SignalTarget::None, None, outcome).unwrap();
        }
        let shown = deployments(&journal.all(), &listing(vec![json!({"id": "d01"})]), None);
        let ids: Vec<_> = shown.iter().map(|one| one.id.as_str()).collect();
        assert_eq!((ids.len(), &ids[..2]), (SHOWN + 1, &["d01", "d10"][..]));
        assert!(shown[0].failed && shown[0].listed);
    }

    #[test]
    fn certificates_wait_for_somebody_near_their_end_and_between_the_steps_of_a_ca_rotation() {
        let (day, begin) = (Duration::from_hours(24), Timestamp(1_772_366_400_000));
        let item = |name: &str, days: u32, verdict| {
            let ca = SigningCa::create(name, begin, days * day).unwrap().certificate;
            let end = Some(ca.not_after);
            InspectedCertificate { name: name.into(), path: String::new(), verdict, chain: vec![ca], end }
        };
        let missing =
            InspectedCertificate { chain: vec![], end: None, ..item("none", 1, CertificateVerdict::Missing(String::new())) };
        let mut inspection = CertificateInspection { items: vec![missing], ..CertificateInspection::default() };
        assert_eq!(certificates(&inspection, None, None), None);
        inspection.items.extend([item("a", 900, CertificateVerdict::Right), item("b", 300, CertificateVerdict::NearEnd)]);
        let near = certificates(&inspection, None, None).unwrap();
        assert_eq!((near.first_to_expire.as_str(), near.first_expiry.as_str()), ("b", "2026-12-25T12:00:00Z"));
        let failed = WaitReason::Deployment { cause: "why".into(), remedy: "what".into() };
        let failed = certificates(&inspection, None, Some(&failed)).unwrap().waits.unwrap();
        assert_eq!((failed.cause.as_deref(), failed.remedy.as_deref()), (Some("why"), Some("what")));
        let restarts = WaitReason::Restarts("of m2".into());
        let waiting = certificates(&inspection, None, Some(&restarts)).unwrap().waits.unwrap();
        assert_eq!(waiting.cause.as_deref(), Some("restarts of etcd or of readers of certificates are waiting: of m2"));
        let waits = near.waits.unwrap();
        assert_eq!(waits.cause.as_deref(), Some("b ends at 2026-12-25T12:00:00Z"));
        assert_eq!(waits.since.as_deref(), Some("2026-09-16T12:00:00Z"));
        let rotation = |step| Some(RotationProgress { step, generation: 1, since: begin });
        let waits = certificates(&inspection, rotation(Rotation::TrustBoth), None).unwrap().waits.unwrap();
        assert!(waits.cause.unwrap().ends_with("next step, switch") && waits.remedy.unwrap().contains("certificates rotate"));
        inspection.items.pop();
        assert_eq!(certificates(&inspection, rotation(Rotation::DropOld), None).unwrap().waits, None);
    }

    #[test]
    fn what_heat_asks_for_in_vain_is_a_condition() {
        assert_eq!(metadata(&listing(vec![json!({"id": "a"})])), None);
        let unidentified = metadata(&listing(vec![json!({"id": "a"}), json!({"id": ""}), json!(3)])).unwrap();
        assert!(unidentified.cause.unwrap().ends_with(": 2") && unidentified.remedy.unwrap().contains("verify"));
    }
}
