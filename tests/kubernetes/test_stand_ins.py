"""The stand-ins refuse what the real programs refuse. Each rule: what is good, and the one word that makes it bad.

Nothing here needs a host. etcd is the real one, from PATH or from the root that hosts are made of."""
import http.client
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import time

import pytest
from lib import flanneld
from lib.common import TESTS, run, wait_for
from lib.stand_ins import Running, accepts, free_port, get, install, kubeconfig, refusal, tables
from lib.strictness import CONFIGURATIONS, ETCD, PROXY, RULES, SERVICES, apiserver, command_line, configuration, usual

MINORS = range(tables.FIRST, tables.LAST + 1)
# --- flags ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("component", tables.COMPONENTS)
def test_every_minor_takes_what_its_own_lists_have(component):
    columns, rows = tables.table(component)
    seen = 0
    for at, column in enumerate(columns):
        minor = int(re.match(r"1\.(\d+)", column)[1])
        # What is noted against a list is in the tests of removals below.
        against = {flag for program, flag, since in tables.GONE if program == component and minor >= since}
        against |= tables.FORK | (tables.EARLY if column == "1.2.0" else set())
        if (component, minor) in tables.NO_PAGE:
            continue
        own = {tables.normal(f) for f, marks in rows.items() if marks[at] == "x"} - against
        known = tables.flags(component, f"1.{minor}.0")
        assert not own - known, f"{component} {column}"
        seen += len(own)
    assert seen > 1000


# The last minor that has it, for the removals that the flag history names; in the next it is refused.
REMOVED = [("kubelet", flag, last) for flag, last in {
    "api-servers": 7, "require-kubeconfig": 9, "cadvisor-port": 11, "allow-privileged": 14, "register-schedulable": 33,
    "pod-infra-container-image": 34, "container-runtime": 26, "network-plugin": 23, "cni-conf-dir": 23, "cni-bin-dir": 23,
    "docker-endpoint": 23, "network-plugin-dir": 8, "configure-cbr0": 4, "cloud-config": 33, "dynamic-config-dir": 23, "logtostderr": 25,
    "keep-terminated-pod-volumes": 30}.items()]
REMOVED += [("kube-apiserver", flag, last) for flag, last in {
    "insecure-bind-address": 23, "insecure-port": 23, "portal-net": 8, "etcd-quorum-read": 12, "tls-ca-file": 10, "cloud-provider": 32,
    "cloud-config": 32, "basic-auth-file": 18, "master-service-namespace": 26, "logtostderr": 25, "repair-malformed-updates": 13,
    "experimental-keystone-url": 9}.items()]
REMOVED += [("kube-controller-manager", flag, last) for flag, last in {
    "port": 23, "address": 23, "pod-eviction-timeout": 26, "enable-taint-manager": 26, "experimental-cluster-signing-duration": 24}.items()]
REMOVED += [("kube-scheduler", flag, last) for flag, last in {"algorithm-provider": 21, "port": 23, "lock-object-name": 27}.items()]
REMOVED += [("kube-proxy", flag, last) for flag, last in {"cleanup-iptables": 13, "resource-container": 15, "conntrack-max": 15}.items()]


@pytest.mark.parametrize("component, flag, last", REMOVED)
def test_a_flag_ends_with_its_last_minor(component, flag, last):
    assert flag in tables.flags(component, f"1.{last}.0")
    assert flag not in tables.flags(component, f"1.{last + 1}.0")
    assert f"unknown flag: --{flag}" in refusal(component, f"1.{last + 1}.0", f"--{flag}=x")


@pytest.mark.parametrize("component, flag, first", [
    ("kubelet", "pod-manifest-path", 4), ("kubelet", "register-with-taints", 6), ("kubelet", "fail-swap-on", 8),
    ("kubelet", "cgroup-driver", 5),
    ("kubelet", "bootstrap-kubeconfig", 7), ("kube-apiserver", "enable-admission-plugins", 10), ("kube-apiserver", "etcd-cafile", 3),
    ("kube-apiserver", "kubelet-preferred-address-types", 5), ("kube-apiserver", "proxy-client-cert-file", 7),
    ("kube-controller-manager", "authentication-kubeconfig", 12), ("kube-scheduler", "config", 9), ("kube-proxy", "config", 7),
    ("kube-proxy", "metrics-bind-address", 8), ("kube-proxy", "cluster-cidr", 3)])
def test_a_flag_begins_with_its_first_minor(component, flag, first):
    assert flag in tables.flags(component, f"1.{first}.0")
    assert f"unknown flag: --{flag}" in refusal(component, f"1.{first - 1}.0", f"--{flag}=x")


