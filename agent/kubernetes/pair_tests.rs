//! Every pair of parameters, with values that are likely to meet each other: either a clear mistake, or a node that does not
//! contradict itself. What is looked at is what the node gets, in the words of its files, and never the checks' own tables.
//!
//! A plain run takes one pair of sixty, evenly, other ones each day (`HNA_PAIRS_DAY` names another one); `HNA_PAIRS=1` takes all of them, `HNA_PAIRS=10` one of ten.
//! `tests/kubernetes/test_pairs.py` hands a sample of what passes here to programs as strict as the real ones.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::{Map, Value, json};

use super::fixtures::{add_certificates, arguments, content, file, value};
use super::parameters::kinds::ParameterKind;
use super::parameters::table::{Parameter, TABLE};
use super::spec::cluster::ClusterSpec;
use super::spec::node::NodeSpec;
use super::spec::words::Role;
use super::{ImagePolicy, MachineFacts, Mistake, node_of, render};
use crate::clock::Clock;
use crate::desired::{Dependency, Desired};
use crate::metadata::Deployment;

/// One pair of so many is taken, unless HNA_PAIRS says another number.
const PART: usize = 60;

const MASTER: &[(&str, &str)] = &[
    ("ROLE", "master"),
    ("KUBE_NODE_IP", "192.0.2.11"),
    ("INSTANCE_NAME", "blue-master-0"),
    ("CLUSTER_UUID", "c0ffee00-1111-4222-8333-444455556666"),
    ("CERTIFICATES", "given"),
    // What API_BALANCER needs to have.
    ("MASTER_ADDRESSES", "192.0.2.11"),
];
const MINION: &[(&str, &str)] = &[
    ("ROLE", "minion"),
    ("KUBE_NODE_IP", "192.0.2.31"),
    ("KUBE_MASTER_IP", "192.0.2.5"),
    ("INSTANCE_NAME", "blue-minion-0"),
    ("CLUSTER_UUID", "c0ffee00-1111-4222-8333-444455556666"),
    ("CERTIFICATES", "given"),
];
const OLD: &[(&str, &str)] = &[("KUBE_TAG", "v1.20.15"), ("CONTAINER_RUNTIME", "docker")];
const NEW: &[(&str, &str)] = &[("KUBE_TAG", "v1.31.4"), ("CONTAINER_RUNTIME", "containerd"), ("CONTAINERD_VERSION", "1.7.20")];

