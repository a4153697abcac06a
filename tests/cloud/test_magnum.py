"""The real Keystone and Magnum, and lib.magnum, which stands in for them everywhere else: both are asked the same, and must answer the same."""
import base64
import json
import os
import uuid

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier

from lib.cluster import ETCD, KUBERNETES, Node, parameters
from lib.common import GATEWAY, PYTHON, REPO, TESTS, in_lab
from lib.heat import HEAT_DIR
from lib.magnum import Magnum, usage

VERSION = {"OpenStack-API-Version": "container-infra latest"}
MASTER, WORKER = "10.77.0.21", "10.77.0.31"
OTHER = "00000000-1111-4222-8333-444455556666"
UNKNOWN = x509.UnrecognizedExtension(ObjectIdentifier("1.2.3.4.5"), b"\x05\x00")
NAMES = x509.SubjectAlternativeName([x509.DNSName("kubernetes")])
EKU = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])


def csr(*extensions: tuple[x509.ExtensionType, bool], key=None, identified: bool = False) -> str:
    key = key or ec.generate_private_key(ec.SECP256R1())
    builder = x509.CertificateSigningRequestBuilder(x509.Name([
        x509.NameAttribute(NameOID.ORGANIZATION_NAME, "system:nodes"), x509.NameAttribute(NameOID.COMMON_NAME, "system:node:n1")]))
    if identified:
        extensions += ((x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False),)
    for value, critical in extensions:
        builder = builder.add_extension(value, critical)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()


def forged() -> str:
    """Signed with another key than the one in it."""
    good = x509.load_pem_x509_csr(csr().encode()).public_bytes(serialization.Encoding.DER)
    lines = base64.encodebytes(good[:-3] + bytes([good[-3] ^ 1]) + good[-2:]).decode()
    return f"-----BEGIN CERTIFICATE REQUEST-----\n{lines}-----END CERTIFICATE REQUEST-----\n"


class Both:
    """One of the two, and how to ask it."""

    def __init__(self, given: dict):
        self.given = given
        self.tokens: dict[str, str] = {}

    @staticmethod
    def ask(asks: list[dict]) -> list[dict]:
        return json.loads(in_lab(PYTHON, "-B", TESTS / "cloud/ask.py", input=json.dumps(asks)).stdout)

    def authenticate(self, rows: dict[str, dict]) -> dict[str, dict]:
        asks = [{"method": "POST", "url": f"{self.given['AUTH_URL']}/auth/tokens", "headers": {"Content-Type": "application/json"}, "body": json.dumps(body)}
                for body in rows.values()]
        answers = dict(zip(rows, self.ask(asks)))
        self.tokens = {name: of["headers"].get("x-subject-token", "") for name, of in answers.items()}
        return answers

    def identity(self, **changes) -> dict:
        user = {"id": self.given["TRUSTEE_USER_ID"], "password": self.given["TRUSTEE_PASSWORD"], **changes}
        return {"methods": ["password"], "password": {"user": user}}


def keystone_rows(of: Both) -> dict[str, dict]:
    trust = {"OS-TRUST:trust": {"id": of.given["TRUST_ID"]}}
    return {
        "trust": {"auth": {"identity": of.identity(), "scope": trust}},
        "no scope": {"auth": {"identity": of.identity()}},
        "scope: unscoped": {"auth": {"identity": of.identity(), "scope": "unscoped"}},
        "wrong password": {"auth": {"identity": of.identity(password="wrong"), "scope": trust}},
        "unknown user": {"auth": {"identity": of.identity(id="f" * 32), "scope": trust}},
        "unknown trust": {"auth": {"identity": of.identity(), "scope": {"OS-TRUST:trust": {"id": "f" * 32}}}},
        "empty trust": {"auth": {"identity": of.identity(), "scope": {"OS-TRUST:trust": {"id": ""}}}},
        "trust without id": {"auth": {"identity": of.identity(), "scope": {"OS-TRUST:trust": {}}}},
        "a project": {"auth": {"identity": of.identity(), "scope": {"project": {"id": "f" * 32}}}},
        "two scopes": {"auth": {"identity": of.identity(), "scope": {**trust, "project": {"id": "f" * 32}}}},
        "no identity": {"auth": {"scope": trust}},
        "no auth": {},
    }


