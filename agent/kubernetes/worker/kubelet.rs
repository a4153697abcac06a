//! The kubelet on every node.
//!
//! Hardened whatever the version's defaults are: no read-only port, nobody anonymous, the API is asked who may do what
//! (magnum-node.md 7.1 no. 7). What the minor reads from a KubeletConfiguration stands there, the rest on the command line.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::reservations::{self, quantities};
use crate::desired::{ClientIdentity, Dependency, Desired, Directory, File, Gate, GateProbe};
use crate::gather::Gather;
use crate::kubernetes::add_ons::{self, cloud_config};
use crate::kubernetes::parts::api_server;
use crate::kubernetes::parts::certificates::{ADMIN, CLUSTER_CA, KUBELET, Pair};
use crate::kubernetes::parts::daemon::{
    Daemon, Flags, GOOD_IN_A_ROW, ProbeIdentity, Variables, curl_options, deadline, has_variables, ok_gate, unless_cloud,
};
use crate::kubernetes::parts::directories::{add_directory, directory};
use crate::kubernetes::parts::paths;
use crate::kubernetes::parts::runtime_units;
use crate::kubernetes::parts::settings::Settings;
use crate::kubernetes::runtimes::engine;
use crate::kubernetes::spec::cluster;
use crate::kubernetes::spec::cluster::{ClusterSpec, MANIFESTS, MachineFacts, NetworkDriver};
use crate::kubernetes::spec::node::NodeSpec;
use crate::kubernetes::spec::words::CertificateSource;
use crate::kubernetes::spec::words::Role;
use crate::kubernetes::text::kubeconfig::{self, Identity};
use crate::kubernetes::versions::{Component, ConfigKind};

pub(in crate::kubernetes) const UNIT: &str = "kubelet.service";
/// The gate that the API knows the node.
pub const REGISTRATION: &str = "registration";
/// The first minor whose kubelet refuses to give its own node labels of `node-role.kubernetes.io/`.
pub(super) const FIRST_WITHOUT_OWN_ROLE: u16 = 16;
/// Not `kubelet-config.yaml`, which is a kubeconfig on Magnum's nodes (magnum-node.md 2.3).
const CONFIGURATION: &str = "/etc/kubernetes/kubelet-configuration.yaml";
const KUBECONFIG: &str = "/etc/kubernetes/kubelet.kubeconfig";
const BOOTSTRAP_KUBECONFIG: &str = "/etc/kubernetes/bootstrap.kubeconfig";
/// Written by the kubelet itself, which renews its certificate there.
const OWN_KUBECONFIG: &str = "/var/lib/kubelet/kubeconfig";
/// The certificate that a kubelet got by TLS bootstrap, with its key: the kubelet keeps the newest under this name.
pub(in crate::kubernetes) const OWN_CERTIFICATE: &str = "/var/lib/kubelet/pki/kubelet-client-current.pem";
/// What it serves by, once that was approved.
const OWN_SERVING_CERTIFICATE: &str = "/var/lib/kubelet/pki/kubelet-server-current.pem";
/// The first minor with certificates.k8s.io/v1.
const FIRST_WITH_STABLE_REQUESTS: u16 = 19;
pub(in crate::kubernetes) const STATE: &str = "/var/lib/kubelet";
/// Where the kubelet keeps what it was given by TLS bootstrap.
pub(in crate::kubernetes) const KEYS: &str = "/var/lib/kubelet/pki";
pub(in crate::kubernetes) const DROP_IN: &str = "/etc/systemd/system/kubelet.service.d/50-heat-node-agent.conf";
/// Not below /usr, which is read-only on some systems.
pub(in crate::kubernetes) const VOLUME_PLUGINS: &str = "/var/lib/kubelet/volumeplugins";
const HEALTH_PORT: u16 = 10_248;

/// The variables of distributions' units (magnum-node.md 1.0).
const VARIABLES: Variables = &[
    ("KUBE_LOGTOSTDERR", &[]),
    ("KUBE_LOG_LEVEL", &[]),
    ("KUBELET_API_SERVER", &["api-servers"]),
    ("KUBELET_ADDRESS", &["address"]),
    ("KUBELET_PORT", &["port"]),
    ("KUBELET_HOSTNAME", &["hostname-override"]),
    ("KUBE_ALLOW_PRIV", &[]),
];

/// Its part of the node.
pub(in crate::kubernetes) fn part(spec: &NodeSpec, cluster: &ClusterSpec, facts: &MachineFacts) -> Desired {
    let mut part = Desired::default();
    // As the kubelet itself makes it.
    part.directories.push(Directory { mode: 0o750, ..directory(STATE) });
    for path in [VOLUME_PLUGINS, MANIFESTS] {
        add_directory(path, &mut part);
    }
    let settings = settings(spec, cluster, facts);
    let mut daemon = Daemon::new(UNIT, facts.program(cluster, Component::Kubelet), "/etc/kubernetes/kubelet");
    for file in kubeconfigs(spec, cluster) {
        daemon.restart_on.push(file.path.clone());
        part.files.push(file);
    }
    if let Some(document) = settings.document() {
        part.files.push(File::public(CONFIGURATION, document));
        daemon.restart_on.push(CONFIGURATION.to_owned());
    }
    if cloud_config::built_in(cluster) {
        daemon.restart_on.push(cloud_config::PATH.to_owned());
    }
    daemon.take(&settings.flags, cluster, VARIABLES, "KUBELET_ARGS");
    let runtime = engine::unit(cluster);
    daemon.needs.insert(Dependency::Unit(runtime.to_owned()));
    daemon.after.push(runtime);
    // On workers too it reaches the API by it; there it was always started beside it, and tries until it is there.
    if spec.role == Role::Master && cluster.api.balancer.is_some() {
        daemon.needs.insert(Dependency::Unit(paths::HAPROXY_UNIT.to_owned()));
        daemon.after.push(paths::HAPROXY_UNIT);
    }
    daemon.service_lines = format!("User=root\nWorkingDirectory={STATE}\n");
    daemon.add(&mut part);
    if let Some(port) = settings.flags.port("healthz-port", HEALTH_PORT) {
        let url = format!("http://127.0.0.1:{port}/healthz");
        // It is not healthy before the masters gave it a certificate.
        let waits = cluster.certificates == CertificateSource::Bootstrap;
        let deadline = unless_cloud(cluster, deadline::SERVICE).filter(|_| !waits);
        part.gates.push(ok_gate("kubelet", UNIT, url, ProbeIdentity::Nobody(None), deadline));
    }
    if let Some(registration) = registration(spec, cluster, &settings) {
        let ready = ready(spec, cluster, &registration);
        part.gates.push(registration);
        // Where the agent brings the network of pods nothing else is missing; elsewhere an add-on brings it, whenever that comes.
        if owns_pod_network(cluster) {
            part.gates.push(ready);
        } else {
            part.watched.push(ready);
        }
        part.watched.extend(requests(spec, cluster));
    }
    part
}

