//! In which order components and nodes go to another release.

use super::cluster::ApiServer;
use super::row::Release;
use crate::kubernetes::control_plane::{apiserver, controller_manager, scheduler};
use crate::kubernetes::parts::paths::HAPROXY_UNIT;
use crate::kubernetes::spec::words::Role;
use crate::kubernetes::worker::{kube_proxy, kubelet};

/// The order in which a node's components go to another release: each group once those before it answer (Kubernetes' version skew policy,
/// "Supported component upgrade order").
///
/// HAProxy on a master has the kubelet's minor in its settings: with that of the new one it would refuse the other masters, which the old one
/// needs while its own API server is restarted.
pub const UPGRADE_ORDER: [&[&str]; 5] =
    [&[apiserver::UNIT], &[controller_manager::UNIT, scheduler::UNIT], &[HAPROXY_UNIT], &[kubelet::UNIT], &[kube_proxy::UNIT]];

/// The order in which a cluster goes to a release, as its operator does it; nothing for a release that it cannot go to, where a check says
/// what comes first.
#[must_use]
pub fn order(role: Role, target: Release, servers: &[ApiServer]) -> Vec<String> {
    let minor = target.minor;
    let known = || servers.iter().filter_map(|server| Some((server.release.as_ref().ok()?.minor, server.name.as_str())));
    let (low, high) = (known().min(), known().max());
    if low.is_some_and(|(low, _)| minor > low.plus(1)) || high.is_some_and(|(high, _)| minor < high) {
        return Vec::new();
    }
    let left: Vec<&str> = known().filter(|(release, _)| *release < minor).map(|(_, name)| name).collect();
    let which =
        if left.is_empty() || role != Role::Master { String::new() } else { format!(" (still older: {})", left.join(", ")) };
    let tag = if target.patch.is_some() { target.tag() } else { format!("v{minor}.PATCH") };
    vec![
        "a snapshot: `heat-node-agent etcd snapshot` on one master".to_owned(),
        format!(
            "masters{which}, one after another: drain the node, install the programs of {minor}, update its deployment with KUBE_TAG={tag}; \
             the agent restarts kube-apiserver, then kube-controller-manager and kube-scheduler, then kubelet, then kube-proxy"
        ),
        format!("workers, once every master serves {minor}: the same, kubelet before kube-proxy"),
    ]
}
