//! The files of the machine as the replaced tools see them: by names from the current directory, links resolved as the kernel does.

use std::path::{Path, PathBuf};

use nix::unistd::geteuid;
use serde_json::Value;

use crate::budgets::json::JsonRejection;
use crate::budgets::{DOCUMENT_MEMORY, json, python_json};
use crate::error::{Context, Error, Result};
use crate::files::{Attributes, FileKind, READ_LIMIT, Tree, masked};

/// How deep a tree is copied: a link may lead in a circle.
const DEPTH: usize = 32;

/// The machine, and where the tool stands in it.
pub(super) struct Machine {
    /// Everything.
    pub(super) root: Tree,
    here: PathBuf,
}

impl Machine {
    /// This machine.
    ///
    /// # Errors
    /// If the current directory is gone.
    pub(super) fn new() -> Result<Self> {
        let here = std::env::current_dir().context(|| "looking for the current directory")?;
        Ok(Self { root: Tree::open(Path::new("/"))?, here })
    }

    /// The absolute path of a name.
    pub(super) fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.here.join(name)
    }

    /// What is at a path, links followed. What cannot be looked at is not there, as for Python.
    pub(super) fn kind(&self, name: impl AsRef<Path>) -> Option<FileKind> {
        self.root.facts_followed(&self.path(name)).ok().flatten().map(|facts| facts.kind)
    }

    /// The text of a file, with every end of line as one newline; `None` where there is no file.
    ///
    /// # Errors
    /// If it cannot be read, is larger than 16 MiB, or is no UTF-8.
    pub(super) fn text(&self, name: impl AsRef<Path>) -> Result<Option<String>> {
        Ok(self
            .exact_text(name)?
            .map(|text| if text.contains('\r') { text.replace("\r\n", "\n").replace('\r', "\n") } else { text }))
    }

    /// The text of a file as it is; `None` where there is no file.
    ///
    /// # Errors
    /// As [`Machine::text`].
    pub(super) fn exact_text(&self, name: impl AsRef<Path>) -> Result<Option<String>> {
        let path = self.path(name);
        let Some(bytes) = self.root.read(&path, READ_LIMIT)? else { return Ok(None) };
        String::from_utf8(bytes).map(Some).map_err(|_| Error::permanent("it is not UTF-8")).context(|| path.display().to_string())
    }

    /// The JSON of a file; `None` where there is no file.
    ///
    /// # Errors
    /// If it cannot be read, is no JSON, or would take more memory than a document may.
    pub(super) fn json(&self, name: impl AsRef<Path>) -> Result<Option<Value>> {
        self.value(name, json::value)
    }

    /// The same of a file that Python's `json` may have written.
    pub(super) fn python_json(&self, name: impl AsRef<Path>) -> Result<Option<Value>> {
        self.value(name, python_json::value)
    }

    fn value(
        &self,
        name: impl AsRef<Path>,
        read: fn(&[u8], usize) -> std::result::Result<Value, JsonRejection>,
    ) -> Result<Option<Value>> {
        let Some(text) = self.exact_text(&name)? else { return Ok(None) };
        let value = read(text.as_bytes(), DOCUMENT_MEMORY).map_err(without_content);
        value.map(Some).context(|| format!("reading {}", self.path(name).display()))
    }

    /// Whether what is in a directory that the caller has named may run with our powers: as root only what root alone can change (heat-protocol.md
    /// R56). Where the directory is, was said by who called.
    ///
    /// # Errors
    /// If somebody else could change it, naming the place.
    pub(super) fn check_program(&self, directory: impl AsRef<Path>, name: impl AsRef<Path>) -> Result<()> {
        if !geteuid().is_root() {
            return Ok(());
        }
        let directory = self.path(directory);
        let directory = directory.canonicalize().context(|| format!("resolving {}", directory.display()))?;
        self.root.check_only_root_changes_within(&directory, name.as_ref())
    }

    /// Copies a directory with its files, links followed, to where nothing is yet; those above it are made as anybody would.
    ///
    /// # Errors
    /// If something cannot be read or written.
    pub(super) fn copy(&self, from: &Path, to: &Path) -> Result<()> {
        if let Some(above) = to.parent() {
            self.root.create_dir_all(above, Attributes::mode(masked(0o777)))?;
        }
        self.copy_within(from, to, DEPTH).context(|| format!("copying {} to {}", from.display(), to.display()))
    }

    fn copy_within(&self, from: &Path, to: &Path, depth: usize) -> Result<()> {
        let depth = depth.checked_sub(1).ok_or_else(|| Error::permanent("its directories have no end"))?;
        let Some(facts) = self.root.facts_followed(from)? else { return Ok(()) };
        match facts.kind {
            FileKind::Directory => {
                self.root.create_dir(to, Attributes::mode(facts.mode))?;
                self.root.list(from)?.iter().try_for_each(|name| self.copy_within(&from.join(name), &to.join(name), depth))
            }
            FileKind::File => self.root.copy_file(from, to, Attributes::mode(facts.mode & 0o777)).map(drop),
            FileKind::Link | FileKind::Other => Ok(()),
        }
    }
}

/// A value from a text, without a word of it in the error.
///
/// # Errors
/// If it is no JSON, or takes more memory than it may.
pub(super) fn json_of(text: &str, budget: usize) -> Result<Value> {
    json::value(text.as_bytes(), budget).map_err(without_content)
}

fn without_content(rejection: JsonRejection) -> Error {
    match rejection {
        JsonRejection::Json(error) => {
            Error::permanent(format!("it is not JSON: line {}, column {}", error.line(), error.column()))
        }
        other => other.into(),
    }
}

/// A variable of the environment, also an empty one.
pub(super) fn variable(name: &str) -> Option<String> {
    std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
}
