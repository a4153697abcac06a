//! One condition on the way from source to signal: a part of the status document and of the tree of `explain`.

use std::fmt;

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

/// Which condition it is. What is decided by a condition is decided by this, never by the text of a name: a deployment or a source may
/// have any name. In JSON it is its text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum ConditionId {
    /// The settings files.
    Settings,
    /// systemd's bus.
    Bus,
    /// The agent's own work: while it fails, nothing new is begun.
    State,
    /// What Heat asks for can be heard and understood: no waiting helps where it fails.
    Metadata,
    /// The process of the agent.
    Daemon,
    /// All sources.
    Sources,
    /// All deployments.
    Deployments,
    /// The node.
    Node,
    /// All signals that wait, or are lost.
    Signals,
    /// The certificates: the step, and what waits for somebody once the node is in place.
    Certificates,
    /// The image's phases of os-refresh-config.
    Phases,
    /// Any other, by its name.
    Named(String),
}

impl ConditionId {
    /// Those that are no names of other things.
    const KNOWN: [Self; 11] = [
        Self::Settings,
        Self::Bus,
        Self::State,
        Self::Metadata,
        Self::Daemon,
        Self::Sources,
        Self::Deployments,
        Self::Node,
        Self::Signals,
        Self::Certificates,
        Self::Phases,
    ];

    /// What people and programs read.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::Settings => "settings",
            Self::Bus => "bus",
            Self::State => "state",
            Self::Metadata => "metadata",
            Self::Daemon => "daemon",
            Self::Sources => "sources",
            Self::Deployments => "deployments",
            Self::Node => "node",
            Self::Signals => "signals",
            Self::Certificates => "certificates",
            Self::Phases => "phases",
            Self::Named(name) => name,
        }
    }
}

impl Default for ConditionId {
    fn default() -> Self {
        Self::Named(String::new())
    }
}

impl fmt::Display for ConditionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl From<&str> for ConditionId {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

impl From<String> for ConditionId {
    fn from(text: String) -> Self {
        Self::KNOWN.into_iter().find(|known| known.as_str() == text).unwrap_or(Self::Named(text))
    }
}

impl From<ConditionId> for String {
    fn from(id: ConditionId) -> Self {
        match id {
            ConditionId::Named(name) => name,
            known => known.as_str().to_owned(),
        }
    }
}

/// One condition on the way from source to signal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Condition {
    /// `gate etcd`.
    pub name: ConditionId,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_json_an_id_is_its_text_and_what_another_version_says_is_read() {
        for id in ConditionId::KNOWN {
            let text = serde_json::to_string(&id).unwrap();
            assert_eq!(text, format!("{:?}", id.as_str()));
            assert_eq!(ConditionId::from(id.as_str()), id);
        }
        let newer: Condition = serde_json::from_value(serde_json::json!({"name": "something new"})).unwrap();
        assert_eq!(newer.name, ConditionId::Named("something new".to_owned()));
        assert_eq!(serde_json::to_value(&newer).unwrap()["name"], "something new");
        assert_eq!(serde_json::to_value(Condition::default()).unwrap()["name"], "");
    }

    #[test]
    fn a_deployment_named_node_is_not_the_node() {
        assert_ne!(ConditionId::Named("node".to_owned()), ConditionId::Node);
    }
}
