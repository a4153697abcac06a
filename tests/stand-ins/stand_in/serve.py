"""Serving: ports, health, the list of nodes, registration, notification, and dying when told to.

Known from: [spec] for ports (10251 and 10252 without TLS, gone with 1.24; 10257 and 10259 with TLS from 1.12 and 1.13 on; 10248, 10250,
10255, 10249, 10256) and for /healthz being exactly "ok"; /livez and /readyz from 1.16 on [spec 7.2, memory]. Who tells systemd
READY=1: kube-apiserver in every version (kubernetes pull 8764 of 2015), kubelet from 1.10 on (release notes of 1.10, pull 60654), the
others never.
kube-apiserver is ready once its etcd is healthy and ends itself when that takes too long; kube-controller-manager ends when the API
does not answer within 10 s; the rest wait for ever. [memory]
Not imitated: any API but nodes; leader election (all serve alike); signing of certificates (a kubelet with only a bootstrap kubeconfig
waits for ever); leases of nodes. Nodes are kept in memory: after a restart of the API the kubelets register again.
"""
import http.client
import json
import os
import platform
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

from stand_in import Refused, files
from stand_in.kubernetes import Program

CONTROL = Path(os.environ.get("HNA_STAND_IN_CONTROL") or files.at("/run/heat-node-agent-stand-ins"))
ETCD_SECONDS, API_SECONDS = 30, 10
OK = (200, b"ok")
HEALTH = ("/healthz", "/livez", "/readyz")


def notify(text: str):
    """sd_notify(3)."""
    if address := os.environ.get("NOTIFY_SOCKET"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
            s.sendto(text.encode(), "\0" + address[1:] if address.startswith("@") else address)


def orders(name: str) -> list[str]:
    """What the control file of this program says, word by word."""
    try:
        return (CONTROL / name).read_text().split()
    except OSError:
        return []


def obey(name: str):
    """Ends the process if that is the order."""
    words = orders(name)
    if words[:1] == ["die"]:
        print(f"{name}: told to die", file=sys.stderr, flush=True)
        os._exit(int(words[1]) if len(words) > 1 else 1)


def wait_for_end(name: str) -> int:
    """SIGTERM and SIGINT end cleanly, SIGUSR1 at once with 1."""
    end = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: end.set())
    signal.signal(signal.SIGUSR1, lambda *_: os._exit(1))
    while not end.wait(0.2):
        obey(name)
    return 0


# --- TLS ------------------------------------------------------------------------------------------
def client_context(ca: str, certificate: str, key: str, insecure: bool = False) -> ssl.SSLContext:
    """Each a path or PEM text."""
    context = ssl.create_default_context(**({"cadata": ca} if "-----BEGIN" in ca else {"cafile": ca or None}))
    if insecure:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if certificate:
        with tempfile.TemporaryDirectory() as folder:
            paths = []
            for name, value in (("certificate", certificate), ("key", key)):
                if "-----BEGIN" in value:
                    path = Path(folder) / name
                    path.touch(mode=0o600)
                    path.write_text(value)
                    value = str(path)
                paths.append(value)
            context.load_cert_chain(*paths)
    return context


def server_context(certificate: tuple[str, str] | None, client_ca: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    if certificate:
        context.load_cert_chain(*certificate)
    else:
        with tempfile.TemporaryDirectory() as folder:  # as the real ones do when they are given none
            pair = f"{folder}/certificate", f"{folder}/key"
            try:
                subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "365", "-subj",
                                f"/CN={socket.gethostname()}",
                                "-out", pair[0], "-keyout", pair[1]], check=True, capture_output=True)
            except (OSError, subprocess.CalledProcessError) as error:
                raise Refused(f"no certificate is given and none can be made: {error}") from error
            context.load_cert_chain(*pair)
    if client_ca:
        context.load_verify_locations(client_ca)
        context.verify_mode = ssl.CERT_OPTIONAL
    return context


