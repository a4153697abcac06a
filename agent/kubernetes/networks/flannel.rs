//! flannel where it runs as a unit and keeps its leases in etcd: flanneld's flags, the certificates that etcd is reached by, and
//! the description of the network that belongs into etcd.
//!
//! Where it comes as one of the cluster's add-ons, it needs of the node only directories, modules and settings of the kernel,
//! which `host` adds. What the node's own part of the network is, is `pod_network`'s.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::desired::{Dependency, Desired, EtcdAccess, File, FlannelStore};
use crate::desired::{Gate, GateProbe};
use crate::kubernetes::parts::certificates::{ETCD_CA, ETCD_CLIENT};
use crate::kubernetes::parts::daemon::{Daemon, NO_START_TIMEOUT};
use crate::kubernetes::parts::directories::add_directory;
use crate::kubernetes::parts::etcd::client_identity;
use crate::kubernetes::parts::runtime_units;
use crate::kubernetes::spec::cluster::pods;
use crate::kubernetes::spec::cluster::{ClusterSpec, MachineFacts, NetworkDriver, Networks, host_of};
use crate::kubernetes::spec::node::NodeSpec;
use crate::kubernetes::spec::words::Role;
use crate::kubernetes::versions::quoted;
use crate::network::SUBNET_FILES;
use crate::network::flannel::{PREFIX, Subnets, description};

pub(in crate::kubernetes) const UNIT: &str = "flanneld.service";
const ENVIRONMENT_FILE: &str = "/etc/sysconfig/flanneld";
/// Where Magnum's nodes have it (magnum-node.md 1.6). On workers, too: flanneld reads it in etcd when it starts, so that every
/// node restarts its own when it changes.
pub(in crate::kubernetes) const NETWORK: &str = "/etc/sysconfig/flannel-network.json";

/// Its part of the node.
pub(in crate::kubernetes) fn part(spec: &NodeSpec, cluster: &ClusterSpec, facts: &MachineFacts) -> Desired {
    let mut part = Desired::default();
    if !cluster.has_flannel_unit() {
        block(cluster, facts, &mut part);
        return part;
    }
    let Some(store) = store(spec, cluster, facts) else { return part };
    let (endpoint, prefix) = (&store.etcd.endpoint, &store.prefix);
    add_directory("/etc/sysconfig", &mut part);
    part.files.push(File::public(NETWORK, store.description.as_str()));
    let [subnet_file, _] = SUBNET_FILES;
    // Flags that every release from 0.5.0 on has.
    let mut words = vec![
        format!("-etcd-endpoints={endpoint}"),
        format!("-etcd-prefix={prefix}"),
        format!("-subnet-file={subnet_file}"),
        "-ip-masq=true".to_owned(),
    ];
    if let Some(address) = spec.address {
        words.push(format!("-iface={address}"));
    }
    if cluster.tls {
        words.push(format!("-etcd-cafile={ETCD_CA}"));
        words.push(format!("-etcd-certfile={}", ETCD_CLIENT.certificate));
        words.push(format!("-etcd-keyfile={}", ETCD_CLIENT.key));
    }
    let words: Vec<String> = words.iter().map(|word| quoted(word)).collect();
    let mut daemon = Daemon::new(UNIT, "flanneld", ENVIRONMENT_FILE);
    // What Fedora's own scripts and people read: the names of the first packages and of later ones (magnum-node.md 1.6).
    daemon.unexpanded = vec![
        ("FLANNEL_ETCD", endpoint.clone()),
        ("FLANNEL_ETCD_KEY", prefix.clone()),
        ("FLANNEL_ETCD_ENDPOINTS", endpoint.clone()),
        ("FLANNEL_ETCD_PREFIX", prefix.clone()),
    ];
    daemon.variables.push(("FLANNEL_OPTIONS", words.join(" ")));
    daemon.restart_on.push(NETWORK.to_owned());
    daemon.needs.insert(Dependency::FlannelKey);
    // It ends when its lease is gone, and is started again (seed-systems.md 8d). It says when it has a subnet. Fedora's unit writes
    // docker's options by itself, where ours writes them.
    daemon.service_lines.push_str(&format!("Type=notify\n{NO_START_TIMEOUT}ExecStartPost=\n"));
    daemon.add(&mut part);
    part.flannel = Some(store);
    add_flannel_gate(cluster, &mut part);
    part
}

