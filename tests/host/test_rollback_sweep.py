"""The agent is killed at each call by which it changes something, in an update of a node and in the rollback of one that fails. Wherever that
is, the next agent ends in one of the two generations as a whole. A master of real etcd and docker.
"""
import json
import uuid

import pytest
from lib.node import IP, NODE, VDB, once
from lib.volume_kills import window

BASE = {name: value for name, value in NODE.items() if name != "ETCD_VOLUME"}
# Two generations with the same files, one of which differs, and for which docker is restarted.
TWO = [BASE | {"HTTP_PROXY": f"http://192.0.2.{n}:3128"} for n in (1, 2)]
# docker dies of it at once. What only this one has: files, and a unit that is started and enabled.
BAD = TWO[0] | {"HTTP_PROXY": "http://192.0.2.66:3128", "FIREWALL": "nftables", "WAIT_TIMEOUT": 60}
TRAP = "[Service]\nExecStartPre=/bin/sh -c '! env | grep -q 192.0.2.66'\n"
# What is made, named, removed, and what systemd is asked to do. A file is written beside its place first, which is seen by nobody.
CALLS = "mkdirat,renameat,unlinkat,sendmsg"
STATE = "/var/lib/heat-node-agent"
# All that an update writes, but for who takes the firewall's rules away at the next boot.
FILES = "{ find /etc/systemd /etc/docker /etc/etcd /etc/kubernetes /etc/sysconfig /etc/sysctl.d /etc/modules-load.d -type f " \
        "-exec sha256sum {} + 2>/dev/null || :; } | sort -k 2; find /etc/systemd/system -type l -not -name 'heat-node-firewall*' | sort"


class Swept:
    def __init__(self, host):
        self.host, self.wrong = host, []

    def files(self) -> list[str]:
        return self.host.sh(FILES).splitlines()

    def problem(self, files: list[str], **expected) -> str | None:
        """What is wrong with the node and what is remembered of it."""
        node = json.loads(self.host.read(f"{STATE}/node.json"))
        found = {name: node[name] for name in expected}
        left = self.host.sh(f"cd {STATE}; ls | grep -xE '(replaced|rollback)[.]json' || :").split()
        active = self.host.sh("systemctl is-active docker etcd || :").split()
        rules = self.host.exec("nft", "list", "ruleset").stdout.count("heat-node-agent:")
        differences = sorted(set(files) ^ set(self.files()))
        wrong = [found] if found != expected else []
        wrong += [left] if left else []
        wrong += [active] if active != ["active", "active"] else []
        wrong += [f"{rules} rules"] if rules else []
        wrong += [differences] if differences else []
        return str(wrong) if wrong else None

    def sweep(self, name: str, words: str, status: int, step):
        """step(*prefix, deployment=…) is one pass, and returns its status with what is wrong after it."""
        host = self.host
        ended, wrong = step("strace", "-f", "-qq", "-s", "4096", "-o", "/run/calls", "-e", f"trace={CALLS}", deployment=str(uuid.uuid4()))
        assert (ended, wrong) == (status, None)
        calls = window(host.read("/run/calls"), words)
        kills = 0
        for call, number in calls:
            deployment = str(uuid.uuid4())
            at = f"{name} killed at {call} no. {number}"
            # systemd gives a unit up that is started too often; here one update follows the other within seconds.
            host.sh("systemctl reset-failed docker.service")
            ended, wrong = step("strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={call}", "-e", f"inject={call}:signal=KILL:when={number}",
                                deployment=deployment)
            assert ended in (137, status), f"{at}: ended with {ended}"
            if ended == 137:
                kills += 1
                ended, wrong = step(deployment=deployment)
            if ended != status or wrong:
                self.wrong.append(f"{at}: ended with {ended}, {wrong}")
            print(at, ended, wrong, flush=True)
        print(f"{name}: {kills} kills at {len(calls)} calls")
        # A sweep that kills nothing proves nothing; how often the bus is asked varies a little.
        assert kills >= len(calls) // 2 and {"renameat", "sendmsg"} <= {call for call, _ in calls}, calls


@pytest.mark.longer
def test_a_kill_at_any_call_of_an_update_or_its_rollback_ends_in_one_of_two_generations(hosts):
    host = hosts("n1", ip=IP, volumes={"vdb": ("1G", VDB)})
    host.install_agent()
    host.sh("mkdir -p /etc/systemd/system/docker.service.d")
    host.write("/etc/systemd/system/docker.service.d/99-trap.conf", TRAP)
    host.exec("systemctl", "daemon-reload")
    swept = Swept(host)
    files = []
    for one in TWO:
        assert once(host, **one) == 0
        files.append(swept.files())
    assert files[0] != files[1]
    directions = {}

    def update(*prefix, deployment: str):
        """There and back by turns: a deployment that goes on keeps its direction."""
        to = directions.setdefault(deployment, len(directions) % 2)
        ended = once(host, *prefix, deployment=deployment, **TWO[to])
        return ended, None if ended == 137 else swept.problem(files[to], state="applied", deployment=deployment)

    def failing(*prefix, deployment: str):
        ended = once(host, *prefix, deployment=deployment, **BAD)
        if ended == 137:
            return ended, None
        node = json.loads(host.read(f"{STATE}/node.json"))
        back = {"to": node["before"]["number"], "by_hand": False}
        said = f"rolled back: generation {back['to']} is in place again, and healthy"
        wrong = swept.problem(files[0], state="rejected", touched=False, back=back, deployment=deployment)
        return ended, wrong or (None if said in str(node["reason"]) and "docker" in str(node["reason"]) else str(node["reason"]))

    swept.sweep("update", r"node\.json", 0, update)
    assert once(host, **TWO[0]) == 0
    swept.sweep("rollback", r"rollback\.json", 1, failing)
    assert not swept.wrong, "\n".join(swept.wrong)
