"""TLS bootstrap: a kubelet asks the API for its certificate, the controller manager approves and signs it.

Known from: subject, usages and what is approved for whom [source: pkg/controller/certificates/approver/sarapprove.go]; the signer's name
from 1.19 on (API v1) [source: pkg/apis/certificates]; kubelet-client-current.pem in --cert-dir, certificate and key in one file, and the
kubeconfig that names it [source: pkg/kubelet/certificate/bootstrap]. Signed is with --cluster-signing-cert-file and its key; without them
requests stay approved and unsigned.
Not imitated: rotation of a kubelet's certificate; certificates for serving, which nobody approves by himself.
"""
from __future__ import annotations

import base64
import http.client
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

from stand_in import files
from stand_in.kubernetes import Program
from stand_in.objects import CERTIFICATES, decoded
from stand_in.tls import ask

SIGNER = "kubernetes.io/kube-apiserver-client-kubelet"
USAGES = {"key encipherment", "digital signature", "client auth"}
GROUP = "certificates.k8s.io"


def collection(minor: int) -> tuple[str, str]:
    """Version and path of the requests."""
    version = "v1" if minor >= 19 else "v1beta1"
    return f"{GROUP}/{version}", f"{CERTIFICATES}/{version}/certificatesigningrequests"


def openssl(*words, input: str | None = None) -> str:
    done = subprocess.run(["openssl", *map(str, words)], input=input, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"openssl {words[0]}: {done.stderr.strip()[-300:]}")
    return done.stdout


def said_once(text: str, before: str) -> str:
    if text and text != before:
        print(text, file=sys.stderr, flush=True)
    return text


