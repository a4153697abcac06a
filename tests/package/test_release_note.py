""".ci/release-note: what users see changes with a line in the changelog, or a commit says that they see nothing of it."""
import shutil

import pytest
from lib.common import REPO, run

PAGE = "# Changelog\n\n## [Unreleased]\n\n### Added\n\n- That.\n{}\n## [0.1.0] - 2026-11-30\n\n- The first.\n{}"
GIT = ["-c", "user.name=a", "-c", "user.email=a@b.invalid"]


@pytest.fixture
def commit(tmp_path):
    """A repository with a first commit, tagged `base`, and how another one is made of files and a message."""
    def made(message: str, **files: str) -> None:
        for name, text in files.items():
            path = tmp_path / name.replace("__", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        run("git", "-C", tmp_path, "add", "-A")
        run("git", "-C", tmp_path, *GIT, "commit", "-qm", message)

    (tmp_path / ".ci").mkdir()
    shutil.copy(REPO / ".ci/release-note", tmp_path / ".ci")
    (tmp_path / "CHANGELOG.md").write_text(PAGE.format("", ""))
    run("git", "-C", tmp_path, "init", "-q")
    made("first", agent__a="1")
    run("git", "-C", tmp_path, "tag", "base")
    made.folder = tmp_path
    return made


def judged(commit, base: str = "base"):
    # It looks at the repository that it is run in.
    return run("bash", "-c", 'cd "$1" && .ci/release-note "$2"', "-", commit.folder, base, check=False)


def page(commit, unreleased: str = "", released: str = "") -> None:
    (commit.folder / "CHANGELOG.md").write_text(PAGE.format(unreleased, released))


def test_a_line_below_unreleased_is_enough_for_all_commits(commit):
    page(commit, "- This.\n")
    commit("agent: change", agent__a="2")
    commit("units: change", units__b="2")
    done = judged(commit)
    assert (done.returncode, done.stdout) == (0, "CHANGELOG.md says what changes\n")


@pytest.mark.parametrize("file", ["agent__a", "units__x.service", "image-build__stage"])
def test_without_one_the_commit_is_named(commit, file):
    commit("docs: other", **{"docs__x.md": "x"})
    commit("agent: silent", **{file: "2"})
    done = judged(commit)
    assert done.returncode == 1 and "agent: silent" in done.stderr and "docs: other" not in done.stderr


def test_a_line_of_a_version_that_is_out_is_none(commit):
    page(commit, released="- This.\n")
    commit("agent: change", agent__a="2")
    assert judged(commit).returncode == 1


def test_a_commit_says_that_users_see_nothing_of_it(commit):
    commit("agent: tidy\n\nRelease-note: none", agent__a="2")
    assert (done := judged(commit)).returncode == 0 and done.stdout == "no release note is needed\n"
    # Only of itself.
    commit("agent: change", agent__a="3")
    assert (done := judged(commit)).returncode == 1 and "agent: tidy" not in done.stderr


@pytest.mark.parametrize("file", ["tests__x.py", "agent__x__tests__y.rs", "agent__x__y_tests.rs", "agent__x__tests.rs", "agent__x__golden__y",
                                  "README.md"])
def test_tests_and_pages_need_none(commit, file):
    commit("tests: more", **{file: "x"})
    assert judged(commit).stdout == "no release note is needed\n"


def test_an_unknown_base_is_a_mistake_of_the_caller(commit):
    done = judged(commit, "nothing")
    assert done.returncode == 64 and "no commit nothing" in done.stderr
