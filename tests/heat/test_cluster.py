"""A whole cluster from a real Heat's metadata: a master and two minions side by side, one with docker, one with containerd.

etcd with TLS, docker, containerd, the CNI project's plugins, routes and pods are real; Kubernetes' programs, flanneld, its CNI plugin and
cri-dockerd are stand-ins; a server that follows Magnum's API signs the certificates."""
import base64
import itertools
import json
import time
import uuid
from pathlib import Path

import pytest
from conftest import HOSTS
from lib import stand_ins
from lib.common import GATEWAY, TESTS, Failed, wait_for
from lib.hosts import Host
from lib.pod_network import FACTS, FIRST, NETWORK, PREFIX, Facts, PodCluster, PodNode, together

MASTER, DOCKER, CONTAINERD = NAMES = "master", "minion-a", "minion-b"
UNITS = ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "containerd", "docker", "cri-docker",
         "flanneld", "heat-node-pod-network"]
ON_MASTER = {"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"}
ON_ALL = {"kubelet", "kube-proxy", "flanneld", "heat-node-pod-network"}
# For docker from 1.24 on: the kubelet's stand-in asks its runtime nothing.
CRI_DOCKERD = """#!/usr/bin/python3 -B
import os, sys; sys.path.insert(0, "/usr/local/bin/.stand-ins")
from stand_in.service import notify, wait_for_end
if "--container-runtime-endpoint=fd://" not in sys.argv or os.environ.get("LISTEN_FDS") != "1":
    sys.exit(f"no socket was handed over: {sys.argv}")
notify("READY=1")
sys.exit(wait_for_end("cri-dockerd"))
"""
# A container of nothing but sleep, by containerd itself and the CNI network that is described. It does not come back after a boot.
POD = """
mkdir -p /srv/pod; tar -C / -ch bin/sleep $(ldd /bin/sleep | grep -o '/[^ ]*' | cut -c2-) | tar -x -C /srv/pod
name=pod-$(cut -c1-8 /proc/sys/kernel/random/uuid)
ctr run --detach --rootfs --cpu-shares 0 --cni /srv/pod $name /bin/sleep infinity
echo $name >/run/pod
"""
FACTS_OF_POD = """
if [ -e /run/pod ]; then
  pid=$(ctr task list | awk -v name="$(cat /run/pod)" '$1 == name && $3 == "RUNNING" {print $2}')
  [ -z "$pid" ] || echo "pod $pid $(nsenter -t "$pid" -n ip -4 -o address show eth0 | awk '{sub("/.*", "", $4); print $4}')"
fi
"""
# All that the agent writes and that is no state of its own.
WRITTEN = "find /etc /opt /usr/local /var/lib/kubelet -xdev -printf '%p %y %m %u:%g %i %T@ %C@ %l\\n' | sort"


class HeatNode(PodNode):
    """A node that only a real Heat tells what to do."""

    @property
    def bridge(self) -> str:
        return "docker0" if self.runtime == "docker" and self.cluster.minor < 24 else "cni0"

    @property
    def runtime(self) -> str:
        return "docker" if self.host.name == DOCKER else "containerd"

    def with_pod(self) -> PodNode:
        if self.bridge == "docker0":
            return super().with_pod()
        self.host.sh(POD, timeout=600)
        return self

    def facts(self) -> Facts:
        return Facts(self.host.sh(FACTS if self.bridge == "docker0" else FACTS + FACTS_OF_POD))

    def wanted(self) -> set[str]:
        """The units that must run, and no other runtime's."""
        of_docker = {"docker"} | ({"cri-docker"} if self.cluster.minor >= 24 else set())
        return ON_ALL | (ON_MASTER if self.host.name == MASTER else set()) | (of_docker if self.runtime == "docker" else {"containerd"})

    def started(self) -> dict[str, str]:
        """Each unit's run, which is another one after a restart."""
        said = self.host.exec("systemctl", "show", "--property=Id,ActiveState,InvocationID", "--", *(f"{u}.service" for u in UNITS)).stdout
        runs = [dict(line.split("=", 1) for line in block.splitlines()) for block in said.strip().split("\n\n")]
        return {r["Id"].removesuffix(".service"): r["InvocationID"] for r in runs if r["ActiveState"] == "active"}

    def mistake(self) -> str:
        """Why the node is not as its deployment asks, in its own words and in systemd's."""
        # docker's own containerd runs beside it.
        if missing := self.wanted() - set(self.started()):
            return f"{missing} not active"
        status = self.host.exec("heat-node-agent", "status", check=False)
        plan = self.host.exec("heat-node-agent", "plan", check=False)
        return "" if status.returncode == plan.returncode == 0 else status.stdout + plan.stdout + plan.stderr

    def is_healthy(self):
        def is_steady() -> bool:
            mistake = self.mistake()
            assert not mistake, mistake
            return True
        wait_for(is_steady, 900, f"{self.host.name} in its steady state")


