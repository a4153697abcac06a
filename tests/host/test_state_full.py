"""A node whose state directory is full: Heat hears of its failures all the same, once, and within the time that it waits."""
import time

from lib.common import wait_for
from lib.node import IP, NODE, SIGNALLED, VDB, ask, ended, signalled, start

STATE = "/var/lib/heat-node-agent"
# What docker's unit does not start with.
PROXY = "http://192.0.2.66:3128"
TRAP = "[Unit]\nStartLimitIntervalSec=0\n[Service]\nExecStartPre=/bin/sh -c '! env | grep -q 192.0.2.66'\n"
# A master's etcd is another test's matter.
WORKER = {name: value for name, value in NODE.items() if name != "ETCD_VOLUME"} | {"WAIT_TIMEOUT": 120}


def fill(host):
    host.sh(f"dd if=/dev/zero of={STATE}/filler bs=1k status=none 2>/dev/null || :")


def make_room(host):
    host.remove(f"{STATE}/filler")


def shows(host, words: str):
    wait_for(lambda: words in " ".join(host.exec("heat-node-agent", "status", check=False).stdout.split()), SIGNALLED, f"{words} in status")


def test_heat_hears_of_a_node_that_fails_while_the_state_directory_is_full(hosts, signal_server):
    server, host = signal_server(), hosts("n1", ip=IP, volumes={"vdb": ("1G", VDB)})
    host.sh(f"mkdir -p {STATE} /etc/systemd/system/docker.service.d; mount -t tmpfs -o size=4M,mode=700 tmpfs {STATE}")
    host.write("/etc/systemd/system/docker.service.d/99-trap.conf", TRAP)
    host.exec("systemctl", "daemon-reload")
    server.deploy(server.deployment("node", group="kubernetes-node", inputs=WORKER))
    start(host, server, "polling_interval = 5\nmin_polling_interval = 5\n")
    assert ended(server) == ""

    # An update that could not even be begun: Heat hears that before it gives up.
    fill(host)
    asked = time.monotonic()
    ask(host, server, WORKER | {"NO_PROXY": "one.example"})
    reason = signalled(server, "node")["deploy_status_code"]
    assert "could not be begun" in reason and "no space is left" in reason and "df -h" in reason, reason
    assert time.monotonic() - asked < WORKER["WAIT_TIMEOUT"], "Heat had given up"
    make_room(host)
    shows(host, "FAILED")
    assert len(server.signals("node")) == 1
    ask(host, server, WORKER | {"NO_PROXY": "two.example"})
    assert ended(server) == ""

    # One that fails while the end cannot be recorded.
    ask(host, server, WORKER | {"HTTP_PROXY": PROXY})
    shows(host, "WAITING for")
    fill(host)
    reason = signalled(server, "node")["deploy_status_code"]
    assert "docker.service" in reason, reason
    make_room(host)
    shows(host, "FAILED")
    assert len(server.signals("node")) == 1
    ask(host, server, WORKER | {"NO_PROXY": "three.example"})
    assert ended(server) == ""
    shows(host, "READY")
