#!/usr/bin/env python3
"""A very small heat client for the tests (standard library only); run it in the namespace of Heat.

stack.py ready                       exit 0 when an engine answers (one RPC through the API)
stack.py create NAME FILE [k=v ...]  start a stack, print its id (k=@FILE reads a value from a file)
stack.py update NAME FILE [k=v ...]
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
stack.py list                        names of the stacks
stack.py token                       a demo token
stack.py revoke USER...              as admin: all tokens that these users have (they can ask for new ones)

OS_AUTH_URL and OS_PASSWORD (and OS_USERNAME, OS_PROJECT_NAME, by default demo) say as whom;
HB_TOKEN_FILE keeps the token for an hour.
"""
import base64
import hashlib
import hmac
import json
import os
import sys
import time
import urllib.error
import urllib.parse
import urllib.request


class Refused(Exception):
    def __init__(self, method: str, url: str, code: int, text: str):
        super().__init__(f"{method} {url}: {code} {text[:2000]}")
        self.code = code


class Session:
    """Keystone v3 and what needs its token."""

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
        try:
            with urllib.request.urlopen(urllib.request.Request(url, data, headers, method=method), timeout=timeout) as r:
                text = r.read()
                return (json.loads(text) if text else None), r.headers
        except urllib.error.HTTPError as e:
            raise Refused(method, url, e.code, e.read().decode(errors="replace")) from None

    def get(self, url: str, **query):
        return self.request("GET", url, query=query)[0]

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


def parameters(args) -> dict:
    out = {}
    for a in args:
        k, _, v = a.partition("=")
        out[k] = open(v[1:]).read() if v.startswith("@") else v
    return out


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


def main(cmd: str, *a: str) -> int:
    s = from_environment()
    url = s.endpoint("orchestration")

    def show(x):
        print(json.dumps(x, indent=1, ensure_ascii=False))
    if cmd == "ready":
        s.request("GET", f"{url}/stacks", timeout=60)
        return 0
    if cmd == "token":
        print(s.token)
        return 0
    if cmd == "list":
        show([x["stack_name"] for x in s.get(f"{url}/stacks")["stacks"]])
        return 0
    if cmd == "revoke":
        # Disabling revokes; tokens carry whole seconds, so one of this second would count as older.
        for enabled in (False, True):
            for user in a:
                s.request("PATCH", f"{s.auth_url}/users/{user}", {"user": {"enabled": enabled}})
            time.sleep(1.1)
        return 0
    name = a[0]
    if cmd == "create":
        body = {"stack_name": name, "template": open(a[1]).read(), "parameters": parameters(a[2:]),
                "timeout_mins": 60, "disable_rollback": True}
        print(s.request("POST", f"{url}/stacks", body)[0]["stack"]["id"])
        return 0
    try:
        st = s.get(f"{url}/stacks/{name}", resolve_outputs=str(cmd in ("show", "outputs")))["stack"]
    except Refused as e:
        if cmd == "delete" and e.code == 404:
            return 0
        raise
    base = f"{url}/stacks/{name}/{st['id']}"

    def output(key):
        o = s.get(f"{base}/outputs/{key}")["output"]
        if o.get("output_error"):
            sys.exit(o["output_error"])
        return o["output_value"]
    if cmd == "update":
        s.request("PUT", base, {"template": open(a[1]).read(), "parameters": parameters(a[2:]), "timeout_mins": 60, "disable_rollback": True})
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


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    try:
        sys.exit(main(*sys.argv[1:]))
    except (Refused, urllib.error.URLError, OSError) as e:
        sys.exit(str(e))
