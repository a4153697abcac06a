//! Labels and taints of the node's object in the API. A kubelet gives them when it registers its node, and never again: what changes later
//! is brought by the agent.
//!
//! In: the node's parameters. Out: the object that says so. A worker's is written as its kubelet, which `NodeRestriction` lets change its own
//! labels, but for some of Kubernetes' own, and no taints; a master's by its administrator. So masters get the labels by which the cluster
//! knows them, which no kubelet may give from 1.16 on.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::kubelet::{FIRST_WITHOUT_OWN_ROLE, REGISTRATION, client_identity, node_object_name, registered, taint_name};

use crate::desired::{Dependency, Desired, Material, NODES, OWN_LABELS, OWN_TAINTS, Object};
use crate::gather::Gather;
use crate::kubernetes::parts::certificates::ADMIN;
use crate::kubernetes::parts::daemon::Flags;
use crate::kubernetes::spec::cluster::{ClusterSpec, MachineFacts};
use crate::kubernetes::spec::node::NodeSpec;
use crate::kubernetes::spec::words::Role;

/// Labels by which the cluster knows its masters: the new one, which kubeadm sets since 1.20, and the old one, which it took away with 1.24: manifests
/// choose by either. Taints have the same names.
pub const ROLES: [&str; 2] = ["node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"];

/// Whether a kubelet since 1.16 may give its node this label.
pub(in crate::kubernetes) fn may_label(key: &str) -> bool {
    let Some((prefix, _)) = key.split_once('/') else { return true };
    let under = |domain: &str| prefix == domain || prefix.ends_with(&format!(".{domain}"));
    !(under("kubernetes.io") || under("k8s.io"))
        || under("kubelet.kubernetes.io")
        || under("node.kubernetes.io")
        || is_kubelets_own(key)
}

/// Whether each kubelet gives its node this label, and puts it right when it starts.
fn is_kubelets_own(key: &str) -> bool {
    matches!(
        key.split_once('/').unwrap_or_default(),
        ("kubernetes.io", "hostname" | "arch" | "os")
            | ("beta.kubernetes.io", "arch" | "os" | "instance-type")
            | ("node.kubernetes.io", "instance-type")
            | ("failure-domain.beta.kubernetes.io" | "topology.kubernetes.io", "zone" | "region")
    )
}

fn labels(role: Role, cluster: &ClusterSpec, flags: &Flags) -> Map<String, Value> {
    let given = flags.value("node-labels").unwrap_or_default();
    let given = given.split(',').filter_map(|label| label.split_once('='));
    let is_kept = |key: &str| !is_kubelets_own(key) && (role == Role::Master || may_label(key));
    let given = given.filter(|(key, _)| is_kept(key)).map(|(key, value)| (key.to_owned(), json!(value)));
    // The same for every such minor: an update of the cluster stays one that can be rolled back.
    let has_roles = role == Role::Master && cluster.minor.number() >= FIRST_WITHOUT_OWN_ROLE;
    let roles = ROLES.iter().filter(|_| has_roles).map(|role| ((*role).to_owned(), json!("")));
    given.chain(roles).collect()
}

/// Taints that the parameters ask for, as kubectl takes them: `key=value:effect`, or `key:effect`. The master's own are its kubelet's, and
/// the operator's to take away.
fn given_taints(flags: &Flags) -> Vec<String> {
    let all = flags.value("register-with-taints").unwrap_or_default();
    let is_given = |taint: &&str| !taint.is_empty() && !taint.split(['=', ':']).next().is_some_and(|key| ROLES.contains(&key));
    all.split(',').filter(is_given).map(|taint| taint.replace("=:", ":")).gather()
}

/// The same of a node whose kubelet registers it.
#[must_use]
pub fn taints(spec: &NodeSpec, facts: &MachineFacts) -> Vec<String> {
    let flags = spec.kubernetes.as_ref().and_then(|cluster| registered(spec, cluster, facts));
    flags.map(|flags| given_taints(&flags)).unwrap_or_default()
}

