//! The phases of os-refresh-config: the image's own programs, which configure the machine by the metadata (heat-protocol.md 6.1). `[legacy] phases`
//! has them run as os-collect-config ran its command: where the metadata changed, and again while they fail.
//!
//! In: the metadata in force, the end of the job. Out: the job, what `status` shows of it, whether deployments wait. Never: a second run for
//! metadata for which they succeeded, or one beside a script or hook.

use std::rc::Rc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::documents::with_metadata;
use super::task::BackgroundTask;
use crate::backoff::{Backoff, Damper};
use crate::clock::{Stopwatch, millis};
use crate::collect::Snapshot;
use crate::daemon::host::Host;
use crate::daemon::masking::KnownSecrets;
use crate::deploy::{DeploymentOutcome, PHASES, last_lines, last_output_suffix};
use crate::error::{Error, Result};
use crate::files::Attributes;
use crate::programs::{Job, JobResult, Programs};
use crate::report::condition_state::ConditionState;
use crate::report::follow_up::FollowUp;
use crate::report::status::{Condition, ConditionId, ended_with};
use crate::report::{Code, Event, Phase};

/// The key of their job.
const KEY: &str = "phases";
/// What is known of them, in the state.
const FILE: &str = "phases.json";
/// How long they may run where `[deploy] time_limit` does not say it: the deployments that wait for them still have a result before the hour
/// is over that Heat gives a stack, unless somebody says otherwise (heat.conf, `stack_action_timeout`).
const LIMIT: Duration = Duration::from_mins(50);
/// How long deployments wait while the phases fail: what they lack at a first boot may come, and what a script does without them is done. Heat is
/// to hear of them all the same.
const HOLD: Duration = Duration::from_mins(5);

/// What is on disk of them. The metadata that they run for is in their job.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Record {
    /// The metadata for which they succeeded last.
    succeeded: Option<String>,
}

/// They failed, and have not succeeded since.
#[derive(Debug)]
struct Failure {
    /// Since the first failure.
    since: Stopwatch,
    first: String,
    attempts: u32,
    next_try: String,
    cause: String,
}

/// The phases, one run at a time.
pub(in crate::daemon) struct Phases {
    host: Rc<Host>,
    programs: Rc<Programs>,
    /// By the metadata.
    task: BackgroundTask<String, Result<Option<JobResult>>>,
    record: Record,
    /// A job of theirs is on disk whose end is not recorded.
    is_left: bool,
    /// The metadata that they were tried for last.
    tried: Option<String>,
    failure: Option<Failure>,
    damper: Damper,
}

impl Phases {
    pub(super) fn open(host: Rc<Host>, programs: Rc<Programs>) -> Result<Self> {
        let record = host.state.read_state(FILE.as_ref(), &host.report, Code::StateFileQuarantined)?.unwrap_or_default();
        let is_left = programs.has_begun(KEY)?;
        // As os-collect-config: the next polls, which become fewer.
        let (first, longest) = (host.settings.min_polling_interval, host.settings.polling_interval);
        let damper = Damper::new(Backoff::new(first.max(Duration::from_secs(1)), longest.max(Duration::from_secs(1))));
        Ok(Self { host, programs, task: BackgroundTask::default(), record, is_left, tried: None, failure: None, damper })
    }

    pub(in crate::daemon) fn is_busy(&self) -> bool {
        self.task.is_busy()
    }

    pub(super) fn is_failing(&self) -> bool {
        self.failure.is_some()
    }

    /// Starts them where that is due. `is_free`: whether no script or hook may run. Whether deployments wait for them.
    pub(super) fn begin(&mut self, snapshot: &Snapshot, is_free: impl FnOnce() -> bool) -> bool {
        if self.task.is_busy() {
            return true;
        }
        if self.is_left {
            self.take_up();
            return true;
        }
        if !self.host.settings.legacy.phases || !is_free() {
            return false;
        }
        // What a source says that has not been asked since the start would only have them run twice.
        if !snapshot.is_asked() {
            return true;
        }
        if self.record.succeeded.as_ref() == Some(&snapshot.digest) {
            (self.failure, self.tried) = (None, None);
            return false;
        }
        let is_other = self.tried.as_ref() != Some(&snapshot.digest);
        if is_other {
            self.damper.release();
        }
        if self.damper.holds() {
            return self.hold_left().is_some();
        }
        self.tried = Some(snapshot.digest.clone());
        if let Err(error) = self.start(snapshot, is_other) {
            self.fail(&error, is_other);
        }
        self.task.is_busy() || self.hold_left().is_some()
    }

