//! 55-heat-config: the deployments in a file, one after the other, each by the hook of its group (heat-protocol.md 4).

use std::path::{Path, PathBuf};

use nix::unistd::geteuid;
use serde_json::{Map, Value};

use super::arguments::ToolResult;
use super::hooks;
use super::log::Log;
use super::machine::{Machine, variable};
use super::unsent::{self, Unsent};
use crate::budgets::json::JsonRejection;
use crate::budgets::{DOCUMENT_MEMORY, python_json};
use crate::deploy::Work;
use crate::deploy::hooks::file_name;
use crate::error::{Context, Error, ErrorKind, Result};
use crate::files::{Attributes, FileKind, READ_LIMIT, masked};
use crate::metadata::{python_json as json_text, python_json_lines, python_text};
use crate::programs::child::{Child, Heard};
use crate::programs::lenient_object;

const FILE: &str = "/var/run/heat-config/heat-config";
const DEPLOYED: &str = "/var/lib/heat-config/deployed";
const OLD_DEPLOYED: &str = "/var/run/heat-config/deployed";
const HOOKS: [&str; 2] = ["/usr/libexec/heat-config/hooks", "/var/lib/heat-config/hooks"];
const NOTIFY: &str = "heat-config-notify";
/// This program, also where its file was replaced since it was started.
const OWN: &str = "/proc/self/exe";
const NOT_TOLD: &str = "Heat does not have every result yet";
const INTERRUPTED: &str = "interrupted: 55-heat-config was ended, or the machine restarted, while it ran; what it did is unknown, and it is not run again";
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
    prepare(&machine, &deployed, &hooks::directory(&machine, "HEAT_CONFIG_DEPLOYED_OLD", OLD_DEPLOYED))?;
    let bytes = machine.root.read(&file, READ_LIMIT)?.unwrap_or_default();
    let mut tool =
        Tool { machine, deployed, hooks: variable("HEAT_CONFIG_HOOKS"), notifier: Notifier::configured(), log: Log::new() };
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
    tool.work(&deployments)?;
    Ok(0)
}

/// Makes the directory of what is deployed, from where it once was if that is there.
fn prepare(machine: &Machine, deployed: &Path, old: &Path) -> Result<()> {
    if machine.kind(deployed) == Some(FileKind::Directory) {
        return Ok(());
    }
    if old != deployed && machine.kind(old) == Some(FileKind::Directory) {
        let is_link = machine.root.facts(old)?.is_some_and(|facts| facts.kind == FileKind::Link);
        if let Some(above) = deployed.parent().filter(|_| !is_link) {
            machine.root.create_dir_all(above, Attributes::mode(masked(0o777)))?;
            if machine.root.rename(old, deployed).is_ok() {
                return Ok(());
            }
        }
        // On another file system. Whole, or not at all: what is not in it runs again.
        let new = deployed.with_extension("new");
        machine.root.remove_dir_all(&new)?;
        machine.copy(old, &new)?;
        machine.root.rename(&new, deployed)?;
        return machine.root.remove_dir_all(old).map(drop);
    }
    hooks::prepare(machine, deployed)
}

struct Tool {
    machine: Machine,
    /// Where it is written down what was run.
    deployed: PathBuf,
    /// Where hooks are looked for first.
    hooks: Option<String>,
    notifier: Notifier,
    log: Log,
}

/// What has a result sent to Heat.
struct Notifier {
    command: Vec<String>,
    /// Whether it is this program, which is told the length, and says whether Heat may take the result later. Another one is asked once.
    is_own: bool,
}

impl Notifier {
    fn configured() -> Self {
        let foreign = variable("HEAT_CONFIG_NOTIFY");
        let is_own = foreign.is_none();
        Self { command: vec![foreign.unwrap_or_else(|| OWN.to_owned())], is_own }
    }
}

/// What became of an entry of the list.
enum Done {
    /// Nothing is left to do.
    Told,
    /// It has run, and a later run tells Heat.
    Untold,
    /// An earlier run made this record and did not tell Heat.
    Before(PathBuf),
}

/// How the deployments of a group are run.
enum Hook {
    File(PathBuf),
    /// By this program itself, where the image has no file for the group.
    Own(String),
}

impl Tool {
    /// Runs what has not been run, and then tells Heat what earlier runs did not.
    ///
    /// # Errors
    /// Transient, if something is left for a later run: whoever runs this tool comes again. What was begun is not begun a second time.
    fn work(&mut self, deployments: &[Value]) -> Result<()> {
        let (mut left, mut untold) = (None, Vec::new());
        for entry in deployments {
            match self.deploy(entry) {
                Ok(Done::Told) => {}
                Ok(Done::Before(path)) => untold.push(path),
                Ok(Done::Untold) => left = left.or_else(|| Some(Error::transient(NOT_TOLD))),
                Err(error) => {
                    self.log.error(&error.to_string());
                    if error.kind() == ErrorKind::Transient {
                        left.get_or_insert(error.context("not every deployment could be begun"));
                    }
                }
            }
        }
        for path in untold {
            match self.tell_again(&path) {
                Ok(true) => {}
                // Heat is away for the others, too.
                Ok(false) => {
                    left.get_or_insert(Error::transient(NOT_TOLD));
                    break;
                }
                Err(error) => {
                    self.log.error(&error.to_string());
                    left.get_or_insert(error);
                }
            }
        }
        left.map_or(Ok(()), Err)
    }

