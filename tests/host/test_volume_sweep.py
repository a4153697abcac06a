"""The agent, and its mkfs, are killed at each call by which they change something while a volume is formatted, marked, mounted and grown;
and the host loses its power in between. Afterwards a fresh agent brings the volume to its place, with what was on it.
"""
from lib.common import run
from lib.node import IP, extend, loop_of, once
from lib.sweep import chosen
from lib.volume_kills import FORGET, MASTER, STORE, VOLUMES, WRAPPER, blank, killed_at, listed, prepare, problem, take_down, uuid


def sweep(host, name: str, fresh, kept: bool) -> list[str]:
    fresh()
    # The second run and those after it find everything else in place.
    assert once(host, **MASTER) == 0
    fresh()
    before = uuid(host)
    calls = listed(host, fresh)
    wrong = []
    kills, points = 0, chosen(calls)
    for call, number in points:
        fresh()
        kills += killed_at(host, name, call, number)
        # A mkfs that was started goes on; what it made is what is found later.
        host.wait_for(lambda: host.show("heat-program-mkfs-etcd.service", "ActiveState")["ActiveState"] in ("inactive", "failed"))
        made = before if kept else uuid(host)
        found = problem(host, f"{name} killed at {call} no. {number}", made, kept)
        wrong += [found] if found else []
    print(f"{name}: {kills} kills at {len(points)} of {len(calls)} calls")
    # A sweep that kills nothing proves nothing; how often the bus is asked varies a little.
    assert kills >= len(points) // 2 and {"renameat", "sendmsg"} <= {call for call, _ in calls}, calls
    return wrong


def test_a_kill_at_any_call_of_formatting_and_mounting_leaves_what_the_next_agent_finishes(hosts):
    host = hosts("n1", ip=IP, volumes=VOLUMES)
    prepare(host)
    wrong = sweep(host, "format", lambda: blank(host), kept=False)
    host.sh(f"echo kept >{STORE}/kept; sync")
    # No member of etcd in it, so that each rebuilt master is the first again.
    wrong += sweep(host, "reuse", lambda: (host.sh(f"systemctl stop etcd.service; rm -rf {STORE}/*.etcd"), take_down(host)), kept=True)
    assert not wrong, "\n".join(wrong)


def test_a_mkfs_that_is_killed_or_loses_its_power_is_done_again(hosts):
    host = hosts("n1", ip=IP, volumes=VOLUMES)
    prepare(host)
    blank(host)
    host.write("/run/mkfs-by", "strace -f -qq -o /run/mkfs-calls -e trace=pwrite64")
    assert once(host, **MASTER) == 0
    writes = host.read("/run/mkfs-calls").count("pwrite64(")
    # The superblock comes with the third write: before it the volume is blank, from then on it carries the UUID of the record.
    # How many there are varies by one or two.
    numbers = chosen([*range(1, 9), *range(10, writes - 2, 12)])
    wrong = []
    for number in numbers:
        blank(host)
        host.write("/run/mkfs-by", f"strace -f -qq -o /dev/null -e trace=pwrite64 -e inject=pwrite64:signal=KILL:when={number}")
        ended = once(host, **MASTER)
        host.remove("/run/mkfs-by")
        if ended == 0 and number > writes - 15:
            continue  # fewer writes this time
        assert ended == 1, f"mkfs was not killed at write no. {number} of {writes}"
        host.sh(f"{FORGET} || :")
        found = problem(host, f"mkfs killed at write no. {number} of {writes}", uuid(host))
        wrong += [found] if found else []
    assert not wrong, "\n".join(wrong)
    # The power goes while mkfs is not back yet, and with it whatever ran.
    for torn in (False, True):
        blank(host)
        host.write("/run/mkfs-by", "/usr/local/sbin/slow")
        agent = host.popen("/usr/bin/heat-node-agent", "run", "--once", "--metadata", "/var/tmp/document.json")
        host.wait_for(lambda: host.exists("/run/mkfs-done"))
        made = uuid(host)
        assert made
        device = loop_of(host, "vdc")
        host.cut()
        agent.wait(300)
        if torn:
            # All but the first block, as far as an allocation group goes.
            run("dd", "if=/dev/zero", f"of={device}", "bs=4096", "seek=1", "count=60000", "conv=notrunc", "status=none")
        host.boot()
        assert problem(host, f"power cut in mkfs, torn: {torn}", made) is None


def test_a_growth_that_is_killed_is_done_by_the_next_agent(hosts):
    host = hosts("n1", ip=IP, volumes=VOLUMES)
    prepare(host)
    host.sh("cp /usr/sbin/xfs_growfs /usr/local/sbin/growfs.real")
    host.write("/usr/local/sbin/growfs", WRAPPER.replace("mkfs-by", "growfs-by").replace("mkfs.real", "growfs.real"), 0o755)
    host.write("/etc/systemd/system/heat-program-.service.d/growfs.conf",
               "[Service]\nBindPaths=/usr/local/sbin/growfs:/usr/sbin/xfs_growfs\n")
    host.exec("systemctl", "daemon-reload")
    assert once(host, **MASTER) == 0
    host.sh(f"systemctl stop etcd.service; echo kept >{STORE}/kept")
    size = 1024

    def extend_again():
        nonlocal size
        size += 32
        extend(loop_of(host, "vdc"), f"{size}M")
        host.sh(f"{FORGET} || :")

    def mib() -> int:
        return int(host.sh(f"xfs_info {STORE} | sed -n 's/^data .* blocks=\\([0-9]*\\).*/\\1/p'")) // 256
    # All its ioctls, of which one grows.
    host.write("/run/growfs-by", "strace -f -qq -o /run/growfs-calls -e trace=ioctl")
    extend_again()
    assert once(host, **MASTER) == 0 and mib() == size
    calls = host.read("/run/growfs-calls").splitlines()
    assert any("FSGROWFSDATA" in line or "_IOC" in line for line in calls), calls
    torn = 0
    numbers = chosen(range(1, len(calls) + 1))
    for number in numbers:
        extend_again()
        host.write("/run/growfs-by", f"strace -f -qq -o /dev/null -e trace=ioctl -e inject=ioctl:signal=KILL:when={number}")
        # The node is up all the same, and the store as it is.
        assert once(host, **MASTER) == 0, number
        torn += len(host.journal(HNA_EVENT="VolumeNotGrown")) > torn
        host.remove("/run/growfs-by")
        host.sh(f"{FORGET} || :")
        assert once(host, **MASTER) == 0 and mib() == size, (number, mib(), size)
        assert host.read(f"{STORE}/kept") == "kept\n"
    assert numbers and torn == len(numbers), (torn, numbers, calls)
