//! kube-apiserver on masters.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::certificates::{
    ADMIN, AUTHORITY, ETCD_AUTHORITY, ETCD_CLIENT, FRONT_PROXY, FRONT_PROXY_AUTHORITY, FRONT_PROXY_NAME, SERVER, has_front_proxy,
    service_account_keys,
};
use super::cluster::{CLOUD_CONFIG, CertificateSource, ClusterSpec, Facts};
use super::daemon::{Daemon, Flags, Variables, has_variables, ok_gate, read_files};
use super::etcd;
use super::kubeconfig::{self, Identity};
use super::node_spec::{NodeSpec, Role};
use super::versions::{Component, Standing, admission_plugin};
use crate::desired::{Desired, Need};

pub(super) const UNIT: &str = "kube-apiserver.service";
/// Its gate, which whoever talks to the API on a master waits for.
pub(super) const GATE: &str = "apiserver";
/// Root's own kubeconfig.
const ADMIN_CONFIG: &str = "/etc/kubernetes/admin.conf";
/// How the API server asks Magnum's Keystone webhook.
const KEYSTONE_CONFIG: &str = "/etc/kubernetes/keystone_webhook_config.yaml";
/// Where that webhook listens on each master.
const KEYSTONE: &str = "https://127.0.0.1:8443/webhook";
/// The port in the clear that the first releases cannot close; on the loopback only.
const INSECURE_PORT: u16 = 8080;
/// The API server's own default.
const SECURE_PORT: u16 = 6443;

/// As the units of distributions expand them.
const VARIABLES: Variables = &[
    ("KUBE_LOGTOSTDERR", &[]),
    ("KUBE_LOG_LEVEL", &[]),
    ("KUBE_ALLOW_PRIV", &[]),
    ("KUBE_ETCD_SERVERS", &["etcd-servers"]),
    ("KUBE_API_ADDRESS", &["advertise-address", "bind-address", "insecure-bind-address"]),
    ("KUBE_API_PORT", &["secure-port", "insecure-port"]),
    ("KUBE_SERVICE_ADDRESSES", &["service-cluster-ip-range"]),
    ("KUBE_ADMISSION_CONTROL", &["admission-control"]),
];

/// Plugins of a version that has no list of its own by default.
const RECOMMENDED: [&str; 4] = ["NamespaceLifecycle", "LimitRanger", "ServiceAccount", "ResourceQuota"];

/// Adds its part.
pub(super) fn add(spec: &NodeSpec, cluster: &ClusterSpec, _facts: &Facts, desired: &mut Desired) {
    let mut flags = flags(spec, cluster);
    // What is wrong with the options was said when the parameters were read.
    drop(flags.options(&cluster.options.api_server));
    let keystone = has_keystone(cluster);
    let mut daemon = Daemon::new(UNIT, "kube-apiserver", "/etc/kubernetes/apiserver");
    daemon.take(&flags, cluster, Role::Master, VARIABLES, "KUBE_API_ARGS");
    daemon.after = vec!["network-online.target", "etcd.service"];
    daemon.unit_lines = "Wants=network-online.target\n".to_owned();
    // The keys are root's.
    daemon.service_lines = "User=root\nGroup=root\nLimitNOFILE=65536\n".to_owned();
    daemon.needs = BTreeSet::from([Need::Gate("etcd".to_owned())]);
    if keystone {
        desired.files.push(kubeconfig::file(KEYSTONE_CONFIG, KEYSTONE, Some(AUTHORITY), "webhook", &Identity::Nobody));
    }
    daemon.restart_on.extend(read_files(&flags, desired));
    daemon.add(desired);
    let identity = Identity::Certificate { certificate: ADMIN.certificate, key: ADMIN.key };
    let (identity, authority) = if cluster.tls { (identity, Some(AUTHORITY)) } else { (Identity::Nobody, None) };
    desired.files.push(kubeconfig::file(ADMIN_CONFIG, &cluster.server(Role::Master), authority, "admin", &identity));
    let (url, authority) = health(cluster, &flags);
    // It answers for moments while it still waits for etcd (magnum-node.md 7.2 no. 12, 22).
    desired.gates.push(ok_gate(GATE, UNIT, url, authority, 3));
}

