//! What is on disk of deployments, and what Heat is to hear of them: journal, generations and outbox, which are changed together.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::FuturesUnordered;
use serde_json::Value;

use super::failure_pause::FailurePause;
use super::view::result_key;
use crate::daemon::host::Host;
use crate::daemon::node::deadline::DeadlineInputs;
use crate::daemon::node::{Done, Wait, has_changed};
use crate::deploy::{
    self, DeploymentOutcome, DeploymentRecord, DeploymentState, Generation, GenerationState, Generations, Journal, Reference,
    SIGNAL_LIMIT,
};
use crate::error::{Error, Result};
use crate::metadata::{Deployment, SignalTarget};
use crate::progress::Progress;
use crate::report::condition_state::ConditionState;
use crate::report::reason::FailureReason;
use crate::report::status::Condition;
use crate::report::{Code, Event, Phase};
use crate::signal::{Destination, Disposition, Outbox, QueuedSignal, Sending, SignalSubject};

/// Heat takes no notice of a temporary URL's object of the same second as its own change of the deployment, which has
/// whole seconds (heat-protocol.md 7.2). It made that change before we could see it.
const SAME_SECOND_DELAY: Duration = Duration::from_secs(2);

/// Signals of what may be under way at one time: a script or hook, and a node with its wait condition.
const UNDER_WAY: usize = 3;

/// Of how many deployments it is remembered that they were reported to wait for room.
const REPORTED_HELD: usize = 8;

/// What is said of a deployment whose wait condition may never hear.
const WAIT_SIGNAL_LOST: &str = "the stored signal to the wait condition was lost: `heat-node-agent rerun` makes it again";

/// Whether Heat may take no notice of a result that comes right after its own change.
fn may_be_ignored_by_heat(target: &SignalTarget, action: &str) -> bool {
    matches!(target, SignalTarget::Url { verb, .. } if verb == "PUT") && action != "CREATE"
}

/// What a signal about a deployment speaks of; `result`: of its own result.
fn subject(record: &DeploymentRecord, result: bool) -> SignalSubject {
    SignalSubject { id: record.id.clone(), name: record.name.clone(), resource: record.resource.clone(), result }
}

/// The end of a deployment that could not be recorded.
#[derive(Debug)]
pub(super) enum UnrecordedEnd {
    /// The node was brought up for this deployment, or that failed.
    Ended(String, Box<Done>),
    /// It could not even be begun until its time was over.
    NotBegun(Box<Deployment>, Box<Error>),
    /// The same of a script or hook, or of a deployment that ends the node, and what Heat heard of it.
    Sent(Box<DeploymentRecord>, Box<DeploymentOutcome>),
}

impl UnrecordedEnd {
    /// Whether it is a script's or hook's.
    pub(super) fn is_of_job(&self) -> bool {
        matches!(self, Self::Sent(record, _) if record.is_job())
    }

    /// The deployment's id.
    pub(super) fn id(&self) -> &str {
        match self {
            Self::Ended(id, _) => id,
            Self::NotBegun(deployment, _) => &deployment.id,
            Self::Sent(record, _) => &record.id,
        }
    }
}

/// Deployments, from the first look to the last word of Heat.
pub(in crate::daemon) struct Ledger {
    host: Rc<Host>,
    progress: Progress,
    pub(in crate::daemon) journal: Journal,
    pub(in crate::daemon) generations: Generations,
    pub(in crate::daemon) outbox: Rc<Outbox>,
    /// Signals on their way.
    pub(super) sending: FuturesUnordered<Sending>,
    /// What left the outbox and could not be recorded, e.g. on a full disk: it must not be sent again.
    pub(super) unrecorded: Vec<(QueuedSignal, Disposition)>,
    /// Ends that could not be recorded, oldest first: until they are, nothing is begun with the node.
    pub(super) unrecorded_ends: Vec<UnrecordedEnd>,
    /// A result that could not be stored: it is tried again, and everything else goes on.
    pub(in crate::daemon) unstored: FailurePause,
    /// Why a deployment waits for room in the outbox, where one does.
    pub(in crate::daemon) held: Option<Condition>,
    /// Which ones that was last said of, newest first, and since when some wait, for as long as there is no room; the list may change meanwhile.
    reported_held: Option<(Vec<String>, String)>,
    /// Whether each signal to a wait condition that is recorded as waiting was found.
    has_checked_wait_signals: bool,
}

