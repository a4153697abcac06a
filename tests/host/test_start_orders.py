"""Three masters of a new cluster that begin one after the other, in whatever order: two of them are a quorum, which somebody writes to while the
third one is still to come."""
import itertools
import time

import pytest
from lib.common import wait_for
from lib.hosts import NET
from lib.masters import IPS, Masters, listed
from lib.pod_network import together

WAL = "/var/lib/etcd/default.etcd/member/wal"
# What the others' deployments have in all, and what Heat waits for.
LATE = 600


def changes(masters: Masters) -> list[str]:
    return masters.events("EtcdMemberChanged") + masters.events("EtcdMemberFailed")


def come_up(masters: Masters, order: tuple[str, ...], late: float = 0):
    by_name = {node.host.name: node for node in masters.nodes}
    first, second, third = (by_name[name] for name in order)
    masters.begin(first)
    begun = time.monotonic()
    wait_for(lambda: first.host.exists(WAL), NET, "the log of a member without a leader")
    masters.begin(second)
    together(first.succeeds, second.succeeds)
    with masters.written_to(by=first):
        wait_for(lambda: time.monotonic() > begun + late, late + 60, "ten minutes", every=5)
        assert first.healthy() and second.healthy() and not masters.healthy()
        before = listed(first)
        masters.begin(third)
        third.succeeds()
        wait_for(lambda: all(node.healthy() for node in masters.nodes) and masters.healthy(), NET, "healthy masters")
    print(f"{' '.join(order)}: the last one began {time.monotonic() - begun:.0f} s ago at most")
    assert listed(third) == before and set(before) == {f"https://{ip}:2380" for ip in IPS.values()}
    assert not masters.mistakes() and not changes(masters)


@pytest.mark.longer
@pytest.mark.parametrize("order", itertools.permutations(IPS), ids="-".join)
def test_masters_come_up_in_each_order(hosts, signal_server, tmp_path, order):
    come_up(Masters(hosts, signal_server, tmp_path), order)


@pytest.mark.longer
def test_the_first_master_comes_ten_minutes_after_the_others(hosts, signal_server, tmp_path):
    """When the time is over that their deployments had."""
    come_up(Masters(hosts, signal_server, tmp_path), ("m2", "m3", "m1"), LATE + 1)
