"""A release is refused before anything is built; what one holds, and that a second one is the same, takes a whole build (marked longer)."""
import hashlib
import json
import re
import shutil
import tarfile
import tomllib
from pathlib import Path

import pytest
from lib.common import REPO, run

VERSION = tomllib.loads((REPO / "Cargo.toml").read_text())["package"]["version"]
GIT = ["-c", "user.name=a", "-c", "user.email=a@b.invalid"]
PAGE = "# Changelog\n\n## [Unreleased]\n{}\n## [1.2.3] - 2026-11-30\n\n### Added\n\n- That.\n"


def repository(folder: Path, page: str, version: str = "1.2.3") -> Path:
    """As much of one as the command looks at before it builds."""
    (folder / "image-build").mkdir()
    shutil.copy(REPO / "image-build/release", folder / "image-build")
    # What comes after the checks says that they are over.
    for path, text in (("CHANGELOG.md", page), ("Cargo.toml", f'[package]\nname = "a"\nversion = "{version}"\n\n[dependencies]\nb = "1"\n'),
                       ("target/tools/bin/cargo-cyclonedx", "#!/bin/sh\necho cargo-cyclonedx-cyclonedx 0.5.9\n"),
                       ("image-build/build", "#!/bin/sh\necho building >&2\nexit 99\n")):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
        (folder / path).chmod(0o755)
    run("git", "-C", folder, "init", "-q")
    run("git", "-C", folder, "add", "-A")
    run("git", "-C", folder, *GIT, "commit", "-qm", "first")
    return folder


def asked(folder: Path, *options) -> str:
    done = run(folder / "image-build/release", *options, check=False)
    return "building" if done.returncode == 99 else done.stderr


@pytest.mark.parametrize(("page", "version", "options", "says"), [
    (PAGE.format(""), "1.2.3", [], "building"),
    (PAGE.format(""), "1.2.4", [], r"the version is 1\.2\.4, and the newest release of CHANGELOG\.md 1\.2\.3"),
    (PAGE.format("\n- More.\n"), "1.2.3", [], r"lines below \[Unreleased\]"),
    (PAGE.format("\n- More.\n"), "1.2.4", ["--unreleased"], "building"),
    (PAGE.format("\n" + "- More.\n" * 50000), "1.2.4", ["--unreleased"], "building"),
    (PAGE.format("").replace("- That.\n", "- That.\n\n## [1.2.2] - 2026-11-29\n" * 5000), "1.2.3", [], "building"),
    (PAGE.format(""), "1.2.4", ["--unreleased"], r"says nothing below \[Unreleased\]"),
    (PAGE.format("\n- More.\n"), "1.2.3", ["--unreleased"], r"has 1\.2\.3 already"),
    (PAGE.format("").replace("- That.", "That."), "1.2.3", [], r"says nothing below \[1\.2\.3\]"),
    ("# Changelog\n\n## [Unreleased]\n\n- All.\n", "1.2.3", [], "newest release of CHANGELOG.md none"),
    (PAGE.format(""), "1.2.3", ["--key", "/nowhere"], "/nowhere cannot be read"),
    (PAGE.format(""), "1.2.3", ["--out", "/usr"], "/usr is not empty"),
    (PAGE.format(""), "1.2.3", ["--key"], "--key FILE"),
], ids=lambda value: value[:20] if isinstance(value, str) else None)
def test_what_is_no_release_is_refused_before_anything_is_built(tmp_path, page, version, options, says):
    assert re.search(says, asked(repository(tmp_path, page, version), *options))


def test_a_release_is_of_what_is_committed_and_tagged(tmp_path):
    folder = repository(tmp_path, PAGE.format(""))
    run("git", "-C", folder, "tag", "v1.2.3")
    assert asked(folder) == "building"
    (folder / "Cargo.toml").write_text((folder / "Cargo.toml").read_text() + "c = \"1\"\n")
    assert "not committed:\n M Cargo.toml" in asked(folder)
    run("git", "-C", folder, *GIT, "commit", "-qam", "second")
    assert "v1.2.3 is another commit" in asked(folder)


@pytest.mark.parametrize(("changes", "message", "code"), [
    ({"agent/main.rs": "b"}, "agent: b", 1),
    ({"agent/main.rs": "b"}, "agent: b\n\nRelease-note: none\n", 0),
    ({"agent/main.rs": "b", "CHANGELOG.md": PAGE.format("\n- More.\n")}, "agent: b", 0),
    # A line of an old release is none of this one.
    ({"agent/main.rs": "b", "CHANGELOG.md": PAGE.format("") + "- More.\n"}, "agent: b", 1),
    ({"agent/rooms/tests/a.rs": "b", "docs/a.md": "b"}, "tests: b", 0),
    ({"image-build/build": "b"}, "image-build: b", 1),
])
def test_what_users_see_needs_a_line_in_the_changelog(tmp_path, changes, message, code):
    folder = repository(tmp_path, PAGE.format(""))
    (folder / ".ci").mkdir()
    shutil.copy(REPO / ".ci/release-note", folder / ".ci")
    for path, text in changes.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    run("git", "-C", folder, "add", "-A")
    run("git", "-C", folder, *GIT, "commit", "-qm", message)
    done = run("sh", "-c", 'cd "$0" && .ci/release-note HEAD~1', folder, check=False)
    assert done.returncode == code, done.stdout + done.stderr


