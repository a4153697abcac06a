//! What may be started now: looked at afresh whenever something moved.

use serde_json::Value;

use super::Agent;
use super::documents::with_metadata;
use super::view::{is_judged, withdrawal_reason};
use crate::budgets::SECRET_TEXTS;
use crate::clock::millis;
use crate::collect::HEAT_PARAMS;
use crate::daemon::masking::KnownSecrets;
use crate::daemon::node;
use crate::daemon::reason::{bad_parameters, reason};
use crate::deploy::{
    DeploymentOutcome, DeploymentRecord, DeploymentState, EntryKind, Generation, GenerationState, GroupPolicy, PendingEntry,
    Work, hooks, todo,
};
use crate::error::{Error, Result};
use crate::keepers::membership::leave;
use crate::kubernetes::{self, ImagePolicy, Mistake};
use crate::metadata::{Deployment, Malformed};
use crate::programs::{Job, Programs};
use crate::report::condition_state::ConditionState;
use crate::report::status::Condition;
use crate::report::{Code, Event, Phase};
use crate::signal::Destination;

/// Deployments that are refused in one turn of the loop: each is stored and synced, and a signal to the agent, an order or the
/// watchdog must not wait for thousands.
const AT_ONCE: usize = 20;

/// What becomes of an entry of the list in this turn of the loop.
enum EntryStep {
    /// Nothing more is to be looked at.
    End,
    /// It has ended, or asks for nothing.
    Over,
    /// It stays in the list.
    Waits,
    /// A script or hook is started.
    Job(Deployment, Work, Option<DeploymentState>),
    /// A node is brought up.
    Node(Deployment, Option<DeploymentState>),
}

/// Whether Heat hears of the result of a deployment.
fn reports_to_heat(deployment: &Deployment) -> bool {
    Destination::of(&deployment.signal_target()).is_some()
}

/// Whether Heat hears of the result of a node's, or a wait condition does.
pub(super) fn reports_to_heat_or_wait_condition(deployment: &Deployment) -> bool {
    reports_to_heat(deployment) || kubernetes::readable_parameters(deployment).wait_handle().is_some()
}

impl Agent {
    /// Looks at the whole list afresh and starts what may be started: one script or hook at a time, in the order of the
    /// list, and the node beside those that come after it.
    pub(super) fn decide(&mut self) -> Result<()> {
        // First of all what has to end: that needs no room on the disk, and may make some.
        self.supervise_job();
        self.ledger.store_missing_signals();
        // Signals go out even where nothing new can be begun, e.g. on a full disk.
        let recorded = self.record_ends();
        // What cannot be recorded of a node does not delay scripts.
        let begun = self.begin();
        let begun = recorded.and(begun);
        if let Err(error) = &begun {
            self.fail_overdue(error);
        }
        self.start_sending();
        begun
    }

    fn begin(&mut self) -> Result<()> {
        self.drop_superseded_bring_up()?;
        self.plan_work();
        let mut ended = self.refuse_rejected()?;
        self.worklist.has_more = ended >= AT_ONCE;
        // As behind a script: what they prepare may be what the deployments need.
        let (mut at, mut is_busy) = (0, self.run_phases());
        loop {
            match self.step_of(at, is_busy) {
                EntryStep::End => break,
                EntryStep::Over => self.worklist.done(at),
                _ if ended >= AT_ONCE => {
                    self.worklist.has_more = true;
                    return Ok(());
                }
                EntryStep::Waits => at += 1,
                EntryStep::Job(deployment, work, state) => {
                    at += 1;
                    is_busy = self.job_task.id().is_some() || !self.start_or_give_up(&deployment, work, state)?;
                    ended += usize::from(!is_busy);
                }
                EntryStep::Node(deployment, state) => {
                    at += 1;
                    self.start_node(deployment, state)?;
                }
            }
        }
        self.worklist.nodes_checked |= is_busy;
        Ok(())
    }

