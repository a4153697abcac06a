//! The hook of group `script`: the config is a program, inputs are its environment, files are its outputs.

use std::path::Path;

use serde_json::{Map, Value};

use super::super::machine::Machine;
use super::shared::{HookAnswer, STREAM, bound, directory, plain, prepare, result};
use crate::error::{Error, Result};
use crate::files::{Attributes, READ_LIMIT};
use crate::metadata::python_json;
use crate::output::note;
use crate::programs::child::Child;

/// Runs the script of a deployment.
pub(super) fn run(machine: &Machine, deployment: &Map<String, Value>) -> Result<HookAnswer> {
    let outputs = directory(machine, "HEAT_SCRIPT_OUTPUTS", "/var/run/heat-config/heat-config-script");
    let working = directory(machine, "HEAT_SCRIPT_WORKING", "/var/lib/heat-config/heat-config-script");
    prepare(machine, &outputs)?;
    prepare(machine, &working)?;
    let id = plain(text(deployment, "id")?, "id")?;
    let config = match deployment.get("config") {
        None => "",
        Some(Value::String(config)) => config,
        Some(_) => return Err(Error::permanent("the config of a script is a text")),
    };
    let (script, outputs) = (working.join(id), outputs.join(id));
    let mut child = Child::new(&script).directory(&working);
    let inputs = deployment.get("inputs").and_then(Value::as_array);
    for input in inputs.ok_or_else(|| Error::permanent("the deployment has no list of inputs"))? {
        let name = input.get("name").and_then(Value::as_str).ok_or_else(|| Error::permanent("an input has no name"))?;
        let value = environment_text(input.get("value").unwrap_or(&Value::Null));
        if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
            return Err(Error::permanent(format!("the input {name:?} cannot be a variable of the environment"))
                .rule("environ(7): a name has no = in it, and neither name nor value a character of code 0"));
        }
        child = child.variable(name, value);
    }
    child = child.variable("heat_outputs_path", &outputs);
    machine.root.write(&script, config.as_bytes(), Attributes::mode(0o700))?;
    let heard = child.hear(b"", STREAM)?;
    let mut answer = HookAnswer::new();
    for output in deployment.get("outputs").and_then(Value::as_array).into_iter().flatten() {
        let Some(name) = output.get("name").and_then(Value::as_str) else { continue };
        if let Some(value) = written(machine, &outputs, name) {
            answer.insert(name.to_owned(), Value::String(value));
            bound(&mut answer);
        }
    }
    Ok(result(answer, &heard))
}

/// As the template has it: a text verbatim, everything else as JSON, nothing where there is nothing (heat-protocol.md R35).
fn environment_text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => python_json(other),
    }
}

/// An output, if the script wrote it. One that is no file, or too large, costs the script neither its status nor its other outputs.
fn written(machine: &Machine, outputs: &Path, name: &str) -> Option<String> {
    let name = plain(name, "output").ok()?;
    let mut path = outputs.as_os_str().to_owned();
    path.push(format!(".{name}"));
    match machine.root.read(Path::new(&path), READ_LIMIT) {
        Ok(bytes) => bytes.map(|bytes| String::from_utf8_lossy(&bytes).replace("\r\n", "\n").replace('\r', "\n")),
        Err(error) => {
            note(&format!("the output {name} cannot be read: {error}"));
            None
        }
    }
}

fn text<'v>(deployment: &'v Map<String, Value>, name: &str) -> Result<&'v str> {
    deployment.get(name).and_then(Value::as_str).ok_or_else(|| Error::permanent(format!("the deployment has no {name}")))
}
