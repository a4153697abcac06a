//! The journal's side of [`super::Report`]: a bounded queue and one thread that writes.
//!
//! tracing-journald's socket blocks while journald does not read: with the queue between, that costs
//! messages (counted, and logged later), never the agent's progress.

use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use tracing::Level;
use tracing_journald::{Priority as JournalPriority, PriorityMappings};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::prelude::*;

use super::Code;
use super::catalog::Priority;
use super::console::Console;
use super::event::Event;
use super::text::escaped;
use super::throttle::RepeatThrottle;
use crate::clock::millis;
use crate::error::{Error, Result};

/// Messages that may wait for the journal.
const QUEUE: usize = 1024;
/// How long a flush waits for a journal that does not read, or a thread that gets no processor: later messages are lost.
/// Called at the end of the process only: systemd gives a service that is stopped twice as long (TimeoutStopSec=).
const FLUSH_LIMIT: Duration = Duration::from_secs(5);

#[derive(Debug)]
enum Item {
    Say(Box<Event>),
    Flush(SyncSender<()>),
}

/// The queue's near end.
#[derive(Debug)]
pub(super) struct Writer {
    queue: Option<SyncSender<Item>>,
    lost: AtomicU64,
}

impl Writer {
    /// Starts the thread.
    pub(super) fn start(console: bool) -> Self {
        let (queue, items) = sync_channel(QUEUE);
        let started = std::thread::Builder::new()
            .name("journal".to_owned())
            .stack_size(256 * 1024)
            .spawn(move || write_all(&items, console));
        Self { queue: started.is_ok().then_some(queue), lost: AtomicU64::new(0) }
    }

