"""dib-run-parts and os-refresh-config beside their originals. What differs is in docs/legacy.md."""
import contextlib
import fcntl
import os
import signal
import tempfile
import time
from pathlib import Path

import pytest

from lib.common import wait_for
from lib.legacy import tree

NAMES = ["100_x", "10-b", "10-B", "abc", "010-a", "9-z", "-5neg", "00", "-10", "007", "with.dot", "with space", "é", "Z_z"]


def script(pair, name, text, mode=0o755):
    pair.write(name, text, mode)


def test_order_and_names(pair):
    for name in NAMES:
        script(pair, f"parts/{name}", "#!/bin/sh\necho ${0##*/}\n")
    script(pair, "parts/50-not-executable", "#!/bin/sh\necho no\n", 0o644)
    script(pair, "parts/directory/x", "#!/bin/sh\necho no\n")
    pair.each(lambda side: (side / "parts/20-link").symlink_to("abc"))
    pair.each(lambda side: (side / "parts/30-broken").symlink_to("nowhere"))
    for arguments in (["parts"], ["--list", "parts"], ["--list", "parts/"], ["./parts/"]):
        assert pair.same("dib-run-parts", *arguments) == 0
    for pattern in ("^[0-9]+", "^[^ ]*(a|b)[^ ]*$", "dot", "^nothing$"):
        pair.same("dib-run-parts", "--list", "parts", env={"RUN_PARTS_REGEX": pattern})


@pytest.mark.parametrize("text", [
    "#!/bin/sh\nexit 3\n", "#!/bin/sh\nkill -9 $$\n", "echo no interpreter named\nexit 5\n", "#!/no/such/interpreter\n", "", "#!/bin/sh\ncat\n", "#!/bin/sh\npwd | sed s,/ours,/real,\n",
])
def test_how_scripts_end(pair, text):
    script(pair, "parts/10-first", "#!/bin/sh\necho first\n")
    script(pair, "parts/20-ends", text)
    script(pair, "parts/30-last", "#!/bin/sh\necho last\n")
    pair.same("dib-run-parts", "parts", stdin=b"of the caller\n")


def test_environment(pair):
    script(pair, "parts/10-shows", "#!/bin/sh\necho \"$a|$b|${c-unset}|$PWD\" | sed s,/ours,/real,\n")
    for name, text in {"10-a.sh": "export a=1\nc=not-exported\necho while reading\n", "9-b": "export b=before a=0\n", "bad name": "export a=bad\n"}.items():
        pair.write(f"environment.d/{name}", text)
    assert pair.same("dib-run-parts", "parts") == 0
    pair.write("environment.d/20-fails", "export x=1\nfalse\n")
    assert pair.same("dib-run-parts", "parts") == 1
    pair.write("environment.d/20-fails", "echo $no_such_variable\n")
    assert pair.same("dib-run-parts", "parts") == 1
    pair.write("environment.d/20-fails", "exit 7\n")
    assert pair.same("dib-run-parts", "parts") == 7


@pytest.mark.parametrize("changed", ["parts", "parts/20-x", "environment.d", "environment.d/10-a", "elsewhere"])
def test_what_others_can_change_is_not_run(pair, changed):
    """R56: the original runs it; only as root."""
    if os.geteuid():
        pytest.skip("as root only")
    pair.write("environment.d/10-a", "echo sourced\n")
    for name in ("parts/10-x", "parts/20-x", "elsewhere"):
        script(pair, name, "#!/bin/sh\necho ran\n")
    pair.each(lambda side: (side / "parts/30-link").symlink_to("../elsewhere"))
    assert pair.same("dib-run-parts", "parts") == 0
    pair.each(lambda side: (side / changed).chmod(0o777))
    real, ours = pair.run("dib-run-parts", "parts")
    assert (real[0], ours[0]) == (0, 1) and b"ran" not in ours[1] and f"{changed} can be changed by users other than root".encode() in ours[2], ours


