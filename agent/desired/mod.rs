//! What a node should look like: the contract between the pure modules (`kubernetes`, `network`,
//! `storage`), which make a [`Desired`], and `converge`, which makes it true.
//!
//! A `Desired` is data: no clock, disk, bus or network was asked for it.
//!
//! In: nothing; the pure modules fill it. Out: what each part is and what it needs first. Never: how it is made true.

mod network;
mod owner;
mod trust;

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::gather::Gather;

pub use network::{EtcdAccess, EtcdMember, FlannelStore, Peer, Peers, PodRoutes};
pub use owner::Owner;
pub use trust::{
    CaCertificate, Certificate, CertificatePolicy, ClientIdentity, GivenPair, Issuer, KeyRequest, KeyType, MagnumAccess,
    MagnumUser, Material, RenewalSlot, Rotation, Signer,
};

/// Everything that one generation of a node's parameters asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Desired {
    /// Directories, parents before children.
    pub directories: Vec<Directory>,
    /// Files, written whole.
    pub files: Vec<File>,
    /// Volumes to find, perhaps format, and mount.
    pub volumes: Vec<Volume>,
    /// Units to enable and keep started.
    pub units: Vec<Unit>,
    /// What must be measured as good before Heat hears SUCCESS.
    pub gates: Vec<Gate>,
    /// What is measured like a gate while the node is there, and asked once for Heat's outputs, but waited for by nobody: somebody else
    /// makes it good.
    #[serde(skip)]
    pub watched: Vec<Gate>,
    /// Certificates of CAs that must lie on the node.
    #[serde(rename = "authorities")]
    pub cas: Vec<CaCertificate>,
    /// Certificates, each with its key, that the node must have; `keepers` provides them.
    pub certificates: Vec<Certificate>,
    /// Private keys without a certificate, which the node makes for itself.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub keys: Vec<KeyRequest>,
    /// Who signs them, and how; `None` where the node wants none.
    pub trust: Option<CertificatePolicy>,
    /// Objects that the cluster's API must hold.
    pub objects: Vec<Object>,
    /// Add-ons that the cluster's API must hold, each after the one before.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub add_ons: Vec<AddOn>,
    /// The description of flannel's network in etcd: written by masters, waited for by the others.
    pub flannel: Option<FlannelStore>,
    /// Where this node's own member of etcd answers, on masters.
    pub etcd: Option<EtcdMember>,
    /// How that member finds the others, on one of several masters that are listed. The same stands in its files.
    #[serde(skip)]
    pub etcd_join: Option<Box<EtcdJoin>>,
    /// Which parameter gave which flags, to name it where a program refuses one.
    #[serde(skip)]
    pub given_flags: Vec<GivenFlags>,
}

/// Flags that a parameter gives to a unit as they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GivenFlags {
    /// `kubelet.service`.
    pub unit: String,
    /// `KUBELET_OPTIONS`.
    pub parameter: &'static str,
    /// Without dashes before them; with dashes in them, where they may have underscores.
    pub names: BTreeSet<String>,
}

impl Desired {
    /// Takes in the part of one component.
    ///
    /// # Errors
    /// Names what two parts have, where it can have one owner only. A directory may be asked for by several, in the same words.
    pub fn merge(&mut self, part: Self) -> Result<(), String> {
        for directory in part.directories {
            match self.directories.iter().find(|one| one.path == directory.path) {
                None => self.directories.push(directory),
                Some(one) if *one == directory => {}
                Some(_) => return Err(format!("directory {}", directory.path)),
            }
        }
        join(&mut self.files, part.files, "file", |file| &file.path)?;
        join(&mut self.volumes, part.volumes, "volume", |volume| volume.role.as_str())?;
        join(&mut self.units, part.units, "unit", |unit| &unit.name)?;
        join(&mut self.gates, part.gates, "gate", |gate| &gate.name)?;
        join(&mut self.watched, part.watched, "watched gate", |gate| &gate.name)?;
        join(&mut self.cas, part.cas, "CA", |ca| &ca.path)?;
        join(&mut self.certificates, part.certificates, "certificate", |certificate| &certificate.name)?;
        join(&mut self.keys, part.keys, "key", |key| &key.name)?;
        join(&mut self.objects, part.objects, "object", |object| &object.name)?;
        join(&mut self.add_ons, part.add_ons, "add-on", |add_on| &add_on.name)?;
        self.given_flags.extend(part.given_flags);
        join_one(&mut self.trust, part.trust, "trust")?;
        join_one(&mut self.flannel, part.flannel, "flannel's configuration")?;
        join_one(&mut self.etcd, part.etcd, "etcd's member")?;
        join_one(&mut self.etcd_join, part.etcd_join, "etcd's members")
    }

