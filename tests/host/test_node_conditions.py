"""What the agent finds, as conditions of the node's own object: a master of real etcd and containerd, with stand-ins for Kubernetes' programs,
whose API merges a patch by its kind and lets a kubelet change its own node alone."""
import json
import time

from lib.cluster import Node, parameters
from lib.common import GATEWAY, wait_for
from lib.node import UNIT

MASTER = GATEWAY.rsplit(".", 1)[0] + ".21"
CERTS = "/etc/kubernetes/certs"
API = "https://127.0.0.1:6443/api/v1/nodes/m1"
COMPONENTS, DRIFT = "HeatNodeComponentProblem", "HeatNodeDriftProblem"
# That a master with a volume-less disk, no pod network of the agent's and certificates of Magnum's has.
TYPES = {COMPONENTS, DRIFT, "HeatNodeCertificateProblem", "HeatNodeDeploymentProblem", "HeatNodeOrchestrationProblem", "HeatNodeAgentProblem"}
SETTINGS = "polling_interval = 5\nmin_polling_interval = 5\n"
ON = SETTINGS + "[report]\nnode_conditions = true\n"
PAGE = "/etc/heat-node-agent/agent.toml"


def ask(host, *words: str, who: str = "kubelet", path: str = "") -> str:
    done = host.exec("curl", "-s", "--cacert", f"{CERTS}/ca.crt", "--cert", f"{CERTS}/{who}.crt", "--key", f"{CERTS}/{who}.key", *words,
                     f"{API}{path}", check=False)
    return done.stdout


def conditions(host) -> dict[str, dict]:
    """By type; nothing while the API is away or does not have the node."""
    try:
        node = json.loads(ask(host))
    except ValueError:
        return {}
    found = node["status"].get("conditions", []) if node["kind"] == "Node" else []
    assert len({c["type"] for c in found}) == len(found), found
    return {c["type"]: c for c in found}


def is_so(host, kind: str, status: str, seconds: float = 400) -> dict:
    return wait_for(lambda: (c := conditions(host).get(kind)) and c["status"] == status and c, seconds, f"{kind} {status}", every=1)


def said(host, code: str) -> list[str]:
    return [e["MESSAGE"] for e in host.journal(**{"_SYSTEMD_UNIT": UNIT}) if e.get("HNA_CODE") == code]


def test_conditions_of_the_node_say_what_the_agent_finds(hosts, signal_server, magnum):
    host, server = hosts("m1", ip=MASTER), signal_server()
    # Without a network a node is not Ready.
    host.sh("mkdir -p /etc/cni/net.d")
    host.write("/etc/cni/net.d/10-pods.conflist", '{"name": "pods", "cniVersion": "0.3.1", "plugins": [{"type": "loopback"}]}')
    Node(host, server, parameters("master", "m1", MASTER, MASTER, **magnum().parameters())).up(ON)

    def are_fine() -> dict[str, dict]:
        """All of them, and none is a problem any more: what was still on its way may have been one at first."""
        found = conditions(host)
        assert set(found) >= TYPES and {c["status"] for kind, c in found.items() if kind in TYPES} == {"False"}, found
        return found
    fine = wait_for(are_fine, 300, "the node's conditions", every=1)
    assert {kind for kind in fine if kind.startswith("HeatNode")} == TYPES
    assert fine["Ready"]["reason"] == "KubeletReady"

    host.exec("systemctl", "stop", "kubelet.service")
    stopped = is_so(host, COMPONENTS, "True")
    assert stopped["reason"] == "ComponentFailed" and "kubelet" in stopped["message"], stopped
    assert stopped["lastTransitionTime"] > fine[COMPONENTS]["lastTransitionTime"]
    assert conditions(host)["Ready"]["status"] == "True"

    # The API says since when, to an agent that has just begun.
    host.exec("systemctl", "restart", UNIT)
    again = wait_for(lambda: (c := conditions(host)[COMPONENTS])["lastHeartbeatTime"] > stopped["lastHeartbeatTime"] and c, 300, "a heartbeat", every=1)
    assert (again["status"], again["lastTransitionTime"]) == ("True", stopped["lastTransitionTime"])
    host.exec("systemctl", "start", "kubelet.service")
    assert is_so(host, COMPONENTS, "False", 300)["reason"] == "ComponentsAreHealthy"
    is_so(host, DRIFT, "False", 400)

    # An API that is away is reported once, and nothing waits for it. Its nodes come back with it, and the conditions with them.
    host.exec("systemctl", "stop", "kube-apiserver.service")
    wait_for(lambda: said(host, "HNA-0731"), 400, "the failure", every=1)
    host.exec("systemctl", "start", "kube-apiserver.service")
    wait_for(lambda: set(conditions(host)) >= {*TYPES, "Ready"}, 400, "the conditions again", every=1)
    assert len(said(host, "HNA-0731")) <= 3, said(host, "HNA-0731")

    # Off again: nothing is sent, and what was written is removed by hand for good.
    host.write(PAGE, SETTINGS)
    host.exec("systemctl", "restart", UNIT)
    patch = {"status": {"conditions": [{"type": kind, "$patch": "delete"} for kind in conditions(host) if kind.startswith("HeatNode")]}}
    words = ("-X", "PATCH", "-H", "Content-Type: application/strategic-merge-patch+json", "-d", json.dumps(patch))
    ask(host, *words, who="admin", path="/status")
    assert set(conditions(host)) == {"Ready"}
    host.exec("systemctl", "stop", "kubelet.service")
    wait_for(lambda: "kubelet" in host.exec("heat-node-agent", "status", check=False).stdout.splitlines()[0], 400, "the failure in status", every=1)
    time.sleep(10)
    assert set(conditions(host)) == {"Ready"}
