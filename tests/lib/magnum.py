"""Keystone, Magnum's certificate API and what of Nova one reads in one small server, which signs by real CAs and refuses what they refuse.

What it refuses, and where that is known from (files of openstack/magnum at 11bcc17568 unless another commit is named; "seen": asked of a real
Magnum 23 and Keystone 30 by tests/cloud/test_magnum.py, which compares every row):

    no token, a dead one              401  keystonemiddleware/auth_token: WWW-Authenticate
    a token without scope, from 17 on 404  seen: it finds no cluster, before any policy is asked; POST: 400
    another user's token              403  the same: RULE_ADMIN_OR_PROJECT_..._OR_CLUSTER_USER
    OpenStack-API-Version is unusable 406  api/controllers/versions.py parse_headers: other service, no number; v1/__init__.py
                                           _check_version: out of 1.1 … the newest; before 3 no such header is known: not looked at
    ... or not there                  406  asked for since commit fbfdbec6; the code read accepts a request without it: stricter here
    an unknown query argument         400  WSME rest/args.py args_from_params: UnknownArgument (ca_cert_type before 13)
    an unknown member of the body     400  WSME rest/json.py fromjson: UnknownAttribute (ca_cert_type before 13, cluster_uuid in 2,
                                           bay_uuid from 17 on); one that is read only: links, created_at, updated_at
    a body that is no JSON            400  WSME rest/json.py parse; another content type 415: rest/args.py args_from_body
    another cluster                   404  GET: common/exception.py ClusterNotFound; POST: 400, v1/certificate.py _set_cluster_uuid
    no cluster at all                 404  seen: v1/certificate.py get_cluster
    an empty csr                      400  v1/certificate.py: csr = StringType(min_length=1)
    no csr, a list for a body         500  seen; 400 before 23
    a csr that is none                400  common/x509/operations.py sign: InvalidCsr; 500 before 3 (0fc4ff0002: not caught). Its signature is
                                           not looked at (seen)
    critical and unknown extension    400  common/x509/validator.py filter_allowed_extensions; not critical: dropped
    critical keyUsage beyond 3 bits   400  the same, _merge_key_usage; not critical: dropped bit by bit (conf/x509.py has the three)
    critical CA:TRUE                  400  the same, _disallow_ca_in_basic_constraints; not critical: made CA:FALSE
    ... each of these three from 23   500  seen: the conductor cannot send what it says, which has an extension in it, and the API waits
                                           for rpc_response_timeout (a minute). Here at once
    a key identifier in the csr       500  seen, in 23: sign adds one to all it signs, and does not look whether it is there
    PATCH of another cluster          404  v1/certificate.py patch
    wrong password, unknown user      401  keystone/auth/plugins/password.py; what it was sent that fits no schema: 400 auth/schema.py
    unknown trust                     401  keystone/api/_shared/authentication.py (seen); an empty id 400
    a project that is not the user's  401  keystone: exception.Unauthorized

With servers() there is a Nova in the catalog, of which one reads alone: servers by name, one by id, flavors. No token, or a dead one: 401; what is not
there: 404, as Nova's api-ref has it.

Signing is common/x509/operations.py sign (5870994fcd): subject as asked, no authority key id, from a day ago on for
five years, SHA-256, whatever the key's kind; conductor/handlers/common/cert_manager.py: three CAs of one subject from
13 on (any other type is the first one's), one before.
"""
import datetime
import functools
import json
import os
import re
import ssl
import sys
import time
import urllib.parse
import uuid
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtensionOID, NameOID

from lib.certificates import CA
from lib.scripted_server import Answer, Handler, Scripted, State, serve, write

DAY = datetime.timedelta(days=1)
NEWEST = (1, 11)
NOVA = "/compute/v2.1"
ALLOWED = {ExtensionOID.KEY_USAGE, ExtensionOID.EXTENDED_KEY_USAGE, ExtensionOID.SUBJECT_ALTERNATIVE_NAME,
           ExtensionOID.BASIC_CONSTRAINTS, ExtensionOID.SUBJECT_KEY_IDENTIFIER}