    /// The file at this path.
    #[must_use]
    pub fn file(&self, path: &str) -> Option<&File> {
        self.files.iter().find(|file| file.path == path)
    }

    /// Whether something is asked for that this stands for.
    #[cfg(test)]
    pub(crate) fn provides(&self, need: &Dependency) -> bool {
        match need {
            Dependency::Volume(role) => self.volumes.iter().any(|one| one.role == *role),
            Dependency::Directory(path) => self.directories.iter().any(|one| one.path == *path),
            Dependency::Unit(name) => self.units.iter().any(|one| one.name == *name),
            Dependency::Gate(name) => self.gates.iter().any(|one| one.name == *name),
            Dependency::Object(name) => self.objects.iter().any(|one| one.name == *name),
            Dependency::AddOn(name) => self.add_ons.iter().any(|one| one.name == *name),
            Dependency::FlannelKey => self.flannel.is_some(),
            Dependency::EtcdMember => self.etcd_join.is_some(),
            Dependency::Certificates => !self.certificates.is_empty(),
        }
    }

    /// Where certificates, their keys, those of CAs and those without a certificate lie.
    #[must_use]
    pub fn trusted_paths(&self) -> BTreeSet<&str> {
        let cas = self.cas.iter().flat_map(|one| std::iter::once(&one.path).chain(&one.key_path).chain(&one.signing_path));
        let certificates = self.certificates.iter().flat_map(|one| [&one.path, &one.key]);
        let keys = self.keys.iter().map(|one| &one.path);
        cas.chain(certificates).chain(keys).map(String::as_str).gather()
    }

    /// The units that are restarted where one of these changes.
    pub fn certificate_readers(&self) -> impl Iterator<Item = &Unit> {
        self.readers(self.trusted_paths())
    }

    /// The units that are restarted where one of these files changes.
    pub fn readers<'a>(&'a self, paths: BTreeSet<&'a str>) -> impl Iterator<Item = &'a Unit> {
        self.units.iter().filter(move |unit| unit.restart_on.iter().any(|path| paths.contains(path.as_str())))
    }

    /// A gate, be it of the bring-up or one that is only monitored.
    #[must_use]
    pub fn gate(&self, name: &str) -> Option<&Gate> {
        self.gates.iter().chain(&self.watched).find(|gate| gate.name == name)
    }
}

fn join<T>(all: &mut Vec<T>, more: Vec<T>, kind: &str, name: impl Fn(&T) -> &str) -> Result<(), String> {
    for one in more {
        if all.iter().any(|other| name(other) == name(&one)) {
            return Err(format!("{kind} {}", name(&one)));
        }
        all.push(one);
    }
    Ok(())
}

fn join_one<T>(all: &mut Option<T>, more: Option<T>, name: &str) -> Result<(), String> {
    if all.is_some() && more.is_some() {
        return Err(name.to_owned());
    }
    *all = all.take().or(more);
    Ok(())
}

/// A directory with exact mode and owner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Directory {
    /// Absolute path.
    pub path: String,
    /// Permission bits.
    pub mode: u32,
    /// Owner and group.
    pub owner: Owner,
    /// What must be true before it is made, e.g. the volume that it lies on.
    pub needs: BTreeSet<Dependency>,
}

/// A file with exact content, mode and owner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct File {
    /// Absolute path.
    pub path: String,
    /// Permission bits.
    pub mode: u32,
    /// Owner and group.
    pub owner: Owner,
    /// The whole content.
    pub content: String,
    /// Whether `plan` masks the content.
    pub secret: bool,
}

impl File {
    /// A root-owned, world-readable, secret-free file.
    #[must_use]
    pub fn public(path: impl Into<String>, content: impl Into<String>) -> Self {
        Self { path: path.into(), mode: 0o644, owner: Owner::root(), content: content.into(), secret: false }
    }
}

/// Which store a volume is for; also the word that markers and labels carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VolumeRole {
    /// The container runtime's store (DOCKER_VOLUME, Heat's /dev/vdb).
    Runtime,
    /// etcd's data (ETCD_VOLUME, Heat's /dev/vdc).
    Etcd,
}

impl VolumeRole {
    /// `runtime` or `etcd`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Runtime => "runtime",
            Self::Etcd => "etcd",
        }
    }
}

impl fmt::Display for VolumeRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// When a volume may be formatted (design.md 6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum FormatPolicy {
    /// No signature of any kind, and zeros wherever a survey reads (`storage/survey.rs`).
    #[default]
    IfBlank,
    /// No signature of any kind: for volumes encrypted below the guest, which read as noise.
    IfNoSignature,
    /// Never.
    Never,
}

