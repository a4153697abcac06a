//! What moved is taken in: polls, ended scripts, the node, answers to signals.

use std::collections::BTreeSet;
use std::time::Duration;

use super::Agent;
use super::ending::job_event;
use super::view::{ids, is_heats_list, is_judged, withdrawal_reason};
use crate::collect::{SnapshotChange, is_of_file};
use crate::daemon::node::{Done, has_changed};
use crate::daemon::order_files::Rollbacks;
use crate::daemon::reason::reason;
use crate::deploy::{DeploymentOutcome, DeploymentRecord, DeploymentState, GenerationState, hooks, job_of};
use crate::error::remedy::Remedy;
use crate::error::{Error, ErrorKind, Result};
use crate::keepers::membership::leave;
use crate::programs::JobResult;
use crate::report::{Code, Event, Phase};
use crate::signal::{Departures, Disposition, QueuedSignal};

/// Records that are removed before what else is theirs is, so that a kill in between leaves little for the next start.
const REMOVED_AT_ONCE: usize = 50;

impl Agent {
    pub(super) fn polled(&mut self, change: SnapshotChange) {
        self.maintain_node();
        self.received(change);
    }

    /// Takes in what Heat lists now. An answer that says what the one before said may be the first that covers what happened.
    pub(super) fn received(&mut self, change: SnapshotChange) {
        // First of all: a signal that is on its way goes no further than what is known.
        self.ledger.outbox.receive(self.view());
        if !(change.metadata || change.answered) {
            return;
        }
        if let Err(error) = self.forget_former_files() {
            self.trouble.record("forgetting the former parameters of the node", &error);
        }
        if !is_heats_list(self.collector.snapshot()) {
            return;
        }
        if let Err(error) = self.take_back() {
            self.trouble.record("resuming deployments", &error);
        }
        let listed = ids(self.collector.snapshot());
        self.withdraw_unlisted(&listed);
        self.forget_unlisted();
    }

    /// Removes some of the records that are not to be kept, and what else is theirs. The next turn goes on: each removal is synced, and thousands
    /// would keep everything else waiting.
    pub(super) fn forget_unlisted(&mut self) {
        self.disk.is_forgetting = false;
        let snapshot = self.collector.snapshot();
        if !is_heats_list(snapshot) {
            return;
        }
        let listed = ids(snapshot);
        let freshness = snapshot.freshness();
        let is_kept = |record: &DeploymentRecord| {
            listed.contains(&record.id) || snapshot.file_of(&record.id).is_some() || !freshness.covers(record.since)
        };
        let (gone, pruned) = self.ledger.journal.prune(REMOVED_AT_ONCE, is_kept);
        for id in &gone {
            if let Err(error) = self.programs.forget(&job_of(id)).and_then(|()| self.ledger.forget_signals(id)) {
                self.trouble.record("forgetting an old job", &error);
            }
        }
        if let Err(error) = hooks::script::forget(&self.host.root, &gone).1 {
            self.trouble.record("forgetting what old scripts left", &error);
        }
        if let Err(error) = pruned {
            self.trouble.record("forgetting old records", &error);
        }
        self.disk.is_forgetting = gone.len() == REMOVED_AT_ONCE;
    }

    /// What the file that configures the node said before is forgotten with its signals: whoever goes back to that wants it anew. The
    /// generation that was made of it stays.
    fn forget_former_files(&mut self) -> Result<()> {
        let snapshot = self.collector.snapshot();
        if snapshot.node_file.is_none() || !self.ledger.sending.is_empty() {
            return Ok(());
        }
        let is_former = |record: &&DeploymentRecord| {
            is_of_file(&record.id)
                && is_judged(snapshot, &record.id)
                && !snapshot.lists(&record.id)
                && self.node_task.bring_up.about() != Some(&record.id)
        };
        let mut former: Vec<DeploymentRecord> = self.ledger.journal.all().into_iter().filter(is_former).cloned().collect();
        if !former.is_empty()
            && let Some((update, _)) = self.interrupted_update()
        {
            former.retain(|record| record.id != update.id);
        }
        for record in former {
            if record.state <= DeploymentState::Running {
                self.ledger.mark_withdrawn(&record, "the file has other parameters now")?;
            }
            self.ledger.forget(&record.id)?;
        }
        Ok(())
    }

