"""The templates of examples/heat: by themselves, and by a real Heat with the real resource types.

Nova, Neutron, Cinder, Glance and Octavia are one stand-in (cloud.py), which takes everything: what Heat checks is checked, what those refuse is not."""
import base64
import json
import os
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import yaml
from conftest import HOSTS
from lib import cloud_init, stand_ins
from lib.cloud import ENVIRONMENTS, EXAMPLES, Cloud
from lib.common import GATEWAY, REPO, run, wait_for
from lib.heat import HEAT_DIR, inputs
from lib.hosts import Host, agent_binary
from lib.pod_network import together

CLUSTER = EXAMPLES / "kubecluster.yaml"
TEMPLATES = {path.name: yaml.safe_load(path.read_text().replace("heat_template_version: ", "heat_template_version: !!str "))
             for path in sorted(EXAMPLES.glob("*.yaml"))}
# name → whether it is never shown
KNOWN = {m[1]: "(never shown)" in m[0] for m in re.finditer(r"(?m)^\| `([A-Z_0-9]+)` \|.*$", (REPO / "docs/parameters.md").read_text())}
# What the agent sends to Heat (agent/daemon/node/bring_up.rs).
OUTPUTS = {"node_name", "node_address", "kube_version", "generation", "timings", "node_ready", "certificate_requests", "add_ons", "error"}


def walk(value):
    """Every map in it, with the names that lead there."""
    if isinstance(value, dict):
        yield value
    for child in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from walk(child)


def resources(template: dict):
    for name, resource in template["resources"].items():
        yield name, resource
        if definition := resource.get("properties", {}).get("resource_def"):
            yield f"{name}.resource_def", definition


def parameters_in(value) -> set[str]:
    named = [found["get_param"] for found in walk(value) if "get_param" in found]
    return {name if isinstance(name, str) else name[0] for name in named}


def node_inputs(template: dict):
    """name → value of what becomes an input of kubernetes-node."""
    sources = [r["properties"]["value"] for name, r in resources(template) if name == "settings"]
    sources += [r["properties"][key] for _, r in resources(template) for key in ("settings", "secrets", "input_values") if key in r.get("properties", {})]
    for source in sources:
        for found in walk(source):
            yield from ((name, value) for name, value in found.items() if re.fullmatch("[A-Z][A-Z0-9_]+", name) and name != "SCHEME")


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_is_complete_and_hides_its_secrets(name):
    template = TEMPLATES[name]
    assert template["heat_template_version"] >= "2018-08-31"
    for parameter, what in template.get("parameters", {}).items():
        assert what.get("description", "").endswith((".", ".\n")), parameter
        assert not KNOWN.get(parameter.upper()) or what.get("hidden"), parameter
    for output, what in template.get("outputs", {}).items():
        assert what.get("description"), output
    if groups := template.get("parameter_groups"):
        assert sorted(p for group in groups for p in group["parameters"]) == sorted(template["parameters"])
    used = parameters_in([template["resources"], template.get("conditions", {}), template.get("outputs", {})])
    assert used - {"OS::stack_id", "OS::stack_name"} == set(template.get("parameters", {}))
    for resource, what in resources(template):
        if (nested := what["type"]) in TEMPLATES:
            takes, given = TEMPLATES[nested]["parameters"], set(what.get("properties", {}))
            assert given <= set(takes), resource
            assert {p for p, of in takes.items() if "default" not in of} <= given, resource
            for parameter in given:
                # What is hidden here must not come out there.
                hidden = {p for p in parameters_in(what["properties"][parameter]) if template["parameters"].get(p, {}).get("hidden")}
                assert not hidden or takes[parameter].get("hidden"), (resource, parameter)
        if what["type"] == "OS::Heat::SoftwareConfig":
            assert {o["name"] for o in what["properties"]["outputs"]} <= OUTPUTS
            assert {i["name"] for i in what["properties"].get("inputs", [])} <= set(KNOWN)
    for given, value in node_inputs(template):
        assert given in KNOWN, given
        if KNOWN[given]:
            assert all(template["parameters"][p].get("hidden") for p in parameters_in(value)), given


