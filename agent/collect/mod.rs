//! Polls every source of metadata and keeps one [`Snapshot`] of what they say together.
//!
//! In: what cloud-init, Heat and the image left on this machine, the answers of Heat, and the document
//! of `--metadata`. Out: the snapshot, and a [`SnapshotChange`] whenever a poll brought something to act on.
//! Never: it runs nothing, and nothing that a source says can end the agent: a source that fails keeps
//! what it said last (heat-protocol.md R1, R11).

mod cache;
mod cfn;
mod clients;
mod collector_config;
mod document;
mod endpoint;
mod entries;
mod file_origins;
mod findings;
mod former_lists;
mod heat;
mod held;
mod known_sources;
mod local;
mod node_file;
mod own_credentials;
mod poll;
mod polling;
mod posting_order;
mod previous_endpoint;
mod request;
mod run_order;
mod schedule;
mod section;
mod selection;
mod single;
mod snapshot;
mod source;
mod source_set;
#[cfg(test)]
mod tests;
mod timer;
mod user_data;
mod zaqar;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};
use tokio::task::JoinSet;

use crate::backoff::random;
use crate::clock::{Clock, Moment};
use crate::error::Error;
use crate::files::{Attributes, Tree};
use crate::gather::Gather;
use crate::http::Http;
use crate::identity::InstanceRecord;
use crate::openstack::keystone::Keystone;
use crate::report::{Code, Event, Phase, Report};
use crate::settings::source_name::SourceName;
use crate::settings::{NodeSource, Settings};
use clients::Clients;
pub use entries::Entries;
use findings::{CONFIG, Findings};
use former_lists::{FormerLists, FormerPlace};
use known_sources::KnownSources;
use local::LocalFiles;
pub use local::{HINT, LOCAL_DATA, as_document, hide_boot_copies, is_yaml, read_document, read_file};
pub use node_file::{HEAT_PARAMS, NodeFile, ParameterReader, is_of_file};
pub use own_credentials::OwnCredentials;
use poll::{AnswerStanding, PollCache};
pub(crate) use run_order::{RunOrder, Stamp};
use section::DEPLOYMENTS;
pub(crate) use section::{DEPLOYMENT_KEY, deployment_keys};
pub use single::SingleSource;
pub use snapshot::{AuthoritativeAnswer, Snapshot, SourceState};
use source::{PollOutcome, Polled, Source};

/// How often files are looked for while no source is known at all.
const FILE_POLL: Duration = Duration::from_secs(5);

/// What polls brought.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SnapshotChange {
    /// The merged metadata differs from what it was.
    pub metadata: bool,
    /// An authoritative source answered: [`Snapshot::authority`] is newer, and with a list [`Snapshot::listing`].
    pub answered: bool,
    /// A source failed, recovered or was learnt.
    pub sources: bool,
}

impl SnapshotChange {
    fn any(self) -> bool {
        self.metadata || self.answered || self.sources
    }

    fn absorb(&mut self, other: Self) {
        self.metadata |= other.metadata;
        self.answered |= other.answered;
        self.sources |= other.sources;
    }
}

/// Polls the sources.
pub struct Collector {
    settings: Settings,
    root: Arc<Tree>,
    state: Arc<Tree>,
    clients: Clients,
    clock: Clock,
    report: Report,
    metadata_file: Option<PathBuf>,
    /// What reads the file that configures the node, where one does.
    node_reader: Option<ParameterReader>,
    files: LocalFiles,
    /// Weakest first.
    sources: Vec<Source>,
    /// Requests under way. They go on while nobody waits in [`Collector::changed`].
    in_flight: JoinSet<Polled>,
    /// What the files and the answers say of the sources; `None` where one of them is new.
    known: Option<Arc<KnownSources>>,
    snapshot: Snapshot,
    /// Of all sources that speak for Heat.
    order: Box<RunOrder>,
    findings: Box<Findings>,
}

