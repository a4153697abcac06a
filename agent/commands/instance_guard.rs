//! `instance-guard`: whether the services that the agent configured on this disk may start. Internal.

use std::path::Path;
use std::process::ExitCode;

use crate::error::Result;
use crate::files::Tree;
use crate::identity::may_start;
use crate::process::exit;
use crate::settings::Settings;

/// Fails where they are those of another instance.
///
/// # Errors
/// Says why they must not start.
pub fn run(settings: &Settings) -> Result<ExitCode> {
    // Before the agent's first start there is no state, and so no other instance.
    if settings.state_dir.is_dir() {
        may_start(&Tree::open(Path::new("/"))?, &Tree::open(&settings.state_dir)?)?;
    }
    Ok(exit::OK)
}
