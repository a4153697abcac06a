"""The stores of docker, containerd and etcd on real systemd hosts: with the real programs, on loop devices as volumes."""
import hashlib
import io
import json
import re
import tarfile
import tomllib
from pathlib import Path

import pytest
from lib.cluster import VERSION
from lib.common import SUITE, run, wait_for
from lib.hosts import TOOLS, give, packages
from lib.node import IP, NODE, UNIT, VDB, VDC, ask, bring_up, ended, extend, loop_of, once

WORKER = {"ROLE": "worker", "INSTANCE_NAME": "w-1", "KUBE_NODE_IP": IP, "CLUSTER_UUID": NODE["CLUSTER_UUID"], "DOCKER_VOLUME": VDB,
          "WAIT_TIMEOUT": 600}
MASTER = {name: value for name, value in NODE.items() if name != "ETCD_VOLUME"}
# An image of nothing but a file.
IMAGE = "mkdir -p /run/i; echo hello >/run/i/hello; tar -C /run/i -c . | docker import - hello"
# The agent may be looking at it.
UMOUNT = "timeout 300 sh -c 'until umount /var/lib/etcd; do sleep 0.1; done'; ! mountpoint -q /var/lib/etcd"


def again(host, server, base: dict, **inputs) -> str:
    """A new deployment; how it ended."""
    ask(host, server, base | inputs)
    return ended(server)


def look(host, server):
    """One more poll, with a look at the node behind it."""
    polls = len(server.polls())
    host.exec("systemctl", "kill", "-s", "HUP", UNIT)
    wait_for(lambda: len(server.polls()) > polls, 300, "a poll")


def reported(host, words: str):
    return host.reported("VolumeUnhealthy", words=words)


