//! The loop of the daemon: one thread, four things at once.
//!
//! * the sources are polled (`collect`),
//! * one script or hook runs, in the order of the list (`programs`),
//! * the node is brought up or looked after (`node`),
//! * signals are sent (`signal`).
//!
//! Whenever one of them moves, [`Agent::decide`] looks at the whole picture afresh and starts what may
//! be started. All that must not be lost is on disk before the next step begins.

mod begin;
mod disk;
pub(crate) mod ending;
mod orders;
mod settle;
pub(super) mod view;

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::LocalBoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::signal::unix::{SignalKind, signal};

use super::instance::Place;
use super::node::unrest::Unrest;
use super::node::{self, Node};
use super::page;
use super::pause::Pause;
use crate::clock::{Clock, Stopwatch, Timestamp};
use crate::collect::Collector;
use crate::commands::print_error;
use crate::deploy::{Extent, Generation, Generations, Journal, Record, Reference};
use crate::error::{Error, Result};
use crate::files::Tree;
use crate::http::Http;
use crate::keepers::certificates;
use crate::keepers::volumes::Fills;
use crate::kubernetes::Leave;
use crate::process::exit;
use crate::programs::{Programs, Ran};
use crate::progress::Progress;
use crate::report::damper::Damper;
use crate::report::explain::{headline, tree};
use crate::report::notify::Notify;
use crate::report::status::{CertificatesStatus, Condition, PodNetworkStatus, ThinPoolStatus};
use crate::report::{Code, Event, Phase, Report};
use crate::settings::{NodeSource, Settings};
use crate::signal::{Entry, Fate, Outbox, Sender, Sending, View};
use crate::watch::AsyncWatch;
use begin::Worklist;
use view::{ids, view};

/// Pause after something of ours failed that should not (a full disk, a bus that is gone).
const AFTER_TROUBLE: Duration = Duration::from_secs(5);
/// A pass that has not ended after this is given up: no wait condition lives longer.
const PASS_LIMIT: Duration = Duration::from_hours(24);

/// How many malformed entries without an id are remembered as said.
const SAID_LIMIT: usize = 256;
/// A single pass gives up after this many failures of our own; the daemon never does.
const TROUBLE_LIMIT: u32 = 3;
/// A job that ends before its program is started this often is reported as failed.
const FALSE_START_LIMIT: u32 = 5;

/// The shortest interval at which a node is looked at without a poll that says anything.
const LOOK: Duration = Duration::from_mins(1);

/// How long signals that are on their way may take once the agent is to stop: it stops within a second (design.md 7).
const FINISH: Duration = Duration::from_millis(600);
/// For each deployment on the page, the pause before it is made anew, where there are more than a few.
const PAGE_PAUSE: Duration = Duration::from_micros(500);
const SHORT_LIST: u32 = 40;

type Lane<T> = Option<LocalBoxFuture<'static, T>>;

