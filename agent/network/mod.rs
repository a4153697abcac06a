//! The network of pods and the host's firewall: what they need of a node.
//!
//! In: parameters, and what was found (leases, routes, addresses, texts of files). Out: descriptions, options, rules, and what is
//! wrong. Never: a question to the machine; everything here is pure.

pub mod firewall;
pub mod flannel;
pub mod links;
pub mod routes;
pub mod subnet_env;

use ipnet::Ipv4Net;
use serde::{Deserialize, Serialize};

use crate::desired::Peer;

/// What `heat-node-agent pod-network` reads, which the unit of that name runs at each boot, before the container runtime and without
/// the daemon.
pub const POD_NETWORK: &str = "/etc/heat-node-agent/pod-network.json";
/// The unit.
pub const POD_NETWORK_UNIT: &str = "heat-node-pod-network.service";
/// The network that runtimes read, where a CNI plugin makes the bridge.
pub const CNI_NETWORK: &str = "/etc/cni/net.d/10-heat-node-agent.conflist";
/// What `heat-node-agent firewall` reads.
pub const FIREWALL: &str = "/etc/heat-node-agent/firewall.json";
/// The unit that runs it, after the firewall's own.
pub const FIREWALL_UNIT: &str = "heat-node-firewall.service";
/// Where flanneld writes the node's subnet (seed-systems.md 8c), and where the one of Magnum 6.3 does (magnum-node.md 1.7).
pub const SUBNET_FILES: [&str; 2] = ["/run/flannel/subnet.env", "/run/flanneld/subnet.env"];
/// Where docker's unit reads its bridge's address and MTU from, in the variable [`DOCKER_VARIABLE`].
pub const DOCKER_OPTIONS: &str = "/run/flannel/docker";
/// `--bip=… --mtu=…` (magnum-node.md 1.7).
pub const DOCKER_VARIABLE: &str = "DOCKER_NETWORK_OPTIONS";

/// The content of [`POD_NETWORK`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum PodNetworkFile {
    /// flannel gives the node its subnet, and docker's bridge is to have it.
    DockerBridge {
        /// Every pod of the cluster.
        network: Ipv4Net,
        /// `docker0`.
        bridge: String,
    },
    /// flannel gives the node its subnet, and a CNI plugin makes the bridge.
    Cni {
        /// Every pod of the cluster.
        network: Ipv4Net,
    },
    /// The parameters say each node's subnet.
    Routes {
        /// Every pod of the cluster.
        network: Ipv4Net,
        /// `kbr0`.
        bridge: String,
        /// The bridge's address and the length of the node's subnet: `10.0.1.1/24`.
        address: Ipv4Net,
        /// The other nodes.
        peers: Vec<Peer>,
    },
    /// The network is none of the agent's any more: what an earlier one left on the node is taken away.
    Nothing {},
}

/// The content of [`FIREWALL`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct FirewallFile {
    /// Whose rules they become; nobody's where only those of earlier parameters are taken away.
    pub tool: Option<FirewallTool>,
    /// Who is asked no more, and gives back what became a rule of his.
    #[serde(default)]
    pub cleared: Vec<FirewallTool>,
    /// What is let in.
    pub open: Vec<Opening>,
}

/// What the agent made on this node by earlier parameters, as the files that it wrote for its units say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PreviousNetwork {
    /// Firewalls that may hold rules of ours.
    pub firewalls: Vec<FirewallTool>,
    /// Whether there is a description of the network of pods.
    pub pod_network: bool,
    /// Whether flanneld was set up as a unit, or disabled.
    pub flannel: bool,
}

/// A network interface of this machine, as far as a bridge of pods may be in its way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Whether it is a bridge.
    pub is_bridge: bool,
    /// Whether the agent made it: it has our [`links::ALIAS`].
    pub is_ours: bool,
    /// Whether something is plugged into it.
    pub has_ports: bool,
    /// Networks that its own addresses are in.
    pub networks: Vec<Ipv4Net>,
}

/// Who keeps the host's firewall.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FirewallTool {
    /// `nftables.service` with `/etc/nftables.conf`, or `/etc/sysconfig/nftables.conf`.
    Nftables,
    /// firewalld.
    Firewalld,
    /// `iptables.service` of Fedora's iptables-services.
    IptablesServices,
}

impl FirewallTool {
    /// As `FIREWALL` names it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Nftables => "nftables",
            Self::Firewalld => "firewalld",
            Self::IptablesServices => "iptables-services",
        }
    }
}

/// Ports that the node's own services are reached by.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Opening {
    /// Whose: `etcd clients`. A short name without quotes, which the rule's comment carries.
    pub what: String,
    /// How packets come in.
    pub protocol: Protocol,
    /// First and last port, equal for one; none for forwarded packets of the whole network.
    pub ports: Option<(u16, u16)>,
    /// From where alone, where that is known.
    pub from: Option<Ipv4Net>,
}

/// How packets come in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// Any, of packets that the node forwards.
    Forwarded,
}
