"""Commands for the cloud, as remedies and pages give them: OpenStack's own client takes them as they stand. Nothing is asked of a cloud."""
import json
import re
import shlex

import pytest
from lib.common import REPO, TESTS, run
from lib.failures import GOLDEN
from lib.heat import HEAT_DIR

PAGES = [*sorted((REPO / "docs").glob("*.md")), REPO / "README.md", *sorted((REPO / "examples/heat").rglob("*.md")), *sorted(GOLDEN.glob("*.txt"))]
# In backticks, or a line of a block of code.
IN_TEXT = re.compile(r"`(openstack\s[^`]+)`")
IN_BLOCK = re.compile(r'(?m)^ {4,}(?:eval "\$\()?(openstack [^)\n]*)|^in the cloud: (openstack .*)$')
# What stands for a value, and a value of its kind.
VALUES = [(r"\{[^{}]*\}(?!')", "value"), (r"<[^<>]*>", "value"), (r"\bGIB\b", "20")]
# The program's name, where a command of it follows, outside of backticks.
BARE = re.compile(r"openstack (?:--|(?:stack|server|volume|coe|port|endpoint|user|trust|orchestration|image|console|subnet|network|security) )")


def code_of(path) -> str:
    """Of the agent's, without comments and tests; a text that goes on in the next line is one."""
    text = path.read_text().split("\n#[cfg(test)]\nmod ")[0]
    return re.sub(r"\\\n\s*", "", re.sub(r"(?m)^\s*//.*$", "", text))


def sources():
    for path in sorted((REPO / "agent").rglob("*.rs")):
        if not path.stem.endswith("tests") and "tests" not in path.parts:
            yield path


def commands() -> dict[str, str]:
    """command → where it stands"""
    found = {}
    for path in PAGES:
        text = path.read_text()
        for command in [*IN_TEXT.findall(text), *(one or other for one, other in IN_BLOCK.findall(text))]:
            found.setdefault(" ".join(command.split()), path.name)
    for path in sources():
        found |= {command.replace('\\"', '"'): path.name for command in IN_TEXT.findall(code_of(path))}
    return found


def words_of(command: str) -> list[str]:
    for pattern, value in VALUES:
        command = re.sub(pattern, value, command)
    return shlex.split(command)[1:]


@pytest.fixture(scope="module")
def complaints():
    """The client, which takes what is wrong with each command."""
    run(TESTS / "heat/up.sh", "venv", timeout=1800)

    def ask(*given: list[str]) -> list[str]:
        return json.loads(run(HEAT_DIR / "cache/venv/bin/python", "-B", TESTS / "heat/client.py", input=json.dumps(given)).stdout)
    return ask


def test_the_client_refuses_what_it_does_not_know(complaints):
    unknown, short, wrong, right = complaints(["stack", "heal", "x"], ["stack", "show"], ["volume", "set", "--size", "GIB", "x"], ["stack", "show", "x"])
    assert "Unknown command" in unknown and "<stack>" in short and "--size" in wrong and right == ""


def test_every_command_for_the_cloud_is_one_of_the_client(complaints):
    given = commands()
    # In remedies as they are shown, in the agent's code, and on pages.
    assert len(given) >= 30 and {"missing-volume.txt", "magnum.rs", "heat-templates.md"} <= set(given.values())
    said = complaints(*(words_of(command) for command in given))
    assert not {f"{where}: {command}": wrong for (command, where), wrong in zip(given.items(), said) if wrong}


def test_every_command_for_the_cloud_is_marked_as_one():
    """In backticks, as the others are, so that one sees where it ends."""
    texts = {path.name: code_of(path) for path in sources()}
    assert not {name for name, text in texts.items() if BARE.search(IN_TEXT.sub("", text))}
