//! The one table of every parameter that the group `kubernetes-node` knows: the names of Magnum's
//! heat-params, from its first release to its last Heat driver, and the agent's own. Documentation
//! and `verify` are made from it.

use super::kinds::ParameterKind;
use super::kinds::ParameterKind::{
    Bool, BootstrapToken, Choice, Cidr, Domain, Handle, HostPort, Ip, Label, List, Map, Material, Number, Options, Pem, Port,
    Text, Url, Uuid, Version, Word,
};
use crate::settings::distance;

/// One row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Name in upper case; metadata may use any letter case.
    pub name: &'static str,
    /// Form of the value.
    pub kind: ParameterKind,
    /// Whether the value is never shown.
    pub secret: bool,
    /// What holds where the parameter is absent or empty; empty: nothing does.
    pub default: &'static str,
    /// One line for the reader.
    pub meaning: &'static str,
}

const fn p(name: &'static str, kind: ParameterKind, default: &'static str, meaning: &'static str) -> Parameter {
    Parameter { name, kind, secret: false, default, meaning }
}

const fn secret(name: &'static str, kind: ParameterKind, meaning: &'static str) -> Parameter {
    Parameter { name, kind, secret: true, default: "", meaning }
}

/// When a volume may be formatted, as the parameters spell it.
pub const FORMATS: &[&str] = &["if-blank", "if-no-signature", "never"];

/// Largest volume in GiB that is believed.
const LARGEST: u32 = 1 << 20;

