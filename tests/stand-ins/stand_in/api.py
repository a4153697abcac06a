"""kube-apiserver: who asks, whether he may, health that asks etcd, nodes, and the objects of objects.py.

Known from: bootstrap tokens (a secret bootstrap-token-ID in kube-system; user system:bootstrap:ID; group system:bootstrappers and those of
auth-extra-groups) [source: plugin/pkg/auth/authenticator/token/bootstrap]; the roles below and their bindings [source:
plugin/pkg/auth/authorizer/rbac/bootstrappolicy], cut down to what these programs ask for; nodeclient and selfnodeclient are roles of the
API's own from 1.8 on, before somebody must make them [release notes of 1.8].
A patch of a node: its content type says how it is merged, any other is answered 415 [API reference, "API concepts": patch]; a strategic
merge merges conditions by their `type` and addresses by theirs, and takes out what `$patch: delete` names [API reference, core/v1
NodeStatus: patchStrategy merge, patchMergeKey type]; of a patch to /status nothing but the status is taken, and of one to the node
everything but that [source: pkg/registry/core/node/strategy.go, up to labels and annotations]. A condition has a type and a status of True,
False or Unknown, and times of RFC 3339 [API reference, core/v1 NodeCondition].
Evictions: a kubelet lists pods (from 1.32 on those of its own node alone), and, from 1.8 on, evicts those of its own node and no other [release notes of 1.8; source:
plugin/pkg/auth/authorizer/node; plugin/pkg/admission/noderestriction, admitPodEviction]; of policy/v1beta1, and from 1.22 on of policy/v1
[release notes of 1.22]; the order `no-disruptions` is a PodDisruptionBudget that allows none.
Not imitated: service accounts' tokens, namespaced roles, a certificate of an unknown authority being answered 401 (the handshake fails).
"""
from __future__ import annotations

import base64
import json
import re
import threading
import time
from urllib.parse import parse_qsl

from stand_in import files
from stand_in.etcd import Etcd
from stand_in.kubernetes import Program
from stand_in.objects import Failure, Objects, Target, invalid, kinds
from stand_in.service import HEALTH, OK, Service, Who, orders, version

CSR, GROUP = "certificatesigningrequests", "certificates.k8s.io"
ANY = frozenset("*")
READ = frozenset({"get", "list", "watch"})
# role: (verbs, API groups, resources)
ROLES = {
    "cluster-admin": [(ANY, ANY, ANY)],
    "system:node-bootstrapper": [(READ | {"create"}, {GROUP}, {CSR})],
    "system:node-proxier": [(READ, {""}, {"nodes", "services", "endpoints"})],
    "system:kube-scheduler": [(READ, {""}, {"nodes"})],
    # its certificate controller's own role, which it takes on by impersonation or by a service account's token
    "system:kube-controller-manager": [(READ | {"update"}, {GROUP}, {CSR, f"{CSR}/approval", f"{CSR}/status"}), (READ, {""}, ANY),
                                       ({"create"}, {"authorization.k8s.io"}, {"subjectaccessreviews"})],
}
SINCE_1_8 = {f"system:{GROUP}:{CSR}:{kind}": [({"create"}, {GROUP}, {f"{CSR}/{kind}"})] for kind in ("nodeclient", "selfnodeclient")}
BINDINGS = (("cluster-admin", "Group", "system:masters"), ("system:node-proxier", "User", "system:kube-proxy"),
            ("system:kube-scheduler", "User", "system:kube-scheduler"),
            ("system:kube-controller-manager", "User", "system:kube-controller-manager"))

NOBODY = Who("", set())  # an invalid token is nobody's, not anonymous [source: apiserver, authentication/request/bearertoken]


