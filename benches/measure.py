#!/usr/bin/python3
"""Prints a table of what the release build costs on a throw-away host, beside its budgets (design: Budgets).

    benches/measure.py        as root; builds nothing: image-build/build first

Not a test: machines are noisy. Ratios and sizes are what to look at.
"""
import statistics
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO / "tests"))

from lib import hosts as host_module  # noqa: E402
from lib.common import GATEWAY, wait_for  # noqa: E402
from lib.hosts import Host, agent_binary  # noqa: E402
from lib.signal_server import SignalServer  # noqa: E402

IP = "10.77.0.11"
VDB, VDC = "7c1f4d0e-93a2-4b86-8d55-2f60c6b1a9e4", "e41b7f92-0c6d-4f0a-b1d7-58a2f3c9d610"
NODE = {"ROLE": "master", "INSTANCE_NAME": "node-1", "KUBE_NODE_IP": IP, "CLUSTER_UUID": "5f1c3a52-8d0e-4c61-9b0e-2f6f6e1d7a10",
        "TLS_DISABLED": "True", "DOCKER_VOLUME": VDB, "ETCD_VOLUME": VDC, "WAIT_TIMEOUT": 600}

# Seconds after which threads that found nothing more to do have ended.
SETTLES = 15


def pid(host: Host) -> str:
    return host.show("heat-node-agent.service", "MainPID")["MainPID"]


def memory(host: Host) -> tuple[int, int]:
    """RSS and PSS in kB."""
    lines = dict(line.split(":", 1) for line in host.read(f"/proc/{pid(host)}/smaps_rollup").splitlines()[1:])
    return int(lines["Rss"].split()[0]), int(lines["Pss"].split()[0])


def cpu_ms(host: Host) -> float:
    """Time on a processor so far, of threads that have ended too."""
    return int(host.show("heat-node-agent.service", "CPUUsageNSec")["CPUUsageNSec"]) / 1e6


@contextmanager
def master(binary: Path):
    """A host with the agent of this file, its volumes, and a server that it polls; nothing is started."""
    host_module.prepare()
    Host.down_all()
    host_module.lab_up(address=f"{GATEWAY}/24")
    host = Host("n1")
    with tempfile.TemporaryDirectory() as folder:
        server = SignalServer(Path(folder)).start()
        try:
            host.up(ip=IP, volumes={"vdb": ("2G", VDB), "vdc": ("1G", VDC)})
            host.install_agent(binary)
            cfn = server.settings()["cfn"]
            host.write("/etc/os-collect-config.conf", "[cfn]\n" + "".join(f"{k} = {v}\n" for k, v in cfn.items()), 0o600)
            yield host, server
        finally:
            host.down()
            server.stop()
            host_module.lab_down()


def deploy(server: SignalServer):
    """The node, and a script."""
    server.deploy(server.deployment("node", group="kubernetes-node", inputs=NODE), server.deployment("s", config="#!/bin/sh\necho x\n"))


def first_request(host: Host, server: SignalServer) -> list[float]:
    """Milliseconds from exec to the request at the server."""
    took = []
    for _ in range(9):
        server.forget()
        began = float(host.sh("rm -rf /tmp/state; date +%s.%N; exec heat-node-agent run --once --state /tmp/state 2>/dev/null; :").split()[0])
        took.append((server.polls()[0].time - began) * 1000)
    return took


def passes(host: Host, server: SignalServer, count: int = 20) -> float:
    """CPU milliseconds of a poll that brings nothing new, with the look at the node that follows."""
    before, polls = cpu_ms(host), len(server.polls())
    for n in range(1, count + 1):
        host.exec("systemctl", "kill", "-s", "HUP", "heat-node-agent.service")
        wait_for(lambda: len(server.polls()) >= polls + n, 30)
        time.sleep(0.3)  # the look at the node comes after the answer
    return (cpu_ms(host) - before) / (len(server.polls()) - polls)


def main():
    rows = []
    binary = agent_binary()
    rows.append(("file", f"{binary.stat().st_size / 1e6:.2f} MB", "8 MB"))
    with master(binary) as (host, server):
        took = first_request(host, server)
        rows.append(("exec to first request", f"{min(took):.1f} ms (median {statistics.median(took):.1f})", "15 ms"))
        deploy(server)
        began = time.time()
        host.exec("systemctl", "enable", "--now", "heat-node-agent.service")
        signal = wait_for(lambda: server.signals("node", accepted=True), 120)[0]
        rows.append(("start to a healthy node's signal", f"{signal.time - began:.2f} s", "-"))
        rows.append(("a pass in which nothing changed", f"{passes(host, server):.2f} ms CPU", "5 ms"))
        time.sleep(SETTLES)
        rss, pss = memory(host)
        rows.append(("idle RSS", f"{rss / 1024:.1f} MiB", "8 MiB"))
        rows.append(("idle PSS", f"{pss / 1024:.1f} MiB", "6.5 MiB"))
        began = time.monotonic()
        host.exec("systemctl", "stop", "heat-node-agent.service")
        rows.append(("SIGTERM to exit (with systemctl)", f"{time.monotonic() - began:.2f} s", "1 s"))
    for name, value, budget in rows:
        print(f"{name:36} {value:32} {budget}")


if __name__ == "__main__":
    sys.exit(main())