    /// Has the image's phases run where they are due, before the deployments of the same metadata. Whether these wait.
    fn run_phases(&mut self) -> bool {
        let is_free = || self.job_task.id().is_none() && self.ledger.journal.running_jobs().next().is_none();
        self.phases.begin(self.collector.snapshot(), is_free)
    }

    /// What is to be done about the entry there in the list; `is_busy`: a script before it runs. Then those behind it wait too, but what is
    /// wrong with a node is said at once all the same.
    fn step_of(&self, at: usize, is_busy: bool) -> EntryStep {
        let Some(&PendingEntry { ref id, what: EntryKind::Run(work), .. }) = self.worklist.rest.get(at) else {
            return EntryStep::End;
        };
        if is_busy && (self.worklist.nodes == 0 || self.worklist.nodes_checked) {
            return EntryStep::End;
        }
        if is_busy && work != Work::Node {
            return EntryStep::Waits;
        }
        let state = self.ledger.journal.get(id).map(|record| record.state);
        let deployment = self.worklist.entry(at).and_then(|entry| Deployment::of(entry).ok().flatten());
        match deployment.filter(|_| state.is_none_or(|state| state < DeploymentState::Finished)) {
            None => EntryStep::Over,
            Some(_) if self.ledger.has_unrecorded_end(id) => EntryStep::Waits,
            Some(deployment) if work != Work::Node => EntryStep::Job(deployment, work, state),
            Some(deployment) if self.may_begin_node() && (!is_busy || self.plan_of(&deployment).is_err()) => {
                EntryStep::Node(deployment, state)
            }
            Some(_) => EntryStep::Waits,
        }
    }

    /// Whether a node may be begun: none is, and the end of each before is recorded.
    fn may_begin_node(&self) -> bool {
        !self.node_task.bring_up.is_busy() && self.ledger.unrecorded_ends.is_empty()
    }

    /// Creates the list of work anew if Heat's list has changed, or a record was removed or moved back. Otherwise not: for a long list it takes
    /// as long as a script.
    fn plan_work(&mut self) {
        let entries = self.collector.snapshot().deployments.clone().unwrap_or_default();
        let revision = self.ledger.journal.revision();
        if self.worklist.is_of(&entries, revision) {
            return;
        }
        let node_file = self.collector.snapshot().node_file.as_ref().map(|file| file.id.clone());
        let policy = GroupPolicy { groups: self.host.settings.deploy.groups.clone(), node_file };
        self.ledger.held = None;
        let list = todo(entries.values(), |id| self.ledger.journal.get(id), &policy);
        self.worklist.renew(entries, revision, list);
    }

    /// What cannot be done is said at once, whoever waits before it.
    fn refuse_rejected(&mut self) -> Result<usize> {
        let (mut kept, mut ended) = (0, 0);
        while let Some((item, entry)) = self.worklist.rejected_at(kept).filter(|_| ended < AT_ONCE) {
            // It is refused once its bring-up has stopped.
            if item.what == EntryKind::DuplicateNode && self.node_task.bring_up.about() == Some(&item.id) {
                kept += 1;
                continue;
            }
            ended += 1;
            self.refuse_entry(&item, &entry)?;
            self.worklist.rejected.remove(kept);
        }
        Ok(ended)
    }

