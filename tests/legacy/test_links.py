"""The links to the agent by the names of the replaced tools, as the element and the Debian package make them."""
import os
import subprocess

import pytest

from lib.legacy import ROOT

AGENT = "/usr/bin/heat-node-agent"
BIN = ["os-collect-config", "os-apply-config", "os-config-applier", "os-refresh-config", "dib-run-parts", "heat-config-notify", "cfn-signal"]
LINKS = [*(f"bin/{name}" for name in BIN), *(f"libexec/heat-config/hooks/{group}" for group in ("json-file", "apply-config", "hiera")),
         "libexec/os-refresh-config/configure.d/55-heat-config"]
# The element's hook runs in the image: here in a namespace whose /usr is this machine's with a layer on it, and goes with the script.
IN_IMAGE = r"""
mount -t tmpfs none "$1"; mkdir "$1/upper" "$1/work"
mount -t overlay none -o lowerdir=/usr,upperdir="$1/upper",workdir="$1/work" /usr
rm -rf /usr/libexec/heat-config /usr/libexec/os-refresh-config; cd /usr/bin; rm -f heat-node-agent $3
[ -z "$4" ] || { mkdir -p "$(dirname "/usr/$4")"; echo theirs > "/usr/$4"; }
"$2"
for name in $5; do [ ! -L "/usr/$name" ] || readlink "/usr/$name" | sed "s,^,$name ,"; done
[ -z "$4" ] || cat "/usr/$4"
"""


def by_element(tmp_path, wanted, theirs=""):
    script = ROOT / "image-build/elements/heat-node-agent/install.d/62-heat-node-agent-legacy"
    done = subprocess.run(["unshare", "--mount", "bash", "-euc", IN_IMAGE, "-", tmp_path, script, " ".join(BIN), theirs, " ".join(LINKS)],
                          env={**os.environ, "DIB_HEAT_NODE_AGENT_LEGACY": wanted}, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done
    return done.stdout.splitlines()


def by_package(tmp_path, script, action, **env):
    root = tmp_path / "root"
    (root / "usr/bin").mkdir(parents=True, exist_ok=True)
    done = subprocess.run(["sh", ROOT / "image-build/debian" / script, action], capture_output=True, text=True, timeout=120,
                          env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DPKG_ROOT": str(root), **env})
    assert done.returncode == 0, done
    return {str(path.relative_to(root / "usr")): os.readlink(path) for path in (root / "usr").rglob("*") if path.is_symlink()}


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone may mount")
def test_the_element_makes_them_where_nobody_else_has_them(tmp_path):
    assert by_element(tmp_path, "1") == [f"{name} {AGENT}" for name in LINKS]
    assert by_element(tmp_path, "0") == []
    for theirs in ("bin/os-collect-config", "libexec/os-refresh-config/configure.d/55-heat-config"):
        assert by_element(tmp_path, "1", theirs) == [*(f"{name} {AGENT}" for name in LINKS if name != theirs), "theirs"]


def test_the_package_makes_and_removes_them(tmp_path):
    assert by_package(tmp_path, "postinst", "configure") == {}
    theirs = tmp_path / "root/usr/bin/os-apply-config"
    theirs.write_text("theirs")
    (tmp_path / "root/usr/bin/dib-run-parts").symlink_to("theirs")
    ours = {name: AGENT for name in LINKS if name not in ("bin/os-apply-config", "bin/dib-run-parts")}
    assert by_package(tmp_path, "postinst", "configure", HEAT_NODE_AGENT_LEGACY="1") == ours | {"bin/dib-run-parts": "theirs"}
    # A newer version of the package asks for nothing and takes nothing away.
    assert by_package(tmp_path, "postinst", "configure") == ours | {"bin/dib-run-parts": "theirs"}
    assert by_package(tmp_path, "postrm", "upgrade") == ours | {"bin/dib-run-parts": "theirs"}
    assert by_package(tmp_path, "postrm", "remove") == {"bin/dib-run-parts": "theirs"} and theirs.read_text() == "theirs"
