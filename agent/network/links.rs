//! Bridges, routes and the rules that let pods through: from what `ip` and `iptables` say to the commands that they get.
//!
//! The texts are those of iproute2 from 3.10 on, which has no `-json`, and of `iptables -S` of both kinds.

use std::net::Ipv4Addr;

use ipnet::Ipv4Net;

use crate::desired::Peer;
use crate::error::{Error, Result};

/// The protocol that marks our routes: iproute2's rt_protos names nothing by it. By it those that are no longer wanted are
/// known, and nobody else's are touched.
pub const ROUTE_PROTOCOL: &str = "72";
/// The comment of the rules that let pods through. Those of the host's firewall have another: [`super::firewall`].
pub const COMMENT: &str = "heat-node-agent";

/// The alias of a bridge that we made (`ip link set dev NAME alias …`). The kernel keeps it as long as the bridge is there, so that
/// it says of the bridge itself whose it is; nobody else's bridge is given or loses an address.
pub const ALIAS: &str = "heat-node-agent";

/// The words of a command: arguments of `ip` or of `iptables`.
pub type Words = Vec<String>;

/// Splits a command into its words.
#[must_use]
pub fn words(line: &str) -> Words {
    line.split_whitespace().map(str::to_owned).collect()
}

/// Addresses of one interface, from `ip -4 -o addr show dev NAME`.
#[must_use]
pub fn addresses(output: &str) -> Vec<Ipv4Net> {
    output.lines().filter_map(|line| after(line, "inet")?.parse().ok()).collect()
}

/// What is said of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterfaceState {
    /// Whether it was set up; it may lack a carrier.
    pub is_up: bool,
    /// Whether it is a bridge, and no port of one.
    pub is_bridge: bool,
    /// Whether it has our [`ALIAS`].
    pub is_ours: bool,
}

/// An interface, from `ip -d -o link show dev NAME`.
#[must_use]
pub fn link(output: &str) -> InterfaceState {
    let flags = output.split_once('<').and_then(|(_, rest)| rest.split_once('>'));
    // The alias is a line of its own, and any text.
    let (alias, output): (Vec<&str>, Vec<&str>) = output.split('\\').partition(|line| line.trim_start().starts_with("alias "));
    InterfaceState {
        is_ours: alias.iter().any(|line| line.trim().strip_prefix("alias ") == Some(ALIAS)),
        is_up: flags.is_some_and(|(flags, _)| flags.split(',').any(|flag| flag == "UP")),
        // Its kind stands alone, behind the address; `-o` writes a backslash for the end of a line.
        is_bridge: output.iter().any(|line| line.split_whitespace().any(|word| word == "bridge")),
    }
}

/// Names of the bridges that we made, from `ip -d -o link show`.
#[must_use]
pub fn our_bridges(output: &str) -> Vec<String> {
    let ours = output.lines().filter(|line| link(line).is_ours && link(line).is_bridge);
    // `4: kbr0: <…`, and `4: kbr0@if3: <…` of one that is a port of something.
    ours.filter_map(|line| Some(line.split(": ").nth(1)?.split('@').next()?.to_owned())).collect()
}

/// What a bridge that is there is to the one that is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BridgeOwnership {
    /// We made it: its addresses are ours to change.
    Ours,
    /// Nobody uses it: no address, nothing plugged in. It becomes ours.
    Free,
    /// Somebody else made it just as it is to be: it is left alone.
    AsWanted,
    /// It is somebody else's.
    Foreign,
}

/// Whose a bridge is.
#[must_use]
pub fn claim(link: InterfaceState, addresses: &[Ipv4Net], has_ports: bool, wanted: Ipv4Net) -> BridgeOwnership {
    if link.is_ours {
        BridgeOwnership::Ours
    } else if *addresses == [wanted] {
        BridgeOwnership::AsWanted
    } else if addresses.is_empty() && !has_ports {
        BridgeOwnership::Free
    } else {
        BridgeOwnership::Foreign
    }
}

