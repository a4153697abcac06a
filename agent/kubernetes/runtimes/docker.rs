//! docker: the distribution's `docker.service` with our settings.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::engine::{self, Engine};
use crate::desired::{ContainerEngine, Dependency, Desired, File, Gate, GateProbe, StorageDriver};
use crate::kubernetes::networks::pod_network::{self, OfDocker};
use crate::kubernetes::parts::daemon::{GOOD_IN_A_ROW, deadline};
use crate::kubernetes::parts::directories::add_directory;
use crate::kubernetes::parts::docker::{STORE, UNIT};
use crate::kubernetes::parts::runtime_units;
use crate::kubernetes::spec::cluster::MachineFacts;
use crate::kubernetes::spec::node::NodeSpec;
use crate::kubernetes::spec::words::RuntimeKind;
use crate::kubernetes::text::environment::line;
use crate::storage::thin_pool;

const SETTINGS: &str = "/etc/docker/daemon.json";
const SOCKET: &str = "/run/docker.sock";
/// What Fedora's docker and docker-storage-setup read (magnum-node.md 1.4).
const SYSCONFIG: &str = "/etc/sysconfig";

/// Adds docker's part, where it is the runtime: a node without Kubernetes has no other.
pub(in crate::kubernetes) fn part(spec: &NodeSpec, facts: &MachineFacts) -> Desired {
    let mut part = Desired::default();
    if let Some(cluster) = &spec.kubernetes {
        if cluster.runtime.kind != RuntimeKind::Docker {
            return part;
        }
        engine::block_others(cluster, &mut part);
    }
    let driver = spec.storage.driver;
    let network = pod_network::of_docker(spec, facts);
    let mut files = vec![File::public(SETTINGS, settings(spec, facts, &network))];
    if facts.docker_sysconfig {
        add_directory(SYSCONFIG, &mut part);
        files.extend(sysconfig(driver));
        // It would write the storage options anew at each boot (magnum-node.md 7.4 no. 41).
        runtime_units::block("docker-storage-setup.service", "The agent has prepared docker's storage.", &mut part);
    }
    let engine = Engine {
        whose: ContainerEngine::Docker,
        unit: UNIT,
        folder: "/etc/docker",
        store: STORE,
        // As dockerd itself makes its root.
        store_mode: 0o710,
        settings: files,
        network,
    };
    engine.add(spec, &mut part);
    part.gates.push(Gate {
        name: "docker".to_owned(),
        unit: Some(UNIT.to_owned()),
        probe: GateProbe::Docker {
            socket: SOCKET.to_owned(),
            storage_driver: driver.as_str().to_owned(),
            data_root: STORE.to_owned(),
        },
        consecutive: GOOD_IN_A_ROW,
        deadline: Some(deadline::STORE),
        needs: BTreeSet::from([Dependency::Unit(UNIT.to_owned())]),
        remedy: format!("`journalctl -u {UNIT} -n 50`; `docker info`"),
    });
    part
}

/// daemon.json. A setting that the daemon's command line also has makes docker refuse to start, so only what the
/// parameters or Magnum's nodes ask for is in it (magnum-node.md 2.4: log options).
fn settings(spec: &NodeSpec, facts: &MachineFacts, network: &OfDocker) -> String {
    let mut settings = Map::new();
    if !facts.docker_sysconfig {
        let driver = spec.storage.driver;
        settings.insert("storage-driver".to_owned(), json!(driver.as_str()));
        let options = storage_options(driver);
        if !options.is_empty() {
            settings.insert("storage-opts".to_owned(), json!(options));
        }
    }
    settings.insert("log-driver".to_owned(), json!("json-file"));
    settings.insert("log-opts".to_owned(), json!({"max-size": "10m", "max-file": "5"}));
    // The kubelet's and docker's must be the same (magnum-node.md 7.4 no. 45).
    let of_cluster = spec.kubernetes.as_ref().map(|cluster| &cluster.runtime.cgroup_driver);
    if let Some(driver) = of_cluster.or(spec.cgroup_driver.as_ref()) {
        settings.insert("exec-opts".to_owned(), json!([format!("native.cgroupdriver={driver}")]));
    }
    if let Some(bridge) = &network.bridge {
        settings.insert("bridge".to_owned(), json!(bridge));
        // As CNI's plugin in its place: see `networks/pod_network.rs`.
        settings.insert("ip-masq".to_owned(), json!(false));
    }
    if network.has_pods {
        // By its proxy docker lets no packet back to the port of the bridge that it came from, so a pod that asks its own service gets no
        // answer; the kubelet itself only does that for docker's containers up to 1.6. Without the proxy docker sets the ports to hairpin.
        settings.insert("userland-proxy".to_owned(), json!(false));
    }
    if let Some(registry) = &spec.insecure_registry {
        settings.insert("insecure-registries".to_owned(), json!([registry]));
    }
    format!("{:#}\n", Value::Object(settings))
}

/// What docker is given for its storage besides the driver: the pool by its device, as docker-storage-setup does it.
fn storage_options(driver: StorageDriver) -> Vec<String> {
    match driver {
        StorageDriver::Devicemapper => vec![
            "dm.fs=xfs".to_owned(),
            format!("dm.thinpooldev={}", thin_pool::DEVICE),
            "dm.use_deferred_removal=true".to_owned(),
        ],
        _ => Vec::new(),
    }
}

