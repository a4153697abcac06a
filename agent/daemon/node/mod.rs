//! The node's own lane: from a kubernetes-node deployment to its result and its wait condition's signal.

pub(super) mod deadline;
pub(super) mod drift;
pub(super) mod hands;
pub(super) mod installed;
pub(super) mod part;
mod plan;
pub(super) mod pods;
pub(super) mod renewal;
pub(super) mod unrest;

use std::cell::{Cell, OnceCell, RefCell};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};

use self::deadline::time_left;
use self::drift::{Cause, Sorted};
use self::hands::{Hands, Issuers};
use self::installed::Answers;
pub(in crate::daemon) use self::plan::bad_parameters;
pub(crate) use self::plan::{Plan, understand};
use super::page;
use super::pause::{Pause, Reason};

use self::unrest::Unrest;
use crate::clock::{BUILT, Clock};
use crate::converge::health::{Ailment, ailments};
use crate::converge::{self, Context, Failure};
use crate::deploy::{Extent, Outcome, Reference};
use crate::desired::{Content, Desired, Volume};
use crate::error::{Error, Result};
use crate::files::{READ_LIMIT, Tree};
use crate::http::Http;
use crate::keepers::certificates::{self, CertificateKeeper, Due};
use crate::keepers::volumes::{Fills, Growths, VolumeKeeper, misplaced};
use crate::kubernetes::{self, Facts, Leave, NodeSpec};
use crate::metadata::{Deployment, SignalTarget};
use crate::network::flannel::Version;
use crate::openstack::keystone::Keystone;
use crate::programs::Programs;
use crate::progress::{Progress, StepId};
use crate::report::lap::{Lap, timings};
use crate::report::status::{CertificatesStatus, ThinPoolStatus};
use crate::report::text::shortened;
use crate::report::{Code, Event, Phase, Report};
use crate::signal::{Handle, Status, WaitSignal};
use crate::storage::probe::{Disk, Probe};
use crate::systemd::Systemd;

/// A reason stays readable in Heat's resource list and below the size of its column.
const REASON_LIMIT: usize = 2000;

/// How long what was started must answer well before Heat hears of it: a service that dies of its surroundings does so within
/// seconds, and what Heat was told cannot be taken back.
const SETTLES: Duration = Duration::from_secs(6);

/// How one run is carried out.
struct Course {
    deadline: Duration,
    /// How long units that were started must stay up before it counts as well ([`Context::settles`]).
    settles: Duration,
    generation: u64,
    is_update: bool,
}

/// What the lane works with.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) root: Arc<Tree>,
    pub(super) state: Arc<Tree>,
    pub(super) systemd: Option<Systemd>,
    pub(super) http: Rc<Http>,
    pub(super) keystone: Keystone,
    pub(super) programs: Rc<Programs>,
    /// Secrets of the deployment that the node is brought up from, once one was seen.
    pub(super) secrets: RefCell<Option<Vec<String>>>,
    pub(super) clock: Clock,
    pub(super) report: Report,
    /// How far bringing the node up is.
    pub(super) progress: Progress,
    /// How many times their own deadline its gates may be measured.
    pub(super) patience: u32,
    /// What the image lets parameters decide.
    pub(super) leave: Leave,
    /// What the machine is.
    pub(super) machine: OnceCell<Facts>,
    /// A node in place was looked at since the start.
    pub(super) looked: Cell<bool>,
    pub(super) certificates: certificates::Watcher,
    pub(super) unrest: Unrest,
    pub(super) pause: Pause,
    /// What a renewal of certificates that is due waits for.
    pub(super) renewal: RefCell<Option<renewal::Waits>>,
    /// What is remembered of drift; read when it is first needed.
    pub(super) drift: RefCell<Option<drift::Record>>,
    pub(super) growths: Rc<Growths>,
    /// How full docker's thin pool is.
    pub(super) fills: Fills,
    /// The release of flannel that is installed.
    pub(super) flanneld: Cell<Option<Version>>,
    /// What the node's programs say of their releases.
    pub(super) answers: Answers,
    /// What was found of the network of pods.
    pub(super) pod_memory: RefCell<pods::Memory>,
}

