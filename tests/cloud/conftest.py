"""The services of tests/cloud in place of the Heat of tests/heat, which is one of them."""
import os

import pytest

from lib import openstack
from lib.heat import HEAT_DIR, Heat
from lib.openstack import OpenStack


@pytest.fixture(scope="session")
def heat_services(lab):
    if not os.environ.get("HNA_HEAT_DIR") or os.environ.get("HB_LAB", "hna") == "hna":
        raise pytest.UsageError("tests/run cloud tells them their folder and namespace")
    openstack.up()
    yield
    if not os.environ.get("HNA_KEEP_CLOUD"):
        openstack.down()


@pytest.fixture
def heat(heat_services) -> Heat:
    return Heat()


@pytest.fixture
def cloud(heat, tmp_path) -> OpenStack:
    """Stacks that a test leaves are deleted before the next begins: they share quotas."""
    made = OpenStack(heat, tmp_path)
    yield made
    for stack in list(heat.stacks):
        heat.delete(stack, seconds=made.patience)
