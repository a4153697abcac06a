//! `status [--json]`: what the daemon last said of itself; works when it is down.

use std::path::Path;
use std::process::ExitCode;

use sysinfo::Disks;

use super::{exit, print};
use crate::error::{Error, Result};
use crate::files::{READ_LIMIT, Tree};
use crate::report::status::Status;
use crate::settings::Settings;

/// Name of the status file in the run directory.
pub(super) const FILE: &str = "status.json";

/// Prints the page, or the document.
///
/// # Errors
/// If there is no status file yet, or it cannot be read.
pub fn run(settings: &Settings, json: bool) -> Result<ExitCode> {
    let never = || {
        Error::permanent("the daemon has not run since boot: there is no status file")
            .context(format!("reading {}", settings.run_dir.join(FILE).display()))
            .remedy("systemctl start heat-node-agent; journalctl -u heat-node-agent says why it does not")
    };
    let tree = Tree::open(&settings.run_dir).map_err(|_| never())?;
    let status: Status = tree.read_json(Path::new(FILE))?.ok_or_else(never)?;
    let running = is_running(status.agent.pid);
    if json {
        let mut value = serde_json::to_value(&status).map_err(Error::permanent)?;
        if let Some(agent) = value.get_mut("agent").and_then(|agent| agent.as_object_mut()) {
            agent.insert("running".to_owned(), running.into());
        }
        print(&format!("{value:#}\n"))?;
    } else {
        print(&format!("{}{}", status.page(running), machine()))?;
    }
    Ok(if status.is_degraded() || !running { exit::pending() } else { exit::OK })
}

/// Room on the machine's disks, asked for now: the first thing to look at when a node is sick.
fn machine() -> String {
    let mib = |bytes: u64| bytes / (1024 * 1024);
    let mut room = Vec::new();
    let mut seen = Vec::new();
    for disk in Disks::new_with_refreshed_list().iter().flatten() {
        let point = disk.mount_point().display().to_string();
        if ["/", "/var", "/var/lib/docker", "/var/lib/etcd"].contains(&point.as_str()) && !seen.contains(&point) {
            room.push(format!("{point} {} of {} MiB", mib(disk.available_space()), mib(disk.total_space())));
            seen.push(point);
        }
    }
    if room.is_empty() { String::new() } else { format!("free: {}\n", room.join(", ")) }
}

/// Whether the process that wrote the status is still there, and still an agent.
fn is_running(pid: u32) -> bool {
    let name = Tree::open(Path::new("/proc")).and_then(|proc| proc.read(Path::new(&format!("{pid}/comm")), READ_LIMIT));
    // The kernel keeps the first 15 characters of a name.
    name.ok().flatten().is_some_and(|name| name.starts_with(b"heat-node-agent"))
}
