"""OpenStack's add-ons on Kubernetes' real programs: the manifests of image-build/addons as they stand there, in a cluster whose kubelets wait for an
external cloud provider.

Real are the API, the kubelets, the controllers and the cloud controller manager: Kubernetes' own, with the provider for OpenStack of its tree (1.20),
from which cloud-provider-openstack was made. A stand-in is Nova (lib/magnum.py). Cinder's driver and its helpers are in no package: the API has
their objects, and no pod of theirs runs."""
from collections.abc import Iterator

import pytest
from lib.add_ons import DNS, FOLDER, applied, component, labelled, lacking, manifests, named
from lib.common import REPO, TESTS, run, wait_for
from lib.node import signalled
from lib.pod_network import together
from lib.real_kubernetes import NET, REGISTRY, RealCluster, cluster_in

pytestmark = pytest.mark.longer
NODES = ("m1", "w1")
PROVIDER = "openstack-cloud-controller-manager"
NAMES = (PROVIDER, "cinder-csi", "dashboard", "coredns")
KINDS = ("serviceaccounts,clusterroles,clusterrolebindings,roles,rolebindings,configmaps,secrets,services,deployments,daemonsets,csidrivers,namespaces")
TAINT = "node.cloudprovider.kubernetes.io/uninitialized"


@pytest.fixture(scope="module")
def shared(programs, testhost, tmp_path_factory) -> Iterator[RealCluster]:
    run(TESTS / "real-kubernetes/up.sh", "cloud", timeout=3600)
    with cluster_in(tmp_path_factory.mktemp("cloud")) as cluster:
        cluster.magnum.servers({name: cluster.addresses[name] for name in NODES})
        for name in NODES:
            own = {"ADDONS": ",".join(NAMES)} if name == "m1" else {}
            cluster.boot(name, CONTAINER_INFRA_PREFIX=REGISTRY, CLOUD_PROVIDER_ENABLED="True", **own)
        master = cluster.nodes["m1"]
        master.outputs = (*master.outputs, "add_ons")
        master.host.put({f"{FOLDER}/{name}/{name}.yaml": (REPO / f"image-build/addons/{name}/{name}.yaml", 0o644) for name in NAMES})
        together(*(node.up for node in cluster.nodes.values()))
        yield cluster


def filled(cluster: RealCluster, name: str) -> list[dict]:
    """Its objects as its file has them, but for texts with facts: those have tests of their own."""
    def without(value):
        match value:
            case dict():
                return {key: without(one) for key, one in value.items() if not (isinstance(one, str) and "{{" in one)}
            case list():
                return [without(one) for one in value if not (isinstance(one, str) and "{{" in one)]
        return value
    return [without({key: one for key, one in each.items() if key != "stringData"}) for each in manifests(cluster, name, facts=False)]


def nodes(cluster: RealCluster) -> dict[str, dict]:
    return {one["metadata"]["name"]: one for one in cluster.get("nodes")["items"]}


def tainted(cluster: RealCluster) -> set[str]:
    return {name for name, one in nodes(cluster).items() if any(taint["key"] == TAINT for taint in one["spec"].get("taints", []))}


def test_the_api_takes_every_manifest_as_it_stands(cluster):
    for name in NAMES:
        wanted = {named(one): one for one in filled(cluster, name)}
        found = labelled(cluster, name, KINDS)
        assert set(wanted) == set(found), name
        assert not [lack for key in wanted for lack in lacking(found[key], wanted[key], key) if "args" not in lack and "command" not in lack], name
    assert len(applied(cluster)) == len(NAMES)


def test_until_the_provider_runs_nodes_take_no_pods_and_that_is_said(cluster):
    assert tainted(cluster) == set(NODES)
    assert not any(one["spec"].get("providerID") for one in nodes(cluster).values())

    def waits() -> str:
        found = component(cluster, "coredns")
        assert found["state"] == "degraded" and "Unschedulable" in found["cause"] and TAINT in found["cause"], found
        return found["cause"]
    print(wait_for(waits, NET, "the cause of CoreDNS' pods", every=1))

    def pulls() -> str:
        found = component(cluster, PROVIDER)
        assert found["state"] == "degraded" and f"{REGISTRY}{PROVIDER}:v{cluster.version.rsplit('.', 1)[0]}.0" in found["cause"], found
        return found["cause"]
    print(wait_for(pulls, NET, "the cause of the provider's pod", every=1))


def test_the_provider_reads_its_secret_and_gives_nodes_what_nova_says(cluster):
    together(*(lambda node=node: node.load_images("/srv/images/add-ons/*.tar") for node in cluster.nodes.values()))
    # Its kubelet asks for the image again only minutes later.
    cluster.kubectl("delete", "pod", "-n", "kube-system", "-l", f"k8s-app={PROVIDER}")

    def are_free() -> bool:
        assert not tainted(cluster), cluster.kubectl("logs", "-n", "kube-system", "-l", f"k8s-app={PROVIDER}", "--tail=30", check=False)
        return True
    wait_for(are_free, NET, "no node waits for its provider", every=1)
    servers = cluster.magnum.settings["servers"]
    for name, node in nodes(cluster).items():
        labels, addresses = node["metadata"]["labels"], {one["type"]: one["address"] for one in node["status"]["addresses"]}
        assert node["spec"]["providerID"] == f"openstack:///{servers[name]['id']}"
        # Of zones this provider knows what a server's metadata says, and Nova says nothing there.
        assert labels["node.kubernetes.io/instance-type"] == "m1.node"
        assert addresses["InternalIP"] == cluster.addresses[name], addresses
    wait_for(lambda: component(cluster, PROVIDER)["state"] == "healthy", NET, "the provider is healthy", every=1)
    cluster.kubectl("wait", "--for=condition=Available", "-n", "kube-system", "--timeout=250s", "deployment/coredns")
    wait_for(lambda: component(cluster, "coredns")["state"] == "healthy", NET, "CoreDNS is healthy", every=1)


def test_a_second_deployment_reports_the_provider_ready_and_writes_nothing(cluster):
    master = cluster.nodes["m1"]
    objects, written = {name: labelled(cluster, name, KINDS) for name in NAMES}, applied(cluster)
    master.update()
    master.succeeds()
    told = signalled(master.server, "node")["add_ons"]
    assert (told[PROVIDER], told["coredns"]) == ("ready", "ready") and told["cinder-csi"].startswith("no: "), told
    assert applied(cluster) == written

    def versions(found: dict[str, dict]) -> dict[str, int]:
        return {key: one["metadata"].get("generation", 0) for key, one in found.items()}
    assert all(versions(labelled(cluster, name, KINDS)) == versions(objects[name]) for name in NAMES)


def test_a_server_that_nova_lacks_leaves_the_cluster(cluster):
    cluster.magnum.servers({"m1": cluster.addresses["m1"]})
    cluster.nodes["w1"].host.cut()
    wait_for(lambda: set(nodes(cluster)) == {"m1"}, NET, "w1 is gone", every=2)


def test_no_secret_is_in_journal_and_status(cluster):
    master = cluster.nodes["m1"]
    password = cluster.magnum.settings["password"]
    assert DNS in master.host.exec("heat-node-agent", "metadata").stdout
    for words in (("journalctl", "-o", "export", "-u", "heat-node-agent"), ("heat-node-agent", "status", "--json"), ("heat-node-agent", "metadata"),
                  ("heat-node-agent", "explain"), ("heat-node-agent", "plan", "--json")):
        assert password not in master.host.exec(*words, check=False).stdout, words
