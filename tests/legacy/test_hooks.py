"""The hooks of heat-agents and heat-config-notify beside their originals. What differs is in docs/legacy.md."""
import json
import stat
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from lib.legacy import BINARY


def deployment(config, **members):
    return json.dumps({"id": "b1a6a2f0-52d3", "name": "n", "group": "g", "config": config, "options": {}, "inputs": [], "outputs": [], **members}).encode()


SCRIPT = {"HEAT_SCRIPT_WORKING": "work/of/script", "HEAT_SCRIPT_OUTPUTS": "outputs"}


def script(pair, config, **members):
    # The original takes its directories for granted from where it changed to, so both get absolute ones.
    return pair.run("hook-script.py", env=lambda side: {name: str(side / place) for name, place in SCRIPT.items()}, stdin=deployment(config, **members))


def values(pair, results):
    assert results[0][0] == results[1][0], results
    for place in ("work/of/script/b1a6a2f0-52d3", "outputs"):
        modes = [stat.S_IMODE((side / place).stat().st_mode) for side in pair.sides if (side / place).exists()]
        assert len(set(modes)) <= 1, place
    return [json.loads(out.replace(str(side).encode(), b"SIDE")) if out else None for side, (_, out, _) in zip(pair.sides, results)]


@pytest.mark.parametrize("config, members", [
    ("#!/bin/sh\necho out; echo err >&2; exit 3\n", {}),
    ("#!/bin/sh\necho \"$a|$b|$c|$PWD|$heat_outputs_path\"\ncat\n",
     {"inputs": [{"name": "a", "type": "String", "value": "one é $HOME"}, {"name": "b", "value": [1, {"x": None}]}, {"name": "c", "value": {"k": "ü"}}, {"name": "d"}]}),
    ("#!/bin/sh\nprintf 'x\\r\\ny' > $heat_outputs_path.first; echo z > $heat_outputs_path.third\n",
     {"outputs": [{"name": "first"}, {"name": "second"}, {"name": "third", "type": "String", "error_output": True}]}),
    ("#!/bin/sh\nkill -9 $$\n", {"outputs": None}),
    ("#!/bin/sh\nprintf 'a\\377b\\303\\050'\n", {}),
    ("#!/no/such/interpreter\n", {}),
    ("echo no program\n", {}),
    ("", {}),
    ({"a": "map"}, {}),
    ("#!/bin/sh\n", {"inputs": None}),
])
def test_script(pair, config, members):
    real, ours = values(pair, script(pair, config, **members))
    assert ours == real


def test_inputs_of_other_types_are_text(pair):
    """R35: the original fails."""
    inputs = [{"name": "n", "type": "Number", "value": 1.5}, {"name": "t", "type": "Boolean", "value": True}, {"name": "x", "type": "Json", "value": None}]
    real, ours = script(pair, "#!/bin/sh\necho \"$n $t [$x]\"\n", inputs=inputs)
    assert (real[0], ours[0], json.loads(ours[1])["deploy_stdout"]) == (1, 0, "1.5 true []\n")


def test_names_stay_where_they_belong_and_nothing_is_logged(pair):
    """R21, R52: the original does neither."""
    (pair.sides[1] / "outside").write_text("not an output")
    inputs = [{"name": "deploy_password", "type": "String", "value": "hush hush"}]
    real, ours = script(pair, "#!/bin/sh\necho ran\n", inputs=inputs, outputs=[{"name": "/../../outside"}])
    assert ours[0] == 0 and list(json.loads(ours[1])) == ["deploy_stdout", "deploy_stderr", "deploy_status_code"]
    assert b"hush" in real[2] and b"hush" not in ours[2]
    real, ours = script(pair, "#!/bin/sh\necho ran\n", id="../escaped")
    assert ours[0] == 1 and not list(pair.sides[1].rglob("escaped"))


def test_a_shorter_script_replaces_a_longer_one(pair):
    """R40: the original leaves the end of the longer one."""
    script(pair, "#!/bin/sh\necho one\necho two\necho three\n")
    real, ours = script(pair, "#!/bin/sh\necho 1\n")
    assert json.loads(ours[1])["deploy_stdout"] == "1\n" != json.loads(real[1])["deploy_stdout"]


@pytest.mark.parametrize("content", [{}, {"b": [1, [], {"z": None, "a": "é"}], "a": {}}, "text", None, 1.5, [True]])
def test_json_file(pair, content):
    assert pair.same("hook-json-file.py", stdin=lambda side: deployment({str(side / "deep/er/file.json"): content, str(side / "other"): 1})) == 0
    pair.each(lambda side: (side / "other").chmod(0o640))
    assert pair.same("hook-json-file.py", stdin=lambda side: deployment({str(side / "other"): content})) == 0


def test_json_file_of_nothing(pair):
    for config in ("", [], {}, None, "text", {"no-directory": 1}):
        pair.same("hook-json-file.py", stdin=deployment(config))
    pair.same("hook-json-file.py", stdin=b"not json")
    pair.same("hook-json-file.py", stdin=b"[]")


