//! Orders of the operator beside the running daemon.

use std::path::Path;

use super::Agent;
use crate::daemon::requests::{DIRECTORY, Desk, NodeState, make_directory, tell};
use crate::deploy::GenerationState;
use crate::error::Result;
use crate::files::Tree;
use crate::watch::AsyncWatch;

/// Makes the directory of orders and watches it.
pub(super) fn watch(state: &Tree) -> Result<AsyncWatch> {
    make_directory(state)?;
    let watch = AsyncWatch::open();
    watch.add(&state.base().join(DIRECTORY));
    Ok(watch)
}

/// Whether an order lies there that was not carried out yet.
pub(super) fn orders_wait(state: &Tree) -> bool {
    let names = state.list(Path::new(DIRECTORY)).unwrap_or_default();
    let is_order = |path: &Path| path.extension().is_some_and(|end| end == "json");
    names.iter().any(|name| is_order(Path::new(name)))
}

impl Agent {
    /// Carries out what was ordered. What becomes of a signal on its way is not known yet: orders wait for it.
    pub(super) fn serve_orders(&mut self) {
        if !self.sending.is_empty() || !self.unrecorded.is_empty() {
            return;
        }
        let is_in_place = self.generations.current().is_none_or(|current| current.state != GenerationState::Rejected);
        let node = NodeState { is_busy: self.node_is_busy(), is_in_place };
        let mut desk = Desk {
            state: &self.state,
            root: &self.root,
            journal: &mut self.journal,
            outbox: &self.outbox,
            programs: &self.programs,
            report: &self.report,
            listed: self.collector.snapshot().deployments.as_deref(),
            daemon: Some(node),
        };
        let mut served = Vec::new();
        let ended = desk.serve(&mut served);
        for id in served.iter().filter_map(|one| one.about.as_ref()) {
            self.false_starts.remove(id);
        }
        if served.iter().any(|one| one.node) {
            self.look_after_node();
        }
        if !served.is_empty() {
            self.publish();
        }
        if let Err(error) = ended.and_then(|()| tell(&self.state, &served)) {
            self.trouble("carrying out a request", &error);
        }
    }
}
