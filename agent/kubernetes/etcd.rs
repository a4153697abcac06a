//! etcd on a master: the distribution's `etcd.service` with our settings.
//!
//! Only an environment file is written: a configuration file makes etcd ignore the environment (magnum-node.md 5.6).
//! With TLS clients and peers show certificates, on the loopback too (7.1 no. 6); health is served in the clear by a
//! listener of its own, which tells nothing else but measurements. etcd has it since 3.3; before, the loopback stays open.
//! A learner is made by a member's call (`member add --learner`); what it has on disk is that of any member that joins.

use std::collections::BTreeSet;
use std::net::IpAddr;

use reqwest::Url;

use super::certificates::{ETCD_AUTHORITY, ETCD_SERVER};
use super::cluster::{ClusterSpec, EtcdCluster, NetworkDriver, host_of};
use super::environment_file::line;
use super::host::{GUARDED, directory};
use super::node_spec::{NodeSpec, Proxy, Secret, VolumeSpec};
use super::parameters::Mistake;
use super::versions::Minor;
use crate::desired::{Desired, Directory, File, Gate, Need, Owner, Probe, Unit, Volume, VolumeRole};

const UNIT: &str = "etcd.service";
const SETTINGS: &str = "/etc/etcd/etcd.conf";
pub(super) const DROP_IN: &str = "/etc/systemd/system/etcd.service.d/50-heat-node-agent.conf";
pub(super) const STORE: &str = "/var/lib/etcd";
pub(super) const DATA: &str = "/var/lib/etcd/default.etcd";

/// Where health is served in the clear, on the loopback.
const HEALTH: &str = "http://127.0.0.1:2381";
/// The first version with a listener for health alone.
const HEALTH_LISTENER: Version = Version(3, 3);
/// The first version that is told whom to trust instead of a CA file.
const TRUSTED_CA: Version = Version(2, 2);
/// The last Kubernetes that keeps its objects in etcd's v2 store.
const LAST_WITH_V2_STORE: u16 = 5;
/// Versions that have the v2 API, but switched off (magnum-node.md 5.6).
const HIDDEN_V2: [Version; 2] = [Version(3, 4), Version(3, 5)];
/// The first version that takes learners.
const LEARNERS: Version = Version(3, 4);
/// The first version that silently ignores v2 discovery.
const NO_DISCOVERY: Version = Version(3, 7);

/// Major and minor version of etcd.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Version(u16, u16);

impl Version {
    /// As `ETCD_TAG` names it, else what the minor was released with (magnum-node.md 5.6).
    fn of(cluster: &ClusterSpec) -> Self {
        let tagged = cluster.etcd.tag.as_deref().and_then(|tag| {
            let mut numbers = tag.trim_start_matches('v').split(['.', '-', '+']).map(str::parse);
            Some(Self(numbers.next()?.ok()?, numbers.next()?.ok()?))
        });
        tagged.unwrap_or(match cluster.minor.number() {
            0..=1 => Self(2, 0),
            2..=5 => Self(2, 2),
            6..=12 => Self(3, 0),
            13..=18 => Self(3, 2),
            19..=21 => Self(3, 4),
            22..=33 => Self(3, 5),
            34..=36 => Self(3, 6),
            _ => Self(3, 7),
        })
    }
}

/// How the member serves.
struct Listeners {
    tls: bool,
    /// Whether the loopback is served in the clear.
    plain_loopback: bool,
    /// Whether health has a listener of its own.
    health: bool,
    client_port: u16,
    peer_port: u16,
}

impl Listeners {
    fn of(spec: &NodeSpec) -> Self {
        let Some(cluster) = &spec.kubernetes else {
            return Self { tls: false, plain_loopback: true, health: false, client_port: 2379, peer_port: 2380 };
        };
        let health = cluster.tls && Version::of(cluster) >= HEALTH_LISTENER;
        Self {
            tls: cluster.tls,
            // The API server of 1.0 and 1.1 has no flags for etcd's certificates.
            plain_loopback: !health || cluster.minor < Minor::OLDEST_CHECKED,
            health,
            client_port: cluster.etcd.client_port,
            peer_port: cluster.etcd.peer_port,
        }
    }

