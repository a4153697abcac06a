//! What a Kubernetes node looks like.
//!
//! In: a `kubernetes-node` deployment. Out: its [`Parameters`], or every mistake at once; a
//! [`NodeSpec`]; and by [`render()`] the [`Desired`](crate::desired::Desired) that `converge` makes
//! true. Never: a question to a clock, disk, bus or network; all of it is pure, so that every byte
//! that a node gets can be tested by a table.

mod add_ons;
mod certificates;
pub mod checks;
mod control_plane;
#[cfg(test)]
mod fixtures;
#[cfg(test)]
mod injection_tests;
mod networks;
#[cfg(test)]
mod pair_tests;
pub mod parameters;
mod parse;
mod parts;
mod render;
#[cfg(test)]
mod restart_tests;
mod runtimes;
pub mod spec;
mod text;
#[cfg(test)]
mod url_credential_tests;
pub mod versions;
mod worker;

pub use certificates::{StandaloneKeys, TokenKey, TokenKeyFiles, standalone_keys, token_key_files};
pub use checks::guarded_options::ImagePolicy;
pub use checks::kernel::{MODULES, lacking};
pub use checks::preflight::preflight;
pub use control_plane::apiserver::{ENVIRONMENT_FILE as API_SERVER_ENVIRONMENT_FILE, SERVER_KEY, SERVICE_ACCOUNT_KEY};
pub use parameters::mistake::Mistake;
pub use parameters::read::Parameters;
pub use parameters::samples::values as possible_values;
pub use parts::daemon::awaited_store;
pub use parts::paths::GUARD;
pub use render::render;
pub use spec::cluster::{MachineFacts, RELEASES, Tokens, host_of, program_of_release};
pub use spec::node::{NodeSpec, Preflight};
pub use spec::words::{Role, Secret};
pub use worker::kubelet::{REGISTRATION, taint_name};
pub use worker::node_labels::{ROLES as MASTER_LABELS, node_object, taints};

use serde_json::{Map, Value};

use crate::budgets::{NODE_ENTRY_MEMORY, json};
use crate::metadata::Deployment;
use checks::guarded_options;
use control_plane::{apiserver, controller_manager, etcd, scheduler};
use parameters::{config_text, table};
use parts::{docker, runtime_units};
use text::yaml;
use worker::kubelet;

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

/// Where etcd keeps its data.
pub const ETCD_DATA: &str = etcd::DATA;
/// Its unit.
pub const ETCD_UNIT: &str = etcd::UNIT;
/// The unit of the API server.
pub const API_SERVER_UNIT: &str = apiserver::UNIT;
/// What keeps in memory what it read of etcd, and believes that its revisions only grow.
pub const ETCD_READERS: [&str; 3] = [apiserver::UNIT, controller_manager::UNIT, scheduler::UNIT];

/// None of it is another instance's.
pub const MEMBERSHIPS: [Membership; 4] = [
    Membership { path: etcd::DATA, store: etcd::STORE, drop_in: etcd::DROP_IN },
    Membership { path: docker::CONTAINERS, store: docker::STORE, drop_in: docker::DROP_IN },
    Membership { path: docker::SWARM, store: docker::STORE, drop_in: docker::DROP_IN },
    // The key by which a worker that joined by TLS bootstrap is another node.
    Membership { path: kubelet::KEYS, store: kubelet::STATE, drop_in: kubelet::DROP_IN },
];

/// What a deployment's parameters ask for, as far as the image permits it.
///
/// # Errors
/// Every mistake at once.
pub fn node_of(deployment: &Deployment, policy: &ImagePolicy) -> Result<NodeSpec, Vec<Mistake>> {
    let (parameters, mut mistakes) = Parameters::read(deployment);
    let named: Vec<String> = mistakes.iter().map(|mistake| mistake.parameter.clone()).collect();
    mistakes.extend(guarded_options::mistakes(&parameters, policy));
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

/// A generation is kept with its deployment, in memory and on disk.
#[must_use]
pub fn too_large(deployment: &Deployment) -> Option<Mistake> {
    let values = deployment.inputs.iter().map(|input| json::weight(&input.value)).sum::<usize>();
    let sum = values + json::weight(&deployment.config) + json::weight_of(&deployment.options);
    (sum > NODE_ENTRY_MEMORY).then(|| {
        let problem = format!("takes {} KiB of memory with the inputs", sum / 1024);
        let rule = format!("the deployment of a node takes at most {} KiB", NODE_ENTRY_MEMORY / 1024);
        Mistake::general("config", problem, rule, "remove what is no parameter of the node from the deployment")
    })
}

/// The unit of the node's container runtime; docker where no Kubernetes is asked for.
#[must_use]
pub fn runtime_unit(spec: &NodeSpec) -> &'static str {
    spec.kubernetes.as_ref().map_or(runtime_units::DOCKER, runtime_units::unit_of_kind)
}