/// A wait condition and what it is to be told.
#[derive(Debug)]
pub(super) struct Wait {
    pub(super) handle: Handle,
    pub(super) signal: WaitSignal,
}

/// How bringing the node up ended.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) outcome: Outcome,
    pub(super) laps: Vec<Lap>,
    pub(super) wait: Option<Wait>,
    /// Whether anything of the machine may have been changed.
    pub(super) touched: bool,
}

/// What a look at a node in place found.
#[derive(Clone, Debug, Default)]
pub(super) struct Look {
    pub(super) drifted: bool,
    /// Its certificates, where they were looked at.
    pub(super) certificates: Option<CertificatesStatus>,
    /// docker's thin pool, where there is one in use.
    pub(super) thin_pool: Option<ThinPoolStatus>,
}

/// What a look at the machine found.
#[derive(Debug)]
pub(super) struct Sight<'a> {
    /// What differs.
    pub(super) found: Vec<Cause>,
    /// Units are on their way: only files were judged.
    pub(super) is_arriving: bool,
    /// Something ails the node beside that, and was told.
    pub(super) is_sick: bool,
    /// Certificates are not as they should be.
    pub(super) is_flawed: bool,
    pub(super) certificates: Option<Rc<certificates::Look>>,
    pub(super) mounted: Vec<&'a Volume>,
    pub(super) disks: Vec<Disk>,
}

/// `HNA-0502 what: why; rule: …; remedy: …`: one sentence for Heat.
pub(super) fn sentence(code: Code, error: &Error) -> String {
    let mut text = format!("{} {}", code.entry().code, error);
    if let Some(rule) = error.broken_rule() {
        text.push_str(&format!("; rule: {rule}"));
    }
    if let Some(remedy) = error.suggested_remedy() {
        text.push_str(&format!("; remedy: {remedy}"));
    }
    shortened(&text, REASON_LIMIT)
}

/// A host name as a node's name: without the domain that a DHCP server appended.
fn short(hostname: &str) -> String {
    hostname.split('.').next().unwrap_or_default().to_ascii_lowercase()
}

/// An id of this server's own that is no number, and the same at every try and boot: Heat counts ids, and numbers signals
/// without one (heat-protocol.md 7.6). A host name may be that of another server too, or change with a lease.
pub(crate) fn wait_id(deployment: &Deployment, hostname: &str) -> String {
    let given = kubernetes::readable_parameters(deployment);
    match given.get("WAIT_ID").or(given.get("INSTANCE_NAME")) {
        Some(number) if number.bytes().all(|byte| byte.is_ascii_digit()) => format!("node-{number}"),
        Some(id) => id.to_owned(),
        None => format!("node-{}", deployment.text_input("deploy_server_id").map_or_else(|| short(hostname), str::to_owned)),
    }
}

impl Node {
    /// What the machine is, looked at once, when the first node asks for it; and what is on it now.
    pub(super) fn facts(&self) -> Facts {
        let machine = self.machine.get_or_init(|| crate::machine::facts::of_machine(&self.root)).clone();
        crate::machine::facts::anew(&self.root, machine)
    }

    /// The FAILURE of a node that is not begun, if its wait handle at least can be read.
    pub(super) fn wait_failure(&self, deployment: &Deployment, code: Code, error: &Error) -> Option<Wait> {
        self.wait_failed(deployment, sentence(code, error), json!({"code": code.entry().code}))
    }

    /// The same with a sentence that is there already.
    pub(super) fn wait_failed(&self, deployment: &Deployment, reason: String, data: Value) -> Option<Wait> {
        let handle = Handle::parse(&kubernetes::readable_parameters(deployment).wait_handle()?).ok()?;
        let id = wait_id(deployment, &self.hostname());
        Some(Wait { handle, signal: WaitSignal { status: Status::Failure, id, reason, data } })
    }

