"""os-collect-config beside its original. What differs is in docs/legacy.md."""
import json
import signal
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from lib.legacy import tree

# The original reads local data in no other locale (R3).
C = {"LC_ALL": "C"}
# Two paths of the options, so that nothing of this machine is looked at.
CACHE = ["--cachedir", "cache", "--backup-cachedir", "backup/of"]
# A dollar is two in a command: the original puts options in the place of their names.
SHOW = "echo \"$$OS_CONFIG_FILES\"; for f in $(echo $$OS_CONFIG_FILES | tr : ' '); do cat $$f; done"

DOCUMENT = {"os-collect-config": {"collectors": ["heat"]}, "ü": [1, 2.5, None, {}, []], "deployments": [
    {"name": "a", "config": {"k": "v"}}, {"name": "b", "group": "script", "config": "#!/bin/sh"},
    {"name": "c", "group": "os-apply-config", "config": {"x": {"y": 1}}}, {"group": "x", "config": 1}, {"name": "d", "group": "Heat::Ungrouped", "config": "text"}]}


def once(pair, *arguments, **options):
    return pair.same("os-collect-config", *arguments, env={**C, **options.pop("env", {})}, **options)


def files(pair):
    pair.write("local/20.json", '{"a": {"b": [1, "é"]}, "c": 1.0}')
    pair.write("local/10", '3')
    pair.write("local/.hidden", 'no json')
    pair.write("local/sub/x", 'no json')
    pair.write("boot.json", json.dumps(DOCUMENT))


def test_print(pair):
    files(pair)
    assert once(pair, "--local-path", "local", "local") == 0
    assert once(pair, "--local-path", "local", "--heat_local-path=boot.json", "heat_local", "local") == 0
    assert once(pair, "--local-path", "local", "local", "--print", "-c", "echo never", *CACHE) == 0
    assert once(pair, "--local-path", "gone", "local") == 0
    assert once(pair, "--heat_local-path", "gone", "heat_local") == 0
    pair.write("not.json", "{")
    assert once(pair, "--heat_local-path", "gone", "--heat_local-path", "not.json", "--heat_local-path", "boot.json", "--heat_local-path", "local/20.json", "heat_local") == 0
    # What is not configured says nothing.
    assert once(pair, "cfn", "heat", "request", "zaqar") == 0
    for directory, mode in (("local", 0o777), ("local/10", 0o646)):
        pair.each(lambda side: (side / directory).chmod(mode))
        assert once(pair, "--local-path", "local", "local") == 0
        pair.each(lambda side: (side / directory).chmod(0o755))
    pair.write("local/30", "{")
    assert once(pair, "--local-path", "local", "local") == 0


def test_command_lines(pair):
    files(pair)
    for arguments, status in [
        (["--print-cachedir"], 0), (["--print-cachedir", "--cachedir", "x"], 0), (["--print-cachedir", "--noprint-cachedir", "local", "--local-path", "local"], 0),
        (["--print-cachedir", "nobody"], 0), (["nobody"], 1), (["--nothing"], 2), (["--command"], 2), (["--print=1"], 2), (["--splay", "soon"], 1),
        (["--polling-interval=", "local", "--local-path", "local"], 0), (["-d", "--nouse-syslog", "local", "--local-path", "local"], 0),
        (["--config-file", "gone"], 1), (["--config-dir", "gone"], 1),
    ]:
        assert once(pair, *arguments) == status, arguments
    real, ours = pair.run("os-collect-config", "--version", env=C)
    assert (real[0], ours[0]) == (0, 0) and ours[1].startswith(real[1].strip())


