//! Add-ons of the image (`ADDONS`): which of them the first master applies, what their manifests may name, and how what they run is measured.
//!
//! The node's deployment succeeds when the API holds their objects. What these run is the cluster's matter: on its first master alone there
//! may be no node that takes a pod. So it is measured from then on, and waited for only where `ADDONS_WAIT` says so.

use std::collections::BTreeSet;

use super::cloud_config;
use crate::desired::{AddOn, Dependency, Desired, Gate, GateProbe, SecretFact};
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
            secrets: secrets(cluster),
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
    let mut facts = vec![
        ("api_address", address.map(|address| address.to_string()).unwrap_or_default()),
        ("api_port", cluster.api.port.to_string()),
        ("cloud_provider_tag", cloud_provider_tag(cluster)),
        ("cluster_domain", networks.domain.clone()),
        ("cluster_name", cluster.control_plane.cluster_name.clone()),
        ("dns_service_ip", networks.dns.to_string()),
        ("kubernetes_version", cluster.tag.clone()),
        ("openstack_ca", given(&cluster.openstack_ca)),
        ("pod_network", networks.pods.to_string()),
        ("registry", given(&cluster.add_ons.registry)),
        ("service_network", networks.services.to_string()),
    ];
    facts.extend(cluster.add_ons.tags.iter().cloned());
    facts.sort_unstable_by_key(|(name, _)| *name);
    facts
}

/// Releases of cloud-provider-openstack have the numbers of Kubernetes' minors (its docs/openstack-cloud-controller-manager/using-openstack-cloud-controller-manager.md): where
/// none is named, the first one for this minor.
fn cloud_provider_tag(cluster: &ClusterSpec) -> String {
    let asked = cluster.cloud.as_ref().and_then(|cloud| cloud.tag.clone());
    asked.unwrap_or_else(|| format!("v1.{}.0", cluster.minor.number()))
}

/// OpenStack's credentials, as its programs in pods read them.
fn secrets(cluster: &ClusterSpec) -> Vec<SecretFact> {
    let plugin = cluster.add_ons.tags.iter().find(|(name, _)| *name == "cinder_csi_plugin_tag").map(|(_, tag)| tag.as_str());
    vec![
        SecretFact {
            name: "cloud_config",
            value: cloud_config::for_cinder(cluster, plugin.unwrap_or_default()).unwrap_or_default(),
            parameters: "AUTH_URL, TRUSTEE_USER_ID, TRUSTEE_PASSWORD and TRUST_ID",
        },
        SecretFact {
            name: "cloud_controller_config",
            value: cloud_config::for_controller(cluster).unwrap_or_default(),
            parameters: "CLOUD_PROVIDER_ENABLED=true, AUTH_URL, TRUSTEE_USER_ID, TRUSTEE_PASSWORD and TRUST_ID",
        },
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
            ("cloud_provider_tag", "v1.28.0"),
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
    fn openstacks_programs_in_pods_get_the_credentials_of_the_cluster() {
        let password = "pa#s;s";
        let trustee = [
            ("ADDONS", "cinder-csi,openstack-cloud-controller-manager"),
            ("AUTH_URL", "https://keystone.example.org/v3"),
            ("TRUSTEE_USER_ID", "7e6d5c4b"),
            ("TRUSTEE_PASSWORD", password),
            ("TRUST_ID", "9d8c7b6a"),
            ("CLUSTER_NETWORK_NAME", "private"),
        ];
        for (changes, controller, old_keys) in [
            (&[("CLOUD_PROVIDER_ENABLED", "false")][..], false, false),
            (&[("CLOUD_PROVIDER_ENABLED", "true"), ("CLOUD_PROVIDER_TAG", "v1.28.1")], true, false),
            (&[("CLOUD_PROVIDER_ENABLED", "true"), ("CINDER_CSI_PLUGIN_TAG", "v1.26.4")], true, true),
        ] {
            let desired = master(28, &[&trustee[..], changes].concat());
            let [plugin, provider] = &desired.add_ons[0].secrets[..] else { panic!("{changes:?}") };
            assert_eq!((plugin.name, provider.name), ("cloud_config", "cloud_controller_config"));
            assert!(plugin.value.contains(password) && !plugin.value.contains("private"), "{changes:?}");
            assert_eq!(plugin.value.contains("bs-version"), old_keys, "{changes:?}");
            assert_eq!(provider.value.contains(password) && provider.value.contains("private"), controller, "{changes:?}");
            let facts = &desired.add_ons[0].facts;
            assert!(!facts.iter().any(|(_, value)| value.contains(password)));
            let tag = facts.iter().find(|(name, _)| *name == "cloud_provider_tag").map(|(_, tag)| tag.as_str());
            assert_eq!(tag, Some(if changes.len() == 2 && !old_keys { "v1.28.1" } else { "v1.28.0" }));
        }
        let none = master(28, &[("ADDONS", "cinder-csi")]);
        assert!(none.add_ons[0].secrets.iter().all(|secret| secret.value.is_empty()));
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
