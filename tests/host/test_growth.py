"""What long lists of deployments cost the agent: as much for each as in a short one. In seconds on a processor, which a busy machine
lengthens a little, not in those of a clock; benches/growth.py prints them."""
import pytest
from lib.plain import cost_of


def cost(tmp_path, count: int) -> float:
    folder = tmp_path / str(count)
    folder.mkdir()
    cpu, _, _ = cost_of(count, folder)
    print(f"{count} deployments: {cpu:.2f} s on a processor")
    return cpu


def test_ten_times_the_deployments_cost_no_more_than_that(tmp_path):
    # What grows by the square would cost a hundred times as much. Of 100 the start of the agent is a part that 1,000 do not have again.
    assert cost(tmp_path, 1_000) <= 13 * cost(tmp_path, 100)


@pytest.mark.longer
def test_twenty_times_the_deployments_cost_at_most_22_times_as_much(tmp_path):
    assert cost(tmp_path, 2_000) <= 22 * cost(tmp_path, 100)
