"""Whether Kubernetes' real programs and those that stand in for them take and refuse the same command lines and files.

The table of it is docs/agreement.md: HNA_RENEW_AGREEMENT=1 writes it anew, after which a person reads the difference. With other real
programs (HNA_KUBERNETES) the two must agree as well, and no page is compared."""
import json
import os
import re
import shlex
from pathlib import Path

import pytest
from lib import hosts as hosts_module
from lib.common import GATEWAY, REPO
from lib.hosts import Host
from lib.real_kubernetes import FOLDER, PROGRAMS, version
from lib.stand_ins import refusal
from lib.strictness import CONFIGURATIONS, RULES, certificates_and_files, command_line, configuration

pytestmark = pytest.mark.longer
PAGE = REPO / "docs/agreement.md"
PAGE_OF = "1.20.2"
# How a kubelet ends that has taken its command line and then finds no runtime: nothing else is on its host.
NO_RUNTIME = r"failed to run Kubelet: (failed to get docker version|.*(unable to determine runtime API version|get remote runtime typed version failed))"
# What the real program refuses and its stand-in takes: words of what is asked, and why.
LAXER = {r"(?i)feature-?gates": "stand-ins have no list of feature gates", r"cloud-provider=(openstack|aws)": "compiled without the clouds' own libraries"}
# Each program alone: a network of its own with an address and a default route, by which nothing answers.
ALONE = """
cd /srv/cases
run() { unshare --net --mount --pid --mount-proc --fork --kill-child bash -c '
    ip link set lo up; ip link add d0 type veth peer name d1; ip address add 192.0.2.9/24 dev d0; ip link set d0 up; ip link set d1 up
    ip route add default via 192.0.2.1; for own in /var/lib/kubelet /var/run/kubernetes; do mkdir -p $own; mount -t tmpfs none $own; done
    exec timeout -s KILL '$2' bash -c "$(cat '$1')"' >$1.said 2>&1; echo $? >$1.code; }
export -f run
printf '%s\\n' [0-9]*.case | xargs -P 10 -I{} bash -c 'run {} 12'
for case in *.case; do
    # On a busy machine it may have been about to say it.
    [ "$(cat $case.code)" != 137 ] || [ -e ${case%.case}.good ] || echo $case
done | xargs -r -P 10 -I{} bash -c 'run {} 30'
"""


def cases(pki: dict) -> list[tuple[str, str, list[str], str | None]]:
    """What is asked in words, the program, its command line, and the text of its configuration file."""
    found, number = [], int(version().split(".")[1])
    for component, _, good, bad, _ in RULES:
        for words in (good, bad):
            if words is not None:
                found.append((words, component, command_line(pki, component, number, words, replaces=True), None))
    for component, _, good, bad, _ in CONFIGURATIONS:
        for document in (good, bad):
            found.append((json.dumps(document), component, [], configuration(pki, component, document)))
    return found


@pytest.fixture(scope="module")
def asked(programs, testhost, tmp_path_factory) -> list[tuple[str, str, str, str]]:
    """What is asked, the program, what its stand-in says (nothing: it runs), what the program itself says."""
    hosts_module.lab_up(address=f"{GATEWAY}/24")
    folder = tmp_path_factory.mktemp("pki")
    pki = certificates_and_files(folder)
    host = Host("alone")
    try:
        host.up(ip="10.77.0.41", binds_ro={str(PROGRAMS): FOLDER})
        files: dict[str, tuple[bytes | Path, int]] = {str(f): (f, 0o600) for f in folder.rglob("*") if f.is_file()}
        all_of_them = cases(pki)
        expected = []
        for i, (_, component, words, text) in enumerate(all_of_them):
            if text is not None:
                (folder / f"config-{i}").write_text(text)
                files[f"{folder}/config-{i}"] = (text.encode(), 0o600)
                words.append(f"--config={folder}/config-{i}")
            said = refusal(component, version(), *words)
            expected.append(said)
            files[f"/srv/cases/{i}.case"] = (shlex.join([f"{FOLDER}/{component}", *words]).encode(), 0o600)
            if not said:
                files[f"/srv/cases/{i}.good"] = (b"", 0o600)
        host.put(files)
        host.sh(f"mkdir -p {pki['empty']}; {ALONE}", timeout=1800)
        found = []
        for i, ((what, component, *_), stands) in enumerate(zip(all_of_them, expected)):
            code, said = host.read(f"/srv/cases/{i}.case.code").strip(), host.read(f"/srv/cases/{i}.case.said")
            found.append((what, component, stands, "" if code == "137" else end_of(component, said)))
        return found
    finally:
        host.down()
        hosts_module.lab_down()


def end_of(component: str, said: str) -> str:
    """The last line that says why a program ended, without its prefix; nothing where it ended for want of what is not there."""
    if component == "kubelet" and re.search(NO_RUNTIME, said):
        return ""
    lines = [line for line in said.splitlines() if re.match(r"[EF]\d{4} |[Ee]rror: |unknown |invalid |\S+: ", line)] or said.splitlines()[-1:] or ["nothing"]
    return re.sub(r"^[EFWI]\d{4} \S+ +\d+ \S+\] ", "", lines[-1])


def page(asked: list[tuple[str, str, str, str]]) -> str:
    """As docs/agreement.md has it."""
    def word(refusal: str) -> str:
        return "refuses" if refusal else "takes"
    rows = sorted({(component, what, word(stands), word(real)) for what, component, stands, real in asked})
    same = sum(stands == real for *_, stands, real in rows)
    stricter = sum((stands, real) == ("refuses", "takes") for *_, stands, real in rows)
    table = [f"| {component} | `{what.replace('|', chr(92) + '|')}` | {stands} | {real}{'' if stands == real else ' (differs)'} |" for component, what, stands, real in rows]
    return "\n".join([
        "# Stand-ins and the real programs", "",
        f"Made by `HNA_RENEW_AGREEMENT=1 tests/run real-kubernetes-longer -k agree`: the same command lines and configuration files given to Kubernetes {PAGE_OF} and",
        "to the programs of `tests/stand-ins/` for that version. Each real program is alone in a network without etcd, API or container runtime. *takes*: it",
        "was still running after 12 s (30 s where its stand-in refuses), or had gone on to look for its runtime. Names in braces are files, good and bad ones.", "",
        f"{len(rows)} rows: {same} agree; {stricter} times the stand-in alone refuses: the real program ignores the mistake with a warning (unknown fields of a file), or",
        f"comes to it later than here; {len(rows) - same - stricter} times the real program alone refuses: " + "; ".join(LAXER.values()) + ".", "",
        "| program | asked | stand-in | real |", "|---|---|---|---|", *table, ""])


def test_real_programs_and_their_stand_ins_agree(asked):
    """What the real program refuses its stand-in refuses; where the stand-in alone does, the page says so."""
    laxer = [f"{component} {what}: {real}" for what, component, stands, real in asked
             if real and not stands and not any(re.search(words, what) for words in LAXER)]
    assert not laxer, "\n".join(laxer)
    if version() != PAGE_OF:
        return
    if os.environ.get("HNA_RENEW_AGREEMENT"):
        PAGE.write_text(page(asked))
    assert PAGE.read_text() == page(asked), "HNA_RENEW_AGREEMENT=1 writes it anew; read the difference"
