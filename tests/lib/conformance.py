"""Kubernetes' own conformance tests (test/conformance of its source), by its own programs, on a cluster that the agent made."""
import json
import os
import re
import signal
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

import yaml
from lib.common import LAB
from lib.real_kubernetes import ADDRESSES, MADE, NET, PROGRAMS, RealCluster

TREE = MADE / "gopath/src/k8s.io/kubernetes"
# One per test, as it ends: [1] {"msg":"PASSED [sig-…] … [Conformance]","total":-1,…}
ENDED = re.compile(r'\{"msg":("(?:PASSED|FAILED) (?:[^"\\]|\\.)*"),"total":')


def tool(name: str) -> str:
    """Which may be among programs that were given, or made here beside those."""
    return str(next(folder / name for folder in (PROGRAMS, MADE / "programs") if (folder / name).exists()))


def plain(name: str) -> str:
    """As it is printed and written down: with and without blanks at its seams."""
    return " ".join(name.split())


def names() -> list[str]:
    """Of all conformance tests, by the list that the release's own source has."""
    return sorted(plain(one["codename"]) for one in yaml.safe_load((TREE / "test/conformance/testdata/conformance.yaml").read_text()))


def exactly(wanted: list[str]) -> str:
    """A focus, as ginkgo takes it, on these names: they may have more blanks than here."""
    return "|".join(r"\s+".join(re.escape(word) for word in name.split()) for name in wanted)


def kubeconfig(cluster: RealCluster, folder: Path) -> Path:
    """The administrator's, with all in one file, for the lab."""
    config = json.loads(cluster.kubectl("config", "view", "--raw", "--flatten", "-o", "json"))
    config["clusters"][0]["cluster"]["server"] = f"https://{ADDRESSES['m1']}:6443"
    path = folder / "admin.json"
    path.touch(0o600)
    path.write_text(json.dumps(config))
    return path


@dataclass
class Outcome:
    """What became of tests, by name."""
    passed: set[str] = field(default_factory=set)
    failed: dict[str, str] = field(default_factory=dict)  # and why
    seconds: dict[str, float] = field(default_factory=dict)

    def __or__(self, other: "Outcome") -> "Outcome":
        return Outcome(self.passed | other.passed, self.failed | other.failed, self.seconds | other.seconds)


def why(said: str) -> str:
    """The first words of a failure that say more than that and where it was."""
    lines = [re.sub(r"^\w{3} +\d+ [\d:.]+: (FAIL: )?", "", line.strip()) for line in said.splitlines()]
    found = [line for line in lines if line and not re.match(r"\S+\.go:\d+|/\S+:\d+$|Unexpected error:|<|[{}]|s: |Expected$|to (equal|be)", line)]
    return found[0][:200] if found else "it does not say why"


def execute(cluster: RealCluster, folder: Path, log: Path, focus: str, skip: str = "", processes: int = 4, minutes: float = 120) -> Outcome:
    """Run them, and cut them off after that time."""
    reports = folder / "reports"
    reports.mkdir()
    words = [tool("ginkgo"), f"-nodes={processes}", "-stream", f"-focus={focus}", *([f"-skip={skip}"] if skip else []), tool("e2e.test"), "--",
             f"--kubeconfig={kubeconfig(cluster, folder)}", "--provider=skeleton", f"--kubectl-path={tool('kubectl')}", f"--report-dir={reports}",
             "--disable-log-dump"]
    with open(log, "wb") as out:
        process = subprocess.Popen(["ip", "netns", "exec", f"lab-{LAB}", *words], stdout=out, stderr=out, stdin=subprocess.DEVNULL, cwd=folder,
                                   start_new_session=True)
        try:
            process.wait(minutes * 60)
        except subprocess.TimeoutExpired:
            pass
        finally:  # not only where its time is over
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGINT)
            try:
                process.wait(NET)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    return outcome_of(log, reports)


def outcome_of(log: Path, reports: Path) -> Outcome:
    """By what ginkgo printed, and by the reports of its processes that came to their end."""
    outcome = Outcome()
    for said in ENDED.findall(log.read_text(errors="replace")):
        # Some names have quotation marks.
        result, _, name = json.loads(said).partition(" ")
        if result == "PASSED":
            outcome.passed.add(plain(name))
        else:
            outcome.failed[plain(name)] = "cut off, or its report is missing"
    for report in reports.glob("junit_*.xml"):
        for case in ElementTree.parse(report).iter("testcase"):
            name = plain(case.get("name", ""))
            outcome.seconds[name] = float(case.get("time", 0))
            if (failure := case.find("failure")) is not None:
                outcome.failed[name] = why(failure.text or "")
    outcome.seconds = {name: s for name, s in outcome.seconds.items() if name in outcome.passed or name in outcome.failed}
    return outcome
