"""What a cluster of Kubernetes' real programs under the agent does: a master, a worker by containerd and a worker by docker."""
import ipaddress
import itertools
import json
import re

import pytest
from lib.common import in_lab, wait_for
from lib.real_kubernetes import ADDRESSES, NET, RealCluster, pod, service

NODES = ("m1", "w1", "w2")
UNITS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy")
# A table of the API: who asks for what, and the status. Whoever shows no certificate and no token is anonymous.
ANONYMOUS = {"/healthz": 200, "/livez": 200, "/readyz": 200, "/version": 200, "/api": 403, "/apis": 403, "/api/v1/nodes": 403,
             "/api/v1/namespaces/kube-system/secrets": 403, "/metrics": 403}
KUBELET_OF_W1 = {"/api/v1/nodes": 200, "/api/v1/nodes/w1": 200, "/api/v1/pods?fieldSelector=spec.nodeName%3Dw1": 200, "/api/v1/services": 200,
                 "/api/v1/secrets": 403, "/api/v1/namespaces/kube-system/secrets": 403, "/apis/rbac.authorization.k8s.io/v1/clusterroles": 403}
PROXY_OF_W1 = {"/api/v1/nodes/w1": 200, "/api/v1/services": 200, "/api/v1/endpoints": 200, "/api/v1/pods": 403, "/api/v1/secrets": 403}
# What the journal of a healthy cluster has of klog's errors, and why: unit, words.
EXPECTED = [
    ("kubelet", r'node "\w+" not found|nodes "\w+" not found'),  # it registers itself a moment later
    ("kubelet", r"skipping pod synchronization"),  # in its first second
    ("kubelet", r"Image garbage collection failed once. Stats initialization may not have completed yet"),  # the same
    ("kubelet", r"Failed to get the info of the filesystem with mountpoint"),  # the same
    ("kubelet", r"while getting AWS credentials"),  # a provider in the program itself, which this is not
    ("kubelet", r"Failed to set rlimit on max file handles|oom.score"),  # the hosts of these tests have no CAP_SYS_RESOURCE
    ("kubelet", r"(ContainerStatus|DeleteContainer|RemoveContainer|[kK]illContainer).*(NotFound|not found|No such container)"),  # a pod that was just deleted
    ("kubelet", r'Failed to watch .*is forbidden: User "system:node:\w+" cannot list'),  # before the node authorizer has heard of the pod
    ("kubelet", r"failed to sync (secret|configmap) cache: timed out waiting for the condition"),  # the same: it tries again half a second later
    ("kubelet", r"(connection refused|TLS handshake timeout|EOF|i/o timeout|context deadline exceeded|Unauthorized|http2: )"),  # workers may be there before the API
    ("kubelet", r"exiting analyzeLines. OOM events will not be reported"),  # the kernel's log is the machine's, and no host's
    ("kubelet", r"Error proxying data from client to backend: .*: broken pipe"),  # who forwarded a port has gone
    ("kube-proxy", r"(connection refused|TLS handshake timeout|EOF|i/o timeout)"),  # as for the kubelet
    ("kube-apiserver", r"invalid bearer token"),  # the test of tokens shows a wrong one
    ("kube-apiserver", r"Error proxying data from (backend to client|client to backend)"),  # who forwarded a port has gone
    ("kube-apiserver", r"Unable to remove old endpoints from kubernetes service: StorageError: key not found"),  # its first start
    ("kube-controller-manager", r"no cloud provider provided"),  # there is none
    ("kube-controller-manager", r"the object has been modified; please apply your changes to the latest version"),  # it tries again
]
# The same until all nodes are Ready, and not a moment longer.
EXPECTED_AT_FIRST = [
    ("kubelet", r'unknown container "/kubepods"|system container "pods" not found in metrics'),  # cAdvisor has not looked yet
    ("kubelet", r"Server rejected event "),  # of workers that are there before the API has its namespaces and roles
    ("kube-proxy", r"Server rejected event |Failed to watch .* is forbidden"),  # the same
]
# Warnings among the events: reason, words.
WARNINGS = [("InvalidDiskCapacity", "invalid capacity 0 on image filesystem"),  # the kubelet's first second
            ("FailedMount", "failed to sync secret cache: timed out")]  # before the node authorizer has heard of the pod
