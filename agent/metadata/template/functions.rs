//! What of a value is known before Heat has made it: literals, defaults of parameters, values of OS::Heat::Value.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::walk::{Location, Resource, Walk};
use crate::budgets::json as budget;
use crate::budgets::yaml::{Content, YamlNode};
use crate::report::text::shortened;

/// Characters of a name of the template that are shown.
const NAME: usize = 80;

/// Functions of every version of HOT: a map of one of these names alone is a call.
const FUNCTIONS: [&str; 26] = [
    "and",
    "contains",
    "digest",
    "equals",
    "filter",
    "get_attr",
    "get_file",
    "get_param",
    "get_resource",
    "if",
    "list_concat",
    "list_concat_unique",
    "list_join",
    "make_url",
    "map_merge",
    "map_replace",
    "not",
    "or",
    "repeat",
    "resource_facade",
    "str_replace",
    "str_replace_strict",
    "str_replace_vstrict",
    "str_split",
    "yaql",
    "Ref",
];
/// How far references are followed.
const FARTHEST: usize = 32;

/// A value, as far as the template says it.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Given {
    Known(Value),
    /// Only Heat knows it.
    Unknown,
}

impl Given {
    pub(super) fn or_null(&self) -> Value {
        match self {
            Self::Known(value) => value.clone(),
            Self::Unknown => Value::Null,
        }
    }
}

/// One of the values of a deployment.
#[derive(Debug)]
pub(super) struct Input {
    pub(super) name: String,
    pub(super) line: usize,
    pub(super) value: Given,
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Inputs {
    pub(super) given: Vec<Input>,
    /// Whether there may be others.
    pub(super) open: bool,
}

/// What a function stands in.
pub(super) struct Scope<'a> {
    pub(super) location: &'a Location,
    /// The word that stands for the number of a group's member.
    pub(super) index: Option<&'a str>,
    /// The function that gets an input, and the inputs, in a structured config.
    pub(super) inputs: Option<(&'a str, &'a BTreeMap<String, Given>)>,
}

impl<'a> Scope<'a> {
    pub(super) fn of(resource: &'a Resource<'_>) -> Self {
        Self { location: &resource.location, index: resource.index, inputs: None }
    }
}

/// Where a reference leads.
enum ReferenceTarget<'a> {
    To(&'a YamlNode),
    Nowhere,
}

/// Name and argument of a call.
pub(super) fn of(node: &YamlNode) -> Option<(&str, &YamlNode)> {
    match node.members() {
        Some([one]) if FUNCTIONS.contains(&one.name.as_str()) || one.name.starts_with("Fn::") => Some((&one.name, &one.value)),
        _ => None,
    }
}

impl<'a> Walk<'a> {
    /// The value of a node, if all of it is known.
    pub(super) fn resolve(&self, node: &'a YamlNode, scope: &Scope<'_>, depth: usize) -> Given {
        if depth > FARTHEST || !self.step() {
            return Given::Unknown;
        }
        if let Some((key, inputs)) = scope.inputs
            && let Some([one]) = node.members()
            && one.name == key
        {
            // An input without a value is null.
            let value = one.value.text().and_then(|name| inputs.get(name)).cloned();
            return self.within_budget(value.unwrap_or(Given::Known(Value::Null)));
        }
        if let Some((function, argument)) = of(node) {
            return match (function, self.target(function, argument, scope)) {
                (_, ReferenceTarget::To(target)) => {
                    self.default_of(function, argument, target).unwrap_or_else(|| self.resolve(target, scope, depth + 1))
                }
                ("map_merge", ReferenceTarget::Nowhere) => self.merge(argument, scope, depth),
                (_, ReferenceTarget::Nowhere) => {
                    self.check_nested(argument, scope, depth + 1);
                    Given::Unknown
                }
            };
        }
        match &node.content {
            Content::Scalar(Value::String(text)) => {
                let word = scope.index.filter(|word| !word.is_empty() && text.contains(word));
                self.within_budget(Given::Known(Value::String(word.map_or_else(|| text.clone(), |word| text.replace(word, "0")))))
            }
            Content::Scalar(value) => Given::Known(value.clone()),
            Content::List(items) => {
                let all: Vec<Given> = items.iter().map(|item| self.resolve(item, scope, depth + 1)).collect();
                let known: Option<Vec<Value>> = all.into_iter().map(known).collect();
                known.map_or(Given::Unknown, |items| Given::Known(Value::Array(items)))
            }
            Content::Map(members) => {
                let all: Vec<(String, Given)> =
                    members.iter().map(|member| (member.name.clone(), self.resolve(&member.value, scope, depth + 1))).collect();
                let known: Option<Map<String, Value>> =
                    all.into_iter().map(|(name, value)| Some((name, known(value)?))).collect();
                self.within_budget(known.map_or(Given::Unknown, |members| Given::Known(Value::Object(members))))
            }
        }
    }

    /// The values of a deployment, each by itself.
    pub(super) fn inputs(&self, node: &'a YamlNode, scope: &Scope<'_>, inputs: &mut Inputs, depth: usize) {
        if depth > FARTHEST || !self.step() {
            inputs.open = true;
            return;
        }
        if let Some((function, argument)) = of(node) {
            match (function, self.target(function, argument, scope), argument.items()) {
                (_, ReferenceTarget::To(target), _) => self.inputs(target, scope, inputs, depth + 1),
                ("map_merge", _, Some(maps)) => maps.iter().for_each(|map| self.inputs(map, scope, inputs, depth + 1)),
                _ => {
                    self.check_nested(argument, scope, depth + 1);
                    inputs.open = true;
                }
            }
            return;
        }
        let Some(members) = node.members() else {
            if !node.is_null() {
                let location = Location { line: node.line, ..scope.location.clone() };
                self.mistake(
                    location,
                    "input_values",
                    format!("is {}", node.kind()),
                    "a map of names and values",
                    "correct the template",
                );
            }
            return;
        };
        for member in members {
            let value = self.resolve(&member.value, scope, depth + 1);
            let input = Input { name: member.name.clone(), line: member.line, value };
            if !self.take(budget::weight_of_key(&input.name)) {
                self.too_large();
                return;
            }
            match inputs.given.iter_mut().find(|one| one.name == input.name) {
                Some(before) => *before = input,
                None => inputs.given.push(input),
            }
        }
    }

