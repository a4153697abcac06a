//! Drift of a node in place: what it is, what is put back, and what lies beside the node's own files.
//!
//! A cause is put back once. If it comes back something else writes it, and from then on it is only reported: two tools that
//! correct each other would restart the node's services forever. What somebody else added is reported and never removed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::converge::health::StoreProblem;
use crate::converge::plan::AttributeChange;
use crate::converge::{ChangePlan, Observed, PlannedStep};
use crate::desired::{Desired, GateProbe};
use crate::digest::key_of;
use crate::error::{Error, Result};
use crate::files::{Attributes, FileKind, READ_LIMIT, Tree};
use crate::gather::Gather;
use crate::report::{Code, Report};
use crate::systemd::UNIT_DIRECTORIES;

const FILE: &str = "drift.json";
/// How many repairs are remembered.
const MOST: usize = 64;
/// How long a repair is remembered where it is no file: a service may go down for another reason the next day.
const DAY: Duration = Duration::from_hours(24);
/// How often one thing is put back within a day, whatever is found there.
const REPAIRS_PER_DAY: u32 = 3;

/// systemd's word for a unit that nobody can start.
const MASKED: &str = "masked";

/// Where `systemctl set-property` leaves drop-ins, which are stronger than all others.
const CONTROL: [&str; 2] = ["/etc/systemd/system.control", "/run/systemd/system.control"];
/// The end of the name of a directory of drop-ins.
const DROP_INS: &str = ".d";
/// Where kernel settings are read, those of a later name over those of an earlier one.
const SYSCTL_FOLDERS: [&str; 3] = ["/etc/sysctl.d", "/run/sysctl.d", "/usr/lib/sysctl.d"];

/// What a cause is about. Its text is its key in drift.json, where it is compared and never parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::daemon) enum Subject {
    /// A file or directory, by its path.
    Path(String),
    Unit(String),
    /// A unit's being started at boot, which is not the same as its running.
    UnitAtBoot(String),
    /// By its file.
    Certificate(String),
    /// By its role.
    Volume(String),
    /// What lies on a volume, by its role, or in a directory.
    Store(String),
    Parameters,
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(name) | Self::Unit(name) => f.write_str(name),
            Self::UnitAtBoot(name) => write!(f, "{name} at boot"),
            Self::Certificate(path) => write!(f, "certificate {path}"),
            Self::Volume(role) => write!(f, "volume {role}"),
            Self::Store(name) => write!(f, "store {name}"),
            Self::Parameters => f.write_str("parameters"),
        }
    }
}

/// One thing that is not as the parameters ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::daemon) struct Cause {
    pub(in crate::daemon) subject: Subject,
    /// What is found there.
    state: String,
    kind: CauseKind,
    /// In words.
    pub(in crate::daemon) text: String,
    /// What to do about it, where putting files and units back does not mend it.
    pub(in crate::daemon) remedy: Option<String>,
    /// Of what has one, in a few words what it is.
    pub(in crate::daemon) fact: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CauseKind {
    /// A file or directory of the node's.
    File,
    /// A unit, or certificates.
    State,
    /// It passes by what is done for another cause, or when a disk comes back.
    Effect,
    /// A restart that the agent has noted and not made: its own work, which was cut off.
    Restart,
    /// Somebody else's: reported, and left alone.
    Foreign,
}

impl Cause {
    pub(super) fn new(kind: CauseKind, subject: Subject, state: impl Into<String>, text: String) -> Self {
        Self { subject, state: state.into(), kind, text, remedy: None, fact: None }
    }

    /// Something of a file or directory.
    fn of_path(kind: CauseKind, path: &str, state: impl Into<String>, text: String) -> Self {
        Self::new(kind, Subject::Path(path.to_owned()), state, text)
    }

    /// Something of a volume, which is tried whenever it is found.
    pub(in crate::daemon) fn of_volume(role: &str, text: String) -> Self {
        Self::new(CauseKind::Effect, Subject::Volume(role.to_owned()), "", text)
    }

    /// A store that is full, read-only, or without its disk.
    pub(in crate::daemon) fn of_store(problem: &StoreProblem) -> Self {
        let subject = Subject::Store(problem.store().to_owned());
        let found = Self::new(CauseKind::Effect, subject, problem.fact(), problem.cause());
        Self { remedy: problem.remedy(), fact: Some(problem.fact().to_owned()), ..found }
    }

    /// Something of a unit, in these words after its name.
    fn of_unit(kind: CauseKind, unit: &str, state: impl Into<String>, text: &str) -> Self {
        Self::new(kind, Subject::Unit(unit.to_owned()), state, format!("{unit} {text}"))
    }

