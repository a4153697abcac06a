//! Growths that failed, and when each is tried again.

use std::cell::RefCell;
use std::time::Duration;

use crate::clock::{Clock, Stopwatch};
use crate::converge::Failure;
use crate::desired::VolumeRole;

/// How long a growth that failed is let alone, at first and at most.
const PAUSES: (Duration, Duration) = (Duration::from_mins(1), Duration::from_hours(1));

/// Growths that failed, each with the pause until its next try. It outlives the keepers, each of which looks once.
#[derive(Debug, Default)]
pub struct Growths(RefCell<Vec<Tried>>);

#[derive(Debug)]
struct Tried {
    role: VolumeRole,
    /// Of the disk, in bytes. Who extends it further is not held back.
    size: u64,
    since: Stopwatch,
    pause: Duration,
    failure: Failure,
}

impl Growths {
    /// Nothing is held back any more: somebody asks for all of it anew.
    pub fn forget(&self) {
        self.0.borrow_mut().clear();
    }

    /// Why the last try failed, while the next one has to wait.
    pub(super) fn held(&self, role: VolumeRole, size: u64) -> Option<Failure> {
        let tried = self.0.borrow();
        let last = tried.iter().find(|tried| tried.role == role && tried.size == size)?;
        (last.since.elapsed() < last.pause).then(|| last.failure.clone())
    }

    /// A try failed, or begins: until it ends it counts as failed, because it may be cut off.
    pub(super) fn failed(&self, role: VolumeRole, size: u64, pause: Duration, failure: Failure, clock: &Clock) {
        let mut tried = self.0.borrow_mut();
        tried.retain(|tried| tried.role != role);
        tried.push(Tried { role, size, since: clock.start(), pause, failure });
    }

    /// The pause behind a try that begins.
    pub(super) fn next_pause(&self, role: VolumeRole, size: u64) -> Duration {
        let tried = self.0.borrow();
        let last = tried.iter().find(|tried| tried.role == role && tried.size == size);
        last.map_or(PAUSES.0, |last| (last.pause * 2).min(PAUSES.1))
    }

    pub(super) fn done(&self, role: VolumeRole) {
        self.0.borrow_mut().retain(|tried| tried.role != role);
    }
}
