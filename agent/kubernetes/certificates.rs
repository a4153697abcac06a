//! Certificates that a node wants, with their places: wishes, which hold no key.
//!
//! The set is Magnum's (magnum-node.md 4.3), with certificates of their own for controller manager and scheduler, which
//! Magnum's nodes let act as the cluster's administrator. Names and addresses are computed, never put together from text
//! (magnum-node.md 7.5 no. 67).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::cluster::{CERTIFICATES, CertificateSource, ClusterSpec, Facts};
use super::host::directory;
use super::node_spec::{NodeSpec, Role, Secret};
use crate::desired::{Authority, Certificate, Desired, File, Owner, Signer};

/// A certificate and its key.
pub(super) struct Pair {
    pub(super) certificate: &'static str,
    pub(super) key: &'static str,
}

macro_rules! pair {
    ($stem:literal) => {
        Pair { certificate: concat!($stem, ".crt"), key: concat!($stem, ".key") }
    };
}

/// The cluster's main authority.
pub(super) const AUTHORITY: &str = "/etc/kubernetes/certs/ca.crt";
/// Its key, on masters that sign.
pub(super) const AUTHORITY_KEY: &str = "/etc/kubernetes/certs/ca.key";
/// What the API server shows; Magnum's Keystone webhook shows it, too.
pub(super) const SERVER: Pair = pair!("/etc/kubernetes/certs/server");
/// The kubelet, as a client and as a server.
pub(super) const KUBELET: Pair = pair!("/etc/kubernetes/certs/kubelet");
/// kube-proxy as a client.
pub(super) const PROXY: Pair = pair!("/etc/kubernetes/certs/proxy");
/// The administrator, which root and the API server (towards kubelets) are.
pub(super) const ADMIN: Pair = pair!("/etc/kubernetes/certs/admin");
/// The controller manager, as a client and as a server of its health.
pub(super) const CONTROLLER_MANAGER: Pair = pair!("/etc/kubernetes/certs/controller-manager");
/// The scheduler, as a client and as a server of its health.
pub(super) const SCHEDULER: Pair = pair!("/etc/kubernetes/certs/scheduler");
/// The authority of the API server as a proxy.
pub(super) const FRONT_PROXY_AUTHORITY: &str = "/etc/kubernetes/certs/front-proxy/ca.crt";
/// The API server as a proxy.
pub(super) const FRONT_PROXY: Pair = pair!("/etc/kubernetes/certs/front-proxy/server");
/// CN of that certificate, which the API server then lets act for others.
pub(super) const FRONT_PROXY_NAME: &str = "front-proxy";
/// etcd's authority.
pub(super) const ETCD_AUTHORITY: &str = "/etc/etcd/certs/ca.crt";
/// etcd as a server and as a peer.
pub(super) const ETCD_SERVER: Pair = pair!("/etc/etcd/certs/server");
/// The API server as etcd's client.
pub(super) const ETCD_CLIENT: Pair = pair!("/etc/etcd/certs/admin");
/// Public key of service accounts, where the parameters give one.
const SERVICE_ACCOUNT: &str = "/etc/kubernetes/certs/service_account.key";
/// Private key of service accounts, where the parameters give one.
const SERVICE_ACCOUNT_PRIVATE: &str = "/etc/kubernetes/certs/service_account_private.key";

/// Keys that service accounts' tokens are verified and signed by.
pub(super) struct ServiceAccountKeys {
    pub(super) verify: &'static str,
    pub(super) sign: &'static str,
}

/// The keys, if there are any.
///
/// All masters must have the same (magnum-node.md 7.5 no. 59). Without a key in the parameters the API server's own
/// stands in for it, as on Magnum's nodes up to 6.x: good for one master. Before 1.6 Kubernetes reads RSA keys only,
/// while ours are ECDSA.
pub(super) fn service_account_keys(cluster: &ClusterSpec) -> Option<ServiceAccountKeys> {
    let control_plane = &cluster.control_plane;
    if control_plane.service_account_private_key.is_some() {
        let verify = if control_plane.service_account_key.is_some() { SERVICE_ACCOUNT } else { SERVICE_ACCOUNT_PRIVATE };
        return Some(ServiceAccountKeys { verify, sign: SERVICE_ACCOUNT_PRIVATE });
    }
    (cluster.tls && cluster.minor.number() >= 6).then_some(ServiceAccountKeys { verify: SERVER.key, sign: SERVER.key })
}

