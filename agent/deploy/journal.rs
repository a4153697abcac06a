//! The record of every deployment (design.md 4).
//!
//! One file a deployment, `deployments/KEY.json`, written whole and synced at each step. The replaced
//! tools' record below `/var/lib/heat-config/deployed` is respected when a deployment is first seen and
//! kept up to date for them. What this agent ran bears its name there: where the state directory is older, e.g. restored from a copy,
//! Heat gets the result that lies beside it, or hears that none is left.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::result::DeploymentOutcome;
use super::unsent::{self, Unsent};
use crate::budgets::{LEFT_RESULT, LEGACY_MARKS, MARK, RECORDS_MEMORY, RESULT_IN_MEMORY};
use crate::clock::{Clock, Moment, Timestamp};
use crate::digest::{is_key, key_of};
use crate::error::remedy::Remedy;
use crate::error::{Error, ErrorKind, Result};
use crate::files::{Attributes, FileKind, Tree};
use crate::gather::Gather;
use crate::metadata::{Deployment, Output, SignalTarget};
use crate::programs::{JobResult, Programs, RESULT, job_dir};
use crate::report::reason::FailureReason;
pub use crate::report::states::DeploymentState;
use crate::report::{Code, Event, Phase, Report};

const DIRECTORY: &str = "deployments";
/// What the names of deployments' jobs begin with, before the key.
const JOB_PREFIX: &str = "deployment-";
/// Bytes that are not worth being discarded: what says that a deployment was run takes fewer.
pub const DISCARDED: u64 = MARK as u64;
/// Small files, by key, of deployments whose record is gone and whose id is no file name.
const MARKS: &str = "marks";
/// So many new marks after which all are counted: to count them each time would take as long as there are marks, for each.
const MARKS_COUNTED_AFTER: usize = 250;
/// The member by which a file of the replaced tools is known as written by this agent. They look at none but `inputs` of it, and at whether
/// it exists (heat-protocol.md 4.2, 4.4).
const OURS: &str = "heat_node_agent";
/// The member by which what is left of a removed record is known. Beside [`OURS`] where Heat has no result of it: an earlier version of the
/// agent takes the one for its own, and the other for the replaced tools'.
const RECORD_REMOVED: &str = "heat_node_agent_removed";
/// What stands in the place of a result that took too much of the disk.
const REMOVED: &str = "[heat-node-agent removed the output of this deployment: the disk has bounded room for it]\n";
/// How many ids are offered where several match.
const SUGGESTED: usize = 8;

/// Why a script or hook is ended before its own end. On disk before anything is done about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Ending {
    /// Heat does not wait for it any more, for this reason: Heat never hears of it.
    Replaced(String),
    /// By order of the operator: Heat hears that it failed.
    Stopped,
}

/// By what a deployment is known that has no record.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Known {
    /// By nothing.
    No,
    /// By the replaced tools' own file: they ran it.
    Theirs,
    /// By an empty file, which says that it was run, and not by whom.
    Empty,
    /// By this agent's own file: its record was lost.
    Lost,
    /// By what is left of a record that was removed, and Heat has no result.
    Untold,
    /// By what is left of one with which nothing was left to do.
    Over,
}

impl Known {
    fn by(entry: &Value) -> Self {
        match (entry.get(OURS).is_some(), entry.get(RECORD_REMOVED).is_some()) {
            (true, true) => Self::Untold,
            (true, false) => Self::Lost,
            (false, true) => Self::Over,
            (false, false) => Self::Theirs,
        }
    }
}

/// Everything that is remembered of a deployment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeploymentRecord {
    /// Format of this file.
    pub schema: u32,
    /// UUID of the derived config.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Its group (after the choice of a component's part).
    pub group: String,
    /// CREATE, UPDATE, …
    pub action: String,
    /// How far it is.
    pub state: DeploymentState,
    /// Stack and resource: by these a newer run of the same resource is known.
    pub resource: Option<(String, String)>,
    /// Where the result goes.
    pub target: SignalTarget,
    /// Declared outputs: name and whether its presence means failure.
    pub outputs: Vec<(String, bool)>,
    /// When it was first seen.
    pub seen: Timestamp,
    /// The same in the order of this run of the agent: what is counted from it must not change with the clock.
    #[serde(skip)]
    pub seen_at: Moment,
    /// When its work began.
    #[serde(default)]
    pub started: Option<Timestamp>,
    /// The same, where that was in this run of the agent.
    #[serde(skip)]
    pub started_at: Option<Moment>,
    /// When it ended.
    #[serde(default)]
    pub finished: Option<Timestamp>,
    /// How it ended. Of a long result only status and reason: [`Journal::outcome`] reads the rest.
    #[serde(default)]
    pub outcome: Option<DeploymentOutcome>,
    /// Set where the result is too long for memory: whether Heat takes it as a failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub long_result_failed: Option<bool>,
    /// Why there was no signal, where there was none.
    #[serde(default)]
    pub note: Option<String>,
    /// The signal to its wait condition that was stored, by its key in the outbox, until it is known what became of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_signal: Option<String>,
    /// Why its wait condition was not signalled, where it was not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_note: Option<String>,
    /// Whether Heat was to hear of the result and never will.
    #[serde(default)]
    pub undelivered: bool,
    /// The operator's order by which it was last run again: each is carried out once.
    #[serde(default)]
    pub order: Option<String>,
    /// Heat asked for it no more when it was in this state; it goes on from there if Heat asks for it again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(rename = "let_go")]
    pub withdrawn_from: Option<DeploymentState>,
    /// When it last changed: what Heat says of it must have been said after that.
    #[serde(skip)]
    pub since: Moment,
    /// Why it is ended, or was, before its own end.
    #[serde(default)]
    pub ending: Option<Ending>,
}

impl DeploymentRecord {
    /// Name of its files and unit.
    #[must_use]
    pub fn key(&self) -> String {
        key_of(&self.id)
    }

    /// Name of the job in `programs`.
    #[must_use]
    pub fn job(&self) -> String {
        job_of(&self.id)
    }

    /// Whether its work is a script or hook with a unit of its own.
    #[must_use]
    pub fn is_job(&self) -> bool {
        self.group != "kubernetes-node"
    }

    /// Whether it ended with failure.
    #[must_use]
    pub fn failed(&self) -> bool {
        self.long_result_failed.unwrap_or_else(|| self.outcome.as_ref().is_some_and(|outcome| outcome.fails(&self.outputs)))
    }

    /// What there is to say of its signals: of one that Heat asks for, first of all that its wait condition was not signalled.
    #[must_use]
    pub fn notes(&self) -> Option<&str> {
        self.wait_note.as_deref().filter(|_| self.withdrawn_from.is_none()).or(self.note.as_deref())
    }

    /// Takes a long result out of memory, and gives it back where there was one.
    fn shorten(&mut self) -> Option<DeploymentOutcome> {
        let whole = self.outcome.take_if(|outcome| outcome.weight() > RESULT_IN_MEMORY)?;
        self.long_result_failed.get_or_insert_with(|| whole.fails(&self.outputs));
        self.outcome = Some(whole.shortened(RESULT_IN_MEMORY));
        Some(whole)
    }

    /// About the memory that it takes.
    fn weight(&self) -> usize {
        let outputs: usize = self.outputs.iter().map(|(name, _)| name.len() + 48).sum();
        let texts = [&self.id, &self.name, &self.group, &self.action]
            .into_iter()
            .chain(&self.note)
            .chain(&self.wait_note)
            .map(String::len);
        let resource = self.resource.as_ref().map_or(0, |(stack, resource)| stack.len() + resource.len());
        let outcome = self.outcome.as_ref().map_or(0, DeploymentOutcome::weight);
        size_of::<Self>() + 2 * self.id.len() + outputs + texts.sum::<usize>() + resource + self.target.weight() + outcome
    }
}

/// All records, in memory and on disk.
#[derive(Debug)]
pub struct Journal {
    state: Arc<Tree>,
    legacy: Option<Tree>,
    records: BTreeMap<String, DeploymentRecord>,
    /// When the operator last had one forgotten.
    forgotten: Moment,
    /// Marks that were written since the last time that all were counted.
    new_marks: usize,
    /// Ids of those whose result Heat does not have yet.
    finished: BTreeSet<String>,
    /// How many have nothing left to do.
    signalled: usize,
    /// Changes when a record goes or goes back: what was done with is to be done again.
    revision: u64,
    pub(crate) keep: usize,
    clock: Clock,
    report: Report,
}

impl Journal {
    /// Reads the records. One that is unreadable is quarantined and logged, never deleted.
    ///
    /// `legacy` is the replaced tools' directory; it is made if it is not there. `keep` is how many ended
    /// records are kept after their deployment is gone from the metadata.
    ///
    /// # Errors
    /// If the directory cannot be read or made.
    pub fn open(state: Arc<Tree>, legacy: Option<&Path>, keep: usize, clock: Clock, report: &Report) -> Result<Self> {
        state.create_dir(Path::new(DIRECTORY), Attributes::mode(0o700))?;
        let legacy = legacy.map(|path| Tree::open_or_create(path, 0o700)).transpose()?;
        let (records, finished) = (BTreeMap::new(), BTreeSet::new());
        let mut journal = Self {
            state,
            legacy,
            records,
            finished,
            signalled: 0,
            revision: 0,
            forgotten: Moment::EARLIER,
            new_marks: MARKS_COUNTED_AFTER,
            keep,
            clock,
            report: report.clone(),
        };
        let state = Arc::clone(&journal.state);
        for name in state.list(Path::new(DIRECTORY))? {
            let path = Path::new(DIRECTORY).join(&name);
            if path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            let Some(mut record) = state.read_state::<DeploymentRecord>(&path, report, Code::StateFileQuarantined)? else {
                continue;
            };
            if path_of(&record.id) == path {
                record.shorten();
                journal.insert(record);
            } else {
                let error = Error::permanent("it is not the record of the deployment whose name it has");
                state.quarantine(&path, report, Code::StateFileQuarantined, &error)?;
            }
        }
        Ok(journal)
    }

    /// What is recorded, oldest first, for callers that only read. An unreadable record is left out.
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub fn inspect(state: &Tree) -> Result<Vec<DeploymentRecord>> {
        let names = state.list(Path::new(DIRECTORY))?;
        let paths = names
            .iter()
            .map(|name| Path::new(DIRECTORY).join(name))
            .filter(|path| path.extension().is_some_and(|end| end == "json"));
        let mut records: Vec<DeploymentRecord> = Vec::new();
        for mut record in paths.filter_map(|path| state.read_json::<DeploymentRecord>(&path).ok().flatten()) {
            record.shorten();
            records.push(record);
        }
        records.sort_unstable_by(|one, other| (one.seen, &one.id).cmp(&(other.seen, &other.id)));
        Ok(records)
    }

    /// The record of a deployment.
    #[must_use]
    pub fn get(&self, id: &str) -> Option<&DeploymentRecord> {
        self.records.get(id)
    }

    /// What an answer of Heat must cover before anything is begun, or given up, for a deployment.
    #[must_use]
    pub fn since(&self, id: &str) -> Moment {
        // One that was forgotten may be listed still in an answer of before, and would run twice.
        self.records.get(id).map_or(self.forgotten, |record| record.since)
    }

