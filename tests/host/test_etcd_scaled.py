"""Three masters that become five, and three again, while somebody writes: the new ones join as members one at a time, count for the quorum, and give
their places up; no write that etcd has acknowledged is lost."""
import pytest
from lib.common import wait_for
from lib.hosts import NET
from lib.masters import ALL, IPS, Masters, initial_cluster, listed
from lib.node import UNIT
from lib.pod_network import together

FIVE, THREE = ({f"https://{ip}:2380" for ip in ips.values()} for ips in (ALL, IPS))


def changes(node) -> list[str]:
    return [e["MESSAGE"] for e in node.host.journal(HNA_EVENT="EtcdMemberChanged")]


def becomes_five(masters: Masters):
    old, before = list(masters.nodes), listed(masters.nodes[0])
    runs = [node.started() for node in old]
    masters.grow("m4", "m5")
    together(*(node.succeeds for node in masters.nodes))
    wait_for(masters.healthy, NET, "etcd of five members")
    after = listed(old[0])
    assert set(after) == FIVE and {url: after[url] for url in before} == before
    assert [node.restarted(run) for node, run in zip(old, runs)] == [set()] * 3
    assert [len([line for line in changes(node) if "added this node" in line]) for node in masters.nodes] == [0, 0, 0, 1, 1]


def new_ones_count(masters: Masters):
    """Without two of the old ones the other three are a quorum."""
    first, *away = masters.nodes[:3]
    for node in away:
        node.host.exec("systemctl", "stop", "etcd")
    count = len(masters.taken(first.host))
    wait_for(lambda: len(masters.taken(first.host)) > count + 20, NET, "writes that the new ones have taken")
    for node in away:
        node.host.exec("systemctl", "start", "etcd", "kube-apiserver")
    wait_for(masters.healthy, NET, "etcd of five members")
    masters.have("/writer/", masters.taken(first.host))


def becomes_three(masters: Masters):
    """As Heat does it: what is to go is deleted, all of it at once, and the others learn of the shorter list."""
    old, more = masters.nodes[:3], masters.nodes[3:]
    before, runs = listed(old[0]), [node.started() for node in old]
    for node in more:
        node.publish("DELETE")
        node.host.exec("systemctl", "kill", "-s", "HUP", UNIT)
    together(*(node.succeeds for node in more))
    for node in more:
        assert not node.host.is_active("etcd.service")
        node.host.down()
    for node in old:
        node.update(ETCD_INITIAL_CLUSTER=initial_cluster(IPS))
    together(*(node.succeeds for node in old))
    masters.nodes = old
    wait_for(masters.healthy, NET, "etcd of three members")
    after = listed(old[0])
    assert set(after) == THREE and {url: before[url] for url in after} == after
    assert [node.restarted(run) for node, run in zip(old, runs)] == [set()] * 3


@pytest.mark.longer
def test_masters_become_five_and_three_again(hosts, signal_server, tmp_path):
    masters = Masters(hosts, signal_server, tmp_path)
    masters.up()
    wait_for(masters.healthy, NET, "etcd of three members")
    with masters.written_to():
        becomes_five(masters)
        new_ones_count(masters)
        becomes_three(masters)
    assert not masters.mistakes()
    first = masters.nodes[0]
    assert first.etcdctl("get", "--prefix", "--keys-only", "/heat-node-agent").split() == []
