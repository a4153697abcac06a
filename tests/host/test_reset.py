"""A node that is taken out: nothing of it is left, a second reset has nothing to do, and it comes up again when it is asked to."""
import json

from lib.node import NODE, UNIT, VDB, VDC, bring_up, is_steady, says_little

IP = NODE["KUBE_NODE_IP"]
# What other programs write while they run, and what systemd, apt and the journal keep of them.
LIVELY = "/(proc|sys|run|dev|tmp|var/(log|tmp|cache|lib/(systemd|docker|containerd|private|heat-node-agent/lock))|root)(/|$)"
# Files of a docker that has run; its containers are gone.
FIND = f"find / -xdev -regextype posix-extended -regex '{LIVELY}.*' -prune -o \\( -type f -o -type l \\) -print | sort"


def reset(host, *args, code: int = 0) -> str:
    done = host.exec("heat-node-agent", "reset", *args, check=False)
    assert done.returncode == code, f"{args}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout if code == 0 else done.stdout + done.stderr


def test_nothing_of_a_node_is_left_and_it_comes_up_again_when_asked(hosts, signal_server):
    server = signal_server()
    host = hosts("n1", ip=IP, volumes={"vdb": ("1G", VDB), "vdc": ("1G", VDC)})
    host.install_agent()
    host.sh(": >/dev/console")  # these hosts have no console: a file takes what would go to it
    assert "nothing to do" in reset(host)
    before = set(host.sh(FIND).splitlines())
    assert bring_up(host, server) == ""
    host.wait_for(lambda: is_steady(host), what="a steady node")
    says_little(host)
    what_is_refused_changes_nothing(host)

    planned = reset(host, "--dry-run", "--abandon-etcd", code=2)
    assert "would stop and disable docker.service, etcd.service" in planned and host.is_active("etcd.service")

    a_reset_that_is_stopped_goes_on(host)
    after = set(host.sh(FIND).splitlines())
    # Where the test's Heat is, and docker's own id, which docker made.
    others = {"/etc/os-collect-config.conf", "/etc/docker/key.json"}
    left = {path for path in after - before - others if not path.startswith("/var/lib/heat-config/")}
    assert not left, sorted(left)
    assert not before - after, sorted(before - after)
    for unit in (UNIT, "etcd.service", "docker.service"):
        assert not host.is_active(unit) and host.show(unit, "UnitFileState")["UnitFileState"] == "disabled", unit
    assert host.sh("findmnt -no TARGET /var/lib/etcd /var/lib/docker || :") == ""
    assert "nothing to do" in reset(host)
    # The agent's unit can write below it, and not make it.
    assert host.sh("stat -c %F /srv/kubernetes").strip() == "directory"

    # Both volumes kept what they hold, so that this is the same etcd.
    host.reboot()
    assert not host.is_active(UNIT)
    server.forget()
    host.exec("systemctl", "enable", "--now", UNIT)
    host.wait_for(lambda: host.is_active("etcd.service") and is_steady(host), what="the node again")
    assert host.sh("ETCDCTL_API=3 etcdctl get kept --print-value-only").strip() == "value"
    assert host.sh("findmnt -no LABEL /var/lib/docker").strip() == "hna-runtime"

    wiped = reset(host, "--abandon-etcd", "--volumes", "--serial", VDB, "--serial", VDC)
    assert f"overwrite all of volume {VDC}" in wiped
    for disk in ("vdb", "vdc"):
        assert host.sh(f"blkid -p /dev/{disk} || :") == "" and host.sh(f"tr -d '\\0' </dev/{disk} | head -c 1 | wc -c").strip() == "0"


def what_is_refused_changes_nothing(host):
    host.sh("ETCDCTL_API=3 etcdctl put kept value")
    assert "the only member of etcd" in reset(host, code=1)
    assert "without the serial of the" in reset(host, "--abandon-etcd", "--volumes", "--serial", VDB, code=1)
    assert "is no volume of this node" in reset(host, "--abandon-etcd", "--volumes", "--serial", "deadbeef", code=1)
    assert "--volumes" in reset(host, "--serial", VDB, code=64)
    host.exec("systemctl", "stop", "etcd.service")
    assert "cannot list etcd's members" in reset(host, code=1)
    host.exec("systemctl", "start", "etcd.service")
    assert host.is_active(UNIT) and not host.exists("/var/lib/heat-node-agent/reset.json")


def a_reset_that_is_stopped_goes_on(host):
    """Somebody is in the volume, so that it cannot be unmounted; the agent does not run meanwhile, and the second try ends."""
    busy = host.popen("sh", "-c", "cd /var/lib/docker && exec sleep 600")
    host.wait_for("pgrep -x sleep")
    stopped = reset(host, "--abandon-etcd", code=1)
    assert "the reset stopped" in stopped and "left to do, by hand or by reset: unmount" in stopped, stopped
    assert host.exists("/var/lib/heat-node-agent/reset.json") and not host.is_active("etcd.service")
    host.exec("systemctl", "start", UNIT, check=False)
    assert host.reported("ResetUnfinished") and not host.is_active(UNIT)
    assert "a reset of this node was begun" in host.exec("heat-node-agent", "status", check=False).stdout
    host.sh("pkill -x sleep")
    busy.wait(60)
    # etcd is down by now, and need not be asked again.
    assert "The node is out" in reset(host)
    assert not json.loads(host.exec("heat-node-agent", "status", "--json", check=False).stdout or "{}").get("node")
