"""Hosts that a real cloud-init sets up: the roots `cloud` of host.sh, to which the agent is added, and `image`, which has it."""
import json
from pathlib import Path

from lib.common import REPO, SET, SUITE, TESTHOST, run, wait_for
from lib.config_drive import tree
from lib.hosts import Host, agent_binary, unit_files

BASE = "cloud"
EXAMPLES = REPO / "examples/cloud-init"
# What the examples call Heat, and what a template's `str_replace` would put there.
EXAMPLE_HEAT = "http://heat.example.org:8000"
UNIT = "heat-node-agent.service"
# cloud-init's network stage, whose unit has another name since 24.3.
NETWORK_STAGE = "cloud-init.service" if SUITE in ("bullseye", "bookworm") else "cloud-init-network.service"
RAN = "/var/tmp/ran"
# A deployment that tells that it ran.
SCRIPT = f"#!/bin/sh\necho $deploy_resource_name >>{RAN}\n"


def example(name: str, heat: str) -> str:
    """An example as it is, but for Heat's address."""
    text = (EXAMPLES / name).read_text()
    assert EXAMPLE_HEAT in text or "metadata_url" not in text, f"{name} leads elsewhere than to {EXAMPLE_HEAT}"
    return text.replace(EXAMPLE_HEAT, heat)


def image(folder: Path, *, enabled: bool, binary: Path | None = None) -> dict[str, Path]:
    """Files of an image that has the agent: {path in it: path here}."""
    files = {"/usr/bin/heat-node-agent": binary or agent_binary()} | unit_files()
    if enabled:  # as `systemctl enable`
        link = folder / "enabled"
        link.unlink(missing_ok=True)
        link.symlink_to(f"/usr/lib/systemd/system/{UNIT}")
        files[f"/etc/systemd/system/multi-user.target.wants/{UNIT}"] = link
    return files


def seed(folder: Path, user_data: str, instance: str) -> dict[str, Path]:
    """The data source NoCloud as files of the image. Where there is no block device this is all that cloud-init needs."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "user-data").write_text(user_data)
    (folder / "meta-data").write_text(json.dumps({"instance-id": instance}))
    for path in folder.iterdir():
        path.chmod(0o600)
    return {f"/var/lib/cloud/seed/nocloud/{name}": folder / name for name in ("user-data", "meta-data")}


def be_instance(host: Host, user_data: str, instance: str):
    """From the next boot on the data source NoCloud speaks of another instance."""
    host.write("/var/lib/cloud/seed/nocloud/user-data", user_data, 0o600)
    host.write("/var/lib/cloud/seed/nocloud/meta-data", json.dumps({"instance-id": instance}), 0o600)


def config_drive(folder: Path, volume: str, user_data: str, instance: str, name: str = "n1"):
    """Makes the content of a volume: a config drive of Nova's format, found by its label. Its file system is ext4, because
    the kernels of test machines need not have those of a CD or of DOS."""
    disk = TESTHOST / SET / "volumes" / f"{volume}.img"  # where host.sh looks for a volume it knows
    disk.parent.mkdir(parents=True, exist_ok=True)
    disk.unlink(missing_ok=True)
    with tree(folder / "drive", instance, name, user_data) as files:
        run("mke2fs", "-q", "-t", "ext4", "-L", "config-2", "-d", files, disk, "16M")


def status(host: Host) -> tuple[int, str]:
    """Waits until cloud-init is through; how `cloud-init status --long` ended, and what it said."""
    done = host.exec("cloud-init", "status", "--wait", "--long", check=False, timeout=900)
    return done.returncode, done.stdout


def cycles(host: Host, console: str) -> list[str]:
    """What systemd said of ordering cycles in this boot, on the console before the journal runs; and what it finds in the
    units as they are now. It names a cycle by any of its units, whichever it came to first, and then the others on a line each."""
    host.exec("journalctl", "--sync")
    said = console.splitlines() + host.sh("journalctl -b -q --no-pager -o cat _PID=1").splitlines()
    verify = host.exec("systemd-analyze", "verify", "--man=no", "default.target", "cloud-init.target", check=False)
    return [line for line in said + verify.stderr.splitlines() if "cycle" in line or "Found dependency on" in line]


def monotonic(host: Host, unit: str, point: str) -> float:
    """Seconds since this boot's start at which a unit came to a point (ActiveEnter, InactiveExit, ExecMainStart ...)."""
    return int(host.show(unit, f"{point}TimestampMonotonic")[f"{point}TimestampMonotonic"]) / 1e6


def events(host, event: str) -> list[dict]:
    """Of this boot."""
    return host.journal(boot="0", HNA_EVENT=event)


def record(host) -> dict:
    return json.loads(host.read("/var/lib/heat-node-agent/identity.json"))


def check_success(host, instance: str, console: str | None = None):
    """Both went well in this boot, and neither was in the other's way. console: what it said in this boot."""
    code, said = status(host)
    assert code == 0 and "status: done" in said, said
    assert json.loads(host.read("/run/cloud-init/result.json"))["v1"]["errors"] == []
    assert not host.sh("systemctl --failed --no-legend --plain").strip()
    assert not cycles(host, host.console() if console is None else console)
    # What runcmd starts without waiting for it may be on its way.
    host.wait_for(lambda: host.is_active(UNIT), 300, f"{UNIT} active")
    assert host.show(UNIT, "ActiveState", "SubState", "NRestarts") == {"ActiveState": "active", "SubState": "running", "NRestarts": "0"}
    # Known before the agent started: it never had to wait for it.
    assert record(host)["instance"] == {"origin": "cloud-init", "value": instance}
    assert not events(host, "IdentityUnknown")
    assert monotonic(host, UNIT, "InactiveExit") >= monotonic(host, NETWORK_STAGE, "ActiveEnter")


def nothing_again(host, server, instance: str):
    """A boot in which nothing new is asked runs nothing and tells nothing."""
    def is_steady() -> bool:
        return json.loads(host.exec("heat-node-agent", "status", "--json", check=False).stdout or "{}").get("phase") == "steady"
    # What it does not know to be taken it would send again.
    host.wait_for(is_steady, 300)
    ran, signals = host.read(RAN), len(server.signals())
    before = len(host.console())
    host.reboot()
    check_success(host, instance, host.console()[before:])
    started = int(events(host, "AgentStarted")[0]["__REALTIME_TIMESTAMP"]) / 1e6
    # When it asks again it has acted on the answer before.
    wait_for(lambda: len([r for r in server.polls() if r.time > started]) >= 2, 300, "two polls of the second boot")
    host.wait_for(is_steady, 300)
    assert not events(host, "DeploymentStarted") and not events(host, "IdentityChanged")
    assert host.read(RAN) == ran and len(server.signals()) == signals
