//! The Kubernetes half of a node's specification: there where KUBE_TAG is given.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use ipnet::{IpNet, Ipv4Net};
use serde_json::{Map, Value};

use super::trust::TrustSpec;
use super::words::{CertificateSource, RuntimeKind};
use crate::desired::{KeyType, Material, Peer, Signer};
use crate::kubernetes::parameters::kinds::port_range;
use crate::kubernetes::spec::words::{Role, Secret};
use crate::kubernetes::versions::option;
use crate::kubernetes::versions::{Availability, Component, Minor, flag};
use crate::network::{FirewallTool, Interface, PreviousNetwork};

/// Where everything of the control plane lies.
pub(in crate::kubernetes) const CERTIFICATES: &str = "/etc/kubernetes/certs";
/// The first minor whose built-in provider takes a trust (magnum-node.md 1.8: Magnum 4.x).
pub(in crate::kubernetes) const FIRST_WITH_TRUSTS: u16 = 5;
/// The last minor with OpenStack's cloud provider built in.
const LAST_BUILT_IN_CLOUD: u16 = 25;
/// How components reach OpenStack, where they do so by themselves.
pub(in crate::kubernetes) const CLOUD_CONFIG: &str = "/etc/kubernetes/cloud-config";
/// The manifest directory of the kubelet.
pub(in crate::kubernetes) const MANIFESTS: &str = "/etc/kubernetes/manifests";

/// A node of a Kubernetes cluster, as its parameters ask for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterSpec {
    /// Minor release, which every flag is chosen by.
    pub minor: Minor,
    /// `KUBE_TAG` as it was given: an image tag, perhaps with a suffix.
    pub tag: String,
    /// Name of the node in Kubernetes: `INSTANCE_NAME`.
    pub node_name: Option<String>,
    /// Whether the cluster works with TLS (not `TLS_DISABLED`).
    pub tls: bool,
    /// Where certificates come from.
    pub certificates: CertificateSource,
    /// What is given of them, and how the others are made.
    pub trust: TrustSpec,
    /// The API.
    pub api: Api,
    /// Networks of pods and services.
    pub networks: Networks,
    /// etcd.
    pub etcd: Etcd,
    /// Whether a master is the first one (`MASTER_INDEX` 0), which makes what the cluster has once.
    pub is_first_master: bool,
    /// `MASTER_INDEX`, where it was given.
    pub master_index: Option<u32>,
    /// The container runtime.
    pub runtime: Runtime,
    /// How the node shows itself to the cluster.
    pub node: NodeSettings,
    /// The control plane.
    pub control_plane: ControlPlane,
    /// OpenStack, where the cluster knows it.
    pub cloud: Option<Cloud>,
    /// A registry on the node (`REGISTRY_ENABLED`, workers only).
    pub registry: Option<Registry>,
    /// `BOOTSTRAP_TOKEN`: what a worker without a certificate joins by, and masters let it in by.
    pub bootstrap_token: Option<Secret>,
    /// `OPENSTACK_CA`, with real line ends: who signed OpenStack's certificates.
    pub openstack_ca: Option<String>,
    /// `SELINUX_MODE`.
    pub selinux: Option<String>,
    /// KubeStack's network provider, where it is asked for (`KUBESTACK`): its integration bridge.
    pub kubestack: Option<String>,
    /// Where images of Kubernetes come from (`CONTAINER_INFRA_PREFIX`, else `HYPERKUBE_PREFIX`), as the prefix of a name.
    pub image_prefix: Option<String>,
    /// `PROXY_MODE`.
    pub proxy_mode: Option<String>,
    /// `SERVICE_NODE_PORT_RANGE`: first and last.
    pub node_ports: Option<(u16, u16)>,
    /// `FIREWALL`: whose rules let the node's services in.
    pub firewall: Option<FirewallTool>,
    /// `CLUSTER_SUBNET_CIDR`, where it was given: where the nodes are.
    pub nodes: Option<Ipv4Net>,
    /// `ADDONS`.
    pub add_ons: AddOns,
    /// Users' further flags.
    pub options: UserOptions,
}

/// What the cluster's first master applies beyond nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddOns {
    /// `ADDONS`: names of directories of the image, in the order in which they are applied.
    pub names: Vec<String>,
    /// `ADDONS_WAIT`: how long what they run is waited for; zero where nothing waits.
    pub wait: Duration,
    /// `CONTAINER_INFRA_PREFIX`: what names of images begin with.
    pub registry: Option<String>,
    /// By the fact that a manifest names: the tags of their images, empty where the manifest's own default counts.
    pub tags: Vec<(&'static str, String)>,
}

