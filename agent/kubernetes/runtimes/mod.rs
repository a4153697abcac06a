//! Container runtimes and their registries.
//!
//! In: a `NodeSpec` and `MachineFacts`. Out: the chosen runtime's part of the `Desired`, the others disabled. Never: a network of pods of its own.

pub(super) mod containerd;
pub(super) mod cri_dockerd;
pub(super) mod crio;
pub(super) mod docker;
pub(super) mod engine;
pub(super) mod registry;
