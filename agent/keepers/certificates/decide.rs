//! What is to be done about each desired certificate: a pure function of what was read.
//!
//! Nothing right is asked for again, and a key that may be kept is kept: one that the record knows, or one whose certificate
//! is right for this node.

use std::collections::BTreeMap;

use super::issue::error_of;
use super::places::{InstalledPair, PairFiles, Places};
use super::record::{CertificateRecord, KnownKey};
use super::rotation;
use crate::certificates::judge::{Flaw, ValidityPhase, check, check_ca, life, signer};
use crate::certificates::key::PrivateKey;
use crate::certificates::x509::X509;
use crate::clock::Timestamp;
use crate::desired::{Certificate, CertificatePolicy, Desired, KeyType, Rotation, Signer};
use crate::error::{Error, Result};

/// What is done about one certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CertificateAction {
    /// What is in use stays.
    Keep(Box<InstalledPair>),
    /// A pair that was given, or that a run which was cut off left.
    Take(Box<InstalledPair>),
    /// A certificate is signed for this key, or for a new one.
    Sign(Option<PrivateKey>),
}

/// Everything that is known when it is decided.
#[derive(Clone, Copy, Debug)]
pub(super) struct DecisionFacts<'a> {
    pub(super) desired: &'a Desired,
    pub(super) trust: &'a CertificatePolicy,
    pub(super) places: &'a Places,
    pub(super) record: &'a CertificateRecord,
    pub(super) generation: u64,
    /// How far a CA rotation may go in this run; nothing where it takes no step.
    pub(super) rotation: Option<Rotation>,
    pub(super) now: Timestamp,
    /// Pairs of the parameters, by the certificate's name.
    pub(super) given: &'a BTreeMap<String, InstalledPair>,
    /// Public keys of the signing keys that are put beside a CA, by its path.
    pub(super) signing: &'a BTreeMap<String, Vec<u8>>,
}

/// What is to be done about all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CertificateDecision {
    /// What each CA's file holds, by its path.
    pub(super) bundles: BTreeMap<String, Vec<X509>>,
    /// In the order of the desired certificates.
    pub(super) actions: Vec<CertificateAction>,
    /// Who may have signed what, by who signs.
    pub(super) signers: BTreeMap<Signer, Vec<X509>>,
    /// The step of a CA rotation that is done with this.
    pub(super) step: Option<Rotation>,
    /// Whether a CA rotation begins with it, perhaps on top of one that is under way.
    pub(super) begins: bool,
}

impl CertificateDecision {
    /// Whether nobody has to be asked for anything.
    pub(super) fn is_all_kept(&self) -> bool {
        self.actions.iter().all(|action| matches!(action, CertificateAction::Keep(_)))
    }
}

