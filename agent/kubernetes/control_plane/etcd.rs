//! etcd on a master: the distribution's `etcd.service` with our settings.
//!
//! Only environment files are written: a configuration file makes etcd ignore the environment (magnum-node.md 5.6).
//! With TLS clients and peers show certificates, on the loopback too (7.1 no. 6), and so does the agent when it asks for
//! health. Only for an API server that cannot show one (before 1.3) the loopback is served in the clear.
//! A learner is made by a member's call (`member add --learner`); what it has on disk is that of any member that joins.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::etcd_access;
use crate::desired::{
    ClientIdentity, Content, Dependency, Desired, Directory, EtcdAccess, EtcdJoin, EtcdMember, File, Gate, GateProbe, Owner,
    Unit, Volume, VolumeRole,
};
use crate::kubernetes::parts::certificates::{ETCD_CA, ETCD_SERVER};
use crate::kubernetes::parts::daemon::{GOOD_IN_A_ROW, NO_START_TIMEOUT, curl_options, deadline, wait_for_space};
use crate::kubernetes::parts::directories::directory;
use crate::kubernetes::parts::etcd::{client_identity, server_identity};
use crate::kubernetes::parts::etcd_release::{TRUSTED_CA, Version, version};
use crate::kubernetes::parts::paths::GUARDED;
use crate::kubernetes::spec::cluster::{ClusterSpec, EtcdCluster, host_of};
use crate::kubernetes::spec::node::{NodeSpec, Proxy};
use crate::kubernetes::spec::storage::VolumeSpec;
use crate::kubernetes::spec::words::Secret;
use crate::kubernetes::text::MADE;
use crate::kubernetes::text::environment::line;
use crate::kubernetes::versions::{Availability, Component, flag};
use crate::network::flannel;

pub(in crate::kubernetes) const UNIT: &str = "etcd.service";
pub(in crate::kubernetes) const SETTINGS: &str = "/etc/etcd/etcd.conf";
/// What a member reads only until it has a cluster.
pub(in crate::kubernetes) const BOOTSTRAP: &str = "/etc/etcd/bootstrap.conf";
/// The same for a member that takes the place of a dead one: it is made when that is found out, and is not asked for.
pub(in crate::kubernetes) const JOIN: &str = "/etc/etcd/join.conf";
pub(in crate::kubernetes) const DROP_IN: &str = "/etc/systemd/system/etcd.service.d/50-heat-node-agent.conf";
/// A drop-in of its own, whose change restarts nobody: one that has data reads the file in vain.
pub(in crate::kubernetes) const JOIN_DROP_IN: &str = "/etc/systemd/system/etcd.service.d/60-heat-node-agent-join.conf";
pub(in crate::kubernetes) const STORE: &str = "/var/lib/etcd";
pub(in crate::kubernetes) const DATA: &str = "/var/lib/etcd/default.etcd";

/// The last Kubernetes that keeps its objects in etcd's v2 store.
const LAST_WITH_V2_STORE: u16 = 5;
/// Versions that have the v2 API, but switched off (magnum-node.md 5.6).
pub(in crate::kubernetes) const HIDDEN_V2: [Version; 2] = [(3, 4), (3, 5)];
/// What switches it on.
pub(in crate::kubernetes) const ENABLE_V2: &str = "ETCD_ENABLE_V2";

/// How the member serves.
struct Listeners {
    tls: bool,
    /// Whether the loopback is served in the clear.
    plain_loopback: bool,
    client_port: u16,
    peer_port: u16,
}

