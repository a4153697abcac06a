"""Every minor release, master and worker: what the agent writes is taken by the stand-ins of that version.

`heat-node-agent apply --root` makes the tree; the certificates that it leaves to the node are made here, exactly as it says (who signs,
for whom, where); then each component's unit is read as systemd would read it, and the stand-in gets that command line with the tree as
its root. Nothing here needs a host."""
import json
import re
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from lib.certificates import CA, handshake, public_key
from lib.common import REPO, run
from lib.hosts import agent_binary
from lib.stand_ins import Refused, accepts, install, tables
from lib.systemd_words import service
from stand_in import files, flannel, kubernetes, tls

MINORS = range(tables.FIRST, tables.LAST + 1)
TREES = (2, 5, 9, 15, 18, 20, 24, 28, 31, tables.LAST)  # those whose texts a person read
BASES = (REPO / "units/components", REPO / "units")
COMPONENTS = {"master": set(tables.COMPONENTS), "minion": {"kubelet", "kube-proxy"}}
TRUSTEE = {"TRUSTEE_USER_ID": "4f6d1c0a2b3e4d5f8a7b6c5d4e3f2a1b", "TRUSTEE_PASSWORD": "a;b#\"c\\ d",
           "TRUST_ID": "9e8d7c6b5a49382716051423324150ff",
           "AUTH_URL": "https://192.0.2.5:5000/v3", "CLUSTER_SUBNET": "b3a1d2c4-5e6f-4708-91a2-b3c4d5e6f708"}


