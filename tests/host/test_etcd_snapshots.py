"""Snapshots of etcd on its volume: taken by themselves and by hand, verified, bounded."""
import json

from lib.node import NODE, UNIT, VDB, VDC, bring_up

IP = NODE["KUBE_NODE_IP"]
FOLDER = "/var/lib/etcd/snapshots"
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
    return json.loads(host.exec("heat-node-agent", "status", "--json", check=False).stdout)["node"]["etcd_snapshots"]


def up(hosts, signal_server):
    host = hosts("n1", ip=IP, volumes={"vdb": ("1G", VDB), "vdc": ("1G", VDC)})
    assert bring_up(host, signal_server(), settings=SETTINGS) == ""
    return host


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
    # The newest one is never given up for another one.
    assert kept(host) == now[-1:]
    host.sh("rm /var/lib/etcd/ballast")
    assert host.is_active("etcd.service") and host.is_active(UNIT)
