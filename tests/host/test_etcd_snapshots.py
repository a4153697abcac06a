"""Snapshots of etcd on its volume: taken by themselves and by hand, verified, bounded."""
import json

import pytest
from lib.common import wait_for
from lib.masters import IPS, Masters, listed
from lib.node import NODE, UNIT, VDB, VDC, bring_up, status_of

IP = NODE["KUBE_NODE_IP"]
FOLDER = "/var/lib/etcd/snapshots"
NOTE = "/run/heat-node-agent/pending-restarts.json"
SETTINGS = "polling_interval = 5\n[etcd]\nsnapshot_interval = 60\nsnapshots_kept = 2\n"


def agent(host, *words, code: int = 0) -> str:
    done = host.exec("heat-node-agent", *words, check=False)
    assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def etcdctl(host, words: str) -> str:
    return host.sh(f"ETCDCTL_API=3 etcdctl {words}").strip()


def kept(host) -> list[str]:
    return host.sh(f"cd {FOLDER} 2>/dev/null && ls *.db || :").split()


def shown(host) -> dict | None:
    return status_of(host)["node"]["etcd_snapshots"]


def up(hosts, signal_server):
    host = hosts("n1", ip=IP, volumes={"vdb": ("1G", VDB), "vdc": ("1G", VDC)})
    assert bring_up(host, signal_server(), settings=SETTINGS) == ""
    return host


@pytest.mark.longer
def test_snapshots_are_taken_verified_and_bounded(hosts, signal_server):
    host = up(hosts, signal_server)
    assert shown(host) is None and kept(host) == []
    etcdctl(host, "put kept value")
    # --- by itself ---
    host.wait_for(lambda: kept(host), what="the first snapshot")
    host.wait_for(lambda: shown(host), what="its line in the status")
    first, = kept(host)
    assert host.sh(f"stat -c '%a %U' {FOLDER} {FOLDER}/{first}").split() == ["700", "root", "600", "root"]
    assert host.sh(f"findmnt -nT {FOLDER} -o TARGET").strip() == "/var/lib/etcd"
    status = shown(host)
    revision = json.loads(etcdctl(host, f"-w json snapshot status {FOLDER}/{first}"))["revision"]
    assert (status["kept"], status["revision"], status["wrong"]) == (1, revision, None) and first.endswith(f"-r{revision}.db")
    assert "snapshots" in agent(host, "status") and "heat_node_agent_etcd_snapshots 1\n" in host.read("/run/heat-node-agent/heat-node-agent.prom")
    assert [e["MESSAGE"] for e in host.journal(HNA_EVENT="EtcdSnapshotTaken")]
    # --- by hand: two stay, the newest ones ---
    for number in range(3):
        etcdctl(host, f"put n{number} x")
        assert "took snapshot" in agent(host, "etcd", "snapshot")
    now = kept(host)
    assert len(now) == 2 and now[-1].endswith(f"-r{revision + 3}.db"), now
    assert "revision" in agent(host, "etcd", "snapshot", "/root/mine.db")
    assert kept(host) == now and host.sh("stat -c %a /root/mine.db").strip() == "600"
    assert "is there already" in agent(host, "etcd", "snapshot", "/root/mine.db", code=1)
    # --- without its tool, and without space: what is there stays, and a warning says why ---
    tool = host.sh("command -v etcdctl").strip()
    host.exec("mv", tool, "/root/away")
    assert "etcd-client" in agent(host, "etcd", "snapshot", code=1)
    host.wait_for(lambda: host.journal(HNA_EVENT="EtcdSnapshotFailed"), what="the warning")
    host.wait_for(lambda: (shown(host) or {}).get("wrong"), what="the cause in the status")
    assert "etcdctl cannot be run" in shown(host)["wrong"]
    host.exec("mv", "/root/away", tool)
    now = kept(host)
    host.sh("fallocate -l $(( $(df --output=avail -B1 /var/lib/etcd | tail -n 1) - 64 * 1024 * 1024 )) /var/lib/etcd/ballast")
    assert "MiB free" in agent(host, "etcd", "snapshot", code=1)
    # Nothing is given up for one that does not fit all the same.
    assert kept(host) == now
    host.sh("rm /var/lib/etcd/ballast")
    assert host.is_active("etcd.service") and host.is_active(UNIT)


