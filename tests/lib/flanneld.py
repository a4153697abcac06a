"""The flanneld of HNA_FLANNELD=FILE: tests take it in the place of its stand-in, and a cluster of real programs in that of static routes."""
import functools
import os
from pathlib import Path
from typing import NamedTuple

from lib.common import TESTS, run


class Program(NamedTuple):
    path: Path
    version: str  # 0.26.1


@functools.cache
def given() -> Program | None:
    """None without HNA_FLANNELD."""
    file = os.environ.get("HNA_FLANNELD")
    return Program(Path(file).absolute(), run(TESTS / "lib/flanneld.sh").stdout.strip()) if file else None


def version_like(version: str) -> str:
    """That of the given program, if it keeps its leases by the same API of etcd (v2 up to 0.17, v3 from 0.18 on); else this, of a stand-in. "" is none."""
    def by_v3(release: str) -> bool:
        return tuple(map(int, release.split("."))) >= (0, 18, 0)
    program = given()
    return program.version if program and version and by_v3(program.version) == by_v3(version) else version
