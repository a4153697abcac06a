//! The ports that the services of this node are reached by, for the host's own firewall (seed-systems.md 6a, the row firewall).
//!
//! Rendered here is the list alone; `heat-node-agent firewall` makes rules of it, at each start of the firewall's own unit.

use std::collections::BTreeSet;

use ipnet::{IpNet, Ipv4Net};
use serde_json::{Value, json};

use super::pod_network::FOLDER;
use crate::desired::{Desired, File, Unit};
use crate::kubernetes::parts::directories::add_directory;
use crate::kubernetes::spec::cluster;
use crate::kubernetes::spec::cluster::{ClusterSpec, MachineFacts, NetworkDriver};
use crate::kubernetes::spec::node::NodeSpec;
use crate::kubernetes::spec::words::Role;
use crate::kubernetes::versions::option;
use crate::network::{FIREWALL, FIREWALL_UNIT, FirewallFile, FirewallTool, Opening, Protocol, flannel};

/// Adds its part. Where another firewall, or none, is named than before, the unit takes away what it made of the earlier one's
/// rules, and keeps on doing so: a firewall that is started later may bring them back from its own files.
pub(in crate::kubernetes) fn part(spec: &NodeSpec, cluster: &ClusterSpec, facts: &MachineFacts) -> Desired {
    let mut part = Desired::default();
    let tool = cluster.firewall;
    let cleared: Vec<FirewallTool> = facts.made.firewalls.iter().copied().filter(|made| Some(*made) != tool).collect();
    if tool.is_none() && cleared.is_empty() {
        return part;
    }
    let open = if tool.is_some() { openings(spec.role, cluster) } else { Vec::new() };
    add_directory(FOLDER, &mut part);
    part.files.push(File::public(FIREWALL, text(&FirewallFile { tool, cleared, open })));
    part.units.push(Unit {
        name: FIREWALL_UNIT.to_owned(),
        enable: true,
        restart_on: BTreeSet::from([FIREWALL.to_owned()]),
        needs: BTreeSet::new(),
        applies_files: false,
    });
    part
}

/// One opening a line: that is how a difference reads in `plan`.
fn text(file: &FirewallFile) -> String {
    let tool = json!(file.tool.map(FirewallTool::as_str));
    let cleared: Vec<&str> = file.cleared.iter().map(|tool| tool.as_str()).collect();
    let cleared = if cleared.is_empty() { String::new() } else { format!("  \"cleared\": {},\n", json!(cleared)) };
    let lines: Vec<String> = file.open.iter().map(|one| format!("    {}", line(one))).collect();
    let open = if lines.is_empty() { "[]".to_owned() } else { format!("[\n{}\n  ]", lines.join(",\n")) };
    format!("{{\n  \"tool\": {tool},\n{cleared}  \"open\": {open}\n}}\n")
}

fn line(opening: &Opening) -> Value {
    let protocol = match opening.protocol {
        Protocol::Tcp => "tcp",
        Protocol::Udp => "udp",
        Protocol::Forwarded => "forwarded",
    };
    json!({
        "what": opening.what, "protocol": protocol, "ports": opening.ports.map(|(first, last)| json!([first, last])),
        "from": opening.from.map(|from| from.to_string()),
    })
}

