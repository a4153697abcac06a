//! What one node is to be: the parameters as types, checked against each other.
//!
//! A value that this version does not support is a mistake, never ignored: a node that came up other
//! than asked would be worse than none. Parameters of add-ons and later features are taken silently.

use std::net::IpAddr;
use std::time::Duration;

use crate::desired::{DiskName, FormatPolicy};
use crate::kubernetes::checks::addresses::not_a_host_address;
use crate::kubernetes::parameters::mistake::Mistake;
use crate::kubernetes::parameters::read::Parameters;
use crate::kubernetes::spec::cluster::ClusterSpec;
use crate::kubernetes::spec::node::{NodeSpec, Preflight, Proxy};
use crate::kubernetes::spec::storage::VolumeSpec;
use crate::kubernetes::spec::storage::{self, Storage};
use crate::kubernetes::spec::words::{Role, Secret, role};

/// How many characters of a Cinder id a virtio-blk serial holds (magnum-node.md 1.4).
const SERIAL: usize = 20;

/// Label of the file system on the ephemeral disk that Nova or Ironic made.
const EPHEMERAL: &str = "ephemeral0";

/// How long before the wait condition's end the agent gives up, so that a timeout is never the first news.
const MARGIN: Duration = Duration::from_mins(1);

impl NodeSpec {
    /// Checks the parameters against each other.
    ///
    /// # Errors
    /// Every mistake at once.
    pub fn from_parameters(parameters: &Parameters) -> Result<Self, Vec<Mistake>> {
        let mut mistakes = Vec::new();
        let role = role(parameters);
        let volumes = volumes(parameters, role, &mut mistakes);
        let address = address(parameters, role, &mut mistakes);
        refuse_unsupported(parameters, role, &mut mistakes);
        let cluster = ["CLUSTER_UUID", "BAY_UUID"].iter().find_map(|name| parameters.get(name)).or(parameters.stack());
        if cluster.is_none() && (volumes.runtime.is_some() || volumes.etcd.is_some()) {
            mistakes.push(Mistake::general(
                "CLUSTER_UUID",
                "is missing",
                "a volume is marked with its cluster's id: CLUSTER_UUID, BAY_UUID or Heat's deploy_stack_id",
                "give CLUSTER_UUID",
            ));
        }
        let mut warnings = Vec::new();
        let kubernetes = ClusterSpec::from_parameters(parameters, role, address, &mut mistakes, &mut warnings);
        let engine = storage::engine(kubernetes.as_ref().map(|cluster| cluster.runtime.kind));
        let storage = Storage::from_parameters(parameters, engine, volumes.runtime.as_ref(), &mut mistakes);
        if let Some(cluster) = &kubernetes {
            crate::kubernetes::add_ons::check(cluster, &mut mistakes, &mut warnings);
        }
        if !mistakes.is_empty() {
            return Err(mistakes);
        }
        let timeout = Duration::from_secs(parameters.number("WAIT_TIMEOUT").unwrap_or(6000).into());
        let text = |name: &str| parameters.get(name).map(str::to_owned);
        Ok(Self {
            role,
            name: text("INSTANCE_NAME"),
            address,
            cluster: cluster.unwrap_or_default().to_owned(),
            kube_version: text("KUBE_TAG"),
            kubernetes,
            warnings,
            storage,
            runtime_volume: volumes.runtime,
            etcd_volume: volumes.etcd,
            etcd_discovery: text("ETCD_DISCOVERY_URL").filter(|_| role == Role::Master).map(|text| Secret::new(&text)),
            cgroup_driver: text("CGROUP_DRIVER"),
            insecure_registry: text("INSECURE_REGISTRY_URL"),
            proxy: proxy(parameters),
            wait_handle: parameters.wait_handle(),
            timeout,
            // A very short timeout keeps half of itself rather than nothing.
            deadline: timeout.saturating_sub(MARGIN).max(timeout / 2),
            preflight: match parameters.get("PREFLIGHT") {
                Some("refuse") => Preflight::Refuse,
                Some("off") => Preflight::Off,
                _ => Preflight::Warn,
            },
            repair: parameters.get("DRIFT") == Some("repair"),
            drain: parameters.is_true("DRAIN"),
        })
    }
}

