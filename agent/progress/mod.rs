//! How far bringing the node up is: the one place where it is kept.
//!
//! In: the steps of a run, as whoever carries them out begins and ends them, and what is said about one while it goes on. Out: the
//! conditions that `status` and `explain` show, the step_timings that the timeline, the generation and Heat's outputs are made of, and the
//! node's phase. Never: a decision, or knowledge of what a step does.

mod step;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

pub use step::StepId;

use crate::clock::{Clock, Stopwatch, Timestamp};
use crate::error::remedy::Remedy;
use crate::report::catalog::Priority;
use crate::report::condition_state::ConditionState;
use crate::report::follow_up::FollowUp;
use crate::report::status::Condition;
use crate::report::step_timing::StepTiming;
use crate::report::text::duration;
use crate::report::{Code, Event, Phase, Report};

/// The newest run, and where its events go. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Progress(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    report: Report,
    clock: Clock,
    run: Mutex<Run>,
    news: Notify,
}

#[derive(Debug)]
struct Run {
    began: Stopwatch,
    /// What is shown, in the order of the `Desired`.
    steps: Vec<StepRecord>,
    /// What was timed, in the order of the beginnings. A gate whose process was replaced has more than one.
    step_timings: Vec<Timed>,
    /// The deployment that asked for it; nothing where the agent puts the node back.
    deployment: Option<String>,
    /// The newest of the steps that are done one after the other.
    newest: Option<StepId>,
}

/// A step that is shown.
#[derive(Clone, Debug)]
struct StepRecord {
    id: StepId,
    state: ConditionState,
    since: Option<Timestamp>,
    given_up: Option<Timestamp>,
    attempt: u32,
    cause: Option<String>,
    remedy: Option<String>,
    waits_for: Vec<StepId>,
    /// Why its wait is in vain for now, and what to do: it says more than the last try.
    why: Option<(String, String)>,
}

#[derive(Clone, Debug)]
struct Timed {
    id: StepId,
    began_ms: u64,
    took_ms: u64,
    after: Vec<StepId>,
    state: ConditionState,
}

impl StepRecord {
    fn new(id: StepId) -> Self {
        Self {
            id,
            state: ConditionState::Pending,
            since: None,
            given_up: None,
            attempt: 0,
            cause: None,
            remedy: None,
            waits_for: Vec::new(),
            why: None,
        }
    }

    /// It is in another state from now on, without what was known of it in the former one.
    fn enter(&mut self, state: ConditionState, now: Timestamp) {
        let attempt = if state == ConditionState::Ok { 0 } else { self.attempt };
        *self = Self { state, since: Some(now), attempt, ..Self::new(self.id.clone()) };
    }

    fn condition(&self) -> Condition {
        let (cause, remedy) =
            self.why.clone().map_or((self.cause.clone(), self.remedy.clone()), |(why, what)| (Some(why), Some(what)));
        Condition {
            name: (&self.id).into(),
            subject: self.id.subject(),
            state: self.state,
            since: self.since.map(Timestamp::rfc3339),
            given_up: self.given_up.map(Timestamp::rfc3339),
            attempt: self.attempt,
            cause,
            remedy,
            waits_for: texts(&self.waits_for),
            ..Condition::default()
        }
    }
}

fn texts(steps: &[StepId]) -> Vec<String> {
    steps.iter().map(StepId::to_string).collect()
}

impl Run {
    fn step(&mut self, id: &StepId) -> Option<&mut StepRecord> {
        self.steps.iter_mut().find(|step| step.id == *id)
    }

    fn timing(&mut self, id: &StepId) -> Option<&mut Timed> {
        self.step_timings.iter_mut().find(|timing| timing.id == *id && timing.state == ConditionState::Waiting)
    }

    /// What goes on has taken so long by now.
    fn go_on(&mut self) {
        let now = self.began.millis();
        for timing in self.step_timings.iter_mut().filter(|timing| timing.state == ConditionState::Waiting) {
            timing.took_ms = now.saturating_sub(timing.began_ms);
        }
    }
}

impl Progress {
    /// Before the first run.
    #[must_use]
    pub fn new(report: Report, clock: Clock) -> Self {
        let run = Run { began: clock.start(), steps: Vec::new(), step_timings: Vec::new(), deployment: None, newest: None };
        Self(Arc::new(Inner { report, clock, run: Mutex::new(run), news: Notify::new() }))
    }

