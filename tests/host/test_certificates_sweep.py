"""The agent is killed at every system call by which a node's certificates change: as they are made for the first time, and at each step
of a CA rotation. What is in place then belongs together, and the next run goes on with what there is.

The calls are listed by a run under strace; then each is a case of its own: strace kills the agent on entering that call (the kernel then
does not carry it out), what lies there is copied aside, and a fresh agent runs until all is in place. Kubernetes' programs are a sleep:
nobody waits for their health here."""
import collections
import hashlib
import re
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import padding
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key
from lib.cluster import KUBERNETES, RECORD, VERSION, Node, parameters
from lib.common import SET, TESTHOST
from lib.node import heard_out
from lib.sweep import chosen

IP, MASTER = "10.77.0.31", "10.77.0.21"
STATE = "/var/lib/heat-node-agent"
PAIRS = ("kubelet", "proxy")
# What changes a name. Between two of them nothing changes that anybody else could see.
CALLS = ("mkdirat", "renameat", "symlinkat", "unlinkat")
OURS = re.compile(rf"{KUBERNETES}|certificates\.json")
END = b"-----END CERTIFICATE-----"
ASLEEP = f'#!/bin/sh\ncase "$*" in *version*) echo Kubernetes v{VERSION};; *) exec sleep infinity;; esac\n'
# Succeeds once everything is as $1 says: words of a line for each pair and the CA, and nothing is in the making.
WHOLE = f"""#!/bin/sh
cd {KUBERNETES} 2>/dev/null && [ ! -e ..next ] && [ "$(ls -d ..set-* 2>/dev/null | wc -l)" = 1 ] || exit 1
for name in {' '.join(PAIRS)}; do [ -s $name.crt ] && [ -s $name.key ] || exit 1; done
[ "$(grep -c BEGIN ca.crt)" = "$(cut -d' ' -f1 /root/aim)" ] && grep -q "$(cut -d' ' -f2 /root/aim)" {RECORD} || exit 1
case "$(cut -d' ' -f3 /root/aim)" in
new) for name in {' '.join(PAIRS)}; do openssl verify -CAfile /root/new.crt $name.crt >/dev/null 2>&1 || exit 1; done;;
esac
"""
# An agent that is ended once all is in place; $@ is put before it. Prints "killed" if strace did it.
RUN = """#!/bin/bash
"$@" heat-node-agent run --once >/run/said 2>&1 & pid=$!
while kill -0 $pid 2>/dev/null; do
  if whole; then pkill -KILL -x heat-node-agent; echo whole; break; fi
  sleep 0.05
done
wait $pid; code=$?
[ $code = 137 ] || { echo "ended by itself with $code"; cat /run/said; journalctl -q -n 12 -o cat; }
"""
RESET = f"rm -rf {STATE} {KUBERNETES} /var/lib/heat-config /run/heat-config /run/heat-node-agent; [ ! -e /root/before ] || cp -a /root/before/. /"


