"""`verify --image` on the built image: whole it passes, and each thing that is wrong with it is refused by one message."""
import json
import subprocess

import pytest

from lib.common import run

# The image read-only below a tmpfs, in a mount namespace that ends with the script, whatever happens.
BREAK_AND_LOOK = r"""
mount -t tmpfs none "$1"; cd "$1"; mkdir image upper work root
mount -o ro,noload,loop,offset="$2" "$3" image
mount -t overlay none -o lowerdir=image,upperdir=upper,workdir=work root
(cd root; umask 022; eval "$4")
exec chroot root /usr/bin/heat-node-agent verify --image $5
"""
CLOUD = "var/lib/cloud/instance"
COLLECT = "etc/os-collect-config.conf"
HOOK = "usr/libexec/heat-config/hooks/script"
DROP_IN = "etc/heat-node-agent/agent.toml.d/a.toml"
LATE = "etc/systemd/system/heat-node-agent.service.d/late.conf"
UNITS = "/lib/systemd/system"
WANTS = "etc/systemd/system/multi-user.target.wants"
PUT = "install -D -m 600 /dev/null"
KEY = "rm -f key; ssh-keygen -q -t rsa -b 2048 -m PEM -N '' -f key; install -D -m 600 key"

# name → (how it is broken, the place that is named, words of the message)
BROKEN = {
    "state": (f"{PUT} var/lib/heat-node-agent/identity.json", "/var/lib/heat-node-agent", "another machine"),
    "record": (f"{PUT} var/lib/heat-config/deployed/x.json", "/var/lib/heat-config/deployed", "every machine"),
    "cloud-init": (f"{PUT} {CLOUD}s/i-1/x; ln -s instances/i-1 {CLOUD}", f"/{CLOUD}", "has run"),
    "credentials": (rf"printf '[cfn]\nsecret_access_key = x\n' >{COLLECT}", f"/{COLLECT}", "another server"),
    "cfn-init-data": (f"{PUT} var/lib/heat-cfntools/cfn-init-data", "/var/lib/heat-cfntools/cfn-init-data", "credentials"),
    "ssh-key": (f"{KEY} etc/ssh/ssh_host_rsa_key; rm key", "/etc/ssh/ssh_host_rsa_key", "private key"),
    "node-key": (f"{KEY} etc/kubernetes/certs/server.key; rm key", "/etc/kubernetes/certs/server.key", "private key"),
    "machine-id": ("systemd-id128 new >etc/machine-id", "/etc/machine-id", "same id"),
    "random-seed": ("head -c 512 /dev/zero >var/lib/systemd/random-seed", "/var/lib/systemd/random-seed", "random"),
    "mkfs": ("rm usr/sbin/mkfs.xfs", "/usr/bin/mkfs.xfs", "missing"),
    "journalctl": ("rm usr/bin/journalctl", "/usr/bin/journalctl", "missing"),
    "dbus": (f"rm usr{UNITS}/dbus.service", f"/usr{UNITS}/dbus.service", "missing"),
    "cloud-init-unit": (f"rm usr{UNITS}/cloud-config.target", f"/usr{UNITS}/cloud-config.target", "missing"),
    "catalog": ("rm usr/lib/systemd/catalog/heat-node-agent.catalog", "/usr/lib/systemd/catalog/heat-node-agent.catalog", "missing"),
    "mode": ("chmod 775 usr/bin/heat-node-agent", "/usr/bin/heat-node-agent", "mode 0775"),
    "owner": (f"chown 1000 usr{UNITS}/heat-node-agent.service", f"/usr{UNITS}/heat-node-agent.service", "1000"),
    "hook": (f"install -D -m 777 /dev/null {HOOK}", f"/{HOOK}", "users other than root"),
    "settings": (f"{PUT} {DROP_IN}; echo 'nonsense = 1' >{DROP_IN}", f"/{DROP_IN}", "unknown"),
    "not-enabled": (f"rm {WANTS}/heat-node-agent.service", f"/{WANTS}/heat-node-agent.service", "not enabled"),
    "masked": ("ln -s /dev/null etc/systemd/system/heat-node-agent.service", "/etc/systemd/system/heat-node-agent.service", "masked"),
    "late": (f"install -D -m 644 /dev/stdin {LATE} <<<$'[Unit]\\nAfter=cloud-final.service\\nDefaultDependencies=yes'", f"/{LATE}",
             "wait for each other"),
    "replaced-agent": (f"ln -s {UNITS}/os-collect-config.service {WANTS}/", f"/{WANTS}/os-collect-config.service", "run twice"),
}


@pytest.fixture
def verify(image, tmp_path):
    """verify(how it is broken, words of the command) → what the command ended with."""
    start = int(run("partx", "-g", "-o", "START", "-n", "1", image).stdout) * 512

    def look(broken: str = ":", words: str = "--json") -> subprocess.CompletedProcess:
        return run("unshare", "--mount", "bash", "-euc", BREAK_AND_LOOK, "-", tmp_path, start, image, broken, words, check=False,
                   timeout=1800)
    return look


def test_the_built_image_is_fit_to_boot(verify):
    done = verify(words="")
    assert (done.returncode, done.stdout) == (0, "settings and the image: no mistakes\n"), done.stderr


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_image_is_refused_by_one_message(verify, name):
    how, place, words = BROKEN[name]
    done = verify(how)
    assert done.returncode == 1, done.stdout + done.stderr
    (mistake,) = json.loads(done.stdout)["mistakes"]
    assert mistake["place"] == place and words in mistake["problem"] and mistake["remedy"], mistake


def test_an_image_that_lacks_what_a_node_needs_is_refused_with_the_metadata_of_one(verify):
    """The image is plain: it is fit to boot, and no node of Kubernetes."""
    config = {"ROLE": "minion", "KUBE_TAG": "v1.28.9", "KUBE_NODE_IP": "192.0.2.31", "INSTANCE_NAME": "w", "KUBE_MASTER_IP": "192.0.2.5",
              "CERTIFICATES": "bootstrap", "BOOTSTRAP_TOKEN": "abcdef.0123456789abcdef", "CA_CERTIFICATE": "/given/ca.crt",
              "CONTAINER_RUNTIME": "containerd", "CONTAINERD_VERSION": "1.6.20", "NETWORK_DRIVER": "none"}
    entry = {"id": "1", "name": "worker", "group": "kubernetes-node", "config": config}
    put = f"cat >var/tmp/node.json <<'END'\n{json.dumps({'deployments': [entry]})}\nEND"
    done = verify(put, "--json --metadata /var/tmp/node.json")
    assert done.returncode == 1, done.stdout + done.stderr
    mistakes = json.loads(done.stdout)["mistakes"]
    assert all("needed by deployment worker (minion, Kubernetes v1.28.9)" in m["problem"] for m in mistakes), mistakes
    assert "kubelet.service" in {m["place"] for m in mistakes}, mistakes


def test_all_that_is_wrong_is_said_at_once(verify):
    done = verify("; ".join(how for how, _, _ in BROKEN.values()), "")
    assert done.returncode == 1
    for name, (_, place, words) in BROKEN.items():
        assert any(line.startswith(f"{place}:") and words in line for line in done.stdout.splitlines()), f"{name}:\n{done.stdout}"
    assert done.stdout.splitlines()[-1] == f"settings and the image: {len(BROKEN)} mistakes", done.stdout
