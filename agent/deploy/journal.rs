//! The record of every deployment (design.md 4).
//!
//! One file a deployment, `deployments/KEY.json`, written whole and synced at each step. The replaced
//! tools' record below `/var/lib/heat-config/deployed` is honoured when a deployment is first seen and
//! kept up to date for them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::result::Outcome;
use crate::clock::{Clock, Moment, Timestamp};
use crate::error::{Error, Result};
use crate::files::{Attributes, Tree};
use crate::metadata::{Deployment, Output, SignalTarget};
use crate::order::{gather, sort_by};
use crate::programs::key_of;
use crate::report::{Code, Report};

const DIRECTORY: &str = "deployments";
/// How many ids are offered where several match.
const SUGGESTED: usize = 8;

/// How far a deployment is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Recorded, nothing done yet.
    Seen,
    /// Its work may have begun.
    Running,
    /// Its result is known; Heat may not have it yet.
    Finished,
    /// Heat has the result, or wants or can get none.
    Signalled,
}

impl State {
    /// The word in status and files.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Seen => "seen",
            Self::Running => "running",
            Self::Finished => "finished",
            Self::Signalled => "signalled",
        }
    }
}

/// Everything that is remembered of a deployment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
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
    pub state: State,
    /// Stack and resource: by these a newer run of the same resource is known.
    pub resource: Option<(String, String)>,
    /// Where the result goes.
    pub target: SignalTarget,
    /// Declared outputs: name and whether its presence means failure.
    pub outputs: Vec<(String, bool)>,
    /// When it was first seen.
    pub seen: Timestamp,
    /// When its work began.
    #[serde(default)]
    pub started: Option<Timestamp>,
    /// When it ended.
    #[serde(default)]
    pub finished: Option<Timestamp>,
    /// How it ended.
    #[serde(default)]
    pub outcome: Option<Outcome>,
    /// Why there was no signal, where there was none.
    #[serde(default)]
    pub note: Option<String>,
    /// Whether Heat was to hear of the result and never will.
    #[serde(default)]
    pub undelivered: bool,
    /// The operator's order by which it was last run again: each is carried out once.
    #[serde(default)]
    pub order: Option<String>,
    /// Heat asked for it no more when it was in this state; it goes on from there if Heat asks for it again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub let_go: Option<State>,
    /// When it last changed: what Heat says of it must have been said after that.
    #[serde(skip)]
    pub since: Moment,
}

impl Record {
    /// Name of its files and unit.
    #[must_use]
    pub fn key(&self) -> String {
        key_of(&self.id)
    }

    /// Name of the job in `programs`.
    #[must_use]
    pub fn job(&self) -> String {
        format!("deployment-{}", self.key())
    }

    /// Whether it ended with failure.
    #[must_use]
    pub fn failed(&self) -> bool {
        self.outcome.as_ref().is_some_and(|outcome| outcome.fails(&self.outputs))
    }
}

/// All records, in memory and on disk.
#[derive(Debug)]
pub struct Journal {
    state: Arc<Tree>,
    legacy: Option<Tree>,
    records: BTreeMap<String, Record>,
    /// When the operator last had one forgotten.
    forgotten: Moment,
    keep: usize,
    clock: Clock,
}

impl Journal {
    /// Reads the records. One that is unreadable is put aside, never deleted, and said.
    ///
    /// `legacy` is the replaced tools' directory; it is made if it is not there. `keep` is how many ended
    /// records are kept after their deployment is gone from the metadata.
    ///
    /// # Errors
    /// If the directory cannot be read or made.
    pub fn open(state: Arc<Tree>, legacy: Option<&Path>, keep: usize, clock: Clock, report: &Report) -> Result<Self> {
        state.create_dir(Path::new(DIRECTORY), Attributes::mode(0o700))?;
        let mut records = BTreeMap::new();
        for name in state.list(Path::new(DIRECTORY))? {
            let path = Path::new(DIRECTORY).join(&name);
            if path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            if let Some(record) = state.read_state::<Record>(&path, report, Code::StatePutAside)? {
                records.insert(record.id.clone(), record);
            }
        }
        let legacy = legacy.map(|path| Tree::open_or_create(path, 0o700)).transpose()?;
        Ok(Self { state, legacy, records, forgotten: Moment::EARLIER, keep, clock })
    }

    /// What is recorded, oldest first, for who only looks and holds no lock. An unreadable record is left out.
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub fn look(state: &Tree) -> Result<Vec<Record>> {
        let names = state.list(Path::new(DIRECTORY))?;
        let paths = names
            .iter()
            .map(|name| Path::new(DIRECTORY).join(name))
            .filter(|path| path.extension().is_some_and(|end| end == "json"));
        let mut records: Vec<Record> = paths.filter_map(|path| state.read_json(&path).ok().flatten()).collect();
        sort_by(&mut records, |one, other| (one.seen, &one.id).cmp(&(other.seen, &other.id)));
        Ok(records)
    }

