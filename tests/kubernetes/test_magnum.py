"""The stand-in for Keystone and Magnum refuses what they refuse, and misbehaves as a test asks. Needs no host."""
import json
import ssl
import urllib.error
import urllib.request

import pytest
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding
from cryptography.x509.oid import NameOID

from lib.common import run
from lib.magnum import SPOILS, USAGES, Magnum, usage
from lib.scripted_server import LOOPBACK

VERSION = {"OpenStack-API-Version": "container-infra latest"}


@pytest.fixture
def magnum(tmp_path):
    made = []

    def make(**options) -> Magnum:
        made.append(Magnum(tmp_path / f"magnum-{len(made)}", ip=LOOPBACK, port=0, **options))
        return made[-1].start()
    yield make
    for server in made:
        server.stop()


def call(server: Magnum, method: str, path: str, body=None, headers: dict | None = None) -> tuple[int, dict, object]:
    """Status, headers in lower case, JSON or text of the answer."""
    trust = ssl.create_default_context(cafile=server.ca.certificate) if server.tls else None
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    asked = urllib.request.Request(server.base + path, data, {"Content-Type": "application/json", **(headers or {})}, method=method)
    try:
        answer = urllib.request.urlopen(asked, context=trust, timeout=60)
    except urllib.error.HTTPError as e:
        answer = e
    with answer:
        text = answer.read().decode()
        try:
            text = json.loads(text)
        except ValueError:
            pass
        return answer.status, {k.lower(): v for k, v in answer.headers.items()}, text


def token(server: Magnum, scope: object = "trust", **changes) -> str:
    s = {**server.settings, **changes}
    auth = {"identity": {"methods": ["password"], "password": {"user": {"id": s["user"], "password": s["password"]}}}}
    if scope:
        auth["scope"] = {"OS-TRUST:trust": {"id": s["trust"]}} if scope == "trust" else scope
    status, headers, said = call(server, "POST", "/identity/v3/auth/tokens", {"auth": auth})
    return headers["x-subject-token"] if status == 201 else f"{status} {said['error']['message']}"


