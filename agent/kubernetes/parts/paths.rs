//! Paths and units that several components name.

/// Before the masters, where the parameters ask for a load balancer on the node.
pub(in crate::kubernetes) const HAPROXY_UNIT: &str = "haproxy.service";

pub(in crate::kubernetes) const SYSCTL_UNIT: &str = "systemd-sysctl.service";

/// Certificate of who signed OpenStack's certificates, for what speaks to OpenStack from this node.
pub(in crate::kubernetes) const OPENSTACK_CA: &str = "/etc/kubernetes/ca-bundle.crt";

/// Refuses on a copy of a disk; its unit comes with the agent.
pub const GUARD: &str = "heat-node-agent-guard.service";

/// In the unit section of every service that holds a membership, keys or containers: on a copy of a disk it must not start
/// as the instance that the disk was copied from.
pub(in crate::kubernetes) const GUARDED: &str = "\
# Not as another instance, if this disk is a copy.
Requires=heat-node-agent-guard.service
After=heat-node-agent-guard.service
";

/// Where the programs of pod networks lie. The one source of both paths, for runtimes and kubelets (magnum-node.md 7.4 no. 46).
pub(in crate::kubernetes) const CNI_PROGRAMS: &str = "/opt/cni/bin";
/// Where pod networks are described.
pub(in crate::kubernetes) const CNI_NETWORKS: &str = "/etc/cni/net.d";