    fn scheme(&self) -> &'static str {
        if self.tls { "https" } else { "http" }
    }

    /// On the loopback, in the clear where that is served.
    fn loopback(&self) -> String {
        let scheme = if self.plain_loopback { "http" } else { self.scheme() };
        format!("{scheme}://127.0.0.1:{}", self.client_port)
    }

    fn client(&self, address: IpAddr) -> String {
        format!("{}://{}:{}", self.scheme(), host_of(address), self.client_port)
    }

    fn peer(&self, address: IpAddr) -> String {
        format!("{}://{}:{}", self.scheme(), host_of(address), self.peer_port)
    }

    fn health(&self) -> String {
        if self.health { format!("{HEALTH}/health") } else { format!("{}/health", self.loopback()) }
    }
}

/// Where the API server of this master reaches etcd. Over TLS it needs certificates, and the server's names the address
/// and the loopback alike.
pub(super) fn url_of_the_api_server(spec: &NodeSpec, cluster: &ClusterSpec) -> String {
    let listeners = Listeners::of(spec);
    match spec.address {
        // The open loopback is for versions that have nothing else to show their health by, not for the API server.
        Some(address) if listeners.tls && listeners.plain_loopback && cluster.minor >= Minor::OLDEST_CHECKED => listeners.client(address),
        _ => listeners.loopback(),
    }
}

/// Name of the member: the node's, else its address.
fn member_name(name: Option<&String>, address: IpAddr) -> String {
    name.cloned().unwrap_or_else(|| address.to_string())
}

/// What is wrong with a master's etcd, as far as parameters can tell.
pub(super) fn check(cluster: &ClusterSpec, address: Option<IpAddr>, mistakes: &mut Vec<Mistake>) {
    let etcd = &cluster.etcd;
    let version = Version::of(cluster);
    let mut mistake = |name: &str, problem: &str, rule: &str, remedy: &str| {
        mistakes.push(Mistake::general(name, problem, rule, remedy));
    };
    // magnum-node.md 7.5 no. 62
    if matches!(etcd.cluster, EtcdCluster::Discovery(_)) && version >= NO_DISCOVERY {
        mistake(
            "ETCD_DISCOVERY_URL",
            "is given to an etcd without v2 discovery",
            "etcd 3.7 and later ignore it, and each master would form a cluster of its own",
            "give ETCD_INITIAL_CLUSTER, or an older ETCD_TAG",
        );
    }
    if etcd.learner && version < LEARNERS {
        mistake("ETCD_LEARNER", "is set for an etcd without learners", "learners came with etcd 3.4", "remove it, or give a newer ETCD_TAG");
    }
    if etcd.learner && !etcd.joins {
        mistake(
            "ETCD_LEARNER",
            "is set for a member of a new cluster",
            "a learner joins a cluster that is there",
            "remove it, or set ETCD_INITIAL_CLUSTER_STATE to existing",
        );
    }
    let EtcdCluster::Static(members) = &etcd.cluster else {
        if etcd.joins {
            mistake(
                "ETCD_INITIAL_CLUSTER_STATE",
                "is existing without ETCD_INITIAL_CLUSTER",
                "a member that joins is told all members, itself too",
                "give ETCD_INITIAL_CLUSTER",
            );
        }
        return;
    };
    let scheme = if cluster.tls { "https" } else { "http" };
    let good = |member: &String| {
        let (name, url) = member.split_once('=')?;
        let parsed = Url::parse(url).ok().filter(|parsed| parsed.scheme() == scheme && parsed.has_host() && parsed.port().is_some())?;
        (!name.is_empty() && parsed.path() == "/").then(|| (name.to_owned(), url.trim_end_matches('/').to_owned()))
    };
    let known: Vec<_> = members.iter().filter_map(good).collect();
    if known.len() < members.len() {
        let rule = format!("name={scheme}://address:port of each member's peer URL, between commas");
        mistake("ETCD_INITIAL_CLUSTER", "holds what is no member", &rule, "correct it; the scheme follows TLS_DISABLED");
        return;
    }
    let doubled = known.iter().enumerate().any(|(at, (name, url))| known.iter().skip(at + 1).any(|other| other.0 == *name || other.1 == *url));
    if doubled {
        mistake("ETCD_INITIAL_CLUSTER", "names a member twice", "names and URLs are unique", "correct it");
    }
    if known.len() % 2 == 0 && !etcd.joins {
        let rule = "an even number of members survives no more losses than one member less";
        mistake("ETCD_INITIAL_CLUSTER", "has an even number of members", rule, "give 1, 3, 5 or 7 members");
    }
    if let Some(address) = address {
        let own = (member_name(cluster.node_name.as_ref(), address), format!("{scheme}://{}:{}", host_of(address), etcd.peer_port));
        if !known.contains(&own) {
            let rule = format!("etcd finds itself by {}={}", own.0, own.1);
            mistake("ETCD_INITIAL_CLUSTER", "lacks this node", &rule, "add it, or correct INSTANCE_NAME and KUBE_NODE_IP");
        }
    }
}