    fn refuse_entry(&mut self, item: &PendingEntry, entry: &Value) -> Result<()> {
        if self.ledger.journal.get(&item.id).is_some_and(|record| record.state >= DeploymentState::Finished) {
            return Ok(());
        }
        match (item.what, Deployment::parse(entry)) {
            (EntryKind::Malformed, Err(malformed)) => self.refuse_malformed(&malformed, entry)?,
            (EntryKind::DuplicateId, Err(malformed)) => self.report_once(&malformed, entry),
            (EntryKind::Forbidden, Ok(Some(deployment))) => {
                let rule = self.host.settings.deploy.groups.clone().unwrap_or_default().join(", ");
                let error = Error::refused(format!("group {:?} is not allowed on this image", deployment.group))
                    .rule(format!("[deploy] groups in agent.toml allows: {rule}"))
                    .remedy("use an allowed group, or have the image allow it");
                self.refuse(&deployment, Code::DeploymentForbidden, &error)?;
            }
            (EntryKind::NodeOfFile, Ok(Some(deployment))) => {
                let error = Error::refused(format!("the node is configured by {HEAT_PARAMS}"))
                    .rule("[node] source = \"heat-params\" in agent.toml: no deployment of the group kubernetes-node configures the node")
                    .remedy("remove the deployment from the template, or [node] source from agent.toml");
                self.refuse(&deployment, Code::DeploymentForbidden, &error)?;
            }
            (EntryKind::DuplicateNode, Ok(Some(deployment))) => {
                let error = Error::refused("more than one kubernetes-node deployment for this server, and none is newer")
                    .rule("a server has one kubernetes-node deployment; of several the one with the latest creation_time counts")
                    .remedy("keep one of them in the template");
                self.refuse(&deployment, Code::DuplicateNodeDeployment, &error)?;
            }
            (EntryKind::WaitingNode, Ok(Some(deployment))) => self.hold_node(&deployment)?,
            _ => {}
        }
        Ok(())
    }

    /// A node's deployment that waits for another one, which is said once: nothing of it is begun, and Heat hears nothing until the other
    /// one has begun.
    fn hold_node(&mut self, deployment: &Deployment) -> Result<()> {
        let state = self.ledger.journal.get(&deployment.id).map(|record| record.state);
        if !self.ledger.register(deployment, state)? {
            return Ok(());
        }
        let code = Code::DuplicateNodeDeployment;
        if let Some(taken) = self.taken_node(deployment) {
            let error = Error::refused(format!("the newer deployment {} configures this server", taken.name))
                .rule("a server has one kubernetes-node deployment; of several the one with the latest creation_time counts")
                .remedy(format!("remove {} or {} from the template, and update the stack", deployment.name, taken.name));
            // No word to a wait condition: both may have the same.
            self.ledger.end(&deployment.id, DeploymentOutcome::refused(reason(&self.host.report, code, &error)))?;
            self.report_refused(deployment, code, &error);
            return Ok(());
        }
        let cause =
            format!("deployment {} waits: another one of the group kubernetes-node has begun, or is newer", deployment.name);
        if state.is_none() {
            let event = Event::new(code, cause.clone()).phase(Phase::Deploy).deployment(&deployment.id, &deployment.name);
            self.host.report.emit(event.remedy(code.remedy()));
        }
        self.worklist.held = Some(Condition {
            name: "second node".into(),
            state: ConditionState::Waiting,
            cause: Some(cause),
            remedy: Some(code.entry().remedy.to_owned()),
            ..Condition::default()
        });
        Ok(())
    }

    /// The node's deployment in whose place this older one never will be, although Heat waits for it: that one has begun, and Heat lists
    /// both as different resources, as where a template has two by mistake. Where Heat hears nothing of it, it may still have its turn.
    fn taken_node(&self, deployment: &Deployment) -> Option<Deployment> {
        let current = self.ledger.generations.current().filter(|_| reports_to_heat(deployment))?;
        let taken = Deployment::parse(&current.entry).ok().flatten()?;
        let is_newer = taken.id != deployment.id && taken.creation_time > deployment.creation_time;
        let resource = |id: &str| self.ledger.journal.get(id).and_then(|record| record.resource.clone());
        let is_other = resource(&taken.id) != resource(&deployment.id);
        (is_newer && is_other && self.collector.snapshot().lists(&taken.id)).then_some(taken)
    }

