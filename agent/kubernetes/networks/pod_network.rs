//! What a node's own part of the pod network is: the description that `heat-node-agent pod-network` makes true at each boot, how
//! the runtime gets the network, and the gates that measure it.
//!
//! Docker's bridge gets its address from a file of that unit, so that a boot without the daemon works. docker is not bound to the
//! unit by `Requires=`: systemd would carry a restart of flanneld, which ends whenever its lease is gone, on to docker and its
//! containers. In its place docker does not start without the file.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use ipnet::Ipv4Net;
use serde_json::{Value, json};

use super::flannel;
use super::flannel::FLANNEL_GATE;
use crate::desired::{Dependency, Desired, File, Gate, GateProbe, Peer, Peers, PodRoutes, Unit};
use crate::kubernetes::parameters::mistake::Mistake;
use crate::kubernetes::parts::daemon::{deadline, wait_for_space};
use crate::kubernetes::parts::directories::add_directory;
use crate::kubernetes::parts::docker;
use crate::kubernetes::parts::runtime_units;
use crate::kubernetes::spec::cluster::pods;
use crate::kubernetes::spec::cluster::{ClusterSpec, MachineFacts, NetworkDriver};
use crate::kubernetes::spec::node::NodeSpec;
use crate::network::{CNI_NETWORK, DOCKER_OPTIONS, DOCKER_VARIABLE, POD_NETWORK, POD_NETWORK_UNIT};

/// The agent's folder.
pub(in crate::kubernetes) const FOLDER: &str = "/etc/heat-node-agent";
/// docker's own bridge.
const DOCKER_BRIDGE: &str = "docker0";
/// The bridge that flannel's CNI plugin makes.
const CNI_BRIDGE: &str = "cni0";

/// What the driver static-routes makes of this node.
struct Routes {
    address: Ipv4Net,
    own: Peer,
    peers: Vec<Peer>,
}

fn routes(spec: &NodeSpec, cluster: &ClusterSpec) -> Option<Routes> {
    let routes = Some(&cluster.networks.routes).filter(|_| cluster.networks.driver == NetworkDriver::StaticRoutes)?;
    let own = routes.own(spec.address)?;
    let address = Ipv4Net::new(own.subnet.hosts().next()?, own.subnet.prefix_len()).ok()?;
    // Its own subnet is on the bridge: a route by way of the node itself would take it away from there (seed-systems.md 6b).
    let peers = routes.nodes.iter().copied().filter(|peer| peer.node != own.node).collect();
    Some(Routes { address, own, peers })
}

/// Its part of the node.
pub(in crate::kubernetes) fn part(spec: &NodeSpec, cluster: &ClusterSpec, facts: &MachineFacts) -> Desired {
    let mut part = Desired::default();
    add_network(spec, cluster, facts, &mut part);
    if facts.made.pod_network && part.file(POD_NETWORK).is_none() {
        // Else the unit would wait at each boot for flannel's subnet, and the runtime for the unit; or set routes of an earlier
        // network.
        add_unit(&json!({"nothing": {}}), None, &mut part);
    }
    part
}