impl DecisionFacts<'_> {
    /// Decides, where the issuer's CAs are these.
    ///
    /// # Errors
    /// A CA that is none or expired; a signing key that belongs to none of those that stay.
    pub(super) fn decide(&self, issuer: &BTreeMap<Signer, Vec<X509>>) -> Result<CertificateDecision> {
        let now = self.now;
        let mut changing = false;
        let mut news = false;
        for ca in &self.desired.cas {
            let known = issuer.get(&ca.signer).map(Vec::as_slice).unwrap_or_default();
            let in_place = self.in_place(&ca.path, ca.signer);
            let has_old = !rotation::old(known, in_place, now).is_empty();
            changing |= has_old;
            news |= has_old && rotation::is_news(known, in_place);
        }
        let step = changing.then(|| rotation::step(self.record, self.rotation, self.generation, news));
        let mut decision =
            CertificateDecision { bundles: BTreeMap::new(), actions: Vec::new(), signers: BTreeMap::new(), step, begins: news };
        for ca in &self.desired.cas {
            let (path, signer) = (&ca.path, ca.signer);
            let known = unexpired(issuer.get(&signer).map(Vec::as_slice).unwrap_or_default(), now)
                .map_err(|flaw| error_of(flaw, now).context(format!("the certificate of the CA {signer}")))?;
            let first = self.signing.get(path).map(Vec::as_slice);
            let trusted = rotation::trusted(&known, self.in_place(path, signer), step.unwrap_or_default(), first, now)
                .ok_or_else(|| foreign_signing_key(signer))?;
            decision.bundles.insert(path.clone(), trusted.bundle);
            decision.signers.entry(signer).or_insert(trusted.signers);
        }
        for wanted in &self.desired.certificates {
            let of = |all: &BTreeMap<Signer, Vec<X509>>| all.get(&wanted.signer).cloned().unwrap_or_default();
            let action = self.action(wanted, &of(issuer), &of(&decision.signers));
            decision.actions.push(action);
        }
        Ok(decision)
    }

    /// The CAs in place that count: those of a node whose certificates are not theirs are somebody's leftovers.
    fn in_place(&self, path: &str, signer: Signer) -> &[X509] {
        let there = self.places.cas.get(path).map(Vec::as_slice).unwrap_or_default();
        let mut own = self.desired.certificates.iter().filter(|wanted| wanted.signer == signer).peekable();
        let is_used = own.peek().is_none()
            || own.any(|wanted| {
                let Some(pair) = self.places.pair(wanted) else { return false };
                // This node's own count whatever their time is: others may use the CA, however long this one was off.
                let is_ours = || self.record.known(&wanted.name, &pair.private.fingerprint()).is_some();
                is_signed(wanted, pair, there, self.now) || (is_ours() && belongs_to(pair, there))
            });
        if is_used { there } else { &[] }
    }

    fn action(&self, wanted: &Certificate, issuer: &[X509], signers: &[X509]) -> CertificateAction {
        let in_use = self.places.pair(wanted);
        let right = |pair: &&InstalledPair| check(wanted, &pair.chain, &pair.private, signers, self.now).is_ok();
        // What is the old CA's and right yet waits until all nodes trust the new one.
        let is_old = |pair: &InstalledPair| !is_signed(wanted, pair, issuer, self.now);
        if let Some(given) = self.given.get(&wanted.name) {
            let stays = |pair: &&InstalledPair| {
                (&pair.chain, &pair.private) == (&given.chain, &given.private) || (right(pair) && is_old(pair) && !is_old(given))
            };
            let kept = in_use.filter(stays).cloned().map(|pair| CertificateAction::Keep(Box::new(pair)));
            return kept.unwrap_or_else(|| CertificateAction::Take(Box::new(given.clone())));
        }
        let stays = |pair: &&InstalledPair| {
            let is_near_end = pair.chain.first().is_some_and(|leaf| life(leaf, self.now) != ValidityPhase::Fresh);
            !(self.trust.renew && is_near_end && !is_old(pair)) && self.is_kind(wanted, &pair.private)
        };
        if let Some(pair) = in_use.filter(right).filter(stays) {
            return CertificateAction::Keep(Box::new(pair.clone()));
        }
        let left = self.places.pending.get(&wanted.name).map(Vec::as_slice).unwrap_or_default();
        let ours = |key: &PrivateKey| self.record.known(&wanted.name, &key.fingerprint()).is_some();
        if let Some(pair) = left.iter().filter(|pair| ours(&pair.private)).filter(right).find(stays) {
            return CertificateAction::Take(Box::new(pair.clone()));
        }
        let of_right_one = in_use.filter(right).map(|pair| &pair.private);
        let known = self.places.keys.get(&wanted.name).into_iter().flatten().filter(|key| ours(key));
        CertificateAction::Sign(of_right_one.into_iter().chain(known).find(|key| self.is_kind(wanted, key)).cloned())
    }

    /// Whether a key is of a kind that may stay. Only one that the agent made is replaced, and an RSA key only if another kind
    /// is asked for: Kubernetes 1.6, with which ECDSA becomes usual, would refuse the tokens that it signed before.
    fn is_kind(&self, wanted: &Certificate, key: &PrivateKey) -> bool {
        let made = |known: &KnownKey| known.made;
        let kind = key.key_type();
        let stays = !self.trust.keys_asked && matches!(kind, Some(KeyType::Rsa(_)));
        !self.record.known(&wanted.name, &key.fingerprint()).is_some_and(made) || kind == Some(self.trust.keys) || stays
    }
}

/// Those of an issuer's CAs that live.
fn unexpired(all: &[X509], now: Timestamp) -> std::result::Result<Vec<X509>, Flaw> {
    let living: Vec<X509> = all.iter().filter(|one| check_ca(one, now).is_ok()).cloned().collect();
    match all.first() {
        Some(first) if living.is_empty() => check_ca(first, now).map(|()| living),
        None => Err(Flaw::WrongKind("there is none")),
        Some(_) => Ok(living),
    }
}

