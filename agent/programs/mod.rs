//! The one place that starts programs: deployments' scripts and hooks, mkfs, version questions.
//!
//! In: a [`Job`]. Out: what became of it, a [`JobResult`]. A job runs as the transient unit
//! `heat-KEY.service`, whose only command is `heat-node-agent hook-run DIR`; that process ([`runner`])
//! reads the job from a file of mode 0600, runs the program and writes its result whole and synced as
//! its last act. So a job survives a restart and an upgrade of the agent, is outside its sandbox, and
//! nothing of it is in a unit property. Where no systemd runs, the same command is a child in its own
//! process group.
//!
//! Never: a deployment's job run twice. The marker `started` is made by exactly one runner (O_EXCL). The agent's own jobs (version
//! questions, `etcdctl`) may be repeated, by [`Programs::run_anew`], which forgets the earlier one first.

mod capture;
pub mod child;
mod hook_answer;
pub mod json_size;
pub mod lines;
mod long_answer;
mod mask;
pub mod runner;
pub mod tool;

pub use hook_answer::{HookAnswer, HookOutput, lenient_object};
pub(crate) use mask::Mask;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;

use crate::backoff::Backoff;
use crate::clock::Clock;
use crate::error::remedy::Remedy;
use crate::error::{Context, Error, ErrorKind, Result};
use crate::files::{Attributes, Tree};
use crate::report::reason::FailureReason;
use crate::systemd::{Systemd, TransientService};

const JOB: &str = "job.json";
/// So much of an output is read for its last lines.
const END_BYTES: u64 = 4096;
const STARTED: &str = "started";
/// Written as the last act of a job: while it is not there, the job may go on.
pub const RESULT: &str = "result.json";
const LOCK: &str = "lock";
/// The process group of a started program: by it one is ended where no systemd runs.
const GROUP: &str = "group";
/// Taken before the start, so that at least a shortened result can be written when the disk is full by then …
const RESULT_RESERVE: &str = "result.room";
const RESULT_RESERVE_BYTES: usize = 64 * 1024;
/// … and the process group, before anything else is done with the program.
const GROUP_RESERVE: &str = "group.room";
const GROUP_RESERVE_BYTES: usize = 16;
/// Why a runner that found no space for the job's files did not begin it. It takes the space of the result, which there is none of.
const POSTPONED: &str = "postponed.json";
/// How long a job has after SIGTERM, if it is ended or at its time limit.
const GRACE: Duration = Duration::from_secs(10);
/// The live output, kept beside the job.
pub const OUTPUT: &str = "output.log";

/// Where the files of jobs are, below the state directory.
pub const JOBS: &str = "work";

/// Where the files of one job are, below the state directory.
#[must_use]
pub fn job_dir(key: &str) -> PathBuf {
    Path::new(JOBS).join(key)
}

fn is_locked(state: &Tree, key: &str) -> Result<bool> {
    let lock = job_dir(key).join(LOCK);
    Ok(state.facts(&lock)?.is_some() && state.lock(&lock)?.is_none())
}

/// How the keys of jobs begin that only look.
const LOOKS: [&str; 3] = ["program-journalctl-", "program-process-", "program-port-holders"];

