"""A server for tests that can be told to misbehave, and records all that comes, as it came.

It is a process of its own, in the hosts' network namespace or on the loopback of this machine. A module that has one defines
a class for tests ([Scripted], which starts the process) and one for the process ([Handler], which answers). They speak through
files in a folder: what the module publishes, rules.json, requests.jsonl.
"""
import base64
import json
import os
import re
import socket
import ssl
import subprocess
import sys
import threading
import time
import uuid
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from lib.common import GATEWAY, LAB, PYTHON, TESTS, free_port, in_lab, wait_for

LOOPBACK = "127.0.0.1"


@dataclass
class Request:
    """What came: target is path and query byte for byte; status is what was answered (0: closed without an answer)."""
    time: float
    method: str
    target: str
    headers: list[list[str]]
    body: bytes
    status: int
    client: str

    def header(self, name: str) -> str | None:
        return next((v for k, v in self.headers if k.lower() == name.lower()), None)

    def json(self):
        return json.loads(self.body)


class Scripted:
    """start() … stop(). base is http://IP:PORT; port 0 is any, for the loopback."""
    module = ""  # whose main(ip, port, folder) is the process

    def __init__(self, folder: Path, ip: str | None, port: int, lab: str | None = None):
        self.folder, self.ip, self.port, self.lab = Path(folder), ip or GATEWAY, port or free_port(), lab or LAB
        self.base = f"http://{self.ip}:{self.port}"
        self.process: subprocess.Popen | None = None

    # --- life ---
    def start(self):
        """Also after stop(): what was recorded stays. One that runs is left as it is."""
        if self.process:
            return self
        self.folder.mkdir(parents=True, exist_ok=True)
        if not (self.folder / "rules.json").exists():
            self.behave()
        there = [] if self.ip == LOOPBACK else ["ip", "netns", "exec", f"lab-{self.lab}"]
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen(
                [*there, PYTHON, "-B", "-m", self.module, self.ip, str(self.port), str(self.folder)], stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, start_new_session=True, env={**os.environ, "PYTHONPATH": str(TESTS)})
        wait_for(self._listening, 300, f"{self.module} on {self.base}")
        return self

    def _listening(self) -> bool:
        if self.process.poll() is not None:
            raise RuntimeError((self.folder / "log").read_text())
        if self.ip == LOOPBACK:
            with socket.create_connection((self.ip, self.port)):
                return True
        return in_lab("bash", "-c", f"exec 3<>/dev/tcp/{self.ip}/{self.port}", lab=self.lab, check=False).returncode == 0

    def stop(self):
        """From here on connections are refused."""
        if self.process:
            self.process.kill()
            self.process.wait()
            self.process = None

    # --- how it behaves ---
    def answer(self, status: int = 200, *, times: int | None = None, method: str | None = None, path: str | None = None,
               delay: float = 0, close: bool = False, cut: int | None = None, body: str = "", headers: dict | None = None, **more):
        """From now on (times: so often) requests of this method whose target matches the regex path are answered
        so. close: the connection is closed without an answer; cut: after so many bytes of a normal answer's body;
        delay: seconds before anything (status 200 and no body: the normal answer, late). Older rules go first."""
        self.rules.append({"id": str(uuid.uuid4()), "status": status, "times": times, "method": method, "path": path, "delay": delay,
                           "close": close, "cut": cut, "body": body, "headers": headers or {}, **more})
        write(self.folder / "rules.json", self.rules)

    def behave(self):
        """No rules: it answers as it should."""
        self.rules: list[dict] = []
        write(self.folder / "rules.json", self.rules)

    # --- what came ---
    def requests(self, method: str | None = None, path: str | None = None) -> list[Request]:
        try:
            lines = (self.folder / "requests.jsonl").read_text().rpartition("\n")[0].splitlines()  # the last may be half written
        except FileNotFoundError:
            return []
        found = [Request(**{**r, "body": base64.b64decode(r["body"])}) for r in map(json.loads, lines)]
        return [r for r in found if (not method or r.method == method) and (not path or re.search(path, r.target))]

    def forget(self):
        """Empty the record."""
        (self.folder / "requests.jsonl").unlink(missing_ok=True)


def write(path: Path, value):
    """Whole or not at all: the process may read it at any time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(json.dumps(value))
    new.rename(path)


# --- the process ----------------------------------------------------------------------------------
@dataclass
class State:
    folder: Path
    used: dict = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def read(self, name: str):
        return json.loads((self.folder / name).read_text())

    def rule(self, method: str, target: str) -> dict | None:
        with self.lock:
            for r in self.read("rules.json"):
                if (r["method"] and r["method"] != method) or (r["path"] and not re.search(r["path"], target)):
                    continue
                if r["times"] is not None and self.used.get(r["id"], 0) >= r["times"]:
                    continue
                self.used[r["id"]] = self.used.get(r["id"], 0) + 1
                return r
        return None

    def record(self, entry: dict):
        with self.lock, open(self.folder / "requests.jsonl", "a") as f:
            f.write(json.dumps(entry) + "\n")


@dataclass
class Answer:
    status: int
    body: bytes
    kind: str = "application/json"
    headers: dict = field(default_factory=dict)


class Handler(BaseHTTPRequestHandler):
    """Subclasses answer; rules come first."""
    protocol_version = "HTTP/1.1"
    state: State

    def usual(self, target: str, body: bytes, rule: dict) -> Answer:
        """The answer when no rule says otherwise."""
        raise NotImplementedError

    def scripted(self, rule: dict) -> Answer:
        """The answer that a rule asks for."""
        return Answer(rule["status"], rule["body"].encode())

    def handle_any(self):
        at = time.time()
        target = self.requestline.split(" ")[1]  # self.path is not byte for byte
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        rule = self.state.rule(self.command, target) or {}
        if rule.get("delay"):
            time.sleep(rule["delay"])
        entry = {"time": at, "method": self.command, "target": target, "headers": [[k, v] for k, v in self.headers.items()],
                 "body": base64.b64encode(body).decode(), "client": self.client_address[0]}
        if rule.get("close"):
            self.state.record({**entry, "status": 0})
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        usual = rule.get("status", 200) == 200 and not rule.get("body")
        answer = self.usual(target, body, rule) if usual else self.scripted(rule)
        # before the answer: a test that sees the effect of an answer must find the request recorded
        self.state.record({**entry, "status": answer.status})
        self.send_response(answer.status)
        for k, v in {"Content-Type": answer.kind, **answer.headers, **rule.get("headers", {})}.items():
            self.send_header(k, v)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        if rule.get("cut") is not None:
            self.wfile.write(answer.body[:rule["cut"]])
            self.close_connection = True
            return
        self.wfile.write(answer.body)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = handle_any

    def log_message(self, *_):
        pass


def serve(handler: type[Handler], state: State, ip: str, port: int, tls: ssl.SSLContext | None = None):
    handler.state = state
    ThreadingHTTPServer.daemon_threads = True
    ThreadingHTTPServer.request_queue_size = 128
    # a test that was killed must not leave us behind
    parent = os.getppid()

    def watch():
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(0)
    threading.Thread(target=watch, daemon=True).start()
    server = ThreadingHTTPServer((ip, port), handler)
    if tls:
        # each handshake in its request's thread: a client that does not speak must not hold up the others
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    sys.stdout.flush()
    server.serve_forever()
