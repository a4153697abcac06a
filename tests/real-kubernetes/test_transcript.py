"""docs/cluster-transcript.md: the life of a cluster of Kubernetes' real programs from examples/heat/kubecluster.yaml as it stands, each operation
by the command that an operator types.

Real are Heat, Keystone, OpenStack's own client, cloud-init with the user data that Heat gave Nova, etcd, containerd, Kubernetes and the manifest of
CoreDNS. Stand-ins are Nova, Neutron, Cinder and Glance (tests/heat/cloud.py; lib.servers boots what Nova has) and the program in CoreDNS' pods
(add_ons.go). HNA_RENEW_GOLDEN=1 writes the page; else its words and commands have to be those of this file."""
import ast
import json
import re
import shutil
import time
from pathlib import Path

import pytest
from conftest import HOSTS
from lib.cloud import EXAMPLES, Cloud
from lib.cluster import Node
from lib.common import in_lab, wait_for
from lib.heat import HEAT_DIR, LONG
from lib.hosts import agent_binary, packages
from lib.real_kubernetes import ADMIN, AGNHOST, HOSTS_OWN, MADE, NET, REGISTRY, version
from lib.servers import Servers
from lib.transcript import Page, shortened

pytestmark = pytest.mark.longer
STACK = "blue"
MASTER, MINIONS = "kube-master-0", [f"kube-minion-{i}" for i in range(3)]
UPDATE = f"openstack stack update -t kubecluster.yaml -e my.yaml -e ca/parameters.yaml --timeout 120 --wait {STACK}"
# Of the events of a stack: those of the stack itself and of its nodes, and what failed.
EVENTS = rf"\[{STACK}\]|\[{STACK}\.\w+_nodes\]|wait_condition|FAILED|ERROR"
# What the agent has said since it was asked last.
JOURNAL = "journalctl -q --no-pager -p info -o cat --cursor-file=/run/journal-read -u heat-node-agent"
LINES = 40
# As many as it takes for no pod to be left out by chance.
TRIES = 60
ASK = f"for i in $(seq {TRIES}); do wget -qO- http://web:8080/hostname; echo; done | sort | uniq -c"
REACH = f"for pod in $(kubectl get pods -l app=web -o name); do echo \"$pod asks:\"; kubectl exec $pod -- sh -c '{ASK}'; done"
WEB = f"""# A pod on every node, the master too, and a service before them.
apiVersion: apps/v1
kind: DaemonSet
metadata: {{name: web}}
spec:
  selector: {{matchLabels: {{app: web}}}}
  template:
    metadata: {{labels: {{app: web}}}}
    spec:
      tolerations: [{{operator: Exists}}]
      terminationGracePeriodSeconds: 1
      containers: [{{name: web, image: "{AGNHOST}", imagePullPolicy: Never, args: [netexec, --http-port=8080]}}]
---
apiVersion: v1
kind: Service
metadata: {{name: web}}
spec: {{selector: {{app: web}}, ports: [{{port: 8080}}]}}
"""
INTRODUCTION = """# A cluster from its creation to its deletion

<!-- Made by tests/real-kubernetes/test_transcript.py (HNA_RENEW_GOLDEN=1); change it there. -->

One run of

    tests/run real-kubernetes-longer -k transcript

which creates a cluster from [kubecluster.yaml](../examples/heat/kubecluster.yaml) as it stands, changes it in each way that
[heat-templates.md](heat-templates.md#changes) describes for minions, and deletes it. `HNA_RENEW_GOLDEN=1` before it writes this page anew. Commands with `$` are an operator's of the
project, in a copy of `examples/heat`; the others are root's on the node that the prompt names. Left out are lines of output, where it says so,
ids, dates, and the cloud's credentials.

**Real**: Heat and Keystone, the client `openstack`, cloud-init on each node with the user data that Heat gave Nova, systemd, etcd, containerd, Kubernetes 1.20.2, the
manifest of CoreDNS. **Stand-ins**: Nova, Neutron, Cinder and Glance are one process that takes everything (`tests/heat/cloud.py`). The tests boot each of its servers as
a host in a container, with its port's address, attach its volumes, and remove the host when the server is deleted. So no packet passes a security group or a floating address, and
`kubectl` runs on the master, not by the output `kubeconfig`. The program in CoreDNS' pods was compiled for the tests ([add-ons.md](add-ons.md)). No registry is asked: images of
pods are put into containerd's store as soon as it runs."""


