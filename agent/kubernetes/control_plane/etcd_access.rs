//! Whom etcd lets in where it trusts the cluster's main CA.
//!
//! etcd's own test of a client is that a CA signed for it. Where that CA also signs for kubelets and people, each of
//! their certificates would reach everything that the cluster keeps. So etcd is given the names that count: a client's by
//! `client-cert-allowed-hostname` (3.4 and later, a DNS name of the certificate), a peer's by `peer-cert-allowed-cn` (3.3 and later, the
//! subject that the certificates of peers always had: masters of one cluster may be updated one by one).
//!
//! The names stand in a file of their own, which is written once the certificates that carry them are in place: a master whose
//! certificates could not be renewed is not locked out of its own etcd by the next reboot.

use std::collections::BTreeSet;

use crate::certificates::x509::X509;
use crate::desired::{Dependency, Desired, Directory, File, Material, Signer};
use crate::kubernetes::parts::certificates::ETCD_NAME;
use crate::kubernetes::parts::directories::directory;
use crate::kubernetes::spec::cluster::ClusterSpec;
use crate::kubernetes::spec::words::CertificateSource;
use crate::kubernetes::text::MADE;
use crate::kubernetes::text::environment::line;

/// DNS name of the certificates that clients show to etcd. No node bears it, because a node's name is one label, and so no kubelet's
/// certificate does.
pub(in crate::kubernetes) const CLIENT_NAME: &str = "etcd-client.heat-node-agent";
/// The environment variable that has etcd ask for it, and what is written where it is missing.
pub(in crate::kubernetes) const CLIENT_VARIABLE: &str = "ETCD_CLIENT_CERT_ALLOWED_HOSTNAME";
/// The same as a flag.
pub(in crate::kubernetes) const CLIENT_FLAG: &str = "client-cert-allowed-hostname";
/// The first release that knows it.
pub(in crate::kubernetes) const FIRST_WITH_NAMES: (u16, u16) = (3, 4);
/// What it means where nothing keeps others out.
pub(in crate::kubernetes) const RULE: &str =
    "any certificate signed by a CA that etcd trusts can read and write everything in it";
/// Waits for the certificates.
const FOLDER: &str = "/etc/etcd/allowed";
/// The environment file with the names.
pub(in crate::kubernetes) const FILE: &str = "/etc/etcd/allowed/names.conf";

/// Whom etcd takes for its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::kubernetes) enum Clients {
    /// Whoever has a certificate of etcd's own CA.
    OfOwnCa,
    /// Whoever has a certificate with [`CLIENT_NAME`], of a CA that signs, or may sign, for others too.
    Named,
    /// Whoever has any certificate of that CA: flanneld on workers has one without the name, and through etcd's JSON
    /// gateway, by which the agent writes flannel's key, no client can be named.
    AnybodyForFlannel,
    /// The same: the certificate that the API server shows was given, and lacks the name or is not to be read here.
    AnybodyAsGiven,
}

/// Decides it for the masters of a cluster.
pub(in crate::kubernetes) fn clients(cluster: &ClusterSpec) -> Clients {
    if !is_shared(cluster) {
        return Clients::OfOwnCa;
    }
    if cluster.has_flannel_unit() {
        return Clients::AnybodyForFlannel;
    }
    let given = cluster.trust.pair("etcd-admin").map(|pair| pair.certificate);
    // With a token nothing less will do: what is given is then checked for the name where it is put in place.
    if given.is_none_or(|certificate| cluster.lets_join_by_token() || is_named(&certificate)) {
        Clients::Named
    } else {
        Clients::AnybodyAsGiven
    }
}

