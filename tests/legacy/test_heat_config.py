"""55-heat-config beside its original. What differs is in docs/legacy.md."""
import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from lib.legacy import BINARY, tree

HOOK = """#!/bin/sh
cat > "hook-$(basename "$0")-$(ls | wc -l)"
{text}
"""
NOTIFY = "#!/bin/sh\necho \"${1##*/}\" >> notified; cat >> notified; echo >> notified; exit ${STATUS:-0}\n"


def ready(pair, text="echo '{\"deploy_stdout\": \"out\", \"deploy_status_code\": 0, \"n\": [1.5, null]}'", **hooks):
    pair.write("notify", NOTIFY, 0o755)
    for group, own in {"script": None, "other_group-1": None, **hooks}.items():
        pair.write(f"hooks/{group}", HOOK.format(text=own or text), 0o755)


def deployment(id, **members):
    return {"id": id, "name": id, "group": "script", "config": "c é", "options": {}, "inputs": [], "outputs": [], **members}


def run(pair, entries, *, same=True, **env):
    pair.write("list", entries if isinstance(entries, str) else json.dumps(entries))
    environment = lambda side: {"HEAT_SHELL_CONFIG": "list", "HEAT_CONFIG_HOOKS": "hooks", "HEAT_CONFIG_DEPLOYED": "var/deployed", "HEAT_CONFIG_DEPLOYED_OLD": "old", "HEAT_CONFIG_NOTIFY": str(side / "notify"), **env}
    if same:
        return pair.same("55-heat-config", env=environment)
    return pair.run("55-heat-config", env=environment)


def notified(side):
    return (side / "notified").read_text() if (side / "notified").exists() else None


def test_each_is_run_once(pair):
    ready(pair)
    entries = [deployment("b"), deployment("a", group="other group-1!".replace(" ", "_")), deployment("c", config={"x": [1]}), deployment("d", group="os-apply-config"), deployment("e", options=None, outputs=None)]
    assert run(pair, entries) == 0
    assert notified(pair.sides[1]).count("\n") == 8
    files = tree(pair.sides[1])
    assert files["list"][1] == 0o600 and files["var/deployed"][1] == 0o700 and files["var/deployed/b.notify.json"][1] == 0o600
    assert run(pair, entries) == 0
    pair.each(lambda side: (side / "var/deployed/b.json").unlink())
    pair.write("var/deployed/f.json", "")
    assert run(pair, [*entries, deployment("f")]) == 0
    assert notified(pair.sides[1]).count("\n") == 10


def test_in_phases_of_the_daemon_it_leaves_them_to_that(pair):
    """`[legacy] phases`: the original runs them there as anywhere."""
    ready(pair)
    original, link = run(pair, [deployment("a")], same=False, HEAT_NODE_AGENT_PHASES="0" * 64)
    assert (original[0], link[0]) == (0, 0)
    assert notified(pair.sides[0]) and not notified(pair.sides[1])
    assert b"left to heat-node-agent.service" in link[2] and not (pair.sides[1] / "var/deployed").exists()
    # It holds passwords, whoever runs them.
    assert tree(pair.sides[1])["list"][1] == 0o600


def test_inputs(pair):
    ready(pair)
    inputs = [{"name": "s", "type": "String", "value": value} for value in ("text", 1, 2.0, True, None, [1, {"a": None, "b": "x'y"}], {"k": "é"})]
    inputs += [{"name": "n", "type": "Number", "value": 3}, {"name": "u", "value": [True]}, {"name": "j", "type": "Json", "value": None}]
    assert run(pair, [deployment("a", inputs=inputs)]) == 0


def test_components(pair):
    ready(pair)
    config = {"configs": [{"actions": ["CREATE", "UPDATE"], "tool": "script", "config": "one"}, {"actions": ["DELETE"], "tool": "other_group-1", "config": {"two": 2}}]}
    entries = [deployment(action, group="component", config=config, inputs=[{"name": "deploy_action", "type": "String", "value": action}]) for action in ("UPDATE", "DELETE", "SUSPEND")]
    assert run(pair, [*entries, deployment("none", group="component", config={})]) == 0
    assert notified(pair.sides[1]).count("\n") == 4


@pytest.mark.parametrize("text", ["exit 0", "echo err >&2; exit 3", "echo '{\"deploy_stdout\": \"x\", \"deploy_status_code\": \"7\"}'; exit 3", "echo text; exit 4", "kill -9 $$",
                                  "printf 'a\\377'; exit 1", "echo '{}'"])
def test_how_hooks_end(pair, text):
    ready(pair, text)
    assert run(pair, [deployment("a"), deployment("b")]) == 0