/// A program to run and what to bring back from it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// Absolute path of the program and its arguments.
    pub argv: Vec<String>,
    /// By what name the program is called, where that is not its path: this program is several by their names.
    #[serde(default)]
    pub called: Option<String>,
    /// Added to the environment of the runner.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
    /// Working directory; made with mode 0700 if it is not there.
    #[serde(default)]
    pub directory: Option<String>,
    /// Files to write before the start, with directories (0700) above them.
    #[serde(default)]
    pub files: Vec<JobFile>,
    /// What the program reads on standard input.
    #[serde(default)]
    pub stdin: String,
    /// Files that the program may leave: name and path. They are removed before the start.
    #[serde(default)]
    pub outputs: BTreeMap<String, String>,
    /// Directories to make (0700) for the outputs.
    #[serde(default)]
    pub directories: Vec<String>,
    /// After this time the whole process group is ended. `None`: no limit.
    #[serde(default)]
    pub time_limit_ms: Option<u64>,
    /// Values that are masked wherever the output goes.
    #[serde(default)]
    pub secrets: Vec<String>,
    /// Further values, masked in what it prints alone: a declared output may have to hand them on to another resource.
    #[serde(default)]
    pub printed_secrets: Vec<String>,
    /// There are more of those than can be masked: nothing that it prints is shown.
    #[serde(default)]
    pub hide_printed: bool,
    /// There are more of them than can be masked: nothing that the program says is shown.
    #[serde(default)]
    #[serde(rename = "withheld")]
    pub hide_output: bool,
    /// It is a hook: its standard output is read as [`HookAnswer`].
    #[serde(default)]
    #[serde(rename = "says_json")]
    pub stdout_is_json: bool,
    /// Absolute path of an empty file outside of the state, made right before the start. Where it is there already, the job has begun in
    /// a run that this state does not know of, being older, and does not begin again.
    #[serde(default)]
    pub begun_mark: Option<String>,
}

/// A file that a job needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobFile {
    /// Absolute path.
    pub path: String,
    /// Content.
    pub content: String,
    /// Permission bits.
    pub mode: u32,
}

/// What became of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobResult {
    /// Exit status; minus the signal's number where a signal ended it (as heat-agents reports it).
    pub status: i32,
    /// Head and tail of standard output; empty where that is in `answer`.
    pub stdout: String,
    /// Head and tail of standard error.
    pub stderr: String,
    /// What a hook's standard output was read as.
    #[serde(default, skip_serializing_if = "HookOutput::is_unread")]
    pub answer: HookOutput,
    /// The output files that are there, by name.
    #[serde(default)]
    pub outputs: BTreeMap<String, String>,
    /// Whether it exceeded its time limit.
    #[serde(default)]
    pub timed_out: bool,
    /// Why it could not be started at all.
    #[serde(default)]
    pub not_started: Option<Box<FailureReason>>,
    /// Why nobody knows how it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unknown: Option<String>,
    /// How long it ran.
    #[serde(default)]
    pub duration_ms: u64,
}

impl JobResult {
    /// The result that a runner wrote into a job's directory. It writes one, whole, and ends: one that is not understood never will be, and
    /// means that nobody knows how the job ended.
    ///
    /// # Errors
    /// If the disk cannot be read, which may pass.
    pub fn read(state: &Tree, directory: &Path) -> Result<Option<Self>> {
        match state.read_json(&directory.join(RESULT)) {
            Err(error) if error.kind() == ErrorKind::Permanent => {
                Ok(Some(Self::unknown(format!("its result cannot be read: {error}"))))
            }
            other => other,
        }
    }

    /// The result of a program whose end nobody knows, which is a failure.
    #[must_use]
    pub fn unknown(why: String) -> Self {
        Self { status: 1, stderr: why.clone(), unknown: Some(why), ..Self::default() }
    }
}

/// What a runner says that had no space to begin.
#[derive(Debug, Serialize, Deserialize)]
struct Postponed {
    cause: String,
    remedy: Option<Remedy>,
}

/// What is found of a job after a restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobState {
    /// It ended; here is its result.
    Ended(JobResult),
    /// It runs.
    Running,
    /// Its program was never started.
    NotStarted,
    /// It was started and is gone without a result.
    Lost,
}

/// Starts jobs and takes up those of an earlier agent.
#[derive(Debug)]
pub struct Programs {
    state: Arc<Tree>,
    systemd: Option<Systemd>,
    executable: PathBuf,
    clock: Clock,
    /// Of each key that is run anew: who holds it has the job's directory for itself.
    turns: RefCell<Vec<(String, Arc<Mutex<()>>)>>,
}

