"""Failures staged on a host as an operator would meet them, and what the agent makes of each: `status`, `explain`, the console, the journal and
Heat's reason, compared with a transcript that a person has read (tests/host/transcripts; HNA_RENEW_GOLDEN=1 writes it anew).

Of each failure these are asserted: status and the journal show it in time; its pages are short, fit the terminal and say nothing twice; the
remedy that they print, carried out literally on the host, ends it. Where a remedy gives several ways, the failure is staged again for each that
can be gone here. How many seconds it took to be shown is printed at the end of the session.
"""
import difflib
import os
import re
import textwrap
import time
from pathlib import Path

from lib.common import TESTS, wait_for
from lib.node import status_of

GOLDEN = TESTS / "host/transcripts"
RENEW = bool(os.environ.get("HNA_RENEW_GOLDEN"))
# Seconds within which status must show what systemd reports, and a process that hangs; three times as many while the machine has more to do
# than it has processors for, and more where each processor has more than three things to do.
REPORTED, HANGS, SLACK = 10, 90, 3
# What a reader at night takes in: so many lines, of the width that is taken where there is no terminal.
LINES, WIDTH = 12, 100
# What journald calls the priorities of what is wrong, and of what is waited for.
PRIORITIES = {"3": "err", "4": "warning", "5": "notice"}
# For a remedy: what it starts may have to come up.
MENDED = 300

FACTS = ("stack ", "node ", "drift ", "agent ", "instance ", "deployments ", "certificates ", "pod network ", "thin pool ", "free space ")
NOTE = re.compile(r"^ +(why|remedy|note|to|WRONG|IGNORED): |^ +gives up in |^ +and \d+ more ")
FINE = re.compile(r"^\S+ +(healthy|up|ok|in place|succeeded|pending|unknown)\b")
# What is another one at each run.
CHANGES = [
    (r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z| ?UTC|[+-]\d\d:?\d\d)?", "<time>"),
    (r"\b\d{4}/\d\d/\d\d \d\d:\d\d:\d\d(\.\d+)?", "<time>"),
    (r"\b(\d+h)?(\d+m)?\d+(\.\d+)?(ms|s)\b|\b\d+h\d\dm\b|\b\d+[mhd]\b(?= ago|,|$| | +)", "<t>"),
    (r"\bpid \d+", "pid <n>"),
    (r"((?:healthy|FAILED|degraded) +<t> +)\d+\b", r"\1<n>"),
    (r"server add volume [0-9a-f-]{36}", "server add volume <id of this server>"),
    # In the journal, where it was said before.
    (r" \(repeated \d+ times\)", ""),
    # Whether a unit that dies again and again is up in this moment.
    (r"\bended( with status \d+)? (again and again|and systemd|and is about)", r"ended \2"),
    # How often it has died by now.
    (r"\betcd\.service (exited and systemd restarts it|is crash-looping: \d+ times it exited with status \d+)(?= \(last lines)", "etcd.service <ends>"),
    # In which moment of its restarts the deadline finds it, and what it said last by then.
    (r"still (activating \((start-pre|start|auto-restart[^)]*)\)|inactive \(dead: exit-code, status 1\)) at the deadline",
     "still activating (<moment>) at the deadline"),
    (r"\(last lines of etcd\.service: [^()]*\)", "(last lines of etcd.service: <lines>)"),
    # In the same moment, or in another one.
    (r"(rollback to generation (?:\d+|<n>) failed too)(?:, for the same reason|: .*?)(?=; remedy)", r"\1<, why>"),
    # Which of several requests comes first.
    (r"\bof the CA [a-z-]+ from", "of the CA <ca> from"),
    (r"\bcertificate [a-z/-]+, as it was signed", "certificate <name>, as it was signed"),
    (r"\b(\d+[dhms])+(\.\d+s)? earlier", "<t> earlier"),
    (r"\((\d{4}-\d\d-\d\d)\)", "(<date>)"),
    # At the first try, or at a later one.
    (r"\btried (\d+ times|once), gives up", "gives up"),
    # Between two tries, or at one.
    (r"\bnext try (now|in <t>)", "next try in <t>"),
    (r"next to expire is .*, in ", "next to expire is <name>, in "),
    (r"\bgeneration \d+", "generation <n>"),
    (r"\b\d+ no longer in the stack", "<n> no longer in the stack"),
    (r"\bnode-\d+\b", "node-<n>"),
    (r"\bUUID [0-9a-f-]{36}", "UUID <uuid>"),
    (r"\bdeployment-[0-9a-f]{32}", "deployment-<hash>"),
    (r"/dev/loop\d+", "/dev/loop<n>"),
    (r"; present: .*?(?=\)(?:; rule|\"|$)|; rule|\"|$)", "; present: <disks>"),
    (r"\b(tried|failed|sent|it died|restarted it) (\d+ times|once)", r"\1 <n> times"),
    (r"\b\d+ restarts", "<n> restarts"),
    (r"\b\d+\.\d+ of \d+\.\d+ GiB", "<n> of <n> GiB"),
    (r"\bagent( +)\d+\.\d+\.\d+\S*,", r"agent\1<version>,"),
    (r"\bversion \d+\.\d+\.\d+\S*, pid", "version <version>, pid"),
]


