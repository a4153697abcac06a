"""A cluster of Kubernetes' real programs under the agent: hosts with the programs that tests/real-kubernetes/up.sh made, a Magnum that signs,
a scripted Heat for each node, pods from images that were made by hand."""
import ipaddress
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from lib import flanneld
from lib import hosts as hosts_module
from lib.cluster import Node, parameters
from lib.common import GATEWAY, REPO, TESTS, run, wait_for
from lib.hosts import Host, give
from lib.magnum import Magnum
from lib.node import start
from lib.pod_network import together
from lib.signal_server import SignalServer

MADE = REPO / "target/real-kubernetes"
PROGRAMS = Path(os.environ.get("HNA_KUBERNETES") or MADE / "programs").resolve()
IMAGES = MADE / "images"
NAMES = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kubectl")
# Where hosts see the programs: one copy for all of them.
FOLDER = "/usr/local/lib/kubernetes"
ADMIN = "/etc/kubernetes/admin.conf"
NETWORK = "10.100.0.0/16"
ADDRESSES = {"m1": "10.77.0.21", "w1": "10.77.0.31", "w2": "10.77.0.32"}
SUBNETS = {"m1": "10.100.1.0/24", "w1": "10.100.2.0/24", "w2": "10.100.3.0/24"}
AGNHOST = "k8s.gcr.io/e2e-test-images/agnhost:2.21"
# Where nobody answers: images of this name are put into each runtime.
REGISTRY = "registry.example.org/kubernetes/"
# A host is a container of its own, which has no say in the machine's table of connections. There is no Nova to ask for it.
HOSTS_OWN = {"KUBEPROXY_OPTIONS": "--conntrack-max-per-core=0 --conntrack-min=0", "CLOUD_PROVIDER_ENABLED": "False"}
# A net under what hangs: a slow machine starts a pod in a minute.
NET = 300


def version() -> str:
    """Of the programs: 1.20.2"""
    return re.fullmatch(r"Kubernetes v(\S+)\s*", run(PROGRAMS / "kubelet", "--version").stdout)[1]


def hierarchy() -> int:
    """For Host.up: Kubernetes counts by whichever cgroups the machine has its controllers in."""
    return 1 if Path("/sys/fs/cgroup/cgroup.controllers").exists() else 0


def may_shield() -> bool:
    """Whether a process here may make the kernel's OOM killer spare it (CAP_SYS_RESOURCE), as the first process of a pod asks for."""
    [effective] = re.findall(r"(?m)^CapEff:\s*(\w+)", Path("/proc/self/status").read_text())
    return bool(int(effective, 16) >> 24 & 1)


def network(subnets: dict[str, str]) -> dict:
    """Parameters of the pod network: static routes to these subnets, by the nodes' addresses; flannel as a unit, which gives subnets itself, where
    there is a flanneld: no package has one."""
    own = {"NETWORK_DRIVER": "static-routes", "NODE_SUBNETS": ",".join(f"{node}={subnet}" for node, subnet in subnets.items())}
    if program := flanneld.given():
        own = {"NETWORK_DRIVER": "flannel", "FLANNEL_RUNS_AS": "unit", "FLANNEL_BACKEND": "host-gw", "FLANNEL_TAG": f"v{program.version}"}
    return {"PODS_NETWORK_CIDR": NETWORK, **own}


def seen(folder: str = "/opt/cni/bin") -> dict:
    """Of Host.up: programs, images and CNI plugins of this machine, the latter in this folder; flanneld, if one is given."""
    plugins = {"/usr/lib/cni": folder}
    if program := flanneld.given():
        # One by one, beside flannel's own plugin, which no package has either.
        plugins = {str(one): f"{folder}/{one.name}" for one in Path("/usr/lib/cni").iterdir()}
        plugins |= {str(TESTS / "stand-ins/cni-flannel"): f"{folder}/flannel", str(program.path): "/usr/local/bin/flanneld"}
    return {"gateway": GATEWAY, "cgroup": hierarchy(), "binds_ro": {str(PROGRAMS): FOLDER, str(IMAGES): "/srv/images", **plugins}}


def install(host: Host, runtime: str):
    """What an image has, on a host that sees the programs."""
    if not may_shield():
        host.put({"/usr/local/sbin/runc": (TESTS / "real-kubernetes/runc", 0o755)})
    host.sh(f"for name in {' '.join(NAMES)}; do ln -s {FOLDER}/$name /usr/local/bin/$name; done")
    if runtime == "docker":
        # By which the kubelet forwards ports where it speaks to docker itself.
        give(host, "/usr/bin/socat")
    # The kubelet hands it on to pods; nobody answers there.
    host.write("/etc/resolv.conf", f"nameserver {GATEWAY}\n")


