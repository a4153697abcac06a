use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

fn known(component: Component, minor: u16, name: &str) -> bool {
    flag(component, Minor(minor), name) == Availability::Known
}

fn removed(component: Component, minor: u16, name: &str) -> Option<(u16, &'static str)> {
    match flag(component, Minor(minor), name) {
        Availability::Removed { last, instead } => Some((last.0, instead)),
        _ => None,
    }
}

#[test]
fn a_tag_has_a_minor_whatever_comes_after_it() {
    for (tag, expected) in [
        ("v1.28.9", Some(28)),
        ("1.31", Some(31)),
        ("v1.23.3-rancher1", Some(23)),
        ("v1.2.0", Some(2)),
        ("v1.30.0+k3s1", Some(30)),
        ("v1.9-alpha", Some(9)),
        ("v2.0.0", None),
        ("v1.", None),
        ("v1.x", None),
        ("v1.2x", None),
        ("latest", None),
        ("v1.99999999", None),
        ("v1.-3", None),
        ("", None),
    ] {
        assert_eq!(Minor::of_tag(tag).map(Minor::number), expected, "{tag}");
    }
    assert_eq!(Minor::of_tag("v1.28.9").map(|minor| minor.to_string()).as_deref(), Some("1.28"));
}

const NEWEST: u16 = Minor::NEWEST.0;

