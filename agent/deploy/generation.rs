//! The generation of the node that is in place: `node.json`.
//!
//! New parameters make a new generation; the same parameters again are the same one. A generation that
//! was rejected is remembered and not tried again by itself; a new deployment of Heat's is a new try (design.md 5).

use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::history::{GenerationDetails, GenerationState, PAST, PastGeneration, WentBack, details};
use crate::budgets::{NODE_ENTRY_MEMORY, json};
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::files::{Attributes, Tree};
use crate::report::reason::FailureReason;
use crate::report::step_timing::StepTiming;
use crate::report::{Code, Report};

/// Name of the newest generation's file in the state directory.
pub const FILE: &str = "node.json";

/// What is remembered of the newest generation.
#[expect(
    clippy::struct_excessive_bools,
    reason = "facts of a record on disk, each of which came with a version and has its own default"
)]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Generation {
    /// Format of this file.
    pub schema: u32,
    /// From 1, one more for each change of parameters.
    pub number: u64,
    /// Digest of the parameters.
    pub digest: String,
    /// The deployment that asked for it.
    pub deployment: String,
    /// How far it is.
    pub state: GenerationState,
    /// The deployment's entry: what it takes to look after the node when the metadata is out of reach. Holds secrets.
    pub entry: Arc<Value>,
    /// Step, cause and remedy of a rejected one.
    #[serde(default)]
    pub reason: Option<FailureReason>,
    /// Its steps against time; of a rejected one up to its failure. Records of earlier versions have none.
    #[serde(default)]
    pub step_timings: Vec<StepTiming>,
    /// Whether anything of it may have reached the node. Of an earlier version's records nobody knows.
    #[serde(default = "yes")]
    #[serde(rename = "touched")]
    pub changed_machine: bool,
    /// Whether one before it failed on its way, so that the node was between two generations already.
    #[serde(default)]
    #[serde(rename = "torn")]
    pub partly_applied_before: bool,
    /// Whether the node was as `before` asks when this one began, so that it can be rolled back to it. Unknown in an earlier version's
    /// records.
    #[serde(default)]
    #[serde(rename = "whole_before")]
    pub consistent_before: bool,
    /// Whether it was rejected because its deployment left Heat's list before it ended: should that return, it goes on where it was.
    #[serde(default)]
    pub left: bool,
    /// Whether its deployment was deleted, so that the node gives up, or gave up, its member of etcd: nothing is put back by it.
    #[serde(default)]
    pub departed: bool,
    /// The last one that was in place, until this one is.
    #[serde(default)]
    pub before: Option<PreviousGeneration>,
    /// Once this one is in place, the one that was before it: what the operator can have put back.
    #[serde(default)]
    pub former: Option<PreviousGeneration>,
    /// To which generation the node went back from this one.
    #[serde(default)]
    pub back: Option<WentBack>,
    /// When, and what it changed.
    #[serde(default)]
    pub details: GenerationDetails,
    /// Those before it, oldest first, without their parameters.
    #[serde(default)]
    pub past: Vec<PastGeneration>,
}

/// A generation that was in place, as far as it takes to look after the node by it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PreviousGeneration {
    /// Its number.
    pub number: u64,
    /// Its deployment's entry. Holds secrets.
    pub entry: Arc<Value>,
}

fn yes() -> bool {
    true
}

/// What a node is looked after by.
#[derive(Clone, Debug, PartialEq)]
pub struct Reference {
    /// The generation's number.
    pub generation: u64,
    /// Its deployment's entry: the same one for as long as the generation stays.
    pub entry: Arc<Value>,
    /// What the node has of it.
    pub extent: AppliedExtent,
}

/// How much of a generation a node has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppliedExtent {
    /// All of it.
    Whole,
    /// Some of it: it failed on its way.
    Part,
    /// None of it, and it never had another one.
    Nothing,
}

