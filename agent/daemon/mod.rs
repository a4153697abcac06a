//! The daemon: `run [--once]` wires the modules together.
//!
//! In: settings and what the sources say. Out: deployments that ran, a node as it is asked for, signals, a status document. What it
//! does stands in `agent/`, the node's task in `node/`. Never: a way of its own to the bus, the network or a disk.

mod agent;
mod host;
mod instance;
pub(super) mod masking;
mod node;
pub(super) mod order_files;
mod page;
mod pause;
mod reason;
pub(crate) mod status_file;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use nix::unistd::geteuid;
use tokio::signal::unix::{SignalKind, signal};

use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::files::{Lock, Tree};
use crate::keepers::membership::restore::end_cut_off;
use crate::output::print_error;
use crate::process::{CommonOptions, exit, runtime};
use crate::report::{Code, Event, Report};
use crate::settings::{Loaded, Warning};
use crate::systemd::Systemd;

use agent::Agent;
pub(super) use agent::ending::stopped;
use host::Host;
pub(super) use instance::check as check_instance;
pub(crate) use node::{
    NodeUnits, RollbackPreview, asked_of_node, foretold, in_place, parts_not_taken_back, preview_repair, preview_rollback,
    refuse_rollback, units_of_node,
};
pub(super) use node::{understand, wait_id};
pub(super) use page::of_state;

/// The unit that the daemon is.
pub(crate) const UNIT: &str = "heat-node-agent.service";
/// Held in the state directory by whoever works with it.
pub(crate) const LOCK: &str = "lock";
/// In the state directory while a reset of the node has been begun and has not ended.
pub(crate) const RESET: &str = "reset.json";

/// Runs until SIGTERM, or one full pass with `once`.
///
/// # Errors
/// If the state directory cannot be used. Bad input from outside is never an error.
pub fn run(options: &CommonOptions, loaded: Loaded, once: bool) -> Result<ExitCode> {
    let runtime = runtime()?;
    let report = Report::to_journal(loaded.settings.console && !once);
    let run_dir = loaded.settings.run_dir.clone();
    let code = runtime.block_on(serve(options, loaded, once, &report));
    if let Err(error) = &code {
        report.emit(Event::new(Code::of_trouble(error), "the agent cannot continue").error(error));
        if !once {
            publish_stop_reason(&run_dir, error);
        }
    }
    report.flush();
    // A name lookup or a child's watcher may still hold a thread: nobody waits for it.
    runtime.shutdown_background();
    code
}

/// Says in the status file why no daemon runs: on a full disk, say, which the run directory is not on. Where that fails too, the
/// journal has it.
fn publish_stop_reason(run_dir: &Path, error: &Error) {
    let (Ok(root), Ok(tree)) = (Tree::open(Path::new("/")), Tree::open_or_create(run_dir, 0o755)) else { return };
    let before = tree.read_json(Path::new(status_file::FILE)).ok().flatten();
    drop(status_file::write(&tree, &page::of_stopped(before, error, &root, Clock::system().now())));
}

async fn serve(options: &CommonOptions, loaded: Loaded, once: bool, report: &Report) -> Result<ExitCode> {
    if !once {
        // R6: at any time, and systemd may send it from READY=1 on, before anybody waits for it: tokio never takes a handler back.
        drop(signal(SignalKind::hangup())?);
    }
    let clock = Clock::system();
    for warning in &loaded.warnings {
        report.emit(event(warning));
    }
    let settings = loaded.settings;
    let root = Arc::new(Tree::open(Path::new("/"))?);
    let permission_hint = |error: Error| if geteuid().is_root() { error } else { error.remedy("run this command as root") };
    let state = Arc::new(Tree::open_or_create(&settings.state_dir, 0o700).map_err(permission_hint)?);
    // A reset that is under way has the lock. Who waited for it would bring the node up again behind its end.
    if let Some(code) = refuse_while_reset(&state, &settings.run_dir, once, report)? {
        return Ok(code);
    }
    let Some(_lock) = take_lock(&state, &clock).await? else {
        let line = format!("another agent has locked {}", settings.state_dir.display());
        if once {
            let remedy =
                "it does the same work: check `heat-node-agent status`, or stop it first: systemctl stop heat-node-agent";
            print_error(&Error::refused(&line).remedy(remedy));
        }
        report.emit(Event::new(Code::StateLocked, line));
        return Ok(exit::FAILED);
    };
    // It may have begun meanwhile.
    if let Some(code) = refuse_while_reset(&state, &settings.run_dir, once, report)? {
        return Ok(code);
    }
    end_cut_off(&root, &state, report)?;
    let systemd = connect(report).await?;
    let conditions = page::conditions(&loaded.warnings, systemd.is_some(), clock.now());
    let host = Host { settings, root, state, systemd, clock, report: report.clone() };
    let Some(instance) = host.settle(once).await? else { return Ok(if once { exit::FAILED } else { exit::OK }) };
    let deployed = &host.settings.deploy.deployed_dir;
    // Behind the change of instance, which may move the directory away.
    let Ok(_deployed_lock) = lock_deployed(deployed, &host.clock).await else {
        let line = format!("another agent uses {}", deployed.display());
        let error = Error::refused(&line)
            .rule("what runs for one agent would be taken for lost by the other, and Heat be told so")
            .remedy("give this one a directory of its own: [deploy] deployed_dir in its settings; or stop the other one first");
        if once {
            print_error(&error);
        }
        host.report.emit(Event::new(Code::StateLocked, line).error(&error));
        return Ok(exit::FAILED);
    };
    let mut agent = Agent::open(host, options.metadata.clone(), instance)?;
    agent.publisher.conditions = conditions;
    agent.forget_ended_rollback();
    agent.measure_disk();
    if once { Box::pin(agent.run_once()).await } else { Box::pin(agent.run()).await }
}