def normal(text: str, known: dict[str, str]) -> str:
    """The text without what differs from run to run."""
    for word, name in known.items():
        text = text.replace(word, name)
    for pattern, name in CHANGES:
        text = re.sub(pattern, name, text)
    return text


def joined(page: str) -> list[str]:
    """Lines of a page as they were before they were wrapped: what hangs below a text belongs to it."""
    lines: list[str] = []
    for line in page.rstrip("\n").splitlines():
        if lines and re.match(r"^ {5}", line) and not NOTE.match(line):
            lines[-1] += " " + line.strip()
        else:
            lines.append(line)
    return lines


def settled(lines: list[str]) -> list[str]:
    """Without how far what is only on its way has come in this moment."""
    kept = []
    for at, line in enumerate(lines):
        has_note = at + 1 < len(lines) and bool(NOTE.match(lines[at + 1]))
        if (found := re.match(r"^(\S+ +)(up|pending|waiting)\b", line)) and not has_note:
            line = f"{found[1]}<state>"
        if has_note or not re.match(r"^   waiting +(gate|unit|volume) ", line):
            kept.append(re.sub(r"\b\d+ more(, and \d+ that come later)?; --all", "<n> more; --all", line))
    return kept


def wrapped(line: str) -> list[str]:
    """As a reader sees it, wherever the lengths of pids and times made the agent break it. Columns stand close."""
    indent = " " * (len(line) - len(line.lstrip()))
    line = indent + re.sub(r"  +", "  ", line.lstrip())
    return textwrap.wrap(line, WIDTH, subsequent_indent=f"{indent}    ", break_long_words=False, break_on_hyphens=False) or [""]


def slack() -> int:
    """By how much more time may pass on this machine now."""
    busy = os.getloadavg()[0] / (os.cpu_count() or 1)
    return max(SLACK, round(busy)) if busy > 1 else 1


def commands(remedy: str) -> list[str]:
    """What stands in backticks."""
    return re.findall(r"`([^`]+)`", remedy)


def is_elsewhere(command: str) -> bool:
    """Whether it is one for the cloud or the cluster, and not for this node."""
    return command.split()[0] in ("openstack", "kubectl")


class Stage:
    """A host on which one failure after the other is staged; record takes a row of the table for each."""

    def __init__(self, host, server, record):
        self.host, self.server, self.record = host, server, record
        # What else differs from run to run, and the word for it.
        self.known: dict[str, str] = {}
        # What is wrong with what was shown: all of it is said at the end.
        self.mistakes: list[str] = []
        host.sh("[ -c /dev/console ] || : >>/dev/console")  # these hosts have no console: a file takes what would go to it

    def failure(self, name: str, within: int = REPORTED, after: "Failure | None" = None) -> "Failure":
        """From here on this one is staged, or since the remedy of the one that it comes after; status must show it within so many seconds."""
        return Failure(self, name, within, after)

    def page(self, *command: str) -> str:
        done = self.host.exec("heat-node-agent", *command, check=False)
        assert done.returncode in (0, 1, 2), done.stderr
        return done.stdout

    def console(self) -> str:
        return self.host.read("/dev/console")

    def is_ready(self, seconds: float = MENDED):
        self.host.wait_for(lambda: self.page("status").startswith("READY\n"), seconds, "READY")


