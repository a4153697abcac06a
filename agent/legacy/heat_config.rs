//! 55-heat-config: the deployments in a file, one after the other, each by the hook of its group (heat-protocol.md 4).

use std::path::{Path, PathBuf};

use nix::unistd::geteuid;
use serde_json::{Map, Value};

use super::arguments::ToolResult;
use super::hooks;
use super::log::Log;
use super::machine::{Machine, variable};
use crate::budgets::json::JsonRejection;
use crate::budgets::{DOCUMENT_MEMORY, python_json};
use crate::deploy::Work;
use crate::deploy::hooks::file_name;
use crate::error::{Context, Error, ErrorKind, Result};
use crate::files::{Attributes, FileKind, READ_LIMIT};
use crate::metadata::{python_json as json_text, python_json_lines, python_text};
use crate::programs::child::{Child, Heard};
use crate::programs::lenient_object;

const FILE: &str = "/var/run/heat-config/heat-config";
const DEPLOYED: &str = "/var/lib/heat-config/deployed";
const OLD_DEPLOYED: &str = "/var/run/heat-config/deployed";
const HOOKS: [&str; 2] = ["/usr/libexec/heat-config/hooks", "/var/lib/heat-config/hooks"];
const NOTIFY: &str = "heat-config-notify";
/// Where the deployment says which part of a component is meant.
const ACTION: &str = "deploy_action";

/// Runs the tool; it takes no arguments.
pub(super) fn run(_: &[String]) -> ToolResult {
    let machine = Machine::new()?;
    let file = hooks::directory(&machine, "HEAT_SHELL_CONFIG", FILE);
    if machine.kind(&file).is_none() {
        return Err(Error::permanent(format!("there is no {}", file.display())).into());
    }
    // It holds passwords. A link is followed, as by the original.
    let file = file.canonicalize().context(|| format!("resolving {}", file.display()))?;
    machine.root.set_attributes(&file, Attributes::mode(0o600))?;
    let deployed = hooks::directory(&machine, "HEAT_CONFIG_DEPLOYED", DEPLOYED);
    prepare(&machine, &deployed)?;
    let bytes = machine.root.read(&file, READ_LIMIT)?.unwrap_or_default();
    let mut tool = Tool { machine, deployed, log: Log::new() };
    let deployments = match python_json::value(&bytes, DOCUMENT_MEMORY) {
        Ok(Value::Array(deployments)) => deployments,
        Ok(_) | Err(JsonRejection::Json(_)) => {
            // Where the metadata has no deployments, os-apply-config leaves an empty file.
            tool.log.info(&format!("nothing is deployed: {} is no list in JSON", file.display()));
            return Ok(0);
        }
        // Heat waits for what is in it: the command that runs this tool has not succeeded.
        Err(refused) => return Err(Error::from(refused).context(format!("reading {}", file.display())).into()),
    };
    let mut postponed = None;
    for entry in &deployments {
        if let Err(error) = tool.deploy(entry) {
            tool.log.error(&error.to_string());
            if error.kind() == ErrorKind::Transient {
                postponed.get_or_insert(error);
            }
        }
    }
    // Whoever runs this tool comes again: what was begun is not begun a second time.
    postponed.map_or(Ok(0), |error| Err(error.context("not every deployment could be begun").into()))
}

/// Makes the directory of what is deployed, from where it once was if that is there.
fn prepare(machine: &Machine, deployed: &Path) -> Result<()> {
    if machine.kind(deployed) == Some(FileKind::Directory) {
        return Ok(());
    }
    let old = hooks::directory(machine, "HEAT_CONFIG_DEPLOYED_OLD", OLD_DEPLOYED);
    if old != deployed && machine.kind(&old) == Some(FileKind::Directory) {
        // Whole, or not at all: what is not in it runs again.
        let new = deployed.with_extension("new");
        machine.root.remove_dir_all(&new)?;
        machine.copy(&old, &new)?;
        machine.root.rename(&new, deployed)?;
        return machine.root.remove_dir_all(&old).map(drop);
    }
    hooks::prepare(machine, deployed)
}