    /// A bring-up that Heat replaced by something newer is left where it is: the newer one goes on from there.
    fn drop_superseded_bring_up(&mut self) -> Result<()> {
        let Some(id) = self.node_task.bring_up.about().cloned() else { return Ok(()) };
        let snapshot = self.collector.snapshot();
        let is_of_file = snapshot.file_of(&id).is_some();
        // Heat lists what it replaced until the replacement, which waits for this one's end, has succeeded.
        let replaced = || self.ledger.journal.get(&id).and_then(|record| withdrawal_reason(snapshot, record));
        let is_asked = snapshot.lists(&id) && (is_of_file || replaced().is_none());
        if !is_judged(snapshot, &id) || is_asked {
            return Ok(());
        }
        // What comes next waits until the node is whole. That reads the disk, and is asked only where something is superseded.
        if self.ledger.is_restoring() || self.node_task.node.is_going_back() || !self.is_up_to_date(&id) {
            return Ok(());
        }
        let record = self.ledger.journal.get(&id).cloned();
        // A member of etcd that leaves has left soon.
        if record.as_ref().is_some_and(|record| record.action == "DELETE") {
            return Ok(());
        }
        self.node_task.bring_up.stop();
        let Some(record) = record else { return Ok(()) };
        self.ledger.mark_withdrawn(&record, "superseded while it was being applied")?;
        if is_of_file { self.ledger.forget(&id) } else { Ok(()) }
    }

    /// Goes on with a rollback that an earlier run of the agent had begun, whatever Heat lists by now: the node is not left between two
    /// generations.
    pub(super) fn resume_rollback(&mut self) {
        let Some((deployment, plan)) = self.interrupted_update() else { return };
        // It is the same generation. Of an end that was cut off nothing stays: the node is between two generations until it has arrived.
        match self.ledger.generations.begin(&plan.digest, &deployment.id, deployment.to_hook_json()) {
            Ok(generation) => {
                let since = self.ledger.heat_waiting_for(&deployment, plan.spec.timeout);
                self.node_task.start(deployment, plan, generation, since);
            }
            Err(error) => self.trouble.record("resuming a rollback", &error),
        }
    }

    /// The update that the node was going back from when the agent ended, until that is resumed.
    pub(super) fn interrupted_update(&self) -> Option<(Deployment, node::NodePlan)> {
        // One that has failed is only to be recorded.
        if !self.ledger.unrecorded_ends.is_empty() {
            return None;
        }
        let is_applying = |current: &&Generation| current.state == GenerationState::Applying;
        let current = self.ledger.generations.current().filter(is_applying).filter(|_| !self.node_task.bring_up.is_busy())?;
        self.node_task.node.interrupted_rollback(current.number, &current.deployment).ok().flatten()?;
        let deployment = Deployment::parse(&current.entry).ok().flatten()?;
        // Whether the machine has room for the update, and the image permits it, is no question any more. What this version does not accept
        // is refused, and reported, where the list is processed.
        let plan = node::understand(&deployment, &self.node_task.node.facts(), &ImagePolicy::everything()).ok()?;
        Some((deployment, plan))
    }

    /// Whether what the metadata says of a deployment was said after the last step that was taken with it; if not, Heat is asked
    /// (design.md 9, Freshness).
    fn is_up_to_date(&mut self, id: &str) -> bool {
        let fact = self.ledger.journal.since(id);
        let is_fresh = self.collector.snapshot().freshness_of(id).covers(fact);
        if !is_fresh {
            self.collector.ask(fact);
        }
        is_fresh
    }

    /// Whether a script or hook may be begun. One that has begun is only taken up: that needs no fresh answer.
    fn may_begin(&mut self, deployment: &Deployment, state: Option<DeploymentState>) -> Result<bool> {
        let record = self.ledger.journal.get(&deployment.id).filter(|_| state == Some(DeploymentState::Running));
        let has_begun = record.map_or(Ok(false), |record| self.programs.has_begun(&record.job()))?;
        Ok(has_begun || (self.is_up_to_date(&deployment.id) && self.ledger.has_space(deployment, reports_to_heat(deployment))))
    }

