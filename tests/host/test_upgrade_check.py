"""Whether a node may go to another release of Kubernetes, by stand-ins of several: `upgrade-check` before the upgrade, and the order of the
restarts in it."""
import json
import re

import jsonschema
from lib import stand_ins
from lib.cluster import Node, parameters
from lib.common import GATEWAY, REPO
from lib.node import VDC, is_steady, signalled, start

MASTER, WORKER = (GATEWAY.rsplit(".", 1)[0] + end for end in (".21", ".22"))
OLD, NEW, LATER = "1.24.17", "1.25.16", "1.26.15"
# In the order in which Kubernetes' version skew policy has them upgraded.
ORDER = [("kube-apiserver",), ("kube-controller-manager", "kube-scheduler"), ("kubelet",), ("kube-proxy",)]
# What each of them reads: the stand-ins are scripts, and that a script was replaced is not seen.
ALL_CHANGED = {f"{name}_OPTIONS": "--v=3" for name in ("KUBEAPI", "KUBECONTROLLER", "KUBESCHEDULER", "KUBELET", "KUBEPROXY")}
STATIC_POD = """apiVersion: v1
kind: Pod
metadata:
  name: web
  annotations: {seccomp.security.alpha.kubernetes.io/pod: runtime/default}
spec: {containers: [{name: web, image: web}]}
"""
# What its API no longer serves from 1.25 on.
REMOVED = "apiVersion: policy/v1beta1\nkind: PodDisruptionBudget\nmetadata: {name: web}\n"


def check(host, *words, code: int) -> dict:
    """The checks by their names, valid by their schema, and the same on the page."""
    page = host.exec("heat-node-agent", "upgrade-check", *words, check=False)
    print(f"--- upgrade-check {' '.join(words)}: {page.returncode}\n{page.stdout}{page.stderr}")
    assert page.returncode == code, f"{words}: {page.returncode}\n{page.stdout}{page.stderr}"
    said = json.loads(host.exec("heat-node-agent", "upgrade-check", "--json", *words, check=False).stdout)
    jsonschema.Draft202012Validator(json.loads((REPO / "docs/schemas/upgrade-check.json").read_text())).validate(said)
    assert page.stdout.splitlines()[0] == said["summary"] and all(f" {one['name']}: " in page.stdout for one in said["checks"]), page.stdout
    return {one["name"]: one for one in said["checks"]}


def wrong(checks: dict) -> dict[str, str]:
    """What is not ok, in words."""
    return {name: " ".join(one["findings"] + one["remedies"]) for name, one in checks.items() if one["state"] != "ok"}


def began(host) -> list[list[int]]:
    """When the units became active, in the order that they are to have."""
    def when(unit):
        return int(host.show(f"{unit}.service", "ActiveEnterTimestampMonotonic")["ActiveEnterTimestampMonotonic"])
    return [[when(unit) for unit in units] for units in ORDER]


def old_master(hosts, signal_server, magnum) -> Node:
    """A steady one of the release before, with an etcd volume."""
    host = hosts("m1", ip=MASTER, volumes={"vdc": ("1G", VDC)})
    given = magnum().parameters() | {"KUBE_TAG": f"v{OLD}", "ETCD_VOLUME": VDC}
    master = Node(host, signal_server(), parameters("master", "m1", MASTER, MASTER, **given))
    stand_ins.into(host, OLD)
    master.publish()
    start(host, master.server)
    master.succeeds()
    host.wait_for(lambda: is_steady(host), what="a steady node")
    return master