DATA = "/var/lib/etcd/default.etcd"
# What is killed by its unit's name.
BESIDE = ("systemd-run", "-q", "--collect", "--unit=restoring", "-E", "PATH=/usr/sbin:/usr/bin:/sbin:/bin")


def restore(host, file: str, *words, code: int = 0) -> str:
    return agent(host, "etcd", "restore", file, *words, code=code)


def aside(host) -> list[str]:
    return host.sh(f"cd {DATA}; ls -d member.replaced-* 2>/dev/null || :").split()


def test_a_master_is_restored_and_a_restore_that_is_killed_goes_on(hosts, signal_server):
    host = up(hosts, signal_server)
    for number in range(50):
        etcdctl(host, f"put /n/{number} {number}")
    agent(host, "etcd", "snapshot", "/root/good.db")
    etcdctl(host, "put late x")
    # --- what is refused changes nothing ---
    before = host.sh(f"find {DATA} -type d | sort; systemctl show -p MainPID etcd {UNIT}")
    host.sh("head -c 10000 /root/good.db >/root/cut.db; cp /root/good.db /root/flipped.db; "
            "printf X | dd of=/root/flipped.db bs=1 seek=9000 conv=notrunc 2>/dev/null; echo no >/root/text")
    assert "this node's etcd has a quorum" in restore(host, "/root/good.db", "--new-cluster", code=1)
    assert host.sh(f"find {DATA} -type d | sort; systemctl show -p MainPID etcd {UNIT}") == before
    host.exec("systemctl", "stop", "etcd")
    before = host.sh(f"find {DATA} -type f | sort; systemctl show -p MainPID {UNIT}")
    for file, why in (("/root/cut.db", "no whole snapshot"), ("/root/text", "no whole snapshot"), ("/root/none", "no such file"), ("/root", "is no file"),
                      ("/root/flipped.db", "sha256")):
        assert why in restore(host, file, "--new-cluster", code=1), file
    assert "pass --new-cluster" in restore(host, "/root/good.db", code=1)
    assert "would unpack /root/good.db" in restore(host, "/root/good.db", "--dry-run", code=2)
    assert not host.exists(f"{DATA}/restoring")
    assert host.sh(f"find {DATA} -type f | sort; systemctl show -p MainPID {UNIT}") == before and not host.exists("/var/lib/heat-node-agent/etcd-restore.json")
    # --- its data is gone, and the command is killed while etcd starts ---
    host.sh(f"rm -r {DATA}/member; mkdir -p /run/systemd/system/etcd.service.d; "
            "printf '[Service]\\nExecStartPre=/bin/sleep 15\\n' >/run/systemd/system/etcd.service.d/slow.conf; systemctl daemon-reload")
    host.exec(*BESIDE, "heat-node-agent", "etcd", "restore", "/root/good.db", "--new-cluster")
    host.wait_for(lambda: host.exists(f"{DATA}/member/wal"), what="the new data")
    host.sh("systemctl kill -s KILL restoring; systemctl reset-failed restoring || :")
    assert not host.is_active(UNIT) and host.exists("/var/lib/heat-node-agent/etcd-restore.json")
    host.sh("rm /run/systemd/system/etcd.service.d/slow.conf; systemctl daemon-reload")
    assert "has begun" in restore(host, "/root/flipped.db", "--new-cluster", code=1)
    # It is not needed any more.
    host.exec("mv", "/root/good.db", "/root/kept.db")
    said = restore(host, "/root/good.db", "--new-cluster")
    host.exec("mv", "/root/kept.db", "/root/good.db")
    assert "unpacked" not in said and "etcd is restored" in said, said
    is_restored(host)
    assert aside(host) == []
    # --- data that is there is kept beside; killed before it is replaced ---
    etcdctl(host, "put late y")
    host.sh("printf '[Service]\\nExecStopPost=/bin/sleep 15\\n' >/run/systemd/system/etcd.service.d/slow.conf; systemctl daemon-reload")
    host.popen("systemctl", "stop", "etcd")
    host.wait_for(lambda: host.show("etcd.service", "ActiveState")["ActiveState"] == "deactivating", what="etcd on its way down")
    host.exec(*BESIDE, "heat-node-agent", "etcd", "restore", "/root/good.db", "--new-cluster")
    host.wait_for(lambda: host.exists("/var/lib/heat-node-agent/etcd-restore.json"), what="a restore that has begun")
    host.sh("systemctl kill -s KILL restoring; rm /run/systemd/system/etcd.service.d/slow.conf; systemctl daemon-reload")
    assert aside(host) == []
    # As after a boot: etcd lives on, and the restore is over.
    host.exec("systemctl", "start", "etcd", UNIT)
    over(host)
    assert etcdctl(host, "get late --print-value-only") == "y"
    assert "this node's etcd has a quorum" in restore(host, "/root/good.db", "--new-cluster", code=1)
    host.exec("systemctl", "stop", "etcd")
    restore(host, "/root/good.db", "--new-cluster")
    is_restored(host)
    old, = aside(host)
    assert host.exists(f"{DATA}/{old}/wal")
    # --- killed behind the replacement, and restored again after a life ---
    host.sh("printf '[Service]\nExecStartPre=/bin/sleep 15\n' >/run/systemd/system/etcd.service.d/slow.conf; systemctl daemon-reload; systemctl stop etcd")
    host.exec(*BESIDE, "heat-node-agent", "etcd", "restore", "/root/good.db", "--new-cluster")
    host.wait_for(lambda: len(aside(host)) == 2 and host.exists(f"{DATA}/member/wal"), what="the new data")
    host.sh("systemctl kill -s KILL restoring; systemctl reset-failed restoring || :; rm /run/systemd/system/etcd.service.d/slow.conf; systemctl daemon-reload")
    assert "would resume the restore" in restore(host, "/root/good.db", "--dry-run", code=2)
    host.exec("systemctl", "start", "etcd", UNIT)
    over(host)
    assert "the snapshot is in place" in host.journal(HNA_EVENT="EtcdRestoreUnfinished")[-1]["HNA_CAUSE"]
    etcdctl(host, "put late w")
    host.exec("systemctl", "stop", "etcd")
    assert "unpacked" in restore(host, "/root/good.db", "--new-cluster")
    is_restored(host)


