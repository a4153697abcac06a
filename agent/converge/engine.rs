//! Carries out a plan on the running machine.
//!
//! Order: directories and files (all contents are known before the first is written), enablement, one daemon-reload,
//! helper units; then volumes, what lies on them, units and gates, each as soon as its needs are done, side by side in
//! one task. The first fatal thing ends the run: what else runs is dropped, and nothing half-written stays.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt as _};

use super::gates::Measure;
use super::graph::{self, FILES, Graph, Step};
use super::observed::{self, Observed, look, observe_files};
use super::plan::{self, AttributeChange, DirectoryChange, FileChange, Plan, needs_of_file};
use super::units::Starter;
use super::{Converged, Failure, Outcome, Owners, Prober, Units, Volumes, pending, write};
use crate::clock::{Clock, Stopwatch};
use crate::desired::{Desired, Need, Unit, Volume};
use crate::error::{Error, Result};
use crate::files::Tree;
use crate::order::gather;
use crate::report::status::ConditionState;
use crate::report::{Code, Event, Phase, Report};

/// How long after the deadline a volume may still say itself what it waited for.
const VOLUME_GRACE: Duration = Duration::from_secs(5);

/// What a run works with.
#[derive(Debug)]
pub struct Context<'a, U, V, P> {
    /// The machine's root directory.
    pub root: &'a Tree,
    /// systemd.
    pub systemd: &'a U,
    /// Who brings up volumes.
    pub volumes: &'a V,
    /// Who asks services how they are.
    pub prober: &'a P,
    /// The clock.
    pub clock: &'a Clock,
    /// Who is told.
    pub report: &'a Report,
    /// How long the whole run may take.
    pub deadline: Duration,
    /// The generation that events carry.
    pub generation: u64,
}

/// Makes a `Desired` true and measures that it is.
///
/// Safe to drop at any moment and to run again: what was begun is found and finished.
///
/// # Errors
/// The first fatal thing: at once where waiting is of no use, else at the deadline.
pub async fn converge<U: Units, V: Volumes, P: Prober>(desired: &Desired, context: &Context<'_, U, V, P>) -> Outcome {
    let running = context.clock.start();
    let mut run = Run {
        desired,
        context,
        starter: Starter {
            units: context.systemd,
            clock: context.clock,
            report: context.report,
            generation: context.generation,
            running: &running,
            deadline: context.deadline,
        },
        running: &running,
        owed: BTreeSet::new(),
        outcome: Converged::default(),
    };
    let result = run.all().await;
    match result {
        Ok(()) => Ok(run.outcome),
        Err(failure) => {
            context.report.step_failed(&failure.step, context.clock.now(), &failure.cause, &failure.remedy);
            // Volumes tell of their own failures.
            if !failure.step.starts_with("volume ") {
                context.report.emit(failure.event().generation(context.generation));
            }
            Err(failure)
        }
    }
}

struct Run<'a, U, V, P> {
    desired: &'a Desired,
    context: &'a Context<'a, U, V, P>,
    starter: Starter<'a, U>,
    running: &'a Stopwatch,
    /// Units whose files changed and that were not restarted yet; noted on disk before a file is written.
    owed: BTreeSet<String>,
    outcome: Converged,
}

/// How a step ended.
struct Ended {
    step: Step,
    result: std::result::Result<bool, Failure>,
    millis: u64,
}

