//! Software configs and deployments: what Heat takes as their properties.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::functions::{self, Given, Scope, short};
use super::walk::{Location, Planned, Resource, Walk};
use crate::budgets::yaml::{Content, YamlNode};

/// Types of an input or output.
const TYPES: [&str; 5] = ["String", "Number", "CommaDelimitedList", "Json", "Boolean"];
/// Transports by which the agent can answer.
const TRANSPORTS: [&str; 5] = ["CFN_SIGNAL", "TEMP_URL_SIGNAL", "HEAT_SIGNAL", "ZAQAR_SIGNAL", "NO_SIGNAL"];
/// What Heat takes of an input, and of an output.
const OF_INPUT: &[&str] = &["name", "description", "type", "default", "replace_on_change"];
const OF_OUTPUT: &[&str] = &["name", "description", "type", "error_output"];
/// The group of a config that names none.
const UNGROUPED: &str = "Heat::Ungrouped";

/// What a resource type is for the walk.
pub(super) enum ResourceKind {
    Config,
    Deployment { group: bool, structured: bool },
}

impl ResourceKind {
    pub(super) fn of(kind: &str) -> Option<Self> {
        let deployment = |group, structured| Some(Self::Deployment { group, structured });
        match kind {
            "OS::Heat::SoftwareConfig" | "OS::Heat::StructuredConfig" | "OS::Heat::SoftwareComponent" => Some(Self::Config),
            "OS::Heat::SoftwareDeployment" => deployment(false, false),
            "OS::Heat::StructuredDeployment" => deployment(false, true),
            "OS::Heat::SoftwareDeploymentGroup" | "OS::Heat::SoftwareDeployments" => deployment(true, false),
            "OS::Heat::StructuredDeploymentGroup" | "OS::Heat::StructuredDeployments" => deployment(true, true),
            _ => None,
        }
    }
}

/// A declared input.
#[derive(Clone)]
pub(super) struct Declared {
    pub(super) name: String,
    pub(super) line: usize,
    pub(super) kind: String,
    pub(super) default: Given,
}

/// A software config.
#[derive(Clone)]
pub(super) struct Config<'a> {
    pub(super) location: Location,
    /// None where only Heat knows it.
    pub(super) group: Option<String>,
    pub(super) inputs: Vec<Declared>,
    pub(super) outputs: Vec<String>,
    form: Form,
    content: Option<&'a YamlNode>,
    index: Option<&'a str>,
    /// The function that gets an input.
    key: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Software,
    Structured,
    Component,
}

impl<'a> Config<'a> {
    /// The config, if the resource is one.
    pub(super) fn read(walk: &Walk<'a>, resource: &Resource<'a>) -> Option<Self> {
        let form = match resource.kind {
            "OS::Heat::SoftwareConfig" => Form::Software,
            "OS::Heat::StructuredConfig" => Form::Structured,
            "OS::Heat::SoftwareComponent" => Form::Component,
            _ => return None,
        };
        let property = |name: &str| resource.properties.and_then(|properties| properties.get(name));
        let scope = Scope::of(resource);
        let (allowed, content): (&[&str], _) = match form {
            Form::Component => (&["configs", "inputs", "outputs", "options"], property("configs")),
            _ => (&["group", "config", "inputs", "outputs", "options"], property("config")),
        };
        walk.names(resource.properties, &resource.location, "", allowed);
        let group = match (form, property("group")) {
            (Form::Component, _) => Some("component".to_owned()),
            (_, None) => Some(UNGROUPED.to_owned()),
            (_, Some(group)) => match walk.resolve(group, &scope, 0) {
                Given::Known(Value::String(group)) => Some(group),
                Given::Known(_) => {
                    walk.mistake(
                        at(&resource.location, group),
                        "group",
                        format!("is {}", group.kind()),
                        "a text",
                        "correct the template",
                    );
                    None
                }
                Given::Unknown => {
                    let rule = "a group that only Heat knows cannot be checked";
                    walk.note(
                        at(&resource.location, group),
                        "group",
                        "is not known here, so its deployments are not checked",
                        rule,
                        "none",
                    );
                    None
                }
            },
        };
        let mut inputs = Vec::new();
        for (item, name, kind) in walk.declared(resource, "inputs", OF_INPUT) {
            let default = item.get("default").map_or(Given::Known(Value::Null), |default| walk.resolve(default, &scope, 0));
            inputs.push(Declared { name: name.to_owned(), line: item.line, kind: kind.to_owned(), default });
        }
        let outputs = walk.declared(resource, "outputs", OF_OUTPUT);
        for (item, name, _) in &outputs {
            if let Some(value) = item.get("error_output").filter(|value| !is_bool(value)) {
                walk.mistake(
                    at(&resource.location, value),
                    name,
                    format!("error_output is {}", value.kind()),
                    "true or false",
                    "correct the template",
                );
            }
        }
        let outputs = outputs.into_iter().map(|(_, name, _)| name.to_owned()).collect();
        let (location, index) = (resource.location.clone(), resource.index);
        Some(Self { location, group, inputs, outputs, form, content, index, key: "get_input".to_owned() })
    }

