//! Private keys.

use std::fmt;
use std::sync::Arc;

use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair};
use rustls::SignatureScheme;
use rustls::pki_types::pem::{PemObject, SectionKind};
use rustls::pki_types::{AlgorithmIdentifier, PrivateKeyDer, alg_id};
use rustls::sign::Signer;
use x509_parser::certificate::X509Certificate;
use x509_parser::der_parser::ber::BerObject;
use x509_parser::der_parser::der::parse_der;
use x509_parser::prelude::FromDer as _;
use x509_parser::public_key::PublicKey;
use x509_parser::x509::SubjectPublicKeyInfo;

use super::der::{INTEGER, OBJECT_IDENTIFIER, OCTET_STRING, SEQUENCE, bit_string, context, element, oid};
use super::pem;
use crate::desired::KeyType;
use crate::digest;
use crate::error::{Error, Result};

/// How each kind of key signs requests and certificates.
const SIGNATURES: [(SignatureScheme, AlgorithmIdentifier); 3] = [
    (SignatureScheme::ECDSA_NISTP256_SHA256, alg_id::ECDSA_SHA256),
    (SignatureScheme::ECDSA_NISTP384_SHA384, alg_id::ECDSA_SHA384),
    (SignatureScheme::RSA_PKCS1_SHA256, alg_id::RSA_PKCS1_SHA256),
];

/// A private key.
#[derive(Clone)]
pub struct PrivateKey {
    pem: String,
    public: Vec<u8>,
    signer: Arc<dyn Signer>,
    /// By which it signs: content of an AlgorithmIdentifier.
    algorithm: AlgorithmIdentifier,
}

impl PartialEq for PrivateKey {
    fn eq(&self, other: &Self) -> bool {
        self.pem == other.pem
    }
}

impl Eq for PrivateKey {}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PrivateKey({})", self.fingerprint())
    }
}

