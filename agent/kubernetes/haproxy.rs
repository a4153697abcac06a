//! HAProxy on workers, before several masters without a balancer of the cloud: the components of the node reach it on
//! the loopback (seed-systems.md 5).
//!
//! Everything in its file is an address, a number or a fixed text, so no value needs quoting.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::apiserver::health_path;
use super::certificates::AUTHORITY;
use super::cluster::{ClusterSpec, Facts, host_of};
use super::daemon::ok_gate;
use super::host::{GUARDED, directory};
use super::node_spec::{NodeSpec, Role};
use crate::desired::{Desired, File, Unit};

const UNIT: &str = "haproxy.service";
const SETTINGS: &str = "/etc/haproxy/haproxy.cfg";
const DROP_IN: &str = "/etc/systemd/system/haproxy.service.d/50-heat-node-agent.conf";

/// Adds its part.
pub(super) fn add(spec: &NodeSpec, cluster: &ClusterSpec, _facts: &Facts, desired: &mut Desired) {
    if spec.role != Role::Minion || !cluster.api.balancer {
        return;
    }
    for path in ["/etc/haproxy", "/etc/systemd/system/haproxy.service.d"] {
        desired.directories.push(directory(path));
    }
    desired.files.push(File::public(SETTINGS, settings(cluster)));
    desired.files.push(File::public(DROP_IN, drop_in()));
    desired.units.push(Unit {
        name: UNIT.to_owned(),
        enable: true,
        restart_on: BTreeSet::from([SETTINGS.to_owned(), DROP_IN.to_owned()]),
        needs: BTreeSet::new(),
        applies_files: false,
    });
    if tells_health(cluster) {
        let url = format!("{}/{}", cluster.server(spec.role), health_path(cluster));
        desired.gates.push(ok_gate("haproxy", UNIT, url, cluster.tls.then_some(AUTHORITY), 2));
    }
}

/// Whether the API server tells anybody how it is: over TLS from 1.6 on, with RBAC.
fn tells_health(cluster: &ClusterSpec) -> bool {
    !cluster.tls || cluster.minor.number() >= 6
}

fn settings(cluster: &ClusterSpec) -> String {
    let port = cluster.api.port;
    let masters: Vec<IpAddr> = match (cluster.api.masters.as_slice(), cluster.api.master) {
        ([], Some(master)) => vec![master],
        (masters, _) => masters.to_vec(),
    };
    let mut out = format!(
        "\
# Made by heat-node-agent from the parameters of the deployment; it is written again when they change.
global
    log /dev/log local0
    chroot /var/lib/haproxy
    user haproxy
    group haproxy
    maxconn 20000

defaults
    mode tcp
    log global
    option tcplog
    option dontlognull
    option redispatch
    retries 3
    timeout connect 10s
    timeout client 300s
    timeout server 300s
    timeout check 10s

frontend kubernetes
    bind 127.0.0.1:{port}
    default_backend masters

backend masters
    # Every client is this node: by their source all would get the same master.
    balance leastconn
"
    );
    let mut check = "check".to_owned();
    if tells_health(cluster) {
        out.push_str(&format!("    option httpchk GET /{}\n    http-check expect status 200\n", health_path(cluster)));
        if cluster.tls {
            check = format!("check check-ssl verify required ca-file {AUTHORITY}");
        }
    }
    out.push_str("    default-server inter 2s fall 3 rise 2\n");
    for (index, master) in masters.into_iter().enumerate() {
        out.push_str(&format!("    server master-{index} {}:{port} {check}\n", host_of(master)));
    }
    out
}

fn drop_in() -> String {
    format!(
        "\
# Made by heat-node-agent.
[Unit]
{GUARDED}\
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec=0

[Service]
Restart=always
RestartSec=5
"
    )
}
