//! Starts and restarts units, and waits until systemd has made up its mind about them.

use std::time::Duration;

use futures_util::stream::{BoxStream, StreamExt as _};

use super::{Failure, UnitManager};
use crate::clock::{Clock, Stopwatch};
use crate::desired::Unit;
use crate::error::{Error, ErrorKind};
use crate::files::Tree;
use crate::machine::installed::{PLACES, found, is_program};
use crate::progress::{Progress, StepId};
use crate::report::{Code, Event, Phase};
use crate::systemd::{Enabled, JobOutcome, UnitState};

/// The fallback poll for lost signals, and the pause after a bus that does not answer.
const POLL: Duration = Duration::from_secs(1);
/// How often a job is queued again after somebody else's replaced it.
const CANCELED_TRIES: u32 = 3;

/// What units are started with.
#[derive(Debug)]
pub(crate) struct Starter<'a, U> {
    pub(crate) root: &'a Tree,
    pub(crate) units: &'a U,
    pub(crate) clock: &'a Clock,
    pub(crate) progress: &'a Progress,
    pub(crate) generation: u64,
    /// Since when the whole run goes on, and how long it may.
    pub(crate) running: &'a Stopwatch,
    pub(crate) deadline: Duration,
    /// The unit's own deadline, where that comes before the run's.
    pub(crate) own: Option<Duration>,
}

// Derived, they would ask it of `U` as well.
impl<U> Clone for Starter<'_, U> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<U> Copy for Starter<'_, U> {}

/// What is done to a unit that is to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UnitAction {
    Nothing,
    Start,
    Restart,
}