/// The tables of magnum-node.md 5.1 to 5.5, a row each: the first minor that has a flag (2: before the oldest list),
/// the last (`NEWEST`: still there), and the beginning of what to use instead.
const NOTED: &[(Component, &str, u16, u16, &str)] = &[
    (Component::Kubelet, "api-servers", 2, 7, "--kubeconfig"),
    (Component::Kubelet, "require-kubeconfig", 4, 9, "nothing"),
    (Component::Kubelet, "kubeconfig", 2, NEWEST, ""),
    (Component::Kubelet, "pod-manifest-path", 4, NEWEST, ""),
    (Component::Kubelet, "cadvisor-port", 2, 11, ""),
    (Component::Kubelet, "allow-privileged", 2, 14, "nothing"),
    (Component::Kubelet, "register-node", 2, NEWEST, ""),
    (Component::Kubelet, "register-schedulable", 2, 33, "--register-with-taints"),
    (Component::Kubelet, "register-with-taints", 6, NEWEST, ""),
    (Component::Kubelet, "hostname-override", 2, NEWEST, ""),
    (Component::Kubelet, "node-ip", 2, NEWEST, ""),
    (Component::Kubelet, "address", 2, NEWEST, ""),
    (Component::Kubelet, "port", 2, NEWEST, ""),
    (Component::Kubelet, "read-only-port", 2, NEWEST, ""),
    (Component::Kubelet, "cluster-dns", 2, NEWEST, ""),
    (Component::Kubelet, "cluster-domain", 2, NEWEST, ""),
    (Component::Kubelet, "resolv-conf", 2, NEWEST, ""),
    (Component::Kubelet, "volume-plugin-dir", 2, NEWEST, ""),
    (Component::Kubelet, "node-labels", 2, NEWEST, ""),
    (Component::Kubelet, "pod-infra-container-image", 2, 34, "the runtime's own"),
    (Component::Kubelet, "cgroup-driver", 5, NEWEST, ""),
    (Component::Kubelet, "runtime-cgroups", 2, NEWEST, ""),
    (Component::Kubelet, "runtime-request-timeout", 3, NEWEST, ""),
    (Component::Kubelet, "container-runtime", 2, 26, "--container-runtime-endpoint"),
    (Component::Kubelet, "container-runtime-endpoint", 4, NEWEST, ""),
    (Component::Kubelet, "network-plugin", 2, 23, "the runtime's CNI"),
    (Component::Kubelet, "cni-conf-dir", 4, 23, "the runtime's CNI"),
    (Component::Kubelet, "cni-bin-dir", 4, 23, "the runtime's CNI"),
    (Component::Kubelet, "network-plugin-dir", 2, 8, "--cni-bin-dir"),
    (Component::Kubelet, "docker-endpoint", 2, 23, "cri-dockerd"),
    (Component::Kubelet, "configure-cbr0", 2, 4, "--network-plugin"),
    (Component::Kubelet, "non-masquerade-cidr", 2, 23, "the runtime's CNI"),
    (Component::Kubelet, "client-ca-file", 5, NEWEST, ""),
    (Component::Kubelet, "anonymous-auth", 5, NEWEST, ""),
    (Component::Kubelet, "authorization-mode", 5, NEWEST, ""),
    (Component::Kubelet, "authentication-token-webhook", 5, NEWEST, ""),
    (Component::Kubelet, "tls-cert-file", 2, NEWEST, ""),
    (Component::Kubelet, "tls-private-key-file", 2, NEWEST, ""),
    (Component::Kubelet, "fail-swap-on", 8, NEWEST, ""),
    (Component::Kubelet, "cloud-provider", 2, NEWEST, ""),
    (Component::Kubelet, "cloud-config", 2, 33, "the external cloud"),
    (Component::Kubelet, "bootstrap-kubeconfig", 7, NEWEST, ""),
    (Component::Kubelet, "rotate-certificates", 8, NEWEST, ""),
    (Component::Kubelet, "keep-terminated-pod-volumes", 6, 30, ""),
    (Component::Kubelet, "dynamic-config-dir", 8, 23, "--config"),
    (Component::Kubelet, "runonce", 2, 31, ""),
    (Component::ApiServer, "insecure-bind-address", 2, 23, "--bind-address"),
    (Component::ApiServer, "insecure-port", 2, 23, "--secure-port"),
    (Component::ApiServer, "bind-address", 2, NEWEST, ""),
    (Component::ApiServer, "secure-port", 2, NEWEST, ""),
    (Component::ApiServer, "advertise-address", 2, NEWEST, ""),
    (Component::ApiServer, "service-cluster-ip-range", 2, NEWEST, ""),
    (Component::ApiServer, "portal-net", 2, 8, "--service-cluster-ip-range"),
    (Component::ApiServer, "public-address-override", 2, 9, "--advertise-address"),
    (Component::ApiServer, "etcd-servers", 2, NEWEST, ""),
    (Component::ApiServer, "etcd-cafile", 3, NEWEST, ""),
    (Component::ApiServer, "etcd-certfile", 3, NEWEST, ""),
    (Component::ApiServer, "etcd-keyfile", 3, NEWEST, ""),
    (Component::ApiServer, "etcd-quorum-read", 2, 12, "nothing"),
    (Component::ApiServer, "storage-backend", 3, NEWEST, ""),
    (Component::ApiServer, "admission-control", 2, NEWEST, ""),
    (Component::ApiServer, "enable-admission-plugins", 10, NEWEST, ""),
    (Component::ApiServer, "disable-admission-plugins", 10, NEWEST, ""),
    (Component::ApiServer, "allow-privileged", 2, NEWEST, ""),
    (Component::ApiServer, "runtime-config", 2, NEWEST, ""),
    (Component::ApiServer, "client-ca-file", 2, NEWEST, ""),
    (Component::ApiServer, "tls-ca-file", 5, 10, "--tls-cert-file"),
    (Component::ApiServer, "kubelet-https", 2, 21, "nothing"),
    (Component::ApiServer, "kubelet-certificate-authority", 2, NEWEST, ""),
    (Component::ApiServer, "kubelet-client-certificate", 2, NEWEST, ""),
    (Component::ApiServer, "kubelet-client-key", 2, NEWEST, ""),
    (Component::ApiServer, "kubelet-preferred-address-types", 5, NEWEST, ""),
    (Component::ApiServer, "authorization-mode", 2, NEWEST, ""),
    (Component::ApiServer, "authorization-config", 29, NEWEST, ""),
    (Component::ApiServer, "authorization-webhook-config-file", 2, NEWEST, ""),
    (Component::ApiServer, "authentication-token-webhook-config-file", 3, NEWEST, ""),
    (Component::ApiServer, "experimental-keystone-url", 2, 9, "--authentication-token-webhook"),
    (Component::ApiServer, "service-account-key-file", 2, NEWEST, ""),
    (Component::ApiServer, "service-account-issuer", 10, NEWEST, ""),
    (Component::ApiServer, "service-account-signing-key-file", 10, NEWEST, ""),
    (Component::ApiServer, "proxy-client-cert-file", 7, NEWEST, ""),
    (Component::ApiServer, "proxy-client-key-file", 7, NEWEST, ""),
    (Component::ApiServer, "cloud-provider", 2, 32, "the external cloud"),
    (Component::ApiServer, "cloud-config", 2, 32, "the external cloud"),
    (Component::ApiServer, "basic-auth-file", 2, 18, "--token-auth-file"),
    (Component::ApiServer, "master-service-namespace", 2, 26, ""),
    (Component::ControllerManager, "master", 2, NEWEST, ""),
    (Component::ControllerManager, "kubeconfig", 2, NEWEST, ""),
    (Component::ControllerManager, "leader-elect", 2, NEWEST, ""),
    (Component::ControllerManager, "cluster-name", 2, NEWEST, ""),
    (Component::ControllerManager, "cluster-cidr", 2, NEWEST, ""),
    (Component::ControllerManager, "allocate-node-cidrs", 2, NEWEST, ""),
    (Component::ControllerManager, "service-cluster-ip-range", 3, NEWEST, ""),
    (Component::ControllerManager, "node-cidr-mask-size", 3, NEWEST, ""),
    (Component::ControllerManager, "service-account-private-key-file", 2, NEWEST, ""),
    (Component::ControllerManager, "root-ca-file", 2, NEWEST, ""),
    (Component::ControllerManager, "use-service-account-credentials", 5, NEWEST, ""),
    (Component::ControllerManager, "cluster-signing-cert-file", 4, NEWEST, ""),
    (Component::ControllerManager, "cluster-signing-key-file", 4, NEWEST, ""),
    (Component::ControllerManager, "experimental-cluster-signing-duration", 7, 24, "--cluster-signing-duration"),
    (Component::ControllerManager, "cluster-signing-duration", 19, NEWEST, ""),
    (Component::ControllerManager, "external-cloud-volume-plugin", 10, NEWEST, ""),
    (Component::ControllerManager, "cloud-config", 2, NEWEST, ""),
    (Component::ControllerManager, "port", 2, 23, "--secure-port"),
    (Component::ControllerManager, "address", 2, 23, "--bind-address"),
    (Component::ControllerManager, "pod-eviction-timeout", 2, 26, "tolerationSeconds"),
    (Component::ControllerManager, "enable-taint-manager", 6, 26, ""),
    (Component::Scheduler, "master", 2, NEWEST, ""),
    (Component::Scheduler, "kubeconfig", 2, NEWEST, ""),
    (Component::Scheduler, "leader-elect", 2, NEWEST, ""),
    (Component::Scheduler, "config", 9, NEWEST, ""),
    (Component::Scheduler, "algorithm-provider", 2, 21, "--config"),
    (Component::Scheduler, "scheduler-name", 2, 21, "--config"),
    (Component::Scheduler, "policy-config-file", 2, 22, "--config"),
    (Component::Scheduler, "port", 2, 23, "--secure-port"),
    (Component::Scheduler, "secure-port", 13, NEWEST, ""),
    (Component::Scheduler, "lock-object-name", 7, 27, "--leader-elect-resource-name"),
    (Component::Scheduler, "lock-object-namespace", 7, 27, "--leader-elect-resource-namespace"),
    (Component::Proxy, "master", 2, NEWEST, ""),
    (Component::Proxy, "kubeconfig", 2, NEWEST, ""),
    (Component::Proxy, "hostname-override", 2, NEWEST, ""),
    (Component::Proxy, "cluster-cidr", 3, NEWEST, ""),
    (Component::Proxy, "proxy-mode", 2, NEWEST, ""),
    (Component::Proxy, "config", 7, NEWEST, ""),
    (Component::Proxy, "cleanup-iptables", 2, 13, "--cleanup"),
    (Component::Proxy, "cleanup", 8, NEWEST, ""),
    (Component::Proxy, "resource-container", 2, 15, ""),
    (Component::Proxy, "conntrack-max", 2, 15, "--conntrack-max-per-core"),
    (Component::Proxy, "conntrack-max-per-core", 4, NEWEST, ""),
    (Component::Proxy, "metrics-bind-address", 8, NEWEST, ""),
    (Component::Proxy, "detect-local-mode", 18, NEWEST, ""),
];

