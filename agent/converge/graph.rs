//! What waits for what: the steps of a `Desired` after its files, each startable when all its needs are done. Pure.

use std::collections::{BTreeMap, BTreeSet};

use super::plan::needs_of_file;
use crate::desired::{Desired, Need};

/// One step; the number is the place in the list of the `Desired`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Step {
    Volume(usize),
    Directory(usize),
    File(usize),
    Unit(usize),
    Gate(usize),
}

/// The steps that are left and what is done.
#[derive(Debug)]
pub(super) struct Graph {
    waiting: BTreeMap<Step, BTreeSet<Step>>,
}

impl Graph {
    /// All steps; directories and files only where they lie on something that has to come first. `done` are units
    /// that were dealt with before.
    ///
    /// # Errors
    /// In words, if a need names nothing, or steps wait for each other.
    pub(super) fn new(desired: &Desired, done: &BTreeSet<String>) -> Result<Self, String> {
        let mut waiting: BTreeMap<Step, BTreeSet<Need>> = BTreeMap::new();
        for (index, _) in desired.volumes.iter().enumerate() {
            waiting.insert(Step::Volume(index), BTreeSet::new());
        }
        for (index, directory) in desired.directories.iter().enumerate() {
            if !directory.needs.is_empty() {
                waiting.insert(Step::Directory(index), directory.needs.clone());
            }
        }
        let mut late_files = BTreeMap::new();
        for (index, file) in desired.files.iter().enumerate() {
            let needs = needs_of_file(desired, &file.path);
            if !needs.is_empty() {
                late_files.insert(file.path.as_str(), Step::File(index));
                waiting.insert(Step::File(index), needs);
            }
        }
        for (index, unit) in desired.units.iter().enumerate() {
            if !done.contains(&unit.name) {
                waiting.insert(Step::Unit(index), unit.needs.clone());
            }
        }
        for (index, gate) in desired.gates.iter().enumerate() {
            waiting.insert(Step::Gate(index), gate.needs.clone());
        }
        let mut steps: BTreeMap<Step, BTreeSet<Step>> = BTreeMap::new();
        for (step, needs) in &waiting {
            let mut befores = BTreeSet::new();
            for need in needs {
                let before =
                    find(desired, need).ok_or_else(|| format!("{} needs {need:?}, which nothing makes", name(desired, *step)))?;
                // A directory without needs and a unit that was dealt with are no steps of the graph: they are done.
                if waiting.contains_key(&before) {
                    befores.insert(before);
                }
            }
            if let Step::Unit(index) = step
                && let Some(unit) = desired.units.get(*index)
            {
                befores.extend(unit.restart_on.iter().filter_map(|path| late_files.get(path.as_str())));
            }
            steps.insert(*step, befores);
        }
        let graph = Self { waiting: steps };
        graph.check(desired)?;
        Ok(graph)
    }

    /// Takes out the steps that can start now.
    pub(super) fn take_ready(&mut self) -> Vec<Step> {
        let ready: Vec<Step> = self.waiting.iter().filter(|(_, befores)| befores.is_empty()).map(|(step, _)| *step).collect();
        for step in &ready {
            self.waiting.remove(step);
        }
        ready
    }

    /// Says that a step is done.
    pub(super) fn finish(&mut self, step: Step) {
        for befores in self.waiting.values_mut() {
            befores.remove(&step);
        }
    }

    fn check(&self, desired: &Desired) -> Result<(), String> {
        let mut dry = Self { waiting: self.waiting.clone() };
        loop {
            let ready = dry.take_ready();
            if ready.is_empty() {
                break;
            }
            for step in ready {
                dry.finish(step);
            }
        }
        if dry.waiting.is_empty() {
            return Ok(());
        }
        let names: Vec<String> = dry.waiting.keys().map(|step| name(desired, *step)).collect();
        Err(format!("these steps wait for each other: {}", names.join(", ")))
    }
}