    /// Starts a script or hook, or gives it up where there has been no room on the disk for that for long. `true` if the next one may be
    /// looked at.
    fn start_or_give_up(&mut self, deployment: &Deployment, work: Work, state: Option<DeploymentState>) -> Result<bool> {
        let failed = match self.start_job(deployment, work, state) {
            Err(error) if state != Some(DeploymentState::Running) => error,
            done => {
                if self.job_task.id().is_some() {
                    self.job_task.has_space();
                }
                return done;
            }
        };
        let seen = self.ledger.journal.get(&deployment.id).map(|record| record.seen);
        if !self.job_task.waited_for_space_to_record(&deployment.id, seen, &failed, &self.host.clock) {
            return Err(failed);
        }
        self.give_up(deployment, &failed).map(|()| true)
    }

    fn start_job(&mut self, deployment: &Deployment, work: Work, state: Option<DeploymentState>) -> Result<bool> {
        // Those behind it keep their turn.
        if !self.may_begin(deployment, state)? {
            return Ok(false);
        }
        if !self.ledger.register(deployment, state)? {
            return Ok(true);
        }
        let limit = self.host.settings.deploy.time_limit.map(millis);
        // A script of Magnum's may print what only its parameters' names show to be secret.
        let is_secret = kubernetes::is_secret_parameter;
        let job =
            match hooks::dispatch::job(deployment, work, &self.host.root, &self.host.settings.deploy.hook_dirs, limit, is_secret)
            {
                Ok(job) => {
                    let begun_mark = self.ledger.journal.begun_mark(&deployment.id);
                    let job = with_inputs_masked(Job { begun_mark, ..job }, deployment);
                    if hooks::reads_metadata(&deployment.group) { with_metadata(job, self.collector.snapshot()) } else { job }
                }
                Err(error) => {
                    let code = if work == Work::Script { Code::DeploymentMalformed } else { Code::DeploymentNoHook };
                    self.refuse(deployment, code, &error)?;
                    return Ok(true);
                }
            };
        let Some(record) = self.ledger.journal.get(&deployment.id) else { return Ok(true) };
        let key = record.job();
        let unit = Programs::unit(&key);
        self.programs.prepare(&key, &job)?;
        let event = if state == Some(DeploymentState::Running) {
            // One that has ended is taken up again as long as that cannot be recorded.
            if !self.job_task.mark_resumed(&deployment.id) {
                self.job_task.run(deployment.id.clone(), key);
                return Ok(false);
            }
            Event::new(Code::DeploymentReattached, format!("deployment {} is resumed", deployment.name))
        } else {
            self.ledger.journal.start(&deployment.id, deployment.to_hook_json())?;
            Event::new(Code::DeploymentStarted, format!("deployment {} ({}) starts", deployment.name, deployment.group))
        };
        self.host.report.emit(event.phase(Phase::Deploy).deployment(&deployment.id, &deployment.name).foreign_unit(unit));
        self.job_task.run(deployment.id.clone(), key);
        Ok(false)
    }

    /// Whether a deployment runs: what is wrong with its entry comes too late, its own end counts. One that outlived the agent is
    /// taken up.
    fn is_running(&mut self, id: &str) -> Result<bool> {
        if self.job_task.id() == Some(id) || self.node_task.bring_up.about().is_some_and(|one| one == id) {
            return Ok(true);
        }
        let job =
            self.ledger.journal.get(id).filter(|record| record.state == DeploymentState::Running).map(DeploymentRecord::job);
        let Some(job) = job else { return Ok(false) };
        let has_begun = self.programs.has_begun(&job)?;
        if has_begun && self.job_task.id().is_none() {
            self.job_task.run(id.to_owned(), job);
        }
        Ok(has_begun)
    }

