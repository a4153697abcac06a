"""Objects of the API other than nodes: stored, and refused where the real API refuses.

Known from: HTTP statuses and reasons by the API conventions (kubernetes/community, api-conventions.md: 409 AlreadyExists and Conflict,
422 Invalid, 404 of an unknown path); "cannot change roleRef" and a roleRef's API group [source: pkg/apis/rbac/validation]; an immutable
type of secrets, their data being base64, and stringData's folding [source: pkg/apis/core/validation, pkg/registry/core/secret]; which
versions of a group a minor serves [release notes: rbac v1beta1 1.6 to 1.21 and v1 from 1.8 on; certificates v1beta1 1.6 to 1.21 and v1
from 1.19 on]; what a request for a certificate needs in v1 [source: pkg/apis/certificates/validation].
Stricter than the real one: a PUT without a resourceVersion is refused, where the real one would overwrite what somebody else wrote.
Which kinds a version has is listed below its path [API conventions; reference, APIResourceList]; an object of an unknown namespace is
answered 404; a deployment's generation grows with its spec, and its status is written below /status by itself [API conventions: spec and
status, metadata.generation]; negative replicas are invalid [source: pkg/apis/apps/validation]; lists are selected by labels, `a=b` alone.
Not imitated: fields of the objects beyond those below; watches; owner references; admission; escalation checks of RBAC.
"""
from __future__ import annotations

import base64
import binascii
import json
import re
import threading
import time
import uuid

from stand_in.etcd import Etcd, Memory
from stand_in.kubernetes import Program
from stand_in.service import Who

# path of the group's version: kind, plural, namespaced, first and last minor
RBAC = "/apis/rbac.authorization.k8s.io"
CERTIFICATES = "/apis/certificates.k8s.io"
KINDS = (
    ("/api/v1", "Secret", "secrets", True, 2, 99), ("/api/v1", "ConfigMap", "configmaps", True, 2, 99),
    ("/api/v1", "Namespace", "namespaces", False, 2, 99), ("/api/v1", "ServiceAccount", "serviceaccounts", True, 2, 99),
    ("/api/v1", "Service", "services", True, 2, 99), ("/api/v1", "Pod", "pods", True, 2, 99),
    ("/apis/apps/v1", "Deployment", "deployments", True, 9, 99),
    *((f"{RBAC}/{version}", kind, plural, False, first, last) for version, first, last in (("v1beta1", 6, 21), ("v1", 8, 99))
      for kind, plural in (("ClusterRole", "clusterroles"), ("ClusterRoleBinding", "clusterrolebindings"))),
    *((f"{CERTIFICATES}/{version}", "CertificateSigningRequest", "certificatesigningrequests", False, first, last)
      for version, first, last in (("v1beta1", 6, 21), ("v1", 19, 99))),
)
NAMESPACES = {"default", "kube-system", "kube-public"}  # the API server makes them itself


class Failure(Exception):
    """An answer of kind Status."""

    def __init__(self, code: int, reason: str, message: str):
        super().__init__(message)
        self.code, self.reason = code, reason

    def answer(self) -> tuple[int, bytes]:
        return self.code, json.dumps({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": str(self),
                                      "reason": self.reason, "code": self.code}).encode()


def invalid(kind: str, name: str, field: str, why: str) -> Failure:
    return Failure(422, "Invalid", f'{kind} "{name}" is invalid: {field}: {why}')


class Target:
    """What a path means."""

    def __init__(self, path: str, minor: int):
        for base, kind, plural, namespaced, first, last in KINDS:
            if not first <= minor <= last or not path.startswith(base + "/"):
                continue
            rest = path.removeprefix(base)
            found = re.fullmatch((r"/namespaces/(?P<namespace>[^/]+)" if namespaced else "") +
                                 rf"/{plural}(?:/(?P<name>[^/]+)(?:/(?P<sub>[a-z]+))?)?", rest)
            if not found:
                continue
            self.kind, self.plural = kind, plural
            self.group = base.removeprefix("/apis/").removeprefix("/api/").rpartition("/")[0]
            self.version = f"{self.group}/{base.rpartition('/')[2]}" if self.group else "v1"
            self.namespace = found.groupdict().get("namespace") or ""
            self.name, self.sub = found["name"] or "", found["sub"] or ""
            if self.sub not in {"CertificateSigningRequest": ("", "approval", "status"), "Deployment": ("", "status")}.get(kind, ("",)):
                continue
            return
        raise Failure(404, "NotFound", "the server could not find the requested resource")

    def key(self, name: str = "") -> str:
        parts = [self.plural, *([self.namespace] if self.namespace else []), name or self.name]
        return "/".join(parts)

    @property
    def said(self) -> str:
        return f"{self.plural}{'.' + self.group if self.group else ''}"


