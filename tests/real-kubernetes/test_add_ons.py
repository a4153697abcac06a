"""Add-ons of the image on Kubernetes' real programs: the manifests of image-build/addons as they stand there, in a cluster of a master and a worker
that has its images from a registry of its own.

Real are the API and its checks, the controllers, the scheduler, the kubelets, containerd, kube-proxy and the API server's aggregation. Stand-ins are
what runs in the pods: add_ons.go, which shows the API the manifests' service accounts, watches and serves what the real CoreDNS and metrics-server
do. Nobody answers at the registry: the images are put into containerd once their absence has been seen."""
import base64
import json
import re
from collections.abc import Iterator

import pytest
from lib.add_ons import DNS, FOLDER, KINDS, applied, component, labelled, lacking, manifests, named, said
from lib.common import REPO, wait_for
from lib.node import signalled
from lib.pod_network import together
from lib.real_kubernetes import NET, REGISTRY, RealCluster, cluster_in, pod, service

pytestmark = pytest.mark.longer
NODES = ("m1", "w1")
NAMES = ("coredns", "metrics-server")
OBJECTS = {
    "coredns": {"ServiceAccount kube-system/coredns", "ClusterRole system:coredns", "ClusterRoleBinding system:coredns", "ConfigMap kube-system/coredns",
                "Service kube-system/kube-dns", "Deployment kube-system/coredns"},
    "metrics-server": {"ServiceAccount kube-system/metrics-server", "ClusterRole system:metrics-server", "ClusterRole system:aggregated-metrics-reader",
                       "ClusterRoleBinding system:metrics-server", "ClusterRoleBinding metrics-server:system:auth-delegator",
                       "RoleBinding kube-system/metrics-server-auth-reader", "Service kube-system/metrics-server",
                       "Deployment kube-system/metrics-server", "APIService v1beta1.metrics.k8s.io"}}
# What the API refuses, why, and in whose words: of the agent, which looks for a kind before it asks, and of the API itself.
BAD = {"name": "bad", "namespace": "kube-system"}
CONTAINER = {"name": "c", "image": "example.org/c:1"}
DEPLOYMENT = {"selector": {"matchLabels": {"app": "bad"}}, "template": {"metadata": {"labels": {"app": "bad"}}, "spec": {"containers": [CONTAINER]}}}
SECRET = "0123456789abcdefghijklmnopqrstuvwxyz" * 3
REFUSED = [
    ("policy/v1", "PodDisruptionBudget", {"spec": {"minAvailable": 1}}, ["the API has no policy/v1"]),
    ("extensions/v1beta1", "Deployment", {"spec": DEPLOYMENT}, ["the API has no kind Deployment in extensions/v1beta1"]),
    ("apps/v1", "Deployment", {"spec": {**DEPLOYMENT, "replicas": -1}},
     ["the API answered 422", 'Deployment.apps "bad" is invalid: spec.replicas: Invalid value: -1: must be greater than or equal to 0']),
    ("apps/v1", "Deployment", {"spec": {**DEPLOYMENT, "selector": {"matchLabels": {"app": "good"}}}},
     ["the API answered 422", "`selector` does not match template `labels`"]),
    ("v1", "Service", {"spec": {"ports": [{"port": 53}], "clusterIP": DNS}}, ["the API answered 422", "provided IP is already allocated"]),
    ("v1", "Service", {"spec": {"ports": [{"port": "dns"}]}}, ["the API answered 400", "v1.ServicePort.Port: readUint32: unexpected character"]),
    # Where 1.20 cannot read an object it quotes what stands there; here that is the end of a secret.
    ("v1", "Secret", {"stringData": {"a": SECRET, "port": 5432}}, ["the API answered 400", "v1.Secret.Data: base64Codec"]),
]


