"""Pairs of parameters: what the agent takes, the stand-ins of that version take, too; what it refuses, it refuses by a rule.

Every pair is judged inside the agent's own tests (`agent/kubernetes/pair_tests.rs`), by what a node gets. Here are those parameters that reach
a command line or a component's file, and of their pairs a sample: HNA_PAIRS=1 takes all of them, HNA_PAIRS=10 one of ten."""
import json
import os

import pytest
from lib.common import run
from lib.hosts import agent_binary
from kubernetes.test_versions import COMPONENTS, TRUSTEE, Tree, document, made, service_account  # noqa: F401

VALUES = {
    "KUBE_API_PORT": ["443", "8443", "30443"], "SERVICE_NODE_PORT_RANGE": ["20000-20100", "2000-7000"],
    "PODS_NETWORK_CIDR": ["10.9.0.0/25", "11.0.0.0/8", "10.254.0.0/20", "fd00:2::/56"], "PORTAL_NETWORK_CIDR": ["172.20.0.0/16", "10.254.0.0/28", "172.16.0.0/12"],
    "DNS_SERVICE_IP": ["172.20.0.10", "10.254.0.5", None], "FLANNEL_NETWORK_SUBNETLEN": ["18", "26"], "FLANNEL_NETWORK_CIDR": ["10.96.0.0/12", "10.9.0.0/24"],
    "NETWORK_DRIVER": ["calico", "none", "flannel"], "FLANNEL_RUNS_AS": ["unit", "add-on"], "FLANNEL_BACKEND": ["vxlan", "udp"],
    "CONTAINER_RUNTIME": ["docker", "containerd", "cri-o"], "CONTAINERD_VERSION": ["1.7.2"], "CGROUP_DRIVER": ["cgroupfs", "systemd"],
    "PROXY_MODE": ["iptables", "ipvs", "nftables", "userspace"], "KUBE_ALLOW_PRIV": ["False"], "SWAP": ["allow"],
    "NODE_LABELS": ["disk=ssd,example.org/zone=a", "magnum.openstack.org/role=x"], "NODE_TAINTS": ["dedicated=gpu:NoSchedule"],
    "NODEGROUP_ROLE": ["gpu"], "NODEGROUP_NAME": ["gpu"], "STATIC_POD_URL": ["http://192.0.2.9/pods.yaml"],
    "SANDBOX_IMAGE": ["mirror.example.org/pause:3.9"], "CONTAINER_INFRA_PREFIX": ["mirror.example.org/"],
    "KUBE_RESERVED": ["cpu=100m,memory=256Mi", "pid=100"], "SYSTEM_RESERVED": ["cpu=100m,memory=128Mi", "ephemeral-storage=1Gi"],
    "ADMISSION_CONTROL_LIST": ["NamespaceLifecycle,NodeRestriction", "PodSecurityPolicy,DefaultStorageClass"],
    "KUBELET_OPTIONS": ["--max-pods=50", "--node-labels=x=y", "--cluster-dns=10.254.0.9"], "KUBEPROXY_OPTIONS": ["--proxy-mode=ipvs", "--v=4"],
    "KUBEAPI_OPTIONS": ["--event-ttl=2h", "--enable-admission-plugins=NodeRestriction", "--service-node-port-range=20000-20100"],
    "KUBECONTROLLER_OPTIONS": ["--concurrent-deployment-syncs=7", "--node-cidr-mask-size=25"], "KUBESCHEDULER_OPTIONS": ["--v=4"],
    "CERT_MANAGER_API": ["True"], "BOOTSTRAP_TOKEN": ["abcdef.0123456789abcdef"], "KEYSTONE_AUTH_ENABLED": ["True"],
    "CLOUD_PROVIDER_ENABLED": ["True", "False"], "VOLUME_DRIVER": ["cinder"], "OCTAVIA_ENABLED": ["True"], "TLS_DISABLED": ["True"],
    "KUBE_NODE_IP": ["192.0.2.99", "2001:db8::11"], "INSTANCE_NAME": ["other-name"], "MASTER_HOSTNAME": ["api.example.org"],
    "DNS_CLUSTER_DOMAIN": ["other.example"], "CLUSTER_SUBNET_CIDR": [None, "10.100.0.0/24"], "MASTER_ADDRESSES": ["192.0.2.11"], "ETCD_TAG": ["v3.3.27", "v3.5.13"]}
PART = int(os.environ.get("HNA_PAIRS", 61))
PLAIN = [(name, value) for name, values in VALUES.items() for value in values]
PAIRS = [(one, other) for at, one in enumerate(PLAIN) for other in PLAIN[:at] if one[0] != other[0]]
NODES = [(minor, role) for minor in (20, 31) for role in COMPONENTS]


@pytest.mark.parametrize("number, minor, role", [(number, minor, role) for number, (minor, role) in enumerate(NODES)])
def test_what_is_taken_is_taken_by_the_programs(tmp_path, made, service_account, monkeypatch, number, minor, role):  # noqa: F811
    taken, refused, wrong = 0, 0, []
    # Another part of them for each node.
    for at, pair in list(enumerate(PAIRS))[number * PART // len(NODES)::PART]:
        metadata = document(minor, role, service_account, **TRUSTEE, **dict(pair))
        path = tmp_path / "metadata.json"
        path.write_text(json.dumps(metadata))
        done = run(agent_binary(), "verify", "--metadata", path, check=False)
        if done.returncode:
            refused += 1
            if "rule: " not in done.stdout + done.stderr or "remedy: " not in done.stdout + done.stderr:
                wrong.append(f"{pair}: refused without a rule: {done.stdout} {done.stderr}")
            continue
        taken += 1
        try:
            Tree(tmp_path / f"root-{at}", metadata, made).programs(f"1.{minor}.3", monkeypatch)
        except AssertionError as error:
            wrong.append(f"{pair}: {error}")
    print(f"1.{minor} {role}: {taken} taken, {refused} refused of {len(PAIRS)} pairs, one of {PART}")
    assert not wrong, f"{len(wrong)} of {taken}:\n" + "\n".join(wrong[:20])
    assert taken, "nothing was taken"
