//! Renewals of certificates that a node does by itself: what is due, what it waits for, and what else of the node is touched with it.

use std::cell::RefCell;

use super::drift::Cause;
use crate::clock::Timestamp;
use crate::desired::{CertificatePolicy, Desired};
use crate::keepers::certificates::{CertificateInspection, Due, due};

/// What a renewal waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::daemon) enum WaitReason {
    /// This node's place among the others.
    Until(Timestamp),
    /// Somebody else, for this cause.
    For(String),
}

/// What a renewal of certificates that is due waits for.
#[derive(Debug, Default)]
pub(super) struct Renewal(RefCell<Option<WaitReason>>);

impl Renewal {
    /// What it waits for.
    pub(super) fn waits(&self) -> Option<WaitReason> {
        self.0.borrow().clone()
    }

    /// Nothing any more.
    pub(super) fn begins(&self) {
        self.0.take();
    }

    /// It waits for this cause; whether that is news.
    pub(super) fn waits_for(&self, cause: &str) -> bool {
        let waits = Some(WaitReason::For(cause.to_owned()));
        self.0.replace(waits.clone()) != waits
    }

    /// What is due of the certificates that were looked at; as long as units are on their way only what has expired, which may be
    /// what keeps them there.
    pub(super) fn due(
        &self,
        inspection: Option<&CertificateInspection>,
        desired: &Desired,
        is_arriving: bool,
        now: Timestamp,
    ) -> Due {
        let due = inspection.map_or(Due::Nothing, |inspection| due(inspection, desired, now));
        match due {
            // The cause stays on the status page until the next try.
            Due::Now { .. } => {}
            Due::Later(slot) => drop(self.0.replace(Some(WaitReason::Until(slot)))),
            Due::Nothing | Due::Expired => self.begins(),
        }
        if is_arriving && due != Due::Expired { Due::Nothing } else { due }
    }
}

/// The same node without what these causes are about: it stays as it is found.
pub(super) fn leaving(desired: &Desired, causes: &[Cause]) -> Desired {
    let mut desired = desired.clone();
    let stays = |path: &str| causes.iter().any(|cause| cause.is_file() && cause.what == path);
    desired.files.retain(|file| !stays(&file.path));
    desired.directories.retain(|directory| !stays(&directory.path));
    desired
}

/// The same node, of whose certificates only those that are wrong are made anew.
pub(super) fn none(mut desired: Desired) -> Desired {
    desired.trust = desired.trust.map(|trust| CertificatePolicy { renew: false, ..trust });
    desired
}

/// What a stack update carries out: Heat updates several masters at the same time, so that these renew after it, one by one.
pub(super) fn beside_an_update(desired: &Desired) -> Desired {
    let among_others = desired.etcd.is_some() && desired.trust.as_ref().is_some_and(|trust| trust.share.of > 1);
    if among_others { none(desired.clone()) } else { desired.clone() }
}