def magnum_rows(of: Both) -> dict[str, tuple]:
    """name → method, path, headers, body: a dict is JSON, a text is itself."""
    cluster = of.given["CLUSTER_UUID"]
    one = f"/certificates/{cluster}"
    as_node = {**VERSION, "X-Auth-Token": of.tokens["trust"]}

    def get(path: str = one, **headers) -> tuple:
        return "GET", path, {k: v for k, v in {**as_node, **headers}.items() if v is not None}, None

    def version(text: str | None) -> tuple:
        return get(**{"OpenStack-API-Version": text})

    def post(body, **headers) -> tuple:
        return "POST", "/certificates", {**as_node, "Content-Type": "application/json", **headers}, body

    def sign(text: str, **members) -> tuple:
        return post({"cluster_uuid": cluster, "csr": text, **members})
    rows = {
        "GET without a token": get(**{"X-Auth-Token": None}),
        "GET with a dead token": get(**{"X-Auth-Token": "f" * 32}),
        "GET without a scope": get(**{"X-Auth-Token": of.tokens["no scope"]}),
        "GET, no version": version(None),
        "GET": get(),
        "GET of another cluster": get(f"/certificates/{OTHER}"),
        "GET, unknown argument": get(f"{one}?ca_type=etcd"),
        "POST without a scope": post({"cluster_uuid": cluster, "csr": csr()}, **{"X-Auth-Token": of.tokens["no scope"]}),
        "POST of another cluster": post({"cluster_uuid": OTHER, "csr": csr()}),
        "POST without a cluster": post({"csr": csr()}),
        "POST without a csr": post({"cluster_uuid": cluster}),
        "POST, unknown member": sign(csr(), nonsense="x"),
        "POST, bay_uuid": post({"bay_uuid": cluster, "csr": csr()}),
        "POST, no JSON": post("{"),
        "POST, a list": post("[]"),
        "POST, text/plain": post({"cluster_uuid": cluster, "csr": csr()}, **{"Content-Type": "text/plain"}),
        "POST, csr is a number": post({"cluster_uuid": cluster, "csr": 5}),
        "PATCH of another cluster": ("PATCH", f"/certificates/{OTHER}", {**as_node, "Content-Type": "application/json"}, None),
    }
    rows |= {f"GET, version {text}": version(text) for text in (
        "container-infra 1.0", "container-infra 1.1", "container-infra 1.11", "container-infra 1.99", "container-infra 2.1", "container-infra one", "compute 2.1",
        "container-infra")}
    rows |= {f"GET, type {kind}": get(f"{one}?ca_cert_type={kind}") for kind in ("kubernetes", "etcd", "front-proxy", "front_proxy", "nonsense")}
    rows |= {f"sign, type {kind}": sign(csr((NAMES, False)), ca_cert_type=kind) for kind in ("kubernetes", "etcd", "front-proxy", "nonsense")}
    rows |= {
        "sign, no type": sign(csr((NAMES, False))),
        "sign, an RSA key": sign(csr((NAMES, False), key=rsa.generate_private_key(65537, 2048))),
        "sign, empty": sign(""),
        "sign, no csr": sign("-----BEGIN CERTIFICATE REQUEST-----\nMIIB\n-----END CERTIFICATE REQUEST-----\n"),
        "sign, forged": sign(forged()),
        "sign, usage": sign(csr((usage(["digital_signature", "key_encipherment"]), True), (EKU, False))),
        "sign, key agreement": sign(csr((usage(["digital_signature", "key_agreement"]), False))),
        "sign, critical key agreement": sign(csr((usage(["digital_signature", "key_agreement"]), True))),
        "sign, keyCertSign": sign(csr((usage(["digital_signature", "key_cert_sign"]), False))),
        "sign, critical keyCertSign": sign(csr((usage(["digital_signature", "key_cert_sign"]), True))),
        "sign, CA": sign(csr((x509.BasicConstraints(True, None), False))),
        "sign, critical CA": sign(csr((x509.BasicConstraints(True, None), True))),
        "sign, critical CA:FALSE": sign(csr((x509.BasicConstraints(False, None), True))),
        "sign, unknown extension": sign(csr((UNKNOWN, False))),
        "sign, critical unknown extension": sign(csr((UNKNOWN, True))),
        "sign, with a key identifier": sign(csr((NAMES, False), identified=True)),
        "sign, more members": sign(csr(), created_at=None, updated_at=None),
        "sign, a pem": sign(csr(), pem="x"),
        "sign, links": sign(csr(), links=[]),
    }
    return rows


def shape(answer: dict, is_certificate: bool) -> dict:
    """What of an answer both must have in common."""
    found = {"status": answer["status"]}
    if not 200 <= answer["status"] < 300:
        return found
    said = json.loads(answer["text"])
    found["members"] = sorted(k for k, v in said.items() if v is not None)
    if is_certificate:
        made = x509.load_pem_x509_certificate(said["pem"].encode())
        found |= {"ends with a line": said["pem"].endswith("\n"), "subject": made.subject.rfc4514_string(),
                  "issuer": made.issuer.rfc4514_string(), "days": (made.not_valid_after - made.not_valid_before).days,
                  "hash": made.signature_hash_algorithm.name,
                  "extensions": sorted((e.oid.dotted_string, e.critical, str(e.value) if e.oid.dotted_string != "2.5.29.14" else "") for e in made.extensions)}
    return found


