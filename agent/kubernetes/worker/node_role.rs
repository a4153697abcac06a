//! The labels by which the cluster knows a master: `kubectl get nodes` shows them as the node's role, and manifests choose masters by them.
//!
//! In: the node's parameters. Out: the object that says so. From 1.16 on a kubelet must not give its own node labels of
//! `node-role.kubernetes.io/` (the admission plugin `NodeRestriction`), so the master does it through its API; before, the kubelet does.

use std::collections::BTreeSet;

use serde_json::json;

use super::kubelet::{FIRST_WITHOUT_OWN_ROLE, REGISTRATION, node_object_name, registers};

use crate::desired::{Dependency, Desired, Material, Object};
use crate::kubernetes::parts::certificates::ADMIN;
use crate::kubernetes::spec::cluster::{ClusterSpec, MachineFacts};
use crate::kubernetes::spec::node::NodeSpec;
use crate::kubernetes::spec::words::Role;

/// Labels by which the cluster knows its masters: the new one, which kubeadm sets since 1.20, and the old one, which it took away with 1.24: manifests
/// choose by either.
pub const ROLES: [&str; 2] = ["node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"];

/// Its part of the node.
pub(in crate::kubernetes) fn part(spec: &NodeSpec, cluster: &ClusterSpec, facts: &MachineFacts) -> Desired {
    let mut part = Desired::default();
    if spec.role != Role::Master || cluster.minor.number() < FIRST_WITHOUT_OWN_ROLE || !registers(spec, cluster, facts) {
        return part;
    }
    let name = node_object_name(cluster);
    // The same for every minor: an update of the cluster stays one that can be rolled back.
    let labels: serde_json::Map<_, _> = ROLES.iter().map(|role| ((*role).to_owned(), json!(""))).collect();
    part.objects.push(Object {
        name: format!("node {name}"),
        server: cluster.server(spec.role),
        collection: "/api/v1/nodes".to_owned(),
        body: Material::Text(
            json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}).to_string(),
        ),
        object: name,
        identity: cluster.tls.then(|| ADMIN.client()),
        needs: BTreeSet::from([Dependency::Gate(REGISTRATION.to_owned())]),
    });
    part
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubernetes::fixtures::{master, node};

    fn body(desired: &Desired) -> Option<serde_json::Value> {
        let Material::Text(text) = &desired.objects.first()?.body else { panic!("{:?}", desired.objects) };
        crate::budgets::json::typed(text).ok()
    }

    #[test]
    fn a_master_gets_its_role_through_the_api_where_its_kubelet_must_not_give_it() {
        for minor in [16, 20, 37] {
            let desired = master(minor, &[("INSTANCE_NAME", "blue-master-0")]);
            let [object] = &desired.objects[..] else { panic!("1.{minor}: {:?}", desired.objects) };
            assert_eq!(
                (object.name.as_str(), object.server.as_str(), object.collection.as_str(), object.object.as_str()),
                ("node blue-master-0", "https://127.0.0.1:6443", "/api/v1/nodes", "blue-master-0")
            );
            assert_eq!(object.identity, Some(ADMIN.client()));
            // Behind the kubelet's own registration: the API must not make a node of it that has nothing but labels.
            assert_eq!(object.needs, BTreeSet::from([Dependency::Gate("registration".to_owned())]));
            let labels = json!({"node-role.kubernetes.io/control-plane": "", "node-role.kubernetes.io/master": ""});
            assert_eq!(
                body(&desired),
                Some(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "blue-master-0", "labels": labels}}))
            );
        }
        for desired in [
            master(15, &[]),
            node(&[("ROLE", "minion"), ("KUBE_TAG", "v1.20.2"), ("KUBE_MASTER_IP", "192.0.2.1")]),
            master(20, &[("KUBELET_OPTIONS", "--register-node=false")]),
        ] {
            assert!(desired.objects.is_empty(), "{:?}", desired.objects);
        }
    }
}