def test_the_kubelet_says_config_of_two_things_and_nothing_between(pki):
    assert accepts("kubelet", "1.5.0", f"--config={pki['empty']}")
    assert "unknown flag" in refusal("kubelet", "1.8.0", f"--config={pki['empty']}")
    assert refusal("kubelet", "1.10.0", f"--config={pki['empty']}")


def test_flags_of_a_fork_are_the_fork_s():
    assert accepts("kubelet", "1.2.0-hyper", "--network-provider=127.0.0.1:4237")
    assert "unknown flag" in refusal("kubelet", "1.2.0", "--network-provider=127.0.0.1:4237")


@pytest.mark.parametrize("words, name, value", [
    (["--cluster_dns=10.254.0.10"], "cluster-dns", "10.254.0.10"), (["--cluster-dns", "10.254.0.10"], "cluster-dns", "10.254.0.10"),
    (["-v", "3"], "v", "3"), (["-v=3"], "v", "3"), (["--register-node"], "register-node", "true"),
    (["--register-node=0", "--v=2"], "register-node", "0"), (["--port=1", "--port=2"], "port", "2")])
def test_how_words_are_read(words, name, value):
    assert accepts("kubelet", "1.20.0", *words).flags.get(name) == value


@pytest.mark.parametrize("version, words, status, text", [
    ("1.2.0", ["--nonsense"], 2, "unknown flag: --nonsense"), ("1.12.0", ["--nonsense"], 255, "unknown flag: --nonsense"),
    ("1.28.0", ["--nonsense"], 1, "failed to parse kubelet flag: unknown flag: --nonsense"),
    ("1.28.0", ["--port"], 1, "flag needs an argument: --port"), ("1.28.0", ["--register-node", "false"], 1, "unknown command"),
    ("1.28.0", ["--node-labels=a=b", "c"], 1, "unknown command"), ("1.28.0", ["-x"], 1, "unknown shorthand flag"),
    ("1.28.0", ["--="], 1, "bad flag syntax"), ("1.28.0", ["--"], 1, "unknown command")])
def test_how_mistakes_are_said(tmp_path, version, words, status, text):
    programs = install(tmp_path, version)
    done = subprocess.run([programs / "kubelet", *words], capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout) == (status, "") and text in done.stderr


def test_versions_are_printed_as_the_real_ones_print_them(tmp_path):
    programs = install(tmp_path, "v1.28.9", "flanneld=0.17.0")
    said = [subprocess.run([programs / name, "--version"], capture_output=True, text=True, timeout=300, check=True)
            for name in ("kubelet", "flanneld")]
    assert [(s.stdout, s.stderr) for s in said] == [("Kubernetes v1.28.9\n", ""), ("", "0.17.0\n")]


@pytest.mark.parametrize("component, minor, good, bad, says", RULES)
def test_rules(pki, component, minor, good, bad, says):
    version = f"1.{minor}.0"
    assert refusal(component, version, *command_line(pki, component, minor, good)) == ""
    if bad is not None and says is not None:
        answer = refusal(component, version, *command_line(pki, component, minor, bad, replaces=True))
        assert says in answer, answer


@pytest.mark.parametrize("component, minor, words, says", [
    ("kube-apiserver", 2, [SERVICES], "--etcd-servers"), ("kube-apiserver", 2, [ETCD], "--service-cluster-ip-range"),
    ("kube-apiserver", 20, [ETCD, SERVICES], "service-account-issuer"), ("kube-controller-manager", 2, [], "no configuration"),
    ("kube-scheduler", 28, [], "no configuration"), ("kube-proxy", 28, [], "no configuration"),
    ("kube-controller-manager", 20, ["--master=http://127.0.0.1:8080"], "without --kubeconfig")])
def test_what_is_needed(component, minor, words, says):
    assert says in refusal(component, f"1.{minor}.0", *words)


# --- configuration files --------------------------------------------------------------------------
@pytest.mark.parametrize("component, minor, good, bad, says", CONFIGURATIONS)
def test_configuration_files(pki, tmp_path, component, minor, good, bad, says):
    def judged(document: dict) -> str:
        path = tmp_path / "config"
        path.write_text(configuration(pki, component, document))
        return refusal(component, f"1.{minor}.0", f"--config={path}")
    assert judged(good) == ""
    assert says in judged(bad)


def test_a_key_twice_is_refused(tmp_path):
    (tmp_path / "config").write_text("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nmaxPods: 1\nmaxPods: 2\n")
    assert "already set" in refusal("kubelet", "1.28.0", f"--config={tmp_path}/config")


