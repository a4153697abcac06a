//! How Python writes values: what scripts, hooks and templates of the replaced tools have always been given.

use serde_json::{Map, Number, Value};

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
        Value::Number(number) => python_number(number),
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
pub(super) fn python_quoted(text: &str) -> String {
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
            c if !is_printable(c) => match c as u32 {
                code @ ..0x100 => out.push_str(&format!("\\x{code:02x}")),
                code @ ..0x1_0000 => out.push_str(&format!("\\u{code:04x}")),
                code => out.push_str(&format!("\\U{code:08x}")),
            },
            c => out.push(c),
        }
    }
    out.push(quote);
    out
}

/// Whether Python writes a character as it is. Its rule and that of Rust's `escape_debug` are one: all categories of Unicode but "other" and
/// "separator", of which the blank alone is printable. A letter before it, as a mark that combines is escaped only where it begins.
fn is_printable(c: char) -> bool {
    if c.is_ascii() { !c.is_ascii_control() } else { format!("a{c}").escape_debug().nth(1) == Some(c) }
}

/// JSON text with `, ` and `: ` between, as Python's encoder writes it (heat-protocol.md 5, script).
#[must_use]
pub fn python_json(value: &Value) -> String {
    match value {
        Value::Array(items) => format!("[{}]", items.iter().map(python_json).collect::<Vec<_>>().join(", ")),
        Value::Object(members) => {
            let inner: Vec<_> = members.iter().map(|(key, item)| format!("{}: {}", ascii_json(key), python_json(item))).collect();
            format!("{{{}}}", inner.join(", "))
        }
        scalar => python_scalar(scalar),
    }
}

/// JSON text in lines, each level indented by so many blanks, with sorted keys, as Python's encoder writes it with these options
/// (heat-protocol.md 5, json-file and hiera). No newline ends it.
#[must_use]
pub fn python_json_sorted(value: &Value, indent: usize) -> String {
    let mut out = String::new();
    put(&mut out, value, indent, true, 0);
    out
}

/// The same with the keys in the order that they have (heat-protocol.md 1.7, 4.2 e).
#[must_use]
pub fn python_json_lines(value: &Value, indent: usize) -> String {
    let mut out = String::new();
    put(&mut out, value, indent, false, 0);
    out
}

fn put(out: &mut String, value: &Value, indent: usize, is_sorted: bool, level: usize) {
    let line = |out: &mut String, level: usize| {
        out.push('\n');
        out.extend(std::iter::repeat_n(' ', indent * level));
    };
    match value {
        Value::Array(items) if !items.is_empty() => {
            for (at, item) in items.iter().enumerate() {
                out.push_str(if at == 0 { "[" } else { "," });
                line(out, level + 1);
                put(out, item, indent, is_sorted, level + 1);
            }
            line(out, level);
            out.push(']');
        }
        Value::Object(members) if !members.is_empty() => {
            for (at, (key, item)) in ordered(members, is_sorted).into_iter().enumerate() {
                out.push_str(if at == 0 { "{" } else { "," });
                line(out, level + 1);
                out.push_str(&ascii_json(key));
                out.push_str(": ");
                put(out, item, indent, is_sorted, level + 1);
            }
            line(out, level);
            out.push('}');
        }
        other => out.push_str(&python_json(other)),
    }
}

/// Where they are sorted, by code points, as Python compares texts; so do bytes of UTF-8.
fn ordered(members: &Map<String, Value>, is_sorted: bool) -> Vec<(&String, &Value)> {
    let mut members: Vec<_> = members.iter().collect();
    if is_sorted {
        members.sort_unstable_by_key(|(key, _)| *key);
    }
    members
}

fn python_scalar(value: &Value) -> String {
    match value {
        Value::String(text) => ascii_json(text),
        Value::Number(number) => python_number(number),
        other => other.to_string(),
    }
}

/// Python's `repr` of a number: the shortest digits, with an exponent below 1e-4 and from 1e16 on (`float_repr_style` "short").
fn python_number(number: &Number) -> String {
    match number.as_f64().filter(|_| number.is_f64()) {
        Some(value) => python_float(value),
        None => number.to_string(),
    }
}

fn python_float(value: f64) -> String {
    let shortest = format!("{value:e}");
    let Some((digits, exponent)) = shortest.split_once('e') else { return shortest };
    match exponent.parse::<i32>() {
        Ok(-4..16) => {
            let plain = value.to_string();
            if plain.contains('.') { plain } else { format!("{plain}.0") }
        }
        Ok(exponent) => format!("{digits}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs()),
        Err(_) => shortest,
    }
}

/// A JSON string with everything outside printable ASCII escaped, as Python's encoder does by default.
fn ascii_json(text: &str) -> String {
    let quoted = Value::String(text.to_owned()).to_string();
    let mut out = String::with_capacity(quoted.len());
    for c in quoted.chars() {
        if c.is_ascii() && c != '\u{7f}' {
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
    fn numbers_are_those_of_python() {
        // Printed by CPython's repr().
        for (value, text) in [
            (json!(1.0), "1.0"),
            (json!(0.1), "0.1"),
            (json!(-2.5e-3), "-0.0025"),
            (json!(0.0001), "0.0001"),
            (json!(0.00001), "1e-05"),
            (json!(1e15), "1000000000000000.0"),
            (json!(1e16), "1e+16"),
            (json!(1.5e300), "1.5e+300"),
            (json!(123_456_789.125), "123456789.125"),
            (json!(18_446_744_073_709_551_615_u64), "18446744073709551615"),
            (json!(-7), "-7"),
        ] {
            assert_eq!(python_json(&value), text);
            assert_eq!(python_text(&value), text);
        }
    }

    #[test]
    fn lines_of_json_are_those_of_python() {
        // Printed by json.dumps(…, indent=4, sort_keys=True).
        let value = json!({"b": [1, [], {}, {"y": null}], "a": "\u{7f}é\u{1f600}\"", "A": true});
        let text = "{\n    \"A\": true,\n    \"a\": \"\\u007f\\u00e9\\ud83d\\ude00\\\"\",\n    \"b\": [\n        1,\n        [],\n        {},\n        {\n            \"y\": null\n        }\n    ]\n}";
        assert_eq!(python_json_sorted(&value, 4), text);
        assert_eq!(python_json_sorted(&json!([]), 4), "[]");
        // json.dumps(…, indent=1).
        assert_eq!(python_json_lines(&json!({"b": [1], "a": {}}), 1), "{\n \"b\": [\n  1\n ],\n \"a\": {}\n}");
    }
}
