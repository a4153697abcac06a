"""What happens to a cluster of Kubernetes' real programs in its life: manifests come, parameters change, nodes go down and come up."""
import json
import time

import pytest
from lib.common import wait_for
from lib.pod_network import together
from lib.real_kubernetes import NET, RealCluster, RealNode, pod

NODES = ("m1", "w1", "w2")
MANIFEST = "/etc/kubernetes/manifests/static.json"
# One parameter of each component: on which node, what it changes, and which unit's restart that takes.
CHANGES = [("w1", {"KUBELET_OPTIONS": "--max-pods=77"}, {"kubelet"}), ("w2", {"KUBELET_OPTIONS": "--max-pods=78"}, {"kubelet"}),
           ("w1", {"KUBEPROXY_OPTIONS": "--conntrack-max-per-core=0 --conntrack-min=0 --v=1"}, {"kube-proxy"}),
           ("m1", {"KUBEAPI_OPTIONS": "--event-ttl=2h"}, {"kube-apiserver"}), ("m1", {"KUBECONTROLLER_OPTIONS": "--v=1"}, {"kube-controller-manager"}),
           ("m1", {"KUBESCHEDULER_OPTIONS": "--v=1"}, {"kube-scheduler"})]


@pytest.fixture(scope="module")
def life(shared) -> RealCluster:
    """With a pod on each node that nothing of this ends."""
    shared.apply(*(pod(f"life-{n}", n, "netexec", "--http-port=8080") for n in NODES))
    for n in NODES:
        shared.address_of(f"life-{n}")
    return shared


def works(cluster: RealCluster):
    """Every node is Ready and has nothing to do; pods are made and reach each other."""
    cluster.is_ready(*NODES)
    for n in NODES:
        wait_for(cluster.nodes[n].is_quiet, NET, f"nothing to do on {n}")
    name = f"new-{time.monotonic_ns()}"
    cluster.apply(*(pod(f"{name}-{n}", n, "netexec", "--http-port=8080") for n in NODES))
    addresses = {n: cluster.address_of(f"{name}-{n}") for n in NODES}
    for n in NODES:
        for other, address in addresses.items():
            assert cluster.asked_by(addresses[n], address, 8080) == {f"{name}-{other}"}, (n, other)
    cluster.kubectl("delete", "pod", *(f"{name}-{n}" for n in NODES))


def restarts(cluster: RealCluster) -> dict[str, int]:
    """Of the pods that nothing ends."""
    return {n: cluster.get("pod", f"life-{n}")["status"]["containerStatuses"][0]["restartCount"] for n in NODES}


def changed(node: RealNode, **parameters):
    """A stack update that succeeds."""
    node.update(**parameters)
    node.succeeds()


@pytest.mark.parametrize("name", NODES)
def test_a_manifest_on_a_node_is_a_pod(cluster, name):
    node = cluster.nodes[name]
    one = pod("static", name, "netexec", "--http-port=8080")
    # At once, as the kubelet reads what it sees.
    node.host.write("/run/static.json", json.dumps(one), 0o600)
    node.host.exec("mv", "/run/static.json", MANIFEST)
    assert cluster.address_of(f"static-{name}")
    node.host.remove(MANIFEST)
    wait_for(lambda: f"static-{name}" not in cluster.kubectl("get", "pods", "-o", "name"), NET, "the end of the static pod", every=1)


def test_a_parameter_of_each_component_restarts_it_alone_and_no_pod(life):
    before = restarts(life)
    for name, parameters, units in CHANGES:
        node = life.nodes[name]
        started, since = node.started(), time.monotonic()
        changed(node, **parameters)
        print(f"{name} {parameters}: {time.monotonic() - since:.1f} s")
        restarted = node.restarted(started)
        # Without an API server for 10 s these two are no leaders any more, and end: systemd starts them again.
        also = {"kube-controller-manager", "kube-scheduler"} if "kube-apiserver" in units else set()
        assert units <= restarted <= units | also, (name, parameters, restarted)
    capacity = {n["metadata"]["name"]: n["status"]["capacity"]["pods"] for n in life.get("nodes")["items"]}
    assert capacity == {"m1": "110", "w1": "77", "w2": "78"}
    works(life)
    assert restarts(life) == before


def test_all_nodes_come_back_from_a_reboot(life):
    for order in (NODES, NODES[::-1]):
        since = time.monotonic()
        together(*(lambda n=n: life.nodes[n].host.cut() for n in NODES))
        for name in order:
            life.nodes[name].host.boot()
        works(life)
        print(f"power cut, then {order}: right after {time.monotonic() - since:.0f} s")
        for n in NODES:
            assert not life.nodes[n].host.journal(boot=0, HNA_EVENT="NodeFailed"), n
            life.address_of(f"life-{n}")
