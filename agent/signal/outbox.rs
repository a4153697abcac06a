//! Signals that Heat does not have yet (design.md 4, Outbox): stored before the first try, and kept until Heat accepts or permanently
//! refuses them, Heat asks for something newer, their deployment is run again or forgotten, or they are too old to mean anything.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::Semaphore;

use super::answer::{REFUSAL_SPAN, REFUSALS, SignalResponse, SignalVerdict, judge};
use super::destination::Destination;
use super::send::{DeliveryMethod, Sender};
use crate::backoff::{Backoff, random, spread};
use crate::budgets::{OUTBOX_DISK, REQUEST_IN_FLIGHT, SIGNALS_IN_FLIGHT};
use crate::clock::{Clock, Moment, Stopwatch, Timestamp, millis};
use crate::collect::{NodeFile, OwnCredentials, is_of_file};
use crate::digest::key_of;
use crate::error::remedy::Remedy;
use crate::error::{Error, Result};
use crate::files::{Attributes, Tree};
use crate::freshness::{ANSWER_VALIDITY, Freshness};
use crate::http::SendGuard;
use crate::report::follow_up::FollowUp;
use crate::report::{Code, Event, Phase, Report};

const DIRECTORY: &str = "outbox";
/// No signal is kept longer.
const LIFE: Duration = Duration::from_hours(7 * 24);
/// How many signals may wait.
const BOUND: usize = 500;
/// How many signals to wait conditions are kept for deployments that Heat may ask for again.
const PARKED: usize = 50;
/// Between tries. The pause after an answer is shortened to between its half and its whole.
const PAUSES: Backoff = Backoff::new(Duration::from_secs(4), LONGEST_PAUSE);
const LONGEST_PAUSE: Duration = Duration::from_mins(5);
/// The longest pause that a server may ask for: Heat waits for the result, of a node as short a time as WAIT_TIMEOUT says, and nobody but
/// this signal ends that.
const LONGEST_ASKED: Duration = Duration::from_secs(30);

/// The deployment that a signal speaks of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignalSubject {
    /// Its id.
    pub id: String,
    /// Its name, for messages.
    pub name: String,
    /// Stack and resource.
    pub resource: Option<(String, String)>,
    /// Whether this is the deployment's own result (and not a wait condition's signal).
    pub result: bool,
}

/// A stored signal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct QueuedSignal {
    /// Format of this file.
    pub schema: u32,
    /// What it is the signal of: the same key is stored once.
    pub key: String,
    /// The deployment behind it.
    pub about: Option<SignalSubject>,
    /// Where it goes.
    pub destination: Destination,
    /// What is sent. Of a stored signal it is on disk alone: [`Outbox::body`].
    pub body: Value,
    /// When it was stored.
    pub created: Timestamp,
    /// How often it was sent, or was to be sent and its body could not be read.
    #[serde(default)]
    pub tries: u32,
    /// How often Heat refused it.
    #[serde(default)]
    pub refusals: u32,
    /// Its age when Heat refused it first.
    #[serde(default)]
    pub first_refusal_ms: Option<u64>,
    /// How long the agent has had it, running, when this was written. A clock that is set does not make it older.
    #[serde(default)]
    pub age_ms: u64,
    /// What the outbox' stopwatch showed then.
    #[serde(skip)]
    aged_at_ms: u64,
    /// Of its file.
    #[serde(skip)]
    bytes: usize,
    /// When it was last sent.
    #[serde(default)]
    pub last_try: Option<Timestamp>,
    /// Parked: Heat no longer lists its deployment, and it is kept in case it is listed again.
    #[serde(default, rename = "withdrawn")]
    parked: bool,
    /// What an answer must cover before it is sent: that it was stored, later its last try.
    #[serde(skip)]
    since: Moment,
    /// When its pause is over by the wall clock: for people, and for the next run of the agent a hint.
    #[serde(default)]
    pub not_before: Timestamp,
    /// What it is held back by.
    #[serde(default)]
    pause: HoldBack,
    /// What answered last.
    #[serde(default)]
    pub cause: Option<String>,
    /// What to do about it, where that is known.
    #[serde(default)]
    pub remedy: Option<Remedy>,
}

