"""Volumes on a real systemd host: what nobody need fear."""
from lib.node import IP, NODE, UNIT, VDB, VDC, ask, bring_up, ended, extend, loop_of, once, start

WORKER = {"ROLE": "worker", "INSTANCE_NAME": "w-1", "KUBE_NODE_IP": IP, "CLUSTER_UUID": NODE["CLUSTER_UUID"], "DOCKER_VOLUME": VDB,
          "WAIT_TIMEOUT": 600}


def again(host, server, **inputs) -> str:
    """A new deployment; how it ended."""
    ask(host, server, WORKER | inputs)
    return ended(server)


def test_what_is_refused_stays_as_it_is_however_often_it_is_asked(hosts, signal_server):
    server = signal_server()
    host = hosts("n1", ip=IP, volumes={"vdb": ("1G", VDB)})
    # What only mkfs's own probing knows (VMFS: magics at 1 and 2 MiB), with both ends zero: blank by our own reading.
    host.sh(r"printf '\x0d\xd0\x01\xc0' | dd of=/dev/vdb bs=1 seek=1048576 conv=notrunc status=none; "
            r"printf '\x5e\xf1\xab\x2f' | dd of=/dev/vdb bs=1 seek=2097152 conv=notrunc status=none; sync")
    before = host.sh("sha256sum /dev/vdb")
    assert "HNA-0306" in bring_up(host, server, WORKER)
    assert "HNA-0306" in again(host, server)
    assert host.sh("sha256sum /dev/vdb") == before
    # LVM's label, swap, another file system: each refused by name, each untouched.
    for made, words in (("printf LABELONE | dd of=/dev/vdb bs=1 seek=512 conv=notrunc status=none; "
                         "printf 'LVM2 001' | dd of=/dev/vdb bs=1 seek=536 conv=notrunc status=none", "LVM"), ("mkswap -L old /dev/vdb", "swap"),
                        ("mkfs.ext4 -q -L old /dev/vdb", "ext4")):
        host.sh(f"wipefs -qa /dev/vdb; blkdiscard -fz /dev/vdb; {made} >/dev/null; sync")
        before = host.sh("sha256sum /dev/vdb")
        reason = again(host, server, DOCKER_VOLUME_FORMAT="if-no-signature")
        assert "HNA-0306" in reason and words.lower() in reason.lower(), reason
        assert host.sh("sha256sum /dev/vdb") == before, words


def test_a_rebuilt_server_finds_its_volume_by_the_marker_and_another_cluster_does_not_get_it(hosts, signal_server):
    server = signal_server()
    host = hosts("n1", ip=IP, volumes={"vdb": ("2G", VDB)})
    assert bring_up(host, server, WORKER) == ""
    host.sh("echo kept >/var/lib/docker/kept; sync")
    host.down(keep_volumes=True)
    server.forget()
    other = WORKER | {"CLUSTER_UUID": "99999999-8d0e-4c61-9b0e-2f6f6e1d7a10"}
    server.document["deployments"] = [server.deployment("node", group="kubernetes-node", inputs=other)]
    server.publish()
    rebuilt = hosts("n2", ip="10.77.0.12", volumes={"vdb": ("2G", VDB)})
    start(rebuilt, server)
    reason = ended(server)
    assert "HNA-0306" in reason and "VOLUME_ADOPT" in reason, reason
    assert not rebuilt.sh("findmnt -n /var/lib/docker || :")
    assert again(rebuilt, server) == ""
    assert rebuilt.read("/var/lib/docker/kept") == "kept\n"
    rebuilt.reported("VolumeReused")


def test_a_restart_of_the_agent_in_its_own_mkfs_changes_nothing(hosts, signal_server):
    server = signal_server()
    host = hosts("n1", ip=IP, volumes={"vdb": ("1G", VDB)})
    host.sh("cp $(command -v mkfs.xfs) /usr/local/sbin/mkfs.real")
    # A mkfs that takes its time, as on a slow disk: it holds the disk until it is asked to end.
    host.write("/usr/local/sbin/mkfs.slow", "#!/bin/sh\necho made >>/var/tmp/mkfs\n"
               "/usr/local/sbin/mkfs.real \"$@\" || exit\nfor d; do :; done; python3 - \"$d\" <<'PY'\n"
               "import os, sys, time\nfd = os.open(sys.argv[1], os.O_RDONLY | os.O_EXCL)\n"
               "while not os.path.exists('/run/go'):\n    time.sleep(0.1)\nPY\n", 0o755)
    host.sh("mkdir -p /etc/systemd/system/heat-program-.service.d")
    host.write("/etc/systemd/system/heat-program-.service.d/slow.conf",
               "[Service]\nBindPaths=/usr/local/sbin/mkfs.slow:/usr/sbin/mkfs.xfs\n")
    host.exec("systemctl", "daemon-reload")
    server.deploy(server.deployment("node", group="kubernetes-node", inputs=WORKER))
    start(host, server)
    host.reported("VolumeFormatting")
    host.wait_for(lambda: host.show("heat-program-mkfs-runtime.service", "ActiveState")["ActiveState"] == "activating", what="a mkfs that runs")
    host.exec("systemctl", "kill", "-s", "KILL", UNIT)
    host.reported("AgentStarted", 2)
    host.write("/run/go", "")
    assert ended(server) == ""
    assert host.sh("findmnt -no LABEL /var/lib/docker").strip() == "hna-runtime"


def test_the_bus_may_come_and_go_during_a_bring_up(hosts, signal_server):
    server = signal_server()
    host = hosts("n1", ip=IP, volumes={"vdb": ("1G", VDB)})
    server.deploy(server.deployment("node", group="kubernetes-node", inputs=WORKER))
    start(host, server)
    storm = host.popen("sh", "-c", "for n in 1 2 3 4 5 6; do systemctl daemon-reexec; sleep 0.3; done")
    assert ended(server) == ""
    storm.wait(300)


