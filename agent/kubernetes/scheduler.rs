//! kube-scheduler on masters. It has all that it needs as flags in every minor, so there is no configuration file that
//! would make it ignore a user's flags.

use super::certificates::SCHEDULER;
use super::cluster::{ClusterSpec, Facts};
use super::controller_manager::LocalComponent;
use super::daemon::Flags;
use super::node_spec::NodeSpec;
use super::podmaster;
use super::versions::Component;
use crate::desired::Desired;

pub(super) const UNIT: &str = "kube-scheduler.service";

/// Adds its part.
pub(super) fn add(spec: &NodeSpec, cluster: &ClusterSpec, _facts: &Facts, desired: &mut Desired) {
    if podmaster::elects(cluster) {
        return;
    }
    let mut flags = Flags::new(Component::Scheduler, cluster.minor);
    let local = LocalComponent {
        component: Component::Scheduler,
        unit: UNIT,
        gate: "scheduler",
        settings: "/etc/kubernetes/scheduler",
        rest: "KUBE_SCHEDULER_ARGS",
        config: "/etc/kubernetes/scheduler.conf",
        pair: &SCHEDULER,
        insecure_port: 10251,
        secure_port: 10259,
    };
    local.set_common(cluster, &mut flags);
    drop(flags.options(&cluster.options.scheduler));
    local.add(spec, cluster, &flags, desired);
}
