"""Bad changes of a master, one after the other: each is taken back within the time that Heat waits, and Heat hears what failed and what became of
the node. Of real etcd and containerd, with stand-ins for Kubernetes' programs. Further ones are in test_rollback.py."""
import time

import pytest
from lib.cluster import Node, parameters
from lib.common import GATEWAY
from lib.failures import slack
from lib.node import is_steady

MASTER = GATEWAY.rsplit(".", 1)[0] + ".21"
TIMEOUT = 60
FILES = "{ find /etc/systemd/system /etc/kubernetes /etc/etcd /etc/containerd /etc/crio /etc/sysctl.d /etc/modules-load.d /etc/cni -type f " \
        "-not -path '*/..*' -exec sha256sum {} + 2>/dev/null || :; } | sort -k 2; find /etc/systemd/system -type l -not -name 'heat-node-firewall*' | sort"
SETTINGS = """[node]
allow_options = ["kube-apiserver:--etcd-cafile", "kube-apiserver:--tls-cert-file", "kube-apiserver:--tls-private-key-file"]
"""
SQUATTER = "import socket, time; s = socket.socket(); s.setsockopt(1, 2, 1); s.bind(('0.0.0.0', 10301)); s.listen(); time.sleep(9999)"
OTHER = "openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=other.example.org -addext subjectAltName=DNS:other.example.org -days 9 " \
        "-keyout /run/other.key -out /run/other.crt 2>/dev/null"
# A containerd that refuses one value of its configuration.
TRAP = "[Service]\nExecStartPre=/bin/sh -c '! grep -q broken/pause /etc/containerd/config.toml'\n"
# What is changed, and what Heat hears of it.
BAD = {
    "a flag that no table knows": ({"KUBELET_OPTIONS": "--no-such-flag=1"}, ("kubelet", "--no-such-flag")),
    "a value that the program refuses": ({"KUBECONTROLLER_OPTIONS": "--node-monitor-period=soon"}, ("kube-controller-manager",)),
    "a port that is taken": ({"KUBESCHEDULER_OPTIONS": "--secure-port=10301"}, ("kube-scheduler", "in use")),
    "another CA than the one of etcd": ({"KUBEAPI_OPTIONS": "--etcd-cafile=/run/other.crt"}, ("kube-apiserver",)),
    "a certificate for another name":
        ({"KUBEAPI_OPTIONS": "--tls-cert-file=/run/other.crt --tls-private-key-file=/run/other.key"}, ("kube-apiserver",)),
    "a configuration that the runtime refuses": ({"SANDBOX_IMAGE": "broken/pause:1"}, ("containerd.service",)),
    "a runtime that is not there": ({"CONTAINER_RUNTIME": "cri-o"}, ("crio",)),
    "a firewall that is not there": ({"FIREWALL": "firewalld"}, ("heat-node-firewall.service", "firewall-cmd is not installed")),
    "a value that the proxy refuses": ({"KUBEPROXY_OPTIONS": "--conntrack-max-per-core=many"}, ("kube-proxy", "many")),
}


@pytest.mark.longer
def test_each_bad_change_is_rolled_back(hosts, signal_server, magnum):
    host = hosts("m1", ip=MASTER)
    host.sh(f"{OTHER}; mkdir -p /etc/systemd/system/containerd.service.d")
    host.write("/etc/systemd/system/containerd.service.d/99-trap.conf", TRAP)
    host.exec("systemd-run", "-q", "--unit=squatter", "python3", "-c", SQUATTER)
    node = Node(host, signal_server(), parameters("master", "m1", MASTER, MASTER, **magnum().parameters())).up(SETTINGS)
    host.wait_for(lambda: is_steady(host), what="a steady node")
    files, base, wrong, changed = host.sh(FILES), dict(node.inputs), [], {}
    for name, (change, words) in BAD.items():
        since, timeout = time.monotonic(), TIMEOUT * slack()
        node.update(**{one: base.get(one) for one in changed} | change | {"WAIT_TIMEOUT": timeout})
        changed = change
        cause, seconds = node.result(), time.monotonic() - since
        print(f"{name}: {seconds:.0f} s: {cause}", flush=True)
        if not all(word in cause for word in (*words, "rolled back: generation 1 is in place again, and healthy")):
            wrong.append(f"{name}: {cause}")
        if differences := set(host.sh(FILES).splitlines()) ^ set(files.splitlines()):
            wrong.append(f"{name}: {sorted(differences)}")
        if not node.healthy():
            wrong.append(f"{name}: the node is not healthy")
        if seconds > timeout:
            wrong.append(f"{name}: {seconds:.0f} s")
    assert not wrong, "\n".join(wrong)
