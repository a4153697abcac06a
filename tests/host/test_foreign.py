"""Volumes that are somebody else's: each is refused by name and stays as it is, to the last byte."""
import errno
import hashlib
import os
import struct
import subprocess
from pathlib import Path

import pytest
from lib.common import run, wait_for
from lib.node import IP, NODE, VDB, loop_of, once

# Everything that parameters can allow. On a worker nothing is started before its volume is there.
WORKER = {"ROLE": "worker", "INSTANCE_NAME": "w-1", "KUBE_NODE_IP": IP, "CLUSTER_UUID": NODE["CLUSTER_UUID"], "DOCKER_VOLUME": VDB,
          "DOCKER_VOLUME_FORMAT": "if-no-signature", "WAIT_TIMEOUT": 600}
MIB = 1 << 20
# So long samples of a disk are read (agent/storage/survey.rs).
SAMPLING_MS = 20_000
SIZE = 320 * MIB


def md(version: int, minor: int) -> list[tuple[int, bytes]]:
    """A superblock of Linux' software RAID (kernel.org, RAID superblock formats): where each version has it."""
    magic = struct.pack("<I", 0xA92B4EFC)
    if version == 0:
        # No checksum, which nobody asks for before the array is assembled.
        return [((SIZE & ~0xFFFF) - 0x10000, magic + struct.pack("<III", 0, 90, 0))]
    at = {0: (SIZE - 8192) & ~0xFFF, 1: 0, 2: 4096}[minor]
    head = magic + struct.pack("<III", 1, 0, 0) + bytes(range(1, 17)) + b"host:0".ljust(32, b"\0")
    block = bytearray((head.ljust(144, b"\0") + struct.pack("<Q", at // 512)).ljust(256, b"\0"))
    # The sum of its words, folded: blkid asks for it since util-linux 2.39.
    total = sum(struct.unpack("<64I", block))
    struct.pack_into("<I", block, 216, ((total >> 32) + total) & 0xFFFFFFFF)
    return [(at, bytes(block))]


def zfs_list(**values: int | str) -> bytes:
    """A list of names and values as it is in a label (1.3.3, libnvpair's XDR encoding)."""
    def text(word: str) -> bytes:
        return struct.pack(">I", len(word)) + word.encode() + b"\0" * (-len(word) % 4)

    def pair(name: str, value: int | str) -> bytes:
        kind, data = (8, struct.pack(">Q", value)) if isinstance(value, int) else (9, text(value))
        rest = text(name) + struct.pack(">II", kind, 1) + data
        in_memory = sum((length + 7) // 8 * 8 for length in (16 + len(name) + 1, 8 if isinstance(value, int) else len(value) + 1))
        return struct.pack(">II", len(rest) + 8, in_memory) + rest

    return b"\1\1\0\0" + struct.pack(">II", 0, 1) + b"".join(pair(*each) for each in values.items()) + bytes(8)


def zfs(*labels: int) -> list[tuple[int, bytes]]:
    """Labels of a pool (ZFS On-Disk Specification, 1.2.1 and 1.3), of which two are at either end: what it is, by which blkid knows it since
    util-linux 2.41, and in the second half uberblocks, 128 of 1 KiB each."""
    size = SIZE // (256 * 1024) * (256 * 1024)
    starts = [0, 256 * 1024, size - 512 * 1024, size - 256 * 1024]
    block = struct.pack("<QQQ", 0x00BAB10C, 5000, 7)
    pool = zfs_list(version=5000, name="tank", state=0, txg=7, pool_guid=0x1122334455667788, guid=0x2122334455667788)
    return [(starts[label] + 16 * 1024, pool) for label in labels] + [
        (starts[label] + 128 * 1024 + at * 1024, block) for label in labels for at in range(8)]


QUICK = "--pbkdf pbkdf2 --pbkdf-force-iterations 1000"
ZERO_HEAD = "dd if=/dev/zero of={d} bs=1M count=1 conv=notrunc status=none"

# What it is, as the refusal and blkid(8) spell it (None: blkid does not see it), and who makes it: a shell command where Debian has
# the real tool and this kernel lets it work, else bytes by the format's specification.
FOREIGN = [
    ("ext2", "ext2", "mkfs.ext2 -qF {d}"),
    ("ext3", "ext3", "mkfs.ext3 -qF {d}"),
    ("ext4", "ext4", "mkfs.ext4 -qF {d}"),
    ("xfs", "xfs", "mkfs.xfs -qf {d}"),
    ("btrfs", "btrfs", "mkfs.btrfs -qf {d}"),
    ("f2fs", "f2fs", "mkfs.f2fs -qf {d}"),
    ("vfat", "vfat", "mkfs.vfat {d}"),
    ("ntfs", "ntfs", "mkntfs -qFf {d}"),
    ("swap", "swap", "mkswap {d}"),
    ("squashfs", "squashfs", "mksquashfs {tmp}/content {tmp}/sq -noappend -quiet && dd if={tmp}/sq of={d} conv=notrunc status=none"),
    ("erofs", "erofs", "mkfs.erofs {tmp}/er {tmp}/content && dd if={tmp}/er of={d} conv=notrunc status=none"),
    ("iso9660", "iso9660", "genisoimage -quiet -o {tmp}/iso {tmp}/content && dd if={tmp}/iso of={d} conv=notrunc status=none"),
    ("gpt", "gpt", "echo label: gpt | sfdisk -q --no-reread --no-tell-kernel {d}"),
    # The copy at the end alone, as after a `dd` over the beginning.
    ("gpt", None, "echo label: gpt | sfdisk -q --no-reread --no-tell-kernel {d} && " + ZERO_HEAD),
    # Code that boots, and no table of partitions.
    ("boot sector", None, "printf 'A%.0s' $(seq 510) | dd of={d} conv=notrunc status=none; printf '\\125\\252' | dd of={d} bs=1 seek=510 conv=notrunc status=none"),
    ("dos", "dos", "printf 'label: dos\\n,10M\\n' | sfdisk -q --no-reread --no-tell-kernel {d}"),
    ("LVM2_member", "LVM2_member", "pvcreate -qfy --config 'devices{{filter=[\"a|{d}|\",\"r|.*|\"]}} activation{{udev_sync=0 udev_rules=0}}' {d}"),
    ("crypto_LUKS", "crypto_LUKS", "cryptsetup luksFormat -q --type luks1 --pbkdf-force-iterations 1000 {d} {tmp}/pass"),
    ("crypto_LUKS", "crypto_LUKS", f"cryptsetup luksFormat -q --type luks2 {QUICK} {{d}} {{tmp}}/pass"),
    ("crypto_LUKS", "crypto_LUKS", f"cryptsetup luksFormat -q --type luks2 {QUICK} {{d}} {{tmp}}/pass && dd if=/dev/zero of={{d}} bs=16k count=1 conv=notrunc status=none"),
    ("crypto_LUKS", "crypto_LUKS", f"cryptsetup luksFormat -q --type luks2 --luks2-metadata-size 4m {QUICK} {{d}} {{tmp}}/pass && {ZERO_HEAD}"),
    ("bcache", "bcache", "make-bcache -B {d}"),
    ("bcache", "bcache", "make-bcache -C {d}"),
    ("drbd", "drbd", "yes | drbdmeta --force 0 v08 {d} internal create-md"),
    ("drbd", "drbd", "yes | drbdmeta --force 0 v09 {d} internal create-md 1"),
    # mdadm writes nothing where the kernel has no MD; ZFS is not in Debian's main section.
    ("linux_raid_member", "linux_raid_member", md(0, 90)),
    ("linux_raid_member", "linux_raid_member", md(1, 0)),
    ("linux_raid_member", "linux_raid_member", md(1, 1)),
    ("linux_raid_member", "linux_raid_member", md(1, 2)),
    ("zfs_member", "zfs_member", zfs(0, 1, 2, 3)),
    ("zfs_member", None, zfs(0)),
    ("zfs_member", None, zfs(3)),
]


def put(device: str, how, tmp):
    """By a command, or by bytes at places."""
    if isinstance(how, str):
        run("bash", "-ec", how.format(d=device, tmp=tmp), input="")
    else:
        with open(device, "r+b") as disk:
            for at, data in how:
                disk.seek(at)
                disk.write(data)
            os.fsync(disk.fileno())


def make(device: str, how, tmp):
    run("blkdiscard", "-fz", device)
    put(device, how, tmp)
    run("sync")


# Those that begin where they are put, for the inside of a disk. An ISO's or LVM's tool wants the whole of what it is given; so does each.
WITHIN = [(kind, how) for kind, seen, how in FOREIGN if seen and isinstance(how, str) and kind != "gpt"] + [
    ("linux_raid_member", md(1, 1)), ("linux_raid_member", md(1, 2)), ("zfs_member", zfs(0))]


def make_within(device: str, begins: int, how, tmp):
    """The same in a partition whose table is wiped: all of the disk from `begins` on, but its last MiB."""
    run("blkdiscard", "-fz", device)
    backing = backing_of(device)
    part = run("losetup", "--find", "--show", "--offset", str(begins), "--sizelimit", str(SIZE - begins - MIB), backing).stdout.strip()
    try:
        put(part, how, tmp)
        run("blockdev", "--flushbufs", part)
    finally:
        run("losetup", "--detach", part)
    run("sync")
    run("blockdev", "--flushbufs", device)


def backing_of(device: str) -> str:
    return Path(f"/sys/block/{Path(device).name}/loop/backing_file").read_text().strip()


def digest(device: str) -> str:
    """Of the volume's content, read only where the file behind it has any."""
    run("blockdev", "--flushbufs", device)
    backing = backing_of(device)
    found, end = hashlib.sha256(), 0
    with open(backing, "rb") as file:
        os.fsync(file.fileno())
        while True:
            try:
                start = os.lseek(file.fileno(), end, os.SEEK_DATA)
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise
                return found.hexdigest()
            end = os.lseek(file.fileno(), start, os.SEEK_HOLE)
            for at in range(start, end, 4096):
                block = os.pread(file.fileno(), 4096, at)
                if any(block):
                    found.update(b"%d " % at + block)


@pytest.fixture
def worker(hosts):
    host = hosts("n1", ip=IP, volumes={"vdb": (str(SIZE), VDB)})
    host.install_agent()
    return host


def refusal(host) -> str:
    """Why one pass refuses the volume."""
    before = len(host.journal(HNA_EVENT="VolumeRefused"))
    assert once(host, **WORKER) == 1
    refusals = host.reported("VolumeRefused", before + 1)
    status = host.exec("heat-node-agent", "status", check=False).stdout
    assert "HNA-0306" in status, status
    return refusals[-1]["HNA_CAUSE"]


def test_whatever_is_somebody_elses_is_refused_by_name_and_stays_as_it_is(worker, tmp_path):
    (tmp_path / "content").mkdir()
    (tmp_path / "content/file").write_text("somebody's\n")
    (tmp_path / "pass").write_bytes(os.urandom(16).hex().encode())
    device = loop_of(worker, "vdb")
    wrong = []
    for kind, seen, how in FOREIGN:
        make(device, how, tmp_path)
        # Another program's word on what was made: the table proves nothing if it makes something else.
        probed = subprocess.run(["blkid", "-p", "-o", "export", device], capture_output=True, text=True).stdout
        if seen and f"TYPE={seen}\n" not in probed:
            wrong.append(f"{kind} by {how}: blkid sees {probed!r}")
        before = digest(device)
        why = refusal(worker)
        if kind not in why:
            wrong.append(f"{kind} by {how}: {why}")
        if digest(device) != before:
            wrong.append(f"{kind} by {how}: changed")
    assert not wrong, "\n".join(wrong)


def test_a_file_system_whose_partition_table_was_wiped_is_refused_by_name_and_stays_as_it_is(worker, tmp_path):
    (tmp_path / "content").mkdir()
    (tmp_path / "content/file").write_text("somebody's\n")
    (tmp_path / "pass").write_bytes(os.urandom(16).hex().encode())
    device = loop_of(worker, "vdb")
    wrong = []
    # Where tools of today begin a first partition, where those of the past did, and one behind another partition.
    for begins, name in ((MIB, "1 MiB"), (63 * 512, "sector 63"), (10 * MIB, "10 MiB")):
        for kind, how in WITHIN if begins == MIB else WITHIN[:6]:
            make_within(device, begins, how, tmp_path)
            before = digest(device)
            why = refusal(worker)
            if f"{kind} " not in f"{why} " or not (f"begins at {name}" in why or "has a signature of" in why):
                wrong.append(f"{kind} at {name} by {how}: {why}")
            if digest(device) != before:
                wrong.append(f"{kind} at {name} by {how}: changed")
    assert not wrong, "\n".join(wrong)


def test_a_large_blank_volume_is_read_in_seconds_and_one_byte_in_it_is_found(hosts):
    host = hosts("n1", ip=IP, volumes={"vdb": ("100G", VDB)})
    host.install_agent()
    device = loop_of(host, "vdb")
    blank = {**WORKER, "DOCKER_VOLUME_FORMAT": "if-blank"}

    def strange(at: int, data: bytes):
        with open(device, "r+b") as disk:
            disk.seek(at)
            disk.write(data)
            os.fsync(disk.fileno())

    strange(25 * 1024 * MIB + 5, b"x")
    before = len(host.journal(HNA_EVENT="VolumeRefused"))
    assert once(host, **blank) == 1
    assert f"unknown data at byte {25 * 1024 * MIB + 5}" in host.reported("VolumeRefused", before + 1)[-1]["HNA_CAUSE"]
    # Not by blkdiscard: zeros that are written out to a loop device take their room on this machine's disk.
    strange(25 * 1024 * MIB + 5, b"\0")
    # What comes behind the volume does not matter here.
    once(host, **blank)
    entry = host.reported("VolumeSurveyed", 2)[-1]
    print(entry["MESSAGE"], entry.get("HNA_DURATION_MS"))
    # A busy machine's disk is a slow one.
    assert "all zeros" in entry["MESSAGE"] and ("left out" not in entry["MESSAGE"] or int(entry["HNA_DURATION_MS"]) >= SAMPLING_MS)
    assert len(host.journal(HNA_EVENT="VolumeFormatted")) == 1


def test_what_is_in_use_is_refused_however_blank_it_is(worker):
    device = loop_of(worker, "vdb")
    hold = "import os, sys\nfd = os.open(sys.argv[1], os.O_RDONLY | os.O_EXCL)\nprint('held', flush=True)\nsys.stdin.read()"
    for what, words, start, end in (
            ("mounted", "is mounted at /mnt", "mkfs.ext4 -qF {d} && mount -o ro {d} /mnt", "umount /mnt"),
            ("swap", "swap", "mkswap -q {d} && swapon {d}", "swapoff {d}"),
            # Somewhere that our own mount table does not show.
            ("mounted elsewhere", "held exclusively", "mkfs.ext4 -qF {d} && (unshare -m sh -c 'mount -o ro {d} /mnt && touch /run/there && exec sleep 600' "
             ">/dev/null 2>&1 & echo $! >/run/holder); until [ -e /run/there ]; do sleep 0.05; done", "kill $(cat /run/holder); rm /run/there"),
    ):
        # A mount that ended with its process goes a moment later, and until then nobody opens the device for himself alone.
        wait_for(lambda: run("blkdiscard", "-z", device), 300)
        worker.sh(start.format(d=device))
        try:
            before = digest(device)
            why = refusal(worker)
            assert words in why, (what, why)
            # The kernel may write to its swap whenever it likes.
            assert what == "swap" or digest(device) == before, what
        finally:
            worker.sh(end.format(d=device))
    wait_for(lambda: run("blkdiscard", "-z", device), 300)
    holder = worker.popen("python3", "-c", hold, device, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert holder.stdout.readline() == b"held\n"
        assert "held exclusively" in refusal(worker)
        assert not any(open(device, "rb").read(MIB))
    finally:
        holder.communicate(b"", 300)
