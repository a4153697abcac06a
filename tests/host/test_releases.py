"""Hosts of any release of Debian, and the page that says on which of them the tests ran."""
import json
from pathlib import Path

import pytest
from lib import support
from lib.common import MACHINE, TESTHOST, TESTS, Failed, run
from lib.hosts import HOST_SH

SMOKE, LVM = "host/test_smoke.py::test_volumes_come_and_go_while_it_runs", next(test for test in support.core() if "test_lvm" in test)


@pytest.mark.parametrize("own", ["bookworm", "trixie"])
def test_roots_of_any_release_are_made_on_any_machine(own, tmp_path):
    """Whatever release of Debian the machine is, its sources name the one that was asked for."""
    (tmp_path / "os-release").write_text(f"VERSION_CODENAME={own}\n")
    (tmp_path / "apt").mkdir()
    (tmp_path / "apt/debian.sources").write_text("".join(
        f"Types: deb\nURIs: http://mirror.invalid/{name}\nSuites: {suites}\nComponents: main\n\n"
        for name, suites in (("debian", f"{own} {own}-updates"), ("security", f"{own}-security"))))

    def suites(wanted: str) -> list[str]:
        said = run("unshare", "-m", "sh", "-ec", 'mount --bind "$1/os-release" /etc/os-release; mount --bind "$1/apt" /etc/apt/sources.list.d\n'
                   'exec "$0" sources "$2"', HOST_SH, tmp_path, wanted).stdout
        return [word for line in said.splitlines() if line.startswith("Suites:") for word in line.split()[1:]]
    for wanted in ("bookworm", "trixie", "forky"):
        assert suites(wanted) == [wanted, f"{wanted}-updates", f"{wanted}-security"]
    assert suites("sid") == ["sid"]


def test_what_a_host_borrows_is_of_its_own_release_on_any_machine(testhost, tmp_path):
    """A machine of another release has its own files in these places, and hosts cannot run its programs."""
    program, data = tmp_path / "cache/tools/usr/bin/borrowed", tmp_path / "cache/tools/usr/share/borrowed/data"
    for path in (program, data):
        path.parent.mkdir(parents=True)
    base = TESTHOST / "cache/base"
    program.write_bytes((base / "usr/bin/true").resolve().read_bytes())
    program.chmod(0o755)
    data.write_text("")
    (tmp_path / "cache/base").symlink_to(base)
    (tmp_path / "cache/tools.parent").write_text("base\n")
    (tmp_path / "os-release").write_text("VERSION_CODENAME=another\n")

    def lent(*names: str) -> dict[str, Path]:
        done = run("unshare", "-m", "sh", "-ec", 'mount --bind "$1" /etc/os-release; shift; exec "$@"', "sh", tmp_path / "os-release", HOST_SH, "lent", *names,
                   env={"HNA_SUITE": "bookworm", "HNA_TEST_DIR": str(tmp_path)})
        return {name: Path(file) for name, file in (line.split() for line in done.stdout.splitlines())}
    given = lent("/usr/bin/borrowed", "/usr/share/borrowed")
    [library] = [name for name in given if name.endswith("/libc.so.6")]
    assert given.pop(library).resolve().is_relative_to(base)
    assert {name: file for name, file in given.items() if "ld-linux" not in name} == {"/usr/bin/borrowed": program, "/usr/share/borrowed/data": data}
    with pytest.raises(Failed, match="no file /usr/bin/nonsense"):
        lent("/usr/bin/nonsense")
    # Of one release with its hosts, it lends its own.
    own = run(HOST_SH, "lent", "/usr/bin/python3", env={"HNA_SUITE": MACHINE}).stdout.splitlines()
    assert f"/usr/bin/python3 {Path('/usr/bin/python3').resolve()}" in own and len(own) > 1


