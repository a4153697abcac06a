//! From a deployment's plan to a node, its result, and what its wait condition is sent.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::backend::Issuers;
use super::deadline::{LEAST_BRING_UP, time_left};
use super::once::{CHANGED, has_changed, mark};
use super::outline::Outline;
use super::plan::NodePlan;
use super::upgrade::Upgrade;
use super::wait::{Wait, wait_id};
use super::{Node, renewal};
use crate::clock::{BUILT, CLOCK_SETTLES, uptime};
use crate::converge::gates::passes;
use crate::converge::{self, BeforeChange, Failure, Retired, RunContext, SpecialRestarts};
use crate::daemon::reason::{bounded, reason};
use crate::deploy::DeploymentOutcome;
use crate::desired::{Desired, GateProbe};
use crate::error::Error;
use crate::gather::Gather;
use crate::keepers::certificates::CertificateKeeper;
use crate::kubernetes::{self, NodeSpec};
use crate::machine::add_ons::LABEL;
use crate::machine::installed::{InstalledPrograms, UnitFiles};
use crate::metadata::{Deployment, SignalTarget};
use crate::progress::StepId;
use crate::report::reason::{FailureReason, RollbackEnd, RollbackOutcome};
use crate::report::step_timing::{StepTiming, timings};
use crate::report::{Code, Event, Phase};
use crate::signal::{Handle, WaitSignal, WaitStatus};

/// How long what was started must pass its gates before Heat hears of it: a service that dies of its surroundings does so within
/// seconds, and what was reported to Heat cannot be taken back.
pub(super) const STABILITY_PERIOD: Duration = Duration::from_secs(6);

/// How one run is carried out.
pub(super) struct RunOptions {
    pub(super) deadline: Duration,
    /// How long units that were started must stay up before it counts as healthy ([`RunContext::stability_period`]).
    pub(super) stability_period: Duration,
    pub(super) generation: u64,
    /// The one that asks for it; nothing where the node is put back.
    pub(super) deployment: Option<String>,
    /// What is taken away where the node goes back to the generation before; only there.
    pub(super) retired: Option<Retired>,
    /// Units whose pending restarts wait ([`SpecialRestarts::held`]).
    pub(super) held: BTreeSet<String>,
    /// Units whose restarts wait that were pending before ([`SpecialRestarts::held_unless_changed`]).
    pub(super) held_unless_changed: BTreeSet<String>,
    /// Whether the operator ordered the next step of a CA rotation, which an update takes by itself.
    pub(super) takes_step: bool,
}

/// How bringing the node up ended.
#[derive(Debug)]
pub(in crate::daemon) struct Done {
    pub(in crate::daemon) outcome: DeploymentOutcome,
    pub(in crate::daemon) step_timings: Vec<StepTiming>,
    pub(in crate::daemon) wait: Option<Wait>,
    /// Whether anything of the machine may have been changed. Of a deletion: whether the node is no longer a member of etcd's cluster.
    pub(in crate::daemon) changed_machine: bool,
    /// Whether the node was rolled back, and is as the generation before asked.
    pub(in crate::daemon) restored: bool,
}

/// What became of an update.
struct Update {
    result: converge::ConvergeResult,
    /// The steps of the update itself, without those of a rollback.
    step_timings: Vec<StepTiming>,
    /// What became of the node where it failed: that it was rolled back, or why it was not.
    rollback: Option<RollbackOutcome>,
}

impl Node {
    /// The FAILURE of a node that is not begun, if its wait handle at least can be read.
    pub(in crate::daemon) fn wait_failure(&self, deployment: &Deployment, code: Code, error: &Error) -> Option<Wait> {
        self.wait_failed(deployment, reason(&self.host.report, code, error).to_string(), json!({"code": code.entry().code}))
    }

    /// The same with a sentence that is there already.
    pub(in crate::daemon) fn wait_failed(&self, deployment: &Deployment, reason: String, data: Value) -> Option<Wait> {
        let handle = Handle::parse(&kubernetes::readable_parameters(deployment).wait_handle()?).ok()?;
        let id = wait_id(deployment, &self.hostname());
        Some(Wait { handle, signal: WaitSignal { status: WaitStatus::Failure, id, reason, data } })
    }