impl<U: Units, V: Volumes, P: Prober> Run<'_, U, V, P> {
    async fn all(&mut self) -> std::result::Result<(), Failure> {
        let first_helpers = first_helpers(self.desired);
        let done: BTreeSet<String> = gather(first_helpers.iter().map(|unit| unit.name.clone()));
        // Found before anything is touched: a mistake of who made the Desired.
        let graph = Graph::new(self.desired, &done).map_err(|cause| {
            Failure::new(Code::NodeFailed, "order of steps", cause).remedy("This is a bug of heat-node-agent: please report it.")
        })?;

        self.context.report.expect_steps(graph::names(self.desired));
        self.at(FILES, ConditionState::Waiting);

        let taken = self.context.clock.start();
        let mut observed =
            observe_files(self.desired, self.context.root).map_err(|error| file_failure("reading files", &error))?;
        let ask = async |observed: &mut Observed| {
            observed::observe_units(self.desired, self.context.root, self.context.systemd, observed).await
        };
        loop {
            match ask(&mut observed).await {
                Ok(()) => break,
                Err(error) => self.starter.patience("looking at units", None, error).await?,
            }
        }
        let plan = plan::plan(self.desired, &observed);
        self.owed.clone_from(&observed.pending);
        self.time("plan", &taken);

        let unowned = self.write_early(&plan)?;
        self.enable_and_reload(&plan).await?;
        self.at(FILES, ConditionState::Ok);
        self.find_units(&plan, &observed).await?;
        for unit in first_helpers {
            let taken = self.context.clock.start();
            if self.starter.help(unit, self.owed.contains(&unit.name)).await? {
                self.outcome.changed = true;
                self.paid(&unit.name)?;
                self.time(&format!("unit {}", unit.name), &taken);
            }
            self.at(&format!("unit {}", unit.name), ConditionState::Ok);
        }
        self.write_unowned(&unowned, &mut observed)?;
        self.walk(graph, &mut observed).await
    }

    /// Directories and files that wait for nothing; those whose owner does not exist yet are given back.
    fn write_early(&mut self, plan: &Plan) -> std::result::Result<Unowned, Failure> {
        let taken = self.context.clock.start();
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
        let changed: BTreeSet<&str> = gather(files.iter().filter(|change| change.rewrites).map(|change| change.path.as_str()));
        self.owe(&changed)?;
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
        self.time("files", &taken);
        Ok(unowned)
    }

    /// What waited for a helper (systemd-sysusers) to make its owner.
    fn write_unowned(&mut self, unowned: &Unowned, observed: &mut Observed) -> std::result::Result<(), Failure> {
        if unowned.directories.is_empty() && unowned.files.is_empty() {
            return Ok(());
        }
        observed.owners = Owners::read(self.context.root).map_err(|error| file_failure("reading users and groups", &error))?;
        for (index, directory) in self.desired.directories.iter().enumerate() {
            if unowned.directories.contains(&directory.path) {
                self.late_directory(index, observed)?;
            }
        }
        for (index, file) in self.desired.files.iter().enumerate() {
            if unowned.files.contains(&file.path) {
                self.late_file(index, observed)?;
            }
        }
        Ok(())
    }

    async fn enable_and_reload(&mut self, plan: &Plan) -> std::result::Result<(), Failure> {
        let taken = self.context.clock.start();
        for name in &plan.enable {
            if self.starter.enable(name).await? {
                self.outcome.changed = true;
                self.tell(Phase::Units, Event::new(Code::UnitEnabled, format!("enabled {name}")).unit(name));
            }
        }
        if !plan.enable.is_empty() {
            self.time("enable", &taken);
        }
        // After enabling, so that one reload is enough: systemd reads files and links anew.
        if plan.reload {
            let taken = self.context.clock.start();
            while let Err(error) = self.context.systemd.reload().await {
                self.starter.patience("reload", None, error).await?;
            }
            self.outcome.changed = true;
            self.tell(
                Phase::Units,
                Event::new(Code::UnitsReloaded, "systemd read its unit files again").duration(taken.elapsed()),
            );
            self.time("reload", &taken);
        }
        Ok(())
    }

    /// A component that the image lacks is found before a volume is touched.
    async fn find_units(&self, plan: &Plan, observed: &Observed) -> std::result::Result<(), Failure> {
        for unit in self.desired.units.iter().filter(|unit| !unit.applies_files) {
            let known = observed.units.get(&unit.name);
            if !plan.reload && known.is_some_and(|state| !state.is_missing()) {
                continue;
            }
            let state = self.starter.look(&unit.name).await?;
            if state.is_missing() {
                return Err(super::units::missing(&unit.name));
            }
        }
        Ok(())
    }

    /// Volumes, what lies on them, units, gates.
    async fn walk(&mut self, mut graph: Graph, observed: &mut Observed) -> std::result::Result<(), Failure> {
        let (desired, context, starter, running) = (self.desired, self.context, self.starter, self.running);
        let gates = Measure {
            root: context.root,
            units: context.systemd,
            prober: context.prober,
            clock: context.clock,
            report: context.report,
            generation: context.generation,
            running,
            deadline: context.deadline,
        };
        let perform = async |step: Step, owed: bool| {
            let taken = context.clock.start();
            context.report.step(&graph::name(desired, step), ConditionState::Waiting, context.clock.now());
            let result = match step {
                Step::Volume(index) => match desired.volumes.get(index) {
                    Some(volume) => {
                        let left = starter.left();
                        match context.clock.limit(left + VOLUME_GRACE, context.volumes.bring_up(volume, left)).await {
                            Some(result) => result,
                            None => Err(late_volume(volume, context.report, context.generation)),
                        }
                    }
                    None => Ok(false),
                },
                Step::Unit(index) => match desired.units.get(index) {
                    Some(unit) if unit.applies_files => starter.help(unit, owed).await,
                    Some(unit) => starter.keep_running(unit, owed).await,
                    None => Ok(false),
                },
                Step::Gate(index) => match desired.gates.get(index) {
                    Some(gate) => gates.until_green(gate).await.map(|()| false),
                    None => Ok(false),
                },
                // These never wait, so that they are done where they become ready.
                Step::Directory(_) | Step::File(_) => Ok(false),
            };
            Ended { step, result, millis: taken.millis() }
        };
        let mut running_steps = FuturesUnordered::new();
        loop {
            let mut at_once = false;
            for step in graph.take_ready() {
                match step {
                    Step::Directory(index) => self.late_directory(index, observed)?,
                    Step::File(index) => self.late_file(index, observed)?,
                    Step::Volume(_) | Step::Unit(_) | Step::Gate(_) => {
                        let owed = self.unit_of(step).is_some_and(|unit| self.owed.contains(&unit.name));
                        running_steps.push(perform(step, owed));
                        continue;
                    }
                }
                graph.finish(step);
                at_once = true;
            }
            if at_once {
                continue;
            }
            let Some(ended) = running_steps.next().await else { return Ok(()) };
            self.outcome.changed |= ended.result?;
            let name = graph::name(self.desired, ended.step);
            self.at(&name, ConditionState::Ok);
            self.outcome.timings.push((name, ended.millis));
            if let Some(unit) = self.unit_of(ended.step) {
                let name = unit.name.clone();
                self.paid(&name)?;
            }
            graph.finish(ended.step);
        }
    }

    fn unit_of(&self, step: Step) -> Option<&Unit> {
        match step {
            Step::Unit(index) => self.desired.units.get(index),
            _ => None,
        }
    }

    /// A directory on something that was not there when the plan was made: it is looked at now.
    fn late_directory(&mut self, index: usize, observed: &mut Observed) -> std::result::Result<(), Failure> {
        let Some(directory) = self.desired.directories.get(index) else { return Ok(()) };
        let seen =
            look(self.context.root, &directory.path, false).map_err(|error| file_failure("looking at a directory", &error))?;
        match seen {
            Some(seen) => observed.directories.insert(directory.path.clone(), seen),
            None => observed.directories.remove(&directory.path),
        };
        match plan::directory_change(directory, observed) {
            Some(change) => self.directory(&change),
            None => Ok(()),
        }
    }

    fn late_file(&mut self, index: usize, observed: &mut Observed) -> std::result::Result<(), Failure> {
        let Some(file) = self.desired.files.get(index) else { return Ok(()) };
        let seen = look(self.context.root, &file.path, true).map_err(|error| file_failure("looking at a file", &error))?;
        match seen {
            Some(seen) => observed.files.insert(file.path.clone(), seen),
            None => observed.files.remove(&file.path),
        };
        let Some(change) = plan::file_change(file, observed) else { return Ok(()) };
        if change.rewrites {
            self.owe(&gather([file.path.as_str()]))?;
        }
        self.file(&change)
    }

    fn directory(&mut self, change: &DirectoryChange) -> std::result::Result<(), Failure> {
        self.give(&change.path, &change.attributes, |root| write::directory(root, change))?;
        let verb = if change.new { "made directory" } else { "changed mode or owner of" };
        self.tell(Phase::Files, Event::new(Code::FileWritten, format!("{verb} {}", change.path)));
        Ok(())
    }

    fn file(&mut self, change: &FileChange) -> std::result::Result<(), Failure> {
        self.give(&change.path, &change.attributes, |root| write::file(root, change))?;
        let verb = if change.rewrites { "wrote" } else { "changed mode or owner of" };
        self.tell(Phase::Files, Event::new(Code::FileWritten, format!("{verb} {}", change.path)));
        Ok(())
    }

    fn give(
        &mut self,
        path: &str,
        attributes: &AttributeChange,
        write: impl FnOnce(&Tree) -> Result<()>,
    ) -> std::result::Result<(), Failure> {
        let step = format!("file {path}");
        if !write::owner_is_known(attributes) {
            let owner = &attributes.owner;
            let cause = format!("{path} is to belong to {}:{}, which this machine does not have", owner.user, owner.group);
            let remedy = format!("Build the user {} and the group {} into the image.", owner.user, owner.group);
            return Err(Failure::new(Code::FileFailed, step, cause).remedy(remedy));
        }
        self.outcome.changed = true;
        write(self.context.root).map_err(|error| Failure::from_error(Code::FileFailed, step, &error))
    }

    /// Notes that everybody who reads these files is owed a restart, before they change.
    fn owe(&mut self, paths: &BTreeSet<&str>) -> std::result::Result<(), Failure> {
        let readers = self.desired.units.iter().filter(|unit| unit.restart_on.iter().any(|path| paths.contains(path.as_str())));
        let before = self.owed.len();
        self.owed.extend(readers.map(|unit| unit.name.clone()));
        if self.owed.len() == before { Ok(()) } else { self.note() }
    }

    fn paid(&mut self, unit: &str) -> std::result::Result<(), Failure> {
        if self.owed.remove(unit) { self.note() } else { Ok(()) }
    }

    fn note(&self) -> std::result::Result<(), Failure> {
        // What is owed to a unit that is no longer asked for is nobody's.
        let owed = self.owed.iter().filter(|name| self.desired.units.iter().any(|unit| unit.name == **name));
        let owed = gather(owed.cloned());
        pending::write(self.context.root, &owed).map_err(|error| file_failure("noting restarts", &error))
    }

    fn time(&mut self, step: &str, taken: &Stopwatch) {
        self.outcome.timings.push((step.to_owned(), taken.millis()));
    }

    fn at(&self, step: &str, state: ConditionState) {
        self.context.report.step(step, state, self.context.clock.now());
    }

    fn tell(&self, phase: Phase, event: Event) {
        self.context.report.emit(event.phase(phase).generation(self.context.generation));
    }
}

/// A volume on which something hangs (a disk that does not answer, a program that does not end).
fn late_volume(volume: &Volume, report: &Report, generation: u64) -> Failure {
    let failure = Failure::new(Code::VolumeFailed, format!("volume {}: deadline", volume.role), "not done at the deadline");
    // It was dropped in the middle and cannot tell of itself.
    report.emit(failure.event().phase(Phase::Volume).generation(generation));
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
    let only_helpers =
        |unit: &&Unit| unit.applies_files && unit.needs.iter().all(|need| matches!(need, Need::Unit(name) if is_helper(name)));
    desired.units.iter().filter(only_helpers).collect()
}

fn file_failure(step: &str, error: &Error) -> Failure {
    Failure::from_error(Code::FileFailed, step, error)
}
