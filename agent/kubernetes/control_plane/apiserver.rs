//! kube-apiserver on masters.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::etcd;
use crate::desired::{Dependency, Desired, File};
use crate::kubernetes::parts::api_server::GATE;
use crate::kubernetes::parts::certificates::{
    ADMIN, CLUSTER_CA, ETCD_CA, ETCD_CLIENT, FRONT_PROXY, FRONT_PROXY_CA, FRONT_PROXY_NAME, SERVER, SERVICE_ACCOUNT_PRIVATE,
    ServiceAccountKeys, has_front_proxy, service_account_keys,
};
use crate::kubernetes::parts::daemon::{
    Daemon, Flags, ProbeIdentity, Variables, deadline, has_variables, ok_gate, read_files, unless_cloud,
};
use crate::kubernetes::spec::cluster::{CLOUD_CONFIG, ClusterSpec, MachineFacts};
use crate::kubernetes::spec::node::NodeSpec;
use crate::kubernetes::spec::words::Role;
use crate::kubernetes::text::kubeconfig::{self, Identity};
use crate::kubernetes::versions::{Availability, Component, admission_plugin};

pub(in crate::kubernetes) const UNIT: &str = "kube-apiserver.service";
/// Its environment file.
pub const ENVIRONMENT_FILE: &str = "/etc/kubernetes/apiserver";
/// Its own key, which verified tokens where the parameters gave none, before the node made one for them.
pub const SERVER_KEY: &str = SERVER.key;
/// The private key that the node made for service accounts' tokens, or that the parameters gave as text.
pub const SERVICE_ACCOUNT_KEY: &str = SERVICE_ACCOUNT_PRIVATE;
/// Root's own kubeconfig.
const ADMIN_CONFIG: &str = "/etc/kubernetes/admin.conf";
/// How the API server asks Magnum's Keystone webhook.
const KEYSTONE_CONFIG: &str = "/etc/kubernetes/keystone_webhook_config.yaml";
/// Where that webhook listens on each master.
const KEYSTONE: &str = "https://127.0.0.1:8443/webhook";
/// The port in the clear that the first releases cannot close; on the loopback only.
pub(in crate::kubernetes) const INSECURE_PORT: u16 = 8080;
/// From here on the port in the clear is closed by itself, and the flag deprecated (magnum-node.md 5.2).
const FIRST_CLOSED: u16 = 20;
/// From here on `/readyz` is taken.
const FIRST_READYZ: u16 = 20;
/// When it is asked to stop, the API server accepts no new request and waits up to 60 s (`--request-timeout`) for those in progress. Watches
/// never end by themselves, and every kubelet and controller has some. Requests that write end sooner than this, and all data is in etcd.
/// Controller manager and scheduler exit if they cannot renew their lease for 10 s, and the API server takes several seconds to start: with
/// a longer timeout each restart would end them too.
const STOP: &str = "# Watches stay open until it ends; requests that write are answered within seconds, and its data is etcd's.\n\
                    TimeoutStopSec=4\n";
/// The API server's own default.
const SECURE_PORT: u16 = 6443;

/// Environment variables as the units of distributions expand them. `KUBE_API_PORT` here is such a variable, and not the parameter of
/// the same name.
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

/// The first minor whose API server signs tokens itself.
pub(in crate::kubernetes) const FIRST_WITH_BOUND_TOKENS: u16 = 12;
/// The plugin by which each pod gets its account's token, and that admits none without.
pub(in crate::kubernetes) const SERVICE_ACCOUNT: &str = "ServiceAccount";
/// Plugins of a version that has no list of its own by default.
const RECOMMENDED: [&str; 4] = ["NamespaceLifecycle", "LimitRanger", SERVICE_ACCOUNT, "ResourceQuota"];

