//! CRI-O: the distribution's or our own `crio.service` with our part of its settings.
//!
//! Its unit says when it is ready, and a kubelet does not come up before the runtime answers it: so the kubelet's gate
//! speaks for both.

use serde_json::{Map, json};

use super::engine::{self, Engine};
use crate::desired::{ContainerEngine, Desired, File};
use crate::kubernetes::networks::pod_network::OfDocker;
use crate::kubernetes::parts::directories::add_directory;
use crate::kubernetes::parts::paths::{CNI_NETWORKS, CNI_PROGRAMS};
use crate::kubernetes::spec::cluster::{ClusterSpec, MachineFacts};
use crate::kubernetes::spec::node::NodeSpec;
use crate::kubernetes::spec::words::RuntimeKind;
use crate::kubernetes::text::toml;

pub(in crate::kubernetes) const STORE: &str = "/var/lib/containers";
/// Where registries are described for everything that uses containers' libraries.
const REGISTRIES: &str = "/etc/containers/registries.conf.d";

/// Its part of the node.
pub(in crate::kubernetes) fn part(spec: &NodeSpec, cluster: &ClusterSpec, _facts: &MachineFacts) -> Desired {
    let mut part = Desired::default();
    if cluster.runtime.kind != RuntimeKind::CriO {
        return part;
    }
    engine::block_others(cluster, &mut part);
    for path in ["/etc/crio", "/etc/crio/crio.conf.d"] {
        add_directory(path, &mut part);
    }
    let mut files = vec![File::public("/etc/crio/crio.conf.d/50-heat-node-agent.conf", settings(cluster))];
    if let Some(registry) = &spec.insecure_registry {
        for path in ["/etc/containers", REGISTRIES] {
            add_directory(path, &mut part);
        }
        let text = toml::document(&json!({ "registry": [{ "location": registry, "insecure": true }] }));
        files.push(File::public(format!("{REGISTRIES}/50-heat-node-agent.conf"), text));
    }
    let engine = Engine {
        whose: ContainerEngine::CriO,
        unit: "crio.service",
        folder: "/etc/crio",
        store: STORE,
        store_mode: 0o711,
        settings: files,
        network: OfDocker::default(),
    };
    engine.add(spec, &mut part);
    part
}

/// What differs from CRI-O's own choice. Paths below the store are its own: the store is mounted where it looks.
fn settings(cluster: &ClusterSpec) -> String {
    // The same as the kubelet's (magnum-node.md 7.4 no. 45). With cgroupfs conmon has to be in the pod's group.
    let runtime = json!({ "cgroup_manager": cluster.runtime.cgroup_driver, "conmon_cgroup": "pod" });
    let mut parts = Map::from_iter([("runtime".to_owned(), runtime)]);
    if let Some(image) = &cluster.runtime.sandbox_image {
        parts.insert("image".to_owned(), json!({ "pause_image": image }));
    }
    parts.insert("network".to_owned(), json!({ "network_dir": CNI_NETWORKS, "plugin_dirs": [CNI_PROGRAMS] }));
    toml::document(&json!({ "crio": parts }))
}

#[cfg(test)]
mod tests {
    use crate::kubernetes::fixtures::{content, node};

    #[test]
    fn settings_and_registries_are_read_back() {
        let desired = node(&[
            ("ROLE", "minion"),
            ("KUBE_MASTER_IP", "192.0.2.5"),
            ("CERTIFICATES", "given"),
            ("CONTAINER_RUNTIME", "cri-o"),
            ("CGROUP_DRIVER", "systemd"),
            ("SANDBOX_IMAGE", "pause:3.9"),
            ("INSECURE_REGISTRY_URL", "registry.example.org:5000"),
            ("HTTP_PROXY", "http://proxy.example.org:3128"),
        ]);
        let read: toml::Table = content(&desired, "/etc/crio/crio.conf.d/50-heat-node-agent.conf").parse().unwrap();
        let expected: toml::Table =
            "[crio.runtime]\ncgroup_manager='systemd'\nconmon_cgroup='pod'\n[crio.image]\npause_image='pause:3.9'\n\
            [crio.network]\nnetwork_dir='/etc/cni/net.d'\nplugin_dirs=['/opt/cni/bin']"
                .parse()
                .unwrap();
        assert_eq!(read, expected);
        let read: toml::Table = content(&desired, "/etc/containers/registries.conf.d/50-heat-node-agent.conf").parse().unwrap();
        assert_eq!(read, "[[registry]]\nlocation='registry.example.org:5000'\ninsecure=true".parse().unwrap());
        // CRI-O takes every file of crio.conf.d for settings.
        let there: Vec<_> = desired.files.iter().filter(|file| file.path.starts_with("/etc/crio/crio.conf.d/")).collect();
        assert_eq!(there.len(), 1);
    }
}
