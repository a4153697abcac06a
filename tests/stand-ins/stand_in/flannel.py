"""flanneld: reads the network's configuration, takes a lease, writes subnet.env, notifies, and follows the other leases.

Known from: flags of 0.5.0 to 0.20.2 [list]; keys, validation by version, subnet.env, READY, what ends it, events that are lost between
two watches from 0.18.0 to 0.21.4 [spec seed-systems 8, tried]; which lease is taken again [memory]. What it does to the kernel is
in backends.py.
Not imitated: watches, for which etcd is asked once a second; renewal of the lease, IPv6, the multi-network mode, the client of -remote,
routes with -kube-subnet-mgr; only one etcd endpoint is asked at a time, the first that answers.

A word of its own in the control file: "blind" loses every event while it stands there, in the versions that lose some. What was lost
stays so until the next start, which reads all leases.
"""
from __future__ import annotations

import base64
import http.client
import ipaddress
import json
import os
import random
import re
import shutil
import socket
import struct
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlencode, urlsplit

from stand_in import Refused, backends, files, service, tables, tls
from stand_in.backends import Lease
from stand_in.flags import Flags, is_address

BACKENDS = {"udp": (0, 5), "vxlan": (0, 5), "host-gw": (0, 5), "alloc": (0, 5), "aws-vpc": (0, 5), "gce": (0, 5), "extension": (0, 8),
            "ali-vpc": (0, 8), "ipip": (0, 10), "ipsec": (0, 10), "wireguard": (0, 17), "tencent-vpc": (0, 14)}
TTL = 24 * 3600
LOSES_EVENTS = ((0, 18, 0), (0, 21, 5))
RULES_EVERY, ROUTES_EVERY = 5, 10  # seconds
SUBNET_FILE = "/run/flannel/subnet.env"


class NotYet(Exception):
    """flanneld logs it and tries again in a second."""


@dataclass
class Network:
    """The document under PREFIX/config."""
    network: ipaddress.IPv4Network
    length: int
    first: ipaddress.IPv4Address
    last: ipaddress.IPv4Address
    backend: str
    options: dict


@dataclass
class Program:
    version: tuple[int, ...]
    flags: Flags


def check(version: str, flags: Flags) -> Program:
    program = Program(tables.flannel_version(version), flags)
    pair = flags.get("etcd-certfile"), flags.get("etcd-keyfile")
    if any(pair):
        if not all(pair):
            raise Refused("Failed to create SubnetManager: -etcd-certfile and -etcd-keyfile go together")
        files.pair(*pair, "Failed to create SubnetManager")
    if flags.get("etcd-cafile"):
        files.certificates(flags.get("etcd-cafile"), "Failed to create SubnetManager")
    for url in endpoints(flags):
        if not re.fullmatch(r"https?://(\[[0-9a-fA-F:]+\]|[^\s/:\[\]]+)(:\d+)?/?", url):
            raise Refused(f"Failed to create SubnetManager: bad -etcd-endpoints: {url!r}")
    if flags.get("public-ip") and not is_address(flags.get("public-ip")):
        raise Refused(f"invalid public IP address: {flags.get('public-ip')!r}")
    if flags.on("kube-subnet-mgr"):
        path = flags.get("net-config-path", "/etc/kube-flannel/net-conf.json")
        try:
            parse(files.read(path, "Failed to create SubnetManager").decode(), program.version)
        except NotYet as error:
            raise Refused(f"Failed to create SubnetManager: error parsing subnet config: {error}") from error
        if path := flags.get("kubeconfig-file"):
            files.Kubeconfig(path)
    return program


def endpoints(flags: Flags) -> list[str]:
    return [u for u in flags.get("etcd-endpoints", "http://127.0.0.1:4001,http://127.0.0.1:2379").split(",") if u]


