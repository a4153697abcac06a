"""A small stand-in for heat-api-cfn, for tests that need no real Heat.

Every GET answers DescribeStackResource with the document of the moment; every other request is taken as a
signal. All requests are recorded as they came. Rules make it answer badly.
"""
import hashlib
import json
import re
import sys
import time
import uuid
from pathlib import Path
from xml.sax.saxutils import escape

from lib.scripted_server import Answer, Handler, Request, Scripted, State, serve, write


class SignalServer(Scripted):
    """document is served as resource metadata."""
    module = "lib.signal_server"

    def __init__(self, folder: Path, ip: str | None = None, port: int = 18000, lab: str | None = None, stack: str = "stack"):
        super().__init__(folder, ip, port, lab)
        self.stack = stack
        self.sign()
        self.document: dict = {"deployments": [], "os-collect-config": self.settings()}

    def start(self) -> "SignalServer":
        self.publish()
        return super().start()

    # --- what it says ---
    def publish(self, document: dict | None = None):
        """Serve this document (or the changed self.document) from now on."""
        if document is not None:
            self.document = document
        write(self.folder / "document.json", self.document)

    def deploy(self, *deployments: dict):
        """Add deployments to the document."""
        self.document["deployments"].extend(deployments)
        self.publish()

    def settings(self) -> dict:
        """os_collect_config for a server that polls here (Heat.conf makes the file of it)."""
        return {"collectors": ["cfn", "local"], "cfn": {
            "metadata_url": f"{self.base}/v1/", "access_key_id": "0" * 32, "secret_access_key": "no secret",
            "stack_name": self.stack, "path": "server.Metadata"}}

    def sign(self):
        """As Heat does: signed when the deployment is made. An older URL is not tried first."""
        self.signed = time.strftime("%Y-%m-%dT%H%%3A%M%%3A%SZ", time.gmtime())

    def signal_url(self, resource: str, kind: str = "signal", key: str = "1" * 32) -> str:
        """As heat makes it: an escaped arn, a query whose order and escapes must stay as they are. key: of whom Heat made to signal."""
        return (f"{self.base}/v1/{kind}/arn%3Aopenstack%3Aheat%3A%3A{'7' * 32}%3Astacks/{self.stack}/{uuid.UUID(int=1)}/resources/{resource}"
                "?SignatureMethod=HmacSHA256&SignatureVersion=2&AWSAccessKeyId=" + key +
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
            # By the key it is seen of which of a resource's deployments a signal is.
            derived |= {"deploy_signal_id": self.signal_url(name, key=hashlib.md5(id.encode()).hexdigest()), "deploy_signal_verb": "POST"}
        entries += [{"name": k, "description": "", "type": "String", "value": v} for k, v in derived.items()]
        outs = [o if isinstance(o, dict) else {"name": o, "type": "String", "error_output": False} for o in (outputs or [])]
        return {"id": id, "name": name, "group": group, "config": config, "inputs": entries, "outputs": outs,
                "options": options or {}, "creation_time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}

    def url_of(self, name: str) -> str | None:
        """Where the deployment of that name that Heat asks for now is signalled, if it is one by such a URL."""
        found = [i["value"] for d in self.document["deployments"] if d["name"] == name for i in d["inputs"] if i["name"] == "deploy_signal_id"]
        return found[-1] if found else None

    # --- what came ---
    def polls(self) -> list[Request]:
        return self.requests("GET")

    def signals(self, resource: str | None = None, accepted: bool = False) -> list[Request]:
        """Everything but GET; of one resource; accepted: only those that were answered 2xx."""
        path = rf"/resources/{re.escape(resource)}(\?|$)" if resource else None
        return [r for r in self.requests(path=path) if r.method != "GET" and (not accepted or 200 <= r.status < 300)]


# --- the process ----------------------------------------------------------------------------------
class HeatHandler(Handler):
    def usual(self, target: str, body: bytes, rule: dict) -> Answer:
        if self.command == "GET" and "Action=DescribeStackResource" in target and "ContentType=JSON" not in target:  # as the replaced collector asks
            return Answer(200, self.describe_in_xml(), "text/xml")
        return Answer(200, self.describe()) if self.command == "GET" else Answer(200, b"", "text/html; charset=UTF-8")

    def scripted(self, rule: dict) -> Answer:
        error = "<ErrorResponse><Error><Code>Scripted</Code></Error></ErrorResponse>"
        return Answer(rule["status"], (rule["body"] or error).encode())

    def describe(self) -> bytes:
        document = self.state.read("document.json")
        detail = {"Description": "", "LastUpdatedTimestamp": "2026-01-02T03:04:05Z", "LogicalResourceId": "server", "Metadata": document,
                  "PhysicalResourceId": str(uuid.UUID(int=2)), "ResourceStatus": "CREATE_COMPLETE", "ResourceStatusReason": "state changed",
                  "ResourceType": "OS::Heat::DeployedServer", "StackName": "stack"}
        return json.dumps({"DescribeStackResourceResponse": {"DescribeStackResourceResult": {"StackResourceDetail": detail}}}).encode()

    def describe_in_xml(self) -> bytes:
        document = escape(json.dumps(self.state.read("document.json")))
        inner = ("StackResourceDetail", "DescribeStackResourceResult", "DescribeStackResourceResponse")
        text = f"<Metadata>{document}</Metadata>"
        for name in inner:
            text = f"<{name}>{text}</{name}>"
        return text.encode()


if __name__ == "__main__":
    serve(HeatHandler, State(Path(sys.argv[3])), sys.argv[1], int(sys.argv[2]))