@pytest.mark.parametrize("path", ENVIRONMENTS, ids=lambda path: path.stem)
def test_an_environment_gives_what_there_is_and_what_is_needed(path):
    given = yaml.safe_load(path.read_text())["parameters"]
    takes = TEMPLATES[CLUSTER.name]["parameters"]
    assert set(given) <= set(takes)
    assert {p for p, of in takes.items() if "default" not in of} <= set(given)
    # No pod resolves a service's name without it; without TLS it does not reach the API.
    assert given.get("addons", []) == ([] if path.stem == "legacy" else ["coredns"])
    assert (REPO / "image-build/addons/coredns").is_dir()


# What a server without deployments gets: by the template's parameter, the node's own file and what makes the agent read it.
WITHOUT_DEPLOYMENTS = {
    "deployments": ("/etc/heat-node-agent/node.json", "/etc/systemd/system/heat-node-agent.service.d/metadata.conf", "run --metadata /etc/heat-node-agent/node.json"),
    "heat-params": ("/etc/sysconfig/heat-params", "/etc/heat-node-agent/agent.toml.d/heat-params.toml", 'source = "heat-params"')}


@pytest.mark.parametrize("written_as", WITHOUT_DEPLOYMENTS)
def test_the_user_data_of_a_node_without_deployments_makes_a_node(written_as, tmp_path):
    # Characters of a password of Heat's (heat/common/password_gen.py); a list of deployments would take others, too.
    password = "p'\\\"#: {x" if written_as == "deployments" else "p!@#%^&*x"
    values = {"$id": "c0ffee00-1111-4222-8333-444455556666", "$name": "kube-master-0", "$kube_tag": "v1.31.4", "$address": "192.0.2.11",
              "$pods_cidr": "10.100.0.0/24", "$container_runtime": "containerd", "$wait_timeout": "3000",
              "$handle": json.dumps({"alarm_url": "http://192.0.2.1/signal", "user_id": "u", "auth_url": "http://192.0.2.1:5000/v3",
              "password": password, "project_id": "p"})}
    replace = TEMPLATES["wait-condition.yaml"]["resources"]["server"]["properties"]["user_data"]["str_replace"]
    assert set(replace["params"]) == set(values)
    condition, heat_params, deployments = replace["template"]["if"]
    assert TEMPLATES["wait-condition.yaml"]["conditions"][condition] == {"equals": [{"get_param": "written_as"}, "heat-params"]}
    text = re.sub(r"\$[a-z_]+", lambda found: values[found[0]], heat_params if written_as == "heat-params" else deployments)
    written = {file["path"]: file for file in yaml.safe_load(text)["write_files"]}
    path, setting, words = WITHOUT_DEPLOYMENTS[written_as]
    assert written.keys() == {path, setting}
    assert written[path]["permissions"] == "0600" and words in written[setting]["content"]
    # The agent that runs reads nothing else, where `verify` also takes YAML.
    assert written_as == "heat-params" or json.loads(written[path]["content"])["deployments"]
    file, root = tmp_path / "node", tmp_path / "root"
    file.write_text(written[path]["content"])
    root.mkdir()
    assert "no mistakes" in run(agent_binary(), "verify", "--metadata", file).stdout
    plan = run(agent_binary(), "plan", "--metadata", file, "--root", root, check=False)
    # The agent brings the network of pods, and so the node is healthy only once the API calls it Ready.
    assert plan.returncode == 2 and "create file /etc/cni/net.d/10-heat-node-agent.conflist" in plan.stdout


