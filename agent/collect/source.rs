//! One source: its last document, its health, its pace.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};

use super::cache::{self, Cached};
use super::held::{Held, StoredDocument};
use super::local::{self, Boot};
use super::node_file::{self, ParameterReader};
use super::poll::PollCache;
use super::polling::Polling;
use super::previous_endpoint::PreviousEndpoint;
use super::schedule::PollNews;
use super::snapshot::{Layer, SourceState};
use super::source_set::SourceSet;
use crate::clock::{Clock, Moment, Timestamp};
use crate::digest;
use crate::error::{ConnectFailure, Context, Error, Result};
use crate::files::Tree;
use crate::freshness::ListAnswer;
use crate::report::follow_up::FollowUp;
use crate::report::text::argument;
use crate::report::{Code, Event, Phase, Report};
use crate::settings::Settings;
use crate::settings::source_name::SourceName;

/// What one poll brought.
pub(super) struct Polled {
    pub(super) source: SourceName,
    pub(super) started: Timestamp,
    /// The same in the order of events: its answer says nothing of what came later.
    pub(super) began: Moment,
    /// How long its answer was on its way, without the time for which this process itself stood still.
    pub(super) duration: Duration,
    /// Where it was asked, for people.
    pub(super) place: String,
    /// Distinguishes the settings by which it was asked from others.
    pub(super) key: String,
    /// Those settings; none for a file.
    pub(super) set: Option<SourceSet>,
    /// Whether they are those of the [`PreviousEndpoint`].
    pub(super) former: bool,
    /// Digest of what the files say of all sources.
    pub(super) files_digest: String,
    /// What the next poll can use.
    pub(super) memory: PollCache,
    /// Top-level keys whose entries are deployments.
    pub(super) deployment_keys: Vec<String>,
    pub(super) outcome: PollOutcome,
}

/// How a poll ended.
pub(super) enum PollOutcome {
    /// The source is not configured: silence (heat-protocol.md R24).
    Absent,
    /// Byte for byte what it said before.
    Same,
    /// Something else, to be read.
    Unread(UnparsedDocument),
    /// Something else.
    Document(Box<StoredDocument>),
    /// Nothing; what it said before stays.
    Failed(Error),
    /// Something older, which is not believed; what was said before stays.
    Older(Error),
}

/// Reads what was delivered, with oddities: one document takes the memory of many answers, so they are read one at a time.
pub(super) type UnparsedDocument = Box<dyn FnOnce() -> Result<(Map<String, Value>, Vec<String>)> + Send>;

impl Polled {
    /// Reads what was delivered. `before` is what the answer before left for the next poll; `beside` the memory that what the other
    /// sources said takes.
    pub(super) fn read(&mut self, before: &PollCache, beside: usize) {
        self.outcome = match std::mem::replace(&mut self.outcome, PollOutcome::Same) {
            PollOutcome::Unread(read) => match read().and_then(|read| StoredDocument::new(read, &self.deployment_keys, beside)) {
                Ok(document) => PollOutcome::Document(Box::new(document)),
                Err(error) => {
                    // What cannot be read is not what is compared with the next time.
                    self.memory = PollCache { stack: self.memory.stack.take(), ..before.clone() };
                    PollOutcome::Failed(error)
                }
            },
            other => other,
        };
    }
}

/// What follows from a poll.
#[derive(Debug, Default)]
pub(super) struct Settled {
    pub(super) events: Vec<Event>,
    /// Parts of a new document that cannot be understood.
    pub(super) warnings: Vec<String>,
    /// A document, or whether its source answers, changed: the snapshot must be merged anew.
    pub(super) reshaped: bool,
    pub(super) answered: bool,
    /// It failed, recovered or was learnt.
    pub(super) sources: bool,
}

/// Whether documents ask for a source.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Demand {
    /// They name it and ask for it.
    Followed,
    /// Whoever takes its place retires it by an answer.
    Retired,
}

/// What a source answered last, in this process.
#[derive(Default)]
struct LastAnswer {
    list: Option<ListAnswer>,
    /// How long it was on its way.
    duration: Duration,
    /// When it arrived.
    received: Moment,
}