def test_a_copy_of_the_volume_is_neither_mounted_nor_changed(hosts, signal_server):
    server = signal_server()
    host = hosts("n1", ip=IP, volumes={"vdb": ("1G", VDB)})
    assert bring_up(host, server, WORKER) == ""
    host.exec("systemctl", "stop", UNIT)
    host.sh("systemctl stop docker.service docker.socket; umount /var/lib/docker")
    host.attach("vdd", "1G", "deadbeef-0000-4000-8000-000000000001")
    host.sh("dd if=/dev/vdb of=/dev/vdd bs=4M status=none; sync; udevadm trigger; udevadm settle")
    before = host.sh("sha256sum /dev/vdd")
    host.exec("systemctl", "start", UNIT)
    assert again(host, server) == ""
    assert host.sh("readlink -f /dev/vdb").strip() == host.sh("findmnt -no SOURCE /var/lib/docker").strip()
    assert host.sh("sha256sum /dev/vdd") == before


def test_two_volumes_that_come_late_and_in_the_other_order_find_their_places(hosts, signal_server):
    server = signal_server()
    server.deploy(server.deployment("node", group="kubernetes-node", inputs=NODE))
    host = hosts("n1", ip=IP)
    start(host, server)
    host.reported("VolumeWaiting", 2)
    # By the kernel's names each would be the other.
    host.attach("vdb", "1G", VDC)
    host.attach("vdc", "2G", VDB)
    assert ended(server) == ""

    def at(place: str) -> list[str]:
        return host.sh(f"findmnt -no SOURCE,LABEL {place}").split()
    assert at("/var/lib/etcd") == [loop_of(host, "vdb"), "hna-etcd"] and at("/var/lib/docker") == [loop_of(host, "vdc"), "hna-runtime"]
    host.sh("echo kept >/var/lib/docker/kept; sync")
    host.cut()
    host.boot()
    host.wait_for(lambda: host.is_active("docker.service") and host.is_active("etcd.service"))
    assert at("/var/lib/etcd")[1] == "hna-etcd" and at("/var/lib/docker")[1] == "hna-runtime"
    assert host.read("/var/lib/docker/kept") == "kept\n"


def test_who_misses_a_disk_is_reported_which_ones_there_are(hosts):
    host = hosts("n1", ip=IP, volumes={"vdb": ("1G", "deadbeef-0000-4000-8000-000000000001")})
    host.install_agent()
    assert once(host, **WORKER | {"WAIT_TIMEOUT": 40}) == 1
    cause = host.reported("VolumeMissing")[-1]["HNA_CAUSE"]
    # The disks of these hosts have no serial of their own; those that have one are listed by it.
    assert f"volume {VDB} is not attached (no disk has that serial; present: " in cause and " without a serial" in cause, cause


def test_a_volume_that_is_extended_is_grown_while_it_is_in_use(hosts, signal_server):
    server = signal_server()
    host = hosts("n1", ip=IP, volumes={"vdb": ("1G", VDB)})
    assert bring_up(host, server, WORKER) == ""
    host.sh("echo kept >/var/lib/docker/kept")
    before = host.show("docker.service", "ActiveEnterTimestampMonotonic")

    loop = loop_of(host, "vdb")

    def mib() -> int:
        return int(host.sh("df -m --output=size /var/lib/docker | tail -n 1"))
    assert 900 < mib() < 1024
    extend(loop, "2G")
    # With the next look at the node, whatever DRIFT says; the next poll brings one.
    host.exec("systemctl", "kill", "-s", "HUP", UNIT)
    host.reported("VolumeGrown")
    assert 1900 < mib() < 2048 and host.read("/var/lib/docker/kept") == "kept\n"
    assert host.show("docker.service", "ActiveEnterTimestampMonotonic") == before
    # Extended while nobody looked: a power cut, and the next agent grows it.
    host.cut()
    extend(loop, "3G")
    host.boot()
    host.reported("VolumeGrown", 2)
    assert 2900 < mib() < 3072 and host.read("/var/lib/docker/kept") == "kept\n"
    assert len(host.journal(HNA_EVENT="VolumeGrowing")) == 2 and not host.journal(HNA_EVENT="NodeDrift")


def test_a_bare_machine_keeps_its_store_on_a_disk_of_its_own(hosts):
    host = hosts("n1", ip=IP, volumes={"vdb": ("1G", VDB)})
    host.install_agent()
    bare = {name: value for name, value in WORKER.items() if name != "DOCKER_VOLUME"} | {"ENABLE_CINDER": "False"}
    # As Nova and Ironic give it: with a file system and this label.
    host.sh("mkfs.ext4 -q -L ephemeral0 /dev/vdb; udevadm trigger; udevadm settle")
    assert once(host, **bare, DOCKER_DISK="ephemeral0") == 1
    assert "VOLUME_ADOPT=ephemeral0" in host.reported("VolumeRefused")[-1]["HNA_REMEDY"]
    assert once(host, **bare, DOCKER_DISK="ephemeral0", VOLUME_ADOPT="ephemeral0") == 0
    assert host.sh("findmnt -no LABEL,FSTYPE /var/lib/docker").split() == ["ephemeral0", "ext4"]
    host.sh("systemctl stop docker.service docker.socket; umount /var/lib/docker; wipefs -qa /dev/vdb; blkdiscard -fz /dev/vdb; udevadm settle")
    assert once(host, **bare, DOCKER_DISK=f"virtio-{VDB[:20]}") == 0
    assert host.sh("findmnt -no LABEL,FSTYPE /var/lib/docker").split() == ["hna-runtime", "xfs"]
