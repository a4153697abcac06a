//! Who listens where on a node: one list of the listeners of its components, and what must hold between them.

use super::cluster::Checks;
use crate::kubernetes::parameters::kinds::port_range;
use crate::kubernetes::spec::cluster::node_ports;
use crate::kubernetes::spec::cluster::{ClusterSpec, NetworkDriver, UserOptions};
use crate::kubernetes::spec::words::Role;
use crate::kubernetes::versions::{Availability, Component, flag, option};
use crate::network::flannel;

/// What comes to a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::kubernetes) enum Transport {
    Tcp,
    Udp,
    /// A service takes what its ports say.
    Both,
}

/// A listener of a component of this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::kubernetes) struct Listener {
    pub(in crate::kubernetes) whose: &'static str,
    pub(in crate::kubernetes) transport: Transport,
    /// First and last; equal for one.
    pub(in crate::kubernetes) ports: (u16, u16),
    /// The parameter that moves it, where one does.
    pub(in crate::kubernetes) parameter: Option<&'static str>,
}

impl Listener {
    fn meets(&self, other: &Self) -> bool {
        let transport =
            self.transport == other.transport || self.transport == Transport::Both || other.transport == Transport::Both;
        transport && self.ports.0 <= other.ports.1 && other.ports.0 <= self.ports.1
    }

    fn is_range(&self) -> bool {
        self.ports.0 != self.ports.1
    }
}

/// Collects the listeners of one cluster's node.
struct Listeners<'a> {
    cluster: &'a ClusterSpec,
    found: Vec<Listener>,
}

