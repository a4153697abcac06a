//! `reset [--dry-run] [--volumes --serial …] [--abandon-etcd]`: takes the node out. What is done stands in `plan.rs`, how in `execute.rs`.
//!
//! A marker in the state directory is the first thing that is written and the last that goes: while it is there the daemon does not
//! run, and the next reset goes on. Each step can be done twice. Afterwards the daemon is disabled: the node is brought up again as a new
//! one when somebody starts it.
//!
//! In: the command line, the state directory, the machine. Out: a plan of steps (`--dry-run` stops there), then a machine without the node.
//! Never: a volume whose serial the operator did not type, or a member of etcd that stays behind unless `--abandon-etcd` says so.

mod execute;
mod marker;
mod plan;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use nix::unistd::geteuid;

use self::execute::Execution;
use self::marker::ResetMarker;
use self::plan::{ResetFacts, ResetStep, steps};
use super::{document, print};
use crate::clock::Clock;
use crate::converge::diagnosis;
use crate::daemon;
use crate::deploy::{DeploymentState, Journal};
use crate::error::{Error, Result};
use crate::files::Tree;
use crate::http::Http;
use crate::keepers::membership::leave::{EtcdDeparture, Member};
use crate::process::{exit, runtime};
use crate::programs::Programs;
use crate::report::text::harmless;
use crate::report::{Code, Event, Report};
use crate::settings::Settings;
use crate::systemd::Systemd;

pub use self::plan::Arguments;

/// Takes the node out, and prints each step once it is done.
///
/// # Errors
/// If it must not be done as it is asked for: nothing was changed then. If a step fails: what is left to do is said.
pub fn run(settings: &Settings, wanted: &Arguments) -> Result<ExitCode> {
    if !geteuid().is_root() {
        return Err(Error::permanent("only root can take a node out: run this command as root"));
    }
    daemon::check_instance(&settings.state_dir)?;
    let nothing = || print("no node was brought up on this machine: there is nothing to do\n").map(|()| exit::OK);
    if !settings.state_dir.is_dir() {
        return nothing();
    }
    let state = Arc::new(document::open_state(settings)?);
    let marker = ResetMarker::read(&state)?;
    let root = Arc::new(Tree::open(Path::new("/"))?);
    let asked = daemon::asked_of_node(&state, &root)?;
    if asked.is_empty() && marker.is_none() {
        return nothing();
    }
    let running =
        Journal::inspect(&state)?.into_iter().filter(|record| record.state == DeploymentState::Running && record.is_job());
    let running = running.map(|record| record.id).collect();
    let report = Report::to_journal(false);
    let done = runtime()?.block_on(async {
        let clock = Clock::system();
        let http = Http::new(settings.tls.clone(), Arc::clone(&root), clock.clone());
        let systemd = Systemd::connect().await?;
        let is_left = marker.as_ref().is_some_and(|marker| marker.etcd_is_left);
        let programs = Programs::new(Arc::clone(&state), Some(systemd.clone()), clock.clone())?;
        let (member, has_left) = match EtcdDeparture::of(&http, &root, &state, &programs, &asked).filter(|_| !is_left) {
            Some(departure) => (departure.look().await, departure.has_left()?),
            None => (Member::None, false),
        };
        let found = ResetFacts { asked, running, member };
        let steps = steps(&found, wanted)?;
        if wanted.dry_run {
            let lines: Vec<String> = steps.iter().map(|step| format!("would {}\n", step.text())).collect();
            return print(&harmless(&lines.concat())).map(|()| exit::pending());
        }
        let mut execution = Execution {
            settings,
            state: &state,
            root: &root,
            systemd: &systemd,
            http: &http,
            programs: &programs,
            clock: &clock,
            report: &report,
            asked: &found.asked,
            wanted,
            marker: marker.unwrap_or_default(),
            lock: None,
        };
        execution.marker.data_is_of_nobody |= has_left;
        execution.marker.write(&state)?;
        carry_out(&mut execution, &steps).await?;
        report.emit(Event::new(Code::NodeReset, "this node was taken out by reset").cause("the operator asked for it"));
        Ok(exit::OK)
    });
    report.flush();
    done
}

async fn carry_out(execution: &mut Execution<'_>, steps: &[ResetStep]) -> Result<()> {
    for (at, step) in steps.iter().enumerate() {
        if let Err(error) = execution.carry_out(step).await {
            let left: Vec<String> = steps.iter().skip(at).map(ResetStep::text).collect();
            let again =
                "remove the cause and run `heat-node-agent reset` again with the same options: what is done is not done twice";
            let remedy = error.suggested_remedy().map_or_else(|| again.to_owned(), |own| format!("{own}; then {again}"));
            return Err(Error::permanent(error.to_string())
                .rule(format!("left to do, by hand or by reset: {}", left.join("; ")))
                .remedy(remedy)
                .context(format!("the reset stopped; it could not {}", step.text())));
        }
        print(&harmless(&format!("done: {}\n", step.text())))?;
    }
    let node = execution.asked.first().map_or("NODE", diagnosis::node_name);
    print(&harmless(&format!(
        "The node is out. heat-node-agent.service is disabled; `systemctl enable --now heat-node-agent` brings it up again as a new \
         node if Heat still lists its deployment.\n\
         Left to do: reboot, which ends what is left of pods, their mounts, interfaces and routes; `kubectl delete node {node}` on a master. \
         Files that the image had in the place of the agent's are not put back.\n",
    )))
}
