//! The loop: one thread, and whatever moves next.

use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use futures_util::stream::StreamExt;
use tokio::signal::unix::{SignalKind, signal};

use super::Agent;
use super::view::ids;
use crate::daemon::order_files::is_any_waiting;
use crate::daemon::{node, page};
use crate::error::{Error, Result};
use crate::output::print_error;
use crate::process::exit;
use crate::report::explain::{headline, tree};
use crate::report::notify::Notify;
use crate::report::{Code, Event, Phase};

/// A pass that has not ended after this is given up: no wait condition lives longer.
const PASS_LIMIT: Duration = Duration::from_hours(24);
/// How long signals that are on their way may take once the agent is to stop: it stops within a second (design.md 7).
const SEND_DRAIN_LIMIT: Duration = Duration::from_millis(600);

impl Agent {
    /// Until SIGTERM or SIGINT.
    pub(in crate::daemon) async fn run(mut self) -> Result<ExitCode> {
        self.publisher.notify.ready();
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut reload = signal(SignalKind::hangup())?;
        self.maintain_node();
        loop {
            self.step();
            let clock = self.host.clock.clone();
            let until_inspection = self.node_task.until_inspection(self.host.settings.polling_interval);
            tokio::select! {
                _ = terminate.recv() => break,
                _ = interrupt.recv() => break,
                // R6: at any time; the files that sources are learnt from are read again by the poll.
                _ = reload.recv() => {
                    self.ledger.outbox.retry_now();
                    self.collector.poll_now();
                }
                () = clock.wait(until_inspection) => self.maintain_node(),
                () = self.turn() => {}
            }
        }
        self.publisher.notify.stopping();
        self.finish_sending().await;
        self.host.report.emit(Event::new(Code::AgentStopping, "the agent is stopping"));
        Ok(exit::OK)
    }

    /// Waits a moment for the answers to what is on its way: of a signal without one the next run does not know that Heat has it,
    /// and Heat would get it twice.
    pub(super) async fn finish_sending(&mut self) {
        let clock = self.host.clock.clone();
        let finish = async {
            while let Some(sent) = self.ledger.sending.next().await {
                self.sent(sent);
            }
        };
        clock.limit(SEND_DRAIN_LIMIT, finish).await;
    }

    /// One full pass: every source once, every deployment that it lists, every signal that can be sent.
    pub(in crate::daemon) async fn run_once(mut self) -> Result<ExitCode> {
        let since = self.host.clock.start();
        let change = self.collector.poll_once().await;
        self.received(change);
        while since.elapsed() < PASS_LIMIT {
            self.step();
            if self.is_idle() || self.trouble.has_given_up() {
                break;
            }
            self.turn().await;
        }
        self.finish_sending().await;
        self.publish();
        let listed = ids(self.collector.snapshot());
        let failed = self.ledger.journal.all().iter().any(|record| record.failed() && listed.contains(&record.id));
        let waiting = !self.ledger.outbox.is_empty();
        let snapshot = self.collector.snapshot();
        let nothing_received = snapshot.authority.is_none() && snapshot.sources.values().any(|source| source.failures > 0);
        let malformed = self.worklist.was_malformed() || self.collector.is_malformed();
        let troubled = self.trouble.has_given_up() || self.ledger.unstored.is_paused() || self.phases.is_failing() || malformed;
        if !(failed || waiting || nothing_received || troubled) {
            return Ok(exit::OK);
        }
        let of_page = || self.publisher.page.as_ref().map(|page| headline(&tree(page, true))).unwrap_or_default();
        let why = last_words(of_page(), self.collector.is_malformed());
        let remedy = "see `heat-node-agent status`; its actions are in the journal: journalctl -t heat-node-agent";
        print_error(&Error::permanent(why).context("something failed").remedy(remedy));
        Ok(exit::FAILED)
    }

    /// Nothing runs, and nothing can be started or sent without a poll.
    pub(super) fn is_idle(&self) -> bool {
        let is_busy = self.job_task.id().is_some()
            || self.phases.is_busy()
            || self.node_task.bring_up.is_busy()
            || !self.ledger.sending.is_empty();
        let sendable = self.ledger.outbox.due() == Some(Duration::ZERO);
        // A first try that is held back for a moment belongs to this pass.
        let held = self.ledger.outbox.holds_a_first_try();
        // One more answer is asked for before a result is sent.
        let asks = self.collector.is_answering() || self.worklist.has_more || self.disk.is_forgetting;
        !is_busy && !sendable && !held && !asks && !self.trouble.is_paused()
    }

    fn step(&mut self) {
        if self.trouble.resume_if_due() {
            self.retry_unrecorded();
            // Before anything is begun: an order that was cut off must not meet what it was to change in another shape.
            self.serve_orders();
            self.go_on_restoring();
            self.resume_rollback();
            if self.disk.is_forgetting {
                self.forget_unlisted();
            }
            if let Err(error) = self.decide() {
                self.trouble.record("processing the deployments", &error);
            }
            if !self.trouble.is_paused() {
                self.trouble.clear();
            }
        } else {
            // The answer that a signal waits for is too old by the end of the pause.
            self.start_sending();
        }
        let reference = self.ledger.reference();
        self.node_task.watch_components(reference.as_ref());
        let in_place = reference.as_ref().filter(|_| !self.node_task.bring_up.is_busy());
        self.node_task.conditions.begin(in_place, &self.node_task.node);
        self.node_task.snapshots.begin(in_place, &self.node_task.node);
        self.node_task.token_keys.begin(in_place, &self.node_task.node);
        self.node_task.watch_pods(reference);
        let phase = self.current_phase();
        if self.publisher.is_due(self.ledger.journal.len(), phase) {
            self.publish();
        }
    }

