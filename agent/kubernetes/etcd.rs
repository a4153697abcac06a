//! etcd on a master: the distribution's `etcd.service` with our settings.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::environment_file::line;
use super::host::{GUARDED, directory};
use super::node_spec::{NodeSpec, VolumeSpec};
use crate::desired::{Desired, Directory, File, Gate, Need, Owner, Probe, Unit, Volume, VolumeRole};
use crate::order::gather;

const UNIT: &str = "etcd.service";
const SETTINGS: &str = "/etc/etcd/etcd.conf";
pub(super) const DROP_IN: &str = "/etc/systemd/system/etcd.service.d/50-heat-node-agent.conf";
pub(super) const STORE: &str = "/var/lib/etcd";
pub(super) const DATA: &str = "/var/lib/etcd/default.etcd";

/// Adds etcd's part.
pub(super) fn add(spec: &NodeSpec, address: IpAddr, desired: &mut Desired) {
    desired.directories.push(directory("/etc/etcd"));
    desired.directories.push(directory("/etc/systemd/system/etcd.service.d"));
    let mut store_needs = BTreeSet::new();
    if let Some(volume) = &spec.etcd_volume {
        desired.volumes.push(store_volume(volume, &spec.cluster));
        store_needs.insert(Need::Volume(VolumeRole::Etcd));
    } else {
        desired.directories.push(private(STORE, BTreeSet::new()));
    }
    desired.directories.push(private(DATA, store_needs.clone()));
    // The discovery URL lets its reader join the cluster. systemd reads the file as root.
    let secret = spec.etcd_discovery.is_some();
    let mode = if secret { 0o600 } else { 0o644 };
    desired.files.push(File { path: SETTINGS.to_owned(), mode, owner: Owner::root(), content: settings(spec, address), secret });
    desired.files.push(File::public(DROP_IN, drop_in(spec)));
    store_needs.insert(Need::Directory(DATA.to_owned()));
    desired.units.push(Unit {
        name: UNIT.to_owned(),
        enable: true,
        restart_on: gather([SETTINGS.to_owned(), DROP_IN.to_owned()]),
        needs: store_needs,
        applies_files: false,
    });
    desired.gates.push(Gate {
        name: "etcd".to_owned(),
        unit: Some(UNIT.to_owned()),
        probe: Probe::HttpJson {
            url: "http://127.0.0.1:2379/health".to_owned(),
            key: "health".to_owned(),
            value: "true".to_owned(),
        },
        consecutive: 2,
        needs: gather([Need::Unit(UNIT.to_owned())]),
        remedy: format!("`journalctl -u {UNIT}`; `curl http://127.0.0.1:2379/health`"),
    });
}

/// The environment file (magnum-node.md 1.3).
///
/// The member listens on its address and on the loopback, but tells its peers and clients the address only: who is
/// told a loopback address reaches himself (magnum-node.md 5.6).
fn settings(spec: &NodeSpec, address: IpAddr) -> String {
    let host = match address {
        IpAddr::V4(v4) => v4.to_string(),
        IpAddr::V6(v6) => format!("[{v6}]"),
    };
    let name = spec.name.clone().unwrap_or_else(|| address.to_string());
    let (client, peer) = (format!("http://{host}:2379"), format!("http://{host}:2380"));
    let mut out =
        String::from("# Made by heat-node-agent from the parameters of the deployment; it is written again when they change.\n");
    for (key, value) in [
        ("ETCD_NAME", name.as_str()),
        ("ETCD_DATA_DIR", DATA),
        ("ETCD_LISTEN_CLIENT_URLS", &format!("{client},http://127.0.0.1:2379")),
        ("ETCD_ADVERTISE_CLIENT_URLS", &client),
        ("ETCD_LISTEN_PEER_URLS", &peer),
        ("ETCD_INITIAL_ADVERTISE_PEER_URLS", &peer),
    ] {
        out.push_str(&line(key, value));
    }
    let Some(discovery) = &spec.etcd_discovery else {
        out.push_str(&line("ETCD_INITIAL_CLUSTER", &format!("{name}={peer}")));
        out.push_str(&line("ETCD_INITIAL_CLUSTER_STATE", "new"));
        // Members of two clusters never mix up, even if addresses are used again.
        let token = if spec.cluster.is_empty() { &name } else { &spec.cluster };
        out.push_str(&line("ETCD_INITIAL_CLUSTER_TOKEN", token));
        return out;
    };
    out.push_str(&line("ETCD_DISCOVERY", discovery.reveal()));
    if let Some(proxy) = spec.proxy.as_ref().and_then(|proxy| proxy.http.as_ref()) {
        out.push_str(&line("ETCD_DISCOVERY_PROXY", proxy.reveal()));
    }
    out
}

fn drop_in(spec: &NodeSpec) -> String {
    // The assertion holds also in the moments before the mount unit is there.
    let assertion = if spec.etcd_volume.is_some() { format!("AssertPathIsMountPoint={STORE}\n") } else { String::new() };
    let mut out = format!(
        "\
# Made by heat-node-agent.
[Unit]
{GUARDED}\
# Never on the directory below the volume.
RequiresMountsFor={STORE}
{assertion}\
# With Restart=always: a member that waits for its peers is not given up.
StartLimitIntervalSec=0

[Service]
# The empty line drops the distribution's files, so that ours alone decide.
EnvironmentFile=
EnvironmentFile={SETTINGS}
Restart=always
RestartSec=5
"
    );
    if spec.etcd_discovery.is_some() {
        out.push_str("# Discovery lasts until every master is there.\nTimeoutStartSec=infinity\n");
    }
    out
}

fn store_volume(volume: &VolumeSpec, cluster: &str) -> Volume {
    Volume {
        role: VolumeRole::Etcd,
        cinder_id: volume.id.clone(),
        hint: "/dev/vdc".to_owned(),
        mount_point: STORE.to_owned(),
        root_mode: 0o700,
        root_owner: Owner::named("etcd"),
        format: volume.format,
        format_parameter: "ETCD_VOLUME_FORMAT",
        adopt: volume.adopt.clone(),
        cluster: cluster.to_owned(),
        users: vec![UNIT.to_owned()],
    }
}

fn private(path: &str, needs: BTreeSet<Need>) -> Directory {
    Directory { path: path.to_owned(), mode: 0o700, owner: Owner::named("etcd"), needs }
}