/// Facts of manifests that are tags of images, and the parameters that give them, as Magnum's labels do.
pub const IMAGE_TAGS: [(&str, &str); 9] = [
    ("cinder_csi_plugin_tag", "CINDER_CSI_PLUGIN_TAG"),
    ("coredns_tag", "COREDNS_TAG"),
    ("csi_attacher_tag", "CSI_ATTACHER_TAG"),
    ("csi_liveness_probe_tag", "CSI_LIVENESS_PROBE_TAG"),
    ("csi_node_driver_registrar_tag", "CSI_NODE_DRIVER_REGISTRAR_TAG"),
    ("csi_provisioner_tag", "CSI_PROVISIONER_TAG"),
    ("csi_resizer_tag", "CSI_RESIZER_TAG"),
    ("dashboard_tag", "KUBE_DASHBOARD_VERSION"),
    ("metrics_server_tag", "METRICS_SERVER_TAG"),
];

/// The API and how it is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Api {
    /// `KUBE_API_PORT`.
    pub port: u16,
    /// `KUBE_API_PRIVATE_ADDRESS`.
    pub private: Option<IpAddr>,
    /// `KUBE_API_PUBLIC_ADDRESS`.
    pub public: Option<IpAddr>,
    /// `MASTER_HOSTNAME`: a further name of the servers' certificates.
    pub name: Option<String>,
    /// `KUBE_MASTER_IP`, for workers.
    pub master: Option<IpAddr>,
    /// `MASTER_ADDRESSES`: every master, where a balancer on the node or a static etcd cluster needs them.
    pub masters: Vec<IpAddr>,
    /// Where HAProxy on this node stands before the masters (`API_BALANCER=haproxy`): its port on the loopback, which is `KUBE_API_PORT` on
    /// workers and `API_BALANCER_PORT` on masters, whose own API server has the former.
    pub balancer: Option<u16>,
}

impl ClusterSpec {
    /// URL of the API as the control plane and the agent reach it: on a master its own API server. The controller manager and the scheduler
    /// must not be newer than any API server that they talk to (Kubernetes' version skew policy).
    #[must_use]
    pub fn server(&self, role: Role) -> String {
        let host = match (role, self.api.master) {
            // The balancer listens on the loopback.
            (Role::Minion, Some(master)) if self.api.balancer.is_none() => host_of(master),
            _ => "127.0.0.1".to_owned(),
        };
        self.url(&host, self.api.port)
    }

    /// URL of the API as kubelet and kube-proxy reach it: by the balancer, where the node has one.
    #[must_use]
    pub fn server_of_node(&self, role: Role) -> String {
        self.api.balancer.map_or_else(|| self.server(role), |port| self.url("127.0.0.1", port))
    }

    fn url(&self, host: &str, port: u16) -> String {
        format!("{}://{host}:{port}", if self.tls { "https" } else { "http" })
    }

    /// Whether OpenStack is served by the provider that is built into Kubernetes: with a trust (Magnum's first releases
    /// left it off), without the external one, and up to 1.25 (magnum-node.md 1.5, 5.3).
    #[must_use]
    pub fn has_built_in_cloud(&self) -> bool {
        let wanted = |cloud: &Cloud| cloud.provider && !cloud.external && cloud.trust.is_some();
        (FIRST_WITH_TRUSTS..=LAST_BUILT_IN_CLOUD).contains(&self.minor.number()) && self.cloud.as_ref().is_some_and(wanted)
    }

    /// Whether the external provider leaves Cinder's volumes to the plugin that is built into Kubernetes.
    #[must_use]
    pub fn has_built_in_cinder(&self) -> bool {
        self.minor.number() <= LAST_BUILT_IN_CLOUD
            && self.cloud.as_ref().is_some_and(|cloud| cloud.external && cloud.in_tree_cinder)
    }

    /// Whether there are further masters.
    #[must_use]
    pub fn has_several_masters(&self) -> bool {
        match &self.etcd.cluster {
            EtcdCluster::Static(members) => members.len() > 1,
            EtcdCluster::Discovery(_) => true,
            EtcdCluster::Single => self.api.masters.len() > 1,
        }
    }

