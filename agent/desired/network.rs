//! The network of pods, as far as the agent makes or measures something of it.

use std::net::Ipv4Addr;

use ipnet::Ipv4Net;
use serde::{Deserialize, Serialize};

use super::ClientIdentity;

/// Where and how etcd is asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EtcdAccess {
    /// Base URL: `https://192.0.2.11:2379`.
    pub endpoint: String,
    /// As whom, where it speaks TLS.
    pub identity: Option<ClientIdentity>,
}

/// This node's own member of etcd.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EtcdMember {
    /// As a client asks it.
    pub access: EtcdAccess,
    /// Where its peers reach it, as it announces itself.
    pub peer: String,
    /// Whether the parameters name no others.
    #[serde(skip)]
    pub is_single: bool,
    /// Its name, as it announces itself.
    #[serde(skip)]
    pub name: String,
    /// Whether what Kubernetes keeps is in its v2 store.
    #[serde(skip)]
    pub keeps_v2: bool,
    /// As whom it is asked there, where it speaks TLS. A generation is not known by it.
    #[serde(skip)]
    pub peer_identity: Option<ClientIdentity>,
}

impl EtcdMember {
    /// As its peers ask it.
    #[must_use]
    pub fn as_peer(&self) -> EtcdAccess {
        EtcdAccess { endpoint: self.peer.clone(), identity: self.peer_identity.clone() }
    }
}

/// flannel with its network's description and its leases in etcd (seed-systems.md 8a).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FlannelStore {
    /// Its etcd.
    pub etcd: EtcdAccess,
    /// The key that everything lies below: `/coreos.com/network`.
    pub prefix: String,
    /// The network's description that PREFIX/config must hold: JSON, equal in meaning on every node of the cluster.
    pub description: String,
    /// Whether this node writes it (a master); else the node waits until it is there.
    pub writes: bool,
}

/// A node of the network and the pods behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Peer {
    /// Where its pods are.
    pub subnet: Ipv4Net,
    /// The node's own address, which packets to them go by.
    pub node: Ipv4Addr,
}

/// Who the other nodes are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Peers {
    /// Those with a lease of flannel.
    Leases(FlannelStore),
    /// Those that the parameters name; this node's own subnet is not among them.
    Given(Vec<Peer>),
}

/// Routes to the pods of every other node, through that node's address: flannel's host-gw, or the parameters'.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PodRoutes {
    /// Every pod of the cluster.
    pub network: Ipv4Net,
    /// To whom.
    pub peers: Peers,
    /// This node's own address, where the parameters give it.
    pub address: Option<Ipv4Addr>,
    /// The bridge that pods of this node are on; its address is the one that peers are probed from.
    pub bridge: String,
}
