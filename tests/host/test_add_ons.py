"""Add-ons of the image on a first master of real etcd and containerd, with stand-ins for Kubernetes' programs: what is wrong in the image or the
parameters, the API away and back, what the API refuses, what does not run, and what is no longer asked for."""
import base64
import json
import re
import time

import pytest
import yaml
from lib import stand_ins
from lib.cluster import VERSION, Node, parameters
from lib.common import GATEWAY, REPO, wait_for
from lib.masters import Masters
from lib.node import UNIT, signalled, start
from lib.pod_network import together

MASTER = GATEWAY.rsplit(".", 1)[0] + ".21"
CERTS = "/etc/kubernetes/certs"
API = "https://127.0.0.1:6443"
ADDONS = "/usr/share/heat-node-agent/addons"
NAMESPACE = "/api/v1/namespaces/kube-system"
DEPLOYMENT = "/apis/apps/v1/namespaces/kube-system/deployments/coredns"
SETTINGS = "polling_interval = 5\nmin_polling_interval = 5\n"
COREDNS = (REPO / "image-build/addons/coredns/coredns.yaml").read_text()
UNSCHEDULABLE = "0/1 nodes are available: 1 node(s) had taint {node.kubernetes.io/not-ready: }, that the pod didn't tolerate."
THING = "{apiVersion: v1, kind: ConfigMap, metadata: {name: thing, namespace: kube-system}, data: {network: '{{pod_network}}', key: '%s'}}\n"
# What the scheduler and the kubelet say of a pod that does not run (as the real ones of 1.20.2 do), and what the agent makes of it.
PODS = [
    # No node takes it: each lacks its pod network, and so is not Ready.
    ({}, {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": UNSCHEDULABLE}]},
     f" is Pending: Unschedulable: {UNSCHEDULABLE}"),
    # A node has taken it before it lost its pod network.
    ({"nodeName": "m1"}, {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "True"}],
                          "containerStatuses": [{"state": {"waiting": {"reason": "ContainerCreating"}}}]},
     " on m1: its containers are being made; a node makes none without a pod network or its sandbox image"),
    # Its image cannot be pulled.
    ({"nodeName": "m1"}, {"phase": "Pending", "containerStatuses": [{"state": {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}}}]},
     ": ImagePullBackOff: Back-off pulling image"),
]
# Seconds.
AWAY = 300
# By plurals and names.
OF_COREDNS = {(f"{one['kind'].lower()}s", one["metadata"]["name"]) for one in yaml.safe_load_all(COREDNS)}


def many(count: int) -> tuple[set[tuple[str, str]], str]:
    """So many objects that they are made for a while, and their manifests."""
    names = [f"many-{number:03}" for number in range(count)]
    texts = (f"{{apiVersion: v1, kind: ConfigMap, metadata: {{name: {name}, namespace: kube-system}}, data: {{a: b}}}}\n" for name in names)
    return {("configmaps", name) for name in names}, "---\n".join(texts)



def into_image(host, name: str, text: str):
    host.sh(f"mkdir -p {ADDONS}/{name}; chmod 755 {ADDONS} {ADDONS}/{name}")
    host.write(f"{ADDONS}/{name}/{name}.yaml", text)


def is_recorded(host):
    """Its API server tells what it is asked to write from now on."""
    host.sh(f"mkdir -p {stand_ins.CONTROL}; echo record >{stand_ins.CONTROL}/kube-apiserver")


def writes(host, objects: set[tuple[str, str]]) -> list[tuple[str, tuple[str, str], str]]:
    """Method, object and status of each request that wrote, or was to write, one of these objects: by their plurals and names."""
    found = []
    for entry in host.journal(unit="kube-apiserver.service"):
        if told := re.fullmatch(r"request: (\w+) (\S+) (\S+) (\d+)", entry["MESSAGE"]):
            method, path, name, status = told.groups()
            plural = path.split("?")[0].split("/")[-1 if method == "POST" else -2]
            found += [(method, (plural, name), status)] * ((plural, name) in objects)
    return found


def is_made_once(node: Node, objects: set[tuple[str, str]]):
    """As etcd tells it: of each key there has been this one version since it was made."""
    for plural in {plural for plural, _ in objects}:
        kept = json.loads(node.etcdctl("get", "--prefix", f"/registry/{plural}/", "-w", "json")).get("kvs", [])
        versions = {base64.b64decode(one["key"]).decode().split("/")[-1]: one["version"] for one in kept}
        wanted = {name for of, name in objects if of == plural}
        assert {name: versions.get(name) for name in wanted} == dict.fromkeys(wanted, 1)