class Api(Service):
    takes_query = True

    def __init__(self, program: Program):
        super().__init__(program)
        self.nodes: dict[str, dict] = {}
        self.lock = threading.Lock()
        f = program.flags
        self.etcd = Etcd(f)
        self.objects = Objects(program, self.etcd)
        self.roles = ROLES | (SINCE_1_8 if program.minor >= 8 else {})
        self.bootstrap = f.on("enable-bootstrap-token-auth") or f.on("experimental-bootstrap-token-auth")
        self.tokens = {}
        if path := f.get("token-auth-file"):
            for line in files.read(path, "--token-auth-file").decode().splitlines():
                token, name, _, *groups = line.split(",", 3)
                self.tokens[token] = Who(name, set("".join(groups).strip('"').split(",")))

    # --- who ---
    def identity(self, token: str, certificate: Who | None) -> Who | None:
        return certificate or self.tokens.get(token) or self._bootstrapper(token) or (NOBODY if token else None)

    def _bootstrapper(self, token: str) -> Who | None:
        name, dot, secret = token.partition(".")
        if not dot or not self.bootstrap:
            return None
        found = self.objects.one(f"secrets/kube-system/bootstrap-token-{name}")
        if not found or found.get("type") != "bootstrap.kubernetes.io/token":
            return None
        data = {k: base64.b64decode(v).decode() for k, v in found["data"].items()}
        end = data.get("expiration")
        good = (data.get("token-id"), data.get("token-secret"), data.get("usage-bootstrap-authentication")) == (name, secret, "true")
        if not good or (end and end < time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())):
            return None
        extra = {group for group in data.get("auth-extra-groups", "").split(",") if group}
        if not all(group.startswith("system:bootstrappers:") for group in extra):
            return None
        return Who(f"system:bootstrap:{name}", {"system:bootstrappers"} | extra)

    def may(self, who: Who, verb: str, group: str, resource: str) -> bool:
        """RBAC over the whole cluster."""
        if "AlwaysAllow" in self.program.authorization:
            return True
        held = {role for role, kind, name in BINDINGS if (name in who.groups if kind == "Group" else name == who.name)}
        for binding in self.objects.every("clusterrolebindings"):
            if any(s["name"] in who.groups if s["kind"] == "Group" else s["kind"] == "User" and s["name"] == who.name
                   for s in binding.get("subjects") or []):
                held.add(binding["roleRef"]["name"])
        rules = [rule for role in held for rule in self.roles.get(role, [])]
        for role in self.objects.every("clusterroles"):
            if role["metadata"]["name"] in held:
                rules += [(set(r["verbs"]), set(r.get("apiGroups") or []), set(r.get("resources") or [])) for r in role.get("rules") or []]
        return any({verb, "*"} & set(verbs) and {group, "*"} & set(groups) and {resource, "*"} & set(resources)
                   for verbs, groups, resources in rules)

    # --- answers ---
    def answer(self, method: str, path: str, body: bytes, who: Who | None, tls: bool, kind: str = "") -> tuple[int, bytes]:
        path, _, query = path.partition("?")
        if "unhealthy" in orders(self.program.component) and path in HEALTH:
            return 500, b"told to be unhealthy"
        if who is NOBODY:
            return 401, b"Unauthorized"
        if not tls:
            who = Who("system:unsecured", {"system:masters"})
        if who is None:
            if not self.program.anonymous:
                return 401, b"Unauthorized"
            who = Who("system:anonymous", set())
        if path in HEALTH and (path == "/healthz" or self.program.minor >= 16):
            mistake = self.etcd.mistake()
            return (500, f"[-]etcd failed: {mistake}".encode()) if mistake else OK
        if path == "/version":
            return 200, version(self.program)
        if path.startswith("/api/v1/nodes"):
            return self.node(method, path.removeprefix("/api/v1/nodes").strip("/"), body, who, kind)
        if path == "/api":
            return 200, b'{"kind":"APIVersions","versions":["v1"]}'
        if method == "GET" and (listed := kinds(path, self.program.minor)):
            return 200, json.dumps(listed).encode()
        try:
            if path.startswith("/apis/authorization.k8s.io/") and path.endswith("/subjectaccessreviews") and method == "POST":
                return self.review(body, who)
            if path == "/api/v1/pods" and method == "GET":
                return self.pods(dict(parse_qsl(query)), who)
            if method == "POST" and (found := re.fullmatch(r"/api/v1/namespaces/([^/]+)/pods/([^/]+)/eviction", path)):
                return self.evict(*found.groups(), body, who)
            target = Target(path, self.program.minor)
            resource = f"{target.plural}/{target.sub}" if target.sub else target.plural
            verb = {"POST": "create", "PUT": "update", "DELETE": "delete"}.get(method, "get" if target.name else "list")
            self.demand(who, verb, target.group, resource)
            selector = dict(part.split("=", 1) for part in query.split("&") if "=" in part).get("labelSelector", "")
            return self.objects.answer(method, target, body, who, selector)
        except Failure as failure:
            return failure.answer()
        except OSError as error:  # etcd is away
            return Failure(500, "InternalError", str(error)).answer()

    def demand(self, who: Who, verb: str, group: str, resource: str):
        # system:basic-user and the Node authorizer: a node asks for its own next certificate
        if "system:nodes" in who.groups and group == GROUP and resource == CSR and verb in READ | {"create"}:
            return
        if not self.may(who, verb, group, resource):
            raise Failure(403, "Forbidden", f'{resource} is forbidden: User "{who.name}" cannot {verb} resource "{resource}" in API group '
                          f'"{group}" at the cluster scope')

    def review(self, body: bytes, who: Who) -> tuple[int, bytes]:
        """SubjectAccessReview: may somebody else?"""
        self.demand(who, "create", "authorization.k8s.io", "subjectaccessreviews")
        spec = json.loads(body)["spec"]
        asked = spec["resourceAttributes"]
        resource = f'{asked["resource"]}/{asked["subresource"]}' if asked.get("subresource") else asked["resource"]
        allowed = self.may(Who(spec.get("user", ""), set(spec.get("groups") or [])), asked["verb"], asked["group"], resource)
        return 201, json.dumps({"kind": "SubjectAccessReview", "spec": spec, "status": {"allowed": allowed}}).encode()

    # --- pods of a node ---
    def pods(self, query: dict[str, str], who: Who) -> tuple[int, bytes]:
        selector = query.get("fieldSelector", "")
        own = f"spec.nodeName={who.name.removeprefix('system:node:')}"
        if "system:nodes" not in who.groups:
            self.demand(who, "list", "", "pods")
        elif self.program.minor >= 32 and selector != own:
            raise Failure(403, "Forbidden", f'pods is forbidden: User "{who.name}" can only list/watch pods with spec.nodeName field selector')
        if selector and not selector.startswith("spec.nodeName="):
            raise Failure(400, "BadRequest", f"field label not supported: {selector}")
        name = selector.removeprefix("spec.nodeName=")
        found = [one for one in self.objects.every("pods") if not selector or (one.get("spec") or {}).get("nodeName") == name]
        start, limit = int(query.get("continue") or 0), int(query.get("limit") or 0) or len(found)
        more = str(start + limit) if start + limit < len(found) else ""
        return 200, json.dumps({"kind": "PodList", "apiVersion": "v1", "metadata": {"continue": more}, "items": found[start:start + limit]}).encode()

    def evict(self, namespace: str, name: str, body: bytes, who: Who) -> tuple[int, bytes]:
        is_node = "system:nodes" in who.groups
        if not is_node:
            self.demand(who, "create", "", "pods/eviction")
        try:
            sent = json.loads(body)
            named = (sent["kind"], sent["metadata"]["name"], sent["metadata"].get("namespace", namespace))
            version = sent["apiVersion"]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Failure(400, "BadRequest", f"the object provided is unrecognized: {error!r}") from error
        if version not in (("policy/v1beta1", "policy/v1") if self.program.minor >= 22 else ("policy/v1beta1",)) or sent["kind"] != "Eviction":
            raise Failure(400, "BadRequest", f'no kind "{sent["kind"]}" is registered for version "{version}"')
        if named != ("Eviction", name, namespace):
            raise Failure(400, "BadRequest", "name in URL does not match name in Eviction object")
        key = f"pods/{namespace}/{name}"
        pod = self.objects.one(key)
        if pod is None:
            raise Failure(404, "NotFound", f'pods "{name}" not found')
        if is_node and self.program.minor < 8:
            raise Failure(403, "Forbidden", 'unexpected pod subresource "eviction"')
        if is_node and who.name != f"system:node:{pod['spec'].get('nodeName')}":
            raise Failure(403, "Forbidden", f'pods "{name}" is forbidden: node {who.name.removeprefix("system:node:")} can only evict pods with '
                          "spec.nodeName set to itself")
        if "no-disruptions" in orders(self.program.component):
            raise Failure(429, "TooManyRequests", "Cannot evict pod as it would violate the pod's disruption budget.")
        self.objects.store.write(key, None, int(pod["metadata"]["resourceVersion"]))
        return 201, json.dumps({"kind": "Status", "apiVersion": "v1", "status": "Success"}).encode()

    # --- nodes, which are kept in memory ---
    def allowed(self, method: str, name: str, who: Who) -> bool:
        """Node authorizer and NodeRestriction: a node writes only itself. RBAC's own roles: the other components read."""
        if "AlwaysAllow" in self.program.authorization or "system:masters" in who.groups:
            return True
        if "system:nodes" in who.groups and who.name.startswith("system:node:"):
            return method == "GET" or who.name == f"system:node:{name}"
        return method == "GET" and who.name.startswith("system:kube-")

    def node(self, method: str, rest: str, body: bytes, who: Who, kind: str) -> tuple[int, bytes]:
        name = rest.removesuffix("/status")
        if method in ("POST", "PUT", "PATCH"):
            try:
                sent = json.loads(body)
                name = name or sent["metadata"]["name"]
            except (ValueError, KeyError, TypeError):
                return 400, b"bad node"
        if not self.allowed(method, name, who):
            said = f'nodes "{name}" is forbidden: User "{who.name}" cannot {method.lower()} it'
            return Failure(403, "Forbidden", said).answer()
        if method == "PATCH" and kind not in PATCHES:
            said = f"the body of the request was in an unknown format - accepted media types include: {', '.join(PATCHES)}"
            return Failure(415, "UnsupportedMediaType", said).answer()
        with self.lock:
            if method == "GET" and not name:
                return 200, json.dumps({"kind": "NodeList", "apiVersion": "v1", "items": list(self.nodes.values())}).encode()
            if method == "POST":
                if name in self.nodes:
                    return 409, f'nodes "{name}" already exists'.encode()
                self.nodes[name] = sent
                return 201, body
            if name not in self.nodes:
                return Failure(404, "NotFound", f'nodes "{name}" not found').answer()
            if method == "PATCH":
                is_status = rest.endswith("/status")
                parts = {k: v for k, v in sent.items() if (k == "status") == is_status}
                new = json.loads(json.dumps(self.nodes[name]))
                PATCHES[kind](new, parts)
                if mistake := bad_condition(new):
                    return invalid("Node", name, "status.conditions", mistake).answer()
                self.nodes[name] = new
            if method == "PUT":
                before = self.nodes[name]
                seen, now = (one["metadata"].get("resourceVersion") for one in (sent, before))
                # Admission sees it first.
                if mistake := restricted(before, sent, who, self.program.minor):
                    return Failure(403, "Forbidden", f'nodes "{name}" is forbidden: {mistake}').answer()
                if seen and seen != now:
                    said = f'Operation cannot be fulfilled on nodes "{name}": the object has been modified; please apply your changes to the latest version and try again'
                    return Failure(409, "Conflict", said).answer()
                # The other half has a path of its own.
                kept = ("spec", "metadata") if rest.endswith("/status") else ("status",)
                self.nodes[name] = {**sent, **{part: before[part] for part in kept if part in before}}
            if method == "DELETE":
                return 200, json.dumps(self.nodes.pop(name)).encode()
            return 200, json.dumps(self.nodes[name]).encode()


