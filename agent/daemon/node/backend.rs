//! What volumes and certificates need of other modules: systemd, programs, Magnum, the passwd file.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;

use crate::budgets::json;
use crate::converge::{FailureDetails, Owners};
use crate::desired::{MagnumAccess, Owner};
use crate::error::{Error, Result};
use crate::files::Tree;
use crate::http::Http;
use crate::keepers::certificates;
use crate::keepers::volumes::{self, ProgramOutput};
use crate::machine::listeners::Holder;
use crate::machine::replaced_programs;
use crate::openstack::keystone::Keystone;
use crate::openstack::magnum::Magnum;
use crate::programs::{Job, Programs};
use crate::systemd::{JobOutcome, Systemd};

/// Longest time for making a file system, or a key of 4096 bits on a slow machine.
const RUN_LIMIT_MS: u64 = 15 * 60 * 1000;
/// How many lines of a unit are read: a Go program that ends by a fatal log line writes the stacks of its goroutines after it, of which
/// a kubelet has hundreds; what counts is kept in `converge::words`.
const LINES: &str = "--lines=2000";
/// Longest time for reading the journal, and for looking who listens or how a process is.
const LOOK_LIMIT_MS: u64 = 10 * 1000;
/// systemd's messages that it begins to start a unit, and that it did (SD_MESSAGE_UNIT_STARTING, SD_MESSAGE_UNIT_STARTED).
const STARTS: [&str; 2] = ["MESSAGE_ID=7d4958e842da4a758f6c1cdc7b36dcc5", "MESSAGE_ID=39f53479d3a045ac8e11786248231fbf"];
/// systemd's message that it could not run a program (sd-messages(3), SD_MESSAGE_SPAWN_FAILED): not the unit's own, but its cause.
const SPAWN_FAILED: &str = "MESSAGE_ID=641257651c1b4ec9a8624d7a40a9e1e7";

/// How long a program may run. A copy of etcd's data has no limit of its own: cut off it would leave etcd stopped for nothing,
/// and a run that ends at its deadline leaves it to the next one.
fn time_limit_ms(key: &str) -> Option<u64> {
    (key != volumes::MOVE_KEY).then_some(RUN_LIMIT_MS)
}

/// Runs programs and unit jobs for the keepers.
#[derive(Clone, Debug)]
pub(in crate::daemon) struct MachineBackend {
    pub(in crate::daemon) systemd: Systemd,
    pub(in crate::daemon) programs: Rc<Programs>,
    pub(in crate::daemon) root: Arc<Tree>,
    /// What is masked where a program shows it.
    pub(in crate::daemon) secrets: Vec<String>,
}

impl MachineBackend {
    async fn ran(&self, key: &str, job: &Job) -> Result<ProgramOutput> {
        // A program that vanished is not run again and again, where a bus that is away may be asked again.
        let lost = || Error::permanent(format!("{} ended without a result", Programs::unit(key)));
        let ran = self.programs.run_anew(key, job).await?.ok_or_else(lost)?;
        match ran.not_started {
            Some(why) => Err(why.error()),
            None => Ok(ProgramOutput { status: ran.status, stdout: ran.stdout, stderr: ran.stderr }),
        }
    }
}

impl MachineBackend {
    /// What a program that only looks prints, within [`LOOK_LIMIT_MS`]; nothing where it cannot.
    async fn printed(&self, key: &str, argv: Vec<String>, secrets: Vec<String>) -> String {
        let job = Job { argv, time_limit_ms: Some(LOOK_LIMIT_MS), secrets, ..Job::default() };
        self.ran(key, &job).await.map(|ran| ran.stdout).unwrap_or_default()
    }

    /// Which files these processes run, by a job for the same reason.
    pub(in crate::daemon) async fn running_files(&self, processes: &[u32]) -> Vec<(u32, String)> {
        let printed = self.printed("program-process-files", replaced_programs::command(processes), Vec::new()).await;
        replaced_programs::running_files(&printed)
    }

    /// What the kernel says of a process (proc_pid_stat(5)), read by a job because the agent's sandbox hides other services' processes;
    /// nothing where it has ended.
    pub(in crate::daemon) async fn process_stat(&self, pid: u32) -> String {
        self.printed("program-process-stat", vec!["cat".to_owned(), format!("/proc/{pid}/stat")], Vec::new()).await
    }
}

impl FailureDetails for MachineBackend {
    async fn failure_details(&self, unit: &str) -> Vec<String> {
        let own = format!("_SYSTEMD_UNIT={unit}");
        let of_systemd = format!("UNIT={unit}");
        let [starting, started] = STARTS;
        let command = ["journalctl", "--quiet", "--boot", "--no-pager", "--output=cat", LINES, &own];
        let of_systemd = ["+", &of_systemd, SPAWN_FAILED, starting, started];
        let argv = command.into_iter().chain(of_systemd).map(str::to_owned).collect();
        // The cause is known without them, so that none is said of a journal that cannot be read.
        // Of each unit by itself: two may be asked about at the same time.
        let key = format!("program-journalctl-{}", unit.trim_end_matches(".service"));
        let output = self.printed(&key, argv, self.secrets.clone()).await;
        let runs_again = self.systemd.unit(unit).await.is_ok_and(|state| state.is_active() && state.n_restarts > 0);
        of_last_run(&output.lines().collect::<Vec<_>>(), runs_again)
    }

