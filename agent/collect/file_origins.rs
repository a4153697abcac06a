//! Whose the files of this machine are that lead to a server: only root may have written them, and none may have come with a copied disk.

use std::path::Path;

use crate::digest;
use crate::error::{Context, Result};
use crate::files::{Attributes, Tree};
use crate::identity::{LEARNT, Leftovers};
use crate::report::{Code, Event, Report};

/// What is known of them, as of the last look.
#[derive(Default)]
pub(super) struct FileOrigins {
    /// What the instance had that this disk was copied from.
    pub(super) predecessors: Leftovers,
    /// Files that are still so, and so are not used.
    pub(super) left_over: Vec<String>,
    /// The other ones that lead to a server, as they are now.
    pub(super) digests: Leftovers,
    /// The same, as stored for a copy of this disk.
    stored: Option<Leftovers>,
}

impl FileOrigins {
    /// Begins another look.
    pub(super) fn clear(&mut self) {
        self.left_over.clear();
        self.digests.clear();
    }

    /// The content of a file that leads to a server; nothing, while it is as the instance had it that the disk was
    /// copied from: it would lead to that one's metadata.
    pub(super) fn own(&mut self, path: &Path, content: Option<Vec<u8>>) -> Option<Vec<u8>> {
        let (path, digest) = (path.display().to_string(), digest::hex(content.as_ref()?));
        if self.predecessors.get(&path) == Some(&digest) {
            self.left_over.push(path);
            return None;
        }
        self.digests.insert(path, digest);
        content
    }

    /// Reads what was stored in an earlier run.
    pub(super) fn recall(&mut self, state: &Tree) {
        self.stored = state.read_json(Path::new(LEARNT)).ok().flatten();
    }

    /// Stores what sources were learnt from, so that a copy of this disk does not take it for its own.
    pub(super) fn store(&mut self, state: &Tree, report: &Report) {
        if self.stored.as_ref() == Some(&self.digests) {
            return;
        }
        match state.write_json(Path::new(LEARNT), &self.digests, Attributes::mode(0o600)) {
            Ok(()) => self.stored = Some(self.digests.clone()),
            Err(error) => {
                let message = "the origins of the sources cannot be recorded";
                report.emit(Event::new(Code::StateWriteFailed, message).step(LEARNT).error(&error));
            }
        }
    }
}

/// Whoever may write here may say anything in the name of root.
pub(super) fn safe(root: &Tree, path: &Path) -> Result<()> {
    root.check_only_root_changes(path).context(|| format!("reading {}", path.display()))
}

/// The content of a file that is taken for root's word, or for Heat's; `None` if there is none.
pub(super) fn read_safe(root: &Tree, path: &Path, limit: u64) -> Result<Option<Vec<u8>>> {
    let content = root.read(path, limit)?;
    if content.is_some() {
        safe(root, path)?;
    }
    Ok(content)
}