/// Adds etcd's part.
pub(super) fn add(spec: &NodeSpec, address: IpAddr, desired: &mut Desired) {
    desired.directories.push(directory("/etc/etcd"));
    desired.directories.push(directory("/etc/systemd/system/etcd.service.d"));
    let mut store_needs = BTreeSet::new();
    if let Some(volume) = &spec.etcd_volume {
        desired.volumes.push(store_volume(volume, &spec.cluster));
        store_needs.insert(Need::Volume(VolumeRole::Etcd));
    } else {
        desired.directories.push(private(STORE, BTreeSet::new()));
    }
    desired.directories.push(private(DATA, store_needs.clone()));
    // The discovery URL lets its reader join the cluster. systemd reads the file as root.
    let secret = discovery(spec).is_some();
    let mode = if secret { 0o600 } else { 0o644 };
    desired.files.push(File { path: SETTINGS.to_owned(), mode, owner: Owner::root(), content: settings(spec, address), secret });
    desired.files.push(File::public(DROP_IN, drop_in(spec)));
    store_needs.insert(Need::Directory(DATA.to_owned()));
    desired.units.push(Unit {
        name: UNIT.to_owned(),
        enable: true,
        restart_on: BTreeSet::from([SETTINGS.to_owned(), DROP_IN.to_owned()]),
        needs: store_needs,
        applies_files: false,
    });
    let health = Listeners::of(spec).health();
    desired.gates.push(Gate {
        name: "etcd".to_owned(),
        unit: Some(UNIT.to_owned()),
        probe: Probe::HttpJson {
            url: health.clone(),
            key: "health".to_owned(),
            value: "true".to_owned(),
        },
        consecutive: 2,
        needs: BTreeSet::from([Need::Unit(UNIT.to_owned())]),
        remedy: format!("`journalctl -u {UNIT}`; `curl {health}`"),
    });
}

/// The environment file (magnum-node.md 1.3).
///
/// The member listens on its address and on the loopback, but tells its peers and clients the address only: who is
/// told a loopback address reaches himself (magnum-node.md 5.6).
fn settings(spec: &NodeSpec, address: IpAddr) -> String {
    let listeners = Listeners::of(spec);
    let name = member_name(spec.name.as_ref(), address);
    let (client, peer) = (listeners.client(address), listeners.peer(address));
    let mut out =
        String::from("# Made by heat-node-agent from the parameters of the deployment; it is written again when they change.\n");
    let mut set = |key: &str, value: &str| out.push_str(&line(key, value));
    set("ETCD_NAME", &name);
    set("ETCD_DATA_DIR", DATA);
    set("ETCD_LISTEN_CLIENT_URLS", &format!("{client},{}", listeners.loopback()));
    set("ETCD_ADVERTISE_CLIENT_URLS", &client);
    set("ETCD_LISTEN_PEER_URLS", &peer);
    set("ETCD_INITIAL_ADVERTISE_PEER_URLS", &peer);
    if listeners.health {
        set("ETCD_LISTEN_METRICS_URLS", HEALTH);
    }
    if let Some(cluster) = &spec.kubernetes {
        add_cluster_settings(cluster, &mut set);
    }
    if let Some(discovery) = discovery(spec) {
        set("ETCD_DISCOVERY", discovery.reveal());
        if let Some(proxy) = spec.proxy.as_ref().and_then(|proxy| proxy_for(proxy, discovery)) {
            set("ETCD_DISCOVERY_PROXY", proxy.reveal());
        }
        return out;
    }
    let (members, state) = match spec.kubernetes.as_ref().map(|cluster| &cluster.etcd) {
        Some(etcd) => match &etcd.cluster {
            EtcdCluster::Static(members) => (members.join(","), if etcd.joins { "existing" } else { "new" }),
            _ => (format!("{name}={peer}"), "new"),
        },
        None => (format!("{name}={peer}"), "new"),
    };
    set("ETCD_INITIAL_CLUSTER", &members);
    set("ETCD_INITIAL_CLUSTER_STATE", state);
    // Members of two clusters never mix up, even if addresses are used again.
    set("ETCD_INITIAL_CLUSTER_TOKEN", if spec.cluster.is_empty() { &name } else { &spec.cluster });
    out
}

