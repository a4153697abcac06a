//! Orders of the operator beside the running daemon.

use super::Agent;
use crate::daemon::order_files::{NodeState, OrderContext, deliver};
use crate::deploy::{AppliedExtent, DeploymentState, Generation};
use crate::report::{Code, Event};

impl Agent {
    /// Carries out what was ordered. What becomes of a signal on its way is not known yet: orders wait for it, but for those to
    /// stop what runs and has no result yet.
    pub(super) fn serve_orders(&mut self) {
        let current = self.ledger.generations.current();
        let extent = current.and_then(Generation::reference).map(|reference| reference.extent);
        let is_in_place = extent.is_none_or(|extent| extent == AppliedExtent::Whole);
        let record = current.and_then(|current| self.ledger.journal.get(&current.deployment));
        let is_unrecorded = record.is_some_and(|record| record.state == DeploymentState::Running);
        let node = NodeState { is_busy: self.node_task.is_busy(), is_unrecorded, is_in_place, extent };
        let is_sending = !self.ledger.is_settled();
        let mut context = OrderContext {
            state: &self.host.state,
            run_dir: self.publisher.run_dir.as_ref(),
            is_sending,
            root: &self.host.root,
            journal: &mut self.ledger.journal,
            outbox: &self.ledger.outbox,
            programs: &self.programs,
            report: &self.host.report,
            listed: self.collector.snapshot().deployments.as_deref(),
            daemon: Some(node),
            repairs: &mut self.orders.repairs,
            rollbacks: &mut self.orders.rollbacks,
            generation: current,
        };
        let mut served = Vec::new();
        let ended = context.serve(&mut served);
        for id in served.iter().filter_map(|one| one.about.as_ref()) {
            self.job_task.forget_failed_starts(id);
        }
        let restored = if std::mem::take(&mut self.orders.rollbacks.wanted) { self.ledger.generations.restore() } else { Ok(()) };
        if !self.orders.repairs.awaited {
            self.node_task.node.cancel_repair();
        }
        let repairs = std::mem::take(&mut self.orders.repairs.wanted) && self.node_task.node.order_repair();
        if repairs {
            self.host.report.emit(Event::new(Code::RepairOrdered, "a repair of the node was requested").step("drift"));
        }
        if repairs || served.iter().any(|one| one.node) {
            self.maintain_node();
        }
        if !served.is_empty() {
            self.publish();
        }
        let delivered = deliver(&self.host.state, self.publisher.run_dir.as_ref(), &served);
        if let Err(error) = ended.and(restored).and(delivered) {
            self.trouble.record("carrying out a request", &error);
        }
    }

    /// Puts the generation before back where that was ordered, also of an earlier run of the agent, before anything else is begun with
    /// the node.
    pub(super) fn go_on_restoring(&mut self) {
        if self.ledger.is_restoring()
            && !self.node_task.bring_up.is_busy()
            && let Some(current) = self.ledger.generations.current().cloned()
        {
            self.node_task.put_back(current);
        }
    }
}
