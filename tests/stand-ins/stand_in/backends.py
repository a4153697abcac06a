"""What flanneld does to the kernel for the other nodes' leases, by backend: routes, devices, rules. By ip, bridge and iptables.

Known from: host-gw's routes, what they do to foreign ones, the look every ten seconds, the own subnet of 0.5.0, peers of another
segment, rules of FORWARD by version, MTU [spec seed-systems 8b, 8d, tried]; that a route is replaced when its lease comes and only added
when it is missed later, and leases of other backends are left out [source flannel 0.10, backend/route_network.go]; vxlan's
device, neighbours and routes, DirectRouting [source flannel 0.10, backend/vxlan].
Not imitated: udp's packets, vxlan's answers to misses (up to 0.8), nat rules of -ip-masq, a device that another configuration left.
With the loopback as the external interface nothing of the kernel is touched.
"""
import ipaddress
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from stand_in import Refused


@dataclass(frozen=True)
class Lease:
    subnet: ipaddress.IPv4Network
    address: str
    backend: str
    hardware: str = ""

    @property
    def gateway(self) -> str:
        """vxlan's: the first address, which is the other device's own."""
        return str(self.subnet.network_address)


def say(text: str):
    print(text, file=sys.stderr, flush=True)


def call(*words: object) -> str:
    """Its complaint, or nothing."""
    try:
        done = subprocess.run([str(w) for w in words], capture_output=True, text=True)
    except FileNotFoundError as error:
        return str(error)
    return done.stderr.strip() or f"status {done.returncode}" if done.returncode else ""


def route(subnet: object) -> str:
    """As `via ADDRESS dev INTERFACE`, or nothing; main table."""
    words = subprocess.run(["ip", "-4", "route", "show", "exact", str(subnet)], capture_output=True, text=True).stdout.split()
    return " ".join(words[1:5])


class Backend:
    """alloc, and those of which nothing more is imitated: a lease alone."""
    kind = ""

    def __init__(self, version: tuple[int, ...], interface: str, address: str, options: dict):
        self.version, self.interface, self.address, self.options = version, interface, address, options

    def start(self, own: Lease, network: ipaddress.IPv4Network, mtu: int):
        """Before subnet.env is written."""

    def added(self, lease: Lease):
        """Also where a lease has become another node's."""

    def removed(self, lease: Lease):
        """It ran out, or was deleted."""

    def look(self):
        """Every ten seconds."""


class HostGateway(Backend):
    kind = "host-gw"

    def __init__(self, *words):
        super().__init__(*words)
        self.routes: dict[ipaddress.IPv4Network, str] = {}  # what it looks after

    def added(self, lease: Lease):
        wanted = f"via {lease.address} dev {self.interface}"
        if self.version >= (0, 7, 0):
            self.routes[lease.subnet] = wanted
            there = route(lease.subnet)
            if there == wanted:
                return
            if there:
                say(f"Replacing existing route to {lease.subnet} {there} with {wanted}")
                call("ip", "route", "del", lease.subnet)
        error = call("ip", "route", "add", lease.subnet, *wanted.split())
        if error:
            say(f"Error adding route to {lease.subnet} {wanted}: {as_flannel_says(error)}")
        else:
            self.routes[lease.subnet] = wanted

    def removed(self, lease: Lease):
        self.routes.pop(lease.subnet, None)
        if error := call("ip", "route", "del", lease.subnet, "via", lease.address, "dev", self.interface):
            say(f"Error deleting route to {lease.subnet}: {error}")

    def look(self):
        for subnet, wanted in self.routes.items():
            if route(subnet) != wanted:
                error = call("ip", "route", "add", subnet, *wanted.split())
                say(f"Error recovering route to {subnet}: {as_flannel_says(error)}" if error else f"Route recovered {subnet} {wanted}")


def as_flannel_says(error: str) -> str:
    """The kernel's number, where ip gives the kernel's longer text."""
    return "network is unreachable" if "invalid gateway" in error or "unreachable" in error else error.lower()


