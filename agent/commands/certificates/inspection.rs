//! The list: what a look at the node's certificates found, with what the agent does not keep itself, who reads each, and
//! what to do about it.

use std::path::Path;

use crate::certificates::judge::{self, Flaw, ValidityPhase};
use crate::certificates::key::PrivateKey;
use crate::certificates::x509::X509;
use crate::clock::Timestamp;
use crate::desired::{CaCertificate, Certificate, Desired, Unit};
use crate::error::Error;
use crate::files::{READ_LIMIT, Tree};
use crate::keepers::certificates as keeper;
use crate::keepers::certificates::{CertificateInspection, CertificateVerdict};
use crate::kubernetes::{StandaloneKeys, TokenKey};

/// How a certificate is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CertificateHealth {
    /// As it should be.
    Ok,
    /// Past two thirds of its life.
    NearEnd,
    /// Past its end.
    Expired,
    /// Not there.
    Missing,
    /// There, and no good.
    Flawed,
}

/// What is listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RowKind {
    /// A CA's certificate, one of those in its file.
    Ca,
    /// A certificate with its key.
    Certificate,
    /// What a kubelet got by TLS bootstrap and renews by itself.
    Bootstrap,
    /// The key that tokens of service accounts are signed by.
    ServiceAccounts,
}

/// One line of the list.
#[derive(Clone, Debug)]
pub(super) struct CertificateRow {
    pub(super) kind: RowKind,
    pub(super) name: String,
    pub(super) path: String,
    pub(super) health: CertificateHealth,
    pub(super) cause: Option<String>,
    pub(super) remedy: Option<&'static str>,
    /// As far as it can be read.
    pub(super) certificate: Option<X509>,
    /// SHA-256 of the public key, where that is what counts.
    pub(super) key: Option<String>,
    /// Whether that key is this master's alone: one that the parameters give is the same on every master.
    pub(super) is_own_key: bool,
    /// Units that read it. They are restarted when it changes, but for what a kubelet renews by itself.
    pub(super) readers: Vec<String>,
}

/// How it is, and why where something is wrong with it.
type Finding = (CertificateHealth, Option<String>);

/// A kubelet renews its certificate at a random moment between 70 and 90 percent of its life (its certificate manager's
/// deadline): before that it is not late.
const LATE: u64 = 90;

/// The daemon does it, where it may.
const PUT_RIGHT: &str = "a stack update, or DRIFT=repair, repairs it; `heat-node-agent explain` shows what prevents that";

/// Everything, CAs first.
pub(super) fn list(
    inspection: &CertificateInspection,
    desired: &Desired,
    beside: &StandaloneKeys,
    root: &Tree,
    now: Timestamp,
) -> Vec<CertificateRow> {
    let mut items = Vec::new();
    for found in &inspection.items {
        if let Some(wanted) = desired.certificates.iter().find(|wanted| wanted.name == found.name) {
            items.push(of_certificate(wanted, found, inspection, desired));
        } else if let Some(ca) = desired.cas.iter().find(|ca| ca.path == found.path) {
            items.extend(of_ca(ca, found, inspection, desired, now));
        }
    }
    items.extend(beside.kubelet.map(|path| of_kubelet(path, root, now)));
    items.extend(beside.service_accounts.as_ref().map(|keys| of_service_accounts(keys, desired, root)));
    items
}

fn of_ca(
    ca: &CaCertificate,
    found: &keeper::InspectedCertificate,
    inspection: &CertificateInspection,
    desired: &Desired,
    now: Timestamp,
) -> Vec<CertificateRow> {
    let several = found.chain.len();
    let paths: Vec<&str> = [&ca.path].into_iter().chain(&ca.key_path).chain(&ca.signing_path).map(String::as_str).collect();
    let item = |at: usize, certificate: Option<&X509>| {
        let (health, cause) = match certificate {
            Some(one) => drifted(judged(judge::check_ca(one, now), judge::life(one, now)), inspection, &paths),
            None => of_verdict(&found.verdict),
        };
        let remedy = match health {
            CertificateHealth::Ok => None,
            CertificateHealth::NearEnd | CertificateHealth::Expired => {
                Some("rotate the cluster's CA (`openstack coe ca rotate CLUSTER`, or CA_CERTIFICATE and CA_KEY with CA_ROTATION)")
            }
            CertificateHealth::Missing | CertificateHealth::Flawed => Some(PUT_RIGHT),
        };
        CertificateRow {
            kind: RowKind::Ca,
            name: if several > 1 { format!("{} ({} of {several})", found.name, at + 1) } else { found.name.clone() },
            path: ca.path.clone(),
            health,
            cause,
            remedy,
            certificate: certificate.cloned(),
            key: None,
            is_own_key: false,
            readers: readers(desired, &paths),
        }
    };
    if several == 0 { vec![item(0, None)] } else { found.chain.iter().enumerate().map(|(at, one)| item(at, Some(one))).collect() }
}