impl std::fmt::Debug for Collector {
    /// Without documents and settings, which hold passwords.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Collector").field("snapshot", &self.snapshot).finish_non_exhaustive()
    }
}

impl Collector {
    /// Starts with what the sources said last, as far as it was kept in `state`, and writes nothing. `root` is where the
    /// files of this machine are, `metadata_file` the document of `--metadata`.
    #[must_use]
    pub fn new(
        settings: Settings,
        root: Arc<Tree>,
        state: Arc<Tree>,
        http: Http,
        clock: Clock,
        report: Report,
        metadata_file: Option<PathBuf>,
    ) -> Self {
        let (mut sources, mut findings) = (Vec::new(), Findings::new());
        // `--metadata FILE` stands in place of the sources.
        for name in settings.sources.order.iter().copied().filter(|name| (*name == SourceName::File) == metadata_file.is_some()) {
            let splay = if name.is_remote() { settings.splay.mul_f64(random()) } else { Duration::ZERO };
            let mut source = Source::new(name, &settings, &clock, splay);
            if name.is_remote() {
                match cache::read(&state, name) {
                    Ok(Some(cached)) => source.remember(cached),
                    Ok(None) => {}
                    Err(error) => findings.unreadable.push((name, error)),
                }
            }
            sources.push(source);
        }
        let lists = sources.iter().filter_map(|source| source.held.deployments.as_deref());
        let order = RunOrder::open(&state, &clock).unwrap_or_else(|error| {
            findings.unreadable_order = Some(error);
            None
        });
        let order = order.unwrap_or_else(|| RunOrder::of_lists(lists));
        let mut collector = Self {
            settings,
            root,
            state,
            clients: Clients::new(http, Keystone::new(clock.clone())),
            clock,
            report,
            metadata_file,
            node_reader: None,
            files: LocalFiles::default(),
            sources,
            in_flight: JoinSet::new(),
            known: None,
            snapshot: Snapshot::default(),
            order: Box::new(order),
            findings: Box::new(findings),
        };
        collector.merge(true);
        collector
    }

    /// Has the node configured by heat-params, where the settings say so; the document of `--metadata` stands in its place too.
    #[must_use]
    pub fn with_node_file(mut self, reader: ParameterReader) -> Self {
        if self.settings.node_source == NodeSource::HeatParams && self.metadata_file.is_none() {
            self.sources.push(Source::new(SourceName::HeatParams, &self.settings, &self.clock, Duration::ZERO));
            (self.node_reader, self.files.has_node, self.snapshot.node_file) = (Some(reader), true, Some(NodeFile::default()));
        }
        self
    }

    /// Whether some source's document has parts that cannot be understood.
    #[must_use]
    pub fn is_malformed(&self) -> bool {
        self.sources.iter().any(|source| source.held.is_malformed)
    }

    /// Why what some source said last is not known although it was kept.
    #[must_use]
    pub fn unreadable(&self) -> Option<&Error> {
        self.findings.unreadable.first().map(|(_, error)| error)
    }

    /// Puts away what was kept and cannot be understood, for whoever holds the lock of the state.
    pub fn quarantine_unreadable(&mut self) {
        for (source, error) in self.findings.unreadable.drain(..) {
            cache::quarantine(&self.state, source, &self.report, &error);
        }
        if let Some(error) = self.findings.unreadable_order.take() {
            cache::quarantine_file(&self.state, Path::new(run_order::STATE), &self.report, &error);
        }
    }

    /// Whose sources these are: each is polled in the instance's slot, and what the disk brought along from another
    /// instance is not used. `run_dir` lives as long as the boot: the first poll is splayed once in it.
    pub fn belong_to(&mut self, record: &InstanceRecord, run_dir: Option<&Tree>) {
        self.files.origins.recall(&self.state);
        self.files.origins.predecessors = record.predecessor.as_ref().map(|before| before.files.clone()).unwrap_or_default();
        self.read_files();
        let wanted = self.pace(self.settings.explicit.splay, "splay", self.settings.splay);
        let first_start = |dir: &Tree| dir.create_new(Path::new("splayed"), b"", Attributes::mode(0o644)).unwrap_or(true);
        let splay = wanted > Duration::ZERO && run_dir.is_none_or(first_start);
        for source in &mut self.sources {
            let first = if splay && source.name.is_remote() { wanted.mul_f64(random()) } else { Duration::ZERO };
            source.belong_to(&record.instance.value, first, &self.clock);
        }
    }

