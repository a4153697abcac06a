//! Signals that Heat does not have yet (design.md 4, Outbox): stored before the first try, kept until
//! Heat takes them, Heat asks for something newer, or they are too old to mean anything.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::answer::{Answer, REFUSAL_SPAN, REFUSALS, Verdict, judge};
use super::destination::Destination;
use super::send::{Own, Sender, Way};
use crate::clock::{Clock, Stopwatch, Timestamp};
use crate::error::{Error, Result};
use crate::files::{Attributes, Tree};
use crate::order::sort_by;
use crate::programs::key_of;
use crate::report::{Code, Event, Phase, Report};

const DIRECTORY: &str = "outbox";
/// No signal is kept longer.
const LIFE: Duration = Duration::from_hours(7 * 24);
/// How many signals may wait.
const BOUND: usize = 500;
/// Pauses between tries grow from the first to the second.
const PAUSES: (Duration, Duration) = (Duration::from_secs(2), Duration::from_mins(5));

/// The deployment that a signal speaks of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct About {
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
pub struct Entry {
    /// Format of this file.
    pub schema: u32,
    /// What it is the signal of: the same key is stored once.
    pub key: String,
    /// The deployment behind it.
    pub about: Option<About>,
    /// Where it goes.
    pub destination: Destination,
    /// What is sent.
    pub body: Value,
    /// When it was stored.
    pub created: Timestamp,
    /// How often it was sent.
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
    /// When by the outbox' own watch that was.
    #[serde(skip)]
    aged_at_ms: u64,
    /// When it was last sent.
    #[serde(default)]
    pub last_try: Option<Timestamp>,
    /// Not before this.
    #[serde(default)]
    pub not_before: Timestamp,
    /// What answered last.
    #[serde(default)]
    pub cause: Option<String>,
}

impl Entry {
    /// A signal that has not been sent yet.
    #[must_use]
    pub fn new(key: String, about: Option<About>, destination: Destination, body: Value, now: Timestamp) -> Self {
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
            last_try: None,
            not_before: Timestamp(0),
            cause: None,
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

/// What the newest metadata says, as far as signals care.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// Ids of the listed deployments; `None`: no authoritative answer in this run of the agent.
    pub listed: Option<BTreeSet<String>>,
    /// The newest deployment id for each stack and resource.
    pub newest: BTreeMap<(String, String), String>,
    /// When an authoritative source last answered in this run of the agent.
    pub answered: Option<Timestamp>,
    /// Whether there is a source that could answer.
    pub expected: bool,
    /// What the server itself may speak to Heat with.
    pub own: Own,
}

/// What is to be done with an entry now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Send,
    /// Not before this time.
    Wait(Timestamp),
    /// Not before the metadata was read afresh.
    NeedPoll,
    Superseded,
    Expired,
}

/// How an entry left the outbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Heat took it.
    Delivered,
    /// Heat refused it for good.
    Undeliverable(String),
    /// Heat asks for something newer.
    Superseded,
    /// It grew too old.
    Expired,
}

/// The queue. Shared by the loop and the sending side of one thread.
#[derive(Debug)]
pub struct Outbox {
    state: Arc<Tree>,
    sender: Sender,
    clock: Clock,
    report: Report,
    entries: RefCell<BTreeMap<String, Entry>>,
    /// Runs since the outbox was opened.
    watch: Stopwatch,
}

/// What left the outbox, and whether all of it could be kept on disk.
pub type Sent = (Vec<(Entry, Fate)>, Result<()>);

impl Outbox {
    /// Reads what is stored. A corrupt entry is put aside, never deleted, and said.
    ///
    /// # Errors
    /// If the directory cannot be read or made.
    pub fn open(state: Arc<Tree>, sender: Sender, clock: Clock, report: Report) -> Result<Self> {
        state.create_dir(Path::new(DIRECTORY), Attributes::mode(0o700))?;
        let mut entries = BTreeMap::new();
        for name in state.list(Path::new(DIRECTORY))? {
            let path = Path::new(DIRECTORY).join(&name);
            if path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            if let Some(entry) = state.read_state::<Entry>(&path, &report, Code::OutboxEntryCorrupt)? {
                entries.insert(entry.key.clone(), entry);
            }
        }
        let watch = clock.start();
        Ok(Self { state, sender, clock, report, entries: RefCell::new(entries), watch })
    }