    /// Brings the node up as planned. `since`: how long Heat has been waiting.
    pub(in crate::daemon) async fn bring_up(
        &self,
        deployment: Deployment,
        mut plan: NodePlan,
        generation: u64,
        since: Duration,
    ) -> Done {
        let name = plan.spec.node_name(&self.hostname());
        let address = plan.spec.address.map(|address| address.to_string()).unwrap_or_default();
        let deadline = time_left(plan.spec.timeout, plan.spec.deadline, since);
        // A deployment asks for everything anew.
        self.known.was_deletion_refused.set(false);
        self.volume_memory.growths.forget();
        self.set_secrets(&deployment);
        let is_reported = plan.wait.is_some() || !matches!(deployment.signal_target(), SignalTarget::None);
        let stability_period = if is_reported { STABILITY_PERIOD } else { Duration::ZERO };
        self.known.outline.replace(Some(Outline::of(&plan.spec, &plan.desired, &self.hostname())));
        self.remembered.forget_left();
        let (left, taints) = {
            let before = self.spec_before(generation);
            self.remember_node_object(&mut plan, before.as_ref());
            (add_ons_left(before.as_ref(), &plan.desired), self.taints_of(before.as_ref()))
        };
        let Update { result, step_timings, rollback } =
            Box::pin(self.update(&plan, &deployment, generation, (deadline, stability_period))).await;
        let restored = rollback.as_ref().is_some_and(|outcome| outcome.end == RollbackEnd::RolledBack);
        let changed_machine = result.as_ref().map_or_else(|failure| failure.changed_machine, |_| true);
        let (outcome, timings, status, reason) = match result {
            Ok(converged) => {
                let code = if converged.changed { Code::NodeConverged } else { Code::NodeUnchanged };
                let line = format!("node {name} is ready (generation {generation})");
                self.host
                    .report
                    .emit(event(code, line, generation, &deployment).phase(Phase::Steady).duration(self.progress.elapsed()));
                for name in left {
                    self.host.report.emit(add_on_left(&name).generation(generation).deployment(&deployment.id, &deployment.name));
                }
                let timings = timings(&step_timings);
                let mut outputs = outputs(&name, &address, plan.spec.kube_version.as_deref(), generation, &timings);
                outputs.extend(self.readiness(&plan.desired).await);
                let stderr = self.report_taints(&plan, &taints, generation, &deployment).await;
                let outcome = DeploymentOutcome { stderr, outputs, ..DeploymentOutcome::default() };
                (outcome, timings, WaitStatus::Success, format!("node {name} is healthy"))
            }
            Err(failure) => {
                // What exactly failed was reported where it happened; this line ties it to the deployment.
                let error = error_of(&failure);
                let then = rollback.as_ref().map(|outcome| format!("; {}", outcome.text)).unwrap_or_default();
                self.host.report.emit(
                    event(Code::NodeFailed, format!("node {name} could not be brought up"), generation, &deployment)
                        .phase(failure.phase())
                        .step(failure.doing())
                        .error(&error)
                        .cause(in_one_line(&error) + &then),
                );
                let why = FailureReason::of(&error).with_rollback(rollback);
                let why = bounded(&self.host.report, failure.code, why);
                let sentence = why.to_string();
                (DeploymentOutcome::refused(why), Vec::new(), WaitStatus::Failure, sentence)
            }
        };
        let id = wait_id(&deployment, &self.hostname());
        let data = wait_data(&name, &address, generation, &timings);
        let wait = plan.wait.map(|handle| Wait { handle, signal: WaitSignal { status, id, reason, data } });
        Done { outcome, step_timings, wait, changed_machine, restored }
    }

    /// Carries the plan out, and goes back to the generation before where that fails and may be taken back; with the steps of the
    /// update itself.
    async fn update(
        &self,
        plan: &NodePlan,
        deployment: &Deployment,
        generation: u64,
        (deadline, stability_period): (Duration, Duration),
    ) -> Update {
        let running = self.host.clock.start();
        let prepared = match self.plan_rollback(&plan.desired, generation).await {
            Ok(way) => self.interrupted_rollback(generation, &deployment.id).map(|interrupted| (way, interrupted)),
            Err(error) => Err(error),
        };
        let (way, interrupted) = match prepared {
            Ok(prepared) => prepared,
            Err(error) => {
                let error = error.context("recording what the update replaces");
                let failure = Failure::from_error(Code::NodeFailed, StepId::Checks, &error).untouched();
                return Update { result: Err(failure), step_timings: Vec::new(), rollback: None };
            }
        };
        let is_interrupted = interrupted.is_some();
        let result = if let Some(failure) = interrupted {
            Err(failure)
        } else {
            let options = RunOptions {
                deadline: deadline.saturating_sub(way.reserve(deadline)),
                stability_period,
                generation,
                deployment: Some(deployment.id.clone()),
                retired: None,
                held: BTreeSet::new(),
                held_unless_changed: self.restarts_that_wait(&plan.desired).await,
                takes_step: false,
            };
            self.converge(&plan.spec, &renewal::beside_an_update(&plan.desired), options).await
        };
        let step_timings = self.progress.step_timings();
        match result {
            Ok(converged) => {
                self.remembered.accept_current_state(&plan.desired);
                self.uncordon(&plan.desired, generation).await;
                Update { result: Ok(converged), step_timings, rollback: None }
            }
            Err(mut failure) => {
                // In this life of the agent or before; where that cannot be read, a needless look at what there is to take back does less harm than none.
                failure.changed_machine =
                    failure.changed_machine || has_changed(&self.host.state, generation, &self.host.report).unwrap_or(true);
                // One that was interrupted has no update before it to save time for, and a node that stays half way helps nobody.
                let time = (&running, if is_interrupted { deadline.max(LEAST_BRING_UP) } else { deadline });
                let rollback = self.go_back(way, &plan.desired, &failure, generation, &deployment.id, time).await;
                let is_back = rollback.as_ref().is_some_and(|outcome| outcome.end == RollbackEnd::RolledBack);
                // Of a node that is as it was the next look takes care.
                if !is_back && failure.changed_machine {
                    self.report_cordoned(&plan.desired, generation);
                }
                Update { result: Err(failure), step_timings, rollback }
            }
        }
    }