def over(host):
    """The agent has ended a restore that was cut off, and said so."""
    host.wait_for(lambda: not host.exists("/var/lib/heat-node-agent/etcd-restore.json"), what="the end of the restore")
    host.wait_for(lambda: "HNA-0648" in host.sh("journalctl -u heat-node-agent -o json --output-fields=HNA_CODE | tail -n 200"), what="HNA-0648")


def is_restored(host):
    """All of the snapshot is there and nothing newer, everything runs, and the agent has nothing to say against it."""
    assert etcdctl(host, "get --prefix /n/ --keys-only").split() == sorted(f"/n/{number}" for number in range(50))
    assert etcdctl(host, "get late") == "" and etcdctl(host, "put later z") == "OK"
    assert set(host.sh(f"stat -c %U {DATA}/member {DATA}/member/snap/db {DATA}/member/wal").split()) == {"etcd"}
    assert not host.exists("/var/lib/heat-node-agent/etcd-restore.json") and not host.exists(f"{DATA}/restoring")
    assert host.is_active(UNIT) and host.is_active("etcd.service")
    assert "nothing differs" in agent(host, "repair", "--dry-run")
    host.wait_for(lambda: status_of(host)["overall"] == "ready", what="a node that is ready")


def is_sound(node) -> bool:
    """Pods have no network here, so that the kubelet is not."""
    found = node.status()["node"]
    return not found["drifted"] and {"etcd"} <= {one["name"] for one in found["components"] if one["state"] == "healthy"}