struct Tool {
    machine: Machine,
    /// Where it is written down what was run.
    deployed: PathBuf,
    log: Log,
}

/// How the deployments of a group are run.
enum Hook {
    File(PathBuf),
    /// By this program itself, where the image has no file for the group.
    Own(String),
}

impl Tool {
    /// Runs a deployment that has not been run, and tells Heat.
    ///
    /// # Errors
    /// If it was not begun; transient where a later run may begin it.
    fn deploy(&mut self, entry: &Value) -> Result<()> {
        let entry = entry.as_object().ok_or_else(|| Error::permanent("a deployment is no JSON object"))?;
        let id = entry.get("id").and_then(Value::as_str).ok_or_else(|| Error::permanent("a deployment has no id"))?;
        let id = hooks::plain(id, "id")?.to_owned();
        let work = |entry: &Map<String, Value>| entry.get("group").and_then(Value::as_str).map_or(Work::Data, Work::of);
        let path = self.deployed.join(format!("{id}.json"));
        match work(entry) {
            Work::Data => return Ok(()),
            Work::Node => {
                self.log.info(&format!("{id} is left to heat-node-agent.service"));
                return Ok(());
            }
            Work::Script | Work::Hook => {}
        }
        let mut entry = entry.clone();
        let checked = checked(&mut entry);
        if checked == Ok(false) {
            self.log.warning(&format!("{id} has nothing for this action"));
            return Ok(());
        }
        if work(&entry) == Work::Data {
            return Ok(());
        }
        let hook = checked.and_then(|_| self.hook(entry.get("group").and_then(Value::as_str).unwrap_or_default()));
        let entry = Value::Object(entry);
        // What is begun is never begun again, whatever becomes of it, and by one alone.
        if !self.machine.root.create_new(&path, text_of(&entry).as_bytes(), Attributes::mode(0o600))? {
            self.log.info(&format!("{id} is deployed already; to deploy it again, remove {}", path.display()));
            return Ok(());
        }
        let result = match hook.and_then(|hook| self.heard(&hook, &entry)) {
            Ok(heard) if heard.is_cut => {
                let error = Error::permanent("its hook wrote more than 16 MiB");
                self.log.error(&format!("{id}: {error}"));
                failure(&error)
            }
            Ok(heard) => result(&heard),
            // Heat would wait for it in vain (heat-protocol.md R33).
            Err(error) => {
                self.log.error(&format!("{id}: {error}"));
                failure(&error)
            }
        };
        // A file for people: Heat waits for the result whether there is room for it or not.
        let written = self.write(&self.deployed.join(format!("{id}.notify.json")), &result);
        for done in [written, self.notify(&path, &result)] {
            if let Err(error) = done {
                self.log.error(&format!("{id}: {error}"));
            }
        }
        Ok(())
    }

    fn write(&self, path: &Path, value: &Value) -> Result<()> {
        self.machine.root.write(path, text_of(value).as_bytes(), Attributes::mode(0o600))
    }

    /// The hook of a group: the first file of its harmless letters.
    fn hook(&self, group: &str) -> Result<Hook> {
        let name = file_name(group);
        let own = variable("HEAT_CONFIG_HOOKS").filter(|directory| !directory.is_empty());
        let directories: Vec<_> = own.into_iter().chain(HOOKS.map(str::to_owned)).map(|name| self.machine.path(name)).collect();
        let found = directories.iter().map(|directory| directory.join(&name)).find(|path| self.machine.kind(path).is_some());
        match found.filter(|_| !name.is_empty()) {
            // What root runs nobody else may have put there (heat-protocol.md R56).
            Some(path) if geteuid().is_root() => self.machine.root.check_only_root_changes(&path).map(|()| Hook::File(path)),
            Some(path) => Ok(Hook::File(path)),
            None if hooks::of(&name).is_some() => Ok(Hook::Own(name)),
            None => Err(Error::permanent(format!("there is no hook for the group {group}"))
                .remedy("put one into the image, or correct the group in the template")),
        }
    }