@pytest.fixture(scope="module")
def shared(programs, testhost, tmp_path_factory) -> Iterator[RealCluster]:
    """Nodes are Ready and the master's deployment has ended; of images there are those of this test's own pods."""
    with cluster_in(tmp_path_factory.mktemp("add-ons")) as cluster:
        for name in NODES:
            own = {"ADDONS": ",".join(NAMES)} if name == "m1" else {}
            cluster.boot(name, CONTAINER_INFRA_PREFIX=REGISTRY, **own)
        master = cluster.nodes["m1"]
        master.outputs = (*master.outputs, "add_ons")
        master.host.put({f"{FOLDER}/{name}/{name}.yaml": ((REPO / f"image-build/addons/{name}/{name}.yaml"), 0o644) for name in NAMES})
        together(*(node.up for node in cluster.nodes.values()))
        cluster.is_ready(*NODES)
        yield cluster


def explained(cluster: RealCluster) -> str:
    return " ".join(cluster.nodes["m1"].host.exec("heat-node-agent", "explain", check=False).stdout.split())


def writes(cluster: RealCluster) -> dict[str, float]:
    """Requests that write objects of add-ons themselves, by what the API server has counted since its start."""
    found: dict[str, float] = {}
    for labels, count in re.findall(r"(?m)^apiserver_request_total\{(.*)\} (\S+)$", cluster.kubectl("get", "--raw", "/metrics")):
        of = dict(re.findall(r'(\w+)="([^"]*)"', labels))
        if of["verb"] in ("POST", "PUT", "PATCH", "DELETE") and of["resource"] in KINDS.split(",") and not of["subresource"]:
            found[f"{of['verb']} {of['resource']}"] = found.get(f"{of['verb']} {of['resource']}", 0) + float(count)
    return found


def quoted(secret: str) -> set[str]:
    """Every eight characters of a secret, and of it as the API has it."""
    texts = (secret, base64.b64encode(secret.encode()).decode())
    return {text[i:i + 8] for text in texts for i in range(len(text) - 7)}


def test_the_api_takes_every_manifest_as_it_stands(cluster):
    for name in NAMES:
        wanted = {named(one): one for one in manifests(cluster, name)}
        found = labelled(cluster, name)
        assert set(wanted) == set(found) == OBJECTS[name]
        assert not [lack for key in wanted for lack in lacking(found[key], wanted[key], key)]
    written = applied(cluster)
    assert len(written) == len(NAMES) and "6 objects made" in written[0] and "9 objects made" in written[1], written


def test_an_image_that_cannot_be_pulled_is_told(cluster):
    master = cluster.nodes["m1"]
    told = signalled(master.server, "node")["add_ons"]
    assert set(told) == set(NAMES) and all(told[n].startswith(f"no: deployment kube-system/{n}: ") for n in NAMES), told
    for name in NAMES:
        def shown(name: str = name) -> str:
            found = component(cluster, name)
            assert found["state"] == "degraded" and f"deployment kube-system/{name}: 0 of " in found["cause"], found
            assert re.search(rf"pod {name}-\S+: (ImagePullBackOff: Back-off|ErrImagePull: rpc error:.* to) pull\w*.* image .{{1,2}}{REGISTRY}{name}:", found["cause"]), found
            return found["cause"]
        cause = wait_for(shown, NET, f"the image of {name}", every=1)
        print(cause)
    page = explained(cluster)
    assert all(f"{REGISTRY}{name}:" in page for name in NAMES) and "CONTAINER_INFRA_PREFIX" in page, page
    assert not master.is_quiet()


def test_they_run_once_their_images_are_there(cluster):
    together(*(lambda node=node: node.load_images("/srv/images/add-ons/*.tar") for node in cluster.nodes.values()))
    cluster.kubectl("wait", "--for=condition=Available", "-n", "kube-system", "--timeout=250s", *(f"deployment/{name}" for name in NAMES))
    for name in NAMES:
        wait_for(lambda n=name: component(cluster, n)["state"] == "healthy", NET, f"{name} is healthy", every=1)
    for node in cluster.nodes.values():
        wait_for(node.is_quiet, NET, f"nothing to do on {node.name}", every=1)


