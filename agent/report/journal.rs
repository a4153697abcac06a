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
use super::fold::Folder;
use super::text::escaped;
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
    let mut folder = Folder::default();
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
            let general = (entry.priority < Priority::Info && !entry.remedy.is_empty()).then_some(entry.remedy);
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
                HNA_REMEDY = event.remedy.as_deref().or(general),
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
    match &event.cause {
        Some(cause) if !event.message.contains(cause.as_str()) => escaped(&format!("{}: {cause}", event.message)),
        _ => escaped(&event.message),
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
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