impl LastAnswer {
    /// Another one arrived.
    fn arrived(&mut self, began: Moment, duration: Duration, clock: &Clock) {
        self.list = Some(ListAnswer::new(began, [duration, std::mem::replace(&mut self.duration, duration)]));
        self.received = clock.moment();
    }
}

/// A source.
pub(super) struct Source {
    pub(super) name: SourceName,
    /// Whether there is anything to ask.
    pub(super) configured: bool,
    pub(super) polling: Polling,
    /// What the last answer left for the next poll.
    memory: PollCache,
    /// The key of the settings by which that answer was asked for.
    memory_key: String,
    /// What it said last.
    pub(super) held: Held,
    answer: LastAnswer,
    /// The number of its last answer, counted over all sources; 0 before the first in this process.
    pub(super) answer_number: u64,
    pub(super) key: String,
    /// The settings by which its document was fetched, in this process or before.
    pub(super) answered_by: Option<SourceSet>,
    /// Where those are not the ones that it is to be asked by now.
    pub(super) former: Option<PreviousEndpoint>,
    /// Whether it is to be asked at all.
    pub(super) demand: Demand,
    /// Digest of what the files said when it took another one's place.
    pub(super) took_over_digest: Option<String>,
    pub(super) state: SourceState,
}

impl Source {
    pub(super) fn new(name: SourceName, settings: &Settings, clock: &Clock, first: Duration) -> Self {
        Self {
            name,
            configured: false,
            polling: Polling::new((settings.min_polling_interval, settings.polling_interval), first, clock),
            memory: PollCache::default(),
            memory_key: String::new(),
            held: Held::nothing(),
            answer: LastAnswer { received: Moment::EARLIER, ..LastAnswer::default() },
            answer_number: 0,
            key: String::new(),
            answered_by: None,
            former: None,
            demand: Demand::Retired,
            took_over_digest: None,
            state: SourceState::default(),
        }
    }

    /// Takes what an earlier process kept: last good, but no answer of this process.
    pub(super) fn remember(&mut self, cached: Cached) {
        self.state.last_good = Some(cached.fetched_at);
        self.answered_by = cached.asked.and_then(|stored| SourceSet::from_stored(self.name, stored));
        self.held.files_digest = cached.files_digest;
        // An earlier version took more than this one: what it kept is then fetched anew.
        if let Ok(document) = StoredDocument::new((cached.document, Vec::new()), &self.held.deployment_keys, 0) {
            self.take(document);
        }
    }

    /// Drops what it said: another source speaks in its place now.
    pub(super) fn forget(&mut self) {
        self.held.forget();
        self.answer.list = None;
        self.memory = PollCache::default();
        self.answered_by = None;
        self.former = None;
        self.took_over_digest = None;
        self.state = SourceState { last_try: self.state.last_try, next_try: self.state.next_try, ..SourceState::default() };
    }

    /// Removes what it said from the cache too.
    pub(super) fn remove_kept(&self, state: &Tree, report: &Report) {
        if let Err(error) = cache::remove(state, self.name) {
            let message = format!("the cached document of {} cannot be removed", self.name.as_str());
            report.emit(Event::new(Code::StateWriteFailed, message).source(self.name.as_str()).error(&error));
        }
    }

    /// Stores document and digest where they are not stored yet; tried again at each poll.
    pub(super) fn keep(&mut self, state: &Tree, report: &Report) {
        let fetched_at = self.state.last_good.unwrap_or_default();
        self.held.keep(self.name, fetched_at, self.answered_by.as_ref(), state, report);
    }

