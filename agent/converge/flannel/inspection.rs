//! A look at the node's subnet, its routes and its addresses. Reads files of /run and /proc only.

use std::net::Ipv4Addr;
use std::path::Path;

use ipnet::Ipv4Net;

use super::packets::{ASKED, Question};
use crate::desired::{Peer, Peers, PodRoutes};
use crate::error::{Context, Error, Result};
use crate::files::{READ_LIMIT, Tree};
use crate::network::SUBNET_FILES;
use crate::network::routes::{ProcRoute, RouteProblem, RouteQuery, best, compare, locals, parse, segment};
use crate::network::subnet_env::{self, Subnet};
use crate::report::Code;

/// The kernel's routes, of the main table.
const ROUTES: &str = "/proc/net/route";
/// Its addresses.
const ADDRESSES: &str = "/proc/net/fib_trie";

/// What a look found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SubnetInspection {
    /// This node's own subnet.
    pub subnet: Option<Ipv4Net>,
    /// The other nodes.
    pub others: Vec<Peer>,
    /// What is wrong with the routes.
    pub wrong: Vec<RouteProblem>,
    /// This node's own address, where a lease or the parameters say it.
    own: Option<Ipv4Addr>,
    routes: Vec<ProcRoute>,
}

/// Holds the kernel's routes against what is asked for. `leases`: who has one, where flannel deals them out.
///
/// # Errors
/// If flannel has given no subnet yet, or something cannot be read.
pub fn inspect(root: &Tree, pods: &PodRoutes, leases: &[Peer]) -> Result<SubnetInspection> {
    let routes = parse(&read(root, ROUTES)?);
    let (subnet, peers) = match &pods.peers {
        Peers::Leases(_) => (Some(subnet(root)?.address.trunc()), leases),
        Peers::Given(peers) => {
            let of_bridge = |route: &&ProcRoute| {
                route.interface == pods.bridge && route.gateway.is_none() && pods.network.contains(&route.to)
            };
            (routes.iter().find(of_bridge).map(|route| route.to), peers.as_slice())
        }
    };
    let asked = RouteQuery { network: pods.network, subnet, address: pods.address, peers };
    if let (Peers::Leases(store), Some(subnet)) = (&pods.peers, subnet)
        && peers.iter().all(|peer| peer.subnet != subnet)
    {
        let cause = format!("no host-gw lease under {}/subnets is for this node's subnet {subnet}", store.prefix);
        return Err(
            Error::transient(cause).remedy("check `journalctl -u flanneld` for the backend in use and for lease renewals")
        );
    }
    let wrong = compare(&asked, &routes);
    Ok(SubnetInspection { subnet, others: asked.others().copied().collect(), wrong, own: asked.own_address(), routes })
}

impl SubnetInspection {
    /// Whom to ask whether packets arrive: a few of those whose routes are right, beginning at another one each time. Nobody
    /// where the bridge has no address yet.
    ///
    /// # Errors
    /// If the machine's addresses cannot be read.
    pub fn questions(&self, root: &Tree, turn: usize) -> Result<Vec<Question>> {
        let is_right = |peer: &&Peer| {
            !self.wrong.iter().any(|wrong| match wrong {
                RouteProblem::Missing(of) | RouteProblem::Elsewhere(of, _) | RouteProblem::OffSegment { peer: of, .. } => {
                    of == *peer
                }
                RouteProblem::Own(_) | RouteProblem::LeftOver(_) => false,
            })
        };
        let right: Vec<Peer> = self.others.iter().filter(is_right).copied().collect();
        let (Some(first), Some(subnet)) = (right.first(), self.subnet) else { return Ok(Vec::new()) };
        let all = locals(&read(root, ADDRESSES)?);
        let within = |net: Ipv4Net| all.iter().find(|address| net.contains(*address)).copied();
        let node = self.own.or_else(|| best(&self.routes, first.node).and_then(|route| within(route.to)));
        let (Some(bridge), Some(node)) = (within(subnet), node) else { return Ok(Vec::new()) };
        let begin = turn.checked_rem(right.len()).unwrap_or_default();
        let chosen = right.iter().cycle().skip(begin).take(ASKED.min(right.len()));
        Ok(chosen.map(|peer| Question { peer: *peer, bridge, node }).collect())
    }
}

/// The message of the catalog for what is wrong with a route.
#[must_use]
pub fn code(wrong: &RouteProblem) -> Code {
    match wrong {
        RouteProblem::Missing(_) => Code::RouteMissing,
        RouteProblem::Elsewhere(..) => Code::RouteMisdirected,
        RouteProblem::Own(_) => Code::OwnSubnetRouted,
        RouteProblem::OffSegment { .. } => Code::PeerOffSegment,
        RouteProblem::LeftOver(_) => Code::RouteLeftOver,
    }
}

/// What flannel has given this node.
///
/// # Errors
/// Transient while flanneld has written nothing; else what is wrong with it.
fn subnet(root: &Tree) -> Result<Subnet> {
    for path in SUBNET_FILES {
        if let Some(bytes) = root.read(Path::new(path), READ_LIMIT)? {
            return subnet_env::parse(&String::from_utf8_lossy(&bytes)).context(|| format!("reading {path}"));
        }
    }
    Err(Error::transient(format!("flanneld has not written a subnet yet (neither {})", SUBNET_FILES.join(" nor "))))
}

/// Whether flannel's subnet is of the network, and the bridge has its address.
///
/// # Errors
/// What is not so.
pub fn check_subnet(root: &Tree, network: Ipv4Net, bridge: Option<&str>) -> Result<()> {
    let Subnet { network: reported, address, .. } = subnet(root)?;
    if reported.is_some_and(|reported| reported.trunc() != network.trunc()) || !network.contains(&address) {
        let of = reported.map(|reported| format!(" of {reported}")).unwrap_or_default();
        return Err(Error::transient(format!("flanneld has the subnet {address}{of}, but the pod network is {network}")));
    }
    let Some(bridge) = bridge else { return Ok(()) };
    let routes = parse(&read(root, ROUTES)?);
    let of_bridge = |route: &ProcRoute| route.interface == bridge && route.to == address.trunc();
    if segment(&routes, address.addr()).is_some_and(of_bridge) && locals(&read(root, ADDRESSES)?).contains(&address.addr()) {
        return Ok(());
    }
    Err(Error::transient(format!("{bridge} does not have the address {address} that flannel gave this node")))
}

fn read(root: &Tree, path: &str) -> Result<String> {
    let bytes = root.read(Path::new(path), READ_LIMIT)?.unwrap_or_default();
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