/// Where flannel's configuration is, and what it says, where the node runs flanneld as a unit. The checks have refused
/// what lacks the network or etcd's address.
pub(in crate::kubernetes) fn store(spec: &NodeSpec, cluster: &ClusterSpec, facts: &MachineFacts) -> Option<FlannelStore> {
    if !cluster.has_flannel_unit() {
        return None;
    }
    let (description, etcd) = (network(&cluster.networks)?, etcd_address(spec, cluster)?);
    let scheme = if cluster.tls { "https" } else { "http" };
    let prefix = cluster.networks.flannel.prefix.as_deref().or(facts.flannel_prefix.as_deref()).unwrap_or(PREFIX);
    Some(FlannelStore {
        etcd: EtcdAccess {
            endpoint: format!("{scheme}://{}:{}", host_of(etcd), cluster.etcd.client_port),
            identity: cluster.tls.then(client_identity),
        },
        prefix: prefix.to_owned(),
        description,
        writes: spec.role == Role::Master,
    })
}

/// Keeps flanneld off where the network of pods is another one, or where flannel is an add-on: beside it, it would lease a subnet
/// for the node and set routes of its own. With NETWORK_DRIVER=none a unit that the agent never set up is the operator's.
fn block(cluster: &ClusterSpec, facts: &MachineFacts, part: &mut Desired) {
    if cluster.networks.driver == NetworkDriver::None && !facts.made.flannel {
        return;
    }
    runtime_units::block(UNIT, "The pod network is not a flannel unit's: nothing may start one.", part);
}

/// A worker asks etcd where the parameters say, a master its own member.
fn etcd_address(spec: &NodeSpec, cluster: &ClusterSpec) -> Option<IpAddr> {
    match spec.role {
        Role::Master => spec.address,
        Role::Minion => cluster.etcd.server,
    }
}

/// The description; none of a network of IPv6.
pub(in crate::kubernetes) fn network(networks: &Networks) -> Option<String> {
    let IpNet::V4(network) = networks.pods else { return None };
    let flannel = &networks.flannel;
    let subnets = Subnets { network, length: flannel.subnet_length, min: flannel.min, max: flannel.max };
    Some(description(&subnets, &flannel.backend, &flannel.options))
}

/// Gate: flannel gave the node its subnet.
pub(in crate::kubernetes) const FLANNEL_GATE: &str = "flannel";

/// The gate that flannel gave the node its subnet.
pub(in crate::kubernetes) fn add_flannel_gate(cluster: &ClusterSpec, part: &mut Desired) {
    let Some(network) = pods(cluster) else { return };
    part.gates.push(Gate {
        name: FLANNEL_GATE.to_owned(),
        unit: Some(UNIT.to_owned()),
        probe: GateProbe::FlannelSubnet { network, bridge: None },
        consecutive: 1,
        deadline: None,
        needs: BTreeSet::from([Dependency::Unit(UNIT.to_owned())]),
        remedy: format!("`journalctl -u {UNIT} -n 50`"),
    });
}

#[cfg(test)]
mod tests {
    use crate::kubernetes::fixtures::{arguments, assignments, content, file, gate, node, value};
    use serde_json::json;

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
    fn it_is_a_unit_where_the_minor_or_the_parameters_say_so() {
        const UNIT_ASKED: &[(&str, &str)] = &[("FLANNEL_RUNS_AS", "unit")];
        for (minor, changes, there) in [
            (5, &[][..], true),
            (9, &[], true),
            (10, &[], false),
            (9, &[("NETWORK_DRIVER", "calico")], false),
            (9, &[("FLANNEL_RUNS_AS", "add-on")], false),
            (31, &[], false),
            (20, UNIT_ASKED, true),
            (23, UNIT_ASKED, true),
            (31, &[("FLANNEL_RUNS_AS", "unit"), ("NETWORK_DRIVER", "none")], false),
        ] {
            for role in ["master", "minion"] {
                let desired = rendered(minor, role, changes);
                assert_eq!(desired.units.iter().any(|unit| unit.name == UNIT && unit.enable), there, "1.{minor} {role}");
                assert_eq!(file(&desired, NETWORK).is_some(), there);
                assert_eq!(desired.flannel.is_some(), there);
                // flanneld deals subnets out, or the controller manager does.
                if role == "master" {
                    let words = arguments(&desired, "kube-controller-manager.service");
                    assert_eq!(value(&words, "allocate-node-cidrs"), Some(if there { "false" } else { "true" }), "1.{minor}");
                }
                // Then pods have their network by CNI, else by docker's bridge.
                let cni = desired.directories.iter().any(|one| one.path == "/opt/cni/bin");
                assert_eq!(cni, !there && !changes.contains(&("NETWORK_DRIVER", "none")) || minor >= 24, "1.{minor} {role}");
            }
        }
    }

