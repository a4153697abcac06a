//! Carries out a plan on the running machine.
//!
//! Order: directories and files (all contents are known before the first is written), enablement, one daemon-reload,
//! helper units; then volumes, what lies on them, certificates, units, gates and objects of the API, each as soon as its
//! needs are done, side by side in one task. The first fatal thing ends the run: what else runs is dropped, and nothing half-written stays.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt as _};

use super::diagnosis::diagnose;
use super::flannel::{FlannelConfigWaiter, PodNetwork};
use super::gates::{GateProgress, Measure, Process};
use super::graph::{self, Graph, GraphStep};
use super::membership::MemberWaiter;
use super::observed::{self, Observed, inspect, observe_files};
use super::plan::{self, AttributeChange, ChangePlan, DirectoryChange, FileChange, needs_of_file};
use super::units::Starter;
use super::{
    Applied, Certificates, ConvergeResult, Converged, EtcdMembership, Failure, FailureDetails, Objects, Owners, Prepared, Prober,
    Retired, UnitManager, Volumes, pending, retire, store, write,
};
use crate::clock::{Clock, Stopwatch};
use crate::desired::{AddOn, Dependency, Desired, Directory, EtcdJoin, File, Gate, Unit, Volume};
use crate::error::{Error, ErrorKind, Result};
use crate::files::Tree;
use crate::gather::Gather;
use crate::machine::add_ons;
use crate::network::flannel::Version;
use crate::progress::{Progress, StepId};
use crate::report::{Code, Event, Phase};

/// How long after the deadline a volume, or who signs certificates, may still say itself what it waited for.
const GRACE: Duration = Duration::from_secs(5);
/// Records that an update is about to change the machine.
#[derive(Clone, Copy)]
pub struct BeforeChange<'a>(pub &'a (dyn Fn() -> Result<()> + Sync));

impl fmt::Debug for BeforeChange<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BeforeChange")
    }
}

/// What a run works with.
#[derive(Debug)]
pub struct RunContext<'a, U, V, P, C> {
    /// The machine's root directory.
    pub root: &'a Tree,
    /// systemd.
    pub systemd: &'a U,
    /// Who brings up volumes.
    pub volumes: &'a V,
    /// Who asks services how they are, and the API for objects.
    pub prober: &'a P,
    /// Who makes certificates.
    pub certificates: &'a C,
    /// The clock.
    pub clock: &'a Clock,
    /// Where the run's progress is kept, and its events go.
    pub progress: &'a Progress,
    /// How long the whole run may take.
    pub deadline: Duration,
    /// How many times its own deadline a gate may be measured.
    pub patience: u32,
    /// How long a process that this run starts must pass its gate before the run succeeds.
    pub stability_period: Duration,
    /// The generation that events carry.
    pub generation: u64,
    /// The release of flannel that is installed, where the node has one and it says so.
    pub flanneld: Option<Version>,
    /// What a deployment asked for, and no repair: it may change members of etcd's cluster, and this is called before its first change.
    pub update: Option<BeforeChange<'a>>,
    /// What a generation that is abandoned brought, where the node goes back to the one before it.
    pub retired: &'a Retired,
    /// Whose restart something else than a file decides.
    pub restarts: &'a SpecialRestarts,
}