/// What makes an interface have exactly this address. What is there goes first: with it goes every address that the kernel
/// counts as its second (net.ipv4.conf.*.promote_secondaries).
#[must_use]
pub fn set_address_commands(found: &[Ipv4Net], wanted: Ipv4Net, interface: &str) -> Vec<Words> {
    if *found == [wanted] {
        return Vec::new();
    }
    let others = found.iter().map(|other| words(&format!("addr del {other} dev {interface}")));
    others.chain([words(&format!("addr add {wanted} broadcast {} dev {interface}", wanted.broadcast()))]).collect()
}

/// How packets get to an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NextHop {
    /// It is on the link of this interface; packets go out from this address.
    OnLink(String, Ipv4Addr),
    /// Only through this router, from this address.
    Through(Ipv4Addr, Ipv4Addr),
    /// It is this node's own.
    Own,
}

/// The way to an address, from `ip -4 -o route get ADDRESS`; `None` where that says none.
#[must_use]
pub fn way(output: &str) -> Option<NextHop> {
    let source = after(output, "src")?.parse().ok()?;
    if output.starts_with("local ") {
        return Some(NextHop::Own);
    }
    match after(output, "via") {
        Some(router) => Some(NextHop::Through(router.parse().ok()?, source)),
        None => Some(NextHop::OnLink(after(output, "dev")?.to_owned(), source)),
    }
}

/// The interface on whose link a peer is.
///
/// # Errors
/// Where it is on none: packets to its pods would go to a router that does not know them.
pub fn interface_to(peer: &Peer, way: Option<NextHop>) -> Result<String> {
    let Peer { subnet, node } = peer;
    let error = match way {
        Some(NextHop::OnLink(interface, _)) => return Ok(interface),
        Some(NextHop::Through(router, own)) => {
            Error::permanent(format!("{node} is not on the network segment of this node's {own}: it is reached through {router}"))
                .rule("a route to a node's pods goes through that node's own address, on the same segment")
                .remedy("put all nodes on one Neutron subnet, or use flannel with the vxlan backend")
        }
        Some(NextHop::Own) => {
            Error::permanent(format!("{node} is this node's own address, but {subnet} is listed as another node's"))
                .rule("the node's own subnet must not be routed: traffic to local pods would leave the node")
                .remedy("correct the subnets of the nodes in the parameters")
        }
        None => Error::transient(format!("{node} is unreachable")).remedy("`ip route` shows this node's routes"),
    };
    Err(error.context(format!("routing {subnet} via {node}")))
}

/// A route of the main table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MainTableRoute {
    /// Where to.
    pub subnet: Ipv4Net,
    /// Through whom, where it is not on the link.
    pub via: Option<Ipv4Addr>,
    /// Out of which interface.
    pub interface: String,
    /// Whether it is one that we made.
    pub ours: bool,
}

/// Routes, from `ip -4 -o route show table main`.
#[must_use]
pub fn routes(output: &str) -> Vec<MainTableRoute> {
    output
        .lines()
        .filter_map(|line| {
            let to = line.split_whitespace().next()?;
            let subnet = to.parse().or_else(|_| to.parse::<Ipv4Addr>().map(Ipv4Net::from)).ok()?;
            Some(MainTableRoute {
                subnet,
                via: after(line, "via").and_then(|via| via.parse().ok()),
                interface: after(line, "dev")?.to_owned(),
                ours: after(line, "proto") == Some(ROUTE_PROTOCOL),
            })
        })
        .collect()
}