    /// How the API sees the node, what waits there for an operator, and whether its add-ons run: whether Heat waited for it or not. Nothing where no such
    /// question is known.
    async fn readiness(&self, desired: &Desired) -> BTreeMap<String, Value> {
        let (mut outputs, mut add_ons) = (BTreeMap::new(), Map::new());
        for gate in desired.gates.iter().chain(&desired.watched) {
            let name = match &gate.probe {
                GateProbe::AddOn(add_on) => add_on.name.as_str(),
                GateProbe::NodeReady { .. } => "node_ready",
                GateProbe::NoPendingRequests { .. } | GateProbe::File(_) => "certificate_requests",
                _ => continue,
            };
            let answer = passes(&self.host.root, &*self.http, &self.host.clock, gate).await;
            let is_add_on = matches!(gate.probe, GateProbe::AddOn(_));
            let text = match (answer, name) {
                (Ok(()), _) if is_add_on => "ready".to_owned(),
                (Ok(()), "node_ready") => "yes".to_owned(),
                (Ok(()), _) => "none pending".to_owned(),
                (Err(bad), _) => format!("no: {}", bad.cause),
            };
            let text = Value::from(self.host.report.masked(&text).into_owned());
            if is_add_on {
                add_ons.insert(name.to_owned(), text);
            } else {
                outputs.insert(name.to_owned(), text);
            }
        }
        if !add_ons.is_empty() {
            outputs.insert("add_ons".to_owned(), Value::Object(add_ons));
        }
        outputs
    }

    pub(super) async fn converge(&self, spec: &NodeSpec, desired: &Desired, options: RunOptions) -> converge::ConvergeResult {
        let RunOptions { deadline, stability_period, generation, deployment, retired, held, held_unless_changed, takes_step } =
            options;
        // Those of an earlier run are not this one's, which may end before it begins.
        self.progress.begin_run(deployment.as_deref());
        let is_update = deployment.is_some() && retired.is_none();
        let retired = retired.unwrap_or_default();
        let systemd = self.host.systemd.as_ref().ok_or_else(no_systemd)?;
        // Many futures: on the heap.
        let backend = self.backend(systemd);
        let machine = InstalledPrograms { root: &self.host.root, units: UnitFiles::Running(systemd), spec, desired };
        let asking = self.known.machine.check_programs(&machine, &backend, &self.host, &self.progress, generation);
        Box::pin(asking).await.map_err(Failure::untouched)?;
        let running = self.host.clock.start();
        let Upgrade { replaced, order } = if is_update {
            let preparing = self.prepare_upgrade((spec, desired), systemd, generation, deadline);
            Box::pin(preparing).await.map_err(Failure::untouched)?
        } else {
            Upgrade::default()
        };
        let issuers = Issuers { backend: backend.clone(), http: Rc::clone(&self.http), keystone: self.keystone.clone() };
        let certificates = CertificateKeeper {
            backend: issuers,
            root: Arc::clone(&self.host.root),
            state: Arc::clone(&self.host.state),
            clock: self.host.clock.clone(),
            built: BUILT,
            clock_settles: CLOCK_SETTLES.saturating_sub(uptime()),
            progress: self.progress.clone(),
            generation,
            is_update,
            takes_steps: is_update || takes_step,
        };
        let volumes = self.volumes(systemd);
        let state = Arc::clone(&self.host.state);
        let begins = move || mark(&state, CHANGED, generation);
        let context = RunContext {
            root: &self.host.root,
            systemd,
            volumes: &volumes,
            prober: &*self.http,
            certificates: &certificates,
            clock: &self.host.clock,
            progress: &self.progress,
            deadline: deadline.saturating_sub(running.elapsed()),
            patience: self.host.settings.patience,
            stability_period,
            generation,
            flanneld: match &desired.flannel {
                // As large as what follows, and on the heap as well.
                Some(_) => Box::pin(self.known.machine.flanneld(&backend, &self.host)).await,
                None => None,
            },
            update: is_update.then_some(BeforeChange(&begins)),
            retired: &retired,
            restarts: &SpecialRestarts { replaced, held, held_unless_changed, order },
        };
        // A large future: on the heap once, not in every state above.
        let outcome = Box::pin(converge::converge(desired, &context, &backend));
        let deaths = Box::pin(self.watch_deaths(desired, systemd, generation));
        let guard = MaintenanceGuard::begin(self);
        let outcome = tokio::select! {
            outcome = outcome => outcome,
            never = deaths => match never {},
        };
        drop(guard);
        outcome
    }
}

