"""docs/support.md: on which releases of Debian the core of the host tests ran, and how it ended, as pytest recorded it.

    python3 -B tests/lib/support.py --suites         the releases
    python3 -B tests/lib/support.py --tests          the core, as pytest takes it
    python3 -B tests/lib/support.py --write FOLDER   takes the runs in FOLDER into docs/support.json, and writes the page from that
    python3 -B tests/lib/support.py --check          whether the page is what docs/support.json says

FOLDER has for each release that was run SUITE.about (lines "commit ..." and "build ..."), and either SUITE.versions (host.sh's) and SUITE.xml
(pytest's), or SUITE.failed: why no test could run. Of the other releases the page says what their last run came to.
"""
import json
import re
import sys
import xml.etree.ElementTree as ET
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from lib.common import REPO, TESTS  # noqa: E402
from lib.hosts import upstream  # noqa: E402

PAGE, RECORD = REPO / "docs/support.md", REPO / "docs/support.json"
SUITES = {"bullseye": "11", "bookworm": "12", "trixie": "13", "forky": "14, in testing"}
PACKAGES = {"systemd": "systemd", "cloud-init": "cloud-init", "containerd": "containerd", "docker.io": "docker", "etcd-server": "etcd",
            "iptables": "iptables", "nftables": "nftables"}
# What a release of Debian may change: a file of tests, or some of it.
CORE: dict[str, list[str]] = {
    "hosts": ["host/test_smoke.py"],
    "main job": [f"host/test_agent.py::{name}" for name in (
        "test_scripts_hooks_and_mistakes_are_all_answered", "test_a_script_outlives_a_restart_of_the_agent_and_is_answered_once",
        "test_a_node_comes_up_waits_for_late_volumes_and_repairs_itself_only_when_asked", "test_a_worker_comes_up_without_etcd",
        "test_the_unit_is_sandboxed_and_orders_without_a_cycle")],
    "image": ["host/test_verify_image.py", "host/test_systemd_words.py"],
    "volumes": ["host/test_volumes.py"],
    "storage": [f"host/test_storage.py::{name}" for name in (
        "test_etcds_data_moves_from_the_root_disk_to_its_volume", "test_dockers_store_on_btrfs_is_made_found_again_and_grown",
        "test_lvm_is_asked_so_that_neither_a_devices_file_nor_a_group_of_the_same_name_misleads",
        "test_containerd_takes_the_config_that_is_rendered_for_its_version")],
    "certificates": [f"host/test_certificates.py::{name}" for name in (
        "test_a_master_and_a_worker_get_their_whole_set_once", "test_certificates_that_the_parameters_give")],
    "pod network": ["host/test_pod_network.py"],
    "package": [f"host/test_package.py::{name}" for name in (
        "test_on_a_running_host_it_is_enabled_and_runs", "test_in_an_image_it_is_enabled_as_the_presets_say_and_nothing_starts",
        "test_an_upgrade_in_the_middle_of_a_deployment_disturbs_nothing", "test_what_a_node_runs_outlives_removal_and_purge",
        "test_a_guard_of_the_operators_own_outlives_removal")],
    "cloud-init": ["cloud-init/test_cloud_init.py"],
}
HEAD = """# Releases it was run on

<!-- Made by tests/lib/support.py, at the end of `tests/run suites`. -->

The core of the host tests, on hosts made of each release's packages, as `tests/run suites` ran it. Debian 12 is also the release on which all other tests
run ([limitations.md](limitations.md#how-far-it-is-tested)), so "not run" in its row means: not by `tests/run suites`. *a/b*: of b tests a passed, at the commit and with the build that the first table
names. The hosts share the kernel of the machine that runs the tests. `tests/run suites --suite NAME` renews one row, `tests/run host --suite NAME` runs all
host tests on one release, and `tests/run suites-longer` all of them on each.
"""


@dataclass
class Suite:
    """What the last run on one release came to."""
    versions: dict[str, str] = field(default_factory=dict)
    day: str = ""
    commit: str = ""
    build: str = ""
    passed: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    # Why a later run came to nothing: the rest is of the run before it.
    prevented: str = ""


def core() -> list[str]:
    """FILE::TEST of the core, without parameters."""
    found = []
    for one in (one for wanted in CORE.values() for one in wanted):
        file, _, name = one.partition("::")
        found += [f"{file}::{test}" for test in ([name] if name else re.findall(r"^def (test_\w+)", (TESTS / file).read_text(), re.M))]
    return found


def area_of(test: str) -> str | None:
    """test: FILE::NAME below tests/, with its parameters. None: the core does not ask for it."""
    plain = test.split("[")[0]
    return next((area for area, wanted in CORE.items() for one in wanted if one in (plain, plain.split("::")[0])), None)


