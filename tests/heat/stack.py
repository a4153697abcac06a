#!/usr/bin/env python3
"""A very small heat client for the tests (standard library only); run it in the namespace of Heat.

stack.py ready                       exit 0 when an engine answers (one RPC through the API)
stack.py create NAME FILE [k=v ...]  start a stack, print its id (k=@FILE reads a value from a file; -e=FILE is an environment).
                                     Templates that FILE names by `type: NAME.yaml` go along, from its directory
stack.py update NAME FILE [k=v ...]
stack.py preview NAME FILE [k=v ...] what create would make, as JSON
stack.py validate FILE [k=v ...]     what Heat says of the template and of those that it names, as JSON
stack.py wait NAME [SECONDS]         wait for the end of the running action, print status and reason
stack.py show NAME                   the stack, as JSON
stack.py resources NAME              its resources, as JSON
stack.py output NAME KEY             one output, as JSON
stack.py outputs NAME                all outputs, as JSON: {key: value}
stack.py meta NAME RESOURCE          resource metadata as the owner sees it
stack.py signal NAME RESOURCE JSON   as the owner, whatever the resource's transport
stack.py poll-url NAME [OUTPUT]      the signed DescribeStackResource URL that a server would ask, made from
                                     its os_collect_config (the stack's output OUTPUT, by default occ)
stack.py poll NAME [OUTPUT]          what it gets by it: resource metadata as the server sees it
stack.py delete NAME [SECONDS]       delete and wait
stack.py servers NAME                metadata of all servers of Nova in the stack and its nested ones, as the owner sees it
stack.py answer NAME [NODE=REASON ...]
                                     as the agents of examples/heat: to each kubernetes-node deployment that waits, and before it to the wait
                                     handle, SUCCESS; FAILURE from the nodes that are named. Their names, as JSON
stack.py unhealthy NAME NODE         mark the server of that name unhealthy
stack.py list                        names of the stacks
stack.py token                       a demo token
stack.py get TYPE PATH [VERSION]     what the service of that type in the catalog answers, as JSON; VERSION is Nova's, e.g. 2.3
stack.py cloud URL                   as admin: Nova, Neutron, Cinder, Glance and Octavia are at URL (cloud.py); -: there are none
stack.py revoke USER...              as admin: all tokens that these users have (they can ask for new ones)

OS_AUTH_URL and OS_PASSWORD (and OS_USERNAME, OS_PROJECT_NAME, by default demo) say as whom;
HB_TOKEN_FILE keeps the token for an hour.
"""
import base64
import hashlib
import hmac
import json
import os
import re
import sys
import time
import urllib.error
import urllib.parse
import urllib.request


CLOUD = {"compute": "compute/v2.1", "network": "network", "volumev3": "volume/v3/project", "image": "image", "load-balancer": "load-balancer"}


class Refused(Exception):
    def __init__(self, method: str, url: str, code: int, text: str):
        super().__init__(f"{method} {url}: {code} {text[:2000]}")
        self.code = code


