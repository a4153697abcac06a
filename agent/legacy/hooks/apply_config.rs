//! The hook of group `apply-config`: renders the templates of the machine with the metadata of the machine.

use super::super::machine::variable;
use super::shared::{HookAnswer, STREAM, result};
use crate::error::Result;
use crate::programs::child::Child;

/// Runs os-apply-config: the one that the environment names, else this program's own.
pub(super) fn run() -> Result<HookAnswer> {
    let child = match variable("HEAT_APPLY_CONFIG_CMD") {
        Some(command) => Child::new(command),
        None => Child::own("os-apply-config"),
    };
    Ok(result(HookAnswer::new(), &child.hear(b"", STREAM)?))
}