    /// The record of a deployment.
    #[must_use]
    pub fn get(&self, id: &str) -> Option<&Record> {
        self.records.get(id)
    }

    /// What an answer of Heat must cover before anything is begun, or given up, for a deployment.
    #[must_use]
    pub fn since(&self, id: &str) -> Moment {
        // One that was forgotten may be listed still in an answer of before, and would run twice.
        self.records.get(id).map_or(self.forgotten, |record| record.since)
    }

    /// All records, oldest first.
    #[must_use]
    pub fn all(&self) -> Vec<&Record> {
        let mut all: Vec<_> = self.records.values().collect();
        sort_by(&mut all, |one, other| (one.seen, &one.id).cmp(&(other.seen, &other.id)));
        all
    }

    /// Records a deployment as seen. `None` if the replaced tools ran it: it is then recorded as done.
    ///
    /// # Errors
    /// If it cannot be written; it is then not taken up.
    pub fn see(&mut self, deployment: &Deployment) -> Result<Option<&Record>> {
        let mut record = self.new_record(&deployment.id, &deployment.name, &deployment.group);
        describe(&mut record, deployment);
        let known = match (&self.legacy, legacy_name(&deployment.id)) {
            (Some(legacy), Some(name)) => legacy.facts(&name)?.is_some(),
            _ => false,
        };
        if known {
            record.state = State::Signalled;
            record.note = Some("run by the replaced tools".to_owned());
        }
        self.put(record)?;
        Ok(self.records.get(&deployment.id).filter(|_| !known))
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
        outcome: Outcome,
    ) -> Result<()> {
        let mut record = self.records.get(id).cloned().unwrap_or_else(|| self.new_record(id, name, ""));
        record.target = target;
        record.resource = record.resource.or(resource);
        (record.state, record.let_go) = (State::Finished, None);
        record.finished = Some(self.clock.now());
        record.outcome = Some(outcome);
        self.put(record)
    }

    /// Records that the work may begin now. Only after this has returned may anything be started.
    ///
    /// # Errors
    /// If it cannot be written; nothing may be started then.
    pub fn start(&mut self, id: &str, entry: &Value) -> Result<()> {
        if let (Some(legacy), Some(name)) = (&self.legacy, legacy_name(id)) {
            legacy.write_json(&name, entry, Attributes::mode(0o600))?;
        }
        let now = self.clock.now();
        self.change(id, |record| {
            record.state = State::Running;
            record.started = record.started.or(Some(now));
        })
    }

