"""Three masters whose certificates are due for a renewal at the same moment: a real etcd, which somebody writes to all the time, must
never be without its quorum."""
import json
import re

import pytest
from lib.common import wait_for
from lib.hosts import NET
from lib.masters import Masters
from lib.node import UNIT
from lib.pod_network import together

LOCK = "/heat-node-agent/renewal"
NOTE = "/run/heat-node-agent/pending-restarts.json"
ETCD_CONF = "/etc/etcd/etcd.conf"


@pytest.fixture
def masters(hosts, signal_server, tmp_path):
    found = Masters(hosts, signal_server, tmp_path)
    found.up()
    return found


def starts_of_etcd(node) -> list[str]:
    return re.findall(r"Started etcd", node.host.sh("journalctl -u etcd --no-pager -o cat"))


def test_masters_renew_one_by_one_and_expired_ones_at_once(masters):
    wait_for(masters.healthy, NET, "etcd of three members")
    # The writer's own certificate is not touched by what follows.
    with masters.written_to():
        masters.each("systemctl", "stop", UNIT)
        masters.age(since_days=200, left_days=60)
        before = masters.issued()
        # --- a member is down: nobody takes the second one ---
        masters.nodes[2].host.exec("systemctl", "stop", "etcd")
        together(*(lambda node=node: node.host.exec("systemctl", "start", UNIT) for node in masters.nodes[:2]))
        for node in masters.nodes[:2]:
            wait_for(lambda n=node: any("unhealthy: m3" in e.get("HNA_CAUSE", "") for e in n.host.journal(HNA_EVENT="RenewalWaiting")), 300,
                     f"{node.host.name} that waits")
        assert masters.renewed(before) == [False] * 3

        def is_shown() -> bool:
            """A moment after the journal has it."""
            page = masters.nodes[0].status()["node"]["certificates"]["waits"]
            assert "the renewal waits" in page["cause"] and "m3" in page["cause"], page
            return True
        wait_for(is_shown, 300, "the wait in status")
        masters.nodes[2].host.exec("systemctl", "start", "etcd", "kube-apiserver")

        # --- all are due at once: one after the other, under the key in etcd ---
        masters.nodes[2].host.exec("systemctl", "start", UNIT)
        wait_for(lambda: all(masters.renewed(before)), NET, "renewed certificates on all masters")
        wait_for(lambda: all(node.healthy() for node in masters.nodes) and masters.healthy(), NET, "healthy masters")
    assert not masters.mistakes()
    wait_for(lambda: LOCK not in masters.nodes[0].etcdctl("get", "--prefix", "/heat-node-agent"), NET, "the lock given back")
    print(f"starts of etcd: {[len(starts_of_etcd(node)) for node in masters.nodes]}, waits: {masters.events('RenewalWaiting')}")

    # --- the cluster was off until all of them had expired: nobody waits for a quorum that cannot come ---
    masters.each("systemctl", "stop", UNIT)
    masters.age(since_days=200, left_days=-1)
    expired = masters.issued()
    masters.each("systemctl", "kill", "--signal=KILL", "etcd")
    masters.each("systemctl", "start", UNIT)
    wait_for(lambda: all(masters.renewed(expired)), NET, "renewed certificates in place of expired ones")
    wait_for(lambda: all(node.healthy() for node in masters.nodes) and masters.healthy(), NET, "healthy masters")
    assert not masters.mistakes()


def test_restarts_that_a_killed_renewal_or_a_repair_left_wait_for_the_quorum(masters):
    """The first master's agent was killed behind the swap of its files: what reads them is noted, and not restarted."""
    wait_for(masters.healthy, NET, "etcd of three members")
    first, second, _ = masters.nodes
    host = first.host

    def processes() -> list[str]:
        return [host.sh(f"systemctl show -p MainPID {unit}").strip() for unit in ("etcd", "kube-apiserver")]

    def kill_with_pending_restarts():
        host.sh(f"systemctl kill --signal=KILL {UNIT} || true; systemctl stop {UNIT}")
        host.write(NOTE, json.dumps(["etcd.service", "kube-apiserver.service"]), 0o600)

    before = processes()
    second.host.exec("systemctl", "stop", "etcd")
    kill_with_pending_restarts()
    host.exec("systemctl", "start", UNIT)
    wait_for(lambda: any("unhealthy: m2" in e.get("HNA_CAUSE", "") for e in host.journal(HNA_EVENT="RenewalWaiting")), 300, "a wait")

    def is_shown() -> bool:
        page = first.status()["node"]["certificates"]["waits"]
        return bool(page) and "restarts" in page["cause"] and "m2" in page["cause"] and bool(page["remedy"])
    wait_for(is_shown, 300, "the wait in status")
    assert processes() == before
    assert {"etcd.service", "kube-apiserver.service"} <= set(json.loads(host.read(NOTE)))
    # --- the other member is back: they are made up for ---
    second.host.exec("systemctl", "start", "etcd", "kube-apiserver")
    wait_for(lambda: not host.exists(NOTE), NET, "restarts that are made up for")
    assert not set(processes()) & set(before)
    wait_for(lambda: first.healthy() and masters.healthy(), NET, "healthy masters")
    wait_for(lambda: LOCK not in first.etcdctl("get", "--prefix", "/heat-node-agent"), NET, "the lock given back")

    # --- a renewal is due: it makes them, each once ---
    masters.each("systemctl", "stop", UNIT)
    kill_with_pending_restarts()
    masters.age(since_days=200, left_days=60)
    starts = len(starts_of_etcd(first))
    aged = masters.issued()
    host.exec("systemctl", "start", UNIT)
    wait_for(lambda: masters.renewed(aged)[0] and not host.exists(NOTE), NET, "renewed certificates")
    wait_for(lambda: first.healthy() and masters.healthy(), NET, "healthy masters")
    assert len(starts_of_etcd(first)) == starts + 1

    # --- what a repair restarts asks, too ---
    second.host.exec("systemctl", "stop", "etcd")
    before = processes()
    host.sh(f"echo '# theirs' >>{ETCD_CONF}")
    repair = host.exec("heat-node-agent", "repair", check=False)
    assert repair.returncode == 1 and "unhealthy: m2" in repair.stdout + repair.stderr, repair
    assert "# theirs" not in host.read(ETCD_CONF) and processes() == before
    assert json.loads(host.read(NOTE)) == ["etcd.service"]
    # --- an update that changes nothing of etcd leaves that restart alone: it may wait on every master that is updated now ---
    first.update(NODE_LABELS="tier=edge")
    first.succeeds()
    assert processes() == before
    assert json.loads(host.read(NOTE)) == ["etcd.service"]
    second.host.exec("systemctl", "start", "etcd", "kube-apiserver")
    wait_for(lambda: not host.exists(NOTE), NET, "the restart that the repair left")
    assert processes()[0] != before[0]
    wait_for(lambda: first.healthy() and masters.healthy(), NET, "healthy masters")

    wait_for(lambda: LOCK not in first.etcdctl("get", "--prefix", "/heat-node-agent"), NET, "the end of the repair")

    # --- its own etcd answers nobody: the repair that heals it needs no leave of it ---
    host.sh(f"sed -i 's/:2379/:2399/g' {ETCD_CONF}; systemctl restart --no-block etcd")
    wait_for(lambda: not masters.healthy(), NET, "an etcd that clients do not find")
    host.exec("heat-node-agent", "repair", check=False)
    wait_for(lambda: first.healthy() and masters.healthy(), NET, "healthy masters")