/// What is let in: for every service of the node that others reach. What is for the cluster's nodes alone comes from their
/// network, where a parameter names it.
fn openings(role: Role, cluster: &ClusterSpec) -> Vec<Opening> {
    let mut open = Vec::new();
    let mut add = |what: &str, protocol, ports: (u16, u16), from: Option<Ipv4Net>| {
        open.push(Opening { what: what.to_owned(), protocol, ports: Some(ports), from });
    };
    let nodes = cluster.nodes;
    if role == Role::Master {
        let etcd = &cluster.etcd;
        add("etcd clients", Protocol::Tcp, (etcd.client_port, etcd.client_port), nodes);
        add("etcd peers", Protocol::Tcp, (etcd.peer_port, etcd.peer_port), nodes);
        add("kube-apiserver", Protocol::Tcp, (cluster.api.port, cluster.api.port), None);
        for (what, options, ports) in [
            ("kube-controller-manager", &cluster.options.controller_manager, ["port", "secure-port"]),
            ("kube-scheduler", &cluster.options.scheduler, ["port", "secure-port"]),
        ] {
            // On the loopback, unless a user says otherwise.
            for (address, port) in ["address", "bind-address"].into_iter().zip(ports) {
                if option(options, address).is_some_and(|address| !address.starts_with("127.")) {
                    let port = option(options, port).and_then(|port| port.parse().ok()).unwrap_or(default_port(what, port));
                    if port != 0 {
                        add(what, Protocol::Tcp, (port, port), nodes);
                    }
                }
            }
        }
    }
    let kubelet = |name: &str, default| {
        let given = option(&cluster.options.kubelet, name).and_then(|port| port.parse().ok());
        Some(given.unwrap_or(default)).filter(|port| *port != 0)
    };
    for (what, port) in [("kubelet", kubelet("port", 10_250)), ("kubelet read-only", kubelet("read-only-port", 0))] {
        if let Some(port) = port {
            add(what, Protocol::Tcp, (port, port), nodes);
        }
    }
    let node_ports = cluster::node_ports(cluster);
    add("NodePorts", Protocol::Tcp, node_ports, None);
    add("NodePorts", Protocol::Udp, node_ports, None);
    match cluster.networks.driver {
        NetworkDriver::Flannel => {
            let flannel = &cluster.networks.flannel;
            if let Some(port) = flannel::port(&flannel.backend, &flannel.options) {
                add(&format!("flannel {}", flannel.backend), Protocol::Udp, (port, port), nodes);
            }
        }
        NetworkDriver::Calico => add("calico BGP", Protocol::Tcp, (179, 179), nodes),
        NetworkDriver::StaticRoutes | NetworkDriver::KubeStack | NetworkDriver::None => {}
    }
    if let IpNet::V4(pods) = cluster.networks.pods {
        open.push(Opening { what: "pods".to_owned(), protocol: Protocol::Forwarded, ports: None, from: Some(pods.trunc()) });
    }
    open
}