def read(folder: Path, name: str) -> Suite:
    """A run. What was skipped did not run; an error before or after a test counts against it once."""
    lines = (line.split() for line in (folder / f"{name}.versions").read_text().splitlines())
    suite = Suite({PACKAGES[package]: upstream(version) for package, version in lines if package in PACKAGES}, **about(folder, name))
    ended: dict[str, bool] = {}
    for session in ET.parse(folder / f"{name}.xml").getroot().iter("testsuite"):
        suite.day = session.get("timestamp", "")[:10]
        for case in session.iter("testcase"):
            *folders, file = case.get("classname", "").removeprefix("tests.").split(".")
            test = f"{'/'.join([*folders, file])}.py::{case.get('name', '')}"
            is_skipped, failed = case.find("skipped") is not None, case.find("failure") is not None or case.find("error") is not None
            if not is_skipped:
                ended[test] = ended.get(test, True) and not failed
    if foreign := [test for test in ended if area_of(test) is None]:
        raise ValueError(f"the core does not ask for {foreign}")
    suite.passed, suite.failed = (sorted(test for test, good in ended.items() if good is wanted) for wanted in (True, False))
    return suite


def about(folder: Path, name: str) -> dict[str, str]:
    return dict(line.split(" ", 1) for line in (folder / f"{name}.about").read_text().splitlines())


def renewed(suites: dict[str, Suite], folder: Path) -> dict[str, Suite]:
    """With the runs in folder in place of older ones."""
    found = dict(suites)
    for name in SUITES:
        if (folder / f"{name}.failed").exists():
            at, why = about(folder, name), " ".join((folder / f"{name}.failed").read_text().split())
            found[name] = found.get(name) or Suite()
            found[name].prevented = f"{datetime.now(timezone.utc):%Y-%m-%d}, {at['commit']}, {at['build']}: {why[-400:]}"
        elif (folder / f"{name}.xml").exists():
            found[name] = read(folder, name)
    return {name: found[name] for name in SUITES if name in found}


def shortened(tests: list[str]) -> list[str]:
    """A file of which the core asks nothing else is named alone."""
    lacking, wanted = ({file: [t for t in those if t.startswith(f"{file}::")] for file in dict.fromkeys(t.split("::")[0] for t in tests)}
                       for those in (tests, core()))
    return [line for file, those in lacking.items() for line in ([f"`{file}`"] if those == wanted[file] else [f"`{one}`" for one in those])]


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]


def page(suites: dict[str, Suite]) -> str:
    names = list(PACKAGES.values())
    versions = [[f"Debian {SUITES[name]} ({name})", *(suite.versions.get(one, "") for one in names), suite.day, suite.commit, suite.build]
                for name, suite in suites.items()]
    results, missing = [], [f"* {name}: all" for name in SUITES if name not in suites]
    for name, suite in suites.items():
        passed, ran = ([area_of(test) for test in tests] for tests in (suite.passed, suite.passed + suite.failed))
        # Tests that are gone since count no more.
        results.append([name, *(f"{passed.count(area)}/{ran.count(area)}" if area in ran else "not run" for area in CORE),
                        f"{len(passed) - passed.count(None)}/{len(ran) - ran.count(None)}"])
        seen = {test.split("[")[0] for test in suite.passed + suite.failed}
        missing += [f"* {name}: {test}" for test in shortened([test for test in core() if test not in seen])]
    wrong = [f"* {name}: `{test}`" for name, suite in suites.items() for test in suite.failed if area_of(test)]
    prevented = [f"* {name}: {suite.prevented}" for name, suite in suites.items() if suite.prevented]
    parts = [HEAD, *table(["release", *names, "run on", "commit", "build"], versions), "", "## Tests", "", *table(["release", *CORE, "all"], results), ""]
    for title, listed in (("Runs that came to nothing", prevented), ("Failed", wrong), ("Not run", missing)):
        if listed:
            parts += [f"## {title}", "", *listed, ""]
    return "\n".join(parts)


def recorded() -> dict[str, Suite]:
    said = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    return {name: Suite(**said[name]) for name in SUITES if name in said}


def main(arguments: list[str]) -> int:
    match arguments:
        case ["--suites"]:
            print(*SUITES, sep="\n")
        case ["--tests"]:
            print(*(TESTS / one for wanted in CORE.values() for one in wanted), sep="\n")
        case ["--write", folder]:
            suites = renewed(recorded(), Path(folder))
            RECORD.write_text(json.dumps({name: asdict(suite) for name, suite in suites.items()}, indent=1) + "\n")
            PAGE.write_text(page(suites))
        case ["--check"]:
            if PAGE.read_text() != page(recorded()):
                print(f"{PAGE} is not what {RECORD} says: tests/lib/support.py --write of an empty folder", file=sys.stderr)
                return 1
        case _:
            print(__doc__, file=sys.stderr)
            return 64
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