    /// A unit that systemd starts again and again, or forever: it is reported, and starting it is systemd's.
    pub(in crate::daemon) fn of_systemd(unit: &str, text: String) -> Self {
        Self::new(CauseKind::Foreign, Subject::Unit(unit.to_owned()), "", text)
    }

    /// This version of the agent does not accept what the node was asked to be.
    pub(in crate::daemon) fn of_parameters(error: &Error) -> Self {
        let remedy = error.suggested_remedy().map(str::to_owned);
        Self { remedy, ..Self::new(CauseKind::Foreign, Subject::Parameters, "", error.cause_first()) }
    }

    /// Whether a file or directory of the node's is not as it should be.
    pub(in crate::daemon) fn is_file(&self) -> bool {
        self.kind == CauseKind::File
    }

    /// Whether it passes by itself, or not at all.
    pub(in crate::daemon) fn is_effect(&self) -> bool {
        matches!(self.kind, CauseKind::Effect | CauseKind::Restart)
    }

    /// Whether it is the agent's own work, which was cut off.
    pub(in crate::daemon) fn is_unfinished(&self) -> bool {
        self.kind == CauseKind::Restart
    }

    /// The unit that it is about.
    pub(in crate::daemon) fn unit(&self) -> Option<&str> {
        match &self.subject {
            Subject::Unit(name) | Subject::UnitAtBoot(name) => Some(name),
            _ => None,
        }
    }

    /// The unit whose restart was cut off, where it is one.
    pub(in crate::daemon) fn pending_restart(&self) -> Option<&str> {
        self.unit().filter(|_| self.is_unfinished())
    }

    /// The file or certificate that is written anew when it is put back.
    pub(super) fn rewritten_file(&self) -> Option<&str> {
        match &self.subject {
            Subject::Path(path) if self.is_file() => Some(path),
            Subject::Certificate(path) => Some(path),
            _ => None,
        }
    }

    /// What tells it from others where it is compared with what a failed update left: of a file its state as well. A unit that is
    /// down may be found in several states, and is down in all of them.
    fn mark(&self) -> String {
        match (self.kind, &self.subject) {
            (CauseKind::Effect | CauseKind::Restart, _) => format!("{} {} effect", self.subject, self.state),
            (CauseKind::File, _) | (CauseKind::Foreign, Subject::Path(_)) => format!("{} {}", self.subject, self.state),
            (CauseKind::Foreign, _) if self.state == MASKED => format!("{} {MASKED}", self.subject),
            (CauseKind::Foreign | CauseKind::State, _) => self.subject.to_string(),
        }
    }

    /// Whether it is left alone, whatever DRIFT says.
    pub(in crate::daemon) fn is_foreign(&self) -> bool {
        self.kind == CauseKind::Foreign
    }
}

/// What is remembered of drift, over restarts too.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(in crate::daemon) struct DriftRecord {
    /// What was put back since the last deployment, oldest first.
    repairs: Vec<RepairRecord>,
    /// What lay beside the node's files when it was brought up, and its digest; absent where nobody looked.
    beside: Option<BTreeMap<String, String>>,
    /// What the last update left undone, where it failed on its way.
    left: Option<UnfinishedUpdate>,
}

/// What an update that failed left undone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct UnfinishedUpdate {
    generation: u64,
    /// [`Cause::mark`] of each.
    marks: BTreeSet<String>,
    /// Whether units were judged, too; until they have arrived only files are.
    is_whole: bool,
}

/// What a look after a failed update found.
#[derive(Debug, Default, PartialEq, Eq)]
pub(in crate::daemon) struct UpdateRemains {
    /// What the update left undone, at the first look that saw all of it.
    pub(in crate::daemon) left: Vec<Cause>,
    /// What differs since.
    pub(in crate::daemon) news: Vec<Cause>,
}

/// Something that was put back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct RepairRecord {
    /// The [`Subject`].
    what: String,
    state: String,
    is_file: bool,
    times: u32,
    at: Timestamp,
}

impl RepairRecord {
    /// One of a time to come was made by a clock that was wrong: it holds nothing off until then.
    fn is_recent(&self, now: Timestamp) -> bool {
        Duration::from_millis(now.0.abs_diff(self.at.0)) < DAY
    }
}

impl DriftRecord {
    /// Reads it; one that cannot be understood is quarantined and logged.
    pub(in crate::daemon) fn open(state: &Tree, report: &Report) -> Result<Self> {
        Ok(state.read_state(Path::new(FILE), report, Code::StateFileQuarantined)?.unwrap_or_default())
    }