    /// Reads the file of `--metadata`.
    pub(super) fn read_file(path: &Path, memory: &mut PollCache) -> PollOutcome {
        let mut read = || -> Result<PollOutcome> {
            let bytes = local::read_file(path)?;
            let raw = Some(digest::hex(&bytes));
            if memory.raw == raw {
                return Ok(PollOutcome::Same);
            }
            let path = path.display().to_string();
            let verify = || format!("`heat-node-agent verify --metadata {}` lists every mistake in it", argument(&path));
            let document = local::parse_given(&bytes)
                .map_err(|error| if error.suggested_remedy().is_some() { error } else { error.remedy(verify()) })
                .context(|| format!("reading {path}"))?;
            memory.raw = raw;
            Ok(PollOutcome::Unread(Box::new(move || Ok((document, Vec::new())))))
        };
        read().unwrap_or_else(PollOutcome::Failed)
    }

    /// Takes the boot copies, or local data, as they were just read.
    pub(super) fn take_boot(boot: Option<&Result<Boot>>, memory: &mut PollCache) -> PollOutcome {
        match boot {
            None => PollOutcome::Absent,
            Some(Err(error)) => PollOutcome::Failed(error.clone()),
            Some(Ok(boot)) if memory.raw.as_ref() == Some(&boot.raw) => PollOutcome::Same,
            Some(Ok(boot)) => {
                memory.raw = Some(boot.raw.clone());
                let (document, warnings) = (boot.document.clone(), boot.warnings.clone());
                PollOutcome::Unread(Box::new(move || Ok((document, warnings))))
            }
        }
    }

    /// Takes the file that configures the node, as it was just read. `None`: it is not used, and that was said.
    pub(super) fn take_node_file(
        content: Option<Result<Vec<u8>>>,
        reader: ParameterReader,
        memory: &mut PollCache,
    ) -> PollOutcome {
        let Some(content) = content else { return PollOutcome::Absent };
        let taken = content.and_then(|bytes| {
            let raw = Some(digest::hex(&bytes));
            if memory.raw == raw {
                return Ok(PollOutcome::Same);
            }
            let read = node_file::document_of(&bytes, reader)?;
            memory.raw = raw;
            Ok(PollOutcome::Unread(Box::new(|| Ok(read))))
        });
        taken.unwrap_or_else(PollOutcome::Failed)
    }

    /// What the last answer to these settings left for the next poll: what one endpoint answered is nothing to another one.
    pub(super) fn memory_for(&self, key: &str) -> PollCache {
        if self.memory_key == key { self.memory.clone() } else { PollCache::default() }
    }

    /// Notes where the source is asked; an event where that is new.
    pub(super) fn set_endpoint(&mut self, place: &str, key: &str) -> Option<Event> {
        self.configured = true;
        if self.key == key && self.state.place == place {
            return None;
        }
        place.clone_into(&mut self.state.place);
        key.clone_into(&mut self.key);
        let message = format!("metadata source {}: {place}", self.name.as_str());
        Some(Event::new(Code::SourceInUse, message).phase(Phase::Metadata).source(self.name.as_str()))
    }

    /// Whether it was polled by other settings than these, so that a poll now may bring more.
    pub(super) fn was_asked_otherwise(&self, key: &str) -> bool {
        self.state.last_try.is_some() && self.key != key
    }

    /// Notes by what it is to be asked from now on, if at all. The way by which it answered last is asked on until another one
    /// answers; an event where that begins.
    pub(super) fn follow(&mut self, wanted: bool, set: Option<&SourceSet>, clock: &Clock) -> Option<Event> {
        self.demand = if wanted { Demand::Followed } else { Demand::Retired };
        let Some(answered_by) = &self.answered_by else {
            self.former = None;
            return None;
        };
        if set.is_some_and(|set| set.is_same_way(answered_by)) {
            self.former = None;
            return None;
        }
        if self.former.as_ref().is_some_and(|former| former.set.is_same_way(answered_by)) {
            return None;
        }
        let (fresh, place) = (self.answer.list.is_some(), answered_by.place());
        self.former =
            Some(PreviousEndpoint::new(answered_by.clone(), self.held.files_digest.clone(), self.polling.pace, fresh, clock));
        let name = self.name.as_str();
        let instead = match set {
            Some(set) => format!("{name} by {}, from {},", set.place(), set.origin),
            None => "the source that replaces it".to_owned(),
        };
        let message = format!("metadata source {name} is still polled at {place}, less often, until {instead} has answered");
        Some(Event::new(Code::SourceReplacementPending, message).phase(Phase::Metadata).source(name))
    }

