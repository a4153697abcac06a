//! Going back to the generation before, where an update failed on its way: what it takes, when it is done, and how it ends.
//!
//! A node goes back only where the failed step was good before the update, depends on what the update changed, and nothing that cannot
//! be taken back is part of it. Everything that this needs is on disk before the first change (`replaced.json`, and that it was recorded:
//! `recorded.json`), and that the node is going back, with the cause, before the first step of that (`rollback.json`): whoever finds that
//! one goes on going back.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use super::Node;
use super::bring_up::{RunOptions, STABILITY_PERIOD, add_on_left};
use super::in_place::spec_of;
use super::once::{CHANGED, RECORDED, SAVED, is_marked, mark};
use super::outline::Outline;
use super::renewal;
use crate::clock::Stopwatch;
use crate::converge::{Failure, Original, Retired, RetiredFile};
use crate::deploy::Generations;
use crate::desired::{Dependency, Desired, EtcdMember, File, NODES, Object, Unit};
use crate::error::remedy::Remedy;
use crate::error::{Error, ErrorKind, Result};
use crate::files::{Attributes, FileKind, Tree};
use crate::gather::Gather;
use crate::kubernetes::{self, NodeSpec};
use crate::progress::StepId;
use crate::report::reason::{RollbackEnd, RollbackOutcome};
use crate::report::text::{argument, shortened};
use crate::report::{Code, Event, Phase};
use crate::systemd::Systemd;

/// What the update under way, or the one that failed, replaced.
pub(super) const REPLACED: &str = "replaced.json";
/// The same of the generation in place.
pub(super) const FORMER: &str = "former.json";
const ROLLBACK: &str = "rollback.json";
/// Bytes of files of somebody else that are kept for a node that goes back.
const KEPT: u64 = 1024 * 1024;
/// The least time for going back, where the update has twice as much in all.
const LEAST_ROLLBACK: Duration = Duration::from_mins(1);
/// The most time that is set aside for going back.
const RESERVE: Duration = Duration::from_mins(3);

/// A part of an update that nothing takes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Irreversible {
    /// File systems are made, grown or moved.
    Volumes,
    /// Keys and certificates are replaced.
    Certificates,
    /// The description of flannel's network in etcd.
    Flannel,
    /// The node's member of etcd.
    Etcd,
    /// Objects of the cluster's API.
    Objects,
}

impl fmt::Display for Irreversible {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Volumes => "volumes",
            Self::Certificates => "certificates or keys",
            Self::Flannel => "flannel's configuration in etcd",
            Self::Etcd => "the etcd member",
            Self::Objects => "objects of the cluster's API",
        })
    }
}

