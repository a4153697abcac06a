//! `repair --dry-run`: what `repair` would put back. The repair itself is an order (`order.rs`).

use std::process::ExitCode;

use super::{document, print};
use crate::daemon;
use crate::error::Result;
use crate::process::{exit, runtime};
use crate::report::text::harmless;
use crate::settings::Settings;

/// Prints what would be put back, and what would be left alone; 2 if there is anything to put back.
///
/// # Errors
/// If no node is in place, or the machine cannot be looked at.
pub fn preview(settings: &Settings) -> Result<ExitCode> {
    daemon::check_instance(&settings.state_dir)?;
    let state = document::open_state(settings)?;
    let preview = runtime()?.block_on(daemon::preview_repair(&state))?;
    let put_back = preview.put_back.iter().map(|text| format!("would be put back: {text}"));
    let left = preview.left.iter().map(|text| format!("would be left alone: {text}"));
    let mut lines: Vec<String> = put_back.chain(left).collect();
    if lines.is_empty() {
        lines.push("nothing differs from the node's parameters".to_owned());
    }
    print(&harmless(&format!("{}\n", lines.join("\n"))))?;
    Ok(if preview.put_back.is_empty() { exit::OK } else { exit::pending() })
}