    /// What it says, for who only looks; nothing where it cannot be read.
    pub(super) fn inspect(state: &Tree) -> Self {
        state.read_json(Path::new(FILE)).ok().flatten().unwrap_or_default()
    }

    /// Writes it.
    pub(in crate::daemon) fn write(&self, state: &Tree) -> Result<()> {
        state.write_json(Path::new(FILE), self, Attributes::mode(0o600))
    }

    /// A node that was just brought up: what lies beside its files is as it should be, and nothing was put back.
    pub(in crate::daemon) fn of_new(beside: BTreeMap<String, String>) -> Self {
        Self { beside: Some(beside), ..Self::default() }
    }

    /// Tells what an update left undone from what was changed after it failed; `is_whole`: units have arrived and were judged, too.
    /// True: what is remembered changed.
    pub(in crate::daemon) fn separate_remains(
        &mut self,
        generation: u64,
        causes: Vec<Cause>,
        is_whole: bool,
    ) -> (UpdateRemains, bool) {
        let before = self.left.take().filter(|left| left.generation == generation);
        let is_first = before.is_none();
        let mut left = before.clone().unwrap_or(UnfinishedUpdate { generation, ..UnfinishedUpdate::default() });
        let is_left = |cause: &Cause| left.marks.contains(&cause.mark()) || is_first || !(left.is_whole || cause.is_file());
        let (undone, news): (Vec<Cause>, Vec<Cause>) = causes.into_iter().partition(is_left);
        let marks: BTreeSet<String> = undone.iter().map(Cause::mark).gather();
        let is_reported = left.is_whole || !is_whole;
        if is_whole {
            // What has passed is left undone no more: found again, it is somebody's.
            left = UnfinishedUpdate { generation, marks, is_whole };
        } else {
            left.marks.extend(marks);
        }
        let changed = before.as_ref() != Some(&left);
        self.left = Some(left);
        (UpdateRemains { left: if is_reported { Vec::new() } else { undone }, news }, changed)
    }

    /// Forgets what an update left undone. True: there was something.
    pub(in crate::daemon) fn forget_left(&mut self) -> bool {
        self.left.take().is_some()
    }

    /// Whether the cause was put back and came back.
    pub(in crate::daemon) fn holds(&self, cause: &Cause, now: Timestamp) -> bool {
        if !matches!(cause.kind, CauseKind::File | CauseKind::State) {
            return false;
        }
        let key = cause.subject.to_string();
        self.repairs.iter().filter(|repair| repair.what == key).any(|repair| {
            let is_recent = repair.is_recent(now);
            (repair.state == cause.state && (is_recent || repair.is_file)) || (repair.times >= REPAIRS_PER_DAY && is_recent)
        })
    }

    /// These were put back.
    pub(in crate::daemon) fn repaired(&mut self, causes: &[Cause], now: Timestamp) {
        for cause in causes.iter().filter(|cause| matches!(cause.kind, CauseKind::File | CauseKind::State)) {
            let what = cause.subject.to_string();
            let before = self.repairs.iter().position(|repair| repair.what == what).map(|place| self.repairs.remove(place));
            let times = before.filter(|repair| repair.is_recent(now)).map_or(0, |repair| repair.times);
            self.repairs.push(RepairRecord {
                what,
                state: cause.state.clone(),
                is_file: cause.kind == CauseKind::File,
                times: times + 1,
                at: now,
            });
        }
        let surplus = self.repairs.len().saturating_sub(MOST);
        self.repairs.drain(..surplus);
    }

    /// What was added or changed beside the node's files since it was brought up. True: nobody looked before, and what is there
    /// now is taken as it is.
    pub(in crate::daemon) fn compare(&mut self, beside: BTreeMap<String, String>) -> (Vec<Cause>, bool) {
        let Some(before) = &self.beside else {
            self.beside = Some(beside);
            return (Vec::new(), true);
        };
        let news = beside.into_iter().filter_map(|(path, digest)| match before.get(&path) {
            None => Some(Cause::of_path(CauseKind::Foreign, &path, digest, format!("{path} was added"))),
            Some(old) if *old != digest => Some(Cause::of_path(CauseKind::Foreign, &path, digest, format!("{path} was changed"))),
            Some(_) => None,
        });
        (news.collect(), false)
    }
}