/// The parameters of a deployment as far as they can be read, whatever is wrong with the others.
#[must_use]
pub fn readable_parameters(deployment: &Deployment) -> Parameters {
    Parameters::read(deployment).0
}

/// What each value breaks by itself, whatever the others are.
#[must_use]
pub fn mistakes_of_values(deployment: &Deployment) -> Vec<Mistake> {
    Parameters::read(deployment).1
}

/// The config of a deployment of this group as it can be read, and how it is written as text; nothing where it cannot be read.
#[must_use]
pub fn readable_config(config: &Value) -> Option<Map<String, Value>> {
    config_text::map(config).ok()
}

/// Such a config as YAML.
#[must_use]
pub fn config_as_yaml(config: Map<String, Value>) -> String {
    yaml::bare_document(&Value::Object(config))
}

/// Whether a name, in any letter case, is that of a parameter whose value must not be shown.
#[must_use]
pub fn is_secret_parameter(name: &str) -> bool {
    table::find(name).is_some_and(|parameter| parameter.secret)
}

/// Whether a text given as this parameter should be a URL and is none, so that nobody can tell where in it a password ends.
#[must_use]
pub fn is_broken_url(name: &str, text: &str) -> bool {
    let text = text.trim();
    let kind = table::find(name).map(|parameter| parameter.kind).filter(|kind| kind.is_address());
    !text.is_empty() && kind.is_some_and(|kind| kind.normalised(text).is_none())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::kubernetes::parameters::heat_params;

    #[test]
    fn mistakes_of_values_and_between_values_come_together_but_no_consequences() {
        let mistakes = |config| {
            let deployment =
                Deployment::parse(&json!({"id": "i", "group": "kubernetes-node", "config": config})).unwrap().unwrap();
            node_of(&deployment, &ImagePolicy::everything())
                .unwrap_err()
                .into_iter()
                .map(|mistake| mistake.parameter)
                .collect::<Vec<_>>()
        };
        let bad_address = json!({"KUBE_NODE_IP": "10.77.0.999", "TLS_DISABLED": "True", "DOCKER_STORAGE_DRIVER": "floppy"});
        assert_eq!(mistakes(bad_address), ["KUBE_NODE_IP", "DOCKER_STORAGE_DRIVER"]);
        let bad_role = json!({"ROLE": "manager\n", "ETCD_VOLUME": "7c1f4d0e-93a2-4b86-8d55-2f60c6b1a9e4"});
        assert_eq!(mistakes(bad_role), ["ROLE"]);
    }

    /// The samples of magnum-node.md section 8, with changes; of a name that is given twice, the last counts.
    fn sample(name: &str, changes: &str) -> Result<NodeSpec, Vec<Mistake>> {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kubernetes/heat-params").join(name);
        let text = format!("{}\n{changes}\n", std::fs::read_to_string(path).unwrap());
        assert!(heat_params::is_heat_params(&text));
        let read = heat_params::parse(&text).unwrap();
        let warned: Vec<_> = read.warnings.iter().map(ToString::to_string).collect();
        assert!(changes.contains('$') || warned.is_empty(), "{warned:?}");
        let entry = json!({"id": "i", "group": "kubernetes-node", "config": read.parameters});
        node_of(&Deployment::parse(&entry).unwrap().unwrap(), &ImagePolicy::everything())
    }

    #[test]
    fn magnums_own_parameters_render_in_both_roles_and_eras() {
        // The first era leaves the version to the image.
        let seed = "KUBE_TAG=v1.2.0";
        for (name, changes) in [
            ("2016-master", seed),
            ("2016-minion", seed),
            ("2016-master", "KUBE_TAG=v1.2.0\nTLS_DISABLED=\"True\"\nKUBE_API_PORT=8080\nMAGNUM_URL="),
            ("2026-master", ""),
            ("2026-worker", ""),
            ("2026-master", "DOCKER_VOLUME_SIZE=\"0\"\nETCD_VOLUME_SIZE=\"0\""),
            ("2026-master", "NETWORK_DRIVER=calico"),
            (
                "2026-master",
                "CERT_MANAGER_API=True\nCA_KEY=\"-----BEGIN RSA PRIVATE KEY-----\\nAA\\n-----END RSA PRIVATE KEY-----\\n\"",
            ),
            ("2026-worker", "KUBE_NODE_IP="),
            ("2026-master", "TRUST_ID="),
            ("2026-worker", "HTTP_PROXY='http://user:p$a%ss@proxy.example.org:3128'"),
            (
                "2026-master",
                "KUBE_NODE_IP=2001:db8::11\nPODS_NETWORK_CIDR=fd00:2::/56\nPORTAL_NETWORK_CIDR=fd00:1::/108\nDNS_SERVICE_IP=\nCLUSTER_SUBNET_CIDR=",
            ),
            ("2026-master", "KUBE_TAG=\"v1.19.16\"\nKUBE_TAG=v1.20.15-rancher1"),
            ("2026-worker", r#"PASSWORD="a\"b\\c\`d""#),
        ] {
            let spec = sample(name, changes).unwrap_or_else(|mistakes| panic!("{name} {changes}: {mistakes:?}"));
            assert_eq!(spec.role == Role::Master, name.ends_with("master"));
            let desired = render(&spec, &MachineFacts::default()).unwrap();
            assert!(desired.files.iter().all(|file| file.path.starts_with('/')));
        }
        for minor in 19..=versions::Minor::NEWEST.number() {
            for name in ["2026-master", "2026-worker"] {
                // A list of another version's plugins is filtered; docker's own shim is gone later.
                let spec = sample(name, &format!("KUBE_TAG=v1.{minor}.1\nCONTAINERD_VERSION=1.7.20")).unwrap();
                assert_eq!(spec.kubernetes.unwrap().minor.number(), minor);
            }
        }
    }

    /// Attack: two generations of parameters that were mostly zeros were written, and could not be read back.
    #[test]
    fn a_deployment_that_could_not_be_kept_is_a_mistake() {
        let node = |input: Value| {
            let entry = serde_json::json!({"id": "i", "group": "kubernetes-node", "config": {"ROLE": "master", "INSTANCE_NAME": "m",
                "KUBE_NODE_IP": "192.0.2.1", "CLUSTER_UUID": "c0ffee00-1111-4222-8333-444455556666", "TLS_DISABLED": "True"},
                "inputs": [{"name": "deploy_x", "type": "Json", "value": input}]});
            too_large(&Deployment::parse(&entry).unwrap().unwrap())
        };
        assert_eq!(node(serde_json::json!(vec![0; 1000])), None);
        for input in [serde_json::json!(vec![0; 130_000]), serde_json::json!("x".repeat(NODE_ENTRY_MEMORY))] {
            assert!(node(input).unwrap().to_string().contains("at most 512 KiB"));
        }
    }

    #[test]
    fn what_cannot_be_right_in_magnums_parameters_is_one_mistake() {
        for (name, changes, expected) in [
            ("2026-worker", "KUBELET_OPTIONS=\"--allow-privileged=true\"", "KUBELET_OPTIONS: "),
            ("2026-master", "TLS_DISABLED=True", "TLS_DISABLED: is not supported by 1.28"),
            ("2026-master", "KUBE_NODE_IP=", "KUBE_NODE_IP: is missing"),
            // Old Heat put DOCKER_VOLUME's value into DOCKER_VOLUME_SIZE (magnum-node.md 7.3 no. 32).
            (
                "2016-master",
                "KUBE_TAG=v1.2.0\nDOCKER_VOLUME_SIZE=7c1f4d0e-93a2-4b86-8d55-2f60c6b1a9e4_SIZE",
                "DOCKER_VOLUME_SIZE: ",
            ),
            ("2016-master", "", "TLS_DISABLED: this version does not support: false on a master"),
        ] {
            let found: Vec<_> = sample(name, changes).unwrap_err().iter().map(ToString::to_string).collect();
            assert!(found.len() == 1 && found[0].starts_with(expected), "{name} {changes}: {found:?}");
        }
    }
}
