//! One entry of the `deployments` list (heat-protocol.md 3.2).

use std::fmt;

use serde_json::{Map, Value};

use super::input::Input;
use crate::http::redacted;
use crate::openstack::keystone::{Credentials, Scope};

/// Longest id, name, group or output name that is accepted, in characters.
const NAME_LIMIT: usize = 1024;
/// The same for people.
const NAME_RULE: &str = "a string of 1 to 1024 characters without NUL";

/// Mistakes that are named; the rest is counted.
const MISTAKES: usize = 20;

/// What HEAT_SIGNAL needs beside `deploy_auth_url`.
const HEAT_SIGNAL: [&str; 5] =
    ["deploy_user_id", "deploy_password", "deploy_project_id", "deploy_stack_id", "deploy_resource_name"];

/// A declared output.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Output {
    /// Name as in the template.
    pub name: String,
    /// Whether its presence in a result means failure (heat-protocol.md 7.0).
    pub error_output: bool,
    /// What else the entry says of it, for hooks.
    pub others: Map<String, Value>,
}

/// A well-formed deployment.
#[derive(Clone, Debug, PartialEq)]
pub struct Deployment {
    /// UUID of the derived config: new for every action, the key by which it runs at most once.
    pub id: String,
    /// Not unique.
    pub name: String,
    /// Which hook: after the selection of a component's part its `tool`.
    pub group: String,
    /// What the hook is to do: text for scripts, an object for structured configs.
    pub config: Value,
    /// Options of the hook.
    pub options: Map<String, Value>,
    /// Inputs in document order.
    pub inputs: Vec<Input>,
    /// Declared outputs.
    pub outputs: Vec<Output>,
    /// `YYYY-MM-DDTHH:MM:SSZ`, empty where absent.
    pub creation_time: String,
}

/// How Heat wants to hear of the result. Its Debug output holds no secret.
#[derive(Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(tag = "transport", rename_all = "snake_case")]
pub enum SignalTarget {
    /// CFN_SIGNAL and TEMP_URL_SIGNAL: a URL to be called verbatim.
    Url {
        /// Byte for byte as Heat gave it.
        url: String,
        /// `POST` or `PUT`.
        verb: String,
    },
    /// HEAT_SIGNAL: Heat's native API, with a token of the deployment's own user.
    Heat {
        /// Whose token.
        credentials: Credentials,
        /// `NAME/ID` of the stack, each part quoted.
        stack: String,
        /// The deployment resource, not quoted.
        resource: String,
    },
    /// NO_SIGNAL.
    None,
    /// One that cannot be sent: HEAT_SIGNAL or ZAQAR_SIGNAL with parts missing.
    Unsupported {
        /// What it is.
        name: String,
    },
}

impl SignalTarget {
    /// About the memory that it takes beside itself.
    #[must_use]
    pub fn weight(&self) -> usize {
        match self {
            Self::Url { url, verb } => url.len() + verb.len(),
            Self::Heat { credentials, stack, resource } => credentials.weight() + stack.len() + resource.len(),
            Self::None => 0,
            Self::Unsupported { name } => name.len(),
        }
    }
}

impl fmt::Debug for SignalTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Url { url, verb } => write!(f, "Url({verb} {})", redacted(url)),
            Self::Heat { credentials, stack, resource } => write!(f, "Heat({credentials:?} {stack} {resource})"),
            Self::None => f.write_str("None"),
            Self::Unsupported { name } => write!(f, "Unsupported({name})"),
        }
    }
}

/// An entry that cannot be run, with whatever is needed to report that to Heat.
#[derive(Clone, Debug, PartialEq)]
pub struct Malformed {
    /// Its id, if it has a usable one.
    pub id: Option<String>,
    /// Its name, if it has one.
    pub name: String,
    /// Every mistake: place and rule.
    pub mistakes: Vec<String>,
    /// Where to report it to Heat, if that much can be read.
    pub target: SignalTarget,
    /// Stack and resource: by these a newer run of the same resource is known.
    pub resource: Option<(String, String)>,
}