    #[test]
    fn etcd_is_reached_with_and_without_tls() {
        let master = rendered(9, "master", &[]);
        let expected = [
            "-etcd-endpoints=https://192.0.2.11:2379",
            "-etcd-prefix=/coreos.com/network",
            "-subnet-file=/run/flannel/subnet.env",
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
            // Every file that the flags name is desired, once.
            assert_eq!(desired.certificates.iter().filter(|one| one.path == "/etc/etcd/certs/admin.crt").count(), 1);
            assert_eq!(desired.cas.iter().filter(|one| one.path == "/etc/etcd/certs/ca.crt").count(), 1);
        }
        let open = rendered(9, "minion", &[("TLS_DISABLED", "True"), ("CERTIFICATES", ""), ("KUBE_NODE_IP", "")]);
        assert_eq!(
            arguments(&open, UNIT),
            [
                "-etcd-endpoints=http://192.0.2.6:2379",
                "-etcd-prefix=/coreos.com/network",
                "-subnet-file=/run/flannel/subnet.env",
                "-ip-masq=true"
            ]
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
            let network: serde_json::Value = crate::budgets::json::typed(content(&desired, NETWORK)).unwrap();
            assert_eq!(network, json!({"Network": "10.100.0.0/16", "SubnetLen": 24, "Backend": {"Type": backend}}));
        }
    }

    /// Masters write what minions wait for; both in the same words, and flanneld comes after it.
    #[test]
    fn the_store_is_the_same_for_every_node_and_masters_write_it() {
        let changes = [("FLANNEL_BACKEND", "vxlan"), ("FLANNEL_BACKEND_OPTIONS", r#"{"vni": 7}"#), ("FLANNEL_RUNS_AS", "unit")];
        for minor in [9, 20, 31] {
            let (master, minion) = (rendered(minor, "master", &changes), rendered(minor, "minion", &changes));
            for (desired, endpoint, writes) in
                [(&master, "https://192.0.2.11:2379", true), (&minion, "https://192.0.2.6:2379", false)]
            {
                let store = desired.flannel.as_ref().unwrap();
                assert_eq!((store.etcd.endpoint.as_str(), store.writes), (endpoint, writes));
                assert_eq!(store.etcd.identity.as_ref().unwrap().certificate, "/etc/etcd/certs/admin.crt");
                assert_eq!(store.description, content(desired, NETWORK));
                let unit = desired.units.iter().find(|unit| unit.name == UNIT).unwrap();
                assert!(unit.needs.contains(&Dependency::FlannelKey) && unit.restart_on.contains(NETWORK) && unit.enable);
                assert!(gate(desired, "flannel").unwrap().needs.contains(&Dependency::Unit(UNIT.to_owned())));
                let drop_in = content(desired, "/etc/systemd/system/flanneld.service.d/50-heat-node-agent.conf");
                for line in ["Restart=always\n", "Type=notify\n", "ExecStartPost=\n", "EnvironmentFile=/etc/sysconfig/flanneld\n"]
                {
                    assert!(drop_in.contains(line), "{line} {drop_in}");
                }
            }
            let description = |desired: &Desired| desired.flannel.as_ref().unwrap().description.clone();
            assert_eq!(description(&master), description(&minion));
        }
    }

    /// magnum-node.md 1.6: the key is the image's, unless a parameter says another; Fedora's own names say it, too.
    #[test]
    fn the_key_is_the_images_unless_it_is_given() {
        use crate::kubernetes::fixtures::spec;
        use crate::kubernetes::render;

        let fedora = MachineFacts { flannel_prefix: Some("/atomic.io/network".to_owned()), ..MachineFacts::default() };
        for (changes, facts, prefix) in [
            (&[][..], MachineFacts::default(), "/coreos.com/network"),
            (&[], fedora.clone(), "/atomic.io/network"),
            (&[("FLANNEL_ETCD_PREFIX", "/blue/network")], fedora, "/blue/network"),
        ] {
            let base = [("KUBE_TAG", "v1.9.3")];
            let desired = render(&spec(&base.iter().chain(changes).copied().collect::<Vec<_>>()), &facts).unwrap();
            assert_eq!(desired.flannel.as_ref().unwrap().prefix, prefix);
            assert!(arguments(&desired, UNIT).contains(&format!("-etcd-prefix={prefix}")));
            let variables = assignments(content(&desired, ENVIRONMENT_FILE));
            for name in ["FLANNEL_ETCD_KEY", "FLANNEL_ETCD_PREFIX"] {
                assert!(variables.contains(&(name.to_owned(), prefix.to_owned())), "{name} {variables:?}");
            }
        }
    }
}
