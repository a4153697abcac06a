//! What the components share: paths, directories, gates, flags, a service of Kubernetes.
//!
//! In: what a component wants. Out: its files, unit and gate, made in the one way. Never: knowledge of a certain component.

pub(super) mod daemon;
pub(super) mod settings;
