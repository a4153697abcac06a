//! docker's places, which networks and memberships name too.

pub(in crate::kubernetes) const UNIT: &str = "docker.service";

pub(in crate::kubernetes) const DROP_IN: &str = "/etc/systemd/system/docker.service.d/50-heat-node-agent.conf";
pub(in crate::kubernetes) const STORE: &str = "/var/lib/docker";
pub(in crate::kubernetes) const CONTAINERS: &str = "/var/lib/docker/containers";
pub(in crate::kubernetes) const SWARM: &str = "/var/lib/docker/swarm";