/// Whether the CA signs, or may sign, for others than etcd: whatever is not known to be etcd's alone counts as shared. Of Magnum
/// it is known only when it answers, before 13.0 it has one for all; of a file only when it is put in place.
///
/// Keys are compared, not texts: one key signs for both however its certificate is written, renewed or bundled. A main CA below
/// others, which is no root itself, has to bring them along: else nobody knows whether etcd's is one of them.
fn is_shared(cluster: &ClusterSpec) -> bool {
    let certificates = |signer| match &cluster.trust.ca(signer).certificate {
        Some(Material::Text(text)) => X509::all_from_pem(text).ok(),
        Some(Material::File(_)) | None => None,
    };
    let etcds = certificates(Signer::Etcd).filter(|_| cluster.certificates != CertificateSource::Magnum);
    let Some((etcds, main)) = etcds.zip(certificates(Signer::Kubernetes)) else { return true };
    !is_rooted(&main) || main.iter().any(|one| etcds.iter().any(|etcds| one.is_trusted_with(etcds)))
}

/// Whether every one of these is a root, or signed by one of them that leads to a root.
fn is_rooted(all: &[X509]) -> bool {
    let (mut rooted, mut rest): (Vec<_>, Vec<_>) = all.iter().partition(|one| one.is_self_signed());
    while !rest.is_empty() {
        let (found, left): (Vec<_>, Vec<_>) =
            rest.into_iter().partition(|one| rooted.iter().any(|above| one.is_signed_by(above)));
        if found.is_empty() {
            return false;
        }
        rooted.extend(found);
        rest = left;
    }
    true
}

/// Whether a text holds a certificate with the name of clients.
fn is_named(certificate: &Material) -> bool {
    let Material::Text(text) = certificate else { return false };
    let certificates = X509::all_from_pem(text).unwrap_or_default();
    certificates.first().is_some_and(|leaf| leaf.names.iter().any(|name| name.eq_ignore_ascii_case(CLIENT_NAME)))
}

/// Adds the names of whoever is let in, where [`is_named_at_all`].
pub(in crate::kubernetes) fn add(cluster: &ClusterSpec, part: &mut Desired) {
    let mut content = String::from(MADE);
    content.push_str(&line("ETCD_PEER_CERT_ALLOWED_CN", ETCD_NAME));
    if clients(cluster) == Clients::Named {
        content.push_str(&line(CLIENT_VARIABLE, CLIENT_NAME));
        // etcd is the gateway's client, and fails to verify itself: it would try again and again.
        content.push_str(&line("ETCD_ENABLE_GRPC_GATEWAY", "false"));
    }
    part.directories.push(Directory { needs: BTreeSet::from([Dependency::Certificates]), ..directory(FOLDER) });
    part.files.push(File::public(FILE, content));
}

