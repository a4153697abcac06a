//! What ties a node to the cloud that it runs on, and what other systems than Magnum put on a node, as far as it is a
//! node's own business (seed-systems.md 5 to 7).
//!
//! * kubernetes-ansible (its last state, July 2015): its environment files are the ones that every node here gets up to 1.9,
//!   with the same names; `TLS_DISABLED` with `KUBE_API_PORT=8080` is its API in the clear, and `NODE_LAYOUT=kubernetes-ansible`
//!   its ports of etcd. What it wrote for releases before 1.0 (`--machines`, `--portal_net`, `KUBELET_ADDRESSES`) no version has.
//! * OpenShift's notes: several masters behind HAProxy are `API_BALANCER=haproxy`, the rest is what every node gets. Its own
//!   master-config format is no matter of this agent.
//! * KubeStack: `kubestack` here.
//!
//! Beside that `manifests`: what the cluster's API is to hold, of the image.
//!
//! In: a `NodeSpec` and `MachineFacts`. Out: the cloud's configuration, KubeStack's parts of the `Desired`, and which add-ons the first master applies.
//! Never: what their manifests say.

pub(super) mod cloud_config;
mod kubestack;
pub(super) mod manifests;

pub(super) use kubestack::{check, part, set_network_provider};
pub(super) use manifests::FIRST_MINOR;

#[cfg(test)]
mod tests;