/// Values that meet others'; for the rest the kind says them.
const VALUES: &[(&str, &[&str])] = &[
    ("ROLE", &[]),
    ("KUBE_TAG", &[]),
    ("KUBE_API_PORT", &["443", "8443", "16443", "10250", "30443"]),
    ("API_BALANCER_PORT", &["443", "6443", "10257", "30444"]),
    ("REGISTRY_PORT", &["6443", "10256", "30500"]),
    ("SERVICE_NODE_PORT_RANGE", &["2000-7000", "10000-11000", "31000-31100"]),
    ("KUBE_NODE_IP", &["192.0.2.255", "10.100.0.9", "10.254.3.3", "2001:db8::11"]),
    ("KUBE_MASTER_IP", &["192.0.2.5", "10.254.0.1", "127.0.0.1"]),
    ("KUBE_NODE_PUBLIC_IP", &["198.51.100.7", "10.100.3.3"]),
    ("KUBE_API_PRIVATE_ADDRESS", &["192.0.2.11", "10.254.0.1"]),
    ("KUBE_API_PUBLIC_ADDRESS", &["198.51.100.7", "0.0.0.0"]),
    ("ETCD_SERVER_IP", &["192.0.2.5", "10.100.0.1"]),
    ("ETCD_LB_VIP", &["192.0.2.6", "10.254.0.10"]),
    ("MASTER_ADDRESSES", &["192.0.2.11", "192.0.2.5,192.0.2.6", "10.100.0.5"]),
    ("DNS_SERVICE_IP", &["10.254.0.10", "172.20.0.10", "10.100.0.10"]),
    ("PORTAL_NETWORK_CIDR", &["10.100.128.0/20", "172.20.0.0/16", "192.0.2.0/24", "10.254.0.0/28", "fd00:1::/108"]),
    ("PODS_NETWORK_CIDR", &["10.254.0.0/20", "172.17.0.0/16", "10.0.0.0/8", "10.9.0.0/25", "fd00:2::/40"]),
    ("FLANNEL_NETWORK_CIDR", &["10.254.0.0/20", "172.17.0.0/16", "10.0.0.0/8", "10.9.0.0/28"]),
    ("CALICO_IPV4POOL", &["10.254.0.0/20", "11.0.0.0/6", "10.9.0.0/28"]),
    ("CLUSTER_SUBNET_CIDR", &["192.0.2.0/24", "192.0.2.24/29", "10.100.0.0/24"]),
    ("FLANNEL_NETWORK_SUBNETLEN", &["18", "26", "30"]),
    ("FLANNEL_SUBNET_MIN", &["10.100.5.0", "10.9.0.0"]),
    ("FLANNEL_SUBNET_MAX", &["10.100.9.0", "10.100.1.0"]),
    ("FLANNEL_BACKEND_OPTIONS", &[r#"{"VNI":7}"#, r#"{"Port":30100}"#, r#"{"Type":"vxlan"}"#, r#"{"DirectRouting":true}"#]),
    ("NODE_SUBNETS", &["192.0.2.11=10.100.1.0/24,192.0.2.31=10.100.2.0/24", "192.0.2.11=10.9.0.0/27,192.0.2.31=10.9.0.32/27"]),
    ("POD_BRIDGE", &["kbr0", "docker0", "cni0", "eth0"]),
    ("KUBESTACK_BRIDGE", &["kbr0", "br-int"]),
    (
        "ETCD_INITIAL_CLUSTER",
        &[
            "blue-master-0=https://192.0.2.11:2380",
            "blue-master-0=http://192.0.2.11:2380,b=http://192.0.2.12:2380,c=http://192.0.2.13:2380",
        ],
    ),
    ("ETCD_TAG", &["v2.3.8", "v3.3.27", "v3.6.1"]),
    ("FLANNEL_TAG", &["v0.9.1", "v0.22.0"]),
    ("CONTAINERD_VERSION", &["1.4.4", "1.7.20", "2.0.1"]),
    ("CONTAINER_RUNTIME", &["docker", "containerd", "cri-o"]),
    ("DOCKER_STORAGE_DRIVER", &["overlay2", "btrfs", "devicemapper", "overlay"]),
    ("DOCKER_DISK", &["ephemeral0", "virtio-abc"]),
    ("NODE_LABELS", &["a=b,c=d", "magnum.openstack.org/role=x", "node-role.kubernetes.io/gpu="]),
    ("NODE_TAINTS", &["a=b:NoSchedule", "node-role.kubernetes.io/master=:NoSchedule"]),
    ("KUBE_RESERVED", &["cpu=100m,memory=256Mi", "pid=100"]),
    ("SYSTEM_RESERVED", &["cpu=100m,memory=256Mi", "ephemeral-storage=1Gi"]),
    ("KUBELET_OPTIONS", &["--max-pods=50", "--port=6443", "--port=16443", "--node-labels=x=y", "--healthz-port=10256"]),
    ("KUBEAPI_OPTIONS", &["--v=3", "--secure-port=10250", "--service-node-port-range=6000-7000", "--anonymous-auth=false"]),
    ("KUBECONTROLLER_OPTIONS", &["--v=3", "--secure-port=10259", "--cluster-cidr=10.9.0.0/16"]),
    ("KUBESCHEDULER_OPTIONS", &["--v=3", "--secure-port=10250"]),
    ("KUBEPROXY_OPTIONS", &["--v=3", "--proxy-mode=ipvs", "--metrics-bind-address=0.0.0.0:10250", "--cluster-cidr=10.9.0.0/16"]),
    ("ADMISSION_CONTROL_LIST", &["NamespaceLifecycle,NodeRestriction", "PodSecurityPolicy"]),
    ("INSECURE_REGISTRY_URL", &["registry.example.org:5000"]),
    ("WAIT_CURL", &["curl -i -X POST https://h.example.org/v1/wait"]),
    ("WAIT_HANDLE_ENDPOINT", &["https://h.example.org/v1/wait"]),
    ("WAIT_HANDLE_TOKEN", &["5f0e"]),
    ("WAIT_HANDLE", &["https://h.example.org/v1/wait"]),
    ("AUTH_URL", &["https://k.example.org:5000/v3", "https://k.example.org:5000/v2.0"]),
    ("NO_PROXY", &["10.0.0.0/8,.example.org"]),
    ("DOCKER_VOLUME_SIZE", &["0", "20"]),
    ("ETCD_VOLUME_SIZE", &["0", "20"]),
    ("WAIT_TIMEOUT", &["1", "43200"]),
];

fn values(parameter: &Parameter) -> Vec<String> {
    if let Some((_, given)) = VALUES.iter().find(|(name, _)| *name == parameter.name) {
        return given.iter().map(|value| (*value).to_owned()).collect();
    }
    let all: Vec<String> = match parameter.kind {
        ParameterKind::Bool => vec!["true".to_owned(), "false".to_owned()],
        ParameterKind::Choice(words) => words.iter().map(|word| (*word).to_owned()).collect(),
        ParameterKind::Number(least, most) => vec![least.to_string(), most.to_string()],
        ParameterKind::Port => vec!["6443".to_owned()],
        ParameterKind::Ip => vec!["192.0.2.99".to_owned()],
        ParameterKind::Cidr => vec!["10.77.0.0/16".to_owned()],
        ParameterKind::Url => vec!["https://u.example.org/v1".to_owned()],
        ParameterKind::Uuid => vec!["7c1f4d0e-93a2-4b86-8d55-2f60c6b1a9e4".to_owned()],
        ParameterKind::Label => vec!["other-name".to_owned()],
        ParameterKind::Domain => vec!["other.example".to_owned()],
        ParameterKind::HostPort => vec!["h.example.org:5000".to_owned()],
        ParameterKind::List => vec!["a,b".to_owned()],
        ParameterKind::Map => vec!["{}".to_owned()],
        ParameterKind::Material => vec!["/given/other.pem".to_owned()],
        ParameterKind::Pem => vec!["-----BEGIN CERTIFICATE-----\nAA\n-----END CERTIFICATE-----".to_owned()],
        ParameterKind::BootstrapToken => vec!["abcdef.0123456789abcdef".to_owned()],
        ParameterKind::Version => vec!["v1.28.9".to_owned()],
        ParameterKind::Word | ParameterKind::Text => vec!["v1.2.3".to_owned()],
        ParameterKind::Options => vec!["--v=2".to_owned()],
        ParameterKind::Handle => vec!["https://h.example.org/".to_owned()],
    };
    assert!(all.iter().all(|value| parameter.kind.normalised(value).is_some()), "{}", parameter.name);
    all
}

fn understood(base: &[&[(&str, &str)]], changes: &[(&str, &str)]) -> Result<NodeSpec, Vec<Mistake>> {
    let mut config = Map::new();
    for (name, value) in base.iter().copied().flatten().chain(changes) {
        config.insert((*name).to_owned(), json!(value));
    }
    add_certificates(&mut config);
    let entry = json!({"id": "i", "group": "kubernetes-node", "config": config});
    node_of(&Deployment::parse(&entry).unwrap().unwrap(), &ImagePolicy::everything())
}

/// What a node contradicts itself in.
struct Judge<'a> {
    spec: &'a NodeSpec,
    cluster: &'a ClusterSpec,
    desired: &'a Desired,
    found: Vec<String>,
}

impl Judge<'_> {
    fn wrong(&mut self, what: impl Into<String>) {
        self.found.push(what.into());
    }

    fn all(mut self) -> Vec<String> {
        self.names();
        self.needs();
        self.texts();
        self.files_of_flags();
        self.ports();
        self.networks();
        self.hosts();
        self.found
    }

    /// A path, a unit and a gate are there once.
    fn names(&mut self) {
        let desired = self.desired;
        let paths = desired.files.iter().map(|file| file.path.as_str());
        let paths = paths.chain(desired.directories.iter().map(|one| one.path.as_str()));
        let units = desired.units.iter().map(|unit| unit.name.as_str());
        let gates = desired.gates.iter().map(|gate| gate.name.as_str());
        for (kind, names) in [("path", paths.collect::<Vec<_>>()), ("unit", units.collect()), ("gate", gates.collect())] {
            let mut seen = BTreeSet::new();
            for name in names {
                if !seen.insert(name) {
                    self.wrong(format!("{kind} {name} twice"));
                }
            }
        }
    }

    /// What is waited for is there.
    fn needs(&mut self) {
        let desired = self.desired;
        let of_units = desired.units.iter().map(|unit| (&unit.name, &unit.needs));
        let of_gates = desired.gates.iter().map(|gate| (&gate.name, &gate.needs));
        for (who, needs) in of_units.chain(of_gates) {
            for need in needs {
                let is_present = match need {
                    Dependency::Unit(name) => desired.units.iter().any(|unit| unit.name == *name),
                    Dependency::Gate(name) => desired.gates.iter().any(|gate| gate.name == *name),
                    Dependency::Volume(role) => desired.volumes.iter().any(|volume| volume.role == *role),
                    Dependency::Directory(path) => desired.directories.iter().any(|one| one.path == *path),
                    Dependency::AddOn(name) => desired.add_ons.iter().any(|one| one.name == *name),
                    Dependency::Object(name) => desired.objects.iter().any(|object| object.name == *name),
                    Dependency::FlannelKey => desired.flannel.is_some(),
                    Dependency::EtcdMember => desired.etcd_join.is_some(),
                    Dependency::Certificates => !desired.certificates.is_empty(),
                };
                if !is_present {
                    self.wrong(format!("{who} needs {need:?}, which does not exist"));
                }
            }
        }
    }

    /// Each document is one of its kind.
    fn texts(&mut self) {
        for one in &self.desired.files {
            let name = one.path.rsplit('/').next().unwrap_or_default();
            let end = name.rsplit('.').next().unwrap_or_default();
            if ["json", "conflist"].contains(&end) && crate::budgets::json::typed::<Value>(&one.content).is_err() {
                self.wrong(format!("{} is no JSON", one.path));
            }
            if end == "yaml" && saphyr_parser::Parser::new_from_str(&one.content).any(|event| event.is_err()) {
                self.wrong(format!("{} is no YAML", one.path));
            }
        }
    }

    fn components(&self) -> Vec<(&'static str, Vec<String>)> {
        let all = ["kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "flanneld"];
        let mut found = Vec::new();
        for name in all {
            let unit = format!("{name}.service");
            if self.desired.units.iter().any(|one| one.name == unit && one.enable) {
                found.push((name, arguments(self.desired, &unit)));
            }
        }
        found
    }

    /// Flags are given once, and name files that the node gets or that the parameters say are there.
    fn files_of_flags(&mut self) {
        let trusted = self.desired.trusted_paths();
        for (component, words) in self.components() {
            let mut seen = BTreeMap::new();
            for (name, value) in words.iter().filter_map(|word| word.split_once('=')) {
                if let Some(before) = seen.insert(name, value).filter(|before| *before != value) {
                    self.wrong(format!("{component} is given {name} twice: {before} and {value}"));
                }
                let is_ours = ["/etc/kubernetes/", "/etc/etcd/", "/srv/kubernetes/"].iter().any(|at| value.starts_with(at));
                let is_present = file(self.desired, value).is_some()
                    || trusted.contains(value)
                    || self.desired.directories.iter().any(|one| one.path == value);
                // The kubelet writes it itself where it joins by a token.
                if is_ours && !is_present && !value.ends_with("/kubelet.kubeconfig") {
                    self.wrong(format!("{component} {name} names {value}, which does not exist"));
                }
            }
        }
    }

    /// Ports by the words of command lines and files.
    fn ports(&mut self) {
        let mut taken: Vec<(String, u16)> = Vec::new();
        for (component, words) in self.components() {
            let own: &[(&str, u16)] = match component {
                "kube-apiserver" => &[("secure-port", 6443), ("insecure-port", 0)],
                "kube-controller-manager" => &[("secure-port", 10_257), ("port", 0)],
                "kube-scheduler" => &[("secure-port", 10_259), ("port", 0)],
                "kubelet" => &[("port", 10_250), ("healthz-port", 10_248), ("read-only-port", 0)],
                "kube-proxy" => &[("metrics-bind-address", 10_249), ("healthz-bind-address", 10_256)],
                _ => &[],
            };
            for (name, default) in own {
                let port = value(&words, name).map_or(Some(*default), |text| text.rsplit(':').next()?.parse().ok());
                taken.extend(port.filter(|port| *port != 0).map(|port| (format!("{component} {name}"), port)));
            }
        }
        let settings = file(self.desired, "/etc/etcd/etcd.conf").map(|file| file.content.as_str()).unwrap_or_default();
        for name in ["ETCD_LISTEN_CLIENT_URLS", "ETCD_LISTEN_PEER_URLS"] {
            let line = settings.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
            let ports: BTreeSet<u16> = line
                .unwrap_or_default()
                .split(',')
                .filter_map(|url| url.trim_matches('"').rsplit(':').next()?.parse().ok())
                .collect();
            taken.extend(ports.into_iter().map(|port| (name.to_owned(), port)));
        }
        if let Some(haproxy) = file(self.desired, "/etc/haproxy/haproxy.cfg") {
            let bound =
                haproxy.content.lines().filter_map(|line| line.trim().strip_prefix("bind ")?.rsplit(':').next()?.parse().ok());
            taken.extend(bound.map(|port| ("haproxy".to_owned(), port)));
        }
        taken.extend(self.cluster.registry.as_ref().map(|registry| ("registry".to_owned(), registry.port)));
        for (at, (who, port)) in taken.iter().enumerate() {
            if let Some((other, _)) = taken.iter().take(at).find(|(_, other)| other == port) {
                self.found.push(format!("port {port} is that of {other} and of {who}"));
            }
        }
        let api = self.components().into_iter().find(|(name, _)| *name == "kube-apiserver");
        let range = api.and_then(|(_, words)| value(&words, "service-node-port-range").map(str::to_owned));
        let range = range.unwrap_or("30000-32767".to_owned());
        let (first, last) =
            range.split_once('-').map(|(first, last)| (first.parse::<u16>().unwrap(), last.parse::<u16>().unwrap())).unwrap();
        if self.spec.role == Role::Master {
            for (who, port) in taken.iter().filter(|(_, port)| (first..=last).contains(port)) {
                self.found.push(format!("port {port} of {who} is among those of services, {range}"));
            }
        }
    }

    fn networks(&mut self) {
        let networks = &self.cluster.networks;
        let mut all = vec![("pods", networks.pods), ("services", networks.services)];
        all.extend(self.cluster.nodes.map(|nodes| ("nodes", IpNet::V4(nodes))));
        for special in ["0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/4", "fe80::/10", "ff00::/8"] {
            all.push((special, special.parse().unwrap()));
        }
        let meet = |one: &IpNet, other: &IpNet| one.contains(&other.network()) || other.contains(&one.network());
        for (at, (name, network)) in all.iter().enumerate() {
            for (other_name, other) in all.iter().take(at.min(3)).filter(|(_, other)| meet(network, other)) {
                self.found.push(format!("{name} {network} and {other_name} {other} overlap"));
            }
        }
        let services = networks.services;
        if !services.contains(&networks.dns)
            || networks.dns == services.network()
            || Some(networks.dns) == networks.first_service()
        {
            self.wrong(format!("the DNS has {} of {services}", networks.dns));
        }
        if services.max_prefix_len() - services.prefix_len() > 20 {
            self.wrong(format!("{services} is too large for the API server"));
        }
        for (component, words) in self.components() {
            if component == "kube-controller-manager" && value(&words, "allocate-node-cidrs") == Some("true") {
                let cidr: IpNet = value(&words, "cluster-cidr").unwrap().parse().unwrap();
                let mask: u8 = value(&words, "node-cidr-mask-size").unwrap().parse().unwrap();
                if mask < cidr.prefix_len() || mask - cidr.prefix_len() > 16 {
                    self.wrong(format!("the controller manager deals /{mask} out of {cidr}"));
                }
            }
        }
        if let Some(text) = file(self.desired, crate::network::POD_NETWORK).map(|file| file.content.clone()) {
            let read: crate::network::PodNetworkFile = crate::budgets::json::typed(&text).unwrap();
            if let crate::network::PodNetworkFile::Routes { network, address, peers, bridge } = read {
                let inside = |net: &ipnet::Ipv4Net| network.contains(net);
                if !inside(&address.trunc()) || !peers.iter().all(|peer| inside(&peer.subnet)) {
                    self.wrong(format!("subnets lie outside of {network}"));
                }
                let card = ["eth0", "docker0", "cni0", "flannel.1", "lo"].contains(&bridge.as_str());
                if card {
                    self.wrong(format!("the bridge of pods is named {bridge}"));
                }
            }
        }
        // The words of all components say one network of pods.
        let reported: BTreeSet<String> =
            self.components().iter().filter_map(|(_, words)| value(words, "cluster-cidr").map(str::to_owned)).collect();
        let is_warned = self.spec.warnings.iter().any(|warning| warning.problem.contains("--cluster-cidr"));
        if reported.len() > 1 && !is_warned {
            self.wrong(format!("components get several networks of pods: {reported:?}"));
        }
    }

    fn hosts(&mut self) {
        let (cluster, services, pods) = (self.cluster, self.cluster.networks.services, self.cluster.networks.pods);
        let api = &cluster.api;
        let own = [
            self.spec.address,
            api.master,
            api.private,
            api.public,
            cluster.node.public,
            cluster.etcd.balancer,
            cluster.etcd.server,
        ];
        for address in own.into_iter().flatten().chain(api.masters.iter().copied()) {
            let odd = address.is_unspecified() || address.is_multicast() || address == IpAddr::from([255, 255, 255, 255]);
            if odd || services.contains(&address) || pods.contains(&address) {
                self.wrong(format!("a host has {address}, with pods in {pods} and services in {services}"));
            }
            if cluster.nodes.is_some_and(|nodes| IpAddr::V4(nodes.broadcast()) == address) {
                self.wrong(format!("a host has the broadcast address {address}"));
            }
        }
        let driver = |path: &str| file(self.desired, path).map(|file| file.content.clone()).unwrap_or_default();
        let settings = driver("/etc/docker/daemon.json");
        let kubelet = self.components().into_iter().find(|(name, _)| *name == "kubelet");
        let of_kubelet = kubelet.and_then(|(_, words)| value(&words, "cgroup-driver").map(str::to_owned));
        if let Some(of_kubelet) = of_kubelet
            && settings.contains("native.cgroupdriver=")
            && !settings.contains(&format!("native.cgroupdriver={of_kubelet}"))
        {
            self.wrong("kubelet and docker have different drivers of control groups");
        }
        if self.desired.file("/etc/kubernetes/kubelet-configuration.yaml").is_some() {
            let text = content(self.desired, "/etc/kubernetes/kubelet-configuration.yaml");
            if settings.contains("native.cgroupdriver=systemd") && text.contains("cgroupDriver: \"cgroupfs\"") {
                self.wrong("kubelet and docker have different drivers of control groups");
            }
        }
    }
}

fn judged(spec: &NodeSpec) -> Vec<String> {
    let Some(cluster) = &spec.kubernetes else { return Vec::new() };
    let desired = render(spec, &MachineFacts::default()).unwrap();
    Judge { spec, cluster, desired: &desired, found: Vec::new() }.all()
}

#[test]
fn no_pair_of_parameters_passes_and_contradicts_itself() {
    let part: usize = std::env::var("HNA_PAIRS").map_or(PART, |asked| asked.parse().expect("a number"));
    let today = || Clock::system().now().0 / 86_400_000;
    let day: u64 = std::env::var("HNA_PAIRS_DAY").map_or_else(|_| today(), |asked| asked.parse().expect("a number"));
    let shift = usize::try_from(day).unwrap() % part;
    let values: Vec<(&str, String)> =
        TABLE.iter().flat_map(|parameter| values(parameter).into_iter().map(|value| (parameter.name, value))).collect();
    let (mut ran, mut refused, mut found) = (0_usize, 0_usize, BTreeMap::<String, (usize, String)>::new());
    let mut number = 0_usize;
    for (version, role) in [(OLD, MASTER), (OLD, MINION), (NEW, MASTER), (NEW, MINION)] {
        let base = [role, version];
        for (at, (name, value)) in values.iter().enumerate() {
            for (other_name, other) in values.iter().take(at + 1).map(|(name, value)| (*name, value.as_str())) {
                number += 1;
                let is_single = other_name == *name && other == value;
                if !is_single && (other_name == *name || number % part != shift) {
                    continue;
                }
                ran += 1;
                match understood(&base, &[(name, value), (other_name, other)]) {
                    Err(mistakes) => {
                        refused += 1;
                        assert!(mistakes.iter().all(|one| !one.rule.is_empty() && !one.remedy.is_empty()), "{mistakes:?}");
                    }
                    Ok(spec) => {
                        for what in judged(&spec) {
                            let pair = format!(
                                "{} {name}={value} {other_name}={other}",
                                base.map(|base| format!("{} {}", base[0].1, base[1].1)).join(" ")
                            );
                            found.entry(what).or_insert((0, pair)).0 += 1;
                        }
                    }
                }
            }
        }
    }
    assert!(refused * 2 < ran, "most pairs are good: {refused} of {ran} are refused");
    let lines: Vec<String> = found.iter().map(|(what, (count, pair))| format!("{count} × {what}: {pair}")).collect();
    assert!(lines.is_empty(), "HNA_PAIRS_DAY={day}: of {ran} pairs, {refused} refused:\n{}", lines.join("\n"));
}
