//! Certificates that a node wants, with their places: requests, which hold no key.
//!
//! The set is Magnum's (magnum-node.md 4.3), with certificates of their own for controller manager and scheduler, which
//! Magnum's nodes let act as the cluster's administrator. Names and addresses are computed, never put together from text
//! (magnum-node.md 7.5 no. 67).
//!
//! In: a cluster's specification, a role, facts about the machine. Out: requests for certificates, as a part of the [`Desired`]. Never: a key that the parameters do
//! not give, or a question to a disk or network.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use super::control_plane::etcd_access::{self, CLIENT_NAME, Clients};
use super::control_plane::{apiserver, podmaster};
use super::parts::certificates::{
    ADMIN, CLUSTER_CA, CLUSTER_CA_KEY, CONTROLLER_MANAGER, ETCD_CA, ETCD_CLIENT, ETCD_NAME, ETCD_SERVER, FRONT_PROXY,
    FRONT_PROXY_CA, FRONT_PROXY_NAME, KUBELET, PROXY, Pair, SCHEDULER, SERVER, SERVICE_ACCOUNT, SERVICE_ACCOUNT_PRIVATE,
    SIGNING_CA, has_front_proxy, service_account_keys,
};
use super::parts::directories::{add_directory, directory};
use super::spec::cluster::{CERTIFICATES, ClusterSpec, EtcdCluster, MachineFacts};
use super::spec::node::NodeSpec;
use super::spec::words::CertificateSource;
use super::spec::words::Role;
use super::versions::given;
use crate::desired::{CaCertificate, Certificate, Desired, File, KeyRequest, Material, Owner, RenewalSlot, Signer};
use crate::digest::key_of;
use crate::gather::Gather;

/// Keys of a node without a certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StandaloneKeys {
    /// What a kubelet that joins by TLS bootstrap gets from the cluster and renews by itself: certificate and key in one file.
    pub kubelet: Option<&'static str>,
    /// What a master signs tokens of service accounts by.
    pub service_accounts: Option<TokenKey>,
}

/// A key that tokens of service accounts are signed by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenKey {
    /// Where it lies.
    pub path: String,
    /// Whether the parameters give it, so that it is the same on every master; else it is this master's own.
    pub is_given: bool,
}

/// The files by which a master signs tokens of service accounts, and verifies them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenKeyFiles {
    /// Of the API server, which signs bound tokens, and of the controller manager, which signs those in secrets.
    pub sign: BTreeSet<String>,
    /// Of the API server.
    pub verify: BTreeSet<String>,
}

/// Those of this node; nothing where it verifies no tokens.
#[must_use]
pub fn token_key_files(spec: &NodeSpec, facts: &MachineFacts) -> Option<TokenKeyFiles> {
    let cluster = spec.kubernetes.as_ref().filter(|_| spec.role == Role::Master)?;
    let keys = service_account_keys(cluster, facts);
    // A user's options win.
    let files = |options: &str, flag: &str, own: Vec<&str>| -> BTreeSet<String> {
        let asked: BTreeSet<String> = given(options).into_iter().filter(|(name, _)| name == flag).map(|(_, path)| path).gather();
        if asked.is_empty() { own.into_iter().map(str::to_owned).gather() } else { asked }
    };
    let (api_server, manager) = (&cluster.options.api_server, &cluster.options.controller_manager);
    let signs = keys.as_ref().map(|keys| keys.sign);
    let signs_itself = cluster.minor.number() >= apiserver::FIRST_WITH_BOUND_TOKENS;
    let bound = signs.filter(|_| signs_itself).into_iter().collect();
    let mut sign = files(api_server, "service-account-signing-key-file", bound);
    sign.extend(files(manager, "service-account-private-key-file", signs.into_iter().collect()));
    let verify = files(api_server, "service-account-key-file", keys.map(|keys| keys.verify).unwrap_or_default());
    (!verify.is_empty()).then_some(TokenKeyFiles { sign, verify })
}

