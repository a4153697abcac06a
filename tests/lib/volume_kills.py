"""What is needed to kill the agent at each call by which it changes something, and to see whether the next one brings a volume to its place
with what was on it."""
import json
import re

from lib.common import run
from lib.node import NODE, VDB, VDC, loop_of, once

# What a killed agent began, the next one finishes: the same deployment.
MASTER = NODE | {"deployment": "node"}
VOLUMES = {"vdb": ("1G", VDB), "vdc": ("1G", VDC)}
STORE = "/var/lib/etcd"
RECORD = "/var/lib/heat-node-agent/volumes/etcd.json"
# Each pass is the first of its deployment; the records of volumes stay.
FORGET = "rm -rf /var/lib/heat-config; cd /var/lib/heat-node-agent 2>/dev/null && rm -rf deployments node.json work outbox"
MOUNT_UNIT = "/etc/systemd/system/var-lib-etcd.mount"
# What is made, named, removed, given an owner or a mode; and what systemd is asked to do.
CALLS = "mkdirat,renameat,unlinkat,fchmod,fchown,sendmsg"
# systemd is asked much; of those calls, these change something.
ORDERS = re.compile(r"(Reload|StartUnit|StopUnit|RestartUnit|StartTransientUnit|ResetFailedUnit)\\0")
# Runs the real mkfs with what the test says: under strace, or with something behind it.
WRAPPER = "#!/bin/sh\nexec $(cat /run/mkfs-by 2>/dev/null) /usr/local/sbin/mkfs.real \"$@\"\n"
SLOW = "#!/bin/sh\n\"$@\"\ntouch /run/mkfs-done\nexec sleep 6000\n"


def prepare(host):
    host.install_agent()
    host.sh("cp $(command -v mkfs.xfs) /usr/local/sbin/mkfs.real; mkdir -p /etc/systemd/system/heat-program-.service.d")
    host.write("/usr/local/sbin/mkfs.wrapper", WRAPPER, 0o755)
    host.write("/usr/local/sbin/slow", SLOW, 0o755)
    host.write("/etc/systemd/system/heat-program-.service.d/wrapper.conf",
               "[Service]\nBindPaths=/usr/local/sbin/mkfs.wrapper:/usr/sbin/mkfs.xfs\n")
    host.exec("systemctl", "daemon-reload")


def take_down(host):
    """The volume out of its place, as on a server that is rebuilt; docker and its volume, which are not asked about, stay."""
    host.sh(f"systemctl stop 'heat-program-*' '*inspect*.mount' etcd.service var-lib-etcd.mount 2>/dev/null || :; "
            f"! mountpoint -q {STORE} || umount {STORE}; rm -rf {MOUNT_UNIT} {STORE} {RECORD} /run/mkfs-*; mkdir -p {STORE}; {FORGET} || :")


def blank(host):
    take_down(host)
    run("blkdiscard", "-fz", loop_of(host, "vdc"))


def uuid(host) -> str:
    """Of the file system on the volume; nothing if there is none."""
    return run("blkid", "-p", "-o", "value", "-s", "UUID", loop_of(host, "vdc"), check=False).stdout.strip()


def problem(host, case: str, expected: str = "", kept: bool = False) -> str | None:
    """What is wrong after the next agent; expected: the UUID of the file system that must still be there."""
    status = once(host, **MASTER)
    if status:
        return f"{case}: {host.exec('heat-node-agent', 'status', check=False).stdout}"
    found = host.sh(f"findmnt -no UUID,LABEL {STORE} || :").split()
    record = json.loads(host.read(RECORD))
    if found != [record["fs_uuid"], "hna-etcd"] or record["state"] != "in_place" or (expected and found[0] != expected):
        return f"{case}: {found} is mounted, {expected or 'any'} expected, the record says {record}"
    if kept and host.read(f"{STORE}/kept") != "kept\n":
        return f"{case}: what was on the volume is lost"
    return None


ABOUT = r"etcd\.json|inspect-etcd|var-lib-etcd\.mount"


def window(trace: str, words: str = ABOUT) -> list[tuple[str, int]]:
    """The calls of the agent's first thread from the first one about the volume to the last: name, number among its kind."""
    counts: dict[str, int] = {}
    calls, about = [], []
    first = None
    for line in trace.splitlines():
        match = re.match(r"(\d+) +(\w+)\((.*)", line)
        if not match or match[1] != (first := first or match[1]):
            continue
        counts[match[2]] = counts.get(match[2], 0) + 1
        # What failed changed nothing: most of it is "there is none" and "there is one".
        if " = -1 " in match[3] or (match[2] == "sendmsg" and not ORDERS.search(match[3])):
            continue
        calls.append((match[2], counts[match[2]]))
        about += [len(calls)] if re.search(words, match[3]) else []
    return calls[about[0] - 1:about[-1]]


def listed(host, fresh, words: str = ABOUT) -> list[tuple[str, int]]:
    """The window of the quietest of three runs: how often systemd is asked while something is waited for follows the load."""
    found = []
    for _ in range(3):
        fresh()
        assert once(host, "strace", "-f", "-qq", "-s", "4096", "-o", "/run/calls", "-e", f"trace={CALLS}", **MASTER) == 0
        found.append(window(host.read("/run/calls"), words))
    return min(found, key=lambda calls: max(number for call, number in calls if call == "sendmsg"))


def killed_at(host, case: str, call: str, number: int) -> bool:
    """A pass that is killed at one of its calls, if it comes to that one."""
    status = once(host, "strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={call}",
                  "-e", f"inject={call}:signal=KILL:when={number}", **MASTER)
    assert status in (137, 0), f"{case}: ended with {status} at {call} no. {number}"
    return status == 137
