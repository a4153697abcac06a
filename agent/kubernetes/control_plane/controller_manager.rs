//! kube-controller-manager on masters, and what it has in common with the scheduler: both reach the API as themselves,
//! elect a leader, and serve their health on the loopback only.

use std::collections::BTreeSet;

use ipnet::IpNet;

use super::apiserver;
use super::podmaster;
use crate::desired::{Dependency, Desired, File};
use crate::kubernetes::add_ons;
use crate::kubernetes::parts::api_server;
use crate::kubernetes::parts::certificates::{
    CLUSTER_CA, CLUSTER_CA_KEY, CONTROLLER_MANAGER, Pair, SIGNING_CA, service_account_keys,
};
use crate::kubernetes::parts::daemon::{
    Daemon, Flags, ProbeIdentity, Variables, deadline, has_variables, ok_gate, read_files, unless_cloud,
};
use crate::kubernetes::spec::cluster::{CLOUD_CONFIG, ClusterSpec, MachineFacts, NetworkDriver, host_of};
use crate::kubernetes::spec::words::Role;
use crate::kubernetes::text::kubeconfig::{self, Identity};
use crate::kubernetes::versions::Component;
use crate::kubernetes::worker::kubelet::VOLUME_PLUGINS;

pub(in crate::kubernetes) const UNIT: &str = "kube-controller-manager.service";
const INSECURE_PORT: u16 = 10252;
const SECURE_PORT: u16 = 10257;
/// What a node gets of the pod network where nothing says so: the controller manager's own defaults.
const POD_PREFIX: u8 = 24;
const POD_PREFIX_V6: u8 = 64;

/// As the units of distributions expand them.
pub(in crate::kubernetes) const VARIABLES: Variables =
    &[("KUBE_LOGTOSTDERR", &[]), ("KUBE_LOG_LEVEL", &[]), ("KUBE_MASTER", &[])];

/// Its part of the node.
/// `given`: what other parts of the node write.
pub(in crate::kubernetes) fn part(cluster: &ClusterSpec, facts: &MachineFacts, given: &[File]) -> Desired {
    let mut part = Desired::default();
    if podmaster::elects(cluster) {
        return part;
    }
    let mut flags = Flags::new(Component::ControllerManager, cluster.minor);
    let local = LocalComponent {
        component: Component::ControllerManager,
        unit: UNIT,
        gate: "controller-manager",
        settings: "/etc/kubernetes/controller-manager",
        rest: "KUBE_CONTROLLER_MANAGER_ARGS",
        config: "/etc/kubernetes/controller-manager.conf",
        pair: &CONTROLLER_MANAGER,
        insecure_port: INSECURE_PORT,
        secure_port: SECURE_PORT,
    };
    local.set_common(cluster, &mut flags);
    set_own(cluster, facts, &mut flags);
    drop(flags.add_user_options(&cluster.options.controller_manager));
    local.add((cluster, facts), &flags, given, &mut part);
    part
}

/// Prefix length of the part of the pods' network that the controller manager gives each node; nothing where it gives none:
/// flanneld with leases in etcd deals them out by itself, the parameters say them, or Neutron does.
pub(in crate::kubernetes) fn node_prefix(cluster: &ClusterSpec) -> Option<u8> {
    let networks = &cluster.networks;
    if cluster.has_flannel_unit() || matches!(networks.driver, NetworkDriver::StaticRoutes | NetworkDriver::KubeStack) {
        return None;
    }
    let asked = match (networks.driver, networks.pods) {
        (NetworkDriver::Flannel, IpNet::V4(_)) => networks.flannel.subnet_length,
        (_, IpNet::V4(_)) => POD_PREFIX,
        (_, IpNet::V6(_)) => POD_PREFIX_V6,
    };
    // A node's part cannot be larger than the whole: the controller manager would stop.
    Some(asked.max(networks.pods.prefix_len()))
}