    fn start(&mut self, snapshot: &Snapshot, is_other: bool) -> Result<()> {
        self.programs.forget(KEY)?;
        self.programs.prepare(KEY, &self.job(snapshot))?;
        if is_other {
            self.emit(Event::new(Code::PhasesStarted, "the phases of os-refresh-config start: the metadata changed"));
        }
        self.follow(snapshot.digest.clone());
        Ok(())
    }

    fn job(&self, snapshot: &Snapshot) -> Job {
        let mut known = KnownSecrets::default();
        known.learn(&Value::Object(snapshot.metadata.clone()));
        snapshot.deployments.iter().flat_map(|list| list.values()).for_each(|entry| known.learn(&entry));
        let secrets = known.all();
        let limit = self.host.settings.deploy.time_limit.unwrap_or(LIMIT);
        let deployed = self.host.settings.deploy.deployed_dir.display().to_string();
        let job = Job {
            // Of the process that runs the job: there also where the file was replaced since (R42).
            argv: vec!["/proc/self/exe".to_owned()],
            called: Some("os-refresh-config".to_owned()),
            environment: [(PHASES.to_owned(), snapshot.digest.clone()), ("HEAT_CONFIG_DEPLOYED".to_owned(), deployed)].into(),
            time_limit_ms: Some(millis(limit)),
            hide_output: secrets.is_none(),
            secrets: secrets.unwrap_or_default(),
            ..Job::default()
        };
        with_metadata(job, snapshot)
    }

    /// Watches what an earlier run of the agent began, or takes its end in: it counts for the metadata that it was begun for.
    fn take_up(&mut self) {
        // Where nobody can tell for which, they are run once more.
        let job = self.programs.prepared(KEY).ok().flatten();
        let digest = job.and_then(|mut job| job.environment.remove(PHASES)).unwrap_or_default();
        // One whose end could not be recorded is not news.
        if self.tried.replace(digest.clone()).is_none() {
            self.emit(Event::new(
                Code::PhasesStarted,
                "the phases of os-refresh-config, which outlived the agent, are monitored again",
            ));
        }
        self.follow(digest);
    }

    fn follow(&mut self, digest: String) {
        let programs = Rc::clone(&self.programs);
        self.task.start(digest, async move { programs.run(KEY).await });
    }

    /// Their end. Safe to drop.
    pub(super) async fn ended(&mut self) -> (String, Result<Option<JobResult>>) {
        self.task.ended().await
    }

    /// Takes that in.
    ///
    /// # Errors
    /// If they cannot be watched, or it cannot be recorded: they are then found ended once more.
    pub(super) fn record(&mut self, digest: &str, ran: Result<Option<JobResult>>) -> Result<()> {
        self.is_left = true;
        let error = match ran {
            Err(error) if self.programs.has_begun(KEY)? => return Err(error),
            Err(error) => error,
            Ok(None) => Error::permanent("interrupted: their unit ended without a result"),
            Ok(Some(ran)) => {
                let duration = Duration::from_millis(ran.duration_ms);
                let outcome = DeploymentOutcome::of_script(ran);
                if !outcome.is_failure() {
                    return self.succeed(digest, duration);
                }
                Error::permanent(cause(&outcome))
            }
        };
        self.programs.forget(KEY)?;
        self.is_left = false;
        self.fail(&error, false);
        Ok(())
    }