    /// Brings the node up as planned. `since`: how long Heat has been waiting.
    pub(super) async fn bring_up(&self, deployment: Deployment, plan: Plan, generation: u64, since: Duration) -> Done {
        let name = plan.spec.node_name(&self.hostname());
        let address = plan.spec.address.map(|address| address.to_string()).unwrap_or_default();
        let deadline = time_left(plan.spec.timeout, plan.spec.deadline, since);
        // A deployment asks for everything anew.
        self.growths.forget();
        self.secrets.replace(Some(kubernetes::readable_parameters(&deployment).secrets()));
        let is_told = plan.wait.is_some() || !matches!(deployment.signal_target(), SignalTarget::None);
        let settles = if is_told { SETTLES } else { Duration::ZERO };
        let course = Course { deadline, settles, generation, is_update: true };
        self.forget_left();
        let desired = renewal::beside_an_update(&plan.desired);
        let result = self.converge(&plan.spec, &desired, course).await;
        if result.is_ok() {
            self.take_as_it_is(&plan.desired);
        }
        let touched = result.as_ref().map_or_else(|failure| failure.touched, |_| true);
        let laps = self.progress.laps();
        let (outcome, timings, status, reason) = match result {
            Ok(converged) => {
                let code = if converged.changed { Code::NodeConverged } else { Code::NodeUnchanged };
                let line = format!("node {name} is ready (generation {generation})");
                self.report
                    .emit(event(code, line, generation, &deployment).phase(Phase::Steady).duration(self.progress.elapsed()));
                let timings = timings(&laps);
                let outputs = outputs(&name, &address, plan.spec.kube_version.as_deref(), generation, &timings);
                (Outcome { outputs, ..Outcome::default() }, timings, Status::Success, format!("node {name} is healthy"))
            }
            Err(failure) => {
                // What exactly failed was told where it happened; this line ties it to the deployment.
                let error = error_of(&failure);
                self.report.emit(
                    event(Code::NodeFailed, format!("node {name} could not be brought up"), generation, &deployment)
                        .phase(failure.phase())
                        .step(failure.doing())
                        .error(&error),
                );
                let reason = sentence(failure.code, &error);
                (Outcome::refused(reason.clone()), Vec::new(), Status::Failure, reason)
            }
        };
        let id = wait_id(&deployment, &self.hostname());
        let data = wait_data(&name, &address, generation, &timings);
        let wait = plan.wait.map(|handle| Wait { handle, signal: WaitSignal { status, id, reason, data } });
        Done { outcome, laps, wait, touched }
    }

    /// Looks after a node, whatever came of its last deployment: compares it with its parameters and looks at its certificates. What
    /// differs is put back, and what is due is renewed, where the node has all that was asked.
    pub(super) async fn look(&self, reference: &Reference) -> Result<Look> {
        let Some(systemd) = &self.systemd else { return Ok(Look::default()) };
        let generation = reference.generation;
        let deployment = Deployment::parse(&reference.entry).ok().flatten();
        // A deployment of this life of the agent has left them.
        if let Some(deployment) = deployment.as_ref().filter(|_| self.secrets.borrow().is_none()) {
            self.secrets.replace(Some(kubernetes::readable_parameters(deployment).secrets()));
        }
        let Some(spec) = deployment.and_then(|deployment| kubernetes::node_of(&deployment, &Leave::everything()).ok()) else {
            // A newer agent may understand parameters differently; the next deployment tells.
            return Ok(Look::default());
        };
        let desired = kubernetes::render(&spec, &self.facts());
        let drifted = match reference.extent {
            Extent::Whole => self.compare(&spec, &desired, systemd, generation).await?,
            Extent::Part => self.compare_part(&desired, systemd, generation).await?,
            Extent::Nothing => false,
        };
        let seen = self.look_at_certificates(&desired, generation)?;
        let turn = certificates::Record::look(&self.state).rotation;
        let renewal = self.renewal.borrow().clone().filter(|_| reference.extent == Extent::Whole);
        let certificates = seen.and_then(|seen| page::certificates(&seen, turn, renewal.as_ref()));
        let thin_pool = Box::pin(self.look_at_pool(&desired, systemd)).await?;
        Ok(Look { drifted, certificates, thin_pool })
    }