impl Generation {
    /// What the node is looked after by; nothing while it is being changed.
    ///
    /// A generation that failed before it changed anything leaves the node as the one before it asked. One that failed later leaves
    /// something between the two, and what was asked for last is what the operator expects to see there.
    #[must_use]
    pub fn reference(&self) -> Option<Reference> {
        let (number, entry, extent) = match (self.state, &self.before) {
            _ if self.departed => return None,
            (GenerationState::Applying | GenerationState::Restoring, _) => return None,
            (GenerationState::Applied, _) => (self.number, &self.entry, AppliedExtent::Whole),
            (GenerationState::Rejected, _) if self.changed_machine => (self.number, &self.entry, AppliedExtent::Part),
            (GenerationState::Rejected, Some(before)) => (before.number, &before.entry, AppliedExtent::Whole),
            (GenerationState::Rejected, None) => (self.number, &self.entry, AppliedExtent::Nothing),
        };
        Some(Reference { generation: number, entry: Arc::clone(entry), extent })
    }

    /// Whether a deployment that asks for these parameters goes on with it: the agent ended in the middle of it, Heat lists the deployment
    /// again, or asks for the same parameters by another one before it ended.
    #[must_use]
    pub fn resumes(&self, deployment: &str, digest: &str) -> bool {
        self.is_unfinished() && (self.deployment == deployment || self.digest == digest)
    }

    /// Whether it began and neither succeeded nor failed.
    #[must_use]
    pub fn is_unfinished(&self) -> bool {
        self.state == GenerationState::Applying || self.left
    }

    /// The entries of which anything may be on the machine, the newest first. Of one that failed before it changed anything, or was
    /// rolled back, nothing is: what lies at its paths is somebody else's.
    #[must_use]
    pub fn present_entries(&self) -> Vec<&Arc<Value>> {
        let before = self.before.as_ref().map(|before| &before.entry);
        let is_absent = self.state == GenerationState::Rejected && !self.changed_machine && before.is_some();
        Some(&self.entry).filter(|_| !is_absent).into_iter().chain(before).collect()
    }

    /// The generation that the operator can have put back: the last whole one before this one, while anything of this one is on the node.
    ///
    /// # Errors
    /// If there is none, or the node has it already.
    pub fn restorable(&self) -> Result<&PreviousGeneration> {
        let refused = |why: String| Err(Error::refused(why).remedy("`heat-node-agent generations` lists what is known"));
        let before = self.before.as_ref().filter(|before| before.number != self.number);
        match (self.state, before) {
            _ if self.departed => refused("the node has given up its member of etcd".to_owned()),
            (GenerationState::Applying, _) => Err(Error::refused(format!("generation {} is being applied", self.number))
                .remedy("`heat-node-agent status --wait` ends with the update; then there is something to go back from")),
            (GenerationState::Rejected, Some(before)) if !self.changed_machine => {
                refused(format!("generation {} is in place already", before.number))
            }
            (GenerationState::Rejected, Some(before)) if self.consistent_before => Ok(before),
            (GenerationState::Restoring, Some(before)) => Ok(before),
            (GenerationState::Rejected, Some(before)) => Err(Error::refused(format!(
                "an update before generation {} was not completed, so generation {} was not whole any more",
                self.number, before.number
            ))
            .remedy("update the stack with parameters that work")),
            _ => match &self.former {
                Some(former) => Ok(former),
                None => refused(format!("no generation before {} is kept", self.number)),
            },
        }
    }

    /// All that are remembered, oldest first, the newest one included.
    #[must_use]
    pub fn history(&self) -> Vec<PastGeneration> {
        self.past.iter().cloned().chain([self.summary()]).collect()
    }

    /// The generation that the node has as a whole.
    #[must_use]
    pub fn in_place(&self) -> Option<u64> {
        self.reference().filter(|reference| reference.extent == AppliedExtent::Whole).map(|reference| reference.generation)
    }

