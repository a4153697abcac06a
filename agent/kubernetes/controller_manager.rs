//! kube-controller-manager on masters, and what it has in common with the scheduler: both reach the API as themselves,
//! elect a leader, and serve their health on the loopback only.

use std::collections::BTreeSet;

use super::apiserver;
use super::certificates::{AUTHORITY, AUTHORITY_KEY, CONTROLLER_MANAGER, Pair, service_account_keys};
use super::cluster::{CLOUD_CONFIG, ClusterSpec, Facts, NetworkDriver, host_of};
use super::daemon::{Daemon, Flags, Variables, has_variables, ok_gate, read_files};
use super::kubeconfig::{self, Identity};
use super::node_spec::{NodeSpec, Role};
use super::other_systems;
use super::podmaster;
use super::versions::Component;
use crate::desired::{Desired, Need};

pub(super) const UNIT: &str = "kube-controller-manager.service";
const INSECURE_PORT: u16 = 10252;
const SECURE_PORT: u16 = 10257;
/// What a calico network's nodes get each, where nothing says so.
const POD_PREFIX: u8 = 24;

/// As the units of distributions expand them.
pub(super) const VARIABLES: Variables = &[("KUBE_LOGTOSTDERR", &[]), ("KUBE_LOG_LEVEL", &[]), ("KUBE_MASTER", &[])];

/// Adds its part.
pub(super) fn add(spec: &NodeSpec, cluster: &ClusterSpec, _facts: &Facts, desired: &mut Desired) {
    if podmaster::elects(cluster) {
        return;
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
    set_own(cluster, &mut flags);
    drop(flags.options(&cluster.options.controller_manager));
    local.add(spec, cluster, &flags, desired);
}

fn set_own(cluster: &ClusterSpec, flags: &mut Flags) {
    let networks = &cluster.networks;
    if !cluster.control_plane.cluster_name.is_empty() {
        flags.set("cluster-name", cluster.control_plane.cluster_name.clone());
    }
    flags.set("service-cluster-ip-range", networks.services.trunc().to_string());
    flags.set("cluster-cidr", networks.pods.trunc().to_string());
    // flanneld with leases in etcd deals them out by itself.
    let allocates = !cluster.has_flannel_in_etcd();
    flags.set("allocate-node-cidrs", allocates.to_string());
    if allocates {
        let asked = if networks.driver == NetworkDriver::Flannel { networks.flannel_subnet_length } else { POD_PREFIX };
        // A node's part cannot be larger than the whole: the controller manager would stop.
        flags.set("node-cidr-mask-size", asked.max(networks.pods.prefix_len()).to_string());
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
    if let Some(keys) = service_account_keys(cluster) {
        flags.set("service-account-private-key-file", keys.sign);
        // Each controller by its own account, where the API tells accounts apart.
        if cluster.tls && cluster.minor.number() >= 6 {
            flags.set("use-service-account-credentials", "true");
        }
    }
    if cluster.tls {
        flags.set("root-ca-file", AUTHORITY);
    }
    if cluster.signs() {
        flags.set("cluster-signing-cert-file", AUTHORITY);
        flags.set("cluster-signing-key-file", AUTHORITY_KEY);
        // Workers that join by a token: their tokens are checked and cleaned up.
        flags.set("controllers", "*,bootstrapsigner,tokencleaner");
    }
    other_systems::set_network_provider(cluster, flags);
}

/// Controller manager or scheduler.
pub(super) struct LocalComponent {
    pub(super) component: Component,
    pub(super) unit: &'static str,
    pub(super) gate: &'static str,
    pub(super) settings: &'static str,
    pub(super) rest: &'static str,
    /// Its kubeconfig.
    pub(super) config: &'static str,
    pub(super) pair: &'static Pair,
    pub(super) insecure_port: u16,
    pub(super) secure_port: u16,
}

impl LocalComponent {
    /// Who it is, where it serves, and that one of several leads.
    pub(super) fn set_common(&self, cluster: &ClusterSpec, flags: &mut Flags) {
        if cluster.tls {
            flags.set("kubeconfig", self.config);
            flags.set("authentication-kubeconfig", self.config);
            flags.set("authorization-kubeconfig", self.config);
        } else if !has_variables(cluster.minor) {
            flags.set("master", cluster.server(Role::Master));
        }
        flags.set("leader-elect", "true");
        flags.set("address", "127.0.0.1");
        flags.set("bind-address", "127.0.0.1");
        if serves_securely(cluster, flags) {
            // Never 0: then nothing would tell how it is (magnum-node.md 5.3).
            flags.set("secure-port", self.secure_port.to_string());
            flags.set("port", "0");
            flags.set("tls-cert-file", self.pair.certificate);
            flags.set("tls-private-key-file", self.pair.key);
        }
    }

    pub(super) fn add(&self, spec: &NodeSpec, cluster: &ClusterSpec, flags: &Flags, desired: &mut Desired) {
        let mut daemon = Daemon::new(self.unit, self.component.as_str(), self.settings);
        daemon.take(flags, cluster, spec.role, VARIABLES, self.rest);
        daemon.after = vec!["network-online.target", apiserver::UNIT];
        daemon.unit_lines = "Wants=network-online.target\n".to_owned();
        // The keys are root's.
        daemon.service_lines = "User=root\nGroup=root\n".to_owned();
        // It would end at once, and come again only after a pause.
        daemon.needs = BTreeSet::from([Need::Gate(apiserver::GATE.to_owned())]);
        if cluster.tls {
            let identity = Identity::Certificate { certificate: self.pair.certificate, key: self.pair.key };
            let user = format!("system:{}", self.component.as_str());
            let server = cluster.server(Role::Master);
            desired.files.push(kubeconfig::file(self.config, &server, Some(AUTHORITY), &user, &identity));
        }
        daemon.restart_on = read_files(flags, desired);
        daemon.add(desired);
        let address = |name: &str| match flags.value(name).as_deref() {
            None | Some("0.0.0.0" | "" | "::") => "127.0.0.1".to_owned(),
            Some(address) => address.parse().map_or_else(|_| "127.0.0.1".to_owned(), host_of),
        };
        let gate = if serves_securely(cluster, flags) {
            let port = flags.port("secure-port", self.secure_port);
            port.map(|port| (format!("https://{}:{port}/healthz", address("bind-address")), Some(AUTHORITY)))
        } else {
            let port = flags.port("port", self.insecure_port);
            port.map(|port| (format!("http://{}:{port}/healthz", address("address")), None))
        };
        // Whoever switched its port off gets no measurement.
        if let Some((url, authority)) = gate {
            desired.gates.push(ok_gate(self.gate, self.unit, url, authority, 2));
        }
    }
}

/// Whether the minor serves its health over TLS to anybody: with the flags that say who may ask for more.
fn serves_securely(cluster: &ClusterSpec, flags: &Flags) -> bool {
    cluster.tls && flags.knows("secure-port") && flags.knows("authorization-kubeconfig")
}
