"""docs/migrate.md: the real os-collect-config, os-refresh-config, os-apply-config and heat-agents of PyPI on a host; the package takes over, and removal gives the
old state back. The commands are those of the page."""
import json

import pytest

from lib.common import MACHINE, REPO, SUITE, run
from lib.legacy import AGENTS, IN_AGENTS, REAL
from lib.node import IP, UNIT, signalled
from lib.packages import COUNT, deb, is_enabled  # noqa: F401

# The original tools are of this machine's Python.
pytestmark = pytest.mark.skipif(SUITE != MACHINE, reason="the replaced tools are installed by this machine's Python, and the hosts' is another")

UNITS = {"os-collect-config.service": ("On a machine that runs", "The way back"), "heat-container-agent.service": ("On a node that runs", "The way back from there")}
BIN = ("os-collect-config", "os-refresh-config", "os-apply-config", "dib-run-parts")
# As Magnum's: the source `local` reads in no other locale (R3).
SERVICE = b"[Service]\nEnvironment=LC_ALL=C\nExecStart=/usr/bin/os-collect-config\nRestart=on-failure\n[Install]\nWantedBy=multi-user.target\n"
DEPLOYED = "/var/lib/heat-config/deployed"
# Programs and settings, and what says who starts.
FOLDERS = "/etc /usr/bin /usr/libexec /usr/lib/systemd /var/lib/heat-cfntools /var/lib/systemd/deb-systemd-helper-enabled"


def block(heading: str) -> str:
    """The commands below a heading of docs/migrate.md."""
    below = (REPO / "docs/migrate.md").read_text().split(f"\n### {heading}\n")[1].split("\n#")[0]
    return below.split("```sh\n")[1].split("```")[0]


@pytest.fixture(scope="session")
def originals():
    run(REPO / "tests/legacy/up.sh", timeout=1800)


def files(host) -> set[str]:
    return set(host.sh(f"find {FOLDERS} -xdev '(' -type f -exec sha256sum '{{}}' + ')' -o -type l -printf '%l  %p\\n'").splitlines())


def polled(host, server):
    """Whoever polls has had an answer, and taken what it lists."""
    since = len(server.polls())
    host.wait_for(lambda: len(server.polls()) > since + 2)


def settle(host, deb, server, unit):  # noqa: F811
    """An image with the replaced tools, as heat-agents' elements lay them out, and the metadata that cloud-init leaves."""
    conf = AGENTS / "heat-config/os-apply-config"
    libexec = "/usr/libexec"
    host.put({
        f"{libexec}/os-refresh-config/configure.d/20-os-apply-config": (AGENTS / "heat-config/os-refresh-config/configure.d/20-os-apply-config", 0o755),
        f"{libexec}/os-refresh-config/configure.d/55-heat-config": (AGENTS / IN_AGENTS["55-heat-config"], 0o755),
        f"{libexec}/heat-config/hooks/script": (AGENTS / IN_AGENTS["hook-script.py"], 0o755),
        "/usr/bin/heat-config-notify": (AGENTS / IN_AGENTS["heat-config-notify"], 0o755),
        **{f"{libexec}/os-apply-config/templates/{path.relative_to(conf)}": (path, 0o644) for path in conf.rglob("*") if path.is_file()},
        "/etc/os-collect-config.conf": (b"[DEFAULT]\ncommand = os-refresh-config\n", 0o600),
        "/var/lib/heat-cfntools/cfn-init-data": (json.dumps({"os-collect-config": server.document["os-collect-config"], "deployments": []}).encode(), 0o600),
        f"/etc/systemd/system/{unit}": (SERVICE, 0o644),
        f"/root/{deb.name}": (deb, 0o644),
    })
    for name in BIN:
        host.exec("ln", "-s", REAL / name, f"/usr/bin/{name}")
    host.sh(f"systemctl daemon-reload; systemctl enable --now {unit}")


def test_in_an_image_the_next_boot_is_the_agents(deb, originals, hosts, signal_server, tmp_path):  # noqa: F811
    """The chroot of an image: a copy of the host's root, without a running systemd."""
    host = hosts("n1", ip=IP, base="base")
    settle(host, deb, signal_server(), "os-collect-config.service")
    host.exec("systemctl", "stop", "os-collect-config.service")
    host.sh("""mount -t tmpfs tmpfs /mnt; mkdir /mnt/upper /mnt/work /mnt/root
        mount -t overlay overlay -o lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work /mnt/root
        rm -rf /mnt/root/run; mkdir /mnt/root/run""")
    said = host.exec("chroot", "/mnt/root", "bash", "-c", f"cd /root; {block('In an image')}", check=False)
    # It was booted before, which is said; who starts at the next boot is not among it.
    assert "/var/lib/heat-cfntools/cfn-init-data" in said.stdout and "multi-user.target.wants" not in said.stdout, said
    assert host.sh("ls /mnt/root/etc/systemd/system/multi-user.target.wants | grep -E 'collect|heat' || :") == "heat-node-agent.service\n"


