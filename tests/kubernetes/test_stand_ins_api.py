"""The API's stand-in stores objects in a real etcd and refuses what the real API refuses; a kubelet's joins by TLS bootstrap.

Nothing here needs a host."""
import base64
import json
import ssl
from pathlib import Path

import pytest
from lib.certificates import CA, handshake
from lib.common import run, wait_for
from lib.stand_ins import free_port, get, install, kubeconfig
from stand_in import tls

RBAC = "rbac.authorization.k8s.io"
BINDINGS = f"/apis/{RBAC}/v1/clusterrolebindings"
SECRETS = "/api/v1/namespaces/kube-system/secrets"
CSRS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
TOKEN = "abcdef.0123456789abcdef"


def binding(name: str, role: str, group: str = "system:bootstrappers", **more) -> dict:
    return {"apiVersion": f"{RBAC}/v1", "kind": "ClusterRoleBinding", "metadata": {"name": name},
            "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role},
            "subjects": [{"apiGroup": RBAC, "kind": "Group", "name": group}]} | more


def secret(data: dict) -> dict:
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "bootstrap-token-abcdef", "namespace": "kube-system"},
            "type": "bootstrap.kubernetes.io/token", "stringData": data}


def changed(value: dict, path: str, to) -> dict:
    value = json.loads(json.dumps(value))
    *parts, last = path.split(".")
    at = value
    for part in parts:
        at = at[int(part) if part.isdigit() else part]
    at[last] = to
    return value


class Cluster:
    """An API of 1.28 over TLS, with etcd behind it."""

    def __init__(self, pki: dict, folder: Path, etcd: str, running):
        self.pki, self.folder, self.running = pki, folder, running
        self.port = free_port()
        self.url = f"https://127.0.0.1:{self.port}"
        self.programs = install(folder / "bin", "1.28.9")
        self.words = [f"--etcd-servers={etcd}", "--service-cluster-ip-range=10.254.0.0/16", f"--secure-port={self.port}",
                      "--bind-address=127.0.0.1", f"--tls-cert-file={pki['server']}", f"--tls-private-key-file={pki['serverkey']}",
                      f"--client-ca-file={pki['ca']}", "--authorization-mode=Node,RBAC", "--enable-bootstrap-token-auth",
                      "--service-account-issuer=https://kubernetes.default.svc", f"--service-account-key-file={pki['sapub']}",
                      f"--service-account-signing-key-file={pki['cakey']}"]
        self.start()

    def start(self):
        self.api = self.running(self.programs, "kube-apiserver", *self.words)
        wait_for(lambda: get(self.url, "/readyz", self.pki) == (200, "ok"), 300, "kube-apiserver")

    def ask(self, method: str, path: str, body: dict | str | None = None, who: str = "admin") -> tuple[int, dict]:
        text = json.dumps(body) if isinstance(body, dict) else body
        status, answer = get(self.url, path, self.pki, who, method, text)
        return status, json.loads(answer) if answer.startswith("{") else {"message": answer}

    def manager(self):
        path = self.folder / "manager"
        path.write_text(json.dumps(kubeconfig(self.pki, server=self.url, user={"client-certificate": self.pki["manager"],
                                                                               "client-key": self.pki["managerkey"]})))
        self.running(self.programs, "kube-controller-manager", f"--kubeconfig={path}", f"--secure-port={free_port()}",
                     "--bind-address=127.0.0.1", f"--cluster-signing-cert-file={self.pki['ca']}",
                     f"--cluster-signing-key-file={self.pki['cakey']}")

    def kubelet(self, token: str, name: str = "node-1"):
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        (folder / "bootstrap").write_text(json.dumps(kubeconfig(self.pki, server=self.url, user={"token": token})))
        return self.running(self.programs, "kubelet", f"--bootstrap-kubeconfig={folder}/bootstrap", f"--kubeconfig={folder}/own",
                            f"--cert-dir={folder}/pki", f"--hostname-override={name}", f"--port={free_port()}",
                            f"--healthz-port={free_port()}", "--address=127.0.0.1", "--read-only-port=0")


@pytest.fixture
def cluster(pki, tmp_path, etcd, running):
    return Cluster(pki, tmp_path, etcd, running)


