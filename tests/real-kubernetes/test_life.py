"""What happens to a cluster of Kubernetes' real programs in its life: manifests come, parameters change, nodes go down and come up."""
import json
import time

import pytest
from lib.common import wait_for
from lib.pod_network import together
from lib.real_kubernetes import ADDRESSES, NET, RealCluster, RealNode, pod

NODES = ("m1", "w1", "w2")
MANIFEST = "/etc/kubernetes/manifests/static.json"
# One parameter of each component, by node: what is changed, and which unit's restart that takes.
CHANGES = {"m1": [({"KUBEAPI_OPTIONS": "--event-ttl=2h"}, {"kube-apiserver"}), ({"KUBECONTROLLER_OPTIONS": "--v=1"}, {"kube-controller-manager"}),
                  ({"KUBESCHEDULER_OPTIONS": "--v=1"}, {"kube-scheduler"})],
           "w1": [({"KUBELET_OPTIONS": "--max-pods=77"}, {"kubelet"}),
                  ({"KUBEPROXY_OPTIONS": "--conntrack-max-per-core=0 --conntrack-min=0 --v=1"}, {"kube-proxy"})],
           "w2": [({"KUBELET_OPTIONS": "--max-pods=78"}, {"kubelet"})]}


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
    # At once, as the kubelet reads what it sees: by a rename on one file system.
    node.host.write("/etc/kubernetes/static.json", json.dumps(one), 0o600)
    node.host.exec("mv", "/etc/kubernetes/static.json", MANIFEST)
    assert cluster.address_of(f"static-{name}")
    node.host.remove(MANIFEST)
    wait_for(lambda: f"static-{name}" not in cluster.kubectl("get", "pods", "-o", "name"), NET, "the end of the static pod", every=1)


def test_a_parameter_of_each_component_restarts_it_alone_and_no_pod(life):
    before = restarts(life)

    def change(name: str):
        node = life.nodes[name]
        for parameters, units in CHANGES[name]:
            started, since = node.started(), time.monotonic()
            changed(node, **parameters)
            print(f"{name} {parameters}: {time.monotonic() - since:.1f} s")
            restarted = node.restarted(started)
            # Without an API server for 10 s these two are no leaders any more, and end: systemd starts them again.
            also = {"kube-controller-manager", "kube-scheduler"} if "kube-apiserver" in units else set()
            assert units <= restarted <= units | also, (name, parameters, restarted)
    together(*(lambda n=n: change(n) for n in NODES))
    capacity = {n["metadata"]["name"]: n["status"]["capacity"]["pods"] for n in life.get("nodes")["items"]}
    assert capacity == {"m1": "110", "w1": "77", "w2": "78"}
    works(life)
    assert restarts(life) == before


@pytest.mark.longer
def test_a_worker_is_drained_before_its_runtime_restarts(life):
    """By the real API's evictions, disruption budgets and NodeRestriction, as the kubelet."""
    node, before = life.nodes["w1"], restarts(life)
    template = pod("web", "w1", "netexec", "--http-port=8080", labels={"app": "web"})
    # One on each worker, and no third place for either.
    apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
        {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "web"}}}]}}
    spec = {key: value for key, value in template["spec"].items() if key not in ("nodeSelector", "tolerations")} | {"affinity": apart}
    web = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": {
        "replicas": 2, "selector": {"matchLabels": {"app": "web"}}, "template": {"metadata": {"labels": {"app": "web"}}, "spec": spec}}}

    def budget(least: int) -> dict:
        return {"apiVersion": "policy/v1beta1", "kind": "PodDisruptionBudget", "metadata": {"name": "web"},
                "spec": {"minAvailable": least, "selector": {"matchLabels": {"app": "web"}}}}

    def placed() -> dict[str, str]:
        """Which pod is ready on which worker."""
        found = life.get("pods", "-l", "app=web")["items"]
        ready = [one for one in found if any(c["type"] == "Ready" and c["status"] == "True" for c in one["status"].get("conditions", []))]
        return {one["spec"]["nodeName"]: one["metadata"]["uid"] for one in ready if "deletionTimestamp" not in one["metadata"]}

    def both() -> dict[str, str]:
        assert set(found := placed()) == {"w1", "w2"}, found
        return found

    def told(event: str) -> list[str]:
        return [f'{e["MESSAGE"]} {e.get("HNA_CAUSE", "")}' for e in node.host.journal(HNA_EVENT=event)]
    life.apply(web, budget(1))
    first = wait_for(both, NET, "a pod on each worker", every=1)
    wait_for(lambda: life.get("pdb", "web")["status"].get("disruptionsAllowed") == 1, NET, "a budget that is counted", every=1)
    started = node.started()
    changed(node, DRAIN=True, HTTP_PROXY="http://192.0.2.9:3128", WAIT_TIMEOUT=240)
    assert "containerd" in node.restarted(started)

    def lines() -> list[str]:
        assert len(found := told("NodeDrained")) == 2, (found, told("DrainFailed"))
        return found
    # The journal may be a moment behind the signal.
    drained, again = wait_for(lines, NET, "both lines", every=1)
    assert "drained the node, as its container runtime is to be restarted" in drained and "takes pods again" in again
    second = wait_for(both, NET, "a pod on each worker again", every=1)
    assert second["w1"] != first["w1"] and second["w2"] == first["w2"]
    assert told("DrainFailed") == []
    # A budget that allows nothing is respected and named, and the update goes on without it.
    life.apply(budget(2))
    wait_for(lambda: life.get("pdb", "web")["status"].get("disruptionsAllowed") == 0, NET, "a budget that allows nothing", every=1)
    changed(node, HTTP_PROXY="http://192.0.2.9:3129")
    [warning] = told("DrainFailed")
    assert "1 pods are left on the node" in warning and "default/web-" in warning and "disruption budget" in warning, warning
    assert wait_for(both, NET, "the pods as they were", every=1) == second
    life.kubectl("delete", "deployment/web", "pdb/web")
    changed(node, HTTP_PROXY=None, DRAIN=None, WAIT_TIMEOUT=600)
    works(life)
    assert restarts(life) == before, "what no controller makes anew is not evicted"


