//! The node's own lane: from a kubernetes-node deployment to its result and its wait condition's signal.

use std::cell::{Cell, OnceCell};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::hands::Hands;
use crate::clock::Clock;
use crate::converge::volumes::{VolumeKeeper, misplaced};
use crate::converge::{self, Context, Failure};
use crate::deploy::Outcome;
use crate::desired::Desired;
use crate::error::{Error, Result};
use crate::files::{READ_LIMIT, Tree};
use crate::http::Http;
use crate::kubernetes::cluster::ClusterSpec;
use crate::kubernetes::{self, Facts, Mistake, NodeSpec, Preflight};
use crate::metadata::Deployment;
use crate::order::gather;
use crate::programs::{Programs, key_of};
use crate::report::text::shortened;
use crate::report::{Code, Event, Phase, Report};
use crate::signal::{Handle, Status, WaitSignal};
use crate::storage::probe::Probe;
use crate::systemd::{Systemd, UnitState};

/// A reason stays readable in Heat's resource list and below the size of its column.
const REASON_LIMIT: usize = 2000;

/// The shortest time for bringing a node up, where the wait condition's timeout allows it.
const LEAST: Duration = Duration::from_mins(1);

/// What the lane works with.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) root: Arc<Tree>,
    pub(super) state: Arc<Tree>,
    pub(super) systemd: Option<Systemd>,
    pub(super) http: Rc<Http>,
    pub(super) programs: Rc<Programs>,
    pub(super) clock: Clock,
    pub(super) report: Report,
    /// What the machine is.
    pub(super) machine: OnceCell<Facts>,
    /// A node in place was looked at since the start.
    pub(super) looked: Cell<bool>,
}

/// A deployment whose parameters are right.
#[derive(Debug)]
pub(in crate::commands) struct Plan {
    pub(super) spec: NodeSpec,
    pub(super) desired: Desired,
    pub(super) digest: String,
    pub(super) wait: Option<Handle>,
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
    pub(super) timings: Vec<(String, u64)>,
    pub(super) wait: Option<Wait>,
}

/// What a look at a node in place found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    pub(super) drifted: bool,
}

/// Checks parameters and wait handle.
pub(in crate::commands) fn understand(deployment: &Deployment, facts: &Facts) -> std::result::Result<Plan, Vec<Mistake>> {
    let handle = kubernetes::readable_parameters(deployment).wait_handle().map(|value| Handle::parse(&value)).transpose();
    let (spec, handle) = match (kubernetes::node_of(deployment), handle) {
        (Ok(spec), Ok(handle)) => (spec, handle),
        (spec, handle) => {
            let mut mistakes = spec.err().unwrap_or_default();
            // A handle that is no value at all is named already.
            if let Some(error) = handle.err().filter(|_| mistakes.iter().all(|mistake| mistake.parameter != "WAIT_HANDLE")) {
                let rule = error.broken_rule().unwrap_or_default().to_owned();
                let remedy = error.suggested_remedy().unwrap_or_default().to_owned();
                mistakes.push(Mistake::general("WAIT_HANDLE or WAIT_CURL", error.to_string(), rule, remedy));
            }
            return Err(mistakes);
        }
    };
    let desired = kubernetes::render(&spec, facts);
    // What the node looks like is the generation; where its signals go is not part of it.
    let digest = key_of(&format!("{:?}", (&desired, &spec.kube_version)));
    Ok(Plan { spec, desired, digest, wait: handle })
}

