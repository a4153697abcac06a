"""A node in place that others change: what differs is reported, with DRIFT=repair repaired once, and left to another tool that does it again."""
import json
import time
from contextlib import contextmanager

import pytest
from lib.common import GATEWAY
from lib.node import UNIT, VDB, ask, bring_up, ended, is_steady

IP = GATEWAY.rsplit(".", 1)[0] + ".11"
NODE = {"ROLE": "master", "INSTANCE_NAME": "node-1", "KUBE_NODE_IP": IP, "CLUSTER_UUID": "5f1c3a52-8d0e-4c61-9b0e-2f6f6e1d7a10",
        "TLS_DISABLED": "True", "DOCKER_VOLUME": VDB, "WAIT_TIMEOUT": 600}
ETCD = "/etc/etcd/etcd.conf"
DOCKER = "/etc/docker/daemon.json"
FOLDER = "/etc/systemd/system/etcd.service.d"
OURS = f"{FOLDER}/50-heat-node-agent.conf"
THEIRS = f"{FOLDER}/99-mine.conf"


class Drifting:
    def __init__(self, host, server):
        self.host, self.server, self.files = host, server, {}

    def update(self, **more):
        ask(self.host, self.server, NODE | more)
        assert ended(self.server) == ""

    def events(self, name: str) -> list[str]:
        return [e["HNA_CAUSE"] for e in self.host.journal(HNA_EVENT=name)]

    def look(self, event: str = "NodeDrift", after: str = "") -> str:
        """What the next agent tells at its first look, after somebody did this: it folds nothing that another one said."""
        self.host.exec("systemctl", "stop", UNIT)
        # What it had still to say is in the journal by now.
        before = len(self.events(event))
        self.host.sh(after)
        self.host.exec("systemctl", "start", UNIT)
        self.host.wait_for(lambda: len(self.events(event)) > before, what=event)
        return self.events(event)[before]

    def shows_it(self):
        """The status page follows what the journal has."""
        self.host.wait_for(lambda: self.host.exec("heat-node-agent", "status", check=False).returncode == 2, what="drift on the status page")

    def runs(self, *units: str) -> dict[str, str]:
        return {unit: self.host.show(unit, "InvocationID")["InvocationID"] for unit in units or ("etcd.service", "docker.service")}

    def record(self) -> dict:
        return json.loads(self.host.read("/var/lib/heat-node-agent/drift.json"))

    @contextmanager
    def puts_back(self, *units: str):
        """What is done here to the node is put back, which is remembered; these are the units that it restarts."""
        before, remembered = self.runs(), self.record()
        yield
        self.host.wait_for(lambda: self.record() != remembered, what="the memory of a repair")
        assert self.host.sha256(*self.files) == self.files
        now = self.runs()
        assert {u.removesuffix(".service") for u in now if now[u] != before[u]} == set(units)


@pytest.mark.longer
def test_what_keeps_a_repair_from_its_end_is_seen_meanwhile(hosts, signal_server):
    host = hosts("n1", ip=IP, volumes={"vdb": ("512M", VDB)})
    node = Drifting(host, signal_server())
    bring_up(host, node.server, NODE | {"WAIT_TIMEOUT": 900})
    assert ended(node.server) == ""
    host.wait_for(lambda: is_steady(host), what="a steady node")
    host.sh(f"{theirs(ETCD)}; printf '[Service]\\nExecStartPre=/bin/false\\n' >{THEIRS}; systemctl daemon-reload")
    repair = host.popen("heat-node-agent", "repair")
    host.wait_for(lambda: host.show("etcd.service", "NRestarts")["NRestarts"] != "0", what="an etcd that does not start")
    status = lambda: json.loads(host.read("/run/heat-node-agent/status.json"))["node"]["components"]
    host.wait_for(lambda: [one["state"] for one in status() if one["name"] == "etcd"] == ["failed"], what="an etcd that failed in status")
    assert repair.poll() is None, "it is still being repaired"
    assert host.exec("heat-node-agent", "status", check=False).returncode == 2
    host.sh(f"rm {THEIRS}; systemctl daemon-reload")
    assert repair.wait(300) == 0
    host.wait_for(lambda: host.exec("heat-node-agent", "status", check=False).returncode == 0, what="READY")


def theirs(path: str, line: str = "# theirs") -> str:
    return f"echo '{line}' >>{path}"


def test_drift_is_reported_and_put_back_once(hosts, signal_server):
    server = signal_server()
    host = hosts("n1", ip=IP, volumes={"vdb": ("1G", VDB)})
    node = Drifting(host, server)
    assert bring_up(host, server, NODE) == ""
    node.files = host.sha256(ETCD, DOCKER, OURS)
    reported_and_not_touched(node)
    put_back_by_order(node)
    put_right_by_a_deployment(node)
    put_back_once_for_each_cause(node)
    a_stopped_unit_comes_back_once(node)
    a_unit_that_dies_of_a_changed_file_gets_it_back(node)
    nothing_is_put_back_after_a_failed_update(node)


