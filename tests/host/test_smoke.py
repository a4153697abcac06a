"""The hosts themselves: what the other tests take for granted."""
from lib.common import GATEWAY

VDB = "3f0e8b5a-52f4-4c3b-9d47-aaaaaaaaaaaa"
VDC = "9c1d7e60-1b1e-4f3c-8c1a-bbbbbbbbbbbb"


def by_id(volume: str) -> str:
    return f"/dev/disk/by-id/virtio-{volume[:20]}"


def test_a_node_boots_and_keeps_its_disks_over_reboot_and_power_cut(hosts):
    host = hosts("n1", volumes={"vdb": ("1G", VDB)})
    assert host.exec("realpath", by_id(VDB)).stdout == host.exec("realpath", "/dev/vdb").stdout
    for unit in ("docker.service", "docker.socket", "containerd.service", "etcd.service"):
        assert host.exec("systemctl", "is-enabled", unit, check=False).stdout.strip() == "disabled"
    host.sh("mkfs.xfs -q /dev/vdb; mkdir /data; mount /dev/vdb /data; echo on-volume >/data/f; echo on-root >/f; umount /data")
    identity = host.read("/etc/machine-id"), host.read("/var/lib/cloud/data/instance-id")

    host.reboot()
    assert host.sh("mount /dev/vdb /data; cat /data/f /f") == "on-volume\non-root\n"
    assert (host.read("/etc/machine-id"), host.read("/var/lib/cloud/data/instance-id")) == identity
    assert len(host.boot_ids()) == 2
    first = host.journal(unit="systemd-journald.service", boot=host.boot_ids()[0])
    assert first and {e["_BOOT_ID"] for e in first} == {host.boot_ids()[0]}

    host.cut()
    host.boot()
    assert host.sh("mount /dev/vdb /data; cat /data/f /f") == "on-volume\non-root\n"
    assert len(host.boot_ids()) == 3


def test_volumes_come_and_go_while_it_runs(hosts):
    host = hosts("n1")
    host.attach("vdc", "512M", VDC)
    host.wait_for(f"systemctl is-active -q dev-vdc.device && test -b {by_id(VDC)}")
    host.sh("mkfs.ext4 -q -L kept /dev/vdc; udevadm settle")
    host.wait_for(lambda: host.exists("/dev/disk/by-label/kept"))  # udev hears a moment later that mkfs closed the disk
    host.detach("vdc")
    assert not host.exists(by_id(VDC)) and not host.exists("/dev/vdc")
    host.attach("vdd", "512M", VDC)
    host.wait_for(lambda: host.sh("lsblk -no LABEL /dev/vdd").strip() == "kept")


def test_several_hosts_share_a_bridge(hosts, signal_server):
    server = signal_server()
    n1 = hosts("n1", ip="10.77.0.11", base="base")
    n2 = hosts("n2", ip="10.77.0.12", base="base")
    for address in (n2.ip, GATEWAY):
        n1.wait_for(f"ping -c1 -W5 {address}")
    n2.link(up=False)
    assert n1.exec("ping", "-c1", "-W1", n2.ip, check=False).returncode
    n2.link(up=True)

    # the stand-in for Heat: polled, signalled, misbehaving
    url = server.signal_url("res")
    server.deploy(server.deployment("res", inputs={"who": "world", "n": 3}))
    answer = n1.sh(f"curl -sf '{server.base}/v1/?Action=DescribeStackResource&ContentType=JSON' | jq -r '.DescribeStackResourceResponse.DescribeStackResourceResult.StackResourceDetail.Metadata.deployments[0].name'")
    assert answer == "res\n"
    server.answer(503, times=1, method="POST", headers={"Retry-After": "1"})
    server.answer(close=True, times=1, method="POST")

    def post():
        return n1.exec("curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "-H", "Content-Type: application/json", "-d", '{"a": "ü"}', url, check=False).stdout
    assert [post(), post(), post()] == ["503", "000", "200"]
    assert [r.status for r in server.signals("res")] == [503, 0, 200]
    [taken] = server.signals("res", accepted=True)
    assert server.base + taken.target == url and taken.json() == {"a": "ü"} and taken.header("content-type") == "application/json" and taken.client == n1.ip


def test_files_and_the_journal(hosts):
    host = hosts("n1", base="base", instance_id="i-given")
    assert host.read("/var/lib/cloud/data/instance-id") == "i-given\n"
    host.write("/etc/a/b", "text ü\n", mode=0o600)
    assert host.read("/etc/a/b") == "text ü\n" and host.sh("stat -c %a /etc/a/b") == "600\n"
    host.exec("logger", "--journald", input="MESSAGE=hello\nHNA_EVENT=tested\nSYSLOG_IDENTIFIER=t\n")
    [entry] = host.wait_for(lambda: host.journal(HNA_EVENT="tested"))
    assert entry["MESSAGE"] == "hello" and entry in host.journal(extended=True)
    assert host.show("systemd-journald.service", "ActiveState", "SubState") == {"ActiveState": "active", "SubState": "running"}