/// Whether there is such a file.
pub(in crate::kubernetes) fn is_named_at_all(cluster: &ClusterSpec) -> bool {
    cluster.tls
        && crate::kubernetes::parts::etcd_release::version(cluster) >= crate::kubernetes::parts::etcd_release::TRUSTED_CA
        && clients(cluster) != Clients::OfOwnCa
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubernetes::fixtures::{
        ETCDS_CA, ETCDS_OWN, MAIN_CA, assignments, certificate, content, file, master, node, spec,
    };

    const MAGNUM: [(&str, &str); 5] = [
        ("CERTIFICATES", "magnum"),
        ("MAGNUM_URL", "https://magnum.example.org:9511/v1"),
        ("TRUSTEE_USER_ID", "u"),
        ("TRUSTEE_PASSWORD", "p"),
        ("AUTH_URL", "https://keystone.example.org:5000/v3"),
    ];

    fn pem(names: &[&str]) -> String {
        let key = rcgen::KeyPair::generate().unwrap();
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        rcgen::CertificateParams::new(names).unwrap().self_signed(&key).unwrap().pem()
    }

    #[test]
    fn a_client_needs_the_name_wherever_the_ca_signs_for_others_too() {
        let (with_name, without) = (pem(&["x", CLIENT_NAME]), pem(&["x"]));
        let given = |certificate| [("ETCD_ADMIN_CERTIFICATE", certificate), ("ETCD_ADMIN_KEY", "/given/etcd-admin.key")];
        let token = [("BOOTSTRAP_TOKEN", "abcdef.0123456789abcdef")];
        let same = [("ETCD_CA_CERTIFICATE", "/given/ca.crt"), ("ETCD_CA_KEY", "/given/ca.key")];
        for (changes, expected) in [
            (&[][..], Clients::Named),
            (&MAGNUM, Clients::Named),
            (ETCDS_OWN, Clients::OfOwnCa),
            (&same, Clients::Named),
            (&token, Clients::Named),
            (&[("KUBE_TAG", "v1.9.6")], Clients::AnybodyForFlannel),
            (&[&[("KUBE_TAG", "v1.9.6")][..], ETCDS_OWN].concat(), Clients::OfOwnCa),
            (&[("KUBE_TAG", "v1.9.6"), ("NETWORK_DRIVER", "calico")], Clients::Named),
            (&given(&with_name), Clients::Named),
            (&given(&without), Clients::AnybodyAsGiven),
            (&given("/given/etcd-admin.crt"), Clients::AnybodyAsGiven),
            (&[given("/given/etcd-admin.crt").as_slice(), &token].concat(), Clients::Named),
        ] {
            let spec = spec(changes);
            assert_eq!(clients(spec.kubernetes.as_ref().unwrap()), expected, "{changes:?}");
            let desired = node(changes);
            let names = &certificate(&desired, "etcd-admin").unwrap().names;
            assert_eq!(names.iter().any(|name| name == CLIENT_NAME), expected == Clients::Named, "{changes:?}");
            let found = file(&desired, FILE).map(|file| assignments(&file.content)).unwrap_or_default();
            let value = |key: &str| found.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str());
            assert_eq!(value(CLIENT_VARIABLE), (expected == Clients::Named).then_some(CLIENT_NAME), "{changes:?}");
            let peers = (expected != Clients::OfOwnCa).then_some("etcd");
            assert_eq!(value("ETCD_PEER_CERT_ALLOWED_CN"), peers, "{changes:?}");
        }
    }

    /// Attack: etcd's own CA was told from the cluster's by comparing texts.
    #[test]
    fn a_ca_is_etcds_own_only_where_no_key_of_it_is_the_clusters() {
        let ca = |subject: &str, key: &rcgen::KeyPair, issuer: Option<&rcgen::Issuer<'_, rcgen::KeyPair>>| {
            let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
            params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
            params.distinguished_name.push(rcgen::DnType::CommonName, subject);
            let made = issuer.map_or_else(|| params.self_signed(key), |issuer| params.signed_by(key, issuer));
            (made.unwrap().pem(), params)
        };
        let (main_key, etcds_key) = (rcgen::KeyPair::generate().unwrap(), rcgen::KeyPair::generate().unwrap());
        let (main, _) = ca("kubernetes", &main_key, None);
        let (renewed, renamed) = (ca("kubernetes", &main_key, None).0, ca("etcd", &main_key, None).0);
        let (own, params) = ca("kubernetes", &etcds_key, None);
        let issuer = rcgen::Issuer::new(params, etcds_key);
        let (below_etcds, _) = ca("below", &main_key, Some(&issuer));
        let namesake = ca("kubernetes", &main_key, Some(&issuer)).0;
        // etcd's root, below it a policy CA, below that the main one; and the same below a root that has nothing to do with etcd's.
        let middle_key = rcgen::KeyPair::generate().unwrap();
        let (middle, params) = ca("policy", &middle_key, Some(&issuer));
        let far = ca("far", &main_key, Some(&rcgen::Issuer::new(params, middle_key))).0;
        let (root_key, middle_key) = (rcgen::KeyPair::generate().unwrap(), rcgen::KeyPair::generate().unwrap());
        let (root, params) = ca("root", &root_key, None);
        let (other_middle, params) = ca("other policy", &middle_key, Some(&rcgen::Issuer::new(params, root_key)));
        let other_far = ca("far", &main_key, Some(&rcgen::Issuer::new(params, middle_key))).0;
        let whole = format!("{other_far}{other_middle}{root}");
        let decoy = ca("policy", &rcgen::KeyPair::generate().unwrap(), None).0;
        let base64: String = main.lines().filter(|line| !line.starts_with('-')).collect();
        let lines: Vec<_> = base64.as_bytes().chunks(76).map(|line| String::from_utf8_lossy(line)).collect();
        let rewrapped = format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", lines.join("\n"));
        let (crlf, twice) = (main.replace('\n', "\r\n"), main.repeat(2));
        let (own_first, main_first) = (format!("{own}{main}"), format!("{main}{own}"));
        for (main, etcds, shared) in [
            (main.as_str(), own.as_str(), false),
            (&main, &main, true),
            (&main, &crlf, true),
            (&main, &rewrapped, true),
            (&main, &twice, true),
            (&main, &renewed, true),
            (&main, &renamed, true),
            (&main, &own_first, true),
            (&main, &main_first, true),
            (&own_first, &main, true),
            (&main_first, &own, true),
            (&below_etcds, &own, true),
            (&main, &below_etcds, true),
            (&own, &below_etcds, false),
            (MAIN_CA, ETCDS_CA, false),
            // Attack: only one issuer was looked up. And an issuer of the same name is another one all the same.
            (&far, &own, true),
            (&format!("{far}{middle}"), &own, true),
            (&other_far, &own, true),
            (&format!("{other_far}{other_middle}"), &own, true),
            (&whole, &own, false),
            (&namesake, &own, true),
            (&format!("{far}{decoy}"), &own, true),
            // A file may hold anything, and so may what cannot be read.
            (&main, "/given/etcd-ca.crt", true),
            ("/given/ca.crt", &own, true),
            ("/given/ca.crt", "/given/etcd-ca.crt", true),
            ("/given/ca.crt", "/given//ca.crt", true),
            (&main, "-----BEGIN CERTIFICATE-----\nAA\n-----END CERTIFICATE-----\n", true),
        ] {
            let changes = [("CA_CERTIFICATE", main), ("ETCD_CA_CERTIFICATE", etcds), ("ETCD_CA_KEY", "/given/etcd-ca.key")];
            assert_eq!(is_shared(spec(&changes).kubernetes.as_ref().unwrap()), shared, "{main} {etcds}");
        }
    }

    /// A rolling update: what peers are asked for is what the certificate of every older agent, and of Magnum, says already.
    #[test]
    fn peers_are_known_by_the_subject_that_they_always_had() {
        let desired = master(28, &[]);
        assert_eq!(certificate(&desired, "etcd-server").unwrap().common_name, "etcd");
        assert!(!certificate(&desired, "etcd-server").unwrap().names.iter().any(|name| name == CLIENT_NAME));
    }

    /// Else a master that Magnum signs nothing for any more is locked out of its own etcd by the next reboot.
    #[test]
    fn the_names_are_written_after_the_certificates_that_bear_them() {
        let desired = master(28, &[]);
        let folder = desired.directories.iter().find(|one| one.path == FOLDER).unwrap();
        assert_eq!(folder.needs, BTreeSet::from([Dependency::Certificates]));
        let drop_in = content(&desired, super::super::etcd::DROP_IN);
        assert!(drop_in.contains(&format!("\nEnvironmentFile=-{FILE}\n")), "{drop_in}");
        let unit = desired.units.iter().find(|one| one.name == "etcd.service").unwrap();
        assert!(unit.restart_on.contains(FILE) && unit.restart_on.contains("/etc/etcd/certs/ca.crt"));
        for changes in
            [ETCDS_OWN, &[("KUBE_TAG", "v1.15.3"), ("TLS_DISABLED", "true"), ("CERTIFICATES", ""), ("KUBE_API_PORT", "8080")]]
        {
            let desired = node(changes);
            assert!(file(&desired, FILE).is_none() && !content(&desired, super::super::etcd::DROP_IN).contains("allowed"));
        }
    }

    #[test]
    fn no_node_can_be_called_as_a_client_of_etcd_is() {
        let row = crate::kubernetes::parameters::table::find("INSTANCE_NAME").unwrap();
        assert!(row.kind.normalised(CLIENT_NAME).is_none());
    }
}
