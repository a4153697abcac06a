//! Scripts and hooks that are ended before their own end: Heat replaced their deployment or took it away, or the operator
//! stops them. Heat never hears of the first, and hears of the second as failure.
//!
//! Replaced or gone is only what an answer of Heat's own says, and it must say so again after the grace, to a poll that
//! began then: an entry that is missing from one answer costs nobody a script. The reason is on disk before anything is
//! ended, so that a crash in between ends in the same record, and nothing is run again or signalled for it.

use std::rc::Rc;
use std::time::Duration;

use super::view::{gone, lists_all};
use super::{Agent, node};
use crate::clock::{Moment, Stopwatch, Timestamp};
use crate::deploy::{Ending, Outcome, Record};
use crate::error::{Error, Result};
use crate::programs::{Programs, Ran};
use crate::report::text::duration;
use crate::report::{Code, Event, Phase};

/// What is known of the script or hook that runs, as far as its end is concerned.
#[derive(Debug, Default)]
pub(in crate::daemon) struct Leaving {
    /// What the newest answer of Heat says of it.
    judged: Option<Judged>,
    /// Heat waits for it no more, since then.
    grace: Option<Grace>,
    /// It is being ended.
    ends: bool,
}

#[derive(Debug)]
struct Judged {
    id: String,
    /// The answer that it is judged by.
    answer: Option<Moment>,
    gone: Option<String>,
}

#[derive(Debug)]
struct Grace {
    id: String,
    since: Stopwatch,
    /// When the grace was over: an answer to a poll that began later decides.
    over: Option<Moment>,
}

impl Agent {
    /// Ends what is to be ended, and begins to watch what an earlier run of the agent left running: before anything new is
    /// begun, because it takes the place of the one script or hook that runs at a time.
    pub(super) fn look_after_hook(&mut self) -> Result<()> {
        self.take_over();
        self.end_replaced()?;
        self.carry_out_ending();
        Ok(())
    }

    /// The lane of scripts and hooks is empty again.
    pub(super) fn hook_left(&mut self) {
        self.hook = None;
        self.hook_id = None;
        self.leaving = Leaving::default();
    }

    /// A script or hook of an earlier run of the agent that the list does not lead to, or whose end was decided then. It is
    /// watched, and never started.
    fn take_over(&mut self) {
        if self.hook.is_some() {
            return;
        }
        let snapshot = self.collector.snapshot();
        let unlisted = |record: &Record| {
            // Before Heat has answered, and beside a file of `--metadata`, only what certainly runs is in the way of others.
            let counts = lists_all(snapshot) || self.programs.is_locked(&record.job()).unwrap_or(false);
            snapshot.deployments.is_some() && !snapshot.lists(&record.id) && counts
        };
        let left = self.journal.running_jobs().find(|record| record.ending.is_some() || unlisted(record));
        let Some(record) = left.cloned() else { return };
        let message = format!("deployment {}, which outlived the agent, is monitored again", record.name);
        self.report.emit(job_event(Code::DeploymentReattached, &record, message));
        let (programs, id, key) = (Rc::clone(&self.programs), record.id.clone(), record.job());
        self.hook_id = Some(record.id);
        self.hook = Some(Box::pin(async move {
            let ran = programs.follow(&key).await;
            (id, ran)
        }));
    }

    /// Decides on the end of a script or hook that Heat does not wait for any more.
    fn end_replaced(&mut self) -> Result<()> {
        let Some(record) = self.running().filter(|record| record.ending.is_none()).cloned() else { return Ok(()) };
        let Some(why) = self.judge(&record) else {
            if self.leaving.grace.take().is_some() {
                let message = format!("deployment {} is listed again and continues", record.name);
                self.report.emit(job_event(Code::DeploymentReattached, &record, message));
            }
            return Ok(());
        };
        let limit = self.settings.deploy.replaced_grace;
        let Some(grace) = self.leaving.grace.as_mut().filter(|grace| grace.id == record.id) else {
            self.leaving.grace = Some(Grace { id: record.id.clone(), since: self.clock.start(), over: None });
            let message = format!("deployment {} still runs: {why}", record.name);
            let remedy =
                format!("heat-node-agent stop {} stops it now; heat-node-agent logs {} shows its output", record.id, record.id);
            self.report.emit(job_event(Code::DeploymentReplaced, &record, message).cause(why).remedy(remedy).next_try(limit));
            return Ok(());
        };
        if grace.since.elapsed() < limit {
            return Ok(());
        }
        let over = *grace.over.get_or_insert_with(|| self.clock.moment());
        if !self.collector.snapshot().freshness().covers(over) {
            self.collector.ask(over);
            return Ok(());
        }
        self.journal.end_early(&record.id, Ending::Replaced(why))
    }

