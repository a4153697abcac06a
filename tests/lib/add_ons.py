"""Add-ons of the image in a cluster of real programs: their manifests, and their objects as the API has them."""
import json

from lib.node import UNIT
from lib.real_kubernetes import REGISTRY, RealCluster

FOLDER = "/usr/share/heat-node-agent/addons"
LABEL = "heat-node-agent/add-on"
DNS = "10.254.0.10"
# What becomes of the words between braces in this cluster.
FILLED = {"{{cluster_domain}}": "cluster.local", "{{dns_service_ip}}": DNS, "{{registry|docker.io/coredns/}}coredns:{{coredns_tag|1.9.4}}":
          f"{REGISTRY}coredns:1.9.4", "{{registry|registry.k8s.io/metrics-server/}}metrics-server:{{metrics_server_tag|v0.6.4}}":
          f"{REGISTRY}metrics-server:v0.6.4"}
KINDS = "serviceaccounts,clusterroles,clusterrolebindings,roles,rolebindings,configmaps,services,deployments,apiservices"


def manifests(cluster: RealCluster, name: str, facts: bool = True) -> list[dict]:
    """An add-on's objects with the facts of this cluster, or the names of facts; kubectl's own check of fields, types and kinds has passed."""
    text = cluster.kubectl("create", "--dry-run=client", "--validate=true", "-o", "json", "-f", f"{FOLDER}/{name}/{name}.yaml")
    if facts:
        for tag, fact in FILLED.items():
            text = text.replace(tag, fact)
        assert "{{" not in text
    reader, found = json.JSONDecoder(), []
    while text := text.lstrip():
        one, end = reader.raw_decode(text)
        found.append(one)
        text = text[end:]
    return found


def named(one: dict) -> str:
    return f"{one['kind']} {'/'.join(filter(None, (one['metadata'].get('namespace'), one['metadata']['name'])))}"


def labelled(cluster: RealCluster, name: str, kinds: str = KINDS) -> dict[str, dict]:
    """Objects of an add-on as the API has them."""
    return {named(one): one for one in cluster.get(kinds, "--all-namespaces", "-l", f"{LABEL}={name}")["items"]}


def lacking(found, wanted, where: str = "") -> list[str]:
    """What is wanted and not there, or there in another way."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        return [lack for key in wanted for lack in lacking(found.get(key), wanted[key], f"{where}.{key}")]
    if isinstance(wanted, list) and isinstance(found, list) and len(wanted) == len(found):
        return [lack for i, one in enumerate(wanted) for lack in lacking(found[i], one, f"{where}[{i}]")]
    return [] if found == wanted else [f"{where}: {found!r}, not {wanted!r}"]


def component(cluster: RealCluster, name: str) -> dict:
    """What the master's status says of an add-on, once it has measured it."""
    found = [one for one in cluster.nodes["m1"].status()["node"]["components"] if one["name"] == f"add-on {name}"]
    assert found, name
    return found[0]


def said(cluster: RealCluster, code: str) -> list[str]:
    return [e["MESSAGE"] for e in cluster.nodes["m1"].host.journal(**{"_SYSTEMD_UNIT": UNIT}) if e.get("HNA_CODE") == code]


def applied(cluster: RealCluster) -> list[str]:
    """What the master's agent has written of add-ons, one by one."""
    return [line for line in said(cluster, "HNA-0620") if line.startswith("applied add-on ")]
