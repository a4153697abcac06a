//! `plan [--metadata FILE] [--root DIR] [--json]`: what would change; 2 if anything. On the machine itself also whether the installed
//! programs take it.

use std::path::Path;
use std::process::ExitCode;

use futures_util::future::{LocalBoxFuture, ready};

use super::{document, note, print};
use crate::clock::Clock;
use crate::converge::{self, offline};
use crate::daemon;
use crate::deploy::hooks;
use crate::desired::Desired;
use crate::error::{Error, Result};
use crate::files::Tree;
use crate::keepers::{certificates, membership};
use crate::kubernetes::{self, ImagePolicy, MachineFacts, NodeSpec, Preflight};
use crate::machine::installed::{self, InstalledPrograms, PATIENCE, UnitFiles, Verdicts};
use crate::machine::{add_ons, facts, replaced_programs};
use crate::process::{CommonOptions, exit, runtime};
use crate::programs::tool;
use crate::report::text::{escaped, json_page};
use crate::settings::Settings;
use crate::systemd::Systemd;

/// Prints the difference between the node and its parameters.
///
/// # Errors
/// If the parameters are wrong, an installed program is known not to take them, or the machine cannot be looked at.
pub fn run(options: &CommonOptions, settings: &Settings, root: Option<&Path>, json: bool) -> Result<ExitCode> {
    let facts = match root {
        Some(_) => MachineFacts::default(),
        None => facts::of_machine(&Tree::open(Path::new("/"))?),
    };
    let (spec, desired) = desired(options, settings, &facts)?;
    let mut verdicts = Verdicts::default();
    let mut first = Vec::new();
    let plan = if let Some(root) = root {
        offline::plan(&desired, root)?
    } else {
        let tree = Tree::open(Path::new("/"))?;
        let mut observed = runtime()?.block_on(async {
            let systemd = Systemd::connect().await?;
            let machine = InstalledPrograms { root: &tree, units: UnitFiles::Running(&systemd), spec: &spec, desired: &desired };
            verdicts = machine.judge(&ask_now, None).await;
            converge::observe(&desired, &tree, &systemd).await
        })?;
        let running = replaced_programs::visible_files(&tree, &replaced_programs::processes(observed.units.values()));
        let replaced = replaced_programs::replaced(&tree, observed.units.values(), &running);
        observed.pending.extend(replaced.iter().cloned());
        let inspection = certificates::inspect(&tree, &desired, Clock::system().now())?;
        observed.certificates = inspection.drift.iter().map(certificates::Drift::step).collect();
        let plan = converge::plan(&desired, &observed);
        // Without a state nothing was ever in place.
        let state = document::open_state(settings).ok().filter(|_| !plan.is_empty());
        if let Some(state) = &state {
            let snapshots = settings.snapshot_interval.is_some();
            first = daemon::foretold(state, snapshots, &spec, (&replaced, &plan.restart), &facts);
        }
        let irreversible = state.map(|state| daemon::parts_not_taken_back(&state, &desired, &facts)).unwrap_or_default();
        converge::ChangePlan { irreversible, ..plan }
    };
    print(&if json { json_page(&plan.document()) } else { plan.render() })?;
    for line in first {
        note(&line);
    }
    if root.is_none() {
        let tree = Tree::open(Path::new("/"))?;
        if let Some(join) = &desired.etcd_join
            && let Some(line) = membership::foretold(&tree, join)?
        {
            note(&line);
        }
        for add_on in &desired.add_ons {
            let objects = add_ons::read(&tree, add_on)?.len();
            note(&format!(
                "add-on {}: {objects} objects, of which the agent writes those that the API lacks or has otherwise",
                add_on.name
            ));
        }
    }
    for (_, verdict) in &verdicts.warnings {
        note(&format!("{}; {}", verdict.warning.as_deref().unwrap_or_default(), verdict.remedy));
    }
    verdicts.check()?;
    Ok(if plan.is_empty() { exit::OK } else { exit::pending() })
}

/// What a program says of its release.
pub(super) fn ask(path: &str) -> Result<String> {
    let answer = tool::ask_within(path, &["--version"], PATIENCE)?.unwrap_or_default();
    Ok(installed::release(answer.out, answer.err))
}

/// The same for who judges installed programs.
#[expect(clippy::needless_pass_by_value, reason = "who judges hands the path over")]
pub(super) fn ask_now(_: &'static str, path: String) -> LocalBoxFuture<'static, Result<String>> {
    Box::pin(ready(ask(&path)))
}

/// What the node's deployment asks for.
pub(crate) fn desired(options: &CommonOptions, settings: &Settings, facts: &MachineFacts) -> Result<(NodeSpec, Desired)> {
    let deployment = document::requested_node(options, settings)?;
    let policy = ImagePolicy::of(settings, |group| hooks::runs_code(group, None, &settings.deploy.hook_dirs));
    let spec = kubernetes::node_of(&deployment, &policy).map_err(|mistakes| {
        let all: Vec<String> = mistakes.iter().map(ToString::to_string).collect();
        Error::permanent(all.join("\n  ")).context(format!("checking the parameters of deployment {}", escaped(&deployment.name)))
    })?;
    let heat_params = document::warnings(options)?;
    let small = if spec.preflight == Preflight::Off { Vec::new() } else { kubernetes::preflight(&spec, facts) };
    for warning in heat_params.iter().chain(&spec.warnings).chain(&small) {
        note(&format!("{warning}"));
    }
    let desired = kubernetes::render(&spec, facts)?;
    Ok((spec, desired))
}
