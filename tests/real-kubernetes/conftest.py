"""One cluster of real programs for the whole session: a master and two workers, by containerd and by docker. Those of OWN have clusters of
their own."""
import time

import pytest
from conftest import HOSTS
from lib.common import TESTS, run
from lib.pod_network import together
from lib.real_kubernetes import RealCluster, cluster_in, version

SUITE_OF = "1.20.2"
NODES = {"m1": {}, "w1": {}, "w2": {"CONTAINER_RUNTIME": "docker"}}
OWN = ("test_add_ons.py", "test_cloud_provider.py", "test_heat.py", "test_masters.py", "test_no_pod_network.py", "test_transcript.py")


def pytest_collection_modifyitems(items):
    """Clusters of their own come first: their hosts have the names and addresses of those that stay for the session."""
    items.sort(key=lambda item: item.path.name not in OWN or item.path.parent.name != "real-kubernetes")


@pytest.fixture(scope="session")
def programs():
    """They are there: minutes the first time, then a moment."""
    run(TESTS / "real-kubernetes/up.sh", timeout=3600)


@pytest.fixture(scope="session")
def suite(programs):
    """Kubernetes' own tests and their images, as well; they are of one release."""
    if version() != SUITE_OF:
        pytest.skip(f"these are the tests of {SUITE_OF}, and the programs are of {version()}")
    run(TESTS / "real-kubernetes/up.sh", "e2e", timeout=3600)


@pytest.fixture(scope="session")
def shared(programs, testhost, tmp_path_factory) -> RealCluster:
    """A master and two workers."""
    with cluster_in(tmp_path_factory.mktemp("cluster")) as cluster:
        together(*(lambda n=n, m=more: cluster.boot(n, **m).up() for n, more in NODES.items()))
        cluster.is_ready(*NODES)
        cluster.ready_since = time.time()
        yield cluster


@pytest.fixture
def cluster(shared, request) -> RealCluster:
    """All of its nodes are Ready and have nothing to do."""
    request.node.stash[HOSTS] = [node.host for node in shared.nodes.values()]
    return shared
