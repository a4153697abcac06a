//! The cloud configuration for in-tree and external provider (magnum-node.md 1.8, 2.3).

use super::cluster::{ClusterSpec, Facts};
use super::node_spec::NodeSpec;
use crate::desired::Desired;

/// Adds its part.
pub(super) fn add(_spec: &NodeSpec, _cluster: &ClusterSpec, _facts: &Facts, _desired: &mut Desired) {}