/// Parts of an update in words.
pub(super) fn in_words(parts: &[Irreversible]) -> String {
    parts.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// What of an update nothing takes back.
pub(super) fn irreversible(before: &Desired, after: &Desired) -> Vec<Irreversible> {
    let order = |desired: &Desired| desired.trust.as_ref().map(|trust| (trust.keys, trust.rotation));
    let is_trust_same = before.cas == after.cas
        && before.certificates == after.certificates
        && before.keys == after.keys
        && order(before) == order(after);
    // A name is what the member announces at each start, and no part of its place.
    let member = |desired: &Desired| desired.etcd.clone().map(|one| EtcdMember { name: String::new(), keeps_v2: false, ..one });
    [
        (Irreversible::Volumes, before.volumes == after.volumes),
        (Irreversible::Certificates, is_trust_same),
        (Irreversible::Flannel, before.flannel == after.flannel),
        (Irreversible::Etcd, member(before) == member(after)),
        (Irreversible::Objects, shared(before).eq(shared(after))),
    ]
    .into_iter()
    .filter_map(|(part, is_same)| (!is_same).then_some(part))
    .collect()
}

/// Objects of the cluster, but not the node's own: what the agent gave that one, the generation before takes away by itself.
fn shared(desired: &Desired) -> impl Iterator<Item = &Object> {
    desired.objects.iter().filter(|object| object.collection != NODES)
}

/// Paths of files that an update writes otherwise, brings, or no longer asks for.
fn changed_files<'a>(before: &'a Desired, after: &'a Desired) -> BTreeSet<&'a str> {
    let differs = |file: &&File, other: &Desired| other.file(&file.path) != Some(*file);
    let changed = after.files.iter().filter(|file| differs(file, before));
    changed.chain(before.files.iter().filter(|file| differs(file, after))).map(|file| file.path.as_str()).gather()
}

/// Whether a step of the update depends on anything that the update changed. One that is neither a unit nor a gate ends an update whose files
/// are written already: whatever it was, nobody has seen the units run with them.
fn depends_on_change(before: &Desired, after: &Desired, step: &StepId) -> bool {
    let files = changed_files(before, after);
    let (mut units, mut gates): (Vec<&str>, Vec<&str>) = match step {
        StepId::Unit(name) => (vec![name], Vec::new()),
        StepId::Gate(name) => (Vec::new(), vec![name]),
        // The cluster and the data decide about it, unless the list of members changed.
        StepId::EtcdMember => return before.etcd_join != after.etcd_join,
        _ => return true,
    };
    let mut seen = BTreeSet::new();
    loop {
        let needs: Vec<&Dependency> = if let Some(name) = units.pop() {
            let Some(unit) = after.units.iter().find(|unit| unit.name == name).filter(|_| seen.insert(("unit", name))) else {
                continue;
            };
            let reads_changed = unit.restart_on.iter().any(|path| files.contains(path.as_str()));
            if reads_changed || before.units.iter().find(|other| other.name == name) != Some(unit) {
                return true;
            }
            unit.needs.iter().collect()
        } else if let Some(name) = gates.pop() {
            let Some(gate) = after.gates.iter().find(|gate| gate.name == name).filter(|_| seen.insert(("gate", name))) else {
                continue;
            };
            if before.gates.iter().find(|other| other.name == name) != Some(gate) {
                return true;
            }
            units.extend(gate.unit.as_deref());
            gate.needs.iter().collect()
        } else {
            return false;
        };
        for need in needs {
            match need {
                Dependency::Unit(name) => units.push(name),
                Dependency::Gate(name) => gates.push(name),
                _ => {}
            }
        }
    }
}

/// Whether the generation before did not enable a unit, which it may have known all the same: of the runtimes of containers one runs, and the
/// others are kept from running.
fn is_newly_enabled(before: &Desired, unit: &Unit) -> bool {
    unit.enable && !before.units.iter().any(|other| other.name == unit.name && other.enable)
}

/// The component that a step is about, as the health of components names it.
fn component<'a>(desired: &'a Desired, step: &'a StepId) -> Option<&'a str> {
    let of_unit = |unit: &'a str| unit.trim_end_matches(".service");
    match step {
        StepId::Unit(name) => Some(of_unit(name)),
        StepId::Gate(name) => {
            let unit = desired.gates.iter().find(|gate| gate.name == *name).and_then(|gate| gate.unit.as_deref());
            Some(unit.map_or(name.as_str(), of_unit))
        }
        _ => None,
    }
}

/// A file of somebody else, as it lay there before an update replaced it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
struct SavedFile {
    /// The whole content, in base64.
    content: String,
    mode: u32,
    owner: (u32, u32),
}

impl fmt::Debug for SavedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The content may be a secret.
        write!(f, "SavedFile({:o}, {:?})", self.mode, self.owner)
    }
}

/// What an update finds, recorded before its first change: what it takes to go back.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Replaced {
    /// The update.
    generation: u64,
    /// Files that lay where only the update writes. They may hold secrets.
    files: BTreeMap<String, SavedFile>,
    /// Of the units that only the update asks for: those that ran.
    running: BTreeSet<String>,
    /// Of the units that only the update wants enabled: those that were.
    enabled: BTreeSet<String>,
    /// Components that were not healthy before.
    unhealthy: BTreeSet<String>,
    /// What keeps the node from going back.
    obstacle: Option<String>,
}

