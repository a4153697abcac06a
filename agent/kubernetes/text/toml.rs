//! JSON values as TOML, whole: a table's keys before the tables in it, in the order in which they were given.

use serde_json::Value;

/// A document, with a line that says whose it is.
pub(in crate::kubernetes) fn document(value: &Value) -> String {
    // Of JSON's kinds TOML lacks null alone, which no component writes.
    let text = toml::to_string(value).unwrap_or_default();
    let gap = if text.starts_with('[') { "\n" } else { "" };
    format!("# Made by heat-node-agent from the parameters of the deployment; it is written again when they change.\n{gap}{text}")
}
