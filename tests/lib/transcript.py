"""What a machine of tests/image said, for a page of docs.

    python3 -B tests/lib/transcript.py volumes    puts that of the last run of tests/image into docs/volumes.md
"""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from lib.common import REPO  # noqa: E402

FROM_HERE = "\n## Example: one machine, step by step\n\n<!-- Made by tests/image, under software emulation; tests/lib/transcript.py puts it here. -->\n"


def made(name: str) -> Path:
    return REPO / f"target/image/{name}.md"


class Transcript:
    """Commands with their output, and words between them."""

    def __init__(self, vm):
        self.vm, self.parts = vm, []

    def text(self, words: str):
        self.parts.append(words)

    def run(self, *commands: str) -> str:
        """Runs them; all that they said."""
        said = [(command, self.vm.sh(command)) for command in commands]
        lines = [f"# {command}\n{output.strip()}\n" for command, output in said]
        self.parts.append("```text\n" + "\n".join(lines) + "```")
        return "".join(output for _, output in said)

    def write(self, name: str):
        made(name).parent.mkdir(parents=True, exist_ok=True)
        made(name).write_text("\n\n".join(self.parts) + "\n")


if __name__ == "__main__":
    page = REPO / f"docs/{sys.argv[1]}.md"
    page.write_text(page.read_text().split(FROM_HERE)[0] + FROM_HERE + "\n" + made(sys.argv[1]).read_text())
