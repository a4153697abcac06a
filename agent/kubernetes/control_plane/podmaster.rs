//! podmaster on masters whose controller manager knows no leader election (before 1.2): while it holds the lock in etcd,
//! it copies the manifest of controller manager or scheduler to where the kubelet finds it (magnum-node.md 1.9).
//!
//! These two then run as static pods on the one master that leads, so there is no gate of their own: on every other
//! master they must not be there.

use serde_json::{Value, json};

use super::etcd;
use crate::desired::{Desired, File};
use crate::kubernetes::parts::certificates::{CLUSTER_CA, service_account_keys};
use crate::kubernetes::parts::directories::directory;
use crate::kubernetes::spec::cluster::{CERTIFICATES, ClusterSpec, MANIFESTS, MachineFacts};
use crate::kubernetes::spec::node::NodeSpec;
use crate::kubernetes::text::yaml;
use crate::kubernetes::versions::Minor;

/// Where the manifests wait that podmaster copies.
const WAITING: &str = "/srv/kubernetes/manifests";
/// The port in the clear, on the loopback.
const MASTER: &str = "--master=http://127.0.0.1:8080";
/// As Magnum's first releases pin it.
const IMAGE: &str = "podmaster:1.1";

/// Whether podmaster elects. `--leader-elect` came with 1.2, the oldest minor that has a list.
pub(in crate::kubernetes) fn elects(cluster: &ClusterSpec) -> bool {
    cluster.minor < Minor::OLDEST_CHECKED
}

/// Its part of the node.
pub(in crate::kubernetes) fn part(spec: &NodeSpec, cluster: &ClusterSpec, facts: &MachineFacts) -> Desired {
    let mut part = Desired::default();
    if !elects(cluster) {
        return part;
    }
    for path in [WAITING, MANIFESTS] {
        part.directories.push(directory(path));
    }
    let prefix = cluster.image_prefix.as_deref().unwrap_or_default();
    let hyperkube = format!("{prefix}hyperkube:{}", cluster.tag);
    let mut arguments = vec!["/hyperkube", "controller-manager", MASTER].into_iter().map(str::to_owned).collect::<Vec<_>>();
    if let Some(keys) = service_account_keys(cluster, facts) {
        arguments.push(format!("--service-account-private-key-file={}", keys.sign));
    }
    if cluster.tls {
        arguments.push(format!("--root-ca-file={CLUSTER_CA}"));
    }
    let scheduler = ["/hyperkube", "scheduler", MASTER].map(str::to_owned);
    let election = |key: &str, manifest: &str| {
        json!({
            "name": format!("{key}-elector"),
            "image": format!("{prefix}{IMAGE}"),
            "command": [
                "/podmaster",
                format!("--etcd-servers={}", etcd::url_of_the_api_server(spec)),
                format!("--key={key}"),
                format!("--source-file={WAITING}/{manifest}"),
                format!("--dest-file={MANIFESTS}/{manifest}"),
            ],
            "volumeMounts": [{"name": "waiting", "mountPath": WAITING, "readOnly": true}, {"name": "manifests", "mountPath": MANIFESTS}],
        })
    };
    let electors = json!([election("controller", "kube-controller-manager.yaml"), election("scheduler", "kube-scheduler.yaml"),]);
    for (path, content) in [
        (format!("{WAITING}/kube-controller-manager.yaml"), component("kube-controller-manager", &hyperkube, &arguments, 10252)),
        (format!("{WAITING}/kube-scheduler.yaml"), component("kube-scheduler", &hyperkube, &scheduler, 10251)),
        (
            format!("{MANIFESTS}/kube-podmaster.yaml"),
            pod("kube-podmaster", &electors, &json!([volume("waiting", WAITING), volume("manifests", MANIFESTS)])),
        ),
    ] {
        part.files.push(File::public(path, content));
    }
    part
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubernetes::fixtures::{MINORS, content, file, gate, master};

    /// magnum-node.md 1.9, 5.7
    #[test]
    fn it_elects_where_nothing_else_does() {
        for minor in MINORS {
            let desired = master(minor, &[]);
            let elects = minor < 2;
            let path = format!("{MANIFESTS}/kube-podmaster.yaml");
            assert_eq!(file(&desired, &path).is_some(), elects, "{minor}");
            for unit in ["kube-controller-manager.service", "kube-scheduler.service"] {
                assert_eq!(desired.units.iter().any(|one| one.name == unit), !elects, "{unit} {minor}");
            }
            // On a master that does not lead they must not run.
            assert_eq!(gate(&desired, "controller-manager").is_none(), elects);
        }
    }

    #[test]
    fn the_manifests_hold_what_the_two_need() {
        let keys = [
            ("KUBE_SERVICE_ACCOUNT_KEY", "-----BEGIN PUBLIC KEY-----\\nAA\\n-----END PUBLIC KEY-----"),
            ("KUBE_SERVICE_ACCOUNT_PRIVATE_KEY", "-----BEGIN RSA PRIVATE KEY-----\\nBB\\n-----END RSA PRIVATE KEY-----"),
            ("CONTAINER_INFRA_PREFIX", "mirror.example.org/"),
        ];
        let desired = master(1, &keys);
        let manager = content(&desired, "/srv/kubernetes/manifests/kube-controller-manager.yaml");
        for part in [
            "image: \"mirror.example.org/hyperkube:v1.1.3\"",
            "- \"--master=http://127.0.0.1:8080\"",
            "- \"--service-account-private-key-file=/etc/kubernetes/certs/service_account_private.key\"",
            "- \"--root-ca-file=/etc/kubernetes/certs/ca.crt\"",
            "port: 10252",
            "readOnly: true",
        ] {
            assert!(manager.contains(part), "{part}: {manager}");
        }
        assert!(content(&desired, "/srv/kubernetes/manifests/kube-scheduler.yaml").contains("port: 10251"));
        let podmaster = content(&desired, "/etc/kubernetes/manifests/kube-podmaster.yaml");
        for part in [
            "- \"--etcd-servers=http://127.0.0.1:2379\"",
            "- \"--key=controller\"",
            "- \"--key=scheduler\"",
            "- \"--source-file=/srv/kubernetes/manifests/kube-scheduler.yaml\"",
            "- \"--dest-file=/etc/kubernetes/manifests/kube-scheduler.yaml\"",
        ] {
            assert!(podmaster.contains(part), "{part}: {podmaster}");
        }
        let open = master(1, &[("TLS_DISABLED", "true"), ("CERTIFICATES", "")]);
        let manager = content(&open, "/srv/kubernetes/manifests/kube-controller-manager.yaml");
        assert!(!manager.contains("key-file") && !manager.contains("root-ca"));
    }
}
