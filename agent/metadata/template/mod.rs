//! A Heat template (HOT), as far as it says what servers are given: each deployment as Heat would deliver it.
//!
//! In: the template as it was read. Out: [`Planned`] entries, and what of the template Heat itself would not take or takes otherwise
//! than it looks ([`TemplateProblem`]). What only Heat knows (parameters without a default, attributes, ids) is named as not known.
//! Never: a guess, or another file that is opened.

mod functions;
mod software;
mod walk;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::budgets::yaml::{Document, YamlNode};
use crate::budgets::{DEPLOYMENTS, DOCUMENT_MEMORY, json as budget};
use crate::gather::Gather;
use functions::{Given, Inputs, Scope, short};
use software::{Config, ResourceKind};
pub use walk::{Location, Planned, Template, TemplateProblem};
use walk::{Resource, VERSION, Walk};

/// How deep groups may stand in each other.
const DEEPEST_GROUP: usize = 16;

/// Whether the document is a template.
#[must_use]
pub fn is_template(document: &YamlNode) -> bool {
    document.member(VERSION).is_some()
}

/// Whether a text is likely meant as a template, before it is read.
#[must_use]
pub fn looks_like_template(text: &str) -> bool {
    let mut lines = text.lines().map(|line| line.trim_start_matches(['"', '\'']));
    lines.any(|line| line.starts_with(VERSION))
}

/// Reads a template.
#[must_use]
pub fn read(document: &Document) -> Template {
    let walk = Walk::new(&document.root);
    for (name, line) in &document.twice {
        walk.note(
            Location { resource: String::new(), line: *line },
            name,
            "is given twice",
            "Heat takes the last one",
            "remove one of them",
        );
    }
    walk.all();
    Template { planned: walk.planned.into_inner(), problems: walk.problems.into_inner() }
}

impl<'a> Walk<'a> {
    fn new(root: &'a YamlNode) -> Self {
        let walk = Self {
            parameters: root.get("parameters"),
            resources: root.get("resources").and_then(YamlNode::members).unwrap_or_default(),
            left: Cell::new(DOCUMENT_MEMORY),
            planned: RefCell::default(),
            problems: RefCell::default(),
        };
        for section in ["parameters", "resources"] {
            if let Some(value) = root.get(section).filter(|value| value.members().is_none()) {
                let location = Location { resource: String::new(), line: value.line };
                walk.mistake(location, section, format!("is {}", value.kind()), "a map of names", "correct the template");
            }
        }
        walk
    }

    fn all(&self) {
        let mut all = Vec::new();
        for member in self.resources {
            self.resource(&member.name, member.line, &member.value, None, &mut all);
        }
        let configs: BTreeMap<&str, Config<'_>> =
            all.iter().filter_map(|one| Some((one.location.resource.as_str(), Config::read(self, one)?))).gather();
        let mut used = BTreeSet::new();
        for one in &all {
            match ResourceKind::of(one.kind) {
                Some(ResourceKind::Deployment { .. }) => {
                    if let Some(name) = self.deployment(one, &configs) {
                        used.insert(name);
                    }
                }
                None if is_file(one.kind) => self.note(
                    one.location.clone(),
                    "type",
                    format!("{} is a template of its own, which is not looked into", one.kind),
                    "each template is checked by itself",
                    "run verify --metadata with that file too",
                ),
                Some(ResourceKind::Config) | None => {}
            }
        }
        for (name, config) in configs.iter().filter(|(name, _)| !used.contains(**name)) {
            self.plan(config.location.clone(), config, &Inputs { open: true, ..Inputs::default() }, None, "CREATE", name);
        }
    }

    /// The resource itself, and the one that it makes several of.
    fn resource(&self, name: &str, line: usize, value: &'a YamlNode, index: Option<&'a str>, all: &mut Vec<Resource<'a>>) {
        let location = Location { resource: name.to_owned(), line };
        let Some(kind) = value.get("type").and_then(YamlNode::text) else {
            return self.mistake(location, "type", "is missing", "a resource is a map with a type", "correct the template");
        };
        let properties = value.get("properties");
        let inner = match kind {
            "OS::Heat::ResourceGroup" => "resource_def",
            "OS::Heat::AutoScalingGroup" | "OS::Heat::InstanceGroup" => "resource",
            _ => "",
        };
        if let Some(member) =
            properties.and_then(|properties| properties.member(inner)).filter(|_| name.matches('.').count() < DEEPEST_GROUP)
        {
            let word = match properties.and_then(|properties| properties.get("index_var")) {
                None if inner == "resource_def" => Some("%index%"),
                given => given.and_then(YamlNode::text),
            };
            self.resource(&format!("{name}.{inner}"), member.line, &member.value, word.or(index), all);
        }
        all.push(Resource { location, kind, properties, index });
    }

