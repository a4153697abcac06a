//! Which CAs a node trusts, and which may have signed its own certificates, while the CA changes
//! (magnum-node.md 2.8). Pure.
//!
//! Three steps, and all nodes must have done one before any does the next: the new CA is trusted beside the old one;
//! the node's certificates are signed by the new one; the old one is dropped. The old one lies on the nodes' disks alone: it
//! is never dropped before its time, unless it expired.

use super::record::{CertificateRecord, RotationProgress, next};
use crate::certificates::judge::check_ca;
use crate::certificates::x509::X509;
use crate::clock::Timestamp;
use crate::desired::Rotation;

/// Whom a node trusts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Trusted {
    /// What the file of the CA holds, in its order.
    pub(super) bundle: Vec<X509>,
    /// Who may have signed the node's own certificates.
    pub(super) signers: Vec<X509>,
}

/// CAs in place that the issuer does not know any more, and that live.
pub(super) fn old<'a>(issuer: &[X509], in_place: &'a [X509], now: Timestamp) -> Vec<&'a X509> {
    let lives = |one: &&X509| check_ca(one, now).is_ok();
    in_place.iter().filter(|one| !issuer.iter().any(|known| known.der == one.der)).filter(lives).collect()
}

/// Whether the issuer has a CA that is not in place yet.
pub(super) fn is_news(issuer: &[X509], in_place: &[X509]) -> bool {
    issuer.iter().any(|one| !in_place.iter().any(|known| known.der == one.der))
}

/// Whom to trust at a step. `first`: public key of the signing key beside the file, whose certificate the controller manager
/// takes for the first one in it; `None` where none of them has it.
pub(super) fn trusted(
    issuer: &[X509],
    in_place: &[X509],
    step: Rotation,
    first: Option<&[u8]>,
    now: Timestamp,
) -> Option<Trusted> {
    let old = if step == Rotation::DropOld { Vec::new() } else { old(issuer, in_place, now) };
    let mut bundle: Vec<X509> = Vec::new();
    for one in issuer.iter().chain(old) {
        if !bundle.iter().any(|known| known.der == one.der) {
            bundle.push(one.clone());
        }
    }
    if let Some(key) = first {
        let at = bundle.iter().position(|one| one.public_key == key)?;
        let signing = bundle.remove(at);
        bundle.insert(0, signing);
    }
    let signers = if step == Rotation::TrustBoth { bundle.clone() } else { issuer.to_vec() };
    Some(Trusted { bundle, signers })
}

/// The step that a node is to do. `news`: the change begins, or another one on top of it. A stack update takes one step at
/// most, however far `allowed` goes: all nodes must have done one before any does the next. `allowed`: nothing where the run is
/// neither an update nor an operator's order of the next step: a node that goes back to an earlier generation keeps its step.
pub(super) fn step(record: &CertificateRecord, allowed: Option<Rotation>, generation: u64, news: bool) -> Rotation {
    let Some(turn) = record.rotation.filter(|_| !news) else { return Rotation::TrustBoth };
    let Some(allowed) = allowed else { return turn.step };
    let by_update = match next(turn.step) {
        Some(next) if generation != turn.generation => allowed.min(next),
        _ => turn.step,
    };
    turn.step.max(by_update).max(record.ordered.unwrap_or_default())
}

