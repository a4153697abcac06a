//! What the hooks have in common: their answer, and where and how they write.

use std::path::{Component, Path, PathBuf};

use serde_json::{Map, Value};

use super::super::machine::{Machine, variable};
use crate::error::{Context, Error, Result};
use crate::files::{Attributes, FileKind, masked};
use crate::programs::child::Heard;
use crate::programs::json_size;

/// Bytes of each stream of a program that a result has, at most: the last ones. heat-config-notify cuts further, to what Heat takes.
pub(in super::super) const STREAM: u64 = 4 * 1024 * 1024;

/// Bytes of an answer as ASCII-escaped JSON: two streams of [`STREAM`] as a rule. 55-heat-config hears twice as much.
const ANSWER: usize = 8 * 1024 * 1024;

/// What a hook answers.
pub(super) type HookAnswer = Map<String, Value>;

/// Cuts the longest values of an answer to both ends, so that it can be heard to its end whatever it consists of: a character of an output is
/// up to six bytes of JSON.
pub(super) fn bound(answer: &mut HookAnswer) {
    let names: usize = answer.keys().map(|name| json_size::size_of_name(name)).sum();
    let each = json_size::share(answer.values().map(json_size::size_of_value), ANSWER.saturating_sub(names));
    answer.values_mut().for_each(|value| json_size::cut_value(value, each));
}

/// What a program said and how it ended, after the outputs.
pub(super) fn result(mut outputs: HookAnswer, heard: &Heard) -> HookAnswer {
    let text = |bytes: &[u8]| Value::String(String::from_utf8_lossy(bytes).into_owned());
    outputs.insert("deploy_stdout".to_owned(), text(&heard.out));
    outputs.insert("deploy_stderr".to_owned(), text(&heard.err));
    bound(&mut outputs);
    outputs.insert("deploy_status_code".to_owned(), heard.status.into());
    outputs
}

/// A place that a variable of the environment may name.
pub(in super::super) fn directory(machine: &Machine, name: &str, usual: &str) -> PathBuf {
    machine.path(variable(name).unwrap_or_else(|| usual.to_owned()))
}

/// Makes a directory for root alone; those above it as anybody would.
pub(in super::super) fn prepare(machine: &Machine, directory: &Path) -> Result<()> {
    if machine.kind(directory) == Some(FileKind::Directory) {
        return Ok(());
    }
    if let Some(above) = directory.parent() {
        machine.root.create_dir_all(above, Attributes::mode(masked(0o777)))?;
    }
    machine.root.create_dir(directory, Attributes::mode(0o700))
}

/// Writes a file in the place that a path leads to; one that is there keeps its mode and owner.
pub(super) fn write(machine: &Machine, path: &Path, text: &str, mode: u32) -> Result<()> {
    let there = machine.root.facts_followed(path)?;
    let attributes =
        there.map_or(Attributes::mode(mode), |facts| Attributes { mode: facts.mode & 0o777, owner: Some(facts.owner) });
    let is_link = machine.root.facts(path)?.is_some_and(|facts| facts.kind == FileKind::Link);
    let place = if is_link { path.canonicalize().context(|| format!("resolving {}", path.display()))? } else { path.to_owned() };
    machine.root.write(&place, text.as_bytes(), attributes)
}

/// A name that stays below the directory that it is put behind (heat-protocol.md R21).
pub(super) fn harmless<'t>(name: &'t str, what: &str) -> Result<&'t str> {
    let path = Path::new(name);
    let is_plain = path.components().all(|part| matches!(part, Component::Normal(_)));
    if name.is_empty() || name.ends_with('/') || name.contains('\0') || !is_plain {
        return Err(Error::permanent(format!("the {what} {name:?} cannot be the name of a file")));
    }
    Ok(name)
}

/// The same for one that has no directories in it.
pub(in super::super) fn plain<'t>(name: &'t str, what: &str) -> Result<&'t str> {
    match harmless(name, what)? {
        name if name.contains('/') => Err(Error::permanent(format!("the {what} {name:?} cannot be the name of a file"))),
        name => Ok(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::READ_LIMIT;

    /// Attack: a script that succeeded and printed 4 MiB that JSON writes as 24 was reported to Heat as failed, by 55-heat-config.
    #[test]
    fn an_answer_can_be_heard_whatever_was_printed_and_written() {
        for (text, outputs) in [("ж", 0), ("\0", 0), ("x", 3), ("\u{1}", 3)] {
            let long = format!("BEGIN{}END", text.repeat(4 * 1024 * 1024 / text.len()));
            let heard = Heard { status: 0, out: long.clone().into(), is_cut: false, err: long.clone().into() };
            let outputs: HookAnswer = (0..outputs).map(|n| (n.to_string(), long.clone().into())).collect();
            let answer = result(outputs, &heard);
            assert_eq!(answer["deploy_status_code"], 0);
            for text in answer.values().filter_map(Value::as_str) {
                assert!(text.starts_with("BEGIN") && text.ends_with("END"));
            }
            let written = crate::metadata::python_json(&Value::Object(answer));
            assert!(
                (ANSWER / 2..=ANSWER + 100).contains(&written.len()) && written.len() as u64 <= READ_LIMIT / 2 + 100,
                "{}",
                written.len()
            );
        }
    }

    #[test]
    fn names_stay_in_their_directory() {
        for name in ["a", "a.b", "é", "..a", "b1a6a2f0-52d3"] {
            assert!(plain(name, "id").is_ok(), "{name}");
        }
        for name in ["", ".", "..", "../a", "/a", "a/../b", "a/", "a\0"] {
            assert!(harmless(name, "id").is_err() && plain(name, "id").is_err(), "{name:?}");
        }
        assert!(harmless("nodes/a", "name").is_ok() && plain("nodes/a", "name").is_err());
    }
}
