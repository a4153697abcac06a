"""The agent started by a real cloud-init: by its enabled unit, by runcmd, from a config drive; and as it is not done.

The hosts are containers, so the instance is known by cloud-init alone. User data is made by Heat's own code or is an
example as it lies in examples/cloud-init, but for Heat's address."""
import json
import threading
import uuid

import pytest

from lib import cloud_init
from lib.cloud_init import (NETWORK_STAGE, RAN, SCRIPT, UNIT, config_drive, cycles, events, example, image, monotonic, nothing_again,
                            record, seed, check_success)
from lib.common import wait_for
from lib.config_drive import heat_user_data
from lib.hosts import Host
from lib.node import IP, signalled

CFN_INIT_DATA = ("/var/lib/heat-cfntools/cfn-init-data", "/var/lib/cloud/data/cfn-init-data")


@pytest.fixture
def server(signal_server):
    server = signal_server()
    server.deploy(server.deployment("hello", config=SCRIPT))
    return server


@pytest.fixture
def boot(hosts, tmp_path):
    """boot(user_data, instance, enabled=...) boots an image with the agent and cloud-init; extra: more of the image's files."""
    def make(user_data: str | None, instance: str = "", *, enabled: bool, extra: dict[str, str] | None = None, **options):
        files = image(tmp_path, enabled=enabled)
        if user_data is not None:
            files |= seed(tmp_path / "seed", user_data, instance)
        for number, (path, text) in enumerate((extra or {}).items()):
            files[path] = tmp_path / f"extra-{number}"
            files[path].write_text(text)
        return hosts("n1", base=cloud_init.BASE, ip=IP, instance_id="", files=files, **options)
    return make


def test_the_enabled_unit_waits_for_cloud_init_and_holds_up_nothing_itself(boot, server):
    """By Heat's own user data, with a part handler, to which the template adds settings."""
    server.deploy(server.deployment("other", group="no-such-group"))
    server.answer(delay=600)
    instance = str(uuid.uuid4())
    slow = {
        # A metadata service that takes its time, as the network stage of cloud-init sees it.
        f"/etc/systemd/system/{NETWORK_STAGE}.d/slow.conf":
            "[Service]\nExecStartPre=/bin/sh -c 'while [ ! -e /run/go ]; do sleep 0.1; done'\n",
    }
    made = []
    data = heat_user_data(server.settings(), example("enabled-unit.yaml", server.base))
    booting = threading.Thread(target=lambda: made.append(boot(data, instance, enabled=True, extra=slow)))
    booting.start()
    host = Host("n1")
    try:
        wait_for(lambda: f"{NETWORK_STAGE} start running" in " ".join(host.sh("systemctl list-jobs --no-legend").split()), 300)
        jobs = host.sh("systemctl list-jobs --no-legend")
        assert f"{UNIT} start waiting" in " ".join(jobs.split()), jobs
        # By its own order: not everywhere does cloud-init come before sysinit.target, as on Debian.
        assert "cloud-config.target" in host.show(UNIT, "After")["After"].split()
        # `status` says now what the agent waits for.
        assert "has not run since boot" in host.exec("heat-node-agent", "status", check=False).stdout
        assert "its start waits for cloud-init" in host.exec("heat-node-agent", "explain", check=False).stdout
        assert not any(host.exists(path) for path in CFN_INIT_DATA) and not host.is_active(UNIT)
    finally:
        host.sh(f"rm -r /etc/systemd/system/{NETWORK_STAGE}.d; touch /run/go")
        booting.join()
    assert made, "it did not boot; see above"
    # Booted to its end while Heat has not answered once: neither multi-user.target nor cloud-init's last stage waits for the agent.
    assert not {"multi-user.target", "cloud-final.service"} & set(host.show(UNIT, "Before")["Before"].split())
    check_success(host, instance)
    host.wait_for(lambda: events(host, "SourceFailed"), 300)
    assert not host.exists(RAN)
    server.behave()

    def is_heard() -> bool:
        """Its pauses have grown meanwhile."""
        host.exec("systemctl", "kill", "-s", "HUP", UNIT)  # poll now
        return all(server.signals(name, accepted=True) for name in ("hello", "other"))
    wait_for(is_heard, 300, "signals of both", every=5)
    assert signalled(server, "hello")["deploy_status_code"] == 0
    # The settings of the user data were there before the first deployment was.
    assert "not allowed" in str(signalled(server, "other")["deploy_status_code"])
    assert all("os-collect-config" in json.loads(host.read(path)) for path in CFN_INIT_DATA)
    assert not events(host, "NoSource") and host.read(RAN) == "hello\n"
    nothing_again(host, server, instance)


def test_runcmd_starts_the_agent_where_the_image_does_not(boot, server):
    instance = str(uuid.uuid4())
    host = boot(example("runcmd.yaml", server.base), instance, enabled=False)
    check_success(host, instance)
    assert host.sh("stat -c %a:%U /etc/os-collect-config.conf").strip() == "600:root"
    assert monotonic(host, UNIT, "InactiveExit") >= monotonic(host, "cloud-final.service", "InactiveExit"), "nobody else starts it"
    assert signalled(server, "hello")["deploy_status_code"] == 0 and host.read(RAN) == "hello\n"
    assert host.exec("systemctl", "is-enabled", UNIT).stdout.strip() == "enabled"
    nothing_again(host, server, instance)
    assert monotonic(host, UNIT, "InactiveExit") <= monotonic(host, "cloud-final.service", "InactiveExit"), "by its unit now"