impl Replaced {
    /// Whether it is the record of this update.
    pub(super) fn is_of(&self, generation: u64) -> bool {
        self.generation == generation
    }

    /// What keeps the node from going back.
    pub(super) fn obstacle(&self) -> Option<&str> {
        self.obstacle.as_deref()
    }
}

/// The node is going back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct RollbackRecord {
    /// The update that failed.
    generation: u64,
    /// The deployment that asked for it.
    deployment: String,
    /// The code of its failure.
    code: String,
    step: FailedStep,
    unit: Option<String>,
    cause: String,
    rule: Option<String>,
    remedy: Remedy,
}

/// The step of an update that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum FailedStep {
    Unit(String),
    Gate(String),
    Certificates,
    Other,
}

impl RollbackRecord {
    fn of(generation: u64, deployment: &str, failure: &Failure) -> Self {
        let step = match &failure.step {
            StepId::Unit(name) => FailedStep::Unit(name.clone()),
            StepId::Gate(name) => FailedStep::Gate(name.clone()),
            StepId::Certificates => FailedStep::Certificates,
            _ => FailedStep::Other,
        };
        Self {
            generation,
            deployment: deployment.to_owned(),
            code: failure.code.entry().code.to_owned(),
            step,
            unit: failure.unit.clone(),
            cause: failure.cause.clone(),
            rule: failure.rule.clone(),
            remedy: failure.remedy.clone(),
        }
    }

    /// The failure that is going to be reported to Heat.
    fn failure(&self) -> Failure {
        let code = Code::ALL.iter().copied().find(|code| code.entry().code == self.code).unwrap_or(Code::NodeFailed);
        let step = match &self.step {
            FailedStep::Unit(name) => StepId::Unit(name.clone()),
            FailedStep::Gate(name) => StepId::Gate(name.clone()),
            FailedStep::Certificates => StepId::Certificates,
            FailedStep::Other => StepId::Work("the update"),
        };
        let mut failure = Failure::new(code, step, &self.cause).remedy(&self.remedy);
        (failure.unit, failure.rule) = (self.unit.clone(), self.rule.clone());
        failure
    }
}

/// The generation before, and what it takes to go back to it.
#[derive(Debug)]
pub(super) struct Previous {
    pub(super) number: u64,
    pub(super) spec: NodeSpec,
    pub(super) desired: Desired,
    pub(super) replaced: Replaced,
}

/// Whether an update may be taken back.
#[derive(Debug)]
pub(super) enum RollbackPlan {
    /// No other generation was in place.
    Nothing,
    /// To this one.
    Open(Box<Previous>),
    /// There was one, and the node cannot go back to it, for this cause.
    Closed { number: u64, cause: String },
}

impl RollbackPlan {
    /// How much of `deadline` an update leaves for going back.
    pub(super) fn reserve(&self, deadline: Duration) -> Duration {
        let reserve = || (deadline / 4).clamp(LEAST_ROLLBACK.min(deadline / 2), RESERVE);
        if matches!(self, Self::Open(_)) { reserve() } else { Duration::ZERO }
    }

    /// The generation that a failed update is taken back to; else why it is not, where there is one to speak of.
    pub(super) fn judge(self, after: &Desired, failure: &Failure) -> std::result::Result<Box<Previous>, Option<String>> {
        let previous = match self {
            Self::Nothing => return Err(None),
            Self::Closed { number, cause } => return Err(Some(not_rolled_back(number, &cause))),
            Self::Open(previous) => previous,
        };
        let refused = |cause: &str| Err(Some(not_rolled_back(previous.number, cause)));
        if !depends_on_change(&previous.desired, after, &failure.step) {
            return refused("what failed does not depend on what the update changed");
        }
        match component(after, &failure.step) {
            Some(name) if previous.replaced.unhealthy.contains(name) => {
                refused(&format!("{name} was not healthy before the update either"))
            }
            _ => Ok(previous),
        }
    }
}