/// Every parameter. Secrets are marked here and nowhere else.
#[rustfmt::skip]
pub const TABLE: &[Parameter] = &[
    // The agent's own.
    p("ROLE", Choice(&["master", "minion", "control-plane", "worker"]), "", "role of the node; default: NODEGROUP_ROLE, or minion if KUBE_MASTER_IP is set"),
    p("MASTER_INDEX", Number(0, 99), "0", "index of the master in its group, from 0"),
    p("DOCKER_DISK", Word, "", "a disk to use instead of DOCKER_VOLUME if Cinder provides none: ephemeral0, or its name in /dev/disk/by-id"),
    p("DOCKER_VOLUME_FORMAT", Choice(FORMATS), "if-blank", "when DOCKER_VOLUME may be formatted"),
    p("ETCD_VOLUME_FORMAT", Choice(FORMATS), "if-blank", "when ETCD_VOLUME may be formatted"),
    p("VOLUME_ADOPT", Word, "", "serial of a volume, or DOCKER_DISK, whose file system is adopted although it lacks this agent's marker"),
    secret("WAIT_HANDLE", Handle, "handle of the wait condition: its URL, the map of its signal attribute, {endpoint, token}, or its curl_cli line"),
    p("WAIT_ID", Word, "", "id of the wait condition's signal, unique per server; default: INSTANCE_NAME, or node- and the server's id"),
    p("WAIT_TIMEOUT", Number(1, 43_200), "6000", "timeout of the wait condition in seconds; the agent gives up a minute earlier. At least 10 minutes below the stack's --timeout (default: 60 minutes)"),
    p("CERTIFICATES", Choice(&["magnum", "given", "bootstrap", "none"]), "", "source of certificates; default: magnum if MAGNUM_URL is given and TLS is on"),
    p("CERTIFICATE_KEYS", Choice(&["ecdsa-p256", "rsa-2048", "rsa-3072", "rsa-4096"]), "", "type of the keys that the node generates; RSA needs openssl in the image; default: ecdsa-p256, but rsa-2048 on a master before 1.6 without service account keys"),
    p("CERTIFICATE_RENEWAL", Choice(&["warn", "renew"]), "", "what happens after two thirds of a certificate's validity and after its expiry; default: renew if the source signs by itself (Magnum with a trustee, a CA key on this node), otherwise warn"),
    p("CA_ROTATION", Choice(&["trust-both", "switch", "drop-old"]), "trust-both", "how far this node may go in a CA rotation; each step requires all nodes to have completed the previous one"),
    p("CA_CERTIFICATE", Material, "", "certificate of the main CA, with CERTIFICATES=given or bootstrap"),
    secret("CA_KEY", Material, "private key of the main CA, for masters that sign; from Magnum with CERT_MANAGER_API"),
    p("ETCD_CA_CERTIFICATE", Material, "", "certificate of etcd's CA; default: the main CA"),
    secret("ETCD_CA_KEY", Material, "private key of etcd's CA"),
    p("FRONT_PROXY_CA_CERTIFICATE", Material, "", "certificate of the front proxy's CA; default: the main CA"),
    secret("FRONT_PROXY_CA_KEY", Material, "private key of the front proxy's CA"),
    p("KUBELET_CERTIFICATE", Material, "", "certificate of the kubelet, with its intermediate certificates"),
    secret("KUBELET_KEY", Material, "private key of the kubelet"),
    p("PROXY_CERTIFICATE", Material, "", "certificate of kube-proxy, with its intermediate certificates"),
    secret("PROXY_KEY", Material, "private key of kube-proxy"),
    p("SERVER_CERTIFICATE", Material, "", "certificate of the API server, with its intermediate certificates"),
    secret("SERVER_KEY", Material, "private key of the API server"),
    p("ADMIN_CERTIFICATE", Material, "", "certificate of the administrator, with its intermediate certificates"),
    secret("ADMIN_KEY", Material, "private key of the administrator"),
    p("CONTROLLER_MANAGER_CERTIFICATE", Material, "", "certificate of the controller manager, with its intermediate certificates"),
    secret("CONTROLLER_MANAGER_KEY", Material, "private key of the controller manager"),
    p("SCHEDULER_CERTIFICATE", Material, "", "certificate of the scheduler, with its intermediate certificates"),
    secret("SCHEDULER_KEY", Material, "private key of the scheduler"),
    p("FRONT_PROXY_CERTIFICATE", Material, "", "certificate of the API server as a proxy, with its intermediate certificates"),
    secret("FRONT_PROXY_KEY", Material, "private key of the API server as a proxy"),
    p("ETCD_SERVER_CERTIFICATE", Material, "", "certificate of etcd, with its intermediate certificates"),
    secret("ETCD_SERVER_KEY", Material, "private key of etcd"),
    p("ETCD_ADMIN_CERTIFICATE", Material, "", "certificate of etcd's clients on a master, with its intermediate certificates"),
    secret("ETCD_ADMIN_KEY", Material, "private key of etcd's clients on a master"),
    p("FLANNELD_CERTIFICATE", Material, "", "certificate of flanneld on a worker, with its intermediate certificates"),
    secret("FLANNELD_KEY", Material, "private key of flanneld on a worker"),
    p("MASTER_ADDRESSES", List, "", "addresses of all masters, for a load balancer on the node and for the masters' certificates"),
    p("API_BALANCER", Choice(&["none", "haproxy"]), "none", "haproxy: a load balancer on this node for MASTER_ADDRESSES; on a master the other ones are used only while its own API server is down"),
    p("API_BALANCER_PORT", Port, "16443", "port of the load balancer on a master, on the loopback; on a worker it has KUBE_API_PORT"),
    p("ETCD_INITIAL_CLUSTER", List, "", "name=URL of every etcd member, instead of discovery"),
    p("ETCD_INITIAL_CLUSTER_STATE", Choice(&["new", "existing"]), "new", "existing: this member joins an existing cluster"),
    p("ETCD_LEARNER", Bool, "false", "whether this member joins as a learner (etcd 3.4 and later)"),
    p("NODE_LABELS", List, "", "additional node labels, key=value"),
    p("NODE_TAINTS", List, "", "additional node taints, key=value:effect"),
    p("STATIC_POD_URL", Url, "", "URL from which the kubelet takes static pods, besides its directory; refused by images that do not allow code from metadata"),
    p("SANDBOX_IMAGE", Word, "", "image of the pod sandbox (pause); default: pause:3.1 of CONTAINER_INFRA_PREFIX, else the runtime's own"),
    p("SWAP", Choice(&["off", "allow"]), "off", "allow: the kubelet starts even if the machine has swap"),
    p("KUBE_RESERVED", List, "", "resources reserved for Kubernetes, e.g. cpu=100m,memory=256Mi; default: computed from the machine's size"),
    p("SYSTEM_RESERVED", List, "", "resources reserved for the system; default: computed from the machine's size"),
    p("NODE_LAYOUT", Choice(&["magnum", "kubernetes-ansible"]), "magnum", "kubernetes-ansible: etcd uses its legacy ports 4001 and 7001"),
    p("KUBESTACK", Bool, "false", "whether KubeStack is the network provider of kubelet and controller manager (builds of Kubernetes 1.2 and 1.3 that support it)"),
    p("KUBESTACK_BRIDGE", Word, "br-int", "Open vSwitch bridge for KubeStack's ports"),
    secret("BOOTSTRAP_TOKEN", BootstrapToken, "token with which workers with CERTIFICATES=bootstrap join; set it on the masters too, which accept it (1.12 and later)"),
    p("OPENSTACK_CA", Pem, "", "certificate of the CA that signed OpenStack's, if the system does not trust it"),
    p("SELINUX_MODE", Choice(&["enforcing", "permissive", "disabled"]), "", "SELinux mode from the next boot on; default: the image's"),
    p("PREFLIGHT", Choice(&["warn", "refuse", "off"]), "warn", "what happens if the machine is too small for its role"),
    p("DRIFT", Choice(&["report", "repair"]), "report", "what happens when the node no longer matches its parameters"),
    p("DRAIN", Bool, "false", "whether an update that restarts the container runtime, or changes the minor of Kubernetes, drains the node first"),
    p("ADDONS", List, "", "add-ons that the first master applies, in this order: names of directories of the image below /usr/share/heat-node-agent/addons"),
    p("ADDONS_WAIT", Number(0, 3600), "0", "seconds within which every add-on's pods must run for the deployment to succeed; 0: nothing waits for them, and status says what does not run"),
    // Identity and role.
    p("INSTANCE_NAME", Label, "", "name of the server in Nova: name of the node and of the etcd member"),
    p("NODEGROUP_ROLE", Word, "", "role of the node group: master, or any word for workers"),
    p("NODEGROUP_NAME", Word, "", "name of the node group: a label of the node"),
    p("CLUSTER_UUID", Uuid, "", "id of the cluster: volumes are marked with it, etcd members recognise each other by it"),
    p("BAY_UUID", Uuid, "", "id of the cluster in early Magnum releases"),
    p("ARCH", Word, "", "CPU architecture in image names; detected on the node"),
    p("PROJECT_ID", Word, "", "project of the cluster"),
    p("TENANT_NAME", Text, "", "project name in early Magnum releases"),
    p("REGION_NAME", Word, "", "OpenStack region"),
    // Addresses and the API.
    p("KUBE_NODE_IP", Ip, "", "fixed address of the node"),
    p("KUBE_NODE_PUBLIC_IP", Ip, "", "floating IP of the node"),
    p("KUBE_MASTER_IP", Ip, "", "address of the API for workers"),
    p("KUBE_API_PUBLIC_ADDRESS", Ip, "", "floating IP of the API"),
    p("KUBE_API_PRIVATE_ADDRESS", Ip, "", "private address of the API"),
    p("MASTER_HOSTNAME", Domain, "", "additional DNS name of the API, for its certificate"),
    p("KUBE_API_PORT", Port, "6443", "port of the API"),
    p("KUBE_ALLOW_PRIV", Bool, "true", "whether privileged containers are allowed"),
    p("TLS_DISABLED", Bool, "false", "whether the cluster works without TLS"),
    p("VERIFY_CA", Bool, "true", "whether OpenStack's TLS certificates are verified"),
    p("ADMISSION_CONTROL_LIST", List, "", "admission plugins"),
    p("KUBE_TAG", Version, "", "Kubernetes version to run"),
    p("KUBE_VERSION", Word, "", "recorded by Magnum; ignored, because it is often stale"),
    p("KUBE_IMAGE_DIGEST", Word, "", "expected digest of the Kubernetes image"),
    p("HYPERKUBE_PREFIX", Word, "", "image prefix of Kubernetes"),
    p("CONTAINER_INFRA_PREFIX", Word, "", "private registry mirror that overrides every image prefix"),
    p("USE_PODMAN", Bool, "true", "Magnum's choice between podman and system containers"),
    p("KUBELET_OPTIONS", Options, "", "additional flags for the kubelet"),
    p("KUBEAPI_OPTIONS", Options, "", "additional flags for the API server"),
    p("KUBECONTROLLER_OPTIONS", Options, "", "additional flags for the controller manager"),
    p("KUBEPROXY_OPTIONS", Options, "", "additional flags for kube-proxy"),
    p("KUBESCHEDULER_OPTIONS", Options, "", "additional flags for the scheduler"),
    p("CERT_MANAGER_API", Bool, "false", "whether masters get the CA's key"),
    p("KUBE_SERVICE_ACCOUNT_KEY", Material, "", "public key of service accounts, the same on all masters; several, one after the other, while the pair is changed"),
    secret("KUBE_SERVICE_ACCOUNT_PRIVATE_KEY", Material, "private key of service accounts, the same on all masters"),
    p("SERVICE_ACCOUNT_KEYS", Choice(&["rsa-2048", "rsa-3072", "rsa-4096", "ecdsa-p256"]), "", "type of the service account key that a single master makes where it is given none; RSA needs openssl in the image; default: rsa-2048, but where the API server's own key signs tokens already it stays until this is given"),
    // Network.
    p("NETWORK_DRIVER", Choice(&["flannel", "calico", "static-routes", "kubestack", "none"]), "flannel", "pod network"),
    p("FLANNEL_NETWORK_CIDR", Cidr, "10.100.0.0/16", "pod network of flannel"),
    p("FLANNEL_NETWORK_SUBNETLEN", Number(1, 30), "24", "prefix length of each node's part of it"),
    p("FLANNEL_RUNS_AS", Choice(&["unit", "add-on"]), "", "unit: flanneld runs as a systemd unit and keeps its leases in etcd; add-on: the cluster deploys it; default: unit up to Kubernetes 1.9"),
    p("FLANNEL_SUBNET_MIN", Ip, "", "first subnet that flannel as a unit allocates; default: the second of the network"),
    p("FLANNEL_SUBNET_MAX", Ip, "", "last subnet that flannel as a unit allocates; default: the last of the network"),
    p("FLANNEL_BACKEND", Choice(&["host-gw", "vxlan", "udp", "ipip", "wireguard"]), "host-gw", "how flannel reaches other nodes"),
    secret("FLANNEL_BACKEND_OPTIONS", Map, "options of flannel's backend, e.g. {\"VNI\": 7, \"DirectRouting\": true}, if it runs as a unit"),
    p("FLANNEL_ETCD_PREFIX", Word, "", "etcd key prefix of flannel; default: the one in the image's /etc/sysconfig/flanneld, or /coreos.com/network"),
    p("FLANNEL_USE_VXLAN", Bool, "false", "flannel's vxlan backend in early Magnum releases"),
    p("FLANNEL_TAG", Word, "", "image tag of flannel; if it runs as a unit, the release installed in the image"),
    p("FLANNEL_CNI_TAG", Word, "", "image tag of flannel's CNI plugin"),
    p("PODS_NETWORK_CIDR", Cidr, "", "pod network, for any driver"),
    p("NODE_SUBNETS", List, "", "address=subnet of every node including this one, for NETWORK_DRIVER=static-routes: 192.0.2.11=10.100.1.0/24"),
    p("POD_BRIDGE", Word, "kbr0", "bridge of the node's pods, for NETWORK_DRIVER=static-routes"),
    p("PROXY_MODE", Choice(&["userspace", "iptables", "ipvs", "nftables"]), "", "proxy mode of kube-proxy; default: the version's own"),
    p("SERVICE_NODE_PORT_RANGE", Word, "", "node port range of services; default: 30000-32767"),
    p("FIREWALL", Choice(&["off", "nftables", "firewalld", "iptables-services"]), "off", "firewall in which the ports of the node's services are opened; off: none, and rules of an earlier choice are removed"),
    p("PORTAL_NETWORK_CIDR", Cidr, "10.254.0.0/16", "service network"),
    p("DNS_SERVICE_IP", Ip, "", "address of the cluster's DNS; default: the tenth address of PORTAL_NETWORK_CIDR"),
    p("DNS_CLUSTER_DOMAIN", Domain, "cluster.local", "domain of the cluster"),
    p("CLUSTER_NETWORK", Word, "", "id of the cluster's network"),
    p("CLUSTER_NETWORK_NAME", Text, "", "name of the cluster's network"),
    p("CLUSTER_SUBNET", Word, "", "id of the cluster's subnet"),
    p("CLUSTER_SUBNET_CIDR", Cidr, "10.0.0.0/24", "addresses of the cluster's subnet"),
    p("EXTERNAL_NETWORK_ID", Word, "", "network of floating IPs"),
    p("CALICO_TAG", Word, "", "image tag of calico"),
    p("CALICO_CNI_TAG", Word, "", "image tag of calico's CNI plugin"),
    p("CALICO_KUBE_CONTROLLERS_TAG", Word, "", "image tag of calico's controllers"),
    p("CALICO_IPV4POOL", Cidr, "10.100.0.0/16", "pod network of calico"),
    p("CALICO_IPV4POOL_IPIP", Word, "", "calico's tunnel mode"),
    secret("HTTP_PROXY", Url, "proxy for http; may hold credentials"),
    secret("HTTPS_PROXY", Url, "proxy for https; may hold credentials"),
    p("NO_PROXY", List, "", "hosts that are reached without the proxy; the node's own networks are added"),
    // etcd.
    secret("ETCD_DISCOVERY_URL", Url, "etcd discovery URL; anyone who knows it can join"),
    p("ETCD_SERVER_IP", Ip, "", "address of etcd for workers"),
    p("ETCD_LB_VIP", Ip, "", "address of etcd's load balancer"),
    p("ETCD_TAG", Word, "", "image tag of etcd"),
    p("ETCD_VOLUME", Uuid, "", "Cinder id of etcd's volume (Heat's /dev/vdc)"),
    p("ETCD_VOLUME_SIZE", Number(0, LARGEST), "", "its size in GiB; 0: no volume"),
    // Runtime and its volume.
    p("DOCKER_VOLUME", Uuid, "", "Cinder id of the container runtime's volume (Heat's /dev/vdb)"),
    p("DOCKER_VOLUME_SIZE", Number(0, LARGEST), "", "its size in GiB; 0: no volume"),
    p("DOCKER_STORAGE_DRIVER", Word, "overlay2", "storage driver of the runtime: overlay2, btrfs, with docker also overlay and devicemapper"),
    p("DOCKER_STORAGE_CHANGE", Word, "", "current storage driver, whose images and containers may be abandoned by a change to another driver"),
    p("CONTAINER_RUNTIME", Choice(&["host-docker", "docker", "containerd", "cri-o"]), "host-docker", "container runtime"),
    p("CGROUP_DRIVER", Choice(&["cgroupfs", "systemd"]), "", "cgroup driver of the runtime and the kubelet; default: systemd from Kubernetes 1.22 on, cgroupfs before; without KUBE_TAG the runtime's own"),
    p("INSECURE_REGISTRY_URL", HostPort, "", "registry that is used without TLS"),
    p("CONTAINERD_VERSION", Word, "", "containerd version"),
    p("CONTAINERD_TARBALL_URL", Url, "", "URL of the containerd archive"),
    p("CONTAINERD_TARBALL_SHA256", Word, "", "digest of that archive"),
    p("ENABLE_CINDER", Bool, "true", "whether volumes come from Cinder"),
    p("VOLUME_DRIVER", Word, "", "cinder, or empty"),
    p("REGISTRY_ENABLED", Bool, "false", "whether the node runs a registry"),
    p("REGISTRY_PORT", Port, "5000", "port of the node's registry"),
    p("REGISTRY_CONTAINER", Text, "", "Swift container of the node's registry"),
    p("REGISTRY_INSECURE", Bool, "false", "whether the registry accepts Swift's certificate unverified"),
    p("REGISTRY_CHUNKSIZE", Number(0, u32::MAX), "5242880", "upload size of the registry in bytes"),
    p("REGISTRY_AUTH_URL", Text, "", "Keystone of the registry in early Magnum releases"),
    p("REGISTRY_REGION", Text, "", "region of the registry in early Magnum releases"),
    p("REGISTRY_USERNAME", Text, "", "user of the registry in early Magnum releases"),
    p("REGISTRY_DOMAIN", Text, "", "domain of the registry in early Magnum releases"),
    secret("REGISTRY_PASSWORD", Text, "password of the registry in early Magnum releases"),
    secret("REGISTRY_TRUST_ID", Text, "trust of the registry in early Magnum releases"),
    p("SWIFT_REGION", Text, "", "region of Swift"),
    // OpenStack and delivery.
    p("AUTH_URL", Url, "", "Keystone"),
    p("MAGNUM_URL", Url, "", "Magnum"),
    p("USERNAME", Text, "", "creator of the cluster"),
    secret("PASSWORD", Text, "password of the creator; passed by Magnum, used by nothing"),
    secret("USER_TOKEN", Text, "Keystone token of the creator in early Magnum releases"),
    p("TRUSTEE_USER_ID", Word, "", "Keystone user of the cluster"),
    p("TRUSTEE_USERNAME", Text, "", "name of that user"),
    p("TRUSTEE_DOMAIN_ID", Word, "", "domain of that user"),
    secret("TRUSTEE_PASSWORD", Text, "password of that user"),
    secret("TRUST_ID", Text, "trust of that user"),
    secret("WAIT_CURL", Text, "curl command of a wait condition, with a token; parsed if there is no WAIT_HANDLE, never run"),
    secret("WAIT_HANDLE_ENDPOINT", Text, "address of a wait condition's handle, with WAIT_HANDLE_TOKEN; used if there is neither WAIT_HANDLE nor WAIT_CURL"),
    secret("WAIT_HANDLE_TOKEN", Text, "Keystone token of that handle"),
    p("HEAT_CONTAINER_AGENT_TAG", Word, "", "image tag of the replaced agent"),
    p("CLOUD_PROVIDER_ENABLED", Bool, "", "whether the external cloud provider runs"),
    p("CLOUD_PROVIDER_TAG", Word, "", "image tag of the cloud provider"),
    p("KEYSTONE_AUTH_ENABLED", Bool, "", "whether the API server authenticates against Keystone through Magnum's webhook"),
    p("K8S_KEYSTONE_AUTH_TAG", Word, "", "image tag of that webhook"),
    p("OCTAVIA_ENABLED", Bool, "false", "whether load balancers come from Octavia"),
    p("OCTAVIA_PROVIDER", Word, "amphora", "Octavia's provider"),
    p("OCTAVIA_LB_ALGORITHM", Word, "ROUND_ROBIN", "Octavia's algorithm"),
    p("OCTAVIA_LB_HEALTHCHECK", Bool, "true", "whether Octavia performs health checks"),
    p("OCTAVIA_INGRESS_CONTROLLER_TAG", Word, "", "image tag of Octavia's ingress controller"),
    // Add-ons, which the first master's cluster deployment brings.
    p("HEAPSTER_ENABLED", Bool, "false", "heapster"),
    p("METRICS_SERVER_ENABLED", Bool, "true", "metrics-server"),
    p("METRICS_SERVER_CHART_TAG", Word, "", "chart version of metrics-server"),
    p("METRICS_SERVER_TAG", Word, "", "image tag of metrics-server"),
    p("METRICS_SCRAPER_TAG", Word, "", "image tag of the dashboard's scraper"),
    p("PROMETHEUS_MONITORING", Bool, "false", "Magnum's early Prometheus add-on"),
    p("PROMETHEUS_TAG", Word, "", "image tag of Prometheus"),
    p("PROMETHEUS_OPERATOR_CHART_TAG", Word, "", "chart version of the Prometheus operator"),
    p("PROMETHEUS_ADAPTER_ENABLED", Bool, "true", "Prometheus adapter"),
    p("PROMETHEUS_ADAPTER_CHART_TAG", Word, "", "chart version of the adapter"),
    p("PROMETHEUS_ADAPTER_CONFIGMAP", Word, "", "configuration of the adapter"),
    p("GRAFANA_TAG", Word, "", "image tag of Grafana"),
    p("INFLUX_GRAFANA_DASHBOARD_ENABLED", Bool, "false", "InfluxDB and Grafana"),
    p("MONITORING_ENABLED", Bool, "false", "Prometheus operator"),
    p("MONITORING_RETENTION_DAYS", Number(0, 36_500), "14", "retention of metrics in days"),
    p("MONITORING_RETENTION_SIZE", Number(0, LARGEST), "14", "retention of metrics in GiB"),
    p("MONITORING_INTERVAL_SECONDS", Number(0, 86_400), "30", "interval of metrics"),
    p("MONITORING_STORAGE_CLASS_NAME", Text, "", "storage class of metrics"),
    p("MONITORING_INGRESS_ENABLED", Bool, "false", "ingress for monitoring"),
    secret("CLUSTER_BASIC_AUTH_SECRET", Text, "htpasswd entries for ingresses"),
    p("CLUSTER_ROOT_DOMAIN_NAME", Text, "localhost", "domain of ingresses"),
    p("KUBE_DASHBOARD_ENABLED", Bool, "true", "dashboard"),
    p("KUBE_DASHBOARD_VERSION", Word, "", "version of the dashboard"),
    p("SYSTEM_PODS_INITIAL_DELAY", Number(0, 86_400), "30", "unused by Magnum itself"),
    p("SYSTEM_PODS_TIMEOUT", Number(0, 86_400), "5", "unused by Magnum itself"),
    p("COREDNS_TAG", Word, "", "image tag of CoreDNS"),
    p("INGRESS_CONTROLLER", Word, "", "ingress controller"),
    p("INGRESS_CONTROLLER_ROLE", Word, "ingress", "label of nodes for the ingress controller"),
    p("TRAEFIK_INGRESS_CONTROLLER_TAG", Word, "", "image tag of traefik"),
    p("NGINX_INGRESS_CONTROLLER_TAG", Word, "", "image tag of nginx"),
    p("NGINX_INGRESS_CONTROLLER_CHART_TAG", Word, "", "chart version of nginx"),
    p("HELM_CLIENT_URL", Url, "", "URL of the helm archive"),
    p("HELM_CLIENT_SHA256", Word, "", "digest of that archive"),
    p("HELM_CLIENT_TAG", Word, "", "version of helm"),
    p("TILLER_ENABLED", Bool, "false", "tiller"),
    p("TILLER_TAG", Word, "", "image tag of tiller"),
    p("TILLER_NAMESPACE", Word, "", "namespace of tiller"),
    p("NPD_ENABLED", Bool, "true", "node problem detector"),
    p("NODE_PROBLEM_DETECTOR_TAG", Word, "", "image tag of the node problem detector"),
    p("AUTO_HEALING_ENABLED", Bool, "false", "whether unhealthy nodes are replaced"),
    p("AUTO_HEALING_CONTROLLER", Word, "draino", "controller that replaces unhealthy nodes"),
    p("MAGNUM_AUTO_HEALER_TAG", Word, "", "image tag of Magnum's healer"),
    p("DRAINO_TAG", Word, "", "image tag of draino"),
    p("AUTO_SCALING_ENABLED", Bool, "false", "whether the number of nodes follows the load"),
    p("AUTOSCALER_TAG", Word, "", "image tag of the autoscaler"),
    p("MIN_NODE_COUNT", Number(0, 100_000), "0", "minimum number of workers"),
    p("MAX_NODE_COUNT", Number(0, 100_000), "", "maximum number of workers"),
    p("CINDER_CSI_ENABLED", Bool, "true", "Cinder's CSI driver"),
    p("CINDER_CSI_PLUGIN_TAG", Word, "", "image tag of Cinder's CSI driver"),
    p("CSI_ATTACHER_TAG", Word, "", "image tag of the CSI attacher"),
    p("CSI_PROVISIONER_TAG", Word, "", "image tag of the CSI provisioner"),
    p("CSI_SNAPSHOTTER_TAG", Word, "", "image tag of the CSI snapshotter"),
    p("CSI_RESIZER_TAG", Word, "", "image tag of the CSI resizer"),
    p("CSI_NODE_DRIVER_REGISTRAR_TAG", Word, "", "image tag of the CSI registrar"),
    p("CSI_LIVENESS_PROBE_TAG", Word, "", "image tag of the CSI liveness probe"),
    p("POST_INSTALL_MANIFEST_URL", Url, "", "manifest that is applied last"),
];

