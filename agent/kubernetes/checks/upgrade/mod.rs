//! Whether a node may go to another release of Kubernetes, and in which order its cluster must.
//!
//! In: the release, what runs and what is installed, as it was measured. Out: a [`Row`] for each check, and the order. Never: a
//! measurement, or a guess: what could not be measured is [`Verdict::Unknown`].
//!
//! The rules are those of Kubernetes' version skew policy (kubernetes.io/releases/version-skew-policy) and of etcd's upgrade guides
//! (etcd.io/docs, "Upgrading etcd clusters and applications").

mod cluster;
mod etcd;
mod node;
mod order;
mod row;

pub use self::cluster::{ApiServer, Kubelet, api_servers, kubelets, other_nodes};
pub use self::etcd::{EtcdMemberState, LatestSnapshot, etcd_members, etcd_release, etcd_snapshot};
pub use self::node::{
    ApiAccess, InstalledRelease, ManifestObject, OtherPrograms, api_access, controllers, installed_programs, options,
    other_programs, proxy, removed_apis,
};
pub use self::order::{UPGRADE_ORDER, order};
pub use self::row::{Release, Row, Verdict, verdict};

#[cfg(test)]
mod tests;
