//! What is written in DER by our own code, as openssl reads it.

use std::io::Write as _;
use std::net::IpAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::LazyLock;

use proptest::prelude::*;
use proptest::{collection, sample};

use super::ca::SigningCa;
use super::fixtures::{DAY, NOW, YEAR, rsa_key, wanted_certificate};
use super::key::PrivateKey;
use super::request::request;
use super::x509::X509;
use crate::desired::Certificate;
use crate::files::{Attributes, Tree};

/// One of each kind that signs.
static KEYS: LazyLock<[PrivateKey; 3]> = LazyLock::new(|| {
    let p384 = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384).unwrap().serialize_pem();
    [PrivateKey::generate().unwrap(), PrivateKey::from_pem(&p384).unwrap(), rsa_key()]
});

/// Its output for this input; both streams, because it says there what it verified.
fn openssl(arguments: &[&str], input: &str) -> String {
    #[expect(clippy::disallowed_methods, reason = "a test asks another implementation")]
    let mut child = Command::new("openssl")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8(text).unwrap();
    assert!(output.status.success(), "{arguments:?}: {text}{input}");
    text
}

/// The name's lines in openssl's words.
fn subject(wanted: &Certificate) -> String {
    let organisations = wanted.organisations.iter().map(|organisation| format!("    O={organisation}\n"));
    organisations.chain([format!("    CN={}\n", wanted.common_name)]).collect()
}

/// Names and addresses in openssl's words.
fn names(wanted: &Certificate) -> String {
    let names = wanted.names.iter().map(|name| format!("DNS:{name}"));
    let addresses = wanted.addresses.iter().map(|address| match address {
        IpAddr::V4(address) => format!("IP Address:{address}"),
        IpAddr::V6(address) => {
            let groups: Vec<_> = address.segments().iter().map(|group| format!("{group:X}")).collect();
            format!("IP Address:{}", groups.join(":"))
        }
    });
    names.chain(addresses).collect::<Vec<_>>().join(", ")
}

prop_compose! {
    /// Lengths on either side of 128 and 256 bytes, where DER's own lengths change.
    fn any_certificate()(
        common_name in "\\PC{1,60}",
        organisations in collection::vec("\\PC{1,60}", 0..4),
        names in collection::vec("(\\*\\.)?[a-z][a-z0-9]{0,20}(-[a-z0-9]{1,20})?(\\.[a-z]{2,10}){0,3}", 0..12),
        addresses in collection::vec(any::<IpAddr>(), 0..12),
        serves: bool,
    ) -> Certificate {
        Certificate { common_name, organisations, names, addresses, serves, ..wanted_certificate() }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn requests_and_certificates_are_what_openssl_reads(
        wanted in any_certificate(),
        signer in sample::select(&[0, 1, 2][..]),
        key in sample::select(&[0, 1, 2][..]),
        days in 1_u32..30_000,
    ) {
        const SHOWN: [&str; 4] = ["-noout", "-subject", "-nameopt", "utf8,sname,sep_multiline"];
        let key = &KEYS[key];
        let asked = openssl(&[&["req", "-verify"], &SHOWN[..]].concat(), &request(&wanted, key).unwrap());
        prop_assert!(asked.contains("verify OK") && asked.contains(&format!("subject=\n{}", subject(&wanted))), "{}", asked);

        let ca = SigningCa::self_signed("Ünïted", KEYS[signer].clone(), NOW, 90 * YEAR).unwrap();
        let leaf = ca.sign(&wanted, key, NOW, DAY * days).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("ca.crt");
        let tree = Tree::open(directory.path()).unwrap();
        tree.write(Path::new("ca.crt"), ca.certificate.to_pem().as_bytes(), Attributes::mode(0o600)).unwrap();
        let at = (NOW.0 / 1000).to_string();
        let verified = openssl(&["verify", "-x509_strict", "-attime", &at, "-CAfile", file.to_str().unwrap()], &leaf);
        prop_assert_eq!(verified, "stdin: OK\n");

        let read = X509::all_from_pem(&leaf).unwrap().remove(0);
        let end = read.not_after.rfc3339().replace('T', " ");
        prop_assert_eq!(&end, &NOW.after(DAY * days).rfc3339().replace('T', " "));
        let extensions = ["-ext", "subjectAltName,extendedKeyUsage", "-enddate", "-dateopt", "iso_8601"];
        let shown = openssl(&[&["x509"], &SHOWN[..], &extensions].concat(), &leaf);
        prop_assert!(shown.contains(&format!("subject=\n{}", subject(&wanted))), "{}", shown);
        prop_assert!(shown.contains(&format!("notAfter={end}\n")), "{}", shown);
        prop_assert_eq!(shown.contains("TLS Web Server Authentication"), wanted.serves);
        prop_assert!(shown.contains(&format!("    {}\n", names(&wanted))) || names(&wanted).is_empty(), "{}", shown);
        prop_assert_eq!((read.names, read.addresses), (wanted.names, wanted.addresses));
        prop_assert_eq!((read.subject.common_name, read.subject.organisations), (Some(wanted.common_name), wanted.organisations));
    }
}

/// Attack: a CA with a P-521 key that another one of the same name had issued counted as a root.
#[test]
fn a_ca_whose_signature_cannot_be_verified_is_no_root() {
    for (curve, is_root) in [("P-256", true), ("P-384", true), ("P-521", false)] {
        let curve = format!("ec_paramgen_curve:{curve}");
        let wanted =
            ["req", "-x509", "-newkey", "ec", "-pkeyopt", &curve, "-nodes", "-keyout", "/dev/null", "-subj", "/CN=cluster-ca"];
        let output = openssl(&wanted, "");
        let pem = output.split_inclusive("-----END CERTIFICATE-----").next().unwrap();
        let certificates = X509::all_from_pem(pem.get(pem.find("-----BEGIN CERTIFICATE").unwrap()..).unwrap()).unwrap();
        assert_eq!(certificates[0].is_self_signed(), is_root, "{curve}");
    }
}