/// The step that directories, files, enablement and the daemon-reload are together, for people.
pub(super) const FILES: &str = "files";

/// Every step that is shown, in the order of the `Desired`.
pub(super) fn names(desired: &Desired) -> Vec<String> {
    let volumes = (0..desired.volumes.len()).map(Step::Volume);
    let units = (0..desired.units.len()).map(Step::Unit);
    let gates = (0..desired.gates.len()).map(Step::Gate);
    let named = volumes.chain(units).chain(gates).map(|step| name(desired, step));
    std::iter::once(FILES.to_owned()).chain(named).collect()
}

/// `unit etcd.service`: the step in journal, timings and failures.
pub(super) fn name(desired: &Desired, step: Step) -> String {
    match step {
        Step::Volume(index) => named("volume", desired.volumes.get(index).map(|volume| volume.role.as_str())),
        Step::Directory(index) => named("directory", desired.directories.get(index).map(|directory| directory.path.as_str())),
        Step::File(index) => named("file", desired.files.get(index).map(|file| file.path.as_str())),
        Step::Unit(index) => named("unit", desired.units.get(index).map(|unit| unit.name.as_str())),
        Step::Gate(index) => named("gate", desired.gates.get(index).map(|gate| gate.name.as_str())),
    }
}

fn named(kind: &str, name: Option<&str>) -> String {
    format!("{kind} {}", name.unwrap_or("?"))
}

fn find(desired: &Desired, need: &Need) -> Option<Step> {
    match need {
        Need::Volume(role) => desired.volumes.iter().position(|volume| volume.role == *role).map(Step::Volume),
        Need::Directory(path) => desired.directories.iter().position(|directory| directory.path == *path).map(Step::Directory),
        Need::Unit(name) => desired.units.iter().position(|unit| unit.name == *name).map(Step::Unit),
        Need::Gate(name) => desired.gates.iter().position(|gate| gate.name == *name).map(Step::Gate),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::desired::Unit;

    fn unit(name: &str, needs: &[&str]) -> Unit {
        Unit {
            name: name.into(),
            enable: true,
            restart_on: BTreeSet::new(),
            needs: needs.iter().map(|need| Need::Unit((*need).to_owned())).collect(),
            applies_files: false,
        }
    }

    fn order(desired: &Desired, done: &[&str]) -> Result<Vec<Vec<String>>, String> {
        let mut graph = Graph::new(desired, &done.iter().map(|name| (*name).to_owned()).collect())?;
        let mut waves = Vec::new();
        loop {
            let ready = graph.take_ready();
            if ready.is_empty() {
                return Ok(waves);
            }
            waves.push(ready.iter().map(|step| name(desired, *step)).collect());
            for step in ready {
                graph.finish(step);
            }
        }
    }

    #[test]
    fn a_step_is_ready_when_all_its_needs_are_done() {
        let desired = Desired {
            units: vec![unit("c", &["a", "b"]), unit("a", &[]), unit("b", &["a"]), unit("d", &[])],
            ..Desired::default()
        };
        assert_eq!(order(&desired, &[]).unwrap(), [vec!["unit a", "unit d"], vec!["unit b"], vec!["unit c"]]);
        assert_eq!(order(&desired, &["a", "d"]).unwrap(), [["unit b"], ["unit c"]]);
    }

    #[test]
    fn needs_that_cannot_be_met_are_found_before_anything_is_touched() {
        let unknown = Desired { units: vec![unit("a", &["z"])], ..Desired::default() };
        assert!(order(&unknown, &[]).unwrap_err().starts_with("unit a needs Unit(\"z\")"));
        let circle = Desired { units: vec![unit("a", &["b"]), unit("b", &["a"]), unit("c", &[])], ..Desired::default() };
        assert_eq!(order(&circle, &[]).unwrap_err(), "these steps wait for each other: unit a, unit b");
    }
}