def test_dns_runs_on_the_master_too(cluster):
    """Whichever node was Ready first may have both at first: that they are apart is a wish."""
    def placed() -> list[tuple[str, str]]:
        found = cluster.get("pods", "-n", "kube-system", "-l", "k8s-app=kube-dns")["items"]
        return sorted((one["spec"].get("nodeName", ""), one["metadata"]["name"]) for one in found)
    nodes = [node for node, _ in placed()]
    if nodes != sorted(NODES):
        cluster.kubectl("delete", "pod", "-n", "kube-system", placed()[0][1])
    wait_for(lambda: [node for node, _ in placed()] == sorted(NODES), NET, "a pod on each node", every=1)
    cluster.kubectl("rollout", "status", "-n", "kube-system", "--timeout=250s", "deployment/coredns")


def test_pods_find_services_by_name(cluster):
    cluster.apply(*(pod(f"web-{n}", n, "netexec", "--http-port=8080", labels={"app": "web"}) for n in NODES),
                  *(service(f"web-{n}", {"name": f"web-{n}"}, 8080) for n in NODES), service("all", {"app": "web"}, 8080, clusterIP="None"))
    addresses = {n: cluster.address_of(f"web-{n}") for n in NODES}
    for one in NODES:
        assert f"nameserver {DNS}\n" in cluster.inside(f"web-{one}", "cat", "/etc/resolv.conf")
        for other in NODES:
            for domain in ("", ".default", ".default.svc.cluster.local", ".default.svc.cluster.local."):
                wait_for(lambda a=addresses[one], o=other, d=domain: cluster.asked_by(a, f"web-{o}{d}", 8080) == {f"web-{o}"}, NET,
                         f"web-{other}{domain} from {one}", every=1)
        said = cluster.inside(f"web-{one}", "nslookup", "kube-dns.kube-system.svc.cluster.local", check=False)
        assert re.search(rf"Server:\s+{re.escape(DNS)}\b", said) and said.count(DNS) >= 2, said
        said = cluster.inside(f"web-{one}", "nslookup", "all.default.svc.cluster.local", check=False)
        assert all(address in said for address in addresses.values()), said
        assert "NXDOMAIN" in cluster.inside(f"web-{one}", "nslookup", "nobody.default.svc.cluster.local", check=False)


def test_kubectl_top_has_the_metrics_of_every_node(cluster):
    [condition] = cluster.get("apiservice", "v1beta1.metrics.k8s.io")["status"]["conditions"]
    assert (condition["type"], condition["status"]) == ("Available", "True"), condition
    rows = {line.split()[0]: line.split() for line in cluster.kubectl("top", "nodes", "--no-headers").splitlines()}
    assert set(rows) == set(NODES), rows
    for name, (_, cpu, _, memory, _) in rows.items():
        assert re.fullmatch(r"[1-9]\d*m", cpu) and re.fullmatch(r"[1-9]\d*Mi", memory), rows[name]


def test_a_second_deployment_writes_nothing(cluster):
    master = cluster.nodes["m1"]
    before, objects, written = writes(cluster), [labelled(cluster, name) for name in NAMES], applied(cluster)
    master.update()
    master.succeeds()
    assert writes(cluster) == before and [labelled(cluster, name) for name in NAMES] == objects
    assert applied(cluster) == written
    assert signalled(master.server, "node")["add_ons"] == dict.fromkeys(NAMES, "ready")
    # An operator's change of what is made once stays, and what others add to an object stays as well; what the manifest says is put right.
    cluster.kubectl("annotate", "-n", "kube-system", "service/kube-dns", "example.org/theirs=1")
    cluster.kubectl("label", "-n", "kube-system", "configmap/coredns", "example.org/theirs=1")
    cluster.kubectl("scale", "-n", "kube-system", "deployment/coredns", "--replicas=1")
    changed = writes(cluster)
    master.update()
    master.succeeds()
    after = writes(cluster)
    assert {key: after[key] - changed.get(key, 0) for key in after if after[key] != changed.get(key, 0)} == {"PUT deployments": 1}
    found = labelled(cluster, "coredns")
    assert found["Deployment kube-system/coredns"]["spec"]["replicas"] == 2
    assert found["Service kube-system/kube-dns"]["metadata"]["annotations"]["example.org/theirs"] == "1"


