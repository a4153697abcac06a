"""HAProxy on a node, before several masters: the real one takes the file that the agent writes, and does by it what it is there for."""
import http.client
import json
import os
import ssl
import subprocess
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from lib.certificates import CA
from lib.common import run, wait_for
from lib.hosts import agent_binary
from lib.stand_ins import free_port

SETTINGS = "etc/haproxy/haproxy.cfg"
OWN = "127.0.0.1"
ADDRESSES = ["192.0.2.11", "192.0.2.12"]
MASTERS = ["127.0.0.2", "127.0.0.3"]  # who stands in for them
CA_FILE = "/etc/kubernetes/certs/ca.crt"


def settings(folder: Path, minor: int, **more) -> Path:
    """A copy of the file of a worker (ROLE says otherwise) that finds its CA in this folder, and these masters on the loopback."""
    inputs = {"ROLE": "minion", "KUBE_TAG": f"v1.{minor}.3", "INSTANCE_NAME": "w", "KUBE_NODE_IP": "192.0.2.31",
              "CLUSTER_UUID": "c0ffee00-1111-4222-8333-444455556666", "API_BALANCER": "haproxy", "MASTER_ADDRESSES": ",".join(ADDRESSES),
              "ETCD_SERVER_IP": ADDRESSES[0], "CONTAINER_RUNTIME": "containerd" if minor >= 24 else "docker", "DNS_SERVICE_IP": "10.254.0.10",
              "CONTAINERD_VERSION": "1.7.2", **more}
    if "TLS_DISABLED" not in inputs:
        inputs |= {"CERTIFICATES": "given", "CA_CERTIFICATE": "/given/ca.crt"}
        inputs |= {f"{name}_{half}": f"/given/{name}" for name in ("KUBELET", "PROXY", "FLANNELD") for half in ("CERTIFICATE", "KEY")}
    if inputs["ROLE"] == "master":
        inputs |= {"CA_KEY": "/given/ca.key", "KUBE_SERVICE_ACCOUNT_KEY": "/given/sa.pub", "KUBE_SERVICE_ACCOUNT_PRIVATE_KEY": "/given/sa.key",
                   "ETCD_DISCOVERY_URL": "https://discovery.example.org/0f1e"}
    entry = {"id": "1", "name": "node", "group": "kubernetes-node", "config": "",
             "inputs": [{"name": name, "type": "String", "value": value} for name, value in inputs.items()]}
    root, metadata = folder / "root", folder / "metadata.json"
    (root / "etc").mkdir(parents=True)
    metadata.write_text(json.dumps({"deployments": [entry]}))
    run(agent_binary(), "apply", "--root", root, "--metadata", metadata)
    path = folder / "haproxy.cfg"
    text = (root / SETTINGS).read_text().replace(CA_FILE, str(CA(folder / "ca").certificate))
    for address, stands_in in zip(ADDRESSES, MASTERS):
        text = text.replace(f" {address}:", f" {stands_in}:")
    path.write_text(text)
    return path


@pytest.mark.parametrize(("minor", "role"), [*((minor, "minion") for minor in (2, 5, 6, 20, 31)), *((minor, "master") for minor in (6, 20, 31))])
def test_it_is_taken(tmp_path, minor, role):
    said = run("haproxy", "-c", "-f", settings(tmp_path, minor, ROLE=role))
    assert "warning" not in (said.stdout + said.stderr).lower(), said.stderr