def parse(text: str, version: tuple[int, ...]) -> Network:
    """Keys in any letter case. [tried] An unknown type ends flanneld from 0.8 on, anything else is tried again."""
    try:
        document = json.loads(text)
        given = {k.lower(): v for k, v in document.items()}
        network = ipaddress.IPv4Network(given["network"], strict=False)
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise NotYet(f"bad configuration: {error!r}") from error
    length = given.get("subnetlen") or 0
    new = version >= (0, 10, 0)
    if not isinstance(length, int) or isinstance(length, bool):
        raise NotYet(f"json: cannot unmarshal {length!r} into SubnetLen of type uint")
    if not length:
        length = 24 if network.prefixlen < 24 else network.prefixlen + (2 if new else 1)
    if new and (length > 30 or length < network.prefixlen + 2 or network.prefixlen > 28):
        raise NotYet(f"SubnetLen /{length} of {network}: at most 30, at least four subnets, network at most /28")
    if length < network.prefixlen:
        raise NotYet(f"HostSubnet length /{length} is larger than the network {network}")
    size = 2 ** (32 - length)
    ends = []
    for key, default in (("subnetmin", network.network_address + (size if length > network.prefixlen else 0)),
                         ("subnetmax", network.broadcast_address - size + 1)):
        try:
            address = ipaddress.IPv4Address(given.get(key) or default)
        except ValueError as error:
            raise NotYet(f"{key}: {error}") from error
        if address not in network or (new and int(address) % size):
            raise NotYet(f"{key} {address} is not in {network} or not on a boundary of /{length}")
        ends.append(address)
    options = {k.lower(): v for k, v in (given.get("backend") or {}).items()}
    backend = options.pop("type", "udp")  # [tried] udp in every version
    if version < BACKENDS.get(backend, (99,)):
        if version >= (0, 8, 0):
            raise Refused(f"Failed to start backend: unknown backend type: {backend}")
        raise NotYet(f"unknown backend type: {backend}")
    return Network(network, length, *ends, backend, options)


