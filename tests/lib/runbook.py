"""docs/runbook.md, made from the transcripts of staged failures: what status said, and what ended it, are theirs.

    python3 -B tests/lib/runbook.py            writes the page
    python3 -B tests/lib/runbook.py --check    fails where it is stale
"""
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from lib.common import REPO  # noqa: E402
from lib.failures import GOLDEN, HANGS, LINES, REPORTED, WIDTH  # noqa: E402

PAGE = REPO / "docs/runbook.md"
# So many failures are staged at least.
LEAST = 24
HEAD = """# Runbook

<!-- Made by tests/lib/runbook.py from tests/host/transcripts; change it there. -->

This page leads from the output of `heat-node-agent status` to the cause and the action. Each failure below was staged on a host; the lines of `status` and the
remedy are quoted from there, with a word in angle brackets for what differs from node to node: the agent prints the id itself. Read the whole remedy: it says under which condition each command is right. Below it is listed what was done on the staged
host, separately for each way that the remedy offers. Commands for the cloud were parsed by OpenStack's own client
(`tests/heat/test_client.py`), not run; nor was a reboot that a remedy names. The failures were staged one after another on a few hosts, often the next one
before the last was gone: so "After that" may name the next failure in place of `READY`. `status` and the journal show a failure that systemd reports within {reported} s, and a process that hangs within
{hangs} s; the text about a failure is at most {lines} lines of {width} columns. The tests enforce this (`tests/lib/failures.py`).

Start with `heat-node-agent status`. Its first line is the overall state; each row with a problem shows the cause (`why`) and the action
(`remedy`). `heat-node-agent explain` shows the same as a path of conditions, `heat-node-agent logs NAME` the output of a script or a component,
and the console (`openstack console log show SERVER`) the last failure, for when nobody can log in. Run commands that begin with `openstack` on a
machine with credentials for the cloud, `kubectl` on one with those of the cluster, all others on the node. `heat-node-agent rerun` retries a failed deployment once its cause is
removed. Heat accepts a result only while it waits for one, so if a stack has already failed, update it
(`openstack stack update -t TEMPLATE -e ENVIRONMENT --wait STACK`).

| `status` begins with | its first `why`, or what stands below | see |
|---|---|---|
| `NOT RUNNING: …` | | [The agent does not run](#the-agent-does-not-run) |
"""
# By hand, as no failure is staged for it.
TAIL = """
## The agent does not run

`NOT RUNNING: the agent has not run since boot`, or `NOT RUNNING: the agent is down; it last said: …`. This was not staged. The node's services go on without
the agent; nothing is repaired, renewed or reported.

> `systemctl status heat-node-agent` and `journalctl -b -u heat-node-agent -n 50` show why it ended. Exit status 64: its settings are wrong, and
> `heat-node-agent verify` lists every mistake. `systemctl enable --now heat-node-agent` starts it
"""
# How much of a reason the index shows.
BEGINNING = 80
# Sections, and in each: the transcript, its title, and what to know beside it.
SECTIONS = [
    ("The node does not come up", [
        ("wrong-parameters", "Wrong parameters", "Each mistake is on its own line. `heat-node-agent verify` checks a template's parameters before they are used."),
        ("missing-volume", "A volume is not attached", "The agent continues by itself when the disk appears; the device name does not matter."),
        ("foreign-volume", "A volume holds somebody else's data",
         "Nothing was written. Make sure that this is the right volume before you discard what is on it."),
        ("masked-unit", "A unit is masked", "An operator masked it, or the image did."),
        ("missing-binary", "A program is not in the image", "`heat-node-agent verify --image` finds this before an image is used."),
        ("port-taken", "A port is taken", "The unit and the process that hold the port are named. This is reported when the unit first exits, not at the deadline."),
        ("kubelet-flag", "The kubelet dies on a flag", "The parameter that contains the flag is named; the flag is in the last lines that the kubelet printed."),
    ]),
    ("Certificates cannot be obtained", [
        ("wrong-ca", "The endpoint's CA is wrong", ""),
        ("dns", "A name cannot be resolved", "The agent tries again by itself."),
        ("keystone-401", "Keystone refuses the credentials", ""),
        ("magnum-403", "Magnum refuses the trustee", ""),
        ("magnum-500", "Magnum fails", "The agent tries again by itself."),
        ("certificate-not-yet-valid", "A certificate is not valid yet", "One of the two clocks is wrong: both times are shown."),
    ]),
    ("A node in place", [
        ("kubelet-crash-loop", "A component dies again and again",
         "Neither the drain nor the reboot was run: on the staged host the cgroup was mounted by hand. `--delete-emptydir-data` (kubectl before 1.20: `--delete-local-data`) discards the data of the "
         "node's emptyDir volumes; without it the drain refuses pods that have one."),
        ("kube-proxy-no-space", "A component dies because a file system is full", "If the component's last lines report a full file system, the agent finds out which one it is."),
        ("kubelet-hangs", "A component hangs", "systemd shows it as running. The agent detects this within a minute and a half, and shows the reason if the kernel knows it."),
        ("containerd-hangs", "The container runtime hangs", "Its socket still accepts connections."),
        ("kubelet-stopped", "A component was stopped", ""),
        ("etcd-stopped", "etcd was stopped", ""),
        ("full-volume", "A service's volume is full", "The service has exited because of this. It is restarted automatically once there is space."),
        ("file-removed", "A file of the node is gone", ""),
        ("file-edited", "A file of the node was edited", "With DRIFT=repair the agent restores it by itself."),
    ]),
    ("Scripts", [
        ("script-fails", "A script fails", ""),
        ("script-hangs", "A script hangs", "`status` always shows how long it has been running. At its time limit it is stopped."),
        ("script-without-interpreter", "A script's interpreter is missing", ""),
    ]),
    ("Heat and the machine", [
        ("heat-away", "Heat cannot be reached", "The last answer stays in force."),
        ("signal-503", "Heat does not take a signal (503)", "The result is kept and sent again until Heat accepts it."),
        ("signal-403", "Heat refuses a signal (403)", ""),
        ("full-root", "The disk is full", "Nothing that cannot be recorded is started; the agent continues by itself once there is space."),
        ("copied-disk", "The disk is a copy of another instance's", "Nothing of the other instance is run or sent."),
    ]),
]


