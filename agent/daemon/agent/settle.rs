//! What moved is taken in: polls, ended scripts, the node, answers to signals.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::Value;

use super::ending::job_event;
use super::orders::orders_wait;
use super::view::{gone, ids, lists_all, result_key};
use super::{Agent, FALSE_START_LIMIT, node};
use crate::collect::Change;
use crate::deploy::{self, Generation, GenerationState, Outcome, Record, SIGNAL_LIMIT, State, hooks};
use crate::error::{Error, Kind, Result};
use crate::metadata::{Deployment, SignalTarget};
use crate::programs::Ran;
use crate::report::{Code, Event, Phase};
use crate::signal::{About, Destination, Entry, Fate, Sent};

/// Heat takes no notice of a temporary URL's object of the same second as its own change of the deployment, which has
/// whole seconds (heat-protocol.md 7.2). It made that change before we could see it.
const UNNOTICED: Duration = Duration::from_secs(2);

impl Agent {
    /// Results without a signal get theirs stored: after a start, and after a disk was full. One that is on its way is in the outbox
    /// until its fate is recorded or among those that could not be.
    pub(super) fn take_up(&mut self) -> Result<()> {
        let told = |id: &str| self.unrecorded.iter().any(|(entry, _)| entry.key == result_key(id));
        let bare = |record: &&Record| !self.outbox.has(&result_key(&record.id)) && !told(&record.id);
        let finished: Vec<Record> = self.journal.finished().filter(bare).cloned().collect();
        finished.iter().try_for_each(|record| self.store_signal(record))
    }

    pub(super) fn polled(&mut self, change: Change) {
        self.look_after_node();
        self.heard(change);
    }

    /// Takes in what Heat lists now. An answer that says what the one before said may be the first that covers what happened.
    pub(super) fn heard(&mut self, change: Change) {
        // First of all: a signal that is on its way goes no further than what is known.
        self.outbox.hear(self.view());
        if !(change.metadata || change.answered) || !lists_all(self.collector.snapshot()) {
            return;
        }
        if let Err(error) = self.take_back() {
            self.trouble("resuming deployments", &error);
        }
        let listed = ids(self.collector.snapshot());
        self.let_go_of_unlisted(&listed);
        let freshness = self.collector.snapshot().freshness();
        match self.journal.prune(|record| listed.contains(&record.id) || !freshness.covers(record.since)) {
            Ok(gone) => {
                for id in &gone {
                    let job = format!("deployment-{}", crate::digest::key_of(id));
                    if let Err(error) = self.programs.forget(&job).and_then(|()| self.forget_signals(id)) {
                        self.trouble("forgetting an old job", &error);
                    }
                }
                if let Err(error) = hooks::script::forget(&self.root, &gone) {
                    self.trouble("forgetting what old scripts left", &error);
                }
            }
            Err(error) => self.trouble("forgetting old records", &error),
        }
    }

    /// Nothing of a deployment without a record is sent. What is on its way has left the outbox already.
    fn forget_signals(&self, id: &str) -> Result<()> {
        if self.sending.is_empty() { self.outbox.withdraw(id) } else { Ok(()) }
    }

    /// What was let go because one answer of Heat did not list it, and is asked for again: it goes on where it was.
    fn take_back(&mut self) -> Result<()> {
        let view = self.view();
        self.outbox.take_back()?;
        let is_asked = |record: &&Record| {
            record.let_go.is_some() && view.freshness.covers(record.since) && view.asks_for(&record.id, record.resource.as_ref())
        };
        let back: Vec<Record> = self.journal.all().into_iter().filter(is_asked).cloned().collect();
        for record in back {
            self.journal.take_back(&record.id)?;
            let state = record.let_go.map(State::as_str).unwrap_or_default();
            let line = format!("deployment {} is in the metadata again and resumes where it was: {state}", record.name);
            let event = Event::new(Code::DeploymentBack, line).phase(Phase::Deploy);
            self.report.emit(event.deployment(&record.id, &record.name));
        }
        Ok(())
    }

    /// Work of an earlier run of the agent whose deployment is gone: nobody waits for its result any more. A script or hook that
    /// may still run is taken over and ended first.
    fn let_go_of_unlisted(&mut self, listed: &BTreeSet<String>) {
        let freshness = self.collector.snapshot().freshness();
        let in_lane = |id: &String| self.hook_id.as_ref() == Some(id) || self.bring_up_id.as_ref() == Some(id);
        let may_run = |record: &Record| record.state == State::Running && record.is_job();
        let orphaned = |record: &&Record| {
            record.state <= State::Running
                && !may_run(record)
                && !listed.contains(&record.id)
                && !in_lane(&record.id)
                && freshness.covers(record.since)
        };
        let orphans: Vec<Record> = self.journal.all().into_iter().filter(orphaned).cloned().collect();
        for record in orphans {
            if let Err(error) = self.let_go(&record, "removed from the metadata before it ended") {
                self.trouble("withdrawing a deployment", &error);
            }
        }
    }