    fn heard(&mut self, hook: &Hook, entry: &Value) -> Result<Heard> {
        let (child, shown) = match hook {
            Hook::File(path) => (Child::new(path), path.display().to_string()),
            Hook::Own(group) => (Child::own(&format!("hook-{group}")), format!("the agent's own hook {group}")),
        };
        self.log.info(&format!("Running {shown}"));
        // As much as heat-config-notify reads.
        let heard = child.hear(json_text(entry).as_bytes(), READ_LIMIT)?;
        self.log.info(&format!("{shown} ended with status {}", heard.status));
        Ok(heard)
    }

    /// Has the result sent to Heat.
    fn notify(&mut self, deployed: &Path, result: &Value) -> Result<()> {
        let foreign = variable("HEAT_CONFIG_NOTIFY");
        let result = json_text(result);
        let child = match &foreign {
            Some(program) => Child::new(program).argument(deployed),
            None => Child::own(NOTIFY).argument(deployed).argument(result.len().to_string()),
        };
        let heard = child.hear(result.as_bytes(), hooks::STREAM)?;
        if heard.status != 0 {
            self.log.error(&format!(
                "{NOTIFY} ended with status {}: Heat does not have the result of {}",
                heard.status,
                deployed.display()
            ));
        }
        // Another one may tell signed URLs.
        if foreign.is_none() && !heard.err.is_empty() {
            self.log.warning(&String::from_utf8_lossy(&heard.err));
        }
        Ok(())
    }
}

/// A value as a file has it that people may read.
fn text_of(value: &Value) -> String {
    python_json_lines(value, 2)
}

/// Gives the inputs the form that hooks know (heat-protocol.md 3.3), and of a component the part that its action means (3.7). `false`
/// where there is no such part.
fn checked(entry: &mut Map<String, Value>) -> Result<bool> {
    let odd = |what: &str| Error::permanent(format!("the deployment is malformed: {what}"));
    let inputs = entry.get_mut("inputs").and_then(Value::as_array_mut).ok_or_else(|| odd("it has no list of inputs"))?;
    let mut action = Value::Null;
    for input in inputs {
        let name = input.get("name").and_then(Value::as_str).ok_or_else(|| odd("an input has no name"))?.to_owned();
        let is_text = input.get("type").and_then(Value::as_str) == Some("String");
        let value = input.get_mut("value").ok_or_else(|| odd(&format!("the input {name} has no value")))?;
        if is_text && !value.is_string() {
            *value = Value::String(python_text(value));
        }
        if name == ACTION {
            action = value.clone();
        }
    }
    if entry.get("group").and_then(Value::as_str) != Some("component") {
        return Ok(true);
    }
    let parts = entry.get("config").and_then(|config| config.get("configs")).and_then(Value::as_array);
    let is_meant = |part: &&Value| part.get("actions").and_then(Value::as_array).is_some_and(|actions| actions.contains(&action));
    let Some(part) = parts.into_iter().flatten().find(is_meant).cloned() else { return Ok(false) };
    for (to, from) in [("config", "config"), ("group", "tool")] {
        let value = part.get(from).cloned().ok_or_else(|| odd(&format!("a part of the component has no {from}")))?;
        entry.insert(to.to_owned(), value);
    }
    Ok(true)
}

/// What a hook says. Its status counts whatever it prints (heat-protocol.md R34), and what is no JSON object is no success (R13).
fn result(heard: &Heard) -> Value {
    let (out, err) = (String::from_utf8_lossy(&heard.out), String::from_utf8_lossy(&heard.err));
    let as_it_is = |status: i32| serde_json::json!({"deploy_stdout": out.clone(), "deploy_stderr": err.clone(), "deploy_status_code": status});
    if out.is_empty() {
        return if heard.status == 0 { Value::Object(Map::new()) } else { as_it_is(heard.status) };
    }
    let is_failed = heard.status != 0;
    let Ok(mut result) = lenient_object(&out) else { return as_it_is(if is_failed { heard.status } else { 1 }) };
    if is_failed && is_success(result.get("deploy_status_code").unwrap_or(&Value::Null)) {
        result.insert("deploy_status_code".to_owned(), heard.status.into());
    }
    Value::Object(result)
}

