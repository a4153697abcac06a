//! kube-proxy on every node.
//!
//! kube-proxy reads either its configuration file or its flags (magnum-node.md 5.5). So the file is for nodes without
//! KUBEPROXY_OPTIONS; with them everything stands on the command line, where users' flags count.

use serde_json::json;

use super::kubelet::{self, OWN_CERTIFICATE};
use crate::desired::{Dependency, Desired, File};
use crate::kubernetes::parameters::mistake::Mistake;
use crate::kubernetes::parts::certificates::{CLUSTER_CA, PROXY};
use crate::kubernetes::parts::daemon::{Daemon, ProbeIdentity, Variables, deadline, ok_gate};
use crate::kubernetes::parts::settings::Settings;
use crate::kubernetes::spec::cluster::{ClusterSpec, MachineFacts};
use crate::kubernetes::spec::node::NodeSpec;
use crate::kubernetes::spec::words::CertificateSource;
use crate::kubernetes::spec::words::Role;
use crate::kubernetes::text::kubeconfig::{self, Identity};
use crate::kubernetes::versions::{Component, ConfigKind, Minor, option};

pub(in crate::kubernetes) const UNIT: &str = "kube-proxy.service";
const CONFIGURATION: &str = "/etc/kubernetes/proxy-configuration.yaml";
const KUBECONFIG: &str = "/etc/kubernetes/proxy.kubeconfig";
/// Every version answers there that it is alive. Port 10256, where it says whether it keeps up with the API, exists from 1.7 on.
const METRICS_PORT: u16 = 10_249;

/// The first minor that takes its node's address from `--bind-address`, where it is a single one.
const FIRST_WITH_OWN_ADDRESS: u16 = 9;

/// The variables of distributions' units (magnum-node.md 1.0). Its kubeconfig names the API, so KUBE_MASTER is not asked.
const VARIABLES: Variables = &[("KUBE_LOGTOSTDERR", &[]), ("KUBE_LOG_LEVEL", &[])];

/// Its part of the node.
pub(in crate::kubernetes) fn part(spec: &NodeSpec, cluster: &ClusterSpec, facts: &MachineFacts) -> Desired {
    let mut part = Desired::default();
    let settings = settings(spec, cluster);
    let mut daemon = Daemon::new(UNIT, facts.program(cluster, Component::Proxy), "/etc/kubernetes/proxy");
    let identity = match cluster.certificates {
        _ if !cluster.tls => Identity::Nobody,
        // It has no certificate of its own then: the cluster binds its nodes to the role system:node-proxier.
        CertificateSource::Bootstrap => Identity::Certificate { certificate: OWN_CERTIFICATE, key: OWN_CERTIFICATE },
        _ => Identity::Certificate { certificate: PROXY.certificate, key: PROXY.key },
    };
    let ca = cluster.tls.then_some(CLUSTER_CA);
    part.files.push(kubeconfig::file(KUBECONFIG, &cluster.server_of_node(spec.role), ca, "kube-proxy", &identity));
    daemon.restart_on.push(KUBECONFIG.to_owned());
    if let Some(document) = settings.document() {
        part.files.push(File::public(CONFIGURATION, document));
        daemon.restart_on.push(CONFIGURATION.to_owned());
    }
    daemon.take(&settings.flags, cluster, VARIABLES, "KUBE_PROXY_ARGS");
    // It looks for its node when it starts, and by the certificate of a kubelet that joined by a token: both are there once the kubelet
    // has registered. At a boot they are there already.
    daemon.after.push(kubelet::UNIT);
    if kubelet::registers(spec, cluster, facts) {
        daemon.needs.insert(Dependency::Gate(kubelet::REGISTRATION.to_owned()));
    }
    daemon.service_lines.push_str("User=root\n");
    daemon.add(&mut part);
    // Where a user put it elsewhere, nothing is known of its health but that it runs.
    if !["metrics-bind-address", "metrics-port", "config"]
        .iter()
        .any(|flag| settings.flags.value(flag).is_some_and(|value| value != METRICS && value != CONFIGURATION))
    {
        let url = format!("http://127.0.0.1:{METRICS_PORT}/healthz");
        let mut gate = ok_gate("kube-proxy", UNIT, url, ProbeIdentity::Nobody(None), None);
        // It does not serve before the API told it of its node (in newer releases, and where it takes pods' addresses from there).
        if spec.role == Role::Master {
            gate.deadline = Some(deadline::SERVICE);
            gate.needs.insert(Dependency::Gate(crate::kubernetes::parts::api_server::GATE.to_owned()));
        }
        part.gates.push(gate);
    }
    part
}

