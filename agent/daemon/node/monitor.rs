//! Measures every component of a node in place for as long as it is there: the edge of `health.rs`. systemd reports on its units, gates
//! are asked at a slow pace with chance in it; nothing is repaired by this, and nothing more is sent to Heat.
//!
//! While the node is brought up or put back, units that die are watched beside that, so that what is waited for in vain has its cause.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::future::pending;
use std::time::Duration;

use futures_util::stream::{BoxStream, StreamExt as _};

use super::Node;
use super::health::{Deaths, HealthEvent, ProblemKind, crash_remedy, fold};
use crate::backoff::random;
use crate::concurrent::all;
use crate::converge::diagnosis::{CrashCause, diagnose, hang_cause};
use crate::converge::gates::passes;
use crate::deploy::{AppliedExtent, Reference};
use crate::desired::{Desired, EtcdMember, Gate, GateProbe, NODES, Object, VolumeRole};
use crate::error::remedy::Remedy;
use crate::keepers::node_conditions::NodeObject;
use crate::keepers::token_keys::TokenKeyMaster;
use crate::kubernetes::{self, REGISTRATION, TokenKeyFiles};
use crate::progress::StepId;
use crate::report::component::{ComponentState, ComponentStatus};
use crate::report::follow_up::FollowUp;
use crate::report::{Code, Event, Phase};
use crate::systemd::{Systemd, UnitState};

/// Before a node that is being put back is looked at again.
const BUSY: Duration = Duration::from_secs(2);
/// How long that may take before its components are measured all the same: whatever keeps it is to be seen.
const QUIET: Duration = Duration::from_secs(45);
/// systemd reports one change in several signals: one look for all of them.
const ONE_CHANGE: Duration = Duration::from_millis(100);
/// The fallback poll for lost signals, while the node is brought up.
const FALLBACK_POLL: Duration = Duration::from_secs(10);

/// News of units.
type Changes = Option<BoxStream<'static, String>>;

/// Listens to changes of units, if nobody does yet. True: since now, so that what changed before was not heard.
async fn listen(systemd: &Systemd, units: &[String], changes: &mut Changes) -> bool {
    if changes.is_some() {
        return false;
    }
    *changes = systemd.changes_of(units).await.ok();
    changes.is_some()
}

/// The next unit that systemd reports a change of, within this time.
async fn news(node: &Node, changes: &mut Changes, within: Duration) -> Option<String> {
    let next = async {
        match changes {
            Some(stream) => stream.next().await,
            None => pending().await,
        }
    };
    match node.host.clock.limit(within, next).await {
        Some(Some(unit)) => Some(unit),
        // The bus went away: the next round listens anew.
        Some(None) => {
            *changes = None;
            node.host.clock.wait(BUSY.min(within)).await;
            None
        }
        None => None,
    }
}

/// The object in the API that the kubelet of such a node registers there.
pub(super) fn node_object(desired: &Desired) -> Option<NodeObject> {
    match &desired.gate(REGISTRATION)?.probe {
        GateProbe::HttpJson { url, identity, .. } => Some(NodeObject { url: url.clone(), identity: identity.clone() }),
        _ => None,
    }
}

impl Node {
    /// How the components are.
    pub(in crate::daemon) fn components(&self) -> Vec<ComponentStatus> {
        self.monitor.health.borrow().status(&self.host.clock)
    }

    /// Components that are unhealthy by more than these gates ([`ComponentHealth::unhealthy_beside`]).
    pub(super) fn unhealthy_beside(&self, watched: &[Gate]) -> BTreeSet<String> {
        self.monitor.health.borrow().unhealthy_beside(watched)
    }

    /// Whether there is a systemd, without which nothing of it can be found out.
    pub(in crate::daemon) fn is_inspectable(&self) -> bool {
        self.host.systemd.is_some()
    }

    /// Whether it is known how they are, by this run of the agent.
    pub(in crate::daemon) fn knows_components(&self) -> bool {
        self.monitor.health.borrow().is_settled()
    }

    /// The node's object in the API, where its kubelet registers it there.
    pub(in crate::daemon) fn object(&self, reference: &Reference) -> Option<NodeObject> {
        // That its parameters are not accepted any more is reported by who compares it with them.
        node_object(&self.in_place(reference).ok()?.desired)
    }

    /// The keys by which a master signs and verifies tokens of service accounts, and its node's object in the API, where it writes to that.
    pub(in crate::daemon) fn token_keys(&self, reference: &Reference) -> Option<TokenKeyMaster> {
        let node = self.in_place(reference).ok()?;
        let TokenKeyFiles { sign, verify } = kubernetes::token_key_files(&node.spec, &self.facts())?;
        let Object { server, object, identity, .. } =
            node.desired.objects.iter().find(|object| object.collection == NODES)?.clone();
        Some(TokenKeyMaster { server, node: object, identity, sign, verify })
    }