    /// Runs a deployment that has not been run, and tells Heat.
    ///
    /// # Errors
    /// If it was not begun; transient where a later run may begin it.
    fn deploy(&mut self, entry: &Value) -> Result<Done> {
        let entry = entry.as_object().ok_or_else(|| Error::permanent("a deployment is no JSON object"))?;
        let id = entry.get("id").and_then(Value::as_str).ok_or_else(|| Error::permanent("a deployment has no id"))?;
        let id = hooks::plain(id, "id")?.to_owned();
        let work = |entry: &Map<String, Value>| entry.get("group").and_then(Value::as_str).map_or(Work::Data, Work::of);
        let path = self.deployed.join(format!("{id}.json"));
        match work(entry) {
            Work::Data => return Ok(Done::Told),
            Work::Node => {
                self.log.info(&format!("{id} is left to heat-node-agent.service"));
                return Ok(Done::Told);
            }
            Work::Script | Work::Hook => {}
        }
        let mut entry = entry.clone();
        let checked = checked(&mut entry);
        if checked == Ok(false) {
            self.log.warning(&format!("{id} has nothing for this action"));
            return Ok(Done::Told);
        }
        if work(&entry) == Work::Data {
            return Ok(Done::Told);
        }
        let hook = checked.and_then(|_| self.hook(entry.get("group").and_then(Value::as_str).unwrap_or_default()));
        let entry = Value::Object(entry);
        let Some(unsent) = self.begin(&path, &entry)? else {
            if unsent::is_open(&self.machine, &path) {
                return Ok(Done::Before(path));
            }
            self.log.info(&format!("{id} is deployed already; to deploy it again, remove {}", path.display()));
            return Ok(Done::Told);
        };
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
        Ok(if self.tell(&path, &result, &unsent) { Done::Told } else { Done::Untold })
    }

    /// Makes the record of a deployment; `None` where there is one. What is begun is never begun again, whatever becomes of it, and by one
    /// alone; and that its result is to be told is on disk before.
    fn begin(&self, path: &Path, entry: &Value) -> Result<Option<Unsent>> {
        if self.machine.kind(path).is_some() {
            return Ok(None);
        }
        let Some(unsent) = Unsent::begin(&self.machine, path)? else { return Ok(None) };
        let made = self.machine.root.create_new(path, text_of(entry).as_bytes(), Attributes::mode(0o600));
        if made != Ok(true) {
            // Nothing has begun, or another process has begun and ended it meanwhile.
            unsent::settle(&self.machine, path)?;
        }
        Ok(made?.then_some(unsent))
    }

    /// Tells Heat a result. `false` where a later run does it.
    fn tell(&mut self, path: &Path, result: &Value, unsent: &Unsent) -> bool {
        // Heat waits for the result whether there is room to keep it or not.
        if let Err(error) = self.write(&unsent::result_file(path), result) {
            self.log.error(&error.to_string());
            if let Err(error) = unsent.keep_status(result, &error.to_string()) {
                self.log.error(&error.to_string());
            }
        }
        self.hand_over(path, json_text(result).as_bytes())
    }

    /// Tells Heat what an earlier run of a deployment was to tell. `false` where a later one does it.
    fn tell_again(&mut self, path: &Path) -> Result<bool> {
        let Some(unsent) = Unsent::take(&self.machine, path)? else {
            self.log.info(&format!("another process is running {}, or sending its result", path.display()));
            return Ok(true);
        };
        self.log.warning(&format!("Heat does not have the result of {}: it is sent now", path.display()));
        match Unsent::result(&self.machine, path) {
            Ok(Some(result)) => Ok(self.hand_over(path, &result)),
            Ok(None) => Ok(self.tell(path, &failure(&Error::permanent(INTERRUPTED)), &unsent)),
            Err(error) if error.kind() == ErrorKind::Transient => Err(error),
            Err(error) => Ok(self.tell(path, &failure(&error), &unsent)),
        }
    }

    /// Has a result sent. `false` where Heat may take it later.
    fn hand_over(&mut self, path: &Path, result: &[u8]) -> bool {
        let is_later = match self.notify(path, result) {
            Ok(status) => self.notifier.is_own && (status < 0 || status == i32::from(unsent::LATER)),
            Err(error) => {
                self.log.error(&error.to_string());
                self.notifier.is_own
            }
        };
        if is_later {
            self.log.error(&format!("Heat does not have the result of {}: the next run of this tool sends it", path.display()));
        } else if let Err(error) = unsent::settle(&self.machine, path) {
            self.log.error(&error.to_string());
        }
        !is_later
    }

    fn write(&self, path: &Path, value: &Value) -> Result<()> {
        self.machine.root.write(path, text_of(value).as_bytes(), Attributes::mode(0o600))
    }

    /// The hook of a group: the first file of its harmless letters.
    fn hook(&self, group: &str) -> Result<Hook> {
        let name = file_name(group);
        let own = self.hooks.clone().filter(|directory| !directory.is_empty());
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

    /// Has the result sent to Heat; the status that the notifier ends with.
    fn notify(&mut self, deployed: &Path, result: &[u8]) -> Result<i32> {
        let Notifier { command, is_own } = &self.notifier;
        let mut child = Child::new(command.first().map_or(OWN, String::as_str));
        if *is_own {
            child = child.called(NOTIFY);
        }
        child = command.iter().skip(1).fold(child, Child::argument).argument(deployed);
        if *is_own {
            child = child.argument(result.len().to_string());
        }
        let heard = child.hear(result, hooks::STREAM)?;
        if heard.status != 0 {
            self.log.error(&format!(
                "{NOTIFY} ended with status {}: Heat does not have the result of {}",
                heard.status,
                deployed.display()
            ));
        }
        // Another one may tell signed URLs.
        if *is_own && !heard.err.is_empty() {
            self.log.warning(&String::from_utf8_lossy(&heard.err));
        }
        Ok(heard.status)
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
#[path = "heat_config_tests.rs"]
mod tests;
