//! The units of container runtimes.

use std::collections::BTreeSet;

use super::directories::add_directory;
use crate::desired::{Desired, File, Unit};
use crate::kubernetes::spec::cluster::ClusterSpec;
use crate::kubernetes::spec::words::RuntimeKind;

pub(in crate::kubernetes) const DOCKER: &str = "docker.service";
pub(in crate::kubernetes) const CONTAINERD: &str = "containerd.service";
pub(in crate::kubernetes) const CRI_O: &str = "crio.service";
pub(in crate::kubernetes) const CRI_DOCKERD: &str = "cri-docker.service";

/// The agent's file in a unit's folder of drop-ins.
pub(in crate::kubernetes) const DROP_IN: &str = "50-heat-node-agent.conf";

/// The unit that containers run by.
pub(in crate::kubernetes) fn unit_of_kind(cluster: &ClusterSpec) -> &'static str {
    match cluster.runtime.kind {
        RuntimeKind::Docker => DOCKER,
        RuntimeKind::Containerd(..) => CONTAINERD,
        RuntimeKind::CriO => CRI_O,
    }
}

pub(in crate::kubernetes) fn drop_ins(unit: &str) -> String {
    format!("/etc/systemd/system/{unit}.d")
}

/// Keeps a unit from starting, and ends it where it runs.
pub(in crate::kubernetes) fn block(unit: &str, why: &str, part: &mut Desired) {
    let folder = drop_ins(unit);
    let path = format!("{folder}/{DROP_IN}");
    let content = format!(
        "\
# Made by heat-node-agent.
[Unit]
# {why} This is never true.
ConditionPathExists=!/
"
    );
    add_directory(&folder, part);
    part.files.push(File::public(path.clone(), content));
    // Its one restart, when the file is new, ends one that runs.
    part.units.push(Unit {
        name: unit.to_owned(),
        enable: false,
        restart_on: BTreeSet::from([path]),
        needs: BTreeSet::new(),
        applies_files: true,
    });
}
