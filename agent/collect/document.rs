//! Documents as sources deliver them: bytes → one JSON object.

use serde_json::{Map, Value};

use super::entries::Entries;
use crate::budgets::{DOCUMENT_MEMORY, json};
use crate::digest::Sha256;
use crate::error::{Error, Result};

/// The digest of a document that is held in two parts: a list of deployments that is missing is not an empty one.
pub(super) fn digest_of(document: &Map<String, Value>, deployments: Option<&Entries>) -> String {
    let mut digest = Sha256::default();
    // Nothing in it can fail.
    let _ = serde_json::to_writer(&mut digest, document);
    let Some(list) = deployments else {
        digest.update(b"null");
        return digest.hex();
    };
    digest.update(b"[");
    for text in list.texts() {
        digest.update(text.as_bytes());
        digest.update(b",");
    }
    digest.hex()
}

/// Parses a JSON object. Depth is limited by the parser (128), bytes by whoever read them, memory here.
pub(super) fn object(bytes: &[u8]) -> Result<Map<String, Value>> {
    object_within(bytes, DOCUMENT_MEMORY)
}

/// The same with another limit on memory.
pub(super) fn object_within(bytes: &[u8], budget: usize) -> Result<Map<String, Value>> {
    match parse_within(bytes, budget)? {
        Value::Object(map) => Ok(map),
        other => Err(not_an_object(kind(&other))),
    }
}

/// Parses JSON; the error names place and rule, never the content, which may be secret.
pub(super) fn parse(bytes: &[u8]) -> Result<Value> {
    parse_within(bytes, DOCUMENT_MEMORY)
}

fn parse_within(bytes: &[u8], budget: usize) -> Result<Value> {
    if let Some(what) = other_than_json(bytes) {
        return Err(Error::permanent(format!("the document is {what}, not JSON"))
            .rule("RFC 8259")
            .remedy("if it was fetched over the network, check that the address leads to Heat itself and not to a proxy"));
    }
    json::value(bytes, budget).or_else(|rejection| parse_as_python(bytes, budget, &rejection).ok_or(rejection)).map_err(
        |rejection| {
            let json::JsonRejection::Json(error) = rejection else { return rejection.into() };
            let why = match error.classify() {
                serde_json::error::Category::Eof => "ends too early".to_owned(),
                _ => format!("is broken at line {} column {}", error.line(), error.column()),
            };
            Error::permanent(format!("the JSON {why}")).rule("RFC 8259")
        },
    )
}

/// Reads a document again with what Python's `json` takes and JSON has not: numbers that are beyond what a computer counts with (`1e999`),
/// `NaN`, `Infinity` and `-Infinity` as texts, as they are written, and half a surrogate pair as U+FFFD. One such value makes no whole
/// document unreadable. Nothing where there is none, or something else is wrong too.
fn parse_as_python(bytes: &[u8], budget: usize, rejection: &json::JsonRejection) -> Option<Value> {
    if !matches!(rejection, json::JsonRejection::Json(error) if !error.is_eof()) {
        return None;
    }
    let mut out = Vec::with_capacity(bytes.len());
    let (mut rest, mut in_text) = (bytes, false);
    while !rest.is_empty() {
        let (taken, is_non_json) = if in_text { (0, false) } else { number(rest) };
        let (taken, replacement) = match rest {
            [b'"', ..] => (1, None),
            [b'\\', b'u', ..] if in_text => escape(rest),
            [b'\\', _, ..] if in_text => (2, None),
            _ => (taken.max(1), None),
        };
        in_text ^= rest.first() == Some(&b'"');
        let (copied, after) = rest.split_at(taken);
        out.extend(is_non_json.then_some(b'"'));
        out.extend_from_slice(replacement.unwrap_or(copied));
        out.extend(is_non_json.then_some(b'"'));
        rest = after;
    }
    json::value(&out, budget).ok()
}

/// Bytes of the number at the beginning, 0 where there is none, and whether it is one that JSON has not.
fn number(rest: &[u8]) -> (usize, bool) {
    if let Some(word) = json::NON_JSON_NUMBERS.into_iter().find(|word| rest.starts_with(word.as_bytes())) {
        return (word.len(), true);
    }
    let is_of_number = |byte: &u8| byte.is_ascii_digit() || matches!(byte, b'+' | b'-' | b'.' | b'e' | b'E');
    let length = rest.iter().take_while(|byte| is_of_number(byte)).count();
    let value = rest.get(..length).and_then(|word| std::str::from_utf8(word).ok()).and_then(|word| word.parse::<f64>().ok());
    (length, value.is_some_and(f64::is_infinite))
}

