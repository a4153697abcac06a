"""Images that somebody hardened, or left something out of: a node comes up on them, or status and Heat name the cause, and the node comes up
once that is put right. docs/limitations.md has the table of them."""
import pytest

from lib.cluster import parameters
from lib.common import wait_for
from lib.hosts import Host
from lib.node import IP, NODE, UNIT, VDB, VDC, is_steady, signalled

SCRIPT = "#!/bin/sh\necho hello\n"
# /proc shows processes to their owners alone, nothing below /usr can be written, what is written to /etc lies elsewhere, /run is no larger
# than systemd needs.
HARDENED = """mount -o remount,hidepid=2 /proc
mount --bind /usr /usr; mount -o remount,bind,ro /usr
mkdir /var/etc; mount -t tmpfs tmpfs /var/etc; mkdir /var/etc/upper /var/etc/work; mount -t overlay overlay -o lowerdir=/etc,upperdir=/var/etc/upper,workdir=/var/etc/work /etc
mount -o remount,size=20M /run"""
POLICY = "/usr/share/dbus-1/system.d/org.freedesktop.systemd1.conf"
DENIAL = "/usr/share/dbus-1/system.d/zz-hardened.conf"
DENIED = f"""cat >{DENIAL} <<'END'
<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-BUS Bus Configuration 1.0//EN" "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig><policy context="mandatory">
<deny send_destination="org.freedesktop.systemd1" send_interface="org.freedesktop.systemd1.Manager" send_member="StartTransientUnit"/>
</policy></busconfig>
END
systemctl reload dbus"""
UDEV = "systemd-udevd.service systemd-udevd-kernel.socket systemd-udevd-control.socket"
# The kernel of a host is the machine's, and has xfs, as the agent sees in a /proc of its own: it is mount that refuses it here. That nothing is
# formatted without xfs in the kernel, agent/keepers/volumes/tests.rs has.
WITHOUT_XFS = r"""grep -v xfs /proc/filesystems >/run/filesystems; mount --bind /run/filesystems /proc/filesystems
for program in mount modprobe; do
  path=$(command -v $program); mv $path $path.real
  printf '#!/bin/sh\ncase "$*" in *xfs*) echo "%s: no xfs in this kernel: unknown filesystem type" >&2; exit 32 ;; esac\nexec %s.real "$@"\n' $program $path >$path
  chmod 755 $path
done"""
WITH_XFS = "umount /proc/filesystems; for program in mount modprobe; do path=$(command -v $program); mv $path.real $path; done"
# name → (what is done to the image, deployments that fail, words of their reasons and of status, what puts it right)
HOSTILE = {
    "noexec": ("mount --bind /var /var; mount -o remount,bind,noexec /var", ["hello"],
               ["Permission denied", "look for a mount option noexec (`findmnt -T /var/lib/heat-config`)"], "mount -o remount,bind,exec /var"),
    "run is full": ("fallocate -l $(($(df --output=avail -B1 /run | tail -n 1) - 16384)) /run/filler", ["node"],
                    ["not enough space available on /run/systemd", "`df -h /run` shows the file system"], "rm /run/filler"),
    "no udev": (f"systemctl mask -q --now {UDEV}; rm -rf /dev/disk /run/udev/data", ["node"],
                [f"volume {VDC} is not attached (no disk has that serial", " disks without a serial, no udev has looked at them"],
                f"systemctl unmask -q {UDEV}; systemctl start {UDEV}; udevadm trigger --action=add; udevadm settle"),
    "bus policy": (DENIED, ["hello", "node"], ["Rejected send message", 'member="StartTransientUnit"', "`grep -rl '<deny' /etc/dbus-1 /usr/share/dbus-1`"], f"rm {DENIAL}; systemctl reload dbus"),
    "no mkfs.xfs": ("mv /usr/sbin/mkfs.xfs /usr/sbin/mkfs.away", ["node"], ["starting mkfs.xfs: No such file or directory", "install the program on this node"],
                    "mv /usr/sbin/mkfs.away /usr/sbin/mkfs.xfs"),
    "no xfs": (WITHOUT_XFS, ["node"], ["mount: no xfs in this kernel: unknown filesystem type"], WITH_XFS),
}


def says(host: Host, *words: str):
    text = " ".join(host.exec("heat-node-agent", "status", check=False).stdout.split())
    assert all(word in text for word in words), text
    return True


def is_ready(host: Host):
    assert host.exec("heat-node-agent", "status", check=False).stdout.startswith("READY\n") and is_steady(host)
    return True


def install(host: Host, server):
    """As an image has it that has not booted yet: an image of this kind may not let anybody do it later."""
    host.install_agent()
    cfn = server.settings()["cfn"]
    host.write("/etc/os-collect-config.conf", "[cfn]\n" + "".join(f"{k} = {v}\n" for k, v in cfn.items()), 0o600)
    host.exec("systemctl", "enable", "-q", UNIT)


@pytest.fixture
def host(hosts) -> Host:
    return hosts("n1", ip=IP, volumes={"vdb": ("512M", VDB), "vdc": ("512M", VDC)})


