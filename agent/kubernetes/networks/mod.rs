//! The network of pods and the firewall.
//!
//! In: a `NodeSpec` and `MachineFacts`. Out: flannel's, the routes' and the firewall's parts of the `Desired`. Never: a measurement;
//! `network` has the rules that it renders.

pub(super) mod firewall;
pub(super) mod flannel;
pub(super) mod pod_network;
