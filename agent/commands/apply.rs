//! `apply --root DIR [--metadata FILE]`: the same files and unit enablement into a directory tree, offline.

use std::path::Path;
use std::process::ExitCode;

use super::{plan, print};
use crate::converge::offline;
use crate::error::Result;
use crate::kubernetes::MachineFacts;
use crate::process::{CommonOptions, exit};
use crate::settings::Settings;

/// Writes what the node's deployment asks for below `root`, and prints what was done and what is left to the node.
///
/// # Errors
/// If the parameters are wrong, `root` is `/`, or something cannot be written.
pub fn run(options: &CommonOptions, settings: &Settings, root: &Path) -> Result<ExitCode> {
    let (_, desired) = plan::desired(options, settings, &MachineFacts::default())?;
    let done = offline::apply(&desired, root)?;
    let lines: Vec<String> =
        done.done.iter().cloned().chain(done.omitted.iter().map(|what| format!("left to the node: {what}"))).collect();
    let text = if done.done.is_empty() { "nothing to write\n" } else { "" };
    print(&format!("{}\n{text}", lines.join("\n")))?;
    Ok(exit::OK)
}
