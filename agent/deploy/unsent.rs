//! Results that Heat does not have yet: what 55-heat-config leaves beside the record of a deployment until its result has been told
//! (heat-protocol.md R30, R31).
//!
//! `ID.unsent` is made before the deployment begins, is locked while it runs, and goes when the result is told. One that nobody has locked
//! belongs to a run that was cut off, or to a result that Heat did not take.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::machine::Machine;
use crate::error::Result;
use crate::files::{Lock, READ_LIMIT};
use crate::metadata::python_json;

/// How heat-config-notify ends where the result may be taken later, for 55-heat-config alone (`EX_TEMPFAIL` of sysexits.h).
pub(super) const LATER: u8 = 75;

/// The mark of a deployment whose record this is.
fn mark(deployed: &Path) -> PathBuf {
    deployed.with_extension("unsent")
}

/// Whether the result of a deployment is still to be told.
pub(super) fn is_open(machine: &Machine, deployed: &Path) -> bool {
    machine.kind(mark(deployed)).is_some()
}

/// Takes the mark away: Heat has the result, or never takes it.
///
/// # Errors
/// If it cannot be removed.
pub(super) fn settle(machine: &Machine, deployed: &Path) -> Result<()> {
    machine.root.remove(&mark(deployed)).map(drop)
}

/// A result to tell, which no other process tells meanwhile.
pub(super) struct Unsent {
    lock: Lock,
}

impl Unsent {
    /// Before a deployment begins; `None` where another process is running it.
    ///
    /// # Errors
    /// If there is no room for the mark.
    pub(super) fn begin(machine: &Machine, deployed: &Path) -> Result<Option<Self>> {
        let Some(lock) = machine.root.lock(&mark(deployed))? else { return Ok(None) };
        // Of an earlier run of the same deployment.
        lock.note("")?;
        machine.root.remove(&result_file(deployed))?;
        Ok(Some(Self { lock }))
    }

    /// What an earlier run left; `None` where there is nothing, or another process is at it.
    ///
    /// # Errors
    /// If it cannot be looked at.
    pub(super) fn take(machine: &Machine, deployed: &Path) -> Result<Option<Self>> {
        Ok(machine.root.lock_existing(&mark(deployed))?.map(|lock| Self { lock }))
    }

    /// The result of the earlier run as text; `None` where that was cut off before there was one.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(super) fn result(machine: &Machine, deployed: &Path) -> Result<Option<Vec<u8>>> {
        let short = machine.root.read(&mark(deployed), READ_LIMIT)?.filter(|text| !text.is_empty());
        short.map_or_else(|| machine.root.read(&result_file(deployed), READ_LIMIT), |text| Ok(Some(text)))
    }

    /// Keeps the status of a result whose file cannot be written.
    ///
    /// # Errors
    /// If there is no room for that either.
    pub(super) fn keep_status(&self, result: &Value, why: &str) -> Result<()> {
        let status = result.get("deploy_status_code").cloned().unwrap_or_else(|| 0.into());
        let text = format!("the rest of the result is lost: {why}");
        self.lock.note(&python_json(&serde_json::json!({"deploy_status_code": status, "deploy_stderr": text})))
    }
}

/// Where a result is also kept for people.
pub(super) fn result_file(deployed: &Path) -> PathBuf {
    deployed.with_extension("notify.json")
}