const METRICS: &str = "127.0.0.1:10249";

/// What mode ipvs and its schedulers need; nf_conntrack comes with the first.
pub(in crate::kubernetes) const IPVS_MODULES: &[&str] = &["ip_vs", "ip_vs_rr", "ip_vs_wrr", "ip_vs_sh"];
/// What mode nftables needs.
pub(in crate::kubernetes) const NFTABLES_MODULES: &[&str] = &["nf_tables"];
/// The first kernel that mode nftables works on (Kubernetes' reference of virtual IPs, 1.29: "kernel 5.13 or later").
const FIRST_KERNEL_WITH_NFTABLES: (u16, u16) = (5, 13);

/// A way of balancing.
struct Mode {
    name: &'static str,
    /// First and last minor that have it (magnum-node.md 5.5).
    minors: (u16, u16),
    /// Minors in which it is behind a feature gate that is off by default, and the name of that gate.
    gated: Option<(u16, u16, &'static str)>,
}

/// Evidence: magnum-node.md 5.5; the gates are those of Kubernetes' table of feature gates.
const MODES: [Mode; 4] = [
    Mode { name: "userspace", minors: (0, 25), gated: None },
    Mode { name: "iptables", minors: (1, u16::MAX), gated: None },
    Mode { name: "ipvs", minors: (8, u16::MAX), gated: Some((8, 10, "SupportIPVSProxyMode")) },
    Mode { name: "nftables", minors: (29, u16::MAX), gated: Some((29, 30, "NFTablesProxyMode")) },
];

/// The feature gate of Kubernetes that has to be switched on for a mode.
fn feature_gate(cluster: &ClusterSpec) -> Option<&'static str> {
    let asked = cluster.proxy_mode.as_deref()?;
    let mode = MODES.iter().find(|mode| mode.name == asked)?;
    mode.gated.filter(|(first, last, _)| (*first..=*last).contains(&cluster.minor.number())).map(|(_, _, gate)| gate)
}

/// The mode that is asked for, by whichever parameter.
pub(in crate::kubernetes) fn mode(cluster: &ClusterSpec) -> Option<String> {
    option(&cluster.options.proxy, "proxy-mode").or_else(|| cluster.proxy_mode.clone())
}

/// What is wrong with the mode, whatever the machine is and whichever parameter asks for it.
pub(in crate::kubernetes) fn check(cluster: &ClusterSpec, mistakes: &mut Vec<Mistake>) {
    let minor = cluster.minor;
    // A value that stops the minor is refused with its own rule.
    if let Some(asked) = option(&cluster.options.proxy, "proxy-mode").filter(|asked| !asked.is_empty() && asked != "userspace")
        && let Some((rule, known)) = unsupported(&asked, minor)
    {
        let who = if known { minor.to_string() } else { "no version".to_owned() };
        let verb = if known { "does not support" } else { "supports" };
        let problem = format!("--proxy-mode is {asked}, which {who} {verb}");
        mistakes.push(Mistake::general("KUBEPROXY_OPTIONS", problem, rule, "give another mode, or none"));
    }
    let Some(asked) = &cluster.proxy_mode else { return };
    let mut wrong = |problem: String, rule: String, remedy: &str| {
        mistakes.push(Mistake::general("PROXY_MODE", problem, rule, remedy));
    };
    if let Some((rule, _)) = unsupported(asked, minor) {
        wrong(format!("{asked} is not supported by {minor}"), rule, "give another mode, or none");
    }
    if option(&cluster.options.proxy, "proxy-mode").is_some() {
        let rule = "kube-proxy has only one mode".to_owned();
        wrong("is given together with --proxy-mode in KUBEPROXY_OPTIONS".to_owned(), rule, "remove one of them");
    }
    if let (Some(gate), Some(given)) = (feature_gate(cluster), option(&cluster.options.proxy, "feature-gates"))
        && !given.contains(gate)
    {
        let rule = format!("in {minor} it needs the feature gate {gate}, and KUBEPROXY_OPTIONS sets the feature gates");
        wrong(format!("is {asked}"), rule, "add the feature gate there");
    }
}

