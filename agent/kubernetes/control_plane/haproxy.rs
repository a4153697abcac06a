//! HAProxy before several masters without a balancer of the cloud: kubelet and kube-proxy of the node reach it on the loopback
//! (seed-systems.md 5).
//!
//! On a worker all masters are equal. On a master its own API server is used as long as it is healthy, and another one only if it is of the
//! node's minor or a newer one: neither a kubelet nor a kube-proxy may be newer than the API server that it talks to (Kubernetes' version
//! skew policy), and while masters go to another minor one after the other, some are older. A kubelet of 1.31 fails on an API server of 1.30
//! (issue 127316 of Kubernetes); for this rule kubeadm has kubelets of masters talk to their own API server alone (its issue 2271).
//!
//! Everything in its file is an address, a number or a fixed text, so no value needs quoting.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::apiserver::health_path;
use crate::desired::{Dependency, Desired, File, Unit};
use crate::kubernetes::parts::api_server;
use crate::kubernetes::parts::certificates::CLUSTER_CA;
use crate::kubernetes::parts::daemon::{ProbeIdentity, ok_gate};
use crate::kubernetes::parts::directories::directory;
use crate::kubernetes::parts::paths::{GUARDED, HAPROXY_UNIT as UNIT};
use crate::kubernetes::spec::cluster::{ClusterSpec, MachineFacts, host_of};
use crate::kubernetes::spec::node::NodeSpec;
use crate::kubernetes::spec::words::Role;
use crate::kubernetes::text::MADE;
use crate::kubernetes::versions::Minor;
use crate::kubernetes::worker::kubelet;

const SETTINGS: &str = "/etc/haproxy/haproxy.cfg";
const DROP_IN: &str = "/etc/systemd/system/haproxy.service.d/50-heat-node-agent.conf";

/// Its part of the node.
pub(in crate::kubernetes) fn part(spec: &NodeSpec, cluster: &ClusterSpec, _facts: &MachineFacts) -> Desired {
    let mut part = Desired::default();
    let Some(own) = cluster.api.balancer else { return part };
    for path in ["/etc/haproxy", "/etc/systemd/system/haproxy.service.d"] {
        part.directories.push(directory(path));
    }
    let backend = if spec.role == Role::Master { before_a_master(cluster, spec.address) } else { before_a_worker(cluster) };
    part.files.push(File::public(SETTINGS, format!("{}{backend}", frontend(own))));
    part.files.push(File::public(DROP_IN, drop_in()));
    part.units.push(Unit {
        name: UNIT.to_owned(),
        enable: true,
        restart_on: BTreeSet::from([SETTINGS.to_owned(), DROP_IN.to_owned()]),
        needs: BTreeSet::new(),
        applies_files: false,
    });
    if serves_health(cluster) {
        let url = format!("{}/{}", cluster.server_of_node(spec.role), health_path(cluster));
        let asks =
            if cluster.tls { ProbeIdentity::Known(kubelet::client_identity(cluster)) } else { ProbeIdentity::Nobody(None) };
        // The masters answer behind it; a kubelet that joins by a token gets its certificate through it.
        let mut gate = ok_gate("haproxy", UNIT, url, asks, None);
        // While there is no API server on this node, others may be all too old for it.
        gate.needs.extend((spec.role == Role::Master).then(|| Dependency::Gate(api_server::GATE.to_owned())));
        part.gates.push(gate);
    }
    part
}

/// Whether the API server tells its nodes about its health: over TLS from 1.6 on, with RBAC.
fn serves_health(cluster: &ClusterSpec) -> bool {
    !cluster.tls || cluster.minor.number() >= 6
}

/// All but the end of the backend. Each retry chooses a server anew: before one at the same server HAProxy waits a second, and 3.0.11 forgets a client
/// whose server is marked down in that second (`shutdown-sessions` below), until `timeout client` ends.
fn frontend(port: u16) -> String {
    format!(
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
    option redispatch 1
    retries 3
    timeout connect 10s
    timeout client 300s
    timeout server 300s
    timeout check 10s

frontend kubernetes
    bind 127.0.0.1:{port}
    default_backend masters

backend masters
"
    )
}

/// An API server that is restarted refuses connections until systemd kills it (apiserver.rs, STOP), and the new one takes them long before it
/// answers: HAProxy has to know of it by then, or what it connects meanwhile waits and is cut off.
const MARKED_DOWN_IN_TIME: &str = "    default-server inter 2s fastinter 500ms fall 3 rise 2 on-marked-down shutdown-sessions\n";

/// The options by which a server is checked over TLS.
fn check_by_tls() -> String {
    format!("check check-ssl verify required ca-file {CLUSTER_CA}")
}

