//! cri-dockerd: docker for a kubelet that speaks CRI only.

use super::cluster::{ClusterSpec, Facts};
use super::node_spec::NodeSpec;
use crate::desired::Desired;

/// Adds its part.
pub(super) fn add(_spec: &NodeSpec, _cluster: &ClusterSpec, _facts: &Facts, _desired: &mut Desired) {}