/// What makes one peer's pods be reached by its node, which is on the link of `interface`; nothing where they are.
///
/// # Errors
/// Where somebody else has made another route to the same subnet.
pub fn route_to(peer: &Peer, interface: &str, found: &[MainTableRoute]) -> Result<Option<Words>> {
    let Peer { subnet, node } = peer;
    let mut verb = "add";
    for route in found.iter().filter(|route| route.subnet == *subnet) {
        if route.via == Some(*node) && route.interface == interface {
            return Ok(None);
        }
        if !route.ours {
            let via = route.via.map_or_else(|| "on the link".to_owned(), |via| format!("via {via}"));
            return Err(Error::permanent(format!(
                "it already has a route {via} dev {} that is not the agent's",
                route.interface
            ))
            .context(format!("routing {subnet} via {node}"))
            .rule("the agent changes only its own routes")
            .remedy(format!("ip route del {subnet}, and find out what creates it")));
        }
        verb = "replace";
    }
    Ok(Some(words(&format!("route {verb} {subnet} via {node} dev {interface} proto {ROUTE_PROTOCOL}"))))
}

/// What removes those of our routes that lead to no peer any more.
#[must_use]
pub fn stale_route_removals(found: &[MainTableRoute], peers: &[Peer]) -> Vec<Words> {
    let stray = |route: &&MainTableRoute| route.ours && !peers.iter().any(|peer| peer.subnet == route.subnet);
    found.iter().filter(stray).map(|route| words(&format!("route del {} proto {ROUTE_PROTOCOL}", route.subnet))).collect()
}

/// The chain that docker passes what is forwarded to before its own rules, and whose rules it leaves alone; it may be made before docker starts.
pub const DOCKER_CHAIN: &str = "DOCKER-USER";

/// What lets packets from and to pods be forwarded, from `iptables -S` of this chain. From 1.13 on docker sets the policy of FORWARD to
/// DROP, and its own rules let in only what its containers asked for or publish (seed-systems.md 8d); from 28 on they drop everything else to
/// its bridge.
///
/// They are two rules and no policy: what else the host forwards stays as closed as it was. They go to the top, above the
/// final reject that a distribution's firewall may have; docker starts later and puts its own above them, and flushes nothing.
///
/// Without a network ours are taken away.
#[must_use]
pub fn forwarding_rules(chain: &str, output: &str, network: Option<Ipv4Net>) -> Vec<Words> {
    let tail = format!("-m comment --comment {COMMENT} -j ACCEPT");
    let both = |network: Ipv4Net| [format!("-s {network} {tail}"), format!("-d {network} {tail}")];
    let wanted: Vec<String> = network.map(both).into_iter().flatten().collect();
    let ours = output.lines().filter_map(|line| line.strip_prefix("-A ")?.strip_prefix(chain)?.strip_prefix(' '));
    let ours = ours.filter(|rule| rule.ends_with(&tail));
    let (kept, strays): (Vec<&str>, Vec<&str>) = ours.partition(|rule| wanted.iter().any(|wanted| wanted == rule));
    let strays = strays.into_iter().map(|rule| words(&format!("-D {chain} {rule}")));
    let missing = wanted.iter().filter(|rule| !kept.contains(&rule.as_str()));
    strays.chain(missing.map(|rule| words(&format!("-I {chain} {rule}")))).collect()
}

/// What lets pods reach what is outside of their network by the node's address, from `iptables -t nat -S POSTROUTING`. Only that: pods of
/// other nodes, and their network policies, see a pod's own address. docker and CNI's bridge plugin would masquerade whatever leaves the
/// bridge, so they are configured not to.
///
/// Without a network ours are taken away.
#[must_use]
pub fn masquerade(output: &str, network: Option<Ipv4Net>) -> Vec<Words> {
    let tail = format!("-m comment --comment {COMMENT} -j MASQUERADE");
    let wanted = network.map(|network| format!("-s {network} ! -d {network} {tail}"));
    let ours = output.lines().filter_map(|line| line.strip_prefix("-A POSTROUTING ")).filter(|rule| rule.ends_with(&tail));
    let (kept, strays): (Vec<&str>, Vec<&str>) = ours.partition(|rule| wanted.as_deref() == Some(*rule));
    let strays = strays.into_iter().map(|rule| words(&format!("-t nat -D POSTROUTING {rule}")));
    let missing = wanted.filter(|_| kept.is_empty()).map(|rule| words(&format!("-t nat -A POSTROUTING {rule}")));
    strays.chain(missing).collect()
}