    /// What was let go because one answer of Heat did not list it, and is asked for again: it goes on where it was.
    fn take_back(&mut self) -> Result<()> {
        let view = self.view();
        let (gone, stored) = self.ledger.outbox.take_back();
        self.record_dispositions(gone);
        let snapshot = self.collector.snapshot();
        let is_asked = |record: &&DeploymentRecord| {
            record.withdrawn_from.is_some()
                && snapshot.freshness_of(&record.id).covers(record.since)
                && view.asks_for(&record.id, record.resource.as_ref())
        };
        let back: Vec<DeploymentRecord> = self.ledger.journal.all().into_iter().filter(is_asked).cloned().collect();
        for record in back {
            self.ledger.take_back(&record.id)?;
            let state = record.withdrawn_from.map(DeploymentState::as_str).unwrap_or_default();
            let line = format!("deployment {} is in the metadata again and resumes where it was: {state}", record.name);
            let event = Event::new(Code::DeploymentRelisted, line).phase(Phase::Deploy);
            self.host.report.emit(event.deployment(&record.id, &record.name));
        }
        stored
    }

    /// Work of an earlier run of the agent whose deployment is gone, and results for which the outbox has had no room: nobody waits for
    /// them any more. A script or hook that may still run is taken over and ended first.
    fn withdraw_unlisted(&mut self, listed: &BTreeSet<String>) {
        let snapshot = self.collector.snapshot();
        let freshness = snapshot.freshness();
        let is_under_way = |id: &String| self.job_task.id() == Some(id) || self.node_task.bring_up.about() == Some(id);
        let may_run = |record: &DeploymentRecord| record.state == DeploymentState::Running && record.is_job();
        let orphaned = |record: &&DeploymentRecord| {
            (record.state <= DeploymentState::Running || self.ledger.is_unstored(record))
                && !may_run(record)
                && !listed.contains(&record.id)
                && snapshot.file_of(&record.id).is_none()
                && !is_under_way(&record.id)
                && freshness.covers(record.since)
        };
        let mut orphans: Vec<DeploymentRecord> = self.ledger.journal.all().into_iter().filter(orphaned).cloned().collect();
        // Nobody waits for it, but the node is on its way back from it.
        if !orphans.is_empty()
            && let Some((update, _)) = self.interrupted_update()
        {
            orphans.retain(|record| record.id != update.id);
        }
        for record in orphans {
            let before = if record.state == DeploymentState::Finished { "its result was stored" } else { "it ended" };
            // In this order: what was withdrawn is not looked at again.
            let why = format!("removed from the metadata before {before}");
            if let Err(error) = self.stay(&record).and_then(|()| self.ledger.mark_withdrawn(&record, &why)) {
                self.trouble.record("withdrawing a deployment", &error);
            }
        }
    }

    /// A node whose deletion was withdrawn or refused is looked after again, where it has not left etcd's cluster yet.
    pub(super) fn stay(&mut self, deletion: &DeploymentRecord) -> Result<()> {
        if deletion.is_job() || deletion.action != "DELETE" || leave::any_member_left(&self.host.state)? {
            return Ok(());
        }
        self.ledger.generations.depart(false)
    }

