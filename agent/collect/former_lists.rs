//! What the collector before the agent has listed: os-collect-config's own record, and that of the agent in its place (docs/migrate.md).
//!
//! In: the directory in which that collector keeps what its sources said. Out: the newest run of each resource that it was told of. Never: a
//! deployment that is run because it stands there, for Heat may have withdrawn it since.

use std::path::{Path, PathBuf};

use super::document;
use super::entries::Entries;
use super::run_order::{LastRuns, RunOrder};
use super::section::{DEPLOYMENT_KEY, deployment_keys};
use crate::budgets::DOCUMENT_BYTES;
use crate::error::{Context, Error, Result};
use crate::files::Tree;
use crate::settings::os_collect_config::OsCollectConfig;
use crate::settings::source_name::SourceName;

/// Where os-collect-config keeps it, unless it is told another place.
const DIRECTORY: &str = "/var/lib/os-collect-config";

/// Where it is, and below which keys the documents of each source list deployments.
#[derive(PartialEq, Eq)]
pub(super) struct FormerPlace {
    directory: PathBuf,
    keys: Vec<Vec<String>>,
}

/// What was listed.
#[derive(Default)]
pub(super) struct FormerLists {
    pub(super) runs: LastRuns,
    /// Files that cannot be understood.
    pub(super) unread: Vec<Error>,
}

impl FormerPlace {
    /// By os-collect-config.conf.
    pub(super) fn of(config: &OsCollectConfig) -> Self {
        let directory = config.get("DEFAULT", "cachedir").unwrap_or(DIRECTORY).into();
        let given = |section: &str| config.all(section, DEPLOYMENT_KEY).map(str::to_owned).collect();
        Self { directory, keys: SourceName::REMOTE.map(|source| deployment_keys(source.as_str(), given)).into() }
    }
}

impl FormerLists {
    /// Reads what is there.
    pub(super) fn read(root: &Tree, FormerPlace { directory, keys }: &FormerPlace) -> Self {
        let mut lists = Self::default();
        lists.add(RunOrder::known_in(root, directory));
        for (source, keys) in SourceName::REMOTE.iter().zip(keys) {
            lists.add(listed(root, &directory.join(format!("{}.json", source.as_str())), keys));
        }
        lists
    }

    fn add(&mut self, listed: Result<LastRuns>) {
        match listed {
            Ok(listed) => {
                RunOrder::add(&mut self.runs, &listed);
            }
            Err(error) => self.unread.push(error),
        }
    }
}

/// What a document lists; nothing where there is none.
fn listed(root: &Tree, path: &Path, keys: &[String]) -> Result<LastRuns> {
    let Some(bytes) = root.read(path, DOCUMENT_BYTES as u64)? else { return Ok(LastRuns::new()) };
    let entries = document::parse(&bytes).and_then(|document| Entries::below(keys, [&document]));
    entries.map(|entries| RunOrder::runs_of(&entries)).context(|| format!("reading {}", path.display()))
}