    /// How full docker's thin pool is.
    async fn look_at_pool(&self, desired: &Desired, systemd: &Systemd) -> Result<Option<ThinPoolStatus>> {
        let Some(volume) = desired.volumes.iter().find(|volume| volume.content == Content::ThinPool) else { return Ok(None) };
        let volumes = self.volumes(systemd);
        let disks = volumes.probe.read_disks()?;
        Ok(volumes.look_at_pool(volume, &disks, &self.fills).await.as_ref().map(page::thin_pool))
    }

    /// What differs from the parameters; nothing where that cannot be seen for what ails the node, which is told then.
    pub(super) async fn see<'a>(
        &self,
        desired: &'a Desired,
        volumes: &VolumeKeeper<Hands>,
        systemd: &Systemd,
        generation: u64,
    ) -> Result<Option<Sight<'a>>> {
        if !self.looked.get() {
            // It may have run before anybody said which instance this is, and systemd does not come back to what it refused.
            let refused = systemd.unit(kubernetes::GUARD).await?.is_failed();
            self.looked.set(true);
            for unit in desired.units.iter().filter(|unit| refused && unit.enable) {
                // What does not start is found below.
                drop(systemd.start(&unit.name).await);
            }
        }
        // What has lost its disk may be on its way for ever, and cannot be read.
        let disks = if desired.volumes.is_empty() { Vec::new() } else { volumes.probe.read_disks()? };
        let mut sick = ailments(desired, &self.root, &disks);
        let tell = |sick: &[Ailment]| sick.iter().for_each(|ailment| self.report.emit(ailment.event().generation(generation)));
        let mut observed = match converge::observe(desired, &self.root, systemd).await {
            Err(_) if !sick.is_empty() => {
                tell(&sick);
                return Ok(None);
            }
            observed => observed?,
        };
        let unrest = self.unrest.look(&observed.units, &self.clock);
        // Who needs a disk that is really away fails after a minute and a half, systemd's time limit for devices.
        sick.retain(|ailment| unrest.is_some() || !self.unrest.is_boot() || !ailment.awaits_disk(&observed));
        tell(&sick);
        let is_arriving = unrest.is_none() && sick.is_empty();
        let certificates = self.look_at_certificates(desired, generation)?;
        let wrong = certificates.iter().flat_map(|look| look.to_put_back(desired));
        observed.certificates = wrong.map(ToString::to_string).collect();
        let mut found = drift::causes(&converge::plan(desired, &observed), &observed);
        let mounted: Vec<_> = desired.volumes.iter().filter(|volume| observed.mounted.contains(&volume.role)).collect();
        // What was put back before is remembered from here on, too.
        let added = self.added(desired)?;
        if is_arriving {
            // A file says what it says; all else is judged when the units have arrived. They may never, for what the file says.
            found.retain(Cause::is_file);
        } else {
            for volume in misplaced(&volumes.probe, &disks, &mounted)? {
                found.push(Cause::of_volume(&format!("volume {} is not what is at {}", volume.disk, volume.mount_point)));
            }
            found.extend(sick.iter().map(|ailment| Cause::of_volume(&ailment.cause())));
            found.extend(unrest.unwrap_or_default());
            found.extend(added);
        }
        let is_flawed = !observed.certificates.is_empty();
        Ok(Some(Sight { found, is_arriving, is_sick: !sick.is_empty(), is_flawed, certificates, mounted, disks }))
    }

    /// Whether the node differs from its parameters; with DRIFT=repair it is put back.
    async fn compare(&self, spec: &NodeSpec, desired: &Desired, systemd: &Systemd, generation: u64) -> Result<bool> {
        let volumes = self.volumes(systemd);
        let Some(sight) = self.see(desired, &volumes, systemd, generation).await? else { return Ok(true) };
        let now = self.clock.now();
        let due = self.due(&sight, desired, now);
        let Sight { found, is_arriving, is_sick, is_flawed, mounted, disks, .. } = sight;
        if is_arriving && found.is_empty() && !due.is_now() {
            return Ok(false);
        }
        let Sorted { fought, repairs } = drift::sorted(&found, self.drift.borrow().as_ref().filter(|_| spec.repair), now);
        let record = certificates::Record::look(&self.state);
        let ordered = record.ordered.filter(|_| !is_arriving && record.is_ordered());
        let reason = Reason { generation, ordered, renews: due.is_now(), drifted: is_flawed, beside: drift::digest(&repairs) };
        let had_failed = self.pause.has_failed();
        let held = self.pause.holds(reason);
        // A file that another tool writes stays as that tool wants it. Certificates are renewed in their own time.
        let without_fought = || renewal::none(renewal::leaving(desired, &fought));
        // An order of the operator is carried out whatever else is found, and puts that right, too.
        if !held && ordered.is_some() {
            return Ok(!self.put_back(spec, &without_fought(), reason, &repairs).await);
        }
        if !held && due.is_now() && (repairs.is_empty() || due == Due::Expired) {
            let (left, repairs) = if spec.repair { (&fought, repairs.as_slice()) } else { (&found, &[][..]) };
            if let Some(succeeded) = self.renew(spec, &renewal::leaving(desired, left), reason, repairs, due).await {
                return Ok(!succeeded);
            }
        }
        let is_left = is_sick || found.iter().any(Cause::is_foreign);
        let mut texts: Vec<String> = found.into_iter().map(|cause| cause.text).collect();
        if due.is_now() && !repairs.is_empty() && !spec.repair {
            texts.push("no certificate is renewed until this is fixed".to_owned());
        }
        let mut is_too_small = false;
        for volume in mounted {
            // Whoever extends a volume asks for it, whatever DRIFT says.
            if let Err(failure) = volumes.grow(volume, &disks).await {
                is_too_small = true;
                texts.push(failure.cause);
            }
        }
        // What is left of a plan then (unit files that systemd is to read again) changes nothing that runs.
        if texts.is_empty() {
            if had_failed && !held {
                // Somebody else put it right: no step of the try that failed is waited for any more.
                self.progress.expect(Vec::new());
            }
            return Ok(held && had_failed);
        }
        let event = |code, message, texts: &[String]| {
            let cause = shortened(&texts.join(", "), REASON_LIMIT);
            Event::new(code, message).generation(generation).step("drift").cause(cause)
        };
        self.report.emit(event(Code::NodeDrift, "the node differs from its parameters", &texts));
        if !fought.is_empty() {
            let texts: Vec<String> = fought.iter().map(|cause| cause.text.clone()).collect();
            self.report.emit(event(Code::DriftHeld, "another tool keeps reverting the agent's repair", &texts));
        }
        // A volume that is too small grows at its own time, and nothing that is put back makes it.
        if !spec.repair || held || repairs.is_empty() {
            return Ok(true);
        }
        let failed = !self.put_back(spec, &without_fought(), reason, &repairs).await;
        Ok(failed || is_too_small || is_left || !fought.is_empty())
    }

    /// What somebody added beside the node's files, or changed there, since it was brought up.
    fn added(&self, desired: &Desired) -> Result<Vec<Cause>> {
        self.remembered(|record| {
            let (added, is_first) = record.compare(drift::beside(desired, &self.root)?);
            Ok((added, is_first))
        })
    }

    /// Something of what is remembered of drift, which is written if that changed it.
    pub(super) fn remembered<T>(&self, ask: impl FnOnce(&mut drift::Record) -> Result<(T, bool)>) -> Result<T> {
        let mut record = self.drift.borrow_mut();
        let record = match &mut *record {
            Some(record) => record,
            none => none.insert(drift::Record::open(&self.state, &self.report)?),
        };
        let (answer, changed) = ask(record)?;
        if changed {
            record.write(&self.state)?;
        }
        Ok(answer)
    }

    /// A node was brought up: what lies beside its files was measured with it, and no repair of before counts.
    fn take_as_it_is(&self, desired: &Desired) {
        let taken = drift::beside(desired, &self.root).and_then(|beside| {
            let record = drift::Record::of_new(beside);
            record.write(&self.state).map(|()| record)
        });
        match taken {
            Ok(record) => *self.drift.borrow_mut() = Some(record),
            Err(error) => self.forgot(&error),
        }
    }

    /// What cannot be remembered is told; the next deployment tries again.
    pub(super) fn forgot(&self, error: &Error) {
        self.report.emit(Event::new(Code::StateWriteFailed, "the drift record cannot be written").step("drift").error(error));
    }

    /// Makes the node what it should be; whether that went well. Where certificates are the reason, the next try is held back.
    pub(super) async fn put_back(&self, spec: &NodeSpec, desired: &Desired, reason: Reason, repairs: &[Cause]) -> bool {
        self.put_back_within(spec.deadline, spec, desired, reason, repairs).await
    }

    /// The same within another time.
    pub(super) async fn put_back_within(
        &self,
        deadline: Duration,
        spec: &NodeSpec,
        desired: &Desired,
        reason: Reason,
        repairs: &[Cause],
    ) -> bool {
        self.pause.begin(reason, &self.clock);
        let course = Course { deadline, settles: Duration::ZERO, generation: reason.generation, is_update: false };
        let failed = self.converge(spec, desired, course).await.is_err();
        // What only passes by itself, and was not put back, is not tried at each look.
        let is_idle = !reason.is_about_certificates() && repairs.iter().all(Cause::is_effect);
        self.pause.end(failed || is_idle, &self.clock);
        let mut record = self.drift.borrow_mut();
        if let Some(record) = record.as_mut().filter(|_| !failed && !repairs.is_empty()) {
            record.repaired(repairs, self.clock.now());
            if let Err(error) = record.write(&self.state) {
                self.forgot(&error);
            }
        }
        !failed
    }

    /// `None` while the clock is wrong: nothing can be judged by it.
    fn look_at_certificates(&self, desired: &Desired, generation: u64) -> Result<Option<Rc<certificates::Look>>> {
        let now = self.clock.now();
        if now < BUILT || desired.trusted_paths().is_empty() {
            return Ok(None);
        }
        self.certificates.look(&self.root, &self.state, desired, generation, now, &self.report).map(Some)
    }

    async fn converge(
        &self,
        spec: &NodeSpec,
        desired: &Desired,
        Course { deadline, settles, generation, is_update }: Course,
    ) -> converge::Outcome {
        // Those of an earlier run are not this one's, which may end before it begins.
        self.progress.begin_run();
        let Some(systemd) = &self.systemd else {
            return Err(Failure::new(Code::NoSystemd, "systemd", "no systemd answers on the system bus")
                .rule("a node is configured through systemd over D-Bus")
                .remedy("start dbus.service, and run the agent under systemd")
                .untouched());
        };
        // Many futures: on the heap.
        Box::pin(self.check_installed(spec, desired, systemd, generation)).await.map_err(Failure::untouched)?;
        let hands = self.hands(systemd);
        let issuers = Issuers { hands: hands.clone(), http: Rc::clone(&self.http), keystone: self.keystone.clone() };
        let certificates = CertificateKeeper {
            hands: issuers,
            root: Arc::clone(&self.root),
            state: Arc::clone(&self.state),
            clock: self.clock.clone(),
            built: BUILT,
            progress: self.progress.clone(),
            generation,
            is_update,
        };
        let volumes = self.volumes(systemd);
        let context = Context {
            root: &self.root,
            systemd,
            volumes: &volumes,
            prober: &*self.http,
            certificates: &certificates,
            clock: &self.clock,
            progress: &self.progress,
            deadline,
            patience: self.patience,
            settles,
            generation,
            flanneld: match &desired.flannel {
                // As large as what follows, and on the heap as well.
                Some(_) => Box::pin(self.flanneld(systemd)).await,
                None => None,
            },
        };
        // A large future: on the heap once, not in every state above.
        let outcome = Box::pin(converge::converge(desired, &context, &self.hands(systemd))).await;
        self.unrest.forget();
        outcome
    }

    pub(super) fn hands(&self, systemd: &Systemd) -> Hands {
        Hands {
            systemd: systemd.clone(),
            programs: Rc::clone(&self.programs),
            root: Arc::clone(&self.root),
            secrets: self.secrets.borrow().clone().unwrap_or_default(),
        }
    }

    pub(super) fn volumes(&self, systemd: &Systemd) -> VolumeKeeper<Hands> {
        VolumeKeeper {
            hands: self.hands(systemd),
            probe: Probe::machine(),
            root: Arc::clone(&self.root),
            state: Arc::clone(&self.state),
            clock: self.clock.clone(),
            progress: self.progress.clone(),
            growths: Rc::clone(&self.growths),
        }
    }

    fn hostname(&self) -> String {
        let bytes = self.root.read(Path::new("/proc/sys/kernel/hostname"), READ_LIMIT).ok().flatten().unwrap_or_default();
        String::from_utf8_lossy(&bytes).trim().to_owned()
    }
}