class Seen:
    """Keys and certificates of a copy of the node's files."""

    def __init__(self, root: Path):
        folder, record = root / KUBERNETES.lstrip("/"), root / RECORD.lstrip("/")
        self.record = record.read_text() if record.exists() else ""
        self.left = [p.name for p in folder.glob("..*") if p.is_dir() and not p.is_symlink()]
        names = ["ca.crt", *(f"{name}.{end}" for name in PAIRS for end in ("crt", "key"))]
        self.files = {(name, place): loaded(folder / place / name) for name in names for place in ("", *self.left)}

    def at(self, name: str, folder: str = ""):
        """In use, or in a set."""
        return self.files[name, folder]

    def keys(self, name: str) -> set[str]:
        """Fingerprints of all keys that lie anywhere and that the record knows."""
        found = [self.at(f"{name}.key", folder) for folder in ("", *self.left)]
        return {one for one in (fingerprint(key.public_key()) for key in found if key) if one in self.record}

    def certified(self, name: str, ca: x509.Certificate) -> bool:
        """Whether a certificate of this CA for a key that lies there is anywhere."""
        found = [self.at(f"{name}.crt", folder) for folder in ("", *self.left)]
        return any(signed(one[0], ca) and fingerprint(one[0].public_key()) in self.keys(name) for one in found if one)

    def mistakes(self) -> list[str]:
        """In use: never a key beside another one's certificate, or one without any; never one that its CA did not sign."""
        wrong, cas = [], self.at("ca.crt") or []
        for name in PAIRS:
            key, chain = self.at(f"{name}.key"), self.at(f"{name}.crt")
            if key and not chain:
                wrong.append(f"{name}: a key without its certificate")
            if key and chain and fingerprint(key.public_key()) != fingerprint(chain[0].public_key()):
                wrong.append(f"{name}: a key beside another one's certificate")
            if chain and not any(signed(chain[0], one) for one in cas):
                wrong.append(f"{name}: no CA in place signed it")
        return wrong


def loaded(path: Path):
    """The key, or the certificates."""
    if not path.exists():
        return None
    data = path.read_bytes()
    if path.suffix == ".key":
        return load_pem_private_key(data, None)
    return [x509.load_pem_x509_certificate(one + END) for one in data.split(END)[:-1]]


