"""What a cluster of Kubernetes' real programs under the agent does: a master, a worker by containerd and a worker by docker."""
import itertools
import json

import pytest
from lib.common import in_lab, wait_for
from lib.real_kubernetes import ADDRESSES, NET, SUBNETS, RealCluster, pod, service

NODES = ("m1", "w1", "w2")
# A table of the API: who asks for what, and the status. Whoever shows no certificate and no token is anonymous.
ANONYMOUS = {"/healthz": 200, "/livez": 200, "/readyz": 200, "/version": 200, "/api": 403, "/apis": 403, "/api/v1/nodes": 403,
             "/api/v1/namespaces/kube-system/secrets": 403, "/metrics": 403}
KUBELET_OF_W1 = {"/api/v1/nodes": 200, "/api/v1/nodes/w1": 200, "/api/v1/pods?fieldSelector=spec.nodeName%3Dw1": 200, "/api/v1/services": 200,
                 "/api/v1/secrets": 403, "/api/v1/namespaces/kube-system/secrets": 403, "/apis/rbac.authorization.k8s.io/v1/clusterroles": 403}
PROXY_OF_W1 = {"/api/v1/nodes/w1": 200, "/api/v1/services": 200, "/api/v1/endpoints": 200, "/api/v1/pods": 403, "/api/v1/secrets": 403}
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


def hostname(cluster: RealCluster, node: str, address: str) -> str:
    """Which pod answers to a node."""
    return cluster.nodes[node].host.exec("curl", "-sS", "-m", "10", f"http://{address}/hostname").stdout


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


def test_pods_say_and_do_on_every_node_what_they_are_told(cluster, pods):
    for name, address in pods.items():
        assert address.startswith(SUBNETS[name].rsplit(".", 1)[0] + "."), (name, address)
        assert "Started HTTP server on port 8080" in cluster.kubectl("logs", f"web-{name}")
        assert cluster.inside(f"web-{name}", "hostname").strip() == f"web-{name}"
        assert cluster.nodes["m1"].host.sh(FORWARD.format(pod=f"web-{name}")) == f"web-{name}"


def test_pods_reach_each_other_on_every_node(cluster, pods):
    for one, other in itertools.product(NODES, NODES):
        assert cluster.asked_by(f"web-{one}", f"http://{pods[other]}:8080/hostname") == f"web-{other}", (one, other)
        # And the other sees the pod itself, not its node.
        assert cluster.asked_by(f"web-{one}", f"http://{pods[other]}:8080/clientip").rsplit(":", 1)[0] == pods[one] or one == other
    for node, other in itertools.product(NODES, NODES):
        assert hostname(cluster, node, f"{pods[other]}:8080") == f"web-{other}", (node, other)


def test_services_lead_to_their_pods_from_everywhere(cluster, pods):
    cluster.apply(service("web", {"app": "web"}, 8080, type="NodePort"), *(service(f"own-{n}", {"name": f"web-{n}"}, 8080) for n in NODES))
    found = {s["metadata"]["name"]: s["spec"] for s in cluster.get("services")["items"]}
    address, node_port = found["web"]["clusterIP"], found["web"]["ports"][0]["nodePort"]
    names = {f"web-{n}" for n in NODES}
    for node in NODES:
        def answering(ask) -> set[str]:
            return {ask() for _ in range(30)}
        # Every one of three gets its turn in thirty, but for one time in sixty thousand.
        wait_for(lambda n=node: answering(lambda: hostname(cluster, n, f"{address}:8080")) == names, NET, f"the service from {node}")
        wait_for(lambda n=node: answering(lambda: cluster.asked_by(f"web-{n}", f"http://{address}:8080/hostname")) == names, NET,
                 f"the service from a pod of {node}")
        wait_for(lambda n=node: answering(lambda: in_lab("curl", "-sS", "-m", "10", f"http://{ADDRESSES[n]}:{node_port}/hostname").stdout) == names,
                 NET, f"the node port of {node} from outside")
        # Hairpin: a pod that is alone behind a service reaches itself through it.
        own = found[f"own-{node}"]["clusterIP"]
        wait_for(lambda n=node, o=own: cluster.asked_by(f"web-{n}", f"http://{o}:8080/hostname") == f"web-{n}", NET, f"hairpin on {node}")
    # The API itself is a service.
    for node in NODES:
        assert "gitVersion" in cluster.nodes[node].host.exec("curl", "-sk", "-m", "10", f"https://{found['kubernetes']['clusterIP']}/version").stdout