    fn succeed(&mut self, digest: &str, duration: Duration) -> Result<()> {
        self.record.succeeded = Some(digest.to_owned());
        self.host.state.write_json(FILE.as_ref(), &self.record, Attributes::mode(0o600))?;
        // It holds the metadata.
        self.programs.forget(KEY)?;
        (self.is_left, self.failure) = (false, None);
        self.damper.release();
        self.emit(Event::new(Code::PhasesSucceeded, "the phases of os-refresh-config succeeded").duration(duration));
        Ok(())
    }

    /// They failed, which is said once a cause and for each change of the metadata.
    fn fail(&mut self, error: &Error, is_other: bool) {
        let clock = &self.host.clock;
        let pause = self.damper.hold_by(|pause| pause, clock);
        let (before, cause) = (self.failure.take(), error.cause_first());
        let is_said = !is_other && before.as_ref().is_some_and(|before| before.cause == cause);
        let first = || Failure {
            since: clock.start(),
            first: clock.now().rfc3339(),
            attempts: 0,
            next_try: String::new(),
            cause: String::new(),
        };
        let failure = before.unwrap_or_else(first);
        let next_try = clock.now().after(pause).rfc3339();
        self.failure = Some(Failure { attempts: failure.attempts.saturating_add(1), next_try, cause, ..failure });
        if !is_said {
            let event = Event::new(Code::PhasesFailed, "the phases of os-refresh-config failed").error(error);
            self.emit(event.remedy(Code::PhasesFailed.remedy()).next_try(pause));
        }
    }

    fn emit(&self, event: Event) {
        self.host.report.emit(event.phase(Phase::Deploy).step("phases").foreign_unit(Programs::unit(KEY)));
    }

    /// How long deployments wait still for phases that fail.
    fn hold_left(&self) -> Option<Duration> {
        let left = HOLD.saturating_sub(self.failure.as_ref()?.since.elapsed());
        (!left.is_zero()).then_some(left)
    }

    /// How long until there is something to do.
    pub(super) fn until_due(&self) -> Option<Duration> {
        let retry = Some(self.damper.left()).filter(|left| !left.is_zero());
        [retry, self.hold_left()].into_iter().flatten().min().filter(|_| self.is_failing() && !self.is_busy())
    }

    /// As `status` shows them.
    pub(in crate::daemon) fn condition(&self) -> Option<Condition> {
        let condition = |state| Condition { name: ConditionId::Phases, state, ..Condition::default() };
        if let Some(failure) = &self.failure {
            return Some(Condition {
                since: Some(failure.first.clone()),
                attempt: failure.attempts,
                next_try: Some(failure.next_try.clone()),
                // What the program said last is below it.
                fact: failure.cause.split(&last_output_suffix("")).next().map(str::to_owned),
                cause: Some(failure.cause.clone()),
                remedy: Some(FollowUp::TriesAgain.of(&Code::PhasesFailed.remedy()).to_string()),
                ..condition(ConditionState::Failed)
            });
        }
        let state = if self.is_busy() { ConditionState::Waiting } else { ConditionState::Ok };
        (self.is_busy() || self.host.settings.legacy.phases).then(|| condition(state))
    }
}

/// Why they failed: the phase, the program and its last words, as os-refresh-config and dib-run-parts told them.
fn cause(outcome: &DeploymentOutcome) -> String {
    if let Some(reason) = &outcome.reason {
        return reason.why();
    }
    let ended =
        || ended_with(outcome.status) + &outcome.failure_details().map_or(String::new(), |words| last_output_suffix(&words));
    let Some((before, error)) = outcome.stderr.split_once("[ERROR] ") else { return ended() };
    let what = error.lines().next().unwrap_or_default();
    let what = what.split(": the phases after it").next().unwrap_or_default();
    // The line of the error has begun.
    let before = before.rsplit_once('\n').map_or("", |(lines, _)| lines);
    let (of, words) = match before.rsplit_once(" Running ").map(|(_, after)| after.split_once('\n').unwrap_or((after, ""))) {
        Some((program, words)) => (format!(", in {program}"), words),
        None => (String::new(), before),
    };
    format!("{what}{of}{}", last_lines(words).map_or(String::new(), |words| last_output_suffix(&words)))
}

#[cfg(test)]
#[path = "phases_tests.rs"]
mod tests;