/// Whether the network of pods is whole with what the agent writes.
fn owns_pod_network(cluster: &ClusterSpec) -> bool {
    cluster::pods(cluster).is_some() && (cluster.has_flannel_unit() || cluster.networks.driver == NetworkDriver::StaticRoutes)
}

/// The gate that the API calls the node Ready.
fn ready(spec: &NodeSpec, cluster: &ClusterSpec, registration: &Gate) -> Gate {
    let (url, identity) = node_object(spec, cluster);
    Gate {
        name: "ready".to_owned(),
        unit: Some(UNIT.to_owned()),
        remedy: format!(
            "`kubectl describe node {}` on a master shows the conditions of the node; `journalctl -u {UNIT} -n 50`; `curl {}{url}`",
            node_object_name(cluster),
            curl_options(identity.as_ref())
        ),
        probe: GateProbe::NodeReady { url, identity },
        consecutive: 1,
        deadline: None,
        needs: BTreeSet::from([Dependency::Gate(registration.name.clone())]),
    }
}

/// Requests for certificates that wait for an operator: on masters all of them, on a worker that joined by a token that for its kubelet's
/// serving certificate, which nobody approves by himself.
fn requests(spec: &NodeSpec, cluster: &ClusterSpec) -> Option<Gate> {
    let remedy = "`kubectl get csr` on a master lists the requests; `kubectl certificate approve NAME` approves one that is \
                  genuine; until then `kubectl logs` and `exec` fail for its node"
        .to_owned();
    let gate = |probe, needs| Gate {
        name: "certificate requests".to_owned(),
        unit: None,
        remedy,
        probe,
        consecutive: 1,
        deadline: None,
        needs: BTreeSet::from([needs]),
    };
    match spec.role {
        Role::Minion if cluster.certificates == CertificateSource::Bootstrap => {
            Some(gate(GateProbe::File(OWN_SERVING_CERTIFICATE.to_owned()), Dependency::Unit(UNIT.to_owned())))
        }
        Role::Master if cluster.lets_join_by_token() => {
            let version = if cluster.minor.number() >= FIRST_WITH_STABLE_REQUESTS { "v1" } else { "v1beta1" };
            let url = format!("{}/apis/certificates.k8s.io/{version}/certificatesigningrequests", cluster.server(spec.role));
            let probe = GateProbe::NoPendingRequests { url, identity: Some(ADMIN.client()) };
            Some(gate(probe, Dependency::Gate(api_server::GATE.to_owned())))
        }
        _ => None,
    }
}

/// The name of the node's object in the API, as the kubelet itself spells it.
pub(in crate::kubernetes) fn node_object_name(cluster: &ClusterSpec) -> String {
    cluster.node_name.as_deref().unwrap_or_default().to_ascii_lowercase()
}

/// The node's object in the API, and as whom its kubelet asks for it.
fn node_object(spec: &NodeSpec, cluster: &ClusterSpec) -> (String, Option<ClientIdentity>) {
    let name = node_object_name(cluster);
    (format!("{}/api/v1/nodes/{name}", cluster.server_of_node(spec.role)), cluster.tls.then(|| client_identity(cluster)))
}

/// The gate that the API knows the node, asked as the kubelet asks. None where the kubelet does not register itself, or its name in the API is not ours to say.
fn registration(spec: &NodeSpec, cluster: &ClusterSpec, settings: &Settings) -> Option<Gate> {
    let flag = |name: &str| settings.flags.value(name);
    if flag("register-node").is_some_and(|value| value == "false") {
        return None;
    }
    let (given, path) =
        (flag("kubeconfig")?, if cluster.certificates == CertificateSource::Bootstrap { OWN_KUBECONFIG } else { KUBECONFIG });
    if given != path {
        return None;
    }
    flag("hostname-override").filter(|name| Some(name) == cluster.node_name.as_ref())?;
    let (url, identity) = node_object(spec, cluster);
    // On a master the API is its own: behind its gate nobody asks in vain.
    let api = (spec.role == Role::Master).then(|| Dependency::Gate(api_server::GATE.to_owned()));
    Some(Gate {
        name: REGISTRATION.to_owned(),
        unit: Some(UNIT.to_owned()),
        remedy: format!("`journalctl -u {UNIT} -n 50`; `curl {}{url}`", curl_options(identity.as_ref())),
        probe: GateProbe::HttpJson { url, key: "kind".to_owned(), value: "Node".to_owned(), identity },
        consecutive: GOOD_IN_A_ROW,
        deadline: None,
        needs: std::iter::once(Dependency::Unit(UNIT.to_owned())).chain(api).gather(),
    })
}

/// The kubelet's flags, where there is such a gate.
pub(super) fn registered(spec: &NodeSpec, cluster: &ClusterSpec, facts: &MachineFacts) -> Option<Flags> {
    let settings = settings(spec, cluster, facts);
    registration(spec, cluster, &settings).map(|_| settings.flags)
}