/// Its part of the node.
/// `given`: what other parts of the node write.
pub(in crate::kubernetes) fn part(spec: &NodeSpec, cluster: &ClusterSpec, facts: &MachineFacts, given: &[File]) -> Desired {
    let mut part = Desired::default();
    let mut flags = flags(spec, cluster, facts);
    // What is wrong with the options was said when the parameters were read.
    drop(flags.add_user_options(&cluster.options.api_server));
    let keystone = has_keystone(cluster);
    let mut daemon = Daemon::new(UNIT, facts.program(cluster, Component::ApiServer), ENVIRONMENT_FILE);
    daemon.take(&flags, cluster, VARIABLES, "KUBE_API_ARGS");
    daemon.after = vec!["network-online.target", "etcd.service"];
    daemon.unit_lines.push_str("Wants=network-online.target\n");
    // The keys are root's.
    daemon.service_lines.push_str("User=root\nGroup=root\nLimitNOFILE=65536\n");
    daemon.service_lines.push_str(STOP);
    daemon.needs = BTreeSet::from([Dependency::Gate("etcd".to_owned())]);
    if keystone {
        part.files.push(kubeconfig::file(KEYSTONE_CONFIG, KEYSTONE, Some(CLUSTER_CA), "webhook", &Identity::Nobody));
    }
    daemon.restart_on.extend(read_files(&flags, given.iter().chain(&part.files)));
    daemon.add(&mut part);
    let identity = Identity::Certificate { certificate: ADMIN.certificate, key: ADMIN.key };
    let (identity, ca) = if cluster.tls { (identity, Some(CLUSTER_CA)) } else { (Identity::Nobody, None) };
    part.files.push(kubeconfig::file(ADMIN_CONFIG, &cluster.server(Role::Master), ca, "admin", &identity));
    let (url, asks) = health(cluster, &flags);
    part.gates.push(ok_gate(GATE, UNIT, url, asks, unless_cloud(cluster, deadline::STORE)));
    part
}

fn flags(spec: &NodeSpec, cluster: &ClusterSpec, facts: &MachineFacts) -> Flags {
    let mut flags = Flags::new(Component::ApiServer, cluster.minor);
    flags.set("etcd-servers", etcd::url_of_the_api_server(spec));
    if cluster.tls {
        flags.set("etcd-cafile", ETCD_CA);
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
    if let Some((first, last)) = cluster.node_ports {
        flags.set("service-node-port-range", format!("{first}-{last}"));
    }
    let keys = service_account_keys(cluster, facts);
    set_admission(cluster, keys.is_some(), &mut flags);
    if let Some(keys) = keys {
        set_service_accounts(cluster, &keys, &mut flags);
    }
    // Names of nodes need not be resolvable on a master.
    flags.set("kubelet-preferred-address-types", "InternalIP,Hostname,ExternalIP");
    if cluster.tls {
        set_tls(cluster, &mut flags);
    }
    if cluster.lets_join_by_token() {
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
        } else if cluster.minor.number() < FIRST_CLOSED {
            // magnum-node.md 7.1 no. 8
            flags.set("insecure-port", "0");
        }
    } else {
        flags.set("insecure-bind-address", everywhere);
        flags.set("insecure-port", port.to_string());
        flags.set("secure-port", beside(port).to_string());
    }
}

/// The secure port beside one in the clear: it cannot be switched off in every minor, so it has to be another one.
pub(in crate::kubernetes) fn beside(port: u16) -> u16 {
    if port == SECURE_PORT { SECURE_PORT + 1 } else { SECURE_PORT }
}