    fn summary(&self) -> PastGeneration {
        PastGeneration {
            number: self.number,
            digest: self.digest.clone(),
            deployment: self.deployment.clone(),
            state: self.state,
            changed_machine: self.changed_machine,
            reason: self.reason.clone(),
            back: self.back,
            details: self.details.clone(),
        }
    }
}

/// Keeps the newest generation on disk.
#[derive(Debug)]
pub struct Generations {
    state: Arc<Tree>,
    clock: Clock,
    current: Option<Generation>,
}

impl Generations {
    /// Reads what is in place. An unreadable record is quarantined and logged; the node is then compared afresh.
    ///
    /// # Errors
    /// If the file cannot be read or quarantined.
    pub fn open(state: Arc<Tree>, clock: Clock, report: &Report) -> Result<Self> {
        let current = state.read_state(Path::new(FILE), report, Code::StateFileQuarantined)?;
        Ok(Self { state, clock, current })
    }

    /// What is in place, for callers that only read; nothing where it cannot be read.
    #[must_use]
    pub fn inspect(state: &Tree) -> Option<Generation> {
        Self::read(state).ok().flatten()
    }

    /// The same, for who has to know whether there is one.
    ///
    /// # Errors
    /// If there is one that cannot be read.
    pub fn read(state: &Tree) -> Result<Option<Generation>> {
        state.read_json(Path::new(FILE))
    }

    /// The newest generation.
    #[must_use]
    pub fn current(&self) -> Option<&Generation> {
        self.current.as_ref()
    }

