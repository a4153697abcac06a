"""Commands of programs that are elsewhere, as remedies and pages give them: which they are, and where each stands."""
import re

from lib.common import REPO
from lib.failures import GOLDEN

PAGES = [*sorted((REPO / "docs").glob("*.md")), REPO / "README.md", *sorted((REPO / "examples/heat").rglob("*.md")), *sorted(GOLDEN.glob("*.txt"))]


def in_text(program: str) -> re.Pattern:
    """In backticks."""
    return re.compile(rf"`({program}\s[^`]+)`")


def code_of(path) -> str:
    """Of the agent's, without comments and tests; a text that goes on in the next line is one."""
    text = path.read_text().split("\n#[cfg(test)]\nmod ")[0]
    return re.sub(r"\\\n\s*", "", re.sub(r"(?m)^\s*//.*$", "", text))


def sources():
    for path in sorted((REPO / "agent").rglob("*.rs")):
        if not path.stem.endswith("tests") and "tests" not in path.parts:
            yield path


def given_commands(program: str) -> dict[str, str]:
    """command → where it stands: in backticks, or a line of a block of code."""
    in_block = re.compile(rf'(?m)^ {{4,}}(?:eval "\$\()?({program} [^)\n]*)|^in the cloud: ({program} .*)$')
    found = {}
    for path in PAGES:
        text = path.read_text()
        for command in [*in_text(program).findall(text), *(one or other for one, other in in_block.findall(text))]:
            found.setdefault(" ".join(command.split()), path.name)
    for path in sources():
        found |= {command.replace('\\"', '"'): path.name for command in in_text(program).findall(code_of(path))}
    return found