# A port of a pod, by the API server and the kubelet, as long as it takes to ask once.
FORWARD = """
kubectl --kubeconfig /etc/kubernetes/admin.conf port-forward pod/{pod} 18080:8080 >/dev/null &
trap "kill $!" EXIT
curl -sS --retry 60 --retry-delay 1 --retry-connrefused http://127.0.0.1:18080/hostname
"""


@pytest.fixture(scope="module")
def pods(shared) -> dict[str, str]:
    """One that serves its name on each node, and its address."""
    shared.apply(*(pod(f"web-{n}", n, "netexec", "--http-port=8080", labels={"app": "web"}) for n in NODES))
    return {n: shared.address_of(f"web-{n}") for n in NODES}


def asked(cluster: RealCluster, node: str, url: str, *words: str) -> int:
    """Status that curl on a node gets."""
    done = cluster.nodes[node].host.exec("curl", "-sS", "-m", "30", "-o", "/dev/null", "-w", "%{http_code}", *words, url)
    return int(done.stdout)


def statuses(cluster: RealCluster, node: str, base: str, table: dict[str, int], *words: str) -> dict[str, int]:
    return {path: asked(cluster, node, base + path, *words) for path in table}


ASK = "for _ in $(seq {tries}); do curl -sS -m 10 http://{place}/hostname; echo; done"


def answering(cluster: RealCluster, node: str, place: str, tries: int) -> set[str]:
    """The pods that answer a node itself."""
    return set(cluster.nodes[node].host.sh(ASK.format(tries=tries, place=place)).split())


def from_outside(place: str, tries: int = 1) -> set[str]:
    return set(in_lab("bash", "-c", ASK.format(tries=tries, place=place)).stdout.split())


def test_every_node_is_ready_and_has_nothing_to_do(cluster):
    found = {node["metadata"]["name"]: node["status"] for node in cluster.get("nodes")["items"]}
    assert set(found) == set(NODES)
    for name, status in found.items():
        node = cluster.nodes[name]
        info = status["nodeInfo"]
        assert (info["kubeletVersion"], info["kubeProxyVersion"]) == (f"v{cluster.version}",) * 2
        assert info["containerRuntimeVersion"].startswith(f"{node.runtime}://")
        assert {a["type"]: a["address"] for a in status["addresses"]}["InternalIP"] == ADDRESSES[name]
        wait_for(node.is_quiet, NET, f"nothing to do on {name}")


def test_a_master_has_its_role(cluster):
    """Which its own kubelet must not give it; a worker has none."""
    roles = {node["metadata"]["name"]: sorted(label for label in node["metadata"]["labels"] if label.startswith("node-role.kubernetes.io/"))
             for node in cluster.get("nodes")["items"]}
    assert roles == {"m1": ["node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"], "w1": [], "w2": []}


def test_pods_say_and_do_on_every_node_what_they_are_asked(cluster, pods):
    for name, address in pods.items():
        assert ipaddress.IPv4Address(address) in cluster.subnet_of(name), (name, address)
        assert "Started HTTP server on port 8080" in cluster.kubectl("logs", f"web-{name}")
        assert cluster.inside(f"web-{name}", "hostname").strip() == f"web-{name}"
        assert cluster.nodes["m1"].host.sh(FORWARD.format(pod=f"web-{name}")) == f"web-{name}"


def test_pods_reach_each_other_on_every_node(cluster, pods):
    for one, other in itertools.product(NODES, NODES):
        assert cluster.asked_by(pods[one], pods[other], 8080) == {f"web-{other}"}, (one, other)
    for node, other in itertools.product(NODES, NODES):
        assert answering(cluster, node, f"{pods[other]}:8080", tries=1) == {f"web-{other}"}, (node, other)


