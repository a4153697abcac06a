//! When a node renews its certificates by itself, and whether a master may do so now: pure functions of what was read.
//!
//! A renewal restarts who reads the certificates, etcd and the API server among them. Masters come one after the other, each in its
//! own place of the time that is left ([`RenewalSlot`]), and never while etcd would lose its quorum by it.

use super::decide::CertificateVerdict;
use super::inspection::signed;
use super::inspection::{CertificateInspection, InspectedCertificate};
use crate::certificates::judge::{Flaw, renewal_due};
use crate::certificates::x509::X509;
use crate::clock::Timestamp;
use crate::desired::{Desired, RenewalSlot};

/// What is due of a node's renewals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// Nothing, or nothing is renewed by itself.
    Nothing,
    /// Some are near their ends; this node's place comes later.
    Later(Timestamp),
    /// Now. `late`: half of the time that is left for it is over.
    Now {
        /// Whether what is only desirable is no longer waited for.
        late: bool,
    },
    /// Some have expired, or are not valid yet: whoever reads them does not serve, and there is nothing left to protect.
    Expired,
}

impl Due {
    /// Whether something is to be renewed now.
    #[must_use]
    pub fn is_now(self) -> bool {
        matches!(self, Self::Now { .. } | Self::Expired)
    }
}

/// What is due at a node where this was found.
#[must_use]
pub fn due(inspection: &CertificateInspection, desired: &Desired, now: Timestamp) -> Due {
    let Some(trust) = desired.trust.as_ref().filter(|trust| trust.renew) else { return Due::Nothing };
    let mut due = Due::Nothing;
    for item in signed(inspection, desired) {
        let Some(leaf) = item.chain.first() else { continue };
        if item.is_outside_its_time() {
            return Due::Expired;
        }
        if item.verdict != CertificateVerdict::NearEnd {
            continue;
        }
        let slot = slot(leaf, trust.share);
        let late = now >= renewal_midpoint(leaf);
        due = match due {
            Due::Now { late: before } => Due::Now { late: before || late && now >= slot },
            _ if now >= slot => Due::Now { late },
            Due::Later(before) => Due::Later(before.min(slot)),
            _ => Due::Later(slot),
        };
    }
    due
}

/// When the first of those ends that are renewed by themselves, if it is near its end or past it, whatever else is wrong with it.
#[must_use]
pub fn first_end(inspection: &CertificateInspection, desired: &Desired, now: Timestamp) -> Option<Timestamp> {
    desired.trust.as_ref().filter(|trust| trust.renew)?;
    let leaves = signed(inspection, desired).filter_map(|item| item.chain.first());
    leaves.filter(|leaf| now >= renewal_due(leaf)).map(|leaf| leaf.not_after).min()
}

impl InspectedCertificate {
    /// Whether its time is over or has not begun, and nothing else is known to be wrong with it. What was signed while the clock was ahead
    /// would else be waited for for as long.
    #[must_use]
    pub fn is_outside_its_time(&self) -> bool {
        matches!(self.verdict, CertificateVerdict::Flawed(Flaw::Expired(_) | Flaw::NotYetValid(_)))
    }
}

/// When this node's place in the time that is left for a renewal begins. The second half of that time is nobody's place: it is for
/// those who had to wait.
fn slot(leaf: &X509, share: RenewalSlot) -> Timestamp {
    let due = renewal_due(leaf);
    let spread = (leaf.not_after.since(due) / 2).min(share.spread);
    due.after(spread * share.at.min(share.of) / share.of.max(1))
}

/// Half of the time that is left for a renewal is over then.
fn renewal_midpoint(leaf: &X509) -> Timestamp {
    let due = renewal_due(leaf);
    due.after(leaf.not_after.since(due) / 2)
}

/// Who holds the key in etcd that lets one master renew at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Lock {
    /// It was not asked for.
    Unasked,
    /// This node.
    Ours,
    /// Another one, by name.
    Theirs(String),
    /// Nobody can hold it; this node's turn comes then.
    NotYet(Timestamp),
}

/// What is known of etcd when a master wants to restart its own member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct QuorumState {
    /// How many members vote, this one among them.
    pub(super) members: usize,
    /// The others that do not answer as healthy.
    pub(super) unhealthy: Vec<String>,
    pub(super) lock: Lock,
    /// Half of the time that is left for a renewal is over.
    pub(super) late: bool,
}