    /// Whether it is to be replaced, and nobody has taken its place yet.
    pub(super) fn is_replaced(&self) -> bool {
        self.name.is_remote() && self.demand == Demand::Retired && self.held.document.is_some()
    }

    /// Whether it answered last by this set.
    pub(super) fn answered_by(&self, set: &SourceSet) -> bool {
        self.answered_by.as_ref().is_some_and(|by| by.is_same_way(set))
    }

    /// Takes over what a poll of the former way brought. What fails now is the new way: that stays said.
    pub(super) fn settle_former(&mut self, polled: Polled, clock: &Clock) -> Settled {
        let mut settled = Settled::default();
        let same = |former: &&mut PreviousEndpoint| polled.set.as_ref().is_some_and(|set| set.is_same_way(&former.set));
        // Another way has answered meanwhile.
        let Some(former) = self.former.as_mut().filter(same) else { return settled };
        former.memory = polled.memory;
        let after = match polled.outcome {
            PollOutcome::Failed(error) | PollOutcome::Older(error) => {
                former.reschedule(PollNews::Failed(error.asked_pause()), clock);
                let name = self.name.as_str();
                let message = format!("metadata source {name} cannot be read with its former settings either");
                let event = Event::new(Code::SourceFailed, message).phase(Phase::Metadata).source(name);
                let next = former.due_in().unwrap_or_default();
                settled.events.push(event.error(&error).attempt(former.failures).next_try(next));
                return settled;
            }
            PollOutcome::Document(document) => self.new_document(*document, polled.deployment_keys, &mut settled),
            PollOutcome::Absent | PollOutcome::Same | PollOutcome::Unread(_) => PollNews::Steady,
        };
        if let Some(former) = &mut self.former {
            former.reschedule(after, clock);
        }
        self.said_again((polled.started, polled.began, polled.duration), polled.files_digest, &mut settled, clock);
        settled
    }

    /// Takes over what a poll brought, and sets when the next one is due.
    pub(super) fn settle(&mut self, polled: Polled, clock: &Clock) -> Settled {
        self.polling.end(polled.began, !matches!(polled.outcome, PollOutcome::Failed(_) | PollOutcome::Older(_)));
        self.state.last_try = Some(polled.started);
        self.memory = polled.memory;
        self.memory_key.clone_from(&polled.key);
        let mut settled = Settled::default();
        if !matches!(polled.outcome, PollOutcome::Absent) {
            settled.events.extend(self.set_endpoint(&polled.place, &polled.key));
        }
        let after = match polled.outcome {
            PollOutcome::Absent => {
                if std::mem::take(&mut self.configured) && self.former.is_none() {
                    settled.events.push(self.retired());
                }
                // What it said stays in force until the one that takes its place answers, and is nobody's failure.
                self.state.failures = 0;
                self.state.cause = None;
                self.state.remedy = None;
                self.key = polled.key;
                PollNews::Steady
            }
            PollOutcome::Failed(error) => self.failed(&error, &mut settled),
            PollOutcome::Older(error) => {
                self.failed(&error, &mut settled);
                // The server answers, and its next answer may be up to date: no backoff.
                PollNews::Steady
            }
            PollOutcome::Same => {
                self.said_again((polled.started, polled.began, polled.duration), polled.files_digest, &mut settled, clock);
                self.prove(polled.set, &mut settled);
                PollNews::Steady
            }
            // It was read before.
            PollOutcome::Unread(_) => PollNews::Steady,
            PollOutcome::Document(document) => {
                let after = self.new_document(*document, polled.deployment_keys, &mut settled);
                self.said_again((polled.started, polled.began, polled.duration), polled.files_digest, &mut settled, clock);
                self.prove(polled.set, &mut settled);
                after
            }
        };
        let pause = self.polling.next(after, clock);
        self.state.next_try = Some(clock.now().after(pause));
        for event in &mut settled.events {
            if event.code == Code::SourceFailed {
                event.next_try = Some(pause);
            }
        }
        settled.sources = !settled.events.is_empty();
        settled
    }

