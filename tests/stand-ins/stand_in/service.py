"""What every program that serves is: health, orders, a word to systemd.

Known from: /healthz being exactly "ok" [spec]; /livez and /readyz from 1.16 on [spec 7.2, memory].
"""
from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path

from stand_in import files
from stand_in.kubernetes import Program

CONTROL = Path(os.environ.get("HNA_STAND_IN_CONTROL") or files.at("/run/heat-node-agent-stand-ins"))
OK = (200, b"ok")
HEALTH = ("/healthz", "/livez", "/readyz")
START = int(time.time())


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
        print(" ".join(words[2:]) or f"{name}: told to die", file=sys.stderr, flush=True)
        os._exit(int(words[1]) if len(words) > 1 else 1)


def is_mute(name: str) -> bool:
    """Whether it takes requests and answers none, as one whose threads wait for each other: until it is restarted."""
    return orders(name)[:1] == ["mute"] and (CONTROL / name).stat().st_mtime >= START


def record(name: str, method: str, path: str, body: bytes, status: int):
    """Tells its journal of a request that writes, with the name of the object in it, if that is the order."""
    if method in ("GET", "HEAD") or "record" not in orders(name):
        return
    try:
        of = json.loads(body)["metadata"]["name"]
    except (ValueError, LookupError, TypeError):
        of = "-"
    # One write: requests come side by side.
    print(f"request: {method} {path} {of} {status}\n", end="", flush=True)


WATCHES_SECONDS = 60


def wait_for_end(name: str, is_watched=lambda: False) -> int:
    """SIGTERM and SIGINT end cleanly, a second one at once with 1, as SIGUSR1.

    [source] k8s.io/apiserver: at the first one the server waits for open requests as long as --request-timeout says (60 s), and a watch
    stays open; at the second it exits with 1.
    """
    end = threading.Event()

    def stop(*_):
        if end.is_set():
            os._exit(1)
        end.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    signal.signal(signal.SIGUSR1, lambda *_: os._exit(1))
    while not end.wait(0.2):
        obey(name)
    if is_watched():
        time.sleep(WATCHES_SECONDS)
    return 0


class Who:
    """Who asks: by client certificate, token, or the port without credentials."""

    def __init__(self, name: str, groups: set[str]):
        self.name, self.groups = name, groups


class Service:
    """Answers of one program; each port's handler asks it."""
    # whether `answer` gets the query with the path
    takes_query = False

    def __init__(self, program: Program):
        self.program = program

    def identity(self, token: str, certificate: Who | None) -> Who | None:
        """Only the API knows tokens."""
        return certificate

    def answer(self, method: str, path: str, body: bytes, who: Who | None, tls: bool, kind: str = "") -> tuple[int, bytes]:
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


def version(p: Program) -> bytes:
    return json.dumps({"major": "1", "minor": str(p.minor), "gitVersion": f"v{p.version}", "platform": "linux/amd64"}).encode()