KUBELETS = re.compile(r"(.*\.)?(kubelet|node)\.kubernetes\.io/.*|(topology|failure-domain\.beta)\.kubernetes\.io/(zone|region)"
                      r"|(beta\.)?kubernetes\.io/(hostname|arch|os|instance-type)")


def restricted(before: dict, after: dict, who: Who, minor: int) -> str:
    """What NodeRestriction says of a node that a kubelet changes [source: plugin/pkg/admission/noderestriction, admitNode: labels since 1.13]."""
    if "system:nodes" not in who.groups:
        return ""
    if ((before.get("spec") or {}).get("taints") or []) != ((after.get("spec") or {}).get("taints") or []):
        return "node is not allowed to modify taints"
    old, new = (one["metadata"].get("labels") or {} for one in (before, after))
    changed = {key for key in {*old, *new} if old.get(key) != new.get(key) and re.match(r"(.*\.)?(kubernetes|k8s)\.io/", key)}
    wrong = sorted(key for key in changed if minor >= 13 and not KUBELETS.fullmatch(key))
    return f"is not allowed to modify labels: {', '.join(wrong)}" if wrong else ""


KEYS = {"conditions": "type", "addresses": "type"}


def strategic(into: dict, patch: dict):
    """Lists with a merge key are merged by it, other lists replaced."""
    for name, value in patch.items():
        if value is None:
            into.pop(name, None)
        elif isinstance(value, list) and (key := KEYS.get(name)):
            into[name] = by_key(into.get(name) or [], value, key)
        elif isinstance(value, dict) and isinstance(into.get(name), dict):
            strategic(into[name], value)
        else:
            into[name] = value


def by_key(old: list, patch: list, key: str) -> list:
    new = list(old)
    for one in patch:
        known = next((item for item in new if item[key] == one[key]), None)
        if one.get("$patch") == "delete":
            new = [item for item in new if item is not known]
        elif known is None:
            new.append(dict(one))
        else:
            strategic(known, one)
    return new


def bad_condition(node: dict) -> str:
    """What the API could not read, or would not take."""
    for one in node.get("status", {}).get("conditions") or []:
        if not one.get("type") or one.get("status") not in ("True", "False", "Unknown"):
            return f"Unsupported value: {one}"
        for name in ("lastHeartbeatTime", "lastTransitionTime"):
            if (at := one.get(name)) and not re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)", at):
                return f"{name}: {at!r} is no time"
    return ""


def merge(into: dict, patch: dict):
    """RFC 7396."""
    for key, value in patch.items():
        if value is None:
            into.pop(key, None)
        elif isinstance(value, dict) and isinstance(into.get(key), dict):
            merge(into[key], value)
        else:
            into[key] = value


# How a patch of this kind is merged.
PATCHES = {"application/strategic-merge-patch+json": strategic, "application/merge-patch+json": merge}