def tarred(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def one_layer(name: str) -> bytes:
    """An image of one file, in the form of `docker save`."""
    layer = tarred({"hello": b"hello\n"})
    config = {"architecture": "amd64", "os": "linux", "config": {},
              "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]}}
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    return tarred({"manifest.json": json.dumps(manifest).encode(), "config.json": json.dumps(config).encode(), "layer.tar": layer})


def test_a_driver_that_cannot_work_is_refused_by_name_before_anything_stops(hosts, signal_server):
    server = signal_server()
    host = hosts("n1", ip=IP, volumes={"vdb": ("2G", VDB)})
    assert bring_up(host, server, WORKER) == ""
    host.sh(IMAGE)
    before = (host.show("docker.service", "MainPID", "NRestarts"), host.sha256("/etc/docker/daemon.json"))
    # The machine's kernel has no device-mapper; a store on xfs is none on btrfs; images are not left behind unasked.
    for inputs, words in (({"DOCKER_STORAGE_DRIVER": "devicemapper"}, "the kernel has no dm-thin-pool"),
                          ({"DOCKER_STORAGE_DRIVER": "btrfs"}, "DOCKER_STORAGE_CHANGE=overlay2"),
                          ({"DOCKER_STORAGE_DRIVER": "btrfs", "DOCKER_STORAGE_CHANGE": "overlay2"}, "is not on btrfs"),
                          ({"DOCKER_STORAGE_DRIVER": "aufs"}, "does not support: aufs")):
        reason = again(host, server, WORKER, **inputs)
        assert words in reason, reason
        assert (host.show("docker.service", "MainPID", "NRestarts"), host.sha256("/etc/docker/daemon.json")) == before, words
    assert "hello" in host.sh("docker images")
    assert again(host, server, WORKER) == ""


def test_overlay2_is_refused_on_a_file_system_that_does_not_tell_types(hosts, signal_server):
    server = signal_server()
    host = hosts("n1", ip=IP, volumes={"vdb": ("1G", VDB)})
    # As xfs without ftype, which newer kernels do not mount any more.
    host.sh("mkfs.ext4 -q -O ^filetype /dev/vdb")
    reason = bring_up(host, server, WORKER | {"VOLUME_ADOPT": VDB})
    assert "HNA-0320" in reason and "d_type" in reason, reason
    assert not host.is_active("docker.service")


def test_etcds_data_moves_from_the_root_disk_to_its_volume(hosts, signal_server):
    server = signal_server()
    host = hosts("n1", ip=IP, volumes={"vdb": ("1G", VDB)})
    assert bring_up(host, server, MASTER) == ""
    etcdctl = "ETCDCTL_API=3 etcdctl --dial-timeout=60s --command-timeout=60s --endpoints http://127.0.0.1:2379"
    host.sh(f"{etcdctl} put colour blue")
    member = json.loads(host.sh(f"{etcdctl} member list -w json"))["members"][0]["ID"]
    # A volume that is too small: the member goes on.
    pid = host.show("etcd.service", "MainPID")
    host.sh("fallocate -l 300M /var/lib/etcd/default.etcd/more")
    host.attach("vdd", "400M", "aaaaaaaa-0000-4000-8000-000000000001")
    assert "larger ETCD_VOLUME" in again(host, server, MASTER, ETCD_VOLUME="aaaaaaaa-0000-4000-8000-000000000001")
    assert host.show("etcd.service", "MainPID") == pid
    host.attach("vdc", "1G", VDC)
    assert again(host, server, MASTER, ETCD_VOLUME=VDC) == ""
    assert host.sh("findmnt -no LABEL /var/lib/etcd").strip() == "hna-etcd"
    assert host.sh("stat -c '%U %a' /var/lib/etcd /var/lib/etcd/default.etcd").split("\n")[:2] == ["etcd 700", "etcd 700"]
    assert host.sh(f"{etcdctl} get colour --print-value-only").strip() == "blue"
    assert json.loads(host.sh(f"{etcdctl} member list -w json"))["members"][0]["ID"] == member
    assert host.exists("/var/lib/etcd.before-volume-1/default.etcd/member") and host.reported("StoreMoved")
    # Nothing is left of the move, and nothing more is done.
    assert not host.sh("findmnt -no TARGET /run/heat-node-agent/move/etcd || :").strip()
    assert again(host, server, MASTER, ETCD_VOLUME=VDC) == ""
    assert not host.exists("/var/lib/etcd.before-volume-2")


def test_a_store_that_is_read_only_full_or_gone_is_reported_and_nothing_loops(hosts, signal_server):
    server = signal_server()
    host = hosts("n1", ip=IP, volumes={"vdb": ("1G", VDB)})
    host.attach("vdc", "1G", VDC)
    assert bring_up(host, server) == ""
    host.sh("fallocate -l 2G /var/lib/docker/fill 2>/dev/null || dd if=/dev/zero of=/var/lib/docker/fill bs=1M status=none || :")
    look(host, server)
    assert "volume set --size" in reported(host, "is full")[0]["HNA_REMEDY"]
    host.remove("/var/lib/docker/fill")
    # A member without room for its log waits for it, and is not started over and over.
    host.sh("fallocate -l 2G /var/lib/etcd/fill 2>/dev/null || dd if=/dev/zero of=/var/lib/etcd/fill bs=1M status=none || :; "
            "systemctl kill -s KILL etcd.service")
    host.wait_for(lambda: host.show("etcd.service", "SubState")["SubState"] == "start-pre")
    restarts = host.show("etcd.service", "NRestarts", "InvocationID")
    host.wait_for(lambda: len([e for e in host.journal(unit="etcd.service") if "is full: waiting for 64 MiB" in e["MESSAGE"]]) >= 2)
    assert host.show("etcd.service", "NRestarts", "InvocationID") == restarts
    host.remove("/var/lib/etcd/fill")
    host.wait_for(lambda: host.is_active("etcd.service"))
    # As xfs does it after I/O errors. The member ends, and is not started over and over.
    # systemctl may say that of its processes some could not be reached: they end of themselves.
    host.sh("xfs_io -x -c shutdown /var/lib/etcd; systemctl kill -s KILL etcd.service || :")
    host.wait_for(lambda: host.show("etcd.service", "ActiveState")["ActiveState"] in ("inactive", "failed"))
    restarts = host.show("etcd.service", "NRestarts", "InvocationID")
    look(host, server)
    reported(host, "cannot be read")
    assert host.show("etcd.service", "NRestarts", "InvocationID") == restarts
    host.sh(f"{UMOUNT}; mount -o ro /dev/vdc /var/lib/etcd; ! systemctl start etcd.service")
    look(host, server)
    reported(host, "read-only")
    host.sh(f"{UMOUNT}; systemctl start var-lib-etcd.mount etcd.service")
    # With its disk a store's services go, and wait for it.
    host.detach("vdc")
    look(host, server)
    assert "attach" in reported(host, "no longer attached")[0]["HNA_REMEDY"]
    host.wait_for(lambda: host.show("etcd.service", "ActiveState")["ActiveState"] in ("inactive", "failed"))


def test_dockers_store_on_btrfs_is_made_found_again_and_grown(hosts):
    host = hosts("n1", base=TOOLS, ip=IP, volumes={"vdb": ("1G", VDB)})
    host.install_agent()
    give(host, "/usr/sbin/mkfs.btrfs", "/usr/bin/btrfs")
    # A container has no /dev/btrfs-control, of which udev asks whether all disks of a file system are there.
    host.sh("ln -s /dev/null /etc/udev/rules.d/64-btrfs.rules; udevadm control --reload")
    inputs = WORKER | {"DOCKER_STORAGE_DRIVER": "btrfs"}
    assert once(host, **inputs) == 0, host.exec("heat-node-agent", "status", check=False).stdout
    assert host.sh("findmnt -no FSTYPE,LABEL /var/lib/docker").split() == ["btrfs", "hna-runtime"]
    host.sh(IMAGE)
    host.sh("docker create --name kept hello /x; docker cp /run/i/hello kept:/more")
    assert host.sh("docker info -f '{{.Driver}}'").strip() == "btrfs"
    # Each layer is a subvolume.
    assert len(host.sh("btrfs subvolume list /var/lib/docker").splitlines()) >= 3
    # A rebuilt server knows it by its marker, which it reads without a byte changed.
    host.sh("systemctl stop docker.service docker.socket var-lib-docker.mount; "
            "rm -rf /etc/systemd/system/var-lib-docker.mount /var/lib/heat-node-agent/* /var/lib/heat-config; systemctl daemon-reload")
    assert once(host, **inputs | {"CLUSTER_UUID": "99999999-8d0e-4c61-9b0e-2f6f6e1d7a10"}) == 1
    assert "store of cluster" in host.reported("VolumeRefused")[-1]["HNA_CAUSE"]
    extend(loop_of(host, "vdb"), "2G")
    assert once(host, **inputs) == 0, host.exec("heat-node-agent", "status", check=False).stdout
    assert host.reported("VolumeReused") and host.reported("VolumeGrown")
    assert int(host.sh("df -m --output=size /var/lib/docker | tail -n 1")) == 2048
    host.sh("docker cp kept:/more /run/more; cmp /run/more /run/i/hello")


def test_lvm_is_asked_so_that_neither_a_devices_file_nor_a_group_of_the_same_name_misleads(hosts):
    """As far as LVM goes without device-mapper, which is to the pool's volume group."""
    host = hosts("n1", base=TOOLS, ip=IP, volumes={"vdb": ("3G", VDB)})
    host.attach("vdd", "1G", "0badcafe-0000-4000-8000-000000000007")
    host.install_agent()
    give(host, "/usr/sbin/lvm")
    host.sh("ln -sf lvm /usr/sbin/lvmdevices; mkdir -p /etc/lvm/devices")
    host.write("/etc/lvm/lvm.conf", "devices { use_devicesfile = 1 }\nactivation { udev_sync = 0\n udev_rules = 0 }\n")
    host.write("/usr/sbin/modprobe", "#!/bin/sh\n", 0o755)
    # As LVM calls them; the agent calls its own by the kernel's name.
    other, ours, device = "/dev/vdd", "/dev/vdb", loop_of(host, "vdb")
    inputs = WORKER | {"DOCKER_STORAGE_DRIVER": "devicemapper", "DOCKER_VOLUME_SIZE": 3}

    def groups() -> dict[str, str]:
        lines = host.sh("lvm pvs --config devices/use_devicesfile=0 --noheadings -o pv_name,vg_name,vg_uuid").splitlines()
        return {line.split()[0]: " ".join(line.split()[1:]) for line in lines}
    host.sh(f"lvm pvcreate {other}; lvm vgcreate docker {other}")
    before = host.sh(f"sha256sum {other}")
    assert once(host, **inputs) == 1
    if int(packages()["docker.io"].split(".")[0]) >= 25:  # such a docker has no devicemapper: nothing is begun
        [refusal] = [e["MESSAGE"] for e in host.journal() if "docker 25 dropped devicemapper" in e["MESSAGE"] and "could not be brought up" in e["MESSAGE"]]
        assert "this is checked before anything is changed" in refusal and groups() == {other: groups()[other]} and host.sh(f"sha256sum {other}") == before
        return
    refusal = host.reported("VolumeRefused")[-1]
    assert f"{groups()[other].split()[1]} on {other}" in refusal["HNA_CAUSE"] and f"to be created on {device}" in refusal["HNA_CAUSE"], refusal
    assert groups()[ours] == "" and host.sh(f"sha256sum {other}") == before
    # The remedy, word for word; then it goes on to where device-mapper is needed.
    host.sh(re.search("`(vgrename .*?)`", refusal["HNA_REMEDY"])[1].replace("vgrename", "lvm vgrename"))
    assert once(host, **inputs) == 1
    assert "lvcreate" in host.reported("VolumeFailed")[-1]["HNA_CAUSE"] and groups()[ours].startswith("docker ")
    # Both have the name now: neither is touched.
    host.sh("lvm vgrename docker-other docker --config 'devices { use_devicesfile = 0 filter = [\"a|" + other + "|\", \"r|.*|\"] }'")
    before = host.sh(f"sha256sum {other}")
    assert once(host, **inputs) == 1
    cause = host.reported("VolumeRefused", 2)[-1]["HNA_CAUSE"]
    uuids = {disk: group.split()[1] for disk, group in groups().items()}
    assert f"{uuids[other]} on {other}" in cause and f"{uuids[ours]} on {device}" in cause, cause
    assert host.sh(f"sha256sum {other}") == before
    # A rebuilt server: a devices file of its own, in which the volume is not, and no record. Its tags tell whose it is.
    host.detach("vdd")
    host.sh("rm -rf /etc/lvm/devices/* /var/lib/heat-node-agent/* /var/lib/heat-config; echo VERSION=1.1.1 >/etc/lvm/devices/system.devices")
    # LVM before 2.03.12 has none, and does not know the option by which the agent does without.
    found = host.exec("lvm", "pvs", ours, check=False).stderr
    assert "devices file" in found or 'Configuration setting "devices/use_devicesfile" unknown' in found, found
    reused = len(host.journal(HNA_EVENT="VolumeReused"))
    assert once(host, **inputs) == 1
    assert "lvcreate" in host.reported("VolumeFailed", 2)[-1]["HNA_CAUSE"] and len(host.reported("VolumeReused", reused + 1)) == reused + 1


@pytest.mark.parametrize(("driver", "snapshotter"), [("overlay2", "overlayfs"), ("btrfs", "btrfs")])
def test_containerd_takes_the_config_that_is_rendered_for_its_version(hosts, driver, snapshotter):
    host = hosts("n1", base=TOOLS, ip=IP, volumes={"vdb": ("1G", VDB)})
    host.install_agent()
    give(host, "/usr/sbin/mkfs.btrfs")
    version = host.sh("containerd --version").split()[2].lstrip("v").split("~")[0]
    inputs = {"ROLE": "minion", "KUBE_MASTER_IP": IP, "KUBE_NODE_IP": IP, "INSTANCE_NAME": "w-1", "KUBE_TAG": f"v{VERSION}",
              "CERTIFICATES": "bootstrap", "BOOTSTRAP_TOKEN": "abcdef.0123456789abcdef", "CA_CERTIFICATE": "/given/ca.crt",
              "CONTAINER_RUNTIME": "containerd", "CONTAINERD_VERSION": version, "DOCKER_STORAGE_DRIVER": driver,
              "DOCKER_VOLUME": VDB, "CLUSTER_UUID": NODE["CLUSTER_UUID"]}
    document = {"deployments": [{"id": "d", "name": "node", "group": "kubernetes-node", "config": inputs, "inputs": [], "outputs": []}]}
    host.write("/run/document.json", json.dumps(document))
    host.sh("mkdir -p /run/tree/etc; cp /etc/passwd /etc/group /run/tree/etc/; "
            "heat-node-agent apply --root /run/tree --metadata /run/document.json >/dev/null; "
            "mkdir -p /etc/containerd /var/lib/containerd; cp /run/tree/etc/containerd/config.toml /etc/containerd/; "
            f"mkfs.{'btrfs' if driver == 'btrfs' else 'xfs'} -q /dev/vdb; mount /dev/vdb /var/lib/containerd; systemctl start containerd.service")
    plugins = {tuple(line.split()[:2]): line.split()[-1] for line in host.sh("ctr plugins ls").splitlines()[1:]}
    assert plugins["io.containerd.grpc.v1", "cri"] == "ok" and plugins["io.containerd.snapshotter.v1", snapshotter] == "ok", plugins
    shown = tomllib.loads(host.sh("containerd config dump"))
    # Images and runtime are two plugins since 2.0.
    images = shown["plugins"].get("io.containerd.cri.v1.images") or shown["plugins"]["io.containerd.grpc.v1.cri"]["containerd"]
    assert images["snapshotter"] == snapshotter and shown["root"] == "/var/lib/containerd"
    # An image is unpacked into snapshots of that kind.
    host.write("/run/image.tar", one_layer("hello:1"))
    host.sh(f"ctr -n k8s.io images import --snapshotter {snapshotter} /run/image.tar")
    assert host.sh(f"ctr -n k8s.io snapshots --snapshotter {snapshotter} ls").count("Committed") == 1
