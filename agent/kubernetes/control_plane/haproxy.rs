//! HAProxy on workers, before several masters without a balancer of the cloud: the components of the node reach it on
//! the loopback (seed-systems.md 5).
//!
//! Everything in its file is an address, a number or a fixed text, so no value needs quoting.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::apiserver::health_path;
use crate::desired::{Desired, File, Unit};
use crate::kubernetes::parts::certificates::CLUSTER_CA;
use crate::kubernetes::parts::daemon::{ProbeIdentity, ok_gate};
use crate::kubernetes::parts::directories::directory;
use crate::kubernetes::parts::paths::GUARDED;
use crate::kubernetes::spec::cluster::{ClusterSpec, MachineFacts, host_of};
use crate::kubernetes::spec::node::NodeSpec;
use crate::kubernetes::spec::words::Role;
use crate::kubernetes::text::MADE;
use crate::kubernetes::worker::kubelet;

const UNIT: &str = "haproxy.service";
const SETTINGS: &str = "/etc/haproxy/haproxy.cfg";
const DROP_IN: &str = "/etc/systemd/system/haproxy.service.d/50-heat-node-agent.conf";

/// Its part of the node.
pub(in crate::kubernetes) fn part(spec: &NodeSpec, cluster: &ClusterSpec, _facts: &MachineFacts) -> Desired {
    let mut part = Desired::default();
    if spec.role != Role::Minion || !cluster.api.balancer {
        return part;
    }
    for path in ["/etc/haproxy", "/etc/systemd/system/haproxy.service.d"] {
        part.directories.push(directory(path));
    }
    part.files.push(File::public(SETTINGS, settings(cluster)));
    part.files.push(File::public(DROP_IN, drop_in()));
    part.units.push(Unit {
        name: UNIT.to_owned(),
        enable: true,
        restart_on: BTreeSet::from([SETTINGS.to_owned(), DROP_IN.to_owned()]),
        needs: BTreeSet::new(),
        applies_files: false,
    });
    if serves_health(cluster) {
        let url = format!("{}/{}", cluster.server(spec.role), health_path(cluster));
        let asks =
            if cluster.tls { ProbeIdentity::Known(kubelet::client_identity(cluster)) } else { ProbeIdentity::Nobody(None) };
        // The masters answer behind it; a kubelet that joins by a token gets its certificate through it.
        part.gates.push(ok_gate("haproxy", UNIT, url, asks, None));
    }
    part
}

