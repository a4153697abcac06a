"""A cluster without a pod network, which is its operator's to bring: its node is not Ready and CoreDNS is Pending; the master says so, and no longer
once there is one."""
import re

import pytest
from conftest import HOSTS
from lib.common import REPO, wait_for
from lib.node import signalled
from lib.real_kubernetes import NET, REGISTRY, SUBNETS, cluster_in

pytestmark = pytest.mark.longer
# What an operator brings, by the CNI project's own plugins.
CONFLIST = """{"cniVersion": "0.4.0", "name": "theirs", "plugins": [{"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true,
  "ipam": {"type": "host-local", "ranges": [[{"subnet": "%s"}]], "routes": [{"dst": "0.0.0.0/0"}]}}, {"type": "portmap", "capabilities": {"portMappings": true}}]}
"""
# In the scheduler's words.
PENDING = (r"deployment kube-system/coredns: 0 of 2 pods are available: pod coredns-\S+ is Pending: Unschedulable: "
           r"0/1 nodes are available: 1 node\(s\) had taint \{node\.kubernetes\.io/not-ready: \}, that the pod didn't tolerate\.")


def test_a_cluster_without_a_pod_network_is_said_to_be_unhealthy(programs, testhost, tmp_path, request):
    with cluster_in(tmp_path) as cluster:
        master = cluster.boot("m1", CONTAINER_INFRA_PREFIX=REGISTRY, ADDONS="coredns", NETWORK_DRIVER="none", NODE_SUBNETS=None)
        request.node.stash[HOSTS] = [master.host]
        master.outputs = (*master.outputs, "add_ons")
        folder = "/usr/share/heat-node-agent/addons/coredns"
        master.host.put({f"{folder}/coredns.yaml": (REPO / "image-build/addons/coredns/coredns.yaml", 0o644)})
        # The API has all objects: more is not asked of a master whose stack may bring the pod network, or nodes, later.
        master.up()
        master.load_images("/srv/images/add-ons/*.tar")
        told = signalled(master.server, "node")
        assert told["add_ons"]["coredns"].startswith("no: deployment kube-system/coredns: "), told

        def component() -> dict:
            return next(c for c in master.status()["node"]["components"] if c["name"] == "add-on coredns")

        def is_pending() -> str:
            found = component()
            assert found["state"] == "degraded" and re.search(PENDING, found["cause"]), found
            return found["cause"]
        wait_for(is_pending, NET, "CoreDNS without a node", every=1)
        assert cluster.conditions()["m1"]["Ready"] == "False"
        for word in ("status", "explain"):
            done = master.host.exec("heat-node-agent", word, check=False)
            print(done.returncode, done.stdout)
            assert re.search(PENDING, " ".join(done.stdout.split())), done.stdout
            assert word == "explain" or done.returncode == 2
        # Who only reads the journal hears of it, too, once it has lasted.
        degraded = master.host.wait_for(lambda: [e for e in master.host.journal(HNA_EVENT="ComponentDegraded") if "add-on coredns" in e["MESSAGE"]], 900,
                                        "the report of CoreDNS")
        print(degraded[0]["MESSAGE"])

        master.host.write("/etc/cni/net.d/10-theirs.conflist", CONFLIST % SUBNETS["m1"])
        cluster.is_ready("m1")
        wait_for(lambda: component()["state"] == "healthy", NET, "CoreDNS runs", every=1)
        wait_for(lambda: master.host.exec("heat-node-agent", "status", check=False).returncode == 0, NET, "a healthy cluster", every=1)
        master.host.wait_for(lambda: [e for e in master.host.journal(HNA_EVENT="ComponentRecovered") if "add-on coredns" in e["MESSAGE"]], NET)
