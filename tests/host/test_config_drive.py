"""A server without cloud-init: its first metadata is on the config drive, and nowhere else."""
import json
from email.mime.multipart import MIMEMultipart
from email.mime.text import MIMEText
from pathlib import Path

from lib.common import run
from lib.config_drive import tree
from lib.node import IP, UNIT, signalled

DISK = "3b0c1f7a-52d4-4e1a-9c55-7d1f0a2b6c11"


def user_data(metadata: dict) -> str:
    """As Heat makes it for SOFTWARE_CONFIG."""
    parts = MIMEMultipart()
    for text, kind, name in (("#cloud-config\n", "cloud-config", "cloud-config"), ("#part-handler\n", "part-handler", "part-handler.py"),
                             (json.dumps(metadata), "x-cfninitdata", "cfn-init-data")):
        part = MIMEText(text, _subtype=kind)
        part.add_header("Content-Disposition", f'attachment; filename="{name}"')
        parts.attach(part)
    return parts.as_string()


def test_a_server_without_cloud_init_finds_heat_by_its_config_drive(hosts, signal_server, tmp_path: Path):
    server = signal_server()
    host = hosts("n1", ip=IP)
    image = tmp_path / "config.iso"
    with tree(tmp_path / "files", "i", "n1", user_data({"deployments": [], "os-collect-config": server.settings()})) as files:
        run("genisoimage", "-quiet", "-ldots", "-allow-lowercase", "-allow-multidot", "-l", "-J", "-r", "-V", "config-2", "-o", image, files)
    host.attach("vdb", "4M", DISK)
    host.put({"/var/tmp/config.iso": (image.read_bytes(), 0o600)})
    # The hosts' udev makes no links by label.
    host.sh("dd if=/var/tmp/config.iso of=/dev/vdb status=none conv=fsync && rm /var/tmp/config.iso && "
            "mkdir -p /dev/disk/by-label && ln -sfn /dev/vdb /dev/disk/by-label/config-2")
    server.deploy(server.deployment("10-script", config="#!/bin/sh\necho ran\n"))
    host.write("/etc/heat-node-agent/agent.toml", "[sources]\nconfig_drive = true\n")
    host.install_agent()
    host.exec("systemctl", "enable", "--now", UNIT)
    assert signalled(server, "10-script")["deploy_stdout"] == "ran\n"
    # The sandbox hides the drive from nobody, and nothing was mounted or written for it.
    assert host.reported("SourceInUse", words="config drive")
    assert not host.sh("findmnt -no TARGET -t iso9660 || :").strip() and not host.exists("/var/lib/heat-cfntools/cfn-init-data")
