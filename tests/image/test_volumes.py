"""Disks of real machines, on virtio-blk, virtio-scsi, NVMe and in a CD drive, with device-mapper and udev: a thin pool that a real docker uses,
disks that come late, file systems that follow their disks, config drives that the agent reads itself. What the first test saw goes into
docs/volumes.md (tests/lib/transcript.py)."""
import os
import re
import time

import pytest

from lib.common import run, wait_for
from lib.config_drive import make_vfat, tree, with_first_metadata
from lib.metadata_service import MetadataService
from lib.node import NODE, UNIT, VDB, VDC
from lib.transcript import Transcript

# What software emulation needs, with much to spare: nets under a test that hangs.
BOOT, WORK = 1800, 1800
MASTER = NODE | {"KUBE_NODE_IP": "10.0.2.15", "DOCKER_STORAGE_DRIVER": "devicemapper", "WAIT_TIMEOUT": 3500}
# An image of two programs and their libraries.
IMAGE = ("rm -rf /run/i; for f in /bin/echo /bin/cat $(ldd /bin/echo /bin/cat | grep -o '/lib[^ ]*'); do install -D $f /run/i$f; done; "
         "tar -C /run/i -c . | docker import - small")


def result(server, name: str = "node") -> dict:
    return wait_for(lambda: server.signals(name, accepted=True), WORK, f"the result of {name}", every=1)[0].json()


def begin(vm, server):
    """Boots it, and tells the agent where Heat is."""
    if not vm.process:
        vm.start()
    vm.wait_ssh(BOOT)
    settings = "".join(f"{name} = {value}\n" for name, value in server.settings()["cfn"].items())
    vm.sh(f"umask 077; cat >/etc/os-collect-config.conf <<'E'\n[cfn]\n{settings}E\nsystemctl restart {UNIT}")
    assert wait_for(lambda: vm.journal("-b", "HNA_EVENT=VolumeWaiting"), WORK, "an agent that waits", every=2)


def found_after(vm, volume: str, disk: str) -> tuple[float, float]:
    """Seconds to the journal's line that the agent has found a disk: from the kernel's own line about it, a moment before it tells
    udev; and from the event by which udev, when it is done with the disk, tells everybody."""
    found = wait_for(lambda: [e for e in vm.journal("-b", "HNA_EVENT=VolumeFound") if volume in e["MESSAGE"]], WORK, volume, every=5)
    at = int(found[0]["__MONOTONIC_TIMESTAMP"]) / 1e6
    said = [e for e in vm.journal("-b", "-k") if f"[{disk}] " in e["MESSAGE"] and "logical blocks" in e["MESSAGE"]]
    event = wait_for(lambda: re.search(rf"^UDEV +\[([0-9.]+)\] add +\S+/block/{disk} ", vm.sh("cat /run/events"), re.MULTILINE), WORK,
                     f"udev's event of {disk}", every=2)
    return at - int(said[0]["_SOURCE_MONOTONIC_TIMESTAMP"]) / 1e6, at - float(event[1])


def sizes(vm) -> list[int]:
    """Bytes of the pool and of etcd's file system."""
    return [int(n) for n in vm.sh("lvs --noheadings --nosuffix --units b -o lv_size docker/docker-pool; "
                                  "df -B1 --output=size /var/lib/etcd | tail -n 1").split()]


