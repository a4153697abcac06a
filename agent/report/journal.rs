//! The journal's side of [`super::Report`]: a bounded queue and one thread that writes.
//!
//! tracing-journald's socket blocks while journald does not read: with the queue between, that costs
//! messages (counted, and said later), never the agent's progress.

use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use tracing::callsite::{Callsite, DefaultCallsite};
use tracing::field::Value;
use tracing::metadata::Kind;
use tracing::{Level, Metadata};
use tracing_subscriber::prelude::*;

use super::Code;
use super::catalog::Priority;
use super::console::Console;
use super::event::Event;
use super::fold::Folder;
use super::text::escaped;

/// Messages that may wait for the journal.
const QUEUE: usize = 1024;
/// How long a flush waits for a journal that does not read, or a thread that gets no processor: what is said last is lost after it.
/// Only who ends waits, and systemd gives a service that is stopped twice as long (TimeoutStopSec=).
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
            let note = Event::new(Code::MessagesLost, format!("{lost} messages were lost because the journal did not take them"));
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
    let journald = tracing_journald::layer()
        .map(|layer| layer.with_field_prefix(None).with_syslog_identifier("heat-node-agent".to_owned()))
        .ok();
    let to_journal = journald.is_some();
    let subscriber = tracing_subscriber::registry().with(journald);
    let mut console = if console { Console::open() } else { Console::none() };
    let mut folder = Folder::default();
    tracing::subscriber::with_default(subscriber, || {
        while let Ok(item) = items.recv() {
            match item {
                Item::Say(event) => {
                    console.tell(&event);
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

/// The names of an entry's fields, in the order of the values in [`write`].
const FIELDS: &[&str] = &[
    "message",
    "MESSAGE_ID",
    "HNA_EVENT",
    "HNA_CODE",
    "HNA_PHASE",
    "HNA_STEP",
    "HNA_GENERATION",
    "HNA_DEPLOYMENT_ID",
    "HNA_DEPLOYMENT_NAME",
    "HNA_SOURCE",
    "HNA_UNIT",
    "HNA_GATE",
    "HNA_ATTEMPT",
    "HNA_NEXT_TRY_MS",
    "HNA_DURATION_MS",
    "HNA_WAITED_FOR",
    "HNA_WAITED_MS",
    "HNA_CAUSE",
    "HNA_REMEDY",
    "OBJECT_SYSTEMD_UNIT",
];

/// What tracing knows of an event before it happens, one for each of tracing-journald's default levels: ERROR 3, WARN 4,
/// INFO 5 (notice), DEBUG 6 (info). By hand, not by tracing's macros: Cargo.toml turns those off for everybody.
static LEVELS: [Metadata<'static>; 4] = [
    metadata(Level::ERROR, &CALLSITES[0]),
    metadata(Level::WARN, &CALLSITES[1]),
    metadata(Level::INFO, &CALLSITES[2]),
    metadata(Level::DEBUG, &CALLSITES[3]),
];
static CALLSITES: [DefaultCallsite; 4] = [
    DefaultCallsite::new(&LEVELS[0]),
    DefaultCallsite::new(&LEVELS[1]),
    DefaultCallsite::new(&LEVELS[2]),
    DefaultCallsite::new(&LEVELS[3]),
];

const fn metadata(level: Level, callsite: &'static dyn Callsite) -> Metadata<'static> {
    tracing::metadata! {
        name: "entry",
        target: module_path!(),
        level: level,
        fields: FIELDS,
        callsite: callsite,
        kind: Kind::EVENT,
    }
}

/// One native journal entry. Absent fields are not written at all.
fn write(event: &Event) {
    let entry = event.code.entry();
    let general = (entry.priority < Priority::Info).then_some(entry.remedy);
    let level = match entry.priority {
        Priority::Error => &LEVELS[0],
        Priority::Warning => &LEVELS[1],
        Priority::Notice => &LEVELS[2],
        Priority::Info => &LEVELS[3],
    };
    let message = line(event);
    let values: [Option<&dyn Value>; FIELDS.len()] = [
        Some(&message),
        Some(&entry.message_id),
        Some(&entry.name),
        Some(&entry.code),
        Some(&event.phase.map(super::event::Phase::as_str)),
        Some(&event.step.as_deref()),
        Some(&event.generation),
        Some(&event.deployment_id.as_deref()),
        Some(&event.deployment_name.as_deref()),
        Some(&event.source.as_deref()),
        Some(&event.unit.as_deref()),
        Some(&event.gate.as_deref()),
        Some(&event.attempt.map(u64::from)),
        Some(&event.next_try.map(millis)),
        Some(&event.duration.map(millis)),
        Some(&event.waited_for.as_deref()),
        Some(&event.waited.map(millis)),
        Some(&event.cause.as_deref()),
        Some(&event.remedy.as_deref().or(general)),
        Some(&event.unit.as_deref().filter(|_| event.own_unit)),
    ];
    tracing::Event::dispatch(level, &level.fields().value_set_all(&values));
}

fn write_plain(event: &Event) {
    let mut stderr = std::io::stderr().lock();
    let level = match event.code.entry().priority {
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
