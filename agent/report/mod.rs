//! What people see. Rooms emit typed [`Event`]s; this room alone formats them: journal fields,
//! console lines, the status file, systemd's STATUS=.
//!
//! In: events. Out: journal, console, status.json. It never blocks the agent: a bounded queue lies
//! between it and the journal, and what does not fit is counted and said later.

pub mod catalog;
pub mod condition_state;
mod console;
pub mod event;
pub mod explain;
mod fold;
mod journal;
pub mod lap;
pub mod notify;
pub mod status;
mod steps;
pub mod text;
pub mod timeline;

use std::sync::{Arc, Mutex, PoisonError};

use crate::clock::Timestamp;
use condition_state::ConditionState;
use lap::Lap;
use status::Condition;
use steps::Steps;

pub use catalog::Code;
pub use event::{Event, Phase};
pub use journal::{TRACES, trace_libraries};

/// The handle by which every room tells what happened. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Report(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    sink: Sink,
    steps: Steps,
}

#[derive(Debug)]
enum Sink {
    /// The journal (or standard error), through the queue.
    Journal(journal::Writer),
    /// A test keeps them.
    Kept(Mutex<Vec<Event>>),
}

impl Report {
    /// To the journal; to standard error with `<priority>` prefixes where no journal runs. `console`: a line a phase there.
    #[must_use]
    pub fn to_journal(console: bool) -> Self {
        Self::of(Sink::Journal(journal::Writer::start(console)))
    }

    /// Keeps every event for [`Report::events`].
    #[must_use]
    pub fn kept() -> Self {
        Self::of(Sink::Kept(Mutex::new(Vec::new())))
    }

    fn of(sink: Sink) -> Self {
        Self(Arc::new(Inner { sink, steps: Steps::default() }))
    }

    /// Says that something happened.
    pub fn emit(&self, mut event: Event) {
        event.mask();
        self.0.steps.hear(&event);
        self.0.steps.place(&mut event);
        match &self.0.sink {
            Sink::Journal(writer) => writer.send(event),
            Sink::Kept(events) => events.lock().unwrap_or_else(PoisonError::into_inner).push(event),
        }
    }

    /// The events that a [`Report::kept`] report got so far; empty for others.
    #[must_use]
    pub fn events(&self) -> Vec<Event> {
        match &self.0.sink {
            Sink::Journal(_) => Vec::new(),
            Sink::Kept(events) => events.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        }
    }

    /// Bringing the node up begins: these are its steps, in their order.
    pub fn expect_steps(&self, names: Vec<String>) {
        self.0.steps.expect(names);
    }

    /// What steps that did not begin wait for now.
    pub fn steps_wait(&self, needs: &[(String, Vec<String>)]) {
        self.0.steps.wait(needs);
    }

    /// A run begins: its laps come now.
    pub fn begin_laps(&self) {
        self.0.steps.begin_laps();
    }

    /// A lap begins `at_ms` after the run did; `after`: see [`Lap::after`].
    pub fn lap_begins(&self, step: &str, at_ms: u64, after: Vec<String>) {
        self.0.steps.lap_begins(step, at_ms, after);
    }

    /// A lap ends; none of this name that goes on: nothing.
    pub fn lap_ends(&self, step: &str, at_ms: u64, state: ConditionState) {
        self.0.steps.lap_ends(step, at_ms, state);
    }

    /// The laps of the newest run, as far as it is.
    #[must_use]
    pub fn laps(&self) -> Vec<Lap> {
        self.0.steps.laps()
    }

    /// A step begins, or is done.
    pub fn step(&self, name: &str, state: ConditionState, now: Timestamp) {
        self.0.steps.set(name, state, now, None, None);
    }

    /// A step is given up then.
    pub fn step_until(&self, name: &str, then: Timestamp) {
        self.0.steps.until(name, then);
    }

    /// A step failed.
    pub fn step_failed(&self, step: &str, now: Timestamp, cause: &str, remedy: &str) {
        self.0.steps.fail(step, now, cause, remedy);
    }

    /// The steps of the newest run, as far as they are.
    #[must_use]
    pub fn steps(&self) -> Vec<Condition> {
        self.0.steps.all()
    }

    /// Waits until a step moved. Safe to drop.
    pub async fn steps_changed(&self) {
        self.0.steps.changed().await;
    }

    /// Waits, for a moment at most, until what was said is written.
    pub fn flush(&self) {
        if let Sink::Journal(writer) = &self.0.sink {
            writer.flush();
        }
    }
}