    /// The scripts and hooks whose work may have begun and has not ended.
    pub fn running_jobs(&self) -> impl Iterator<Item = &DeploymentRecord> {
        self.records.values().filter(|record| record.state == DeploymentState::Running && record.is_job())
    }

    /// All records, oldest first.
    #[must_use]
    pub fn all(&self) -> Vec<&DeploymentRecord> {
        let mut all: Vec<_> = self.records.values().collect();
        all.sort_unstable_by(|one, other| (one.seen, &one.id).cmp(&(other.seen, &other.id)));
        all
    }

    /// Those whose result Heat does not have yet.
    pub fn finished(&self) -> impl Iterator<Item = &DeploymentRecord> {
        self.finished.iter().filter_map(|id| self.records.get(id))
    }

    /// How many have nothing left to do.
    #[must_use]
    pub fn signalled_count(&self) -> usize {
        self.signalled
    }

    /// Changes when a record goes, or goes back: what was done with may be to do again.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// How many records there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Memory of the records.
    #[must_use]
    pub fn weight(&self) -> usize {
        self.records.values().map(DeploymentRecord::weight).sum()
    }

    /// The whole result of a deployment.
    ///
    /// # Errors
    /// If it is on disk and cannot be read.
    pub fn outcome(&self, id: &str) -> Result<Option<DeploymentOutcome>> {
        self.records.get(id).map_or(Ok(None), |record| Self::whole(&self.state, record))
    }

    /// The whole result of a record: from memory, from its job, or, where there is no job, from its own file.
    ///
    /// # Errors
    /// If it is on disk and cannot be read.
    pub fn whole(state: &Tree, record: &DeploymentRecord) -> Result<Option<DeploymentOutcome>> {
        if record.long_result_failed.is_none() {
            return Ok(record.outcome.clone());
        }
        let stored = state.read_json::<DeploymentRecord>(&path_of(&record.id))?.filter(|stored| stored.id == record.id);
        let stored = stored.and_then(|stored| stored.outcome);
        if stored.as_ref().is_some_and(|stored| Some(stored) != record.outcome.as_ref()) {
            return Ok(stored);
        }
        let ran = JobResult::read(state, &job_dir(&record.job()))?;
        let outcome = ran.map(|ran| DeploymentOutcome::of(&record.group, ran));
        Ok(outcome.or_else(|| record.outcome.as_ref().map(|short| without_output(record, short))))
    }

    /// What says that a deployment was run, with or without a record: the replaced tools' file, or where its id cannot be the name
    /// of one, a mark in the state.
    fn mark(&self, id: &str) -> (&Tree, PathBuf) {
        match (&self.legacy, legacy_name(id)) {
            (Some(legacy), Some(name)) => (legacy, name),
            _ => (&self.state, Path::new(MARKS).join(key_of(id))),
        }
    }

    /// The file that says outside of the state that a deployment's script or hook has begun.
    #[must_use]
    pub fn begun_mark(&self, id: &str) -> Option<String> {
        let legacy = self.legacy.as_ref()?;
        Some(legacy.base().join(begun_name(id)).display().to_string())
    }

    fn remove_begun_mark(&self, id: &str) -> Result<()> {
        self.legacy.as_ref().map_or(Ok(()), |legacy| legacy.remove(&begun_name(id)).map(drop))
    }

    /// Records a deployment as seen. `None` if it was run before there was a record of it: it is then recorded as done, or as finished where
    /// Heat is known not to have its result.
    ///
    /// # Errors
    /// If it cannot be written, or the replaced tools are at it; it is then not taken up.
    pub fn register(&mut self, deployment: &Deployment) -> Result<Option<&DeploymentRecord>> {
        let mut record = self.draft(deployment);
        let known = self.known(&deployment.id)?;
        let is_ours = matches!(known, Known::Lost | Known::Untold);
        if is_ours && !record.is_job() {
            // Bringing a node up again changes nothing, and tells Heat how it is.
            self.put(record)?;
            return Ok(self.records.get(&deployment.id));
        }
        if is_ours {
            record.started = Some(self.clock.now());
            self.end_lost(&mut record, known, self.result_beside(&deployment.id)?);
            self.put(record)?;
        } else {
            self.put_marked(record, known)?;
        }
        Ok(self.records.get(&deployment.id).filter(|_| known == Known::No))
    }

    /// Writes the record of a deployment of which a mark says that it was run, and none of this agent's records how; without a mark as it is.
    fn put_marked(&mut self, mut record: DeploymentRecord, known: Known) -> Result<()> {
        let id = record.id.clone();
        let unsent = if matches!(known, Known::Theirs | Known::Empty) { self.take_unsent(&id)? } else { None };
        if let Some(result) = unsent.as_ref().map(|_| self.unsent_result(&id)).transpose()? {
            record.state = DeploymentState::Finished;
            record.finished = Some(self.clock.now());
            record.note = Some("run by the replaced tools, which had not sent its result to Heat".to_owned());
            record.outcome = Some(result);
        } else if known != Known::No {
            record.state = DeploymentState::Signalled;
            let note = match known {
                Known::Theirs => "run by the replaced tools",
                Known::Empty => "marked as run by an empty file, which does not say who ran it",
                _ => "handled here before, and its record was removed",
            };
            record.note = Some(note.to_owned());
        }
        self.put(record)?;
        // Only now: until then nothing else says that Heat waits for it.
        if let (Some(_locked), Some(legacy), Some(name)) = (unsent, &self.legacy, legacy_name(&id)) {
            unsent::settle(legacy, &name)?;
        }
        Ok(())
    }

