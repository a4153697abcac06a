//! The status file: what `heat-node-agent status` and monitoring read. No secrets; works when the daemon is down.
//!
//! Made by `daemon`, written to the run directory as `status.json`, mode 0644.

use serde::{Deserialize, Serialize};

use super::catalog::Code;
use super::component::ComponentStatus;
pub use super::condition::{Condition, ConditionId, Subject};
use super::condition_state::ConditionState;
use super::event::Phase;
use super::follow_up::{FollowUp, STAYS_FAILED};
use super::reason::{FailureReason, RollbackEnd};
pub use super::states::{DeploymentState, NodeState};
use super::step_timing::StepTiming;
use super::text::{argument, duration, shortened};
use super::volume::VolumeStatus;
use crate::clock::Timestamp;

/// Version of the document: raised where a member changes its meaning or goes.
pub const SCHEMA_VERSION: u32 = 1;

/// What to do about a node that differs from its parameters.
pub const DRIFT_REMEDY: &str = "`heat-node-agent plan` shows what differs, line by line, and what would be restarted; `heat-node-agent repair` puts it back. If somebody changed the node on purpose, change the template to match and update the stack instead";

/// What is waited for while a node is [`NodeStatus::unchecked`].
pub const FIRST_CHECK: &str = "the first check of the node since the agent started";

/// Differences that are named; the rest is counted.
const DIFFERENCES: usize = 4;

/// Everything that is shown.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StatusDocument {
    /// [`SCHEMA_VERSION`] of the writer.
    pub schema_version: u32,
    /// The agent itself.
    pub agent: AgentStatus,
    /// Which instance this is.
    #[serde(default)]
    pub identity: Option<IdentityStatus>,
    /// Where the node is.
    pub phase: Phase,
    /// One sentence, also systemd's STATUS=.
    pub summary: String,
    /// Metadata sources.
    pub sources: Vec<SourceStatus>,
    /// Deployments, oldest first.
    pub deployments: Vec<DeploymentStatus>,
    /// The node, once a kubernetes-node deployment was seen.
    pub node: Option<NodeStatus>,
    /// Signals that Heat does not have yet.
    pub signals: Vec<SignalStatus>,
    /// What has to be there before any metadata counts: settings, bus, identity.
    #[serde(default)]
    pub conditions: Vec<Condition>,
    /// Who speaks for Heat now.
    #[serde(default)]
    pub metadata: MetadataStatus,
    /// What the agent may take of memory and disk, and what it takes.
    #[serde(default)]
    pub budgets: Vec<BudgetStatus>,
    /// Data of services that was moved away and that nothing uses.
    #[serde(default)]
    pub set_aside: Vec<SetAsideStatus>,
}

/// One budget (budgets/mod.rs).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BudgetStatus {
    /// What it is of.
    pub name: String,
    /// `bytes` or `items`.
    pub unit: String,
    /// What is taken.
    pub used: u64,
    /// What may be taken.
    pub limit: u64,
}

/// A directory that was moved away.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetAsideStatus {
    /// Where it is.
    pub path: String,
    /// How large it is.
    pub bytes: u64,
    /// Whether all of it was counted.
    pub is_all: bool,
    /// The command that removes it. The agent never does.
    pub remove: String,
}

impl SetAsideStatus {
    /// For people.
    #[must_use]
    pub fn size(&self) -> String {
        format!("{}{} MiB", if self.is_all { "" } else { "more than " }, self.bytes.div_ceil(1024 * 1024))
    }
}

/// Who speaks for Heat now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MetadataStatus {
    /// The authoritative source that answered since the agent started.
    pub source: Option<String>,
    /// Whether there is one that could answer, so that it is waited for.
    pub expected: bool,
    /// How many deployments it lists; nothing where no source has a list.
    pub listed: Option<usize>,
}

/// The process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentStatus {
    /// Its version.
    pub version: String,
    /// Its process id.
    pub pid: u32,
    /// When it started (RFC 3339).
    pub started: String,
}

/// Which instance this is, and whose copy its disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdentityStatus {
    /// The instance and who says so; none while it is not known.
    pub instance: Option<String>,
    /// Why it is not known.
    pub cause: Option<String>,
    /// What to do about it.
    pub remedy: Option<String>,
    /// The instance that the disk was copied from.
    pub copy_of: Option<String>,
    /// Where that one's state lies.
    pub moved_to: Option<String>,
    /// Files that are as that one had them, and so are not used.
    pub left_over: Vec<String>,
    /// The stack and the resource that they lead to, where os-collect-config.conf is one of them and says so.
    #[serde(default)]
    pub left_over_resource: Option<String>,
}

