//! What every node needs of its host: kernel modules, kernel settings, directories; and what a Kubernetes node needs besides.
//!
//! The agent loads and sets nothing itself: it writes the files that the distribution's own units
//! apply, at this boot and at every later one, and a gate measures the effect.

use std::collections::BTreeSet;

use super::kube_proxy;
use crate::desired::{Dependency, Desired, File, Gate, GateProbe, Unit};
use crate::gather::Gather;
use crate::kubernetes::parts::daemon::deadline;
use crate::kubernetes::parts::directories::{add_directory, directory};
use crate::kubernetes::parts::paths::{CNI_NETWORKS, CNI_PROGRAMS};
use crate::kubernetes::parts::paths::{OPENSTACK_CA, SYSCTL_UNIT};
use crate::kubernetes::spec::cluster::{ClusterSpec, MachineFacts, NetworkDriver};
use crate::kubernetes::spec::node::NodeSpec;
use crate::kubernetes::spec::words::Role;

const MODULES_FILE: &str = "/etc/modules-load.d/heat-node-agent.conf";
const SYSCTL_FILE: &str = "/etc/sysctl.d/90-heat-node-agent.conf";
const NETWORK_MANAGER_FILE: &str = "/etc/NetworkManager/conf.d/90-heat-node-agent.conf";
const MODULES_UNIT: &str = "systemd-modules-load.service";
const NETWORK_MANAGER_UNIT: &str = "NetworkManager.service";

const MODULES: &str = "\
# Made by heat-node-agent.
# br_netfilter: iptables sees the traffic of bridges; overlay: the storage driver of the container runtime.
br_netfilter
overlay
";

const SETTINGS: &str = "\
# Made by heat-node-agent.
# A node routes between its pods and the network, and kube-proxy's rules must see bridged packets.
net.ipv4.ip_forward = 1
net.bridge.bridge-nf-call-iptables = 1
net.bridge.bridge-nf-call-ip6tables = 1
";

/// Adds the host's part.
pub(in crate::kubernetes) fn part(spec: &NodeSpec, facts: &MachineFacts) -> Desired {
    let mut part = Desired::default();
    for path in ["/etc/kubernetes", "/srv/kubernetes"] {
        part.directories.push(directory(path));
    }
    let (mut modules, mut settings) = (MODULES.to_owned(), SETTINGS.to_owned());
    let mut measured = vec![("net/ipv4/ip_forward".to_owned(), 1), ("net/bridge/bridge-nf-call-iptables".to_owned(), 1)];
    if let Some(cluster) = &spec.kubernetes {
        for (why, names) in further_modules(cluster, facts) {
            modules.push_str(&format!("# {why}\n"));
            for name in names {
                modules.push_str(&format!("{name}\n"));
            }
        }
        for (key, value, why) in further_settings(spec.role, cluster) {
            settings.push_str(&format!("# {why}\n{key} = {value}\n"));
            measured.push((key.replace('.', "/"), value));
        }
        add_files(cluster, &mut part);
    }
    part.files.push(File::public(MODULES_FILE, modules));
    part.files.push(File::public(SYSCTL_FILE, settings));
    let modules = BTreeSet::from([MODULES_FILE.to_owned()]);
    part.units.push(helper(MODULES_UNIT, modules.clone(), BTreeSet::new()));
    // The bridge settings exist only once br_netfilter is loaded, so new modules mean that settings are applied again.
    let settings = modules.into_iter().chain([SYSCTL_FILE.to_owned()]).gather();
    part.units.push(helper(SYSCTL_UNIT, settings, BTreeSet::from([Dependency::Unit(MODULES_UNIT.to_owned())])));
    part.gates.push(Gate {
        name: "sysctl".to_owned(),
        unit: Some(SYSCTL_UNIT.to_owned()),
        probe: GateProbe::Sysctl(measured),
        consecutive: 1,
        deadline: Some(deadline::KERNEL),
        needs: BTreeSet::from([Dependency::Unit(SYSCTL_UNIT.to_owned())]),
        remedy: format!("`journalctl -u {MODULES_UNIT} -u {SYSCTL_UNIT}`; check for a file in /etc/sysctl.d that sorts after 90-heat-node-agent.conf"),
    });
    part
}