/// In the replaced tools' record.
const DEPLOYED_LOCK: &str = ".heat-node-agent.lock";
/// How long is waited for a lock that an order, or a daemon that was stopped, still holds.
const LOCK_PATIENCE: Duration = Duration::from_secs(5);
/// How often it is looked at meanwhile.
const LOCK_POLL: Duration = Duration::from_millis(50);

/// With what the agent ends where a reset has begun and has not ended.
fn refuse_while_reset(state: &Tree, run_dir: &Path, once: bool, report: &Report) -> Result<Option<ExitCode>> {
    if state.facts(Path::new(RESET))?.is_none() {
        return Ok(None);
    }
    let error = Error::refused("a reset of this node was begun and has not ended")
        .rule("a node that is being taken out is not brought up again")
        .remedy("wait for its end; if no reset runs, run `heat-node-agent reset` again: it resumes where it was interrupted");
    report.emit(Event::new(Code::ResetUnfinished, "the agent does not start").error(&error));
    publish_stop_reason(run_dir, &error);
    if once {
        print_error(&error);
    }
    Ok(Some(exit::usage()))
}

/// Takes the state's lock; `None` if another agent has it. A command that carries out an order holds it for a moment, and the
/// start of the daemon must not fail for that.
pub(crate) async fn take_lock(state: &Tree, clock: &Clock) -> Result<Option<Lock>> {
    wait_for_lock(state, Path::new(LOCK), clock).await
}

async fn wait_for_lock(tree: &Tree, path: &Path, clock: &Clock) -> Result<Option<Lock>> {
    let since = clock.start();
    loop {
        let lock = tree.lock(path)?;
        if lock.is_some() || since.elapsed() >= LOCK_PATIENCE {
            return Ok(lock);
        }
        clock.wait(LOCK_POLL).await;
    }
}

/// Another agent works with the same directory.
struct InUse;

/// Locks the replaced tools' record, which may be that of an agent with another state directory. Where it cannot be written nobody is kept
/// from running by that: what else it is for says so.
async fn lock_deployed(directory: &Path, clock: &Clock) -> std::result::Result<Option<Lock>, InUse> {
    let Ok(tree) = Tree::open_or_create(directory, 0o700) else { return Ok(None) };
    match wait_for_lock(&tree, Path::new(DEPLOYED_LOCK), clock).await {
        Ok(Some(lock)) => Ok(Some(lock)),
        Ok(None) => Err(InUse),
        Err(_) => Ok(None),
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Timestamp;
    use crate::files::Attributes;

    /// Attack: an agent that was started while a reset held the lock was started again behind the reset's end, and undid it.
    #[test]
    fn nobody_waits_for_the_lock_of_a_reset() {
        let dir = tempfile::tempdir().unwrap();
        let (state, report) = (Tree::open(dir.path()).unwrap(), Report::kept());
        let refused = || refuse_while_reset(&state, &dir.path().join("run"), false, &report).unwrap();
        assert_eq!(refused(), None);
        state.write(Path::new(RESET), b"{}", Attributes::mode(0o600)).unwrap();
        let _held = state.lock(Path::new("lock")).unwrap().unwrap();
        // 64: systemd does not start it again (RestartPreventExitStatus=).
        assert_eq!(refused(), Some(exit::usage()));
        assert_eq!(report.events().iter().filter(|event| event.code == Code::ResetUnfinished).count(), 1);
    }

    #[tokio::test]
    async fn a_lock_that_a_command_holds_for_a_moment_is_waited_for_and_that_of_another_agent_is_not_for_long() {
        let dir = tempfile::tempdir().unwrap();
        let state = Tree::open(dir.path()).unwrap();
        let clock = Clock::manual(Timestamp(0));
        let held = state.lock(Path::new("lock")).unwrap().unwrap();
        let released = async {
            while clock.now() < Timestamp(1_000) {
                tokio::task::yield_now().await;
            }
            drop(held);
        };
        let (taken, ()) =
            clock.limit(Duration::from_secs(20), async { tokio::join!(take_lock(&state, &clock), released) }).await.unwrap();
        assert!(taken.unwrap().is_some());
        let _other = state.lock(Path::new("lock")).unwrap().unwrap();
        let since = clock.now();
        assert!(take_lock(&state, &clock).await.unwrap().is_none());
        assert_eq!(clock.now().since(since), LOCK_PATIENCE);
    }

    /// Attack: an agent with another state directory reported what the daemon's script was still doing as lost.
    #[tokio::test]
    async fn two_agents_do_not_share_the_replaced_tools_record() {
        let dir = tempfile::tempdir().unwrap();
        let (deployed, clock) = (dir.path().join("deployed"), Clock::manual(Timestamp(0)));
        let first = lock_deployed(&deployed, &clock).await.ok().unwrap();
        assert!(first.is_some() && lock_deployed(&deployed, &clock).await.is_err());
        drop(first);
        assert!(lock_deployed(&deployed, &clock).await.is_ok_and(|lock| lock.is_some()));
        let file = deployed.join("file");
        Tree::open(&deployed).unwrap().write(Path::new("file"), b"", Attributes::mode(0o600)).unwrap();
        assert!(lock_deployed(&file, &clock).await.is_ok_and(|lock| lock.is_none()), "there is nothing to lock");
    }
}
