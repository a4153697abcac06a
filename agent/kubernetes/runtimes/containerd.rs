//! containerd: the distribution's or our own `containerd.service` with our config.toml, whole.
//!
//! Its unit says when it is ready, and a kubelet does not come up before the runtime answers it: so the kubelet's gate
//! speaks for both.

use serde_json::json;

use super::engine::{self, Engine};
use crate::desired::{ContainerEngine, Desired, File};
use crate::kubernetes::networks::pod_network::OfDocker;
use crate::kubernetes::parts::directories::add_directory;
use crate::kubernetes::parts::paths::{CNI_NETWORKS, CNI_PROGRAMS};
use crate::kubernetes::spec::cluster::{ClusterSpec, MachineFacts};
use crate::kubernetes::spec::node::NodeSpec;
use crate::kubernetes::spec::words::RuntimeKind;
use crate::kubernetes::text::toml;

pub(in crate::kubernetes) const STORE: &str = "/var/lib/containerd";
/// What is set for each registry; containerd reads it at every pull.
const REGISTRIES: &str = "/etc/containerd/certs.d";

/// Its part of the node.
pub(in crate::kubernetes) fn part(spec: &NodeSpec, cluster: &ClusterSpec, _facts: &MachineFacts) -> Desired {
    let mut part = Desired::default();
    let RuntimeKind::Containerd(major, minor) = cluster.runtime.kind else { return part };
    engine::block_others(cluster, &mut part);
    let settings = settings(spec, cluster, (major, minor));
    let engine = Engine {
        whose: ContainerEngine::Containerd,
        unit: "containerd.service",
        folder: "/etc/containerd",
        store: STORE,
        store_mode: 0o700,
        settings: vec![File::public("/etc/containerd/config.toml", settings)],
        network: OfDocker::default(),
    };
    engine.add(spec, &mut part);
    if let Some(registry) = spec.insecure_registry.as_ref().filter(|_| (major, minor) >= HOSTS) {
        let folder = format!("{REGISTRIES}/{registry}");
        for path in [REGISTRIES, &folder] {
            add_directory(path, &mut part);
        }
        part.files.push(File::public(format!("{folder}/hosts.toml"), hosts(registry)));
    }
    part
}

/// The first version with a directory of registries (config_path).
const HOSTS: (u16, u16) = (1, 5);
/// The plugin that unpacks images since 2.0, and the one snapshotter that it has in its list by itself.
const TRANSFER: &str = "io.containerd.transfer.v1.local";
const DEFAULT_SNAPSHOTTER: &str = "overlayfs";
/// The first version that takes several directories of CNI programs, and soon only them.
const SEVERAL_DIRECTORIES: (u16, u16) = (2, 1);

/// config.toml: form 2 for 1.x, form 3 for 2.x, where images and runtime are two plugins.
#[expect(clippy::indexing_slicing, reason = "serde_json adds what an object lacks, and all of them are objects made here")]
fn settings(spec: &NodeSpec, cluster: &ClusterSpec, version: (u16, u16)) -> String {
    let new = version.0 >= 2;
    let (images, runtime): (&str, &str) = if new {
        ("io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime")
    } else {
        ("io.containerd.grpc.v1.cri", "io.containerd.grpc.v1.cri")
    };
    let snapshotter = spec.storage.driver.name_for(ContainerEngine::Containerd);
    let mut file = json!({
        "version": if new { 3 } else { 2 },
        "root": STORE,
        "state": "/run/containerd",
        // As its own unit has it: the last to be killed.
        "oom_score": -999,
        "grpc": { "address": "/run/containerd/containerd.sock" },
    });
    let plugins = &mut file["plugins"];
    if new {
        plugins[images]["snapshotter"] = snapshotter.into();
        if snapshotter != DEFAULT_SNAPSHOTTER {
            // The transfer service, by which CRI pulls since 2.1, unpacks only for what is listed (containerd's issue 11606); the
            // architecture is the machine's where none is given.
            plugins[TRANSFER]["unpack_config"] = json!([{ "platform": "linux", "snapshotter": snapshotter }]);
        }
    }
    if let Some(image) = &cluster.runtime.sandbox_image {
        if new {
            plugins[images]["pinned_images"]["sandbox"] = image.as_str().into();
        } else {
            plugins[images]["sandbox_image"] = image.as_str().into();
        }
    }
    plugins[images]["registry"] = match &spec.insecure_registry {
        _ if version >= HOSTS => json!({ "config_path": REGISTRIES }),
        Some(registry) => json!({
            "mirrors": { registry: { "endpoint": [format!("https://{registry}"), format!("http://{registry}")] } },
            "configs": { registry: { "tls": { "insecure_skip_verify": true } } },
        }),
        None => json!({}),
    };
    plugins[runtime]["cni"] = if version >= SEVERAL_DIRECTORIES {
        json!({ "bin_dirs": [CNI_PROGRAMS], "conf_dir": CNI_NETWORKS })
    } else {
        json!({ "bin_dir": CNI_PROGRAMS, "conf_dir": CNI_NETWORKS })
    };
    let containerd = &mut plugins[runtime]["containerd"];
    if !new {
        containerd["snapshotter"] = snapshotter.into();
    }
    containerd["default_runtime_name"] = "runc".into();
    // The same as the kubelet's (magnum-node.md 7.4 no. 45).
    let options = json!({ "SystemdCgroup": cluster.runtime.cgroup_driver == "systemd" });
    containerd["runtimes"]["runc"] = json!({ "runtime_type": "io.containerd.runc.v2", "options": options });
    toml::document(&file)
}

