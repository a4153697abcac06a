"""The agent is killed at each call by which it changes something while etcd's data moves to a volume. Afterwards a fresh agent finishes the
move, and nothing is lost. As long as all of test_volume_sweep.py, so that two workers have one each.
"""
from lib import volume_kills
from lib.common import run
from lib.node import IP, loop_of, once
from lib.sweep import chosen
from lib.volume_kills import ABOUT, FORGET, MASTER, STORE, VOLUMES, killed_at


def test_a_kill_at_any_call_of_a_move_leaves_the_member_with_its_data(hosts):
    host = hosts("n1", ip=IP, volumes=VOLUMES)
    host.install_agent()
    without = {name: value for name, value in MASTER.items() if name != "ETCD_VOLUME"}
    assert once(host, **without) == 0
    etcdctl = "ETCDCTL_API=3 etcdctl --dial-timeout=60s --command-timeout=60s --endpoints http://127.0.0.1:2379"
    host.sh(f"{etcdctl} put colour blue; systemctl stop etcd.service; cp -a /etc/systemd/system /root/system; cp -a {STORE} /root/store")
    members = host.sh("systemctl start etcd.service; " + (listed := f"{etcdctl} member list | cut -d, -f1"))

    def fresh():
        host.sh(f"systemctl stop 'heat-program-*' '*inspect*.mount' '*move*.mount' etcd.service var-lib-etcd.mount 2>/dev/null || :; "
                f"! mountpoint -q {STORE} || umount {STORE}; rm -rf {STORE} {STORE}.before-volume-* /etc/systemd/system "
                "/var/lib/heat-node-agent/volumes/etcd*; cp -a /root/system /etc/systemd/system; cp -a /root/store " + STORE +
                f"; {FORGET} || :; systemctl daemon-reload; systemctl start etcd.service")
        run("blkdiscard", "-fz", loop_of(host, "vdc"))

    def wrong_after(case: str) -> str | None:
        if once(host, **MASTER):
            return f"{case}: {host.exec('heat-node-agent', 'status', check=False).stdout}"
        found = host.sh(f"findmnt -no LABEL {STORE}; {etcdctl} get colour --print-value-only; ls -d {STORE}/default.etcd {STORE}.before-volume-*/*; "
                        f"ls -A {STORE} /var/lib/heat-node-agent/volumes; findmnt -no TARGET /run/heat-node-agent/move/etcd || :").split()
        good = ["hna-etcd", "blue", f"{STORE}/default.etcd", f"{STORE}.before-volume-1/default.etcd", f"{STORE}:", ".heat-node-agent",
                "default.etcd", "/var/lib/heat-node-agent/volumes:", "etcd.json", "runtime.json"]
        if sorted(found) != sorted(good) or host.sh(listed) != members:
            return f"{case}: {found} {host.sh(listed)}"
        return None

    calls = volume_kills.listed(host, fresh, rf"{ABOUT}|etcd-move|default\.etcd")
    # What is named, made and ordered; of the rest, most of which is the agent's notes of programs that ended, one in three,
    # and the last one, which forgets the move.
    last = len(calls) - 1
    calls = [one for at, one in enumerate(calls) if one[0] in ("renameat", "mkdirat", "sendmsg") or (last - at) % 3 == 0]
    wrong, kills, points = [], 0, chosen(calls)
    for call, number in points:
        fresh()
        kills += killed_at(host, "move", call, number)
        found = wrong_after(f"killed at {call} no. {number}")
        wrong += [found] if found else []
    print(f"move: {kills} kills at {len(points)} of {len(calls)} calls")
    assert not wrong, "\n".join(wrong)
    assert kills >= len(points) // 2 and {"renameat", "sendmsg"} <= {call for call, _ in calls}, calls