class Operator:
    """Who has a cloud, a copy of the templates and the keys of the nodes; what happens is on the page."""

    def __init__(self, page: Page, servers: Servers, folder: Path):
        self.page, self.servers, self.folder = page, servers, folder
        self.parameters: dict[str, str] = {}
        self.seconds: dict[str, float] = {}
        (folder / "bin").mkdir()
        (folder / "bin/heat-node-agent").symlink_to(agent_binary())
        self.path = f"{folder}/bin:{HEAT_DIR}/cache/venv/bin"

    def text(self, words: str):
        self.page.text(words)

    def edit(self, **parameters: str):
        """my.yaml, of which the page has what is new in it."""
        self.parameters |= parameters
        (self.folder / "my.yaml").write_text("parameters:\n" + "".join(f"  {name}: {value}\n" for name, value in self.parameters.items()))
        self.text("```yaml\n# my.yaml\nparameters:\n" + "".join(f"  {name}: {value}\n" for name, value in parameters.items()) + "```")

    def here(self, command: str, keep: str = "", most: int = 0, code: int = 0) -> str:
        """At the operator's own machine."""
        since = time.monotonic()
        # Whoever is told to stop at a pipe's end has said enough.
        script = '. "$0"; export PATH="$1:$PATH"; eval "$2" 2>&1'
        done = in_lab("env", "-C", self.folder, "bash", "-c", script, HEAT_DIR / "state/openrc", self.path, command, check=False, timeout=2 * LONG)
        seconds = time.monotonic() - since
        self.servers.check()
        # Of its plugins for services that nobody has here.
        said = re.sub(r"(?m)^Could not load '.*\n", "", done.stdout)
        shown = shortened(said, keep, most)
        if " --wait " in command:
            self.seconds[f"{len(self.seconds)} {command.split()[2]}"] = seconds
            shown += f"\n[{seconds:.0f} seconds]"
        self.page.said("$", command, shown)
        assert done.returncode == code, f"{command}: {done.returncode}\n{said}"
        return said

    def output(self, name: str):
        """One of the stack's."""
        return ast.literal_eval(self.here(f"openstack stack output show -f value -c output_value {STACK} {name}"))

    def on(self, node: str, command: str, keep: str = "", most: int = 0, code: int = 0) -> str:
        """As root of a node."""
        done = self.servers.named()[node].exec("bash", "-c", f"exec 2>&1; cd; export KUBECONFIG={ADMIN}\n{command}", check=False, timeout=LONG)
        self.page.said(f"{node}#", command, shortened(done.stdout, keep, most))
        assert done.returncode == code, f"{node}: {command}: {done.returncode}\n{done.stdout}"
        return done.stdout

    # --- without a word on the page ---
    def kubectl(self, *words: str) -> str:
        return self.servers.named()[MASTER].exec("kubectl", "--kubeconfig", ADMIN, *words, timeout=NET).stdout

    def get(self, *words: str) -> list[dict]:
        return json.loads(self.kubectl("get", "-o", "json", *words))["items"]

    def are_ready(self, *nodes: str):
        def ready() -> bool:
            found = {n["metadata"]["name"]: {c["type"]: c["status"] for c in n["status"]["conditions"]}["Ready"] for n in self.get("nodes")}
            assert found == dict.fromkeys(nodes, "True"), found
            return True
        wait_for(ready, NET, f"{nodes} Ready", every=1)

    def are_quiet(self, *nodes: str):
        """Nothing is left to do there."""
        hosts = self.servers.named()
        for node in nodes:
            wait_for(lambda n=node: hosts[n].exec("heat-node-agent", "status", check=False).returncode == 0, NET, f"{node} healthy", every=1)

    def runs(self, *nodes: str):
        """A pod of the service on each, and the name server."""
        def placed() -> bool:
            found = {p["spec"].get("nodeName"): {c["type"]: c["status"] for c in p["status"].get("conditions", [])}.get("Ready") for p in self.get("pods", "-l", "app=web")}
            assert found == dict.fromkeys(nodes, "True"), found
            return True
        wait_for(placed, NET, f"pods on {nodes}", every=1)
        self.kubectl("rollout", "status", "-n", "kube-system", "--timeout=250s", "deployment/coredns")

    def wants_certificates(self, *nodes: str):
        """The kubelets of these have asked for their serving certificates, and nobody has answered."""
        def asked() -> bool:
            pending = {r["spec"]["username"] for r in self.get("csr") if r["spec"]["signerName"].endswith("kubelet-serving") and not r["status"].get("conditions")}
            return pending == {f"system:node:{node}" for node in nodes}
        wait_for(asked, NET, f"requests of {nodes}", every=1)

    def started(self, *nodes: str) -> dict[str, dict[str, str]]:
        hosts = self.servers.named()
        return {node: Node(hosts[node], None, {}).started() for node in nodes}

    def restarted(self, before: dict[str, dict[str, str]]) -> dict[str, set[str]]:
        now = self.started(*before)
        return {node: {unit for unit in units if units[unit] != before[node].get(unit)} for node, units in now.items()}

    def capacities(self) -> dict[str, str]:
        """How many pods each node takes."""
        return {n["metadata"]["name"]: n["status"]["capacity"]["pods"] for n in self.get("nodes")}

    def labels(self) -> dict[str, str | None]:
        return {n["metadata"]["name"]: n["metadata"]["labels"].get("rack") for n in self.get("nodes")}