    /// Writes a record as it is, or that of a new deployment: whether anything can be recorded of it.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn rewrite(&mut self, deployment: &Deployment) -> Result<()> {
        let record = self.record_or_draft(deployment);
        self.put(record)
    }

    /// The record of a deployment; of a new one what would be written.
    #[must_use]
    pub fn record_or_draft(&self, deployment: &Deployment) -> DeploymentRecord {
        self.records.get(&deployment.id).cloned().unwrap_or_else(|| self.draft(deployment))
    }

    fn draft(&self, deployment: &Deployment) -> DeploymentRecord {
        let mut record = self.new_record(&deployment.id, &deployment.name, &deployment.group);
        describe(&mut record, deployment);
        record
    }

    /// What the replaced tools left that Heat does not have yet.
    ///
    /// # Errors
    /// Transient while they are at it: what becomes of it is known later.
    fn take_unsent(&self, id: &str) -> Result<Option<Unsent>> {
        let (Some(legacy), Some(name)) = (&self.legacy, legacy_name(id)) else { return Ok(None) };
        let unsent = Unsent::take(legacy, &name)?;
        if unsent.is_none() && unsent::is_open(legacy, &name)? {
            return Err(Error::transient(format!("55-heat-config is running the deployment {id}, or sending its result")));
        }
        Ok(unsent)
    }

    /// The result of a deployment that they have not told: as a whole, its status alone, or that they were cut off.
    fn unsent_result(&self, id: &str) -> Result<DeploymentOutcome> {
        let (tree, record) = self.mark(id);
        let kept =
            self.result_beside(id)?.map_or_else(|| Self::kept_result(tree, &unsent::mark(&record)), |kept| Ok(Some(kept)))?;
        Ok(kept.unwrap_or_else(|| {
            let cut_off = Error::permanent(unsent::INTERRUPTED);
            let cut_off = cut_off.remedy(Remedy::stack_update("check how far it got, then update the stack to run it again"));
            DeploymentOutcome::refused(FailureReason::of(&cut_off).with_code(Code::DeploymentInterrupted.entry().code))
        }))
    }

    /// Takes the result of a script or hook that ended after its record was written last: the state directory is older than what lies
    /// beside it. `false` where there is none; only a result shows that it ran. One that was not begun yet may have been run by the replaced
    /// tools meanwhile, or be of an older state directory: a mark is enough then.
    ///
    /// # Errors
    /// If it cannot be looked for or recorded.
    pub fn recover(&mut self, id: &str, from: DeploymentState) -> Result<bool> {
        // What the operator has run again has an earlier result there.
        let is_new = |record: &&DeploymentRecord| record.state == from && record.order.is_none() && record.is_job();
        let Some(mut record) = self.records.get(id).filter(is_new).cloned() else { return Ok(false) };
        let known = self.known(id)?;
        match known {
            Known::Lost | Known::Untold => {}
            Known::Theirs | Known::Empty | Known::Over if from == DeploymentState::Seen => {
                return self.put_marked(record, known).map(|()| true);
            }
            _ => return Ok(false),
        }
        let Some(result) = self.result_beside(id)? else { return Ok(false) };
        self.end_lost(&mut record, known, Some(result));
        self.put(record).map(|()| true)
    }

    /// Ends one whose record is gone with this result, or, where none is left, as one of which nobody knows how it ended.
    fn end_lost(&self, record: &mut DeploymentRecord, known: Known, result: Option<DeploymentOutcome>) {
        record.state = DeploymentState::Finished;
        record.finished = Some(self.clock.now());
        let found = if result.is_some() { "its result was found beside it" } else { "no result of it is left" };
        let (before, why) = if known == Known::Untold {
            let why = "it was cut off before it had a result, and its record was removed for room while Heat did not list it";
            ("handled here before, and its record was removed before Heat had its result", why)
        } else {
            let why = "its record and its result are gone, as after a state directory was restored from an older copy";
            ("run here before, and its record was lost", why)
        };
        record.note = Some(format!("{before}; {found}"));
        record.outcome = Some(result.unwrap_or_else(|| {
            let lost = Error::permanent(format!("it has begun here before, and {why}; a script is never run twice"));
            let lost = lost.remedy(Remedy::stack_update("check how far it got, then update the stack to run it again"));
            DeploymentOutcome::refused(FailureReason::of(&lost).with_code(Code::DeploymentInterrupted.entry().code))
        }));
    }

    /// What is left that says that a deployment was run. The replaced tools' file may be no JSON.
    fn known(&self, id: &str) -> Result<Known> {
        let (tree, mark) = self.mark(id);
        let Some(facts) = tree.facts(&mark)? else { return Ok(Known::No) };
        if facts.kind == FileKind::File && facts.size == 0 {
            // Those of the state are this agent's.
            return Ok(if mark.starts_with(MARKS) { Known::Over } else { Known::Empty });
        }
        match tree.read_json::<Value>(&mark) {
            // A link to nowhere is no file, and still says that something was recorded.
            Ok(entry) => Ok(entry.as_ref().map_or(Known::Theirs, Known::by)),
            Err(error) if error.kind() == ErrorKind::Permanent => Ok(Known::Theirs),
            Err(error) => Err(error),
        }
    }

    /// The result that lies beside it; none where that is not there or cannot be understood.
    fn result_beside(&self, id: &str) -> Result<Option<DeploymentOutcome>> {
        let (tree, mark) = self.mark(id);
        Self::kept_result(tree, &unsent::result_file(&mark))
    }

    fn kept_result(tree: &Tree, file: &Path) -> Result<Option<DeploymentOutcome>> {
        match tree.read_json::<Map<String, Value>>(file) {
            Ok(body) => Ok(body.map(super::result::of_kept)),
            Err(error) if error.kind() == ErrorKind::Permanent => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Takes what the metadata says of a recorded deployment: an older agent may not have understood where its result goes.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn renew(&mut self, deployment: &Deployment) -> Result<()> {
        let Some(known) = self.records.get(&deployment.id) else { return Ok(()) };
        let mut record = known.clone();
        describe(&mut record, deployment);
        if record == *known { Ok(()) } else { self.put(record) }
    }

    /// Records an entry that cannot be run, as finished with failure.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn refuse(
        &mut self,
        id: &str,
        name: &str,
        target: SignalTarget,
        resource: Option<(String, String)>,
        outcome: DeploymentOutcome,
    ) -> Result<()> {
        let mut record = self.records.get(id).cloned().unwrap_or_else(|| self.new_record(id, name, ""));
        record.target = target;
        record.resource = record.resource.or(resource);
        self.end(record, outcome)
    }

    /// Records the end of one that could not be recorded before, maybe not even that it was seen.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn end_draft(&mut self, draft: &DeploymentRecord, outcome: DeploymentOutcome) -> Result<()> {
        let record = self.records.get(&draft.id).unwrap_or(draft).clone();
        self.end(record, outcome)
    }

    fn end(&mut self, mut record: DeploymentRecord, outcome: DeploymentOutcome) -> Result<()> {
        (record.state, record.withdrawn_from) = (DeploymentState::Finished, None);
        record.finished = Some(self.clock.now());
        (record.outcome, record.long_result_failed) = (Some(outcome), None);
        self.put(record)
    }

    /// Records that the work may begin now. Only after this has returned may anything be started.
    ///
    /// # Errors
    /// If it cannot be written; nothing may be started then.
    pub fn start(&mut self, id: &str, mut entry: Value) -> Result<()> {
        if let (Some(legacy), Some(name)) = (&self.legacy, legacy_name(id)) {
            if let Value::Object(members) = &mut entry {
                members.insert(OURS.to_owned(), Value::from(env!("CARGO_PKG_VERSION")));
            }
            write_legacy(legacy, &name, &entry)?;
        }
        let (now, moment) = (self.clock.now(), self.clock.moment());
        self.change(id, |record| {
            record.state = DeploymentState::Running;
            if record.started.is_none() {
                (record.started, record.started_at) = (Some(now), Some(moment));
            }
        })
    }

    /// Records the result. [`Journal::write_missing_result`] is to follow.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn finish(&mut self, id: &str, outcome: DeploymentOutcome) -> Result<()> {
        let now = self.clock.now();
        self.change(id, |record| {
            record.state = DeploymentState::Finished;
            record.finished = Some(now);
            (record.outcome, record.long_result_failed) = (Some(outcome), None);
        })
    }

    /// Writes the result of a finished deployment beside it, for the replaced tools, where that is not there.
    ///
    /// # Errors
    /// If it cannot be read or written.
    pub fn write_missing_result(&self, id: &str) -> Result<()> {
        let (Some(legacy), Some(name), Some(record)) = (&self.legacy, legacy_name(id), self.records.get(id)) else {
            return Ok(());
        };
        let beside = name.with_extension("notify.json");
        if legacy.facts(&beside)?.is_some() {
            return Ok(());
        }
        let Some(outcome) = Self::whole(&self.state, record)? else { return Ok(()) };
        write_legacy(legacy, &beside, &Value::Object(body_beside(&outcome, record)))
    }

    /// Records that a script or hook is to be ended, before anything is done about it. The first reason stays.
    ///
    /// Where that cannot be written it is said and holds all the same: it may be that script that fills the disk. The reason is
    /// then written with the end itself. An agent that is cut off before finds a script that ended without a result: it does not
    /// run again, and Heat hears of it only if it still asks for it.
    pub fn end_early(&mut self, id: &str, ending: Ending, report: &Report) {
        let Some(mut record) = self.records.get(id).cloned() else { return };
        record.ending.get_or_insert(ending);
        let Err(error) = self.put(record.clone()) else { return };
        let message = format!("deployment {} is stopped although that cannot be recorded yet", record.name);
        report
            .emit(Event::new(Code::of_trouble(&error), message).phase(Phase::Deploy).deployment(id, &record.name).error(&error));
        record.since = self.clock.moment();
        self.insert(record);
    }

    /// Records the end of something that Heat does not wait for any more, in one step: it is signalled only if Heat asks for it again.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn end_without_signal(&mut self, id: &str, outcome: DeploymentOutcome, note: String) -> Result<()> {
        let now = self.clock.now();
        self.change(id, |record| {
            (record.state, record.withdrawn_from) = (DeploymentState::Signalled, Some(DeploymentState::Finished));
            record.finished = Some(now);
            (record.outcome, record.long_result_failed) = (Some(outcome), None);
            record.note = Some(note);
        })
    }

    /// Records that Heat has the result, or why it never will.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn signalled(&mut self, id: &str, note: Option<String>) -> Result<()> {
        self.change(id, |record| {
            (record.state, record.withdrawn_from) = (DeploymentState::Signalled, None);
            // What was noted of an earlier loss stays.
            record.note = note.or(record.note.take());
        })
    }

    /// Records that Heat asks for it no more, and from where it goes on if Heat does again.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn mark_withdrawn(&mut self, id: &str, from: DeploymentState, note: &str) -> Result<()> {
        self.change(id, |record| {
            (record.state, record.withdrawn_from) = (DeploymentState::Signalled, Some(from));
            record.note = Some(note.to_owned());
        })
    }

    /// Records that Heat asks again for one that was let go.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn take_back(&mut self, id: &str) -> Result<()> {
        self.change(id, |record| {
            if let Some(state) = record.withdrawn_from.take() {
                (record.state, record.note) = (state, None);
            }
        })
    }

    /// Records that a signal to its wait condition is stored.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn keep_wait_signal(&mut self, id: &str, key: String) -> Result<()> {
        if self.get(id).is_some_and(|record| record.wait_signal.as_ref() == Some(&key)) {
            return Ok(());
        }
        self.change(id, |record| (record.wait_signal, record.wait_note) = (Some(key), None))
    }

    /// Records that it is known what became of that signal, with what there is to say of it.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn end_wait_signal(&mut self, id: &str, note: Option<String>) -> Result<()> {
        let is_new = |record: &DeploymentRecord| record.wait_signal.is_some() || record.wait_note != note;
        if !self.get(id).is_some_and(is_new) {
            return Ok(());
        }
        self.change(id, |record| (record.wait_signal, record.wait_note) = (None, note))
    }

    /// Records why Heat, which was to hear of the result, never will.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn undelivered(&mut self, id: &str, note: String) -> Result<()> {
        self.change(id, |record| {
            record.state = DeploymentState::Signalled;
            record.note = Some(note);
            record.undelivered = true;
        })
    }

    /// Has a deployment that ended run once more, as if it had just been seen. `order` names the order to do so: the same
    /// one again changes nothing. Whatever is left of the earlier run must be gone before.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn rerun(&mut self, id: &str, order: &str) -> Result<()> {
        if self.records.get(id).is_some_and(|record| record.order.as_deref() == Some(order)) {
            return Ok(());
        }
        self.remove_begun_mark(id)?;
        // The next result is written where none is.
        self.remove_result_beside(id)?;
        let (now, moment) = (self.clock.now(), self.clock.moment());
        self.change(id, |record| {
            record.state = DeploymentState::Seen;
            (record.seen, record.seen_at, record.started_at) = (now, moment, None);
            (record.started, record.finished, record.outcome) = (None, None, None);
            (record.note, record.wait_signal, record.wait_note, record.long_result_failed) = (None, None, None, None);
            (record.undelivered, record.withdrawn_from, record.ending) = (false, None, None);
            record.order = Some(order.to_owned());
        })
    }

    /// Removes a record, and that of the replaced tools: nobody knows of the deployment any more.
    ///
    /// # Errors
    /// If a file cannot be removed.
    pub fn forget(&mut self, id: &str) -> Result<()> {
        self.remove_result_beside(id)?;
        let (tree, mark) = self.mark(id);
        tree.remove(&mark)?;
        self.remove_begun_mark(id)?;
        // The last: while it is there the order is known not to be carried out.
        self.state.remove(&path_of(id))?;
        self.take_out(id);
        self.forgotten = self.clock.moment();
        Ok(())
    }

    /// Forgets the oldest records of deployments that are gone from the metadata: of those with which nothing is left to do what is beyond
    /// those to keep, and of those that go on where they were, should Heat list them again, only what their memory has no room for. Gives
    /// back their ids, and the first failure. A mark stays, which is enough for the replaced tools not to run it again.
    ///
    /// At most `most` of them: what else is theirs is to be removed next, and an agent that is killed in between finds it only at its next
    /// start.
    pub fn prune(&mut self, most: usize, listed: impl Fn(&DeploymentRecord) -> bool) -> (Vec<String>, Result<()>) {
        let unlisted = self.all().into_iter().filter(|record| record.state == DeploymentState::Signalled && !listed(record));
        let (mut withdrawn, over): (Vec<_>, Vec<_>) = unlisted.partition(|record| record.withdrawn_from.is_some());
        // The last is what was withdrawn last.
        withdrawn.sort_by_key(|record| record.since);
        let excess = over.len().saturating_sub(self.keep);
        let mut weight: usize = over.iter().chain(&withdrawn).map(|record| record.weight()).sum();
        let unlisted: Vec<String> = over.into_iter().chain(withdrawn).map(|record| record.id.clone()).collect();
        let (mut gone, mut done) = (Vec::new(), Ok(()));
        for (at, id) in unlisted.iter().enumerate() {
            if gone.len() == most || (at >= excess && weight <= RECORDS_MEMORY) {
                break;
            }
            // Those behind one that fails have their turn.
            match self.remove_record(id) {
                Ok(()) => {
                    weight = weight.saturating_sub(self.take_out(id));
                    gone.push(id.clone());
                }
                failed => done = done.and(failed),
            }
        }
        self.new_marks += gone.len();
        if self.new_marks >= MARKS_COUNTED_AFTER {
            let pruned = self.prune_marks();
            self.new_marks = if pruned.is_ok() { 0 } else { self.new_marks };
            done = done.and(pruned);
        }
        (gone, done)
    }

    /// Removes the files of an ended record, and leaves a mark: at no time may nothing say that it was run. Where Heat has no result of it,
    /// that stays beside the mark, and is sent if Heat lists it again.
    fn remove_record(&self, id: &str) -> Result<()> {
        let Some(record) = self.records.get(id) else { return Ok(()) };
        let (tree, mark) = self.mark(id);
        if mark.starts_with(MARKS) {
            tree.create_dir(Path::new(MARKS), Attributes::mode(0o700))?;
        }
        let (known, version) = (self.known(id)?, env!("CARGO_PKG_VERSION"));
        if matches!(record.withdrawn_from, Some(DeploymentState::Seen | DeploymentState::Running))
            && !self.may_have_begun(record)?
        {
            // It goes on where it was: from the beginning. The mark may be of an earlier run, which the operator wanted again.
            if known == Known::Lost {
                tree.remove(&mark)?;
            }
        } else if record.withdrawn_from.is_some() {
            // Before the mark that speaks of it.
            if let Some(result) = self.result_to_leave(record)? {
                tree.write(&unsent::result_file(&mark), &result, Attributes::mode(0o600))?;
            }
            tree.write_json(&mark, &serde_json::json!({OURS: version, RECORD_REMOVED: version}), Attributes::mode(0o600))?;
        } else {
            // What the replaced tools ran, or whoever left an empty file, is not called this agent's.
            if matches!(known, Known::Theirs | Known::Empty) {
                tree.write(&mark, b"", Attributes::mode(0o600))?;
            } else {
                tree.write_json(&mark, &serde_json::json!({RECORD_REMOVED: version}), Attributes::mode(0o600))?;
            }
            self.remove_result_beside(id)?;
        }
        // While it is there, and the record is not, the script is known to have begun.
        self.state.remove(&path_of(id))?;
        self.remove_begun_mark(id)
    }

    /// Whether anything shows that a script or hook has begun. Its record need not say: that is written before its job is, which may find no
    /// space to begin, and the state may be older than what lies beside it.
    fn may_have_begun(&self, record: &DeploymentRecord) -> Result<bool> {
        if !record.is_job() {
            return Ok(record.withdrawn_from != Some(DeploymentState::Seen));
        }
        if Programs::has_begun_in(&self.state, &record.job())? {
            return Ok(true);
        }
        let Some(legacy) = &self.legacy else { return Ok(false) };
        let (tree, mark) = self.mark(&record.id);
        Ok(legacy.facts(&begun_name(&record.id))?.is_some() || tree.facts(&unsent::result_file(&mark))?.is_some())
    }

    /// Whether nothing is left of the record of this job, not even one that cannot be understood. `keys`: of which something is.
    #[must_use]
    pub fn is_without_record(job: &str, keys: &BTreeSet<String>) -> bool {
        job.strip_prefix(JOB_PREFIX).is_some_and(|key| !keys.contains(key))
    }

    /// The keys of the files in the directory of records.
    ///
    /// # Errors
    /// If it cannot be listed.
    pub fn keys(&self) -> Result<BTreeSet<String>> {
        let names = self.state.list(Path::new(DIRECTORY))?;
        let key = |name: &OsString| name.to_str()?.split('.').next().map(str::to_owned);
        Ok(names.iter().filter_map(key).gather())
    }

    /// Of these names, which `name` gives a deployment's files, those whose deployments have a mark that says that their records were removed.
    ///
    /// # Errors
    /// If marks cannot be looked for.
    pub fn removed(&self, names: &BTreeSet<String>, name: impl Fn(&str) -> String) -> Result<BTreeSet<String>> {
        // Of ids that are no file names, by key.
        let marks = self.state.list(Path::new(MARKS))?;
        let mut removed: BTreeSet<String> =
            marks.iter().filter_map(|mark| mark.to_str()).filter(|mark| names.contains(*mark)).map(str::to_owned).gather();
        let files = self.legacy.as_ref().map_or(Ok(Vec::new()), |legacy| legacy.list(Path::new("")))?;
        for id in files.iter().filter_map(|file| file.to_str()?.strip_suffix(".json")).filter(|id| legacy_name(id).is_some()) {
            let name = name(id);
            if names.contains(&name) && matches!(self.known(id)?, Known::Untold | Known::Over) {
                removed.insert(name);
            }
        }
        Ok(removed)
    }

    /// The result of a record that is removed, as it is left beside its mark: whole where it is short, else its status and reason.
    fn result_to_leave(&self, record: &DeploymentRecord) -> Result<Option<Vec<u8>>> {
        let Some(whole) = Self::whole(&self.state, record)? else { return Ok(None) };
        let text = |outcome: &DeploymentOutcome, limit| {
            let body = super::result::body(outcome, &record.outputs, limit);
            serde_json::to_vec(&super::result::kept(outcome, body)).map_err(Error::permanent)
        };
        let result = text(&whole, super::SIGNAL_LIMIT)?;
        if result.len() <= LEFT_RESULT {
            return Ok(Some(result));
        }
        text(&without_output(record, &whole.shortened(RESULT_IN_MEMORY)), LEFT_RESULT / 2).map(Some)
    }

    /// The oldest of the marks go, beyond those to keep: empty ones, and what is left of this agent's own records. Whatever else has
    /// content is the replaced tools', or of a record.
    fn prune_marks(&self) -> Result<()> {
        if let Some(legacy) = &self.legacy {
            let id_of = |name: &str| name.strip_suffix(".json").or_else(|| name.strip_suffix(".begun")).map(str::to_owned);
            let is_mark = |name: &str| id_of(name).is_some_and(|id| !id.is_empty() && !self.records.contains_key(&id));
            self.prune_marks_in(legacy, Path::new(""), is_mark)?;
        }
        self.prune_marks_in(&self.state, Path::new(MARKS), |_| true)
    }

    fn prune_marks_in(&self, tree: &Tree, directory: &Path, is_mark: impl Fn(&str) -> bool) -> Result<()> {
        let names = tree.list(directory)?;
        if names.len() <= LEGACY_MARKS {
            return Ok(());
        }
        let mut marks = Vec::new();
        let is_result = |name: &str| name.ends_with(".notify.json");
        for name in names.into_iter().filter(|name| name.to_str().is_some_and(|name| is_mark(name) && !is_result(name))) {
            let path = directory.join(name);
            let Some(facts) = tree.facts(&path)?.filter(|facts| facts.kind == FileKind::File) else { continue };
            let is_left = || tree.read_json(&path).ok().flatten().is_some_and(|entry: Value| entry.get(RECORD_REMOVED).is_some());
            if facts.size == 0 || (facts.size <= DISCARDED && is_left()) {
                marks.push((facts.stamp.1, facts.stamp.2, path, facts.size > 0));
            }
        }
        marks.sort_unstable();
        let gone = marks.len().saturating_sub(LEGACY_MARKS);
        for (_, _, path, is_left) in marks.iter().take(gone) {
            // Before the mark that speaks of it.
            if *is_left {
                tree.remove(&unsent::result_file(path))?;
            }
            tree.remove(path)?;
        }
        if gone > 0 {
            let place = tree.base().join(directory);
            let line = format!("{gone} marks of old deployments were removed from {}", place.display());
            let cause = format!("the newest {LEGACY_MARKS} are kept");
            self.report.emit(Event::new(Code::LeftoversRemoved, line).phase(Phase::Deploy).cause(cause));
        }
        Ok(())
    }

    /// Removes what writes that were cut off left in the replaced tools' directory; how many files.
    ///
    /// # Errors
    /// If it cannot be looked at.
    pub fn remove_partial_writes(&self) -> Result<usize> {
        self.legacy.as_ref().map_or(Ok(0), |legacy| legacy.remove_partial_writes(Path::new("")))
    }

    /// Bytes of what the replaced tools find of a deployment and its result.
    ///
    /// # Errors
    /// If it cannot be looked at.
    pub fn legacy_bytes(&self, id: &str) -> Result<u64> {
        let (Some(legacy), Some(name)) = (&self.legacy, legacy_name(id)) else { return Ok(0) };
        let bytes = |path: &Path| legacy.facts(path).map(|facts| facts.map_or(0, |facts| facts.size));
        Ok(bytes(&name)? + bytes(&name.with_extension("notify.json"))?)
    }

    /// Removes what they find of a deployment that has ended, but for that it was run: it took too much of the disk.
    ///
    /// # Errors
    /// If it cannot be removed.
    pub fn discard_legacy_files(&self, id: &str) -> Result<()> {
        let (Some(legacy), Some(name)) = (&self.legacy, legacy_name(id)) else { return Ok(()) };
        self.remove_result_beside(id)?;
        let rest = serde_json::json!({"id": id, OURS: env!("CARGO_PKG_VERSION")});
        let is_larger = legacy.facts(&name)?.is_some_and(|facts| facts.size > DISCARDED);
        // What was there before this agent ran anything is the replaced tools'.
        if is_larger && self.records.get(id).is_some_and(|record| record.started.is_some()) {
            write_legacy(legacy, &name, &rest)?;
        }
        Ok(())
    }

    /// Removes what lies beside it of its result.
    fn remove_result_beside(&self, id: &str) -> Result<()> {
        let (tree, mark) = self.mark(id);
        tree.remove(&unsent::result_file(&mark)).map(drop)
    }

    fn new_record(&self, id: &str, name: &str, group: &str) -> DeploymentRecord {
        DeploymentRecord {
            schema: 1,
            id: id.to_owned(),
            name: name.to_owned(),
            group: group.to_owned(),
            action: String::new(),
            state: DeploymentState::Seen,
            resource: None,
            target: SignalTarget::None,
            outputs: Vec::new(),
            seen: self.clock.now(),
            seen_at: self.clock.moment(),
            started: None,
            started_at: None,
            finished: None,
            outcome: None,
            long_result_failed: None,
            note: None,
            wait_note: None,
            undelivered: false,
            order: None,
            withdrawn_from: None,
            wait_signal: None,
            since: Moment::EARLIER,
            ending: None,
        }
    }

    fn change(&mut self, id: &str, change: impl FnOnce(&mut DeploymentRecord)) -> Result<()> {
        let Some(mut record) = self.records.get(id).cloned() else { return Ok(()) };
        change(&mut record);
        self.put(record)
    }

    fn put(&mut self, mut record: DeploymentRecord) -> Result<()> {
        record.since = self.clock.moment();
        // Where the job has the result, the record need not have it once more.
        let long = record.shorten();
        let is_long = record.long_result_failed.is_some();
        let has_job = is_long && self.state.facts(&job_dir(&record.job()).join(RESULT))?.is_some();
        let short = record.outcome.clone();
        if is_long && !has_job {
            record.outcome = if long.is_some() { long } else { self.outcome(&record.id)? };
        }
        let written = self.state.write_json(&path_of(&record.id), &record, Attributes::mode(0o600));
        record.outcome = short;
        written?;
        self.insert(record);
        Ok(())
    }

    fn insert(&mut self, record: DeploymentRecord) {
        let before = self.records.get(&record.id).map(|record| record.state);
        if before.is_some_and(|before| before > record.state) {
            self.revision += 1;
        }
        self.take_out_of_counts(&record.id);
        match record.state {
            DeploymentState::Finished => drop(self.finished.insert(record.id.clone())),
            DeploymentState::Signalled => self.signalled += 1,
            DeploymentState::Seen | DeploymentState::Running => {}
        }
        self.records.insert(record.id.clone(), record);
    }

    fn take_out_of_counts(&mut self, id: &str) {
        match self.records.get(id).map(|record| record.state) {
            Some(DeploymentState::Finished) => drop(self.finished.remove(id)),
            Some(DeploymentState::Signalled) => self.signalled -= 1,
            _ => {}
        }
    }

    /// Takes a record out of memory; what it weighed.
    fn take_out(&mut self, id: &str) -> usize {
        self.take_out_of_counts(id);
        self.revision += 1;
        self.records.remove(id).map_or(0, |record| record.weight())
    }
}

