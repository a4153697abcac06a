//! From parameters to the Kubernetes half of a node's specification, checked against each other.

use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;

use super::node::pods_parameter;
use crate::budgets::json;
use crate::desired::KeyType;
use crate::kubernetes::checks::cluster::{Checks, minor_of};
use crate::kubernetes::parameters::kinds::port_range;
use crate::kubernetes::parameters::mistake::Mistake;
use crate::kubernetes::parameters::read::Parameters;
use crate::kubernetes::parts::certificates::FIRST_WITH_ECDSA_TOKENS;
use crate::kubernetes::spec::cluster::node_subnet;
use crate::kubernetes::spec::cluster::{
    AddOns, Api, Cloud, CloudUser, ClusterSpec, ControlPlane, Etcd, EtcdCluster, FIRST_WITH_TRUSTS, Flannel, IMAGE_TAGS,
    LAST_WITH_FLANNEL_UNIT, NetworkDriver, Networks, NodeSettings, Octavia, Registry, Runtime, StaticRoutes, UserOptions,
};
use crate::kubernetes::spec::trust::{TrustSpec, key_type, material};
use crate::kubernetes::spec::words::{CertificateSource, RuntimeKind};
use crate::kubernetes::spec::words::{Role, Secret};
use crate::kubernetes::versions::Minor;
use crate::kubernetes::versions::two_numbers;
use crate::network::FirewallTool;

/// The first minor that Magnum ran with the external provider.
const FIRST_WITH_EXTERNAL_CLOUD: u16 = 11;

impl ClusterSpec {
    /// Reads it; nothing where there is no KUBE_TAG.
    pub(in crate::kubernetes) fn from_parameters(
        parameters: &Parameters,
        role: Role,
        address: Option<IpAddr>,
        mistakes: &mut Vec<Mistake>,
        warnings: &mut Vec<Mistake>,
    ) -> Option<Self> {
        let tag = parameters.get("KUBE_TAG")?.to_owned();
        let minor = minor_of(&tag, mistakes)?;
        let spec = Self::read(parameters, role, tag, minor)?;
        Checks { parameters, spec: &spec, role, address, mistakes, warnings }.run();
        Some(spec)
    }