/// Whether the minor has the API server as a proxy of aggregated APIs (`--proxy-client-cert-file`).
pub(super) fn has_front_proxy(cluster: &ClusterSpec) -> bool {
    cluster.tls && cluster.minor.number() >= 7
}

/// Adds the wishes, and the keys that the parameters give.
pub(super) fn add(spec: &NodeSpec, cluster: &ClusterSpec, _facts: &Facts, desired: &mut Desired) {
    desired.directories.push(directory(CERTIFICATES));
    if spec.role == Role::Master {
        add_given_keys(cluster, desired);
    }
    if !cluster.wants_certificates() {
        return;
    }
    authority(Signer::Kubernetes, AUTHORITY, desired);
    let node = node_subject(spec);
    // A worker that joins by TLS bootstrap gets its identity from the cluster itself.
    if cluster.certificates != CertificateSource::Bootstrap {
        let kubelet = Wish {
            common_name: format!("system:node:{node}"),
            organisation: Some("system:nodes"),
            names: spec.name.iter().cloned().collect(),
            addresses: spec.address.into_iter().chain(cluster.node.public).collect(),
            serves: true,
            ..Wish::client("kubelet", &KUBELET)
        };
        kubelet.add(desired);
        let proxy = Wish { organisation: Some("system:node-proxier"), ..Wish::client("proxy", &PROXY) };
        proxy.named("system:kube-proxy").add(desired);
    }
    if spec.role == Role::Master {
        add_master(spec, cluster, desired);
    }
}

/// Name of the node in its certificate. Without INSTANCE_NAME it is the address, as the node's name in Magnum's releases
/// 3.x was; what a kubelet calls itself matters to the API from 1.7 on, with the Node authorizer.
fn node_subject(spec: &NodeSpec) -> String {
    spec.name.clone().or_else(|| spec.address.map(|address| address.to_string())).unwrap_or_else(|| "node".to_owned())
}

fn add_master(spec: &NodeSpec, cluster: &ClusterSpec, desired: &mut Desired) {
    let (names, addresses) = server_names(spec, cluster);
    let server = |name, pair, signer, owner: &str| Wish {
        signer,
        names: names.clone(),
        addresses: addresses.clone(),
        serves: true,
        owner: Owner::named(owner),
        ..Wish::client(name, pair)
    };
    // Health is asked for on the loopback only.
    let local = |name, pair| Wish {
        names: vec!["localhost".to_owned()],
        addresses: vec![Ipv4Addr::LOCALHOST.into()],
        serves: true,
        ..Wish::client(name, pair)
    };
    server("server", &SERVER, Signer::Kubernetes, "root").named("kubernetes").add(desired);
    Wish { organisation: Some("system:masters"), ..Wish::client("admin", &ADMIN) }.add(desired);
    local("controller-manager", &CONTROLLER_MANAGER).named("system:kube-controller-manager").add(desired);
    local("scheduler", &SCHEDULER).named("system:kube-scheduler").add(desired);
    if has_front_proxy(cluster) {
        desired.directories.push(directory("/etc/kubernetes/certs/front-proxy"));
        authority(Signer::FrontProxy, FRONT_PROXY_AUTHORITY, desired);
        Wish { signer: Signer::FrontProxy, ..Wish::client("front-proxy", &FRONT_PROXY) }.named(FRONT_PROXY_NAME).add(desired);
    }
    desired.directories.push(directory("/etc/etcd/certs"));
    authority(Signer::Etcd, ETCD_AUTHORITY, desired);
    server("etcd-server", &ETCD_SERVER, Signer::Etcd, "etcd").named("etcd").add(desired);
    Wish { signer: Signer::Etcd, ..Wish::client("etcd-admin", &ETCD_CLIENT) }.named("etcd").add(desired);
}

