//! The secrets that the documents of this machine hold: what no command may show, wherever it stands.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::document;
use crate::daemon::masking::KnownSecrets;
use crate::deploy::{Generation, Generations};
use crate::error::{Error, Result};
use crate::kubernetes;
use crate::metadata::Deployment;
use crate::report::Report;
use crate::settings::Settings;
use crate::settings::source_name::SourceName;

/// Every secret that any document of this machine holds, and why some are not known.
pub(super) fn known_secrets(settings: &Settings) -> (KnownSecrets, Option<Error>) {
    let StoredSecrets { documents, generation, unread } = match StoredSecrets::read(settings) {
        Ok(kept) => kept,
        Err(error) => return (KnownSecrets::default(), Some(error)),
    };
    let mut known = KnownSecrets::default();
    let mut entries: Vec<Value> = documents.iter().flat_map(|document| document::entries(document).to_vec()).collect();
    let of_generation = generation
        .into_iter()
        .flat_map(|one| [one.before, one.former].into_iter().flatten().map(|kept| kept.entry).chain([one.entry]));
    entries.extend(of_generation.map(Arc::unwrap_or_clone));
    for document in documents {
        known.learn(&Value::Object(document));
    }
    for entry in entries {
        known.learn(&entry);
        if let Some(deployment) = Deployment::parse(&entry).ok().flatten() {
            known.extend(kubernetes::readable_parameters(&deployment).secrets());
        }
    }
    (known, unread)
}

/// What this machine keeps that holds secrets.
struct StoredSecrets {
    /// What any source said last.
    documents: Vec<Map<String, Value>>,
    /// The newest one.
    generation: Option<Generation>,
    /// Why there may be more than these.
    unread: Option<Error>,
}

impl StoredSecrets {
    fn read(settings: &Settings) -> Result<Self> {
        let collector = document::collected_by_anyone(settings, &Report::kept())?;
        let mut documents = vec![collector.snapshot().document()];
        documents.extend(SourceName::ALL.iter().filter_map(|name| collector.last_document(*name)));
        let mut unread = collector.unreadable().cloned();
        let generation = Generations::read(&document::open_state(settings)?).unwrap_or_else(|error| {
            unread.get_or_insert(error);
            None
        });
        if generation.is_none() && documents.iter().all(Map::is_empty) {
            unread.get_or_insert_with(document::nothing_collected);
        }
        Ok(Self { documents, generation, unread })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::*;
    use crate::files::{Attributes, Tree};

    /// Attack: a partially written cache was taken for none, and journals showed its secrets under the words that known secrets were masked.
    #[test]
    fn what_was_kept_and_cannot_be_read_is_not_taken_for_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let settings = Settings { state_dir: directory.path().to_owned(), ..Settings::default() };
        let state = Tree::open(directory.path()).unwrap();
        let why = || known_secrets(&settings).1.map(|error| error.to_string());
        assert!(why().unwrap().contains("nothing has been collected yet"));
        state.create_dir(Path::new("cache"), Attributes::mode(0o700)).unwrap();
        let write = |name: &str, text: &str| state.write(Path::new(name), text.as_bytes(), Attributes::mode(0o600)).unwrap();
        let document = json!({"deployments": [{"id": "a", "inputs": [{"name": "password", "value": "s3cret-known"}]}]});
        write("cache/cfn.json", &json!({"version": 1, "fetched_at": 1, "basis": "", "document": document}).to_string());
        assert_eq!(why(), None);
        for (name, text, expected) in [
            ("cache/heat.json", "{\"version\": 1, \"fetc", "it ends too early"),
            ("cache/heat.json", r#"{"version": 9, "fetched_at": 1, "basis": "", "document": {}}"#, "version 9"),
            ("node.json", "{", "it ends too early"),
        ] {
            write(name, text);
            assert!(why().unwrap().contains(expected), "{name}: {:?}", why());
            assert!(state.facts(Path::new(name)).unwrap().is_some(), "who only looks renames nothing");
            state.remove(Path::new(name)).unwrap();
        }
        // Where a directory lies in its place it is not known either.
        state.create_dir(Path::new("cache/heat.json"), Attributes::mode(0o700)).unwrap();
        assert!(why().is_some());
    }
}