impl IdentityStatus {
    /// Whether it keeps the agent from its work. `unanswered`: nobody who speaks for Heat has answered.
    fn waits(&self, unanswered: bool) -> bool {
        self.instance.is_none() || (unanswered && !self.left_over.is_empty())
    }

    /// Which files are not used because the disk is a copy.
    #[must_use]
    pub fn ignored(&self) -> Option<String> {
        let other = self.copy_of.as_deref().unwrap_or("another instance");
        let files = self.left_over.join(", ");
        (!files.is_empty()).then(|| {
            format!("{files} is ignored: this disk was copied from that of instance {other}, and the file is unchanged since")
        })
    }

    /// What to do about each of them.
    pub(super) fn left_over_remedies(&self) -> impl Iterator<Item = String> {
        self.left_over.iter().map(|file| left_over_remedy(file, self.left_over_resource.as_deref()))
    }

    /// For the tree of conditions.
    #[must_use]
    pub fn condition(&self, unanswered: bool) -> Condition {
        let waits = self.waits(unanswered);
        Condition {
            name: "identity".into(),
            state: if waits { ConditionState::Waiting } else { ConditionState::Ok },
            detail: self.instance.clone(),
            cause: self.cause.clone().or_else(|| self.ignored()).filter(|_| waits),
            remedy: self.remedy.clone().or_else(|| self.left_over_remedies().next()).filter(|_| waits),
            ..Condition::default()
        }
    }
}

/// A source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceStatus {
    /// `cfn`, `heat_local`, `file`.
    pub name: String,
    /// Last good answer (RFC 3339).
    pub last_good: Option<String>,
    /// Whether that is older than the list of deployments in force, which its next answer replaces.
    #[serde(default)]
    pub older: bool,
    /// Failures since then.
    pub failures: u32,
    /// Why the last try failed.
    pub cause: Option<String>,
    /// What to do about it.
    pub remedy: Option<String>,
    /// When it is read again (RFC 3339).
    #[serde(default)]
    pub next_try: Option<String>,
}

/// A deployment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeploymentStatus {
    /// UUID.
    pub id: String,
    /// Name.
    pub name: String,
    /// Group.
    pub group: String,
    /// The stack that it belongs to, as Heat writes it: name, slash, id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stack: Option<String>,
    /// CREATE, UPDATE, …
    pub action: String,
    /// How far it is.
    pub state: DeploymentState,
    /// Status code once it ended.
    pub status_code: Option<i32>,
    /// The agent's own reason for a failure, in one sentence: code, causes, remedy.
    pub reason: Option<String>,
    /// The code of that reason.
    #[serde(default)]
    pub code: Option<String>,
    /// Its causes, each by itself.
    #[serde(default)]
    pub causes: Vec<String>,
    /// What to do about it.
    #[serde(default)]
    pub remedy: Option<String>,
    /// Why no result was sent to Heat, where none was; of a script that runs, why it is about to be ended.
    pub note: Option<String>,
    /// Whether the metadata still asks for it.
    pub listed: bool,
    /// Whether Heat takes it as failed.
    pub failed: bool,
    /// When its state was entered: seen, running, or ended (RFC 3339).
    #[serde(default)]
    pub since: Option<String>,
    /// Whether Heat was to hear of the result and never will.
    #[serde(default)]
    pub undelivered: bool,
    /// What a script that runs said last; for root alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub said_last: Option<String>,
    /// When it is ended, if it has not ended before (RFC 3339); for root alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub given_up: Option<String>,
}

/// What to do about a file that the instance left from which this disk was copied. A blank line changes neither what a file of settings says
/// nor JSON. `resource`: stack and resource that it leads to, as words of a command.
#[must_use]
pub fn left_over_remedy(file: &str, resource: Option<&str>) -> String {
    let asked = match resource {
        Some(resource) => format!("`openstack stack resource show {resource}`"),
        None => {
            format!("`openstack stack resource show STACK RESOURCE`, with stack_name and path (up to .Metadata) of `cat {file}`")
        }
    };
    format!(
        "{asked}: if physical_resource_id is this server's id (line \"instance\"), the file is right: add an empty line to confirm it, \
         `echo >>{file}`. Else look for this server's id in `openstack stack resource list -n 9 STACK` of each stack. In none: \
         `systemctl disable --now heat-node-agent.service`. Found: write into the file what `openstack stack resource show --with-attr \
         os_collect_config STACK RESOURCE` prints. The agent then continues within 30 s"
    )
}