def test_settings(pair):
    files(pair)
    pair.write("other/x", "4")
    local = "[DEFAULT]\ncollectors = local\n"
    for text in ("[local]\npath = local\n", "[local]\npath = local\npath = other\n", "[DEFAULT]\ncachedir = local\n[local]\npath = $cachedir\n",
                 "[DEFAULT]\ncachedir = local\n[local]\npath = ${cachedir}\n", "[DEFAULT]\n# comment\nunknown = 1\n[else]\nx = y\n[local]\npath: local\n", "[DEFAULT]\nforce = yes\n[local]\npath = 'local'\n"):
        pair.write("a.conf", local + text.removeprefix("[DEFAULT]\n"))
        assert once(pair, "--config-file", "a.conf") == 0, text
    for text in ("[DEFAULT]\nnonsense\n", "[DEFAULT]\nsplay = x\n", "[DEFAULT]\nforce = maybe\n", "[DEFAULT]\ncollectors = nobody\n"):
        pair.write("a.conf", text)
        assert once(pair, "--config-file", "a.conf", "--print") == 1, text
    pair.write("a.conf", local + "[local]\npath = local\n")
    pair.write("d/20.conf", "[local]\npath = other\n")
    pair.write("d/10.conf", "[DEFAULT]\ncachedir = of-10\ncommand = of-10\n")
    pair.write("d/30.other", "nonsense\n")
    for arguments in (["--config-file", "a.conf", "--config-dir", "d"], ["--config-dir", "d", "--config-file", "a.conf"]):
        assert once(pair, *arguments, "--print") == 0
        assert once(pair, *arguments, "--print-cachedir") == 0
    # The home directory comes first.
    for home in ("home", "nowhere"):
        pair.write("home/os-collect-config.conf", local + "cachedir = of-home\n")
        pair.write("home/os-collect-config.conf.d/x.conf", "[DEFAULT]\nbackup_cachedir = x\n")
        assert once(pair, "--print-cachedir", env={"HOME": home}) == 0
    for name, value in {"OS_DEFAULT__CACHEDIR": "of-environment", "OS_DEFAULT__PRINT_ONLY": "true"}.items():
        once(pair, "--config-file", "a.conf", "--print-cachedir", env={name: value})
    assert once(pair, "--config-file", "a.conf", "--cachedir", "of-line", "--print-cachedir", env={"OS_DEFAULT__CACHEDIR": "of-environment"}) == 0


def test_the_command_and_the_cache(pair):
    files(pair)
    start = ["--local-path", "local", "--heat_local-path", "boot.json", "heat_local", "local", "--one-time", *CACHE, "-c"]
    assert once(pair, *start, SHOW) == 0
    names = tree(pair.sides[1])
    assert names["cache/heat_local.json"][1] == 0o600 and "cache/20.json.json.last" in names and "backup/of/os_config_files.json" in names
    assert once(pair, *start, "echo not again") == 0
    assert once(pair, *start, "echo again", "--force") == 0
    pair.write("local/20.json", '{"c": 1.0, "a": {"b": [1, "é"]}}')
    assert once(pair, *start, "echo the same in another order") == 0
    pair.write("local/20.json", "{}")
    assert once(pair, *start, "echo fails; exit 7") == 7
    assert once(pair, *start, "echo is killed; kill -9 \\$\\$") == 247
    assert once(pair, *start, "echo \"$$HOME|$$PWD\" | sed s,/ours,/real,; cat", stdin=b"of the caller\n", env={"HOME": "/home/x"}) == 0
    assert once(pair, *start, "echo done") == 0
    assert once(pair, *start, "no-such-command", "--force") == 127
    pair.each(lambda side: (side / "local/10").unlink())
    assert once(pair, *start, "echo gone is no change") == 0
    pair.write("cache/heat_local.json.last", "[]")
    assert once(pair, *start, SHOW) == 0
    assert once(pair, "--local-path", "local", "local", "--one-time", "--cachedir", "no/such", "-c", "echo never") == 1


def test_a_large_file_beside_the_cache_keeps_nothing_from_running(pair):
    files(pair)
    pair.write("cache/core", "x" * (17 << 20))
    assert once(pair, "--local-path", "local", "local", "--one-time", *CACHE, "-c", "echo ran") == 0
    assert (pair.sides[1] / "backup/of/core").stat().st_size == 17 << 20


def test_a_copy_that_cannot_be_made_keeps_nothing_from_running(pair):
    """The original ends with a traceback."""
    files(pair)
    pair.write("backup", "a file")
    real, ours = pair.run("os-collect-config", "--local-path", "local", "local", "--one-time", *CACHE, "-c", "echo ran", env=C)
    assert real[0] == 1 and ours[:2] == (0, b"ran\n") and ours[2].count(b"WARNING") == 1, ours


