//! The loop of the daemon: one thread, four things at once.
//!
//! * the sources are polled (`collect`),
//! * one script or hook runs, in the order of the list (`programs`),
//! * the node is brought up or looked after (`node`),
//! * signals are sent (`signal`).
//!
//! Whenever one of them moves, [`Agent::decide`] looks at the whole picture afresh and starts what may
//! be started. All that must not be lost is on disk before the next step begins.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::LocalBoxFuture;
use serde_json::Value;
use tokio::signal::unix::{SignalKind, signal};

use super::node::{self, Node};
use super::page;
use crate::clock::{Clock, Stopwatch, Timestamp};
use crate::collect::{Authority, Change, Collector, Snapshot};
use crate::commands::exit;
use crate::deploy::{
    self, GenerationState, Generations, Journal, Outcome, Policy, Record, SIGNAL_LIMIT, State, Todo, Work, hooks, todo,
};
use crate::error::{Error, Kind, Result};
use crate::files::Tree;
use crate::http::Http;
use crate::kubernetes;
use crate::metadata::{Deployment, Malformed, SignalTarget};
use crate::programs::{Programs, Ran};
use crate::report::notify::Notify;
use crate::report::{Code, Event, Phase, Report};
use crate::settings::{NodeSource, Settings, SourceName};
use crate::signal::{About, Destination, Entry, Fate, Outbox, Sent, View};
use crate::systemd::Systemd;

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

type Lane<T> = Option<LocalBoxFuture<'static, T>>;

/// The daemon.
pub(super) struct Agent {
    pub(super) settings: Rc<Settings>,
    pub(super) clock: Clock,
    pub(super) report: Report,
    pub(super) started: Timestamp,
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
    /// The node that is being brought up.
    bring_up: Lane<(String, node::Done)>,
    pub(super) bring_up_id: Option<String>,
    /// The node that is being compared with its parameters.
    watch: Lane<Result<node::Look>>,
    /// Signals on their way.
    sending: Lane<Sent>,
    pub(super) drifted: bool,
    pub(super) phase: Phase,
    page: Option<crate::report::status::Status>,
    trouble: Option<Stopwatch>,
    troubles: u32,
    /// How often a job ended before its program was started, by deployment.
    false_starts: BTreeMap<String, u32>,
    said: BTreeSet<String>,
}

