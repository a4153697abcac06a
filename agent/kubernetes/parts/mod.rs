//! What the components share: paths, directories, gates, flags, a service of Kubernetes.
//!
//! In: what a component wants. Out: its files, unit and gate, made in the one way. Never: knowledge of a certain component.

pub(in crate::kubernetes) mod api_server;
pub(in crate::kubernetes) mod certificates;
pub(super) mod daemon;
pub(in crate::kubernetes) mod directories;
pub(in crate::kubernetes) mod docker;
pub(in crate::kubernetes) mod etcd;
pub(in crate::kubernetes) mod etcd_release;
pub(in crate::kubernetes) mod paths;
pub(in crate::kubernetes) mod runtime_units;
pub(super) mod settings;
