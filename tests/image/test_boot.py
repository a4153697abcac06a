"""A real image booted: cloud-init starts the agent, and a real Heat hears how it went."""
import json
import re
import time

import pytest

from lib.common import REPO, TESTS, run, wait_for
from lib.heat import HEAT_DIR
from lib.vm import Vm

VDB = "7c1f4d0e-93a2-4b86-8d55-2f60c6b1a9e4"
VDC = "e41b7f92-0c6d-4f0a-b1d7-58a2f3c9d610"
IMAGE = REPO / "target/image/node.raw"
# What software emulation needs, with much to spare: nets under a test that hangs.
BOOT, WORK = 400, 400


@pytest.fixture
def vms(heat):
    made: list[Vm] = []

    def make(name: str, **options) -> Vm:
        made.append(Vm(name, IMAGE, **options))
        return made[-1]
    yield make
    for vm in made:
        vm.remove()


def user_data(settings: dict) -> str:
    """As Heat gives it to Nova for user_data_format: SOFTWARE_CONFIG."""
    metadata = json.dumps({"os-collect-config": settings, "deployments": []})
    return run(HEAT_DIR / "cache/venv/bin/python", "-B", TESTS / "image/user_data.py", input=metadata).stdout


def phases(console: str) -> list[dict]:
    """The agent's lines on the console: their fields."""
    lines = [line for line in console.replace("\r", "").split("\n") if "heat-node-agent phase=" in line]
    return [dict(re.findall(r"(\w+)=(\S+)", line)) for line in lines]


def test_an_image_boots_to_a_healthy_node_and_comes_back_after_reboot_and_power_cut(heat, vms, stack_name):
    heat.create(stack_name, "node", kube_node_ip="10.0.2.15", docker_volume=VDB, docker_volume_size=4, etcd_volume=VDC, etcd_volume_size=1,
                wait_timeout=1800)
    vm = vms("boot", user_data=user_data(heat.server_settings(stack_name)), volumes={VDB: "4G", VDC: "1G"})
    vm.start()

    # The power goes in the middle of the bring-up, as soon as the first volume is worked on.
    vm.wait_console("phase=volume", BOOT)
    vm.cut()
    vm.start()
    heat.wait(stack_name, seconds=BOOT + WORK)
    vm.wait_console("phase=steady", WORK)
    out = heat.outputs(stack_name)
    assert out["greeting"] == "hello wörld" and out["node_address"] == "10.0.2.15"

    assert json.loads(vm.sh("curl -sf http://127.0.0.1:2379/health"))["health"] == "true"
    assert json.loads(vm.sh("curl -sf --unix-socket /run/docker.sock http://localhost/info"))["Driver"] == "overlay2"
    for point, label in (("/var/lib/docker", "hna-runtime"), ("/var/lib/etcd", "hna-etcd")):
        assert vm.sh(f"findmnt -no FSTYPE,LABEL {point}").split() == ["xfs", label]
    # The identity is Nova's, sysctl and modules are the kernel's.
    assert vm.instance in vm.sh("cat /var/lib/heat-node-agent/identity.json")
    assert vm.sh("sysctl -n net.ipv4.ip_forward").strip() == "1"
    assert "br_netfilter" in vm.sh("lsmod") and "overlay" in vm.sh("lsmod")
    assert vm.sh("ls /dev/disk/by-id").split().count(f"virtio-{VDB[:20]}") == 1
    said = phases(vm.console())
    assert {"metadata", "volume", "units", "steady"} <= {line["phase"] for line in said}, said
    assert not vm.sh("systemctl --failed --no-legend --plain || :").strip()
    assert "heat-node-agent" not in vm.sh("systemd-analyze critical-chain multi-user.target --no-pager || :")

    # The boot after: nothing runs again.
    ran = vm.sh("ls /var/lib/heat-node-agent/work; stat -c %Y /etc/etcd/etcd.conf /etc/docker/daemon.json; blkid -s UUID -o value /dev/vdb /dev/vdc")
    before = len(vm.console())
    vm.stop()
    vm.start()
    vm.wait_console("phase=", BOOT, after=before)
    wait_for(lambda: "inactive" not in vm.sh("systemctl is-active etcd docker heat-node-agent || :"), WORK, every=2)
    vm.sh("timeout 200 heat-node-agent status --wait=180", timeout=240)
    assert vm.sh("ls /var/lib/heat-node-agent/work; stat -c %Y /etc/etcd/etcd.conf /etc/docker/daemon.json; blkid -s UUID -o value /dev/vdb /dev/vdc") == ran
    assert "HNA-0402" not in vm.sh("journalctl -b -o json --output-fields=HNA_CODE -u heat-node-agent --no-pager")


@pytest.mark.parametrize("bus", ["virtio", "scsi"])
def test_a_volume_that_comes_late_is_taken_at_once(heat, vms, stack_name, bus):
    heat.create(stack_name, "node", role="minion", kube_node_ip="10.0.2.15", docker_volume=VDB, docker_volume_size=1, wait_timeout=1800)
    vm = vms(f"late-{bus}", user_data=user_data(heat.server_settings(stack_name)))
    vm.start()
    vm.wait_console("phase=volume", BOOT)
    time.sleep(3)
    vm.attach(VDB, "2G", bus)
    heat.wait(stack_name, seconds=WORK)
    assert vm.sh("findmnt -no LABEL /var/lib/docker").strip() == "hna-runtime"
