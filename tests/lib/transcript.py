"""What machines of the tests said, for a page of docs.

    python3 -B tests/lib/transcript.py volumes    puts that of the last run of tests/image into docs/volumes.md

A page that is all of a transcript (Page) is written by its test, with HNA_RENEW_GOLDEN=1.
"""
import difflib
import os
import re
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


RENEW = bool(os.environ.get("HNA_RENEW_GOLDEN"))
# What is another one at each run and tells a reader nothing. Of a date the time of day stays.
MASKED = [(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", "<id>"), (r"\b[0-9a-f]{32,}\b", "<id>"), (r"/dev/loop\d+", "/dev/loop<n>"),
          (r"system:bootstrap:[a-z0-9]{6}\b", "system:bootstrap:<id>"),
          (r"\b\d{4}-\d\d-\d\d[T ](\d\d:\d\d:\d\d)(\.\d+)?", r"\1"),
          # Heat's events have both.
          (r"(?m)^(\d\d:\d\d:\d\dZ) <id> ", r"\1 ")]


def shortened(output: str, keep: str = "", most: int = 0) -> str:
    """Lines in which `keep` is found, of these at most so many, from both ends; where others were, their number."""
    lines = [line.rstrip() for line in output.strip("\n").splitlines()]
    chosen = [at for at, line in enumerate(lines) if re.search(keep, line)]
    if most and len(chosen) > most:
        chosen = chosen[:most // 2] + chosen[len(chosen) - (most - most // 2):]
    kept, last = [], -1
    for at in [*chosen, len(lines)]:
        if lacking := at - last - 1:
            kept.append(f"[… {lacking} line{'s'[:lacking != 1]}]")
        kept += lines[at:at + 1]
        last = at
    return "\n".join(kept)


class Page:
    """A page of docs: words and commands, which are the same at each run, and what the commands said, which is not."""
    COMMAND = re.compile(r"(?:\$|[a-z0-9-]+#) ")

    def __init__(self, name: str, masks: dict[str, str]):
        self.name, self.masks, self.parts = name, masks, []

    def text(self, words: str):
        self.parts.append(words)

    def said(self, prompt: str, command: str, output: str):
        for word, mask in self.masks.items():
            output = output.replace(word, mask)
        for pattern, mask in MASKED:
            output = re.sub(pattern, mask, output)
        # No line of it may look like a command.
        lines = [f" {line}" if self.COMMAND.match(line) or line.startswith("```") else line for line in output.splitlines()]
        self.parts.append("\n".join(["```text", f"{prompt} {command}", *lines, "```"]))
        print(self.parts[-1], flush=True)

    def made(self) -> str:
        """Commands that follow each other stand in one block."""
        text = ""
        for last, part in zip(["", *self.parts], self.parts):
            if last.startswith("```text") and part.startswith("```text"):
                text = text.removesuffix("```") + part.removeprefix("```text")
            else:
                text += f"\n\n{part}" if text else part
        return text + "\n"

    @classmethod
    def fixed(cls, page: str) -> list[str]:
        """What of it is the same at each run."""
        found, in_block = [], False
        for line in page.splitlines():
            if line.startswith("```"):
                in_block = line == "```text"
            if not in_block or cls.COMMAND.match(line):
                found.append(line)
        return found

    def write(self):
        """Into docs/, with HNA_RENEW_GOLDEN=1; else what lies there has to have the same words and commands."""
        page = REPO / f"docs/{self.name}.md"
        if RENEW:
            page.write_text(self.made())
        ours, theirs = self.fixed(self.made()), self.fixed(page.read_text())
        assert ours == theirs, "\n".join(difflib.unified_diff(theirs, ours, str(page), "this run", lineterm=""))


if __name__ == "__main__":
    page = REPO / f"docs/{sys.argv[1]}.md"
    page.write_text(page.read_text().split(FROM_HERE)[0] + FROM_HERE + "\n" + made(sys.argv[1]).read_text())