    /// Queues an event; counts it as lost where the queue is full.
    pub(super) fn send(&self, event: Event) {
        let Some(queue) = &self.queue else { return };
        let lost = self.lost.load(Ordering::Relaxed);
        if lost > 0 {
            let note =
                Event::new(Code::MessagesLost, format!("{lost} messages were lost because the journal did not accept them"));
            if queue.try_send(Item::Say(Box::new(note))).is_ok() {
                self.lost.fetch_sub(lost, Ordering::Relaxed);
            }
        }
        if queue.try_send(Item::Say(Box::new(event))).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits until everything queued so far is written, for [`FLUSH_LIMIT`] at most.
    pub(super) fn flush(&self) {
        let Some(queue) = &self.queue else { return };
        let (done, written) = sync_channel(1);
        if queue.try_send(Item::Flush(done)).is_ok() {
            // Silence after the limit: the journal does not read, and we do not wait for it.
            let _ = written.recv_timeout(FLUSH_LIMIT);
        }
    }
}

fn write_all(items: &Receiver<Item>, console: bool) {
    let journald = || {
        tracing_journald::layer()
            .ok()
            .map(|layer| layer.with_field_prefix(None).with_syslog_identifier("heat-node-agent".to_owned()))
    };
    let entries = journald();
    let to_journal = entries.is_some();
    // What is below debug is compiled out, so that details have a layer of their own, whose debug is journald's.
    let mappings = PriorityMappings { debug: JournalPriority::Debug, ..PriorityMappings::new() };
    let details = journald().map(|layer| layer.with_priority_mappings(mappings));
    // Our own targets alone, so that tracing in libraries is disabled and costs nothing.
    let only = |target: &'static str| Targets::new().with_target(target, LevelFilter::DEBUG);
    let subscriber =
        tracing_subscriber::registry().with(entries.with_filter(only(TARGET))).with(details.with_filter(only(DETAIL)));
    let mut console = if console { Console::open() } else { Console::none() };
    let mut folder = RepeatThrottle::default();
    tracing::subscriber::with_default(subscriber, || {
        while let Ok(item) = items.recv() {
            match item {
                Item::Say(event) => {
                    console.show(&event);
                    let Some(event) = folder.pass(*event) else { continue };
                    if to_journal {
                        write(&event);
                    } else {
                        write_plain(&event);
                    }
                }
                Item::Flush(done) => {
                    // The one who asked may have given up waiting.
                    let _ = done.try_send(());
                }
            }
        }
    });
}

/// Tracing target of the journal's entries.
const TARGET: &str = "heat_node_agent::entry";
/// Tracing target of details.
const DETAIL: &str = "heat_node_agent::detail";

/// One native journal entry. Absent fields are not written at all.
fn write(event: &Event) {
    // One of tracing-journald's default levels: ERROR 3, WARN 4, INFO 5 (notice), DEBUG 6 (info).
    macro_rules! at {
        ($level:expr) => {
            at!($level, TARGET)
        };
        ($level:expr, $target:expr) => {{
            let entry = event.code.entry();
            // What needs no attention has its remedy in the catalog alone.
            let has_remedy = event.remedy.is_some() || entry.priority < Priority::Info;
            let remedy = Some(event.remedy_in_words()).filter(|words| has_remedy && !words.is_empty());
            tracing::event!(
                target: $target,
                $level,
                message = line(event).as_str(),
                MESSAGE_ID = entry.message_id,
                HNA_EVENT = entry.name,
                HNA_CODE = entry.code,
                HNA_PHASE = event.phase.map(super::event::Phase::as_str),
                HNA_STEP = event.step.as_deref(),
                HNA_GENERATION = event.generation,
                HNA_DEPLOYMENT_ID = event.deployment_id.as_deref(),
                HNA_DEPLOYMENT_NAME = event.deployment_name.as_deref(),
                HNA_SOURCE = event.source.as_deref(),
                HNA_UNIT = event.unit.as_deref(),
                HNA_GATE = event.gate.as_deref(),
                HNA_ATTEMPT = event.attempt,
                HNA_NEXT_TRY_MS = event.next_try.map(millis),
                HNA_DURATION_MS = event.duration.map(millis),
                HNA_WAITED_FOR = event.waited_for.as_deref(),
                HNA_WAITED_MS = event.waited.map(millis),
                HNA_CAUSE = event.cause.as_deref(),
                HNA_REMEDY = remedy.as_deref(),
                OBJECT_SYSTEMD_UNIT = event.unit.as_deref().filter(|_| event.own_unit),
            );
        }};
    }
    match event.code.entry().priority {
        _ if event.is_detail => at!(Level::DEBUG, DETAIL),
        Priority::Error => at!(Level::ERROR),
        Priority::Warning => at!(Level::WARN),
        Priority::Notice => at!(Level::INFO),
        Priority::Info => at!(Level::DEBUG),
    }
}

fn write_plain(event: &Event) {
    let mut stderr = std::io::stderr().lock();
    let level = match event.code.entry().priority {
        _ if event.is_detail => 7,
        Priority::Error => 3,
        Priority::Warning => 4,
        Priority::Notice => 5,
        Priority::Info => 6,
    };
    let prefix = if stderr.is_terminal() { String::new() } else { format!("<{level}>") };
    // Nobody is left to tell where standard error is gone too.
    let _ = writeln!(stderr, "{prefix}{} {}", event.code.entry().code, line(event));
}

/// Message and cause in one line, safe to show.
fn line(event: &Event) -> String {
    let message = &event.message;
    let (fact, count) = message.split_at(message.find(" (repeated ").unwrap_or(message.len()));
    // Such a cause says the message itself behind what it knows besides: `port 2379 is held by x; y.service ended (last lines …)`.
    let says_all = |cause: &str| cause.split("; ").skip(1).any(|part| part.split(REMARK).next() == Some(fact));
    escaped(&match event.cause.as_deref().map(|cause| left_of(cause, message)) {
        None | Some("") => message.clone(),
        Some(remarks) if remarks.starts_with(REMARK) => format!("{message}{remarks}"),
        Some(cause) if says_all(cause) => format!("{cause}{count}"),
        Some(cause) => format!("{message}: {cause}"),
    })
}

/// What begins a remark on a fact: `no such unit (while starting it) (rule: there is one)`, as [`Event::error`] makes causes.
const REMARK: &str = " (";

/// What of a cause a message does not say yet: all of it, or, where the fact stands in the message, the remarks on it that do not.
fn left_of<'a>(cause: &'a str, message: &str) -> &'a str {
    let ends = cause.match_indices(REMARK).map(|(at, _)| at).chain([cause.len()]);
    let Some(said) = ends.filter(|end| cause.get(..*end).is_some_and(|fact| says(message, fact))).last() else { return cause };
    let left = cause.get(said..).unwrap_or_default();
    let (doing, rule) = left.split_at(left.rfind(" (rule: ").unwrap_or(left.len()));
    // A chain of errors names what was being done before the fact.
    let deed = doing.strip_prefix(REMARK).and_then(|doing| doing.strip_suffix(')')).unwrap_or(doing);
    if message.contains(deed.strip_prefix("while ").unwrap_or(deed)) { rule } else { left }
}