/// The record of a CA rotation after a step, `begins` with one of a new change: `None` when it is over.
pub(super) fn turn(
    record: &CertificateRecord,
    step: Rotation,
    begins: bool,
    generation: u64,
    now: Timestamp,
) -> Option<RotationProgress> {
    match record.rotation {
        _ if step == Rotation::DropOld => None,
        Some(turn) if turn.step == step && !begins => Some(turn),
        _ => Some(RotationProgress { step, generation, since: now }),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use super::*;
    use crate::certificates::ca::SigningCa;

    const NOW: Timestamp = Timestamp(1_800_000_000_000);

    /// CAs by letters, all with the same subject, as Magnum's are; a capital's is expired.
    #[derive(Default)]
    struct TestCas(BTreeMap<char, X509>);

    impl TestCas {
        fn of(&mut self, letters: &str) -> Vec<X509> {
            let begin = |letter: char| if letter.is_ascii_uppercase() { Timestamp(NOW.0 / 2) } else { NOW };
            let make = |letter| SigningCa::create("cluster", begin(letter), Duration::from_hours(48)).unwrap().certificate;
            letters.chars().map(|letter| self.0.entry(letter).or_insert_with(|| make(letter)).clone()).collect()
        }

        fn letters(&self, all: &[X509]) -> String {
            let letter = |one: &X509| *self.0.iter().find(|(_, known)| known.der == one.der).unwrap().0;
            all.iter().map(letter).collect()
        }
    }

    #[test]
    fn the_old_ca_is_trusted_until_it_is_dropped_or_expired() {
        use Rotation::{DropOld, Switch, TrustBoth};
        let mut all = TestCas::default();
        // The issuer's, those in place (capitals expired), step, whose the signing key is -> bundle, who may have signed
        for (issuer, in_place, step, first, expected) in [
            ("n", "", TrustBoth, None, Some(("n", "n"))),
            ("n", "n", TrustBoth, None, Some(("n", "n"))),
            ("n", "o", TrustBoth, None, Some(("no", "no"))),
            ("n", "on", TrustBoth, None, Some(("no", "no"))),
            ("n", "oo", TrustBoth, None, Some(("no", "no"))),
            ("nn", "n", TrustBoth, None, Some(("n", "n"))),
            ("nm", "no", TrustBoth, None, Some(("nmo", "nmo"))),
            ("nm", "nmo", Switch, None, Some(("nmo", "nm"))),
            ("n", "O", TrustBoth, None, Some(("n", "n"))),
            ("n", "no", Switch, None, Some(("no", "n"))),
            ("n", "no", DropOld, None, Some(("n", "n"))),
            ("n", "no", TrustBoth, Some('o'), Some(("on", "on"))),
            ("n", "no", Switch, Some('n'), Some(("no", "n"))),
            ("n", "no", Switch, Some('o'), Some(("on", "n"))),
            ("n", "no", DropOld, Some('o'), None),
            ("n", "", TrustBoth, Some('x'), None),
        ] {
            let first = first.map(|letter: char| all.of(&letter.to_string()).remove(0).public_key);
            let got = trusted(&all.of(issuer), &all.of(in_place), step, first.as_deref(), NOW);
            let got = got.map(|got| (all.letters(&got.bundle), all.letters(&got.signers)));
            let expected = expected.map(|(bundle, signers)| (bundle.to_owned(), signers.to_owned()));
            assert_eq!(got, expected, "{issuer} {in_place} {step:?} {first:?}");
        }
    }

    #[test]
    fn a_stack_update_takes_one_step_and_never_one_back() {
        use Rotation::{DropOld, Switch, TrustBoth};
        // Done, with which generation; ordered; allowed; generation now; news -> to do
        for (done, ordered, allowed, generation, news, expected) in [
            (None, None, DropOld, 2, true, TrustBoth),
            (None, None, DropOld, 2, false, TrustBoth),
            (Some((TrustBoth, 2)), None, DropOld, 2, false, TrustBoth),
            (Some((TrustBoth, 2)), None, DropOld, 3, false, Switch),
            (Some((TrustBoth, 2)), None, Switch, 3, false, Switch),
            (Some((TrustBoth, 2)), None, TrustBoth, 3, false, TrustBoth),
            (Some((TrustBoth, 2)), Some(Switch), TrustBoth, 2, false, Switch),
            (Some((Switch, 3)), None, Switch, 4, false, Switch),
            (Some((Switch, 3)), None, TrustBoth, 4, false, Switch),
            (Some((Switch, 3)), None, DropOld, 3, false, Switch),
            (Some((Switch, 3)), None, DropOld, 4, false, DropOld),
            // Generations were counted anew, as node.json was lost.
            (Some((TrustBoth, 7)), None, Switch, 1, false, Switch),
            (Some((Switch, 3)), Some(DropOld), TrustBoth, 3, false, DropOld),
            (Some((Switch, 3)), Some(DropOld), DropOld, 4, true, TrustBoth),
        ] {
            let rotation = done.map(|(step, generation)| RotationProgress { step, generation, since: Timestamp(0) });
            let record = CertificateRecord { rotation, ordered, ..CertificateRecord::default() };
            let got = step(&record, Some(allowed), generation, news);
            assert_eq!(got, expected, "{done:?} {ordered:?} {allowed:?} {generation} {news}");
            // Attack: the rollback of an update took the step after, and the renewal of a certificate that had expired, after a failed update, the
            // one that was ordered.
            let held = done.filter(|_| !news).map_or(TrustBoth, |(step, _)| step);
            assert_eq!(step(&record, None, generation, news), held, "{done:?} {ordered:?} {generation} {news}");
        }
    }
}
