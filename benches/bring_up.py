#!/usr/bin/python3
"""Makes the tables of docs/bring-up.md: from metadata to signal, beside the same units started by hand.

    benches/bring_up.py [ROUNDS]    as root, 3 rounds if not said; builds nothing: image-build/build first

Each round boots a host, lets the agent bring it up from nothing, then stops all units and starts them again twice: by the agent, and
by a script that knows the order. Not a test: machines are noisy. Ratios are what to look at.
"""
import json
import os
import statistics
import sys
import tempfile
import time
import uuid
from pathlib import Path

# Hosts and a network of its own: it may run beside tests.
os.environ.update(HNA_TEST_SET="bench", HB_LAB="bench", HB_IP="10.76.0.1")
REPO = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO / "tests"))

from lib import hosts as host_module  # noqa: E402
from lib import stand_ins  # noqa: E402
from lib.common import GATEWAY, wait_for  # noqa: E402
from lib.hosts import Host  # noqa: E402
from lib.magnum import Magnum  # noqa: E402
from lib.node import start  # noqa: E402
from lib.signal_server import SignalServer  # noqa: E402

PAGE, FROM_HERE = REPO / "docs/bring-up.md", "<!-- Made by benches/bring_up.py. -->\n"
IP, NAME = "10.76.0.11", "bench-master"
KUBERNETES, FLANNEL = "1.31.4", "0.20.2"
REAL = {"ROLE": "master", "INSTANCE_NAME": NAME, "KUBE_NODE_IP": IP, "WAIT_TIMEOUT": 600}
PLAIN = REAL | {"TLS_DISABLED": "True"}
WHOLE = REAL | {"KUBE_TAG": f"v{KUBERNETES}", "KUBE_API_PRIVATE_ADDRESS": IP, "CONTAINER_RUNTIME": "containerd", "CONTAINERD_VERSION": "1.6.20",
                "FLANNEL_RUNS_AS": "unit", "FLANNEL_TAG": f"v{FLANNEL}"}
# The same units in the order of what they need, side by side where they need nothing of each other, each until it answers as
# the agent's gates ask it.
READY = """
set -eu
began=${EPOCHREALTIME/./}
trap 'echo $((${EPOCHREALTIME/./} - began))' EXIT
ready() { until "$@" >/dev/null 2>&1; do sleep 0.02; done; }
"""
BY_HAND = {
    "etcd and docker": READY + f"""
(systemctl start docker; ready curl -sf --unix-socket /run/docker.sock http://localhost/_ping) &
systemctl start etcd; ready curl -sf http://{IP}:2379/health
wait""",
    "the whole master": READY + f"""
pair() {{ echo --cacert $1/ca.crt --cert $1/admin.crt --key $1/admin.key; }}
etcd=$(pair /etc/etcd/certs) api=$(pair /etc/kubernetes/certs)
one() {{ systemctl start $1; shift; ready curl -sf "$@"; }}
systemctl start containerd & runtime=$!
one etcd $etcd https://{IP}:2379/health
(systemctl start flanneld; systemctl start heat-node-pod-network) &
one kube-apiserver $api https://{IP}:6443/healthz
one kube-controller-manager -k https://127.0.0.1:10257/healthz &
one kube-scheduler -k https://127.0.0.1:10259/healthz &
one kube-proxy http://127.0.0.1:10249/healthz &
wait $runtime
one kubelet http://127.0.0.1:10248/healthz
ready curl -sf $api https://{IP}:6443/api/v1/nodes/{NAME}
wait""",
}
WAYS = {"first": "from nothing", "again": "again", "hand": "by hand"}
STOP = ["kubelet", "kube-proxy", "kube-scheduler", "kube-controller-manager", "kube-apiserver", "heat-node-pod-network", "flanneld",
        "docker.socket", "docker", "containerd", "etcd"]


