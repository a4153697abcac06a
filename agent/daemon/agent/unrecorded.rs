//! The end of a deployment that cannot be recorded, because the state directory is full, read-only or gone: Heat hears of it all the same,
//! and not from its own timeout. It is recorded as soon as that succeeds; until then nothing new is begun with the node. Whoever restarts the
//! agent before that has the node brought up once more, and a script run that could not be begun.

use std::time::Duration;

use super::Agent;
use super::begin::reports_to_heat_or_wait_condition;
use super::ledger::UnrecordedEnd;
use crate::daemon::node::deadline::DeadlineInputs;
use crate::daemon::node::{self, Done, NodePlan, Wait};
use crate::daemon::reason::reason;
use crate::deploy::{DeploymentOutcome, DeploymentRecord, DeploymentState};
use crate::error::{Error, Result};
use crate::metadata::Deployment;
use crate::report::Code;

/// How many ends of the node are kept, and of others as many: as many updates as Heat gives up while nothing can be recorded.
const MOST: usize = 8;

/// How long the deletion of a node waits to be recorded. Heat deletes the server next, whose disk nobody may ever repair.
const DELETION_LIMIT: Duration = Duration::from_mins(5);
/// What Heat waits for a deletion, unless somebody says otherwise (heat.conf, `stack_action_timeout`).
const DELETION_TIMEOUT: Duration = Duration::from_hours(1);

impl Agent {
    /// Records what could not be recorded before.
    pub(super) fn record_ends(&mut self) -> Result<()> {
        while !self.ledger.unrecorded_ends.is_empty() {
            let end = self.ledger.unrecorded_ends.remove(0);
            let recorded = match &end {
                UnrecordedEnd::Ended(id, done) => self.record_end_of_node(id, done),
                UnrecordedEnd::NotBegun(deployment, error) => self.refuse(deployment, Code::of_trouble(error), error),
                UnrecordedEnd::Sent(record, outcome) => {
                    let stays = if outcome.status != 0 { self.stay(record) } else { Ok(()) };
                    let recorded = stays.and_then(|()| self.ledger.journal.end_draft(record, outcome.as_ref().clone()));
                    recorded.map(|()| self.ledger.store_result_of(&record.id))
                }
            };
            if recorded.is_err() {
                self.ledger.unrecorded_ends.insert(0, end);
                return recorded;
            }
        }
        Ok(())
    }

    /// Keeps the end of a node that could not be recorded.
    pub(super) fn keep_unrecorded(&mut self, id: &str, done: Done) {
        if let Some(record) = self.ledger.journal.get(id).cloned() {
            self.send_unrecorded(&record, &done.outcome, done.wait.as_ref());
        }
        self.ledger.unrecorded_ends.push(UnrecordedEnd::Ended(id.to_owned(), Box::new(done)));
    }

    /// A script or hook has had all the time to wait for room on the disk, which there is not, because of `error`. Heat hears of it, recorded
    /// or not.
    pub(super) fn give_up(&mut self, deployment: &Deployment, error: &Error) -> Result<()> {
        let code = Code::DeploymentNotStarted;
        let Err(unrecorded) = self.refuse(deployment, code, error) else { return Ok(()) };
        if self.ledger.unrecorded_ends.iter().filter(|end| end.is_of_job()).count() >= MOST {
            return Err(unrecorded);
        }
        self.report_refused(deployment, code, error);
        self.send_end(deployment, DeploymentOutcome::refused(reason(&self.host.report, code, error)));
        Ok(())
    }

    /// Sends the end of one that could not be begun, and keeps it until it can be recorded.
    fn send_end(&mut self, deployment: &Deployment, outcome: DeploymentOutcome) {
        let record = self.ledger.journal.record_or_draft(deployment);
        self.send_unrecorded(&record, &outcome, None);
        self.ledger.unrecorded_ends.push(UnrecordedEnd::Sent(Box::new(record), Box::new(outcome)));
    }

    fn send_unrecorded(&mut self, record: &DeploymentRecord, outcome: &DeploymentOutcome, wait: Option<&Wait>) {
        if let Err(error) = self.ledger.send_unrecorded(record, outcome, wait) {
            self.trouble.record("sending a result that cannot be recorded", &error);
        }
    }

