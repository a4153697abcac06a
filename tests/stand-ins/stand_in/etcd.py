"""The API's way to etcd: its health, and a store by etcd's API v3 (etcd 3.4 on; TLS as the flags say).

Over TLS by etcdctl, which speaks gRPC as the real API server does: where etcd knows its clients by name its JSON gateway cannot reach it.
In the clear by that gateway.

A resourceVersion is etcd's mod_revision, as in the real API server. [source: apiserver's storage/etcd3]
"""
from __future__ import annotations

import base64
import http.client
import json
import os
import subprocess
import threading
import time
from urllib.parse import urlsplit

from stand_in import files
from stand_in.flags import Flags
from stand_in.tls import client_context

PREFIX = "/registry/"


class Etcd:
    """The servers of --etcd-servers."""

    def __init__(self, f: Flags):
        shown = [files.at(f.get(n)) if f.get(n) else "" for n in ("etcd-cafile", "etcd-certfile", "etcd-keyfile")]
        self.servers = [(url, client_context(*shown) if url.startswith("https") else None) for url in f.every("etcd-servers")]
        self.words = [word for name, path in zip(("--cacert", "--cert", "--key"), shown) if path for word in (name, str(path))]
        self.lock = threading.Lock()
        self.was = (0.0, "not asked yet")

    def mistake(self) -> str:
        """Why etcd is not healthy, or nothing. One member that is, is enough."""
        with self.lock:
            if time.monotonic() - self.was[0] > 1:
                mistakes = [mistake for server in self.servers if (mistake := self._unhealthy(server))]
                self.was = time.monotonic(), "; ".join(mistakes) if len(mistakes) == len(self.servers) else ""
            return self.was[1]

    def _unhealthy(self, server) -> str:
        try:
            status, text = self._ask(server, "GET", "/health")
            return "" if status == 200 and str(json.loads(text)["health"]) == "true" else f"{server[0]}: not healthy"
        except (OSError, ValueError, KeyError, http.client.HTTPException) as error:
            return f"{server[0]}: {error}"

    @staticmethod
    def _ask(server, method: str, path: str, body: dict | None = None) -> tuple[int, bytes]:
        url, context = server
        parts = urlsplit(url)
        kind, more = (http.client.HTTPSConnection, {"context": context}) if context else (http.client.HTTPConnection, {})
        connection = kind(parts.hostname, parts.port, timeout=30, **more)
        try:
            connection.request(method, path, json.dumps(body) if body is not None else None)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def _call(self, path: str, body: dict) -> dict:
        said: object = "no server"
        for server in self.servers:
            try:
                status, text = self._ask(server, "POST", path, body)
                if status == 200:
                    return json.loads(text)
                said = f"{status} {text[:200]!r}"
            except (OSError, http.client.HTTPException) as error:
                said = error
        raise OSError(f"etcd: {said}")

    def _etcdctl(self, *words: str, commands: str = "") -> dict:
        servers = ",".join(url for url, _ in self.servers)
        done = subprocess.run(["etcdctl", "--endpoints", servers, *self.words, "--command-timeout=30s", "-w", "json", *words], input=commands,
                              capture_output=True, text=True, env={**os.environ, "ETCDCTL_API": "3"})
        if done.returncode:
            raise OSError(f"etcd: {done.stderr[-200:]}")
        return json.loads(done.stdout)

    def _range(self, key: str) -> list[dict]:
        first = PREFIX + key
        if self.words:
            return self._etcdctl("get", first, *["--prefix"][:key.endswith("/")]).get("kvs", [])
        more = {"range_end": encoded(first[:-1] + "0")} if key.endswith("/") else {}
        return self._call("/v3/kv/range", {"key": encoded(first), **more}).get("kvs", [])

    def read(self, key: str) -> list[dict]:
        """The object of this key; all below it where it ends with a slash."""
        found = self._range(key)
        objects = []
        for one in found:
            value = json.loads(base64.b64decode(one["value"]))
            value["metadata"]["resourceVersion"] = str(one["mod_revision"])
            objects.append(value)
        return objects

    def write(self, key: str, value: dict | None, version: int) -> bool:
        """Puts (None: removes) if the version is still this one; 0: if there is none."""
        name = encoded(PREFIX + key)
        kept = value and {**value, "metadata": {k: v for k, v in value["metadata"].items() if k != "resourceVersion"}}
        if self.words:
            # Comparisons, then what is done if they hold, then what else; a text in quotes is read as Go reads one.
            change = f"put {quoted(PREFIX + key)} {quoted(json.dumps(kept))}" if kept else f"del {quoted(PREFIX + key)}"
            said = self._etcdctl("txn", commands=f'mod({quoted(PREFIX + key)}) = "{version}"\n\n{change}\n\n\n')
            return bool(said.get("succeeded"))
        if kept is None:
            change = {"request_delete_range": {"key": name}}
        else:
            change = {"request_put": {"key": name, "value": encoded(json.dumps(kept))}}
        compare = {"key": name, "target": "MOD", "mod_revision": str(version), "result": "EQUAL"}
        return bool(self._call("/v3/kv/txn", {"compare": [compare], "success": [change]}).get("succeeded"))


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


class Memory:
    """The same without etcd's API v3 (up to 1.5 the API speaks v2): gone with the process."""

    def __init__(self):
        self.objects: dict[str, tuple[int, dict]] = {}
        self.revision = 0

    def read(self, key: str) -> list[dict]:
        return [{**value, "metadata": {**value["metadata"], "resourceVersion": str(version)}}
                for name, (version, value) in sorted(self.objects.items()) if name == key or (key.endswith("/") and name.startswith(key))]

    def write(self, key: str, value: dict | None, version: int) -> bool:
        if self.objects.get(key, (0, {}))[0] != version:
            return False
        self.revision += 1
        if value is None:
            self.objects.pop(key, None)
        else:
            self.objects[key] = self.revision, value
        return True