@pytest.mark.longer
def test_options_that_kill_the_kubelet_are_refused_or_heard_of_in_its_own_words(life):
    node, label, gate = life.nodes["w1"], "--node-labels=node-role.kubernetes.io/ingress=", "--feature-gates=NoSuchGate=true"
    started, before, options = node.started(), restarts(life), node.inputs.get("KUBELET_OPTIONS")
    said = node.host.exec("kubelet", label, check=False)
    assert said.returncode != 0 and "node-role.kubernetes.io/ingress" in said.stderr, said.stderr
    node.update(KUBELET_OPTIONS=label)
    cause = node.result()
    assert "KUBELET_OPTIONS" in cause and "node-role.kubernetes.io" in cause, cause
    assert node.started() == started
    # What only the program itself knows to be wrong: why it dies again and again reaches Heat.
    node.update(KUBELET_OPTIONS=gate, WAIT_TIMEOUT=180)
    cause = node.result()
    assert "unrecognized feature gate: NoSuchGate" in cause and "goroutine" not in cause, cause
    assert "NoSuchGate" in node.host.exec("heat-node-agent", "explain", check=False).stdout
    changed(node, KUBELET_OPTIONS=options, WAIT_TIMEOUT=600)
    works(life)
    assert restarts(life) == before


@pytest.mark.longer
def test_a_worker_s_conditions_stand_beside_its_kubelet_s_own(life):
    """By the strategic merge of the real API, as a kubelet that NodeRestriction keeps to its own node."""
    host, drop_in, kind = life.nodes["w1"].host, "/etc/heat-node-agent/agent.toml.d/conditions.toml", "HeatNodeComponentProblem"

    def conditions(node: str = "w1") -> dict[str, dict]:
        return {c["type"]: c for c in life.get("node", node)["status"]["conditions"]}

    def is_so(status: str) -> dict:
        return wait_for(lambda: (c := conditions().get(kind)) and c["status"] == status and c, NET, f"{kind} {status}", every=1)
    before = set(conditions())
    host.sh(f"mkdir -p {drop_in.rsplit('/', 1)[0]}")
    host.write(drop_in, "[report]\nnode_conditions = true\n")
    host.exec("systemctl", "restart", "heat-node-agent.service")
    fine = is_so("False")
    host.exec("systemctl", "stop", "kube-proxy.service")
    bad = is_so("True")
    assert "kube-proxy" in bad["message"] and bad["lastTransitionTime"] > fine["lastTransitionTime"]
    # The kubelet's own next write keeps ours, and ours kept its. It writes every five minutes, and at its start.
    beat = conditions()["Ready"]["lastHeartbeatTime"]
    host.exec("systemctl", "restart", "kubelet.service")
    wait_for(lambda: (ready := conditions()["Ready"])["lastHeartbeatTime"] > beat and ready["status"] == "True", NET, "the kubelet's next write", every=1)
    assert set(conditions()) >= before | {kind}
    host.exec("systemctl", "start", "kube-proxy.service")
    is_so("False")
    # Another node's status is none of its business.
    words = ("-X", "PATCH", "-H", "Content-Type: application/strategic-merge-patch+json", "-d", json.dumps({"status": {"conditions": [bad]}}))
    certs = "/etc/kubernetes/certs"
    done = host.exec("curl", "-sS", "-o", "/dev/null", "-w", "%{http_code}", "--cacert", f"{certs}/ca.crt", "--cert", f"{certs}/kubelet.crt", "--key",
                     f"{certs}/kubelet.key", *words, f"https://{ADDRESSES['m1']}:6443/api/v1/nodes/w2/status")
    assert done.stdout == "403" and kind not in conditions("w2")
    # Off, and taken away by an administrator.
    host.remove(drop_in)
    host.exec("systemctl", "restart", "heat-node-agent.service")
    ours = [{"type": c, "$patch": "delete"} for c in conditions() if c.startswith("HeatNode")]
    body = json.dumps({"status": {"conditions": ours}})
    life.nodes["m1"].host.exec("curl", "-sSf", "--cacert", f"{certs}/ca.crt", "--cert", f"{certs}/admin.crt", "--key", f"{certs}/admin.key", *words[:4], "-d",
                               body, f"https://{ADDRESSES['m1']}:6443/api/v1/nodes/w1/status")
    assert set(conditions()) == before


@pytest.mark.longer
def test_all_nodes_come_back_from_a_reboot(life):
    for order in (NODES, NODES[::-1]):
        since = time.monotonic()
        life.power_cycle(*order)
        works(life)
        print(f"power cut, then {order}: right after {time.monotonic() - since:.0f} s")
        for n in NODES:
            assert not life.nodes[n].host.journal(boot=0, HNA_EVENT="NodeFailed"), n
            life.address_of(f"life-{n}")
