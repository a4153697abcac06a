//! The settings of a component that reads a configuration file: each one is a field of that file where the minor has it,
//! else a flag. So one list of settings serves every minor, and `versions` alone decides where each of them stands.

use serde_json::{Map, Value, json};

use super::daemon::Flags;
use crate::kubernetes::text::yaml;
use crate::kubernetes::versions::{Availability, Component, ConfigKind, Minor, field};

/// A component's settings in the making.
pub(in crate::kubernetes) struct Settings {
    kind: ConfigKind,
    minor: Minor,
    file: Map<String, Value>,
    /// What stands on the command line.
    pub(in crate::kubernetes) flags: Flags,
    /// Whether everything has to stand there.
    flags_only: bool,
}

impl Settings {
    pub(in crate::kubernetes) fn new(component: Component, kind: ConfigKind, minor: Minor, flags_only: bool) -> Self {
        Self { kind, minor, file: Map::new(), flags: Flags::new(component, minor), flags_only }
    }

    /// Puts a setting where the minor reads it; it is left out where the minor has neither field nor flag.
    pub(in crate::kubernetes) fn set(&mut self, path: &str, flag: &'static str, value: Value) {
        if self.has_field(path) {
            insert(&mut self.file, path, value);
        } else if !flag.is_empty() {
            self.flags.set(flag, text(&value));
        }
    }

    /// Whether a setting would stand in the file.
    pub(in crate::kubernetes) fn has_field(&self, path: &str) -> bool {
        !self.flags_only
            && self.kind.api_version(self.minor).is_some()
            && matches!(field(self.kind, self.minor, path), Availability::Known | Availability::Unknown)
    }

    /// The file, where there is anything to say in it.
    pub(in crate::kubernetes) fn document(&self) -> Option<String> {
        let version = self.kind.api_version(self.minor).filter(|_| !self.file.is_empty())?;
        let mut document = Map::new();
        document.insert("apiVersion".to_owned(), json!(version));
        document.insert("kind".to_owned(), json!(self.kind.kind()));
        document.extend(self.file.clone());
        Some(yaml::document(&Value::Object(document)))
    }
}

fn insert(map: &mut Map<String, Value>, path: &str, value: Value) {
    match path.split_once('.') {
        None => {
            map.insert(path.to_owned(), value);
        }
        Some((first, rest)) => {
            let inner = map.entry(first).or_insert_with(|| Value::Object(Map::new()));
            if let Some(inner) = inner.as_object_mut() {
                insert(inner, rest, value);
            }
        }
    }
}

/// A value as a flag spells it: items between commas, a map's as `key=value`.
fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(text).collect::<Vec<_>>().join(","),
        Value::Object(map) => map.iter().map(|(key, value)| format!("{key}={}", text(value))).collect::<Vec<_>>().join(","),
        other => other.to_string(),
    }
}