def ask(server: files.Kubeconfig | str, method: str, path: str, body: dict | None = None, seconds: float = 5) -> tuple[int, bytes]:
    """A request to the API as this program's kubeconfig says."""
    url = urlsplit(server if isinstance(server, str) else server.server)
    headers = {"Content-Type": "application/merge-patch+json" if method == "PATCH" else "application/json"}
    if url.scheme == "https":
        context = client_context(server.ca, server.certificate, server.key, server.insecure)
        connection = http.client.HTTPSConnection(url.hostname, url.port or 443, timeout=seconds, context=context)
    else:
        connection = http.client.HTTPConnection(url.hostname, url.port or 80, timeout=seconds)
    if not isinstance(server, str) and server.token:
        headers["Authorization"] = f"Bearer {server.token}"
    try:
        connection.request(method, path, json.dumps(body) if body is not None else None, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


# --- HTTP -----------------------------------------------------------------------------------------
class Who:
    """Who asks: by client certificate, token, or the port without credentials."""

    def __init__(self, name: str, groups: set[str]):
        self.name, self.groups = name, groups


class Service:
    """Answers of one program; each port's handler asks it."""

    def __init__(self, program: Program):
        self.program = program

    def answer(self, method: str, path: str, body: bytes, who: Who | None, tls: bool) -> tuple[int, bytes]:
        if "unhealthy" in orders(self.program.component) and path in HEALTH:
            return 500, b"told to be unhealthy"
        if tls and who is None and not self.program.anonymous:
            return 401, b"Unauthorized"
        return self.get(path) if method == "GET" else (405, b"")

    def get(self, path: str) -> tuple[int, bytes]:
        if path == "/healthz":
            return OK
        if path == "/metrics":
            return 200, f"process_start_time_seconds {START}\n".encode()
        if path == "/proxyMode" and self.program.component == "kube-proxy":
            return 200, (self.program.flags.get("proxy-mode") or self.program.document.get("mode") or "iptables").encode()
        if path == "/version":
            return 200, version(self.program)
        return 404, b"404 page not found\n"


START = int(time.time())


def version(p: Program) -> bytes:
    return json.dumps({"major": "1", "minor": str(p.minor), "gitVersion": f"v{p.version}", "platform": "linux/amd64"}).encode()


class Api(Service):
    """kube-apiserver: health that asks etcd, and nodes."""

    def __init__(self, program: Program):
        super().__init__(program)
        self.nodes: dict[str, dict] = {}
        self.lock = threading.Lock()
        self.health = threading.Lock()
        self.etcd_was = (0.0, "not asked yet")
        f = program.flags
        self.etcd = [(url, client_context(*(files.at(f.get(n)) if f.get(n) else ""
                                            for n in ("etcd-cafile", "etcd-certfile", "etcd-keyfile")))
                      if url.startswith("https") else None) for url in f.every("etcd-servers")]
        self.tokens = {}
        if path := f.get("token-auth-file"):
            for line in files.read(path, "--token-auth-file").decode().splitlines():
                token, name, _, *groups = line.split(",", 3)
                self.tokens[token] = Who(name, set("".join(groups).strip('"').split(",")))

    def etcd_mistake(self) -> str:
        """Why etcd is not healthy, or nothing. One member that is, is enough."""
        with self.health:
            if time.monotonic() - self.etcd_was[0] > 1:
                mistakes = [mistake for url, context in self.etcd if (mistake := self._ask_etcd(url, context))]
                self.etcd_was = time.monotonic(), "; ".join(mistakes) if len(mistakes) == len(self.etcd) else ""
            return self.etcd_was[1]

    @staticmethod
    def _ask_etcd(url: str, context: ssl.SSLContext | None) -> str:
        parts = urlsplit(url)
        kind, more = (http.client.HTTPSConnection, {"context": context}) if context else (http.client.HTTPConnection, {})
        connection = kind(parts.hostname, parts.port, timeout=2, **more)
        try:
            connection.request("GET", "/health")
            answer = connection.getresponse()
            healthy = answer.status == 200 and str(json.loads(answer.read())["health"]) == "true"
            return "" if healthy else f"{url}: not healthy"
        except (OSError, ValueError, KeyError, http.client.HTTPException) as error:
            return f"{url}: {error}"
        finally:
            connection.close()

    def identity(self, token: str, certificate: Who | None) -> Who | None:
        return certificate or self.tokens.get(token)

    def answer(self, method: str, path: str, body: bytes, who: Who | None, tls: bool) -> tuple[int, bytes]:
        if "unhealthy" in orders(self.program.component) and path in HEALTH:
            return 500, b"told to be unhealthy"
        if not tls:
            who = Who("system:unsecured", {"system:masters"})
        if who is None:
            if not self.program.anonymous:
                return 401, b"Unauthorized"
            who = Who("system:anonymous", set())
        if path in HEALTH and (path == "/healthz" or self.program.minor >= 16):
            mistake = self.etcd_mistake()
            return (500, f"[-]etcd failed: {mistake}".encode()) if mistake else OK
        if path == "/version":
            return 200, version(self.program)
        if path.startswith("/api/v1/nodes"):
            return self.node(method, path.removeprefix("/api/v1/nodes").strip("/"), body, who)
        return (200, b'{"kind":"APIVersions","versions":["v1"]}') if path == "/api" else (404, b"404 page not found\n")

    def allowed(self, method: str, name: str, who: Who) -> bool:
        """Node authorizer and NodeRestriction: a node writes only itself. RBAC's own roles: the other components read."""
        if "AlwaysAllow" in self.program.authorization or "system:masters" in who.groups:
            return True
        if "system:nodes" in who.groups and who.name.startswith("system:node:"):
            return method == "GET" or who.name == f"system:node:{name}"
        return method == "GET" and who.name.startswith("system:kube-")

    def node(self, method: str, rest: str, body: bytes, who: Who) -> tuple[int, bytes]:
        name = rest.removesuffix("/status")
        if method in ("POST", "PATCH"):
            try:
                sent = json.loads(body)
                name = name or sent["metadata"]["name"]
            except (ValueError, KeyError, TypeError):
                return 400, b"bad node"
        if not self.allowed(method, name, who):
            return 403, f'nodes "{name}" is forbidden: User "{who.name}" cannot {method.lower()} it'.encode()
        with self.lock:
            if method == "GET" and not name:
                return 200, json.dumps({"kind": "NodeList", "apiVersion": "v1", "items": list(self.nodes.values())}).encode()
            if method == "POST":
                if name in self.nodes:
                    return 409, f'nodes "{name}" already exists'.encode()
                self.nodes[name] = sent
                return 201, body
            if name not in self.nodes:
                return 404, f'nodes "{name}" not found'.encode()
            if method == "PATCH":
                merge(self.nodes[name], sent)
            if method == "DELETE":
                return 200, json.dumps(self.nodes.pop(name)).encode()
            return 200, json.dumps(self.nodes[name]).encode()


def merge(into: dict, patch: dict):
    """RFC 7396."""
    for key, value in patch.items():
        if value is None:
            into.pop(key, None)
        elif isinstance(value, dict) and isinstance(into.get(key), dict):
            merge(into[key], value)
        else:
            into[key] = value


def handler(service: Service, tls: bool) -> type:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 30

        def do(self):
            who = None
            if tls and (certificate := self.connection.getpeercert()):
                pairs = [pair for group in certificate["subject"] for pair in group]
                who = Who(dict(pairs).get("commonName", ""), {v for k, v in pairs if k == "organizationName"})
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if isinstance(service, Api):
                who = service.identity((self.headers.get("Authorization") or "").removeprefix("Bearer "), who)
            status, text = service.answer(self.command, self.path.partition("?")[0], body, who, tls)
            self.send_response(status)
            self.send_header("Content-Type", "application/json" if text[:1] == b"{" else "text/plain; charset=utf-8")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(text)

        do_GET = do_POST = do_PATCH = do_DELETE = do_HEAD = do

        def log_message(self, *_):
            pass
    return Handler


class Listener(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: str, port: int, service: Service, context: ssl.SSLContext | None):
        self.address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self.context = context
        try:
            super().__init__((address, port), handler(service, context is not None))
        except OSError as error:
            raise Refused(f"failed to create listener: failed to listen on {address}:{port}: {error.strerror}") from error

    def finish_request(self, request, client_address):
        """The handshake is done in the connection's own thread: a silent client holds up only itself."""
        if self.context:
            request.settimeout(10)
            request = self.context.wrap_socket(request, server_side=True)
        super().finish_request(request, client_address)

    def handle_error(self, request, client_address):
        if not isinstance(sys.exc_info()[1], OSError):  # a client that went away, or with a certificate of another CA
            super().handle_error(request, client_address)


def run(program: Program) -> int:
    name = program.component
    obey(name)
    service = Api(program) if name == "kube-apiserver" else Service(program)
    if isinstance(service, Api):
        end = time.monotonic() + ETCD_SECONDS
        while mistake := service.etcd_mistake():
            if time.monotonic() > end:
                raise Refused(f"Error: context deadline exceeded: {mistake}")
            time.sleep(0.5)
    if name == "kube-controller-manager":
        wait_for_api(program)
    tls = server_context(program.certificate, program.client_ca) if any(p.tls for p in program.ports) else None
    for port in program.ports:
        listener = Listener(port.address, port.number, service, tls if port.tls else None)
        threading.Thread(target=listener.serve_forever, daemon=True).start()
    if name == "kubelet":
        threading.Thread(target=register, args=[program], daemon=True).start()
    if name == "kube-apiserver" or (name == "kubelet" and program.minor >= 10):
        notify("READY=1")
    print(f"{name} v{program.version} (stand-in) serves {', '.join(f'{p.address}:{p.number}' for p in program.ports)}", flush=True)
    return wait_for_end(name)


def wait_for_api(program: Program):
    end = time.monotonic() + API_SECONDS
    while True:
        try:
            if (said := ask(program.server, "GET", "/healthz"))[0] == 200:
                return
        except (OSError, http.client.HTTPException) as error:
            said = error
        if time.monotonic() > end:
            raise Refused(f"failed to wait for apiserver being healthy: timed out waiting for the condition: {said}")
        time.sleep(0.5)


# --- registration ---------------------------------------------------------------------------------
def node_of(p: Program) -> dict:
    f, d = p.flags, p.document
    name = f.get("hostname-override") or socket.gethostname().lower()
    taints = d.get("registerWithTaints") or []
    for taint in f.every("register-with-taints"):
        pair, _, effect = taint.rpartition(":")
        key, _, value = pair.partition("=")
        taints = [*taints, {"key": key, "value": value, "effect": effect}]
    if f.get("cloud-provider") == "external":
        taints = [*taints, {"key": "node.cloudprovider.kubernetes.io/uninitialized", "value": "true", "effect": "NoSchedule"}]
    spec = {"taints": taints} if taints else {}
    if not f.on("register-schedulable", True):
        spec["unschedulable"] = True
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    labels = {"kubernetes.io/hostname": name, **({"kubernetes.io/arch": machine, "kubernetes.io/os": "linux"} if p.minor >= 14 else {}),
              **f.pairs("node-labels")}
    addresses = [{"type": "InternalIP", "address": a} for a in f.every("node-ip")] + [{"type": "Hostname", "address": name}]
    return {"kind": "Node", "apiVersion": "v1", "metadata": {"name": name, "labels": labels}, "spec": spec,
            "status": {**status(p), "addresses": addresses}}


def status(p: Program) -> dict:
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    # Not Ready: the network's own programs are no part of the node agent's work, and nothing may wait for it.
    return {"nodeInfo": {"kubeletVersion": f"v{p.version}"}, "conditions": [
        {"type": "Ready", "status": "False", "reason": "KubeletNotReady", "message": "network plugin is not ready",
         "lastHeartbeatTime": now}]}


def register(p: Program):
    """As long as the program runs: registers, then renews every few seconds, and registers anew where it is not known any more."""
    wanted = p.flags.on("register-node", p.document.get("registerNode", True))
    if not p.server or not wanted:
        return
    node, said = node_of(p), ""
    path = f"/api/v1/nodes/{node['metadata']['name']}"
    while True:
        try:
            code, text = ask(p.server, "PATCH", f"{path}/status", {"status": status(p)})
            if code == 404:
                code, text = ask(p.server, "POST", "/api/v1/nodes", node)
                print(f"registered node {node['metadata']['name']}" if code == 201 else f"cannot register: {code} {text.decode()}",
                      flush=True)
            now = "" if code < 300 else f"cannot update node status: {code} {text.decode()}"
        except (OSError, http.client.HTTPException) as error:
            now = f"cannot update node status: {error}"
        if now and now != said:
            print(now, file=sys.stderr, flush=True)
        said = now
        time.sleep(1 if now else 5)
