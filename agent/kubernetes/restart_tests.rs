//! What a change of one parameter changes on a node in place: which files, and exactly which units are restarted for them.

use std::collections::BTreeSet;

use super::fixtures::node;
use crate::desired::{Certificate, Desired};

/// What a change of parameters comes to.
#[derive(Debug, Default)]
struct Effect {
    /// Files that are written, those of certificates too.
    changed: BTreeSet<String>,
    /// Files that only the parameters before asked for: they stay where they are.
    left: BTreeSet<String>,
    /// Units that run and are restarted, without `.service`.
    restarted: BTreeSet<String>,
    /// Units that only the new parameters ask for.
    new: BTreeSet<String>,
    /// Helpers that run again.
    helpers: BTreeSet<String>,
}

/// What a certificate says and who signs it: another one is made where this differs.
fn says(one: &Certificate) -> impl PartialEq + '_ {
    (one.signer, &one.common_name, &one.organisations, &one.names, &one.addresses, one.serves, &one.given)
}

/// As `converge::plan` compares, with the files of certificates as `converge::certificates` makes them: a new certificate keeps
/// its key.
fn effect(before: &Desired, after: &Desired) -> Effect {
    let paths = |desired: &Desired| desired.files.iter().map(|file| file.path.clone()).collect::<BTreeSet<_>>();
    let mut changed: BTreeSet<String> = after
        .files
        .iter()
        .filter(|file| before.files.iter().all(|old| old.path != file.path || old.content != file.content))
        .map(|file| file.path.clone())
        .collect();
    for one in &after.certificates {
        match before.certificates.iter().find(|old| old.path == one.path) {
            Some(old) if says(old) == says(one) => {}
            Some(_) => drop(changed.insert(one.path.clone())),
            None => changed.extend([one.path.clone(), one.key.clone()]),
        }
    }
    for one in &after.cas {
        if before.cas.iter().all(|old| old.path != one.path || old.given != one.given) {
            changed.insert(one.path.clone());
        }
    }
    let mut effect = Effect { left: paths(before).difference(&paths(after)).cloned().collect(), ..Effect::default() };
    for unit in &after.units {
        let name = unit.name.trim_end_matches(".service").to_owned();
        let reads = unit.restart_on.iter().any(|path| changed.contains(path));
        if !before.units.iter().any(|old| old.name == unit.name) {
            effect.new.insert(name);
        } else if reads && unit.applies_files {
            effect.helpers.insert(name);
        } else if reads {
            effect.restarted.insert(name);
        }
    }
    effect.changed = changed;
    effect
}

const MASTER: &[(&str, &str)] = &[("KUBE_TAG", "v1.28.9"), ("CONTAINER_RUNTIME", "containerd"), ("CONTAINERD_VERSION", "1.6.20")];
const OLD_MASTER: &[(&str, &str)] = &[("KUBE_TAG", "v1.9.6"), ("CONTAINER_RUNTIME", "docker")];
const MINION: &[(&str, &str)] = &[
    ("ROLE", "minion"),
    ("KUBE_MASTER_IP", "192.0.2.11"),
    ("KUBE_NODE_IP", "192.0.2.31"),
    ("INSTANCE_NAME", "w1"),
    ("KUBE_TAG", "v1.28.9"),
    ("CONTAINER_RUNTIME", "containerd"),
    ("CONTAINERD_VERSION", "1.6.20"),
];

const NOBODY: &str = "";
const API: &str = "kube-apiserver";
const MANAGER: &str = "kube-controller-manager";
const SCHEDULER: &str = "kube-scheduler";
const KUBELET: &str = "kubelet";
const PROXY: &str = "kube-proxy";
/// Whose certificates name the service network, the cluster's domain, or the node by all its names and addresses.
const NAMED: &str = "etcd kube-apiserver kubelet";
const WITH_SANDBOX: &str = "containerd kubelet";
/// Who reads what the components of the first releases share.
const ALL: &str = "kube-apiserver kube-controller-manager kube-proxy kube-scheduler kubelet";