@pytest.fixture(scope="module")
def real(heat_services) -> Both:
    settings = dict(line.split("=", 1) for line in (HEAT_DIR / "state/secrets").read_text().splitlines())
    env = {"OS_AUTH_URL": f"http://{GATEWAY}:5000/v3", "OS_PASSWORD": settings["DEMO_PASS"], "ADMIN_PASS": settings["ADMIN_PASS"], "OS_REGION_NAME": "RegionOne"}
    done = in_lab(HEAT_DIR / "cache/venv/bin/python", "-B", "-W", "ignore", TESTS / "cloud/magnum_cluster.py", HEAT_DIR / "state/etc/magnum/magnum.conf",
                  f"blue-{uuid.uuid4().hex[:8]}", env=env)
    return Both(json.loads(done.stdout.splitlines()[-1]))


@pytest.fixture(scope="module")
def stand_in(real, tmp_path_factory):
    server = Magnum(tmp_path_factory.mktemp("magnum"), release=23, tls=False, cluster=real.given["CLUSTER_UUID"], name=real.given["CLUSTER_NAME"])
    server.start()
    yield Both(server.parameters())
    server.stop()


# The code that was read for the stand-in accepts a request without a version, too; but it is asked for, and other versions may insist.
STRICTER = {"GET, no version"}


def compare(rows: list[str], ours: dict, theirs: dict) -> list[str]:
    return [f"{name}: stand-in {ours[name]}, real {theirs[name]}" for name in rows if ours[name] != theirs[name]]


PAGE = REPO / "docs/magnum-agreement.md"
HEAD = """# Magnum and its stand-in

Made by `HNA_RENEW_AGREEMENT=1 tests/run cloud -k answer`: the same requests to a real Keystone 30 and Magnum 23 and to `tests/lib/magnum.py`, which stands in
for both in all other tests of certificates. The cluster was made through Magnum's own objects, the trust as Magnum's former driver for Heat made it.
Of a certificate the subject, the issuer, the validity, the hash, the extensions and the end of the text were compared, of every answer the members.

| asked of | request | stand-in | real |
|---|---|---|---|
"""


@pytest.fixture(scope="module")
def agreed():
    """What is in the page, or will be: {service: rows}. A real refusal that its conductor cannot send takes Magnum a minute."""
    rows: dict[str, list[str]] = {}
    yield rows
    made = HEAD + "".join(f"| {service} | {row} |\n" for service, of in rows.items() for row in of)
    if os.environ.get("HNA_RENEW_AGREEMENT"):
        PAGE.write_text(made)
    elif len(rows) == 2:
        assert PAGE.read_text() == made, f"{PAGE.name}: read what has changed, then renew it"


def as_rows(said: list[dict]) -> list[str]:
    return [f"{name} | {ours['status']} | {said[1][name]['status']}{'' if ours == said[1][name] else ' (differs)'}" for name, ours in said[0].items()]


def test_keystone_answers_the_same(real, stand_in, agreed):
    said = [{name: {"status": of["status"]} for name, of in one.authenticate(keystone_rows(one)).items()} for one in (stand_in, real)]
    agreed["Keystone"] = as_rows(said)
    assert not compare(list(said[0]), *said)


def test_magnum_answers_the_same(real, stand_in, agreed):
    said = []
    for one in (stand_in, real):
        one.authenticate(keystone_rows(one))
        rows = magnum_rows(one)
        asks = [{"method": method, "url": f"{one.given['MAGNUM_URL']}{path}", "headers": headers, "body": json.dumps(body) if isinstance(body, dict) else body}
                for method, path, headers, body in rows.values()]
        said.append({name: shape(of, name.startswith("sign") or name == "GET" or "type" in name) for name, of in zip(rows, one.ask(asks))})
    differences = compare([name for name in said[0] if name not in STRICTER], *said)
    agreed["Magnum"] = as_rows(said)
    assert not differences, "\n" + "\n".join(differences)


def test_a_master_and_a_worker_get_their_certificates(real, hosts, signal_server):
    """By the trust, from the real ones: what a cluster of Magnum's whose driver is no longer there asks of them for years."""
    given = {name: value for name, value in real.given.items() if name != "CLUSTER_NAME"}
    real.authenticate(keystone_rows(real))
    one = f"{real.given['MAGNUM_URL']}/certificates/{real.given['CLUSTER_UUID']}"
    asks = [{"method": "GET", "url": f"{one}?ca_cert_type={kind}", "headers": {**VERSION, "X-Auth-Token": real.tokens["trust"]}, "body": None}
            for kind in ("kubernetes", "etcd", "front-proxy")]
    cas = [json.loads(of["text"])["pem"].strip().encode() for of in real.ask(asks)]
    master = Node(hosts("m1", ip=MASTER), signal_server(port=18000), parameters("master", "m1", MASTER, MASTER, **given)).up("")
    assert not master.mistakes()
    assert [master.read(f"{folder}/ca.crt").strip() for folder in (KUBERNETES, ETCD, f"{KUBERNETES}/front-proxy")] == cas
    assert "is healthy" in master.etcdctl("endpoint", "health", seconds=60)
    worker = Node(hosts("w1", ip=WORKER), signal_server(port=18001), parameters("worker", "w1", WORKER, MASTER, **given)).up("")
    assert not worker.mistakes()
    assert worker.read(f"{KUBERNETES}/ca.crt").strip() == cas[0]