def test_the_stack_waits_longer_than_its_nodes():
    """Heat's own hour must not end before the agent has said what is wrong."""
    for name in (CLUSTER.name, "wait-condition.yaml"):
        assert TEMPLATES[name]["parameters"]["wait_timeout"]["default"] / 60 + 10 <= 60, name
    node = TEMPLATES[CLUSTER.name]["parameters"]["wait_timeout"]["default"] / 60 + 10
    commands = re.findall(r"openstack stack (create|update) ([^`\n]*)", (REPO / "docs/heat-templates.md").read_text())
    assert {action for action, _ in commands} == {"create", "update"}
    for action, rest in commands:
        given = re.search(r"--timeout (\d+)", rest)
        # An update goes from the master to the minion.
        assert given and int(given[1]) >= node * (2 if action == "update" else 1), (action, rest)


def test_no_type_or_property_is_deprecated(heat_services):
    used = {}
    for template in TEMPLATES.values():
        for _, what in resources(template):
            if what["type"] not in TEMPLATES:
                used.setdefault(what["type"], set()).update(what.get("properties", {}))
    code = """
import json, sys
from heat.engine import resources
for kind, given in json.load(sys.stdin).items():
    one = resources.global_env().get_class(kind)
    for name, status in [(kind, one.support_status)] + [(f"{kind}: {p}", one.properties_schema[p].support_status) for p in given]:
        if status.status != "SUPPORTED":
            print(name, status.status, status.message)
"""
    wanted = {kind: sorted(given) for kind, given in used.items()}
    done = subprocess.run([HEAT_DIR / "cache/venv/bin/python", "-B", "-c", code], input=json.dumps(wanted), capture_output=True, text=True, check=True)
    assert done.stdout == "" and len(wanted) > 10


@pytest.fixture
def cloud(heat, tmp_path):
    made = Cloud(heat, tmp_path)
    yield made.start()
    # While there is a cloud: without one Heat cannot delete.
    for stack in list(heat.stacks):
        heat.delete(stack)
    made.stop()


@pytest.fixture(scope="module")
def ca(tmp_path_factory):
    """The environment that `certificates new-ca` makes."""
    folder = tmp_path_factory.mktemp("ca") / "ca"
    run(agent_binary(), "certificates", "new-ca", "--out", folder)
    return folder / "parameters.yaml"


def every(things, action):
    """Two at a time: Heat has two engines here."""
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(action, things))


def test_heat_takes_every_template_and_environment(cloud, ca):
    def with_ca(path):
        return [path] if path.stem == "legacy" else [path, ca]
    said = cloud.validate(CLUSTER, *with_ca(EXAMPLES / "environments/minimal.yaml"))
    assert set(said["NestedParameters"]) >= {"own_network", "security", "master_ports", "minion_ports", "master_nodes", "minion_nodes"}, said
    assert said["Parameters"]["CA_KEY"]["NoEcho"] == "true"

    for template in TEMPLATES:
        assert "Error" not in cloud.validate(EXAMPLES / template), template

    def preview(path):
        return path.stem, cloud.preview(CLUSTER, *with_ca(path))
    made = dict(every(ENVIRONMENTS, preview))
    kinds = {name: [r["resource_type"] for r in walk(found["resources"]) if "resource_type" in r] for name, found in made.items()}
    counted = {name: (types.count("OS::Nova::Server"), types.count("OS::Cinder::VolumeAttachment"), types.count("OS::Octavia::PoolMember"))
               for name, types in kinds.items()}
    assert counted == {"minimal": (2, 1, 0), "single-node": (1, 2, 0), "ha": (6, 9, 3), "air-gapped": (2, 1, 0), "legacy": (2, 1, 0),
                       "own-network": (5, 3, 0)}
    assert "OS::Neutron::Net" not in kinds["own-network"] and "OS::Neutron::FloatingIP" in kinds["minimal"]
    found = cloud.preview(EXAMPLES / "wait-condition.yaml", image="kubernetes", flavor="m1.medium", network="private", kube_tag="v1.31.4")
    assert "OS::Heat::WaitCondition" in [r["resource_type"] for r in found["resources"]]
    assert [pair["ip_address"] for pair in made_of(found, "OS::Neutron::Port")["port"]["allowed_address_pairs"]] == ["10.100.0.0/24"]
    # A constraint of a parameter that has no service behind it, and one that has.
    for wrong in ({"masters": 2}, {"image": "nothing"}, {"api_cidr": "everybody"}):
        with pytest.raises(Exception, match="(?i)" + next(iter(wrong))):
            cloud.preview(CLUSTER, EXAMPLES / "environments/minimal.yaml", **wrong)