@pytest.mark.parametrize("unit", UNITS)
def test_the_agent_takes_over_and_goes_again(deb, originals, hosts, signal_server, tmp_path, unit):  # noqa: F811
    there, back = map(block, UNITS[unit])
    (tmp_path / "empty").touch()
    server = signal_server()
    server.document["os-collect-config"]["polling_interval"] = 2
    # Without cloud-init nobody makes the keys of its SSH.
    host = hosts("n1", ip=IP, base="cloud", binds_ro={str(REAL.parents[1]): str(REAL.parents[1])},
                 files={"/etc/cloud/cloud-init.disabled": tmp_path / "empty"}, expect="")
    first = server.deployment("first", config=f"{COUNT}echo from $0; echo $greeting >/var/tmp/greeting\n", inputs={"greeting": "hello"})
    by_hand = server.deployment("by-hand", config=f"{COUNT}")
    host.put({f"{DEPLOYED}/{by_hand['id']}.json": (b"", 0o600)})
    server.deploy(first, by_hand)
    settle(host, deb, server, unit)
    assert signalled(server, "first")["deploy_status_code"] == 0 and host.read("/var/tmp/greeting") == "hello\n"
    assert "secret_access_key = " in host.read("/etc/os-collect-config.conf")

    # What would be taken over is shown from a copy of the program that changes nothing.
    untouched = files(host)
    host.sh(f"dpkg-deb -x /root/{deb.name} /tmp/hna")
    shown = host.wait_for(lambda: host.exec("/tmp/hna/usr/bin/heat-node-agent", "adopt").stdout, what="nothing left to run")
    assert f"source        cfn: {server.base}/v1/, by /etc/os-collect-config.conf" in shown and "nothing is run" in shown
    assert f"first ({first['id']}, script): was run with status 0: it is not run again" in shown
    assert f"by-hand ({by_hand['id']}, script): was run (its result is not recorded): it is not run again" in shown
    assert files(host) == untouched and not host.exists("/var/lib/heat-node-agent")

    # While a deployment runs the tools are not stopped, and without that nothing is installed.
    long = server.deployment("long", config=f"{COUNT}touch /run/began; while [ ! -e /run/go ]; do sleep 0.1; done\necho ended\n")
    server.deploy(long)
    host.wait_for(lambda: host.exists("/run/began"))
    before = files(host)
    refused = host.sh(f"cd /root; ! {there.splitlines()[1]} 2>&1")
    assert f"systemctl disable --now {unit}" in refused and not host.exists("/usr/bin/heat-node-agent")
    step = host.popen("bash", "-euc", f"cd /root; {there}", text=True, stdout=-1, stderr=-1)
    try:
        host.wait_for("pgrep -x flock")
        assert host.is_active(unit)
        host.write("/run/go", "")
        said = step.communicate(timeout=600)
    finally:
        step.kill()
    # The last command is `status`: what the agent has just begun may still be under way.
    assert step.returncode in (0, 2), said
    assert signalled(server, "long")["deploy_stdout"] == "ended\n"
    assert host.is_active(UNIT) and not host.is_active(unit) and is_enabled(host) == "enabled"
    ran = "ran\nran\n"

    def is_taken_over():
        polled(host, server)
        host.wait_for(lambda: host.exec("heat-node-agent", "status", check=False).returncode == 0, what="nothing left to do")
        assert host.read("/var/tmp/ran") == ran
        assert all(len({s.body for s in server.signals(name)}) == 1 for name in ("first", "long")) and not server.signals("by-hand")
    is_taken_over()
    host.reboot(expect="")
    is_taken_over()
    assert host.is_active(UNIT) and not host.is_active(unit)
    listed = host.exec("heat-node-agent", "status", "-v").stdout
    assert all(name in listed for name in ("first", "long", "by-hand")), listed
    server.deploy(server.deployment("ours", config=f"{COUNT}echo by the agent\n"))
    assert signalled(server, "ours")["deploy_stdout"] == "by the agent\n"
    ran += "ran\n"

    # And back. What the tools had is as it was.
    host.sh(f"cd /root; {back}")
    assert not host.exists("/usr/bin/heat-node-agent") and not host.exists("/var/lib/heat-node-agent") and host.is_active(unit)
    server.deploy(server.deployment("theirs", config=f"{COUNT}echo by the tools\n"))
    assert signalled(server, "theirs")["deploy_stdout"] == "by the tools\n"
    ran += "ran\n"
    host.reboot(expect="")
    polled(host, server)
    assert host.is_active(unit) and host.read("/var/tmp/ran") == ran
    assert [len({s.body for s in server.signals(name)}) for name in ("first", "long", "ours", "theirs", "by-hand")] == [1, 1, 1, 1, 0]
    assert files(host) == before
