//! The masters' half of TLS bootstrap: what the cluster's API must hold so that workers with `BOOTSTRAP_TOKEN` get a
//! certificate of their own. The first master makes it; the workers' half is the kubelet's.
//!
//! The token lets its bearer ask for a node's client certificate, and nothing else. Such requests are approved by the
//! controller manager itself, and so are later ones of a node for itself. Requests for a kubelet's *serving* certificate
//! are not: Kubernetes has no approver for them, because nothing proves which names and addresses are a node's. The API
//! server goes on verifying kubelets, so until somebody approves them (`kubectl certificate approve`) a worker that joined
//! by a token runs pods, but shows no logs and lets nobody in by `kubectl exec`.
//!
//! The API server reaches kubelets as the administrator, who needs no binding.

use std::collections::BTreeSet;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use crate::desired::{Dependency, Desired, Material, Object};
use crate::kubernetes::parts::api_server;
use crate::kubernetes::parts::certificates::ADMIN;
use crate::kubernetes::spec::cluster::{ClusterSpec, MachineFacts};
use crate::kubernetes::spec::node::NodeSpec;
use crate::kubernetes::spec::words::Role;

/// The first minor whose workers can join by a token: from 1.11 on a kubelet keeps its certificate where kube-proxy finds it
/// (pull request 62152 of Kubernetes), from 1.12 on it is known to ask for a serving certificate by its configuration file
/// (`versions/kubelet-fields.txt`). The roles that are bound here came with 1.8.
pub(in crate::kubernetes) const FIRST_MINOR: u16 = 12;

/// Group of those who show the token.
const GROUP: &str = "system:bootstrappers:heat-node-agent";
/// Group of nodes with a certificate.
const NODES: &str = "system:nodes";

/// Names of the bindings behind `heat-node-agent:`, the roles that Kubernetes has, and who gets them.
const BINDINGS: [(&str, &str, &str); 4] = [
    ("node-bootstrapper", "system:node-bootstrapper", GROUP),
    ("approve-first-certificates", "system:certificates.k8s.io:certificatesigningrequests:nodeclient", GROUP),
    ("approve-renewed-certificates", "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient", NODES),
    // kube-proxy of such a worker shows the kubelet's certificate.
    ("node-proxier", "system:node-proxier", NODES),
];

/// Its part of the node.
pub(in crate::kubernetes) fn part(_spec: &NodeSpec, cluster: &ClusterSpec, _facts: &MachineFacts) -> Desired {
    let mut part = Desired::default();
    let token = cluster.bootstrap_token.as_ref().filter(|_| cluster.lets_join_by_token() && cluster.is_first_master);
    let Some((id, secret)) = token.and_then(|token| token.reveal().split_once('.')) else { return part };
    let mut object = |kind: &str, collection: &str, name: &str, body: &Value| {
        part.objects.push(Object {
            name: format!("{kind} {name}"),
            server: cluster.server(Role::Master),
            collection: collection.to_owned(),
            object: name.to_owned(),
            body: Material::Text(body.to_string()),
            identity: Some(ADMIN.client()),
            before: None,
            needs: BTreeSet::from([Dependency::Gate(api_server::GATE.to_owned())]),
        });
    };
    let name = format!("bootstrap-token-{id}");
    object("secret", "/api/v1/namespaces/kube-system/secrets", &name, &token_secret(&name, id, secret));
    for (name, role, group) in BINDINGS {
        let name = format!("heat-node-agent:{name}");
        object(
            "clusterrolebinding",
            "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
            &name,
            &binding(&name, role, group),
        );
    }
    part
}

/// As the API server's authenticator of bootstrap tokens reads it. It has no end, and another token does not take its place:
/// who wants one gone deletes its secret.
fn token_secret(name: &str, id: &str, secret: &str) -> Value {
    let text = |text: &str| BASE64_STANDARD.encode(text);
    json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": "kube-system"},
        "type": "bootstrap.kubernetes.io/token",
        "data": {
            "token-id": text(id),
            "token-secret": text(secret),
            "usage-bootstrap-authentication": text("true"),
            "auth-extra-groups": text(GROUP),
        },
    })
}