def fingerprint(public) -> str:
    return hashlib.sha256(public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()


def signed(certificate: x509.Certificate, ca: x509.Certificate) -> bool:
    try:
        ca.public_key().verify(certificate.signature, certificate.tbs_certificate_bytes, padding.PKCS1v15(),
                                      certificate.signature_hash_algorithm)
        return True
    except InvalidSignature:
        return False


def ordinals(trace: str) -> dict[str, list[int]]:
    """For each call its numbers, among all of its name, that change something of certificates; strace counts each thread for itself."""
    counts: collections.Counter = collections.Counter()
    found: dict[str, list[int]] = collections.defaultdict(list)
    first = trace.split(maxsplit=1)[0]
    for line in trace.splitlines():
        match = re.match(r"(\d+) +(\w+)\(", line)
        if match and match[1] == first:
            counts[match[2]] += 1
            if OURS.search(line) and " = -1 " not in line:
                found[match[2]].append(counts[match[2]])
    return found


class Sweep:
    def __init__(self, node: Node, magnum):
        self.node, self.host, self.magnum = node, node.host, magnum
        self.cut = TESTHOST / SET / "run" / node.host.name / "root/root/cut"  # /run is a file system of the host's own

    def ca(self) -> x509.Certificate:
        return x509.load_pem_x509_certificate(self.magnum.cas()["kubernetes"].read_bytes())

    def run(self, *prefix: str) -> str:
        return self.host.exec("/usr/local/bin/run-until-whole", *prefix).stdout

    def copy(self) -> Seen:
        self.host.sh(f"rm -rf /root/cut; mkdir /root/cut; cp -a --parents {KUBERNETES} /root/cut/ 2>/dev/null || :; "
                     f"cp -a --parents {RECORD} /root/cut/ 2>/dev/null || :")
        return Seen(self.cut)

    def stage(self, aim: str, **inputs) -> tuple[list[str], int]:
        """Every kill on the way from /root/before to the aim; then that is the next one's before."""
        self.node.publish("UPDATE", **inputs)
        self.host.write("/root/aim", aim)
        self.host.sh(RESET)
        said = self.run()  # everything else is in place then
        assert "whole" in said, said
        self.host.sh(RESET)
        said = self.run("strace", "-f", "-qq", "-y", "-o", "/root/calls", "-e", f"trace={','.join(CALLS)}")
        assert "whole" in said, said
        calls = ordinals(self.host.read("/root/calls"))
        wrong = [f"{aim}: {m}" for m in self.copy().mistakes()]
        kills, points = 0, chosen([(call, number) for call, numbers in sorted(calls.items()) for number in numbers])
        for call, number in points:
            problems, killed = self.case(call, number)
            kills += killed
            wrong += [f"{aim}, killed at {call} no. {number}: {p}" for p in problems]
        # Which answer comes first varies, and with it the calls' numbers; and how often the status page is written follows the load.
        assert kills >= 0.5 * len(points) > 0, f"{aim}: {kills} kills of {points} of {dict(calls)}"
        self.host.sh(RESET)
        said = self.run()
        assert "whole" in said, "\n".join([*wrong, said])
        self.host.sh(f"rm -rf /root/before; mkdir /root/before; cp -a --parents {KUBERNETES} {STATE} /root/before/")
        return wrong, kills

    def case(self, call: str, number: int) -> tuple[list[str], bool]:
        self.host.sh(RESET)
        said = self.run("strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={call}", "-e", f"inject={call}:signal=KILL:when={number}")
        if "whole" in said:
            return [], False
        cut = self.copy()
        wrong = [f"at the cut: {m}" for m in cut.mistakes()]
        heard_out(self.magnum)
        self.magnum.forget()
        said = self.run()
        if "whole" not in said:
            return [*wrong, f"it does not recover: {said} {self.host.sh('ls -lR ' + KUBERNETES, check=False)}"], True
        after = self.copy()
        wrong += [f"afterwards: {m}" for m in after.mistakes()]
        new, missing = self.ca(), 0
        for name in PAIRS:
            good = cut.keys(name)  # also those from before the change
            if good and not after.keys(name) & good:
                wrong.append(f"{name}: another key, although one was good")
            old = after.at(f"{name}.crt")
            missing += bool(old) and signed(old[0], new) and not cut.certified(name, new)
        if (count := self.magnum.count()["signed"]) > missing:
            wrong.append(f"{count} certificates signed again, where {missing} were missing")
        return wrong, True


def test_a_kill_at_any_call_leaves_certificates_that_belong_together(hosts, signal_server, magnum):
    server = magnum()
    host = hosts("w1", ip=IP)
    node = Node(host, signal_server(), parameters("worker", "w1", IP, MASTER, KUBELET_OPTIONS="--register-node=false", **server.parameters()))  # no API is there
    host.install_agent()
    cfn = node.server.settings()["cfn"]
    host.write("/etc/os-collect-config.conf", "[cfn]\n" + "".join(f"{k} = {v}\n" for k, v in cfn.items()), 0o600)
    host.write("/etc/heat-node-agent/agent.toml", "[sources]\ntimeout = 60\n")
    simple = b"[Service]\nType=simple\n"
    host.put({"/usr/local/bin/kubelet": (ASLEEP.encode(), 0o755), "/usr/local/bin/kube-proxy": (ASLEEP.encode(), 0o755),
              "/usr/local/bin/whole": (WHOLE.encode(), 0o755), "/usr/local/bin/run-until-whole": (RUN.encode(), 0o755),
              **{f"/etc/systemd/system/{unit}.service.d/simple.conf": (simple, 0o644) for unit in ("kubelet", "kube-proxy", "containerd")}})
    host.sh("ln -sf kubelet /usr/local/bin/containerd; systemctl daemon-reload")
    sweep = Sweep(node, server)
    wrong, counts = [], {}

    def stage(name: str, aim: str, **inputs):
        problems, counts[name] = sweep.stage(aim, **inputs)
        wrong.extend(problems)
    stage("issue", "1 keys old")
    server.rotate()
    host.write("/root/new.crt", server.cas()["kubernetes"].read_text())
    stage("trust both", "2 trust-both old", NODE_LABELS="step=1")
    stage("switch", "2 switch new", CA_ROTATION="switch")
    stage("drop the old", "1 keys new", CA_ROTATION="drop-old")
    print("kills: " + ", ".join(f"{name} {count}" for name, count in counts.items()))
    assert not wrong, "\n".join(wrong)