def parts(name: str) -> dict[str, list[str]]:
    """The sections of a transcript."""
    found: dict[str, list[str]] = {}
    for line in (GOLDEN / f"{name}.txt").read_text().splitlines():
        if line.startswith("== "):
            lines = found.setdefault(line[3:], [])
        else:
            lines.append(line)
    return found


# What is said in words of the node itself, above the tables.
FACT = re.compile(r"^(drift|state|volume) +")


def texts_of(lines: list[str]) -> list[str]:
    """What is said of the node itself, and below the rows: each text in a line."""
    texts: list[str] = []
    is_fact = False
    for line in lines:
        if FACT.match(line):
            texts.append(" ".join(FACT.sub("", line).split()))
            is_fact = True
        elif re.match(r"^ {4}\S", line):
            if is_fact and not re.match(r" +(why|remedy|to): ", line):
                texts[-1] += " " + line.strip()
            else:
                texts.append(line.strip())
                is_fact = False
        elif line.startswith("     ") and texts:
            texts[-1] += " " + line.strip()
        else:
            is_fact = False
    return texts


def done_of(step: str) -> str:
    """What was done for a failure, as one reads it."""
    if "  -> " not in step:
        return step.removeprefix("by hand: ")
    command, status = step.split("  -> ")
    return f"`{command}`" + ("" if status == "0" else f" (which ended with {status})")


def headline(status: list[str]) -> str:
    """The first line of status as it was before it was wrapped."""
    return " ".join(status[:status.index("")])


def beginning(text: str) -> str:
    """Of a reason, in a cell of a table."""
    text = text.removeprefix("why: ").replace("|", "\\|").replace("`", "")
    return f"`{text}`" if len(text) <= BEGINNING else f"`{text[:BEGINNING].rsplit(' ', 1)[0]} …`"


def of_anybody(text: str) -> str:
    """Without the staged stack's own names, where they read like words of the command."""
    return text.replace("resource show stack server", "resource show <stack> <resource>")


def outside_code(text: str) -> str:
    """What a name in angle brackets needs outside of code."""
    return "`".join(part if at % 2 else part.replace("<", "&lt;") for at, part in enumerate(text.split("`")))


def entry(name: str, title: str, note: str) -> list[str]:
    found = parts(name)
    status, texts = found["status"], texts_of(found["status"])
    why = [text for text in texts if not text.startswith("remedy: ")]
    remedies = [text.removeprefix("remedy: ") for text in texts if text.startswith("remedy: ")]
    assert why and remedies, name
    lines = [f"### {title}", "", "```text", headline(status), *(f"    {text}" for text in why), "```", ""]
    lines += [note, ""] if note else []
    for remedy in remedies:
        lines += [f"> {outside_code(of_anybody(remedy))}", ""]
    return [*lines, *(f"{one}\n" for one in ways_of(found))]


def ways_of(found: dict[str, list[str]]) -> list[str]:
    """What was done on the host, each way that the remedy gives by itself."""
    ways = []
    for name, steps in found.items():
        if name.startswith("remedy"):
            said = {kind: [step.removeprefix(kind) for step in steps if step.startswith(kind)] for kind in ("told: ", "then: ", "in the cloud: ")}
            done = [done_of(step) for step in steps if step and not step.startswith(tuple(said))]
            where = f"In another run, for \"{outside_code(said['told: '][0])}\"" if said["told: "] else "Done on the staged host"
            ways.append(f"{where}: {'; '.join(done)}. After that: `{said['then: '][0]}`")
    return ways


def made() -> str:
    index, text = [], []
    told = [name for _, entries in SECTIONS for name, _, _ in entries]
    staged = {path.stem for path in GOLDEN.glob("*.txt")}
    assert len(told) == len(set(told)) >= LEAST and set(told) == staged, f"not told, or not staged: {staged ^ set(told)}"
    for section, entries in SECTIONS:
        text += [f"## {section}", ""]
        for name, title, note in entries:
            anchor = re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-")
            status = parts(name)["status"]
            texts = [one for one in texts_of(status) if not one.startswith("remedy: ")]
            first = next((one for one in texts if one.startswith("why: ")), texts[0])
            index.append(f"| `{headline(status)}` | {beginning(first)} | [{title}](#{anchor}) |")
            text += entry(name, title, note)
    head = HEAD.format(reported=REPORTED, hangs=HANGS, lines=LINES, width=WIDTH)
    return head + "\n".join(index) + "\n\n" + "\n".join(text).rstrip() + "\n" + TAIL


if __name__ == "__main__":
    if "--check" in sys.argv and PAGE.read_text() != made():
        sys.exit("docs/runbook.md is not that of tests/host/transcripts: run python3 -B tests/lib/runbook.py")
    PAGE.write_text(made())