fn binding(name: &str, role: &str, group: &str) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": group}],
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubernetes::fixtures::{arguments, file, master, value};

    const TOKEN: (&str, &str) = ("BOOTSTRAP_TOKEN", "abcdef.0123456789abcdef");

    fn body(object: &Object) -> Value {
        let Material::Text(text) = &object.body else { panic!("{}", object.name) };
        crate::budgets::json::typed(text).unwrap()
    }

    /// The objects of a master, but for the node's own.
    fn objects(desired: &Desired) -> Vec<&Object> {
        desired.objects.iter().filter(|one| one.collection != "/api/v1/nodes").collect()
    }

    #[test]
    fn the_first_master_lets_workers_join_by_the_token() {
        for minor in [FIRST_MINOR, 19, 37] {
            let desired = master(minor, &[TOKEN]);
            let objects = objects(&desired);
            let found: Vec<_> = objects.iter().map(|one| format!("{} {}{}", one.name, one.server, one.collection)).collect();
            let bindings = "https://127.0.0.1:6443/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
            assert_eq!(
                found,
                [
                    "secret bootstrap-token-abcdef https://127.0.0.1:6443/api/v1/namespaces/kube-system/secrets".to_owned(),
                    format!("clusterrolebinding heat-node-agent:node-bootstrapper {bindings}"),
                    format!("clusterrolebinding heat-node-agent:approve-first-certificates {bindings}"),
                    format!("clusterrolebinding heat-node-agent:approve-renewed-certificates {bindings}"),
                    format!("clusterrolebinding heat-node-agent:node-proxier {bindings}"),
                ]
            );
            for object in &objects {
                assert_eq!(object.needs, BTreeSet::from([Dependency::Gate("apiserver".to_owned())]), "{}", object.name);
                assert_eq!(body(object)["metadata"]["name"], object.object.as_str());
                assert!(!format!("{object:?}").contains("0123456789abcdef"), "{object:?}");
            }
            let data = &body(objects[0])["data"];
            let text = |key: &str| String::from_utf8(BASE64_STANDARD.decode(data[key].as_str().unwrap()).unwrap()).unwrap();
            assert_eq!((text("token-id"), text("token-secret")), ("abcdef".to_owned(), "0123456789abcdef".to_owned()));
            assert_eq!(text("auth-extra-groups"), GROUP);
            let subjects: Vec<_> = objects[1..].iter().map(|one| body(one)["subjects"][0]["name"].clone()).collect();
            assert_eq!(subjects, [GROUP, GROUP, NODES, NODES]);
        }
    }

    #[test]
    fn every_master_takes_tokens_and_signs() {
        for index in ["0", "1"] {
            let list = "blue-master-0=https://192.0.2.11:2380,b=https://192.0.2.12:2380,c=https://192.0.2.13:2380";
            let desired = master(28, &[TOKEN, ("MASTER_INDEX", index), ("ETCD_INITIAL_CLUSTER", list)]);
            assert_eq!(objects(&desired).is_empty(), index == "1");
            let api_server = arguments(&desired, "kube-apiserver.service");
            assert_eq!(value(&api_server, "enable-bootstrap-token-auth"), Some("true"));
            let manager = arguments(&desired, "kube-controller-manager.service");
            assert_eq!(value(&manager, "controllers"), Some("*,bootstrapsigner,tokencleaner"));
            assert_eq!(value(&manager, "cluster-signing-key-file"), Some("/etc/kubernetes/certs/ca.key"));
            assert!(desired.files.iter().all(|file| !file.content.contains("0123456789abcdef")));
            assert!(file(&desired, "/etc/kubernetes/certs/ca.key").is_none(), "it comes with the CA");
        }
        let without = master(28, &[]);
        assert!(objects(&without).is_empty());
        assert_eq!(value(&arguments(&without, "kube-apiserver.service"), "enable-bootstrap-token-auth"), None);
    }
}