/// The daemon.
pub(super) struct Agent {
    pub(super) settings: Rc<Settings>,
    pub(super) clock: Clock,
    pub(super) report: Report,
    /// How far bringing the node up is.
    pub(super) progress: Progress,
    pub(super) started: Timestamp,
    /// Whose machine and state this is.
    pub(super) instance: crate::identity::Record,
    root: Arc<Tree>,
    run_dir: Option<Tree>,
    pub(super) journal: Journal,
    pub(super) generations: Generations,
    pub(super) outbox: Rc<Outbox>,
    pub(super) collector: Collector,
    programs: Rc<Programs>,
    node: Rc<Node>,
    notify: Notify,
    /// The script or hook that runs.
    hook: Lane<(String, Result<Option<Ran>>)>,
    hook_id: Option<String>,
    /// Whether that one is to be ended.
    leaving: ending::Leaving,
    /// The node that is being brought up.
    bring_up: Lane<(String, node::Done)>,
    /// What is still to be done of the list in force.
    worklist: Worklist,
    /// What is on disk.
    pub(super) disk: disk::Disk,
    pub(super) bring_up_id: Option<String>,
    /// The node that is being compared with its parameters.
    watch: Lane<Result<node::Look>>,
    /// Since the last time that this was due.
    since_look: Stopwatch,
    /// The network of pods of the node in place is watched, and for which generation.
    pods: Lane<Option<PodNetworkStatus>>,
    pods_of: Option<u64>,
    pub(super) pod_network: Option<PodNetworkStatus>,
    /// Signals on their way.
    sending: FuturesUnordered<Sending>,
    /// What left the outbox and could not be recorded, e.g. on a full disk: it must not be sent again.
    unrecorded: Vec<(Entry, Fate)>,
    pub(super) drifted: bool,
    /// The certificates of the node in place, at the newest look.
    pub(super) certificates: Option<CertificatesStatus>,
    pub(super) thin_pool: Option<ThinPoolStatus>,
    pub(super) phase: Phase,
    page: Option<crate::report::status::Status>,
    /// Since the page was last made, and whether something moved since.
    since_page: Stopwatch,
    page_is_old: bool,
    trouble: Option<Stopwatch>,
    troubles: u32,
    /// How often a job ended before its program was started, by deployment.
    false_starts: BTreeMap<String, u32>,
    said: Damper<String>,
    state: Arc<Tree>,
    /// What of our own failed last, until it goes well again.
    pub(super) troubled: Option<Condition>,
    /// What was found before the loop began.
    pub(super) conditions: Vec<Condition>,
    /// Tells when an order of the operator comes.
    orders: AsyncWatch,
}

/// Where the status file goes; the agent works without it too.
fn open_run_dir(settings: &Settings, report: &Report) -> Option<Tree> {
    let opened = Tree::open_or_create(&settings.run_dir, 0o755);
    opened
        .inspect_err(|error| report.emit(Event::new(Code::StateWriteFailed, "no status file will be written").error(error)))
        .ok()
}

impl Agent {
    pub(super) fn open(place: Place, metadata: Option<PathBuf>, instance: crate::identity::Record) -> Result<Self> {
        let Place { settings, root, state, systemd, clock, report } = place;
        let settings = Rc::new(settings);
        let http = Rc::new(Http::new(settings.tls.clone(), Arc::clone(&root), clock.clone()));
        let journal =
            Journal::open(Arc::clone(&state), Some(&settings.deploy.deployed_dir), settings.deploy.keep, clock.clone(), &report)?;
        let generations = Generations::open(Arc::clone(&state), &report)?;
        let run_dir = open_run_dir(&settings, &report);
        let mut collector = Collector::new(
            (*settings).clone(),
            Arc::clone(&root),
            Arc::clone(&state),
            (*http).clone(),
            clock.clone(),
            report.clone(),
            metadata,
        );
        collector.belong_to(&instance, run_dir.as_ref());
        let since_look = clock.start();
        let sender = Sender::new((*http).clone(), collector.keystone().clone(), clock.clone());
        let outbox = Rc::new(Outbox::open(Arc::clone(&state), sender, clock.clone(), report.clone())?);
        let progress = Progress::new(report.clone(), clock.clone());
        let programs = Rc::new(Programs::new(Arc::clone(&state), systemd.clone(), clock.clone())?);
        let node = Rc::new(Node {
            root: Arc::clone(&root),
            state: Arc::clone(&state),
            systemd,
            http,
            keystone: collector.keystone().clone(),
            programs: Rc::clone(&programs),
            secrets: RefCell::default(),
            clock: clock.clone(),
            report: report.clone(),
            progress: progress.clone(),
            patience: settings.patience,
            leave: Leave::of(&settings),
            machine: OnceCell::new(),
            looked: Cell::new(false),
            certificates: certificates::Watcher::default(),
            unrest: Unrest::default(),
            pause: Pause::default(),
            renewal: RefCell::default(),
            growths: Rc::default(),
            fills: Fills::default(),
            flanneld: Cell::new(None),
            answers: RefCell::default(),
            drift: RefCell::default(),
            pod_memory: RefCell::default(),
        });
        let orders = orders::watch(&state)?;
        warn_of_settings(&settings, &report);
        report.emit(
            Event::new(Code::AgentStarted, format!("heat-node-agent {} started", env!("CARGO_PKG_VERSION")))
                .phase(Phase::Settings),
        );
        Ok(Self {
            settings,
            started: clock.now(),
            instance,
            clock: clock.clone(),
            report,
            progress,
            root,
            run_dir,
            journal,
            generations,
            outbox,
            collector,
            programs,
            node,
            notify: Notify::default(),
            hook: None,
            hook_id: None,
            leaving: ending::Leaving::default(),
            bring_up: None,
            worklist: Worklist::default(),
            disk: disk::Disk::default(),
            bring_up_id: None,
            watch: None,
            since_look,
            pods: None,
            pods_of: None,
            pod_network: None,
            sending: FuturesUnordered::new(),
            unrecorded: Vec::new(),
            drifted: false,
            certificates: None,
            thin_pool: None,
            phase: Phase::Metadata,
            since_page: clock.start(),
            page_is_old: false,
            page: None,
            trouble: None,
            troubles: 0,
            false_starts: BTreeMap::new(),
            said: Damper::with_limit(SAID_LIMIT),
            state,
            troubled: None,
            conditions: Vec::new(),
            orders,
        })
    }

