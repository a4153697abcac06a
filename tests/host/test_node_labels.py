"""Labels and taints of nodes that are registered: a master and a worker of real etcd and containerd, with stand-ins for Kubernetes' programs,
whose API lets a kubelet change its own node's labels, and neither its taints nor Kubernetes' own labels."""
from lib.cluster import Node, parameters
from lib.common import GATEWAY
from lib.failures import slack
from lib.node import signalled
from lib.node_objects import node, notes, patch

MASTER, WORKER = (GATEWAY.rsplit(".", 1)[0] + end for end in (".21", ".22"))
ROLES = {"node-role.kubernetes.io/control-plane": "", "node-role.kubernetes.io/master": ""}


def labels(host, name: str) -> dict[str, str]:
    """But for those that each kubelet gives its node."""
    return {k: v for k, v in node(host, name)["metadata"]["labels"].items() if not k.startswith(("kubernetes.io/", "beta.kubernetes.io/"))}


def taints(host, name: str) -> set[tuple]:
    own = "node-role.kubernetes.io/"
    return {(t["key"], t.get("value", ""), t["effect"]) for t in node(host, name)["spec"].get("taints", []) if not t["key"].startswith(own)}


def test_labels_and_taints_of_registered_nodes_follow_their_parameters(hosts, signal_server, magnum):
    own = {**magnum().parameters(), "NODE_LABELS": "rack=7,old=1", "NODE_TAINTS": "a=b:NoSchedule"}
    master = Node(hosts("m1", ip=MASTER), signal_server(), parameters("master", "m1", MASTER, MASTER, **own)).up()
    worker = Node(hosts("w1", ip=WORKER), signal_server(port=18001), parameters("worker", "w1", WORKER, MASTER, **own)).up()
    api = master.host
    before = {"m1": {**ROLES, "rack": "7", "old": "1"}, "w1": {"rack": "7", "old": "1"}}
    after = {"m1": {**ROLES, "rack": "8"}, "w1": {"rack": "8"}}
    for name, expected in before.items():
        assert (labels(api, name), taints(api, name)) == (expected, {("a", "b", "NoSchedule")}), node(api, name)
    assert notes(api, "w1") == {"heat-node-agent/labels": "rack,old"}
    assert worker.host.journal(HNA_EVENT="TaintsDiffer") == []
    # --- one changes, one goes, somebody else's stay ---
    theirs = [{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"}]
    for name in before:
        found = node(api, name)["spec"]["taints"]
        patch(api, name, {"metadata": {"labels": {"theirs": "1"}}, "spec": {"taints": [*found, *theirs]}})
    for one in (master, worker):
        one.update(NODE_LABELS="rack=8", NODE_TAINTS="gpu=:NoSchedule")
        one.succeeds()
    for name, expected in after.items():
        assert labels(api, name) == {**expected, "theirs": "1"}, node(api, name)
    unreachable = ("node.kubernetes.io/unreachable", "", "NoExecute")
    assert taints(api, "m1") == {("gpu", "", "NoSchedule"), unreachable} and theirs[0] in node(api, "m1")["spec"]["taints"]
    assert any(t["key"].startswith("node-role.") for t in node(api, "m1")["spec"]["taints"]), "the master's own stays"
    # --- a worker's taints are the operator's: that is said, on the node and to Heat ---
    assert taints(api, "w1") == {("a", "b", "NoSchedule"), unreachable}
    [said] = worker.host.journal(HNA_EVENT="TaintsDiffer")
    command = "`kubectl taint nodes w1 --overwrite gpu=:NoSchedule a:NoSchedule-`"
    assert said["MESSAGE"].startswith("node w1 stays without gpu:NoSchedule and with a:NoSchedule: ") and said["HNA_REMEDY"] == command, said
    assert command in signalled(worker.server, "node")["deploy_stderr"]
    assert master.host.journal(HNA_EVENT="TaintsDiffer") == []
    # --- one that was removed by hand comes back with the next deployment ---
    patch(api, "w1", {"metadata": {"labels": {"rack": None}}, "spec": {"taints": [{"key": "gpu", "effect": "NoSchedule"}, *theirs]}})
    worker.update(KUBELET_OPTIONS="--v=3")
    worker.succeeds()
    assert labels(api, "w1") == {"rack": "8", "theirs": "1"}
    assert len(worker.host.journal(HNA_EVENT="TaintsDiffer")) == 1, "the operator has run it"
    # --- an update that fails after that is rolled back, and the labels with it ---
    master.update(NODE_LABELS="rack=9,new=1", NODE_TAINTS="new=:NoSchedule", KUBESCHEDULER_OPTIONS="--no-such-flag=1",
                  WAIT_TIMEOUT=60 * min(slack(), 2))
    assert "rolled back: generation 2 is in place again" in master.result(), master.result()
    assert labels(api, "m1") == {**after["m1"], "theirs": "1"}
    assert taints(api, "m1") == {("gpu", "", "NoSchedule"), unreachable}
    # --- the last of them goes, and nothing of the agent's stays ---
    worker.update(NODE_LABELS=None, NODE_TAINTS=None)
    worker.succeeds()
    assert (labels(api, "w1"), notes(api, "w1")) == ({"theirs": "1"}, {})