/// A reason as one sentence, its code, its causes, and what to do about it where the deployment of this id is to be run again.
fn parts_of(reason: &FailureReason, id: &str) -> (Option<String>, Option<String>, Vec<String>, Option<String>) {
    let id = shortened(id, 64);
    let remedy = reason.remedy.as_ref().map(|remedy| FollowUp::Rerun(&id).of(remedy).to_string());
    (Some(reason.to_string()), reason.code.clone(), reason.lines(), remedy)
}

/// How a program ended, by the status that stands for it: negative ones are signals.
#[must_use]
pub fn ended_with(status: i32) -> String {
    if status < 0 { format!("killed by signal {}", status.unsigned_abs()) } else { format!("exit status {status}") }
}

/// What to do about a script that failed with this code.
#[must_use]
pub fn script_remedy(id: &str, code: Option<&str>) -> String {
    let id = argument(id);
    let supply = if code == Some(Code::DeploymentTimedOut.entry().code) {
        "supply what it waited for (if it only needs longer, raise [deploy] time_limit, seconds for all deployments, in \
         /etc/heat-node-agent/agent.toml and `systemctl restart heat-node-agent`) and"
    } else {
        "supply what is missing and"
    };
    format!(
        "`heat-node-agent logs {id}` shows its output. Correct the script and update the stack. Or {supply} run \
         `heat-node-agent rerun {id}`; {STAYS_FAILED}"
    )
}

#[cfg(test)]
impl DeploymentStatus {
    /// A script that succeeded, of which Heat has heard.
    pub(in crate::report) fn signalled() -> Self {
        Self {
            id: "1".into(),
            name: "n".into(),
            group: "script".into(),
            stack: None,
            action: "CREATE".into(),
            state: DeploymentState::Signalled,
            status_code: None,
            reason: None,
            code: None,
            causes: Vec::new(),
            remedy: None,
            note: None,
            listed: true,
            failed: false,
            since: None,
            undelivered: false,
            said_last: None,
            given_up: None,
        }
    }
}

impl DeploymentStatus {
    /// The command that ends it, while it is a script or hook that runs.
    #[must_use]
    pub fn stop_command(&self) -> Option<String> {
        let runs = self.state == DeploymentState::Running && self.group != "kubernetes-node";
        runs.then(|| format!("heat-node-agent stop {}", argument(&self.id)))
    }

    /// Takes over code, causes and remedy of a failure.
    pub fn explain(&mut self, reason: &FailureReason) {
        (self.reason, self.code, self.causes, self.remedy) = parts_of(reason, &self.id);
    }

    /// Why it failed, each cause by itself.
    #[must_use]
    pub fn why(&self) -> Vec<String> {
        match (&self.causes[..], &self.reason) {
            _ if !self.failed => Vec::new(),
            ([], Some(reason)) => vec![reason.clone()],
            ([], None) => vec![ended_with(self.status_code.unwrap_or(1))],
            (causes, _) => causes.to_vec(),
        }
    }

    /// The code of its failure: a script's own has that of every script that fails.
    pub(super) fn code_of_failure(&self) -> Option<&str> {
        let of_script = || (self.group != "kubernetes-node").then_some(Code::DeploymentFailed.entry().code);
        self.code.as_deref().or_else(of_script).filter(|_| self.failed)
    }

    /// How it ended, in a few words with the code of that.
    #[must_use]
    pub(super) fn ended_as(&self) -> Option<String> {
        let status = self.status_code.filter(|_| self.group != "kubernetes-node");
        let is = |code: Code| self.code.as_deref() == Some(code.entry().code);
        let words = match status {
            _ if is(Code::DeploymentTimedOut) => Some("time limit exceeded".to_owned()),
            _ if is(Code::DeploymentNotStarted) => Some("not started".to_owned()),
            Some(status) if self.code.is_none() || is(Code::DeploymentFailed) => Some(ended_with(status)),
            _ => None,
        };
        let both: Vec<String> = words.into_iter().chain(self.code_of_failure().map(str::to_owned)).collect();
        (!both.is_empty()).then(|| both.join(", "))
    }