USAGES = ["digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "key_cert_sign", "crl_sign"]
ALLOWED_USAGES = USAGES[:3]
KINDS = {"etcd": "etcd", "front-proxy": "front-proxy", "front_proxy": "front-proxy"}
SPOILS = ["expired", "not-yet-valid", "wrong-ca", "foreign-key", "wrong-name", "truncated", "html", "empty", "null", "list"]


class Magnum(Scripted):
    """start() … stop(). release is Magnum's: 2 (bays, one CA, the creator's token), 3 to 12 (one CA, a token without
    scope), 13 (three CAs), 17 and later (a trust's token is needed). parameters() is what a node gets of it.

    answer() as in Scripted, e.g. answer(401, times=1, path="/v1/"), answer(delay=9, path="/v1/certificates$"); spoil() makes a
    certificate or an answer wrong that is otherwise as it should be."""
    module = "lib.magnum"

    def __init__(self, folder: Path, ip: str | None = None, port: int = 19511, lab: str | None = None, release: int = 22, tls: bool = True,
                 cluster: str = "5d12f6fd-a196-4bf0-ae4c-1f639a523a52", name: str = "blue", token_life: float = 3600):
        super().__init__(folder, ip, port, lab)
        self.release, self.cluster, self.tls = release, cluster, tls
        if tls:
            self.base = f"https://{self.ip}:{self.port}"
        self.ca = CA(self.folder / "tls")  # of the endpoint, not of the cluster
        self.ca.sign("server", names=f"IP:{self.ip}")
        self.settings = {"release": release, "cluster": cluster, "name": name, "tls": tls, "token_life": token_life, "revoked": 0.0,
                         "user": "7e6d5c4b3a2918", "password": uuid.uuid4().hex, "trust": uuid.uuid4().hex, "token": uuid.uuid4().hex}
        self._publish()
        renew_cas(self.folder, release, name)

    def _publish(self):
        write(self.folder / "settings.json", self.settings)

    # --- what a node gets ---
    def parameters(self) -> dict[str, str]:
        """As Magnum of this release writes them into heat-params."""
        given = {"MAGNUM_URL": f"{self.base}/v1"}
        if self.release < 3:
            given |= {"BAY_UUID": self.cluster, "USER_TOKEN": self.settings["token"]}
        else:
            given |= {"CLUSTER_UUID": self.cluster, "AUTH_URL": f"{self.base}/identity/v3", "TRUSTEE_USER_ID": self.settings["user"],
                     "TRUSTEE_PASSWORD": self.settings["password"], "TRUST_ID": self.settings["trust"]}
        if self.tls:
            given["OPENSTACK_CA"] = self.ca.certificate.read_text()
        return given

    def cas(self) -> dict[str, Path]:
        """Files of the CAs that sign now, by type; NAME.key lies beside NAME.crt."""
        return {kind: current(self.folder) / f"{file_of(self.release, kind)}.crt" for kind in ("kubernetes", "etcd", "front-proxy")}

    # --- how it behaves ---
    def spoil(self, how: str, **which):
        """From now on (times=…) what is signed, or the answer to `path`, is wrong: one of SPOILS."""
        assert how in SPOILS, how
        self.answer(**{"path": r"/v1/certificates", "method": "POST", "spoil": how, **which})

    def rotate(self):
        """New CAs of the same names, as PATCH makes them; the old ones are no longer served."""
        renew_cas(self.folder, self.release, self.settings["name"])

    def revoke(self):
        """All tokens so far are dead."""
        self.settings["revoked"] = time.time()
        self._publish()

    def forget_trustee(self):
        """The user's password is another one from now on."""
        self.settings["password"] = uuid.uuid4().hex
        self._publish()

    def servers(self, addresses: dict[str, str]):
        """What Nova has from now on: servers by name, each with its address."""
        known = self.settings.get("servers", {})
        self.settings["servers"] = {name: known.get(name) or {"id": str(uuid.uuid4()), "address": address} for name, address in addresses.items()}
        self._publish()

    # --- what came ---
    def count(self) -> dict[str, int]:
        """Requests that were answered 2xx, by kind; and all others."""
        found = {"tokens": 0, "cas": 0, "signed": 0, "refused": 0}
        for r in self.requests():
            kind = "tokens" if r.target.endswith("/auth/tokens") else {"GET": "cas", "POST": "signed"}.get(r.method)
            found[kind if kind and 200 <= r.status < 300 else "refused"] += 1
        return found


# --- CAs ----------------------------------------------------------------------------------
def file_of(release: int, kind: str | None) -> str:
    return KINDS.get(kind, "kubernetes") if release >= 13 else "kubernetes"


def current(folder: Path) -> Path:
    return max((folder / "cas").glob("[0-9]*"), key=lambda p: int(p.name))


def renew_cas(folder: Path, release: int, name: str):
    """RSA 2048, path length 0, keyCertSign alone, for five years: cert_manager.py generate_certificates_to_cluster."""
    whole = folder / "cas"
    whole.mkdir(parents=True, exist_ok=True)
    part = whole / f"new-{uuid.uuid4()}"
    part.mkdir()
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    for kind in sorted({file_of(release, kind) for kind in ("kubernetes", "etcd", "front-proxy")}):
        key = rsa.generate_private_key(65537, 2048)
        now = datetime.datetime.utcnow()
        builder = (
            x509.CertificateBuilder(subject, subject, key.public_key(), uuid.uuid4().int, now - DAY, now + 5 * 365 * DAY)
            .add_extension(x509.BasicConstraints(True, 0), True)
            .add_extension(usage(["key_cert_sign"]), True))
        if release >= 22:
            builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
        certificate = builder.sign(key, hashes.SHA256())
        (part / f"{kind}.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM).strip())
        (part / f"{kind}.key").write_bytes(key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
    part.rename(whole / str(len(list(whole.glob("[0-9]*"))) + 1))


def usage(names: list[str]) -> x509.KeyUsage:
    return x509.KeyUsage(**{n: n in names for n in USAGES}, encipher_only=False, decipher_only=False)


# --- the process ----------------------------------------------------------------------------------
class Refused(Exception):
    def __init__(self, status: int, why: str, headers: dict | None = None):
        super().__init__(why)
        self.status, self.headers = status, headers or {}


@dataclass
class Token:
    since: float
    user: str
    scope: str | None


@dataclass
class Cloud(State):
    tokens: dict[str, Token] = field(default_factory=dict)


class MagnumHandler(Handler):
    state: Cloud

    def usual(self, target: str, body: bytes, rule: dict) -> Answer:
        self.settings = self.state.read("settings.json")
        path, _, query = target.partition("?")
        keystone = path.startswith("/identity/")
        try:
            if path == "/identity/v3/auth/tokens" and self.command == "POST":
                return self.authenticate(body)
            if path.startswith(NOVA) and "servers" in self.settings:
                return Answer(200, json.dumps(self.nova(path.removeprefix(NOVA), urllib.parse.parse_qs(query))).encode())
            if not path.startswith("/v1/certificates") or keystone:
                raise Refused(404, "The resource could not be found.")
            return spoiled(self.magnum(path, urllib.parse.parse_qs(query, keep_blank_values=True), body, rule), rule.get("spoil"))
        except Refused as e:
            return refusal(e, keystone or e.status == 401)

    def scripted(self, rule: dict) -> Answer:
        if rule["body"]:
            return Answer(rule["status"], rule["body"].encode(), "text/html" if rule["body"].startswith("<") else "application/json")
        return refusal(Refused(rule["status"], "Scripted."), False)

    # --- Keystone ---
    def authenticate(self, body: bytes) -> Answer:
        auth = json_object(body).get("auth")
        identity = (auth or {}).get("identity")
        if not isinstance(identity, dict) or not isinstance(identity.get("methods"), list):
            raise Refused(400, "Invalid input for field 'identity': it is a required property")
        user = (identity.get("password") or {}).get("user") or {}
        if identity["methods"] != ["password"] or (user.get("id"), user.get("password")) != (self.settings["user"], self.settings["password"]):
            raise Refused(401, "The request you have made requires authentication.")
        token, issued = uuid.uuid4().hex, time.time()
        self.state.tokens[token] = Token(issued, user["id"], self.scope(auth.get("scope")))
        at = [datetime.datetime.utcfromtimestamp(t).isoformat(timespec="microseconds") + "Z" for t in (issued, issued + self.settings["token_life"])]
        answer = {"token": {"methods": ["password"], "user": {"id": user["id"]}, "issued_at": at[0], "expires_at": at[1]}}
        if self.state.tokens[token].scope:
            answer["token"]["catalog"] = self.catalog()
        return Answer(201, json.dumps(answer).encode(), headers={"X-Subject-Token": token})

    def scope(self, asked) -> str | None:
        if asked is None or asked == "unscoped" or "unscoped" in asked:
            return None
        if len(asked) != 1:
            raise Refused(400, "Expecting to find system, project, domain, OS-TRUST:trust or unscoped in scope.")
        trust = asked.get("OS-TRUST:trust")
        if trust is None:
            raise Refused(401, "The request you have made requires authentication.")
        if not trust.get("id"):
            raise Refused(400, "Expecting to find trust_id in trust.")
        if trust["id"] != self.settings["trust"]:
            raise Refused(401, "The request you have made requires authentication.")
        return "trust"

    def catalog(self) -> list[dict]:
        if "servers" not in self.settings:
            return []
        base = f"{'https' if self.settings['tls'] else 'http'}://{self.headers['Host']}"
        endpoint = {"id": "nova", "interface": "public", "region": "RegionOne", "region_id": "RegionOne", "url": base + NOVA}
        return [{"id": "compute", "type": "compute", "name": "nova", "endpoints": [endpoint]}]

    # --- Nova ---
    def nova(self, path: str, query: dict) -> dict:
        self.check_token()
        servers = {name: self.server_of(name, one) for name, one in self.settings["servers"].items()}
        match path.strip("/").split("/"):
            case ["servers", "detail"]:
                wanted = re.compile((query.get("name") or [""])[0])
                return {"servers": [one for name, one in servers.items() if wanted.search(name)]}
            case ["servers", id]:
                if found := [one for one in servers.values() if one["id"] == id]:
                    return {"server": found[0]}
            case ["flavors", "m1.node"]:
                return {"flavor": {"id": "m1.node", "name": "m1.node", "ram": 4096, "vcpus": 2, "disk": 20}}
        raise Refused(404, "The resource could not be found.")

    @staticmethod
    def server_of(name: str, one: dict) -> dict:
        address = {"addr": one["address"], "version": 4, "OS-EXT-IPS:type": "fixed", "OS-EXT-IPS-MAC:mac_addr": "fa:16:3e:00:00:01"}
        return {"id": one["id"], "name": name, "status": "ACTIVE", "addresses": {"private": [address]}, "flavor": {"id": "m1.node"}, "metadata": {},
                "OS-EXT-AZ:availability_zone": "nova", "accessIPv4": "", "accessIPv6": "", "created": "2026-01-01T00:00:00Z",
                "updated": "2026-01-01T00:00:00Z", "tenant_id": "9f8e7d6c", "user_id": "7e6d5c4b", "hostId": "", "key_name": None}

    # --- Magnum ---
    def magnum(self, path: str, query: dict, body: bytes, rule: dict) -> Answer:
        self.check_version()
        self.check_token()
        release, cluster = self.settings["release"], self.settings["cluster"]
        unknown = set(query) - ({"ca_cert_type"} if release >= 13 and self.command == "GET" else set())
        if unknown:
            raise Refused(400, f'Unknown argument: "{", ".join(sorted(unknown))}"')
        asked = path.removeprefix("/v1/certificates").strip("/")
        if self.command == "POST" and not asked:
            return self.sign(body, rule)
        if asked != cluster:
            raise Refused(404, f"Cluster {asked} could not be found.")
        if self.command == "PATCH":
            renew_cas(self.state.folder, release, self.settings["name"])
            return Answer(202, json.dumps({"uuid": cluster}).encode())
        if self.command != "GET":
            raise Refused(405, "Method Not Allowed")
        kind = (query.get("ca_cert_type") or [None])[0]
        pem = (current(self.state.folder) / f"{file_of(release, kind)}.crt").read_text()
        return self.certificate(200, {"pem": pem})

    def check_version(self):
        asked = self.headers.get("OpenStack-API-Version")
        if self.settings["release"] < 3:
            return
        service, _, version = (asked or "").partition(" ")
        number = NEWEST if version.lower() == "latest" else tuple(int(p) for p in version.split(".") if p.isdigit())
        if not asked or service != "container-infra" or len(number) != 2:
            raise Refused(406, "Invalid service type for OpenStack-API-Version header")
        if not (1, 1) <= number <= NEWEST:
            raise Refused(406, f"Version {version} was requested but the minor version is not supported by this service.")

    def check_token(self):
        given, s = self.headers.get("X-Auth-Token"), self.settings
        if s["release"] < 3 and given == s["token"]:
            return
        token = self.state.tokens.get(given)
        if not token or token.since <= s["revoked"] or token.since + s["token_life"] <= time.time():
            raise Refused(401, "The request you have made requires authentication.", {"WWW-Authenticate": "Keystone uri=/identity"})
        if s["release"] >= 17 and not token.scope:
            raise Refused(400 if self.command == "POST" else 404, f"Cluster {s['cluster']} could not be found.")
        if token.user != s["user"]:
            raise Refused(403, "Policy doesn't allow certificate:create to be performed.")

    def sign(self, body: bytes, rule: dict) -> Answer:
        release, cluster = self.settings["release"], self.settings["cluster"]
        if self.headers.get_content_type() != "application/json":
            raise Refused(415, f"Unknown mimetype: {self.headers.get_content_type()}")
        asked = json_object(body, 500 if release >= 23 else 400)
        members = ["bay_uuid"] if release < 3 else ["cluster_uuid"] if release >= 17 else ["cluster_uuid", "bay_uuid"]
        unknown = set(asked) - {*members, "csr", "pem"} - ({"ca_cert_type"} if release >= 13 else set())
        if unknown:
            raise Refused(400, f"Unknown attribute for argument certificate: {', '.join(sorted(unknown))}")
        named = next((asked[m] for m in members if m in asked), None)
        if named != cluster:
            raise Refused(400 if named else 404, f"Cluster {named} could not be found.")
        if "csr" not in asked and release >= 23:
            raise Refused(500, "Cannot load 'csr' in the base class")
        if not isinstance(asked.get("csr"), str) or not asked["csr"]:
            raise Refused(400, f"Invalid input for field/attribute csr. Value: '{asked.get('csr')}'.")
        kind = asked.get("ca_cert_type")
        pem = issue(self.state.folder, self.settings, asked["csr"], file_of(release, kind), rule.get("spoil"))
        return self.certificate(201, {"pem": pem, "csr": asked["csr"], **({"ca_cert_type": kind} if kind else {})})

    def certificate(self, status: int, members: dict) -> Answer:
        bay = "bay_uuid" if self.settings["release"] < 3 else "cluster_uuid"
        link = {"href": f"http://magnum/v1/certificates/{self.settings['cluster']}", "rel": "self"}
        return Answer(status, json.dumps({bay: self.settings["cluster"], "links": [link], **members}).encode())


def json_object(body: bytes, otherwise: int = 400) -> dict:
    try:
        found = json.loads(body)
    except ValueError:
        raise Refused(400, "Request is not in valid JSON format") from None
    if not isinstance(found, dict):
        raise Refused(otherwise, "Request must be a JSON dict")
    return found


def refusal(error: Refused, keystone: bool) -> Answer:
    """Keystone's and its middleware's, or Magnum's: api/middleware/parsable_error.py."""
    if keystone:
        body = {"error": {"code": error.status, "message": str(error), "title": "Refused"}}
    else:
        body = {"errors": [{"request_id": "", "code": "client" if error.status < 500 else "server", "status": error.status,
                            "title": str(error).split(".", 1)[0], "detail": str(error), "links": []}]}
    return Answer(error.status, json.dumps(body).encode(), headers=error.headers)


@functools.cache
def signer(folder: Path, file: str) -> tuple[x509.Name, rsa.RSAPrivateKey]:
    """Reading a key proves it, which takes much longer than signing."""
    certificate = x509.load_pem_x509_certificate((folder / f"{file}.crt").read_bytes())
    return certificate.subject, serialization.load_pem_private_key((folder / f"{file}.key").read_bytes(), None)


def issue(folder: Path, settings: dict, csr: str, file: str, spoil: str | None) -> str:
    try:
        request = x509.load_pem_x509_csr(csr.encode())
        asked = list(request.extensions)
    except ValueError:
        # the original says what it was sent; before 3 it was not looked at
        raise Refused(400 if settings["release"] >= 3 else 500, f"Received invalid csr {csr}.") from None
    issuer, key = signer(current(folder), file)
    public = request.public_key()
    now = datetime.datetime.utcnow()
    first, last = now - DAY, now + 5 * 365 * DAY
    subject = request.subject
    if spoil == "expired":
        first, last = now - 30 * DAY, now - 2 * DAY
    elif spoil == "not-yet-valid":
        first = now + DAY
    elif spoil == "wrong-ca":
        key = ec.generate_private_key(ec.SECP256R1())
    elif spoil == "foreign-key":
        public = ec.generate_private_key(ec.SECP256R1()).public_key()
    elif spoil == "wrong-name":
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "somebody else")])
    builder = x509.CertificateBuilder(issuer, subject, public, uuid.uuid4().int, first, last)
    for extension in asked:
        filtered = filter_extension(extension, 500 if settings["release"] >= 23 else 400)
        if filtered:
            builder = builder.add_extension(filtered.value, filtered.critical)
    is_identified = any(e.oid == ExtensionOID.SUBJECT_KEY_IDENTIFIER for e in asked)
    if is_identified and settings["release"] >= 23:
        raise Refused(500, "This extension has already been set.")
    if settings["release"] >= 22 and not is_identified:
        builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(public), False)
    pem = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()
    return pem.strip() if settings["release"] >= 13 else pem