    /// The node's member of etcd, where its data is on a volume.
    pub(in crate::daemon) fn etcd_on_volume(&self, reference: &Reference) -> Option<EtcdMember> {
        let node = self.in_place(reference).ok()?;
        let has_volume = node.desired.volumes.iter().any(|volume| volume.role == VolumeRole::Etcd);
        node.desired.etcd.clone().filter(|_| has_volume)
    }

    /// Waits until one of them changed. Safe to drop.
    pub(in crate::daemon) async fn component_changed(&self) {
        self.monitor.news.notified().await;
    }

    /// Measures them for as long as the node is as this generation asks. Safe to drop.
    pub(in crate::daemon) async fn watch_components(&self, reference: &Reference) {
        let Some(systemd) = &self.host.systemd else { return pending().await };
        // That its parameters are not accepted any more is reported by `inspect`, which compares it with them.
        let Ok(node) = self.in_place(reference) else { return pending().await };
        let desired = &node.desired;
        self.monitor.health.borrow_mut().begin(desired, self.host.clock.steady());
        let units = self.monitor.health.borrow().units();
        let mut changes: Changes = None;
        let (mut since, mut pause) = (self.host.clock.start(), Duration::ZERO);
        let mut converging_since = None;
        loop {
            if listen(systemd, &units, &mut changes).await {
                pause = Duration::ZERO;
            }
            let left = pause.saturating_sub(since.elapsed());
            // Nobody says when the node is no longer put back.
            let within = if converging_since.is_some() { left.min(BUSY) } else { left };
            let unit = news(self, &mut changes, within).await;
            if !self.monitor.is_converging.get() {
                if converging_since.take().is_some() {
                    pause = Duration::ZERO;
                }
            } else if converging_since.get_or_insert_with(|| self.host.clock.start()).elapsed() < QUIET {
                self.host.clock.wait(BUSY).await;
                (since, pause) = (self.host.clock.start(), Duration::ZERO);
                continue;
            }
            // What is due is not put off by units that go on changing.
            if since.elapsed() >= pause {
                self.measure(desired, systemd, &units).await;
                since = self.host.clock.start();
            } else if let Some(unit) = unit {
                self.host.clock.wait(ONE_CHANGE).await;
                if let Ok(state) = systemd.unit(&unit).await {
                    self.take(desired, state).await;
                }
            } else {
                continue;
            }
            self.settle(desired, reference).await;
            pause = self.monitor.health.borrow_mut().pause(random());
        }
    }

    /// All of them.
    async fn measure(&self, desired: &Desired, systemd: &Systemd, units: &[String]) {
        // A bus that is away is reported elsewhere; what is known stays.
        let Ok(states) = systemd.units(units).await else { return };
        for state in states {
            self.monitor.health.borrow_mut().record_state(state, self.host.clock.steady());
        }
        self.ask(desired, None).await;
        self.monitor.health.borrow_mut().complete();
    }

    /// One unit that systemd named; what came up is asked how it is.
    async fn take(&self, desired: &Desired, state: UnitState) {
        let unit = state.name.clone();
        let is_new = self.monitor.health.borrow_mut().record_state(state, self.host.clock.steady());
        if is_new {
            self.ask(desired, Some(&unit)).await;
        }
    }

    async fn ask(&self, desired: &Desired, unit: Option<&str>) {
        let gates = self.monitor.health.borrow().gates(unit);
        let known = desired.gates.iter().chain(&desired.watched).filter(|gate| gates.contains(&gate.name));
        let ask = async |gate| (gate, passes(&self.host.root, &*self.http, &self.host.clock, gate).await);
        for (gate, answer) in all(known.map(ask)).await {
            self.monitor.health.borrow_mut().record_gate_answer(&gate.name, &answer);
        }
    }

