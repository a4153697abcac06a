//! Which release of etcd a cluster has.

use crate::kubernetes::spec::cluster::ClusterSpec;
use crate::kubernetes::versions::two_numbers;

/// The first version that takes the names to trust besides a CA file.
pub(in crate::kubernetes) const TRUSTED_CA: Version = (2, 2);

/// Major and minor version of etcd.
pub(in crate::kubernetes) type Version = (u16, u16);

/// As `ETCD_TAG` names it, else what the minor was released with (magnum-node.md 5.6).
pub(in crate::kubernetes) fn version(cluster: &ClusterSpec) -> Version {
    asked(cluster).unwrap_or(match cluster.minor.number() {
        0..=1 => (2, 0),
        2..=5 => (2, 2),
        6..=12 => (3, 0),
        13..=18 => (3, 2),
        19..=21 => (3, 4),
        22..=33 => (3, 5),
        34..=36 => (3, 6),
        _ => (3, 7),
    })
}

/// The release that `ETCD_TAG` names.
pub(in crate::kubernetes) fn asked(cluster: &ClusterSpec) -> Option<Version> {
    cluster.etcd.tag.as_deref().and_then(two_numbers)
}