    /// Whether flanneld runs as a unit and keeps its leases in etcd. Else it is one of the cluster's add-ons and keeps them in
    /// the API (magnum-node.md 1.6).
    #[must_use]
    pub fn has_flannel_unit(&self) -> bool {
        self.networks.driver == NetworkDriver::Flannel && self.networks.flannel.is_unit
    }

    /// Whether pods get their network by CNI: not where docker is spoken to by the kubelet itself and pods are on docker's own
    /// bridge.
    #[must_use]
    pub fn uses_cni(&self) -> bool {
        let on_dockers_bridge = match self.networks.driver {
            NetworkDriver::Flannel => self.networks.flannel.is_unit,
            NetworkDriver::StaticRoutes | NetworkDriver::KubeStack => true,
            NetworkDriver::Calico => false,
            // Whoever brings a network of his own does it as the minor's clusters do.
            NetworkDriver::None => self.minor.number() <= LAST_WITH_FLANNEL_UNIT,
        };
        !on_dockers_bridge || self.runtime.kind != RuntimeKind::Docker || self.runtime.cri_dockerd
    }

    /// Whether the controller manager of a master signs certificates: it is asked to, or has to for workers that join by a
    /// token; it has the key, and the minor can.
    #[must_use]
    pub fn signs(&self) -> bool {
        (self.control_plane.signs || self.lets_join_by_token())
            && self.tls
            && self.trust.ca(Signer::Kubernetes).key.is_some()
            && flag(Component::ControllerManager, self.minor, "cluster-signing-key-file") == Availability::Known
    }

    /// Whether workers join by `BOOTSTRAP_TOKEN`.
    #[must_use]
    pub fn lets_join_by_token(&self) -> bool {
        self.tls && self.bootstrap_token.is_some()
    }

    /// Whether the certificates of this node are for the agent to provide.
    #[must_use]
    pub fn wants_certificates(&self) -> bool {
        self.tls
    }
}

/// An address as it stands in a URL.
#[must_use]
pub fn host_of(address: IpAddr) -> String {
    match address {
        IpAddr::V4(v4) => v4.to_string(),
        IpAddr::V6(v6) => format!("[{v6}]"),
    }
}

/// Which pod network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkDriver {
    /// flannel.
    Flannel,
    /// calico, brought by the cluster's add-ons.
    Calico,
    /// The parameters say every node's subnet.
    StaticRoutes,
    /// KubeStack: pods are on Neutron's own networks.
    KubeStack,
    /// Nothing of ours but forwarding.
    None,
}

/// The last minor whose clusters run flanneld as a unit by themselves (magnum-node.md 1.6).
pub(in crate::kubernetes) const LAST_WITH_FLANNEL_UNIT: u16 = 9;

/// flannel, as the parameters ask for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flannel {
    /// `FLANNEL_RUNS_AS`: whether it is a unit with its leases in etcd.
    pub is_unit: bool,
    /// `FLANNEL_BACKEND` (or `FLANNEL_USE_VXLAN`).
    pub backend: String,
    /// `FLANNEL_BACKEND_OPTIONS`.
    pub options: Map<String, Value>,
    /// `FLANNEL_NETWORK_SUBNETLEN`.
    pub subnet_length: u8,
    /// `FLANNEL_SUBNET_MIN`.
    pub min: Option<Ipv4Addr>,
    /// `FLANNEL_SUBNET_MAX`.
    pub max: Option<Ipv4Addr>,
    /// Version of flanneld as `FLANNEL_TAG` names it.
    pub tag: Option<String>,
    /// `FLANNEL_ETCD_PREFIX`.
    pub prefix: Option<String>,
}

/// A pod network of routes that the parameters give (kubernetes-ansible's, seed-systems.md 6b).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StaticRoutes {
    /// `POD_BRIDGE`.
    pub bridge: String,
    /// `NODE_SUBNETS`, this node's among them.
    pub nodes: Vec<Peer>,
}

impl StaticRoutes {
    /// The node of this address.
    #[must_use]
    pub fn own(&self, address: Option<IpAddr>) -> Option<Peer> {
        self.nodes.iter().copied().find(|peer| Some(IpAddr::V4(peer.node)) == address)
    }
}

