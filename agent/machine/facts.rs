//! What this machine is, as far as a node's files depend on it.

use std::collections::BTreeSet;
use std::path::Path;

use sysinfo::{Disk, Disks, MemoryRefreshKind, RefreshKind, System};

use crate::files::{READ_LIMIT, Tree};
use crate::gather::Gather;
use crate::kubernetes::versions::{Component, two_numbers};
use crate::kubernetes::{
    API_SERVER_ENVIRONMENT_FILE, MODULES, MachineFacts, RELEASES, SERVER_KEY, SERVICE_ACCOUNT_KEY, Tokens, program_of_release,
};
use crate::machine::installed::is_program;
use crate::network::links::ALIAS;
use crate::network::{FIREWALL, FirewallFile, FirewallTool, Interface, POD_NETWORK, PreviousNetwork, routes};
use crate::systemd::UNIT_DIRECTORIES;

/// What resolved writes for whoever asks the servers directly.
const UPSTREAM: &str = "/run/systemd/resolve/resolv.conf";
/// The image's unit of docker.
const DOCKER: &str = "docker.service";
/// Release of the running kernel.
const RELEASE: &str = "/proc/sys/kernel/osrelease";
/// The kernel's counters, a line for each processor.
const PROCESSORS: &str = "/proc/stat";
/// Where a kernel's modules are, by its release.
const KERNELS: &str = "/lib/modules";
/// Where the agent's own unit shows them to it: systemd hides the other place from a service that may load none (`ProtectKernelModules=`, since 232).
const SHOWN_KERNELS: &str = "/run/heat-node-agent/modules";
/// Where the image's flannel has its settings.
const FLANNEL: &str = "/etc/sysconfig/flanneld";
/// What the agent writes for flanneld as a unit, and to keep it off.
const FLANNEL_DROP_INS: &str = "/etc/systemd/system/flanneld.service.d/50-heat-node-agent.conf";
/// The API server's flag for the keys that tokens are verified by.
const VERIFIES: &str = "service-account-key-file";
/// Steps in which memory is reported, in MiB: firmware and kernel take a little more or less from boot to boot, and a node's
/// files must not change with it.
const STEP: u64 = 64;

/// Looks at the running machine.
pub(crate) fn of_machine(root: &Tree) -> MachineFacts {
    let kinds = RefreshKind::nothing().with_memory(MemoryRefreshKind::everything());
    let system = System::new_with_specifics(kinds).ok();
    let memory = system.as_ref().map(|system| system.total_memory() / (1024 * 1024) / STEP * STEP);
    let swap = system.as_ref().map(|system| system.total_swap() / (1024 * 1024));
    let is_cpu = |line: &&str| line.starts_with("cpu") && !line.starts_with("cpu ");
    let cpus = u32::try_from(text(root, PROCESSORS).lines().filter(is_cpu).count()).ok();
    let disks = Disks::new_with_refreshed_list().ok();
    let on_root = |disks: Disks| disks.iter().find(|disk| disk.mount_point() == Path::new("/")).map(Disk::available_space);
    // Fedora's docker takes its storage from a variable that docker-storage-setup writes; what stands both there and in daemon.json
    // makes docker refuse to start.
    let unit = docker_unit(root);
    let release = text(root, RELEASE).trim().to_owned();
    MachineFacts {
        // The file is at the top of the tree only where no controller is left to version 1.
        unified_cgroups: root.facts(Path::new("/sys/fs/cgroup/cgroup.controllers")).ok().flatten().is_some(),
        swap,
        memory: memory.filter(|memory| *memory > 0),
        cpus: cpus.filter(|cpus| *cpus > 0),
        disk: disks.and_then(on_root).map(|bytes| bytes / (1024 * 1024)),
        resolved: root.facts(Path::new(UPSTREAM)).ok().flatten().is_some(),
        docker_sysconfig: unit.contains("$DOCKER_STORAGE_OPTIONS"),
        docker_command: command_of(&unit),
        flannel_prefix: flannel_prefix(&text(root, FLANNEL)),
        kernel: two_numbers(&release),
        lacking_modules: lacking_modules(root, &release),
        made: made(root),
        tokens: tokens(root),
        interfaces: interfaces(root),
        releases: releases(root),
    }
}

/// The same machine, with what changes while the agent runs looked at anew.
pub(crate) fn anew(root: &Tree, machine: MachineFacts) -> MachineFacts {
    MachineFacts { made: made(root), tokens: tokens(root), interfaces: interfaces(root), releases: releases(root), ..machine }
}