impl Plan {
    /// The same plan, if this machine can carry it out.
    pub(super) fn honourable(self, facts: &Facts) -> std::result::Result<Self, Vec<Mistake>> {
        let mut mistakes = Vec::new();
        if !self.desired.certificates.is_empty() {
            mistakes.push(Mistake::general(
                "CERTIFICATES",
                format!("this version cannot honour: {} certificates on a running node", self.desired.certificates.len()),
                "certificates are planned and verified, not made yet",
                "set TLS_DISABLED to True with a version from 1.10 to 1.19, or use `plan` and `apply --root`",
            ));
        }
        if self.spec.kubernetes.as_ref().is_some_and(ClusterSpec::has_flannel_in_etcd) {
            mistakes.push(Mistake::general(
                "NETWORK_DRIVER",
                "this version cannot honour: flannel with its network in etcd on a running node",
                "flanneld waits for a key in etcd that nobody writes yet",
                "give a version from 1.10 on, or use `plan` and `apply --root`",
            ));
        }
        if self.spec.preflight == Preflight::Refuse {
            mistakes.extend(kubernetes::preflight(&self.spec, facts));
        }
        if mistakes.is_empty() { Ok(self) } else { Err(mistakes) }
    }

    /// Whether a machine that is too small keeps the node from being begun.
    pub(in crate::commands) fn refuses_small_machines(&self) -> bool {
        self.spec.preflight == Preflight::Refuse
    }

    /// What the reader should know, although the node is brought up.
    pub(in crate::commands) fn warnings(&self, facts: &Facts) -> Vec<Mistake> {
        let small = if self.spec.preflight == Preflight::Off { Vec::new() } else { kubernetes::preflight(&self.spec, facts) };
        self.spec.warnings.iter().cloned().chain(small).collect()
    }
}