impl QueuedSignal {
    /// A signal that has not been sent yet.
    #[must_use]
    pub fn new(key: String, about: Option<SignalSubject>, destination: Destination, body: Value, now: Timestamp) -> Self {
        Self {
            schema: 1,
            key,
            about,
            destination,
            body,
            created: now,
            tries: 0,
            refusals: 0,
            first_refusal_ms: None,
            age_ms: 0,
            aged_at_ms: 0,
            bytes: 0,
            last_try: None,
            parked: false,
            since: Moment::EARLIER,
            not_before: Timestamp(0),
            pause: HoldBack::default(),
            cause: None,
            remedy: None,
        }
    }

    /// Holds it back for so long from now on.
    pub fn hold(&mut self, pause: Duration, clock: &Clock) {
        self.pause = HoldBack { since: clock.moment(), length_ms: millis(pause) };
        self.not_before = clock.now().after(pause);
    }

    /// Resumes the stored pause: the part that the wall clock says remains, never more than all of it. The pause before a first try is
    /// short and begins anew.
    fn resume_pause(&mut self, now: Timestamp) {
        if self.tries > 0 {
            let left = millis(self.not_before.since(now));
            self.pause.length_ms = self.pause.length_ms.min(left);
        }
    }

    fn event(&self, code: Code, message: String) -> Event {
        let event = Event::new(code, message).phase(Phase::Signal).attempt(self.tries);
        match &self.about {
            Some(about) => event.deployment(&about.id, &about.name),
            None => event,
        }
    }
}

/// A pause before a try, counted in one run of the agent by the clock that nobody sets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct HoldBack {
    /// When it began. One that an earlier run began is counted from the beginning of this one.
    #[serde(skip)]
    since: Moment,
    length_ms: u64,
}

impl HoldBack {
    fn left(self, clock: &Clock) -> Duration {
        Duration::from_millis(self.length_ms).saturating_sub(clock.since(self.since))
    }
}

/// What the newest metadata says, as far as signals care.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MetadataView {
    /// Ids of the listed deployments; `None`: no list of Heat's own in this run of the agent.
    pub listed: Option<Arc<BTreeSet<String>>>,
    /// The newest deployment id for each stack and resource; several that are of the same second.
    pub newest: Arc<BTreeMap<(String, String), BTreeSet<String>>>,
    /// How new it is.
    pub freshness: Freshness,
    /// Whether whoever answered had Keystone check the request: Keystone worked then.
    pub asked_keystone: bool,
    /// What the server itself may speak to Heat with.
    pub own: OwnCredentials,
    /// The file that configures the node, where one does.
    pub node_file: Option<NodeFile>,
}

impl MetadataView {
    /// Whether Heat asks for a deployment: it is listed, and nothing newer of the same stack and resource is. Without a list
    /// nothing is said against it.
    #[must_use]
    pub fn asks_for(&self, id: &str, resource: Option<&(String, String)>) -> bool {
        if let Some(file) = self.file_of(id) {
            return file.id.as_deref() == Some(id);
        }
        let is_newest = resource.and_then(|resource| self.newest.get(resource)).is_none_or(|newest| newest.contains(id));
        is_newest && self.listed.as_ref().is_none_or(|listed| listed.contains(id))
    }
}

impl MetadataView {
    /// How new what is known of a deployment is.
    fn freshness_of(&self, id: &str) -> Freshness {
        self.file_of(id).map_or(self.freshness, NodeFile::freshness)
    }

    /// The file that a deployment is of: what it says now counts, and not what Heat lists.
    fn file_of(&self, id: &str) -> Option<&NodeFile> {
        self.node_file.as_ref().filter(|_| is_of_file(id))
    }
}

/// What Heat, as far as it was heard, says of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HeatDemand {
    Asked,
    /// Nothing that began after the entry's last fact.
    Unknown,
    /// That it is asked for, but too long ago to rest on.
    LongAgo,
    Superseded,
}

/// What is to be done with an entry now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NextAction {
    Send,
    /// Not before so long.
    Wait(Duration),
    /// Not before the metadata was read afresh.
    NeedPoll,
    Superseded,
    Expired,
}

/// How an entry left the outbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// Heat accepted it.
    Delivered,
    /// Heat refused it for good.
    Undeliverable(String),
    /// Heat asks for something newer.
    Superseded,
    /// It grew too old.
    Expired,
    /// Its file is gone, or cannot be understood: somebody deleted it, or a disk lost it.
    Unreadable,
}