impl Agent {
    pub(super) fn open(
        settings: Settings,
        root: Arc<Tree>,
        state: &Arc<Tree>,
        systemd: Option<Systemd>,
        metadata: Option<PathBuf>,
        clock: Clock,
        report: Report,
    ) -> Result<Self> {
        let settings = Rc::new(settings);
        let http = Rc::new(Http::new(settings.tls.clone(), Arc::clone(&root), clock.clone()));
        let journal =
            Journal::open(Arc::clone(state), Some(&settings.deploy.deployed_dir), settings.deploy.keep, clock.clone(), &report)?;
        let generations = Generations::open(Arc::clone(state), &report)?;
        let outbox = Rc::new(Outbox::open(Arc::clone(state), Rc::clone(&http), clock.clone(), report.clone())?);
        let collector = Collector::new(
            (*settings).clone(),
            Arc::clone(&root),
            Arc::clone(state),
            (*http).clone(),
            clock.clone(),
            report.clone(),
            metadata,
        );
        let programs = Rc::new(Programs::new(Arc::clone(state), systemd.clone(), clock.clone())?);
        let node = Rc::new(Node {
            root: Arc::clone(&root),
            state: Arc::clone(state),
            systemd,
            http,
            programs: Rc::clone(&programs),
            clock: clock.clone(),
            report: report.clone(),
        });
        let run_dir = match Tree::open_or_create(&settings.run_dir, 0o755) {
            Ok(tree) => Some(tree),
            Err(error) => {
                report.emit(Event::new(Code::StateWriteFailed, "there will be no status file").error(&error));
                None
            }
        };
        warn_of_settings(&settings, &report);
        report.emit(
            Event::new(Code::AgentStarted, format!("heat-node-agent {} started", env!("CARGO_PKG_VERSION")))
                .phase(Phase::Settings),
        );
        Ok(Self {
            settings,
            started: clock.now(),
            clock,
            report,
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
            bring_up: None,
            bring_up_id: None,
            watch: None,
            sending: None,
            drifted: false,
            phase: Phase::Metadata,
            page: None,
            trouble: None,
            troubles: 0,
            false_starts: BTreeMap::new(),
            said: BTreeSet::new(),
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
            tokio::select! {
                _ = terminate.recv() => break,
                _ = interrupt.recv() => break,
                // R6: at any time; the files that sources are learnt from are read again by the poll.
                _ = reload.recv() => self.collector.nudge(),
                () = self.turn() => {}
            }
        }
        self.notify.stopping();
        self.report.emit(Event::new(Code::AgentStopping, "the agent is stopping"));
        Ok(exit::OK)
    }

    /// One full pass: every source once, every deployment that it lists, every signal that can be sent.
    pub(super) async fn run_once(mut self) -> Result<ExitCode> {
        let since = self.clock.start();
        self.collector.poll_once().await;
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
        let waiting = !self.outbox.waiting().is_empty();
        let snapshot = self.collector.snapshot();
        let unheard = snapshot.authority.is_none() && snapshot.sources.values().any(|source| source.failures > 0);
        let troubled = self.troubles >= TROUBLE_LIMIT || !self.said.is_empty();
        Ok(if failed || waiting || unheard || troubled { exit::FAILED } else { exit::OK })
    }

    /// Nothing runs, and nothing can be started or sent without a poll.
    fn is_idle(&self) -> bool {
        let lanes = self.hook.is_some() || self.bring_up.is_some() || self.sending.is_some();
        let sendable = self.outbox.due(&self.view()).is_some_and(|due| due <= self.clock.now());
        !lanes && !sendable && self.trouble.is_none()
    }

    fn step(&mut self) {
        if self.trouble.as_ref().is_none_or(|since| since.elapsed() >= AFTER_TROUBLE) {
            self.trouble = None;
            if let Err(error) = self.decide() {
                self.trouble("going on with the deployments", &error);
            }
        }
        self.publish();
    }

    /// Waits until one thing moves, and takes it in.
    async fn turn(&mut self) {
        let view = self.view();
        let now = self.clock.now();
        // In trouble nothing is begun or sent before its end: what is due would only spin.
        let due = self.outbox.due(&view).filter(|_| self.sending.is_none()).map(|at| at.since(now));
        let wake = self.trouble.as_ref().map(|since| AFTER_TROUBLE.saturating_sub(since.elapsed())).or(due);
        let watchdog = Notify::interval();
        let pause = [wake, watchdog].into_iter().flatten().min().unwrap_or(Duration::from_hours(1));
        tokio::select! {
            change = self.collector.changed() => self.polled(change),
            (id, ran) = lane(&mut self.hook) => {
                self.hook = None;
                self.hook_id = None;
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
            fates = lane(&mut self.sending) => {
                self.sending = None;
                self.sent(fates);
            }
            () = self.clock.wait(pause) => {}
        }
        self.notify.alive();
    }

    /// Results without a signal get theirs stored: after a start, and after a disk was full. Not while one is on its way,
    /// which has left the outbox but not been recorded yet.
    fn take_up(&mut self) -> Result<()> {
        if self.sending.is_some() {
            return Ok(());
        }
        let bare = |record: &&Record| record.state == State::Finished && !self.outbox.has(&result_key(&record.id));
        let finished: Vec<Record> = self.journal.all().into_iter().filter(bare).cloned().collect();
        finished.iter().try_for_each(|record| self.store_signal(record))
    }

    fn polled(&mut self, change: Change) {
        self.look_after_node();
        let snapshot = self.collector.snapshot();
        if !change.metadata || !lists_all(snapshot) {
            return;
        }
        let listed = ids(self.collector.snapshot());
        self.let_go_of_unlisted(&listed);
        match self.journal.prune(|id| listed.contains(id)) {
            Ok(gone) => {
                for id in gone {
                    let job = format!("deployment-{}", crate::programs::key_of(&id));
                    let removed = self.programs.forget(&job).and_then(|()| hooks::script::forget(&self.root, &id));
                    if let Err(error) = removed {
                        self.trouble("forgetting an old job", &error);
                    }
                }
            }
            Err(error) => self.trouble("forgetting old records", &error),
        }
    }

    /// Work of an earlier run of the agent whose deployment is gone: nobody waits for its result any more.
    fn let_go_of_unlisted(&mut self, listed: &BTreeSet<String>) {
        let in_lane = |id: &String| self.hook_id.as_ref() == Some(id) || self.bring_up_id.as_ref() == Some(id);
        let orphaned = |record: &&Record| record.state <= State::Running && !listed.contains(&record.id) && !in_lane(&record.id);
        let orphans: Vec<String> = self.journal.all().into_iter().filter(orphaned).map(|record| record.id.clone()).collect();
        for id in orphans {
            if let Err(error) = self.journal.signalled(&id, Some("gone from the metadata before it ended".to_owned())) {
                self.trouble("letting go of a deployment", &error);
            }
        }
    }

    /// Looks at the whole list afresh and starts what may be started: one script or hook at a time, in the order of the
    /// list, and the node beside those that come after it.
    fn decide(&mut self) -> Result<()> {
        // Signals go out even where nothing new can be begun, e.g. on a full disk.
        let begun = self.take_up().and_then(|()| self.begin());
        self.start_sending();
        begun
    }

    fn begin(&mut self) -> Result<()> {
        let policy = Policy { groups: self.settings.deploy.groups.clone() };
        let entries = self.collector.snapshot().deployments.clone().unwrap_or_default();
        self.drop_superseded_bring_up()?;
        let list = todo(entries.as_slice(), |id| self.journal.get(id), &policy);
        // Once a script waits for its turn, those behind it wait too; what is wrong with them is said at once all the same.
        let mut busy = false;
        for item in list {
            match item {
                Todo::Malformed(malformed, entry) => self.refuse_malformed(&malformed, &entry)?,
                Todo::Forbidden(deployment) => {
                    let rule = self.settings.deploy.groups.clone().unwrap_or_default().join(", ");
                    let error = Error::refused(format!("group {:?} is not allowed on this image", deployment.group))
                        .rule(format!("[deploy] groups in agent.toml allows: {rule}"))
                        .remedy("use an allowed group, or have the image allow it");
                    self.refuse(&deployment, Code::DeploymentForbidden, &error)?;
                }
                Todo::Twice(deployment) => {
                    if self.bring_up_id.as_ref() != Some(&deployment.id) {
                        let error = Error::refused("more than one kubernetes-node deployment for this server")
                            .rule("one kubernetes-node deployment a server (design.md 5)")
                            .remedy("keep one of them in the template");
                        self.refuse(&deployment, Code::NodeTwice, &error)?;
                    }
                }
                Todo::Do { deployment, work: Work::Node, state } => {
                    if self.bring_up.is_none() && (!busy || node::understand(&deployment).is_err()) {
                        self.start_node(*deployment, state)?;
                    }
                }
                Todo::Do { deployment, work, state } => {
                    busy = busy || self.hook.is_some() || !self.start_hook(*deployment, &work, state)?;
                }
            }
        }
        Ok(())
    }

    /// A bring-up that Heat replaced by something newer is left where it is: the newer one goes on from there.
    fn drop_superseded_bring_up(&mut self) -> Result<()> {
        let Some(id) = self.bring_up_id.clone() else { return Ok(()) };
        let snapshot = self.collector.snapshot();
        if !lists_all(snapshot) || snapshot.lists(&id) {
            return Ok(());
        }
        self.bring_up = None;
        self.bring_up_id = None;
        self.generations.end(GenerationState::Rejected, Some("superseded while it was put in place".to_owned()), Vec::new())?;
        self.journal.signalled(&id, Some("superseded while it ran".to_owned()))
    }

    /// `true` if the next one may be looked at.
    fn start_hook(&mut self, deployment: Deployment, work: &Work, state: Option<State>) -> Result<bool> {
        if !self.see(&deployment, state)? {
            return Ok(true);
        }
        let limit = self.settings.deploy.time_limit.map(|limit| u64::try_from(limit.as_millis()).unwrap_or(u64::MAX));
        let job = match work {
            Work::Script => hooks::script::job(&deployment, limit),
            _ => hooks::external(&deployment, &self.root, &self.settings.deploy.hook_dirs, limit),
        };
        let job = match job {
            Ok(mut job) => {
                // A script of Magnum's may print what only its parameters' names tell to be secret.
                let secret = deployment.inputs.iter().filter(|input| kubernetes::is_secret_parameter(&input.name));
                job.secrets.extend(secret.filter_map(|input| input.value.as_str()).map(str::to_owned));
                job
            }
            Err(error) => {
                let code = if *work == Work::Script { Code::DeploymentMalformed } else { Code::DeploymentNoHook };
                self.refuse(&deployment, code, &error)?;
                return Ok(true);
            }
        };
        let Some(record) = self.journal.get(&deployment.id) else { return Ok(true) };
        let key = record.job();
        let unit = Programs::unit(&key);
        self.programs.prepare(&key, &job)?;
        let event = if state == Some(State::Running) {
            Event::new(Code::DeploymentReattached, format!("deployment {} is taken up again", deployment.name))
        } else {
            self.journal.start(&deployment.id, &deployment.to_hook_json())?;
            Event::new(Code::DeploymentStarted, format!("deployment {} ({}) starts", deployment.name, deployment.group))
        };
        self.report.emit(event.phase(Phase::Deploy).deployment(&deployment.id, &deployment.name).foreign_unit(unit));
        let (programs, id) = (Rc::clone(&self.programs), deployment.id.clone());
        self.hook_id = Some(deployment.id);
        self.hook = Some(Box::pin(async move {
            let ran = programs.run(&key).await;
            (id, ran)
        }));
        Ok(false)
    }

    fn start_node(&mut self, deployment: Deployment, state: Option<State>) -> Result<()> {
        if !self.see(&deployment, state)? {
            return Ok(());
        }
        let entry = deployment.to_hook_json();
        if !matches!(deployment.action(), "CREATE" | "UPDATE" | "") {
            // The node stays as it is; Heat only wants to know that this was heard.
            self.journal.start(&deployment.id, &entry)?;
            return self.end(&deployment.id, Outcome::default());
        }
        let plan = match node::understand(&deployment) {
            Ok(plan) => plan,
            Err(mistakes) => {
                let error = node::bad_parameters(&mistakes);
                return self.refuse(&deployment, Code::NodeParametersBad, &error);
            }
        };
        self.journal.start(&deployment.id, &entry)?;
        let generation = self.generations.begin(&plan.digest, &deployment.id, entry)?;
        self.report.emit(
            Event::new(Code::NodePlanned, format!("generation {generation} of the node is put in place"))
                .phase(Phase::Plan)
                .generation(generation)
                .deployment(&deployment.id, &deployment.name),
        );
        let since = self.journal.get(&deployment.id).map_or(Duration::ZERO, |record| self.clock.now().since(record.seen));
        let (node, id) = (Rc::clone(&self.node), deployment.id.clone());
        self.bring_up_id = Some(deployment.id.clone());
        self.watch = None;
        self.bring_up = Some(Box::pin(async move {
            let done = node.bring_up(deployment, plan, generation, since).await;
            (id, done)
        }));
        Ok(())
    }

    /// Records a new deployment. `false` if the replaced tools ran it before us.
    fn see(&mut self, deployment: &Deployment, state: Option<State>) -> Result<bool> {
        if state.is_some() {
            return Ok(true);
        }
        let new = self.journal.see(deployment)?.is_some();
        let event = if new {
            Event::new(
                Code::DeploymentSeen,
                format!("deployment {} ({}, {}) is new", deployment.name, deployment.group, deployment.action()),
            )
        } else {
            Event::new(Code::DeploymentKnown, format!("deployment {} was run by the replaced tools", deployment.name))
        };
        self.report.emit(event.phase(Phase::Deploy).deployment(&deployment.id, &deployment.name));
        Ok(new)
    }

    fn refuse_malformed(&mut self, malformed: &Malformed, entry: &Value) -> Result<()> {
        let error = Error::permanent(malformed.mistakes.join("; "))
            .rule("a deployment is an object with id, group, inputs, outputs, options (heat-protocol.md 3.2)")
            .remedy("correct the template");
        let Some(id) = &malformed.id else {
            // Without an id it can be neither run nor remembered: said once for each text of it.
            if self.said.len() >= SAID_LIMIT {
                self.said.clear();
            }
            if self.said.insert(crate::programs::key_of(&entry.to_string())) {
                self.report.emit(
                    Event::new(Code::DeploymentMalformed, format!("a deployment {} is malformed", malformed.name)).error(&error),
                );
            }
            return Ok(());
        };
        self.report.emit(
            Event::new(Code::DeploymentMalformed, format!("deployment {} is malformed", malformed.name))
                .phase(Phase::Deploy)
                .deployment(id, &malformed.name)
                .error(&error),
        );
        let outcome = Outcome::refused(node::sentence(Code::DeploymentMalformed, &error));
        self.journal.refuse(id, &malformed.name, malformed.target.clone(), None, outcome)?;
        self.store_signal_of(id)
    }

    /// A deployment that is not begun: Heat hears why at once.
    fn refuse(&mut self, deployment: &Deployment, code: Code, error: &Error) -> Result<()> {
        if deployment.group == "kubernetes-node" {
            self.store_wait(deployment, self.node.wait_failure(deployment, code, error).as_ref())?;
        }
        self.see(deployment, self.journal.get(&deployment.id).map(|record| record.state))?;
        self.report.emit(
            Event::new(code, format!("deployment {} is refused", deployment.name))
                .phase(Phase::Deploy)
                .deployment(&deployment.id, &deployment.name)
                .error(error),
        );
        self.end(&deployment.id, Outcome::refused(node::sentence(code, error)))
    }

    fn hook_ended(&mut self, id: &str, ran: Result<Option<Ran>>) {
        let Some(record) = self.journal.get(id).cloned() else { return };
        let unit = Programs::unit(&record.job());
        let event = |code, message: String| {
            Event::new(code, message).phase(Phase::Deploy).deployment(&record.id, &record.name).foreign_unit(&unit)
        };
        let outcome = match ran {
            Err(error) if error.kind() == Kind::Permanent && self.false_start(id) => {
                self.report.emit(
                    event(Code::DeploymentFailed, format!("deployment {} could not be started", record.name)).error(&error),
                );
                Outcome::refused(node::sentence(Code::DeploymentFailed, &error))
            }
            Err(error) => {
                self.trouble(&format!("running deployment {}", record.name), &error);
                return;
            }
            Ok(None) => {
                let error = Error::permanent("interrupted: its unit ended without a result, and a script is never run twice")
                    .remedy("see how far it came, then update the stack to run it anew");
                self.report.emit(
                    event(Code::DeploymentInterrupted, format!("deployment {} was interrupted", record.name)).error(&error),
                );
                Outcome::refused(node::sentence(Code::DeploymentInterrupted, &error))
            }
            Ok(Some(ran)) => {
                let (timed_out, duration) = (ran.timed_out, Duration::from_millis(ran.duration_ms));
                let outcome = if record.group == "script" { Outcome::of_script(ran) } else { Outcome::of_hook(ran) };
                let code = match (outcome.fails(&record.outputs), timed_out) {
                    (false, _) => Code::DeploymentSucceeded,
                    (true, true) => Code::DeploymentTimedOut,
                    (true, false) => Code::DeploymentFailed,
                };
                let mut told =
                    event(code, format!("deployment {} ended with status {}", record.name, outcome.status)).duration(duration);
                if let Some(reason) = &outcome.reason {
                    told = told.cause(reason.clone());
                }
                self.report.emit(told);
                outcome
            }
        };
        if let Err(error) = self.end(id, outcome) {
            self.trouble("recording a result", &error);
        }
    }

    /// Counts a job that ended before its program was started; `true` when that is no accident any more.
    fn false_start(&mut self, id: &str) -> bool {
        let count = self.false_starts.entry(id.to_owned()).or_default();
        *count += 1;
        *count >= FALSE_START_LIMIT
    }

    fn node_ended(&mut self, id: &str, done: node::Done) {
        self.drifted = false;
        let recorded = self.record_node(id, done);
        if let Err(error) = recorded {
            self.trouble("recording the node's result", &error);
        }
    }

    fn record_node(&mut self, id: &str, done: node::Done) -> Result<()> {
        let (state, reason) = match &done.outcome.reason {
            None => (GenerationState::Applied, None),
            Some(reason) => (GenerationState::Rejected, Some(reason.clone())),
        };
        self.generations.end(state, reason, done.timings)?;
        // The wait condition's signal is stored before the deployment counts as finished: a crash between the two
        // brings the node up once more, which changes nothing, and stores the same key again.
        if let Some(wait) = done.wait {
            self.store_wait_of(id, &wait)?;
        }
        self.end(id, done.outcome)
    }

    fn end(&mut self, id: &str, outcome: Outcome) -> Result<()> {
        self.journal.finish(id, outcome)?;
        self.store_signal_of(id)
    }

    fn store_signal_of(&mut self, id: &str) -> Result<()> {
        match self.journal.get(id).cloned() {
            Some(record) if record.state == State::Finished => self.store_signal(&record),
            _ => Ok(()),
        }
    }

    /// Puts a finished deployment's result into the outbox, or records that nobody waits for it.
    fn store_signal(&mut self, record: &Record) -> Result<()> {
        let Some(outcome) = &record.outcome else { return Ok(()) };
        match &record.target {
            SignalTarget::None => self.journal.signalled(&record.id, Some("no signal wanted".to_owned())),
            SignalTarget::Unsupported { name } => {
                let error = Error::permanent(format!("{name} is not supported by this version"))
                    .remedy("set signal_transport: CFN_SIGNAL on the deployment");
                self.report.emit(
                    Event::new(Code::SignalUndeliverable, "the result cannot be sent")
                        .phase(Phase::Signal)
                        .deployment(&record.id, &record.name)
                        .error(&error),
                );
                self.journal.signalled(&record.id, Some(error.to_string()))
            }
            SignalTarget::Url { url, verb } => {
                let about =
                    About { id: record.id.clone(), name: record.name.clone(), resource: record.resource.clone(), result: true };
                let body = Value::Object(deploy::body(outcome, &record.outputs, SIGNAL_LIMIT));
                let destination = Destination::Url { url: url.clone(), verb: verb.clone() };
                self.outbox.put(Entry::new(result_key(&record.id), Some(about), destination, body, self.clock.now()))
            }
        }
    }

    fn store_wait(&mut self, deployment: &Deployment, wait: Option<&node::Wait>) -> Result<()> {
        let Some(wait) = wait else { return Ok(()) };
        self.see(deployment, self.journal.get(&deployment.id).map(|record| record.state))?;
        self.store_wait_of(&deployment.id, wait)
    }

    fn store_wait_of(&mut self, id: &str, wait: &node::Wait) -> Result<()> {
        let Some(record) = self.journal.get(id) else { return Ok(()) };
        let about = About { id: record.id.clone(), name: record.name.clone(), resource: record.resource.clone(), result: false };
        let body = wait.handle.body(&wait.signal);
        let key = format!("wait {} {}", record.id, wait.signal.id);
        self.outbox.put(Entry::new(key, Some(about), wait.handle.destination().clone(), body, self.clock.now()))
    }

    fn start_sending(&mut self) {
        let view = self.view();
        if self.sending.is_some() || self.outbox.waiting().is_empty() {
            return;
        }
        if self.outbox.needs_poll(&view) {
            self.collector.hasten();
        }
        if self.outbox.due(&view).is_none_or(|due| due > self.clock.now()) {
            return;
        }
        let outbox = Rc::clone(&self.outbox);
        self.sending = Some(Box::pin(async move { outbox.send_due(&view).await }));
    }

    fn sent(&mut self, (fates, kept): Sent) {
        if let Err(error) = kept {
            self.trouble("keeping the outbox", &error);
        }
        for (entry, fate) in fates {
            if fate == Fate::Delivered {
                // What depends on this deployment comes into the metadata next.
                self.collector.nudge();
            }
            let Some(about) = entry.about.filter(|about| about.result) else { continue };
            let note = match fate {
                Fate::Delivered => None,
                Fate::Undeliverable(cause) => Some(format!("Heat refused the signal: {cause}")),
                Fate::Superseded => Some("superseded before Heat could be told".to_owned()),
                Fate::Expired => Some("Heat could not be told for 7 days".to_owned()),
            };
            if let Err(error) = self.journal.signalled(&about.id, note) {
                self.trouble("recording a signal", &error);
            }
        }
    }

    /// Compares a node in place with its parameters; cheap when nothing changed.
    fn look_after_node(&mut self) {
        let idle = self.bring_up.is_none() && self.watch.is_none();
        let Some(current) = self.generations.current().filter(|current| idle && current.state == GenerationState::Applied) else {
            return;
        };
        let (node, entry, number) = (Rc::clone(&self.node), current.entry.clone(), current.number);
        self.watch = Some(Box::pin(async move { node.look(&entry, number).await }));
    }

    fn looked(&mut self, look: Result<node::Look>) {
        match look {
            Ok(look) => self.drifted = look.drifted,
            Err(error) => self.trouble("comparing the node with its parameters", &error),
        }
    }

    /// What signals need to know of the newest metadata.
    fn view(&self) -> View {
        view(self.collector.snapshot())
    }

    fn trouble(&mut self, doing: &str, error: &Error) {
        self.report.emit(
            Event::new(Code::StateWriteFailed, format!("trouble while {doing}")).step(doing).error(error).next_try(AFTER_TROUBLE),
        );
        self.trouble = Some(self.clock.start());
        self.troubles += 1;
    }

    /// The status file and systemd's line, where they changed.
    fn publish(&mut self) {
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
            Phase::Units
        } else if self.hook.is_some() {
            Phase::Deploy
        } else if !self.outbox.waiting().is_empty() {
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
        let line = "[tls] allow_insecure lets parameters turn the verification of certificates off";
        report.emit(Event::new(Code::InsecureTls, line).step("tls"));
    }
    if settings.node_source == NodeSource::HeatParams {
        let line = "[node] source = \"heat-params\" is not in this version: only deployments of the group kubernetes-node drive the node";
        report.emit(Event::new(Code::SettingsUnknownKey, line).step("node.source"));
    }
}

/// The outbox' key of a deployment's result.
fn result_key(id: &str) -> String {
    format!("result {id}")
}

/// Whether what is not in the list is gone for Heat. No list is not an empty list (heat-protocol.md R12), and a file of
/// `--metadata` does not speak for what Heat asked for before.
fn lists_all(snapshot: &Snapshot) -> bool {
    let heat = |authority: &Authority| authority.source != SourceName::File.as_str();
    snapshot.deployments.is_some() && snapshot.authority.as_ref().is_some_and(heat)
}

/// Ids of the listed deployments.
fn ids(snapshot: &Snapshot) -> BTreeSet<String> {
    let list = snapshot.deployments.iter().flat_map(|list| list.iter());
    list.filter_map(|entry| entry.get("id")?.as_str()).map(str::to_owned).collect()
}

/// A lane's end; never, while it is empty.
async fn lane<T>(lane: &mut Lane<T>) -> T {
    match lane {
        Some(running) => running.await,
        None => std::future::pending().await,
    }
}

/// What the outbox needs of a snapshot.
fn view(snapshot: &Snapshot) -> View {
    // The boot copy never changes: whoever has nothing else cannot be waited for.
    let boot_copy_only =
        !snapshot.sources.is_empty() && snapshot.sources.keys().all(|name| *name == SourceName::HeatLocal.as_str());
    let expected = !boot_copy_only;
    let Some(authority) = &snapshot.authority else { return View { expected, ..View::default() } };
    if !lists_all(snapshot) {
        return View { expected, answered: Some(authority.fetched_at), ..View::default() };
    }
    let mut newest: BTreeMap<(String, String), (String, String)> = BTreeMap::new();
    let mut listed = BTreeSet::new();
    for entry in snapshot.deployments.iter().flat_map(|list| list.iter()) {
        let text = |key: &str| entry.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let (id, made) = (text("id"), text("creation_time"));
        listed.insert(id.clone());
        let input = |name: &str| {
            let inputs = entry.get("inputs").and_then(Value::as_array)?;
            let input = inputs.iter().find(|input| input.get("name").and_then(Value::as_str) == Some(name))?;
            input.get("value").and_then(Value::as_str).map(str::to_owned)
        };
        if let (Some(stack), Some(resource)) = (input("deploy_stack_id"), input("deploy_resource_name")) {
            let slot = newest.entry((stack, resource)).or_insert_with(|| (made.clone(), id.clone()));
            if slot.0 < made {
                *slot = (made, id);
            }
        }
    }
    let newest = newest.into_iter().map(|(resource, (_, id))| (resource, id)).collect();
    View { listed: Some(listed), newest, answered: Some(authority.fetched_at), expected: true }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::collect::SourceState;

    fn snapshot(source: Option<&'static str>, entries: Option<&[(&str, &str)]>) -> Snapshot {
        let entry = |(id, made): &(&str, &str)| {
            json!({"id": id, "creation_time": made, "inputs": [
                {"name": "deploy_stack_id", "value": "s/1"}, {"name": "deploy_resource_name", "value": "r"}]})
        };
        Snapshot {
            deployments: entries.map(|entries| Arc::new(entries.iter().map(entry).collect())),
            sources: [("cfn", SourceState::default())].into(),
            authority: source.map(|source| Authority { source, fetched_at: Timestamp(7) }),
            ..Snapshot::default()
        }
    }

    #[test]
    fn only_a_list_of_heats_own_says_that_something_is_gone() {
        for (source, entries, lists) in [
            (Some("cfn"), Some(&[("a", "1")][..]), true),
            (Some("cfn"), None, false),
            (Some("file"), Some(&[]), false),
            (None, Some(&[]), false),
        ] {
            let view = view(&snapshot(source, entries));
            assert_eq!(view.listed.is_some(), lists, "{source:?} {entries:?}");
            assert_eq!((view.answered.is_some(), view.expected), (source.is_some(), true));
        }
    }

    #[test]
    fn of_two_entries_of_a_resource_the_later_one_counts() {
        let resource = ("s/1".to_owned(), "r".to_owned());
        for order in [
            [("old", "2026-03-01T12:00:00Z"), ("new", "2026-03-01T12:00:01Z")],
            [("new", "2026-03-01T12:00:01Z"), ("old", "2026-03-01T12:00:00Z")],
        ] {
            assert_eq!(view(&snapshot(Some("cfn"), Some(&order))).newest[&resource], "new");
        }
    }

    #[test]
    fn whoever_has_only_the_boot_copy_is_not_waited_for() {
        let mut boot = snapshot(None, None);
        boot.sources = [("heat_local", SourceState::default())].into();
        assert!(!view(&boot).expected);
        boot.sources.clear();
        assert!(view(&boot).expected, "nothing is known yet");
    }
}
