"""Serving: ports, TLS, registration of nodes.

Known from: [spec] for ports (10251 and 10252 without TLS, gone with 1.24; 10257 and 10259 with TLS from 1.12 and 1.13 on; 10248, 10250,
10255, 10249, 10256). Who tells systemd
READY=1: kube-apiserver in every version (kubernetes pull 8764 of 2015), kubelet from 1.10 on (release notes of 1.10, pull 60654), the
others never.
kube-apiserver is ready once its etcd is healthy and ends itself when that takes too long; kube-controller-manager ends when the API
does not answer within 10 s; the rest wait forever. [memory]
Not imitated: leader election (all serve alike); leases of nodes; reading certificates anew while they run (the API server does from
1.17 on). Nodes are kept in memory: after a restart of the API the kubelets register again.
"""
from __future__ import annotations

import http.client
import os
import platform
import socket
import ssl
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from stand_in import Refused, files, signing
from stand_in.api import Api
from stand_in.kubernetes import Program
from stand_in.service import Service, Who, is_mute, notify, obey, record, wait_for_end
from stand_in.tls import ask, server_context

# HNA_STAND_IN_PATIENCE: for who has no systemd that would start it again.
ETCD_SECONDS, API_SECONDS = (max(seconds, int(os.environ.get("HNA_STAND_IN_PATIENCE", 0))) for seconds in (30, 10))


def handler(service: Service, tls: bool) -> type:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 60

        def do(self):
            who = None
            if tls and (certificate := self.connection.getpeercert()):
                pairs = [pair for group in certificate["subject"] for pair in group]
                who = Who(dict(pairs).get("commonName", ""), {v for k, v in pairs if k == "organizationName"})
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            who = service.identity((self.headers.get("Authorization") or "").removeprefix("Bearer "), who)
            sent = self.headers.get("Content-Type") or ""
            path = self.path if service.takes_query else self.path.partition("?")[0]
            while is_mute(service.program.component):
                time.sleep(1)
            status, text = service.answer(self.command, path, body, who, tls, sent.partition(";")[0].strip())
            record(service.program.component, self.command, path, body, status)
            self.send_response(status)
            self.send_header("Content-Type", "application/json" if text[:1] == b"{" else "text/plain; charset=utf-8")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(text)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = do

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
            request.settimeout(60)
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
        while mistake := service.etcd.mistake():
            if time.monotonic() > end:
                raise Refused(f"Error: context deadline exceeded: {mistake}")
            time.sleep(0.5)
    if name == "kube-controller-manager":
        wait_for_api(program)
    tls = server_context(program.certificate, program.client_ca) if any(p.tls for p in program.ports) else None
    # All of them listen before one answers: whoever hears from one port may ask the next.
    for listener in [Listener(port.address, port.number, service, tls if port.tls else None) for port in program.ports]:
        threading.Thread(target=listener.serve_forever, daemon=True).start()
    if name == "kubelet":
        threading.Thread(target=register, args=[program], daemon=True).start()
    if name == "kube-controller-manager" and program.minor >= 8:  # signs from 1.4 on, approves by RBAC from 1.8 on [release notes]
        threading.Thread(target=signing.serve, args=[program], daemon=True).start()
    if name == "kube-apiserver" or (name == "kubelet" and program.minor >= 10):
        notify("READY=1")
    print(f"{name} v{program.version} (stand-in) serves {', '.join(f'{p.address}:{p.number}' for p in program.ports)}", flush=True)
    # Every kubelet watches.
    return wait_for_end(name, lambda: isinstance(service, Api) and bool(service.nodes))


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
    ready = {"status": "True", "reason": "KubeletReady", "message": "kubelet is posting ready status"}
    if lacks_network(p):
        ready = {"status": "False", "reason": "KubeletNotReady",
                 "message": "runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady message:network plugin is not ready: "
                            "cni config uninitialized"}
    return {"nodeInfo": {"kubeletVersion": f"v{p.version}"}, "conditions": [{"type": "Ready", **ready, "lastHeartbeatTime": now}]}


def lacks_network(p: Program) -> bool:
    """[tried] 1.20.2: with CNI a node is not Ready as long as its folder of networks holds none; on docker's own bridge it always is."""
    f = p.flags
    cni = (f.get("network-plugin") == "cni" or f.get("container-runtime") == "remote" or p.minor >= 24
           or "container-runtime-endpoint" in f or bool(p.document.get("containerRuntimeEndpoint")))
    folder = Path(files.at(f.get("cni-conf-dir", "/etc/cni/net.d")))
    return cni and not (folder.is_dir() and any(one.suffix in (".conf", ".conflist", ".json") for one in folder.iterdir()))


def register(p: Program):
    """As long as the program runs: registers, then renews every few seconds, and registers anew where it is not known any more."""
    if p.bootstrap:
        signing.join(p)
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
                print(f"registered node {node['metadata']['name']}" if code in (201, 409) else f"cannot register: {code} {text.decode()}",
                      flush=True)
            now = "" if code < 300 or code == 409 else f"cannot update node status: {code} {text.decode()}"
        except (OSError, http.client.HTTPException) as error:
            now = f"cannot update node status: {error}"
        if now and now != said:
            print(now, file=sys.stderr, flush=True)
        said = now
        time.sleep(1 if now else 5)