/// What is stored at a place: none where nothing is, or where it is not the signal of this place, whole. Such a file is quarantined.
fn read_stored(state: &Tree, path: &Path, report: &Report) -> Result<Option<QueuedSignal>> {
    let Some(stored) = state.read_state::<QueuedSignal>(path, report, Code::OutboxEntryCorrupt)? else { return Ok(None) };
    if path_of(&stored.key) == path && stored.body.is_object() {
        return Ok(Some(stored));
    }
    state.quarantine(path, report, Code::OutboxEntryCorrupt, &Error::permanent("it is not the signal whose name it has"))?;
    Ok(None)
}

/// The queue. Shared by the loop and the sending side of one thread.
#[derive(Debug)]
pub struct Outbox {
    state: Arc<Tree>,
    sender: Sender,
    clock: Clock,
    report: Report,
    entries: RefCell<BTreeMap<String, QueuedSignal>>,
    /// Signals of deployments that Heat no longer lists, kept in case one is listed again.
    parked: RefCell<BTreeMap<String, QueuedSignal>>,
    /// Runs since the outbox was opened.
    watch: Stopwatch,
    /// Limits the bodies in memory: one permit per KiB.
    memory: Semaphore,
    /// What Heat was heard to say last. Each request of a signal asks again before it leaves.
    received: Arc<Mutex<MetadataView>>,
    /// Where a signal is on its way to.
    busy: RefCell<BTreeSet<String>>,
}

/// What left the outbox, each with the reason (delivered, refused, superseded, expired, unreadable), and whether all of that could be written to the disk.
pub type Departures = (Vec<(QueuedSignal, Disposition)>, Result<()>);

/// A signal on its way.
pub type Sending = Pin<Box<dyn Future<Output = Departures>>>;

/// One signal per place at a time.
struct HostGuard {
    outbox: Rc<Outbox>,
    place: String,
}

impl Drop for HostGuard {
    fn drop(&mut self) {
        self.outbox.busy.borrow_mut().remove(&self.place);
    }
}

impl Outbox {
    /// Reads what is stored. A corrupt entry is quarantined and logged, never deleted.
    ///
    /// # Errors
    /// If the directory cannot be read or made.
    pub fn open(state: Arc<Tree>, sender: Sender, clock: Clock, report: Report) -> Result<Self> {
        state.create_dir(Path::new(DIRECTORY), Attributes::mode(0o700))?;
        let (mut entries, mut parked) = (BTreeMap::new(), BTreeMap::new());
        for name in state.list(Path::new(DIRECTORY))? {
            let path = Path::new(DIRECTORY).join(&name);
            if path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            if let Some(mut entry) = read_stored(&state, &path, &report)? {
                entry.bytes = state.facts(&path)?.map_or(0, |facts| usize::try_from(facts.size).unwrap_or(usize::MAX));
                entry.body = Value::Null;
                entry.resume_pause(clock.now());
                let place = if entry.parked { &mut parked } else { &mut entries };
                place.insert(entry.key.clone(), entry);
            }
        }
        let watch = clock.start();
        let (entries, parked) = (RefCell::new(entries), RefCell::new(parked));
        let memory = Semaphore::new(SIGNALS_IN_FLIGHT / 1024);
        Ok(Self {
            state,
            sender,
            clock,
            report,
            entries,
            parked,
            watch,
            memory,
            received: Arc::default(),
            busy: RefCell::default(),
        })
    }

    /// Takes in what the newest metadata says. No further request leaves of a signal that it does not ask for.
    pub fn receive(&self, view: MetadataView) {
        *self.view() = view;
    }

    fn view(&self) -> MutexGuard<'_, MetadataView> {
        self.received.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The waiting signals, oldest first, for callers that only read. An unreadable one is left out.
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub fn inspect(state: &Tree) -> Result<Vec<QueuedSignal>> {
        let names = state.list(Path::new(DIRECTORY))?;
        // What was quarantined, or was on its way to being written, is no signal.
        let paths = names.iter().map(|name| Path::new(DIRECTORY).join(name));
        let stored = paths.filter(|path| path.extension().is_some_and(|end| end == "json"));
        let read = |path: PathBuf| Some(QueuedSignal { body: Value::Null, ..state.read_json(&path).ok().flatten()? });
        let mut entries: Vec<QueuedSignal> = stored.filter_map(read).collect();
        entries.retain(|entry| !entry.parked);
        entries.sort_unstable_by(|one, other| (one.created, &one.key).cmp(&(other.created, &other.key)));
        Ok(entries)
    }