@pytest.fixture
def cloud(programs, heat, tmp_path):
    made = Cloud(heat, tmp_path)
    yield made.start()
    # While there is a cloud: without one Heat cannot delete.
    for stack in list(heat.stacks):
        heat.delete(stack)
    made.stop()


@pytest.fixture
def operator(cloud, tmp_path, request) -> Operator:
    folder = tmp_path / "heat"
    shutil.copytree(EXAMPLES, folder)
    hosts = request.node.stash[HOSTS] = []
    with Servers(cloud, tmp_path / "servers", hosts) as servers:
        page = Page("cluster-transcript", {f"file://{folder}/": "", f"{folder}/": ""})
        yield Operator(page, servers, folder)
        # Of a run that failed, too.
        (MADE / "cluster-transcript.md").write_text(page.made())


def reach_each_other(operator: Operator, *nodes: str):
    """Each pod gets answers from all by the service's name."""
    operator.runs(*nodes)
    said = operator.on(MASTER, REACH)
    names = {p["metadata"]["name"] for p in operator.get("pods", "-l", "app=web")}
    asked = {part.split(" ", 1)[0]: dict(reversed(line.split()) for line in part.splitlines()[1:]) for part in said.split("pod/")[1:]}
    assert asked.keys() == names and len(names) == len(nodes), said
    for pod, answers in asked.items():
        assert answers.keys() == names and sum(map(int, answers.values())) == TRIES, (pod, answers)


def approved(operator: Operator, *nodes: str):
    operator.wants_certificates(*nodes)
    operator.on(MASTER, "kubectl get csr")
    operator.on(MASTER, "kubectl get csr | awk '/Pending/ {print $1}' | xargs kubectl certificate approve")
    operator.are_quiet(*nodes)


def creates(operator: Operator):
    operator.text("## Creation\n\nA CA, an environment, the stack: one master and two minions.")
    operator.here("heat-node-agent certificates new-ca --out ca")
    operator.edit(
        image="kubernetes", master_flavor="m1.medium", minion_flavor="m1.medium", minions="2", kube_tag=f"v{version()}",
        containerd_version=packages()["containerd"], etcd_tag="v3.4.23", addons="[coredns]", container_infra_prefix=REGISTRY,
        subnet_cidr="10.77.0.0/24", external_network="public", floating_ips="masters", api_cidr="203.0.113.0/24", etcd_volume_size="1",
        master_docker_volume_size="6", minion_docker_volume_size="6", wait_timeout="600",
        node_parameters=json.dumps({"KUBEPROXY_OPTIONS": HOSTS_OWN["KUBEPROXY_OPTIONS"]}))
    operator.text("The last line is for these hosts alone: a container has no say in the machine's table of connections.")
    operator.servers.cloud.heat.stacks.append(STACK)
    operator.here(f"openstack stack create -t kubecluster.yaml -e my.yaml -e ca/parameters.yaml --timeout 60 --wait {STACK}", EVENTS)
    operator.here(f"openstack stack output show -f value -c output_value {STACK} api_address")
    operator.output("minions")
    assert operator.output("versions") == {"masters": {"0": f"v{version()}"}, "minions": dict.fromkeys("01", f"v{version()}")}
    nodes = [MASTER, *MINIONS[:2]]
    operator.are_ready(*nodes)
    operator.on(MASTER, "kubectl get nodes")
    operator.text("Before anybody runs a command in a pod, the minions' kubelets want their serving certificates approved. `heat-node-agent status` says so.")
    operator.wants_certificates(*MINIONS[:2])
    operator.on(MINIONS[0], "heat-node-agent status", code=2)
    approved(operator, *MINIONS[:2])
    operator.text("A pod on each node, and what they are told by the service's name: each asks sixty times and hears all of them.")
    operator.servers.named()[MASTER].write("/root/web.yaml", WEB)
    operator.on(MASTER, "cat web.yaml")
    operator.on(MASTER, "kubectl apply -f web.yaml")
    operator.runs(*nodes)
    operator.on(MASTER, "kubectl get pods -A -o wide")
    operator.on(MASTER, "kubectl get services -A")
    reach_each_other(operator, *nodes)
    operator.are_quiet(*nodes)
    operator.text("What the agent says of the master, and what a minion's has said since it was booted:")
    operator.on(MASTER, "heat-node-agent status")
    operator.on(MINIONS[0], JOURNAL, most=2 * LINES)