@pytest.mark.skipif(os.environ.get("DIB_RELEASE") in ("trixie", "forky"), reason="docker has no devicemapper since 25")
def test_a_pool_for_docker_late_disks_and_growth(vms, signal_server):
    server = signal_server()
    server.deploy(server.deployment("node", group="kubernetes-node", inputs=MASTER))
    vm = vms("volumes")
    page = Transcript(vm)
    begin(vm, server)
    vm.sh("systemd-run -q -u events --property StandardOutput=file:/run/events stdbuf -oL udevadm monitor --udev --subsystem-match block")
    wait_for(lambda: "UDEV - the event" in vm.sh("cat /run/events"), WORK, "a monitor that listens", every=2)
    time.sleep(60)  # the disks come when they come

    rows = []
    for volume, size, bus, disk in ((VDB, "4G", "virtio", "vdb"), (VDC, "1G", "scsi", "sda")):
        vm.attach(volume, size, bus)
        kernel, udev = found_after(vm, volume, disk)
        # How long it took stands in the transcript: an emulated machine is as slow as its host is busy, and may stand still for
        # a while. Who looked at disks only when Heat is asked, once a minute, would find one of them later than this.
        assert udev <= 60, (bus, udev, kernel)
        # The agent looks at the disk itself and may know it before udev is done with it.
        order = "after" if udev >= 0 else "before"
        rows.append(f"{disk} ({bus}) {abs(udev):.2f} s {order} udev's event, {kernel:.2f} s after the kernel's line")
    vm.sh("systemctl stop events")
    assert result(server)["deploy_status_code"] == 0
    assert len(vm.journal("-b", "HNA_EVENT=VolumeWaiting")) <= 4
    page.text("A minute after the agent began to wait, the disks were attached to the running machine. HNA-0301 came: " + "; ".join(rows) + ".")
    page.run("lsblk -no NAME,SIZE,SERIAL,FSTYPE,MOUNTPOINT /dev/vdb /dev/sda")
    page.run(f"journalctl -b -u {UNIT} -o cat HNA_PHASE=volume")

    # The pool is where docker-storage-setup would have made it, and a real docker keeps an image and a container in it.
    assert vm.sh("lvs --noheadings -o segtype docker/docker-pool").strip() == "thin-pool"
    page.run("vgs --noheadings -o vg_name,vg_tags docker", "lvs --noheadings -o lv_name,segtype,lv_size,chunk_size docker",
             "cat /etc/systemd/system/docker-thin-pool.service")
    vm.sh(IMAGE, timeout=WORK)
    assert vm.sh("docker run --rm --network none small /bin/echo from the pool", timeout=WORK) == "from the pool\n"
    info = page.run("docker info 2>/dev/null | grep -E 'Storage Driver|Pool Name|Backing Filesystem|Deferred Removal'")
    assert "devicemapper" in info and "docker-docker--pool" in info, info
    assert float(vm.sh("lvs --noheadings -o data_percent docker/docker-pool")) > 0
    assert not vm.sh("findmnt -no TARGET /dev/vdb || :")

    # Both are extended while they are in use.
    before = sizes(vm)
    for volume, size in ((VDB, 6 << 30), (VDC, 2 << 30)):
        vm.qmp("block_resize", **{"node-name": f"v{volume[:8]}", "size": size})
    vm.sh("echo 1 >/sys/block/sda/device/rescan; "
          "until [ $(blockdev --getsize64 /dev/sda) -gt 2000000000 -a $(blockdev --getsize64 /dev/vdb) -gt 6000000000 ]; do sleep 1; done; "
          f"systemctl reload {UNIT}")
    wait_for(lambda: len(vm.journal("-b", "HNA_EVENT=VolumeGrown")) == 2, WORK, "both grown", every=2)
    after = sizes(vm)
    assert all(new - old > 800 << 20 for old, new in zip(before, after, strict=True)), (before, after)
    page.text("Then both were extended, to 6 and 2 GiB, while they were in use.")
    page.run("lvs --noheadings -o lv_name,lv_size docker", "df -h --output=source,fstype,size,target /var/lib/etcd",
             f"journalctl -b -u {UNIT} -o cat HNA_STEP=grow")

    # The boot after: the pool is active before docker is, with everything in it, and nothing is made again.
    uuid, pool, console = vm.sh("blkid -s UUID -o value /dev/sda"), vm.sh("lvs --noheadings -o lv_uuid docker"), len(vm.console())
    vm.stop()
    vm.volumes = {VDB: "6G", VDC: "2G"}
    vm.start()
    vm.wait_console("login:", BOOT, after=console)
    vm.wait_ssh(WORK)
    wait_for(lambda: vm.sh("systemctl is-active etcd docker || :").split() == ["active"] * 2, WORK, "units active", every=2)
    # Both came back as virtio-blk: a disk is known by its serial, whatever its bus and its name.
    assert (vm.sh("blkid -s UUID -o value /dev/vdc"), vm.sh("lvs --noheadings -o lv_uuid docker")) == (uuid, pool)
    assert vm.sh("findmnt -no SOURCE /var/lib/etcd").strip() == "/dev/vdc"
    assert vm.sh("docker run --rm --network none small /bin/echo still there", timeout=WORK) == "still there\n"
    page.text("After a reboot, with the second disk on another bus:")
    page.run("lsblk -no NAME,SIZE,SERIAL,FSTYPE,MOUNTPOINT /dev/vdb /dev/vdc", "docker run --rm --network none small /bin/echo still there")
    page.write("volumes")
    # It would answer the next test's Heat as well, which is at the same address.
    vm.cut()


@pytest.fixture(scope="module")
def small(vms):
    """A machine for both tests below, as a boot takes minutes."""
    return vms("small", volumes={VDB: "4G"})


