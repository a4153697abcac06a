//! kube-proxy on every node.
//!
//! kube-proxy reads either its configuration file or its flags (magnum-node.md 5.5). So the file is for nodes without
//! KUBEPROXY_OPTIONS; with them everything stands on the command line, where users' flags count.

use serde_json::json;

use super::certificates::{AUTHORITY, PROXY};
use super::cluster::{CertificateSource, ClusterSpec, Facts};
use super::daemon::{Daemon, Variables, ok_gate};
use super::kubeconfig::{self, Identity};
use super::kubelet::OWN_CERTIFICATE;
use super::node_spec::NodeSpec;
use super::settings::Settings;
use super::versions::{Component, ConfigKind};
use crate::desired::{Desired, File};

const UNIT: &str = "kube-proxy.service";
const CONFIGURATION: &str = "/etc/kubernetes/proxy-configuration.yaml";
const KUBECONFIG: &str = "/etc/kubernetes/proxy.kubeconfig";
/// In every version it says there that it lives; 10256, which says that it keeps up with the API, came with 1.7.
const METRICS_PORT: u16 = 10_249;

/// The variables of distributions' units (magnum-node.md 1.0). Its kubeconfig names the API, so KUBE_MASTER is not asked.
const VARIABLES: Variables = &[("KUBE_LOGTOSTDERR", &[]), ("KUBE_LOG_LEVEL", &[])];

/// Adds its part.
pub(super) fn add(spec: &NodeSpec, cluster: &ClusterSpec, _facts: &Facts, desired: &mut Desired) {
    let settings = settings(cluster);
    let mut daemon = Daemon::new(UNIT, "kube-proxy", "/etc/kubernetes/proxy");
    let identity = match cluster.certificates {
        _ if !cluster.tls => Identity::Nobody,
        // It has no certificate of its own then: the cluster binds its nodes to the role system:node-proxier.
        CertificateSource::Bootstrap => Identity::Certificate { certificate: OWN_CERTIFICATE, key: OWN_CERTIFICATE },
        _ => Identity::Certificate { certificate: PROXY.certificate, key: PROXY.key },
    };
    let authority = cluster.tls.then_some(AUTHORITY);
    desired.files.push(kubeconfig::file(KUBECONFIG, &cluster.server(spec.role), authority, "kube-proxy", &identity));
    daemon.restart_on.push(KUBECONFIG.to_owned());
    if let Some(document) = settings.document() {
        desired.files.push(File::public(CONFIGURATION, document));
        daemon.restart_on.push(CONFIGURATION.to_owned());
    }
    daemon.take(&settings.flags, cluster, spec.role, VARIABLES, "KUBE_PROXY_ARGS");
    daemon.service_lines.push_str("User=root\n");
    daemon.add(desired);
    // Where a user put it elsewhere, nothing is known of its health but that it runs.
    if !["metrics-bind-address", "metrics-port", "config"]
        .iter()
        .any(|flag| settings.flags.value(flag).is_some_and(|value| value != METRICS && value != CONFIGURATION))
    {
        desired.gates.push(ok_gate("kube-proxy", UNIT, format!("http://127.0.0.1:{METRICS_PORT}/healthz"), None, 2));
    }
}

const METRICS: &str = "127.0.0.1:10249";