class Cluster(Node):
    outputs = ("add_ons",)

    def ask(self, path: str, method: str = "GET", body: dict | None = None) -> dict:
        """By the API server of the host, as its administrator."""
        more = ["-H", "Content-Type: application/json", "-d", json.dumps(body)] if body else []
        done = self.host.exec("curl", "-s", "-X", method, "--cacert", f"{CERTS}/ca.crt", "--cert", f"{CERTS}/admin.crt", "--key", f"{CERTS}/admin.key", *more,
                              API + path, check=False)
        return json.loads(done.stdout)

    def image(self, name: str, text: str):
        into_image(self.host, name, text)

    def has_pod_network(self):
        """An operator's, so that the node has nothing to complain of."""
        self.host.sh("mkdir -p /etc/cni/net.d; echo {} >/etc/cni/net.d/10-theirs.conflist")

    def run(self, *words: str) -> str:
        done = self.host.exec("heat-node-agent", *words, check=False)
        return done.stdout + done.stderr

    def said(self, code: str) -> list[str]:
        return [e["MESSAGE"] for e in self.host.journal(**{"_SYSTEMD_UNIT": UNIT}) if e.get("HNA_CODE") == code]

    def component(self, name: str = "add-on coredns") -> dict:
        return next((c for c in self.status()["node"]["components"] if c["name"] == name), {})


def names_what_the_image_lacks(node: Cluster):
    """A name without a directory is found before anything is touched."""
    node.update(ADDONS="coredns,dashboard")
    missing = f"ADDONS names dashboard, but the image has no directory {ADDONS}/dashboard"
    assert missing in node.result() and "HNA-0635" in node.result()
    for words in (("verify",), ("plan",), ("explain",)):
        assert missing in " ".join(node.run(*words).split()), words
    assert node.ask(DEPLOYMENT)["code"] == 404


def is_applied_once_the_api_is_back(node: Cluster) -> dict:
    """The API is away when it is to be applied: it hangs, and comes back."""
    node.host.exec("systemctl", "kill", "-s", "STOP", "kube-apiserver.service")
    node.update(ADDONS="coredns")
    wait_for(lambda: "WAITING" in node.run("status"), 300, "the wait", every=1)
    node.host.exec("systemctl", "kill", "-s", "CONT", "kube-apiserver.service")
    node.succeeds()
    made = node.ask(DEPLOYMENT)
    assert made["metadata"]["labels"]["heat-node-agent/add-on"] == "coredns"
    assert made["spec"]["template"]["spec"]["containers"][0]["image"] == "docker.io/coredns/coredns:1.9.4"
    service = node.ask(f"{NAMESPACE}/services/kube-dns")
    assert service["spec"]["clusterIP"] == "10.254.0.10"
    assert "kubernetes cluster.local " in node.ask(f"{NAMESPACE}/configmaps/coredns")["data"]["Corefile"]
    assert len(node.ask("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/system:coredns")["subjects"]) == 1
    return made


def tells_why_pods_do_not_run(node: Cluster, server, made: dict) -> dict:
    """No node takes its pods: that is reported, and is no failure of the master."""
    told = signalled(server, "node")["add_ons"]
    assert told["coredns"].startswith("no: deployment kube-system/coredns: "), told
    node.has_pod_network()
    wait_for(lambda: node.component("kubelet")["state"] == "healthy", 300, "a Ready node", every=1)
    # There is no controller manager that would make its pods.
    made = node.ask(f"{DEPLOYMENT}/status", "PUT", made | {"status": {"observedGeneration": 1, "replicas": 2, "updatedReplicas": 2}})
    for number, (spec, status, words) in enumerate(PODS):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"coredns-{number}", "labels": {"k8s-app": "kube-dns"}}, "spec": spec, "status": status}
        assert node.ask(f"{NAMESPACE}/pods", "POST", pod)["metadata"]["uid"]
        cause = f"gate add-on coredns: deployment kube-system/coredns: 0 of 2 pods are available: pod coredns-{number}{words}"

        def is_told(cause: str = cause) -> bool:
            found = node.component()
            assert (found["state"], found["cause"]) == ("degraded", cause), found
            return True
        wait_for(is_told, 300, cause, every=1)
        for word in ("status", "explain"):
            done = node.host.exec("heat-node-agent", word, check=False)
            assert cause in " ".join(done.stdout.split()), done.stdout
            # Such a cluster is not well, however well its node is.
            assert word == "explain" or (done.returncode, done.stdout.splitlines()[0]) == (2, "DEGRADED: add-on coredns gate add-on coredns does not pass")
        node.ask(f"{NAMESPACE}/pods/coredns-{number}", "DELETE")
    made["status"]["availableReplicas"] = 2
    node.ask(f"{DEPLOYMENT}/status", "PUT", made)
    wait_for(lambda: node.component()["state"] == "healthy", 300, "the add-on runs", every=1)
    assert node.host.exec("heat-node-agent", "status", check=False).returncode == 0
    return made


