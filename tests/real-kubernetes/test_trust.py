"""Who trusts whom in a cluster of Kubernetes' real programs: a new CA in three steps, a worker that joins by a token, a node without TLS."""
import pytest
from lib.common import wait_for
from lib.real_kubernetes import NET, RealCluster, pod

pytestmark = pytest.mark.longer
NODES = ("m1", "w1", "w2")
FOLDER = "/etc/kubernetes/certs"
TOKEN = "abcdef.0123456789abcdef"
ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
# What an account may that has a role for pods of its own namespace.
PATHS = {"/api/v1/namespaces/default/pods": 200, "/api/v1/namespaces/kube-system/pods": 403, "/api/v1/nodes": 403}


@pytest.fixture(scope="module")
def pods(shared) -> RealCluster:
    """One on each node that nothing of this ends, whose account may read pods."""
    shared.apply(*(pod(f"trust-{n}", n, "netexec", "--http-port=8080") for n in NODES),
                 {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "trust", "namespace": "default"},
                  "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]}]},
                 {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "trust", "namespace": "default"},
                  "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "trust"},
                  "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": "default"}]})
    for n in NODES:
        shared.address_of(f"trust-{n}")
    return shared


def account(cluster: RealCluster, name: str, where: str) -> tuple[str, str]:
    """The CA and the token that a pod of this node has now, as files beside each other on the node."""
    files = {f"{where}.crt": "ca.crt", f"{where}.token": "token"}
    cluster.nodes[name].host.put({path: (cluster.inside(f"trust-{name}", "cat", f"{ACCOUNT}/{file}").encode(), 0o600) for path, file in files.items()})
    return f"{where}.crt", f"{where}.token"


def bundle(cluster: RealCluster, name: str) -> int:
    """How many CAs a node trusts."""
    return cluster.nodes[name].read(f"{FOLDER}/ca.crt").count(b"BEGIN CERTIFICATE")


def works(cluster: RealCluster, step: str):
    """Nodes are Ready, pods are made on each, and everything of kubectl's that goes through a kubelet works."""
    cluster.is_ready(*NODES)
    cluster.apply(*(pod(f"{step}-{n}", n, "netexec", "--http-port=8080") for n in NODES))
    addresses = {n: cluster.address_of(f"{step}-{n}") for n in NODES}
    for n in NODES:
        assert cluster.inside(f"{step}-{n}", "hostname").strip() == f"{step}-{n}"
        assert "Started HTTP server" in cluster.kubectl("logs", f"{step}-{n}")
        assert cluster.asked_by(addresses[n], addresses["m1"], 8080) == {f"{step}-m1"}


def test_a_new_ca_takes_three_steps_and_no_token_is_lost(pods, shared):
    cluster, nodes = pods, pods.nodes
    restarts = {n: cluster.get("pod", f"trust-{n}")["status"]["containerStatuses"][0]["restartCount"] for n in NODES}
    issued, keys = ({n: getattr(nodes[n], what)() for n in NODES} for what in ("issued", "keys"))
    before = {n: account(cluster, n, "/run/before") for n in NODES}

    def opens(files: dict[str, tuple[str, str]]) -> dict[str, list]:
        return {n: cluster.statuses_of_account(n, list(PATHS), files[n]) for n in NODES}
    expected = dict.fromkeys(NODES, list(PATHS.values()))
    assert opens(before) == expected

    cluster.magnum.rotate()
    for n, i in zip(NODES, range(len(NODES))):
        nodes[n].update(WAIT_TIMEOUT=601 + i)
        nodes[n].succeeds()
    assert [bundle(cluster, n) for n in NODES] == [2, 2, 2] and {n: nodes[n].issued() for n in NODES} == issued
    works(cluster, "both")
    # The old CA alone still opens the API: its certificate is the old one's.
    assert opens(before) == expected

    for n in NODES:
        nodes[n].host.exec("heat-node-agent", "certificates", "rotate")
        wait_for(lambda n=n: all(nodes[n].issued()[path] != old for path, old in issued[n].items()), NET, f"new certificates of {n}", every=1)
        wait_for(lambda n=n: nodes[n].status()["phase"] == "steady", NET, f"the end of the step on {n}", every=1)
    works(cluster, "switched")
    # Whoever has the old CA only does not know the API server any more; a pod's own copy was renewed meanwhile.
    assert all("x509" in str(status) for statuses in opens(before).values() for status in statuses)
    switched = {n: account(cluster, n, "/run/switched") for n in NODES}
    # The token of before, by the CAs of now.
    assert opens({n: (switched[n][0], before[n][1]) for n in NODES}) == expected

    for n in NODES:
        nodes[n].update(CA_ROTATION="drop-old")
        nodes[n].succeeds()
    assert [bundle(cluster, n) for n in NODES] == [1, 1, 1] and {n: nodes[n].keys() for n in NODES} == keys
    works(cluster, "dropped")
    assert opens({n: (f"{FOLDER}/ca.crt", before[n][1]) for n in NODES}) == expected
    after = wait_for(lambda: all(cluster.inside(f"trust-{n}", "cat", f"{ACCOUNT}/ca.crt").count("BEGIN") == 1 for n in NODES), NET,
                     "one CA in every pod", every=2)
    assert after and opens({n: account(cluster, n, "/run/after") for n in NODES}) == expected
    for n in NODES:
        assert not nodes[n].mistakes(), n
        wait_for(nodes[n].is_quiet, NET, f"nothing to do on {n}", every=1)
    assert {n: cluster.get("pod", f"trust-{n}")["status"]["containerStatuses"][0]["restartCount"] for n in NODES} == restarts