struct Volumes {
    runtime: Option<VolumeSpec>,
    etcd: Option<VolumeSpec>,
}

fn volumes(parameters: &Parameters, role: Role, mistakes: &mut Vec<Mistake>) -> Volumes {
    let adopt = parameters.get("VOLUME_ADOPT");
    let spec = |disk: DiskName, format: &str| {
        let format = match parameters.get(format) {
            Some("if-no-signature") => FormatPolicy::IfNoSignature,
            Some("never") => FormatPolicy::Never,
            _ => FormatPolicy::IfBlank,
        };
        VolumeSpec { adopt: adopt.filter(|name| names(name, &disk)).map(str::to_owned), disk, format }
    };
    let cinder = |name: &str, size: &str| {
        parameters.get(name).filter(|_| parameters.number(size) != Some(0)).map(|id| DiskName::Cinder(id.to_owned()))
    };
    let volumes = (cinder("DOCKER_VOLUME", "DOCKER_VOLUME_SIZE"), cinder("ETCD_VOLUME", "ETCD_VOLUME_SIZE"));
    if let (Some(one), Some(other)) = &volumes
        && one.as_str().get(..SERIAL) == other.as_str().get(..SERIAL)
    {
        mistakes.push(Mistake::general(
            "ETCD_VOLUME",
            "names the same disk as DOCKER_VOLUME",
            "a disk is identified by the first 20 characters of its Cinder id, and holds one store",
            "give two volumes",
        ));
    }
    if (volumes.0.is_some() || volumes.1.is_some()) && !parameters.is_true("ENABLE_CINDER") {
        mistakes.push(unsupported(
            "ENABLE_CINDER",
            "false together with a volume",
            "volumes are provided by Cinder",
            "set it to true, or set DOCKER_DISK instead of the volume",
        ));
    }
    let disk = own_disk(parameters, volumes.0.is_some(), mistakes);
    let runtime = volumes.0.or(disk).map(|disk| spec(disk, "DOCKER_VOLUME_FORMAT"));
    let etcd = volumes.1.map(|disk| spec(disk, "ETCD_VOLUME_FORMAT"));
    if etcd.is_some() && role == Role::Minion {
        mistakes.push(Mistake::general(
            "ETCD_VOLUME",
            "is given to a worker",
            "only masters run etcd",
            "remove it, or set ROLE to master",
        ));
    }
    let adopted = [&runtime, &etcd].into_iter().flatten().any(|volume| volume.adopt.is_some());
    if adopt.is_some() && !adopted {
        mistakes.push(Mistake::general(
            "VOLUME_ADOPT",
            "names none of this node's volumes",
            "the first 20 characters of the id in DOCKER_VOLUME or ETCD_VOLUME, or the whole id; DOCKER_DISK exactly as set",
            "correct or remove it",
        ));
    }
    Volumes { runtime, etcd }
}

/// `DOCKER_DISK`: what stands for the runtime's volume where Cinder gives none.
fn own_disk(parameters: &Parameters, has_volume: bool, mistakes: &mut Vec<Mistake>) -> Option<DiskName> {
    let name = parameters.get("DOCKER_DISK")?;
    if has_volume {
        mistakes.push(Mistake::general(
            "DOCKER_DISK",
            "is given together with DOCKER_VOLUME",
            "the runtime has one store",
            "remove one of them",
        ));
    }
    if !DiskName::is_plain(name) || name.starts_with('.') {
        mistakes.push(Mistake::general(
            "DOCKER_DISK",
            "is not the name of a link in /dev/disk/by-id",
            "a disk is identified by a stable name: ephemeral0, or the name of its link there without the directory",
            "`ls -l /dev/disk/by-id`",
        ));
    }
    // The label that Nova and Ironic give it (magnum-node.md 1.4).
    Some(if name == EPHEMERAL { DiskName::Label(name.to_owned()) } else { DiskName::Link(name.to_owned()) })
}