impl Listeners<'_> {
    fn add(&mut self, whose: &'static str, transport: Transport, port: u16, parameter: Option<&'static str>) {
        self.found.push(Listener { whose, transport, ports: (port, port), parameter });
    }

    /// A port that a flag of a component moves, or switches off by 0.
    fn add_flagged(
        &mut self,
        whose: &'static str,
        component: Component,
        name: &str,
        default: u16,
        parameter: Option<&'static str>,
    ) {
        let (options, of_options) = (self.cluster.options.of(component), UserOptions::parameter(component));
        // `…-bind-address` holds both: `127.0.0.1:10249`.
        let port_of = |text: String| text.rsplit(':').next().and_then(|port| port.parse::<u16>().ok());
        match option(options, name).and_then(port_of) {
            Some(0) => {}
            Some(port) => self.add(whose, Transport::Tcp, port, Some(of_options)),
            None if default != 0 => self.add(whose, Transport::Tcp, default, parameter),
            None => {}
        }
    }

    /// A listener of kube-proxy whose address one flag gives and whose port another one, which is deprecated: 0 there switches it off. Which of two ports
    /// counts is another one in each minor (`addressFromDeprecatedFlags` of cmd/kube-proxy/app/server.go and its forerunners).
    fn add_addressed(&mut self, whose: &'static str, address: &str, port: &str, default: u16) {
        let options = self.cluster.options.of(Component::Proxy);
        let (given, has_port) = (option(options, port), option(options, address).is_some_and(|text| text.contains(':')));
        if given.is_some() {
            self.add_flagged(whose, Component::Proxy, port, 0, None);
        }
        if given.is_none() || (has_port && given.as_deref() != Some("0")) {
            self.add_flagged(whose, Component::Proxy, address, default, None);
        }
    }

    fn knows(&self, component: Component, name: &str) -> bool {
        matches!(flag(component, self.cluster.minor, name), Availability::Known | Availability::Unchecked)
    }

    fn of_master(&mut self) {
        let cluster = self.cluster;
        self.add("etcd's clients", Transport::Tcp, cluster.etcd.client_port, None);
        self.add("etcd's peers", Transport::Tcp, cluster.etcd.peer_port, None);
        let port = cluster.api.port;
        let main = Some("KUBE_API_PORT");
        if cluster.tls {
            self.add_flagged("the API server", Component::ApiServer, "secure-port", port, main);
            if crate::kubernetes::parts::daemon::has_variables(cluster.minor) {
                let in_the_clear = crate::kubernetes::control_plane::apiserver::INSECURE_PORT;
                self.add_flagged("the API server (plaintext)", Component::ApiServer, "insecure-port", in_the_clear, None);
            }
        } else {
            self.add_flagged("the API server", Component::ApiServer, "insecure-port", port, main);
            let secure = crate::kubernetes::control_plane::apiserver::beside(port);
            self.add_flagged("the API server (TLS)", Component::ApiServer, "secure-port", secure, None);
        }
        if let Some(port) = cluster.api.balancer {
            self.add("the API's load balancer", Transport::Tcp, port, Some("API_BALANCER_PORT"));
        }
        if cluster.control_plane.keystone_auth {
            self.add("the Keystone webhook", Transport::Tcp, 8443, None);
        }
        for (whose, component, plain, secure) in [
            ("the controller manager", Component::ControllerManager, 10_252, 10_257),
            ("the scheduler", Component::Scheduler, 10_251, 10_259),
        ] {
            // Where it serves by TLS to whoever may ask, the other port is closed (`controller_manager.rs`).
            let serves_by_tls = self.knows(component, "secure-port");
            if serves_by_tls {
                self.add_flagged(whose, component, "secure-port", secure, None);
            }
            if self.knows(component, "port") {
                let closed = serves_by_tls && cluster.tls && self.knows(component, "authorization-kubeconfig");
                self.add_flagged(whose, component, "port", if closed { 0 } else { plain }, None);
            }
        }
    }

    fn of_worker(&mut self) {
        if let Some(port) = self.cluster.api.balancer {
            self.add("the API's load balancer", Transport::Tcp, port, Some("KUBE_API_PORT"));
        }
        if let Some(registry) = &self.cluster.registry {
            self.add("the registry", Transport::Tcp, registry.port, Some("REGISTRY_PORT"));
        }
    }

    fn of_every_node(&mut self) {
        let kubelet = Component::Kubelet;
        self.add_flagged("the kubelet", kubelet, "port", 10_250, None);
        self.add_flagged("the kubelet's health", kubelet, "healthz-port", 10_248, None);
        self.add_flagged("the kubelet's read-only port", kubelet, "read-only-port", 0, None);
        self.add_flagged("cAdvisor", kubelet, "cadvisor-port", 0, None);
        if self.knows(Component::Proxy, "metrics-bind-address") {
            self.add_addressed("kube-proxy's metrics", "metrics-bind-address", "metrics-port", 10_249);
        }
        if self.knows(Component::Proxy, "healthz-bind-address") {
            self.add_addressed("kube-proxy's health", "healthz-bind-address", "healthz-port", 10_256);
        } else {
            self.add_flagged("kube-proxy's health", Component::Proxy, "healthz-port", 10_249, None);
        }
        let networks = &self.cluster.networks;
        match networks.driver {
            NetworkDriver::Flannel => {
                let given = (!networks.flannel.options.is_empty()).then_some("FLANNEL_BACKEND_OPTIONS");
                if let Some(port) = flannel::port(&networks.flannel.backend, &networks.flannel.options) {
                    self.add("flannel", Transport::Udp, port, given);
                }
            }
            NetworkDriver::Calico => self.add("calico's BGP", Transport::Tcp, 179, None),
            NetworkDriver::KubeStack | NetworkDriver::StaticRoutes | NetworkDriver::None => {}
        }
        let by_option = option(&self.cluster.options.api_server, "service-node-port-range").as_deref().and_then(port_range);
        let parameter = match (by_option, self.cluster.node_ports) {
            (Some(_), _) => Some("KUBEAPI_OPTIONS"),
            (None, Some(_)) => Some("SERVICE_NODE_PORT_RANGE"),
            (None, None) => None,
        };
        let ports = node_ports(self.cluster);
        self.found.push(Listener { whose: "services", transport: Transport::Both, ports, parameter });
    }
}

/// Every listener of a node's components whose port is known from its parameters.
pub(in crate::kubernetes) fn listeners(role: Role, cluster: &ClusterSpec) -> Vec<Listener> {
    let mut all = Listeners { cluster, found: Vec::new() };
    match role {
        Role::Master => all.of_master(),
        Role::Minion => all.of_worker(),
    }
    all.of_every_node();
    all.found
}