    /// What a reference refers to in the template itself. A name that is not there is a mistake.
    fn target(&self, function: &str, argument: &'a YamlNode, scope: &Scope<'_>) -> ReferenceTarget<'a> {
        let (name, path) = match argument.items() {
            Some([name, path @ ..]) => (name, path),
            Some([]) => return ReferenceTarget::Nowhere,
            None => (argument, &[][..]),
        };
        let Some(name) = name.text() else { return ReferenceTarget::Nowhere };
        let location = || Location { line: argument.line, ..scope.location.clone() };
        match function {
            "get_param" => {
                // What Heat itself gives.
                if name.starts_with("OS::") {
                    return ReferenceTarget::Nowhere;
                }
                let declared = self.parameters.and_then(|parameters| parameters.member(name));
                let Some(declared) = declared else {
                    self.mistake(
                        location(),
                        "get_param",
                        format!("the template has no parameter {:?}", short(name)),
                        "get_param names a parameter of the template",
                        "declare it in parameters, or correct the name",
                    );
                    return ReferenceTarget::Nowhere;
                };
                // An empty default stands for what is given when the stack is made.
                let default = declared.value.get("default").filter(|default| default.text() != Some(""));
                default.and_then(|default| follow_path(default, path)).map_or(ReferenceTarget::Nowhere, ReferenceTarget::To)
            }
            "get_resource" | "get_attr" => {
                let Some(resource) = self.resources.iter().find(|member| member.name == name) else {
                    self.mistake(
                        location(),
                        function,
                        format!("the template has no resource {:?}", short(name)),
                        format!("{function} names a resource of the template"),
                        "correct the name",
                    );
                    return ReferenceTarget::Nowhere;
                };
                let is_value = resource.value.get("type").and_then(YamlNode::text) == Some("OS::Heat::Value");
                let value = resource.value.get("properties").and_then(|properties| properties.get("value"));
                match path.split_first() {
                    Some((attribute, path)) if function == "get_attr" && is_value && attribute.text() == Some("value") => {
                        value.and_then(|value| follow_path(value, path)).map_or(ReferenceTarget::Nowhere, ReferenceTarget::To)
                    }
                    _ => ReferenceTarget::Nowhere,
                }
            }
            _ => ReferenceTarget::Nowhere,
        }
    }

    /// The default of a parameter whose type makes something else of its text.
    fn default_of(&self, function: &str, argument: &YamlNode, default: &YamlNode) -> Option<Given> {
        let name = argument.text().filter(|_| function == "get_param")?;
        let kind = self.parameters?.get(name)?.get("type")?.text()?;
        match (kind, default.text()?) {
            ("comma_delimited_list", text) => {
                Some(self.within_budget(Given::Known(text.split(',').map(|item| Value::from(item.trim())).collect())))
            }
            ("json", _) => Some(Given::Unknown),
            _ => None,
        }
    }

    fn merge(&self, argument: &'a YamlNode, scope: &Scope<'_>, depth: usize) -> Given {
        let mut all = Map::new();
        for map in argument.items().unwrap_or_default() {
            match self.resolve(map, scope, depth + 1) {
                Given::Known(Value::Object(map)) => all.extend(map),
                Given::Known(Value::Null) => {}
                _ => return Given::Unknown,
            }
        }
        Given::Known(Value::Object(all))
    }

    /// The arguments of a function that is not carried out: names in it that are not there are mistakes all the same.
    fn check_nested(&self, argument: &'a YamlNode, scope: &Scope<'_>, depth: usize) {
        if depth > FARTHEST {
            return;
        }
        if let Some((function, inner)) = of(argument) {
            let _ = self.target(function, inner, scope);
            return self.check_nested(inner, scope, depth + 1);
        }
        match &argument.content {
            Content::List(items) => items.iter().for_each(|item| self.check_nested(item, scope, depth + 1)),
            Content::Map(members) => members.iter().for_each(|member| self.check_nested(&member.value, scope, depth + 1)),
            Content::Scalar(_) => {}
        }
    }

    /// The value, if there is room for it.
    fn within_budget(&self, given: Given) -> Given {
        let Given::Known(value) = &given else { return given };
        if self.take(budget::weight(value)) {
            return given;
        }
        self.too_large();
        Given::Unknown
    }

    /// Whether one more node may be looked at: references of references are counted as often as they are followed.
    fn step(&self) -> bool {
        let may = self.take(budget::weight_of_item(""));
        if !may {
            self.too_large();
        }
        may
    }
}

fn known(given: Given) -> Option<Value> {
    if let Given::Known(value) = given { Some(value) } else { None }
}

/// The member that a path of names and numbers leads to.
fn follow_path<'a>(node: &'a YamlNode, path: &[YamlNode]) -> Option<&'a YamlNode> {
    path.iter().try_fold(node, |node, step| match &step.content {
        Content::Scalar(Value::String(name)) => node.get(name),
        Content::Scalar(Value::Number(number)) => node.items()?.get(usize::try_from(number.as_u64()?).ok()?),
        _ => None,
    })
}

/// A name of the template as it may be shown.
pub(super) fn short(name: &str) -> String {
    shortened(name, NAME)
}