    /// What Heat says of the running one: looked up once for each answer.
    fn judge(&mut self, record: &Record) -> Option<String> {
        let snapshot = self.collector.snapshot();
        let answer = snapshot.listing.as_ref().map(|listing| listing.began);
        let known = self.leaving.judged.as_ref().filter(|judged| judged.id == record.id && judged.answer == answer);
        if let Some(judged) = known {
            return judged.gone.clone();
        }
        let gone = gone(snapshot, record);
        self.leaving.judged = Some(Judged { id: record.id.clone(), answer, gone: gone.clone() });
        gone
    }

    /// Ends the running one where that was decided.
    fn carry_out_ending(&mut self) {
        let Some(record) = self.running().filter(|record| record.ending.is_some() && !self.leaving.ends) else { return };
        let (programs, id, key) = (Rc::clone(&self.programs), record.id.clone(), record.job());
        self.leaving.ends = true;
        // In the place of who only watched it.
        self.hook = Some(Box::pin(async move {
            let ran = programs.end(&key).await;
            (id, ran)
        }));
    }

    /// How long until the running one has had its grace.
    pub(super) fn until_grace_is_over(&self) -> Option<Duration> {
        let grace = self.leaving.grace.as_ref().filter(|grace| grace.over.is_none() && !self.leaving.ends)?;
        Some(self.settings.deploy.replaced_grace.saturating_sub(grace.since.elapsed()))
    }

    /// What there is to say of the end of a running script or hook before it is there.
    pub(in crate::daemon) fn outlook(&self, record: &Record) -> Option<String> {
        match &record.ending {
            Some(Ending::Stopped) => return Some("it is being stopped at the operator's request".to_owned()),
            Some(Ending::Replaced(why)) => return Some(format!("it is being stopped: {why}")),
            None => {}
        }
        let judged = self.leaving.judged.as_ref().filter(|judged| judged.id == record.id)?;
        let grace = duration(self.settings.deploy.replaced_grace);
        judged.gone.as_ref().map(|why| format!("{why}; it is stopped {grace} after that was learnt, if Heat then confirms it"))
    }

    /// Takes in that one was ended, or had ended by itself before that: `ran`.
    pub(super) fn ended_early(&mut self, record: &Record, ending: &Ending, ran: Option<Ran>) -> Result<()> {
        match (ending, ran) {
            (Ending::Stopped, None) => {
                let (event, outcome) = stopped(record, self.clock.now());
                self.report.emit(event);
                self.end(&record.id, outcome)
            }
            (Ending::Stopped, Some(ran)) => {
                let outcome = self.outcome_of(record, ran);
                self.end(&record.id, outcome)
            }
            (Ending::Replaced(why), ran) => {
                let message = format!("deployment {} was stopped after {}", record.name, ran_for(record, self.clock.now()));
                self.report.emit(job_event(Code::DeploymentEnded, record, message).cause(why.clone()));
                let outcome =
                    ran.map_or_else(|| Outcome::refused(format!("stopped: {why}")), |ran| Outcome::of(&record.group, ran));
                self.journal.end_unheard(&record.id, outcome, format!("stopped: {why}; Heat no longer waits for it"))
            }
        }
    }
}

/// An event about a script or hook.
pub(super) fn job_event(code: Code, record: &Record, message: String) -> Event {
    let unit = Programs::unit(&record.job());
    Event::new(code, message).phase(Phase::Deploy).deployment(&record.id, &record.name).foreign_unit(unit)
}

fn ran_for(record: &Record, now: Timestamp) -> String {
    duration(now.since(record.started.unwrap_or(record.seen)))
}

/// What is said of one that the operator stopped, and what Heat hears.
pub(crate) fn stopped(record: &Record, now: Timestamp) -> (Event, Outcome) {
    let error = Error::permanent(format!("stopped by the operator after {}", ran_for(record, now)))
        .remedy(format!("heat-node-agent logs {} on the node shows how far it got; update the stack to run it again", record.id));
    let event = job_event(Code::DeploymentStopped, record, format!("deployment {} was stopped", record.name)).error(&error);
    (event, Outcome::refused(node::sentence(Code::DeploymentStopped, &error)))
}

#[cfg(test)]
#[path = "ending_tests.rs"]
mod tests;
