//! What of a node's needs an image lacks: the units, programs, CNI plugins, modules and add-ons that bringing the node up asks for, before
//! there is a machine.
//!
//! In: a rendered node, and the image's root directory. Out: each thing that is not there, with the places where it was looked for. The
//! tables are those of the bring-up: the units of the `Desired`, the programs whose releases are asked (`installed.rs`), the program that
//! makes a volume. No systemd is asked: units are looked for where it does.

use std::collections::BTreeSet;
use std::path::Path;

use super::add_ons::mistakes;
use super::facts::{command_of, lacking_in_image};
use super::installed::{Ask, InstalledPrograms, PLACES, found, is_program, lacking_cni, unit_file};
use crate::desired::{Content, GateProbe};
use crate::error::Result;
use crate::files::Tree;
use crate::gather::Gather;
use crate::kubernetes::checks::installed::{command, programs};
use crate::storage::{driver, mkfs};
use crate::systemd::UNIT_DIRECTORIES;

/// What an image lacks, or has in a release that does not fit.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct MissingItem {
    /// The path or name of it.
    pub(crate) place: String,
    /// What is wrong, and where it was looked for.
    pub(crate) problem: String,
    /// Why it is needed.
    pub(crate) rule: String,
    /// What to do.
    pub(crate) remedy: String,
}

impl MissingItem {
    fn new(place: impl Into<String>, problem: impl Into<String>, rule: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { place: place.into(), problem: problem.into(), rule: rule.into(), remedy: remedy.into() }
    }
}

/// All that is not there, each once. Programs are asked for their releases by `ask`.
///
/// # Errors
/// If a file of the image cannot be read.
pub(crate) async fn missing(machine: &InstalledPrograms<'_>, ask: &Ask<'_>) -> Result<BTreeSet<MissingItem>> {
    let mut needs = BTreeSet::new();
    for unit in machine.desired.units.iter().filter(|unit| !unit.applies_files).map(|unit| unit.name.as_str()) {
        match of_unit(machine, unit) {
            Some(need) => drop(needs.insert(need)),
            None => needs.extend(of_command(machine, unit, &machine.text(unit).await?.unwrap_or_default())),
        }
    }
    needs.extend(lacking_cni(machine.root, machine.desired).into_iter().map(|path| {
        let rule = "the container runtime runs it for each pod: without it no pod gets a network";
        MissingItem::new(
            path,
            "the CNI plugin is missing",
            rule,
            "install the CNI project's plugins, and flannel's own for flannel",
        )
    }));
    needs.extend(of_volumes(machine));
    needs.extend(of_modules(machine));
    needs.extend(mistakes(machine.root, machine.desired).iter().map(|error| {
        let text = |text: Option<&str>| text.unwrap_or_default().to_owned();
        MissingItem::new("ADDONS", error.to_string(), text(error.broken_rule()), text(error.suggested_remedy()))
    }));
    let verdicts = machine.judge(ask, None).await;
    let lacking = verdicts.lacking.map(|(program, verdict)| (Some(program), verdict));
    for (program, verdict) in lacking.into_iter().chain(verdicts.refusals) {
        // Plugins are named one by one above.
        let Some(program) = program else { continue };
        let (unit, remedy) = (program.unit, &verdict.remedy);
        needs.extend(verdict.refused.iter().chain(&verdict.warning).map(|cause| match verdict.helper {
            Some(helper) => {
                let problem = format!("{cause}; looked for in {}", PLACES.join(", "));
                MissingItem::new(helper, problem, format!("{unit} runs it"), remedy)
            }
            None => MissingItem::new(program.name, cause, format!("{unit} gets only settings that its release supports"), remedy),
        }));
    }
    Ok(needs)
}