    async fn holders(&self, ports: &BTreeSet<u16>) -> Vec<Holder> {
        let own = self.programs.executable().display().to_string();
        let ports = ports.iter().map(u16::to_string);
        let argv = [own, "port-holders".to_owned()].into_iter().chain(ports).collect();
        let output = self.printed("program-port-holders", argv, Vec::new()).await;
        json::typed(&output).unwrap_or_default()
    }
}

/// What the run that died last said, without systemd's own words of its start: what an earlier one said is not why it died. `runs_again`:
/// systemd has restarted it since, and what that run says is not why either.
fn of_last_run(lines: &[&str], runs_again: bool) -> Vec<String> {
    let is_start = |line: &&str| line.starts_with("Starting ") || line.starts_with("Started ");
    let mut runs: Vec<&[&str]> = lines.split(is_start).collect();
    if runs_again && runs.len() > 1 {
        runs.pop();
    }
    let run = runs.into_iter().rfind(|run| !run.is_empty()).unwrap_or_default();
    run.iter().map(|line| (*line).to_owned()).collect()
}

fn done(what: &str, outcome: &JobOutcome) -> Result<()> {
    if outcome.is_done() {
        return Ok(());
    }
    let cause = format!("systemd says {}", outcome.result);
    // A job that somebody else's replaced says nothing of the unit; one that failed fails again.
    let error = if outcome.result == "canceled" { Error::transient(cause) } else { Error::permanent(cause) };
    Err(error.context(what).remedy(format!("check `journalctl -u {what}`")))
}

impl volumes::VolumeBackend for MachineBackend {
    async fn reload(&self) -> Result<()> {
        self.systemd.reload().await
    }

    async fn start(&self, unit: &str) -> Result<()> {
        done(unit, &self.systemd.start(unit).await?)
    }

    async fn stop(&self, unit: &str) -> Result<()> {
        done(unit, &self.systemd.stop(unit).await?)
    }

    async fn may_run(&self, unit: &str) -> Result<bool> {
        Ok(self.systemd.unit(unit).await?.may_run())
    }

    async fn mount(&self, what: &str, place: &str, fs_type: &str, options: &str) -> Result<()> {
        done(place, &self.systemd.start_transient_mount(what, place, fs_type, options).await?)
    }

    async fn run(&self, key: &str, argv: Vec<String>) -> Result<ProgramOutput> {
        self.ran(key, &Job { argv, time_limit_ms: time_limit_ms(key), ..Job::default() }).await
    }

    async fn wait_stopped(&self, key: &str) -> Result<()> {
        self.systemd.wait_until_stopped(&Programs::unit(key)).await?;
        self.programs.forget(key)
    }

    fn ids(&self, owner: &Owner) -> Result<(u32, u32)> {
        Owners::read(&self.root)?
            .resolve(owner)
            .ok_or_else(|| Error::permanent(format!("there is no {}:{} on this machine", owner.user, owner.group)))
    }
}

/// Who signs certificates, and who makes keys that the agent itself cannot make.
#[derive(Debug)]
pub(in crate::daemon) struct Issuers {
    pub(in crate::daemon) backend: MachineBackend,
    pub(in crate::daemon) http: Rc<Http>,
    pub(in crate::daemon) keystone: Keystone,
}

impl certificates::CertificateBackend for Issuers {
    fn magnum<'a>(&'a self, access: &'a MagnumAccess) -> impl certificates::CertificateSigner + 'a {
        Magnum::new(&self.http, &self.keystone, access)
    }

    async fn run(&self, key: &str, argv: Vec<String>) -> Result<ProgramOutput> {
        volumes::VolumeBackend::run(&self.backend, key, argv).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_not_cut_off_while_etcd_is_stopped_for_it() {
        assert_eq!(["program-move-etcd", "program-mkfs-etcd"].map(time_limit_ms), [None, Some(15 * 60 * 1000)]);
    }

    #[test]
    fn only_the_last_run_of_a_unit_is_quoted() {
        let lines = ["Started kubelet.", "serves", "told to die", "Started kubelet.", "unknown flag: --no-such-flag"];
        assert_eq!(of_last_run(&lines, false), ["unknown flag: --no-such-flag"]);
        let again = [&lines[..], &["Started kubelet.", "serves"]].concat();
        assert_eq!(of_last_run(&again, true), ["unknown flag: --no-such-flag"], "it was restarted and has not died yet");
        assert_eq!(of_last_run(&["dies", "Starting etcd..."], false), ["dies"], "it has said nothing since");
        assert_eq!(of_last_run(&["serves"], true), ["serves"]);
        assert!(of_last_run(&[], false).is_empty());
    }
}