BOTH = ("masters", "minions")
NETWORK = "10.100.0.0/16"


def among(what: str) -> set[str]:
    return {f"{to} from {by}: {what}" for to in BOTH for by in BOTH}


def made_of(preview: dict, kind: str) -> dict[str, dict]:
    """name → properties of the resources of a type."""
    return {r["resource_name"]: r["properties"] for r in walk(preview["resources"]) if r.get("resource_type") == kind}


def open_in(preview: dict) -> set[str]:
    """What the security groups let in. Heat's rule without a protocol is one for TCP; a group's own rules have no such default."""
    rules = list(made_of(preview, "OS::Neutron::SecurityGroupRule").values())
    for name, group in made_of(preview, "OS::Neutron::SecurityGroup").items():
        rules += [{**rule, "security_group": name, "remote_group": name if rule["remote_mode"] == "remote_group_id" else None} for rule in group["rules"]]
    found = set()
    for rule in rules:
        ports = sorted({str(rule[key]) for key in ("port_range_min", "port_range_max") if rule[key]})
        by = rule["remote_group"] or rule["remote_ip_prefix"]
        found.add(f"{rule['security_group']} from {by}: {' '.join([rule['protocol'] or 'all', *(['-'.join(ports)] if ports else [])])}")
    return found


# What holds with every network of pods. metrics-server, a pod on a minion, asks every kubelet.
ALWAYS = among("tcp 10250") | {"masters from 203.0.113.0/24: tcp 6443", "masters from masters: tcp 6443", "masters from minions: tcp 6443",
                               "masters from masters: tcp 2379-2380"}
# Packets of pods as they are: a group cannot tell a pod from its node, so all nodes are in one that is open to itself.
ROUTED = {"pods from pods: all", f"pods from {NETWORK}: all"}
FLANNEL_IN_ETCD = {"masters from minions: tcp 2379"}
CALICO = among("tcp 179") | among("4")
# Of static routes each port sends for its node's own pods, whose subnet no preview knows.
UNKNOWN = ""
# parameters, what is open besides, whose packets each port may send
POD_NETWORKS = [
    ({}, ROUTED, [UNKNOWN]),
    ({"network_driver": "flannel"}, FLANNEL_IN_ETCD | among("udp 8472"), []),
    ({"network_driver": "flannel", "flannel_backend": "host-gw"}, FLANNEL_IN_ETCD | ROUTED, [NETWORK]),
    ({"network_driver": "calico"}, CALICO | ROUTED, [NETWORK]),
    ({"network_driver": "calico", "calico_ipv4pool_ipip": "CrossSubnet"}, CALICO | ROUTED, [NETWORK]),
    ({"network_driver": "calico", "calico_ipv4pool_ipip": "Always"}, CALICO, []),
    ({"network_driver": "none"}, ROUTED, [NETWORK]),
]