fn add_network(spec: &NodeSpec, cluster: &ClusterSpec, facts: &MachineFacts, part: &mut Desired) {
    let Some(network) = pods(cluster) else { return };
    let shown = network.to_string();
    if cluster.has_flannel_unit() {
        let on_docker = !cluster.uses_cni();
        let content = if on_docker {
            json!({"docker-bridge": {"network": shown, "bridge": DOCKER_BRIDGE}})
        } else {
            json!({"cni": {"network": shown}})
        };
        add_unit(&content, Some(flannel::UNIT), part);
        if on_docker {
            part.gates.push(Gate {
                name: "pod bridge".to_owned(),
                unit: Some(docker::UNIT.to_owned()),
                probe: GateProbe::FlannelSubnet { network, bridge: Some(DOCKER_BRIDGE.to_owned()) },
                consecutive: 1,
                deadline: Some(deadline::STORE),
                needs: BTreeSet::from([Dependency::Unit(docker::UNIT.to_owned())]),
                remedy: format!(
                    "`ip address show {DOCKER_BRIDGE}`; `cat {DOCKER_OPTIONS}`; `systemctl cat {}`: its command must have \
                     ${DOCKER_VARIABLE}",
                    docker::UNIT
                ),
            });
        } else {
            add_cni(&json!({"type": "flannel", "delegate": {"hairpinMode": true, "isDefaultGateway": true}}), part);
        }
        if let Some(store) = flannel::store(spec, cluster, facts).filter(|_| cluster.networks.flannel.backend == "host-gw") {
            let bridge = if on_docker { DOCKER_BRIDGE } else { CNI_BRIDGE };
            add_route_gate(spec, cluster, network, Peers::Leases(store), bridge, part);
        }
    }
    if let Some(routes) = routes(spec, cluster) {
        let bridge = cluster.networks.routes.bridge.as_str();
        let peers: Vec<Value> = routes.peers.iter().map(|peer| json!({"subnet": peer.subnet, "node": peer.node})).collect();
        let content = json!({"routes": {
            "network": shown, "bridge": bridge, "address": routes.address.to_string(), "peers": peers,
        }});
        add_unit(&content, None, part);
        if cluster.uses_cni() {
            let plugin = json!({
                "type": "bridge", "bridge": bridge, "isGateway": true, "hairpinMode": true,
                // It would masquerade to pods of other nodes too; the unit of the pod network has a rule for what leaves the network.
                "ipMasq": false,
                "ipam": {
                    "type": "host-local", "subnet": routes.own.subnet.to_string(), "gateway": routes.address.addr().to_string(),
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            });
            add_cni(&plugin, part);
        }
        add_route_gate(spec, cluster, network, Peers::Given(routes.peers), bridge, part);
    }
}

/// An interface of this machine that has the name of the pods' bridge and is not the agent's: its addresses are somebody's, and
/// are not touched.
pub(in crate::kubernetes) fn in_the_way(spec: &NodeSpec, cluster: &ClusterSpec, facts: &MachineFacts) -> Option<Mistake> {
    let own = routes(spec, cluster)?.own.subnet;
    let bridge = cluster.networks.routes.bridge.as_str();
    let there = facts.interfaces.iter().find(|interface| interface.name == bridge)?;
    let problem = if !there.is_bridge {
        format!("names {bridge}, an existing interface that is not a bridge")
    } else if there.is_ours || there.networks == [own] || (there.networks.is_empty() && !there.has_ports) {
        return None;
    } else if let Some(network) = there.networks.iter().find(|network| **network != own) {
        format!("names {bridge}, an existing bridge with an address of {network} that the agent did not create")
    } else {
        format!("names {bridge}, an existing bridge with interfaces that the agent did not create")
    };
    let rule = "the pod bridge must be the agent's, or have no address and no interfaces, or already be exactly as required";
    Some(Mistake::general("POD_BRIDGE", problem, rule, "give another name, or remove the interface"))
}

/// The description and its unit, which runs again when what it makes true changes.
fn add_unit(content: &Value, after: Option<&str>, part: &mut Desired) {
    add_directory(FOLDER, part);
    part.files.push(File::public(POD_NETWORK, format!("{content:#}\n")));
    let mut restart_on = BTreeSet::from([POD_NETWORK.to_owned()]);
    let mut needs = BTreeSet::new();
    if let Some(unit) = after {
        let folder = format!("/etc/systemd/system/{POD_NETWORK_UNIT}.d");
        let drop_in = format!("{folder}/50-heat-node-agent.conf");
        add_directory(&folder, part);
        let text = format!(
            "# Made by heat-node-agent.\n[Unit]\n# It has its subnet once it reports that it is up.\nWants={unit}\nAfter={unit}\n"
        );
        part.files.push(File::public(drop_in.clone(), text));
        restart_on.extend([drop_in, flannel::NETWORK.to_owned()]);
        needs.insert(Dependency::Gate(FLANNEL_GATE.to_owned()));
    }
    part.units.push(Unit { name: POD_NETWORK_UNIT.to_owned(), enable: true, restart_on, needs, applies_files: false });
}

/// A network of CNI with one plugin that makes the bridge. Runtimes read it when it changes; the first one in their folder
/// counts.
///
/// 0.3.1 is the first version with lists of plugins and the last one that plugins of every release take.
fn add_cni(plugin: &Value, part: &mut Desired) {
    let network = json!({
        "name": "pods", "cniVersion": "0.3.1",
        "plugins": [plugin, {"type": "portmap", "capabilities": {"portMappings": true}}],
    });
    part.files.push(File::public(CNI_NETWORK, format!("{network:#}\n")));
}

fn add_route_gate(spec: &NodeSpec, cluster: &ClusterSpec, network: Ipv4Net, peers: Peers, bridge: &str, part: &mut Desired) {
    // docker makes its bridge when it starts; where it is the unit's or a plugin's, packets are not before the unit ran.
    let before = if cluster.uses_cni() { POD_NETWORK_UNIT } else { runtime_units::unit_of_kind(cluster) };
    part.gates.push(Gate {
        name: "pod routes".to_owned(),
        unit: None,
        probe: GateProbe::PodRoutes(PodRoutes { network, peers, address: own_address(spec), bridge: bridge.to_owned() }),
        consecutive: 1,
        deadline: None,
        needs: [before, POD_NETWORK_UNIT].map(|unit| Dependency::Unit(unit.to_owned())).into(),
        remedy: "`ip route`; `heat-node-agent explain`".to_owned(),
    });
}

fn own_address(spec: &NodeSpec) -> Option<Ipv4Addr> {
    match spec.address {
        Some(IpAddr::V4(address)) => Some(address),
        _ => None,
    }
}

/// What the pod network adds to docker's own unit.
#[derive(Default)]
pub(in crate::kubernetes) struct OfDocker {
    /// Lines of the unit section.
    pub(in crate::kubernetes) unit_lines: String,
    /// Lines of the service section.
    pub(in crate::kubernetes) service_lines: String,
    /// What it waits for.
    pub(in crate::kubernetes) needs: BTreeSet<Dependency>,
    /// Further files that it is restarted for.
    pub(in crate::kubernetes) restart_on: Vec<String>,
    /// The bridge of daemon.json, where it is not docker's own.
    pub(in crate::kubernetes) bridge: Option<String>,
    /// Whether pods are on docker's bridge.
    pub(in crate::kubernetes) has_pods: bool,
}

/// docker's part, where pods are on its bridge.
pub(in crate::kubernetes) fn of_docker(spec: &NodeSpec, facts: &MachineFacts) -> OfDocker {
    let Some(cluster) = spec.kubernetes.as_ref().filter(|cluster| !cluster.uses_cni()) else { return OfDocker::default() };
    let unit_lines = format!("Wants={POD_NETWORK_UNIT}\nAfter={POD_NETWORK_UNIT}\n");
    let needs = BTreeSet::from([Dependency::Unit(POD_NETWORK_UNIT.to_owned())]);
    if cluster.has_flannel_unit() && pods(cluster).is_some() {
        return OfDocker {
            // Whatever it lacks its options for, it is tried again: the limit of the image's unit (three in a minute, by Debian)
            // would leave it down after a boot.
            unit_lines: format!("{unit_lines}StartLimitIntervalSec=0\n"),
            service_lines: format!(
                "# Without its subnet it does not start: its pods would conflict with other nodes' pods.\n\
                 EnvironmentFile={DOCKER_OPTIONS}\n{}Restart=always\nRestartSec=5\n{}",
                wait_for_space(docker::STORE),
                command(facts.docker_command.as_deref())
            ),
            needs,
            restart_on: vec![POD_NETWORK.to_owned(), flannel::NETWORK.to_owned()],
            bridge: None,
            has_pods: true,
        };
    }
    if let Some(routes) = routes(spec, cluster) {
        let bridge = cluster.networks.routes.bridge.clone();
        // Another address of its own is a restart; another peer, which the description lists, is none.
        let unit_lines = format!("# {bridge} has {}.\n{unit_lines}", routes.address);
        return OfDocker { unit_lines, needs, bridge: Some(bridge), has_pods: true, ..OfDocker::default() };
    }
    OfDocker::default()
}

/// docker's command line with the variable of the bridge at its end, unless the image's unit expands it already.
fn command(of_image: Option<&str>) -> String {
    match of_image {
        Some(command)
            if command.contains(&format!("${DOCKER_VARIABLE}")) || command.contains(&format!("${{{DOCKER_VARIABLE}}}")) =>
        {
            String::new()
        }
        // Of an image that is not looked at, what every docker since 1.12 takes; it finds containerd by itself.
        other => format!("ExecStart=\nExecStart={} ${DOCKER_VARIABLE}\n", other.unwrap_or("dockerd -H fd://")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubernetes::fixtures::{arguments, content, file, gate, node, spec, value};
    use crate::kubernetes::render;
    use crate::network::{Interface, PodNetworkFile, PreviousNetwork};

    const DOCKER: &str = "/etc/systemd/system/docker.service.d/50-heat-node-agent.conf";
    const CNI: &str = "/etc/cni/net.d/10-heat-node-agent.conflist";
    const ROUTES: &[(&str, &str)] = &[
        ("NETWORK_DRIVER", "static-routes"),
        ("NODE_SUBNETS", "192.0.2.11=10.100.1.0/24,192.0.2.12=10.100.2.0/24,192.0.2.13=10.100.3.0/24"),
    ];

    fn with(base: &[(&str, &str)], changes: &[(&str, &str)]) -> Desired {
        node(&base.iter().chain(changes).copied().collect::<Vec<_>>())
    }

    fn described(desired: &Desired) -> Option<PodNetworkFile> {
        file(desired, POD_NETWORK).map(|file| crate::budgets::json::typed(&file.content).unwrap())
    }

    fn unit<'a>(desired: &'a Desired, name: &str) -> &'a Unit {
        desired.units.iter().find(|unit| unit.name == name).unwrap_or_else(|| panic!("{name}"))
    }

    fn read(desired: &Desired, path: &str) -> Value {
        crate::budgets::json::typed(content(desired, path)).unwrap()
    }

    fn is_start_blocked(desired: &Desired, name: &str) -> bool {
        let drop_in = file(desired, &format!("/etc/systemd/system/{name}.d/50-heat-node-agent.conf"));
        desired.units.iter().all(|unit| unit.name != name || (!unit.enable && unit.applies_files))
            && drop_in.is_some_and(|file| file.content.contains("\nConditionPathExists=!/\n"))
    }

    #[test]
    fn an_interface_of_somebody_elses_is_not_taken_for_the_bridge() {
        let bridge = |name: &str, is_ours, has_ports, networks: &[&str]| Interface {
            name: name.to_owned(),
            is_bridge: true,
            is_ours,
            has_ports,
            networks: networks.iter().map(|text| text.parse().unwrap()).collect(),
        };
        let card = Interface { is_bridge: false, ..bridge("kbr0", false, false, &["192.0.2.0/24"]) };
        let changes = ROUTES.to_vec();
        for (interface, expected) in [
            (bridge("br0", false, true, &["192.0.2.0/24"]), None),
            (bridge("kbr0", true, true, &["10.100.9.0/24"]), None),
            (bridge("kbr0", false, true, &["10.100.1.0/24"]), None),
            (bridge("kbr0", false, false, &[]), None),
            (
                bridge("kbr0", false, true, &["192.0.2.0/24"]),
                Some("names kbr0, an existing bridge with an address of 192.0.2.0/24 that the agent did not create"),
            ),
            (
                bridge("kbr0", false, true, &[]),
                Some("names kbr0, an existing bridge with interfaces that the agent did not create"),
            ),
            (card, Some("names kbr0, an existing interface that is not a bridge")),
        ] {
            let facts = MachineFacts { interfaces: vec![interface], ..MachineFacts::default() };
            let found = crate::kubernetes::lacking(&spec(&changes), &facts);
            assert_eq!(found.first().map(|mistake| mistake.problem.as_str()), expected, "{facts:?}");
            // Where nothing is asked of the bridge, it is nobody's business.
            assert!(crate::kubernetes::lacking(&spec(&[]), &facts).is_empty());
        }
    }

    /// flanneld that ran for earlier parameters does not go on beside another network, and what the unit made goes.
    #[test]
    fn an_earlier_network_is_removed_and_disabled() {
        const FLANNELD: &str = "flanneld.service";
        let made = MachineFacts {
            made: PreviousNetwork { pod_network: true, flannel: true, ..PreviousNetwork::default() },
            ..MachineFacts::default()
        };
        for (changes, off, off_after) in [
            (&[("KUBE_TAG", "v1.9.3")][..], false, false),
            (&[("KUBE_TAG", "v1.10.3")], true, true),
            (&[("KUBE_TAG", "v1.9.3"), ("FLANNEL_RUNS_AS", "add-on")], true, true),
            (&[("NETWORK_DRIVER", "calico")], true, true),
            (&[("NETWORK_DRIVER", "calico"), ("KUBE_TAG", "v1.9.3")], true, true),
            // A network of the operator's own may be a flanneld of his own.
            (&[("NETWORK_DRIVER", "none")], false, true),
        ] {
            let spec = spec(changes);
            let (first, after) = (render(&spec, &MachineFacts::default()).unwrap(), render(&spec, &made).unwrap());
            assert_eq!((is_start_blocked(&first, FLANNELD), is_start_blocked(&after, FLANNELD)), (off, off_after), "{changes:?}");
            let is_unit = spec.kubernetes.as_ref().unwrap().has_flannel_unit();
            assert_eq!(described(&first).is_some(), is_unit, "{changes:?}");
            assert_eq!(described(&after) == Some(PodNetworkFile::Nothing {}), !is_unit, "{changes:?}");
            let own = unit(&after, POD_NETWORK_UNIT);
            assert!(own.enable && own.restart_on.contains(POD_NETWORK), "{changes:?}");
        }
    }

    /// docker has flannel's subnet for its bridge, in the order flanneld, the unit, docker; what changes restarts those three.
    #[test]
    fn dockers_bridge_is_flannels_where_docker_makes_it() {
        for changes in [&[("KUBE_TAG", "v1.9.3")][..], &[("KUBE_TAG", "v1.20.3"), ("FLANNEL_RUNS_AS", "unit")]] {
            let desired = node(changes);
            let network = "10.100.0.0/16".parse().unwrap();
            assert_eq!(described(&desired), Some(PodNetworkFile::DockerBridge { network, bridge: "docker0".to_owned() }));
            let drop_in = content(&desired, DOCKER);
            for line in [
                "Wants=heat-node-pod-network.service\nAfter=heat-node-pod-network.service\n",
                "After=heat-node-pod-network.service\nStartLimitIntervalSec=0\n",
                "EnvironmentFile=/run/flannel/docker\nExecStartPre=/bin/sh -c 'while set -- $$(df -Pk /var/lib/docker ",
                "done'\nRestart=always\nRestartSec=5\nExecStart=\nExecStart=dockerd -H fd:// $DOCKER_NETWORK_OPTIONS\n",
            ] {
                assert!(drop_in.contains(line), "{line}: {drop_in}");
            }
            assert!(!drop_in.contains("Requires=heat-node-pod-network"), "a restart of flanneld would be docker's");
            let settings = read(&desired, "/etc/docker/daemon.json");
            assert!(settings.get("bridge").is_none() && settings.get("bip").is_none());
            let (flannel, docker) = ("/etc/sysconfig/flannel-network.json", unit(&desired, "docker.service"));
            let own = unit(&desired, POD_NETWORK_UNIT);
            assert!(own.enable && own.needs.contains(&Dependency::Gate("flannel".to_owned())));
            assert!(docker.needs.contains(&Dependency::Unit(POD_NETWORK_UNIT.to_owned())));
            for unit in [own, docker] {
                assert!(unit.restart_on.contains(flannel) && unit.restart_on.contains(POD_NETWORK), "{}", unit.name);
            }
            let of_unit = content(&desired, "/etc/systemd/system/heat-node-pod-network.service.d/50-heat-node-agent.conf");
            assert!(of_unit.contains("Wants=flanneld.service\nAfter=flanneld.service\n"));
            let restarted: Vec<_> = desired.units.iter().filter(|unit| unit.restart_on.contains(flannel)).collect();
            assert_eq!(restarted.len(), 3, "{restarted:?}");
            let bridge = gate(&desired, "pod bridge").unwrap();
            assert_eq!(bridge.probe, GateProbe::FlannelSubnet { network, bridge: Some("docker0".to_owned()) });
            // What docker waits for does not wait for docker.
            assert_eq!(gate(&desired, "flannel").unwrap().probe, GateProbe::FlannelSubnet { network, bridge: None });
            assert_eq!(file(&desired, CNI), None);
            assert_eq!(value(&arguments(&desired, "kubelet.service"), "network-plugin"), None);
        }
    }

    #[test]
    fn dockers_command_is_the_images_own() {
        for (of_image, expected) in [
            (
                Some("/usr/sbin/dockerd -H fd:// $DOCKER_OPTS"),
                "ExecStart=\nExecStart=/usr/sbin/dockerd -H fd:// $DOCKER_OPTS $DOCKER_NETWORK_OPTIONS\n",
            ),
            (Some("/usr/bin/dockerd-current $OPTIONS $DOCKER_NETWORK_OPTIONS"), ""),
            (Some("/usr/bin/dockerd ${DOCKER_NETWORK_OPTIONS}"), ""),
            (None, "ExecStart=\nExecStart=dockerd -H fd:// $DOCKER_NETWORK_OPTIONS\n"),
        ] {
            assert_eq!(command(of_image), expected);
            let facts = MachineFacts { docker_command: of_image.map(str::to_owned), ..MachineFacts::default() };
            let desired = render(&spec(&[("KUBE_TAG", "v1.9.3")]), &facts).unwrap();
            assert!(content(&desired, DOCKER).ends_with(&format!("Restart=always\nRestartSec=5\n{expected}")));
        }
    }

    #[test]
    fn a_cni_plugin_makes_the_bridge_elsewhere() {
        for runtime in ["containerd", "cri-o", "docker"] {
            let desired = node(&[
                ("KUBE_TAG", "v1.31.2"),
                ("FLANNEL_RUNS_AS", "unit"),
                ("CONTAINER_RUNTIME", runtime),
                ("CONTAINERD_VERSION", "1.7.20"),
            ]);
            let network = "10.100.0.0/16".parse().unwrap();
            assert_eq!(described(&desired), Some(PodNetworkFile::Cni { network }));
            let network = read(&desired, CNI);
            assert_eq!((&network["cniVersion"], &network["plugins"][0]["type"]), (&json!("0.3.1"), &json!("flannel")));
            assert_eq!(network["plugins"][1]["type"], "portmap");
            assert!(gate(&desired, "pod bridge").is_none());
            assert!(file(&desired, DOCKER).is_none_or(|file| !file.content.contains("DOCKER_NETWORK_OPTIONS")));
        }
        // An add-on brings its own.
        let desired = node(&[("KUBE_TAG", "v1.31.2"), ("CONTAINER_RUNTIME", "containerd"), ("CONTAINERD_VERSION", "1.7.20")]);
        assert_eq!((file(&desired, CNI), described(&desired)), (None, None));
        assert!(desired.units.iter().all(|unit| unit.name != POD_NETWORK_UNIT) && desired.flannel.is_none());
    }

    #[test]
    fn routes_are_measured_where_they_are_asked_for() {
        for (changes, bridge) in [
            (&[("KUBE_TAG", "v1.9.3")][..], Some("docker0")),
            (&[("KUBE_TAG", "v1.9.3"), ("CONTAINER_RUNTIME", "containerd")], Some("cni0")),
            (&[("KUBE_TAG", "v1.9.3"), ("FLANNEL_BACKEND", "vxlan")], None),
            (&[("KUBE_TAG", "v1.28.9")], None),
            (&[("NETWORK_DRIVER", "calico")], None),
            (&[("NETWORK_DRIVER", "none")], None),
        ] {
            let desired = node(changes);
            let found = gate(&desired, "pod routes").map(|gate| match &gate.probe {
                GateProbe::PodRoutes(routes) => {
                    assert_eq!(routes.peers, Peers::Leases(desired.flannel.clone().unwrap()));
                    assert_eq!(routes.address, Some("192.0.2.11".parse().unwrap()));
                    routes.bridge.as_str()
                }
                other => panic!("{other:?}"),
            });
            assert_eq!(found, bridge, "{changes:?}");
        }
    }

    /// seed-systems.md 6b: the bridge has the first address of the own subnet, and no route leads to the own subnet.
    #[test]
    fn static_routes_leave_the_own_subnet_out() {
        let peer = |subnet: &str, node: &str| Peer { subnet: subnet.parse().unwrap(), node: node.parse().unwrap() };
        let others = vec![peer("10.100.2.0/24", "192.0.2.12"), peer("10.100.3.0/24", "192.0.2.13")];
        for (changes, on_docker) in [
            (&[("KUBE_TAG", "v1.9.3")][..], true),
            (&[("KUBE_TAG", "v1.20.3")], true),
            (&[("KUBE_TAG", "v1.28.9"), ("CONTAINER_RUNTIME", "containerd")], false),
            (&[("KUBE_TAG", "v1.28.9")], false),
        ] {
            let desired = with(ROUTES, changes);
            let expected = PodNetworkFile::Routes {
                network: "10.100.0.0/16".parse().unwrap(),
                bridge: "kbr0".to_owned(),
                address: "10.100.1.1/24".parse().unwrap(),
                peers: others.clone(),
            };
            assert_eq!(described(&desired), Some(expected), "{changes:?}");
            match &gate(&desired, "pod routes").unwrap().probe {
                GateProbe::PodRoutes(routes) => assert_eq!(routes.peers, Peers::Given(others.clone())),
                other => panic!("{other:?}"),
            }
            assert_eq!(file(&desired, CNI).is_some(), !on_docker);
            if on_docker {
                assert_eq!(read(&desired, "/etc/docker/daemon.json")["bridge"], "kbr0");
                let drop_in = content(&desired, DOCKER);
                assert!(drop_in.contains("After=heat-node-pod-network.service\n") && !drop_in.contains("ExecStart"), "{drop_in}");
                // A further node is no reason to end the containers of all others; another bridge of its own is.
                let restarts = &unit(&desired, "docker.service").restart_on;
                assert!(!restarts.contains(POD_NETWORK) && restarts.contains(DOCKER), "{restarts:?}");
                assert!(drop_in.contains("# kbr0 has 10.100.1.1/24.\n"), "{drop_in}");
            } else {
                let plugin = &read(&desired, CNI)["plugins"][0];
                assert_eq!((&plugin["type"], &plugin["bridge"]), (&json!("bridge"), &json!("kbr0")));
                assert_eq!(
                    (&plugin["ipam"]["subnet"], &plugin["ipam"]["gateway"]),
                    (&json!("10.100.1.0/24"), &json!("10.100.1.1"))
                );
            }
            assert!(is_start_blocked(&desired, "flanneld.service"));
            let managed = content(&desired, "/etc/NetworkManager/conf.d/90-heat-node-agent.conf");
            assert!(managed.contains("unmanaged-devices=interface-name:kbr0;interface-name:veth*\n"), "{managed}");
            let words = arguments(&desired, "kube-controller-manager.service");
            assert_eq!(value(&words, "allocate-node-cidrs"), Some("false"));
        }
    }
}
