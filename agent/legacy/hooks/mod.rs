//! heat-agents' hooks that need nothing but this program: a deployment as JSON on standard input, its result as JSON on standard output
//! (heat-protocol.md 4.3, 5).

mod apply_config;
mod hiera;
mod json_file;
mod script;
mod shared;

use std::io::Read;

use serde_json::{Map, Value};

use super::arguments::ToolResult;
use super::machine::{Machine, json_of};
use crate::budgets::DOCUMENT_MEMORY;
use crate::error::{Context, Error, Result};
use crate::files::READ_LIMIT;
use crate::metadata::python_json;
use crate::output::print;
use shared::HookAnswer;
pub(super) use shared::{STREAM, directory, plain, prepare};

/// A hook: from a deployment to its result.
type Hook = fn(&Machine, &Map<String, Value>) -> Result<HookAnswer>;

/// The hook of a group.
pub(super) fn of(group: &str) -> Option<fn(&[String]) -> ToolResult> {
    match group {
        "script" => Some(|_| run(script::run)),
        "json-file" => Some(|_| run(json_file::run)),
        "apply-config" => Some(|_| apply_config()),
        "hiera" => Some(|_| run(hiera::run)),
        _ => None,
    }
}

fn run(hook: Hook) -> ToolResult {
    let mut text = String::new();
    std::io::stdin().take(READ_LIMIT).read_to_string(&mut text).context(|| "reading the deployment from standard input")?;
    let read = json_of(&text, DOCUMENT_MEMORY).context(|| "reading the deployment from standard input")?;
    let Value::Object(deployment) = read else {
        return Err(Error::permanent("the deployment on standard input is no JSON object").into());
    };
    answer(hook(&Machine::new()?, &deployment)?)
}

/// The metadata is that of the machine: what is on standard input is not looked at.
fn apply_config() -> ToolResult {
    answer(apply_config::run()?)
}

fn answer(answer: HookAnswer) -> ToolResult {
    print(&python_json(&Value::Object(answer)))?;
    Ok(0)
}
