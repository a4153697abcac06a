"""The API's way to etcd: its health, and a store by the JSON gateway of etcd's API v3 (etcd 3.4 on; TLS as the flags say).

A resourceVersion is etcd's mod_revision, as in the real API server. [source: apiserver's storage/etcd3]
"""
import base64
import http.client
import json
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
        self.servers = [(url, client_context(*(files.at(f.get(n)) if f.get(n) else ""
                                               for n in ("etcd-cafile", "etcd-certfile", "etcd-keyfile")))
                         if url.startswith("https") else None) for url in f.every("etcd-servers")]
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

    def read(self, key: str) -> list[dict]:
        """The object of this key; all below it where it ends with a slash."""
        first = PREFIX + key
        more = {"range_end": encoded(first[:-1] + "0")} if key.endswith("/") else {}
        found = self._call("/v3/kv/range", {"key": encoded(first), **more}).get("kvs", [])
        objects = []
        for one in found:
            value = json.loads(base64.b64decode(one["value"]))
            value["metadata"]["resourceVersion"] = str(one["mod_revision"])
            objects.append(value)
        return objects

    def write(self, key: str, value: dict | None, version: int) -> bool:
        """Puts (None: removes) if the version is still this one; 0: if there is none."""
        name = encoded(PREFIX + key)
        if value is None:
            change = {"request_delete_range": {"key": name}}
        else:
            kept = {**value, "metadata": {k: v for k, v in value["metadata"].items() if k != "resourceVersion"}}
            change = {"request_put": {"key": name, "value": encoded(json.dumps(kept))}}
        compare = {"key": name, "target": "MOD", "mod_revision": str(version), "result": "EQUAL"}
        return bool(self._call("/v3/kv/txn", {"compare": [compare], "success": [change]}).get("succeeded"))


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
