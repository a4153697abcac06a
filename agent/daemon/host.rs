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
