//! What the agent leaves behind to know its own volumes: a marker file in the root of each file
//! system, and a record in its state directory that is written before the first byte of a mkfs.

use crate::clock::Timestamp;
use crate::desired::VolumeRole;

/// Name of the marker in a file system's root.
pub const FILE: &str = ".heat-node-agent";

/// Version of both forms.
pub const SCHEMA: u32 = 1;

/// Content of the marker file.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct VolumeMarker {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Cluster that the store belongs to.
    pub cluster: String,
    /// What the volume is for.
    pub role: VolumeRole,
    /// Name of the disk: the Cinder id.
    pub volume: String,
    /// UUID of the file system.
    pub fs_uuid: String,
    /// When it was made, RFC 3339.
    pub made_at: String,
}

/// How far the agent came with a volume: `volumes/<role>.json` in its state directory.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct VolumeRecord {
    /// [`SCHEMA`].
    pub schema: u32,
    /// What the volume is for.
    pub role: VolumeRole,
    /// Cluster that it belongs to.
    pub cluster: String,
    /// Name of the disk: the Cinder id.
    pub volume: String,
    /// Kind of the file system, as mount(8) spells it.
    pub fs_type: String,
    /// UUID of the file system: chosen before a mkfs, read where one is reused.
    pub fs_uuid: String,
    /// How far.
    pub state: VolumeState,
    /// What the mount unit mounts, once the volume is in its place: udev may know another name for the disk at each look.
    #[serde(default)]
    pub what: Option<String>,
    /// How much of the disk the file system takes, in bytes; 0 where nobody looked.
    #[serde(default)]
    pub size: u64,
    /// When the record was made.
    pub at: Timestamp,
}

/// How far the agent came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VolumeState {
    /// A mkfs was about to start; it may have written anything from nothing to everything.
    Formatting,
    /// The mkfs succeeded.
    Formatted,
    /// The file system, made or found, is mounted and marked.
    InPlace,
}
