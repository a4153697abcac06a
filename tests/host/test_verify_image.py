"""`verify --image --metadata FILE` in a root directory with real programs and stand-ins for Kubernetes': the programs are asked for their releases,
and what it finds missing is what a bring-up fails at."""
import json

from lib import stand_ins
from lib.cluster import VERSION
from lib.hosts import packages
from lib.node import once

IP = "10.77.0.31"
DOCUMENT = "/var/tmp/node.json"
TEMPLATE = "/var/tmp/node.yaml"
WORKER = {"ROLE": "minion", "KUBE_TAG": f"v{VERSION}", "INSTANCE_NAME": "w1", "KUBE_NODE_IP": IP, "KUBE_MASTER_IP": "10.77.0.21",
          "CONTAINER_RUNTIME": "containerd", "NETWORK_DRIVER": "none", "WAIT_TIMEOUT": 60,
          "CERTIFICATES": "bootstrap", "BOOTSTRAP_TOKEN": "abcdef.0123456789abcdef", "CA_CERTIFICATE": "/given/ca.crt"}


def needs(host, file: str = DOCUMENT) -> dict[str, str]:
    """What the image lacks for the node, by its place."""
    done = host.exec("heat-node-agent", "verify", "--image", "--metadata", file, "--json", check=False)
    # The host has run: that alone keeps it from being an image.
    assert done.returncode == 1, done.stderr
    return {m["place"]: m["problem"] for m in json.loads(done.stdout)["mistakes"] if "needed by" in m["problem"]}


def test_an_image_is_measured_by_what_the_nodes_of_a_document_need(hosts):
    host = hosts("w1", ip=IP)
    stand_ins.into(host, VERSION)
    host.install_agent()

    worker = WORKER | {"CONTAINERD_VERSION": packages()["containerd"]}

    def give(**changes):
        entry = {"id": "1", "name": "worker", "group": "kubernetes-node", "config": worker | changes}
        host.write(DOCUMENT, json.dumps({"deployments": [entry]}))
    give()
    assert needs(host) == {}
    # A release that does not fit is known by asking the program.
    give(KUBE_TAG="v1.13.3")
    (kubelet,) = (text for place, text in needs(host).items() if place == "kubelet")
    assert f"kubelet {VERSION.rpartition('.')[0]} is installed, but KUBE_TAG is v1.13.3" in kubelet and "needed by deployment worker (minion, Kubernetes v1.13.3)" in kubelet

    give()
    host.sh("mv /usr/local/bin/kubelet /var/tmp/")
    found = needs(host)
    assert len(found) == 1 and "kubelet" in next(iter(found)) and "missing" in next(iter(found.values())), found
    lines = host.exec("heat-node-agent", "verify", "--image", "--metadata", DOCUMENT, check=False).stdout.splitlines()
    assert len([line for line in lines if "needed by deployment worker" in line]) == 1
    assert lines[-1].startswith(f"settings, the image and what 1 kubernetes-node deployments of {DOCUMENT} need: ")
    template = {"heat_template_version": "2016-10-14", "resources": {
        "config": {"type": "OS::Heat::SoftwareConfig", "properties": {"group": "kubernetes-node", "config": json.dumps(worker)}},
        "deployment": {"type": "OS::Heat::SoftwareDeployment", "properties": {"config": {"get_resource": "config"}, "server": "s"}}}}
    host.write(TEMPLATE, json.dumps(template))
    assert set(needs(host, TEMPLATE)) == set(found)
    host.sh("mv /var/tmp/kubelet /usr/local/bin/")

    # The bring-up refuses what it finds missing, and is not begun: nothing is there yet.
    host.sh("for unit in /etc /usr/lib /usr/local/lib; do rm -f $unit/systemd/system/kube-proxy.service; done; systemctl daemon-reload")
    (place,) = needs(host)
    assert place == "kube-proxy.service"
    host.exec("mkdir", "-p", "/given")
    assert once(host, **worker) == 1
    said = [e["MESSAGE"] for e in host.journal() if e.get("HNA_CODE") == "HNA-0601" or "kube-proxy.service does not exist" in e["MESSAGE"]]
    assert any("kube-proxy.service" in line for line in said), said