@pytest.mark.parametrize("text, status", [("echo '{\"deploy_stdout\": \"x\"}'; exit 3", 3), ("echo 5", 1), ("echo id; echo '{}'", 1), ("echo '{\"deploy_status_code\": 0}'; kill -9 $$", -9)])
def test_what_failed_is_no_success(pair, text, status):
    """R13, R34: the original tells Heat of a success."""
    ready(pair, text)
    run(pair, [deployment("a")], same=False)
    result = [json.loads((side / "var/deployed/a.notify.json").read_text()) for side in pair.sides]
    assert not isinstance(result[0], dict) or result[0].get("deploy_status_code", 0) == 0
    assert result[1]["deploy_status_code"] == status


def test_what_the_agent_does_itself_is_left_to_it(pair):
    """The original marks it as run, without a hook."""
    ready(pair)
    run(pair, [deployment("node", group="kubernetes-node"), deployment("a")], same=False)
    ours = pair.sides[1] / "var/deployed"
    assert sorted(file.name for file in ours.iterdir()) == ["a.json", "a.notify.json"] and "node" not in notified(pair.sides[1])


def test_what_is_too_deep_is_no_empty_list(pair):
    ready(pair)
    real, ours = run(pair, json.dumps([deployment("a", config="x")])[:-1] + ', {"id": "b", "x": ' + "[" * 200 + "]" * 200 + "}]", same=False)
    assert ours[0] == 1 and b"96 levels" in ours[2] and notified(pair.sides[1]) is None


def test_much_output_is_no_failure(pair):
    ready(pair, "head -c 5000000 /dev/zero | tr '\\0' x | sed 's/^/{\"deploy_status_code\": 0, \"deploy_stdout\": \"/; s/$/\"}/'")
    run(pair, [deployment("a")], same=False)
    result = json.loads((pair.sides[1] / "var/deployed/a.notify.json").read_text())
    assert result["deploy_status_code"] == 0 and len(result["deploy_stdout"]) == 5_000_000


def test_heat_hears_of_what_cannot_be_run(pair):
    """R33: the original says nothing to Heat. R21, R56: it writes and runs anything."""
    ready(pair, late="echo '{}'")
    pair.each(lambda side: (side / "hooks/late").chmod(0o777))
    pair.write("hooks/plain", "no program", 0o644)
    entries = [deployment("no-hook", group="nobody"), deployment("no-value", inputs=[{"name": "x"}]), deployment("no-inputs", inputs=None), deployment("writable", group="late"), deployment("plain", group="plain"),
               deployment("../escaped"), {"group": "script"}, 7, deployment("ungrouped", group="Heat::Ungrouped"), deployment("good")]
    real, ours = run(pair, entries, same=False)
    assert (real[0], ours[0]) == (0, 0)
    for name in ("no-hook", "no-value", "no-inputs", "writable", "plain"):
        result = json.loads((pair.sides[1] / f"var/deployed/{name}.notify.json").read_text())
        assert result["deploy_status_code"] == 1 and result["deploy_stderr"] and f"{name}.json" in notified(pair.sides[1]), name
    assert not (pair.sides[1] / "var/escaped.json").exists() and not (pair.sides[1] / "var/deployed/ungrouped.json").exists()
    assert (pair.sides[1] / "var/deployed/good.notify.json").exists()


def test_hooks_that_are_named_may_be_within_tmp(pair):
    """The suite of heat-agents has them there. What others can change is refused there too."""
    with tempfile.TemporaryDirectory(dir="/tmp") as named:
        named = Path(named)
        (named / "hooks").mkdir()
        (named / "hooks/script").write_text(HOOK.format(text="echo '{}'"))
        (named / "hooks/script").chmod(0o755)
        (named / "hooks/outside").symlink_to(named / "elsewhere")
        (named / "elsewhere").write_text("#!/bin/sh\necho '{}'\n")
        (named / "elsewhere").chmod(0o777)
        ready(pair)
        run(pair, [deployment("a"), deployment("b", group="outside")], same=False, HEAT_CONFIG_HOOKS=str(named / "hooks"))
        results = [json.loads((pair.sides[1] / f"var/deployed/{name}.notify.json").read_text()) for name in "ab"]
        assert results[0] == {}
        if os.geteuid() == 0:
            assert "elsewhere can be changed" in results[1]["deploy_stderr"]
            (named / "hooks").chmod(0o1777)
            run(pair, [deployment("c")], same=False, HEAT_CONFIG_HOOKS=str(named / "hooks"))
            assert "hooks can be changed" in json.loads((pair.sides[1] / "var/deployed/c.notify.json").read_text())["deploy_stderr"]