/// Units whose restart something else than a change of their files decides.
#[derive(Clone, Debug, Default)]
pub struct SpecialRestarts {
    /// They run a program that was replaced since they were started: they are restarted, although nothing else of them may change.
    pub replaced: BTreeSet<String>,
    /// Their pending restarts wait for somebody: who runs goes on with what it has read, and its restart stays pending.
    pub held: BTreeSet<String>,
    /// The same of restarts that were pending before: what this run changes itself takes effect.
    pub held_unless_changed: BTreeSet<String>,
    /// Groups of units that are restarted one after another, each once those before it answer; none: as their needs have it.
    pub order: &'static [&'static [&'static str]],
}

/// Makes a `Desired` true and measures that it is.
///
/// Safe to drop at any moment and to run again: what was begun is found and finished.
///
/// # Errors
/// The first fatal thing: at once where waiting is of no use, else at the deadline.
pub async fn converge<U: UnitManager, V: Volumes, P: Prober + Objects + PodNetwork + EtcdMembership, C: Certificates>(
    desired: &Desired,
    context: &RunContext<'_, U, V, P, C>,
    words: &impl FailureDetails,
) -> ConvergeResult {
    let running = context.clock.start();
    let mut run = Run {
        desired,
        context,
        starter: Starter {
            root: context.root,
            units: context.systemd,
            clock: context.clock,
            progress: context.progress,
            generation: context.generation,
            running: &running,
            deadline: context.deadline,
            own: None,
        },
        pending: BTreeSet::new(),
        changed_units: BTreeSet::new(),
        outcome: Converged::default(),
        current_step: StepId::Checks,
        changed_machine: false,
        written: 0,
    };
    let mut result = run.all().await;
    if run.changed_machine {
        // systemd goes on with it: it may get its data, and vote, when nobody looks.
        result = result.and(run.hold_member());
    }
    if run.written > 0 {
        let line = format!("wrote {} files and directories", run.written);
        run.emit(Phase::Files, Event::new(Code::FilesWritten, line));
    }
    match result {
        Ok(()) => Ok(run.outcome),
        Err(mut failure) => {
            failure.changed_machine = run.changed_machine;
            if let Some(unit) = failure.unit.as_ref().filter(|_| !failure.unstartable) {
                let why = diagnose(desired, unit, context.root, context.clock, words).await;
                failure.cause = why.with(&failure.cause);
                // Where the reason is known nobody needs to look for it.
                if let Some(remedy) = why.remedy {
                    failure.remedy = remedy;
                }
            }
            failure.remedy = context.progress.remedy_of_failure(&failure.remedy);
            context.progress.fail(&run.current_step, &failure.step, &failure.cause, &failure.remedy);
            // Volumes report their own failures.
            if !matches!(failure.step, StepId::Volume(_)) {
                context.progress.report().emit(failure.event().generation(context.generation));
            }
            Err(failure)
        }
    }
}

struct Run<'a, U, V, P, C> {
    desired: &'a Desired,
    context: &'a RunContext<'a, U, V, P, C>,
    starter: Starter<'a, U>,
    /// Units whose files changed and that were not restarted yet; noted on disk before a file is written.
    pending: BTreeSet<String>,
    /// Units of which this run changed a file.
    changed_units: BTreeSet<String>,
    outcome: Converged,
    /// The step that is dealt with: a failure is its.
    current_step: StepId,
    /// Whether anything of the machine may have changed.
    changed_machine: bool,
    /// Files and directories that were written.
    written: usize,
}

/// How a step ended.
struct Ended<'a, R> {
    step: GraphStep<'a>,
    result: std::result::Result<StepOutcome<R>, Failure>,
}

/// A step, and how far it is.
#[derive(Debug)]
enum Task {
    /// It begins; whether a restart of the unit is pending.
    Begin(bool),
    /// A gate whose process was replaced after it passed: from the start.
    Again,
    /// A gate that answered: until it has passed.
    Goes(GateProgress),
}

/// What a step did.
enum StepOutcome<R> {
    Nothing,
    Something,
    /// Certificates are ready, and not in place yet.
    Prepared(Prepared<R>),
    /// A gate passed for the first time: who needs it goes on.
    Answers(GateProgress),
    /// A gate has passed.
    Passed(GateProgress),
}

impl<R> From<bool> for StepOutcome<R> {
    fn from(changed: bool) -> Self {
        if changed { Self::Something } else { Self::Nothing }
    }
}

impl<'a, U: UnitManager, V: Volumes, P: Prober + Objects + PodNetwork + EtcdMembership, C: Certificates> Run<'a, U, V, P, C> {
    async fn all(&mut self) -> std::result::Result<(), Failure> {
        let first_helpers = first_helpers(self.desired);
        let done: BTreeSet<String> = first_helpers.iter().map(|unit| unit.name.clone()).gather();
        // Found before anything is touched: a mistake of who made the Desired.
        let mut graph = Graph::new(self.desired, &done).map_err(|cause| {
            Failure::new(Code::NodeFailed, "order of steps", cause).remedy("This is a bug of heat-node-agent: please report it.")
        })?;

        self.check().await?;
        self.context.progress.expect(graph::shown(self.desired));
        self.context.progress.wait_for(graph.waits());
        self.begin("plan");
        let mut observed =
            observe_files(self.desired, self.context.root).map_err(|error| file_failure("reading files", &error))?;
        let ask = async |observed: &mut Observed| {
            observed::observe_units(self.desired, self.context.root, self.context.systemd, observed).await
        };
        loop {
            match ask(&mut observed).await {
                Ok(()) => break,
                Err(error) => self.starter.patience("reading the units' states", None, error).await?,
            }
        }
        observed.pending.extend(self.context.restarts.replaced.iter().cloned());
        let mut plan = plan::plan(self.desired, &observed);
        self.pending.clone_from(&observed.pending);
        self.end();

        if let Some(BeforeChange(begins)) = self.context.update {
            begins().map_err(|error| Failure::from_error(Code::StateWriteFailed, "recording the first change", &error))?;
        }
        self.changed_machine = true;
        self.retire(&mut plan).await?;
        let unowned = self.write_early(&plan)?;
        // From here on a boot may start it.
        self.hold_member()?;
        self.enable_and_reload(&plan).await?;
        self.begin("reading the units' states");
        self.find_units(&plan, &observed).await?;
        self.end();
        for unit in first_helpers {
            self.begin(StepId::Unit(unit.name.clone()));
            let ran = self.starter.help(unit, self.pending.contains(&unit.name)).await?;
            // One that is not there has nothing to apply, and no restart is pending.
            self.note_restarted(&unit.name)?;
            self.outcome.changed |= ran;
            self.end();
        }
        self.write_unowned(&unowned, &mut observed)?;
        graph.restart_in_order(self.context.restarts.order, &self.desired.gates, |unit| self.is_restarted(unit));
        Box::pin(self.run_graph(graph, &mut observed)).await
    }