/// The one record that an operator means: by its id, by its name, or by the beginning of its id.
///
/// # Errors
/// If there is none, or more than one; names are not unique, ids are.
pub fn choose<'a>(records: &[&'a DeploymentRecord], wanted: &str) -> Result<&'a DeploymentRecord> {
    if let Some(record) = records.iter().find(|record| record.id == wanted) {
        return Ok(record);
    }
    let named: Vec<_> = records.iter().filter(|record| record.name == wanted).collect();
    let begun: Vec<_> = records.iter().filter(|record| !wanted.is_empty() && record.id.starts_with(wanted)).collect();
    let found = if named.is_empty() { begun } else { named };
    match found[..] {
        [record] => Ok(record),
        [] => Err(Error::permanent(format!("no deployment {wanted:?} is recorded"))
            .rule("an id, the beginning of one, or a name")
            .remedy("`heat-node-agent logs` lists them")),
        _ => {
            let ids: Vec<_> = found.iter().rev().take(SUGGESTED).map(|record| record.id.as_str()).collect();
            Err(Error::permanent(format!("{} deployments match {wanted:?}", found.len()))
                .rule("names and beginnings of ids must be unique")
                .remedy(format!("name one by its id, newest first: {}", ids.join(", "))))
        }
    }
}

/// What of a record the metadata decides, and not what became of it here.
fn describe(record: &mut DeploymentRecord, deployment: &Deployment) {
    deployment.name.clone_into(&mut record.name);
    deployment.group.clone_into(&mut record.group);
    deployment.action().clone_into(&mut record.action);
    record.resource = deployment.resource();
    record.target = deployment.signal_target();
    record.outputs = deployment.outputs.iter().map(|Output { name, error_output, .. }| (name.clone(), *error_output)).collect();
}