def test_lists_that_are_none(pair):
    ready(pair)
    for text in ("", "no json", "[]", "{}"):
        assert run(pair, text) == 0
    pair.each(lambda side: (side / "list").unlink())
    environment = {"HEAT_SHELL_CONFIG": "list"}
    assert pair.same("55-heat-config", env=environment) == 1


def test_what_was_deployed_elsewhere_is_taken_over(pair):
    ready(pair)
    pair.write("old/a.json", "{}", 0o600)
    pair.each(lambda side: (side / "old").chmod(0o700))
    pair.each(lambda side: (side / "var").mkdir())
    assert run(pair, [deployment("a"), deployment("b")]) == 0
    assert notified(pair.sides[1]).count("\n") == 2 and not (pair.sides[1] / "old").exists()


def test_a_signal_that_fails_stops_nothing(pair):
    ready(pair)
    assert run(pair, [deployment("a"), deployment("b")], STATUS="1") == 0
    assert run(pair, [deployment("c"), deployment("d")], HEAT_CONFIG_NOTIFY="/no/such/tool") == 0


def test_passwords_are_not_logged(pair):
    """R52: the original logs what hooks say on standard error."""
    ready(pair, "echo hush >&2; echo '{}'")
    real, ours = run(pair, [deployment("a", inputs=[{"name": "deploy_password", "value": "hush"}])], same=False)
    assert (real[0], ours[0]) == (0, 0) and b"hush" in real[2] and b"hush" not in ours[2]


def test_scripts_need_no_hook_and_no_notifier(pair):
    """R10: the original runs what the image has, and nothing where that is missing."""
    pair.write("list", json.dumps([deployment("a", config="#!/bin/sh\necho ran > ran\n")]))
    environment = lambda side: {"HEAT_SHELL_CONFIG": "list", "HEAT_CONFIG_HOOKS": "hooks", "HEAT_CONFIG_DEPLOYED": "deployed", "HEAT_SCRIPT_WORKING": str(side / "work"), "HEAT_SCRIPT_OUTPUTS": str(side / "outputs")}
    real, ours = pair.run("55-heat-config", env=environment)
    assert (real[0], ours[0]) == (0, 0)
    assert json.loads((pair.sides[1] / "deployed/a.notify.json").read_text())["deploy_status_code"] == 0 and (pair.sides[1] / "work/ran").exists()


def test_in_the_phase_of_os_refresh_config(pair):
    """As configure.d/55-heat-config, by link, from another directory."""
    ready(pair)
    pair.write("list", json.dumps([deployment("a")]))
    pair.write("lock", "")
    for tool in ("os-refresh-config", "dib-run-parts", "55-heat-config"):
        pair.run(tool, "--help")
    from lib.legacy import AGENTS, BINARY, IN_AGENTS
    for side, program in zip(pair.sides, (AGENTS / IN_AGENTS["55-heat-config"], BINARY)):
        (side / "base/configure.d").mkdir(parents=True)
        (side / "base/configure.d/55-heat-config").symlink_to(program)
    environment = lambda side: {"OS_REFRESH_CONFIG_BASE_DIR": "base", "HEAT_SHELL_CONFIG": "list", "HEAT_CONFIG_HOOKS": "hooks", "HEAT_CONFIG_DEPLOYED": "var/deployed", "HEAT_CONFIG_NOTIFY": str(side / "notify")}
    results = pair.run("os-refresh-config", "--lockfile", "lock", env=environment)
    assert [status for status, _, _ in results] == [0, 0] and notified(pair.sides[1]) == notified(pair.sides[0]) != None


class Heat(HTTPServer):
    """Keeps the results that it is sent; answers them with 503 while it is `away`, and once it `answers`."""

    def __init__(self):
        self.heard, self.away, self.answers = [], False, threading.Event()
        self.answers.set()
        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.heard.append((body, self.server.away))
        self.server.answers.wait(300)
        try:
            self.send_response(503 if self.server.away else 200)
            self.send_header("content-length", "0")
            self.end_headers()
        except ConnectionError:
            pass

    def log_message(self, *_):
        pass


def later_second() -> int:
    """A time by which nothing that has happened yet is of the same second."""
    time.sleep(1.01 - time.time() % 1)
    return int(time.time())