/// seed-systems.md 6e, the table of ports.
fn default_port(what: &str, flag: &str) -> u16 {
    match (what, flag) {
        ("kube-scheduler", "port") => 10_251,
        ("kube-scheduler", _) => 10_259,
        (_, "port") => 10_252,
        _ => 10_257,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubernetes::fixtures::{content, file, node, spec};
    use crate::kubernetes::render;
    use crate::network::PreviousNetwork;

    fn listed(changes: &[(&str, &str)]) -> Vec<String> {
        let changes: Vec<_> = [("FIREWALL", "nftables")].into_iter().chain(changes.iter().copied()).collect();
        let desired = node(&changes);
        assert!(desired.units.iter().any(|unit| unit.name == FIREWALL_UNIT && unit.enable && unit.restart_on.contains(FIREWALL)));
        // What is written is what the command reads.
        let read: FirewallFile = crate::budgets::json::typed(content(&desired, FIREWALL)).unwrap();
        let shown = read.open.iter().map(|one| {
            let ports =
                one.ports.map_or(
                    String::new(),
                    |(first, last)| {
                        if first == last { format!(" {first}") } else { format!(" {first}-{last}") }
                    },
                );
            let from = one.from.map_or(String::new(), |from| format!(" from {from}"));
            format!("{:?}{ports} {}{from}", one.protocol, one.what).to_lowercase()
        });
        shown.collect()
    }

    #[test]
    fn a_node_opens_what_it_runs_and_no_more() {
        const MINION: &[(&str, &str)] = &[("ROLE", "minion"), ("KUBE_MASTER_IP", "192.0.2.5")];
        let everywhere = ["tcp 30000-32767 nodeports", "udp 30000-32767 nodeports"];
        let pods = "forwarded pods from 10.100.0.0/16";
        let on_master = ["tcp 2379 etcd clients", "tcp 2380 etcd peers", "tcp 6443 kube-apiserver", "tcp 10250 kubelet"];
        assert_eq!(listed(&[]), [&on_master[..], &everywhere, &[pods]].concat());
        assert_eq!(listed(MINION), [&["tcp 10250 kubelet"][..], &everywhere, &[pods]].concat());
        for (changes, line) in [
            (&[("FLANNEL_BACKEND", "vxlan")][..], "udp 8472 flannel vxlan"),
            (&[("FLANNEL_BACKEND", "udp")], "udp 8285 flannel udp"),
            (&[("FLANNEL_BACKEND", "wireguard")], "udp 51820 flannel wireguard"),
            (
                &[("KUBE_TAG", "v1.9.3"), ("FLANNEL_BACKEND", "vxlan"), ("FLANNEL_BACKEND_OPTIONS", r#"{"Port": 4789}"#)],
                "udp 4789 flannel vxlan",
            ),
            (&[("NETWORK_DRIVER", "calico")], "tcp 179 calico bgp"),
            (&[("KUBELET_OPTIONS", "--read-only-port=10255")], "tcp 10255 kubelet read-only"),
            (&[("SERVICE_NODE_PORT_RANGE", "20000-20100")], "udp 20000-20100 nodeports"),
            (&[("KUBEAPI_OPTIONS", "--service-node-port-range=20000-20100")], "tcp 20000-20100 nodeports"),
            (&[("KUBESCHEDULER_OPTIONS", "--bind-address=0.0.0.0")], "tcp 10259 kube-scheduler"),
            (&[("KUBECONTROLLER_OPTIONS", "--bind-address=0.0.0.0 --secure-port=11000")], "tcp 11000 kube-controller-manager"),
            (&[("NODE_LAYOUT", "kubernetes-ansible")], "tcp 4001 etcd clients"),
            (&[("CLUSTER_SUBNET_CIDR", "192.0.2.0/24")], "tcp 2380 etcd peers from 192.0.2.0/24"),
            // Users and other networks reach the API.
            (&[("CLUSTER_SUBNET_CIDR", "192.0.2.0/24")], "tcp 6443 kube-apiserver"),
        ] {
            let found = listed(changes);
            assert!(found.iter().any(|one| one == line), "{changes:?}: {found:?}");
        }
    }

    #[test]
    fn a_difference_is_one_line_an_opening() {
        let desired = node(&[("FIREWALL", "iptables-services"), ("CLUSTER_SUBNET_CIDR", "192.0.2.0/24")]);
        let text = content(&desired, FIREWALL);
        assert!(
            text.starts_with(
                "{\n  \"tool\": \"iptables-services\",\n  \"open\": [\n    {\"what\":\"etcd clients\",\"protocol\":\"tcp\",\"ports\":[2379,2379],\
                 \"from\":\"192.0.2.0/24\"},\n"
            ),
            "{text}"
        );
        for (asked, tool) in [("nftables", FirewallTool::Nftables), ("firewalld", FirewallTool::Firewalld)] {
            let read: FirewallFile = crate::budgets::json::typed(content(&node(&[("FIREWALL", asked)]), FIREWALL)).unwrap();
            assert_eq!((read.tool, tool.as_str()), (Some(tool), asked));
        }
        assert!(file(&node(&[]), FIREWALL).is_none());
    }

    /// What was made of an earlier firewall's rules is named in the file, from whatever the file said before, and stays named.
    #[test]
    fn a_firewall_that_is_named_no_more_gives_its_rules_back() {
        use FirewallTool::{Firewalld, IptablesServices, Nftables};
        for (made, asked, tool, cleared) in [
            (vec![], "off", None, None),
            (vec![Nftables], "off", None, Some(vec![Nftables])),
            (vec![Nftables], "nftables", Some(Nftables), Some(vec![])),
            (vec![Nftables], "firewalld", Some(Firewalld), Some(vec![Nftables])),
            (vec![Nftables, IptablesServices], "iptables-services", Some(IptablesServices), Some(vec![Nftables])),
        ] {
            let facts = |firewalls| MachineFacts {
                made: PreviousNetwork { firewalls, ..PreviousNetwork::default() },
                ..MachineFacts::default()
            };
            let spec = spec(&[("FIREWALL", asked)]);
            let desired = render(&spec, &facts(made.clone())).unwrap();
            let written = file(&desired, FIREWALL).map(|file| file.content.clone());
            let read = written.as_ref().map(|text| crate::budgets::json::typed::<FirewallFile>(text).unwrap());
            assert_eq!(read.as_ref().map(|read| read.cleared.clone()), cleared, "{made:?} {asked}");
            let Some(read) = read else { continue };
            assert_eq!((read.tool, read.open.is_empty()), (tool, tool.is_none()), "{made:?} {asked}");
            assert!(desired.units.iter().any(|unit| unit.name == FIREWALL_UNIT && unit.enable));
            // With what the file then says, the same is rendered: no generation follows from a change that was carried out.
            let again = render(&spec, &facts(read.tool.into_iter().chain(read.cleared).collect())).unwrap();
            assert_eq!(file(&again, FIREWALL).map(|file| file.content.clone()), written, "{made:?} {asked}");
        }
    }
}