/// Of a result what its record has of it, and that the rest is gone.
fn without_output(record: &DeploymentRecord, short: &DeploymentOutcome) -> DeploymentOutcome {
    // It may have failed by an output that is gone.
    let status = if record.failed() && short.status == 0 { 1 } else { short.status };
    DeploymentOutcome { status, stderr: REMOVED.to_owned(), ..short.clone() }
}

fn path_of(id: &str) -> PathBuf {
    Path::new(DIRECTORY).join(format!("{}.json", key_of(id)))
}

/// A result as it lies beside the replaced tools' file of its deployment.
fn body_beside(outcome: &DeploymentOutcome, record: &DeploymentRecord) -> Map<String, Value> {
    super::result::kept(outcome, super::result::body(outcome, &record.outputs, super::SIGNAL_LIMIT))
}

/// Writes a file of the replaced tools, in their form: people and scripts read it by line. A document that is nested deep would be a hundred
/// times as large with its lines indented: it stays in one.
fn write_legacy(legacy: &Tree, name: &Path, value: &Value) -> Result<()> {
    let compact = serde_json::to_vec(value).map_err(Error::permanent)?;
    let text = if indentation(value, 1) <= compact.len() + 1024 {
        serde_json::to_vec_pretty(value).map_err(Error::permanent)?
    } else {
        compact
    };
    legacy.write(name, &text, Attributes::mode(0o600))
}

/// Bytes that a value at this depth takes more where each item has an indented line.
fn indentation(value: &Value, depth: usize) -> usize {
    let items: &mut dyn Iterator<Item = &Value> = match value {
        Value::Array(items) => &mut items.iter(),
        Value::Object(members) => &mut members.values(),
        _ => return 0,
    };
    // Two spaces a level, a line's end, and in objects a space behind the colon.
    items.map(|item| 2 * depth + 2 + indentation(item, depth + 1)).sum::<usize>() + 2 * depth
}

/// The replaced tools' file name of a deployment; `None` for an id that is no safe file name (R21).
#[must_use]
pub fn legacy_name(id: &str) -> Option<PathBuf> {
    let safe = !id.is_empty()
        && id.len() <= 200
        && !id.starts_with('.')
        // The result of another one.
        && !id.ends_with(".notify")
        && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    safe.then(|| PathBuf::from(format!("{id}.json")))
}

/// The key of a deployment's job.
#[must_use]
pub fn job_of(id: &str) -> String {
    format!("{JOB_PREFIX}{}", key_of(id))
}