impl Programs {
    /// Jobs are kept below `work/` of the state directory.
    ///
    /// # Errors
    /// If that directory cannot be made or the agent's own executable is not known.
    pub fn new(state: Arc<Tree>, systemd: Option<Systemd>, clock: Clock) -> Result<Self> {
        state.create_dir(Path::new(JOBS), Attributes::mode(0o700))?;
        let executable = std::env::current_exe().context(|| "finding the agent's own executable")?;
        Ok(Self { state, systemd, executable, clock, turns: RefCell::default() })
    }

    /// Removes the jobs of deployments whose record is gone, which `is_without_record` says: of an agent that was killed while it removed both. What is
    /// there of one that still runs stays.
    ///
    /// # Errors
    /// If they cannot be listed or removed.
    pub fn forget_without_record(&self, is_without_record: impl Fn(&str) -> bool) -> Result<usize> {
        let mut gone = 0;
        for name in self.state.list(Path::new(JOBS))? {
            let Some(key) = name.to_str().filter(|key| is_without_record(key)) else { continue };
            if !self.is_locked(key)? {
                self.forget(key)?;
                gone += 1;
            }
        }
        Ok(gone)
    }

    /// Removes what looks left that ended after the agent that asked for them: nobody reads their results, which hold what units printed.
    /// One that still runs stays, and is waited for by who asks the same.
    ///
    /// # Errors
    /// If they cannot be listed or removed.
    pub fn forget_ended_looks(&self) -> Result<()> {
        let names = self.state.list(Path::new(JOBS))?;
        let is_look = |name: &str| LOOKS.iter().any(|look| name.starts_with(look));
        for name in names.iter().filter_map(|name| name.to_str()).filter(|name| is_look(name)) {
            if self.result(&job_dir(name))?.is_some() {
                self.forget(name)?;
            }
        }
        Ok(())
    }

    /// The agent's own program.
    #[must_use]
    pub fn executable(&self) -> &Path {
        &self.executable
    }

    /// The unit that runs the job.
    #[must_use]
    pub fn unit(key: &str) -> String {
        format!("heat-{key}.service")
    }

    /// Where the job's files are.
    #[must_use]
    pub fn directory(&self, key: &str) -> PathBuf {
        self.state.base().join(job_dir(key))
    }