def test_a_damaged_cache_counts_as_changed(pair):
    """R2: the original never starts again."""
    files(pair)
    start = ["--local-path", "local", "local", "--one-time", *CACHE, "-c", "echo ran"]
    assert once(pair, *start) == 0
    pair.write("cache/10.json.last", "garbage")
    real, ours = pair.run("os-collect-config", *start, env=C)
    assert (real[0], ours[:2]) == (1, (0, b"ran\n"))


def test_what_the_original_ends_with(pair):
    """R5, R23, R29."""
    files(pair)
    for text, arguments, out in [
        ("[DEFAULT]\ncollectors = [\"local\"]\n[local]\npath = local\n", [], b'{\n "10": 3'),
        ("[request]\nmetadata_url =\n", ["request"], b"{}\n"),
        ("[DEFAULT]\ncommand = x=1; echo $x-$(echo 2)\n[local]\npath = local\n", ["local", "--one-time", *CACHE], b"1-2\n"),
    ]:
        pair.write("a.conf", text)
        real, ours = pair.run("os-collect-config", "--config-file", "a.conf", *arguments, env=C)
        assert (real[0], ours[0]) == (1, 0) and ours[1].startswith(out), (text, ours)


def test_without_a_locale(pair):
    """R3: the original's source fails, with the whole tool."""
    files(pair)
    _, ours = pair.run("os-collect-config", "--local-path", "local", "local", env={"LC_ALL": "C.UTF-8"})
    assert ours[0] == 0 and list(json.loads(ours[1])) == ["10", "20.json"]


def test_names_stay_in_the_cache_and_apart(pair):
    """R20, R21."""
    heat = Server({"/m": json.dumps({"deployments": [{"name": "../out", "config": {"a": 1}}, {"name": "twice", "config": {"a": 2}}, {"name": "twice", "config": {"a": 3}}, {"name": "none"}]})})
    start = ["--request-metadata-url", heat.url("/m"), "request", "--one-time", *CACHE, "-c"]
    real, ours = pair.run("os-collect-config", *start, "echo $$OS_CONFIG_FILES", env=C)
    assert real[0] == 1 and not (pair.sides[1] / "out.json").exists()
    assert ours[:2] == (0, b"cache/request.json:cache/.._out.json:cache/twice.json:cache/twice.2.json\n")
    _, ours = pair.run("os-collect-config", *start, "echo flaps", env=C)
    assert ours[:2] == (0, b"")


class Server(ThreadingHTTPServer):
    """Answers with what its table has for a path; what it was asked is kept."""

    def __init__(self, answers):
        self.answers, self.asked = answers, []
        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def url(self, path):
        return f"http://127.0.0.1:{self.server_port}{path}"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self):
        server = self.server
        self.rfile.read(int(self.headers.get("content-length", 0)))
        path = self.path.split("?")[0]
        server.asked.append((self.command, self.path, self.headers.get("if-none-match")))
        body = server.answers.get(path)
        body = body(server, self.path) if callable(body) else body
        tag = f'"{hash(body)}"'
        if body is not None and self.headers.get("if-none-match") == tag:
            self.send_response(304)
            self.send_header("content-length", "0")
            self.end_headers()
            return
        data = (body or "").encode()
        self.send_response(404 if body is None else 201 if self.command == "POST" else 200)
        self.send_header("content-length", str(len(data)))
        self.send_header("content-type", "application/json")
        self.send_header("etag", tag)
        self.send_header("x-subject-token", "a-token")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    do_GET = do_HEAD = do_POST = do_DELETE = answer

    def log_message(self, *_):
        pass


def test_request(pair):
    heat = Server({"/m": json.dumps(DOCUMENT), "/list": "[1]", "/text": "no json"})
    assert once(pair, "--request-metadata-url", heat.url("/m?sig=hush"), "request") == 0
    assert once(pair, "--request-metadata-url", heat.url("/m"), "request", "--deployment-key", "else", "--print") == 0
    start = ["request", "--one-time", *CACHE, "-c", SHOW]
    assert once(pair, "--request-metadata-url", heat.url("/m"), *start) == 0
    assert once(pair, "--request-metadata-url", heat.url("/text"), "request") == 0
    assert once(pair, "--request-metadata-url", heat.url("/gone"), "request") == 0
    real, ours = pair.run("os-collect-config", "--request-metadata-url", heat.url("/gone?sig=hush"), "request", env=C)
    assert (real[0], ours[0]) == (0, 0) and b"hush" not in ours[2]
    # R1: the original ends with a traceback.
    real, ours = pair.run("os-collect-config", "--request-metadata-url", heat.url("/list"), "request", env=C)
    assert (real[0], ours[:2]) == (1, (0, b"{}\n"))