def changes(operator: Operator):
    """A label of all nodes, an option of the minions' kubelets."""
    operator.text("## A label and an option changed\n\nA label for all nodes, and fewer pods for the minions.")
    nodes = [MASTER, *MINIONS[:2]]
    before = operator.started(*nodes)
    operator.edit(node_parameters=json.dumps({"KUBEPROXY_OPTIONS": HOSTS_OWN["KUBEPROXY_OPTIONS"], "NODE_LABELS": "rack=7"}),
                  minion_parameters=json.dumps({"KUBELET_OPTIONS": "--max-pods=77"}))
    operator.here(UPDATE, EVENTS)
    assert operator.restarted(before) == dict.fromkeys(nodes, {"kubelet"})
    operator.are_ready(*nodes)
    wait_for(lambda: operator.capacities() == {MASTER: "110", MINIONS[0]: "77", MINIONS[1]: "77"}, NET, "77 pods", every=1)
    operator.on(MASTER, "kubectl get nodes -o custom-columns=NAME:.metadata.name,PODS:.status.capacity.pods,RACK:.metadata.labels.rack")
    assert operator.labels() == dict.fromkeys(nodes, "7")
    operator.are_quiet(*nodes)
    operator.on(MINIONS[0], JOURNAL, most=LINES)
    operator.on(MINIONS[0], "heat-node-agent generations")
    operator.output("generations")
    # A pod on the master is not ready for a moment after its kubelet's start.
    assert operator.output("add_ons").keys() == {"coredns"}


def grows(operator: Operator):
    operator.text("## One minion more\n\nThe others hear of its route, and nothing of Kubernetes is restarted on them.")
    nodes = [MASTER, *MINIONS]
    before = operator.started(*nodes[:3])
    operator.edit(minions="3")
    operator.here(UPDATE, EVENTS)
    operator.are_ready(*nodes)
    assert operator.restarted(before) == dict.fromkeys(nodes[:3], set())
    approved(operator, MINIONS[2])
    operator.on(MASTER, "kubectl get nodes -L rack")
    assert operator.labels() == dict.fromkeys(nodes, "7")
    reach_each_other(operator, *nodes)
    operator.are_quiet(*nodes)
    operator.on(MINIONS[0], JOURNAL, most=LINES)
    operator.servers.named()[MINIONS[2]].sh(JOURNAL)
    assert operator.output("minions").keys() == set("012")


def fails(operator: Operator):
    """An option that there is not: the node goes back by itself, and Heat takes the stack back."""
    operator.text("## An update that fails\n\nA typing error in an option. Heat changes one minion at a time and begins with the last, so only that one is tried; "
                  "with a shorter `wait_timeout` nobody waits long for its failure.")
    nodes, tried = [MASTER, *MINIONS], MINIONS[2]
    before = operator.started(*nodes)
    good = {name: operator.parameters[name] for name in ("minion_parameters", "wait_timeout")}
    operator.edit(minion_parameters=json.dumps({"KUBELET_OPTIONS": "--max-pod=99"}), wait_timeout="300")
    said = operator.here(UPDATE.replace("--wait", "--rollback enabled --wait"), EVENTS, code=1)
    assert f"Stack {STACK} UPDATE_FAILED" in said, said
    wait_for(lambda: operator.servers.cloud.heat.status(STACK).startswith("ROLLBACK_COMPLETE"), LONG, "the stack's rollback", every=3)
    operator.servers.check()
    operator.text("By `--rollback enabled` Heat then takes the stack back. Of a reason its events keep the first 255 characters.")
    said = operator.here(f"openstack stack event list --nested-depth 3 {STACK} | grep -e 'node]: UPDATE_FAILED' -e ROLLBACK")
    assert "gate kubelet" in said and "ROLLBACK_COMPLETE" in said, said
    operator.here(f"openstack stack show -f value -c stack_status {STACK}")
    operator.text("The node had gone back by itself before that, and has all of the reason; what Heat then asked for was in place.")
    said = operator.on(tried, JOURNAL, most=2 * LINES) + operator.on(tried, "heat-node-agent generations")
    assert "--max-pod" in said and "rolled back" in said, said
    operator.are_ready(*nodes)
    operator.are_quiet(*nodes)
    restarted = operator.restarted(before)
    assert restarted == {**dict.fromkeys(nodes, set()), tried: {"kubelet"}}, restarted
    operator.on(MASTER, "kubectl get nodes -o custom-columns=NAME:.metadata.name,PODS:.status.capacity.pods")
    assert operator.capacities() == {MASTER: "110", **dict.fromkeys(MINIONS, "77")}
    operator.text("What the environment had before is put back into it, for the next update.")
    operator.edit(**good)