    /// What can be refused before anything is touched.
    async fn check(&mut self) -> std::result::Result<(), Failure> {
        self.begin(StepId::Checks);
        for add_on in &self.desired.add_ons {
            let failed = |error| Failure::from_error(Code::AddOnFailed, StepId::AddOn(add_on.name.clone()), &error);
            add_ons::read(self.context.root, add_on).map_err(failed)?;
        }
        while let Err(error) = self.context.volumes.check_stores(self.desired).await {
            if error.kind() != ErrorKind::Transient {
                return Err(store::unsuitable_store(&error));
            }
            self.starter.patience("checking the stores", None, error).await?;
        }
        // A disk may be waited for in these.
        self.context.progress.expect(graph::shown(self.desired));
        let left = self.starter.left();
        let check_places = Box::pin(self.context.volumes.check_places(self.desired, left, self.context.update.is_some()));
        match self.context.clock.limit(left + GRACE, check_places).await {
            Some(checked) => checked?,
            None => return Err(Failure::new(Code::VolumeFailed, StepId::Checks, "the volumes could not be inspected in time")),
        }

        // Another range cannot be taken back once files name it and who reads them was restarted.
        if let Some(store) = self.desired.flannel.as_ref().filter(|store| store.writes) {
            let refused = self.context.prober.refuse(store, self.context.flanneld).await;
            refused.map_err(|error| Failure::from_error(Code::FlannelKeyFailed, StepId::FlannelKey, &error))?;
        }
        self.end();
        Ok(())
    }

    /// From here on whoever starts etcd has it start with data alone.
    fn hold_member(&self) -> std::result::Result<(), Failure> {
        let Some(join) = &self.desired.etcd_join else { return Ok(()) };
        let held = self.context.prober.hold(self.context.root, join);
        held.map_err(|error| Failure::from_error(Code::EtcdMemberFailed, StepId::EtcdMember, &error))
    }

    /// What an abandoned generation brought is taken away, before anything that reads it is started.
    async fn retire(&mut self, plan: &mut ChangePlan) -> std::result::Result<(), Failure> {
        let retired = self.context.retired;
        if retired.is_empty() {
            return Ok(());
        }
        self.begin("taking away what the failed update brought");
        for name in &retired.stop {
            self.starter.stop(name).await?;
            // It may have been noted by the update that brought it.
            self.note_restarted(name)?;
        }
        if !retired.disable.is_empty() {
            self.starter.disable(&retired.disable).await?;
        }
        let failed = |error: Error| file_failure("taking away files", &error);
        let present = retired.present(self.context.root).map_err(failed)?;
        if !present.is_empty() {
            // Before the first file changes: it may be the only one that is still to be restored when this run is broken off.
            self.mark_changed(retired.readers.iter().cloned().gather())?;
            self.note()?;
        }
        let done = retire::files(self.context.root, &present).map_err(failed)?;
        for line in &done.lines {
            self.wrote(line);
        }
        // systemd still knows the units by the files and links that are gone.
        plan.reload |= done.reload || !retired.disable.is_empty();
        self.outcome.changed = true;
        self.end();
        Ok(())
    }

    /// Directories and files that wait for nothing; those whose owner does not exist yet are given back.
    fn write_early(&mut self, plan: &ChangePlan) -> std::result::Result<Unowned, Failure> {
        self.begin(StepId::Files);
        let is_late = |path: &str| !needs_of_file(self.desired, path).is_empty();
        let of_desired = |path: &str| self.desired.directories.iter().find(|directory| directory.path == path);
        let directories: Vec<&DirectoryChange> = plan
            .directories
            .iter()
            .filter(|change| {
                of_desired(&change.path).is_some_and(|directory| directory.needs.is_empty()) && !is_late(&change.path)
            })
            .collect();
        let files: Vec<&FileChange> = plan.files.iter().filter(|change| !is_late(&change.path)).collect();
        let changed: BTreeSet<&str> = files.iter().filter(|change| change.rewrites).map(|change| change.path.as_str()).gather();
        self.note_restarts(changed)?;
        let mut unowned = Unowned::default();
        for change in directories {
            if write::owner_is_known(&change.attributes) {
                self.directory(change)?;
            } else {
                unowned.directories.insert(change.path.clone());
            }
        }
        for change in files {
            if write::owner_is_known(&change.attributes) {
                self.file(change)?;
            } else {
                unowned.files.insert(change.path.clone());
            }
        }
        self.end();
        Ok(unowned)
    }

