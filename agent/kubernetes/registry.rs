//! A registry on a worker, with Swift behind it (magnum-node.md 1.2 no. 8).

use super::cluster::{ClusterSpec, Facts};
use super::node_spec::NodeSpec;
use crate::desired::Desired;

/// Adds its part.
pub(super) fn add(_spec: &NodeSpec, _cluster: &ClusterSpec, _facts: &Facts, _desired: &mut Desired) {}