/// Whether there is such a gate.
pub(super) fn registers(spec: &NodeSpec, cluster: &ClusterSpec, facts: &MachineFacts) -> bool {
    registered(spec, cluster, facts).is_some()
}

/// As whom the kubelet asks the API over TLS.
pub(in crate::kubernetes) fn client_identity(cluster: &ClusterSpec) -> ClientIdentity {
    match cluster.certificates {
        CertificateSource::Bootstrap => Pair { certificate: OWN_CERTIFICATE, key: OWN_CERTIFICATE }.client(),
        _ => KUBELET.client(),
    }
}

fn settings(spec: &NodeSpec, cluster: &ClusterSpec, facts: &MachineFacts) -> Settings {
    let minor = cluster.minor;
    let mut settings = Settings::new(Component::Kubelet, ConfigKind::Kubelet, minor, false);
    identity(spec, cluster, &mut settings);
    security(cluster, &mut settings);
    networking(spec, cluster, facts, &mut settings);
    settings.set("cgroupDriver", "cgroup-driver", json!(cluster.runtime.cgroup_driver));
    settings.set("failSwapOn", "fail-swap-on", json!(!cluster.node.swap));
    settings.set("volumePluginDir", "volume-plugin-dir", json!(VOLUME_PLUGINS));
    let computed = reservations::of(facts);
    let asked = |text: &Option<String>| text.as_deref().map(resources);
    if let Some(kept) = asked(&cluster.node.kube_reserved).or(computed.kubernetes) {
        settings.set("kubeReserved", "kube-reserved", Value::Object(kept));
    }
    if let Some(kept) = asked(&cluster.node.system_reserved).or(computed.system) {
        settings.set("systemReserved", "system-reserved", Value::Object(kept));
    }
    container_runtime(cluster, &mut settings);
    pods(spec, cluster, &mut settings);
    if let Some((provider, file)) = cloud_config::provider(cluster) {
        settings.flags.set("cloud-provider", provider);
        if let Some(file) = file {
            settings.flags.set("cloud-config", file);
        }
    }
    // The API server has a switch of its own; in the first releases the shared variable says it to both.
    if !has_variables(minor) {
        settings.flags.set("allow-privileged", cluster.control_plane.allow_privileged.to_string());
    }
    add_ons::set_network_provider(cluster, &mut settings.flags);
    // cAdvisor's own port shows containers to everybody (magnum-node.md 5.1).
    settings.flags.set("cadvisor-port", "0");
    if settings.document().is_some() {
        settings.flags.set("config", CONFIGURATION);
    }
    // What is wrong with them was said when the parameters were read.
    settings.flags.add_user_options(&cluster.options.kubelet);
    settings
}

/// Who the node is, and how it reaches the API.
fn identity(spec: &NodeSpec, cluster: &ClusterSpec, settings: &mut Settings) {
    let bootstrap = cluster.certificates == CertificateSource::Bootstrap;
    settings.flags.set("kubeconfig", if bootstrap { OWN_KUBECONFIG } else { KUBECONFIG });
    if bootstrap {
        settings.flags.set("bootstrap-kubeconfig", BOOTSTRAP_KUBECONFIG);
        settings.set("rotateCertificates", "rotate-certificates", json!(true));
        // Else the API server could not verify who it speaks to.
        settings.set("serverTLSBootstrap", "rotate-server-certificates", json!(true));
    }
    // magnum-node.md 5.1: the kubeconfig's server counts from 1.4 on, if this flag says so up to 1.7; from 1.8 on it does nothing.
    if settings.flags.knows("require-kubeconfig") {
        if cluster.minor.number() < 8 {
            settings.flags.set("require-kubeconfig", "true");
        }
    } else if settings.flags.knows("api-servers") {
        settings.flags.set("api-servers", cluster.server_of_node(spec.role));
    }
    // Without a given name the kubelet takes the host's (magnum-node.md 7.5 no. 56, 57).
    if let Some(name) = &cluster.node_name {
        settings.flags.set("hostname-override", name.as_str());
    }
    // magnum-node.md 7.5 no. 58
    if let Some(address) = spec.address {
        settings.flags.set("node-ip", address.to_string());
    }
}

fn security(cluster: &ClusterSpec, settings: &mut Settings) {
    // Without TLS the API server has no certificate to show, and shows itself as nobody: `kubectl logs` and `exec` would fail. What
    // nobody may do is the API's to say here as well, and it lets everybody do everything then.
    settings.set("authentication.anonymous.enabled", "anonymous-auth", json!(!cluster.tls));
    settings.set("authentication.webhook.enabled", "authentication-token-webhook", json!(true));
    if cluster.tls {
        settings.set("authentication.x509.clientCAFile", "client-ca-file", json!(CLUSTER_CA));
        if cluster.certificates != CertificateSource::Bootstrap {
            settings.set("tlsCertFile", "tls-cert-file", json!(KUBELET.certificate));
            settings.set("tlsPrivateKeyFile", "tls-private-key-file", json!(KUBELET.key));
        }
    }
    settings.set("authorization.mode", "authorization-mode", json!("Webhook"));
    settings.set("readOnlyPort", "read-only-port", json!(0));
}

fn networking(spec: &NodeSpec, cluster: &ClusterSpec, facts: &MachineFacts, settings: &mut Settings) {
    if let Some(address) = spec.address {
        settings.set("address", "address", json!(address.to_string()));
    }
    settings.set("port", "port", json!(10_250));
    settings.set("clusterDNS", "cluster-dns", json!([cluster.networks.dns.to_string()]));
    settings.set("clusterDomain", "cluster-domain", json!(cluster.networks.domain));
    // The stub's address means nothing to a pod (magnum-node.md 7.4 no. 51).
    if facts.resolved {
        settings.set("resolvConf", "resolv-conf", json!("/run/systemd/resolve/resolv.conf"));
    }
}