def test_ports_and_groups_let_through_what_the_pods_send_and_no_more(cloud):
    minimal = EXAMPLES / "environments/minimal.yaml"
    for given, opened, pairs in POD_NETWORKS:
        found = cloud.preview(CLUSTER, minimal, **given)
        assert open_in(found) == ALWAYS | opened, given
        ports = {r["properties"]["name"]: [pair["ip_address"] for pair in r["properties"]["allowed_address_pairs"] or []]
                 for r in walk(found["resources"]) if r.get("resource_type") == "OS::Neutron::Port"}
        assert ports == {"kube-master-0": pairs, "kube-minion-0": pairs}, given
    outside = {"ssh_cidr": "198.51.100.0/24", "node_ports_cidr": "0.0.0.0/0"}
    found = cloud.preview(CLUSTER, EXAMPLES / "environments/ha.yaml", **outside)
    assert open_in(found) == ALWAYS | ROUTED | {"masters from 10.0.0.0/24: tcp 6443"} | {
        f"{to} from {by}" for to in BOTH for by in ("198.51.100.0/24: tcp 22", "0.0.0.0/0: tcp 30000-32767")}
    policies = {r["name"]: r["policies"] for r in made_of(found, "OS::Nova::ServerGroup").values()}
    assert policies == {"kube-masters": ["anti-affinity"], "kube-minions": ["soft-anti-affinity"]}
    servers = {r["properties"]["name"]: r["properties"]["scheduler_hints"]["group"] for r in walk(found["resources"])
               if r.get("resource_type") == "OS::Nova::Server"}
    assert len(servers) == 6
    mountpoints = sorted(r["properties"]["mountpoint"] for r in walk(found["resources"]) if r.get("resource_type") == "OS::Cinder::VolumeAttachment")
    assert mountpoints == ["/dev/vdb"] * 6 + ["/dev/vdc"] * 3


def test_masters_are_changed_one_by_one_and_minions_as_many_as_is_said():
    nodes = TEMPLATES[CLUSTER.name]["resources"]
    sizes = {name: nodes[name]["update_policy"]["rolling_update"] for name in ("master_nodes", "minion_nodes")}
    assert {name: of["max_batch_size"] for name, of in sizes.items()} == {"master_nodes": 1, "minion_nodes": {"get_param": "minions_at_a_time"}}
    assert all(of["min_in_service"] == 0 for of in sizes.values())
    assert "batch_create" not in nodes["master_nodes"]["update_policy"], "etcd waits for its quorum"


def test_the_wait_condition_looks_once_behind_all_nodes():
    """Whatever an update changes: test_handles.py has what Heat does to a condition that looks earlier or again."""
    template = TEMPLATES[CLUSTER.name]
    condition = template["resources"]["wait_condition"]
    assert set(condition["depends_on"]) == {"master_nodes", "minion_nodes"}
    given = parameters_in({name: value for name, value in condition["properties"].items() if name != "handle"})
    assert all(template["parameters"][p].get("immutable") for p in given), given


def check_nodes(told: dict[str, dict], tmp_path) -> dict[str, dict]:
    """What the agent makes of the metadata: no mistake, and a plan; gives back the inputs."""
    found = {}
    for name, metadata in told.items():
        file, root = tmp_path / f"{name}.json", tmp_path / f"root-{name}"
        file.write_text(json.dumps(metadata))
        root.mkdir()
        said = run(agent_binary(), "verify", "--metadata", file)
        assert "no mistakes" in said.stdout, said.stdout
        plan = run(agent_binary(), "plan", "--metadata", file, "--root", root, check=False)
        assert plan.returncode == 2, plan.stderr
        [deployment] = metadata["deployments"]
        found[name] = inputs(deployment)
    return found


LONG = pytest.mark.skipif(not os.environ.get("HNA_TEMPLATES"), reason="only with HNA_TEMPLATES=1: one to five minutes for each")


@pytest.mark.parametrize("name, masters, minions", [
    ("minimal", 1, 1), *(pytest.param(*given, marks=LONG) for given in (
        ("single-node", 1, 0), ("legacy", 1, 1), ("ha", 3, 3), ("air-gapped", 1, 1), ("own-network", 3, 2)))])