    fn start_node(&mut self, deployment: Deployment, state: Option<DeploymentState>) -> Result<()> {
        // One that was begun goes on from what Heat said last; nothing new is begun on what may be out of date.
        let may_begin = state == Some(DeploymentState::Running)
            || (self.is_up_to_date(&deployment.id)
                && self.ledger.has_space(&deployment, reports_to_heat_or_wait_condition(&deployment)));
        if !may_begin {
            return Ok(());
        }
        if !self.ledger.register(&deployment, state)? {
            return Ok(());
        }
        let entry = deployment.to_hook_json();
        if !matches!(deployment.action(), "CREATE" | "UPDATE" | "") {
            return self.end_node(deployment, entry);
        }
        let rejected = |current: &&Generation| current.deployment == deployment.id && current.state == GenerationState::Rejected;
        if let Some(current) =
            self.ledger.generations.current().filter(|_| state == Some(DeploymentState::Running)).filter(rejected)
        {
            // Cut off after it failed: Heat may have heard of that, and must not hear otherwise from a second try.
            let reason = current.reason.clone().unwrap_or_default();
            self.ledger.store_wait(
                &deployment,
                self.node_task.node.wait_failed(&deployment, reason.to_string(), Value::Null).as_ref(),
            )?;
            return self.ledger.end(&deployment.id, DeploymentOutcome::refused(reason));
        }
        let plan = match self.plan_of(&deployment) {
            Ok(plan) => plan,
            Err(mistakes) => {
                let error = bad_parameters(&mistakes);
                return self.refuse(&deployment, Code::NodeParametersInvalid, &error);
            }
        };
        for warning in plan.warnings(&self.node_task.node.facts()) {
            self.host.report.emit(
                Event::new(Code::NodeParametersSuspicious, format!("{} {}", warning.parameter, warning.problem))
                    .phase(Phase::Plan)
                    .deployment(&deployment.id, &deployment.name)
                    .cause(warning.rule)
                    .remedy(warning.remedy),
            );
        }
        let is_resumed = self.ledger.generations.current().is_some_and(|current| current.resumes(&deployment.id, &plan.digest));
        if state != Some(DeploymentState::Running) && !is_resumed {
            self.leave_update_before()?;
        }
        self.move_data_of_left_member(&plan)?;
        // The generation first: if the agent is stopped between the two, a running deployment with a rejected generation would look like one
        // that had already failed, although this attempt has not been made yet.
        let generation = self.ledger.generations.begin(&plan.digest, &deployment.id, entry.clone())?;
        self.ledger.journal.start(&deployment.id, entry)?;
        self.host.report.emit(
            Event::new(Code::NodePlanned, format!("applying generation {generation} of the node"))
                .phase(Phase::Plan)
                .generation(generation)
                .deployment(&deployment.id, &deployment.name),
        );
        let since = self.ledger.heat_waiting_for(&deployment, plan.spec.timeout);
        self.node_task.start(deployment, plan, generation, since);
        self.worklist.node_has_begun();
        Ok(())
    }

    /// Nothing goes back by what the update before replaced: another one begins.
    fn leave_update_before(&mut self) -> Result<()> {
        let current = self.ledger.generations.current();
        if let Some(applied) = current.filter(|current| current.state == GenerationState::Applied) {
            // The agent may have been cut off before it.
            self.node_task.node.keep_replaced(applied.number)?;
        }
        if !current.is_some_and(Generation::is_unfinished) {
            self.node_task.node.forget_change()?;
        }
        self.ledger.note_unchanged()?;
        self.ledger.generations.abandon()?;
        self.node_task.node.forget_rollback()
    }

