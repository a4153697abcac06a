"""A cluster without TLS, which does without service accounts: a test bed, where everybody who reaches it may do everything."""
import pytest
from lib.common import wait_for
from lib.real_kubernetes import NET, RealCluster, pod, service


@pytest.mark.xfail(strict=True, reason="ServiceAccount admission is on although nobody makes tokens: no pod is ever created")
def test_pods_run_and_reach_each_other_without_tls(maker):
    cluster: RealCluster = maker.make({"m1": {}, "w1": {}}, tls=False)
    cluster.is_ready("m1", "w1")
    cluster.apply(*(pod(f"web-{n}", n, "netexec", "--http-port=8080") for n in cluster.nodes), service("web", {"name": "web-w1"}, 8080))
    addresses = {n: cluster.address_of(f"web-{n}") for n in cluster.nodes}
    assert cluster.asked_by(addresses["m1"], addresses["w1"], 8080) == {"web-w1"}
    found = cluster.get("service", "web")["spec"]["clusterIP"]
    wait_for(lambda: cluster.asked_by(addresses["m1"], found, 8080) == {"web-w1"}, NET, "the service")
    assert "Started HTTP server" in cluster.kubectl("logs", "web-w1")
    for node in cluster.nodes.values():
        wait_for(node.is_quiet, NET, f"nothing to do on {node.name}")