fn no_systemd() -> Failure {
    Failure::new(Code::NoSystemd, "systemd", "no systemd answers on the system bus")
        .rule("a node is configured through systemd over D-Bus")
        .remedy("start dbus.service, and run the agent under systemd")
        .untouched()
}

/// The node is being touched: what its units do meanwhile is covered by the report of that, also where it is broken off.
struct MaintenanceGuard<'a>(&'a Node);

impl<'a> MaintenanceGuard<'a> {
    fn begin(node: &'a Node) -> Self {
        node.monitor.is_converging.set(true);
        Self(node)
    }
}

impl Drop for MaintenanceGuard<'_> {
    fn drop(&mut self) {
        self.0.monitor.is_converging.set(false);
        self.0.unsettled.forget();
        self.0.monitor.health.borrow_mut().forget();
    }
}

/// What failed, why and by whose rule: with the words of the event that reported it where it happened, which is not to be told twice.
fn in_one_line(error: &Error) -> String {
    error.broken_rule().map_or_else(|| error.to_string(), |rule| format!("{error} (rule: {rule})"))
}

fn event(code: Code, message: String, generation: u64, deployment: &Deployment) -> Event {
    Event::new(code, message).generation(generation).deployment(&deployment.id, &deployment.name)
}

pub(super) fn error_of(failure: &Failure) -> Error {
    let doing = failure.doing();
    let what = match &failure.unit {
        Some(unit) if !matches!(&failure.step, StepId::Unit(name) if name == unit) => format!("{doing} ({unit})"),
        _ => doing,
    };
    let error = Error::permanent(&failure.cause).context(what).remedy(&failure.remedy);
    match &failure.rule {
        Some(rule) => error.rule(rule),
        None => error,
    }
}

fn outputs(
    name: &str,
    address: &str,
    version: Option<&str>,
    generation: u64,
    timings: &[(String, u64)],
) -> BTreeMap<String, Value> {
    let all = [
        ("node_name", Value::from(name)),
        ("node_address", Value::from(address)),
        ("kube_version", Value::from(version.unwrap_or_default())),
        ("generation", Value::from(generation)),
        ("timings", Value::Object(timings.iter().map(|(step, ms)| (step.clone(), Value::from(*ms))).collect::<Map<_, _>>())),
    ];
    all.into_iter().map(|(name, value)| (name.to_owned(), value)).gather()
}

/// Add-ons that the generation before asked for and this one does not.
fn add_ons_left(before: Option<&NodeSpec>, after: &Desired) -> Vec<String> {
    let cluster = before.and_then(|spec| spec.kubernetes.as_ref()).filter(|cluster| cluster.is_first_master);
    let names = cluster.map(|cluster| cluster.add_ons.names.as_slice()).unwrap_or_default();
    names.iter().filter(|name| after.add_ons.iter().all(|one| one.name != **name)).cloned().collect()
}

/// Nobody asks for an add-on any more, and nothing removes what it brought.
pub(super) fn add_on_left(name: &str) -> Event {
    let line = format!("add-on {name} is no longer asked for; its objects stay in the cluster");
    let kinds = "all,configmaps,serviceaccounts,clusterroles,clusterrolebindings";
    Event::new(Code::AddOnLeft, line).remedy(format!("`kubectl get {kinds} -A -l {LABEL}={name}` lists most of them"))
}

fn wait_data(name: &str, address: &str, generation: u64, timings: &[(String, u64)]) -> Value {
    let steps: Map<String, Value> = timings.iter().map(|(step, ms)| (step.clone(), Value::from(*ms))).collect();
    json!({"node_name": name, "node_address": address, "generation": generation, "timings_ms": steps})
}