def test_hiera(pair):
    env = {"HEAT_PUPPET_HIERA_DATADIR": "data/of/hiera", "HEAT_HIERA_CONFIG": "hiera.yaml", "HEAT_HIERA_ELEMENT_CHECK_CMD": "echo empty"}
    for config in ({"hierarchy": ["a", "%{x}/b", 3, True], "datafiles": {"a": {"z": 1, "b": [2]}, "c": None}}, {"hierarchy": []}, {"datafiles": {"a": {}}}, {}, ""):
        assert pair.same("hook-hiera.py", env=env, stdin=deployment(config)) == 0, config
    pair.same("hook-hiera.py", env=env, stdin=deployment(None))
    pair.same("hook-hiera.py", env={**env, "HEAT_HIERA_ELEMENT_CHECK_CMD": "/no/such/tool x"}, stdin=deployment({"hierarchy": ["x"]}))
    _, ours = pair.run("hook-hiera.py", env=env, stdin=deployment({"datafiles": {"../../escaped": 1}}))
    assert ours[0] == 1 and not (pair.sides[1] / "data/escaped.json").exists()
    real, ours = pair.run("hook-hiera.py", env={**env, "HEAT_HIERA_ELEMENT_CHECK_CMD": "echo {}"}, stdin=deployment({}))
    assert (real[0], ours[0], json.loads(ours[1])["deploy_status_code"]) == (1, 0, 1)


def test_apply_config(pair):
    pair.write("m.json", '{"foo": "bar"}')
    pair.write("templates/x", "foo={{foo}}")
    env = {"HEAT_APPLY_CONFIG_CMD": "./command", "OS_CONFIG_FILES": "m.json"}
    for status in (0, 4):
        pair.write("command", f"#!/bin/sh\necho out; echo err >&2; exit {status}\n", 0o755)
        assert pair.same("hook-apply-config.py", env=env, stdin=deployment({})) == 0
    pair.same("hook-apply-config.py", env={"HEAT_APPLY_CONFIG_CMD": "/no/such/tool"}, stdin=deployment({}))
    # Our own, without any command in PATH; it writes below /, so into a directory of the test.
    target = pair.sides[1] / "written"
    template(pair.sides[1])
    ours = pair.run("hook-apply-config.py", env={"OS_CONFIG_FILES": "m.json", "OS_CONFIG_APPLIER_TEMPLATES": "tree"}, stdin=b"")[1]
    assert (ours[0], json.loads(ours[1])["deploy_status_code"], target.read_text()) == (0, 0, "foo=bar")


def test_the_unit_of_a_deployment_runs_the_agents_own_hook(pair):
    """A job as the daemon writes it for a group whose hook the image does not have (deploy/hooks/mod.rs), and the original's files beside it."""
    side = pair.sides[1]
    target, config = side / "deep/file.json", {"b": [1, {"z": None}], "a": "é"}
    pair.run("hook-json-file.py", stdin=lambda side: deployment({str(side / "deep/file.json"): config}))
    expected = (pair.sides[0] / "deep/file.json").read_bytes()
    target.unlink()

    def run(name, group, about, environment=None):
        job = {"argv": ["/proc/self/exe"], "called": f"hook-{group}", "stdin": deployment(about).decode(), "says_json": True, "environment": environment or {}}
        (side / name).mkdir()
        (side / name / "job.json").write_text(json.dumps(job))
        subprocess.run([BINARY, "hook-run", side / name], check=True, env={"PATH": "/usr/bin:/bin"}, capture_output=True, timeout=600)
        return json.loads((side / name / "result.json").read_text())

    result = run("one", "json-file", {str(target): config})
    assert result["status"] == 0 and target.read_bytes() == expected, result
    result = run("two", "json-file", {"no-directory": 1})
    assert result["status"] == 1 and "no path of a file" in result["stderr"], result
    (side / "m.json").write_text('{"foo": "bar"}')
    result = run("three", "apply-config", "", {"OS_CONFIG_FILES": str(side / "m.json"), "OS_CONFIG_APPLIER_TEMPLATES": str(template(side))})
    assert result["status"] == 0 and (side / "written").read_text() == "foo=bar", result


def template(side):
    """A directory of templates with one that becomes a file of the test."""
    place = side / "tree" / str(side / "written")[1:]
    place.parent.mkdir(parents=True)
    place.write_text("foo={{foo}}")
    return side / "tree"