/// Whether one of these CAs signed a certificate whose key is beside it.
fn belongs_to(pair: &InstalledPair, cas: &[X509]) -> bool {
    let has_key = |leaf: &X509| leaf.public_key == pair.private.public_key();
    pair.chain.first().is_some_and(has_key) && signer(&pair.chain, cas).is_ok()
}

/// Whether one of these CAs signed a certificate that lives and whose key is beside it, whatever its names are.
fn is_signed(wanted: &Certificate, pair: &InstalledPair, cas: &[X509], now: Timestamp) -> bool {
    let Some(leaf) = pair.chain.first() else { return false };
    let as_it_is = Certificate {
        common_name: leaf.subject.common_name.clone().unwrap_or_default(),
        organisations: leaf.subject.organisations.clone(),
        names: Vec::new(),
        addresses: Vec::new(),
        serves: false,
        ..wanted.clone()
    };
    check(&as_it_is, &pair.chain, &pair.private, cas, now).is_ok()
}

fn foreign_signing_key(signer: Signer) -> Error {
    let (key, certificate) = match signer {
        Signer::Kubernetes => ("CA_KEY", "CA_CERTIFICATE"),
        Signer::Etcd => ("ETCD_CA_KEY", "ETCD_CA_CERTIFICATE"),
        Signer::FrontProxy => ("FRONT_PROXY_CA_KEY", "FRONT_PROXY_CA_CERTIFICATE"),
    };
    Error::permanent(format!("{key} matches none of the CA's certificates"))
        .rule("kube-controller-manager refuses a signing key that does not match its certificate")
        .remedy(format!("provide the key of {certificate}, or of Magnum's current CA; after a CA rotation that is the new one"))
}

/// How a certificate is, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CertificateVerdict {
    /// All is right.
    Right,
    /// All is right, and two thirds of its validity period have passed.
    NearEnd,
    /// It is not there.
    Missing(String),
    /// It cannot be understood.
    Unreadable(String),
    /// It is not right.
    Flawed(Flaw),
}