    /// That it is not asked any more.
    pub(super) fn retired(&self) -> Event {
        let message = format!("metadata source {} is no longer polled", self.name.as_str());
        Event::new(Code::SourceRetired, message).phase(Phase::Metadata).source(self.name.as_str())
    }

    fn new_document(&mut self, document: StoredDocument, keys: Vec<String>, settled: &mut Settled) -> PollNews {
        let before = self.state.digest.clone();
        settled.warnings.clone_from(&document.warnings);
        let other_keys = self.held.deployment_keys != keys;
        self.held.deployment_keys = keys;
        self.take(document);
        let changed = other_keys || self.state.digest != before;
        self.held.kept &= !changed;
        settled.reshaped = changed;
        if changed { PollNews::Changed } else { PollNews::Steady }
    }

    fn failed(&mut self, error: &Error, settled: &mut Settled) -> PollNews {
        settled.reshaped = self.state.failures == 0;
        self.state.failures = self.state.failures.saturating_add(1);
        let error = &self.with_place(error);
        let remedy = error.typed_remedy().cloned().unwrap_or_else(|| Code::SourceFailed.remedy());
        let remedy = FollowUp::TriesAgain.of(&remedy);
        self.state.cause = Some(error.cause_first());
        self.state.remedy = Some(remedy.to_string());
        let message = format!("metadata source {} cannot be read", self.name.as_str());
        let event = Event::new(Code::SourceFailed, message).phase(Phase::Metadata).source(self.name.as_str());
        settled.events.push(event.error(error).remedy(remedy).attempt(self.state.failures));
        PollNews::Failed(error.asked_pause())
    }

    /// Names whose server cannot be reached, what to start there, and where its address is learnt from.
    fn with_place(&self, error: &Error) -> Error {
        let (server, endpoint, key) = match self.name {
            SourceName::Cfn => ("Heat's metadata service (heat-api-cfn)", "cloudformation", "metadata_url"),
            SourceName::Heat => ("Heat (heat-api)", "orchestration", "auth_url"),
            SourceName::Request => ("Heat's temporary URL", "object-store", "metadata_url"),
            SourceName::Zaqar => ("Zaqar", "messaging", "auth_url"),
            SourceName::HeatLocal | SourceName::Local | SourceName::File | SourceName::HeatParams => return error.clone(),
        };
        let place = |at: &str| {
            format!(
                "if `openstack catalog list` has no {endpoint} endpoint at {at}, correct {key} of [{}] in /etc/os-collect-config.conf. If it \
                 has, ",
                self.name.as_str()
            )
        };
        let named = error.clone().context(format!("asking {server}"));
        match error.connect_failure() {
            Some(ConnectFailure::Refused { peer, trial }) => {
                let trial = trial.iter().map(|trial| format!("; {trial}")).collect::<String>();
                named.remedy(format!("{}start {server} there{trial}", place(peer)))
            }
            Some(ConnectFailure::Name(host)) => named.remedy(format!(
                "{}correct this node's name servers in /etc/resolv.conf, until `getent hosts {host}` prints an address",
                place(host)
            )),
            Some(ConnectFailure::UnknownCa(_) | ConnectFailure::Silence | ConnectFailure::Clock | ConnectFailure::Expired)
            | None => named,
        }
    }

    fn said_again(
        &mut self,
        (started, began, duration): (Timestamp, Moment, Duration),
        files_digest: String,
        settled: &mut Settled,
        clock: &Clock,
    ) {
        settled.answered = true;
        // Who answers for the first time, or again, may speak for Heat now.
        settled.reshaped |= self.answer.list.is_none() || self.state.failures > 0;
        self.held.rest_on(files_digest);
        self.answer.arrived(began, duration, clock);
        self.state.last_good = Some(started);
    }