def test_flags_beside_kube_proxy_s_file(pki, tmp_path):
    (tmp_path / "config").write_text(json.dumps({**PROXY, "clientConnection": {"kubeconfig": pki["http"]}}))
    words = [f"--config={tmp_path}/config", "--hostname-override=node-1"]
    assert refusal("kube-proxy", "1.20.0", *words) == ""
    assert "ignored" in refusal("kube-proxy", "1.13.0", *words)
    assert "--cluster-cidr" in refusal("kube-proxy", "1.20.0", *words, "--cluster-cidr=10.0.0.0/16")


# Magnum 2.x's file, which a real 1.2 takes, and what that one refuses.
CLOUD = "[Global]\nauth-url=http://192.0.2.1:5000/v2\nUsername=u\nPassword=\"p;#\"\ntenant-name=t\n" \
        "[LoadBalancer]\nsubnet-id=s\ncreate-monitor=yes\nmonitor-delay=1m\nmonitor-timeout=30s\nmonitor-max-retries=3\n"


@pytest.mark.parametrize("minor, more, says", [
    (2, "", ""), (2, "use-octavia=true\n", 'invalid variable: section "LoadBalancer"'),
    (2, "[Global]\ntrust-id=x\n", 'variable "trust-id"'),
    (5, "[Global]\ntrust-id=x\n", ""), (9, "use-octavia=true\n", ""), (20, "[Networking]\nx=y\n", "invalid section"),
    (20, "nonsense\n", 'variable "nonsense"'),
    (20, 'lb-provider="octavia\n', "string not terminated"), (20, "lb-provider=a\\b\n", "unknown escape")])
def test_the_cloud_s_file_is_read_strictly(pki, tmp_path, minor, more, says):
    (tmp_path / "cloud").write_text(CLOUD + more)
    answer = refusal("kube-controller-manager", f"1.{minor}.0", f"--kubeconfig={pki['config']}", "--cloud-provider=openstack",
                   f"--cloud-config={tmp_path}/cloud")
    assert says in answer if says else answer == ""


# --- where they serve -----------------------------------------------------------------------------
@pytest.mark.parametrize("component, minor, words, ports", [
    ("kube-apiserver", 2, [], ["127.0.0.1:8080", "0.0.0.0:6443 tls"]), ("kube-apiserver", 19, ["--insecure-port=0"], ["0.0.0.0:6443 tls"]),
    ("kube-apiserver", 20, [], ["0.0.0.0:6443 tls"]), ("kube-controller-manager", 2, [], ["0.0.0.0:10252"]),
    ("kube-controller-manager", 13, [], ["127.0.0.1:10252", "0.0.0.0:10257 tls"]),
    ("kube-controller-manager", 13, ["--port=0"], ["0.0.0.0:10257 tls"]),
    ("kube-controller-manager", 24, ["--bind-address=127.0.0.1"], ["127.0.0.1:10257 tls"]),
    ("kube-controller-manager", 24, ["--secure-port=0"], []),
    ("kube-scheduler", 2, [], ["0.0.0.0:10251"]), ("kube-scheduler", 24, [], ["0.0.0.0:10259 tls"]),
    ("kubelet", 2, [], ["127.0.0.1:10248", "0.0.0.0:10250 tls", "0.0.0.0:10255", "0.0.0.0:4194"]),
    ("kubelet", 20, ["--read-only-port=0", "--address=192.0.2.1"], ["127.0.0.1:10248", "192.0.2.1:10250 tls"]),
    ("kube-proxy", 2, [], ["127.0.0.1:10249"]), ("kube-proxy", 20, [], ["127.0.0.1:10249", "0.0.0.0:10256"]),
    ("kube-proxy", 20, ["--metrics-bind-address=0.0.0.0"], ["0.0.0.0:10249", "0.0.0.0:10256"])])
def test_ports(pki, component, minor, words, ports):
    program = accepts(component, f"1.{minor}.0", *usual(pki, component, minor), *words)
    assert [f"{p.address}:{p.number}{' tls' if p.tls else ''}" for p in program.ports] == ports