impl PrivateKey {
    /// A new ECDSA key on P-256.
    ///
    /// # Errors
    /// If the kernel provides no random numbers.
    pub fn generate() -> Result<Self> {
        let pkcs8 = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &SystemRandom::new())
            .map_err(|_| Error::transient("the kernel provides no random numbers").context("generating a key"))?;
        let sec1 = sec1_of(pkcs8.as_ref()).ok_or_else(|| Error::permanent("the new key does not have the form of RFC 5958"))?;
        Self::from_pem(&pem::write("EC PRIVATE KEY", &sec1))
    }

    /// Reads a PEM text: SEC1, PKCS#8 or PKCS#1 (RFC 5915, 5958, 8017); ECDSA on P-256 or P-384, RSA of 2048 to 4096 bits.
    /// Of several things in it the first key is taken.
    ///
    /// # Errors
    /// In an operator's words, without any part of the text.
    pub fn from_pem(text: &str) -> Result<Self> {
        // Before it is read: the lines about the cipher are no base64.
        if text.contains("ENCRYPTED") {
            return Err(Error::permanent("the key is encrypted; a passphrase cannot be entered")
                .remedy("provide it without a passphrase: openssl pkey -in KEY"));
        }
        let key = pem::read(text)?.into_iter().find_map(|(kind, der)| PrivateKeyDer::from_pem(kind, der));
        let key = key.ok_or_else(|| {
            Error::permanent("it contains no private key")
                .rule("PEM: RFC 7468")
                .remedy("provide PEM text with a line BEGIN PRIVATE KEY, BEGIN EC PRIVATE KEY or BEGIN RSA PRIVATE KEY")
        })?;
        let (public, signer, algorithm) = supported(&key).ok_or_else(|| {
            Error::permanent("the key is damaged, or of an unsupported type")
                .rule("ECDSA on P-256 or P-384, or RSA of 2048 to 4096 bits")
                .remedy("provide another key: openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256")
        })?;
        Ok(Self { pem: text.to_owned(), public, signer, algorithm })
    }

    /// As PEM. What [`PrivateKey::generate`] made is SEC1 with the curve's name, because Kubernetes reads an ECDSA key of
    /// service accounts in no other form; what was read is as it was read.
    #[must_use]
    pub fn to_pem(&self) -> &str {
        &self.pem
    }

    /// The public key: SubjectPublicKeyInfo in DER.
    #[must_use]
    pub fn public_key(&self) -> &[u8] {
        &self.public
    }

    /// The public key as PEM.
    #[must_use]
    pub fn public_pem(&self) -> String {
        pem::write("PUBLIC KEY", &self.public)
    }

    /// SHA-256 of the public key, in hexadecimal digits.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        digest::hex(&self.public)
    }

    /// Its kind; none for a curve other than P-256.
    #[must_use]
    pub fn key_type(&self) -> Option<KeyType> {
        match self.signer.scheme() {
            SignatureScheme::ECDSA_NISTP256_SHA256 => Some(KeyType::EcdsaP256),
            SignatureScheme::RSA_PKCS1_SHA256 => {
                let (_, info) = SubjectPublicKeyInfo::from_der(&self.public).ok()?;
                let Ok(PublicKey::RSA(key)) = info.parsed() else { return None };
                let digits = key.modulus.iter().skip_while(|digit| **digit == 0).count();
                u16::try_from(digits * 8).ok().map(KeyType::Rsa)
            }
            _ => None,
        }
    }

    /// Whether it is an RSA key: one that may also be used to encipher keys.
    pub(super) fn is_rsa(&self) -> bool {
        self.signer.scheme() == SignatureScheme::RSA_PKCS1_SHA256
    }

    /// AlgorithmIdentifier of its signatures.
    pub(super) fn signature_algorithm(&self) -> Vec<u8> {
        element(SEQUENCE, &[self.algorithm.as_ref()])
    }

    /// What is said, the algorithm of the signature, and the signature: the form of a certificate (RFC 5280, 4.1) and of a
    /// request (RFC 2986, 4.2).
    ///
    /// # Errors
    /// If the kernel provides no random numbers.
    pub(super) fn sign(&self, message: &[u8]) -> Result<Vec<u8>> {
        let signature = self.signer.sign(message).map_err(|cause| Error::transient(cause).context("signing"))?;
        Ok(element(SEQUENCE, &[message, &self.signature_algorithm(), &bit_string(&signature)]))
    }
}

/// Whether one of these public keys (PEM, SubjectPublicKeyInfo) is that of this private key, as it must be for service accounts: the
/// API server verifies by each key of the file, and several are there while the pair is changed.
///
/// # Errors
/// If there is no public key in the text.
pub fn public_matches(public_pem: &str, private: &PrivateKey) -> Result<bool> {
    let all = pem::read(public_pem)?.into_iter().filter(|(kind, _)| *kind == SectionKind::PublicKey);
    let all: Vec<Vec<u8>> = all.map(|(_, public)| public.clone()).collect();
    if all.is_empty() {
        return Err(Error::permanent("it contains no public key")
            .rule("PEM: RFC 7468, 13")
            .remedy("provide PEM text with a line BEGIN PUBLIC KEY: openssl pkey -in KEY -pubout"));
    }
    Ok(all.iter().any(|public| public == private.public_key()))
}

/// The public keys of a text, each as SubjectPublicKeyInfo in DER: the API server verifies tokens of service accounts by public keys, and by
/// those of private keys and of certificates (`PublicKeysFromFile` of k8s.io/client-go/util/keyutil).
///
/// # Errors
/// If there is none, or one that cannot be read; without any part of the text.
pub fn public_keys(text: &str) -> Result<Vec<Vec<u8>>> {
    let unreadable = || Error::permanent("it contains a key that is damaged, or of an unsupported type");
    let mut all = Vec::new();
    for (kind, der) in pem::read(text)? {
        match kind {
            SectionKind::PublicKey => all.push(der),
            SectionKind::Certificate => {
                let (_, certificate) = X509Certificate::from_der(&der).map_err(|_| unreadable())?;
                all.push(certificate.public_key().raw.to_vec());
            }
            // Whatever else there may be is passed over, such as parameters of a curve.
            _ => {
                let key = PrivateKeyDer::from_pem(kind, der);
                all.extend(key.map(|key| supported(&key).ok_or_else(unreadable)).transpose()?.map(|(public, ..)| public));
            }
        }
    }
    if all.is_empty() {
        return Err(Error::permanent("it contains no key").rule("PEM: RFC 7468"));
    }
    Ok(all)
}