def load_images(host: Host, runtime: str, *archives: str):
    """Into the runtime, by which no registry is asked for them."""
    command = "docker load -qi" if runtime == "docker" else "ctr -n k8s.io images import"
    host.sh(f"for image in {' '.join(archives or ('/srv/images/*.tar',))}; do {command} $image; done", timeout=NET)


class RealNode(Node):
    """One of a RealCluster."""
    outputs = ("node_ready", "certificate_requests")

    def __init__(self, cluster: "RealCluster", host, server, inputs: dict):
        super().__init__(host, server, inputs)
        self.cluster, self.name = cluster, host.name

    @property
    def runtime(self) -> str:
        return self.inputs["CONTAINER_RUNTIME"]

    def prepare(self):
        """What an image has; the agent is started."""
        install(self.host, self.runtime)
        self.publish()
        start(self.host, self.server)

    def up(self, settings: str = "") -> "RealNode":
        self.prepare()
        self.succeeds()
        self.load_images()
        return self

    def load_images(self, *archives: str):
        load_images(self.host, self.runtime, *archives)

    def is_quiet(self) -> bool:
        """Whether status and plan both find nothing to do."""
        return all(self.host.exec("heat-node-agent", word, check=False).returncode == 0 for word in ("status", "plan"))


class RealCluster:
    """A pod on one node reaches those on the others by static routes, through the kernel and the CNI project's bridge alone; or by flannel's routes, see
    network()."""
    # Of all nodes that it may have.
    addresses, subnets = ADDRESSES, SUBNETS

    def __init__(self, hosts, signal_server, magnum):
        self.hosts, self.signal_server, self.magnum = hosts, signal_server, magnum
        self.nodes: dict[str, RealNode] = {}
        self.ready_since = 0.0
        self.version = version()

    def inputs_of(self, name: str, **more) -> dict:
        """What its deployment says."""
        role = "master" if name.startswith("m") else "worker"
        volume = f"7c1f4d0e-93a2-4b86-8d55-2f60c6b1a9{list(self.addresses).index(name):02x}"
        given = {"KUBE_TAG": f"v{self.version}", "ETCD_TAG": "v3.4.23", "DOCKER_VOLUME": volume, **HOSTS_OWN,
                **network({self.addresses[n]: self.subnets[n] for n in self.addresses}), **self.magnum.parameters(), **more}
        if flanneld.given() and role == "worker":
            given["ETCD_SERVER_IP"] = self.addresses["m1"]  # of flannel's leases
        return parameters(role, name, self.addresses[name], self.addresses["m1"], **given)

    def boot(self, name: str, **more) -> RealNode:
        """A host with its programs, two volumes if it is a master; the agent is not there yet."""
        inputs = self.inputs_of(name, **more)
        volumes = {"vdb": ("6G", inputs["DOCKER_VOLUME"])}
        host = self.hosts(name, ip=self.addresses[name], volumes=volumes, **seen("/opt/cni/bin" if name == "m1" else "/usr/lib/cni"))
        # As images have it whose distribution has the plugins elsewhere.
        host.sh("mkdir -p /opt/cni; [ -e /opt/cni/bin ] || ln -s /usr/lib/cni /opt/cni/bin")
        self.nodes[name] = self.node(name, host, inputs)
        return self.nodes[name]

    def node(self, name: str, host: Host, inputs: dict) -> RealNode:
        """With what tells it its deployment."""
        return RealNode(self, host, self.signal_server(port=18200 + list(self.addresses).index(name)), inputs)

    def leaves(self, name: str):
        """A node is gone for good, with its disks; the cluster knows."""
        node = self.nodes.pop(name)
        node.host.down()
        node.server.stop()
        self.kubectl("delete", "node", name)

    def power_cycle(self, *order: str):
        """All off at once, then on one after the other. A worker whose flanneld waits for its lease, from the master's etcd, has not booted before it has it:
        then only a second lies between two, as with pod_network.PodCluster."""
        together(*(lambda n=n: self.nodes[n].host.cut() for n in order))
        if not flanneld.given():
            for name in order:
                self.nodes[name].host.boot()
            return

        def on(at: int, name: str):
            time.sleep(at)
            self.nodes[name].host.boot()
        together(*(lambda a=a, n=n: on(a, n) for a, n in enumerate(order)))

    def kubectl(self, *words: str, input: str | None = None, check: bool = True) -> str:
        """As the cluster's administrator, on the master."""
        return self.nodes["m1"].host.exec("kubectl", "--kubeconfig", ADMIN, *words, input=input, check=check, timeout=NET).stdout

    def get(self, *words: str) -> dict:
        return json.loads(self.kubectl("get", "-o", "json", *words))

    def apply(self, *objects: dict):
        self.kubectl("apply", "-f", "-", input=json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}))

    def conditions(self) -> dict[str, dict[str, str]]:
        """Of each node, by type."""
        return {node["metadata"]["name"]: {c["type"]: c["status"] for c in node["status"].get("conditions", [])} for node in self.get("nodes")["items"]}

    def subnet_of(self, name: str) -> ipaddress.IPv4Network:
        """That a node's pods are in."""
        if not flanneld.given():
            return ipaddress.IPv4Network(self.subnets[name])
        [own] = re.findall(r"(?m)^FLANNEL_SUBNET=(\S+)", self.nodes[name].host.read("/run/flannel/subnet.env"))
        return ipaddress.IPv4Interface(own).network

    def is_ready(self, *names: str):
        """Waits until these nodes are all there are, and Ready."""
        def ready() -> bool:
            found = {name: conditions.get("Ready") for name, conditions in self.conditions().items()}
            assert found == {name: "True" for name in names}, found
            return True
        wait_for(ready, NET, f"{names} Ready", every=1)
        # No pod is taken before its account is there, which is the controller manager's, and may come later than the nodes.
        wait_for(lambda: self.get("serviceaccount", "default"), NET, "the account of pods", every=1)

    def address_of(self, pod: str) -> str:
        """Of a pod that is ready, after a while."""
        def ready() -> str:
            status = self.get("pod", pod)["status"]
            assert {"type": "Ready", "status": "True"}.items() <= next((c for c in status["conditions"] if c["type"] == "Ready"), {}).items(), status
            return status["podIP"]
        return wait_for(ready, NET, f"pod {pod}", every=1)

    def inside(self, pod: str, *words: str, check: bool = True) -> str:
        return self.kubectl("exec", pod, "--", *words, check=check)

    def statuses_of_account(self, name: str, paths: list[str], files: tuple[str, str]) -> list[int]:
        """What the API answers a pod's account, asked by a client of Go on the pod's node: by a token and a CA in these files."""
        ca, token = files
        config = {"apiVersion": "v1", "kind": "Config", "current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                  "clusters": [{"name": "c", "cluster": {"server": f"https://{self.addresses['m1']}:6443", "certificate-authority": ca}}],
                  "users": [{"name": "u", "user": {"tokenFile": token}}]}
        host = self.nodes[name].host
        host.write("/run/account.conf", json.dumps(config), 0o600)
        found = []
        for path in paths:
            done = host.exec("kubectl", "--kubeconfig", "/run/account.conf", "get", "--raw", path, check=False)
            said = re.search(r"\((Forbidden|Unauthorized)\)|(Unauthorized|x509: .*)", done.stderr)
            words = said and (said[1] or said[2])
            found.append(200 if done.returncode == 0 else {"Forbidden": 403, "Unauthorized": 401}.get(words, words or done.stderr))
        return found

    def asked_by(self, address: str, host: str, port: int, request: str = "hostname", tries: int = 1) -> set[str]:
        """What answers a pod that serves (agnhost netexec at its port 8080), when it asks another address as often as this."""
        dial = f"http://{address}:8080/dial?host={host}&port={port}&protocol=http&request={request}&tries={tries}"
        said = json.loads(self.nodes["m1"].host.exec("curl", "-sS", "-m", "60", dial).stdout)
        assert not said.get("errors"), said
        return set(said.get("responses", []))


@contextmanager
def cluster_in(folder: Path, make: Callable[..., RealCluster] = RealCluster) -> Iterator[RealCluster]:
    """One without nodes yet; all that it boots and starts ends with it."""
    hosts_module.lab_up(address=f"{GATEWAY}/24")
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
        yield make(host, server, magnum.start())
    finally:
        for end in reversed(ends):
            end()
        hosts_module.lab_down()


def pod(name: str, node: str, *arguments: str, image: str = AGNHOST, command: list[str] | None = None, labels: dict | None = None, **spec) -> dict:
    """On this node, whatever its taints; its arguments are agnhost's unless another image is given."""
    container = {"name": "c", "image": image, "imagePullPolicy": "Never", "args": list(arguments), **({"command": command} if command else {})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"name": name, **(labels or {})}},
            "spec": {"nodeSelector": {"kubernetes.io/hostname": node}, "tolerations": [{"operator": "Exists"}], "terminationGracePeriodSeconds": 1,
                     "containers": [container], **spec}}


def service(name: str, selector: dict, port: int, **spec) -> dict:
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": {"selector": selector, "ports": [{"port": port}], **spec}}