fn settings(cluster: &ClusterSpec) -> Settings {
    let options = &cluster.options.proxy;
    let mut settings = Settings::new(Component::Proxy, ConfigKind::Proxy, cluster.minor, !options.is_empty());
    settings.set("clientConnection.kubeconfig", "kubeconfig", json!(KUBECONFIG));
    settings.set("clusterCIDR", "cluster-cidr", json!(cluster.networks.pods.to_string()));
    // The node's name, else its own endpoints are not known as local (magnum-node.md 7.5 no. 57).
    if let Some(name) = &cluster.node_name {
        settings.set("hostnameOverride", "hostname-override", json!(name));
    }
    settings.set("metricsBindAddress", "metrics-bind-address", json!(METRICS));
    if settings.document().is_some() {
        settings.flags.set("config", CONFIGURATION);
    }
    // What is wrong with them was said when the parameters were read.
    settings.flags.options(options);
    settings
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{MINORS, arguments, asked, content, file, node, value};
    use super::*;

    fn worker(minor: u16, changes: &[(&str, &str)]) -> Desired {
        let tag = format!("v1.{minor}.3");
        let driver = if minor < 5 { "cgroupfs" } else { "systemd" };
        let base = [
            ("KUBE_TAG", tag.as_str()),
            ("ROLE", "minion"),
            ("CGROUP_DRIVER", driver),
            ("CERTIFICATES", "given"),
            ("KUBE_MASTER_IP", "192.0.2.5"),
        ];
        node(&base.into_iter().chain(changes.iter().copied()).collect::<Vec<_>>())
    }

    // magnum-node.md 7.5 no. 57; 5.5
    #[test]
    fn a_file_or_flags_but_never_both() {
        for minor in MINORS.into_iter().filter(|minor| *minor >= 2) {
            for (options, flags) in [("", minor <= 8), ("--masquerade-all=true", true)] {
                let desired = worker(minor, &[("KUBEPROXY_OPTIONS", options)]);
                let words = arguments(&desired, UNIT);
                assert_eq!(file(&desired, CONFIGURATION).is_some(), !flags, "1.{minor}");
                if flags {
                    assert_eq!(value(&words, "hostname-override"), Some("blue-master-0"), "1.{minor}");
                    assert_eq!(value(&words, "kubeconfig"), Some(KUBECONFIG), "1.{minor}");
                    assert_eq!(value(&words, "cluster-cidr"), (minor >= 3).then_some("10.100.0.0/16"), "1.{minor}");
                    assert_eq!(value(&words, "config"), None);
                } else {
                    let config = content(&desired, CONFIGURATION);
                    for expected in [
                        "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n",
                        "clientConnection:\n  kubeconfig: /etc/kubernetes/proxy.kubeconfig\n",
                        "clusterCIDR: \"10.100.0.0/16\"\n",
                        "hostnameOverride: blue-master-0\n",
                        "metricsBindAddress: \"127.0.0.1:10249\"\n",
                    ] {
                        assert!(config.contains(expected), "1.{minor} {expected}: {config}");
                    }
                    let own: Vec<_> =
                        words.iter().filter(|word| !word.starts_with("--v=") && !word.starts_with("--logtostderr")).collect();
                    assert_eq!(own, ["--config=/etc/kubernetes/proxy-configuration.yaml"], "1.{minor}");
                }
                assert_eq!(asked(&desired, "kube-proxy"), Some("http://127.0.0.1:10249/healthz"));
            }
        }
        assert_eq!(asked(&worker(28, &[("KUBEPROXY_OPTIONS", "--metrics-bind-address=192.0.2.11:9")]), "kube-proxy"), None);
        // The version's own mode, unless it is asked for.
        assert!(!content(&worker(31, &[]), CONFIGURATION).contains("mode"));
    }

    #[test]
    fn who_it_is_follows_the_certificates() {
        for (changes, expected) in [
            (&[][..], "client-certificate: /etc/kubernetes/certs/proxy.crt\n"),
            (&[("CERTIFICATES", "bootstrap")], "client-certificate: /var/lib/kubelet/pki/kubelet-client-current.pem\n"),
        ] {
            let desired = worker(28, changes);
            let kubeconfig = content(&desired, KUBECONFIG);
            assert!(kubeconfig.contains(expected) && kubeconfig.contains("server: \"https://192.0.2.5:6443\"\n"), "{kubeconfig}");
        }
        let open = worker(9, &[("TLS_DISABLED", "True"), ("CERTIFICATES", ""), ("KUBE_API_PORT", "8080")]);
        let kubeconfig = content(&open, KUBECONFIG);
        assert!(
            kubeconfig.contains("server: \"http://192.0.2.5:8080\"\n") && !kubeconfig.contains("certificate"),
            "{kubeconfig}"
        );
    }
}