def test_a_source_that_fails_keeps_what_it_said(pair):
    """R11: the original forgets it."""
    files(pair)
    heat = Server({"/m": json.dumps(DOCUMENT)})
    start = ["--local-path", "local", "--request-metadata-url", heat.url("/m"), "request", "local", "--one-time", *CACHE, "-c", "echo $$OS_CONFIG_FILES"]
    assert once(pair, *start) == 0
    heat.answers.clear()
    pair.write("local/10", "5")
    real, ours = pair.run("os-collect-config", *start, env=C)
    assert real[:2] == (0, b"cache/10.json:cache/20.json.json\n")
    assert ours[:2] == (0, b"cache/request.json:cache/a.json:cache/c.json:cache/d.json:cache/10.json:cache/20.json.json\n")


def test_zaqar(pair):
    """R17: the newest message is read and stays in the queue; without one, or without Zaqar, what was said last is in force."""
    files(pair)
    zaqar, older, newest = Server({}), {"x": 1}, json.dumps(DOCUMENT)
    catalog = [{"type": "messaging", "name": "zaqar", "id": "x", "endpoints": [{"id": "e", "interface": "public", "region": "One", "region_id": "One", "url": zaqar.url("")}]}]
    token = {"token": {"methods": ["password"], "issued_at": "2026-01-01T00:00:00.000000Z", "expires_at": "2099-01-01T00:00:00.000000Z", "user": {"id": "u", "name": "u", "domain": {"id": "d", "name": "d"}},
                       "project": {"id": "p", "name": "p", "domain": {"id": "d", "name": "d"}}, "roles": [], "catalog": catalog}}
    messages = [{"id": "a", "body": older}, {"id": "b", "body": DOCUMENT}]
    zaqar.answers |= {"/v3/auth/tokens": json.dumps(token), "/v2/queues/q/messages": json.dumps({"messages": messages, "links": []})}
    pair.write("a.conf", f"[zaqar]\nauth_url = {zaqar.url('/v3')}\npassword = p\nproject_id = p\nuser_id = u\nqueue_id = q\n")
    pair.write("cache/zaqar.json", json.dumps({"of": "the original"}))
    start = ["--config-file", "a.conf", "zaqar", "--one-time", "--force", *CACHE, "-c", "echo $$OS_CONFIG_FILES ${HEAT_NODE_AGENT_POLLED:+polled}"]

    def ours():
        status, out, said = pair.run("os-collect-config", *start, env=C)[1]
        return status, out, json.loads((pair.sides[1] / "cache/zaqar.json").read_text()), b"Unavailable" in said

    said = b"cache/zaqar.json:cache/a.json:cache/c.json:cache/d.json"
    assert ours() == (0, said + b" polled\n", json.loads(newest), False)
    # The original takes the oldest one off.
    assert [path.split("?")[1] for method, path, _ in zaqar.asked if method == "DELETE"] in (["pop=1", "ids=a"], ["ids=a"])
    zaqar.answers["/v2/queues/q/messages"] = json.dumps({"messages": [], "links": []})
    assert ours() == (0, said + b"\n", json.loads(newest), True)
    zaqar.answers.clear()
    assert ours() == (0, said + b"\n", json.loads(newest), True)


def test_the_command_hears_when_the_list_of_deployments_was_asked_for(pair):
    """Only by that 55-heat-config knows that Heat waits for a result still that it could not send at once."""
    files(pair)
    heat = Server({"/m": json.dumps(DOCUMENT)})
    start = ["--local-path", "none", "--heat_local-path", "boot.json", "--request-metadata-url", heat.url("/m"), "--one-time", "--force", *CACHE, "-c", "echo ${HEAT_NODE_AGENT_POLLED-unset}"]

    def said(*collectors):
        status, out, _ = pair.run("os-collect-config", *collectors, *start, env={**C, "HEAT_NODE_AGENT_POLLED": "4000000000"})[1]
        assert status == 0
        return out.decode().strip()

    begun = int(time.time())
    assert begun <= int(said("heat_local", "request")) <= time.time()
    assert said("heat_local") == "", "the machine's own copy, of its boot"
    heat.answers.clear()
    assert said("heat_local", "request") == "", "what it said last"
    heat.answers["/m"] = json.dumps({"x": 1})
    assert said("heat_local", "request") == "", "no list: that of the boot would count"