/// Inputs that are names, as the record of a deployment has them.
const NAMES: [&str; 6] =
    ["deploy_action", "deploy_signal_verb", "deploy_stack_id", "deploy_resource_name", "deploy_region_name", "deploy_server_id"];
/// Longest of the other inputs that say how Heat hears of the result, in bytes. No server takes a longer line of a request (Apache's
/// LimitRequestLine).
const WAY_LIMIT: usize = 8190;

/// Inputs by whose presence the transport of the signal is chosen (heat-protocol.md 3.4), and its verb.
const WAY_TO_HEAT: [&str; 4] = ["deploy_signal_id", "deploy_signal_verb", "deploy_queue_id", "deploy_auth_url"];

impl Deployment {
    /// Checks an entry.
    ///
    /// `Ok(None)` is a component without a part for the action: Heat waits for no signal (heat-protocol.md 3.7).
    ///
    /// # Errors
    /// Every mistake at once.
    pub fn parse(entry: &Value) -> Result<Option<Self>, Box<Malformed>> {
        Self::of(entry.clone())
    }

    /// The same of an entry that is not needed any more: its values are not copied.
    ///
    /// # Errors
    /// As [`Self::parse`].
    pub fn of(entry: Value) -> Result<Option<Self>, Box<Malformed>> {
        let Value::Object(mut entry) = entry else {
            let mistakes = vec!["the entry is not a JSON object".to_owned()];
            let (name, target) = (String::new(), SignalTarget::None);
            return Err(Box::new(Malformed { id: None, name, mistakes, target, resource: None }));
        };
        let mut mistakes = Vec::new();
        let id = text(&entry, "id", &mut mistakes);
        let name = optional_text(&entry, "name", &mut mistakes);
        let inputs = inputs(&mut entry, &mut mistakes);
        let outputs = outputs(&mut entry, &mut mistakes);
        let options = match entry.remove("options") {
            None | Some(Value::Null) => Map::new(),
            Some(Value::Object(options)) => options,
            Some(_) => {
                mistakes.push("options: not an object".to_owned());
                Map::new()
            }
        };
        let group = match entry.get("group") {
            None | Some(Value::Null) => "Heat::Ungrouped".to_owned(),
            Some(_) => text(&entry, "group", &mut mistakes),
        };
        let mut deployment = Self {
            id,
            name,
            group,
            config: entry.remove("config").unwrap_or(Value::Null),
            options,
            inputs,
            outputs,
            creation_time: entry
                .get("creation_time")
                .and_then(Value::as_str)
                .filter(|time| is_name(time))
                .unwrap_or_default()
                .to_owned(),
        };
        if deployment.group == "component" && !deployment.select_component(&mut mistakes) && mistakes.is_empty() {
            return Ok(None);
        }
        if deployment.group == "script" && !deployment.config.is_string() {
            mistakes.push("config: not a string, which the config of a script is".to_owned());
        }
        // Read as absent, it would say that Heat wants no signal.
        for name in WAY_TO_HEAT {
            if deployment.input(name).is_some_and(|value| !value.is_string()) {
                mistakes.push(format!("inputs: {name} is not a string"));
            }
        }
        mistakes.extend(deployment.oversized_inputs());
        let target = deployment.signal_target();
        if let SignalTarget::Unsupported { name } = &target {
            mistakes.push(format!("inputs: {name}"));
        }
        if mistakes.is_empty() {
            return Ok(Some(deployment));
        }
        let more = mistakes.len().saturating_sub(MISTAKES);
        if more > 0 {
            mistakes.truncate(MISTAKES);
            mistakes.push(format!("and {more} more"));
        }
        let resource = deployment.resource();
        let id = (!deployment.id.is_empty()).then_some(deployment.id);
        Err(Box::new(Malformed { id, name: deployment.name, mistakes, target, resource }))
    }

    /// The value of an input, JSON null counting as absent.
    #[must_use]
    pub fn input(&self, name: &str) -> Option<&Value> {
        self.inputs.iter().find(|input| input.name == name).map(|input| &input.value).filter(|value| !value.is_null())
    }