    /// What the parameters say, whether it is supported or not.
    fn read(parameters: &Parameters, role: Role, tag: String, minor: Minor) -> Option<Self> {
        let text = |name: &str| parameters.get(name).map(str::to_owned);
        let secret = |name: &str| parameters.get(name).map(Secret::new);
        let ip = |name: &str| parameters.get(name).and_then(|text| text.parse::<IpAddr>().ok());
        let port = |name: &str| parameters.number(name).and_then(|number| u16::try_from(number).ok()).unwrap_or_default();
        let addresses = |name: &str| parameters.items(name).filter_map(|item| item.parse().ok()).collect::<Vec<IpAddr>>();
        let tls = !parameters.is_true("TLS_DISABLED");
        let control_plane = control_plane(parameters);
        let keys = default_keys(minor, role, &control_plane);
        let magnum = parameters.get("MAGNUM_URL").is_some();
        let networks = networks(parameters, minor)?;
        Some(Self {
            minor,
            tag,
            node_name: text("INSTANCE_NAME"),
            tls,
            certificates: match parameters.get("CERTIFICATES") {
                Some("magnum") => CertificateSource::Magnum,
                None if tls && magnum => CertificateSource::Magnum,
                Some("given") => CertificateSource::Given,
                Some("bootstrap") => CertificateSource::Bootstrap,
                _ => CertificateSource::None,
            },
            trust: TrustSpec::from_parameters(parameters, keys),
            api: Api {
                port: port("KUBE_API_PORT"),
                private: ip("KUBE_API_PRIVATE_ADDRESS"),
                public: ip("KUBE_API_PUBLIC_ADDRESS"),
                name: text("MASTER_HOSTNAME"),
                master: ip("KUBE_MASTER_IP"),
                masters: addresses("MASTER_ADDRESSES"),
                balancer: (parameters.get("API_BALANCER") == Some("haproxy"))
                    .then(|| port(if role == Role::Master { "API_BALANCER_PORT" } else { "KUBE_API_PORT" })),
            },
            networks,
            etcd: etcd(parameters),
            is_first_master: parameters.number("MASTER_INDEX") == Some(0),
            master_index: parameters.given("MASTER_INDEX").and_then(|_| parameters.number("MASTER_INDEX")),
            runtime: runtime(parameters, minor),
            node: node_settings(parameters, role),
            control_plane,
            cloud: cloud(parameters, minor),
            registry: registry(parameters, role),
            bootstrap_token: secret("BOOTSTRAP_TOKEN"),
            openstack_ca: text("OPENSTACK_CA").map(|pem| format!("{}\n", pem.replace("\\n", "\n").trim_end())),
            selinux: text("SELINUX_MODE"),
            kubestack: (parameters.is_true("KUBESTACK") || parameters.get("NETWORK_DRIVER") == Some("kubestack"))
                .then(|| text("KUBESTACK_BRIDGE").unwrap_or_default()),
            proxy_mode: text("PROXY_MODE"),
            node_ports: parameters.get("SERVICE_NODE_PORT_RANGE").and_then(port_range),
            firewall: match parameters.get("FIREWALL") {
                Some("nftables") => Some(FirewallTool::Nftables),
                Some("firewalld") => Some(FirewallTool::Firewalld),
                Some("iptables-services") => Some(FirewallTool::IptablesServices),
                _ => None,
            },
            nodes: parameters.given("CLUSTER_SUBNET_CIDR").and_then(|text| text.parse().ok()),
            image_prefix: text("CONTAINER_INFRA_PREFIX").or_else(|| text("HYPERKUBE_PREFIX")),
            add_ons: add_ons(parameters),
            options: user_options(parameters),
        })
    }
}

fn node_settings(parameters: &Parameters, role: Role) -> NodeSettings {
    let text = |name: &str| parameters.get(name).map(str::to_owned);
    let label = |key: &str, name: &str| Some((key.to_owned(), text(name)?));
    let is_drained = role == Role::Minion
        && parameters.is_true("AUTO_HEALING_ENABLED")
        && parameters.get("AUTO_HEALING_CONTROLLER") == Some("draino");
    // Magnum's own labels of a node (magnum-node.md 2.3, 2.5).
    let own_labels = [
        label("magnum.openstack.org/role", "NODEGROUP_ROLE"),
        label("magnum.openstack.org/nodegroup", "NODEGROUP_NAME"),
        is_drained.then(|| ("draino-enabled".to_owned(), "true".to_owned())),
    ];
    let given_labels = parameters.items("NODE_LABELS").filter_map(|item| item.split_once('='));
    NodeSettings {
        labels: own_labels.into_iter().flatten().chain(given_labels.map(|(k, v)| (k.to_owned(), v.to_owned()))).collect(),
        taints: parameters.items("NODE_TAINTS").map(str::to_owned).collect(),
        static_pod_url: text("STATIC_POD_URL"),
        swap: parameters.get("SWAP") == Some("allow"),
        kube_reserved: text("KUBE_RESERVED"),
        system_reserved: text("SYSTEM_RESERVED"),
        public: parameters.get("KUBE_NODE_PUBLIC_IP").and_then(|text| text.parse().ok()),
    }
}

fn add_ons(parameters: &Parameters) -> AddOns {
    let text = |name: &str| parameters.get(name).map(str::to_owned);
    AddOns {
        names: parameters.items("ADDONS").map(str::to_owned).collect(),
        wait: Duration::from_secs(parameters.number("ADDONS_WAIT").unwrap_or_default().into()),
        registry: text("CONTAINER_INFRA_PREFIX"),
        tags: IMAGE_TAGS.map(|(fact, parameter)| (fact, text(parameter).unwrap_or_default())).to_vec(),
    }
}