    /// What waited for a helper (systemd-sysusers) to make its owner.
    fn write_unowned(&mut self, unowned: &Unowned, observed: &mut Observed) -> std::result::Result<(), Failure> {
        if unowned.directories.is_empty() && unowned.files.is_empty() {
            return Ok(());
        }
        self.begin("files with new owners");
        observed.owners = Owners::read(self.context.root).map_err(|error| file_failure("reading users and groups", &error))?;
        for directory in self.desired.directories.iter().filter(|directory| unowned.directories.contains(&directory.path)) {
            self.write_deferred_directory(directory, observed)?;
        }
        for file in self.desired.files.iter().filter(|file| unowned.files.contains(&file.path)) {
            self.write_deferred_file(file, observed)?;
        }
        self.end();
        Ok(())
    }

    async fn enable_and_reload(&mut self, plan: &ChangePlan) -> std::result::Result<(), Failure> {
        if !plan.enable.is_empty() {
            self.begin("enable");
        }
        for name in &plan.enable {
            if self.starter.enable(name).await?.changed {
                self.outcome.changed = true;
                self.emit(Phase::Units, Event::new(Code::UnitEnabled, format!("enabled {name}")).unit(name).detail());
            }
        }
        if !plan.enable.is_empty() {
            self.end();
        }
        let unbound = self.remove_requires_links()?;
        // After enabling, so that one reload is enough: systemd reads files and links anew.
        if plan.reload || unbound {
            let taken = self.context.clock.start();
            self.begin("reload");
            while let Err(error) = self.context.systemd.reload().await {
                self.starter.patience("reload", None, error).await?;
            }
            self.outcome.changed = true;
            self.emit(
                Phase::Units,
                Event::new(Code::UnitsReloaded, "systemd reloaded its unit files")
                    .step("reload")
                    .duration(taken.elapsed())
                    .detail(),
            );
            self.end();
        }
        Ok(())
    }

    /// The [Install] section of a package may say that another unit of the node requires its own: docker flanneld, on CentOS 7 and
    /// Fedora. flanneld is restarted to mend routes, and ends by itself when its lease is gone; all containers would end with it. Who
    /// needs whom on this node, our drop-ins say.
    fn remove_requires_links(&mut self) -> std::result::Result<bool, Failure> {
        let mut is_any = false;
        let failed = |error: Error| file_failure("detaching units", &error);
        for other in &self.desired.units {
            let folder = format!("/etc/systemd/system/{}.requires", other.name);
            if self.context.root.facts(Path::new(&folder)).map_err(failed)?.is_none() {
                continue;
            }
            for unit in self.desired.units.iter().filter(|unit| !unit.applies_files) {
                is_any |= self.context.root.remove(&Path::new(&folder).join(&unit.name)).map_err(failed)?;
            }
        }
        Ok(is_any)
    }

    /// A component that the image lacks is found before a volume is touched.
    async fn find_units(&self, plan: &ChangePlan, observed: &Observed) -> std::result::Result<(), Failure> {
        for unit in self.desired.units.iter().filter(|unit| !unit.applies_files) {
            let known = observed.units.get(&unit.name);
            if !plan.reload && known.is_some_and(|state| !state.is_missing()) {
                continue;
            }
            let state = self.starter.inspect(&unit.name).await?;
            if state.is_missing() {
                return Err(super::units::missing(&unit.name));
            }
        }
        Ok(())
    }