class Vxlan(Backend):
    kind = "vxlan"

    def start(self, own: Lease, network: ipaddress.IPv4Network, mtu: int):
        number, port = self.options.get("vni", 1), self.options.get("port") or 8472
        self.device = f"flannel.{number}"
        # Not in /sys, which may show another network namespace.
        if call("ip", "link", "show", "dev", self.device):
            learning = "learning" if self.options.get("learning") else "nolearning"
            if error := call("ip", "link", "add", self.device, "address", own.hardware, "type", "vxlan", "id", number, "dev",
                             self.interface, "local", self.address, "dstport", port, learning):
                raise Refused(f"Error registering network: failed to create {self.device}: {error}")
        # Up to 0.7 with the whole network's length, which brings a route to all of it. [memory]
        length = 32 if self.version >= (0, 8, 0) else network.prefixlen
        call("ip", "address", "flush", "dev", self.device)
        call("ip", "address", "add", f"{own.gateway}/{length}", "dev", self.device)
        if error := call("ip", "link", "set", self.device, "address", own.hardware, "mtu", mtu, "up"):
            raise Refused(f"Error registering network: failed to configure {self.device}: {error}")

    def direct(self, lease: Lease) -> bool:
        """DirectRouting, to a node that no router lies before."""
        if not self.options.get("directrouting"):
            return False
        way = subprocess.run(["ip", "-4", "route", "get", lease.address], capture_output=True, text=True).stdout.split()
        return bool(way) and "via" not in way

    def added(self, lease: Lease):
        if self.direct(lease):
            self._do("ip", "route", "replace", lease.subnet, "via", lease.address)
            return
        self._do("ip", "neighbour", "replace", lease.gateway, "lladdr", lease.hardware, "dev", self.device, "nud", "permanent")
        self._do("bridge", "fdb", "replace", lease.hardware, "dev", self.device, "dst", lease.address, "self", "permanent")
        self._do("ip", "route", "replace", lease.subnet, "via", lease.gateway, "dev", self.device, "onlink")

    def removed(self, lease: Lease):
        if self.direct(lease):
            self._do("ip", "route", "del", lease.subnet, "via", lease.address)
            return
        self._do("ip", "neighbour", "del", lease.gateway, "dev", self.device)
        self._do("bridge", "fdb", "del", lease.hardware, "dev", self.device, "dst", lease.address, "self")
        self._do("ip", "route", "del", lease.subnet, "via", lease.gateway, "dev", self.device, "onlink")

    def _do(self, *words: object):
        if error := call(*words):
            say(f"{' '.join(map(str, words))}: {error}")


class Udp(Backend):
    kind = "udp"

    def start(self, own: Lease, network: ipaddress.IPv4Network, mtu: int):
        if not Path("/dev/net/tun").exists():
            raise Refused("Error registering network: failed to open TUN device: open /dev/net/tun: no such file or directory")
        call("ip", "tuntap", "add", "mode", "tun", "flannel0")
        call("ip", "address", "replace", f"{own.gateway}/{network.prefixlen}", "dev", "flannel0")
        call("ip", "link", "set", "flannel0", "mtu", mtu, "up")


def backend(kind: str, *words) -> Backend:
    of_kind = next((c for c in (HostGateway, Vxlan, Udp) if c.kind == kind), Backend)
    return (Backend if words[1] == "lo" else of_kind)(*words)


def let_through(version: tuple[int, ...], network: ipaddress.IPv4Network):
    """filter/FORWARD from 0.9.1 on: two rules at its end, from 0.20 on in a chain of their own."""
    chain = "FORWARD"
    if version >= (0, 20, 0):
        chain = "FLANNEL-FWD"
        call("iptables", "-w", "-N", chain)
        append("FORWARD", "-m", "comment", "--comment", "flanneld forward", "-j", chain)
    for side in ("-s", "-d"):
        append(chain, side, network, "-j", "ACCEPT")


def append(chain: str, *rule: object):
    if call("iptables", "-w", "-C", chain, *rule) and (error := call("iptables", "-w", "-A", chain, *rule)):
        say(f"Failed to ensure iptables rules: {error}")