#[test]
fn noted_changes_are_in_the_table() {
    let mut wrong = Vec::new();
    for &(component, name, first, last, instead) in NOTED {
        for minor in 2..=NEWEST {
            let found = flag(component, Minor(minor), name);
            let good = match found {
                Availability::Known => (first..=last).contains(&minor),
                Availability::NotYet { first: at } => minor < first && at.0 == first,
                Availability::Removed { last: at, instead: text } => minor > last && at.0 == last && text.starts_with(instead),
                _ => false,
            };
            if !good {
                wrong.push(format!("{component} 1.{minor} --{name}: {found:?}"));
            }
        }
    }
    assert_eq!(wrong, [""; 0]);
    for component in Component::ALL {
        assert!(known(component, 2, "logtostderr") && known(component, 25, "logtostderr"), "{component}");
        assert_eq!(removed(component, 26, "logtostderr").map(|(last, _)| last), Some(25), "{component}");
        for name in ["v", "vmodule"] {
            assert!((2..=NEWEST).all(|minor| known(component, minor, name)), "{component} --{name}");
        }
    }
    assert!((2..=NEWEST).all(|minor| flag(Component::ControllerManager, Minor(minor), "machines") == Availability::NeverThere));
}

#[test]
fn the_kubelets_config_was_a_directory_then_gone_then_a_file() {
    assert!((2..=5).all(|minor| known(Component::Kubelet, minor, "config")));
    assert!((6..=9).all(|minor| removed(Component::Kubelet, minor, "config") == Some((5, "--pod-manifest-path"))));
    assert!((10..=NEWEST).all(|minor| known(Component::Kubelet, minor, "config")));
}

#[test]
fn what_no_list_proves_to_be_gone_is_unknown() {
    // Hidden in the last real binary: no page would show it, whether it is there or not.
    assert_eq!(flag(Component::ApiServer, Minor(21), "ssh-user"), Availability::Known);
    assert_eq!(flag(Component::ApiServer, Minor(24), "ssh-user"), Availability::Unknown);
    // Kept by hand: the page drops what the kubelet may still take.
    assert_eq!(flag(Component::Kubelet, Minor(22), "docker-root"), Availability::Unknown);
    assert_eq!(flag(Component::Kubelet, Minor(28), "no-such-flag"), Availability::Unknown);
}

#[test]
fn the_last_minor_is_the_last_that_is_known_to_have_it() {
    // 1.6 takes it, of 1.7 to 1.14 nothing is known, the binary of 1.15 refuses it.
    assert_eq!(flag(Component::Kubelet, Minor(10), "babysit-daemons"), Availability::Unknown);
    assert_eq!(removed(Component::Kubelet, 15, "babysit-daemons"), Some((6, "")));
    // Known from 1.5 on, perhaps there in 1.4.
    assert_eq!(admission_plugin(Minor(3), "PodNodeSelector"), Availability::NotYet { first: Minor(5) });
    assert_eq!(admission_plugin(Minor(4), "PodNodeSelector"), Availability::Unknown);
}

#[test]
fn what_only_other_components_have_was_never_there() {
    assert_eq!(flag(Component::ApiServer, Minor(20), "cluster-dns"), Availability::NeverThere);
    assert_eq!(flag(Component::Scheduler, Minor(31), "etcd-servers"), Availability::NeverThere);
    // After the last list it may have come.
    assert_eq!(flag(Component::ApiServer, Minor(34), "cluster-dns"), Availability::Unknown);
    // A dead key is no reason to call it known elsewhere.
    assert_eq!(flag(Component::Scheduler, Minor(5), "machines"), Availability::Unknown);
}