/// What the agent made for earlier parameters. A file that cannot be read says nothing; its unit says what is wrong with it.
fn made(root: &Tree) -> PreviousNetwork {
    let firewall: Option<FirewallFile> = root.read_json(Path::new(FIREWALL)).ok().flatten();
    let firewalls = firewall.map(|file| file.cleared.into_iter().chain(file.tool)).into_iter().flatten();
    let is_present = |path: &str| root.facts(Path::new(path)).ok().flatten().is_some();
    let (firewalls, pod_network) = (firewalls.gather(), is_present(POD_NETWORK));
    let firewalls: BTreeSet<FirewallTool> = firewalls;
    PreviousNetwork { firewalls: firewalls.into_iter().collect(), pod_network, flannel: is_present(FLANNEL_DROP_INS) }
}

/// By which keys service accounts' tokens are verified here, and whether the node has a key of its own for them.
fn tokens(root: &Tree) -> Tokens {
    // Magnum's first releases write flags with `_`.
    let settings = text(root, API_SERVER_ENVIRONMENT_FILE).replace("service_account_key_file", VERIFIES);
    let verified_by = |path: &str| settings.contains(&format!("--{VERIFIES}={path}"));
    let is_present = root.facts_followed(Path::new(SERVICE_ACCOUNT_KEY)).ok().flatten().is_some();
    Tokens { verified_by_server_key: verified_by(SERVER_KEY), has_own_key: is_present || verified_by(SERVICE_ACCOUNT_KEY) }
}

/// The interfaces of this machine, from sysfs and the table of routes.
fn interfaces(root: &Tree) -> Vec<Interface> {
    const CLASS: &str = "/sys/class/net";
    let routes = routes::parse(&text(root, "/proc/net/route"));
    let names = root.list(Path::new(CLASS)).unwrap_or_default();
    let names = names.into_iter().filter_map(|name| name.into_string().ok());
    names
        .map(|name| {
            let folder = Path::new(CLASS).join(&name);
            let is_bridge = root.facts_followed(&folder.join("bridge")).ok().flatten().is_some();
            let own = routes.iter().filter(|route| route.interface == name && route.gateway.is_none() && !route.rejects);
            Interface {
                is_bridge,
                is_ours: is_bridge && text(root, folder.join("ifalias")).trim_end() == ALIAS,
                has_ports: is_bridge && root.list(&folder.join("brif")).is_ok_and(|ports| !ports.is_empty()),
                networks: own.map(|route| route.to).collect(),
                name,
            }
        })
        .collect()
}

fn text(root: &Tree, path: impl AsRef<Path>) -> String {
    let bytes = root.read(path.as_ref(), READ_LIMIT).ok().flatten().unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The last command line of a unit file, with its continued lines as one (systemd.syntax(7)).
pub(super) fn command_of(unit: &str) -> Option<String> {
    let mut found = None;
    let mut lines = unit.lines();
    while let Some(line) = lines.next() {
        let Some(command) = line.trim_start().strip_prefix("ExecStart=") else { continue };
        let mut command = command.trim().to_owned();
        while let Some(before) = command.strip_suffix('\\') {
            command = format!("{} {}", before.trim_end(), lines.next().unwrap_or_default().trim());
        }
        found = Some(command);
    }
    found.filter(|command| !command.is_empty())
}

/// The key of the image's flannel, by the name of later packages, of the first ones, or among its flags (magnum-node.md 1.6).
fn flannel_prefix(settings: &str) -> Option<String> {
    let value = |name: &str| {
        let line = settings.lines().find_map(|line| line.trim().strip_prefix(name)?.strip_prefix('='))?;
        Some(line.trim().trim_matches(['"', '\'']).to_owned())
    };
    let flag =
        || value("FLANNEL_OPTIONS")?.split_whitespace().find_map(|word| Some(word.split_once("-etcd-prefix=")?.1.to_owned()));
    // What flannel cannot use is no key of its own; the default holds then.
    let good = |prefix: &String| {
        prefix.len() > 1
            && prefix.starts_with('/')
            && !prefix.ends_with('/')
            && prefix.bytes().all(|b| b.is_ascii_alphanumeric() || b"/._-".contains(&b))
    };
    value("FLANNEL_ETCD_PREFIX").or_else(|| value("FLANNEL_ETCD_KEY")).or_else(flag).filter(good)
}

/// What the kernel has neither loaded, built in, nor as a file. In a container the modules of the kernel below are not there to be
/// looked at: then nothing is known to lack.
fn lacking_modules(root: &Tree, release: &str) -> Vec<&'static str> {
    let loaded = text(root, "/proc/modules");
    let is_loaded = |module: &str| loaded.lines().any(|line| line.split(' ').next() == Some(module));
    let mut places = [SHOWN_KERNELS, KERNELS].into_iter();
    let lacking = places.find_map(|place| not_installed(root, place, release, &MODULES)).unwrap_or_default();
    lacking.into_iter().filter(|module| !is_loaded(module)).collect()
}