fn event(code: Code, message: String, generation: u64, deployment: &Deployment) -> Event {
    Event::new(code, message).generation(generation).deployment(&deployment.id, &deployment.name)
}

fn error_of(failure: &Failure) -> Error {
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
) -> std::collections::BTreeMap<String, Value> {
    let all = [
        ("node_name", Value::from(name)),
        ("node_address", Value::from(address)),
        ("kube_version", Value::from(version.unwrap_or_default())),
        ("generation", Value::from(generation)),
        ("timings", Value::Object(timings.iter().map(|(step, ms)| (step.clone(), Value::from(*ms))).collect::<Map<_, _>>())),
    ];
    all.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

fn wait_data(name: &str, address: &str, generation: u64, timings: &[(String, u64)]) -> Value {
    let steps: Map<String, Value> = timings.iter().map(|(step, ms)| (step.clone(), Value::from(*ms))).collect();
    json!({"node_name": name, "node_address": address, "generation": generation, "timings_ms": steps})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_of_a_wait_condition_is_the_servers_own_and_no_number() {
        let server = ("deploy_server_id", "0e2c4c34");
        for (inputs, id) in [
            (vec![("WAIT_ID", "m0"), ("INSTANCE_NAME", "n"), server], "m0"),
            (vec![("wait_id", "7"), server], "node-7"),
            (vec![("INSTANCE_NAME", "master-0"), server], "master-0"),
            (vec![("INSTANCE_NAME", "12"), server], "node-12"),
            (vec![("WAIT_ID", ""), server], "node-0e2c4c34"),
            (vec![server], "node-0e2c4c34"),
            (vec![], "node-localhost"),
        ] {
            let inputs: Vec<Value> = inputs.iter().map(|(name, value)| json!({"name": name, "value": value})).collect();
            let entry = json!({"id": "new at every update", "group": "kubernetes-node", "inputs": inputs});
            let deployment = Deployment::parse(&entry).unwrap().unwrap();
            assert_eq!(wait_id(&deployment, "Localhost.localdomain"), id, "{inputs:?}");
        }
    }
}
