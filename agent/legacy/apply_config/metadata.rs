//! Which files the metadata is in, and how they become one document (heat-protocol.md 6.3).

use std::path::Path;

use serde_json::{Map, Value};

use super::super::arguments::Given;
use super::super::log::Log;
use super::super::machine::{Machine, variable};
use crate::error::{Error, Result};

const LIST: &str = "/var/lib/os-collect-config/os_config_files.json";
const OLD_LIST: &str = "/var/run/os-collect-config/os_config_files.json";
const FALLBACK: [&str; 3] =
    ["/var/cache/heat-cfntools/last_metadata", "/var/lib/heat-cfntools/cfn-init-data", "/var/lib/cloud/data/cfn-init-data"];

/// The files that may be there, those that count least first.
pub(super) fn files(machine: &Machine, given: &Given, log: &mut Log) -> Result<Vec<String>> {
    let mut files = match given.list("fallback-metadata") {
        Some(files) => files.to_vec(),
        None => FALLBACK.map(str::to_owned).to_vec(),
    };
    match given.list("metadata").filter(|files| !files.is_empty()) {
        Some(named) => files.extend_from_slice(named),
        None => match variable("OS_CONFIG_FILES") {
            Some(named) => files.extend(named.split(':').map(str::to_owned)),
            None => files.extend(listed(machine, given, log)?),
        },
    }
    Ok(files)
}

/// What os-collect-config lists; of one that lists nothing, what it once listed elsewhere.
fn listed(machine: &Machine, given: &Given, log: &mut Log) -> Result<Vec<String>> {
    let usual = variable("OS_CONFIG_FILES_PATH").unwrap_or_else(|| LIST.to_owned());
    let list = given.value("os-config-files").unwrap_or(&usual);
    let files = list_in(machine, list)?;
    if files.is_empty() && list == usual {
        log.warning(&format!("{list} lists no files: {OLD_LIST} is used, which is deprecated"));
        return list_in(machine, OLD_LIST);
    }
    Ok(files)
}

fn list_in(machine: &Machine, list: &str) -> Result<Vec<String>> {
    let no_list = || Error::permanent(format!("{list} is not a list of names of files"));
    let Some(value) = machine.json(list)? else { return Ok(Vec::new()) };
    let items = value.as_array().ok_or_else(no_list)?;
    items.iter().filter(|item| !item.is_null()).map(|item| item.as_str().map(str::to_owned).ok_or_else(no_list)).collect()
}

/// The documents of those files that are there, one over the other.
///
/// # Errors
/// If a file cannot be read or is no JSON.
pub(super) fn merged(machine: &Machine, files: &[String]) -> Result<Value> {
    let mut all = Map::new();
    for file in files.iter().filter(|file| !file.is_empty()) {
        if machine.kind(Path::new(file)).is_none() {
            continue;
        }
        if let Some(Value::Object(document)) = machine.json(file)? {
            merge(&mut all, document);
        }
    }
    Ok(Value::Object(all))
}

/// Objects member by member; whatever else the later document has replaces what there was.
fn merge(all: &mut Map<String, Value>, document: Map<String, Value>) {
    for (name, value) in document {
        match (all.get_mut(&name), value) {
            (Some(Value::Object(before)), Value::Object(value)) => merge(before, value),
            (_, value) => {
                all.insert(name, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn objects_are_merged_and_everything_else_is_replaced() {
        for (before, after, merged) in [
            (json!({"a": {"b": 1, "c": [1]}}), json!({"a": {"c": [], "d": {}}}), json!({"a": {"b": 1, "c": [], "d": {}}})),
            (json!({"a": {"b": 1}}), json!({"a": null}), json!({"a": null})),
            (json!({"a": [{"b": 1}]}), json!({"a": [{"c": 1}]}), json!({"a": [{"c": 1}]})),
            (json!({"a": 1, "b": 2}), json!({"a": {"x": 1}}), json!({"a": {"x": 1}, "b": 2})),
        ] {
            let (Value::Object(mut all), Value::Object(after)) = (before, after) else { unreachable!() };
            merge(&mut all, after);
            assert_eq!(Value::Object(all), merged);
        }
    }
}