impl Ledger {
    pub(super) fn open(host: Rc<Host>, outbox: Outbox, progress: Progress) -> Result<Self> {
        let (deploy, state) = (&host.settings.deploy, || Arc::clone(&host.state));
        let journal = Journal::open(state(), Some(&deploy.deployed_dir), deploy.keep, host.clock.clone(), &host.report)?;
        let generations = Generations::open(state(), host.clock.clone(), &host.report)?;
        let (outbox, sending, unstored) = (Rc::new(outbox), FuturesUnordered::new(), FailurePause::new(Rc::clone(&host)));
        Ok(Self {
            host,
            progress,
            journal,
            generations,
            outbox,
            sending,
            unrecorded: Vec::new(),
            unrecorded_ends: Vec::new(),
            unstored,
            held: None,
            reported_held: None,
            has_checked_wait_signals: false,
        })
    }

    /// A wait condition's signal cannot be made again: where its file is gone the operator has to know. After a kill right behind its
    /// delivery nobody knows that it arrived. Asked after a start, and of deployments that Heat lists again; what cannot be recorded
    /// holds nothing up and is tried again.
    fn report_lost_wait_signals(&mut self) {
        let is_missed = |record: &&DeploymentRecord| {
            let is_gone = |key: &String| !self.outbox.has(key) && !self.outbox.keeps(key) && !self.is_unrecorded(key);
            record.withdrawn_from.is_none() && record.wait_signal.as_ref().is_some_and(is_gone)
        };
        let missed: Vec<DeploymentRecord> = self.journal.all().into_iter().filter(is_missed).cloned().collect();
        self.has_checked_wait_signals = true;
        for DeploymentRecord { id, name, .. } in missed {
            let line = format!("the stored signal to the wait condition of {name} is gone");
            match self.journal.end_wait_signal(&id, Some(WAIT_SIGNAL_LOST.to_owned())) {
                Ok(()) => {
                    let event = Event::new(Code::OutboxEntryCorrupt, line).phase(Phase::Signal);
                    self.host.report.emit(event.deployment(&id, &name));
                }
                Err(error) => {
                    self.has_checked_wait_signals = false;
                    self.unstored.record(&format!("recording that {line}"), &error);
                }
            }
        }
    }

    /// Takes a deployment back that Heat asks for again. Its signal to a wait condition may have been lost meanwhile.
    pub(super) fn take_back(&mut self, id: &str) -> Result<()> {
        self.has_checked_wait_signals = false;
        self.journal.take_back(id)
    }

    /// Whether what became of every signal that was sent is on disk.
    pub(super) fn is_settled(&self) -> bool {
        self.sending.is_empty() && self.unrecorded.is_empty()
    }

    /// What the node in place is looked after by.
    pub(super) fn reference(&self) -> Option<Reference> {
        self.generations.current().and_then(Generation::reference)
    }

    /// Whether the generation before is being put back by the operator's order.
    pub(super) fn is_restoring(&self) -> bool {
        self.generations.current().is_some_and(|current| current.state == GenerationState::Restoring)
    }

    /// Records a new deployment, or what the metadata says of a known one. `false` if it was run before.
    pub(super) fn register(&mut self, deployment: &Deployment, state: Option<DeploymentState>) -> Result<bool> {
        if state.is_some() {
            self.journal.renew(deployment)?;
            if !self.journal.recover(&deployment.id, DeploymentState::Seen)? {
                return Ok(true);
            }
        }
        let new = state.is_none() && self.journal.register(deployment)?.is_some();
        let event = if new {
            Event::new(
                Code::DeploymentRecorded,
                // One of a file has no action.
                format!(
                    "deployment {} ({}) is new",
                    deployment.name,
                    [&*deployment.group, deployment.action()].join(", ").trim_end_matches(", ")
                ),
            )
        } else {
            let note = self.journal.get(&deployment.id).and_then(|record| record.note.as_deref()).unwrap_or("run before");
            Event::new(Code::DeploymentAlreadyRun, format!("deployment {} was {note}", deployment.name))
        };
        self.host.report.emit(event.phase(Phase::Deploy).deployment(&deployment.id, &deployment.name));
        // Of one whose record is gone.
        self.store_result_of(&deployment.id);
        Ok(new)
    }

