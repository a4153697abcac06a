"""Fixtures of the image tests: the built image, and machines that boot it."""
import os
import re
from pathlib import Path

import pytest

from lib.common import REPO, TESTHOST, TESTS, run
from lib.vm import Vm

MADE: list[Vm] = []


@pytest.fixture(scope="session")
def image() -> Path:
    """Made by tests/image/up.sh, from what image-build/build made, of the release that DIB_RELEASE names; HNA_IMAGE is another, taken as it is."""
    if given := os.environ.get("HNA_IMAGE"):
        return Path(given)
    run(TESTS / "image/up.sh", timeout=7200)
    release = os.environ.get("DIB_RELEASE") or "bookworm"
    return REPO / "target/image" / ("" if release == "bookworm" else release) / "node.raw"


@pytest.fixture(scope="module")
def vms(image):
    """vms("name", user_data=..., volumes={...}) makes one; its start() starts it."""
    def make(name: str, **options) -> Vm:
        vm = Vm(name, image, **options)
        MADE.append(vm)
        return vm
    yield make
    while MADE:
        MADE.pop().remove()


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    if report.when == "call" and report.failed:
        folder = TESTHOST / "failed" / re.sub(r"[^\w.-]+", "_", item.nodeid)
        for vm in MADE:
            report.sections.append((f"{vm.name} (all of it in {folder})", vm.save_failure(folder)))