    /// It was the way by which it is to be asked that answered.
    fn prove(&mut self, by: Option<SourceSet>, settled: &mut Settled) {
        let same = |by: &SourceSet| self.answered_by.as_ref().is_some_and(|before| before.is_same_way(by));
        self.held.kept &= by.as_ref().is_none_or(same);
        self.answered_by = by;
        self.former = None;
        if self.state.failures > 0 {
            let message =
                format!("metadata source {} can be read again after {} failures", self.name.as_str(), self.state.failures);
            settled.events.push(Event::new(Code::SourceRecovered, message).phase(Phase::Metadata).source(self.name.as_str()));
        }
        self.state.failures = 0;
        self.state.cause = None;
        self.state.remedy = None;
    }

    /// Takes over what a document says.
    fn take(&mut self, document: StoredDocument) {
        self.state.digest = Some(document.digest.clone());
        self.held.take(document);
    }

    /// Its share in the snapshot.
    pub(super) fn layer(&self) -> Option<Layer> {
        Some(Layer {
            source: self.name,
            document: Arc::clone(self.held.document.as_ref()?),
            deployments: self.held.deployments.clone(),
            answered: self.answer.list,
            received: self.answer.received,
            healthy: self.state.failures == 0 || self.former.as_ref().is_some_and(|former| former.answers),
        })
    }

    /// Time to the next poll; `None` while one is under way.
    pub(super) fn due_in(&self) -> Option<Duration> {
        self.polling.due_in(self.state.failures)
    }

    /// Its poll is over and was none of the way by which it is to be asked: that one is polled at once.
    pub(super) fn drop_answer(&mut self, clock: &Clock) {
        self.polling.in_flight = false;
        self.set_pause(Duration::ZERO, clock);
    }

    /// Has it polled at once, unless it was since `fact` (which may be when its newest poll began) or fails: one that fails keeps
    /// its growing pause, but of what its server asked for no more than Heat may have time for.
    pub(super) fn want(&mut self, fact: Moment) {
        self.polling.want(fact);
    }

    /// Whether an answer is waited for that will come without a pause.
    pub(super) fn is_answering(&self) -> bool {
        let by_former = self.former.as_ref().is_some_and(|former| former.answers);
        ((self.configured && self.state.failures == 0) || by_former)
            && self.answer.list.is_some_and(|answered| self.polling.wants_since(answered.began))
    }

    /// Time to the next request by the former way; `None` where there is none, or one is under way.
    pub(super) fn former_due_in(&self) -> Option<Duration> {
        let former = self.former.as_ref()?;
        let at_once = former.answers && self.polling.wants_since(former.asked);
        former.due_in().map(|due| if at_once { Duration::ZERO } else { due })
    }

    pub(super) fn former_is_due(&self) -> bool {
        self.former_due_in() == Some(Duration::ZERO)
    }

    pub(super) fn is_due(&self) -> bool {
        self.due_in() == Some(Duration::ZERO)
    }

    /// Begins the fast window; a poll that is due earlier stays so.
    pub(super) fn start_fast_polling(&mut self, clock: &Clock) {
        let pause = self.polling.start_fast_polling();
        self.at_most(pause, clock);
        if let Some(former) = &mut self.former {
            former.start_fast_polling(clock);
        }
    }

    /// Brings the next poll forward.
    pub(super) fn at_most(&mut self, pause: Duration, clock: &Clock) {
        if self.due_in().is_some_and(|due| due > pause) {
            self.set_pause(pause, clock);
        }
    }

    /// Polls in the slot of this node; the first poll comes after `first`.
    pub(super) fn belong_to(&mut self, instance: &str, first: Duration, clock: &Clock) {
        self.polling.set_slot(&format!("{instance}/{}", self.name.as_str()));
        self.set_pause(first, clock);
    }

    pub(super) fn set_pace(&mut self, min: Duration, max: Duration) {
        self.polling.set_pace(min, max);
        if let Some(former) = &mut self.former {
            former.set_pace(min, max);
        }
    }

    fn set_pause(&mut self, pause: Duration, clock: &Clock) {
        self.polling.set_pause(pause, clock);
        self.state.next_try = Some(clock.now().after(pause));
    }
}
