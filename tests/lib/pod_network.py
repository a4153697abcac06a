"""Nodes whose pods reach each other: real hosts on one bridge, a real etcd on the first, a real docker with a container on each, flanneld's
stand-in, or the program of HNA_FLANNELD."""
import ipaddress
import json
import re
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from lib import flanneld, stand_ins
from lib.cluster import Node
from lib.common import GATEWAY, Failed, in_lab
from lib.hosts import Host
from lib.node import start
from lib.signal_server import SignalServer

NETWORK = "10.100.0.0/16"
PREFIX = "/coreos.com/network"
FIRST = ipaddress.IPv4Address(GATEWAY) + 20
# A net: the watch on pods needs seconds, and where it fails to see something nothing else mends it.
SOON = 300
# Of nothing but sleep.
IMAGE = "tar -ch /bin/sleep $(ldd /bin/sleep | grep -o '/[^ ]*') 2>/dev/null | docker import - pod >/dev/null"
FACTS = """
ip -4 -o address show | awk '{print "address", $2, $4}'
ip -4 route show table main | sed 's/^/route /'
pod=$(docker inspect -f '{{.State.Pid}} {{.NetworkSettings.IPAddress}}' pod 2>/dev/null) && echo "pod $pod"
sed -n 's/^FLANNEL_/flannel /p' /run/flannel/subnet.env /run/flanneld/subnet.env 2>/dev/null || :
"""


def together(*calls):
    """All of them side by side; their results in order."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return [f.result() for f in [pool.submit(c) for c in calls]]


class PodNode(Node):
    """One of a PodCluster."""

    def __init__(self, cluster: "PodCluster", number: int, host: Host, server: SignalServer, inputs: dict):
        super().__init__(host, server, inputs)
        self.cluster, self.number = cluster, number
        self.address = inputs["KUBE_NODE_IP"]

    @property
    def bridge(self) -> str:
        """That its pods are on."""
        return self.cluster.bridge

    def prepare(self):
        """The agent is started; how that ends is for result()."""
        stand_ins.into(self.host, self.cluster.kubernetes, *([f"flanneld={self.cluster.flannel}"] if self.cluster.flannel else []))
        self.publish()
        start(self.host, self.server)

    def up(self, settings: str = "") -> "PodNode":
        self.prepare()
        self.succeeds()
        return self.with_pod()

    def with_pod(self) -> "PodNode":
        self.host.sh(f"{IMAGE}; docker run -d --name pod --restart=always --stop-signal=KILL pod sleep infinity")
        return self

    def facts(self) -> "Facts":
        return Facts(self.host.sh(FACTS))

    def pings(self, addresses: list[str], pod: int) -> list[str]:
        """Those that do not answer this node's container, each asked once."""
        if not addresses:
            return []
        asked = " ".join(f"(nsenter -t {pod} -n ping -qc1 -W3 {a} >/dev/null || echo {a}) &" for a in addresses)
        return self.host.sh(f"{asked} wait").split()

    def causes(self, event: str, words: str = "") -> int:
        """How often it was told so far."""
        return len([e for e in self.host.journal(HNA_EVENT=event) if words in e["MESSAGE"]])

    def cause(self, event: str, words: str = "", before: int = 0) -> dict:
        """The newest line of the journal about this event, once there are more than before."""
        return self.host.reported(event, before + 1, words)[-1]


class Facts:
    """What a node's kernel and docker say."""

    def __init__(self, text: str):
        rows = [line.split(maxsplit=1) for line in text.splitlines()]
        self.addresses = [tuple(rest.split()) for word, rest in rows if word == "address"]
        self.routes = [" ".join(rest.split()) for word, rest in rows if word == "route"]
        pods = [rest.split() for word, rest in rows if word == "pod"]
        self.pod = next(((int(found[0]), found[1]) for found in pods if len(found) == 2), (0, ""))
        self.flannel = dict(rest.split("=", 1) for word, rest in rows if word == "flannel")

    def address_of(self, device: str) -> ipaddress.IPv4Interface | None:
        return next((ipaddress.IPv4Interface(a) for d, a in self.addresses if d == device), None)

    def to(self, network: str) -> dict[str, str]:
        """Routes into the network that go through another node: subnet → how; nothing of who made it."""
        found = {}
        for route in self.routes:
            subnet, *words = route.split()
            if words[0] == "via" and subnet != "default" and ipaddress.IPv4Network(subnet).subnet_of(ipaddress.IPv4Network(network)):
                found[subnet] = " ".join([*words[:4], *(w for w in words if w == "onlink")])
        return found