/// A unit that is in no place, or masked.
fn of_unit(machine: &InstalledPrograms<'_>, unit: &str) -> Option<MissingItem> {
    let ours = format!("{}/{unit}", UNIT_DIRECTORIES[0]);
    if machine.desired.file(&ours).is_some() {
        return None;
    }
    let rule = format!("the node runs {unit}");
    let Some(path) = unit_file(machine.root, unit) else {
        let problem = format!("the unit is missing; looked for in {}", UNIT_DIRECTORIES.join(", "));
        return Some(MissingItem::new(unit, problem, rule, format!("install the package that has {unit}")));
    };
    // systemd takes an empty file, and a link to /dev/null, for a mask.
    let target = machine.root.read_link(Path::new(&path)).ok().flatten();
    let unmask = format!("`systemctl unmask {unit}` in the image");
    let install = || format!("install the package that has {unit}");
    let (problem, remedy) = match machine.root.read(Path::new(&path), crate::files::READ_LIMIT) {
        _ if target.as_ref().is_some_and(|target| target == "/dev/null") => ("the unit is masked".to_owned(), unmask),
        Ok(Some(text)) if text.is_empty() => ("the unit is masked".to_owned(), unmask),
        Ok(Some(_)) => return None,
        Ok(None) => {
            let target = target.unwrap_or_default();
            (format!("the unit is a link to {}, which is missing", target.display()), install())
        }
        Err(error) => (format!("the unit cannot be read: {}", error.cause()), install()),
    };
    Some(MissingItem::new(path, problem, rule, remedy))
}

/// The programs that a unit's command line names and that cannot be run: the first word, and the component itself behind a shell.
fn of_command(machine: &InstalledPrograms<'_>, unit: &str, text: &str) -> Vec<MissingItem> {
    let line = command_of(text);
    let first =
        line.as_deref().and_then(|line| line.trim_start_matches(['@', '-', ':', '+', '!', '|']).split_whitespace().next());
    let mut component = programs(machine.spec, machine.desired).filter(|program| program.unit == unit);
    let component = component.find_map(|program| command(&program, text));
    let words: BTreeSet<&str> = first.into_iter().chain(component).gather();
    words.into_iter().filter_map(|word| of_program(machine.root, word, &format!("{unit} runs it"))).collect()
}

/// A program by its path or name that cannot be run.
fn of_program(root: &Tree, word: &str, rule: &str) -> Option<MissingItem> {
    // What systemd fills in is not known here.
    if word.contains(['%', '$']) {
        return None;
    }
    let remedy = || format!("install {} in the image", word.rsplit('/').next().unwrap_or(word));
    match found(root, word) {
        Some(path) if is_program(root, &path) => None,
        Some(path) => Some(MissingItem::new(path, "the program cannot be executed", rule, "chmod 0755")),
        None if word.starts_with('/') => Some(MissingItem::new(word, "the program is missing", rule, remedy())),
        None => {
            Some(MissingItem::new(word, format!("the program is missing; looked for in {}", PLACES.join(", ")), rule, remedy()))
        }
    }
}

/// What makes and grows the node's volumes.
fn of_volumes(machine: &InstalledPrograms<'_>) -> Vec<MissingItem> {
    let of = |volume: &crate::desired::Volume| {
        let grows = !matches!(volume.content, Content::ThinPool);
        let growing = grows.then(|| ("grows", mkfs::growing(volume.content.kind(), "", "")));
        let programs = [("makes", mkfs::argv(volume, "", "", false))].into_iter().chain(growing);
        let need = |(does, argv): (&str, Vec<String>)| {
            of_program(machine.root, argv.first()?, &format!("it {does} the {} volume", volume.role))
        };
        programs.filter_map(need).collect::<Vec<_>>()
    };
    machine.desired.volumes.iter().flat_map(of).collect()
}

/// Kernel modules of the runtime's storage driver and of volumes' file systems that no kernel of the image has.
fn of_modules(machine: &InstalledPrograms<'_>) -> Vec<MissingItem> {
    let stores = machine.desired.gates.iter().filter_map(|gate| match &gate.probe {
        GateProbe::Store(store) => {
            Some((driver::module(store.driver).0, format!("the storage driver {} needs it", store.driver.as_str())))
        }
        _ => None,
    });
    let volumes = machine.desired.volumes.iter().filter_map(|volume| match volume.content {
        Content::Xfs | Content::Btrfs => Some((volume.content.kind(), format!("the {} volume is mounted by it", volume.role))),
        Content::ThinPool => None,
    });
    let wanted: Vec<(&str, String)> = stores.chain(volumes).collect();
    let names: Vec<&str> = wanted.iter().map(|(name, _)| *name).collect();
    let lacking = lacking_in_image(machine.root, &names);
    let need = |(name, rule): &(&str, String)| {
        let remedy = "use an image whose kernel has it";
        MissingItem::new(*name, "no kernel of the image has this module; looked for in /lib/modules", rule, remedy)
    };
    wanted.iter().filter(|(name, _)| lacking.contains(name)).map(need).collect()
}

#[cfg(test)]
#[path = "image_tests.rs"]
mod tests;