/// How long going back may take where `elapsed` of the `deadline` of the whole is over. Where that is short it is half of what Heat still waits
/// (`deadline.rs`), so that as much again comes in time.
fn for_rollback(elapsed: Duration, deadline: Duration) -> Duration {
    deadline.saturating_sub(elapsed).max(LEAST_ROLLBACK.min(deadline))
}

/// Of a way back to this generation.
pub(super) fn event(code: Code, number: u64, line: String) -> Event {
    Event::new(code, line).generation(number).step("rollback")
}

/// It has succeeded.
pub(super) fn rolled_back(number: u64) -> Event {
    event(Code::RolledBack, number, format!("the node is back at generation {number}, and healthy")).phase(Phase::Steady)
}

/// It has failed; the cause is still to be said.
pub(super) fn rollback_failed(number: u64, deployment: &str) -> Event {
    let line = format!("the node could not be rolled back to generation {number}");
    let remedy = format!(
        "`heat-node-agent status` shows what is wrong now. Correct it, then update the stack, or run `heat-node-agent rerun {}`",
        argument(&shortened(deployment, 64))
    );
    event(Code::RollbackFailed, number, line).phase(Phase::Units).remedy(remedy)
}

/// Whether a rollback failed where its update did, by the same fact, which comes first; what follows it is of the moment.
fn is_same_cause(why: &str, failure: &Failure) -> bool {
    let fact = |text: &str| text.split("; ").next().unwrap_or_default().to_owned();
    fact(why) == fact(&format!("{}: {}", failure.doing(), failure.cause))
}

fn not_rolled_back(number: u64, cause: &str) -> String {
    format!("not rolled back to generation {number}: {cause}")
}

impl Previous {
    /// What of the update is taken away.
    pub(super) fn retired(&self, after: &Desired) -> Result<Retired> {
        let is_new = |file: &&File| self.desired.file(&file.path).is_none();
        let mut files = Vec::new();
        for file in after.files.iter().filter(is_new) {
            let original = match self.replaced.files.get(&file.path) {
                Some(saved) => Some(Original {
                    content: STANDARD
                        .decode(&saved.content)
                        .map_err(|error| Error::permanent(format!("what lay at {} cannot be decoded: {error}", file.path)))?,
                    mode: saved.mode,
                    owner: saved.owner,
                }),
                None => None,
            };
            files.push(RetiredFile { path: file.path.clone(), written: file.content.clone(), original });
        }
        let reads_retired = |path: &String| files.iter().any(|file: &RetiredFile| file.path == *path);
        let (common, new): (Vec<_>, Vec<_>) =
            after.units.iter().partition(|unit| self.desired.units.iter().any(|other| other.name == unit.name));
        let readers = common.into_iter().filter(|unit| unit.restart_on.iter().any(reads_retired));
        let stop = new.iter().filter(|unit| !unit.applies_files && !self.replaced.running.contains(&unit.name));
        let is_newly_enabled =
            |unit: &&Unit| is_newly_enabled(&self.desired, unit) && !self.replaced.enabled.contains(&unit.name);
        let disable = after.units.iter().filter(is_newly_enabled);
        Ok(Retired {
            readers: readers.map(|unit| unit.name.clone()).gather(),
            stop: stop.map(|unit| unit.name.clone()).collect(),
            disable: disable.map(|unit| unit.name.clone()).collect(),
            files,
        })
    }
}

impl Node {
    /// Nothing of an earlier run is gone on with: this is another one.
    ///
    /// # Errors
    /// If what is remembered of it cannot be removed.
    pub(in crate::daemon) fn forget_rollback(&self) -> Result<()> {
        self.host.state.remove(Path::new(ROLLBACK))?;
        self.forget_replaced()
    }

    /// Forgets that a generation changed the machine: it has ended, and may be begun anew.
    ///
    /// # Errors
    /// If the mark cannot be removed.
    pub(in crate::daemon) fn forget_change(&self) -> Result<()> {
        self.host.state.remove(Path::new(CHANGED)).map(drop)
    }

    /// Why a failed update is being rolled back, while it is.
    pub(in crate::daemon) fn going_back(&self) -> Option<String> {
        self.known.going_back.borrow().clone()
    }