    /// Records the job, synced, without starting it. A recorded job stays as it is.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn prepare(&self, key: &str, job: &Job) -> Result<()> {
        let directory = job_dir(key);
        self.state.create_dir(&directory, Attributes::mode(0o700))?;
        let path = directory.join(JOB);
        if !self.has_begun(key)? {
            // Here, where a full disk means no more than that the job cannot begin yet.
            reserve_all(&self.state, &directory)?;
        }
        if self.state.facts(&path)?.is_none() {
            self.state.write_json(&path, job, Attributes::mode(0o600))?;
        }
        Ok(())
    }

    /// What is there of the job.
    ///
    /// # Errors
    /// If its directory or systemd cannot be asked.
    pub async fn inspect(&self, key: &str) -> Result<JobState> {
        let directory = job_dir(key);
        if let Some(ran) = self.result(&directory)? {
            return Ok(JobState::Ended(ran));
        }
        if let Some(systemd) = &self.systemd {
            let unit = systemd.unit(&Self::unit(key)).await?;
            if unit.is_active() || unit.is_settling() {
                return Ok(JobState::Running);
            }
        }
        if self.is_locked(key)? {
            return Ok(JobState::Running);
        }
        // It may have ended between the two looks.
        if let Some(ran) = self.result(&directory)? {
            return Ok(JobState::Ended(ran));
        }
        let started = self.state.facts(&directory.join(STARTED))?.is_some();
        Ok(if started { JobState::Lost } else { JobState::NotStarted })
    }

    /// Starts a prepared job unless it runs or ran, and waits for its end. `None`: it was started, now or
    /// earlier, and is gone without a result.
    ///
    /// # Errors
    /// If it cannot be started or watched; nothing has run then that would not be found by the next call.
    pub async fn run(&self, key: &str) -> Result<Option<JobResult>> {
        let watched = match self.inspect(key).await? {
            JobState::Ended(ran) => return Ok(Some(ran)),
            JobState::Lost => return Ok(None),
            JobState::NotStarted => self.start(key).await?,
            JobState::Running => Watched::Adopted,
        };
        match self.found_after(key, watched).await? {
            JobState::Ended(ran) => Ok(Some(ran)),
            JobState::Lost => Ok(None),
            JobState::NotStarted => Err(self.start_failure(key)),
            JobState::Running => Err(Error::transient("it is still running").context(format!("running {key}"))),
        }
    }

    /// Runs a job whatever an earlier one of the same key came to, and forgets it: its directory holds the secrets that are masked. One that
    /// still runs, of an agent before or of a caller that was dropped, is waited for in its place, if it was asked the same. Two that ask by the same key at once take
    /// turns, or the second would remove the directory of the first, which then ends without a result. `None` as from [`Programs::run`].
    ///
    /// # Errors
    /// As [`Programs::run`], or if it cannot be forgotten.
    pub async fn run_anew(&self, key: &str, job: &Job) -> Result<Option<JobResult>> {
        let turn = self.turn(key);
        let _turn = turn.lock().await;
        let mut found = self.inspect(key).await?;
        if found == JobState::Running && !self.is_prepared(key, job)? {
            // It may be about another process, or another port.
            self.follow(key).await?;
            found = self.inspect(key).await?;
        }
        if found != JobState::Running {
            self.forget(key)?;
            self.prepare(key, job)?;
        }
        let ran = self.run(key).await?;
        self.forget(key)?;
        Ok(ran)
    }

    /// Waits for the end of a job that still runs, of an agent before: whoever clears what it writes must not take that from it.
    ///
    /// # Errors
    /// If it cannot be looked at.
    pub async fn wait_for_former(&self, key: &str) -> Result<()> {
        let turn = self.turn(key);
        let _turn = turn.lock().await;
        if self.inspect(key).await? == JobState::Running {
            self.follow(key).await?;
        }
        Ok(())
    }

    /// Whether this job is what was prepared by this key.
    fn is_prepared(&self, key: &str, job: &Job) -> Result<bool> {
        Ok(self.prepared(key)?.as_ref() == Some(job))
    }

    /// The job that was prepared by this key, and not forgotten since.
    ///
    /// # Errors
    /// If its description cannot be read.
    pub fn prepared(&self, key: &str) -> Result<Option<Job>> {
        self.state.read_json(&job_dir(key).join(JOB))
    }

    fn turn(&self, key: &str) -> Arc<Mutex<()>> {
        let mut turns = self.turns.borrow_mut();
        if let Some((_, turn)) = turns.iter().find(|(of, _)| of == key) {
            return Arc::clone(turn);
        }
        let turn = Arc::default();
        turns.push((key.to_owned(), Arc::clone(&turn)));
        turn
    }

    /// Whether the last try to start a job found no space for its files. It has not begun, and is begun by another try.
    #[must_use]
    pub fn is_postponed(&self, key: &str) -> bool {
        self.postponed(key).is_some() && !self.has_begun(key).unwrap_or(true)
    }

    fn postponed(&self, key: &str) -> Option<Postponed> {
        self.state.read_json(&job_dir(key).join(POSTPONED)).ok().flatten()
    }

    /// Why a runner ended before it started the program: what it lacked space for passes, anything else is no accident for long.
    fn start_failure(&self, key: &str) -> Error {
        let error = match self.postponed(key) {
            Some(Postponed { cause, remedy: Some(remedy) }) => Error::transient(cause).remedy(remedy),
            Some(Postponed { cause, remedy: None }) => Error::transient(cause),
            None => Error::permanent(format!("{} ended before it started the program", Self::unit(key)))
                .remedy(format!("check `journalctl -u {}`", Self::unit(key))),
        };
        error.context(format!("running {key}"))
    }

    /// Waits for the end of a job that an earlier agent began, and never starts it. `None`: there is no result, and none comes.
    ///
    /// # Errors
    /// If it cannot be watched.
    pub async fn follow(&self, key: &str) -> Result<Option<JobResult>> {
        let mut found = self.inspect(key).await?;
        if found == JobState::Running {
            found = self.found_after(key, Watched::Adopted).await?;
        }
        match found {
            JobState::Ended(ran) => Ok(Some(ran)),
            JobState::Lost | JobState::NotStarted => Ok(None),
            JobState::Running => Err(Error::transient("it is still running").context(format!("watching {key}"))),
        }
    }

    /// How long a job that is prepared may run; nothing where that is not limited.
    ///
    /// # Errors
    /// If its description cannot be read.
    pub fn time_limit(state: &Tree, key: &str) -> Result<Option<Duration>> {
        let job: Option<Job> = state.read_json(&job_dir(key).join(JOB))?;
        Ok(job.and_then(|job| job.time_limit_ms).map(Duration::from_millis))
    }

    /// The end of what a job has printed so far, masked as it was written.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn end_of_output(state: &Tree, key: &str) -> Result<Option<String>> {
        let Some(mut file) = state.open_file(&job_dir(key).join(OUTPUT))? else { return Ok(None) };
        let size = file.metadata()?.len();
        file.seek(SeekFrom::Start(size.saturating_sub(END_BYTES)))?;
        let mut end = Vec::new();
        file.take(END_BYTES).read_to_end(&mut end)?;
        Ok(Some(String::from_utf8_lossy(&end).into_owned()))
    }

    /// Ends a job with everything that it started; one that has not begun never will. Gives back the result only of a job
    /// that had ended by itself before.
    ///
    /// # Errors
    /// If it cannot be ended, or not be seen to end. It can be asked again.
    pub async fn end(&self, key: &str) -> Result<Option<JobResult>> {
        if let JobState::Ended(ran) = self.inspect(key).await? {
            return Ok(Some(ran));
        }
        let directory = job_dir(key);
        // A runner that comes now finds that another one was there before it. Where there is no space for this mark, there is none
        // for that runner's either; the job is ended all the same, and whoever hears of the error asks for it again.
        let marked = self
            .state
            .create_dir(&directory, Attributes::mode(0o700))
            .and_then(|()| self.state.create_new(&directory.join(STARTED), b"", Attributes::mode(0o600)));
        match &self.systemd {
            Some(systemd) => systemd.end(&Self::unit(key), GRACE).await?,
            None => self.end_group(key).await?,
        }
        marked.map(|_| None)
    }

    /// The same where no systemd runs: the program's process group is ended, and its runner sees that.
    async fn end_group(&self, key: &str) -> Result<()> {
        let path = job_dir(key).join(GROUP);
        for signal in [Signal::SIGTERM, Signal::SIGKILL] {
            // While its runner is there the number is nobody else's.
            if !self.is_locked(key)? {
                return Ok(());
            }
            if let Some(group) = self.state.read_json(&path)?.map(Pid::from_raw).filter(|group| group.as_raw() > 1) {
                // It may have ended just now.
                let _ = killpg(group, signal);
            }
            if self.clock.limit(GRACE, self.wait_for_lock(key)).await.is_some() {
                return Ok(());
            }
        }
        Err(Error::transient("it does not exit").context(format!("ending {key}")))
    }

    async fn found_after(&self, key: &str, watched: Watched) -> Result<JobState> {
        match (&self.systemd, watched) {
            (Some(systemd), _) => {
                systemd.wait_until_stopped(&Self::unit(key)).await?;
            }
            (None, Watched::Child(ended)) => {
                // The sender is dropped only when the child has ended.
                let _ = ended.await;
            }
            (None, Watched::Unit | Watched::Adopted) => self.wait_for_lock(key).await,
        }
        self.inspect(key).await
    }

    /// Whether a runner is at the job now. Asks nobody but the disk.
    ///
    /// # Errors
    /// If its directory cannot be looked at.
    pub fn is_locked(&self, key: &str) -> Result<bool> {
        is_locked(&self.state, key)
    }

    /// Bytes on disk of what a job left.
    ///
    /// # Errors
    /// If its directory cannot be looked at.
    pub fn bytes(&self, key: &str) -> Result<u64> {
        let directory = job_dir(key);
        let mut sum = 0;
        for name in [JOB, OUTPUT, RESULT, RESULT_RESERVE] {
            sum += self.state.facts(&directory.join(name))?.map_or(0, |facts| facts.size);
        }
        Ok(sum)
    }

    /// Removes what a job left but the mark that it ran.
    ///
    /// # Errors
    /// If something cannot be removed.
    pub fn discard_output(&self, key: &str) -> Result<()> {
        let directory = job_dir(key);
        [OUTPUT, RESULT, JOB, RESULT_RESERVE, GROUP_RESERVE, POSTPONED]
            .into_iter()
            .try_for_each(|name| self.state.remove(&directory.join(name)).map(drop))
    }

    /// Removes what a job left but its result: the output, and what it was started by once there is a result.
    ///
    /// # Errors
    /// If something cannot be removed.
    pub fn discard_output_keep_result(&self, key: &str) -> Result<()> {
        let directory = job_dir(key);
        if self.state.facts(&directory.join(RESULT))?.is_some() {
            self.state.remove(&directory.join(JOB))?;
        }
        self.state.remove(&directory.join(OUTPUT)).map(drop)
    }

    /// Whether a runner is or was at the job: it is not begun any more, only taken up. Asks nobody but the disk.
    ///
    /// # Errors
    /// If its directory cannot be looked at.
    pub fn has_begun(&self, key: &str) -> Result<bool> {
        Self::has_begun_in(&self.state, key)
    }

    /// The same for the jobs of this state directory.
    ///
    /// # Errors
    /// If its directory cannot be looked at.
    pub fn has_begun_in(state: &Tree, key: &str) -> Result<bool> {
        let directory = job_dir(key);
        let is_present = |name| state.facts(&directory.join(name)).map(|facts| facts.is_some());
        Ok(is_present(STARTED)? || is_present(RESULT)? || is_locked(state, key)?)
    }

    /// Removes everything of a job.
    ///
    /// # Errors
    /// If something cannot be removed.
    pub fn forget(&self, key: &str) -> Result<()> {
        self.state.remove_dir_all(&job_dir(key)).map(drop)
    }

    fn result(&self, directory: &Path) -> Result<Option<JobResult>> {
        JobResult::read(&self.state, directory)
    }

    async fn start(&self, key: &str) -> Result<Watched> {
        let directory = self.directory(key);
        let argv = [self.executable.as_os_str(), "hook-run".as_ref(), directory.as_os_str()];
        if let Some(systemd) = &self.systemd {
            let exec = argv.iter().map(|arg| arg.to_string_lossy().into_owned()).collect();
            let service = TransientService {
                name: Self::unit(key),
                description: format!("heat-node-agent job {key}"),
                exec,
                timeout: None,
            };
            systemd.start_transient_service(&service).await?;
            return Ok(Watched::Unit);
        }
        #[expect(clippy::disallowed_methods, reason = "this is the module that starts programs")]
        let mut command = Command::new(&self.executable);
        command.args(argv.iter().skip(1)).stdin(Stdio::null()).process_group(0);
        let mut child = command.spawn().context(|| format!("starting {}", self.executable.display()))?;
        let (ended, end) = tokio::sync::oneshot::channel();
        std::thread::Builder::new()
            .name("child".to_owned())
            .stack_size(64 * 1024)
            .spawn(move || {
                // The result file tells how it ended; here only the end itself counts.
                let _ = child.wait();
                drop(ended);
            })
            .context(|| "watching a child")?;
        Ok(Watched::Child(end))
    }

    /// Without systemd, a job of an earlier agent is known by the lock that its runner holds.
    async fn wait_for_lock(&self, key: &str) {
        let lock = job_dir(key).join(LOCK);
        let mut pauses = Backoff::new(Duration::from_millis(20), Duration::from_secs(1));
        while matches!(self.state.lock(&lock), Ok(None)) {
            self.clock.wait(pauses.next_pause()).await;
        }
    }
}

