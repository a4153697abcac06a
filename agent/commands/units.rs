//! Units that a command itself stops and starts, the agent's own among them.

use crate::clock::Clock;
use crate::daemon::take_lock;
use crate::error::{Error, Result};
use crate::files::{Lock, Tree};
use crate::systemd::{JobOutcome, Systemd};

/// Stops a unit that runs, or is about to.
///
/// # Errors
/// If it does not stop.
pub(super) async fn stop(systemd: &Systemd, unit: &str) -> Result<()> {
    if !systemd.unit(unit).await?.may_run_soon() {
        return Ok(());
    }
    succeeded(unit, &systemd.stop(unit).await?)
}

/// Whether systemd did what it was asked for.
///
/// # Errors
/// If it did not.
pub(super) fn succeeded(unit: &str, outcome: &JobOutcome) -> Result<()> {
    if outcome.is_done() {
        return Ok(());
    }
    Err(Error::permanent(format!("{unit}: systemd says {}", outcome.result))
        .remedy(format!("`systemctl status {unit}` shows why")))
}

/// The lock of the state directory, once the agent's unit is stopped: nobody else changes the node until it is dropped.
///
/// # Errors
/// Refused where an agent runs outside its unit.
pub(super) async fn lock_state(state: &Tree, clock: &Clock) -> Result<Lock> {
    let refusal =
        || Error::refused("another agent works with the state directory").remedy("end it: `ps -C heat-node-agent` shows it");
    take_lock(state, clock).await?.ok_or_else(refusal)
}