/// Networks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Networks {
    /// `NETWORK_DRIVER`.
    pub driver: NetworkDriver,
    /// flannel, whichever driver there is.
    pub flannel: Flannel,
    /// Whether calico is set to tunnel by IP in IP (`CALICO_IPV4POOL_IPIP`).
    pub calico_tunnels: bool,
    /// What the driver static-routes needs.
    pub routes: StaticRoutes,
    /// `PODS_NETWORK_CIDR`, else the driver's own.
    pub pods: IpNet,
    /// `PORTAL_NETWORK_CIDR`.
    pub services: IpNet,
    /// `DNS_SERVICE_IP`.
    pub dns: IpAddr,
    /// `DNS_CLUSTER_DOMAIN`.
    pub domain: String,
}

impl Networks {
    /// The first address of the service network, which is the API's own (magnum-node.md 4.3).
    #[must_use]
    pub fn first_service(&self) -> Option<IpAddr> {
        // In an IPv6 network the first host is the network's own address.
        self.services.hosts().nth(usize::from(matches!(self.services, IpNet::V6(_))))
    }
}

/// How an etcd member finds the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EtcdCluster {
    /// Alone.
    Single,
    /// `ETCD_DISCOVERY_URL`.
    Discovery(Secret),
    /// `ETCD_INITIAL_CLUSTER`: `name=url` of every member.
    Static(Vec<String>),
}

/// etcd on masters, and where workers find it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Etcd {
    /// Version as `ETCD_TAG` names it.
    pub tag: Option<String>,
    /// How members find each other.
    pub cluster: EtcdCluster,
    /// Whether the member joins a cluster that is there (`ETCD_INITIAL_CLUSTER_STATE=existing`).
    pub joins: bool,
    /// Whether it joins as a learner (`ETCD_LEARNER`; etcd 3.4 and later).
    pub learner: bool,
    /// `ETCD_SERVER_IP`, for workers: what flannel's etcd is reached by.
    pub server: Option<IpAddr>,
    /// `ETCD_LB_VIP`: a further name of the server's certificate.
    pub balancer: Option<IpAddr>,
    /// Where clients are served: 2379, or 4001 in kubernetes-ansible's layout.
    pub client_port: u16,
    /// Where peers are served: 2380, or 7001 in kubernetes-ansible's layout.
    pub peer_port: u16,
}

/// The container runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Runtime {
    /// `CONTAINER_RUNTIME`.
    pub kind: RuntimeKind,
    /// Whether docker is spoken to through cri-dockerd: from 1.24 on it has to be.
    pub cri_dockerd: bool,
    /// `CGROUP_DRIVER`: `systemd` or `cgroupfs`, for runtime and kubelet alike.
    pub cgroup_driver: String,
    /// Image of a pod's sandbox.
    pub sandbox_image: Option<String>,
}

/// How the node shows itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeSettings {
    /// `NODE_LABELS` and Magnum's own, `key=value`.
    pub labels: Vec<(String, String)>,
    /// `NODE_TAINTS` and the master's, `key=value:effect`.
    pub taints: Vec<String>,
    /// `STATIC_POD_URL`.
    pub static_pod_url: Option<String>,
    /// `SWAP`: whether the kubelet starts on a machine with swap.
    pub swap: bool,
    /// `KUBE_RESERVED`, where it was given.
    pub kube_reserved: Option<String>,
    /// `SYSTEM_RESERVED`, where it was given.
    pub system_reserved: Option<String>,
    /// `KUBE_NODE_PUBLIC_IP`.
    pub public: Option<IpAddr>,
}

/// The control plane of a master.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ControlPlane {
    /// `KUBE_ALLOW_PRIV`.
    pub allow_privileged: bool,
    /// `ADMISSION_CONTROL_LIST`; empty: the version's own.
    pub admission: Vec<String>,
    /// `KEYSTONE_AUTH_ENABLED`: whether the API asks Magnum's webhook.
    pub keystone_auth: bool,
    /// `CERT_MANAGER_API`: whether the controller manager signs.
    pub signs: bool,
    /// `KUBE_SERVICE_ACCOUNT_KEY`.
    pub service_account_key: Option<Material>,
    /// `KUBE_SERVICE_ACCOUNT_PRIVATE_KEY`.
    pub service_account_private_key: Option<Material>,
    /// `SERVICE_ACCOUNT_KEYS`, where it was given.
    pub service_account_key_type: Option<KeyType>,
    /// `CLUSTER_UUID`: name of the cluster.
    pub cluster_name: String,
}

