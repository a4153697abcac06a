//! kube-controller-manager on masters.

use super::cluster::{ClusterSpec, Facts};
use super::node_spec::NodeSpec;
use crate::desired::Desired;

/// Adds its part.
pub(super) fn add(_spec: &NodeSpec, _cluster: &ClusterSpec, _facts: &Facts, _desired: &mut Desired) {}
