//! `run [--once]`: the daemon.

pub use crate::daemon::run;