/// How the disk of a store is known: by a name that stays, never by a kernel name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum DiskName {
    /// Cinder volume id, which its serial begins with.
    Cinder(String),
    /// Name of its link in /dev/disk/by-id: a disk of a bare metal server.
    Link(String),
    /// Label of the file system on it: the ephemeral disk that Nova or Ironic made.
    Label(String),
}

impl DiskName {
    /// Whether a link's name means nothing else in a path or a unit file (`/`, `%`, a blank); udev makes no other names for
    /// disks.
    #[must_use]
    pub fn is_plain(link: &str) -> bool {
        link.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.:+=@".contains(&byte))
    }

    /// The name alone, which markers and records carry.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::Cinder(name) | Self::Link(name) | Self::Label(name) => name,
        }
    }
}

impl fmt::Display for DiskName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What a volume is made into.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum Content {
    /// An xfs file system; one of the ext family that was adopted serves as well.
    #[default]
    Xfs,
    /// A btrfs file system, whose snapshots the storage driver needs.
    Btrfs,
    /// LVM's volume group `docker` with the thin pool `docker-pool`; nothing is mounted.
    ThinPool,
}

impl Content {
    /// As blkid(8) spells what is made.
    #[must_use]
    pub fn kind(self) -> &'static str {
        match self {
            Self::Xfs => "xfs",
            Self::Btrfs => "btrfs",
            Self::ThinPool => "LVM2_member",
        }
    }
}

/// Whose store it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum ContainerEngine {
    /// docker.
    Docker,
    /// containerd.
    Containerd,
    /// CRI-O.
    CriO,
}

/// How an engine keeps images and containers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum StorageDriver {
    /// overlayfs with all layers at once.
    #[default]
    Overlay2,
    /// overlayfs with two layers at a time: docker before 24.
    Overlay,
    /// Snapshots of a thin pool: docker before 25.
    Devicemapper,
    /// Snapshots of btrfs.
    Btrfs,
}

impl StorageDriver {
    /// As `DOCKER_STORAGE_DRIVER` and docker spell it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Overlay2 => "overlay2",
            Self::Overlay => "overlay",
            Self::Devicemapper => "devicemapper",
            Self::Btrfs => "btrfs",
        }
    }

    /// As the engine itself spells it.
    #[must_use]
    pub fn name_for(self, engine: ContainerEngine) -> &'static str {
        match (engine, self) {
            (ContainerEngine::Containerd, Self::Overlay2 | Self::Overlay) => "overlayfs",
            (ContainerEngine::CriO, Self::Overlay2 | Self::Overlay) => "overlay",
            _ => self.as_str(),
        }
    }
}

/// Where an engine keeps images and containers, and how.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Store {
    /// Whose.
    pub engine: ContainerEngine,
    /// Its root directory.
    pub path: String,
    /// How.
    pub driver: StorageDriver,
    /// `DOCKER_STORAGE_CHANGE`: the driver whose images may be left behind, unused.
    pub leaves: Option<String>,
}

/// A Cinder volume that the node wants in its place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Volume {
    /// What it is for.
    pub role: VolumeRole,
    /// How its disk is known.
    pub disk: DiskName,
    /// What Heat calls the device, e.g. `/dev/vdb`: for messages only.
    pub hint: String,
    /// What it is made into.
    pub content: Content,
    /// Where it is mounted; of a thin pool, the store that it serves.
    pub mount_point: String,
    /// Mode and owner of the file system's root directory.
    pub root_mode: u32,
    /// Owner of the file system's root directory.
    pub root_owner: Owner,
    /// When it may be formatted.
    pub format: FormatPolicy,
    /// The parameter that sets `format`, for remedies (`DOCKER_VOLUME_FORMAT`).
    pub format_parameter: &'static str,
    /// VOLUME_ADOPT: serial of a volume whose file system is taken over although it lacks our marker.
    pub adopt: Option<String>,
    /// Cluster that the marker names.
    pub cluster: String,
    /// Units that keep their store on it: none of them may run from the directory below while it is mounted over.
    pub users: Vec<String>,
}

impl Volume {
    /// The parameter that names its disk, for remedies.
    #[must_use]
    pub fn parameter(&self) -> &'static str {
        match (&self.disk, self.role) {
            (DiskName::Link(_) | DiskName::Label(_), _) => "DOCKER_DISK",
            (DiskName::Cinder(_), VolumeRole::Etcd) => "ETCD_VOLUME",
            (DiskName::Cinder(_), VolumeRole::Runtime) => "DOCKER_VOLUME",
        }
    }
}

