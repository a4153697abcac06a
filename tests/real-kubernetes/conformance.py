"""Kubernetes' own conformance tests, all of them, on a cluster with names of its own services: the part `conformance` of tests/run, which is only
run where it is named, as it takes most of an hour.

HNA_CONFORMANCE_RUNTIMES ("containerd docker"): of the two workers; the master has containerd.
HNA_CONFORMANCE_AFTER (""): what the cluster has been through before: "power-cut" of all nodes, "rotation" of the CA, in this order if both.
HNA_CONFORMANCE_FOCUS: a regular expression; of the tests' names, those that it is found in.
HNA_CONFORMANCE_PROCESSES (4), HNA_CONFORMANCE_MINUTES (120): how many at a time, and when all of it is cut off.
HNA_RENEW_CONFORMANCE=1 writes the results into docs/conformance.md, a section for each kind of cluster; they are in target/real-kubernetes/conformance.txt in any case."""
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from lib import conformance, flanneld
from lib.common import REPO, wait_for
from lib.conformance import Outcome
from lib.pod_network import together
from lib.real_kubernetes import MADE, NET, REGISTRY, RealCluster, cluster_in

RUNTIMES = os.environ.get("HNA_CONFORMANCE_RUNTIMES", "containerd docker").split()
FOCUS = os.environ.get("HNA_CONFORMANCE_FOCUS", "")
PROCESSES = int(os.environ.get("HNA_CONFORMANCE_PROCESSES", "4"))
MINUTES = float(os.environ.get("HNA_CONFORMANCE_MINUTES", "120"))
NODES = {"m1": {"ADDONS": "coredns"}, **{f"w{i}": {"CONTAINER_RUNTIME": runtime} for i, runtime in enumerate(RUNTIMES, 1)}}
AFTER = os.environ.get("HNA_CONFORMANCE_AFTER", "").split()
PAGE = REPO / "docs/conformance.md"
TITLE = f"### Workers with {' and '.join(RUNTIMES)}, " + (f"after {' and '.join(AFTER)}" if AFTER else "fresh") + \
    (f", flannel {flanneld.given().version}" if flanneld.given() else "")
MANIFEST = "/usr/share/heat-node-agent/addons/coredns/coredns.yaml"
CUT_OFF = "the run was cut off before its end"
# Tests that are not run, and why.
EXCLUDED: dict[str, str] = {}
# The two passes: what ginkgo takes for each, and whether a test is of it.
PASSES = {"parallel": (r"\[Conformance\]", r"\[Serial\]"), "serial": (r"\[Serial\].*\[Conformance\]", "")}


@pytest.fixture(scope="module")
def shared(suite, testhost, tmp_path_factory) -> Iterator[RealCluster]:
    """With the add-on for names, and all images in each runtime."""
    with cluster_in(tmp_path_factory.mktemp("conformance")) as cluster:
        for name, more in NODES.items():
            cluster.boot(name, CONTAINER_INFRA_PREFIX=REGISTRY, **more)
        master = cluster.nodes["m1"]
        master.outputs = (*master.outputs, "add_ons")
        master.host.put({MANIFEST: (REPO / "image-build/addons/coredns/coredns.yaml", 0o644)})
        together(*(lambda n=node: (n.up(), n.load_images("/srv/images/add-ons/*.tar"), n.load_images("/srv/images/e2e/*.tar")) for node in cluster.nodes.values()))
        cluster.is_ready(*NODES)
        # Those that had no image yet are tried again by and by; these at once.
        cluster.kubectl("delete", "pods", "-n", "kube-system", "-l", "k8s-app=kube-dns")
        for what in AFTER:
            HISTORY[what](cluster)
            cluster.is_ready(*NODES)
            for node in cluster.nodes.values():
                wait_for(node.is_quiet, NET, f"nothing to do on {node.name} after {what}", every=1)
        cluster.kubectl("rollout", "status", "-n", "kube-system", f"--timeout={NET}s", "deployment/coredns")
        yield cluster


def cut_all(cluster: RealCluster):
    cluster.power_cycle(*cluster.nodes)


def rotate(cluster: RealCluster):
    """The CA's change in its three steps."""
    nodes = cluster.nodes.values()
    cluster.magnum.rotate()
    for step in ({"WAIT_TIMEOUT": 601}, {"CA_ROTATION": "switch"}, {"CA_ROTATION": "drop-old"}):
        for node in nodes:
            node.update(**step)
            node.succeeds()
        # As docs/certificates.md says: it has read the CA when it started.
        cluster.kubectl("rollout", "restart", "-n", "kube-system", "deployment/coredns")
        cluster.kubectl("rollout", "status", "-n", "kube-system", f"--timeout={NET}s", "deployment/coredns")
    assert {node.read("/etc/kubernetes/certs/ca.crt").count(b"BEGIN CERTIFICATE") for node in nodes} == {1}