    /// Begins a generation, or goes on with it where the parameters are the same.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn begin(&mut self, digest: &str, deployment: &str, entry: Value) -> Result<u64> {
        let number = match &self.current {
            // The same deployment may be rendered otherwise by another version or on another machine. It is no other order.
            Some(current) if current.digest == digest || (current.deployment == deployment && *current.entry == entry) => {
                current.number
            }
            Some(current) => current.number + 1,
            None => 1,
        };
        let before = self.current.as_ref().and_then(|current| match current.state {
            // Only versions before this bound kept larger ones.
            _ if current.departed => None,
            GenerationState::Applied if json::weight(&current.entry) > NODE_ENTRY_MEMORY => None,
            GenerationState::Applied => Some(PreviousGeneration { number: current.number, entry: Arc::clone(&current.entry) }),
            GenerationState::Applying | GenerationState::Rejected | GenerationState::Restoring => current.before.clone(),
        });
        // The same parameters again: what was in place before them stays what can be put back.
        let is_again = |current: &&Generation| current.number == number;
        let former = self.current.as_ref().filter(is_again).filter(|current| !current.departed);
        let former = former.and_then(|current| current.former.clone());
        let known = self.current.as_ref().filter(is_again).map(|current| current.details.clone());
        let in_place = before.as_ref().map(|before| &*before.entry);
        let fresh = details(in_place, &entry, self.clock.now());
        let details = known.map_or(fresh.clone(), |known| GenerationDetails { began: fresh.began, ended: None, ..known });
        let mut past = self.current.as_ref().map(|current| current.past.clone()).unwrap_or_default();
        past.extend(self.current.as_ref().filter(|current| !is_again(current)).map(Generation::summary));
        past.drain(..past.len().saturating_sub(PAST));
        let is_between = |current: &Generation| current.state != GenerationState::Applied && current.changed_machine;
        let partly_applied_before = self.current.as_ref().is_some_and(is_between);
        let consistent_before = self.current.as_ref().is_some_and(|current| {
            // What counts is how it began.
            let is_resumed = current.number == number && current.is_unfinished();
            if is_resumed { current.consistent_before } else { !is_between(current) && before.is_some() }
        });
        self.put(Generation {
            schema: 1,
            number,
            digest: digest.to_owned(),
            deployment: deployment.to_owned(),
            state: GenerationState::Applying,
            entry: Arc::new(entry),
            reason: None,
            step_timings: Vec::new(),
            changed_machine: true,
            partly_applied_before,
            consistent_before,
            left: false,
            departed: false,
            before,
            former,
            back: None,
            details,
            past,
        })?;
        Ok(number)
    }

    /// Another one is going to begin, and what this one replaced is forgotten: if it is taken up again before that, it is not rolled back.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn abandon(&mut self) -> Result<()> {
        match self.current.clone().filter(Generation::is_unfinished) {
            Some(current) => self.put(Generation { consistent_before: false, ..current }),
            None => Ok(()),
        }
    }

    /// The newest generation failed before it changed anything. Where one before it failed later, the node stays what that one left.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn untouched(&mut self) -> Result<()> {
        let Some(current) = self.current.clone() else { return Ok(()) };
        self.put(Generation { changed_machine: current.partly_applied_before, ..current })
    }

    /// The same of a failure that comes before the first change of an update however often that is resumed: where the node was whole when the
    /// update began, it is so still.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn never_changed(&mut self) -> Result<()> {
        let Some(current) = self.current.clone() else { return Ok(()) };
        let partly_applied_before = current.partly_applied_before && !current.consistent_before;
        self.put(Generation { changed_machine: partly_applied_before, partly_applied_before, ..current })
    }

    /// The newest generation failed, and the node is again as the one before it asks.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn restored(&mut self) -> Result<()> {
        let Some(current) = self.current.clone() else { return Ok(()) };
        let back = current.before.as_ref().map(|before| WentBack { to: before.number, by_hand: false });
        self.put(Generation { changed_machine: false, partly_applied_before: false, back, ..current })
    }

    /// The operator has the generation before put back: from here on the node is on its way there, until [`Self::put_back`].
    ///
    /// # Errors
    /// If there is none, or it cannot be written.
    pub fn restore(&mut self) -> Result<()> {
        let Some(current) = self.current.clone() else { return Ok(()) };
        let before = current.restorable()?.clone();
        let back = Some(WentBack { to: before.number, by_hand: true });
        self.put(Generation {
            state: GenerationState::Restoring,
            reason: None,
            step_timings: Vec::new(),
            changed_machine: true,
            consistent_before: true,
            before: Some(before),
            former: None,
            back,
            ..current
        })
    }

    /// How that ended: `failure` is why the node is between two generations.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn put_back(&mut self, failure: Option<FailureReason>, step_timings: Vec<StepTiming>) -> Result<()> {
        let Some(current) = self.current.clone() else { return Ok(()) };
        let changed_machine = failure.is_some();
        let back = current.back.filter(|_| !changed_machine);
        self.put(Generation {
            state: GenerationState::Rejected,
            reason: failure,
            step_timings,
            changed_machine,
            partly_applied_before: false,
            // Who asks for it again begins it anew: nothing of it is left to go on with.
            left: current.left && changed_machine,
            back,
            ..current
        })
    }

    /// Records how it ended.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn end(&mut self, state: GenerationState, reason: Option<FailureReason>, step_timings: Vec<StepTiming>) -> Result<()> {
        let Some(current) = &self.current else { return Ok(()) };
        let is_applied = state == GenerationState::Applied;
        let before = current.before.clone().filter(|_| !is_applied);
        let former = current.before.clone().filter(|before| is_applied && before.number != current.number);
        let former = former.or_else(|| current.former.clone());
        let details = GenerationDetails { ended: Some(self.clock.now()), ..current.details.clone() };
        self.put(Generation { state, reason, step_timings, before, former, details, ..current.clone() })
    }

    /// Its deployment left Heat's list before it ended.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn leave(&mut self, reason: FailureReason, step_timings: Vec<StepTiming>) -> Result<()> {
        let Some(current) = self.current.clone() else { return Ok(()) };
        self.put(Generation { state: GenerationState::Rejected, reason: Some(reason), step_timings, left: true, ..current })
    }

    /// Whether the node gives up its member of etcd, or has.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn depart(&mut self, departed: bool) -> Result<()> {
        let Some(current) = self.current.clone() else { return Ok(()) };
        self.put(Generation { departed, ..current })
    }

    fn put(&mut self, generation: Generation) -> Result<()> {
        if self.current.as_ref() != Some(&generation) {
            self.state.write_json(Path::new(FILE), &generation, Attributes::mode(0o600))?;
            self.current = Some(generation);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::clock::Timestamp;

    /// As the version before step_timings wrote it.
    #[test]
    fn a_record_of_an_earlier_version_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let tree = Tree::open(dir.path()).unwrap();
        let record = json!({"schema": 1, "number": 4, "digest": "d", "deployment": "n", "state": "applied", "entry": {}, "reason": null,
            "timings": [["plan", 12], ["total", 40]]});
        tree.write(Path::new(FILE), record.to_string().as_bytes(), Attributes::mode(0o600)).unwrap();
        let report = Report::kept();
        let read = Generations::open(Arc::new(tree), Clock::system(), &report).unwrap();
        let current = read.current().unwrap();
        assert_eq!((current.number, current.step_timings.len()), (4, 0));
        assert!(current.changed_machine && current.before.is_none(), "nobody knows what it left");
        assert!(report.events().is_empty(), "it was not quarantined");
    }

    /// Attack: after a restart of the agent in the snapshot before an upgrade, which then failed, nobody looked after the node.
    #[test]
    fn what_is_refused_before_the_first_change_leaves_the_node_whole_however_often_it_was_resumed() {
        let dir = tempfile::tempdir().unwrap();
        let mut generations =
            Generations::open(Arc::new(Tree::open(dir.path()).unwrap()), Clock::system(), &Report::kept()).unwrap();
        generations.begin("1", "d1", json!(1)).unwrap();
        generations.end(GenerationState::Applied, None, vec![]).unwrap();
        for resumed in 0..3 {
            generations.begin("2", "d2", json!(2)).unwrap();
            for _ in 0..resumed {
                generations.begin("2", "d2", json!(2)).unwrap();
            }
            generations.never_changed().unwrap();
            generations.end(GenerationState::Rejected, Some("no snapshot".into()), vec![]).unwrap();
            let reference = generations.current().unwrap().reference().unwrap();
            assert_eq!((reference.generation, reference.extent), (1, AppliedExtent::Whole), "{resumed}");
        }
        // One that failed on its way before left the node between two.
        generations.begin("3", "d3", json!(3)).unwrap();
        generations.end(GenerationState::Rejected, Some("why".into()), vec![]).unwrap();
        generations.begin("4", "d4", json!(4)).unwrap();
        generations.begin("4", "d4", json!(4)).unwrap();
        generations.never_changed().unwrap();
        generations.end(GenerationState::Rejected, Some("no snapshot".into()), vec![]).unwrap();
        assert_eq!(generations.current().unwrap().reference().unwrap().extent, AppliedExtent::Part);
    }

    #[test]
    fn a_node_is_looked_after_by_what_it_has() {
        let dir = tempfile::tempdir().unwrap();
        let report = Report::kept();
        let mut generations = Generations::open(Arc::new(Tree::open(dir.path()).unwrap()), Clock::system(), &report).unwrap();
        let begin = |generations: &mut Generations, number: u64| {
            assert_eq!(generations.begin(&number.to_string(), &format!("d{number}"), json!(number)).unwrap(), number);
            assert_eq!(generations.current().unwrap().reference(), None);
        };
        let fail = |generations: &mut Generations, changed_machine: bool| {
            if !changed_machine {
                generations.untouched().unwrap();
            }
            generations.end(GenerationState::Rejected, Some("why".into()), vec![]).unwrap();
        };
        let by = |generations: &Generations| {
            let reference = generations.current().unwrap().reference().unwrap();
            assert_eq!(*reference.entry, json!(reference.generation));
            (reference.generation, reference.extent)
        };
        // Nothing was ever there.
        begin(&mut generations, 1);
        fail(&mut generations, false);
        assert_eq!(by(&generations), (1, AppliedExtent::Nothing));
        begin(&mut generations, 2);
        generations.end(GenerationState::Applied, None, vec![]).unwrap();
        assert_eq!(by(&generations), (2, AppliedExtent::Whole));
        // Refused before anything changed, twice: the node is what it was.
        for number in [3, 4] {
            begin(&mut generations, number);
            fail(&mut generations, false);
            assert_eq!(by(&generations), (2, AppliedExtent::Whole));
        }
        // Once one failed on its way it is that one's, whatever is refused after it.
        begin(&mut generations, 5);
        fail(&mut generations, true);
        assert_eq!(by(&generations), (5, AppliedExtent::Part));
        begin(&mut generations, 6);
        fail(&mut generations, false);
        assert_eq!(by(&generations), (6, AppliedExtent::Part));
        begin(&mut generations, 7);
        generations.end(GenerationState::Applied, None, vec![]).unwrap();
        assert_eq!((by(&generations), &generations.current().unwrap().before), ((7, AppliedExtent::Whole), &None));
        // The same parameters once more are the same generation.
        assert_eq!(generations.begin("7", "again", json!(7)).unwrap(), 7);
        fail(&mut generations, false);
        assert_eq!(by(&generations), (7, AppliedExtent::Whole));
    }

    #[test]
    fn a_node_that_gave_up_its_member_of_etcd_is_not_looked_after_and_begins_anew() {
        let dir = tempfile::tempdir().unwrap();
        let report = Report::kept();
        let open = || Generations::open(Arc::new(Tree::open(dir.path()).unwrap()), Clock::system(), &report).unwrap();
        for number in [1, 2] {
            open().begin(&number.to_string(), "d", json!(number)).unwrap();
            open().end(GenerationState::Applied, None, vec![]).unwrap();
        }
        open().depart(true).unwrap();
        assert_eq!((open().current().unwrap().reference(), open().current().unwrap().in_place()), (None, None));
        assert!(open().current().unwrap().restorable().is_err(), "no order brings it back either");
        assert_eq!(open().current().unwrap().present_entries(), [&Arc::new(json!(2))], "a reset finds what is there");
        // It could not leave.
        open().depart(false).unwrap();
        assert_eq!(open().current().unwrap().in_place(), Some(2));
        // The same parameters again: what was there is no way back.
        open().depart(true).unwrap();
        assert_eq!(open().begin("2", "e", json!(2)).unwrap(), 2);
        let current = open().current().unwrap().clone();
        assert!(!current.departed && !current.consistent_before && current.before.is_none());
        assert!(current.former.is_none(), "nor once it is applied");
    }

    /// Attack: the agent was killed between what an update replaced was forgotten and the next one began, and the update was listed again.
    #[test]
    fn an_update_whose_record_is_forgotten_is_not_taken_up_as_one_that_can_be_rolled_back() {
        let dir = tempfile::tempdir().unwrap();
        let report = Report::kept();
        let open = || Generations::open(Arc::new(Tree::open(dir.path()).unwrap()), Clock::system(), &report).unwrap();
        open().begin("1", "a", json!(1)).unwrap();
        open().end(GenerationState::Applied, None, vec![]).unwrap();
        open().abandon().unwrap();
        assert_eq!(open().current().unwrap().state, GenerationState::Applied, "it has nothing to forget");
        for is_left in [false, true] {
            open().begin("2", "b", json!(2)).unwrap();
            assert!(open().current().unwrap().consistent_before);
            if is_left {
                open().leave("left the list".into(), vec![]).unwrap();
            }
            open().abandon().unwrap();
            open().begin("2", "b", json!(2)).unwrap();
            assert!(!open().current().unwrap().consistent_before, "left: {is_left}");
            open().end(GenerationState::Applied, None, vec![]).unwrap();
            open().begin("1", "a", json!(1)).unwrap();
            open().end(GenerationState::Applied, None, vec![]).unwrap();
        }
    }

    #[test]
    fn whether_a_node_was_whole_before_an_update_survives_a_restart_of_the_agent() {
        let dir = tempfile::tempdir().unwrap();
        let report = Report::kept();
        let open = || Generations::open(Arc::new(Tree::open(dir.path()).unwrap()), Clock::system(), &report).unwrap();
        let begin = |number: u64, deployment: &str| {
            let mut generations = open();
            generations.begin(&number.to_string(), deployment, json!(number)).unwrap();
            generations.current().unwrap().consistent_before
        };
        let fail = || open().end(GenerationState::Rejected, Some("why".into()), vec![]).unwrap();
        assert!(!begin(1, "a"), "nothing was there");
        open().end(GenerationState::Applied, None, vec![]).unwrap();
        assert!(begin(2, "b"));
        assert!(begin(2, "b"), "gone on with after a crash");
        open().leave("left the list".into(), vec![]).unwrap();
        let resumes = |deployment: &str, digest: &str| open().current().unwrap().resumes(deployment, digest);
        assert!(resumes("b", "2") && !resumes("c", "3"));
        assert!(begin(2, "b"), "gone on with once Heat lists it again");
        assert!(!open().current().unwrap().left);
        // Attack: the same stack update was sent once more while the first one was applied; when it failed, nothing was rolled back.
        assert!(resumes("b2", "2") && begin(2, "b2"), "the same parameters again, in the middle of it");
        open().leave("superseded".into(), vec![]).unwrap();
        assert!(resumes("b", "2") && begin(2, "b"), "and again, after Heat let the one before go");
        fail();
        assert!(!resumes("b3", "2"), "it has failed");
        assert!(!begin(2, "b"), "tried again, on what the first try left");
        fail();
        assert!(!begin(3, "c"), "another one, on what that left");
        let present =
            || -> Vec<Value> { open().current().unwrap().present_entries().into_iter().map(|entry| (**entry).clone()).collect() };
        assert_eq!(present(), [json!(3), json!(1)]);
        // Taken back, in spite of a crash on the way there: the node is whole.
        open().restored().unwrap();
        fail();
        assert_eq!(present(), [json!(1)], "what lies at the paths of an update that was taken back is not the agent's");
        let reference = open().current().unwrap().reference().unwrap();
        assert_eq!((reference.generation, reference.extent), (1, AppliedExtent::Whole));
        assert!(begin(4, "d"));
    }

    #[test]
    fn the_generation_before_can_be_put_back_by_hand_once_and_a_new_one_leads_on() {
        let dir = tempfile::tempdir().unwrap();
        let report = Report::kept();
        // Each step finds what the one before it left on disk.
        let open = || Generations::open(Arc::new(Tree::open(dir.path()).unwrap()), Clock::manual(Timestamp(7)), &report).unwrap();
        let begin =
            |number: u64| open().begin(&number.to_string(), &format!("d{number}"), json!({"config": {"A": number}})).unwrap();
        let apply = |number| {
            assert_eq!(begin(number), number);
            open().end(GenerationState::Applied, None, vec![]).unwrap();
        };
        let why = || open().restore().unwrap_err().to_string();
        let by = || open().current().unwrap().reference().map(|one| (one.generation, one.extent));
        let listed = || -> Vec<String> {
            let current = open().current().unwrap().clone();
            current.history().iter().map(|one| format!("{} {}", one.number, one.state_in_words(current.in_place()))).collect()
        };
        apply(1);
        assert_eq!(why(), "no generation before 1 is kept");
        begin(2);
        assert_eq!(why(), "generation 2 is being applied");
        open().end(GenerationState::Applied, None, vec![]).unwrap();
        // The same parameters once more change nothing about that.
        apply(2);
        assert_eq!(open().current().unwrap().restorable().unwrap().number, 1);
        open().restore().unwrap();
        assert_eq!((by(), listed()), (None, vec!["1 succeeded".into(), "2 being rolled back to 1 by `rollback`".into()]));
        // It fails: the node is between the two, and can be told again.
        open().put_back(Some("why".into()), vec![]).unwrap();
        assert_eq!((by(), listed()[1].as_str()), (Some((2, AppliedExtent::Part)), "2 failed"));
        open().restore().unwrap();
        open().put_back(None, vec![]).unwrap();
        assert_eq!(by(), Some((1, AppliedExtent::Whole)));
        assert_eq!(listed(), ["1 in place", "2 succeeded, then rolled back to 1 by `rollback`"]);
        assert_eq!(why(), "generation 1 is in place already");
        // A new one fails on its way and is rolled back to what the operator had put back.
        begin(3);
        assert!(open().current().unwrap().consistent_before);
        open().restored().unwrap();
        open().end(GenerationState::Rejected, Some("why".into()), vec![]).unwrap();
        assert_eq!((by(), listed()[2].as_str()), (Some((1, AppliedExtent::Whole)), "3 failed, rolled back to 1"));
        // One that left Heat's list on its way was put back: whoever asks for the same again begins anew, on a whole node.
        begin(4);
        open().leave("left the list".into(), vec![]).unwrap();
        assert!(open().current().unwrap().resumes("other", "4"));
        open().restore().unwrap();
        open().put_back(None, vec![]).unwrap();
        assert!(!open().current().unwrap().resumes("other", "4"));
        begin(4);
        open().never_changed().unwrap();
        open().leave("left the list".into(), vec![]).unwrap();
        assert_eq!(by(), Some((1, AppliedExtent::Whole)));
        // And one fails on its way that is not: the operator may try.
        begin(4);
        open().end(GenerationState::Rejected, Some("why".into()), vec![]).unwrap();
        assert_eq!(open().current().unwrap().restorable().unwrap().number, 1);
        begin(5);
        open().end(GenerationState::Rejected, Some("why".into()), vec![]).unwrap();
        assert!(why().contains("was not whole any more"));
        assert_eq!(open().current().unwrap().details.changes, ["A"]);
        for number in 6..40 {
            apply(number);
        }
        assert_eq!(open().current().unwrap().history().len(), 16, "bounded");
    }

    #[test]
    fn new_parameters_make_a_new_generation_the_same_ones_do_not() {
        let dir = tempfile::tempdir().unwrap();
        let report = Report::kept();
        let open = || Generations::open(Arc::new(Tree::open(dir.path()).unwrap()), Clock::system(), &report).unwrap();
        assert_eq!(open().begin("one", "a", json!({})).unwrap(), 1);
        let mut generations = open();
        assert_eq!(generations.begin("one", "b", json!({})).unwrap(), 1);
        let timing = StepTiming { step: "plan".into(), took_ms: 5, ..StepTiming::default() };
        generations.end(GenerationState::Rejected, Some("why".into()), vec![timing.clone()]).unwrap();
        assert_eq!(open().current().unwrap().state, GenerationState::Rejected);
        assert_eq!(open().current().unwrap().step_timings, [timing], "a run that failed is kept up to its failure");
        assert_eq!(open().begin("one", "b", json!({})).unwrap(), 1);
        assert_eq!(open().current().unwrap().step_timings, [], "a new run has its own");
        assert_eq!(open().begin("two", "c", json!({})).unwrap(), 2);
        // Another version of the agent goes on with the same deployment: a CA rotation must not take a step by that.
        assert_eq!(open().begin("three", "c", json!({})).unwrap(), 2);
        assert_eq!(open().begin("two", "c", json!({"inputs": [1]})).unwrap(), 3, "local data that somebody edits keeps its id");
        assert_eq!(open().begin("one", "d", json!({"inputs": [1]})).unwrap(), 4);
        Tree::open(dir.path()).unwrap().write(Path::new(FILE), b"{", Attributes::mode(0o600)).unwrap();
        assert!(open().current().is_none());
        assert_eq!(report.events()[0].code, Code::StateFileQuarantined);
    }
}