fn flags(spec: &NodeSpec, cluster: &ClusterSpec) -> Flags {
    let mut flags = Flags::new(Component::ApiServer, cluster.minor);
    flags.set("etcd-servers", etcd::url_of_the_api_server(spec, cluster));
    if cluster.tls {
        flags.set("etcd-cafile", ETCD_AUTHORITY);
        flags.set("etcd-certfile", ETCD_CLIENT.certificate);
        flags.set("etcd-keyfile", ETCD_CLIENT.key);
    }
    if cluster.has_several_masters() {
        // Else a master may read what another one has overwritten (magnum-node.md 5.2).
        flags.set("etcd-quorum-read", "true");
    }
    // Explicit while the default changed from minor to minor; from 1.13 on there is one (magnum-node.md 5.2).
    if cluster.minor.number() <= 12 {
        flags.set("storage-backend", if cluster.minor.number() <= 5 { "etcd2" } else { "etcd3" });
    }
    addresses(spec, cluster, &mut flags);
    if !has_variables(cluster.minor) {
        flags.set("allow-privileged", cluster.control_plane.allow_privileged.to_string());
    }
    flags.set("service-cluster-ip-range", cluster.networks.services.trunc().to_string());
    set_admission(cluster, &mut flags);
    set_service_accounts(cluster, &mut flags);
    if cluster.tls {
        set_tls(cluster, &mut flags);
    }
    if cluster.signs() {
        // With a signer workers may join by a token. (1.6 and 1.7 had it as an experiment.)
        flags.set("enable-bootstrap-token-auth", "true");
    }
    if cluster.has_built_in_cloud() {
        flags.set("cloud-provider", "openstack");
        flags.set("cloud-config", CLOUD_CONFIG);
    }
    flags
}

/// Where it serves, and what it tells others to reach it by (magnum-node.md 7.5 no. 58).
fn addresses(spec: &NodeSpec, cluster: &ClusterSpec, flags: &mut Flags) {
    let everywhere = if matches!(spec.address, Some(IpAddr::V6(_))) { "::" } else { "0.0.0.0" };
    if let Some(address) = spec.address {
        flags.set("advertise-address", address.to_string());
    }
    flags.set("bind-address", everywhere);
    let port = cluster.api.port;
    if cluster.tls {
        flags.set("secure-port", port.to_string());
        if has_variables(cluster.minor) {
            flags.set("insecure-bind-address", "127.0.0.1");
            flags.set("insecure-port", INSECURE_PORT.to_string());
        } else {
            // magnum-node.md 7.1 no. 8
            flags.set("insecure-port", "0");
        }
    } else {
        flags.set("insecure-bind-address", everywhere);
        flags.set("insecure-port", port.to_string());
        // The secure port cannot be switched off in every minor, so it has to be another one.
        flags.set("secure-port", if port == SECURE_PORT { SECURE_PORT + 1 } else { SECURE_PORT }.to_string());
    }
}

/// The plugins that the minor has. What it lacks stops the API server, and Magnum's default list is newer than many a
/// version that it is given to (magnum-node.md 3.2, notes).
fn set_admission(cluster: &ClusterSpec, flags: &mut Flags) {
    let has_list = flags.knows("enable-admission-plugins");
    let asked = &cluster.control_plane.admission;
    let mut plugins: Vec<&str> = Vec::new();
    // Without TLS nobody is told apart.
    if cluster.tls && matches!(admission_plugin(cluster.minor, "NodeRestriction"), Standing::Known) {
        plugins.push("NodeRestriction");
    }
    if asked.is_empty() && cluster.tls && !has_list {
        plugins.extend(RECOMMENDED);
    }
    plugins.extend(asked.iter().map(String::as_str));
    // Without a key there are no tokens, and this plugin would hold up every pod.
    let has_tokens = service_account_keys(cluster).is_some();
    let mut taken: Vec<&str> = Vec::new();
    for plugin in plugins {
        let there = matches!(admission_plugin(cluster.minor, plugin), Standing::Known | Standing::Unknown | Standing::Unchecked);
        if there && (has_tokens || plugin != "ServiceAccount") && !taken.contains(&plugin) {
            taken.push(plugin);
        }
    }
    if taken.is_empty() {
        return;
    }
    let list = taken.join(",");
    if has_list {
        flags.set("enable-admission-plugins", list);
    } else {
        flags.set("admission-control", list);
    }
}

