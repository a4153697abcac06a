"""Small things that every part of the test library needs."""
import os
import platform
import random
import re
import socket
import subprocess
import time
from http.client import HTTPException
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
TESTS = REPO / "tests"
TESTHOST = Path(os.environ.get("HNA_TEST_DIR") or REPO / "target/testhost").resolve()
# Sessions that run side by side (pytest -n 2) have hosts and a lab of their own.
WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")
if WORKER and not os.environ.get("HNA_TEST_SET", "").endswith(WORKER):
    os.environ |= {name: f"{os.environ.get(name, default)}-{WORKER}" for name, default in (("HNA_TEST_SET", "pytest"), ("HB_LAB", "hna"))}
SET = os.environ.setdefault("HNA_TEST_SET", "pytest")  # host.sh: what is swept
# The release of Debian that hosts are made of; host.sh reads it too.
SUITE = os.environ.get("HNA_SUITE", "bookworm")
# And that of this machine: what is made here for hosts starts on those of the same release only.
MACHINE = platform.freedesktop_os_release().get("VERSION_CODENAME", "")
PYTHON = "/usr/bin/python3"
LAB = os.environ.get("HB_LAB", "hna")
GATEWAY = os.environ.get("HB_IP", "10.77.0.1")


class Failed(Exception):
    """A command that ended badly, with what it said."""

    def __init__(self, done: subprocess.CompletedProcess):
        self.done = done
        super().__init__(f"{' '.join(map(str, done.args))}\nstatus {done.returncode}\n{done.stdout}{done.stderr}")


def run(*args, check: bool = True, input: str | bytes | None = None, timeout: float = 300,
        env: dict | None = None) -> subprocess.CompletedProcess:
    """Run to the end; text out. What it leaves in the background must not hold our pipes, and ours does not."""
    data = input.encode() if isinstance(input, str) else input
    stdin = {"stdin": subprocess.DEVNULL} if data is None else {"input": data}
    done = subprocess.run([str(a) for a in args], capture_output=True, timeout=timeout,
                          env={**os.environ, **(env or {})}, **stdin)
    done.stdout = done.stdout.decode(errors="replace")
    done.stderr = done.stderr.decode(errors="replace")
    if check and done.returncode:
        raise Failed(done)
    return done


def in_lab(*args, lab: str = LAB, **options) -> subprocess.CompletedProcess:
    return run("ip", "netns", "exec", f"lab-{lab}", *args, **options)


def with_libraries(program: str | Path) -> list[str]:
    """A program of this machine, and all that its loader gives it; of a static one ldd says so, and fails."""
    return [str(program), *re.findall(r"(?m)(/\S+) \(0x", run("ldd", program, check=False).stdout)]


def wait_for(condition, seconds: float = 300, what: str = "", every: float = 0.1):
    """Poll until condition() is true and give back its value; its last answer or error is in the failure.

    seconds is a net under a hanging test, not a statement about speed. Tests run side by side: a condition that is dear to ask for, or asked of
    a busy machine, is asked less often, so that the waiting leaves the machine to what is waited for."""
    end = time.monotonic() + seconds
    while True:
        # Whoever comes late to it looks all the same.
        begun = time.monotonic()
        is_last, error, value = begun > end, None, None
        try:
            value = condition()
            if value:
                return value
        # TypeError: a page that has nothing yet where the condition looks for something.
        except (AssertionError, Failed, HTTPException, LookupError, OSError, TypeError, ValueError, subprocess.TimeoutExpired) as e:
            error = e
        if is_last:
            raise AssertionError(f"not within {seconds} s: {what or getattr(condition, '__name__', condition)}; last: {error or value!r}") from error
        time.sleep(max(every, min(3 * (time.monotonic() - begun), 2)))


GIVEN: set[int] = set()


def free_port() -> int:
    """None that the kernel gives to connections, and none twice: it is free until its program takes it."""
    while True:
        port = random.randrange(20000, 32000)
        with socket.socket() as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                s.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in GIVEN:
            GIVEN.add(port)
            return port
