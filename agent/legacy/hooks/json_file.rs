//! The hook of group `json-file`: the config maps paths to what their files hold.

use std::path::Path;

use serde_json::{Map, Value};

use super::super::machine::Machine;
use super::shared::{HookAnswer, prepare, result, write};
use crate::error::{Error, Result};
use crate::files::masked;
use crate::metadata::python_json_sorted;
use crate::programs::child::Heard;

/// Writes the files of a deployment.
pub(super) fn run(machine: &Machine, deployment: &Map<String, Value>) -> Result<HookAnswer> {
    let none = Map::new();
    let files = match deployment.get("config") {
        Some(Value::Object(files)) => files,
        // What has nothing in it asks for nothing.
        Some(Value::String(text)) if text.is_empty() => &none,
        Some(Value::Array(items)) if items.is_empty() => &none,
        _ => return Err(Error::permanent("the config is no map of paths")),
    };
    for (name, content) in files {
        match Path::new(name).parent() {
            Some(directory) if !directory.as_os_str().is_empty() && !name.ends_with('/') => {
                prepare(machine, &machine.path(directory))?;
            }
            _ => return Err(Error::permanent(format!("{name:?} is no path of a file"))),
        }
        write(machine, &machine.path(name), &python_json_sorted(content, 4), masked(0o666))?;
    }
    Ok(result(HookAnswer::new(), &Heard::default()))
}