class HeatCluster(PodCluster):
    """Its nodes are the servers of one stack."""

    def __init__(self, heat, stack: str, kubernetes: str, flannel: str, magnum):
        super().__init__(None, kubernetes, flannel)
        self.heat, self.stack, self.magnum = heat, stack, magnum
        self.minor = int(kubernetes.split(".")[1])
        self.volumes = {name: str(uuid.uuid4()) for name in (*NAMES, "etcd")}

    @staticmethod
    def number(name: str) -> int:
        return NAMES.index(name)

    def address(self, name: str) -> str:
        return str(FIRST + self.number(name))

    def parameters_of_stack(self, **more) -> dict:
        return {"kube_tag": f"v{self.kubernetes}", "flannel_tag": f"v{self.flannel}", "magnum": self.magnum.parameters(),
                "addresses": {name: self.address(name) for name in NAMES}, "volumes": self.volumes, **more}

    def boot(self, name: str, **_) -> HeatNode:
        """A fresh host with all that an image has and what cloud-init leaves; the agent is enabled and not yet started."""
        host = Host(name)
        self.hosts.append(host)
        volumes = {"vdb": ("1G", self.volumes[name])} | ({"vdc": ("1G", self.volumes["etcd"])} if name == MASTER else {})
        host.up(ip=self.address(name), gateway=GATEWAY, volumes=volumes)
        node = HeatNode(self, self.number(name), host, None, {"KUBE_NODE_IP": self.address(name)})
        self.nodes[name] = node
        stand_ins.into(host, self.kubernetes, f"flanneld={self.flannel}")
        cri = {"/usr/local/bin/cri-dockerd": (CRI_DOCKERD.encode(), 0o755)} if node.runtime == "docker" else {}
        host.put(stand_ins.CNI_PROGRAMS | cri)
        host.install_agent()
        self.heat.hand_over(host, self.stack, f"occ_{name}")
        host.exec("systemctl", "enable", "-q", "heat-node-agent.service")
        return node

    # --- etcd, by the certificate of this node's flanneld ---
    def curl(self, name: str, path: str, *words: str) -> str:
        return self.nodes[name].host.exec("curl", "-sf", *as_admin("/etc/etcd/certs"), *words, f"https://{self.address(MASTER)}:2379{path}").stdout

    def description_and_revision(self) -> tuple[dict, int]:
        """As flanneld of a minion reads it."""
        if self.v2():
            found = json.loads(self.curl(DOCKER, f"/v2/keys{PREFIX}/config"))["node"]
            return json.loads(found["value"]), found["modifiedIndex"]
        key = base64.b64encode(f"{PREFIX}/config".encode()).decode()
        [found] = json.loads(self.curl(DOCKER, "/v3/kv/range", "-d", json.dumps({"key": key})))["kvs"]
        return json.loads(base64.b64decode(found["value"])), int(found["mod_revision"])

    def registered(self) -> set[str]:
        """Nodes that the API knows."""
        url = f"https://{self.address(MASTER)}:6443/api/v1/nodes"
        said = self.nodes[MASTER].host.exec("curl", "-sf", *as_admin("/etc/kubernetes/certs"), url).stdout
        return {node["metadata"]["name"] for node in json.loads(said)["items"]}

    def is_healthy(self):
        together(*(node.is_healthy for node in self.nodes.values()))
        wait_for(lambda: self.registered() == set(NAMES), 900, "all nodes at the API")

    def rebooted(self, order: tuple[str, ...], by_force: bool):
        """All go down, then come up in this order, a second apart."""
        since = time.monotonic()
        if by_force:
            self.power_cycle(order)
        else:
            def again(at: int, name: str):
                time.sleep(at)
                self.nodes[name].host.reboot()
            together(*(lambda a=a, n=n: again(a, n) for a, n in enumerate(order)))
        self.is_healthy()
        # docker starts its containers again; by containerd nobody does without a kubelet.
        together(*(node.with_pod for node in self.nodes.values() if node.bridge == "cni0"))
        self.right(*NAMES, within=900, what=f"rebooted {order}")
        print(f"rebooted {order}, by force: {by_force}: {time.monotonic() - since:.1f} s")


def as_admin(folder: str) -> list[str]:
    """Options of curl."""
    return ["--cacert", f"{folder}/ca.crt", "--cert", f"{folder}/admin.crt", "--key", f"{folder}/admin.key"]


