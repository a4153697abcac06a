//! Whose a file is.

use serde::Serialize;

/// Owner of a file by name; resolved against the target's own passwd and group files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Owner {
    /// User name.
    pub user: String,
    /// Group name.
    pub group: String,
}

impl Owner {
    /// `root:root`.
    #[must_use]
    pub fn root() -> Self {
        Self::named("root")
    }

    /// A user and the group of the same name.
    #[must_use]
    pub fn named(name: &str) -> Self {
        Self { user: name.to_owned(), group: name.to_owned() }
    }
}