    /// The same, where the deployment names the function that gets an input.
    pub(super) fn with_key(&self, key: &str) -> Self {
        Self { key: key.to_owned(), ..self.clone() }
    }
}

impl<'a> Walk<'a> {
    /// Items of `inputs` or `outputs` that have a name: the item, its name and its type.
    fn declared(&self, resource: &Resource<'a>, key: &str, allowed: &[&str]) -> Vec<(&'a YamlNode, &'a str, &'a str)> {
        let Some(list) = resource.properties.and_then(|properties| properties.get(key)) else { return Vec::new() };
        let rule = format!("{key} is a list of maps with a name, a type and more");
        // A function that makes the list.
        if functions::of(list).is_some() {
            return Vec::new();
        }
        let Some(items) = list.items() else {
            self.mistake(
                at(&resource.location, list),
                key,
                format!("is {}, not a list", list.kind()),
                rule,
                "correct the template",
            );
            return Vec::new();
        };
        let mut found = Vec::new();
        for (number, item) in items.iter().enumerate() {
            let location = at(&resource.location, item);
            let place = format!("{key}[{number}]");
            let Some(name) = item.get("name") else {
                let problem =
                    if item.members().is_some() { "has no name".to_owned() } else { format!("is {}, not a map", item.kind()) };
                self.mistake(location, &place, problem, &*rule, "give it a name");
                continue;
            };
            let Some(name) = name.text().filter(|name| !name.is_empty()) else {
                self.mistake(location, &place, "its name is not a text", &*rule, "give it a name");
                continue;
            };
            self.names(Some(item), &resource.location, &format!("{key}.{}: ", short(name)), allowed);
            let kind = item.get("type").and_then(YamlNode::text).unwrap_or("String");
            if let Some(given) = item
                .get("type")
                .filter(|given| functions::of(given).is_none() && !given.text().is_some_and(|kind| TYPES.contains(&kind)))
            {
                let problem =
                    format!("type is {}", given.text().map_or(given.kind().to_owned(), |kind| format!("{:?}", short(kind))));
                self.mistake(
                    at(&resource.location, given),
                    name,
                    problem,
                    format!("one of {}", TYPES.join(", ")),
                    "correct the type",
                );
            }
            found.push((item, name, kind));
        }
        found
    }

    /// Names that Heat does not take: it refuses the template.
    fn names(&self, map: Option<&'a YamlNode>, location: &Location, place: &str, allowed: &[&str]) {
        for member in map.and_then(YamlNode::members).unwrap_or_default() {
            if !allowed.contains(&member.name.as_str()) {
                let location = Location { line: member.line, ..location.clone() };
                let rule = format!("Heat takes {}", allowed.join(", "));
                self.mistake(
                    location,
                    &format!("{place}{}", short(&member.name)),
                    "is no property of this type",
                    rule,
                    "correct or remove it",
                );
            }
        }
    }