    /// The waiting signals, oldest first, for who only looks and holds no lock. An unreadable one is left out.
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub fn look(state: &Tree) -> Result<Vec<Entry>> {
        let names = state.list(Path::new(DIRECTORY))?;
        // What was put aside, or was on its way to being written, is no signal.
        let paths = names.iter().map(|name| Path::new(DIRECTORY).join(name));
        let stored = paths.filter(|path| path.extension().is_some_and(|end| end == "json"));
        let mut entries: Vec<Entry> = stored.filter_map(|path| state.read_json(&path).ok().flatten()).collect();
        sort_by(&mut entries, |one, other| (one.created, &one.key).cmp(&(other.created, &other.key)));
        Ok(entries)
    }

    /// Stores a signal, synced, before anything is sent. One of the same key that is stored already stays as it is.
    ///
    /// # Errors
    /// If it cannot be written or the outbox is full.
    pub fn put(&self, mut entry: Entry) -> Result<()> {
        if self.entries.borrow().contains_key(&entry.key) {
            return Ok(());
        }
        if self.entries.borrow().len() >= BOUND {
            return Err(Error::transient(format!("{BOUND} signals are waiting already"))
                .remedy("look why Heat takes none: heat-node-agent status"));
        }
        entry.aged_at_ms = self.watch.millis();
        self.state.write_json(&path_of(&entry.key), &entry, Attributes::mode(0o600))?;
        self.report.emit(entry.event(Code::SignalQueued, format!("a signal to {} is stored", entry.destination.shown())));
        if let Some(age) = self.sender.age(&entry.destination).filter(|_| self.sender.is_old(&entry.destination)) {
            let note = format!("the signal URL was made {} ago", crate::report::text::duration(age));
            self.report.emit(entry.event(Code::SignalUrlOld, note));
        }
        self.entries.borrow_mut().insert(entry.key.clone(), entry);
        Ok(())
    }

    /// Drops what waits about a deployment that is to run again or to be forgotten. Not while signals are on their way.
    ///
    /// # Errors
    /// If a file cannot be removed.
    pub fn withdraw(&self, deployment: &str) -> Result<()> {
        let speaks_of = |entry: &Entry| entry.about.as_ref().is_some_and(|about| about.id == deployment);
        for entry in self.waiting().into_iter().filter(speaks_of) {
            self.state.remove(&path_of(&entry.key))?;
            self.entries.borrow_mut().remove(&entry.key);
        }
        Ok(())
    }

    /// Whether a signal of this key waits.
    #[must_use]
    pub fn has(&self, key: &str) -> bool {
        self.entries.borrow().contains_key(key)
    }