/// A registry that is reached without verified TLS, or without TLS, as docker does it.
fn hosts(registry: &str) -> String {
    let capabilities = ["pull", "resolve", "push"];
    toml::document(&json!({
        "server": format!("https://{registry}"),
        "host": {
            format!("https://{registry}"): { "capabilities": capabilities, "skip_verify": true },
            format!("http://{registry}"): { "capabilities": capabilities },
        },
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::desired::Dependency;
    use crate::kubernetes::fixtures::{content, file, node};

    fn worker(changes: &[(&str, &str)]) -> Desired {
        let base =
            [("ROLE", "minion"), ("KUBE_MASTER_IP", "192.0.2.5"), ("CERTIFICATES", "given"), ("CONTAINER_RUNTIME", "containerd")];
        node(&base.into_iter().chain(changes.iter().copied()).collect::<Vec<_>>())
    }

    fn config(desired: &Desired) -> ::toml::Table {
        content(desired, "/etc/containerd/config.toml").parse().unwrap()
    }

    fn at<'a>(table: &'a ::toml::Table, path: &[&str]) -> Option<&'a ::toml::Value> {
        let (first, rest) = path.split_first()?;
        let value = table.get(*first)?;
        if rest.is_empty() { Some(value) } else { at(value.as_table()?, rest) }
    }

    // magnum-node.md 7.4 no. 45, 46
    #[test]
    fn each_version_finds_its_keys() {
        for (version, form, images, runtime, sandbox, programs) in [
            ("1.4.4", 2, "io.containerd.grpc.v1.cri", "io.containerd.grpc.v1.cri", &["sandbox_image"][..], "bin_dir"),
            ("1.6.31", 2, "io.containerd.grpc.v1.cri", "io.containerd.grpc.v1.cri", &["sandbox_image"], "bin_dir"),
            ("1.7.2", 2, "io.containerd.grpc.v1.cri", "io.containerd.grpc.v1.cri", &["sandbox_image"], "bin_dir"),
            ("2.0.1", 3, "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime", &["pinned_images", "sandbox"], "bin_dir"),
            (
                "2.1.0",
                3,
                "io.containerd.cri.v1.images",
                "io.containerd.cri.v1.runtime",
                &["pinned_images", "sandbox"],
                "bin_dirs",
            ),
        ] {
            for (driver, systemd) in [("systemd", true), ("cgroupfs", false)] {
                let changes = [
                    ("KUBE_TAG", "v1.24.1"),
                    ("CONTAINERD_VERSION", version),
                    ("SANDBOX_IMAGE", "pause:3.9"),
                    ("CGROUP_DRIVER", driver),
                ];
                let config = config(&worker(&changes));
                assert_eq!(config["version"].as_integer(), Some(form), "{version}");
                let plugins = config["plugins"].as_table().unwrap();
                let options = ["containerd", "runtimes", "runc", "options", "SystemdCgroup"];
                let all: Vec<&str> = [runtime].into_iter().chain(options).collect();
                assert_eq!(at(plugins, &all).and_then(::toml::Value::as_bool), Some(systemd), "{version}");
                let all: Vec<&str> = [images].into_iter().chain(sandbox.iter().copied()).collect();
                assert_eq!(at(plugins, &all).and_then(::toml::Value::as_str), Some("pause:3.9"), "{version}");
                assert!(at(plugins, &[runtime, "cni", programs]).is_some(), "{version}");
                assert_eq!(at(plugins, &[runtime, "cni", "conf_dir"]).and_then(::toml::Value::as_str), Some("/etc/cni/net.d"));
                let path = at(plugins, &[images, "registry", "config_path"]).is_some();
                assert_eq!(path, version != "1.4.4", "{version}");
            }
        }
        assert!(!content(&worker(&[]), "/etc/containerd/config.toml").contains("sandbox"));
    }

    // Form 3 moved the snapshotter from the runtime to the images.
    #[test]
    fn the_snapshotter_follows_the_driver() {
        for (version, path) in [
            ("1.6.20", &["io.containerd.grpc.v1.cri", "containerd", "snapshotter"][..]),
            ("1.7.2", &["io.containerd.grpc.v1.cri", "containerd", "snapshotter"]),
            ("2.1.0", &["io.containerd.cri.v1.images", "snapshotter"]),
        ] {
            for (driver, expected) in [("overlay2", "overlayfs"), ("btrfs", "btrfs")] {
                let config = config(&worker(&[("CONTAINERD_VERSION", version), ("DOCKER_STORAGE_DRIVER", driver)]));
                let found = at(config["plugins"].as_table().unwrap(), path).and_then(::toml::Value::as_str);
                assert_eq!(found, Some(expected), "{version}");
                // Without it 2.x pulls images and unpacks none.
                let listed = config["plugins"].get(TRANSFER).map(|transfer| transfer["unpack_config"][0]["snapshotter"].clone());
                let wanted = (version == "2.1.0" && driver == "btrfs").then(|| "btrfs".into());
                assert_eq!(listed, wanted, "{version} {driver}");
            }
        }
    }

    #[test]
    fn an_insecure_registry_is_reached_by_every_version() {
        let registry = ("INSECURE_REGISTRY_URL", "registry.example.org:5000");
        let new = worker(&[registry, ("CONTAINERD_VERSION", "1.7.2")]);
        assert_eq!(
            content(&new, "/etc/containerd/certs.d/registry.example.org:5000/hosts.toml"),
            "# Made by heat-node-agent from the parameters of the deployment; it is written again when they change.\n\
server = \"https://registry.example.org:5000\"\n\n[host.\"https://registry.example.org:5000\"]\n\
capabilities = [\"pull\", \"resolve\", \"push\"]\nskip_verify = true\n\n[host.\"http://registry.example.org:5000\"]\n\
capabilities = [\"pull\", \"resolve\", \"push\"]\n"
        );
        let old = config(&worker(&[registry, ("CONTAINERD_VERSION", "1.4.4"), ("KUBE_TAG", "v1.20.1")]));
        let registry = old["plugins"]["io.containerd.grpc.v1.cri"]["registry"].as_table().unwrap();
        assert_eq!(
            at(registry, &["configs", "registry.example.org:5000", "tls", "insecure_skip_verify"])
                .and_then(::toml::Value::as_bool),
            Some(true)
        );
        assert_eq!(registry["mirrors"]["registry.example.org:5000"]["endpoint"].as_array().unwrap().len(), 2);
    }

    #[test]
    fn the_volume_carries_the_store_of_the_runtime_that_is_used() {
        let volume = ("DOCKER_VOLUME", "7c1f4d0e-93a2-4b86-8d55-2f60c6b1a9e4");
        for (runtime, unit, store) in [
            ("containerd", "containerd.service", "/var/lib/containerd"),
            ("cri-o", "crio.service", "/var/lib/containers"),
            ("docker", "docker.service", "/var/lib/docker"),
        ] {
            let desired =
                worker(&[volume, ("CONTAINER_RUNTIME", runtime), ("HTTPS_PROXY", "http://u:p%40@proxy.example.org:3128")]);
            assert_eq!(desired.volumes.len(), 1);
            assert_eq!(
                (desired.volumes[0].mount_point.as_str(), desired.volumes[0].users.as_slice()),
                (store, &[unit.to_owned()][..])
            );
            let drop_in = content(&desired, &format!("/etc/systemd/system/{unit}.d/50-heat-node-agent.conf"));
            for line in [
                &format!("RequiresMountsFor={store}\n"),
                &format!("AssertPathIsMountPoint={store}\n"),
                "Requires=heat-node-agent-guard.service\n",
            ] {
                assert!(drop_in.contains(line), "{runtime} {line}: {drop_in}");
            }
            // magnum-node.md 7.5 no. 69: one way for proxies, whatever the runtime.
            let path = drop_in.lines().find_map(|line| line.strip_prefix("EnvironmentFile=")).unwrap();
            let proxy = file(&desired, path).unwrap();
            assert!(
                proxy.secret
                    && proxy.mode == 0o600
                    && proxy.content.contains("\nHTTPS_PROXY=\"http://u:p%40@proxy.example.org:3128\"\n")
            );
            let found = desired.units.iter().find(|one| one.name == unit).unwrap();
            assert!(found.enable && found.needs.contains(&Dependency::Volume(crate::desired::VolumeRole::Runtime)));
            assert!(found.restart_on.contains(path));
        }
    }

    // magnum-node.md 7.4 no. 44
    #[test]
    fn no_second_runtime_starts() {
        for (runtime, off) in [
            ("containerd", &["docker.service", "docker.socket", "cri-docker.service", "cri-docker.socket", "crio.service"][..]),
            ("cri-o", &["docker.service", "docker.socket", "cri-docker.service", "cri-docker.socket", "containerd.service"]),
            ("docker", &["crio.service"]),
        ] {
            let desired = worker(&[("CONTAINER_RUNTIME", runtime)]);
            for unit in [
                "docker.service",
                "docker.socket",
                "cri-docker.service",
                "cri-docker.socket",
                "containerd.service",
                "crio.service",
            ] {
                let path = format!("/etc/systemd/system/{unit}.d/50-heat-node-agent.conf");
                let never = file(&desired, &path).is_some_and(|file| file.content.contains("ConditionPathExists=!/\n"));
                assert_eq!(never, off.contains(&unit), "{runtime} {unit}");
                let enabled = desired.units.iter().any(|one| one.name == unit && one.enable);
                assert!(!(enabled && never), "{runtime} {unit}");
            }
            assert_eq!(desired.gates.iter().any(|gate| gate.name == "docker"), runtime == "docker");
            assert_eq!(file(&desired, "/etc/docker/daemon.json").is_some(), runtime == "docker");
        }
    }
}
