"""Volumes on a real systemd host: what nobody need fear."""
from lib.common import wait_for
from lib.node import IP, NODE, UNIT, VDB, signalled, start

WORKER = {"ROLE": "worker", "INSTANCE_NAME": "w-1", "KUBE_NODE_IP": IP, "CLUSTER_UUID": NODE["CLUSTER_UUID"], "DOCKER_VOLUME": VDB,
          "WAIT_TIMEOUT": 600}


def again(host, server, **inputs):
    """A new deployment, as any stack update makes one."""
    server.forget()
    server.document["deployments"] = [server.deployment("node", group="kubernetes-node", inputs=WORKER | inputs, action="UPDATE")]
    server.publish()
    host.exec("systemctl", "kill", "-s", "HUP", UNIT, check=False)
    return signalled(server, "node")


def test_what_is_refused_stays_as_it_is_however_often_it_is_asked(hosts, signal_server):
    server = signal_server()
    host = hosts("n1", ip=IP, volumes={"vdb": ("1G", VDB)})
    # What only mkfs's own probing knows (VMFS: magics at 1 and 2 MiB), with both ends zero: blank by our own reading.
    host.sh(r"printf '\x0d\xd0\x01\xc0' | dd of=/dev/vdb bs=1 seek=1048576 conv=notrunc status=none; "
            r"printf '\x5e\xf1\xab\x2f' | dd of=/dev/vdb bs=1 seek=2097152 conv=notrunc status=none; sync")
    before = host.sh("sha256sum /dev/vdb")
    server.deploy(server.deployment("node", group="kubernetes-node", inputs=WORKER))
    start(host, server)
    assert "HNA-0306" in str(signalled(server, "node")["deploy_status_code"])
    assert "HNA-0306" in str(again(host, server)["deploy_status_code"])
    assert host.sh("sha256sum /dev/vdb") == before
    # LVM's label, swap, another file system: each refused by name, each untouched.
    for made, words in (("printf LABELONE | dd of=/dev/vdb bs=1 seek=512 conv=notrunc status=none; "
                         "printf 'LVM2 001' | dd of=/dev/vdb bs=1 seek=536 conv=notrunc status=none", "LVM"), ("mkswap -q -L old /dev/vdb", "swap"),
                        ("mkfs.ext4 -q -L old /dev/vdb", "ext4")):
        host.sh(f"wipefs -qa /dev/vdb; blkdiscard -fz /dev/vdb; {made} >/dev/null; sync")
        before = host.sh("sha256sum /dev/vdb")
        reason = str(again(host, server, DOCKER_VOLUME_FORMAT="if-no-signature")["deploy_status_code"])
        assert "HNA-0306" in reason and words.lower() in reason.lower(), reason
        assert host.sh("sha256sum /dev/vdb") == before, words


def test_a_rebuilt_server_finds_its_volume_by_the_marker_and_another_cluster_does_not_get_it(hosts, signal_server):
    server = signal_server()
    server.deploy(server.deployment("node", group="kubernetes-node", inputs=WORKER))
    host = hosts("n1", ip=IP, volumes={"vdb": ("2G", VDB)})
    start(host, server)
    assert signalled(server, "node")["deploy_status_code"] == 0
    host.sh("echo kept >/var/lib/docker/kept; sync")
    host.down(keep_volumes=True)
    server.forget()
    other = WORKER | {"CLUSTER_UUID": "99999999-8d0e-4c61-9b0e-2f6f6e1d7a10"}
    server.document["deployments"] = [server.deployment("node", group="kubernetes-node", inputs=other)]
    server.publish()
    rebuilt = hosts("n2", ip="10.77.0.12", volumes={"vdb": ("2G", VDB)})
    start(rebuilt, server)
    reason = str(signalled(server, "node")["deploy_status_code"])
    assert "HNA-0306" in reason and "VOLUME_ADOPT" in reason, reason
    assert not rebuilt.sh("findmnt -n /var/lib/docker || :")
    assert again(rebuilt, server)["deploy_status_code"] == 0
    assert rebuilt.read("/var/lib/docker/kept") == "kept\n"
    assert rebuilt.journal(HNA_EVENT="VolumeReused")


def test_a_restart_of_the_agent_in_its_own_mkfs_changes_nothing(hosts, signal_server):
    server = signal_server()
    host = hosts("n1", ip=IP, volumes={"vdb": ("1G", VDB)})
    host.sh("cp /usr/sbin/mkfs.xfs /usr/local/sbin/mkfs.real")
    # A mkfs that takes its time, as one that discards a large volume: it holds the disk until it is told to end.
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
    host.wait_for(lambda: host.journal(HNA_EVENT="VolumeFormatting"))
    host.exec("systemctl", "kill", "-s", "KILL", UNIT)
    wait_for(lambda: len(host.journal(HNA_EVENT="AgentStarted")) == 2, 60)
    host.write("/run/go", "")
    assert signalled(server, "node")["deploy_status_code"] == 0
    assert host.sh("findmnt -no LABEL /var/lib/docker").strip() == "hna-runtime"


def test_the_bus_may_come_and_go_during_a_bring_up(hosts, signal_server):
    server = signal_server()
    host = hosts("n1", ip=IP, volumes={"vdb": ("1G", VDB)})
    server.deploy(server.deployment("node", group="kubernetes-node", inputs=WORKER))
    start(host, server)
    storm = host.popen("sh", "-c", "for n in 1 2 3 4 5 6; do systemctl daemon-reexec; sleep 0.3; done")
    assert signalled(server, "node")["deploy_status_code"] == 0
    storm.wait(60)


def test_a_copy_of_the_volume_is_neither_mounted_nor_changed(hosts, signal_server):
    server = signal_server()
    host = hosts("n1", ip=IP, volumes={"vdb": ("1G", VDB)})
    server.deploy(server.deployment("node", group="kubernetes-node", inputs=WORKER))
    start(host, server)
    assert signalled(server, "node")["deploy_status_code"] == 0
    host.exec("systemctl", "stop", UNIT)
    host.sh("systemctl stop docker.service docker.socket; umount /var/lib/docker")
    host.attach("vdd", "1G", "deadbeef-0000-4000-8000-000000000001")
    host.sh("dd if=/dev/vdb of=/dev/vdd bs=4M status=none; sync; udevadm trigger; udevadm settle")
    before = host.sh("sha256sum /dev/vdd")
    host.exec("systemctl", "start", UNIT)
    assert again(host, server)["deploy_status_code"] == 0
    assert host.sh("readlink -f /dev/vdb").strip() == host.sh("findmnt -no SOURCE /var/lib/docker").strip()
    assert host.sh("sha256sum /dev/vdd") == before