    /// What to do about a failure.
    #[must_use]
    pub fn remedy(&self) -> Option<String> {
        let general = || match self.group.as_str() {
            "kubernetes-node" => {
                "correct the parameters in the template and update the stack. The agent then continues by itself".to_owned()
            }
            _ => script_remedy(&shortened(&self.id, 64), self.code.as_deref()),
        };
        self.failed.then(|| self.remedy.clone().unwrap_or_else(general))
    }

    /// How long it has run, and the command that ends it.
    pub(super) fn run_time(&self, now: Timestamp) -> Option<String> {
        let since = self.since.as_deref().and_then(Timestamp::parse_rfc3339)?;
        let given_up = self.given_up.as_deref().and_then(Timestamp::parse_rfc3339);
        let limit = given_up.map_or(String::new(), |at| format!(", its time limit ends it in {}", duration(at.since(now))));
        let said = self.said_last.iter().map(|words| format!("; last output: {words}")).collect::<String>();
        let (logs, stop) = (format!("heat-node-agent logs {}", argument(&self.id)), self.stop_command()?);
        Some(format!(
            "has been running for {}{limit}{said}; `{logs}` shows its output, `{stop}` ends it now and reports it as failed",
            duration(now.since(since))
        ))
    }
}

/// The node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStatus {
    /// Number of the generation.
    pub generation: u64,
    /// How far it is.
    pub state: NodeState,
    /// Number of the generation that the node has instead, whole, where this one failed before it changed anything or was rolled back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_place: Option<u64>,
    /// Id of the deployment that asked for it.
    #[serde(default)]
    pub deployment: Option<String>,
    /// Why it was rejected, in one sentence: code, step, cause, remedy.
    pub reason: Option<String>,
    /// The code of that reason.
    #[serde(default)]
    pub code: Option<String>,
    /// Its causes, each by itself.
    #[serde(default)]
    pub causes: Vec<String>,
    /// What to do about it.
    #[serde(default)]
    pub remedy: Option<String>,
    /// What became of the node after the failure: that it was rolled back, or why it was not; or the rollback under way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollback: Option<String>,
    /// How that ended; nothing while it is under way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollback_end: Option<RollbackEnd>,
    /// Steps and their milliseconds.
    pub timings: Vec<(String, u64)>,
    /// Its steps against time: of the newest bring-up, also one that goes on or failed.
    #[serde(default)]
    pub step_timings: Vec<StepTiming>,
    /// Whether this run of the agent has not ended its first check of a node that is in place: how it is now is not known.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unchecked: bool,
    /// Whether the machine differs from the parameters.
    pub drifted: bool,
    /// What differs.
    #[serde(default)]
    pub differences: Vec<String>,
    /// The unit that each of them is about, by place; empty where it is about none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub difference_units: Vec<String>,
    /// What to do first about what differs, where putting it back does not mend it: a store that is full, or has lost its disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub difference_remedy: Option<String>,
    /// The same difference in a few words: `/var/lib/etcd on volume ID is full`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub difference_fact: Option<String>,
    /// The steps of bringing it up, in the newest run of the agent that did.
    #[serde(default)]
    pub steps: Vec<Condition>,
    /// Its certificates at the newest look; nothing before the first, and where it has none.
    #[serde(default)]
    pub certificates: Option<CertificatesStatus>,
    /// Its network of pods, where the agent watches routes; nothing before the first look.
    #[serde(default)]
    pub pod_network: Option<PodNetworkStatus>,
    /// docker's thin pool, where the node has one in use; nothing before the first look.
    #[serde(default)]
    pub thin_pool: Option<ThinPoolStatus>,
    /// Snapshots of etcd on its volume, once there are some, or one could not be taken.
    #[serde(default)]
    pub etcd_snapshots: Option<EtcdSnapshotsStatus>,
    /// Whether this master and the others verify each other's service account tokens; nothing before the first look, and without other masters.
    #[serde(default)]
    pub service_account_keys: Option<Box<ServiceAccountKeysStatus>>,
    /// How its components are now, as measured; empty before the first measurement.
    #[serde(default)]
    pub components: Vec<ComponentStatus>,
    /// `master` or `minion`; nothing where the parameters cannot be read, as with what follows.
    #[serde(default)]
    pub role: Option<String>,
    /// Its name in the cluster.
    #[serde(default)]
    pub name: Option<String>,
    /// The version of Kubernetes that was asked for.
    #[serde(default)]
    pub kube_version: Option<String>,
    /// Its volumes.
    #[serde(default)]
    pub volumes: Vec<VolumeStatus>,
}

