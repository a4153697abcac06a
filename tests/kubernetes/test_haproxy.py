"""HAProxy on a worker, before several masters: the real one takes the file that the agent writes, and does by it what it is there for."""
import http.client
import json
import os
import subprocess
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from lib.certificates import CA
from lib.common import run, wait_for
from lib.hosts import agent_binary
from lib.stand_ins import free_port

SETTINGS = "etc/haproxy/haproxy.cfg"
ADDRESSES = ["192.0.2.11", "192.0.2.12"]
MASTERS = ["127.0.0.2", "127.0.0.3"]  # who stands in for them
CA_FILE = "/etc/kubernetes/certs/ca.crt"


def settings(folder: Path, minor: int, **more) -> Path:
    """A copy of the file of a worker that finds its CA in this folder, and its masters on the loopback."""
    inputs = {"ROLE": "minion", "KUBE_TAG": f"v1.{minor}.3", "INSTANCE_NAME": "w", "KUBE_NODE_IP": "192.0.2.31",
              "CLUSTER_UUID": "c0ffee00-1111-4222-8333-444455556666", "API_BALANCER": "haproxy", "MASTER_ADDRESSES": ",".join(ADDRESSES),
              "ETCD_SERVER_IP": ADDRESSES[0], "CONTAINER_RUNTIME": "containerd" if minor >= 24 else "docker", "DNS_SERVICE_IP": "10.254.0.10",
              "CONTAINERD_VERSION": "1.7.2", **more}
    if "TLS_DISABLED" not in inputs:
        inputs |= {"CERTIFICATES": "given", "CA_CERTIFICATE": "/given/ca.crt"}
        inputs |= {f"{name}_{half}": f"/given/{name}" for name in ("KUBELET", "PROXY", "FLANNELD") for half in ("CERTIFICATE", "KEY")}
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


@pytest.mark.parametrize("minor", [2, 5, 6, 20, 31])
def test_it_is_taken(tmp_path, minor):
    said = run("haproxy", "-c", "-f", settings(tmp_path, minor))
    assert "warning" not in (said.stdout + said.stderr).lower(), said.stderr


class Master:
    """Answers to health checks, and to watches that never end."""

    def __init__(self, address: str, port: int):
        master = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                if self.path == "/healthz":
                    self.send_response(200 if master.is_healthy else 500)
                    self.end_headers()
                    return
                master.watches += 1
                self.send_response(200)
                self.end_headers()
                self.wfile.write(address.encode() + b"\n")
                self.wfile.flush()
                master.ended.wait(300)

            def log_message(self, *_):
                pass

        self.is_healthy, self.watches, self.ended = True, 0, threading.Event()
        self.server = ThreadingHTTPServer((address, port), Handler)
        self.server.daemon_threads = True
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


def watch(port: int) -> tuple[http.client.HTTPResponse, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
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