def test_a_node_is_checked_before_its_upgrade_and_upgraded_in_order(hosts, signal_server, magnum):
    master = old_master(hosts, signal_server, magnum)
    host = master.host
    before, files = master.started(), host.sha256("/etc/kubernetes/apiserver", "/etc/kubernetes/kubelet", "/etc/etcd/etcd.conf")

    # --- nothing is wrong but that there is no way back ---
    found = wrong(check(host, "1.25", code=1))
    assert list(found) == ["etcd snapshot"] and "heat-node-agent etcd snapshot" in found["etcd snapshot"], found
    host.exec("heat-node-agent", "etcd", "snapshot")
    checks = check(host, "1.25", code=0)
    assert not wrong(checks) and {"kube-apiserver", "kubelets", "controllers", "kube-proxy", "etcd", "etcd members"} < set(checks), checks
    assert f"{OLD} runs at this master" in checks["kube-apiserver"]["findings"][0] and f"{OLD} on 1 node" in checks["kubelets"]["findings"][0]
    assert "1 of 1 member healthy" in checks["etcd members"]["findings"][0], checks

    # --- two minors at once, and back ---
    found = wrong(check(host, f"v{LATER}", code=1))
    assert "1.26 is 2 minors newer than 1.24" in found["kube-apiserver"] and "go to 1.25 first" in found["kube-apiserver"], found
    assert "more than one minor older" in found["controllers"], found
    found = wrong(check(host, "1.23", code=1))
    assert "1.23 would be a downgrade" in found["kube-apiserver"] and "newer than 1.23" in found["programs"], found
    assert host.exec("heat-node-agent", "upgrade-check", "latest", check=False).returncode == 64

    # --- what static pods and parameters ask for, and the new release lacks ---
    host.write("/etc/kubernetes/manifests/web.yaml", STATIC_POD)
    host.write("/etc/kubernetes/manifests/web-budget.yaml", REMOVED)
    found = wrong(check(host, "1.25", code=1))
    assert list(found) == ["removed APIs"], found
    for words in ("web-budget.yaml, line 1: policy/v1beta1 PodDisruptionBudget is not served from 1.25 on", "write it as policy/v1",
                  "web.yaml, line 1: the kubelet does not read the annotation seccomp.security.alpha.kubernetes.io/pod from 1.25 on"):
        assert words in found["removed APIs"], found
    host.sh("rm /etc/kubernetes/manifests/web*.yaml")
    assert master.started() == before and host.sha256(*files) == files, "it only looks"
    master.update(KUBECONTROLLER_OPTIONS="--experimental-cluster-signing-duration=8760h")
    master.succeeds()
    found = wrong(check(host, "1.25", code=1))
    # How the other programs would be run is not known then.
    assert list(found) == ["other programs", "parameters"] and "do not suit the release" in found["other programs"], found
    removed = "KUBECONTROLLER_OPTIONS: --experimental-cluster-signing-duration was removed: kube-controller-manager 1.24 is the last"
    assert removed in found["parameters"], found
    # A feature gate that the new release dropped, and one of which nothing is known.
    master.update(KUBECONTROLLER_OPTIONS=None, KUBELET_OPTIONS="--feature-gates=EndpointSlice=true,NodeSwap=false")
    master.succeeds()
    found = wrong(check(host, "1.25", code=1))
    gone = "KUBELET_OPTIONS: --feature-gates: feature gate EndpointSlice was removed: 1.24 is the last known to have it"
    assert gone in found["parameters"] and "KUBELET_OPTIONS: give --feature-gates=NodeSwap=false" in found["parameters"], found
    master.update(KUBELET_OPTIONS="--feature-gates=NodeSwap=false,OfOurOwn=true")
    master.succeeds()
    found = wrong(check(host, "1.25", code=2))
    assert list(found) == ["parameters"] and "it is unknown whether 1.25 has the feature gate OfOurOwn" in found["parameters"], found
    before = master.started()
    master.update(KUBELET_OPTIONS="--feature-gates=EndpointSlice=false")
    refused = signalled(master.server, "node")
    assert "feature gate EndpointSlice cannot be false: it is locked to true since 1.21" in json.dumps(refused), refused
    assert master.started() == before, "a kubelet that would not start is not restarted"
    master.server.forget()
    master.update(KUBELET_OPTIONS=None)
    master.succeeds()

    # --- etcd without an answer is not known, which is no reason to go on ---
    host.exec("systemctl", "stop", "etcd")
    found = wrong(check(host, "1.25", code=2))
    assert "not known" in found["etcd members"], found
    host.exec("systemctl", "start", "etcd")
    host.wait_for(master.healthy, what="a healthy master")

    # --- the programs of the new release are installed, and its deployment comes ---
    stand_ins.into(host, NEW)
    found = wrong(check(host, code=1))
    assert f"kube-apiserver {NEW} and kubelet {NEW} would run, which is newer than 1.24" in found["programs"], found
    assert not wrong(check(host, f"v{NEW}", code=0))
    before = master.started()
    master.update(KUBE_TAG=f"v{NEW}", **ALL_CHANGED)
    master.succeeds()
    assert master.restarted(before) == {unit for units in ORDER for unit in units}
    when = began(host)
    assert all(max(first) < min(then) for first, then in zip(when, when[1:])), dict(zip(ORDER, when))
    checks = check(host, code=0)
    assert f"{NEW} runs at this master" in checks["kube-apiserver"]["findings"][0], checks


