//! Renewals of certificates that a node does by itself: in its own place among the others, and on masters under leave of etcd.

use super::drift::Cause;
use super::{Node, Sight};
use crate::clock::Timestamp;
use crate::daemon::pause::Reason;
use crate::desired::{Desired, Trust};
use crate::keepers::certificates::quorum::{self, Answer, Held};
use crate::keepers::certificates::{Due, due};
use crate::kubernetes::NodeSpec;
use crate::report::{Code, Event, Phase};

/// What a renewal waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::daemon) enum Waits {
    /// This node's place among the others.
    Until(Timestamp),
    /// Somebody else, for this cause.
    For(String),
}

impl Node {
    /// What is due; as long as units are on their way only what has expired, which may be what keeps them there.
    pub(in crate::daemon) fn due(&self, sight: &Sight<'_>, desired: &Desired, now: Timestamp) -> Due {
        let due = sight.certificates.as_ref().map_or(Due::Nothing, |look| due(look, desired, now));
        match due {
            // The cause stays on the status page until the next try.
            Due::Now { .. } => {}
            Due::Later(slot) => *self.renewal.borrow_mut() = Some(Waits::Until(slot)),
            Due::Nothing | Due::Expired => *self.renewal.borrow_mut() = None,
        }
        if sight.is_arriving && due != Due::Expired { Due::Nothing } else { due }
    }

    /// Renews what is due, and puts these back with it; whether that succeeded. Nothing where it has to wait, which is told.
    pub(in crate::daemon) async fn renew(
        &self,
        spec: &NodeSpec,
        desired: &Desired,
        reason: Reason,
        repairs: &[Cause],
        due: Due,
    ) -> Option<bool> {
        let Due::Now { late } = due else {
            // Only what has expired: nothing else is restarted beside it, and nobody is asked.
            return Some(self.put_back(spec, &none(desired.clone()), reason, repairs).await);
        };
        let held = match &desired.etcd {
            Some(etcd) => match quorum::ask(&self.http, etcd, late).await {
                Ok(Answer::Go(held)) => held,
                Ok(Answer::Wait(cause)) => return self.waits_for(cause, reason.generation),
                Err(error) => return self.waits_for(error.to_string(), reason.generation),
            },
            None => Held::Nothing,
        };
        *self.renewal.borrow_mut() = None;
        if !held.is_something() {
            return Some(self.put_back(spec, desired, reason, repairs).await);
        }
        let limit = spec.deadline.min(quorum::RUN_LIMIT);
        let succeeded = self.put_back_within(limit, spec, desired, reason, repairs).await;
        if let Some(etcd) = &desired.etcd
            && let Err(error) = quorum::give_back(&self.http, etcd, held).await
        {
            // The others wait until the key's life is over.
            let line = "the renewal lock in etcd is left to expire";
            self.report.emit(event(line, reason.generation).error(&error));
        }
        Some(succeeded)
    }

    /// Tells of a cause once.
    fn waits_for(&self, cause: String, generation: u64) -> Option<bool> {
        let waits = Some(Waits::For(cause.clone()));
        if self.renewal.replace(waits.clone()) != waits {
            let line = format!("the certificate renewal is waiting: {cause}");
            self.report.emit(event(&line, generation).cause(cause));
        }
        None
    }
}

fn event(line: &str, generation: u64) -> Event {
    Event::new(Code::RenewalWaits, line).phase(Phase::Certificates).generation(generation)
}

/// The same node without what these causes are about: it stays as it is found.
pub(in crate::daemon) fn leaving(desired: &Desired, causes: &[Cause]) -> Desired {
    let mut desired = desired.clone();
    let stays = |path: &str| causes.iter().any(|cause| cause.is_file() && cause.what == path);
    desired.files.retain(|file| !stays(&file.path));
    desired.directories.retain(|directory| !stays(&directory.path));
    desired
}

/// The same node, of whose certificates only those that are wrong are made anew.
pub(in crate::daemon) fn none(mut desired: Desired) -> Desired {
    desired.trust = desired.trust.map(|trust| Trust { renew: false, ..trust });
    desired
}

/// What a stack update carries out: Heat updates several masters at the same time, so that these renew after it, one by one.
pub(in crate::daemon) fn beside_an_update(desired: &Desired) -> Desired {
    let among_others = desired.etcd.is_some() && desired.trust.as_ref().is_some_and(|trust| trust.share.of > 1);
    if among_others { none(desired.clone()) } else { desired.clone() }
}
