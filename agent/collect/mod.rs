//! Polls every source of metadata and keeps one [`Snapshot`] of what they say together.
//!
//! In: what cloud-init, Heat and the image left on this machine, the answers of Heat, and the document
//! of `--metadata`. Out: the snapshot, and a [`Change`] whenever a poll brought something to act on.
//! Never: it runs nothing, and nothing that a source says can end the agent: a source that fails keeps
//! what it said last (heat-protocol.md R1, R11).

mod cache;
mod cfn;
mod document;
mod local;
mod schedule;
mod snapshot;
mod source;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use crate::clock::Clock;
use crate::files::Tree;
use crate::http::Http;
use crate::report::{Code, Event, Phase, Report};
use crate::settings::{Settings, SourceName};
use cfn::{Endpoint, Learnt};
use local::LocalFiles;
pub use local::read_document;
pub use snapshot::{Authority, Snapshot, SourceState};
use source::{Outcome, Polled, Source};

/// How often files are looked for while no source is known at all.
const LOOKING: Duration = Duration::from_secs(5);

/// What polls brought.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// The merged metadata differs from what it was.
    pub metadata: bool,
    /// An authoritative source answered: [`Snapshot::authority`] is newer.
    pub answered: bool,
    /// A source failed, recovered or was learnt.
    pub sources: bool,
}

impl Change {
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
#[derive(Debug)]
pub struct Collector {
    settings: Settings,
    root: Arc<Tree>,
    state: Arc<Tree>,
    http: Http,
    clock: Clock,
    report: Report,
    metadata_file: Option<PathBuf>,
    files: LocalFiles,
    /// Weakest first.
    sources: Vec<Source>,
    /// Requests under way. They go on while nobody waits in [`Collector::changed`].
    flying: JoinSet<Polled>,
    /// The client for the endpoint's own authority, kept so that its connections stay open.
    cfn_http: Option<(PathBuf, Http)>,
    /// Digest of the local settings of cfn at the last poll.
    basis: String,
    snapshot: Snapshot,
    nothing_known: bool,
}

impl Collector {
    /// Starts with what the sources said last, as far as it was kept in `state`. `root` is where the
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
        let mut sources = Vec::new();
        // `--metadata FILE` stands in place of the sources.
        for name in settings.sources.order.iter().copied().filter(|name| (*name == SourceName::File) == metadata_file.is_some()) {
            let splay = if name == SourceName::Cfn { settings.splay.mul_f64(source::random()) } else { Duration::ZERO };
            let mut source = Source::new(name, &settings, &clock, splay);
            if name == SourceName::Cfn
                && let Some(cached) = cache::load(&state, name, &report)
            {
                source.remember(cached);
            }
            sources.push(source);
        }
        let mut collector = Self {
            settings,
            root,
            state,
            http,
            clock,
            report,
            metadata_file,
            files: LocalFiles::default(),
            sources,
            flying: JoinSet::new(),
            cfn_http: None,
            basis: String::new(),
            snapshot: Snapshot::default(),
            nothing_known: false,
        };
        collector.merge(true);
        collector
    }

    /// What all sources said last.
    #[must_use]
    pub fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// Polls fast for a while: something is expected to change, or somebody waits for a fresh answer.
    pub fn nudge(&mut self) {
        for source in &mut self.sources {
            source.hurry(&self.clock);
        }
    }

    /// The same for the sources that answer. One that fails keeps its growing pause, which its server may have asked for.
    pub fn hasten(&mut self) {
        for source in self.sources.iter_mut().filter(|source| source.state.failures == 0) {
            source.hurry(&self.clock);
        }
    }

    /// Polls every source now, side by side, each with its own deadline.
    pub async fn poll_once(&mut self) -> Change {
        let mut change = self.start(true);
        while let Some(polled) = self.flying.join_next().await {
            change.absorb(self.landed(polled));
        }
        change
    }