/// How this node's member finds the others, where the parameters list them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdJoin {
    /// Its own name.
    pub name: String,
    /// Where its peers reach it.
    pub peer: String,
    /// Name and peer URL of each member, this one among them.
    pub members: Vec<(String, String)>,
    /// The token of which etcd makes the ids of a new cluster and its members.
    pub token: String,
    /// Whether the parameters say that the cluster is there already.
    pub existing: bool,
    /// As whom the others are asked where they serve clients, if they speak TLS.
    pub identity: Option<ClientIdentity>,
    /// As whom where they serve peers.
    pub peer_identity: Option<ClientIdentity>,
    /// Where its data is.
    pub data: String,
    /// The environment file that has the last word on how a member without data starts.
    pub file: String,
    /// The unit that reads it: it must not run while the cluster's members change.
    pub unit: String,
    /// What must be true before it is settled how the member starts: where its data is.
    pub needs: BTreeSet<Dependency>,
}

impl EtcdJoin {
    /// Where the data of a member that was removed from its cluster is kept.
    #[must_use]
    pub fn removed_data(&self) -> String {
        removed_data(&self.data)
    }
}

/// Where the data of a member that was removed is kept in etcd's directory, in the place of what an earlier one left.
#[must_use]
pub fn removed_data(directory: &str) -> String {
    format!("{directory}/member.removed")
}

#[cfg(test)]
impl EtcdJoin {
    /// Of `m1`, the first of these: a name and a peer URL each.
    pub(crate) fn first_of(members: Vec<(String, String)>) -> Self {
        Self {
            name: "m1".into(),
            peer: members.first().map(|(_, peer)| peer.clone()).unwrap_or_default(),
            members,
            token: "c".into(),
            existing: false,
            identity: None,
            peer_identity: None,
            data: "/var/lib/etcd/default.etcd".into(),
            file: "/etc/etcd/join.conf".into(),
            unit: "etcd.service".into(),
            needs: BTreeSet::new(),
        }
    }
}

/// A systemd unit to enable and keep running. Never a name from metadata.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unit {
    /// `etcd.service`.
    pub name: String,
    /// Whether it must be enabled for the next boot.
    pub enable: bool,
    /// Files of this `Desired` whose change needs a restart of the unit.
    pub restart_on: BTreeSet<String>,
    /// What must be true before it is started.
    pub needs: BTreeSet<Dependency>,
    /// A unit that applies files once (systemd-sysctl): restarted only when one of `restart_on` changed, and its
    /// failure is no failure of the node, because a gate looks at the effect.
    pub applies_files: bool,
}

impl Unit {
    /// Whether it is there to be kept from starting: only its own drop-in, which says so, is new to it.
    #[must_use]
    pub fn is_start_blocked(&self) -> bool {
        let folder = format!("/{}.d/", self.name);
        self.applies_files && !self.enable && self.restart_on.iter().any(|path| path.contains(&folder))
    }
}

/// Something that one step waits for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Dependency {
    /// The volume is mounted and ours.
    Volume(VolumeRole),
    /// The directory is there.
    Directory(String),
    /// The unit is active.
    Unit(String),
    /// The gate passed once. That it stays good is asked for before Heat hears SUCCESS, not before the next step.
    Gate(String),
    /// The API holds the object of this name.
    Object(String),
    /// The API holds every object of the add-on of this name.
    AddOn(String),
    /// etcd holds the description of flannel's network.
    FlannelKey,
    /// It is settled how the node's member of etcd starts: its cluster has a place for it, or is a new one.
    EtcdMember,
    /// The node's certificates are in place: what a service asks of them may be written down.
    Certificates,
}

/// Where nodes lie in the API.
pub const NODES: &str = "/api/v1/nodes";
/// An annotation of an object that others own, too: which of its labels are the agent's, between commas. What is named there and no longer
/// wanted is removed; who has nothing there gets no annotation.
pub const OWN_LABELS: &str = "heat-node-agent/labels";
/// The same of a node's taints, as `key:effect`.
pub const OWN_TAINTS: &str = "heat-node-agent/taints";

