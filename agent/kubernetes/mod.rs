//! What a Kubernetes node looks like.
//!
//! In: a `kubernetes-node` deployment. Out: its [`Parameters`], or every mistake at once; a
//! [`NodeSpec`]; and by [`render()`] the [`Desired`](crate::desired::Desired) that `converge` makes
//! true. Everything here is pure: no clock, disk, bus or network is ever asked, so that every byte
//! that a node gets can be tested by a table.

mod docker;
mod environment_file;
mod etcd;
mod host;
pub mod node_spec;
pub mod parameter_table;
pub mod parameters;
mod render;
pub mod value_kinds;

pub use node_spec::{NodeSpec, Role, Secret};
pub use parameters::{Mistake, Parameters};
pub use render::render;

use crate::metadata::Deployment;

/// What a deployment's parameters ask for.
///
/// # Errors
/// Every mistake at once.
pub fn node_of(deployment: &Deployment) -> Result<NodeSpec, Vec<Mistake>> {
    NodeSpec::from_parameters(&Parameters::from_deployment(deployment)?)
}

/// Whether a name, in any letter case, is that of a parameter whose value must not be shown.
#[must_use]
pub fn is_secret_parameter(name: &str) -> bool {
    parameter_table::find(name).is_some_and(|parameter| parameter.secret)
}