fn user_options(parameters: &Parameters) -> UserOptions {
    let options = |name: &str| parameters.get(name).unwrap_or_default().to_owned();
    UserOptions {
        kubelet: options("KUBELET_OPTIONS"),
        api_server: options("KUBEAPI_OPTIONS"),
        controller_manager: options("KUBECONTROLLER_OPTIONS"),
        scheduler: options("KUBESCHEDULER_OPTIONS"),
        proxy: options("KUBEPROXY_OPTIONS"),
    }
}

/// Keys that certificates get where nothing says so. Below 1.6 Kubernetes reads no other keys of service accounts than RSA,
/// and a master that was made by an earlier release of the agent uses the API server's own for them.
fn default_keys(minor: Minor, role: Role, control_plane: &ControlPlane) -> KeyType {
    let signs_tokens = role == Role::Master && control_plane.service_account_private_key.is_none();
    if signs_tokens && minor.number() < FIRST_WITH_ECDSA_TOKENS { KeyType::Rsa(2048) } else { KeyType::EcdsaP256 }
}

/// As kubeadm sets it: systemd's since 1.22. Runtime and kubelet get the same.
fn default_cgroup_driver(minor: Minor) -> &'static str {
    if minor.number() < 22 { "cgroupfs" } else { "systemd" }
}

fn networks(parameters: &Parameters, minor: Minor) -> Option<Networks> {
    let text = |name: &str| parameters.get(name).map(str::to_owned);
    let network = |name: &str| parameters.get(name).and_then(|text| text.parse::<IpNet>().ok());
    let driver = match parameters.get("NETWORK_DRIVER") {
        Some("calico") => NetworkDriver::Calico,
        Some("static-routes") => NetworkDriver::StaticRoutes,
        Some("kubestack") => NetworkDriver::KubeStack,
        Some("none") => NetworkDriver::None,
        _ => NetworkDriver::Flannel,
    };
    let own = pods_parameter(parameters);
    let services = network("PORTAL_NETWORK_CIDR")?;
    let dns = if let Some(given) = parameters.given("DNS_SERVICE_IP") {
        given.parse().ok()?
    } else {
        // The tenth address, as Magnum's default is of Magnum's default network. A network without so many is too small, and
        // the checks say so.
        let tenth = services.hosts().nth(if matches!(services, IpNet::V6(_)) { 10 } else { 9 });
        tenth.unwrap_or_else(|| services.broadcast())
    };
    Some(Networks {
        driver,
        flannel: flannel(parameters, minor)?,
        calico_tunnels: parameters.get("CALICO_IPV4POOL_IPIP").is_some_and(|mode| !matches!(mode, "Off" | "off" | "Never")),
        routes: StaticRoutes {
            bridge: text("POD_BRIDGE")?,
            // What is no such item is named by the checks.
            nodes: parameters.get("NODE_SUBNETS").unwrap_or_default().split(',').filter_map(node_subnet).collect(),
        },
        pods: network("PODS_NETWORK_CIDR").or_else(|| network(own))?,
        services,
        dns,
        domain: text("DNS_CLUSTER_DOMAIN")?,
    })
}

fn flannel(parameters: &Parameters, minor: Minor) -> Option<Flannel> {
    let text = |name: &str| parameters.get(name).map(str::to_owned);
    let vxlan = parameters.given("FLANNEL_BACKEND").is_none() && parameters.is_true("FLANNEL_USE_VXLAN");
    Some(Flannel {
        is_unit: match parameters.get("FLANNEL_RUNS_AS") {
            Some(asked) => asked == "unit",
            None => minor.number() <= LAST_WITH_FLANNEL_UNIT,
        },
        backend: if vxlan { "vxlan".to_owned() } else { text("FLANNEL_BACKEND")? },
        // The kind has made sure that it is a map.
        options: parameters.get("FLANNEL_BACKEND_OPTIONS").and_then(|text| json::typed(text).ok()).unwrap_or_default(),
        subnet_length: parameters.number("FLANNEL_NETWORK_SUBNETLEN").and_then(|length| u8::try_from(length).ok())?,
        min: parameters.get("FLANNEL_SUBNET_MIN").and_then(|text| text.parse().ok()),
        max: parameters.get("FLANNEL_SUBNET_MAX").and_then(|text| text.parse().ok()),
        tag: text("FLANNEL_TAG"),
        prefix: text("FLANNEL_ETCD_PREFIX"),
    })
}

