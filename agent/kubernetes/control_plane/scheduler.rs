//! kube-scheduler on masters. It has all that it needs as flags in every minor, so there is no configuration file that
//! would make it ignore a user's flags.

use super::controller_manager::LocalComponent;
use super::podmaster;
use crate::desired::{Desired, File};
use crate::kubernetes::parts::certificates::SCHEDULER;
use crate::kubernetes::parts::daemon::Flags;
use crate::kubernetes::spec::cluster::{ClusterSpec, MachineFacts};
use crate::kubernetes::versions::Component;

pub(in crate::kubernetes) const UNIT: &str = "kube-scheduler.service";

/// Its part of the node.
/// `given`: what other parts of the node write.
pub(in crate::kubernetes) fn part(cluster: &ClusterSpec, facts: &MachineFacts, given: &[File]) -> Desired {
    let mut part = Desired::default();
    if podmaster::elects(cluster) {
        return part;
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
    drop(flags.add_user_options(&cluster.options.scheduler));
    local.add((cluster, facts), &flags, given, &mut part);
    part
}
