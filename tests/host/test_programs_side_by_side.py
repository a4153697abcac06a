"""An image with Kubernetes' programs of two releases side by side: KUBE_TAG says which ones run, and an update that fails is taken back with its
programs. A master of real etcd and containerd, with stand-ins that take what the real programs of each release take."""
import pytest

from lib import stand_ins
from lib.cluster import VERSION, Node, parameters, start
from lib.common import GATEWAY, SUITE
from lib.failures import slack
from lib.node import UNIT, is_steady

MASTER = GATEWAY.rsplit(".", 1)[0] + ".21"
NEWEST = int(VERSION.split(".")[1])
OLD, NEW = f"1.{NEWEST - 1}.9", VERSION


def side_by_side(version: str) -> dict:
    """As Host.put takes them: what stand_ins.files() has for /usr/local/bin, in the folder of the release."""
    return {path.replace("/usr/local/bin/", f"/opt/kubernetes/v{version}/bin/"): file for path, file in stand_ins.files(version).items()}


def runs(node: Node, version: str):
    """Each of them, from its release's folder."""
    for name in stand_ins.tables.COMPONENTS:
        pid = node.host.show(f"{name}.service", "MainPID")["MainPID"]
        assert f"/opt/kubernetes/v{version}/bin/{name}" in node.host.read(f"/proc/{pid}/cmdline").split("\0"), name
    assert node.release() == f"v{version}"


def up(host, server, magnum) -> Node:
    node = Node(host, server, parameters("master", "m1", MASTER, MASTER, **magnum.parameters()) | {"KUBE_TAG": f"v{OLD}"})
    host.put(side_by_side(OLD) | side_by_side(NEW))
    node.publish()
    start(host, node.server)
    node.succeeds()
    host.wait_for(lambda: is_steady(host), what="a steady node")
    runs(node, OLD)
    return node


def test_an_update_that_fails_is_taken_back_with_its_programs(hosts, signal_server, magnum):
    host = hosts("m1", ip=MASTER)
    node = up(host, signal_server(), magnum())

    # The new API server dies of a flag that no table knows.
    node.update(KUBE_TAG=f"v{NEW}", KUBEAPI_OPTIONS="--no-such-flag=1", WAIT_TIMEOUT=60 * min(slack(), 2))
    cause = node.result()
    assert "--no-such-flag" in cause and "rolled back: generation 1 is in place again, and healthy" in cause, cause
    runs(node, OLD)
    assert node.healthy()

    node.update(KUBEAPI_OPTIONS=None, WAIT_TIMEOUT=600)
    node.succeeds()
    runs(node, NEW)
    host.exec("heat-node-agent", "rollback")
    runs(node, OLD)
    # A release that is in no folder is looked up as usual, and is nowhere.
    node.update(KUBE_TAG=f"v1.{NEWEST}.77")
    cause = node.result()
    assert "kube-apiserver is not in " in cause and "rolled back: generation 1 is in place again, and healthy" in cause, cause
    runs(node, OLD)


@pytest.mark.skipif(SUITE == "bullseye", reason="its containerd has no CRI of 1.28")
def test_an_update_that_cannot_be_resumed_is_taken_back(hosts, signal_server, magnum):
    """Killed in the middle of an update, and refused when the next agent resumes it, as a program was replaced meanwhile: what the one before changed is
    taken back."""
    host = hosts("m1", ip=MASTER)
    node = up(host, signal_server(), magnum())
    # A flag that is new in 1.28.
    node.update(KUBE_TAG=f"v{NEW}", KUBECONTROLLER_OPTIONS="--concurrent-job-syncs=6")
    host.wait_for(lambda: "--concurrent-job-syncs" in host.read("/etc/kubernetes/controller-manager"), what="the update")
    host.sh(f"cd /opt/kubernetes; cp -a v{OLD}/bin/kube-controller-manager v{NEW}/bin/; systemctl kill -s KILL {UNIT}")
    cause = node.result()
    assert "HNA-0623" in cause and "--concurrent-job-syncs" in cause, cause
    assert "rolled back: generation 1 is in place again, and healthy" in cause, cause
    runs(node, OLD)
    assert node.healthy() and len(node.server.signals("node", accepted=True)) == 1