@pytest.mark.parametrize("part, suite, words", [
    *((part, "nonsense", "no suite nonsense") for part in ("host", "cloud-init", "suites", "suites-longer")),
    ("heat", "trixie", "--suite goes with host, cloud-init, suites and suites-longer"),
])
def test_a_release_goes_with_the_parts_that_have_hosts_of_it(part, suite, words):
    assert part in run(TESTS / "run", "--list").stdout.split()
    refused = run(TESTS / "run", part, "--suite", suite, check=False)
    assert refused.returncode == 64 and words in refused.stderr, refused


def ran(folder: Path, name: str, commit: str, *ended: tuple[str, bool]):
    """What tests/run suites leaves of a run."""
    (folder / f"{name}.about").write_text(f"commit {commit}\nbuild release, static\n")
    (folder / f"{name}.versions").write_text("systemd 257.13-1\ncloud-init 25.1.4-1\nbash 5\n")
    cases = ""
    for test, good in ended:
        file, _, case = test.partition("::")
        cases += f'<testcase classname="tests.{file.removesuffix(".py").replace("/", ".")}" name="{case}">{"" if good else "<failure/>"}</testcase>'
    (folder / f"{name}.xml").write_text(f'<testsuites><testsuite timestamp="2026-11-30T01:02:03">{cases}</testsuite></testsuites>')


@pytest.fixture
def pages(tmp_path, monkeypatch):
    """renew(folder) -> the page."""
    monkeypatch.setattr(support, "PAGE", tmp_path / "support.md")
    monkeypatch.setattr(support, "RECORD", tmp_path / "support.json")

    def renew(name: str, prepare) -> str:
        folder = tmp_path / name
        folder.mkdir()
        prepare(folder)
        assert support.main(["--write", str(folder)]) == support.main(["--check"]) == 0
        return support.PAGE.read_text()
    return renew


def rows(page: str, release: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith(("| " + release, f"| Debian {support.SUITES[release]} "))]


def test_a_run_on_one_release_leaves_the_others_rows(pages):
    first = pages("first", lambda at: (ran(at, "trixie", "aaa", (SMOKE, True), (LVM, False)), ran(at, "forky", "aaa", (SMOKE, True))))
    assert f"* trixie: `{LVM}`" in first and "* bullseye: all" in first
    second = pages("second", lambda at: ran(at, "forky", "bbb", (SMOKE, True), (LVM, True)))
    assert rows(second, "trixie") == rows(first, "trixie") and f"* trixie: `{LVM}`" in second
    assert rows(second, "forky")[0][-3:] == ["2026-11-30", "bbb", "release, static"] and rows(second, "forky")[1][-1] == "2/2"
    assert rows(second, "trixie")[0][-2:] == ["aaa", "release, static"] and rows(second, "trixie")[1][-1] == "1/2"


def test_hosts_that_could_not_be_made_are_no_tests_that_were_not_run(pages):
    def failed(at: Path):
        (at / "forky.about").write_text("commit bbb\nbuild release, static\n")
        (at / "forky.failed").write_text("tests/host/up.sh --suite forky failed:\nhost.sh: root base\n")
    first = pages("first", lambda at: ran(at, "forky", "aaa", (SMOKE, True)))
    second = pages("second", failed)
    assert "came to nothing" not in first and rows(second, "forky") == rows(first, "forky")
    assert "bbb, release, static: tests/host/up.sh --suite forky failed: host.sh: root base\n" in second.split("## Runs that came to nothing")[1]
    assert "came to nothing" not in pages("third", lambda at: ran(at, "forky", "ccc", (SMOKE, True)))
    # Never run, and not to be made: its row says so.
    only = {"bullseye": support.Suite(prevented="2026-11-30, bbb: it does not start")}
    assert rows(support.page(only), "bullseye")[1][1:] == ["not run"] * len(support.CORE) + ["0/0"]


def test_the_record_outlives_a_test_that_is_gone(pages):
    support.RECORD.write_text(json.dumps({"trixie": support.asdict(support.Suite(passed=[SMOKE, "host/test_smoke.py.old::test_gone"]))}))
    assert rows(pages("none", lambda at: None), "trixie")[1][-1] == "1/1"
