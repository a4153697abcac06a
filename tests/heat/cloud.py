#!/usr/bin/env python3
"""A stand-in for Nova, Neutron, Cinder, Glance and Octavia, so that a real Heat makes the real resource types: cloud.py ADDRESS PORT.

It keeps in memory what it is sent, gives it an id and the state that Heat waits for, and answers what Heat's clients ask. It checks no quota, no
address and, but for the deletion of a server's port, no policy: what the real services refuse is seen by tests/cloud.
"""
import ipaddress
import json
import sys
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import RLock
from urllib.parse import parse_qsl, urlsplit

ADDRESS, PORT = sys.argv[1], int(sys.argv[2])
URL = f"http://{ADDRESS}:{PORT}"
PROJECT = "project"
LOCK = RLock()
STORE: dict[str, dict[str, dict]] = {}
EXTENSIONS = ("router", "security-group", "allowed-address-pairs", "port-security", "external-net", "standard-attr-tag", "net-mtu")
# What an operator's cloud has before any stack.
THERE = {
    "images": [{"name": "kubernetes", "status": "active", "visibility": "public", "min_disk": 0, "min_ram": 0, "size": 1,
                "disk_format": "qcow2", "container_format": "bare", "tags": []}],
    "security_groups": [{"name": "default", "security_group_rules": []}],
    "flavors": [{"name": "m1.medium", "ram": 4096, "disk": 40, "vcpus": 2, "links": []}],
    # lab: the one that hosts of tests are in.
    "networks": [{"name": "public", "router:external": True, "status": "ACTIVE"}, {"name": "private", "status": "ACTIVE"}, {"name": "lab", "status": "ACTIVE"}],
    "subnets": [{"name": "private", "cidr": "192.0.2.0/24"}, {"name": "lab", "cidr": str(ipaddress.ip_network(f"{ADDRESS}/24", strict=False))}],
}
SINGULAR = {"security_groups": "security_group", "security_group_rules": "security_group_rule", "floatingips": "floatingip", "networks": "network",
            "subnets": "subnet", "routers": "router", "ports": "port", "extensions": "extension", "loadbalancers": "loadbalancer",
            "listeners": "listener", "pools": "pool", "members": "member", "healthmonitors": "healthmonitor", "volumes": "volume",
            "servers": "server", "flavors": "flavor", "server_groups": "server_group", "images": "image"}


def keep(kind: str, given: dict) -> dict:
    found = {"id": str(uuid.uuid4()), **given}
    STORE.setdefault(kind, {})[found["id"]] = found
    return found


def next_address(subnet: dict) -> str:
    used = {ip["ip_address"] for port in STORE.get("ports", {}).values() for ip in port["fixed_ips"]}
    # The first addresses are a gateway's and a network's own.
    return next(str(ip) for ip in list(ipaddress.ip_network(subnet["cidr"]).hosts())[10:] if str(ip) not in used)