/// Bytes of the `\u` escape at the beginning, a pair of two as one, and what stands in for one that is half a pair.
fn escape(rest: &[u8]) -> (usize, Option<&'static [u8]>) {
    let unit = |at: usize| {
        let digits = rest.get(at..at + 6)?.strip_prefix(b"\\u")?;
        u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
    };
    match (unit(0), unit(6)) {
        (Some(0xd800..=0xdbff), Some(0xdc00..=0xdfff)) => (12, None),
        (Some(0xd800..=0xdfff), _) => (6, Some(b"\\ufffd")),
        _ => (2, None),
    }
}

/// What a document is that is not even text of the right kind.
fn other_than_json(bytes: &[u8]) -> Option<&'static str> {
    let text = bytes.trim_ascii_start();
    let begins = |with: &str| text.get(..with.len()).is_some_and(|start| start.eq_ignore_ascii_case(with.as_bytes()));
    match text.first() {
        None => Some("empty"),
        Some(b'<') if begins("<!doctype html") || begins("<html") => Some("an HTML page"),
        Some(b'<') => Some("XML"),
        _ if bytes.starts_with(&[0x1f, 0x8b]) => Some("compressed (gzip)"),
        _ if std::str::from_utf8(bytes).is_err() => Some("not UTF-8"),
        _ => None,
    }
}

/// The word for an error about a value of the wrong kind.
pub(super) fn not_an_object(kind: &str) -> Error {
    Error::permanent(format!("the metadata is {kind}, not an object")).rule("a server's metadata is a JSON object")
}

/// What a value is.
pub(super) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// Parts of a document that are of the wrong kind: places for `MetadataPartInvalid`.
pub(super) fn invalid_parts(document: &Map<String, Value>, deployment_keys: &[String]) -> Vec<String> {
    let lists = deployment_keys.iter().map(|key| (key.as_str(), Value::is_array as fn(&Value) -> bool, "a list"));
    let mut warnings = Vec::new();
    for (key, good, wanted) in lists.chain([("os-collect-config", Value::is_object as fn(&Value) -> bool, "an object")]) {
        if let Some(value) = document.get(key).filter(|value| !value.is_null() && !good(value)) {
            warnings.push(format!("{key} is {}, not {wanted}; it is ignored", kind(value)));
        }
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_object_is_named() {
        let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
        for (text, words) in [
            ("", "is empty, not JSON"),
            ("{", "ends too early"),
            ("{\"hush\" 1}", "is broken at line 1 column 9"),
            ("[]", "is a list, not an object"),
            ("null", "is null, not an object"),
            (deep.as_str(), "nested more than 96 levels deep"),
            ("{\"a\": \"\u{0}\"}", "is broken at line 1"),
        ] {
            let error = object(text.as_bytes()).unwrap_err();
            assert!(error.cause().contains(words), "{text}: {error}");
            assert!(!error.to_string().contains("hush"));
        }
        assert!(object(&[b'{', b'"', 0xff, b'"', b':', b'1', b'}']).is_err());
    }

    /// Attack: one of these anywhere in an answer took the whole source away, and every deployment with it.
    #[test]
    fn what_pythons_json_takes_refuses_nothing_else() {
        let text = r#"{"a": NaN, "b": [-Infinity, Infinity, 1], "c": "NaN \" -Infinity \\", "NaN": "\ud800x", "d": "\ud83d\ude00 \udc00\\ud800"}"#;
        let read = Value::Object(object(text.as_bytes()).unwrap());
        let expected = serde_json::json!({"a": "NaN", "b": ["-Infinity", "Infinity", 1], "c": "NaN \" -Infinity \\", "NaN": "\u{fffd}x",
            "d": "\u{1f600} \u{fffd}\\ud800"});
        assert_eq!(read, expected);
        for bad in ["{\"a\": nan}", "{\"a\": NaN1}", "{\"a\": xNaN}", "{\"a\": --Infinity}", "{\"a\": NaN", "{\"a\": \"\\ud80\"}"]
        {
            assert!(object(bad.as_bytes()).unwrap_err().cause().starts_with("the JSON "), "{bad}");
        }
    }

    #[test]
    fn a_number_beyond_all_bounds_stays_as_it_is_written_and_refuses_nothing_else() {
        let text = r#"{"a": 1e999, "b": [-1E+400, 2.5, 1e-999], "c": "1e999 \" 1e999", "d": {"1e999": 12345678901234567890123}}"#;
        let read = Value::Object(object(text.as_bytes()).unwrap());
        assert_eq!(
            (&read["a"], &read["b"][0], &read["b"][1]),
            (&Value::from("1e999"), &Value::from("-1E+400"), &Value::from(2.5))
        );
        assert_eq!((&read["c"], read["d"]["1e999"].is_number()), (&Value::from("1e999 \" 1e999"), true));
        for bad in ["{\"a\": 1e999", "{\"a\": 1e999e}", "{\"a\": --1e999}", "{\"a\": 1e999 2}", "{\"a\": \"1e999}"] {
            assert!(object(bad.as_bytes()).unwrap_err().cause().starts_with("the JSON "), "{bad}");
        }
    }
}
