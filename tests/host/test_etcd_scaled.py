"""One master that becomes three; three that become five, and three again, while somebody writes: the new ones join as members one at a
time, count for the quorum once they have caught up, and give their places up; no write that etcd has acknowledged is lost."""
import json

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


LOCK = "/heat-node-agent/renewal"
SLOW = "/etc/systemd/system/etcd.service.d/90-slow.conf"


def learners(node) -> list[str]:
    members = json.loads(node.etcdctl("member", "list", "-w", "json", seconds=5))["members"]
    return [member["peerURLs"][0] for member in members if member.get("isLearner")]


def is_cut_off(masters: Masters, node, is_started: bool):
    """Power is cut when it was added, before its etcd has started for the first time; or when that runs, before it is promoted."""
    first, place = masters.nodes[0], f"https://{node.host.ip}:2380"
    if is_started:
        assert node.host.is_active("etcd.service")
    else:
        assert not node.host.exists("/var/lib/etcd/default.etcd/member/wal")
    assert not node.host.is_active("kube-apiserver.service")
    node.host.cut()
    # It does not count: the others take what is written without it.
    count = len(masters.taken(first.host))
    wait_for(lambda: len(masters.taken(first.host)) > count + 20, NET, "writes without the learner")
    node.host.boot()
    if is_started:
        wait_for(lambda: node.host.is_active("etcd.service"), NET, "the learner's etcd")
        assert learners(first) == [place]


def becomes_three_from_one(masters: Masters):
    """Both of the new ones begin at once: one is a learner, then the other."""
    slow = "[Service]\nExecStartPre=/bin/sleep 20\n"
    both = masters.grow("m2", "m3", before=lambda node: node.host.write(SLOW, slow))
    first, places = masters.nodes[0], {f"https://{node.host.ip}:2380": node for node in both}
    wait_for(lambda: learners(first), NET, "a learner")
    # Somebody else has the turn until it is back.
    first.etcdctl("put", LOCK, "'m9 (by hand)'")
    place, = learners(first)
    one = places.pop(place)
    (next_place, other), = places.items()
    one.host.reported("EtcdMemberWaiting", words="does not vote yet")
    is_cut_off(masters, one, is_started=True)
    assert learners(first) == [place] and next_place not in listed(first)
    first.etcdctl("del", LOCK)
    wait_for(lambda: learners(first) == [next_place], NET, "the other one as a learner")
    is_cut_off(masters, other, is_started=False)
    together(*(node.succeeds for node in masters.nodes))
    wait_for(masters.healthy, NET, "etcd of three members")
    assert learners(first) == [] and set(listed(first)) == THREE
    for node in both:
        said = changes(node)
        assert [len([line for line in said if words in line]) for words in ("added this node", "and votes")] == [1, 1], said


@pytest.mark.longer
def test_one_master_becomes_three(hosts, signal_server, tmp_path):
    masters = Masters(hosts, signal_server, tmp_path, names=("m1",))
    masters.up()
    wait_for(masters.healthy, NET, "etcd of one member")
    run = masters.nodes[0].started()
    with masters.written_to():
        becomes_three_from_one(masters)
        assert "etcd" not in masters.nodes[0].restarted(run)
        # The new ones count.
        masters.nodes[0].host.exec("systemctl", "stop", "etcd")
        count = len(masters.taken(masters.nodes[0].host))
        wait_for(lambda: len(masters.taken(masters.nodes[0].host)) > count + 20, NET, "writes that the new ones have taken")
        masters.nodes[0].host.exec("systemctl", "start", "etcd", "kube-apiserver")
        wait_for(masters.healthy, NET, "etcd of three members")
    assert not masters.mistakes()
    assert masters.nodes[0].etcdctl("get", "--prefix", "--keys-only", "/heat-node-agent").split() == []
