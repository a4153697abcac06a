//! How far a deployment and a generation of the node are: what the records keep, and what status shows.

use serde::{Deserialize, Serialize};

/// How far a deployment is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeploymentState {
    /// Recorded, nothing done yet.
    #[default]
    Seen,
    /// Its work may have begun.
    Running,
    /// Its result is known; Heat may not have it yet.
    Finished,
    /// Heat has the result, or wants or can get none.
    Signalled,
}

impl DeploymentState {
    /// All of them, in order.
    pub const ALL: [Self; 4] = [Self::Seen, Self::Running, Self::Finished, Self::Signalled];

    /// The word in status and files.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Seen => "seen",
            Self::Running => "running",
            Self::Finished => "finished",
            Self::Signalled => "signalled",
        }
    }

    /// Whether its result is known.
    #[must_use]
    pub fn has_ended(self) -> bool {
        matches!(self, Self::Finished | Self::Signalled)
    }
}

/// How far the generation is that the node's parameters ask for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeState {
    /// It is being put in place, or an earlier one is after it failed.
    #[default]
    Applying,
    /// It is in place and its gates have passed.
    Applied,
    /// It failed.
    Rejected,
    /// By order of the operator the one before it is being put back.
    Restoring,
    /// By order of the operator the one before it is in place.
    Restored,
}

impl NodeState {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Applying, Self::Applied, Self::Rejected, Self::Restoring, Self::Restored];

    /// The word in the status document and in metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Applying => "applying",
            Self::Applied => "applied",
            Self::Rejected => "rejected",
            Self::Restoring => "restoring",
            Self::Restored => "restored",
        }
    }

    /// The word for people: one that was rejected for its parameters or failed on the way reads as what it is.
    #[must_use]
    pub fn in_words(self) -> &'static str {
        match self {
            Self::Rejected => "failed",
            Self::Restored => "rolled back by `rollback`",
            Self::Restoring => "being rolled back by `rollback`",
            Self::Applying | Self::Applied => self.as_str(),
        }
    }
}