def test_an_answer_that_goes_back_to_a_replaced_deployment_is_none(pair):
    """A replica that lags: the result of the old one would complete the new one (docs/sources.md). The original takes what it is told."""
    def run(second: int, name: str = "r") -> dict:
        inputs = [{"name": "deploy_stack_id", "value": "s/1"}, {"name": "deploy_resource_name", "value": name}]
        return {"id": f"{name}{second}", "name": name, "group": "script", "creation_time": f"2026-03-01T12:00:{second}Z", "inputs": inputs}

    heat = Server({})
    start = ["--request-metadata-url", heat.url("/m"), "request", "--one-time", "--force", *CACHE,
             "-c", "cat cache/request.json | tr -d ' \n' | grep -o '\"id\":\"[^\"]*\"'; echo ${HEAT_NODE_AGENT_POLLED:+polled} $HEAT_NODE_AGENT_REPLACED"]

    def said(*deployments: dict) -> str:
        heat.answers["/m"] = json.dumps({"deployments": deployments})
        status, out, errors = pair.run("os-collect-config", *start, env=C)[1]
        assert status == 0, errors
        return out.decode().replace('"', "").replace("\n", " ").strip()

    assert [said(run(10)), said(run(20)), said(run(10)), said(run(20))] == ["id:r10 polled", "id:r20 polled", "id:r20", "id:r20 polled"]
    assert said(run(10)) == "id:r20"
    known = pair.sides[1] / "cache/cache/order.json"
    order = json.loads(known.read_text())
    order["doubts"] = {resource: doubt | {"counted": 300_000} for resource, doubt in order["doubts"].items()}
    known.write_text(json.dumps(order))
    assert said(run(10)) == "id:r10 polled", "it was listed for five minutes"
    assert "doubts" not in json.loads(known.read_text())
    # Nor is it an answer behind one that lists neither.
    assert [said(run(30)), said(), said(run(10))] == ["id:r30 polled", "polled", ""]
    # Of what it said last, the command hears what an answer that was refused has replaced: 55-heat-config does not begin it.
    assert [said(run(20, "a"), run(31)), said(run(10, "a"), run(40))] == ["id:a20 id:r31 polled", "id:a20 id:r31 r31"]
    # But what is replaced by another one of the same list stays beside it.
    assert said(run(20, "a"), run(41), run(42)) == "id:a20 id:r41 id:r42 polled"
    heat.answers.clear()
    status, out, _ = pair.run("os-collect-config", *start, env=C)[1]
    assert status == 0 and all(f'"id":"{one}"'.encode() in out for one in ("a20", "r41", "r42")) and out.endswith(b"\n\n"), out
    # As where another collector in its place, or another source, has followed since that Heat rolled r42 back.
    order = json.loads(known.read_text())
    newest = max(order["runs"].values(), key=lambda run: run["made"])
    newest |= {"made": newest["made"] - 2000, "rollbacks": 1}
    known.write_text(json.dumps(order))
    status, out, _ = pair.run("os-collect-config", *start, env=C)[1]
    assert status == 0 and out.endswith(b"\nr41 r42\n"), out
    assert said(run(20, "a"), run(40)) == "id:a20 id:r40 polled", "at once"
    # The original, which keeps no such record, was in the place of ours for a while.
    pair.write("cache/request.json", json.dumps({"deployments": [run(20, "a"), run(50)]}))
    assert said(run(20, "a"), run(45)) == "id:a20 id:r50"


def test_ec2(pair):
    tree_of = {"/l/": "ami-id\npublic-keys/\nblock/", "/l/ami-id": "ami-1\n", "/l/public-keys/": "0=mine", "/l/public-keys/0/": "openssh-key", "/l/public-keys/0/openssh-key": "ssh-rsa x",
               "/l/block/": "é", "/l/block/%C3%A9": "ü"}
    service = Server(tree_of)
    start = ["--ec2-metadata-url", service.url("/l"), "ec2", *CACHE]
    assert once(pair, *start) == 0
    assert once(pair, *start, "-c", SHOW, "--one-time") == 0
    service.answers["/l/ami-id"] = "ami-2"
    assert once(pair, *start) == 0
    pair.write("cache/ec2.json", "{}")
    del service.answers["/l/ami-id"]
    assert once(pair, *start) == 0