    /// Volumes, what lies on them, certificates, units, gates, objects of the API; then the proof.
    async fn run_graph(&mut self, mut graph: Graph<'a>, observed: &mut Observed) -> std::result::Result<(), Failure> {
        let context = self.context;
        let workers = Workers::new(self.desired, context, self.starter);
        let mut running = FuturesUnordered::new();
        let mut fresh: BTreeSet<&str> = BTreeSet::new();
        let mut passed_gates: BTreeMap<&str, PassedGate<'_>> = BTreeMap::new();
        loop {
            let mut at_once = false;
            for step in graph.take_ready() {
                self.current_step = step.id();
                context.progress.begin(&self.current_step, graph.after(&self.current_step));
                match step {
                    // These never wait, so that they are done where they become ready.
                    GraphStep::Directory(directory) => self.write_deferred_directory(directory, observed)?,
                    GraphStep::File(file) => self.write_deferred_file(file, observed)?,
                    GraphStep::Volume(_)
                    | GraphStep::Certificates
                    | GraphStep::FlannelKey(_)
                    | GraphStep::EtcdMember(_)
                    | GraphStep::Unit(_)
                    | GraphStep::Gate(_)
                    | GraphStep::Object(_)
                    | GraphStep::AddOn(_) => {
                        let is_pending = matches!(step, GraphStep::Unit(unit) if self.is_restarted(&unit.name));
                        running.push(workers.perform(step, Task::Begin(is_pending)));
                        continue;
                    }
                }
                self.end();
                graph.finish(&self.current_step);
                at_once = true;
            }
            if at_once {
                continue;
            }
            context.progress.wait_for(graph.waits());
            let Some(Ended { step, result }) = running.next().await else {
                let replaced = self.recheck_processes(&workers.gates, &passed_gates, &fresh).await;
                if replaced.is_empty() {
                    return Ok(());
                }
                for gate in replaced {
                    let id = StepId::Gate(gate.name.clone());
                    context.progress.begin(&id, vec![StepId::Proof]);
                    running.push(workers.perform(GraphStep::Gate(gate), Task::Again));
                }
                continue;
            };
            self.current_step = step.id();
            match (result?, step) {
                (StepOutcome::Answers(gate_progress), GraphStep::Gate(_)) => {
                    graph.finish(&self.current_step);
                    running.push(workers.perform(step, Task::Goes(gate_progress)));
                    continue;
                }
                (StepOutcome::Passed(gate_progress), GraphStep::Gate(gate)) => {
                    passed_gates.insert(
                        &gate.name,
                        PassedGate { gate, process: gate_progress.process(), since: gate_progress.good_since().clone() },
                    );
                }
                (StepOutcome::Prepared(prepared), _) => self.commit(&prepared)?,
                (StepOutcome::Something, GraphStep::Unit(unit)) if !unit.applies_files => {
                    self.outcome.changed = true;
                    fresh.insert(&unit.name);
                }
                (StepOutcome::Something, _) => self.note_changed(step),
                (StepOutcome::Nothing | StepOutcome::Answers(_) | StepOutcome::Passed(_), _) => {}
            }
            if let GraphStep::Unit(unit) = step
                && (self.is_restarted(&unit.name) || fresh.contains(unit.name.as_str()))
            {
                self.note_restarted(&unit.name)?;
            }
            self.end();
            graph.finish(&self.current_step);
        }
    }

    /// The current step changed something.
    fn note_changed(&mut self, step: GraphStep<'_>) {
        self.outcome.changed = true;
        if let GraphStep::Object(_) = step {
            self.emit(Phase::Gates, Event::new(Code::ObjectWritten, format!("wrote {}", self.current_step)));
        }
    }

