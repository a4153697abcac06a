//! The kernel's routes to the pods of other nodes, held against what flannel's leases or the parameters ask for
//! (seed-systems.md 8d). Pure: the text of /proc/net/route and the peers in, what is wrong out.

use std::fmt;
use std::net::Ipv4Addr;

use ipnet::Ipv4Net;

use crate::desired::Peer;

/// RTF_UP and RTF_REJECT of `<linux/route.h>`.
const UP: u32 = 0x1;
const REJECT: u32 = 0x200;

/// A route of the kernel's main table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcRoute {
    /// `eth0`; `*` where packets are refused.
    pub interface: String,
    /// Where to.
    pub to: Ipv4Net,
    /// By way of whom; nobody on the own segment.
    pub gateway: Option<Ipv4Addr>,
    /// Of several routes to one place the one with the least counts.
    pub metric: u32,
    /// Packets are refused or dropped.
    pub rejects: bool,
}

impl ProcRoute {
    /// Whether those whom it leads to are on the segment of its interface.
    fn is_direct(&self) -> bool {
        self.gateway.is_none() && !self.rejects
    }

    fn way(&self) -> String {
        match self.gateway {
            Some(gateway) => format!("through {gateway} on {}", self.interface),
            None if self.rejects => "nowhere: the kernel refuses the packets".to_owned(),
            None => format!("directly to {}", self.interface),
        }
    }
}

/// Reads `/proc/net/route`: addresses are the bytes of the network's order, printed as a number of the machine's (proc(5)).
#[must_use]
pub fn parse(text: &str) -> Vec<ProcRoute> {
    text.lines().skip(1).filter_map(route).collect()
}

fn route(line: &str) -> Option<ProcRoute> {
    let mut words = line.split_ascii_whitespace();
    let interface = words.next()?.to_owned();
    let mut hex = || u32::from_str_radix(words.next()?, 16).ok();
    let (to, gateway, flags) = (address(hex()?), address(hex()?), hex()?);
    let metric = words.nth(2)?.parse().ok()?;
    let mask = address(u32::from_str_radix(words.next()?, 16).ok()?);
    let to = Ipv4Net::with_netmask(to, mask).ok()?;
    let gateway = Some(gateway).filter(|gateway| !gateway.is_unspecified());
    (flags & UP != 0).then_some(ProcRoute { interface, to, gateway, metric, rejects: flags & REJECT != 0 })
}

fn address(number: u32) -> Ipv4Addr {
    Ipv4Addr::from(number.to_ne_bytes())
}

/// The route that packets to an address take.
#[must_use]
pub fn best(routes: &[ProcRoute], to: Ipv4Addr) -> Option<&ProcRoute> {
    let leads = routes.iter().filter(|route| route.to.contains(&to));
    leads.min_by_key(|route| (u8::MAX - route.to.prefix_len(), route.metric))
}

/// The segment of the interface that has an address.
#[must_use]
pub fn segment(routes: &[ProcRoute], own: Ipv4Addr) -> Option<&ProcRoute> {
    best(routes, own).filter(|route| route.is_direct())
}

/// The machine's own addresses, by `/proc/net/fib_trie`: leaves with `/32 host LOCAL` right below. They stand in it once for
/// each of its tables.
#[must_use]
pub fn locals(trie: &str) -> Vec<Ipv4Addr> {
    let mut found = Vec::new();
    let mut leaf = None;
    for line in trie.lines().map(str::trim) {
        if let Some(address) = line.strip_prefix("|-- ") {
            leaf = address.parse().ok();
        } else if line.ends_with("host LOCAL") {
            found.extend(leaf.filter(|address| !found.contains(address)));
        }
    }
    found
}

/// One of flannel's leases: `a.b.c.0-24`, with IPv6 `a.b.c.0-24&v6-64`, and its JSON (seed-systems.md 8a). Only those of
/// host-gw have routes; what cannot be read is nobody's, and flannel leaves it alone, too.
#[must_use]
pub fn lease(key: &str, value: &str) -> Option<Peer> {
    let name = key.rsplit('/').next()?.split('&').next()?;
    let (address, length) = name.split_once('-')?;
    let subnet = Ipv4Net::new(address.parse().ok()?, length.parse().ok()?).ok()?;
    let value = crate::budgets::json::small(value.as_bytes())?;
    if value.get("BackendType")?.as_str()? != "host-gw" {
        return None;
    }
    Some(Peer { subnet: subnet.trunc(), node: value.get("PublicIP")?.as_str()?.parse().ok()? })
}