/// The rule by which a minor does not have a mode, and whether another minor has it.
fn unsupported(asked: &str, minor: Minor) -> Option<(String, bool)> {
    let Some(Mode { minors: (first, last), .. }) = MODES.iter().find(|mode| mode.name == asked) else {
        return Some((format!("one of {}", MODES.map(|mode| mode.name).join(", ")), false));
    };
    match minor.number() {
        number if number < *first => Some((format!("kube-proxy has it since 1.{first}"), true)),
        number if number > *last => Some((format!("kube-proxy had it up to 1.{last}"), true)),
        _ => None,
    }
}

/// What the running kernel lacks for the mode; nothing where it is not known. kube-proxy would fall back to another mode without
/// a word, or end.
pub(in crate::kubernetes) fn lacking(cluster: &ClusterSpec, facts: &MachineFacts) -> Vec<Mistake> {
    let Some(mode) = mode(cluster) else { return Vec::new() };
    let needed = match mode.as_str() {
        "ipvs" => IPVS_MODULES,
        "nftables" => NFTABLES_MODULES,
        _ => return Vec::new(),
    };
    let name = if cluster.proxy_mode.is_some() { "PROXY_MODE" } else { "KUBEPROXY_OPTIONS" };
    let refused = |problem: String, rule: String| Mistake::general(name, problem, rule, "give another mode, or another kernel");
    let mut mistakes = Vec::new();
    let missing: Vec<&str> = needed.iter().copied().filter(|module| facts.lacking_modules.contains(module)).collect();
    if !missing.is_empty() {
        let rule = format!("mode {mode} needs the modules {}", needed.join(", "));
        mistakes.push(refused(format!("selects {mode}, but the kernel lacks {}", missing.join(", ")), rule));
    }
    let (first, second) = FIRST_KERNEL_WITH_NFTABLES;
    if let Some(kernel) = facts.kernel.filter(|kernel| mode == "nftables" && *kernel < FIRST_KERNEL_WITH_NFTABLES) {
        let rule = format!("mode nftables needs Linux {first}.{second} or later");
        mistakes.push(refused(format!("selects {mode}, but the kernel is Linux {}.{}", kernel.0, kernel.1), rule));
    }
    mistakes
}