impl Listeners {
    fn of(spec: &NodeSpec) -> Self {
        let Some(cluster) = &spec.kubernetes else {
            return Self { tls: false, plain_loopback: true, client_port: 2379, peer_port: 2380 };
        };
        Self {
            tls: cluster.tls,
            plain_loopback: !cluster.tls || !api_server_shows_certificates(cluster),
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

    /// Where the member is asked how it is, and as whom.
    fn member(&self, address: IpAddr) -> (String, Option<ClientIdentity>) {
        let identity = self.tls.then(client_identity);
        // Over TLS wherever there is TLS: as everybody else has it from the member.
        let url = if self.tls && self.plain_loopback { self.client(address) } else { self.loopback() };
        (url, identity)
    }
}

/// As whom the agent asks where members serve each other: as the member itself. etcd takes a certificate with names there from one of
/// these alone (`checkCertSAN` of its package `transport`), and so not the clients' one where that carries their name, or is given with names.
fn peer_identity(cluster: &ClusterSpec) -> Option<ClientIdentity> {
    cluster.tls.then(server_identity)
}

/// Where the API server of this master reaches etcd. Over TLS it needs certificates, and the server's names the loopback.
pub(in crate::kubernetes) fn url_of_the_api_server(spec: &NodeSpec) -> String {
    Listeners::of(spec).loopback()
}

/// Whether the API server has flags for certificates towards etcd: from 1.3 on.
fn api_server_shows_certificates(cluster: &ClusterSpec) -> bool {
    flag(Component::ApiServer, cluster.minor, "etcd-certfile") == Availability::Known
}

/// Name of the member: the node's, else its address.
fn member_name(name: Option<&String>, address: IpAddr) -> String {
    name.cloned().unwrap_or_else(|| address.to_string())
}

/// Adds etcd's part.
pub(in crate::kubernetes) fn part(spec: &NodeSpec, address: IpAddr) -> Desired {
    let mut part = Desired::default();
    part.directories.push(directory("/etc/etcd"));
    part.directories.push(directory("/etc/systemd/system/etcd.service.d"));
    let mut store_needs = BTreeSet::new();
    if let Some(volume) = &spec.etcd_volume {
        part.volumes.push(store_volume(volume, &spec.cluster));
        store_needs.insert(Dependency::Volume(VolumeRole::Etcd));
    } else {
        part.directories.push(private(STORE, BTreeSet::new()));
    }
    part.directories.push(private(DATA, store_needs.clone()));
    // The discovery URL lets its reader join the cluster. systemd reads the file as root.
    let secret = discovery(spec).is_some();
    let mode = if secret { 0o600 } else { 0o644 };
    part.files.push(File { path: SETTINGS.to_owned(), mode, owner: Owner::root(), content: settings(spec, address), secret });
    if !secret {
        part.files.push(File::public(BOOTSTRAP, bootstrap(spec, address)));
    }
    part.files.push(File::public(DROP_IN, drop_in(spec)));
    let mut restart_on = BTreeSet::from([SETTINGS.to_owned(), DROP_IN.to_owned()]);
    if let Some(cluster) = spec.kubernetes.as_ref().filter(|cluster| etcd_access::is_named_at_all(cluster)) {
        etcd_access::add(cluster, &mut part);
        restart_on.insert(etcd_access::FILE.to_owned());
    }
    store_needs.insert(Dependency::Directory(DATA.to_owned()));
    part.etcd_join = join(spec, address, &store_needs).map(Box::new);
    if part.etcd_join.is_some() {
        // After the other one, so that this file has the last word.
        let content = format!("# Made by heat-node-agent.\n[Service]\nEnvironmentFile=-{JOIN}\n");
        part.files.push(File::public(JOIN_DROP_IN, content));
        store_needs.insert(Dependency::EtcdMember);
    }
    part.units.push(Unit {
        name: UNIT.to_owned(),
        enable: true,
        // Without the members' list: one that has a cluster passes it over, and where masters are added every one of the others
        // would be restarted at once, in the middle of `member add`. One that is not there yet reads it at its next try.
        restart_on,
        needs: store_needs,
        applies_files: false,
    });
    let (url, identity) = Listeners::of(spec).member(address);
    let health = format!("{url}/health");
    let access = EtcdAccess { endpoint: url, identity: identity.clone() };
    let peer_identity = spec.kubernetes.as_ref().and_then(peer_identity);
    let has_others = spec.etcd_discovery.is_some() || spec.kubernetes.as_ref().is_some_and(ClusterSpec::has_several_masters);
    part.etcd = Some(EtcdMember {
        access,
        peer: Listeners::of(spec).peer(address),
        peer_identity,
        is_single: !has_others,
        name: member_name(spec.name.as_ref(), address),
        keeps_v2: spec.kubernetes.as_ref().is_some_and(keeps_v2),
    });
    part.gates.push(Gate {
        name: "etcd".to_owned(),
        unit: Some(UNIT.to_owned()),
        remedy: format!("`journalctl -u {UNIT} -n 50`; `curl {}{health}`", curl_options(identity.as_ref())),
        probe: GateProbe::HttpJson { url: health, key: "health".to_owned(), value: "true".to_owned(), identity },
        consecutive: GOOD_IN_A_ROW,
        // One of several is healthy when most of them are.
        deadline: Some(deadline::STORE).filter(|_| !has_others),
        needs: BTreeSet::from([Dependency::Unit(UNIT.to_owned())]),
    });
    part
}

/// How the member finds the others, where they are listed.
fn join(spec: &NodeSpec, address: IpAddr, needs: &BTreeSet<Dependency>) -> Option<EtcdJoin> {
    let etcd = &spec.kubernetes.as_ref()?.etcd;
    let listed = listed(spec).filter(|members| members.len() > 1)?;
    let split = |member: &String| member.split_once('=').map(|(name, url)| (name.to_owned(), url.to_owned()));
    let members: Vec<(String, String)> = listed.iter().filter_map(split).collect();
    let listeners = Listeners::of(spec);
    let name = member_name(spec.name.as_ref(), address);
    Some(EtcdJoin {
        peer: listeners.peer(address),
        members,
        token: token(spec, &name),
        existing: etcd.joins,
        identity: listeners.tls.then(client_identity),
        peer_identity: spec.kubernetes.as_ref().and_then(peer_identity),
        data: DATA.to_owned(),
        file: JOIN.to_owned(),
        unit: UNIT.to_owned(),
        needs: needs.clone(),
        name,
    })
}

/// The members, where the parameters list them.
fn listed(spec: &NodeSpec) -> Option<&[String]> {
    match &spec.kubernetes.as_ref()?.etcd.cluster {
        EtcdCluster::Static(members) => Some(members),
        EtcdCluster::Discovery(_) | EtcdCluster::Single => None,
    }
}

/// Members of two clusters never mix up, even if addresses are used again.
fn token(spec: &NodeSpec, name: &str) -> String {
    if spec.cluster.is_empty() { name.to_owned() } else { spec.cluster.clone() }
}

/// The environment file (magnum-node.md 1.3).
///
/// The member listens on its address and on the loopback, but tells its peers and clients the address only: who is
/// told a loopback address reaches himself (magnum-node.md 5.6).
fn settings(spec: &NodeSpec, address: IpAddr) -> String {
    let listeners = Listeners::of(spec);
    let name = member_name(spec.name.as_ref(), address);
    let (client, peer) = (listeners.client(address), listeners.peer(address));
    let mut out = String::from(MADE);
    let mut set = |key: &str, value: &str| out.push_str(&line(key, value));
    set("ETCD_NAME", &name);
    set("ETCD_DATA_DIR", DATA);
    set("ETCD_LISTEN_CLIENT_URLS", &format!("{client},{}", listeners.loopback()));
    set("ETCD_ADVERTISE_CLIENT_URLS", &client);
    set("ETCD_LISTEN_PEER_URLS", &peer);
    set("ETCD_INITIAL_ADVERTISE_PEER_URLS", &peer);
    if let Some(cluster) = &spec.kubernetes {
        add_cluster_settings(cluster, &mut set);
    }
    if let Some(discovery) = discovery(spec) {
        set("ETCD_DISCOVERY", discovery.reveal());
        if let Some(proxy) = spec.proxy.as_ref().and_then(|proxy| proxy_for(proxy, discovery)) {
            set("ETCD_DISCOVERY_PROXY", proxy.reveal());
        }
    }
    out
}

/// The environment file of a member's first start, where it does not find the others by discovery: that one waits with the URL it
/// has, so another URL is a restart.
fn bootstrap(spec: &NodeSpec, address: IpAddr) -> String {
    let name = member_name(spec.name.as_ref(), address);
    let peer = Listeners::of(spec).peer(address);
    let mut out = String::from(MADE);
    let mut set = |key: &str, value: &str| out.push_str(&line(key, value));
    let (members, state) = match spec.kubernetes.as_ref().map(|cluster| &cluster.etcd) {
        Some(etcd) => match &etcd.cluster {
            EtcdCluster::Static(members) => (members.join(","), if etcd.joins { "existing" } else { "new" }),
            _ => (format!("{name}={peer}"), "new"),
        },
        None => (format!("{name}={peer}"), "new"),
    };
    set("ETCD_INITIAL_CLUSTER", &members);
    set("ETCD_INITIAL_CLUSTER_STATE", state);
    set("ETCD_INITIAL_CLUSTER_TOKEN", &token(spec, &name));
    out
}

/// What only a Kubernetes cluster asks for: TLS, and the v2 API for its old clients.
fn add_cluster_settings(cluster: &ClusterSpec, set: &mut impl FnMut(&str, &str)) {
    let version = version(cluster);
    // Whose release is not known may be one that hides it; any other says that it does not know the variable, and runs.
    if (cluster.etcd.tag.is_none() || HIDDEN_V2.contains(&version)) && needs_v2(cluster) {
        set(ENABLE_V2, "true");
    }
    if !cluster.tls {
        return;
    }
    for whom in ["", "PEER_"] {
        set(&format!("ETCD_{whom}CERT_FILE"), ETCD_SERVER.certificate);
        set(&format!("ETCD_{whom}KEY_FILE"), ETCD_SERVER.key);
        if version < TRUSTED_CA {
            // There a CA file is all that makes certificates necessary.
            set(&format!("ETCD_{whom}CA_FILE"), ETCD_CA);
        } else {
            set(&format!("ETCD_{whom}TRUSTED_CA_FILE"), ETCD_CA);
            set(&format!("ETCD_{whom}CLIENT_CERT_AUTH"), "true");
        }
    }
}

/// Whether someone speaks the v2 API: Kubernetes up to 1.5, flannel up to 0.17 (magnum-node.md 5.6).
fn needs_v2(cluster: &ClusterSpec) -> bool {
    keeps_v2(cluster) || flannel_needs_v2(cluster)
}

/// Whether the API server keeps its objects by the v2 API.
pub(in crate::kubernetes) fn keeps_v2(cluster: &ClusterSpec) -> bool {
    cluster.minor.number() <= LAST_WITH_V2_STORE
}

/// Whether flannel runs as a unit, of a release that asks by the v2 API, or of none that is known.
pub(in crate::kubernetes) fn flannel_needs_v2(cluster: &ClusterSpec) -> bool {
    let flannel = cluster.networks.flannel.tag.as_deref().and_then(flannel::version_of);
    let by_v2 = flannel.is_none_or(|version| flannel::api(version) == flannel::Api::V2);
    by_v2 && cluster.has_flannel_unit()
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
    // A file system that the kernel made read-only after I/O errors is no reason to start forever, either.
    let assertion = if spec.etcd_volume.is_some() {
        format!("AssertPathIsMountPoint={STORE}\nAssertPathIsReadWrite={STORE}\n")
    } else {
        String::new()
    };
    let space = wait_for_space(STORE);
    let bootstrap = if discovery(spec).is_none() { format!("EnvironmentFile={BOOTSTRAP}\n") } else { String::new() };
    // It comes after the certificates; a member that runs goes on running until then.
    let names = spec.kubernetes.as_ref().filter(|cluster| etcd_access::is_named_at_all(cluster));
    let names = names.map(|_| format!("EnvironmentFile=-{}\n", etcd_access::FILE)).unwrap_or_default();
    format!(
        "\
# Made by heat-node-agent.
[Unit]
{GUARDED}\
# Never on the directory below the volume.
RequiresMountsFor={STORE}
{assertion}\
# It exits at once while the node lacks the address that it listens on.
Wants=network-online.target
After=network-online.target
# With Restart=always: never give up on a member that waits for its peers or its address.
StartLimitIntervalSec=0

[Service]
# The empty line clears the distribution's files, so that only ours apply.
EnvironmentFile=
EnvironmentFile={SETTINGS}
{bootstrap}\
{names}\
{space}\
Restart=always
RestartSec=5
# It is ready once it has read its data and found a majority of its members.
{NO_START_TIMEOUT}"
    )
}

fn store_volume(volume: &VolumeSpec, cluster: &str) -> Volume {
    Volume {
        role: VolumeRole::Etcd,
        disk: volume.disk.clone(),
        hint: "/dev/vdc".to_owned(),
        content: Content::Xfs,
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

fn private(path: &str, needs: BTreeSet<Dependency>) -> Directory {
    Directory { path: path.to_owned(), mode: 0o700, owner: Owner::named("etcd"), needs }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubernetes::awaited_store;
    use crate::kubernetes::fixtures::{
        ETCDS_OWN, arguments, asked, assignments, content, file, gate, master, node, problems, value,
    };

    fn settings_of(minor: u16, changes: &[(&str, &str)]) -> Vec<(String, String)> {
        of_both_files(&master(minor, changes))
    }

    fn of_both_files(desired: &Desired) -> Vec<(String, String)> {
        [SETTINGS, BOOTSTRAP].iter().flat_map(|path| assignments(content(desired, path))).collect()
    }

    fn get<'a>(settings: &'a [(String, String)], key: &str) -> Option<&'a str> {
        settings.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
    }

    #[test]
    fn without_kube_tag_nothing_changes() {
        let settings = assignments(content(&node(&[("KUBE_TAG", ""), ("TLS_DISABLED", "true"), ("CERTIFICATES", "")]), SETTINGS));
        assert_eq!(get(&settings, "ETCD_LISTEN_CLIENT_URLS"), Some("http://192.0.2.11:2379,http://127.0.0.1:2379"));
        assert!(!settings.iter().any(|(key, _)| key.contains("CERT") || key.contains("METRICS")));
    }

    /// magnum-node.md 1.3, 5.6; 7.1 no. 6; 7.5 no. 63 (no loopback is advertised)
    #[test]
    fn with_tls_clients_and_peers_show_certificates() {
        let closed = "https://192.0.2.11:2379,https://127.0.0.1:2379";
        let open = "https://192.0.2.11:2379,http://127.0.0.1:2379";
        for (minor, tag, listens, asked_at, ca, api) in [
            (28, "v3.5.13", closed, "https://127.0.0.1:2379", "TRUSTED_CA_FILE", "https://127.0.0.1:2379"),
            (19, "", closed, "https://127.0.0.1:2379", "TRUSTED_CA_FILE", "https://127.0.0.1:2379"),
            (15, "v3.2.26", closed, "https://127.0.0.1:2379", "TRUSTED_CA_FILE", "https://127.0.0.1:2379"),
            (5, "v2.2.1", closed, "https://127.0.0.1:2379", "TRUSTED_CA_FILE", "https://127.0.0.1:2379"),
            (3, "v2.0.10", closed, "https://127.0.0.1:2379", "CA_FILE", "https://127.0.0.1:2379"),
            // The API server of 1.2 and before cannot show a certificate.
            (2, "v3.5.13", open, "https://192.0.2.11:2379", "TRUSTED_CA_FILE", "http://127.0.0.1:2379"),
            (1, "", open, "https://192.0.2.11:2379", "CA_FILE", "http://127.0.0.1:2379"),
        ] {
            let desired = master(minor, &[("ETCD_TAG", tag)]);
            let settings = assignments(content(&desired, SETTINGS));
            assert_eq!(get(&settings, "ETCD_LISTEN_CLIENT_URLS"), Some(listens), "{minor} {tag}");
            assert_eq!(get(&settings, "ETCD_ADVERTISE_CLIENT_URLS"), Some("https://192.0.2.11:2379"));
            for key in ["ETCD_LISTEN_PEER_URLS", "ETCD_INITIAL_ADVERTISE_PEER_URLS"] {
                assert_eq!(get(&settings, key), Some("https://192.0.2.11:2380"));
            }
            let health = format!("{asked_at}/health");
            let identity = ClientIdentity {
                certificate: "/etc/etcd/certs/admin.crt".to_owned(),
                key: "/etc/etcd/certs/admin.key".to_owned(),
                ca: "/etc/etcd/certs/ca.crt".to_owned(),
            };
            let GateProbe::HttpJson { url, identity: shown, .. } = &gate(&desired, "etcd").unwrap().probe else { panic!() };
            assert_eq!((url, shown), (&health, &Some(identity)), "{minor} {tag}");
            assert_eq!(get(&settings, "ETCD_LISTEN_METRICS_URLS"), None, "health is served to nobody in the clear");
            for whom in ["", "PEER_"] {
                assert_eq!(get(&settings, &format!("ETCD_{whom}{ca}")), Some("/etc/etcd/certs/ca.crt"), "{minor} {tag}");
                assert_eq!(get(&settings, &format!("ETCD_{whom}CERT_FILE")), Some("/etc/etcd/certs/server.crt"));
                assert_eq!(get(&settings, &format!("ETCD_{whom}KEY_FILE")), Some("/etc/etcd/certs/server.key"));
                let auth = get(&settings, &format!("ETCD_{whom}CLIENT_CERT_AUTH"));
                assert_eq!(auth, (ca == "TRUSTED_CA_FILE").then_some("true"), "{minor} {tag}");
                // Fatal to 3.4 and later.
                assert!(ca == "CA_FILE" || get(&settings, &format!("ETCD_{whom}CA_FILE")).is_none());
            }
            let api_server = arguments(&desired, "kube-apiserver.service");
            assert_eq!(value(&api_server, "etcd-servers"), Some(api), "{minor} {tag}");
            assert_eq!(value(&api_server, "etcd-certfile").is_some(), minor >= 3);
        }
        let open = settings_of(15, &[("TLS_DISABLED", "true"), ("CERTIFICATES", ""), ("ETCD_TAG", "v3.5.1")]);
        assert_eq!(get(&open, "ETCD_LISTEN_CLIENT_URLS"), Some("http://192.0.2.11:2379,http://127.0.0.1:2379"));
        let without_tls = master(15, &[("TLS_DISABLED", "true"), ("CERTIFICATES", "")]);
        assert_eq!(asked(&without_tls, "etcd"), Some("http://127.0.0.1:2379/health"));
        assert!(!open.iter().any(|(key, _)| key.contains("CERT") || key.contains("METRICS")));
    }

    /// Attack: etcd's listener for peers turned the clients' certificate away, which has a name, and a member that came late never joined.
    #[test]
    fn members_are_asked_where_they_serve_peers_by_a_certificate_that_is_let_in_there() {
        let members = (
            "ETCD_INITIAL_CLUSTER",
            "blue-master-0=https://192.0.2.11:2380,m2=https://192.0.2.12:2380,m3=https://192.0.2.13:2380",
        );
        let own = ETCDS_OWN.to_vec();
        for changes in [vec![], own, vec![("KUBE_TAG", "v1.9.6")]] {
            let desired = node(&[&changes[..], &[members]].concat());
            let (member, join) = (desired.etcd.unwrap(), desired.etcd_join.unwrap());
            assert_eq!(
                (&member.as_peer().endpoint, &member.as_peer().identity),
                (&join.peer, &join.peer_identity),
                "{changes:?}"
            );
            let (client, peer) = (join.identity.unwrap(), join.peer_identity.unwrap());
            assert_eq!(
                (client.certificate, client.key),
                ("/etc/etcd/certs/admin.crt".into(), "/etc/etcd/certs/admin.key".into())
            );
            let [certificate, key] = ["crt", "key"].map(|end| format!("/etc/etcd/certs/server.{end}"));
            assert_eq!((peer.certificate, peer.key, peer.ca), (certificate, key, client.ca), "{changes:?}");
        }
        let plain = node(&[("KUBE_TAG", "v1.15.7"), ("TLS_DISABLED", "true"), ("CERTIFICATES", "")]);
        assert_eq!(plain.etcd.unwrap().peer_identity, None);
    }

    #[test]
    fn the_store_that_it_waits_for_is_known_to_others() {
        let desired = master(28, &[("ETCD_VOLUME", "e41b7f92-0c6d-4f0a-b1d7-58a2f3c9d610")]);
        assert_eq!(awaited_store(&desired, "etcd.service"), Some("/var/lib/etcd"));
        assert_eq!(awaited_store(&desired, "kubelet.service"), None);
    }

    /// An address or room on the disk that comes late, gigabytes to read, peers that are not there yet.
    #[test]
    fn a_member_is_never_given_up_but_without_its_store() {
        let members =
            "blue-master-0=https://192.0.2.11:2380,blue-master-1=https://192.0.2.12:2380,blue-master-2=https://192.0.2.13:2380";
        for changes in [
            &[][..],
            &[("ETCD_INITIAL_CLUSTER", members)],
            &[("ETCD_INITIAL_CLUSTER", members), ("ETCD_INITIAL_CLUSTER_STATE", "existing")],
            &[("ETCD_DISCOVERY_URL", "https://discovery.example.org/0f1e")],
        ] {
            let desired = master(28, changes);
            let drop_in = content(&desired, DROP_IN);
            let (of_unit, of_service) = drop_in.split_once("\n[Service]\n").unwrap();
            for line in ["StartLimitIntervalSec=0", "Wants=network-online.target", "After=network-online.target"] {
                assert!(of_unit.lines().any(|one| one == line), "{changes:?}: {line}");
            }
            assert!(of_service.lines().any(|one| one == "TimeoutStartSec=0"), "{changes:?}");
            assert!(of_service.contains("\nExecStartPre=/bin/sh -c 'while set -- $$(df -Pk /var/lib/etcd "), "{changes:?}");
            assert!(!drop_in.contains("StartLimitBurst"), "{changes:?}");
        }
        let volume = [("ETCD_VOLUME", "e41b7f92-0c6d-4f0a-b1d7-58a2f3c9d610")];
        assert!(content(&master(28, &volume), DROP_IN).contains("AssertPathIsReadWrite=/var/lib/etcd\n"));
    }

    #[test]
    fn the_v2_api_is_switched_on_where_it_is_hidden_and_needed() {
        for (minor, tag, changes, expected) in [
            (5, "v3.4.6", &[][..], Some("true")),
            (5, "v3.3.6", &[], None),
            (5, "v2.2.1", &[], None),
            (9, "v3.5.1", &[], Some("true")),
            (9, "v3.5.1", &[("FLANNEL_TAG", "v0.17.0")], Some("true")),
            (9, "v3.5.1", &[("FLANNEL_TAG", "v0.18.0")], None),
            (9, "v3.5.1", &[("NETWORK_DRIVER", "calico")], None),
            (28, "v3.5.1", &[], None),
            (9, "", &[], Some("true")),
            (9, "", &[("FLANNEL_TAG", "v0.18.0")], None),
            (28, "", &[], None),
        ] {
            let changes: Vec<_> = [("ETCD_TAG", tag)].iter().chain(changes).copied().collect();
            assert_eq!(get(&settings_of(minor, &changes), "ETCD_ENABLE_V2"), expected, "{minor} {changes:?}");
        }
    }

    /// magnum-node.md 7.5 no. 62 and 63
    #[test]
    fn members_find_each_other_by_discovery_a_list_or_are_alone() {
        let discovery = [("ETCD_DISCOVERY_URL", "https://discovery.example.org/0f1e"), ("MASTER_INDEX", "1")];
        let http = ("HTTP_PROXY", "http://one.example.org:3128");
        let https = ("HTTPS_PROXY", "http://two.example.org:3128");
        for (proxies, expected) in
            [(&[][..], None), (&[http], Some(http.1)), (&[https], Some(https.1)), (&[http, https], Some(https.1))]
        {
            let changes: Vec<_> = discovery.iter().chain(proxies).copied().collect();
            let desired = master(28, &changes);
            let settings = assignments(content(&desired, SETTINGS));
            assert_eq!(get(&settings, "ETCD_DISCOVERY"), Some("https://discovery.example.org/0f1e"));
            assert_eq!(get(&settings, "ETCD_DISCOVERY_PROXY"), expected, "{proxies:?}");
            assert_eq!(get(&settings, "ETCD_INITIAL_CLUSTER"), None);
            assert!(file(&desired, SETTINGS).is_some_and(|file| file.secret && file.mode == 0o600));
            assert!(file(&desired, BOOTSTRAP).is_none() && !content(&desired, DROP_IN).contains(BOOTSTRAP));
        }
        let members =
            "blue-master-0=https://192.0.2.11:2380,blue-master-1=https://192.0.2.12:2380,blue-master-2=https://192.0.2.13:2380";
        for (state, learner) in [("new", "false"), ("existing", "false"), ("existing", "true")] {
            let changes = [("ETCD_INITIAL_CLUSTER", members), ("ETCD_INITIAL_CLUSTER_STATE", state), ("ETCD_LEARNER", learner)];
            let settings = settings_of(28, &changes);
            assert_eq!(get(&settings, "ETCD_INITIAL_CLUSTER"), Some(members));
            assert_eq!(get(&settings, "ETCD_INITIAL_CLUSTER_STATE"), Some(state));
            let desired = master(28, &changes);
            assert!(!content(&desired, SETTINGS).contains("ETCD_INITIAL_CLUSTER"), "a change of it would be a restart");
            let read = format!("\nEnvironmentFile={SETTINGS}\nEnvironmentFile={BOOTSTRAP}\n");
            assert!(content(&desired, DROP_IN).contains(&read) && !content(&desired, DROP_IN).contains(JOIN));
            assert!(JOIN_DROP_IN > DROP_IN && content(&desired, JOIN_DROP_IN).ends_with(&format!("\nEnvironmentFile=-{JOIN}\n")));
            let join = desired.etcd_join.as_ref().unwrap();
            assert_eq!((join.name.as_str(), join.peer.as_str()), ("blue-master-0", "https://192.0.2.11:2380"));
            assert_eq!(join.members[2], ("blue-master-2".to_owned(), "https://192.0.2.13:2380".to_owned()));
            assert_eq!((join.token.as_str(), join.existing), ("c0ffee00-1111-4222-8333-444455556666", state == "existing"));
            let unit = desired.units.iter().find(|unit| unit.name == UNIT).unwrap();
            assert!(unit.needs.contains(&Dependency::EtcdMember));
            // An agent that is upgraded brings it to all masters at once.
            assert!(!unit.restart_on.contains(JOIN) && !unit.restart_on.contains(JOIN_DROP_IN));
            assert_eq!(get(&settings, "ETCD_INITIAL_CLUSTER_TOKEN"), Some("c0ffee00-1111-4222-8333-444455556666"));
        }
        let alone = settings_of(6, &[("INSTANCE_NAME", ""), ("ETCD_TAG", "3.2.26")]);
        assert_eq!(get(&alone, "ETCD_NAME"), Some("192.0.2.11"));
        assert_eq!(get(&alone, "ETCD_INITIAL_CLUSTER"), Some("192.0.2.11=https://192.0.2.11:2380"));
        assert_eq!(get(&alone, "ETCD_INITIAL_CLUSTER_STATE"), Some("new"));
        // Who is alone, or finds the others by discovery, has nobody to ask.
        for changes in [&[("INSTANCE_NAME", "m0"), ("ETCD_INITIAL_CLUSTER", "m0=https://192.0.2.11:2380")][..], &[], &discovery] {
            let desired = master(28, changes);
            assert!(desired.etcd_join.is_none() && file(&desired, JOIN_DROP_IN).is_none(), "{changes:?}");
        }
    }

    /// The version that a Kubernetes was released with counts where no tag says another.
    #[test]
    fn discovery_is_refused_where_it_would_be_ignored() {
        let with = |tag, etcd| {
            problems(&[("KUBE_TAG", tag), ("ETCD_TAG", etcd), ("ETCD_DISCOVERY_URL", "https://discovery.example.org/0f1e")])
        };
        for (tag, etcd) in [("v1.37.0", ""), ("v1.28.0", "v3.7.0")] {
            assert_eq!(with(tag, etcd).len(), 1, "{tag} {etcd}: {:?}", with(tag, etcd));
            assert!(with(tag, etcd)[0].starts_with("ETCD_DISCOVERY_URL "));
        }
        for (tag, etcd) in [("v1.37.0", "v3.6.5"), ("v1.36.0", "")] {
            assert!(with(tag, etcd).is_empty());
        }
    }
}