class PodCluster:
    """Its nodes are a, b, c, ...; a is the master with etcd. flannel: the version, "" for none; that of HNA_FLANNELD instead, where it is alike."""
    bridge = "docker0"

    def __init__(self, folder, kubernetes: str, flannel: str = "", port: int = 18100, **parameters):
        self.folder, self.kubernetes, self.port, self.parameters = folder, kubernetes, port, parameters
        self.flannel = flanneld.version_like(flannel)
        self.nodes: dict[str, PodNode] = {}
        self.hosts: list[Host] = []
        self.servers: list[SignalServer] = []
        self.uuid = str(uuid.uuid4())
        self.segments = False
        self.lock = threading.Lock()  # nodes come side by side

    # --- life ---
    def address(self, name: str) -> str:
        return str(FIRST + self.number(name))

    @staticmethod
    def number(name: str) -> int:
        return "abcdefgh".index(name)

    def inputs(self, name: str, **more) -> dict:
        master = self.address("a")
        volume = str(uuid.UUID(int=uuid.UUID(self.uuid).int ^ self.number(name) << 100))
        own = {"KUBE_TAG": f"v{self.kubernetes}", "TLS_DISABLED": "True", "INSTANCE_NAME": name, "KUBE_NODE_IP": self.address(name),
                "CLUSTER_UUID": self.uuid, "DOCKER_VOLUME": volume, "WAIT_TIMEOUT": 600, "CONTAINER_RUNTIME": "docker", "DRIFT": "repair",
                "FLANNEL_NETWORK_CIDR": NETWORK, "DNS_SERVICE_IP": "10.254.0.10", "ETCD_TAG": "v3.4.23"}
        if self.flannel:
            own |= {"FLANNEL_TAG": f"v{self.flannel}", "FLANNEL_RUNS_AS": "unit"}
        own |= {"ROLE": "master", "KUBE_API_PRIVATE_ADDRESS": master} if name == "a" else {
            "ROLE": "worker", "KUBE_MASTER_IP": master, "ETCD_SERVER_IP": master}
        return {k: v for k, v in (own | self.parameters | more).items() if v is not None}

    def boot(self, name: str, gateway: str = GATEWAY, cable: str = "br0", **more) -> PodNode:
        """A fresh host of this name, its agent not yet installed; parameters."""
        inputs = self.inputs(name, **more)
        if name in self.nodes:
            self.nodes.pop(name).host.down()
        host = Host(name)
        with self.lock:
            self.hosts[:] = [h for h in self.hosts if h.name != name] + [host]
        host.up(ip=inputs["KUBE_NODE_IP"], gateway=gateway, volumes={"vdb": ("1G", inputs["DOCKER_VOLUME"])})
        in_lab("ip", "link", "set", f"v-{name}", "master", cable)
        with self.lock:
            number = len(self.servers)
            server = SignalServer(self.folder / f"signals-{number}", port=self.port + number)
            self.servers.append(server)
        self.nodes[name] = PodNode(self, self.number(name), host, server.start(), inputs)
        return self.nodes[name]

    def up(self, *names: str) -> "PodCluster":
        """All of them side by side: a worker waits for the network's description."""
        together(*(lambda n=n: self.boot(n).up() for n in names))
        return self

    def down(self):
        def off(host: Host):
            host.cut()  # nothing of it is wanted any more
            host.down()
        if self.hosts:
            together(*(lambda h=h: off(h) for h in self.hosts))
        for server in self.servers:
            server.stop()
        in_lab("ip", "link", "del", "br1", check=False)

    # --- what is right ---
    def mistakes(self, *names: str) -> list[str]:
        """What is not as it must be, if these nodes are all there are: bridges, routes, and a ping from each pod to each other pod."""
        nodes = [self.nodes[n] for n in names]
        facts = together(*(n.facts for n in nodes))
        found, subnets = [], {}
        for node, fact in zip(nodes, facts):
            bridge = fact.address_of(node.bridge)
            if not bridge or not bridge.network.subnet_of(ipaddress.IPv4Network(NETWORK)):
                found.append(f"{node.host.name}: {node.bridge} is {bridge}")
            elif fact.flannel and fact.flannel.get("SUBNET") != str(bridge):
                found.append(f"{node.host.name}: {node.bridge} is {bridge}, flannel says {fact.flannel.get('SUBNET')}")
            elif not fact.pod[0] or ipaddress.IPv4Address(fact.pod[1]) not in bridge.network:
                found.append(f"{node.host.name}: its pod is {fact.pod}, not in {bridge.network}")
            else:
                subnets[node] = bridge.network
        if found:
            return found
        for node, fact in zip(nodes, facts):
            wanted = {str(s): self.way(peer, s) for peer, s in subnets.items() if peer is not node}
            if (routes := fact.to(NETWORK)) != wanted:
                found.append(f"{node.host.name}: routes {routes}, not {wanted}")
        if found:
            return found
        pods = [f.pod[1] for f in facts]
        for node, fact, silent in zip(nodes, facts, together(*(
                lambda n=n, f=f: n.pings([p for p in pods if p != f.pod[1]], f.pod[0]) for n, f in zip(nodes, facts)))):
            found += [f"{node.host.name}: pod {fact.pod[1]} does not reach {address}" for address in silent]
        return found

    backend = "host-gw"

    def way(self, peer: PodNode, subnet: ipaddress.IPv4Network) -> str:
        """The route to a peer."""
        if self.backend == "vxlan":
            return f"via {subnet.network_address} dev flannel.1 onlink"
        return f"via {peer.address} dev eth0"

    def right(self, *names: str, since: float | None = None, within: float = SOON, what: str = ""):
        """Waits until nothing is wrong; says how many seconds after the given moment of time.monotonic() that was."""
        since, last = since or time.monotonic(), []
        while True:
            asked = time.monotonic()
            try:
                if not (last := self.mistakes(*names)):
                    break
            except Failed as error:  # a host on its way down or up
                last = [str(error)]
            assert asked - since <= within, f"{what}: not right within {within} s: {last}"
            time.sleep(0.2)
        print(f"{what}: right after {asked - since:.1f} s")

    # --- what happens to it ---
    def etcd(self, *words: str) -> str:
        """etcdctl by the API that this flannel reads, below its prefix: a first word get, del, put, ls."""
        verb, key, *rest = words
        if self.v2():
            verb = {"del": "rm", "put": "set"}.get(verb, verb)
            command = f"ETCDCTL_API=2 etcdctl --timeout 60s --total-timeout 120s --endpoints http://{self.address('a')}:2379 {verb} {PREFIX}{key}"
        else:
            verb, flags = ("get", " --prefix --keys-only") if verb == "ls" else (verb, " --print-value-only" if verb == "get" else "")
            command = f"ETCDCTL_API=3 etcdctl --dial-timeout=60s --command-timeout=60s --endpoints http://{self.address('a')}:2379 {verb}{flags} {PREFIX}{key}"
        return self.nodes["a"].host.sh(" ".join([command, *(f"'{r}'" for r in rest)]))

    def v2(self) -> bool:
        return tuple(map(int, self.flannel.split("."))) < (0, 18, 0)

    def leases(self) -> list[str]:
        """10.100.5.0-24"""
        return re.findall(rf"{PREFIX}/subnets/(\S+)", self.etcd("ls", "/subnets"))

    def lease_of(self, name: str) -> str:
        node = self.nodes[name]
        return str(node.facts().address_of(node.bridge).network).replace("/", "-")

    def description(self) -> dict:
        return json.loads(self.etcd("get", "/config"))

    def has_given_flanneld(self) -> bool:
        """Whether its flanneld is that of HNA_FLANNELD, which no test tells what to do."""
        program = flanneld.given()
        return program is not None and program.version == self.flannel

    @contextmanager
    def blind(self, *names: str):
        """flanneld of these nodes loses the events of etcd meanwhile."""
        for name in names:
            self.nodes[name].host.sh(f"mkdir -p {stand_ins.CONTROL}; echo blind >{stand_ins.CONTROL}/flanneld")
        try:
            yield
        finally:
            for name in names:
                self.nodes[name].host.remove(f"{stand_ins.CONTROL}/flanneld")

    @contextmanager
    def port_security(self):
        """The ports let out what has the node's own address alone, as Neutron's do without allowed_address_pairs."""
        rules = "\n".join(f'iifname "v-{n}" ether type ip ip saddr != {node.address} drop' for n, node in self.nodes.items())
        self._nft(f"table bridge port-security {{ chain forward {{ type filter hook forward priority 0;\n{rules}\n}}\n}}")
        try:
            yield
        finally:
            self._nft("delete table bridge port-security")

    def _nft(self, rules: str):
        in_lab("chroot", self.nodes["a"].root, "nft", "-f", "-", input=rules)

    @staticmethod
    def second_segment(gateway: str):
        """A second bridge with this address; the lab's namespace forwards between the two."""
        in_lab("ip", "link", "add", "br1", "type", "bridge")
        in_lab("ip", "address", "add", gateway, "dev", "br1")
        in_lab("ip", "link", "set", "br1", "up")
        in_lab("sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward")

    def power_cycle(self, order: str, pause: float = 1.0):
        """All off at once, then on one after the other, not waiting for one another. A node that needs a later one waits for it."""
        together(*(node.host.cut for node in self.nodes.values()))

        def on(at: int, name: str):
            time.sleep(at * pause)
            self.nodes[name].host.boot()
        together(*(lambda a=a, n=n: on(a, n) for a, n in enumerate(order)))