class Round:
    """One host, brought up three times."""

    def __init__(self, shape: str, folder: Path, port: int):
        self.shape = shape
        self.server = SignalServer(folder / "signals", port=port)
        self.magnum = Magnum(folder / "magnum", port=port + 100)
        self.volumes = [str(uuid.uuid4()) for _ in range(2)]
        self.inputs = (PLAIN if shape == "etcd and docker" else WHOLE) | dict(
            zip(("DOCKER_VOLUME", "ETCD_VOLUME"), self.volumes, strict=True), CLUSTER_UUID=str(uuid.uuid4()))

    def run(self) -> dict[str, float]:
        self.host = Host("bench")
        self.server.start()
        try:
            if self.shape != "etcd and docker":
                self.inputs |= self.magnum.start().parameters()
            self.host.up(ip=IP, gateway=GATEWAY, volumes={"vdb": ("2G", self.volumes[0]), "vdc": ("1G", self.volumes[1])})
            stand_ins.into(self.host, KUBERNETES, f"flanneld={FLANNEL}")
            start(self.host, self.server)
            self.until("waits for metadata", lambda: self.server.polls())
            first = self.measured()
            steps = json.loads(self.host.exec("heat-node-agent", "status", "--json", check=False).stdout)["node"]["timings"]
            self.host.exec("systemctl", "stop", "heat-node-agent")
            self.stop()
            hand = self.by_hand()
            self.stop()
            again = self.measured(WAIT_TIMEOUT=601)
            return {"first": first, "again": again, "hand": hand, "steps": dict(map(tuple, steps))}
        finally:
            self.server.stop()
            self.magnum.stop()
            self.host.down()

    def measured(self, **changes) -> float:
        """From the answer that has the deployment to its signal, on the server's clock."""
        server = self.server
        self.inputs |= changes
        server.document["deployments"] = [server.deployment("node", group="kubernetes-node", inputs=self.inputs)]
        server.publish()
        since = time.time()
        if self.host.is_active("heat-node-agent.service"):
            self.host.exec("systemctl", "kill", "-s", "HUP", "heat-node-agent.service")
        else:
            self.host.exec("systemctl", "start", "heat-node-agent.service")
        [heard, *_] = self.until("its signal", lambda: [s for s in server.signals("node", accepted=True) if s.time > since])
        if str(heard.json()["deploy_status_code"]) != "0":
            raise RuntimeError(heard.body.decode())
        return heard.time - next(poll.time for poll in server.polls() if poll.time > since)

    def by_hand(self) -> float:
        """On the host's clock."""
        self.host.write("/root/by-hand", BY_HAND[self.shape])
        return int(self.host.exec("timeout", "300", "bash", "/root/by-hand").stdout) / 1e6

    def stop(self):
        self.host.exec("systemctl", "stop", *STOP, check=False)

    @staticmethod
    def until(what: str, condition):
        return wait_for(condition, 300, what, every=0.05)


def row(*cells) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def table(shapes: dict[str, list[dict]]) -> str:
    lines = [row("the master is", *(f"{WAYS[way]}, s" for way in WAYS), *(f"{WAYS[way]} / by hand" for way in ("first", "again"))),
             "|---|--:|--:|--:|--:|--:|"]
    for shape, rounds in shapes.items():
        # Of each round its own ratio: what disturbs the machine lasts longer than a round.
        seconds = [f"{statistics.median(r[way] for r in rounds):.1f}" for way in WAYS]
        ratios = [f"{statistics.median(r[way] / r['hand'] for r in rounds):.2f}" for way in ("first", "again")]
        lines.append(row(shape, *seconds, *ratios))
    return "\n".join(lines) + "\n"


def longest(rounds: list[dict], count: int = 10) -> str:
    """The steps of the round in the middle that took longest."""
    steps = sorted(rounds, key=lambda r: r["first"])[len(rounds) // 2]["steps"]
    found = sorted(((ms, step) for step, ms in steps.items() if step != "total"), reverse=True)[:count]
    return "\n".join([row("step", "ms"), "|---|--:|", *(row(f"`{step}`", ms) for ms, step in found)]) + "\n"


def main() -> int:
    rounds = int(sys.argv[1]) if sys.argv[1:] else 3
    host_module.prepare()
    Host.down_all()
    host_module.lab_up(address=f"{GATEWAY}/24")
    shapes: dict[str, list[dict]] = {shape: [] for shape in BY_HAND}
    try:
        for number in range(rounds):
            for at, (shape, found) in enumerate(shapes.items()):
                with tempfile.TemporaryDirectory() as folder:
                    found.append(Round(shape, Path(folder), 18000 + 2 * number + at).run())
                print(shape, {k: round(v, 2) for k, v in found[-1].items() if k != "steps"}, flush=True)
    finally:
        Host.down_all()
        host_module.lab_down()
    whole = list(shapes)[-1]
    made = "\n".join([f"Medians of {rounds} rounds.", "", table(shapes),
                      f"The longest steps of {whole}, from nothing, many of them side by side:", "", longest(shapes[whole])])
    PAGE.write_text(PAGE.read_text().split(FROM_HERE)[0] + FROM_HERE + "\n" + made)
    print(made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