def cfn(server, path):
    inner = json.dumps(server.document).replace("&", "&amp;").replace("<", "&lt;")
    if "ContentType=JSON" in path:
        return json.dumps({"DescribeStackResourceResponse": {"DescribeStackResourceResult": {"StackResourceDetail": {"Metadata": server.document}}}})
    return f"<DescribeStackResourceResponse><DescribeStackResourceResult><StackResourceDetail><Metadata>{inner}</Metadata></StackResourceDetail></DescribeStackResourceResult></DescribeStackResourceResponse>"


def test_cfn(pair):
    heat = Server({"/v1/": cfn})
    heat.document = DOCUMENT
    pair.write("hint", heat.url("") + "\n")
    pair.write("a.conf", f"[cfn]\nmetadata_url = {heat.url('/v1/')}\nstack_name = s\naccess_key_id = a\nsecret_access_key = s\npath = server.Metadata\n")
    pair.write("hinted.conf", "[cfn]\nheat_metadata_hint = hint\nstack_name = s\naccess_key_id = a\nsecret_access_key = s\npath = server.Metadata\n")
    for conf in ("a.conf", "hinted.conf"):
        assert once(pair, "--config-file", conf, "cfn") == 0
        assert len(heat.asked) == 2 and all("LogicalResourceId=server" in path for _, path, _ in heat.asked)
        heat.asked.clear()
    assert once(pair, "--config-file", "a.conf", "--cfn-path", "server.Metadata.os-collect-config", "cfn") == 0
    assert once(pair, "--config-file", "a.conf", "--cfn-deployment-key", "else", "cfn", "--one-time", *CACHE, "-c", SHOW) == 0


def test_heat(pair):
    keystone = Server({"/v1/p/stacks/s/u/resources/r/metadata": json.dumps({"metadata": DOCUMENT})})
    versions = {"versions": {"values": [{"id": "v3.14", "status": "stable", "links": [{"rel": "self", "href": keystone.url("/v3/")}], "media-types": []}]}}
    catalog = [{"type": "orchestration", "name": "heat", "id": "x", "endpoints": [{"id": "e", "interface": "public", "region": "One", "region_id": "One", "url": keystone.url("/v1/p")}]}]
    token = {"token": {"methods": ["password"], "issued_at": "2026-01-01T00:00:00.000000Z", "expires_at": "2099-01-01T00:00:00.000000Z", "user": {"id": "u", "name": "u", "domain": {"id": "d", "name": "d"}},
                       "project": {"id": "p", "name": "p", "domain": {"id": "d", "name": "d"}}, "roles": [], "catalog": catalog}}
    keystone.answers |= {"/v3/auth/tokens": json.dumps(token), "/v3": json.dumps({"version": versions["versions"]["values"][0]}), "/v3/": json.dumps({"version": versions["versions"]["values"][0]}), "/": json.dumps(versions)}
    pair.write("a.conf", f"[heat]\nauth_url = {keystone.url('/v3')}\nuser_id = u\npassword = a#b\nproject_id = p\nstack_id = s/u\nresource_name = r\nregion_name =\n")
    assert once(pair, "--config-file", "a.conf", "heat") == 0
    assert b"os-collect-config" in pair.run("os-collect-config", "--config-file", "a.conf", "heat", env=C)[1][1]
    assert once(pair, "--config-file", "a.conf", "heat", "--one-time", *CACHE, "-c", SHOW) == 0
    assert once(pair, "--config-file", "a.conf", "--heat-region-name", "Two", "heat") == 0


@pytest.fixture
def started(pair):
    """Runs both until they are ended."""
    begun = []

    def start(*arguments):
        pair.run("os-collect-config", "--version", env=C)
        for side, bins in zip(pair.sides, pair.bins):
            # The original begins itself anew by the path that it was called by.
            begun.append(subprocess.Popen([bins / "os-collect-config", *arguments], cwd=side, env={"PATH": f"{bins}:/usr/bin:/bin", **C}, stderr=subprocess.DEVNULL))
        return begun
    yield start
    for process in begun:
        process.kill()
        process.wait()