def test_what_is_below_tmp_runs(pair):
    """The suites of the replaced tools have it there."""
    with tempfile.TemporaryDirectory(dir="/tmp") as base:
        for name, text in (("parts/10-x", "#!/bin/sh\necho ran\n"), ("environment.d/10-a", "echo sourced\n")):
            path = Path(base) / name
            path.parent.mkdir()
            path.write_text(text)
            path.chmod(0o755)
        assert pair.same("dib-run-parts", f"{base}/parts") == 0


def test_values_of_the_environment_are_not_logged(pair):
    """R52: the original traces them."""
    script(pair, "parts/10-x", "#!/bin/sh\ntrue\n")
    pair.write("environment.d/10-a", "export password=hush\n")
    real, ours = pair.run("dib-run-parts", "parts")
    assert (real[0], ours[0]) == (0, 0) and b"hush" in real[2] and b"hush" not in ours[2]


def test_what_is_no_directory(pair):
    pair.write("file", "")
    for arguments in ([], ["gone"], ["file"], ["--list"], ["--list", "gone"], ["--help"]):
        assert pair.same("dib-run-parts", *arguments) == 1
    script(pair, "parts/10-x", "#!/bin/sh\ntrue\n")
    _, ours = pair.run("dib-run-parts", "parts")
    assert b"10-x" in ours[2] and ours[1] == b""


PHASES = ["pre-configure", "configure", "post-configure", "migration"]


def ready(pair):
    """The lock file is there: a new one has another mode here."""
    pair.each(lambda side: (side / "base").mkdir())
    pair.write("lock", "")


def refresh(pair, *arguments, **env):
    return pair.same("os-refresh-config", "--lockfile", "lock", *arguments, env={"OS_REFRESH_CONFIG_BASE_DIR": "base", **env})


def test_phases(pair):
    ready(pair)
    real, ours = pair.run("os-refresh-config", "--lockfile", "lock", env={"OS_REFRESH_CONFIG_BASE_DIR": "base"})
    assert real == ours == (0, b"", b"")
    for phase in [*PHASES, "error"]:
        script(pair, f"base/{phase}.d/10-x", f"#!/bin/sh\necho {phase}\n")
    assert refresh(pair) == 0
    assert tree(pair.sides[1])["lock"][2] == b""
    script(pair, "base/configure.d/20-fails", "#!/bin/sh\nexit 9\n")
    assert refresh(pair) == 1
    script(pair, "base/error.d/20-fails", "#!/bin/sh\nexit 9\n")
    assert refresh(pair) == 1
    assert refresh(pair, "--print-base") == 0
    assert refresh(pair, "--print-phases") == 0


def test_command_lines_of_refresh(pair):
    ready(pair)
    for arguments in (["--log-level", "ERROR"], ["--log-level", "LOUD"], ["--timeout", "x"], ["--timeout", "0"], ["word"], ["--lock", "lock"], ["--print"], ["--lockfile", "no/such/lock"]):
        refresh(pair, *arguments)
    _, ours = pair.run("os-refresh-config", "--lockfile", "lock", "--log-level", "DEBUG", env={"OS_REFRESH_CONFIG_BASE_DIR": "base"})
    assert ours[0] == 0 and ours[2] != b""


def test_one_at_a_time(pair):
    pair.each(lambda side: (side / "base").mkdir())
    held = [open(side / "lock", "a") for side in pair.sides]
    for file in held:
        fcntl.flock(file, fcntl.LOCK_EX)
    assert refresh(pair) == 11


def test_the_time_limit_kills_everything_below(pair):
    ready(pair)
    script(pair, "base/configure.d/10-long", "#!/bin/sh\necho begins\nsetsid sleep 3456\necho never\n")
    script(pair, "base/error.d/10-x", "#!/bin/sh\necho after it\n")
    since = time.monotonic()
    assert refresh(pair, "--timeout", "1") == 1
    assert time.monotonic() - since < 3456
    wait_for(lambda: not left(pair.sides[1]), 300, "the end of what was begun")
    for process in left(pair.sides[0]):  # the original may leave it
        os.kill(process, signal.SIGKILL)


def left(side: Path) -> list[int]:
    """What of the script is still there, begun on this side."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (process / "cmdline").read_bytes() == b"sleep\x003456\0" and (process / "cwd").readlink() == side:
                found.append(int(process.name))
    return found
