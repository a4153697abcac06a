//! The steps of bringing a node up, by name.

use std::fmt;
use std::time::Duration;

use crate::desired::VolumeRole;
use crate::report::Phase;
use crate::report::condition::{ConditionId, Subject};

/// One step of a run. Its text is what people read: `unit etcd.service`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StepId {
    /// What must hold before anything of the machine is touched.
    Checks,
    /// Directories, files, enablement and the daemon-reload, as far as they wait for nothing.
    Files,
    /// A volume is found, perhaps formatted, and mounted.
    Volume(VolumeRole),
    /// A directory that waits for something.
    Directory(String),
    /// A file; in a failure also one that waits for nothing.
    File(String),
    /// Keys and certificates are made and put in place, all in one step: they belong together.
    Certificates,
    /// etcd gets, or must have, the configuration of flannel's network.
    FlannelKey,
    /// It is settled how the node's member of etcd starts.
    EtcdMember,
    /// A unit is started or restarted.
    Unit(String),
    /// A measurement that must be good.
    Gate(String),
    /// An object of the cluster's API.
    Object(String),
    /// An add-on: all of its objects, in one step.
    AddOn(String),
    /// What was started goes on answering, by the process that was measured.
    Proof,
    /// Work that is none of the above, in words.
    Work(&'static str),
}

impl StepId {
    /// Where in the node's life it is.
    #[must_use]
    pub fn phase(&self) -> Phase {
        match self {
            Self::Checks | Self::Volume(_) => Phase::Volume,
            Self::Files => Phase::Files,
            Self::Certificates => Phase::Certificates,
            Self::Gate(_) | Self::Proof => Phase::Gates,
            Self::Directory(_)
            | Self::File(_)
            | Self::FlannelKey
            | Self::EtcdMember
            | Self::Unit(_)
            | Self::Object(_)
            | Self::AddOn(_)
            | Self::Work(_) => Phase::Units,
        }
    }

    /// What it is about, for the pages that give that a row of its own.
    pub(super) fn subject(&self) -> Option<Subject> {
        match self {
            Self::Volume(role) => Some(Subject::Volume(role.to_string())),
            Self::Unit(name) => Some(Subject::Unit(name.clone())),
            Self::Gate(name) => Some(Subject::Gate(name.clone())),
            _ => None,
        }
    }

    /// The longest pause before it is tried again, or measured, while it is waited for.
    #[must_use]
    pub fn max_recheck_delay(&self) -> Duration {
        Duration::from_secs(if *self == Self::Certificates { 30 } else { 10 })
    }

    /// Whether it is a part of writing the node's files.
    pub(super) fn is_of_files(&self) -> bool {
        matches!(self, Self::File(_) | Self::Directory(_))
    }
}

impl From<&'static str> for StepId {
    fn from(work: &'static str) -> Self {
        Self::Work(work)
    }
}

impl From<&StepId> for ConditionId {
    fn from(step: &StepId) -> Self {
        if *step == StepId::Certificates { Self::Certificates } else { Self::Named(step.to_string()) }
    }
}

impl fmt::Display for StepId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Checks => f.write_str("checks"),
            Self::Files => f.write_str("files"),
            Self::Volume(role) => write!(f, "volume {role}"),
            Self::Directory(path) => write!(f, "directory {path}"),
            Self::File(path) => write!(f, "file {path}"),
            Self::Certificates => f.write_str("certificates"),
            Self::FlannelKey => f.write_str("flannel key"),
            Self::EtcdMember => f.write_str("etcd member"),
            Self::Unit(name) => write!(f, "unit {name}"),
            Self::Gate(name) => write!(f, "gate {name}"),
            Self::Object(name) => write!(f, "object {name}"),
            Self::AddOn(name) => write!(f, "add-on {name}"),
            Self::Proof => f.write_str("final proof"),
            Self::Work(work) => f.write_str(work),
        }
    }
}