    /// Another action than to bring the node up: where it ends the node, its member of etcd leaves.
    fn end_node(&mut self, deployment: Deployment, entry: Value) -> Result<()> {
        self.ledger.journal.start(&deployment.id, entry)?;
        let asked =
            if self.is_given_up(&deployment) { node::asked_of_node(&self.host.state, &self.host.root) } else { Ok(Vec::new()) };
        match asked {
            Ok(asked) if asked.iter().any(|desired| desired.etcd.is_some()) => {
                self.ledger.generations.depart(true)?;
                self.node_task.leave(deployment.id, asked);
                Ok(())
            }
            // The node stays as it is; Heat only wants to know that this was heard.
            Ok(_) => self.ledger.end(&deployment.id, DeploymentOutcome::default()),
            // What the node was cannot be read any more: nobody is asked, and the stack must not be kept by that.
            Err(error) => {
                let line = "this node could not leave etcd's cluster: its parameters cannot be read";
                self.host.report.emit(Event::new(Code::EtcdMemberFailed, line).phase(Phase::Units).error(&error));
                let why = reason(&self.host.report, Code::EtcdMemberFailed, &error);
                self.ledger.end(&deployment.id, DeploymentOutcome::success_despite(why))
            }
        }
    }

    /// A node that gave up its member of etcd is asked for again.
    fn move_data_of_left_member(&self, plan: &node::NodePlan) -> Result<()> {
        if leave::come_back(&self.host.root, &self.host.state, &plan.desired)? {
            let line = "moved the data of etcd's member that left its cluster to member.removed beside it";
            self.host.report.emit(Event::new(Code::EtcdMemberChanged, line).phase(Phase::Plan));
        }
        Ok(())
    }

    /// Whether a deployment that ends the node is deleted, and no other one asks for it.
    pub(super) fn is_given_up(&self, deployment: &Deployment) -> bool {
        let asks = |other: Deployment| {
            // Of one that was suspended or resumed Heat lists that as its last action.
            other.id != deployment.id && Work::of(&other.group) == Work::Node && other.action() != "DELETE"
        };
        let snapshot = self.collector.snapshot();
        deployment.action() == "DELETE" && snapshot.node_file.is_none() && !snapshot.parsed().any(asks)
    }

    /// What a node's deployment asks for, if this machine can be so.
    fn plan_of(&self, deployment: &Deployment) -> std::result::Result<node::NodePlan, Vec<Mistake>> {
        self.understood(deployment)?.supported_by(&self.node_task.node.facts())
    }

    /// What a node's deployment asks for.
    pub(super) fn understood(&self, deployment: &Deployment) -> std::result::Result<node::NodePlan, Vec<Mistake>> {
        let facts = self.node_task.node.facts();
        let deploy = &self.host.settings.deploy;
        let runs_code = |group: &str| hooks::runs_code(group, Some(&self.host.root), &deploy.hook_dirs);
        node::understand(deployment, &facts, &ImagePolicy::of(&self.host.settings, runs_code))
    }

    fn refuse_malformed(&mut self, malformed: &Malformed, entry: &Value) -> Result<()> {
        let runs = malformed.id.as_deref().map_or(Ok(false), |id| self.is_running(id))?;
        let Some(id) = malformed.id.as_ref().filter(|_| !runs) else {
            self.report_once(malformed, entry);
            return Ok(());
        };
        let error = mistakes(malformed);
        self.host.report.emit(
            Event::new(Code::DeploymentMalformed, format!("deployment {} is malformed", malformed.name))
                .phase(Phase::Deploy)
                .deployment(id, &malformed.name)
                .error(&error),
        );
        let why = reason(&self.host.report, Code::DeploymentMalformed, &error);
        self.ledger.reject_generation(id, &why)?;
        let outcome = DeploymentOutcome::refused(why);
        self.ledger.journal.refuse(id, &malformed.name, malformed.target.clone(), malformed.resource.clone(), outcome)?;
        self.ledger.store_result_of(id);
        Ok(())
    }

    /// An entry that stands for no deployment that could be refused: without an id, or with that of another one. It is said once
    /// for each text of it.
    fn report_once(&mut self, malformed: &Malformed, entry: &Value) {
        if !self.worklist.mark_reported(entry) {
            return;
        }
        let line = match &malformed.id {
            Some(id) => format!("an entry with the id of deployment {id} is malformed and ignored"),
            None => format!("a deployment {} is malformed", malformed.name),
        };
        self.host.report.emit(Event::new(Code::DeploymentMalformed, line).error(&mistakes(malformed)));
    }

