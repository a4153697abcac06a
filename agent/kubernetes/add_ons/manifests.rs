//! Add-ons of the image (`ADDONS`): which of them the first master applies, what their manifests may name, and how what they run is measured.
//!
//! The node's deployment succeeds when the API holds their objects. What these run is the cluster's matter: on its first master alone there
//! may be no node that takes a pod. So it is measured from then on, and waited for only where `ADDONS_WAIT` says so.

use std::collections::BTreeSet;

use crate::desired::{AddOn, Dependency, Desired, Gate, GateProbe};
use crate::gather::Gather;
use crate::kubernetes::parts::api_server;
use crate::kubernetes::parts::certificates::ADMIN;
use crate::kubernetes::spec::cluster::{ClusterSpec, MachineFacts};
use crate::kubernetes::spec::node::NodeSpec;
use crate::kubernetes::spec::words::Role;

/// The first minor with apps/v1 (CHANGELOG-1.9 of Kubernetes), by which workloads are followed.
pub(in crate::kubernetes) const FIRST_MINOR: u16 = 9;

/// Its part of the node.
pub(in crate::kubernetes) fn part(spec: &NodeSpec, cluster: &ClusterSpec, _facts: &MachineFacts) -> Desired {
    let mut part = Desired::default();
    if !cluster.is_first_master {
        return part;
    }
    let facts = facts(spec, cluster);
    let api = Dependency::Gate(api_server::GATE.to_owned());
    let wait = Some(cluster.add_ons.wait).filter(|wait| !wait.is_zero());
    for name in &cluster.add_ons.names {
        let before = part.add_ons.last().map(|before| Dependency::AddOn(before.name.clone()));
        let add_on = AddOn {
            name: name.clone(),
            server: cluster.server(Role::Master),
            identity: cluster.tls.then(|| ADMIN.client()),
            facts: facts.clone(),
            needs: before.into_iter().chain([api.clone()]).gather(),
        };
        let gate = Gate {
            name: format!("add-on {name}"),
            unit: None,
            probe: GateProbe::AddOn(add_on.clone()),
            consecutive: 1,
            deadline: wait,
            needs: BTreeSet::from([Dependency::AddOn(name.clone()), api.clone()]),
            remedy: "`kubectl get nodes` and `kubectl get pods -A -o wide` on a master; `kubectl describe pod` shows the events of a pod. A \
                     wrong image name is corrected by CONTAINER_INFRA_PREFIX, by the add-on's tag, or in the image's manifest"
                .to_owned(),
        };
        part.add_ons.push(add_on);
        if wait.is_some() { part.gates.push(gate) } else { part.watched.push(gate) }
    }
    part
}

/// What manifests may name.
fn facts(spec: &NodeSpec, cluster: &ClusterSpec) -> Vec<(&'static str, String)> {
    let networks = &cluster.networks;
    let address = cluster.api.private.or(cluster.api.public).or(spec.address);
    let given = |text: &Option<String>| text.clone().unwrap_or_default();
    vec![
        ("api_address", address.map(|address| address.to_string()).unwrap_or_default()),
        ("api_port", cluster.api.port.to_string()),
        ("cluster_domain", networks.domain.clone()),
        ("cluster_name", cluster.control_plane.cluster_name.clone()),
        ("coredns_tag", given(&cluster.add_ons.coredns_tag)),
        ("dns_service_ip", networks.dns.to_string()),
        ("kubernetes_version", cluster.tag.clone()),
        ("metrics_server_tag", given(&cluster.add_ons.metrics_server_tag)),
        ("pod_network", networks.pods.to_string()),
        ("registry", given(&cluster.add_ons.registry)),
        ("service_network", networks.services.to_string()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubernetes::fixtures::{master, node, problems, spec};
    use crate::kubernetes::render;

    #[test]
    fn the_first_master_applies_them_in_their_order_behind_the_api() {
        let desired = master(28, &[("ADDONS", "flannel,coredns"), ("CONTAINER_INFRA_PREFIX", "registry.example.org/mirror/")]);
        let names: Vec<_> = desired.add_ons.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(names, ["flannel", "coredns"]);
        let api = || Dependency::Gate("apiserver".to_owned());
        assert_eq!(desired.add_ons[0].needs, BTreeSet::from([api()]));
        assert_eq!(desired.add_ons[1].needs, BTreeSet::from([api(), Dependency::AddOn("flannel".to_owned())]));
        assert_eq!(desired.add_ons[1].server, "https://127.0.0.1:6443");
        let facts = &desired.add_ons[1].facts;
        for expected in [
            ("dns_service_ip", "10.254.0.10"),
            ("cluster_domain", "cluster.local"),
            ("registry", "registry.example.org/mirror/"),
            ("api_address", "192.0.2.11"),
            ("api_port", "6443"),
            ("kubernetes_version", "v1.28.3"),
            ("cluster_name", "c0ffee00-1111-4222-8333-444455556666"),
            ("coredns_tag", ""),
        ] {
            assert!(facts.iter().any(|(name, value)| (*name, value.as_str()) == expected), "{expected:?} in {facts:?}");
        }
        // Nobody waits for what they run; it is watched.
        let is_of_add_on = |gate: &&Gate| matches!(gate.probe, GateProbe::AddOn(_));
        assert_eq!(
            (desired.gates.iter().filter(is_of_add_on).count(), desired.watched.iter().filter(is_of_add_on).count()),
            (0, 2)
        );
        let waiting = master(28, &[("ADDONS", "coredns"), ("ADDONS_WAIT", "120")]);
        let gate = waiting.gates.iter().find(is_of_add_on).unwrap();
        assert_eq!(gate.deadline.map(|own| own.as_secs()), Some(120));
        assert!(gate.needs.iter().all(|need| waiting.provides(need)));
    }

    #[test]
    fn nobody_else_applies_any_and_no_node_changes_by_default() {
        let members = "blue-master-0=https://192.0.2.11:2380,b=https://192.0.2.12:2380,c=https://192.0.2.13:2380";
        let second = [("ADDONS", "coredns"), ("MASTER_INDEX", "1"), ("ETCD_INITIAL_CLUSTER", members)];
        assert!(master(28, &second).add_ons.is_empty());
        assert!(master(28, &[]).add_ons.is_empty() && !serde_json::to_string(&master(28, &[])).unwrap().contains("add_ons"));
        let worker = node(&[("ROLE", "minion"), ("KUBE_MASTER_IP", "192.0.2.11"), ("ADDONS", "coredns")]);
        assert!(worker.add_ons.is_empty());
        let clear = spec(&[("KUBE_TAG", "v1.18.2"), ("TLS_DISABLED", "true"), ("CERTIFICATES", ""), ("ADDONS", "coredns")]);
        let clear = render(&clear, &MachineFacts::default()).unwrap();
        assert_eq!((&*clear.add_ons[0].server, &clear.add_ons[0].identity), ("http://127.0.0.1:6443", &None));
    }

    #[test]
    fn names_that_are_no_directories_are_refused() {
        for (names, tag, expected) in [
            ("coredns,../../etc", "v1.28.9", "ADDONS contains \"../../etc\""),
            ("CoreDNS", "v1.28.9", "ADDONS contains \"CoreDNS\""),
            ("coredns,flannel,coredns", "v1.28.9", "ADDONS names coredns twice"),
            ("coredns", "v1.8.2", "ADDONS is given, and KUBE_TAG selects 1.8"),
        ] {
            let found = problems(&[("ADDONS", names), ("KUBE_TAG", tag)]);
            assert!(found.iter().any(|one| one == expected), "{names}: {found:?}");
        }
    }
}
