//! Growths that failed, and when each is tried again.

use std::cell::RefCell;
use std::time::Duration;

use super::attempt::failed;
use crate::backoff::{Backoff, Damper};
use crate::clock::Clock;
use crate::converge::Failure;
use crate::desired::VolumeRole;
use crate::error::Error;

/// How long a growth that failed is left alone.
const PAUSES: Backoff = Backoff::new(Duration::from_mins(1), Duration::from_hours(1));

/// Growths that failed, each with the pause until its next try. It outlives the keepers, each of which looks once.
#[derive(Debug, Default)]
pub struct GrowthRetries(RefCell<Vec<FailedGrowth>>);

#[derive(Debug)]
struct FailedGrowth {
    role: VolumeRole,
    /// Of the disk, in bytes. Who extends it further is not held back.
    size: u64,
    damper: Damper,
    failure: Failure,
}

impl GrowthRetries {
    /// Nothing is held back any more: somebody asks for all of it anew.
    pub fn forget(&self) {
        self.0.borrow_mut().clear();
    }

    /// Why the last try failed, while the next one has to wait.
    pub(super) fn held(&self, role: VolumeRole, size: u64) -> Option<Failure> {
        let tried = self.0.borrow();
        let last = tried.iter().find(|tried| tried.role == role && tried.size == size)?;
        last.damper.holds().then(|| last.failure.clone())
    }

    /// A try begins: until it ends it counts as failed, because it may be cut off.
    pub(super) fn begin(&self, role: VolumeRole, size: u64, clock: &Clock) {
        let mut tried = self.0.borrow_mut();
        let last = tried.iter().find(|tried| tried.role == role && tried.size == size);
        let mut damper = last.map_or(Damper::new(PAUSES), |last| last.damper.clone());
        damper.hold(clock);
        let failure = failed("grow", &Error::transient("it was interrupted"));
        tried.retain(|tried| tried.role != role);
        tried.push(FailedGrowth { role, size, damper, failure });
    }

    /// It failed.
    pub(super) fn fail(&self, role: VolumeRole, failure: &Failure, clock: &Clock) {
        if let Some(tried) = self.0.borrow_mut().iter_mut().find(|tried| tried.role == role) {
            tried.damper.restart(clock);
            tried.failure = failure.clone();
        }
    }

    pub(super) fn done(&self, role: VolumeRole) {
        self.0.borrow_mut().retain(|tried| tried.role != role);
    }
}
