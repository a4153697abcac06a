//! What a network source said last, kept over restarts and reboots (heat-protocol.md R11).

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::entries::Entries;
use super::section::DEPLOYMENTS;
use super::source_set::Stored;
use crate::budgets::json;
use crate::clock::Timestamp;
use crate::error::{Error, ErrorKind, Result};
use crate::files::{Attributes, Tree};
use crate::report::{Code, Event, Report};
use crate::settings::source_name::SourceName;

/// The form of the file; another one is not read.
const VERSION: u32 = 1;

/// The kept document.
#[derive(serde::Deserialize)]
pub(super) struct Cached {
    version: u32,
    /// When the poll began that it answered.
    pub(super) fetched_at: Timestamp,
    /// Digest of the local settings under which it was fetched.
    #[serde(rename = "basis")]
    pub(super) files_digest: String,
    /// The settings by which it was fetched; none where an earlier version fetched it.
    #[serde(default)]
    pub(super) asked: Option<Stored>,
    /// As delivered.
    #[serde(deserialize_with = "json::document")]
    pub(super) document: Map<String, Value>,
}

fn path(source: SourceName) -> PathBuf {
    format!("cache/{}.json", source.as_str()).into()
}

/// Reads what was kept, and changes nothing: who only looks holds no lock.
///
/// # Errors
/// Permanent, if it cannot be understood or is of another version; any other means trouble with the disk.
pub(super) fn read(state: &Tree, source: SourceName) -> Result<Option<Cached>> {
    let path = path(source);
    match state.read_json::<Cached>(&path)? {
        Some(cached) if cached.version != VERSION => {
            Err(Error::permanent(format!("it has version {}, expected {VERSION}", cached.version))
                .context(format!("reading {}", path.display())))
        }
        cached => Ok(cached),
    }
}

/// Puts away what cannot be understood, which is the same as none then, and logs it (heat-protocol.md R2).
pub(super) fn quarantine(state: &Tree, source: SourceName, report: &Report, why: &Error) {
    quarantine_file(state, &path(source), report, why);
}

/// The same of another file of what was collected.
pub(super) fn quarantine_file(state: &Tree, path: &Path, report: &Report, why: &Error) {
    let done = if why.kind() == ErrorKind::Permanent {
        state.quarantine(path, report, Code::StateFileQuarantined, why)
    } else {
        Err(why.clone())
    };
    if let Err(error) = done {
        // Trouble with the disk may pass; until then it is as if nothing was kept.
        let event = Event::new(Code::StateFileQuarantined, format!("{} cannot be used", path.display()));
        report.emit(event.error(&error));
    }
}

/// Keeps a document, readable for root only: it holds keys and passwords (heat-protocol.md R51).
pub(super) fn store(
    state: &Tree,
    source: SourceName,
    fetched_at: Timestamp,
    files_digest: &str,
    asked: Option<&Stored>,
    document: &Map<String, Value>,
    deployments: Option<&Entries>,
) -> Result<()> {
    let head =
        serde_json::json!({"version": VERSION, "fetched_at": fetched_at, "basis": files_digest, "asked": asked}).to_string();
    // Written by hand: the deployments are texts already.
    let mut text = format!("{},\"document\":{{", head.strip_suffix('}').unwrap_or(&head));
    // A list below this key that is not one of the keys in use must not come back as the list in force.
    for (key, value) in document.iter().filter(|(key, _)| *key != DEPLOYMENTS) {
        text += &Value::from(key.as_str()).to_string();
        text.push(':');
        text += &value.to_string();
        text.push(',');
    }
    match deployments {
        Some(list) => {
            text += &format!("\"{DEPLOYMENTS}\":[");
            for (at, entry) in list.texts().enumerate() {
                text += if at == 0 { "" } else { "," };
                text += entry;
            }
            text.push(']');
        }
        None => text.truncate(text.trim_end_matches(',').len()),
    }
    text += "}}\n";
    state.create_dir(Path::new("cache"), Attributes::mode(0o700))?;
    state.write(&path(source), text.as_bytes(), Attributes::mode(0o600))
}

/// Removes what was kept.
pub(super) fn remove(state: &Tree, source: SourceName) -> Result<()> {
    state.remove(&path(source)).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_comes_back_and_a_broken_file_is_quarantined() {
        let dir = tempfile::tempdir().unwrap();
        let state = Tree::open(dir.path()).unwrap();
        let report = Report::kept();
        let read = || read(&state, SourceName::Cfn);
        assert!(read().unwrap().is_none());
        let document = serde_json::json!({"deployments": []}).as_object().unwrap().clone();
        let (none, list) = (Map::new(), Entries::new(Vec::new()).unwrap());
        store(&state, SourceName::Cfn, Timestamp(5), "b", None, &none, Some(&list)).unwrap();
        let file = Path::new("cache/cfn.json");
        assert_eq!(state.facts(file).unwrap().unwrap().mode, 0o600);
        let cached = read().unwrap().unwrap();
        assert_eq!((cached.fetched_at, cached.files_digest.as_str(), cached.document), (Timestamp(5), "b", document));
        assert!(report.events().is_empty());
        for bad in [
            "",
            "{",
            "[]",
            "{\"version\": 9, \"fetched_at\": 1, \"basis\": \"\", \"document\": {}}",
            "{\"version\": 1, \"document\": []}",
        ] {
            state.write(file, bad.as_bytes(), Attributes::mode(0o600)).unwrap();
            let why = read().err().unwrap();
            assert!(state.facts(file).unwrap().is_some(), "who only looks renames nothing");
            quarantine(&state, SourceName::Cfn, &report, &why);
            assert_eq!(state.facts(file).unwrap(), None);
            assert_eq!(state.read(Path::new("cache/cfn.unreadable"), 100).unwrap(), Some(bad.as_bytes().to_vec()));
        }
        assert_eq!(report.events().len(), 5);
        assert_eq!(report.events()[0].code, Code::StateFileQuarantined);
    }
}