    /// Whether a rollback has begun and not ended.
    pub(in crate::daemon) fn is_going_back(&self) -> bool {
        self.host.state.facts(Path::new(ROLLBACK)).is_ok_and(|facts| facts.is_some())
    }

    /// The update is in place: what it replaced is kept for the operator's `rollback`, in the place of what the one before replaced.
    pub(in crate::daemon) fn keep_replaced(&self, generation: u64) -> Result<()> {
        let state = &self.host.state;
        let read = |name| -> Result<Option<Replaced>> {
            state.read_state(Path::new(name), &self.host.report, Code::StateFileQuarantined)
        };
        if let Some(replaced) = read(REPLACED)?.filter(|replaced| replaced.is_of(generation)) {
            state.write_json(Path::new(FORMER), &replaced, Attributes::mode(0o600))?;
        } else if read(FORMER)?.is_some_and(|former| !former.is_of(generation)) {
            // It may hold secrets, and nothing goes back by it any more.
            state.remove(Path::new(FORMER))?;
        }
        self.forget_replaced()
    }

    /// What the update replaced is asked for no more. First that there is a record, as what is begun anew has none yet. That it changed the machine
    /// stays known: if what comes next cannot be recorded, that is asked again.
    fn forget_replaced(&self) -> Result<()> {
        for name in [SAVED, RECORDED, REPLACED] {
            self.host.state.remove(Path::new(name))?;
        }
        Ok(())
    }

    /// The node is back, and nothing goes back further.
    pub(in crate::daemon) fn forget_former(&self) -> Result<()> {
        self.host.state.remove(Path::new(FORMER))?;
        self.forget_rollback()
    }

    /// Finds the generation that was in place before this one, and records what is replaced, before anything is.
    pub(super) async fn plan_rollback(&self, after: &Desired, generation: u64) -> Result<RollbackPlan> {
        let current = Generations::read(&self.host.state)?;
        let Some(current) = current.filter(|current| current.number == generation) else { return Ok(RollbackPlan::Nothing) };
        let Some(before) = current.before.filter(|before| before.number != generation) else { return Ok(RollbackPlan::Nothing) };
        let closed = |cause: &str| Ok(RollbackPlan::Closed { number: before.number, cause: cause.to_owned() });
        if !current.consistent_before {
            return closed("an update before this one was not completed, so that generation was not whole any more");
        }
        let Some(systemd) = &self.host.systemd else { return Ok(RollbackPlan::Nothing) };
        let spec = match spec_of(&before.entry) {
            Ok(spec) => spec,
            Err(error) => return closed(error.cause()),
        };
        let desired = kubernetes::render(&spec, &self.facts())?;
        let parts = irreversible(&desired, after);
        if !parts.is_empty() {
            return closed(&format!("the update changes {}, which is never taken back automatically", in_words(&parts)));
        }
        let known: Option<Replaced> = match self.host.state.read_json(Path::new(REPLACED)) {
            Err(error) if error.kind() == ErrorKind::Permanent => {
                // What lay there before is not known any more, and what lies there now may be the update's own.
                self.host.state.quarantine(Path::new(REPLACED), &self.host.report, Code::StateFileQuarantined, &error)?;
                return closed("the record of what the update replaced is damaged");
            }
            known => known?,
        };
        // Of the same generation it is the record of this very update: one that begins anew is preceded by `forget_rollback`.
        let known = known.filter(|known| known.is_of(generation));
        let replaced = match known {
            Some(known) => known,
            None if is_marked(&self.host.state, RECORDED, generation, &self.host.report)? => {
                return closed("the record of what the update replaced is gone");
            }
            None => {
                let replaced = Replaced { generation, ..self.replaced(&desired, after, systemd).await? };
                self.host.state.write_json(Path::new(REPLACED), &replaced, Attributes::mode(0o600))?;
                replaced
            }
        };
        // Nothing is changed before both are on disk.
        mark(&self.host.state, RECORDED, generation)?;
        if let Some(obstacle) = replaced.obstacle() {
            return closed(obstacle);
        }
        // The operator may order it all the same, and one that has begun is finished.
        if !self.host.settings.rollback && !self.is_going_back() {
            return closed("agent.toml says [node] rollback = false");
        }
        Ok(RollbackPlan::Open(Box::new(Previous { number: before.number, spec, desired, replaced })))
    }