/// Why, and which, by pod network and by the way services are balanced.
fn further_modules(cluster: &ClusterSpec, facts: &MachineFacts) -> Vec<(&'static str, Vec<&'static str>)> {
    let networks = &cluster.networks;
    let of_network = match networks.driver {
        NetworkDriver::Flannel => ("flannel's backend", flannel_modules(&networks.flannel.backend)),
        // calico's own default is no tunnel where Magnum says so (magnum-node.md 3.2).
        NetworkDriver::Calico if networks.calico_tunnels => ("calico's tunnels", &["ipip"][..]),
        _ => ("", &[][..]),
    };
    let open_vswitch = ("Open vSwitch, for KubeStack's ports", &["openvswitch"][..]);
    let of_proxy = match kube_proxy::mode(cluster).as_deref() {
        Some("ipvs") => ("kube-proxy in mode ipvs", kube_proxy::IPVS_MODULES),
        Some("nftables") => ("kube-proxy in mode nftables", kube_proxy::NFTABLES_MODULES),
        _ => ("", &[][..]),
    };
    let mut all: Vec<(&str, Vec<&str>)> = Vec::new();
    for (why, names) in [Some(of_network), cluster.kubestack.as_ref().map(|_| open_vswitch), Some(of_proxy)].into_iter().flatten()
    {
        let mut names = names.to_vec();
        if names.contains(&"ip_vs") {
            names.push("nf_conntrack");
            // Before Linux 4.19 IPv4's half of it was a module of its own, which kube-proxy asks for there.
            if facts.kernel.is_some_and(|kernel| kernel < (4, 19)) {
                names.push("nf_conntrack_ipv4");
            }
        }
        if !names.is_empty() {
            all.push((why, names));
        }
    }
    all
}

/// What a backend's device needs of the kernel.
pub(in crate::kubernetes) fn flannel_modules(backend: &str) -> &'static [&'static str] {
    match backend {
        "vxlan" => &["vxlan"],
        "udp" => &["tun"],
        "ipip" => &["ipip"],
        "wireguard" => &["wireguard"],
        _ => &[],
    }
}

/// Key, value, why.
fn further_settings(role: Role, cluster: &ClusterSpec) -> Vec<(&'static str, u64, &'static str)> {
    let mut settings = Vec::new();
    if cluster.networks.driver == NetworkDriver::Calico {
        // magnum-node.md 2.3; felix wants it strict, and some distributions' default is loose.
        settings.push(("net.ipv4.conf.all.rp_filter", 1, "calico prevents a pod from using another's address."));
        if role == Role::Minion {
            // magnum-node.md 2.5
            settings.push(("vm.max_map_count", 262_144, "As on Magnum's workers with calico, for search engines."));
        }
    }
    if cluster.has_flannel_unit() {
        // The larger one of this and an interface's own counts.
        let why = "Loose on flannel's interface: while a change of backend spreads through the cluster, packets arrive by a \
                   different interface than the replies leave by.";
        settings.push(("net.ipv4.conf.all.rp_filter", 2, why));
    }
    settings
}

