"""What a change of parameters restarts on a real master: exactly the units that read what changed. And programs of another release than the
parameters say: what they do not take is found before anything is written or stopped."""
import re
import time

from lib import stand_ins
from lib.cluster import Node, parameters
from lib.common import GATEWAY
from lib.node import UNIT, is_steady, says_little

MASTER = GATEWAY.rsplit(".", 1)[0] + ".21"
API, MANAGER, SCHEDULER, KUBELET, PROXY = "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy"
# One after another, each on top of those before; None takes a parameter away. The table of agent/kubernetes/restart_tests.rs, from the
# renderer, has more of them.
CHANGES = [
    ({"WAIT_TIMEOUT": 601}, set()),
    ({"DRIFT": "repair"}, set()),
    ({"COREDNS_TAG": "1.11.1"}, set()),
    ({"NO_PROXY": ".example.org"}, set()),
    ({"CERTIFICATE_RENEWAL": "renew"}, set()),
    ({"KUBE_TAG": "v1.28.10"}, set()),
    ({"KUBEAPI_OPTIONS": "--v=3"}, {API}),
    ({"KUBECONTROLLER_OPTIONS": "--v=3"}, {MANAGER}),
    ({"KUBESCHEDULER_OPTIONS": "--v=3"}, {SCHEDULER}),
    ({"KUBELET_OPTIONS": "--v=3"}, {KUBELET}),
    ({"KUBEPROXY_OPTIONS": "--v=3"}, {PROXY}),
    ({"NODE_LABELS": "rack=a"}, {KUBELET}),
    ({"NODE_TAINTS": "rack=a:NoSchedule"}, {KUBELET}),
    ({"KUBE_RESERVED": "cpu=200m"}, {KUBELET}),
    ({"SERVICE_NODE_PORT_RANGE": "30000-31000"}, {API}),
    ({"ADMISSION_CONTROL_LIST": "NodeRestriction,NamespaceLifecycle"}, {API}),
    ({"HTTP_PROXY": "http://192.0.2.1:3128"}, {"containerd"}),
    ({"INSECURE_REGISTRY_URL": "registry.example.org:5000"}, set()),
    ({"SANDBOX_IMAGE": "pause:3.9"}, {"containerd", KUBELET}),
    # What is reached without the proxy: the pods and the cluster's domain, too.
    ({"PODS_NETWORK_CIDR": "10.200.0.0/16"}, {MANAGER, PROXY, "containerd"}),
    ({"MASTER_HOSTNAME": "api.example.org"}, {"etcd", API}),
    ({"KUBE_NODE_PUBLIC_IP": "203.0.113.7"}, {"etcd", API, KUBELET}),
    ({"DNS_CLUSTER_DOMAIN": "blue.local"}, {"etcd", API, KUBELET, "containerd"}),
    ({"KUBEAPI_OPTIONS": None, "HTTP_PROXY": None}, {API, "containerd"}),
]


def asked(host) -> dict[str, int]:
    """How often each program was asked for its release."""
    said = host.sh("journalctl --sync; journalctl -q --no-pager -o cat _PID=1")
    names = re.findall(r"^Starting heat-program-([a-z-]+)-release\.service", said, re.M)
    return {name: names.count(name) for name in names}


def test_each_change_restarts_who_reads_it_and_nobody_else(hosts, signal_server, magnum):
    host = hosts("m1", ip=MASTER)
    host.sh(": >/dev/console")  # these hosts have no console: a file takes what would go to it
    master = Node(host, signal_server(), parameters("master", "m1", MASTER, MASTER, **magnum().parameters())).up()
    host.wait_for(lambda: is_steady(host), what="a steady node")
    says_little(host)
    once = {name: 1 for name in (API, MANAGER, SCHEDULER, KUBELET, PROXY, "etcd", "containerd")}
    assert asked(host) == once
    wrong = []
    for change, expected in CHANGES:
        before, since = master.started(), time.monotonic()
        master.update(**change)
        master.succeeds()
        print(f"{time.monotonic() - since:5.1f} s {change}")
        if (found := master.restarted(before)) != expected:
            wrong.append((change, found))
    assert not wrong
    # No program is started where none of them changed: neither by a deployment, nor by the next agent.
    before = master.started()
    host.exec("systemctl", "restart", UNIT)
    host.wait_for(lambda: is_steady(host), what="the restarted agent's steady state")
    assert asked(host) == once and not master.restarted(before)

    # A package brings another build of etcd: whoever still runs the old one is restarted by the next deployment, and by that alone.
    host.sh("cp -a /usr/bin/etcd /usr/bin/.etcd && mv /usr/bin/.etcd /usr/bin/etcd")
    plan = host.exec("heat-node-agent", "plan", check=False)
    assert plan.returncode == 2 and "restart etcd.service" in plan.stdout, plan.stdout
    before = master.started()
    master.update(WAIT_TIMEOUT=602)
    master.succeeds()
    assert master.restarted(before) == {"etcd"}
    before = master.started()
    master.update(WAIT_TIMEOUT=603)
    master.succeeds()
    assert not master.restarted(before)

    # Another release in its place, which lacks a flag that is asked for.
    settings = ["/etc/kubernetes/apiserver", "/etc/kubernetes/kubelet", "/etc/etcd/etcd.conf"]
    files = host.sha256(*settings)
    stand_ins.into(host, "1.20.15")
    master.update(KUBEAPI_OPTIONS="--shutdown-send-retry-after=true", NODE_LABELS="rack=b")
    cause = master.result()
    for words in ("HNA-0623", "kube-apiserver 1.20 is installed, but KUBE_TAG is v1.28.10",
                  "--shutdown-send-retry-after was added in kube-apiserver 1.23", "set KUBE_TAG to v1.20"):
        assert words in cause, cause
    assert not master.restarted(before) and host.sha256(*settings) == files and master.healthy()
    assert host.reported("ProgramIncompatible")[-1]["HNA_REMEDY"].startswith("set KUBE_TAG to v1.20")
    # So does the plan, after the difference.
    plan = host.exec("heat-node-agent", "plan", check=False)
    assert plan.returncode == 1 and "--shutdown-send-retry-after=true" in plan.stdout and "set KUBE_TAG to v1.20" in plan.stderr, plan
    assert "--shutdown-send-retry-after was added in kube-apiserver 1.23" in plan.stderr
    # One that takes every flag is reported as another release, and asked once.
    stand_ins.into(host, "1.29.4")
    master.update()
    master.succeeds()
    host.reported("ProgramReleaseDiffers", words=f"{KUBELET} 1.29 is installed, but KUBE_TAG is v1.28.10")
    assert master.restarted(before) == {API, KUBELET}
    plan = host.exec("heat-node-agent", "plan")
    assert f"note: {KUBELET} 1.29 is installed, but KUBE_TAG is v1.28.10" in plan.stderr, plan
    assert asked(host)[KUBELET] == 4 and asked(host)["etcd"] <= 2
