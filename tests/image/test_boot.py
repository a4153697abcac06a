"""A real image booted: cloud-init starts the agent, and a real Heat hears how it went.

Two machines with a stack each go their ways side by side, as a machine under software emulation keeps one processor busy;
a test for each tells how it ended."""
import json
import time
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from lib.common import wait_for
from lib.config_drive import heat_user_data
from lib.first_boot import MADE, PHASES, phases, report, table
from lib.heat import Heat, unique
from lib.vm import Vm

VDB = "7c1f4d0e-93a2-4b86-8d55-2f60c6b1a9e4"
VDC = "e41b7f92-0c6d-4f0a-b1d7-58a2f3c9d610"
IP = "10.0.2.15"  # of QEMU's user network
UNIT = "heat-node-agent.service"
# What software emulation needs, with much to spare: nets under a test that hangs.
BOOT, WORK = 1800, 1800


def node(heat, stack: str) -> str:
    """Begins a stack of one master with both volumes; the server's user data."""
    heat.create(stack, "node", kube_node_ip=IP, docker_volume=VDB, docker_volume_size=4, etcd_volume=VDC, etcd_volume_size=1,
                wait_timeout=3500)
    return heat_user_data(heat.server_settings(stack))


def is_healthy(vm: Vm):
    assert json.loads(vm.sh("curl -sf http://127.0.0.1:2379/health"))["health"] == "true"
    assert json.loads(vm.sh("curl -sf --unix-socket /run/docker.sock http://localhost/info"))["Driver"] == "overlay2"
    for point, label in (("/var/lib/docker", "hna-runtime"), ("/var/lib/etcd", "hna-etcd")):
        assert vm.sh(f"findmnt -no FSTYPE,LABEL {point}").split() == ["xfs", label]


def boots_in_order(vm: Vm):
    """No cycle was broken, nothing failed, and nothing of the boot waits for the agent."""
    wait_for(lambda: vm.sh("systemctl is-system-running || :").strip() == "running", WORK, "state running", every=2)
    assert not vm.sh("systemctl --failed --no-legend --plain").strip()
    said = vm.sh("journalctl --sync || :; journalctl -b -o cat --no-pager _PID=1")
    assert "Started" in said and "ordering cycle" not in said
    # (systemd-analyze critical-chain follows whichever service came up last: docker, long after the target.)
    assert set(vm.sh(f"systemctl show -p Before --value {UNIT}").split()) == {"shutdown.target"}


def state(vm: Vm) -> str:
    """What a second bring-up would change: records, files, file systems."""
    return vm.sh("ls -l --time-style=full-iso /var/lib/heat-node-agent/work /var/lib/heat-config/deployed; "
                 "blkid -s UUID -o value /dev/vdb /dev/vdc; "
                 "stat -c '%n %Y %i' /etc/etcd/etcd.conf /etc/docker/daemon.json /etc/systemd/system/var-lib-docker.mount "
                 "/etc/systemd/system/etcd.service.d/50-heat-node-agent.conf /etc/sysctl.d/90-heat-node-agent.conf")


def first_boot_and_reboot(heat: Heat, vms, image, stack_name: str) -> str:
    vm = vms("first", user_data=node(heat, stack_name), volumes={VDB: "4G", VDC: "1G"})
    vm.start()
    heat.wait(stack_name, seconds=BOOT + WORK)
    vm.wait_console("phase=steady", WORK)
    out = heat.outputs(stack_name)
    assert (out["greeting"], out["node_address"], out["generation"]) == ("hello wörld", IP, 1)
    is_healthy(vm)
    boots_in_order(vm)
    made = report(vm, image)
    # The system was up long before the node: the boot does not wait for the bring-up.
    up = int(vm.sh("systemctl show -p ActiveEnterTimestampMonotonic --value multi-user.target"))
    done = [int(e["__MONOTONIC_TIMESTAMP"]) for e in vm.journal("-b", "-u", UNIT) if e.get("HNA_PHASE") == "steady"]
    assert up < done[0], (up, done)

    # A line for each phase, and none for one that is over.
    said = [(line["phase"], line["state"], line["code"], line["msg"]) for line in phases(vm.console())]
    assert {"metadata", "deploy", "volume", "units", "gates", "signal", "steady"} <= {phase for phase, *_ in said} <= set(PHASES), said
    # Of complaints each is shown, and has words of its own.
    assert all(one[:2] != following[:2] or (one[1] in ("waiting", "degraded") and one[3] != following[3]) for one, following in zip(said, said[1:])), said
    # A poll that a busy Heat does not answer in time may say so at any moment.
    assert [phase for phase, *_ in said if phase != "metadata"][-1] in ("steady", "signal"), said
    # The identity is Nova's, the serials are Cinder's ids, sysctl and modules are the kernel's.
    assert vm.instance in vm.sh("cat /var/lib/heat-node-agent/identity.json")
    assert vm.sh("grep -h '' /sys/block/vdb/serial /sys/block/vdc/serial").split() == [VDB[:20], VDC[:20]]
    assert vm.sh("sysctl -n net.ipv4.ip_forward net.bridge.bridge-nf-call-iptables").split() == ["1", "1"]
    modules = vm.sh("lsmod")
    assert "br_netfilter" in modules and "overlay" in modules
    # By the agent: docker, which would do some of it by itself, came after.
    started = [int(vm.sh(f"systemctl show -p ExecMainStartTimestampMonotonic --value {unit}"))
               for unit in (UNIT, "systemd-modules-load", "systemd-sysctl", "docker")]
    assert started == sorted(started), started

    # The boot after: nothing is written, restarted, formatted or run again. Nothing is left to tell either: the stack ends with the
    # last signal, whose answer may come later.
    wait_for(lambda: json.loads(vm.sh("heat-node-agent status --json || :"))["phase"] == "steady", WORK, "nothing left to tell", every=2)
    before, console = state(vm), len(vm.console())
    vm.stop()
    vm.start()
    vm.wait_console("login:", BOOT, after=console)
    vm.wait_ssh(WORK)
    wait_for(lambda: vm.sh("systemctl is-active etcd docker heat-node-agent || :").split() == ["active"] * 3, WORK, "units active", every=2)
    # Two whole looks at the metadata and at the node.
    for _ in range(2):
        marked = heat.mark()
        vm.sh(f"systemctl reload {UNIT}")
        wait_for(lambda: heat.requests("heat-api-cfn", marked, path=stack_name), WORK, "a poll")
        wait_for(lambda: json.loads(vm.sh("heat-node-agent status --json || :"))["node"]["state"] == "applied", WORK, every=2)
    events = {entry["HNA_EVENT"] for entry in vm.journal("-b", "-u", UNIT) if "HNA_EVENT" in entry}
    assert "AgentStarted" in events
    assert events <= {"AgentStarted", "SourceInUse", "MetadataChanged", "SourceFailed", "SourceRecovered"}, events
    assert state(vm) == before
    for unit in ("etcd.service", "docker.service"):
        assert len(vm.journal("-b", f"UNIT={unit}", "MESSAGE_ID=39f53479d3a045ac8e11786248231fbf")) == 1, unit
    assert len(vm.journal("HNA_EVENT=DeploymentStarted")) == 1
    vm.sh("heat-node-agent plan")
    is_healthy(vm)
    boots_in_order(vm)
    return made