    /// What an update is going to replace that the generation before does not ask for.
    async fn replaced(&self, before: &Desired, after: &Desired, systemd: &Systemd) -> Result<Replaced> {
        let is_new = |file: &&File| before.file(&file.path).is_none();
        let paths = after.files.iter().filter(is_new).map(|file| file.path.as_str());
        let (files, obstacle) = saved(&self.host.root, paths)?;
        let unhealthy = self.unhealthy_beside(&before.watched);
        let mut replaced = Replaced { files, unhealthy, obstacle, ..Replaced::default() };
        for unit in &after.units {
            let is_new = before.units.iter().all(|other| other.name != unit.name);
            let is_newly_enabled = is_newly_enabled(before, unit);
            if !is_new && !is_newly_enabled {
                continue;
            }
            let state = systemd.unit(&unit.name).await?;
            if is_new && (state.is_active() || state.is_settling()) {
                replaced.running.insert(unit.name.clone());
            }
            if is_newly_enabled && state.unit_file_state.starts_with("enabled") {
                replaced.enabled.insert(unit.name.clone());
            }
        }
        Ok(replaced)
    }

    /// The failure of an update that the node was going back from when the agent ended.
    ///
    /// # Errors
    /// If what is remembered of it can be neither read nor quarantined.
    pub(in crate::daemon) fn interrupted_rollback(&self, generation: u64, deployment: &str) -> Result<Option<Failure>> {
        let record: Option<RollbackRecord> =
            self.host.state.read_state(Path::new(ROLLBACK), &self.host.report, Code::StateFileQuarantined)?;
        let record = record.filter(|record| record.generation == generation && record.deployment == deployment);
        Ok(record.map(|record| record.failure()))
    }

    /// Takes a failed update back, if it may: what became of that, where the node was changed at all. `running` and `deadline` are those of the whole.
    pub(super) async fn go_back(
        &self,
        way: RollbackPlan,
        after: &Desired,
        failure: &Failure,
        generation: u64,
        deployment: &str,
        (running, deadline): (&Stopwatch, Duration),
    ) -> Option<RollbackOutcome> {
        if !failure.changed_machine {
            return None;
        }
        let mut previous = match way.judge(after, failure) {
            Ok(previous) => previous,
            Err(why) => return why.map(|text| RollbackOutcome { text, end: RollbackEnd::NotBegun }),
        };
        let restored = self.restore(&mut previous, after, failure, generation, deployment, (running, deadline)).await;
        let number = previous.number;
        let (text, end) = match restored {
            Ok(()) => (format!("rolled back: generation {number} is in place again, and healthy"), RollbackEnd::RolledBack),
            Err((why, _)) if is_same_cause(&why, failure) => {
                (format!("the rollback to generation {number} failed too, for the same reason"), RollbackEnd::SameCause)
            }
            Err((why, end)) => (format!("the rollback to generation {number} failed too: {why}"), end),
        };
        Some(RollbackOutcome { text, end })
    }