@pytest.fixture
def notified(tmp_path):
    """A socket as systemd's; its path and what came."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
        s.bind(str(tmp_path / "notify"))
        s.settimeout(300)
        yield s


def patches_of_its_status(url: str, pki: dict):
    """Conditions are merged by their type by the one kind of patch that does so, and only the node itself may."""
    strategic, merge = (f"application/{kind}merge-patch+json" for kind in ("strategic-", ""))
    path = "/api/v1/nodes/node-1"

    def patch(*conditions: dict, kind: str = strategic, who: str = "node", name: str = path, **more) -> tuple[int, str]:
        return get(url, f"{name}/status", pki, who, "PATCH", json.dumps({"status": {"conditions": conditions}, **more}), kind)

    def types() -> list[str]:
        return sorted(c["type"] for c in json.loads(get(url, path, pki, "node")[1])["status"]["conditions"])
    own = {"type": "Own", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    assert (patch(own, metadata={"labels": {"own": "yes"}})[0], types()) == (200, ["Own", "Ready"])
    assert "own" not in json.loads(get(url, path, pki, "node")[1])["metadata"]["labels"]
    time.sleep(6)  # the kubelet's own next patch
    assert types() == ["Own", "Ready"]
    assert (patch({**own, "status": "False"})[0], types()) == (200, ["Own", "Ready"])
    for code, said in ((415, patch(own, kind="application/json")), (422, patch({**own, "status": "yes"})), (403, patch(own, who="manager")),
                       (422, patch({**own, "lastTransitionTime": "today"})), (403, patch(own, name="/api/v1/nodes/node-2"))):
        assert said[0] == code and json.loads(said[1])["kind"] == "Status", said
    assert (patch({"type": "Own", "$patch": "delete"})[0], types()) == (200, ["Ready"])
    # RFC 7396 knows no keys: the whole list is replaced.
    # The kubelet's next patch, which may come in between, puts its own back.
    wait_for(lambda: (patch(own, kind=merge)[0], types()) == (200, ["Own"]), 300, "a list of one condition")


def test_a_cluster_of_them(pki, tmp_path, etcd, running, notified):
    programs = install(tmp_path / "bin", "1.28.9")
    port, kubelet_port, healthz, manager_port = (free_port() for _ in range(4))
    url = f"https://127.0.0.1:{port}"
    words = [*apiserver(pki, 28), f"--etcd-servers={etcd}", f"--secure-port={port}", "--bind-address=127.0.0.1",
             f"--tls-cert-file={pki['server']}",
             f"--tls-private-key-file={pki['serverkey']}", f"--client-ca-file={pki['ca']}", "--authorization-mode=Node,RBAC"]
    api = running(programs, "kube-apiserver", *words, notify=tmp_path / "notify")
    assert notified.recv(100) == b"READY=1"
    for path in ("/healthz", "/livez", "/readyz"):
        assert get(url, path, pki) == (200, "ok")
    assert json.loads(get(url, "/version", pki)[1])["gitVersion"] == "v1.28.9"
    assert get(url, "/api/v1/nodes", pki)[0] == 403

    (tmp_path / "kubeconfig").write_text(json.dumps(kubeconfig(pki, server=url)))
    kubelet = running(programs, "kubelet", f"--kubeconfig={tmp_path}/kubeconfig", "--hostname-override=node-1", "--node-ip=192.0.2.5",
                      "--read-only-port=0",
                      "--node-labels=magnum.openstack.org/role=worker", "--register-with-taints=a=b:NoSchedule", "--address=127.0.0.1",
                      f"--port={kubelet_port}", f"--healthz-port={healthz}", f"--client-ca-file={pki['ca']}",
                      f"--tls-cert-file={pki['server']}",
                      f"--tls-private-key-file={pki['serverkey']}", "--anonymous-auth=false", notify=tmp_path / "notify")
    assert notified.recv(100) == b"READY=1"
    wait_for(lambda: "registered node node-1" in kubelet.said(), 300, "registration")
    node = json.loads(get(url, "/api/v1/nodes/node-1", pki, "node")[1])
    assert node["metadata"]["labels"]["magnum.openstack.org/role"] == "worker"
    assert node["spec"]["taints"] == [{"key": "a", "value": "b", "effect": "NoSchedule"}]
    assert node["status"]["addresses"][0] == {"type": "InternalIP", "address": "192.0.2.5"}
    assert get(f"http://127.0.0.1:{healthz}", "/healthz") == (200, "ok")
    assert get(f"https://127.0.0.1:{kubelet_port}", "/healthz", pki)[0] == 401
    assert get(f"https://127.0.0.1:{kubelet_port}", "/healthz", pki, "node") == (200, "ok")
    # A node writes only itself, and others only read.
    other = json.dumps({"metadata": {"name": "node-2"}})
    assert get(url, "/api/v1/nodes", pki, "node", "POST", other)[0] == 403
    assert [get(url, "/api/v1/nodes", pki, "manager", method, other)[0] for method in ("GET", "POST")] == [200, 403]

    patches_of_its_status(url, pki)

    (tmp_path / "manager").write_text(json.dumps(kubeconfig(pki, server=url,
                                                            user={"client-certificate": pki["manager"], "client-key": pki["managerkey"]})))
    manager = running(programs, "kube-controller-manager", f"--kubeconfig={tmp_path}/manager", f"--secure-port={manager_port}",
                      "--bind-address=127.0.0.1",
                      f"--tls-cert-file={pki['server']}", f"--tls-private-key-file={pki['serverkey']}")
    wait_for(lambda: get(f"https://127.0.0.1:{manager_port}", "/healthz", pki) == (200, "ok"), 300, "kube-controller-manager")

    # Unhealthy, then dead, when asked to; and again dead as long as the order lies there.
    (tmp_path / "kube-apiserver").write_text("unhealthy")
    assert get(url, "/readyz", pki)[0] == 500
    (tmp_path / "kube-apiserver").write_text("die 7")
    assert api.wait() == 7
    assert running(programs, "kube-apiserver", *words).wait() == 7
    (tmp_path / "kube-apiserver").unlink()
    kubelet.process.send_signal(signal.SIGUSR1)
    assert kubelet.wait() == 1
    assert manager.end() == 0


def test_an_api_with_watches_open_stops_late(pki, tmp_path, etcd, running, notified):
    """As the real one: 60 s, and at once at a second SIGTERM."""
    programs = install(tmp_path / "bin", "1.28.9")
    port, healthz = free_port(), free_port()
    url = f"https://127.0.0.1:{port}"
    api = running(programs, "kube-apiserver", *apiserver(pki, 28), f"--etcd-servers={etcd}", f"--secure-port={port}", "--bind-address=127.0.0.1",
                  f"--tls-cert-file={pki['server']}", f"--tls-private-key-file={pki['serverkey']}", f"--client-ca-file={pki['ca']}",
                  "--authorization-mode=Node,RBAC", notify=tmp_path / "notify")
    assert notified.recv(100) == b"READY=1"
    (tmp_path / "kubeconfig").write_text(json.dumps(kubeconfig(pki, server=url)))
    kubelet = running(programs, "kubelet", f"--kubeconfig={tmp_path}/kubeconfig", "--hostname-override=node-1", "--read-only-port=0", f"--port={free_port()}",
                      f"--healthz-port={healthz}", "--address=127.0.0.1", f"--client-ca-file={pki['ca']}", f"--tls-cert-file={pki['server']}",
                      f"--tls-private-key-file={pki['serverkey']}", "--anonymous-auth=false")
    wait_for(lambda: "registered node node-1" in kubelet.said(), 300, "registration")
    api.process.send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        api.wait(3)
    # Of two that come before it looks it sees one.
    wait_for(lambda: api.process.poll() is not None or api.process.send_signal(signal.SIGTERM), 300, "its end")
    assert api.wait() == 1


def test_a_node_is_ready_once_its_network_is_described(tmp_path):
    from stand_in import serve
    (tmp_path / "net.d").mkdir()
    shim = ("kubelet", "1.20.2", "--network-plugin=cni", f"--cni-conf-dir={tmp_path}/net.d")
    ready = lambda *words: serve.status(accepts(*words))["conditions"][0]  # noqa: E731
    assert ready("kubelet", "1.20.2")["status"] == "True", "docker's own bridge"
    assert ready(*shim)["status"] == "False" and "cni config uninitialized" in ready(*shim)["message"]
    (tmp_path / "net.d/10-x.conflist").write_text("{}")
    assert ready(*shim)["status"] == "True"


def test_an_api_without_etcd_is_not_ready(pki, tmp_path, running):
    programs = install(tmp_path / "bin", "1.2.0")
    port, insecure = free_port(), free_port()
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        deaf.settimeout(300)
        api = running(programs, "kube-apiserver", f"--etcd-servers=http://127.0.0.1:{deaf.getsockname()[1]}", SERVICES, f"--secure-port={port}",
                      f"--insecure-port={insecure}")
        for _ in range(2):  # that it asks again shows that it goes on
            deaf.accept()[0].close()
        with pytest.raises(ConnectionRefusedError):
            get(f"http://127.0.0.1:{insecure}", "/healthz")
        assert "serves" not in api.said()


def test_a_seed_s_master(tmp_path, etcd, running):
    """1.2: no credentials on 8080, 401 with TLS; the controller manager finds it by --master, and ends if nobody is there."""
    programs = install(tmp_path / "bin", "1.2.0")
    insecure, secure, health, nobody = (free_port() for _ in range(4))
    running(programs, "kube-apiserver", f"--etcd_servers={etcd}", SERVICES, f"--insecure-port={insecure}", f"--secure-port={secure}",
            "--bind_address=127.0.0.1")
    wait_for(lambda: get(f"http://127.0.0.1:{insecure}", "/healthz") == (200, "ok"), 300, "kube-apiserver")
    context = ssl._create_unverified_context()
    connection = http.client.HTTPSConnection("127.0.0.1", secure, context=context, timeout=60)
    connection.request("GET", "/healthz")
    assert connection.getresponse().status == 401
    connection.close()
    running(programs, "kube-controller-manager", f"--master=http://127.0.0.1:{insecure}", f"--port={health}", "--address=127.0.0.1")
    wait_for(lambda: get(f"http://127.0.0.1:{health}", "/healthz") == (200, "ok"), 300, "kube-controller-manager")
    assert get(f"http://127.0.0.1:{insecure}", "/livez")[0] == 404


# --- flanneld -------------------------------------------------------------------------------------
@pytest.mark.parametrize("version, good, bad, says", [
    ("0.5.0", "-networks=a", "-kube-subnet-mgr", "not defined: -kube-subnet-mgr"),
    ("0.7.1", "-kube-subnet-mgr=false", "-iface-regex=x", "not defined"),
    ("0.9.1", "-iface-regex=x", "-listen=x", "not defined"), ("0.14.0", "-net-config-path=/x", "-public-ipv6=x", "not defined"),
    ("0.17.0", "-public-ipv6=::1", "-iface-can-reach=x", "not defined"), ("0.20.2", "-iface-can-reach=x", "-etcd_prefix=/x", "not defined"),
    ("0.20.2", "--ip-masq --etcd-prefix /x", "stray", "stray"), ("0.20.2", "-ip-masq", "-ip-masq=ja", "ParseBool"),
    ("0.20.2", "-etcd-endpoints=http://a:2379", "-etcd-endpoints=a:2379", "bad -etcd-endpoints"),
    ("0.20.2", "-etcd-certfile={server} -etcd-keyfile={serverkey}", "-etcd-certfile={server}", "go together"),
    ("0.20.2", "-etcd-certfile={server} -etcd-keyfile={serverkey}", "-etcd-certfile={server} -etcd-keyfile={otherkey}", "does not match"),
    ("0.20.2", "-etcd-cafile={ca}", "-etcd-cafile=/nowhere", "no such file"),
    ("0.20.2", "-kube-subnet-mgr -net-config-path={dir}/net", "-kube-subnet-mgr -net-config-path=/nowhere", "no such file")])
def test_flanneld_s_flags(pki, version, good, bad, says):
    with open(f"{pki['dir']}/net", "w") as file:
        file.write('{"Network": "10.100.0.0/16", "Backend": {"Type": "vxlan"}}')
    assert refusal("flanneld", version, *good.format(**pki).split()) == ""
    assert says in refusal("flanneld", version, *bad.format(**pki).split())


def test_flanneld_takes_flags_from_its_environment():
    assert accepts("flanneld", "0.20.2", environment={"FLANNELD_ETCD_PREFIX": "/x"}).flags.get("etcd-prefix") == "/x"
    assert accepts("flanneld", "0.20.2", "-etcd-prefix=/y", environment={"FLANNELD_ETCD_PREFIX": "/x"}).flags.get("etcd-prefix") == "/y"


@pytest.mark.parametrize("version, document, says", [
    ("0.9.1", {"Network": "10.1.0.0/16", "Subnetlen": 24}, "24 udp"), ("0.9.1", {"Network": "10.1.2.0/24"}, "25 udp"),
    ("0.10.0", {"Network": "10.1.2.0/24"}, "26 udp"),
    ("0.20.2", {"Network": "10.1.0.0/16", "Backend": {"Type": "host-gw"}}, "24 host-gw"),
    ("0.9.1", {"Network": "10.1.0.0/16", "SubnetLen": 17}, "17 udp"),
    ("0.10.0", {"Network": "10.1.0.0/16", "SubnetLen": 17}, "at least four"), ("0.10.0", {"Network": "10.1.0.0/29"}, "at most /28"),
    ("0.10.0", {"Network": "10.1.0.0/16", "SubnetLen": 31}, "at most 30"),
    ("0.9.1", {"Network": "10.1.0.0/16", "SubnetLen": 8}, "larger than"),
    ("0.10.0", {"Network": "10.1.0.0/16", "SubnetMin": "10.1.5.1"}, "boundary"),
    ("0.20.2", {"Network": "10.1.0.0/16", "SubnetMin": "10.2.0.0"}, "is not in"),
    ("0.20.2", {"SubnetLen": 24}, "bad configuration"), ("0.20.2", {"Network": "10.1.0.0/16", "Backend": {"Type": "magic"}},
                                                         "unknown backend type"),
    ("0.9.1", {"Network": "10.1.0.0/16", "Backend": {"Type": "wireguard"}}, "unknown backend type"),
    ("0.20.2", {"Network": "10.1.0.0/16", "SubnetLen": "24"}, "cannot unmarshal")])
def test_flanneld_reads_the_network(version, document, says):
    from stand_in import flannel
    try:
        network = flannel.parse(json.dumps(document), tables.flannel_version(version))
        answer = f"{network.length} {network.backend}"
    except (flannel.NotYet, Exception) as error:
        answer = str(error)
    assert says in answer, answer


@pytest.mark.parametrize("version, v3", [("0.17.0", False), ("0.20.2", True)])
def test_flanneld_takes_a_lease(tmp_path, etcd, running, notified, version, v3):
    programs = install(tmp_path / "bin", f"flanneld={version}")

    def start(name: str, **more) -> Running:
        return running(programs, "flanneld", f"-etcd-endpoints={etcd}", "-iface=127.0.0.1", f"-public-ip=192.0.2.{name}",
                       f"-subnet-file={tmp_path}/{name}.env", "-ip-masq", **more)
    first = start("1", notify=tmp_path / "notify")
    # The configuration under the other API is not seen: no answer, no READY, and it goes on asking.
    put(etcd, "/coreos.com/network/config", json.dumps({"Network": "10.100.0.0/16", "SubnetLen": 24, "Backend": {"Type": "host-gw"}}),
        v3=not v3)
    wait_for(lambda: "config not found" in first.said(), 300, "its complaint")
    assert not (tmp_path / "1.env").exists() and first.process.poll() is None
    put(etcd, "/coreos.com/network/config", json.dumps({"Network": "10.100.0.0/16", "SubnetLen": 24, "Backend": {"Type": "host-gw"}}),
        v3=v3)
    assert notified.recv(100) == b"READY=1"
    network, subnet, *more = (tmp_path / "1.env").read_text().split()
    assert (network, more) == ("FLANNEL_NETWORK=10.100.0.0/16", ["FLANNEL_MTU=65536", "FLANNEL_IPMASQ=true"])
    assert re.fullmatch(r"FLANNEL_SUBNET=10\.100\.[1-9]\d*\.1/24", subnet)
    second = start("2")
    wait_for((tmp_path / "2.env").exists, 300, "the second one's lease")
    own = (tmp_path / "2.env").read_text()
    assert subnet not in own
    # It keeps its lease over a restart, stays after SIGTERM, and ends when the lease is gone.
    assert second.end() == 0 and (tmp_path / "2.env").exists()
    (tmp_path / "2.env").unlink()
    second = start("2")
    wait_for((tmp_path / "2.env").exists, 300, "the second one's lease again")
    assert (tmp_path / "2.env").read_text() == own
    lease = re.search(r"FLANNEL_SUBNET=(\S+)\.1/24", own)[1] + ".0-24"
    if v3:
        remove = get(etcd, "/v3/kv/deleterange", method="POST",
                     body=json.dumps({"key": base64_of(f"/coreos.com/network/subnets/{lease}")}))
    else:
        remove = get(etcd, f"/v2/keys/coreos.com/network/subnets/{lease}", method="DELETE")
    assert remove[0] == 200
    assert second.wait() == 0 and first.process.poll() is None


def test_flanneld_ends_at_an_unknown_backend(tmp_path, etcd, running):
    put(etcd, "/coreos.com/network/config", '{"Network": "10.100.0.0/16", "Backend": {"Type": "magic"}}', v3=True)
    programs = install(tmp_path / "bin", "flanneld=0.20.2")
    assert running(programs, "flanneld", f"-etcd-endpoints={etcd}", "-iface=lo", f"-subnet-file={tmp_path}/env").wait() == 1


@pytest.mark.parametrize("text, mode, status, says", [
    ("echo v0.26.1 >&2", 0o755, 0, "0.26.1"), ("echo 0.9.0", 0o755, 0, "0.9.0"), ("echo v0.26.1", 0o644, 64, "it is not executable"),
    ("echo Kubernetes v1.20.2", 0o755, 64, "does not say a version as flanneld does: Kubernetes v1.20.2"),
    ("echo flag provided but not defined; exit 2", 0o755, 64, "`--version` failed: flag provided"), (None, 0, 64, "there is no such file")])
def test_a_flanneld_that_is_given_is_one(tmp_path, text, mode, status, says):
    program = tmp_path / "program"
    if text:
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(mode)
    for reader in ("lib/flanneld.sh", "real-kubernetes/up.sh check"):
        done = run("bash", "-c", f"{TESTS}/{reader}", env={"HNA_FLANNELD": str(program), "HNA_KUBERNETES": ""}, check=False)
        assert done.returncode == status and len((done.stdout + done.stderr).splitlines()) <= 1, done
        assert says in done.stdout + done.stderr or (status == 0 and reader != "lib/flanneld.sh"), done


@pytest.mark.parametrize("given, wanted, taken", [(None, "0.20.2", "0.20.2"), ("0.26.1", "0.20.2", "0.26.1"), ("0.26.1", "0.9.0", "0.9.0"),
                                                  ("0.17.0", "0.9.0", "0.17.0"), ("0.17.0", "0.20.2", "0.20.2"), ("0.26.1", "", "")])
def test_a_flanneld_that_is_given_is_taken_for_one_of_the_same_api(monkeypatch, given, wanted, taken):
    monkeypatch.setattr(flanneld, "given", lambda: given and flanneld.Program(TESTS, given))
    assert flanneld.version_like(wanted) == taken


# In a network namespace of its own, whose one node is 192.0.2.1/24 on d0; a foreign route to 10.1.2.0/24 is there.
LEASES = """
import sys
from ipaddress import IPv4Network
from stand_in.backends import Lease, backend, call, route
for words in ("link add d0 type veth peer name d1", "address add 192.0.2.1/24 dev d0", "link set d0 up", "link set d1 up",
              "route add 10.1.2.0/24 via 192.0.2.9"):
    assert not call("ip", *words.split()), words
