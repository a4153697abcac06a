//! The secrets that the documents of this machine hold: what no command may show, wherever it stands.

use std::sync::Arc;

use serde_json::Value;

use super::document;
use crate::daemon::masking::KnownSecrets;
use crate::deploy::Generations;
use crate::error::Error;
use crate::files::Tree;
use crate::kubernetes;
use crate::metadata::Deployment;
use crate::report::Report;
use crate::settings::Settings;
use crate::settings::source_name::SourceName;

/// Every secret that any document of this machine holds, and why those of the sources are not known.
pub(super) fn known_secrets(settings: &Settings) -> (KnownSecrets, Option<Error>) {
    let mut known = KnownSecrets::default();
    let mut documents = Vec::new();
    let mut unread = None;
    match document::collected_by_anyone(settings, &Report::kept()) {
        Ok(collector) => {
            documents.push(collector.snapshot().document());
            documents.extend(SourceName::ALL.iter().filter_map(|name| collector.said(*name)));
        }
        Err(error) => unread = Some(error),
    }
    let generation = Tree::open(&settings.state_dir).ok().and_then(|state| Generations::look(&state));
    let mut entries: Vec<Value> = documents.iter().flat_map(|document| document::entries(document).to_vec()).collect();
    let of_generation =
        generation.into_iter().flat_map(|one| one.before.map(|before| before.entry).into_iter().chain([one.entry]));
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
