//! What the tests of certificates share.

use std::time::Duration;

use num_bigint::BigUint;
use rustls::pki_types::alg_id;

use super::der::{INTEGER, OCTET_STRING, SEQUENCE, element};
use super::key::PrivateKey;
use super::pem;
use crate::clock::Timestamp;
use crate::desired::{Certificate, Owner, Signer};

/// 2026-03-01T12:00:00Z.
pub(crate) const NOW: Timestamp = Timestamp(1_772_366_400_000);
pub(crate) const DAY: Duration = Duration::from_hours(24);
pub(crate) const YEAR: Duration = Duration::from_hours(24 * 365);

/// A kubelet's.
pub(crate) fn wanted_certificate() -> Certificate {
    Certificate {
        name: "kubelet".into(),
        signer: Signer::Kubernetes,
        common_name: "system:node:minion-0".into(),
        organisations: vec!["system:nodes".into()],
        names: vec!["minion-0".into(), "minion-0.example.com".into()],
        addresses: vec!["10.0.0.5".parse().unwrap(), "2001:db8::5".parse().unwrap()],
        serves: true,
        path: "/etc/kubernetes/certs/kubelet.crt".into(),
        key: "/etc/kubernetes/certs/kubelet.key".into(),
        owner: Owner::root(),
        given: None,
    }
}

/// RSA with 2048 bits as PKCS#1, from two primes that everybody can guess: ring makes none, and a real one would be a secret.
fn rsa_pkcs1() -> Vec<u8> {
    let one = BigUint::from(1u8);
    let p: BigUint = (&one << 1024) - 105u32;
    let q: BigUint = (BigUint::from(3u8) << 1022) - 91u32;
    let (below_p, below_q) = (&p - &one, &q - &one);
    let e = BigUint::from(65_537u32);
    let d = e.modinv(&(&below_p * &below_q)).unwrap();
    let coefficient = q.modinv(&p).unwrap();
    let parts: Vec<u8> = [BigUint::ZERO, &p * &q, e, d.clone(), p, q, &d % &below_p, &d % &below_q, coefficient]
        .iter()
        .flat_map(|number| {
            let digits = number.to_bytes_be();
            let sign: &[u8] = if digits[0] < 0x80 { &[] } else { &[0] };
            element(INTEGER, &[sign, &digits])
        })
        .collect();
    element(SEQUENCE, &[&parts])
}

/// The same as PKCS#8, in PEM.
pub(crate) fn rsa_pkcs8() -> String {
    let algorithm = element(SEQUENCE, &[alg_id::RSA_ENCRYPTION.as_ref()]);
    let parts = [element(INTEGER, &[&[0]]), algorithm, element(OCTET_STRING, &[&rsa_pkcs1()])];
    pem::write("PRIVATE KEY", &element(SEQUENCE, &[&parts.concat()]))
}

pub(crate) fn rsa_key() -> PrivateKey {
    PrivateKey::from_pem(&pem::write("RSA PRIVATE KEY", &rsa_pkcs1())).unwrap()
}