    /// The deletion of the node cannot be recorded, because of `error`: Heat hears of it, once, that it is not possible where a cluster of
    /// etcd counts on the member.
    fn answer_deletion(&mut self, deployment: &Deployment, error: &Error) {
        let line = format!("the deletion of this node's deployment could not be recorded within {} s", DELETION_LIMIT.as_secs());
        let mut error = error.clone().context(line);
        // What cannot be read may be a member's.
        let may_be_member = node::asked_of_node(&self.host.state, &self.host.root)
            .map_or(true, |asked| asked.iter().any(|desired| desired.etcd.is_some()));
        let is_member = self.is_given_up(deployment) && may_be_member;
        let is_kept = is_member && self.node_task.node.refuse_deletion_once();
        if is_kept {
            error = error.remedy(
                "make room in the agent's state directory and delete again: etcd's member then leaves; deleted again this node goes in any case",
            );
        }
        let why = reason(&self.host.report, Code::of_trouble(&error), &error);
        let outcome = if is_kept { DeploymentOutcome::refused(why) } else { DeploymentOutcome::success_despite(why) };
        self.send_end(deployment, outcome);
    }

    /// Nothing could be begun, because of `error`, and not for the first time: a node's deployment whose time is over has failed by that.
    pub(super) fn fail_overdue(&mut self, error: &Error) {
        let of_node = self.ledger.unrecorded_ends.iter().filter(|end| !end.is_of_job()).count();
        if self.trouble.condition().is_none() || of_node >= MOST || self.node_task.bring_up.is_busy() {
            return;
        }
        // One that can be recorded waits for its turn, behind whatever fails. Whether that is so is tried by writing its record as it is.
        if let Some(deployment) = self.overdue_deletion()
            && let Err(error) = self.ledger.journal.rewrite(&deployment)
        {
            return self.answer_deletion(&deployment, &error);
        }
        let Some((deployment, plan)) = self.overdue() else { return };
        let record = self.ledger.journal.record_or_draft(&deployment);
        let code = Code::of_trouble(error);
        let line = format!("the node's deployment could not be begun within {} s", plan.spec.deadline.as_secs());
        let error = error.clone().context(line);
        let outcome = DeploymentOutcome::refused(reason(&self.host.report, code, &error));
        let wait = self.node_task.node.wait_failure(&deployment, code, &error);
        self.send_unrecorded(&record, &outcome, wait.as_ref());
        self.ledger.unrecorded_ends.push(UnrecordedEnd::NotBegun(Box::new(deployment), Box::new(error)));
    }

    /// The node's deployment that Heat waits for, that has not begun, and that has had all the time that it may take. One that has begun is
    /// resumed, and fails by itself.
    fn overdue(&self) -> Option<(Deployment, NodePlan)> {
        let snapshot = self.collector.snapshot();
        let journal = &self.ledger.journal;
        let waits = |deployment: &Deployment| {
            self.is_node_without_end(deployment)
                && matches!(deployment.action(), "CREATE" | "UPDATE" | "")
                && journal.get(&deployment.id).is_none_or(|record| record.state < DeploymentState::Running)
        };
        let deployment = snapshot.parsed().filter(waits).max_by(|one, other| one.creation_time.cmp(&other.creation_time))?;
        let plan = self.understood(&deployment).ok()?;
        let waiting = self.waiting_time(&deployment, plan.spec.timeout);
        // Of what Heat has given up, the node comes up all the same.
        (plan.spec.deadline..plan.spec.timeout).contains(&waiting).then_some((deployment, plan))
    }

    /// The deletion of the node that Heat waits for, and that has had all the time that it may take to be recorded.
    fn overdue_deletion(&self) -> Option<Deployment> {
        let journal = &self.ledger.journal;
        let waits = |deployment: &Deployment| {
            self.is_node_without_end(deployment)
                && deployment.action() == "DELETE"
                && journal.get(&deployment.id).is_none_or(|record| record.state <= DeploymentState::Running)
        };
        let deployment = self.collector.snapshot().parsed().find(waits)?;
        (self.waiting_time(&deployment, DELETION_TIMEOUT) >= DELETION_LIMIT).then_some(deployment)
    }

    /// A node's deployment whose result somebody hears, and that has not ended without a record.
    fn is_node_without_end(&self, deployment: &Deployment) -> bool {
        deployment.group == "kubernetes-node"
            && reports_to_heat_or_wait_condition(deployment)
            && !self.ledger.has_unrecorded_end(&deployment.id)
    }

    /// How long Heat has been waiting for a deployment, of which there may be no record.
    fn waiting_time(&self, deployment: &Deployment, timeout: Duration) -> Duration {
        if self.ledger.journal.get(&deployment.id).is_some() {
            return self.ledger.heat_waiting_for(deployment, timeout);
        }
        let now = self.host.clock.now();
        DeadlineInputs { made: &deployment.creation_time, seen: now, timeout }.waiting_time(now)
    }
}
