"""How systemd makes a program's words and environment of a unit: a small model, for trees that no systemd has booted.

Known from systemd.exec(5) (EnvironmentFile=), systemd.service(5) (Command lines), systemd.syntax(7), and compared with a real systemd by
tests/host/test_systemd_words.py. Only what units of services here use: no specifiers but %%, one ExecStart=.
"""
import re
from dataclasses import dataclass, field
from pathlib import Path

BLANK = " \t\n\r"
# The release since which a comment ends with its line, also after a backslash (systemd's NEWS, 254).
COMMENTS_END = 254


def environment_file(text: str, release: int = 252) -> dict[str, str]:
    """An EnvironmentFile=: comments, quotes in pieces, backslashes; nothing is expanded. release: of systemd."""
    found: dict[str, str] = {}
    i, n = 0, len(text)
    while i < n:
        while i < n and text[i] in BLANK:
            i += 1
        if i >= n:
            break
        if text[i] in "#;":
            i = _end_of_comment(text, i, goes_on=release < COMMENTS_END)
            continue
        key, i = _key(text, i)
        if key is None:
            continue
        value, i = _value(text, i)
        if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", key):
            found[key] = value
    return found


def _end_of_comment(text: str, i: int, goes_on: bool) -> int:
    while i < len(text) and text[i] not in "\n\r":
        i += 2 if goes_on and text[i] == "\\" else 1
    return i


def _key(text: str, i: int) -> tuple[str | None, int]:
    begin = i
    while i < len(text) and text[i] not in "\n\r":
        if text[i] == "=":
            return text[begin:i].rstrip(BLANK), i + 1
        i += 1
    return None, i


def _value(text: str, i: int) -> tuple[str, int]:
    out: list[str] = []
    plain_end = 0  # blanks after this are trimmed: they stand at the end of an unquoted piece
    state = "before"
    while i < len(text):
        c = text[i]
        i += 1
        if state in ("before", "plain"):
            if c in "\n\r":
                break
            if c == "\\":
                if i < len(text):
                    if text[i] not in "\n\r":
                        out.append(text[i])
                        plain_end = len(out)
                    i += 1
                state = "plain"
            elif state == "before" and c in "'\"":
                state = c
            elif state == "before" and c in BLANK:
                pass
            else:
                out.append(c)
                if c not in BLANK:
                    plain_end = len(out)
                state = "plain"
        elif c == state:
            plain_end = len(out)
            state = "before"
        elif state == '"' and c == "\\" and i < len(text):
            if text[i] in '"\\`$':
                out.append(text[i])
            elif text[i] not in "\n\r":
                out += ["\\", text[i]]
            i += 1
        else:
            out.append(c)
    else:
        if state in "'\"":
            plain_end = len(out)
    return "".join(out[:plain_end]), i


ESCAPES = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "\\": "\\", '"': '"', "'": "'", "s": " "}


def split(text: str, unescape: bool = False) -> list[str]:
    """Words at blanks; quotes are taken away. A backslash: with unescape as in C, else before any character it is taken away."""
    words: list[str] = []
    word: list[str] | None = None
    quote = ""
    i = 0
    while i < len(text):
        c = text[i]
        i += 1
        if not quote and c in BLANK:
            if word is not None:
                words.append("".join(word))
            word = None
            continue
        word = [] if word is None else word
        if c == "\\" and i < len(text):
            escaped, i = _escape(text, i) if unescape else (text[i], i + 1)
            word.append(escaped)
        elif c == "\\":
            pass
        elif quote and c == quote:
            quote = ""
        elif not quote and c in "'\"":
            quote = c
        else:
            word.append(c)
    if word is not None:
        words.append("".join(word))
    return words


def _escape(text: str, i: int) -> tuple[str, int]:
    if text[i] in ESCAPES:
        return ESCAPES[text[i]], i + 1
    if found := re.match(r"x([0-9a-fA-F]{2})|([0-7]{3})|u([0-9a-fA-F]{4})", text[i:]):
        digits = next(filter(None, found.groups()))
        return chr(int(digits, 8 if found[2] else 16)), i + found.end()
    raise ValueError(f"systemd refuses the escape \\{text[i]}")


def expand(words: list[str], environment: dict[str, str]) -> list[str]:
    """$NAME as a word of its own is split into any number of words; ${NAME} anywhere is one; $$ is a dollar. The program is left alone.

    A word that begins with $ is taken for a name to its end: `$` and `$a-b` are no variable that exists, and vanish."""
    out = words[:1]
    for word in words[1:]:
        if word.startswith("$") and word[1:2] not in ("{", "$"):
            out += split(environment.get(word[1:], ""))
        else:
            out.append(re.sub(r"\$(\$|\{([^}]*)\})",
                              lambda m: "$" if m[1] == "$" else environment.get(m[2], ""), word))
    return out


@dataclass
class Service:
    """What a unit and its drop-ins come to."""
    settings: dict[str, list[str]] = field(default_factory=dict)
    release: int = 252

    def read(self, text: str):
        section = ""
        for line in re.sub(r"\\\n", " ", text).splitlines():
            line = line.strip()
            if not line or line[0] in "#;":
                continue
            if line.startswith("["):
                section = line
            elif section == "[Service]":
                key, _, value = line.partition("=")
                key, value = key.strip(), value.strip()
                self.settings[key] = [*self.settings.get(key, []), value] if value else []

    def words(self, root: Path) -> tuple[list[str], dict[str, str]]:
        """The command line, and the environment that its files make. A file that lacks is a mistake, as for systemd."""
        environment: dict[str, str] = {}
        for line in self.settings.get("Environment", []):
            environment.update(w.partition("=")[::2] for w in split(line.replace("%%", "%"), unescape=True))
        for path in self.settings.get("EnvironmentFile", []):
            file = root / path.lstrip("-").replace("%%", "%").lstrip("/")
            if file.exists() or not path.startswith("-"):
                environment.update(environment_file(file.read_text(), self.release))
        lines = self.settings.get("ExecStart", [])
        if len(lines) != 1:
            raise ValueError(f"{len(lines)} ExecStart= lines")
        return expand(split(lines[0].lstrip("@-:+!").replace("%%", "%"), unescape=True), environment), environment


def service(root: Path, unit: str, *bases: Path) -> Service:
    """The unit of a tree: its file there or in one of bases, and the drop-ins of /etc/systemd/system."""
    made = Service()
    for folder in (root / "etc/systemd/system", root / "usr/lib/systemd/system", *bases):
        if (folder / unit).is_file():
            made.read((folder / unit).read_text())
            break
    for drop_in in sorted((root / f"etc/systemd/system/{unit}.d").glob("*.conf")):
        made.read(drop_in.read_text())
    return made