/// Whether Heat takes a status for success: what Python takes for false, and the text `0` (heat-protocol.md 7).
fn is_success(status: &Value) -> bool {
    match status {
        Value::Null | Value::Bool(false) => true,
        Value::Bool(true) => false,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty() || text == "0",
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => members.is_empty(),
    }
}

fn failure(error: &Error) -> Value {
    serde_json::json!({"deploy_stdout": "", "deploy_stderr": error.to_string(), "deploy_status_code": 1})
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_status_counts_whatever_is_printed() {
        for (status, out, expected) in [
            (0, "", json!({})),
            (3, "", json!({"deploy_stdout": "", "deploy_stderr": "e", "deploy_status_code": 3})),
            (0, r#"{"a": 1, "deploy_status_code": "-1"}"#, json!({"a": 1, "deploy_status_code": "-1"})),
            (3, r#"{"a": 1}"#, json!({"a": 1, "deploy_status_code": 3})),
            (3, r#"{"deploy_status_code": false}"#, json!({"deploy_status_code": 3})),
            (3, r#"{"deploy_status_code": 0.0}"#, json!({"deploy_status_code": 3})),
            (3, r#"{"deploy_status_code": "no room"}"#, json!({"deploy_status_code": "no room"})),
            (3, r#"{"deploy_status_code": 7}"#, json!({"deploy_status_code": 7})),
            (-9, r#"{"deploy_status_code": "0"}"#, json!({"deploy_status_code": -9})),
            (0, "5", json!({"deploy_stdout": "5", "deploy_stderr": "e", "deploy_status_code": 1})),
            (0, "id\n{}", json!({"deploy_stdout": "id\n{}", "deploy_stderr": "e", "deploy_status_code": 1})),
            (2, "text", json!({"deploy_stdout": "text", "deploy_stderr": "e", "deploy_status_code": 2})),
        ] {
            let heard = Heard { status, out: out.into(), err: b"e".to_vec(), is_cut: false };
            assert_eq!(result(&heard), expected, "{status} {out}");
        }
    }

    #[test]
    fn inputs_are_texts_where_they_are_to_be_and_a_component_is_the_part_of_its_action() {
        let component = |action: &str| {
            let parts = json!([{"actions": ["CREATE"], "tool": "script", "config": "c"}, {"actions": ["DELETE"], "tool": "x", "config": {}}]);
            let inputs = json!([{"name": "deploy_action", "type": "String", "value": action}, {"name": "n", "type": "Number", "value": 1}, {"name": "s", "type": "String", "value": [true, null]}]);
            json!({"id": "1", "group": "component", "inputs": inputs, "config": {"configs": parts}}).as_object().unwrap().clone()
        };
        for (action, expected) in
            [("CREATE", Some(("script", json!("c")))), ("DELETE", Some(("x", json!({})))), ("SUSPEND", None)]
        {
            let mut entry = component(action);
            assert_eq!(checked(&mut entry), Ok(expected.is_some()), "{action}");
            if let Some((group, config)) = expected {
                assert_eq!((&entry["group"], &entry["config"]), (&json!(group), &config));
            }
            assert_eq!((&entry["inputs"][1]["value"], &entry["inputs"][2]["value"]), (&json!(1), &json!("[True, None]")));
        }
        for odd in [json!({}), json!({"inputs": 1}), json!({"inputs": [{"value": 1}]}), json!({"inputs": [{"name": "a"}]})] {
            let error = checked(&mut odd.as_object().unwrap().clone()).unwrap_err();
            assert!(error.to_string().contains("malformed"), "{error}");
        }
    }
}