    /// A deployment that is not begun: Heat hears why at once.
    pub(super) fn refuse(&mut self, deployment: &Deployment, code: Code, error: &Error) -> Result<()> {
        let before = self.ledger.journal.get(&deployment.id).map(|record| record.state);
        let is_new = self.ledger.register(deployment, before)?;
        if before.is_none() && !is_new {
            // The tools that this agent replaces have run it: what it came to is Heat's.
            return Ok(());
        }
        if deployment.group == "kubernetes-node" {
            self.ledger.store_wait(deployment, self.node_task.node.wait_failure(deployment, code, error).as_ref())?;
        }
        let why = reason(&self.host.report, code, error);
        self.ledger.reject_generation(&deployment.id, &why)?;
        self.ledger.journal.finish(&deployment.id, DeploymentOutcome::refused(why))?;
        // Now that it is recorded: what cannot be is tried again and again.
        self.report_refused(deployment, code, error);
        self.ledger.store_result_of(&deployment.id);
        Ok(())
    }

    pub(super) fn report_refused(&self, deployment: &Deployment, code: Code, error: &Error) {
        let event = Event::new(code, format!("deployment {} is refused", deployment.name)).phase(Phase::Deploy);
        self.host.report.emit(event.deployment(&deployment.id, &deployment.name).error(error));
    }
}

fn mistakes(malformed: &Malformed) -> Error {
    Error::permanent(malformed.mistakes.join("; "))
        .rule("a deployment must be an object with id, group, inputs, outputs, options")
        .remedy("correct the template")
}

/// The job, with whatever `metadata` masks of its inputs masked in what it prints.
fn with_inputs_masked(mut job: Job, deployment: &Deployment) -> Job {
    let mut known = KnownSecrets::within(SECRET_TEXTS);
    deployment.inputs.iter().for_each(|input| known.learn_input(input));
    let bytes = |texts: &[String]| texts.iter().map(String::len).sum::<usize>();
    // Most of them are masked wherever the output goes.
    let others = |texts: Vec<String>| texts.into_iter().filter(|text| job.secrets.binary_search(text).is_err()).collect();
    match known.all().map(others).filter(|others: &Vec<String>| bytes(others) + bytes(&job.secrets) <= SECRET_TEXTS) {
        Some(others) => job.printed_secrets = others,
        None => job.hide_printed = true,
    }
    job
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Attack: what `metadata` and `support` masked by its name was in a script's log, in `status`, and in what Heat heard.
    #[test]
    fn whatever_metadata_masks_of_inputs_is_masked_in_what_a_script_prints() {
        let inputs = json!([
            {"name": "db_password", "value": "by-name"}, {"name": "ADMIN_TOKEN", "value": "by-token"},
            {"name": "account", "value": {"user": "shown-user", "password": "by-member"}},
            {"name": "url", "value": "http://bob:in-a-url@h/"}, {"name": "zone", "value": "shown-zone"}]);
        let entry = json!({"id": "a", "group": "script", "config": "", "inputs": inputs});
        let deployment = Deployment::parse(&entry).unwrap().unwrap();
        let job = with_inputs_masked(Job::default(), &deployment);
        for secret in ["by-name", "by-token", "by-member", "bob:in-a-url"] {
            assert!(job.printed_secrets.iter().any(|text| text == secret), "{secret}: {:?}", job.printed_secrets);
        }
        assert!(!job.printed_secrets.iter().any(|text| text.contains("shown")) && job.secrets.is_empty());
        let many: Vec<Value> =
            (0..9000).map(|n| json!({"name": format!("{n}_password"), "value": format!("{n:0>40}")})).collect();
        let entry = json!({"id": "a", "group": "script", "config": "", "inputs": many});
        let job = with_inputs_masked(Job::default(), &Deployment::parse(&entry).unwrap().unwrap());
        assert!(job.hide_printed && !job.hide_output, "outputs are handed on all the same");
    }
}
