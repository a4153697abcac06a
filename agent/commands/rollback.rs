//! `rollback [N] --dry-run`: what `rollback` would change. The rollback itself is an order (`order.rs`).

use std::process::ExitCode;

use super::plan::ask_now;
use super::{document, print};
use crate::daemon::{self, RollbackPreview};
use crate::error::Result;
use crate::process::{exit, runtime};
use crate::report::text::harmless;
use crate::settings::Settings;

/// Prints the plan of the way back, and what only the newest generation asks for; 2 if anything would change.
///
/// # Errors
/// If the rollback would be refused, or the machine cannot be looked at.
pub fn preview(settings: &Settings, generation: Option<u64>) -> Result<ExitCode> {
    daemon::check_instance(&settings.state_dir)?;
    let state = document::open_state(settings)?;
    let RollbackPreview { number, plan, retired } =
        runtime()?.block_on(daemon::preview_rollback(&state, generation, &ask_now))?;
    let retired: String = retired.iter().map(|line| format!("{line}\n")).collect();
    print(&format!("back to generation {number}: {}{}", plan.render(), harmless(&retired)))?;
    Ok(if plan.is_empty() && retired.is_empty() { exit::OK } else { exit::pending() })
}

/// Refuses a rollback that the installed programs do not allow, before the daemon is asked and anything is changed.
///
/// # Errors
/// If they do not.
pub fn refuse_early(settings: &Settings, generation: Option<u64>) -> Result<()> {
    daemon::check_instance(&settings.state_dir)?;
    let state = document::open_state(settings)?;
    runtime()?.block_on(daemon::refuse_rollback(&state, generation, &ask_now))
}