class Session:
    """Keystone v3 and what needs its token."""
    version: str | None = None

    def __init__(self, auth_url: str, user: str, password: str, project: str):
        self.token = ""
        self.auth_url = auth_url
        answer, headers = self.request("POST", f"{auth_url}/auth/tokens", {"auth": {
            "identity": {"methods": ["password"], "password": {"user": {
                "name": user, "domain": {"id": "default"}, "password": password}}},
            "scope": {"project": {"name": project, "domain": {"id": "default"}}}}})
        self.token = headers["X-Subject-Token"]
        self.catalog = answer["token"]["catalog"]

    def request(self, method: str, url: str, body=None, query: dict | None = None, timeout: float = 180):
        if query:
            url += "?" + urllib.parse.urlencode(query)
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self.token:
            headers["X-Auth-Token"] = self.token
        if self.version:
            headers["X-OpenStack-Nova-API-Version"] = self.version
        try:
            with urllib.request.urlopen(urllib.request.Request(url, data, headers, method=method), timeout=timeout) as r:
                text = r.read()
                return (json.loads(text) if text else None), r.headers
        except urllib.error.HTTPError as e:
            raise Refused(method, url, e.code, e.read().decode(errors="replace")) from None

    def get(self, url: str, **query):
        return self.request("GET", url, query=query)[0]

    def ensure(self, kind: str, plural: str, match: dict, **extra) -> str:
        """The id of Keystone's object that is so, which is made where there is none."""
        for o in self.get(f"{self.auth_url}/{plural}", **match)[plural]:
            if all(o.get(k) == v for k, v in match.items()):
                return o["id"]
        return self.request("POST", f"{self.auth_url}/{plural}", {kind: {**match, **extra}})[0][kind]["id"]

    def grant(self, path: str):
        """A role, which may be granted already."""
        self.request("PUT", f"{self.auth_url}/{path}")

    def endpoint(self, kind: str) -> str:
        return next(e["url"] for s in self.catalog if s["type"] == kind
                    for e in s["endpoints"] if e["interface"] == "public")


def from_environment() -> Session:
    e = os.environ
    kept = e.get("HB_TOKEN_FILE")
    # a known token spares a login, and heat-api asks keystone only once about each
    if kept and os.path.exists(kept) and time.time() - os.path.getmtime(kept) < 3600:
        s = Session.__new__(Session)
        with open(kept) as f:
            s.__dict__.update(json.load(f))
        return s
    s = Session(e["OS_AUTH_URL"], e.get("OS_USERNAME", "demo"), e["OS_PASSWORD"], e.get("OS_PROJECT_NAME", "demo"))
    if kept:
        new = f"{kept}.{os.getpid()}"
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as f:
            json.dump(s.__dict__, f)
        os.rename(new, kept)
    return s


def body_of(file: str, args) -> dict:
    """Template, environments, parameters and the files that they name."""
    given, environments, files = {}, [], {}

    def collect(text: str, folder: str):
        for name in re.findall(r"(?m)^\s*(?:\"?[\w:]+\"?: |type: )(\S+\.yaml)$", text):
            if name not in files:
                with open(os.path.join(folder, name)) as f:
                    files[name] = f.read()
                collect(files[name], folder)
    for a in args:
        k, _, v = a.partition("=")
        if k == "-e":
            environments.append(v)
            with open(v) as f:
                files[v] = f.read()
            collect(files[v], os.path.dirname(v))
        else:
            given[k] = open(v[1:]).read() if v.startswith("@") else v
    with open(file) as f:
        template = f.read()
    collect(template, os.path.dirname(file))
    body = {"template": template, "parameters": given, "files": files}
    if environments:
        # Heat lets environments win over parameters, so that these become the last of them.
        files["given.json"] = json.dumps({"parameters": given})
        body |= {"parameters": {}, "environment_files": [*environments, "given.json"]}
    return body


def poll_url(occ: dict) -> str:
    """AWS signature version 2 over the query, as heat's cfn API wants it."""
    c = occ["cfn"]
    u = urllib.parse.urlparse(c["metadata_url"])
    q = {"Action": "DescribeStackResource", "StackName": c["stack_name"], "LogicalResourceId": c["path"].split(".")[0],
         "AWSAccessKeyId": c["access_key_id"], "SignatureVersion": "2", "SignatureMethod": "HmacSHA256", "ContentType": "JSON"}

    def quote(x):
        return urllib.parse.quote(x, safe="-_~")
    text = "&".join(f"{quote(k)}={quote(q[k])}" for k in sorted(q))
    digest = hmac.new(c["secret_access_key"].encode(), f"GET\n{u.netloc}\n{u.path}\n{text}".encode(), hashlib.sha256).digest()
    return f"{c['metadata_url']}?{text}&Signature={quote(base64.b64encode(digest).decode())}"


