"""The templates of examples/heat by a real Nova, Neutron, Cinder and Glance: what they make of them, and what they refuse.

Nobody boots these servers (test_servers.py does); the nodes' deployments are answered in their name."""
import ipaddress
import json

import pytest

from lib.cloud import EXAMPLES
from lib.common import run
from lib.heat import inputs
from lib.hosts import agent_binary

CLUSTER = EXAMPLES / "kubecluster.yaml"
PODS = "10.100.0.0/16"


@pytest.fixture(scope="module")
def ca(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ca") / "ca"
    run(agent_binary(), "certificates", "new-ca", "--out", folder)
    return folder / "parameters.yaml"


# environment, parameters besides it, masters, minions, volumes of a master, of a minion
STACKS = [
    ("minimal", {}, 1, 1, ["etcd"], []),
    ("single-node", {}, 1, 0, ["docker", "etcd"], []),
    ("legacy", {}, 1, 1, ["etcd"], []),
    ("air-gapped", {}, 1, 1, ["etcd"], []),
    ("own-network", {}, 3, 2, ["etcd"], []),
    # There is no Octavia here.
    ("ha", {"api_balancer": "haproxy", "floating_ips": "masters"}, 3, 3, ["docker", "etcd"], ["docker"]),
]


@pytest.mark.parametrize("name, given, masters, minions, of_master, of_minion", STACKS, ids=[of[0] for of in STACKS])
def test_a_stack_becomes_servers_ports_and_volumes_and_leaves_nothing(cloud, ca, stack_name, name, given, masters, minions, of_master, of_minion):
    before = cloud.everything()
    cloud.create(stack_name, CLUSTER, EXAMPLES / f"environments/{name}.yaml", *([] if name == "legacy" else [ca]), **given)
    nodes = {f"kube-master-{i}" for i in range(masters)} | {f"kube-minion-{i}" for i in range(minions)}
    assert set(cloud.ends(stack_name, "CREATE_COMPLETE")) == nodes

    servers, ports, volumes, groups = (cloud.named(kind) for kind in ("servers", "ports", "volumes", "security_groups"))
    assert {node: servers[node]["status"] for node in servers} == dict.fromkeys(nodes, "ACTIVE")
    told = {node: inputs(metadata["deployments"][0]) for node, metadata in cloud.servers(stack_name).items()}
    subnet = next(of for of in cloud.kept("subnets") if of["id"] == ports["kube-master-0"]["fixed_ips"][0]["subnet_id"])
    floating = {of["port_id"]: of["floating_ip_address"] for of in cloud.kept("floatingips")}
    for node in nodes:
        server, port, role = servers[node], ports[node], node.split("-")[1]
        # What the node was told before there was a server is what the server has.
        assert (port["device_id"], port["binding:host_id"], port["status"]) == (server["id"], server["OS-EXT-SRV-ATTR:host"], "ACTIVE")
        [address] = [ip["ip_address"] for ip in port["fixed_ips"]]
        assert told[node]["KUBE_NODE_IP"] == address and ipaddress.ip_address(address) in ipaddress.ip_network(subnet["cidr"])
        assert told[node]["KUBE_NODE_PUBLIC_IP"] == floating.get(port["id"], address)
        assert {ip["addr"] for net in server["addresses"].values() for ip in net} == {address, told[node]["KUBE_NODE_PUBLIC_IP"]}
        assert [pair["ip_address"] for pair in port["allowed_address_pairs"]] == [PODS if name == "legacy" else of_its_own(node)]
        assert set(port["security_groups"]) == {groups[f"kube-{role}s"]["id"], groups["kube-pods"]["id"]}
        expected = of_master if role == "master" else of_minion
        attached = {volume["volumeId"] for volume in cloud.attachments(server["id"])}
        assert attached == {volumes[f"{node}-{use}"]["id"] for use in expected}
        for use in expected:
            volume = volumes[f"{node}-{use}"]
            assert volume["status"] == "in-use" and [of["server_id"] for of in volume["attachments"]] == [server["id"]]
            assert (told[node][f"{use.upper()}_VOLUME"], str(told[node][f"{use.upper()}_VOLUME_SIZE"])) == (volume["id"], str(volume["size"]))
    assert len(floating) == (0 if name in ("air-gapped", "own-network", "legacy") else masters)
    assert subnet["cidr"] == told["kube-master-0"]["CLUSTER_SUBNET_CIDR"]
    if masters == 3 and name == "ha":
        assert len({servers[f"kube-master-{i}"]["OS-EXT-SRV-ATTR:host"] for i in range(3)}) == 3
    out = cloud.heat.outputs(stack_name)
    assert out["masters"] == {str(i): told[f"kube-master-{i}"]["KUBE_NODE_IP"] for i in range(masters)}
    public = told["kube-master-0"]["KUBE_NODE_PUBLIC_IP"]
    assert out["api_address"] == (f"http://{public}:8080" if name == "legacy" else f"https://{public}:6443")

    cloud.heat.delete(stack_name, seconds=cloud.patience)
    assert cloud.everything() == before


def test_a_network_that_another_project_shares_has_no_pods_of_its_own(cloud, ca, stack_name):
    """Neutron's policy lets nobody but a network's owner give its ports address pairs; where packets of pods are encapsulated none are needed."""
    shared = {"network": "shared", "subnet": "shared", "subnet_cidr": "198.51.100.0/24"}
    cloud.create(stack_name, CLUSTER, EXAMPLES / "environments/own-network.yaml", ca, masters=1, minions=1, **shared)
    assert cloud.ends(stack_name, "CREATE_FAILED") == []
    why = json.dumps(cloud.heat.resources(stack_name))
    assert "create_port: allowed_address_pairs" in why and "disallowed by policy" in why
    cloud.heat.delete(stack_name, seconds=cloud.patience)
    encapsulated = {"network_driver": "calico", "calico_ipv4pool_ipip": "Always"}
    cloud.create(stack_name, CLUSTER, EXAMPLES / "environments/own-network.yaml", ca, masters=1, minions=1, **shared, **encapsulated)
    assert len(cloud.ends(stack_name, "CREATE_COMPLETE")) == 2
    ports = cloud.named("ports")
    assert [ports[node]["allowed_address_pairs"] for node in ("kube-master-0", "kube-minion-0")] == [[], []]


def of_its_own(node: str) -> str:
    role, index = node.removeprefix("kube-").split("-")
    return f"10.100.{int(index) + (16 if role == 'minion' else 0)}.0/24"


def test_servers_are_rebuilt_and_replaced_with_their_ports_and_volumes(cloud, ca, stack_name, tmp_path):
    """The operations of docs/heat-templates.md at which Nova could refuse: a port or a volume that the server before still has."""
    minimal = EXAMPLES / "environments/minimal.yaml"
    (tmp_path / "image").write_text("no image")
    if "kubernetes-2" not in cloud.named("images"):
        cloud.client("image", "create", "--disk-format", "raw", "--container-format", "bare", "--file", "image", "kubernetes-2", folder=tmp_path)
    image = cloud.named("images")["kubernetes-2"]["id"]

    def update(**given) -> list[str]:
        cloud.update(stack_name, CLUSTER, minimal, ca, minion_docker_volume_size=1, **given)
        return cloud.ends(stack_name, "UPDATE_COMPLETE")

    def has(node: str) -> tuple:
        """Server, port and volumes of a node, each of which knows the others."""
        server, port = cloud.named("servers")[node], cloud.named("ports")[node]
        assert server["status"] == "ACTIVE" and port["device_id"] == server["id"], node
        attached = {volume["volumeId"] for volume in cloud.attachments(server["id"])}
        assert {of["id"]: of["attachments"][0]["server_id"] for of in cloud.kept("volumes") if of["id"] in attached} == dict.fromkeys(attached, server["id"])
        return server["id"], port["id"], attached
    cloud.create(stack_name, CLUSTER, minimal, ca, minion_docker_volume_size=1)
    cloud.ends(stack_name, "CREATE_COMPLETE")
    master, minion = has("kube-master-0"), has("kube-minion-0")
    # A minion is taken out, another takes its place, and one comes more. Its volume goes with it; its port, which nobody may delete before the server, stays.
    assert sorted(update(minions=2, minions_to_remove="0")) == ["kube-master-0", "kube-minion-1", "kube-minion-2"]
    assert set(cloud.named("servers")) == {"kube-master-0", "kube-minion-1", "kube-minion-2"}
    has("kube-minion-1"), has("kube-minion-2")
    assert cloud.named("ports")["kube-minion-0"]["device_id"] == "" and "kube-minion-0-docker" not in cloud.named("volumes")
    assert set(cloud.heat.outputs(stack_name)["minions"]) == {"1", "2"}
    assert {len(inputs(of["deployments"][0])["NODE_SUBNETS"].split(",")) for of in cloud.servers(stack_name).values()} == {3}
    # A master is replaced and has its address and its volumes again.
    cloud.unhealthy(stack_name, "kube-master-0")
    assert "kube-master-0" in update(minions=2, minions_to_remove="0")
    again = has("kube-master-0")
    assert again[0] != master[0] and again[1:] == master[1:]
    # A new image is a rebuild: the server stays, and so do its port and volumes.
    update(minions=2, minions_to_remove="0", image="kubernetes-2", kube_tag="v1.32.0")
    assert has("kube-master-0") == again
    assert {of["image"]["id"] for of in cloud.kept("servers")} == {image}
    assert minion[0] not in {of["id"] for of in cloud.kept("servers")}
