//! `hook-run DIR`: the only command of a job's unit. Internal.

use std::path::Path;
use std::process::ExitCode;

use crate::clock::Clock;
use crate::error::Result;
use crate::process::exit;
use crate::programs::runner;

/// Runs the job in a directory, at most once.
///
/// # Errors
/// If the job cannot be read or its result not be written.
pub fn run(directory: &Path) -> Result<ExitCode> {
    runner::run(directory, &Clock::system())?;
    Ok(exit::OK)
}
