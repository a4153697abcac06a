//! Renewals of certificates that a node does by itself: what is due, what it waits for, and what else of the node is touched with it.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::time::Duration;

use super::drift::{Cause, Subject};
use crate::clock::Timestamp;
use crate::desired::{CertificatePolicy, Desired};
use crate::gather::Gather;
use crate::keepers::certificates::quorum::RenewalLease;
use crate::keepers::certificates::{CertificateInspection, Due, due};
use crate::kubernetes::{ETCD_READERS, ETCD_UNIT};
use crate::report::text::argument;

/// How long before the end of a certificate that is not renewed the operator hears of it again.
const LAST_CALL: Duration = Duration::from_hours(7 * 24);

/// Whose restart the cluster feels: of these a repair of a file asks as well. Whoever else reads certificates serves this node alone.
const CLUSTER_UNITS: [&str; 2] = [ETCD_UNIT, ETCD_READERS[0]];

/// What a renewal waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::daemon) enum WaitReason {
    /// This node's place among the others.
    Until(Timestamp),
    /// Somebody else, for this cause.
    For(String),
    /// The same of restarts: those that a renewal left when it was cut off, or those of what is put back.
    Restarts(String),
    /// A deployment that succeeds: the last update failed on its way.
    Deployment {
        /// How near it is.
        cause: String,
        /// The operator's way there.
        remedy: String,
    },
}

/// What is waited for: by a renewal of certificates that is due, and by restarts.
#[derive(Debug, Default)]
pub(super) struct Renewal {
    certificates: RefCell<Option<WaitReason>>,
    restarts: RefCell<Option<WaitReason>>,
    /// This master's turn, which is over.
    pub(super) unreleased: RefCell<Option<RenewalLease>>,
}

impl Renewal {
    /// What is waited for: what was begun comes first.
    pub(super) fn waits(&self) -> Option<WaitReason> {
        self.restarts_wait().or_else(|| self.certificates.borrow().clone())
    }

    /// What restarts wait for.
    pub(super) fn restarts_wait(&self) -> Option<WaitReason> {
        self.restarts.borrow().clone()
    }

    /// A renewal waits for nothing any more.
    pub(super) fn begins(&self) {
        self.certificates.take();
    }

    /// No restarts wait any more.
    pub(super) fn restarts_begin(&self) {
        self.restarts.take();
    }