def test_pods_are_seen_by_their_own_addresses(cluster, pods):
    for one, other in itertools.product(NODES, NODES):
        [client] = cluster.asked_by(pods[one], pods[other], 8080, "clientip")
        assert client.rsplit(":", 1)[0] == pods[one], (one, other, client)


@pytest.fixture(scope="module")
def services(shared, pods) -> dict[str, dict]:
    """One for the pods of all nodes, and one for each alone."""
    shared.apply(service("web", {"app": "web"}, 8080, type="NodePort"), *(service(f"web-{n}", {"name": f"web-{n}"}, 8080) for n in NODES))
    return {s["metadata"]["name"]: s["spec"] for s in shared.get("services")["items"]}


def test_services_lead_to_their_pods_from_everywhere(cluster, pods, services):
    address, node_port = services["web"]["clusterIP"], services["web"]["ports"][0]["nodePort"]
    # Each of the three gets its turn in forty, but for one time in four million.
    names, often = {f"web-{n}" for n in NODES}, 40
    for node in NODES:
        wait_for(lambda n=node: answering(cluster, n, f"{address}:8080", often) == names, NET, f"the service from {node}")
        wait_for(lambda n=node: from_outside(f"{ADDRESSES[n]}:{node_port}", often) == names, NET, f"the node port of {node} from outside")
    for one, other in itertools.permutations(NODES, 2):
        own = services[f"web-{other}"]["clusterIP"]
        wait_for(lambda n=one, s=own, o=other: cluster.asked_by(pods[n], s, 8080) == {f"web-{o}"}, NET, f"the service of {other} from a pod of {one}")
    # The API itself is a service.
    for node in NODES:
        assert asked(cluster, node, f"https://{services['kubernetes']['clusterIP']}/version", "--cacert", "/etc/kubernetes/certs/ca.crt") == 200


@pytest.mark.parametrize("node", NODES)
def test_a_pod_reaches_itself_through_its_service(cluster, pods, services, node):
    own = services[f"web-{node}"]["clusterIP"]
    wait_for(lambda: answering(cluster, node, f"{own}:8080", 1) == {f"web-{node}"}, NET, f"the service of web-{node}")
    assert cluster.asked_by(pods[node], own, 8080) == {f"web-{node}"}


def test_ports_of_the_host_lead_to_the_pod(cluster):
    for name in NODES:
        one = pod(f"port-{name}", name, "netexec", "--http-port=8080")
        one["spec"]["containers"][0]["ports"] = [{"containerPort": 8080, "hostPort": 8099}]
        cluster.apply(one)
    for name in NODES:
        cluster.address_of(f"port-{name}")
        assert from_outside(f"{ADDRESSES[name]}:8099") == {f"port-{name}"}
    cluster.kubectl("delete", "pod", *(f"port-{n}" for n in NODES))


def test_a_service_accounts_token_opens_what_its_role_says(cluster, pods):
    cluster.kubectl("create", "role", "reader", "--verb=get,list", "--resource=pods")
    cluster.kubectl("create", "rolebinding", "reader", "--role=reader", "--serviceaccount=default:default")
    api = f"https://{ADDRESSES['m1']}:6443"
    for name in NODES:
        token = cluster.inside(f"web-{name}", "cat", "/var/run/secrets/kubernetes.io/serviceaccount/token")
        ca = cluster.inside(f"web-{name}", "cat", "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt")
        host = cluster.nodes[name].host
        host.put({"/run/account.crt": (ca.encode(), 0o600), "/run/account.header": (f"Authorization: Bearer {token}".encode(), 0o600)})
        as_account = ("--cacert", "/run/account.crt", "-H", "@/run/account.header")
        table = {"/api/v1/namespaces/default/pods": 200, "/api/v1/namespaces/kube-system/pods": 403, "/api/v1/namespaces/default/secrets": 403,
                 "/api/v1/nodes": 403}
        assert statuses(cluster, name, api, table, *as_account) == table
        host.write("/run/account.header", f"Authorization: Bearer {token[:-9]}AAAAAAAAA", 0o600)
        assert statuses(cluster, name, api, dict.fromkeys(table, 401), *as_account) == dict.fromkeys(table, 401)