/// Where they lie.
#[must_use]
pub fn standalone_keys(spec: &NodeSpec, facts: &MachineFacts) -> StandaloneKeys {
    let Some(cluster) = &spec.kubernetes else { return StandaloneKeys::default() };
    let master = spec.role == Role::Master;
    let bootstrap = cluster.certificates == CertificateSource::Bootstrap && cluster.wants_certificates() && !master;
    StandaloneKeys {
        kubelet: bootstrap.then_some(super::worker::kubelet::OWN_CERTIFICATE),
        service_accounts: service_account_keys(cluster, facts).filter(|_| master).map(|keys| TokenKey {
            path: keys.sign.to_owned(),
            is_given: cluster.control_plane.service_account_private_key.is_some(),
        }),
    }
}

/// The certificates that a node of this role has, by name, and who signs each.
pub(super) fn wanted(cluster: &ClusterSpec, role: Role) -> Vec<(&'static str, Signer)> {
    let (is_master, flannel) = (role == Role::Master, cluster.has_flannel_unit());
    let named = |there: bool, signer, names: &[&'static str]| {
        names.iter().filter(|_| cluster.tls && there).map(|name| (*name, signer)).collect::<Vec<_>>()
    };
    [
        // A worker that joins by TLS bootstrap gets its identity from the cluster itself.
        named(cluster.certificates != CertificateSource::Bootstrap, Signer::Kubernetes, &["kubelet", "proxy"]),
        named(is_master, Signer::Kubernetes, &["server", "admin"]),
        // Below 1.2 they are static pods, which reach the API in the clear.
        named(is_master && !podmaster::elects(cluster), Signer::Kubernetes, &["controller-manager", "scheduler"]),
        named(is_master && has_front_proxy(cluster), Signer::FrontProxy, &["front-proxy"]),
        named(is_master, Signer::Etcd, &["etcd-server", "etcd-admin"]),
        named(!is_master && flannel && cluster.etcd.server.is_some(), Signer::Etcd, &["flanneld"]),
    ]
    .concat()
}

/// Adds the desired certificates, and the keys that the parameters give.
pub(super) fn part(spec: &NodeSpec, cluster: &ClusterSpec, facts: &MachineFacts) -> Desired {
    let mut part = Desired::default();
    part.directories.push(directory(CERTIFICATES));
    if spec.role == Role::Master {
        add_given_keys(cluster, &mut part);
        if let Some((keys, kind)) = service_account_keys(cluster, facts).and_then(|keys| keys.made.map(|kind| (keys, kind))) {
            let (name, path) = ("service-accounts".to_owned(), keys.sign.to_owned());
            part.keys.push(KeyRequest { name, path, owner: Owner::root(), kind });
        }
    }
    if !cluster.tls {
        return part;
    }
    part.trust = Some(cluster.trust.signing_policy(cluster.certificates, share(spec, cluster)));
    let wanted = wanted(cluster, spec.role);
    add_ca(Signer::Kubernetes, cluster, spec.role, &mut part);
    for (signer, folders) in
        [(Signer::FrontProxy, &["/etc/kubernetes/certs/front-proxy"][..]), (Signer::Etcd, &["/etc/etcd", "/etc/etcd/certs"])]
    {
        if wanted.iter().any(|(_, one)| *one == signer) {
            for path in folders {
                add_directory(path, &mut part);
            }
            add_ca(signer, cluster, spec.role, &mut part);
        }
    }
    for (name, signer) in wanted {
        let wanted = certificate_template(name, spec, cluster);
        part.certificates.push(Certificate {
            name: name.to_owned(),
            signer,
            common_name: wanted.common_name,
            organisations: wanted.organisation.into_iter().map(str::to_owned).collect(),
            names: wanted.names,
            addresses: wanted.addresses,
            serves: wanted.serves,
            path: wanted.pair.certificate.to_owned(),
            key: wanted.pair.key.to_owned(),
            owner: Owner::named(wanted.owner),
            given: cluster.trust.pair(name),
        });
    }
    part
}

/// Between two masters that renew, where their certificates live for years: time to see that the first one is healthy.
const A_DAY: Duration = Duration::from_hours(24);
/// Places of nodes that are told apart by their names alone.
const PLACES: u32 = 1024;

