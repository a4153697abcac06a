//! The master that the commands work on.

use std::path::Path;
use std::sync::Arc;

use nix::unistd::geteuid;

use crate::commands::document;
use crate::daemon;
use crate::desired::{Desired, EtcdMember};
use crate::error::{Error, Result};
use crate::files::{Lock, Tree};
use crate::settings::Settings;

/// The job of etcd's tools, which is not the daemon's.
pub(super) const BY_HAND: &str = "program-etcd-by-hand";

/// The machine, and what it was asked to be.
pub(super) struct Master {
    pub(super) state: Arc<Tree>,
    pub(super) root: Arc<Tree>,
    pub(super) asked: Vec<Desired>,
    pub(super) own: EtcdMember,
    /// Nobody else works on etcd by hand meanwhile.
    _lock: Lock,
}

impl Master {
    pub(super) fn open(settings: &Settings) -> Result<Self> {
        if !geteuid().is_root() {
            return Err(Error::permanent("only root has etcd's data and keys: run this command as root"));
        }
        daemon::check_instance(&settings.state_dir)?;
        let none = || Error::refused("this machine was not brought up as a master with etcd");
        if !settings.state_dir.is_dir() {
            return Err(none());
        }
        let state = Arc::new(document::open_state(settings)?);
        let root = Arc::new(Tree::open(Path::new("/"))?);
        let asked = daemon::asked_of_node(&state, &root)?;
        let own = asked.iter().find_map(|desired| desired.etcd.clone()).ok_or_else(none)?;
        let busy = || Error::refused("another command works on etcd").remedy("wait for its end");
        let lock = state.lock(Path::new("etcd-by-hand.lock"))?.ok_or_else(busy)?;
        Ok(Self { state, root, asked, own, _lock: lock })
    }
}