fn settings(spec: &NodeSpec, cluster: &ClusterSpec) -> Settings {
    let options = &cluster.options.proxy;
    let mut settings = Settings::new(Component::Proxy, ConfigKind::Proxy, cluster.minor, !options.is_empty());
    settings.set("clientConnection.kubeconfig", "kubeconfig", json!(KUBECONFIG));
    settings.set("clusterCIDR", "cluster-cidr", json!(cluster.networks.pods.to_string()));
    // The node's name, else its own endpoints are not known as local (magnum-node.md 7.5 no. 57).
    if let Some(name) = &cluster.node_name {
        settings.set("hostnameOverride", "hostname-override", json!(name));
    }
    // Else it takes its node's address from the API, and 127.0.0.1 for good where that does not answer for half a minute, as when all
    // nodes boot at once. It opens no port there but in mode userspace.
    if let Some(address) =
        spec.address.filter(|_| cluster.minor.number() >= FIRST_WITH_OWN_ADDRESS && mode(cluster).as_deref() != Some("userspace"))
    {
        settings.set("bindAddress", "bind-address", json!(address.to_string()));
    }
    settings.set("metricsBindAddress", "metrics-bind-address", json!(METRICS));
    if let Some(mode) = &cluster.proxy_mode {
        settings.set("mode", "proxy-mode", json!(mode));
    }
    if let Some(gate) = feature_gate(cluster) {
        settings.set("featureGates", "feature-gates", json!({gate: true}));
    }
    if settings.document().is_some() {
        settings.flags.set("config", CONFIGURATION);
    }
    // What is wrong with them was said when the parameters were read.
    settings.flags.add_user_options(options);
    settings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubernetes::fixtures::{MINORS, arguments, asked, content, file, node, value};

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
                        "bindAddress: \"192.0.2.11\"\n",
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

    /// magnum-node.md 5.5: each mode stands where the minor reads it, with its gate where it is behind one.
    #[test]
    fn the_mode_stands_where_the_minor_reads_it() {
        for (minor, mode, flag, gate) in [
            (2, "userspace", true, None),
            (8, "ipvs", true, Some("SupportIPVSProxyMode")),
            (9, "ipvs", false, Some("SupportIPVSProxyMode")),
            (11, "ipvs", false, None),
            (29, "nftables", false, Some("NFTablesProxyMode")),
            (31, "nftables", false, None),
        ] {
            let desired = worker(minor, &[("PROXY_MODE", mode)]);
            if flag {
                let words = arguments(&desired, UNIT);
                assert_eq!(value(&words, "proxy-mode"), Some(mode), "1.{minor}");
                assert_eq!(value(&words, "feature-gates"), gate.map(|gate| format!("{gate}=true")).as_deref(), "1.{minor}");
            } else {
                let config = content(&desired, CONFIGURATION);
                assert!(config.contains(&format!("mode: {mode}\n")), "1.{minor} {config}");
                let open = gate.map(|gate| format!("featureGates:\n  {gate}: true\n"));
                assert_eq!(config.contains("featureGates"), gate.is_some(), "1.{minor} {config}");
                assert!(open.is_none_or(|open| config.contains(&open)), "1.{minor} {config}");
            }
        }
    }

    /// It assumes 127.0.0.1 for a node that it does not find, and keeps that.
    #[test]
    fn it_starts_once_its_node_is_registered_and_knows_its_address_by_itself() {
        let needs = |desired: &Desired| {
            let unit = desired.units.iter().find(|unit| unit.name == UNIT).unwrap();
            unit.needs.contains(&Dependency::Gate("registration".to_owned()))
        };
        for (minor, changes, waits, address) in [
            (20, &[][..], true, Some("192.0.2.11")),
            (20, &[("CERTIFICATES", "bootstrap")], true, Some("192.0.2.11")),
            (20, &[("KUBELET_OPTIONS", "--register-node=false")], false, Some("192.0.2.11")),
            (20, &[("PROXY_MODE", "userspace")], true, None),
            (20, &[("KUBE_NODE_IP", "")], true, None),
            (8, &[], true, None),
        ] {
            for options in [&[][..], &[("KUBEPROXY_OPTIONS", "--v=2")]] {
                let desired = worker(minor, &[changes, options].concat());
                assert_eq!(needs(&desired), waits, "1.{minor} {changes:?}");
                let words = arguments(&desired, UNIT);
                let found = value(&words, "bind-address").map(str::to_owned);
                let in_file = file(&desired, CONFIGURATION).and_then(|file| {
                    file.content.lines().find_map(|line| Some(line.strip_prefix("bindAddress: ")?.trim_matches('"').to_owned()))
                });
                assert_eq!(found.or(in_file).as_deref(), address, "1.{minor} {changes:?} {options:?}");
                let drop_in = content(&desired, "/etc/systemd/system/kube-proxy.service.d/50-heat-node-agent.conf");
                assert!(drop_in.contains("\nAfter=kubelet.service\n"), "{drop_in}");
            }
        }
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
