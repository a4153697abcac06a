//! What must hold between addresses and networks: which addresses a host can have, and what lies in which network.

use std::net::IpAddr;

use ipnet::IpNet;

use super::cluster::Checks;
use crate::kubernetes::parameters::mistake::Mistake;
use crate::kubernetes::spec::cluster::{EtcdCluster, NetworkDriver};
use crate::kubernetes::spec::words::Role;
use crate::kubernetes::spec::words::RuntimeKind;
use crate::kubernetes::versions::option;

/// What is routed to no host, with its name (RFC 6890, the registries of special-purpose addresses). 240.0.0.0/4 is not among
/// them: Linux routes it, and some clouds use it.
const SPECIAL: &[(&str, &str)] = &[
    ("0.0.0.0/8", "the unspecified addresses"),
    ("127.0.0.0/8", "the loopback addresses"),
    ("169.254.0.0/16", "the link-local addresses"),
    ("224.0.0.0/4", "the multicast addresses"),
    ("255.255.255.255/32", "the broadcast address"),
    ("::/128", "the unspecified address"),
    ("::1/128", "the loopback address"),
    ("::ffff:0:0/96", "the mapped IPv4 addresses"),
    ("fe80::/10", "the link-local addresses"),
    ("ff00::/8", "the multicast addresses"),
];

/// The network that docker gives its own bridge.
const DOCKER_DEFAULT_NETWORK: &str = "172.17.0.0/16";

/// A controller manager deals out at most 2^16 subnets (`ErrCIDRRangeTooBig` of its cidrset).
const MOST_SUBNETS: u8 = 16;

fn overlap(one: IpNet, other: IpNet) -> bool {
    one.contains(&other.network()) || other.contains(&one.network())
}

/// The special network that meets this one, with its name.
fn special(network: IpNet) -> Option<(IpNet, &'static str)> {
    let all = SPECIAL.iter().filter_map(|(text, name)| Some((text.parse::<IpNet>().ok()?, *name)));
    all.into_iter().find(|(one, _)| overlap(*one, network))
}

/// What is wrong with an address of a host, as a problem; nothing where a host can have it.
pub(in crate::kubernetes) fn not_a_host_address(address: IpAddr) -> Option<String> {
    // The broadcast address lies in no other network of the list.
    special(IpNet::from(address)).map(|(network, name)| {
        if network.prefix_len() == network.max_prefix_len() {
            format!("is {address}, {name}")
        } else {
            format!("is {address}, one of {name} {network}")
        }
    })
}