@pytest.fixture
def cluster(heat, magnum, stack_name, request):
    """By Kubernetes' and flannel's version: flannel up to 0.17 keeps its leases by etcd's v2 API, later ones by v3."""
    kubernetes, flannel = request.param
    made = HeatCluster(heat, stack_name, kubernetes, flannel, magnum())
    request.node.stash[HOSTS] = made.hosts
    yield made
    made.down()


@pytest.mark.parametrize("cluster", [("1.20.15", "0.17.0"), ("1.31.4", "0.20.2")], indirect=True, ids=["1.20", "1.31"])
def test_a_cluster_completes_passes_again_without_a_write_and_comes_back_from_reboots(cluster):
    heat, stack, server = cluster.heat, cluster.stack, cluster.magnum
    heat.create(stack, "cluster", **cluster.parameters_of_stack())
    together(*(lambda n=n: cluster.boot(n) for n in NAMES))
    master, docker, containerd = (cluster.nodes[n] for n in NAMES)
    together(*(lambda n=n: n.host.exec("systemctl", "start", "--no-block", "heat-node-agent.service") for n in cluster.nodes.values()))
    heat.wait(stack, seconds=1800)
    out = heat.outputs(stack)
    assert out["versions"] == [f"v{cluster.kubernetes}"] * 3
    assert set(json.loads(out["wait_data"])) == set(NAMES)
    print({name: out[name]["total"] for name in NAMES})
    cluster.is_healthy()
    for node in cluster.nodes.values():
        others = {"docker", "cri-docker"} & set(node.started()) - node.wanted()
        assert not others and not node.host.journal(HNA_EVENT="NodeFailed"), others
    assert server.count()["signed"] == 9 + 3 + 3  # a minion's flanneld has one, too

    # etcd speaks TLS, and to nobody without a certificate of its own CA.
    ip = cluster.address(MASTER)
    assert json.loads(cluster.curl(DOCKER, "/health"))["health"] == "true"
    for words in ([f"http://{ip}:2379/health"], ["--cacert", "/etc/etcd/certs/ca.crt", f"https://{ip}:2379/health"]):
        assert docker.host.exec("curl", "-sf", *words, check=False).returncode != 0, words
    with pytest.raises(Failed):
        master.etcdctl("endpoint", "health", certificate="/etc/kubernetes/certs/admin", seconds=10)

    # The network of pods: three subnets of it, a pod in each, and each reaches the others.
    description, revision = cluster.description_and_revision()
    assert description == {"Network": NETWORK, "SubnetLen": 24, "Backend": {"Type": "host-gw"}}
    together(*(node.with_pod for node in cluster.nodes.values()))
    cluster.right(*NAMES, within=900, what="new nodes")
    leases = {name: cluster.lease_of(name) for name in NAMES}
    assert len(set(leases.values())) == 3, leases

    # A second pass over all nodes writes nothing and restarts nothing.
    before = together(*(lambda n=n: (n.host.sh(WRITTEN), n.started()) for n in cluster.nodes.values()))
    heat.update(stack, "cluster", **cluster.parameters_of_stack(wait_timeout=3001))
    heat.wait(stack, "UPDATE_COMPLETE")
    cluster.is_healthy()
    after = together(*(lambda n=n: (n.host.sh(WRITTEN), n.started()) for n in cluster.nodes.values()))
    for name, was, now in zip(NAMES, before, after, strict=True):
        assert now[1] == was[1], name
        assert set(now[0].splitlines()) ^ set(was[0].splitlines()) == set(), name
    assert cluster.description_and_revision() == (description, revision)
    assert server.count()["signed"] == 15

    # All of them off, and on again in every order: without power, and twice in good order, the master first and last. Nobody is informed
    # anything, because nothing is new.
    orders = list(itertools.permutations(NAMES)) if cluster.minor > 20 else [(DOCKER, CONTAINERD, MASTER)]
    mark = heat.mark()
    for order in orders:
        cluster.rebooted(order, by_force=cluster.minor == 20 or order[1] != CONTAINERD)
        assert {name: cluster.lease_of(name) for name in NAMES} == leases, order
        assert cluster.description_and_revision() == (description, revision), order
        failed = together(*(lambda n=n: n.host.journal(boot=0, HNA_EVENT="NodeFailed") for n in cluster.nodes.values()))
        assert not any(failed), (order, failed)
    writes = [r for r in heat.requests("heat-api-cfn", mark) if r.method != "GET"]
    assert not writes, writes
    assert heat.status(stack) == "UPDATE_COMPLETE" and server.count()["signed"] == 15
