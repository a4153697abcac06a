//! Certificate signing requests (PKCS#10, RFC 2986), and what they have in common with certificates.

use std::net::IpAddr;

use rustls::pki_types::DnsName;

use super::der::{
    BIT_STRING, BOOLEAN, INTEGER, OBJECT_IDENTIFIER, OCTET_STRING, SEQUENCE, SET, UTF8_STRING, context, context_primitive,
    element, oid,
};
use super::key::PrivateKey;
use super::pem;
use super::x509::{DIGITAL_SIGNATURE, KEY_ENCIPHERMENT};
use crate::desired::Certificate;
use crate::error::{Error, Result};

/// A request as PEM for a desired certificate, signed by its key: subject, subjectAltName, keyUsage and extendedKeyUsage alone, none of
/// them critical, because Magnum refuses what it does not know where that is critical (magnum-node.md 4.1).
///
/// # Errors
/// A name that no certificate can carry.
pub fn request(wanted: &Certificate, key: &PrivateKey) -> Result<String> {
    let extensions = element(SEQUENCE, &[&extensions(wanted, key, false)?]);
    let attribute = element(SEQUENCE, &[&element(OBJECT_IDENTIFIER, &[oid::EXTENSION_REQUEST]), &element(SET, &[&extensions])]);
    let asked = element(
        SEQUENCE,
        &[
            &element(INTEGER, &[&[0]]),
            &subject(&wanted.common_name, &wanted.organisations)?,
            key.public_key(),
            &element(context(0), &[&attribute]),
        ],
    );
    Ok(pem::write("CERTIFICATE REQUEST", &key.sign(&asked)?))
}

/// A subject: every O, then the CN.
///
/// # Errors
/// One of them is empty, or has control characters.
pub(super) fn subject(common_name: &str, organisations: &[String]) -> Result<Vec<u8>> {
    let organisations = organisations.iter().map(|organisation| (oid::ORGANISATION, organisation.as_str()));
    let mut attributes = Vec::new();
    for (id, value) in organisations.chain([(oid::COMMON_NAME, common_name)]) {
        if value.is_empty() || value.chars().any(char::is_control) {
            return Err(cannot(value).rule("a subject must not have empty values or control characters: RFC 5280, 4.1.2.4"));
        }
        let attribute = element(SEQUENCE, &[&element(OBJECT_IDENTIFIER, &[id]), &element(UTF8_STRING, &[value.as_bytes()])]);
        attributes.extend(element(SET, &[&attribute]));
    }
    Ok(element(SEQUENCE, &[&attributes]))
}

/// The extensions that are requested, one after the other (RFC 5280, 4.2.1.3, 4.2.1.6, 4.2.1.12).
///
/// # Errors
/// A DNS name that is none.
pub(super) fn extensions(wanted: &Certificate, key: &PrivateKey, critical: bool) -> Result<Vec<u8>> {
    let usage = if key.is_rsa() { DIGITAL_SIGNATURE | KEY_ENCIPHERMENT } else { DIGITAL_SIGNATURE };
    let mut extensions = key_usage(usage, critical);
    let mut purposes = element(OBJECT_IDENTIFIER, &[oid::CLIENT_AUTH]);
    if wanted.serves {
        purposes.extend(element(OBJECT_IDENTIFIER, &[oid::SERVER_AUTH]));
    }
    extensions.extend(extension(oid::EXTENDED_KEY_USAGE, false, &element(SEQUENCE, &[&purposes])));
    let mut names = Vec::new();
    for name in &wanted.names {
        if DnsName::try_from(name.strip_prefix("*.").unwrap_or(name)).is_err() {
            return Err(cannot(name).rule("DNS names: RFC 5280, 4.2.1.6; RFC 1034, 3.5"));
        }
        names.extend(element(context_primitive(2), &[name.as_bytes()]));
    }
    for address in &wanted.addresses {
        let name = match address {
            IpAddr::V4(address) => element(context_primitive(7), &[&address.octets()]),
            IpAddr::V6(address) => element(context_primitive(7), &[&address.octets()]),
        };
        names.extend(name);
    }
    if !names.is_empty() {
        extensions.extend(extension(oid::SUBJECT_ALT_NAME, false, &element(SEQUENCE, &[&names])));
    }
    Ok(extensions)
}

/// keyUsage; DER leaves zeros at its end away.
pub(super) fn key_usage(bits: u8, critical: bool) -> Vec<u8> {
    let unused = u8::try_from(bits.trailing_zeros()).unwrap_or(0);
    extension(oid::KEY_USAGE, critical, &element(BIT_STRING, &[&[unused, bits]]))
}