/// `key=value:effect` as the API has it.
fn taint(text: &str) -> Value {
    let (pair, effect) = text.rsplit_once(':').unwrap_or((text, ""));
    match pair.split_once('=') {
        Some((key, value)) => json!({"key": key, "value": value, "effect": effect}),
        None => json!({"key": pair, "effect": effect}),
    }
}

/// The node's object as these parameters ask for it, where they do.
#[must_use]
pub fn node_object(spec: &NodeSpec, facts: &MachineFacts) -> Option<String> {
    let object = part(spec, spec.kubernetes.as_ref()?, facts).objects.pop()?;
    match object.body {
        Material::Text(body) => Some(body),
        Material::File(_) => None,
    }
}

/// Its part of the node.
pub(in crate::kubernetes) fn part(spec: &NodeSpec, cluster: &ClusterSpec, facts: &MachineFacts) -> Desired {
    let mut part = Desired::default();
    let Some(flags) = registered(spec, cluster, facts) else { return part };
    let name = node_object_name(cluster);
    let labels = labels(spec.role, cluster, &flags);
    let text = |words: Vec<String>| json!(words.join(","));
    let mut notes = Map::from_iter([(OWN_LABELS.to_owned(), text(labels.keys().cloned().collect()))]);
    let mut body = Map::from_iter([("apiVersion".to_owned(), json!("v1")), ("kind".to_owned(), json!("Node"))]);
    if spec.role == Role::Master {
        let taints = given_taints(&flags);
        notes.insert(OWN_TAINTS.to_owned(), text(taints.iter().map(|one| taint_name(one)).collect()));
        if !taints.is_empty() {
            body.insert("spec".to_owned(), json!({"taints": taints.iter().map(|one| taint(one)).collect::<Vec<_>>()}));
        }
    }
    let metadata = if labels.is_empty() {
        json!({"name": name, "annotations": notes})
    } else {
        json!({"name": name, "annotations": notes, "labels": labels})
    };
    body.insert("metadata".to_owned(), metadata);
    let identity = if spec.role == Role::Master { ADMIN.client() } else { client_identity(cluster) };
    part.objects.push(Object {
        name: format!("node {name}"),
        server: cluster.server(spec.role),
        collection: NODES.to_owned(),
        body: Material::Text(Value::Object(body).to_string()),
        object: name,
        identity: cluster.tls.then_some(identity),
        before: None,
        needs: BTreeSet::from([Dependency::Gate(REGISTRATION.to_owned())]),
    });
    part
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubernetes::fixtures::{master, node};
    use crate::kubernetes::parts::certificates::KUBELET;
    use crate::kubernetes::worker::kubelet::OWN_CERTIFICATE;

    fn body(desired: &Desired) -> Option<Value> {
        let Material::Text(text) = &desired.objects.first()?.body else { panic!("{:?}", desired.objects) };
        crate::budgets::json::typed(text).ok()
    }

    const WORKER: &[(&str, &str)] = &[("ROLE", "minion"), ("KUBE_MASTER_IP", "192.0.2.1"), ("INSTANCE_NAME", "blue-1")];
    const BOOTSTRAP: &[(&str, &str)] = &[("CERTIFICATES", "bootstrap"), ("BOOTSTRAP_TOKEN", "abcdef.0123456789abcdef")];
    const LABELS: &[(&str, &str)] = &[
        ("NODEGROUP_ROLE", "db"),
        ("NODE_LABELS", "rack=7,topology.kubernetes.io/zone=az1,node.kubernetes.io/pool=p"),
        ("NODE_TAINTS", "a=b:NoSchedule,gpu:NoExecute"),
    ];

    fn worker(minor: &str, changes: &[&[(&str, &str)]]) -> Desired {
        node(&[WORKER, &[("KUBE_TAG", minor), ("CONTAINER_RUNTIME", "docker")], &changes.concat()].concat())
    }

    #[test]
    fn a_master_gets_its_role_through_the_api_where_its_kubelet_must_not_give_it() {
        let (new, old) = ("node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master");
        for (minor, roles) in [(15, &[old][..]), (16, &[new, old]), (20, &[new, old]), (37, &[new, old])] {
            let desired = master(minor, &[("INSTANCE_NAME", "blue-master-0")]);
            let [object] = &desired.objects[..] else { panic!("1.{minor}: {:?}", desired.objects) };
            assert_eq!(
                (object.name.as_str(), object.server.as_str(), object.collection.as_str(), object.object.as_str()),
                ("node blue-master-0", "https://127.0.0.1:6443", "/api/v1/nodes", "blue-master-0")
            );
            assert_eq!(object.identity, Some(ADMIN.client()));
            // Behind the kubelet's own registration: the API must not make a node of it that has nothing but labels.
            assert_eq!(object.needs, BTreeSet::from([Dependency::Gate("registration".to_owned())]));
            let labels: Map<_, _> = roles.iter().map(|role| ((*role).to_owned(), json!(""))).collect();
            let notes = json!({"heat-node-agent/labels": roles.join(","), "heat-node-agent/taints": ""});
            let metadata = json!({"name": "blue-master-0", "annotations": notes, "labels": labels});
            assert_eq!(body(&desired), Some(json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata})));
        }
        for desired in [
            master(20, &[("KUBELET_OPTIONS", "--register-node=false")]),
            worker("v1.20.2", &[&[("KUBELET_OPTIONS", "--register-node=false")]]),
        ] {
            assert!(desired.objects.is_empty(), "{:?}", desired.objects);
        }
    }

    #[test]
    fn a_worker_gets_its_labels_as_its_kubelet_and_a_master_its_taints_too() {
        let own = OWN_CERTIFICATE.to_owned();
        for (desired, identity) in
            [(worker("v1.20.2", &[LABELS]), KUBELET.client().certificate), (worker("v1.20.2", &[LABELS, BOOTSTRAP]), own)]
        {
            assert_eq!(desired.objects.first().unwrap().identity.as_ref().unwrap().certificate, identity);
            let body = body(&desired).unwrap();
            // A zone is the kubelet's own to put right; taints are nobody's to change as a kubelet.
            let labels = json!({"magnum.openstack.org/role": "db", "node.kubernetes.io/pool": "p", "rack": "7"});
            assert_eq!(
                (&body["metadata"]["name"], &body["metadata"]["labels"], body.get("spec")),
                (&json!("blue-1"), &labels, None)
            );
            let notes = json!({"heat-node-agent/labels": "magnum.openstack.org/role,rack,node.kubernetes.io/pool"});
            assert_eq!(body["metadata"]["annotations"], notes);
        }
        let options = ("KUBELET_OPTIONS", "--node-labels=rack=8 --register-with-taints=gpu=:NoSchedule");
        let body = body(&master(28, &[LABELS.get(1..).unwrap(), &[options]].concat())).unwrap();
        assert_eq!(body["metadata"]["labels"]["rack"], "8", "as a node that registers gets it");
        let taints = [("a", Some("b"), "NoSchedule"), ("gpu", None, "NoExecute"), ("gpu", None, "NoSchedule")];
        let taints = taints.map(|(key, value, effect)| match value {
            Some(value) => json!({"key": key, "value": value, "effect": effect}),
            None => json!({"key": key, "effect": effect}),
        });
        assert_eq!(body["spec"]["taints"], json!(taints), "but not the master's own");
        assert_eq!(body["metadata"]["annotations"][OWN_TAINTS], "a:NoSchedule,gpu:NoExecute,gpu:NoSchedule");
    }

    /// `NodeRestriction` holds updates to its list since 1.13, kubelets themselves since 1.16.
    #[test]
    fn what_a_kubelet_must_not_change_is_left_to_its_registration() {
        let labels = [("NODE_LABELS", "node-role.kubernetes.io/gpu=,a=b")];
        let body = body(&worker("v1.15.3", &[&labels])).unwrap();
        assert_eq!(body["metadata"]["labels"], json!({"a": "b"}));
        let desired = worker("v1.15.3", &[]);
        let Material::Text(text) = &desired.objects.first().unwrap().body else { panic!() };
        assert_eq!(
            text,
            r#"{"apiVersion":"v1","kind":"Node","metadata":{"name":"blue-1","annotations":{"heat-node-agent/labels":""}}}"#
        );
    }
}