/// Something that is wrong with a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteProblem {
    /// There is none.
    Missing(Peer),
    /// It leads somewhere else.
    Elsewhere(Peer, ProcRoute),
    /// The node's own subnet is sent elsewhere (seed-systems.md 6b, and flannel 0.5.0).
    Own(ProcRoute),
    /// The peer's node is not on this node's segment: no route can lead there.
    OffSegment {
        /// Who.
        peer: Peer,
        /// This node's own address, where it is known.
        own: Option<Ipv4Addr>,
        /// The segment, and its interface.
        segment: Option<(Ipv4Net, String)>,
    },
    /// It leads to a node that is gone.
    LeftOver(ProcRoute),
}

impl fmt::Display for RouteProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(peer) => write!(f, "there is no route to {} of node {}", peer.subnet, peer.node),
            Self::Elsewhere(peer, route) => {
                write!(f, "packets to {} of node {} go {} (route to {})", peer.subnet, peer.node, route.way(), route.to)
            }
            Self::Own(route) => write!(f, "this node's own subnet {} is routed elsewhere, {}", route.to, route.way()),
            Self::OffSegment { peer, own, segment } => {
                write!(f, "node {} with {} is not on the same network segment as this node", peer.node, peer.subnet)?;
                if let Some(own) = own {
                    write!(f, ", {own}")?;
                }
                match segment {
                    Some((net, interface)) => write!(f, " ({net} on {interface})"),
                    None => Ok(()),
                }
            }
            Self::LeftOver(route) => write!(f, "the route to {} {} is left over: no node has that subnet", route.to, route.way()),
        }
    }
}

/// Who is asked for.
#[derive(Clone, Copy, Debug)]
pub struct RouteQuery<'a> {
    /// Every pod of the cluster.
    pub network: Ipv4Net,
    /// This node's own subnet, where it is known.
    pub subnet: Option<Ipv4Net>,
    /// This node's own address, where it is known.
    pub address: Option<Ipv4Addr>,
    /// The nodes; this one may be among them.
    pub peers: &'a [Peer],
}

impl RouteQuery<'_> {
    /// This node's address: as it was given, else as its own lease says.
    #[must_use]
    pub fn own_address(&self) -> Option<Ipv4Addr> {
        let own = self.peers.iter().find(|peer| Some(peer.subnet) == self.subnet);
        self.address.or(own.map(|own| own.node))
    }

    /// The other nodes. A lease that this node had before it was made anew has its address, and no route.
    pub fn others(&self) -> impl Iterator<Item = &Peer> {
        let own = self.own_address();
        self.peers.iter().filter(move |peer| Some(peer.subnet) != self.subnet && Some(peer.node) != own)
    }
}

/// What of the routes is not as it is asked for.
#[must_use]
pub fn compare(asked: &RouteQuery<'_>, routes: &[ProcRoute]) -> Vec<RouteProblem> {
    let own = asked.own_address();
    let mut wrong = Vec::new();
    let sent_away = |route: &&ProcRoute| route.gateway.is_some() && asked.subnet == Some(route.to);
    wrong.extend(routes.iter().find(sent_away).map(|route| RouteProblem::Own(route.clone())));
    for peer in asked.others() {
        if !best(routes, peer.node).is_some_and(ProcRoute::is_direct) {
            let segment = own.and_then(|own| segment(routes, own)).map(|route| (route.to, route.interface.clone()));
            wrong.push(RouteProblem::OffSegment { peer: *peer, own, segment });
            continue;
        }
        // A longer route inside of the subnet takes packets, too.
        let mut inside = routes.iter().filter(|route| peer.subnet.contains(&route.to));
        let leads = |route: &&ProcRoute| route.gateway == Some(peer.node) && !route.rejects;
        if best(routes, peer.subnet.addr()).is_none_or(|route| !peer.subnet.contains(&route.to)) {
            wrong.push(RouteProblem::Missing(*peer));
        } else if let Some(route) = inside.find(|route| !leads(route) && is_first(route, routes)) {
            wrong.push(RouteProblem::Elsewhere(*peer, route.clone()));
        }
    }
    for route in routes.iter().filter(|route| route.gateway.is_some() && asked.network.contains(&route.to)) {
        let is_asked = |peer: &Peer| peer.subnet.contains(&route.to);
        if asked.network != route.to && Some(route.to) != asked.subnet && !asked.peers.iter().any(is_asked) {
            wrong.push(RouteProblem::LeftOver(route.clone()));
        }
    }
    wrong
}