def kinds(path: str, minor: int) -> dict | None:
    """The kinds of a version of a group, where the minor has it."""
    found = [{"name": plural, "kind": kind, "namespaced": namespaced, "singularName": "", "verbs": ["create", "get", "list", "update"]}
             for base, kind, plural, namespaced, first, last in KINDS if base == path and first <= minor <= last]
    version = path.removeprefix("/apis/").removeprefix("/api/")
    return {"kind": "APIResourceList", "groupVersion": version, "resources": found} if found else None


class Objects:
    """What is stored. A request is allowed before it comes here."""

    def __init__(self, program: Program, etcd: Etcd):
        self.store = etcd if program.minor >= 6 and program.flags.get("storage-backend", "etcd3") == "etcd3" else Memory()
        self.minor = program.minor
        self.lock = threading.Lock()

    def every(self, plural: str) -> list[dict]:
        return self.store.read(f"{plural}/")

    def one(self, key: str) -> dict | None:
        found = self.store.read(key)
        return found[0] if found else None

    def answer(self, method: str, target: Target, body: bytes, who: Who, selector: str = "") -> tuple[int, bytes]:
        if target.namespace and method == "POST" and target.namespace not in NAMESPACES and not self.one(f"namespaces/{target.namespace}"):
            raise Failure(404, "NotFound", f'namespaces "{target.namespace}" not found')
        with self.lock:
            if method == "GET" and not target.name:
                items = self.store.read(target.key("") if target.namespace else f"{target.plural}/")
                wanted = dict(pair.split("=", 1) for pair in selector.split(",") if pair)
                items = [one for one in items if wanted.items() <= (one["metadata"].get("labels") or {}).items()]
                return 200, json.dumps({"kind": f"{target.kind}List", "apiVersion": target.version, "items": items}).encode()
            if method == "POST" and not target.name:
                return self._create(target, self._parsed(target, body), who)
            if not target.name or method not in ("GET", "PUT", "DELETE"):
                raise Failure(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")
            old = self.one(target.key())
            if old is None:
                raise Failure(404, "NotFound", f'{target.said} "{target.name}" not found')
            if method == "PUT":
                old = self._update(target, self._parsed(target, body), old)
            if method == "DELETE":
                self.store.write(target.key(), None, int(old["metadata"]["resourceVersion"]))
                return 200, json.dumps({"kind": "Status", "apiVersion": "v1", "status": "Success"}).encode()
            return 200, json.dumps({**old, "apiVersion": target.version}).encode()

    def _parsed(self, target: Target, body: bytes) -> dict:
        try:
            value = json.loads(body)
            metadata = value["metadata"]
            name, kind, version = metadata.get("name") or "", value["kind"], value["apiVersion"]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Failure(400, "BadRequest", f"the object provided is unrecognized: {error!r}") from error
        if (kind, version) != (target.kind, target.version):
            raise Failure(400, "BadRequest", f"{version}/{kind} cannot be handled as {target.version} {target.kind}")
        if target.namespace and metadata.setdefault("namespace", target.namespace) != target.namespace:
            raise Failure(400, "BadRequest", "the namespace of the provided object does not match the namespace sent on the request")
        if target.name and name != target.name:
            raise Failure(400, "BadRequest", f"the name of the object ({name}) does not match the name on the URL ({target.name})")
        return value

    def _create(self, target: Target, value: dict, who: Who) -> tuple[int, bytes]:
        metadata = value["metadata"]
        if prefix := metadata.pop("generateName", ""):
            metadata.setdefault("name", prefix + uuid.uuid4().hex[:5])
        name = metadata.get("name") or ""
        # RBAC's names are path segments, the others' subdomains [source: validation of both]
        if not re.fullmatch(r"[^/%]+" if target.group.startswith("rbac") else r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?", name):
            raise invalid(target.kind, name, "metadata.name", "Required value or bad characters")
        if metadata.get("resourceVersion"):
            raise Failure(400, "BadRequest", "resourceVersion should not be set on objects to be created")
        metadata |= {"uid": str(uuid.uuid4()), "creationTimestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
        if target.kind == "CertificateSigningRequest":
            value["spec"] = (value.get("spec") or {}) | {"username": who.name, "groups": sorted(who.groups)}
            value["status"] = {}
        if target.kind == "Deployment":
            value["status"], metadata["generation"] = {}, 1
        self._validate(target, value)
        if not self.store.write(target.key(name), value, 0):
            raise Failure(409, "AlreadyExists", f'{target.said} "{name}" already exists')
        return 201, json.dumps(self.one(target.key(name))).encode()

    def _update(self, target: Target, value: dict, old: dict) -> dict:
        name, metadata = target.name, value["metadata"]
        version = metadata.get("resourceVersion") or ""
        if not version.isdigit():
            raise invalid(target.kind, name, "metadata.resourceVersion", "Invalid value: 0x0: must be specified for an update")
        if uid := metadata.get("uid"):
            if uid != old["metadata"]["uid"]:
                raise Failure(409, "Conflict", f"Precondition failed: UID in precondition: {uid}")
        value["metadata"] = {**metadata, **{k: old["metadata"][k] for k in ("uid", "creationTimestamp")}}
        if target.sub:  # approval and status are the only parts of a request that change
            value = {**old, "status": (old.get("status") or {}) | (value.get("status") or {})}
        elif target.kind == "CertificateSigningRequest":
            value = {**value, "spec": old["spec"], "status": old["status"]}
        elif target.kind == "Deployment":
            grown = int(value.get("spec") != old.get("spec"))
            value = {**value, "status": old["status"], "metadata": {**value["metadata"], "generation": old["metadata"]["generation"] + grown}}
        if value.get("roleRef") != old.get("roleRef"):
            raise invalid(target.kind, name, "roleRef", "Invalid value: cannot change roleRef")
        self._validate(target, value)
        if target.kind == "Secret" and value["type"] != old["type"]:
            raise invalid(target.kind, name, "type", "Invalid value: field is immutable")
        if not self.store.write(target.key(), value, int(version)):
            raise Failure(409, "Conflict", f'Operation cannot be fulfilled on {target.said} "{name}": the object has been modified; '
                          "please apply your changes to the latest version and try again")
        return self.one(target.key())

    def _validate(self, target: Target, value: dict):
        name = value["metadata"]["name"]
        if target.kind == "Deployment" and value.get("spec", {}).get("replicas", 1) < 0:
            raise invalid("Deployment.apps", name, "spec.replicas", f'Invalid value: {value["spec"]["replicas"]}: must be greater than or equal to 0')
        if target.kind == "Secret":
            value.setdefault("type", "Opaque")
            data = value.setdefault("data", {})
            data |= {k: base64.b64encode(v.encode()).decode() for k, v in value.pop("stringData", {}).items()}
            for key, text in data.items():
                try:
                    base64.b64decode(text, validate=True)
                except (binascii.Error, TypeError) as error:
                    raise Failure(400, "BadRequest", f"Secret in version v1 cannot be handled: data.{key}: illegal base64 data") from error
        if target.kind == "ClusterRoleBinding":
            ref = value.get("roleRef") or {}
            if ref.get("apiGroup", target.group if target.version.endswith("v1beta1") else "") != target.group:
                raise invalid(target.kind, name, "roleRef.apiGroup",
                              f'Unsupported value: {ref.get("apiGroup")!r}: supported values: "{target.group}"')
            if ref.get("kind") != "ClusterRole" or not ref.get("name"):
                raise invalid(target.kind, name, "roleRef", "Unsupported value: supported values: ClusterRole")
            for at, subject in enumerate(value.get("subjects") or []):
                group = "" if subject.get("kind") == "ServiceAccount" else target.group
                if subject.get("kind") not in ("User", "Group", "ServiceAccount") or not subject.get("name"):
                    raise invalid(target.kind, name, f"subjects[{at}]", "Unsupported value: supported values: ServiceAccount, User, Group")
                if subject.setdefault("apiGroup", group) != group:
                    raise invalid(target.kind, name, f"subjects[{at}].apiGroup", "Unsupported value")
        if target.kind == "ClusterRole":
            for at, rule in enumerate(value.get("rules") or []):
                if not rule.get("verbs") or not (rule.get("nonResourceURLs") or (rule.get("resources") and rule.get("apiGroups"))):
                    raise invalid(target.kind, name, f"rules[{at}]", "Required value: verbs, resources and apiGroups")
        if target.kind == "CertificateSigningRequest":
            spec = value["spec"]
            if "BEGIN CERTIFICATE REQUEST" not in decoded(spec.get("request")):
                raise invalid(target.kind, name, "spec.request", "Invalid value: PEM block type must be CERTIFICATE REQUEST")
            if target.version.endswith("/v1") and not (spec.get("signerName") and spec.get("usages")):
                raise invalid(target.kind, name, "spec", "Required value: signerName, usages")


def decoded(text: str | None) -> str:
    try:
        return base64.b64decode(text or "", validate=True).decode(errors="replace")
    except binascii.Error:
        return ""