/// Names and addresses by which the API server and etcd of this master are reached (magnum-node.md 4.3, the full set).
fn server_names(spec: &NodeSpec, cluster: &ClusterSpec) -> (Vec<String>, Vec<IpAddr>) {
    let fixed = ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost"].map(str::to_owned);
    let domain = format!("kubernetes.default.svc.{}", cluster.networks.domain);
    let mut names: Vec<String> = Vec::new();
    for name in spec.name.iter().cloned().chain(fixed).chain([domain]) {
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

/// Each key is root's alone (magnum-node.md 7.1 no. 9).
fn add_given_keys(cluster: &ClusterSpec, desired: &mut Desired) {
    let control_plane = &cluster.control_plane;
    let private = control_plane.service_account_private_key.as_ref().map(Secret::reveal);
    let ca_key = control_plane.ca_key.as_ref().filter(|_| cluster.signs()).map(Secret::reveal);
    for (path, content, secret) in [
        (SERVICE_ACCOUNT, control_plane.service_account_key.as_deref().filter(|_| private.is_some()), false),
        (SERVICE_ACCOUNT_PRIVATE, private, true),
        (AUTHORITY_KEY, ca_key, true),
    ] {
        if let Some(content) = content {
            let content = format!("{}\n", content.trim_end());
            desired.files.push(File { path: path.to_owned(), mode: 0o600, owner: Owner::root(), content, secret });
        }
    }
}

fn authority(signer: Signer, path: &str, desired: &mut Desired) {
    desired.authorities.push(Authority { signer, path: path.to_owned(), owner: Owner::root() });
}

/// A wish in the making; a client of the main authority unless it says otherwise.
struct Wish<'a> {
    name: &'static str,
    signer: Signer,
    common_name: String,
    organisation: Option<&'static str>,
    names: Vec<String>,
    addresses: Vec<IpAddr>,
    serves: bool,
    pair: &'a Pair,
    owner: Owner,
}

impl<'a> Wish<'a> {
    fn client(name: &'static str, pair: &'a Pair) -> Self {
        Self {
            name,
            signer: Signer::Kubernetes,
            common_name: name.to_owned(),
            organisation: None,
            names: Vec::new(),
            addresses: Vec::new(),
            serves: false,
            pair,
            owner: Owner::root(),
        }
    }

    fn named(self, common_name: &str) -> Self {
        Self { common_name: common_name.to_owned(), ..self }
    }

    fn add(self, desired: &mut Desired) {
        desired.certificates.push(Certificate {
            name: self.name.to_owned(),
            signer: self.signer,
            common_name: self.common_name,
            organisations: self.organisation.into_iter().map(str::to_owned).collect(),
            names: self.names,
            addresses: self.addresses,
            serves: self.serves,
            path: self.pair.certificate.to_owned(),
            key: self.pair.key.to_owned(),
            owner: self.owner,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubernetes::fixtures::{certificate, master, node};

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
        let authorities: Vec<_> = desired.authorities.iter().map(|one| (one.signer, one.path.as_str())).collect();
        assert_eq!(
            authorities,
            [(Signer::Kubernetes, AUTHORITY), (Signer::FrontProxy, FRONT_PROXY_AUTHORITY), (Signer::Etcd, ETCD_AUTHORITY)]
        );
        for (minor, there) in [(1, false), (6, false), (7, true), (37, true)] {
            assert_eq!(certificate(&master(minor, &[]), "front-proxy").is_some(), there, "{minor}");
        }
    }

    #[test]
    fn every_certificate_lies_in_a_directory_that_is_made() {
        for minor in [1, 5, 28] {
            let desired = master(minor, &[]);
            let paths = desired.certificates.iter().flat_map(|one| [&one.path, &one.key]);
            for path in paths.chain(desired.authorities.iter().map(|one| &one.path)) {
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
                    "kubernetes.default.svc.blue.example"
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
        assert_eq!(desired.authorities.len(), 1);
        let bootstrap: Vec<_> = worker.into_iter().chain([("CERTIFICATES", "bootstrap")]).collect();
        let desired = node(&bootstrap);
        assert!(names(&desired).is_empty() && desired.authorities.len() == 1);
        // Before the node authorizer nobody asks a kubelet for its name.
        let nameless: Vec<_> = worker.into_iter().chain([("INSTANCE_NAME", ""), ("KUBE_TAG", "v1.6.4")]).collect();
        assert_eq!(certificate(&node(&nameless), "kubelet").unwrap().common_name, "system:node:192.0.2.11");
    }
}
