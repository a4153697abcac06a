//! What a Kubernetes node looks like.
//!
//! In: a `kubernetes-node` deployment. Out: its [`Parameters`], or every mistake at once; a
//! [`NodeSpec`]; and by [`render()`] the [`Desired`](crate::desired::Desired) that `converge` makes
//! true. Everything here is pure: no clock, disk, bus or network is ever asked, so that every byte
//! that a node gets can be tested by a table.

mod apiserver;
mod certificates;
mod cloud_config;
pub mod cluster;
mod cluster_checks;
mod cluster_parameters;
mod config_text;
mod containerd;
mod controller_manager;
mod cri_dockerd;
mod crio;
mod daemon;
mod docker;
mod environment_file;
mod etcd;
#[cfg(test)]
mod fixtures;
mod flannel;
mod gcfg;
mod haproxy;
pub mod heat_params;
mod host;
mod kube_proxy;
mod kubeconfig;
mod kubelet;
pub mod node_spec;
mod other_systems;
pub mod parameter_table;
pub mod parameters;
mod podmaster;
mod registry;
mod render;
mod reservations;
mod runtime;
mod scheduler;
mod settings;
mod toml_file;
pub mod value_kinds;
pub mod versions;
mod yaml;

pub use cluster::Facts;
pub use host::GUARD;
pub use node_spec::{NodeSpec, Role, Secret};
pub use parameters::{Mistake, Parameters};
pub use render::render;

use crate::metadata::Deployment;

/// What makes a node known to others, or runs again by itself.
#[derive(Clone, Copy, Debug)]
pub struct Membership {
    /// Where it lies.
    pub path: &'static str,
    /// Where its store is mounted, if it lies on a volume.
    pub store: &'static str,
    /// There once the agent configured its service; else it is the image builder's or the operator's.
    pub drop_in: &'static str,
}

/// None of it is another instance's.
pub const MEMBERSHIPS: [Membership; 3] = [
    Membership { path: etcd::DATA, store: etcd::STORE, drop_in: etcd::DROP_IN },
    Membership { path: docker::CONTAINERS, store: docker::STORE, drop_in: docker::DROP_IN },
    Membership { path: docker::SWARM, store: docker::STORE, drop_in: docker::DROP_IN },
];

/// What a deployment's parameters ask for.
///
/// # Errors
/// Every mistake at once.
pub fn node_of(deployment: &Deployment) -> Result<NodeSpec, Vec<Mistake>> {
    let (parameters, mut mistakes) = Parameters::read(deployment);
    let named: Vec<String> = mistakes.iter().map(|mistake| mistake.parameter.clone()).collect();
    match NodeSpec::from_parameters(&parameters) {
        Ok(spec) if mistakes.is_empty() => Ok(spec),
        Ok(_) => Err(mistakes),
        Err(more) => {
            // What follows from a value that was refused above is no mistake of its own; with an unknown role anything may be.
            let role_known = !named.iter().any(|name| name == "ROLE" || name == "NODEGROUP_ROLE");
            mistakes.extend(more.into_iter().filter(|mistake| role_known && !named.contains(&mistake.parameter)));
            Err(mistakes)
        }
    }
}

/// The parameters of a deployment as far as they can be read, whatever is wrong with the others.
#[must_use]
pub fn readable_parameters(deployment: &Deployment) -> Parameters {
    Parameters::read(deployment).0
}

/// Whether a name, in any letter case, is that of a parameter whose value must not be shown.
#[must_use]
pub fn is_secret_parameter(name: &str) -> bool {
    parameter_table::find(name).is_some_and(|parameter| parameter.secret)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn mistakes_of_values_and_between_values_come_together_but_no_consequences() {
        let mistakes = |config| {
            let deployment =
                Deployment::parse(&json!({"id": "i", "group": "kubernetes-node", "config": config})).unwrap().unwrap();
            node_of(&deployment).unwrap_err().into_iter().map(|mistake| mistake.parameter).collect::<Vec<_>>()
        };
        let bad_address = json!({"KUBE_NODE_IP": "10.77.0.999", "TLS_DISABLED": "True", "DOCKER_STORAGE_DRIVER": "floppy"});
        assert_eq!(mistakes(bad_address), ["KUBE_NODE_IP", "DOCKER_STORAGE_DRIVER"]);
        let bad_role = json!({"ROLE": "manager\n", "ETCD_VOLUME": "7c1f4d0e-93a2-4b86-8d55-2f60c6b1a9e4"});
        assert_eq!(mistakes(bad_role), ["ROLE"]);
    }
}
