"""One cluster of real programs for the whole session: a master and two workers, by containerd and by docker."""
import pytest
from conftest import HOSTS
from lib import hosts as hosts_module
from lib.common import GATEWAY, TESTS, run
from lib.hosts import Host
from lib.magnum import Magnum
from lib.pod_network import together
from lib.real_kubernetes import RealCluster
from lib.signal_server import SignalServer

NODES = {"m1": {}, "w1": {}, "w2": {"CONTAINER_RUNTIME": "docker"}}


@pytest.fixture(scope="session")
def programs():
    """They are there: minutes the first time, then a moment."""
    run(TESTS / "real-kubernetes/up.sh", timeout=3600)


@pytest.fixture(scope="session")
def shared(programs, testhost, tmp_path_factory) -> RealCluster:
    """A master and two workers."""
    hosts_module.lab_up(address=f"{GATEWAY}/24")
    folder = tmp_path_factory.mktemp("cluster")
    ends = []

    def host(name: str, **options) -> Host:
        one = Host(name)
        ends.append(one.down)
        return one.up(**options)

    def server(port: int) -> SignalServer:
        one = SignalServer(folder / f"signals-{port}", port=port)
        ends.append(one.stop)
        return one.start()
    try:
        magnum = Magnum(folder / "magnum", port=19511)
        ends.append(magnum.stop)
        cluster = RealCluster(host, server, magnum.start())
        together(*(lambda n=n, m=more: cluster.boot(n, **m).up() for n, more in NODES.items()))
        cluster.is_ready(*NODES)
        yield cluster
    finally:
        for end in reversed(ends):
            end()
        hosts_module.lab_down()


@pytest.fixture
def cluster(shared, request) -> RealCluster:
    """All of its nodes are Ready and have nothing to do."""
    request.node.stash[HOSTS] = [node.host for node in shared.nodes.values()]
    return shared