    /// Records the result.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn finish(&mut self, id: &str, outcome: Outcome) -> Result<()> {
        let now = self.clock.now();
        self.change(id, |record| {
            record.state = State::Finished;
            record.finished = Some(now);
            record.outcome = Some(outcome);
        })?;
        let Some(record) = self.records.get(id) else { return Ok(()) };
        if let (Some(legacy), Some(name), Some(outcome)) = (&self.legacy, legacy_name(id), &record.outcome) {
            let body = super::result::body(outcome, &record.outputs, super::SIGNAL_LIMIT);
            legacy.write_json(&name.with_extension("notify.json"), &body, Attributes::mode(0o600))?;
        }
        Ok(())
    }

    /// Records that Heat has the result, or why it never will.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn signalled(&mut self, id: &str, note: Option<String>) -> Result<()> {
        self.change(id, |record| {
            (record.state, record.let_go) = (State::Signalled, None);
            // What was noted of the wait condition stays.
            record.note = note.or(record.note.take());
        })
    }

    /// Records that Heat asks for it no more, and from where it goes on if Heat does again.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn let_go(&mut self, id: &str, from: State, note: &str) -> Result<()> {
        self.change(id, |record| {
            (record.state, record.let_go) = (State::Signalled, Some(from));
            record.note = Some(note.to_owned());
        })
    }

    /// Records that Heat asks again for one that was let go.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn take_back(&mut self, id: &str) -> Result<()> {
        self.change(id, |record| {
            if let Some(state) = record.let_go.take() {
                (record.state, record.note) = (state, None);
            }
        })
    }

    /// Notes what became of something beside the result.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn note(&mut self, id: &str, note: String) -> Result<()> {
        self.change(id, |record| record.note = Some(note))
    }

    /// Records why Heat, which was to hear of the result, never will.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn undelivered(&mut self, id: &str, note: String) -> Result<()> {
        self.change(id, |record| {
            record.state = State::Signalled;
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
        let now = self.clock.now();
        self.change(id, |record| {
            if record.order.as_deref() == Some(order) {
                return;
            }
            record.state = State::Seen;
            record.seen = now;
            (record.started, record.finished, record.outcome, record.note) = (None, None, None, None);
            (record.undelivered, record.let_go) = (false, None);
            record.order = Some(order.to_owned());
        })
    }

    /// Removes a record, and that of the replaced tools: nobody knows of the deployment any more.
    ///
    /// # Errors
    /// If a file cannot be removed.
    pub fn forget(&mut self, id: &str) -> Result<()> {
        if let (Some(legacy), Some(name)) = (&self.legacy, legacy_name(id)) {
            legacy.remove(&name.with_extension("notify.json"))?;
            legacy.remove(&name)?;
        }
        // The last: while it is there the order is known not to be carried out.
        self.state.remove(&path_of(id))?;
        self.records.remove(id);
        self.forgotten = self.clock.moment();
        Ok(())
    }

    /// Forgets the oldest ended records of deployments that are gone from the metadata, beyond those to keep; gives back
    /// their ids. What the replaced tools read stays as an empty file: it is enough for them not to run it again.
    ///
    /// # Errors
    /// If a file cannot be removed.
    pub fn prune(&mut self, listed: impl Fn(&Record) -> bool) -> Result<Vec<String>> {
        let ended = self.all().into_iter().filter(|record| record.state == State::Signalled && !listed(record));
        // Those last that have something left to do, should they come back.
        let (going, gone): (Vec<_>, Vec<_>) = ended.partition(|record| record.let_go.is_some());
        let ended: Vec<String> = gone.into_iter().chain(going).map(|record| record.id.clone()).collect();
        let mut gone = Vec::new();
        for id in ended.iter().take(ended.len().saturating_sub(self.keep)) {
            self.state.remove(&path_of(id))?;
            self.records.remove(id);
            if let (Some(legacy), Some(name)) = (&self.legacy, legacy_name(id)) {
                legacy.remove(&name.with_extension("notify.json"))?;
                legacy.write(&name, b"", Attributes::mode(0o600))?;
            }
            gone.push(id.clone());
        }
        Ok(gone)
    }

    fn new_record(&self, id: &str, name: &str, group: &str) -> Record {
        Record {
            schema: 1,
            id: id.to_owned(),
            name: name.to_owned(),
            group: group.to_owned(),
            action: String::new(),
            state: State::Seen,
            resource: None,
            target: SignalTarget::None,
            outputs: Vec::new(),
            seen: self.clock.now(),
            started: None,
            finished: None,
            outcome: None,
            note: None,
            undelivered: false,
            order: None,
            let_go: None,
            since: Moment::EARLIER,
        }
    }

    fn change(&mut self, id: &str, change: impl FnOnce(&mut Record)) -> Result<()> {
        let Some(mut record) = self.records.get(id).cloned() else { return Ok(()) };
        change(&mut record);
        self.put(record)
    }

    fn put(&mut self, mut record: Record) -> Result<()> {
        record.since = self.clock.moment();
        self.state.write_json(&path_of(&record.id), &record, Attributes::mode(0o600))?;
        self.records.insert(record.id.clone(), record);
        Ok(())
    }
}

/// The one record that an operator means: by its id, by its name, or by the beginning of its id.
///
/// # Errors
/// If there is none, or more than one; names are not unique, ids are.
pub fn choose<'a>(records: &[&'a Record], wanted: &str) -> Result<&'a Record> {
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
fn describe(record: &mut Record, deployment: &Deployment) {
    deployment.name.clone_into(&mut record.name);
    deployment.group.clone_into(&mut record.group);
    deployment.action().clone_into(&mut record.action);
    record.resource = deployment.resource();
    record.target = deployment.signal_target();
    record.outputs = gather(deployment.outputs.iter().map(|Output { name, error_output }| (name.clone(), *error_output)));
}

fn path_of(id: &str) -> PathBuf {
    Path::new(DIRECTORY).join(format!("{}.json", key_of(id)))
}

