"""Masters whose deployments Heat deletes, while somebody writes: each gives up its member of etcd, one at a time and only where the others keep a
quorum; one that is asked for again comes back as a new member."""
import pytest
from lib.common import wait_for
from lib.masters import IPS, Masters, listed
from lib.node import UNIT
from lib.pod_network import together

LOCK = "/heat-node-agent/renewal"
HELD = "m9 (by hand)"
DATA = "/var/lib/etcd/default.etcd"


def delete(node):
    """What Heat asks for before it deletes the server."""
    node.publish("DELETE")
    node.host.exec("systemctl", "kill", "-s", "HUP", UNIT)


def kill(host):
    """systemd begins the agent anew."""
    host.sh(f"systemctl kill -s KILL {UNIT}")
    wait_for(lambda: host.show(UNIT, "ActiveState")["ActiveState"] == "active", 60, "the agent's next run")


def peers(*names: str) -> set[str]:
    return {f"https://{IPS[name]}:2380" for name in names}


@pytest.mark.longer
def test_a_deleted_deployment_gives_up_its_member(hosts, signal_server, tmp_path):
    masters = Masters(hosts, signal_server, tmp_path)
    first, second, third = masters.nodes
    masters.up()
    wait_for(masters.healthy, 120, "etcd of three members")
    before = listed(first)
    with masters.written_to(quorum=False):
        # --- another master holds the lock; the agent is killed while it waits, and again between the removal and the end of etcd ---
        first.etcdctl("put", LOCK, f"'{HELD}'")
        third.host.sh("mkdir -p /run/systemd/system/etcd.service.d; printf '[Service]\\nExecStopPost=/bin/sleep 20\\n' "
                      ">/run/systemd/system/etcd.service.d/slow.conf; systemctl daemon-reload")
        delete(third)
        waits = lambda: [e for e in third.host.journal(HNA_EVENT="EtcdMemberWaiting") if HELD in e["HNA_CAUSE"]]  # noqa: E731
        wait_for(waits, 120, "the wait for the lock")
        kill(third.host)
        assert listed(first) == before and third.host.is_active("etcd.service")
        first.etcdctl("del", LOCK)
        wait_for(lambda: set(listed(first)) == peers("m1", "m2"), 120, "two members")
        kill(third.host)
        third.succeeds()
        assert first.etcdctl("get", "--prefix", "--keys-only", "/heat-node-agent").split() == []

        # --- nothing brings it back: neither the agent, nor systemd, nor a boot, nor the same once more ---
        gone = lambda: not third.host.is_active("etcd.service") and set(listed(first)) == peers("m1", "m2")  # noqa: E731
        assert third.host.sh("systemctl is-enabled etcd || true").strip() == "disabled" and gone()
        third.host.reboot(expect="")
        third.host.sh("systemctl start --no-block etcd; sleep 7; systemctl stop etcd")
        delete(third)
        third.succeeds()
        assert gone() and third.host.exists(f"{DATA}/member/wal")

        # --- it is asked for again: a new member, without the data of the one that left ---
        third.publish()
        third.host.exec("systemctl", "kill", "-s", "HUP", UNIT)
        third.succeeds()
        wait_for(masters.healthy, 120, "etcd of three members")
        after, place = listed(first), peers("m3").pop()
        assert set(after) == set(before) and after[place] != before[place]
        assert third.host.exists(f"{DATA}/member.removed/wal")

        # --- without a quorum of the others it stays, Heat hears why, and the node is looked after still ---
        second.host.link(up=False)
        delete(third)
        why = third.result()
        assert "etcd would lose its quorum" in why and "m2" in why and "reset --abandon-etcd" in why, why
        assert listed(third) == after and third.host.is_active("etcd.service")
        third.host.sh("systemctl stop etcd")
        differs = lambda: [e for e in third.host.journal(HNA_EVENT="NodeDrift") if "etcd.service" in e["HNA_CAUSE"]]  # noqa: E731
        wait_for(differs, 120, "a look at the node")
        third.host.sh("systemctl start etcd")
        second.host.link(up=True)
        wait_for(masters.healthy, 120, "etcd of three members")

    # --- the whole stack: two leave one after the other, the last one has nobody to tell ---
    first.etcdctl("put", "/kept/1", "1")
    together(*(lambda node=node: delete(node) for node in masters.nodes))
    together(*(node.succeeds for node in masters.nodes))
    left = [node for node in masters.nodes if node.host.is_active("etcd.service")]
    assert len(left) == 1 and set(listed(left[0])) == peers(left[0].host.name)
    masters.nodes = left
    masters.have("/kept/", {"1"})
