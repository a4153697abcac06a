"""The image's root in a container: its own agent, started by its own unit and its own cloud-init, in seconds.

What needs a kernel, a disk or a network of its own is asked of a machine, in test_boot.py."""
import uuid

import pytest

from lib.cloud_init import RAN, SCRIPT, UNIT, config_drive, monotonic, nothing_again, status, check_success
from lib.config_drive import heat_user_data
from lib.common import SET, TESTHOST
from lib.node import IP, signalled


@pytest.fixture
def boot(image, hosts, tmp_path):
    """boot(user_data, instance) boots the image as it is, with a config drive as Nova makes it."""
    def make(user_data: str, instance: str, **options):
        config_drive(tmp_path, instance, user_data, instance)
        return hosts("n1", base="image", ip=IP, instance_id="", volumes={"vdb": ("16M", instance)}, **options)
    return make


def test_the_image_runs_a_deployment_once_by_its_own_unit_and_cloud_init(boot, signal_server):
    server = signal_server()
    server.deploy(server.deployment("hello", config=SCRIPT))
    instance = str(uuid.uuid4())
    host = boot(heat_user_data(server.settings()), instance)
    check_success(host, instance)
    assert "DataSourceConfigDrive" in status(host)[1]
    # By the image alone: its link (a first boot applies the presets of systemd besides), its agent.
    folder = TESTHOST / SET / "run" / host.name
    assert (folder / "image/etc/systemd/system/multi-user.target.wants" / UNIT).is_symlink()
    assert not (folder / "rw/upper/usr/bin").exists() and not (folder / "rw/upper/usr/lib/systemd").exists()
    assert monotonic(host, UNIT, "InactiveExit") <= monotonic(host, "cloud-final.service", "InactiveExit"), "no runcmd started it"
    assert signalled(server, "hello")["deploy_status_code"] == 0 and host.read(RAN) == "hello\n"
    nothing_again(host, server, instance)
    assert host.read(RAN) == "hello\n"