# --- etcd -----------------------------------------------------------------------------------------
class Etcd:
    """The v2 keys API up to 0.17, the v3 API (by its JSON gateway) from 0.18 on; no fallback either way. [tried]"""

    def __init__(self, program: Program):
        f = program.flags
        self.v3 = program.version >= (0, 18, 0)
        self.endpoints = endpoints(f)
        self.prefix = f.get("etcd-prefix", "/coreos.com/network").rstrip("/")
        self.tls = [files.at(f.get(n)) if f.get(n) else "" for n in ("etcd-cafile", "etcd-certfile", "etcd-keyfile")]
        login = f"{f.get('etcd-username')}:{f.get('etcd-password')}"
        self.login = base64.b64encode(login.encode()).decode() if f.get("etcd-username") else ""
        self.gateway = "/v3"

    def _ask(self, method: str, path: str, body: str = "", kind: str = "application/json") -> tuple[int, dict]:
        error: Exception | None = None
        for endpoint in self.endpoints:
            url = urlsplit(endpoint)
            try:
                if url.scheme == "https":
                    connection = http.client.HTTPSConnection(url.hostname, url.port or 2379, timeout=30,
                                                             context=tls.client_context(*self.tls))
                else:
                    connection = http.client.HTTPConnection(url.hostname, url.port or 2379, timeout=30)
                with_login = {"Authorization": f"Basic {self.login}"} if self.login and not self.v3 else {}
                connection.request(method, path, body or None, {"Content-Type": kind, **with_login})
                answer = connection.getresponse()
                text = answer.read()
                connection.close()
                return answer.status, json.loads(text)
            except ValueError as bad:  # [tried] 0.17 on an etcd without the v2 API says this
                error = NotYet(f"response is invalid json. The endpoint is probably not valid etcd cluster endpoint: {bad}")
            except (OSError, http.client.HTTPException) as bad:
                error = NotYet(f"client: etcd cluster is unavailable or misconfigured: {bad}")
        raise error or NotYet("no endpoint")

    def _v3(self, call: str, body: dict) -> dict:
        status, answer = self._ask("POST", f"{self.gateway}/{call}", json.dumps(body))
        if status == 404 and self.gateway == "/v3":
            self.gateway = "/v3beta"  # etcd 3.3
            return self._v3(call, body)
        if status != 200:
            raise NotYet(f"etcd: {status} {answer}")
        return answer

    def get(self, key: str) -> str | None:
        if self.v3:
            found = self._v3("kv/range", {"key": encoded(self.prefix + key)}).get("kvs") or []
            return base64.b64decode(found[0].get("value", "")).decode() if found else None
        status, answer = self._ask("GET", f"/v2/keys{self.prefix}{key}?quorum=true")
        return answer["node"]["value"] if status == 200 else None

    def leases(self) -> dict[str, dict]:
        """10.1.2.0-24 with what is written there."""
        if self.v3:
            start = f"{self.prefix}/subnets/"
            found = self._v3("kv/range", {"key": encoded(start), "range_end": encoded(start[:-1] + "0")}).get("kvs") or []
            pairs = [(base64.b64decode(kv["key"]).decode(), base64.b64decode(kv.get("value", "")).decode()) for kv in found]
        else:
            status, answer = self._ask("GET", f"/v2/keys{self.prefix}/subnets?recursive=true")
            if status not in (200, 404):  # etcd without a leader, for a moment
                raise NotYet(f"etcd: {status} {answer}")
            pairs = [(n["key"], n["value"]) for n in answer["node"].get("nodes", [])] if status == 200 else []
        return {key.rsplit("/", 1)[-1]: json.loads(value) for key, value in pairs}

    def put_lease(self, name: str, value: str, new: bool) -> bool:
        """False: somebody else was quicker."""
        if self.v3:
            key = encoded(f"{self.prefix}/subnets/{name}")
            lease = self._v3("lease/grant", {"TTL": TTL})["ID"]
            compare = [{"key": key, "target": "CREATE", "createRevision": 0}] if new else []
            put = {"requestPut": {"key": key, "value": encoded(value), "lease": lease}}
            return bool(self._v3("kv/txn", {"compare": compare, "success": [put]}).get("succeeded"))
        query = {"value": value, "ttl": TTL, **({"prevExist": "false"} if new else {})}
        status, answer = self._ask("PUT", f"/v2/keys{quote(self.prefix)}/subnets/{name}", urlencode(query),
                                   "application/x-www-form-urlencoded")
        if status == 412:
            return False
        if status not in (200, 201):
            raise NotYet(f"etcd: {answer}")
        return True

    def drop_lease(self, name: str):
        if self.v3:
            self._v3("kv/deleterange", {"key": encoded(f"{self.prefix}/subnets/{name}")})
        else:
            self._ask("DELETE", f"/v2/keys{quote(self.prefix)}/subnets/{name}")


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


# --- interface ------------------------------------------------------------------------------------
def interface(program: Program) -> tuple[str, str, int]:
    """Name, IPv4 address and MTU of the external interface."""
    f = program.flags
    wanted = f.get("iface")
    names = [name for _, name in socket.if_nameindex()]
    if not wanted:
        routes = [line.split() for line in Path("/proc/net/route").read_text().splitlines()[1:]]
        wanted = next((r[0] for r in routes if r[1] == "00000000" and r[7] == "00000000"), "")
    for name in names:
        if (own := address_of(name)) and wanted in (name, own):
            return name, f.get("public-ip") or own, mtu_of(name)
    raise Refused("Failed to find any valid interface to use: " + (f"no {wanted}" if wanted else "no default route"))


def address_of(name: str) -> str:
    import fcntl
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        try:
            return socket.inet_ntoa(fcntl.ioctl(s, 0x8915, struct.pack("256s", name.encode()[:15]))[20:24])  # SIOCGIFADDR
        except OSError:
            return ""


def mtu_of(name: str) -> int:
    import fcntl
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        return struct.unpack_from("i", fcntl.ioctl(s, 0x8921, struct.pack("256s", name.encode()[:15])), 16)[0]  # SIOCGIFMTU


# --- life -----------------------------------------------------------------------------------------
def run(program: Program) -> int:
    service.obey("flanneld")
    name, address, mtu = interface(program)
    threading.Thread(target=work, args=(program, name, address, mtu), daemon=True).start()
    return service.wait_for_end("flanneld")