@pytest.fixture(scope="module")
def key(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("key")
    run("minisign", "-G", "-W", "-p", folder / "a.pub", "-s", folder / "a.key")
    return folder / "a.key"


@pytest.fixture(scope="module")
def release(tmp_path_factory, key) -> Path:
    """Of what is committed here."""
    out = tmp_path_factory.mktemp("release") / "out"
    page = (REPO / "CHANGELOG.md").read_text()
    said = run(REPO / "image-build/release", "--out", out, "--key", key, *([] if f"## [{VERSION}]" in page else ["--unreleased"]), timeout=3600)
    assert said.stdout.endswith(f"heat-node-agent {VERSION}, signed\n")
    return out


@pytest.mark.longer
def test_one_version_and_the_same_program_everywhere(release, tmp_path):
    name = f"heat-node-agent-{VERSION}"
    deb = release / f"heat-node-agent_{VERSION}-1_amd64.deb"
    assert {path.name for path in release.iterdir()} == {
        f"{name}.tar.gz", f"{name}-x86_64.tar.xz", deb.name, f"{name}-1.x86_64.rpm", f"{name}.cdx.json", f"{name}.changes.md", "third-party-notices.txt",
        "SHA256SUMS", "SHA256SUMS.minisig"}
    assert run("dpkg-deb", "-f", deb, "Version").stdout == f"{VERSION}-1\n"
    assert run("rpm", "-qp", release / f"{name}-1.x86_64.rpm").stdout == f"{name}-1.x86_64\n"
    with tarfile.open(release / f"{name}-x86_64.tar.xz") as tar:
        members = {member.name: member for member in tar}
        program = tar.extractfile(f"{name}/usr/bin/heat-node-agent").read()
        assert all((m.uid, m.gid, m.mode & 0o022) == (0, 0, 0) for m in members.values())
    run("dpkg-deb", "-x", deb, tmp_path)
    assert (tmp_path / "usr/bin/heat-node-agent").read_bytes() == program
    assert run(tmp_path / "usr/bin/heat-node-agent", "--version").stdout == f"heat-node-agent {VERSION}\n"
    # The sources are the commit's, whole.
    with tarfile.open(release / f"{name}.tar.gz") as tar:
        assert sorted(m.name for m in tar if not m.isdir()) == sorted(f"{name}/{path}" for path in run("git", "-C", REPO, "ls-files").stdout.split("\n") if path)
    bill = json.loads((release / f"{name}.cdx.json").read_text())
    assert bill["bomFormat"] == "CycloneDX" and bill["metadata"]["component"]["version"] == VERSION and str(REPO) not in json.dumps(bill)
    listed = {f"{one['name']} {one['version']}" for one in bill["components"]}
    linked = re.findall(r"(?m)^  ([\w-]+ \d\S*):", (release / "third-party-notices.txt").read_text())
    assert len(linked) > 100 and set(linked) <= listed
    assert not [one for one in listed if one.startswith(("proptest ", "cc "))]


@pytest.mark.longer
def test_a_changed_byte_and_a_foreign_key_are_seen(release, key, tmp_path):
    shutil.copytree(release, tmp_path / "got")

    def verified(public: Path) -> bool:
        signed = run("minisign", "-Vm", tmp_path / "got/SHA256SUMS", "-p", public, check=False).returncode == 0
        return signed and run("sh", "-c", 'cd "$0" && sha256sum --strict -c SHA256SUMS', tmp_path / "got", check=False).returncode == 0
    assert verified(key.with_suffix(".pub"))
    assert len((release / "SHA256SUMS").read_text().splitlines()) == len(list(release.iterdir())) - 2
    run("minisign", "-G", "-W", "-p", tmp_path / "b.pub", "-s", tmp_path / "b.key")
    assert not verified(tmp_path / "b.pub")
    notices = tmp_path / "got/third-party-notices.txt"
    notices.write_bytes(notices.read_bytes().replace(b"MIT", b"MIT ", 1))
    assert not verified(key.with_suffix(".pub"))
    sums = tmp_path / "got/SHA256SUMS"
    sums.write_text("".join(f"{hashlib.sha256((tmp_path / 'got' / name).read_bytes()).hexdigest()}  {name}\n"
                            for name in (line.split("  ")[1] for line in sums.read_text().splitlines())))
    assert not verified(key.with_suffix(".pub"))


@pytest.mark.longer
def test_another_folder_gives_the_same_bytes(release, key, tmp_path):
    other = tmp_path / "another folder of another length" / "src"
    run("git", "clone", "-q", "--no-hardlinks", REPO, other)
    run("git", "-C", other, "checkout", "-q", run("git", "-C", REPO, "rev-parse", "HEAD").stdout.strip())
    # The tools that make the packages are no part of them.
    (other / "target").mkdir()
    (other / "target/tools").symlink_to(REPO / "target/tools")
    options = ["--out", tmp_path / "out", "--key", key]
    if f"## [{VERSION}]" not in (REPO / "CHANGELOG.md").read_text():
        options.append("--unreleased")
    env = {"TZ": "Pacific/Apia", "LC_ALL": "C.UTF-8", "CARGO_BUILD_JOBS": "1", "CARGO_TARGET_DIR": str(other / "target")}
    run("sh", "-c", 'umask 077; exec "$0" "$@"', other / "image-build/release", *options, timeout=7200, env=env)
    different = [path.name for path in sorted(release.iterdir()) if path.read_bytes() != (tmp_path / "out" / path.name).read_bytes()]
    assert not different and len(list(release.iterdir())) == len(list((tmp_path / "out").iterdir()))