/// What a plan would do, as causes.
pub(in crate::daemon) fn causes(plan: &ChangePlan, observed: &Observed) -> Vec<Cause> {
    let digest = |path: &str| {
        let content = observed.files.get(path).and_then(|seen| seen.content.as_deref());
        content.map_or_else(|| "nothing".to_owned(), |content| key_of(&String::from_utf8_lossy(content)))
    };
    // What lies on a volume is gone with it, and comes back with it.
    let kind = if plan.volumes.is_empty() { CauseKind::File } else { CauseKind::Effect };
    let mut all = Vec::new();
    for change in &plan.files {
        let state = format!("{} {}", digest(&change.path), found(&change.attributes));
        let verb = if change.attributes.mode_before.is_none() { "is gone" } else { "differs" };
        all.push(Cause::of_path(kind, &change.path, state, format!("{} {verb}", change.path)));
    }
    for change in &plan.directories {
        let verb = if change.new { "is gone" } else { "differs" };
        all.push(Cause::of_path(kind, &change.path, found(&change.attributes), format!("{} {verb}", change.path)));
    }
    let of_certificate = |step: &PlannedStep| {
        Cause::new(CauseKind::State, Subject::Certificate(step.about.clone()), step.text.as_str(), step.text.clone())
    };
    all.extend(plan.certificates.iter().map(of_certificate));
    let state = |unit: &str| observed.units.get(unit);
    for unit in &plan.enable {
        let word = state(unit).map(|state| state.unit_file_state.clone()).unwrap_or_default();
        let cause = Cause::of_unit(CauseKind::State, unit, word, "is not enabled");
        all.push(Cause { subject: Subject::UnitAtBoot(unit.clone()), ..cause });
    }
    for unit in &plan.start {
        if let Some(state) = state(unit).filter(|state| state.is_settling()) {
            all.push(Cause::of_systemd(unit, format!("{unit} fails to start: {}", state.describe())));
            continue;
        }
        // Nobody but who masked it makes it run.
        let masked = state(unit).is_some_and(|state| state.load_state == MASKED);
        let word = state(unit).map(|state| state.active_state.clone()).unwrap_or_default();
        let kind = if masked { CauseKind::Foreign } else { CauseKind::State };
        all.push(Cause::of_unit(kind, unit, word, "is not running"));
    }
    for (unit, state) in &observed.units {
        if state.load_state == MASKED || state.unit_file_state.starts_with(MASKED) {
            all.push(Cause::of_unit(CauseKind::Foreign, unit, MASKED, &format!("is masked (systemctl unmask {unit})")));
        }
    }
    // Who reads a file that differs, and who was not restarted when it was put back.
    let restart = plan.restart.iter().map(|unit| (unit, "has not reloaded its files"));
    let helpers = plan.helpers.iter().map(|unit| (unit, "has not applied its files"));
    for (unit, text) in restart.chain(helpers) {
        if observed.pending.contains(unit) {
            all.push(Cause::of_unit(CauseKind::Restart, unit, "", text));
        }
    }
    all.extend(plan.volumes.iter().map(|step| Cause::of_volume(&step.about, step.text.clone())));
    all
}

/// How the causes of one look are dealt with; what is somebody else's is in neither.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::daemon) struct SortedCauses {
    /// Another tool does it: left as it is.
    pub(in crate::daemon) contested: Vec<Cause>,
    /// To be put back. As long as there is any, no certificate is renewed beside it: that may restart what waits for a repair.
    pub(in crate::daemon) repairs: Vec<Cause>,
}

/// Sorts them by what was put back before; without a record of that, nobody is fought with.
pub(in crate::daemon) fn sorted(found: &[Cause], record: Option<&DriftRecord>, now: Timestamp) -> SortedCauses {
    let ours = found.iter().filter(|cause| !cause.is_foreign()).cloned();
    let (contested, repairs) = ours.partition(|cause| record.is_some_and(|record| record.holds(cause, now)));
    SortedCauses { contested, repairs }
}

/// What tells these causes from others, whatever state they are in; 0 for none.
pub(in crate::daemon) fn digest(causes: &[Cause]) -> u64 {
    let key = |cause: &Cause| match cause.kind {
        // Another trouble of the same store is another reason.
        CauseKind::Effect => format!("{} {}", cause.subject, cause.state),
        _ => cause.subject.to_string(),
    };
    let all: Vec<String> = causes.iter().map(key).collect();
    if all.is_empty() {
        0
    } else {
        u64::from_str_radix(key_of(&all.join("\n")).get(..15).unwrap_or_default(), 16).unwrap_or(1) | 1
    }
}

