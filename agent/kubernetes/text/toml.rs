//! JSON values as TOML, whole: a table's keys before the tables in it, in the order in which they were given.

use serde_json::Value;

use super::MADE;

/// A document, with a line that says whose it is.
pub(in crate::kubernetes) fn document(value: &Value) -> String {
    // Of JSON's kinds TOML lacks null alone, which no component writes.
    let text = toml::to_string(value).unwrap_or_default();
    let gap = if text.starts_with('[') { "\n" } else { "" };
    format!("{MADE}{gap}{text}")
}
