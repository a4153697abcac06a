//! KubeStack: a network provider for kubelet and controller manager, which speak to it on the loopback (seed-systems.md 7).
//!
//! Only builds of Kubernetes 1.2 and 1.3 that carry its patch know the flag; another kubelet ends at it. So nobody gets it
//! who does not ask.

use std::collections::BTreeSet;

use reqwest::Url;

use crate::desired::{Dependency, Desired, File, Owner, Unit};
use crate::kubernetes::parameters::mistake::Mistake;
use crate::kubernetes::parts::daemon::Flags;
use crate::kubernetes::parts::directories::directory;
use crate::kubernetes::parts::paths::GUARDED;
use crate::kubernetes::spec::cluster::{CloudUser, ClusterSpec, MachineFacts};
use crate::kubernetes::spec::node::NodeSpec;
use crate::kubernetes::text::MADE;
use crate::kubernetes::text::gcfg::{line, section};

const UNIT: &str = "kubestack.service";
const SETTINGS: &str = "/etc/kubestack.conf";
const DROP_IN: &str = "/etc/systemd/system/kubestack.service.d/50-heat-node-agent.conf";
/// The last minor that there are builds of.
const LAST_PATCHED: u16 = 3;
/// Where it serves.
const ADDRESS: &str = "127.0.0.1:4237";

/// `--network-provider` of kubelet and controller manager, where it is asked for.
pub(in crate::kubernetes) fn set_network_provider(cluster: &ClusterSpec, flags: &mut Flags) {
    if cluster.kubestack.is_some() {
        flags.set_patched("network-provider", ADDRESS);
    }
}

/// What is wrong with asking for it, and what has to be known.
pub(in crate::kubernetes) fn check(cluster: &ClusterSpec, mistakes: &mut Vec<Mistake>, warnings: &mut Vec<Mistake>) {
    if cluster.kubestack.is_none() {
        return;
    }
    let bridge = cluster.kubestack.as_deref().unwrap_or_default();
    if bridge.len() > 15 || bridge.starts_with('-') || !bridge.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b)) {
        mistakes.push(Mistake::general(
            "KUBESTACK_BRIDGE",
            "is not a valid bridge name",
            "at most 15 letters, digits and . _ -",
            "give another name",
        ));
    }
    let rule = "builds with --network-provider exist up to 1.3; every other kubelet and controller manager exits at that flag";
    let mistake = |problem: String, remedy| Mistake::general("KUBESTACK", problem, rule, remedy);
    if cluster.cloud.is_none() {
        mistakes.push(Mistake::general(
            "KUBESTACK",
            "is set, but there are no credentials for Neutron",
            "KubeStack creates ports and load balancers as an OpenStack user",
            "give AUTH_URL, USERNAME, PASSWORD and TENANT_NAME",
        ));
    }
    if cluster.minor.number() > LAST_PATCHED {
        mistakes.push(mistake(
            format!("is set with Kubernetes {}", cluster.minor),
            "remove it, or give the KUBE_TAG of such a build",
        ));
    } else {
        warnings.push(mistake("is set".to_owned(), "make sure that the image contains such a build"));
    }
}

/// Its part of the node.
pub(in crate::kubernetes) fn part(_spec: &NodeSpec, cluster: &ClusterSpec, _facts: &MachineFacts) -> Desired {
    let mut part = Desired::default();
    let Some(bridge) = &cluster.kubestack else { return part };
    part.directories.push(directory("/etc/systemd/system/kubestack.service.d"));
    let content = settings(cluster, bridge);
    part.files.push(File { path: SETTINGS.to_owned(), mode: 0o600, owner: Owner::root(), content, secret: true });
    let drop_in = format!(
        "\
# Made by heat-node-agent.
[Unit]
{GUARDED}\
# Fedora's name, Debian's name.
Wants=openvswitch.service openvswitch-switch.service
After=openvswitch.service openvswitch-switch.service
StartLimitIntervalSec=0

[Service]
# The bridge for every pod's port, and the directory for named network namespaces.
ExecStartPre=ovs-vsctl --may-exist add-br {bridge}
RuntimeDirectory=netns
RuntimeDirectoryPreserve=yes
Restart=always
RestartSec=5
"
    );
    part.files.push(File::public(DROP_IN, drop_in));
    part.units.push(Unit {
        name: UNIT.to_owned(),
        enable: true,
        restart_on: BTreeSet::from([SETTINGS.to_owned(), DROP_IN.to_owned()]),
        needs: BTreeSet::<Dependency>::new(),
        applies_files: false,
    });
    part
}

fn settings(cluster: &ClusterSpec, bridge: &str) -> String {
    let mut out = String::from(MADE);
    if let Some(cloud) = &cluster.cloud {
        out.push_str(&section("Global"));
        out.push_str(&line("auth-url", &cloud.auth_url));
        match &cloud.user {
            CloudUser::Trustee(id, password) => {
                out.push_str(&line("user-id", id));
                out.push_str(&line("password", password.reveal()));
            }
            CloudUser::Creator(name, password, project) => {
                out.push_str(&line("username", name));
                out.push_str(&line("password", password.reveal()));
                out.push_str(&line("tenant-name", project));
            }
        }
        for (key, value) in [("region", &cloud.region), ("ext-net-id", &cloud.floating_network)] {
            if let Some(value) = value {
                out.push_str(&line(key, value));
            }
        }
        if is_version_3(&cloud.auth_url) {
            out.push_str(&line("keystone-version", "3"));
        }
        let octavia = cloud.octavia.as_ref();
        out.push('\n');
        out.push_str(&section("LoadBalancer"));
        out.push_str(&line("lb-method", octavia.map_or("ROUND_ROBIN", |octavia| &octavia.algorithm)));
        out.push_str(&line("create-monitor", if octavia.is_none_or(|octavia| octavia.health_check) { "yes" } else { "no" }));
        for (key, value) in [("monitor-delay", "1m"), ("monitor-timeout", "30s"), ("monitor-max-retries", "3")] {
            out.push_str(&line(key, value));
        }
        out.push('\n');
    }
    out.push_str(&section("Plugin"));
    out.push_str(&line("plugin-name", "ovs"));
    out.push_str(&line("integration-bridge", bridge));
    out
}

/// By the last part of the path, not by any `v3` in the text (magnum-node.md 7.3 no. 29).
fn is_version_3(url: &str) -> bool {
    Url::parse(url).is_ok_and(|url| url.path().trim_end_matches('/').ends_with("/v3"))
}
