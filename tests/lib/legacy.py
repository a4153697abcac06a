"""The replaced tools and ours by the same names, each run on copies of the same directory.

    tests/legacy/up.sh && /usr/bin/python3 -m pytest -q tests/legacy      with the debug build; HNA_BINARY names another one
"""
import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BINARY = Path(os.environ.get("HNA_BINARY", ROOT / "target/debug/heat-node-agent"))
REAL = ROOT / "target/legacy/venv/bin"
AGENTS = ROOT / "target/legacy/heat-agents"
# Where heat-agents has what is installed by other names.
IN_AGENTS = {f"hook-{group}.py": f"heat-config-{group}/install.d/hook-{group}.py" for group in ("script", "json-file", "apply-config", "hiera")}
IN_AGENTS["55-heat-config"] = "heat-config/os-refresh-config/configure.d/55-heat-config"
IN_AGENTS["heat-config-notify"] = "heat-config/bin/heat-config-notify"


def tree(root):
    """Every file below a directory: kind, mode, and what is in it."""
    found = {}
    for path in sorted(root.rglob("*")):
        name, mode = str(path.relative_to(root)), path.lstat().st_mode & 0o7777
        found[name] = ("link", os.readlink(path)) if path.is_symlink() else ("directory", mode) if path.is_dir() else ("file", mode, path.read_bytes())
    return found


class Pair:
    """A directory for each side, and the same commands in both."""

    def __init__(self, root):
        self.sides = [root / "real", root / "ours"]
        links = root / "bin"
        links.mkdir()
        self.bins = [REAL, links]
        for side in self.sides:
            side.mkdir()

    def write(self, name, content, mode=0o644):
        for side in self.sides:
            path = side / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
            path.chmod(mode)

    def each(self, change):
        for side in self.sides:
            change(side)

    def run(self, tool, *arguments, env=None, stdin=b""):
        """(status, output) of the real one and of ours, called by a path relative to where they stand."""
        ours = self.bins[1] / tool
        if not ours.is_symlink():
            ours.symlink_to(BINARY)
        results = []
        for side, bins in zip(self.sides, self.bins):
            environment = {"PATH": f"{bins}:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", "TZ": "UTC", **((env(side) if callable(env) else env) or {})}
            program = AGENTS / IN_AGENTS[tool] if bins == REAL and tool in IN_AGENTS else bins / tool
            stdin_here = stdin(side) if callable(stdin) else stdin
            ended = subprocess.run([os.path.relpath(program, side), *arguments], cwd=side, env=environment, input=stdin_here,
                                   capture_output=True, timeout=600)  # a net: beside other parts it gets little of the processors
            results.append((ended.returncode, ended.stdout, ended.stderr))
        return results

    def same(self, tool, *arguments, **options):
        """The status of both, which with the output and all files must be the same."""
        real, ours = self.run(tool, *arguments, **options)
        assert ours[:2] == real[:2], (arguments, real, ours)
        assert tree(self.sides[1]) == tree(self.sides[0]), arguments
        return real[0]