/// Every mistake in one error.
pub(super) fn bad_parameters(mistakes: &[Mistake]) -> Error {
    let all: Vec<String> = mistakes.iter().map(ToString::to_string).collect();
    Error::permanent(all.join(" | ")).remedy("correct the parameters in the template and update the stack")
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
pub(in crate::commands) fn wait_id(deployment: &Deployment, hostname: &str) -> String {
    let given = kubernetes::readable_parameters(deployment);
    match given.get("WAIT_ID").or(given.get("INSTANCE_NAME")) {
        Some(number) if number.bytes().all(|byte| byte.is_ascii_digit()) => format!("node-{number}"),
        Some(id) => id.to_owned(),
        None => format!("node-{}", deployment.text_input("deploy_server_id").map_or_else(|| short(hostname), str::to_owned)),
    }
}

impl Node {
    /// What the machine is; looked at once, when the first node asks for it.
    pub(super) fn facts(&self) -> Facts {
        *self.machine.get_or_init(|| crate::commands::facts::of_machine(&self.root))
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

    /// Brings the node up as planned. `since`: how long ago the deployment was first seen.
    pub(super) async fn bring_up(&self, deployment: Deployment, plan: Plan, generation: u64, since: Duration) -> Done {
        let watch = self.clock.start();
        let name = plan.spec.node_name(&self.hostname());
        let address = plan.spec.address.map(|address| address.to_string()).unwrap_or_default();
        // However long ago it was first seen, by a clock that may have jumped: a minute is left.
        let deadline = plan.spec.deadline.saturating_sub(since).max(plan.spec.deadline.min(LEAST));
        let result = self.converge(&plan.desired, deadline, generation).await;
        let (outcome, timings, status, reason) = match result {
            Ok(converged) => {
                let code = if converged.changed { Code::NodeConverged } else { Code::NodeUnchanged };
                let line = format!("node {name} is as generation {generation} asks");
                self.report.emit(event(code, line, generation, &deployment).phase(Phase::Steady).duration(watch.elapsed()));
                let mut timings = converged.timings;
                timings.push(("total".to_owned(), watch.millis()));
                let outputs = outputs(&name, &address, plan.spec.kube_version.as_deref(), generation, &timings);
                (Outcome { outputs, ..Outcome::default() }, timings, Status::Success, format!("node {name} is healthy"))
            }
            Err(failure) => {
                // What exactly failed was told where it happened; this line ties it to the deployment.
                let error = error_of(&failure);
                self.report.emit(
                    event(Code::NodeFailed, format!("node {name} could not be brought up"), generation, &deployment)
                        .phase(phase_of(&failure))
                        .step(&failure.step)
                        .error(&error),
                );
                let reason = sentence(failure.code, &error);
                (Outcome::refused(reason.clone()), Vec::new(), Status::Failure, reason)
            }
        };
        let id = wait_id(&deployment, &self.hostname());
        let data = wait_data(&name, &address, generation, &timings);
        let wait = plan.wait.map(|handle| Wait { handle, signal: WaitSignal { status, id, reason, data } });
        Done { outcome, timings, wait }
    }

    /// Compares a node in place with its parameters; with DRIFT=repair puts it back.
    pub(super) async fn look(&self, entry: &Value, generation: u64) -> Result<Look> {
        let Some(systemd) = &self.systemd else { return Ok(Look { drifted: false }) };
        let deployment = Deployment::parse(entry).ok().flatten();
        let Some(spec) = deployment.and_then(|deployment| kubernetes::node_of(&deployment).ok()) else {
            // A newer agent may understand parameters differently; the next deployment tells.
            return Ok(Look { drifted: false });
        };
        let desired = kubernetes::render(&spec, &self.facts());
        if !self.looked.get() {
            // It may have run before anybody said which instance this is, and systemd does not come back to what it refused.
            let refused = systemd.unit(kubernetes::GUARD).await?.is_failed();
            self.looked.set(true);
            for unit in desired.units.iter().filter(|unit| refused && unit.enable) {
                // What does not start is found below.
                drop(systemd.start(&unit.name).await);
            }
        }
        let observed = converge::observe(&desired, &self.root, systemd).await?;
        // Right after a boot the units are still on their way.
        if observed.units.values().any(UnitState::is_settling) {
            return Ok(Look { drifted: false });
        }
        let probe = Probe::machine();
        let mut found = summary(&converge::plan(&desired, &observed));
        let mounted: Vec<_> = desired.volumes.iter().filter(|volume| observed.mounted.contains(&volume.role)).collect();
        for volume in misplaced(&probe, &mounted)? {
            let wrong = format!("another disk than volume {} is mounted at {}", volume.cinder_id, volume.mount_point);
            found = [found, wrong].into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join(", ");
        }
        // What is left of a plan then (unit files that systemd is to read again) changes nothing that runs.
        if found.is_empty() {
            return Ok(Look { drifted: false });
        }
        self.report.emit(
            Event::new(Code::NodeDrift, "the node differs from its parameters").generation(generation).step("drift").cause(found),
        );
        if spec.repair {
            let repaired = self.converge(&desired, spec.deadline, generation).await.is_ok();
            return Ok(Look { drifted: !repaired });
        }
        Ok(Look { drifted: true })
    }

    async fn converge(&self, desired: &Desired, deadline: Duration, generation: u64) -> converge::Outcome {
        let Some(systemd) = &self.systemd else {
            return Err(Failure::new(Code::NoSystemd, "systemd", "no systemd answers on the system bus")
                .rule("a node is configured through systemd over D-Bus")
                .remedy("start dbus.service, and run the agent under systemd"));
        };
        let hands = Hands { systemd: systemd.clone(), programs: Rc::clone(&self.programs), root: Arc::clone(&self.root) };
        let volumes = VolumeKeeper {
            hands,
            probe: Probe::machine(),
            root: Arc::clone(&self.root),
            state: Arc::clone(&self.state),
            clock: self.clock.clone(),
            report: self.report.clone(),
        };
        let context = Context {
            root: &self.root,
            systemd,
            volumes: &volumes,
            prober: &*self.http,
            clock: &self.clock,
            report: &self.report,
            deadline,
            generation,
        };
        // A large future: on the heap once, not in every state above.
        Box::pin(converge::converge(desired, &context)).await
    }

    fn hostname(&self) -> String {
        let bytes = self.root.read(Path::new("/proc/sys/kernel/hostname"), READ_LIMIT).ok().flatten().unwrap_or_default();
        String::from_utf8_lossy(&bytes).trim().to_owned()
    }
}

fn event(code: Code, message: String, generation: u64, deployment: &Deployment) -> Event {
    Event::new(code, message).generation(generation).deployment(&deployment.id, &deployment.name)
}

/// What a plan would do, in one line.
fn summary(plan: &converge::Plan) -> String {
    let files = plan.files.iter().map(|file| format!("{} differs", file.path));
    let directories = plan.directories.iter().map(|directory| format!("{} differs", directory.path));
    let enable = plan.enable.iter().map(|unit| format!("{unit} is not enabled"));
    let start = plan.start.iter().map(|unit| format!("{unit} is not running"));
    let restart = plan.restart.iter().map(|unit| format!("{unit} has not read its files"));
    let helpers = plan.helpers.iter().map(|unit| format!("{unit} has not applied its files"));
    let volumes = plan.volumes.iter().cloned();
    let units = enable.chain(start).chain(restart).chain(helpers);
    let all: Vec<String> = files.chain(directories).chain(units).chain(volumes).collect();
    shortened(&all.join(", "), REASON_LIMIT)
}

fn error_of(failure: &Failure) -> Error {
    let what = match &failure.unit {
        Some(unit) if !failure.step.contains(unit.as_str()) => format!("{} ({unit})", failure.step),
        _ => failure.step.clone(),
    };
    let error = Error::permanent(&failure.cause).context(what).remedy(&failure.remedy);
    match &failure.rule {
        Some(rule) => error.rule(rule),
        None => error,
    }
}

fn phase_of(failure: &Failure) -> Phase {
    match failure.code.entry().code.get(4..6) {
        Some("03") => Phase::Volume,
        Some("07") => Phase::Gates,
        _ => Phase::Units,
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
    gather(all.map(|(name, value)| (name.to_owned(), value)))
}

fn wait_data(name: &str, address: &str, generation: u64, timings: &[(String, u64)]) -> Value {
    let steps: Map<String, Value> = timings.iter().map(|(step, ms)| (step.clone(), Value::from(*ms))).collect();
    json!({"node_name": name, "node_address": address, "generation": generation, "timings_ms": steps})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::signal::Destination;

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

    #[test]
    fn magnums_curl_line_is_a_wait_handle_too_and_a_bad_one_is_named() {
        let understood_as = |name: &str, value: &str| {
            let inputs = json!([{"name": name, "value": value}]);
            let config =
                json!({"ROLE": "minion", "KUBE_MASTER_IP": "192.0.2.1", "KUBE_NODE_IP": "192.0.2.2", "TLS_DISABLED": true});
            let entry = json!({"id": "i", "group": "kubernetes-node", "config": config, "inputs": inputs});
            understand(&Deployment::parse(&entry).unwrap().unwrap(), &Facts::default())
        };
        let understood = |curl| understood_as("WAIT_CURL", curl);
        let line = "curl -i -X POST -H 'X-Auth-Token: 5f0e' -H 'Accept: application/json' https://h:8004/v1/p/stacks/s/u/resources/r/signal";
        let endpoint = "https://h:8004/v1/p/stacks/s/u/resources/r/signal".to_owned();
        let token = Destination::Token { endpoint, token: "5f0e".into(), insecure: false };
        assert_eq!(understood(line).unwrap().wait, Some(Handle::Heat(token)));
        assert_eq!(understood("").unwrap().wait, None, "Magnum leaves it empty where Heat maps nothing to it");
        let mistakes = understood("curl -X POST").unwrap_err();
        assert!(mistakes[0].to_string().starts_with("WAIT_HANDLE or WAIT_CURL: "), "{}", mistakes[0]);
        let mistakes = understood_as("WAIT_HANDLE", "null").unwrap_err();
        assert!(mistakes[0].to_string().contains("a TOKEN_SIGNAL handle has no attribute signal"), "{}", mistakes[0]);
    }
}
