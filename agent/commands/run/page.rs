//! The daemon's state as the status document.

use std::path::Path;

use super::agent::Agent;
use crate::commands::status::FILE;
use crate::deploy::{GenerationState, State};
use crate::error::Result;
use crate::files::{Attributes, Tree};
use crate::report::Phase;
use crate::report::status::{AgentStatus, DeploymentStatus, NodeStatus, SCHEMA_VERSION, SignalStatus, SourceStatus, Status};

/// Deployments shown; older ones are in the journal.
const SHOWN: usize = 50;

/// What there is to show.
pub(super) fn of(agent: &Agent) -> Status {
    let snapshot = agent.collector.snapshot();
    let sources = snapshot
        .sources
        .iter()
        .map(|(name, source)| SourceStatus {
            name: (*name).to_owned(),
            last_good: source.last_good.map(crate::clock::Timestamp::rfc3339),
            failures: source.failures,
            cause: source.cause.clone(),
            remedy: source.remedy.clone(),
        })
        .collect();
    let records = agent.journal.all();
    let deployments = records
        .iter()
        .skip(records.len().saturating_sub(SHOWN))
        .map(|record| DeploymentStatus {
            id: record.id.clone(),
            name: record.name.clone(),
            group: record.group.clone(),
            action: record.action.clone(),
            state: word(record.state).to_owned(),
            status_code: record.outcome.as_ref().map(|outcome| outcome.status),
            reason: record.outcome.as_ref().and_then(|outcome| outcome.reason.clone()),
            note: record.note.clone(),
            listed: snapshot.lists(&record.id),
            failed: record.failed(),
        })
        .collect();
    let node = agent.generations.current().map(|current| NodeStatus {
        generation: current.number,
        state: match current.state {
            GenerationState::Applying => "applying",
            GenerationState::Applied => "applied",
            GenerationState::Rejected => "rejected",
        }
        .to_owned(),
        reason: current.reason.clone(),
        timings: current.timings.clone(),
        drifted: agent.drifted,
    });
    let signals = agent
        .outbox
        .waiting()
        .into_iter()
        .map(|entry| SignalStatus {
            to: entry.destination.shown(),
            deployment: entry.about.map(|about| about.id),
            tries: entry.tries,
            cause: entry.cause,
        })
        .collect();
    Status {
        schema_version: SCHEMA_VERSION,
        agent: AgentStatus {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            started: agent.started.rfc3339(),
        },
        phase: agent.phase,
        summary: summary(agent),
        sources,
        deployments,
        node,
        signals,
    }
}

/// Writes the document where everybody may read it.
pub(super) fn write(run_dir: &Tree, page: &Status) -> Result<()> {
    run_dir.write_json(Path::new(FILE), page, Attributes::mode(0o644))
}

fn summary(agent: &Agent) -> String {
    if let Some(id) = &agent.bring_up_id {
        let generation = agent.generations.current().map_or(0, |current| current.number);
        return format!("bringing the node up, generation {generation}, deployment {id}");
    }
    if let Some(record) = agent.running() {
        return format!("running deployment {}", record.name);
    }
    let snapshot = agent.collector.snapshot();
    let failing = snapshot.sources.iter().find(|(_, source)| source.failures > 0);
    match (agent.phase, failing) {
        (_, Some((name, source))) => format!("source {name} fails: {}", source.cause.as_deref().unwrap_or("unknown")),
        (Phase::Metadata, None) => "waiting for metadata".to_owned(),
        (Phase::Signal, None) => format!("{} signals are waiting for Heat", agent.outbox.waiting().len()),
        (_, None) if agent.drifted => "the node differs from its parameters".to_owned(),
        (_, None) => format!(
            "watching; {} deployments done",
            agent.journal.all().iter().filter(|record| record.state == State::Signalled).count()
        ),
    }
}

fn word(state: State) -> &'static str {
    match state {
        State::Seen => "seen",
        State::Running => "running",
        State::Finished => "finished",
        State::Signalled => "signalled",
    }
}
