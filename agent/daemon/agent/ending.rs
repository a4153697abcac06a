//! Scripts and hooks that are ended before their own end: Heat replaced their deployment or took it away, or the operator
//! stops them. Heat never hears of the first, and hears of the second as failure.
//!
//! Replaced or gone is only what an answer of Heat's own says, and it must say so again after the grace, to a poll that
//! began then: an entry that is missing from one answer costs nobody a script. The reason is on disk before anything is
//! ended, so that a crash in between ends in the same record, and nothing is run again or signalled for it. Where the disk does
//! not take it, it is ended all the same (`Journal::end_early`): nothing else may give the disk room again.

use super::Agent;
use super::job::GraceState;
use super::view::is_heats_list;
use crate::clock::Clock;
use crate::daemon::reason::reason;
use crate::deploy::{DeploymentOutcome, DeploymentRecord, DeploymentState, Ending};
use crate::error::{Error, Result};
use crate::programs::{JobResult, Programs};
use crate::report::text::{argument, duration};
use crate::report::{Code, Event, Phase, Report};

impl Agent {
    /// Ends what is to be ended, and begins to watch what an earlier run of the agent left running: before anything new is
    /// begun, because it takes the place of the one script or hook that runs at a time.
    pub(super) fn supervise_job(&mut self) {
        self.take_over();
        self.end_replaced();
        self.carry_out_ending();
    }

    /// Keeps one in the task whose end was decided and is not recorded: it is ended, or found ended, once more.
    pub(super) fn keep_ending(&mut self, id: &str) {
        let ends = |record: &DeploymentRecord| record.state == DeploymentState::Running && record.ending.is_some();
        if self.job_task.id().is_none() && self.ledger.journal.get(id).is_some_and(ends) {
            self.job_task.keep(id);
        }
    }

    /// A script or hook of an earlier run of the agent that the list does not lead to, or whose end was decided then. It is
    /// watched, and never started.
    fn take_over(&mut self) {
        if self.job_task.id().is_some() {
            return;
        }
        let snapshot = self.collector.snapshot();
        let unlisted = |record: &DeploymentRecord| {
            // Before Heat has answered, and beside a file of `--metadata`, only what certainly runs is in the way of others.
            let counts = is_heats_list(snapshot) || self.programs.is_locked(&record.job()).unwrap_or(false);
            snapshot.deployments.is_some() && !snapshot.lists(&record.id) && counts
        };
        let left = self.ledger.journal.running_jobs().find(|record| record.ending.is_some() || unlisted(record));
        let Some(record) = left.cloned() else { return };
        let message = format!("deployment {}, which outlived the agent, is monitored again", record.name);
        if self.job_task.mark_resumed(&record.id) {
            self.host.report.emit(job_event(Code::DeploymentReattached, &record, message));
        }
        self.job_task.follow(&record);
    }

    /// Decides on the end of a script or hook that Heat does not wait for any more.
    fn end_replaced(&mut self) {
        let Some(record) = self.running().filter(|record| record.ending.is_none()).cloned() else { return };
        let Some(why) = self.job_task.judge(&record, self.collector.snapshot()) else {
            if self.job_task.cancel_grace() {
                let message = format!("deployment {} is listed again and continues", record.name);
                self.host.report.emit(job_event(Code::DeploymentReattached, &record, message));
            }
            return;
        };
        let limit = self.host.settings.deploy.replaced_grace;
        let over = match self.job_task.wait(&record, limit, &self.host.clock) {
            GraceState::Begins => {
                let (id, message) = (argument(&record.id), format!("deployment {} still runs: {why}", record.name));
                let remedy = format!("`heat-node-agent logs {id}` shows its output, `heat-node-agent stop {id}` stops it now");
                let event = job_event(Code::DeploymentReplaced, &record, message).cause(why).remedy(remedy);
                self.host.report.emit(event.next_try(limit));
                return;
            }
            GraceState::Lasts => return,
            GraceState::Over(over) => over,
        };
        if !self.collector.snapshot().freshness().covers(over) {
            self.collector.ask(over);
            return;
        }
        self.ledger.journal.end_early(&record.id, Ending::Replaced(why), &self.host.report);
    }

    /// Ends the running one where that was decided.
    fn carry_out_ending(&mut self) {
        let decided = self.running().filter(|record| record.ending.is_some() && !self.job_task.is_ending).cloned();
        if let Some(record) = decided {
            self.job_task.end(&record);
        }
    }

    /// Takes in that one was ended, or had ended by itself before that: `ran`. What can be recorded only later is said then.
    pub(super) fn ended_early(&mut self, record: &DeploymentRecord, ending: &Ending, ran: Option<JobResult>) -> Result<()> {
        match (ending, ran) {
            (Ending::Stopped, None) => {
                let (event, outcome) = stopped(record, &self.host.clock, &self.host.report);
                self.end_reported(&record.id, outcome, event)?;
            }
            (Ending::Stopped, Some(ran)) => {
                let (outcome, event) = Self::outcome_of(record, ran);
                self.end_reported(&record.id, outcome, event)?;
            }
            (Ending::Replaced(why), ran) => {
                let after = ran_for(record, &self.host.clock);
                let message = format!("deployment {} was stopped{after}", record.name);
                let outcome = ran.map_or_else(
                    || DeploymentOutcome::refused(format!("stopped: {why}")),
                    |ran| DeploymentOutcome::of(&record.group, ran),
                );
                self.ledger.journal.end_without_signal(
                    &record.id,
                    outcome,
                    format!("stopped: {why}; Heat no longer waits for it"),
                )?;
                self.host.report.emit(job_event(Code::ReplacedDeploymentStopped, record, message).cause(why.clone()));
            }
        }
        Ok(())
    }
}

/// An event about a script or hook.
pub(super) fn job_event(code: Code, record: &DeploymentRecord, message: String) -> Event {
    let unit = Programs::unit(&record.job());
    Event::new(code, message).phase(Phase::Deploy).deployment(&record.id, &record.name).foreign_unit(unit)
}

/// ` after 5 s`; nothing where an earlier run of the agent began it and the clock was set since.
fn ran_for(record: &DeploymentRecord, clock: &Clock) -> String {
    let by_wall = || clock.now().since(record.started.unwrap_or(record.seen));
    let lasted = match record.started_at {
        Some(began) => clock.since(began),
        None if clock.was_set() => return String::new(),
        None => by_wall(),
    };
    format!(" after {}", duration(lasted))
}

/// What is said of one that the operator stopped, and what Heat hears.
pub(crate) fn stopped(record: &DeploymentRecord, clock: &Clock, report: &Report) -> (Event, DeploymentOutcome) {
    let error = Error::permanent(format!("stopped by the operator{}", ran_for(record, clock))).remedy(format!(
        "`heat-node-agent logs {}` on the node shows how far it got; update the stack to run it again",
        argument(&record.id)
    ));
    let event = job_event(Code::DeploymentStopped, record, format!("deployment {} was stopped", record.name)).error(&error);
    (event, DeploymentOutcome::refused(reason(report, Code::DeploymentStopped, &error)))
}

#[cfg(test)]
#[path = "ending_tests.rs"]
mod tests;