fn add_files(cluster: &ClusterSpec, part: &mut Desired) {
    if cluster.uses_cni() {
        // Programs and networks come with the image and with the cluster's add-ons.
        for path in ["/etc/cni", CNI_NETWORKS, "/opt/cni", CNI_PROGRAMS] {
            add_directory(path, part);
        }
    }
    let of_pods = match cluster.networks.driver {
        NetworkDriver::Calico => "interface-name:cali*;interface-name:tunl*;interface-name:vxlan.calico".to_owned(),
        NetworkDriver::StaticRoutes => format!("interface-name:{};interface-name:veth*", cluster.networks.routes.bridge),
        _ => String::new(),
    };
    if !of_pods.is_empty() {
        // Else NetworkManager takes over what others made (magnum-node.md 7.4 no. 53). networkd leaves alone what no file of its
        // own names.
        for path in ["/etc/NetworkManager", "/etc/NetworkManager/conf.d"] {
            add_directory(path, part);
        }
        let content = format!("# Made by heat-node-agent.\n[keyfile]\nunmanaged-devices={of_pods}\n");
        part.files.push(File::public(NETWORK_MANAGER_FILE, content));
        // Where there is none, there is nothing to restart.
        let needs = BTreeSet::new();
        part.units.push(helper(NETWORK_MANAGER_UNIT, BTreeSet::from([NETWORK_MANAGER_FILE.to_owned()]), needs));
    }
    if let Some(mode) = &cluster.selinux {
        add_directory("/etc/selinux", part);
        let content =
            format!("# Made by heat-node-agent. It takes effect at the next boot.\nSELINUX={mode}\nSELINUXTYPE=targeted\n");
        part.files.push(File::public("/etc/selinux/config", content));
    }
    if let Some(ca) = &cluster.openstack_ca {
        part.files.push(File::public(OPENSTACK_CA, ca.as_str()));
    }
}

