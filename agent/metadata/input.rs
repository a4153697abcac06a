//! Input values of a deployment and their two text forms (heat-protocol.md 3.3, R35).

use serde_json::Value;

/// One input: name, declared type, value.
#[derive(Clone, Debug, PartialEq)]
pub struct Input {
    /// Name as in the template.
    pub name: String,
    /// `String`, `Number`, `CommaDelimitedList`, `Json` or `Boolean`.
    pub kind: String,
    /// The value; JSON null where the entry has none.
    pub value: Value,
}

impl Input {
    /// The text that a script finds in its environment.
    ///
    /// Strings are passed as they are; null and missing values are empty. A value of another kind that was declared
    /// `String` (or not declared at all) gets Python's text form, as scripts written for heat-agents expect; every other
    /// one is JSON text.
    #[must_use]
    pub fn environment_text(&self) -> String {
        match &self.value {
            Value::String(text) => text.clone(),
            Value::Null if self.kind != "String" => String::new(),
            value if self.kind == "String" => python_text(value),
            value @ (Value::Array(_) | Value::Object(_)) => json_text(value),
            value => value.to_string(),
        }
    }
}

/// Python's `str()` of a decoded JSON value: `True`, `None`, `[1, {'a': None}]`.
#[must_use]
pub fn python_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => python_repr(other),
    }
}

fn python_repr(value: &Value) -> String {
    match value {
        Value::Null => "None".to_owned(),
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        Value::Number(number) => number.to_string(),
        Value::String(text) => python_quoted(text),
        Value::Array(items) => format!("[{}]", items.iter().map(python_repr).collect::<Vec<_>>().join(", ")),
        Value::Object(members) => {
            let inner: Vec<_> =
                members.iter().map(|(key, item)| format!("{}: {}", python_quoted(key), python_repr(item))).collect();
            format!("{{{}}}", inner.join(", "))
        }
    }
}

/// Single quotes, double ones where only single quotes occur inside, as CPython's repr chooses.
fn python_quoted(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut out = String::from(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            c if (c as u32) < 0x20 || c as u32 == 0x7f => out.push_str(&format!("\\x{:02x}", c as u32)),
            c => out.push(c),
        }
    }
    out.push(quote);
    out
}

/// JSON text with `, ` and `: ` between, as Python's encoder writes it (heat-protocol.md 5, script).
fn json_text(value: &Value) -> String {
    match value {
        Value::Array(items) => format!("[{}]", items.iter().map(json_text).collect::<Vec<_>>().join(", ")),
        Value::Object(members) => {
            let inner: Vec<_> = members.iter().map(|(key, item)| format!("{}: {}", ascii_json(key), json_text(item))).collect();
            format!("{{{}}}", inner.join(", "))
        }
        Value::String(text) => ascii_json(text),
        scalar => scalar.to_string(),
    }
}

/// A JSON string with everything outside ASCII escaped, as Python's encoder does by default.
fn ascii_json(text: &str) -> String {
    let quoted = Value::String(text.to_owned()).to_string();
    let mut out = String::with_capacity(quoted.len());
    for c in quoted.chars() {
        if c.is_ascii() {
            out.push(c);
        } else {
            let mut units = [0_u16; 2];
            for unit in c.encode_utf16(&mut units) {
                out.push_str(&format!("\\u{unit:04x}"));
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn texts_are_those_that_existing_scripts_expect() {
        // The right-hand sides were printed by CPython's str() and json.dumps().
        for (kind, value, text) in [
            ("String", json!("as it is $HOME"), "as it is $HOME"),
            ("String", json!(true), "True"),
            ("String", json!(null), "None"),
            ("String", json!(3), "3"),
            ("String", json!([1, {"a": null}]), "[1, {'a': None}]"),
            ("String", json!(["it's", "say \"x\"", "b'\"", "l\n"]), r#"["it's", 'say "x"', 'b\'"', 'l\n']"#),
            ("Number", json!(3), "3"),
            ("Number", json!("4"), "4"),
            ("Boolean", json!(true), "true"),
            ("Json", json!({"a": [1, "é"], "b": {}}), r#"{"a": [1, "\u00e9"], "b": {}}"#),
            ("Json", json!(null), ""),
            ("CommaDelimitedList", json!(["a", "b"]), r#"["a", "b"]"#),
        ] {
            let input = Input { name: "x".into(), kind: kind.into(), value: value.clone() };
            assert_eq!(input.environment_text(), text, "{kind} {value}");
        }
    }
}