/// Those of these modules that a kernel has neither built in nor as a file; `None` where its modules are not there to be looked at.
fn not_installed<'a>(root: &Tree, kernels: &str, release: &str, modules: &[&'a str]) -> Option<Vec<&'a str>> {
    if release.is_empty() || release.contains('/') {
        return None;
    }
    let folder = Path::new(kernels).join(release);
    let (files, built_in) = (text(root, folder.join("modules.dep")), text(root, folder.join("modules.builtin")));
    if files.is_empty() || built_in.is_empty() {
        return None;
    }
    let has = |list: &str, module: &str| list.lines().any(|line| module_of(line) == module.replace('-', "_"));
    Some(modules.iter().copied().filter(|module| !has(&built_in, module) && !has(&files, module)).collect())
}

/// The kernels of an image, as far as their modules can be looked at.
pub(crate) fn kernels(root: &Tree) -> Vec<String> {
    let names = root.list(Path::new(KERNELS)).unwrap_or_default();
    let names = names.into_iter().filter_map(|name| name.into_string().ok());
    names.filter(|release| not_installed(root, KERNELS, release, &[]).is_some()).collect()
}

/// Those of these modules that none of an image's kernels has; nothing where it has no kernel, as in a container.
pub(crate) fn lacking_in_image<'a>(root: &Tree, modules: &[&'a str]) -> Vec<&'a str> {
    let of_each: Vec<Vec<&str>> =
        kernels(root).iter().filter_map(|release| not_installed(root, KERNELS, release, modules)).collect();
    let is_lacking = |module: &&&str| !of_each.is_empty() && of_each.iter().all(|lacking| lacking.contains(module));
    modules.iter().filter(is_lacking).copied().collect()
}

/// What an image says of the machines that will boot it: nothing of their size, their addresses, or the kernel that runs now.
pub(crate) fn of_image(root: &Tree) -> MachineFacts {
    let unit = docker_unit(root);
    MachineFacts {
        docker_sysconfig: unit.contains("$DOCKER_STORAGE_OPTIONS"),
        docker_command: command_of(&unit),
        flannel_prefix: flannel_prefix(&text(root, FLANNEL)),
        kernel: kernels(root).iter().filter_map(|release| two_numbers(release)).max(),
        lacking_modules: lacking_in_image(root, &MODULES),
        releases: releases(root),
        ..MachineFacts::default()
    }
}

/// Programs of Kubernetes in folders of their releases. What cannot be read is not there: a unit that needs it says so.
fn releases(root: &Tree) -> BTreeSet<String> {
    let names = root.list(Path::new(RELEASES)).unwrap_or_default();
    // As tags are: nothing that a unit file would have to quote.
    let is_tag = |tag: &&str| tag.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
    let tags: Vec<_> = names.iter().filter_map(|name| name.to_str()).filter(is_tag).collect();
    let paths = tags.iter().flat_map(|tag| Component::ALL.map(|one| program_of_release(tag, one.as_str())));
    paths.filter(|path| is_program(root, path)).collect()
}

/// The image's docker.service; empty where it has none.
fn docker_unit(root: &Tree) -> String {
    let mut units = UNIT_DIRECTORIES.iter().map(|directory| text(root, format!("{directory}/{DOCKER}")));
    units.find(|unit| !unit.is_empty()).unwrap_or_default()
}

