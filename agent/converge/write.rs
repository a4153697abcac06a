//! Carries out the changes of files and directories that a plan names. All bytes are known before the first is written.

use std::path::Path;

use super::plan::{AttributeChange, DirectoryChange, FileChange};
use crate::error::{Context as _, Error, Result};
use crate::files::{Attributes, FileKind, Tree};

/// Mode of parent directories that nobody asked for by name.
const PARENT_MODE: u32 = 0o755;

/// Makes a directory or gives it its mode and owner.
pub(crate) fn directory(tree: &Tree, change: &DirectoryChange) -> Result<()> {
    let path = Path::new(&change.path);
    let attributes = attributes(&change.attributes);
    if change.new {
        parents(tree, path)?;
        tree.create_dir(path, attributes)?;
    }
    tree.set_attributes(path, attributes)
}

/// Writes a file, or gives it its mode and owner where its content is right.
pub(crate) fn file(tree: &Tree, change: &FileChange) -> Result<()> {
    let path = Path::new(&change.path);
    let attributes = attributes(&change.attributes);
    if !change.rewrites {
        return tree.set_attributes(path, attributes);
    }
    if let Some(facts) = tree.facts(path)?
        && matches!(facts.kind, FileKind::Directory | FileKind::Other)
    {
        return Err(Error::permanent("it exists but is not a regular file")
            .remedy(format!("Inspect {} and move it out of the way.", change.path))
            .context(format!("writing {}", change.path)));
    }
    parents(tree, path)?;
    tree.write(path, change.after.as_bytes(), attributes)
}

/// Whether the owner can be given: false as long as the tree lacks the user or group.
pub(crate) fn owner_is_known(change: &AttributeChange) -> bool {
    !change.owner_changes || change.owner_number.is_some()
}

fn attributes(change: &AttributeChange) -> Attributes {
    Attributes { mode: change.mode, owner: change.owner_number }
}

/// Makes the directories above a path; those that are there stay as they are.
pub(crate) fn parents(tree: &Tree, path: &Path) -> Result<()> {
    match path.parent() {
        Some(parent) => tree
            .create_dir_all(parent, Attributes::mode(PARENT_MODE))
            .context(|| format!("creating the directory of {}", path.display())),
        None => Ok(()),
    }
}
