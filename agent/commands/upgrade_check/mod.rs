//! `upgrade-check [VERSION] [--json]`: whether this node may go to another release of Kubernetes, and in which order its cluster must.
//!
//! In: the node in place, the newest deployment, what runs in the cluster. Out: a page of checks, each with its remedy. Never: a change of
//! anything. `measure.rs` looks, [`checks::upgrade`](crate::kubernetes::checks::upgrade) judges, `page.rs` shows.

mod measure;
mod page;

use std::path::Path;
use std::process::ExitCode;

use serde_json::Value;

use self::measure::{Measured, Node};
use self::page::Page;
use super::{document, print};
use crate::deploy::hooks;
use crate::error::{Error, Result};
use crate::files::Tree;
use crate::kubernetes::checks::upgrade::{self, Release, Row, Verdict};
use crate::kubernetes::{self, ImagePolicy, Mistake, NodeSpec, Role};
use crate::machine::facts;
use crate::metadata::{Deployment, Input};
use crate::process::{CommonOptions, exit};
use crate::settings::Settings;

/// Prints the checks: 0 if nothing is wrong, 1 if something is, 2 if something could not be checked.
///
/// # Errors
/// If the machine is no node of Kubernetes, or its state cannot be read.
pub fn run(options: &CommonOptions, settings: &Settings, version: Option<Release>, json: bool) -> Result<ExitCode> {
    crate::daemon::check_instance(&settings.state_dir)?;
    let state = document::open_state(settings)?;
    let (in_place, spec) = document::node_in_place(&state)?;
    let access = upgrade::api_access(&spec).ok_or_else(no_kubernetes)?;
    let requested = match document::requested_node(options, settings) {
        Ok(deployment) => deployment,
        // Where the release is named, the node in place says the rest.
        Err(_) if version.is_some() => in_place,
        Err(error) => return Err(error),
    };
    let policy = ImagePolicy::of(settings, |group| hooks::runs_code(group, None, &settings.deploy.hook_dirs));
    let target = version.or_else(|| tag_of(&requested)).ok_or_else(no_kubernetes)?;
    let asked = match version {
        Some(release) => with_tag(requested, release),
        None => requested,
    };
    let (future, mistakes) = match kubernetes::node_of(&asked, &policy) {
        Ok(future) => (Some(future), Vec::new()),
        Err(mistakes) => (None, mistakes),
    };
    let root = Tree::open(Path::new("/"))?;
    let node = Node { root: &root, settings, access: &access, spec: &spec, future: future.as_ref() };
    let facts = facts::of_machine(&root);
    let measured = measure::measure(&node, &facts)?;
    let rows = rows(target, &spec, future.as_ref(), &mistakes, &measured);
    let page = Page { target, order: upgrade::order(spec.role, target, &measured.servers), rows };
    print(&if json { page.document() } else { page.text() })?;
    Ok(match upgrade::verdict(&page.rows) {
        Verdict::Ok => exit::OK,
        Verdict::Problem => exit::FAILED,
        Verdict::Unknown => exit::pending(),
    })
}

fn no_kubernetes() -> Error {
    Error::refused("the node's parameters have no KUBE_TAG: there is no Kubernetes to upgrade")
}

/// Every check that this kind of node has.
fn rows(target: Release, spec: &NodeSpec, future: Option<&NodeSpec>, mistakes: &[Mistake], measured: &Measured) -> Vec<Row> {
    let (role, is_master) = (spec.role, spec.role == Role::Master);
    let mut rows = vec![
        upgrade::api_servers(role, target, &measured.servers),
        upgrade::kubelets(role, target, &measured.servers, &measured.kubelets),
    ];
    if is_master {
        rows.push(upgrade::controllers(target, &measured.installed));
    }
    rows.push(upgrade::proxy(target, &measured.installed));
    rows.push(upgrade::installed_programs(role, target, &measured.installed));
    rows.push(upgrade::other_programs(measured.others.as_ref()));
    let warnings = future.map(|future| future.warnings.as_slice()).unwrap_or_default();
    rows.push(upgrade::options(target.minor, mistakes, warnings, &spec.warnings));
    rows.push(upgrade::removed_apis(target.minor, &measured.objects, &measured.unreadable));
    if is_master {
        rows.push(upgrade::etcd_release(&measured.etcd, &measured.members));
        rows.push(upgrade::etcd_members(&measured.members));
        rows.push(upgrade::etcd_snapshot(&measured.snapshot));
    }
    rows.extend(upgrade::other_nodes(role));
    rows
}

const TAG: &str = "KUBE_TAG";

/// What a deployment asks for.
fn tag_of(deployment: &Deployment) -> Option<Release> {
    Release::of(kubernetes::readable_parameters(deployment).get(TAG)?)
}

/// The same deployment for another release.
fn with_tag(mut deployment: Deployment, release: Release) -> Deployment {
    let value = Value::from(release.tag());
    match deployment.inputs.iter_mut().find(|input| input.name.eq_ignore_ascii_case(TAG)) {
        Some(input) => input.value = value,
        None => deployment.inputs.push(Input { name: TAG.to_owned(), kind: "String".to_owned(), value, ..Input::default() }),
    }
    deployment
}