/// Snapshots of etcd.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EtcdSnapshotsStatus {
    /// How many are kept.
    pub kept: usize,
    /// When the newest was taken (RFC 3339).
    pub newest: Option<String>,
    /// etcd's revision in it.
    pub revision: Option<u64>,
    /// What they take together.
    pub bytes: u64,
    /// Why the newest try failed, in one sentence.
    pub wrong: Option<String>,
    /// What to do about it.
    pub remedy: Option<String>,
}

/// Keys of service accounts, compared between masters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceAccountKeysStatus {
    /// How many other masters say their keys.
    pub masters: usize,
    /// Who does not verify whose tokens, a sentence for each other master.
    pub wrong: Vec<String>,
    /// Why the newest look failed, in one sentence.
    pub unknown: Option<String>,
    /// What to do about it.
    pub remedy: Option<String>,
    /// Since when it is as it is (RFC 3339).
    pub since: String,
}

impl ServiceAccountKeysStatus {
    /// For the tree of conditions, where something is wrong.
    #[must_use]
    pub fn condition(&self) -> Option<Condition> {
        let wrong = (!self.wrong.is_empty()).then(|| self.wrong.join("; "))?;
        Some(Condition {
            name: "service account keys".into(),
            state: ConditionState::Waiting,
            since: Some(self.since.clone()),
            cause: Some(wrong),
            remedy: self.remedy.clone(),
            ..Condition::default()
        })
    }
}

/// docker's thin pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThinPoolStatus {
    /// MiB for data; nothing where LVM does not say it, as with what follows.
    pub size_mib: Option<u64>,
    /// How much of that is used: `43.10`.
    pub data_percent: Option<String>,
    /// How much of the metadata is used.
    pub metadata_percent: Option<String>,
    /// What is wrong, in one sentence.
    pub wrong: Option<String>,
    /// What to do about it.
    pub remedy: Option<String>,
    /// Since when it is so, or nothing is wrong (RFC 3339).
    pub since: String,
}

impl NodeStatus {
    /// Takes over code, causes and remedy of the failure for which it was rejected.
    pub fn explain(&mut self, reason: &FailureReason) {
        (self.reason, self.code, self.causes, self.remedy) = parts_of(reason, self.deployment.as_deref().unwrap_or_default());
        self.rollback.clone_from(&reason.rollback);
        self.rollback_end = reason.rollback_end;
    }

    /// The steps that failed, of the update or of its rollback.
    pub(super) fn failed_steps(&self) -> impl Iterator<Item = &Condition> {
        self.steps.iter().filter(|step| step.state == ConditionState::Failed)
    }

    /// The failure of the update, where a rollback failed for another cause, which its steps show.
    pub(super) fn failure_before_rollback(&self) -> Option<Vec<String>> {
        (self.rollback_end == Some(RollbackEnd::OtherCause)).then(|| self.why())
    }

    /// Whether its components are shown as they were measured: those of a bring-up that goes on, or was given up half way, are its steps.
    pub(super) fn has_measured_components(&self) -> bool {
        let has_a_whole_generation = self.state == NodeState::Applied || self.in_place.is_some();
        !self.components.is_empty() && (has_a_whole_generation || self.steps.is_empty())
    }

    /// Why it was rejected, each cause by itself.
    #[must_use]
    pub(super) fn why(&self) -> Vec<String> {
        if self.causes.is_empty() { self.reason.clone().into_iter().collect() } else { self.causes.clone() }
    }

    /// How far the generation is, and which generation the node has where this one failed.
    #[must_use]
    pub(super) fn state_in_words(&self) -> String {
        let in_place = match self.in_place {
            Some(number) => format!(", generation {number} is in place"),
            // Of a rollback that failed too its own row says so.
            None if self.state == NodeState::Rejected && self.rollback.is_none() => {
                ", and no earlier one is complete on this node".to_owned()
            }
            None => String::new(),
        };
        format!("{}{in_place}", self.state.in_words())
    }

