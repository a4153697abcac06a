"""`timeline`: the bring-up of a node with a real etcd and docker, against time, beside the daemon and without it."""
import json
import re
import xml.etree.ElementTree as ElementTree

import jsonschema
from lib.common import REPO
from lib.node import IP, NODE, UNIT, VDB, VDC, bring_up, ended, signalled, start, status_of

SVG = "{http://www.w3.org/2000/svg}"


def timeline(host, *args) -> str:
    return host.exec("heat-node-agent", "timeline", *args).stdout


def step_timings(host) -> dict[str, dict]:
    status = status_of(host)
    jsonschema.Draft202012Validator(json.loads((REPO / "docs/schemas/status.json").read_text())).validate(status)
    return {timing["step"]: timing for timing in status["node"]["step_timings"]}


def end(timing: dict) -> int:
    return timing["began_ms"] + timing["took_ms"]


def test_a_bring_up_is_drawn_with_what_each_step_waited_for(hosts, signal_server):
    server = signal_server()
    host = hosts("n1", ip=IP, volumes={"vdb": ("1G", VDB), "vdc": ("1G", VDC)})
    host.install_agent()
    nothing = host.exec("heat-node-agent", "timeline", check=False)
    assert nothing.returncode == 1 and "no bring-up of a node is recorded" in nothing.stderr

    server.deploy(server.deployment("node", group="kubernetes-node", inputs=NODE, outputs=["timings"]))
    start(host, server)
    assert ended(server) == ""
    host.wait_for(lambda: status_of(host)["node"]["state"] == "applied")

    # etcd's gate comes after its unit, which comes after its volume; nothing begins before what it waited for.
    found = step_timings(host)
    assert {timing["state"] for timing in found.values()} == {"ok"}
    assert found["installed programs"]["after"] == [] and found["checks"]["after"] == ["installed programs"]
    assert found["gate etcd"]["after"][-1] == "unit etcd.service" and "volume etcd" in found["unit etcd.service"]["after"]
    for timing in found.values():
        # Who needs a gate may be released by its first good answer.
        done = [found[need]["began_ms"] if need.startswith("gate ") else end(found[need]) for need in timing["after"]]
        assert max(done, default=0) <= timing["began_ms"], (timing, found)
    # Heat has the same figures, and the whole run; each step was measured once.
    total = max(map(end, found.values()))
    assert signalled(server, "node")["timings"] == {step: timing["took_ms"] for step, timing in found.items()} | {"total": total}
    page = timeline(host)
    rows = page.splitlines()
    width = min(30, max(map(len, found)))
    shown = {row[2:2 + width].strip().rstrip("…"): i for i, row in enumerate(rows[:len(found) + 2]) if i >= 2}
    place = {step: next(i for name, i in shown.items() if step.startswith(name)) for step in found}
    assert place["volume etcd"] < place["unit etcd.service"] < place["gate etcd"], page
    assert rows[place["gate etcd"]].endswith("after unit etcd.service") and all(len(row) <= 100 for row in rows), page
    # The critical path leads from the beginning to whoever ended last: what was started had to go on answering.
    critical = [step for step in found if rows[place[step]].startswith("# ")]
    assert critical[0] == "installed programs" and critical[-1] == "final proof", page
    assert end(found["final proof"]) == max(map(end, found.values())), page

    picture = timeline(host, "--svg")
    root = ElementTree.fromstring(picture)
    assert root.tag == f"{SVG}svg" and "script" not in picture
    titles = [title.text for title in root.iter(f"{SVG}title")]
    drawn = {title.split(":")[0]: title for title in titles[1:]}
    assert set(drawn) == set(found) and "waited for unit etcd.service" in drawn["gate etcd"], titles
    assert {name for name, title in drawn.items() if title.endswith("on the critical path")} == set(critical)

    # The journal says the same of each step that ended.
    green = host.reported("GatePassed", HNA_GATE="etcd")[0]
    assert green["HNA_WAITED_FOR"] == "unit etcd.service" and re.search(r"waited \S+ for unit etcd\.service\)$", green["MESSAGE"])
    assert int(green["HNA_WAITED_MS"]) == found["gate etcd"]["began_ms"]

    # What is known is on disk.
    host.exec("systemctl", "stop", UNIT)
    assert timeline(host) == page
    host.exec("rm", "/run/heat-node-agent/status.json")
    assert timeline(host) == page
    assert host.exec("runuser", "-u", "nobody", "--", "heat-node-agent", "timeline", check=False).returncode == 1


def test_a_bring_up_that_failed_shows_how_far_it_came(hosts, signal_server):
    server = signal_server()
    host = hosts("n1", ip=IP, volumes={"vdb": ("1G", VDB), "vdc": ("1G", VDC)})
    host.sh("mkfs.ext4 -q -L old /dev/vdb; sync")
    assert "HNA-0306" in bring_up(host, server)
    host.wait_for(lambda: status_of(host)["node"]["state"] == "rejected")
    found = step_timings(host)
    assert found["volume runtime"]["state"] == "failed" and "gate docker" not in found
    page = timeline(host)
    row = next(row for row in page.splitlines() if "volume runtime" in row)
    assert row.startswith("# ") and "FAILED" in row and page.startswith("generation 1 failed\n"), page
    assert "FAILED" in timeline(host, "--svg")