    /// Whether no signal waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.borrow().is_empty()
    }

    /// The waiting signals, oldest first.
    #[must_use]
    pub fn waiting(&self) -> Vec<Entry> {
        let mut all: Vec<_> = self.entries.borrow().values().cloned().collect();
        sort_by(&mut all, |one, other| (one.created, &one.key).cmp(&(other.created, &other.key)));
        all
    }

    /// When something may be sent next; `None` while nothing waits or only a poll can help.
    #[must_use]
    pub fn due(&self, view: &View) -> Option<Timestamp> {
        let now = self.clock.now();
        self.entries
            .borrow()
            .values()
            .filter_map(|entry| match self.step(entry, view, now) {
                Step::Wait(until) => Some(until),
                Step::NeedPoll => None,
                Step::Send | Step::Superseded | Step::Expired => Some(now),
            })
            .min()
    }

    /// Whether some signal waits for nothing but a fresh look at the metadata.
    #[must_use]
    pub fn needs_poll(&self, view: &View) -> bool {
        let now = self.clock.now();
        self.entries.borrow().values().any(|entry| self.step(entry, view, now) == Step::NeedPoll && entry.not_before <= now)
    }

    /// Sends what is due: one queue a place, side by side; a place that does not answer holds up only itself.
    ///
    /// Gives back what left the outbox.
    ///
    /// # Errors
    /// If the outbox cannot be written.
    pub async fn send_due(&self, view: &View) -> Sent {
        let mut places: BTreeMap<String, Vec<Entry>> = BTreeMap::new();
        for entry in self.waiting() {
            places.entry(entry.destination.place()).or_default().push(entry);
        }
        let gone = RefCell::new(Vec::new());
        let queues = places.into_values().map(|queue| self.send_queue(queue, view, &gone));
        // What left the outbox has left it, whatever happened to the rest.
        let all: Result<()> = futures_util::future::join_all(queues).await.into_iter().collect();
        (gone.into_inner(), all)
    }

    async fn send_queue(&self, queue: Vec<Entry>, view: &View, gone: &RefCell<Vec<(Entry, Fate)>>) -> Result<()> {
        for mut entry in queue {
            match self.step(&entry, view, self.clock.now()) {
                Step::Wait(_) | Step::NeedPoll => {}
                Step::Superseded => self.leave(entry, Fate::Superseded, gone)?,
                Step::Expired => self.leave(entry, Fate::Expired, gone)?,
                Step::Send => {
                    let (answer, way) = self.sender.send(&entry.destination, &entry.body, &view.own).await;
                    let fate = self.after(&mut entry, &answer, judge(&answer));
                    if way != Way::AsGiven && fate == Some(Fate::Delivered) {
                        let note = format!("the signal for {} went {}", entry.destination.shown(), way.shown());
                        self.report.emit(entry.event(Code::SignalOtherWay, note));
                    }
                    if let Some(fate) = fate {
                        self.leave(entry, fate, gone)?;
                    } else {
                        self.say_retry(&entry, answer.remedy);
                        // In memory first: on a full disk too the next try keeps its pause and asks for a fresh poll.
                        self.entries.borrow_mut().insert(entry.key.clone(), entry.clone());
                        self.state.write_json(&path_of(&entry.key), &entry, Attributes::mode(0o600))?;
                    }
                    // One a place and view: by the next one the metadata may say something newer.
                    break;
                }
            }
        }
        Ok(())
    }

    /// How long the agent has had it, running.
    fn age(&self, entry: &Entry) -> Duration {
        Duration::from_millis(entry.age_ms + self.watch.millis().saturating_sub(entry.aged_at_ms))
    }

    fn step(&self, entry: &Entry, view: &View, now: Timestamp) -> Step {
        if self.age(entry) > LIFE {
            return Step::Expired;
        }
        if let (Some(about), Some(listed)) = (&entry.about, &view.listed) {
            let replaced =
                about.resource.as_ref().and_then(|resource| view.newest.get(resource)).is_some_and(|newest| *newest != about.id);
            if replaced || !listed.contains(&about.id) {
                return Step::Superseded;
            }
        }
        // No pause is longer; a longer one is left by a clock that was set back.
        if entry.not_before > now && entry.not_before.since(now) <= REFUSAL_SPAN {
            return Step::Wait(entry.not_before);
        }
        // A first try too needs one answer in this run: what it speaks of may be of an earlier run, the list of a cache.
        // A last try in the future is one before the clock was set back; an answer in the future may be older than a try.
        let last = entry.last_try.filter(|last| *last <= now).unwrap_or_default();
        let stale = view.answered.is_none_or(|answered| answered <= last || answered > now);
        if stale && view.expected && entry.about.is_some() {
            return Step::NeedPoll;
        }
        Step::Send
    }

    /// Takes the answer into the entry; a fate where the entry is done with.
    fn after(&self, entry: &mut Entry, answer: &Answer, verdict: Verdict) -> Option<Fate> {
        let (now, age) = (self.clock.now(), self.age(entry));
        entry.age_ms = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
        entry.aged_at_ms = self.watch.millis();
        entry.tries += 1;
        entry.last_try = Some(now);
        entry.cause = Some(answer.cause.clone());
        let pause = match verdict {
            Verdict::Delivered => return Some(Fate::Delivered),
            Verdict::Refused => {
                entry.refusals += 1;
                let first = Duration::from_millis(*entry.first_refusal_ms.get_or_insert(entry.age_ms));
                if entry.refusals >= REFUSALS && age.saturating_sub(first) >= REFUSAL_SPAN {
                    return Some(Fate::Undeliverable(answer.cause.clone()));
                }
                REFUSAL_SPAN / (REFUSALS - 1)
            }
            Verdict::Retry(asked) => {
                let doubled = PAUSES.0.saturating_mul(1 << entry.tries.min(16)).min(PAUSES.1);
                jittered(doubled).max(asked.unwrap_or_default().min(PAUSES.1))
            }
        };
        entry.not_before = now.after(pause);
        None
    }

    fn leave(&self, entry: Entry, fate: Fate, gone: &RefCell<Vec<(Entry, Fate)>>) -> Result<()> {
        // Out of memory first: a file that cannot be removed is sent again by the next run of the agent, not by this one.
        self.entries.borrow_mut().remove(&entry.key);
        let removed = self.state.remove(&path_of(&entry.key)).map(drop);
        let to = entry.destination.shown();
        let event = match &fate {
            Fate::Delivered => entry.event(Code::SignalDelivered, format!("{to} took the signal")),
            Fate::Undeliverable(cause) => {
                entry.event(Code::SignalUndeliverable, format!("{to} refused the signal for good")).cause(cause.clone())
            }
            Fate::Superseded => {
                entry.event(Code::SignalSuperseded, format!("the signal for {to} was dropped: Heat asks for something newer"))
            }
            Fate::Expired => {
                entry.event(Code::SignalExpired, format!("the signal for {to} was dropped: it is older than 7 days"))
            }
        };
        self.report.emit(event);
        gone.borrow_mut().push((entry, fate));
        removed
    }

    fn say_retry(&self, entry: &Entry, remedy: Option<String>) {
        let mut event = entry
            .event(Code::SignalRetry, format!("{} did not take the signal", entry.destination.shown()))
            .next_try(entry.not_before.since(self.clock.now()));
        if let Some(cause) = &entry.cause {
            event = event.cause(cause.clone());
        }
        if let Some(remedy) = remedy {
            event = event.remedy(remedy);
        }
        self.report.emit(event);
    }
}

