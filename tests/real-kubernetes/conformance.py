"""Kubernetes' own conformance tests (test/conformance of its source) on the cluster that the agent made. No part of tests/run: it takes long.

    tests/real-kubernetes/up.sh e2e
    /usr/bin/python3 -B -m pytest -s tests/real-kubernetes/conformance.py

HNA_CONFORMANCE_FOCUS and HNA_CONFORMANCE_SKIP: which tests, as ginkgo takes it; by default all that are no [Serial] ones.
HNA_CONFORMANCE_PROCESSES (4), HNA_CONFORMANCE_MINUTES (120): how many at a time, and when it is cut off.
What ran is in target/real-kubernetes/conformance.txt."""
import json
import os
import re
import signal
import subprocess

import pytest
from lib.common import LAB, run
from lib.pod_network import together
from lib.real_kubernetes import ADDRESSES, ADMIN, MADE, NET, PROGRAMS

FOCUS = os.environ.get("HNA_CONFORMANCE_FOCUS", r"\[Conformance\]")
SKIP = os.environ.get("HNA_CONFORMANCE_SKIP", r"\[Serial\]")
PROCESSES = os.environ.get("HNA_CONFORMANCE_PROCESSES", "4")
MINUTES = float(os.environ.get("HNA_CONFORMANCE_MINUTES", "120"))
RESULTS = MADE / "conformance.txt"
# One per test, as it ends: [1] {"msg":"PASSED [sig-…] … [Conformance]","total":-1,…}
ENDED = re.compile(r'\{"msg":"(PASSED|FAILED) (.*?)","total":')


def tool(name: str) -> str:
    """Which may be among programs that were given, or made here beside those."""
    return str(next(folder / name for folder in (PROGRAMS, MADE / "programs") if (folder / name).exists()))


@pytest.fixture
def kubeconfig(shared, tmp_path) -> str:
    """The administrator's, with all in one file, for the lab."""
    config = json.loads(shared.kubectl("config", "view", "--raw", "--flatten", "-o", "json"))
    config["clusters"][0]["cluster"]["server"] = f"https://{ADDRESSES['m1']}:6443"
    path = tmp_path / "admin.json"
    path.touch(0o600)
    path.write_text(json.dumps(config))
    return str(path)


def wanted(kubeconfig: str) -> int:
    """How many tests that is: of several processes none says so."""
    words = [tool("e2e.test"), "--ginkgo.dryRun", "--ginkgo.noColor", f"--ginkgo.focus={FOCUS}", *([f"--ginkgo.skip={SKIP}"] if SKIP else []),
             f"--kubeconfig={kubeconfig}", "--provider=skeleton"]
    return int(re.search(r"Ran (\d+) of \d+ Specs", run(*words).stdout)[1])


def test_conformance(cluster, kubeconfig, tmp_path):
    together(*(lambda n=node: n.load_images("/srv/images/e2e") for node in cluster.nodes.values()))
    words = [tool("ginkgo"), f"-nodes={PROCESSES}", "-stream", f"-focus={FOCUS}", *([f"-skip={SKIP}"] if SKIP else []), tool("e2e.test"), "--",
             f"--kubeconfig={kubeconfig}", "--provider=skeleton", f"--kubectl-path={tool('kubectl')}", f"--report-dir={tmp_path}", "--disable-log-dump"]
    log = MADE / "conformance.log"
    with open(log, "wb") as out:
        process = subprocess.Popen(["ip", "netns", "exec", f"lab-{LAB}", *words], stdout=out, stderr=out, stdin=subprocess.DEVNULL, cwd=tmp_path,
                                   start_new_session=True)
        try:
            process.wait(MINUTES * 60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGINT)
            try:
                process.wait(NET)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    found = {name: result for result, name in ENDED.findall(log.read_text(errors="replace"))}
    passed, failed = (sorted(n for n, r in found.items() if r == result) for result in ("PASSED", "FAILED"))
    runtimes = {name: node.runtime for name, node in cluster.nodes.items()}
    all_of_them = wanted(kubeconfig)
    text = "\n".join([f"Kubernetes {cluster.version}, {runtimes}, focus {FOCUS}, skip {SKIP}",
                      f"{len(passed)} passed, {len(failed)} failed, {all_of_them - len(found)} not run", "", *(f"FAILED {n}" for n in failed), "",
                      *(f"passed {n}" for n in passed)])
    RESULTS.write_text(text + "\n")
    print(text.split("\n\npassed")[0])
    assert found and not failed and len(found) == all_of_them, f"see {RESULTS} and {log}"
