"""Whether Kubernetes' real API server knows the feature gates that the agent's table says it knows, and refuses the others."""
import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from lib.common import REPO, run
from lib.real_kubernetes import PROGRAMS, version


@pytest.mark.longer
def test_the_table_of_feature_gates_is_that_of_the_real_programs(programs):
    head, *lines = (REPO / "docs/flags/feature-gates.matrix").read_text().splitlines()
    first, last = map(int, re.search(r"from 1\.(\d+) to 1\.(\d+)", head).groups())
    minor = int(version().split(".")[1])
    if not first <= minor <= last:
        pytest.skip(f"the table has 1.{first} to 1.{last}, and the programs are of {version()}")
    cells = {gate: row[minor - first] for row, gate in (line.split() for line in lines if not line.startswith("# "))}

    def takes(gate: str, value: str) -> bool:
        # Flags are read in their order: the gate before the help.
        return run(PROGRAMS / "kube-apiserver", f"--feature-gates={gate}={value}", "--help", check=False).returncode == 0

    expected = {(gate, value): cell in "#d" or cell == value[0] for gate, cell in cells.items() for value in ("true", "false") if cell != "?"}
    with ThreadPoolExecutor(4) as pool:
        found = dict(zip(expected, pool.map(lambda one: takes(*one), expected)))
    assert {one for one in expected if found[one] != expected[one]} == set()
    assert any(expected.values()) and not all(expected.values())
