#!/usr/bin/python3
"""Prints what lists of deployments cost the agent: its own time on a processor, without that of the scripts and of the
processes that run them.

    benches/growth.py [COUNT…]      as root; HNA_BINARY, else the release build: image-build/build first

Not a test: machines are noisy. Ratios are what to look at: 2,000 deployments cost at most 22 times what 100 do, and 100 at most 0.5 s.
"""
import json
import sys
import tempfile
import time
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO / "tests"))

from lib.plain import Plain, cpu_seconds, deployments, peak_kib  # noqa: E402


def once(count: int, folder: Path) -> tuple[float, float, float]:
    """CPU seconds, seconds, and MiB at most, of `run --once` with so many scripts."""
    document = folder / "document.json"
    document.write_text(json.dumps({"deployments": deployments(count)}))
    agent = Plain(folder / "agent")
    began, cpu, peak = time.monotonic(), 0.0, 0
    process = agent.start("--once", "--metadata", str(document))
    while process.poll() is None:
        try:
            cpu, peak = cpu_seconds(process.pid), peak_kib(process.pid)
        except (OSError, StopIteration):
            pass  # it has just ended
        time.sleep(0.02)
    if process.returncode or agent.said().count("HNA-0403") != count:
        sys.exit(f"{count}: exit {process.returncode}\n{agent.said()[-2000:]}")
    return cpu, time.monotonic() - began, peak / 1024


def main():
    counts = [int(word) for word in sys.argv[1:]] or [100, 1_000, 2_000]
    print(f"{'deployments':>11} {'CPU s':>8} {'ratio':>7} {'wall s':>8} {'peak MiB':>9}")
    first = None
    for count in counts:
        with tempfile.TemporaryDirectory() as folder:
            cpu, wall, peak = once(count, Path(folder))
        first = first or cpu
        print(f"{count:11} {cpu:8.2f} {cpu / first:7.1f} {wall:8.1f} {peak:9.1f}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
