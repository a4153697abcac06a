"""Clusters of real programs. One is for most of the session: a master and two workers, by containerd and by docker."""
from pathlib import Path

import pytest
from conftest import HOSTS
from lib import hosts as hosts_module
from lib.common import GATEWAY, TESTS, run
from lib.hosts import Host
from lib.magnum import Magnum
from lib.pod_network import together
from lib.real_kubernetes import RealCluster
from lib.signal_server import SignalServer


@pytest.fixture(scope="session")
def programs():
    """They are there: minutes the first time, then a moment."""
    run(TESTS / "real-kubernetes/up.sh", timeout=3600)


class Maker:
    """Clusters, one at a time: the one before is taken down."""

    def __init__(self, folder: Path):
        self.folder, self.ends = folder, []

    def make(self, nodes: dict[str, dict], tls: bool = True, **more) -> RealCluster:
        """Of these nodes, with these parameters of theirs beside the usual ones."""
        self.end()
        magnum = self._started(Magnum(self.folder / "magnum", port=19511)) if tls else None
        cluster = RealCluster(self._host, lambda port: self._started(SignalServer(self.folder / f"signals-{port}", port=port)), magnum, **more)
        together(*(lambda n=n, p=p: cluster.boot(n, **p).up() for n, p in nodes.items()))
        return cluster

    def _host(self, name: str, **options) -> Host:
        one = Host(name)
        self.ends.append(one.down)
        return one.up(**options)

    def _started(self, server):
        server.forget()
        self.ends.append(server.stop)
        return server.start()

    def end(self):
        for end in reversed(self.ends):
            end()
        self.ends.clear()


@pytest.fixture(scope="session")
def maker(programs, testhost, tmp_path_factory) -> Maker:
    hosts_module.lab_up(address=f"{GATEWAY}/24")
    made = Maker(tmp_path_factory.mktemp("cluster"))
    yield made
    made.end()
    hosts_module.lab_down()


@pytest.fixture(scope="session")
def shared(maker) -> RealCluster:
    cluster = maker.make({"m1": {}, "w1": {}, "w2": {"CONTAINER_RUNTIME": "docker"}})
    cluster.is_ready("m1", "w1", "w2")
    return cluster


@pytest.fixture
def cluster(shared, request) -> RealCluster:
    """All of its nodes are Ready and have nothing to do."""
    request.node.stash[HOSTS] = [node.host for node in shared.nodes.values()]
    return shared