    /// Reports what follows from what was seen, and what could not be reported before, as the node was changed meanwhile.
    async fn settle(&self, desired: &Desired, reference: &Reference) {
        let before = self.components();
        let judged = self.monitor.health.borrow_mut().judge(self.host.clock.steady());
        self.monitor.unreported.borrow_mut().extend(judged);
        let unexplained = self.monitor.health.borrow().unexplained(self.host.clock.steady());
        let explaining = unexplained.iter().map(async |(name, unit, kind)| self.why(desired, name, unit, *kind).await);
        for ((name, _, kind), why) in unexplained.iter().zip(all(explaining).await) {
            self.monitor.health.borrow_mut().explain(name, *kind, why.unwrap_or_default(), self.host.clock.steady());
        }
        // Who changes the node meanwhile reports what becomes of it; what is wrong after that still is news.
        let events = if self.monitor.is_converging.get() {
            fold(&mut self.monitor.unreported.borrow_mut());
            Vec::new()
        } else {
            self.monitor.health.borrow().sort_out(&mut self.monitor.unreported.borrow_mut())
        };
        for event in events {
            match event {
                HealthEvent::Report(name, kind) => self.report_component(&name, kind.code(), reference, true),
                HealthEvent::Recovered(name) => self.report_component(&name, Code::ComponentRecovered, reference, true),
                HealthEvent::Unreported(name, kind) => {
                    self.report_component(&name, kind.map_or(Code::ComponentRecovered, ProblemKind::code), reference, false);
                }
            }
        }
        if self.components() != before {
            self.monitor.news.notify_one();
        }
    }

    /// What a closer look at a unit shows.
    async fn why(&self, desired: &Desired, name: &str, unit: &str, kind: ProblemKind) -> Option<CrashCause> {
        let backend = self.backend(self.host.systemd.as_ref()?);
        if kind == ProblemKind::Hanging {
            let pid = self.monitor.health.borrow().main_process(name)?;
            return hang_cause(unit, &backend.process_stat(pid).await);
        }
        if !kind.quotes_last_lines() {
            return None;
        }
        Some(diagnose(desired, unit, &self.host.root, &self.host.clock, &backend).await)
    }

    fn report_component(&self, name: &str, code: Code, reference: &Reference, is_news: bool) {
        let Some(component) = self.monitor.health.borrow().of(name, &self.host.clock) else { return };
        let verb = match component.state {
            ComponentState::Healthy => "recovered",
            ComponentState::Degraded => "is degraded",
            ComponentState::Failed => "failed",
        };
        let problem = component.problem.iter().map(|problem| format!(": {problem}")).collect::<String>();
        let mut event = Event::new(code, format!("component {name} {verb}{problem}")).generation(reference.generation);
        // What an update that failed left undone was reported, and is no news on the console.
        if reference.extent == AppliedExtent::Whole {
            event = event.phase(Phase::Steady);
        }
        event = match &component.unit {
            Some(unit) => event.unit(unit),
            None => event.gate(name),
        };
        (event.cause, event.remedy) = (component.cause, component.remedy.map(Remedy::said));
        self.host.report.emit(if is_news { event } else { event.detail() });
    }

    /// Watches the units of a node that is brought up or put back: what dies is reported at once, and shown where it is waited for. Never
    /// ends; safe to drop.
    pub(super) async fn watch_deaths(&self, desired: &Desired, systemd: &Systemd, generation: u64) -> Infallible {
        let units: Vec<String> = desired.units.iter().filter(|unit| !unit.applies_files).map(|unit| unit.name.clone()).collect();
        let (mut deaths, mut changes, mut reported) = (Deaths::default(), None, BTreeMap::new());
        loop {
            // What changed before is seen by the next look at all of them.
            listen(systemd, &units, &mut changes).await;
            let news = news(self, &mut changes, FALLBACK_POLL).await;
            for unit in units.iter().filter(|unit| news.as_ref().is_none_or(|news| news == *unit)) {
                let Ok(state) = systemd.unit(unit).await else { continue };
                let (times, is_news) = deaths.record_state(&state);
                if is_news {
                    reported
                        .insert(unit, self.report_death(desired, systemd, unit, &deaths.words(unit, times), generation).await);
                } else if news.is_none() && deaths.has_stabilised(&state) {
                    reported.remove(unit);
                }
                // Its gate may have begun since.
                let gates = desired.gates.iter().filter(|gate| gate.unit.as_ref() == Some(unit));
                for step in gates.map(|gate| StepId::Gate(gate.name.clone())).chain([StepId::Unit(unit.clone())]) {
                    self.progress.explain(&step, reported.get(unit).cloned());
                }
            }
        }
    }

    /// Cause and remedy, once they are reported.
    async fn report_death(
        &self,
        desired: &Desired,
        systemd: &Systemd,
        unit: &str,
        line: &str,
        generation: u64,
    ) -> (String, String) {
        let why = diagnose(desired, unit, &self.host.root, &self.host.clock, &self.backend(systemd)).await;
        let cause = why.with(line);
        let remedy = why.remedy.unwrap_or_else(|| crash_remedy(unit));
        let remedy = FollowUp::Continues(StepId::Unit(unit.to_owned()).max_recheck_delay()).of(&remedy);
        let event = Event::new(Code::UnitDiedInBringUp, line).phase(Phase::Units).generation(generation).unit(unit);
        self.host.report.emit(event.cause(&cause).remedy(&remedy));
        (cause, remedy.to_string())
    }
}
