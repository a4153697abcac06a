"""kube-proxy in mode ipvs on a kernel that has IPVS, which no host of the other tests has: a worker of Kubernetes' real programs in a virtual
machine, of a master on a host. What the mode needs and is not there is named before anything is begun; then services are the kernel's virtual servers."""
import json
import re
import shutil
from pathlib import Path

import pytest

from lib.cluster import KUBERNETES, parameters
from lib.common import TESTS, run, wait_for
from lib.node import UNIT, VDB
from lib.real_kubernetes import ADDRESSES, NETWORK, PROGRAMS, RealCluster, version

pytestmark = pytest.mark.longer
# What software emulation needs, with much to spare: nets under a test that hangs.
BOOT, WORK = 1800, 1800
NAME, IP = "ipvs", "10.0.2.15"  # of QEMU's user network
SERVICE = "10.254.0.1"  # of the API
MODULES = ("ip_vs", "ip_vs_rr", "ip_vs_wrr", "ip_vs_sh", "nf_conntrack")
PLUGINS = ("bridge", "host-local", "loopback", "portmap")
WITHOUT = "/lib/modules/$(uname -r)/modules.dep"


@pytest.fixture(scope="module")
def programs(tmp_path_factory) -> Path:
    """What a worker runs, and the CNI project's plugins, on a disk."""
    run(TESTS / "real-kubernetes/up.sh", timeout=3600)
    folder = tmp_path_factory.mktemp("programs")
    # Both may be one file, which goes by the name that it is called by.
    program = (PROGRAMS / "kubelet").resolve()
    shutil.copy2(program, folder / "kubelet")
    if (PROGRAMS / "kube-proxy").resolve() == program:
        (folder / "kube-proxy").symlink_to("kubelet")
    else:
        shutil.copy2(PROGRAMS / "kube-proxy", folder)
    (folder / "cni").mkdir()
    for name in PLUGINS:
        shutil.copy2(f"/usr/lib/cni/{name}", folder / "cni")
    disk = folder.with_suffix(".ext4")
    run("mke2fs", "-q", "-t", "ext4", "-L", "kubernetes", "-d", folder, disk, "400M")
    return disk


def result(server, action) -> dict:
    """What Heat hears of the deployment that it asks for now."""
    server.forget()
    action()
    return wait_for(lambda: server.signals("node", accepted=True), WORK, "the result", every=2)[0].json()


@pytest.fixture
def cluster(hosts, signal_server, magnum) -> RealCluster:
    """One master, on a host: it would take a machine under software emulation a quarter of an hour to start."""
    cluster = RealCluster(hosts, signal_server, magnum())
    master = cluster.boot("m1")
    master.prepare()
    master.succeeds()
    return cluster