def request(*extensions: tuple[x509.ExtensionType, bool]) -> tuple[ec.EllipticCurvePrivateKey, str]:
    key = ec.generate_private_key(ec.SECP256R1())
    builder = x509.CertificateSigningRequestBuilder(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kubernetes")]))
    for value, critical in extensions:
        builder = builder.add_extension(value, critical)
    return key, builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()


def sign(server: Magnum, headers: dict, csr: str, **members):
    return call(server, "POST", "/v1/certificates", {"cluster_uuid": server.cluster, "csr": csr, **members}, headers)


def test_certificates_are_signed_by_the_ca_that_is_asked_for(magnum, tmp_path):
    server = magnum()
    headers = {**VERSION, "X-Auth-Token": token(server)}
    names = x509.SubjectAlternativeName([x509.DNSName("kubernetes")])
    subjects = set()
    for kind, path in server.cas().items():
        status, _, said = call(server, "GET", f"/v1/certificates/{server.cluster}?ca_cert_type={kind}", headers=headers)
        assert (status, said["pem"]) == (200, path.read_text())
        subjects.add(x509.load_pem_x509_certificate(said["pem"].encode()).subject)
        key, csr = request((names, False), (usage(["digital_signature", "crl_sign"]), False))
        status, _, said = sign(server, headers, csr, ca_cert_type=kind)
        assert status == 201 and not said["pem"].endswith("\n")
        leaf = tmp_path / "leaf.crt"
        leaf.write_text(said["pem"] + "\n")
        run("openssl", "verify", "-CAfile", path, leaf)
        made = x509.load_pem_x509_certificate(leaf.read_bytes())
        assert made.public_key().public_numbers() == key.public_key().public_numbers()
        assert made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value == names
        assert not made.extensions.get_extension_for_class(x509.KeyUsage).value.crl_sign
    assert len(subjects) == 1 and len({p.read_text() for p in server.cas().values()}) == 3
    assert server.count() == {"tokens": 1, "cas": 3, "signed": 3, "refused": 0}
    before = server.cas()["kubernetes"].read_text()
    assert call(server, "PATCH", f"/v1/certificates/{server.cluster}", headers=headers)[0] == 202
    assert server.cas()["kubernetes"].read_text() != before


@pytest.mark.parametrize("release, member", [(2, "bay_uuid"), (12, "cluster_uuid")])
def test_one_ca_for_all_before_13(magnum, release, member):
    server = magnum(release=release, tls=False)
    headers = {**VERSION, "X-Auth-Token": token(server, None) if release > 2 else server.settings["token"]}
    path = f"/v1/certificates/{server.cluster}"
    assert call(server, "GET", path, headers=headers)[0] == 200
    status, _, said = call(server, "GET", f"{path}?ca_cert_type=etcd", headers=headers)
    assert (status, said["errors"][0]["detail"]) == (400, 'Unknown argument: "ca_cert_type"')
    body = {member: server.cluster, "csr": request()[1]}
    assert call(server, "POST", "/v1/certificates", body, headers)[0] == 201
    status, _, said = call(server, "POST", "/v1/certificates", {**body, "ca_cert_type": "etcd"}, headers)
    assert (status, said["errors"][0]["detail"]) == (400, "Unknown attribute for argument certificate: ca_cert_type")
    if release == 2:
        assert call(server, "POST", "/v1/certificates", {"cluster_uuid": server.cluster, "csr": body["csr"]}, headers)[0] == 400


def test_tokens_are_given_and_taken_as_by_keystone(magnum):
    server = magnum(token_life=3600)
    assert token(server, password="guessed").startswith("401 ")
    assert token(server, user="somebody").startswith("401 ")
    assert token(server, trust="nobody's").startswith("401 ")
    assert token(server, trust="").startswith("400 ")
    assert token(server, {"project": {"id": "x"}}).startswith("401 ")
    path = f"/v1/certificates/{server.cluster}"

    def ask(given: str | None) -> int:
        return call(server, "GET", path, headers={**VERSION, **({"X-Auth-Token": given} if given else {})})[0]
    good = token(server)
    assert [ask(None), ask("guessed"), ask(token(server, None)), ask(good)] == [401, 401, 404, 200]
    server.revoke()
    assert [ask(good), ask(token(server))] == [401, 200]
    server.settings["token_life"] = 0
    server.revoke()
    assert ask(token(server)) == 401
    server.forget_trustee()
    assert token(server, password="the old one").startswith("401 ")


def test_a_wrong_request_is_refused(magnum):
    server = magnum()
    headers = {**VERSION, "X-Auth-Token": token(server)}
    path = f"/v1/certificates/{server.cluster}"
    for version, status in [(None, 406), ("magnum latest", 406), ("container-infra 1.99", 406), ("container-infra x", 406),
                            ("container-infra 1.7", 200)]:
        some = {k: v for k, v in {**headers, "OpenStack-API-Version": version}.items() if v}
        assert call(server, "GET", path, headers=some)[0] == status, version
    assert call(server, "GET", "/v1/certificates/another", headers=headers)[0] == 404
    assert call(server, "GET", f"{path}?type=etcd", headers=headers)[0] == 400
    _, csr = request()
    for members in [{"cluster_uuid": "another"}, {"csr": ""}, {"csr": None}, {"csr": "no csr"}, {"csr": csr[:200]}, {"bay_uuid": "x"}]:
        assert call(server, "POST", "/v1/certificates", {"cluster_uuid": server.cluster, "csr": csr, **members}, headers)[0] == 400, members
    assert call(server, "POST", "/v1/certificates", b"{", headers)[0] == 400
    assert call(server, "POST", "/v1/certificates", b"csr=", {**headers, "Content-Type": "text/plain"})[0] == 415
    unknown = x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3.4"), b"\x05\x00")
    for value in [unknown, usage(["key_cert_sign"]), usage(USAGES), x509.BasicConstraints(True, None)]:
        status, _, said = sign(server, headers, request((value, True))[1])
        assert status == 400 and "not allowed" in said["errors"][0]["detail"], value
        status, _, said = sign(server, headers, request((value, False))[1])
        extensions = x509.load_pem_x509_certificate(said["pem"].encode()).extensions
        assert status == 201 and all(e.value != value for e in extensions), value


def test_it_misbehaves_as_asked_and_no_longer(magnum):
    server = magnum()
    headers = {**VERSION, "X-Auth-Token": token(server)}
    key, csr = request()
    seen = {}
    for how in SPOILS:
        server.spoil(how, times=1)
        seen[how] = sign(server, headers, csr)[2]
    good = sign(server, headers, csr)
    assert good[0] == 201
    assert "<html>" in seen.pop("html") and seen.pop("empty") == {} and seen.pop("list") == [] and seen.pop("null")["pem"] is None
    assert "END" not in seen.pop("truncated")["pem"]
    flawed = {how: x509.load_pem_x509_certificate(said["pem"].encode()) for how, said in seen.items()}
    right = x509.load_pem_x509_certificate(good[2]["pem"].encode())
    assert flawed["expired"].not_valid_after < right.not_valid_before < flawed["not-yet-valid"].not_valid_before
    assert flawed["foreign-key"].public_key().public_numbers() != key.public_key().public_numbers()
    assert flawed["wrong-name"].subject != right.subject
    ca = x509.load_pem_x509_certificate(server.cas()["kubernetes"].read_bytes())
    def signed(leaf) -> bool:
        try:
            ca.public_key().verify(leaf.signature, leaf.tbs_certificate_bytes, padding.PKCS1v15(), hashes.SHA256())
        except InvalidSignature:
            return False
        return True
    assert signed(right) and not signed(flawed["wrong-ca"])
    server.answer(503, times=1, path="^/v1/")
    assert [sign(server, headers, csr)[0] for _ in range(2)] == [503, 201]
    server.answer(close=True, times=1, path="^/v1/")
    with pytest.raises(OSError):
        sign(server, headers, csr)
