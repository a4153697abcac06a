//! How far a condition or a step is.

use serde::{Deserialize, Serialize};

/// How far a condition is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ConditionState {
    /// It is met.
    Ok,
    /// It is worked on, or tried again.
    Waiting,
    /// What it asks for was met, and no longer is in every part.
    Degraded,
    /// It is not met, and somebody has to look.
    Failed,
    /// It waits for those before it.
    #[default]
    Pending,
}
