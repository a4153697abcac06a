"""A directory for each side of the comparison: see lib/legacy.py."""
import shutil
import tempfile
from pathlib import Path

import pytest

from lib.legacy import AGENTS, BINARY, REAL, Pair


@pytest.fixture
def pair():
    # Below /tmp anybody could put something in a hook's place, and no hook would be run.
    folder = Path(tempfile.mkdtemp(prefix="hna-legacy-", dir="/run"))
    folder.chmod(0o755)
    assert BINARY.exists(), f"{BINARY} is missing: cargo build --locked"
    assert REAL.exists() and AGENTS.exists(), "the replaced tools are missing: tests/legacy/up.sh"
    yield Pair(folder)
    shutil.rmtree(folder, ignore_errors=True)