fn set_service_accounts(cluster: &ClusterSpec, flags: &mut Flags) {
    let Some(keys) = service_account_keys(cluster) else { return };
    flags.set("service-account-key-file", keys.verify);
    // The flags are older, but before 1.12 they need a feature that is off (required from 1.20 on; magnum-node.md 5.2).
    if cluster.minor.number() >= 12 {
        let issuer = format!("https://kubernetes.default.svc.{}", cluster.networks.domain);
        flags.set("service-account-signing-key-file", keys.sign);
        flags.set("service-account-issuer", issuer.clone());
        // All of them or none.
        if !flags.set("api-audiences", issuer.clone()) {
            flags.set("service-account-api-audiences", issuer);
        }
    }
}

fn set_tls(cluster: &ClusterSpec, flags: &mut Flags) {
    flags.set("client-ca-file", AUTHORITY);
    flags.set("tls-cert-file", SERVER.certificate);
    flags.set("tls-private-key-file", SERVER.key);
    if cluster.certificates != CertificateSource::Bootstrap {
        flags.set("kubelet-certificate-authority", AUTHORITY);
    }
    // The administrator may ask every kubelet, without a binding that an add-on has to bring first (magnum-node.md 4.3).
    flags.set("kubelet-client-certificate", ADMIN.certificate);
    flags.set("kubelet-client-key", ADMIN.key);
    // Names of nodes need not be resolvable on a master.
    flags.set("kubelet-preferred-address-types", "InternalIP,Hostname,ExternalIP");
    let keystone = has_keystone(cluster);
    let mode = match cluster.minor.number() {
        // Everybody with a certificate may do everything.
        ..6 => None,
        6 => Some("RBAC"),
        // What RBAC allows is not asked for elsewhere: so the control plane works without the webhook, which runs on top of it.
        _ if keystone => Some("Node,RBAC,Webhook"),
        _ => Some("Node,RBAC"),
    };
    match mode {
        Some(mode) => _ = flags.set("authorization-mode", mode),
        // Where everything is allowed, nobody may stay unknown.
        None => _ = flags.set("anonymous-auth", "false"),
    }
    if keystone {
        flags.set("authentication-token-webhook-config-file", KEYSTONE_CONFIG);
        flags.set("authorization-webhook-config-file", KEYSTONE_CONFIG);
    }
    if has_front_proxy(cluster) {
        flags.set("proxy-client-cert-file", FRONT_PROXY.certificate);
        flags.set("proxy-client-key-file", FRONT_PROXY.key);
        flags.set("requestheader-client-ca-file", FRONT_PROXY_AUTHORITY);
        flags.set("requestheader-allowed-names", FRONT_PROXY_NAME);
        flags.set("requestheader-extra-headers-prefix", "X-Remote-Extra-");
        flags.set("requestheader-group-headers", "X-Remote-Group");
        flags.set("requestheader-username-headers", "X-Remote-User");
    }
}

/// Magnum's webhook came with its 7.x (Kubernetes 1.11) and asks Keystone.
fn has_keystone(cluster: &ClusterSpec) -> bool {
    cluster.tls && cluster.control_plane.keystone_auth && cluster.cloud.is_some() && cluster.minor.number() >= 11
}

/// Where its health is asked for, and by whose authority the answer is believed. Nobody has to be known for it from 1.6
/// on, with RBAC; before, the port in the clear is there.
fn health(cluster: &ClusterSpec, flags: &Flags) -> (String, Option<&'static str>) {
    let path = health_path(cluster);
    if cluster.tls && cluster.minor.number() >= 6 {
        let port = flags.port("secure-port", cluster.api.port).unwrap_or(cluster.api.port);
        return (format!("https://127.0.0.1:{port}/{path}"), Some(AUTHORITY));
    }
    let port = flags.port("insecure-port", INSECURE_PORT).unwrap_or(INSECURE_PORT);
    (format!("http://127.0.0.1:{port}/{path}"), None)
}

/// `/readyz` where the version has it (magnum-node.md 7.2 no. 12).
pub(super) fn health_path(cluster: &ClusterSpec) -> &'static str {
    if cluster.minor.number() >= 16 { "readyz" } else { "healthz" }
}