    /// Whether masters do not verify each other's service account tokens.
    pub(super) fn has_key_problem(&self) -> bool {
        self.service_account_keys.as_ref().is_some_and(|keys| !keys.wrong.is_empty())
    }

    /// Whether what differs is a volume that needs somebody.
    pub(super) fn has_volume_problem(&self) -> bool {
        self.difference_fact.is_some()
    }

    /// In a few words, what is wrong with a volume that needs somebody.
    pub(super) fn volume_problem(&self) -> Option<&str> {
        self.difference_fact.as_deref()
    }

    /// The step that brings a volume up.
    pub(crate) fn step_of_volume(&self, role: &str) -> Option<&Condition> {
        let is_own = |step: &&Condition| matches!(&step.subject, Some(Subject::Volume(name)) if name == role);
        self.steps.iter().find(is_own)
    }

    /// What to do about what differs.
    pub(super) fn drift_remedy(&self) -> &str {
        self.difference_remedy.as_deref().unwrap_or(DRIFT_REMEDY)
    }

    /// What differs from the parameters, in one line; nothing where that is only that components are down, which they say themselves.
    pub(super) fn drift(&self) -> Option<String> {
        let unhealthy: Vec<&str> =
            self.components.iter().filter(|one| one.is_unhealthy()).filter_map(|one| one.unit.as_deref()).collect();
        let unit_of = |at: usize| self.difference_units.get(at).map_or("", String::as_str);
        let is_own = |(at, _): &(usize, &String)| !unhealthy.contains(&unit_of(*at));
        let (shown, has_own) = (self.differences.iter().enumerate().filter(is_own), !self.differences.is_empty());
        let mut all: Vec<&str> = shown.map(|(_, text)| text.as_str()).collect();
        let more = all.len().saturating_sub(DIFFERENCES);
        all.truncate(DIFFERENCES);
        let more = if more > 0 { format!(", and {more} more") } else { String::new() };
        match &all[..] {
            [] if has_own => None,
            [] => Some("the node differs from what the stack asks for".to_owned()),
            all => Some(format!("{}{more}", all.join(", "))),
        }
    }
}

impl ThinPoolStatus {
    /// For the tree of conditions, where something is wrong.
    #[must_use]
    pub fn condition(&self) -> Option<Condition> {
        self.wrong.as_ref()?;
        Some(Condition {
            name: "thin pool".into(),
            state: ConditionState::Waiting,
            since: Some(self.since.clone()),
            cause: self.wrong.clone(),
            remedy: self.remedy.clone(),
            ..Condition::default()
        })
    }
}

/// The network of pods of a node in place.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodNetworkStatus {
    /// `flannel host-gw` or `static-routes`.
    pub driver: String,
    /// This node's part of it.
    pub subnet: Option<String>,
    /// How many other nodes there are.
    pub peers: usize,
    /// What is wrong, each in one sentence.
    pub wrong: Vec<String>,
    /// What to do about the first of them.
    pub remedy: Option<String>,
    /// Since when it is as it is (RFC 3339).
    pub since: String,
}

impl PodNetworkStatus {
    /// For the tree of conditions, where something is wrong.
    #[must_use]
    pub fn condition(&self) -> Option<Condition> {
        let wrong = (!self.wrong.is_empty()).then(|| self.wrong.join("; "))?;
        Some(Condition {
            name: "pod network".into(),
            state: ConditionState::Waiting,
            since: Some(self.since.clone()),
            cause: Some(wrong),
            remedy: self.remedy.clone(),
            ..Condition::default()
        })
    }
}

/// The certificates of a node in place.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CertificatesStatus {
    /// The one that ends first.
    pub first_to_expire: String,
    /// Its end (RFC 3339).
    pub first_expiry: String,
    /// What waits for somebody: one that is near its end, a CA rotation that waits for its next step.
    pub waits: Option<Condition>,
    /// When each of them ends.
    #[serde(default)]
    pub ends: Vec<CertificateEnd>,
}

/// When a certificate ends.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CertificateEnd {
    /// Its name.
    pub name: String,
    /// Its end (RFC 3339).
    pub end: String,
}

/// A waiting signal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignalStatus {
    /// Scheme, host and path.
    pub to: String,
    /// The deployment behind it.
    pub deployment: Option<String>,
    /// How often it was sent.
    pub tries: u32,
    /// What answered last.
    pub cause: Option<String>,
    /// What to do about it.
    #[serde(default)]
    pub remedy: Option<String>,
    /// When it was stored (RFC 3339).
    #[serde(default)]
    pub since: Option<String>,
    /// Not sent again before this (RFC 3339).
    #[serde(default)]
    pub next_try: Option<String>,
}