def test_who_may_ask_for_what(cluster, pods):
    api, ca = f"https://{ADDRESSES['m1']}:6443", ("--cacert", "/etc/kubernetes/certs/ca.crt")

    def as_(name: str) -> tuple[str, ...]:
        return (*ca, "--cert", f"/etc/kubernetes/certs/{name}.crt", "--key", f"/etc/kubernetes/certs/{name}.key")
    assert statuses(cluster, "w1", api, ANONYMOUS, *ca) == ANONYMOUS
    assert statuses(cluster, "w1", api, KUBELET_OF_W1, *as_("kubelet")) == KUBELET_OF_W1
    assert statuses(cluster, "w1", api, PROXY_OF_W1, *as_("proxy")) == PROXY_OF_W1
    # A kubelet changes its own node and no other's.
    patch = ("-X", "PATCH", "-H", "Content-Type: application/merge-patch+json", "-d", json.dumps({"metadata": {"labels": {"example.org/own": "yes"}}}))
    assert [asked(cluster, "w1", f"{api}/api/v1/nodes/{n}", *as_("kubelet"), *patch) for n in ("w1", "w2")] == [200, 403]
    # Kubelets themselves: nobody without a certificate, and nobody but whom the API server's authorization lets.
    for name in NODES:
        kubelet = f"https://{ADDRESSES[name]}:10250/pods"
        assert asked(cluster, "m1", kubelet, *ca) == 401
        assert asked(cluster, "m1", kubelet, *as_("admin")) == 200
        assert asked(cluster, "w1", kubelet, *as_("kubelet")) == 403
        with pytest.raises(OSError):
            reached(cluster, name, 10255)  # the port in the clear
    # etcd: nobody without a certificate of its own CA.
    for words in (ca, as_("kubelet"), as_("proxy")):
        done = cluster.nodes["w1"].host.exec("curl", "-sk", "-m", "30", *words[2:], f"https://{ADDRESSES['m1']}:2379/health", check=False)
        assert done.returncode != 0, (words, done.stdout)
    # Controller manager and scheduler: not from outside, and on the master itself nobody anonymous.
    for port in (10257, 10259):
        with pytest.raises(OSError):
            reached(cluster, "m1", port)
        assert asked(cluster, "m1", f"https://127.0.0.1:{port}/metrics", "-k") == 403


def reached(cluster: RealCluster, node: str, port: int):
    """OSError where a connection from the lab is not taken."""
    done = in_lab("bash", "-c", f"exec 3<>/dev/tcp/{ADDRESSES[node]}/{port}", check=False, timeout=60)
    if done.returncode:
        raise ConnectionRefusedError(done.stderr)


# Each of its first runs met a line of the real programs that had no reason yet; in the default run once several have passed.
@pytest.mark.longer
def test_components_and_events_say_nothing_bad_without_a_reason(cluster, pods):
    """Of all that happened here so far."""
    bad = []
    for name, node in cluster.nodes.items():
        for unit in UNITS:
            for entry in node.host.journal(f"{unit}.service"):
                text = entry["MESSAGE"] if isinstance(entry.get("MESSAGE"), str) else ""
                is_early = int(entry["__REALTIME_TIMESTAMP"]) / 1e6 < cluster.ready_since
                expected = EXPECTED + EXPECTED_AT_FIRST if is_early else EXPECTED
                if (re.match(r"[EF]\d{4} |panic: ", text) or entry.get("_COMM") == "systemd" and "Failed with result" in text) and not any(
                        unit == u and re.search(words, text) for u, words in expected):
                    bad.append(f"{name} {unit}: {text}")
    for event in cluster.get("events", "--all-namespaces", "--field-selector=type=Warning")["items"]:
        if not any(event["reason"] == reason and words in event["message"] for reason, words in WARNINGS):
            bad.append(f"event {event['reason']} of {event['involvedObject']}: {event['message']}")
    assert not bad, "\n".join(bad)
