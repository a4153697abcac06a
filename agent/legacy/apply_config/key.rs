//! One value of the metadata by its path (heat-protocol.md 6.4).

use serde_json::Value;

use super::types;
use crate::error::{Error, Result};
use crate::metadata::{python_json, python_text};

/// The value of a path; null counts as missing.
pub(super) fn found<'v>(config: &'v Value, path: &str) -> Option<&'v Value> {
    path.split('.')
        .try_fold(config, |value, name| match value {
            Value::Object(members) => members.get(name),
            Value::Array(items) => items.get(index(name, items.len())?),
            _ => None,
        })
        .filter(|value| !value.is_null())
}

/// An index as Python's `int()` reads it; a negative one counts from the end.
fn index(name: &str, length: usize) -> Option<usize> {
    let digits = name.trim();
    let has_lone = digits.starts_with('_') || digits.ends_with('_') || digits.contains("__") || digits.contains("+_");
    let at: i64 = (!has_lone && !digits.contains("-_")).then(|| digits.replace('_', "").parse().ok()).flatten()?;
    if at < 0 { length.checked_sub(usize::try_from(at.unsigned_abs()).ok()?) } else { usize::try_from(at).ok() }
}

/// What `--key` prints.
///
/// # Errors
/// If the key is missing and there is no default; if the value is not of the kind.
pub(super) fn printed(config: &Value, path: &str, kind: &str, default: Option<&str>) -> Result<String> {
    let Some(value) = found(config, path) else {
        return default.map(str::to_owned).ok_or_else(|| {
            Error::permanent(format!("the metadata has no key {path}")).remedy("give a default with --key-default")
        });
    };
    types::check(&python_text(value), kind).map_err(|error| error.context(format!("reading the key {path}")))?;
    Ok(match value {
        Value::Object(_) | Value::Array(_) | Value::Bool(_) => python_json(value),
        other => python_text(other),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn paths_go_through_objects_and_lists() {
        let config = json!({"a": {"b": ["x", null, {"c": false}]}, "n": null, "": 1});
        for (path, value) in [
            ("a.b.0", Some(json!("x"))),
            ("a.b.-1.c", Some(json!(false))),
            ("a.b.+0", Some(json!("x"))),
            ("a.b. 2 .c", Some(json!(false))),
            ("a.b.0_2.c", Some(json!(false))),
            ("a.b.1", None),
            ("a.b.3", None),
            ("a.b.-4", None),
            ("a.b._0", None),
            ("a.b.x", None),
            ("a.b.0.x", None),
            ("n", None),
            ("a.gone", None),
            ("", Some(json!(1))),
        ] {
            assert_eq!(found(&config, path), value.as_ref(), "{path}");
        }
    }

    #[test]
    fn what_is_printed_is_of_its_type_or_the_default() {
        let config = json!({"s": "a b", "b": true, "l": [1, {"k": null}], "f": 1.0});
        for (path, kind, default, text) in [
            ("s", "raw", None, Some("a b")),
            ("s", "default", Some("d"), None),
            ("b", "default", None, Some("true")),
            ("l", "raw", None, Some(r#"[1, {"k": null}]"#)),
            ("l", "default", None, None),
            ("f", "netaddress", None, Some("1.0")),
            ("gone", "default", Some(""), Some("")),
            ("gone", "no such type", Some("d"), Some("d")),
            ("gone", "raw", None, None),
            ("s", "no such type", None, None),
        ] {
            assert_eq!(printed(&config, path, kind, default).ok().as_deref(), text, "{path} {kind}");
        }
    }
}
