//! The metadata document that a command works on: a file, or what the daemon last collected.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value};

use crate::budgets::yaml::{self, YamlNode};
use crate::budgets::{DOCUMENT_MEMORY, json};
use crate::clock::Clock;
use crate::collect::{Collector, as_document as document_of, is_of_file, is_yaml, read_document, read_file};
use crate::deploy::Generations;
use crate::error::{Context, Error, Result};
use crate::files::Tree;
use crate::http::Http;
use crate::kubernetes::parameters::heat_params::{self, HeatParams};
use crate::kubernetes::{self, ImagePolicy, Mistake, NodeSpec};
use crate::metadata::{Deployment, template};
use crate::process::CommonOptions;
use crate::report::Report;
use crate::settings::Settings;
use crate::settings::source_name::SourceName;

/// What a command was given.
#[derive(Debug)]
pub(crate) enum InputDocument {
    /// A server's metadata.
    Document(Map<String, Value>),
    /// A Heat template, which says what servers will get.
    Template(yaml::Document),
}

/// The merged metadata with its deployments.
///
/// # Errors
/// If the file is unreadable or no object or list; if it is a template; if nothing has been collected yet.
pub(crate) fn read(options: &CommonOptions, settings: &Settings) -> Result<Map<String, Value>> {
    match read_any(options, settings)? {
        InputDocument::Document(document) => Ok(document),
        InputDocument::Template(_) => Err(Error::refused("the file is a Heat template, and not the metadata of a server")
            .rule("this command takes a server's metadata, a list of deployments, or heat-params")
            .remedy("check a template by `heat-node-agent verify --metadata FILE`")),
    }
}

/// The same, or a template.
///
/// # Errors
/// As [`read`], but for templates.
pub(crate) fn read_any(options: &CommonOptions, settings: &Settings) -> Result<InputDocument> {
    let Some(file) = &options.metadata else {
        return merged(&collected(settings, &Report::kept())?).map(InputDocument::Document);
    };
    let bytes = read_file(file)?;
    let text = std::str::from_utf8(&bytes).unwrap_or_default();
    let doing = || format!("reading {}", file.display());
    if text.trim_start().starts_with('{') && text.contains("heat_template_version") {
        let root = json::value(&bytes, DOCUMENT_MEMORY).ok().map(YamlNode::of_json).filter(template::is_template);
        if let Some(root) = root {
            return Ok(InputDocument::Template(yaml::Document { root, twice: Vec::new() }));
        }
    }
    if template::looks_like_template(text) {
        let document = yaml::read(text).map_err(Error::from).context(doing)?;
        if template::is_template(&document.root) {
            return Ok(InputDocument::Template(document));
        }
    }
    if let Some(read) = heat_params_in(file)? {
        return Ok(InputDocument::Document(as_document(&read.parameters)));
    }
    if is_yaml(text) {
        let YamlNode { content, .. } = yaml::read(text).map_err(Error::from).context(doing)?.root;
        let root = YamlNode { line: 1, content };
        if ["AWSTemplateFormatVersion", "HeatTemplateFormatVersion"].iter().any(|key| root.member(key).is_some()) {
            return Err(Error::refused("a CloudFormation template is not read")
                .rule("a server's metadata, a list of deployments, heat-params, or a template with heat_template_version")
                .context(doing()));
        }
        if let Ok(document) = document_of(root.to_json()) {
            return Ok(InputDocument::Document(document));
        }
    }
    read_document(file).map(InputDocument::Document)
}

/// What the reader of a heat-params file should know.
///
/// # Errors
/// As [`read`].
pub(crate) fn warnings(options: &CommonOptions) -> Result<Vec<Mistake>> {
    let read = options.metadata.as_deref().map(heat_params_in).transpose()?.flatten();
    Ok(read.map(|read| read.warnings).unwrap_or_default())
}

/// What is wrong with a heat-params file, each line by itself.
///
/// # Errors
/// As [`read`].
pub(crate) fn suspicious_lines(options: &CommonOptions) -> Result<Vec<Mistake>> {
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
    // A template may hold the script.
    if template::looks_like_template(text) {
        return Ok(None);
    }
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
    let entry = serde_json::json!({"id": "heat-params", "name": "heat-params", "group": "kubernetes-node", "config": parameters});
    Map::from_iter([("deployments".to_owned(), Value::Array(vec![entry]))])
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
        .last_document(name)
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
    let mut collector =
        Collector::new(settings.clone(), root, state, http, clock, report.clone(), None).with_node_file(heat_params::read);
    collector.read_boot_copy();
    Ok(collector)
}