def test_an_update_that_changed_nothing_leaves_a_node_that_is_looked_after_also_where_the_agent_was_restarted_in_it(hosts, signal_server):
    """It waits for a disk that never comes. Whether it had changed the node when it was resumed is on disk."""
    server = signal_server()
    host = hosts("n1", ip=IP, volumes={"vdb": ("1G", VDB)})
    there = NODE | {"DRIFT": "repair"}
    assert bring_up(host, server, there) == ""
    server.forget()
    ask(host, server, there | {"ETCD_VOLUME": "e41b7f92-0c6d-4f0a-b1d7-58a2f3c9d610", "WAIT_TIMEOUT": 60})
    assert host.reported("VolumeWaiting")
    host.exec("systemctl", "restart", UNIT)
    assert "e41b7f92" in ended(server)
    host.exec("rm", ETCD)
    host.wait_for(lambda: host.exists(ETCD), what="the repair of the node as it was before the update")
    assert json.loads(host.read("/var/lib/heat-node-agent/node.json"))["touched"] is False


def test_status_claims_only_what_this_run_of_the_agent_has_seen(hosts, signal_server):
    host = hosts("n1", ip=IP, volumes={"vdb": ("512M", VDB)})
    assert bring_up(host, signal_server(), NODE) == ""
    shows(host, "READY")
    for spoil, mend, shown in (
        ("systemctl stop docker.service", "systemctl start docker.service", "DEGRADED: docker not running"),
        (f"cp -a {ETCD} /tmp/kept; {theirs(ETCD)}", f"cp -a /tmp/kept {ETCD}; systemctl reload {UNIT}", "DEGRADED: the node differs"),
    ):
        host.sh(spoil)
        said = said_after_a_restart(host, shown)
        assert not [line for line in said if line.startswith("READY")], said
        host.sh(mend)
        shows(host, "READY")
    began = time.monotonic()
    said_after_a_restart(host, "READY")
    print(f"READY {time.monotonic() - began:.1f} s after a restart of the agent")
    the_daemon_cannot_write_its_status(host)


def shows(host, line: str):
    host.wait_for(lambda: host.exec("heat-node-agent", "status", check=False).stdout.startswith(line), 90, line)


def said_after_a_restart(host, until: str) -> set[str]:
    """The first lines of status until one begins so. What the agent said before it was stopped is not its own."""
    said = host.sh(f"systemctl restart {UNIT}; for i in $(seq 400); do line=$(heat-node-agent status | head -n 1) || :; echo \"$line\"; "
                   f"case $line in '{until}'*) exit;; esac; sleep 0.05; done; exit 1")
    print(said)
    return set(said.splitlines())


def the_daemon_cannot_write_its_status(host):
    """/run is full, before it starts and while it runs; a directory is in the file's place."""
    place = "/run/heat-node-agent"
    full = "FAILED the agent's own work: it runs, but has not written its status"
    host.sh(f"systemctl stop {UNIT}; mount -t tmpfs -o size=64k,mode=755 tmpfs {place}; head -c 1M /dev/zero >{place}/fill || :; systemctl start {UNIT}")
    shows(host, full)
    page = host.exec("heat-node-agent", "status", check=False)
    assert page.returncode == 2 and "systemctl start" not in page.stdout and f"df -h {place}" in page.stdout, page
    assert host.exec("heat-node-agent", "status", "--wait=0", check=False).returncode == 75
    host.remove(f"{place}/fill")
    shows(host, "READY")
    # What it wrote last is given up first, which leaves room for what is so now.
    host.sh(f"head -c 1M /dev/zero >{place}/fill || :; systemctl stop etcd.service")
    shows(host, "DEGRADED: etcd not running")
    host.sh(f"rm {place}/fill; systemctl start etcd.service")
    shows(host, "READY")
    host.sh(f"systemctl stop {UNIT}; rm {place}/status.json; mkdir -p {place}/status.json/x; systemctl start {UNIT}")
    shows(host, "READY")


def reported_and_not_touched(node: Drifting):
    host, before = node.host, node.runs()
    output = node.look(after=f"{theirs(ETCD)}; rm {OURS}; printf '[Service]\\nNice=1\\n' >{THEIRS}; systemctl disable -q etcd; "
                           "systemctl mask -q --runtime docker")
    for words in (f"{ETCD} differs", f"{OURS} is gone", f"{THEIRS} was added", "etcd.service is not enabled", "docker.service is masked",
                  "/run/systemd/system/docker.service was added"):
        assert words in output, output
    assert node.runs() == before and not host.exists(OURS)
    node.shows_it()
    assert not node.events("DriftNotRepaired")