def test_a_node_without_tls_is_refused_as_the_real_api_server_refuses_it(shared):
    node = shared.nodes["w1"]
    started, files = node.started(), node.checksums()
    node.update(TLS_DISABLED="True")
    cause = node.result()
    assert "TLS_DISABLED" in cause and "1.20" in cause, cause
    assert (node.started(), node.checksums()) == (started, files)
    # Whose rule that is: the program itself takes no other port in the clear than none.
    said = shared.nodes["m1"].host.exec("kube-apiserver", "--insecure-port=8080", "--etcd-servers=http://127.0.0.1:1", check=False)
    assert said.returncode != 0 and "insecure-port" in said.stderr, said.stderr
    node.update(TLS_DISABLED=None)
    node.succeeds()
    assert node.started() == started


def test_a_worker_joins_by_a_token_and_its_serving_certificate_waits_for_an_operator(pods):
    cluster = pods
    master = cluster.nodes["m1"]
    ca = cluster.magnum.cas()["kubernetes"]
    master.update(BOOTSTRAP_TOKEN=TOKEN, MASTER_INDEX=0, CERT_MANAGER_API="True", CA_KEY=ca.with_suffix(".key").read_text())
    master.succeeds()
    cluster.leaves("w2")
    cluster.is_ready("m1", "w1")
    own = dict.fromkeys(cluster.magnum.parameters())
    worker = cluster.boot("w2", **own, CERTIFICATES="bootstrap", BOOTSTRAP_TOKEN=TOKEN, CA_CERTIFICATE=ca.read_text())
    worker.up()
    cluster.is_ready(*NODES)
    subject = worker.host.sh("openssl x509 -in /var/lib/kubelet/pki/kubelet-client-current.pem -noout -subject -nameopt RFC2253")
    assert "CN=system:node:w2,O=system:nodes" in subject

    def requests() -> dict[str, list[dict]]:
        """By who signs; those of w2."""
        found: dict[str, list[dict]] = {}
        for one in cluster.get("csr")["items"]:
            if "w2" in one["spec"]["username"] or "bootstrap" in one["spec"]["username"]:
                found.setdefault(one["spec"]["signerName"].rsplit("/", 1)[1], []).append(one)
        return found

    def is_approved(one: dict) -> bool:
        return any(c["type"] == "Approved" for c in one.get("status", {}).get("conditions", []))
    found = wait_for(lambda: (r := requests()) and "kubelet-serving" in r and r, NET, "the request for a serving certificate", every=1)
    assert all(is_approved(one) and one["status"].get("certificate") for one in found["kube-apiserver-client-kubelet"])
    assert not any(is_approved(one) for one in found["kubelet-serving"])
    # Nobody may approve it by himself; until somebody does, status and Heat name it, and kubelets cannot be asked.
    name = found["kubelet-serving"][0]["metadata"]["name"]
    wait_for(lambda: name in master.host.exec("heat-node-agent", "explain", "--all", check=False).stdout, NET, "the request in the master's status", every=2)
    wait_for(lambda: "certificate" in worker.host.exec("heat-node-agent", "explain", check=False).stdout, NET, "the request in the worker's status", every=2)
    assert worker.host.exec("heat-node-agent", "status", check=False).returncode == 2
    outputs = worker.server.signals("node", accepted=True)[-1].json()
    assert outputs["node_ready"] == "yes" and outputs["certificate_requests"].startswith("no: "), outputs
    cluster.apply(pod("joined", "w2", "netexec", "--http-port=8080"))
    cluster.address_of("joined")
    assert "Started HTTP server" not in cluster.kubectl("logs", "joined", check=False)
    for one in requests()["kubelet-serving"]:
        cluster.kubectl("certificate", "approve", one["metadata"]["name"])
    wait_for(lambda: "Started HTTP server" in cluster.kubectl("logs", "joined", check=False), NET, "logs of w2", every=1)
    for n in NODES:
        wait_for(cluster.nodes[n].is_quiet, NET, f"nothing to do on {n}", every=1)