/// An extension.
pub(super) fn extension(id: &[u8], critical: bool, value: &[u8]) -> Vec<u8> {
    let flag = if critical { element(BOOLEAN, &[&[0xff]]) } else { Vec::new() };
    element(SEQUENCE, &[&element(OBJECT_IDENTIFIER, &[id]), &flag, &element(OCTET_STRING, &[value])])
}

fn cannot(name: &str) -> Error {
    Error::permanent(format!("no certificate can have the name {name:?}"))
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::pem::SectionKind;
    use x509_parser::certification_request::X509CertificationRequest;
    use x509_parser::extensions::{GeneralName, ParsedExtension};
    use x509_parser::prelude::FromDer as _;

    use super::*;
    use crate::certificates::fixtures::{rsa_key, wanted_certificate};

    /// What another reader sees in a request: subject, and each extension in words.
    fn described(wanted: &Certificate, key: &PrivateKey) -> (String, Vec<String>) {
        let (kind, der) = pem::read(&request(wanted, key).unwrap()).unwrap().remove(0);
        let (rest, request) = X509CertificationRequest::from_der(&der).unwrap();
        assert!(kind == SectionKind::Csr && rest.is_empty());
        request.verify_signature().unwrap();
        let extensions = request.requested_extensions().into_iter().flatten().map(|extension| match extension {
            ParsedExtension::KeyUsage(usage) => usage.to_string(),
            ParsedExtension::ExtendedKeyUsage(usage) => format!("client={} server={}", usage.client_auth, usage.server_auth),
            ParsedExtension::SubjectAlternativeName(names) => names
                .general_names
                .iter()
                .map(|name| match name {
                    GeneralName::DNSName(name) => format!("{name} "),
                    GeneralName::IPAddress(bytes) => format!("{bytes:?} "),
                    other => panic!("{other:?}"),
                })
                .collect(),
            other => panic!("{other:?}"),
        });
        (request.certification_request_info.subject.to_string(), extensions.collect())
    }

    #[test]
    fn a_request_asks_for_what_is_desired_and_nothing_else() {
        let mut kubelet = wanted_certificate();
        kubelet.addresses.truncate(1);
        kubelet.organisations.push("Ünïted".into());
        let client = Certificate {
            names: Vec::new(),
            addresses: Vec::new(),
            organisations: Vec::new(),
            serves: false,
            ..wanted_certificate()
        };
        assert_eq!(
            described(&kubelet, &PrivateKey::generate().unwrap()),
            (
                "O=system:nodes, O=Ünïted, CN=system:node:minion-0".into(),
                vec![
                    "Digital Signature".into(),
                    "client=true server=true".into(),
                    "minion-0 minion-0.example.com [10, 0, 0, 5] ".into()
                ]
            )
        );
        assert_eq!(
            described(&client, &rsa_key()),
            (
                "CN=system:node:minion-0".into(),
                vec!["Digital Signature, Key Encipherment".into(), "client=true server=false".into()]
            )
        );
    }

    /// Magnum refuses what it does not know where that is critical.
    #[test]
    fn nothing_is_critical_in_a_request() {
        let (_, der) = pem::read(&request(&wanted_certificate(), &rsa_key()).unwrap()).unwrap().remove(0);
        let critical = element(BOOLEAN, &[&[0xff]]);
        assert!(!der.windows(critical.len()).any(|window| window == critical));
    }

    #[test]
    fn names_that_no_certificate_can_carry_are_refused() {
        let key = PrivateKey::generate().unwrap();
        let named = |name: &str| Certificate { names: vec![name.into()], ..wanted_certificate() };
        for (wanted, shown) in [
            (Certificate { common_name: String::new(), ..wanted_certificate() }, "\"\""),
            (Certificate { common_name: "a\nb".into(), ..wanted_certificate() }, "\"a\\nb\""),
            (Certificate { organisations: vec![String::new()], ..wanted_certificate() }, "\"\""),
            (named(""), "\"\""),
            (named("a b"), "\"a b\""),
            (named("bücher.example"), "\"bücher.example\""),
            (named("*."), "\"*.\""),
        ] {
            let error = request(&wanted, &key).unwrap_err();
            assert!(error.cause().ends_with(shown) && error.broken_rule().is_some(), "{error:?}");
        }
        assert!(request(&named("*.example.com"), &key).is_ok());
    }
}
