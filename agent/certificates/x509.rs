//! Certificates as they are read.

use std::fmt;
use std::net::IpAddr;

use rustls::pki_types::pem::SectionKind;
use x509_parser::asn1_rs::{Any, FromDer, GeneralizedTime, Tag, UtcTime};
use x509_parser::certificate::X509Certificate;
use x509_parser::error::X509Error;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::nom::Offset as _;
use x509_parser::oid_registry::{OID_X509_COMMON_NAME, OID_X509_EXT_SUBJECT_KEY_IDENTIFIER, OID_X509_ORGANIZATION_NAME};
use x509_parser::parse_x509_certificate;
use x509_parser::x509::{SubjectPublicKeyInfo, X509Name};

use super::pem;
use crate::clock::Timestamp;
use crate::digest;
use crate::error::{Error, Result};

/// keyUsage: may sign what it says, as TLS does (RFC 5280, 4.2.1.3).
pub(super) const DIGITAL_SIGNATURE: u8 = 0x80;
/// keyUsage: may encipher keys, as RSA does in TLS 1.2.
pub(super) const KEY_ENCIPHERMENT: u8 = 0x20;
/// keyUsage: may sign certificates.
pub(super) const KEY_CERT_SIGN: u8 = 0x04;
/// keyUsage: may sign lists of what is revoked.
pub(super) const CRL_SIGN: u8 = 0x02;

/// A certificate, read as far as this agent looks at it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct X509 {
    /// The certificate itself.
    pub der: Vec<u8>,
    /// CN and O of the subject.
    pub subject: Name,
    /// CN and O of the issuer's subject.
    pub issuer: Name,
    /// DNS names of subjectAltName.
    pub names: Vec<String>,
    /// Addresses of subjectAltName.
    pub addresses: Vec<IpAddr>,
    /// Begin of its life.
    pub not_before: Timestamp,
    /// End of its life.
    pub not_after: Timestamp,
    /// Whether it is a CA's (basicConstraints CA:TRUE).
    pub is_ca: bool,
    /// SubjectPublicKeyInfo in DER.
    pub public_key: Vec<u8>,
    /// The subject in DER: what those that it signs name as their issuer.
    pub(super) subject_der: Vec<u8>,
    /// The issuer's subject in DER.
    pub(super) issuer_der: Vec<u8>,
    /// subjectKeyIdentifier.
    pub(super) key_identifier: Option<Vec<u8>>,
    /// keyUsage: its first eight bits.
    pub(super) key_usage: Option<u8>,
}

/// What Kubernetes looks at in a subject: user and groups.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Name {
    /// CN.
    pub common_name: Option<String>,
    /// Every O.
    pub organisations: Vec<String>,
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CN={}", self.common_name.as_deref().unwrap_or_default())?;
        self.organisations.iter().try_for_each(|organisation| write!(f, ", O={organisation}"))
    }
}

impl X509 {
    /// Reads every certificate of a PEM text, in its order; other things than certificates in it are an error.
    ///
    /// # Errors
    /// Not PEM, cut off, no certificate at all, or not X.509: in an operator's words.
    pub fn all_from_pem(text: &str) -> Result<Vec<Self>> {
        let parts = pem::read(text)?;
        if parts.is_empty() || parts.len() != pem::count(text) || parts.iter().any(|(kind, _)| *kind != SectionKind::Certificate)
        {
            let cause = if pem::count(text) == 0 { "it contains no certificate" } else { "it contains more than certificates" };
            return Err(Error::permanent(cause)
                .rule("PEM: RFC 7468, 5")
                .remedy("provide one or more PEM blocks, each from BEGIN CERTIFICATE to END CERTIFICATE"));
        }
        parts.into_iter().map(|(_, der)| Self::from_der(der)).collect()
    }

    /// Reads a certificate in DER.
    ///
    /// # Errors
    /// If it is none.
    pub(super) fn from_der(der: Vec<u8>) -> Result<Self> {
        let parsed = parse_x509_certificate(&der).ok().filter(|(rest, _)| rest.is_empty());
        let read = parsed.and_then(|(_, certificate)| read(&certificate));
        read.map(|certificate| Self { der, ..certificate })
            .ok_or_else(|| Error::permanent("it is damaged: it is not a valid X.509 certificate").rule("RFC 5280, 4.1"))
    }

