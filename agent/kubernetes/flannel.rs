//! flannel where it runs as a unit and keeps its leases in etcd: flanneld's flags, and on masters the description of the
//! network that belongs into etcd.
//!
//! Rendered here: the environment file with the command line, the unit's drop-in, the certificates that etcd is reached by,
//! the network's description. Not here, but a matter of the node's network: writing that description into etcd, handing the
//! node's subnet to docker, and measuring the routes. Later versions come as one of the cluster's add-ons, and need of
//! the node only directories, modules and settings of the kernel, which `host` adds.

use std::net::IpAddr;

use serde_json::json;

use super::certificates::{ETCD_AUTHORITY, ETCD_CLIENT};
use super::cluster::{ClusterSpec, Facts, host_of};
use super::daemon::Daemon;
use super::node_spec::{NodeSpec, Role};
use super::versions::quoted;
use crate::desired::{Authority, Certificate, Desired, File, Owner, Signer};

const UNIT: &str = "flanneld.service";
const SETTINGS: &str = "/etc/sysconfig/flanneld";
/// Where Magnum's nodes have it (magnum-node.md 1.6).
const NETWORK: &str = "/etc/sysconfig/flannel-network.json";
/// flanneld's own default, which it needs no flag for.
const PREFIX: &str = "/coreos.com/network";

/// Adds its part.
pub(super) fn add(spec: &NodeSpec, cluster: &ClusterSpec, _facts: &Facts, desired: &mut Desired) {
    if !cluster.has_flannel_in_etcd() {
        return;
    }
    super::host::add_directory("/etc/sysconfig", desired);
    if spec.role == Role::Master {
        desired.files.push(File::public(NETWORK, network(cluster)));
    }
    let Some(etcd) = etcd_address(spec, cluster) else { return };
    let scheme = if cluster.tls { "https" } else { "http" };
    let endpoint = format!("{scheme}://{}:{}", host_of(etcd), cluster.etcd.client_port);
    let mut words = vec![format!("-etcd-endpoints={endpoint}"), format!("-etcd-prefix={PREFIX}"), "-ip-masq=true".to_owned()];
    if let Some(address) = spec.address {
        words.push(format!("-iface={address}"));
    }
    if cluster.tls {
        words.push(format!("-etcd-cafile={ETCD_AUTHORITY}"));
        words.push(format!("-etcd-certfile={}", ETCD_CLIENT.certificate));
        words.push(format!("-etcd-keyfile={}", ETCD_CLIENT.key));
        if spec.role == Role::Minion {
            add_certificate(desired);
        }
    }
    let words: Vec<String> = words.iter().map(|word| quoted(word)).collect();
    let mut daemon = Daemon::new(UNIT, "flanneld", SETTINGS);
    daemon.variables.push(("FLANNEL_OPTIONS", words.join(" ")));
    // It ends when its lease is gone, and is started again (seed-systems.md 8d). It says when it has a subnet.
    daemon.service_lines.push_str("Type=notify\nTimeoutStartSec=infinity\n");
    daemon.add(desired);
}

/// A worker asks etcd where the parameters say, a master its own member.
fn etcd_address(spec: &NodeSpec, cluster: &ClusterSpec) -> Option<IpAddr> {
    match spec.role {
        Role::Master => spec.address,
        Role::Minion => cluster.etcd.server,
    }
}

/// Without a backend every flanneld takes udp, whatever its documentation says (seed-systems.md 8a).
fn network(cluster: &ClusterSpec) -> String {
    let networks = &cluster.networks;
    let document = json!({
        "Network": networks.pods.to_string(),
        "SubnetLen": networks.flannel_subnet_length,
        "Backend": {"Type": networks.flannel_backend},
    });
    format!("{document:#}\n")
}