def begun(side, heat, script, polled="now"):
    """55-heat-config by link with one script, as os-collect-config by link runs it after a poll that began at `polled`; it leads a group of
    processes."""
    polled = later_second() if polled == "now" else polled
    signal_id = {"name": "deploy_signal_id", "type": "String", "value": f"http://127.0.0.1:{heat.server_port}/signal"}
    (side / "list").write_text(json.dumps([deployment("a", config=f"#!/bin/sh\n{script}\n", inputs=[signal_id])]))
    (side / "55-heat-config").unlink(missing_ok=True)
    (side / "55-heat-config").symlink_to(BINARY)
    environment = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "HEAT_SHELL_CONFIG": "list", "HEAT_CONFIG_DEPLOYED": "deployed", "HEAT_CONFIG_DEPLOYED_OLD": "old",
                   "HEAT_SCRIPT_WORKING": str(side / "work"), "HEAT_SCRIPT_OUTPUTS": str(side / "outputs")}
    if polled is not None:
        environment["HEAT_NODE_AGENT_POLLED"] = str(polled)
    return subprocess.Popen([side / "55-heat-config"], cwd=side, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True)


def ended(process):
    _, said = process.communicate(timeout=300)
    return process.returncode, said


def until(what, seconds=300):
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_heat_hears_of_a_script_that_was_cut_off(pair):
    """R30: of the original's nobody ever hears."""
    side, heat = pair.sides[1], Heat()
    process = begun(side, heat, f"echo once >> {side}/ran; sleep 600")
    until((side / "ran").exists)
    beside = begun(side, heat, "true")
    assert ended(beside)[0] == 1 and heat.heard == [], "it runs: nobody says that it was cut off, and a later run looks again"
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    status, said = ended(begun(side, heat, "true"))
    assert status == 1 and "when Heat has listed the deployment again" in said and heat.heard == [], "the poll may have been before its end"
    for _ in range(2):
        assert ended(begun(side, heat, "true"))[0] == 0
    assert len(heat.heard) == 1 and heat.heard[0][0]["deploy_status_code"] == 1 and "interrupted" in heat.heard[0][0]["deploy_stderr"]
    assert (side / "ran").read_text() == "once\n" and sorted(os.listdir(side / "deployed")) == ["a.json", "a.notify.json"]


def test_heat_hears_the_result_that_it_did_not_take(pair):
    """R31: the original never sends it again. Here the tool is killed meanwhile."""
    side, heat = pair.sides[1], Heat()
    heat.away = True
    process = begun(side, heat, "echo out; exit 3")
    until(lambda: heat.heard)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    heat.away = False
    for _ in range(2):
        assert ended(begun(side, heat, "true"))[0] == 0
    taken = [body for body, away in heat.heard if not away]
    assert len(taken) == 1 and (taken[0]["deploy_status_code"], taken[0]["deploy_stdout"]) == (3, "out\n")


def test_a_result_that_is_not_taken_is_left_for_the_next_run(pair):
    """Where only heat-config-notify ends before Heat has the result, whoever runs the tool is to come again."""
    side, heat = pair.sides[1], Heat()
    heat.away = True
    heat.answers.clear()
    process = begun(side, heat, "exit 0")
    until(lambda: heat.heard)
    children = open(f"/proc/{process.pid}/task/{process.pid}/children").read().split()
    assert len(children) == 1
    os.kill(int(children[0]), signal.SIGKILL)
    status, said = ended(process)
    assert status == 1 and "it is sent when Heat has listed the deployment again" in said
    heat.away = False
    heat.answers.set()
    assert ended(begun(side, heat, "true"))[0] == 0
    assert heat.heard[-1] == ({**heat.heard[-1][0], "deploy_status_code": 0}, False)


def test_what_was_not_told_at_once_waits_until_heat_has_listed_it_again(pair):
    """While Heat was away it may have put another deployment in the place of this one, and a late result would complete that one."""
    side, heat = pair.sides[1], Heat()
    heat.away = True
    assert ended(begun(side, heat, "exit 3"))[0] == 1 and len(heat.heard) == 1, "the first try, as of the original, and no other"
    heat.away = False
    for polled, status in (("", 1), (int(time.time()) - 60, 1), (None, 0)):
        ran, said = ended(begun(side, heat, "true", polled))
        assert ran == status and len(heat.heard) == 1, (polled, said)
    assert "heat-config-notify" in said and "a.notify.json" in said
    assert ended(begun(side, heat, "true"))[0] == 0 and [body["deploy_status_code"] for body, _ in heat.heard] == [3, 3]


def test_large_files_of_before_are_taken_over(pair):
    ready(pair)
    pair.write("old/a.json", "{}", 0o600)
    pair.write("old/a.notify.json", "x" * (17 << 20), 0o600)
    pair.each(lambda side: (side / "old").chmod(0o700))
    assert run(pair, [deployment("a"), deployment("b")]) == 0
    assert notified(pair.sides[1]).count("\n") == 2 and not (pair.sides[1] / "old").exists()