    /// As PEM, with a line end after it.
    #[must_use]
    pub fn to_pem(&self) -> String {
        pem::write("CERTIFICATE", &self.der)
    }

    /// Whether who trusts the other certificate's CA may trust what this one's signs, too: it has the same key, or was issued by it.
    /// Issuers are recognized by their names here, which errs on the side of yes.
    #[must_use]
    pub fn is_trusted_with(&self, other: &Self) -> bool {
        self.public_key == other.public_key || self.issuer_der == other.subject_der && !self.is_self_signed()
    }

    /// Whether the other one's key has signed it; not, where that is of an algorithm that cannot be verified here.
    #[must_use]
    pub fn is_signed_by(&self, other: &Self) -> bool {
        self.issuer_der == other.subject_der && matches!(self.verified(&other.public_key), Some(Ok(())))
    }

    /// Whether nobody above it vouches for it: its own key has signed it; not, where that is of an algorithm that cannot be verified here.
    #[must_use]
    pub fn is_self_signed(&self) -> bool {
        self.is_signed_by(self)
    }

    fn verified(&self, public_key: &[u8]) -> Option<std::result::Result<(), X509Error>> {
        let (_, certificate) = parse_x509_certificate(&self.der).ok()?;
        let (_, public_key) = SubjectPublicKeyInfo::from_der(public_key).ok()?;
        Some(certificate.verify_signature(Some(&public_key)))
    }

    /// SHA-256 of the whole certificate, in hexadecimal digits.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        digest::hex(&self.der)
    }
}

/// Everything but the certificate itself. An extension that stands twice makes it invalid (RFC 5280, 4.2).
fn read(certificate: &X509Certificate<'_>) -> Option<X509> {
    let (not_before, not_after) = validity(certificate)?;
    let key_identifier = certificate.tbs_certificate.get_extension_unique(&OID_X509_EXT_SUBJECT_KEY_IDENTIFIER).ok()?;
    let mut read = X509 {
        der: Vec::new(),
        subject: name(certificate.subject()),
        issuer: name(certificate.issuer()),
        names: Vec::new(),
        addresses: Vec::new(),
        not_before,
        not_after,
        is_ca: certificate.basic_constraints().ok()?.is_some_and(|constraints| constraints.value.ca),
        public_key: certificate.public_key().raw.to_vec(),
        subject_der: certificate.subject().as_raw().to_vec(),
        issuer_der: certificate.issuer().as_raw().to_vec(),
        key_identifier: key_identifier.and_then(|extension| match extension.parsed_extension() {
            ParsedExtension::SubjectKeyIdentifier(identifier) => Some(identifier.0.to_vec()),
            _ => None,
        }),
        // The crate numbers the bits from the lowest one on, and X.509 from the highest.
        key_usage: certificate.key_usage().ok()?.map(|usage| usage.value.flags.to_le_bytes()[0].reverse_bits()),
    };
    for name in certificate.subject_alternative_name().ok()?.iter().flat_map(|names| &names.value.general_names) {
        match name {
            GeneralName::DNSName(name) => read.names.push((*name).to_owned()),
            GeneralName::IPAddress(bytes) => read.addresses.push(address(bytes)?),
            _ => {}
        }
    }
    Some(read)
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    if let Ok(bytes) = <[u8; 4]>::try_from(bytes) {
        return Some(bytes.into());
    }
    <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from)
}

fn name(name: &X509Name<'_>) -> Name {
    let texts = |id| name.iter_by_oid(id).map(|attribute| text(attribute.attr_value()));
    // Of several CN the last, as Go has it, by which Kubernetes knows its users.
    Name { common_name: texts(&OID_X509_COMMON_NAME).last(), organisations: texts(&OID_X509_ORGANIZATION_NAME).collect() }
}