/// An object that the API of the node's cluster must hold: made where it is absent, put right where it differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Object {
    /// Short name, for messages: `clusterrolebinding heat-node-agent:bootstrap`.
    pub name: String,
    /// Base URL of the API: `https://127.0.0.1:6443`.
    pub server: String,
    /// Where objects of its kind lie: `/apis/rbac.authorization.k8s.io/v1/clusterrolebindings`.
    pub collection: String,
    /// The object's own name, the last part of its URL.
    pub object: String,
    /// The whole object as JSON. It may hold a secret.
    pub body: Material,
    /// As whom the API is asked; nobody in a cluster without TLS.
    pub identity: Option<ClientIdentity>,
    /// The same object as the generation before asked for it: what the agent owned of one that lost its annotations. It says nothing about what is asked for
    /// now.
    #[serde(skip)]
    pub before: Option<String>,
    /// What must be true before it is made.
    pub needs: BTreeSet<Dependency>,
}

/// Manifests of the image whose objects the cluster's API must hold. What they say is read when they are applied: the parameters name
/// them, the image has them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AddOn {
    /// The name of its directory: `coredns`.
    pub name: String,
    /// Base URL of the API: `https://127.0.0.1:6443`.
    pub server: String,
    /// As whom the API is asked; nobody in a cluster without TLS.
    pub identity: Option<ClientIdentity>,
    /// What its manifests may name, with the values in this cluster; empty where the cluster has none.
    pub facts: Vec<(&'static str, String)>,
    /// The same, of what only its Secrets may name.
    pub secrets: Vec<SecretFact>,
    /// What must be true before it is applied.
    pub needs: BTreeSet<Dependency>,
}

/// A secret of the cluster that the Secrets of an add-on may name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SecretFact {
    /// By which a manifest names it: `cloud_config`.
    pub name: &'static str,
    /// The secret; empty where the cluster has none.
    pub value: String,
    /// Parameters that give it.
    pub parameters: &'static str,
}

/// A measurement that must be good.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Gate {
    /// Short name: `etcd`, `docker`, `sysctl`.
    pub name: String,
    /// The unit that it speaks for, if any.
    pub unit: Option<String>,
    /// How it is measured.
    pub probe: GateProbe,
    /// How many good answers in a row make it pass: one good answer of a service that keeps restarting is no health. The first
    /// of them releases who needs the gate.
    pub consecutive: u8,
    /// How long it is measured until it is given up, counted from when what it needs is there; never longer than the run goes on.
    /// `None`: as long as the run, because another machine decides when it is good, or because it is never waited for.
    pub deadline: Option<Duration>,
    /// What must be true before it is measured.
    pub needs: BTreeSet<Dependency>,
    /// What an operator looks at when it does not pass.
    pub remedy: String,
}

/// How a gate is measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum GateProbe {
    /// GET answers 2xx with a JSON object whose `key` is `value` (as text).
    HttpJson {
        /// What is asked.
        url: String,
        /// Member of the answer.
        key: String,
        /// Its expected text.
        value: String,
        /// Whom an https server shows itself to, and by whom it is signed.
        identity: Option<ClientIdentity>,
    },
    /// The API says that a node is Ready.
    NodeReady {
        /// The node's own object.
        url: String,
        /// Who asks.
        identity: Option<ClientIdentity>,
    },
    /// No request for a certificate waits in the API for somebody's approval.
    NoPendingRequests {
        /// The list of requests.
        url: String,
        /// Who asks.
        identity: Option<ClientIdentity>,
    },
    /// What the manifests of an add-on have run by the cluster does run.
    AddOn(AddOn),
    /// A file is there.
    File(String),
    /// The docker engine answers on its socket and uses this storage driver.
    Docker {
        /// Path of the socket.
        socket: String,
        /// `overlay2`.
        storage_driver: String,
        /// Where its store must be.
        data_root: String,
    },
    /// GET answers 2xx, and with this body where one is given.
    Http {
        /// What is asked.
        url: String,
        /// Body without the white space around it: `ok`.
        body: Option<String>,
        /// File with the CA that signed an https server, where the node shows nobody; else the system's CAs.
        #[serde(rename = "authority")]
        ca: Option<String>,
        /// Whom an https server is shown, and by whom it is signed.
        identity: Option<ClientIdentity>,
    },
    /// A runtime that speaks gRPC alone answers at this socket.
    Socket(String),
    /// The store is as its driver needs it. What is wrong with it does not pass by waiting.
    Store(Store),
    /// Each kernel setting has at least this value, e.g. (`net/ipv4/ip_forward`, 1).
    Sysctl(Vec<(String, u64)>),
    /// flannel has written the node's subnet, which lies in this network, and the bridge of docker, where there is one, has
    /// its address.
    FlannelSubnet {
        /// Every pod of the cluster.
        network: ipnet::Ipv4Net,
        /// `docker0`.
        bridge: Option<String>,
    },
    /// The kernel's routes are those that the network of pods asks for, and packets arrive.
    PodRoutes(PodRoutes),
}