    /// Where events go that are about no step.
    #[must_use]
    pub fn report(&self) -> &Report {
        &self.0.report
    }

    /// A run begins, with the clock of its step_timings. The steps of the run before stay until [`Progress::expect`]. `deployment`: the one that
    /// asked for it; nothing where the agent puts the node back.
    pub fn begin_run(&self, deployment: Option<&str>) {
        let mut run = self.run();
        run.deployment = deployment.map(str::to_owned);
        run.began = self.0.clock.start();
        run.step_timings.clear();
        run.newest = None;
    }

    /// These are the run's steps, in the order in which they are shown.
    pub fn expect(&self, steps: Vec<StepId>) {
        self.run().steps = steps.into_iter().map(StepRecord::new).collect();
        self.0.news.notify_one();
    }

    /// What each step waits for that has not begun; the others wait for nothing.
    pub fn wait_for(&self, needs: Vec<(StepId, Vec<StepId>)>) {
        let mut run = self.run();
        for step in &mut run.steps {
            step.waits_for.clear();
        }
        for (id, needs) in needs {
            if let Some(step) = run.step(&id) {
                step.waits_for = needs;
            }
        }
    }

    /// A step begins that comes after the one before it.
    pub fn begin_next(&self, step: impl Into<StepId>) -> StepId {
        let step = step.into();
        let before = self.run().newest.replace(step.clone());
        self.begin(&step, before.into_iter().collect());
        step
    }

    /// A step begins. `after`: what it waited for, in the order of the ends; if nothing, it comes after the last of
    /// those that are done one after the other.
    pub fn begin(&self, step: &StepId, after: Vec<StepId>) {
        let mut run = self.run();
        run.go_on();
        let after = if after.is_empty() { run.newest.iter().filter(|newest| *newest != step).cloned().collect() } else { after };
        let began_ms = run.began.millis();
        run.step_timings.push(Timed { id: step.clone(), began_ms, took_ms: 0, after, state: ConditionState::Waiting });
        drop(run);
        self.enter(step, ConditionState::Waiting);
    }

    /// A step is worked on before its turn: nothing is timed.
    pub fn begin_early(&self, step: &StepId) {
        self.enter(step, ConditionState::Waiting);
    }

    /// A step is done.
    pub fn end(&self, step: &StepId) {
        self.end_lap(step, ConditionState::Ok);
        self.enter(step, ConditionState::Ok);
    }

    /// A step that is worked on is given up after this time.
    pub fn give_up_after(&self, step: &StepId, left: Duration) {
        let then = self.0.clock.now().after(left);
        if let Some(step) = self.run().step(step) {
            step.given_up = Some(then);
        }
    }

    /// What a step that is worked on waits for in vain, as somebody beside it found out, with what to do; nothing once that passed.
    pub fn explain(&self, step: &StepId, why: Option<(String, String)>) {
        let mut run = self.run();
        let Some(step) = run.step(step).filter(|step| step.state == ConditionState::Waiting && step.why != why) else { return };
        step.why = why;
        self.0.news.notify_one();
    }

    /// The step that is waited for and why, where somebody beside it found that out.
    #[must_use]
    pub fn step_waited_for(&self) -> Option<(StepId, String)> {
        self.run().steps.iter().find_map(|step| Some((step.id.clone(), step.why.as_ref()?.0.clone())))
    }

    /// The remedy of a failure that ends the run, with what is to be done then.
    #[must_use]
    pub fn remedy_of_failure(&self, remedy: &Remedy) -> Remedy {
        match &self.run().deployment {
            Some(id) => FollowUp::Rerun(id).of(remedy),
            None => FollowUp::TriesAgain.of(remedy),
        }
    }

