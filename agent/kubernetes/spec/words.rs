//! Words that a node's description is made of.

use std::fmt;

use crate::kubernetes::parameters::read::Parameters;

/// Control plane or worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Runs etcd and the control plane.
    Master,
    /// Runs workloads.
    Minion,
}

/// A text that `Debug` never shows.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Keeps a text from being shown.
    #[must_use]
    pub fn new(text: &str) -> Self {
        Self(text.to_owned())
    }

    /// The text, for where it has to go.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

pub(in crate::kubernetes) fn role(parameters: &Parameters) -> Role {
    let named = parameters.get("ROLE").or(parameters.get("NODEGROUP_ROLE"));
    match named {
        Some("master" | "control-plane") => Role::Master,
        Some(_) => Role::Minion,
        None if parameters.get("KUBE_MASTER_IP").is_some() => Role::Minion,
        None => Role::Master,
    }
}

/// Where certificates come from (`CERTIFICATES`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CertificateSource {
    /// Magnum's certificate API.
    Magnum,
    /// The parameters.
    Given,
    /// TLS bootstrap, on workers.
    Bootstrap,
    /// Nobody: TLS_DISABLED.
    None,
}

/// Which container runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuntimeKind {
    /// docker, spoken to by the kubelet itself (up to 1.23), or through cri-dockerd (from 1.24 on).
    Docker,
    /// containerd of this version: major, minor.
    Containerd(u16, u16),
    /// CRI-O.
    CriO,
}
