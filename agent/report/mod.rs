//! What people see. Rooms emit typed [`Event`]s; this room alone formats them: journal fields,
//! console lines, the status file, systemd's STATUS=.
//!
//! In: events. Out: journal, console, status.json. It never blocks the agent: a bounded queue lies
//! between it and the journal, and what does not fit is counted and logged later.

pub mod catalog;
pub mod component;
pub mod condition;
pub mod condition_state;
mod console;
pub mod damper;
pub mod event;
pub mod explain;
mod fold;
mod journal;
pub mod lap;
pub mod metrics;
pub mod notify;
pub mod screen;
pub mod status;
pub mod text;
pub mod timeline;
pub mod volume;

use std::sync::{Arc, Mutex, PoisonError};

pub use catalog::Code;
pub use event::{Event, Phase};
pub use journal::{TRACES, trace_libraries};

/// The handle by which every room reports what happened. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Report(Arc<Sink>);

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
        Self(Arc::new(sink))
    }

    /// Says that something happened.
    pub fn emit(&self, mut event: Event) {
        event.mask();
        match &*self.0 {
            Sink::Journal(writer) => writer.send(event),
            Sink::Kept(events) => events.lock().unwrap_or_else(PoisonError::into_inner).push(event),
        }
    }

    /// The events that a [`Report::kept`] report got so far; empty for others.
    #[must_use]
    pub fn events(&self) -> Vec<Event> {
        match &*self.0 {
            Sink::Journal(_) => Vec::new(),
            Sink::Kept(events) => events.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        }
    }

    /// Waits, for a moment at most, until what was said is written.
    pub fn flush(&self) {
        if let Sink::Journal(writer) = &*self.0 {
            writer.flush();
        }
    }
}
