"""What long lists of deployments cost the agent: as much for each as in a short one. In seconds on a processor, of which a clock shows
nothing, and in memory, as the disk's own work would count for the agent's; benches/growth.py prints them."""
import tempfile
from pathlib import Path

import pytest
from lib.plain import cost_of


def cost(count: int) -> float:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        cpu, _, _ = cost_of(count, Path(folder))
    print(f"{count} deployments: {cpu:.2f} s on a processor")
    return cpu


# What grows by the square would cost 16 times as much. Of 250 the clock of processes sees 0.3 s in steps of 0.01.
@pytest.mark.parametrize(("few", "many"), [(250, 1_000), pytest.param(500, 2_000, marks=pytest.mark.longer)])
def test_four_times_the_deployments_cost_little_more_than_four_times_as_much(few, many):
    assert cost(many) <= 5 * cost(few)
