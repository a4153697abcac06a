"""A node in place that others change: what differs is told, with DRIFT=repair put back once, and left to another tool that does it again."""
from lib.common import GATEWAY
from lib.node import UNIT, VDB, ask, bring_up, ended

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
        self.host, self.server = host, server

    def update(self, **more):
        ask(self.host, self.server, NODE | more)
        assert ended(self.server) == ""

    def events(self, name: str) -> list[str]:
        return [e["HNA_CAUSE"] for e in self.host.journal(HNA_EVENT=name)]

    def look(self, event: str = "NodeDrift", after: str = "") -> str:
        """What the next agent tells at its first look, after somebody did this: it folds nothing that another one said."""
        before = len(self.events(event))
        self.host.exec("systemctl", "stop", UNIT)
        self.host.sh(after)
        self.host.exec("systemctl", "start", UNIT)
        self.host.wait_for(lambda: len(self.events(event)) > before, what=event)
        return self.events(event)[before]

    def shows_it(self):
        """The status page follows what the journal has."""
        self.host.wait_for(lambda: self.host.exec("heat-node-agent", "status", check=False).returncode == 2, what="drift on the status page")

    def runs(self, *units: str) -> dict[str, str]:
        return {unit: self.host.show(unit, "InvocationID")["InvocationID"] for unit in units or ("etcd.service", "docker.service")}


def theirs(path: str, line: str = "# theirs") -> str:
    return f"echo '{line}' >>{path}"


def test_drift_is_told_and_put_back_once(hosts, signal_server):
    server = signal_server()
    host = hosts("n1", ip=IP, volumes={"vdb": ("1G", VDB)})
    node = Drifting(host, server)
    assert bring_up(host, server, NODE) == ""
    files = host.sha256(ETCD, DOCKER, OURS)

    # --- report: everything is told, nothing is touched ---
    before = node.runs()
    told = node.look(after=f"{theirs(ETCD)}; rm {OURS}; printf '[Service]\\nNice=1\\n' >{THEIRS}; systemctl disable -q etcd; "
                           "systemctl mask -q --runtime docker")
    for words in (f"{ETCD} differs", f"{OURS} is gone", f"{THEIRS} was added", "etcd.service is not enabled", "docker.service is masked",
                  "/run/systemd/system/docker.service was added"):
        assert words in told, told
    assert node.runs() == before and not host.exists(OURS)
    node.shows_it()
    assert not node.events("DriftHeld")

    # --- repair: a deployment puts right what is ours, and takes what was added as it is ---
    host.sh("systemctl unmask -q --runtime docker; systemctl daemon-reload")
    node.update(DRIFT="repair")
    assert host.sha256(*files) == files and host.exists(THEIRS)
    assert host.show("etcd.service", "UnitFileState")["UnitFileState"] == "enabled"

    def record() -> str:
        return host.read("/var/lib/heat-node-agent/drift.json")

    def put_back(*units: str):
        """Waits until the repair has ended, which is remembered; who was restarted by it."""
        host.wait_for(lambda: record() != remembered, what="the memory of a repair")
        assert host.sha256(*files) == files
        now = node.runs()
        assert {u.removesuffix(".service") for u in now if now[u] != before[u]} == set(units)

    before, remembered = node.runs(), record()
    assert THEIRS not in node.look(after=theirs(ETCD))
    put_back("etcd")
    # Another cause, beside the same one again: only the new one is put back.
    before, remembered = node.runs(), record()
    held = node.look("DriftHeld", f"{theirs(ETCD)}; {theirs(DOCKER, '')}")
    assert f"{ETCD} differs" in held and DOCKER not in held
    host.wait_for(lambda: record() != remembered, what="the memory of a repair")
    assert host.sha256(DOCKER)[DOCKER] == files[DOCKER]
    now = node.runs()
    assert now["etcd.service"] == before["etcd.service"] and now["docker.service"] != before["docker.service"]
    assert host.sha256(ETCD)[ETCD] != files[ETCD]
    # Looked at again, by agents that start with nothing but the record: held each time.
    before = now
    for _ in range(3):
        assert f"{ETCD} differs" in node.look("DriftHeld")
    assert node.runs() == before
    node.shows_it()
    entry = host.journal(HNA_EVENT="DriftHeld")[-1]
    assert entry["HNA_CODE"] == "HNA-0513" and "configuration management" in entry["HNA_REMEDY"]

    # Another content of the same file is a new cause.
    remembered = record()
    node.look(after=theirs(ETCD, "# and more"))
    put_back("etcd")

    # A unit that is stopped comes back once; stopped again, it is somebody's who wants it down.
    before, remembered = node.runs(), record()
    assert "etcd.service is not running" in node.look(after="systemctl stop etcd")
    put_back("etcd")
    assert "etcd.service is not running" in node.look("DriftHeld", "systemctl stop etcd")
    assert not host.is_active("etcd.service")
    # A new deployment starts afresh.
    node.update(DRIFT="repair", WAIT_TIMEOUT=601)
    assert host.is_active("etcd.service") and '"repairs": []' in record()
    before, remembered = node.runs(), record()
    node.look(after=f"rm {OURS}")
    put_back("etcd")
    # One that dies at each start of what somebody wrote gets its file back, and with it comes up.
    before, remembered = node.runs(), record()
    assert f"{ETCD} differs" in node.look(after=f"{theirs(ETCD, 'ETCD_LISTEN_CLIENT_URLS=nowhere')}; systemctl restart etcd || :; "
                                               "until systemctl show -p SubState etcd | grep -q auto-restart; do sleep 0.1; done")
    put_back("etcd")
    host.wait_for(lambda: host.is_active("etcd.service"))

    # --- an update that fails on its way: what it left is said once, what changes later is drift, and nothing is put back ---
    host.sh("systemctl mask -q --runtime docker")
    ask(host, server, NODE | {"DRIFT": "repair", "HTTP_PROXY": "http://192.0.2.9:3128"})
    assert "docker" in ended(server)
    host.wait_for(lambda: node.events("UpdateLeft"), what="what the update left")
    left = node.events("UpdateLeft")[0]
    assert "docker.service is masked" in left and ETCD not in left, left
    before, drifts = node.runs("etcd.service"), len(node.events("NodeDrift"))
    told = node.look(after=theirs(ETCD, "# later"))
    assert f"{ETCD} differs" in told and "docker" not in told, told
    node.shows_it()
    assert len(node.events("UpdateLeft")) == 1 and node.runs("etcd.service") == before and host.sha256(ETCD)[ETCD] != files[ETCD]
    # An agent that starts with nothing but the record knows what was left.
    assert node.look() == told and len(node.events("UpdateLeft")) == 1 and len(node.events("NodeDrift")) >= drifts + 2
    host.sh("systemctl unmask -q --runtime docker")
    node.update(DRIFT="repair")
    assert host.sha256(ETCD)[ETCD] == files[ETCD]