    pub(super) fn job_ended(&mut self, id: &str, ran: Result<Option<JobResult>>) {
        let Some(record) = self.ledger.journal.get(id).cloned() else { return };
        let recorded = match (&record.ending, ran) {
            (Some(ending), Ok(ran)) => self.ended_early(&record, ending, ran),
            (None, Err(error))
                if (error.kind() == ErrorKind::Permanent && self.job_task.count_failed_start(id))
                    || self.job_task.waited_for_space(&record, &self.host.clock) =>
            {
                let message = format!("deployment {} could not be started", record.name);
                let event = job_event(Code::DeploymentNotStarted, &record, message).error(&error);
                let why = reason(&self.host.report, Code::DeploymentNotStarted, &error);
                self.end_reported(id, DeploymentOutcome::refused(why), event)
            }
            (_, Err(error)) => {
                self.trouble.record(&format!("running deployment {}", record.name), &error);
                return self.keep_ending(id);
            }
            (None, Ok(None)) => match withdrawal_reason(self.collector.snapshot(), &record) {
                Some(why) => self.ledger.mark_withdrawn(&record, &format!("{why}, before it ended")),
                None => self.interrupted(&record),
            },
            (None, Ok(Some(ran))) => {
                let (outcome, event) = Self::outcome_of(&record, ran);
                self.end_reported(id, outcome, event)
            }
        };
        match recorded {
            Err(error) => self.trouble.record("recording a result", &error),
            Ok(()) => {
                if let Err(error) = self.count_output(id) {
                    self.trouble.record("measuring what a deployment left on disk", &error);
                }
            }
        }
        self.keep_ending(id);
    }

    fn interrupted(&mut self, record: &DeploymentRecord) -> Result<()> {
        // Of a state directory that was restored from a copy that was made while it ran.
        if self.ledger.journal.recover(&record.id, DeploymentState::Running)? {
            let note = self.ledger.journal.get(&record.id).and_then(|record| record.note.clone()).unwrap_or_default();
            let message = format!("deployment {} was {note}", record.name);
            self.host.report.emit(job_event(Code::DeploymentAlreadyRun, record, message));
            self.ledger.store_result_of(&record.id);
            return Ok(());
        }
        let error = Error::permanent("interrupted: its unit ended without a result, and a script is never run twice")
            .remedy(Remedy::stack_update("check how far it got, then update the stack to run it again"));
        let message = format!("deployment {} was interrupted", record.name);
        let event = job_event(Code::DeploymentInterrupted, record, message).error(&error);
        let why = reason(&self.host.report, Code::DeploymentInterrupted, &error);
        self.end_reported(&record.id, DeploymentOutcome::refused(why), event)
    }

    /// Records how a script or hook ended, and only then says it: what cannot be recorded is found ended again and again.
    pub(super) fn end_reported(&mut self, id: &str, outcome: DeploymentOutcome, event: Event) -> Result<()> {
        self.ledger.end(id, outcome)?;
        self.host.report.emit(event);
        Ok(())
    }

    /// What became of a script or hook that ended by itself, and what there is to say of it.
    pub(super) fn outcome_of(record: &DeploymentRecord, ran: JobResult) -> (DeploymentOutcome, Event) {
        let (timed_out, duration) = (ran.timed_out, Duration::from_millis(ran.duration_ms));
        let was_started = ran.not_started.is_none();
        let outcome = DeploymentOutcome::of(&record.group, ran);
        let code = match (outcome.fails(&record.outputs), timed_out) {
            (false, _) => Code::DeploymentSucceeded,
            (true, true) => Code::DeploymentTimedOut,
            (true, false) if was_started => Code::DeploymentFailed,
            (true, false) => Code::DeploymentNotStarted,
        };
        let reason =
            (code != Code::DeploymentSucceeded).then(|| outcome.clone().explained(&[], &record.id).reason.unwrap_or_default());
        // Its own failure begins with the status.
        let status = match code {
            Code::DeploymentFailed if outcome.reason.is_none() => String::new(),
            _ => format!(" with status {}", outcome.status),
        };
        let mut event = job_event(code, record, format!("deployment {} ended{status}", record.name)).duration(duration);
        if let Some(reason) = reason {
            event = event.cause(reason.why()).remedy(reason.remedy.unwrap_or_default());
        }
        (outcome, event)
    }

    pub(super) fn node_ended(&mut self, id: &str, done: Done) {
        self.node_task.inspection.drifted = false;
        let recorded = if self.ledger.is_restoring() {
            self.record_put_back(done)
        } else {
            self.record_end_of_node(id, &done).inspect_err(|_| self.keep_unrecorded(id, done))
        };
        if let Err(error) = recorded {
            self.trouble.record("recording the node's result", &error);
        }
    }