/// Whether a name as an operator copies it from `lsblk`, Cinder or a refusal means the disk.
fn names(name: &str, disk: &DiskName) -> bool {
    match disk {
        DiskName::Cinder(id) => name.len() >= SERIAL && id.starts_with(name),
        DiskName::Link(_) | DiskName::Label(_) => name == disk.as_str(),
    }
}

fn address(parameters: &Parameters, role: Role, mistakes: &mut Vec<Mistake>) -> Option<IpAddr> {
    let address: Option<IpAddr> = parameters.get("KUBE_NODE_IP").and_then(|text| text.parse().ok());
    let reason = "the node's own fixed address, by which others reach it";
    match address {
        None if role == Role::Master => {
            mistakes.push(Mistake::general("KUBE_NODE_IP", "is missing", reason, "give the fixed address of the port"));
        }
        // etcd would tell its peers an address at which they reach themselves.
        Some(ip) => {
            if let Some(problem) = not_a_host_address(ip) {
                mistakes.push(Mistake::general("KUBE_NODE_IP", problem, reason, "give the fixed address of the port"));
            }
        }
        None => {}
    }
    address
}

fn refuse_unsupported(parameters: &Parameters, role: Role, mistakes: &mut Vec<Mistake>) {
    let bare = parameters.get("KUBE_TAG").is_none();
    if bare && role == Role::Master && !parameters.is_true("TLS_DISABLED") {
        mistakes.push(unsupported("TLS_DISABLED", "false on a master", "etcd is set up without TLS", "set TLS_DISABLED to True"));
    }
    if role == Role::Master
        && parameters.number("MASTER_INDEX") != Some(0)
        && ["ETCD_DISCOVERY_URL", "ETCD_INITIAL_CLUSTER"].iter().all(|name| parameters.get(name).is_none())
    {
        mistakes.push(unsupported(
            "MASTER_INDEX",
            "an additional master without ETCD_DISCOVERY_URL",
            "without discovery each master forms its own etcd cluster",
            "give ETCD_DISCOVERY_URL, or use one master",
        ));
    }
    for (name, supported, rule) in [
        ("CONTAINER_RUNTIME", &["host-docker", "docker"][..], "without KUBE_TAG the runtime is the image's docker"),
        ("CERTIFICATES", &["none"], "without KUBE_TAG no certificates are needed"),
    ] {
        if let Some(value) = parameters.get(name).filter(|_| bare)
            && !supported.contains(&value)
        {
            mistakes.push(unsupported(name, value, rule, &format!("set {name} to {}", supported.join(" or "))));
        }
    }
}

fn unsupported(name: &str, what: &str, rule: &str, remedy: &str) -> Mistake {
    Mistake::general(name, format!("this version does not support: {what}"), rule, remedy)
}

/// The parameter that names the network of pods where PODS_NETWORK_CIDR does not.
pub(super) fn pods_parameter(parameters: &Parameters) -> &'static str {
    if parameters.get("NETWORK_DRIVER") == Some("calico") { "CALICO_IPV4POOL" } else { "FLANNEL_NETWORK_CIDR" }
}