/// Reserves the disk space that a job in `directory` will need at its start and at its end, unless it has it.
fn reserve_all(tree: &Tree, directory: &Path) -> Result<()> {
    for (reserve, bytes) in [(RESULT_RESERVE, RESULT_RESERVE_BYTES), (GROUP_RESERVE, GROUP_RESERVE_BYTES)] {
        let reserve = directory.join(reserve);
        if tree.facts(&reserve)?.is_none() {
            tree.reserve(&reserve, bytes)?;
        }
    }
    Ok(())
}

#[derive(Debug)]
enum Watched {
    Unit,
    Child(tokio::sync::oneshot::Receiver<()>),
    Adopted,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn without_systemd_a_job_is_ended_with_its_process_group_and_one_that_has_not_begun_never_does() {
        let dir = tempfile::tempdir().unwrap();
        let state = Arc::new(Tree::open(dir.path()).unwrap());
        let programs = Programs::new(state, None, Clock::system()).unwrap();
        let script = |text: &str| Job { argv: ["/bin/sh", "-c", text].map(str::to_owned).to_vec(), ..Job::default() };
        let ran = dir.path().join("ran");
        programs.prepare("new", &script(&format!("touch {}", ran.display()))).unwrap();
        assert_eq!(programs.end("new").await.unwrap(), None);
        runner::run(&programs.directory("new"), &Clock::system()).unwrap();
        assert!(!ran.exists());
        assert_eq!((programs.follow("new").await.unwrap(), programs.inspect("new").await.unwrap()), (None, JobState::Lost));

        programs.prepare("hung", &script("sleep 600 & echo $!; wait; sleep 600")).unwrap();
        let directory = programs.directory("hung");
        let runner = std::thread::spawn(move || runner::run(&directory, &Clock::system()));
        let group = programs.directory("hung").join(GROUP);
        let begun = Clock::system().start();
        while std::fs::read_to_string(&group).unwrap_or_default().is_empty() {
            assert!(begun.elapsed() < Duration::from_mins(1), "it has not begun");
            Clock::system().wait(Duration::from_millis(10)).await;
        }
        assert_eq!(programs.inspect("hung").await.unwrap(), JobState::Running);
        assert_eq!(programs.end("hung").await.unwrap(), None);
        runner.join().unwrap().unwrap();
        let JobState::Ended(ended) = programs.inspect("hung").await.unwrap() else { panic!("no result") };
        // It may be asked to end before it has said its first word.
        if let Ok(background) = ended.stdout.trim().parse::<u32>() {
            let stat = format!("/proc/{background}/stat");
            let runs = || std::fs::read_to_string(&stat).is_ok_and(|stat| stat.contains("sleep") && !stat.contains(") Z "));
            while runs() {
                assert!(begun.elapsed() < Duration::from_mins(2), "something of it is left");
                Clock::system().wait(Duration::from_millis(10)).await;
            }
        }
        assert_eq!(programs.end("hung").await.unwrap(), Some(ended), "what has ended is not ended again");
    }