/// OpenStack as the cluster sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cloud {
    /// `AUTH_URL`.
    pub auth_url: String,
    /// `TRUSTEE_USER_ID` (or `USERNAME` in Magnum 2.x).
    pub user: CloudUser,
    /// `TRUST_ID`.
    pub trust: Option<Secret>,
    /// `REGION_NAME`.
    pub region: Option<String>,
    /// `CLUSTER_SUBNET`.
    pub subnet: Option<String>,
    /// `EXTERNAL_NETWORK_ID`.
    pub floating_network: Option<String>,
    /// `CLUSTER_NETWORK_NAME`.
    pub network_name: Option<String>,
    /// `OCTAVIA_ENABLED`, and its provider, algorithm and health checks.
    pub octavia: Option<Octavia>,
    /// Whether there is a provider at all: unless `CLOUD_PROVIDER_ENABLED` says no.
    pub provider: bool,
    /// Whether it is the external one (`CLOUD_PROVIDER_ENABLED`, from 1.11 on); else the in-tree one, where the version has it.
    pub external: bool,
    /// Whether volumes are Cinder's by the in-tree plugin (`VOLUME_DRIVER=cinder` without `CINDER_CSI_ENABLED`).
    pub in_tree_cinder: bool,
    /// `CLOUD_PROVIDER_TAG`: what reads the external provider's file.
    pub tag: Option<String>,
}

/// Whose credentials the cloud configuration holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CloudUser {
    /// The cluster's trustee: id and password.
    Trustee(String, Secret),
    /// The creator: name, password, project name (Magnum 2.x).
    Creator(String, Secret, String),
}

/// Load balancers by Octavia.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Octavia {
    /// `OCTAVIA_PROVIDER`.
    pub provider: String,
    /// `OCTAVIA_LB_ALGORITHM`.
    pub algorithm: String,
    /// `OCTAVIA_LB_HEALTHCHECK`.
    pub health_check: bool,
}

/// A registry on the node, with Swift behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registry {
    /// `REGISTRY_PORT`.
    pub port: u16,
    /// `REGISTRY_CONTAINER`.
    pub container: String,
    /// `REGISTRY_INSECURE`: Swift's certificate is not verified.
    pub insecure: bool,
    /// `REGISTRY_CHUNKSIZE` in bytes.
    pub chunk_size: u32,
    /// Keystone: `REGISTRY_AUTH_URL`, else `AUTH_URL`.
    pub auth_url: String,
    /// `REGISTRY_REGION`, else `SWIFT_REGION`.
    pub region: Option<String>,
    /// `REGISTRY_USERNAME`, else `TRUSTEE_USERNAME`.
    pub user: String,
    /// `REGISTRY_PASSWORD`, else `TRUSTEE_PASSWORD`.
    pub password: Secret,
    /// `REGISTRY_DOMAIN`, else `TRUSTEE_DOMAIN_ID`.
    pub domain: Option<String>,
    /// Whether that is an id (`TRUSTEE_DOMAIN_ID`), no name.
    pub domain_is_id: bool,
    /// `REGISTRY_TRUST_ID`, else `TRUST_ID`.
    pub trust: Option<Secret>,
}

/// `*_OPTIONS`: further flags, one text a component.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserOptions {
    /// `KUBELET_OPTIONS`.
    pub kubelet: String,
    /// `KUBEAPI_OPTIONS`.
    pub api_server: String,
    /// `KUBECONTROLLER_OPTIONS`.
    pub controller_manager: String,
    /// `KUBESCHEDULER_OPTIONS`.
    pub scheduler: String,
    /// `KUBEPROXY_OPTIONS`.
    pub proxy: String,
}

impl UserOptions {
    /// Whose they are, in the order in which they are judged.
    pub(in crate::kubernetes) const COMPONENTS: [Component; 5] =
        [Component::Kubelet, Component::Proxy, Component::ApiServer, Component::ControllerManager, Component::Scheduler];

    /// The options of a component.
    #[must_use]
    pub(in crate::kubernetes) fn of(&self, component: Component) -> &str {
        match component {
            Component::Kubelet => &self.kubelet,
            Component::Proxy => &self.proxy,
            Component::ApiServer => &self.api_server,
            Component::ControllerManager => &self.controller_manager,
            Component::Scheduler => &self.scheduler,
        }
    }

