//! The cloud configuration: OpenStack's credentials and choices for the providers, built into Kubernetes or external.
//!
//! The built-in provider of a minor ends at a key that it doesn't know (seed-systems.md 1), so each key has the first minor
//! that takes it: where no source of the time says it, the Kubernetes of the Magnum release that wrote the key first
//! (magnum-node.md 1.8).

use reqwest::Url;

use crate::desired::{Desired, File, Owner};
use crate::kubernetes::parts::paths::OPENSTACK_CA;
use crate::kubernetes::spec::cluster::{Cloud, CloudUser, ClusterSpec, FIRST_WITH_TRUSTS, MachineFacts};
use crate::kubernetes::spec::node::NodeSpec;
use crate::kubernetes::spec::words::Role;
use crate::kubernetes::text::MADE;
use crate::kubernetes::text::gcfg::{line, section};
use crate::kubernetes::versions::Minor;

/// What the built-in provider and Cinder's plugins read.
pub(in crate::kubernetes) const PATH: &str = "/etc/kubernetes/cloud-config";
/// What the external provider, one of the cluster's add-ons, reads on masters.
const EXTERNAL: &str = "/etc/kubernetes/cloud-config-occm";

/// Who reads a file: it decides about the keys.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reader {
    /// The provider in Kubernetes' own programs of this minor.
    BuiltIn(Minor),
    /// cloud-provider-openstack of this minor, which skips what it does not know.
    External(u16),
}

impl Reader {
    /// Whether a key may be written that the built-in provider takes from a minor on.
    fn takes(self, first: u16) -> bool {
        match self {
            Self::BuiltIn(minor) => minor.number() >= first,
            Self::External(_) => true,
        }
    }

    /// Whether it can be told who the user is: a trustee has no project but by a trust.
    fn understands(self, cloud: &Cloud) -> bool {
        match cloud.user {
            CloudUser::Trustee(..) => cloud.trust.is_some() && self.takes(FIRST_WITH_TRUSTS),
            CloudUser::Creator(..) => true,
        }
    }

    /// Whether keys count that the external provider gave up with 1.27 (magnum-node.md 2.3).
    fn is_before_127(self) -> bool {
        !matches!(self, Self::External(27..))
    }
}

/// The flags that kubelets have: which provider, and its file where it is built in.
pub(in crate::kubernetes) fn provider(cluster: &ClusterSpec) -> Option<(&'static str, Option<&'static str>)> {
    if cluster.cloud.as_ref().is_some_and(|cloud| cloud.external) {
        return Some(("external", None));
    }
    built_in(cluster).then_some(("openstack", Some(PATH)))
}

/// Whether the kubelet itself reads the file.
pub(in crate::kubernetes) fn built_in(cluster: &ClusterSpec) -> bool {
    cluster.has_built_in_cloud()
}

/// Adds its part: root's alone, because it holds a password (magnum-node.md 7.1 no. 1).
pub(in crate::kubernetes) fn part(spec: &NodeSpec, cluster: &ClusterSpec, _facts: &MachineFacts) -> Desired {
    let mut part = Desired::default();
    let master = spec.role == Role::Master;
    let mut add = |path: &str, content: Option<String>| {
        let file = |content| File { path: path.to_owned(), mode: 0o600, owner: Owner::root(), content, secret: true };
        part.files.extend(content.map(file));
    };
    // Workers need it only where their kubelet reads it (magnum-node.md 2.2).
    if master || built_in(cluster) {
        let is_external = !cluster.has_built_in_cinder() && cluster.cloud.as_ref().is_some_and(|cloud| cloud.external);
        let reader = if is_external { Reader::External(release(cluster)) } else { Reader::BuiltIn(cluster.minor) };
        add(PATH, content(cluster, reader, false));
    }
    if master {
        add(EXTERNAL, for_controller(cluster));
    }
    part
}

/// What the external provider reads, where the cluster has it: also in pods, from a Secret.
pub(in crate::kubernetes) fn for_controller(cluster: &ClusterSpec) -> Option<String> {
    let is_external = cluster.cloud.as_ref().is_some_and(|cloud| cloud.external);
    content(cluster, Reader::External(release(cluster)), true).filter(|_| is_external)
}

