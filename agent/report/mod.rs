//! What people see. Modules emit typed [`Event`]s; this module alone formats them: journal fields,
//! console lines, the status file, systemd's STATUS=.
//!
//! In: events. Out: journal, console, status.json. Never: a wait for a reader; a bounded queue lies
//! between it and the journal, and what does not fit is counted and logged later.

pub mod catalog;
pub mod component;
pub mod condition;
pub mod condition_state;
mod console;
pub mod event;
pub mod explain;
pub mod follow_up;
mod journal;
mod known_secrets;
pub mod metrics;
pub mod node_conditions;
pub mod notify;
pub mod reason;
pub mod reported_once;
#[cfg(test)]
pub(crate) mod schema;
pub mod screen;
pub(crate) mod secret_finder;
pub mod states;
pub mod status;
pub mod step_timing;
pub mod text;
mod throttle;
pub mod timeline;
pub mod volume;

use std::borrow::Cow;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

pub use catalog::Code;
pub use event::{Event, Phase};
pub use journal::{TRACES, trace_libraries};
use known_secrets::Hidden;
use text::shortened;

/// The handle by which every module reports what happened. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Report(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    sink: Sink,
    hidden: RwLock<Hidden>,
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
        Self(Arc::new(Shared { sink, hidden: RwLock::default() }))
    }

    /// From now on nothing shows these values, in the place of those of a call before.
    pub(crate) fn hide(&self, values: &[String]) {
        *self.0.hidden.write().unwrap_or_else(PoisonError::into_inner) = Hidden::of(values);
    }

    /// A text for Heat or the status without the values that nothing shows.
    #[must_use]
    pub(crate) fn masked<'a>(&self, text: &'a str) -> Cow<'a, str> {
        self.0.hidden.read().unwrap_or_else(PoisonError::into_inner).masked(text)
    }

    /// The first `limit` characters of a text without the values that nothing shows. They are hidden before it is cut: of one that is cut
    /// a part would be left that nobody knows any more.
    #[must_use]
    pub(crate) fn cut(&self, text: &str, limit: usize) -> String {
        shortened(&self.masked(text), limit)
    }

    /// Takes out of an event what must not be shown, for who keeps it beside the report.
    pub(crate) fn mask(&self, event: &mut Event) {
        event.mask(|text| self.masked(text));
    }

    /// Says that something happened.
    pub fn emit(&self, mut event: Event) {
        self.mask(&mut event);
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

    /// Waits, for a moment at most, until what was said is written.
    pub fn flush(&self) {
        if let Sink::Journal(writer) = &self.0.sink {
            writer.flush();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    /// Attack: a service quotes the token that it was given, and the cause of the failure brings it into the journal.
    #[test]
    fn no_event_shows_a_value_that_is_hidden_wherever_it_stands() {
        let report = Report::kept();
        let say = || {
            let error = Error::permanent("it answered 401: bad token s3cret-token").remedy("drop s3cret-token");
            report.emit(Event::new(Code::StepFailed, "s3cret-token failed").step("ask s3cret-token").error(&error));
        };
        report.clone().hide(&["s3cret-token".to_owned()]);
        say();
        report.hide(&[]);
        say();
        let [hidden, shown] = &report.events()[..] else { panic!() };
        assert!(!format!("{hidden:?}").contains("s3cret") && format!("{hidden:?}").contains("bad token ******"), "{hidden:?}");
        assert_eq!(format!("{shown:?}").matches("s3cret").count(), 4, "another deployment's");
        report.hide(&["s3cret-token".to_owned()]);
        // Attack: cut before it is masked, a part of it was left.
        for limit in 1..40 {
            let cut = report.cut("bad token s3cret-token and more", limit);
            assert!(!cut.contains("s3c") && cut.chars().count() <= limit, "{cut}");
        }
        assert_eq!(report.masked("HNA-0503 bad token s3cret-token"), "HNA-0503 bad token ******");
    }
}
