"""Files that a command line names: they must be there, readable and good.

Certificates, keys and CAs are read by OpenSSL (Python's ssl). Stricter than the real programs: they serve an expired certificate and
leave it to the client to refuse. Not imitated: whether a certificate's names fit, whether it was signed by the CA beside it (the
API server's stand-in finds that out when somebody connects), whether a service account's two keys belong together.
"""
import base64
import binascii
import os
import re
import ssl
import tempfile
import time
from pathlib import Path

from stand_in import Refused

ROOT = os.environ.get("HNA_STAND_IN_ROOT", "").rstrip("/")


def at(path: str, base: str = "/") -> str:
    """Where a path lies really; base is where relative ones begin."""
    whole = os.path.join(base, path)
    return ROOT + whole if not ROOT or not whole.startswith(ROOT + "/") else whole


def read(path: str, what: str) -> bytes:
    try:
        return Path(at(path)).read_bytes()
    except OSError as error:
        raise Refused(f"{what}: open {path}: {(error.strerror or str(error)).lower()}") from error


def directory(path: str, what: str):
    if not os.path.isdir(at(path)):
        raise Refused(f"{what}: {path}: no such directory")


def pem_blocks(data: bytes) -> list[tuple[str, bytes]]:
    found = []
    for label, body in re.findall(r"-----BEGIN ([A-Z0-9 ]+)-----\s+([A-Za-z0-9+/=\s]+?)-----END \1-----", data.decode("latin-1")):
        try:
            found.append((label, base64.b64decode("".join(body.split()), validate=True)))
        except binascii.Error:
            found.append((label, b""))
    return found


def is_der_sequence(data: bytes) -> bool:
    """One whole ASN.1 SEQUENCE and nothing after it."""
    if len(data) < 2 or data[0] != 0x30:
        return False
    count = data[1] & 0x7F if data[1] & 0x80 else 0
    length = int.from_bytes(data[2:2 + count], "big") if count else data[1]
    return len(data) == 2 + count + length


def certificates(path: str, what: str) -> list[dict]:
    """Each certificate of a bundle, decoded and valid now."""
    blocks = [der for label, der in pem_blocks(read(path, what)) if label == "CERTIFICATE"]
    if not blocks:
        raise Refused(f"{what}: unable to load {path}: data does not contain any valid RSA or ECDSA certificates")
    found = []
    for der in blocks:
        if not is_der_sequence(der):
            raise Refused(f"{what}: {path}: x509: malformed certificate")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            context.load_verify_locations(cadata=der)
        except ssl.SSLError as error:
            raise Refused(f"{what}: {path}: x509: malformed certificate: {error.reason}") from error
        found.append(decoded(der))
        begins, ends = (ssl.cert_time_to_seconds(found[-1][field]) for field in ("notBefore", "notAfter"))
        if not begins <= time.time() <= ends:
            between = f"from {found[-1]['notBefore']} to {found[-1]['notAfter']}"
            raise Refused(f"{what}: {path}: x509: certificate has expired or is not yet valid: {between}")
    return found


def decoded(der: bytes) -> dict:
    """Subject and times, for certificates that are no CA too. The standard library has no other way to them."""
    with tempfile.NamedTemporaryFile("w") as file:
        file.write(ssl.DER_cert_to_PEM_cert(der))
        file.flush()
        return ssl._ssl._test_decode_cert(file.name)


RSA, EC = bytes.fromhex("2a864886f70d010101"), bytes.fromhex("2a8648ce3d0201")  # object identifiers of RFC 8017 and RFC 5480


def form(der: bytes) -> str:
    """Of a private key: "PKCS#1" (RSA), "SEC1" (EC), "PKCS#8 RSA", "PKCS#8 EC", or nothing: by what follows the version."""
    count = der[1] & 0x7F if der[1] & 0x80 else 0
    rest = der[2 + count:]
    if rest[:1] != b"\x02":
        return ""
    rest = rest[2 + rest[1]:]
    if rest[:1] == b"\x30":
        kind = rest[:rest[1] + 2]
        return "PKCS#8 RSA" if RSA in kind else "PKCS#8 EC" if EC in kind else ""
    return {b"\x02": "PKCS#1", b"\x04": "SEC1"}.get(rest[:1], "")


FORMS = {"RSA PRIVATE KEY": {"PKCS#1"}, "EC PRIVATE KEY": {"SEC1"}, "PRIVATE KEY": {"PKCS#8 RSA", "PKCS#8 EC"}}