/// The row of a name in any letter case.
#[must_use]
pub fn find(name: &str) -> Option<&'static Parameter> {
    TABLE.iter().find(|parameter| parameter.name.eq_ignore_ascii_case(name))
}

/// Bytes of the longest name that may be a misspelt one: the distance costs the product of both lengths, and the name is hostile.
const LONGEST_MISSPELT: usize = 64;

/// The known name that a misspelt one most likely means.
#[must_use]
pub fn nearest(name: &str) -> Option<&'static str> {
    if name.len() > LONGEST_MISSPELT {
        return None;
    }
    let upper: String = name.chars().map(|c| if c == '-' { '_' } else { c.to_ascii_uppercase() }).collect();
    let by_distance = TABLE.iter().map(|parameter| (distance(&upper, parameter.name), parameter.name));
    by_distance.min().filter(|(distance, name)| *distance * 3 <= name.len()).map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique_and_every_default_obeys_its_own_rule() {
        let names: BTreeSet<_> = TABLE.iter().map(|parameter| parameter.name).collect();
        assert_eq!(names.len(), TABLE.len());
        for parameter in TABLE {
            assert!(
                parameter.name.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_'),
                "{}",
                parameter.name
            );
            assert!(!parameter.meaning.is_empty());
            assert!(
                parameter.default.is_empty()
                    || parameter.kind.normalised(parameter.default).as_deref() == Some(parameter.default)
                    || parameter.kind == Word,
                "{}",
                parameter.name
            );
        }
    }

    #[test]
    fn whatever_holds_a_credential_is_secret() {
        for parameter in TABLE {
            // Backends that encrypt take their key there.
            let secret_words = [
                "BACKEND_OPTIONS",
                "PASSWORD",
                "TOKEN",
                "SECRET",
                "TRUST_ID",
                "P_PROXY",
                "S_PROXY",
                "CURL",
                "HANDLE",
                "DISCOVERY",
            ];
            let is_key = parameter.name.ends_with("_KEY") && parameter.name != "KUBE_SERVICE_ACCOUNT_KEY";
            let expected = is_key || secret_words.iter().any(|word| parameter.name.contains(word));
            assert_eq!(parameter.secret, expected, "{}", parameter.name);
        }
    }

    #[test]
    fn a_misspelt_name_finds_the_one_that_was_meant() {
        for (written, meant) in [
            ("KUBE_NODEIP", Some("KUBE_NODE_IP")),
            ("docker-volume", Some("DOCKER_VOLUME")),
            ("FLANEL_NETWORK_CIDR", Some("FLANNEL_NETWORK_CIDR")),
            ("favourite_colour", None),
            ("", None),
        ] {
            assert_eq!(nearest(written), meant, "{written}");
        }
        assert_eq!((distance("kitten", "sitting"), distance("", "abc"), distance("abc", "")), (3, 3, 3));
    }
}