# --- the kubelet's half ---------------------------------------------------------------------------
def join(p: Program):
    """Asks until there is a certificate; then there is a kubeconfig, and the program has its server."""
    name = p.flags.get("hostname-override") or socket.gethostname().lower()
    folder = Path(files.at(p.flags.get("cert-dir", "/var/lib/kubelet/pki")))
    folder.mkdir(parents=True, exist_ok=True)
    key = openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout")
    with tempfile.NamedTemporaryFile("w") as file:
        file.write(key)
        file.flush()
        request = openssl("req", "-new", "-key", file.name, "-subj", f"/O=system:nodes/CN=system:node:{name}")
    certificate = asked(p, request)
    stamp = folder / f"kubelet-client-{time.strftime('%Y-%m-%d-%H-%M-%S')}.pem"
    stamp.touch(mode=0o600)
    stamp.write_text(certificate + key)
    current = folder / "kubelet-client-current.pem"
    current.unlink(missing_ok=True)
    current.symlink_to(stamp)
    path = p.flags.get("kubeconfig")
    bootstrap = p.bootstrap
    with open(files.at(path), "w", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        cluster = {"server": bootstrap.server, **({"certificate-authority": bootstrap.ca} if bootstrap.ca else {})}
        json.dump({"apiVersion": "v1", "kind": "Config", "current-context": "default-context",
                   "clusters": [{"name": "default-cluster", "cluster": cluster}],
                   "users": [{"name": "default-auth", "user": {"client-certificate": str(current), "client-key": str(current)}}],
                   "contexts": [{"name": "default-context", "context": {"cluster": "default-cluster", "user": "default-auth"}}]}, file)
    print(f"got a certificate as system:node:{name}", flush=True)
    p.server = files.Kubeconfig(path)


def asked(p: Program, request: str) -> str:
    version, path = collection(p.minor)
    name, logged = f"node-csr-{uuid.uuid4().hex}", ""
    body = {"apiVersion": version, "kind": "CertificateSigningRequest", "metadata": {"name": name},
            "spec": {"request": base64.b64encode(request.encode()).decode(), "usages": sorted(USAGES),
                     **({"signerName": SIGNER} if version.endswith("/v1") else {})}}
    posted = False
    while True:
        try:
            code, text = ask(p.bootstrap, "GET", f"{path}/{name}") if posted else ask(p.bootstrap, "POST", path, body)
            posted = posted or code in (201, 409)  # 409: by us, and the answer was lost
            if code >= 300:
                logged = said_once(f"cannot create certificate signing request: {code} {text.decode()}", logged)
            elif found := (json.loads(text).get("status") or {}).get("certificate"):
                return base64.b64decode(found).decode()
        except (OSError, http.client.HTTPException) as error:
            logged = said_once(f"cannot create certificate signing request: {error}", logged)
        time.sleep(0.5)


# --- the controller manager's half ----------------------------------------------------------------
def serve(p: Program):
    """csrapproving and csrsigning, as long as the program runs."""
    logged = ""
    while True:
        try:
            version, path = collection(p.minor)
            code, text = ask(p.server, "GET", path)
            if code == 200:
                for one in json.loads(text)["items"]:
                    handle(p, {**one, "apiVersion": version}, f"{path}/{one['metadata']['name']}")
            now = "" if code == 200 else f"cannot list certificate signing requests: {code} {text.decode()}"
        except (OSError, ValueError, http.client.HTTPException) as error:
            now = f"certificate signing requests: {error}"
        logged = said_once(now, logged)
        time.sleep(0.5)


def handle(p: Program, one: dict, path: str):
    status = one.get("status") or {}
    kinds = {condition["type"] for condition in status.get("conditions") or []}
    if status.get("certificate") or "Denied" in kinds:
        return
    if "Approved" not in kinds:
        if approved := approval(p, one):
            one["status"] = {"conditions": [{"type": "Approved", "status": "True", "reason": "AutoApproved", "message": approved}]}
            ask(p.server, "PUT", f"{path}/approval", one)
        return
    pair = [p.flags.get(name) for name in ("cluster-signing-cert-file", "cluster-signing-key-file")]
    if all(pair):
        one["status"] = {**status, "certificate": base64.b64encode(signed(one, *map(files.at, pair)).encode()).decode()}
        ask(p.server, "PUT", f"{path}/status", one)


def approval(p: Program, one: dict) -> str:
    """Why it is approved, or nothing."""
    spec = one["spec"]
    text = openssl("req", "-noout", "-verify", "-nameopt", "sep_multiline,utf8", "-text", input=decoded(spec["request"]))
    subject = dict(re.findall(r"^\s+(CN|O)=(.*)$", text, re.M))
    usages = set(spec.get("usages") or [])
    node = subject.get("O") == "system:nodes" and len(re.findall(r"^\s+O=", text, re.M)) == 1 and "Alternative Name" not in text \
        and subject.get("CN", "").startswith("system:node:") and usages in (USAGES, USAGES - {"key encipherment"}) \
        and spec.get("signerName", SIGNER) == SIGNER
    if not node:
        return ""
    kinds = ["selfnodeclient"] if spec["username"] == subject["CN"] else []
    for kind in [*kinds, "nodeclient"]:
        review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": {
            "user": spec["username"], "groups": spec.get("groups"), "resourceAttributes": {
                "group": GROUP, "resource": "certificatesigningrequests", "subresource": kind, "verb": "create"}}}
        code, answer = ask(p.server, "POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
        if code == 201 and json.loads(answer)["status"]["allowed"]:
            return f"Auto approving kubelet client certificate after SubjectAccessReview of {kind}."
    return ""


def signed(one: dict, certificate: str, key: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        request, extensions = Path(folder) / "request", Path(folder) / "extensions"
        request.write_text(decoded(one["spec"]["request"]))
        extensions.write_text("basicConstraints=critical,CA:FALSE\nkeyUsage=critical,digitalSignature,keyEncipherment\n"
                              "extendedKeyUsage=clientAuth\n")
        return openssl("x509", "-req", "-in", request, "-CA", certificate, "-CAkey", key, "-set_serial", uuid.uuid4().int >> 8,
                       "-days", 365, "-extfile", extensions)