#[test]
fn both_spellings_are_one_flag_and_before_the_oldest_list_nothing_is_checked() {
    assert_eq!(flag(Component::Kubelet, Minor(8), "api_servers"), flag(Component::Kubelet, Minor(8), "api-servers"));
    assert_eq!(flag(Component::Kubelet, Minor(8), "cluster_dns"), Availability::Known);
    assert_eq!(flag(Component::Kubelet, Minor(1), "anything"), Availability::Unchecked);
    assert_eq!(admission_plugin(Minor(1), "anything"), Availability::Unchecked);
    // A newer minor is taken for the newest.
    assert_eq!(flag(Component::Kubelet, Minor(99), "runonce"), flag(Component::Kubelet, Minor::NEWEST, "runonce"));
}

#[test]
fn fields_of_configuration_files() {
    let of = |minor, path| field(ConfigKind::Kubelet, Minor(minor), path);
    assert_eq!(of(10, "authentication.anonymous.enabled"), Availability::Known);
    assert_eq!(of(31, "KubeletConfiguration.authentication.x509.clientCAFile"), Availability::Known);
    assert_eq!(of(31, "authentication.x509.clientCaFile"), Availability::NeverThere);
    assert_eq!(of(26, "containerRuntimeEndpoint"), Availability::NotYet { first: Minor(27) });
    assert_eq!(of(27, "containerRuntimeEndpoint"), Availability::Known);
    assert_eq!(of(10, "rotateCertificates"), Availability::Unknown);
    assert_eq!(of(9, "port"), Availability::NotYet { first: Minor(10) });
    assert_eq!(of(37, "staticPodPath"), Availability::Known);
    let of = |minor, path| field(ConfigKind::Proxy, Minor(minor), path);
    assert_eq!(of(14, "conntrack.max"), Availability::Known);
    assert_eq!(of(15, "conntrack.max"), Availability::Removed { last: Minor(14), instead: "conntrack.maxPerCore" });
    assert_eq!(of(28, "nftables.syncPeriod"), Availability::NotYet { first: Minor(29) });
    assert_eq!(of(20, "clientConnection"), Availability::Known);
    assert_eq!(of(20, "clientConnection.kubeconfig"), Availability::Known);
    assert_eq!(of(20, "logging.format"), Availability::NotYet { first: Minor(28) });
    assert_eq!(of(20, "nosuch"), Availability::NeverThere);
    assert_eq!(ConfigKind::Kubelet.api_version(Minor(9)), None);
    assert_eq!(ConfigKind::Proxy.api_version(Minor(9)), Some("kubeproxy.config.k8s.io/v1alpha1"));
}

#[test]
fn admission_plugins_come_and_go() {
    for (name, first, last) in [
        ("NamespaceLifecycle", 2, NEWEST),
        ("DenyEscalatingExec", 2, 20),
        ("Initializers", 7, 13),
        ("PodSecurityPolicy", 3, 24),
        ("SecurityContextDeny", 2, 29),
        ("NodeRestriction", 7, NEWEST),
        ("StorageObjectInUseProtection", 10, NEWEST),
        ("PodSecurity", 22, NEWEST),
    ] {
        for minor in 2..=NEWEST {
            let found = admission_plugin(Minor(minor), name);
            let good = match found {
                Availability::Known => (first..=last).contains(&minor),
                Availability::NotYet { first: at } => minor < first && at.0 == first,
                Availability::Removed { last: at, .. } => minor > last && at.0 == last,
                _ => false,
            };
            assert!(good, "1.{minor} {name}: {found:?}");
        }
    }
    assert_eq!(admission_plugin(Minor(20), "MyOwn"), Availability::Unknown);
}

#[test]
fn flags_of_etcd_and_flanneld() {
    use Companion::{Etcd, Flanneld};
    for (program, minor, name, expected) in [
        (Etcd, 3, "ca-file", Some(true)),
        (Etcd, 4, "ca-file", Some(false)),
        (Etcd, 4, "listen-metrics-urls", Some(true)),
        (Etcd, 5, "listen-metrics-urls", None),
        (Etcd, 5, "enable-v2", Some(true)),
        (Etcd, 6, "enable-v2", Some(false)),
        (Etcd, 6, "discovery", Some(true)),
        (Etcd, 7, "discovery", Some(false)),
        (Etcd, 5, "discovery-token", Some(false)),
        (Etcd, 6, "discovery-token", Some(true)),
        (Etcd, 4, "no-such", None),
        (Flanneld, 7, "remote", Some(true)),
        (Flanneld, 8, "remote", None),
        (Flanneld, 9, "remote", Some(false)),
        (Flanneld, 5, "public-ip", None),
        (Flanneld, 6, "public-ip", Some(true)),
        (Flanneld, 4, "public-ip", None),
        (Flanneld, 14, "net-config-path", Some(true)),
        (Flanneld, 11, "net-config-path", Some(false)),
        (Flanneld, 20, "log_backtrace_at", Some(true)),
        (Flanneld, 20, "log-backtrace-at", None),
    ] {
        assert_eq!(companion_flag(program, minor, name), expected, "{program:?} {minor} {name}");
    }
}

