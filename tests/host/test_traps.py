"""What systemd and an image have in store: each trap ends in a node that is up, or in a cause that Heat, explain and the console report. More
of them, with what is to be done about each: test_failures_node.py.

One host for all of them, one after the other; its node is a master of real etcd and docker.
"""
import itertools
import re

from lib.common import wait_for
from lib.node import IP, NODE, UNIT, VDB, ask, ended, start

ETCD = "etcd.service"
TRAP = "/etc/systemd/system/etcd.service.d/99-trap.conf"
SHIPPED = "/usr/lib/systemd/system"


class Traps:
    def __init__(self, host, server):
        self.host, self.server, self.numbers = host, server, itertools.count(1)
        self.inputs = {k: v for k, v in NODE.items() if k != "ETCD_VOLUME"}

    def deploy(self, action: str = "UPDATE", **changes):
        """A deployment for which etcd is restarted."""
        self.inputs |= {"INSTANCE_NAME": f"node-{next(self.numbers)}", "WAIT_TIMEOUT": 600} | changes
        self.shown = len(self.host.read("/dev/console"))
        ask(self.host, self.server, self.inputs, action)

    def console(self, words: str = "heat-node-agent phase=") -> list[str]:
        """The console's lines since the deployment that have these words."""
        return [line for line in self.host.read("/dev/console")[self.shown:].splitlines() if words in line]

    def explain(self) -> tuple[int, str]:
        done = self.host.exec("heat-node-agent", "explain", check=False)
        return done.returncode, re.sub(r"\s+", " ", done.stdout)

    def got_over(self):
        """Heat hears SUCCESS, and nobody who looks at the node takes it for one that failed."""
        assert ended(self.server) == "", self.explain()
        self.host.wait_for(lambda: self.host.sh("curl -s http://127.0.0.1:2379/health").startswith('{"health":"true"'), what="etcd's health")
        def is_ok() -> bool:
            status, explained = self.explain()
            assert status == 0 and explained.startswith("OK: every condition is met "), explained
            return True
        wait_for(is_ok, 300, "explain has nothing to explain")  # that Heat accepted the signal is still to be recorded
        wait_for(lambda: self.console("phase=steady state=ok code=HNA-0503 "), 300, "a steady state on the console")
        assert not self.console("state=failed"), self.console()

    def reported(self, code: str, *words: str, unit: str, patience: int):
        """Each of these words stands in Heat's cause, in explain, and in the console's one line about the failure. patience: seconds of the wait
        condition; the agent gives up after half of them."""
        self.deploy(WAIT_TIMEOUT=patience)
        cause = ended(self.server)
        assert cause.startswith(f"1 ({code} "), cause or "SUCCESS"
        [line] = wait_for(lambda: self.console("state=failed"), 300, "a failure on the console")
        status, explained = self.explain()
        assert status == 1, explained
        for place, text in {"Heat": cause, "explain": explained, "console": line}.items():
            for word in words:
                assert word in text, f"{word!r} is not in what {place} says: {text}"
        assert f" state=failed code={code} {unit} msg=" in line, line


def slow_reload_and_bus_restart(traps: Traps):
    """systemd reads its files slowly: its answer comes later than any other call's would. Then etcd's start lasts, and while it does the
    bus is restarted and systemd reads its files anew, so that nobody is notified of the end of the job.
    """
    host = traps.host
    host.sh("mkdir -p /etc/systemd/system-generators /etc/systemd/system/etcd.service.d")
    start(host, traps.server)
    host.write("/etc/systemd/system-generators/slow", "#!/bin/sh\n[ -e /run/begun ] || sleep 27\n", 0o755)
    host.write(TRAP, "[Service]\nExecStartPre=+/bin/sh -c 'touch /run/begun; until [ -e /run/go ]; do sleep 0.1; done'\n")
    traps.deploy("CREATE")
    host.wait_for("test -e /run/begun")
    reload = host.reported("UnitsReloaded")[-1]
    assert int(reload["HNA_DURATION_MS"]) > 25_000, "a reload that is slower than a call's time limit"
    host.sh("systemctl restart dbus.service & touch /run/go; systemctl daemon-reexec || :; wait; until systemctl daemon-reload; do sleep 0.1; done")
    traps.got_over()
    assert host.show(UNIT, "NRestarts")["NRestarts"] == "0"
    host.remove(TRAP, "/etc/systemd/system-generators/slow")


def alias_wanted_by_nobody(traps: Traps):
    """A unit whose name is another one's alias, and which is wanted by nobody who is there."""
    host = traps.host
    host.sh(f"systemctl disable -q {ETCD}; systemctl stop {ETCD}; cd {SHIPPED}; cp etcd.service /root/; mv etcd.service real-etcd.service; "
            "sed -i 's/^WantedBy=.*/WantedBy=absent.target/; /^Alias=/d' real-etcd.service; ln -s real-etcd.service etcd.service; systemctl daemon-reload")
    traps.deploy()
    traps.got_over()
    assert host.show(ETCD, "Id", "UnitFileState") == {"Id": "real-etcd.service", "UnitFileState": "enabled"}
    reported = host.reported("UnitNotStartedAtBoot")
    assert len(reported) == 1 and "absent.target" in reported[0]["MESSAGE"], reported
    [line] = traps.console("absent.target")
    assert "phase=units state=degraded code=HNA-0625 unit=etcd.service " in line
    traps.deploy()
    traps.got_over()
    assert len(host.journal(HNA_EVENT="UnitNotStartedAtBoot")) == 1, "it is enabled, and not enabled again"
    assert not traps.console("absent.target")
    host.sh(f"systemctl disable -q {ETCD}; systemctl stop {ETCD}; cd {SHIPPED}; rm etcd.service real-etcd.service; cp -a /root/etcd.service .; systemctl daemon-reload")
    traps.deploy()
    traps.got_over()


def dies_again_and_again(traps: Traps):
    """It starts, answers, and dies 5 s later, again and again."""
    host = traps.host
    host.write(TRAP, "[Service]\nRuntimeMaxSec=5\n")
    host.sh("systemctl daemon-reload")
    traps.reported("HNA-0703", "systemd restarted etcd.service", unit="unit=etcd.service gate=etcd", patience=160)
    host.remove(TRAP)
    host.sh("systemctl daemon-reload")
    traps.deploy()
    traps.got_over()


def test_every_trap_is_got_over_or_reported(hosts, signal_server):
    server = signal_server()
    host = hosts("traps", ip=IP, volumes={"vdb": ("1G", VDB)})
    host.sh(": >/dev/console")  # these hosts have no console: a file takes what would go to it
    traps = Traps(host, server)
    slow_reload_and_bus_restart(traps)
    alias_wanted_by_nobody(traps)
    dies_again_and_again(traps)