    /// Learns which runs the collector before the agent was told of, as soon as it is known where that is kept. The first answer may lag behind those
    /// as well.
    fn take_over_order(&mut self) {
        let place = FormerPlace::of(&self.files.config.settings, &self.root);
        if self.files.config.former_place.as_deref() == Some(&place) {
            return;
        }
        let FormerLists { order, unread } = FormerLists::read(&self.root, &place, &self.clock);
        self.files.config.former_place = Some(Box::new(place));
        for error in unread {
            let event = Event::new(Code::FormerListUnread, "what the replaced collector has listed is not known");
            self.report.emit(event.phase(Phase::Metadata).error(&error));
        }
        self.order.take_over(order);
    }

    /// Why the file that configures the node was never read in this run; `None` where there is no such file in use, or it was.
    #[must_use]
    pub fn node_file_failure(&self) -> Option<Error> {
        let state = self.sources.iter().find(|source| source.name == SourceName::HeatParams).map(|source| &source.state)?;
        let is_read = self.snapshot.node_file.as_ref().is_some_and(|file| file.id.is_some());
        let cause = state.cause.as_ref().filter(|_| !is_read)?;
        Some(Error::permanent(cause.clone()).remedy(state.remedy.clone().unwrap_or_default()))
    }

    /// Files that are not used because the instance had them so that this disk was copied from.
    #[must_use]
    pub fn left_over(&self) -> &[String] {
        &self.files.origins.left_over
    }

    /// The stack and the resource that they lead to, where os-collect-config.conf is one of them and says so.
    #[must_use]
    pub fn left_over_resource(&self) -> Option<&str> {
        let config = self.settings.sources.os_collect_config.display().to_string();
        self.files.config.resource.as_deref().filter(|_| self.files.origins.left_over.contains(&config))
    }

    /// Memory that what all sources said takes.
    #[must_use]
    pub fn weight(&self) -> usize {
        self.sources.iter().map(|source| source.held.weight).sum()
    }

    /// What all sources said last.
    #[must_use]
    pub fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// The tokens that the sources use: signals by the same user need no other one.
    #[must_use]
    pub fn keystone(&self) -> &Keystone {
        self.clients.keystone()
    }

    /// Polls fast for a while: something is expected to change, or somebody waits for a fresh answer.
    pub fn poll_now(&mut self) {
        for source in &mut self.sources {
            source.start_fast_polling(&self.clock);
        }
    }

    /// Asks whoever speaks for Heat now, at once, where its newest answer does not cover `fact`: whose list is in force or is
    /// to be next, and where there is none, who answered last. One request serves all facts before it. When that answer's request began is such a
    /// fact: an answer to a later one is wanted. Who has not answered at all, or fails, is asked at its own pace.
    pub fn ask(&mut self, fact: Moment) {
        // To read a file costs nothing.
        self.sources.iter_mut().filter(|source| source.name == SourceName::HeatParams).for_each(|source| source.want(fact));
        let Some(name) = self.asked() else { return };
        let fact = self.snapshot.contested_at.unwrap_or_default().max(fact);
        let sources = self.sources.iter_mut().filter(|source| source.name.as_str() == name);
        sources.for_each(|source| source.want(fact));
    }