def work(program: Program, name: str, address: str, mtu: int):
    try:
        attend(program, name, address, mtu)
    except Refused as refused:
        print(refused, file=sys.stderr, flush=True)
        os._exit(refused.status)


def attend(program: Program, name: str, address: str, mtu: int):
    f = program.flags
    etcd = None if f.on("kube-subnet-mgr") else Etcd(program)
    while True:
        try:
            network, subnet = from_etcd(etcd, program, address) if etcd else from_node(program)
            break
        except NotYet as error:
            print(f"{name}: {error}", file=sys.stderr, flush=True)
            time.sleep(1)
    mtu -= {"vxlan": 50, "udp": 28, "ipip": 20, "wireguard": 80}.get(network.backend,
                                                                     0)  # [spec] 8b for udp, [tried] 1450 for vxlan, else [memory]
    own = Lease(subnet, address, network.backend, hardware_address(address))
    backend = backends.backend(network.backend, program.version, name, address, network.options)
    while True:
        try:
            backend.start(own, network.network, mtu)
            break
        except Refused as error:  # [memory] the same two ways as with an unknown backend
            if program.version >= (0, 8, 0):
                raise
            print(error, file=sys.stderr, flush=True)
            time.sleep(1)
    path = Path(files.at(f.get("subnet-file", SUBNET_FILE)))
    lines = [f"FLANNEL_NETWORK={network.network}"] if program.version >= (0, 5, 3) else []
    lines += [f"FLANNEL_SUBNET={subnet.network_address + 1}/{subnet.prefixlen}", f"FLANNEL_MTU={mtu}",
              f"FLANNEL_IPMASQ={'true' if f.on('ip-masq') else 'false'}"]
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}")
    beside.write_text("\n".join(lines) + "\n")
    beside.rename(path)
    service.notify("READY=1")
    print(f"lease {subnet} of {network.network}, {network.backend}, {name} {address}", flush=True)
    if etcd:
        follow(etcd, program, own, backend, network, touches_kernel=name != "lo")


def follow(etcd: Etcd, program: Program, own: Lease, backend: backends.Backend, network: Network, touches_kernel: bool):
    """The other leases, for as long as its own is there."""
    known: dict[str, Lease] = {}
    first, routes_due, rules_due = True, time.monotonic() + ROUTES_EVERY, 0.0
    lets_through = touches_kernel and program.version >= (0, 9, 1) and program.flags.get("iptables-forward-rules") not in ("false", "0")
    if lets_through and not shutil.which("iptables"):
        print("Failed to setup IPTables. iptables binary was not found", file=sys.stderr, flush=True)
        lets_through = False
    while True:
        if lets_through and time.monotonic() >= rules_due:
            rules_due = time.monotonic() + RULES_EVERY
            backends.let_through(program.version, network.network)
        try:
            found = read_leases(etcd)
        except NotYet as error:
            print(error, file=sys.stderr, flush=True)
            time.sleep(1)
            continue
        if str(own.subnet).replace("/", "-") not in found:
            print("Lease has been revoked. Shutting down daemon.", flush=True)
            os._exit(0)  # [tried] 0.17
        blind = not first and "blind" in service.orders("flanneld") and LOSES_EVENTS[0] <= program.version < LOSES_EVENTS[1]
        if not blind:
            for key, lease in known.items():
                if key not in found:
                    event(backend, backend.removed, lease, "removed")
            for key, lease in found.items():
                # [tried] 0.5.0 takes its own subnet for another's; 0.5.6 does not, and between them nobody looked.
                if known.get(key) != lease and (lease.subnet != own.subnet or program.version == (0, 5, 0)):
                    event(backend, backend.added, lease, "added")
        known, first = found, False
        if time.monotonic() >= routes_due:
            routes_due = time.monotonic() + ROUTES_EVERY
            backend.look()
        time.sleep(1)


def event(backend: backends.Backend, handle, lease: Lease, word: str):
    print(f"Subnet {word}: {lease.subnet} via {lease.address}", flush=True)
    if backend.kind and lease.backend != backend.kind:
        print(f"Ignoring non-{backend.kind} subnet: type={lease.backend}", file=sys.stderr, flush=True)
    else:
        handle(lease)


