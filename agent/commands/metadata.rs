//! `metadata [--key K] [--source S] [--show-secrets] [--json]`: what was collected.

use std::process::ExitCode;

use serde_json::{Value, json};

use super::{document, print};
use crate::daemon::masking::masked;
use crate::error::{Error, Result};
use crate::process::{CommonOptions, exit};
use crate::report::text::{escaped, json_page};
use crate::settings::{Settings, distance};

/// How many names are offered where one is not there.
const OFFERED: usize = 8;

/// What the command line of `metadata` says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Arguments {
    /// Dotted key of one value.
    pub key: Option<String>,
    /// One source in place of all merged.
    pub source: Option<String>,
    /// Nothing is masked.
    pub show_secrets: bool,
    /// The value in a document of its own.
    pub json: bool,
}

/// Prints the merged document, or that of one source, or one value of it by its dotted key.
///
/// # Errors
/// If nothing was collected, or the key is not there.
pub fn run(options: &CommonOptions, settings: &Settings, wanted: &Arguments) -> Result<ExitCode> {
    let whole = Value::Object(match &wanted.source {
        Some(source) => document::of_source(settings, source)?,
        None => document::read(options, settings)?,
    });
    let shown = if wanted.show_secrets { whole } else { masked(&whole) };
    let value = wanted.key.as_deref().map_or(Ok(&shown), |key| lookup(&shown, key))?;
    let text = match value {
        _ if wanted.json => json_page(&page_of(wanted, value)),
        Value::String(text) => format!("{text}\n"),
        other => json_page(other),
    };
    print(&text)?;
    Ok(exit::OK)
}

/// What was asked for, for programs (docs/schemas/metadata.json).
fn page_of(wanted: &Arguments, value: &Value) -> Value {
    let (source, key, masked) = (&wanted.source, &wanted.key, !wanted.show_secrets);
    json!({"schema_version": 1, "source": source, "key": key, "masked": masked, "value": value})
}

/// Members by name, list items by index (also from the end, negative); null counts as missing (heat-protocol.md 6.4).
fn lookup<'a>(document: &'a Value, key: &str) -> Result<&'a Value> {
    let mut value = document;
    let mut walked: Vec<&str> = Vec::new();
    for part in key.split('.') {
        let next = match value {
            Value::Object(members) => members.get(part),
            Value::Array(items) => index(part, items.len()).and_then(|at| items.get(at)),
            _ => None,
        };
        value = next.filter(|next| !next.is_null()).ok_or_else(|| missing(value, &walked.join("."), part))?;
        walked.push(part);
    }
    Ok(value)
}

fn index(part: &str, length: usize) -> Option<usize> {
    let index: i64 = part.parse().ok()?;
    let length = i64::try_from(length).ok()?;
    usize::try_from(if index < 0 { index + length } else { index }).ok()
}

/// What is there instead, the nearest name first.
fn missing(value: &Value, walked: &str, part: &str) -> Error {
    let place = if walked.is_empty() { "the metadata".to_owned() } else { format!("{walked:?}") };
    let rule = match value {
        Value::Object(members) => {
            let mut names: Vec<&String> = members.iter().filter(|(_, value)| !value.is_null()).map(|(name, _)| name).collect();
            names.sort_by_key(|name| distance(part, name));
            let rest = if names.len() > OFFERED { ", …" } else { "" };
            names.truncate(OFFERED);
            match &names[..] {
                [] => "it is empty".to_owned(),
                names => format!("it has {}{rest}", names.iter().map(|name| escaped(name)).collect::<Vec<_>>().join(", ")),
            }
        }
        Value::Array(items) if items.is_empty() => "it is an empty list".to_owned(),
        Value::Array(items) => format!("it is a list with items 0 to {}", items.len() - 1),
        _ => "it is a single value".to_owned(),
    };
    Error::permanent(format!("there is no {part:?} in {place}; {rule}"))
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
            assert_eq!(lookup(&value, key).ok().cloned(), found, "{key}");
        }
    }

    #[test]
    fn a_missing_key_is_reported_with_what_is_there_the_nearest_first() {
        let value = json!({"os-collect-config": {"cfn": {}, "heat": {}, "polling": 3}, "deployments": [1, 2], "e": []});
        for (key, words) in [
            ("os-collect-confg.cfn", "there is no \"os-collect-confg\" in the metadata; it has os-collect-config, "),
            ("os-collect-config.cfm", "there is no \"cfm\" in \"os-collect-config\"; it has cfn, "),
            ("deployments.2", "there is no \"2\" in \"deployments\"; it is a list with items 0 to 1"),
            ("deployments.0.x", "in \"deployments.0\"; it is a single value"),
            ("os-collect-config.cfn.x", "it is empty"),
            ("e.0", "it is an empty list"),
        ] {
            let error = lookup(&value, key).unwrap_err().to_string();
            assert!(error.contains(words), "{key}: {error}");
        }
    }

    #[test]
    fn documents_fit_their_schema() {
        let arguments = |key: Option<&str>, source: Option<&str>| Arguments {
            key: key.map(str::to_owned),
            source: source.map(str::to_owned),
            show_secrets: key.is_some(),
            json: true,
        };
        for given in [arguments(None, None), arguments(Some("a.0"), Some("cfn"))] {
            for value in [json!(null), json!("x"), json!({"a": [1]})] {
                crate::report::schema::assert_fits("metadata", &page_of(&given, &value));
            }
        }
    }
}