fn set_own(cluster: &ClusterSpec, facts: &MachineFacts, flags: &mut Flags) {
    let networks = &cluster.networks;
    if !cluster.control_plane.cluster_name.is_empty() {
        flags.set("cluster-name", cluster.control_plane.cluster_name.clone());
    }
    flags.set("service-cluster-ip-range", networks.services.trunc().to_string());
    flags.set("cluster-cidr", networks.pods.trunc().to_string());
    let length = node_prefix(cluster);
    flags.set("allocate-node-cidrs", length.is_some().to_string());
    if let Some(length) = length {
        flags.set("node-cidr-mask-size", length.to_string());
    }
    if cluster.has_built_in_cloud() {
        flags.set("cloud-provider", "openstack");
        flags.set("cloud-config", CLOUD_CONFIG);
        // Routes between nodes are the pod network's, not Neutron's.
        flags.set("configure-cloud-routes", "false");
    } else if cluster.cloud.as_ref().is_some_and(|cloud| cloud.external) {
        flags.set("cloud-provider", "external");
        if cluster.has_built_in_cinder() {
            flags.set("external-cloud-volume-plugin", "openstack");
            flags.set("cloud-config", CLOUD_CONFIG);
        }
    }
    if let Some(keys) = service_account_keys(cluster, facts) {
        flags.set("service-account-private-key-file", keys.sign);
        // Each controller by its own account, where the API tells accounts apart.
        if cluster.tls && cluster.minor.number() >= 6 {
            flags.set("use-service-account-credentials", "true");
        }
    }
    if cluster.tls {
        flags.set("root-ca-file", CLUSTER_CA);
    }
    if cluster.signs() {
        flags.set("cluster-signing-cert-file", SIGNING_CA);
        flags.set("cluster-signing-key-file", CLUSTER_CA_KEY);
    }
    if cluster.lets_join_by_token() {
        // Tokens with an end are cleaned up then.
        flags.set("controllers", "*,bootstrapsigner,tokencleaner");
    }
    // Where the kubelets' are.
    flags.set("flex-volume-plugin-dir", VOLUME_PLUGINS);
    add_ons::set_network_provider(cluster, flags);
}

/// Controller manager or scheduler.
pub(in crate::kubernetes) struct LocalComponent {
    pub(in crate::kubernetes) component: Component,
    pub(in crate::kubernetes) unit: &'static str,
    pub(in crate::kubernetes) gate: &'static str,
    pub(in crate::kubernetes) settings: &'static str,
    pub(in crate::kubernetes) rest: &'static str,
    /// Its kubeconfig.
    pub(in crate::kubernetes) config: &'static str,
    pub(in crate::kubernetes) pair: &'static Pair,
    pub(in crate::kubernetes) insecure_port: u16,
    pub(in crate::kubernetes) secure_port: u16,
}

impl LocalComponent {
    /// Who it is, where it serves, and that one of several leads.
    pub(in crate::kubernetes) fn set_common(&self, cluster: &ClusterSpec, flags: &mut Flags) {
        if cluster.tls {
            flags.set("kubeconfig", self.config);
            flags.set("authentication-kubeconfig", self.config);
            flags.set("authorization-kubeconfig", self.config);
        } else if !has_variables(cluster.minor) {
            flags.set("master", cluster.server(Role::Master));
        }
        flags.set("leader-elect", "true");
        flags.set("bind-address", "127.0.0.1");
        if serves_securely(cluster, flags) {
            // Never 0: then nothing would tell how it is (magnum-node.md 5.3).
            flags.set("secure-port", self.secure_port.to_string());
            flags.set("port", "0");
            flags.set("tls-cert-file", self.pair.certificate);
            flags.set("tls-private-key-file", self.pair.key);
        } else {
            // Of the port in the clear; where that is closed the flag is deprecated and of no use.
            flags.set("address", "127.0.0.1");
        }
    }