def shrinks(operator: Operator):
    operator.text("## A minion is taken out\n\nIts pods go first, then its node, then its server.")
    left = [MASTER, MINIONS[0], MINIONS[2]]
    before = operator.started(*left)
    operator.on(MASTER, f"kubectl drain {MINIONS[1]} --ignore-daemonsets --delete-emptydir-data --timeout=10m")
    operator.on(MASTER, f"kubectl delete node {MINIONS[1]}")
    operator.edit(minions="2", minions_to_remove='"1"')
    operator.here(UPDATE, EVENTS)
    wait_for(lambda: set(operator.servers.named()) == set(left), NET, "the end of its host")
    operator.are_ready(*left)
    assert operator.restarted(before) == dict.fromkeys(left, set())
    operator.on(MASTER, "kubectl get nodes")
    reach_each_other(operator, *left)
    assert operator.output("minions").keys() == set("02")
    operator.are_quiet(*left)
    operator.on(MINIONS[0], JOURNAL, most=LINES)
    operator.on(MINIONS[0], "heat-node-agent status")


def deletes(operator: Operator, there: dict[str, set[str]]):
    operator.text("## Deletion")
    operator.here(f"openstack stack delete --yes --wait {STACK}", EVENTS)
    operator.servers.cloud.heat.stacks.remove(STACK)
    assert operator.here("openstack stack list -f value").strip() == ""
    wait_for(lambda: not operator.servers.named(), NET, "the end of all hosts")
    operator.text("Nothing is left in the cloud: no server, port, volume, security group or network of the stack.")
    assert kept(operator.servers.cloud) == there


def kept(cloud: Cloud) -> dict[str, set[str]]:
    kinds = [("compute", "servers"), ("network", "ports"), ("volume", "volumes"), ("network", "security-groups"), ("network", "networks"),
             ("network", "routers"), ("network", "floatingips"), ("compute", "server_groups")]
    return {kind: {one["id"] for one in cloud.kept(service, kind)} for service, kind in kinds}


def secrets(operator: Operator) -> set[str]:
    """Each line of a key of the CA, and what gives access to the cluster and the cloud."""
    keys = [path.read_text() for path in (operator.folder / "ca").iterdir()]
    lines = [line.strip() for text in keys if "PRIVATE KEY" in text for line in text.splitlines()]
    told = [i["value"].rpartition(".")[2] for metadata in operator.servers.cloud.servers(STACK).values() for i in metadata["deployments"][0]["inputs"]
            if i["name"] in ("BOOTSTRAP_TOKEN", "deploy_user_password")]
    openrc = re.findall(r"PASSWORD=(\S+)", (HEAT_DIR / "state/openrc").read_text())
    return {line for line in lines if re.fullmatch("[A-Za-z0-9+/=]{20,}", line)} | {word for word in [*told, *openrc] if word}


def test_the_life_of_a_cluster_is_its_transcript(operator):
    operator.text(INTRODUCTION)
    there = kept(operator.servers.cloud)
    creates(operator)
    hidden = secrets(operator)
    assert len(hidden) > 10
    for step in (changes, grows, fails, shrinks):
        step(operator)
    deletes(operator, there)
    print(operator.seconds)
    made = operator.page.made()
    assert not [word for word in hidden if word in made] and str(operator.folder) not in made
    operator.page.write()
