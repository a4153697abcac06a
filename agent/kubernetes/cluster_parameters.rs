//! From parameters to the Kubernetes half of a node's specification, checked against each other.

use std::net::IpAddr;

use ipnet::IpNet;

use super::cluster::{
    Api, CertificateSource, Cloud, CloudUser, ClusterSpec, ControlPlane, Etcd, EtcdCluster, NetworkDriver, Networks, NodeSettings,
    Octavia, Options, Registry, Runtime, RuntimeKind,
};
use super::node_spec::{Role, Secret};
use super::parameters::{Mistake, Parameters};
use super::versions::Minor;

impl ClusterSpec {
    /// Reads it; nothing where there is no KUBE_TAG.
    pub(super) fn from_parameters(parameters: &Parameters, role: Role, mistakes: &mut Vec<Mistake>) -> Option<Self> {
        let tag = parameters.get("KUBE_TAG")?.to_owned();
        let Some(minor) = Minor::of_tag(&tag) else {
            mistakes.push(Mistake::general("KUBE_TAG", "is no version of Kubernetes 1", "v1.MINOR.PATCH", "give the version to run"));
            return None;
        };
        let text = |name: &str| parameters.get(name).map(str::to_owned);
        let secret = |name: &str| parameters.get(name).map(Secret::new);
        let address = |name: &str| parameters.get(name).and_then(|text| text.parse::<IpAddr>().ok());
        let network = |name: &str| parameters.get(name).and_then(|text| text.parse::<IpNet>().ok());
        let number = |name: &str| parameters.number(name).unwrap_or_default();
        let driver = match parameters.get("NETWORK_DRIVER") {
            Some("calico") => NetworkDriver::Calico,
            _ => NetworkDriver::Flannel,
        };
        let own_pods = if driver == NetworkDriver::Calico { "CALICO_IPV4POOL" } else { "FLANNEL_NETWORK_CIDR" };
        let addresses = |name: &str| {
            let items = parameters.get(name).unwrap_or_default().split(',').filter(|item| !item.is_empty());
            items.filter_map(|item| item.parse().ok()).collect::<Vec<IpAddr>>()
        };
        let user = match (parameters.get("TRUSTEE_USER_ID"), secret("TRUSTEE_PASSWORD")) {
            (Some(user), Some(password)) => Some(CloudUser::Trustee(user.to_owned(), password)),
            _ => match (text("USERNAME"), secret("PASSWORD"), text("TENANT_NAME")) {
                (Some(user), Some(password), Some(project)) => Some(CloudUser::Creator(user, password, project)),
                _ => None,
            },
        };
        let cloud = user.zip(text("AUTH_URL")).map(|(user, auth_url)| Cloud {
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
            external: parameters.is_true("CLOUD_PROVIDER_ENABLED"),
            in_tree_cinder: parameters.get("VOLUME_DRIVER") == Some("cinder") && !parameters.is_true("CINDER_CSI_ENABLED"),
            tag: text("CLOUD_PROVIDER_TAG"),
        });
        let first = |names: &[&str]| names.iter().find_map(|name| parameters.given(name)).map(str::to_owned);
        let registry = (role == Role::Minion && parameters.is_true("REGISTRY_ENABLED")).then(|| Registry {
            port: u16::try_from(number("REGISTRY_PORT")).unwrap_or_default(),
            container: text("REGISTRY_CONTAINER").unwrap_or_default(),
            insecure: parameters.is_true("REGISTRY_INSECURE"),
            chunk_size: number("REGISTRY_CHUNKSIZE"),
            auth_url: first(&["REGISTRY_AUTH_URL", "AUTH_URL"]).unwrap_or_default(),
            region: first(&["REGISTRY_REGION", "SWIFT_REGION"]),
            user: first(&["REGISTRY_USERNAME", "TRUSTEE_USERNAME"]).unwrap_or_default(),
            password: Secret::new(&first(&["REGISTRY_PASSWORD", "TRUSTEE_PASSWORD"]).unwrap_or_default()),
            domain: first(&["REGISTRY_DOMAIN", "TRUSTEE_DOMAIN_ID"]),
            trust: first(&["REGISTRY_TRUST_ID", "TRUST_ID"]).as_deref().map(Secret::new),
        });
        let kind = match parameters.get("CONTAINER_RUNTIME") {
            Some("containerd") => RuntimeKind::Containerd(1, 6),
            Some("cri-o") => RuntimeKind::CriO,
            _ => RuntimeKind::Docker,
        };
        let tls = !parameters.is_true("TLS_DISABLED");
        // seed-systems.md 6a: the ports that etcd had before its registration.
        let old_etcd = parameters.get("NODE_LAYOUT") == Some("kubernetes-ansible");
        let options = |name: &str| text(name).unwrap_or_default();
        Some(Self {
            minor,
            tag,
            node_name: text("INSTANCE_NAME"),
            tls,
            certificates: match parameters.get("CERTIFICATES") {
                Some("magnum") => CertificateSource::Magnum,
                Some("given") => CertificateSource::Given,
                Some("bootstrap") => CertificateSource::Bootstrap,
                _ => CertificateSource::None,
            },
            api: Api {
                port: u16::try_from(number("KUBE_API_PORT")).unwrap_or_default(),
                private: address("KUBE_API_PRIVATE_ADDRESS"),
                public: address("KUBE_API_PUBLIC_ADDRESS"),
                master: address("KUBE_MASTER_IP"),
                masters: addresses("MASTER_ADDRESSES"),
                balancer: parameters.get("API_BALANCER") == Some("haproxy"),
            },
            networks: Networks {
                driver,
                flannel_backend: text("FLANNEL_BACKEND").unwrap_or_default(),
                flannel_subnet_length: u8::try_from(number("FLANNEL_NETWORK_SUBNETLEN")).unwrap_or_default(),
                flannel_tag: text("FLANNEL_TAG"),
                pods: network("PODS_NETWORK_CIDR").or_else(|| network(own_pods))?,
                services: network("PORTAL_NETWORK_CIDR")?,
                dns: address("DNS_SERVICE_IP")?,
                domain: text("DNS_CLUSTER_DOMAIN")?,
            },
            etcd: Etcd {
                tag: text("ETCD_TAG"),
                cluster: match (secret("ETCD_DISCOVERY_URL"), parameters.get("ETCD_INITIAL_CLUSTER")) {
                    (_, Some(members)) => EtcdCluster::Static(members.split(',').map(str::to_owned).collect()),
                    (Some(url), None) => EtcdCluster::Discovery(url),
                    (None, None) => EtcdCluster::Single,
                },
                joins: parameters.get("ETCD_INITIAL_CLUSTER_STATE") == Some("existing"),
                learner: parameters.is_true("ETCD_LEARNER"),
                server: address("ETCD_SERVER_IP").or_else(|| address("KUBE_MASTER_IP")),
                balancer: address("ETCD_LB_VIP"),
                client_port: if old_etcd { 4001 } else { 2379 },
                peer_port: if old_etcd { 7001 } else { 2380 },
            },
            runtime: Runtime {
                kind,
                cri_dockerd: kind == RuntimeKind::Docker && minor.number() >= 24,
                cgroup_driver: text("CGROUP_DRIVER").unwrap_or_else(|| "systemd".to_owned()),
                sandbox_image: text("SANDBOX_IMAGE"),
            },
            node: NodeSettings {
                labels: Vec::new(),
                taints: Vec::new(),
                static_pod_url: text("STATIC_POD_URL"),
                swap: parameters.get("SWAP") == Some("allow"),
                kube_reserved: text("KUBE_RESERVED"),
                system_reserved: text("SYSTEM_RESERVED"),
                public: address("KUBE_NODE_PUBLIC_IP"),
            },
            control_plane: ControlPlane {
                allow_privileged: parameters.is_true("KUBE_ALLOW_PRIV"),
                admission: options("ADMISSION_CONTROL_LIST").split(',').filter(|item| !item.is_empty()).map(str::to_owned).collect(),
                keystone_auth: parameters.is_true("KEYSTONE_AUTH_ENABLED"),
                signs: parameters.is_true("CERT_MANAGER_API"),
                ca_key: secret("CA_KEY"),
                service_account_key: text("KUBE_SERVICE_ACCOUNT_KEY"),
                service_account_private_key: secret("KUBE_SERVICE_ACCOUNT_PRIVATE_KEY"),
                cluster_name: text("CLUSTER_UUID").or_else(|| text("BAY_UUID")).unwrap_or_default(),
            },
            cloud,
            registry,
            kubestack: parameters.is_true("KUBESTACK").then(|| text("KUBESTACK_BRIDGE").unwrap_or_default()),
            image_prefix: text("CONTAINER_INFRA_PREFIX").or_else(|| text("HYPERKUBE_PREFIX")),
            options: Options {
                kubelet: options("KUBELET_OPTIONS"),
                api_server: options("KUBEAPI_OPTIONS"),
                controller_manager: options("KUBECONTROLLER_OPTIONS"),
                scheduler: options("KUBESCHEDULER_OPTIONS"),
                proxy: options("KUBEPROXY_OPTIONS"),
            },
        })
    }
}
