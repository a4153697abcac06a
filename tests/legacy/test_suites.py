"""The public tests of the replaced tools, with our links in the place of their programs. Of their tests those are run that run such a program, in a
copy of the source that tests/legacy/up.sh takes from PyPI; docs/legacy.md says how many those are."""
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from lib.legacy import AGENTS, BINARY, IN_AGENTS, REAL

NOTHING = Path("/bin/false")
# name: (source, the folder in it from which the tests are run, where they look for the programs, the tests: modules, or scripts with a runner of their own).
# A program without a folder is looked for in PATH.
SUITES = {
    "heat-agents": ("heat-agents", ".", list(IN_AGENTS.values()), {
        "tests.test_heat_config.HeatConfigTest": ["test_run_heat_config"],
        "tests.test_hook_apply_config.HookApplyConfigTest": ["test_hook"],
        "tests.test_hook_hiera.HookHieraTest": ["test_hook"],
        "tests.test_hook_json_file.HookJsonFileConfigTest": ["test_hook"],
        "tests.test_hook_script.HookScriptTest": ["test_hook", "test_hook_failed"]}),
    "os-refresh-config": ("os-refresh-config", ".", ["os-refresh-config", "dib-run-parts"], {
        "os_refresh_config.tests.functional.test_cmd.TestCmd": [
            "test_cmd", "test_cmd_with_failure", "test_cmd_with_scripts", "test_cmd_with_timeout", "test_debug", "test_print_base", "test_print_phases"]}),
    "dib-utils": ("dib-utils", "tests", ["bin/dib-run-parts"], ["tc01", "tc02", "tc03"]),
    "dib-run-parts of os-refresh-config": ("os-refresh-config", "tools/tests", ["tools/dib-run-parts"], ["tc01", "tc02", "tc03"]),
}


@pytest.fixture
def settled(request):
    """settled(suite, program): the folder to run its tests from, with links to a program where they look for theirs, and their environment."""
    made: list[Path] = []

    def make(suite: str, program: Path) -> tuple[Path, dict[str, str]]:
        source, start, places, _ = SUITES[suite]
        # Below /tmp anybody could put something in a hook's place, and as root no hook would be run (R56).
        folder = Path(tempfile.mkdtemp(prefix="hna-suite-", dir="/run"))
        made.append(folder)
        folder.chmod(0o755)
        (folder / "bin").mkdir()
        shutil.copytree(AGENTS.parent / source, folder / source, symlinks=True)
        # As a checkout of root has it: copies keep a group's right to write, and by R56 nothing of such a folder is run.
        subprocess.run(["chmod", "-R", "go-w", folder / source], check=True)
        for place in places:
            path = folder / source / place if "/" in place else folder / "bin" / place
            assert path.exists() or path.parent == folder / "bin", f"{place} is not where the suite has it"
            path.unlink(missing_ok=True)
            path.symlink_to(program)
        # The runner is the virtual environment's; its programs, the originals among them, are not in the PATH of tests.
        for name in ("python", "python3"):
            (folder / "bin" / name).write_text(f'#!/bin/sh\nexec {REAL}/python3 "$@"\n')
            (folder / "bin" / name).chmod(0o755)
        return folder / source / start, {"PATH": f"{folder}/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", "HOME": str(folder), "TMPDIR": str(folder),
                                         "OS_TEST_PATH": "./os_refresh_config/tests/functional", "PYTHON": "python3"}
    yield make
    for folder in made:
        shutil.rmtree(folder)


def ended(suite: str, folder: Path, env: dict[str, str]) -> tuple[dict[str, bool], str]:
    """test: whether it passed; and what was said."""
    def run(*args) -> subprocess.CompletedProcess:
        return subprocess.run(list(map(str, args)), cwd=folder, env=env, stdout=-1, stderr=subprocess.STDOUT, text=True, timeout=600)
    tests = SUITES[suite][3]
    if isinstance(tests, list):
        # Theirs ends at the first one that fails.
        whole = run("./run_tests.sh")
        done = {name: run(f"./{name}.sh") for name in tests}
        assert (whole.returncode == 0) == all(one.returncode == 0 for one in done.values()), whole.stdout
        return {name: one.returncode == 0 for name, one in done.items()}, whole.stdout
    wanted = "|".join(f"^{re.escape(name)}\\.({'|'.join(names)})$" for name, names in tests.items())
    said = run(REAL / "python3", "-m", "stestr", "run", "--serial", wanted).stdout
    return {name: how == "ok" for name, how in re.findall(r"(?m)^\{0\} (\S+) .*\.\.\. (\w+)", said)}, said


def all_end(settled, suite, program, passes: bool):
    tests = SUITES[suite][3]
    names = tests if isinstance(tests, list) else [f"{name}.{test}" for name in tests for test in tests[name]]
    passed, said = ended(suite, *settled(suite, program))
    assert passed == dict.fromkeys(names, passes), said


@pytest.mark.parametrize("suite", SUITES)
def test_the_public_tests_pass_with_links_in_the_place_of_the_programs(settled, suite):
    all_end(settled, suite, BINARY, True)


@pytest.mark.parametrize("suite", SUITES)
def test_it_is_those_programs_that_they_run(settled, suite):
    all_end(settled, suite, NOTHING, False)