impl<U: UnitManager> Starter<'_, U> {
    /// For a unit that has so long to come up, from now on.
    pub(crate) fn within(self, own: Option<Duration>) -> Self {
        let end = |own| self.running.elapsed().saturating_add(own);
        match own {
            Some(limit) if end(limit) < self.deadline => Self { deadline: end(limit), own, ..self },
            _ => self,
        }
    }

    /// Which deadline passed, for the end of a sentence.
    fn late(&self) -> String {
        match self.own {
            Some(own) => format!("after {} s, its own deadline", own.as_secs()),
            None => "at the deadline of the run".to_owned(),
        }
    }

    /// The time that is left.
    pub(crate) fn left(&self) -> Duration {
        self.deadline.saturating_sub(self.running.elapsed())
    }

    /// Looks at a unit; waits for a bus that is away.
    pub(crate) async fn inspect(&self, name: &str) -> Result<UnitState, Failure> {
        loop {
            match self.units.unit(name).await {
                Ok(state) => return Ok(state),
                Err(error) => self.patience("reading the units' states", Some(name), error).await?,
            }
        }
    }

    /// Enables a unit. One that no boot starts, because nobody who would is there, is reported: it is not enough that it is enabled.
    pub(crate) async fn enable(&self, name: &str) -> Result<Enabled, Failure> {
        loop {
            match self.units.enable(&[name]).await {
                Ok(enabled) => {
                    if !enabled.absent.is_empty() {
                        let absent = enabled.absent.join(", ");
                        let cause = format!("its [Install] section names {absent}, which does not exist on this machine");
                        self.emit(
                            name,
                            Event::new(Code::UnitNotStartedAtBoot, format!("{name} will not start at boot: {cause}"))
                                .cause(cause),
                        );
                    }
                    return Ok(enabled);
                }
                Err(error) if error.kind() == ErrorKind::Transient => self.patience("enabling units", Some(name), error).await?,
                Err(error) => {
                    if self.inspect(name).await?.is_missing() {
                        return Err(missing(name));
                    }
                    return Err(Failure::from_error(Code::UnitFailed, StepId::Unit(name.to_owned()), &error).unit(name));
                }
            }
        }
    }

    /// Stops a unit that runs, within the time that is left.
    pub(crate) async fn stop(&self, name: &str) -> Result<(), Failure> {
        let state = self.inspect(name).await?;
        if state.is_missing() || !state.may_run_soon() {
            return Ok(());
        }
        let failed = |cause: String| {
            let cause = format!("it cannot be stopped: {cause}");
            Failure::new(Code::UnitFailed, StepId::Unit(name.to_owned()), cause).unstartable(name)
        };
        match self.clock.limit(self.left(), self.units.stop(name)).await {
            Some(Ok(outcome)) if outcome.is_done() => {
                self.emit(name, Event::new(Code::UnitStopped, format!("stopped {name}")));
                Ok(())
            }
            Some(Ok(outcome)) => Err(failed(format!("its job ended with result `{}`", outcome.result))),
            Some(Err(error)) => Err(failed(error.to_string())),
            None => Err(failed("it did not stop in time".to_owned())),
        }
    }

    /// Disables units; those that are not there are disabled already.
    pub(crate) async fn disable(&self, names: &[String]) -> Result<(), Failure> {
        let mut present = Vec::new();
        for name in names {
            if !self.inspect(name).await?.is_missing() {
                present.push(name.clone());
            }
        }
        if present.is_empty() {
            return Ok(());
        }
        while let Err(error) = self.units.disable(&present).await {
            self.patience("disabling units", None, error).await?;
        }
        Ok(())
    }

    /// Has a helper unit apply its files, if they changed. That it fails is reported and is no failure: a gate looks at the effect.
    pub(crate) async fn help(&self, unit: &Unit, pending: bool) -> Result<bool, Failure> {
        if !pending {
            return Ok(false);
        }
        let name = &unit.name;
        // NetworkManager, a runtime that the node does not use: where it is not there, it has nothing to apply.
        if self.inspect(name).await?.is_missing() {
            return Ok(false);
        }
        let taken = self.clock.start();
        let cause = match self.clock.limit(self.left(), self.units.restart(name)).await {
            Some(Ok(outcome)) if outcome.is_done() => {
                // A runtime that the node does not use is restarted into its condition, and is down then.
                let runs = self.inspect(name).await?.may_run();
                let event = if runs {
                    Event::new(Code::UnitRestarted, format!("restarted {name}"))
                } else {
                    // Nobody waits for what does not run.
                    Event::new(Code::UnitRestarted, format!("{name} applied its files and is not running")).detail()
                };
                self.emit(name, event.duration(taken.elapsed()));
                return Ok(true);
            }
            Some(Ok(outcome)) => format!("its job ended with result `{}`", outcome.result),
            Some(Err(error)) => error.to_string(),
            None => "it did not end in time".to_owned(),
        };
        self.emit(name, Event::new(Code::UnitHelperFailed, format!("{name} failed: {cause}")).cause(cause));
        Ok(true)
    }

    /// Makes sure that a unit is up and has read its files; true if something was done.
    pub(crate) async fn keep_running(&self, unit: &Unit, pending: bool) -> Result<bool, Failure> {
        let name = &unit.name;
        let taken = self.clock.start();
        let mut canceled = 0;
        loop {
            let before = self.inspect(name).await?;
            startable(&before)?;
            let action = match (before.is_active(), pending) {
                (true, false) => UnitAction::Nothing,
                (true, true) => UnitAction::Restart,
                // It may be starting with the old files.
                (false, true) if before.is_settling() => UnitAction::Restart,
                (false, _) => UnitAction::Start,
            };
            if action == UnitAction::Nothing {
                return Ok(false);
            }
            self.progress.give_up_after(&StepId::Unit(name.clone()), self.left());
            let Some(outcome) = self.run_unit_job(&before, action).await? else { continue };
            let after = self.settled(name).await?;
            if after.is_active() {
                let (code, verb) =
                    if action == UnitAction::Start { (Code::UnitStarted, "started") } else { (Code::UnitRestarted, "restarted") };
                self.emit(name, Event::new(code, format!("{verb} {name}")).duration(taken.elapsed()));
                return Ok(true);
            }
            if outcome.result == "canceled" && !after.is_failed() && canceled < CANCELED_TRIES {
                canceled += 1;
                continue;
            }
            return Err(unit_not_running(self.root, &after, &outcome));
        }
    }

    /// One job; `None` if the bus was away and it is to be tried again.
    async fn run_unit_job(&self, before: &UnitState, action: UnitAction) -> Result<Option<JobOutcome>, Failure> {
        let name = &before.name;
        if before.is_failed() || action == UnitAction::Restart {
            // Or the start limit that made it fail refuses this start, too; and updates in quick succession reach it by their restarts. If
            // it cannot be reset, the start says why.
            drop(self.units.reset_failed(name).await);
        }
        let job = async {
            match action {
                UnitAction::Restart => self.units.restart(name).await,
                UnitAction::Start | UnitAction::Nothing => self.units.start(name).await,
            }
        };
        match self.clock.limit(self.left(), job).await {
            Some(Ok(outcome)) => Ok(Some(outcome)),
            Some(Err(error)) => self.patience("starting units", Some(name), error).await.map(|()| None),
            None => {
                let state = self.inspect(name).await.map_or_else(|_| "unknown".to_owned(), |state| state.describe());
                Err(failed(name, format!("{name} has not finished starting {}; it is {state}", self.late())))
            }
        }
    }

    /// Waits while systemd itself tries again, to the deadline at most.
    async fn settled(&self, name: &str) -> Result<UnitState, Failure> {
        let mut changes = None;
        loop {
            let state = self.inspect(name).await?;
            if state.is_active() || !state.is_settling() || state.cannot_be_run() {
                return Ok(state);
            }
            if self.left().is_zero() {
                return Err(failed(name, format!("{name} is still {} {}", state.describe(), self.late())));
            }
            if changes.is_none() {
                changes = self.units.changes().await.ok();
                if changes.is_some() {
                    // It may have changed before we listened.
                    continue;
                }
            }
            news_of(self.clock, &mut changes, name, POLL.min(self.left())).await;
        }
    }

    /// Waits a moment for a bus that is away, while there is time; any other error is a failure.
    pub(crate) async fn patience(&self, doing: &'static str, unit: Option<&str>, error: Error) -> Result<(), Failure> {
        let left = self.left();
        if error.kind() == ErrorKind::Transient && !left.is_zero() {
            self.clock.wait(POLL.min(left)).await;
            return Ok(());
        }
        let failure = Failure::from_error(Code::UnitFailed, doing, &error);
        Err(match unit {
            Some(unit) => failure.unit(unit),
            None => failure,
        })
    }

    fn emit(&self, name: &str, event: Event) {
        let event = event.phase(Phase::Units).generation(self.generation).unit(name);
        self.progress.emit(&StepId::Unit(name.to_owned()), event);
    }
}