@pytest.mark.parametrize("user_data", ["heat", "example"])
def test_a_config_drive_is_enough(boot, server, tmp_path, user_data):
    instance, volume = str(uuid.uuid4()), str(uuid.uuid4())
    data = heat_user_data(server.settings()) if user_data == "heat" else example("config-drive.yaml", server.base)
    config_drive(tmp_path, volume, data, instance)
    # In a container cloud-init does not look for disks by itself.
    only = {"/etc/cloud/cloud.cfg.d/91-datasource.cfg": "datasource_list: [ConfigDrive, None]\n"}
    host = boot(None, enabled=True, extra=only, volumes={"vdb": ("16M", volume)})
    assert signalled(server, "hello")["deploy_status_code"] == 0
    check_success(host, instance)
    assert "DataSourceConfigDrive" in cloud_init.status(host)[1] and host.read(RAN) == "hello\n"
    assert host.exists(CFN_INIT_DATA[0]) == (user_data == "heat")
    nothing_again(host, server, instance)


def test_an_image_of_a_node_is_another_instance_as_soon_as_cloud_init_says_so(boot, server, signal_server):
    other = signal_server(port=18001, stack="other")
    other.deploy(other.deployment("own", config=SCRIPT))
    host = boot(heat_user_data(server.settings()), "original", enabled=True)
    assert signalled(server, "hello")["deploy_status_code"] == 0
    check_success(host, "original")
    # A script is in its middle when the disk is copied.
    server.deploy(server.deployment("long", config=SCRIPT + "sleep 600\n"))
    host.exec("systemctl", "kill", "-s", "HUP", UNIT)  # poll now
    host.wait_for(lambda: "long" in host.read(RAN), 300)
    cloud_init.be_instance(host, heat_user_data(other.settings()), "copy")
    host.cut()
    # With what it may not have recorded yet of the time before the cut.
    server.stop()
    server.forget()
    server.start()
    before = len(host.console())
    host.boot()
    assert signalled(other, "own")["deploy_status_code"] == 0
    check_success(host, "copy", host.console()[before:])
    # cloud-init wrote the copy's own metadata before the agent looked: nobody was asked, or told, in the original's name.
    assert not server.requests(), [r.target for r in server.requests()]
    assert host.read(RAN) == "hello\nlong\nown\n"
    now = record(host)
    assert (now["predecessor"]["instance"]["value"], now["predecessor"]["aside"]) == ("original", 1)
    assert len(events(host, "IdentityChanged")) == 1 and not events(host, "SourceLeftOver")
    nothing_again(host, other, "copy")


@pytest.mark.parametrize("case", ["no user data", "no data source"])
def test_where_cloud_init_says_nothing_the_boot_ends_and_the_agent_says_what_it_lacks(boot, case):
    if case == "no user data":
        host = boot("", "alone", enabled=True)
    else:
        host = boot(None, enabled=True, extra={"/etc/cloud/cloud.cfg.d/91-datasource.cfg": "datasource_list: [None]\n"})
    event, words = {"no user data": ("NoSource", ["sources", "user_data_format SOFTWARE_CONFIG"]),
                    "no data source": ("IdentityUnknown", ["identity", "cloud-init has not recorded an instance id",
                                                           "cloud-init status --long"])}[case]
    host.wait_for(lambda: events(host, event), 300)
    assert cloud_init.status(host)[0] == 0
    host.wait_for(lambda: host.is_active(UNIT), 300)
    assert not cycles(host, host.console()) and not host.sh("systemctl --failed --no-legend").strip()

    def is_reported() -> bool:
        # As one line: where its lines are broken is the page's affair.
        asked = " ".join(host.exec("heat-node-agent", "explain", check=False).stdout.split())
        # What it waits for comes first in the tree.
        assert [word for word in words if word not in asked] == [], asked
        return host.exec("heat-node-agent", "status", check=False).returncode == 2
    host.wait_for(is_reported, 300)


def test_cloud_init_must_not_wait_for_what_waits_for_it(boot, server):
    """Why --no-block: the unit is ordered after a stage of cloud-init, and bootcmd is in that stage."""
    instance = str(uuid.uuid4())
    data = "#cloud-config\nbootcmd:\n" + "".join(
        f"  - [sh, -c, 'timeout {seconds} systemctl start {option} {UNIT}; echo $? >/run/start{option}']\n"
        for option, seconds in (("", 10), ("--no-block", 120)))
    host = boot(heat_user_data(server.settings(), data), instance, enabled=False)
    assert host.read("/run/start") == "124\n", "it would wait forever"
    assert host.read("/run/start--no-block") == "0\n"
    assert signalled(server, "hello")["deploy_status_code"] == 0
    check_success(host, instance)


def test_a_unit_after_all_of_cloud_init_is_a_cycle_and_the_tests_here_see_it(boot):
    """Why the unit is after cloud-config.target only, and has no default dependencies: cloud-init's last stage comes after
    multi-user.target, which wants the unit and would come after it."""
    late = {f"/etc/systemd/system/{UNIT}.d/late.conf": "[Unit]\nAfter=cloud-final.service\nDefaultDependencies=yes\n"}
    # To systemd 262 a boot with a cycle is a degraded one, though no unit has failed.
    host = boot("", "late", enabled=True, extra=late, expect="")
    found = cycles(host, host.console())
    assert any(UNIT in line for line in found), found
    # systemd ends the cycle by leaving one of them out.
    left_out = [unit for unit in (UNIT, "cloud-final.service", "multi-user.target") if not host.is_active(unit)]
    assert left_out, "all of it runs"
    # Seen when the image is built.
    said = json.loads(host.exec("heat-node-agent", "verify", "--image", "--json", check=False).stdout)["mistakes"]
    assert len([one for one in said if one["place"] in late]) == 1, said