/// The replaced tools' file name of a deployment; `None` for an id that is no safe file name (R21).
fn legacy_name(id: &str) -> Option<PathBuf> {
    let safe = !id.is_empty()
        && id.len() <= 200
        && !id.starts_with('.')
        && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    safe.then(|| PathBuf::from(format!("{id}.json")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    struct Place(tempfile::TempDir);

    impl Place {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        fn write(&self, path: &str, text: &str) {
            Tree::open(self.0.path()).unwrap().write(Path::new(path), text.as_bytes(), Attributes::mode(0o600)).unwrap();
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
        let (place, report) = (Place::new(), Report::kept());
        assert!(place.journal(&report).see(&deployment("a")).unwrap().is_some());
        assert_eq!(place.journal(&report).get("a").unwrap().state, State::Seen);
        place.journal(&report).start("a", &json!({"id": "a"})).unwrap();
        assert_eq!(place.journal(&report).get("a").unwrap().state, State::Running);
        let outcome = Outcome { status: 0, stdout: "out".into(), ..Outcome::default() };
        place.journal(&report).finish("a", outcome.clone()).unwrap();
        let journal = place.journal(&report);
        let record = journal.get("a").unwrap();
        assert_eq!((record.state, record.outcome.as_ref()), (State::Finished, Some(&outcome)));
        place.journal(&report).signalled("a", None).unwrap();
        assert_eq!(place.journal(&report).get("a").unwrap().state, State::Signalled);
        let legacy = place.0.path().join("deployed");
        assert!(std::fs::read_to_string(legacy.join("a.notify.json")).unwrap().contains("\"deploy_stdout\": \"out\""));
    }

    #[test]
    fn what_the_replaced_tools_ran_is_not_run_again_even_if_their_file_is_empty() {
        let (place, report) = (Place::new(), Report::kept());
        let mut journal = place.journal(&report);
        place.write("deployed/a.json", "");
        assert!(journal.see(&deployment("a")).unwrap().is_none());
        assert_eq!(journal.get("a").unwrap().state, State::Signalled);
        assert!(journal.see(&deployment("../../x")).unwrap().is_some());
    }

    #[test]
    fn a_torn_record_is_put_aside_and_said() {
        let (place, report) = (Place::new(), Report::kept());
        place.journal(&report).see(&deployment("a")).unwrap();
        let file = Path::new("state").join(path_of("a"));
        place.write(file.to_str().unwrap(), "{\"schema\": 1, \"id\"");
        let file = place.0.path().join(file);
        assert!(place.journal(&report).get("a").is_none());
        assert!(file.with_extension("unreadable").exists());
        assert_eq!(report.events()[0].code, Code::StatePutAside);
    }

    #[test]
    fn one_order_runs_a_deployment_again_once() {
        let (place, report) = (Place::new(), Report::kept());
        let mut journal = place.journal(&report);
        journal.see(&deployment("a")).unwrap();
        journal.start("a", &json!({"id": "a"})).unwrap();
        journal.finish("a", Outcome::refused("no")).unwrap();
        journal.undelivered("a", "Heat is gone".into()).unwrap();
        assert!(place.journal(&report).get("a").unwrap().undelivered);
        journal.rerun("a", "1").unwrap();
        let again = place.journal(&report).get("a").unwrap().clone();
        assert_eq!(
            (again.state, again.started, again.outcome, again.note, again.undelivered),
            (State::Seen, None, None, None, false)
        );
        journal.finish("a", Outcome::default()).unwrap();
        journal.rerun("a", "1").unwrap();
        assert_eq!(journal.get("a").unwrap().state, State::Finished);
        journal.rerun("a", "2").unwrap();
        assert_eq!(journal.get("a").unwrap().state, State::Seen);
    }

    #[test]
    fn what_is_forgotten_is_forgotten_for_the_replaced_tools_too() {
        let (place, report) = (Place::new(), Report::kept());
        let mut journal = place.journal(&report);
        place.write("deployed/a.json", "");
        assert!(journal.see(&deployment("a")).unwrap().is_none());
        journal.forget("a").unwrap();
        journal.forget("never there").unwrap();
        assert!(place.journal(&report).see(&deployment("a")).unwrap().is_some());
    }

    #[test]
    fn a_deployment_is_meant_by_id_name_or_the_beginning_of_its_id() {
        let (place, report) = (Place::new(), Report::kept());
        let mut journal = place.journal(&report);
        for (id, name) in [("b1a6-1", "setup"), ("b1a6-2", "setup"), ("c0", "b1a6-1"), ("d0", "c")] {
            journal.see(&Deployment::parse(&json!({"id": id, "name": name, "group": "script"})).unwrap().unwrap()).unwrap();
        }
        assert_eq!(Journal::look(&journal.state).unwrap().len(), 4);
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
    fn old_ended_records_are_forgotten_listed_ones_never() {
        let (place, report) = (Place::new(), Report::kept());
        let mut journal = place.journal(&report);
        for id in ["a", "b", "c", "d", "e"] {
            journal.see(&deployment(id)).unwrap();
            if id != "e" {
                journal.signalled(id, None).unwrap();
            }
        }
        let gone = journal.prune(|record| record.id == "a").unwrap();
        assert_eq!(gone, ["b"]);
        assert_eq!(std::fs::read(place.0.path().join("deployed/b.json")).unwrap(), b"");
        assert!(journal.get("a").is_some() && journal.get("e").is_some() && journal.get("b").is_none());
    }
}
