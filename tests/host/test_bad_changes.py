"""Bad changes of a master, one after the other: each is taken back within the time that Heat waits, and Heat hears what failed and what became of
the node; of three masters the others answer all the while. Of real etcd and containerd, with stand-ins for Kubernetes' programs. Further ones are in
test_rollback.py."""
import time

import pytest
from lib.cluster import Node, parameters
from lib.common import GATEWAY, wait_for
from lib.failures import slack
from lib.hosts import NET
from lib.masters import Masters, listed
from lib.node import is_steady
from lib.pod_network import together

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
    "a flag that the API server does not have": ({"KUBEAPI_OPTIONS": "--no-such-flag=1"}, ("kube-apiserver", "--no-such-flag")),
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


def be_trapped(host):
    """What the changes run into; and a network of somebody's for pods, without which the node is not Ready, so that the kubelet is not healthy before."""
    host.sh(f"{OTHER}; mkdir -p /etc/systemd/system/containerd.service.d /etc/cni/net.d")
    host.write("/etc/cni/net.d/10-pods.conflist", '{"name": "pods", "cniVersion": "0.3.1", "plugins": [{"type": "loopback"}]}')
    host.write("/etc/systemd/system/containerd.service.d/99-trap.conf", TRAP)
    host.exec("systemd-run", "-q", "--unit=squatter", "python3", "-c", SQUATTER)


def is_well(node: Node) -> bool:
    """All of it, as the agent sees it: a change is taken back where what fails was healthy before."""
    components = node.status()["node"]["components"]
    return is_steady(node.host) and bool(components) and all(one["state"] == "healthy" for one in components)


def goes_back_each_time(node: Node):
    host = node.host
    wait_for(lambda: is_well(node), NET, "a healthy node")
    files, base, wrong, changed = host.sh(FILES), dict(node.inputs), [], {}
    for name, (change, words) in BAD.items():
        wait_for(lambda: is_well(node), NET, "a healthy node")
        # Where it is much longer, so is each change that only its deadline ends.
        since, timeout = time.monotonic(), TIMEOUT * min(slack(), 3)
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


@pytest.mark.longer
def test_each_bad_change_is_rolled_back(hosts, signal_server, magnum):
    host = hosts("m1", ip=MASTER)
    be_trapped(host)
    goes_back_each_time(Node(host, signal_server(), parameters("master", "m1", MASTER, MASTER, **magnum().parameters())).up(SETTINGS))


@pytest.mark.longer
def test_a_cluster_answers_while_a_master_goes_back_ten_times(hosts, signal_server, tmp_path):
    assert len(BAD) == 10
    masters = Masters(hosts, signal_server, tmp_path)
    first, second, third = masters.nodes
    be_trapped(third.host)
    masters.begin(first, second)
    masters.begin(third, settings=SETTINGS)
    together(*(node.succeeds for node in masters.nodes))
    wait_for(masters.healthy, NET, "etcd of three members")
    members, runs = listed(first), [node.started() for node in masters.nodes]
    with masters.written_to(), masters.answered(first, second):
        goes_back_each_time(third)
    wait_for(masters.healthy, NET, "etcd of three members")
    assert listed(first) == members and not masters.mistakes()
    assert not first.restarted(runs[0]) and not second.restarted(runs[1]) and "etcd" not in third.restarted(runs[2])
    # What says that they answer would say it if one did not.
    with pytest.raises(AssertionError, match="of them is not answered"), masters.answered(first, second):
        second.host.sh("systemctl stop kube-apiserver; sleep 5; systemctl start kube-apiserver")
