//! Whether certificate, key, CA, names and time belong together.

use std::borrow::Cow;
use std::time::Duration;

use rustls::crypto::ring::default_provider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use webpki::{EndEntityCert, ExtendedKeyUsageValidator, KeyPurposeIdIter, KeyUsage, anchor_from_trusted_cert};

use super::key::PrivateKey;
use super::x509::{DIGITAL_SIGNATURE, KEY_CERT_SIGN, Name, X509};
use crate::clock::Timestamp;
use crate::desired::Certificate;

/// Why a certificate cannot be used; one cause each, written as text by `Display`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Flaw {
    /// Its life has not begun.
    #[error("it is not valid before {}", .0.rfc3339())]
    NotYetValid(Timestamp),
    /// Its life is over.
    #[error("it expired at {}", .0.rfc3339())]
    Expired(Timestamp),
    /// It is signed by none of the CAs that it should be signed by.
    #[error("it is not signed by {expected}, but by {found}")]
    WrongCa {
        /// The CAs that were expected.
        expected: String,
        /// Its own issuer.
        found: String,
    },
    /// The CA that signed it cannot be used.
    #[error("it is signed by a CA that cannot be used: {0}")]
    UnusableCa(Box<Flaw>),
    /// Signed in a way, or with a content, that is not accepted.
    #[error("it cannot be verified: {0}")]
    Unverifiable(Cow<'static, str>),
    /// Its subject is another one.
    #[error("its subject is {found}, not {expected}")]
    WrongSubject {
        /// As it should be.
        expected: String,
        /// As it is.
        found: String,
    },
    /// A name or address is not in it.
    #[error("it does not name {0}")]
    MissingName(String),
    /// It is not good for what it is for: `client`, `server`.
    #[error("it is not valid for a {0}")]
    WrongUsage(&'static str),
    /// The key is another one's.
    #[error("the key does not match the certificate")]
    ForeignKey,
    /// A CA is wanted, and it is none; or the other way round.
    #[error("{0}")]
    WrongKind(&'static str),
}

/// How far a certificate is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ValidityPhase {
    /// Before two thirds of it.
    Fresh,
    /// Past two thirds of it: to be renewed.
    NearEnd,
    /// Past its end.
    Over,
}

/// Where in its life a certificate is.
#[must_use]
pub fn life(certificate: &X509, now: Timestamp) -> ValidityPhase {
    if seconds(now) > seconds(certificate.not_after) {
        ValidityPhase::Over
    } else if now >= renewal_due(certificate) {
        ValidityPhase::NearEnd
    } else {
        ValidityPhase::Fresh
    }
}

/// Two thirds of a certificate's life are over then.
#[must_use]
pub fn renewal_due(certificate: &X509) -> Timestamp {
    certificate.not_before.after(certificate.not_after.since(certificate.not_before) / 3 * 2)
}

/// Checks a chain (the node's certificate first) against what is requested, its key and the CAs that may have signed it.
///
/// # Errors
/// The first flaw, in the order: key, kind, time, CA, usage, subject, names.
pub fn check(wanted: &Certificate, chain: &[X509], key: &PrivateKey, cas: &[X509], now: Timestamp) -> Result<(), Flaw> {
    let Some(leaf) = chain.first() else { return Err(Flaw::WrongKind("there is no certificate")) };
    if leaf.public_key != key.public_key() {
        return Err(Flaw::ForeignKey);
    }
    if leaf.is_ca {
        return Err(Flaw::WrongKind("it is a CA certificate, not a node's"));
    }
    chain.iter().try_for_each(|certificate| check_time(certificate, now))?;
    let ca = signer(chain, cas)?;
    check_ca(ca, now).map_err(|flaw| Flaw::UnusableCa(Box::new(flaw)))?;
    check_usage(chain, ca, Purpose::Client)?;
    if wanted.serves {
        check_usage(chain, ca, Purpose::Server)?;
    }
    check_subject(wanted, leaf)?;
    check_names(wanted, leaf)
}

/// Checks a CA's certificate: that it is one, and that it is its time.
///
/// # Errors
/// The first flaw.
pub fn check_ca(certificate: &X509, now: Timestamp) -> Result<(), Flaw> {
    check_kind_of_ca(certificate)?;
    check_time(certificate, now)
}

/// Which of these CAs signed a chain (the node's certificate first), whatever the time is, as a rotation asks. Names
/// do not tell: Magnum's three CAs have the same (magnum-node.md 4.1).
///
/// # Errors
/// None of them, or the signature is of a kind that is not supported.
pub fn signer<'a>(chain: &[X509], cas: &'a [X509]) -> Result<&'a X509, Flaw> {
    let mut flaw = None;
    for ca in cas {
        match verify(chain, ca, Purpose::Any) {
            Ok(()) => return Ok(ca),
            // Another name, another key, or a key of another kind.
            Err(
                webpki::Error::UnknownIssuer
                | webpki::Error::InvalidSignatureForPublicKey
                | webpki::Error::UnsupportedSignatureAlgorithmForPublicKeyContext(_),
            ) => {}
            Err(error) => flaw = Some(unverifiable(&error)),
        }
    }
    Err(flaw.unwrap_or_else(|| wrong_ca(chain, cas)))
}

