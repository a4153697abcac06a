//! Certificates as they are read.

use std::fmt;
use std::net::IpAddr;

use rustls::pki_types::pem::SectionKind;

use super::der::{
    BIT_STRING, BMP_STRING, BOOLEAN, Element, GENERALIZED_TIME, INTEGER, OBJECT_IDENTIFIER, OCTET_STRING, Reader, SEQUENCE, SET,
    UTC_TIME, context, context_primitive, oid,
};
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
    /// Whether it is an authority's (basicConstraints CA:TRUE).
    pub is_authority: bool,
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
        read(&der)
            .map(|certificate| Self { der, ..certificate })
            .ok_or_else(|| Error::permanent("it is damaged: it is not a valid X.509 certificate").rule("RFC 5280, 4.1"))
    }

    /// As PEM, with a line end after it.
    #[must_use]
    pub fn to_pem(&self) -> String {
        pem::write("CERTIFICATE", &self.der)
    }

    /// SHA-256 of the whole certificate, in hexadecimal digits.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        digest::hex(&self.der)
    }
}

/// Everything but the certificate itself.
fn read(der: &[u8]) -> Option<X509> {
    let mut outer = Reader::new(der);
    let mut certificate = outer.enter(SEQUENCE)?;
    let mut signed = certificate.enter(SEQUENCE)?;
    certificate.take(SEQUENCE)?;
    certificate.take(BIT_STRING)?;
    if !outer.is_empty() || !certificate.is_empty() {
        return None;
    }
    // The version; the first has none.
    signed.take(context(0));
    signed.take(INTEGER)?;
    signed.take(SEQUENCE)?;
    let issuer = signed.next()?;
    let mut validity = signed.enter(SEQUENCE)?;
    let subject = signed.next()?;
    let public_key = signed.next()?;
    let mut read = X509 {
        der: Vec::new(),
        subject: name(subject)?,
        issuer: name(issuer)?,
        names: Vec::new(),
        addresses: Vec::new(),
        not_before: time(validity.next()?)?,
        not_after: time(validity.next()?)?,
        is_authority: false,
        public_key: public_key.whole.to_vec(),
        subject_der: subject.whole.to_vec(),
        issuer_der: issuer.whole.to_vec(),
        key_identifier: None,
        key_usage: None,
    };
    // Unique ids of X.509 version 2 may stand before them.
    while !signed.is_empty() {
        let field = signed.next()?;
        if field.tag == context(3) {
            for extension in Reader::new(field.content).enter(SEQUENCE)?.all()? {
                read.extend(Reader::new(extension.content))?;
            }
        }
    }
    Some(read)
}

impl X509 {
    /// Takes over what an extension says (RFC 5280, 4.2.1).
    fn extend(&mut self, mut extension: Reader<'_>) -> Option<()> {
        let id = extension.take(OBJECT_IDENTIFIER)?;
        extension.take(BOOLEAN);
        let mut value = Reader::new(extension.take(OCTET_STRING)?);
        match id {
            oid::BASIC_CONSTRAINTS => {
                self.is_authority = value.enter(SEQUENCE)?.take(BOOLEAN).is_some_and(|flag| flag != [0]);
            }
            oid::KEY_USAGE => self.key_usage = Some(value.take(BIT_STRING)?.get(1).copied().unwrap_or(0)),
            oid::SUBJECT_KEY_IDENTIFIER => self.key_identifier = Some(value.take(OCTET_STRING)?.to_vec()),
            oid::SUBJECT_ALT_NAME => {
                for name in value.enter(SEQUENCE)?.all()? {
                    if name.tag == context_primitive(2) {
                        self.names.push(String::from_utf8_lossy(name.content).into_owned());
                    } else if name.tag == context_primitive(7) {
                        self.addresses.push(address(name.content)?);
                    }
                }
            }
            _ => {}
        }
        Some(())
    }
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    if let Ok(bytes) = <[u8; 4]>::try_from(bytes) {
        return Some(bytes.into());
    }
    <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from)
}

