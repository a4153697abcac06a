//! One condition on the way from source to signal: a part of the status document and of the tree of `explain`.

use serde::{Deserialize, Serialize};

use super::condition_state::ConditionState;
use crate::error::BETWEEN;

/// What a step of bringing a node up is about, where that has a row of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Subject {
    /// A volume, by its role.
    Volume(String),
    /// A unit.
    Unit(String),
    /// A gate.
    Gate(String),
}

/// One condition on the way from source to signal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Condition {
    /// `gate etcd`.
    pub name: String,
    /// What it is about, where it is a step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subject: Option<Subject>,
    /// Id of the deployment that it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// How far it is.
    pub state: ConditionState,
    /// The first that fails, else the first that is waited for.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub first: bool,
    /// What there is to know of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// Since when it is in this state (RFC 3339).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// When it is given up (RFC 3339).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub given_up: Option<String>,
    /// How often it was tried in this state; 0 where that is not counted.
    pub attempt: u32,
    /// When it is tried again (RFC 3339).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_try: Option<String>,
    /// The cause without what was being done, for one line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fact: Option<String>,
    /// Why it is not met.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// The same, each cause by itself, where there are several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<String>,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
    /// The steps that it waits for before it begins.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub waits_for: Vec<String>,
    /// What it consists of.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<Self>,
}

impl Condition {
    /// The same for these causes.
    #[must_use]
    pub fn because(mut self, causes: Vec<String>) -> Self {
        self.cause = (!causes.is_empty()).then(|| causes.join(BETWEEN));
        self.causes = if causes.len() > 1 { causes } else { Vec::new() };
        self
    }

    /// Each cause by itself.
    pub(super) fn each_cause(&self) -> &[String] {
        if self.causes.is_empty() { self.cause.as_slice() } else { &self.causes }
    }
}
