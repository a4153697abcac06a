//! `port-holders PORT...`: who listens on TCP ports, for the agent itself, which cannot see it from its sandbox. Internal.

use std::path::Path;
use std::process::ExitCode;

use super::print;
use crate::error::Result;
use crate::gather::Gather;
use crate::machine::listeners::holders;
use crate::process::exit;

/// Prints them as JSON.
///
/// # Errors
/// If standard output cannot be written.
pub fn run(ports: &[u16]) -> Result<ExitCode> {
    let found = holders(Path::new("/proc"), &ports.iter().copied().gather());
    print(&serde_json::to_string(&found).unwrap_or_default())?;
    Ok(exit::OK)
}