def ended(s: Session, stack: str, seconds: float, deleting: bool = False) -> int:
    begun = time.monotonic()
    while True:
        try:
            st = s.get(stack, resolve_outputs="False")["stack"]
        except Refused as e:
            if deleting and e.code == 404:
                return 0
            raise
        if deleting and st["stack_status"] == "DELETE_COMPLETE":
            return 0
        if not st["stack_status"].endswith("IN_PROGRESS"):
            print(st["stack_status"], st["stack_status_reason"])
            return 1 if deleting else 0
        if (lasted := time.monotonic() - begun) > seconds:
            print("timeout", st["stack_status"])
            return 2
        time.sleep(min(0.2 + lasted / 50, 2))  # what takes long must not be slowed down by the question


def nested(s: Session, base: str, kind: str):
    """The resources of a type in a stack and in those that it is made of, each with its address as `self`."""
    for r in s.get(f"{base}/resources", nested_depth=3)["resources"]:
        if r["resource_type"] == kind:
            yield r | {"self": next(link["href"] for link in r["links"] if link["rel"] == "self")}


def show(x):
    print(json.dumps(x, indent=1, ensure_ascii=False))


def revoke(s: Session, users):
    """Makes the tokens of users invalid."""
    # Disabling revokes; tokens carry whole seconds, so one of this second would count as older.
    for enabled in (False, True):
        for user in users:
            s.request("PATCH", f"{s.auth_url}/users/{user}", {"user": {"enabled": enabled}})
        time.sleep(1.1)


def cloud(s: Session, address: str):
    """Has the catalog name the stand-ins for other services at this address; none of them at `-`."""
    for service in s.get(f"{s.auth_url}/services")["services"]:
        if service["type"] in CLOUD:
            s.request("DELETE", f"{s.auth_url}/services/{service['id']}")
    for kind, path in CLOUD.items() if address != "-" else ():
        service = s.request("POST", f"{s.auth_url}/services", {"service": {"name": kind, "type": kind}})[0]["service"]["id"]
        for interface in ("public", "internal", "admin"):
            s.request("POST", f"{s.auth_url}/endpoints", {"endpoint": {
                "service_id": service, "interface": interface, "url": f"{address}/{path}", "region_id": os.environ["OS_REGION_NAME"]}})


def answer(s: Session, url: str, base: str, failing: dict) -> list[str]:
    """Answers for the nodes that a stack waits for, with SUCCESS but where `failing` has a reason."""
    answered = []
    for r in nested(s, base, "OS::Heat::SoftwareDeployment"):
        if not r["resource_status"].endswith("IN_PROGRESS") or not r["physical_resource_id"]:
            continue
        deployment = s.get(f"{url}/software_deployments/{r['physical_resource_id']}")["software_deployment"]
        if deployment["status"] != "IN_PROGRESS":
            continue
        node = deployment["input_values"]["INSTANCE_NAME"]
        why = failing.get(node)
        signal = {"id": node, "status": "FAILURE" if why else "SUCCESS", "reason": why or f"node {node} is healthy", "data": {"node": node}}
        s.request("POST", f"{base}/resources/wait_handle/signal", signal)
        outcome = {"deploy_status_code": 1, "error": why} if why else {"deploy_status_code": 0, "node_name": node}
        s.request("POST", f"{r['self']}/signal", outcome)
        answered.append(node)
    return answered