def test_a_hardened_image_makes_a_node(host, signal_server):
    server = signal_server()
    install(host, server)
    host.sh(HARDENED)
    assert host.exec("runuser", "-u", "nobody", "--", "test", "-e", "/proc/1", check=False).returncode == 1
    host.sh("! touch /usr/bin/x 2>/dev/null")
    server.deploy(server.deployment("hello", config=SCRIPT), server.deployment("node", group="kubernetes-node", inputs=NODE))
    host.exec("systemctl", "start", UNIT)
    assert [signalled(server, name)["deploy_status_code"] for name in ("hello", "node")] == [0, 0]
    wait_for(lambda: is_ready(host), 300, "READY", every=1)
    assert host.exists("/var/etc/upper/docker/daemon.json")


def test_modules_that_the_kernel_lacks_are_named_by_the_daemon(host, signal_server, magnum):
    """ProtectKernelModules= of its unit hides where they are. A host has the machine's kernel, and none of its modules: what that has is made up."""
    server = signal_server()
    install(host, server)
    modules = f"/lib/modules/{host.sh('uname -r').strip()}"
    host.write(f"{modules}/modules.dep", "kernel/net/netfilter/ipvs/ip_vs.ko:\n")
    host.write(f"{modules}/modules.builtin", "kernel/net/netfilter/ipvs/ip_vs_rr.ko\n")
    inputs = parameters("minion", "w1", IP, IP, **magnum().parameters()) | {"PROXY_MODE": "ipvs"}
    server.deploy(server.deployment("node", group="kubernetes-node", inputs=inputs))
    host.exec("systemctl", "start", UNIT)
    result = signalled(server, "node")
    assert result["deploy_status_code"] != 0, result
    said = result["deploy_stderr"]
    assert "PROXY_MODE: selects ipvs, but the kernel lacks ip_vs_wrr, ip_vs_sh" in said, said


@pytest.mark.longer
@pytest.mark.parametrize("name", HOSTILE)
def test_what_an_image_keeps_from_a_node_is_named(host, signal_server, name):
    image, failing, words, mend = HOSTILE[name]
    server = signal_server()
    both = {"hello": server.deployment("hello", config=SCRIPT),
            "node": server.deployment("node", group="kubernetes-node", inputs=NODE | ({"WAIT_TIMEOUT": 120} if name == "no udev" else {}))}
    install(host, server)
    host.sh(image)
    server.deploy(*both.values())
    host.exec("systemctl", "start", UNIT)
    for one in failing:
        result = signalled(server, one)
        told = f"{result['deploy_status_code']} {result['deploy_stderr']}"
        assert result["deploy_status_code"] != 0 and all(word in told for word in words), (one, told)
    # Where the file of status itself cannot be written, it is as old as the last that could.
    if name != "run is full":
        wait_for(lambda: says(host, "FAILED", *words), 300, "the cause in status", every=1)
    server.forget()
    host.sh(mend)
    for one in failing:
        host.exec("heat-node-agent", "rerun", both[one]["id"])
    assert [signalled(server, one)["deploy_status_code"] for one in failing] == [0] * len(failing)
    wait_for(lambda: is_ready(host), 300, "READY", every=1)


@pytest.mark.longer
def test_without_systemd_s_policy_on_the_bus_the_agent_says_that_nobody_answers(host, signal_server):
    server = signal_server()
    server.deploy(server.deployment("node", group="kubernetes-node", inputs=NODE))
    install(host, server)
    host.sh(f"mv {POLICY} /var/policy")
    # Nothing of systemd's that others call works then, nor anything that waits for it.
    host.reboot(expect="")
    wait_for(lambda: says(host, "connecting to systemd over the system bus: systemd did not answer within 25 s", "journalctl -b -u dbus.service", POLICY),
             300, "the cause in status", every=2)
    assert not server.signals("node")
    host.sh(f"mv /var/policy {POLICY}")
    host.reboot()
    assert signalled(server, "node")["deploy_status_code"] == 0


@pytest.mark.longer
def test_what_a_volatile_etc_lost_is_named_and_repaired(host, signal_server):
    """After a boot /etc is the image's again: units, settings and links of the node are gone, its volumes are not."""
    server = signal_server()
    server.deploy(server.deployment("node", group="kubernetes-node", inputs=NODE))
    install(host, server)
    host.sh("tar -C / -cf /var/etc.tar etc")
    host.exec("systemctl", "start", UNIT)
    assert signalled(server, "node")["deploy_status_code"] == 0
    wait_for(lambda: is_ready(host), 300, "READY", every=1)
    host.sh("find /etc -xdev -mindepth 1 -maxdepth 1 ! -name hostname ! -name hosts -exec rm -rf {} +; tar -C / -xf /var/etc.tar")
    host.reboot()
    wait_for(lambda: says(host, "DEGRADED: etcd not running", "/etc/etcd/etcd.conf is gone", "`heat-node-agent repair` does it"), 300, "the cause", every=1)
    host.exec("heat-node-agent", "repair", check=False)
    wait_for(lambda: is_ready(host), 300, "READY", every=1)
    assert host.sh("findmnt -no TARGET /var/lib/etcd").strip() == "/var/lib/etcd"
