//! How a process of this program begins and ends: its options, what it runs on, exit codes.
//!
//! In: nothing but the operating system. Out: the runtime that a command waits on, and exit codes. Never: what a command does.

use std::path::PathBuf;

use tokio::runtime::{Builder, LocalOptions, LocalRuntime};

use crate::error::Result;

/// Options that commands share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommonOptions {
    /// Settings file in place of those of the system.
    pub settings: Option<PathBuf>,
    /// State directory in place of the one in the settings.
    pub state: Option<PathBuf>,
    /// Metadata file in place of the sources. Only `run`, `plan`, `upgrade-check`, `apply`, `verify`, `metadata` and `signal` have this option.
    pub metadata: Option<PathBuf>,
}

/// What a command that waits for something runs on: this thread alone. Not a `Runtime`, which could be one of many threads:
/// that scheduler would be in the binary, and for one `pow` in it all of libm in memory.
pub(super) fn runtime() -> Result<LocalRuntime> {
    Ok(Builder::new_current_thread().enable_all().build_local(LocalOptions::default())?)
}

/// What commands end with (design.md 3).
pub mod exit {
    use std::process::ExitCode;

    /// Success.
    pub const OK: ExitCode = ExitCode::SUCCESS;
    /// Failed; for `run --once`: a deployment failed.
    pub const FAILED: ExitCode = ExitCode::FAILURE;

    /// Only `plan`, `status`, `certificates`, `upgrade-check`, and `--dry-run` of `repair`, `rollback`, `reset` and `etcd restore`: changes are pending,
    /// something is degraded, a certificate is close to expiry, expired, missing or invalid, or the daemon is down. `upgrade-check`: something
    /// could not be checked.
    #[must_use]
    pub fn pending() -> ExitCode {
        ExitCode::from(2)
    }

    /// Only `status --wait`: the time is up (EX_TEMPFAIL).
    #[must_use]
    pub fn timed_out() -> ExitCode {
        ExitCode::from(75)
    }

    /// Usage, or settings that cannot be read (EX_USAGE of sysexits.h): systemd does not restart into them.
    #[must_use]
    pub fn usage() -> ExitCode {
        ExitCode::from(64)
    }
}