def test_what_heat_tells_the_nodes_has_no_mistake(cloud, ca, stack_name, tmp_path, name, masters, minions):
    environment = EXAMPLES / f"environments/{name}.yaml"
    cloud.create(stack_name, CLUSTER, environment, *([] if name == "legacy" else [ca]))
    expected = {f"kube-master-{i}" for i in range(masters)} | {f"kube-minion-{i}" for i in range(minions)}
    told = wait_for(lambda: (seen := cloud.servers(stack_name)).keys() == expected and seen, 600, f"deployments of {expected}", every=3)
    found = check_nodes(told, tmp_path)
    master = found["kube-master-0"]
    assert len(master["ETCD_INITIAL_CLUSTER"].split(",")) == masters
    assert {given.get("ADDONS", "") for node, given in found.items() if "master" in node} == {"" if name == "legacy" else "coredns"}
    ports = {port["name"]: port for port in cloud.kept("network", "ports") if port.get("name") in expected}
    for node, port in ports.items():
        role, index = node.removeprefix("kube-").split("-")
        own = f"10.100.{int(index) + (16 if role == 'minion' else 0)}.0/24"
        assert [pair["ip_address"] for pair in port["allowed_address_pairs"]] == [NETWORK if name == "legacy" else own]
    # Each is in its role's group and in that of the pods, whose rules have no protocol.
    assert [len(port["security_groups"]) for port in ports.values()] == [2] * (masters + minions)
    assert {len([r for r in cloud.kept("network", "security-group-rules") if r["security_group_id"] == group and r.get("protocol") is None])
            for port in ports.values() for group in port["security_groups"]} == {0, 2}
    for node, given in found.items():
        assert {n for n, v in given.items() if n.endswith("CA_KEY") and v} == (
            {"CA_KEY", "ETCD_CA_KEY", "FRONT_PROXY_CA_KEY"} if "master" in node and name != "legacy" else set())
        assert given["CLUSTER_UUID"] == master["CLUSTER_UUID"]
        assert given.get("API_BALANCER", "none") == ("haproxy" if name == "own-network" and "minion" in node else "none")
        if name in ("air-gapped", "own-network"):
            assert given["KUBE_NODE_IP"].startswith("192.0.2.")
        if name != "legacy":
            assert given["BOOTSTRAP_TOKEN"] == master["BOOTSTRAP_TOKEN"]
            assert len(given["NODE_SUBNETS"].split(",")) == masters + minions
    assert set(cloud.ends(stack_name, "CREATE_COMPLETE")) == expected


@LONG
def test_minions_come_and_go_and_masters_come_back(cloud, ca, stack_name):
    """The page's operations, with answers in the nodes' name."""
    minimal, shell = EXAMPLES / "environments/minimal.yaml", (REPO / "docs/heat-templates.md").read_text()

    def nodes() -> dict[str, dict]:
        return {server["name"]: server for server in cloud.kept("compute", "servers")}

    def update(status: str = "UPDATE_COMPLETE", **given) -> list[str]:
        cloud.update(stack_name, CLUSTER, minimal, ca, **given)
        return cloud.ends(stack_name, status)
    # A minion that fails is taken out; what it has said stays, until its owner says something else.
    cloud.create(stack_name, CLUSTER, minimal, ca, minions=2)
    cloud.ends(stack_name, "CREATE_FAILED", **{"kube-minion-1": "no space"})
    update("UPDATE_FAILED", minions=1, minions_to_remove="1")
    assert cloud.heat.resources(stack_name)["wait_condition"]["resource_status_reason"].endswith("no space")
    [(resource, said)] = re.findall(r"openstack stack resource signal blue (\S+) --data '(.*)'", shell)
    cloud.heat._client("signal", stack_name, resource, said.replace("kube-minion-2", "kube-minion-1"))
    assert update(minions=1, minions_to_remove="1") == []
    assert set(nodes()) == {"kube-master-0", "kube-minion-0"}
    # More minions: those that are there hear of the new routes, and the index of the one that was does not come back.
    assert sorted(update(minions=3, minions_to_remove="1")) == ["kube-master-0", *(f"kube-minion-{i}" for i in (0, 2, 3))]
    told = cloud.servers(stack_name)
    assert {len(inputs(of["deployments"][0])["NODE_SUBNETS"].split(",")) for of in told.values()} == {4}
    # One is replaced, and two go.
    update(minions=3, minions_to_remove="1,2")
    assert set(nodes()) == {"kube-master-0", *(f"kube-minion-{i}" for i in (0, 3, 4))}
    update(minions=1, minions_to_remove="1,2,3,4")
    before = nodes()
    assert set(before) == {"kube-master-0", "kube-minion-0"}
    # What was removed keeps its port, which Neutron would not delete before the server, and is in no node's routes and in no output.
    assert len([port for port in cloud.kept("network", "ports") if port.get("name", "").startswith("kube-")]) == 6
    assert set(cloud.heat.outputs(stack_name)["minions"]) == {"0"}
    assert {len(inputs(of["deployments"][0])["NODE_SUBNETS"].split(",")) for of in cloud.servers(stack_name).values()} == {2}
    # A master is replaced, and has its address and its volume again.
    master = cloud.servers(stack_name)["kube-master-0"]
    cloud.unhealthy(stack_name, "kube-master-0")
    assert "kube-master-0" in update(minions=1, minions_to_remove="1,2,3,4")
    after, again = nodes(), cloud.servers(stack_name)["kube-master-0"]
    assert after["kube-master-0"]["id"] != before["kube-master-0"]["id"] and after["kube-minion-0"]["id"] == before["kube-minion-0"]["id"]
    for name in ("KUBE_NODE_IP", "ETCD_VOLUME"):
        assert inputs(again["deployments"][0])[name] == inputs(master["deployments"][0])[name]
    [volume] = cloud.kept("volume", "volumes")
    assert [of["server_id"] for of in volume["attachments"]] == [after["kube-master-0"]["id"]]
    assert set(json.loads(cloud.heat.outputs(stack_name)["wait_data"])) == {"kube-master-0", *(f"kube-minion-{i}" for i in range(5))}


