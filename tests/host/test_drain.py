"""A worker that is drained before its container runtime restarts (DRAIN=true): of real etcd and containerd, with stand-ins for Kubernetes'
programs, whose API lets a kubelet evict the pods of its own node alone."""
import json

from lib.cluster import Node, parameters
from lib.common import GATEWAY
from lib.node import UNIT
from lib.stand_ins import CONTROL

MASTER, WORKER = (GATEWAY.rsplit(".", 1)[0] + end for end in (".21", ".22"))
CERTS = "/etc/kubernetes/certs"
API = "https://127.0.0.1:6443/api/v1"
RECORD = "/var/lib/heat-node-agent/cordoned.json"
CONTAINERD = "containerd.service"


def ask(host, path: str, *words: str, body: dict | None = None, who: str = "admin") -> dict:
    """Of the master's API, on the master."""
    sent = ("-d", json.dumps(body)) if body else ()
    return json.loads(host.exec("curl", "-s", "--cacert", f"{CERTS}/ca.crt", "--cert", f"{CERTS}/{who}.crt", "--key", f"{CERTS}/{who}.key",
                                *words, *sent, f"{API}/{path}").stdout)


def make_pod(host, name: str, node: str = "w1", owner: str = "ReplicaSet"):
    owners = [{"apiVersion": "apps/v1", "kind": owner, "name": "o", "uid": "u", "controller": True}] if owner else []
    made = ask(host, "namespaces/default/pods", body={
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "ownerReferences": owners},
        "spec": {"nodeName": node, "containers": [{"name": "c", "image": "i"}]}})
    assert made["kind"] == "Pod", made


def pods(host) -> set[str]:
    return {pod["metadata"]["name"] for pod in ask(host, "pods")["items"]}


def is_cordoned(host) -> bool:
    return ask(host, "nodes/w1")["spec"].get("unschedulable", False)


def cordon(host, value: bool | None, who: str = "admin") -> dict:
    return ask(host, "nodes/w1", "-X", "PATCH", "-H", "content-type: application/merge-patch+json", body={"spec": {"unschedulable": value}}, who=who)


def told(host, event: str) -> list[str]:
    return [f'{e["MESSAGE"]}: {e.get("HNA_CAUSE", "")} {e.get("HNA_REMEDY", "")}' for e in host.journal(HNA_EVENT=event)]


def test_a_worker_is_drained_before_its_runtime_restarts_and_takes_pods_again(hosts, signal_server, magnum):
    given = magnum().parameters()
    master = Node(hosts("m1", ip=MASTER), signal_server(), parameters("master", "m1", MASTER, MASTER, **given)).up()
    worker = Node(hosts("w1", ip=WORKER), signal_server(port=18001),
                  parameters("worker", "w1", WORKER, MASTER, **given) | {"DRAIN": True, "WAIT_TIMEOUT": 120}).up()
    api, host = master.host, worker.host
    host.wait_for(lambda: ask(api, "nodes/w1")["kind"] == "Node", what="the worker in the API")
    assert told(host, "NodeDrained") == [], "nothing is drained where nothing runs yet"
    # --- pods that a controller makes anew go, more than one page of them; others stay ---
    for number in range(12):
        make_pod(api, f"web-{number}")
    make_pod(api, "daemon", owner="DaemonSet")
    make_pod(api, "bare", owner="")
    make_pod(api, "elsewhere", node="m1")
    kept = {"daemon", "bare", "elsewhere"}
    # What a kubelet must not do to another node.
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "web-0", "namespace": "default"}}
    refused = ask(api, "namespaces/default/pods/web-0/eviction", body=eviction, who="kubelet"), cordon(api, True, who="kubelet")
    assert [one["code"] for one in refused] == [403, 403], refused
    before = worker.started()
    worker.update(KUBELET_OPTIONS="--v=3")
    worker.succeeds()
    assert "containerd" not in worker.restarted(before) and told(host, "NodeDrained") == [] and len(pods(api)) == 15
    worker.update(HTTP_PROXY="http://192.0.2.9:3128")
    worker.succeeds()
    assert "containerd" in worker.restarted(before) and pods(api) == kept, pods(api)
    drained, again = told(host, "NodeDrained")
    assert "drained the node, as its container runtime is to be restarted" in drained and "takes pods again" in again
    when = host.journal(HNA_EVENT="NodeDrained")[0]["__MONOTONIC_TIMESTAMP"]
    assert int(when) < int(host.show(CONTAINERD, "ActiveEnterTimestampMonotonic")["ActiveEnterTimestampMonotonic"])
    assert not is_cordoned(api) and not host.exists(RECORD) and told(host, "DrainFailed") == []
    # --- a budget that allows nothing is respected, said, and holds up the update for a while only ---
    make_pod(api, "guarded")
    api.write(f"{CONTROL}/kube-apiserver", "no-disruptions")
    worker.update(HTTP_PROXY="http://192.0.2.9:3129")
    worker.succeeds()
    warning, = told(host, "DrainFailed")
    for words in ("1 pods are left on the node", "default/guarded: Cannot evict pod", "disruption budget", "kubectl drain w1 --ignore-daemonsets"):
        assert words in warning, warning
    assert pods(api) == kept | {"guarded"} and not is_cordoned(api) and not host.exists(RECORD)
    # --- an agent that is killed meanwhile goes on, and the node takes pods again ---
    worker.update(HTTP_PROXY="http://192.0.2.9:3130")
    host.wait_for(lambda: is_cordoned(api), what="a node that is kept free")
    assert host.exists(RECORD)
    host.exec("systemctl", "kill", "-s", "KILL", UNIT)
    worker.succeeds()
    host.wait_for(lambda: not is_cordoned(api) and not host.exists(RECORD), what="a node that takes pods")
    # --- whom somebody else keeps free stays so ---
    api.exec("rm", f"{CONTROL}/kube-apiserver")
    cordon(api, True)
    worker.update(HTTP_PROXY="http://192.0.2.9:3131")
    worker.succeeds()
    assert pods(api) == kept and is_cordoned(api) and not host.exists(RECORD)
    # --- so does whom the operator keeps free after they took the agent's cordon back ---
    cordon(api, None)
    host.sh("mkdir -p /etc/heat-node-agent/agent.toml.d; printf '[node]\\nrollback = false\\n' >/etc/heat-node-agent/agent.toml.d/50-test.toml")
    host.exec("systemctl", "restart", UNIT)
    host.sh(f"mkdir -p {CONTROL}; echo unhealthy >{CONTROL}/kubelet")
    worker.update(HTTP_PROXY="http://192.0.2.9:3132", KUBELET_OPTIONS="--v=4", WAIT_TIMEOUT=60)
    worker.result()
    assert is_cordoned(api) and "kubectl uncordon w1" in told(host, "DrainFailed")[-1]
    cordon(api, None)
    host.wait_for(lambda: not host.exists(RECORD), what="a cordon that is nobody's")
    cordon(api, True)
    host.exec("rm", f"{CONTROL}/kubelet")
    worker.update(HTTP_PROXY="http://192.0.2.9:3133", WAIT_TIMEOUT=120)
    worker.succeeds()
    assert is_cordoned(api) and not host.exists(RECORD)
