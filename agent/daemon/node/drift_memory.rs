//! What is remembered of a node in place: what was put back, what lay beside its files, what a failed update left. On disk
//! whenever it changed, over restarts of the agent too.

use std::cell::RefCell;
use std::rc::Rc;

use super::drift::{self, Cause, DriftRecord, SortedCauses, UpdateRemains};
use crate::daemon::host::Host;
use crate::desired::Desired;
use crate::error::Result;
use crate::report::{Code, Event};

/// The record, which is read when it is first needed.
#[derive(Debug)]
pub(super) struct Remembered {
    host: Rc<Host>,
    record: RefCell<Option<DriftRecord>>,
}

impl Remembered {
    pub(super) fn new(host: Rc<Host>) -> Self {
        Self { host, record: RefCell::default() }
    }

    /// What somebody added beside the node's files, or changed there, since it was brought up.
    pub(super) fn added(&self, desired: &Desired) -> Result<Vec<Cause>> {
        self.ask(|record| Ok(record.compare(drift::beside(desired, &self.host.root)?)))
    }

    /// Tells what an update left undone from what was changed after it failed ([`DriftRecord::separate_remains`]).
    pub(super) fn separate_remains(&self, generation: u64, causes: Vec<Cause>, is_whole: bool) -> Result<UpdateRemains> {
        self.ask(|record| Ok(record.separate_remains(generation, causes, is_whole)))
    }

    /// Sorts causes by what was put back before; where nothing is put back (`repairs`), nobody is fought with.
    pub(super) fn sorted(&self, causes: &[Cause], repairs: bool) -> SortedCauses {
        drift::sorted(causes, self.record.borrow().as_ref().filter(|_| repairs), self.host.clock.now())
    }

    /// These were put back.
    pub(super) fn repaired(&self, causes: &[Cause]) {
        let mut record = self.record.borrow_mut();
        let Some(record) = record.as_mut().filter(|_| !causes.is_empty()) else { return };
        record.repaired(causes, self.host.clock.now());
        self.report_failure(record.write(&self.host.state));
    }

    /// The update is tried again, or another one is: what it leaves is another matter.
    pub(super) fn forget_left(&self) {
        self.report_failure(self.ask(|record| Ok(((), record.forget_left()))));
    }

    /// A node was brought up: what lies beside its files was measured with it, and no repair of before counts.
    pub(super) fn accept_current_state(&self, desired: &Desired) {
        self.report_failure(drift::beside(desired, &self.host.root).and_then(|beside| {
            let record = DriftRecord::of_new(beside);
            record.write(&self.host.state)?;
            self.record.replace(Some(record));
            Ok(())
        }));
    }

    /// Something of the record, which is written if that changed it.
    fn ask<T>(&self, ask: impl FnOnce(&mut DriftRecord) -> Result<(T, bool)>) -> Result<T> {
        let mut record = self.record.borrow_mut();
        let record = match &mut *record {
            Some(record) => record,
            none => none.insert(DriftRecord::open(&self.host.state, &self.host.report)?),
        };
        // What cannot be written is asked again by the next look, which must not find it known.
        let mut next = record.clone();
        let (answer, changed) = ask(&mut next)?;
        if changed {
            next.write(&self.host.state)?;
            *record = next;
        }
        Ok(answer)
    }

    /// What cannot be remembered is reported; the next deployment tries again.
    fn report_failure(&self, kept: Result<()>) {
        if let Err(error) = kept {
            let event = Event::new(Code::StateWriteFailed, "the drift record cannot be written").step("drift");
            self.host.report.emit(event.error(&error));
        }
    }
}