/// Mode and owner as they were found; `-` where there is nothing.
fn found(attributes: &AttributeChange) -> String {
    let mode = attributes.mode_before.map_or_else(|| "-".to_owned(), |mode| format!("{mode:o}"));
    let owner = attributes.owner_before.map_or_else(|| "-".to_owned(), |(user, group)| format!("{user}:{group}"));
    format!("{mode} {owner}")
}

/// What lies beside the node's own files and bends what they say: unit files and drop-ins of its units, settings of the kernel
/// that are read after its own. By path, with a digest of the content, or where a link leads.
pub(in crate::daemon) fn beside(desired: &Desired, root: &Tree) -> Result<BTreeMap<String, String>> {
    let mut all = BTreeMap::new();
    let mut note = |path: String| -> Result<()> {
        if desired.files.iter().any(|file| file.path == path) {
            return Ok(());
        }
        let place = Path::new(&path);
        let says = match root.facts(place)?.map(|facts| facts.kind) {
            Some(FileKind::Link) => root.read_link(place)?.map(|target| target.to_string_lossy().into_owned()),
            Some(FileKind::File) => root.read(place, READ_LIMIT)?.map(|bytes| key_of(&String::from_utf8_lossy(&bytes))),
            _ => None,
        };
        all.extend(says.map(|says| (path, says)));
        Ok(())
    };
    let units = desired.units.iter().filter(|unit| !unit.applies_files).map(|unit| unit.name.as_str());
    let names: Vec<String> = units.chain(["service"]).flat_map(|name| [name.to_owned(), format!("{name}{DROP_INS}")]).collect();
    // /lib is a link to /usr/lib where /usr is merged: its units would be noted by two paths.
    for folder in CONTROL.into_iter().chain(UNIT_DIRECTORIES).filter(|folder| !folder.starts_with("/lib/")) {
        for name in root.present(Path::new(folder), &names)? {
            let path = format!("{folder}/{name}");
            if name.ends_with(DROP_INS) {
                for path in conf_files(root, &path)? {
                    note(path)?;
                }
            } else {
                note(path)?;
            }
        }
    }
    let measured = desired.gates.iter().filter_map(|gate| match &gate.probe {
        GateProbe::Sysctl(keys) => Some(keys),
        _ => None,
    });
    let keys: Vec<&str> = measured.flatten().map(|(key, _)| key.as_str()).collect();
    let own = desired.files.iter().find_map(|file| file.path.strip_prefix("/etc/sysctl.d/")).unwrap_or("~");
    for folder in SYSCTL_FOLDERS {
        for path in conf_files(root, folder)? {
            let is_later = path.rsplit('/').next().is_some_and(|name| name >= own);
            let sets = |text: &str| keys.iter().any(|key| text.replace('.', "/").contains(key));
            // A link to /dev/null masks what other folders have by that name (sysctl.d(5)).
            let is_file =
                || root.facts_followed(Path::new(&path)).map(|facts| facts.is_some_and(|facts| facts.kind == FileKind::File));
            let text = || root.read(Path::new(&path), READ_LIMIT).map(Option::unwrap_or_default);
            if is_later && is_file()? && sets(&String::from_utf8_lossy(&text()?)) {
                note(path)?;
            }
        }
    }
    Ok(all)
}