    pub(in crate::kubernetes) fn add(
        &self,
        (cluster, facts): (&ClusterSpec, &MachineFacts),
        flags: &Flags,
        given: &[File],
        part: &mut Desired,
    ) {
        let mut daemon = Daemon::new(self.unit, facts.program(cluster, self.component), self.settings);
        daemon.take(flags, cluster, VARIABLES, self.rest);
        daemon.after = vec!["network-online.target", apiserver::UNIT];
        daemon.unit_lines.push_str("Wants=network-online.target\n");
        // The keys are root's.
        daemon.service_lines.push_str("User=root\nGroup=root\n");
        // It would end at once, and come again only after a pause.
        daemon.needs = BTreeSet::from([Dependency::Gate(api_server::GATE.to_owned())]);
        if cluster.tls {
            let identity = Identity::Certificate { certificate: self.pair.certificate, key: self.pair.key };
            let user = format!("system:{}", self.component.as_str());
            let server = cluster.server(Role::Master);
            part.files.push(kubeconfig::file(self.config, &server, Some(CLUSTER_CA), &user, &identity));
        }
        daemon.restart_on = read_files(flags, given.iter().chain(&part.files));
        daemon.add(part);
        let address = |name: &str| match flags.value(name).as_deref() {
            None | Some("0.0.0.0" | "" | "::") => "127.0.0.1".to_owned(),
            Some(address) => address.parse().map_or_else(|_| "127.0.0.1".to_owned(), host_of),
        };
        let gate = if serves_securely(cluster, flags) {
            let secure = flags.port("secure-port", self.secure_port);
            secure.map(|port| (format!("https://{}:{port}/healthz", address("bind-address")), Some(CLUSTER_CA)))
        } else {
            let insecure = flags.port("port", self.insecure_port);
            insecure.map(|port| (format!("http://{}:{port}/healthz", address("address")), None))
        };
        // Whoever switched its port off gets no measurement.
        if let Some((url, ca)) = gate {
            let deadline = match self.component {
                Component::ControllerManager => unless_cloud(cluster, deadline::SERVICE),
                _ => Some(deadline::SERVICE),
            };
            part.gates.push(ok_gate(self.gate, self.unit, url, ProbeIdentity::Nobody(ca), deadline));
        }
    }
}

