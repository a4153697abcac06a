"""What a boot of the image cost, as the tables of docs/first-boot.md: every figure is read from that boot.

    python3 -B tests/lib/first_boot.py    puts those of the last run of tests/image into the page
"""
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from lib.common import REPO, run  # noqa: E402
from lib.vm import Vm  # noqa: E402

MADE, PAGE, FROM_HERE = REPO / "target/image/first-boot.md", REPO / "docs/first-boot.md", "<!-- Made by tests/image. -->\n"
# systemd's units that a reader knows, in no order: the table is sorted by time.
UNITS = {"cloud-init-local.service": "cloud-init: local stage", "cloud-init.service": "cloud-init: network stage",
         "network-online.target": "the network is up", "cloud-config.target": "cloud-init has left identity and metadata",
         "heat-node-agent.service": "**the agent is ready** (`READY=1`)", "multi-user.target": "the system is up",
         "cloud-config.service": "cloud-init: modules", "cloud-final.service": "cloud-init: last modules"}
PHASES = ("settings", "metadata", "deploy", "plan", "volume", "files", "units", "gates", "signal", "steady")


def phases(console: str) -> list[dict]:
    """The agent's lines on a console: their fields."""
    return [dict(re.findall(r'(\w+)=("[^"]*"|\S+)', line)) for line in lines(console)]


def lines(console: str) -> list[str]:
    # A login prompt may stand before the first.
    return re.findall(r"heat-node-agent phase=.*", console.replace("\r", ""))


def table(head: tuple[str, ...], rows: list[tuple]) -> str:
    text = [f"| {' | '.join(head)} |", "|" + "|".join("--:" if one in ("s", "lasted s", "bytes") else "---" for one in head) + "|"]
    return "\n".join(text + [f"| {' | '.join(str(cell) for cell in row)} |" for row in rows]) + "\n"


def started(vm: Vm) -> list[tuple[float, str]]:
    """When units became active, in seconds since the kernel began."""
    found = []
    shown = vm.sh("systemctl show -p Id,ActiveEnterTimestampMonotonic,ExecMainStartTimestampMonotonic " + " ".join(UNITS))
    for block in shown.split("\n\n"):
        values = dict(line.split("=", 1) for line in block.splitlines())
        found.append((int(values["ActiveEnterTimestampMonotonic"]) / 1e6, UNITS[values["Id"]]))
        if values["Id"] == "heat-node-agent.service":
            found.append((int(values["ExecMainStartTimestampMonotonic"]) / 1e6, "the agent's process begins"))
    return found


def report(vm: Vm, image: Path) -> str:
    """For a machine that has booted for the first time and reached its steady phase."""
    entries = [e for e in vm.journal("-b", "-u", "heat-node-agent.service") if "HNA_PHASE" in e]
    when = [int(e["__MONOTONIC_TIMESTAMP"]) / 1e6 for e in entries]
    rows = started(vm)
    stages = []
    for phase in PHASES:
        of_it = [at for at, entry in zip(when, entries, strict=True) if entry["HNA_PHASE"] == phase]
        if of_it:
            last = [e for e in entries if e["HNA_PHASE"] == phase][-1]
            said = f"{last['HNA_CODE']} {last['MESSAGE']}".replace("|", "\\|")
            stages.append((f"{of_it[0]:.1f}", f"`{phase}`", f"{of_it[-1] - of_it[0]:.1f}", said))
    at = [f"{seconds:.1f}" for seconds, _ in sorted(rows)]
    sizes = [(path, f"{int(size):,}") for path, size in (line.rsplit(" ", 1) for line in vm.sh(
        "stat -c '`%n` %s' /usr/bin/heat-node-agent; "
        "echo all files of the agent with manual pages and completions "
        "$(cat $(find /usr/bin /usr/lib/systemd /usr/lib/tmpfiles.d /usr/share -type f -name '*heat-node-agent*') | wc -c); "
        "echo root file system, in use $(df --output=used -B1 / | tail -n 1)").splitlines())]
    sizes.append(("the image as a raw file, on disk", f"{int(run('du', '-B1', image).stdout.split()[0]):,}"))
    machine = vm.sh("nproc; uname -r; . /etc/os-release; echo $PRETTY_NAME; systemctl --version | head -n 1").splitlines()
    made = "\n".join([
        f"{machine[2]}, Linux {machine[1]}, {machine[3].split(' (')[0]}, QEMU with software emulation: processors {machine[0]}, "
        f"memory {vm.memory} MB.", "",
        "### Console", "", "```", *lines(vm.console()), "```", "",
        "### Times", "", "Seconds since the kernel began.", "",
        table(("s", "what"), list(zip(at, (what for _, what in sorted(rows)), strict=True))),
        "The agent's phases:", "", table(("s", "phase", "lasted s", "its last message"), sorted(stages, key=lambda stage: float(stage[0]))),
        "### Sizes", "", table(("what", "bytes"), sizes)])
    MADE.write_text(made)
    return made


if __name__ == "__main__":
    PAGE.write_text(PAGE.read_text().split(FROM_HERE)[0] + FROM_HERE + "\n" + MADE.read_text())
