//! What the collector before the agent has listed: os-collect-config's own record, and that of the agent in its place (docs/migrate.md).
//!
//! In: the directory in which that collector keeps what its sources said. Out: the newest run of each resource that it was told of. Never: a
//! deployment that is run because it stands there, for Heat may have withdrawn it since.

use std::path::{Path, PathBuf};

use super::document;
use super::entries::Entries;
use super::run_order::{RunOrder, Stamp, stamp};
use super::section::{DEPLOYMENT_KEY, deployment_keys};
use crate::budgets::DOCUMENT_BYTES;
use crate::clock::Clock;
use crate::error::{Context, Error, Result};
use crate::files::Tree;
use crate::settings::os_collect_config::OsCollectConfig;
use crate::settings::source_name::SourceName;

/// Where os-collect-config keeps it, unless it is told another place.
const DIRECTORY: &str = "/var/lib/os-collect-config";

/// Where it is, below which keys the documents of each source list deployments, and which files there are: that collector may also be run by hand beside
/// the agent.
#[derive(PartialEq, Eq)]
pub(super) struct FormerPlace {
    directory: PathBuf,
    keys: Vec<Vec<String>>,
    stamps: Vec<Stamp>,
}

/// What was listed.
#[derive(Default)]
pub(super) struct FormerLists {
    pub(super) order: RunOrder,
    /// Files that cannot be understood.
    pub(super) unread: Vec<Error>,
}

impl FormerPlace {
    /// By os-collect-config.conf.
    pub(super) fn of(config: &OsCollectConfig, root: &Tree) -> Self {
        let directory: PathBuf = config.get("DEFAULT", "cachedir").unwrap_or(DIRECTORY).into();
        let given = |section: &str| config.all(section, DEPLOYMENT_KEY).map(str::to_owned).collect();
        let keys = SourceName::REMOTE.map(|source| deployment_keys(source.as_str(), given)).into();
        let documents = SourceName::REMOTE.iter().map(|source| stamp(root, &document_of(&directory, *source)));
        let stamps = documents.chain([RunOrder::stamp_in(root, &directory)]).collect();
        Self { directory, keys, stamps }
    }
}

impl FormerLists {
    /// Reads what is there.
    pub(super) fn read(root: &Tree, FormerPlace { directory, keys, .. }: &FormerPlace, clock: &Clock) -> Self {
        let mut lists = Self::default();
        lists.add(RunOrder::known_in(root, directory, clock));
        for (source, keys) in SourceName::REMOTE.iter().zip(keys) {
            lists.add(listed(root, &document_of(directory, *source), keys));
        }
        lists
    }

    fn add(&mut self, listed: Result<RunOrder>) {
        match listed {
            Ok(listed) => self.order.take_over(listed),
            Err(error) => self.unread.push(error),
        }
    }
}

/// Where what a source said is kept.
fn document_of(directory: &Path, source: SourceName) -> PathBuf {
    directory.join(format!("{}.json", source.as_str()))
}

/// What a document lists; nothing where there is none.
fn listed(root: &Tree, path: &Path, keys: &[String]) -> Result<RunOrder> {
    let Some(bytes) = root.read(path, DOCUMENT_BYTES as u64)? else { return Ok(RunOrder::default()) };
    let entries = document::parse(&bytes).and_then(|document| Entries::below(keys, [&document]));
    entries.map(|entries| RunOrder::of_list(&entries)).context(|| format!("reading {}", path.display()))
}