    /// Waits until a source is due, polls it, and returns when that brought something. Safe to drop at
    /// any await: requests under way go on, and the next call takes their answers.
    pub async fn changed(&mut self) -> Change {
        loop {
            let change = self.start(false);
            if change.any() {
                return change;
            }
            let pause = self.sources.iter().filter_map(Source::due_in).min();
            let clock = self.clock.clone();
            let wait = async {
                match pause {
                    Some(pause) => clock.wait(pause).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                Some(polled) = self.flying.join_next() => {
                    let change = self.landed(polled);
                    if change.any() {
                        return change;
                    }
                }
                () = wait => {}
            }
        }
    }

    /// Starts the polls that are due (or all); those of local files are done at once.
    fn start(&mut self, all: bool) -> Change {
        let mut change = Change::default();
        let due: Vec<_> =
            self.sources.iter().filter(|source| all && !source.flying || source.is_due()).map(|source| source.name).collect();
        if due.is_empty() {
            return change;
        }
        let root = Arc::clone(&self.root);
        let odd = self.files.refresh(&root, &self.settings.sources);
        self.tell_odd("os-collect-config.conf", &odd);
        // Files first: where cfn is asked is learnt from them.
        for name in [SourceName::HeatLocal, SourceName::File].into_iter().filter(|name| due.contains(name)) {
            change.absorb(self.poll_file(name));
        }
        let key = self.learn().digest();
        let cfn = self.sources.iter().find(|source| source.name == SourceName::Cfn && !source.flying);
        if cfn.is_some_and(|cfn| due.contains(&cfn.name) || cfn.was_asked_otherwise(&key)) {
            change.absorb(self.start_cfn());
        }
        self.tell_nothing_known();
        change
    }

    fn poll_file(&mut self, name: SourceName) -> Change {
        let Some(source) = self.sources.iter().find(|source| source.name == name) else { return Change::default() };
        let started = self.clock.now();
        let given = self.metadata_file.as_ref().filter(|_| name == SourceName::File);
        let (place, outcome) = if let Some(path) = given {
            (path.display().to_string(), source.read_file(path))
        } else {
            let paths: Vec<_> = self.settings.sources.cfn_init_data.iter().map(|path| path.display().to_string()).collect();
            (paths.join(" "), source.take_boot(self.files.boot.as_ref()))
        };
        self.settle(Polled { source: name, started, place, key: String::new(), basis: String::new(), outcome })
    }

    fn start_cfn(&mut self) -> Change {
        let started = self.clock.now();
        let learnt = self.learn();
        let (key, basis, deadline) = (learnt.digest(), self.basis.clone(), self.settings.sources.timeout);
        let polled = move |place, key, basis, outcome| Polled { source: SourceName::Cfn, started, place, key, basis, outcome };
        let endpoint = match learnt.endpoint() {
            Ok(Some(endpoint)) => endpoint,
            Ok(None) => return self.settle(polled(String::new(), key, basis, Outcome::Absent)),
            Err(error) => {
                return self.settle(polled("incomplete settings".to_owned(), key, basis, Outcome::Failed(error.into())));
            }
        };
        let (http, place) = (self.http_for(&endpoint), endpoint.place());
        let Some(source) = self.sources.iter_mut().find(|source| source.name == SourceName::Cfn) else {
            return Change::default();
        };
        source.flying = true;
        let news = source.learn(&place, &key);
        let known = source.raw.clone();
        self.flying.spawn(async move {
            let outcome = match endpoint.fetch(&http, deadline, known.as_deref()).await {
                Ok(Some(fetched)) => Outcome::Document { raw: fetched.raw, document: fetched.document, odd: Vec::new() },
                Ok(None) => Outcome::Same,
                Err(failure) => Outcome::Failed(failure),
            };
            polled(place, key, basis, outcome)
        });
        let sources = news.is_some();
        if let Some(event) = news {
            self.report.emit(event);
            self.merge(false);
        }
        Change { sources, ..Change::default() }
    }

    /// The settings of cfn: what the files say, and stronger, what its own newest answer says of itself,
    /// so that a new key pair is followed without a restart.
    ///
    /// An answer that was fetched under other local settings says nothing about these: somebody has
    /// pointed the server to another stack. Only where the files no longer say enough does it count.
    fn learn(&mut self) -> Learnt {
        let mut learnt = Learnt::from_files(&self.files);
        self.basis = learnt.digest();
        let complete = matches!(learnt.endpoint(), Ok(Some(_)));
        if let Some(source) = self.sources.iter().find(|source| source.name == SourceName::Cfn)
            && let Some(document) = &source.document
            && (source.basis == self.basis || !complete)
        {
            learnt.overlay_document(document);
        }
        learnt
    }

    fn http_for(&mut self, endpoint: &Endpoint) -> Http {
        let Some(ca) = &endpoint.ca else { return self.http.clone() };
        match &self.cfn_http {
            Some((known, http)) if known == ca => http.clone(),
            _ => {
                let http = self.http.with_endpoint_ca(ca);
                self.cfn_http = Some((ca.clone(), http.clone()));
                http
            }
        }
    }

    fn landed(&mut self, polled: Result<Polled, tokio::task::JoinError>) -> Change {
        if let Ok(polled) = polled {
            return self.settle(polled);
        }
        // A task that died says nothing; its source is polled again when due.
        for source in &mut self.sources {
            source.flying = false;
        }
        Change::default()
    }

    /// Takes over what a poll brought.
    fn settle(&mut self, polled: Polled) -> Change {
        let nothing_known = self.sources.iter().all(|source| !source.configured);
        let Some(source) = self.sources.iter_mut().find(|source| source.name == polled.source) else { return Change::default() };
        let settled = source.settle(polled, &self.clock);
        if nothing_known && !source.configured {
            source.at_most(LOOKING, &self.clock);
        }
        if source.name == SourceName::Cfn {
            source.keep(&self.state, &self.report);
        }
        let name = source.name.as_str();
        for event in settled.events {
            self.report.emit(event);
        }
        self.tell_odd(name, &settled.odd);
        let had = (self.snapshot.digest.clone(), self.snapshot.deployments.as_ref().map(|list| list.len()));
        self.merge(settled.reshaped);
        let metadata = self.snapshot.digest != had.0;
        if metadata {
            let shown = |n: Option<usize>| n.map_or("no list of deployments".to_owned(), |n| format!("{n} deployments"));
            let now = self.snapshot.deployments.as_ref().map(|list| list.len());
            let message = format!("the metadata changed: {}, before {}", shown(now), shown(had.1));
            self.report.emit(Event::new(Code::MetadataChanged, message).phase(Phase::Metadata).source(name));
        }
        Change { metadata, answered: settled.answered && name != SourceName::HeatLocal.as_str(), sources: settled.sources }
    }

    /// Makes the snapshot anew: wholly where a document or the standing of a source changed.
    fn merge(&mut self, wholly: bool) {
        let layers: Vec<_> = self.sources.iter().filter_map(Source::layer).collect();
        let shown = self.sources.iter().filter(|source| source.configured || source.state.last_good.is_some());
        let states: BTreeMap<_, _> = shown.map(|source| (source.name.as_str(), source.state.clone())).collect();
        if wholly {
            self.snapshot = Snapshot::merge(&layers, states);
        } else {
            self.snapshot.sources = states;
            self.snapshot.authority = snapshot::authority(&layers);
        }
    }

    fn tell_odd(&self, source: &str, odd: &[String]) {
        for what in odd {
            let event = Event::new(Code::MetadataOdd, format!("{source}: {what}")).phase(Phase::Metadata).source(source);
            self.report.emit(event.step(what.clone()).cause(what.clone()));
        }
    }

    /// Says once, each time it comes to that, that there is nowhere to read metadata from.
    fn tell_nothing_known(&mut self) {
        let nothing = self.sources.iter().all(|source| !source.configured && source.document.is_none());
        if nothing && !self.nothing_known {
            let unsupported: Vec<_> = self
                .files
                .config
                .collectors()
                .into_iter()
                .filter(|name| matches!(name.as_str(), "heat" | "request" | "zaqar"))
                .collect();
            let mut event = Event::new(Code::NoSource, "no source of metadata is known").phase(Phase::Metadata);
            if !unsupported.is_empty() {
                event = event
                    .cause(format!("os-collect-config asks for {}, which this version cannot poll", unsupported.join(", ")))
                    .remedy("set software_config_transport: POLL_SERVER_CFN for this server");
            }
            self.report.emit(event);
        }
        self.nothing_known = nothing;
    }
}
