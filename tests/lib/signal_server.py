"""A small stand-in for heat-api-cfn, for tests that need no real Heat.

Every GET answers DescribeStackResource with the document of the moment; every other request is taken as a
signal. All requests are recorded as they came. Rules make it answer badly.

It is a process of its own in the hosts' network namespace; this file is both that process and, for tests, the
class that starts it. They speak through three files in a folder: document.json, rules.json, requests.jsonl.
"""
import base64
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
import uuid
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


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


class SignalServer:
    """start() … stop(). base is http://IP:PORT; document is served as resource metadata."""

    def __init__(self, folder: Path, ip: str | None = None, port: int = 18000, lab: str | None = None, stack: str = "stack"):
        from lib.common import GATEWAY, LAB
        self.folder, self.ip, self.port, self.stack, self.lab = Path(folder), ip or GATEWAY, port, stack, lab or LAB
        self.base = f"http://{self.ip}:{self.port}"
        # As Heat does: signed when the deployment is made. An older URL is not tried first.
        self.signed = time.strftime("%Y-%m-%dT%H%%3A%M%%3A%SZ", time.gmtime())
        self.process: subprocess.Popen | None = None
        self.document: dict = {"deployments": [], "os-collect-config": self.settings()}

    # --- life ---
    def start(self) -> "SignalServer":
        """Also after stop(): what was recorded stays."""
        from lib.common import PYTHON, in_lab, wait_for
        self.folder.mkdir(parents=True, exist_ok=True)
        self.publish(self.document)
        if not (self.folder / "rules.json").exists():
            self.well()
        log = open(self.folder / "log", "ab")
        self.process = subprocess.Popen(
            ["ip", "netns", "exec", f"lab-{self.lab}", PYTHON, "-B", __file__, self.ip, str(self.port), str(self.folder)],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        log.close()

        def listening():
            if self.process.poll() is not None:
                raise RuntimeError((self.folder / "log").read_text())
            return in_lab("bash", "-c", f"exec 3<>/dev/tcp/{self.ip}/{self.port}", lab=self.lab, check=False).returncode == 0
        wait_for(listening, 60, f"signal server on {self.base}")
        return self

    def stop(self):
        """From here on connections are refused."""
        if self.process:
            self.process.kill()
            self.process.wait()
            self.process = None

    # --- what it says ---
    def publish(self, document: dict | None = None):
        """Serve this document (or the changed self.document) from now on."""
        if document is not None:
            self.document = document
        _write(self.folder / "document.json", self.document)

    def deploy(self, *deployments: dict):
        """Add deployments to the document."""
        self.document["deployments"].extend(deployments)
        self.publish()

    def settings(self) -> dict:
        """os_collect_config for a server that polls here (Heat.conf makes the file of it)."""
        return {"collectors": ["cfn", "local"], "cfn": {
            "metadata_url": f"{self.base}/v1/", "access_key_id": "0" * 32, "secret_access_key": "no secret",
            "stack_name": self.stack, "path": "server.Metadata"}}

    def signal_url(self, resource: str, kind: str = "signal") -> str:
        """As heat makes it: an escaped arn, a query whose order and escapes must stay as they are."""
        return (f"{self.base}/v1/{kind}/arn%3Aopenstack%3Aheat%3A%3A{'7' * 32}%3Astacks/{self.stack}/{uuid.UUID(int=1)}/resources/{resource}"
                "?SignatureMethod=HmacSHA256&SignatureVersion=2&AWSAccessKeyId=" + "1" * 32 +
                f"&Timestamp={self.signed}&Signature=02nEKWQfhXQfCvZ%2F%2BwcIDUUvMm4PdTkuDn9Tz4QXYQw%3D")

    def deployment(self, name: str, group: str = "script", config: object = "", inputs: dict | None = None, outputs: list | None = None,
                   action: str = "CREATE", signal: str = "CFN_SIGNAL", id: str | None = None, options: dict | None = None) -> dict:
        """An entry of `deployments` as Heat writes it; the resource has the deployment's name."""
        id = id or str(uuid.uuid4())
        kinds = {bool: "Boolean", int: "Number", float: "Number", dict: "Json", list: "Json"}
        entries = [{"name": k, "description": "", "type": kinds.get(type(v), "String"), "value": v} for k, v in (inputs or {}).items()]
        derived = {"deploy_server_id": str(uuid.UUID(int=2)), "deploy_action": action,
                   "deploy_stack_id": f"{self.stack}/{uuid.UUID(int=1)}", "deploy_resource_name": name,
                   "deploy_signal_transport": signal}
        if signal == "CFN_SIGNAL":
            derived |= {"deploy_signal_id": self.signal_url(name), "deploy_signal_verb": "POST"}
        entries += [{"name": k, "description": "", "type": "String", "value": v} for k, v in derived.items()]
        outs = [o if isinstance(o, dict) else {"name": o, "type": "String", "error_output": False} for o in (outputs or [])]
        return {"id": id, "name": name, "group": group, "config": config, "inputs": entries, "outputs": outs,
                "options": options or {}, "creation_time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}

    # --- how it behaves ---
    def answer(self, status: int = 200, *, times: int | None = None, method: str | None = None, path: str | None = None,
               delay: float = 0, close: bool = False, cut: int | None = None, body: str = "", headers: dict | None = None):
        """From now on (times: so often) requests of this method whose target matches the regex path are answered
        so. close: the connection is closed without an answer; cut: after so many bytes of a normal answer's body;
        delay: seconds before anything (status 200 and no body: the normal answer, late). Older rules go first."""
        self.rules.append({"id": str(uuid.uuid4()), "status": status, "times": times, "method": method, "path": path, "delay": delay,
                           "close": close, "cut": cut, "body": body, "headers": headers or {}})
        _write(self.folder / "rules.json", self.rules)

    def well(self):
        """No rules: it answers as it should."""
        self.rules: list[dict] = []
        _write(self.folder / "rules.json", self.rules)

    # --- what came ---
    def requests(self, method: str | None = None, path: str | None = None) -> list[Request]:
        try:
            lines = (self.folder / "requests.jsonl").read_text().splitlines()
        except FileNotFoundError:
            return []
        found = [Request(**{**r, "body": base64.b64decode(r["body"])}) for r in map(json.loads, lines)]
        return [r for r in found if (not method or r.method == method) and (not path or re.search(path, r.target))]

    def polls(self) -> list[Request]:
        return self.requests("GET")

    def signals(self, resource: str | None = None, accepted: bool = False) -> list[Request]:
        """Everything but GET; of one resource; accepted: only those that were answered 2xx."""
        path = rf"/resources/{re.escape(resource)}(\?|$)" if resource else None
        return [r for r in self.requests(path=path) if r.method != "GET" and (not accepted or 200 <= r.status < 300)]

    def forget(self):
        """Empty the record."""
        (self.folder / "requests.jsonl").unlink(missing_ok=True)


def _write(path: Path, value):
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

    def rule(self, method: str, target: str) -> dict | None:
        with self.lock:
            for r in json.loads((self.folder / "rules.json").read_text()):
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


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    state: State

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
        status = rule.get("status", 200)
        kind = "application/json"
        if status == 200 and not rule.get("body") and self.command == "GET":
            answer = self.describe()
        elif status == 200 and not rule.get("body"):
            answer, kind = b"", "text/html; charset=UTF-8"
        else:
            answer = (rule.get("body") or "<ErrorResponse><Error><Code>Scripted</Code></Error></ErrorResponse>").encode()
        # before the answer: a test that sees the effect of an answer must find the request recorded
        self.state.record({**entry, "status": status})
        self.send_response(status)
        for k, v in {"Content-Type": kind, **rule.get("headers", {})}.items():
            self.send_header(k, v)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        if rule.get("cut") is not None:
            self.wfile.write(answer[:rule["cut"]])
            self.close_connection = True
            return
        self.wfile.write(answer)

    do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = handle_any

    def describe(self) -> bytes:
        document = json.loads((self.state.folder / "document.json").read_text())
        detail = {"Description": "", "LastUpdatedTimestamp": "2026-01-02T03:04:05Z", "LogicalResourceId": "server", "Metadata": document,
                  "PhysicalResourceId": str(uuid.UUID(int=2)), "ResourceStatus": "CREATE_COMPLETE", "ResourceStatusReason": "state changed",
                  "ResourceType": "OS::Heat::DeployedServer", "StackName": "stack"}
        return json.dumps({"DescribeStackResourceResponse": {"DescribeStackResourceResult": {"StackResourceDetail": detail}}}).encode()

    def log_message(self, *_):
        pass


def main(ip: str, port: str, folder: str):
    Handler.state = State(Path(folder))
    ThreadingHTTPServer.daemon_threads = True
    ThreadingHTTPServer.request_queue_size = 128
    # a test that was killed must not leave us behind
    parent = os.getppid()

    def watch():
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(0)
    threading.Thread(target=watch, daemon=True).start()
    ThreadingHTTPServer((ip, int(port)), Handler).serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
