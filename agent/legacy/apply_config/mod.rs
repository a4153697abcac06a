//! os-apply-config: templates and the metadata of the machine become files (heat-protocol.md 6.3, 6.4).

mod control;
mod install;
mod key;
mod metadata;
mod types;

use super::arguments::{self, Given, RELEASE, Switch, Takes, ToolResult};
use super::log::Log;
use super::machine::{Machine, variable};
use crate::error::{Error, Result};
use crate::files::FileKind;
use crate::output::print;
use install::Templates;

const DEFAULT_TEMPLATES: &str = "/usr/libexec/os-apply-config/templates";
const OLD_TEMPLATES: [&str; 2] = ["/opt/stack/os-apply-config/templates", "/opt/stack/os-config-applier/templates"];
const LOG_FILE: &str = "/var/log/os-apply-config.log";

const SWITCHES: &[Switch] = &[
    (Some('t'), "templates", Takes::One, "the tree of templates"),
    (Some('o'), "output", Takes::One, "the directory below which files are written (/)"),
    (Some('m'), "metadata", Takes::List, "files of metadata, in place of those in OS_CONFIG_FILES"),
    (None, "fallback-metadata", Takes::List, "files of metadata that count least"),
    (Some('v'), "validate", Takes::Nothing, "render the templates and write nothing"),
    (None, "print-templates", Takes::Nothing, "print where the templates are and exit"),
    (Some('s'), "subhash", Takes::One, "use this part of the metadata, named by its path"),
    (None, "key", Takes::One, "print the value of this path in the metadata and exit"),
    (None, "type", Takes::One, "what the value must be: int, default, netaddress, netdevice, dsn, swiftdevices, username or raw"),
    (None, "key-default", Takes::One, "print this where the key is missing"),
    (
        None,
        "boolean-key",
        Takes::One,
        "exit with 0 where the value is true, with 1 where it is false, with 255 where it is neither",
    ),
    (None, "version", Takes::Nothing, "print the release that this follows and exit"),
    (None, "os-config-files", Takes::One, "the file that lists the files of metadata"),
];

/// Runs the tool.
pub(super) fn run(arguments: &[String]) -> ToolResult {
    let Some(given) = arguments::read("os-apply-config", "", SWITCHES, arguments)? else { return Ok(0) };
    if let Some(word) = given.words.first() {
        return Err(arguments::Wrong::Usage {
            usage: "usage: os-apply-config [OPTIONS]; os-apply-config --help lists them".to_owned(),
            what: format!("unrecognized arguments: {word}"),
        });
    }
    if given.has("version") {
        print(&format!("{RELEASE} (heat-node-agent {})\n", env!("CARGO_PKG_VERSION")))?;
        return Ok(0);
    }
    let machine = Machine::new()?;
    let (root, is_deprecated) = templates(&machine, &given);
    if given.has("print-templates") {
        print(&format!("{root}\n"))?;
        return Ok(0);
    }
    let mut log = Log::with_file(&machine, std::path::Path::new(LOG_FILE));
    if is_deprecated {
        log.warning(&format!("the templates in {root} belong in {DEFAULT_TEMPLATES}"));
    }
    match work(&machine, &given, &root, &mut log) {
        Ok(status) => Ok(status),
        Err(error) => {
            for line in error.lines() {
                log.error(&line);
            }
            Ok(1)
        }
    }
}

fn work(machine: &Machine, given: &Given, root: &str, log: &mut Log) -> Result<u8> {
    let key = given.value("key").filter(|key| !key.is_empty());
    let boolean_key = given.value("boolean-key").filter(|key| !key.is_empty());
    if key.is_some() && boolean_key.is_some() {
        log.warning("--boolean-key is ignored beside --key");
    }
    let files = metadata::files(machine, given, log)?;
    let config = metadata::merged(machine, &files)?;
    if let Some(key) = key {
        let kind = given.value("type").unwrap_or("default");
        print(&format!("{}\n", key::printed(&config, key, kind, given.value("key-default"))?))?;
        return Ok(0);
    }
    if let Some(key) = boolean_key {
        return Ok(match key::found(&config, key).and_then(serde_json::Value::as_bool) {
            Some(true) => 0,
            Some(false) => 1,
            None => 255,
        });
    }
    let config = match given.value("subhash").filter(|path| !path.is_empty()) {
        Some(path) => part(&config, path)?,
        None => &config,
    };
    let templates = Templates { machine, root, output: given.value("output").unwrap_or("/"), config };
    templates.install(given.has("validate"), log)?;
    log.info("success");
    Ok(0)
}

/// Where the templates are, and whether that is a place that nobody should use any more.
fn templates(machine: &Machine, given: &Given) -> (String, bool) {
    if let Some(root) = given.value("templates").map(str::to_owned).or_else(|| variable("OS_CONFIG_APPLIER_TEMPLATES")) {
        return (root, false);
    }
    let is_there = |path: &&str| machine.kind(path) == Some(FileKind::Directory);
    match OLD_TEMPLATES.into_iter().find(is_there) {
        Some(old) if !is_there(&DEFAULT_TEMPLATES) => (old.to_owned(), true),
        _ => (DEFAULT_TEMPLATES.to_owned(), false),
    }
}

/// An object in the metadata by its path.
fn part<'v>(config: &'v serde_json::Value, path: &str) -> Result<&'v serde_json::Value> {
    let step = |value: &'v serde_json::Value, name| value.get(name).filter(|value| value.is_object());
    path.split('.').try_fold(config, step).ok_or_else(|| Error::permanent(format!("the metadata has no object {path}")))
}