/// What `status --wait` waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitProgress {
    /// Everything that Heat asks for is done, and Heat knows.
    Done,
    /// Something is on its way, or is tried again.
    Waiting,
    /// Something ended badly that does not come right by itself.
    Failed,
}

impl StatusDocument {
    /// How things stand, for who waits.
    #[must_use]
    pub fn verdict(&self, running: bool) -> WaitProgress {
        let mut listed = self.deployments.iter().filter(|deployment| deployment.listed);
        let unfinished = listed.clone().any(|deployment| deployment.state != DeploymentState::Signalled);
        // Whoever only has drift reported waits for its end in vain.
        let node_failed = self
            .node
            .as_ref()
            .is_some_and(|node| matches!(node.state, NodeState::Rejected | NodeState::Restored) || node.drifted);
        let failed = self.conditions.iter().any(|one| one.name == ConditionId::Metadata && one.state == ConditionState::Failed);
        if failed || listed.any(|deployment| deployment.failed || deployment.undelivered) || (node_failed && !unfinished) {
            return WaitProgress::Failed;
        }
        let nothing_received = self.metadata.listed.is_none() || (self.metadata.expected && self.metadata.source.is_none());
        let phases_run = self.phases().is_some_and(|state| state == ConditionState::Waiting);
        if !running || nothing_received || unfinished || phases_run || self.is_tried_again() {
            WaitProgress::Waiting
        } else {
            WaitProgress::Done
        }
    }

    /// Whether something failed, is waiting to be said, or waits for somebody: the exit code 2 of `status`.
    #[must_use]
    pub fn is_degraded(&self) -> bool {
        self.is_tried_again()
            || self.sources.is_empty()
            || self.deployments.iter().any(|one| one.listed && (one.failed || one.undelivered))
            || self.conditions.iter().any(|condition| condition.state == ConditionState::Failed)
            // Heat has what it asked for: `--wait` does not wait for it.
            || self.node.as_ref().and_then(|node| node.certificates.as_ref()).is_some_and(|all| all.waits.is_some())
            || self.node.as_ref().and_then(|node| node.pod_network.as_ref()).is_some_and(|network| !network.wrong.is_empty())
            || self.node.as_ref().and_then(|node| node.thin_pool.as_ref()).is_some_and(|pool| pool.wrong.is_some())
            || self.node.as_ref().is_some_and(NodeStatus::has_key_problem)
            || self.node.as_ref().is_some_and(|node| node.components.iter().any(ComponentStatus::is_unhealthy))
    }

    /// How the image's phases of os-refresh-config are; nothing where the agent does not run them.
    pub(super) fn phases(&self) -> Option<ConditionState> {
        self.conditions.iter().find(|one| one.name == ConditionId::Phases).map(|one| one.state)
    }

    /// Whether the agent itself goes on trying at something.
    fn is_tried_again(&self) -> bool {
        self.identity.as_ref().is_some_and(|identity| identity.waits(self.metadata.source.is_none()))
            || self.sources.iter().any(|source| source.failures > 0)
            || self.node.as_ref().is_some_and(|node| node.state != NodeState::Applied || node.drifted || node.unchecked)
            || self.conditions.iter().any(|one| one.name == ConditionId::State && one.state == ConditionState::Failed)
            || self.phases().is_some_and(|state| state == ConditionState::Failed)
            || !self.signals.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_another_instance_left_matters_while_nobody_of_this_one_answers() {
        let unknown = IdentityStatus { cause: Some("why".into()), remedy: Some("do".into()), ..IdentityStatus::default() };
        let shown = unknown.condition(false);
        assert_eq!((shown.state, shown.cause.as_deref()), (ConditionState::Waiting, Some("why")));
        let copy = IdentityStatus { instance: Some("a".into()), left_over: vec!["/f".into()], ..IdentityStatus::default() };
        assert_eq!((copy.condition(true).state, copy.condition(false).state), (ConditionState::Waiting, ConditionState::Ok));
        assert!(copy.condition(true).cause.unwrap().contains("/f is ignored") && copy.condition(false).cause.is_none());
    }
}
