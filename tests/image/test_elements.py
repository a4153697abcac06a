"""The elements by the rules of diskimage-builder itself, and what their hooks do."""
import json
import os

import pytest

from lib.common import REPO, run

VENV = REPO / "target/image/venv"
OURS, OF_TESTS = REPO / "image-build/elements", REPO / "tests/image/elements"
ELEMENT = OURS / "heat-node-agent"
REPLACED = ["heat-config", "os-apply-config", "os-collect-config", "os-refresh-config"]
TREE = REPO / "target/image/root"

# The image's root without the agent, on a tmpfs in a mount namespace that ends with the script; then the element's hooks as
# diskimage-builder runs them, with what extra-data.d brought.
HOOKS = r"""
mount -t tmpfs none "$1"; cd "$1"; mkdir image upper work root
mount -o ro,noload,loop,offset="$2" "$3" image
mount -t overlay none -o lowerdir=image,upperdir=upper,workdir=work root
mount -t proc none root/proc
find root -xdev -name '*heat-node-agent*' -not -path 'root/proc/*' -prune -exec rm -r {} +
[ -z "$(find root -xdev -name '*heat-node-agent*')" ]
mkdir -p root/tmp/in_target.d
cp -a "$4" root/tmp/in_target.d/heat-node-agent
for hook in "install.d/heat-node-agent-$5-install/60-heat-node-agent" install.d/61-heat-node-agent-settings \
  post-install.d/80-heat-node-agent finalise.d/99-heat-node-agent-verify; do
  cp "$6/$hook" root/tmp/hook
  chroot root env -i PATH=/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin DIB_INIT_SYSTEM=systemd DIB_HEAT_NODE_AGENT_VERIFY=1 /tmp/hook >&2
done
chroot root heat-node-agent verify --image --json
chroot root journalctl --list-catalog 2>/dev/null | grep -c HNA-0301 >&2
"""