impl Checks<'_> {
    /// Addresses of hosts that the parameters name, KUBE_NODE_IP first.
    fn hosts(&self) -> Vec<(&'static str, IpAddr)> {
        let spec = self.spec;
        let mut all: Vec<(&'static str, IpAddr)> = [
            ("KUBE_NODE_IP", self.address),
            ("KUBE_MASTER_IP", spec.api.master),
            ("KUBE_NODE_PUBLIC_IP", spec.node.public),
            ("KUBE_API_PRIVATE_ADDRESS", spec.api.private),
            ("KUBE_API_PUBLIC_ADDRESS", spec.api.public),
            ("ETCD_LB_VIP", spec.etcd.balancer),
        ]
        .into_iter()
        .filter_map(|(name, address)| Some((name, address?)))
        .collect();
        // Else KUBE_MASTER_IP stands for it.
        if self.parameters.given("ETCD_SERVER_IP").is_some() {
            all.extend(spec.etcd.server.map(|address| ("ETCD_SERVER_IP", address)));
        }
        all.extend(spec.api.masters.iter().map(|address| ("MASTER_ADDRESSES", *address)));
        if spec.networks.driver == NetworkDriver::StaticRoutes {
            all.extend(spec.networks.routes.nodes.iter().map(|peer| ("NODE_SUBNETS", IpAddr::V4(peer.node))));
        }
        if let EtcdCluster::Static(members) = &spec.etcd.cluster {
            let hosts = members.iter().filter_map(|member| {
                let url = reqwest::Url::parse(member.split_once('=')?.1).ok()?;
                url.host_str()?.trim_matches(['[', ']']).parse().ok()
            });
            all.extend(hosts.map(|address| ("ETCD_INITIAL_CLUSTER", address)));
        }
        all
    }

    pub(in crate::kubernetes) fn addresses(&mut self) {
        let nodes = self.nodes();
        for (name, address) in self.hosts() {
            // A worker may have a balancer of its operator's on itself. KUBE_NODE_IP's own mistake is `node_spec`'s.
            let may_be_itself = address.is_loopback() && matches!(name, "KUBE_MASTER_IP" | "ETCD_SERVER_IP");
            if let Some(problem) = not_a_host_address(address).filter(|_| name != "KUBE_NODE_IP" && !may_be_itself) {
                self.wrong(name, problem, "the address by which others reach the host", "give the host's own address");
            }
            let is_edge = |nodes: &IpNet| {
                matches!(nodes, IpNet::V4(_))
                    && nodes.prefix_len() < nodes.max_prefix_len() - 1
                    && (address == nodes.network() || address == nodes.broadcast())
            };
            if let Some(nodes) = nodes.filter(is_edge) {
                let what = if address == nodes.network() { "the network's own address" } else { "the broadcast address" };
                let rule = "the first and last addresses of a network cannot be a host's";
                self.wrong(
                    name,
                    format!("is {address}, {what} of CLUSTER_SUBNET_CIDR {nodes}"),
                    rule,
                    "give the host's own address",
                );
            }
        }
        if let (Some(address), Some(nodes), Some(_)) = (self.address, nodes, self.spec.firewall)
            && !nodes.contains(&address)
        {
            let rule = "FIREWALL admits the cluster's own traffic only from CLUSTER_SUBNET_CIDR";
            let problem = format!("{nodes} does not contain KUBE_NODE_IP {address}");
            self.wrong("CLUSTER_SUBNET_CIDR", problem, rule, "give the subnet of the nodes");
        }
        self.advertised();
        self.masters();
    }

    /// What the API server tells others to reach it by, where an option takes the place of KUBE_NODE_IP.
    fn advertised(&mut self) {
        let by_option = option(&self.spec.options.api_server, "advertise-address").filter(|_| self.role == Role::Master);
        let Some(text) = by_option else { return };
        let problem = match text.parse() {
            Ok(address) => not_a_host_address(address),
            Err(_) => Some("is no address".to_owned()),
        };
        if let Some(problem) = problem {
            let rule = "the address of a host, which others reach the API server by";
            self.wrong("KUBEAPI_OPTIONS", format!("--advertise-address {problem}"), rule, "leave it out: KUBE_NODE_IP is taken");
        }
    }

    fn masters(&mut self) {
        let masters = self.spec.api.masters.clone();
        for (at, address) in masters.iter().enumerate() {
            if masters.iter().take(at).any(|other| other == address) {
                let rule = "each master is listed once, by the address that its peers use";
                self.wrong("MASTER_ADDRESSES", format!("names {address} twice"), rule, "remove one of them");
            }
        }
    }

    fn nodes(&self) -> Option<IpNet> {
        self.parameters.given("CLUSTER_SUBNET_CIDR").and_then(|text| text.parse().ok())
    }

    pub(in crate::kubernetes) fn networks(&mut self) {
        if !self.networks_may_be_used() {
            return;
        }
        self.networks_do_not_overlap();
        if !self.services_have_a_size() {
            return;
        }
        self.dns();
        self.parts_of_nodes();
        self.check_overridden_pod_networks();
        self.docker_bridge_overlap();
        self.networks_are_of_one_family();
    }

    /// Whether none of the networks has addresses that mean something else.
    fn networks_may_be_used(&mut self) -> bool {
        let (pods, services) = (self.spec.networks.pods, self.spec.networks.services);
        let networks = [("PORTAL_NETWORK_CIDR", services), (self.pods_name(), pods)];
        for (name, network) in networks.into_iter().chain(self.nodes().map(|nodes| ("CLUSTER_SUBNET_CIDR", nodes))) {
            if let Some((other, what)) = special(network) {
                let how = if other.contains(&network) { "is within" } else { "contains" };
                let rule = "pods, services and nodes cannot have these addresses";
                self.wrong(
                    name,
                    format!("{network} {how} {what} {other}"),
                    rule,
                    "give another network, e.g. a part of 10.0.0.0/8",
                );
                return false;
            }
        }
        true
    }

    fn networks_do_not_overlap(&mut self) {
        let (pods, services) = (self.spec.networks.pods, self.spec.networks.services);
        let (pods_name, nodes) = (self.pods_name(), self.nodes());
        let mut pairs = vec![("PORTAL_NETWORK_CIDR", services, pods_name, pods)];
        if let Some(nodes) = nodes {
            pairs.push(("PORTAL_NETWORK_CIDR", services, "CLUSTER_SUBNET_CIDR", nodes));
            pairs.push((pods_name, pods, "CLUSTER_SUBNET_CIDR", nodes));
        }
        for (name, one, other_name, other) in pairs {
            if overlap(one, other) {
                self.wrong(
                    name,
                    format!("{one} overlaps {other_name} {other}"),
                    "pod, service and node networks must not overlap, or packets go astray",
                    "give networks that do not overlap",
                );
            }
        }
        for (name, network) in [("PORTAL_NETWORK_CIDR", services), (pods_name, pods)] {
            // With the subnet it is said above.
            if nodes.is_some_and(|nodes| overlap(nodes, network)) {
                continue;
            }
            // One of them says enough.
            if let Some((who, address)) = self.hosts().into_iter().find(|(_, address)| network.contains(address)) {
                let rule = "the pod and service networks must be used by the cluster only";
                self.wrong(name, format!("{network} contains {who} {address}"), rule, "give another network");
            }
        }
    }

    /// Whether there are addresses enough for what every cluster has; too many are a mistake that hides no other.
    fn services_have_a_size(&mut self) -> bool {
        let services = self.spec.networks.services;
        if services.prefix_len() > services.max_prefix_len().saturating_sub(4) {
            let rule = "the API service and the cluster DNS need addresses in it";
            self.wrong("PORTAL_NETWORK_CIDR", format!("{services} is too small"), rule, "give a larger network, e.g. a /16");
            return false;
        }
        if services.max_prefix_len() - services.prefix_len() > 20 {
            let rule = "the API server accepts at most 20 bits of service addresses: a /12 for IPv4, a /108 for IPv6";
            self.wrong("PORTAL_NETWORK_CIDR", format!("{services} is too large"), rule, "give a smaller network, e.g. a /16");
        }
        true
    }

    fn networks_are_of_one_family(&mut self) {
        let (pods, services) = (self.spec.networks.pods, self.spec.networks.services);
        let of_nodes = ("KUBE_NODE_IP", self.address.map(|address| address.is_ipv6()));
        let families = [of_nodes, (self.pods_name(), Some(matches!(pods, IpNet::V6(_))))];
        for (name, family) in families {
            if family.is_some_and(|v6| v6 != matches!(services, IpNet::V6(_))) {
                let rule = "nodes, pods and services must use the same address family";
                self.wrong(
                    "PORTAL_NETWORK_CIDR",
                    format!("{services} is of a different address family than {name}"),
                    rule,
                    "give networks of the node's address family",
                );
            }
        }
    }

    /// A component that is given another network of pods than the others may be meant so, and mostly is not.
    fn check_overridden_pod_networks(&mut self) {
        let (options, pods) = (&self.spec.options, self.spec.networks.pods);
        let all = [
            ("KUBECONTROLLER_OPTIONS", &options.controller_manager, self.role == Role::Master),
            ("KUBEPROXY_OPTIONS", &options.proxy, true),
        ];
        for (name, text, _) in all.into_iter().filter(|(.., is_used)| *is_used) {
            let Some(given) = option(text, "cluster-cidr").filter(|given| given.parse() != Ok(pods)) else { continue };
            let problem = format!("sets --cluster-cidr={given}, but {} is {pods}", self.pods_name());
            let rule = "kube-proxy, the controller manager and the pod network must use the same addresses";
            self.warnings.push(Mistake::general(name, problem, rule, "remove --cluster-cidr unless it is intended"));
        }
    }

    /// Where docker makes a bridge of its own beside the pods', its network is in the way of pods that have the same addresses.
    fn docker_bridge_overlap(&mut self) {
        let (spec, name) = (self.spec, self.pods_name());
        let own = spec.runtime.kind == RuntimeKind::Docker && spec.uses_cni();
        if own && DOCKER_DEFAULT_NETWORK.parse().is_ok_and(|dockers| overlap(dockers, spec.networks.pods)) {
            let problem =
                format!("{} overlaps {DOCKER_DEFAULT_NETWORK}, the network of docker's default bridge", spec.networks.pods);
            let rule = "packets to a pod with an address in that network never leave their node";
            self.warnings.push(Mistake::general(name, problem, rule, "give another network"));
        }
    }
    fn dns(&mut self) {
        let (networks, name) = (&self.spec.networks, "DNS_SERVICE_IP");
        let (services, dns, first) = (networks.services, networks.dns, networks.first_service());
        let remedy = "give another address in that network";
        if !services.contains(&dns) {
            let rule = "the cluster DNS is a service";
            let problem = format!("{dns} is not in PORTAL_NETWORK_CIDR {services}");
            self.wrong(name, problem, rule, "give an address in that network");
        } else if Some(dns) == first {
            let rule = "the first address is the API service's";
            self.wrong(name, format!("{dns} is the first address of PORTAL_NETWORK_CIDR"), rule, remedy);
        } else if dns == services.network() || (dns.is_ipv4() && dns == services.broadcast()) {
            let which = if dns == services.network() { "network's own" } else { "broadcast" };
            let rule = "the API server assigns neither the first nor the last address of the network";
            self.wrong(name, format!("{dns} is the {which} address of PORTAL_NETWORK_CIDR {services}"), rule, remedy);
        }
    }

    /// What the controller manager would not deal out (its cidrset takes at most 2^16 subnets).
    fn parts_of_nodes(&mut self) {
        let Some(length) =
            crate::kubernetes::control_plane::controller_manager::node_prefix(self.spec).filter(|_| self.role == Role::Master)
        else {
            return;
        };
        let options = &self.spec.options.controller_manager;
        if ["cluster-cidr", "node-cidr-mask-size", "allocate-node-cidrs"].iter().any(|name| option(options, name).is_some()) {
            return;
        }
        let pods = self.spec.networks.pods;
        if length.saturating_sub(pods.prefix_len()) > MOST_SUBNETS {
            let rule = format!(
                "the controller manager allocates at most 2^{MOST_SUBNETS} subnets (here of /{length}) and exits otherwise"
            );
            self.wrong(self.pods_name(), format!("{pods} is too large"), rule, "give a smaller network, e.g. a /16");
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::kubernetes::fixtures::{problems, spec};

    const MINION: &[(&str, &str)] = &[("ROLE", "minion"), ("KUBE_MASTER_IP", "192.0.2.5")];

    fn found(base: &[(&str, &str)], changes: &[(&str, &str)]) -> String {
        problems(&base.iter().chain(changes).copied().collect::<Vec<_>>()).join("|")
    }

    #[test]
    fn an_address_that_no_host_has_is_refused_wherever_it_is_given() {
        for (address, what) in [
            ("0.0.0.0", "one of the unspecified addresses 0.0.0.0/8"),
            ("127.0.0.1", "one of the loopback addresses 127.0.0.0/8"),
            ("169.254.169.254", "one of the link-local addresses 169.254.0.0/16"),
            ("239.1.2.3", "one of the multicast addresses 224.0.0.0/4"),
            ("255.255.255.255", "the broadcast address"),
            ("::", "the unspecified address"),
            ("::1", "the loopback address"),
            ("fe80::1", "one of the link-local addresses fe80::/10"),
            ("ff02::1", "one of the multicast addresses ff00::/8"),
            ("::ffff:192.0.2.1", "one of the mapped IPv4 addresses ::ffff:0.0.0.0/96"),
        ] {
            for name in
                ["KUBE_API_PRIVATE_ADDRESS", "KUBE_API_PUBLIC_ADDRESS", "ETCD_LB_VIP", "KUBE_NODE_PUBLIC_IP", "MASTER_ADDRESSES"]
            {
                assert_eq!(found(&[], &[(name, address)]), format!("{name} is {address}, {what}"));
            }
            let option = format!("--advertise-address={address}");
            let expected = format!("KUBEAPI_OPTIONS --advertise-address is {address}, {what}");
            assert_eq!(found(&[], &[("KUBEAPI_OPTIONS", &option)]), expected);
            let own = found(&[], &[("KUBE_NODE_IP", address)]);
            assert!(own.starts_with(&format!("KUBE_NODE_IP is {address}, {what}")), "{own}");
        }
        let no_address = found(&[], &[("KUBEAPI_OPTIONS", "--advertise-address=here")]);
        assert_eq!(no_address, "KUBEAPI_OPTIONS --advertise-address is no address");
        assert_eq!(found(&[], &[("KUBEAPI_OPTIONS", "--advertise-address=192.0.2.99")]), "");
        for good in ["10.0.0.0", "240.0.0.1", "2001:db8::", "192.0.2.255"] {
            assert_eq!(found(&[], &[("KUBE_API_PUBLIC_ADDRESS", good)]), "");
        }
        assert_eq!(
            found(MINION, &[("ETCD_SERVER_IP", "224.0.0.1")]),
            "ETCD_SERVER_IP is 224.0.0.1, one of the multicast addresses 224.0.0.0/4"
        );
        // A balancer of the operator's on the worker.
        assert_eq!(found(MINION, &[("KUBE_MASTER_IP", "127.0.0.1")]), "");
        assert_eq!(
            found(
                &[],
                &[(
                    "ETCD_INITIAL_CLUSTER",
                    "blue-master-0=https://192.0.2.11:2380,b=https://127.0.0.1:2380,c=https://192.0.2.13:2380"
                )]
            ),
            "ETCD_INITIAL_CLUSTER is 127.0.0.1, one of the loopback addresses 127.0.0.0/8"
        );
    }

    #[test]
    fn each_contradiction_of_addresses_is_named() {
        for (base, changes, expected) in [
            (
                &[][..],
                &[("CLUSTER_SUBNET_CIDR", "192.0.2.8/29"), ("KUBE_NODE_IP", "192.0.2.15")][..],
                "KUBE_NODE_IP is 192.0.2.15, the broadcast address of CLUSTER_SUBNET_CIDR 192.0.2.8/29",
            ),
            (
                &[],
                &[("CLUSTER_SUBNET_CIDR", "192.0.2.0/24"), ("KUBE_API_PRIVATE_ADDRESS", "192.0.2.0")],
                "KUBE_API_PRIVATE_ADDRESS is 192.0.2.0, the network's own address of CLUSTER_SUBNET_CIDR 192.0.2.0/24",
            ),
            (&[], &[("CLUSTER_SUBNET_CIDR", "192.0.2.10/31")], ""),
            // Magnum gives its default where the cluster is on another subnet.
            (&[], &[("CLUSTER_SUBNET_CIDR", "10.0.0.0/24")], ""),
            (
                &[],
                &[("CLUSTER_SUBNET_CIDR", "10.0.0.0/24"), ("FIREWALL", "nftables")],
                "CLUSTER_SUBNET_CIDR 10.0.0.0/24 does not contain KUBE_NODE_IP 192.0.2.11",
            ),
            (
                &[],
                &[
                    ("MASTER_ADDRESSES", "192.0.2.11,192.0.2.11"),
                    ("ETCD_DISCOVERY_URL", "https://d.example.org/1"),
                    ("ETCD_TAG", "v3.4.3"),
                ],
                "MASTER_ADDRESSES names 192.0.2.11 twice",
            ),
            (
                &[],
                &[("DNS_SERVICE_IP", "10.254.0.0")],
                "DNS_SERVICE_IP 10.254.0.0 is the network's own address of PORTAL_NETWORK_CIDR 10.254.0.0/16",
            ),
            (
                &[],
                &[("DNS_SERVICE_IP", "10.254.255.255")],
                "DNS_SERVICE_IP 10.254.255.255 is the broadcast address of PORTAL_NETWORK_CIDR 10.254.0.0/16",
            ),
            (
                &[],
                &[("PODS_NETWORK_CIDR", "127.0.0.0/16")],
                "PODS_NETWORK_CIDR 127.0.0.0/16 is within the loopback addresses 127.0.0.0/8",
            ),
            (
                &[],
                &[("PODS_NETWORK_CIDR", "169.254.0.0/16")],
                "PODS_NETWORK_CIDR 169.254.0.0/16 is within the link-local addresses 169.254.0.0/16",
            ),
            (
                &[],
                &[("PODS_NETWORK_CIDR", "224.0.0.0/8")],
                "PODS_NETWORK_CIDR 224.0.0.0/8 is within the multicast addresses 224.0.0.0/4",
            ),
            (&[], &[("PODS_NETWORK_CIDR", "240.1.0.0/16")], ""),
            (
                &[],
                &[("PORTAL_NETWORK_CIDR", "169.254.128.0/20")],
                "PORTAL_NETWORK_CIDR 169.254.128.0/20 is within the link-local addresses 169.254.0.0/16",
            ),
            (
                &[],
                &[("CLUSTER_SUBNET_CIDR", "0.0.0.0/24")],
                "CLUSTER_SUBNET_CIDR 0.0.0.0/24 is within the unspecified addresses 0.0.0.0/8",
            ),
            (
                &[],
                &[
                    ("PODS_NETWORK_CIDR", "0.0.0.0/0"),
                    ("FLANNEL_NETWORK_SUBNETLEN", "16"),
                    ("PORTAL_NETWORK_CIDR", "10.254.0.0/16"),
                ],
                "PODS_NETWORK_CIDR 0.0.0.0/0 contains the unspecified addresses 0.0.0.0/8",
            ),
            (&[("NETWORK_DRIVER", "calico")], &[("CALICO_IPV4POOL", "96.0.0.0/5")], "CALICO_IPV4POOL 96.0.0.0/5 is too large"),
            (
                &[("NETWORK_DRIVER", "calico"), ("KUBECONTROLLER_OPTIONS", "--allocate-node-cidrs=false")],
                &[("CALICO_IPV4POOL", "96.0.0.0/5")],
                "",
            ),
            (
                &[],
                &[("KUBE_API_PRIVATE_ADDRESS", "10.254.0.7")],
                "PORTAL_NETWORK_CIDR 10.254.0.0/16 contains KUBE_API_PRIVATE_ADDRESS 10.254.0.7",
            ),
            (
                MINION,
                &[("ETCD_SERVER_IP", "10.100.0.7")],
                "FLANNEL_NETWORK_CIDR 10.100.0.0/16 contains ETCD_SERVER_IP 10.100.0.7",
            ),
        ] {
            assert_eq!(found(base, changes), expected, "{base:?} {changes:?}");
        }
    }

    #[test]
    fn another_network_of_pods_for_one_component_is_warned_of() {
        for (changes, expected) in [
            (
                ("KUBEPROXY_OPTIONS", "--cluster-cidr=10.9.0.0/16"),
                "sets --cluster-cidr=10.9.0.0/16, but FLANNEL_NETWORK_CIDR is 10.100.0.0/16",
            ),
            (
                ("KUBECONTROLLER_OPTIONS", "--cluster_cidr 10.9.0.0/16"),
                "sets --cluster-cidr=10.9.0.0/16, but FLANNEL_NETWORK_CIDR is 10.100.0.0/16",
            ),
            (("KUBEPROXY_OPTIONS", "--cluster-cidr=10.100.0.0/16"), ""),
        ] {
            let warnings = spec(&[changes]).warnings;
            let found: Vec<_> =
                warnings.iter().filter(|one| one.parameter == changes.0).map(|one| one.problem.as_str()).collect();
            assert_eq!(found.join("|"), expected, "{changes:?}");
        }
    }

    #[test]
    fn dockers_own_bridge_is_warned_of_where_docker_makes_it() {
        let warned = |changes: &[(&str, &str)]| {
            let changes: Vec<_> = [("PODS_NETWORK_CIDR", "172.17.0.0/16")].iter().chain(changes).copied().collect();
            spec(&changes).warnings.iter().any(|warning| warning.parameter == "PODS_NETWORK_CIDR")
        };
        assert!(warned(&[]));
        assert!(!warned(&[("CONTAINER_RUNTIME", "containerd")]), "there is no docker");
        assert!(!warned(&[("KUBE_TAG", "v1.9.3")]), "docker's bridge is flannel's");
        assert!(!warned(&[("PODS_NETWORK_CIDR", "172.18.0.0/16")]));
    }
}