@pytest.mark.longer
def test_nothing_is_restored_beside_a_quorum_and_the_others_join_as_it_is_printed(hosts, signal_server, tmp_path):
    masters = Masters(hosts, signal_server, tmp_path)
    first, second, third = masters.nodes
    masters.up()
    wait_for(masters.healthy, 120, "etcd of three members")
    before = listed(first)
    first.etcdctl("put", "/kept/1", "1")
    assert "no etcd volume" in agent(first.host, "etcd", "snapshot", code=1)
    agent(first.host, "etcd", "snapshot", "/root/good.db")
    # --- a quorum lives, here or at the others ---
    assert "its cluster has a quorum" in restore(first.host, "/root/good.db", "--new-cluster", code=1)
    first.host.sh("systemctl stop etcd")
    assert "its cluster has a quorum" in restore(first.host, "/root/good.db", "--new-cluster", code=1)
    assert listed(second) == before
    # --- it is lost ---
    for node in (second, third):
        node.host.sh(f"systemctl stop {UNIT} etcd")
    # One that has had no leader since its start takes connections, and answers nobody: it may be any.
    second.host.sh("systemctl start --no-block etcd")
    second.host.wait_for("ss -Hltn 'sport = 2379' | grep -q .")
    assert "whether others have a quorum is not known" in restore(first.host, "/root/good.db", "--new-cluster", code=1)
    second.host.sh("systemctl stop etcd")
    # --- killed behind the replacement: the agent restarts who still knows the old data, and says what is left to do ---
    host, slow = first.host, "/run/systemd/system/etcd.service.d/slow.conf"

    def api() -> str:
        return host.show("kube-apiserver.service", "MainPID")["MainPID"]
    knows_old = api()
    host.sh(f"mkdir -p $(dirname {slow}); printf '[Service]\\nExecStartPre=/bin/sleep 15\\n' >{slow}; systemctl daemon-reload")
    host.exec(*BESIDE, "heat-node-agent", "etcd", "restore", "/root/good.db", "--new-cluster")
    host.wait_for(lambda: aside(host) and host.exists(f"{DATA}/member/wal"), what="the new data")
    host.sh(f"systemctl kill -s KILL restoring; systemctl reset-failed restoring || :; rm {slow}; systemctl daemon-reload")
    assert "kube-apiserver.service" in json.loads(host.read(NOTE))
    host.exec("systemctl", "start", UNIT)
    over(host)
    host.wait_for(lambda: not host.exists(NOTE), seconds=120, what="the restarts with the new data")
    assert api() != knows_old
    event = host.journal(HNA_EVENT="EtcdRestoreUnfinished")[-1]
    assert "the snapshot is in place" in event["HNA_CAUSE"] and "on m2: systemctl stop" in event["HNA_REMEDY"], event
    host.sh("systemctl stop etcd")
    said = restore(first.host, "/root/good.db", "--new-cluster")
    lines = [line.strip().split(": ", 1) for line in said.splitlines() if line.startswith("  ")]
    assert len(lines) == 6, said
    assert list(listed(first)) == [f"https://{IPS['m1']}:2380"] and "restarted kube-apiserver" in said
    wait_for(lambda: is_sound(first), 120, "the first master")
    hosts_by_name = {node.host.name: node.host for node in masters.nodes}
    for where, line in lines:
        host = first.host if where == "here" else hosts_by_name[where.removeprefix("on ")]
        # etcd takes a member once the others have been connected for some seconds.
        wait_for(lambda: host.exec("sh", "-c", line, check=False).returncode == 0, 120, line)
    wait_for(masters.healthy, 120, "etcd of three members")
    after = listed(first)
    assert set(after) == set(before) and not set(after.values()) & set(before.values())
    masters.have("/kept/", {"1"})
    for node in masters.nodes:
        wait_for(lambda: is_sound(node), 300, node.host.name)