/// The same for a docker that is configured by variables, and what lets docker-storage-setup, run by hand, agree.
fn sysconfig(driver: StorageDriver) -> [File; 2] {
    let mut options = format!("--storage-driver {}", driver.as_str());
    for option in storage_options(driver) {
        options.push_str(&format!(" --storage-opt {option}"));
    }
    let group = if driver == StorageDriver::Devicemapper { line("VG", thin_pool::GROUP) } else { String::new() };
    let head = "# Made by heat-node-agent.\n";
    [
        File::public(format!("{SYSCONFIG}/docker-storage"), format!("{head}{}", line("DOCKER_STORAGE_OPTIONS", &options))),
        File::public(
            format!("{SYSCONFIG}/docker-storage-setup"),
            format!("{head}{}{group}", line("STORAGE_DRIVER", driver.as_str())),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubernetes::fixtures::{content, file, node, spec};
    use crate::kubernetes::parts::docker::DROP_IN;
    use crate::kubernetes::render;

    /// magnum-node.md 1.4: direct-lvm, as each style says it.
    /// A pod that asked its own service got no answer.
    #[test]
    fn pods_on_dockers_bridge_reach_themselves_by_their_service() {
        let routes = [("NETWORK_DRIVER", "static-routes"), ("NODE_SUBNETS", "192.0.2.11=10.100.1.0/24,192.0.2.12=10.100.2.0/24")];
        let docker = ("CONTAINER_RUNTIME", "docker");
        for (changes, expected) in [
            (&[("KUBE_TAG", "v1.9.3")][..], Some(false)),
            (&[("KUBE_TAG", "v1.20.3"), docker, ("FLANNEL_RUNS_AS", "unit")], Some(false)),
            (&[("KUBE_TAG", "v1.20.3"), docker, routes[0], routes[1]], Some(false)),
            // Pods are on a bridge of CNI, whose plugin has a word of its own for it.
            (&[("KUBE_TAG", "v1.20.3"), docker], None),
            (&[("KUBE_TAG", "v1.28.3"), docker, routes[0], routes[1]], None),
        ] {
            let desired = node(changes);
            let settings: Value = crate::budgets::json::typed(content(&desired, SETTINGS)).unwrap();
            assert_eq!(settings.get("userland-proxy").and_then(Value::as_bool), expected, "{changes:?}");
        }
    }

    #[test]
    fn the_storage_is_said_once_in_the_style_of_the_image() {
        let options = "--storage-driver devicemapper --storage-opt dm.fs=xfs --storage-opt \
                       dm.thinpooldev=/dev/mapper/docker-docker--pool --storage-opt dm.use_deferred_removal=true";
        let pool = [
            ("CONTAINER_RUNTIME", "docker"),
            ("KUBE_TAG", "v1.18.9"),
            ("DOCKER_STORAGE_DRIVER", "devicemapper"),
            ("DOCKER_VOLUME", "7c1f4d0e-93a2-4b86-8d55-2f60c6b1a9e4"),
        ];
        let parsed = |desired: &Desired| -> Value { crate::budgets::json::typed(content(desired, SETTINGS)).unwrap() };
        let plain = node(&pool);
        let settings = parsed(&plain);
        assert_eq!(settings["storage-driver"], "devicemapper");
        assert_eq!(
            settings["storage-opts"],
            json!(["dm.fs=xfs", "dm.thinpooldev=/dev/mapper/docker-docker--pool", "dm.use_deferred_removal=true"])
        );
        assert!(file(&plain, "/etc/sysconfig/docker-storage").is_none());
        let drop_in = content(&plain, DROP_IN);
        assert!(drop_in.contains("Requires=docker-thin-pool.service\nAfter=docker-thin-pool.service\n"), "{drop_in}");
        assert!(!drop_in.contains("AssertPathIsMountPoint"), "{drop_in}");

        let fedora = MachineFacts { docker_sysconfig: true, ..MachineFacts::default() };
        let variables = render(&spec(&pool), &fedora).unwrap();
        let settings = parsed(&variables);
        assert!(settings.get("storage-driver").is_none() && settings.get("storage-opts").is_none());
        assert!(
            content(&variables, "/etc/sysconfig/docker-storage").ends_with(&format!("DOCKER_STORAGE_OPTIONS=\"{options}\"\n"))
        );
        assert!(
            content(&variables, "/etc/sysconfig/docker-storage-setup")
                .ends_with("STORAGE_DRIVER=\"devicemapper\"\nVG=\"docker\"\n")
        );
        let unit = variables.units.iter().find(|unit| unit.name == UNIT).unwrap();
        assert!(unit.restart_on.contains("/etc/sysconfig/docker-storage"));
        let off = content(&variables, "/etc/systemd/system/docker-storage-setup.service.d/50-heat-node-agent.conf");
        assert!(off.contains("ConditionPathExists=!/\n"));
        let overlay = render(&spec(&[("CONTAINER_RUNTIME", "docker")]), &fedora).unwrap();
        assert!(
            content(&overlay, "/etc/sysconfig/docker-storage")
                .ends_with("DOCKER_STORAGE_OPTIONS=\"--storage-driver overlay2\"\n")
        );
    }
}
