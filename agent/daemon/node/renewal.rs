//! Renewals of certificates that a node does by itself: what is due, what it waits for, and what else of the node is touched with it.

use std::cell::RefCell;
use std::time::Duration;

use super::drift::{Cause, Subject};
use crate::clock::Timestamp;
use crate::desired::{CertificatePolicy, Desired};
use crate::keepers::certificates::{CertificateInspection, Due, due};
use crate::report::text::argument;

/// How long before the end of a certificate that is not renewed the operator hears of it again.
const LAST_CALL: Duration = Duration::from_hours(7 * 24);

/// What a renewal waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::daemon) enum WaitReason {
    /// This node's place among the others.
    Until(Timestamp),
    /// Somebody else, for this cause.
    For(String),
    /// A deployment that succeeds: the last update failed on its way.
    Deployment {
        /// How near it is.
        cause: String,
        /// The operator's way there.
        remedy: String,
    },
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

    /// It waits for this; whether that is news.
    pub(super) fn waits_for(&self, reason: WaitReason) -> bool {
        self.0.replace(Some(reason.clone())) != Some(reason)
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

/// What a renewal waits for on a node of which nothing is renewed, because its last update failed on its way. The cause changes, so that it
/// is reported again, a week before the first of its certificates ends, and when that has ended.
pub(super) fn awaits_deployment(first_end: Timestamp, deployment: &str, now: Timestamp) -> WaitReason {
    let stage = match first_end.since(now) {
        Duration::ZERO => "one expired",
        left if left <= LAST_CALL => "the first one expires within a week",
        _ => "the first one is close to its end",
    };
    let end = first_end.rfc3339();
    let cause = format!(
        "no certificate is renewed before it has expired, until a deployment succeeds: the last update failed partway; {stage}, at {end}"
    );
    let rerun = format!("`heat-node-agent rerun {}`", argument(deployment));
    WaitReason::Deployment {
        cause,
        remedy: format!("{rerun} tries that update again; or correct what failed and update the stack"),
    }
}

/// The same node without what these causes are about: it stays as it is found.
pub(super) fn leaving(desired: &Desired, causes: &[Cause]) -> Desired {
    let mut desired = desired.clone();
    let stays = |path: &str| {
        causes.iter().any(|cause| cause.is_file() && matches!(&cause.subject, Subject::Path(about) if about == path))
    };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_renewed_after_a_failed_update_is_news_near_its_end_a_week_before_it_and_at_it() {
        let (renewal, end) = (Renewal::default(), Timestamp(1_772_366_400_000));
        let days_before = |days: u64| Timestamp(end.0 - days * 24 * 3_600_000);
        for (days, is_news, stage) in [
            (90, true, "close"),
            (8, false, "close"),
            (7, true, "within a week"),
            (1, false, "within a week"),
            (0, true, "expired"),
        ] {
            let reason = awaits_deployment(end, "id 1", days_before(days));
            let WaitReason::Deployment { cause, remedy } = &reason else { panic!("{reason:?}") };
            assert!(cause.contains(stage) && remedy.contains("`heat-node-agent rerun 'id 1'`"), "{days}: {cause} {remedy}");
            assert_eq!((renewal.waits_for(reason.clone()), renewal.waits()), (is_news, Some(reason)), "{days}");
        }
    }
}
