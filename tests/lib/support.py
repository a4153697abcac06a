"""docs/support.md: on which releases of Debian the core of the host tests ran, and how it ended, as pytest recorded it.

    python3 -B tests/lib/support.py --suites         the releases
    python3 -B tests/lib/support.py --tests          the core, as pytest takes it
    python3 -B tests/lib/support.py --write FOLDER   writes the page from FOLDER/SUITE.xml (pytest's) and FOLDER/SUITE.versions (host.sh's)
"""
import re
import sys
import xml.etree.ElementTree as ET
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from lib.common import REPO, TESTS  # noqa: E402
from lib.hosts import upstream  # noqa: E402

PAGE = REPO / "docs/support.md"
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

The core of the host tests, on hosts made of each release's packages. *a/b*: of b tests a passed. The hosts share the kernel of the machine that
runs the tests. `tests/run host --suite NAME` runs all host tests on one release.
"""


@dataclass
class Suite:
    """What one run on one release came to."""
    versions: dict[str, str]
    day: str = ""
    passed: dict[str, int] = field(default_factory=dict)
    ran: dict[str, int] = field(default_factory=dict)
    not_passed: list[str] = field(default_factory=list)
    not_run: list[str] = field(default_factory=list)


def core() -> list[str]:
    """FILE::TEST of the core, without parameters."""
    found = []
    for one in (one for wanted in CORE.values() for one in wanted):
        file, _, name = one.partition("::")
        found += [f"{file}::{test}" for test in ([name] if name else re.findall(r"^def (test_\w+)", (TESTS / file).read_text(), re.M))]
    return found


def area_of(file: str, name: str) -> str:
    """file: below tests/; name: of the test, with its parameters. A test that is in no area is one that the core does not ask for."""
    plain = name.split("[")[0]
    found = [area for area, wanted in CORE.items() for one in wanted if one in (file, f"{file}::{plain}")]
    if len(found) != 1:
        raise ValueError(f"{file}::{plain} is in {found or 'no area'}")
    return found[0]


def read(results: Path, versions: Path) -> Suite:
    """A run. What was skipped did not run; an error before or after a test counts against it once."""
    lines = (line.split() for line in versions.read_text().splitlines())
    suite = Suite({PACKAGES[name]: upstream(version) for name, version in lines if name in PACKAGES})
    ended: dict[tuple[str, str], bool] = {}
    for session in ET.parse(results).getroot().iter("testsuite"):
        suite.day = session.get("timestamp", "")[:10]
        for case in session.iter("testcase"):
            *folders, file = case.get("classname", "").removeprefix("tests.").split(".")
            test = "/".join([*folders, f"{file}.py"]), case.get("name", "")
            is_skipped, failed = case.find("skipped") is not None, case.find("failure") is not None or case.find("error") is not None
            if not is_skipped:
                ended[test] = ended.get(test, True) and not failed
    for (file, name), good in sorted(ended.items()):
        area = area_of(file, name)
        suite.ran[area] = suite.ran.get(area, 0) + 1
        suite.passed[area] = suite.passed.get(area, 0) + good
        if not good:
            suite.not_passed.append(f"{file}::{name}")
    seen = {f"{file}::{name.split('[')[0]}" for file, name in ended}
    suite.not_run = [test for test in core() if test not in seen]
    return suite


def shortened(tests: list[str]) -> list[str]:
    """A file of which the core asks nothing else is named alone."""
    lacking, wanted = ({file: [t for t in those if t.startswith(f"{file}::")] for file in dict.fromkeys(t.split("::")[0] for t in tests)}
                       for those in (tests, core()))
    return [line for file, those in lacking.items() for line in ([f"`{file}`"] if those == wanted[file] else [f"`{one}`" for one in those])]


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]


def page(suites: dict[str, Suite]) -> str:
    names = list(PACKAGES.values())
    versions = [[f"Debian {SUITES[name]} ({name})", *(suite.versions.get(one, "") for one in names), suite.day] for name, suite in suites.items()]
    results = [[name, *(f"{suite.passed[area]}/{suite.ran[area]}" if suite.ran.get(area) else "not run" for area in CORE),
                f"{sum(suite.passed.values())}/{sum(suite.ran.values())}"] for name, suite in suites.items()]
    wrong = [f"* {name}: `{test}`" for name, suite in suites.items() for test in suite.not_passed]
    missing = [f"* {name}: all" for name in SUITES if name not in suites]
    missing += [f"* {name}: {test}" for name, suite in suites.items() for test in shortened(suite.not_run)]
    parts = [HEAD, *table(["release", *names, "run on"], versions), "", "## Tests", "", *table(["release", *CORE, "all"], results), ""]
    if wrong:
        parts += ["## Failed", "", *wrong, ""]
    if missing:
        parts += ["## Not run", "", *missing, ""]
    return "\n".join(parts)


def main(arguments: list[str]) -> int:
    match arguments:
        case ["--suites"]:
            print(*SUITES, sep="\n")
        case ["--tests"]:
            print(*(TESTS / one for wanted in CORE.values() for one in wanted), sep="\n")
        case ["--write", folder]:
            at = Path(folder)
            suites = {name: read(at / f"{name}.xml", at / f"{name}.versions") for name in SUITES if (at / f"{name}.xml").exists()}
            PAGE.write_text(page(suites))
        case _:
            print(__doc__, file=sys.stderr)
            return 64
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