/// Waits for news of a unit, or for the pause to end; true if there was news.
pub(crate) async fn news_of(
    clock: &Clock,
    changes: &mut Option<BoxStream<'static, String>>,
    unit: &str,
    pause: Duration,
) -> bool {
    let timer = clock.wait(pause);
    tokio::pin!(timer);
    let Some(stream) = changes else {
        timer.await;
        return false;
    };
    loop {
        tokio::select! {
            () = &mut timer => return false,
            news = stream.next() => match news {
                Some(name) if name == unit => return true,
                Some(_) => {}
                None => {
                    // The bus went away: the next round listens anew.
                    *changes = None;
                    timer.await;
                    return false;
                }
            },
        }
    }
}

/// The unit is not on this machine.
pub(crate) fn missing(name: &str) -> Failure {
    Failure::new(Code::UnitMissing, StepId::Unit(name.to_owned()), format!("{name} does not exist on this machine"))
        .unstartable(name)
}

/// Whether systemd could start it at all.
fn startable(state: &UnitState) -> Result<(), Failure> {
    let name = &state.name;
    match state.load_state.as_str() {
        "not-found" => Err(missing(name)),
        "masked" => Err(Failure::new(Code::UnitMasked, StepId::Unit(name.clone()), format!("{name} is masked"))
            .unstartable(name)
            .remedy(format!("somebody has masked it, so it cannot start. Unless it is meant to stay down for work on this node, `systemctl unmask {name}`"))),
        "bad-setting" | "error" => Err(Failure::new(
            Code::UnitFailed,
            StepId::Unit(name.clone()),
            format!("systemd cannot use {}: {}", state.fragment_path, state.load_state),
        )
        .unstartable(name)
        .remedy(format!("`systemd-analyze verify {name}` names the mistake; correct the unit"))),
        _ => Ok(()),
    }
}

/// Why a unit is not up after its job ended, and systemd leaves it at that.
fn unit_not_running(root: &Tree, state: &UnitState, outcome: &JobOutcome) -> Failure {
    let name = &state.name;
    if state.cannot_be_run() {
        return program_missing(root, state);
    }
    let cause = if outcome.is_done() && !state.is_failed() {
        format!(
            "one of the conditions of {name} is not met, or it ended at once: systemd started it, but it is {}",
            state.describe()
        )
    } else if outcome.result == "dependency" {
        format!("a unit that {name} requires failed to start; {name} is {}", state.describe())
    } else {
        format!("{name} is {} (its job ended with result `{}`)", state.describe(), outcome.result)
    };
    failed(name, cause)
}

/// What systemd could not run.
fn program_missing(root: &Tree, state: &UnitState) -> Failure {
    let (name, program) = (&state.name, &state.program);
    let path = found(root, program);
    let (fact, remedy) = match &path {
        _ if program.is_empty() => {
            ("its program does not exist or cannot be run".to_owned(), format!("`systemctl cat {name}` shows it: reinstall it"))
        }
        None => (
            if program.starts_with('/') {
                format!("{program} does not exist")
            } else {
                format!("{program} is not in {}", PLACES.join(", "))
            },
            format!(
                "install {program} on this node again, in the version that last ran (`journalctl -u {name} | grep -i version` shows it): from its \
                 package, or as a copy of the file of another server of the same image. If the image lacks it, add it there too"
            ),
        ),
        Some(path) if is_program(root, path) => (
            format!("{path} is executable, but the kernel cannot run it"),
            format!("`file {path}` shows for which machine it is made: reinstall it, and correct the image"),
        ),
        Some(path) => (format!("{path} is not executable"), format!("`chmod 755 {path}`, and correct the image")),
    };
    let cause = format!("{fact}, so {name} cannot start (status 203/EXEC)");
    Failure { code: Code::UnitProgramMissing, ..failed(name, cause) }.unstartable(name).remedy(remedy)
}

/// A unit that did not come up.
fn failed(name: &str, cause: String) -> Failure {
    Failure::new(Code::UnitFailed, StepId::Unit(name.to_owned()), cause)
        .unit(name)
        .remedy(format!("`journalctl -u {name} -n 50` shows why: correct it"))
}