def created(kind: str, given: dict) -> dict:
    """What the service adds to what it was given."""
    match kind:
        case "ports":
            # Without a word about it, one of the network's first subnet.
            asked = given.get("fixed_ips") or [{"subnet_id": i} for i, subnet in STORE["subnets"].items() if subnet["network_id"] == given["network_id"]][:1]
            fixed = [{"subnet_id": ip["subnet_id"], "ip_address": ip.get("ip_address") or next_address(STORE["subnets"][ip["subnet_id"]])} for ip in asked]
            given = {"status": "ACTIVE", "device_id": "", "allowed_address_pairs": [], **given, "fixed_ips": fixed}
        case "networks":
            given = {"status": "ACTIVE", "subnets": [], "admin_state_up": True, **given}
        case "routers":
            given = {"status": "ACTIVE", "external_gateway_info": None, **given}
        case "security_groups":
            given = {"security_group_rules": [], **given}
        case "floatingips":
            number = len(STORE.get("floatingips", {})) + 10
            given = {"status": "ACTIVE", "floating_ip_address": f"203.0.113.{number}", **given}
        case "loadbalancers":
            port = keep("ports", {"fixed_ips": []})
            port["fixed_ips"] = [{"subnet_id": given["vip_subnet_id"], "ip_address": next_address(STORE["subnets"][given["vip_subnet_id"]])}]
            given = {"vip_address": port["fixed_ips"][0]["ip_address"], "vip_port_id": port["id"], **given}
        case "servers":
            nets = given.pop("networks", [])
            ports = [STORE["ports"][n["port"]] for n in nets if isinstance(n, dict) and n.get("port")]
            addresses = {"net": [{"addr": ip["ip_address"], "version": 4, "OS-EXT-IPS:type": "fixed"} for p in ports for ip in p["fixed_ips"]]}
            given = {"id": str(uuid.uuid4()), "status": "ACTIVE", "addresses": addresses, "metadata": {}, "links": [], **given}
            for port in ports:
                port["device_id"] = given["id"]
        case "volumes":
            given = {"status": "available", "attachments": [], "metadata": {}, "bootable": "false", **given}
        case "server_groups":
            given = {"members": [], "metadata": {}, **given}
    if kind in ("loadbalancers", "listeners", "pools", "members", "healthmonitors"):
        given = {"provisioning_status": "ACTIVE", "operating_status": "ONLINE", **given}
    return keep(kind, given)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, form, *words):
        print(form % words, flush=True)

    def answer(self, status: int, body=None):
        data = b"" if body is None else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def serve(self):
        size = int(self.headers.get("Content-Length") or 0)
        text = self.rfile.read(size)
        target = urlsplit(self.path)
        service, *parts = [p for p in target.path.split("/") if p]
        # Octavia's clients write v2.0 before the collection, Cinder's the project.
        parts = [p for p in parts if p not in ("v2", "v2.0", "v2.1", "v3", "lbaas", PROJECT)]
        with LOCK:
            try:
                status, body = self.handle_one(service, parts, dict(parse_qsl(target.query)), json.loads(text) if text else {})
            except LookupError as e:
                status, body = 404, {"error": {"message": f"{self.path}: {e!r}", "code": 404}}
        self.answer(status, body)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = serve

    def handle_one(self, service: str, parts: list[str], query: dict, body: dict):
        if not parts:
            version = {"compute": "v2.1", "volume": "v3.0", "network": "v2.0", "image": "v2.0", "load-balancer": "v2.0"}[service]
            one = {"id": version, "status": "CURRENT", "version": "2.90" if service == "compute" else "3.70" if service == "volume" else "",
                   "min_version": "2.1" if service == "compute" else "3.0" if service == "volume" else "",
                   "links": [{"rel": "self", "href": f"{URL}/{service}/{version.removesuffix('.0')}/"}]}
            return 200, {"versions": [one], "version": one}
        kind = parts[0].replace("-", "_").removeprefix("os_")
        match (self.command, kind, *parts[1:]):
            case (_, "extensions", *rest):
                found = [{"alias": alias, "name": alias} for alias in EXTENSIONS]
                return 200, {"extension": {"alias": rest[0]}} if rest else {"extensions": found}
            case ("PUT", "routers", router, "add_router_interface" | "remove_router_interface"):
                return 200, {"id": router, "port_id": str(uuid.uuid4()), **body}
            case (_, "servers", server, "os-interface"):
                return 200, {"interfaceAttachments": []}
            case ("POST", "servers", server, "os-volume_attachments"):
                volume = STORE["volumes"][body["volumeAttachment"]["volumeId"]]
                volume["status"], volume["attachments"] = "in-use", [{"server_id": server, "id": volume["id"]}]
                return 200, {"volumeAttachment": {"id": volume["id"], "volumeId": volume["id"], "serverId": server, "device": "/dev/vdb"}}
            case ("GET", "servers", server, "os-volume_attachments", volume):
                if STORE["volumes"][volume]["status"] != "in-use":
                    raise LookupError(volume)
                return 200, {"volumeAttachment": {"id": volume, "volumeId": volume, "serverId": server, "device": "/dev/vdb"}}
            case ("DELETE", "servers", server, "os-volume_attachments", volume):
                STORE["volumes"][volume].update(status="available", attachments=[])
                return 202, None
            case ("GET", "schemas", *_):
                return 200, {"name": "image", "properties": {}, "additionalProperties": {"type": "string"}}
            case ("GET", "keypairs", *_):
                raise LookupError("key pair")
        if kind == "pools" and len(parts) > 2 and parts[2] == "members":
            kind, parts = "members", ["members", *parts[3:]]
        there, one = STORE.setdefault(kind, {}), SINGULAR.get(kind, kind.removesuffix("s"))
        bare = service == "image"
        if self.command == "POST" and kind in body:
            return 201, {kind: [created(kind, given) for given in body[kind]]}
        if self.command == "POST":
            found = created(kind, dict(body[one]))
            return 202 if service in ("compute", "volume") and kind != "server_groups" else 200 if kind == "server_groups" else 201, {one: found}
        if len(parts) == 1 or parts[1] == "detail":
            found = [o for o in there.values() if all(str(o.get(k)) == v for k, v in query.items() if k in ("id", "name", "router:external"))]
            return 200, {kind: found}
        if self.command == "GET":
            return 200, there[parts[1]] if bare else {one: there[parts[1]]}
        if self.command in ("PUT", "PATCH"):
            there[parts[1]].update(body.get(one, {}))
            return 200, {one: there[parts[1]]}
        # Neutron 29's own default policy.
        if kind == "ports" and there[parts[1]].get("device_id"):
            return 403, {"NeutronError": {"type": "PolicyNotAuthorized", "message": "rule:delete_port is disallowed by policy", "detail": ""}}
        del there[parts[1]]
        for port in STORE.get("ports", {}).values() if kind == "servers" else ():
            if port.get("device_id") == parts[1]:
                port["device_id"] = ""
        return 204, None


for kind, objects in THERE.items():
    for one in objects:
        made = keep(kind, {**one, "id": str(uuid.uuid5(uuid.NAMESPACE_URL, f"{kind}/{one['name']}"))})
        if kind == "subnets":
            made["network_id"] = next(i for i, n in STORE["networks"].items() if n["name"] == one["name"])
ThreadingHTTPServer((ADDRESS, PORT), Handler).serve_forever()
