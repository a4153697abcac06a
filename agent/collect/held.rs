//! What a source said last, in the form in which it is held.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::cache;
use super::document::{digest_of, invalid_parts};
use super::entries::Entries;
use super::section::DEPLOYMENTS;
use super::source_set::SourceSet;
use crate::budgets::{HELD_MEMORY, METADATA_MEMORY, json};
use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::files::Tree;
use crate::report::{Code, Event, Report};
use crate::settings::source_name::SourceName;

/// A document that was just read.
pub(super) struct StoredDocument {
    /// Without `deployments`.
    document: Map<String, Value>,
    deployments: Option<Entries>,
    pub(super) digest: String,
    /// Memory that the two take.
    weight: usize,
    pub(super) warnings: Vec<String>,
}

impl StoredDocument {
    /// Entries of several lists of deployments are put together in the order of their keys.
    pub(super) fn new(
        (mut document, mut warnings): (Map<String, Value>, Vec<String>),
        keys: &[String],
        beside: usize,
    ) -> Result<Self> {
        warnings.extend(invalid_parts(&document, keys));
        let mut list = None;
        for key in keys {
            if let Some(Value::Array(items)) = document.shift_remove(key) {
                list.get_or_insert_with(Vec::new).extend(items);
            }
        }
        let over = |what: String, budget: usize| {
            Error::permanent(format!("{what} more than {} KiB of memory", budget / 1024))
                .rule("the agent limits the size of its input to bound its memory")
        };
        let rest = json::weight_of(&document);
        if rest > METADATA_MEMORY {
            let what = "the metadata without its deployments takes".to_owned();
            return Err(over(what, METADATA_MEMORY).remedy("reduce the metadata of this server"));
        }
        let deployments = list.map(Entries::new).transpose()?;
        let weight = rest + deployments.as_ref().map_or(0, Entries::weight);
        if beside + weight > HELD_MEMORY {
            let what = "the documents of this source and the others take".to_owned();
            return Err(over(what, HELD_MEMORY).remedy("list fewer deployments for this server, or have it poll a single source"));
        }
        // Without the place of the deployments among the other keys, which the cache does not keep.
        let digest = digest_of(&document, deployments.as_ref());
        Ok(Self { document, deployments, digest, weight, warnings })
    }

    /// Without the deployments.
    pub(super) fn document(&self) -> &Map<String, Value> {
        &self.document
    }

    /// The deployments, where it lists them.
    pub(super) fn deployments(&self) -> Option<&Entries> {
        self.deployments.as_ref()
    }

    /// Whether it lists any deployment.
    pub(super) fn lists_any(&self) -> bool {
        self.deployments.as_ref().is_some_and(|list| !list.is_empty())
    }
}

/// The last document of a source. It may be from the cache, and stays while the source fails.
pub(super) struct Held {
    /// Without `deployments`.
    pub(super) document: Option<Arc<Map<String, Value>>>,
    pub(super) deployments: Option<Arc<Entries>>,
    /// Memory that the two take.
    pub(super) weight: usize,
    /// The keys that the deployments stood under.
    pub(super) deployment_keys: Vec<String>,
    /// Digest of what the files said of all sources when it was fetched.
    pub(super) files_digest: String,
    /// Whether document and digest are as in the cache.
    pub(super) kept: bool,
    /// Whether parts of it cannot be understood.
    pub(super) is_malformed: bool,
}

impl Held {
    /// Nothing yet.
    pub(super) fn nothing() -> Self {
        Self {
            document: None,
            deployments: None,
            weight: 0,
            deployment_keys: vec![DEPLOYMENTS.to_owned()],
            files_digest: String::new(),
            kept: true,
            is_malformed: false,
        }
    }

    /// Takes over what a document says.
    pub(super) fn take(&mut self, document: StoredDocument) {
        self.is_malformed = !document.warnings.is_empty();
        self.deployments = document.deployments.map(Arc::new);
        self.weight = document.weight;
        self.document = Some(Arc::new(document.document));
    }

    /// Drops it. What the cache holds of it stays.
    pub(super) fn forget(&mut self) {
        self.document = None;
        self.is_malformed = false;
        self.deployments = None;
        self.weight = 0;
    }

    /// It was said again, while the files say this.
    pub(super) fn rest_on(&mut self, files_digest: String) {
        self.kept &= self.files_digest == files_digest;
        self.files_digest = files_digest;
    }

    /// Stores document and digest where they are not stored yet; tried again at each poll.
    pub(super) fn keep(
        &mut self,
        name: SourceName,
        fetched_at: Timestamp,
        asked: Option<&SourceSet>,
        state: &Tree,
        report: &Report,
    ) {
        let (Some(document), false) = (&self.document, self.kept) else { return };
        let asked = asked.map(SourceSet::stored);
        match cache::store(state, name, fetched_at, &self.files_digest, asked.as_ref(), document, self.deployments.as_deref()) {
            Ok(()) => self.kept = true,
            Err(error) => {
                let message = format!("the document of {} cannot be cached", name.as_str());
                report.emit(Event::new(Code::StateWriteFailed, message).source(name.as_str()).error(&error));
            }
        }
    }
}
