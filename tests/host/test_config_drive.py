"""A server without cloud-init: its first metadata is on the config drive or at the metadata service, and nowhere else."""
from pathlib import Path

import pytest

from lib.common import GATEWAY
from lib.config_drive import make_iso, make_vfat, tree, with_first_metadata
from lib.metadata_service import ADDRESS, MetadataService
from lib.node import IP, UNIT, signalled

DISK = "3b0c1f7a-52d4-4e1a-9c55-7d1f0a2b6c11"
SCRIPT = "#!/bin/sh\necho ran\n"


def first_metadata(server) -> str:
    return with_first_metadata({"deployments": [], "os-collect-config": server.settings()})


@pytest.mark.parametrize("make, label", [(make_iso, "config-2"), (make_vfat, "CONFIG-2")])
def test_a_server_without_cloud_init_finds_heat_by_its_config_drive(hosts, signal_server, tmp_path: Path, make, label):
    server = signal_server()
    host = hosts("n1", ip=IP)
    image = tmp_path / "config"
    with tree(tmp_path / "files", "i", "n1", first_metadata(server)) as files:
        make(image, files)
    host.attach("vdb", "64M", DISK)
    host.put({"/var/tmp/config": (image.read_bytes(), 0o600)})
    # The hosts' udev makes no links by label.
    host.sh("dd if=/var/tmp/config of=/dev/vdb bs=1M status=none conv=fsync && rm /var/tmp/config && "
            f"mkdir -p /dev/disk/by-label && ln -sfn /dev/vdb /dev/disk/by-label/{label}")
    server.deploy(server.deployment("10-script", config=SCRIPT))
    host.write("/etc/heat-node-agent/agent.toml", "[sources]\nconfig_drive = true\n")
    host.install_agent()
    host.exec("systemctl", "enable", "--now", UNIT)
    assert signalled(server, "10-script")["deploy_stdout"] == "ran\n"
    # The sandbox hides the drive from nobody, and nothing was mounted or written for it.
    assert host.reported("SourceInUse", words="config drive")
    assert not host.sh("findmnt -no TARGET -t iso9660,vfat || :").strip() and not host.exists("/var/lib/heat-cfntools/cfn-init-data")


def test_a_server_without_cloud_init_and_drive_finds_heat_by_the_metadata_service(hosts, signal_server, tmp_path: Path):
    """There is a route to it only after the agent began, as it may be at a boot."""
    server = signal_server()
    server.deploy(server.deployment("10-script", config=SCRIPT))
    host = hosts("n1", ip=IP)
    service = MetadataService(tmp_path / "service")
    service.give(first_metadata(server))
    host.write("/etc/heat-node-agent/agent.toml", f'[sources]\nconfig_drive = true\nmetadata_service = "{service.base}"\n')
    host.install_agent()
    host.exec("systemctl", "enable", "--now", UNIT)
    [failed] = host.reported("SourceFailed", words="user data")
    assert failed["HNA_CODE"] == "HNA-0202" and f"no route to {ADDRESS}" in failed["HNA_CAUSE"] and "ip route" in failed["HNA_REMEDY"]
    service.start()
    host.exec("ip", "route", "add", f"{ADDRESS}/32", "via", GATEWAY)
    try:
        assert signalled(server, "10-script")["deploy_stdout"] == "ran\n"
        assert host.reported("SourceInUse", words="metadata service")
        asked = [request.target for request in service.requests()]
        server.deploy(server.deployment("20-script", config=SCRIPT))
        host.exec("systemctl", "reload", UNIT)
        signalled(server, "20-script")
        assert set(asked) == {"/latest/user-data"} and [request.target for request in service.requests()] == asked
    finally:
        service.stop()
