"""A directory for each side of the comparison: see lib/legacy.py."""
import shutil

import pytest

from lib.legacy import AGENTS, BINARY, REAL, Pair


@pytest.fixture
def pair(tmp_path):
    assert BINARY.exists(), f"{BINARY} is missing: cargo build --locked"
    assert REAL.exists() and AGENTS.exists(), "the replaced tools are missing: tests/legacy/up.sh"
    yield Pair(tmp_path)
    shutil.rmtree(tmp_path, ignore_errors=True)
