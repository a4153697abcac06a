//! 55-heat-config: the deployments in a file, one after the other, each by the hook of its group (heat-protocol.md 4).

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::arguments::ToolResult;
use super::hooks;
use super::log::Log;
use super::machine::{Machine, variable};
use super::notify::{DOUBTFUL, LATER};
use super::polled::{Polled, REPLACED};
use crate::budgets::json::JsonRejection;
use crate::budgets::{DOCUMENT_MEMORY, python_json};
use crate::clock::Clock;
use crate::deploy::hooks::file_name;
use crate::deploy::unsent::{self, INTERRUPTED, KeptResult, Unsent};
use crate::deploy::{PHASES, Work, is_success};
use crate::error::{Context, Error, ErrorKind, Result};
use crate::files::{Attributes, FileKind, READ_LIMIT, masked};
use crate::metadata::{python_json as json_text, python_json_lines, python_text};
use crate::programs::child::{Child, Heard};
use crate::programs::lenient_object;
use crate::signal::{REFUSAL_SPAN, REFUSALS};

const FILE: &str = "/var/run/heat-config/heat-config";
const DEPLOYED: &str = "/var/lib/heat-config/deployed";
const OLD_DEPLOYED: &str = "/var/run/heat-config/deployed";
const HOOKS: [&str; 2] = ["/usr/libexec/heat-config/hooks", "/var/lib/heat-config/hooks"];
const NOTIFY: &str = "heat-config-notify";
/// This program, also where its file was replaced since it was started.
const OWN: &str = "/proc/self/exe";
const NOT_TOLD: &str = "Heat does not have every result yet";
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
    if variable(PHASES).is_some() {
        Log::new().info("the deployments are left to heat-node-agent.service, which runs these phases");
        return Ok(0);
    }
    let deployed = hooks::directory(&machine, "HEAT_CONFIG_DEPLOYED", DEPLOYED);
    prepare(&machine, &deployed, &hooks::directory(&machine, "HEAT_CONFIG_DEPLOYED_OLD", OLD_DEPLOYED))?;
    let bytes = machine.root.read(&file, READ_LIMIT)?.unwrap_or_default();
    let mut tool = Tool {
        machine,
        deployed,
        hooks: variable("HEAT_CONFIG_HOOKS"),
        notifier: Notifier::configured(),
        polled: Polled::said(),
        replaced: variable(REPLACED).unwrap_or_default().lines().map(str::to_owned).collect(),
        clock: Clock::system(),
        log: Log::new(),
    };
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
    /// How current the list is.
    polled: Polled,
    /// What is listed, and Heat has replaced.
    replaced: BTreeSet<String>,
    clock: Clock,
    log: Log,
}

/// What has a result sent to Heat.
struct Notifier {
    command: Vec<String>,
    /// Whether it is this program, which gets the length, and says whether Heat may take the result later. Another one is asked once.
    is_own: bool,
}

impl Notifier {
    fn configured() -> Self {
        let foreign = variable("HEAT_CONFIG_NOTIFY");
        let is_own = foreign.is_none();
        Self { command: vec![foreign.unwrap_or_else(|| OWN.to_owned())], is_own }
    }
}

/// How the deployments of a group are run.
enum Hook {
    File(PathBuf),
    /// By this program itself, where the image has no file for the group.
    Own(String),
}

impl Tool {
    /// Tells Heat what earlier runs did not, then runs what has not been run: while a script runs the list grows old. One that cannot be
    /// told keeps none of the others waiting.
    ///
    /// # Errors
    /// Transient, if something is left for a later run: whoever runs this tool comes again. What was begun is not begun a second time.
    fn work(&mut self, deployments: &[Value]) -> Result<()> {
        let mut left = None;
        for step in [Self::tell_earlier, Self::deploy] {
            for entry in deployments {
                match step(self, entry) {
                    Ok(true) => {}
                    Ok(false) => left = left.or_else(|| Some(Error::transient(NOT_TOLD))),
                    Err(error) => {
                        self.log.error(&error.to_string());
                        if error.kind() == ErrorKind::Transient {
                            left.get_or_insert(error.context("not every deployment is done"));
                        }
                    }
                }
            }
        }
        left.map_or(Ok(()), Err)
    }