    /// A text input; empty counts as absent (heat-protocol.md 1.5, null handling).
    #[must_use]
    pub fn text_input(&self, name: &str) -> Option<&str> {
        self.input(name).and_then(Value::as_str).filter(|text| !text.is_empty())
    }

    /// `CREATE`, `UPDATE`, `DELETE`, `SUSPEND`, `RESUME`.
    #[must_use]
    pub fn action(&self) -> &str {
        self.text_input("deploy_action").unwrap_or_default()
    }

    /// What tells a newer run of the same deployment resource from another one: stack and resource.
    #[must_use]
    pub fn resource(&self) -> Option<(String, String)> {
        let name = |input| self.text_input(input).filter(|text| is_name(text)).map(str::to_owned);
        Some((name("deploy_stack_id")?, name("deploy_resource_name")?))
    }

    /// What the record of a deployment keeps of its inputs is bounded: one mistake for each that is too long. They are gone then, or the report
    /// of the mistake would hold them.
    fn oversized_inputs(&mut self) -> Vec<String> {
        let mut mistakes = Vec::new();
        for input in &mut self.inputs {
            let Some(text) = input.value.as_str().filter(|text| !text.is_empty()) else { continue };
            let is_way = WAY_TO_HEAT.iter().chain(&HEAT_SIGNAL).any(|name| *name == input.name);
            if NAMES.contains(&input.name.as_str()) && !is_name(text) {
                mistakes.push(format!("inputs: {} is not {NAME_RULE}", input.name));
            } else if is_way && text.len() > WAY_LIMIT {
                mistakes.push(format!("inputs: {} has more than {WAY_LIMIT} bytes", input.name));
            } else {
                continue;
            }
            input.value = Value::Null;
        }
        mistakes
    }

    /// Decided by presence, never by `deploy_signal_transport` (heat-protocol.md 3.4, 4.4).
    #[must_use]
    pub fn signal_target(&self) -> SignalTarget {
        if let Some(url) = self.text_input("deploy_signal_id") {
            // The replaced tools post whatever is not PUT (heat-protocol.md 4.4).
            let is_put = self.text_input("deploy_signal_verb").is_some_and(|verb| verb.trim().eq_ignore_ascii_case("PUT"));
            return SignalTarget::Url { url: url.to_owned(), verb: if is_put { "PUT" } else { "POST" }.to_owned() };
        }
        // ZAQAR_SIGNAL has the same parts and a queue: Heat's own API takes the result whatever the transport is (7.3).
        let Some(auth_url) = self.text_input("deploy_auth_url") else {
            return match self.text_input("deploy_queue_id") {
                Some(_) => SignalTarget::Unsupported { name: "ZAQAR_SIGNAL without deploy_auth_url".to_owned() },
                None => SignalTarget::None,
            };
        };
        let [Some(user_id), Some(password), Some(project_id), Some(stack), Some(resource)] =
            HEAT_SIGNAL.map(|name| self.text_input(name).map(str::to_owned))
        else {
            let lacking: Vec<_> = HEAT_SIGNAL.into_iter().filter(|name| self.text_input(name).is_none()).collect();
            return SignalTarget::Unsupported { name: format!("HEAT_SIGNAL without {}", lacking.join(", ")) };
        };
        let region = self.text_input("deploy_region_name").map(str::to_owned);
        let credentials =
            Credentials { auth_url: auth_url.to_owned(), user_id, password, scope: Scope::Project(project_id), region };
        SignalTarget::Heat { credentials, stack, resource }
    }

