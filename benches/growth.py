#!/usr/bin/python3
"""Prints what lists of deployments cost the agent: its own time on a processor, without that of the scripts and of the
processes that run them.

    benches/growth.py [COUNT…]      as root; HNA_BINARY, else the release build: image-build/build first

Ratios are what to look at: 2,000 deployments cost at most 22 times what 100 do, and 100 at most 0.5 s. tests/host/test_growth.py asserts how reads and
writes grow.
"""
import sys
import tempfile
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO / "tests"))

from lib.plain import cost_of  # noqa: E402


def main():
    counts = [int(word) for word in sys.argv[1:]] or [100, 1_000, 2_000]
    print(f"{'deployments':>11} {'CPU s':>8} {'ratio':>7} {'wall s':>8} {'peak MiB':>9} {'I/O MB':>8}")
    first = None
    for count in counts:
        with tempfile.TemporaryDirectory() as folder:
            cost = cost_of(count, Path(folder))
        cpu = cost.cpu_seconds
        first = first or cpu
        print(f"{count:11} {cpu:8.2f} {cpu / first:7.1f} {cost.seconds:8.1f} {cost.peak_mib:9.1f} {cost.io_bytes / 1e6:8.1f}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
