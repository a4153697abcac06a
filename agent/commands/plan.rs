//! `plan [--metadata FILE] [--root DIR]`: what would change; 2 if anything.

use std::path::Path;
use std::process::ExitCode;

use super::{Options, document, exit, facts, note, print};
use crate::converge::{self, offline};
use crate::desired::Desired;
use crate::error::{Error, Result};
use crate::files::Tree;
use crate::kubernetes::{self, Facts, Preflight};
use crate::settings::Settings;
use crate::systemd::Systemd;

/// Prints the difference between the node and its parameters.
///
/// # Errors
/// If the parameters are wrong, or the machine cannot be looked at.
pub fn run(options: &Options, settings: &Settings, root: Option<&Path>) -> Result<ExitCode> {
    let facts = match root {
        Some(_) => Facts::default(),
        None => facts::of_machine(&Tree::open(Path::new("/"))?),
    };
    let desired = desired(options, settings, &facts)?;
    let plan = if let Some(root) = root {
        offline::plan(&desired, root)?
    } else {
        let tree = Tree::open(Path::new("/"))?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let observed = runtime.block_on(async { converge::observe(&desired, &tree, &Systemd::connect().await?).await })?;
        converge::plan(&desired, &observed)
    };
    print(&plan.render())?;
    Ok(if plan.is_empty() { exit::OK } else { exit::pending() })
}

/// What the node's deployment asks for.
pub(super) fn desired(options: &Options, settings: &Settings, facts: &Facts) -> Result<Desired> {
    let deployment = document::node(&document::read(options, settings)?)?;
    let spec = kubernetes::node_of(&deployment).map_err(|mistakes| {
        let all: Vec<String> = mistakes.iter().map(ToString::to_string).collect();
        Error::permanent(all.join("\n  ")).context(format!("checking the parameters of deployment {}", deployment.name))
    })?;
    let heat_params = document::warnings(options)?;
    let small = if spec.preflight == Preflight::Off { Vec::new() } else { kubernetes::preflight(&spec, facts) };
    for warning in heat_params.iter().chain(&spec.warnings).chain(&small) {
        note(&format!("{warning}"));
    }
    Ok(kubernetes::render(&spec, facts))
}