    /// Who is asked for a fresh list.
    fn asked(&self) -> Option<&'static str> {
        let Snapshot { awaited, listing, authority, .. } = &self.snapshot;
        awaited.or_else(|| listing.as_ref().or(authority.as_ref()).map(|one| one.source))
    }

    /// Whether an answer that was asked for is still to come, and its source does not fail.
    pub fn is_answering(&self) -> bool {
        let asked = self.asked();
        let is_asked = |source: &&Source| asked == Some(source.name.as_str()) || source.name == SourceName::HeatParams;
        self.sources.iter().filter(is_asked).any(Source::is_answering)
    }

    /// Takes the next list however old it is.
    #[cfg(test)]
    pub(crate) fn forget_order(&mut self) {
        *self.order = RunOrder::default();
    }

    /// Polls every source now, side by side, each with its own deadline.
    pub async fn poll_once(&mut self) -> SnapshotChange {
        let mut change = self.start(true);
        self.ask_for_user_data();
        if self.files.service.wait().await {
            change.absorb(self.start(true));
        }
        while let Some(polled) = self.in_flight.join_next().await {
            change.absorb(self.handle_poll(polled));
        }
        change
    }

    /// Waits until a source is due, polls it, and returns when that brought something. Safe to drop at
    /// any await: requests under way go on, and the next call takes their answers.
    pub async fn changed(&mut self) -> SnapshotChange {
        loop {
            let change = self.start(false);
            if change.any() {
                return change;
            }
            let former = self.sources.iter().filter_map(Source::former_due_in);
            let pause = self.timed().filter_map(Source::due_in).chain(former).min();
            let clock = self.clock.clone();
            let wait = async {
                match pause {
                    Some(pause) => clock.wait(pause).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                Some(polled) = self.in_flight.join_next() => {
                    let change = self.handle_poll(polled);
                    if change.any() {
                        return change;
                    }
                }
                () = wait => {}
            }
        }
    }

    /// Starts the polls that are due (or all); those of local files are done at once.
    fn start(&mut self, all: bool) -> SnapshotChange {
        let mut change = SnapshotChange::default();
        let due: Vec<_> = if all {
            self.sources.iter().filter(|source| !source.polling.in_flight).map(|source| source.name).collect()
        } else {
            self.timed().filter(|source| source.is_due()).map(|source| source.name).collect()
        };
        if due.is_empty() && !self.sources.iter().any(Source::former_is_due) {
            return change;
        }
        let was_unread = self.snapshot.is_unread;
        self.files.service.look();
        self.read_files();
        if !all {
            self.ask_for_user_data();
        }
        // Files first: where the others are asked is learnt from them. They are read already, so their sources need no turn
        // of their own.
        for name in [SourceName::HeatLocal, SourceName::Local, SourceName::File, SourceName::HeatParams] {
            change.absorb(self.poll_file(name));
        }
        let known_sources = self.known_sources();
        self.findings.report_refused(&known_sources, &self.report);
        change.absorb(self.follow(&known_sources));
        // Nobody is waited for any more, or somebody may be.
        change.sources |= was_unread != self.snapshot.is_unread;
        for name in SourceName::REMOTE {
            change.absorb(self.start_remote(name, &known_sources, due.contains(&name)));
            self.start_former(name, &known_sources);
        }
        let nothing = !self.sources.iter().any(|source| source.configured || source.held.document.is_some());
        self.findings.report_nothing_known(nothing, &self.files, &self.report);
        change
    }

    /// Asks the metadata service, where nothing on this machine has the first metadata and nobody has answered yet. The next look at the files
    /// takes the answer.
    fn ask_for_user_data(&mut self) {
        let (sources, is_wanted) = (&self.settings.sources, self.files.awaits_service && self.snapshot.authority.is_none());
        if let Some(address) = sources.metadata_service.as_ref().filter(|_| is_wanted) {
            self.files.service.ask(self.clients.http(), address, sources.timeout);
        }
    }

    /// The sources whose time is waited for. One over the network that nobody configured is asked as soon as some look at
    /// the files says where, and needs no looks of its own while there are others.
    fn timed(&self) -> impl Iterator<Item = &Source> {
        let idle = self.sources.iter().all(|source| !source.configured && source.former.is_none());
        let untried = |source: &Source| source.state.last_try.is_none();
        self.sources.iter().filter(move |source| idle || source.configured || !source.name.is_remote() || untried(source))
    }

    /// Reads what was left on this machine: where sources are, how often they are polled.
    fn read_files(&mut self) {
        self.refresh_files();
        let explicit = self.settings.explicit;
        let max = self.pace(explicit.polling_interval, "polling_interval", self.settings.polling_interval);
        let min = self.pace(explicit.min_polling_interval, "min_polling_interval", self.settings.min_polling_interval);
        let second = Duration::from_secs(1);
        for source in &mut self.sources {
            source.set_pace(min.max(second), max.max(second));
        }
        self.files.origins.store(&self.state, &self.report);
        let resource = self.left_over_resource().map(str::to_owned);
        self.findings.report_left_over(&self.files, resource.as_deref(), &self.report);
        self.take_over_order();
    }

    fn refresh_files(&mut self) {
        self.known = None;
        let warnings = self.files.refresh(&self.root, &self.settings.sources);
        self.report_warnings(CONFIG, &warnings);
        for user_data in [&mut self.files.drive, &mut self.files.service.user_data] {
            for error in user_data.failures.drain(..) {
                let event = Event::new(Code::SourceFailed, "the server's user data cannot be read").phase(Phase::Metadata);
                self.report.emit(event.source(SourceName::HeatLocal.as_str()).error(&error));
            }
        }
        self.findings.report_access(&self.files, &self.report);
    }

    /// Whether a source that speaks for Heat may be named where nobody can read it.
    fn is_unread(&self) -> bool {
        self.sources.iter().any(|source| source.name.is_remote()) && self.files.is_unread()
    }

    /// A setting of the replaced collector, where the agent's own settings leave it open.
    fn pace(&self, explicit: bool, key: &str, own: Duration) -> Duration {
        if explicit { own } else { self.files.config.settings.seconds("DEFAULT", key).unwrap_or(own) }
    }

    /// The deadline of one request to a source.
    fn deadline(&self, source: SourceName) -> Duration {
        let own = self.settings.sources.timeout;
        let given =
            self.files.config.settings.seconds(source.as_str(), "timeout").filter(|given| *given >= Duration::from_secs(1));
        if self.settings.explicit.timeout { own } else { given.unwrap_or(own) }
    }

    fn poll_file(&mut self, name: SourceName) -> SnapshotChange {
        let Some(source) = self.sources.iter().find(|source| source.name == name) else { return SnapshotChange::default() };
        let (started, began) = (self.clock.now(), self.clock.moment());
        let mut memory = source.memory_for("");
        let given = self.metadata_file.as_ref().filter(|_| name == SourceName::File);
        let (place, outcome) = if let Some(path) = given {
            (path.display().to_string(), Source::read_file(path, &mut memory))
        } else if let Some(read) = self.node_reader.filter(|_| name == SourceName::HeatParams) {
            (HEAT_PARAMS.to_owned(), Source::take_node_file(self.files.node.take(), read, &mut memory))
        } else if name == SourceName::Local {
            ("local data".to_owned(), Source::take_boot(self.files.local.as_ref(), &mut memory))
        } else {
            let paths: Vec<_> = self.settings.sources.cfn_init_data.iter().map(|path| path.display().to_string()).collect();
            let place = self.files.user_data_of.map_or_else(|| paths.join(" "), str::to_owned);
            (place, Source::take_boot(self.files.boot.as_ref(), &mut memory))
        };
        let (key, files_digest, deployment_keys) = (String::new(), String::new(), vec![DEPLOYMENTS.to_owned()]);
        let (set, former, duration) = (None, false, Duration::ZERO);
        self.settle(Polled {
            source: name,
            started,
            began,
            duration,
            place,
            key,
            set,
            former,
            files_digest,
            memory,
            deployment_keys,
            outcome,
        })
    }

    /// Asks a source over the network, if it is due or the settings say something new of it.
    fn start_remote(&mut self, name: SourceName, known_sources: &KnownSources, due: bool) -> SnapshotChange {
        let key = known_sources.key(name);
        let Some(source) = self.sources.iter_mut().find(|source| source.name == name && !source.polling.in_flight) else {
            return SnapshotChange::default();
        };
        if !due && !source.was_asked_otherwise(&key) {
            return SnapshotChange::default();
        }
        let memory = source.memory_for(&key);
        let mut polled = Polled {
            source: name,
            started: self.clock.now(),
            began: self.clock.moment(),
            place: String::new(),
            key,
            set: None,
            duration: Duration::ZERO,
            former: false,
            files_digest: known_sources.files_digest.clone(),
            memory,
            deployment_keys: known_sources.deployment_keys(name),
            outcome: PollOutcome::Absent,
        };
        polled.place = known_sources.place(name);
        match known_sources.set(name) {
            Ok(Some(set)) => {
                polled.memory.held = source.held.document.is_some() && source.answered_by(set);
                polled.set = Some(set.clone());
            }
            Ok(None) => return self.settle(polled),
            Err(error) => {
                polled.outcome = PollOutcome::Failed(error.clone());
                return self.settle(polled);
            }
        }
        source.polling.begin();
        let news = source.set_endpoint(&polled.place, &polled.key);
        self.send(polled, known_sources.ca(name));
        let sources = news.is_some();
        if let Some(event) = news {
            self.report.emit(event);
            self.merge(false);
        }
        SnapshotChange { sources, ..SnapshotChange::default() }
    }

    /// Asks a source by the way that it answered last, where another one is to take its place.
    fn start_former(&mut self, name: SourceName, known_sources: &KnownSources) {
        let due = |source: &&mut Source| source.name == name && source.former_is_due();
        let Some(source) = self.sources.iter_mut().find(due) else { return };
        let held = source.held.document.is_some();
        let Some(former) = &mut source.former else { return };
        let began = self.clock.moment();
        (former.in_flight, former.asked) = (true, began);
        let polled = Polled {
            source: name,
            started: self.clock.now(),
            began,
            place: former.set.place(),
            key: String::new(),
            set: Some(former.set.clone()),
            duration: Duration::ZERO,
            former: true,
            // Somebody who has pointed the server elsewhere by hand is not led back.
            files_digest: former.files_digest.clone(),
            memory: PollCache { held, ..former.memory.clone() },
            deployment_keys: known_sources.deployment_keys(name),
            outcome: PollOutcome::Absent,
        };
        self.send(polled, known_sources.ca(name));
    }

    /// Sends the request of a poll on its way.
    fn send(&mut self, mut polled: Polled, ca: Option<&str>) {
        let Some(endpoint) = polled.set.as_ref().map(|set| set.endpoint(ca)) else { return };
        let tools = self.clients.tools(polled.source, &endpoint, self.deadline(polled.source));
        let clock = self.clock.clone();
        self.in_flight.spawn(async move {
            let (fetched, stood) = clock.watched(endpoint.fetch(&tools, &mut polled.memory)).await;
            polled.duration = clock.since(polled.began).saturating_sub(stood);
            polled.outcome = match fetched {
                Ok(Some(read)) => PollOutcome::Unread(Box::new(|| read().map(|document| (document, Vec::new())))),
                Ok(None) => PollOutcome::Same,
                Err(error) => PollOutcome::Failed(error),
            };
            polled
        });
    }

    fn handle_poll(&mut self, polled: Result<Polled, tokio::task::JoinError>) -> SnapshotChange {
        if let Ok(polled) = polled {
            return self.settle(polled);
        }
        // A task that died says nothing; its source is polled again when due.
        for source in &mut self.sources {
            source.polling.in_flight = false;
        }
        SnapshotChange::default()
    }

    /// Takes over what a poll brought.
    fn settle(&mut self, mut polled: Polled) -> SnapshotChange {
        let poll_result = self.standing_of(&polled);
        if poll_result != AnswerStanding::AsAsked
            && let Some(source) = self.sources.iter_mut().find(|source| source.name == polled.source)
        {
            source.drop_answer(&self.clock);
        }
        match poll_result {
            AnswerStanding::AsAsked => {}
            AnswerStanding::ByFormerWay => polled.former = true,
            AnswerStanding::TakenBack => return SnapshotChange::default(),
        }
        // Of one that nobody names and that never said anything nothing can change.
        let is_nothing = |source: &Source| polled.set.is_none() && source.held.document.is_none() && source.answered_by.is_none();
        if !self.sources.iter().any(|source| source.name == polled.source && is_nothing(source)) {
            self.known = None;
        }
        let others = self.sources.iter().filter(|source| source.name != polled.source);
        let beside = others.map(|source| source.held.weight).sum();
        let asked = self.sources.iter().find(|source| source.name == polled.source);
        let before = match asked {
            Some(source) if polled.former => source.former.as_ref().map(|former| former.memory.clone()),
            asked => asked.map(|source| source.memory_for(&polled.key)),
        };
        let before = before.unwrap_or_default();
        polled.read(&before, beside);
        if let Err(outcome) = self.check(&polled) {
            // As if it had not answered; nor is it what the next answer is compared with.
            polled.memory = PollCache { stack: polled.memory.stack.take(), ..before };
            polled.outcome = outcome;
        }
        let nothing_known = self.sources.iter().all(|source| !source.configured);
        let newest = self.sources.iter().map(|source| source.answer_number).max().unwrap_or_default();
        let Some(source) = self.sources.iter_mut().find(|source| source.name == polled.source) else {
            return SnapshotChange::default();
        };
        let former = polled.former;
        let mut settled = if former { source.settle_former(polled, &self.clock) } else { source.settle(polled, &self.clock) };
        if nothing_known && !source.configured {
            source.at_most(FILE_POLL, &self.clock);
        }
        let (polled_by, name) = (source.name, source.name.as_str());
        if source.name.is_remote() {
            source.keep(&self.state, &self.report);
            if settled.answered {
                source.answer_number = newest + 1;
                let kept = source.held.kept;
                // The way that is to be replaced replaces nothing.
                if !former {
                    settled.reshaped |= self.forget_retired(polled_by, kept);
                }
            }
        }
        for event in settled.events {
            self.report.emit(event);
        }
        self.report_warnings(name, &settled.warnings);
        let had = (self.snapshot.digest.clone(), self.snapshot.deployments.as_ref().map(|list| list.len()));
        self.merge(settled.reshaped);
        let metadata = self.snapshot.digest != had.0;
        if metadata {
            let shown = |n: Option<usize>| n.map_or("no list".to_owned(), |n| format!("{n} deployments"));
            let now = self.snapshot.deployments.as_ref().map(|list| list.len());
            let message = format!("the metadata changed: {} (previously {})", shown(now), shown(had.1));
            self.report.emit(Event::new(Code::MetadataChanged, message).phase(Phase::Metadata).source(name));
        }
        let speaks = polled_by.speaks_for_heat() || polled_by == SourceName::HeatParams;
        SnapshotChange { metadata, answered: settled.answered && speaks, sources: settled.sources }
    }

    /// Refuses an answer that takes nobody's place, or is older than what was listed before it: how its poll ended then.
    fn check(&mut self, polled: &Polled) -> Result<(), PollOutcome> {
        self.check_handover(polled).map_err(PollOutcome::Failed)?;
        self.check_order(polled).map_err(|error| {
            // It may say something new as well: nothing rests on what was said before, however young that is.
            self.snapshot.contested_at = self.snapshot.contested_at.max(Some(self.clock.moment()));
            PollOutcome::Older(error)
        })
    }

    /// Refuses an answer that is older than what was listed before it.
    fn check_order(&mut self, polled: &Polled) -> Result<(), Error> {
        let held = || self.sources.iter().find(|source| source.name == polled.source)?.held.deployments.as_deref();
        let list = match &polled.outcome {
            // A document that is given by hand is what it is.
            _ if !polled.source.is_remote() => None,
            PollOutcome::Document(document) => document.deployments(),
            PollOutcome::Same => held(),
            PollOutcome::Absent | PollOutcome::Failed(_) | PollOutcome::Older(_) | PollOutcome::Unread(_) => None,
        };
        let Some(list) = list else { return Ok(()) };
        let checked = self.order.check(list, polled.source.as_str(), &self.clock);
        if let Err(error) = self.order.keep(&self.state, &self.clock) {
            let message = "which deployments were listed cannot be kept";
            self.report.emit(Event::new(Code::StateWriteFailed, message).error(&error));
        }
        checked
    }

    /// Reads what cloud-init and the operator left on this machine, which no cache holds. Asks nobody over the network.
    pub fn read_boot_copy(&mut self) {
        // What another instance left says nothing of this one.
        let before = InstanceRecord::read(&self.state).ok().flatten().and_then(|record| record.predecessor);
        self.files.origins.predecessors = before.map(|before| before.files).unwrap_or_default();
        self.refresh_files();
        self.poll_file(SourceName::HeatLocal);
        self.poll_file(SourceName::Local);
        self.poll_file(SourceName::HeatParams);
        let known_sources = self.known_sources();
        self.snapshot.own_credentials = self.credentials_by(&known_sources);
        self.merge(true);
    }

    /// What one source said last, `deployments` included; `None` where it is not in use or said nothing yet.
    #[must_use]
    pub fn last_document(&self, source: SourceName) -> Option<Map<String, Value>> {
        let layer = self.sources.iter().find(|one| one.name == source)?.layer()?;
        let mut document = (*layer.document).clone();
        if let Some(deployments) = layer.deployments {
            document.insert("deployments".to_owned(), Value::Array(deployments.values().collect()));
        }
        Some(document)
    }

    /// Makes the snapshot anew: wholly where a document or the standing of a source changed.
    fn merge(&mut self, wholly: bool) {
        let layers: Vec<_> = self.sources.iter().filter_map(Source::layer).collect();
        let shown = self.sources.iter().filter(|source| source.configured || source.state.last_good.is_some());
        let states: BTreeMap<_, _> = shown.map(|source| (source.name.as_str(), source.state.clone())).gather();
        let awaited = self.snapshot.awaited;
        if wholly {
            self.snapshot.merge(&layers, states);
        } else {
            self.snapshot.sources = states;
            if self.snapshot.receive(&layers) {
                self.snapshot.redigest();
            }
        }
        self.ask_awaited(awaited);
        self.snapshot.is_unread = self.is_unread();
    }

    /// Has the source asked at once whose next answer brings the list in force. `before`: the one that was so far.
    fn ask_awaited(&mut self, before: Option<&'static str>) {
        let Some(name) = self.snapshot.awaited else { return };
        let received = self.snapshot.received;
        self.sources.iter_mut().filter(|source| source.name.as_str() == name).for_each(|source| source.want(received));
        let Some(listing) = self.snapshot.listing.as_ref().filter(|_| before != Some(name)) else { return };
        // Where both answer, the next answer is a moment away.
        let answers = |source: &Source| {
            source.name.as_str() == listing.source && source.held.document.is_some() && source.state.failures == 0
        };
        if !self.sources.iter().any(answers) {
            let of = listing.source;
            let message = format!(
                "the deployments that source {of} listed stay in force: what {name} answered last is not newer; it is polled again"
            );
            self.report.emit(Event::new(Code::SourceAnswerOlder, message).phase(Phase::Metadata).source(name));
        }
    }

    fn report_warnings(&self, source: &str, warnings: &[String]) {
        for what in warnings {
            let event = Event::new(Code::MetadataPartInvalid, format!("{source}: {what}")).phase(Phase::Metadata).source(source);
            self.report.emit(event.step(what.clone()).cause(what.clone()));
        }
    }
}