fn container_runtime(cluster: &ClusterSpec, settings: &mut Settings) {
    match engine::endpoint(cluster) {
        Some(endpoint) => {
            // Up to 1.23 docker is the default; from 1.27 on there is no other kind (magnum-node.md 5.1).
            settings.flags.set("container-runtime", "remote");
            settings.set("containerRuntimeEndpoint", "container-runtime-endpoint", json!(endpoint));
            settings.set("runtimeRequestTimeout", "runtime-request-timeout", json!("15m"));
        }
        None if cluster.uses_cni() => {
            settings.flags.set("network-plugin", "cni");
            settings.flags.set("cni-bin-dir", paths::CNI_PROGRAMS);
            settings.flags.set("cni-conf-dir", paths::CNI_NETWORKS);
        }
        None => {}
    }
    settings.flags.set("runtime-cgroups", format!("/system.slice/{}", runtime_units::unit_of_kind(cluster)));
    if let Some(image) = &cluster.runtime.sandbox_image {
        settings.flags.set("pod-infra-container-image", image.as_str());
    }
}

fn pods(spec: &NodeSpec, cluster: &ClusterSpec, settings: &mut Settings) {
    // The directory had another name up to 1.3.
    if settings.has_field("staticPodPath") || settings.flags.knows("pod-manifest-path") {
        settings.set("staticPodPath", "pod-manifest-path", json!(MANIFESTS));
    } else {
        settings.flags.set("config", MANIFESTS);
    }
    if let Some(url) = &cluster.node.static_pod_url {
        settings.set("staticPodURL", "manifest-url", json!(url));
    }
    let labels = labels(spec.role, cluster);
    if !labels.is_empty() {
        settings.flags.set("node-labels", labels.join(","));
    }
    // Flags, not a field of the file: a user's taints join ours there, and would take their place here.
    let taints = taints(spec.role, cluster);
    if !taints.is_empty() && !settings.flags.set("register-with-taints", taints.join(",")) && spec.role == Role::Master {
        settings.flags.set("register-schedulable", "false");
    }
}

/// Labels that the kubelet gives its node. From 1.16 on the master's own are given through the API (`node_labels`; magnum-node.md 5.1);
/// others that a kubelet may not give are refused when the parameters are read.
fn labels(role: Role, cluster: &ClusterSpec) -> Vec<String> {
    let own = role == Role::Master && cluster.minor.number() < FIRST_WITHOUT_OWN_ROLE;
    let own = own.then(|| "node-role.kubernetes.io/master=".to_owned());
    let mut labels: Vec<String> = Vec::new();
    for label in own.into_iter().chain(cluster.node.labels.iter().map(|(key, value)| format!("{key}={value}"))) {
        if !labels.contains(&label) {
            labels.push(label);
        }
    }
    labels
}

/// The master's own taint by version, both names where both are in use, then what was asked for (magnum-node.md 7.6 no. 72).
fn taints(role: Role, cluster: &ClusterSpec) -> Vec<String> {
    let names: &[&str] = match (role, cluster.minor.number()) {
        (Role::Minion, _) => &[],
        (Role::Master, ..=23) => &["master"],
        (Role::Master, 24) => &["master", "control-plane"],
        (Role::Master, _) => &["control-plane"],
    };
    let mut taints: Vec<String> = names.iter().map(|name| format!("node-role.kubernetes.io/{name}=:NoSchedule")).collect();
    for taint in &cluster.node.taints {
        // Older kubelets want `=` also where there is no value, as every kubelet takes it.
        let taint = if taint.contains('=') { taint.clone() } else { taint.replacen(':', "=:", 1) };
        match taints.iter_mut().find(|one| taint_name(one) == taint_name(&taint)) {
            Some(same) => *same = taint,
            None => taints.push(taint),
        }
    }
    taints
}

/// By what a taint is known, of which a node has one at most: `key:effect`.
#[must_use]
pub fn taint_name(text: &str) -> String {
    let (pair, effect) = text.rsplit_once(':').unwrap_or((text, ""));
    format!("{}:{effect}", pair.split('=').next().unwrap_or_default())
}

/// `cpu=100m,memory=256Mi`
fn resources(text: &str) -> Map<String, Value> {
    quantities(text).map(|(name, amount)| (name.to_owned(), json!(amount))).collect()
}