/// The public key, a signer and its algorithm, where the key is one that everybody who reads our certificates knows.
fn supported(key: &PrivateKeyDer<'_>) -> Option<(Vec<u8>, Arc<dyn Signer>, AlgorithmIdentifier)> {
    let key = rustls::crypto::ring::sign::any_supported_type(key).ok()?;
    let signer = key.choose_scheme(&SIGNATURES.map(|(scheme, _)| scheme))?;
    let (_, algorithm) = SIGNATURES.into_iter().find(|(scheme, _)| *scheme == signer.scheme())?;
    Some((key.public_key()?.to_vec(), Arc::from(signer), algorithm))
}

/// The ECPrivateKey (RFC 5915) in a PKCS#8 text, with the curve in it, which PKCS#8 has outside.
fn sec1_of(pkcs8: &[u8]) -> Option<Vec<u8>> {
    let (_, info) = parse_der(pkcs8).ok()?;
    let (_, key) = parse_der(part(&info, 2)?).ok()?;
    let (private, public) = (part(&key, 1)?, part(&key, 2)?);
    let curve = element(OBJECT_IDENTIFIER, &[oid::PRIME256V1]);
    Some(element(
        SEQUENCE,
        &[
            &element(INTEGER, &[&[1]]),
            &element(OCTET_STRING, &[private]),
            &element(context(0), &[&curve]),
            &element(context(1), &[public]),
        ],
    ))
}