/// Whether the own member may be restarted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RestartPermission {
    /// It may.
    Go,
    /// It may, once this node holds the lock.
    Lock,
    /// Not now, for this cause.
    Wait(String),
}

/// Judges it: without this member there must be a quorum. Another one that is down already is waited for, at first even where a
/// quorum would be left. Of two members each is needed, so that one restart costs the quorum for its few seconds, whenever it is done.
pub(super) fn judge(quorum_state: &QuorumState) -> RestartPermission {
    let QuorumState { members, unhealthy, lock, late } = quorum_state;
    if *members <= 1 {
        return RestartPermission::Go;
    }
    let others = members.saturating_sub(1).saturating_sub(unhealthy.len());
    let is_left = others > members / 2 || (*members == 2 && unhealthy.is_empty());
    if !is_left || !(unhealthy.is_empty() || *late) {
        let words = if is_left { "has no spare member" } else { "loses its quorum" };
        let unhealthy = unhealthy.join(", ");
        return RestartPermission::Wait(format!(
            "etcd {words} during a restart here: of its {members} members these are unhealthy: {unhealthy}"
        ));
    }
    match lock {
        Lock::Unasked => RestartPermission::Lock,
        Lock::Ours => RestartPermission::Go,
        Lock::NotYet(begin) => {
            RestartPermission::Wait(format!("masters take turns; this one's turn begins at {}", begin.rfc3339()))
        }
        Lock::Theirs(who) => RestartPermission::Wait(format!("another master is renewing its certificates: {who}")),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::tests::{desired, now, server};
    use super::*;
    use crate::certificates::ca::SigningCa;
    use crate::certificates::key::PrivateKey;
    use crate::desired::{CertificatePolicy, GivenPair, Material};

    const DAY: Duration = Duration::from_hours(24);

    /// The server's certificate of a look, which began this long ago and lives this long.
    fn item(age: Duration, life: Duration) -> InspectedCertificate {
        let ca = SigningCa::create("c", Timestamp(0), DAY * 36500).unwrap();
        let key = PrivateKey::generate().unwrap();
        // What is signed begins a day before.
        let signed = Timestamp(now().0 - u64::try_from(age.as_millis()).unwrap()).after(DAY);
        let leaf = X509::all_from_pem(&ca.sign(&server(), &key, signed, life.saturating_sub(DAY)).unwrap()).unwrap().remove(0);
        let verdict = match (now() >= leaf.not_after, now() >= renewal_due(&leaf)) {
            (true, _) => CertificateVerdict::Flawed(Flaw::Expired(leaf.not_after)),
            (false, true) => CertificateVerdict::NearEnd,
            (false, false) => CertificateVerdict::Right,
        };
        InspectedCertificate { name: "server".into(), path: String::new(), verdict, end: Some(leaf.not_after), chain: vec![leaf] }
    }

    fn found(items: Vec<InspectedCertificate>, share: RenewalSlot, change: impl FnOnce(&mut Desired)) -> Due {
        let mut desired = desired();
        desired.trust = desired.trust.map(|trust| CertificatePolicy { renew: true, share, ..trust });
        change(&mut desired);
        due(&CertificateInspection { items, ..CertificateInspection::default() }, &desired, now())
    }

    #[test]
    fn each_master_has_a_day_of_its_own_and_what_expired_is_due_at_once() {
        let share = |at| RenewalSlot { at, of: 3, spread: DAY * 3 };
        let in_days = |days: u32| Due::Later(now().after(DAY * days));
        // Age and life in days, place: what is due. 300 days are renewed from the 200th on.
        for (age, life, at, expected) in [
            (199, 300, 0, Due::Nothing),
            (200, 300, 0, Due::Now { late: false }),
            (200, 300, 1, in_days(1)),
            (200, 300, 2, in_days(2)),
            (201, 300, 1, Due::Now { late: false }),
            (201, 300, 2, in_days(1)),
            (202, 300, 2, Due::Now { late: false }),
            (250, 300, 2, Due::Now { late: true }),
            (301, 300, 2, Due::Expired),
            // The places of a short life lie in the first half of what is left: half a day each.
            (6, 9, 2, Due::Later(now().after(DAY))),
            (7, 9, 2, Due::Now { late: false }),
            (8, 9, 2, Due::Now { late: true }),
        ] {
            let items = vec![item(DAY * age, DAY * life)];
            assert_eq!(found(items, share(at), |_| ()), expected, "{age} of {life} days, place {at}");
        }
        // One of several is enough, and who is alone waits for nobody.
        let both = || vec![item(DAY * 10, DAY * 300), item(DAY * 301, DAY * 300)];
        assert_eq!(found(both(), share(2), |_| ()), Due::Expired);
        assert_eq!(found(vec![item(DAY * 200, DAY * 300)], RenewalSlot::ALONE, |_| ()), Due::Now { late: false });
    }

    #[test]
    fn what_is_given_or_only_reported_is_never_due() {
        let expired = || vec![item(DAY * 301, DAY * 300)];
        assert_eq!(found(expired(), RenewalSlot::ALONE, |desired| desired.trust.as_mut().unwrap().renew = false), Due::Nothing);
        let given = |desired: &mut Desired| {
            let text = || Material::Text(String::new());
            desired.certificates[0].given = Some(GivenPair { certificate: text(), key: text() });
        };
        assert_eq!(found(expired(), RenewalSlot::ALONE, given), Due::Nothing);
        // What was signed while the clock was ahead.
        let mut early = item(DAY * 10, DAY * 300);
        early.verdict = CertificateVerdict::Flawed(Flaw::NotYetValid(now().after(DAY * 1000)));
        assert_eq!(found(vec![early.clone()], RenewalSlot::ALONE, |_| ()), Due::Expired);
        assert_eq!(found(vec![early], RenewalSlot::ALONE, given), Due::Nothing);
        // A flaw beside the time is for a repair.
        let mut foreign = item(DAY * 10, DAY * 300);
        foreign.verdict = CertificateVerdict::Flawed(Flaw::ForeignKey);
        assert_eq!(found(vec![foreign], RenewalSlot::ALONE, |_| ()), Due::Nothing);
    }

    #[test]
    fn the_first_end_is_known_whatever_else_is_wrong_with_a_certificate() {
        let mut foreign = item(DAY * 250, DAY * 300);
        foreign.verdict = CertificateVerdict::Flawed(Flaw::ForeignKey);
        let (end, past) = (foreign.end, item(DAY * 301, DAY * 300));
        for (items, renew, expected) in [
            (vec![foreign.clone(), item(DAY * 10, DAY * 300)], true, end),
            (vec![foreign.clone(), past.clone()], true, past.end),
            (vec![item(DAY * 10, DAY * 300)], true, None),
            (vec![foreign, past], false, None),
        ] {
            let mut desired = desired();
            desired.trust.as_mut().unwrap().renew = renew;
            let inspection = CertificateInspection { items, ..CertificateInspection::default() };
            assert_eq!(first_end(&inspection, &desired, now()), expected);
        }
    }

    #[test]
    fn the_second_member_of_a_quorum_is_never_taken() {
        // Members, of the others not healthy, late: whether the own one may go once it has the lock.
        for (members, unhealthy, late, expected) in [
            (2, 0, false, true),
            (2, 1, false, false),
            (2, 1, true, false),
            (3, 0, false, true),
            (3, 1, false, false),
            (3, 1, true, false),
            (3, 2, true, false),
            (4, 0, false, true),
            (4, 1, true, false),
            (5, 0, false, true),
            (5, 1, false, false),
            (5, 1, true, true),
            (5, 2, true, false),
            (7, 2, true, true),
            (7, 3, true, false),
        ] {
            let unhealthy: Vec<String> = (0..unhealthy).map(|number| format!("m{number}")).collect();
            let quorum_state = |lock| QuorumState { members, unhealthy: unhealthy.clone(), lock, late };
            let case = format!("{members} members, without {unhealthy:?}, late: {late}");
            let waits = |lock| matches!(judge(&quorum_state(lock)), RestartPermission::Wait(_));
            if expected {
                assert_eq!(
                    (judge(&quorum_state(Lock::Unasked)), judge(&quorum_state(Lock::Ours))),
                    (RestartPermission::Lock, RestartPermission::Go),
                    "{case}"
                );
            } else {
                assert!(waits(Lock::Unasked) && waits(Lock::Ours), "{case}");
            }
            assert!(waits(Lock::Theirs("m9".into())) && waits(Lock::NotYet(now())), "{case}");
        }
        let alone = QuorumState { members: 1, unhealthy: vec![], lock: Lock::Unasked, late: false };
        assert_eq!(judge(&alone), RestartPermission::Go);
    }
}