/// Checks that a certificate is a CA's that may sign others (RFC 5280, 4.2.1.3, 4.2.1.9).
pub(super) fn check_kind_of_ca(certificate: &X509) -> Result<(), Flaw> {
    if !certificate.is_ca {
        return Err(Flaw::WrongKind("it is not a CA certificate: it lacks basicConstraints CA:TRUE"));
    }
    if certificate.key_usage.is_some_and(|usage| usage & KEY_CERT_SIGN == 0) {
        return Err(Flaw::WrongKind("it may not sign certificates: its keyUsage lacks keyCertSign"));
    }
    Ok(())
}

fn check_time(certificate: &X509, now: Timestamp) -> Result<(), Flaw> {
    if seconds(now) < seconds(certificate.not_before) {
        return Err(Flaw::NotYetValid(certificate.not_before));
    }
    if life(certificate, now) == ValidityPhase::Over {
        return Err(Flaw::Expired(certificate.not_after));
    }
    Ok(())
}

fn check_usage(chain: &[X509], ca: &X509, purpose: Purpose) -> Result<(), Flaw> {
    // TLS asks for that bit wherever there are any (RFC 8446, 4.4.2.2).
    let signs = chain.first().and_then(|leaf| leaf.key_usage).is_none_or(|usage| usage & DIGITAL_SIGNATURE != 0);
    match verify(chain, ca, purpose) {
        Ok(()) if signs => Ok(()),
        _ => Err(Flaw::WrongUsage(if purpose == Purpose::Server { "server" } else { "client" })),
    }
}

/// CN and every O. More organisations are all right, unless Kubernetes would see a group of its own in them.
fn check_subject(wanted: &Certificate, leaf: &X509) -> Result<(), Flaw> {
    let found = &leaf.subject;
    let reserved = |organisation: &&String| organisation.starts_with("system:");
    if found.common_name.as_deref() == Some(wanted.common_name.as_str())
        && wanted.organisations.iter().all(|organisation| found.organisations.contains(organisation))
        && found.organisations.iter().filter(reserved).all(|organisation| wanted.organisations.contains(organisation))
    {
        return Ok(());
    }
    let expected = Name { common_name: Some(wanted.common_name.clone()), organisations: wanted.organisations.clone() };
    Err(Flaw::WrongSubject { expected: expected.to_string(), found: found.to_string() })
}