def put_back_by_order(node: Drifting):
    """With DRIFT=report too; then spoiled again."""
    host = node.host
    host.sh("systemctl unmask -q --runtime docker; systemctl daemon-reload")
    dry = host.exec("heat-node-agent", "repair", "--dry-run", check=False)
    assert dry.returncode == 2 and f"would be put back: {ETCD} differs\n" in dry.stdout, dry
    assert f"would be left alone: {THEIRS} was added\n" in dry.stdout and host.sha256(ETCD)[ETCD] != node.files[ETCD]
    output = host.exec("heat-node-agent", "repair").stdout
    assert f"put back: {ETCD} differs\n" in output and f"left alone: {THEIRS} was added\n" in output, output
    assert host.sha256(*node.files) == node.files
    assert host.show("etcd.service", "UnitFileState")["UnitFileState"] == "enabled"
    assert host.exec("heat-node-agent", "repair", "--dry-run").stdout == f"would be left alone: {THEIRS} was added\n"
    host.sh(f"{theirs(ETCD)}; rm {OURS}; systemctl disable -q etcd")


def put_right_by_a_deployment(node: Drifting):
    """What is ours is put right; what was added is taken as it is."""
    host = node.host
    host.sh("systemctl unmask -q --runtime docker; systemctl daemon-reload")
    node.update(DRIFT="repair")
    assert host.sha256(*node.files) == node.files and host.exists(THEIRS)
    assert host.show("etcd.service", "UnitFileState")["UnitFileState"] == "enabled"


def put_back_once_for_each_cause(node: Drifting):
    host, files = node.host, node.files
    with node.puts_back("etcd"):
        assert THEIRS not in node.look(after=theirs(ETCD))
    # Another cause, beside the same one again: only the new one is put back.
    before, remembered = node.runs(), node.record()
    held = node.look("DriftNotRepaired", f"{theirs(ETCD)}; {theirs(DOCKER, '')}")
    assert f"{ETCD} differs" in held and DOCKER not in held
    host.wait_for(lambda: node.record() != remembered, what="the memory of a repair")
    assert host.sha256(DOCKER)[DOCKER] == files[DOCKER]
    now = node.runs()
    assert now["etcd.service"] == before["etcd.service"] and now["docker.service"] != before["docker.service"]
    assert host.sha256(ETCD)[ETCD] != files[ETCD]
    # Looked at again, by agents that start with nothing but the record: held each time.
    for _ in range(3):
        assert f"{ETCD} differs" in node.look("DriftNotRepaired")
    assert node.runs() == now
    node.shows_it()
    entry = host.journal(HNA_EVENT="DriftNotRepaired")[-1]
    assert entry["HNA_CODE"] == "HNA-0513" and "configuration management" in entry["HNA_REMEDY"]
    # Another content of the same file is a new cause.
    with node.puts_back("etcd"):
        node.look(after=theirs(ETCD, "# and more"))


def a_stopped_unit_comes_back_once(node: Drifting):
    """Stopped again, it is somebody's who wants it down, until a new deployment starts afresh."""
    host = node.host
    with node.puts_back("etcd"):
        assert "etcd.service is not running" in node.look(after="systemctl stop etcd")
    assert "etcd.service is not running" in node.look("DriftNotRepaired", "systemctl stop etcd")
    assert not host.is_active("etcd.service")
    node.update(DRIFT="repair", WAIT_TIMEOUT=601)
    assert host.is_active("etcd.service") and node.record()["repairs"] == []
    with node.puts_back("etcd"):
        node.look(after=f"rm {OURS}")


def a_unit_that_dies_of_a_changed_file_gets_it_back(node: Drifting):
    with node.puts_back("etcd"):
        spoil = f"{theirs(ETCD, 'ETCD_LISTEN_CLIENT_URLS=nowhere')}; systemctl restart etcd || :; "
        assert f"{ETCD} differs" in node.look(after=spoil + "until systemctl show -p SubState etcd | grep -q auto-restart; do sleep 0.1; done")
    node.host.wait_for(lambda: node.host.is_active("etcd.service"))


def nothing_is_put_back_after_a_failed_update(node: Drifting):
    """What the update left is said once, and what changes later is drift."""
    host = node.host
    host.sh("systemctl mask -q --runtime docker")
    ask(host, node.server, NODE | {"DRIFT": "repair", "HTTP_PROXY": "http://192.0.2.9:3128"})
    assert "docker" in ended(node.server)
    host.wait_for(lambda: node.events("UpdateIncomplete"), what="what the update left")
    left = node.events("UpdateIncomplete")[0]
    assert "docker.service is masked" in left and ETCD not in left, left
    before, drifts = node.runs("etcd.service"), len(node.events("NodeDrift"))
    output = node.look(after=theirs(ETCD, "# later"))
    assert f"{ETCD} differs" in output and "docker" not in output, output
    node.shows_it()
    assert len(node.events("UpdateIncomplete")) == 1 and node.runs("etcd.service") == before and host.sha256(ETCD)[ETCD] != node.files[ETCD]
    # An agent that starts with nothing but the record knows what was left.
    assert node.look() == output and len(node.events("UpdateIncomplete")) == 1 and len(node.events("NodeDrift")) >= drifts + 2
    host.sh("systemctl unmask -q --runtime docker")
    node.update(DRIFT="repair")
    assert host.sha256(ETCD)[ETCD] == node.files[ETCD]