fn cloud(parameters: &Parameters, minor: Minor) -> Option<Cloud> {
    let text = |name: &str| parameters.get(name).map(str::to_owned);
    let secret = |name: &str| parameters.get(name).map(Secret::new);
    let trustee = text("TRUSTEE_USER_ID").zip(secret("TRUSTEE_PASSWORD"));
    let trustee = trustee.map(|(user, password)| CloudUser::Trustee(user, password));
    let creator = text("USERNAME").zip(secret("PASSWORD")).zip(text("TENANT_NAME"));
    let creator = creator.map(|((user, password), project)| CloudUser::Creator(user, password, project));
    // Magnum 3.x sends both, and its Kubernetes understands the creator alone.
    let user = if minor.number() < FIRST_WITH_TRUSTS { creator.or(trustee) } else { trustee.or(creator) };
    user.zip(text("AUTH_URL")).map(|(user, auth_url)| Cloud {
        auth_url,
        user,
        trust: secret("TRUST_ID"),
        region: text("REGION_NAME"),
        subnet: text("CLUSTER_SUBNET"),
        floating_network: text("EXTERNAL_NETWORK_ID"),
        network_name: text("CLUSTER_NETWORK_NAME"),
        octavia: parameters.is_true("OCTAVIA_ENABLED").then(|| Octavia {
            provider: text("OCTAVIA_PROVIDER").unwrap_or_default(),
            algorithm: text("OCTAVIA_LB_ALGORITHM").unwrap_or_default(),
            health_check: parameters.is_true("OCTAVIA_LB_HEALTHCHECK"),
        }),
        provider: parameters.get("CLOUD_PROVIDER_ENABLED") != Some("false"),
        // Before, it switches the built-in one (magnum-node.md 2.9: the external one came with Magnum 7.x, that is 1.11).
        external: parameters.is_true("CLOUD_PROVIDER_ENABLED") && minor.number() >= FIRST_WITH_EXTERNAL_CLOUD,
        in_tree_cinder: parameters.get("VOLUME_DRIVER") == Some("cinder") && !parameters.is_true("CINDER_CSI_ENABLED"),
        tag: text("CLOUD_PROVIDER_TAG"),
    })
}

fn registry(parameters: &Parameters, role: Role) -> Option<Registry> {
    let text = |name: &str| parameters.get(name).map(str::to_owned);
    let number = |name: &str| parameters.number(name).unwrap_or_default();
    let first = |names: &[&str]| names.iter().find_map(|name| parameters.given(name)).map(str::to_owned);
    (role == Role::Minion && parameters.is_true("REGISTRY_ENABLED")).then(|| Registry {
        port: u16::try_from(number("REGISTRY_PORT")).unwrap_or_default(),
        container: text("REGISTRY_CONTAINER").unwrap_or_default(),
        insecure: parameters.is_true("REGISTRY_INSECURE"),
        chunk_size: number("REGISTRY_CHUNKSIZE"),
        auth_url: first(&["REGISTRY_AUTH_URL", "AUTH_URL"]).unwrap_or_default(),
        region: first(&["REGISTRY_REGION", "SWIFT_REGION"]),
        user: first(&["REGISTRY_USERNAME", "TRUSTEE_USERNAME"]).unwrap_or_default(),
        password: Secret::new(&first(&["REGISTRY_PASSWORD", "TRUSTEE_PASSWORD"]).unwrap_or_default()),
        domain: first(&["REGISTRY_DOMAIN", "TRUSTEE_DOMAIN_ID"]),
        domain_is_id: parameters.given("REGISTRY_DOMAIN").is_none(),
        trust: first(&["REGISTRY_TRUST_ID", "TRUST_ID"]).as_deref().map(Secret::new),
    })
}