    /// Gates whose unit has another process than the one that passed: it died in the meantime. What this run started is given
    /// the time to show it.
    async fn recheck_processes(
        &mut self,
        gates: &Measure<'_, U, P>,
        passed_gates: &BTreeMap<&str, PassedGate<'a>>,
        fresh: &BTreeSet<&str>,
    ) -> Vec<&'a Gate> {
        if passed_gates.is_empty() {
            return Vec::new();
        }
        let newest = passed_gates.values().max_by_key(|passed| std::cmp::Reverse(passed.since.elapsed()));
        let after = newest.map(|passed| StepId::Gate(passed.gate.name.clone()));
        self.current_step = StepId::Proof;
        self.context.progress.begin(&self.current_step, after.into_iter().collect());
        let is_new = |passed: &&PassedGate<'_>| passed.gate.unit.as_deref().is_some_and(|unit| fresh.contains(unit));
        let young = passed_gates.values().filter(is_new).map(|passed| passed.since.elapsed()).min();
        let left = gates.deadline.saturating_sub(gates.running.elapsed());
        let rest = young.map_or(Duration::ZERO, |young| self.context.stability_period.saturating_sub(young)).min(left);
        if !rest.is_zero() {
            self.context.clock.wait(rest).await;
        }
        let mut replaced = Vec::new();
        for PassedGate { gate, process, .. } in passed_gates.values() {
            // A bus that is away for a moment says nothing of a unit.
            if gates.process_now(gate).await.is_ok_and(|now| now != *process) {
                replaced.push(*gate);
            }
        }
        self.end();
        replaced
    }

    /// Puts certificates in place; who reads a changed one has a restart pending before.
    fn commit(&mut self, prepared: &Prepared<C::Record>) -> std::result::Result<(), Failure> {
        self.note_restarts(prepared.changes.iter().map(String::as_str).gather())?;
        self.context.certificates.commit(prepared)?;
        self.outcome.changed |= !prepared.sets.is_empty();
        Ok(())
    }

    /// A directory on something that was not there when the plan was made: it is looked at now.
    fn write_deferred_directory(&mut self, directory: &Directory, observed: &mut Observed) -> std::result::Result<(), Failure> {
        let seen =
            inspect(self.context.root, &directory.path, false).map_err(|error| file_failure("inspecting a directory", &error))?;
        match seen {
            Some(seen) => observed.directories.insert(directory.path.clone(), seen),
            None => observed.directories.remove(&directory.path),
        };
        match plan::directory_change(directory, observed) {
            Some(change) => self.directory(&change),
            None => Ok(()),
        }
    }

    fn write_deferred_file(&mut self, file: &File, observed: &mut Observed) -> std::result::Result<(), Failure> {
        let seen = inspect(self.context.root, &file.path, true).map_err(|error| file_failure("inspecting a file", &error))?;
        match seen {
            Some(seen) => observed.files.insert(file.path.clone(), seen),
            None => observed.files.remove(&file.path),
        };
        let Some(change) = plan::file_change(file, observed) else { return Ok(()) };
        if change.rewrites {
            self.note_restarts([file.path.as_str()].into_iter().gather())?;
        }
        self.file(&change)
    }

    fn directory(&mut self, change: &DirectoryChange) -> std::result::Result<(), Failure> {
        self.give(&change.path, &change.attributes, |root| write::directory(root, change))?;
        let verb = if change.new { "created directory" } else { "changed mode or owner of" };
        self.wrote(&format!("{verb} {}", change.path));
        Ok(())
    }

    fn file(&mut self, change: &FileChange) -> std::result::Result<(), Failure> {
        self.give(&change.path, &change.attributes, |root| write::file(root, change))?;
        let verb = if change.rewrites { "wrote" } else { "changed mode or owner of" };
        self.wrote(&format!("{verb} {}", change.path));
        Ok(())
    }

    fn wrote(&mut self, what: &str) {
        self.written += 1;
        self.emit(Phase::Files, Event::new(Code::FileWritten, what).detail());
    }

    fn give(
        &mut self,
        path: &str,
        attributes: &AttributeChange,
        write: impl FnOnce(&Tree) -> Result<()>,
    ) -> std::result::Result<(), Failure> {
        let step = StepId::File(path.to_owned());
        if !write::owner_is_known(attributes) {
            let owner = &attributes.owner;
            let cause = format!("{path} must belong to {}:{}, which does not exist on this machine", owner.user, owner.group);
            let remedy = format!("Create the user {} and the group {} in the image.", owner.user, owner.group);
            return Err(Failure::new(Code::FileFailed, step, cause).remedy(remedy));
        }
        self.outcome.changed = true;
        write(self.context.root).map_err(|error| Failure::from_error(Code::FileFailed, step, &error))
    }

    /// Notes that everybody who reads these files has a restart pending, before they change.
    fn note_restarts(&mut self, paths: BTreeSet<&str>) -> std::result::Result<(), Failure> {
        let readers = self.desired.readers(paths).map(|unit| unit.name.clone()).gather();
        let before = self.pending.len();
        self.mark_changed(readers)?;
        if self.pending.len() == before { Ok(()) } else { self.note() }
    }

    /// Something that these units read changes: whoever waited before is to be restarted, by this run or by the one that goes on with it.
    fn mark_changed(&mut self, units: BTreeSet<String>) -> std::result::Result<(), Failure> {
        // One that is held whatever changes goes on waiting.
        if self.context.restarts.held.is_empty() {
            pending::release(self.context.root, &units).map_err(|error| file_failure("recording pending restarts", &error))?;
        }
        self.pending.extend(units.iter().cloned());
        self.changed_units.extend(units);
        Ok(())
    }

    /// Whether a pending restart is made up for by this run.
    fn is_restarted(&self, unit: &str) -> bool {
        let SpecialRestarts { held, held_unless_changed, replaced, .. } = self.context.restarts;
        let is_held = held.contains(unit)
            || (held_unless_changed.contains(unit) && !self.changed_units.contains(unit) && !replaced.contains(unit));
        self.pending.contains(unit) && !is_held
    }

    fn note_restarted(&mut self, unit: &str) -> std::result::Result<(), Failure> {
        if self.pending.remove(unit) { self.note() } else { Ok(()) }
    }

    fn note(&self) -> std::result::Result<(), Failure> {
        // What is pending for a unit that is no longer desired is dropped. A repair may be of a part of the node.
        let is_desired = |name: &&String| self.desired.units.iter().any(|unit| unit.name == **name);
        let pending = self.pending.iter().filter(|name| self.context.update.is_none() || is_desired(name));
        let pending = pending.cloned().gather();
        pending::write(self.context.root, &pending).map_err(|error| file_failure("recording pending restarts", &error))
    }

    /// Begins a step that comes before the graph: after the one before it.
    fn begin(&mut self, step: impl Into<StepId>) {
        self.current_step = self.context.progress.begin_next(step);
    }

    fn end(&self) {
        self.context.progress.end(&self.current_step);
    }

    fn emit(&self, phase: Phase, event: Event) {
        self.context.progress.report().emit(event.phase(phase).generation(self.context.generation));
    }
}