fn check_names(wanted: &Certificate, leaf: &X509) -> Result<(), Flaw> {
    let der = CertificateDer::from(leaf.der.as_slice());
    let certificate = EndEntityCert::try_from(&der).map_err(|error| unverifiable(&error))?;
    for name in &wanted.names {
        // A wildcard is requested as it stands, and takes the place of the names that it fits.
        let fits = leaf.names.contains(name)
            || ServerName::try_from(name.as_str()).is_ok_and(|name| certificate.verify_is_valid_for_subject_name(&name).is_ok());
        if !fits {
            return Err(Flaw::MissingName(name.clone()));
        }
    }
    match wanted.addresses.iter().find(|address| !leaf.addresses.contains(address)) {
        Some(missing) => Err(Flaw::MissingName(missing.to_string())),
        None => Ok(()),
    }
}

/// Verifies a chain up to one CA, at a time when all of it was good.
fn verify(chain: &[X509], ca: &X509, purpose: Purpose) -> Result<(), webpki::Error> {
    let begin = chain.iter().map(|certificate| certificate.not_before).max().unwrap_or_default();
    let chain: Vec<_> = chain.iter().map(|certificate| CertificateDer::from(certificate.der.as_slice())).collect();
    let Some((leaf, between)) = chain.split_first() else { return Err(webpki::Error::UnknownIssuer) };
    let ca = CertificateDer::from(ca.der.as_slice());
    EndEntityCert::try_from(leaf)?
        .verify_for_usage(
            default_provider().signature_verification_algorithms.all,
            &[anchor_from_trusted_cert(&ca)?],
            between,
            UnixTime::since_unix_epoch(Duration::from_secs(seconds(begin))),
            purpose,
            None,
            None,
        )
        .map(drop)
}

fn unverifiable(error: &webpki::Error) -> Flaw {
    Flaw::Unverifiable(match error {
        webpki::Error::UnsupportedCriticalExtension => "it has an unknown critical extension".into(),
        webpki::Error::UnsupportedSignatureAlgorithmContext(_) => {
            "its signature does not use SHA-2 with RSA, or with ECDSA on P-256 or P-384".into()
        }
        webpki::Error::EndEntityUsedAsCa => "an intermediate certificate is not a CA certificate".into(),
        webpki::Error::PathLenConstraintViolated => "there are more intermediate CAs than its CA allows".into(),
        webpki::Error::NameConstraintViolation => "its CA's name constraints do not allow its names".into(),
        webpki::Error::UnsupportedCertVersion => "it is not an X.509 version 3 certificate".into(),
        // webpki's own word.
        other => other.to_string().into(),
    })
}

fn wrong_ca(chain: &[X509], cas: &[X509]) -> Flaw {
    // The last of the chain is the one that a CA should have signed.
    let last = chain.last();
    let namesake = last.is_some_and(|last| cas.iter().any(|ca| ca.subject_der == last.issuer_der));
    let issuer = last.map(|last| last.issuer.to_string()).unwrap_or_default();
    let shown: Vec<_> = cas.iter().map(|ca| format!("the CA {} (SHA-256 {:.16})", ca.subject, ca.fingerprint())).collect();
    Flaw::WrongCa {
        expected: if shown.is_empty() { "any known CA".into() } else { shown.join(" or ") },
        found: if namesake { format!("a different CA named {issuer}") } else { issuer },
    }
}

/// What a certificate is to be good for. One type for all, because webpki's code is there once for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    Any,
    Client,
    Server,
}

impl ExtendedKeyUsageValidator for Purpose {
    fn validate(&self, found: KeyPurposeIdIter<'_, '_>) -> Result<(), webpki::Error> {
        match self {
            Self::Any => Ok(()),
            Self::Client => KeyUsage::client_auth().validate(found),
            Self::Server => KeyUsage::server_auth().validate(found),
        }
    }
}

fn seconds(at: Timestamp) -> u64 {
    at.0 / 1000
}

#[cfg(test)]
mod tests {
    use rcgen::{
        BasicConstraints, CertificateParams, CustomExtension, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
        KeyUsagePurpose, SanType, date_time_ymd,
    };

