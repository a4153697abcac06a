//! A CA whose key is at hand: that of the parameters, or a new one for an operator who has none.

use std::time::Duration;

use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};

use super::der::{
    BOOLEAN, GENERALIZED_TIME, INTEGER, OCTET_STRING, SEQUENCE, UTC_TIME, context, context_primitive, element, oid,
};
use super::judge;
use super::key::PrivateKey;
use super::request::{extension, extensions, key_usage, subject};
use super::x509::{CRL_SIGN, KEY_CERT_SIGN, X509};
use crate::clock::Timestamp;
use crate::desired::Certificate;
use crate::error::{Error, Result};

/// A life begins so long before now, as at Magnum: clocks of other nodes may be behind.
const BEFORE: Duration = Duration::from_hours(24);

/// A CA that signs.
#[derive(Clone, Debug)]
pub struct SigningCa {
    /// Its certificate.
    pub certificate: X509,
    /// Its key.
    pub key: PrivateKey,
}

impl SigningCa {
    /// Puts certificate and key together.
    ///
    /// # Errors
    /// They do not belong together, or the certificate is no CA's.
    pub fn new(certificate: X509, key: PrivateKey) -> Result<Self> {
        if certificate.public_key != key.public_key() {
            return Err(Error::permanent(format!("the key does not belong to the CA {}", certificate.subject))
                .remedy("provide the certificate and the key of the same CA"));
        }
        judge::check_kind_of_ca(&certificate)
            .map_err(|flaw| Error::permanent(flaw).context(format!("checking the CA {}", certificate.subject)))?;
        Ok(Self { certificate, key })
    }

    /// A new CA (ECDSA P-256, CA:TRUE, keyCertSign and cRLSign), good from `now` less a day on for `life`.
    ///
    /// # Errors
    /// If the kernel provides no random numbers; a name that no certificate can carry.
    pub fn create(common_name: &str, now: Timestamp, life: Duration) -> Result<Self> {
        Self::self_signed(common_name, PrivateKey::generate()?, now, life)
    }

    pub(super) fn self_signed(common_name: &str, key: PrivateKey, now: Timestamp, life: Duration) -> Result<Self> {
        let subject = subject(common_name, &[])?;
        let not_before = before(now);
        let constraints = element(SEQUENCE, &[&element(BOOLEAN, &[&[0xff]])]);
        let extensions = [
            extension(oid::BASIC_CONSTRAINTS, true, &constraints),
            key_usage(KEY_CERT_SIGN | CRL_SIGN, true),
            extension(oid::SUBJECT_KEY_IDENTIFIER, false, &element(OCTET_STRING, &[&key_identifier(&key)])),
        ];
        let life = (not_before, not_before.after(life));
        let der = certificate(&key, &subject, life, &subject, &key, &extensions.concat())?;
        Ok(Self { certificate: X509::from_der(der)?, key })
    }

    /// Signs what is requested for a public key; it never outlives the CA. PEM.
    ///
    /// # Errors
    /// A name that no certificate can carry; the CA's life is over.
    pub fn sign(&self, wanted: &Certificate, key: &PrivateKey, now: Timestamp, life: Duration) -> Result<String> {
        let ca = &self.certificate;
        judge::check_ca(ca, now).map_err(|flaw| Error::permanent(flaw).context(format!("signing with the CA {}", ca.subject)))?;
        let identifier = ca.key_identifier.clone().unwrap_or_else(|| key_identifier(&self.key));
        let extensions = [
            extensions(wanted, key, true)?,
            extension(oid::SUBJECT_KEY_IDENTIFIER, false, &element(OCTET_STRING, &[&key_identifier(key)])),
            extension(
                oid::AUTHORITY_KEY_IDENTIFIER,
                false,
                &element(SEQUENCE, &[&element(context_primitive(0), &[&identifier])]),
            ),
        ];
        let life = (before(now).max(ca.not_before), now.after(life).min(ca.not_after));
        let subject = subject(&wanted.common_name, &wanted.organisations)?;
        let der = certificate(&self.key, &ca.subject_der, life, &subject, key, &extensions.concat())?;
        Ok(X509::from_der(der)?.to_pem())
    }
}

/// A certificate in DER (RFC 5280, 4.1).
fn certificate(
    signer: &PrivateKey,
    issuer: &[u8],
    (not_before, not_after): (Timestamp, Timestamp),
    subject: &[u8],
    key: &PrivateKey,
    extensions: &[u8],
) -> Result<Vec<u8>> {
    let extensions = element(SEQUENCE, &[extensions]);
    let to_be_signed = element(
        SEQUENCE,
        &[
            &element(context(0), &[&element(INTEGER, &[&[2]])]),
            &element(INTEGER, &[&serial_number()?]),
            &signer.signature_algorithm(),
            issuer,
            &element(SEQUENCE, &[&time(not_before), &time(not_after)]),
            subject,
            key.public_key(),
            &element(context(3), &[&extensions]),
        ],
    );
    signer.sign(&to_be_signed)
}

/// 127 random bits, never negative and never with a zero in front.
fn serial_number() -> Result<[u8; 16]> {
    let mut serial = [0; 16];
    SystemRandom::new()
        .fill(&mut serial)
        .map_err(|_| Error::transient("the kernel provides no random numbers").context("creating a certificate"))?;
    if let Some(first) = serial.first_mut() {
        *first = *first & 0x7f | 0x40;
    }
    Ok(serial)
}

/// 160 bits of the public key's SHA-256; RFC 5280, 4.2.1.2 asks for no more than that it is the key's own.
fn key_identifier(key: &PrivateKey) -> Vec<u8> {
    digest(&SHA256, key.public_key()).as_ref().iter().take(20).copied().collect()
}