def test_ports_of_the_host_lead_to_the_pod(cluster):
    for name in NODES:
        one = pod(f"port-{name}", name, "netexec", "--http-port=8080")
        one["spec"]["containers"][0]["ports"] = [{"containerPort": 8080, "hostPort": 8099}]
        cluster.apply(one)
    for name in NODES:
        cluster.address_of(f"port-{name}")
        assert in_lab("curl", "-sS", "-m", "10", f"http://{ADDRESSES[name]}:8099/hostname").stdout == f"port-{name}"
    cluster.kubectl("delete", "pod", *(f"port-{n}" for n in NODES))


def test_a_service_accounts_token_opens_what_its_role_says(cluster, pods):
    cluster.kubectl("create", "role", "reader", "--verb=get,list", "--resource=pods")
    cluster.kubectl("create", "rolebinding", "reader", "--role=reader", "--serviceaccount=default:default")
    api = f"https://{ADDRESSES['m1']}:6443"
    for name in NODES:
        token = cluster.inside(f"web-{name}", "cat", "/var/run/secrets/kubernetes.io/serviceaccount/token")
        authority = cluster.inside(f"web-{name}", "cat", "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt")
        host = cluster.nodes[name].host
        host.put({"/run/account.crt": (authority.encode(), 0o600), "/run/account.header": (f"Authorization: Bearer {token}".encode(), 0o600)})
        as_account = ("--cacert", "/run/account.crt", "-H", "@/run/account.header")
        table = {"/api/v1/namespaces/default/pods": 200, "/api/v1/namespaces/kube-system/pods": 403, "/api/v1/namespaces/default/secrets": 403,
                 "/api/v1/nodes": 403}
        assert statuses(cluster, name, api, table, *as_account) == table
        host.write("/run/account.header", f"Authorization: Bearer {token[:-9]}AAAAAAAAA", 0o600)
        assert statuses(cluster, name, api, dict.fromkeys(table, 401), *as_account) == dict.fromkeys(table, 401)


def test_who_may_ask_for_what(cluster, pods):
    api, authority = f"https://{ADDRESSES['m1']}:6443", ("--cacert", "/etc/kubernetes/certs/ca.crt")

    def as_(name: str) -> tuple[str, ...]:
        return (*authority, "--cert", f"/etc/kubernetes/certs/{name}.crt", "--key", f"/etc/kubernetes/certs/{name}.key")
    assert statuses(cluster, "w1", api, ANONYMOUS, *authority) == ANONYMOUS
    assert statuses(cluster, "w1", api, KUBELET_OF_W1, *as_("kubelet")) == KUBELET_OF_W1
    assert statuses(cluster, "w1", api, PROXY_OF_W1, *as_("proxy")) == PROXY_OF_W1
    # A kubelet changes its own node and no other's.
    patch = ("-X", "PATCH", "-H", "Content-Type: application/merge-patch+json", "-d", json.dumps({"metadata": {"labels": {"example.org/own": "yes"}}}))
    assert [asked(cluster, "w1", f"{api}/api/v1/nodes/{n}", *as_("kubelet"), *patch) for n in ("w1", "w2")] == [200, 403]
    # Kubelets themselves: nobody without a certificate, and nobody but whom the API server's authorization lets.
    for name in NODES:
        kubelet = f"https://{ADDRESSES[name]}:10250/pods"
        assert asked(cluster, "m1", kubelet, *authority) == 401
        assert asked(cluster, "m1", kubelet, *as_("admin")) == 200
        assert asked(cluster, "w1", kubelet, *as_("kubelet")) == 403
        with pytest.raises(OSError):
            reached(cluster, name, 10255)  # the port in the clear
    # etcd: nobody without a certificate of its own authority.
    for words in (authority, as_("kubelet"), as_("proxy")):
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