/// A gate that passed, by which process, and since when that one answers.
struct PassedGate<'a> {
    gate: &'a Gate,
    process: Process,
    since: Stopwatch,
}

/// Who carries out the steps that may wait, each by itself.
struct Workers<'a, U, V, P, C> {
    desired: &'a Desired,
    context: &'a RunContext<'a, U, V, P, C>,
    starter: Starter<'a, U>,
    gates: Measure<'a, U, P>,
    flannel_key: FlannelConfigWaiter<'a, P>,
}

impl<'a, U: UnitManager, V: Volumes, P: Prober + Objects + PodNetwork + EtcdMembership, C: Certificates> Workers<'a, U, V, P, C> {
    fn new(desired: &'a Desired, context: &'a RunContext<'a, U, V, P, C>, starter: Starter<'a, U>) -> Self {
        let gates = Measure {
            root: context.root,
            units: context.systemd,
            prober: context.prober,
            clock: context.clock,
            progress: context.progress,
            generation: context.generation,
            running: starter.running,
            deadline: context.deadline,
            patience: context.patience,
            flanneld: context.flanneld,
        };
        let flannel_key = FlannelConfigWaiter {
            network: context.prober,
            flanneld: context.flanneld,
            clock: context.clock,
            progress: context.progress,
            generation: context.generation,
            running: starter.running,
            deadline: context.deadline,
        };
        Self { desired, context, starter, gates, flannel_key }
    }

    fn member_waiter(&self) -> MemberWaiter<'a, U, P> {
        MemberWaiter {
            members: self.context.prober,
            root: self.context.root,
            progress: self.context.progress,
            generation: self.context.generation,
            starter: self.starter,
            may_change: self.context.update.is_some(),
        }
    }

    /// Etcd's member that is this unit.
    fn member_of(&self, name: &str) -> Option<(&'a EtcdJoin, &'a Unit)> {
        let join = self.desired.etcd_join.as_deref().filter(|join| join.unit == name)?;
        Some((join, self.desired.units.iter().find(|unit| unit.name == name)?))
    }

    async fn perform(&self, step: GraphStep<'a>, task: Task) -> Ended<'a, C::Record> {
        Ended { step, result: self.carry_out(step, task).await }
    }

    /// Each kind of step has its future on the heap: as one future they would all be as large as that of a volume, and moving several of
    /// those took 200 KB of stack, which the daemon held from then on.
    async fn carry_out(&self, step: GraphStep<'a>, task: Task) -> std::result::Result<StepOutcome<C::Record>, Failure> {
        let (context, starter) = (self.context, self.starter);
        let left = starter.left();
        // Units and gates have deadlines of their own.
        if !matches!(step, GraphStep::Unit(_) | GraphStep::Gate(_)) {
            context.progress.give_up_after(&step.id(), left);
        }
        match step {
            GraphStep::Volume(volume) => {
                let bring_up = Box::pin(context.volumes.bring_up(volume, left));
                match context.clock.limit(left + GRACE, bring_up).await {
                    Some(result) => result.map(StepOutcome::from),
                    None => Err(volume_deadline_failure(volume, context.progress, context.generation)),
                }
            }
            GraphStep::Certificates => {
                let prepare = Box::pin(context.certificates.prepare(self.desired, left));
                let prepared = context.clock.limit(left + GRACE, prepare).await;
                let late = || Failure::new(Code::CertificatesFailed, step.id(), "they did not exist at the deadline");
                prepared.unwrap_or_else(|| Err(late())).map(StepOutcome::Prepared)
            }
            GraphStep::Unit(unit) => {
                let pending = matches!(task, Task::Begin(true));
                if unit.applies_files {
                    return Box::pin(starter.help(unit, pending)).await.map(StepOutcome::from);
                }
                let own = own_deadline(self.desired, unit).map(|own| own.saturating_mul(context.patience));
                let starter = starter.within(own);
                match self.member_of(&unit.name) {
                    Some((join, _)) => {
                        Box::pin(MemberWaiter { starter, ..self.member_waiter() }.start(join, unit, pending)).await
                    }
                    None => Box::pin(starter.keep_running(unit, pending)).await,
                }
                .map(StepOutcome::from)
            }
            GraphStep::Gate(gate) => match task {
                Task::Goes(mut gate_progress) => {
                    Box::pin(self.gates.until_passed(gate, &mut gate_progress)).await.map(|()| StepOutcome::Passed(gate_progress))
                }
                task => {
                    let answer = Box::pin(self.gates.until_answer(gate, matches!(task, Task::Again)));
                    match gate.unit.as_ref().and_then(|unit| self.member_of(unit)) {
                        Some((join, unit)) => Box::pin(self.member_waiter().beside(join, unit, answer)).await,
                        None => answer.await,
                    }
                    .map(StepOutcome::Answers)
                }
            },
            GraphStep::Object(object) => {
                let failed = |error| Failure::from_error(Code::ObjectFailed, step.id(), &error);
                Box::pin(context.prober.ensure(object, left)).await.map(StepOutcome::from).map_err(failed)
            }
            GraphStep::AddOn(add_on) => Box::pin(self.apply(add_on, left)).await.map(StepOutcome::from),
            GraphStep::FlannelKey(store) => Box::pin(self.flannel_key.until_present(store)).await.map(StepOutcome::from),
            GraphStep::EtcdMember(join) => Box::pin(self.member_waiter().until_settled(join)).await.map(StepOutcome::from),
            GraphStep::Directory(_) | GraphStep::File(_) => Ok(StepOutcome::Nothing),
        }
    }
}