fn of_certificate(
    wanted: &Certificate,
    found: &keeper::InspectedCertificate,
    inspection: &CertificateInspection,
    desired: &Desired,
) -> CertificateRow {
    let paths = [wanted.path.as_str(), wanted.key.as_str()];
    let (health, cause) = drifted(of_verdict(&found.verdict), inspection, &paths);
    let renews = desired.trust.as_ref().is_some_and(|trust| trust.renew);
    let remedy = match health {
        CertificateHealth::Ok => None,
        CertificateHealth::NearEnd | CertificateHealth::Expired if wanted.given.is_some() => {
            Some("put a newer pair into the template and update the stack")
        }
        CertificateHealth::NearEnd | CertificateHealth::Expired if renews => {
            Some("the daemon renews it at its next check; `heat-node-agent explain` shows what prevents that")
        }
        CertificateHealth::NearEnd => Some("set CERTIFICATE_RENEWAL=renew in the template and update the stack"),
        CertificateHealth::Expired | CertificateHealth::Missing | CertificateHealth::Flawed => Some(PUT_RIGHT),
    };
    CertificateRow {
        kind: RowKind::Certificate,
        name: wanted.name.clone(),
        path: wanted.path.clone(),
        health,
        cause,
        remedy,
        certificate: found.chain.first().cloned(),
        key: None,
        is_own_key: false,
        readers: readers(desired, &paths),
    }
}

fn of_kubelet(path: &str, root: &Tree, now: Timestamp) -> CertificateRow {
    let chain =
        text_of(path, root).and_then(|text| X509::all_from_pem(&certificates_alone(&text)).map_err(|error| flawed(path, &error)));
    let certificate = chain.as_ref().ok().and_then(|chain| chain.first()).cloned();
    let (health, cause) = match (&certificate, chain.err()) {
        (Some(own), _) if own.not_after <= now => (CertificateHealth::Expired, Some(Flaw::Expired(own.not_after).to_string())),
        (Some(own), _) if is_late(own, now) => {
            (CertificateHealth::NearEnd, Some("the kubelet has not renewed it in time".to_owned()))
        }
        (Some(_), _) | (None, None) => (CertificateHealth::Ok, None),
        (None, Some(finding)) => finding,
    };
    let remedy = "the kubelet requests it itself: check `journalctl -u kubelet` here and `kubectl get csr` on a master; \
                  BOOTSTRAP_TOKEN must be set on the masters too";
    CertificateRow {
        kind: RowKind::Bootstrap,
        name: "kubelet (by itself)".to_owned(),
        path: path.to_owned(),
        health,
        cause,
        remedy: (health != CertificateHealth::Ok).then_some(remedy),
        certificate,
        key: None,
        is_own_key: false,
        // kube-proxy of such a node has no certificate of its own.
        readers: ["kubelet.service", "kube-proxy.service"].map(str::to_owned).to_vec(),
    }
}

fn is_late(certificate: &X509, now: Timestamp) -> bool {
    let life = certificate.not_after.since(certificate.not_before).as_secs();
    now.since(certificate.not_before).as_secs().saturating_mul(100) > life.saturating_mul(LATE)
}

fn of_service_accounts(keys: &TokenKey, desired: &Desired, root: &Tree) -> CertificateRow {
    let path = keys.path.as_str();
    let key = text_of(path, root).and_then(|text| PrivateKey::from_pem(&text).map_err(|error| flawed(path, &error)));
    let (key, (health, cause)) = match key {
        Ok(key) => (Some(key.fingerprint()), (CertificateHealth::Ok, None)),
        Err(finding) => (None, finding),
    };
    CertificateRow {
        kind: RowKind::ServiceAccounts,
        name: "service accounts".to_owned(),
        path: path.to_owned(),
        health,
        cause,
        remedy: (health != CertificateHealth::Ok).then_some(PUT_RIGHT),
        certificate: None,
        key,
        is_own_key: !keys.is_given,
        readers: readers(desired, &[path]),
    }
}