def until(what, seconds=300):
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end
        time.sleep(0.1)


def test_it_goes_on_until_it_is_ended(pair, started):
    files(pair)
    pair.write("a.conf", "[DEFAULT]\ncommand = cat local/10 >> ran\ncollectors = local\nmin_polling_interval = 0.2\npolling_interval = 0.4\ncachedir = cache\nbackup_cachedir = backup\n[local]\npath = local\n")
    processes = started("--config-file", "a.conf")
    ran = lambda text: all((side / "ran").exists() and (side / "ran").read_text() == text for side in pair.sides)
    until(lambda: ran("3"))
    time.sleep(1)
    pair.write("local/10", "4")
    until(lambda: ran("34"))
    # The command has written, and may not have ended: behind its end the settings are read.
    time.sleep(1)
    # What fails is tried again, until it succeeds.
    pair.write("local/10", "5")
    pair.write("a.conf", (pair.sides[0] / "a.conf").read_text().replace("cat local/10", "test -e allowed && cat local/10"))
    # R6: the original looks at its settings only where the command ran.
    until(lambda: ran("345"))
    processes[1].send_signal(signal.SIGHUP)
    time.sleep(0.5)
    pair.write("local/10", "6")
    time.sleep(2)
    assert ran("345")
    pair.write("allowed", "")
    until(lambda: ran("3456"))
    assert [process.poll() for process in processes] == [None, None]
    processes[1].terminate()
    assert processes[1].wait(300) == -signal.SIGTERM


def test_settings_are_read_behind_a_command_that_fails(pair, started):
    """What mends the command may be in them. An empty file leaves what there was, and prints nothing."""
    files(pair)
    conf = "[DEFAULT]\ncommand = echo tried >> tries; test -e allowed && echo done >> ran\ncollectors = local\nmin_polling_interval = 0.2\npolling_interval = 0.4\ncachedir = cache\nbackup_cachedir = backup\n[local]\npath = local\n"
    pair.write("a.conf", conf)
    processes = started("--config-file", "a.conf")
    until(lambda: all((side / "tries").exists() for side in pair.sides))
    ours = pair.sides[1]
    (ours / "a.conf").write_text("")
    time.sleep(1.5)
    assert [process.poll() for process in processes] == [None, None]
    (ours / "a.conf").write_text(conf.replace("test -e allowed && ", ""))
    until(lambda: (ours / "ran").exists())


def test_what_a_local_source_said_before_it_failed_counts_no_more(pair, started):
    """Of what was to replace it nothing is known."""
    heat = Server({"/m": '{"x": 1}'})
    pair.write("local/10", '{"y": 1}')
    started("--request-metadata-url", heat.url("/m"), "--local-path", "local", "request", "local", *CACHE, "--min-polling-interval", "0.2", "--polling-interval", "0.4",
            "-c", "echo $$OS_CONFIG_FILES > names.new; mv names.new names")
    named = lambda *names: all((side / "names").exists() and (side / "names").read_text().strip().split(":") == [f"cache/{name}.json" for name in names] for side in pair.sides)
    until(lambda: named("request", "10"))
    pair.each(lambda side: (side / "local/10").chmod(0o646))
    # The command is run where something changed.
    heat.answers["/m"] = '{"x": 2}'
    until(lambda: named("request"))


def test_an_object_that_did_not_change_is_not_sent_again(pair, started):
    """R14: the original sends HEAD and GET each time."""
    heat = Server({"/m": json.dumps(DOCUMENT)})
    started("--request-metadata-url", heat.url("/m"), "--min-polling-interval", "0.3", "--polling-interval", "0.3", "request", *CACHE, "-c", "true")
    until(lambda: sum(1 for _, _, tag in heat.asked if tag) >= 3)