#[test]
fn every_line_of_the_tables_is_understood() {
    let fields = [ConfigKind::Kubelet.table(), ConfigKind::Proxy.table(), include_str!("admission-plugins.txt")];
    let tables = Component::ALL.map(Component::table);
    let mut bytes = include_str!("instead.txt").len() + include_str!("companions.txt").len();
    for line in include_str!("companions.txt").lines() {
        let ranges = line.rsplit(' ').next().unwrap();
        assert!(ranges.split(',').all(|text| range(text).is_some()), "{line}");
    }
    for table in tables.into_iter().chain(fields) {
        bytes += table.len();
        let mut before = "";
        for line in table.lines() {
            let (name, ranges) = line.split_once(' ').unwrap();
            assert!(before < name, "{name} is not in order, or twice");
            before = name;
            if ranges == "-" {
                continue;
            }
            let mut end = 0;
            for text in ranges.split(',') {
                let (first, last, _) = range(text).unwrap_or_else(|| panic!("{line}"));
                assert!(end < first.0 && first <= last && last <= Minor::NEWEST, "{line}");
                end = last.0;
            }
        }
    }
    assert!(bytes <= 60_000, "{bytes} bytes");
    for line in include_str!("instead.txt").lines() {
        let mut words = line.splitn(3, ' ');
        let (owner, name) = (words.next().unwrap(), words.next().unwrap());
        let has = |table| row(table, name).is_some();
        let found = match owner {
            "*" => tables.into_iter().all(has),
            "admission" => has(include_str!("admission-plugins.txt")),
            "KubeletConfiguration" => has(ConfigKind::Kubelet.table()),
            "KubeProxyConfiguration" => has(ConfigKind::Proxy.table()),
            _ => Component::ALL.into_iter().any(|component| component.as_str() == owner && has(component.table())),
        };
        assert!(found && words.next().is_some_and(|text| !text.is_empty()), "{line}");
    }
}

/// The lists from which the table was made, read by themselves: what a list shows is never called gone, but for what
/// was noted to be shown in error.
#[test]
fn what_a_list_shows_is_known_in_that_minor() {
    let logging = [
        "add-dir-header",
        "alsologtostderr",
        "log-backtrace-at",
        "log-dir",
        "log-file",
        "log-file-max-size",
        "logtostderr",
        "one-output",
        "skip-headers",
        "skip-log-headers",
        "stderrthreshold",
    ];
    let mut looked_at = 0;
    for (component, matrix) in [
        (Component::ApiServer, include_str!("../../../docs/flags/kube-apiserver.matrix")),
        (Component::ControllerManager, include_str!("../../../docs/flags/kube-controller-manager.matrix")),
        (Component::Scheduler, include_str!("../../../docs/flags/kube-scheduler.matrix")),
        (Component::Kubelet, include_str!("../../../docs/flags/kubelet.matrix")),
        (Component::Proxy, include_str!("../../../docs/flags/kube-proxy.matrix")),
    ] {
        let old_pages = |minor: u16| minor == 10 || component == Component::Kubelet && (12..=14).contains(&minor);
        for line in matrix.lines().filter(|line| !line.starts_with('#')).skip(1) {
            let (cells, name) = line.split_once(' ').unwrap();
            if ["advertise-port", "network-provider", "cinder-config", "disable-hyper-internal-service", "hyper-root", "loglevel"]
                .contains(&name)
            {
                continue;
            }
            for (minor, cell) in (2..).zip(cells.chars()).filter(|(minor, cell)| *cell != '.' && !(old_pages(*minor))) {
                looked_at += 1;
                let in_error = match (component, name) {
                    // Pages that show what the component refuses (website issue 44750), or are a copy of the minor before.
                    (Component::Proxy, name) if minor >= 26 => logging.contains(&name),
                    (Component::Kubelet, "keep-terminated-pod-volumes") => minor == 31,
                    (Component::Proxy, "conntrack-max-per-core") => minor == 3,
                    // The fork was ahead of 1.2.
                    (Component::ApiServer, "etcd-cafile" | "etcd-certfile" | "etcd-keyfile")
                    | (Component::ControllerManager, "daemonset-lookup-cache-size") => minor == 2,
                    _ => false,
                };
                let found = flag(component, Minor(minor), name);
                assert_eq!(found == Availability::Known, !in_error, "{component} 1.{minor} --{name} {cell}: {found:?}");
            }
        }
    }
    assert!(looked_at > 10_000, "{looked_at}");
}

/// After the last list flags are carried forward. Pages of later minors, which took no part in that, have just these.
#[test]
fn what_was_carried_forward_is_on_later_pages() {
    // The kubelet's page is of a build without the JSON format; --runonce is still parsed, and then an error
    // (kubernetes pull request 126336).
    let json = ["log-json-info-buffer-size", "log-json-split-stream"];
    for (component, minor, page, not_on_it, in_error) in [
        (Component::Kubelet, 34, include_str!("../../../docs/flags/kubelet-1.34.txt"), &json[..], &["runonce"][..]),
        (Component::ApiServer, 35, include_str!("../../../docs/flags/kube-apiserver-1.35.txt"), &[], &[]),
    ] {
        let page: BTreeSet<_> = page.lines().filter(|line| !line.starts_with('#')).flat_map(str::split_whitespace).collect();
        assert!(page.len() > 120);
        let ours = component.table().lines().filter_map(|line| line.split_once(' ')).map(|(name, _)| name);
        let carried: BTreeSet<_> = ours.filter(|name| known(component, minor, name)).collect();
        assert_eq!(carried.difference(&page).copied().collect::<Vec<_>>(), not_on_it, "{component}");
        assert_eq!(page.difference(&carried).copied().collect::<Vec<_>>(), in_error, "{component}");
    }
}

