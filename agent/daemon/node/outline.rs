//! What of a node's plan `status` shows: who it is, and which volumes it has.

use std::path::Path;

use serde_json::Value;

use super::in_place::spec_of;
use crate::desired::{Desired, Volume};
use crate::files::{READ_LIMIT, Tree};
use crate::kubernetes::{self, NodeSpec, Role};
use crate::machine::facts;
use crate::report::condition_state::ConditionState;
use crate::report::status::{NodeState, NodeStatus};
use crate::report::volume::VolumeStatus;

/// A node as it is asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Outline {
    role: &'static str,
    name: String,
    kube_version: Option<String>,
    volumes: Vec<VolumeStatus>,
}

impl Outline {
    pub(super) fn of(spec: &NodeSpec, desired: &Desired, hostname: &str) -> Self {
        let volume = |volume: &Volume| VolumeStatus {
            name: volume.role.to_string(),
            disk: volume.disk.as_str().to_owned(),
            place: volume.mount_point.clone(),
            ..VolumeStatus::default()
        };
        Self {
            role: match spec.role {
                Role::Master => "master",
                Role::Minion => "minion",
            },
            name: spec.node_name(hostname),
            kube_version: spec.kube_version.clone(),
            volumes: desired.volumes.iter().map(volume).collect(),
        }
    }

    /// Of the entry of a deployment that was carried out: nothing where this version cannot read it any more.
    pub(in crate::daemon) fn of_entry(entry: &Value, root: &Tree) -> Option<Self> {
        let spec = spec_of(entry).ok()?;
        let desired = kubernetes::render(&spec, &facts::of_machine(root)).ok()?;
        Some(Self::of(&spec, &desired, &hostname(root)))
    }

    /// The node with what is known of it. `is_sound`: whether the newest look found everything in its place.
    pub(in crate::daemon) fn show(&self, node: NodeStatus, is_sound: bool) -> NodeStatus {
        let volume = |known: &VolumeStatus| {
            let step = node.step_of_volume(&known.name);
            // Nobody waits for it any more.
            let given_up = |state| {
                if state == ConditionState::Waiting && node.state == NodeState::Rejected {
                    ConditionState::Pending
                } else {
                    state
                }
            };
            VolumeStatus {
                state: step.map(|step| given_up(step.state)).or(is_sound.then_some(ConditionState::Ok)),
                since: step.and_then(|step| step.since.clone()),
                cause: step.and_then(|step| step.cause.clone()),
                remedy: step.and_then(|step| step.remedy.clone()),
                ..known.clone()
            }
        };
        let volumes = self.volumes.iter().map(volume).collect();
        let (role, name, kube_version) = (Some(self.role.to_owned()), Some(self.name.clone()), self.kube_version.clone());
        NodeStatus { role, name, kube_version, volumes, ..node }
    }
}

/// The machine's own name.
pub(super) fn hostname(root: &Tree) -> String {
    let bytes = root.read(Path::new("/proc/sys/kernel/hostname"), READ_LIMIT).ok().flatten().unwrap_or_default();
    String::from_utf8_lossy(&bytes).trim().to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::report::status::{Condition, Subject};

    #[test]
    fn a_node_is_shown_with_who_it_is_and_its_volumes_as_the_steps_or_the_look_say() {
        let volume = "8c2b6d4e-5a8f-4c43-9d6a-1f6f4c1c2a11";
        let config = json!({"KUBE_NODE_IP": "192.0.2.5", "INSTANCE_NAME": "m-0", "KUBE_TAG": "v1.28.9", "CLUSTER_UUID": volume,
            "CERTIFICATES": "given", "CA_CERTIFICATE": "/ca.crt", "CA_KEY": "/ca.key", "CONTAINER_RUNTIME": "containerd",
            "KEYSTONE_AUTH_ENABLED": "false", "ETCD_VOLUME": volume});
        let root = tempfile::tempdir().unwrap();
        let root = Tree::open(root.path()).unwrap();
        let outline = Outline::of_entry(&json!({"id": "i", "group": "kubernetes-node", "config": config}), &root).unwrap();
        assert_eq!(Outline::of_entry(&json!({"id": "i", "group": "kubernetes-node", "config": {"ROLE": "x"}}), &root), None);
        let (ok, waits) = (ConditionState::Ok, ConditionState::Waiting);
        for (node_state, step, is_sound, expected) in [
            (NodeState::Applying, Some(waits), false, Some(waits)),
            (NodeState::Applied, Some(ok), false, Some(ok)),
            (NodeState::Rejected, Some(waits), false, Some(ConditionState::Pending)),
            (NodeState::Applied, None, true, Some(ok)),
            (NodeState::Applied, None, false, None),
        ] {
            let cause = Some("not attached".to_owned());
            let step = step.map(|state| Condition {
                subject: Some(Subject::Volume("etcd".into())),
                state,
                cause,
                ..Condition::default()
            });
            let node = NodeStatus { state: node_state, steps: step.into_iter().collect(), ..NodeStatus::default() };
            let shown = outline.show(node, is_sound);
            let who = (shown.role.as_deref(), shown.name.as_deref(), shown.kube_version.as_deref());
            assert_eq!(who, (Some("master"), Some("m-0"), Some("v1.28.9")));
            let [etcd] = &shown.volumes[..] else { panic!("{:?}", shown.volumes) };
            assert_eq!((etcd.name.as_str(), etcd.disk.as_str(), etcd.state), ("etcd", volume, expected), "{node_state:?}");
            assert_eq!(etcd.cause.is_some(), !shown.steps.is_empty());
        }
    }
}