    /// A unit that dies while the node is brought up is looked at by the run and by who watches for deaths: one of them learned nothing.
    #[tokio::test]
    async fn two_that_look_at_the_same_thing_at_once_both_see_it() {
        let dir = tempfile::tempdir().unwrap();
        let state = Arc::new(Tree::open(dir.path()).unwrap());
        let runner = dir.path().join("runner");
        let script =
            "#!/bin/sh\ncd \"$2\" && sleep 0.1 && echo '{\"status\": 0, \"stdout\": \"seen\", \"stderr\": \"\"}' >result.json\n";
        state.write(Path::new("runner"), script.as_bytes(), Attributes::mode(0o700)).unwrap();
        let programs = Programs { executable: runner, ..Programs::new(state, None, Clock::system()).unwrap() };
        let job = Job { argv: vec!["/bin/true".to_owned()], ..Job::default() };
        let look = || programs.run_anew("program-journalctl-kubelet", &job);
        let (first, second, third) = tokio::join!(look(), look(), look());
        for seen in [first, second, third, look().await] {
            assert_eq!(seen.unwrap().map(|seen| seen.stdout).as_deref(), Some("seen"));
        }
        assert!(!programs.directory("program-journalctl-kubelet").exists(), "its secrets stay nowhere");
    }

    /// Attack: what an agent before had asked about one process was taken for the answer about another.
    #[tokio::test]
    async fn a_job_that_still_runs_is_taken_up_only_by_who_asks_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let state = Arc::new(Tree::open(dir.path()).unwrap());
        let script = "#!/bin/sh\ncd \"$2\" && exec 9>lock && flock 9 && n=$(cat job.json | tr -dc 0-2) && sleep 0.5 && \
            echo \"{\\\"status\\\": 0, \\\"stdout\\\": \\\"$n\\\", \\\"stderr\\\": \\\"\\\"}\" >result.json\n";
        state.write(Path::new("runner"), script.as_bytes(), Attributes::mode(0o700)).unwrap();
        let programs = Programs { executable: dir.path().join("runner"), ..Programs::new(state, None, Clock::system()).unwrap() };
        let job = |about: &str| Job { argv: vec!["cat".to_owned(), about.to_owned()], ..Job::default() };
        // One that was dropped, as by the end of an agent.
        let left = async {
            while !programs.is_locked("look").unwrap() {
                Clock::system().wait(Duration::from_millis(5)).await;
            }
        };
        let (first, second) = (job("1"), job("2"));
        tokio::select! {
            _ = programs.run_anew("look", &first) => panic!("it takes longer"),
            () = left => {}
        }
        assert_eq!(programs.run_anew("look", &second).await.unwrap().map(|ran| ran.stdout).as_deref(), Some("2"));
    }

    /// Attack: a result that could not be read was read again and again, and nothing else ran any more.
    #[tokio::test]
    async fn a_result_that_cannot_be_read_is_a_failure_and_ends_the_job() {
        let dir = tempfile::tempdir().unwrap();
        let state = Arc::new(Tree::open(dir.path()).unwrap());
        let programs = Programs::new(Arc::clone(&state), None, Clock::system()).unwrap();
        programs.prepare("torn", &Job { argv: vec!["/bin/true".to_owned()], ..Job::default() }).unwrap();
        let path = Path::new("work/torn").join(RESULT);
        for text in ["", "{\"status\": 0", "[]"] {
            state.write(&path, text.as_bytes(), Attributes::mode(0o600)).unwrap();
            for ran in [programs.run("torn").await, programs.follow("torn").await, programs.end("torn").await] {
                let ran = ran.unwrap().unwrap();
                assert!(
                    ran.status == 1 && ran.unknown.is_some_and(|why| why.starts_with("its result cannot be read: ")),
                    "{text}"
                );
            }
        }
    }

    /// Attack: what units had printed stayed in the state directory after the agent was killed while it read that.
    #[test]
    fn looks_that_ended_for_nobody_are_removed_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let state = Arc::new(Tree::open(dir.path()).unwrap());
        let programs = Programs::new(Arc::clone(&state), None, Clock::system()).unwrap();
        let (ended, running) =
            (["program-journalctl-etcd", "program-process-stat", "program-port-holders"], "program-process-files");
        let others = ["program-mkfs-etcd", "deployment-ab"];
        for key in ended.into_iter().chain(others).chain([running]) {
            programs.prepare(key, &Job::default()).unwrap();
            if key != running {
                let result = job_dir(key).join(RESULT);
                state.write_json(&result, &JobResult::default(), Attributes::mode(0o600)).unwrap();
            }
        }
        programs.forget_ended_looks().unwrap();
        assert!(ended.iter().all(|key| !programs.directory(key).exists()));
        assert!(others.iter().chain([&running]).all(|key| programs.directory(key).exists()));
    }

    #[test]
    fn a_job_is_named_by_its_key() {
        assert_eq!(Programs::unit("deployment-ab"), "heat-deployment-ab.service");
    }
}
