//! What must hold between the parameters of a pod network, of kube-proxy's mode and of the firewall.

use std::collections::BTreeSet;

use ipnet::IpNet;

use super::cluster::Checks;
use crate::kubernetes::networks::flannel as unit;
use crate::kubernetes::parameters::kinds::port_range;
use crate::kubernetes::parameters::mistake::Mistake;
use crate::kubernetes::spec::cluster::NetworkDriver;
use crate::kubernetes::spec::cluster::node_subnet;
use crate::kubernetes::spec::words::Role;
use crate::kubernetes::versions::option;
use crate::kubernetes::worker::kube_proxy;
use crate::network::flannel;

/// The longest name of an interface (IFNAMSIZ in linux/if.h, less the NUL).
const LONGEST_NAME: usize = 15;
/// The longest subnet that holds a bridge and a pod.
const LONGEST_SUBNET: u8 = 30;
const SUBNETS: &str = "NODE_SUBNETS";

impl Checks<'_> {
    pub(in crate::kubernetes) fn pod_network(&mut self) {
        match self.spec.networks.driver {
            NetworkDriver::Flannel => self.flannel(),
            NetworkDriver::StaticRoutes => self.static_routes(),
            NetworkDriver::Calico | NetworkDriver::KubeStack | NetworkDriver::None => {}
        }
        if self.spec.networks.driver != NetworkDriver::StaticRoutes && self.parameters.given(SUBNETS).is_some() {
            self.wrong(
                SUBNETS,
                "is given",
                "it applies only to NETWORK_DRIVER=static-routes",
                "remove it, or select that driver",
            );
        }
        let rule = "FIRST-LAST, two ports in this order: 30000-32767";
        if self.parameters.given("SERVICE_NODE_PORT_RANGE").is_some_and(|range| port_range(range).is_none()) {
            self.wrong("SERVICE_NODE_PORT_RANGE", "is not a port range", rule, "correct it");
        }
        // The firewall and the list of listeners need to know the range, too.
        let by_option = option(&self.spec.options.api_server, "service-node-port-range");
        if self.role == Role::Master && by_option.is_some_and(|range| port_range(&range).is_none()) {
            self.wrong("KUBEAPI_OPTIONS", "--service-node-port-range is not a port range", rule, "correct it");
        }
        kube_proxy::check(self.spec, self.mistakes);
    }

    fn flannel(&mut self) {
        let flannel = &self.spec.networks.flannel;
        let is_unit = flannel.is_unit;
        if !is_unit {
            for name in ["FLANNEL_BACKEND_OPTIONS", "FLANNEL_SUBNET_MIN", "FLANNEL_SUBNET_MAX", "FLANNEL_ETCD_PREFIX"] {
                if self.parameters.given(name).is_some() {
                    let rule = "flannel as an add-on is configured by the cluster's own objects";
                    self.wrong(name, "is given, but flannel is an add-on", rule, "remove it, or set FLANNEL_RUNS_AS to unit");
                }
            }
        }
        for (name, read) in [("FLANNEL_SUBNET_MIN", flannel.min), ("FLANNEL_SUBNET_MAX", flannel.max)] {
            if read.is_none() && self.parameters.given(name).is_some() {
                self.wrong(name, "is not an IPv4 address", "flannel allocates IPv4 subnets", "correct it");
            }
        }
        let Some(description) = unit::network(&self.spec.networks) else {
            if is_unit {
                let rule = "flannel as a unit provides an IPv4 network";
                let name = self.pods_name();
                self.wrong(name, "is an IPv6 network", rule, "give an IPv4 network, or another NETWORK_DRIVER");
            }
            return;
        };
        let version = flannel.tag.as_deref().and_then(flannel::version_of).filter(|_| is_unit);
        if let Some(wrong) = flannel::names(&flannel.options).filter(|_| is_unit) {
            let problem = format!("{} {}", wrong.field.trim_start_matches("Backend."), wrong.problem);
            self.wrong("FLANNEL_BACKEND_OPTIONS", problem, wrong.rule, "remove it");
        } else if let Err(wrong) = flannel::check(&description, version) {
            let (name, field) = match wrong.field.as_str() {
                "SubnetLen" => ("FLANNEL_NETWORK_SUBNETLEN", String::new()),
                "SubnetMin" => ("FLANNEL_SUBNET_MIN", String::new()),
                "SubnetMax" => ("FLANNEL_SUBNET_MAX", String::new()),
                "Backend.Type" => ("FLANNEL_BACKEND", String::new()),
                option => ("FLANNEL_BACKEND_OPTIONS", format!("{} ", option.trim_start_matches("Backend."))),
            };
            let remedy = match name {
                "FLANNEL_NETWORK_SUBNETLEN" => "give another length or a larger network",
                "FLANNEL_SUBNET_MIN" | "FLANNEL_SUBNET_MAX" => "give another address, or none",
                _ => "correct it, or set the FLANNEL_TAG that is installed in the image",
            };
            let problem = wrong.problem.replace("fit ", &format!("fit {} ", self.pods_name()));
            self.wrong(name, format!("{field}{problem}"), wrong.rule, remedy);
        }
        if is_unit {
            self.flannel_store();
        }
    }

    /// Where flanneld as a unit keeps its leases.
    fn flannel_store(&mut self) {
        let flannel = &self.spec.networks.flannel;
        let prefix = flannel.prefix.clone();
        if prefix.is_some_and(|prefix| !prefix.starts_with('/') || prefix.ends_with('/') || prefix.contains("//")) {
            let rule = "an etcd key: /NAME/…, without a trailing slash";
            self.wrong("FLANNEL_ETCD_PREFIX", "is not a key that flannel can use", rule, "correct it");
        }
        if self.role == Role::Minion && self.spec.etcd.server.is_none() {
            let rule = "flannel as a unit keeps its leases in etcd, whose address a worker needs";
            self.wrong("ETCD_SERVER_IP", "is missing", rule, "give etcd's address: its load balancer's, or a master's");
        }
        let backend = ["FLANNEL_BACKEND", "FLANNEL_USE_VXLAN"].iter().any(|name| self.parameters.given(name).is_some());
        if self.role == Role::Minion && !backend {
            // magnum-node.md 3.2: a parameter of masters.
            self.warnings.push(Mistake::general(
                "FLANNEL_BACKEND",
                "is not set on this worker, which therefore assumes host-gw",
                "every node uses the backend configured in etcd; Magnum passes it only to masters",
                "set the masters' FLANNEL_BACKEND on the workers",
            ));
        }
    }

    fn static_routes(&mut self) {
        let pods = self.spec.networks.pods;
        if matches!(pods, IpNet::V6(_)) {
            let rule = "these routes are IPv4 routes";
            let name = self.pods_name();
            self.wrong(name, "is an IPv6 network", rule, "give an IPv4 network");
            return;
        }
        let bridge = self.spec.networks.routes.bridge.clone();
        if bridge.len() > LONGEST_NAME
            || !bridge.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
            // The kernel has the latter three for itself: below /proc/sys/net, and as the loopback.
            || matches!(bridge.as_str(), "." | ".." | "all" | "default" | "lo")
        {
            let rule = format!("at most {LONGEST_NAME} letters, digits and . _ -, and none of all, default and lo");
            self.wrong("POD_BRIDGE", "is not a valid bridge name", rule, "give another name");
        }
        let form = "a comma-separated address=subnet of every node: 192.0.2.11=10.100.1.0/24,192.0.2.12=10.100.2.0/24";
        let bad: Vec<String> =
            self.parameters.items(SUBNETS).filter(|item| node_subnet(item).is_none()).map(str::to_owned).collect();
        for item in &bad {
            self.wrong(SUBNETS, format!("contains {item:?}"), form, "correct the item");
        }
        let nodes = self.spec.networks.routes.nodes.clone();
        let mut seen = BTreeSet::new();
        for (at, peer) in nodes.iter().enumerate() {
            let subnet = peer.subnet;
            if !seen.insert(peer.node) {
                self.wrong(SUBNETS, format!("names {} twice", peer.node), "a node has only one subnet", "remove one of them");
            }
            if !pods.contains(&IpNet::V4(subnet)) || subnet.prefix_len() > LONGEST_SUBNET || subnet.trunc() != subnet {
                let rule = format!("a network within {} {pods}, at most a /{LONGEST_SUBNET}", self.pods_name());
                self.wrong(SUBNETS, format!("gives {} the subnet {subnet}", peer.node), rule, "correct the item");
            }
            let overlaps = |other: &&crate::desired::Peer| subnet.contains(&other.subnet) || other.subnet.contains(&subnet);
            if let Some(other) = nodes.iter().take(at).find(overlaps) {
                let problem = format!("{subnet} of {} overlaps {} of {}", peer.node, other.subnet, other.node);
                self.wrong(SUBNETS, problem, "each address is on one node only", "give subnets that do not overlap");
            }
        }
        let own = self.spec.networks.routes.own(self.address);
        if own.is_none() && bad.is_empty() {
            let problem = match (self.parameters.given(SUBNETS), self.address) {
                (None, _) => "is missing".to_owned(),
                (_, None) => "is given, but KUBE_NODE_IP is not".to_owned(),
                (_, Some(address)) => format!("does not name this node, {address}"),
            };
            let rule = "a node finds its own subnet by KUBE_NODE_IP";
            self.wrong(SUBNETS, problem, rule, "give every node's address and subnet, including this one's");
        }
    }

    /// The parameter that the network of pods is given by.
    pub(in crate::kubernetes) fn pods_name(&self) -> &'static str {
        match (self.parameters.given("PODS_NETWORK_CIDR"), self.spec.networks.driver) {
            (Some(_), _) => "PODS_NETWORK_CIDR",
            (None, NetworkDriver::Calico) => "CALICO_IPV4POOL",
            (None, _) => "FLANNEL_NETWORK_CIDR",
        }
    }

    /// Which APIs of etcd flannel as a unit needs (seed-systems.md 8a).
    pub(in crate::kubernetes) fn flannel_etcd_api(&mut self, version: (u16, u16)) {
        if !self.spec.has_flannel_unit() {
            return;
        }
        let tag = self.spec.networks.flannel.tag.as_deref().and_then(flannel::version_of);
        match tag.map(flannel::api) {
            None | Some(flannel::Api::V2) if version >= (3, 6) => {
                let rule = "flannel up to 0.17 with its leases in etcd needs etcd's v2 API, which was removed in 3.6";
                let remedy = "use etcd 3.5 or older, or set FLANNEL_TAG to the 0.18 or later that is installed in the image";
                self.wrong("ETCD_TAG", "names an etcd release without the v2 API", rule, remedy);
            }
            Some(flannel::Api::V3) if version < (3, 0) => {
                let rule = "flannel 0.18 and later keeps its leases through etcd's v3 API";
                self.wrong("ETCD_TAG", "names an etcd release without the v3 API", rule, "give etcd 3.0 or later");
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::kubernetes::fixtures::{problems, spec};

    const ROUTES: &[(&str, &str)] = &[
        ("NETWORK_DRIVER", "static-routes"),
        ("PODS_NETWORK_CIDR", "10.100.0.0/16"),
        ("NODE_SUBNETS", "192.0.2.11=10.100.1.0/24,192.0.2.12=10.100.2.0/24"),
    ];
    const UNIT: &[(&str, &str)] = &[("FLANNEL_RUNS_AS", "unit")];

    fn found(base: &[(&str, &str)], changes: &[(&str, &str)]) -> Vec<String> {
        problems(&base.iter().chain(changes).copied().collect::<Vec<_>>())
    }

    #[test]
    fn each_contradiction_of_static_routes_is_named() {
        for (changes, expected) in [
            (&[][..], ""),
            (&[("NODE_SUBNETS", "")], "NODE_SUBNETS is missing"),
            (&[("NODE_SUBNETS", "192.0.2.12=10.100.2.0/24")], "NODE_SUBNETS does not name this node, 192.0.2.11"),
            (&[("NODE_SUBNETS", "192.0.2.11=10.100.1.0/24,b")], "NODE_SUBNETS contains \"b\""),
            (
                &[("NODE_SUBNETS", "192.0.2.11=10.100.1.0/24,2001:db8::1=10.100.2.0/24")],
                "NODE_SUBNETS contains \"2001:db8::1=10.100.2.0/24\"",
            ),
            (&[("NODE_SUBNETS", "192.0.2.11=10.100.1.7/24")], "NODE_SUBNETS gives 192.0.2.11 the subnet 10.100.1.7/24"),
            (&[("NODE_SUBNETS", "192.0.2.11=10.101.1.0/24")], "NODE_SUBNETS gives 192.0.2.11 the subnet 10.101.1.0/24"),
            (&[("NODE_SUBNETS", "192.0.2.11=10.100.1.0/31")], "NODE_SUBNETS gives 192.0.2.11 the subnet 10.100.1.0/31"),
            (
                &[("NODE_SUBNETS", "192.0.2.11=10.100.1.0/24,192.0.2.12=10.100.0.0/22")],
                "NODE_SUBNETS 10.100.0.0/22 of 192.0.2.12 overlaps 10.100.1.0/24 of 192.0.2.11",
            ),
            (&[("NODE_SUBNETS", "192.0.2.11=10.100.1.0/24,192.0.2.11=10.100.2.0/24")], "NODE_SUBNETS names 192.0.2.11 twice"),
            (&[("POD_BRIDGE", "a/b")], "POD_BRIDGE is not a valid bridge name"),
            (&[("POD_BRIDGE", "sixteen-letters-")], "POD_BRIDGE is not a valid bridge name"),
            (&[("POD_BRIDGE", "..")], "POD_BRIDGE is not a valid bridge name"),
            (&[("POD_BRIDGE", "lo")], "POD_BRIDGE is not a valid bridge name"),
            (&[("NETWORK_DRIVER", "flannel")], "NODE_SUBNETS is given"),
            (&[("SERVICE_NODE_PORT_RANGE", "30000")], "SERVICE_NODE_PORT_RANGE is not a port range"),
            (&[("SERVICE_NODE_PORT_RANGE", "32767-30000")], "SERVICE_NODE_PORT_RANGE is not a port range"),
            (
                &[("KUBEAPI_OPTIONS", "--service-node-port-range=5-1")],
                "KUBEAPI_OPTIONS --service-node-port-range is not a port range",
            ),
            (&[("KUBEAPI_OPTIONS", "--service-node-port-range 30000-31000")], ""),
        ] {
            let found = found(ROUTES, changes);
            assert_eq!(found.join("|"), expected, "{changes:?}");
        }
    }

    #[test]
    fn each_contradiction_of_flannel_is_named() {
        for (changes, expected) in [
            (&[][..], ""),
            (&[("FLANNEL_BACKEND", "vxlan"), ("FLANNEL_BACKEND_OPTIONS", r#"{"VNI": 7}"#)], ""),
            (
                &[("FLANNEL_BACKEND_OPTIONS", r#"{"Type":"vxlan"}"#)],
                "FLANNEL_BACKEND_OPTIONS Type would override FLANNEL_BACKEND",
            ),
            (
                &[("FLANNEL_BACKEND_OPTIONS", r#"{"type":"vxlan"}"#)],
                "FLANNEL_BACKEND_OPTIONS type would override FLANNEL_BACKEND",
            ),
            (
                &[("FLANNEL_BACKEND", "vxlan"), ("FLANNEL_BACKEND_OPTIONS", r#"{"VNI": 7, "vni": 8}"#)],
                "FLANNEL_BACKEND_OPTIONS vni is given twice",
            ),
            (&[("FLANNEL_BACKEND_OPTIONS", r#"{"VNI": 7}"#)], "FLANNEL_BACKEND_OPTIONS VNI is not a known option of host-gw"),
            (
                &[
                    ("FLANNEL_BACKEND", "vxlan"),
                    ("FLANNEL_BACKEND_OPTIONS", r#"{"DirectRouting": true}"#),
                    ("FLANNEL_TAG", "v0.7.1"),
                ],
                "FLANNEL_BACKEND_OPTIONS DirectRouting is unknown to flannel 0.7",
            ),
            (
                &[("FLANNEL_BACKEND", "wireguard"), ("FLANNEL_TAG", "v0.15.1")],
                "FLANNEL_BACKEND selects wireguard with flannel 0.15",
            ),
            (&[("FLANNEL_SUBNET_MIN", "10.100.5.7")], "FLANNEL_SUBNET_MIN 10.100.5.7 is not the first address of a subnet"),
            (&[("FLANNEL_SUBNET_MIN", "10.100.5.7"), ("FLANNEL_TAG", "v0.9.1")], ""),
            (&[("FLANNEL_SUBNET_MAX", "2001:db8::1")], "FLANNEL_SUBNET_MAX is not an IPv4 address"),
            (&[("FLANNEL_NETWORK_SUBNETLEN", "17"), ("FLANNEL_TAG", "v0.9.1")], ""),
            (&[("FLANNEL_ETCD_PREFIX", "coreos.com")], "FLANNEL_ETCD_PREFIX is not a key that flannel can use"),
            (&[("FLANNEL_ETCD_PREFIX", "/a/")], "FLANNEL_ETCD_PREFIX is not a key that flannel can use"),
            (&[("ETCD_TAG", "v3.6.1")], "ETCD_TAG names an etcd release without the v2 API"),
            (&[("ETCD_TAG", "v3.6.1"), ("FLANNEL_TAG", "v0.20.2")], ""),
            (
                &[("ETCD_TAG", "v2.3.7"), ("FLANNEL_TAG", "v0.20.2"), ("KUBE_TAG", "v1.5.2")],
                "ETCD_TAG names an etcd release without the v3 API",
            ),
            (
                &[("FLANNEL_RUNS_AS", "add-on"), ("FLANNEL_SUBNET_MIN", "10.100.5.0")],
                "FLANNEL_SUBNET_MIN is given, but flannel is an add-on",
            ),
            (
                &[
                    ("PODS_NETWORK_CIDR", "fd00:2::/56"),
                    ("PORTAL_NETWORK_CIDR", "fd00:1::/108"),
                    ("KUBE_NODE_IP", "2001:db8::11"),
                    ("DNS_SERVICE_IP", ""),
                ],
                "PODS_NETWORK_CIDR is an IPv6 network",
            ),
            (&[("ROLE", "minion"), ("API_BALANCER", "haproxy"), ("MASTER_ADDRESSES", "192.0.2.5")], "ETCD_SERVER_IP is missing"),
        ] {
            let found = found(UNIT, changes);
            assert_eq!(found.join("|"), expected, "{changes:?}");
        }
    }

    #[test]
    fn a_worker_that_guesses_the_backend_is_warned() {
        let is_reported = |changes: &[(&str, &str)]| {
            let worker = [("ROLE", "minion"), ("KUBE_MASTER_IP", "192.0.2.5"), ("FLANNEL_RUNS_AS", "unit")];
            let all: Vec<_> = worker.iter().chain(changes).copied().collect();
            spec(&all).warnings.iter().any(|warning| warning.parameter == "FLANNEL_BACKEND")
        };
        assert!(is_reported(&[]));
        for given in [("FLANNEL_BACKEND", "host-gw"), ("FLANNEL_USE_VXLAN", "true"), ("FLANNEL_RUNS_AS", "add-on")] {
            assert!(!is_reported(&[given]), "{given:?}");
        }
    }

    /// magnum-node.md 5.5
    #[test]
    fn kube_proxys_mode_is_one_that_the_minor_has() {
        for (minor, mode, options, expected) in [
            (1, "iptables", "", ""),
            (2, "userspace", "", ""),
            (25, "userspace", "", ""),
            (26, "userspace", "", "PROXY_MODE userspace is not supported by 1.26"),
            (7, "ipvs", "", "PROXY_MODE ipvs is not supported by 1.7"),
            (8, "ipvs", "", ""),
            (37, "ipvs", "", ""),
            (28, "nftables", "", "PROXY_MODE nftables is not supported by 1.28"),
            (29, "nftables", "", ""),
            (29, "nftables", "--feature-gates=TopologyAwareHints=true", "PROXY_MODE is nftables"),
            (29, "nftables", "--feature-gates=NFTablesProxyMode=true", ""),
            (31, "nftables", "--feature-gates=TopologyAwareHints=true", ""),
            (28, "ipvs", "--proxy-mode=iptables", "PROXY_MODE is given together with --proxy-mode in KUBEPROXY_OPTIONS"),
        ] {
            let tag = format!("v1.{minor}.2");
            let changes = [("KUBE_TAG", tag.as_str()), ("PROXY_MODE", mode), ("KUBEPROXY_OPTIONS", options)];
            assert_eq!(problems(&changes).join("|"), expected, "1.{minor} {mode} {options}");
        }
        assert_eq!(spec(&[]).kubernetes.unwrap().proxy_mode, None);
    }
}