    async fn restore(
        &self,
        previous: &mut Previous,
        after: &Desired,
        failure: &Failure,
        generation: u64,
        deployment: &str,
        (running, deadline): (&Stopwatch, Duration),
    ) -> std::result::Result<(), (String, RollbackEnd)> {
        let number = previous.number;
        let why = format!("to generation {number} under way, because of {}: {}", failure.doing(), failure.cause);
        self.known.going_back.replace(Some(self.host.report.masked(&why).into_owned()));
        // What the update made outside of files (a firewall's rules, a bridge) is known by the machine as it is now, and only a node
        // that is rendered for it takes that away.
        let rendered = kubernetes::render(&previous.spec, &self.facts()).map_err(Error::from);
        let rendered = rendered.map(|desired| previous.desired = desired);
        let begun = rendered.and_then(|()| self.begin_restoring(previous, after, failure, generation, deployment));
        let result = match begun {
            Ok(retired) => {
                // It is on disk: what is reported as begun is finished, whenever the agent is killed.
                let line = format!("rolling the node back to generation {number}, because generation {generation} failed");
                self.host.report.emit(event(Code::RollbackBegun, number, line).phase(Phase::Units).cause(&failure.cause));
                let deadline = for_rollback(running.elapsed(), deadline);
                let reached = self.reach(previous, retired, deadline, deployment).await;
                reached.map_err(|failure| (format!("{}: {}", failure.doing(), failure.cause), RollbackEnd::OtherCause))
            }
            Err(error) => Err((error.to_string(), RollbackEnd::NotBegun)),
        };
        match &result {
            Ok(()) => {
                self.known.outline.replace(Some(Outline::of(&previous.spec, &previous.desired, &self.hostname())));
                self.host.report.emit(rolled_back(number));
                let is_new = |name: &&String| previous.desired.add_ons.iter().all(|one| one.name != **name);
                for name in after.add_ons.iter().map(|one| &one.name).filter(is_new) {
                    self.host.report.emit(add_on_left(name).generation(number));
                }
            }
            Err((why, _)) => self.host.report.emit(rollback_failed(number, deployment).cause(why)),
        }
        self.known.going_back.replace(None);
        result
    }

    /// Does what the generation before asked for, and takes away what only the update did.
    pub(super) async fn reach(
        &self,
        previous: &Previous,
        retired: Retired,
        deadline: Duration,
        deployment: &str,
    ) -> std::result::Result<(), Failure> {
        let options = RunOptions {
            deadline,
            stability_period: STABILITY_PERIOD,
            generation: previous.number,
            // What is left to do where this fails, too, is to run the deployment again.
            deployment: Some(deployment.to_owned()),
            retired: Some(retired),
            held: BTreeSet::new(),
            held_unless_changed: self.restarts_that_wait(&previous.desired).await,
            takes_step: false,
        };
        let desired = renewal::none(previous.desired.clone());
        Box::pin(self.converge(&previous.spec, &desired, options)).await?;
        self.remembered.accept_current_state(&previous.desired);
        Ok(())
    }

    /// Records that the node goes back, before the first step of that.
    fn begin_restoring(
        &self,
        previous: &Previous,
        after: &Desired,
        failure: &Failure,
        generation: u64,
        deployment: &str,
    ) -> Result<Retired> {
        let retired = previous.retired(after)?;
        let record = RollbackRecord::of(generation, deployment, failure);
        let record = RollbackRecord { cause: self.host.report.masked(&record.cause).into_owned(), ..record };
        self.host.state.write_json(Path::new(ROLLBACK), &record, Attributes::mode(0o600))?;
        Ok(retired)
    }
}

/// Files of somebody else at these paths, and what keeps one of them from being kept.
fn saved<'a>(root: &Tree, paths: impl Iterator<Item = &'a str>) -> Result<(BTreeMap<String, SavedFile>, Option<String>)> {
    let mut files = BTreeMap::new();
    let mut left = KEPT;
    for path in paths {
        let Some(facts) = root.facts(Path::new(path))? else { continue };
        if facts.kind != FileKind::File || facts.size > left {
            let what = if facts.kind == FileKind::File { "too large to be kept" } else { "no regular file" };
            return Ok((BTreeMap::new(), Some(format!("{path}, which the update replaces, is {what}"))));
        }
        let Some(content) = root.read(Path::new(path), left)? else { continue };
        left = left.saturating_sub(content.len() as u64);
        let saved = SavedFile { content: STANDARD.encode(content), mode: facts.mode, owner: facts.owner };
        files.insert(path.to_owned(), saved);
    }
    Ok((files, None))
}

#[cfg(test)]
#[path = "rollback_tests.rs"]
mod tests;