/// Every entry of the document's list.
pub(crate) fn entries(document: &Map<String, Value>) -> &[Value] {
    document.get("deployments").and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// The one that the node is configured by: of the document that was given, of Heat's metadata, or of the file that the settings name.
///
/// # Errors
/// As [`read`] and [`node`]; where that file cannot be read, why.
pub(crate) fn requested_node(options: &CommonOptions, settings: &Settings) -> Result<Deployment> {
    if options.metadata.is_some() {
        return node(&read(options, settings)?);
    }
    let collector = collected(settings, &Report::kept())?;
    match collector.node_file_failure() {
        Some(error) => Err(error),
        None => node(&merged(&collector)?),
    }
}

/// The node as it is in place: its deployment, and what that asks for. After an update that was refused or rolled back that is the generation
/// which the node has.
///
/// # Errors
/// If no node was ever asked for, or its parameters cannot be understood any more.
pub(crate) fn node_in_place(state: &Tree) -> Result<(Deployment, NodeSpec)> {
    let generation = Generations::inspect(state).ok_or_else(|| {
        Error::permanent("no node has been configured on this machine yet")
            .remedy("`heat-node-agent plan` shows what it will get; `heat-node-agent explain` shows what it is waiting for")
    })?;
    let (number, entry) = generation.reference().map_or((generation.number, generation.entry), |one| (one.generation, one.entry));
    let not_understood = |why: String| {
        Error::permanent(why)
            .context(format!("reading the parameters of generation {number}"))
            .remedy("update the stack: its next kubernetes-node deployment is read from scratch")
    };
    let deployment = Deployment::parse(&entry).ok().flatten();
    let deployment = deployment.ok_or_else(|| not_understood("they are not a kubernetes-node deployment".to_owned()))?;
    let spec = kubernetes::node_of(&deployment, &ImagePolicy::everything()).map_err(|mistakes| {
        let all: Vec<String> = mistakes.iter().map(ToString::to_string).collect();
        not_understood(all.join("\n  "))
    })?;
    Ok((deployment, spec))
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
    // Where the file configures the node no other one does.
    if nodes.iter().any(|one| is_of_file(&one.id)) {
        nodes.retain(|one| is_of_file(&one.id));
    }
    match (nodes.pop(), nodes.len()) {
        (Some(node), 0) => Ok(node),
        (None, _) => Err(Error::permanent("no kubernetes-node deployment in the metadata")
            .remedy("add an OS::Heat::SoftwareDeployment of an OS::Heat::SoftwareConfig with group: kubernetes-node")),
        (Some(_), _) => Err(Error::refused("more than one kubernetes-node deployment").rule("a server has at most one")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::files::Attributes;

    fn read_text(text: &str) -> Result<InputDocument> {
        let dir = tempfile::tempdir().unwrap();
        Tree::open(dir.path()).unwrap().write(Path::new("f"), text.as_bytes(), Attributes::mode(0o600)).unwrap();
        let options = CommonOptions { metadata: Some(dir.path().join("f")), ..CommonOptions::default() };
        assert_eq!(
            read(&options, &Settings::default()).is_ok(),
            matches!(read_any(&options, &Settings::default()), Ok(InputDocument::Document(_)))
        );
        read_any(&options, &Settings::default())
    }

    #[test]
    fn a_file_is_known_by_what_stands_in_it() {
        let entry = json!({"deployments": [{"id": "a", "group": "script"}]});
        for text in [
            "{\"deployments\": [{\"id\": \"a\", \"group\": \"script\"}]}",
            "[{\"id\": \"a\", \"group\": \"script\"}]",
            "# as the client prints it\ndeployments:\n- group: script\n  id: a\n",
            "- id: a\n  group: script\n",
        ] {
            let Ok(InputDocument::Document(document)) = read_text(text) else { panic!("{text}") };
            assert_eq!(Value::Object(document), entry, "{text}");
        }
        let Ok(InputDocument::Document(document)) = read_text("ROLE=\"master\"\n") else { panic!("heat-params") };
        assert_eq!(document["deployments"][0]["config"]["ROLE"], "master");
        let script = "      cat <<EOF >/etc/sysconfig/heat-params\n      ROLE=\"x\"\n      EOF\n";
        for text in [
            "heat_template_version: rocky\nresources: {}\n",
            "'heat_template_version': rocky\n",
            "{\"resources\": {}, \"heat_template_version\": \"rocky\"}",
            &format!("heat_template_version: rocky\nresources:\n  a:\n    config: |\n{script}"),
        ] {
            assert!(matches!(read_text(text), Ok(InputDocument::Template(_))), "{text}");
        }
        for (text, words) in [
            ("", "is empty, not JSON"),
            ("<html>", "an HTML page"),
            ("{\"a\"", "the JSON"),
            ("word", "broken at line 1"),
            ("a: [1\n", "the YAML is broken at line"),
            ("heat_template_version: rocky\na: [1\n", "the YAML is broken at line"),
            ("HeatTemplateFormatVersion: '2012-12-12'\n", "CloudFormation"),
        ] {
            let error = read_text(text).unwrap_err().to_string();
            assert!(error.contains(words) && error.contains("reading "), "{text}: {error}");
        }
    }
}
