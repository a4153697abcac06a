//! What every container runtime has in common: its store, perhaps on a volume of its own, its proxies, its drop-in; and
//! how the kubelet reaches it.

use std::collections::BTreeSet;

use crate::desired::{ContainerEngine, Content, Dependency, Desired, File, Gate, GateProbe, Owner, Unit, Volume, VolumeRole};
use crate::gather::Gather;
use crate::kubernetes::networks::pod_network::OfDocker;
use crate::kubernetes::parts::daemon::{GOOD_IN_A_ROW, deadline};
use crate::kubernetes::parts::directories::add_directory;
use crate::kubernetes::parts::docker;
use crate::kubernetes::parts::paths::{GUARDED, SYSCTL_UNIT};
use crate::kubernetes::parts::runtime_units::{CONTAINERD, CRI_DOCKERD, CRI_O, DOCKER, DROP_IN, block, drop_ins, unit_of_kind};
use crate::kubernetes::spec::cluster::ClusterSpec;
use crate::kubernetes::spec::node::{NodeSpec, Proxy};
use crate::kubernetes::spec::words::RuntimeKind;
use crate::kubernetes::text::environment::line;
use crate::storage::thin_pool;

/// The gate that looks at the store before the engine is started on it.
const STORAGE: &str = "storage";

/// A runtime with the distribution's own unit.
pub(in crate::kubernetes) struct Engine {
    /// Whose store it is.
    pub(in crate::kubernetes) whose: ContainerEngine,
    /// `docker.service`.
    pub(in crate::kubernetes) unit: &'static str,
    /// Where its settings lie.
    pub(in crate::kubernetes) folder: &'static str,
    /// Its store, which a volume is mounted at.
    pub(in crate::kubernetes) store: &'static str,
    /// Mode of the store's root, as the runtime itself makes it.
    pub(in crate::kubernetes) store_mode: u32,
    /// What it reads when it starts.
    pub(in crate::kubernetes) settings: Vec<File>,
    /// What the pod network adds.
    pub(in crate::kubernetes) network: OfDocker,
}

impl Engine {
    /// Adds directories, volume, files and unit.
    pub(in crate::kubernetes) fn add(self, spec: &NodeSpec, part: &mut Desired) {
        let drop_ins = drop_ins(self.unit);
        let drop_in = format!("{drop_ins}/{DROP_IN}");
        add_directory(self.folder, part);
        add_directory(&drop_ins, part);
        let mut needs = BTreeSet::new();
        if let Some(volume) = &spec.runtime_volume {
            part.volumes.push(Volume {
                role: VolumeRole::Runtime,
                disk: volume.disk.clone(),
                hint: "/dev/vdb".to_owned(),
                content: spec.storage.content(),
                mount_point: self.store.to_owned(),
                root_mode: self.store_mode,
                root_owner: Owner::root(),
                format: volume.format,
                format_parameter: "DOCKER_VOLUME_FORMAT",
                adopt: volume.adopt.clone(),
                cluster: spec.cluster.clone(),
                users: vec![self.unit.to_owned()],
            });
            needs.insert(Dependency::Volume(VolumeRole::Runtime));
        }
        part.gates.push(Gate {
            name: STORAGE.to_owned(),
            unit: None,
            probe: GateProbe::Store(spec.storage.store(self.whose, self.store)),
            consecutive: 1,
            deadline: None,
            needs: needs.clone(),
            remedy: format!("`findmnt -T {}`", self.store),
        });
        // Nothing of a running engine is stopped for a store that it could not use.
        needs.insert(Dependency::Gate(STORAGE.to_owned()));
        if self.unit == docker::UNIT {
            // An engine that finds forwarding off switches it on and drops what is forwarded (magnum-node.md 7.4 no. 52).
            needs.insert(Dependency::Unit(SYSCTL_UNIT.to_owned()));
        }
        if let Some(socket) = socket(self.whose) {
            part.gates.push(socket_gate(self.unit, socket));
        }
        let mut restart_on: BTreeSet<String> = self.settings.iter().map(|file| file.path.clone()).gather();
        let content = self.drop_in(spec);
        part.files.extend(self.settings);
        needs.extend(self.network.needs);
        restart_on.extend(self.network.restart_on);
        if let Some(proxy) = &spec.proxy {
            // Proxy URLs may hold a password.
            let (path, content) = (proxy_file(self.folder), environment(proxy));
            restart_on.insert(path.clone());
            part.files.push(File { path, mode: 0o600, owner: Owner::root(), content, secret: true });
        }
        restart_on.insert(drop_in.clone());
        part.files.push(File::public(drop_in, content));
        part.units.push(Unit { name: self.unit.to_owned(), enable: true, restart_on, needs, applies_files: false });
    }