/// Whether the minor serves its health over TLS to anybody: with the flags that say who may ask for more.
fn serves_securely(cluster: &ClusterSpec, flags: &Flags) -> bool {
    cluster.tls && flags.knows("secure-port") && flags.knows("authorization-kubeconfig")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::kubernetes::control_plane::scheduler;
    use crate::kubernetes::fixtures::{arguments, asked, content, file, gate, master, value};
    use crate::kubernetes::versions::{Availability, Minor, flag};

    const OPEN: &[(&str, &str)] = &[("TLS_DISABLED", "true"), ("CERTIFICATES", ""), ("KUBE_API_PORT", "8080")];
    const CLOUD: &[(&str, &str)] = &[
        ("AUTH_URL", "https://keystone.example.org:5000/v3"),
        ("TRUSTEE_USER_ID", "u"),
        ("TRUSTEE_PASSWORD", "p"),
        ("TRUST_ID", "t"),
        ("CLOUD_PROVIDER_ENABLED", "true"),
        ("VOLUME_DRIVER", "cinder"),
        ("CINDER_CSI_ENABLED", "false"),
        ("CERT_MANAGER_API", "true"),
        ("CA_KEY", "-----BEGIN PRIVATE KEY-----\\nCC\\n-----END PRIVATE KEY-----"),
    ];

    #[test]
    fn every_minor_gets_its_own_flags() {
        let mut seen = BTreeMap::new();
        let config = Some("/etc/kubernetes/controller-manager.conf");
        let own_key = Some("/etc/kubernetes/certs/service_account_private.key");
        for (name, expected) in [
            ("kubeconfig", &[(2, config), (37, config)][..]),
            ("authentication-kubeconfig", &[(11, None), (12, config), (37, config)]),
            ("authorization-kubeconfig", &[(11, None), (12, config), (37, config)]),
            ("master", &[(2, None), (37, None)]),
            ("leader-elect", &[(2, Some("true")), (37, Some("true"))]),
            ("cluster-name", &[(2, Some("c0ffee00-1111-4222-8333-444455556666"))]),
            ("service-cluster-ip-range", &[(2, None), (3, Some("10.254.0.0/16")), (37, Some("10.254.0.0/16"))]),
            ("cluster-cidr", &[(2, Some("10.100.0.0/16")), (37, Some("10.100.0.0/16"))]),
            ("allocate-node-cidrs", &[(2, Some("false")), (9, Some("false")), (10, Some("true")), (37, Some("true"))]),
            ("node-cidr-mask-size", &[(9, None), (10, Some("24")), (37, Some("24"))]),
            ("service-account-private-key-file", &[(2, own_key), (6, own_key), (37, own_key)]),
            ("root-ca-file", &[(2, Some(CLUSTER_CA)), (37, Some(CLUSTER_CA))]),
            ("use-service-account-credentials", &[(5, None), (6, Some("true")), (37, Some("true"))]),
            ("bind-address", &[(10, None), (12, Some("127.0.0.1")), (37, Some("127.0.0.1"))]),
            ("secure-port", &[(10, None), (12, Some("10257")), (37, Some("10257"))]), // 5.3: never 0
            ("address", &[(2, Some("127.0.0.1")), (10, Some("127.0.0.1")), (15, None), (20, None), (24, None)]),
            ("port", &[(2, None), (10, None), (12, Some("0")), (24, None)]),
            ("tls-private-key-file", &[(10, None), (12, Some("/etc/kubernetes/certs/controller-manager.key"))]),
            (
                "flex-volume-plugin-dir",
                &[(2, None), (3, Some("/var/lib/kubelet/volumeplugins")), (31, Some("/var/lib/kubelet/volumeplugins"))],
            ),
            ("cluster-signing-key-file", &[(28, None)]),
            ("cloud-provider", &[(28, None)]),
        ] {
            for &(minor, expected) in expected {
                let found = seen.entry(minor).or_insert_with(|| arguments(&master(minor, &[]), UNIT));
                assert_eq!(value(found, name), expected, "{name} 1.{minor}");
            }
        }
    }

    #[test]
    fn no_minor_gets_what_it_does_not_know() {
        for number in 2..=Minor::NEWEST.number() {
            let minor = Minor::of_tag(&format!("v1.{number}.0")).unwrap();
            let desired = master(number, CLOUD);
            for (unit, component) in [(UNIT, Component::ControllerManager), (scheduler::UNIT, Component::Scheduler)] {
                for word in arguments(&desired, unit) {
                    let name = word.trim_start_matches('-').split('=').next().unwrap();
                    assert_eq!(flag(component, minor, name), Availability::Known, "{component} {name} 1.{number}");
                }
            }
        }
    }

    /// Each is asked where its version serves health to anybody, and by whose CA.
    #[test]
    fn gates_follow_the_ports_of_the_version() {
        for (minor, changes, manager, of_scheduler) in [
            (2, &[][..], Some("http://127.0.0.1:10252/healthz"), Some("http://127.0.0.1:10251/healthz")),
            (11, &[], Some("http://127.0.0.1:10252/healthz"), Some("http://127.0.0.1:10251/healthz")),
            (12, &[], Some("https://127.0.0.1:10257/healthz"), Some("http://127.0.0.1:10251/healthz")),
            (13, &[], Some("https://127.0.0.1:10257/healthz"), Some("https://127.0.0.1:10259/healthz")),
            (37, &[], Some("https://127.0.0.1:10257/healthz"), Some("https://127.0.0.1:10259/healthz")),
            (15, OPEN, Some("http://127.0.0.1:10252/healthz"), Some("http://127.0.0.1:10251/healthz")),
            (
                28,
                &[
                    ("KUBECONTROLLER_OPTIONS", "--secure-port=0"),
                    ("KUBESCHEDULER_OPTIONS", "--secure-port=1259 --bind-address=192.0.2.11"),
                ],
                None,
                Some("https://192.0.2.11:1259/healthz"),
            ),
        ] {
            let desired = master(minor, changes);
            assert_eq!(asked(&desired, "controller-manager"), manager, "{minor}");
            assert_eq!(asked(&desired, "scheduler"), of_scheduler, "{minor}");
            for name in ["controller-manager", "scheduler"] {
                assert!(gate(&desired, name).is_none_or(|gate| gate.consecutive > 1));
            }
        }
    }

    #[test]
    fn without_tls_there_is_no_kubeconfig_and_the_api_in_the_clear() {
        for minor in [2, 9, 10, 19] {
            let desired = master(minor, OPEN);
            for unit in [UNIT, scheduler::UNIT] {
                let found = arguments(&desired, unit);
                assert_eq!(value(&found, "master"), Some("http://127.0.0.1:8080"), "{unit} {minor}");
                assert_eq!(value(&found, "kubeconfig"), None);
            }
            assert!(file(&desired, "/etc/kubernetes/controller-manager.conf").is_none());
        }
    }

    /// Neither acts as the administrator, and nobody else reads their keys.
    #[test]
    fn each_acts_as_itself() {
        let desired = master(28, &[]);
        for (path, user, key) in [
            ("/etc/kubernetes/controller-manager.conf", "system:kube-controller-manager", "controller-manager.key"),
            ("/etc/kubernetes/scheduler.conf", "system:kube-scheduler", "scheduler.key"),
        ] {
            let file = file(&desired, path).unwrap();
            assert_eq!(file.mode, 0o600);
            assert!(
                file.content.contains(user) && file.content.contains(key) && file.content.contains("https://127.0.0.1:6443"),
                "{}",
                file.content
            );
        }
        for unit in [UNIT, scheduler::UNIT] {
            let unit = desired.units.iter().find(|one| one.name == unit).unwrap();
            assert!(
                ["controller-manager", "scheduler"]
                    .iter()
                    .any(|name| unit.restart_on.contains(&format!("/etc/kubernetes/{name}.conf"))),
                "{:?}",
                unit.restart_on
            );
            assert_eq!(unit.needs, BTreeSet::from([Dependency::Gate("apiserver".to_owned())]));
        }
    }

    #[test]
    fn the_mask_of_a_node_is_never_larger_than_the_network() {
        for (changes, expected) in [
            (&[("FLANNEL_NETWORK_SUBNETLEN", "26")][..], "26"),
            (&[("NETWORK_DRIVER", "calico")], "24"),
            (&[("NETWORK_DRIVER", "calico"), ("CALICO_IPV4POOL", "10.100.0.0/26")], "26"),
            (
                &[
                    ("NETWORK_DRIVER", "calico"),
                    ("PODS_NETWORK_CIDR", "2001:db8:2::/56"),
                    ("KUBE_NODE_IP", "2001:db8::11"),
                    ("PORTAL_NETWORK_CIDR", "2001:db8:1::/112"),
                ],
                "64",
            ),
        ] {
            assert_eq!(value(&arguments(&master(28, changes), UNIT), "node-cidr-mask-size"), Some(expected), "{changes:?}");
        }
    }

    #[test]
    fn the_cloud_and_the_signer_follow_the_parameters() {
        for (minor, plugin) in [(15, Some("openstack")), (25, Some("openstack")), (26, None)] {
            let desired = master(minor, CLOUD);
            let found = arguments(&desired, UNIT);
            assert_eq!(value(&found, "cloud-provider"), Some("external"));
            assert_eq!(value(&found, "external-cloud-volume-plugin"), plugin, "{minor}");
            assert_eq!(value(&found, "cloud-config").is_some(), plugin.is_some(), "{minor}");
            assert_eq!(value(&found, "cluster-signing-cert-file"), Some(SIGNING_CA));
            assert_eq!(value(&found, "cluster-signing-key-file"), Some(CLUSTER_CA_KEY));
            // Nobody joins by a token that nobody gave.
            assert_eq!(value(&found, "controllers"), None);
            let unit = desired.units.iter().find(|unit| unit.name == UNIT).unwrap();
            assert!(unit.restart_on.contains(CLUSTER_CA_KEY) && unit.restart_on.contains(SIGNING_CA), "{:?}", unit.restart_on);
            let ca = desired.cas.iter().find(|one| one.path == CLUSTER_CA).unwrap();
            assert_eq!(ca.key_path.as_deref(), Some(CLUSTER_CA_KEY));
            assert_eq!(ca.signing_path.as_deref(), Some(SIGNING_CA));
        }
        let built_in: Vec<_> = CLOUD.iter().copied().chain([("CLOUD_PROVIDER_ENABLED", "")]).collect();
        for (minor, expected) in [(5, Some("openstack")), (25, Some("openstack")), (26, None)] {
            let found = arguments(&master(minor, &built_in), UNIT);
            assert_eq!(value(&found, "cloud-provider"), expected, "{minor}");
            assert_eq!(value(&found, "configure-cloud-routes"), expected.map(|_| "false"), "{minor}");
        }
        assert!(
            content(&master(9, &[]), "/etc/kubernetes/controller-manager")
                .contains("KUBE_CONTROLLER_MANAGER_ARGS=\"--kubeconfig=")
        );
    }

    /// magnum-node.md 2.3: Magnum ignores KUBESCHEDULER_OPTIONS.
    #[test]
    fn users_options_win() {
        let desired = master(
            28,
            &[("KUBESCHEDULER_OPTIONS", "--leader-elect=false --v=4"), ("KUBECONTROLLER_OPTIONS", "--cluster_cidr 10.9.0.0/16")],
        );
        let scheduler = arguments(&desired, scheduler::UNIT);
        assert_eq!((value(&scheduler, "leader-elect"), value(&scheduler, "v")), (Some("false"), Some("4")));
        assert_eq!(value(&arguments(&desired, UNIT), "cluster-cidr"), Some("10.9.0.0/16"));
    }
}