fn kubeconfigs(spec: &NodeSpec, cluster: &ClusterSpec) -> Vec<File> {
    let server = cluster.server_of_node(spec.role);
    let ca = cluster.tls.then_some(CLUSTER_CA);
    let (path, identity) = match (&cluster.bootstrap_token, cluster.certificates) {
        (Some(token), CertificateSource::Bootstrap) => (BOOTSTRAP_KUBECONFIG, Identity::Token(token)),
        (None, CertificateSource::Bootstrap) => return Vec::new(),
        _ if cluster.tls => (KUBECONFIG, Identity::Certificate { certificate: KUBELET.certificate, key: KUBELET.key }),
        _ => (KUBECONFIG, Identity::Nobody),
    };
    vec![kubeconfig::file(path, &server, ca, "kubelet", &identity)]
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::kubernetes::fixtures::{MINORS, arguments, asked, content, file, gate, parameters, value};
    use crate::kubernetes::render;

    const TRUST: &[(&str, &str)] = &[
        ("TRUSTEE_USER_ID", "7e6d"),
        ("TRUSTEE_PASSWORD", "pw"),
        ("TRUST_ID", "0123"),
        ("AUTH_URL", "https://keystone.example.org/v3"),
    ];

    fn node(minor: u16, changes: &[(&str, &str)]) -> Desired {
        let tag = format!("v1.{minor}.3");
        // Before 1.5 the kubelet knows no other driver.
        let driver = if minor < 5 { "cgroupfs" } else { "systemd" };
        let base =
            [("KUBE_TAG", tag.as_str()), ("CGROUP_DRIVER", driver), ("CERTIFICATES", "given"), ("KUBE_MASTER_IP", "192.0.2.5")];
        let all: Vec<_> = base.into_iter().chain(changes.iter().copied()).collect();
        let facts = MachineFacts { memory: Some(4096), cpus: Some(2), resolved: true, ..MachineFacts::default() };
        render(&NodeSpec::from_parameters(&parameters(&all)).unwrap(), &facts).unwrap()
    }

    fn worker(minor: u16, changes: &[(&str, &str)]) -> Desired {
        let all: Vec<_> = [("ROLE", "minion")].into_iter().chain(changes.iter().copied()).collect();
        node(minor, &all)
    }

    fn master(minor: u16, changes: &[(&str, &str)]) -> Desired {
        let all: Vec<_> = [("ROLE", "master")].into_iter().chain(changes.iter().copied()).collect();
        node(minor, &all)
    }

    /// A setting wherever it stands: the field of the file, else the flag.
    fn setting(desired: &Desired, path: &str, flag: &str) -> Option<String> {
        let words = arguments(desired, UNIT);
        let found = value(&words, flag).map(str::to_owned);
        let Some(file) = file(desired, CONFIGURATION) else { return found };
        assert_eq!(value(&words, "config"), Some(CONFIGURATION));
        let mut indent = 0;
        let mut lines = file.content.lines();
        for part in path.split('.') {
            let begin = format!("{}{part}:", " ".repeat(indent));
            let line = lines.find(|line| line.starts_with(&begin));
            let Some(line) = line else { return found };
            indent += 2;
            if part == path.rsplit('.').next().unwrap_or_default() {
                assert_eq!(found, None, "{path} stands in both places");
                return Some(line[begin.len()..].trim().trim_matches('"').to_owned());
            }
        }
        found
    }

    // magnum-node.md 7.1 no. 7; 7.5 no. 56, 57, 58; 7.4 no. 45, 51
    #[test]
    fn settings_stand_where_the_minor_reads_them() {
        for minor in MINORS.into_iter().filter(|minor| *minor >= 2) {
            let all = [("NODE_LABELS", "tier=gold"), ("NODE_TAINTS", "gpu=yes:NoSchedule")];
            let desired = worker(minor, if minor < 6 { &all[..1] } else { &all });
            let words = arguments(&desired, UNIT);
            for (path, flag, expected, from) in [
                ("authentication.anonymous.enabled", "anonymous-auth", "false", 5),
                ("authentication.webhook.enabled", "authentication-token-webhook", "true", 5),
                ("authentication.x509.clientCAFile", "client-ca-file", "/etc/kubernetes/certs/ca.crt", 5),
                ("authorization.mode", "authorization-mode", "Webhook", 5),
                ("readOnlyPort", "read-only-port", "0", 0),
                ("tlsCertFile", "tls-cert-file", "/etc/kubernetes/certs/kubelet.crt", 0),
                ("tlsPrivateKeyFile", "tls-private-key-file", "/etc/kubernetes/certs/kubelet.key", 0),
                ("address", "address", "192.0.2.11", 0),
                ("clusterDomain", "cluster-domain", "cluster.local", 0),
                ("resolvConf", "resolv-conf", "/run/systemd/resolve/resolv.conf", 0),
                ("cgroupDriver", "cgroup-driver", "systemd", 5),
                ("failSwapOn", "fail-swap-on", "true", 8),
                ("-", "hostname-override", "blue-master-0", 0),
                ("-", "node-ip", "192.0.2.11", 0),
                ("-", "node-labels", "tier=gold", 0),
                ("-", "register-with-taints", "gpu=yes:NoSchedule", 6),
                ("-", "kubeconfig", KUBECONFIG, 0),
            ] {
                let expected = (minor >= from).then(|| expected.to_owned());
                assert_eq!(setting(&desired, path, flag), expected, "1.{minor} {path} {flag}");
            }
            assert_eq!(file(&desired, CONFIGURATION).is_some(), minor >= 10, "1.{minor}");
            for (flag, band) in
                [("api-servers", 2..=3), ("require-kubeconfig", 4..=7), ("cadvisor-port", 2..=11), ("runtime-cgroups", 2..=99)]
            {
                assert_eq!(value(&words, flag).is_some(), band.contains(&minor), "1.{minor} {flag}: {words:?}");
            }
            assert_eq!(asked(&desired, "kubelet"), Some("http://127.0.0.1:10248/healthz"));
        }
        let config = content(&worker(31, &[]), CONFIGURATION).to_owned();
        assert!(
            config.contains(
                "\nkubeReserved:\n  cpu: \"70m\"\n  memory: \"1024Mi\"\nsystemReserved:\n  cpu: \"100m\"\n  memory: \"204Mi\"\n"
            ),
            "{config}"
        );
        assert!(config.contains("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"));
        assert!(config.contains("clusterDNS:\n- \"10.254.0.10\"\n"), "{config}");
    }

    /// magnum-node.md 6.1, `signal`; 7.2 no. 11 and 22.
    #[test]
    fn each_role_has_its_gates_and_services_are_asked_three_times() {
        let containerd = [("CONTAINER_RUNTIME", "containerd")];
        let of_node = ["containerd", "kubelet", "kube-proxy", "registration"];
        let of_master = ["etcd", "apiserver", "controller-manager", "scheduler"];
        for minor in [20, 28, 31] {
            for (desired, control_plane) in [(worker(minor, &containerd), false), (master(minor, &containerd), true)] {
                for name in of_master {
                    assert_eq!(gate(&desired, name).is_some(), control_plane, "1.{minor} {name}");
                }
                for name in of_node.iter().chain(of_master.iter().filter(|_| control_plane)) {
                    assert_eq!(gate(&desired, name).map(|gate| gate.consecutive), Some(3), "1.{minor} {name}");
                }
            }
        }
        let docker = worker(20, &[("CONTAINER_RUNTIME", "docker")]);
        assert!(gate(&docker, "docker").is_some() && gate(&docker, "containerd").is_none());
    }

    /// Who asks nobody else has a deadline of its own; whom another machine holds up has the run's.
    #[test]
    fn gates_of_this_node_alone_have_deadlines_of_their_own() {
        let cloud = [
            ("AUTH_URL", "https://keystone.example.org:5000/v3"),
            ("TRUSTEE_USER_ID", "u"),
            ("TRUSTEE_PASSWORD", "p"),
            ("TRUST_ID", "t"),
        ];
        let name = ("INSTANCE_NAME", "node-1");
        let token = [name, ("CERTIFICATES", "bootstrap"), ("BOOTSTRAP_TOKEN", "abcdef.0123456789abcdef")];
        let several = [name, ("ETCD_DISCOVERY_URL", "https://discovery.example.org/0f1e")];
        let balanced = [name, ("API_BALANCER", "haproxy"), ("MASTER_ADDRESSES", "192.0.2.5,192.0.2.6")];
        let docker = [name, ("CONTAINER_RUNTIME", "docker")];
        let containerd = [name, ("CONTAINER_RUNTIME", "containerd")];
        let control_plane = "apiserver 1200, controller-manager 600, scheduler 600, kubelet 600, kube-proxy 600, registration -";
        for (desired, expected) in [
            (master(31, &[name]), format!("sysctl 120, storage -, docker 1200, etcd 1200, {control_plane}")),
            (master(31, &several), format!("sysctl 120, storage -, docker 1200, etcd -, {control_plane}")),
            (
                master(20, &[&docker[..], &cloud].concat()),
                "sysctl 120, storage -, docker 1200, etcd 1200, apiserver -, controller-manager -, scheduler 600, kubelet -, \
                 kube-proxy 600, registration -"
                    .to_owned(),
            ),
            (
                worker(31, &containerd),
                "sysctl 120, storage -, containerd 1200, kubelet 600, kube-proxy -, registration -".to_owned(),
            ),
            (worker(31, &token), "sysctl 120, storage -, docker 1200, kubelet -, kube-proxy -, registration -".to_owned()),
            (
                worker(31, &balanced),
                "sysctl 120, storage -, docker 1200, haproxy -, kubelet 600, kube-proxy -, registration -".to_owned(),
            ),
            (
                worker(9, &docker),
                "sysctl 120, storage -, docker 1200, flannel -, kubelet 600, kube-proxy -, pod bridge 1200, pod routes -, ready -, registration -"
                    .to_owned(),
            ),
        ] {
            let sorted = |mut all: Vec<String>| {
                all.sort();
                all.join(", ")
            };
            let seconds = |gate: &Gate| gate.deadline.map_or("-".to_owned(), |own| own.as_secs().to_string());
            let found = desired.gates.iter().map(|gate| format!("{} {}", gate.name, seconds(gate))).collect();
            assert_eq!(sorted(found), sorted(expected.split(", ").map(str::to_owned).collect()));
        }
        // On a master kube-proxy's time begins when the API is there, which it asks.
        let waits = |desired: &Desired| {
            gate(desired, "kube-proxy").unwrap().needs.contains(&Dependency::Gate(api_server::GATE.to_owned()))
        };
        assert!(waits(&master(31, &[name])) && !waits(&worker(31, &[name])));
    }

    #[test]
    fn the_api_is_asked_for_the_node_by_the_name_and_the_certificate_that_its_kubelet_has() {
        let name = ("INSTANCE_NAME", "node-1");
        let token = [name, ("CERTIFICATES", "bootstrap"), ("BOOTSTRAP_TOKEN", "abcdef.0123456789abcdef")];
        let plain = [name, ("CERTIFICATES", ""), ("TLS_DISABLED", "true"), ("KUBE_API_PORT", "8080")];
        let (own, joined) = ((KUBELET.certificate, KUBELET.key), (OWN_CERTIFICATE, OWN_CERTIFICATE));
        for (desired, url, pair, needs_api) in [
            (master(28, &[name]), "https://127.0.0.1:6443/api/v1/nodes/node-1", Some(own), true),
            (worker(28, &[name]), "https://192.0.2.5:6443/api/v1/nodes/node-1", Some(own), false),
            (worker(28, &token), "https://192.0.2.5:6443/api/v1/nodes/node-1", Some(joined), false),
            (worker(15, &plain), "http://192.0.2.5:8080/api/v1/nodes/node-1", None, false),
        ] {
            let found = gate(&desired, "registration").unwrap();
            let GateProbe::HttpJson { url: asked, identity, .. } = &found.probe else { panic!() };
            assert_eq!(asked, url);
            let shown = identity.as_ref().map(|one| (one.certificate.as_str(), one.key.as_str()));
            assert_eq!(shown, pair, "{url}");
            assert_eq!(found.needs.contains(&Dependency::Gate(api_server::GATE.to_owned())), needs_api, "{url}");
            assert!(found.needs.contains(&Dependency::Unit(UNIT.to_owned())));
        }
        // Whose name is not known, or who does not register itself, is not asked for.
        let other_name = worker(15, &[&plain[..], &[("KUBELET_OPTIONS", "--hostname-override=other")]].concat());
        assert!(gate(&other_name, "registration").is_none());
        for options in ["--register-node=false", "--kubeconfig=/root/other"] {
            let desired = worker(28, &[name, ("KUBELET_OPTIONS", options)]);
            assert!(gate(&desired, "registration").is_none(), "{options}");
        }
    }

    /// `kubectl logs` and `exec`: an API server without TLS has no certificate to show.
    #[test]
    fn who_shows_no_certificate_is_judged_by_the_api_where_nobody_has_one() {
        let plain = [("CERTIFICATES", ""), ("TLS_DISABLED", "true"), ("KUBE_API_PORT", "8080")];
        for (minor, changes, nobody) in [(15, &plain[..], "true"), (19, &plain, "true"), (8, &plain, "true"), (19, &[], "false")]
        {
            let desired = worker(minor, changes);
            let of = |path, flag| setting(&desired, path, flag);
            assert_eq!(of("authentication.anonymous.enabled", "anonymous-auth").as_deref(), Some(nobody), "1.{minor}");
            assert_eq!(of("authorization.mode", "authorization-mode").as_deref(), Some("Webhook"), "1.{minor}");
        }
    }

    /// SUCCESS was reported of nodes that were NotReady.
    #[test]
    fn ready_is_waited_for_where_the_agent_brings_the_network_and_watched_elsewhere() {
        let routes = [("NETWORK_DRIVER", "static-routes"), ("NODE_SUBNETS", "192.0.2.11=10.100.1.0/24,192.0.2.12=10.100.2.0/24")];
        let name = ("INSTANCE_NAME", "node-1");
        let names = |gates: &[Gate]| gates.iter().map(|gate| gate.name.clone()).collect::<Vec<_>>();
        for (minor, changes, is_waited_for) in [
            (9, &[name][..], true),
            (20, &[name, ("FLANNEL_RUNS_AS", "unit"), ("CONTAINER_RUNTIME", "containerd")], true),
            (20, &[&[name][..], &routes].concat(), true),
            (20, &[name], false),
            (20, &[name, ("NETWORK_DRIVER", "calico")], false),
            (20, &[name, ("NETWORK_DRIVER", "none")], false),
        ] {
            let desired = worker(minor, changes);
            let (waited, watched) = (names(&desired.gates), names(&desired.watched));
            assert_eq!(
                (waited.contains(&"ready".to_owned()), watched.contains(&"ready".to_owned())),
                (is_waited_for, !is_waited_for),
                "{changes:?}"
            );
            let ready = desired.gates.iter().chain(&desired.watched).find(|gate| gate.name == "ready").unwrap();
            let GateProbe::NodeReady { url, identity } = &ready.probe else { panic!() };
            assert_eq!((url.as_str(), identity.is_some()), ("https://192.0.2.5:6443/api/v1/nodes/node-1", true));
            assert_eq!(ready.needs, BTreeSet::from([Dependency::Gate("registration".to_owned())]));
        }
        let unregistered = worker(20, &[name, ("KUBELET_OPTIONS", "--register-node=false")]);
        assert!(unregistered.watched.is_empty() && gate(&unregistered, "ready").is_none());
    }

    #[test]
    fn requests_for_certificates_that_wait_for_an_operator_are_watched() {
        let token = ("BOOTSTRAP_TOKEN", "abcdef.0123456789abcdef");
        let name = ("INSTANCE_NAME", "node-1");
        let (v1, v1beta1) = (
            "https://127.0.0.1:6443/apis/certificates.k8s.io/v1/certificatesigningrequests",
            "https://127.0.0.1:6443/apis/certificates.k8s.io/v1beta1/certificatesigningrequests",
        );
        let own = crate::kubernetes::fixtures::ETCDS_OWN;
        for (desired, expected) in [
            (master(20, &[&[name, token][..], own].concat()), Some(v1)),
            (master(18, &[&[name, token][..], own].concat()), Some(v1beta1)),
            (master(20, &[name]), None),
            (worker(20, &[name, token, ("CERTIFICATES", "bootstrap")]), Some("/var/lib/kubelet/pki/kubelet-server-current.pem")),
            (worker(20, &[name]), None),
        ] {
            let found = desired.watched.iter().find(|gate| gate.name == "certificate requests");
            let asked = found.map(|gate| match &gate.probe {
                GateProbe::NoPendingRequests { url, identity } => {
                    assert_eq!(identity.as_ref().map(|one| one.key.as_str()), Some(ADMIN.key));
                    url.as_str()
                }
                GateProbe::File(path) => path,
                other => panic!("{other:?}"),
            });
            assert_eq!(asked, expected);
        }
    }

    #[test]
    fn the_kubelet_finds_its_runtime_by_version() {
        let containerd = [("CONTAINER_RUNTIME", "containerd")];
        for (minor, changes, kind, endpoint, cni) in [
            (9, &[][..], None, None, None),
            (9, &[("NETWORK_DRIVER", "calico")], None, None, Some("/opt/cni/bin")),
            (15, &[], None, None, Some("/opt/cni/bin")),
            (23, &containerd, Some("remote"), Some("unix:///run/containerd/containerd.sock"), None),
            (24, &[], Some("remote"), Some("unix:///run/cri-dockerd.sock"), None),
            (26, &containerd, Some("remote"), Some("unix:///run/containerd/containerd.sock"), None),
            (27, &containerd, None, Some("unix:///run/containerd/containerd.sock"), None),
            (31, &[("CONTAINER_RUNTIME", "cri-o")], None, Some("unix:///run/crio/crio.sock"), None),
        ] {
            let desired = worker(minor, changes);
            let words = arguments(&desired, UNIT);
            assert_eq!(value(&words, "container-runtime"), kind, "1.{minor}");
            assert_eq!(
                setting(&desired, "containerRuntimeEndpoint", "container-runtime-endpoint").as_deref(),
                endpoint,
                "1.{minor}"
            );
            assert_eq!(value(&words, "cni-bin-dir"), cni, "1.{minor}");
        }
        let image = [("SANDBOX_IMAGE", "pause:3.9"), ("CONTAINER_RUNTIME", "containerd")];
        for (minor, there) in [(34, true), (35, false)] {
            assert_eq!(value(&arguments(&worker(minor, &image), UNIT), "pod-infra-container-image").is_some(), there);
        }
    }

    // magnum-node.md 7.6 no. 72
    #[test]
    fn a_master_is_distinguished_by_version() {
        let old = "node-role.kubernetes.io/master=:NoSchedule";
        let new = "node-role.kubernetes.io/control-plane=:NoSchedule";
        for (minor, label, taints, schedulable) in [
            (2, Some("node-role.kubernetes.io/master="), None, Some("false")),
            (6, Some("node-role.kubernetes.io/master="), Some(old.to_owned()), None),
            (15, Some("node-role.kubernetes.io/master="), Some(old.to_owned()), None),
            (16, None, Some(old.to_owned()), None),
            (24, None, Some(format!("{old},{new}")), None),
            (25, None, Some(new.to_owned()), None),
        ] {
            let words = arguments(&master(minor, &[("KUBELET_OPTIONS", "")]), UNIT);
            assert_eq!(value(&words, "node-labels"), label, "1.{minor}");
            assert_eq!(value(&words, "register-with-taints").map(str::to_owned), taints, "1.{minor}");
            assert_eq!(value(&words, "register-schedulable"), schedulable, "1.{minor}");
        }
        let words =
            arguments(&master(31, &[("KUBELET_OPTIONS", "--register-with-taints=a=b:NoExecute --node-labels x=y")]), UNIT);
        assert_eq!(value(&words, "register-with-taints").unwrap(), format!("{new},a=b:NoExecute"));
        assert_eq!(value(&words, "node-labels"), Some("x=y"));
        for minor in [6, 31] {
            let words = arguments(&worker(minor, &[("NODE_TAINTS", "gpu:NoSchedule,gpu=:NoSchedule,a=b:NoExecute")]), UNIT);
            assert_eq!(value(&words, "register-with-taints"), Some("gpu=:NoSchedule,a=b:NoExecute"), "1.{minor}");
        }
    }

    #[test]
    fn the_cloud_provider_is_the_one_of_the_version() {
        let external = [TRUST, &[("CLOUD_PROVIDER_ENABLED", "true")]].concat();
        let off = [TRUST, &[("CLOUD_PROVIDER_ENABLED", "false")]].concat();
        for (minor, changes, provider, file) in [
            (9, &external, Some("openstack"), Some(cloud_config::PATH)),
            (9, &TRUST.to_vec(), Some("openstack"), Some(cloud_config::PATH)),
            (9, &off, None, None),
            (15, &external, Some("external"), None),
            (25, &TRUST.to_vec(), Some("openstack"), Some(cloud_config::PATH)),
            (26, &TRUST.to_vec(), None, None),
            (26, &off, None, None),
            (37, &external, Some("external"), None),
            (28, &vec![], None, None),
        ] {
            let words = arguments(&worker(minor, changes), UNIT);
            assert_eq!(
                (value(&words, "cloud-provider"), value(&words, "cloud-config")),
                (provider, file),
                "1.{minor} {changes:?}"
            );
        }
    }

    #[test]
    fn a_worker_may_join_by_tls_bootstrap() {
        let desired = worker(28, &[("CERTIFICATES", "bootstrap"), ("BOOTSTRAP_TOKEN", "abcdef.0123456789abcdef")]);
        let words = arguments(&desired, UNIT);
        assert_eq!(value(&words, "kubeconfig"), Some(OWN_KUBECONFIG));
        assert_eq!(value(&words, "bootstrap-kubeconfig"), Some(BOOTSTRAP_KUBECONFIG));
        let kubeconfig = file(&desired, BOOTSTRAP_KUBECONFIG).unwrap();
        assert!(kubeconfig.secret && kubeconfig.mode == 0o600 && kubeconfig.content.contains("token: abcdef.0123456789abcdef"));
        assert_eq!(file(&desired, KUBECONFIG), None);
        assert_eq!(setting(&desired, "rotateCertificates", "rotate-certificates").as_deref(), Some("true"));
        assert_eq!(setting(&desired, "tlsCertFile", "tls-cert-file"), None);
        for other in desired.files.iter().filter(|file| file.path != BOOTSTRAP_KUBECONFIG) {
            assert!(!other.content.contains("0123456789abcdef"), "{}", other.path);
        }
    }

    #[test]
    fn a_users_flags_win_and_the_gate_follows() {
        let options = "--max-pods=50 --healthz-port=11000 --read-only-port 10255";
        let desired = worker(28, &[("KUBELET_OPTIONS", options)]);
        let words = arguments(&desired, UNIT);
        assert_eq!(value(&words, "max-pods"), Some("50"));
        assert_eq!(value(&words, "read-only-port"), Some("10255"));
        assert_eq!(asked(&desired, "kubelet"), Some("http://127.0.0.1:11000/healthz"));
        assert_eq!(asked(&worker(28, &[("KUBELET_OPTIONS", "--healthz-port=0")]), "kubelet"), None);
        let reserved =
            worker(28, &[("KUBE_RESERVED", "cpu=1,memory=2Gi"), ("SWAP", "allow"), ("STATIC_POD_URL", "http://192.0.2.9/pods")]);
        let config = content(&reserved, CONFIGURATION);
        for expected in [
            "kubeReserved:\n  cpu: \"1\"\n  memory: \"2Gi\"\n",
            "failSwapOn: false\n",
            "staticPodURL: \"http://192.0.2.9/pods\"\n",
        ] {
            assert!(config.contains(expected), "{expected}: {config}");
        }
    }

    #[test]
    fn an_unknown_machine_gets_no_reservations() {
        let parameters = parameters(&[("CERTIFICATES", "given"), ("CONTAINER_RUNTIME", "containerd")]);
        let desired = render(&NodeSpec::from_parameters(&parameters).unwrap(), &MachineFacts::default()).unwrap();
        let config = content(&desired, CONFIGURATION);
        assert!(!config.contains("Reserved") && !config.contains("resolvConf"), "{config}");
    }

    proptest::proptest! {
        #[test]
        fn no_option_begins_a_line_or_a_directive(text in "[ -~é]{0,60}") {
            let options = format!("--max-pods='{}'", text.replace('\'', ""));
            let desired = worker(9, &[("KUBELET_OPTIONS", &options)]);
            let found = arguments(&desired, UNIT);
            let max = value(&found, "max-pods").map(str::to_owned);
            proptest::prop_assert_eq!(max, Some(text.replace('\'', "")));
            let drop_in = content(&desired, "/etc/systemd/system/kubelet.service.d/50-heat-node-agent.conf");
            let plain = worker(9, &[]);
            proptest::prop_assert_eq!(drop_in, content(&plain, "/etc/systemd/system/kubelet.service.d/50-heat-node-agent.conf"));
        }
    }

    #[test]
    fn resources_are_read_item_by_item() {
        assert_eq!(Value::Object(resources("cpu=100m,memory=256Mi,")), json!({"cpu": "100m", "memory": "256Mi"}));
    }
}
