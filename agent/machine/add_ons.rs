//! The add-ons of an image: what their manifests say in this cluster.
//!
//! In: `/usr/share/heat-node-agent/addons/NAME/*.yaml`, and the cluster's facts. Out: objects for the API, in the order in which they are
//! made, each with the place that it comes from; or the first mistake. Never: a question to the API.
//!
//! A manifest is read as YAML first and filled in afterwards, text by text: no fact can change what the manifest is.

use std::path::Path;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Map, Value, json};

use crate::budgets::yaml::{self, Content, YamlNode, YamlRejection};
use crate::budgets::{ADD_ON_BYTES, DOCUMENT_BYTES};
use crate::desired::{AddOn, Desired};
use crate::error::remedy::Remedy;
use crate::error::{Error, Result};
use crate::files::Tree;

/// Where they are, each in a directory of its name.
pub(crate) const PLACE: &str = "/usr/share/heat-node-agent/addons";
/// The label that names the add-on of an object.
pub(crate) const LABEL: &str = "heat-node-agent/add-on";
/// Kubernetes' own label of objects that are made once and then left to whoever edits them (kubernetes/kubernetes,
/// cluster/addons/addon-manager/README.md).
const MODE: &str = "addonmanager.kubernetes.io/mode";

/// An object that the API must hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Manifest {
    /// The file, and the line in it.
    pub(crate) place: String,
    /// `apps/v1`.
    pub(crate) api_version: String,
    /// `Deployment`.
    pub(crate) kind: String,
    /// Where it is of a kind with namespaces, and the manifest names one.
    pub(crate) namespace: Option<String>,
    /// Its name.
    pub(crate) name: String,
    /// The whole of it as JSON.
    pub(crate) body: String,
    /// Whether it is left as it is once it is there.
    pub(crate) made_once: bool,
}

impl Manifest {
    /// Where it lies if it is of a kind with namespaces: as with kubectl, `default` where it names none.
    pub(crate) fn namespace_or_default(&self) -> &str {
        self.namespace.as_deref().unwrap_or("default")
    }
}

/// Every object of an add-on, in the order in which they are made.
///
/// # Errors
/// Refused: the first mistake of the image.
pub(crate) fn read(root: &Tree, add_on: &AddOn) -> Result<Vec<Manifest>> {
    let folder = format!("{PLACE}/{}", add_on.name);
    if root.facts_followed(Path::new(&folder))?.is_none() {
        return Err(missing(root, add_on));
    }
    let mut manifests = Vec::new();
    let mut bytes = 0;
    for name in root.list(Path::new(&folder))? {
        let Some(name) = name.to_str().filter(|name| !name.starts_with('.') && name.strip_suffix(".yaml").is_some()) else {
            continue;
        };
        let file = format!("{folder}/{name}");
        // Manifests are applied as the cluster's administrator: whoever can write one is that.
        root.check_only_root_changes(Path::new(&file))?;
        let text = root.read(Path::new(&file), DOCUMENT_BYTES as u64)?.unwrap_or_default();
        let text = String::from_utf8(text).map_err(|_| mistake(&file, 0, "it is not UTF-8"))?;
        let documents = yaml::read_all(&text).map_err(|rejection| match rejection {
            YamlRejection::Yaml(line, what) => {
                mistake(&file, line, format!("{what}; a value that begins with {{{{ stands in quotes"))
            }
            too_large @ YamlRejection::TooLarge => Error::from(too_large).context(format!("reading {file}")),
        })?;
        for document in documents {
            take(document, &file, add_on, &mut manifests)?;
        }
        bytes = manifests.iter().map(|one: &Manifest| one.body.len()).sum();
        if bytes > ADD_ON_BYTES {
            break;
        }
    }
    if bytes > ADD_ON_BYTES {
        let cause = format!("the objects of {folder} take more than {} KiB", ADD_ON_BYTES / 1024);
        return Err(Error::refused(cause)
            .rule("the agent bounds what it holds in memory")
            .remedy("divide the add-on into several"));
    }
    if manifests.is_empty() {
        return Err(Error::refused(format!("{folder} has no manifest")).rule("manifests are files *.yaml").remedy(
            Remedy::stack_update_or(
                "install the add-on's manifests in the image; or take its name out of ADDONS and update the stack",
            ),
        ));
    }
    // Within one rank as they are written.
    manifests.sort_by_key(|one| rank(&one.kind));
    Ok(manifests)
}

/// The first mistake of each add-on that a node asks for.
pub(crate) fn mistakes(root: &Tree, desired: &Desired) -> Vec<Error> {
    desired.add_ons.iter().filter_map(|add_on| read(root, add_on).err()).collect()
}

