"""A master of three that is replaced by a new machine of the same name and address, without its etcd data, while somebody writes: the new one takes
the place of its dead member, once, and no write that etcd has acknowledged is lost."""
import re

import pytest
from lib.certificates import aged
from lib.cluster import ETCD
from lib.common import wait_for
from lib.hosts import NET
from lib.masters import IPS, Masters, listed
from lib.node import UNIT
from lib.pod_network import together

LOCK = "/heat-node-agent/renewal"
JOIN = "/etc/etcd/join.conf"
HELD = "m9 (by hand)"
# Of a master that waits for it.
TURN = "turn"
# Where the one that is replaced speaks to the others.
PLACE = f"https://{IPS['m3']}:2380"


def changes(node) -> list[str]:
    return [e["MESSAGE"] for e in node.host.journal(HNA_EVENT="EtcdMemberChanged")]


def kill_between(first, third, place: str, go):
    """SIGKILL for the agent when the old member is removed and the new one is not added: from the look before its turn it goes on a few
    milliseconds at a time."""
    host, old = third.host, listed(first)[place]
    pid = host.show(UNIT, "MainPID")["MainPID"]
    # Each look writes it where it is not there.
    stopped = host.popen("nice", "-n", "-20", "bash", "-c",
                         f"rm -f {JOIN}; until [ -e {JOIN} ]; do :; done; kill -STOP {pid}")
    assert stopped.wait(120) == 0
    go()
    while (now := listed(first).get(place)) == old:
        host.sh(f"kill -CONT {pid}; sleep 0.03; kill -STOP {pid}")
    assert now is None, "it was added before it was seen to be removed"
    # systemd begins it anew.
    host.sh(f"kill -KILL {pid}")
    assert first.etcdctl("get", "--print-value-only", LOCK).split()[0] == host.name, "somebody else may come in between"


def does_not_start(host):
    """Whoever starts etcd: a boot does so, too."""
    assert f'ETCD_INITIAL_CLUSTER="{host.name}=https://{IPS[host.name]}:2380"\n' in host.read(JOIN)
    host.sh("systemctl start --no-block etcd; sleep 7")
    assert not host.is_active("etcd.service") and not host.exists("/var/lib/etcd/default.etcd/member/wal")


def test_where_etcd_knows_its_clients_by_name(hosts, signal_server, tmp_path):
    """As with Magnum's CA: etcd's gateway is off, so that the agent changes no members, but it sees them."""
    masters = Masters(hosts, signal_server, tmp_path, is_shared=True)
    first, second, third = masters.nodes
    place = f"https://{IPS['m3']}:2380"
    masters.begin(first, second)
    together(first.succeeds, second.succeeds)
    assert "ETCD_ENABLE_GRPC_GATEWAY" in first.host.read("/etc/etcd/allowed/names.conf")

    # --- a late one joins as the member that the others have had from the beginning ---
    masters.begin(third)
    third.succeeds()
    wait_for(masters.healthy, NET, "etcd of three members")
    before = listed(first)

    # --- certificates that are due for long: masters take turns by the clock, as no key can be held ---
    first.host.exec("systemctl", "stop", UNIT)
    issued = masters.issued()
    for path, folder, *_ in first.certificates():
        aged(first.at(f"{path}.crt"), masters.cas[folder], 200, 60)
    first.host.exec("systemctl", "start", UNIT)
    wait_for(lambda: masters.renewed(issued)[0] or [c for c in masters.events("RenewalWaiting") if TURN in c], NET, "a renewal, or a turn to wait for")
    assert not [cause for cause in masters.events("RenewalWaiting") if TURN not in cause]

    # --- a machine is replaced: what an operator types is shown, and is all that it takes ---
    third.host.down()
    third.host = hosts("m3", ip=IPS["m3"])
    masters.begin(third)
    waits = third.host.reported("EtcdMemberWaiting", words="its JSON gateway")[0]
    typed = re.findall(r"`(ETCDCTL_API=3 etcdctl [^`]+)`", waits["HNA_REMEDY"])
    assert [re.search(r" member (add|remove) ", line)[1] for line in typed] == ["remove", "add"], waits
    for line in typed:
        third.host.sh(line)
    third.succeeds()
    wait_for(masters.healthy, NET, "etcd of three members again")
    assert listed(first)[place] != before[place]