/// Masters have etcd's certificates anyway.
fn add_certificate(desired: &mut Desired) {
    for path in ["/etc/etcd", "/etc/etcd/certs"] {
        super::host::add_directory(path, desired);
    }
    desired.authorities.push(Authority { signer: Signer::Etcd, path: ETCD_AUTHORITY.to_owned(), owner: Owner::root() });
    desired.certificates.push(Certificate {
        name: "flanneld".to_owned(),
        signer: Signer::Etcd,
        common_name: "flanneld".to_owned(),
        organisations: Vec::new(),
        names: Vec::new(),
        addresses: Vec::new(),
        serves: false,
        path: ETCD_CLIENT.certificate.to_owned(),
        key: ETCD_CLIENT.key.to_owned(),
        owner: Owner::root(),
    });
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{arguments, content, file, node};
    use super::*;

    fn rendered(minor: u16, role: &str, changes: &[(&str, &str)]) -> Desired {
        let tag = format!("v1.{minor}.1");
        let base = [
            ("KUBE_TAG", tag.as_str()),
            ("ROLE", role),
            ("CERTIFICATES", "given"),
            ("KUBE_MASTER_IP", "192.0.2.5"),
            ("ETCD_SERVER_IP", "192.0.2.6"),
        ];
        node(&base.into_iter().chain(changes.iter().copied()).collect::<Vec<_>>())
    }

    #[test]
    fn it_is_a_unit_in_the_first_releases_only() {
        for (minor, changes, there) in
            [(5, &[][..], true), (9, &[], true), (10, &[], false), (9, &[("NETWORK_DRIVER", "calico")], false), (31, &[], false)]
        {
            for role in ["master", "minion"] {
                let desired = rendered(minor, role, changes);
                assert_eq!(desired.units.iter().any(|unit| unit.name == UNIT), there, "1.{minor} {role}");
                assert_eq!(file(&desired, NETWORK).is_some(), there && role == "master");
                // Then pods have their network by CNI, else by docker's bridge.
                assert_eq!(desired.directories.iter().any(|one| one.path == "/opt/cni/bin"), !there, "1.{minor} {role}");
            }
        }
    }

    #[test]
    fn etcd_is_reached_with_and_without_tls() {
        let master = rendered(9, "master", &[]);
        let expected = [
            "-etcd-endpoints=https://192.0.2.11:2379",
            "-etcd-prefix=/coreos.com/network",
            "-ip-masq=true",
            "-iface=192.0.2.11",
            "-etcd-cafile=/etc/etcd/certs/ca.crt",
            "-etcd-certfile=/etc/etcd/certs/admin.crt",
            "-etcd-keyfile=/etc/etcd/certs/admin.key",
        ];
        assert_eq!(arguments(&master, UNIT), expected);
        let minion = rendered(9, "minion", &[]);
        assert_eq!(arguments(&minion, UNIT)[0], "-etcd-endpoints=https://192.0.2.6:2379");
        for desired in [&master, &minion] {
            // Every file that the flags name is wished for, once.
            assert_eq!(desired.certificates.iter().filter(|one| one.path == "/etc/etcd/certs/admin.crt").count(), 1);
            assert_eq!(desired.authorities.iter().filter(|one| one.path == "/etc/etcd/certs/ca.crt").count(), 1);
        }
        let open = rendered(9, "minion", &[("TLS_DISABLED", "True"), ("CERTIFICATES", ""), ("KUBE_NODE_IP", "")]);
        assert_eq!(
            arguments(&open, UNIT),
            ["-etcd-endpoints=http://192.0.2.6:2379", "-etcd-prefix=/coreos.com/network", "-ip-masq=true"]
        );
        assert!(open.certificates.is_empty());
    }

    // seed-systems.md 8a: without a backend every version takes udp.
    #[test]
    fn the_network_always_says_its_backend() {
        for (changes, backend) in
            [(&[][..], "host-gw"), (&[("FLANNEL_BACKEND", "vxlan")], "vxlan"), (&[("FLANNEL_BACKEND", "udp")], "udp")]
        {
            let desired = rendered(9, "master", changes);
            let network: serde_json::Value = serde_json::from_str(content(&desired, NETWORK)).unwrap();
            assert_eq!(network, json!({"Network": "10.100.0.0/16", "SubnetLen": 24, "Backend": {"Type": backend}}));
        }
    }
}