    /// Sends what is due, and asks for the answer of Heat that the rest waits for.
    pub(super) fn start_sending(&mut self) {
        if self.ledger.outbox.is_empty() {
            return;
        }
        if self.waits_for_orders() {
            return;
        }
        self.ledger.outbox.receive(self.view());
        if let Some(fact) = self.ledger.outbox.needs_answer() {
            self.collector.ask(fact);
        }
        if self.ledger.outbox.due() != Some(Duration::ZERO) {
            return;
        }
        self.ledger.sending.extend(self.ledger.outbox.start());
    }

    /// Orders wait for what is on its way, so nothing new goes before them.
    fn waits_for_orders(&self) -> bool {
        !self.ledger.sending.is_empty() && is_any_waiting(&self.host.state)
    }

    /// Waits until one thing moves, and takes it in.
    pub(super) async fn turn(&mut self) {
        let node = Rc::clone(&self.node_task.node);
        // In trouble nothing is begun before its end: what is due would only spin.
        let due = self.ledger.outbox.due().filter(|_| !self.waits_for_orders());
        let unstored = self.ledger.unstored.remaining();
        let wake = self.trouble.remaining().or_else(|| [due, unstored].into_iter().flatten().min());
        let watchdog = Notify::interval();
        let page = self.publisher.until_due(self.ledger.journal.len());
        let has_more = self.worklist.has_more || self.disk.is_forgetting;
        let more = (has_more && !self.trouble.is_paused()).then_some(Duration::ZERO);
        let grace =
            self.job_task.until_grace_is_over(self.host.settings.deploy.replaced_grace).filter(|_| !self.trouble.is_paused());
        let conditions = self.node_task.conditions.until_due();
        let snapshots = self.node_task.snapshots.until_due();
        let token_keys = self.node_task.token_keys.until_due();
        let phases = self.phases.until_due().filter(|_| !self.trouble.is_paused());
        let pause = [wake, watchdog, page, more, grace, conditions, snapshots, token_keys, phases]
            .into_iter()
            .flatten()
            .min()
            .unwrap_or(Duration::from_hours(1));
        tokio::select! {
            change = self.collector.changed() => self.polled(change),
            (id, ran) = self.job_task.ended() => self.job_ended(&id, ran),
            (digest, ran) = self.phases.ended() => {
                if let Err(error) = self.phases.record(&digest, ran) {
                    self.trouble.record("recording the end of the phases", &error);
                }
            }
            (id, done) = self.node_task.bring_up.ended() => self.node_ended(&id, done),
            ((), inspection) = self.node_task.inspection_task.ended() => self.inspected(inspection),
            ((), seen) = self.node_task.pod_network.task.ended() => self.node_task.pod_network.record(seen),
            // It never ends by itself: what it finds is the next one's news.
            (_, ()) = self.node_task.health.ended() => {}
            () = node.component_changed() => {}
            (written, result) = self.node_task.conditions.ended() => self.node_task.conditions.record_write(written, result),
            taken = self.node_task.snapshots.ended() => self.node_task.snapshots.record(taken),
            compared = self.node_task.token_keys.ended() => self.node_task.token_keys.record(compared),
            Some(sent) = self.ledger.sending.next() => self.sent(sent),
            () = self.orders.arrivals.changed() => {}
            // The page is made anew at the end of the turn.
            () = self.progress.changed() => {}
            () = self.host.clock.wait(pause) => {}
        }
        self.publisher.notify.alive(&self.host.clock);
    }

    fn current_phase(&self) -> Phase {
        if self.node_task.bring_up.is_busy() {
            self.progress.phase()
        } else if self.job_task.id().is_some() || self.phases.is_busy() {
            Phase::Deploy
        } else if !self.ledger.outbox.is_empty() {
            Phase::Signal
        } else if self.collector.snapshot().deployments.is_none() {
            Phase::Metadata
        } else {
            Phase::Steady
        }
    }

    fn inspected(&mut self, inspection: Result<node::NodeInspection>) {
        if let Some(outcome) = self.node_task.node.repaired(inspection.as_ref().err()) {
            self.orders.repairs.outcome = Some(outcome);
        }
        match inspection {
            Ok(inspection) => (self.node_task.inspection, self.node_task.is_inspected) = (inspection, true),
            Err(error) => self.trouble.record("comparing the node with its parameters", &error),
        }
    }

    /// Compares a node with its parameters, whatever came of its last deployment.
    pub(super) fn maintain_node(&mut self) {
        self.node_task.maintain(self.ledger.reference(), &self.host.clock);
    }

    /// The status file and systemd's line, where they changed.
    pub(super) fn publish(&mut self) {
        self.publisher.begin(self.current_phase());
        let page = page::of(self);
        self.node_task.conditions.follow(&page);
        self.publisher.publish(page);
    }
}

/// Why a pass failed: what the page begins with, and what is on no page.
fn last_words(page: String, is_malformed: bool) -> String {
    let malformed = "parts of the metadata cannot be understood";
    match is_malformed {
        true if page.is_empty() || page.starts_with("OK") => malformed.to_owned(),
        true => format!("{page}; {malformed}"),
        false => page,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_that_cannot_be_understood_hides_no_other_failure() {
        for (page, is_malformed, expected) in [
            ("FAILED at node", false, "FAILED at node"),
            ("FAILED at node", true, "FAILED at node; parts of the metadata cannot be understood"),
            ("OK: every condition is met", true, "parts of the metadata cannot be understood"),
            ("", true, "parts of the metadata cannot be understood"),
        ] {
            assert_eq!(last_words(page.to_owned(), is_malformed), expected);
        }
    }
}