    /// Records that Heat asks for a deployment no more before it ended, and from where it goes on if Heat does again: a script
    /// where it was, because it never runs twice; a node that was cut off before it had a result, from the beginning.
    pub(super) fn let_go(&mut self, record: &Record, why: &str) -> Result<()> {
        let from = if self.leave_generation(&record.id, why)? { State::Seen } else { record.state };
        let line = format!("deployment {} is withdrawn: {why}", record.name);
        let event = Event::new(Code::DeploymentLetGo, line).phase(Phase::Deploy).deployment(&record.id, &record.name);
        self.report.emit(event.cause(why));
        self.journal.let_go(&record.id, from, why)
    }

    /// A generation that was being put in place when the agent ended, and whose deployment nobody goes on with; whether there was
    /// one.
    pub(super) fn leave_generation(&mut self, deployment: &str, why: &str) -> Result<bool> {
        let is_left = |current: &Generation| current.deployment == deployment && current.state == GenerationState::Applying;
        let is_left = self.generations.current().is_some_and(is_left);
        if is_left {
            self.generations.end(GenerationState::Rejected, Some(why.to_owned()), self.progress.laps())?;
        }
        Ok(is_left)
    }

    pub(super) fn hook_ended(&mut self, id: &str, ran: Result<Option<Ran>>) {
        let Some(record) = self.journal.get(id).cloned() else { return };
        let recorded = match (&record.ending, ran) {
            (Some(ending), Ok(ran)) => self.ended_early(&record, ending, ran),
            (None, Err(error)) if error.kind() == Kind::Permanent && self.false_start(id) => {
                let message = format!("deployment {} could not be started", record.name);
                self.report.emit(job_event(Code::DeploymentFailed, &record, message).error(&error));
                self.end(id, Outcome::refused(node::sentence(Code::DeploymentFailed, &error)))
            }
            (_, Err(error)) => {
                self.trouble(&format!("running deployment {}", record.name), &error);
                return;
            }
            (None, Ok(None)) => match gone(self.collector.snapshot(), &record) {
                Some(why) => self.let_go(&record, &format!("{why}, before it ended")),
                None => self.interrupted(&record),
            },
            (None, Ok(Some(ran))) => {
                let outcome = self.outcome_of(&record, ran);
                self.end(id, outcome)
            }
        };
        if let Err(error) = recorded.and_then(|()| self.job_ended(id)) {
            self.trouble("recording a result", &error);
        }
    }

    fn interrupted(&mut self, record: &Record) -> Result<()> {
        let error = Error::permanent("interrupted: its unit ended without a result, and a script is never run twice")
            .remedy("check how far it got, then update the stack to run it again");
        let message = format!("deployment {} was interrupted", record.name);
        self.report.emit(job_event(Code::DeploymentInterrupted, record, message).error(&error));
        self.end(&record.id, Outcome::refused(node::sentence(Code::DeploymentInterrupted, &error)))
    }

    /// What became of a script or hook that ended by itself, which is said.
    pub(super) fn outcome_of(&self, record: &Record, ran: Ran) -> Outcome {
        let (timed_out, duration) = (ran.timed_out, Duration::from_millis(ran.duration_ms));
        let outcome = Outcome::of(&record.group, ran);
        let code = match (outcome.fails(&record.outputs), timed_out) {
            (false, _) => Code::DeploymentSucceeded,
            (true, true) => Code::DeploymentTimedOut,
            (true, false) => Code::DeploymentFailed,
        };
        let message = format!("deployment {} ended with status {}", record.name, outcome.status);
        let mut told = job_event(code, record, message).duration(duration);
        if let Some(reason) = &outcome.reason {
            told = told.cause(reason.clone());
        }
        self.report.emit(told);
        outcome
    }

    /// Counts a job that ended before its program was started; `true` when that is no accident any more.
    fn false_start(&mut self, id: &str) -> bool {
        let count = self.false_starts.entry(id.to_owned()).or_default();
        *count += 1;
        *count >= FALSE_START_LIMIT
    }

    pub(super) fn node_ended(&mut self, id: &str, done: node::Done) {
        self.drifted = false;
        let recorded = self.record_node(id, done);
        if let Err(error) = recorded {
            self.trouble("recording the node's result", &error);
        }
    }

    fn record_node(&mut self, id: &str, done: node::Done) -> Result<()> {
        let (state, reason) = match &done.outcome.reason {
            None => (GenerationState::Applied, None),
            Some(reason) => (GenerationState::Rejected, Some(reason.clone())),
        };
        if !done.touched {
            self.generations.untouched()?;
        }
        self.generations.end(state, reason, done.laps)?;
        // The wait condition's signal is stored before the deployment counts as finished: a crash between the two
        // brings the node up once more, which changes nothing, and stores the same key again.
        if let Some(wait) = done.wait {
            self.store_wait_of(id, &wait)?;
        }
        self.end(id, done.outcome)
    }

    pub(super) fn end(&mut self, id: &str, outcome: Outcome) -> Result<()> {
        self.journal.finish(id, outcome)?;
        self.store_signal_of(id)
    }