def key(path: str, what: str):
    """A private key in the form that its label says. [source] client-go, util/keyutil: ParsePrivateKeyPEM"""
    for label, der in pem_blocks(read(path, what)):
        if label in FORMS and is_der_sequence(der) and form(der) in FORMS[label]:
            return
    raise Refused(f"{what}: data does not contain a valid RSA or ECDSA private key: {path}")


def verifying_key(path: str, what: str, minor: int):
    """A public key, a certificate or a private key, by which service accounts' tokens are verified.

    [source] client-go, util/keyutil: ParsePublicKeysPEM: labels do not matter, and an EC key is read as SEC1 alone, never as PKCS#8.
    [memory] up to 1.5 RSA alone."""
    for label, der in pem_blocks(read(path, what)):
        if not is_der_sequence(der):
            continue
        if "PRIVATE KEY" in label:
            if form(der) in {"PKCS#1", "PKCS#8 RSA"} | ({"SEC1"} if minor >= 6 else set()):
                return
        elif "CERTIFICATE" in label or "PUBLIC KEY" in label:
            if minor >= 6 or EC not in der:
                return
    raise Refused(f"{what}: data does not contain any valid RSA or ECDSA public keys: {path}")


def pair(certificate: str, private: str, what: str):
    """A certificate and its key."""
    certificates(certificate, what)
    key(private, what)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(at(certificate), at(private), password="")
    except ssl.SSLError as error:
        why = "private key does not match public key" if "MISMATCH" in str(error) else error.reason or str(error)
        raise Refused(f"{what}: tls: {why}: {certificate} {private}") from error


# --- kubeconfig -----------------------------------------------------------------------------------
CLUSTER = {"server", "certificate-authority", "certificate-authority-data", "insecure-skip-tls-verify", "tls-server-name", "proxy-url",
           "disable-compression", "api-version", "extensions"}
USER = {"client-certificate", "client-certificate-data", "client-key", "client-key-data", "token", "tokenFile", "username", "password",
        "auth-provider", "exec", "as", "as-uid", "as-groups", "as-user-extra", "extensions"}


class Kubeconfig:
    """server, and where the certificates are (as they lie really)."""

    def __init__(self, path: str, what: str = "kubeconfig"):
        import yaml
        try:
            document = yaml.safe_load(read(path, what))
        except yaml.YAMLError as error:
            raise Refused(f"{what}: error loading config file \"{path}\": {error}") from error
        if not isinstance(document, dict) or document.get("kind") != "Config" or document.get("apiVersion") != "v1":
            raise Refused(f"{what}: error loading config file \"{path}\": not a Config of v1")
        self.base = os.path.dirname(path)
        self.what = f"{what} {path}"
        names = {kind: {item["name"]: item for item in document.get(kind) or []} for kind in ("clusters", "users", "contexts")}
        current = document.get("current-context") or ""
        if current not in names["contexts"]:
            # [memory] the kubelet and the others take an empty kubeconfig as "no configuration" and fail
            raise Refused(f"{self.what}: invalid configuration: context was not found for specified context: {current!r}")
        context = names["contexts"][current].get("context") or {}
        if context.get("cluster") not in names["clusters"]:
            raise Refused(f"{self.what}: invalid configuration: cluster {context.get('cluster')!r} was not found")
        cluster = names["clusters"][context["cluster"]].get("cluster") or {}
        user = {}
        if context.get("user"):
            if context["user"] not in names["users"]:
                raise Refused(f"{self.what}: invalid configuration: user {context['user']!r} was not found")
            user = names["users"][context["user"]].get("user") or {}
        for keys, known, kind in ((cluster, CLUSTER, "cluster"), (user, USER, "user")):
            if stray := set(keys) - known:  # stricter than the real ones, which ignore them
                raise Refused(f"{self.what}: unknown field of a {kind}: {', '.join(sorted(stray))}")
        self.server = cluster.get("server") or ""
        if not re.fullmatch(r"https?://(\[[0-9a-fA-F:]+\]|[^\s/:\[\]]+)(:\d+)?(/\S*)?", self.server):
            raise Refused(f"{self.what}: invalid configuration: no or bad server: {self.server!r}")
        self.insecure = bool(cluster.get("insecure-skip-tls-verify"))
        self.ca = self._certificate(cluster, "certificate-authority")
        if self.ca and self.insecure:
            raise Refused(f"{self.what}: specifying a root certificates file with the insecure flag is not allowed")
        self.certificate = self._certificate(user, "client-certificate")
        self.key = self._certificate(user, "client-key")
        if bool(self.certificate) != bool(self.key):
            raise Refused(f"{self.what}: client-certificate and client-key must be specified together")
        if self.certificate and "client-certificate" in user and "client-key" in user:
            pair(os.path.join(self.base, user["client-certificate"]), os.path.join(self.base, user["client-key"]), self.what)
        self.token = user.get("token") or ""
        if user.get("tokenFile"):
            self.token = read(os.path.join(self.base, user["tokenFile"]), self.what).decode().strip()

    def _certificate(self, entry: dict, name: str) -> str:
        """The path of a file, or the text itself where it is given as data."""
        if data := entry.get(f"{name}-data"):
            try:
                text = base64.b64decode(data, validate=True)
            except binascii.Error as error:
                raise Refused(f"{self.what}: {name}-data: {error}") from error
            if not pem_blocks(text):
                raise Refused(f"{self.what}: {name}-data: no PEM")
            return text.decode()
        if not entry.get(name):
            return ""
        path = os.path.join(self.base, entry[name])
        if name == "client-key":
            key(path, self.what)
        else:
            certificates(path, self.what)
        return at(path)


