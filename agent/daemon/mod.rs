//! The daemon: `run [--once]` wires the rooms together.
//!
//! In: settings and what the sources say. Out: deployments that ran, a node as it is asked for, signals, a status document. What it
//! does stands in `agent/`, the node's lane in `node/`. Never: a way of its own to the bus, the network or a disk.

mod agent;
mod instance;
pub(crate) mod leave;
pub(super) mod masking;
mod node;
pub(super) mod own;
pub(crate) mod page;
mod pause;
pub(super) mod requests;

use std::process::ExitCode;
use std::sync::Arc;

use nix::unistd::geteuid;
use tokio::signal::unix::{SignalKind, signal};

use crate::clock::Clock;
use crate::commands::print_error;
use crate::error::{Error, Result};
use crate::files::Tree;
use crate::process::{Options, exit, runtime};
use crate::report::{Code, Event, Report};
use crate::settings::{Loaded, Warning};
use crate::systemd::Systemd;

use agent::Agent;
pub(super) use agent::ending::stopped;
use instance::Place;
pub(super) use instance::check as check_instance;
pub(super) use node::{understand, wait_id};
pub(super) use page::of_state;

/// Runs until SIGTERM, or one full pass with `once`.
///
/// # Errors
/// If the state directory cannot be used. Bad input from outside is never an error.
pub fn run(options: &Options, loaded: Loaded, once: bool) -> Result<ExitCode> {
    let runtime = runtime()?;
    let report = Report::to_journal(loaded.settings.console && !once);
    let code = runtime.block_on(serve(options, loaded, once, &report));
    if let Err(error) = &code {
        report.emit(Event::new(Code::of_trouble(error), "the agent cannot continue").error(error));
    }
    report.flush();
    // A name lookup or a child's watcher may still hold a thread: nobody waits for it.
    runtime.shutdown_background();
    code
}

async fn serve(options: &Options, loaded: Loaded, once: bool, report: &Report) -> Result<ExitCode> {
    if !once {
        // R6: at any time, and systemd may send it from READY=1 on, before anybody waits for it: tokio never takes a handler back.
        drop(signal(SignalKind::hangup())?);
    }
    let clock = Clock::system();
    for warning in &loaded.warnings {
        report.emit(event(warning));
    }
    let settings = loaded.settings;
    let root = Arc::new(Tree::open(std::path::Path::new("/"))?);
    let no_root = |error: Error| if geteuid().is_root() { error } else { error.remedy("run this command as root") };
    let state = Arc::new(Tree::open_or_create(&settings.state_dir, 0o700).map_err(no_root)?);
    let Some(_lock) = state.lock(std::path::Path::new("lock"))? else {
        let line = format!("another agent has locked {}", settings.state_dir.display());
        if once {
            let remedy =
                "it does the same work: check `heat-node-agent status`, or stop it first: systemctl stop heat-node-agent";
            print_error(&Error::refused(&line).remedy(remedy));
        }
        report.emit(Event::new(Code::StateLocked, line));
        return Ok(exit::FAILED);
    };
    let systemd = connect(report).await?;
    let conditions = page::conditions(&loaded.warnings, systemd.is_some(), clock.now());
    let place = Place { settings, root, state, systemd, clock, report: report.clone() };
    let Some(instance) = place.settle(once).await? else { return Ok(if once { exit::FAILED } else { exit::OK }) };
    let mut agent = Agent::open(place, options.metadata.clone(), instance)?;
    agent.conditions = conditions;
    agent.measure_disk();
    if once { agent.run_once().await } else { agent.run().await }
}

fn event(warning: &Warning) -> Event {
    let code = if warning.skipped { Code::SettingsFileSkipped } else { Code::SettingsUnknownKey };
    let file = warning.file.display().to_string();
    Event::new(code, format!("settings file {file}")).step(format!("{file} {}", warning.key)).cause(warning.message.clone())
}

/// The system bus; `None` where no systemd runs. A bus that does not answer where systemd runs is an error: as children
/// inside the sandbox scripts would fail, and end with us. systemd starts us again.
pub(super) async fn connect(report: &Report) -> Result<Option<Systemd>> {
    if !sd_notify::booted().unwrap_or(false) {
        report.emit(Event::new(Code::NoSystemd, "systemd is not running here: scripts run as children of the agent"));
        return Ok(None);
    }
    Systemd::connect().await.map(Some)
}
