//! The files of one directory as a set that changes as a whole, at any kill: the way of Kubernetes' AtomicWriter.
//!
//! ```text
//! server.crt -> ..data/server.crt      links of the names that programs read, made once
//! ..data     -> ..set-0f3a…            swapped by one rename
//! ..set-0f3a…/                         the whole set, each file with its final mode and owner from its first byte
//! ..next/                              the set in the making; a key lies there, synced, before its request is sent
//! ```
//!
//! A directory `..set-…` comes to be by renaming a complete `..next`, so it is whole. Regular files in the place of the
//! links (Magnum's own, or what somebody put there) become the first set as they are, and only then another one takes over.

use std::path::{Path, PathBuf};

use crate::converge::Owners;
use crate::desired::Owner;
use crate::digest;
use crate::error::{Context as _, Error, Result};
use crate::files::{Attributes, FileKind, READ_LIMIT, Tree};

const DATA: &str = "..data";
const NEXT: &str = "..next";
const SET: &str = "..set-";

/// A directory's mode: keys are guarded by their own.
const MODE: u32 = 0o755;
/// What a private key has.
pub(super) const KEY_MODE: u32 = 0o600;
/// What everything else has.
pub(super) const PUBLIC_MODE: u32 = 0o644;

/// One file of a set.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SetFile {
    /// Keys last: no key comes into use without its certificate.
    mode: u32,
    name: String,
    content: Vec<u8>,
    owner: (u32, u32),
}

impl std::fmt::Debug for SetFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SetFile({}, {:o}, {} bytes)", self.name, self.mode, self.content.len())
    }
}

/// A directory and everything that is to lie in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Set {
    pub(super) directory: String,
    entries: Vec<SetFile>,
}

/// What a path is to hold.
pub(super) struct WantedFile<'a> {
    pub(super) path: &'a str,
    pub(super) content: String,
    pub(super) owner: &'a Owner,
    pub(super) secret: bool,
}

/// Directory and name of a path.
///
/// # Errors
/// Never for a path of the `Desired`.
pub(super) fn split(path: &str) -> Result<(&str, &str)> {
    path.rsplit_once('/').ok_or_else(|| Error::permanent(format!("{path} is not an absolute path")))
}

/// Puts files together by directory.
///
/// # Errors
/// If the machine lacks an owner.
pub(super) fn sets(files: Vec<WantedFile<'_>>, owners: &Owners) -> Result<Vec<Set>> {
    let mut sets: Vec<Set> = Vec::new();
    for file in files {
        let (directory, name) = split(file.path)?;
        let mode = if file.secret { KEY_MODE } else { PUBLIC_MODE };
        let owner = resolve(owners, file.owner, file.path)?;
        let entry = SetFile { mode, name: name.to_owned(), content: file.content.into_bytes(), owner };
        match sets.iter_mut().find(|set| set.directory == directory) {
            Some(set) => set.entries.push(entry),
            None => sets.push(Set { directory: directory.to_owned(), entries: vec![entry] }),
        }
    }
    for set in &mut sets {
        sort_entries(&mut set.entries);
    }
    Ok(sets)
}

/// Numbers of an owner.
pub(super) fn resolve(owners: &Owners, owner: &Owner, path: &str) -> Result<(u32, u32)> {
    owners.resolve(owner).ok_or_else(|| {
        Error::permanent(format!("{path} must belong to {}:{}, which does not exist on this machine", owner.user, owner.group))
            .remedy(format!("Create the user {} and the group {} in the image.", owner.user, owner.group))
    })
}

/// Ordinary files before keys.
fn sort_entries(entries: &mut [SetFile]) {
    entries.sort_unstable_by(|one, other| other.mode.cmp(&one.mode).then_with(|| one.name.cmp(&other.name)));
}

/// The sets of a directory that are not in use, complete ones and the one in the making: what a run that was cut off left.
fn pending(tree: &Tree, directory: &str) -> Result<Vec<PathBuf>> {
    let current = current(tree, Path::new(directory))?.map(|name| Path::new(directory).join(name));
    Ok(every(tree, directory)?.into_iter().filter(|set| Some(set) != current.as_ref()).collect())
}