def filter_extension(extension: x509.Extension, status: int) -> x509.Extension | None:
    def refuse():
        raise Refused(status, f"Extension '{extension}' not allowed")
    if extension.oid not in ALLOWED:
        return refuse() if extension.critical else None
    value = extension.value
    if extension.oid == ExtensionOID.KEY_USAGE:
        wanted = [n for n in USAGES if getattr(value, n)]
        if extension.critical and set(wanted) - set(ALLOWED_USAGES):
            refuse()
        value = usage([n for n in wanted if n in ALLOWED_USAGES])
    elif extension.oid == ExtensionOID.BASIC_CONSTRAINTS and value.ca:
        if extension.critical:
            refuse()
        value = x509.BasicConstraints(False, None)
    return x509.Extension(extension.oid, extension.critical, value)


def spoiled(answer: Answer, how: str | None) -> Answer:
    """Those of SPOILS that are not about the certificate itself."""
    if how == "html":
        return Answer(200, b"<html><body><h1>Please log in</h1></body></html>", "text/html")
    if how in ("empty", "list"):
        return Answer(answer.status, b"{}" if how == "empty" else b"[]")
    if how in ("null", "truncated"):
        members = json.loads(answer.body)
        members["pem"] = None if how == "null" else members["pem"][:len(members["pem"]) // 2]
        return Answer(answer.status, json.dumps(members).encode())
    return answer


def main(ip: str, port: str, folder: str):
    state, tls = Cloud(Path(folder)), None
    if state.read("settings.json")["tls"]:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(state.folder / "tls/server.crt", state.folder / "tls/server.key")
    serve(MagnumHandler, state, ip, int(port), tls)


if __name__ == "__main__":
    os.umask(0o077)
    main(*sys.argv[1:])
