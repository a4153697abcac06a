"""What goes wrong with a node while it is brought up and afterwards, one failure after the other on one host: a master of real etcd and docker."""
import itertools
import json

from lib.failures import HANGS
from lib.node import IP, NODE, VDB, VDC, ask, extend, loop_of, start

ETCD = "etcd.service"
TRAP = "/etc/systemd/system/etcd.service.d/99-trap.conf"
SECRET = "canary-password"
SQUATTER = "import socket, time; s = socket.socket(); s.setsockopt(1, 2, 1); s.bind(('127.0.0.1', {port})); s.listen(); time.sleep(9999)"
# Of no volume.
NO_VOLUME = "e41b7f92-0c6d-4f0a-b1d7-58a2f3c9d601"
SETTINGS = "polling_interval = 5\nmin_polling_interval = 5\n"


class Master:
    def __init__(self, stage, wait: dict):
        self.stage, self.host, self.server = stage, stage.host, stage.server
        self.inputs, self.numbers = NODE | {"ETCD_VOLUME": NO_VOLUME} | wait | {"HTTP_PROXY": f"http://user:{SECRET}@192.0.2.1:3128"}, itertools.count(1)

    def update(self, **changes):
        """A stack update for which etcd is restarted."""
        self.inputs["INSTANCE_NAME"] = f"node-{next(self.numbers)}"
        ask(self.host, self.server, self.inputs | changes)

    def corrected(self):
        self.inputs["ETCD_VOLUME"] = VDC
        self.update()


def wrong_parameters(master: Master):
    failure = master.stage.failure("wrong-parameters")
    master.update(KUBE_NODE_IP="10.77.0.300", ROLE="masterr", DOCKR_VOLUME="x")
    failure.shows("FAILED", "ROLE", heat="node", failed=True)
    failure.mended("update the stack with corrected parameters", master.update, until=("FAILED", "at volume runtime"))
    return failure


def foreign_and_missing_volume(master: Master, before):
    """The one is put right while the other is not there yet."""
    foreign = master.stage.failure("foreign-volume", after=before)
    foreign.shows("FAILED", "at volume runtime", "ext4", heat="node", failed=True)
    foreign.mended(until=("WAITING for volume etcd",))
    missing = master.stage.failure("missing-volume", after=foreign)
    missing.shows("WAITING for volume etcd", "is not attached (no disk has that serial", beside=("runtime in place", "docker up"))
    missing.way("correct ETCD_VOLUME in the template and update the stack", "update the stack with the right ETCD_VOLUME", lambda: master.corrected(),
                until=("WAITING for volume etcd", f"volume {VDC} is not attached"))
    missing.mended("attach the volume", lambda: master.host.attach("vdc", "1G", VDC))


def etcd_stopped(master: Master):
    failure = master.stage.failure("etcd-stopped")
    master.host.exec("systemctl", "stop", ETCD)
    failure.shows("DEGRADED: etcd not running", failed=True)
    failure.mended()


def full_volume(master: Master):
    """The store of a node that was in order fills up: etcd dies at its next write, and says why among its last lines."""
    failure = master.stage.failure("full-volume", HANGS)
    # What is written is more than what is left: the last of these writes has to fail.
    master.host.sh("fallocate -l $(($(df --output=avail -B1 /var/lib/etcd | tail -n 1) - 4000000)) /var/lib/etcd/filler; "
                   "head -c 1000000 /dev/urandom >/run/value; for n in {1..40}; do ETCDCTL_API=3 etcdctl --endpoints=http://127.0.0.1:2379 "
                   "--command-timeout=5s put /filler/$n </run/value >/dev/null || break; done", check=False)
    # It ends, is started again after a moment, and then waits for room.
    failure.shows("DEGRADED: etcd down for lack of space; /var/lib/etcd on volume", "etcd.service is down: it waits until /var/lib/etcd has 64 MiB", "/var/lib/etcd on volume", "is full", failed=True)
    failure.mended("extend the volume", lambda: extend(loop_of(master.host, "vdc"), "2G"))


def files_changed(master: Master):
    failure = master.stage.failure("file-removed", HANGS)
    master.host.remove("/etc/etcd/etcd.conf")
    failure.shows("DEGRADED", "etcd.conf", warned=True)
    failure.mended()
    failure = master.stage.failure("file-edited", HANGS)
    master.host.sh("echo '# theirs' >>/etc/etcd/etcd.conf")
    failure.shows("DEGRADED", "etcd.conf", warned=True)
    failure.mended()


def masked_unit(master: Master):
    failure = master.stage.failure("masked-unit")
    master.host.sh(f"systemctl mask -q {ETCD}")
    master.update()
    failure.shows("FAILED", "masked", heat="node", failed=True)
    failure.mended()


def missing_binary(master: Master):
    """Said at once, long before the deadline."""
    failure = master.stage.failure("missing-binary")
    master.host.sh("mv /usr/bin/etcd /usr/bin/etcd.away")
    master.update()
    failure.shows("FAILED", "etcd", heat="node", failed=True)
    failure.mended("install etcd again", lambda: master.host.sh("mv /usr/bin/etcd.away /usr/bin/etcd"))


def port_taken(master: Master):
    failure = master.stage.failure("port-taken")
    master.host.sh("mkdir -p /etc/systemd/system/etcd.service.d")
    master.host.write(TRAP, f"[Service]\nExecStopPost=/bin/echo the proxy has {SECRET}\n")

    def squat(port: int):
        master.host.sh("systemctl stop squatter.service 2>/dev/null || :")
        master.host.exec("systemd-run", "-q", "--unit=squatter", "python3", "-c", SQUATTER.format(port=port))
        master.host.wait_for(f"</dev/tcp/127.0.0.1/{port}")

    def taken(patience: int):
        master.host.sh(f"systemctl daemon-reload; systemctl stop {ETCD}")
        squat(2379)
        master.update(WAIT_TIMEOUT=patience)
    # The first time it is mended in time, the second time not.
    taken(600)
    failure.seen("WAITING", "port 2379 is held by python3", "squatter.service")
    failure.way("If it is needed, configure another port for squatter.service. The agent then continues by itself", "give it another port", lambda: squat(2479),
                lambda: taken(120))
    failure.shows("FAILED", "port 2379 is held by python3", heat="node", failed=True)
    # It says a secret besides, which nobody gets to see.
    said = [failure.waiting, failure.noted_waiting, failure.shown, failure.explain, failure.said, failure.journal, failure.heat]
    assert not any(SECRET in text for text in said) and "the proxy has ******" in failure.heat
    failure.mended()


def test_failures_of_a_node(hosts, signal_server, stages):
    server = signal_server()
    host = hosts("n1", ip=IP, volumes={"vdb": ("1G", VDB)})
    host.sh("mkfs.ext4 -q -L backup /dev/vdb; sync")
    master = Master(stages(host, server), {"WAIT_HANDLE": json.dumps({"alarm_url": server.signal_url("handle", kind="waitcondition")})})
    start(host, server, SETTINGS)
    foreign_and_missing_volume(master, wrong_parameters(master))
    etcd_stopped(master)
    full_volume(master)
    files_changed(master)
    masked_unit(master)
    missing_binary(master)
    port_taken(master)