    /// Stores a signal, synced, before anything is sent. One of the same key that is stored already stays as it is.
    ///
    /// # Errors
    /// If it cannot be written or the outbox is full.
    pub fn put(&self, entry: QueuedSignal) -> Result<()> {
        self.take_in(entry, true)
    }

    /// The same for the last word on what cannot be recorded, e.g. on a disk that is full: it is held in memory, with its body, and stored once
    /// that succeeds. Whoever gives it bounds how many there are.
    ///
    /// # Errors
    /// If the outbox is full.
    pub fn put_unstored(&self, entry: QueuedSignal) -> Result<()> {
        self.take_in(entry, false)
    }

    fn take_in(&self, mut entry: QueuedSignal, is_stored: bool) -> Result<()> {
        let known = self.entries.borrow().get(&entry.key).cloned();
        if let Some(mut known) = known {
            if is_stored && known.body.is_object() {
                let body = known.body.clone();
                self.store(&mut known, body)?;
                self.entries.borrow_mut().insert(known.key.clone(), known);
            }
            return Ok(());
        }
        let body = entry.body.take();
        self.check_space(1, body.to_string().len())?;
        entry.aged_at_ms = self.watch.millis();
        entry.since = self.clock.moment();
        if is_stored {
            self.store(&mut entry, body)?;
        } else {
            entry.body = body;
        }
        let taken = if is_stored { "was stored" } else { "is sent from memory: it cannot be stored" };
        self.report.emit(entry.event(Code::SignalQueued, format!("a signal to {} {taken}", entry.destination.shown())));
        if let Some(age) = self.sender.age(&entry.destination).filter(|_| self.sender.is_old(&entry.destination)) {
            let note = format!("the signal URL was made {} ago", crate::report::text::duration(age));
            self.report.emit(entry.event(Code::SignalUrlOld, note));
        }
        self.parked.borrow_mut().remove(&entry.key);
        self.entries.borrow_mut().insert(entry.key.clone(), entry);
        Ok(())
    }

    /// Checks that so many more signals, with bodies of so many bytes, can be stored.
    ///
    /// # Errors
    /// If they cannot.
    pub fn check_space(&self, count: usize, size: usize) -> Result<()> {
        let (waiting, used) = (self.entries.borrow().len(), self.bytes());
        if waiting + count <= BOUND && used + size <= OUTBOX_DISK {
            return Ok(());
        }
        Err(Error::transient(format!("{waiting} signals of {} KiB are already waiting", used / 1024))
            .rule("the outbox may use a bounded part of the disk: `heat-node-agent status --json`, budgets")
            .remedy("find out why Heat accepts none: heat-node-agent status"))
    }

    /// Takes parked signals back of deployments that Heat asks for again, and forgets what grew too old.
    ///
    /// # Errors
    /// If a file cannot be written or removed.
    pub fn take_back(&self) -> (Vec<(QueuedSignal, Disposition)>, Result<()>) {
        let view = self.view();
        let parked: Vec<QueuedSignal> = self.parked.borrow().values().cloned().collect();
        let (mut gone, mut done) = (Vec::new(), Ok(()));
        for entry in parked {
            // Those behind one that fails have their turn.
            done = done.and(self.take_back_one(entry, &view, &mut gone));
        }
        (gone, done)
    }

    /// The same with one of them.
    fn take_back_one(
        &self,
        mut entry: QueuedSignal,
        view: &MetadataView,
        gone: &mut Vec<(QueuedSignal, Disposition)>,
    ) -> Result<()> {
        let asked = |about: &SignalSubject| view.asks_for(&about.id, about.resource.as_ref());
        if self.age(&entry) > LIFE {
            self.parked.borrow_mut().remove(&entry.key);
            return self.leave(entry, Disposition::Expired, gone);
        } else if view.listed.is_some() && view.freshness.covers(entry.since) && entry.about.as_ref().is_some_and(asked) {
            let Some(body) = self.body(&entry)? else {
                self.parked.borrow_mut().remove(&entry.key);
                return self.leave(entry, Disposition::Unreadable, gone);
            };
            (entry.parked, entry.since) = (false, self.clock.moment());
            self.store(&mut entry, body)?;
            let line = format!("the signal to {} is sent after all: Heat lists its deployment again", entry.destination.shown());
            self.report.emit(entry.event(Code::SignalQueued, line));
            self.entries.borrow_mut().insert(entry.key.clone(), entry.clone());
        } else {
            return Ok(());
        }
        self.parked.borrow_mut().remove(&entry.key);
        Ok(())
    }