/// The sets of a directory: also that in use, to which a run that was cut off has perhaps not made the links yet.
pub(super) fn every(tree: &Tree, directory: &str) -> Result<Vec<PathBuf>> {
    let directory = Path::new(directory);
    let names = tree.list(directory)?;
    let names = names.iter().filter_map(|name| name.to_str());
    Ok(names.filter(|name| is_set(name)).map(|name| directory.join(name)).collect())
}

/// Removes all sets of a directory with their keys, and the link to the one in use.
///
/// # Errors
/// If something cannot be removed.
pub(crate) fn remove_sets(tree: &Tree, directory: &Path) -> Result<()> {
    let Some(text) = directory.to_str() else { return Ok(()) };
    if tree.facts(directory)?.is_none() {
        return Ok(());
    }
    tree.remove(&directory.join(DATA))?;
    every(tree, text)?.iter().try_for_each(|set| tree.remove_dir_all(set).map(drop))
}

fn is_set(name: &str) -> bool {
    name == NEXT || name.starts_with(SET)
}

/// The set in use.
fn current(tree: &Tree, directory: &Path) -> Result<Option<String>> {
    let target = tree.read_link(&directory.join(DATA))?;
    Ok(target.and_then(|target| target.into_string().ok()).filter(|name| name.starts_with(SET)))
}

/// Where a file of the set in the making lies.
///
/// # Errors
/// Never for a path of the `Desired`.
pub(super) fn next_path(path: &str) -> Result<PathBuf> {
    let (directory, name) = split(path)?;
    Ok(Path::new(directory).join(NEXT).join(name))
}

/// Puts a file into the set in the making, unless it is there.
///
/// # Errors
/// If it cannot be written.
pub(super) fn stage(tree: &Tree, path: &str, bytes: &[u8], owner: (u32, u32), secret: bool) -> Result<()> {
    let (directory, name) = split(path)?;
    let next = Path::new(directory).join(NEXT);
    tree.create_dir_all(&next, Attributes::mode(MODE))?;
    let mode = if secret { KEY_MODE } else { PUBLIC_MODE };
    SetFile { mode, name: name.to_owned(), content: bytes.to_vec(), owner }.put(tree, &next)
}

impl SetFile {
    fn is_present(&self, tree: &Tree, directory: &Path) -> Result<bool> {
        let path = directory.join(&self.name);
        let right = |facts: crate::files::PathMetadata| {
            facts.kind == FileKind::File && facts.mode == self.mode && facts.owner == self.owner
        };
        Ok(tree.facts(&path)?.is_some_and(right) && tree.read(&path, READ_LIMIT)?.as_deref() == Some(self.content.as_slice()))
    }

    fn put(&self, tree: &Tree, directory: &Path) -> Result<()> {
        if self.is_present(tree, directory)? {
            return Ok(());
        }
        let attributes = Attributes { mode: self.mode, owner: Some(self.owner) };
        tree.write(&directory.join(&self.name), &self.content, attributes)
    }
}

impl Set {
    /// Files of this set whose content differs from what lies at their paths now.
    pub(super) fn changes(&self, tree: &Tree) -> Vec<String> {
        let mut changed = Vec::new();
        for entry in &self.entries {
            let path = format!("{}/{}", self.directory, entry.name);
            // What cannot be read as a file is not what it should be.
            if tree.read(Path::new(&path), READ_LIMIT).ok().flatten().as_deref() != Some(entry.content.as_slice()) {
                changed.push(path);
            }
        }
        changed
    }

    /// Whether it is in use, with all links and nothing beside it.
    pub(super) fn is_in_place(&self, tree: &Tree) -> Result<bool> {
        let directory = Path::new(&self.directory);
        let Some(current) = current(tree, directory)? else { return Ok(false) };
        for entry in &self.entries {
            let link = tree.read_link(&directory.join(&entry.name))?;
            if link.as_deref() != Some(link_of(&entry.name).as_ref()) {
                return Ok(false);
            }
        }
        Ok(self.is_at(tree, &directory.join(current))? && pending(tree, &self.directory)?.is_empty())
    }

    /// Whether a directory holds exactly this set.
    fn is_at(&self, tree: &Tree, place: &Path) -> Result<bool> {
        for entry in &self.entries {
            if !entry.is_present(tree, place)? {
                return Ok(false);
            }
        }
        Ok(tree.list(place)?.len() == self.entries.len())
    }