# --- cloud configuration --------------------------------------------------------------------------
# What the OpenStack provider inside Kubernetes reads: key -> first minor. [tried] 1.2 takes Magnum's set of that time and refuses
# use-octavia and trust-id; [spec] 1.8, 2.3 for what Magnum wrote when; the rest [memory], with the earliest minor that is thinkable.
OPENSTACK = {
    "Global": {"auth-url": 2, "username": 2, "user-id": 2, "password": 2, "api-key": 2, "tenant-id": 2, "tenant-name": 2, "domain-id": 2,
               "domain-name": 2, "region": 2, "trust-id": 3, "ca-file": 5, "secret-name": 12, "secret-namespace": 12,
               "kubeconfig-path": 12, "tenant-domain-id": 12, "tenant-domain-name": 12, "user-domain-id": 12, "user-domain-name": 12},
    "LoadBalancer": {"subnet-id": 2, "lb-method": 2, "create-monitor": 2, "monitor-delay": 2, "monitor-timeout": 2,
                     "monitor-max-retries": 2, "lb-version": 3, "floating-network-id": 2, "manage-security-groups": 4,
                     "node-security-group": 4, "lb-provider": 7, "use-octavia": 9, "internal-lb": 10, "floating-subnet-id": 12},
    "BlockStorage": {"bs-version": 5, "trust-device-path": 3, "ignore-volume-az": 8, "node-volume-attach-limit": 11},
    "Route": {"router-id": 5},
    "Metadata": {"search-order": 6, "request-timeout": 12},
}


def openstack_config(path: str, minor: int):
    """Read as gcfg does: an unknown section or key is fatal. [tried] 1.2. Later in-tree readers only warn [memory]; here it stays fatal."""
    section = None
    what = 'could not init cloud provider "openstack"'
    for number, line in enumerate(read(path, what).decode().splitlines(), 1):
        line = line.strip()
        if not line or line[0] in "#;":
            continue
        if found := re.fullmatch(r'\[\s*([\w-]+)\s*(?:"([^"]*)")?\s*\]', line):
            section = next((s for s in OPENSTACK if s.lower() == found[1].lower()), None)
            if section is None:
                raise Refused(f'{what}: invalid section: section "{found[1]}"', 255)
            continue
        found = re.fullmatch(r"([A-Za-z][\w-]*)\s*(?:=\s*(.*))?", line)
        if not found or section is None:
            raise Refused(f'{what}: {path}:{number}: expected section header or variable', 255)
        if OPENSTACK[section].get(found[1].lower(), 99) > minor:
            raise Refused(f'{what}: invalid variable: section "{section}" subsection "" variable "{found[1]}"', 255)
        value = found[2] or ""
        bare = re.sub(r'"(?:[^"\\]|\\["\\nt])*"', "", value)
        if '"' in bare or "\\" in bare:
            raise Refused(f'{what}: {path}:{number}: string not terminated or unknown escape', 255)
    if section is None:
        raise Refused(f'{what}: empty configuration', 255)