    /// The run ended with a failure. `current_step`: what was timed; `step`: what the failure is about. One that nobody expected is shown
    /// before those that did not begin.
    pub fn fail(&self, current_step: &StepId, step: &StepId, cause: &str, remedy: &str) {
        self.end_lap(current_step, ConditionState::Failed);
        let mut run = self.run();
        let shown = if step.is_of_files() && run.step(step).is_none() && run.step(&StepId::Files).is_some() {
            &StepId::Files
        } else {
            step
        };
        if run.step(shown).is_none() {
            let at = run.steps.iter().position(|step| step.state == ConditionState::Pending).unwrap_or(run.steps.len());
            run.steps.insert(at, StepRecord::new(shown.clone()));
        }
        if let Some(step) = run.step(shown) {
            step.enter(ConditionState::Failed, self.0.clock.now());
            let shown = |text| Some(self.0.report.masked(text).into_owned());
            (step.cause, step.remedy) = (shown(cause), shown(remedy));
        }
        self.0.news.notify_one();
    }

    /// Says something about a step. A complaint is what the step waits for from now on; good news say what the step itself had
    /// waited for.
    pub fn emit(&self, step: &StepId, mut event: Event) {
        self.0.report.mask(&mut event);
        match event.code.entry().priority {
            Priority::Warning | Priority::Notice => {
                let remedy = event.remedy.take().unwrap_or_else(|| event.code.remedy());
                event.remedy =
                    Some(FollowUp::Continues(step.max_recheck_delay()).of(&remedy)).filter(|remedy| !remedy.is_empty());
                self.receive(step, &event);
            }
            Priority::Info => self.place(step, &mut event),
            Priority::Error => {}
        }
        self.0.report.emit(event);
    }

    /// The steps of the newest run, as far as they are.
    #[must_use]
    pub fn steps(&self) -> Vec<Condition> {
        self.run().steps.iter().map(StepRecord::condition).collect()
    }

    /// The step_timings of the newest run, as far as it is.
    #[must_use]
    pub fn step_timings(&self) -> Vec<StepTiming> {
        let timing = |timed: &Timed| StepTiming {
            step: timed.id.to_string(),
            began_ms: timed.began_ms,
            took_ms: timed.took_ms,
            after: texts(&timed.after),
            state: timed.state,
        };
        self.run().step_timings.iter().map(timing).collect()
    }

    /// Where a node that is being brought up is: at the first of its steps that is worked on; in between at the last one
    /// that is done.
    #[must_use]
    pub fn phase(&self) -> Phase {
        let run = self.run();
        let in_state = |state| move |step: &&StepRecord| step.state == state;
        let at = run.steps.iter().find(in_state(ConditionState::Waiting));
        at.or_else(|| run.steps.iter().rfind(in_state(ConditionState::Ok))).map_or(Phase::Plan, |step| step.id.phase())
    }

    /// Time since the run began.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.run().began.elapsed()
    }

    /// Waits until a step moved. Safe to drop.
    pub async fn changed(&self) {
        self.0.news.notified().await;
    }

    fn run(&self) -> MutexGuard<'_, Run> {
        self.0.run.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, step: &StepId, state: ConditionState) {
        let now = self.0.clock.now();
        if let Some(step) = self.run().step(step) {
            step.enter(state, now);
            self.0.news.notify_one();
        }
    }

    fn end_lap(&self, step: &StepId, state: ConditionState) {
        let mut run = self.run();
        run.go_on();
        if let Some(timing) = run.timing(step) {
            timing.state = state;
        }
    }

    fn receive(&self, step: &StepId, event: &Event) {
        let mut run = self.run();
        let Some(step) = run.step(step).filter(|step| step.state == ConditionState::Waiting) else { return };
        let cause = Some(event.cause.as_ref().unwrap_or(&event.message).clone());
        let remedy = event.remedy.as_ref().map(Remedy::to_string);
        step.attempt = event.attempt.unwrap_or(step.attempt);
        if (&step.cause, &step.remedy) != (&cause, &remedy) {
            (step.cause, step.remedy) = (cause, remedy);
            self.0.news.notify_one();
        }
    }

    fn place(&self, step: &StepId, event: &mut Event) {
        let mut run = self.run();
        let Some(timing) = run.timing(step) else { return };
        let Some(need) = timing.after.last().map(StepId::to_string) else { return };
        let waited = Duration::from_millis(timing.began_ms);
        // A disk that is found is not the end of its step.
        if let Some(took) = event.duration.filter(|_| event.code != Code::VolumeFound) {
            event.message.push_str(&format!(" ({}, waited {} for {need})", duration(took), duration(waited)));
        }
        event.waited = Some(waited);
        event.waited_for = Some(need);
    }
}