def test_objects_are_stored_and_refused(cluster):
    ask = cluster.ask
    good = binding("a:b", "system:node-bootstrapper")
    status, stored = ask("POST", BINDINGS, good)
    assert status == 201 and stored["metadata"]["uid"] and stored["metadata"]["resourceVersion"]
    for method, path, body, who, expected, words in [
        ("POST", BINDINGS, good, "admin", 409, "already exists"),
        ("POST", BINDINGS, good, "", 403, "system:anonymous"), ("POST", BINDINGS, good, "node", 403, "forbidden"),
        ("GET", BINDINGS, None, "manager", 403, "forbidden"), ("GET", f"{BINDINGS}/c", None, "admin", 404, '"c" not found'),
        ("POST", BINDINGS, "{", "admin", 400, "unrecognized"),
        ("POST", BINDINGS, changed(good, "kind", "Binding"), "admin", 400, "cannot be handled"),
        ("POST", BINDINGS, changed(good, "apiVersion", f"{RBAC}/v1beta1"), "admin", 400, "cannot be handled"),
        ("POST", BINDINGS.replace("v1", "v1beta1"), good, "admin", 404, "could not find"),
        ("POST", f"/apis/{RBAC}/v1/bindings", good, "admin", 404, "could not find"),
        ("POST", BINDINGS, changed(binding("c", "r"), "roleRef.apiGroup", "rbac"), "admin", 422, "roleRef.apiGroup"),
        ("POST", BINDINGS, changed(binding("c", "r"), "roleRef.kind", "Role"), "admin", 422, "ClusterRole"),
        ("POST", BINDINGS, changed(binding("c", "r"), "subjects.0.kind", "Groups"), "admin", 422, "subjects[0]"),
        ("POST", BINDINGS, changed(binding("c/d", "r"), "metadata.name", "c/d"), "admin", 422, "metadata.name"),
        ("POST", BINDINGS, changed(binding("c", "r"), "metadata.resourceVersion", "1"), "admin", 400, "should not be set"),
        ("PUT", f"{BINDINGS}/c", binding("c", "r"), "admin", 404, "not found"),
        ("PUT", f"{BINDINGS}/a:b", good, "admin", 422, "must be specified for an update"),
        ("PUT", f"{BINDINGS}/a:b", changed(stored, "metadata.resourceVersion", "1"), "admin", 409, "has been modified"),
        ("PUT", f"{BINDINGS}/a:b", changed(stored, "roleRef.name", "other"), "admin", 422, "cannot change roleRef"),
        ("PUT", f"{BINDINGS}/a:b", changed(stored, "metadata.name", "c"), "admin", 400, "does not match"),
        ("PATCH", f"{BINDINGS}/a:b", stored, "admin", 405, "does not allow"),
        ("POST", SECRETS.replace("kube-system", "nowhere"), secret({}), "admin", 404, "namespaces"),
        ("POST", SECRETS.replace("kube-system", "default"), secret({}), "admin", 400, "namespace"),
        ("POST", SECRETS, secret({}) | {"data": {"a": "not base64"}}, "admin", 400, "illegal base64"),
        ("POST", CSRS, {"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": {"name": "c"},
                        "spec": {"request": base64.b64encode(b"-----BEGIN CERTIFICATE REQUEST-----").decode()}},
         "admin", 422, "signerName"),
    ]:
        status, said = ask(method, path, body, who)
        assert status == expected and words in said["message"], f"{method} {path} {body}: {status} {said}"
    status, again = ask("PUT", f"{BINDINGS}/a:b", changed(stored, "subjects.0.name", "system:others"))
    assert status == 200 and int(again["metadata"]["resourceVersion"]) > int(stored["metadata"]["resourceVersion"])
    status, kept = ask("POST", SECRETS, secret({"token-id": "abcdef"}))
    assert (status, kept["data"]) == (201, {"token-id": base64.b64encode(b"abcdef").decode()}) and "stringData" not in kept
    assert ask("PUT", f"{SECRETS}/bootstrap-token-abcdef", changed(kept, "type", "Opaque"))[1]["message"].endswith("field is immutable")
    # They outlive the API, because they lie in etcd.
    cluster.api.end()
    cluster.start()
    assert ask("GET", f"{BINDINGS}/a:b")[1]["subjects"][0]["name"] == "system:others"
    assert [item["metadata"]["name"] for item in ask("GET", SECRETS)[1]["items"]] == ["bootstrap-token-abcdef"]
    assert ask("DELETE", f"{BINDINGS}/a:b")[0] == 200 and ask("GET", f"{BINDINGS}/a:b")[0] == 404