HISTORY = {"power-cut": cut_all, "rotation": rotate}


def with_section(page: str, section: str) -> str:
    """The page with this section of the results, in the place of an earlier one with its title."""
    head, *sections = re.split(r"^(?=### Workers with )", page, flags=re.M)
    kept = [one for one in sections if not one.startswith(f"{TITLE}\n")]
    return "\n\n".join(part.strip("\n") for part in [head, *sorted([*kept, section])]) + "\n"


def group(name: str) -> str:
    return re.match(r"\[(?:k8s\.io\] \[)?([\w.-]+)\]", name)[1]


def page(outcome: Outcome, wanted: list[str], left: dict[str, str], about: str) -> str:
    """The section of docs/conformance.md that the run writes below its heading of results."""
    def row(groups: list[str], what: str) -> str:
        of = [name for name in wanted if group(name) in groups]
        passed, failed = (sum(name in found for name in of) for found in (outcome.passed, outcome.failed))
        return f"| {what} | {len(of)} | {passed} | {failed} | {len(of) - passed - failed} |"
    groups = sorted({group(name) for name in wanted})
    lines = [TITLE, "", about, "", "| group | tests | passed | failed | not run |", "|---|---|---|---|---|", *(row([one], one) for one in groups),
             row(groups, "all"), ""]
    if outcome.failed:
        lines += ["| failed | its words |", "|---|---|", *(f"| {name} | {reason.replace('|', chr(92) + '|')} |" for name, reason in sorted(outcome.failed.items())), ""]
    own = {name: reason for name, reason in left.items() if name in EXCLUDED}
    rest = sorted({reason for name, reason in left.items() if name not in EXCLUDED})
    if left:
        lines += ["| not run | why |", "|---|---|", *(f"| {name} | {reason} |" for name, reason in sorted(own.items())),
                  *(f"| {list(left.values()).count(reason)} others | {reason} |" for reason in rest), ""]
    if rest:  # otherwise all others
        lines += ["| passed |", "|---|", *(f"| {name} |" for name in sorted(outcome.passed)), ""]
    return "\n".join(lines)


def test_conformance(cluster, tmp_path: Path):
    everything = conformance.names()
    wanted = [name for name in everything if re.search(FOCUS, name) and name not in EXCLUDED]
    outcome, since = Outcome(), time.monotonic()
    for what, (focus, skip) in PASSES.items():
        some = [name for name in wanted if ("[Serial]" in name) == (what == "serial")]
        left = MINUTES - (time.monotonic() - since) / 60
        if some and left > 0:
            folder = tmp_path / what
            folder.mkdir()
            # Names in a row take a while to look for, so where all are wanted they are not.
            skip = "|".join(filter(None, (skip, conformance.exactly(list(EXCLUDED)))))
            outcome |= conformance.execute(cluster, folder, MADE / f"conformance-{what}.log", conformance.exactly(some) if FOCUS else focus, skip,
                                           PROCESSES if what == "parallel" else 1, left)
    unknown = (outcome.passed | set(outcome.failed)) - set(everything)
    assert not unknown, unknown
    others = {name: EXCLUDED.get(name, CUT_OFF if name in wanted else "not asked for")
            for name in everything if name not in outcome.passed and name not in outcome.failed}
    runtimes = ", ".join(f"{name} with {node.runtime}" for name, node in cluster.nodes.items())
    took = (time.monotonic() - since) / 60
    text = page(outcome, everything, others, f"Kubernetes {cluster.version}: {runtimes}; {PROCESSES} at a time, and the [Serial] ones after them: {took:.0f} minutes.")
    (MADE / "conformance.txt").write_text("\n".join([text, *(f"passed {outcome.seconds.get(n, 0):7.1f} s  {n}" for n in sorted(outcome.passed)), ""]))
    print(text)
    if os.environ.get("HNA_RENEW_CONFORMANCE"):
        PAGE.write_text(with_section(PAGE.read_text(), text))
    assert outcome.passed == set(wanted), f"see {MADE / 'conformance.txt'} and the logs beside it"
    for node in cluster.nodes.values():
        wait_for(node.is_quiet, NET, f"nothing to do on {node.name}", every=1)