def writes_only_what_differs(node: Cluster, server):
    """The same again writes nothing, and what somebody added stays; what the image has otherwise is put right."""
    before = node.ask(DEPLOYMENT)
    before["metadata"]["labels"]["theirs"] = "1"
    before = node.ask(DEPLOYMENT, "PUT", before)
    written = len(node.said("HNA-0620"))
    node.update()
    node.succeeds()
    assert node.ask(DEPLOYMENT) == before and len(node.said("HNA-0620")) == written
    node.update(COREDNS_TAG="1.10.1", ADDONS_WAIT=300)
    wait_for(lambda: node.ask(DEPLOYMENT)["metadata"]["generation"] == 2, 300, "the new image", every=1)
    # It is waited for, as the parameters say.
    changed = node.ask(DEPLOYMENT)
    assert changed["metadata"]["labels"]["theirs"] == "1" and not server.signals("node", accepted=True)
    changed["status"] |= {"observedGeneration": 2}
    node.ask(f"{DEPLOYMENT}/status", "PUT", changed)
    node.succeeds()
    assert signalled(server, "node")["add_ons"] == {"coredns": "ready"}, signalled(server, "node")


def tells_what_the_api_refuses(node: Cluster, server, made: dict):
    """What the API refuses, with the manifest and its words; corrected in the image, it is applied by order."""
    bad = {"metadata": {"name": "bad", "namespace": "kube-system"}, "spec": {"replicas": -1}}
    for name, change, words in (("thing", {}, ("making deployment kube-system/bad", "the API answered 422", "must be greater than or equal to 0")),
                                ("kind", {"kind": "Deploymnt"}, ("the API has no kind Deploymnt in apps/v1",)),
                                ("version", {"apiVersion": "apps/v1beta1"}, ("the API has no apps/v1beta1",))):
        node.image(name, (THING % "a").replace("name: thing", f"name: {name}") + "---\n" + json.dumps(made | bad | change))
        node.update(ADDONS=f"coredns,{name}")
        refusal = node.result()
        # What Heat hears is what is seen on the node.
        for told in (refusal, node.run("status"), node.run("explain")):
            for part in (f"{ADDONS}/{name}/{name}.yaml, line 3", *words):
                assert part in " ".join(told.split()), told
        assert "HNA-0635" in refusal, refusal
    assert node.ask(f"{NAMESPACE}/configmaps/thing")["data"] == {"network": "10.100.0.0/16", "key": "a"}
    node.image("thing", THING % "b")
    server.forget()
    node.publish("UPDATE", ADDONS="coredns,thing")
    node.host.exec("systemctl", "kill", "-s", "HUP", UNIT)
    node.succeeds()
    assert node.ask(f"{NAMESPACE}/configmaps/thing")["data"]["key"] == "b"


def leaves_what_is_no_longer_asked_for(node: Cluster):
    """What is no longer asked for stays, and that is said once."""
    node.update(ADDONS="coredns")
    node.succeeds()
    node.update()
    node.succeeds()
    # Once by the rollback of the update that was refused.
    left = lambda: [line for line in node.said("HNA-0636") if "add-on thing" in line]  # noqa: E731
    wait_for(lambda: len(left()) >= 2, 300, "both lines")
    assert left() == ["add-on thing is no longer asked for; its objects stay in the cluster"] * 2
    assert node.ask(f"{NAMESPACE}/configmaps/thing")["data"]["key"] == "b"


def test_add_ons_are_applied_once_and_what_is_wrong_with_them_is_told(hosts, signal_server, magnum):
    host, server = hosts("m1", ip=MASTER), signal_server()
    node = Cluster(host, server, parameters("master", "m1", MASTER, MASTER, **magnum().parameters()))
    node.image("coredns", COREDNS)
    node.up(SETTINGS)

    names_what_the_image_lacks(node)
    made = is_applied_once_the_api_is_back(node)
    made = tells_why_pods_do_not_run(node, server, made)
    writes_only_what_differs(node, server)
    tells_what_the_api_refuses(node, server, made)
    leaves_what_is_no_longer_asked_for(node)