    /// This is waited for; whether that is news.
    pub(super) fn waits_for(&self, reason: WaitReason) -> bool {
        let waits = if matches!(reason, WaitReason::Restarts(_)) { &self.restarts } else { &self.certificates };
        waits.replace(Some(reason.clone())) != Some(reason)
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
            Due::Later(slot) => drop(self.certificates.replace(Some(WaitReason::Until(slot)))),
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

/// Whose restarts ask etcd's members first, as a renewal does: etcd and whoever reads certificates. Where the node's member has no others, none
/// costs a quorum.
pub(super) fn asking_units(desired: &Desired) -> BTreeSet<String> {
    if desired.etcd.as_ref().is_none_or(|etcd| etcd.is_single) {
        return BTreeSet::new();
    }
    let etcd = desired.units.iter().filter(|unit| unit.name == ETCD_UNIT);
    desired.certificate_readers().chain(etcd).map(|unit| unit.name.clone()).gather()
}

/// Of these those whose restart is pending, or comes when these causes are put back.
pub(super) fn asking_restarts<'a>(desired: &'a Desired, causes: &'a [Cause]) -> BTreeSet<String> {
    let asking = asking_units(desired);
    // Who signs one certificate anew may find another CA, which every reader trusts from then on.
    if causes.iter().any(|cause| matches!(cause.subject, Subject::Certificate(_))) {
        return asking;
    }
    let rewritten = desired.readers(causes.iter().filter_map(Cause::rewritten_file).gather()).map(|unit| unit.name.as_str());
    let of_cluster = rewritten.filter(|name| CLUSTER_UNITS.contains(name));
    let restarted: BTreeSet<&str> = causes.iter().filter_map(Cause::pending_restart).chain(of_cluster).gather();
    asking.into_iter().filter(|unit| restarted.contains(unit.as_str())).gather()
}

/// Whose restarts wait while certificates that have expired are renewed: of all that would ask, who reads none of those. Whoever signs one anew may
/// find another CA, which all of them read.
pub(super) fn held_beside_expired(desired: &Desired, inspection: Option<&CertificateInspection>) -> BTreeSet<String> {
    let expired = inspection.iter().flat_map(|inspection| &inspection.items).filter(|item| item.is_outside_its_time());
    let readers = desired.readers(expired.map(|item| item.path.as_str()).gather());
    let readers: BTreeSet<&str> = readers.map(|unit| unit.name.as_str()).gather();
    asking_units(desired).into_iter().filter(|unit| !readers.contains(unit.as_str())).gather()
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
    use super::super::drift::CauseKind;
    use super::*;
    use crate::certificates::judge::Flaw;
    use crate::desired::{EtcdAccess, EtcdMember, KeyRequest, KeyType, Owner, Unit};
    use crate::keepers::certificates::{CertificateVerdict, InspectedCertificate};

    fn reads(name: &str, path: &str) -> Unit {
        Unit {
            name: name.to_owned(),
            enable: true,
            restart_on: [path.to_owned()].into_iter().gather(),
            needs: BTreeSet::new(),
            applies_files: false,
        }
    }

    fn key(path: &str) -> KeyRequest {
        KeyRequest { name: path.to_owned(), path: path.to_owned(), owner: Owner::root(), kind: KeyType::EcdsaP256 }
    }

    fn member() -> EtcdMember {
        EtcdMember {
            access: EtcdAccess { endpoint: String::new(), identity: None },
            peer: String::new(),
            peer_identity: None,
            is_single: true,
            name: String::new(),
            keeps_v2: false,
        }
    }

    #[test]
    fn restarts_of_who_reads_certificates_ask_where_etcd_has_several_members() {
        let restart = |unit: &str| Cause::new(CauseKind::Restart, Subject::Unit(unit.to_owned()), "", String::new());
        let stopped = Cause::new(CauseKind::State, Subject::Unit("kubelet".to_owned()), "", String::new());
        let found = [restart("etcd.service"), restart("apiserver"), restart("docker"), stopped];
        for (is_single, expected) in [(Some(false), &["apiserver", "etcd.service"][..]), (Some(true), &[]), (None, &[])] {
            let etcd = is_single.map(|is_single| EtcdMember { is_single, ..member() });
            let etcd_unit = reads("etcd.service", "/etcd.conf");
            let units = vec![reads("apiserver", "/ca"), reads("kubelet", "/ca"), reads("docker", "/docker.conf"), etcd_unit];
            let desired = Desired { etcd, units, keys: vec![key("/ca")], ..Desired::default() };
            assert_eq!(Vec::from_iter(asking_restarts(&desired, &found)), expected, "{is_single:?}");
            // Attack: DRIFT=repair put etcd's file back, and restarted it while another member was down.
            for (kind, subject, restarted) in [
                (CauseKind::File, Subject::Path("/etcd.conf".to_owned()), &["etcd.service"][..]),
                (CauseKind::File, Subject::Path("/docker.conf".to_owned()), &[]),
                (CauseKind::Effect, Subject::Path("/etcd.conf".to_owned()), &[]),
                (CauseKind::State, Subject::Certificate("/ca".to_owned()), &["apiserver", "etcd.service", "kubelet"]),
                (CauseKind::State, Subject::Certificate("/admin.crt".to_owned()), &["apiserver", "etcd.service", "kubelet"]),
            ] {
                let expected = if is_single == Some(false) { restarted } else { &[] };
                let cause = Cause::new(kind, subject, "", String::new());
                assert_eq!(Vec::from_iter(asking_restarts(&desired, std::slice::from_ref(&cause))), expected, "{cause:?}");
            }
        }
    }

    /// Attack: one certificate that had expired let every restart go that waited for the quorum.
    #[test]
    fn what_expired_restarts_its_readers_alone() {
        let units =
            vec![reads("etcd.service", "/etcd"), reads("kubelet.service", "/kubelet"), reads("kube-apiserver.service", "/api")];
        let etcd = EtcdMember { is_single: false, ..member() };
        let keys = ["/etcd", "/kubelet", "/api"].map(key).into();
        let desired = Desired { units, keys, etcd: Some(etcd), ..Desired::default() };
        let item = |path: &str, verdict| InspectedCertificate {
            name: path.to_owned(),
            path: path.to_owned(),
            verdict,
            chain: Vec::new(),
            end: None,
        };
        let expired = |path: &str| item(path, CertificateVerdict::Flawed(Flaw::Expired(Timestamp(0))));
        let of = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<BTreeSet<String>>();
        for (path, expected) in [
            ("/kubelet", of(&["etcd.service", "kube-apiserver.service"])),
            ("/etcd", of(&["kube-apiserver.service", "kubelet.service"])),
        ] {
            let inspection = CertificateInspection { items: vec![expired(path)], ..CertificateInspection::default() };
            assert_eq!(held_beside_expired(&desired, Some(&inspection)), expected, "{path}");
        }
    }

    #[test]
    fn each_wait_is_known_by_itself_and_what_was_begun_is_shown() {
        let (renewal, for_m2) = (Renewal::default(), || "m2".to_owned());
        assert!(renewal.waits_for(WaitReason::For(for_m2())) && renewal.waits_for(WaitReason::Restarts(for_m2())));
        // Nothing is due at the next look: the restarts go on waiting.
        renewal.due(None, &Desired::default(), false, Timestamp(0));
        assert!(!renewal.waits_for(WaitReason::Restarts(for_m2())), "no news");
        assert_eq!(renewal.waits(), Some(WaitReason::Restarts(for_m2())));
        renewal.restarts_begin();
        assert_eq!(renewal.waits(), None);
    }

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