    /// One deployment; gives the name of its config.
    fn deployment(&self, one: &Resource<'a>, configs: &BTreeMap<&'a str, Config<'a>>) -> Option<&'a str> {
        self.check_deployment(one);
        let property = |name: &str| one.properties.and_then(|properties| properties.get(name));
        let scope = Scope::of(one);
        let Some(config) = property("config") else {
            // A plain deployment without a config is one of a server's signal alone.
            if one.properties.is_none_or(|properties| properties.member("config").is_none()) {
                self.mistake(
                    one.location.clone(),
                    "config",
                    "is missing",
                    "a deployment deploys a config",
                    "give config: {get_resource: NAME}",
                );
            }
            return None;
        };
        let name = functions::of(config).filter(|(function, _)| *function == "get_resource").and_then(|(_, name)| name.text());
        let found = name.and_then(|name| configs.get_key_value(name));
        let Some((name, found)) = found else {
            let declared = name.is_none_or(|name| self.resources.iter().any(|member| member.name == name));
            if declared {
                self.note(
                    Location { line: config.line, ..one.location.clone() },
                    "config",
                    "is not a software config of this template, so the deployment is not checked",
                    "checked are deployments of OS::Heat::SoftwareConfig, StructuredConfig and SoftwareComponent of the same template",
                    "none, if the config is meant to come from elsewhere",
                );
            } else {
                let _ = self.resolve(config, &scope, 0);
            }
            return None;
        };
        let mut inputs = Inputs::default();
        if let Some(values) = property("input_values") {
            self.inputs(values, &scope, &mut inputs, 0);
        }
        let server = property("server").and_then(functions::of).filter(|(function, _)| *function == "get_resource");
        let server = server.and_then(|(_, name)| name.text()).map(str::to_owned);
        let actions = property("actions").and_then(YamlNode::items).unwrap_or_default();
        let actions: Vec<&str> = actions.iter().filter_map(YamlNode::text).collect();
        let action = if actions.is_empty() || actions.contains(&"CREATE") {
            "CREATE"
        } else {
            actions.first().copied().unwrap_or("CREATE")
        };
        let shown = property("name").and_then(YamlNode::text).unwrap_or(&one.location.resource).to_owned();
        let config =
            if let Some(key) = property("input_key").and_then(YamlNode::text) { found.with_key(key) } else { found.clone() };
        self.plan(one.location.clone(), &config, &inputs, server, action, &shown);
        Some(*name)
    }

    /// The entry that Heat would deliver.
    fn plan(&self, location: Location, config: &Config<'a>, inputs: &Inputs, server: Option<String>, action: &str, name: &str) {
        let Some(group) = &config.group else { return };
        let used = location != config.location;
        let mut planned = Planned {
            location,
            server,
            entry: Value::Null,
            unknown: BTreeSet::new(),
            open: inputs.open,
            locations: BTreeMap::new(),
        };
        let mut entries = Vec::new();
        let mut values = BTreeMap::new();
        for declared in &config.inputs {
            let given = inputs.given.iter().find(|one| one.name == declared.name);
            let (value, location) = match given {
                Some(one) => (one.value.clone(), Location { line: one.line, ..planned.location.clone() }),
                None => (declared.default.clone(), Location { line: declared.line, ..config.location.clone() }),
            };
            entries.push(json!({"name": declared.name, "type": declared.kind, "value": value.or_null()}));
            planned.add(&declared.name, value != Given::Unknown, location);
            values.insert(declared.name.clone(), value);
        }
        let undeclared: Vec<_> =
            inputs.given.iter().filter(|one| config.inputs.iter().all(|declared| declared.name != one.name)).collect();
        if used {
            self.undeclared(
                &planned.location,
                config,
                &undeclared.iter().map(|one| (one.name.as_str(), one.line)).collect::<Vec<_>>(),
            );
        }
        for one in undeclared {
            // Heat adds it as one of type String (heat-protocol.md 3.3).
            entries.push(json!({"name": one.name, "type": "String", "value": one.value.or_null()}));
            planned.add(&one.name, one.value != Given::Unknown, Location { line: one.line, ..planned.location.clone() });
            values.insert(one.name.clone(), one.value.clone());
        }
        entries.push(json!({"name": "deploy_action", "type": "String", "value": action}));
        let content = self.content(config, &values, &mut planned);
        planned.entry = json!({
            "id": planned.location.resource, "name": name, "group": group, "config": content, "options": {}, "inputs": entries,
            "outputs": config.outputs.iter().map(|output| json!({"name": output})).collect::<Vec<_>>(),
        });
        let mut all = self.planned.borrow_mut();
        if self.take(budget::weight(&planned.entry)) && all.len() < DEPLOYMENTS {
            all.push(planned);
        } else {
            drop(all);
            self.too_large();
        }
    }

    /// Heat hands an input on that the config does not declare. Where the config declares others it is likely a slip.
    fn undeclared(&self, location: &Location, config: &Config<'_>, undeclared: &[(&str, usize)]) {
        const RULE: &str = "Heat hands an undeclared input on as one of type String";
        let remedy = format!("declare it in the inputs of {}", config.location.resource);
        if config.inputs.is_empty() {
            if let Some((first, line)) = undeclared.first() {
                let problem = match undeclared.len() {
                    1 => format!("{} is not declared", short(first)),
                    count => format!("{count} inputs are not declared: {} …", short(first)),
                };
                self.note(Location { line: *line, ..location.clone() }, "input_values", problem, RULE, remedy);
            }
            return;
        }
        for (name, line) in undeclared {
            let problem = format!("is not declared in the inputs of {}", config.location.resource);
            self.note(Location { line: *line, ..location.clone() }, &short(name), problem, RULE, &*remedy);
        }
    }
}

/// Whether a type is a template's file.
fn is_file(kind: &str) -> bool {
    let end = kind.rsplit('.').next().unwrap_or_default();
    kind.contains("://") || matches!(end, "yaml" | "yml" | "template")
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