    /// The entry as a hook reads it on standard input (heat-protocol.md 4.3).
    #[must_use]
    pub fn to_hook_json(&self) -> Value {
        let texts = |pairs: &[(&str, &String)]| -> Map<String, Value> {
            pairs.iter().map(|(name, text)| ((*name).to_owned(), Value::String((*text).clone()))).collect()
        };
        // `json!` would copy each of the values once more.
        let inputs = self.inputs.iter().map(|input| {
            let mut members = texts(&[("name", &input.name), ("type", &input.kind)]);
            let is_as_text = input.kind == "String" && !input.value.is_string();
            let value = if is_as_text { Value::String(super::python_text(&input.value)) } else { input.value.clone() };
            members.insert("value".to_owned(), value);
            with(&input.others, members)
        });
        let outputs = self.outputs.iter().map(|output| {
            let mut members = texts(&[("name", &output.name)]);
            members.insert("type".to_owned(), Value::from("String"));
            members.insert("error_output".to_owned(), Value::Bool(output.error_output));
            with(&output.others, members)
        });
        let mut entry = texts(&[("id", &self.id), ("name", &self.name), ("group", &self.group)]);
        entry.insert("config".to_owned(), self.config.clone());
        entry.insert("options".to_owned(), Value::Object(self.options.clone()));
        entry.insert("creation_time".to_owned(), Value::String(self.creation_time.clone()));
        entry.insert("inputs".to_owned(), inputs.collect());
        entry.insert("outputs".to_owned(), outputs.collect());
        Value::Object(entry)
    }

    /// Replaces group and config by the component's part for the action. `false` if there is none.
    fn select_component(&mut self, mistakes: &mut Vec<String>) -> bool {
        let action = self.action().to_owned();
        let Some(parts) = self.config.get_mut("configs").and_then(Value::as_array_mut) else {
            mistakes.push("config.configs: not a list".to_owned());
            return false;
        };
        let part = parts.iter_mut().find(|part| {
            let actions = part.get("actions").and_then(Value::as_array);
            actions.is_some_and(|actions| actions.iter().any(|one| one.as_str() == Some(&action)))
        });
        let Some(part) = part else { return false };
        let Some(tool) = part.get("tool").and_then(Value::as_str) else {
            mistakes.push("config.configs: a part has no tool".to_owned());
            return false;
        };
        if !is_name(tool) {
            mistakes.push(format!("config.configs: a tool is not {NAME_RULE}"));
            return false;
        }
        let (tool, config) = (tool.to_owned(), part.get_mut("config").map_or(Value::Null, Value::take));
        self.group = tool;
        self.config = config;
        true
    }
}

fn text(entry: &Map<String, Value>, key: &str, mistakes: &mut Vec<String>) -> String {
    match entry.get(key) {
        Some(Value::String(text)) if is_name(text) => text.clone(),
        None | Some(Value::Null) => {
            mistakes.push(format!("{key}: missing"));
            String::new()
        }
        Some(_) => {
            mistakes.push(format!("{key}: not {NAME_RULE}"));
            String::new()
        }
    }
}

/// Whether a text can be a name: it is kept in records, and is part of file names and messages.
fn is_name(text: &str) -> bool {
    !text.is_empty() && text.chars().count() <= NAME_LIMIT && !text.contains('\0')
}

fn optional_text(entry: &Map<String, Value>, key: &str, mistakes: &mut Vec<String>) -> String {
    match entry.get(key) {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) if text.is_empty() => String::new(),
        Some(_) => text(entry, key, mistakes),
    }
}

fn list(entry: &mut Map<String, Value>, key: &str, mistakes: &mut Vec<String>) -> Vec<Value> {
    match entry.remove(key) {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(items)) => items,
        Some(_) => {
            mistakes.push(format!("{key}: not a list"));
            Vec::new()
        }
    }
}

/// What is known of an item, and what else the entry says of it.
fn with(others: &Map<String, Value>, mut members: Map<String, Value>) -> Value {
    members.extend(others.iter().map(|(name, value)| (name.clone(), value.clone())));
    Value::Object(members)
}

/// What an item says beside these members.
fn others(item: Value, known: &[&str]) -> Map<String, Value> {
    let Value::Object(mut members) = item else { return Map::new() };
    members.retain(|name, _| !known.contains(&name.as_str()));
    members
}

