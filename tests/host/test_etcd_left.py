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

        # --- without a quorum of the others it stays, Heat hears why once, and the node is looked after still ---
        second.host.link(up=False)
        delete(third)
        why = third.result()
        assert "etcd would lose its quorum" in why and "m2" in why and "deleted again" in why, why
        assert listed(third) == after and third.host.is_active("etcd.service")
        third.host.sh("systemctl stop etcd")
        differs = lambda: [e for e in third.host.journal(HNA_EVENT="NodeDrift") if "etcd.service" in e["HNA_CAUSE"]]  # noqa: E731
        wait_for(differs, 120, "a look at the node")
        third.host.sh("systemctl start etcd")
        wait_for(lambda: "is healthy" in third.etcdctl("endpoint", "health", seconds=5), 60, "its etcd")
        delete(third)
        third.succeeds()
        assert listed(third) == after and third.host.is_active("etcd.service")
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


@pytest.mark.longer
def test_a_stack_whose_etcd_knows_its_clients_by_name_is_deleted(hosts, signal_server, tmp_path):
    """As Magnum's: there is no gateway, so etcd's own tool removes the member; where that is not installed either, nobody waits for it."""
    masters = Masters(hosts, signal_server, tmp_path, is_shared=True)
    first, second, third = masters.nodes
    masters.up()
    wait_for(masters.healthy, 120, "etcd of three members")
    assert "ETCD_ENABLE_GRPC_GATEWAY" in third.host.read("/etc/etcd/allowed/names.conf")
    with masters.written_to(quorum=False):
        delete(third)
        third.succeeds()
        assert set(listed(first)) == peers("m1", "m2") and not third.host.is_active("etcd.service")
        masters.nodes = [first, second]
    # systemd-run's own PATH has it nowhere.
    second.host.sh("mkdir -p /root/away; mv $(command -v etcdctl) /root/away/etcdctl")
    delete(second)
    second.succeeds()
    waits = second.host.journal(HNA_EVENT="EtcdMemberFailed")
    assert "member remove" in waits[-1]["HNA_REMEDY"], waits
    assert set(listed(first)) == peers("m1", "m2") and second.host.is_active("etcd.service")


@pytest.mark.longer
def test_a_stack_whose_etcd_never_came_up_is_deleted(hosts, signal_server, tmp_path):
    """Of three masters one is there, and waits for the others."""
    masters = Masters(hosts, signal_server, tmp_path)
    only = masters.nodes[0]
    masters.begin(only)
    wait_for(lambda: only.host.exists(f"{DATA}/member/wal"), 120, "the log of a member without a leader")
    delete(only)
    only.succeeds()