    /// Until SIGTERM or SIGINT.
    pub(super) async fn run(mut self) -> Result<ExitCode> {
        self.notify.ready();
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut reload = signal(SignalKind::hangup())?;
        self.look_after_node();
        loop {
            self.step();
            let (clock, until_look) = (self.clock.clone(), self.until_look());
            tokio::select! {
                _ = terminate.recv() => break,
                _ = interrupt.recv() => break,
                // R6: at any time; the files that sources are learnt from are read again by the poll.
                _ = reload.recv() => self.collector.nudge(),
                () = clock.wait(until_look) => self.look_after_node(),
                () = self.turn() => {}
            }
        }
        self.notify.stopping();
        self.finish_sending().await;
        self.report.emit(Event::new(Code::AgentStopping, "the agent is stopping"));
        Ok(exit::OK)
    }

    /// Waits a moment for the answers to what is on its way: of a signal without one the next run does not know that Heat has it,
    /// and Heat would get it twice.
    async fn finish_sending(&mut self) {
        let clock = self.clock.clone();
        let finish = async {
            while let Some(sent) = self.sending.next().await {
                self.sent(sent);
            }
        };
        clock.limit(FINISH, finish).await;
    }

    /// One full pass: every source once, every deployment that it lists, every signal that can be sent.
    pub(super) async fn run_once(mut self) -> Result<ExitCode> {
        let since = self.clock.start();
        let change = self.collector.poll_once().await;
        self.heard(change);
        while since.elapsed() < PASS_LIMIT {
            self.step();
            if self.is_idle() || self.troubles >= TROUBLE_LIMIT {
                break;
            }
            self.turn().await;
        }
        self.publish();
        let listed = ids(self.collector.snapshot());
        let failed = self.journal.all().iter().any(|record| record.failed() && listed.contains(&record.id));
        let waiting = !self.outbox.is_empty();
        let snapshot = self.collector.snapshot();
        let unheard = snapshot.authority.is_none() && snapshot.sources.values().any(|source| source.failures > 0);
        let troubled = self.troubles >= TROUBLE_LIMIT || !self.said.reported().is_empty();
        if !(failed || waiting || unheard || troubled) {
            return Ok(exit::OK);
        }
        let why = self.page.as_ref().map(|page| headline(&tree(page, true))).unwrap_or_default();
        let remedy = "see `heat-node-agent status`; its actions are in the journal: journalctl -t heat-node-agent";
        print_error(&Error::permanent(why).context("something failed").remedy(remedy));
        Ok(exit::FAILED)
    }