    /// How long Heat has been waiting for a deployment.
    pub(super) fn heat_waiting_for(&self, deployment: &Deployment, timeout: Duration) -> Duration {
        let Some(record) = self.journal.get(&deployment.id) else { return Duration::ZERO };
        // Of what the operator has run again Heat has heard already.
        let made = if record.order.is_none() { deployment.creation_time.as_str() } else { "" };
        DeadlineInputs { made, seen: record.seen, timeout }.waiting_time(self.host.clock.now())
    }

    /// Results without a signal get theirs stored, and signals to wait conditions that are gone are named: after a start, and after a disk was full. One that is on its way is in the outbox
    /// until its fate is recorded or among those that could not be. One that cannot be stored holds nothing else up.
    pub(super) fn store_missing_signals(&mut self) {
        if !self.unstored.resume_if_due() {
            return;
        }
        if !self.has_checked_wait_signals {
            self.report_lost_wait_signals();
        }
        let finished: Vec<DeploymentRecord> =
            self.journal.finished().filter(|record| self.is_unstored(record)).cloned().collect();
        for record in &finished {
            self.store_result(record);
        }
        if !self.unstored.is_paused() {
            self.unstored.clear();
        }
    }

    /// Whether there is room in the outbox for the result of a deployment that has not begun, which is said once where there is none. What
    /// has no room stays in its job's directory, so that more and more of them would fill the disk.
    pub(super) fn has_space(&mut self, deployment: &Deployment, reports: bool) -> bool {
        if !reports {
            return true;
        }
        let count = UNDER_WAY + self.journal.finished().filter(|record| self.is_unstored(record)).count();
        let Err(error) = self.outbox.check_space(count, count * SIGNAL_LIMIT) else {
            (self.held, self.reported_held) = (None, None);
            return true;
        };
        let Deployment { id, name, .. } = deployment;
        let line = format!("deployment {name} is not begun: its result could not be stored for Heat");
        let (mut reported, since) = self.reported_held.take().unwrap_or_else(|| (Vec::new(), self.host.clock.now().rfc3339()));
        // A node's and the script at the head of the list are asked about in turn.
        if !reported.contains(id) {
            reported.truncate(REPORTED_HELD - 1);
            reported.insert(0, id.clone());
            let event = Event::new(Code::OutboxFull, line.clone()).phase(Phase::Signal).deployment(id, name).error(&error);
            self.host.report.emit(event);
        }
        self.reported_held = Some((reported, since.clone()));
        self.held = Some(Condition {
            name: "room for results".into(),
            state: ConditionState::Waiting,
            since: Some(since),
            remedy: error.suggested_remedy().map(str::to_owned),
            cause: Some(format!("{line}: {}", error.cause())),
            ..Condition::default()
        });
        false
    }

    /// Whether a deployment has ended, and that could not be recorded yet.
    pub(super) fn has_unrecorded_end(&self, id: &str) -> bool {
        self.unrecorded_ends.iter().any(|end| end.id() == id)
    }

    /// Whether a deployment has ended and nothing is stored for Heat of that.
    pub(super) fn is_unstored(&self, record: &DeploymentRecord) -> bool {
        let key = result_key(&record.id);
        record.state == DeploymentState::Finished && !self.outbox.has(&key) && !self.is_unrecorded(&key)
    }

    /// Whether a signal has left the outbox, and what became of it is not recorded yet.
    fn is_unrecorded(&self, key: &str) -> bool {
        self.unrecorded.iter().any(|(entry, _)| entry.key == key)
    }

    /// Nobody asks for a deployment any more, and should the same be asked for again it is a new one.
    pub(super) fn forget(&mut self, id: &str) -> Result<()> {
        self.forget_signals(id)?;
        self.journal.forget(id)
    }

    /// Nothing of a deployment without a record is sent. While signals are on their way nothing is withdrawn: what Heat does not list is
    /// superseded before its next try.
    pub(super) fn forget_signals(&self, id: &str) -> Result<()> {
        if self.sending.is_empty() { self.outbox.discard_for(id) } else { Ok(()) }
    }

    /// Records that Heat asks for a deployment no more before it ended, and from where it goes on if Heat does again: a script
    /// where it was, because it never runs twice; a node that was cut off before it had a result, from the beginning.
    pub(super) fn mark_withdrawn(&mut self, record: &DeploymentRecord, why: &str) -> Result<()> {
        let from = if self.leave_generation(&record.id, &why.into())? { DeploymentState::Seen } else { record.state };
        self.journal.mark_withdrawn(&record.id, from, why)?;
        // Now that it is recorded: what cannot be is tried again and again.
        let line = format!("deployment {} is withdrawn: {why}", record.name);
        let event = Event::new(Code::DeploymentWithdrawn, line).phase(Phase::Deploy).deployment(&record.id, &record.name);
        self.host.report.emit(event.cause(why));
        Ok(())
    }

