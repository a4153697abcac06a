//! docker: the distribution's `docker.service` with our settings.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::cluster::RuntimeKind;
use super::node_spec::NodeSpec;
use super::runtime::{self, Engine};
use crate::desired::{Desired, File, Gate, Need, Probe};

pub(super) const UNIT: &str = "docker.service";
const SETTINGS: &str = "/etc/docker/daemon.json";
pub(super) const DROP_IN: &str = "/etc/systemd/system/docker.service.d/50-heat-node-agent.conf";
pub(super) const STORE: &str = "/var/lib/docker";
pub(super) const CONTAINERS: &str = "/var/lib/docker/containers";
pub(super) const SWARM: &str = "/var/lib/docker/swarm";
const SOCKET: &str = "/run/docker.sock";
const STORAGE_DRIVER: &str = "overlay2";

/// Adds docker's part, where it is the runtime: a node without Kubernetes has no other.
pub(super) fn add(spec: &NodeSpec, desired: &mut Desired) {
    if let Some(cluster) = &spec.kubernetes {
        if cluster.runtime.kind != RuntimeKind::Docker {
            return;
        }
        runtime::keep_others_off(cluster, desired);
    }
    let engine = Engine {
        unit: UNIT,
        folder: "/etc/docker",
        store: STORE,
        // As dockerd itself makes its root.
        store_mode: 0o710,
        settings: vec![File::public(SETTINGS, settings(spec))],
    };
    engine.add(spec, desired);
    desired.gates.push(Gate {
        name: "docker".to_owned(),
        unit: Some(UNIT.to_owned()),
        probe: Probe::Docker {
            socket: SOCKET.to_owned(),
            storage_driver: STORAGE_DRIVER.to_owned(),
            data_root: STORE.to_owned(),
        },
        consecutive: 2,
        needs: BTreeSet::from([Need::Unit(UNIT.to_owned())]),
        remedy: format!("`journalctl -u {UNIT}`; `docker info`"),
    });
}

/// daemon.json. A setting that the daemon's command line also has makes docker refuse to start, so only what the
/// parameters or Magnum's nodes ask for is in it (magnum-node.md 2.4: log options).
fn settings(spec: &NodeSpec) -> String {
    let mut settings = Map::new();
    settings.insert("storage-driver".to_owned(), json!(STORAGE_DRIVER));
    settings.insert("log-driver".to_owned(), json!("json-file"));
    settings.insert("log-opts".to_owned(), json!({"max-size": "10m", "max-file": "5"}));
    // The kubelet's and docker's must be the same (magnum-node.md 7.4 no. 45).
    let of_cluster = spec.kubernetes.as_ref().map(|cluster| &cluster.runtime.cgroup_driver);
    if let Some(driver) = of_cluster.or(spec.cgroup_driver.as_ref()) {
        settings.insert("exec-opts".to_owned(), json!([format!("native.cgroupdriver={driver}")]));
    }
    if let Some(registry) = &spec.insecure_registry {
        settings.insert("insecure-registries".to_owned(), json!([registry]));
    }
    format!("{:#}\n", Value::Object(settings))
}