    /// Nothing runs, and nothing can be started or sent without a poll.
    fn is_idle(&self) -> bool {
        let lanes = self.hook.is_some() || self.bring_up.is_some() || !self.sending.is_empty();
        let sendable = self.outbox.due().is_some_and(|due| due <= self.clock.now());
        // A first try that is held back for a moment belongs to this pass.
        let held = self.outbox.waiting().iter().any(|entry| entry.tries == 0 && entry.not_before > self.clock.now());
        // One more answer is asked for before a result is sent.
        let asks = self.collector.is_answering() || self.worklist.goes_on;
        !lanes && !sendable && !held && !asks && self.trouble.is_none()
    }

    fn step(&mut self) {
        if self.trouble.as_ref().is_none_or(|since| since.elapsed() >= AFTER_TROUBLE) {
            self.trouble = None;
            self.record_fates();
            // Before anything is begun: an order that was cut off must not meet what it was to change in another shape.
            self.serve_orders();
            if let Err(error) = self.decide() {
                self.trouble("processing the deployments", &error);
            }
            if self.trouble.is_none() {
                self.troubled = None;
            }
        }
        self.watch_pods();
        if self.until_page().is_zero() || self.phase != self.current_phase() {
            self.publish();
        } else {
            self.page_is_old = true;
        }
    }

    /// How long until the page is made anew. It names every deployment: made at each turn, it would take most of the time of a long
    /// list.
    fn until_page(&self) -> Duration {
        let pause = PAGE_PAUSE.saturating_mul(u32::try_from(self.journal.len()).unwrap_or(u32::MAX));
        if pause < PAGE_PAUSE * SHORT_LIST { Duration::ZERO } else { pause.saturating_sub(self.since_page.elapsed()) }
    }

    /// How long until the node is looked at although no poll brought anything: a boot copy that does not change brings nothing.
    fn until_look(&self) -> Duration {
        let at_most = self.settings.polling_interval.max(LOOK) * 2;
        if self.node_is_busy() { at_most } else { at_most.saturating_sub(self.since_look.elapsed()) }
    }

    /// Waits until one thing moves, and takes it in.
    async fn turn(&mut self) {
        let now = self.clock.now();
        // In trouble nothing is begun or sent before its end: what is due would only spin.
        let due = self.outbox.due().map(|at| at.since(now));
        let wake = self.trouble.as_ref().map(|since| AFTER_TROUBLE.saturating_sub(since.elapsed())).or(due);
        let watchdog = Notify::interval();
        let page = self.page_is_old.then(|| self.until_page());
        let more = (self.worklist.goes_on && self.trouble.is_none()).then_some(Duration::ZERO);
        let grace = self.until_grace_is_over().filter(|_| self.trouble.is_none());
        let pause = [wake, watchdog, page, more, grace].into_iter().flatten().min().unwrap_or(Duration::from_hours(1));
        tokio::select! {
            change = self.collector.changed() => self.polled(change),
            (id, ran) = lane(&mut self.hook) => {
                self.hook_left();
                self.hook_ended(&id, ran);
            }
            (id, done) = lane(&mut self.bring_up) => {
                self.bring_up = None;
                self.bring_up_id = None;
                self.node_ended(&id, done);
            }
            look = lane(&mut self.watch) => {
                self.watch = None;
                self.looked(look);
            }
            seen = lane(&mut self.pods) => {
                self.pods = None;
                // Nothing to watch: until there is another generation.
                if seen.is_some() {
                    (self.pod_network, self.pods_of) = (seen, None);
                }
            }
            Some(sent) = self.sending.next() => self.sent(sent),
            () = self.orders.changed() => {}
            // The page is made anew at the end of the turn.
            () = self.progress.changed() => {}
            () = self.clock.wait(pause) => {}
        }
        self.notify.alive();
    }

    /// Compares a node with its parameters, whatever came of its last deployment; cheap when nothing changed.
    pub(super) fn look_after_node(&mut self) {
        let idle = !self.node_is_busy();
        self.since_look = self.clock.start();
        let Some(reference) = self.generations.current().filter(|_| idle).and_then(Generation::reference) else { return };
        let node = Rc::clone(&self.node);
        self.watch = Some(Box::pin(async move { node.look(&reference).await }));
    }