fn before_a_worker(cluster: &ClusterSpec) -> String {
    let port = cluster.api.port;
    let masters: Vec<IpAddr> = match (cluster.api.masters.as_slice(), cluster.api.master) {
        ([], Some(master)) => vec![master],
        (masters, _) => masters.to_vec(),
    };
    let mut out =
        "    # Every client is this node: balancing by source would send all to the same master.\n    balance leastconn\n"
            .to_owned();
    let mut check = "check".to_owned();
    if serves_health(cluster) {
        // HAProxy shows nobody. A server whose options want everybody known (`--anonymous-auth=false`, which workers are not
        // told of) says 401 however it is, and no other server does: better it is used than none.
        let expected = if cluster.tls { "rstatus ^(200|401)" } else { "status 200" };
        out.push_str(&format!("    option httpchk GET /{}\n    http-check expect {expected}\n", health_path(cluster)));
        if cluster.tls {
            check = check_by_tls();
        }
    }
    out.push_str(MARKED_DOWN_IN_TIME);
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

/// Every check is two requests, which needs HAProxy 2.2: health, and the minor. What HAProxy needs to know the checks of the parameters have
/// made sure of: everybody may ask for both.
fn before_a_master(cluster: &ClusterSpec, own: Option<IpAddr>) -> String {
    let port = cluster.api.port;
    let check = if cluster.tls { check_by_tls() } else { "check".to_owned() };
    let (health, minor) = (health_path(cluster), at_least(cluster.minor));
    let mut out = format!(
        "    option httpchk
    http-check connect default
    http-check send meth GET uri /{health}
    http-check expect status 200
    # Neither a kubelet nor a kube-proxy may be newer than the API server that it talks to.
    http-check connect default
    http-check send meth GET uri /version
    http-check expect rstring '\"minor\": *\"{minor}'
{MARKED_DOWN_IN_TIME}"
    );
    let others = cluster.api.masters.iter().filter(|address| Some(**address) != own);
    for (index, master) in others.enumerate() {
        out.push_str(&format!("    server master-{index} {}:{port} {check} backup\n", host_of(*master)));
    }
    // Until its first check a server is taken for healthy, and checks begin in the order of these lines: when this one is found to be down, it
    // is known of the others whether they are new enough.
    out.push_str(&format!("    server own 127.0.0.1:{port} {check} on-marked-up shutdown-backup-sessions\n"));
    // As without HAProxy.
    out.push_str(&format!("    server unchecked 127.0.0.1:{port} backup\n"));
    out
}

/// A regular expression for how this minor and newer ones begin, as `/version` writes them: `28`, and of some vendors `28+`.
fn at_least(minor: Minor) -> String {
    match minor.number() {
        ..10 => format!("([{minor}-9]|[1-9][0-9])", minor = minor.number()),
        number => format!("({tens}[{ones}-9]|[{next}-9][0-9])", tens = number / 10, ones = number % 10, next = number / 10 + 1),
    }
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
    use crate::kubernetes::fixtures::{self, asked, content, file, master, node, spec};

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

    const ON_A_MASTER: &[(&str, &str)] = &[
        ("API_BALANCER", "haproxy"),
        ("MASTER_ADDRESSES", "192.0.2.12,192.0.2.11,2001:db8::13"),
        ("ETCD_DISCOVERY_URL", "https://discovery.example.org/0f1e"),
    ];

    /// Issue 127316 of Kubernetes: the kubelet of 1.31 asks for services in a way that an API server of 1.30 does not understand.
    #[test]
    fn a_master_uses_its_own_api_server_and_another_one_only_if_that_is_down_and_the_other_is_not_older() {
        let open: &[(&str, &str)] = &[("TLS_DISABLED", "true"), ("CERTIFICATES", ""), ("KUBE_API_PORT", "8080")];
        let tls = "6443 check check-ssl verify required ca-file /etc/kubernetes/certs/ca.crt";
        for (minor, changes, health, newer, server, asks) in [
            (28, &[][..], "readyz", "(2[8-9]|[3-9][0-9])", tls, "https://127.0.0.1:16443/readyz"),
            (28, &[("API_BALANCER_PORT", "7443")], "readyz", "(2[8-9]|[3-9][0-9])", tls, "https://127.0.0.1:7443/readyz"),
            (6, &[], "healthz", "([6-9]|[1-9][0-9])", tls, "https://127.0.0.1:16443/healthz"),
            (15, open, "healthz", "(1[5-9]|[2-9][0-9])", "8080 check", "http://127.0.0.1:16443/healthz"),
        ] {
            let desired = master(minor, &[ON_A_MASTER, changes].concat());
            let text = content(&desired, SETTINGS);
            let backend: Vec<&str> = text.split_once("\nbackend masters\n").unwrap().1.lines().map(str::trim).collect();
            let expected = [
                "option httpchk".to_owned(),
                "http-check connect default".to_owned(),
                format!("http-check send meth GET uri /{health}"),
                "http-check expect status 200".to_owned(),
                "http-check connect default".to_owned(),
                "http-check send meth GET uri /version".to_owned(),
                format!("http-check expect rstring '\"minor\": *\"{newer}'"),
                MARKED_DOWN_IN_TIME.trim().to_owned(),
                // Not to itself by another way.
                format!("server master-0 192.0.2.12:{server} backup"),
                format!("server master-1 [2001:db8::13]:{server} backup"),
                format!("server own 127.0.0.1:{server} on-marked-up shutdown-backup-sessions"),
                format!("server unchecked 127.0.0.1:{} backup", server.split(' ').next().unwrap()),
            ];
            let rules: Vec<&str> = backend.iter().copied().filter(|line| !line.starts_with('#')).collect();
            assert_eq!(rules, expected, "1.{minor} {changes:?}");
            assert_eq!(asked(&desired, "haproxy"), Some(asks));
            let bound = asks.trim_start_matches("https://").trim_start_matches("http://").split('/').next().unwrap();
            assert!(text.contains(&format!("    bind {bound}\n")), "{text}");
        }
    }

    /// Kubernetes' version skew policy: the controller manager and the scheduler talk to no older API server either.
    #[test]
    fn kubelet_and_kube_proxy_of_a_master_go_by_it_and_nobody_else() {
        let (before, desired) = (master(28, &[]), master(28, ON_A_MASTER));
        let server = |desired: &Desired, path: &str| {
            content(desired, path).lines().find_map(|line| line.trim().strip_prefix("server: ").map(str::to_owned)).unwrap()
        };
        for (path, expected) in [
            ("/etc/kubernetes/kubelet.kubeconfig", "https://127.0.0.1:16443"),
            ("/etc/kubernetes/proxy.kubeconfig", "https://127.0.0.1:16443"),
            ("/etc/kubernetes/admin.conf", "https://127.0.0.1:6443"),
            ("/etc/kubernetes/controller-manager.conf", "https://127.0.0.1:6443"),
            ("/etc/kubernetes/scheduler.conf", "https://127.0.0.1:6443"),
        ] {
            assert_eq!(server(&desired, path).trim_matches('"'), expected, "{path}");
            assert_eq!(server(&before, path).trim_matches('"'), "https://127.0.0.1:6443", "{path}");
        }
        // What the API says of the node it says while the own server is down, too; what the agent writes it writes there.
        assert_eq!(asked(&desired, "registration"), Some("https://127.0.0.1:16443/api/v1/nodes/blue-master-0"));
        assert!(desired.objects.iter().all(|object| object.server == "https://127.0.0.1:6443"));
        // First the balancer, then who goes by it.
        let kubelet = desired.units.iter().find(|unit| unit.name == "kubelet.service").unwrap();
        assert!(kubelet.needs.contains(&Dependency::Unit(UNIT.to_owned())));
        assert!(content(&desired, kubelet::DROP_IN).contains(" haproxy.service\n"));
        let balancer = fixtures::gate(&desired, "haproxy").unwrap();
        assert!(balancer.needs.contains(&Dependency::Gate("apiserver".to_owned())));
    }

    #[test]
    fn a_minor_is_followed_by_those_that_are_not_older() {
        for own in 1..=60 {
            let pattern = at_least(Minor::of_tag(&format!("v1.{own}.0")).unwrap());
            for other in 1..=99_u16 {
                for text in [format!("{other}\""), format!("{other}+\"")] {
                    assert_eq!(matches(&pattern, &text), other >= own, "{own}: {pattern} {text}");
                }
            }
        }
    }

    /// `(a|b)` of classes and characters, at the start of a text, as HAProxy's regular expressions have it.
    fn matches(pattern: &str, text: &str) -> bool {
        pattern.trim_matches(['(', ')']).split('|').any(|way| {
            let (mut rest, mut found) = (way, text.chars());
            while let Some(first) = rest.chars().next() {
                let Some(character) = found.next() else { return false };
                let class = rest.strip_prefix('[').and_then(|class| class.split_once(']'));
                let (low, high, left) = match class {
                    Some((range, left)) => (range.chars().next().unwrap(), range.chars().last().unwrap(), left),
                    None => (first, first, &rest[1..]),
                };
                if !(low..=high).contains(&character) {
                    return false;
                }
                rest = left;
            }
            true
        })
    }

    proptest! {
        /// Whatever the addresses: two lines for each master, and no line more.
        #[test]
        fn no_address_adds_a_line(masters in prop::collection::vec(any::<IpAddr>(), 1..8), port in 1_u16..) {
            let mut spec = spec(&[("ROLE", "minion"), ("API_BALANCER", "haproxy"), ("MASTER_ADDRESSES", "192.0.2.11")]);
            let cluster = spec.kubernetes.as_mut().unwrap();
            let lines = before_a_worker(cluster).lines().count();
            let of_master = before_a_master(cluster, None).lines().count();
            cluster.api.masters.clone_from(&masters);
            cluster.api.port = port;
            let text = before_a_worker(cluster);
            prop_assert_eq!(text.lines().count(), lines - 2 + 2 * masters.len());
            prop_assert_eq!(text.matches("    server master-").count(), masters.len());
            prop_assert_eq!(before_a_master(cluster, None).lines().count(), of_master - 1 + masters.len());
        }
    }
}