/// The word behind a word.
fn after<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    line.split_whitespace().skip_while(|word| *word != name).nth(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(text: &str) -> Ipv4Net {
        text.parse().unwrap()
    }

    fn lines(commands: &[Words]) -> Vec<String> {
        commands.iter().map(|words| words.join(" ")).collect()
    }

    fn peer(subnet: &str, node: &str) -> Peer {
        Peer { subnet: net(subnet), node: node.parse().unwrap() }
    }

    #[test]
    fn a_bridge_gets_exactly_its_address() {
        let output = "4: kbr0    inet 10.0.9.1/24 brd 10.0.9.255 scope global kbr0\\       valid_lft forever preferred_lft forever\n\
                    4: kbr0    inet 10.0.9.2/24 scope global secondary kbr0\\       valid_lft forever preferred_lft forever\n";
        assert_eq!(addresses(output), [net("10.0.9.1/24"), net("10.0.9.2/24")]);
        for (found, wanted) in [
            (
                output,
                &[
                    "addr del 10.0.9.1/24 dev kbr0",
                    "addr del 10.0.9.2/24 dev kbr0",
                    "addr add 10.0.1.1/24 broadcast 10.0.1.255 dev kbr0",
                ][..],
            ),
            ("", &["addr add 10.0.1.1/24 broadcast 10.0.1.255 dev kbr0"]),
            ("4: kbr0    inet 10.0.1.1/24 brd 10.0.1.255 scope global kbr0", &[]),
            // The same address with another length is another one.
            (
                "4: kbr0    inet 10.0.1.1/16 scope global kbr0",
                &["addr del 10.0.1.1/16 dev kbr0", "addr add 10.0.1.1/24 broadcast 10.0.1.255 dev kbr0"],
            ),
        ] {
            assert_eq!(lines(&set_address_commands(&addresses(found), net("10.0.1.1/24"), "kbr0")), wanted, "{found}");
        }
    }

    #[test]
    fn a_bridge_without_a_carrier_is_up_all_the_same() {
        let bridge = "\\    link/ether 2a:.. brd ff:ff:ff:ff:ff:ff promiscuity 0 \\    bridge forward_delay 1500 hello_time 200 ";
        let port = "\\    link/ether 2a:.. brd ff:ff:ff:ff:ff:ff promiscuity 1 \\    veth \\    bridge_slave state forwarding ";
        let ours = &format!("{bridge}\\    alias heat-node-agent");
        let other = &format!("{port}\\    alias the bridge of heat-node-agent");
        for (flags, details, is_up, is_bridge, is_ours) in [
            ("<NO-CARRIER,BROADCAST,MULTICAST,UP>", bridge, true, true, false),
            ("<BROADCAST,MULTICAST,LOWER_UP>", bridge, false, true, false),
            ("<BROADCAST,MULTICAST,UP,LOWER_UP>", port, true, false, false),
            ("<BROADCAST,MULTICAST,UP,LOWER_UP>", ours, true, true, true),
            ("<BROADCAST,MULTICAST,UP,LOWER_UP>", other, true, false, false),
        ] {
            let output = format!("4: kbr0: {flags} mtu 1500 qdisc noqueue state DOWN mode DEFAULT group default {details}");
            assert_eq!(link(&output), InterfaceState { is_up, is_bridge, is_ours }, "{output}");
        }
        let line = |name: &str, details: &str| {
            format!("4: {name}: <UP> mtu 1500 qdisc noqueue state DOWN mode DEFAULT group default {details}\n")
        };
        let output = [line("eth0", port), line("br0", bridge), line("kbr0", ours), line("veth1@if2", port)].concat();
        assert_eq!(our_bridges(&output), ["kbr0"]);
    }

    /// What an operator's bridge has stays on it: only ours is readdressed.
    #[test]
    fn a_bridge_is_ours_by_its_alias_alone() {
        let wanted = net("10.0.1.1/24");
        for (is_ours, addresses, has_ports, expected) in [
            (true, &["10.0.9.1/24"][..], true, BridgeOwnership::Ours),
            (false, &[], false, BridgeOwnership::Free),
            (false, &[], true, BridgeOwnership::Foreign),
            (false, &["192.0.2.11/24"], true, BridgeOwnership::Foreign),
            (false, &["192.0.2.11/24"], false, BridgeOwnership::Foreign),
            (false, &["10.0.1.1/24"], true, BridgeOwnership::AsWanted),
            (false, &["10.0.1.1/24", "192.0.2.11/24"], true, BridgeOwnership::Foreign),
        ] {
            let addresses: Vec<_> = addresses.iter().map(|text| net(text)).collect();
            let link = InterfaceState { is_up: true, is_bridge: true, is_ours };
            assert_eq!(claim(link, &addresses, has_ports, wanted), expected, "{is_ours} {addresses:?} {has_ports}");
        }
    }

    #[test]
    fn a_peer_is_on_the_link_or_the_error_names_both_addresses() {
        let to = |output: &str| interface_to(&peer("10.0.2.0/24", "192.0.2.12"), way(output));
        assert_eq!(to("192.0.2.12 dev eth0 src 192.0.2.11 uid 0 \\    cache ").as_deref(), Ok("eth0"));
        assert_eq!(to("192.0.2.12 dev eth0  src 192.0.2.11 \\    cache ").as_deref(), Ok("eth0"), "of iproute2 3.10");
        for (output, words) in [
            (
                "192.0.2.12 via 198.51.100.1 dev eth0 src 198.51.100.7 uid 0 \\    cache ",
                &["192.0.2.12", "198.51.100.7", "198.51.100.1"][..],
            ),
            ("local 192.0.2.12 dev lo src 192.0.2.12 uid 0 \\    cache <local> ", &["192.0.2.12 is this node's own address"]),
            ("", &["192.0.2.12 is unreachable"]),
        ] {
            let error = to(output).unwrap_err().to_string();
            assert!(words.iter().all(|word| error.contains(word)), "{output}: {error}");
        }
    }

    #[test]
    fn routes_are_added_replaced_or_left_and_nobody_elses_is_touched() {
        let found = routes(
            "default via 192.0.2.1 dev eth0 \n\
             10.0.1.0/24 dev kbr0 proto kernel scope link src 10.0.1.1 linkdown \n\
             10.0.2.0/24 via 192.0.2.12 dev eth0 proto 72 \n\
             10.0.3.0/24 via 192.0.2.99 dev eth0 proto 72 \n\
             10.0.4.0/24 via 192.0.2.14 dev eth0 proto static metric 100 \n\
             10.0.5.0/24 via 192.0.2.99 dev eth0 proto static \n\
             10.0.7.0/24 via 192.0.2.17 dev eth0 proto 72 \n\
             10.0.8.7 via 192.0.2.17 dev eth0 \n\
             192.0.2.0/24 dev eth0 proto kernel scope link src 192.0.2.11 \n",
        );
        assert_eq!(found.len(), 8);
        for (subnet, node, wanted) in [
            ("10.0.2.0/24", "192.0.2.12", None),
            ("10.0.3.0/24", "192.0.2.13", Some("route replace 10.0.3.0/24 via 192.0.2.13 dev eth0 proto 72")),
            // kubernetes-ansible has made the same one.
            ("10.0.4.0/24", "192.0.2.14", None),
            ("10.0.6.0/24", "192.0.2.16", Some("route add 10.0.6.0/24 via 192.0.2.16 dev eth0 proto 72")),
        ] {
            let command = route_to(&peer(subnet, node), "eth0", &found).unwrap();
            assert_eq!(command.map(|words| words.join(" ")).as_deref(), wanted, "{subnet}");
        }
        for (subnet, words) in [
            ("10.0.5.0/24", "already has a route via 192.0.2.99 dev eth0"),
            ("10.0.1.0/24", "already has a route on the link dev kbr0"),
        ] {
            let error = route_to(&peer(subnet, "192.0.2.15"), "eth0", &found).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
        let peers = [peer("10.0.2.0/24", "192.0.2.12"), peer("10.0.3.0/24", "192.0.2.13")];
        assert_eq!(lines(&stale_route_removals(&found, &peers)), ["route del 10.0.7.0/24 proto 72"]);
    }

    #[test]
    fn pods_are_let_through_once_and_another_network_no_longer() {
        let network = net("10.1.0.0/16");
        let both = "-A FORWARD -d 10.1.0.0/16 -m comment --comment heat-node-agent -j ACCEPT\n\
                    -A FORWARD -s 10.1.0.0/16 -m comment --comment heat-node-agent -j ACCEPT\n";
        let add = [
            "-I FORWARD -s 10.1.0.0/16 -m comment --comment heat-node-agent -j ACCEPT",
            "-I FORWARD -d 10.1.0.0/16 -m comment --comment heat-node-agent -j ACCEPT",
        ];
        let docker = "-P FORWARD DROP\n-A FORWARD -j DOCKER-USER\n-A FORWARD -i docker0 ! -o docker0 -j ACCEPT\n";
        let others = "-A FORWARD -s 10.1.0.0/16 -j ACCEPT\n-A FORWARD -s 10.9.0.0/16 -m comment --comment \"heat-node-agent: pods\" -j ACCEPT\n";
        for (output, wanted) in [
            ("-P FORWARD ACCEPT\n".to_owned(), add.to_vec()),
            (docker.to_owned(), add.to_vec()),
            (format!("{docker}{both}"), vec![]),
            (format!("{docker}{others}"), add.to_vec()),
            (
                format!("{both}-A FORWARD -s 10.2.0.0/16 -m comment --comment heat-node-agent -j ACCEPT\n"),
                vec!["-D FORWARD -s 10.2.0.0/16 -m comment --comment heat-node-agent -j ACCEPT"],
            ),
        ] {
            assert_eq!(lines(&forwarding_rules("FORWARD", &output, Some(network))), wanted, "{output}");
        }
        // No network at all takes ours away, and nobody else's.
        let gone = lines(&forwarding_rules("FORWARD", &format!("{docker}{others}{both}"), None));
        assert_eq!(gone, [add[1], add[0]].map(|rule| rule.replace("-I", "-D")));
        let added = lines(&forwarding_rules(DOCKER_CHAIN, &format!("-N DOCKER-USER\n{both}"), Some(network)));
        assert_eq!(added, add.map(|rule| rule.replace("FORWARD", "DOCKER-USER")));
    }

    #[test]
    fn only_what_leaves_the_network_of_pods_is_masqueraded() {
        let rule = "-s 10.1.0.0/16 ! -d 10.1.0.0/16 -m comment --comment heat-node-agent -j MASQUERADE";
        let other = "-s 10.2.0.0/16 ! -d 10.2.0.0/16 -m comment --comment heat-node-agent -j MASQUERADE";
        let dockers = "-P POSTROUTING ACCEPT\n-A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE\n";
        let (add, del) = (format!("-t nat -A POSTROUTING {rule}"), |rule| format!("-t nat -D POSTROUTING {rule}"));
        for (output, network, wanted) in [
            (dockers.to_owned(), Some(net("10.1.0.0/16")), vec![add.clone()]),
            (format!("{dockers}-A POSTROUTING {rule}\n"), Some(net("10.1.0.0/16")), vec![]),
            (format!("-A POSTROUTING {other}\n"), Some(net("10.1.0.0/16")), vec![del(other), add]),
            (format!("{dockers}-A POSTROUTING {rule}\n"), None, vec![del(rule)]),
            (dockers.to_owned(), None, vec![]),
        ] {
            assert_eq!(lines(&masquerade(&output, network)), wanted, "{output}");
        }
    }
}