/// Whether a fact stands in a message as a part of its own: from its beginning or behind a colon, up to where no word goes on.
fn says(message: &str, fact: &str) -> bool {
    let is_part = |at: usize| {
        let (before, behind) = (message.get(..at).unwrap_or_default(), message.get(at + fact.len()..).unwrap_or_default());
        (before.is_empty() || before.ends_with(": ")) && (behind.is_empty() || behind.starts_with([' ', '.', ';', ',']))
    };
    !fact.is_empty() && (message.match_indices(fact).any(|(at, _)| is_part(at)))
}

/// The variable that asks for what libraries trace, e.g. `debug` or `zbus=debug,rustls=debug`.
pub const TRACES: &str = "HNA_LOG";

/// Writes what zbus, reqwest and rustls trace to standard error, which is the journal's in a unit: for debugging what
/// lies below the agent's own messages. It blocks while nobody reads there.
///
/// # Errors
/// Permanent, if `wanted` is no list of targets and levels.
pub fn trace_libraries(wanted: &str) -> Result<()> {
    let targets: Targets = wanted.parse().map_err(|error: tracing_subscriber::filter::ParseError| {
        Error::permanent(format!("{TRACES}={}: {error}", escaped(wanted)))
            .rule("a level (error, warn, info, debug), or TARGET=LEVEL with commas between them")
            .remedy(format!("{TRACES}=debug, or {TRACES}=zbus=debug,rustls=debug"))
    })?;
    let written = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).without_time();
    // Set once, by main.
    tracing_subscriber::registry().with(written).with(targets).try_init().map_err(Error::permanent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_journal_that_does_not_read_holds_up_nobody_and_what_is_lost_is_counted() {
        let (queue, items) = sync_channel(QUEUE);
        let writer = Writer { queue: Some(queue), lost: AtomicU64::new(0) };
        let say = |number: usize| writer.send(Event::new(Code::StepFailed, number.to_string()));
        // With a queue that waits, neither the messages nor the flush would come to an end.
        (0..QUEUE + 7).for_each(say);
        writer.flush();
        assert_eq!(items.try_iter().count(), QUEUE);
        say(QUEUE + 7);
        let said: Vec<_> = items.try_iter().collect();
        let [Item::Say(note), Item::Say(next)] = said.as_slice() else { panic!("{said:?}") };
        assert_eq!(note.message, "7 messages were lost because the journal did not accept them");
        assert_eq!((note.code, next.message.as_str()), (Code::MessagesLost, "1031"));
        assert_eq!(writer.lost.load(Ordering::Relaxed), 0, "each is counted once");
    }

    /// Attack: "these CNI plugins are not installed: … : these CNI plugins are not installed: … (rule: …)" stood in one line.
    #[test]
    fn no_cause_is_written_twice_in_a_line() {
        let (fact, rule) = ("these CNI plugins are not installed: a, b", "an image has them");
        let plain = Error::permanent(fact);
        for error in [plain.clone(), plain.clone().context("reading (a) /x"), plain.context("GET http://h/").context("asking h")]
        {
            for error in [error.clone(), error.rule(rule)] {
                let short = error.cause_first();
                for message in [
                    format!("installed programs: {fact}"),
                    format!("installed programs: {error}"),
                    format!("installed programs: {short}"),
                    format!("installed programs: {short} (repeated 2 times)"),
                    error.to_string(),
                    fact.to_owned(),
                    "the node cannot be brought up".to_owned(),
                ] {
                    let line = line(&Event::new(Code::ProgramIncompatible, &message).error(&error));
                    assert!(line.starts_with(&message), "{line}");
                    let times = |text: &str| line.matches(text).count();
                    assert_eq!((times(fact), times(rule)), (1, usize::from(error.broken_rule().is_some())), "{line}");
                    let doing = short
                        .strip_prefix(fact)
                        .unwrap()
                        .trim_start_matches(" (while ")
                        .trim_start_matches(" (")
                        .trim_end_matches(')');
                    assert!(doing.is_empty() || times(doing) == 1, "{doing}: {line}");
                }
            }
        }
        let cause = "port 2379 is held by x; a.service ended (last lines of a.service: address in use)";
        for (message, count) in [("a.service ended", ""), ("a.service ended (repeated 3 times)", " (repeated 3 times)")] {
            assert_eq!(line(&Event::new(Code::UnitDiedInBringUp, message).cause(cause)), format!("{cause}{count}"));
        }
        // What only begins alike is another cause.
        for (message, cause) in [
            ("it failed", "it failed twice"),
            ("port 80", "port 8080 is taken (rule: r)"),
            ("the gate: no", "no answer (x)"),
            ("a ended", "x; a ended twice (y)"),
        ] {
            assert_eq!(line(&Event::new(Code::StepFailed, message).cause(cause)), format!("{message}: {cause}"));
        }
    }
}