/// When this node renews among the others. Masters come one after the other by `MASTER_INDEX`; without it, and on workers, by their
/// names.
fn share(spec: &NodeSpec, cluster: &ClusterSpec) -> RenewalSlot {
    let masters = match &cluster.etcd.cluster {
        EtcdCluster::Static(members) => members.len(),
        EtcdCluster::Discovery(_) | EtcdCluster::Single => 0,
    };
    let masters = u32::try_from(masters.max(cluster.api.masters.len())).unwrap_or(PLACES);
    let by_name = || {
        let name = key_of(&node_subject(spec));
        u32::from_str_radix(name.get(..6).unwrap_or_default(), 16).unwrap_or_default() % PLACES
    };
    match (spec.role, cluster.master_index) {
        (Role::Master, _) if !cluster.has_several_masters() => RenewalSlot::ALONE,
        (Role::Master, Some(at)) => {
            let of = masters.max(at + 1);
            RenewalSlot { at, of, spread: A_DAY * of }
        }
        (Role::Master, None) => RenewalSlot { at: by_name(), of: PLACES, spread: A_DAY * masters.max(3) },
        (Role::Minion, _) => RenewalSlot { at: by_name(), of: PLACES, spread: A_DAY },
    }
}

fn add_ca(signer: Signer, cluster: &ClusterSpec, role: Role, part: &mut Desired) {
    let path = match signer {
        Signer::Kubernetes => CLUSTER_CA,
        Signer::Etcd => ETCD_CA,
        Signer::FrontProxy => FRONT_PROXY_CA,
    };
    let given = cluster.trust.ca(signer);
    // Lying there it changes together with the CA's certificate: else the controller manager would find a pair that
    // does not match (magnum-node.md 2.8).
    let already_matches = signer == Signer::Kubernetes && role == Role::Master && cluster.signs();
    let signs = role == Role::Master && cluster.certificates == CertificateSource::Given;
    part.cas.push(CaCertificate {
        signer,
        path: path.to_owned(),
        owner: Owner::root(),
        given: given.certificate.clone(),
        signing_key: given.key.clone().filter(|_| signs || already_matches),
        key_path: already_matches.then(|| CLUSTER_CA_KEY.to_owned()),
        signing_path: already_matches.then(|| SIGNING_CA.to_owned()),
    });
}

/// Restarts each unit also when a certificate, key or CA changes that its files name: its settings, its
/// configuration, its kubeconfig.
pub(super) fn add_readers(desired: &mut Desired) {
    let desired_paths: BTreeSet<String> = desired.trusted_paths().into_iter().map(str::to_owned).gather();
    for unit in &mut desired.units {
        let read = desired.files.iter().filter(|file| unit.restart_on.contains(&file.path));
        let named: Vec<String> =
            read.flat_map(|file| paths(&file.content)).filter(|path| desired_paths.contains(*path)).map(str::to_owned).collect();
        unit.restart_on.extend(named);
    }
}

/// What may be a path in a text.
fn paths(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !(c.is_ascii_alphanumeric() || "/._-".contains(c))).filter(|word| word.starts_with('/'))
}

/// Name of the node in its certificate. Without INSTANCE_NAME it is the address, as the node's name in Magnum's releases
/// 3.x was; what a kubelet calls itself matters to the API from 1.7 on, with the Node authorizer.
fn node_subject(spec: &NodeSpec) -> String {
    spec.name.clone().or_else(|| spec.address.map(|address| address.to_string())).unwrap_or_else(|| "node".to_owned())
}

/// What a certificate is to say (magnum-node.md 4.3), and where it lies.
struct CertificateTemplate {
    common_name: String,
    organisation: Option<&'static str>,
    names: Vec<String>,
    addresses: Vec<IpAddr>,
    serves: bool,
    pair: &'static Pair,
    owner: &'static str,
}