def power_cut_and_late_volumes(heat: Heat, vms, image, stack_name: str) -> str:
    vm = vms("late", user_data=node(heat, stack_name), volumes={VDB: "4G"})
    # The mkfs, which writes more than this, can't end before the cut. Its record is on the disk when it begins, and nobody else
    # writes to the volume.
    vm.start(takes={VDB: 1 << 20})
    wait_for(lambda: vm.written(VDB) >= 1 << 20, BOOT + WORK, "a mkfs under way")
    vm.cut()

    vm.volumes = {}
    console = len(vm.console())
    vm.start()
    vm.wait_console("phase=volume state=waiting code=HNA-0302", BOOT, after=console)
    vm.wait_ssh(WORK)
    begun = json.loads(vm.sh("cat /var/lib/heat-node-agent/volumes/runtime.json"))
    assert begun["state"] == "formatting", begun
    rows = []
    for volume, size, bus, name in ((VDB, "4G", "virtio", "vdb"), (VDC, "1G", "scsi", "sda")):
        if bus == "scsi":
            # The other was measured; here is looked at what wakes the agent, which strace makes slow.
            vm.sh("systemd-run -q --unit=trace strace -f -qq -e trace=recvfrom -o /run/trace "
                  f"-p $(systemctl show -p MainPID --value {UNIT}); "
                  f"while grep -q '^TracerPid:.*[^0-9]0$' /proc/$(systemctl show -p MainPID --value {UNIT})/task/*/status; do sleep 1; done")
            # It is woken by udev's event, which begins with this word; its poll hears no such thing. Any disk's event: that of the
            # one to come may be later than a look by the poll.
            vm.sh("udevadm trigger --action=change --name-match=sr0")
            wait_for(lambda: "libudev" in vm.sh("cat /run/trace"), WORK, "an agent that hears udev", every=2)
        vm.attach(volume, size, bus)
        time.sleep(5)  # a login costs the machine seconds
        found = wait_for(lambda: [e for e in vm.journal("-b", "HNA_EVENT=VolumeFound") if volume in e["MESSAGE"]], WORK, volume, every=5)
        # The kernel's own line about the disk, a moment before it tells udev.
        said = [e for e in vm.journal("-b", "-k") if f"[{name}] " in e["MESSAGE"] and "logical blocks" in e["MESSAGE"]]
        took = (int(found[0]["__MONOTONIC_TIMESTAMP"]) - int(said[0]["_SOURCE_MONOTONIC_TIMESTAMP"])) / 1e6
        rows.append((f"`{name}`, {bus}", f"{took:.2f}", "" if bus == "virtio" else "slower here: the test traced the agent with strace"))
    heat.wait(stack_name, seconds=WORK)
    is_healthy(vm)
    ended = json.loads(vm.sh("cat /var/lib/heat-node-agent/volumes/runtime.json"))
    assert (ended["state"], ended["volume"]) == ("in_place", VDB), ended
    assert vm.sh("blkid -s UUID -o value /dev/vdb").strip() == ended["fs_uuid"]
    boots_in_order(vm)
    return "\n### Volumes that come late\n\nFrom the kernel's line about the disk to the agent's HNA-0301.\n\n" + \
        table(("disk", "s", ""), rows)


@pytest.fixture(scope="module")
def courses(heat_services, vms, image):
    """What each machine goes through, under way."""
    heat = Heat()
    with ThreadPoolExecutor(2) as pool:
        yield {course: pool.submit(course, heat, vms, image, unique(course.__name__.replace("_", "-")))
               for course in (first_boot_and_reboot, power_cut_and_late_volumes)}
    heat.sweep()


def test_the_image_boots_to_a_healthy_node_and_the_boot_after_changes_nothing(courses: dict[object, Future]):
    print("\n" + courses[first_boot_and_reboot].result())


def test_a_power_cut_in_mkfs_and_volumes_that_come_late(courses: dict[object, Future]):
    late = courses[power_cut_and_late_volumes].result()
    print("\n" + late)
    MADE.write_text(courses[first_boot_and_reboot].result() + late)