impl<U: UnitManager, V: Volumes, P: Prober + Objects + PodNetwork + EtcdMembership, C: Certificates> Workers<'_, U, V, P, C> {
    /// Applies an add-on; true if an object was written.
    async fn apply(&self, add_on: &AddOn, left: Duration) -> std::result::Result<bool, Failure> {
        let (context, step) = (self.context, StepId::AddOn(add_on.name.clone()));
        let emit = |event: Event| {
            context.progress.emit(&step, event.phase(Phase::Gates).generation(context.generation));
        };
        let waits = |error: &Error, attempt: u32, pause: Duration| {
            let cause = error.cause_first();
            let waits = Event::new(Code::ObjectWaiting, format!("{step} is not applied yet: {cause}"));
            emit(waits.attempt(attempt).next_try(pause).cause(cause));
        };
        let applied = context.prober.apply(add_on, context.root, left, &waits).await;
        let Applied { made, changed, unchanged } =
            applied.map_err(|error| Failure::from_error(Code::AddOnFailed, step.clone(), &error))?;
        if made + changed == 0 {
            return Ok(false);
        }
        let line = format!("applied {step}: {made} objects made, {changed} changed, {unchanged} as they should be");
        emit(Event::new(Code::ObjectWritten, line));
        Ok(true)
    }
}

/// How long a unit may take to come up: as long as its gate may then take to pass. One that fails again and again never gets
/// as far as its gate.
fn own_deadline(desired: &Desired, unit: &Unit) -> Option<Duration> {
    let gates = desired.gates.iter().filter(|gate| gate.unit.as_ref() == Some(&unit.name));
    gates.filter_map(|gate| gate.deadline).max()
}

/// A volume on which something hangs (a disk that does not answer, a program that does not end).
fn volume_deadline_failure(volume: &Volume, progress: &Progress, generation: u64) -> Failure {
    let mut failure =
        Failure::new(Code::VolumeFailed, "deadline", "not finished at the deadline").part_of(StepId::Volume(volume.role));
    failure.remedy = progress.remedy_of_failure(&failure.remedy);
    // It was dropped in the middle and cannot report itself.
    progress.report().emit(failure.event().generation(generation));
    failure
}

/// Paths whose owner does not exist yet.
#[derive(Debug, Default)]
struct Unowned {
    directories: BTreeSet<String>,
    files: BTreeSet<String>,
}

/// Helpers that need nothing but each other run before the graph, one after the other: modules before the sysctls that
/// they bring, both before the first service.
fn first_helpers(desired: &Desired) -> Vec<&Unit> {
    let is_helper = |name: &str| desired.units.iter().any(|unit| unit.applies_files && unit.name == name);
    let only_helpers = |unit: &&Unit| {
        unit.applies_files && unit.needs.iter().all(|need| matches!(need, Dependency::Unit(name) if is_helper(name)))
    };
    desired.units.iter().filter(only_helpers).collect()
}

fn file_failure(step: &'static str, error: &Error) -> Failure {
    Failure::from_error(Code::FileFailed, step, error)
}