fn inputs(entry: &mut Map<String, Value>, mistakes: &mut Vec<String>) -> Vec<Input> {
    let mut inputs: Vec<Input> = Vec::new();
    for (at, mut item) in list(entry, "inputs", mistakes).into_iter().enumerate() {
        let name = item.get("name").and_then(Value::as_str).filter(|name| !name.is_empty()).map(str::to_owned);
        let Some(name) = name else {
            mistakes.push(format!("inputs[{at}]: no name"));
            continue;
        };
        let kind = item.get("type").and_then(Value::as_str).unwrap_or("String").to_owned();
        let value = item.get_mut("value").map_or(Value::Null, Value::take);
        inputs.push(Input { name, kind, value, others: others(item, &["name", "type", "value"]) });
    }
    inputs
}

fn outputs(entry: &mut Map<String, Value>, mistakes: &mut Vec<String>) -> Vec<Output> {
    let mut outputs = Vec::new();
    for (at, item) in list(entry, "outputs", mistakes).into_iter().enumerate() {
        let name = item.get("name").and_then(Value::as_str).filter(|name| !name.is_empty()).map(str::to_owned);
        let Some(name) = name else {
            mistakes.push(format!("outputs[{at}]: no name"));
            continue;
        };
        if !is_name(&name) {
            mistakes.push(format!("outputs[{at}]: its name is not {NAME_RULE}"));
            continue;
        }
        let error_output = item.get("error_output").and_then(Value::as_bool).unwrap_or(false);
        outputs.push(Output { name, error_output, others: others(item, &["name", "error_output"]) });
    }
    outputs
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn entry(change: impl FnOnce(&mut Value)) -> Value {
        let mut entry = json!({
            "id": "b1a6a2f0", "name": "n", "group": "script", "config": "#!/bin/sh\n", "options": null,
            "creation_time": "2026-03-01T12:00:00Z",
            "inputs": [
                {"name": "who", "type": "String", "value": "world"}, {"name": "count", "type": "Number", "value": 3},
                {"name": "deploy_action", "type": "String", "value": "CREATE"},
                {"name": "deploy_stack_id", "type": "String", "value": "s/1"},
                {"name": "deploy_resource_name", "type": "String", "value": "r"},
                {"name": "deploy_signal_id", "type": "String", "value": "http://h:8000/v1/signal/a%3Ab?x=1"},
                {"name": "deploy_signal_verb", "type": "String", "value": "POST"}],
            "outputs": [{"name": "o"}, {"name": "e", "error_output": true}]});
        change(&mut entry);
        entry
    }

    #[test]
    fn a_good_entry_is_taken_as_it_is() {
        let deployment = Deployment::parse(&entry(|_| ())).unwrap().unwrap();
        assert_eq!((deployment.id.as_str(), deployment.group.as_str(), deployment.action()), ("b1a6a2f0", "script", "CREATE"));
        assert_eq!(deployment.resource(), Some(("s/1".into(), "r".into())));
        assert_eq!(
            deployment.signal_target(),
            SignalTarget::Url { url: "http://h:8000/v1/signal/a%3Ab?x=1".into(), verb: "POST".into() }
        );
        assert_eq!(deployment.outputs[1], Output { name: "e".into(), error_output: true, ..Output::default() });
    }

    /// Attack: with `put` the script ran, and its result was refused here and tried again for seven days.
    #[test]
    fn what_is_not_put_is_posted() {
        for (given, expected) in
            [("PUT", "PUT"), ("put", "PUT"), (" Put\n", "PUT"), ("post", "POST"), ("GET", "POST"), ("", "POST")]
        {
            let entry = entry(|entry| entry["inputs"][6]["value"] = json!(given));
            let SignalTarget::Url { verb, .. } = Deployment::parse(&entry).unwrap().unwrap().signal_target() else { panic!() };
            assert_eq!(verb, expected, "{given:?}");
        }
    }

    #[test]
    fn every_mistake_is_named_and_heat_can_still_be_notified() {
        let bad = entry(|entry| {
            entry["id"] = json!(7);
            entry["group"] = json!("");
            entry["outputs"] = json!({"a": 1});
            entry["inputs"].as_array_mut().unwrap().push(json!({"value": 1}));
        });
        let malformed = Deployment::parse(&bad).unwrap_err();
        assert_eq!(malformed.id, None);
        let all = malformed.mistakes.join("; ");
        let many = Deployment::parse(&json!({"id": "a", "inputs": vec![0; 50]})).unwrap_err();
        assert_eq!((many.mistakes.len(), many.mistakes[20].as_str()), (21, "and 30 more"));
        for part in ["id: not a string", "group: not a string", "outputs: not a list", "inputs[7]: no name"] {
            assert!(all.contains(part), "{part} in {all}");
        }
        assert!(matches!(malformed.target, SignalTarget::Url { .. }));
        assert!(Deployment::parse(&json!([])).is_err());
    }

    #[test]
    fn null_empty_and_absent_are_the_same() {
        let deployment = Deployment::parse(&json!({"id": "a", "inputs": null, "outputs": null, "options": null, "name": null}))
            .unwrap()
            .unwrap();
        assert_eq!((deployment.group.as_str(), deployment.name.as_str()), ("Heat::Ungrouped", ""));
        let with_nulls = entry(|entry| {
            entry["inputs"] = json!([{"name": "deploy_signal_id", "value": ""}, {"name": "deploy_auth_url", "value": null}]);
        });
        assert_eq!(Deployment::parse(&with_nulls).unwrap().unwrap().signal_target(), SignalTarget::None);
    }

    #[test]
    fn a_way_to_heat_that_is_no_text_is_not_taken_for_none() {
        for (name, value) in
            WAY_TO_HEAT.into_iter().flat_map(|name| [(name, json!({"url": "u"})), (name, json!(1)), (name, json!([]))])
        {
            let entry = entry(|entry| {
                let inputs = entry["inputs"].as_array_mut().unwrap();
                inputs.retain(|input| input["name"] != *name);
                inputs.push(json!({"name": name, "type": "Json", "value": value}));
            });
            let malformed = Deployment::parse(&entry).unwrap_err();
            assert_eq!(malformed.mistakes, [format!("inputs: {name} is not a string")], "{value}");
        }
    }

    #[test]
    fn heat_signal_is_taken_whole_or_named_with_what_it_lacks() {
        let heat = |leave_out: &[&str], more: &[(&str, &str)]| {
            entry(|entry| {
                let inputs = entry["inputs"].as_array_mut().unwrap();
                inputs.retain(|input| !input["name"].as_str().unwrap().starts_with("deploy_signal"));
                let all = [
                    ("deploy_auth_url", "https://k:5000/v3"),
                    ("deploy_username", "n"),
                    ("deploy_user_id", "u"),
                    ("deploy_password", "hush"),
                    ("deploy_project_id", "p"),
                    ("deploy_region_name", ""),
                ];
                inputs
                    .extend(all.iter().chain(more).map(|(name, value)| json!({"name": name, "type": "String", "value": value})));
                inputs.retain(|input| !leave_out.contains(&input["name"].as_str().unwrap()));
            })
        };
        let credentials = Credentials {
            auth_url: "https://k:5000/v3".into(),
            user_id: "u".into(),
            password: "hush".into(),
            scope: Scope::Project("p".into()),
            region: None,
        };
        let target = Deployment::parse(&heat(&[], &[])).unwrap().unwrap().signal_target();
        assert_eq!(target, SignalTarget::Heat { credentials, stack: "s/1".into(), resource: "r".into() });
        assert!(!format!("{target:?}").contains("hush"));
        let malformed = Deployment::parse(&heat(&["deploy_password", "deploy_resource_name"], &[])).unwrap_err();
        assert_eq!(malformed.mistakes, ["inputs: HEAT_SIGNAL without deploy_password, deploy_resource_name"]);
        assert!(matches!(malformed.target, SignalTarget::Unsupported { .. }));
        let zaqar = Deployment::parse(&heat(&[], &[("deploy_queue_id", "q")])).unwrap().unwrap().signal_target();
        assert_eq!(zaqar, target, "ZAQAR_SIGNAL by Heat's API");
        let half = Deployment::parse(&heat(&["deploy_auth_url"], &[("deploy_queue_id", "q")])).unwrap_err();
        assert_eq!(half.mistakes, ["inputs: ZAQAR_SIGNAL without deploy_auth_url"]);
        let url = SignalTarget::Url { url: "http://h/v1/signal/a?Signature=hush".into(), verb: "POST".into() };
        assert_eq!(format!("{url:?}"), "Url(POST http://h/v1/signal/a?…)");
    }

    #[test]
    fn a_component_gives_the_part_for_its_action_or_nothing() {
        let component = |action: &str| {
            entry(|entry| {
                entry["group"] = json!("component");
                entry["inputs"][2]["value"] = json!(action);
                entry["config"] = json!({"configs": [
                    {"actions": ["CREATE"], "tool": "script", "config": "one"},
                    {"actions": ["UPDATE", "RESUME"], "tool": "ansible", "config": "two"}]});
            })
        };
        let created = Deployment::parse(&component("CREATE")).unwrap().unwrap();
        assert_eq!((created.group.as_str(), created.config), ("script", json!("one")));
        assert_eq!(Deployment::parse(&component("RESUME")).unwrap().unwrap().group, "ansible");
        assert_eq!(Deployment::parse(&component("DELETE")).unwrap(), None);
    }

    #[test]
    fn hooks_read_strings_where_the_template_declared_strings() {
        let deployment =
            Deployment::parse(&json!({"id": "a", "inputs": [{"name": "b", "type": "String", "value": true}]})).unwrap().unwrap();
        assert_eq!(deployment.to_hook_json()["inputs"][0]["value"], json!("True"));
    }

    #[test]
    fn hooks_read_whatever_the_entry_says_of_inputs_and_outputs() {
        let input = json!({"name": "b", "type": "Number", "value": 3, "default": 2, "description": "how many", "replace_on_change": true});
        let output = json!({"name": "o", "type": "Json", "description": "what", "error_output": true});
        let entry = json!({"id": "a", "group": "ansible", "inputs": [input], "outputs": [output]});
        let read = Deployment::parse(&entry).unwrap().unwrap().to_hook_json();
        assert_eq!((&read["inputs"][0], &read["outputs"][0]), (&input, &output));
    }

    /// Attack: texts of a megabyte in places that have no limit of their own went into each record, line of the journal and page.
    #[test]
    fn whatever_a_record_keeps_of_an_entry_is_bounded() {
        let long = "x".repeat(1_000_000);
        let of_input = |name: &str| {
            let long = long.clone();
            let name = name.to_owned();
            entry(move |entry| {
                let inputs = entry["inputs"].as_array_mut().unwrap();
                inputs.retain(|input| input["name"] != name.as_str());
                inputs.push(json!({"name": name, "value": long}));
            })
        };
        let mut cases: Vec<(String, Value)> = NAMES
            .iter()
            .chain(&WAY_TO_HEAT)
            .chain(&HEAT_SIGNAL)
            .map(|name| (format!("inputs: {name} "), of_input(name)))
            .collect();
        let tool = json!({"configs": [{"actions": ["CREATE"], "tool": long, "config": ""}]});
        cases.push((
            "config.configs: a tool is not".to_owned(),
            entry(|entry| (entry["group"], entry["config"]) = (json!("component"), tool)),
        ));
        for output in [long.as_str(), "a\0b"] {
            cases.push(("outputs[0]: its name".to_owned(), entry(|entry| entry["outputs"] = json!([{"name": output}]))));
        }
        for (mistake, entry) in cases {
            let found = Deployment::parse(&entry).unwrap_err();
            assert!(found.mistakes.iter().any(|one| one.starts_with(&mistake)), "{mistake}: {:?}", found.mistakes);
            assert!(format!("{found:?}").len() < 4096, "{mistake}");
        }
        let late = entry(|entry| entry["creation_time"] = json!(long));
        assert_eq!(Deployment::parse(&late).unwrap().unwrap().creation_time, "");
    }
}