fn name(name: Element<'_>) -> Option<Name> {
    let mut read = Name::default();
    for set in Reader::new(name.content).all()? {
        if name.tag != SEQUENCE || set.tag != SET {
            return None;
        }
        for attribute in Reader::new(set.content).all()? {
            let mut attribute = Reader::new(attribute.content);
            let id = attribute.take(OBJECT_IDENTIFIER)?;
            let value = attribute.next()?;
            match id {
                // Of several the last, as Go has it, by which Kubernetes knows its users.
                oid::COMMON_NAME => read.common_name = Some(text(value)),
                oid::ORGANISATION => read.organisations.push(text(value)),
                _ => {}
            }
        }
    }
    Some(read)
}

/// What cannot be read as text still differs from all that is wished.
fn text(value: Element<'_>) -> String {
    if value.tag == BMP_STRING {
        let units = value.content.chunks_exact(2).map(|pair| pair.iter().fold(0, |unit, byte| unit << 8 | u16::from(*byte)));
        return char::decode_utf16(units).map(|unit| unit.unwrap_or(char::REPLACEMENT_CHARACTER)).collect();
    }
    String::from_utf8_lossy(value.content).into_owned()
}

/// `YYMMDDhhmmssZ` or `YYYYMMDDhhmmssZ` (RFC 5280, 4.1.2.5). What was before 1970 is told as 1970.
fn time(value: Element<'_>) -> Option<Timestamp> {
    let digits = str::from_utf8(value.content).ok()?.strip_suffix('Z')?;
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let century = match value.tag {
        UTC_TIME if digits < "5" => "20",
        UTC_TIME => "19",
        GENERALIZED_TIME => "",
        _ => return None,
    };
    let mut text = format!("{century}{digits}Z");
    if text.len() != 15 {
        return None;
    }
    if *text < *"1970" {
        return Some(Timestamp::default());
    }
    for (place, separator) in [(4, '-'), (7, '-'), (10, 'T'), (13, ':'), (16, ':')] {
        text.insert(place, separator);
    }
    Timestamp::parse_rfc3339(&text)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;
    use proptest::sample::Index;
    use rcgen::{CertificateParams, DnType, KeyPair};

    use super::*;
    use crate::certificates::authority::SigningAuthority;
    use crate::certificates::fixtures::{DAY, NOW, YEAR, wish};
    use crate::certificates::key::PrivateKey;

    fn pair() -> (X509, X509) {
        let authority = SigningAuthority::create("cluster", NOW, 30 * YEAR).unwrap();
        let leaf = authority.sign(&wish(), &PrivateKey::generate().unwrap(), NOW, YEAR).unwrap();
        (authority.certificate, X509::all_from_pem(&leaf).unwrap().remove(0))
    }

    #[test]
    fn every_field_is_read() {
        let (authority, leaf) = pair();
        assert_eq!((leaf.names.clone(), leaf.addresses.clone()), (wish().names, wish().addresses));
        assert_eq!(
            (leaf.subject.to_string(), leaf.issuer.to_string()),
            ("CN=system:node:minion-0, O=system:nodes".into(), "CN=cluster".into())
        );
        assert_eq!((leaf.not_before.after(DAY), leaf.not_after), (NOW, NOW.after(YEAR)));
        assert_eq!((authority.is_authority, leaf.is_authority), (true, false));
        assert_eq!((authority.key_usage, leaf.key_usage), (Some(KEY_CERT_SIGN | CRL_SIGN), Some(DIGITAL_SIGNATURE)));
        assert!(authority.key_identifier.is_some() && authority.key_identifier != leaf.key_identifier);
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
        let (_, theirs) = x509_parser::parse_x509_certificate(&der).unwrap();
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
        let (authority, leaf) = pair();
        let both = leaf.to_pem() + "\n  in between\r\n" + &authority.to_pem().replace('\n', "\r\n");
        assert_eq!(X509::all_from_pem(&both), Ok(vec![leaf.clone(), authority]));
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
            let value = Element { tag, content: text.as_bytes(), whole: &[] };
            assert_eq!(time(value).map(Timestamp::rfc3339).as_deref(), read, "{text}");
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