fn text_of(path: &str, root: &Tree) -> Result<String, Finding> {
    match root.read(Path::new(path), READ_LIMIT) {
        Ok(Some(bytes)) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        Ok(None) => Err((CertificateHealth::Missing, Some(format!("there is no {path}")))),
        Err(error) => Err((CertificateHealth::Flawed, Some(error.to_string()))),
    }
}

fn flawed(path: &str, error: &Error) -> Finding {
    (CertificateHealth::Flawed, Some(format!("{path}: {error}")))
}

/// A kubelet keeps its key in the same file.
fn certificates_alone(text: &str) -> String {
    let mut inside = false;
    let keeps = |line: &&str| {
        let kept = inside || line.starts_with("-----BEGIN CERTIFICATE-----");
        inside = kept && !line.starts_with("-----END ");
        kept
    };
    text.lines().filter(keeps).flat_map(|line| [line, "\n"]).collect()
}

fn of_verdict(verdict: &CertificateVerdict) -> Finding {
    match verdict {
        CertificateVerdict::Right => judged(Ok(()), ValidityPhase::Fresh),
        CertificateVerdict::NearEnd => judged(Ok(()), ValidityPhase::NearEnd),
        CertificateVerdict::Missing(why) => (CertificateHealth::Missing, Some(why.clone())),
        CertificateVerdict::Unreadable(why) => (CertificateHealth::Flawed, Some(why.clone())),
        CertificateVerdict::Flawed(flaw) => judged(Err(flaw.clone()), ValidityPhase::Fresh),
    }
}

fn judged(checked: Result<(), Flaw>, life: ValidityPhase) -> Finding {
    match (checked, life) {
        (Err(flaw @ Flaw::Expired(_)), _) => (CertificateHealth::Expired, Some(flaw.to_string())),
        (Err(flaw), _) => (CertificateHealth::Flawed, Some(flaw.to_string())),
        (Ok(()), ValidityPhase::Fresh) => (CertificateHealth::Ok, None),
        (Ok(()), ValidityPhase::NearEnd | ValidityPhase::Over) => {
            (CertificateHealth::NearEnd, Some("two thirds of its validity period have passed".to_owned()))
        }
    }
}

/// What is right in itself may still lie there with another mode or owner.
fn drifted(finding: Finding, inspection: &CertificateInspection, paths: &[&str]) -> Finding {
    let drift = inspection.drift.iter().find(|drift| paths.contains(&drift.path.as_str()));
    match (finding.0, drift) {
        (CertificateHealth::Ok | CertificateHealth::NearEnd, Some(drift)) => {
            (CertificateHealth::Flawed, Some(format!("{}: {}", drift.path, drift.why)))
        }
        _ => finding,
    }
}