def test_an_upgrade_takes_a_snapshot_first_or_changes_nothing(hosts, signal_server, magnum):
    master = old_master(hosts, signal_server, magnum)
    host = master.host

    def snapshots() -> list[str]:
        return host.sh("cd /var/lib/etcd/snapshots 2>/dev/null && ls *.db || :").split()

    # --- no room for one: nothing is changed ---
    stand_ins.into(host, NEW)
    before, files = master.started(), host.sha256("/etc/kubernetes/apiserver", "/etc/kubernetes/kubelet", "/etc/etcd/etcd.conf")
    host.sh("fallocate -l $(( $(df --output=avail -B1 /var/lib/etcd | tail -n 1) - 64 * 1024 * 1024 )) /var/lib/etcd/ballast")
    master.update(KUBE_TAG=f"v{NEW}", **ALL_CHANGED)
    refused = signalled(master.server, "node")
    assert refused["deploy_status_code"] != 0 and "MiB free" in json.dumps(refused), refused
    event, = host.journal(HNA_EVENT="UpgradeSnapshotFailed")
    assert "extend the volume" in event["HNA_REMEDY"], event
    again = re.search(r"`(heat-node-agent rerun \S+)`", event["HNA_REMEDY"])[1]
    assert master.started() == before and host.sha256(*files) == files and snapshots() == []
    # --- room again: one is taken, before the first restart ---
    host.sh("rm /var/lib/etcd/ballast")
    planned = host.exec("heat-node-agent", "plan", check=False)
    assert planned.returncode == 2 and "first a snapshot of etcd is taken" in planned.stderr, planned
    master.server.forget()
    host.sh(again)
    master.succeeds()
    taken, = host.journal(HNA_EVENT="EtcdSnapshotTaken")
    assert snapshots()[0] in taken["MESSAGE"] and len(snapshots()) == 1, taken
    assert master.restarted(before) == {unit for units in ORDER for unit in units}
    assert int(taken["__MONOTONIC_TIMESTAMP"]) < min(min(times) for times in began(host))
    # --- another patch release is no upgrade ---
    master.update(KUBELET_OPTIONS="--v=4")
    master.succeeds()
    assert len(snapshots()) == 1 and "snapshot" not in host.exec("heat-node-agent", "plan", check=False).stderr
    # --- etcd was down before: there is nothing to save, and the update may be what mends it ---
    stand_ins.into(host, LATER)
    host.exec("systemctl", "stop", "etcd")
    master.update(KUBE_TAG=f"v{LATER}", KUBEAPI_OPTIONS="--v=4")
    master.succeeds()
    warning, = host.journal(HNA_EVENT="EtcdSnapshotFailed")
    assert "which goes on: etcd was not healthy" in warning["MESSAGE"] and len(snapshots()) == 1, warning
    assert host.is_active("etcd.service")


def test_a_worker_goes_after_the_masters_and_knows_itself_alone(hosts, signal_server, magnum):
    server = magnum()
    given = server.parameters() | {"KUBE_TAG": f"v{OLD}"}
    master = Node(hosts("m1", ip=MASTER), signal_server(), parameters("master", "m1", MASTER, MASTER, **given))
    worker = Node(hosts("w1", ip=WORKER), signal_server(port=18001), parameters("worker", "w1", WORKER, MASTER, **given))
    for node in (master, worker):
        stand_ins.into(node.host, OLD)
        node.publish()
        start(node.host, node.server)
        node.succeeds()
    # A worker may not look at others, which is said, and is not before its masters.
    checks = check(worker.host, code=2)
    assert set(wrong(checks)) == {"other nodes"} and "etcd" not in checks, checks
    found = wrong(check(worker.host, "1.25", code=1))
    assert set(found) == {"kube-apiserver", "other nodes"} and "upgrade every master to 1.25 first" in found["kube-apiserver"], found
    assert "1.24 runs: 1.23 would be a downgrade" in wrong(check(worker.host, "1.23", code=1))["kubelet"]
    # A master sees both, and a kubelet that would be left behind too far.
    checks = check(master.host, "1.25", code=2)
    assert f"{OLD} on 2 nodes" in checks["kubelets"]["findings"][0] and set(wrong(checks)) == {"etcd snapshot"}, checks
    found = wrong(check(master.host, "1.27", code=1))
    assert "the kubelet of m1, w1 is more than 2 minors older than 1.27" in found["kubelets"], found