impl Checks<'_> {
    /// Two listeners cannot share a port, and kube-proxy takes what comes to a service's port away from whoever listens there.
    pub(in crate::kubernetes) fn ports(&mut self) {
        let all = listeners(self.role, self.spec);
        for (at, one) in all.iter().enumerate() {
            for other in all.iter().take(at).filter(|other| one.meets(other)) {
                // The one whose parameter can move it is reported; a range that was given is what has to give way.
                let (movable, by) = match (one.parameter, other.parameter) {
                    (Some(_), None) => (one, other),
                    (Some(_), Some(_)) if one.is_range() => (one, other),
                    (_, Some(_)) => (other, one),
                    // Defaults that meet are Kubernetes' own affair: there are none (see the test).
                    (None, None) => continue,
                };
                let Some(name) = movable.parameter else { continue };
                let (first, last) = movable.ports;
                let problem = if movable.is_range() {
                    format!("{first}-{last} contains {}, the port of {}", by.ports.0, by.whose)
                } else if by.is_range() {
                    format!("{first} is among the ports of {}, {}-{}", by.whose, by.ports.0, by.ports.1)
                } else {
                    format!("{first} is the port of {}", by.whose)
                };
                let remedy = if movable.is_range() { "give another range" } else { "give another port" };
                self.wrong(name, problem, "a port can have only one listener", remedy);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubernetes::fixtures::{MINORS, problems, spec};

    const MINION: &[(&str, &str)] = &[("ROLE", "minion"), ("KUBE_MASTER_IP", "192.0.2.5")];
    const REGISTRY: &[(&str, &str)] = &[
        ("ROLE", "minion"),
        ("KUBE_MASTER_IP", "192.0.2.5"),
        ("REGISTRY_ENABLED", "true"),
        ("REGISTRY_CONTAINER", "c"),
        ("REGISTRY_AUTH_URL", "https://k.example.org/v3"),
        ("REGISTRY_USERNAME", "u"),
        ("REGISTRY_PASSWORD", "p"),
    ];

    const BALANCED: &[(&str, &str)] = &[("API_BALANCER", "haproxy"), ("MASTER_ADDRESSES", "192.0.2.11")];

    fn found(base: &[(&str, &str)], changes: &[(&str, &str)]) -> String {
        problems(&base.iter().chain(changes).copied().collect::<Vec<_>>()).join("|")
    }

    #[test]
    fn a_port_is_one_listeners() {
        for (base, changes, expected) in [
            (&[][..], &[("KUBE_API_PORT", "2380")][..], "KUBE_API_PORT 2380 is the port of etcd's peers"),
            (&[], &[("KUBE_API_PORT", "10248")], "KUBE_API_PORT 10248 is the port of the kubelet's health"),
            (&[], &[("KUBE_API_PORT", "10249")], "KUBE_API_PORT 10249 is the port of kube-proxy's metrics"),
            (&[], &[("KUBE_API_PORT", "10256")], "KUBE_API_PORT 10256 is the port of kube-proxy's health"),
            (&[("KUBEPROXY_OPTIONS", "--healthz-port=0")], &[("KUBE_API_PORT", "10256")], ""),
            (&[("KUBEPROXY_OPTIONS", "--healthz-bind-address=0.0.0.0:7000 --healthz-port=0")], &[("KUBE_API_PORT", "7000")], ""),
            (
                &[("KUBEPROXY_OPTIONS", "--metrics-port=7000")],
                &[("KUBE_API_PORT", "7000")],
                "KUBE_API_PORT 7000 is the port of kube-proxy's metrics",
            ),
            (&[("KUBEPROXY_OPTIONS", "--metrics-port=7000")], &[("KUBE_API_PORT", "10249")], ""),
            (&[], &[("KUBEPROXY_OPTIONS", "--healthz-port=10250")], "KUBEPROXY_OPTIONS 10250 is the port of the kubelet"),
            (
                &[("KUBEPROXY_OPTIONS", "--healthz-bind-address=127.0.0.1:7000")],
                &[("KUBE_API_PORT", "7000")],
                "KUBE_API_PORT 7000 is the port of kube-proxy's health",
            ),
            (&[], &[("KUBE_API_PORT", "10257")], "KUBE_API_PORT 10257 is the port of the controller manager"),
            (&[], &[("KUBE_API_PORT", "10259")], "KUBE_API_PORT 10259 is the port of the scheduler"),
            (&[], &[("KUBE_API_PORT", "10252")], ""),
            (
                &[("KUBE_TAG", "v1.9.3")],
                &[("KUBE_API_PORT", "10252")],
                "KUBE_API_PORT 10252 is the port of the controller manager",
            ),
            (&[("KUBE_TAG", "v1.9.3")], &[("KUBE_API_PORT", "10257")], ""),
            (
                &[],
                &[("NODE_LAYOUT", "kubernetes-ansible"), ("KUBE_API_PORT", "4001")],
                "KUBE_API_PORT 4001 is the port of etcd's clients",
            ),
            (&[], &[("NODE_LAYOUT", "kubernetes-ansible"), ("KUBE_API_PORT", "2379")], ""),
            (
                &[],
                &[("KEYSTONE_AUTH_ENABLED", "true"), ("KUBE_API_PORT", "8443")],
                "KUBE_API_PORT 8443 is the port of the Keystone webhook",
            ),
            (&[], &[("KUBE_API_PORT", "8443")], ""),
            (&[], &[("NETWORK_DRIVER", "calico"), ("KUBE_API_PORT", "179")], "KUBE_API_PORT 179 is the port of calico's BGP"),
            (&[], &[("KUBE_API_PORT", "30443")], "KUBE_API_PORT 30443 is among the ports of services, 30000-32767"),
            (&[], &[("KUBE_API_PORT", "30443"), ("SERVICE_NODE_PORT_RANGE", "31000-32000")], ""),
            (
                &[],
                &[("SERVICE_NODE_PORT_RANGE", "2000-6000")],
                "SERVICE_NODE_PORT_RANGE 2000-6000 contains 2379, the port of etcd's clients|\
                 SERVICE_NODE_PORT_RANGE 2000-6000 contains 2380, the port of etcd's peers",
            ),
            (
                &[],
                &[("SERVICE_NODE_PORT_RANGE", "6000-7000")],
                "SERVICE_NODE_PORT_RANGE 6000-7000 contains 6443, the port of the API server",
            ),
            (
                &[],
                &[("KUBEAPI_OPTIONS", "--service-node-port-range=6000-7000")],
                "KUBEAPI_OPTIONS 6000-7000 contains 6443, the port of the API server",
            ),
            (
                &[("FLANNEL_RUNS_AS", "unit"), ("FLANNEL_BACKEND", "vxlan")],
                &[("FLANNEL_BACKEND_OPTIONS", r#"{"Port": 30100}"#)],
                "FLANNEL_BACKEND_OPTIONS 30100 is among the ports of services, 30000-32767",
            ),
            // UDP and TCP are two.
            (
                &[("FLANNEL_RUNS_AS", "unit"), ("FLANNEL_BACKEND", "vxlan")],
                &[("FLANNEL_BACKEND_OPTIONS", r#"{"Port": 6443}"#)],
                "",
            ),
            (
                &[],
                &[("KUBELET_OPTIONS", "--read-only-port=6443")],
                "KUBE_API_PORT 6443 is the port of the kubelet's read-only port",
            ),
            (&[], &[("KUBELET_OPTIONS", "--port=10250")], ""),
            (MINION, &[("KUBE_API_PORT", "10250")], ""),
            (
                MINION,
                &[("KUBE_API_PORT", "10250"), ("API_BALANCER", "haproxy"), ("MASTER_ADDRESSES", "192.0.2.5")],
                "KUBE_API_PORT 10250 is the port of the kubelet",
            ),
            (BALANCED, &[("KUBE_API_PORT", "16443")], "KUBE_API_PORT 16443 is the port of the API's load balancer"),
            (BALANCED, &[("API_BALANCER_PORT", "2379")], "API_BALANCER_PORT 2379 is the port of etcd's clients"),
            (BALANCED, &[("API_BALANCER_PORT", "10250")], "API_BALANCER_PORT 10250 is the port of the kubelet"),
            (BALANCED, &[("API_BALANCER_PORT", "30444")], "API_BALANCER_PORT 30444 is among the ports of services, 30000-32767"),
            (BALANCED, &[("API_BALANCER_PORT", "7443")], ""),
            // Without it nobody listens there, and on a worker it is at KUBE_API_PORT.
            (&[], &[("API_BALANCER_PORT", "10250")], ""),
            (MINION, &[("API_BALANCER_PORT", "10250"), ("API_BALANCER", "haproxy"), ("MASTER_ADDRESSES", "192.0.2.5")], ""),
            (REGISTRY, &[("REGISTRY_PORT", "10250")], "REGISTRY_PORT 10250 is the port of the kubelet"),
            (REGISTRY, &[("REGISTRY_PORT", "6443")], ""),
            (
                REGISTRY,
                &[("REGISTRY_PORT", "6443"), ("API_BALANCER", "haproxy"), ("MASTER_ADDRESSES", "192.0.2.5")],
                "KUBE_API_PORT 6443 is the port of the registry",
            ),
        ] {
            assert_eq!(found(base, changes), expected, "{base:?} {changes:?}");
        }
    }

    /// What nobody has moved meets nothing: else a node would have two listeners on a port, and no parameter to name.
    #[test]
    fn the_default_ports_are_all_different() {
        for minor in MINORS {
            let tag = format!("v1.{minor}.3");
            for role in ["master", "minion"] {
                let changes = [
                    ("KUBE_TAG", tag.as_str()),
                    ("ROLE", role),
                    ("KUBE_MASTER_IP", "192.0.2.5"),
                    ("ETCD_SERVER_IP", "192.0.2.5"),
                ];
                let node = spec(&changes);
                let all = listeners(node.role, node.kubernetes.as_ref().unwrap());
                for (at, one) in all.iter().enumerate() {
                    let met: Vec<_> = all.iter().take(at).filter(|other| one.meets(other)).collect();
                    assert!(met.is_empty(), "1.{minor} {role}: {one:?} {met:?}");
                }
            }
        }
    }
}
