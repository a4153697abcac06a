//! What is done to which path: the context of every error of files, and the path that its remedy names.

use std::fmt;
use std::path::PathBuf;

use crate::error::{Error, Result};

/// What is done to which path, for errors.
#[derive(Debug)]
pub(super) struct Operation {
    pub(super) verb: &'static str,
    pub(super) path: PathBuf,
}

impl Operation {
    pub(super) fn failed(&self, error: impl Into<Error>) -> Error {
        error.into().at(&self.path).context(self)
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb, self.path.display())
    }
}

/// Adds what was done to which path to any error of the kernel.
pub(super) trait At<T> {
    fn at(self, doing: impl FnOnce() -> Operation) -> Result<T>;
}

impl<T, E: Into<Error>> At<T> for std::result::Result<T, E> {
    fn at(self, doing: impl FnOnce() -> Operation) -> Result<T> {
        self.map_err(|error| doing().failed(error))
    }
}