def with_stack(s: Session, url: str, st: dict, cmd: str, a: tuple) -> int:
    """Carries out a command on a stack that is there."""
    base = f"{url}/stacks/{a[0]}/{st['id']}"

    def output(key):
        o = s.get(f"{base}/outputs/{key}")["output"]
        if o.get("output_error"):
            sys.exit(o["output_error"])
        return o["output_value"]
    if cmd == "update":
        s.request("PUT", base, {**body_of(a[1], a[2:]), "timeout_mins": 60, "disable_rollback": True})
    elif cmd == "action":
        s.request("POST", f"{base}/actions", {a[1]: None})
    elif cmd == "wait":
        return ended(s, base, float(a[1]) if a[1:] else 120)
    elif cmd == "delete":
        try:
            s.request("DELETE", base)
        except Refused as e:
            if e.code != 404:  # an earlier delete has just ended
                raise
        return ended(s, base, float(a[1]) if a[1:] else 300, deleting=True)
    elif cmd == "show":
        show(st)
    elif cmd == "resources":
        show(s.get(f"{base}/resources")["resources"])
    elif cmd == "servers":
        show([s.get(f"{r['self']}/metadata")["metadata"] for r in nested(s, base, "OS::Nova::Server")])
    elif cmd == "answer":
        show(answer(s, url, base, dict(word.split("=", 1) for word in a[1:])))
    elif cmd == "unhealthy":
        for r in nested(s, base, "OS::Nova::Server"):
            if s.get(r["self"])["resource"]["attributes"]["name"] == a[1]:
                s.request("PATCH", r["self"], {"mark_unhealthy": True, "resource_status_reason": "by hand"})
    elif cmd == "output":
        show(output(a[1]))
    elif cmd == "outputs":
        show({o["output_key"]: o.get("output_value") for o in st.get("outputs", [])})
    elif cmd == "meta":
        show(s.get(f"{base}/resources/{a[1]}/metadata")["metadata"])
    elif cmd == "signal":
        s.request("POST", f"{base}/resources/{a[1]}/signal", json.loads(a[2]))
    elif cmd == "poll-url":
        print(poll_url(output(a[1] if a[1:] else "occ")))
    elif cmd == "poll":
        with urllib.request.urlopen(poll_url(output(a[1] if a[1:] else "occ")), timeout=180) as r:
            detail = json.load(r)["DescribeStackResourceResponse"]["DescribeStackResourceResult"]["StackResourceDetail"]
        metadata = detail["Metadata"]
        show(json.loads(metadata) if isinstance(metadata, str) else metadata)
    else:
        sys.exit(__doc__)
    return 0


def main(cmd: str, *a: str) -> int:
    s = from_environment()
    url = s.endpoint("orchestration")
    if cmd == "ready":
        s.request("GET", f"{url}/stacks", timeout=60)
        return 0
    if cmd == "token":
        print(s.token)
        return 0
    if cmd == "get":
        s.version = a[2] if a[2:] else None
        show(s.get(f"{s.endpoint(a[0])}/{a[1]}"))
        return 0
    if cmd == "list":
        show([x["stack_name"] for x in s.get(f"{url}/stacks")["stacks"]])
        return 0
    if cmd == "revoke":
        revoke(s, a)
        return 0
    if cmd == "cloud":
        cloud(s, a[0])
        return 0
    if cmd == "validate":
        show(s.request("POST", f"{url}/validate", body_of(a[0], a[1:]), {"show_nested": "True"})[0])
        return 0
    name = a[0]
    if cmd == "preview":
        show(s.request("POST", f"{url}/stacks/preview", {"stack_name": name, **body_of(a[1], a[2:])})[0]["stack"])
        return 0
    if cmd == "create":
        body = {"stack_name": name, **body_of(a[1], a[2:]), "timeout_mins": 60, "disable_rollback": True}
        print(s.request("POST", f"{url}/stacks", body)[0]["stack"]["id"])
        return 0
    try:
        st = s.get(f"{url}/stacks/{name}", resolve_outputs=str(cmd in ("show", "outputs")))["stack"]
    except Refused as e:
        if cmd == "delete" and e.code == 404:
            return 0
        raise
    return with_stack(s, url, st, cmd, a)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    try:
        sys.exit(main(*sys.argv[1:]))
    except (Refused, urllib.error.URLError, OSError) as e:
        sys.exit(str(e))
