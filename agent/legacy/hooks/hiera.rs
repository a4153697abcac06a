//! The hook of group `hiera`: puppet's hierarchy and its data files.

use serde_json::{Map, Value};

use super::super::machine::{Machine, variable};
use super::shared::{HookAnswer, STREAM, directory, harmless, prepare, result, write};
use crate::error::{Error, Result};
use crate::metadata::{python_json_sorted, python_text};
use crate::programs::child::{Child, Heard};

const REFUSED: &str = "os-apply-config has data of hiera in the metadata (key hiera.datafiles): move it into deployments of group hiera before \
     this hook is used";

/// Writes the hierarchy and the data files of a deployment.
pub(super) fn run(machine: &Machine, deployment: &Map<String, Value>) -> Result<HookAnswer> {
    let none = Map::new();
    let config = match deployment.get("config") {
        Some(Value::Object(config)) => config,
        Some(Value::String(text)) if text.is_empty() => &none,
        Some(Value::Array(items)) if items.is_empty() => &none,
        _ => return Err(Error::permanent("the config is no map")),
    };
    if has_legacy_data() {
        return Ok(result(HookAnswer::new(), &Heard { status: 1, err: REFUSED.into(), ..Heard::default() }));
    }
    let data = directory(machine, "HEAT_PUPPET_HIERA_DATADIR", "/etc/puppet/hieradata");
    prepare(machine, &data)?;
    if let Some(hierarchy) = config.get("hierarchy") {
        let items = hierarchy.as_array().ok_or_else(|| Error::permanent("the hierarchy is no list"))?;
        let shown = variable("HEAT_PUPPET_HIERA_DATADIR").unwrap_or_else(|| "/etc/puppet/hieradata".to_owned());
        let mut text = format!("\n---\n:backends:\n  - json\n:json:\n  :datadir: {shown}\n:hierarchy:\n");
        for item in items {
            text += &format!("  - {}\n", python_text(item));
        }
        write(machine, &directory(machine, "HEAT_HIERA_CONFIG", "/etc/puppet/hiera.yaml"), &text, 0o600)?;
    }
    if let Some(files) = config.get("datafiles") {
        let files = files.as_object().ok_or_else(|| Error::permanent("the datafiles are no map"))?;
        for (name, content) in files {
            let path = data.join(format!("{}.json", harmless(name, "data file")?));
            write(machine, &path, &python_json_sorted(content, 4), 0o600)?;
        }
    }
    Ok(result(HookAnswer::new(), &Heard::default()))
}

/// Whether os-apply-config, or what the environment names, finds data of the old way. What is not installed finds nothing.
fn has_legacy_data() -> bool {
    let child = if let Some(command) = variable("HEAT_HIERA_ELEMENT_CHECK_CMD") {
        let (program, arguments) =
            command.split_once(' ').map_or((command.as_str(), None), |(program, rest)| (program, Some(rest)));
        arguments.into_iter().flat_map(|rest| rest.split(' ')).fold(Child::new(program), Child::argument)
    } else {
        let words = ["--key", "hiera.datafiles", "--type", "raw", "--key-default", "empty"];
        words.into_iter().fold(Child::own("os-apply-config"), Child::argument)
    };
    child.hear(b"", STREAM).is_ok_and(|heard| String::from_utf8_lossy(&heard.out).trim_end() != "empty")
}