@LONG
def test_the_minimal_environment_becomes_a_cluster(cloud, ca, stack_name, tmp_path, request):
    """Each server of the stand-in's Nova is booted as a host, with its port's address, its volume and what Heat tells it. Kubernetes' programs
    are stand-ins; etcd, containerd, certificates, routes and Heat are real."""
    packages = {"kube_tag": "v1.31.4", "containerd_version": "1.6.20", "etcd_tag": "v3.4.23", "subnet_cidr": "10.77.0.0/24"}
    minimal = EXAMPLES / "environments/minimal.yaml"
    cloud.create(stack_name, CLUSTER, minimal, ca, **packages)
    names = ("kube-master-0", "kube-minion-0")
    told = wait_for(lambda: (seen := cloud.servers(stack_name)).keys() == set(names) and seen, 900, "deployments", every=3)
    found = check_nodes(told, tmp_path)
    hosts = {name: Host(name.removeprefix("kube-")) for name in names}
    request.node.stash[HOSTS] = list(hosts.values())

    def boot(name: str):
        host, given = hosts[name], found[name]
        host.up(ip=given["KUBE_NODE_IP"], gateway=GATEWAY, volumes={"vdc": ("1G", given["ETCD_VOLUME"])} if given.get("ETCD_VOLUME") else {})
        stand_ins.into(host, "1.31.4")
        host.put(stand_ins.CNI_PROGRAMS)
        host.install_agent()
        host.sh("install -d -m 755 /usr/share/heat-node-agent/addons /usr/share/heat-node-agent/addons/coredns")
        host.put({"/usr/share/heat-node-agent/addons/coredns/coredns.yaml": (REPO / "image-build/addons/coredns/coredns.yaml", 0o644)})
        host.sh("mkdir -p -m 700 /var/lib/heat-cfntools")
        document = {"os-collect-config": told[name]["os-collect-config"], "deployments": []}
        host.write("/var/lib/heat-cfntools/cfn-init-data", json.dumps(document), 0o600)
        host.exec("systemctl", "enable", "-q", "heat-node-agent.service")
        host.exec("systemctl", "start", "--no-block", "heat-node-agent.service")
    try:
        together(*(partial(boot, name) for name in names))
        cloud.heat.wait(stack_name, seconds=1800)
        out = cloud.heat.outputs(stack_name)
        assert out["versions"] == {"masters": {"0": "v1.31.4"}, "minions": {"0": "v1.31.4"}}
        assert {kind: {index: str(n) for index, n in of.items()} for kind, of in out["generations"].items()} == {"masters": {"0": "1"}, "minions": {"0": "1"}}
        # The deployments are signalled after the wait condition.
        assert set(json.loads(out["wait_data"])) == set(names)
        assert set(out["add_ons"]) == {"coredns"}
        assert out["masters"] == {"0": found[names[0]]["KUBE_NODE_IP"]} and out["api_address"].startswith("https://203.0.113.")
        # A changed parameter reaches the nodes one by one, and Heat hears of it.
        cloud.update(stack_name, CLUSTER, minimal, ca, **packages, node_parameters={"NODE_LABELS": "rack=7"})
        cloud.heat.wait(stack_name, "UPDATE_COMPLETE", seconds=1800)
        out = cloud.heat.outputs(stack_name)
        assert {str(n) for of in out["generations"].values() for n in of.values()} == {"2"}
    finally:
        for host in hosts.values():
            host.down()


