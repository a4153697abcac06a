//! What a node should look like: the contract between the pure rooms (`kubernetes`, `network`,
//! `storage`), which make a [`Desired`], and `converge`, which makes it true.
//!
//! A `Desired` is data: no clock, disk, bus or network was asked for it.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;

/// Everything that one generation of a node's parameters asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Desired {
    /// Directories, parents before children.
    pub directories: Vec<Directory>,
    /// Files, written whole.
    pub files: Vec<File>,
    /// Cinder volumes to find, perhaps format, and mount.
    pub volumes: Vec<Volume>,
    /// Units to enable and keep started.
    pub units: Vec<Unit>,
    /// What must be measured as good before Heat hears SUCCESS.
    pub gates: Vec<Gate>,
    /// Certificates of authorities that must lie on the node.
    pub authorities: Vec<Authority>,
    /// Certificates, each with its key, that the node must have. They are wishes: nothing here holds a key.
    pub certificates: Vec<Certificate>,
}

/// Who signs (magnum-node.md 4.1: three authorities from 13.0 on, all with the same subject, so that they never mix).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Signer {
    /// The cluster's main authority: API server, kubelets, clients.
    Kubernetes,
    /// etcd's clients and peers.
    Etcd,
    /// The API server as a proxy of aggregated APIs.
    FrontProxy,
}

impl Signer {
    /// As Magnum's certificate API spells the type.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Kubernetes => "kubernetes",
            Self::Etcd => "etcd",
            Self::FrontProxy => "front-proxy",
        }
    }
}

impl fmt::Display for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The certificate of an authority at one place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authority {
    /// Which one.
    pub signer: Signer,
    /// Absolute path.
    pub path: String,
    /// Owner and group.
    pub owner: Owner,
}

/// A certificate with its key, as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// Short name: `server`, `kubelet`.
    pub name: String,
    /// Who signs it.
    pub signer: Signer,
    /// CN of the subject.
    pub common_name: String,
    /// O of the subject: the groups that Kubernetes sees.
    pub organisations: Vec<String>,
    /// DNS names of its subjectAltName.
    pub names: Vec<String>,
    /// Addresses of its subjectAltName.
    pub addresses: Vec<IpAddr>,
    /// Whether it is good for serving, besides being good for a client.
    pub serves: bool,
    /// Absolute path of the certificate.
    pub path: String,
    /// Absolute path of the key: 0600, or 0400.
    pub key: String,
    /// Owner of both.
    pub owner: Owner,
}

/// Owner of a file by name; resolved against the target's own passwd and group files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// User name.
    pub user: String,
    /// Group name.
    pub group: String,
}

impl Owner {
    /// `root:root`.
    #[must_use]
    pub fn root() -> Self {
        Self::named("root")
    }

    /// A user and the group of the same name.
    #[must_use]
    pub fn named(name: &str) -> Self {
        Self { user: name.to_owned(), group: name.to_owned() }
    }
}

/// A directory with exact mode and owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Directory {
    /// Absolute path.
    pub path: String,
    /// Permission bits.
    pub mode: u32,
    /// Owner and group.
    pub owner: Owner,
    /// What must be true before it is made, e.g. the volume that it lies on.
    pub needs: BTreeSet<Need>,
}

/// A file with exact content, mode and owner.
#[derive(Clone, Debug, PartialEq, Eq)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FormatPolicy {
    /// No signature of any kind, and first and last MiB zero.
    #[default]
    IfBlank,
    /// No signature of any kind: for volumes encrypted below the guest, which read as noise.
    IfNoSignature,
    /// Never.
    Never,
}

/// A Cinder volume that the node wants mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    /// What it is for.
    pub role: VolumeRole,
    /// Cinder volume id: a disk is known by it, never by its kernel name.
    pub cinder_id: String,
    /// What Heat calls the device, e.g. `/dev/vdb`: for messages only.
    pub hint: String,
    /// Where it is mounted.
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

/// A systemd unit to enable and keep running. Never a name from metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unit {
    /// `etcd.service`.
    pub name: String,
    /// Whether it must be enabled for the next boot.
    pub enable: bool,
    /// Files of this `Desired` whose change needs a restart of the unit.
    pub restart_on: BTreeSet<String>,
    /// What must be true before it is started.
    pub needs: BTreeSet<Need>,
    /// A unit that applies files once (systemd-sysctl): restarted only when one of `restart_on` changed, and its
    /// failure is no failure of the node, because a gate looks at the effect.
    pub applies_files: bool,
}

/// Something that one step waits for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Need {
    /// The volume is mounted and ours.
    Volume(VolumeRole),
    /// The directory is there.
    Directory(String),
    /// The unit is active.
    Unit(String),
    /// The gate is green.
    Gate(String),
}

/// A measurement that must be good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gate {
    /// Short name: `etcd`, `docker`, `sysctl`.
    pub name: String,
    /// The unit that it speaks for, if any.
    pub unit: Option<String>,
    /// How it is measured.
    pub probe: Probe,
    /// How many good answers in a row make it green: one good answer of a service that keeps restarting is no health.
    pub consecutive: u8,
    /// What must be true before it is measured.
    pub needs: BTreeSet<Need>,
    /// What an operator looks at when it stays red.
    pub remedy: String,
}

/// How a gate is measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Probe {
    /// GET answers 2xx with a JSON object whose `key` is `value` (as text).
    HttpJson {
        /// What is asked.
        url: String,
        /// Member of the answer.
        key: String,
        /// Its expected text.
        value: String,
    },
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
        /// File with the authority that signed an https server; else the system's authorities.
        authority: Option<String>,
    },
    /// Each kernel setting has at least this value, e.g. (`net/ipv4/ip_forward`, 1).
    Sysctl(Vec<(String, u64)>),
}