/// The plugins that the minor has. What it lacks stops the API server, and Magnum's default list is newer than many a
/// version that it is given to (magnum-node.md 3.2, notes).
fn set_admission(cluster: &ClusterSpec, has_tokens: bool, flags: &mut Flags) {
    let has_list = flags.knows("enable-admission-plugins");
    let asked = &cluster.control_plane.admission;
    let mut plugins: Vec<&str> = Vec::new();
    // Without TLS clients cannot be distinguished.
    if cluster.tls && matches!(admission_plugin(cluster.minor, "NodeRestriction"), Availability::Known) {
        plugins.push("NodeRestriction");
    }
    if asked.is_empty() && cluster.tls && !has_list {
        plugins.extend(RECOMMENDED);
    }
    plugins.extend(asked.iter().map(String::as_str));
    let mut taken: Vec<&str> = Vec::new();
    for plugin in plugins {
        let there = matches!(
            admission_plugin(cluster.minor, plugin),
            Availability::Known | Availability::Unknown | Availability::Unchecked
        );
        if there && (has_tokens || plugin != SERVICE_ACCOUNT) && !taken.contains(&plugin) {
            taken.push(plugin);
        }
    }
    // Where it is among the defaults (since 1.10) leaving it out is not enough: it would wait for each account's token.
    if !has_tokens && has_list {
        flags.set("disable-admission-plugins", SERVICE_ACCOUNT);
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

fn set_service_accounts(cluster: &ClusterSpec, keys: &ServiceAccountKeys<'_>, flags: &mut Flags) {
    flags.set_all("service-account-key-file", &keys.verify);
    // The flags are older, but before 1.12 they need a feature that is off (required from 1.20 on; magnum-node.md 5.2).
    if cluster.minor.number() >= FIRST_WITH_BOUND_TOKENS {
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
    flags.set("client-ca-file", CLUSTER_CA);
    flags.set("tls-cert-file", SERVER.certificate);
    flags.set("tls-private-key-file", SERVER.key);
    // Of workers that joined by a token, too: their serving certificates are signed by it, once somebody approved them.
    flags.set("kubelet-certificate-authority", CLUSTER_CA);
    // The administrator may ask every kubelet, without a binding that an add-on has to bring first (magnum-node.md 4.3).
    flags.set("kubelet-client-certificate", ADMIN.certificate);
    flags.set("kubelet-client-key", ADMIN.key);
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
        flags.set("requestheader-client-ca-file", FRONT_PROXY_CA);
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

/// Where its health is asked for, and as whom. From 1.6 on, with RBAC, nobody has to be known for it, unless the options ask for
/// that (`--anonymous-auth=false`): the administrator always is. Before, the port in the clear is there.
fn health(cluster: &ClusterSpec, flags: &Flags) -> (String, ProbeIdentity) {
    let path = health_path(cluster);
    if cluster.tls && cluster.minor.number() >= 6 {
        let port = flags.port("secure-port", cluster.api.port).unwrap_or(cluster.api.port);
        return (format!("https://127.0.0.1:{port}/{path}"), ProbeIdentity::Known(ADMIN.client()));
    }
    let port = flags.port("insecure-port", INSECURE_PORT).unwrap_or(INSECURE_PORT);
    (format!("http://127.0.0.1:{port}/{path}"), ProbeIdentity::Nobody(None))
}

/// `/readyz`, which came with 1.16 and told nothing of etcd at first; `/healthz` tells of it in every minor
/// (magnum-node.md 7.2 no. 12; issue 82712 of Kubernetes).
pub(in crate::kubernetes) fn health_path(cluster: &ClusterSpec) -> &'static str {
    if cluster.minor.number() >= FIRST_READYZ { "readyz" } else { "healthz" }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::desired::{ClientIdentity, GateProbe, KeyType};
    use crate::kubernetes::fixtures::{MINORS, arguments, asked, content, file, gate, master, node, spec, value};
    use crate::kubernetes::render;
    use crate::kubernetes::spec::cluster::Tokens;
    use crate::kubernetes::versions::{Minor, flag};

    const OPEN: &[(&str, &str)] = &[("TLS_DISABLED", "true"), ("CERTIFICATES", ""), ("KUBE_API_PORT", "8080")];
    const KEYS: &[(&str, &str)] = &[
        ("KUBE_SERVICE_ACCOUNT_KEY", "-----BEGIN PUBLIC KEY-----\\nAA\\n-----END PUBLIC KEY-----\\n"),
        ("KUBE_SERVICE_ACCOUNT_PRIVATE_KEY", "-----BEGIN RSA PRIVATE KEY-----\\nBB\\n-----END RSA PRIVATE KEY-----\\n"),
    ];

    fn of(minor: u16, changes: &[(&str, &str)]) -> Vec<String> {
        arguments(&master(minor, changes), UNIT)
    }

    /// One row a flag: minors and what they get there; the neighbours of each boundary.
    #[test]
    fn every_minor_gets_its_own_flags() {
        let mut seen = BTreeMap::new();
        let issuer = Some("https://kubernetes.default.svc.cluster.local");
        let server_key = Some("/etc/kubernetes/certs/server.key");
        let own_key = Some("/etc/kubernetes/certs/service_account_private.key");
        for (name, expected) in [
            ("advertise-address", &[(1, Some("192.0.2.11")), (2, Some("192.0.2.11")), (37, Some("192.0.2.11"))][..]), // 7.5 no. 58
            ("secure-port", &[(1, Some("6443")), (37, Some("6443"))]), // 7.3 no. 25
            ("bind-address", &[(1, Some("0.0.0.0")), (37, Some("0.0.0.0"))]),
            ("insecure-port", &[(2, Some("8080")), (9, Some("8080")), (10, Some("0")), (19, Some("0")), (20, None), (24, None)]), // 7.1 no. 8
            ("insecure-bind-address", &[(2, Some("127.0.0.1")), (9, Some("127.0.0.1")), (10, None), (24, None)]),
            ("service-cluster-ip-range", &[(1, Some("10.254.0.0/16")), (37, Some("10.254.0.0/16"))]),
            ("etcd-cafile", &[(1, None), (2, None), (3, Some("/etc/etcd/certs/ca.crt")), (37, Some("/etc/etcd/certs/ca.crt"))]),
            ("etcd-keyfile", &[(37, Some("/etc/etcd/certs/admin.key"))]),
            ("etcd-quorum-read", &[(2, None), (8, None)]),
            (
                "storage-backend",
                &[(2, None), (3, Some("etcd2")), (5, Some("etcd2")), (6, Some("etcd3")), (12, Some("etcd3")), (13, None)],
            ),
            (
                "admission-control",
                &[
                    (2, Some("NamespaceLifecycle,LimitRanger,ServiceAccount,ResourceQuota")),
                    (5, Some("NamespaceLifecycle,LimitRanger,ServiceAccount,ResourceQuota")),
                    (6, Some("NamespaceLifecycle,LimitRanger,ServiceAccount,ResourceQuota")),
                    (7, Some("NodeRestriction,NamespaceLifecycle,LimitRanger,ServiceAccount,ResourceQuota")),
                    (9, Some("NodeRestriction,NamespaceLifecycle,LimitRanger,ServiceAccount,ResourceQuota")),
                    (10, None),
                    (37, None),
                ],
            ),
            (
                "enable-admission-plugins",
                &[(9, None), (10, Some("NodeRestriction")), (11, Some("NodeRestriction")), (37, Some("NodeRestriction"))],
            ),
            ("anonymous-auth", &[(2, None), (5, Some("false")), (6, None), (37, None)]),
            ("authorization-mode", &[(1, None), (5, None), (6, Some("RBAC")), (7, Some("Node,RBAC")), (37, Some("Node,RBAC"))]),
            ("client-ca-file", &[(1, Some("/etc/kubernetes/certs/ca.crt")), (37, Some("/etc/kubernetes/certs/ca.crt"))]),
            ("tls-private-key-file", &[(1, server_key), (37, server_key)]),
            ("service-account-key-file", &[(1, own_key), (5, own_key), (6, own_key), (37, own_key)]),
            ("service-account-signing-key-file", &[(11, None), (12, own_key), (20, own_key), (37, own_key)]),
            ("service-account-issuer", &[(11, None), (12, issuer), (20, issuer), (37, issuer)]),
            ("service-account-api-audiences", &[(11, None), (12, issuer), (13, None)]),
            ("api-audiences", &[(12, None), (13, issuer), (37, issuer)]),
            (
                "kubelet-certificate-authority",
                &[(1, None), (2, Some("/etc/kubernetes/certs/ca.crt")), (37, Some("/etc/kubernetes/certs/ca.crt"))],
            ),
            (
                "kubelet-client-certificate",
                &[(2, Some("/etc/kubernetes/certs/admin.crt")), (37, Some("/etc/kubernetes/certs/admin.crt"))],
            ),
            (
                "kubelet-preferred-address-types",
                &[(3, None), (5, Some("InternalIP,Hostname,ExternalIP")), (37, Some("InternalIP,Hostname,ExternalIP"))],
            ),
            (
                "proxy-client-cert-file",
                &[
                    (6, None),
                    (7, Some("/etc/kubernetes/certs/front-proxy/server.crt")),
                    (37, Some("/etc/kubernetes/certs/front-proxy/server.crt")),
                ],
            ),
            ("requestheader-client-ca-file", &[(6, None), (7, Some("/etc/kubernetes/certs/front-proxy/ca.crt"))]),
            ("requestheader-allowed-names", &[(7, Some("front-proxy")), (37, Some("front-proxy"))]),
            ("requestheader-username-headers", &[(7, Some("X-Remote-User"))]),
            ("allow-privileged", &[(1, Some("true")), (9, Some("true")), (10, Some("true")), (37, Some("true"))]),
            ("runtime-config", &[(2, None), (37, None)]), // 5.2: not carried forward
            ("cloud-provider", &[(2, None), (37, None)]),
            ("logtostderr", &[(9, Some("true")), (10, None), (37, None)]),
            ("enable-bootstrap-token-auth", &[(28, None)]),
        ] {
            for &(minor, expected) in expected {
                let found = seen.entry(minor).or_insert_with(|| arguments(&master(minor, &[]), UNIT));
                assert_eq!(value(found, name), expected, "{name} 1.{minor}");
            }
        }
    }

    /// magnum-node.md 7.6 no. 71: whatever is asked for, a minor gets nothing that it does not know.
    #[test]
    fn no_minor_gets_what_it_does_not_know() {
        let everything: Vec<_> = [
            ("KEYSTONE_AUTH_ENABLED", "true"),
            ("AUTH_URL", "https://keystone.example.org:5000/v3"),
            ("TRUSTEE_USER_ID", "u"),
            ("TRUSTEE_PASSWORD", "p"),
            ("TRUST_ID", "t"),
            ("CERT_MANAGER_API", "true"),
            ("CA_KEY", "-----BEGIN PRIVATE KEY-----\\nCC\\n-----END PRIVATE KEY-----"),
        ]
        .into_iter()
        .chain(KEYS.iter().copied())
        .collect();
        for number in 2..=Minor::NEWEST.number() {
            let minor = Minor::of_tag(&format!("v1.{number}.0")).unwrap();
            for word in of(number, &everything) {
                let name = word.trim_start_matches('-').split('=').next().unwrap();
                assert_eq!(flag(Component::ApiServer, minor, name), Availability::Known, "{name} 1.{number}");
            }
        }
    }

    #[test]
    fn several_masters_read_by_quorum() {
        let several = [("ETCD_DISCOVERY_URL", "https://discovery.example.org/0f1e")];
        for (minor, expected) in [(1, None), (2, Some("true")), (8, Some("true")), (13, None)] {
            assert_eq!(value(&of(minor, &several), "etcd-quorum-read"), expected, "{minor}");
        }
    }

    #[test]
    fn without_tls_the_port_in_the_clear_is_the_api() {
        for minor in [1, 2, 9, 15, 19] {
            let desired = master(minor, OPEN);
            let found = arguments(&desired, UNIT);
            for (name, expected) in [
                ("insecure-port", Some("8080")),
                ("insecure-bind-address", Some("0.0.0.0")),
                ("secure-port", Some("6443")),
                ("client-ca-file", None),
                ("authorization-mode", None),
                ("anonymous-auth", None),
                ("admission-control", None),
                ("enable-admission-plugins", None),
                ("etcd-cafile", None),
                // By default since 1.10: without keys no account has a token, and no pod would be admitted.
                ("disable-admission-plugins", (minor >= 10).then_some("ServiceAccount")),
                // `kubectl logs` and `exec`: a master need not know nodes' names.
                ("kubelet-preferred-address-types", (minor >= 5).then_some("InternalIP,Hostname,ExternalIP")),
            ] {
                assert_eq!(value(&found, name), expected, "{name} {minor}");
            }
            let more = [OPEN, &[("KUBEAPI_OPTIONS", "--disable-admission-plugins=DefaultStorageClass,ServiceAccount")]].concat();
            if minor >= 10 {
                let found = of(minor, &more);
                assert_eq!(value(&found, "disable-admission-plugins"), Some("ServiceAccount,DefaultStorageClass"), "{minor}");
                assert_eq!(
                    value(&of(minor, &[OPEN, KEYS].concat()), "disable-admission-plugins"),
                    None,
                    "with keys there are tokens"
                );
            }
            assert_eq!(asked(&desired, GATE), Some("http://127.0.0.1:8080/healthz"));
            assert!(content(&desired, ADMIN_CONFIG).contains("server: \"http://127.0.0.1:8080\""));
            assert!(desired.certificates.is_empty() && desired.cas.is_empty());
        }
        // Two servers cannot have one port.
        let same = of(15, &[("TLS_DISABLED", "true"), ("CERTIFICATES", ""), ("KUBE_API_PORT", "6443")]);
        assert_eq!((value(&same, "insecure-port"), value(&same, "secure-port")), (Some("6443"), Some("6444")));
    }

    /// Health is asked for over TLS wherever that can be, by what holds in the end, and there as somebody the server knows.
    #[test]
    fn the_gate_follows_the_version_and_the_users_port() {
        for (minor, changes, url) in [
            (1, &[][..], "http://127.0.0.1:8080/healthz"),
            (5, &[], "http://127.0.0.1:8080/healthz"),
            (6, &[], "https://127.0.0.1:6443/healthz"),
            (15, &[], "https://127.0.0.1:6443/healthz"),
            (19, &[], "https://127.0.0.1:6443/healthz"),
            (20, &[], "https://127.0.0.1:6443/readyz"),
            (37, &[("KUBE_API_PORT", "443")], "https://127.0.0.1:443/readyz"),
            (28, &[("KUBEAPI_OPTIONS", "--secure-port=8443")], "https://127.0.0.1:8443/readyz"),
            (28, &[("KUBEAPI_OPTIONS", "--anonymous-auth=false")], "https://127.0.0.1:6443/readyz"),
        ] {
            let desired = master(minor, changes);
            let identity = (minor >= 6).then(|| ClientIdentity {
                certificate: "/etc/kubernetes/certs/admin.crt".to_owned(),
                key: "/etc/kubernetes/certs/admin.key".to_owned(),
                ca: "/etc/kubernetes/certs/ca.crt".to_owned(),
            });
            let probe = GateProbe::Http { url: url.to_owned(), body: Some("ok".to_owned()), ca: None, identity };
            let found = gate(&desired, GATE).unwrap();
            assert_eq!((&found.probe, found.unit.as_deref()), (&probe, Some(UNIT)), "{minor}");
            // magnum-node.md 7.2 no. 22
            assert_eq!(found.consecutive, 3);
        }
    }

    /// magnum-node.md 3.2, notes: an unknown plugin stops the API server.
    #[test]
    fn plugins_that_a_version_lacks_are_left_out() {
        let magnums = "NamespaceLifecycle,LimitRanger,ServiceAccount,ResourceQuota,TaintNodesByCondition,Priority,\
            DefaultTolerationSeconds,DefaultStorageClass,StorageObjectInUseProtection,PersistentVolumeClaimResize,\
            MutatingAdmissionWebhook,ValidatingAdmissionWebhook,RuntimeClass";
        let old = "NamespaceLifecycle,SecurityContextDeny,PodSecurityPolicy,DenyEscalatingExec,Initializers,NamespaceLifecycle";
        for (minor, list, name, expected) in [
            (28, magnums, "enable-admission-plugins", format!("NodeRestriction,{magnums}")),
            (28, old, "enable-admission-plugins", "NodeRestriction,NamespaceLifecycle,SecurityContextDeny".to_owned()),
            (30, old, "enable-admission-plugins", "NodeRestriction,NamespaceLifecycle".to_owned()),
            (2, old, "admission-control", "NamespaceLifecycle,SecurityContextDeny,DenyEscalatingExec".to_owned()),
            (7, "ServiceAccount,NodeRestriction", "admission-control", "NodeRestriction,ServiceAccount".to_owned()),
            (5, "ServiceAccount,LimitRanger", "admission-control", "ServiceAccount,LimitRanger".to_owned()),
        ] {
            let list: String = list.split_whitespace().collect();
            let expected: String = expected.split_whitespace().collect();
            let changes = [("ADMISSION_CONTROL_LIST", list.as_str()), ("CERTIFICATE_KEYS", "ecdsa-p256")];
            assert_eq!(value(&of(minor, &changes), name), Some(expected.as_str()), "{minor} {list}");
        }
    }

    /// magnum-node.md 7.1 no. 9 and 7.5 no. 59: one pair for all masters, each file root's alone.
    #[test]
    fn service_accounts_use_the_keys_that_are_given() {
        let desired = master(28, KEYS);
        let found = arguments(&desired, UNIT);
        let (public, private) =
            ("/etc/kubernetes/certs/service_account.key", "/etc/kubernetes/certs/service_account_private.key");
        assert_eq!(value(&found, "service-account-key-file"), Some(public));
        assert_eq!(value(&found, "service-account-signing-key-file"), Some(private));
        assert_eq!(content(&desired, public), "-----BEGIN PUBLIC KEY-----\nAA\n-----END PUBLIC KEY-----\n");
        for (path, secret) in [(public, false), (private, true)] {
            let file = file(&desired, path).unwrap();
            assert_eq!((file.mode, file.secret), (0o600, secret), "{path}");
        }
        let unit = desired.units.iter().find(|unit| unit.name == UNIT).unwrap();
        assert!(unit.restart_on.contains(public) && unit.restart_on.contains(private), "{:?}", unit.restart_on);
    }

    /// With open watches it took a minute to stop, at each restart and each reboot.
    #[test]
    fn it_is_not_waited_for_until_the_last_watch_ends() {
        for minor in MINORS {
            let drop_in =
                content(&master(minor, &[]), "/etc/systemd/system/kube-apiserver.service.d/50-heat-node-agent.conf").to_owned();
            assert!(drop_in.contains("\nTimeoutStopSec=4\n"), "1.{minor}: {drop_in}");
            // Its clients are stopped before it, and etcd after it.
            assert!(drop_in.contains("After=network-online.target etcd.service\n"), "{drop_in}");
        }
    }

    /// RS256 is what every verifier of tokens knows. Who signs by the API server's own key goes on, until the parameter asks for another:
    /// then what was signed is still taken.
    #[test]
    fn a_single_master_signs_tokens_by_an_rsa_key_of_its_own() {
        let own = "/etc/kubernetes/certs/service_account_private.key";
        let (fresh, by_server) = (Tokens::default(), Tokens { verified_by_server_key: true, has_own_key: false });
        let both = Tokens { has_own_key: true, ..by_server };
        for (tag, asked, tokens, verifies, signs, made) in [
            ("v1.28.3", "", fresh, &[own][..], own, Some(KeyType::Rsa(2048))),
            ("v1.28.3", "rsa-3072", fresh, &[own], own, Some(KeyType::Rsa(3072))),
            ("v1.28.3", "ecdsa-p256", fresh, &[own], own, Some(KeyType::EcdsaP256)),
            ("v1.28.3", "", Tokens { has_own_key: true, ..fresh }, &[own], own, Some(KeyType::Rsa(2048))),
            ("v1.28.3", "", by_server, &[SERVER.key], SERVER.key, None),
            ("v1.28.3", "rsa-2048", by_server, &[own, SERVER.key], own, Some(KeyType::Rsa(2048))),
            ("v1.28.3", "rsa-2048", both, &[own, SERVER.key], own, Some(KeyType::Rsa(2048))),
            ("v1.28.3", "", both, &[own, SERVER.key], own, Some(KeyType::Rsa(2048))),
            ("v1.5.3", "", fresh, &[own], own, Some(KeyType::Rsa(2048))),
            // It takes one key alone.
            ("v1.5.3", "rsa-2048", by_server, &[SERVER.key], SERVER.key, None),
        ] {
            let what = format!("{tag} {asked:?} {tokens:?}");
            let spec = spec(&[("KUBE_TAG", tag), ("SERVICE_ACCOUNT_KEYS", asked)]);
            let desired = render(&spec, &MachineFacts { tokens, ..MachineFacts::default() }).unwrap();
            let words = arguments(&desired, UNIT);
            let found: Vec<_> = words.iter().filter_map(|word| word.strip_prefix("--service-account-key-file=")).collect();
            assert_eq!(found, verifies, "{what}");
            let manager = arguments(&desired, "kube-controller-manager.service");
            assert_eq!(value(&manager, "service-account-private-key-file"), Some(signs), "{what}");
            let signing = value(&words, "service-account-signing-key-file");
            assert_eq!(signing, (tag != "v1.5.3").then_some(signs), "{what}");
            let keys: Vec<_> = desired.keys.iter().map(|key| (key.path.as_str(), key.kind)).collect();
            assert_eq!(keys, made.map(|kind| (own, kind)).into_iter().collect::<Vec<_>>(), "{what}");
            let unit = desired.units.iter().find(|unit| unit.name == UNIT).unwrap();
            assert!(verifies.iter().all(|path| unit.restart_on.contains(*path)), "{what}: {:?}", unit.restart_on);
        }
        assert!(node(&[("ROLE", "minion"), ("KUBE_MASTER_IP", "192.0.2.5")]).keys.is_empty(), "masters alone sign");
    }

    /// magnum-node.md 7.1 no. 10: the webhook's certificate is the API server's own.
    #[test]
    fn keystone_is_asked_and_verified() {
        let asked = [
            ("KEYSTONE_AUTH_ENABLED", "true"),
            ("AUTH_URL", "https://keystone.example.org:5000/v3"),
            ("TRUSTEE_USER_ID", "u"),
            ("TRUSTEE_PASSWORD", "p"),
        ];
        let desired = master(28, &asked);
        let found = arguments(&desired, UNIT);
        assert_eq!(value(&found, "authorization-mode"), Some("Node,RBAC,Webhook"));
        for name in ["authentication-token-webhook-config-file", "authorization-webhook-config-file"] {
            assert_eq!(value(&found, name), Some(KEYSTONE_CONFIG));
        }
        let text = content(&desired, KEYSTONE_CONFIG);
        assert!(
            text.contains("server: \"https://127.0.0.1:8443/webhook\"")
                && text.contains("certificate-authority: /etc/kubernetes/certs/ca.crt")
        );
        assert!(!text.contains("insecure"));
        let old = master(10, &asked);
        assert!(file(&old, KEYSTONE_CONFIG).is_none());
        assert_eq!(value(&arguments(&old, UNIT), "authorization-mode"), Some("Node,RBAC"));
    }

    #[test]
    fn the_built_in_cloud_provider_runs_where_there_is_one() {
        let trustee = [
            ("AUTH_URL", "https://keystone.example.org:5000/v3"),
            ("TRUSTEE_USER_ID", "u"),
            ("TRUSTEE_PASSWORD", "p"),
            ("TRUST_ID", "t"),
        ];
        for (minor, external, expected) in [
            (5, "", Some("openstack")),
            (25, "", Some("openstack")),
            (26, "", None),
            (5, "true", Some("openstack")),
            (9, "false", None),
            (11, "true", None),
            (28, "true", None),
        ] {
            let changes: Vec<_> = trustee.iter().copied().chain([("CLOUD_PROVIDER_ENABLED", external)]).collect();
            let found = of(minor, &changes);
            assert_eq!(value(&found, "cloud-provider"), expected, "{minor} {external}");
            assert_eq!(value(&found, "cloud-config"), expected.map(|_| CLOUD_CONFIG), "{minor} {external}");
        }
        let creator = [("AUTH_URL", "https://k.example.org/v3"), ("USERNAME", "u"), ("PASSWORD", "p"), ("TENANT_NAME", "t")];
        assert_eq!(value(&of(2, &creator), "cloud-provider"), None);
    }

    #[test]
    fn an_ipv6_master_serves_on_every_address() {
        let found = of(
            28,
            &[
                ("KUBE_NODE_IP", "2001:db8::11"),
                ("PORTAL_NETWORK_CIDR", "2001:db8:1::/112"),
                ("DNS_SERVICE_IP", ""),
                ("PODS_NETWORK_CIDR", "2001:db8:2::/56"),
            ],
        );
        assert_eq!(value(&found, "bind-address"), Some("::"));
        assert_eq!(value(&found, "advertise-address"), Some("2001:db8::11"));
    }

    #[test]
    fn root_alone_reads_the_administrators_kubeconfig() {
        for minor in MINORS {
            let desired = master(minor, &[]);
            let file = file(&desired, ADMIN_CONFIG).unwrap();
            assert_eq!(file.mode, 0o600);
            assert!(
                file.content.contains("server: \"https://127.0.0.1:6443\"")
                    && file.content.contains("client-key: /etc/kubernetes/certs/admin.key")
            );
        }
    }
}