    /// The parameter that gives them.
    #[must_use]
    pub(in crate::kubernetes) fn parameter(component: Component) -> &'static str {
        match component {
            Component::Kubelet => "KUBELET_OPTIONS",
            Component::Proxy => "KUBEPROXY_OPTIONS",
            Component::ApiServer => "KUBEAPI_OPTIONS",
            Component::ControllerManager => "KUBECONTROLLER_OPTIONS",
            Component::Scheduler => "KUBESCHEDULER_OPTIONS",
        }
    }

    /// Whether a node of this role runs the component, so that its options are read there.
    #[must_use]
    pub(in crate::kubernetes) fn is_component_on(component: Component, role: Role) -> bool {
        role == Role::Master || matches!(component, Component::Kubelet | Component::Proxy)
    }
}

/// What the machine is, as far as its files depend on it; all unknown where it is another machine's tree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MachineFacts {
    /// Memory in MiB.
    pub memory: Option<u64>,
    /// Number of CPUs.
    pub cpus: Option<u32>,
    /// Whether the machine has control groups of version 2 alone; nothing that is rendered depends on it.
    pub unified_cgroups: bool,
    /// MiB of swap that is on; nothing that is rendered depends on it.
    pub swap: Option<u64>,
    /// MiB free on the root file system; nothing that is rendered depends on it.
    pub disk: Option<u64>,
    /// Whether systemd-resolved's stub is the resolver, so that pods need its real upstream file (magnum-node.md 7.4 no. 51).
    pub resolved: bool,
    /// Whether the image's docker reads its storage options from /etc/sysconfig/docker-storage.
    pub docker_sysconfig: bool,
    /// The command line of the image's docker.service, as its unit file has it.
    pub docker_command: Option<String>,
    /// The key that /etc/sysconfig/flanneld names (magnum-node.md 1.6: read it, never hard-code it).
    pub flannel_prefix: Option<String>,
    /// Release of the running kernel: major, minor.
    pub kernel: Option<(u16, u16)>,
    /// Those of [`MODULES`](crate::kubernetes::MODULES) that the kernel has neither built in nor as a module; empty where it is not known.
    pub lacking_modules: Vec<&'static str>,
    /// What the agent made here before.
    pub made: PreviousNetwork,
    /// What tokens of service accounts were signed and verified by here before.
    pub tokens: Tokens,
    /// Interfaces; nothing that is rendered depends on them.
    pub interfaces: Vec<Interface>,
    /// Kubernetes' programs of several releases side by side, by their paths ([`program_of_release`]).
    pub releases: BTreeSet<String>,
}

/// Where an image that has several releases of Kubernetes has a program of one: a folder for each tag as `KUBE_TAG` names it.
#[must_use]
pub fn program_of_release(tag: &str, program: &str) -> String {
    format!("{RELEASES}/{tag}/bin/{program}")
}

/// The folders of several releases.
pub const RELEASES: &str = "/opt/kubernetes";

impl MachineFacts {
    /// What the unit of a component runs: its program of the release that is asked for, where the image has that, else what systemd finds by the name.
    pub(in crate::kubernetes) fn program(&self, cluster: &ClusterSpec, component: Component) -> String {
        let path = program_of_release(&cluster.tag, component.as_str());
        if self.releases.contains(&path) { path } else { component.as_str().to_owned() }
    }
}

/// Keys of service accounts' tokens on a master as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tokens {
    /// Whether the API server verifies tokens by its own key.
    pub verified_by_server_key: bool,
    /// Whether a private key for tokens lies in its place.
    pub has_own_key: bool,
}

/// Ports of services, unless the API server has others.
pub(in crate::kubernetes) const NODE_PORTS: (u16, u16) = (30_000, 32_767);

/// The ports of services on every node.
pub(in crate::kubernetes) fn node_ports(cluster: &ClusterSpec) -> (u16, u16) {
    let asked = option(&cluster.options.api_server, "service-node-port-range").as_deref().and_then(port_range);
    asked.or(cluster.node_ports).unwrap_or(NODE_PORTS)
}

/// `192.0.2.11=10.100.1.0/24`
pub(in crate::kubernetes) fn node_subnet(item: &str) -> Option<Peer> {
    let (node, subnet) = item.split_once('=')?;
    Some(Peer { subnet: subnet.parse().ok()?, node: node.parse().ok()? })
}

/// The network of pods as IPv4, which is all that flannel's units and the routes do.
pub(in crate::kubernetes) fn pods(cluster: &ClusterSpec) -> Option<Ipv4Net> {
    match cluster.networks.pods {
        IpNet::V4(network) => Some(network.trunc()),
        IpNet::V6(_) => None,
    }
}