class Master:
    """Answers to health checks, to who asks for its minor, and to watches that never end; by TLS where it has a certificate."""

    def __init__(self, address: str, port: int, minor: int = 19, tls: ssl.SSLContext | None = None):
        master = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                if self.path in ("/healthz", "/readyz"):
                    self.send_response(200 if master.is_healthy else 500)
                    self.end_headers()
                    return
                if self.path == "/version":
                    self.send_response(200)
                    self.end_headers()
                    # As an API server writes it.
                    self.wfile.write(json.dumps({"major": "1", "minor": str(master.minor), "gitVersion": f"v1.{master.minor}.2"}, indent=2).encode())
                    return
                master.watches += 1
                self.send_response(200)
                self.end_headers()
                self.wfile.write(address.encode() + b"\n")
                self.wfile.flush()
                master.ended.wait(300)

            def log_message(self, *_):
                pass

        self.minor, self.is_healthy, self.watches, self.ended = minor, True, 0, threading.Event()
        self.server = ThreadingHTTPServer((address, port), Handler)
        self.server.daemon_threads = True
        if tls:
            # Each connection shakes hands in its own thread.
            self.server.socket = tls.wrap_socket(self.server.socket, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def end(self):
        self.ended.set()
        self.server.shutdown()
        self.server.server_close()


@contextmanager
def haproxy(path):
    process = subprocess.Popen(["haproxy", "-db", "-f", path])
    try:
        yield
    finally:
        process.terminate()
        process.wait(300)


def watch(port: int, tls: ssl.SSLContext | None = None) -> tuple[http.client.HTTPResponse, str]:
    if tls:
        connection = http.client.HTTPSConnection(OWN, port, timeout=300, context=tls)
    else:
        connection = http.client.HTTPConnection(OWN, port, timeout=300)
    connection.request("GET", "/watch")
    answer = connection.getresponse()
    return answer, answer.readline().decode().strip()


@pytest.mark.skipif(os.getuid() != 0, reason="HAProxy changes its root and its user")
def test_watches_of_a_master_that_is_down_end_and_the_next_go_to_the_other(tmp_path):
    port = free_port()
    path = settings(tmp_path, 19, TLS_DISABLED="true", KUBE_API_PORT="8080")
    # A machine for tests may allow fewer open files than systemd does.
    path.write_text(path.read_text().replace(":8080", f":{port}").replace("maxconn 20000", "maxconn 1000"))
    masters = {address: Master(address, port) for address in MASTERS}
    try:
        with haproxy(path):
            def both():
                try:
                    return {watch(port)[1] for _ in range(4)} == set(MASTERS)
                except OSError:
                    return False
            wait_for(both, 300, "watches on both masters")
            held, there = watch(port)
            masters[there].is_healthy = False
            # Three checks of two seconds; without the word of the settings it would stay open for as long as the master keeps it.
            assert held.read() == b""
            other = next(address for address in MASTERS if address != there)
            # A check of the other one that came too late makes it one that is down, for a moment.
            wait_for(lambda: {watch(port)[1] for _ in range(4)} == {other}, 300, "watches on the other master")
            # None is healthy, and all of them answer: that is no reason to reach none.
            masters[other].is_healthy = False
            wait_for(lambda: {watch(port)[1] for _ in range(4)} == set(MASTERS), 300, "masters that are not healthy")
            masters[there].is_healthy = True
            wait_for(lambda: {watch(port)[1] for _ in range(4)} == {there}, 300, "the master that is back")
    finally:
        for master in masters.values():
            master.end()


@pytest.mark.skipif(os.getuid() != 0, reason="HAProxy changes its root and its user")
@pytest.mark.parametrize("tls", [True, False])
def test_a_master_has_another_one_while_its_own_api_server_is_down_unless_that_is_older(tmp_path, tls):
    """In the middle of an upgrade to 1.19: of the other masters one is still older, and comes first in the list."""
    port, balancer = free_port(), free_port()
    path = settings(tmp_path, 19, ROLE="master", KUBE_API_PORT="8080", API_BALANCER_PORT="18080", **({} if tls else {"TLS_DISABLED": "true"}))
    path.write_text(path.read_text().replace(":8080", f":{port}").replace(":18080", f":{balancer}").replace("maxconn 20000", "maxconn 1000"))
    server = client = None
    if tls:
        ca = CA.there(tmp_path / "ca", tmp_path / "ca/ca.crt", tmp_path / "ca/ca.key")
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.load_cert_chain(*ca.sign("server", names="IP:127.0.0.1"))
        client = ssl.create_default_context(cafile=str(ca.certificate))
    older, other = MASTERS
    masters = {older: Master(older, port, 18, server), other: Master(other, port, 19, server)}

    def reached() -> str | None:
        """Who answers; None where nobody does."""
        try:
            return watch(balancer, client)[1] or None
        except (OSError, http.client.HTTPException):
            return None
    try:
        with haproxy(path):
            # As at a boot, where the own API server comes late: from the first moment on.
            begun = time.monotonic()
            wait_for(lambda: reached() == other, 300, "the master that is not older")
            # Nobody hangs who came before a server was marked down.
            assert time.monotonic() - begun < 60
            away, _ = watch(balancer, client)
            masters[OWN] = Master(OWN, port, 19, server)
            # It goes back, and what it holds of the other one ends.
            assert away.read() == b""
            wait_for(lambda: {reached() for _ in range(4)} == {OWN}, 300, "the own API server")
            held, there = watch(balancer, client)
            assert there == OWN
            # It is restarted.
            masters.pop(OWN).end()
            assert held.read() == b""
            wait_for(lambda: {reached() for _ in range(4)} == {other}, 300, "the other one again")
            # Now all others are older.
            masters[other].minor = 18
            wait_for(lambda: {reached() for _ in range(4)} == {None}, 300, "nobody")
            # As without HAProxy: whether it is healthy or not.
            masters[OWN] = Master(OWN, port, 19, server)
            masters[OWN].is_healthy = False
            wait_for(lambda: {reached() for _ in range(4)} == {OWN}, 300, "the own API server that is not healthy")
            masters[other].minor = 20
            wait_for(lambda: {reached() for _ in range(4)} == {other}, 300, "one that is newer")
        assert masters[older].watches == 0
    finally:
        for master in masters.values():
            master.end()