    /// Tells Heat what an earlier run of a deployment left. `false` where a later run does that.
    ///
    /// # Errors
    /// If that cannot be looked at.
    fn tell_earlier(&mut self, entry: &Value) -> Result<bool> {
        // What is wrong with an entry is said when it is to be run.
        let Ok((id, _)) = named(entry) else { return Ok(true) };
        let path = self.record_of(&id);
        let has_begun = self.machine.root.facts(&path)?.is_some();
        if has_begun && unsent::is_open(&self.machine.root, &path)? { self.tell_again(&id, &path) } else { Ok(true) }
    }

    fn record_of(&self, id: &str) -> PathBuf {
        self.deployed.join(format!("{id}.json"))
    }

    /// Runs a deployment that has not been run, and tells Heat. `false` where a later run does that.
    ///
    /// # Errors
    /// If it was not begun, or what an earlier run left cannot be looked at; transient where a later run may do it.
    fn deploy(&mut self, entry: &Value) -> Result<bool> {
        let (id, entry) = named(entry)?;
        let work = |entry: &Map<String, Value>| entry.get("group").and_then(Value::as_str).map_or(Work::Data, Work::of);
        let path = self.record_of(&id);
        match work(entry) {
            Work::Data => return Ok(true),
            Work::Node => {
                self.log.info(&format!("{id} is left to heat-node-agent.service"));
                return Ok(true);
            }
            Work::Script | Work::Hook => {}
        }
        let mut entry = entry.clone();
        let checked = checked(&mut entry);
        if checked == Ok(false) {
            self.log.warning(&format!("{id} has nothing for this action"));
            return Ok(true);
        }
        if work(&entry) == Work::Data {
            return Ok(true);
        }
        if self.replaced.contains(&id) && self.machine.root.facts(&path)?.is_none() {
            // Another list may show that Heat asks for it again.
            return Err(Error::transient(format!("{id} is not begun: Heat has listed another deployment of its resource since")));
        }
        let hook = checked.and_then(|_| self.hook(entry.get("group").and_then(Value::as_str).unwrap_or_default()));
        let entry = Value::Object(entry);
        let Some(unsent) = Unsent::begin(&self.machine.root, &path, text_of(&entry).as_bytes())? else {
            if unsent::is_open(&self.machine.root, &path)? {
                // It was not told before, or another process is at it: a later run looks again, where it may do more than this one.
                return Ok(self.polled == Polled::Unsaid);
            }
            self.log.info(&format!("{id} is deployed already; to deploy it again, remove {}", path.display()));
            return Ok(true);
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
        // Heat waits for the result whether there is room to keep it or not.
        if let Err(error) = unsent.keep(&self.machine.root, &result) {
            self.log.error(&error.to_string());
        }
        Ok(self.hand_over(&path, json_text(&result).as_bytes()))
    }

    /// Tells Heat what an earlier run of a deployment was to tell, where Heat is known to have listed it since. `false` where a later run
    /// does it.
    fn tell_again(&mut self, id: &str, path: &Path) -> Result<bool> {
        let root = &self.machine.root;
        let Some(unsent) = Unsent::take(root, path)? else {
            self.log.info(&format!("another process is running {}, or sending its result", path.display()));
            // If it still is when its turn to be run comes, a later run looks again.
            return Ok(true);
        };
        let now = Polled::seconds(self.clock.now());
        // Nobody knows when one ended that was cut off, or whose time the clock has not reached: no later than now.
        let known = match unsent.result(root) {
            Ok(Some(kept)) if kept.written <= now => Some(kept),
            Ok(Some(kept)) => {
                root.write(&unsent::result_file(path), &kept.text, Attributes::mode(0o600))?;
                None
            }
            Err(error) if error.kind() == ErrorKind::Transient => return Err(error),
            cut_off => {
                let error = cut_off.err().unwrap_or_else(|| Error::permanent(INTERRUPTED));
                unsent.keep(root, &failure(&error))?;
                None
            }
        };
        let is_asked_for = |kept: &KeptResult| self.polled.is_after(kept.written, now) && !self.replaced.contains(id);
        let Some(kept) = known.filter(is_asked_for) else { return Ok(self.is_left(path)) };
        self.log.warning(&format!("Heat does not have the result of {}: it is sent now", path.display()));
        Ok(self.hand_over(path, &kept.text))
    }

    /// Has a result sent. `false` where a later run may do it.
    fn hand_over(&mut self, path: &Path, result: &[u8]) -> bool {
        let is_later = match self.notify(path, result) {
            Ok(_) if !self.notifier.is_own => false,
            Ok(status) if status == i32::from(DOUBTFUL) => self.may_pass(path),
            Ok(status) => {
                let is_later = status < 0 || status == i32::from(LATER);
                if is_later && let Err(error) = unsent::refused_no_more(&self.machine.root, path) {
                    self.log.error(&error.to_string());
                }
                is_later
            }
            Err(error) => {
                self.log.error(&error.to_string());
                self.notifier.is_own
            }
        };
        if is_later {
            return self.is_left(path);
        }
        if let Err(error) = unsent::settle(&self.machine.root, path) {
            self.log.error(&error.to_string());
        }
        true
    }

    /// Whether a refusal that Keystone's own trouble looks like may pass: Keystone answers so too while it restarts. As many of them over as long a time
    /// as the daemon waits for are believed, where no other answer came in between.
    fn may_pass(&mut self, path: &Path) -> bool {
        let now = Polled::seconds(self.clock.now());
        let (since, count) = unsent::refused(&self.machine.root, path, now).unwrap_or_else(|error| {
            self.log.error(&error.to_string());
            (now, 1)
        });
        let may_pass = count < REFUSALS || now.saturating_sub(since).unsigned_abs() < REFUSAL_SPAN.as_secs();
        if !may_pass {
            self.log.error(&format!(
                "the result of {} has been refused {count} times over 15 minutes, and is not sent again; by hand: `{}`",
                path.display(),
                by_hand(path)
            ));
        }
        may_pass
    }

    /// Says that Heat does not have a result. `false` where a later run may send it; `true` where nobody will ever say that Heat still asks
    /// for it, so that a later run could do no more than this one.
    fn is_left(&mut self, path: &Path) -> bool {
        let shown = path.display();
        if self.polled == Polled::Unsaid {
            self.log.error(&format!(
                "Heat does not have the result of {shown}, and nothing says whether it still asks for it: if it does, send it by `{}`",
                by_hand(path)
            ));
            return true;
        }
        self.log
            .error(&format!("Heat does not have the result of {shown}: it is sent when Heat has listed the deployment again"));
        false
    }

    /// The hook of a group: the first file of its harmless letters.
    fn hook(&self, group: &str) -> Result<Hook> {
        let name = file_name(group);
        let own = self.hooks.clone().filter(|directory| !directory.is_empty());
        let directories = own.iter().map(String::as_str).chain(HOOKS).map(|directory| self.machine.path(directory));
        let found = directories.filter(|_| !name.is_empty()).find(|directory| self.machine.kind(directory.join(&name)).is_some());
        match found {
            Some(directory) => {
                let path = directory.join(&name);
                let is_named = own.as_ref().is_some_and(|own| self.machine.path(own) == directory);
                let within = if is_named { directory.as_path() } else { Path::new("/") };
                self.machine.check_program(within, &path).map(|()| Hook::File(path))
            }
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

/// The command that sends a kept result.
fn by_hand(path: &Path) -> String {
    format!("{NOTIFY} {} < {}", path.display(), unsent::result_file(path).display())
}

/// A deployment with its id.
fn named(entry: &Value) -> Result<(String, &Map<String, Value>)> {
    let entry = entry.as_object().ok_or_else(|| Error::permanent("a deployment is no JSON object"))?;
    let id = entry.get("id").and_then(Value::as_str).ok_or_else(|| Error::permanent("a deployment has no id"))?;
    hooks::plain(id, "id").map(|id| (id.to_owned(), entry))
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

fn failure(error: &Error) -> Value {
    serde_json::json!({"deploy_stdout": "", "deploy_stderr": error.to_string(), "deploy_status_code": 1})
}

#[cfg(test)]
#[path = "heat_config_tests.rs"]
mod tests;