/// What cannot be read as text still differs from all that is requested.
fn text(value: &Any<'_>) -> String {
    if value.tag() == Tag::BmpString {
        let units = value.data.chunks_exact(2).map(|pair| pair.iter().fold(0, |unit, byte| unit << 8 | u16::from(*byte)));
        return char::decode_utf16(units).map(|unit| unit.unwrap_or(char::REPLACEMENT_CHARACTER)).collect();
    }
    String::from_utf8_lossy(value.data).into_owned()
}

/// Begin and end. They are taken from the bytes behind the issuer, because the crate reads every form of time that ASN.1 has.
fn validity(certificate: &X509Certificate<'_>) -> Option<(Timestamp, Timestamp)> {
    let (der, issuer) = (certificate.as_raw(), certificate.issuer().as_raw());
    let (_, validity) = Any::from_der(der.get(der.offset(issuer) + issuer.len()..)?).ok()?;
    let (rest, begin) = Any::from_der(validity.data).ok()?;
    let (_, end) = Any::from_der(rest).ok()?;
    Some((time(&begin)?, time(&end)?))
}

/// `YYMMDDhhmmssZ` or `YYYYMMDDhhmmssZ` and nothing else (RFC 5280, 4.1.2.5). What was before 1970 counts as 1970.
fn time(value: &Any<'_>) -> Option<Timestamp> {
    let at = match (value.tag(), value.data.len()) {
        (Tag::UtcTime, 13) => UtcTime::try_from(value).ok()?.utc_adjusted_datetime(),
        (Tag::GeneralizedTime, 15) => GeneralizedTime::try_from(value).ok()?.utc_datetime(),
        _ => return None,
    };
    Some(Timestamp(u64::try_from(at.ok()?.unix_timestamp()).unwrap_or(0) * 1000))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;
    use proptest::sample::Index;
    use rcgen::{CertificateParams, DnType, KeyPair};

    use super::*;
    use crate::certificates::ca::SigningCa;
    use crate::certificates::der::{GENERALIZED_TIME, SEQUENCE, UTC_TIME, element};
    use crate::certificates::fixtures::{DAY, NOW, YEAR, wanted_certificate};
    use crate::certificates::key::PrivateKey;

    fn pair() -> (X509, X509) {
        let ca = SigningCa::create("cluster", NOW, 30 * YEAR).unwrap();
        let leaf = ca.sign(&wanted_certificate(), &PrivateKey::generate().unwrap(), NOW, YEAR).unwrap();
        (ca.certificate, X509::all_from_pem(&leaf).unwrap().remove(0))
    }

    #[test]
    fn every_field_is_read() {
        let (ca, leaf) = pair();
        assert_eq!((leaf.names.clone(), leaf.addresses.clone()), (wanted_certificate().names, wanted_certificate().addresses));
        assert_eq!(
            (leaf.subject.to_string(), leaf.issuer.to_string()),
            ("CN=system:node:minion-0, O=system:nodes".into(), "CN=cluster".into())
        );
        assert_eq!((leaf.not_before.after(DAY), leaf.not_after), (NOW, NOW.after(YEAR)));
        assert_eq!((ca.is_ca, leaf.is_ca), (true, false));
        assert_eq!((ca.key_usage, leaf.key_usage), (Some(KEY_CERT_SIGN | CRL_SIGN), Some(DIGITAL_SIGNATURE)));
        assert!(ca.key_identifier.is_some() && ca.key_identifier != leaf.key_identifier);
    }

    /// What rcgen writes, we read as x509-parser does.
    #[test]
    fn certificates_of_others_are_read_as_others_read_them() {
        let mut params = CertificateParams::new(["a.example".into(), "192.0.2.1".into()]).unwrap();
        params.distinguished_name.push(DnType::OrganizationName, "one");
        params.distinguished_name.push(DnType::CustomDnType(vec![2, 5, 4, 10]), "two");
        params.not_before = rcgen::date_time_ymd(1969, 1, 1);
        let der = params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().to_vec();
        let ours = X509::from_der(der.clone()).unwrap();
        let (_, theirs) = parse_x509_certificate(&der).unwrap();
        let texts = |names: Vec<&x509_parser::x509::AttributeTypeAndValue<'_>>| -> BTreeSet<String> {
            names.iter().map(|name| name.as_str().unwrap().to_owned()).collect()
        };
        assert_eq!(texts(theirs.subject().iter_organization().collect()), ours.subject.organisations.iter().cloned().collect());
        assert_eq!(texts(theirs.subject().iter_common_name().collect()), ours.subject.common_name.into_iter().collect());
        assert_eq!((theirs.subject().as_raw(), theirs.public_key().raw), (&*ours.subject_der, &*ours.public_key));
        assert_eq!((ours.not_before.0, theirs.validity().not_after.timestamp()), (0, (ours.not_after.0 / 1000).cast_signed()));
        assert_eq!((ours.names, ours.addresses), (vec!["a.example".into()], vec!["192.0.2.1".parse().unwrap()]));
    }

    #[test]
    fn what_is_not_only_certificates_is_refused() {
        let (ca, leaf) = pair();
        let both = leaf.to_pem() + "\n  in between\r\n" + &ca.to_pem().replace('\n', "\r\n");
        assert_eq!(X509::all_from_pem(&both), Ok(vec![leaf.clone(), ca]));
        let key = PrivateKey::generate().unwrap();
        for (text, cause) in [
            (String::new(), "no certificate"),
            ("ca.crt".into(), "no certificate"),
            (leaf.to_pem() + key.to_pem(), "more than certificates"),
            (leaf.to_pem() + &pem::write("TRUSTED CERTIFICATE", &leaf.der), "more than certificates"),
            (leaf.to_pem()[..300].into(), "truncated"),
            (leaf.to_pem().replace("MII", "M*I"), "not valid base64"),
            (pem::write("CERTIFICATE", &leaf.der[..leaf.der.len() - 1]), "not a valid X.509"),
            (pem::write("CERTIFICATE", &[&*leaf.der, &[5, 0]].concat()), "not a valid X.509"),
            (pem::write("CERTIFICATE", &leaf.public_key), "not a valid X.509"),
        ] {
            let error = X509::all_from_pem(&text).unwrap_err();
            assert!(error.cause().contains(cause) && error.broken_rule().is_some(), "{error:?}");
        }
    }

    #[test]
    fn times_are_read_strictly() {
        for (tag, text, read) in [
            (UTC_TIME, "260301120000Z", Some("2026-03-01T12:00:00Z")),
            (UTC_TIME, "491231235959Z", Some("2049-12-31T23:59:59Z")),
            (UTC_TIME, "500101000000Z", Some("1970-01-01T00:00:00Z")),
            (UTC_TIME, "991231235959Z", Some("1999-12-31T23:59:59Z")),
            (GENERALIZED_TIME, "99991231235959Z", Some("9999-12-31T23:59:59Z")),
            (GENERALIZED_TIME, "260301120000Z", None),
            (UTC_TIME, "20260301120000Z", None),
            (UTC_TIME, "2603011200Z", None),
            (UTC_TIME, "260301120000+0100", None),
            (UTC_TIME, "26030112000+Z", None),
            (UTC_TIME, "261301120000Z", None),
            (SEQUENCE, "260301120000Z", None),
        ] {
            let der = element(tag, &[text.as_bytes()]);
            let found = time(&Any::from_der(&der).unwrap().1).map(Timestamp::rfc3339);
            assert_eq!(found.as_deref(), read, "{text}");
        }
    }

    proptest! {
        #[test]
        fn damage_is_refused_or_read_but_never_a_panic(place: Index, byte: u8, cut: Index) {
            let mut der = pair().1.der;
            *place.get_mut(&mut der) = byte;
            let _read = X509::from_der(der.clone());
            prop_assert!(X509::from_der(der[..cut.index(der.len())].to_vec()).is_err());
        }

        #[test]
        fn any_bytes_are_no_panic(bytes: Vec<u8>, text: String) {
            let _read = (X509::from_der(bytes), X509::all_from_pem(&text), PrivateKey::from_pem(&text));
        }
    }
}