fn missing(root: &Tree, add_on: &AddOn) -> Error {
    let names = root.list(Path::new(PLACE)).unwrap_or_default();
    let names: Vec<_> = names.iter().filter_map(|name| name.to_str()).collect();
    let known = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    Error::refused(format!("ADDONS names {}, but the image has no directory {PLACE}/{}", add_on.name, add_on.name))
        .rule(format!("an add-on is a directory of the image with its manifests; this one has: {known}"))
        .remedy(Remedy::stack_update_or("install the add-on in the image; or correct ADDONS and update the stack"))
}

fn mistake(file: &str, line: usize, cause: impl std::fmt::Display) -> Error {
    let place = if line > 0 { format!("{file}, line {line}") } else { file.to_owned() };
    Error::refused(cause).remedy("correct the manifest in the image").context(format!("reading {place}"))
}

/// One document: an object, or a list of them.
fn take(node: YamlNode, file: &str, add_on: &AddOn, manifests: &mut Vec<Manifest>) -> Result<()> {
    if node.is_null() {
        return Ok(());
    }
    let is_list = node.get("kind").and_then(YamlNode::text).is_some_and(|kind| kind.ends_with("List"));
    match node.content {
        Content::Map(members) if is_list => {
            let items = members.into_iter().find(|member| member.name == "items").map(|member| member.value.content);
            let Some(Content::List(items)) = items else {
                return Err(mistake(file, node.line, "the list has no items"));
            };
            items.into_iter().try_for_each(|item| take(item, file, add_on, manifests))
        }
        content => {
            manifests.push(object(YamlNode { line: node.line, content }, file, add_on)?);
            Ok(())
        }
    }
}

fn object(mut node: YamlNode, file: &str, add_on: &AddOn) -> Result<Manifest> {
    let wrong = |line: usize, cause: &str| mistake(file, line, cause);
    let is_secret = node.get("kind").and_then(YamlNode::text) == Some("Secret");
    fill(&mut node, Facts { add_on, is_secret }).map_err(|(line, fault)| match fault {
        Fault::Manifest(cause) => wrong(line, &cause),
        Fault::Cluster(cause) => wrong(line, &cause)
            .remedy(Remedy::stack_update("give the parameters, or take the add-on out of ADDONS, and update the stack")),
    })?;
    let line = node.line;
    let text = |parent: Option<&YamlNode>, key: &str| parent.and_then(|parent| parent.get(key)?.text()).map(str::to_owned);
    let metadata = node.get("metadata");
    let api_version = text(Some(&node), "apiVersion").filter(|text| is_path(text, "/"));
    let kind = text(Some(&node), "kind").filter(|text| is_path(text, ""));
    // RBAC's names may have colons (Kubernetes: "path segment names").
    let name = text(metadata, "name").filter(|text| is_path(text, ":"));
    let (Some(api_version), Some(kind), Some(name)) = (api_version, kind, name) else {
        return Err(wrong(line, "it is no object: apiVersion, kind and metadata.name must be names"));
    };
    let namespace = text(metadata, "namespace");
    if namespace.as_ref().is_some_and(|text| !is_path(text, "")) {
        return Err(wrong(line, "metadata.namespace is no name"));
    }
    let mut body = without_nulls(node.to_json());
    let Value::Object(members) = &mut body else { return Err(wrong(line, "it is no object")) };
    // The API's to say.
    members.remove("status");
    if kind == "Secret" {
        encode(members);
    }
    let labels = members
        .get_mut("metadata")
        .and_then(|metadata| metadata.as_object_mut()?.entry("labels").or_insert_with(|| json!({})).as_object_mut());
    let Some(labels) = labels else { return Err(wrong(line, "metadata.labels is no map")) };
    let made_once = labels.get(MODE).and_then(Value::as_str) == Some("EnsureExists");
    labels.insert(LABEL.to_owned(), Value::from(add_on.name.as_str()));
    let place = format!("{file}, line {line}");
    Ok(Manifest { place, api_version, kind, namespace, name, body: body.to_string(), made_once })
}

/// Whether a text means nothing else in the path of a URL.
fn is_path(text: &str, more: &str) -> bool {
    !text.is_empty()
        && text.len() <= 253
        && !text.contains("..")
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_') || more.contains(c))
}

/// The API never shows `stringData` again (Kubernetes API reference, core/v1 Secret): compared is what it becomes.
fn encode(members: &mut Map<String, Value>) {
    let Some(Value::Object(texts)) = members.remove("stringData") else { return };
    let data = members.entry("data").or_insert_with(|| json!({}));
    if let Value::Object(data) = data {
        let encoded = |value: Value| value.as_str().map_or(value.clone(), |text| Value::from(BASE64_STANDARD.encode(text)));
        data.extend(texts.into_iter().map(|(key, value)| (key, encoded(value))));
    }
}