fn kubelet(minor: u16, ours: &[(&'static str, &str)], options: &str) -> (CommandLine, Checked) {
    let mut line = CommandLine::new(Component::Kubelet, Minor(minor));
    for (name, value) in ours {
        assert!(line.set(name, *value), "{name}");
    }
    let checked = line.add_user_options(options);
    (line, checked)
}

#[test]
fn our_own_flags_are_only_those_that_the_minor_has() {
    let mut line = CommandLine::new(Component::Kubelet, Minor(24));
    assert!(line.set("node-ip", "192.0.2.7"));
    assert!(!line.set("network-plugin", "cni"));
    assert!(!line.set("no-such-flag", "x"));
    assert!(!line.set("v", "2\n--x"));
    assert!(line.set("node-ip", "192.0.2.8"));
    assert_eq!(line.words(), ["--node-ip=192.0.2.8"]);
    assert!(line.has("node_ip") && !line.has("v"));
    // Before the oldest list nothing is known, so nothing is left out.
    assert!(CommandLine::new(Component::Kubelet, Minor(1)).set("api-servers", "http://192.0.2.1:8080"));
}

#[test]
fn options_are_read_as_a_shell_would_but_nothing_is_expanded() {
    let (line, checked) = kubelet(
        28,
        &[],
        r#"--root-dir "/var/lib/a b" --node_ip='192.0.2.7' -v 4 --fail-swap-on --cert-dir=$HOME/`x` --oom-score-adj -999"#,
    );
    assert_eq!(checked, Checked::default());
    assert_eq!(
        line.words(),
        [
            "--root-dir=/var/lib/a b",
            "--node-ip=192.0.2.7",
            "--v=4",
            "--fail-swap-on=true",
            "--cert-dir=$HOME/`x`",
            "--oom-score-adj=-999"
        ]
    );
    assert_eq!(
        line.environment_value(),
        r#""--root-dir=/var/lib/a b" --node-ip=192.0.2.7 --v=4 --fail-swap-on=true --cert-dir=$HOME/`x` --oom-score-adj=-999"#
    );
    assert_eq!(kubelet(28, &[], "-v=3").0.words(), ["--v=3"]);
    assert_eq!(kubelet(28, &[], "-v3").0.words(), ["--v=3"]);
    assert_eq!(
        kubelet(28, &[], r#"--root-dir="a\"b\\c\d" --cert-dir=a\ b''"#).0.words(),
        [r#"--root-dir=a"b\c\d"#, "--cert-dir=a b"]
    );
    assert_eq!(split("  a\t'' \"\" b ").unwrap(), ["a", "", "", "b"]);
}

#[test]
fn users_win_maps_are_merged_and_lists_are_repeated() {
    let ours = [
        ("feature-gates", "NodeSwap=true,EventedPLEG=true"),
        ("node-labels", "role=master,zone=a"),
        ("eviction-hard", "memory.available<100Mi"),
        ("register-with-taints", "node-role.kubernetes.io/control-plane=:NoSchedule"),
        ("root-dir", "/var/lib/kubelet"),
        ("node-ip", "192.0.2.7"),
    ];
    let (line, checked) = kubelet(
        28,
        &ours,
        "--feature-gates=EventedPLEG=false --feature-gates MemoryQoS=true --node-labels=zone=b --eviction-hard=nodefs.available<10%,memory.available<1% \
         --register-with-taints=node-role.kubernetes.io/control-plane=x:NoSchedule,a=b:NoExecute --root-dir=/srv/kubelet --node-ip=192.0.2.7 \
         --pod-cidr=10.0.0.0/24 --pod-cidr=10.1.0.0/24",
    );
    assert_eq!(
        line.words(),
        [
            "--feature-gates=NodeSwap=true,EventedPLEG=false,MemoryQoS=true",
            "--node-labels=role=master,zone=b",
            "--eviction-hard=memory.available<1%,nodefs.available<10%",
            "--register-with-taints=node-role.kubernetes.io/control-plane=x:NoSchedule,a=b:NoExecute",
            "--root-dir=/srv/kubelet",
            "--node-ip=192.0.2.7",
            "--pod-cidr=10.0.0.0/24",
            "--pod-cidr=10.1.0.0/24"
        ]
    );
    assert_eq!(checked.mistakes, []);
    assert_eq!(checked.warnings, ["--root-dir replaces the agent's own value /var/lib/kubelet"]);
}

#[test]
fn stale_and_foreign_options_are_refused_and_unknown_ones_pass() {
    let (line, checked) = kubelet(
        26,
        &[],
        "--network-plugin=cni --config-dir=/x --etcd-servers=http://192.0.2.1 --no-such=1 --container-runtime=docker --version --v=2",
    );
    assert_eq!(line.words(), ["--no-such=1", "--v=2"]);
    let whats: Vec<_> = checked.mistakes.iter().map(|(what, _, _)| what.as_str()).collect();
    assert_eq!(
        whats,
        [
            "--network-plugin was removed: kubelet 1.23 is the last known to have it",
            "--config-dir was added in kubelet 1.28",
            "--etcd-servers is not a flag of kubelet",
            "--container-runtime=docker stops kubelet 1.26",
            "--version makes kubelet print something and exit"
        ]
    );
    assert_eq!(checked.mistakes[0].2, "instead of --network-plugin: the runtime's CNI settings");
    assert_eq!(checked.warnings, ["--no-such: it is unknown whether kubelet 1.26 has it"]);
}

#[test]
fn values_that_stop_a_component_are_refused_in_its_minors_only() {
    use Component::{ApiServer, ControllerManager, Kubelet, Proxy};
    for (component, minor, options, good) in [
        (Proxy, 7, "--cleanup-iptables", false),
        (Proxy, 28, "--cleanup", false),
        (Proxy, 28, "--cleanup=T", false),
        (Proxy, 28, "--cleanup=false", true),
        (Proxy, 29, "--init-only=true", false),
        (Kubelet, 28, "--runonce", false),
        (Kubelet, 28, "--runonce=0", true),
        (Kubelet, 20, "--really-crash-for-testing", false),
        (ApiServer, 19, "--insecure-port=8080", true),
        (ApiServer, 20, "--insecure-port=8080", false),
        (ApiServer, 20, "--insecure-port=0", true),
        (ApiServer, 19, "--secure-port=0", true),
        (ApiServer, 20, "--secure-port=0", false),
        (ApiServer, 20, "--secure-port=00", false),
        (ApiServer, 20, "--secure-port=0x0", false),
        (ApiServer, 20, "--secure-port=+0", false),
        (ApiServer, 20, "--secure-port=0x20fb", false),
        (ApiServer, 20, "--secure-port=65536", false),
        (ApiServer, 20, "--secure-port=8443", true),
        (Kubelet, 28, "--healthz-port=010248", false),
        (Kubelet, 28, "--healthz-port=0", true),
        (ApiServer, 28, r#"'--authorization-mode=Node,RBAC,"AlwaysAllow"'"#, false),
        (ApiServer, 28, r#"'--disable-admission-plugins="NodeRestriction"'"#, false),
        (ControllerManager, 28, r#"'--controllers=*,"-ttl"'"#, false),
        (ControllerManager, 28, "--controllers=*,-ttl", true),
        (ApiServer, 12, "--storage-backend=etcd2", true),
        (ApiServer, 13, "--storage-backend=etcd2", false),
        (ControllerManager, 25, "--cloud-provider=openstack", true),
        (ControllerManager, 26, "--cloud-provider=openstack", false),
        (ControllerManager, 31, "--cloud-provider=vsphere", true),
        (ControllerManager, 32, "--cloud-provider=vsphere", false),
        (ControllerManager, 32, "--cloud-provider=openstack", false),
        (ApiServer, 25, "--cloud-provider=openstack", true),
        (ApiServer, 26, "--cloud-provider=openstack", false),
        (Kubelet, 25, "--cloud-provider=openstack", true),
        (Kubelet, 26, "--cloud-provider=openstack", false),
        (ControllerManager, 32, "--cloud-provider=external", true),
        (Kubelet, 32, "--cloud-provider=", true),
        (Kubelet, 32, "--cloud-provider=aws", false),
        (Kubelet, 23, "--container-runtime=docker", true),
        (Kubelet, 24, "--container-runtime=docker", false),
        (Kubelet, 24, "--container-runtime=remote", true),
        (Proxy, 25, "--proxy-mode=userspace", true),
        (Proxy, 26, "--proxy-mode=userspace", false),
    ] {
        let mut line = CommandLine::new(component, Minor(minor));
        let checked = line.add_user_options(options);
        assert_eq!(
            (checked.mistakes.is_empty(), line.words().is_empty()),
            (good, !good),
            "{component} 1.{minor} {options}: {checked:?}"
        );
    }
}

#[test]
fn admission_plugins_in_options_are_checked_and_the_two_styles_exclude_each_other() {
    let api = |minor, ours: &[(&'static str, &str)], options: &str| {
        let mut line = CommandLine::new(Component::ApiServer, Minor(minor));
        for (name, value) in ours {
            assert!(line.set(name, *value));
        }
        let checked = line.add_user_options(options);
        (line.words(), checked)
    };
    let (words, checked) = api(25, &[], "--enable-admission-plugins=NodeRestriction,PodSecurityPolicy,MyOwn");
    assert_eq!(words, [""; 0]);
    assert_eq!(
        checked.mistakes[0].0,
        "--enable-admission-plugins: admission plugin PodSecurityPolicy was removed: 1.24 is the last known to have it"
    );
    assert_eq!(checked.mistakes[0].2, "instead of PodSecurityPolicy: PodSecurity");
    assert_eq!(checked.warnings, ["--enable-admission-plugins: it is unknown whether 1.25 has the admission plugin MyOwn"]);
    let (words, checked) = api(24, &[], "--enable-admission-plugins=NodeRestriction,PodSecurityPolicy");
    assert_eq!((words.len(), checked), (1, Checked::default()));
    let (words, checked) = api(12, &[("enable-admission-plugins", "NodeRestriction")], "--admission-control=LimitRanger");
    assert_eq!(words, ["--enable-admission-plugins=NodeRestriction"]);
    assert_eq!(checked.mistakes.len(), 1);
}

#[test]
fn feature_gates_in_options_are_checked_and_the_remedy_says_what_to_give() {
    let (line, checked) =
        kubelet(26, &[], "--feature-gates=NodeSwap=true,DynamicKubeletConfig=false,JobTrackingWithFinalizers=false");
    assert_eq!(line.words(), [""; 0]);
    let rule = "kubelet 1.26 does not start with a feature gate that it lacks or that is locked to the other value";
    let mistake = |what: &str, remedy: &str| (what.to_owned(), rule.to_owned(), remedy.to_owned());
    assert_eq!(
        checked.mistakes,
        [
            mistake(
                "--feature-gates: feature gate DynamicKubeletConfig was removed: 1.25 is the last known to have it",
                "give --feature-gates=NodeSwap=true"
            ),
            mistake(
                "--feature-gates: feature gate JobTrackingWithFinalizers cannot be false: it is locked to true since 1.26",
                "give --feature-gates=NodeSwap=true"
            ),
        ]
    );
    let (_, checked) = kubelet(26, &[], "--feature_gates DynamicKubeletConfig=false");
    assert_eq!(checked.mistakes[0].2, "remove --feature-gates");
    let (line, checked) = kubelet(25, &[], "--feature-gates=DynamicKubeletConfig=false,MyOwn=true");
    assert_eq!(line.words(), ["--feature-gates=DynamicKubeletConfig=false,MyOwn=true"]);
    assert_eq!(checked.mistakes, []);
    assert_eq!(checked.warnings.len(), 2, "{checked:?}");
}

#[test]
fn what_is_no_command_line_is_refused() {
    for (options, what) in [
        ("--v='2", "the text contains a quote that is never closed"),
        ("--v=\"2", "the text contains a quote that is never closed"),
        ("--v=\"2\\", "the text contains a quote that is never closed"),
        ("--v=2\\", "the text ends with a backslash"),
        ("--v=2\n--x=3", "the text contains a line break or another control character"),
        ("--v=\"2\n\"", "the text contains a line break or another control character"),
        ("--v='2\u{85}'", "the text contains a line break or another control character"),
        ("stray --v=2", "\"stray\" is not a flag"),
        ("--", "\"--\" is not a flag"),
        ("-", "\"-\" is not a flag"),
        ("--=x", "\"--=x\" is not a flag"),
        ("-logtostderr=x", "\"-logtostderr=x\" is not a flag"),
        ("--a/b=x", "\"--a/b=x\" is not a flag"),
        ("--ä", "\"--ä\" is not a flag"),
    ] {
        let (_, checked) = kubelet(28, &[], options);
        assert_eq!(checked.mistakes.first().map(|(what, _, _)| what.as_str()), Some(what), "{options:?}");
    }
}

/// How systemd splits the value of `$VAR` (extract_first_word() with EXTRACT_RELAX and EXTRACT_UNQUOTE): quotes of
/// either kind anywhere in a word, a backslash before any character, in quotes too.
fn as_systemd_splits(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match (c, quote) {
            ('\\', _) => word.get_or_insert_default().extend(chars.next()),
            (c, Some(open)) if c == open => quote = None,
            ('"' | '\'', None) => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (' ' | '\t' | '\n' | '\r', None) => words.extend(word.take()),
            (c, _) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

proptest! {
    #[test]
    fn whatever_the_user_writes_each_word_stays_one_flag(text in "(--[a-z]{1,9}[= ])?[ -~äß\u{a0}\u{2028}\t\n\"'\\\\$%]{0,60}", minor in 1_u16..40) {
        for component in Component::ALL {
            let mut line = CommandLine::new(component, Minor(minor));
            line.set("v", "2");
            line.add_user_options(&text);
            let value = line.environment_value();
            prop_assert_eq!(as_systemd_splits(&value), line.words());
            prop_assert!(!value.chars().any(char::is_control), "{:?}", value);
            for word in line.words() {
                let name = word.strip_prefix("--").and_then(|rest| rest.split_once('=')).map(|(name, _)| name);
                prop_assert!(name.is_some_and(|name| !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-.".contains(&b))));
            }
        }
    }

    #[test]
    fn any_value_of_ours_comes_out_as_it_went_in(value in "\\PC{0,40}|[\"'\\\\ $%=,]{0,12}") {
        let mut line = CommandLine::new(Component::Kubelet, Minor(28));
        if line.set("root-dir", value.clone()) {
            prop_assert_eq!(as_systemd_splits(&line.environment_value()), [format!("--root-dir={value}")]);
            // A shell that reads the same text sees the same word, but for what it would expand.
            prop_assert_eq!(split(&line.environment_value()).unwrap(), line.words());
        } else {
            prop_assert!(value.chars().any(char::is_control));
        }
    }

    #[test]
    fn a_word_that_is_quoted_for_a_shell_comes_back(words in prop::collection::vec("[ -~ä]{0,12}", 0..6)) {
        let quoted: Vec<_> = words.iter().map(|word| format!("'{}'", word.replace('\'', r"'\''"))).collect();
        prop_assert_eq!(split(&quoted.join(" ")).unwrap(), words);
    }
}