def starts_as_the_member_that_it_was(masters: Masters) -> dict:
    """One is late for a new cluster: it starts as the member that the others have had from the beginning."""
    first, second, third = masters.nodes
    masters.begin(first, second)
    first.succeeds()
    second.succeeds()
    before = listed(first)
    assert len(before) == 3
    masters.begin(third)
    third.succeeds()
    wait_for(masters.healthy, NET, "etcd of three members")
    assert listed(first) == before and not any(changes(node) for node in masters.nodes)
    for node in masters.nodes:
        assert f'"{node.host.name}=https://{IPS[node.host.name]}:2380"' in node.host.read(JOIN), "it would start without data"
    return before


def waits_for_the_one_that_is_away(masters: Masters, hosts, before: dict) -> set:
    """Replaced by one that is to join, while the one that is left to hear was away when the lost one acknowledged writes: if it started as
    it was, these two would be a quorum without them."""
    first, second, third = masters.nodes
    second.host.link(up=False)
    wait_for(lambda: first.etcdctl("put", "/kept/0", "0", seconds=4), NET, "a leader among the first and the third")
    first.host.sh(f"for n in $(seq 1 20); do ETCDCTL_API=3 etcdctl --endpoints https://{IPS['m1']}:2379 --cacert {ETCD}/ca.crt "
                  f"--cert {ETCD}/admin.crt --key {ETCD}/admin.key put /kept/$n $n; done")
    kept = {str(number) for number in range(21)}
    third.host.down()
    first.host.link(up=False)
    second.host.link(up=True)
    third.host = hosts("m3", ip=IPS["m3"])
    third.inputs["ETCD_INITIAL_CLUSTER_STATE"] = "existing"
    masters.begin(third)
    waits = third.host.reported("EtcdMemberWaiting", words="cannot start yet")[0]
    assert "cannot be replaced" in waits["HNA_CAUSE"] and "m2" in waits["HNA_CAUSE"], waits
    does_not_start(third.host)
    first.host.link(up=True)
    third.succeeds()
    wait_for(masters.healthy, NET, "etcd of three members")
    assert listed(first)[PLACE] != before[PLACE]
    masters.have("/kept/", kept)
    third.inputs["ETCD_INITIAL_CLUSTER_STATE"] = "new"
    return kept


def removes_nothing_while_another_is_down(masters: Masters, hosts):
    """It is replaced while another one is down: nothing is removed, and it says who is missing."""
    first, second, third = masters.nodes
    first.etcdctl("put", LOCK, f"'{HELD}'")
    second.host.cut()
    third.host.down()
    third.host = hosts("m3", ip=IPS["m3"])
    masters.begin(third)
    waits = third.host.reported("EtcdMemberWaiting", words="cannot start yet")[0]
    assert "cannot be replaced" in waits["HNA_CAUSE"] and "m2" in waits["HNA_CAUSE"], waits
    shown = third.host.exec("heat-node-agent", "status", check=False).stdout
    assert "etcd member" in shown and "m2" in shown, shown
    does_not_start(third.host)


def waits_for_the_lock(masters: Masters, before: dict):
    """The other one is back, and somebody has the lock."""
    first, second, third = masters.nodes
    second.host.boot()
    wait_for(lambda: listed(first, 5) == before, NET, "two members of three, which list what they did")
    wait_for(lambda: any(HELD in e["HNA_CAUSE"] for e in third.host.journal(HNA_EVENT="EtcdMemberWaiting")), NET, "the wait for the lock")
    assert listed(first) == before


