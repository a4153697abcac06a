//! What one node is to be, as types; `parse` fills them.

use std::net::IpAddr;
use std::time::Duration;

use serde_json::Value;

use super::cluster::ClusterSpec;
use super::storage::{Storage, VolumeSpec};
use super::words::{Role, Secret};
use crate::kubernetes::parameters::mistake::Mistake;
use crate::kubernetes::versions::Minor;

/// A node as its parameters ask for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeSpec {
    /// Control plane or worker.
    pub role: Role,
    /// `INSTANCE_NAME`.
    pub name: Option<String>,
    /// `KUBE_NODE_IP`.
    pub address: Option<IpAddr>,
    /// Cluster id that volumes are marked with; empty only where there is no volume.
    pub cluster: String,
    /// `KUBE_TAG`.
    pub kube_version: Option<String>,
    /// Kubernetes, where the parameters ask for a version.
    pub kubernetes: Option<ClusterSpec>,
    /// What the reader should know, although the node can be brought up as asked.
    pub warnings: Vec<Mistake>,
    /// How the runtime keeps images and containers.
    pub storage: Storage,
    /// The runtime's volume.
    pub runtime_volume: Option<VolumeSpec>,
    /// etcd's volume.
    pub etcd_volume: Option<VolumeSpec>,
    /// `ETCD_DISCOVERY_URL`: a capability, so a secret.
    pub etcd_discovery: Option<Secret>,
    /// `CGROUP_DRIVER`, where it was given.
    pub cgroup_driver: Option<String>,
    /// `INSECURE_REGISTRY_URL`.
    pub insecure_registry: Option<String>,
    /// Proxies, where one was given.
    pub proxy: Option<Proxy>,
    /// The wait condition to signal.
    pub wait_handle: Option<Value>,
    /// `WAIT_TIMEOUT`: how long Heat waits for the node.
    pub timeout: Duration,
    /// How long the node may take: less, so that Heat hears of it before it gives up.
    pub deadline: Duration,
    /// Whether differences are put right by themselves.
    pub repair: bool,
    /// Whether an update that ends containers, or may, drains the node first.
    pub drain: bool,
    /// What happens where the machine is too small for its role.
    pub preflight: Preflight,
}

/// `PREFLIGHT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preflight {
    /// It is reported.
    Warn,
    /// The node is not begun.
    Refuse,
    /// Nobody looks.
    Off,
}

/// How the runtime reaches the outside. Proxy URLs may hold credentials.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Proxy {
    /// `HTTP_PROXY`.
    pub http: Option<Secret>,
    /// `HTTPS_PROXY`.
    pub https: Option<Secret>,
    /// `NO_PROXY` with what a node must always reach directly.
    pub none: Vec<String>,
}

impl NodeSpec {
    /// The minor of Kubernetes; none where the node has none.
    #[must_use]
    pub fn minor(&self) -> Option<Minor> {
        self.kubernetes.as_ref().map(|cluster| cluster.minor)
    }

    /// `INSTANCE_NAME`, else the host name without what Nova's DHCP appends (magnum-node.md 1.5).
    #[must_use]
    pub fn node_name(&self, hostname: &str) -> String {
        self.name.clone().unwrap_or_else(|| hostname.split('.').next().unwrap_or_default().to_ascii_lowercase())
    }
}