    /// Makes the set ready beside the one in use, and gives its name. Nothing that is in use changes.
    ///
    /// # Errors
    /// If something cannot be written.
    pub(super) fn make_ready(&self, tree: &Tree) -> Result<String> {
        let directory = Path::new(&self.directory);
        let content: Vec<_> =
            self.entries.iter().map(|one| (&one.name, one.mode, one.owner, digest::hex(&one.content))).collect();
        let digest = digest::of(&content);
        let digest = digest.get(..16).unwrap_or(&digest);
        let current = current(tree, directory)?;
        // Of the second name is a set that takes the place of one that somebody damaged.
        for name in [format!("{SET}{digest}"), format!("{SET}{digest}.1")] {
            let place = directory.join(&name);
            if tree.facts(&place)?.is_some() {
                if self.is_at(tree, &place)? {
                    return Ok(name);
                }
                if current.as_ref() == Some(&name) {
                    continue;
                }
                tree.remove_dir_all(&place)?;
            }
            let next = directory.join(NEXT);
            tree.create_dir_all(&next, Attributes::mode(MODE))?;
            for entry in &self.entries {
                entry.put(tree, &next)?;
            }
            for other in tree.list(&next)? {
                if !self.entries.iter().any(|entry| other == entry.name.as_str()) {
                    tree.remove_dir_all(&next.join(other))?;
                }
            }
            tree.rename(&next, &place)?;
            return Ok(name);
        }
        Err(Error::permanent(format!("the certificate sets in {} are damaged", self.directory))
            .remedy(format!("Inspect {} and move the damaged files out of the way.", self.directory)))
    }
}

fn link_of(name: &str) -> String {
    format!("{DATA}/{name}")
}

/// Lets a set that is ready take over: its directory by one rename, then links of new names, then what is left of others goes.
///
/// # Errors
/// If something cannot be written; the next call finishes it.
pub(super) fn put_in_place(tree: &Tree, directory: &str, set: &str) -> Result<()> {
    let place = Path::new(directory);
    let doing = || format!("installing certificates in {directory}");
    let names = ordered(tree, &place.join(set)).context(doing)?;
    if adopts(tree, place, &names)? {
        let first = adopt(tree, directory, &names).context(doing)?;
        tree.link(&first, &place.join(DATA)).context(doing)?;
        for name in ordered(tree, &place.join(&first))? {
            tree.link_over(&link_of(&name), &place.join(&name)).context(doing)?;
        }
    }
    tree.link(set, &place.join(DATA)).context(doing)?;
    for name in &names {
        tree.link_over(&link_of(name), &place.join(name)).context(doing)?;
    }
    for name in tree.list(place)?.iter().filter_map(|name| name.to_str()) {
        let path = place.join(name);
        let is_of_set = || Ok::<_, Error>(tree.read_link(&path)?.is_some_and(|target| target == link_of(name).as_str()));
        if (is_set(name) && name != set) || (!names.iter().any(|one| one == name) && is_of_set()?) {
            tree.remove_dir_all(&path).context(doing)?;
        }
    }
    Ok(())
}

/// The names in a set, keys last.
fn ordered(tree: &Tree, set: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for name in tree.list(set)?.iter().filter_map(|name| name.to_str()) {
        let is_key = tree.facts(&set.join(name))?.is_some_and(|facts| facts.mode == KEY_MODE);
        names.push((is_key, name.to_owned()));
    }
    names.sort_unstable();
    Ok(names.into_iter().map(|(_, name)| name).collect())
}

/// Whether regular files lie at these names.
fn adopts(tree: &Tree, directory: &Path, names: &[String]) -> Result<bool> {
    for name in names {
        if tree.facts(&directory.join(name))?.is_some_and(|facts| facts.kind == FileKind::File) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Makes a set of what lies at these names, as it is: from then on they change together.
fn adopt(tree: &Tree, directory: &str, names: &[String]) -> Result<String> {
    let mut entries = Vec::new();
    for name in names {
        let path = Path::new(directory).join(name);
        if let (Some(facts), Some(content)) = (tree.facts_followed(&path)?, tree.read(&path, READ_LIMIT)?) {
            entries.push(SetFile { mode: facts.mode, name: name.clone(), content, owner: facts.owner });
        }
    }
    sort_entries(&mut entries);
    Set { directory: directory.to_owned(), entries }.make_ready(tree)
}