    pub(super) fn store_signal_of(&mut self, id: &str) -> Result<()> {
        match self.journal.get(id).cloned() {
            Some(record) if record.state == State::Finished => self.store_signal(&record),
            _ => Ok(()),
        }
    }

    /// Puts a finished deployment's result into the outbox, or records that nobody waits for it.
    fn store_signal(&mut self, record: &Record) -> Result<()> {
        if record.outcome.is_none() {
            return Ok(());
        }
        if let Some(destination) = Destination::of(&record.target) {
            let about =
                About { id: record.id.clone(), name: record.name.clone(), resource: record.resource.clone(), result: true };
            let outcome = self.journal.outcome(&record.id)?.unwrap_or_default();
            let body = Value::Object(deploy::body(&outcome, &record.outputs, SIGNAL_LIMIT));
            let mut entry = Entry::new(result_key(&record.id), Some(about), destination, body, self.clock.now());
            if matches!(&record.target, SignalTarget::Url { verb, .. } if verb == "PUT") && record.action != "CREATE" {
                entry.not_before = record.seen.after(UNNOTICED);
            }
            return self.outbox.put(entry);
        }
        let SignalTarget::Unsupported { name } = &record.target else {
            return self.journal.signalled(&record.id, Some("no signal requested".to_owned()));
        };
        let error = Error::permanent(format!("{name} cannot be sent"))
            .remedy("set signal_transport: CFN_SIGNAL, HEAT_SIGNAL or TEMP_URL_SIGNAL on the deployment");
        self.report.emit(
            Event::new(Code::SignalUndeliverable, "the result cannot be sent")
                .phase(Phase::Signal)
                .deployment(&record.id, &record.name)
                .error(&error),
        );
        self.journal.undelivered(&record.id, error.to_string())
    }

    pub(super) fn store_wait(&mut self, deployment: &Deployment, wait: Option<&node::Wait>) -> Result<()> {
        let Some(wait) = wait else { return Ok(()) };
        self.see(deployment, self.journal.get(&deployment.id).map(|record| record.state))?;
        self.store_wait_of(&deployment.id, wait)
    }

    fn store_wait_of(&mut self, id: &str, wait: &node::Wait) -> Result<()> {
        let Some(record) = self.journal.get(id) else { return Ok(()) };
        let about = About { id: record.id.clone(), name: record.name.clone(), resource: record.resource.clone(), result: false };
        let body = wait.handle.body(&wait.signal);
        let key = format!("wait {} {}", record.id, wait.signal.id);
        self.outbox.put(Entry::new(key, Some(about), wait.handle.destination().clone(), body, self.clock.now()))
    }

    pub(super) fn start_sending(&mut self) {
        if self.outbox.is_empty() {
            return;
        }
        // Orders wait for what is on its way, so nothing new goes before them.
        if !self.sending.is_empty() && orders_wait(&self.state) {
            return;
        }
        self.outbox.hear(self.view());
        if let Some(fact) = self.outbox.needs_answer() {
            self.collector.ask(fact);
        }
        if self.outbox.due().is_none_or(|due| due > self.clock.now()) {
            return;
        }
        self.sending.extend(self.outbox.start());
    }

    pub(super) fn sent(&mut self, (fates, kept): Sent) {
        if let Err(error) = kept {
            self.trouble("maintaining the outbox", &error);
        }
        // What depends on a deployment that Heat heard of comes into the metadata next.
        if fates.iter().any(|(_, fate)| *fate == Fate::Delivered) {
            self.collector.nudge();
        }
        self.unrecorded.extend(fates);
        self.record_fates();
    }

    /// Records what became of signals; what cannot be written is kept for the next time.
    pub(super) fn record_fates(&mut self) {
        for (entry, fate) in std::mem::take(&mut self.unrecorded) {
            if let Err(error) = self.record_fate(&entry, &fate) {
                self.trouble("recording a signal", &error);
                self.unrecorded.push((entry, fate));
            }
        }
    }

    fn record_fate(&mut self, entry: &Entry, fate: &Fate) -> Result<()> {
        let Some(About { id, result, .. }) = &entry.about else { return Ok(()) };
        match (fate, result) {
            (Fate::Delivered, true) => self.journal.signalled(id, None),
            (Fate::Undeliverable(cause), true) => self.journal.undelivered(id, format!("Heat refused the signal: {cause}")),
            (Fate::Superseded, true) => self.journal.let_go(id, State::Finished, "superseded before it was reported to Heat"),
            (Fate::Expired, true) => self.journal.undelivered(id, "it could not be reported to Heat for 7 days".to_owned()),
            // Heat may wait for it no more, e.g. at an update: that does not make a failure of the deployment.
            (Fate::Undeliverable(cause), false) => {
                self.journal.note(id, format!("Heat refused the signal to the wait condition: {cause}"))
            }
            (Fate::Expired, false) => self.journal.note(id, "the wait condition could not be signalled for 7 days".to_owned()),
            (Fate::Delivered | Fate::Superseded, false) => Ok(()),
        }
    }
}

#[cfg(test)]
#[path = "settle_tests.rs"]
pub(super) mod tests;