/// The same, for the pods of Cinder's CSI driver of this tag.
pub(in crate::kubernetes) fn for_cinder(cluster: &ClusterSpec, tag: &str) -> Option<String> {
    content(cluster, Reader::External(Minor::of_tag(tag).unwrap_or(cluster.minor).number()), false)
}

/// The file, where the cluster has a cloud and this reader can be told who the user is.
fn content(cluster: &ClusterSpec, reader: Reader, networking: bool) -> Option<String> {
    let cloud = cluster.cloud.as_ref().filter(|cloud| reader.understands(cloud))?;
    Some(file(cluster, cloud, reader, networking))
}

/// Minor of the external provider: its releases follow Kubernetes'.
fn release(cluster: &ClusterSpec) -> u16 {
    let tag = cluster.cloud.as_ref().and_then(|cloud| cloud.tag.as_deref());
    tag.and_then(Minor::of_tag).unwrap_or(cluster.minor).number()
}

fn file(cluster: &ClusterSpec, cloud: &Cloud, reader: Reader, networking: bool) -> String {
    let mut out = String::from(MADE);
    out.push_str(&section("Global"));
    for (key, value) in global(cluster, cloud, reader) {
        out.push_str(&line(key, &value));
    }
    out.push('\n');
    out.push_str(&section("LoadBalancer"));
    for (key, value) in balancer(cloud, reader) {
        out.push_str(&line(key, &value));
    }
    // Cinder's second API; 1.7 is the first that takes a version.
    if reader.takes(7) && reader.is_before_127() {
        out.push('\n');
        out.push_str(&section("BlockStorage"));
        out.push_str(&line("bs-version", "v2"));
    }
    if let Some(name) = cloud.network_name.as_ref().filter(|_| networking) {
        out.push('\n');
        out.push_str(&section("Networking"));
        out.push_str(&line("internal-network-name", name));
    }
    out
}