@pytest.mark.parametrize("written_as", WITHOUT_DEPLOYMENTS)
def test_a_server_that_heat_tells_nothing_becomes_a_node(cloud, stack_name, tmp_path, request, written_as):
    """By exactly the user data that Heat has given Nova, and a real cloud-init. Kubernetes' programs are stand-ins; etcd, containerd, certificates and
    Heat are real."""
    run(agent_binary(), "certificates", "new-ca", "--out", tmp_path / "ca")
    cloud.create(stack_name, EXAMPLES / "wait-condition.yaml", image="kubernetes", flavor="m1.medium", network="lab", kube_tag="v1.31.4", written_as=written_as)
    [server] = wait_for(lambda: cloud.kept("compute", "servers"), 300, "the server", every=1)
    [port] = cloud.kept("network", "ports")
    user_data = base64.b64decode(server["user_data"]).decode()
    # The image: all programs, an agent that is enabled, and the keys.
    made = stand_ins.files("1.31.4") | stand_ins.CNI_PROGRAMS
    made |= {f"/etc/heat-node-agent/given/{name}": (tmp_path / "ca" / name, 0o600) for name in ("ca.crt", "ca.key")}
    files = cloud_init.image(tmp_path, enabled=True) | cloud_init.seed(tmp_path / "seed", user_data, server["id"])
    for number, (path, (content, mode)) in enumerate(made.items()):
        files[path] = tmp_path / f"file-{number}"
        files[path].write_bytes(content if isinstance(content, bytes) else content.read_bytes())
        files[path].chmod(mode)
    host = Host("master")
    request.node.stash[HOSTS] = [host]
    try:
        host.up(base=cloud_init.BASE, ip=port["fixed_ips"][0]["ip_address"], gateway=GATEWAY, instance_id="", files=files)
        cloud.heat.wait(stack_name, seconds=1800)
        code, said = cloud_init.status(host)
        assert code == 0, said
        [(node, data)] = json.loads(cloud.heat.outputs(stack_name)["wait_data"]).items()
        assert node == "kube-master-0", data
        healthy = wait_for(lambda: (done := host.exec("heat-node-agent", "status", check=False)).returncode == 0 and done.stdout, 300, "a healthy node", every=1)
        print(node, data, healthy)
        path, _, _ = WITHOUT_DEPLOYMENTS[written_as]
        assert host.sh(f"stat -c '%a %U' {path}").split() == ["600", "root"] and host.read(path) in user_data.replace("\n" + " " * 6, "\n")
        # The same at the next boot, from the same file: there is no other source, and nothing to do.
        host.reboot()
        wait_for(lambda: host.exec("heat-node-agent", "status", check=False).returncode == 0, 300, "a healthy node", every=1)
        plan = host.exec("heat-node-agent", "plan", *(["--metadata", path] if written_as == "deployments" else []), check=False)
        assert plan.returncode == 0, plan.stdout + plan.stderr
    finally:
        host.down()
