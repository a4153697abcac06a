//! `verify --image --metadata FILE`: whether the image has what the nodes of a document need.
//!
//! In: the image's root directory, and what a document or a template asks for. Out: each thing that is missing once, with the deployments
//! that need it. What is needed is what bringing the node up asks for (`machine/image.rs`).

use std::collections::{BTreeMap, BTreeSet};

use futures_util::future::ready;
use serde_json::{Map, Value};

use super::deployment::of_hook;
use super::finding::{Finding, Findings, of_mistake};
use super::image::TOOLS;
use super::{document, template};
use crate::daemon;
use crate::deploy::hooks;
use crate::error::Result;
use crate::files::Tree;
use crate::gather::Gather;
use crate::kubernetes::{ImagePolicy, MachineFacts, Role};
use crate::machine::facts;
use crate::machine::image::{MissingItem, missing};
use crate::machine::installed::{InstalledPrograms, UnitFiles};
use crate::metadata::Deployment;
use crate::metadata::template::Template;
use crate::process::runtime;
use crate::settings::Loaded;

/// What a document asks for.
pub(super) enum RequestedNodes {
    /// A server's metadata.
    Document(Map<String, Value>),
    /// What servers will get.
    Template(Template),
    /// It cannot be read; without --metadata, why.
    Nothing(String),
}

/// The image, and who is looked for.
struct Image<'a> {
    root: &'a Tree,
    facts: MachineFacts,
    loaded: &'a Loaded,
    /// What a program says of its release.
    ask: &'a dyn Fn(&str) -> Result<String>,
    /// Which deployments need what.
    needs: BTreeMap<MissingItem, BTreeSet<String>>,
    nodes: usize,
}

/// Finds what is missing. How many kubernetes-node deployments there are. `ask`: what a program says of its release.
///
/// # Errors
/// If a file of the image cannot be read.
pub(super) fn check(
    root: &Tree,
    asked: &RequestedNodes,
    loaded: &Loaded,
    ask: &dyn Fn(&str) -> Result<String>,
    findings: &mut Findings,
) -> Result<usize> {
    let mut image = Image { root, facts: facts::of_image(root), loaded, ask, needs: BTreeMap::new(), nodes: 0 };
    match asked {
        RequestedNodes::Document(document) => {
            // What is no deployment is a mistake of the document, which is named already.
            for deployment in document::entries(document).iter().filter_map(|entry| Deployment::parse(entry).ok().flatten()) {
                image.take(&deployment, [deployment.clone()], findings)?;
            }
        }
        RequestedNodes::Template(read) => {
            for planned in &read.planned {
                let Some(deployment) = Deployment::parse(&planned.entry).ok().flatten() else { continue };
                if !planned.open {
                    image.take(&deployment, template::ways(&deployment, planned), findings)?;
                } else if deployment.group == "kubernetes-node" {
                    image.nodes += 1;
                    findings.push(unknown(&deployment));
                }
            }
        }
        RequestedNodes::Nothing(_) => {}
    }
    findings.extend(image.needs.into_iter().map(|(need, who)| Finding {
        place: need.place,
        problem: format!("{}; needed by {}", need.problem, who.into_iter().collect::<Vec<_>>().join(", ")),
        rule: need.rule,
        remedy: need.remedy,
        ..Finding::default()
    }));
    Ok(image.nodes)
}

/// A node of which nothing can be said here.
fn unknown(deployment: &Deployment) -> Finding {
    Finding {
        place: format!("deployment {}", deployment.name),
        problem: "what it needs cannot be known from this template: its parameters are values that only Heat knows".to_owned(),
        rule: "role, version and runtime decide what an image must have".to_owned(),
        remedy: "give defaults to the template's parameters, or the metadata of a server".to_owned(),
        ..Finding::default()
    }
}

impl Image<'_> {
    /// One deployment, in each of the ways in which it may come.
    fn take(
        &mut self,
        deployment: &Deployment,
        ways: impl IntoIterator<Item = Deployment>,
        findings: &mut Findings,
    ) -> Result<()> {
        let name = format!("deployment {}", deployment.name);
        if deployment.group != "kubernetes-node" {
            // Scripts bring what they run, and were looked at with the document.
            let hook = if deployment.group == "script" { None } else { of_hook(deployment, self.loaded, Some(self.root), &name) };
            findings.extend(hook);
            return Ok(());
        }
        self.nodes += 1;
        let mut common: Option<BTreeSet<(MissingItem, String)>> = None;
        for way in ways {
            let Some(found) = self.of_node(&way, &name)? else { continue };
            // What is missing only for some values is not known to be needed.
            common = Some(match common {
                Some(common) => common.intersection(&found).cloned().gather(),
                None => found,
            });
        }
        // Of a document the mistakes were named; a template has values that only Heat knows.
        if common.is_none() && findings.mistakes == 0 {
            findings.push(unknown(deployment));
        }
        for (need, who) in common.into_iter().flatten() {
            self.needs.entry(need).or_default().insert(who);
        }
        Ok(())
    }

    /// What one node needs and the image lacks; nothing where its parameters are wrong, which was found with the document.
    fn of_node(&self, deployment: &Deployment, name: &str) -> Result<Option<BTreeSet<(MissingItem, String)>>> {
        let hook_dirs = &self.loaded.settings.deploy.hook_dirs;
        let policy = ImagePolicy::of(&self.loaded.settings, |group| hooks::runs_code(group, Some(self.root), hook_dirs));
        let Ok(plan) = daemon::understand(deployment, &self.facts, &policy) else { return Ok(None) };
        let (spec, desired) = plan.parts();
        let version = spec.kube_version.as_deref().map(|version| format!(", Kubernetes {version}")).unwrap_or_default();
        let role = match spec.role {
            Role::Master => "master",
            Role::Minion => "minion",
        };
        let who = format!("{name} ({role}{version})");
        let machine = InstalledPrograms { root: self.root, units: UnitFiles::Image, spec, desired };
        // What every node needs is looked for whatever the document says.
        let is_extra = |need: &MissingItem| !TOOLS.contains(&need.place.as_str());
        let mut needs = runtime()?.block_on(missing(&machine, &|_, path| Box::pin(ready((self.ask)(&path)))))?;
        needs.retain(is_extra);
        // What the kernel lacks, by the rules that refuse it on a machine.
        needs.extend(plan.lacking(&self.facts).into_iter().map(|mistake| {
            let Finding { key, problem, rule, remedy, .. } = of_mistake("", mistake);
            MissingItem { place: key, problem, rule, remedy }
        }));
        Ok(Some(needs.into_iter().map(|need| (need, who.clone())).gather()))
    }
}

#[cfg(test)]
#[path = "image_nodes_tests.rs"]
mod tests;