/// A null asks for nothing; the API keeps none.
fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(members) => {
            let members = members.into_iter().filter(|(_, value)| !value.is_null());
            Value::Object(members.map(|(key, value)| (key, without_nulls(value))).collect())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(without_nulls).collect()),
        scalar => scalar,
    }
}

/// Namespaces and definitions of resources before what lies in them, rights and configuration before who starts with them, and webhooks
/// last: from then on each request waits for them.
fn rank(kind: &str) -> u8 {
    match kind {
        "Namespace" => 0,
        "CustomResourceDefinition" => 1,
        "ServiceAccount" | "ClusterRole" | "ClusterRoleBinding" | "Role" | "RoleBinding" => 2,
        "ConfigMap" | "Secret" | "PriorityClass" | "StorageClass" => 3,
        "MutatingWebhookConfiguration" | "ValidatingWebhookConfiguration" => 5,
        _ => 4,
    }
}

/// What an object may name.
#[derive(Clone, Copy)]
struct Facts<'a> {
    add_on: &'a AddOn,
    is_secret: bool,
}

/// Why a text cannot be filled in.
enum Fault {
    /// The manifest is wrong.
    Manifest(String),
    /// The cluster lacks what it is for.
    Cluster(String),
}

impl<'a> Facts<'a> {
    /// The value of a fact, or why there is none.
    fn of<'t>(self, name: &str, default: Option<&'t str>) -> std::result::Result<&'t str, Fault>
    where
        'a: 't,
    {
        if let Some(secret) = self.add_on.secrets.iter().find(|secret| secret.name == name) {
            return match (secret.value.as_str(), default) {
                _ if !self.is_secret => {
                    Err(Fault::Manifest(format!("{{{{{name}}}}} is a secret: only objects of kind Secret may name it")))
                }
                ("", None) => Err(Fault::Cluster(format!(
                    "{{{{{name}}}}} has no value in this cluster: it comes from {}",
                    secret.parameters
                ))),
                ("", Some(default)) => Ok(default),
                (value, _) => Ok(value),
            };
        }
        let facts = &self.add_on.facts;
        match (facts.iter().find(|(fact, _)| *fact == name).map(|(_, value)| value.as_str()), default) {
            (None, _) => {
                let secrets = self.add_on.secrets.iter().map(|secret| secret.name);
                let known: Vec<_> = facts.iter().map(|(fact, _)| *fact).chain(secrets).collect();
                Err(Fault::Manifest(format!("{{{{{name}}}}} is unknown; a manifest may name {}", known.join(", "))))
            }
            (Some(""), None) => {
                Err(Fault::Manifest(format!("{{{{{name}}}}} has no value in this cluster; {{{{{name}|TEXT}}}} gives it one")))
            }
            (Some(""), Some(default)) => Ok(default),
            (Some(value), _) => Ok(value),
        }
    }
}

/// Fills in every text of a manifest, names of members aside.
fn fill(node: &mut YamlNode, facts: Facts<'_>) -> std::result::Result<(), (usize, Fault)> {
    let line = node.line;
    match &mut node.content {
        Content::Scalar(Value::String(text)) => {
            if text.contains("{{") {
                *text = filled(text, facts).map_err(|fault| (line, fault))?;
            }
            Ok(())
        }
        Content::Scalar(_) => Ok(()),
        Content::List(items) => items.iter_mut().try_for_each(|item| fill(item, facts)),
        Content::Map(members) => members.iter_mut().try_for_each(|member| fill(&mut member.value, facts)),
    }
}

/// `{{name}}` is the fact of this name, `{{name|text}}` the text where the cluster has no such fact. What stands between braces and begins
/// with no lower-case name belongs to another template language, and stays.
fn filled(text: &str, facts: Facts<'_>) -> std::result::Result<String, Fault> {
    let (mut out, mut rest) = (String::with_capacity(text.len()), text);
    while let Some((before, behind)) = rest.split_once("{{") {
        out.push_str(before);
        let Some((tag, after)) = behind.split_once("}}") else {
            out.push_str("{{");
            rest = behind;
            continue;
        };
        let (name, default) = tag.split_once('|').map_or((tag, None), |(name, default)| (name, Some(default.trim())));
        let name = name.trim();
        let is_name = name.starts_with(|c: char| c.is_ascii_lowercase())
            && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_');
        if is_name {
            out.push_str(facts.of(name, default)?);
        } else {
            out.push_str("{{");
            out.push_str(tag);
            out.push_str("}}");
        }
        rest = after;
    }
    out.push_str(rest);
    Ok(out)
}

#[cfg(test)]
#[path = "add_ons_tests.rs"]
mod tests;