fn certificate_template(name: &str, spec: &NodeSpec, cluster: &ClusterSpec) -> CertificateTemplate {
    let client = |common_name: &str, pair| CertificateTemplate {
        common_name: common_name.to_owned(),
        organisation: None,
        names: Vec::new(),
        addresses: Vec::new(),
        serves: false,
        pair,
        owner: "root",
    };
    let server = |common_name, pair, owner| {
        let (names, addresses) = server_names(spec, cluster);
        CertificateTemplate { names, addresses, serves: true, owner, ..client(common_name, pair) }
    };
    // Health is asked for on the loopback only.
    let local = |common_name, pair| CertificateTemplate {
        names: vec!["localhost".to_owned()],
        addresses: vec![Ipv4Addr::LOCALHOST.into()],
        serves: true,
        ..client(common_name, pair)
    };
    match name {
        "kubelet" => CertificateTemplate {
            organisation: Some("system:nodes"),
            names: spec.name.iter().cloned().collect(),
            addresses: spec.address.into_iter().chain(cluster.node.public).collect(),
            serves: true,
            ..client(&format!("system:node:{}", node_subject(spec)), &KUBELET)
        },
        "proxy" => CertificateTemplate { organisation: Some("system:node-proxier"), ..client("system:kube-proxy", &PROXY) },
        "server" => server("kubernetes", &SERVER, "root"),
        "controller-manager" => local("system:kube-controller-manager", &CONTROLLER_MANAGER),
        "scheduler" => local("system:kube-scheduler", &SCHEDULER),
        "front-proxy" => client(FRONT_PROXY_NAME, &FRONT_PROXY),
        "etcd-server" => server(ETCD_NAME, &ETCD_SERVER, "etcd"),
        "etcd-admin" => CertificateTemplate {
            names: (etcd_access::clients(cluster) == Clients::Named).then(|| CLIENT_NAME.to_owned()).into_iter().collect(),
            ..client(ETCD_NAME, &ETCD_CLIENT)
        },
        "flanneld" => client("flanneld", &ETCD_CLIENT),
        // The API server shows it to kubelets, too.
        _ => CertificateTemplate { organisation: Some("system:masters"), ..client("admin", &ADMIN) },
    }
}

