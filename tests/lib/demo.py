"""What tests/demo shows: it is what a new user runs first."""
import os
import subprocess
import sys

from lib.common import REPO

# Lines of what stands at the end.
SCREEN = 60
# It has a set of hosts of its own, whichever session starts it.
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}


def screen(*options: str) -> str:
    """What stands at the end, once it ended well and with one screen that says what happened."""
    done = subprocess.run([sys.executable, "-B", REPO / "tests/demo.py", *options], env=ENVIRONMENT, text=True, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=1200, check=False)
    assert done.returncode == 0, done.stdout
    progress, asked, shown = done.stdout.partition("\n--- what was asked")
    assert "the agent starts" in progress and asked, done.stdout
    assert len(shown.splitlines()) <= SCREEN, shown
    status, heard = shown.split("--- heat-node-agent status ")[1].split("\n--- what Heat heard ")
    assert status.splitlines()[1] == "READY" and "demo-master, master, Kubernetes v" in status, status
    assert "exit status 0, greeting=hello Heat" in heard and "wait_handle       SUCCESS: " in heard, heard
    assert shown.splitlines()[-1].startswith("succeeded: "), shown
    return shown