fn control_plane(parameters: &Parameters) -> ControlPlane {
    let text = |name: &str| parameters.get(name).map(str::to_owned);
    let plugins = parameters.get("ADMISSION_CONTROL_LIST").unwrap_or_default().split(',');
    ControlPlane {
        allow_privileged: parameters.is_true("KUBE_ALLOW_PRIV"),
        admission: plugins.filter(|plugin| !plugin.is_empty()).map(str::to_owned).collect(),
        keystone_auth: parameters.given("KEYSTONE_AUTH_ENABLED") == Some("true"),
        signs: parameters.is_true("CERT_MANAGER_API"),
        service_account_key: material(parameters, "KUBE_SERVICE_ACCOUNT_KEY"),
        service_account_private_key: material(parameters, "KUBE_SERVICE_ACCOUNT_PRIVATE_KEY"),
        service_account_key_type: parameters.given("SERVICE_ACCOUNT_KEYS").and_then(key_type),
        cluster_name: text("CLUSTER_UUID").or_else(|| text("BAY_UUID")).unwrap_or_default(),
    }
}

fn runtime(parameters: &Parameters, minor: Minor) -> Runtime {
    let text = |name: &str| parameters.get(name).map(str::to_owned);
    let kind = match parameters.get("CONTAINER_RUNTIME") {
        Some("containerd") => {
            // Magnum's own default is 1.4.4, which no image with a recent Kubernetes has.
            let (first, second) = parameters.get("CONTAINERD_VERSION").and_then(two_numbers).unwrap_or((1, 6));
            RuntimeKind::Containerd(first, second)
        }
        Some("cri-o") => RuntimeKind::CriO,
        _ => RuntimeKind::Docker,
    };
    Runtime {
        kind,
        cri_dockerd: kind == RuntimeKind::Docker && minor.number() >= 24,
        cgroup_driver: text("CGROUP_DRIVER").unwrap_or_else(|| default_cgroup_driver(minor).to_owned()),
        // A private mirror holds Magnum's own choice (magnum-node.md 2.3).
        sandbox_image: text("SANDBOX_IMAGE")
            .or_else(|| text("CONTAINER_INFRA_PREFIX").map(|prefix| format!("{prefix}pause:3.1"))),
    }
}

fn etcd(parameters: &Parameters) -> Etcd {
    let text = |name: &str| parameters.get(name).map(str::to_owned);
    let secret = |name: &str| parameters.get(name).map(Secret::new);
    let ip = |name: &str| parameters.get(name).and_then(|text| text.parse::<IpAddr>().ok());
    // seed-systems.md 6a: the ports that etcd had before its registration.
    let old = parameters.get("NODE_LAYOUT") == Some("kubernetes-ansible");
    Etcd {
        tag: text("ETCD_TAG"),
        cluster: match (secret("ETCD_DISCOVERY_URL"), parameters.get("ETCD_INITIAL_CLUSTER")) {
            (_, Some(members)) => EtcdCluster::Static(members.split(',').map(str::to_owned).collect()),
            (Some(url), None) => EtcdCluster::Discovery(url),
            (None, None) => EtcdCluster::Single,
        },
        joins: parameters.get("ETCD_INITIAL_CLUSTER_STATE") == Some("existing"),
        learner: parameters.is_true("ETCD_LEARNER"),
        server: ip("ETCD_SERVER_IP").or_else(|| ip("KUBE_MASTER_IP")),
        balancer: ip("ETCD_LB_VIP"),
        client_port: if old { 4001 } else { 2379 },
        peer_port: if old { 7001 } else { 2380 },
    }
}
