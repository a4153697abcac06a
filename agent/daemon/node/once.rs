//! What is done once of an update, however often that is gone on with: a file in the state directory names the generation of which it was done.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::files::{Attributes, Tree};
use crate::report::{Code, Report};

/// That there is a record of what the update under way replaces.
pub(super) const RECORDED: &str = "recorded.json";
/// That the update under way has its snapshot of etcd, or goes on without one.
pub(super) const SAVED: &str = "saved.json";

/// That the update under way has changed the machine, or was about to.
pub(super) const CHANGED: &str = "changed.json";

#[derive(Debug, Serialize, Deserialize)]
struct Mark {
    generation: u64,
}

/// Whether this was done of an update before: what is found now may be the update's own.
pub(super) fn is_marked(state: &Tree, name: &str, generation: u64, report: &Report) -> Result<bool> {
    let marked: Option<Mark> = state.read_state(Path::new(name), report, Code::StateFileQuarantined)?;
    Ok(marked.is_some_and(|marked| marked.generation == generation))
}

/// Whether this update has changed the machine, in this life of the agent or before.
///
/// # Errors
/// If the record of it can be neither read nor quarantined.
pub(in crate::daemon) fn has_changed(state: &Tree, generation: u64, report: &Report) -> Result<bool> {
    is_marked(state, CHANGED, generation, report)
}

/// Records that this was done.
pub(super) fn mark(state: &Tree, name: &str, generation: u64) -> Result<()> {
    state.write_json(Path::new(name), &Mark { generation }, Attributes::mode(0o600))
}