def test_a_disk_on_nvme_is_known_by_cinders_serial_and_containers_run_under_apparmor(small, signal_server):
    """Debian's kernel has AppArmor on."""
    vm, server = small, signal_server()
    server.deploy(server.deployment("node", group="kubernetes-node", inputs=MASTER | {"DOCKER_STORAGE_DRIVER": "overlay2"}))
    begin(vm, server)
    vm.attach(VDC, "1G", "nvme")
    assert result(server)["deploy_status_code"] == 0
    assert [e["MESSAGE"] for e in vm.journal("-b", "HNA_EVENT=VolumeFound") if VDC in e["MESSAGE"] and "nvme0n1" in e["MESSAGE"]]
    assert vm.sh("cat /sys/block/nvme0n1/device/serial").strip() == VDC[:20]
    assert vm.sh("findmnt -no SOURCE,FSTYPE,LABEL /var/lib/etcd").split() == ["/dev/nvme0n1", "xfs", "hna-etcd"]
    assert vm.sh("findmnt -no SOURCE /var/lib/docker").split() == ["/dev/vdb"]
    assert vm.sh("systemctl is-active etcd docker").split() == ["active"] * 2

    assert vm.sh("cat /sys/module/apparmor/parameters/enabled").strip() == "Y"
    vm.sh(IMAGE, timeout=WORK)
    assert vm.sh("docker run --rm --network none small /bin/cat /proc/self/attr/current", timeout=WORK).strip("\0\n") == "docker-default (enforce)"
    # Nothing of the agent's own is denied: no profile is its.
    assert vm.sh("cat /proc/$(systemctl show -p MainPID --value heat-node-agent)/attr/current").strip() == "unconfined"
    assert not [e["MESSAGE"] for e in vm.journal("-b", "-k") if 'apparmor="DENIED"' in e["MESSAGE"] and "heat-node" in e["MESSAGE"]]


# As if the server had never been told anything.
FORGET = (f"systemctl stop {UNIT}; rm -rf /var/lib/heat-node-agent /var/lib/heat-config /etc/os-collect-config.conf /var/lib/heat-cfntools "
          "/var/lib/cloud/data/cfn-init-data; install -d /etc/heat-node-agent")


def test_without_cloud_init_the_agent_reads_the_drive_or_asks_the_service(small, signal_server, tmp_path):
    """The drive as ISO 9660 in a CD drive from the start of a boot, then as vfat on a disk that comes late, each under the link that the real udev
    makes; and the metadata service, as the machine reaches Nova's."""
    vm, server = small, signal_server()
    first = with_first_metadata({"deployments": [], "os-collect-config": server.settings()})

    def runs(name: str, place: str):
        assert result(server, name)["deploy_stdout"] == "ran\n"
        assert [e for e in vm.journal("-b", "HNA_EVENT=SourceInUse") if place in e["MESSAGE"]], place
        assert not vm.sh("ls /var/lib/heat-cfntools/cfn-init-data /var/lib/cloud/data/cfn-init-data 2>/dev/null || :")
        assert not vm.sh("findmnt -rno TARGET -t iso9660,vfat | grep -v '^/boot' || :")

    def offer(name: str):
        server.document["deployments"] = []
        server.deploy(server.deployment(name, config="#!/bin/sh\necho ran\n"))

    if not vm.process:
        vm.start()
    vm.wait_ssh(BOOT)
    vm.sh(f"{FORGET}; touch /etc/cloud/cloud-init.disabled; printf '[sources]\nconfig_drive = true\n' >/etc/heat-node-agent/agent.toml; "
          f"systemctl enable {UNIT}")
    vm.stop()
    vm.give_user_data(first)
    offer("by-iso9660")
    vm.start()
    vm.wait_ssh(BOOT)
    runs("by-iso9660", "config drive")
    assert vm.sh("readlink -f /dev/disk/by-label/config-2").strip() == "/dev/sr0"

    vm.sh(FORGET)
    vm.qmp("eject", device="cd", force=True)
    # The emulated drive tells nobody.
    vm.sh("udevadm trigger --action=change --name-match=sr0")
    wait_for(lambda: vm.sh("ls /dev/disk/by-label/").split().count("config-2") == 0, WORK, "a CD drive that is empty", every=2)
    offer("by-vfat")
    vm.sh(f"systemctl start {UNIT}")
    with tree(tmp_path / "files", vm.instance, vm.name, first) as files:
        make_vfat(tmp_path / "vfat", files, "CONFIG-2")
    drive = "5d0d8f5c-6f0e-4b0f-9a35-2f4f4ad6b6a1"
    run("qemu-img", "convert", "-q", "-O", "qcow2", tmp_path / "vfat", vm.folder / f"{drive}.qcow2")
    vm.attach(drive, "64M")
    runs("by-vfat", "config drive")

    vm.sh(FORGET)
    service = MetadataService(tmp_path / "service")
    service.give(first)
    service.start()
    try:
        offer("by-service")
        vm.sh(f"printf '[sources]\nmetadata_service = \"{service.base}\"\n' >/etc/heat-node-agent/agent.toml; systemctl start {UNIT}")
        runs("by-service", "metadata service")
        assert {request.target for request in service.requests()} == {"/latest/user-data"}
    finally:
        service.stop()