    /// Keeps watch on the network of pods, whatever came of the last deployment; not while the node is brought up, when units come
    /// and go.
    fn watch_pods(&mut self) {
        let idle = self.bring_up.is_none();
        let had_one = |reference: &Reference| reference.extent != Extent::Nothing;
        let reference = self.generations.current().filter(|_| idle).and_then(Generation::reference).filter(had_one);
        let Some(reference) = reference else {
            (self.pods, self.pods_of, self.pod_network) = (None, None, None);
            return;
        };
        if self.pods_of == Some(reference.generation) {
            return;
        }
        self.pods_of = Some(reference.generation);
        let (node, shown) = (Rc::clone(&self.node), self.pod_network.clone());
        self.pods = Some(Box::pin(async move { node.watch_pods(&reference, shown).await }));
    }

    /// Whether the node is brought up or looked at now.
    pub(super) fn node_is_busy(&self) -> bool {
        self.bring_up.is_some() || self.watch.is_some()
    }

    fn looked(&mut self, look: Result<node::Look>) {
        match look {
            Ok(look) => (self.drifted, self.certificates, self.thin_pool) = (look.drifted, look.certificates, look.thin_pool),
            Err(error) => self.trouble("comparing the node with its parameters", &error),
        }
    }

    /// What signals need to know of the newest metadata.
    fn view(&self) -> View {
        view(self.collector.snapshot())
    }

    fn trouble(&mut self, doing: &str, error: &Error) {
        self.report.emit(
            Event::new(Code::of_trouble(error), format!("failed: {doing}")).step(doing).error(error).next_try(AFTER_TROUBLE),
        );
        self.trouble = Some(self.clock.start());
        self.troubles += 1;
        self.troubled = Some(page::trouble(self.troubled.take(), doing, error, self.clock.now()));
    }

    /// The status file and systemd's line, where they changed.
    fn publish(&mut self) {
        (self.since_page, self.page_is_old) = (self.clock.start(), false);
        self.phase = self.current_phase();
        let page = page::of(self);
        self.notify.status(&page.summary);
        if self.page.as_ref() == Some(&page) {
            return;
        }
        if let Some(run_dir) = &self.run_dir
            && let Err(error) = page::write(run_dir, &page)
        {
            self.report
                .emit(Event::new(Code::StateWriteFailed, "the status file cannot be written").step("status").error(&error));
        }
        self.page = Some(page);
    }

    fn current_phase(&self) -> Phase {
        if self.bring_up.is_some() {
            self.progress.phase()
        } else if self.hook.is_some() {
            Phase::Deploy
        } else if !self.outbox.is_empty() {
            Phase::Signal
        } else if self.collector.snapshot().deployments.is_none() {
            Phase::Metadata
        } else {
            Phase::Steady
        }
    }

    /// The deployment whose script or hook runs now.
    pub(super) fn running(&self) -> Option<&Record> {
        self.hook_id.as_deref().and_then(|id| self.journal.get(id))
    }
}

impl std::fmt::Debug for Agent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Agent").field("phase", &self.phase).finish_non_exhaustive()
    }
}

/// What is allowed, or asked for and not done, is said at each start.
fn warn_of_settings(settings: &Settings, report: &Report) {
    if settings.tls.allow_insecure {
        let line = "[tls] allow_insecure lets parameters turn off the verification of certificates";
        report.emit(Event::new(Code::InsecureTls, line).step("tls"));
    }
    if settings.node_source == NodeSource::HeatParams {
        let line = "[node] source = \"heat-params\" is not supported by this version: only deployments of the group kubernetes-node configure the node";
        report.emit(Event::new(Code::SettingsUnknownKey, line).step("node.source"));
    }
}

/// A lane's end; never, while it is empty.
async fn lane<T>(lane: &mut Lane<T>) -> T {
    match lane {
        Some(running) => running.await,
        None => std::future::pending().await,
    }
}
