//! JSON values as YAML that a person can read: block style, strings quoted wherever a reader could take them for
//! something else.

use serde_json::Value;

use super::MADE;

/// A document without a line that says whose it is.
pub(in crate::kubernetes) fn bare_document(value: &Value) -> String {
    let mut out = String::new();
    block(value, 0, &mut out);
    out
}

/// A document, with a line that says whose it is.
pub(in crate::kubernetes) fn document(value: &Value) -> String {
    let mut out = String::from(MADE);
    block(value, 0, &mut out);
    out
}

/// Members and items begin on lines of their own.
fn block(value: &Value, indent: usize, out: &mut String) {
    let pad = " ".repeat(indent);
    match value {
        Value::Object(map) if !map.is_empty() => {
            for (key, value) in map {
                out.push_str(&pad);
                out.push_str(&string(key));
                out.push(':');
                member(value, indent, out);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for item in items {
                out.push_str(&pad);
                out.push('-');
                if is_block(item) {
                    // The first member stands beside the dash.
                    let mut inner = String::new();
                    block(item, indent + 2, &mut inner);
                    out.push(' ');
                    out.push_str(inner.trim_start_matches(' '));
                } else {
                    member(item, indent, out);
                }
            }
        }
        scalar => {
            out.push_str(&pad);
            out.push_str(&flow(scalar));
            out.push('\n');
        }
    }
}

/// What follows a colon or a dash.
fn member(value: &Value, indent: usize, out: &mut String) {
    if is_block(value) {
        out.push('\n');
        block(value, indent + if value.is_array() { 0 } else { 2 }, out);
    } else {
        out.push(' ');
        out.push_str(&flow(value));
        out.push('\n');
    }
}

fn is_block(value: &Value) -> bool {
    value.as_object().is_some_and(|map| !map.is_empty()) || value.as_array().is_some_and(|items| !items.is_empty())
}

/// A value on the line: JSON's own form, which YAML reads, or a plain word.
fn flow(value: &Value) -> String {
    match value {
        Value::String(text) => string(text),
        other => other.to_string(),
    }
}

/// Plain only where no reader of YAML 1.1 or 1.2 takes it for a number, a boolean, null, a date or syntax.
fn string(text: &str) -> String {
    let plain = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "/._-".contains(c))
        && !matches!(
            text.to_ascii_lowercase().as_str(),
            "true" | "false" | "yes" | "no" | "on" | "off" | "y" | "n" | "null" | "nan" | "inf"
        );
    if plain { text.to_owned() } else { Value::from(text).to_string() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn documents_read_as_a_person_would_write_them() {
        let value = json!({"apiVersion": "v1", "kind": "Pod", "spec": {"hostNetwork": true, "containers": [{"name": "a", "args": ["--x=1", "b"]}, {"name": "c"}],
            "empty": [], "none": {}, "count": 3}, "labels": {"a/b": "yes", "n": "1.10", "odd": "a: b # c\n\"d\""}});
        assert_eq!(
            document(&value),
            "# Made by heat-node-agent from the parameters of the deployment; it is written again when they change.\n\
apiVersion: v1\nkind: Pod\nspec:\n  hostNetwork: true\n  containers:\n  - name: a\n    args:\n    - \"--x=1\"\n    - b\n  - name: c\n  empty: []\n  none: {}\n  count: 3\n\
labels:\n  a/b: \"yes\"\n  \"n\": \"1.10\"\n  odd: \"a: b # c\\n\\\"d\\\"\"\n"
        );
    }
}
