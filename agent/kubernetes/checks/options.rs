//! Options of components that contradict what the parameters say of the whole node.

use std::net::IpAddr;

use ipnet::IpNet;

use super::addresses::not_a_host_address;
use super::cluster::Checks;
use crate::kubernetes::runtimes::engine;
use crate::kubernetes::spec::cluster::UserOptions;
use crate::kubernetes::versions::{Component, given, option, truth};

const SERVICES: &str = "service-cluster-ip-range";

impl Checks<'_> {
    /// Options that say otherwise than the parameter that the rest of the node goes by: the kubelet would end, or be another node
    /// than its certificate says.
    pub(in crate::kubernetes) fn conflicting_options(&mut self) {
        let spec = self.spec;
        let knows_names = spec.tls && spec.minor.number() >= 7;
        let runtime = if engine::endpoint(spec).is_some() { "remote" } else { "docker" };
        let name = spec.node_name.as_deref().filter(|_| knows_names);
        let services = spec.networks.services.trunc().to_string();
        let by_services = "the API's own address, which its certificate names, and the cluster's DNS are in that network";
        let by_name = "since 1.7 the API knows a node by the name in its certificate, INSTANCE_NAME";
        let rows = [
            (Component::Kubelet, "hostname-override", name, by_name, "INSTANCE_NAME"),
            (
                Component::Proxy,
                "hostname-override",
                name,
                "kube-proxy finds its node by the name that the kubelet registers, INSTANCE_NAME",
                "INSTANCE_NAME",
            ),
            (
                Component::Kubelet,
                "cgroup-driver",
                Some(spec.runtime.cgroup_driver.as_str()),
                "the kubelet exits if the container runtime has another cgroup driver",
                "CGROUP_DRIVER",
            ),
            (
                Component::Kubelet,
                "container-runtime",
                Some(runtime),
                "the node runs the one container runtime that CONTAINER_RUNTIME names",
                "CONTAINER_RUNTIME",
            ),
            (
                Component::Kubelet,
                "fail-swap-on",
                spec.node.swap.then_some("false"),
                "SWAP=allow is for nodes with swap, where the kubelet then exits",
                "SWAP",
            ),
            (Component::ApiServer, SERVICES, Some(services.as_str()), by_services, "PORTAL_NETWORK_CIDR"),
            (Component::ControllerManager, SERVICES, Some(services.as_str()), by_services, "PORTAL_NETWORK_CIDR"),
            (
                Component::Kubelet,
                "cluster-domain",
                Some(spec.networks.domain.as_str()),
                "the certificate of the API server and the cluster's DNS are made for the domain of the whole cluster",
                "DNS_CLUSTER_DOMAIN",
            ),
        ];
        for (component, flag, expected, rule, parameter) in rows {
            let Some(expected) = expected else { continue };
            let set = given(spec.options.of(component)).into_iter().rev().find(|(name, _)| name == flag).map(|(_, value)| value);
            // A second network of services, of the other family, may follow.
            let network = |text: &str| text.parse::<IpNet>().ok().map(|network| network.trunc());
            let is_first = |set: &str| flag == SERVICES && set.split(',').next().and_then(network) == network(expected);
            let is_same =
                |set: &str| is_first(set) || set == expected || (truth(expected).is_some() && truth(set) == truth(expected));
            if let Some(set) = set.filter(|set| !is_same(set)) {
                let problem = format!("--{flag} is {set}, but the node is set up with {expected}");
                let remedy = format!("remove --{flag}; {parameter} sets it for the whole node");
                self.wrong(UserOptions::parameter(component), problem, rule, remedy);
            }
        }
        let servers = option(&spec.options.kubelet, "cluster-dns");
        if let Some(server) = servers.iter().flat_map(|list| list.split(',')).find(|server| server.parse::<IpAddr>().is_err()) {
            let problem = format!("--cluster-dns: {server} is no address");
            let rule = "each pod asks these addresses: the cluster's DNS, or a cache on the node";
            self.wrong("KUBELET_OPTIONS", problem, rule, "leave it out: DNS_SERVICE_IP is taken");
        }
        for address in option(&spec.options.kubelet, "node-ip").iter().flat_map(|list| list.split(',')) {
            let problem = match address.parse() {
                Ok(address) => not_a_host_address(address),
                Err(_) => Some("is no address".to_owned()),
            };
            if let Some(problem) = problem {
                let rule = "the address of this host, which the kubelet looks for among its interfaces";
                self.wrong("KUBELET_OPTIONS", format!("--node-ip {problem}"), rule, "leave it out: KUBE_NODE_IP is taken");
            }
        }
    }
}