/// `NO_PROXY` gains what a node must reach directly, whatever the template forgot (magnum-node.md 7.5 no. 69).
fn proxy(parameters: &Parameters) -> Option<Proxy> {
    let text = |name: &str| parameters.get(name).map(str::to_owned);
    let (http, https) = (text("HTTP_PROXY").map(|text| Secret::new(&text)), text("HTTPS_PROXY").map(|text| Secret::new(&text)));
    if http.is_none() && https.is_none() {
        return None;
    }
    let mut none: Vec<String> = parameters.items("NO_PROXY").map(str::to_owned).collect();
    let domain = parameters.get("DNS_CLUSTER_DOMAIN").map(|domain| format!(".{domain}"));
    // 169.254.169.254 is the metadata service of every OpenStack cloud.
    let fixed = ["127.0.0.1", "localhost", "169.254.169.254", ".svc"].into_iter().map(str::to_owned);
    let own = [
        "KUBE_NODE_IP",
        "KUBE_MASTER_IP",
        "KUBE_API_PRIVATE_ADDRESS",
        "KUBE_API_PUBLIC_ADDRESS",
        "ETCD_SERVER_IP",
        "ETCD_LB_VIP",
    ];
    let pods = text("PODS_NETWORK_CIDR").or(text(pods_parameter(parameters)));
    // Only where it was given: the default is Magnum's, not this cloud's.
    let nodes = parameters.given("CLUSTER_SUBNET_CIDR").map(str::to_owned);
    for item in
        fixed.chain(domain).chain(own.into_iter().filter_map(text)).chain(nodes).chain(pods).chain(text("PORTAL_NETWORK_CIDR"))
    {
        if !none.contains(&item) {
            none.push(item);
        }
    }
    Some(Proxy { http, https, none })
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, json};

    use super::*;
    use crate::metadata::Deployment;

    const ONE: &str = "7c1f4d0e-93a2-4b86-8d55-2f60c6b1a9e4";
    const TWO: &str = "e41b7f92-0c6d-4f0a-b1d7-58a2f3c9d610";

    fn spec(changes: &[(&str, &str)]) -> Result<NodeSpec, Vec<Mistake>> {
        let mut config = Map::new();
        for (name, value) in
            [("KUBE_NODE_IP", "192.0.2.11"), ("TLS_DISABLED", "True"), ("CLUSTER_UUID", "c0ffee00-1111-4222-8333-444455556666")]
                .iter()
                .chain(changes)
        {
            config.insert((*name).to_owned(), json!(value));
        }
        let deployment = Deployment::parse(&json!({"id": "i", "config": config})).unwrap().unwrap();
        NodeSpec::from_parameters(&Parameters::from_deployment(&deployment)?)
    }

    #[test]
    fn pods_are_reached_without_the_proxy_by_the_network_that_their_driver_has() {
        for (changes, pods) in [
            (&[][..], "10.100.0.0/16"),
            (&[("FLANNEL_NETWORK_CIDR", "10.5.0.0/16")], "10.5.0.0/16"),
            (&[("NETWORK_DRIVER", "calico"), ("CALICO_IPV4POOL", "10.6.0.0/16")], "10.6.0.0/16"),
            (&[("NETWORK_DRIVER", "calico"), ("PODS_NETWORK_CIDR", "10.7.0.0/16")], "10.7.0.0/16"),
        ] {
            let spec = spec(&[&[("HTTP_PROXY", "http://192.0.2.9:3128")], changes].concat()).unwrap();
            let none = spec.proxy.unwrap().none;
            let networks: Vec<_> = none.iter().filter(|item| item.starts_with("10.") && *item != "10.254.0.0/16").collect();
            assert_eq!(networks, [pods], "{changes:?}: {none:?}");
        }
    }

    #[test]
    fn the_role_follows_the_first_parameter_that_decides() {
        for (changes, role) in [
            (&[][..], Role::Master),
            (&[("ROLE", "control-plane")], Role::Master),
            (&[("ROLE", "worker"), ("NODEGROUP_ROLE", "master")], Role::Minion),
            (&[("ROLE", "Master"), ("KUBE_MASTER_IP", "192.0.2.5")], Role::Master),
            (&[("NODEGROUP_ROLE", "gpu")], Role::Minion),
            (&[("KUBE_MASTER_IP", "192.0.2.5"), ("TLS_DISABLED", "False"), ("KUBE_NODE_IP", "")], Role::Minion),
        ] {
            assert_eq!(spec(changes).unwrap().role, role, "{changes:?}");
        }
    }

    #[test]
    fn contradictions_and_what_is_not_supported_are_mistakes() {
        for (changes, expected) in [
            (&[("KUBE_NODE_IP", "")][..], &["KUBE_NODE_IP: is missing"][..]),
            (&[("KUBE_NODE_IP", "127.0.0.1")], &["KUBE_NODE_IP: is 127.0.0.1, one of the loopback addresses"]),
            (
                &[("TLS_DISABLED", "")],
                &[
                    "TLS_DISABLED: this version does not support: false on a master; rule: etcd is set up without TLS; remedy: set TLS_DISABLED to True",
                ],
            ),
            (
                &[("DOCKER_STORAGE_DRIVER", "devicemapper"), ("CONTAINER_RUNTIME", "containerd")],
                &["CONTAINER_RUNTIME: ", "DOCKER_VOLUME: is missing"],
            ),
            (&[("CERTIFICATES", "magnum")], &["CERTIFICATES: "]),
            (&[("MASTER_INDEX", "1")], &["MASTER_INDEX: "]),
            (&[("ETCD_DISCOVERY_URL", "discovery")], &["ETCD_DISCOVERY_URL: \"***\" is not an http URL"]),
            (&[("DOCKER_VOLUME", ONE), ("ETCD_VOLUME", ONE)], &["ETCD_VOLUME: names the same disk"]),
            (&[("DOCKER_VOLUME", "vdb")], &["DOCKER_VOLUME: \"vdb\" is not an OpenStack id"]),
            (&[("DOCKER_VOLUME", ONE), ("CLUSTER_UUID", "")], &["CLUSTER_UUID: is missing"]),
            (&[("DOCKER_VOLUME", ONE), ("ENABLE_CINDER", "False")], &["ENABLE_CINDER: "]),
            (&[("VOLUME_ADOPT", "7c1f4d0e-93a2-4b86-8")], &["VOLUME_ADOPT: names none of this node's volumes"]),
            (
                &[("DOCKER_DISK", "ephemeral0"), ("VOLUME_ADOPT", "ephemeral")],
                &["VOLUME_ADOPT: names none of this node's volumes"],
            ),
            (&[("DOCKER_DISK", "ephemeral0"), ("DOCKER_VOLUME", ONE)], &["DOCKER_DISK: is given together"]),
            (&[("DOCKER_DISK", "/dev/vdb")], &["DOCKER_DISK: is not the name of a link"]),
            (&[("DOCKER_DISK", "..")], &["DOCKER_DISK: is not the name of a link"]),
            (&[("DOCKER_DISK", "ephemeral0"), ("CLUSTER_UUID", "")], &["CLUSTER_UUID: is missing"]),
            (&[("DOCKER_VOLUME", ONE), ("VOLUME_ADOPT", "7c1f")], &["VOLUME_ADOPT: names none of this node's volumes"]),
            (&[("ETCD_VOLUME", ONE), ("ROLE", "worker")], &["ETCD_VOLUME: is given to a worker"]),
            (
                &[("WAIT_TIMEOUT", "0")],
                &["WAIT_TIMEOUT: \"0\" is not a number in the range; rule: a whole number from 1 to 43200"],
            ),
        ] {
            let found: Vec<_> = spec(changes).unwrap_err().iter().map(ToString::to_string).collect();
            assert_eq!(found.len(), expected.len(), "{changes:?}: {found:?}");
            for (found, expected) in found.iter().zip(expected) {
                assert!(found.starts_with(expected), "{changes:?}: {found}");
            }
        }
    }

    #[test]
    fn volumes_are_there_or_not() {
        let both = spec(&[
            ("DOCKER_VOLUME", ONE),
            ("ETCD_VOLUME", TWO),
            ("ETCD_VOLUME_FORMAT", "never"),
            ("VOLUME_ADOPT", "e41b7f92-0c6d-4f0a-b"),
        ])
        .unwrap();
        assert_eq!(
            both.runtime_volume,
            Some(VolumeSpec { disk: DiskName::Cinder(ONE.into()), format: FormatPolicy::IfBlank, adopt: None })
        );
        assert_eq!(
            both.etcd_volume,
            Some(VolumeSpec {
                disk: DiskName::Cinder(TWO.into()),
                format: FormatPolicy::Never,
                adopt: Some("e41b7f92-0c6d-4f0a-b".into())
            })
        );
        assert_eq!(spec(&[("DOCKER_VOLUME", ONE), ("DOCKER_VOLUME_SIZE", "0")]).unwrap().runtime_volume, None);
        assert_eq!(spec(&[("DOCKER_VOLUME_SIZE", "25")]).unwrap().runtime_volume, None);
        let bare = [("DOCKER_DISK", "ephemeral0"), ("ENABLE_CINDER", "False"), ("VOLUME_ADOPT", "ephemeral0")];
        let ephemeral = |adopt: Option<&str>| {
            Some(VolumeSpec {
                disk: DiskName::Label("ephemeral0".into()),
                format: FormatPolicy::IfBlank,
                adopt: adopt.map(str::to_owned),
            })
        };
        assert_eq!(spec(&bare).unwrap().runtime_volume, ephemeral(Some("ephemeral0")));
        assert_eq!(spec(&bare[..2]).unwrap().runtime_volume, ephemeral(None));
        let linked = spec(&[("DOCKER_DISK", "wwn-0x5000c500a1b2c3d4"), ("DOCKER_VOLUME", ONE), ("DOCKER_VOLUME_SIZE", "0")]);
        assert_eq!(linked.unwrap().runtime_volume.unwrap().disk, DiskName::Link("wwn-0x5000c500a1b2c3d4".into()));
    }

    #[test]
    fn the_agent_gives_up_before_heat_does() {
        for (timeout, deadline) in [("", 5940), ("43200", 43_140), ("90", 45), ("1", 0)] {
            assert_eq!(spec(&[("WAIT_TIMEOUT", timeout)]).unwrap().deadline.as_secs(), deadline, "{timeout}");
        }
    }

    #[test]
    fn the_wait_handle_is_passed_on_as_it_was_given() {
        let url = "http://192.0.2.9:8000/v1/waitcondition/a?b=c";
        let alarm = r#"{"alarm_url": "http://192.0.2.9/waitcondition/a"}"#;
        for (handle, value) in [(url, json!(url)), (alarm, json!({"alarm_url": "http://192.0.2.9/waitcondition/a"}))] {
            assert_eq!(spec(&[("WAIT_HANDLE", handle)]).unwrap().wait_handle, Some(value));
        }
        assert_eq!(spec(&[("WAIT_HANDLE", "{}")]).unwrap().wait_handle, None);
        let endpoint = ("WAIT_HANDLE_ENDPOINT", "https://h:8004/v1/p/stacks/s/u/resources/r/signal");
        let by_token = spec(&[endpoint, ("WAIT_HANDLE_TOKEN", "5f0e")]).unwrap().wait_handle;
        assert_eq!(by_token, Some(json!({"endpoint": endpoint.1, "token": "5f0e"})));
    }

    #[test]
    fn a_node_always_reaches_its_own_networks_without_the_proxy() {
        let proxy = spec(&[("HTTPS_PROXY", "http://proxy.example.org:3128"), ("NO_PROXY", ".example.org,localhost")])
            .unwrap()
            .proxy
            .unwrap();
        assert_eq!(
            proxy.none.join(","),
            ".example.org,localhost,127.0.0.1,169.254.169.254,.svc,.cluster.local,192.0.2.11,10.100.0.0/16,10.254.0.0/16"
        );
        assert_eq!(spec(&[("NO_PROXY", "a")]).unwrap().proxy, None);
    }

    #[test]
    fn a_name_is_given_or_taken_from_the_host() {
        assert_eq!(spec(&[("INSTANCE_NAME", "bay-0")]).unwrap().node_name("x"), "bay-0");
        assert_eq!(spec(&[]).unwrap().node_name("Bay-Master-0.novalocal"), "bay-master-0");
    }
}