def test_from_boot_to_a_rendered_file(pair):
    """All tools by link, the way they follow each other on a server."""
    templates = "var/templates"
    pair.write(f"{templates}/heat-config", "{{deployments}}")
    pair.write("boot.json", json.dumps({**DOCUMENT, "deployments": [{"id": "1", "name": "x", "group": "script", "config": "#!/bin/sh\necho ran\n", "inputs": [], "outputs": []}]}))
    pair.write("base/configure.d/20-os-apply-config", "#!/bin/sh\nexec os-apply-config --os-config-files cache/os_config_files.json -t $PWD/var/templates -o $PWD/out --fallback-metadata none\n", 0o755)
    for tool in ("os-refresh-config", "os-apply-config", "dib-run-parts", "heat-config-notify"):
        pair.run(tool, "--help")
    pair.each(lambda side: (side / "base/lock").write_text(""))
    once(pair, "--heat_local-path", "boot.json", "heat_local", "--one-time", *CACHE, "-c", "os-refresh-config --lockfile base/lock", env={"OS_REFRESH_CONFIG_BASE_DIR": "base"})
    assert json.loads((pair.sides[1] / "out/heat-config").read_text())[0]["id"] == "1"


def server_of(name, url):
    """What Heat gives a server: whom to ask, as whom."""
    return {"os-collect-config": {"collectors": ["ec2", "request", "local"], "request": {"metadata_url": f"{url}?{name}"}}, "deployments": []}


def test_a_copied_disk_does_not_follow_the_server_before(pair):
    """R16: the original believes ec2.json for ever, and the settings that the other server left."""
    heat = Server({"/m": json.dumps({"x": 1, "deployments": []}), "/l/": "instance-id", "/l/instance-id": "i-1"})
    render = "cp $$(echo $$OS_CONFIG_FILES | cut -d: -f1) rendered; echo $$OS_CONFIG_FILES"
    conf = f"[DEFAULT]\ncollectors = {{}}\n[request]\nmetadata_url = {heat.url('/m')}?{{}}\n[heat_local]\npath = boot.json\n[ec2]\nmetadata_url = {heat.url('/l')}\n"
    start = ["--config-file", "a.conf", "--one-time", *CACHE, "-c"]

    def ours(command, *arguments):
        status, out, err = pair.run("os-collect-config", *start, command, *arguments, env=C)[1]
        return status, out.decode().strip(), err.decode()

    pair.write("boot.json", json.dumps(server_of("old", heat.url("/m"))))
    pair.write("a.conf", conf.format('["heat_local"]', ""))
    assert ours(render)[:2] == (0, "cache/heat_local.json")
    pair.write("a.conf", conf.format('["ec2", "request"]', "old"))
    assert ours(render)[:2] == (0, "cache/ec2.json:cache/request.json")

    # The copy: cloud-init has written this server's boot copy, and the settings are those of the other one still. Its stack may be there, or gone.
    pair.write("boot.json", json.dumps(server_of("new", heat.url("/m"))))
    heat.answers["/l/instance-id"] = "i-2"
    heat.asked.clear()
    _, printed, _ = ours("true", "--print")
    assert "i-2" in printed and json.loads(printed)["heat_local"] == server_of("new", heat.url("/m")) and "request" not in json.loads(printed)
    for times, status in enumerate((3, 0)):
        code, out, err = ours(f"{render}; exit {status}")
        assert (code, out) == (status, "cache/heat_local.json:cache/ec2.json"), err
        assert err.count("another server") == 1 - times, err
    assert not [path for _, path, _ in heat.asked if "old" in path]
    assert json.loads((pair.sides[1] / "cache/ec2.json").read_text()) == {"instance-id": "i-2"}

    # What its boot copy says is followed; what it says is kept, as ever.
    pair.write("a.conf", conf.format('["ec2", "request"]', "new"))
    assert ours(render)[:2] == (0, "cache/ec2.json:cache/request.json")
    heat.answers.clear()
    status, out, err = ours(render, "--force")
    assert (status, out) == (0, "cache/ec2.json:cache/request.json") and "another server" not in err


def test_what_another_server_kept_is_gone_where_heat_does_not_answer(pair):
    """R16: what stands in for an answer (R11) is this server's own."""
    heat = Server({"/m": json.dumps({"x": 1})})
    start = ["--heat_local-path", "boot.json", "heat_local", "request", "--one-time", *CACHE, "-c", "echo $$OS_CONFIG_FILES", "--request-metadata-url"]
    for name, files in (("old", "cache/heat_local.json:cache/request.json\n"), ("new", "cache/heat_local.json\n")):
        pair.write("boot.json", json.dumps(server_of(name, heat.url("/m"))))
        assert pair.run("os-collect-config", *start, heat.url(f"/m?{name}"), env=C)[1][:2] == (0, files.encode())
        heat.answers.clear()