    pub(super) fn check_deployment(&self, resource: &Resource<'a>) {
        let Some(ResourceKind::Deployment { group, structured }) = ResourceKind::of(resource.kind) else { return };
        let mut allowed = vec!["actions", "config", "input_values", "name", "signal_transport"];
        allowed.push(if group { "servers" } else { "server" });
        if structured {
            allowed.extend(["input_key", "input_values_validate"]);
        }
        self.names(resource.properties, &resource.location, "", &allowed);
        let transport = resource.properties.and_then(|properties| properties.get("signal_transport"));
        if let Some((node, word)) = transport.and_then(|node| Some((node, node.text()?)))
            && !TRANSPORTS.contains(&word)
        {
            let rule = format!("the agent answers by {}", TRANSPORTS.join(", "));
            self.mistake(
                at(&resource.location, node),
                "signal_transport",
                format!("is {:?}", short(word)),
                rule,
                "use CFN_SIGNAL",
            );
        }
    }

    /// The config of the entry. What is not known of it leaves the entry open.
    pub(super) fn content(&self, config: &Config<'a>, values: &BTreeMap<String, Given>, planned: &mut Planned) -> Value {
        let location = |node: &YamlNode| Location { line: node.line, ..config.location.clone() };
        // What Heat makes of a config that is not given (heat-protocol.md 3.2).
        let Some(node) = config.content else {
            return if config.form == Form::Software { Value::from("") } else { json!({}) };
        };
        planned.locations.entry("CONFIG".to_owned()).or_insert_with(|| location(node));
        let scope = Scope { location: &config.location, index: config.index, inputs: None };
        match config.form {
            Form::Software => self.text(config, node, &scope, planned),
            Form::Structured => {
                let Some(members) = node.members().filter(|_| functions::of(node).is_none()) else {
                    planned.open = true;
                    return Value::Null;
                };
                let scope = Scope { inputs: Some((&config.key, values)), ..scope };
                let mut content = Map::new();
                for member in members {
                    let value = self.resolve(&member.value, &scope, 0);
                    if value == Given::Unknown {
                        planned.unknown.insert(member.name.clone());
                    }
                    let location = Location { line: member.line, ..config.location.clone() };
                    planned.locations.entry(member.name.to_ascii_uppercase()).or_insert(location);
                    content.insert(member.name.clone(), value.or_null());
                }
                Value::Object(content)
            }
            Form::Component => {
                let parts = node.items().unwrap_or_default().iter().map(|part| {
                    let actions = part.get("actions").map_or(Value::Null, YamlNode::to_json);
                    let content =
                        part.get("config").map_or(Value::from(""), |content| self.text(config, content, &scope, planned));
                    json!({"actions": actions, "tool": part.get("tool").map_or(Value::Null, YamlNode::to_json), "config": content})
                });
                json!({"configs": parts.collect::<Vec<_>>()})
            }
        }
    }

    /// A config that is text.
    fn text(&self, config: &Config<'a>, node: &'a YamlNode, scope: &Scope<'_>, planned: &mut Planned) -> Value {
        match self.resolve(node, scope, 0) {
            Given::Known(Value::Object(_) | Value::Array(_)) => {
                let rule = "Heat takes a text here";
                let remedy = "write it as a block of text (config: |), or use OS::Heat::StructuredConfig";
                self.mistake(at(&config.location, node), "config", format!("is {}", node.kind()), rule, remedy);
                planned.open = true;
                Value::from("")
            }
            Given::Known(value) => value,
            Given::Unknown => {
                planned.open = true;
                Value::from("")
            }
        }
    }
}

fn at(location: &Location, node: &YamlNode) -> Location {
    Location { line: node.line, ..location.clone() }
}

/// As Heat reads a boolean; one that only Heat knows passes.
fn is_bool(node: &YamlNode) -> bool {
    match &node.content {
        Content::Scalar(Value::Bool(_)) => true,
        Content::Scalar(Value::String(word)) => ["true", "false"].contains(&word.to_ascii_lowercase().as_str()),
        _ => functions::of(node).is_some(),
    }
}
