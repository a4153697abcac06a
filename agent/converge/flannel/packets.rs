//! Whether packets to the pods of others arrive, and what it means where they do not.
//!
//! A packet that may go one hop to an address among a peer's pods comes back from the peer's kernel before any firewall there sees it.
//! Sent from the node's own address it shows that the peer is up and passes packets on to its pods; the same from the address of this node's
//! bridge shows that packets of pods leave this node's port and come in at the peer's. So where the first comes back and nothing
//! of the second is heard, what lies between drops packets for their source address: Neutron's port security, or a security group
//! (seed-systems.md 8e). A peer that is down, or not ready, comes to no verdict.

use std::net::Ipv4Addr;

use ipnet::Ipv4Net;

use crate::desired::Peer;
use crate::reach::PacketOutcome;

/// How many peers are asked in one look.
pub const ASKED: usize = 3;

/// A peer to be asked, and from which addresses of this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    /// Whose pods.
    pub peer: Peer,
    /// Address of this node's bridge.
    pub bridge: Ipv4Addr,
    /// This node's own address.
    pub node: Ipv4Addr,
}

/// What came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replies {
    /// From whom.
    pub peer: Peer,
    /// From the node's address, one hop, to [`far`].
    pub control: PacketOutcome,
    /// The same from the bridge's address.
    pub far: PacketOutcome,
    /// From the bridge's address to [`near`].
    pub near: PacketOutcome,
}

impl Replies {
    fn arrives(&self) -> bool {
        self.far.is_heard() || self.near.is_heard()
    }
}

/// The bridge's own address on a node with this subnet (seed-systems.md 8c: the first).
#[must_use]
pub fn near(subnet: Ipv4Net) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(subnet.network()).saturating_add(1))
}

/// An address among the pods: the last.
#[must_use]
pub fn far(subnet: Ipv4Net) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(subnet.broadcast()).saturating_sub(1))
}

/// What it means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PacketVerdict {
    /// Packets arrive, or nobody is there who could show it.
    Ok,
    /// Packets of pods are dropped on the way to everybody.
    Lost(Vec<Peer>),
    /// They arrive at some, and not at these.
    Silent(Vec<Peer>),
}

/// Judges the answers of one look.
#[must_use]
pub fn verdict(received: &[Replies]) -> PacketVerdict {
    // A firewall of this machine, or a bridge that is not there yet, says nothing of the way.
    let dropped = |one: &&Replies| one.control.is_heard() && one.far == PacketOutcome::Silence && !one.arrives();
    let silent: Vec<Peer> = received.iter().filter(dropped).map(|one| one.peer).collect();
    if silent.is_empty() {
        PacketVerdict::Ok
    } else if received.iter().any(Replies::arrives) {
        PacketVerdict::Silent(silent)
    } else {
        PacketVerdict::Lost(silent)
    }
}

/// The first of some, and how many more there are.
#[must_use]
pub fn named(peers: &[Peer]) -> String {
    let first: Vec<String> = peers.iter().take(3).map(|peer| format!("{} of node {}", peer.subnet, peer.node)).collect();
    let more = peers.len().saturating_sub(first.len());
    if more > 0 { format!("{} and {more} more", first.join(", ")) } else { first.join(", ") }
}

/// Why packets are lost.
#[must_use]
pub fn lost(network: Ipv4Net, peers: &[Peer]) -> String {
    format!(
        "the routes are correct, but pod traffic does not arrive: the nodes answer this node, but nothing from its bridge ({}) reaches them. \
         allowed_address_pairs of the Neutron ports must contain {network}, and the security groups must allow it",
        named(peers)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use PacketOutcome::{Arrived, NotAsked, Silence, TurnedBack};

    #[test]
    fn only_what_is_dropped_for_its_source_is_lost() {
        let lost = |ids: &[u8]| PacketVerdict::Lost(ids.iter().map(|id| peer(*id)).collect());
        let silent = |ids: &[u8]| PacketVerdict::Silent(ids.iter().map(|id| peer(*id)).collect());
        for (case, answers, expected) in [
            ("nobody there", vec![], PacketVerdict::Ok),
            ("they arrive", vec![[TurnedBack, TurnedBack, Arrived]], PacketVerdict::Ok),
            ("a firewall on the peer", vec![[TurnedBack, TurnedBack, Silence]], PacketVerdict::Ok),
            ("one that says no", vec![[TurnedBack, Silence, TurnedBack]], PacketVerdict::Ok),
            ("the peer is down", vec![[Silence, Silence, Silence]], PacketVerdict::Ok),
            ("the peer does not forward yet", vec![[Silence, Silence, Arrived]], PacketVerdict::Ok),
            ("the kernel's search for the peer ended", vec![[TurnedBack, TurnedBack, TurnedBack]], PacketVerdict::Ok),
            ("this node's bridge does not exist", vec![[TurnedBack, NotAsked, NotAsked]], PacketVerdict::Ok),
            ("port security", vec![[TurnedBack, Silence, Silence]], lost(&[0])),
            ("port security, one down", vec![[Silence; 3], [TurnedBack, Silence, Silence]], lost(&[1])),
            ("a peer that is odd", vec![[TurnedBack, Silence, Silence], [TurnedBack, TurnedBack, Arrived]], silent(&[0])),
        ] {
            let received: Vec<Replies> = (0..)
                .zip(&answers)
                .map(|(id, [control, far, near])| Replies { peer: peer(id), control: *control, far: *far, near: *near })
                .collect();
            assert_eq!(verdict(&received), expected, "{case}");
        }
    }

    fn peer(id: u8) -> Peer {
        Peer { subnet: Ipv4Net::new(Ipv4Addr::new(10, 100, id, 0), 24).unwrap(), node: Ipv4Addr::new(192, 0, 2, id) }
    }

    #[test]
    fn the_cause_names_the_network_and_both_settings() {
        let peers: Vec<Peer> = (1..=5).map(peer).collect();
        let text = lost("10.100.0.0/16".parse().unwrap(), &peers);
        for part in [
            "10.100.1.0/24 of node 192.0.2.1, ",
            " and 2 more)",
            "allowed_address_pairs",
            "contain 10.100.0.0/16",
            "security groups",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert_eq!((near(peers[0].subnet), far(peers[0].subnet)), ([10, 100, 1, 1].into(), [10, 100, 1, 254].into()));
    }
}
