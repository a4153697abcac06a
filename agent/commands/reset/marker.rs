//! What an unfinished reset leaves for the next one.

use std::path::Path;

use crate::daemon::RESET;
use crate::error::Result;
use crate::files::{Attributes, Tree};

/// How far a reset is.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) struct ResetMarker {
    schema: u32,
    /// Whether nothing has to be asked of etcd any more: the member has left, or was abandoned.
    pub(super) etcd_is_left: bool,
    /// Whether etcd's data is that of a member that has left.
    pub(super) data_is_of_nobody: bool,
}

impl Default for ResetMarker {
    fn default() -> Self {
        Self { schema: 1, etcd_is_left: false, data_is_of_nobody: false }
    }
}

impl ResetMarker {
    pub(super) fn read(state: &Tree) -> Result<Option<Self>> {
        state.read_json(Path::new(RESET)).map_err(|error| {
            let path = state.base().join(RESET);
            error.remedy(format!(
                "run `rm {}`, then `heat-node-agent reset` again: it starts over and completes the remaining steps",
                path.display()
            ))
        })
    }

    pub(super) fn write(&self, state: &Tree) -> Result<()> {
        state.write_json(Path::new(RESET), self, Attributes::mode(0o600))
    }
}
