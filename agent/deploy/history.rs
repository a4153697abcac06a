//! What is remembered of a node's generations besides the newest one: how each ended, and what it changed. No parameter's value is part
//! of it.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::clock::Timestamp;
use crate::gather::Gather;
use crate::report::reason::FailureReason;

/// Generations that are remembered besides the newest; the oldest are dropped first.
pub(super) const PAST: usize = 15;
/// Names of parameters that are kept of a change.
const NAMES: usize = 8;

/// How far a generation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GenerationState {
    /// It is being put in place.
    Applying,
    /// It is in place and its gates have passed.
    Applied,
    /// It failed, or the operator had the one before it put back.
    Rejected,
    /// The operator has the one before it put back.
    Restoring,
}

/// When a generation was put in place, and what it changed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GenerationDetails {
    /// When its newest run began; unknown in records of earlier versions, as is all that follows.
    #[serde(default)]
    pub began: Option<Timestamp>,
    /// When that ended.
    #[serde(default)]
    pub ended: Option<Timestamp>,
    /// Names of the parameters that differ from those of the generation before, the first [`NAMES`].
    #[serde(default)]
    pub changes: Vec<String>,
    /// How many more differ.
    #[serde(default)]
    pub more: usize,
}

/// A way back to the generation before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WentBack {
    /// The generation that the node is back at.
    pub to: u64,
    /// Whether the operator asked for it; else the update had failed.
    pub by_hand: bool,
}

/// A generation that is not the newest any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PastGeneration {
    /// Its number.
    pub number: u64,
    /// Digest of its parameters.
    pub digest: String,
    /// The deployment that asked for it.
    pub deployment: String,
    /// How far it came.
    pub state: GenerationState,
    /// Whether anything of it may have reached the node.
    #[serde(rename = "touched")]
    pub changed_machine: bool,
    /// Why it was rejected.
    #[serde(default)]
    pub reason: Option<FailureReason>,
    /// To which generation the node went back.
    #[serde(default)]
    pub back: Option<WentBack>,
    /// When, and what it changed.
    #[serde(default)]
    pub details: GenerationDetails,
}

impl PastGeneration {
    /// How it ended, in words.
    #[must_use]
    pub fn state_in_words(&self, in_place: Option<u64>) -> String {
        let state = match (self.state, self.back) {
            (GenerationState::Restoring, back) => {
                return format!("being rolled back to {} by `rollback`", back.map_or(0, |back| back.to));
            }
            (GenerationState::Applying, _) => return "being applied".to_owned(),
            (GenerationState::Rejected, Some(WentBack { to, by_hand: true })) => {
                format!("succeeded, then rolled back to {to} by `rollback`")
            }
            (GenerationState::Rejected, Some(WentBack { to, by_hand: false })) => format!("failed, rolled back to {to}"),
            (GenerationState::Rejected, None) if self.changed_machine => "failed".to_owned(),
            (GenerationState::Rejected, None) => "rejected, nothing was changed".to_owned(),
            (GenerationState::Applied, _) => "succeeded".to_owned(),
        };
        if in_place == Some(self.number) { "in place".to_owned() } else { state }
    }
}

/// What differs between two entries of a node.
pub(super) fn details(before: Option<&Value>, after: &Value, began: Timestamp) -> GenerationDetails {
    let mut changes = before.map(|before| changed(before, after)).unwrap_or_default();
    let more = changes.len().saturating_sub(NAMES);
    changes.truncate(NAMES);
    GenerationDetails { began: Some(began), ended: None, changes, more }
}

/// Names of parameters, of the config and of inputs, whose values differ.
fn changed(before: &Value, after: &Value) -> Vec<String> {
    let parameters = |entry: &Value| -> Vec<(String, Value)> {
        let config = entry.get("config").and_then(Value::as_object).into_iter().flatten();
        let config = config.map(|(name, value)| (name.clone(), value.clone()));
        let inputs = entry.get("inputs").and_then(Value::as_array).into_iter().flatten();
        let inputs = inputs.filter_map(|input| Some((input.get("name")?.as_str()?.to_owned(), input.get("value")?.clone())));
        // Heat's own are another in each deployment.
        config.chain(inputs).filter(|(name, _)| !name.starts_with("deploy_")).collect()
    };
    let (before, after) = (parameters(before), parameters(after));
    let only = |some: &[(String, Value)], others: &[(String, Value)]| -> BTreeSet<String> {
        some.iter().filter(|one| !others.contains(one)).map(|(name, _)| name.clone()).gather()
    };
    only(&before, &after).union(&only(&after, &before)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_change_is_known_by_the_names_of_its_parameters() {
        let before = json!({"config": {"A": "1", "B": 2, "deploy_server_id": "x"}, "inputs": [{"name": "C", "value": "s3cret"}]});
        let after = json!({"config": {"A": "1", "B": 3, "deploy_server_id": "y"}, "inputs": [{"name": "D", "value": "other"}]});
        let of = |before| details(before, &after, Timestamp(5));
        assert_eq!((of(Some(&before)).changes, of(Some(&before)).more), (vec!["B".into(), "C".into(), "D".into()], 0));
        assert!(of(Some(&after)).changes.is_empty() && of(None).changes.is_empty());
        let many: serde_json::Map<String, Value> = (0..20).map(|at| (format!("P{at:02}"), json!(at))).collect();
        let many = json!({"config": many});
        let details = details(Some(&json!({})), &many, Timestamp(5));
        assert_eq!((details.changes.len(), details.more), (NAMES, 20 - NAMES));
    }
}
