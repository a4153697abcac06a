"""Kubernetes of three masters goes up by two minor releases, one master and one release after the other, by stand-ins that take what the real
programs of each release take: the programs that a master has are replaced, its stack says the new KUBE_TAG, and the agent restarts them in their order;
the other masters answer all the while, and no write to etcd is lost. A kubelet whose own API server is away gets to no older one."""
import json

import pytest
from lib import haproxy, stand_ins
from lib.cluster import VERSION, Node
from lib.common import SUITE, wait_for
from lib.hosts import NET
from lib.masters import IPS, Masters, listed
from lib.node import is_steady
from lib.pod_network import together

API, MANAGER, SCHEDULER, KUBELET, PROXY = "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy"
# On hosts of other releases this was not run with it.
BALANCER = ("haproxy",) if SUITE == "bookworm" else ()
# Who runs again before the next ones are begun.
ORDER = [group for group in ((API,), (MANAGER, SCHEDULER), BALANCER, (KUBELET,), (PROXY,)) if group]
PROGRAMS = [program for group in ORDER for program in group]
NEWEST = int(VERSION.split(".")[1])
RELEASES = [f"1.{NEWEST - 2}.9", f"1.{NEWEST - 1}.9", VERSION]


def times(host) -> tuple[dict[str, int], dict[str, int]]:
    """When each of them was last begun, and was active, in microseconds."""
    begun, active = "InactiveExitTimestampMonotonic", "ActiveEnterTimestampMonotonic"
    found = {unit: host.show(f"{unit}.service", begun, active) for unit in PROGRAMS}
    return tuple({unit: int(one[name]) for unit, one in found.items()} for name in (begun, active))


def asked(node: Node) -> str:
    """The release of who answers its kubelet, or nothing."""
    server = node.host.sh("sed -n 's/.*server: *//p' /etc/kubernetes/kubelet.kubeconfig").strip().strip('"')
    said = node.curl(f"{server}/version", "-m", "20", "|| true", identity="kubelet")
    return json.loads(said)["gitVersion"] if said.startswith("{") else ""


def without_its_api_server(node: Node, expected: str):
    """Who answers its kubelet then, and nobody else meanwhile."""
    own = asked(node)
    assert own == node.release()
    node.host.exec("systemctl", "stop", f"{API}.service")
    seen = set()

    def is_answered() -> bool:
        seen.add(asked(node))
        return node.host.exec("systemctl", "is-active", f"{API}.service", check=False).returncode != 0 and asked(node) == expected
    for _ in range(10):
        wait_for(is_answered, NET, f"an answer by {expected or 'nobody'}")
    node.host.exec("systemctl", "start", f"{API}.service")
    wait_for(lambda: asked(node) == own == node.release(), NET, "an answer by its own API server")
    print(f"{node.host.name} without its API server was answered by {sorted(seen)}", flush=True)
    # At first it may be in vain.
    assert seen <= {"", own, expected}, seen


def goes_up(node: Node, version: str) -> list[str]:
    """What of it was in another order than its own."""
    host, before = node.host, node.started()
    host.wait_for(lambda: is_steady(host), what="a steady node")
    stand_ins.into(host, version)
    # They are scripts: what a process runs, and a package would replace, is who runs them.
    host.sh("program=$(readlink -f /usr/bin/python3); cp -a $program $program.new; mv $program.new $program")
    node.update(KUBE_TAG=f"v{version}")
    node.succeeds()
    assert node.restarted(before) == set(PROGRAMS)
    assert node.release() == f"v{version}" and node.healthy()
    begun, active = times(host)
    since = min(begun.values())
    said = f"{host.name} {version}: " + ", ".join(f"{name} {(begun[name] - since) / 1e6:.2f} to {(active[name] - since) / 1e6:.2f} s" for name in PROGRAMS)
    print(said, flush=True)
    return [f"{later} before {earlier}: {said}" for earlier, later in zip(ORDER, ORDER[1:])
            if max(active[name] for name in earlier) > min(begun[name] for name in later)]


@pytest.mark.longer
def test_masters_go_up_by_two_releases(hosts, signal_server, tmp_path):
    masters = Masters(hosts, signal_server, tmp_path)
    for node in masters.nodes if BALANCER else ():
        haproxy.install(node.host)
        node.inputs |= {"API_BALANCER": "haproxy", "MASTER_ADDRESSES": ",".join(IPS.values())}
    masters.begin(*masters.nodes, version=RELEASES[0])
    together(*(node.succeeds for node in masters.nodes))
    wait_for(masters.healthy, NET, "etcd of three members")
    members, wrong = listed(masters.nodes[0]), []
    with masters.written_to():
        for version in RELEASES[1:]:
            for node in masters.nodes:
                with masters.answered(*(other for other in masters.nodes if other is not node)):
                    wrong += goes_up(node, version)
                if BALANCER and version == RELEASES[1]:
                    # All the others are older until the second one has gone up.
                    without_its_api_server(node, "" if node is masters.nodes[0] else f"v{version}")
    wait_for(masters.healthy, NET, "etcd of three members")
    assert listed(masters.nodes[0]) == members and not masters.mistakes() and not masters.events("ProgramReleaseDiffers")
    assert not wrong, "\n".join(wrong)
