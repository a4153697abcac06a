"""tests/stand-ins as tests use them: asked inside this process, or installed and run."""
import os
import subprocess
import sys
from pathlib import Path

from lib.common import PYTHON, TESTS, run

sys.path.insert(0, str(TESTS / "stand-ins"))

from stand_in import Refused, tables  # noqa: E402
from stand_in.main import checked  # noqa: E402


def accepts(component: str, version: str, *words: str, environment: dict | None = None):
    """What the program makes of this command line; Refused if it would not run."""
    return checked(component, version, list(words), environment or {})


def refusal(component: str, version: str, *words: str) -> str:
    """Its last words, or nothing."""
    try:
        accepts(component, version, *words)
    except Refused as refused:
        return str(refused)
    return ""


def install(folder: Path, *versions: str) -> Path:
    run(PYTHON, "-B", TESTS / "stand-ins/install", folder, *versions)
    return folder


class Running:
    """A stand-in as a process of its own; output in a file beside its control folder."""

    def __init__(self, programs: Path, name: str, *words, notify: Path | None = None, control: Path):
        self.log = control / f"{name}-{len(list(control.glob('*.log')))}.log"
        environment = {**os.environ, "HNA_STAND_IN_CONTROL": str(control)}
        environment.pop("NOTIFY_SOCKET", None)
        if notify:
            environment["NOTIFY_SOCKET"] = str(notify)
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen([programs / name, *map(str, words)], env=environment, stdin=subprocess.DEVNULL, stdout=log,
                                            stderr=log)

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def wait(self, seconds: float = 30) -> int:
        return self.process.wait(seconds)

    def end(self) -> int:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
        return self.process.wait()


__all__ = ["Refused", "Running", "accepts", "install", "refusal", "tables"]
