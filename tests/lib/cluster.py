"""Nodes of a Kubernetes cluster with TLS on hosts: the agent, a real etcd and containerd, stand-ins for Kubernetes' programs."""
import hashlib
import json
from pathlib import Path

from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID, ExtensionOID, NameOID

from lib import stand_ins
from lib.common import SET, SUITE, TESTHOST, run
from lib.hosts import packages
from lib.node import UNIT, signalled, start, status_of

# containerd 1.4 has no CRI v1, and a kubelet of 1.26 and later nothing else.
VERSION = "1.25.16" if SUITE == "bullseye" else "1.28.9"
KUBERNETES, FRONT_PROXY, ETCD = FOLDERS = ("/etc/kubernetes/certs", "/etc/kubernetes/certs/front-proxy", "/etc/etcd/certs")
END = "-----END CERTIFICATE-----\n"
RECORD = "/var/lib/heat-node-agent/certificates.json"
NAMES = ["m1", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local", "localhost"]
# What etcd's clients are known by, where its CA signs for others too.
ETCD_CLIENT = "etcd-client.heat-node-agent"
ADDRESSES = ["127.0.0.1", "10.254.0.1"]
# Path of the certificate (its key lies beside it), folder of its CA, CN, O, whether it serves, what it must name besides the
# node's address.
NODE = [("kubelet", KUBERNETES, "system:node:{name}", ["system:nodes"], True, ["{name}"]),
        ("proxy", KUBERNETES, "system:kube-proxy", ["system:node-proxier"], False, [])]
MASTER = [*NODE, ("server", KUBERNETES, "kubernetes", [], True, NAMES + ADDRESSES),
          ("admin", KUBERNETES, "admin", ["system:masters"], False, []),
          ("controller-manager", KUBERNETES, "system:kube-controller-manager", [], True, ["localhost", "127.0.0.1"]),
          ("scheduler", KUBERNETES, "system:kube-scheduler", [], True, ["localhost", "127.0.0.1"]),
          ("front-proxy/server", FRONT_PROXY, "front-proxy", [], False, []),
          ("/etc/etcd/certs/server", ETCD, "etcd", [], True, NAMES + ADDRESSES),
          ("/etc/etcd/certs/admin", ETCD, "etcd", [], False, [ETCD_CLIENT])]


def parameters(role: str, name: str, ip: str, master: str, **more) -> dict:
    own = {"ROLE": role, "KUBE_TAG": f"v{VERSION}", "INSTANCE_NAME": name, "KUBE_NODE_IP": ip, "CONTAINER_RUNTIME": "containerd",
            "CONTAINERD_VERSION": packages()["containerd"], "DNS_SERVICE_IP": "10.254.0.10", "WAIT_TIMEOUT": 600}
    own |= {"KUBE_API_PRIVATE_ADDRESS": master} if role == "master" else {"KUBE_MASTER_IP": master}
    return own | more


class Node:
    """A host with its own server of metadata and signals."""
    # What its deployment declares as outputs: Heat gets no others.
    outputs: tuple[str, ...] = ()

    def __init__(self, host, server, inputs: dict):
        self.host, self.server, self.inputs = host, server, inputs
        self.root = TESTHOST / SET / "run" / host.name / "root"  # as seen from outside

    # --- deployments ---
    def publish(self, action: str = "CREATE", **changes):
        """None takes a parameter away."""
        self.inputs = {k: v for k, v in {**self.inputs, **changes}.items() if v is not None}
        self.server.forget()
        self.server.sign()
        self.server.document["deployments"] = [self.server.deployment("node", group="kubernetes-node", inputs=self.inputs, outputs=list(self.outputs), action=action)]
        self.server.publish()

    def up(self, settings: str = "") -> "Node":
        stand_ins.into(self.host, VERSION)
        self.publish()
        start(self.host, self.server, settings)
        self.succeeds()
        return self

    def update(self, **changes):
        """A stack update."""
        self.publish("UPDATE", **changes)
        self.host.exec("systemctl", "kill", "-s", "HUP", UNIT)

    def result(self) -> str:
        """What Heat hears: nothing, or the cause."""
        status = signalled(self.server, "node")["deploy_status_code"]
        return "" if status == 0 else str(status)

    def succeeds(self):
        assert self.result() == "", self.host.exec("heat-node-agent", "explain", check=False).stdout

    def status(self) -> dict:
        return status_of(self.host)

    def milliseconds(self, step: str) -> int:
        """How long a step of the last convergence took, for a person to read."""
        return dict(map(tuple, self.status()["node"]["timings"]))[step]

    def curl(self, url: str, *words: str, identity: str = "admin") -> str:
        """What the API answers on the host, by the certificate of this name."""
        return self.host.sh(f"curl -sS --cacert {KUBERNETES}/ca.crt --cert {KUBERNETES}/{identity}.crt --key {KUBERNETES}/{identity}.key {url} {' '.join(words)}")

    def release(self) -> str:
        """That its API server says."""
        return json.loads(self.curl(f"https://{self.inputs['KUBE_NODE_IP']}:6443/version"))["gitVersion"]

    def healthy(self) -> bool:
        """Whether the kubelet says so, and the API server told systemd, which it does once etcd is healthy."""
        asked = "curl -sf http://127.0.0.1:10248/healthz && systemctl is-active -q kube-apiserver"
        return self.host.exec("bash", "-c", asked, check=False).returncode == 0

    # --- what lies there ---
    def at(self, path: str) -> Path:
        """A path of the host, with its links followed inside it, as seen from outside."""
        here = self.root / path.lstrip("/")
        while here.is_symlink():
            target = here.readlink()
            here = self.root / str(target).lstrip("/") if target.is_absolute() else here.parent / target
            if here.parent.is_symlink():
                here = here.parent.parent / here.parent.readlink() / here.name
        return here

    def read(self, path: str) -> bytes:
        return self.at(path).read_bytes()

    def certificates(self) -> list[tuple]:
        """The table for this role, with whole paths."""
        rows = MASTER if self.inputs["ROLE"] == "master" else NODE
        # With a CA of its own etcd asks for no name.
        unasked = {ETCD_CLIENT} if "ETCD_CA_CERTIFICATE" in self.inputs else set()
        return [(p if p.startswith("/") else f"{KUBERNETES}/{p}", *more, [n for n in names if n not in unasked]) for p, *more, names in rows]

    def keys(self) -> dict[str, str]:
        """Digest of each key in use."""
        return {path: hashlib.sha256(self.read(f"{path}.key")).hexdigest() for path, *_ in self.certificates()}

    def issued(self) -> dict[str, str]:
        """Digest of each certificate in use."""
        return {path: hashlib.sha256(self.read(f"{path}.crt")).hexdigest() for path, *_ in self.certificates()}

    def checksums(self) -> str:
        """All that is in use in the folders: names, links, modes, owners, contents, times of change."""
        found = f"find $(ls -d {KUBERNETES} {ETCD} 2>/dev/null) -name ..next -prune -o"
        return self.host.sh(f"{found} '(' -type d -printf '%p %m %u %g\\n' ')' -o -printf '%p %y %m %u %g %l %C@\\n' | sort; "
                            f"{found} -type f -exec sha256sum {{}} + | sort")

    def started(self) -> dict[str, str]:
        """Each unit's run, which is another one after a restart."""
        units = ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "containerd", "haproxy"]
        said = self.host.exec("systemctl", "show", "--property=Id,InvocationID", "--", *(f"{u}.service" for u in units)).stdout
        runs = [dict(line.split("=", 1) for line in block.splitlines()) for block in said.strip().split("\n\n")]
        return {r["Id"].removesuffix(".service"): r["InvocationID"] for r in runs if r["InvocationID"]}

    def restarted(self, before: dict[str, str]) -> set[str]:
        now = self.started()
        return {unit for unit in now if now[unit] != before.get(unit)}

    def mistakes(self, rows: list[tuple] | None = None) -> list[str]:
        """What openssl and a reader of X.509 find wrong with the certificates in use, and with owners and modes."""
        return [m for row in rows or self.certificates() for m in self._mistakes(*row)]

    def _mistakes(self, path: str, folder: str, subject: str, organisations: list, serves: bool, names: list):
        certificate, key, ca = self.at(f"{path}.crt"), self.at(f"{path}.key"), self.at(f"{folder}/ca.crt")
        for purpose in ["sslclient", *(["sslserver"] if serves else [])]:
            # Each CA for itself: of several with one name openssl takes the first.
            done = [run("openssl", "verify", "-purpose", purpose, "-CAfile", "/dev/stdin", certificate, check=False, input=one + END)
                    for one in ca.read_text().split(END)[:-1]]
            if all(d.returncode for d in done):
                yield f"{path}: {[d.stdout + d.stderr for d in done]}"
        if not matching(certificate, key):
            yield f"{path}: the key is another one's"
        found = x509.load_pem_x509_certificate(certificate.read_bytes())
        own = {"name": self.inputs["INSTANCE_NAME"]}
        if (said := found.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value) != subject.format(**own):
            yield f"{path}: CN={said}"
        if (said := [a.value for a in found.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)]) != organisations:
            yield f"{path}: O={said}"
        wanted = {n.format(**own) for n in names} | ({self.inputs["KUBE_NODE_IP"]} if serves and len(names) != 2 else set())
        if missing := wanted - named(found):
            yield f"{path}: does not name {missing}"
        usages = set(found.extensions.get_extension_for_oid(ExtensionOID.EXTENDED_KEY_USAGE).value)
        if usages != {ExtendedKeyUsageOID.CLIENT_AUTH} | ({ExtendedKeyUsageOID.SERVER_AUTH} if serves else set()):
            yield f"{path}: usages {usages}"
        for file, mode in ((key, 0o600), (certificate, 0o644), (ca, 0o644)):
            if file.stat().st_mode & 0o7777 != mode:
                yield f"{file}: mode {file.stat().st_mode & 0o7777:o}"
        owner = self.host.exec("stat", "-Lc", "%U:%G", f"{path}.key").stdout.strip()
        if owner != ("etcd:etcd" if path == "/etc/etcd/certs/server" else "root:root"):
            yield f"{path}.key: owner {owner}"

    # --- etcd ---
    def etcdctl(self, *words, certificate: str = f"{ETCD}/admin", endpoint: str = "", seconds: int = 30) -> str:
        """As a client with this certificate ("" for none). Who is refused tries for all of the seconds."""
        pair = f"--cert {certificate}.crt --key {certificate}.key" if certificate else ""
        where = endpoint or f"https://{self.inputs['KUBE_NODE_IP']}:2379"
        return self.host.sh(f"ETCDCTL_API=3 etcdctl --command-timeout={seconds}s --endpoints {where} --cacert {ETCD}/ca.crt {pair} "
                            f"{' '.join(words)} 2>&1")


def named(certificate: x509.Certificate) -> set[str]:
    try:
        names = certificate.extensions.get_extension_for_oid(ExtensionOID.SUBJECT_ALTERNATIVE_NAME).value
    except x509.ExtensionNotFound:
        return set()
    return {str(n.value) for n in names}


def matching(certificate: Path, key: Path) -> bool:
    """Whether openssl finds the same public key in both; False also for what it cannot read."""
    one = run("openssl", "x509", "-in", certificate, "-noout", "-pubkey", check=False)
    other = run("openssl", "pkey", "-in", key, "-pubout", check=False)
    return one.returncode == other.returncode == 0 and one.stdout == other.stdout