def test_workloads_lie_in_namespaces_and_kinds_are_listed(cluster):
    ask = cluster.ask
    kinds = {(k["kind"], k["name"], k["namespaced"]) for k in ask("GET", "/apis/apps/v1")[1]["resources"]}
    assert kinds == {("Deployment", "deployments", True)} and ask("GET", "/apis/apps/v1beta1")[0] == 404
    assert ("Namespace", "namespaces", False) in {(k["kind"], k["name"], k["namespaced"]) for k in ask("GET", "/api/v1")[1]["resources"]}
    place = "/apis/apps/v1/namespaces/dns/deployments"
    dns = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "dns", "labels": {"a": "b"}}, "spec": {"replicas": 1}}
    assert ask("POST", place, dns)[0] == 404
    assert ask("POST", "/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "dns"}})[0] == 201
    assert "spec.replicas" in ask("POST", place, changed(dns, "spec.replicas", -1))[1]["message"]
    status, made = ask("POST", place, dns | {"status": {"replicas": 1}})
    assert (status, made["status"], made["metadata"]["generation"]) == (201, {}, 1)
    made = ask("PUT", f"{place}/dns/status", changed(made, "status", {"replicas": 1}))[1]
    assert (made["status"], made["metadata"]["generation"]) == ({"replicas": 1}, 1)
    made = ask("PUT", f"{place}/dns", changed(changed(made, "spec.replicas", 2), "status", {}))[1]
    assert (made["status"], made["metadata"]["generation"]) == ({"replicas": 1}, 2)
    assert [len(ask("GET", f"{place}?labelSelector={s}")[1]["items"]) for s in ("a=b", "a=c", "a=b,c=d")] == [1, 0, 0]


def test_a_kubelet_joins_by_tls_bootstrap(cluster):
    cluster.manager()
    refused = cluster.kubelet("abcdef.ffffffffffffffff", "node-2")
    kubelet = cluster.kubelet(TOKEN)
    wait_for(lambda: "cannot create certificate signing request: 401" in kubelet.said(), 300, "no token is known")
    token = {"token-id": "abcdef", "token-secret": TOKEN.split(".")[1], "usage-bootstrap-authentication": "true"}
    status, made = cluster.ask("POST", SECRETS, secret(token | {"expiration": "2020-01-01T00:00:00Z"}))
    assert status == 201
    # Each of these is needed: a token in time, the right to ask, the right to be approved.
    del made["data"]["expiration"]
    assert "request: 403" not in kubelet.said() and cluster.ask("PUT", f"{SECRETS}/bootstrap-token-abcdef", made)[0] == 200
    wait_for(lambda: "request: 403" in kubelet.said(), 300, "the right to ask is missing")
    cluster.ask("POST", BINDINGS, binding("ask", "system:node-bootstrapper"))
    pending = wait_for(lambda: cluster.ask("GET", CSRS)[1]["items"], 300, "a request")
    assert [(r["spec"]["username"], r["spec"]["groups"], r["status"]) for r in pending] == [
        ("system:bootstrap:abcdef", ["system:bootstrappers"], {})]
    cluster.ask("POST", BINDINGS, binding("approve", "system:certificates.k8s.io:certificatesigningrequests:nodeclient"))
    wait_for(lambda: "registered node node-1" in kubelet.said(), 300, "registration by its own certificate")
    current = cluster.folder / "node-1/pki/kubelet-client-current.pem"
    assert "OK" in run("openssl", "verify", "-purpose", "sslclient", "-CAfile", cluster.pki["ca"], current).stdout
    assert "CN=system:node:node-1" in run("openssl", "x509", "-in", current, "-noout", "-subject", "-nameopt", "RFC2253").stdout
    wait_for(lambda: "request: 401" in refused.said(), 300, "the refusal of a wrong token")
    assert "request: 403" not in refused.said() and refused.process.poll() is None
    assert [r["status"]["conditions"][0]["reason"] for r in cluster.ask("GET", CSRS)[1]["items"]] == ["AutoApproved"]


def test_of_two_cas_with_one_name_the_one_that_signed_counts(tmp_path):
    """As Go's programs verify; OpenSSL would take the first of that name."""
    one, other, stranger = (CA(tmp_path / name) for name in ("one", "other", "stranger"))
    for order in ((one, other), (other, one)):
        bundle = tmp_path / "bundle"
        bundle.write_text("".join(a.certificate.read_text() for a in order))
        for server, client in ((one, other), (other, one), (one, one)):
            shown = handshake(tls.server_context(tuple(map(str, server.sign("s"))), str(bundle)),
                              tls.client_context(str(bundle), *map(str, client.sign("c"))), "localhost")
            assert shown["subject"] == ((("commonName", "c"),),)
        for server, client, name in ((stranger, one, "localhost"), (one, stranger, "localhost"), (one, one, "elsewhere")):
            with pytest.raises(ssl.SSLError):
                handshake(tls.server_context(tuple(map(str, server.sign("s"))), str(bundle)),
                          tls.client_context(str(bundle), *map(str, client.sign("c"))), name)