kind, version = sys.argv[1], tuple(map(int, sys.argv[2].split(".")))
one = backend(kind, version, "d0", "192.0.2.1", {})
own, near, far = (Lease(IPv4Network(subnet), address, kind, hardware) for subnet, address, hardware in (
    ("10.1.1.0/24", "192.0.2.1", "02:00:c0:00:02:01"), ("10.1.2.0/24", "192.0.2.2", "02:00:c0:00:02:02"),
    ("10.1.3.0/24", "198.51.100.2", "02:00:c6:33:64:02")))
one.start(own, IPv4Network("10.1.0.0/16"), 1450)
def say(): print("; ".join(route(lease.subnet) for lease in (near, far)))
one.added(near); one.added(far); say()
for lease in (near, far): call("ip", "route", "del", lease.subnet)
one.look(); say()
one.removed(near); say()
"""


@pytest.mark.parametrize("kind, version, after", [
    # A foreign route, and a peer of another segment; both routes deleted by hand and ten seconds on; one lease removed.
    ("host-gw", "0.5.6", ["via 192.0.2.9 dev d0; ", "; ", "; "]),
    ("host-gw", "0.7.1", ["via 192.0.2.2 dev d0; ", "via 192.0.2.2 dev d0; ", "; "]),
    ("host-gw", "0.20.2", ["via 192.0.2.2 dev d0; ", "via 192.0.2.2 dev d0; ", "; "]),
    ("vxlan", "0.20.2", ["via 10.1.2.0 dev flannel.1; via 10.1.3.0 dev flannel.1", "; ", "; "]),
    ("alloc", "0.20.2", ["via 192.0.2.9 dev d0; ", "; ", "; "])])
def test_flanneld_s_routes(kind, version, after):
    done = subprocess.run(["unshare", "-n", "/usr/bin/python3", "-B", "-c", LEASES, kind, version], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": str(TESTS / "stand-ins")})
    assert done.stdout.splitlines() == after, done.stderr
    assert ("network is unreachable" in done.stderr) == (kind == "host-gw")


def base64_of(text: str) -> str:
    import base64
    return base64.b64encode(text.encode()).decode()


def put(etcd: str, key: str, value: str, v3: bool):
    if v3:
        done = get(etcd, "/v3/kv/put", method="POST", body=json.dumps({"key": base64_of(key), "value": base64_of(value)}))
    else:
        from urllib.parse import urlencode
        host = etcd.split("//")[1]
        connection = http.client.HTTPConnection(host, timeout=60)
        connection.request("PUT", f"/v2/keys{key}", urlencode({"value": value}), {"Content-Type": "application/x-www-form-urlencoded"})
        done = connection.getresponse().status, ""
        connection.close()
    assert done[0] in (200, 201)