def read_leases(etcd: Etcd) -> dict[str, Lease]:
    return {name: Lease(subnet_of(name), value.get("PublicIP", ""), value.get("BackendType", ""),
                        (value.get("BackendData") or {}).get("VtepMAC", "")) for name, value in etcd.leases().items()}


def hardware_address(address: str) -> str:
    """Of vxlan's device: always the same for a node, where the kernel would take a random one."""
    return "02:00:" + ":".join(f"{int(b):02x}" for b in address.split("."))


def from_etcd(etcd: Etcd, program: Program, address: str) -> tuple[Network, ipaddress.IPv4Network]:
    text = etcd.get("/config")
    if text is None:
        raise NotYet("Couldn't fetch network config: config not found in etcd store")
    network = parse(text, program.version)
    value = {"PublicIP": address, **({"PublicIPv6": None} if program.version >= (0, 15, 0) else {}), "BackendType": network.backend}
    if network.backend == "vxlan":
        value["BackendData"] = {"VtepMAC": hardware_address(address)}
    taken = etcd.leases()
    own = next((n for n, v in taken.items() if v.get("PublicIP") == address), None)
    if own and not fits(network, subnet_of(own)):
        etcd.drop_lease(own)
        taken.pop(own)
        own = None
    candidates = [subnet_of(own)] if own else free(network, taken, previous(program))
    for subnet in candidates:
        if etcd.put_lease(str(subnet).replace("/", "-"), json.dumps(value), new=not own):
            return network, subnet
    lost = "failed to acquire lease: out of subnets"
    raise NotYet(lost) if program.version >= (0, 10, 0) else Refused(lost)


def subnet_of(name: str) -> ipaddress.IPv4Network:
    return ipaddress.IPv4Network(name.split("&")[0].replace("-", "/"))


def fits(network: Network, subnet: ipaddress.IPv4Network) -> bool:
    return network.first <= subnet.network_address <= network.last and subnet.prefixlen == network.length


def previous(program: Program) -> ipaddress.IPv4Network | None:
    """The subnet of the last run, from 0.8 on. [memory]"""
    if program.version < (0, 8, 0):
        return None
    try:
        text = Path(files.at(program.flags.get("subnet-file", SUBNET_FILE))).read_text()
        return ipaddress.IPv4Network(re.search(r"^FLANNEL_SUBNET=(\S+)$", text, re.M)[1], strict=False)
    except (OSError, ValueError, TypeError):
        return None


def free(network: Network, taken: dict, last: ipaddress.IPv4Network | None) -> list[ipaddress.IPv4Network]:
    """In the order in which they are tried: the last one, then any."""
    numbers = range(int(network.first), int(network.last) + 1, 2 ** (32 - network.length))
    subnets = [s for s in (ipaddress.IPv4Network((n, network.length)) for n in numbers) if str(s).replace("/", "-") not in taken]
    random.shuffle(subnets)
    return sorted(subnets, key=lambda s: s != last)


def from_node(program: Program) -> tuple[Network, ipaddress.IPv4Network]:
    """--kube-subnet-mgr: the node's own podCIDR; SubnetLen is not looked at. [spec] 5.6"""
    f = program.flags
    network = parse(files.read(f.get("net-config-path", "/etc/kube-flannel/net-conf.json"), "net-conf.json").decode(), program.version)
    server = files.Kubeconfig(f.get("kubeconfig-file")) if f.get("kubeconfig-file") else f.get("kube-api-url")
    name = os.environ.get("NODE_NAME") or socket.gethostname()
    try:
        status, text = tls.ask(server, "GET", f"/api/v1/nodes/{name}")
        if status != 200:
            raise NotYet(f"failed to acquire lease: {status} {text.decode()}")
        return network, ipaddress.IPv4Network(json.loads(text)["spec"]["podCIDR"])
    except KeyError as error:
        raise NotYet(f'failed to acquire lease: node "{name}" pod cidr not assigned') from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise NotYet(f"failed to acquire lease: {error}") from error