def test_cfn_signal(pair):
    """What curl was told to send; that Heat refuses it is a failure here (R45)."""
    heat, path = Heat(200), "/v1/waitcondition/arn%3Aopenstack?Timestamp=2026-01-01T00%3A00%3A00Z&Signature=a%2Bb%3D"
    url = f"http://127.0.0.1:{heat.server_port}{path}"

    def ours(*arguments):
        pair.bins[1].joinpath("cfn-signal").exists() or pair.bins[1].joinpath("cfn-signal").symlink_to(BINARY)
        ended = subprocess.run([pair.bins[1] / "cfn-signal", *arguments], capture_output=True, timeout=600, env={"PATH": "/usr/bin:/bin"})
        return ended.returncode, ended.stdout, ended.stderr

    assert ours("-e", "0", "-i", "me", url)[:2] == (0, b"")
    assert ours("-s", "false", "-r", "why", "-d", "{}", "--id=me", url)[0] == 0
    bodies = [json.loads(asked[4]) for asked in heat.asked]
    assert bodies == [{"Status": "SUCCESS", "Reason": "Configuration Complete", "UniqueId": "me", "Data": "Application has completed configuration."},
                      {"Status": "FAILURE", "Reason": "why", "UniqueId": "me", "Data": "{}"}]
    assert {asked[:2] for asked in heat.asked} == {("PUT", path)}
    assert ours(url)[0] == 0 and json.loads(heat.asked[-1][4])["UniqueId"]
    heat.statuses[:] = [403]
    status, _, said = ours(url)
    assert status == 1 and b"403" in said and b"Signature=a" not in said
    assert [ours(*words)[0] for words in ([], ["--stack", "s", "--resource", "r"], ["--nothing", url])] == [2, 2, 2]


class Heat(HTTPServer):
    """Keeps what it is asked, and answers with these statuses, the last one again and again."""

    def __init__(self, *statuses):
        self.asked, self.statuses = [], list(statuses)
        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Handler(BaseHTTPRequestHandler):
    def answer(self):
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        server = self.server
        server.asked.append((self.command, self.path, self.headers["content-type"], self.headers["content-length"] is not None, body))
        self.send_response(server.statuses.pop(0) if len(server.statuses) > 1 else server.statuses[0])
        self.send_header("content-length", "0")
        self.end_headers()

    do_POST = do_PUT = answer

    def log_message(self, *_):
        pass


PATH = "/v1/signal/arn%3Aopenstack%3Aheat%3A%3Ap%3Astacks/s%2520t/u/resources/r?Timestamp=2026-01-01T00%3A00%3A00Z&Signature=a%2Bb%3D"


def notify(pair, heat, result, **inputs):
    inputs = {"deploy_signal_id": f"http://127.0.0.1:{heat.server_port}{PATH}", **inputs}
    pair.write("d.json", deployment("", inputs=[{"name": name, "type": "String", "value": value} for name, value in inputs.items() if value]))
    return pair.run("heat-config-notify", "d.json", stdin=result)


@pytest.mark.parametrize("verb", [None, "POST", "PUT"])
@pytest.mark.parametrize("result", [b'{"deploy_stdout": "\xc3\xa9", "deploy_status_code": 0, "n": [1.5, null]}', b"{}", b"not json", b""])
def test_notify(pair, verb, result):
    heat = Heat(200)
    real, ours = notify(pair, heat, result, deploy_signal_verb=verb)
    assert (real[0], ours[0]) == (0, 0), ours
    assert len(heat.asked) == 2 and heat.asked[0][:4] == heat.asked[1][:4] == (verb or "POST", PATH, "application/json", True)
    assert json.loads(heat.asked[0][4]) == json.loads(heat.asked[1][4])


def test_notify_sends_nothing_where_nothing_is_asked_for(pair):
    heat = Heat(200)
    real, ours = notify(pair, heat, b"{}", deploy_signal_id=None, deploy_signal_transport="NO_SIGNAL")
    assert (real[0], ours[0], heat.asked) == (0, 0, [])
    assert [status for status, _, _ in pair.run("heat-config-notify", stdin=b"{}")] == [1, 1]
    assert [status for status, _, _ in pair.run("heat-config-notify", "no-such-file", stdin=b"{}")] == [1, 1]


def test_notify_says_when_heat_does_not_take_it(pair):
    """R45, R52: the original ends with 0."""
    heat = Heat(403)
    real, ours = notify(pair, heat, b"{}")
    assert (real[0], ours[0]) == (0, 1) and b"403" in ours[2] and b"Signature=a" not in ours[2]


def test_notify_tries_again(pair):
    """R45: the original gives up after one POST."""
    heat = Heat(503, 503, 503, 200)
    real, ours = notify(pair, heat, b"{}")
    assert (real[0], ours[0], len(heat.asked)) == (0, 0, 4)


def test_long_results_are_cut(pair):
    """R37: the original crashes."""
    heat = Heat(200)
    result = json.dumps({"deploy_stdout": "BEGIN" + "x" * 3_000_000 + "END", "deploy_stderr": "e", "deploy_status_code": 1}).encode()
    real, ours = notify(pair, heat, result)
    assert (real[0], ours[0], len(heat.asked)) == (1, 0, 1)
    body = json.loads(heat.asked[0][4])
    assert len(heat.asked[0][4]) < 950_000 and body["deploy_stdout"].startswith("BEGIN") and body["deploy_stdout"].endswith("END")
    assert (body["deploy_stderr"], body["deploy_status_code"]) == ("e", 1)