def test_a_wrong_tag_fails_the_deployment_that_waits_for_pods_and_is_taken_back(cluster):
    master = cluster.nodes["m1"]
    master.update(COREDNS_TAG="9.9.9", ADDONS_WAIT=60)
    cause = master.result()
    assert "add-on coredns" in cause and f"{REGISTRY}coredns:9.9.9" in cause and re.search("ImagePullBackOff|ErrImagePull", cause), cause
    image = labelled(cluster, "coredns")["Deployment kube-system/coredns"]["spec"]["template"]["spec"]["containers"][0]["image"]
    assert image == f"{REGISTRY}coredns:1.9.4"
    master.update(COREDNS_TAG=None, ADDONS_WAIT=250)
    master.succeeds()
    assert signalled(master.server, "node")["add_ons"] == dict.fromkeys(NAMES, "ready")


@pytest.mark.parametrize(("version", "kind", "rest", "words"), REFUSED, ids=lambda v: v if isinstance(v, str) else "")
def test_what_the_api_refuses_is_one_cause_in_its_own_words(cluster, version, kind, rest, words):
    master = cluster.nodes["m1"]
    good = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "good", "namespace": "kube-system"}}
    bad = {"apiVersion": version, "kind": kind, "metadata": BAD, **rest}
    master.host.put({f"{FOLDER}/bad/bad.yaml": (f"{json.dumps(good)}\n---\n{json.dumps(bad)}\n".encode(), 0o644)})
    master.update(ADDONS=",".join((*NAMES, "bad")), ADDONS_WAIT=0)
    cause = master.result()
    print(cause)
    assert not [part for part in quoted(SECRET) if part in cause], cause
    assert all(part in cause for part in ["HNA-0635", f"{FOLDER}/bad/bad.yaml, line 3", *words]), cause
    # What was before it has been made; of itself there is nothing, and the cluster's other add-ons run.
    assert set(labelled(cluster, "bad", KINDS)) == {"ConfigMap kube-system/good"}
    master.update(ADDONS=",".join(NAMES))
    master.succeeds()
    assert signalled(master.server, "node")["add_ons"] == dict.fromkeys(NAMES, "ready")


def test_removed_by_hand_as_the_page_says_nothing_is_left(cluster):
    """By the commands of docs/add-ons.md."""
    master = cluster.nodes["m1"]
    master.update(ADDONS=None)
    master.succeeds()
    for name in NAMES:
        assert f"add-on {name} is no longer asked for; its objects stay in the cluster" in said(cluster, "HNA-0636")
        assert set(labelled(cluster, name)) == OBJECTS[name]
    commands = re.findall(r"(?m)^ +(kubectl delete .*)$", (REPO / "docs/add-ons.md").read_text())
    assert commands
    for name in (*NAMES, "bad"):
        for command in commands:
            master.host.sh(f"export KUBECONFIG=/etc/kubernetes/admin.conf; {command.replace('NAME', name)}")
    kinds = ",".join(cluster.kubectl("api-resources", "--verbs=list", "-o", "name").split())
    for name in (*NAMES, "bad"):
        def left(name: str = name) -> bool:
            found = labelled(cluster, name, kinds)
            assert not found, set(found)
            return True
        wait_for(left, NET, f"{name} is gone", every=1)
    wait_for(master.is_quiet, NET, "nothing to do on m1", every=1)