fn readers(desired: &Desired, paths: &[&str]) -> Vec<String> {
    let reads = |unit: &&Unit| paths.iter().any(|path| unit.restart_on.contains(*path));
    desired.units.iter().filter(reads).map(|unit| unit.name.clone()).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use super::*;
    use crate::certificates::ca::SigningCa;
    use crate::desired::{CertificatePolicy, GivenPair, Issuer, KeyType, Material, Owner, RenewalSlot, Rotation, Signer};
    use crate::files::Attributes;

    pub(in super::super) const NOW: Timestamp = Timestamp(1_772_366_400_000);
    const DAY: Duration = Duration::from_hours(24);
    const YEAR: Duration = Duration::from_hours(24 * 365);

    fn wanted_certificate() -> Certificate {
        Certificate {
            name: "server".into(),
            signer: Signer::Kubernetes,
            common_name: "kubernetes".into(),
            organisations: Vec::new(),
            names: vec!["blue-0".into(), "kubernetes".into()],
            addresses: vec!["192.0.2.7".parse().unwrap()],
            serves: true,
            path: "/c/server.crt".into(),
            key: "/c/server.key".into(),
            owner: Owner::root(),
            given: None,
        }
    }

    /// A node with a CA, a certificate, a kubelet that joined by a token, and service accounts.
    pub(in super::super) struct TestNode {
        pub(in super::super) desired: Desired,
        _dir: tempfile::TempDir,
        root: Tree,
        ca: SigningCa,
        key: PrivateKey,
    }

    impl TestNode {
        pub(in super::super) fn new() -> Self {
            let ca = SigningCa::create("blue-ca", NOW, 10 * YEAR).unwrap();
            let key = PrivateKey::generate().unwrap();
            let signed = |wanted: &Certificate| ca.sign(wanted, &key, NOW, 3 * YEAR).unwrap();
            let own = signed(&Certificate { common_name: "system:node:w".into(), ..wanted_certificate() }) + key.to_pem();
            let server = signed(&wanted_certificate());
            let unit = |name: &str, reads: &[&str]| Unit {
                name: name.into(),
                enable: true,
                restart_on: reads.iter().map(|path| (*path).to_owned()).collect(),
                needs: BTreeSet::new(),
                applies_files: false,
            };
            let trust = CertificatePolicy {
                issuer: Issuer::Given,
                keys: KeyType::EcdsaP256,
                keys_asked: false,
                renew: false,
                rotation: Rotation::TrustBoth,
                share: RenewalSlot::ALONE,
            };
            let desired = Desired {
                cas: vec![CaCertificate {
                    signer: Signer::Kubernetes,
                    path: "/c/ca.crt".into(),
                    owner: Owner::root(),
                    given: None,
                    signing_key: None,
                    key_path: None,
                    signing_path: None,
                }],
                certificates: vec![wanted_certificate()],
                units: vec![
                    unit("kube-apiserver.service", &["/c/ca.crt", "/c/server.key"]),
                    unit("kubelet.service", &["/c/ca.crt"]),
                    unit("other.service", &[]),
                ],
                trust: Some(trust),
                ..Desired::default()
            };
            let dir = tempfile::tempdir().unwrap();
            let root = Tree::open(dir.path()).unwrap();
            let place = Self { desired, _dir: dir, root, ca, key };
            let pem = place.ca.certificate.to_pem();
            for (path, text) in [("c/ca.crt", pem), ("c/server.crt", server), ("c/server.key", place.key.to_pem().to_owned())] {
                place.put(path, &text);
            }
            place.put("k/own.pem", &own);
            place.put("c/sa.key", place.key.to_pem());
            place
        }

        pub(in super::super) fn list(&self, after: Duration) -> Vec<CertificateRow> {
            let beside = StandaloneKeys {
                kubelet: Some("/k/own.pem"),
                service_accounts: Some(TokenKey { path: "/c/sa.key".into(), is_given: true }),
            };
            let now = NOW.after(after);
            let inspection = keeper::inspect(&self.root, &self.desired, now).unwrap();
            list(&inspection, &self.desired, &beside, &self.root, now)
        }

        fn put(&self, path: &str, text: &str) {
            let path = Path::new(path);
            self.root.create_dir_all(path.parent().unwrap(), Attributes::mode(0o755)).unwrap();
            let mode = if path.extension().is_some_and(|end| end == "crt") { 0o644 } else { 0o600 };
            self.root.write(path, text.as_bytes(), Attributes::mode(mode)).unwrap();
        }

        fn remove(&self, path: &str) {
            assert!(self.root.remove_dir_all(Path::new(path)).unwrap(), "{path}");
        }

        fn states(&self, after: Duration) -> Vec<CertificateHealth> {
            self.list(after).iter().map(|item| item.health).collect()
        }
    }

    #[test]
    fn each_is_judged_by_itself_with_its_cause_and_a_remedy() {
        use CertificateHealth::{Expired, Flawed, Missing, NearEnd, Ok};
        type Change = fn(&mut TestNode);
        let same: Change = |_| {};
        let cases: [(&str, Change, u32, [CertificateHealth; 4], &str); 13] = [
            ("healthy", same, 0, [Ok; 4], ""),
            ("two thirds are over", same, 2 * 365 + 30, [Ok, NearEnd, Ok, Ok], "two thirds"),
            ("a kubelet is late", same, 3 * 365 - 30, [Ok, NearEnd, NearEnd, Ok], "has not renewed"),
            ("over", same, 3 * 365 + 1, [Ok, Expired, Expired, Ok], "it expired at 2029"),
            ("the CA has expired", same, 10 * 365 + 1, [Expired, Expired, Expired, Ok], "it expired at 2036"),
            (
                "not there",
                |place| ["c", "k"].iter().for_each(|path| place.remove(path)),
                0,
                [Missing; 4],
                "there is no /k/own.pem",
            ),
            ("no key", |place| place.remove("c/server.key"), 0, [Ok, Missing, Ok, Ok], "/c/server.key"),
            (
                "truncated",
                |place| place.put("c/server.crt", "-----BEGIN CERTIFICATE-----\nMA"),
                0,
                [Ok, Flawed, Ok, Ok],
                "truncated",
            ),
            (
                "another's key",
                |place| place.put("c/server.key", PrivateKey::generate().unwrap().to_pem()),
                0,
                [Ok, Flawed, Ok, Ok],
                "the key does not match",
            ),
            (
                "another CA of the same name",
                |place| place.put("c/ca.crt", &SigningCa::create("blue-ca", NOW, YEAR).unwrap().certificate.to_pem()),
                0,
                [Ok, Flawed, Ok, Ok],
                "a different CA named CN=blue-ca",
            ),
            ("renamed", |place| place.desired.certificates[0].names.push("new".into()), 0, [Ok, Flawed, Ok, Ok], "not name new"),
            ("no key of service accounts", |place| place.put("c/sa.key", "x"), 0, [Ok, Ok, Ok, Flawed], "/c/sa.key: "),
            (
                "a key that others can read",
                |place| place.root.set_attributes(Path::new("c/server.key"), Attributes::mode(0o644)).unwrap(),
                0,
                [Ok, Flawed, Ok, Ok],
                "/c/server.key: its mode is 0644, not 0600",
            ),
        ];
        for (case, change, days, states, words) in cases {
            let mut place = TestNode::new();
            change(&mut place);
            let items = place.list(days * DAY);
            assert_eq!(items.iter().map(|item| item.health).collect::<Vec<_>>(), states, "{case}: {items:?}");
            let why: Vec<_> = items.iter().filter_map(|item| item.cause.as_deref()).collect();
            assert!(why.join("; ").contains(words), "{case}: {why:?}");
            for item in items {
                let unhealthy = item.health != Ok;
                assert_eq!((item.cause.is_some(), item.remedy.is_some()), (unhealthy, unhealthy), "{case}: {}", item.name);
            }
        }
    }

    #[test]
    fn the_remedy_is_that_of_who_makes_it() {
        let end = 2 * YEAR + 30 * DAY;
        let mut place = TestNode::new();
        let remedy = |place: &TestNode| place.list(end)[1].remedy.unwrap();
        assert!(remedy(&place).contains("CERTIFICATE_RENEWAL=renew"));
        place.desired.trust.as_mut().unwrap().renew = true;
        assert!(remedy(&place).contains("the daemon renews it"));
        let material = Material::File("/given".into());
        place.desired.certificates[0].given = Some(GivenPair { certificate: material.clone(), key: material });
        assert!(remedy(&place).contains("into the template"));
    }

    #[test]
    fn a_bundle_is_listed_one_by_one_and_readers_are_those_of_certificate_or_key() {
        let place = TestNode::new();
        let new = SigningCa::create("new-ca", NOW, YEAR).unwrap().certificate.to_pem();
        place.put("c/ca.crt", &(new + &place.ca.certificate.to_pem()));
        let items = place.list(Duration::ZERO);
        let names: Vec<_> = items.iter().map(|item| item.name.as_str()).collect();
        assert_eq!(
            names,
            ["CA kubernetes (1 of 2)", "CA kubernetes (2 of 2)", "server", "kubelet (by itself)", "service accounts"]
        );
        assert_eq!(place.states(Duration::ZERO), [CertificateHealth::Ok; 5], "signed by either");
        assert_eq!(items[0].readers, ["kube-apiserver.service", "kubelet.service"]);
        assert_eq!(items[2].readers, ["kube-apiserver.service"]);
        assert_eq!(items[3].readers, ["kubelet.service", "kube-proxy.service"]);
        assert_eq!(items[4].key.as_deref(), Some(place.key.fingerprint().as_str()));
    }
}
