//! Documents as sources deliver them: bytes → one JSON object.

use serde_json::{Map, Value};

use super::entries::Entries;
use crate::budgets::{DOCUMENT_MEMORY, json, python_json};
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
    python_json::value(bytes, budget).map_err(|rejection| {
        let json::JsonRejection::Json(error) = rejection else { return rejection.into() };
        let why = match error.classify() {
            serde_json::error::Category::Eof => "ends too early".to_owned(),
            _ => format!("is broken at line {} column {}", error.line(), error.column()),
        };
        Error::permanent(format!("the JSON {why}")).rule("RFC 8259")
    })
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