/// Of several routes to one place only the first takes packets.
fn is_first(route: &ProcRoute, routes: &[ProcRoute]) -> bool {
    routes.iter().all(|other| other.to != route.to || other.metric >= route.metric)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As a node with docker shows it (Linux 6.1): its own segment, its own pods, two peers.
    const NORMAL: &str = "\
Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
eth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0
eth0\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
docker0\t0001640A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
eth0\t0002640A\t0C0200C0\t0003\t0\t0\t0\t00FFFFFF\t0\t0\t0
eth0\t0003640A\t0D0200C0\t0003\t0\t0\t0\t00FFFFFF\t0\t0\t0
";

    fn peer(subnet: &str, node: &str) -> Peer {
        Peer { subnet: subnet.parse().unwrap(), node: node.parse().unwrap() }
    }

    fn three() -> Vec<Peer> {
        vec![peer("10.100.1.0/24", "192.0.2.11"), peer("10.100.2.0/24", "192.0.2.12"), peer("10.100.3.0/24", "192.0.2.13")]
    }

    fn wrong(text: &str, peers: &[Peer]) -> Vec<String> {
        let asked = RouteQuery {
            network: "10.100.0.0/16".parse().unwrap(),
            subnet: Some("10.100.1.0/24".parse().unwrap()),
            address: None,
            peers,
        };
        compare(&asked, &parse(text)).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn routes_are_read_as_the_kernel_prints_them() {
        let routes = parse(NORMAL);
        assert_eq!(routes.len(), 5);
        assert_eq!(
            routes[3],
            ProcRoute {
                interface: "eth0".into(),
                to: "10.100.2.0/24".parse().unwrap(),
                gateway: Some("192.0.2.12".parse().unwrap()),
                metric: 0,
                rejects: false,
            }
        );
        for text in
            ["", "Iface\n", "Iface\neth0\n", "Iface\neth0 0 0 0003 0 0 0 000000F1 0 0 0\n", "Iface\neth0 x 0 3 0 0 0 0 0 0 0\n"]
        {
            assert_eq!(parse(text), [], "{text:?}");
        }
        // A blackhole, and a route that is down.
        let odd = "Iface\n*\t0000640A\t00000000\t0201\t0\t0\t0\t0000FFFF\t0\t0\t0\neth0\t0000640A\t00000000\t0000\t0\t0\t0\t0000FFFF\t0\t0\t0\n";
        assert!(matches!(parse(odd).as_slice(), [ProcRoute { rejects: true, gateway: None, .. }]));
    }

    #[test]
    fn each_thing_that_can_be_wrong_with_a_route_is_reported_with_its_addresses() {
        let line = |to: &str, gateway: &str, interface: &str, mask: &str| {
            format!("{interface}\t{to}\t{gateway}\t0003\t0\t0\t0\t{mask}\t0\t0\t0\n")
        };
        let without = |word: &str| NORMAL.split_inclusive('\n').filter(|line| !line.contains(word)).collect::<String>();
        let far = [three(), vec![peer("10.100.4.0/24", "198.51.100.7")]].concat();
        let gone = three()[..2].to_vec();
        let anew = [three(), vec![peer("10.100.9.0/24", "192.0.2.11")]].concat();
        for (case, text, peers, expected) in [
            ("normal", NORMAL.to_owned(), three(), vec![]),
            ("nobody else", without("0002640A").replace("eth0\t0003640A", "lo\t0003640B"), three()[..1].to_vec(), vec![]),
            ("its own lease from before", NORMAL.to_owned(), anew, vec![]),
            (
                "lost event",
                without("0003640A"),
                three(),
                vec!["there is no route to 10.100.3.0/24 of node 192.0.2.13".to_owned()],
            ),
            (
                "another gateway",
                NORMAL.replace("0C0200C0", "630200C0"),
                three(),
                vec![
                    "packets to 10.100.2.0/24 of node 192.0.2.12 go through 192.0.2.99 on eth0 (route to 10.100.2.0/24)"
                        .to_owned(),
                ],
            ),
            (
                "a bridge of its own has it",
                NORMAL.replace("eth0\t0002640A\t0C0200C0\t0003", "cbr0\t0002640A\t00000000\t0001"),
                three(),
                vec!["packets to 10.100.2.0/24 of node 192.0.2.12 go directly to cbr0 (route to 10.100.2.0/24)".to_owned()],
            ),
            (
                "half of it",
                NORMAL.to_owned() + &line("8002640A", "630200C0", "eth0", "80FFFFFF"),
                three(),
                vec![
                    "packets to 10.100.2.0/24 of node 192.0.2.12 go through 192.0.2.99 on eth0 (route to 10.100.2.128/25)"
                        .to_owned(),
                ],
            ),
            (
                "refused",
                NORMAL.replace("eth0\t0002640A\t0C0200C0\t0003", "*\t0002640A\t00000000\t0201"),
                three(),
                vec![
                    "packets to 10.100.2.0/24 of node 192.0.2.12 go nowhere: the kernel refuses the packets (route to 10.100.2.0/24)"
                        .to_owned(),
                ],
            ),
            (
                "the own subnet",
                NORMAL.to_owned() + &line("0001640A", "0B0200C0", "eth0", "00FFFFFF"),
                three(),
                vec!["this node's own subnet 10.100.1.0/24 is routed elsewhere, through 192.0.2.11 on eth0".to_owned()],
            ),
            (
                "two segments",
                NORMAL.to_owned(),
                far,
                vec![
                    "node 198.51.100.7 with 10.100.4.0/24 is not on the same network segment as this node, 192.0.2.11 (192.0.2.0/24 on eth0)"
                        .to_owned(),
                ],
            ),
            (
                "a node that is gone",
                NORMAL.to_owned(),
                gone,
                vec!["the route to 10.100.3.0/24 through 192.0.2.13 on eth0 is left over: no node has that subnet".to_owned()],
            ),
        ] {
            assert_eq!(wrong(&text, &peers), expected, "{case}");
        }
    }

    #[test]
    fn of_two_routes_the_one_that_counts_is_judged() {
        let worse = NORMAL.to_owned() + "eth0\t0002640A\t630200C0\t0003\t0\t0\t100\t00FFFFFF\t0\t0\t0\n";
        assert_eq!(wrong(&worse, &three()), [""; 0]);
        let better = worse.replace("0C0200C0\t0003\t0\t0\t0", "0C0200C0\t0003\t0\t0\t200");
        assert_eq!(wrong(&better, &three()).len(), 1);
    }

    #[test]
    fn leases_are_read_as_flannel_of_each_age_writes_them() {
        let old = r#"{"PublicIP":"192.0.2.12","BackendType":"host-gw"}"#;
        let new = r#"{"PublicIP":"192.0.2.12","PublicIPv6":null,"BackendType":"host-gw","BackendData":null}"#;
        let vxlan = r#"{"PublicIP":"192.0.2.12","BackendType":"vxlan","BackendData":{"VtepMAC":"5a:11:22:33:44:55"}}"#;
        let read = Some(peer("10.100.2.0/24", "192.0.2.12"));
        for (key, value, expected) in [
            ("/coreos.com/network/subnets/10.100.2.0-24", old, read),
            ("/coreos.com/network/subnets/10.100.2.0-24&fd00:42::-64", new, read),
            ("/coreos.com/network/subnets/10.100.2.0-24", vxlan, None),
            ("/coreos.com/network/subnets/10.100.2.0", old, None),
            ("/coreos.com/network/subnets/10.100.2.0-33", old, None),
            ("/coreos.com/network/subnets/10.100.2.0-24", "{}", None),
            ("/coreos.com/network/subnets/10.100.2.0-24", "", None),
        ] {
            assert_eq!(lease(key, value), expected, "{key} {value}");
        }
    }

    #[test]
    fn the_machines_own_addresses_are_those_that_its_tables_say() {
        let trie = "\
Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 0.0.0.0
        /0 universe UNICAST
     +-- 10.100.1.0/24 2 0 2
        |-- 10.100.1.0
           /24 link UNICAST
           /32 link BROADCAST
        |-- 10.100.1.1
           /32 host LOCAL
        |-- 10.100.1.255
           /32 link BROADCAST
";
        assert_eq!(locals(&[trie, trie].concat()), [Ipv4Addr::new(10, 100, 1, 1)]);
        assert_eq!(locals(""), [Ipv4Addr::UNSPECIFIED; 0]);
    }
}
