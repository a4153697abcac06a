//! Directories that everybody may enter.

use std::collections::BTreeSet;

use crate::desired::{Desired, Directory, Owner};

/// A root-owned directory that everybody may enter.
pub(in crate::kubernetes) fn directory(path: &str) -> Directory {
    Directory { path: path.to_owned(), mode: 0o755, owner: Owner::root(), needs: BTreeSet::new() }
}

/// Adds such a directory, if nobody else did.
pub(in crate::kubernetes) fn add_directory(path: &str, part: &mut Desired) {
    if !part.directories.iter().any(|one| one.path == path) {
        part.directories.push(directory(path));
    }
}
