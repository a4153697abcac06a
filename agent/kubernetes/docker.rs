//! docker on every node: the distribution's `docker.service` with our settings.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::environment_file::line;
use super::host::{GUARDED, directory};
use super::node_spec::{NodeSpec, Proxy, VolumeSpec};
use crate::desired::{Desired, File, Gate, Need, Owner, Probe, Unit, Volume, VolumeRole};
use crate::order::gather;

const UNIT: &str = "docker.service";
const SETTINGS: &str = "/etc/docker/daemon.json";
const PROXY: &str = "/etc/docker/proxy.env";
pub(super) const DROP_IN: &str = "/etc/systemd/system/docker.service.d/50-heat-node-agent.conf";
pub(super) const STORE: &str = "/var/lib/docker";
pub(super) const CONTAINERS: &str = "/var/lib/docker/containers";
pub(super) const SWARM: &str = "/var/lib/docker/swarm";
const SOCKET: &str = "/run/docker.sock";
const STORAGE_DRIVER: &str = "overlay2";

/// Adds docker's part.
pub(super) fn add(spec: &NodeSpec, desired: &mut Desired) {
    desired.directories.push(directory("/etc/docker"));
    desired.directories.push(directory("/etc/systemd/system/docker.service.d"));
    let mut needs = BTreeSet::new();
    if let Some(volume) = &spec.runtime_volume {
        desired.volumes.push(store_volume(volume, &spec.cluster));
        needs.insert(Need::Volume(VolumeRole::Runtime));
    }
    let mut restart_on: BTreeSet<_> = gather([SETTINGS.to_owned(), DROP_IN.to_owned()]);
    desired.files.push(File::public(SETTINGS, settings(spec)));
    if let Some(proxy) = &spec.proxy {
        // Proxy URLs may hold a password.
        let content = environment(proxy);
        desired.files.push(File { path: PROXY.to_owned(), mode: 0o600, owner: Owner::root(), content, secret: true });
        restart_on.insert(PROXY.to_owned());
    }
    desired.files.push(File::public(DROP_IN, drop_in(spec)));
    desired.units.push(Unit { name: UNIT.to_owned(), enable: true, restart_on, needs, applies_files: false });
    desired.gates.push(Gate {
        name: "docker".to_owned(),
        unit: Some(UNIT.to_owned()),
        probe: Probe::Docker {
            socket: SOCKET.to_owned(),
            storage_driver: STORAGE_DRIVER.to_owned(),
            data_root: STORE.to_owned(),
        },
        consecutive: 2,
        needs: gather([Need::Unit(UNIT.to_owned())]),
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
    if let Some(driver) = &spec.cgroup_driver {
        settings.insert("exec-opts".to_owned(), json!([format!("native.cgroupdriver={driver}")]));
    }
    if let Some(registry) = &spec.insecure_registry {
        settings.insert("insecure-registries".to_owned(), json!([registry]));
    }
    format!("{:#}\n", Value::Object(settings))
}

fn environment(proxy: &Proxy) -> String {
    let mut out = String::from("# Made by heat-node-agent.\n");
    for (key, value) in [("HTTP_PROXY", &proxy.http), ("HTTPS_PROXY", &proxy.https)] {
        if let Some(value) = value {
            out.push_str(&line(key, value.reveal()));
        }
    }
    out.push_str(&line("NO_PROXY", &proxy.none.join(",")));
    out
}

fn drop_in(spec: &NodeSpec) -> String {
    let mut out = format!(
        "\
# Made by heat-node-agent.
[Unit]
{GUARDED}\
# Never on the directory below the volume.
RequiresMountsFor={STORE}
"
    );
    if spec.runtime_volume.is_some() {
        // Also in the moments before the mount unit is there.
        out.push_str("AssertPathIsMountPoint=");
        out.push_str(STORE);
        out.push('\n');
    }
    if spec.proxy.is_some() {
        out.push_str("\n[Service]\nEnvironmentFile=");
        out.push_str(PROXY);
        out.push('\n');
    }
    out
}

fn store_volume(volume: &VolumeSpec, cluster: &str) -> Volume {
    Volume {
        role: VolumeRole::Runtime,
        cinder_id: volume.id.clone(),
        hint: "/dev/vdb".to_owned(),
        mount_point: STORE.to_owned(),
        // As dockerd itself makes its root.
        root_mode: 0o710,
        root_owner: Owner::root(),
        format: volume.format,
        format_parameter: "DOCKER_VOLUME_FORMAT",
        adopt: volume.adopt.clone(),
        cluster: cluster.to_owned(),
        users: vec![UNIT.to_owned()],
    }
}