def test_kube_proxy_balances_by_the_kernels_ipvs_and_what_it_lacks_is_named(vms, cluster, signal_server, programs):
    server = signal_server()
    inputs = parameters("worker", NAME, IP, ADDRESSES["m1"], KUBE_TAG=f"v{version()}", DOCKER_VOLUME=VDB, CLOUD_PROVIDER_ENABLED="False",
                        NETWORK_DRIVER="static-routes", NODE_SUBNETS=f"{IP}=10.100.9.0/24", PODS_NETWORK_CIDR=NETWORK,
                        KUBEPROXY_OPTIONS="--proxy-mode=ipvs", WAIT_TIMEOUT=3500, **cluster.magnum.parameters())
    vm = vms(NAME, memory=2048, volumes={VDB: "4G"})
    vm.start("-drive", f"file={programs},id=programs,if=none,format=raw,readonly=on", "-device", "virtio-blk-pci,drive=programs")
    vm.wait_ssh(BOOT)
    vm.sh("mkdir -p /srv/kubernetes /opt/cni; mount -o ro -L kubernetes /srv/kubernetes; ln -s /srv/kubernetes/cni /opt/cni/bin; "
          "for name in kubelet kube-proxy; do ln -s /srv/kubernetes/$name /usr/local/bin/; cp /usr/share/heat-node-agent/units/$name.service /etc/systemd/system/; done; "
          "systemctl daemon-reload")
    settings = "".join(f"{name} = {value}\n" for name, value in server.settings()["cfn"].items())
    vm.sh(f"umask 077; cat >/etc/os-collect-config.conf <<'E'\n[cfn]\n{settings}E\n")

    def ask(action: str = "UPDATE"):
        server.sign()
        server.document["deployments"] = [server.deployment("node", group="kubernetes-node", inputs=inputs, action=action)]
        server.publish()
        vm.sh(f"systemctl restart {UNIT}")

    # A kernel without one of the modules, and an image without the program that kube-proxy runs: in either case it would balance by iptables, and
    # say so in its log alone.
    vm.sh(f"cp {WITHOUT} /root/modules.dep; sed -i '/\\/ip_vs_sh.ko/d' {WITHOUT}")
    said = result(server, lambda: ask("CREATE"))
    assert said["deploy_status_code"] and "KUBEPROXY_OPTIONS: selects ipvs, but the kernel lacks ip_vs_sh" in said["deploy_status_code"], said
    vm.sh(f"cp /root/modules.dep {WITHOUT}; mv /usr/sbin/ipset /root")
    said = result(server, ask)
    assert "ipset is not installed" in str(said["deploy_status_code"]), said
    assert not re.findall(r"(?m)^ip_vs\b", vm.sh("lsmod"))
    vm.sh("mv /root/ipset /usr/sbin")
    said = result(server, ask)
    assert said["deploy_status_code"] == 0, said

    # The agent had the modules loaded before kube-proxy looked for them.
    loaded = {line.split()[0] for line in vm.sh("lsmod").splitlines()}
    assert loaded >= set(MODULES), set(MODULES) - loaded
    assert set(MODULES) <= set(vm.sh("cat /etc/modules-load.d/heat-node-agent.conf").split())
    assert vm.sh("curl -sS http://127.0.0.1:10249/proxyMode") == "ipvs"
    assert vm.sh("curl -sS -o /dev/null -w '%{http_code}' http://127.0.0.1:10249/healthz") == "200"
    assert json.loads(vm.sh("heat-node-agent status --json"))["node"]["state"] == "applied"

    # The API's own service, as the kernel has it and as a client sees it.
    ours, theirs = SERVICE, ADDRESSES["m1"]
    assert wait_for(lambda: servers(vm).get((ours, 443)), WORK, "the service of the API", every=2) == {(theirs, 6443)}
    assert ours in vm.sh("ip -4 -o addr show dev kube-ipvs0")
    proxy = f"{KUBERNETES}/proxy"
    assert vm.sh(f"curl -sS --cacert {KUBERNETES}/ca.crt --cert {proxy}.crt --key {proxy}.key https://{ours}/healthz") == "ok"

    # One more, with two programs behind it: they take turns.
    addresses = (IP, "10.0.2.16")
    vm.sh(f"ip addr add {addresses[1]}/32 dev lo")
    for at in addresses:
        vm.sh(f"mkdir -p /run/web/{at}; echo {at} >/run/web/{at}/index.html; systemd-run -q python3 -m http.server -b {at} -d /run/web/{at} 8081")
    name = {"metadata": {"name": "web"}, "apiVersion": "v1"}
    endpoints = {"kind": "Endpoints", "subsets": [{"addresses": [{"ip": at} for at in addresses], "ports": [{"name": "a", "port": 8081}]}]}
    one = {"kind": "Service", "spec": {"clusterIP": "10.254.0.50", "ports": [{"name": "a", "port": 80, "targetPort": 8081}]}}
    cluster.apply(name | one, name | endpoints)
    behind = {(at, 8081) for at in addresses}
    wait_for(lambda: servers(vm).get(("10.254.0.50", 80)) == behind, WORK, "the new service", every=2)
    # The programs may take a moment to listen.
    answers = vm.sh("for i in 1 2 3 4; do curl -sS --retry 30 --retry-delay 1 --retry-connrefused http://10.254.0.50/; done").split()
    assert sorted(answers) == sorted(2 * addresses), answers
    cluster.kubectl("delete", "service", "web")
    wait_for(lambda: ("10.254.0.50", 80) not in servers(vm), WORK, "the end of the new service", every=2)


def servers(vm) -> dict[tuple[str, int], set[tuple[str, int]]]:
    """The kernel's virtual servers, each with what stands behind it."""
    def address(hexadecimal: str) -> tuple[str, int]:
        ip, port = hexadecimal.split(":")
        return ".".join(str(byte) for byte in bytes.fromhex(ip)), int(port, 16)
    found: dict[tuple[str, int], set[tuple[str, int]]] = {}
    for line in vm.sh("cat /proc/net/ip_vs").splitlines()[3:]:
        words = line.split()
        if words[0] == "->":
            found[last].add(address(words[1]))
        else:
            last = address(words[1])
            found[last] = set()
    return found