    /// Records of an update that is broken off whether it left the node as it was: it may have waited for a disk all the time.
    pub(super) fn note_unchanged(&mut self) -> Result<()> {
        let Some(current) = self.generations.current().filter(|current| current.is_unfinished()) else { return Ok(()) };
        if has_changed(&self.host.state, current.number, &self.host.report)? { Ok(()) } else { self.generations.never_changed() }
    }

    /// Ends a generation that was being put in place for a deployment that is refused now.
    pub(super) fn reject_generation(&mut self, deployment: &str, why: &FailureReason) -> Result<()> {
        if self.is_applying(deployment) {
            self.note_unchanged()?;
            self.generations.end(GenerationState::Rejected, Some(why.clone()), self.progress.step_timings())?;
        }
        Ok(())
    }

    /// The same for a deployment that Heat lists no more, and may list again: it then goes on where it was. Whether there was one.
    fn leave_generation(&mut self, deployment: &str, why: &FailureReason) -> Result<bool> {
        let is_applying = self.is_applying(deployment);
        if is_applying {
            self.note_unchanged()?;
            self.generations.leave(why.clone(), self.progress.step_timings())?;
        }
        Ok(is_applying)
    }

    fn is_applying(&self, deployment: &str) -> bool {
        let is_of = |current: &Generation| current.deployment == deployment && current.state == GenerationState::Applying;
        self.generations.current().is_some_and(is_of)
    }

    pub(super) fn end(&mut self, id: &str, outcome: DeploymentOutcome) -> Result<()> {
        self.journal.finish(id, outcome)?;
        self.store_result_of(id);
        Ok(())
    }

    pub(super) fn store_result_of(&mut self, id: &str) {
        // What Heat has already, and is only to be recorded, is not sent again.
        let ended = self.journal.get(id).filter(|record| record.state == DeploymentState::Finished);
        if let Some(record) = ended.filter(|record| !self.is_unrecorded(&result_key(&record.id))).cloned() {
            self.store_result(&record);
        }
    }

    /// Stores a finished deployment's result for Heat, or says why it cannot be stored yet: [`Ledger::store_missing_signals`] tries it again.
    fn store_result(&mut self, record: &DeploymentRecord) {
        if let Err(error) = self.store_signal(record) {
            self.unstored.record(&format!("storing the result of deployment {} for Heat", record.name), &error);
        }
    }

    /// Puts a finished deployment's result into the outbox, or records that nobody waits for it. The file of the result for the replaced
    /// tools is written where it is missing.
    fn store_signal(&mut self, record: &DeploymentRecord) -> Result<()> {
        if record.outcome.is_none() {
            return Ok(());
        }
        if let Err(error) = self.journal.write_missing_result(&record.id) {
            // For Heat it is no matter.
            self.unstored.record(&format!("writing the result of deployment {} beside it", record.name), &error);
        }
        if let Some(destination) = Destination::of(&record.target) {
            let mut outcome = self.journal.outcome(&record.id)?.unwrap_or_default();
            if record.is_job() {
                outcome = outcome.explained(&record.outputs, &record.id);
            }
            return self.outbox.put(self.result_signal(record, destination, &outcome));
        }
        let SignalTarget::Unsupported { name } = &record.target else {
            return self.journal.signalled(&record.id, Some("no signal requested".to_owned()));
        };
        let error = Error::permanent(format!("{name} cannot be sent"))
            .remedy("set signal_transport: CFN_SIGNAL, HEAT_SIGNAL or TEMP_URL_SIGNAL on the deployment");
        self.host.report.emit(
            Event::new(Code::SignalUndeliverable, "the result cannot be sent")
                .phase(Phase::Signal)
                .deployment(&record.id, &record.name)
                .error(&error),
        );
        self.journal.undelivered(&record.id, error.to_string())
    }

    fn result_signal(&self, record: &DeploymentRecord, destination: Destination, outcome: &DeploymentOutcome) -> QueuedSignal {
        let body = Value::Object(deploy::body(outcome, &record.outputs, SIGNAL_LIMIT));
        let about = Some(subject(record, true));
        let mut entry = QueuedSignal::new(result_key(&record.id), about, destination, body, self.host.clock.now());
        if may_be_ignored_by_heat(&record.target, &record.action) {
            entry.hold(SAME_SECOND_DELAY.saturating_sub(self.host.clock.since(record.seen_at)), &self.host.clock);
        }
        entry
    }