class Failure:
    def __init__(self, stage: Stage, name: str, within: int, after: "Failure | None"):
        self.stage, self.name, self.within = stage, name, within
        self.waiting, self.noted_waiting = "", ""
        # Of the ways that were gone: what was done, and what status began with afterwards. Commands that were carried out, by what they are.
        self.ways: list[list[str]] = []
        self.done: set[str] = set()
        self.shown_before, self.since, self.noted_since = after.end if after else self.now()

    def now(self) -> tuple[int, float, float]:
        """How much the console has shown, and the time, also as the journal has it."""
        return len(self.stage.console()), time.monotonic(), time.time()

    def since_the_boot(self):
        """What was shown before it was staged counts too."""
        self.shown_before, self.noted_since = 0, 0.0

    # --- what the agent says ------------------------------------------------------------------
    def seen(self, *words: str):
        """status has these words, while it is still to be seen how it ends."""
        self.measure(words)
        self.status = self.waiting = self.stage.page("status")
        self.words, self.ids = words, self.ids_now()
        self.check_page("status while it waits", self.waiting)
        # What runs, and says so, is nothing for the console.
        self.noted_waiting = self.noted(said) if (said := self.console()) else ""

    def shows(self, *words: str, heat: str = "", failed: bool = False, warned: bool = False,
              beside: tuple[str, ...] = ()):
        """status has these words. heat: and this resource has got its reason; failed: and the console has a failure; warned: or a
        complaint; beside: and what else goes on has come so far."""
        stage, self.words = self.stage, words
        if self.waiting:
            self.wait(words, MENDED)
        else:
            self.measure(words)
        if heat:
            # What an operator reads once Heat has heard of this failure, and not in the second before.
            wait_for(lambda: not status_of(stage.host)["signals"], MENDED, "Heat has heard of it")
        self.heat = self.reason(heat) if heat else ""
        self.wait(beside, MENDED)
        if failed:
            wait_for(lambda: " state=failed " in self.console(), MENDED, "the console's line of the failure")
        if warned:
            wait_for(lambda: re.search(" state=(waiting|degraded) ", self.console()), MENDED, "the console's line of the complaint")
        self.ids = self.ids | self.ids_now() if self.waiting else self.ids_now()
        if heat and failed and " state=failed " not in self.console_lines()[-1]:
            self.wrong(f"the last line of the console is not the failure: {self.console_lines()[-3:]}")
        self.shown, self.explain, self.said = stage.page("status"), stage.page("explain"), self.console()
        self.status = self.shown
        self.journal = self.noted(self.said)
        for name, page in (("status", self.status), ("explain", self.explain)):
            self.check_page(name, page)

    def measure(self, words: tuple[str, ...]):
        self.wait(words, max(MENDED, self.within * SLACK))
        seconds = time.monotonic() - self.since
        self.stage.record(self.name, seconds, self.within)
        if seconds > self.within * slack():
            self.wrong(f"shown after {seconds:.0f} s, not within {self.within}")

    def wait(self, words: tuple[str, ...], seconds: float):
        def truth() -> bool:
            page = " ".join(self.stage.page("status").split())
            assert all(word in page for word in words), page
            return True
        wait_for(truth, seconds, f"{words} in status")

    def console(self) -> str:
        """What was said since of failures; where nothing failed, the last line about what is waited for."""
        lines = self.console_lines()
        failed = [line for line in lines if " state=failed " in line]
        waits = [line for line in lines if re.search(" state=(waiting|degraded) ", line) and " code=HNA-0701 " not in line]
        return "\n".join(failed or waits[-1:])

    def console_lines(self) -> list[str]:
        return self.stage.console()[self.shown_before:].replace("\r", "").splitlines()

    def noted(self, console: str) -> str:
        """What the journal has of that which the console said last, and had as soon as status had to show it."""
        code = re.findall(r" code=(HNA-\d+) ", console)[-1]

        def found() -> list[dict]:
            entries = self.stage.host.journal(HNA_CODE=code)
            return [e for e in entries if int(e["__REALTIME_TIMESTAMP"]) / 1e6 >= self.noted_since]
        first = wait_for(found, MENDED, f"{code} in the journal")[0]
        seconds = int(first["__REALTIME_TIMESTAMP"]) / 1e6 - self.noted_since
        # What is shown after something else was waited for is not measured.
        if self.noted_since and not self.noted_waiting and seconds > self.within * slack():
            self.wrong(f"in the journal after {seconds:.0f} s, not within {self.within}")
        said = [part for part in re.split(r"; |: | \(", first["MESSAGE"].split(" (last lines of ")[0]) if len(part) > 20]
        if len(set(said)) < len(said):
            self.wrong(f"the journal says something twice in a line: {first['MESSAGE']}")
        return f"{PRIORITIES[first['PRIORITY']]}: {first['MESSAGE']}"

    def ids_now(self) -> dict[str, str]:
        return {d["id"]: f"<id of {d['name']}>" for d in self.stage.server.document["deployments"]}

    def reason(self, resource: str) -> str:
        """What Heat heard last of this resource."""
        signal = wait_for(lambda: self.stage.server.signals(resource, accepted=True), 700, f"signal of {resource}")[-1].json()
        return str(signal.get("reason") or signal["deploy_status_code"])

    def wrong(self, what: str):
        self.stage.mistakes.append(f"{self.name}: {what}")

    def check_page(self, name: str, page: str):
        lines = page.rstrip("\n").splitlines()
        if any(len(line) > WIDTH for line in lines):
            self.wrong(f"a line of {name} is longer than {WIDTH}:\n{page}")
        texts = [re.sub(r"^\W*(why|remedy|note): +", "", line.strip()) for line in joined(page) if line.strip()]
        if twice := {text for text in texts if len(text) > 20 and sum(text in other for other in texts) > 1}:
            self.wrong(f"{name} says twice {twice}:\n{page}")
        read = lines if name == "explain" else self.to_read(lines)
        if len(read) > LINES:
            self.wrong(f"{len(read)} lines of {name} to read:\n{page}")
        # A URL is never shown whole.
        if "…" in re.sub(r"\S+://\S+", "", page):
            self.wrong(f"{name} cuts a text off:\n{page}")

    @staticmethod
    def to_read(lines: list[str]) -> list[str]:
        """The headline, and the rows of what is not as it should be with what is said below them."""
        heads = re.compile(r"^[A-Z]+( [A-Z]+)* +[A-Z]+( +[A-Z]+)*$")
        read, is_fine = [lines[0]], False
        for line, below in zip(lines[1:], [*lines[2:], ""]):
            if line and not line.startswith(" "):
                is_only_waiting = bool(re.match(r"^\S+ +waiting\b", line)) and not NOTE.match(below)
                is_fine = bool(FINE.match(line)) or line.startswith(FACTS) or bool(heads.match(line)) or is_only_waiting
            if line and not is_fine:
                read.append(line)
        return read

    # --- what it takes ------------------------------------------------------------------------
    @staticmethod
    def remedy_of(status: str) -> str:
        """All that status tells to do."""
        return " ".join(re.sub(r"^ *remedy: ", "", line) for line in joined(status) if re.match(r"^ *remedy: ", line))

    def known(self) -> dict[str, str]:
        return self.ids | self.stage.known

    def way(self, told: str, by_hand: str, do, again=None, runs: tuple[str, ...] = (), first: bool = True, until: tuple[str, ...] = ("READY",)):
        """One of several ways, in these words of the remedy: what only a person can do is done (`do`, said in `by_hand`) before or after the
        commands of the remedy that begin so (`runs`); then the failure is gone. `again` stages it once more, for the next way; where there is
        none, what this way leads to is what the next way ends."""
        remedy = self.remedy_of(self.status)
        if told not in remedy:
            self.wrong(f"the remedy does not say {told!r}: {remedy!r}")
        steps, after = self.carried_out([c for c in commands(remedy) if c.startswith(runs)] if runs else [], by_hand, do, first, until)
        self.ways.append([f"told: {told}", *steps, f"then: {after}"])
        if not again:
            return
        again()
        self.wait(self.words, MENDED)
        before, self.status = remedy, self.stage.page("status")
        self.ids |= self.ids_now()
        if normal(before, self.known()) != normal(self.remedy_of(self.status), self.known()):
            self.wrong(f"the remedy is another one when it is staged again:\n{before}\n{self.remedy_of(self.status)}")

    def mended(self, by_hand: str = "", do=None, first: bool = True, until: tuple[str, ...] = ("READY",), runs: tuple[str, ...] = ("",)):
        """What only a person can do is done (`do`, said in `by_hand`), before or after the remedy is carried out as it is printed (where it
        gives several ways: the commands that begin as in `runs`); then the failure is gone: status begins with the first word of `until`, and
        has the others."""
        shown, remedy = self.shown, self.remedy_of(self.status)
        if not commands(remedy) and "update the stack" not in remedy:
            self.wrong(f"no command in the remedy {remedy!r}:\n{shown}")
        self.end = self.now()
        # The page that shows it: by the next one what follows may have begun.
        steps, after = self.carried_out([c for c in commands(remedy) if c.startswith(runs)], by_hand, do, first, until)
        # What is for somebody who needed no update is not for who made one.
        asked = normal(remedy, self.known())
        if "update the stack" in by_hand:
            asked = re.sub(r"(If you did not update the stack, run|, then) `heat-node-agent rerun [^`]*`", "", asked)
        if left := {c for c in commands(asked) if not is_elsewhere(c)} - self.done:
            self.wrong(f"nobody carried out {left}")
        self.compare(steps, after)

    def carried_out(self, orders: list[str], by_hand: str, do, first: bool, until: tuple[str, ...]) -> tuple[list[str], str]:
        """What was done, and the first line of status once the failure is gone."""
        steps: list[str] = []
        # What the commands printed: seen where the failure stays.
        answers: list[str] = []

        def act():
            if do:
                steps.append(f"by hand: {by_hand}")
                do()
        if first:
            act()
        for command in orders:
            if is_elsewhere(command):
                steps.append(f"in the cloud: {command}")
                continue
            done = self.stage.host.exec("timeout", "60", "sh", "-c", command, check=False)
            if done.returncode in (124, 126, 127):
                self.wrong(f"`{command}` ends with {done.returncode}:\n{done.stderr}")
            self.done.add(normal(command, self.known()))
            steps.append(f"{command}  -> {done.returncode}")
            answers.append(f"{command}  -> {done.returncode}: {done.stdout[-500:]}{done.stderr[-1000:]}")
        if not first:
            act()

        def gone() -> str:
            page = self.stage.page("status")
            words = " ".join(page.split())
            assert words.startswith(until[0]) and all(word in words for word in until), words
            return page
        return steps, wait_for(gone, MENDED, "\n".join([f"the end of {self.name} after", *answers])).splitlines()[0]

    def compare(self, steps: list[str], after: str):
        """With what a person has read."""
        known = self.known()
        parts = {"status while it waits": self.waiting} if self.waiting else {}
        parts |= {"journal while it waits": self.noted_waiting} if self.noted_waiting else {}
        parts |= {"status": self.shown, "explain": self.explain, "console": self.said, "journal": self.journal, "Heat": self.heat or "nothing"}
        text = []
        for name, page in parts.items():
            lines = settled(joined(page)) if name.startswith(("status", "explain")) else page.splitlines()
            # The kernel's settings have a row only until they are measured once.
            lines = [line for line in lines if not re.match(r"(sysctl|storage) +<state>", line)]
            # After a rollback that failed too the failure is on the console once more, with what was so at that moment.
            lines = dict.fromkeys(normal(line, known) for line in lines) if name == "console" else [normal(line, known) for line in lines]
            text += [f"== {name}", *(piece for line in lines for piece in wrapped(line)), ""]
        for number, way in enumerate([[*steps, f"then: {after}"], *self.ways], 1):
            text += [f"== remedy{f', way {number}' if number > 1 else ''}", *(normal(step, known) for step in way), ""]
        path = GOLDEN / f"{self.name}.txt"
        new = "\n".join(text)
        if RENEW:
            path.parent.mkdir(exist_ok=True)
            path.write_text(new)
            return
        old = path.read_text() if path.exists() else ""
        difference = "\n".join(difflib.unified_diff(old.splitlines(), new.splitlines(), str(path.name), "now", lineterm=""))
        if difference:
            self.wrong(f"it is no longer as it was read:\n{difference}")
