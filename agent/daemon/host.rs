//! What everything in the daemon works with.

use std::sync::Arc;

use crate::clock::Clock;
use crate::files::Tree;
use crate::report::Report;
use crate::settings::Settings;
use crate::systemd::Systemd;

/// The machine, its settings, and the directory of its state.
#[derive(Clone, Debug)]
pub(super) struct Host {
    pub(super) settings: Settings,
    pub(super) root: Arc<Tree>,
    pub(super) state: Arc<Tree>,
    /// `None` where no systemd runs.
    pub(super) systemd: Option<Systemd>,
    pub(super) clock: Clock,
    pub(super) report: Report,
}

#[cfg(test)]
impl Host {
    /// A machine that is a directory, and its state as well, without systemd.
    pub(super) fn in_directory(tree: Arc<Tree>, clock: Clock) -> Self {
        let settings = Settings::default();
        Self { settings, root: Arc::clone(&tree), state: tree, systemd: None, clock, report: Report::kept() }
    }
}