fn before(now: Timestamp) -> Timestamp {
    Timestamp(now.0.saturating_sub(u64::try_from(BEFORE.as_millis()).unwrap_or(0)))
}

/// Two digits of the year up to 2049, four from then on, and 9999 at most (RFC 5280, 4.1.2.5).
fn time(at: Timestamp) -> Vec<u8> {
    let digits: String = at.rfc3339().chars().filter(|c| c.is_ascii_digit() || *c == 'Z').collect();
    match digits.get(2..) {
        Some(short) if *digits < *"2050" => element(UTC_TIME, &[short.as_bytes()]),
        _ => element(GENERALIZED_TIME, &[digits.as_bytes()]),
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, DnType, DnValue, IsCa, KeyUsagePurpose};

    use super::*;
    use crate::certificates::fixtures::{DAY, NOW, YEAR, rsa_key, wanted_certificate};
    use crate::certificates::judge::check;

    fn signed(ca: &SigningCa, key: &PrivateKey, life: Duration) -> Result<X509> {
        let pem = ca.sign(&wanted_certificate(), key, NOW, life)?;
        Ok(X509::all_from_pem(&pem)?.remove(0))
    }

    #[test]
    fn what_is_signed_is_right_for_every_kind_of_key() {
        let p384 = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384).unwrap().serialize_pem();
        let keys = [PrivateKey::generate().unwrap(), PrivateKey::from_pem(&p384).unwrap(), rsa_key()];
        for ca in &keys {
            let ca = SigningCa::self_signed("cluster", ca.clone(), NOW, 5 * YEAR).unwrap();
            assert_eq!(judge::check_ca(&ca.certificate, NOW), Ok(()));
            for key in &keys {
                let leaf = signed(&ca, key, YEAR).unwrap();
                assert_eq!(check(&wanted_certificate(), &[leaf], key, std::slice::from_ref(&ca.certificate), NOW), Ok(()));
            }
        }
    }

    #[test]
    fn a_life_ends_with_the_ca_s() {
        let ca = SigningCa::create("cluster", NOW, 2 * YEAR).unwrap();
        let key = PrivateKey::generate().unwrap();
        let begin = Timestamp(NOW.0 - 86_400_000);
        assert_eq!((ca.certificate.not_before, ca.certificate.not_after), (begin, begin.after(2 * YEAR)));
        for (life, end) in [(YEAR, NOW.after(YEAR)), (9 * YEAR, begin.after(2 * YEAR))] {
            let leaf = signed(&ca, &key, life).unwrap();
            assert_eq!((leaf.not_before, leaf.not_after), (begin, end));
        }
        let over = SigningCa::create("cluster", NOW, DAY / 2).unwrap();
        assert!(signed(&over, &key, YEAR).unwrap_err().cause().contains("expired"));
    }

    #[test]
    fn serial_numbers_differ() {
        let ca = SigningCa::create("cluster", NOW, YEAR).unwrap();
        let key = PrivateKey::generate().unwrap();
        assert_ne!(signed(&ca, &key, DAY).unwrap(), signed(&ca, &key, DAY).unwrap());
    }

    #[test]
    fn a_long_life_is_reported_with_four_digits() {
        for life in [20 * YEAR, 30 * YEAR, 9000 * YEAR] {
            let ca = SigningCa::create("cluster", NOW, life).unwrap();
            let end = ca.certificate.not_before.after(life).min(Timestamp::LAST);
            assert_eq!(ca.certificate.not_after, end);
            let (_, read) = x509_parser::parse_x509_certificate(&ca.certificate.der).unwrap();
            assert_eq!(read.validity().not_after.timestamp().cast_unsigned(), end.0 / 1000);
        }
    }

    /// Names whose parts, kinds of text and order no writer of ours would choose.
    #[test]
    fn the_issuer_is_the_ca_s_subject_byte_for_byte() {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CountryName, DnValue::PrintableString("DE".try_into().unwrap()));
        params
            .distinguished_name
            .push(DnType::from_oid(&[0, 9, 2342, 19_200_300, 100, 1, 25]), DnValue::Ia5String("example".try_into().unwrap()));
        params.distinguished_name.push(DnType::CommonName, DnValue::BmpString("Büro".try_into().unwrap()));
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = X509::from_der(params.self_signed(&key).unwrap().der().to_vec()).unwrap();
        assert_eq!(certificate.subject.common_name.as_deref(), Some("Büro"));
        let ca = SigningCa::new(certificate, PrivateKey::from_pem(&key.serialize_pem()).unwrap()).unwrap();
        let key = PrivateKey::generate().unwrap();
        let leaf = signed(&ca, &key, YEAR).unwrap();
        assert_eq!(leaf.issuer_der, ca.certificate.subject_der);
        assert_eq!(check(&wanted_certificate(), &[leaf], &key, &[ca.certificate], NOW), Ok(()));
    }

    #[test]
    fn certificate_and_key_of_different_cas_are_refused() {
        let (one, other) = (SigningCa::create("a", NOW, YEAR).unwrap(), SigningCa::create("a", NOW, YEAR).unwrap());
        let leaf = signed(&one, &other.key, YEAR).unwrap();
        assert!(SigningCa::new(one.certificate.clone(), one.key).is_ok());
        assert!(SigningCa::new(one.certificate, other.key.clone()).unwrap_err().cause().contains("does not belong to the CA"));
        assert!(SigningCa::new(leaf, other.key).unwrap_err().cause().contains("CA:TRUE"));
    }
}
