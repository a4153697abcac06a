//! A volume of the node: a part of the status document.

use serde::{Deserialize, Serialize};

use super::condition_state::ConditionState;

/// A volume that a service keeps its data on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct VolumeStatus {
    /// `runtime` or `etcd`.
    pub name: String,
    /// How its disk is known: the Cinder id, a link's name or a label.
    pub disk: String,
    /// Where it is mounted, or what it serves.
    pub place: String,
    /// How far it is; nothing where nobody has looked yet.
    pub state: Option<ConditionState>,
    /// Since when (RFC 3339).
    pub since: Option<String>,
    /// Why it is not in place.
    pub cause: Option<String>,
    /// What to do about it.
    pub remedy: Option<String>,
}