class Made:
    """Certificates that were made once, by what they say: copied for each tree that wants the like."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.cas: dict[str, CA] = {}
        self.pairs: dict[tuple, tuple[Path, Path]] = {}

    def ca(self, signer: str) -> CA:
        if signer not in self.cas:
            self.cas[signer] = CA(self.folder / signer)
        return self.cas[signer]

    def pair(self, signer: str, subject: str, names: str) -> tuple[Path, Path]:
        key = signer, subject, names
        if key not in self.pairs:
            self.pairs[key] = self.ca(signer).sign(f"pair-{len(self.pairs)}", subject, names)
        return self.pairs[key]


@pytest.fixture(scope="session")
def made(tmp_path_factory) -> Made:
    return Made(tmp_path_factory.mktemp("cas"))


@pytest.fixture(scope="session")
def service_account(made) -> list[dict[str, str]]:
    """Keys for the minors that read RSA alone, and for those from 1.6 on."""
    ec = made.ca("service-account").private
    rsa = ec.with_name("rsa.key")
    run("openssl", "genpkey", "-algorithm", "RSA", "-out", rsa)
    for private in (rsa, ec):
        public_key(private, private.with_suffix(".pub"))
    return [{"KUBE_SERVICE_ACCOUNT_PRIVATE_KEY": private.read_text(), "KUBE_SERVICE_ACCOUNT_KEY": private.with_suffix(".pub").read_text()}
            for private in (rsa, ec)]


def document(minor: int, role: str, service_account: list[dict], **more) -> dict:
    """A deployment as Heat gives it, with what such a node of Magnum has."""
    inputs = {"ROLE": role, "KUBE_TAG": f"v1.{minor}.3", "INSTANCE_NAME": f"bay-{role}-0",
              "CLUSTER_UUID": "c0ffee00-1111-4222-8333-444455556666",
              "KUBE_NODE_IP": "192.0.2.11" if role == "master" else "192.0.2.31", "KUBE_API_PRIVATE_ADDRESS": "192.0.2.17",
              "KUBE_API_PUBLIC_ADDRESS": "203.0.113.17", "CERTIFICATES": "given", "CA_CERTIFICATE": "/given/ca.crt",
              "CLUSTER_SUBNET_CIDR": "192.0.2.0/24",
              "CONTAINER_RUNTIME": "containerd" if minor >= 24 else "docker", "DNS_SERVICE_IP": "10.254.0.10"}
    if minor >= 24:
        inputs["CONTAINERD_VERSION"] = "1.7.2"
    if role == "master":
        inputs |= service_account[minor >= 6] | {"CA_KEY": "/given/ca.key"}
    else:
        inputs |= {"KUBE_MASTER_IP": "192.0.2.17", "ETCD_SERVER_IP": "192.0.2.17"}
        if more.get("CERTIFICATES", "given") == "given":
            inputs |= {f"{name}_{half}": f"/given/{name}" for name in ("KUBELET", "PROXY", "FLANNELD") for half in ("CERTIFICATE", "KEY")}
    inputs = {k: v for k, v in {**inputs, **more}.items() if v is not None}
    return {"deployments": [{
        "id": "0f2f5b9e-6c1d-4a55-9a0e-3c7f2d1b8e10", "name": "node", "group": "kubernetes-node", "creation_time": "2026-03-01T12:00:00Z",
        "config": "",
        "options": {}, "outputs": [], "inputs": [{"name": k, "type": "String", "value": v} for k, v in inputs.items()]
        + [{"name": "deploy_signal_transport", "type": "String", "value": "NO_SIGNAL"}]}]}


class Tree:
    """What `apply --root` wrote, with the certificates that it asks for."""

    def __init__(self, root: Path, metadata: dict, made: Made):
        self.root = root
        root.mkdir(parents=True)
        (root / "etc").mkdir()
        (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\netcd:x:999:999::/:/bin/false\nkube:x:998:998::/:/bin/false\n")
        (root / "etc/group").write_text("root:x:0:\netcd:x:999:\nkube:x:998:\n")
        path = root.with_suffix(".json")
        path.write_text(json.dumps(metadata))
        self.said = run(agent_binary(), "apply", "--root", root, "--metadata", path).stdout
        self.fulfil(made)

    def fulfil(self, made: Made):
        """Each line "left to the node: certificate NAME (CN=..., O=...) for NAMES, signed by SIGNER, at PATH with its key at PATH: ..."."""
        signs = r"(?:, with the signing certificate at (\S+) and its key at (\S+?))?"
        for signer, path, alone, key in re.findall(rf"certificate of the CA (\S+) at (\S+?){signs}: ", self.said):
            self._copy(made.ca(signer).certificate, path)
            if key:
                self._copy(made.ca(signer).certificate, alone)
                self._copy(made.ca(signer).private, key)
        found = re.findall(r"certificate \S+ \((.+?)\)(?: for (.+?))?, signed by (\S+), at (\S+) with its key at (\S+?):? ", self.said)
        for subject, names, signer, certificate, key in found:
            parts = dict.fromkeys(f"/{part.strip()}" for part in re.split(r", (?=O=)", subject))
            alternatives = ",".join(f"{'IP' if re.fullmatch(r'[0-9.]+|[0-9a-f:]*:[0-9a-f:]*', n) else 'DNS'}:{n}"
                                    for n in names.split(", ") if n)
            pair = made.pair(signer, "".join(reversed(parts)), alternatives or "DNS:nobody.invalid")
            self._copy(pair[0], certificate)
            self._copy(pair[1], key)
        self.wishes = len(found)

    def _copy(self, source: Path, path: str):
        target = self.root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(source.read_bytes())

    def units(self) -> set[str]:
        """Components with a drop-in or a unit of ours."""
        folder = self.root / "etc/systemd/system"
        return {c for c in tables.COMPONENTS if (folder / f"{c}.service.d").is_dir() or (folder / f"{c}.service").is_file()}

    def command(self, component: str) -> list[str]:
        return service(self.root, f"{component}.service", *BASES).words(self.root)[0]

    def programs(self, version: str, monkeypatch) -> dict[str, kubernetes.Program]:
        """What the stand-ins of this version make of it; each refusal of any of them is a failure."""
        monkeypatch.setattr(files, "ROOT", str(self.root))
        found, wrong = {}, []
        for component in sorted(self.units()):
            program, *words = self.command(component)
            assert program.rsplit("/", 1)[-1] == component
            try:
                found[component] = accepts(component, version, *words)
            except Refused as refused:
                wrong.append(f"{component}: {refused}\n    {' '.join(words)}")
        assert not wrong, "\n".join(wrong)
        return found


def meet(programs: dict[str, kubernetes.Program], role: str, made: Made):
    """Each client and its server verify each other, with the files that the tree has for them."""
    if role == "master":
        api = programs["kube-apiserver"]
        server = tls.server_context(api.certificate, api.client_ca)
        if f := api.flags.get("kubelet-client-certificate"):
            kubelet = programs["kubelet"]
            ca = api.flags.get("kubelet-certificate-authority")
            client = tls.client_context(files.at(ca) if ca else made_ca(made), files.at(f), files.at(api.flags.get("kubelet-client-key")))
            assert kubelet.certificate and (kubelet.client_ca or kubelet.minor < 5)  # before 1.5 it asks nobody who he is
            shown = handshake(tls.server_context(kubelet.certificate, kubelet.client_ca), client, "192.0.2.11")
            assert bool(shown) == bool(kubelet.client_ca)
    else:
        server = tls.server_context(tuple(map(str, made.pair("kubernetes", "/CN=api", "IP:192.0.2.17"))), made_ca(made))
    for name, program in programs.items():
        if name == "kube-apiserver":
            continue
        s = program.server
        shown = handshake(server, tls.client_context(s.ca, s.certificate, s.key), urlsplit(s.server).hostname)
        subject = [pair for group in shown["subject"] for pair in group]
        # The names that RBAC's own roles and the Node authorizer know (magnum-node.md 4.3).
        wanted = {"kubelet": [("organizationName", "system:nodes"), ("commonName", f"system:node:bay-{role}-0")]}
        if program.minor >= 6:
            assert set(wanted.get(name, [])) <= set(subject), f"{name} shows {subject}"


def made_ca(made: Made) -> str:
    return str(made.ca("kubernetes").certificate)


def check(programs: dict[str, kubernetes.Program], role: str, made: Made | None):
    """What no program can see alone; made where there is TLS."""
    tls = made is not None
    check_urls(programs, role, tls)
    if tls:
        meet(programs, role, made)


def check_urls(programs: dict[str, kubernetes.Program], role: str, tls: bool):
    assert set(programs) == COMPONENTS[role]
    kubelet = programs["kubelet"]
    assert bool(kubelet.document) == (kubelet.minor >= 10), "a configuration file from 1.10 on, flags alone before"
    clients = [p.server for name, p in programs.items() if name != "kube-apiserver" and p.server]
    urls = {s if isinstance(s, str) else s.server for s in clients}
    assert len(urls) == 1, urls
    url = urls.pop()
    assert url.startswith("https" if tls else "http:")
    if role == "master":
        port = int(url.rsplit(":", 1)[1])
        assert (port, tls) in {(p.number, p.tls) for p in programs["kube-apiserver"].ports}, url
        for name in ("kube-controller-manager", "kube-scheduler"):
            assert programs[name].ports, f"{name} has no port for its health"
    if tls:
        assert all(isinstance(s, files.Kubeconfig) and s.ca and (s.certificate or s.token) and not s.insecure for s in clients)
        assert not kubelet.anonymous or kubelet.minor < 5


@pytest.mark.parametrize("role", COMPONENTS)
@pytest.mark.parametrize("minor", MINORS)
def test_every_minor(tmp_path, made, service_account, monkeypatch, minor, role):
    tree = Tree(tmp_path / "root", document(minor, role, service_account), made)
    assert tree.wishes
    check(tree.programs(f"1.{minor}.3", monkeypatch), role, made)


@pytest.mark.parametrize("role", COMPONENTS)
@pytest.mark.parametrize("minor", [m for m in MINORS if m < 20])
def test_without_tls(tmp_path, made, service_account, monkeypatch, minor, role):
    more = dict(TLS_DISABLED="True", CERTIFICATES=None, KUBE_API_PORT="8080", KUBE_SERVICE_ACCOUNT_KEY=None,
                KUBE_SERVICE_ACCOUNT_PRIVATE_KEY=None)
    tree = Tree(tmp_path / "root", document(minor, role, service_account, **more), made)
    assert tree.wishes == 0
    check(tree.programs(f"1.{minor}.3", monkeypatch), role, None)


# One parameter that reaches flags, with the first minor that can honour it.
MORE = {
    "cloud": (2, TRUSTEE | {"CLOUD_PROVIDER_ENABLED": "True", "VOLUME_DRIVER": "cinder", "OCTAVIA_ENABLED": "True",
                            "REGION_NAME": "RegionOne",
                            "EXTERNAL_NETWORK_ID": "7d1f5f3e-0f0c-4a51-8b0f-9c7a0d2b6e11"}),
    "calico": (8, {"NETWORK_DRIVER": "calico", "CALICO_IPV4POOL": "10.200.0.0/16", "PODS_NETWORK_CIDR": "10.200.0.0/16"}),
    "admission": (2,
                  {"ADMISSION_CONTROL_LIST": "NamespaceLifecycle,LimitRanger,ServiceAccount,ResourceQuota,TaintNodesByCondition,Priority,"
                      "DefaultTolerationSeconds,DefaultStorageClass,StorageObjectInUseProtection,PersistentVolumeClaimResize,"
                      "MutatingAdmissionWebhook,ValidatingAdmissionWebhook,RuntimeClass"}),
    "labels": (6, {"NODE_LABELS": "disk=ssd,example.org/zone=a", "NODE_TAINTS": "dedicated=gpu:NoSchedule", "NODEGROUP_ROLE": "worker",
                   "NODEGROUP_NAME": "gpu"}),
    "options": (2, {"KUBELET_OPTIONS": "--v=4 --max-pods=50 --resolv-conf='/etc/a b'", "KUBEAPI_OPTIONS": "--event-ttl=2h --v=4",
                    "KUBEPROXY_OPTIONS": "--v=4",
                    "KUBECONTROLLER_OPTIONS": "--concurrent-deployment-syncs=7", "KUBESCHEDULER_OPTIONS": "--v=4"}),
    "containerd": (12, {"CONTAINER_RUNTIME": "containerd", "CONTAINERD_VERSION": "1.7.2"}),
    "cri-o": (12, {"CONTAINER_RUNTIME": "cri-o"}),
    "cri-dockerd": (24, {"CONTAINER_RUNTIME": "docker", "CONTAINERD_VERSION": None}),
    "kubelet": (2, {"STATIC_POD_URL": "http://192.0.2.9/pods.yaml", "SWAP": "allow", "SANDBOX_IMAGE": "mirror.example.org/pause:3.9",
                    "KUBE_RESERVED": "cpu=100m,memory=256Mi", "SYSTEM_RESERVED": "cpu=100m,memory=128Mi"}),
    "keystone": (11, TRUSTEE | {"KEYSTONE_AUTH_ENABLED": "True"}),
    "token": (12, {"BOOTSTRAP_TOKEN": "abcdef.0123456789abcdef"}),
    "signer": (2, {"CERT_MANAGER_API": "True"}),
    "vxlan": (2, {"FLANNEL_BACKEND": "vxlan", "FLANNEL_NETWORK_CIDR": "10.96.0.0/12", "FLANNEL_NETWORK_SUBNETLEN": "26"}),
}


@pytest.mark.parametrize("role", COMPONENTS)
@pytest.mark.parametrize("what, minor", [(what, m) for what, (first, _) in MORE.items() for m in TREES if m >= first])
def test_more_parameters(tmp_path, made, service_account, monkeypatch, what, minor, role):
    tree = Tree(tmp_path / "root", document(minor, role, service_account, **MORE[what][1]), made)
    programs = tree.programs(f"1.{minor}.3", monkeypatch)
    check(programs, role, made)
    if what == "options":
        kubelet = programs["kubelet"]
        assert kubelet.flags.get("v") == "4"
        assert (kubelet.flags.get("resolv-conf") or kubelet.document.get("resolvConf")) == "/etc/a b"
        assert (kubelet.flags.get("max-pods") or str(kubelet.document.get("maxPods"))) == "50"


@pytest.mark.parametrize("minor", [12, 20, tables.LAST])
def test_a_worker_joins_by_a_token(tmp_path, made, service_account, monkeypatch, minor):
    """The kubelet has nothing but the token and the CA; kube-proxy shows the certificate that the kubelet gets."""
    token = "abcdef.0123456789abcdef"
    tree = Tree(tmp_path / "root", document(minor, "minion", service_account, CERTIFICATES="bootstrap", BOOTSTRAP_TOKEN=token), made)
    assert not tree.wishes and token not in tree.said
    own = tree.root / "var/lib/kubelet/pki/kubelet-client-current.pem"
    own.parent.mkdir(parents=True)
    own.write_bytes(b"".join(path.read_bytes() for path in made.pair("kubernetes", "/O=system:nodes/CN=system:node:bay-minion-0", "DNS:bay-minion-0")))
    programs = tree.programs(f"1.{minor}.3", monkeypatch)
    assert programs["kubelet"].bootstrap.token == token
    assert programs["kube-proxy"].server.certificate


@pytest.mark.parametrize("role", COMPONENTS)
@pytest.mark.parametrize("minor, version", [(2, "0.5.6"), (4, "0.5.6"), (6, "0.7.1"), (9, "0.9.1")])
def test_flanneld(tmp_path, made, service_account, monkeypatch, minor, version, role):
    """flanneld of the time, where it runs as a unit; the network is what a master would put into etcd."""
    tree = Tree(tmp_path / "root", document(minor, role, service_account, FLANNEL_BACKEND="host-gw"), made)
    monkeypatch.setattr(files, "ROOT", str(tree.root))
    program, *words = tree.command("flanneld")
    assert program == "flanneld"
    taken = accepts("flanneld", version, *words)
    assert taken.flags.get("etcd-endpoints").startswith("https://") and taken.flags.get("iface")
    if role == "master":
        network = flannel.parse((tree.root / "etc/sysconfig/flannel-network.json").read_text(), tuple(map(int, version.split("."))))
        assert network.backend == "host-gw", network


@pytest.mark.parametrize("minor", [2, tables.LAST])
def test_as_programs(tmp_path, made, service_account, minor):
    """The same as it runs on a node: by the names on the units' command lines, each a process of its own."""
    version = f"1.{minor}.3"
    programs = install(tmp_path / "bin", version)
    for role in COMPONENTS:
        tree = Tree(tmp_path / role, document(minor, role, service_account), made)
        for component in tree.units():
            program, *words = tree.command(component)
            done = subprocess.run([programs / program.rsplit("/", 1)[-1], *words], capture_output=True, text=True, timeout=300, check=False,
                                  env={"PATH": "/usr/bin:/bin", "HNA_STAND_IN_CHECK": "1", "HNA_STAND_IN_ROOT": str(tree.root)})
            assert (done.returncode, done.stdout) == (0, "ok\n"), f"{component}: {done.stderr}"
