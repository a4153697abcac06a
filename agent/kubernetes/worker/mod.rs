//! What runs on every node: its host, the kubelet, kube-proxy.
//!
//! In: a `NodeSpec` and `MachineFacts`. Out: their parts of the `Desired`. Never: knowledge of the control plane.

pub(super) mod host;
pub(super) mod kube_proxy;
pub(super) mod kubelet;
pub(super) mod node_labels;
pub(super) mod reservations;
