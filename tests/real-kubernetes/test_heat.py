"""The cluster of Kubernetes' real programs from a real Heat: each node is a server of one stack."""
import itertools
import json
import time

import pytest
from conftest import HOSTS
from lib.common import wait_for
from lib.node import UNIT
from lib.pod_network import together
from lib.real_kubernetes import NET, RealCluster, RealNode, cluster_in, install, pod, service

pytestmark = pytest.mark.longer
TEMPLATE = "real_cluster"
NODES = {"m1": {}, "w1": {}, "w2": {"CONTAINER_RUNTIME": "docker"}}


class HeatNode(RealNode):
    """Its deployments are of a stack."""

    def prepare(self):
        install(self.host, self.runtime)
        self.host.install_agent()
        self.cluster.heat.hand_over(self.host, self.cluster.stack, f"occ_{self.name}")
        self.host.exec("systemctl", "enable", "--now", UNIT)


class HeatCluster(RealCluster):
    """Its nodes are the servers of one stack."""

    def __init__(self, heat, stack: str, *given):
        super().__init__(*given)
        self.heat, self.stack = heat, stack
        self.booted = []

    def node(self, name: str, host, inputs: dict) -> HeatNode:
        self.booted.append(host)
        return HeatNode(self, host, None, inputs)


@pytest.fixture
def cluster(programs, heat, stack_name, tmp_path, request):
    with cluster_in(tmp_path, lambda *given: HeatCluster(heat, stack_name, *given)) as made:
        request.node.stash[HOSTS] = made.booted
        yield made


def test_a_stack_brings_up_a_cluster_and_changes_it(cluster):
    heat, stack, since = cluster.heat, cluster.stack, time.monotonic()
    inputs = {name: cluster.inputs_of(name, **more) for name, more in NODES.items()}
    heat.create(stack, TEMPLATE, inputs=inputs)
    together(*(lambda n=n, m=more: cluster.boot(n, **m).prepare() for n, more in NODES.items()))
    heat.wait(stack, seconds=1800)
    print(f"CREATE_COMPLETE after {time.monotonic() - since:.0f} s")
    out = heat.outputs(stack)
    assert out["names"] == list(NODES) and out["versions"] == [f"v{cluster.version}"] * 3, out
    assert set(json.loads(out["wait_data"])) == set(NODES)
    cluster.is_ready(*NODES)
    runtimes = {node["metadata"]["name"]: node["status"]["nodeInfo"]["containerRuntimeVersion"].split(":")[0] for node in cluster.get("nodes")["items"]}
    assert runtimes == {"m1": "containerd", "w1": "containerd", "w2": "docker"}

    together(*(node.load_images for node in cluster.nodes.values()))
    cluster.apply(*(pod(f"web-{n}", n, "netexec", "--http-port=8080") for n in NODES), *(service(f"web-{n}", {"name": f"web-{n}"}, 8080) for n in NODES))
    pods = {n: cluster.address_of(f"web-{n}") for n in NODES}
    services = {n: cluster.get("service", f"web-{n}")["spec"]["clusterIP"] for n in NODES}

    def reach_each_other():
        for one, other in itertools.permutations(NODES, 2):
            wait_for(lambda n=one, o=other: cluster.asked_by(pods[n], services[o], 8080) == {f"web-{o}"}, NET, f"the service of {other} from a pod of {one}")
    reach_each_other()

    # A stack update that changes one component of one node.
    started, since = {n: node.started() for n, node in cluster.nodes.items()}, time.monotonic()
    inputs["w1"]["KUBELET_OPTIONS"] = "--max-pods=77"
    heat.update(stack, TEMPLATE, inputs=inputs)
    heat.wait(stack, "UPDATE_COMPLETE")
    print(f"UPDATE_COMPLETE after {time.monotonic() - since:.0f} s")
    assert {n: node.restarted(started[n]) for n, node in cluster.nodes.items()} == {"m1": set(), "w1": {"kubelet"}, "w2": set()}
    cluster.is_ready(*NODES)
    assert {n["metadata"]["name"]: n["status"]["capacity"]["pods"] for n in cluster.get("nodes")["items"]} == {"m1": "110", "w1": "77", "w2": "110"}
    for name, node in cluster.nodes.items():
        wait_for(node.is_quiet, NET, f"nothing to do on {name}")
    reach_each_other()
    out = heat.outputs(stack)
    assert out["names"] == list(NODES) and out["versions"] == [f"v{cluster.version}"] * 3, out