/// Judges what is in use for a certificate by the CAs that lie beside it.
pub(super) fn verdict(wanted: &Certificate, found: &PairFiles, cas: &[X509], now: Timestamp) -> CertificateVerdict {
    let pair = match found {
        PairFiles::Missing(why) => return CertificateVerdict::Missing(why.clone()),
        PairFiles::Unreadable(why) => return CertificateVerdict::Unreadable(why.clone()),
        PairFiles::Pair(pair) => pair,
    };
    match check(wanted, &pair.chain, &pair.private, cas, now) {
        Err(flaw) => CertificateVerdict::Flawed(flaw),
        Ok(()) if pair.chain.first().is_some_and(|leaf| life(leaf, now) == ValidityPhase::Fresh) => CertificateVerdict::Right,
        Ok(()) => CertificateVerdict::NearEnd,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::tests::{desired, now, server};
    use super::*;
    use crate::certificates::ca::SigningCa;
    use crate::certificates::fixtures::rsa_key;

    /// What is there for one certificate.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Existing {
        Nothing,
        InUse,
        Pending,
        KeyAlone,
    }

    #[test]
    fn nothing_right_is_signed_again_and_keys_that_may_be_kept_are() {
        let day = Duration::from_hours(24);
        let ca = |name: &str| SigningCa::create(name, Timestamp(now().0 - 1), day * 3650).unwrap();
        let (ca, other) = (ca("cluster"), ca("cluster"));
        let key = PrivateKey::generate().unwrap();
        let renamed = Certificate { names: vec!["other".into()], ..server() };
        let signed = |by: &SigningCa, wanted: &Certificate, since: Timestamp, life| {
            InstalledPair::parse(by.sign(wanted, &key, since, life).unwrap(), key.to_pem().to_owned()).unwrap()
        };
        let right = signed(&ca, &server(), now(), day * 90);
        let near_end = signed(&ca, &server(), now(), Duration::from_hours(1));
        let misnamed = signed(&ca, &renamed, now(), day * 90);
        let foreign = signed(&other, &server(), now(), day * 90);
        // What there is, whose key it is (as the record has it: made or found), asked for: kind, renewal -> what is done
        let (ec, rsa) = (KeyType::EcdsaP256, KeyType::Rsa(2048));
        let (made, found) = (Some(true), Some(false));
        for (case, (there, pair, known, kind, renew, expected)) in [
            (Existing::Nothing, &right, None, ec, false, "sign"),
            (Existing::InUse, &right, None, ec, false, "keep"),
            (Existing::InUse, &right, made, ec, true, "keep"),
            (Existing::InUse, &right, None, rsa, false, "keep"),
            (Existing::InUse, &right, found, rsa, false, "keep"),
            (Existing::InUse, &right, made, rsa, false, "sign"),
            (Existing::InUse, &near_end, made, ec, false, "keep"),
            (Existing::InUse, &near_end, made, ec, true, "sign with the key"),
            (Existing::InUse, &near_end, None, ec, true, "sign with the key"),
            (Existing::InUse, &misnamed, made, ec, false, "sign with the key"),
            (Existing::InUse, &misnamed, found, rsa, false, "sign with the key"),
            (Existing::InUse, &misnamed, None, ec, false, "sign"),
            (Existing::InUse, &foreign, made, ec, false, "sign with the key"),
            (Existing::InUse, &foreign, None, ec, false, "sign"),
            (Existing::Pending, &right, made, ec, false, "take"),
            (Existing::Pending, &right, None, ec, false, "sign"),
            (Existing::Pending, &misnamed, made, ec, false, "sign with the key"),
            (Existing::KeyAlone, &right, made, ec, false, "sign with the key"),
            (Existing::KeyAlone, &right, made, rsa, false, "sign"),
            (Existing::KeyAlone, &right, None, ec, false, "sign"),
        ]
        .into_iter()
        .enumerate()
        {
            let wanted = server();
            let mut places = Places::default();
            let mut record = CertificateRecord::default();
            if let Some(made) = known {
                record.remember(&wanted.name, key.fingerprint(), made);
            }
            match there {
                Existing::Nothing | Existing::KeyAlone => {}
                Existing::InUse => drop(places.in_use.insert(wanted.name.clone(), PairFiles::Pair(Box::new(pair.clone())))),
                Existing::Pending => drop(places.pending.insert(wanted.name.clone(), vec![pair.clone()])),
            }
            if there != Existing::Nothing {
                places.keys.insert(wanted.name.clone(), vec![key.clone()]);
            }
            let trust = CertificatePolicy { keys: kind, renew, ..desired().trust.unwrap() };
            let known = DecisionFacts {
                desired: &desired(),
                trust: &trust,
                places: &places,
                record: &record,
                generation: 1,
                rotation: None,
                // Past two thirds of an hour, if that is its life.
                now: now().after(Duration::from_mins(45)),
                given: &BTreeMap::new(),
                signing: &BTreeMap::new(),
            };
            let issuer = std::slice::from_ref(&ca.certificate);
            let action = match known.action(&wanted, issuer, issuer) {
                CertificateAction::Keep(_) => "keep",
                CertificateAction::Take(_) => "take",
                CertificateAction::Sign(None) => "sign",
                CertificateAction::Sign(Some(kept)) if kept == key => "sign with the key",
                CertificateAction::Sign(Some(_)) => "sign with another key",
            };
            assert_eq!(action, expected, "case {case}: {there:?} {known:?}");
        }
    }
    /// From Kubernetes 1.6 on another kind is usual.
    #[test]
    fn an_rsa_key_stays_unless_another_kind_is_asked_for() {
        let ca = SigningCa::create("cluster", now(), Duration::from_hours(240)).unwrap();
        let key = rsa_key();
        let signed = ca.sign(&server(), &key, now(), Duration::from_hours(240)).unwrap();
        let pair = InstalledPair::parse(signed, key.to_pem().to_owned()).unwrap();
        let mut places = Places::default();
        places.in_use.insert("server".into(), PairFiles::Pair(Box::new(pair.clone())));
        let mut record = CertificateRecord::default();
        record.remember("server", key.fingerprint(), true);
        for (keys_asked, expected) in [(false, CertificateAction::Keep(Box::new(pair))), (true, CertificateAction::Sign(None))] {
            let known = DecisionFacts {
                desired: &desired(),
                trust: &CertificatePolicy { keys_asked, ..desired().trust.unwrap() },
                places: &places,
                record: &record,
                generation: 1,
                rotation: None,
                now: now(),
                given: &BTreeMap::new(),
                signing: &BTreeMap::new(),
            };
            let issuer = std::slice::from_ref(&ca.certificate);
            assert_eq!(known.action(&server(), issuer, issuer), expected, "{keys_asked}");
        }
    }
}