def test_the_elements_pass_dib_lint(image):
    (lib,) = VENV.glob("lib/python3*/site-packages/diskimage_builder/lib")
    for folder in (OURS, OF_TESTS):
        env = {"ELEMENTS_DIR": str(folder), "LIB_DIR": str(lib), "PATH": f"{VENV}/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
        done = run(VENV / "bin/dib-lint", check=False, env=env, timeout=1800)
        assert done.returncode == 0 and done.stdout.endswith("PASS\n"), done.stdout + done.stderr


def element_info(folder, *elements):
    """What diskimage-builder makes of these elements, ours and those in the folder, before it does anything else: its own program says it."""
    (package,) = VENV.glob("lib/python3*/site-packages/diskimage_builder")
    env = {"ELEMENTS_PATH": f"{OURS}:{folder}:{package}/elements"}
    return run(VENV / "bin/python", package / "lib/element-info.py", "debian-minimal", *elements, check=False, env=env)


def test_the_element_provides_what_it_replaces():
    assert (ELEMENT / "element-provides").read_text().split() == REPLACED


@pytest.mark.parametrize("name", REPLACED)
def test_who_depends_on_a_replaced_tool_gets_this_element_and_both_are_refused(image, tmp_path, name):
    for element, dependency in ((name, "package-installs"), ("their-hook", name)):
        (tmp_path / element).mkdir()
        (tmp_path / element / "element-deps").write_text(f"{dependency}\n")
    alone = element_info(tmp_path, "their-hook")
    assert alone.returncode == 0 and {name, "their-hook"} <= set(alone.stdout.split()), alone
    for order in (("their-hook", "heat-node-agent"), ("heat-node-agent", "their-hook")):
        done = element_info(tmp_path, *order)
        assert done.returncode == 0 and name not in done.stdout.split() and {"heat-node-agent", "their-hook"} <= set(done.stdout.split()), done
    both = element_info(tmp_path, "heat-node-agent", name)
    assert both.returncode != 0 and f"{name} : already provided by ['heat-node-agent']" in both.stderr, both


@pytest.mark.parametrize("element, distribution, release, name, packages", [
    ("heat-node-services", "debian", "bookworm", "docker", "docker.io"),
    ("heat-node-services", "debian", "trixie", "docker", "docker.io docker-cli"),
    ("heat-node-kubernetes", "debian", "trixie", "docker", "docker.io docker-cli"),
    ("heat-node-kubernetes", "debian", "bookworm", "etcd", "etcd-server etcd-client"),
    ("heat-node-services", "ubuntu", "noble", "etcd", "etcd-server"),
    ("heat-node-services", "fedora", "40", "docker", "docker"),
    ("heat-node-services", "rocky", "9", "apparmor", ""),
    ("heat-node-kubernetes", "rocky", "9", "conntrack", "conntrack-tools"),
    ("heat-node-kubernetes", "opensuse", "15.6", "conntrack", "conntrack-tools"),
])
def test_packages_have_the_names_of_their_distribution(image, element, distribution, release, name, packages):
    (program,) = VENV.glob("lib/python3*/site-packages/diskimage_builder/elements/pkg-map/bin/pkg-map")
    done = run("/usr/bin/python3", program, "--pkg-map", OURS / element / "pkg-map", "--distro", distribution, "--release", release, name)
    assert done.stdout.split() == packages.split(), done


def extra_data(folder, **variables):
    """extra-data.d, as diskimage-builder runs it outside of the chroot."""
    names = ("TREE", "DEB", "SETTINGS", "VERIFY")
    env = {f"DIB_HEAT_NODE_AGENT_{name}": "" for name in names} | {"TMP_HOOKS_PATH": str(folder)}
    return run(ELEMENT / "extra-data.d/50-heat-node-agent", check=False, env=env | {k: str(v) for k, v in variables.items()})


@pytest.mark.parametrize("variables, words", [
    ({}, "set DIB_HEAT_NODE_AGENT_TREE"),
    ({"DIB_HEAT_NODE_AGENT_TREE": "/var/empty"}, "holds no usr/bin/heat-node-agent"),
    ({"DIB_HEAT_NODE_AGENT_TREE": TREE, "DIB_HEAT_NODE_AGENT_SETTINGS": "/var/empty/agent.toml"}, "is no file"),
    ({"DIB_INSTALLTYPE_heat_node_agent": "package", "DIB_HEAT_NODE_AGENT_DEB": "/var/empty/agent.deb"}, "is no file"),
    ({"DIB_INSTALLTYPE_heat_node_agent": "git"}, "unknown install type git"),
])
def test_what_cannot_be_installed_is_said_before_the_image_is_built(image, tmp_path, variables, words):
    done = extra_data(tmp_path, **variables)
    assert done.returncode == 1 and words in done.stderr, done


@pytest.mark.parametrize("kind", ["source", "package"])
def test_each_install_type_makes_an_image_fit_to_boot(image, tmp_path, kind):
    settings = tmp_path / "agent.toml"
    settings.write_text("polling_interval = 45\n")
    given = {"DIB_HEAT_NODE_AGENT_TREE": TREE}
    if kind == "package":
        package = os.environ.get("HNA_DEB") or run(REPO / "image-build/deb", timeout=1800).stdout.strip()
        given = {"DIB_HEAT_NODE_AGENT_DEB": package}
    done = extra_data(tmp_path, DIB_INSTALLTYPE_heat_node_agent=kind, DIB_HEAT_NODE_AGENT_SETTINGS=settings, **given)
    assert done.returncode == 0, done
    place = tmp_path / "mount"
    place.mkdir()
    start = int(run("partx", "-g", "-o", "START", "-n", "1", image).stdout) * 512
    done = run("unshare", "--mount", "bash", "-euo", "pipefail", "-c", HOOKS, "-", place, start, image, tmp_path / "heat-node-agent", kind,
               ELEMENT, check=False, timeout=1800)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["mistakes"] == []