type Keys = Vec<(&'static str, String)>;

fn global(cluster: &ClusterSpec, cloud: &Cloud, reader: Reader) -> Keys {
    let mut keys: Keys = Vec::new();
    match &cloud.user {
        CloudUser::Trustee(id, password) => {
            keys.push(("auth-url", cloud.auth_url.clone()));
            keys.push(("user-id", id.clone()));
            keys.push(("password", password.reveal().to_owned()));
            if let Some(trust) = &cloud.trust {
                keys.push(("trust-id", trust.reveal().to_owned()));
            }
        }
        // Magnum's first releases: a name needs a domain in Keystone's third API, which the reader could not be told.
        CloudUser::Creator(name, password, project) => {
            keys.push(("auth-url", second_api(&cloud.auth_url)));
            keys.push(("username", name.clone()));
            keys.push(("password", password.reveal().to_owned()));
            keys.push(("tenant-name", project.clone()));
        }
    }
    if let Some(region) = &cloud.region {
        keys.push(("region", region.clone()));
    }
    if cluster.openstack_ca.is_some() && reader.takes(7) {
        keys.push(("ca-file", OPENSTACK_CA.to_owned()));
    }
    keys
}

fn balancer(cloud: &Cloud, reader: Reader) -> Keys {
    let mut keys: Keys = Vec::new();
    let octavia = cloud.octavia.as_ref();
    if reader.takes(9) && reader.is_before_127() {
        keys.push(("use-octavia", octavia.is_some().to_string()));
    }
    if let Some(subnet) = &cloud.subnet {
        keys.push(("subnet-id", subnet.clone()));
    }
    // Magnum 7.x wrote it first.
    if let Some(network) = cloud.floating_network.as_ref().filter(|_| reader.takes(11)) {
        keys.push(("floating-network-id", network.clone()));
    }
    // magnum-node.md 2.3: Octavia's choices are for the external provider.
    if let Some(octavia) = octavia.filter(|_| matches!(reader, Reader::External(_))) {
        for (key, value) in [("lb-provider", &octavia.provider), ("lb-method", &octavia.algorithm)] {
            if !value.is_empty() {
                keys.push((key, value.clone()));
            }
        }
    }
    let checked = octavia.is_none_or(|octavia| octavia.health_check);
    keys.push(("create-monitor", if checked { "yes" } else { "no" }.to_owned()));
    for (key, value) in [("monitor-delay", "1m"), ("monitor-timeout", "30s"), ("monitor-max-retries", "3")] {
        keys.push((key, value.to_owned()));
    }
    keys
}

/// Keystone's second API at the same place: only the last segment of the path is a version (magnum-node.md 7.3 no. 29).
fn second_api(url: &str) -> String {
    let Ok(mut parsed) = Url::parse(url) else { return url.to_owned() };
    let path = parsed.path().trim_end_matches('/');
    let Some(before) = path.strip_suffix("/v3") else { return url.to_owned() };
    let path = format!("{before}/v2.0");
    parsed.set_path(&path);
    parsed.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubernetes::fixtures::{content, file as found, node};

    const TRUSTEE: &[(&str, &str)] = &[
        ("AUTH_URL", "https://v3.keystone.example.org:5000/v3"),
        ("TRUSTEE_USER_ID", "7e6d5c4b"),
        ("TRUSTEE_PASSWORD", "pa#s;s \"w\\ord"),
        ("TRUST_ID", "01234567"),
        ("REGION_NAME", "RegionOne"),
        ("CLUSTER_SUBNET", "d5e6f708"),
        ("EXTERNAL_NETWORK_ID", "e6f70819"),
        ("CLUSTER_NETWORK_NAME", "blue net"),
        ("OCTAVIA_ENABLED", "true"),
        ("OCTAVIA_PROVIDER", "ovn"),
        ("OCTAVIA_LB_ALGORITHM", "SOURCE_IP_PORT"),
    ];

    fn rendered(tag: &str, role: &str, changes: &[(&str, &str)]) -> Desired {
        let driver = if tag < "v1.5" && tag.len() == 6 { "cgroupfs" } else { "systemd" };
        let base = [
            ("KUBE_TAG", tag),
            ("ROLE", role),
            ("CERTIFICATES", "given"),
            ("CGROUP_DRIVER", driver),
            ("KUBE_MASTER_IP", "192.0.2.5"),
        ];
        node(&base.into_iter().chain(changes.iter().copied()).collect::<Vec<_>>())
    }

    /// Sections with their keys, values as a reader of gcfg takes them.
    fn keys(text: &str) -> Vec<String> {
        let mut section = "";
        let mut keys = Vec::new();
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            match line.split_once(" = ") {
                None => section = line.trim_matches(['[', ']']),
                Some((key, _)) => keys.push(format!("{section}.{key}")),
            }
        }
        keys
    }

    /// seed-systems.md 1 no. 5, tried on a real 1.2: it ends at keys that it does not know.
    const OLDEST: &[&str] = &[
        "Global.auth-url",
        "Global.username",
        "Global.password",
        "Global.tenant-name",
        "LoadBalancer.subnet-id",
        "LoadBalancer.create-monitor",
        "LoadBalancer.monitor-delay",
        "LoadBalancer.monitor-timeout",
        "LoadBalancer.monitor-max-retries",
    ];

    // magnum-node.md 7.3 no. 29: the host's name stays what it is.
    #[test]
    fn magnums_first_releases_are_read_by_the_first_provider() {
        let creator = [
            ("AUTH_URL", "https://v3.keystone.example.org:5000/v3"),
            ("USERNAME", "bay-owner"),
            ("PASSWORD", "sample"),
            ("TENANT_NAME", "team blue"),
            ("CLUSTER_SUBNET", "5b0c9a3e"),
        ];
        let desired = rendered("v1.2.0", "master", &creator);
        let text = content(&desired, PATH);
        assert_eq!(keys(text), OLDEST);
        assert!(text.contains("auth-url = \"https://v3.keystone.example.org:5000/v2.0\"\n"), "{text}");
        assert!(text.contains("tenant-name = \"team blue\"\n"));
        let file = found(&desired, PATH).unwrap();
        assert!(file.secret && file.mode == 0o600 && file.owner == Owner::root());
        assert_eq!(found(&rendered("v1.2.0", "minion", &creator), PATH), None);
        // A trust that the first minors would not understand is not given to them.
        let both = [&creator[..], TRUSTEE].concat();
        assert!(!keys(content(&rendered("v1.4.0", "master", &both), PATH)).contains(&"Global.trust-id".to_owned()));
        assert_eq!(found(&rendered("v1.4.0", "master", TRUSTEE), PATH), None);
        let without: Vec<_> = TRUSTEE.iter().copied().filter(|(name, _)| *name != "TRUST_ID").collect();
        assert_eq!(found(&rendered("v1.9.0", "master", &without), PATH), None);
    }

    #[test]
    fn no_reader_meets_a_key_before_its_time() {
        let ca = ("OPENSTACK_CA", "-----BEGIN CERTIFICATE-----\\nAA\\n-----END CERTIFICATE-----");
        for (key, first, last) in [
            ("Global.trust-id", 5, 25),
            ("Global.ca-file", 7, 25),
            ("BlockStorage.bs-version", 7, 25),
            ("LoadBalancer.use-octavia", 9, 25),
            ("LoadBalancer.floating-network-id", 11, 25),
            ("LoadBalancer.lb-provider", 99, 0),
        ] {
            for minor in 5..=25 {
                let desired = rendered(&format!("v1.{minor}.1"), "master", &[TRUSTEE, &[ca]].concat());
                let there = keys(content(&desired, PATH)).contains(&key.to_owned());
                assert_eq!(there, (first..=last).contains(&minor), "1.{minor} {key}");
                assert_eq!(found(&desired, EXTERNAL), None);
            }
        }
        let desired = rendered("v1.9.1", "minion", &[TRUSTEE, &[ca]].concat());
        assert!(content(&desired, PATH).contains("ca-file = \"/etc/kubernetes/ca-bundle.crt\"\n"));
        assert_eq!(
            content(&desired, "/etc/kubernetes/ca-bundle.crt"),
            "-----BEGIN CERTIFICATE-----\nAA\n-----END CERTIFICATE-----\n"
        );
    }

    #[test]
    fn the_external_provider_gets_what_it_reads() {
        let external = [TRUSTEE, &[("CLOUD_PROVIDER_ENABLED", "true"), ("OPENSTACK_CA", "")]].concat();
        for (changes, dropped) in
            [(&[("CLOUD_PROVIDER_TAG", "v1.26.4")][..], false), (&[("CLOUD_PROVIDER_TAG", "v1.27.1")], true), (&[], true)]
        {
            let desired = rendered("v1.28.9", "master", &[&external[..], changes].concat());
            let there = keys(content(&desired, EXTERNAL));
            for key in ["LoadBalancer.use-octavia", "BlockStorage.bs-version"] {
                assert_eq!(there.contains(&key.to_owned()), !dropped, "{key} {changes:?}");
            }
            for key in
                ["LoadBalancer.lb-provider", "LoadBalancer.lb-method", "Networking.internal-network-name", "Global.trust-id"]
            {
                assert!(there.contains(&key.to_owned()), "{key}");
            }
            // Cinder's plugin reads the file without the networks.
            assert!(!keys(content(&desired, PATH)).iter().any(|key| key.starts_with("Networking.")));
        }
        // magnum-node.md 7.3 no. 30
        let text = content(&rendered("v1.28.9", "master", &external), PATH).to_owned();
        assert!(text.contains("password = \"pa#s;s \\\"w\\\\ord\"\n"), "{text}");
        assert_eq!(found(&rendered("v1.28.9", "minion", &external), PATH), None);
        assert_eq!(found(&rendered("v1.28.9", "master", &[]), PATH), None);
    }

    #[test]
    fn only_the_last_segment_of_a_path_is_a_version() {
        for (given, expected) in [
            ("https://v3.example.org/v3", "https://v3.example.org/v2.0"),
            ("https://example.org/identity/v3/", "https://example.org/identity/v2.0"),
            ("https://example.org:5000", "https://example.org:5000"),
            ("https://example.org/v3/identity", "https://example.org/v3/identity"),
            ("https://example.org/v2.0", "https://example.org/v2.0"),
        ] {
            assert_eq!(second_api(given), expected);
        }
    }
}