    /// Has Heat hear of a node's end that cannot be recorded; what is sent is stored by the record once that can be written.
    pub(super) fn send_unrecorded(
        &self,
        record: &DeploymentRecord,
        outcome: &DeploymentOutcome,
        wait: Option<&Wait>,
    ) -> Result<()> {
        // One that was stored before the record could not be written may have been sent.
        if let Some(wait) = wait.filter(|_| record.wait_signal.is_none()) {
            self.outbox.put_unstored(self.wait_signal(record, wait))?;
        }
        match Destination::of(&record.target) {
            Some(destination) => self.outbox.put_unstored(self.result_signal(record, destination, outcome)),
            None => Ok(()),
        }
    }

    pub(super) fn store_wait(&mut self, deployment: &Deployment, wait: Option<&Wait>) -> Result<()> {
        let Some(wait) = wait else { return Ok(()) };
        self.register(deployment, self.journal.get(&deployment.id).map(|record| record.state))?;
        self.store_wait_of(&deployment.id, wait)
    }

    pub(super) fn store_wait_of(&mut self, id: &str, wait: &Wait) -> Result<()> {
        let Some(record) = self.journal.get(id) else { return Ok(()) };
        let entry = self.wait_signal(record, wait);
        let key = entry.key.clone();
        if !self.is_unrecorded(&key) {
            self.outbox.put(entry)?;
        }
        self.journal.keep_wait_signal(id, key)
    }

    fn wait_signal(&self, record: &DeploymentRecord, wait: &Wait) -> QueuedSignal {
        let (body, destination) = (wait.handle.body(&wait.signal), wait.handle.destination().clone());
        let key = format!("wait {} {}", record.id, wait.signal.id);
        QueuedSignal::new(key, Some(subject(record, false)), destination, body, self.host.clock.now())
    }

    /// Records what became of signals; what cannot be written is kept for the next time.
    pub(super) fn record_dispositions(&mut self) -> Vec<Error> {
        let mut errors = Vec::new();
        // First the end that they speak of.
        let waits = |(entry, _): &(QueuedSignal, Disposition)| {
            let id = entry.about.as_ref().map(|about| about.id.as_str());
            self.unrecorded_ends.iter().any(|end| Some(end.id()) == id)
        };
        let (waiting, now): (Vec<_>, Vec<_>) = std::mem::take(&mut self.unrecorded).into_iter().partition(waits);
        self.unrecorded = waiting;
        for (entry, disposition) in now {
            if let Err(error) = self.record_disposition(&entry, &disposition) {
                errors.push(error);
                self.unrecorded.push((entry, disposition));
            }
        }
        errors
    }

    fn record_disposition(&mut self, entry: &QueuedSignal, disposition: &Disposition) -> Result<()> {
        let Some(SignalSubject { id, result, .. }) = &entry.about else { return Ok(()) };
        match (disposition, result) {
            (Disposition::Delivered, true) => self.journal.signalled(id, None),
            (Disposition::Undeliverable(cause), true) => {
                self.journal.undelivered(id, format!("Heat refused the signal: {cause}"))
            }
            (Disposition::Superseded, true) => {
                self.journal.mark_withdrawn(id, DeploymentState::Finished, "superseded before it was reported to Heat")
            }
            (Disposition::Expired, true) => {
                self.journal.undelivered(id, "it could not be reported to Heat for 7 days".to_owned())
            }
            // Heat may wait for it no more, e.g. at an update: that does not make a failure of the deployment.
            (Disposition::Undeliverable(cause), false) => {
                self.journal.end_wait_signal(id, Some(format!("Heat refused the signal to the wait condition: {cause}")))
            }
            (Disposition::Expired, false) => {
                self.journal.end_wait_signal(id, Some("the wait condition could not be signalled for 7 days".to_owned()))
            }
            (Disposition::Unreadable, false) => self.journal.end_wait_signal(id, Some(WAIT_SIGNAL_LOST.to_owned())),
            (Disposition::Delivered, false) => self.journal.end_wait_signal(id, None),
            // The one is made again from the record, the other is kept.
            (Disposition::Unreadable, true) | (Disposition::Superseded, false) => Ok(()),
        }
    }
}