/// Name of the file that says that a script or hook has begun. The replaced tools look at no such name. An id that could be another's key
/// is named by its own.
fn begun_name(id: &str) -> PathBuf {
    legacy_name(id)
        .filter(|_| !is_key(id))
        .unwrap_or_else(|| PathBuf::from(format!("{}.json", key_of(id))))
        .with_extension("begun")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::budgets::DEPLOYMENTS;
    use crate::metadata::Output;

    struct TestState(tempfile::TempDir);

    impl TestState {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        fn write(&self, path: &str, text: &str) {
            let tree = Tree::open(self.0.path()).unwrap();
            tree.create_dir_all(Path::new(path).parent().unwrap(), Attributes::mode(0o700)).unwrap();
            tree.write(Path::new(path), text.as_bytes(), Attributes::mode(0o600)).unwrap();
        }

        fn journal(&self, report: &Report) -> Journal {
            let state = Arc::new(Tree::open_or_create(&self.0.path().join("state"), 0o700).unwrap());
            Journal::open(state, Some(&self.0.path().join("deployed")), 2, Clock::manual(Timestamp(1000)), report).unwrap()
        }
    }

    fn deployment(id: &str) -> Deployment {
        Deployment::parse(&json!({"id": id, "name": "n", "group": "script", "config": "x", "outputs": [{"name": "o"}]}))
            .unwrap()
            .unwrap()
    }

    #[test]
    fn every_step_survives_a_restart() {
        let (place, report) = (TestState::new(), Report::kept());
        assert!(place.journal(&report).register(&deployment("a")).unwrap().is_some());
        assert_eq!(place.journal(&report).get("a").unwrap().state, DeploymentState::Seen);
        place.journal(&report).start("a", json!({"id": "a"})).unwrap();
        assert_eq!(place.journal(&report).get("a").unwrap().state, DeploymentState::Running);
        let outcome = DeploymentOutcome { status: 0, stdout: "out".into(), ..DeploymentOutcome::default() };
        place.journal(&report).finish("a", outcome.clone()).unwrap();
        let journal = place.journal(&report);
        let record = journal.get("a").unwrap();
        assert_eq!((record.state, record.outcome.as_ref()), (DeploymentState::Finished, Some(&outcome)));
        let beside = Path::new("deployed/a.notify.json");
        let tree = Tree::open(place.0.path()).unwrap();
        let is_whole = || {
            let text = tree.read(beside, 1 << 20).unwrap().unwrap_or_default();
            String::from_utf8(text).unwrap().contains("\"deploy_stdout\": \"out\"")
        };
        // The agent may be cut off between the two.
        assert!(!is_whole());
        journal.write_missing_result("a").unwrap();
        assert!(is_whole());
        place.journal(&report).signalled("a", None).unwrap();
        assert_eq!(place.journal(&report).get("a").unwrap().state, DeploymentState::Signalled);
    }

    #[test]
    fn what_the_replaced_tools_ran_is_not_run_again_even_if_their_file_is_empty() {
        let (place, report) = (TestState::new(), Report::kept());
        let mut journal = place.journal(&report);
        place.write("deployed/a.json", "");
        assert!(journal.register(&deployment("a")).unwrap().is_none());
        assert_eq!(journal.get("a").unwrap().state, DeploymentState::Signalled);
        assert!(journal.register(&deployment("../../x")).unwrap().is_some());
    }

    /// Attack: with a state directory that was restored from an older copy, a result that Heat had not heard was lost, because what the
    /// agent itself had run counted as run by the replaced tools.
    /// Attack: a script was recorded and not begun; the replaced tools ran it while the agent was away, and the agent ran it again.
    #[test]
    fn what_others_ran_while_it_was_only_seen_is_not_begun() {
        let (place, report) = (TestState::new(), Report::kept());
        let mut journal = place.journal(&report);
        for (id, mark) in [("theirs", r#"{"id": "theirs"}"#), ("empty", ""), ("over", r#"{"heat_node_agent_removed": "0.1.0"}"#)]
        {
            journal.register(&deployment(id)).unwrap();
            assert!(!journal.recover(id, DeploymentState::Seen).unwrap(), "{id} is to be begun");
            place.write(&format!("deployed/{id}.json"), mark);
            assert!(journal.recover(id, DeploymentState::Seen).unwrap(), "{id}");
            let record = journal.get(id).unwrap();
            assert!(record.state == DeploymentState::Signalled && record.note.is_some(), "{id}: {record:?}");
        }
        // What the operator wants again is begun in spite of its mark.
        journal.register(&deployment("again")).unwrap();
        place.write("deployed/again.json", "");
        journal.change("again", |record| record.order = Some("1".into())).unwrap();
        assert!(!journal.recover("again", DeploymentState::Seen).unwrap());
    }

    /// Attack: the second script never ran, because the mark of the first one was taken for its own.
    #[test]
    fn an_id_that_is_the_key_of_another_one_has_a_mark_of_its_own() {
        let odd = "odd id";
        assert_ne!(begun_name(odd), begun_name(&key_of(odd)));
        assert_eq!(begun_name("3b0c1f7a-52d4-4e1a-9c55-7d1f0a2b6c11"), Path::new("3b0c1f7a-52d4-4e1a-9c55-7d1f0a2b6c11.begun"));
    }

    /// Attack: one whose record was removed ran once more.
    #[test]
    fn a_mark_that_leads_nowhere_is_a_mark() {
        let (place, report) = (TestState::new(), Report::kept());
        let mut journal = place.journal(&report);
        let state = Tree::open(&place.0.path().join("state")).unwrap();
        let mark = Path::new(MARKS).join(key_of("odd id"));
        assert!(journal.known("odd id").unwrap() == Known::No);
        state.create_dir_all(Path::new(MARKS), Attributes::mode(0o700)).unwrap();
        state.link("/nowhere/at/all", &mark).unwrap();
        assert!(journal.known("odd id").unwrap() == Known::Theirs);
        assert!(journal.register(&deployment("odd id")).is_ok());
    }

    #[test]
    fn what_this_agent_ran_is_told_from_what_the_replaced_tools_ran() {
        let (place, report) = (TestState::new(), Report::kept());
        let outputs = [("o".to_owned(), json!({"a": 1}))];
        let failed =
            DeploymentOutcome { status: 3, stdout: "out".into(), outputs: outputs.into(), ..DeploymentOutcome::default() };
        let why = Error::permanent("why (because)").remedy(Remedy::stack_update("do"));
        let refused = DeploymentOutcome::refused(FailureReason::of(&why).with_code("HNA-0404"));
        {
            let mut journal = place.journal(&report);
            for (id, outcome) in [("failed", Some(&failed)), ("refused", Some(&refused)), ("cut", None), ("seen", Some(&failed))]
            {
                journal.register(&deployment(id)).unwrap();
                journal.start(id, json!({"id": id, "inputs": []})).unwrap();
                if let Some(outcome) = outcome {
                    journal.finish(id, outcome.clone()).unwrap();
                    journal.write_missing_result(id).unwrap();
                }
            }
            let node = Deployment::parse(&json!({"id": "node", "group": "kubernetes-node"})).unwrap().unwrap();
            journal.register(&node).unwrap();
            journal.start("node", json!({"id": "node"})).unwrap();
        }
        // The copy was made before any of this, but for one that was seen.
        let state = Tree::open(&place.0.path().join("state")).unwrap();
        state.remove_dir_all(Path::new(DIRECTORY)).unwrap();
        place.write("deployed/theirs.json", "{\"id\": \"theirs\"}");
        place.write("deployed/theirs.notify.json", "{\"deploy_status_code\": 0}");
        // As an earlier version left it.
        let earlier = json!({"deploy_status_code": "1 (HNA-0405 why (because))", "deploy_stderr": "HNA-0405 why (because)"});
        place.write("deployed/earlier.json", "{\"id\": \"earlier\", \"heat_node_agent\": \"0.1.0\"}");
        place.write("deployed/earlier.notify.json", &earlier.to_string());
        let mut journal = place.journal(&report);
        let seen = journal.new_record("seen", "n", "script");
        journal.put(seen).unwrap();
        assert!(
            journal.recover("seen", DeploymentState::Seen).unwrap() && !journal.recover("seen", DeploymentState::Seen).unwrap()
        );
        for (id, outcome) in [("failed", Some(failed.clone())), ("refused", Some(refused)), ("seen", Some(failed)), ("cut", None)]
        {
            if id != "seen" {
                assert!(journal.register(&deployment(id)).unwrap().is_none(), "{id} must not run twice");
            }
            let record = journal.get(id).unwrap();
            assert_eq!(record.state, DeploymentState::Finished, "{id}");
            let found = record.outcome.clone().unwrap();
            match outcome {
                Some(outcome) => {
                    let body = |outcome| crate::deploy::body(outcome, &[("o".into(), false)], crate::deploy::SIGNAL_LIMIT);
                    assert_eq!((found.status, body(&found)), (outcome.status, body(&outcome)), "{id}");
                    assert_eq!((&found.reason, found.from_agent), (&outcome.reason, outcome.from_agent), "{id}");
                }
                None => assert!(found.reason.unwrap().code.as_deref() == Some("HNA-0405") && record.failed()),
            }
        }
        assert!(journal.register(&deployment("earlier")).unwrap().is_none());
        let earlier = journal.get("earlier").unwrap().outcome.clone().unwrap();
        assert_eq!((earlier.status, earlier.from_agent), (1, true));
        assert_eq!(earlier.reason.unwrap().to_string(), "HNA-0405 why (because)");
        journal.register(&deployment("theirs")).unwrap();
        assert_eq!(journal.get("theirs").unwrap().state, DeploymentState::Signalled);
        let node = Deployment::parse(&json!({"id": "node", "group": "kubernetes-node"})).unwrap().unwrap();
        assert!(journal.register(&node).unwrap().is_some(), "a node is brought up again, which changes nothing");
        // Heat's order is new, and so is the run that an operator asked for.
        journal.signalled("failed", None).unwrap();
        // The copy was made while it ran.
        let running =
            DeploymentRecord { state: DeploymentState::Running, outcome: None, ..journal.get("failed").unwrap().clone() };
        journal.put(running).unwrap();
        assert!(
            !journal.recover("failed", DeploymentState::Seen).unwrap()
                && journal.recover("failed", DeploymentState::Running).unwrap()
        );
        assert!(journal.get("failed").unwrap().outcome.is_some());
        journal.signalled("failed", None).unwrap();
        journal.rerun("failed", "1").unwrap();
        assert!(!journal.recover("failed", DeploymentState::Seen).unwrap());
    }

    /// Attack: the links gave way to the agent while a result was unsent: `status` said that it had succeeded, and Heat never heard.
    #[test]
    fn what_the_replaced_tools_did_not_tell_heat_is_told_by_this_agent() {
        let (place, report) = (TestState::new(), Report::kept());
        let space = " ".repeat(4096);
        let kept = r#"{"deploy_status_code": 3, "deploy_stdout": "out", "o": "output"}"#;
        for (id, unsent, result) in [
            ("whole", space.as_str(), Some(kept)),
            ("of_before", "", Some(kept)),
            ("short", r#"{"deploy_status_code": 3}  "#, None),
            ("cut_off", &space, None),
            ("damaged", &space, Some("{\"deploy_sta")),
            ("running", &space, None),
        ] {
            place.write(&format!("deployed/{id}.json"), &json!({"id": id}).to_string());
            place.write(&format!("deployed/{id}.unsent"), unsent);
            if let Some(result) = result {
                place.write(&format!("deployed/{id}.notify.json"), result);
            }
        }
        let mut journal = place.journal(&report);
        let deployed = Tree::open(&place.0.path().join("deployed")).unwrap();
        for (id, status) in [("whole", 3), ("of_before", 3), ("short", 3), ("cut_off", 1), ("damaged", 1)] {
            assert!(journal.register(&deployment(id)).unwrap().is_none(), "{id} must not run twice");
            let record = journal.get(id).unwrap();
            let outcome = record.outcome.clone().unwrap();
            assert_eq!((record.state, outcome.status, record.failed()), (DeploymentState::Finished, status, true), "{id}");
            assert_eq!(outcome.stdout == "out", ["whole", "of_before"].contains(&id), "{id}");
            assert_eq!(outcome.reason.is_some_and(|reason| reason.to_string().contains("interrupted")), status == 1, "{id}");
            assert!(!unsent::is_open(&deployed, &legacy_name(id).unwrap()).unwrap(), "{id}");
        }
        let running = Unsent::take(&deployed, Path::new("running.json")).unwrap();
        let error = journal.register(&deployment("running")).unwrap_err();
        assert!(error.kind() == ErrorKind::Transient && journal.get("running").is_none() && running.is_some());
    }

    #[test]
    fn the_mark_that_a_script_has_begun_stays_until_it_may_run_again() {
        let (place, report) = (TestState::new(), Report::kept());
        let mut journal = place.journal(&report);
        let begin = |journal: &mut Journal, id: &str| {
            journal.register(&deployment(id)).unwrap();
            journal.start(id, json!({"id": id})).unwrap();
            let mark = PathBuf::from(journal.begun_mark(id).unwrap());
            assert_eq!(mark.parent(), Some(&*place.0.path().join("deployed")), "{id}");
            place.write(&format!("deployed/{}", mark.file_name().unwrap().to_str().unwrap()), "");
            journal.finish(id, DeploymentOutcome::refused("no")).unwrap();
            mark
        };
        let marks = ["a", "b", "c", "../../x"].map(|id| begin(&mut journal, id));
        assert_eq!(marks[0].file_name().unwrap(), "a.begun");
        journal.rerun("a", "1").unwrap();
        assert!(!marks[0].exists());
        // The same order once more is none.
        place.write("deployed/a.begun", "");
        journal.rerun("a", "1").unwrap();
        assert!(marks[0].exists());
        for id in ["b", "c", "../../x"] {
            journal.signalled(id, None).unwrap();
        }
        journal.forget("b").unwrap();
        journal.keep = 0;
        journal.prune(usize::MAX, |record| record.id != "c").1.unwrap();
        assert_eq!(marks.map(|mark| mark.exists()), [true, false, false, true]);
    }

    #[test]
    fn a_partially_written_record_is_quarantined_and_logged() {
        let (place, report) = (TestState::new(), Report::kept());
        place.journal(&report).register(&deployment("a")).unwrap();
        let file = Path::new("state").join(path_of("a"));
        place.write(file.to_str().unwrap(), "{\"schema\": 1, \"id\"");
        let file = place.0.path().join(file);
        assert!(place.journal(&report).get("a").is_none());
        assert!(file.with_extension("unreadable").exists());
        assert_eq!(report.events()[0].code, Code::StateFileQuarantined);
    }

    /// Attack: two records changed places, and Heat was told of each what the other had done.
    #[test]
    fn a_record_is_that_of_the_deployment_whose_name_it_has() {
        let (place, report) = (TestState::new(), Report::kept());
        let mut journal = place.journal(&report);
        for (id, status) in [("a", 0), ("b", 3)] {
            journal.register(&deployment(id)).unwrap();
            journal.finish(id, DeploymentOutcome { status, stdout: "x".repeat(5_000), ..DeploymentOutcome::default() }).unwrap();
        }
        let (tree, place_of) = (Tree::open(place.0.path()).unwrap(), |id| Path::new("state").join(path_of(id)));
        let text = tree.read(&place_of("b"), 1 << 20).unwrap().unwrap();
        tree.write(&place_of("a"), &text, Attributes::mode(0o600)).unwrap();
        assert_eq!(journal.outcome("a").unwrap().unwrap().status, 0, "the running agent knows better");
        let journal = place.journal(&report);
        assert_eq!((journal.get("a"), journal.outcome("b").unwrap().unwrap().status), (None, 3));
        assert!(report.events().iter().any(|event| event.code == Code::StateFileQuarantined));
    }

    #[test]
    fn one_order_runs_a_deployment_again_once() {
        let (place, report) = (TestState::new(), Report::kept());
        let mut journal = place.journal(&report);
        journal.register(&deployment("a")).unwrap();
        journal.start("a", json!({"id": "a"})).unwrap();
        journal.finish("a", DeploymentOutcome::refused("no")).unwrap();
        journal.undelivered("a", "Heat is gone".into()).unwrap();
        assert!(place.journal(&report).get("a").unwrap().undelivered);
        journal.rerun("a", "1").unwrap();
        let again = place.journal(&report).get("a").unwrap().clone();
        assert_eq!(
            (again.state, again.started, again.outcome, again.note, again.undelivered),
            (DeploymentState::Seen, None, None, None, false)
        );
        journal.finish("a", DeploymentOutcome::default()).unwrap();
        journal.rerun("a", "1").unwrap();
        assert_eq!(journal.get("a").unwrap().state, DeploymentState::Finished);
        journal.rerun("a", "2").unwrap();
        assert_eq!(journal.get("a").unwrap().state, DeploymentState::Seen);
    }

    #[test]
    fn what_is_forgotten_is_forgotten_for_the_replaced_tools_too() {
        let (place, report) = (TestState::new(), Report::kept());
        let mut journal = place.journal(&report);
        place.write("deployed/a.json", "");
        assert!(journal.register(&deployment("a")).unwrap().is_none());
        journal.forget("a").unwrap();
        journal.forget("never there").unwrap();
        assert!(place.journal(&report).register(&deployment("a")).unwrap().is_some());
    }

    #[test]
    fn a_deployment_is_meant_by_id_name_or_the_beginning_of_its_id() {
        let (place, report) = (TestState::new(), Report::kept());
        let mut journal = place.journal(&report);
        for (id, name) in [("b1a6-1", "setup"), ("b1a6-2", "setup"), ("c0", "b1a6-1"), ("d0", "c")] {
            journal
                .register(
                    &Deployment::parse(&json!({"id": id, "name": name, "group": "script", "config": "x"})).unwrap().unwrap(),
                )
                .unwrap();
        }
        assert_eq!(Journal::inspect(&journal.state).unwrap().len(), 4);
        let all = journal.all();
        for (wanted, found) in [
            ("b1a6-1", Ok("b1a6-1")),
            ("c", Ok("d0")),
            ("c0", Ok("c0")),
            ("d", Ok("d0")),
            ("setup", Err("2 deployments match \"setup\"")),
            ("b1", Err("2 deployments match")),
            ("", Err("no deployment")),
            ("x", Err("no deployment \"x\" is recorded")),
        ] {
            match (choose(&all, wanted), found) {
                (Ok(record), Ok(id)) => assert_eq!(record.id, id, "{wanted}"),
                (Err(error), Err(words)) => assert!(error.to_string().contains(words), "{wanted}: {error}"),
                (got, _) => panic!("{wanted}: {got:?}"),
            }
        }
    }

    #[test]
    fn a_long_result_is_on_disk_alone_and_can_be_read_at_every_step() {
        let (place, report) = (TestState::new(), Report::kept());
        let long = DeploymentOutcome {
            status: 0,
            outputs: [("o".to_owned(), json!("x".repeat(500_000)))].into(),
            ..DeploymentOutcome::default()
        };
        // Of a job, of the agent itself, and as an earlier version left it.
        for (id, has_job) in [("job", true), ("own", false)] {
            let mut journal = place.journal(&report);
            journal.register(&deployment(id)).unwrap();
            if has_job {
                let directory = Path::new("state/work").join(journal.get(id).unwrap().job());
                let tree = Tree::open(place.0.path()).unwrap();
                tree.create_dir_all(&directory, Attributes::mode(0o700)).unwrap();
                let text = long.outputs["o"].as_str().unwrap().to_owned();
                let ran = JobResult { outputs: [("o".to_owned(), text)].into(), ..JobResult::default() };
                tree.write_json(&directory.join(RESULT), &ran, Attributes::mode(0o600)).unwrap();
            }
            journal.finish(id, long.clone()).unwrap();
            let size = |place: &TestState| std::fs::metadata(place.0.path().join("state").join(path_of(id))).unwrap().len();
            assert_eq!(size(&place) < 2_000, has_job, "the result is stored once");
            for step in ["finished", "after a restart", "signalled"] {
                assert!(journal.weight() < 4_000, "{step} {}", journal.weight());
                assert_eq!(journal.outcome(id).unwrap().as_ref(), Some(&long), "{step} {id}");
                match step {
                    "finished" => journal = place.journal(&report),
                    _ => journal.signalled(id, None).unwrap(),
                }
            }
            let inspected = Journal::inspect(&journal.state).unwrap();
            assert!(inspected.iter().all(|record| record.weight() < 2_000));
            journal.forget(id).unwrap();
        }
        let failing = DeploymentOutcome { status: 1, stderr: "y".repeat(5_000), ..long };
        let mut journal = place.journal(&report);
        journal.register(&deployment("old")).unwrap();
        let mut old: Value = serde_json::to_value(journal.get("old").unwrap()).unwrap();
        (old["state"], old["outcome"]) = (json!("finished"), serde_json::to_value(&failing).unwrap());
        place.write(Path::new("state").join(path_of("old")).to_str().unwrap(), &old.to_string());
        let journal = place.journal(&report);
        assert!(journal.get("old").unwrap().failed() && journal.weight() < 2_000);
        assert_eq!(journal.outcome("old").unwrap(), Some(failing));
        assert_eq!(journal.finished().count(), 1);
    }

    #[test]
    fn records_of_deployments_that_are_gone_are_bounded_in_sum() {
        let (place, report) = (TestState::new(), Report::kept());
        let mut journal = place.journal(&report);
        journal.keep = usize::MAX;
        for number in 0..3_000 {
            let mut record = journal.new_record(&format!("d{number:04}"), &"n".repeat(1_000), "script");
            record.state = DeploymentState::Signalled;
            journal.insert(record);
        }
        let (gone, _) = journal.prune(usize::MAX, |record| record.id == "d0000");
        assert!(gone.len() > 1_000 && gone[0] == "d0001" && journal.get("d0000").is_some() && journal.get("d2999").is_some());
        assert!(journal.weight() <= RECORDS_MEMORY + 4_000);
    }

    /// Attack: one answer of Heat's had no deployments, and the next one all of them again.
    #[test]
    fn a_whole_list_that_leaves_and_comes_back_does_not_run_again() {
        let (place, report) = (TestState::new(), Report::kept());
        let mut journal = place.journal(&report);
        let ids: Vec<String> = (0..DEPLOYMENTS).map(|number| format!("d{number:04}")).collect();
        for id in &ids {
            let mut record = journal.new_record(id, "n", "script");
            record.state = DeploymentState::Signalled;
            journal.insert(record);
        }
        assert!(journal.prune(usize::MAX, |_| false).0.len() > DEPLOYMENTS / 2);
        let runs = ids.iter().filter(|id| journal.get(id).is_none() && journal.register(&deployment(id)).unwrap().is_some());
        assert_eq!(runs.count(), 0);
    }

    /// Attack: of a result that was removed for room its failure was lost, and Heat heard success.
    #[test]
    fn a_result_that_is_gone_fails_as_it_did() {
        let (place, report) = (TestState::new(), Report::kept());
        let mut journal = place.journal(&report);
        let mut entry = deployment("a");
        entry.outputs = vec![Output { name: "why".to_owned(), error_output: true, ..Output::default() }];
        journal.register(&entry).unwrap();
        journal.start("a", json!({})).unwrap();
        let ran = JobResult { outputs: [("why".to_owned(), "x".repeat(5_000))].into(), ..JobResult::default() };
        let result = format!("work/{}/result.json", journal.get("a").unwrap().job());
        place.write(&format!("state/{result}"), &serde_json::to_string(&ran).unwrap());
        journal.finish("a", DeploymentOutcome::of("script", ran)).unwrap();
        assert_eq!(journal.outcome("a").unwrap().unwrap().status, 0);
        journal.state.remove(Path::new(&result)).unwrap();
        let outcome = journal.outcome("a").unwrap().unwrap();
        assert_eq!((outcome.status, outcome.stderr.as_str()), (1, REMOVED));
    }

    #[test]
    fn empty_files_of_the_replaced_tools_are_bounded_theirs_are_never_removed() {
        let (place, report) = (TestState::new(), Report::kept());
        let mut journal = place.journal(&report);
        for number in 0..LEGACY_MARKS + 5 {
            place.write(&format!("deployed/m{number:05}.json"), "");
        }
        place.write("deployed/theirs.json", "{}");
        for id in ["a", "b", "c"] {
            journal.register(&deployment(id)).unwrap();
            journal.signalled(id, None).unwrap();
        }
        assert_eq!(journal.prune(usize::MAX, |_| false).0, ["a"]);
        let names = journal.legacy.as_ref().unwrap().list(Path::new("")).unwrap();
        assert_eq!(names.len(), LEGACY_MARKS + 1);
        let events = report.events();
        let [reported] = events.as_slice() else { panic!("{events:?}") };
        assert_eq!(reported.code, Code::LeftoversRemoved);
        assert!(reported.message.starts_with("6 marks of old deployments were removed from /"), "{}", reported.message);
        assert!(names.contains(&"theirs.json".into()));
    }

    #[test]
    fn what_is_gone_is_known_although_another_record_cannot_be_removed() {
        let (place, report) = (TestState::new(), Report::kept());
        let mut journal = place.journal(&report);
        for id in ["a", "b", "c", "d", "e"] {
            journal.register(&deployment(id)).unwrap();
            journal.signalled(id, None).unwrap();
        }
        place.write("deployed/b.notify.json/x", "");
        let (gone, done) = journal.prune(usize::MAX, |_| false);
        assert_eq!((&*gone, done.is_err()), (&["a".to_owned(), "c".to_owned()][..], true));
        assert!(journal.get("b").is_some() && journal.get("c").is_none());
    }

    #[test]
    fn an_id_that_is_no_file_name_does_not_run_again_after_its_record_is_gone() {
        let report = Report::kept();
        for id in ["odd id/1", ".hidden", "a.notify", &"x".repeat(300), "c-37d1"] {
            let place = TestState::new();
            let mut journal = place.journal(&report);
            for id in [id, "z1", "z2", "z3"] {
                journal.register(&deployment(id)).unwrap();
                journal.start(id, json!({})).unwrap();
                journal.signalled(id, None).unwrap();
            }
            assert!(journal.prune(usize::MAX, |_| false).0.contains(&id.to_owned()), "{id}");
            let mut journal = place.journal(&report);
            assert!(journal.register(&deployment(id)).unwrap().is_none(), "{id} would run again");
            assert_eq!(journal.get(id).unwrap().state, DeploymentState::Signalled, "{id}");
            // Only the operator can have it run again.
            journal.forget(id).unwrap();
            assert!(place.journal(&report).register(&deployment(id)).unwrap().is_some(), "{id}");
        }
    }

    #[test]
    fn the_result_of_one_deployment_is_no_record_of_another() {
        let (place, report) = (TestState::new(), Report::kept());
        let mut journal = place.journal(&report);
        journal.register(&deployment("a")).unwrap();
        journal.finish("a", DeploymentOutcome::default()).unwrap();
        assert!(journal.register(&deployment("a.notify")).unwrap().is_some());
    }

    #[test]
    fn marks_of_ids_that_are_no_file_names_are_bounded() {
        let (place, report) = (TestState::new(), Report::kept());
        let mut journal = place.journal(&report);
        for number in 0..LEGACY_MARKS + 5 {
            place.write(&format!("state/marks/!{number:05}"), "");
        }
        for id in ["odd/a", "odd/b", "odd/c"] {
            journal.register(&deployment(id)).unwrap();
            journal.signalled(id, None).unwrap();
        }
        assert_eq!(journal.prune(usize::MAX, |_| false).0, ["odd/a"]);
        assert_eq!(journal.state.list(Path::new("marks")).unwrap().len(), LEGACY_MARKS);
        assert!(journal.register(&deployment("odd/a")).unwrap().is_none(), "the newest are kept");
        assert!(report.events()[0].message.starts_with("6 marks of old deployments were removed from /"));
    }

    #[test]
    fn old_ended_records_are_forgotten_listed_ones_never() {
        let (place, report) = (TestState::new(), Report::kept());
        let mut journal = place.journal(&report);
        for id in ["a", "b", "c", "d", "e"] {
            journal.register(&deployment(id)).unwrap();
            if id != "e" {
                journal.signalled(id, None).unwrap();
            }
        }
        let (gone, _) = journal.prune(usize::MAX, |record| record.id == "a");
        assert_eq!(gone, ["b"]);
        let mark = format!("{{\"heat_node_agent_removed\":\"{}\"}}\n", env!("CARGO_PKG_VERSION"));
        assert_eq!(std::fs::read_to_string(place.0.path().join("deployed/b.json")).unwrap(), mark);
        assert!(journal.get("a").is_some() && journal.get("e").is_some() && journal.get("b").is_none());
    }

    /// Attack: 300 deployments ended while Heat refused signals, one answer had none of them and the next one all of them again: of those
    /// beyond `keep` Heat never heard.
    #[test]
    fn what_heat_has_no_result_of_is_not_removed_with_what_is_over() {
        let (place, report) = (TestState::new(), Report::kept());
        let mut journal = place.journal(&report);
        let outcome = DeploymentOutcome { status: 3, stdout: "out".into(), ..DeploymentOutcome::default() };
        let from = [DeploymentState::Seen, DeploymentState::Running, DeploymentState::Finished];
        for (number, from) in from.into_iter().cycle().take(30).enumerate() {
            let id = format!("d{number:02}");
            journal.register(&deployment(&id)).unwrap();
            if from > DeploymentState::Seen {
                journal.start(&id, json!({"id": id})).unwrap();
            }
            if from == DeploymentState::Finished {
                journal.finish(&id, outcome.clone()).unwrap();
            }
            journal.mark_withdrawn(&id, from, "removed from the metadata").unwrap();
        }
        for id in ["e0", "e1", "e2"] {
            journal.register(&deployment(id)).unwrap();
            journal.signalled(id, None).unwrap();
        }
        assert_eq!(journal.prune(usize::MAX, |_| false).0, ["e0"], "the newest two of those that are over stay");
        let mut journal = place.journal(&report);
        for (number, from) in from.into_iter().cycle().take(30).enumerate() {
            let id = format!("d{number:02}");
            journal.take_back(&id).unwrap();
            let record = journal.get(&id).unwrap();
            let result = (from == DeploymentState::Finished).then_some(&outcome);
            assert_eq!((record.state, record.outcome.as_ref()), (from, result), "{id}");
        }
    }

    /// The same with so many that no budget has room for their records.
    #[test]
    fn of_what_is_removed_for_room_heat_hears_when_it_is_listed_again() {
        let (place, report) = (TestState::new(), Report::kept());
        let mut journal = place.journal(&report);
        let (odd, name) = (format!("odd/{}", "x".repeat(600)), |id: &str| id.chars().take(8).collect::<String>());
        let short = DeploymentOutcome {
            status: 0,
            stdout: "out".into(),
            outputs: [("o".to_owned(), json!("v"))].into(),
            ..DeploymentOutcome::default()
        };
        let long = DeploymentOutcome { status: 3, stdout: "x".repeat(200_000), ..DeploymentOutcome::default() };
        let why = Error::permanent("why (because)").remedy(Remedy::stack_update("do"));
        let refused = DeploymentOutcome::refused(FailureReason::of(&why).with_code("HNA-0404"));
        for (id, outcome) in [("short", &short), (&*odd, &short), ("long", &long), ("refused", &refused)] {
            journal.register(&deployment(id)).unwrap();
            if id != "refused" {
                journal.start(id, json!({"id": id, "config": "x".repeat(5_000)})).unwrap();
                place.write(&format!("deployed/{}", begun_name(id).display()), "");
            }
            journal.finish(id, outcome.clone()).unwrap();
            if id != "short" {
                journal.write_missing_result(id).unwrap();
            }
            journal.mark_withdrawn(id, DeploymentState::Finished, "removed from the metadata").unwrap();
        }
        journal.register(&deployment("cut")).unwrap();
        journal.start("cut", json!({"id": "cut"})).unwrap();
        place.write("deployed/cut.begun", "");
        journal.mark_withdrawn("cut", DeploymentState::Running, "removed from the metadata").unwrap();
        // An earlier version left nothing but its job, and one had no space to begin.
        for id in ["started", "waiting"] {
            journal.register(&deployment(id)).unwrap();
            journal.start(id, json!({"id": id})).unwrap();
            journal.mark_withdrawn(id, DeploymentState::Running, "removed from the metadata").unwrap();
        }
        place.write(&format!("state/work/{}/started", job_of("started")), "");
        place.write(&format!("state/work/{}/postponed.json", job_of("waiting")), "{}");
        journal.register(&deployment("unbegun")).unwrap();
        journal.start("unbegun", json!({"id": "unbegun"})).unwrap();
        journal.rerun("unbegun", "1").unwrap();
        journal.mark_withdrawn("unbegun", DeploymentState::Seen, "removed from the metadata").unwrap();
        let mut large = journal.new_record("large", &"n".repeat(RECORDS_MEMORY), "script");
        (large.state, large.withdrawn_from) = (DeploymentState::Signalled, Some(DeploymentState::Finished));
        large.since = journal.clock.moment();
        journal.insert(large);
        let (gone, done) = journal.prune(usize::MAX, |_| false);
        done.unwrap();
        let first: Vec<_> = gone.iter().map(|id| name(id)).collect();
        assert_eq!(first, ["short", "odd/xxxx", "long", "refused", "cut", "started", "waiting", "unbegun", "large"]);
        // Of what was removed little is left on the disk.
        let bytes =
            std::fs::read_dir(place.0.path().join("deployed")).unwrap().map(|file| file.unwrap().metadata().unwrap().len());
        assert!(bytes.sum::<u64>() < 8 * 1024);
        let mut journal = place.journal(&report);
        for (id, outcome) in [("short", &short), (&*odd, &short), ("refused", &refused)] {
            assert!(journal.register(&deployment(id)).unwrap().is_none(), "{id} must not run twice");
            let record = journal.get(id).unwrap();
            assert_eq!(record.state, DeploymentState::Finished, "{id}");
            let found = record.outcome.clone().unwrap();
            assert_eq!(
                (found.status, &found.stdout, &found.outputs),
                (outcome.status, &outcome.stdout, &outcome.outputs),
                "{id}"
            );
            assert_eq!((&found.reason, found.from_agent), (&outcome.reason, outcome.from_agent), "{id}");
            assert_eq!(
                record.note.as_deref(),
                Some(
                    "handled here before, and its record was removed before Heat had its result; its result was found beside it"
                )
            );
        }
        assert!(journal.register(&deployment("long")).unwrap().is_none());
        let found = journal.outcome("long").unwrap().unwrap();
        assert_eq!((found.status, found.stderr.as_str()), (3, REMOVED));
        assert!(journal.register(&deployment("started")).unwrap().is_none() && journal.get("started").unwrap().failed());
        assert!(journal.register(&deployment("waiting")).unwrap().is_some(), "it never began");
        assert!(journal.register(&deployment("cut")).unwrap().is_none());
        let cut = journal.get("cut").unwrap();
        assert!(cut.failed() && cut.state == DeploymentState::Finished);
        let why = cut.outcome.as_ref().unwrap().reason.as_ref().unwrap().to_string();
        assert!(why.contains("Heat did not list it") && !why.contains("restored"), "{why}");
        assert!(journal.register(&deployment("unbegun")).unwrap().is_some(), "it goes on where it was");
        // By order of the operator nothing of them is left.
        for id in ["short", &odd] {
            journal.forget(id).unwrap();
            assert!(place.journal(&report).register(&deployment(id)).unwrap().is_some());
        }
    }

    #[test]
    fn beyond_the_memory_of_records_those_go_first_that_were_withdrawn_first() {
        let (place, report) = (TestState::new(), Report::kept());
        let mut journal = place.journal(&report);
        for number in 0..3_000 {
            let mut record = journal.new_record(&format!("d{number:04}"), &"n".repeat(1_000), "script");
            (record.state, record.withdrawn_from) = (DeploymentState::Signalled, Some(DeploymentState::Seen));
            // The last one was withdrawn long before.
            record.since = if number == 2_999 { Moment::EARLIER } else { journal.clock.moment() };
            journal.insert(record);
        }
        let (gone, _) = journal.prune(usize::MAX, |_| false);
        assert_eq!(gone[..2], ["d2999", "d0000"]);
        let left = journal.weight();
        assert!(left <= RECORDS_MEMORY && left > RECORDS_MEMORY - 4_000, "{left}");
    }

    /// Attack: of what the agent had run itself, and whose record it had removed, it said that the replaced tools had run it.
    #[test]
    fn a_mark_of_this_agents_is_told_from_one_of_the_replaced_tools() {
        let (place, report) = (TestState::new(), Report::kept());
        let mut journal = place.journal(&report);
        // As the replaced tools wrote it, as heat-config-rebuild-deployed or an earlier version left it.
        place.write("deployed/theirs.json", "{\"id\": \"theirs\", \"inputs\": []}");
        place.write("deployed/empty.json", "");
        journal.register(&deployment("ran")).unwrap();
        journal.start("ran", json!({"id": "ran"})).unwrap();
        for id in ["ran", "refused", "odd/1", "theirs", "empty", "z1", "z2"] {
            journal.register(&deployment(id)).unwrap();
            journal.signalled(id, None).unwrap();
        }
        let note = |journal: &Journal, id: &str| journal.get(id).unwrap().note.clone().unwrap_or_default();
        let of_empty = "marked as run by an empty file, which does not say who ran it";
        assert_eq!((&*note(&journal, "theirs"), &*note(&journal, "empty")), ("run by the replaced tools", of_empty));
        assert_eq!(journal.prune(usize::MAX, |_| false).0.len(), 5);
        for (id, expected) in [
            ("ran", "handled here before, and its record was removed"),
            ("refused", "handled here before, and its record was removed"),
            ("odd/1", "handled here before, and its record was removed"),
            ("theirs", of_empty),
            ("empty", of_empty),
        ] {
            assert!(journal.register(&deployment(id)).unwrap().is_none(), "{id} must not run twice");
            assert_eq!(journal.get(id).unwrap().state, DeploymentState::Signalled, "{id}");
            assert_eq!(note(&journal, id), expected, "{id}");
        }
        // Whatever they say, the replaced tools only look at whether there is one; an earlier version takes it for theirs.
        for (id, is_empty) in [("ran", false), ("refused", false), ("theirs", true), ("empty", true)] {
            let text = std::fs::read_to_string(place.0.path().join(format!("deployed/{id}.json"))).unwrap();
            assert_eq!((text.is_empty(), text.contains("\"heat_node_agent\"")), (is_empty, false), "{id}");
        }
    }

    #[test]
    fn what_is_left_of_removed_records_is_bounded_with_all_other_marks() {
        let (place, report) = (TestState::new(), Report::kept());
        let mut journal = place.journal(&report);
        let mark = "{\"heat_node_agent\":\"0.1.0\",\"heat_node_agent_removed\":\"0.1.0\"}";
        for number in 0..LEGACY_MARKS + 2 {
            place.write(&format!("deployed/m{number:05}.json"), mark);
        }
        for name in ["m00000", "m00001", "m00002", "theirs"] {
            place.write(&format!("deployed/{name}.notify.json"), "{}");
        }
        place.write("deployed/theirs.json", "{\"heat_node_agent\": \"0.1.0\"}");
        place.write("state/marks/!0.notify.json", "{}");
        place.write("state/marks/!0", "");
        journal.prune(usize::MAX, |_| false).1.unwrap();
        let names = journal.legacy.as_ref().unwrap().list(Path::new("")).unwrap();
        let has = |name: &str| names.contains(&name.into());
        assert_eq!(["m00000.json", "m00001.json", "m00002.json", "theirs.json"].map(has), [false, false, true, true]);
        let results = ["m00000.notify.json", "m00001.notify.json", "m00002.notify.json", "theirs.notify.json"];
        assert_eq!(results.map(has), [false, false, true, true]);
        assert_eq!(journal.state.list(Path::new("marks")).unwrap().len(), 2);
        assert!(report.events()[0].message.starts_with("2 marks of old deployments were removed from /"));
    }
}
