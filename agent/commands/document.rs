//! The metadata document that a command works on: a file, or what the daemon last collected.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::clock::Clock;
use crate::collect::{Collector, read_document, read_file};
use crate::error::{Error, Result};
use crate::files::Tree;
use crate::http::Http;
use crate::kubernetes::Mistake;
use crate::kubernetes::parameters::heat_params::{self, HeatParams};
use crate::metadata::Deployment;
use crate::process::Options;
use crate::report::Report;
use crate::settings::Settings;
use crate::settings::source_name::SourceName;

/// The merged metadata with its deployments.
///
/// # Errors
/// If the file is unreadable or no JSON object or list; if nothing has been collected yet.
pub(crate) fn read(options: &Options, settings: &Settings) -> Result<Map<String, Value>> {
    if let Some(file) = &options.metadata {
        return match heat_params_in(file)? {
            Some(read) => Ok(as_document(&read.parameters)),
            None => read_document(file),
        };
    }
    merged(&collected(settings, &Report::kept())?)
}

/// What the reader of a heat-params file should know.
///
/// # Errors
/// As [`read`].
pub(crate) fn warnings(options: &Options) -> Result<Vec<Mistake>> {
    let read = options.metadata.as_deref().map(heat_params_in).transpose()?.flatten();
    Ok(read.map(|read| read.warnings).unwrap_or_default())
}

/// What is wrong with a heat-params file, each line by itself.
///
/// # Errors
/// As [`read`].
pub(crate) fn odd_lines(options: &Options) -> Result<Vec<Mistake>> {
    let read = options.metadata.as_deref().map(parsed_heat_params).transpose()?.flatten();
    Ok(read.and_then(std::result::Result::err).unwrap_or_default())
}

fn heat_params_in(file: &Path) -> Result<Option<HeatParams>> {
    parsed_heat_params(file)?.transpose().map_err(|mistakes| {
        let all: Vec<String> = mistakes.iter().map(ToString::to_string).collect();
        Error::permanent(all.join("\n  ")).context(format!("reading {}", file.display()))
    })
}

/// The parameters in Magnum's file, if the file is one (magnum-node.md 3).
fn parsed_heat_params(file: &Path) -> Result<Option<std::result::Result<HeatParams, Vec<Mistake>>>> {
    let bytes = read_file(file)?;
    let Ok(text) = std::str::from_utf8(&bytes) else { return Ok(None) };
    // The file itself, or Magnum's script that writes it.
    let text = match heat_params::of_script(text) {
        Some(file) => file,
        None if heat_params::is_heat_params(text) => text.to_owned(),
        None => return Ok(None),
    };
    Ok(Some(heat_params::parse(&text)))
}

/// A document with one deployment of the group kubernetes-node.
fn as_document(parameters: &Map<String, Value>) -> Map<String, Value> {
    let entry = json!({"id": "heat-params", "name": "heat-params", "group": "kubernetes-node", "config": parameters});
    Map::from_iter([("deployments".to_owned(), json!([entry]))])
}

/// What all sources said last.
///
/// # Errors
/// If they said nothing yet.
pub(crate) fn merged(collector: &Collector) -> Result<Map<String, Value>> {
    let document = collector.snapshot().document();
    if document.is_empty() { Err(nothing_collected()) } else { Ok(document) }
}

/// What one source said last.
///
/// # Errors
/// If it said nothing yet, or there is no such source.
pub(crate) fn of_source(settings: &Settings, source: &str) -> Result<Map<String, Value>> {
    let Some(name) = SourceName::from_word(source) else {
        let known = settings.sources.order.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(", ");
        return Err(Error::permanent(format!("there is no source {source:?}")).rule(format!("the sources in use are {known}")));
    };
    collected(settings, &Report::kept())?
        .said(name)
        .ok_or_else(|| nothing_collected().context(format!("reading the last document of source {source}")))
}

pub(crate) fn nothing_collected() -> Error {
    Error::permanent("nothing has been collected yet").remedy("start heat-node-agent.service, or pass a document with --metadata")
}

/// The state directory, for commands that look into it or give orders.
pub(crate) fn open_state(settings: &Settings) -> Result<Tree> {
    let shown = settings.state_dir.display();
    Tree::open(&settings.state_dir).map_err(|error| {
        if nix::unistd::geteuid().is_root() {
            error.remedy("the daemon creates the directory when it first starts: systemctl start heat-node-agent")
        } else {
            Error::permanent(format!("only root can read {shown}: run this command as root"))
        }
    })
}

/// What the daemon last collected, from its cache, and the boot copy of this machine. Asks nobody over the network.
pub(crate) fn collected(settings: &Settings, report: &Report) -> Result<Collector> {
    crate::daemon::check_instance(&settings.state_dir)?;
    collected_by_anyone(settings, report)
}

/// The same, also where that was another machine's agent, whose secrets are secrets here too.
pub(crate) fn collected_by_anyone(settings: &Settings, report: &Report) -> Result<Collector> {
    let root = Arc::new(Tree::open(Path::new("/"))?);
    let state = Arc::new(open_state(settings)?);
    let clock = Clock::system();
    let http = Http::new(settings.tls.clone(), Arc::clone(&root), clock.clone());
    let mut collector = Collector::new(settings.clone(), root, state, http, clock, report.clone(), None);
    collector.read_boot_copy();
    Ok(collector)
}

/// Every entry of the document's list.
pub(crate) fn entries(document: &Map<String, Value>) -> &[Value] {
    document.get("deployments").and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// The one kubernetes-node deployment that brings the node up.
///
/// # Errors
/// If there is none, or more than one.
pub(crate) fn node(document: &Map<String, Value>) -> Result<Deployment> {
    let mut nodes: Vec<Deployment> = entries(document)
        .iter()
        .filter_map(|entry| Deployment::parse(entry).ok().flatten())
        .filter(|one| one.group == "kubernetes-node" && matches!(one.action(), "CREATE" | "UPDATE" | ""))
        .collect();
    match (nodes.pop(), nodes.len()) {
        (Some(node), 0) => Ok(node),
        (None, _) => Err(Error::permanent("no kubernetes-node deployment in the metadata")
            .remedy("add an OS::Heat::SoftwareDeployment of an OS::Heat::SoftwareConfig with group: kubernetes-node")),
        (Some(_), _) => Err(Error::refused("more than one kubernetes-node deployment").rule("a server has at most one")),
    }
}