/// `kernel/net/netfilter/ipvs/ip_vs.ko.xz: …` → `ip_vs`.
fn module_of(line: &str) -> String {
    let path = line.split(':').next().unwrap_or_default();
    let name = path.rsplit('/').next().unwrap_or_default();
    name.split('.').next().unwrap_or_default().replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::Attributes;

    #[test]
    fn programs_of_several_releases_are_found_by_their_tags() {
        let dir = tempfile::tempdir().unwrap();
        let root = Tree::open(dir.path()).unwrap();
        let put = |path: &str, mode| {
            let path = Path::new(path);
            root.create_dir_all(path.parent().unwrap(), Attributes::mode(0o755)).unwrap();
            root.write(path, b"", Attributes::mode(mode)).unwrap();
        };
        assert!(releases(&root).is_empty());
        put("/opt/kubernetes/v1.20.2/bin/kubelet", 0o755);
        put("/opt/kubernetes/v1.21.14-rancher1/bin/kube-proxy", 0o755);
        for (path, mode) in [
            ("v1.20.2/bin/kubectl", 0o755),
            ("v1.20.2/bin/kube-proxy", 0o644),
            ("1.2 $x/bin/kubelet", 0o755),
            ("bin/kubelet", 0o755),
        ] {
            put(&format!("/opt/kubernetes/{path}"), mode);
        }
        let expected = ["/opt/kubernetes/v1.20.2/bin/kubelet", "/opt/kubernetes/v1.21.14-rancher1/bin/kube-proxy"];
        assert_eq!(releases(&root).into_iter().collect::<Vec<_>>(), expected);
        assert_eq!(of_image(&root).releases.len(), 2);
    }

    #[test]
    fn the_image_says_dockers_command_and_flannels_key() {
        for (unit, expected) in [
            ("[Service]\nExecStart=/usr/sbin/dockerd -H fd:// $DOCKER_OPTS\n", Some("/usr/sbin/dockerd -H fd:// $DOCKER_OPTS")),
            (
                "ExecStart=/usr/bin/dockerd-current \\\n          $OPTIONS \\\n  $DOCKER_NETWORK_OPTIONS\nExecReload=x\n",
                Some("/usr/bin/dockerd-current $OPTIONS $DOCKER_NETWORK_OPTIONS"),
            ),
            ("ExecStart=/a\nExecStart=\nExecStart=/b\n", Some("/b")),
            ("ExecStart=/a \\", Some("/a ")),
            ("ExecStart=/a\nExecStart=\n", None),
            ("", None),
        ] {
            assert_eq!(command_of(unit).as_deref(), expected, "{unit}");
        }
        for (settings, expected) in [
            (
                "# Flanneld\nFLANNEL_ETCD=\"http://127.0.0.1:2379\"\nFLANNEL_ETCD_KEY=\"/coreos.com/network\"\n",
                Some("/coreos.com/network"),
            ),
            ("FLANNEL_ETCD_PREFIX=\"/atomic.io/network\"\nFLANNEL_ETCD_KEY=/x\n", Some("/atomic.io/network")),
            ("FLANNEL_OPTIONS=\"-ip-masq -etcd-prefix=/a/b\"\n", Some("/a/b")),
            ("#FLANNEL_ETCD_KEY=/a\n", None),
            ("FLANNEL_ETCD_KEY=\"/a b\"\n", None),
            ("FLANNEL_ETCD_KEY=\"\"\n", None),
        ] {
            assert_eq!(flannel_prefix(settings).as_deref(), expected, "{settings}");
        }
    }

    #[test]
    fn a_module_is_there_loaded_built_in_or_as_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let root = Tree::open(folder.path()).unwrap();
        let write = |path: &str, text: &str| {
            let tree = Tree::open_or_create(folder.path().join(path).parent().unwrap(), 0o755).unwrap();
            tree.write(Path::new(path.rsplit('/').next().unwrap()), text.as_bytes(), Attributes::mode(0o644)).unwrap();
        };
        assert!(lacking_modules(&root, "6.1.0").is_empty(), "nothing is known");
        write("lib/modules/6.1.0/modules.dep", "kernel/net/ip-vs/ip_vs.ko.xz: kernel/x.ko\nkernel/net/ipip.ko:\n");
        assert!(lacking_modules(&root, "6.1.0").is_empty(), "half of it is known");
        write("lib/modules/6.1.0/modules.builtin", "kernel/drivers/net/tun.ko\n");
        write("proc/modules", "vxlan 118784 0 - Live 0x0\nip_vs_rr_x 1 0 - Live 0x0\n");
        assert_eq!(lacking_modules(&root, "6.1.0"), ["ip_vs_rr", "ip_vs_wrr", "ip_vs_sh", "nf_tables", "wireguard"]);
        assert!(lacking_modules(&root, "../6.1.0").is_empty());
        // As the agent's unit shows them, where the place itself cannot be looked at.
        write("run/heat-node-agent/modules/6.1.0/modules.dep", "kernel/x.ko:\nkernel/net/ip-vs/ip_vs_sh.ko:\n");
        write("run/heat-node-agent/modules/6.1.0/modules.builtin", "kernel/drivers/net/tun.ko\n");
        assert_eq!(lacking_modules(&root, "6.1.0"), ["ip_vs", "ip_vs_rr", "ip_vs_wrr", "nf_tables", "ipip", "wireguard"]);
        assert_eq!((two_numbers("6.1.0-25-cloud"), two_numbers("4.18"), two_numbers("x")), (Some((6, 1)), Some((4, 18)), None));
    }

    #[test]
    fn the_keys_of_tokens_are_read_from_the_api_servers_settings() {
        let own = SERVICE_ACCOUNT_KEY;
        for (settings, with_key, by_server, has_own) in [
            ("", false, false, false),
            ("KUBE_API_ARGS=\"--service-account-key-file=/etc/kubernetes/certs/server.key --v=2\"\n", false, true, false),
            ("KUBE_API_ARGS=\"--service_account_key_file=/etc/kubernetes/certs/server.key\"\n", false, true, false),
            ("KUBE_API_ARGS=\"--tls-private-key-file=/etc/kubernetes/certs/server.key\"\n", false, false, false),
            ("KUBE_API_ARGS=\"--service-account-key-file=/etc/kubernetes/certs/server.key\"\n", true, true, true),
            (
                &format!("X=\"--service-account-key-file={own} --service-account-key-file=/etc/kubernetes/certs/server.key\"\n"),
                false,
                true,
                true,
            ),
            (&format!("X=\"--service-account-key-file={own}\"\n"), true, false, true),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let root = Tree::open(folder.path()).unwrap();
            root.create_dir_all(Path::new("/etc/kubernetes/certs"), Attributes::mode(0o755)).unwrap();
            root.write(Path::new(API_SERVER_ENVIRONMENT_FILE), settings.as_bytes(), Attributes::mode(0o644)).unwrap();
            if with_key {
                root.write(Path::new(own), b"", Attributes::mode(0o600)).unwrap();
            }
            let expected = Tokens { verified_by_server_key: by_server, has_own_key: has_own };
            assert_eq!(tokens(&root), expected, "{settings}");
        }
    }

    #[test]
    fn what_the_agent_made_and_whose_interfaces_are_is_read_anew() {
        let folder = tempfile::tempdir().unwrap();
        let root = Tree::open(folder.path()).unwrap();
        assert_eq!((made(&root), interfaces(&root)), (PreviousNetwork::default(), vec![]));
        let write = |path: &str, text: &str| {
            let tree = Tree::open_or_create(folder.path().join(path).parent().unwrap(), 0o755).unwrap();
            tree.write(Path::new(path.rsplit('/').next().unwrap()), text.as_bytes(), Attributes::mode(0o644)).unwrap();
        };
        write("etc/heat-node-agent/firewall.json", r#"{"tool": "nftables", "open": []}"#);
        assert_eq!(made(&root).firewalls, [FirewallTool::Nftables]);
        write("etc/heat-node-agent/firewall.json", r#"{"tool": null, "cleared": ["firewalld", "nftables"], "open": []}"#);
        write("etc/heat-node-agent/pod-network.json", "{}");
        let all = made(&root);
        assert_eq!(all.firewalls, [FirewallTool::Nftables, FirewallTool::Firewalld]);
        assert!(all.pod_network && !all.flannel);

        // As sysfs has it: a link for each.
        let devices = "sys/devices/virtual/net";
        write(&format!("{devices}/kbr0/ifalias"), "heat-node-agent\n");
        write(&format!("{devices}/kbr0/bridge/bridge_id"), "");
        write(&format!("{devices}/br0/brif/eth0"), "");
        write(&format!("{devices}/br0/bridge/bridge_id"), "");
        write(&format!("{devices}/eth0/ifalias"), "heat-node-agent\n");
        Tree::open_or_create(&folder.path().join("sys/class/net"), 0o755).unwrap();
        for name in ["kbr0", "br0", "eth0"] {
            root.link(&format!("../../devices/virtual/net/{name}"), Path::new(&format!("sys/class/net/{name}"))).unwrap();
        }
        write(
            "proc/net/route",
            "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\nbr0\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\nbr0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\n",
        );
        let found: Vec<_> = interfaces(&root);
        let seen: Vec<_> = found.iter().map(|one| (one.name.as_str(), one.is_bridge, one.is_ours, one.has_ports)).collect();
        assert_eq!(seen, [("br0", true, false, true), ("eth0", false, false, false), ("kbr0", true, true, false)]);
        assert_eq!(found[0].networks, ["192.0.2.0/24".parse().unwrap()]);
    }
}