/// Whether the API server tells its nodes about its health: over TLS from 1.6 on, with RBAC.
fn serves_health(cluster: &ClusterSpec) -> bool {
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
{MADE}global
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
    # Every client is this node: balancing by source would send all to the same master.
    balance leastconn
"
    );
    let mut check = "check".to_owned();
    if serves_health(cluster) {
        // HAProxy shows nobody. A server whose options want everybody known (`--anonymous-auth=false`, which workers are not
        // told of) says 401 however it is, and no other server does: better it is used than none.
        let expected = if cluster.tls { "rstatus ^(200|401)" } else { "status 200" };
        out.push_str(&format!("    option httpchk GET /{}\n    http-check expect {expected}\n", health_path(cluster)));
        if cluster.tls {
            check = format!("check check-ssl verify required ca-file {CLUSTER_CA}");
        }
    }
    // An API server that is restarted refuses connections until systemd kills it (apiserver.rs, STOP), and the new one takes them long
    // before it answers: HAProxy has to know of it by then, or what it connects meanwhile waits and is cut off.
    out.push_str("    default-server inter 2s fastinter 500ms fall 3 rise 2 on-marked-down shutdown-sessions\n");
    for (index, master) in masters.iter().enumerate() {
        out.push_str(&format!("    server master-{index} {}:{port} {check}\n", host_of(*master)));
    }
    // Where none of them is healthy, which etcd without a leader may do to all at once, each is better than nobody.
    out.push_str("    option allbackups\n");
    for (index, master) in masters.into_iter().enumerate() {
        out.push_str(&format!("    server unchecked-{index} {}:{port} backup\n", host_of(master)));
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::desired::{Gate, GateProbe};
    use crate::kubernetes::fixtures::{self, asked, content, file, node, spec};

    fn worker(minor: u16, changes: &[(&str, &str)]) -> Desired {
        let tag = format!("v1.{minor}.3");
        let base = [
            ("KUBE_TAG", tag.as_str()),
            ("ROLE", "minion"),
            ("API_BALANCER", "haproxy"),
            ("MASTER_ADDRESSES", "192.0.2.11,2001:db8::12"),
            ("ETCD_SERVER_IP", "192.0.2.11"),
        ];
        node(&base.into_iter().chain(changes.iter().copied()).collect::<Vec<_>>())
    }

    #[test]
    fn masters_are_checked_by_their_health_and_certificate() {
        let open: &[(&str, &str)] = &[("TLS_DISABLED", "true"), ("CERTIFICATES", ""), ("KUBE_API_PORT", "8080")];
        for (minor, changes, http, server, gate) in [
            (
                28,
                &[][..],
                Some("GET /readyz"),
                "192.0.2.11:6443 check check-ssl verify required ca-file /etc/kubernetes/certs/ca.crt",
                Some("https://127.0.0.1:6443/readyz"),
            ),
            (
                6,
                &[],
                Some("GET /healthz"),
                "192.0.2.11:6443 check check-ssl verify required ca-file /etc/kubernetes/certs/ca.crt",
                Some("https://127.0.0.1:6443/healthz"),
            ),
            // There no unknown client gets an answer.
            (5, &[], None, "192.0.2.11:6443 check", None),
            (15, open, Some("GET /healthz"), "192.0.2.11:8080 check", Some("http://127.0.0.1:8080/healthz")),
        ] {
            let desired = worker(minor, changes);
            let text = content(&desired, SETTINGS);
            let found = text.lines().find_map(|line| line.trim().strip_prefix("option httpchk "));
            assert_eq!(found, http, "{minor}");
            assert!(text.contains(&format!("    server master-0 {server}\n")), "{text}");
            assert!(text.contains("    server master-1 [2001:db8::12]:"), "{text}");
            // The first check comes within 2 s, two more half a second apart: before the 4 s in which an API server ends.
            assert!(text.contains(" inter 2s fastinter 500ms fall 3 "), "{text}");
            assert_eq!(asked(&desired, "haproxy"), gate, "{minor}");
            // A server that wants everybody known answers 401 to HAProxy, and the node shows itself.
            let (expected, shows) = match http {
                Some(_) if changes.is_empty() => (Some("rstatus ^(200|401)"), true),
                Some(_) => (Some("status 200"), false),
                None => (None, false),
            };
            assert_eq!(text.lines().find_map(|line| line.trim().strip_prefix("http-check expect ")), expected, "{minor}");
            if let Some(Gate { probe: GateProbe::Http { identity, .. }, .. }) = fixtures::gate(&desired, "haproxy") {
                let certificate = identity.as_ref().map(|one| one.certificate.as_str());
                assert_eq!(certificate, shows.then_some("/etc/kubernetes/certs/kubelet.crt"), "{minor}");
            }
            // The node itself goes that way.
            assert!(text.contains("    bind 127.0.0.1:"));
            assert!(content(&desired, DROP_IN).contains("Requires=heat-node-agent-guard.service"));
        }
    }

    #[test]
    fn nobody_else_gets_it() {
        let worker = node(&[("ROLE", "minion"), ("KUBE_MASTER_IP", "192.0.2.5")]);
        assert!(file(&worker, SETTINGS).is_none() && file(&node(&[]), SETTINGS).is_none());
    }

    proptest! {
        /// Whatever the addresses: two lines for each master, and no line more.
        #[test]
        fn no_address_adds_a_line(masters in prop::collection::vec(any::<IpAddr>(), 1..8), port in 1_u16..) {
            let mut spec = spec(&[("ROLE", "minion"), ("API_BALANCER", "haproxy"), ("MASTER_ADDRESSES", "192.0.2.11")]);
            let cluster = spec.kubernetes.as_mut().unwrap();
            let lines = settings(cluster).lines().count();
            cluster.api.masters.clone_from(&masters);
            cluster.api.port = port;
            let text = settings(cluster);
            prop_assert_eq!(text.lines().count(), lines - 2 + 2 * masters.len());
            prop_assert_eq!(text.matches("    server master-").count(), masters.len());
        }
    }
}