    /// The generation before is back, by the operator's order, or could not be put back. Heat hears of neither: its deployment ended long
    /// ago.
    fn record_put_back(&mut self, done: Done) -> Result<()> {
        let failure = done.outcome.reason;
        let number = self.ledger.generations.current().and_then(|current| current.back).map_or(0, |back| back.to);
        let answer = match &failure {
            None => Ok(Rollbacks::done(number)),
            Some(failure) => Err(failure.clone().error().context(format!("rolling back to generation {number}"))),
        };
        self.ledger.generations.put_back(failure, done.step_timings)?;
        self.orders.rollbacks.outcome = Some(answer);
        if done.restored { self.node_task.node.forget_former() } else { Ok(()) }
    }

    /// What a rollback went back by is forgotten right after its end is recorded: the agent before may have been cut off in between.
    pub(in crate::daemon) fn forget_ended_rollback(&mut self) {
        let current = self.ledger.generations.current().filter(|current| current.state == GenerationState::Rejected);
        let Some(back) = current.and_then(|current| current.back) else { return };
        let node = &self.node_task.node;
        let forgotten = if back.by_hand { node.forget_former() } else { node.forget_rollback() };
        if let Err(error) = forgotten {
            self.trouble.record("forgetting what a rollback went back by", &error);
        }
    }

    /// Records what became of a node's deployment.
    pub(super) fn record_end_of_node(&mut self, id: &str, done: &Done) -> Result<()> {
        if self.ledger.journal.get(id).is_some_and(|record| record.action == "DELETE") {
            // One that is a member still is looked after.
            self.ledger.generations.depart(done.changed_machine)?;
            return self.ledger.end(id, done.outcome.clone());
        }
        self.record_node(id, done)
    }

    fn record_node(&mut self, id: &str, done: &Done) -> Result<()> {
        let (state, reason) = match &done.outcome.reason {
            None => (GenerationState::Applied, None),
            Some(reason) => (GenerationState::Rejected, Some(reason.clone())),
        };
        if done.restored {
            self.ledger.generations.restored()?;
        } else if !done.changed_machine {
            let number = self.ledger.generations.current().map_or(0, |current| current.number);
            let has_changed = has_changed(&self.host.state, number, &self.host.report)?;
            let generations = &mut self.ledger.generations;
            if has_changed { generations.untouched()? } else { generations.never_changed()? }
        }
        self.ledger.generations.end(state, reason, done.step_timings.clone())?;
        if state == GenerationState::Applied {
            let number = self.ledger.generations.current().map_or(0, |current| current.number);
            self.node_task.node.keep_replaced(number)?;
        } else if done.restored {
            // What it holds of others' files may be secret, and nothing goes back by it any more.
            self.node_task.node.forget_rollback()?;
        }
        // The wait condition's signal is stored before the deployment counts as finished: a crash between the two
        // brings the node up once more, which changes nothing, and stores the same key again.
        if let Some(wait) = &done.wait {
            self.ledger.store_wait_of(id, wait)?;
        }
        self.ledger.end(id, done.outcome.clone())
    }

    pub(super) fn sent(&mut self, (dispositions, kept): Departures) {
        if let Err(error) = kept {
            self.trouble.record("maintaining the outbox", &error);
        }
        // What depends on a deployment that Heat heard of comes into the metadata next.
        if dispositions.iter().any(|(_, disposition)| *disposition == Disposition::Delivered) {
            self.collector.poll_now();
        }
        self.record_dispositions(dispositions);
    }

    /// Records what became of signals, and of those that could not be recorded before.
    pub(super) fn record_dispositions(&mut self, dispositions: Vec<(QueuedSignal, Disposition)>) {
        self.ledger.unrecorded.extend(dispositions);
        self.retry_unrecorded();
    }

    /// Records the ends of deployments and the fate of signals that are not recorded yet.
    pub(super) fn retry_unrecorded(&mut self) {
        if let Err(error) = self.record_ends() {
            self.trouble.record("recording the node's result", &error);
        }
        for error in self.ledger.record_dispositions() {
            self.trouble.record("recording a signal", &error);
        }
    }
}

#[cfg(test)]
#[path = "completions_tests.rs"]
pub(super) mod tests;
