"""The packages that image-build makes, and hosts that get them."""
import gzip
import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from lib.common import REPO, run
from lib.node import UNIT

GUARD = "heat-node-agent-guard.service"
STAND_IN = f"/etc/systemd/system/{GUARD}"
# Of the Debian package alone: an image has no package manager to tell.
PACKAGE_ONLY = {"usr/share/doc/heat-node-agent/changelog.Debian.gz", "usr/share/doc/heat-node-agent/copyright",
                "usr/share/lintian/overrides/heat-node-agent"}
COUNT = "#!/bin/sh\necho ran >>/var/tmp/ran\n"


@pytest.fixture(scope="session")
def deb() -> Path:
    """HNA_DEB, else made of what lies in target/image."""
    return Path(os.environ.get("HNA_DEB") or run(REPO / "image-build/deb").stdout.strip())


@pytest.fixture(scope="session")
def rpm() -> Path:
    """Made of what lies in target/image."""
    return Path(run(REPO / "image-build/rpm").stdout.strip())


def prepare(host, server):
    """Whom to ask, as the image or cloud-init leaves it. The roots of these hosts keep no manual pages: here they do."""
    cfn = server.settings()["cfn"]
    host.write("/etc/os-collect-config.conf", "[cfn]\n" + "".join(f"{k} = {v}\n" for k, v in cfn.items()), 0o600)
    host.sh("rm -f /etc/dpkg/dpkg.cfg.d/*")


def is_enabled(host) -> str:
    return host.exec("systemctl", "is-enabled", UNIT, check=False).stdout.strip()


def pids(host, *units: str) -> dict[str, str]:
    return {unit: host.show(unit, "MainPID")["MainPID"] for unit in units}


def job_of(host) -> str:
    """The unit of the one deployment that runs."""
    def found() -> str:
        units = host.sh("systemctl list-units --no-legend --plain 'heat-deployment-*' | cut -d' ' -f1").split()
        return units[0] if len(units) == 1 else ""
    return host.wait_for(found, what="one running deployment")


def files_of(deb: Path) -> dict[str, tuple[int, bytes]]:
    """Mode and content of each file; manual pages as they are in an image."""
    data = subprocess.run(["dpkg-deb", "--fsys-tarfile", deb], check=True, capture_output=True).stdout
    found = {}
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        for member in tar:
            assert (member.uid, member.gid) == (0, 0), member.name
            if member.isdir():
                assert member.mode == 0o755, member.name
                continue
            assert member.isfile(), f"{member.name} is no plain file"
            name, content = member.name.removeprefix("./"), tar.extractfile(member).read()
            if name.startswith("usr/share/man/"):
                assert name.endswith(".gz"), name
                name, content = name.removesuffix(".gz"), gzip.decompress(content)
            found[name] = (member.mode, content)
    return found
