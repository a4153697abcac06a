"""What long lists of deployments cost the agent: as much for each as in a short one. In calls and bytes by which it reads and writes, as a
clock also measures what else the machine does; what it costs in time and memory, benches/growth.py prints."""
import tempfile
from pathlib import Path

import pytest
from lib.plain import Cost, cost_of


def cost(count: int) -> Cost:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        found = cost_of(count, Path(folder))
    print(f"{count} deployments: {found}")
    return found


# What grows by the square would cost 16 times as much. Calls differ by 2 % from run to run; bytes are more where it takes longer, because
# status.json, in which each deployment has a line, is written once in a while.
@pytest.mark.parametrize(("few", "many"), [(250, 1_000), pytest.param(500, 2_000, marks=pytest.mark.longer)])
def test_four_times_the_deployments_cost_little_more_than_four_times_as_much(few, many):
    less, more = cost(few), cost(many)
    assert more.io_calls <= 4.5 * less.io_calls and more.io_bytes <= 6 * less.io_bytes, f"{less}\n{more}"