fn conf_files(root: &Tree, folder: &str) -> Result<Vec<String>> {
    if root.facts_followed(Path::new(folder))?.is_none_or(|facts| facts.kind != FileKind::Directory) {
        return Ok(Vec::new());
    }
    let names = root.list(Path::new(folder))?;
    let names = names.iter().filter_map(|name| name.to_str()).filter(|name| {
        // A temporary file of somebody's editor is read by nobody.
        Path::new(name).extension().is_some_and(|end| end == "conf") && !name.starts_with('.')
    });
    Ok(names.map(|name| format!("{folder}/{name}")).collect())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::clock::Clock;
    use crate::converge;
    use crate::desired::{Directory, File, Gate, Owner, Unit};
    use crate::systemd::UnitState;

    fn file(path: &str, state: &str) -> Cause {
        Cause::of_path(CauseKind::File, path, state, format!("{path} differs"))
    }

    fn unit(name: &str) -> Cause {
        Cause::of_unit(CauseKind::State, name, "inactive", "is not running")
    }

    /// How often a week of passes, one a minute, puts back what another tool does before each of them.
    fn repairs_of_a_week(cause: impl Fn(u32) -> Cause) -> u32 {
        let (clock, mut record, mut repairs) = (Clock::manual(Timestamp(0)), DriftRecord::default(), 0);
        for pass in 0..7 * 24 * 60 {
            let cause = cause(pass);
            if !record.holds(&cause, clock.now()) {
                repairs += 1;
                record.repaired(&[cause], clock.now());
                // As over a restart of the agent.
                let text = serde_json::to_string(&record).unwrap();
                record = crate::budgets::json::typed(&text).unwrap();
            }
            clock.advance(Duration::from_mins(1));
        }
        repairs
    }

    #[test]
    fn another_tool_is_not_fought_with() {
        assert_eq!(repairs_of_a_week(|_| file("/etc/x", "theirs")), 1, "the same content each time");
        assert_eq!(repairs_of_a_week(|_| unit("etcd.service")), 7, "a unit is stopped each time: once a day");
        let changing = repairs_of_a_week(|pass| file("/etc/x", &pass.to_string()));
        assert_eq!(changing, 7 * REPAIRS_PER_DAY, "each time another content, as of a file with a date in it");
        let two = repairs_of_a_week(|pass| file("/etc/x", if pass % 2 == 0 { "one" } else { "other" }));
        assert!(two <= 7 * REPAIRS_PER_DAY, "two tools");
    }

    #[test]
    fn what_a_failed_update_left_is_reported_once_and_what_changes_later_is_drift() {
        let down = |state: &str| Cause::of_unit(CauseKind::State, "kubelet.service", state, "is not running");
        let unread = Cause::of_unit(CauseKind::Effect, "kubelet.service", "", "has not reloaded its files");
        let (written, changed) = (file("/etc/x", "a"), file("/etc/x", "b"));
        let mut record = DriftRecord::default();
        let mut inspection = |generation, causes: &[&Cause], is_whole| {
            let texts = |causes: Vec<Cause>| {
                causes.into_iter().map(|cause| format!("{} {}", cause.subject, cause.state)).collect::<Vec<_>>()
            };
            let (found, _) = record.separate_remains(generation, causes.iter().copied().cloned().collect(), is_whole);
            (texts(found.left).join(", "), texts(found.news).join(", "))
        };
        let is = |left: &str, news: &str| (left.to_owned(), news.to_owned());
        // While units are on their way files alone are judged; the whole is reported when they have arrived.
        assert_eq!(inspection(2, &[&written], false), is("", ""));
        assert_eq!(inspection(2, &[&changed], false), is("", "/etc/x b"));
        assert_eq!(
            inspection(2, &[&written, &down("failed"), &unread], true),
            is("/etc/x a, kubelet.service failed, kubelet.service ", "")
        );
        assert_eq!(inspection(2, &[&written, &down("inactive"), &unread], true), is("", ""), "down in another way");
        assert_eq!(inspection(2, &[&changed, &unread], true), is("", "/etc/x b"));
        // It came up: down again, it is somebody's.
        assert_eq!(inspection(2, &[&down("inactive"), &unread], true), is("", "kubelet.service inactive"));
        assert_eq!(inspection(2, &[&unread], true), is("", ""));
        // Another update, and the same one again.
        assert_eq!(inspection(3, &[&written], true), is("/etc/x a", ""));
        assert!(record.forget_left() && !record.forget_left());
        assert_eq!(record.separate_remains(3, vec![written], true).0.left.len(), 1);
    }

    /// Attack: what was put back while the clock showed a later year was left alone until then.
    #[test]
    fn a_repair_by_a_clock_that_was_ahead_holds_nothing_off() {
        let (wrong, mut record) = (Timestamp(20 * 365 * 86_400_000), DriftRecord::default());
        let unit = unit("etcd.service");
        record.repaired(std::slice::from_ref(&unit), wrong);
        assert!(record.holds(&unit, wrong) && record.holds(&unit, Timestamp(wrong.0 - 1)), "a second is no other day");
        assert!(!record.holds(&unit, Timestamp(1)));
    }

    #[test]
    fn a_new_cause_is_put_back_and_a_deployment_starts_afresh() {
        let (now, mut record) = (Timestamp(1), DriftRecord::default());
        let (first, other, elsewhere) = (file("/etc/x", "a"), file("/etc/x", "b"), file("/etc/y", "a"));
        record.repaired(std::slice::from_ref(&first), now);
        assert!(record.holds(&first, now));
        assert!(!record.holds(&other, now) && !record.holds(&elsewhere, now));
        assert!(!DriftRecord::of_new(BTreeMap::new()).holds(&first, now));
        // A disk that comes and goes is no tool.
        let volume = Cause::of_volume("runtime", "volume".to_owned());
        record.repaired(std::slice::from_ref(&volume), now);
        assert!(!record.holds(&volume, now));
        for number in 0..100 {
            record.repaired(&[file(&format!("/etc/{number}"), "a")], now);
        }
        assert_eq!(record.repairs.len(), MOST);
        assert!(record.holds(&file("/etc/99", "a"), now) && !record.holds(&first, now), "the oldest are forgotten");
    }

    #[test]
    fn what_is_fought_over_or_not_ours_keeps_no_renewal_waiting() {
        let now = Timestamp(1);
        let (theirs, gone) = (file("/etc/x", "theirs"), unit("etcd.service"));
        let foreign = Cause::of_path(CauseKind::Foreign, "/etc/y", "", "/etc/y was added".to_owned());
        let store = Cause::of_volume("runtime", "the store is read-only".to_owned());
        let all = [theirs.clone(), gone.clone(), foreign.clone(), store.clone()];
        let is = |found: &[Cause], record: Option<&DriftRecord>, contested: &[&Cause], repairs: &[&Cause]| {
            let sorted = sorted(found, record, now);
            assert_eq!(sorted.contested.iter().collect::<Vec<_>>(), contested);
            assert_eq!(sorted.repairs.iter().collect::<Vec<_>>(), repairs);
        };
        is(&all, Some(&DriftRecord::default()), &[], &[&theirs, &gone, &store]);
        let mut record = DriftRecord::default();
        record.repaired(&all, now);
        is(&all, Some(&record), &[&theirs, &gone], &[&store]);
        is(&[theirs.clone(), foreign.clone()], Some(&record), &[&theirs], &[]);
        is(&[foreign], Some(&record), &[], &[]);
        // Where nothing is put back but by an order, which puts everything back, nobody is fought with.
        is(&[theirs.clone(), gone.clone()], None, &[], &[&theirs, &gone]);
    }

    #[test]
    fn changed_removed_stopped_disabled_and_masked_are_distinguished() {
        let desired = Desired {
            directories: vec![Directory { path: "/etc/d".into(), mode: 0o755, owner: Owner::root(), needs: BTreeSet::new() }],
            files: ["/etc/same", "/etc/changed", "/etc/gone"].map(|path| File::public(path, "ours")).to_vec(),
            units: ["stopped", "disabled", "masked", "running", "dying"]
                .map(|name| Unit {
                    name: format!("{name}.service"),
                    enable: true,
                    restart_on: ["/etc/changed".to_owned()].into_iter().filter(|_| name != "dying").collect(),
                    needs: BTreeSet::new(),
                    applies_files: false,
                })
                .to_vec(),
            ..Desired::default()
        };
        let seen = |content: &str| converge::observed::PathState {
            kind: FileKind::File,
            mode: 0o644,
            owner: (0, 0),
            content: Some(content.into()),
        };
        let mut observed = Observed { ownership: converge::observed::Ownership::Ignored, ..Observed::default() };
        observed.files.insert("/etc/same".into(), seen("ours"));
        observed.files.insert("/etc/changed".into(), seen("theirs"));
        for (name, active, file, load) in [
            ("stopped", "inactive", "enabled", "loaded"),
            ("disabled", "active", "disabled", "loaded"),
            ("masked", "active", "masked", "masked"),
            ("running", "active", "enabled", "loaded"),
            ("dying", "activating", "enabled", "loaded"),
        ] {
            let name = format!("{name}.service");
            let state = UnitState {
                active_state: active.into(),
                unit_file_state: file.into(),
                load_state: load.into(),
                ..UnitState::default()
            };
            observed.units.insert(name, state);
        }
        let found = |observed: &Observed| causes(&converge::plan(&desired, observed), observed);
        let causes = found(&observed);
        let texts: Vec<(&str, bool)> = causes.iter().map(|cause| (cause.text.as_str(), cause.is_foreign())).collect();
        assert_eq!(
            texts,
            [
                ("/etc/changed differs", false),
                ("/etc/gone is gone", false),
                ("/etc/d is gone", false),
                ("disabled.service is not enabled", false),
                ("stopped.service is not running", false),
                ("dying.service fails to start: activating ()", true),
                ("masked.service is masked (systemctl unmask masked.service)", true),
            ],
            "who reads a file that differs is no cause of its own"
        );
        // Another content is another cause; the same one is not.
        let theirs = &causes[0];
        assert_eq!(theirs, &found(&observed)[0]);
        observed.files.insert("/etc/changed".into(), seen("others'"));
        assert_ne!(theirs, &found(&observed)[0]);
        assert_ne!(theirs.state, found(&observed)[0].state);
        // A unit that fails, and one that starts over and over, wait for the same next try.
        assert_eq!(digest(&causes), digest(&found(&observed)));
        assert_ne!(digest(&causes), digest(&causes[1..]));
        assert_eq!(digest(&[]), 0);
        // With its volume away everything is an effect of that.
        let record = DriftRecord::default();
        let mut repaired = record.clone();
        observed.files.clear();
        let plan = ChangePlan {
            volumes: vec![PlannedStep { about: "runtime".into(), text: "volume".into() }],
            ..converge::plan(&desired, &observed)
        };
        let files: Vec<Cause> =
            super::causes(&plan, &observed).into_iter().filter(|cause| matches!(cause.subject, Subject::Path(_))).collect();
        repaired.repaired(&files, Timestamp(1));
        assert!(!files.is_empty() && repaired == record);
    }

    #[test]
    fn what_is_added_beside_the_nodes_files_is_found_and_what_was_there_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let tree = Tree::open(folder.path()).unwrap();
        let put = |path: &str, text: &str| {
            let parent = Path::new(path).parent().unwrap();
            tree.create_dir_all(parent.strip_prefix("/").unwrap(), Attributes::mode(0o755)).unwrap();
            tree.write(Path::new(path), text.as_bytes(), Attributes::mode(0o644)).unwrap();
        };
        let ours = "/etc/systemd/system/etcd.service.d/50-heat-node-agent.conf";
        let settings = "/etc/sysctl.d/90-heat-node-agent.conf";
        let desired = Desired {
            files: vec![File::public(ours, "[Service]\n"), File::public(settings, "net.ipv4.ip_forward = 1\n")],
            units: vec![Unit {
                name: "etcd.service".into(),
                enable: true,
                restart_on: BTreeSet::new(),
                needs: BTreeSet::new(),
                applies_files: false,
            }],
            gates: vec![Gate {
                name: "sysctl".into(),
                unit: None,
                probe: GateProbe::Sysctl(vec![("net/ipv4/ip_forward".into(), 1)]),
                consecutive: 1,
                deadline: None,
                needs: BTreeSet::new(),
                remedy: String::new(),
            }],
            ..Desired::default()
        };
        put(ours, "[Service]\n");
        put(settings, "net.ipv4.ip_forward = 1\n");
        put("/usr/lib/systemd/system/etcd.service", "[Service]\n");
        put("/usr/lib/systemd/system/etcd.service.d/image.conf", "[Service]\n");
        tree.link("usr/lib", Path::new("/lib")).unwrap();
        let mut record = DriftRecord::default();
        assert_eq!(record.compare(beside(&desired, &tree).unwrap()), (vec![], true));
        assert_eq!(record.compare(beside(&desired, &tree).unwrap()), (vec![], false));

        for path in [
            "/etc/systemd/system/etcd.service.d/99-x.conf",
            "/run/systemd/system/etcd.service.d/99-x.conf",
            "/usr/lib/systemd/system/etcd.service.d/99-x.conf",
            "/etc/systemd/system/service.d/all.conf",
            "/etc/sysctl.d/99-mine.conf",
        ] {
            put(path, "net.ipv4.ip_forward = 0\n");
        }
        put("/usr/lib/systemd/system/etcd.service.d/image.conf", "[Service]\nNice=1\n");
        tree.link("/dev/null", Path::new("/run/systemd/system/etcd.service")).unwrap();
        for harmless in [
            "/etc/systemd/system/etcd.service.d/x.conf~",
            "/etc/sysctl.d/10-early.conf",
            "/etc/systemd/system/cron.service.d/x.conf",
        ] {
            put(harmless, "net.ipv4.ip_forward = 0\n");
        }
        put("/etc/sysctl.d/99-other.conf", "vm.swappiness = 1\n");
        // As one to /dev/null, which masks: no file is there to be read.
        tree.link("/etc", Path::new("/etc/sysctl.d/99-sysctl.conf")).unwrap();
        let (found, _) = record.compare(beside(&desired, &tree).unwrap());
        let texts: Vec<&str> = found.iter().map(|cause| cause.text.as_str()).collect();
        assert_eq!(
            texts,
            [
                "/etc/sysctl.d/99-mine.conf was added",
                "/etc/systemd/system/etcd.service.d/99-x.conf was added",
                "/etc/systemd/system/service.d/all.conf was added",
                "/run/systemd/system/etcd.service was added",
                "/run/systemd/system/etcd.service.d/99-x.conf was added",
                "/usr/lib/systemd/system/etcd.service.d/99-x.conf was added",
                "/usr/lib/systemd/system/etcd.service.d/image.conf was changed",
            ]
        );
        assert!(found.iter().all(Cause::is_foreign));
    }
}