/// A change, and who is restarted for it on a master of 1.28 with containerd, on a worker of the same, and on a master of 1.9 with
/// docker, where flannel is a unit.
type Row = ((&'static str, &'static str), &'static str, &'static str, &'static str);
const CHANGES: &[Row] = &[
    // What the node's programs do not read.
    (("WAIT_TIMEOUT", "601"), NOBODY, NOBODY, NOBODY),
    (("DRIFT", "repair"), NOBODY, NOBODY, NOBODY),
    (("CERTIFICATE_RENEWAL", "renew"), NOBODY, NOBODY, NOBODY),
    (("ADDONS", "coredns"), NOBODY, NOBODY, NOBODY),
    (("COREDNS_TAG", "1.11.1"), NOBODY, NOBODY, NOBODY),
    (("SELINUX_MODE", "permissive"), NOBODY, NOBODY, NOBODY),
    (("CLUSTER_SUBNET_CIDR", "192.0.2.0/24"), NOBODY, NOBODY, NOBODY),
    // Without a proxy there is nothing to go round.
    (("NO_PROXY", ".example.org"), NOBODY, NOBODY, NOBODY),
    // A component's options are its own.
    (("KUBEAPI_OPTIONS", "--v=3"), API, NOBODY, API),
    (("KUBECONTROLLER_OPTIONS", "--v=3"), MANAGER, NOBODY, MANAGER),
    (("KUBESCHEDULER_OPTIONS", "--v=3"), SCHEDULER, NOBODY, SCHEDULER),
    (("KUBELET_OPTIONS", "--v=3"), KUBELET, KUBELET, KUBELET),
    (("KUBEPROXY_OPTIONS", "--v=3"), PROXY, PROXY, PROXY),
    (("PROXY_MODE", "ipvs"), PROXY, PROXY, PROXY),
    (("NODE_LABELS", "rack=a"), KUBELET, KUBELET, KUBELET),
    (("NODE_TAINTS", "rack=a:NoSchedule"), KUBELET, KUBELET, KUBELET),
    (("KUBE_RESERVED", "cpu=200m"), KUBELET, KUBELET, KUBELET),
    (("STATIC_POD_URL", "http://pods.example.org/x"), KUBELET, KUBELET, KUBELET),
    (("SWAP", "allow"), KUBELET, KUBELET, KUBELET),
    (("DNS_SERVICE_IP", "10.254.0.11"), KUBELET, KUBELET, KUBELET),
    (("ADMISSION_CONTROL_LIST", "NamespaceLifecycle"), API, NOBODY, API),
    (("SERVICE_NODE_PORT_RANGE", "30000-31000"), API, NOBODY, API),
    (("CERT_MANAGER_API", "true"), MANAGER, NOBODY, MANAGER),
    // A flag of two components; in 1.9 it stands in the file that all of them read.
    (("KUBE_ALLOW_PRIV", "false"), API, NOBODY, ALL),
    // The runtime's own, and what the kubelet must say the same of.
    (("HTTP_PROXY", "http://proxy.example.org:3128"), "containerd", "containerd", "docker"),
    (("DOCKER_STORAGE_DRIVER", "btrfs"), "containerd", "containerd", "docker"),
    // containerd reads it at each pull.
    (("INSECURE_REGISTRY_URL", "registry.example.org:5000"), NOBODY, NOBODY, "docker"),
    (("SANDBOX_IMAGE", "pause:3.9"), WITH_SANDBOX, WITH_SANDBOX, KUBELET),
    (("CGROUP_DRIVER", "cgroupfs"), WITH_SANDBOX, WITH_SANDBOX, NOBODY),
    (("CGROUP_DRIVER", "systemd"), NOBODY, NOBODY, "docker kubelet"),
    // Networks.
    (
        ("PODS_NETWORK_CIDR", "10.200.0.0/16"),
        "kube-controller-manager kube-proxy",
        PROXY,
        "docker flanneld heat-node-pod-network kube-controller-manager kube-proxy",
    ),
    (("FLANNEL_BACKEND", "vxlan"), NOBODY, NOBODY, "docker flanneld heat-node-pod-network"),
    (
        ("PORTAL_NETWORK_CIDR", "10.253.0.0/16"),
        "etcd kube-apiserver kube-controller-manager kubelet",
        KUBELET,
        "etcd kube-apiserver kube-controller-manager kubelet",
    ),
    (("DNS_CLUSTER_DOMAIN", "blue.local"), NAMED, KUBELET, NAMED),
    (("KUBE_API_PORT", "7443"), ALL, "kube-proxy kubelet", ALL),
    // Certificates.
    (("KUBE_NODE_PUBLIC_IP", "203.0.113.7"), NAMED, KUBELET, NAMED),
    (("MASTER_HOSTNAME", "api.example.org"), "etcd kube-apiserver", NOBODY, "etcd kube-apiserver"),
    (
        ("CA_CERTIFICATE", "/given/other.crt"),
        "etcd kube-apiserver kube-controller-manager kube-proxy kube-scheduler kubelet",
        "kube-proxy kubelet",
        "etcd flanneld kube-apiserver kube-controller-manager kube-proxy kube-scheduler kubelet",
    ),
];

fn with(base: &[(&'static str, &'static str)], change: (&'static str, &'static str)) -> Desired {
    let all: Vec<_> = base.iter().copied().chain([change]).collect();
    node(&all)
}

/// Both ways: what a parameter brings, and what its end takes away.
#[test]
fn a_change_restarts_exactly_the_units_that_read_what_changes() {
    for (change, on_master, on_minion, on_old_master) in CHANGES {
        for (base, expected) in [(MASTER, on_master), (MINION, on_minion), (OLD_MASTER, on_old_master)] {
            let (before, after) = (node(base), with(base, *change));
            for (way, from, to) in [("there", &before, &after), ("back", &after, &before)] {
                let effect = effect(from, to);
                let restarted: Vec<&str> = effect.restarted.iter().map(String::as_str).collect();
                assert_eq!(restarted.join(" "), **expected, "{change:?} {way} on {base:?}: {:?}", effect.changed);
                assert!(effect.new.is_empty(), "{change:?} {way}: {effect:?}");
            }
        }
    }
}

/// Every member would be restarted at once, in the middle of `member add`.
#[test]
fn where_masters_are_added_the_others_are_left_alone() {
    let of = |count: u8| {
        (1..=count).map(|index| format!("blue-master-{}=https://192.0.2.1{index}:2380", index - 1)).collect::<Vec<_>>().join(",")
    };
    let (three, four, five) = (of(3), of(4), of(5));
    let of_list = |base: &[(&'static str, &'static str)], list: &str, state: &str| {
        node(&[base, &[("ETCD_INITIAL_CLUSTER", list), ("ETCD_INITIAL_CLUSTER_STATE", state)]].concat())
    };
    for base in [MASTER, OLD_MASTER] {
        for (list, state) in [(&five, "new"), (&four, "existing")] {
            let effect = effect(&of_list(base, &three, "new"), &of_list(base, list, state));
            assert_eq!(effect.changed, BTreeSet::from(["/etc/etcd/bootstrap.conf".to_owned()]), "{base:?} {list}");
            assert!(effect.restarted.is_empty() && effect.new.is_empty() && effect.helpers.is_empty(), "{effect:?}");
        }
    }
}

/// What is no longer asked for stays on the disk: nobody who still runs may read it.
#[test]
fn what_is_left_behind_is_read_by_nobody() {
    for (change, ..) in CHANGES {
        for base in [MASTER, MINION, OLD_MASTER] {
            let (before, after) = (node(base), with(base, *change));
            for (from, to) in [(&before, &after), (&after, &before)] {
                // A registry's file names the registry, which nobody asks for any more.
                for path in effect(from, to).left.iter().filter(|path| !path.starts_with("/etc/containerd/certs.d/")) {
                    let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
                    let is_drop_in = to.units.iter().any(|unit| folder.ends_with(&format!("/{}.d", unit.name)));
                    let is_named = to.files.iter().any(|file| file.content.contains(path.as_str()));
                    let is_applied = ["/etc/sysctl.d", "/etc/modules-load.d", "/etc/NetworkManager/conf.d"].contains(&folder);
                    assert!(!is_drop_in && !is_named && !is_applied, "{change:?}: {path}");
                }
            }
        }
    }
}

/// A unit that one runtime keeps off is another one's own.
#[test]
fn nothing_stays_disabled_for_whoever_needs_it() {
    const NEW: &[(&str, &str)] = &[("CERTIFICATES", "given"), ("SANDBOX_IMAGE", "pause:3.9")];
    let runtimes: &[&[(&str, &str)]] = &[
        &[("CONTAINER_RUNTIME", "docker")],
        &[("CONTAINER_RUNTIME", "containerd"), ("CONTAINERD_VERSION", "1.6.20")],
        &[("CONTAINER_RUNTIME", "cri-o")],
    ];
    for minor in ["v1.28.9", "v1.23.9"] {
        for (from, to) in runtimes.iter().flat_map(|from| runtimes.iter().map(move |to| (from, to))) {
            let tag = [("KUBE_TAG", minor)];
            let (before, after) = (node(&[NEW, from, &tag].concat()), node(&[NEW, to, &tag].concat()));
            for path in &effect(&before, &after).left {
                let file = before.files.iter().find(|file| file.path == *path);
                let is_off = file.is_some_and(|file| file.content.contains("ConditionPathExists=!/"));
                // Where the kubelet speaks to docker by itself nobody needs these.
                let is_needed = minor != "v1.23.9" || !path.contains("/cri-docker.");
                assert!(!(is_off && is_needed), "{minor} {from:?} → {to:?}: {path}");
            }
        }
    }
    // docker's own needs of containerd: no volume that only containerd's store was on.
    let docker = node(&[NEW, runtimes[0], &[("KUBE_TAG", "v1.28.9")]].concat());
    assert!(docker.files.iter().any(|file| file.path == "/etc/systemd/system/containerd.service.d/50-heat-node-agent.conf"));
}

/// Modules and kernel settings are applied again where they change, and only there.
#[test]
fn helpers_run_only_for_their_own_files() {
    for (change, expected) in [
        (("KUBEAPI_OPTIONS", "--v=3"), &[][..]),
        (("PROXY_MODE", "ipvs"), &["systemd-modules-load", "systemd-sysctl"]),
        (("NETWORK_DRIVER", "calico"), &["systemd-sysctl"]),
    ] {
        let effect = effect(&node(MASTER), &with(MASTER, change));
        assert_eq!(effect.helpers.iter().map(String::as_str).collect::<Vec<_>>(), expected, "{change:?}");
    }
}

/// First HAProxy, which is new, then who goes by it; and back.
#[test]
fn a_balancer_on_a_master_restarts_who_goes_by_it() {
    let balanced = [MASTER, &[("API_BALANCER", "haproxy"), ("MASTER_ADDRESSES", "192.0.2.11")]].concat();
    let without = [MASTER, &[("MASTER_ADDRESSES", "192.0.2.11")]].concat();
    let names = |names: BTreeSet<String>| names.into_iter().collect::<Vec<_>>().join(" ");
    let on = effect(&node(&without), &node(&balanced));
    assert_eq!((names(on.new), names(on.restarted)), ("haproxy".to_owned(), "kube-proxy kubelet".to_owned()));
    let off = effect(&node(&balanced), &node(&without));
    assert_eq!((names(off.new), names(off.restarted)), (String::new(), "kube-proxy kubelet".to_owned()));
    for (change, expected) in [
        (("API_BALANCER_PORT", "7444"), "haproxy kube-proxy kubelet"),
        (("KUBE_API_PORT", "7443"), "haproxy kube-apiserver kube-controller-manager kube-scheduler"),
        (("KUBEAPI_OPTIONS", "--v=3"), API),
        (
            ("CA_CERTIFICATE", "/given/other.crt"),
            "etcd haproxy kube-apiserver kube-controller-manager kube-proxy kube-scheduler kubelet",
        ),
    ] {
        let (before, after) = (node(&balanced), with(&balanced, change));
        for (from, to) in [(&before, &after), (&after, &before)] {
            assert_eq!(names(effect(from, to).restarted), expected, "{change:?}");
        }
    }
    let upgraded = with(&balanced, ("KUBE_TAG", "v1.29.2"));
    assert!(effect(&node(&balanced), &upgraded).restarted.contains("haproxy"), "it has the kubelet's minor in its settings");
}