    fn drop_in(&self, spec: &NodeSpec) -> String {
        let store = self.store;
        let mut out = format!(
            "\
# Made by heat-node-agent.
[Unit]
{GUARDED}\
# Never on the directory below the volume.
RequiresMountsFor={store}
"
        );
        match (&spec.runtime_volume, spec.storage.content()) {
            (None, _) => {}
            (Some(_), Content::ThinPool) => {
                let pool = thin_pool::UNIT;
                out.push_str(&format!("Requires={pool}\nAfter={pool}\nAssertPathExists={}\n", thin_pool::DEVICE));
            }
            // Also in the moments before the mount unit is there. A file system that the kernel made read-only after I/O
            // errors would have the engine start forever.
            (Some(_), Content::Xfs | Content::Btrfs) => {
                out.push_str(&format!("AssertPathIsMountPoint={store}\nAssertPathIsReadWrite={store}\n"));
            }
        }
        out.push_str(&self.network.unit_lines);
        let proxy = spec.proxy.as_ref().map(|_| format!("EnvironmentFile={}\n", proxy_file(self.folder))).unwrap_or_default();
        if !(proxy.is_empty() && self.network.service_lines.is_empty()) {
            out.push_str(&format!("\n[Service]\n{proxy}{}", self.network.service_lines));
        }
        out
    }
}

/// Where an engine is reached that speaks gRPC; docker is asked more than that.
fn socket(engine: ContainerEngine) -> Option<&'static str> {
    match engine {
        ContainerEngine::Docker => None,
        ContainerEngine::Containerd => Some("/run/containerd/containerd.sock"),
        ContainerEngine::CriO => Some("/run/crio/crio.sock"),
    }
}

/// The gate of whoever serves the kubelet at a socket, named as its unit is.
fn socket_gate(unit: &str, socket: &str) -> Gate {
    Gate {
        name: unit.trim_end_matches(".service").to_owned(),
        unit: Some(unit.to_owned()),
        probe: GateProbe::Socket(socket.to_owned()),
        consecutive: GOOD_IN_A_ROW,
        deadline: Some(deadline::STORE),
        needs: BTreeSet::from([Dependency::Unit(unit.to_owned())]),
        remedy: format!("`journalctl -u {unit} -n 50`; `crictl --runtime-endpoint unix://{socket} info`"),
    }
}

fn proxy_file(folder: &str) -> String {
    format!("{folder}/proxy.env")
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

/// The unit that the kubelet talks to.
pub(in crate::kubernetes) fn unit(cluster: &ClusterSpec) -> &'static str {
    if cluster.runtime.cri_dockerd { CRI_DOCKERD } else { unit_of_kind(cluster) }
}

/// Where the kubelet reaches it; nothing where the kubelet speaks to docker by itself.
pub(in crate::kubernetes) fn endpoint(cluster: &ClusterSpec) -> Option<&'static str> {
    match cluster.runtime.kind {
        RuntimeKind::Docker if cluster.runtime.cri_dockerd => Some("unix:///run/cri-dockerd.sock"),
        RuntimeKind::Docker => None,
        RuntimeKind::Containerd(..) => Some("unix:///run/containerd/containerd.sock"),
        RuntimeKind::CriO => Some("unix:///run/crio/crio.sock"),
    }
}

/// Keeps the other runtimes off: two at once fight over the node (magnum-node.md 7.4 no. 44). docker needs containerd
/// for itself.
pub(in crate::kubernetes) fn block_others(cluster: &ClusterSpec, part: &mut Desired) {
    let others: &[&str] = match cluster.runtime.kind {
        RuntimeKind::Docker => &[CRI_O],
        RuntimeKind::Containerd(..) => &[DOCKER, "docker.socket", CRI_DOCKERD, "cri-docker.socket", CRI_O],
        RuntimeKind::CriO => &[DOCKER, "docker.socket", CRI_DOCKERD, "cri-docker.socket", CONTAINERD],
    };
    let why = format!("The node's container runtime is {}: no other one may start.", unit_of_kind(cluster));
    for unit in others {
        block(unit, &why, part);
    }
    // What belongs to docker, and may be disabled or bound to a volume by what other parameters asked for.
    let own: &[&str] = match cluster.runtime.kind {
        RuntimeKind::Docker if cluster.runtime.cri_dockerd => &["docker.socket", CONTAINERD, "cri-docker.socket"],
        RuntimeKind::Docker => &["docker.socket", CONTAINERD],
        RuntimeKind::Containerd(..) | RuntimeKind::CriO => &[],
    };
    for unit in own {
        unblock(unit, part);
    }
}

/// Leaves a unit as the image has it: this drop-in takes the place of one that other parameters of this node had.
fn unblock(unit: &str, part: &mut Desired) {
    let folder = drop_ins(unit);
    add_directory(&folder, part);
    part.files.push(File::public(format!("{folder}/{DROP_IN}"), "# Made by heat-node-agent: the image's unit is unchanged.\n"));
}