fn helper(name: &str, restart_on: BTreeSet<String>, needs: BTreeSet<Dependency>) -> Unit {
    // The distribution enables these by itself.
    Unit { name: name.to_owned(), enable: false, restart_on, needs, applies_files: true }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubernetes::fixtures::{content, file, node};

    fn worker(changes: &[(&str, &str)]) -> Desired {
        let base =
            [("ROLE", "minion"), ("KUBE_MASTER_IP", "192.0.2.5"), ("CERTIFICATES", "given"), ("CONTAINER_RUNTIME", "containerd")];
        node(&base.into_iter().chain(changes.iter().copied()).collect::<Vec<_>>())
    }

    fn plain(text: &str) -> Vec<&str> {
        text.lines().filter(|line| !line.starts_with('#')).collect()
    }

    #[test]
    fn modules_follow_the_network_and_the_balancing() {
        for (changes, more) in [
            (&[][..], &[][..]),
            (&[("FLANNEL_BACKEND", "vxlan")], &["vxlan"]),
            (&[("FLANNEL_BACKEND", "udp")], &["tun"]),
            (&[("FLANNEL_BACKEND", "vxlan"), ("NETWORK_DRIVER", "calico")], &[]),
            (&[("NETWORK_DRIVER", "calico"), ("CALICO_IPV4POOL_IPIP", "Always")], &["ipip"]),
            (&[("NETWORK_DRIVER", "calico"), ("CALICO_IPV4POOL_IPIP", "Off")], &[]),
            (&[("PROXY_MODE", "ipvs")], &["ip_vs", "ip_vs_rr", "ip_vs_wrr", "ip_vs_sh", "nf_conntrack"]),
            (&[("PROXY_MODE", "nftables"), ("KUBE_TAG", "v1.31.1")], &["nf_tables"]),
            (&[("KUBEPROXY_OPTIONS", "--proxy-mode=ipvs")], &["ip_vs", "ip_vs_rr", "ip_vs_wrr", "ip_vs_sh", "nf_conntrack"]),
            (
                &[("KUBEPROXY_OPTIONS", "--v=2 --proxy_mode 'ipvs'")],
                &["ip_vs", "ip_vs_rr", "ip_vs_wrr", "ip_vs_sh", "nf_conntrack"],
            ),
            (&[("KUBEPROXY_OPTIONS", "--proxy-mode=iptables")], &[]),
        ] {
            let desired = worker(changes);
            let expected: Vec<_> = ["br_netfilter", "overlay"].iter().chain(more).copied().collect();
            assert_eq!(plain(content(&desired, MODULES_FILE)), expected, "{changes:?}");
        }
    }

    /// Before 4.19 connections of IPv4 are another module's.
    #[test]
    fn ipvs_needs_one_more_module_of_an_old_kernel() {
        use crate::kubernetes::fixtures::spec;
        use crate::kubernetes::render;

        for (kernel, there) in [(Some((4, 18)), true), (Some((4, 19)), false), (Some((6, 1)), false), (None, false)] {
            let facts = MachineFacts { kernel, ..MachineFacts::default() };
            let desired = render(&spec(&[("PROXY_MODE", "ipvs")]), &facts).unwrap();
            assert_eq!(plain(content(&desired, MODULES_FILE)).contains(&"nf_conntrack_ipv4"), there, "{kernel:?}");
        }
    }

    /// While a change of backend goes through the cluster, packets come in by another interface than they leave by.
    #[test]
    fn the_way_back_is_looked_at_loosely_where_flannel_is_a_unit() {
        for (changes, expected) in [
            (&[("FLANNEL_RUNS_AS", "unit"), ("ETCD_SERVER_IP", "192.0.2.6")][..], Some("net.ipv4.conf.all.rp_filter = 2")),
            (&[("NETWORK_DRIVER", "calico")], Some("net.ipv4.conf.all.rp_filter = 1")),
            (&[], None),
        ] {
            let desired = worker(changes);
            let found = content(&desired, SYSCTL_FILE).lines().find(|line| line.contains("rp_filter ="));
            assert_eq!(found, expected, "{changes:?}");
        }
    }

    // magnum-node.md 7.4 no. 53
    #[test]
    fn calico_needs_more_of_the_host() {
        let gate = |desired: &Desired| match &desired.gates.iter().find(|gate| gate.name == "sysctl").unwrap().probe {
            GateProbe::Sysctl(keys) => keys.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>(),
            _ => Vec::new(),
        };
        let calico = worker(&[("NETWORK_DRIVER", "calico")]);
        assert!(content(&calico, SYSCTL_FILE).ends_with("\nvm.max_map_count = 262144\n"));
        assert!(content(&calico, SYSCTL_FILE).contains("\nnet.ipv4.conf.all.rp_filter = 1\n"));
        assert_eq!(gate(&calico)[2..], ["net/ipv4/conf/all/rp_filter=1", "vm/max_map_count=262144"]);
        assert_eq!(
            plain(content(&calico, NETWORK_MANAGER_FILE)),
            ["[keyfile]", "unmanaged-devices=interface-name:cali*;interface-name:tunl*;interface-name:vxlan.calico"]
        );
        let helper = calico.units.iter().find(|unit| unit.name == NETWORK_MANAGER_UNIT).unwrap();
        assert!(helper.applies_files && !helper.enable && helper.restart_on.contains(NETWORK_MANAGER_FILE));
        let flannel = worker(&[]);
        assert_eq!(gate(&flannel).len(), 2);
        assert_eq!(file(&flannel, NETWORK_MANAGER_FILE), None);
    }

    #[test]
    fn selinux_is_as_the_image_has_it_unless_it_is_asked_for() {
        assert_eq!(file(&worker(&[]), "/etc/selinux/config"), None);
        let asked = worker(&[("SELINUX_MODE", "Permissive")]);
        assert_eq!(plain(content(&asked, "/etc/selinux/config")), ["SELINUX=permissive", "SELINUXTYPE=targeted"]);
    }

    #[test]
    fn directories_are_named_once_and_after_their_parents() {
        for changes in
            [&[][..], &[("NETWORK_DRIVER", "calico"), ("SELINUX_MODE", "enforcing")], &[("CONTAINER_RUNTIME", "cri-o")]]
        {
            let desired = worker(changes);
            let paths: Vec<_> = desired.directories.iter().map(|one| one.path.as_str()).collect();
            for (at, path) in paths.iter().enumerate() {
                assert!(!paths[..at].contains(path), "{path} is there twice");
                assert!(
                    !paths[..at].iter().any(|earlier| earlier.starts_with(&format!("{path}/"))),
                    "{path} comes after what lies in it"
                );
            }
        }
    }
}
