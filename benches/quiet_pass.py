#!/usr/bin/python3
"""Prints what a pass in which nothing changed costs a master at rest, and the memory that the agent holds between two of them.

    benches/quiet_pass.py [BINARY…]     as root; HNA_BINARY, else the release build: image-build/build first

A pass: a poll of Heat that brings nothing new, and the look at the node that follows. With two binaries both run on the same host, in turn,
and the second has its ratio to the first: machines are noisy, ratios less so. --rounds N: how often each is started (3), --passes N: how many
passes are measured of each start (12), --smaps: where the memory is, of the last start of each.
"""
import argparse
import statistics
import sys
import time
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(REPO / "tests"), str(REPO / "benches")]

from lib.common import wait_for  # noqa: E402
from lib.hosts import Host, agent_binary  # noqa: E402
from lib.signal_server import SignalServer  # noqa: E402
from measure import cpu_ms, deploy, master, memory, pid  # noqa: E402

UNIT = "heat-node-agent.service"
# The look at the node comes after the answer; what a start does once, and the first measurements of all components, is over after this.
LOOK, SETTLES = 0.4, 15


def one_pass(host: Host, server: SignalServer) -> float:
    """CPU milliseconds."""
    before, polls = cpu_ms(host), len(server.polls())
    host.exec("systemctl", "kill", "-s", "HUP", UNIT)
    wait_for(lambda: len(server.polls()) > polls, 30, every=0.05)
    time.sleep(LOOK)
    return (cpu_ms(host) - before) / (len(server.polls()) - polls)


def start(host: Host, server: SignalServer, binary: Path):
    host.exec("systemctl", "stop", UNIT, check=False)
    host.put({"/usr/bin/heat-node-agent": (binary, 0o755)})
    polls = len(server.polls())
    host.exec("systemctl", "start", UNIT)
    wait_for(lambda: server.signals("node", accepted=True) and len(server.polls()) > polls, 120)
    time.sleep(SETTLES)


def mappings(host: Host) -> list[str]:
    """Memory by file and rights, largest first: KiB of RSS, of PSS, and of pages that no file has."""
    sums: dict[str, list[int]] = {}
    for line in host.read(f"/proc/{pid(host)}/smaps").splitlines():
        words = line.split()
        if not words[0].endswith(":"):
            of = sums.setdefault(f"{words[5] if len(words) > 5 else 'anonymous'} {words[1]}", [0, 0, 0])
        elif words[0] in ("Rss:", "Pss:", "Anonymous:"):
            of[("Rss:", "Pss:", "Anonymous:").index(words[0])] += int(words[1])
    rows = sorted(sums.items(), key=lambda row: -row[1][0])
    return [f"  {name:52} {rss:6} {pss:6} {own:6}" for name, (rss, pss, own) in rows if rss]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binaries", nargs="*", type=Path, metavar="BINARY")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--passes", type=int, default=12)
    parser.add_argument("--smaps", action="store_true")
    options = parser.parse_args()
    binaries = options.binaries or [agent_binary()]
    took: dict[Path, list[float]] = {binary: [] for binary in binaries}
    held: dict[Path, list[tuple[int, int]]] = {binary: [] for binary in binaries}
    maps: dict[Path, list[str]] = {}
    with master(binaries[0]) as (host, server):
        deploy(server)
        # The first of them brings the node up; it is started again to be measured, as all others.
        start(host, server, binaries[0])
        for _ in range(options.rounds):
            for binary in binaries:
                start(host, server, binary)
                took[binary] += [one_pass(host, server) for _ in range(options.passes)]
                held[binary].append(memory(host))
                maps[binary] = mappings(host)
    first = statistics.median(took[binaries[0]])
    print(f"{'ms CPU a pass:':>22} {'median':>6} {'least':>6} {'mean':>6} {'ratio':>6}   {'RSS':>5} {'PSS':>5} MiB  file")
    for binary, all_of_it in took.items():
        rss, pss = (statistics.median(one) / 1024 for one in zip(*held[binary]))
        median = statistics.median(all_of_it)
        print(f"{binary.name:>22} {median:6.2f} {min(all_of_it):6.2f} {statistics.mean(all_of_it):6.2f} {median / first:6.2f}   {rss:5.2f} {pss:5.2f}"
              f"      {binary.stat().st_size / 1e6:.2f} MB")
        if options.smaps:
            print("\n".join(maps[binary]))


if __name__ == "__main__":
    sys.exit(main())