    use super::*;
    use crate::certificates::ca::SigningCa;
    use crate::certificates::fixtures::{DAY, NOW, YEAR, rsa_pkcs8, wanted_certificate};

    type TestIssuer = Issuer<'static, KeyPair>;
    type Change = fn(&mut CertificateParams);

    /// Certificates as others make them: like Magnum's, without key identifiers, and all CAs of one name.
    fn params() -> CertificateParams {
        let mut params = CertificateParams::default();
        (params.not_before, params.not_after) = (date_time_ymd(2026, 1, 1), date_time_ymd(2031, 1, 1));
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, "cluster");
        params
    }

    fn params_of_ca() -> CertificateParams {
        let mut params = params();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        params
    }

    fn self_signed(params: CertificateParams, key: KeyPair) -> (X509, TestIssuer) {
        let certificate = X509::from_der(params.self_signed(&key).unwrap().der().to_vec()).unwrap();
        (certificate, Issuer::new(params, key))
    }

    fn ca_with(change: impl Fn(&mut CertificateParams)) -> (X509, TestIssuer) {
        let mut params = params_of_ca();
        change(&mut params);
        self_signed(params, KeyPair::generate().unwrap())
    }

    fn self_signed_ca() -> (X509, TestIssuer) {
        ca_with(|_| {})
    }

    fn leaf_with(issuer: &TestIssuer, key: &PrivateKey, change: impl Fn(&mut CertificateParams)) -> X509 {
        let mut params = params();
        params.distinguished_name.push(DnType::CommonName, "system:node:minion-0");
        params.distinguished_name.push(DnType::OrganizationName, "system:nodes");
        params.subject_alt_names =
            wanted_certificate().names.into_iter().map(|name| SanType::DnsName(name.try_into().unwrap())).collect();
        params.subject_alt_names.extend(wanted_certificate().addresses.into_iter().map(SanType::IpAddress));
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth];
        change(&mut params);
        let key = KeyPair::from_pem(key.to_pem()).unwrap();
        X509::from_der(params.signed_by(&key, issuer).unwrap().der().to_vec()).unwrap()
    }

    /// In the form that rcgen reads.
    fn new_key() -> PrivateKey {
        PrivateKey::from_pem(&KeyPair::generate().unwrap().serialize_pem()).unwrap()
    }

    #[test]
    fn each_flaw_has_its_word() {
        let (ca, issuer) = self_signed_ca();
        let key = new_key();
        let cases: [(&str, Change, Result<(), Flaw>); 19] = [
            ("as requested", |_| {}, Ok(())),
            ("more names", |p| p.subject_alt_names.push(SanType::DnsName("more".try_into().unwrap())), Ok(())),
            ("another case", |p| p.subject_alt_names[0] = SanType::DnsName("MINION-0".try_into().unwrap()), Ok(())),
            ("a wildcard", |p| p.subject_alt_names[1] = SanType::DnsName("*.example.com".try_into().unwrap()), Ok(())),
            ("one more group", |p| p.distinguished_name.push(DnType::CustomDnType(vec![2, 5, 4, 10]), "Example Ltd"), Ok(())),
            ("no usages at all", |p| (p.key_usages, p.extended_key_usages) = (Vec::new(), Vec::new()), Ok(())),
            ("expired", |p| p.not_after = date_time_ymd(2026, 3, 1), Err(Flaw::Expired(Timestamp(NOW.0 - 43_200_000)))),
            ("not yet", |p| p.not_before = date_time_ymd(2026, 3, 2), Err(Flaw::NotYetValid(Timestamp(NOW.0 + 43_200_000)))),
            (
                "a CA",
                |p| p.is_ca = IsCa::Ca(BasicConstraints::Unconstrained),
                Err(Flaw::WrongKind("it is a CA certificate, not a node's")),
            ),
            ("for clients only", |p| p.extended_key_usages.truncate(1), Err(Flaw::WrongUsage("server"))),
            (
                "for servers only",
                |p| p.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth],
                Err(Flaw::WrongUsage("client")),
            ),
            ("not for signatures", |p| p.key_usages = vec![KeyUsagePurpose::KeyEncipherment], Err(Flaw::WrongUsage("client"))),
            (
                "another user",
                |p| p.distinguished_name.push(DnType::CommonName, "admin"),
                Err(Flaw::WrongSubject {
                    expected: "CN=system:node:minion-0, O=system:nodes".into(),
                    found: "CN=admin, O=system:nodes".into(),
                }),
            ),
            (
                "another group",
                |p| p.distinguished_name.push(DnType::OrganizationName, "nodes"),
                Err(Flaw::WrongSubject {
                    expected: "CN=system:node:minion-0, O=system:nodes".into(),
                    found: "CN=system:node:minion-0, O=nodes".into(),
                }),
            ),
            (
                "a group of Kubernetes' own",
                |p| p.distinguished_name.push(DnType::CustomDnType(vec![2, 5, 4, 10]), "system:masters"),
                Err(Flaw::WrongSubject {
                    expected: "CN=system:node:minion-0, O=system:nodes".into(),
                    found: "CN=system:node:minion-0, O=system:nodes, O=system:masters".into(),
                }),
            ),
            ("no name", |p| drop(p.subject_alt_names.remove(1)), Err(Flaw::MissingName("minion-0.example.com".into()))),
            ("no address", |p| p.subject_alt_names.truncate(3), Err(Flaw::MissingName("2001:db8::5".into()))),
            ("no names at all", |p| p.subject_alt_names.clear(), Err(Flaw::MissingName("minion-0".into()))),
            (
                "unknown and critical",
                |p| {
                    let mut unknown = CustomExtension::from_oid_content(&[1, 2, 3], vec![5, 0]);
                    unknown.set_criticality(true);
                    p.custom_extensions.push(unknown);
                },
                Err(Flaw::Unverifiable("it has an unknown critical extension".into())),
            ),
        ];
        for (case, change, verdict) in cases {
            let leaf = leaf_with(&issuer, &key, change);
            assert_eq!(check(&wanted_certificate(), &[leaf], &key, std::slice::from_ref(&ca), NOW), verdict, "{case}");
        }
        let leaf = leaf_with(&issuer, &key, |_| {});
        assert_eq!(check(&wanted_certificate(), &[leaf], &new_key(), std::slice::from_ref(&ca), NOW), Err(Flaw::ForeignKey));
        assert_eq!(check(&wanted_certificate(), &[], &key, &[ca], NOW), Err(Flaw::WrongKind("there is no certificate")));
    }

    #[test]
    fn a_client_needs_no_names_and_no_usage_of_servers() {
        let (ca, issuer) = self_signed_ca();
        let key = new_key();
        let client = Certificate { names: Vec::new(), addresses: Vec::new(), serves: false, ..wanted_certificate() };
        let leaf = leaf_with(&issuer, &key, |p| {
            p.subject_alt_names.clear();
            p.extended_key_usages.truncate(1);
        });
        assert_eq!(check(&client, &[leaf], &key, &[ca], NOW), Ok(()));
    }

    #[test]
    fn of_several_cas_of_one_name_the_signer_is_found() {
        let (new, new_issuer) = self_signed_ca();
        // By a key of another kind, as Magnum's are.
        let (old, old_issuer) = self_signed(params_of_ca(), KeyPair::from_pem(&rsa_pkcs8()).unwrap());
        let key = new_key();
        let both = [new.clone(), old.clone()];
        for (issuer, right, wrong) in [(&old_issuer, &old, &new), (&new_issuer, &new, &old)] {
            let chain = [leaf_with(issuer, &key, |_| {})];
            assert_eq!(check(&wanted_certificate(), &chain, &key, &both, NOW), Ok(()));
            assert_eq!(signer(&chain, &both), Ok(right));
            let flaw = check(&wanted_certificate(), &chain, &key, std::slice::from_ref(wrong), NOW).unwrap_err();
            let fingerprint = wrong.fingerprint();
            let shown = format!(
                "it is not signed by the CA CN=cluster (SHA-256 {}), but by a different CA named CN=cluster",
                &fingerprint[..16]
            );
            assert_eq!(flaw.to_string(), shown);
        }
        let (other, _) = ca_with(|p| p.distinguished_name.push(DnType::CommonName, "other"));
        let flaw = signer(&[leaf_with(&old_issuer, &key, |_| {})], &[other]).unwrap_err();
        assert!(flaw.to_string().ends_with("but by CN=cluster"), "{flaw}");
    }

    #[test]
    fn an_intermediate_ca_is_part_of_the_chain() {
        let (ca, issuer) = self_signed_ca();
        let key = new_key();
        for (constraint, verdict) in [
            (IsCa::Ca(BasicConstraints::Constrained(0)), Ok(())),
            (IsCa::ExplicitNoCa, Err(Flaw::Unverifiable("an intermediate certificate is not a CA certificate".into()))),
        ] {
            let mut params = params();
            params.distinguished_name.push(DnType::CommonName, "between");
            params.is_ca = constraint;
            let between_key = KeyPair::generate().unwrap();
            let between = X509::from_der(params.signed_by(&between_key, &issuer).unwrap().der().to_vec()).unwrap();
            let leaf = leaf_with(&Issuer::new(params, between_key), &key, |_| {});
            let cas = [ca.clone()];
            assert_eq!(check(&wanted_certificate(), &[leaf.clone(), between], &key, &cas, NOW), verdict);
            assert!(matches!(check(&wanted_certificate(), &[leaf], &key, &cas, NOW), Err(Flaw::WrongCa { .. })));
        }
    }

    #[test]
    fn a_ca_must_be_one_and_alive() {
        let key = new_key();
        let expired = Flaw::Expired(Timestamp(NOW.0 - 43_200_000));
        let cases: [(Change, Flaw); 3] = [
            (|p| p.not_after = date_time_ymd(2026, 3, 1), expired),
            (|p| p.is_ca = IsCa::NoCa, Flaw::WrongKind("it is not a CA certificate: it lacks basicConstraints CA:TRUE")),
            (
                |p| p.key_usages = vec![KeyUsagePurpose::DigitalSignature],
                Flaw::WrongKind("it may not sign certificates: its keyUsage lacks keyCertSign"),
            ),
        ];
        for (change, flaw) in cases {
            let (ca, issuer) = ca_with(change);
            assert_eq!(check_ca(&ca, NOW), Err(flaw.clone()));
            let leaf = leaf_with(&issuer, &key, |_| {});
            assert_eq!(signer(std::slice::from_ref(&leaf), std::slice::from_ref(&ca)), Ok(&ca));
            assert_eq!(check(&wanted_certificate(), &[leaf], &key, &[ca], NOW), Err(Flaw::UnusableCa(Box::new(flaw))));
        }
        assert_eq!(check_ca(&self_signed_ca().0, NOW), Ok(()));
    }

    #[test]
    fn two_thirds_of_a_life_are_reported() {
        let ca = SigningCa::create("cluster", NOW.after(DAY), 3 * YEAR).unwrap().certificate;
        assert_eq!(renewal_due(&ca), NOW.after(2 * YEAR));
        for (at, stage) in [
            (Timestamp(0), ValidityPhase::Fresh),
            (Timestamp(NOW.after(2 * YEAR).0 - 1), ValidityPhase::Fresh),
            (NOW.after(2 * YEAR), ValidityPhase::NearEnd),
            (NOW.after(3 * YEAR), ValidityPhase::NearEnd),
            (NOW.after(3 * YEAR + Duration::from_secs(1)), ValidityPhase::Over),
        ] {
            assert_eq!(life(&ca, at), stage);
        }
    }
}
