//! `metadata [--key K] [--show-secrets]`: what was collected.

use std::process::ExitCode;

use serde_json::Value;

use super::masking::masked;
use super::{Options, document, exit, print};
use crate::error::{Error, Result};
use crate::settings::Settings;

/// Prints the merged document, or one value of it by its dotted key.
///
/// # Errors
/// If nothing was collected, or the key is not there.
pub fn run(options: &Options, settings: &Settings, key: Option<&str>, show_secrets: bool) -> Result<ExitCode> {
    let whole = Value::Object(document::read(options, settings)?);
    let shown = if show_secrets { whole } else { masked(&whole) };
    let value = match key {
        None => &shown,
        Some(key) => lookup(&shown, key).ok_or_else(|| Error::permanent(format!("there is no {key:?} in the metadata")))?,
    };
    match value {
        Value::String(text) => print(&format!("{text}\n"))?,
        other => print(&format!("{other:#}\n"))?,
    }
    Ok(exit::OK)
}

/// Members by name, list items by index (also from the end, negative); null counts as missing (heat-protocol.md 6.4).
fn lookup<'a>(value: &'a Value, key: &str) -> Option<&'a Value> {
    key.split('.')
        .try_fold(value, |value, part| match value {
            Value::Object(members) => members.get(part),
            Value::Array(items) => {
                let index: i64 = part.parse().ok()?;
                let length = i64::try_from(items.len()).ok()?;
                items.get(usize::try_from(if index < 0 { index + length } else { index }).ok()?)
            }
            _ => None,
        })
        .filter(|value| !value.is_null())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn keys_walk_members_and_items() {
        let value = json!({"a": [{"b": 1}, {"b": 2}], "n": null});
        for (key, found) in
            [("a.0.b", Some(json!(1))), ("a.-1.b", Some(json!(2))), ("a.2", None), ("n", None), ("a.x", None), ("a.-3", None)]
        {
            assert_eq!(lookup(&value, key).cloned(), found, "{key}");
        }
    }
}