/// The content of one part of a sequence, which is no sequence itself.
fn part<'a>(sequence: &BerObject<'a>, place: usize) -> Option<&'a [u8]> {
    sequence.as_sequence().ok()?.get(place)?.as_slice().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::certificates::fixtures::{rsa_key, rsa_pkcs8};

    fn rcgen_key(algorithm: &'static rcgen::SignatureAlgorithm) -> String {
        rcgen::KeyPair::generate_for(algorithm).unwrap().serialize_pem()
    }

    /// Go reads the curve there, and Kubernetes reads ECDSA keys of service accounts in this form alone.
    #[test]
    fn a_new_key_is_sec1_with_its_curve() {
        let key = PrivateKey::generate().unwrap();
        assert!(key.to_pem().starts_with("-----BEGIN EC PRIVATE KEY-----\n"));
        let (_, der) = pem::read(key.to_pem()).unwrap().remove(0);
        let (rest, parts) = parse_der(&der).unwrap();
        assert_eq!((part(&parts, 0), part(&parts, 1).map(<[u8]>::len)), (Some(&[1][..]), Some(32)));
        assert_eq!(part(&parts, 2), Some(&*element(OBJECT_IDENTIFIER, &[oid::PRIME256V1])));
        let (_, public) = parse_der(part(&parts, 3).unwrap()).unwrap();
        let public = public.as_slice().unwrap();
        assert!(key.public_key().ends_with(public) && public.len() == 65 && rest.is_empty());
        assert_eq!(parts.as_sequence().unwrap().len(), 4);
        assert_ne!(key, PrivateKey::generate().unwrap());
    }

    #[test]
    fn keys_of_every_form_are_read_as_they_are() {
        let sec1 = PrivateKey::generate().unwrap();
        let parameters = pem::write("EC PARAMETERS", &element(OBJECT_IDENTIFIER, &[oid::PRIME256V1]));
        for (text, kind) in [
            (sec1.to_pem().to_owned(), Some(KeyType::EcdsaP256)),
            (format!("{parameters}{}", sec1.to_pem()), Some(KeyType::EcdsaP256)),
            (format!("# made by hand\n{}", sec1.to_pem().replace('\n', "\r\n")), Some(KeyType::EcdsaP256)),
            (rcgen_key(&rcgen::PKCS_ECDSA_P256_SHA256), Some(KeyType::EcdsaP256)),
            (rcgen_key(&rcgen::PKCS_ECDSA_P384_SHA384), None),
            (rsa_key().to_pem().to_owned(), Some(KeyType::Rsa(2048))),
            (rsa_pkcs8(), Some(KeyType::Rsa(2048))),
        ] {
            let key = PrivateKey::from_pem(&text).unwrap();
            assert_eq!((key.to_pem(), key.key_type()), (text.as_str(), kind));
        }
    }

    #[test]
    fn the_public_keys_of_a_text_are_those_that_the_api_server_verifies_by() {
        let (one, other) = (PrivateKey::generate().unwrap(), rsa_key());
        let certificate = rcgen::generate_simple_self_signed(["n".to_owned()]).unwrap();
        let of_certificate = PrivateKey::from_pem(&certificate.signing_key.serialize_pem()).unwrap().public_key().to_vec();
        let parameters = pem::write("EC PARAMETERS", &element(OBJECT_IDENTIFIER, &[oid::PRIME256V1]));
        let (first, second) = (one.public_key().to_vec(), other.public_key().to_vec());
        for (text, expected) in [
            (one.public_pem(), vec![first.clone()]),
            (format!("{}{}", one.public_pem(), other.public_pem()), vec![first.clone(), second.clone()]),
            (format!("{parameters}{}{}", one.to_pem(), other.to_pem()), vec![first, second]),
            (certificate.cert.pem(), vec![of_certificate]),
        ] {
            assert_eq!(public_keys(&text).unwrap(), expected, "{text}");
        }
        for (text, cause) in [
            (String::new(), "no key"),
            (rcgen_key(&rcgen::PKCS_ED25519), "unsupported"),
            (pem::write("CERTIFICATE", b"x"), "damaged"),
        ] {
            assert!(public_keys(&text).unwrap_err().cause().contains(cause), "{text}");
        }
    }

    #[test]
    fn what_is_no_key_is_refused_without_showing_it() {
        let key = PrivateKey::generate().unwrap();
        let cut = key.to_pem().get(..120).unwrap();
        for (text, cause) in [
            ("", "no private key"),
            (key.public_pem().as_str(), "no private key"),
            (cut, "truncated"),
            (&key.to_pem().replace("MHc", "M!c"), "not valid base64"),
            (&key.to_pem().replace("MHc", "MHd"), "damaged"),
            (&key.to_pem().replace("EC PRIVATE", "RSA PRIVATE"), "unsupported"),
            (&rcgen_key(&rcgen::PKCS_ED25519), "unsupported"),
            ("-----BEGIN ENCRYPTED PRIVATE KEY-----\n", "encrypted"),
            ("-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n", "encrypted"),
        ] {
            let error = PrivateKey::from_pem(text).unwrap_err();
            assert!(error.cause().contains(cause), "{error:?}");
            assert!(error.suggested_remedy().is_some() && !format!("{error:?}").contains("MHcCAQ"));
        }
        assert_eq!(format!("{key:?}"), format!("PrivateKey({})", key.fingerprint()));
    }

    #[test]
    fn a_pair_of_service_accounts_belongs_together() {
        let (one, other) = (PrivateKey::generate().unwrap(), rsa_key());
        assert_eq!(public_matches(&one.public_pem(), &one), Ok(true));
        assert_eq!(public_matches(&other.public_pem(), &other), Ok(true));
        assert_eq!(public_matches(&one.public_pem(), &other), Ok(false));
        assert!(public_matches(one.to_pem(), &one).unwrap_err().cause().contains("no public key"));
    }
}