/// Names and addresses by which the API server and etcd of this master are reached (magnum-node.md 4.3, the full set).
fn server_names(spec: &NodeSpec, cluster: &ClusterSpec) -> (Vec<String>, Vec<IpAddr>) {
    let fixed = ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost"].map(str::to_owned);
    let domain = format!("kubernetes.default.svc.{}", cluster.networks.domain);
    let mut names: Vec<String> = Vec::new();
    for name in spec.name.iter().cloned().chain(fixed).chain([domain]).chain(cluster.api.name.clone()) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let api = &cluster.api;
    let own_loopback = match spec.address {
        Some(IpAddr::V6(_)) => Some(Ipv6Addr::LOCALHOST.into()),
        _ => None,
    };
    // A balancer before etcd: ETCD_LB_VIP, which Magnum gives since 4.x, or the name that its workers have for it.
    let etcd = cluster.etcd.balancer.or(cluster.etcd.server);
    let given = [spec.address, cluster.node.public, api.private, api.public, api.master, etcd];
    let others = [Some(Ipv4Addr::LOCALHOST.into()), own_loopback, cluster.networks.first_service()];
    let mut addresses: Vec<IpAddr> = Vec::new();
    for address in given.into_iter().chain(others).flatten().chain(api.masters.iter().copied()) {
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    (names, addresses)
}

/// Each key is root's alone (magnum-node.md 7.1 no. 9). What lies on the node already stays where it is.
fn add_given_keys(cluster: &ClusterSpec, part: &mut Desired) {
    let control_plane = &cluster.control_plane;
    let private = control_plane.service_account_private_key.as_ref();
    let public = control_plane.service_account_key.as_ref().filter(|_| private.is_some());
    for (path, material, secret) in [(SERVICE_ACCOUNT, public, false), (SERVICE_ACCOUNT_PRIVATE, private, true)] {
        if let Some(Material::Text(content)) = material {
            let (path, content) = (path.to_owned(), content.clone());
            part.files.push(File { path, mode: 0o600, owner: Owner::root(), content, secret });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::desired::GateProbe;
    use crate::kubernetes::fixtures::{arguments, certificate, file, master, node, spec, value};
    use crate::kubernetes::versions::Minor;

    /// magnum-node.md 4.3, with what differs from minor to minor.
    #[test]
    fn a_master_wants_the_whole_set() {
        let desired = master(28, &[]);
        let found: Vec<_> = desired
            .certificates
            .iter()
            .map(|one| {
                let organisation = one.organisations.join(",");
                format!(
                    "{} {} CN={} O={organisation} serves={} {} {} {}",
                    one.name, one.signer, one.common_name, one.serves, one.path, one.key, one.owner.user
                )
            })
            .collect();
        assert_eq!(
            found,
            [
                "kubelet kubernetes CN=system:node:blue-master-0 O=system:nodes serves=true /etc/kubernetes/certs/kubelet.crt /etc/kubernetes/certs/kubelet.key root",
                "proxy kubernetes CN=system:kube-proxy O=system:node-proxier serves=false /etc/kubernetes/certs/proxy.crt /etc/kubernetes/certs/proxy.key root",
                "server kubernetes CN=kubernetes O= serves=true /etc/kubernetes/certs/server.crt /etc/kubernetes/certs/server.key root",
                "admin kubernetes CN=admin O=system:masters serves=false /etc/kubernetes/certs/admin.crt /etc/kubernetes/certs/admin.key root",
                "controller-manager kubernetes CN=system:kube-controller-manager O= serves=true /etc/kubernetes/certs/controller-manager.crt /etc/kubernetes/certs/controller-manager.key root",
                "scheduler kubernetes CN=system:kube-scheduler O= serves=true /etc/kubernetes/certs/scheduler.crt /etc/kubernetes/certs/scheduler.key root",
                "front-proxy front-proxy CN=front-proxy O= serves=false /etc/kubernetes/certs/front-proxy/server.crt /etc/kubernetes/certs/front-proxy/server.key root",
                "etcd-server etcd CN=etcd O= serves=true /etc/etcd/certs/server.crt /etc/etcd/certs/server.key etcd",
                "etcd-admin etcd CN=etcd O= serves=false /etc/etcd/certs/admin.crt /etc/etcd/certs/admin.key root",
            ]
        );
        let cas: Vec<_> = desired.cas.iter().map(|one| (one.signer, one.path.as_str())).collect();
        assert_eq!(cas, [(Signer::Kubernetes, CLUSTER_CA), (Signer::FrontProxy, FRONT_PROXY_CA), (Signer::Etcd, ETCD_CA)]);
        for (minor, there) in [(1, false), (6, false), (7, true), (37, true)] {
            assert_eq!(certificate(&master(minor, &[]), "front-proxy").is_some(), there, "{minor}");
        }
    }

    /// Nodes of every kind that read certificates: both roles in every minor, with what switches further readers on.
    fn nodes() -> Vec<(String, Desired)> {
        let sign = [("CERT_MANAGER_API", "true"), ("NETWORK_DRIVER", "calico")];
        let keystone = [
            ("KEYSTONE_AUTH_ENABLED", "true"),
            ("AUTH_URL", "https://keystone.example.org:5000/v3"),
            ("TRUSTEE_USER_ID", "u"),
            ("TRUSTEE_PASSWORD", "p"),
        ];
        let balancer = [("API_BALANCER", "haproxy"), ("MASTER_ADDRESSES", "192.0.2.12")];
        let mut nodes = Vec::new();
        for minor in 1..=Minor::NEWEST.number() {
            let further = if minor < 6 { &[][..] } else { &balancer };
            for changes in [&[][..], &sign, &keystone, further] {
                nodes.push((format!("1.{minor} master {changes:?}"), master(minor, changes)));
            }
            for changes in [&[][..], &balancer, &[("KUBEPROXY_OPTIONS", "--v=4")]] {
                let tag = format!("v1.{minor}.3");
                let own = [("KUBE_TAG", tag.as_str()), ("ROLE", "minion"), ("KUBE_MASTER_IP", "192.0.2.5")];
                nodes.push((format!("1.{minor} worker {changes:?}"), node(&[&own[..], changes].concat())));
            }
        }
        nodes
    }

    #[test]
    fn every_certificate_has_a_reader_and_what_is_read_is_desired() {
        for (what, desired) in nodes() {
            let identities = desired.gates.iter().filter_map(|gate| match &gate.probe {
                GateProbe::HttpJson { identity, .. } | GateProbe::Http { identity, .. } => identity.as_ref(),
                _ => None,
            });
            let asked: Vec<&str> = identities.flat_map(|one| [&one.certificate, &one.key, &one.ca]).map(String::as_str).collect();
            let named: BTreeSet<&str> = desired.files.iter().flat_map(|file| paths(&file.content)).chain(asked).collect();
            for path in desired.trusted_paths() {
                assert!(named.contains(path), "{what}: nobody reads {path}");
            }
            let desired_paths = desired.trusted_paths();
            for path in named.into_iter().filter(|path| path.contains("/certs/")) {
                let there = desired_paths.contains(path) || desired.files.iter().any(|file| file.path == path);
                assert!(there, "{what}: nobody makes {path}");
            }
        }
    }

    /// Those that read it, and only those.
    #[test]
    fn readers_are_restarted_and_nobody_else() {
        let (api, etcd, flanneld) = ("kube-apiserver.service", "etcd.service", "flanneld.service");
        let (kubelet, proxy, manager, scheduler) =
            ("kubelet.service", "kube-proxy.service", "kube-controller-manager.service", "kube-scheduler.service");
        let sign = [("CERT_MANAGER_API", "true")];
        for (minor, changes, path, expected) in [
            (28, &[][..], CLUSTER_CA, &[api, manager, scheduler, kubelet, proxy][..]),
            (28, &[], SERVER.key, &[api]),
            (28, &[], SERVICE_ACCOUNT_PRIVATE, &[api, manager]),
            (28, &[], SERVER.certificate, &[api]),
            (
                28,
                &[("KUBE_SERVICE_ACCOUNT_KEY", "/given/a"), ("KUBE_SERVICE_ACCOUNT_PRIVATE_KEY", "/given/b")],
                SERVER.key,
                &[api],
            ),
            (28, &[], ADMIN.key, &[api]),
            (28, &[], KUBELET.key, &[kubelet]),
            (5, &[], KUBELET.key, &[kubelet]),
            (28, &[], PROXY.certificate, &[proxy]),
            (28, &[], CONTROLLER_MANAGER.key, &[manager]),
            (28, &[], SCHEDULER.key, &[scheduler]),
            (28, &[], FRONT_PROXY.key, &[api]),
            (28, &[], FRONT_PROXY_CA, &[api]),
            (28, &[], ETCD_CA, &[etcd, api]),
            (28, &[], ETCD_SERVER.key, &[etcd]),
            (28, &[], ETCD_CLIENT.key, &[api]),
            (9, &[], ETCD_CLIENT.key, &[api, flanneld]),
            // The API server of 1.2 reaches etcd in the clear; what asks etcd how it is reads it afresh.
            (2, &[], ETCD_CLIENT.key, &[flanneld]),
            (28, &sign, CLUSTER_CA_KEY, &[manager]),
        ] {
            let desired = master(minor, changes);
            let found: Vec<_> =
                desired.units.iter().filter(|unit| unit.restart_on.contains(path)).map(|unit| unit.name.as_str()).collect();
            assert_eq!(found, expected, "1.{minor} {changes:?} {path}");
        }
        let worker = [("ROLE", "minion"), ("API_BALANCER", "haproxy"), ("MASTER_ADDRESSES", "192.0.2.12")];
        let desired = node(&worker);
        let readers = desired.units.iter().filter(|unit| unit.restart_on.contains(CLUSTER_CA)).map(|unit| unit.name.as_str());
        assert_eq!(readers.collect::<Vec<_>>(), [kubelet, proxy, "haproxy.service"]);
    }

    /// magnum-node.md 2.8: the key changes together with the certificate that it belongs to, so it is no file of its own.
    #[test]
    fn keys_of_cas_lie_where_somebody_signs_by_them() {
        let key = Some(Material::File("/given/ca.key".to_owned()));
        let magnum = [
            ("CERTIFICATES", "magnum"),
            ("MAGNUM_URL", "https://magnum.example.org:9511/v1"),
            ("USER_TOKEN", "t"),
            ("CA_KEY", "/given/ca.key"),
        ];
        let with_manager = [&magnum[..], &[("CERT_MANAGER_API", "true")]].concat();
        for (minor, changes, signing_key, already_matches) in [
            (28, &[][..], key.clone(), false),
            (28, &[("CERT_MANAGER_API", "true")], key.clone(), true),
            (28, &[("BOOTSTRAP_TOKEN", "abcdef.0123456789abcdef")], key.clone(), true),
            (3, &[("CERT_MANAGER_API", "true")], key.clone(), false),
            (28, &magnum, None, false),
            (28, &with_manager, key.clone(), true),
        ] {
            let desired = master(minor, changes);
            let main = desired.cas.iter().find(|one| one.signer == Signer::Kubernetes).unwrap();
            assert_eq!(main.signing_key, signing_key, "{changes:?}");
            assert_eq!(main.key_path.as_deref(), already_matches.then_some(CLUSTER_CA_KEY), "{changes:?}");
            assert!(desired.cas.iter().all(|one| one.signer == Signer::Kubernetes || one.key_path.is_none()));
            assert!(file(&desired, CLUSTER_CA_KEY).is_none());
        }
        // The main CA is etcd's and the front proxy's, where nothing else is given.
        assert!(master(28, &[]).cas.iter().all(|one| one.signing_key == key && one.given.is_some()));
    }

    #[test]
    fn what_is_given_is_taken_and_only_by_its_name() {
        let desired = master(28, &[("ETCD_SERVER_CERTIFICATE", "/given/e.crt"), ("ETCD_SERVER_KEY", "/given/e.key")]);
        for one in &desired.certificates {
            assert_eq!(one.given.is_some(), one.name == "etcd-server", "{}", one.name);
        }
        let given = certificate(&desired, "etcd-server").unwrap().given.clone().unwrap();
        assert_eq!(given.key, Material::File("/given/e.key".to_owned()));
    }

    /// A path is named as it is, a text is written; either way the API server and the controller manager read the same.
    #[test]
    fn the_files_that_sign_and_verify_tokens_are_those_that_the_programs_read() {
        let files = |minor, changes: &[(&str, &str)]| {
            let tag = format!("v1.{minor}.3");
            let spec = spec(&[&[("KUBE_TAG", tag.as_str())], changes].concat());
            let found = token_key_files(&spec, &MachineFacts::default()).unwrap();
            [found.sign, found.verify].map(|paths| paths.into_iter().collect::<Vec<_>>().join(" "))
        };
        let own = SERVICE_ACCOUNT_PRIVATE;
        assert_eq!(files(28, &[]), [own, own]);
        let given = [("KUBE_SERVICE_ACCOUNT_KEY", "/given/sa.pub"), ("KUBE_SERVICE_ACCOUNT_PRIVATE_KEY", "/given/sa.key")];
        assert_eq!(files(28, &given), ["/given/sa.key", "/given/sa.pub"]);
        let options =
            "--service-account-key-file=/a.pub --service_account_key_file /b.pub --service-account-signing-key-file=/b.key";
        let asked = [&given[..], &[("KUBEAPI_OPTIONS", options)]].concat();
        // The controller manager still signs by the pair.
        assert_eq!(files(28, &asked), ["/b.key /given/sa.key", "/a.pub /b.pub"]);
        // Before 1.12 it alone signs.
        let asked = [&given[..], &[("KUBECONTROLLER_OPTIONS", "--service-account-private-key-file=/c.key")]].concat();
        assert_eq!(files(11, &asked), ["/c.key", "/given/sa.pub"]);
        assert_eq!(files(12, &asked), ["/c.key /given/sa.key", "/given/sa.pub"]);
    }

    #[test]
    fn service_accounts_have_the_keys_of_the_parameters_wherever_they_lie() {
        let text = "-----BEGIN RSA PRIVATE KEY-----\\nBB\\n-----END RSA PRIVATE KEY-----\\n";
        for (private, expected) in [("/given/sa.key", "/given/sa.key"), (text, SERVICE_ACCOUNT_PRIVATE)] {
            let desired =
                master(28, &[("KUBE_SERVICE_ACCOUNT_KEY", "/given/sa.pub"), ("KUBE_SERVICE_ACCOUNT_PRIVATE_KEY", private)]);
            let api_server = arguments(&desired, "kube-apiserver.service");
            assert_eq!(value(&api_server, "service-account-key-file"), Some("/given/sa.pub"));
            assert_eq!(value(&api_server, "service-account-signing-key-file"), Some(expected));
            let manager = arguments(&desired, "kube-controller-manager.service");
            assert_eq!(value(&manager, "service-account-private-key-file"), Some(expected));
            assert_eq!(file(&desired, SERVICE_ACCOUNT_PRIVATE).is_some(), private == text);
        }
    }

    #[test]
    fn every_certificate_lies_in_a_directory_that_is_made() {
        for minor in [1, 5, 28] {
            let desired = master(minor, &[]);
            let paths = desired.certificates.iter().flat_map(|one| [&one.path, &one.key]);
            for path in paths.chain(desired.cas.iter().map(|one| &one.path)) {
                let folder = path.rsplit_once('/').unwrap().0;
                assert!(desired.directories.iter().any(|one| one.path == folder), "{path}");
            }
        }
    }

    /// magnum-node.md 4.3 (full set); 7.5 no. 67 (computed), 68 (only addresses)
    #[test]
    fn servers_are_named_as_they_are_reached() {
        let desired = master(
            28,
            &[
                ("KUBE_API_PUBLIC_ADDRESS", "203.0.113.40"),
                ("KUBE_API_PRIVATE_ADDRESS", "10.0.0.17"),
                ("KUBE_NODE_PUBLIC_IP", "203.0.113.41"),
                ("ETCD_LB_VIP", "10.0.0.18"),
                ("MASTER_HOSTNAME", "api.blue.example"),
                ("PORTAL_NETWORK_CIDR", "10.254.3.255/20"),
                ("DNS_SERVICE_IP", "10.254.0.10"),
                ("DNS_CLUSTER_DOMAIN", "blue.example"),
                ("MASTER_ADDRESSES", "192.0.2.11,192.0.2.12"),
                ("ETCD_DISCOVERY_URL", "https://discovery.example.org/0f1e"),
            ],
        );
        for name in ["server", "etcd-server"] {
            let found = certificate(&desired, name).unwrap();
            let addresses: Vec<_> = found.addresses.iter().map(ToString::to_string).collect();
            assert_eq!(
                addresses,
                ["192.0.2.11", "203.0.113.41", "10.0.0.17", "203.0.113.40", "10.0.0.18", "127.0.0.1", "10.254.0.1", "192.0.2.12"],
                "{name}"
            );
            assert_eq!(
                found.names,
                [
                    "blue-master-0",
                    "kubernetes",
                    "kubernetes.default",
                    "kubernetes.default.svc",
                    "localhost",
                    "kubernetes.default.svc.blue.example",
                    "api.blue.example"
                ]
            );
        }
        let v6 = master(
            28,
            &[
                ("KUBE_NODE_IP", "2001:db8::11"),
                ("PORTAL_NETWORK_CIDR", "2001:db8:1::/112"),
                ("DNS_SERVICE_IP", ""),
                ("PODS_NETWORK_CIDR", "2001:db8:2::/56"),
            ],
        );
        let addresses: Vec<_> = certificate(&v6, "server").unwrap().addresses.iter().map(ToString::to_string).collect();
        assert_eq!(addresses, ["2001:db8::11", "127.0.0.1", "::1", "2001:db8:1::1"]);
        // Magnum's first releases know the balancer before etcd by the name that workers have for it.
        let old = master(9, &[("ETCD_SERVER_IP", "192.0.2.6")]);
        assert!(certificate(&old, "etcd-server").unwrap().addresses.contains(&"192.0.2.6".parse().unwrap()));
        let local = certificate(&desired, "scheduler").unwrap();
        assert_eq!((local.names.as_slice(), local.addresses.len()), (&["localhost".to_owned()][..], 1));
    }

    #[test]
    fn a_worker_wants_its_own_two_or_asks_the_cluster() {
        let names = |desired: &Desired| desired.certificates.iter().map(|one| one.name.clone()).collect::<Vec<_>>();
        let worker = [("ROLE", "minion"), ("KUBE_MASTER_IP", "192.0.2.5"), ("INSTANCE_NAME", "blue-node-0")];
        let desired = node(&worker);
        assert_eq!(names(&desired), ["kubelet", "proxy"]);
        let kubelet = certificate(&desired, "kubelet").unwrap();
        assert_eq!(
            (kubelet.common_name.as_str(), kubelet.names.join(",")),
            ("system:node:blue-node-0", "blue-node-0".to_owned())
        );
        assert_eq!(kubelet.addresses, ["192.0.2.11".parse::<IpAddr>().unwrap()]);
        assert_eq!(desired.cas.len(), 1);
        let bootstrap: Vec<_> = worker.into_iter().chain([("CERTIFICATES", "bootstrap")]).collect();
        let desired = node(&bootstrap);
        assert!(names(&desired).is_empty() && desired.cas.len() == 1);
        // Before the node authorizer nobody asks a kubelet for its name.
        let unidentified: Vec<_> = worker.into_iter().chain([("INSTANCE_NAME", ""), ("KUBE_TAG", "v1.6.4")]).collect();
        assert_eq!(certificate(&node(&unidentified), "kubelet").unwrap().common_name, "system:node:192.0.2.11");
    }
}