    /// Writes an entry with its body, which is not kept in memory but where it cannot be written.
    fn store(&self, entry: &mut QueuedSignal, body: Value) -> Result<()> {
        let text = serde_json::to_vec(&QueuedSignal { body, ..entry.clone() }).map_err(Error::permanent)?;
        entry.bytes = text.len();
        self.state.write(&path_of(&entry.key), &text, Attributes::mode(0o600))?;
        entry.body = Value::Null;
        Ok(())
    }

    /// What is sent; none where it is gone, or another's lies in its place. It is read when it is sent: 500 bodies would be more than the
    /// agent may hold.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn body(&self, entry: &QueuedSignal) -> Result<Option<Value>> {
        if entry.body.is_object() {
            return Ok(Some(entry.body.clone()));
        }
        Ok(read_stored(&self.state, &path_of(&entry.key), &self.report)?.map(|stored| stored.body))
    }

    /// Bytes on disk of all that waits.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.entries.borrow().values().chain(self.parked.borrow().values()).map(|entry| entry.bytes).sum()
    }

    /// Deletes what waits or is parked for a deployment that is to run again or to be forgotten. Not while signals are on their way.
    ///
    /// # Errors
    /// If a file cannot be removed.
    pub fn discard_for(&self, deployment: &str) -> Result<()> {
        let speaks_of = |entry: &QueuedSignal| entry.about.as_ref().is_some_and(|about| about.id == deployment);
        let kept: Vec<QueuedSignal> = self.parked.borrow().values().cloned().collect();
        for entry in self.waiting().into_iter().chain(kept).filter(speaks_of) {
            self.state.remove(&path_of(&entry.key))?;
            self.entries.borrow_mut().remove(&entry.key);
            self.parked.borrow_mut().remove(&entry.key);
        }
        Ok(())
    }

    /// Whether a signal of this key waits.
    #[must_use]
    pub fn has(&self, key: &str) -> bool {
        self.entries.borrow().contains_key(key)
    }

    /// Whether a signal of this key is kept for a deployment that may be asked for again.
    #[must_use]
    pub fn keeps(&self, key: &str) -> bool {
        self.parked.borrow().contains_key(key)
    }

    /// Whether no signal waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.borrow().is_empty()
    }

    /// The waiting signals, oldest first.
    #[must_use]
    pub fn waiting(&self) -> Vec<QueuedSignal> {
        let mut all: Vec<_> = self.entries.borrow().values().cloned().collect();
        all.sort_unstable_by(|one, other| (one.created, &one.key).cmp(&(other.created, &other.key)));
        all
    }

    /// By order of the operator what waits for its next try is sent as soon as a poll has answered. What is too much for Heat is not sent
    /// more often by this: an order is one try.
    pub fn retry_now(&self) {
        for entry in self.entries.borrow_mut().values_mut().filter(|entry| entry.tries > 0) {
            entry.hold(Duration::ZERO, &self.clock);
        }
    }

    /// How long until something may be sent next; `None` while nothing waits or only a poll can help.
    #[must_use]
    pub fn due(&self) -> Option<Duration> {
        let view = self.view();
        let busy = self.busy.borrow();
        self.entries
            .borrow()
            .values()
            .filter(|entry| busy.is_empty() || !busy.contains(&entry.destination.place()))
            .filter_map(|entry| match self.next_action(entry, &view) {
                NextAction::Wait(left) => Some(left),
                NextAction::NeedPoll => None,
                NextAction::Send | NextAction::Superseded | NextAction::Expired => Some(Duration::ZERO),
            })
            .min()
    }

    /// Whether a signal that was never sent is held back for a moment.
    #[must_use]
    pub fn holds_a_first_try(&self) -> bool {
        let is_held = |entry: &QueuedSignal| entry.tries == 0 && !entry.pause.left(&self.clock).is_zero();
        self.entries.borrow().values().any(is_held)
    }

    /// What the metadata must be read afresh for: the last fact among the signals that wait for nothing else. Whose place is busy
    /// waits for that.
    #[must_use]
    pub fn needs_answer(&self) -> Option<Moment> {
        let view = self.view();
        let (entries, busy) = (self.entries.borrow(), self.busy.borrow());
        entries
            .values()
            .filter(|entry| busy.is_empty() || !busy.contains(&entry.destination.place()))
            .filter(|entry| self.next_action(entry, &view) == NextAction::NeedPoll)
            .filter_map(|entry| view.freshness_of(&entry.about.as_ref()?.id).awaits(entry.since, &self.clock))
            .max()
    }

    /// Begins to send what is due, one signal a place: a place that does not answer holds up only itself. Each of these ends with
    /// what left the outbox, and releases its place when it is dropped.
    ///
    /// # Errors
    /// Each, if the outbox cannot be written.
    pub fn start(self: &Rc<Self>) -> Vec<Sending> {
        let mut places: BTreeMap<String, Vec<QueuedSignal>> = BTreeMap::new();
        for entry in self.waiting() {
            places.entry(entry.destination.place()).or_default().push(entry);
        }
        let is_due =
            |entry: &QueuedSignal| !matches!(self.next_action(entry, &self.view()), NextAction::Wait(_) | NextAction::NeedPoll);
        places.retain(|place, queue| !self.busy.borrow().contains(place) && queue.iter().any(is_due));
        let begin = |(place, queue): (String, Vec<QueuedSignal>)| {
            self.busy.borrow_mut().insert(place.clone());
            let host_guard = HostGuard { outbox: Rc::clone(self), place };
            Box::pin(async move { host_guard.outbox.send_first(queue).await }) as Sending
        };
        places.into_iter().map(begin).collect()
    }

    /// Sends the first of a place that is due, and drops what is not wanted before it: by the next one the metadata may say
    /// something newer.
    async fn send_first(&self, queue: Vec<QueuedSignal>) -> Departures {
        let mut gone = Vec::new();
        let done = self.send_first_of(queue, &mut gone).await;
        // What left the outbox has left it, whatever happened to the rest.
        (gone, done)
    }

    async fn send_first_of(&self, queue: Vec<QueuedSignal>, gone: &mut Vec<(QueuedSignal, Disposition)>) -> Result<()> {
        for mut entry in queue {
            let step = self.next_action(&entry, &self.view());
            match step {
                NextAction::Wait(_) | NextAction::NeedPoll => {}
                NextAction::Superseded => self.leave(entry, Disposition::Superseded, gone)?,
                NextAction::Expired => self.leave(entry, Disposition::Expired, gone)?,
                // What has left so far is recorded before anything else is sent: until then it is neither in the outbox nor in the records.
                NextAction::Send if !gone.is_empty() => return Ok(()),
                NextAction::Send => {
                    // As many at a time as they and their answers have room in memory. It is never closed.
                    let _permit = self.memory.acquire_many(kib(&entry)).await.map_err(Error::transient)?;
                    // What was heard may be too old by now.
                    if self.next_action(&entry, &self.view()) != NextAction::Send {
                        return Ok(());
                    }
                    // In memory first: on a full disk too the next try keeps its pause and asks for a fresh poll.
                    let keep = |entry: &QueuedSignal| self.entries.borrow_mut().insert(entry.key.clone(), entry.clone());
                    let body = match self.body(&entry) {
                        Ok(Some(body)) => body,
                        Ok(None) => return self.leave(entry, Disposition::Unreadable, gone),
                        Err(error) => {
                            // Those behind it have their turn while it waits.
                            entry.tries += 1;
                            entry.hold(pause_after(entry.tries), &self.clock);
                            keep(&entry);
                            return Err(error);
                        }
                    };
                    if let Some(disposition) = self.try_once(&mut entry, &body).await {
                        return self.leave(entry, disposition, gone);
                    }
                    keep(&entry);
                    self.store(&mut entry, body)?;
                    // One that was held in memory is on disk alone now.
                    keep(&entry);
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// One try. It may take several requests, a token first, another way after a refusal: each of them asks before it leaves
    /// whether Heat, as far as it was heard by then, still wants the signal.
    async fn try_once(&self, entry: &mut QueuedSignal, body: &Value) -> Option<Disposition> {
        let (answer, way) = self.send(entry, body).await;
        let verdict = judge(&answer);
        let heat_demand = Self::heat_demand(entry, &self.view(), &self.clock);
        if matches!(verdict, SignalVerdict::Retry(_)) && heat_demand == HeatDemand::Superseded {
            return Some(Disposition::Superseded);
        }
        let keystone_answers = self.view().asked_keystone;
        let disposition = self.apply_answer(entry, &answer, verdict, keystone_answers);
        if way != DeliveryMethod::AsGiven && disposition == Some(Disposition::Delivered) {
            let note = format!("the signal to {} was sent {}", entry.destination.shown(), way.shown());
            self.report.emit(entry.event(Code::SignalFallback, note));
        }
        if disposition.is_none() {
            let code = if verdict == SignalVerdict::Refused { Code::SignalRefused } else { Code::SignalRetry };
            self.report_retry(entry, code, answer.remedy);
        }
        disposition
    }

    async fn send(&self, entry: &QueuedSignal, body: &Value) -> (SignalResponse, DeliveryMethod) {
        let own = self.view().own.clone();
        let (received, asked, clock) = (Arc::clone(&self.received), entry.clone(), self.clock.clone());
        let guard: SendGuard = Arc::new(move || {
            let heat_demand = Self::heat_demand(&asked, &received.lock().unwrap_or_else(PoisonError::into_inner), &clock);
            let why = match heat_demand {
                HeatDemand::Asked => return Ok(()),
                HeatDemand::Superseded => "Heat asks for something newer by now".to_owned(),
                HeatDemand::Unknown => "no answer of Heat says yet which deployments it asks for now".to_owned(),
                HeatDemand::LongAgo => {
                    let lasts = ANSWER_VALIDITY.as_secs();
                    format!("it could not leave within {lasts} s of reading the metadata, which is read again first")
                }
            };
            Err(Error::transient(why))
        });
        self.sender.send(&entry.destination, body, &own, Some(guard)).await
    }

    /// How long the agent has had it, running.
    fn age(&self, entry: &QueuedSignal) -> Duration {
        Duration::from_millis(entry.age_ms + self.watch.millis().saturating_sub(entry.aged_at_ms))
    }

    fn next_action(&self, entry: &QueuedSignal, view: &MetadataView) -> NextAction {
        if self.age(entry) > LIFE {
            return NextAction::Expired;
        }
        let heat_demand = Self::heat_demand(entry, view, &self.clock);
        if heat_demand == HeatDemand::Superseded {
            return NextAction::Superseded;
        }
        let left = entry.pause.left(&self.clock);
        if !left.is_zero() {
            return NextAction::Wait(left);
        }
        if heat_demand == HeatDemand::Asked { NextAction::Send } else { NextAction::NeedPoll }
    }

    fn heat_demand(entry: &QueuedSignal, view: &MetadataView, clock: &Clock) -> HeatDemand {
        // What is not about a deployment rests on nothing that Heat says of one.
        let Some(about) = &entry.about else { return HeatDemand::Asked };
        let freshness = view.freshness_of(&about.id);
        if !freshness.covers(entry.since) {
            return HeatDemand::Unknown;
        }
        match view.asks_for(&about.id, about.resource.as_ref()) {
            false => HeatDemand::Superseded,
            true if freshness.awaits(entry.since, clock).is_some() => HeatDemand::LongAgo,
            true => HeatDemand::Asked,
        }
    }

    /// Updates the entry by an answer; its fate if it is finished.
    /// `keystone_answers`: whether something shows that Keystone answered lately.
    fn apply_answer(
        &self,
        entry: &mut QueuedSignal,
        answer: &SignalResponse,
        verdict: SignalVerdict,
        keystone_answers: bool,
    ) -> Option<Disposition> {
        let (now, age) = (self.clock.now(), self.age(entry));
        entry.age_ms = millis(age);
        entry.aged_at_ms = self.watch.millis();
        entry.tries += 1;
        (entry.last_try, entry.since) = (Some(now), self.clock.moment());
        (entry.cause, entry.remedy) = (Some(answer.cause.clone()), answer.remedy.clone());
        let pause = match verdict {
            SignalVerdict::Delivered => return Some(Disposition::Delivered),
            SignalVerdict::Refused if !keystone_answers && Sender::is_doubtful(&entry.destination, answer) => {
                entry.cause = Some(format!("{}; {DOUBT}", answer.cause));
                REFUSAL_SPAN / (REFUSALS - 1)
            }
            SignalVerdict::Refused => {
                entry.refusals += 1;
                let first = Duration::from_millis(*entry.first_refusal_ms.get_or_insert(entry.age_ms));
                if entry.refusals >= REFUSALS && age.saturating_sub(first) >= REFUSAL_SPAN {
                    return Some(Disposition::Undeliverable(answer.cause.clone()));
                }
                REFUSAL_SPAN / (REFUSALS - 1)
            }
            SignalVerdict::Retry(asked) => {
                let pause = spread(pause_after(entry.tries), random());
                // Spread as well: a fleet hears the same answer at the same moment.
                pause.max(asked.unwrap_or_default().min(LONGEST_ASKED).mul_f64(1.0 + 0.1 * random()))
            }
        };
        entry.hold(pause, &self.clock);
        None
    }

    fn leave(&self, entry: QueuedSignal, disposition: Disposition, gone: &mut Vec<(QueuedSignal, Disposition)>) -> Result<()> {
        // Out of memory first: a file that cannot be removed is sent again by the next run of the agent, not by this one.
        self.entries.borrow_mut().remove(&entry.key);
        let removed = self.keep_or_remove(&entry, &disposition);
        let (to, service) = (entry.destination.shown(), entry.destination.service());
        let event = match &disposition {
            Disposition::Delivered => entry.event(Code::SignalDelivered, format!("{service} accepted the signal ({to})")),
            Disposition::Undeliverable(cause) => entry
                .event(Code::SignalUndeliverable, format!("{service} permanently refused the signal ({to})"))
                .cause(cause.clone()),
            Disposition::Superseded => {
                entry.event(Code::SignalSuperseded, format!("the signal to {to} was dropped: Heat wants something newer"))
            }
            Disposition::Expired => {
                entry.event(Code::SignalExpired, format!("the signal to {to} was dropped: it is older than 7 days"))
            }
            Disposition::Unreadable => {
                entry.event(Code::OutboxEntryCorrupt, format!("the stored signal to {to} is gone from the disk, or unreadable"))
            }
        };
        self.report.emit(event);
        gone.push((entry, disposition));
        removed
    }

    /// A result can be made again from the deployment's record, a wait condition's signal cannot: it is kept where Heat may ask
    /// for the deployment again.
    fn keep_or_remove(&self, entry: &QueuedSignal, disposition: &Disposition) -> Result<()> {
        let path = path_of(&entry.key);
        if *disposition != Disposition::Superseded || entry.about.as_ref().is_none_or(|about| about.result) {
            return self.state.remove(&path).map(drop);
        }
        let body = self.body(entry)?.ok_or_else(|| Error::permanent("the stored signal is gone from the disk"))?;
        let mut kept = QueuedSignal { parked: true, since: self.clock.moment(), ..entry.clone() };
        // Kept in memory even where that fails: its file is still what it was then.
        let stored = self.store(&mut kept, body);
        let mut parked = self.parked.borrow_mut();
        parked.insert(kept.key.clone(), kept);
        while parked.len() > PARKED {
            let Some(oldest) = parked.values().min_by_key(|entry| entry.created).map(|entry| entry.key.clone()) else { break };
            if let Err(error) = self.state.remove(&path_of(&oldest)) {
                return stored.and(Err(error));
            }
            if let Some(gone) = parked.remove(&oldest) {
                let line = format!("the signal to {} was dropped", gone.destination.shown());
                let cause =
                    format!("Heat does not list its deployment, and {PARKED} newer ones are kept should it list theirs again");
                self.report.emit(gone.event(Code::SignalSuperseded, line).cause(cause));
            }
        }
        stored
    }

    fn report_retry(&self, entry: &QueuedSignal, code: Code, remedy: Option<Remedy>) {
        let mut event = entry
            .event(code, format!("the signal was not accepted ({})", entry.destination.shown()))
            .next_try(entry.pause.left(&self.clock));
        if let Some(cause) = &entry.cause {
            event = event.cause(cause.clone());
        }
        let remedy = remedy.unwrap_or_else(|| code.remedy());
        self.report.emit(event.remedy(FollowUp::TriesAgain.of(&remedy)));
    }
}

/// Why a refusal is not final.
const DOUBT: &str =
    "a Keystone failure looks the same, and no metadata source shows that Keystone answers: the agent retries for 7 days";

/// The pause after this many tries, at least one.
fn pause_after(tries: u32) -> Duration {
    PAUSES.after(tries.saturating_sub(1))
}

/// The memory that a request takes while it is sent, in KiB of [`SIGNALS_IN_FLIGHT`].
fn kib(entry: &QueuedSignal) -> u32 {
    u32::try_from((entry.bytes + REQUEST_IN_FLIGHT).min(SIGNALS_IN_FLIGHT) / 1024).unwrap_or(u32::MAX)
}

fn path_of(key: &str) -> PathBuf {
    Path::new(DIRECTORY).join(format!("{}.json", key_of(key)))
}

#[cfg(test)]
#[path = "outbox_tests.rs"]
mod tests;