def test_of_masters_that_start_together_each_object_is_made_once(hosts, signal_server, tmp_path):
    """Three masters that all take themselves for the first one, as without MASTER_INDEX, each with an API server of its own before one etcd."""
    masters = Masters(hosts, signal_server, tmp_path)
    objects, manifests = many(40)
    objects |= OF_COREDNS
    for node in masters.nodes:
        del node.inputs["MASTER_INDEX"]
        stand_ins.into(node.host, VERSION)
        into_image(node.host, "coredns", COREDNS)
        into_image(node.host, "many", manifests)
        is_recorded(node.host)
        node.publish(ADDONS="coredns,many")
    together(*(lambda node=node: start(node.host, node.server, SETTINGS) for node in masters.nodes))
    together(*(node.succeeds for node in masters.nodes))
    asked = [writes(node.host, objects) for node in masters.nodes]
    print([len([one for one in of if one[2] == "201"]) for of in asked], [len([one for one in of if one[2] == "409"]) for of in asked])
    every = [one for of in asked for one in of]
    assert sorted(one for _, one, status in every if status == "201") == sorted(objects)
    assert {(method, status) for method, _, status in every} == {("POST", "201"), ("POST", "409")}, "they met, and nobody overwrote another's"
    is_made_once(masters.nodes[0], objects)
    # Each agent's own account of it.
    told = [re.search(r"(\d+) objects made, (\d+) changed", e["MESSAGE"]) for node in masters.nodes for e in node.host.journal(HNA_CODE="HNA-0620")
            if "applied add-on" in e["MESSAGE"]]
    assert (sum(int(t[1]) for t in told), sum(int(t[2]) for t in told)) == (len(objects), 0), told


@pytest.mark.longer
def test_an_api_that_is_away_for_five_minutes_is_waited_for(hosts, signal_server, magnum):
    """It is cut off in the middle of an add-on: whatever is done to it on the node, it is not back before its time."""
    host, server = hosts("m1", ip=MASTER), signal_server()
    node = Cluster(host, server, parameters("master", "m1", MASTER, MASTER, **magnum().parameters(), WAIT_TIMEOUT=1500))
    node.image("coredns", COREDNS)
    objects, manifests = many(200)
    node.image("many", manifests)
    node.has_pod_network()
    node.up(SETTINGS)
    is_recorded(host)
    node.update(ADDONS="many,coredns")
    wait_for(lambda: writes(host, objects), 300, "the first object")
    host.sh("nft 'table inet away { chain input { type filter hook input priority -10; tcp dport 6443 drop; }; }'")
    began = time.monotonic()

    def is_told() -> str:
        page = " ".join(node.run("status").split())
        assert page.startswith("WAITING for ") and re.search(
            r"add-on many waiting \S+ tried .* why: no (connection to|answer from) 127\.0\.0\.1:6443 within 10 s \(while inspecting configmap kube-system/many-\d+ in", page), page
        return page
    # No answer is none for as long as an answer may take.
    wait_for(is_told, 120, "the cause", every=1)
    before = len(writes(host, objects))
    assert 0 < before < len(objects)
    while time.monotonic() - began < AWAY:
        # From then on it is to be seen, and nothing has failed.
        page = is_told()
        assert not server.signals("node", accepted=True)
        time.sleep(5)
    print(page, node.run("status"), node.run("explain"))
    told = host.journal(HNA_EVENT="ObjectWaiting")
    assert told and all("add-on many is not applied yet" in e["MESSAGE"] and "127.0.0.1:6443" in e["HNA_CAUSE"] for e in told), told
    assert len(writes(host, objects)) == before
    host.sh("nft delete table inet away")
    node.succeeds()
    objects |= OF_COREDNS
    asked = writes(host, objects)
    assert sorted(one for _, one, _ in asked) == sorted(objects) and {(method, status) for method, _, status in asked} == {("POST", "201")}
    is_made_once(node, objects)
    # Nothing of it is left on the node. CoreDNS has no controller here that would make its pods.
    wait_for(lambda: {c["name"] for c in node.status()["node"]["components"] if c["state"] != "healthy"} == {"add-on coredns"}, 300, "all else is healthy", every=1)