/// Between half and the whole of a pause, so that a fleet does not come back as one.
fn jittered(pause: Duration) -> Duration {
    use ring::rand::SecureRandom;
    let mut byte = [0_u8; 1];
    // Without randomness the pause is just not spread.
    let spread = ring::rand::SystemRandom::new().fill(&mut byte).map_or(0, |()| byte.first().copied().unwrap_or(0));
    pause / 2 + pause.mul_f64(f64::from(spread) / 510.0)
}

fn path_of(key: &str) -> PathBuf {
    Path::new(DIRECTORY).join(format!("{}.json", key_of(key)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::http::fake::{Fake, ok, status};
    use crate::http::{Http, Tls};
    use crate::openstack::aws_signature::Keys;
    use crate::openstack::keystone::{Credentials, Keystone, Scope};

    fn outbox(dir: &Path, clock: &Clock, report: &Report) -> Outbox {
        let state = Arc::new(Tree::open(dir).unwrap());
        let http = Http::new(Tls::default(), Arc::new(Tree::open(Path::new("/")).unwrap()), clock.clone());
        let sender = Sender::new(http, Keystone::new(clock.clone()), clock.clone());
        Outbox::open(state, sender, clock.clone(), report.clone()).unwrap()
    }

    fn about(id: &str) -> About {
        About { id: id.into(), name: "n".into(), resource: Some(("s/1".into(), "r".into())), result: true }
    }

    fn entry(id: &str, now: Timestamp) -> Entry {
        // Port 9 (discard) of the loopback: nothing listens there.
        let destination = Destination::Url {
            url: "http://127.0.0.1:9/v1/signal/a%3Ab?Timestamp=1970-01-01T00%3A00%3A01Z&Signature=x".into(),
            verb: "POST".into(),
            insecure: false,
        };
        Entry::new(format!("deployment {id}"), Some(about(id)), destination, json!({"deploy_status_code": 0}), now)
    }

    fn view(ids: &[&str], newest: &str, answered: u64) -> View {
        View {
            listed: Some(ids.iter().map(|id| (*id).to_owned()).collect()),
            newest: [(("s/1".to_owned(), "r".to_owned()), newest.to_owned())].into(),
            answered: Some(Timestamp(answered)),
            expected: true,
            own: Own::default(),
        }
    }

    fn refused(code: u16) -> Answer {
        Answer::status(code, None, "")
    }

    #[test]
    fn a_first_try_is_free_a_retry_needs_a_fresh_poll_and_a_stale_result_is_never_sent() {
        let (dir, clock, report) = (tempfile::tempdir().unwrap(), Clock::manual(Timestamp(10_000)), Report::kept());
        let outbox = outbox(dir.path(), &clock, &report);
        let mut entry = entry("a", clock.now());
        let none = View { expected: true, ..View::default() };
        assert_eq!(outbox.step(&entry, &none, clock.now()), Step::NeedPoll, "nobody answered in this run");
        assert_eq!(outbox.step(&entry, &view(&["a"], "a", 9_000), clock.now()), Step::Send);
        assert_eq!(outbox.after(&mut entry, &Answer::none(&Error::transient("refused"), "refused"), Verdict::Retry(None)), None);
        assert!(matches!(outbox.step(&entry, &none, clock.now()), Step::Wait(_)));
        clock.advance(Duration::from_mins(10));
        assert_eq!(outbox.step(&entry, &none, clock.now()), Step::NeedPoll);
        assert_eq!(outbox.step(&entry, &view(&["a"], "a", 9_000), clock.now()), Step::NeedPoll);
        assert_eq!(outbox.step(&entry, &view(&["a"], "a", 20_000), clock.now()), Step::Send);
        assert_eq!(outbox.step(&entry, &view(&["b"], "b", 20_000), clock.now()), Step::Superseded);
        assert_eq!(outbox.step(&entry, &view(&["a", "b"], "b", 20_000), clock.now()), Step::Superseded);
        assert_eq!(outbox.step(&entry, &View::default(), clock.now()), Step::Send, "no source could ever answer");
        clock.advance(LIFE);
        assert_eq!(outbox.step(&entry, &none, clock.now()), Step::Expired);
    }

    #[test]
    fn after_a_restart_nothing_is_sent_before_the_metadata_was_read() {
        let (dir, clock, report) = (tempfile::tempdir().unwrap(), Clock::manual(Timestamp(10_000)), Report::kept());
        outbox(dir.path(), &clock, &report).put(entry("a", clock.now())).unwrap();
        let outbox = outbox(dir.path(), &clock, &report);
        let stored = outbox.waiting().remove(0);
        let none = View { expected: true, ..View::default() };
        assert_eq!(outbox.step(&stored, &none, clock.now()), Step::NeedPoll);
        assert!(outbox.needs_poll(&none) && outbox.due(&none).is_none());
        assert_eq!(outbox.step(&stored, &view(&["a"], "a", 10_000), clock.now()), Step::Send);
    }

    #[test]
    fn an_answer_from_before_the_clock_was_set_back_is_no_fresh_look() {
        let (dir, clock, report) = (tempfile::tempdir().unwrap(), Clock::manual(Timestamp(10_000)), Report::kept());
        let outbox = outbox(dir.path(), &clock, &report);
        let mut entry = entry("a", clock.now());
        // Heat answered at 999 s, the clock was set back, and then a try failed.
        outbox.after(&mut entry, &refused(500), Verdict::Retry(None));
        clock.advance(PAUSES.1);
        assert_eq!(outbox.step(&entry, &view(&["a"], "a", 999_000), clock.now()), Step::NeedPoll);
        assert_eq!(outbox.step(&entry, &view(&["a"], "a", clock.now().0), clock.now()), Step::Send);
    }

    #[test]
    fn three_refusals_over_a_quarter_of_an_hour_are_final_not_three_in_a_moment() {
        let (dir, clock, report) = (tempfile::tempdir().unwrap(), Clock::manual(Timestamp(10_000)), Report::kept());
        let outbox = outbox(dir.path(), &clock, &report);
        let mut entry = entry("a", clock.now());
        for _ in 0..4 {
            assert_eq!(outbox.after(&mut entry, &refused(403), Verdict::Refused), None);
        }
        clock.advance(REFUSAL_SPAN);
        assert_eq!(
            outbox.after(&mut entry, &refused(404), Verdict::Refused),
            Some(Fate::Undeliverable("the answer was 404".into()))
        );
    }

    #[test]
    fn pauses_grow_with_jitter_and_honour_what_was_asked_for() {
        let (dir, clock, report) = (tempfile::tempdir().unwrap(), Clock::manual(Timestamp(10_000)), Report::kept());
        let outbox = outbox(dir.path(), &clock, &report);
        let mut entry = entry("a", clock.now());
        let mut longest = Duration::ZERO;
        for _ in 0..12 {
            outbox.after(&mut entry, &refused(500), Verdict::Retry(None));
            longest = longest.max(entry.not_before.since(clock.now()));
        }
        assert!(longest > PAUSES.1 / 3 && longest <= PAUSES.1, "{longest:?}");
        outbox.after(&mut entry, &refused(503), Verdict::Retry(Some(Duration::from_secs(299))));
        assert!(entry.not_before.since(clock.now()) >= Duration::from_secs(299));
    }

    #[tokio::test]
    async fn an_unreachable_place_keeps_the_signal_and_says_why() {
        let (dir, clock, report) = (tempfile::tempdir().unwrap(), Clock::manual(Timestamp(10_000_000)), Report::kept());
        let outbox = outbox(dir.path(), &clock, &report);
        outbox.put(entry("a", clock.now())).unwrap();
        outbox.put(entry("a", clock.now())).unwrap();
        assert!(outbox.send_due(&view(&["a"], "a", 1)).await.0.is_empty());
        let waiting = outbox.waiting();
        assert_eq!((waiting.len(), waiting[0].tries), (1, 1));
        let codes: Vec<_> = report.events().iter().map(|event| event.code).collect();
        assert_eq!(codes, [Code::SignalQueued, Code::SignalUrlOld, Code::SignalRetry]);
        assert!(!format!("{:?}", report.events()).contains("Signature=x"));
        assert_eq!(outbox.send_due(&view(&["b"], "b", 1)).await.0[0].1, Fate::Superseded);
        assert!(outbox.waiting().is_empty() && dir.path().join(DIRECTORY).read_dir().unwrap().next().is_none());
    }

    #[test]
    fn a_clock_that_is_set_makes_no_signal_older_but_time_with_the_agent_does() {
        let (dir, clock, report) = (tempfile::tempdir().unwrap(), Clock::manual(Timestamp(5_000)), Report::kept());
        let first = outbox(dir.path(), &clock, &report);
        first.put(entry("a", clock.now())).unwrap();
        let mut stored = first.waiting().remove(0);
        clock.advance(LIFE / 2);
        first.after(&mut stored, &refused(500), Verdict::Retry(None));
        first.state.write_json(&path_of(&stored.key), &stored, Attributes::mode(0o600)).unwrap();
        // Rebooted, and the clock was set from 1970 to now.
        let clock = Clock::manual(Timestamp::parse_rfc3339("2026-03-01T12:00:00Z").unwrap());
        let second = outbox(dir.path(), &clock, &report);
        let stored = second.waiting().remove(0);
        let fresh = view(&["a"], "a", clock.now().0);
        assert_eq!((stored.created, second.step(&stored, &fresh, clock.now())), (Timestamp(5_000), Step::Send));
        clock.advance(LIFE / 2);
        assert_eq!(second.step(&stored, &fresh, clock.now()), Step::Send);
        clock.advance(Duration::from_secs(1));
        assert_eq!(second.step(&stored, &fresh, clock.now()), Step::Expired);
    }

    #[tokio::test]
    async fn an_expired_url_goes_another_way_once_and_by_the_rules_of_the_outbox() {
        let (dir, clock, report) = (tempfile::tempdir().unwrap(), Clock::manual(Timestamp(10_000)), Report::kept());
        let (outbox, heat) = (outbox(dir.path(), &clock, &report), Fake::start(vec![status("403 Forbidden", "")]).await);
        let keys = Keys { access: "AK1".into(), secret: "hush".into() };
        let own = Own { cfn: Some((format!("{}/v1/", heat.base), keys)), ..Own::default() };
        let view = |ids: &[&str], newest, answered| View { own: own.clone(), ..view(ids, newest, answered) };
        let mut entry = entry("a", clock.now());
        let arn = "arn%3Aopenstack%3Aheat%3A%3Ap%3Astacks/s/u/resources/r";
        let url = format!("{}/v1/signal/{arn}?Timestamp=1970-01-01T00%3A00%3A01Z&Signature=hush", heat.base);
        entry.destination = Destination::Url { url, verb: "POST".into(), insecure: false };
        outbox.put(entry.clone()).unwrap();
        assert!(outbox.send_due(&view(&["a"], "a", 9_000)).await.0.is_empty());
        assert_eq!(heat.requests().len(), 2, "the URL, and once another way");
        // Refused by both: the next try has to wait for its pause and for a fresh look at the metadata.
        for _ in 0..3 {
            assert!(outbox.send_due(&view(&["a"], "a", 9_000)).await.0.is_empty());
            clock.advance(REFUSAL_SPAN / 2);
        }
        assert!(outbox.needs_poll(&view(&["a"], "a", 9_000)));
        assert_eq!(heat.requests().len(), 2);
        // Heat asks for something newer meanwhile: nothing is sent any way.
        let fates = outbox.send_due(&view(&["b"], "b", clock.now().0)).await.0;
        assert_eq!((fates[0].1.clone(), heat.requests().len()), (Fate::Superseded, 2));
        // The same with keys that fit; the URL is old by now.
        outbox.put(entry).unwrap();
        heat.play(vec![ok("")]);
        let fates = outbox.send_due(&view(&["a"], "a", clock.now().0)).await.0;
        assert_eq!((fates[0].1.clone(), heat.requests().len()), (Fate::Delivered, 3));
        let codes: Vec<_> = report.events().iter().map(|event| event.code).collect();
        let (first, second) = (
            [Code::SignalQueued, Code::SignalRetry, Code::SignalSuperseded],
            [Code::SignalQueued, Code::SignalUrlOld, Code::SignalOtherWay, Code::SignalDelivered],
        );
        assert_eq!(codes, [&first[..], &second[..]].concat());
        assert!(!format!("{:?}", report.events()).contains("hush"));
    }

    #[tokio::test]
    async fn a_users_password_is_stored_for_root_alone_and_never_said() {
        let (dir, clock, report) = (tempfile::tempdir().unwrap(), Clock::manual(Timestamp(10_000)), Report::kept());
        let outbox = outbox(dir.path(), &clock, &report);
        let credentials = Credentials {
            auth_url: "http://user:hush@127.0.0.1:9/v3".into(),
            user_id: "u".into(),
            password: "hush".into(),
            scope: Scope::Project("p".into()),
            region: None,
        };
        let mut entry = entry("a", clock.now());
        entry.destination = Destination::User { credentials, to: "/stacks/s/u/resources/r/signal".into() };
        outbox.put(entry.clone()).unwrap();
        let mode = || Tree::open(dir.path()).unwrap().facts(&path_of(&entry.key)).unwrap().unwrap().mode & 0o7777;
        assert_eq!(mode(), 0o600);
        assert!(outbox.send_due(&view(&["a"], "a", 9_000)).await.0.is_empty());
        assert_eq!(mode(), 0o600, "written again after a try");
        let file = dir.path().join(path_of(&entry.key));
        assert!(std::fs::read_to_string(&file).unwrap().contains("hush"), "a later run needs it");
        let said = format!("{:?} {:?} {outbox:?}", report.events(), outbox.waiting());
        assert!(said.contains("asking Keystone") && !said.contains("hush"), "{said}");
    }

    #[test]
    fn a_corrupt_entry_is_put_aside_and_said() {
        let (dir, clock, report) = (tempfile::tempdir().unwrap(), Clock::manual(Timestamp(10_000)), Report::kept());
        outbox(dir.path(), &clock, &report).put(entry("a", clock.now())).unwrap();
        let file = dir.path().join(path_of("deployment a"));
        Tree::open(dir.path()).unwrap().write(&path_of("deployment a"), b"{", Attributes::mode(0o600)).unwrap();
        assert!(outbox(dir.path(), &clock, &report).waiting().is_empty());
        assert!(file.with_extension("unreadable").exists());
        // A whole one that a crash left beside its name.
        let (state, torn) = (Tree::open(dir.path()).unwrap(), Path::new(DIRECTORY).join(".x.json.hna-new"));
        state.write_json(&torn, &entry("a", clock.now()), Attributes::mode(0o600)).unwrap();
        assert!(Outbox::look(&state).unwrap().is_empty());
        assert_eq!(report.events().last().unwrap().code, Code::OutboxEntryCorrupt);
    }
}