/// What only a Kubernetes cluster asks for: TLS, and the v2 API for its old clients.
fn add_cluster_settings(cluster: &ClusterSpec, set: &mut impl FnMut(&str, &str)) {
    let version = Version::of(cluster);
    if HIDDEN_V2.contains(&version) && needs_v2(cluster) {
        set("ETCD_ENABLE_V2", "true");
    }
    if !cluster.tls {
        return;
    }
    for whom in ["", "PEER_"] {
        set(&format!("ETCD_{whom}CERT_FILE"), ETCD_SERVER.certificate);
        set(&format!("ETCD_{whom}KEY_FILE"), ETCD_SERVER.key);
        if version < TRUSTED_CA {
            // There a CA file is all that makes certificates necessary.
            set(&format!("ETCD_{whom}CA_FILE"), ETCD_AUTHORITY);
        } else {
            set(&format!("ETCD_{whom}TRUSTED_CA_FILE"), ETCD_AUTHORITY);
            set(&format!("ETCD_{whom}CLIENT_CERT_AUTH"), "true");
        }
    }
}

/// Whether someone speaks the v2 API: Kubernetes up to 1.5, flannel up to 0.17 (magnum-node.md 5.6).
fn needs_v2(cluster: &ClusterSpec) -> bool {
    let flannel = cluster.networks.flannel_tag.as_deref().and_then(|tag| {
        let mut numbers = tag.trim_start_matches('v').split(['.', '-']).map(str::parse::<u16>);
        Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
    });
    let old_flannel = cluster.networks.driver == NetworkDriver::Flannel && flannel.is_none_or(|version| version <= (0, 17));
    cluster.minor.number() <= LAST_WITH_V2_STORE || old_flannel && cluster.has_flannel_in_etcd()
}

/// `ETCD_DISCOVERY_URL`, where the members find each other by it: a list of members wins.
fn discovery(spec: &NodeSpec) -> Option<&Secret> {
    match spec.kubernetes.as_ref().map(|cluster| &cluster.etcd.cluster) {
        Some(EtcdCluster::Static(_)) => None,
        _ => spec.etcd_discovery.as_ref(),
    }
}

/// The proxy for the URL's scheme, else the one that is there (magnum-node.md 7.5 no. 62).
fn proxy_for<'a>(proxy: &'a Proxy, url: &Secret) -> Option<&'a Secret> {
    let https = proxy.https.as_ref().filter(|_| url.reveal().starts_with("https:"));
    https.or(proxy.http.as_ref())
}

fn drop_in(spec: &NodeSpec) -> String {
    // The assertion holds also in the moments before the mount unit is there.
    let assertion = if spec.etcd_volume.is_some() { format!("AssertPathIsMountPoint={STORE}\n") } else { String::new() };
    let mut out = format!(
        "\
# Made by heat-node-agent.
[Unit]
{GUARDED}\
# Never on the directory below the volume.
RequiresMountsFor={STORE}
{assertion}\
# With Restart=always: a member that waits for its peers is not given up.
StartLimitIntervalSec=0

[Service]
# The empty line drops the distribution's files, so that ours alone decide.
EnvironmentFile=
EnvironmentFile={SETTINGS}
Restart=always
RestartSec=5
"
    );
    if discovery(spec).is_some() {
        out.push_str("# Discovery lasts until every master is there.\nTimeoutStartSec=infinity\n");
    }
    out
}

fn store_volume(volume: &VolumeSpec, cluster: &str) -> Volume {
    Volume {
        role: VolumeRole::Etcd,
        cinder_id: volume.id.clone(),
        hint: "/dev/vdc".to_owned(),
        mount_point: STORE.to_owned(),
        root_mode: 0o700,
        root_owner: Owner::named("etcd"),
        format: volume.format,
        format_parameter: "ETCD_VOLUME_FORMAT",
        adopt: volume.adopt.clone(),
        cluster: cluster.to_owned(),
        users: vec![UNIT.to_owned()],
    }
}

fn private(path: &str, needs: BTreeSet<Need>) -> Directory {
    Directory { path: path.to_owned(), mode: 0o700, owner: Owner::named("etcd"), needs }
}
