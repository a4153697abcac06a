//! podmaster on masters whose controller manager knows no leader election (before 1.2): while it holds the lock in etcd,
//! it copies the manifest of controller manager or scheduler to where the kubelet finds it (magnum-node.md 1.9).
//!
//! These two then run as static pods on the one master that leads, so there is no gate of their own: on every other
//! master they must not be there.

use serde_json::{Value, json};

use super::certificates::{AUTHORITY, service_account_keys};
use super::cluster::{CERTIFICATES, ClusterSpec, Facts, MANIFESTS};
use super::etcd;
use super::host::directory;
use super::node_spec::NodeSpec;
use super::versions::Minor;
use super::yaml;
use crate::desired::{Desired, File};

/// Where the manifests wait that podmaster copies.
const WAITING: &str = "/srv/kubernetes/manifests";
/// The port in the clear, on the loopback.
const MASTER: &str = "--master=http://127.0.0.1:8080";
/// As Magnum's first releases pin it.
const IMAGE: &str = "podmaster:1.1";

/// Whether podmaster elects. `--leader-elect` came with 1.2, the oldest minor that has a list.
pub(super) fn elects(cluster: &ClusterSpec) -> bool {
    cluster.minor < Minor::OLDEST_CHECKED
}

/// Adds its part.
pub(super) fn add(spec: &NodeSpec, cluster: &ClusterSpec, _facts: &Facts, desired: &mut Desired) {
    if !elects(cluster) {
        return;
    }
    for path in [WAITING, MANIFESTS] {
        desired.directories.push(directory(path));
    }
    let prefix = cluster.image_prefix.clone().unwrap_or_default();
    let hyperkube = format!("{prefix}hyperkube:{}", cluster.tag);
    let mut arguments = vec!["/hyperkube", "controller-manager", MASTER].into_iter().map(str::to_owned).collect::<Vec<_>>();
    if let Some(keys) = service_account_keys(cluster) {
        arguments.push(format!("--service-account-private-key-file={}", keys.sign));
    }
    if cluster.tls {
        arguments.push(format!("--root-ca-file={AUTHORITY}"));
    }
    let scheduler = ["/hyperkube", "scheduler", MASTER].map(str::to_owned);
    let election = |key: &str, manifest: &str| {
        json!({
            "name": format!("{key}-elector"),
            "image": format!("{prefix}{IMAGE}"),
            "command": [
                "/podmaster",
                format!("--etcd-servers={}", etcd::url_of_the_api_server(spec, cluster)),
                format!("--key={key}"),
                format!("--source-file={WAITING}/{manifest}"),
                format!("--dest-file={MANIFESTS}/{manifest}"),
            ],
            "volumeMounts": [{"name": "waiting", "mountPath": WAITING, "readOnly": true}, {"name": "manifests", "mountPath": MANIFESTS}],
        })
    };
    let electors = json!([
        election("controller", "kube-controller-manager.yaml"),
        election("scheduler", "kube-scheduler.yaml"),
    ]);
    for (path, content) in [
        (
            format!("{WAITING}/kube-controller-manager.yaml"),
            component("kube-controller-manager", &hyperkube, &arguments, 10252),
        ),
        (format!("{WAITING}/kube-scheduler.yaml"), component("kube-scheduler", &hyperkube, &scheduler, 10251)),
        (
            format!("{MANIFESTS}/kube-podmaster.yaml"),
            pod("kube-podmaster", &electors, &json!([volume("waiting", WAITING), volume("manifests", MANIFESTS)])),
        ),
    ] {
        desired.files.push(File::public(path, content));
    }
}

fn component(name: &str, image: &str, command: &[String], port: u16) -> String {
    let containers = json!([{
        "name": name,
        "image": image,
        "command": command,
        "livenessProbe": {
            "httpGet": {"host": "127.0.0.1", "path": "/healthz", "port": port},
            "initialDelaySeconds": 15,
            "timeoutSeconds": 1,
        },
        "volumeMounts": [{"name": "certificates", "mountPath": CERTIFICATES, "readOnly": true}],
    }]);
    pod(name, &containers, &json!([volume("certificates", CERTIFICATES)]))
}

fn volume(name: &str, path: &str) -> Value {
    json!({"name": name, "hostPath": {"path": path}})
}

fn pod(name: &str, containers: &Value, volumes: &Value) -> String {
    yaml::document(&json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "kube-system"},
        "spec": {"hostNetwork": true, "containers": containers, "volumes": volumes},
    }))
}