def takes_its_turn(masters: Masters, before: dict, kept: set) -> dict:
    """It is this one's turn, and the agent is killed in the middle."""
    first, second, third = masters.nodes
    kill_between(first, third, PLACE, lambda: first.etcdctl("del", LOCK))
    third.succeeds()
    wait_for(masters.healthy, NET, "etcd of three members again")
    after = listed(first)
    assert {url for url in after} == {url for url in before} and after[PLACE] != before[PLACE], (before, after)
    said = changes(third)
    assert len([line for line in said if "added this node" in line]) == 1 and len([line for line in said if "removed" in line]) <= 1, said
    assert not any(changes(node) for node in (first, second))
    assert first.etcdctl("get", "--prefix", "--keys-only", "/heat-node-agent").split() == []
    assert f'"m3={PLACE}"' in third.host.read(JOIN), "a list by which it could start with its old id"
    masters.have("/kept/", kept)
    return after


def replaces_itself_on_the_same_machine(masters: Masters, known: tuple) -> tuple:
    """Its data is lost on the same machine: etcd does not start without, and the next deployment has it take its place again."""
    first, second, third = masters.nodes
    third.host.sh("systemctl stop etcd; rm -rf /var/lib/etcd/default.etcd/member")
    does_not_start(third.host)
    third.update(WAIT_TIMEOUT=601)
    third.succeeds()
    wait_for(masters.healthy, NET, "etcd of three members once more")
    assert listed(first)[PLACE] not in known
    last, said = listed(first), changes(third)
    third.update(WAIT_TIMEOUT=602)
    third.succeeds()
    assert (listed(first), changes(third)) == (last, said)
    return last, said


def mends_what_a_run_left(masters: Masters, last: dict, said: list):
    """What a run that was cut off left is found by the agent's next look: a list by which etcd could start without data."""
    first, second, third = masters.nodes
    third.host.sh(f"systemctl stop heat-node-agent; printf 'ETCD_INITIAL_CLUSTER_STATE=\"new\"\\n' > {JOIN}; systemctl start heat-node-agent")
    wait_for(lambda: f'"m3={PLACE}"' in third.host.read(JOIN), NET, "a file that keeps etcd from starting without data")
    assert (listed(first), changes(third)) == (last, said)


def tells_a_loss(masters: Masters, kept: set):
    """What says that nothing is lost would say it if something were."""
    first = masters.nodes[0]
    first.etcdctl("del", "/kept/7")
    with pytest.raises(AssertionError, match="'7'"):
        masters.have("/kept/", kept)


def gives_its_place_up(masters: Masters, before: dict, kept: set):
    """It is taken out: it gives its place in etcd up, and those that are left go on without it."""
    first, second, third = masters.nodes
    out = third.host.exec("heat-node-agent", "reset", check=False)
    assert out.returncode == 0, out.stdout + out.stderr
    assert set(listed(first)) == set(before) - {PLACE}
    assert not third.host.is_active("etcd.service") and not third.host.exists("/var/lib/etcd/default.etcd/member")
    masters.nodes.remove(third)
    masters.have("/kept/", kept - {"7"})


@pytest.mark.longer
def test_a_replaced_master_takes_the_place_of_its_dead_member(hosts, signal_server, tmp_path):
    masters = Masters(hosts, signal_server, tmp_path)
    before = starts_as_the_member_that_it_was(masters)
    kept = waits_for_the_one_that_is_away(masters, hosts, before)
    before = listed(masters.nodes[0])
    with masters.written_to(quorum=False):
        removes_nothing_while_another_is_down(masters, hosts)
        waits_for_the_lock(masters, before)
        after = takes_its_turn(masters, before, kept)
        last, said = replaces_itself_on_the_same_machine(masters, (before[PLACE], after[PLACE]))
        mends_what_a_run_left(masters, last, said)
    tells_a_loss(masters, kept)
    gives_its_place_up(masters, before, kept)
