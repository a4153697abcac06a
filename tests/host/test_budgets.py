"""The agent's memory on documents and states that were made to be large, as a plain process: 64 MiB is the most that it takes
(agent/budgets/mod.rs), whatever it is given."""
import contextlib
import hashlib
import http.server
import json
import threading
import time
from pathlib import Path

import pytest
from lib.common import wait_for
from lib.plain import Plain, deployments, peak_kib

LIMIT = 64 * 1024
GOOD = {"deployments": [], "greeting": "good"}


class Server:
    """Documents by the name of the source that asks for them, on the loopback; what is signalled is refused."""

    def __init__(self):
        self.documents, self.asked, outer = dict.fromkeys(("request", "cfn", "heat"), json.dumps(GOOD)), 0, self

        class Handler(http.server.BaseHTTPRequestHandler):
            def answer(self, status: int, body: str, **headers: str):
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(body.encode()))}.items():
                    self.send_header(name.replace("_", "-"), value)
                self.end_headers()
                try:
                    self.wfile.write(body.encode())
                except OSError:
                    pass  # the agent had enough

            def do_GET(self):
                if "DescribeStackResource" in self.path:
                    detail = f'{{"StackResourceDetail": {{"Metadata": {outer.documents["cfn"]}}}}}'
                    self.answer(200, f'{{"DescribeStackResourceResponse": {{"DescribeStackResourceResult": {detail}}}}}')
                elif self.path.endswith("/metadata"):
                    self.answer(200, f'{{"metadata": {outer.documents["heat"]}}}')
                else:
                    outer.asked += 1
                    self.answer(200, outer.documents["request"])

            def do_POST(self):
                self.rfile.read(int(self.headers["Content-Length"]))
                if self.path.endswith("/auth/tokens"):
                    endpoint = {"interface": "public", "url": outer.base, "region": "r", "region_id": "r", "id": "e"}
                    token = {"catalog": [{"type": "orchestration", "name": "heat", "endpoints": [endpoint]}], "expires_at": "2099-01-01T00:00:00Z"}
                    self.answer(201, json.dumps({"token": token}), X_Subject_Token="t")
                else:
                    self.answer(503, "busy " * 200_000)

            def log_message(self, *_):
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.base = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def deliver(self, document: str):
        """Until the agent asked for it and once more."""
        self.documents["request"], before = document, self.asked
        wait_for(lambda: self.asked >= before + 2, 300, "two polls")


@pytest.fixture
def server():
    server = Server()
    yield server
    server.http.shutdown()
    server.http.server_close()


@pytest.fixture
def agent(tmp_path, server):
    agent = Plain(tmp_path / "agent")
    agent.conf.write_text(f"[request]\nmetadata_url = {server.base}/object\n")
    agent.conf.chmod(0o600)
    yield agent


def fits(agent, process) -> bool:
    """A debug build is larger at rest by its own file; what it takes beside that is the same."""
    at_rest = max(0, agent.binary.stat().st_size // 1024 - 10 * 1024) // 4
    return peak_kib(process.pid) <= LIMIT + at_rest


def stop(process):
    process.terminate()
    assert process.wait(300) == 0


def source(agent) -> dict:
    return next(one for one in agent.status()["sources"] if one["name"] == "request")


def zeros(size: int) -> str:
    return '{"deployments":[' + "0," * (size // 2) + "0]}"


WIDE = "{" + ",".join(f'"k{n}":{n}' for n in range(120_000)) + "}"
DEEP = '{"a":[' + ",".join('{"a":' * 90 + "0" + "}" * 90 for _ in range(4_000)) + "]}"
MALFORMED = json.dumps({"deployments": [{"id": f"m{n}", "inputs": [0] * 40} for n in range(2_400)]})


TOO_LARGE = {
    "1 MiB of zeros": (zeros(1 << 20), "memory"),
    "16 MiB of zeros": (zeros(16 << 20), "larger than 3145728 bytes"),
    "a wide object": (WIDE, "memory"),
    "a deep one": (DEEP, "memory"),
    "one that is too deep": ('{"a":' * 97 + "0" + "}" * 97, "nested more than 96 levels deep"),
    "many deployments": (json.dumps({"deployments": deployments(2_501)}), "at most 2500"),
}
TAKEN = {"malformed": MALFORMED, "without a hook": json.dumps({"deployments": [{**one, "group": "none"} for one in deployments(2_400)]})}


@pytest.mark.parametrize("name", TOO_LARGE)
def test_a_document_that_is_too_large_is_one_clear_cause_and_the_last_good_one_stays(agent, server, name):
    document, cause = TOO_LARGE[name]
    process = agent.start()
    try:
        wait_for(lambda: "HNA-0204" in agent.said(), 300, "the first document")
        server.deliver(document)
        wait_for(lambda: source(agent)["failures"] > 0, 300, "the failure")
        said = [line for line in agent.said().splitlines() if "HNA-0202" in line]
        assert cause in said[0], said
        assert agent.said().count("HNA-0204") == 1, "the last good document stays"
        assert '"greeting":"good"' in (agent.state / "cache/request.json").read_text()
        budgets = {budget["name"]: budget for budget in agent.status()["budgets"]}
        assert budgets["memory"]["limit"] == LIMIT * 1024 and budgets["metadata in memory"]["used"] < 4096
        assert fits(agent, process), f"{name}: {peak_kib(process.pid)} KiB"
        # It recovers by itself.
        server.deliver(json.dumps(GOOD))
        wait_for(lambda: source(agent)["failures"] == 0, 300, "recovery")
    finally:
        stop(process)


@pytest.mark.parametrize("name", TAKEN)
def test_the_largest_documents_that_are_taken_fit(agent, server, name):
    document = TAKEN[name]
    process = agent.start()
    try:
        wait_for(lambda: "HNA-0204" in agent.said(), 300, "the first document")
        server.deliver(document)
        wait_for(lambda: agent.said().count("HNA-0204") == 2, 300, "the second document")
        wait_for(lambda: len(list((agent.state / "deployments").iterdir())) == 2_400, 300, "the records")
        # Another one of the same size while this one is held.
        server.deliver(document.replace("m1", "n1").replace("d1", "e1"))
        time.sleep(1)
        assert fits(agent, process), f"{peak_kib(process.pid)} KiB"
    finally:
        stop(process)


def put_state(state: Path):
    """As an earlier version left it: 200 results of 500 KB in the records, 50 signals of 900 KB, which leaves room for two more."""
    text = "x" * 500_000
    for folder, count in (("deployments", 200), ("outbox", 50)):
        (state / folder).mkdir(parents=True)
        for n in range(count):
            entry_id = f"old-{n}"
            record = {"schema": 1, "id": entry_id, "name": "old", "group": "script", "action": "CREATE", "state": "signalled", "resource": None,
                      "target": {"transport": "none"}, "outputs": [["o", False]], "seen": 1000 + n,
                      "outcome": {"status": 0, "stdout": "", "stderr": "", "outputs": {"o": text}}}
            signal = {"schema": 1, "key": f"result {entry_id}", "about": None, "created": 1000 + n, "body": {"deploy_stdout": "y" * 900_000},
                      "destination": {"kind": "url", "url": "http://127.0.0.1:9/v1/signal/x", "verb": "POST"}}
            stored = record if folder == "deployments" else signal
            name = hashlib.sha256(stored.get("key", entry_id).encode()).hexdigest()[:32]
            (state / folder / f"{name}.json").write_text(json.dumps(stored))


def test_a_state_with_large_results_fits(agent, server):
    put_state(agent.state)
    process = agent.start()
    try:
        wait_for(lambda: "HNA-0204" in agent.said(), 300, "the first document")
        wait_for(lambda: "HNA-0803" in agent.said(), 300, "a try to send")
        assert "HNA-0107" not in agent.said() and "HNA-0807" not in agent.said(), agent.said()[:2000]
        used = {budget["name"]: budget["used"] for budget in agent.status()["budgets"]}
        assert used["records in memory"] < 1 << 20 and used["signals on disk"] > 40 << 20
        assert fits(agent, process), f"{peak_kib(process.pid)} KiB"
    finally:
        stop(process)


def bytes_below(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # the agent goes on
            total += path.lstat().st_blocks * 512
    return total


def test_the_worst_of_everything_at_once_fits(agent, server):
    """Three sources with the largest documents that are taken, which change at each poll; scripts that print and leave more than is kept;
    a state full of results; a queue of signals that is full and refused with long answers."""
    put_state(agent.state)
    agent.conf.write_text(agent.conf.read_text() + f"""
[cfn]
metadata_url = {server.base}/v1/
access_key_id = {"0" * 32}
secret_access_key = {"1" * 32}
stack_name = s
path = server.Metadata
[heat]
auth_url = {server.base}/v3
user_id = u
password = {"2" * 32}
project_id = p
stack_id = s/1
resource_name = server
""")
    script = "#!/bin/sh\nhead -c 6000000 /dev/zero | tr '\\0' '\\1'\nfor o in a b c; do head -c 4000000 /dev/zero | tr '\\0' '\\1' >$heat_outputs_path.$o; done\n"
    outputs = [{"name": name, "type": "String", "error_output": False} for name in "abc"]
    url = f"{server.base}/v1/signal/x?SignatureMethod=HmacSHA256&Signature=0"

    def listed(source: str, turn: int) -> str:
        few = [{**one, "id": f"{source}-{turn}-{one['name']}", "config": script, "outputs": outputs} for one in deployments(3)]
        for one in few:
            one["inputs"] = [{**i, "value": {"deploy_signal_transport": "CFN_SIGNAL"}.get(i["name"], i["value"])} for i in one["inputs"]]
            one["inputs"] += [{"name": n, "type": "String", "description": "", "value": v} for n, v in (("deploy_signal_id", url), ("deploy_signal_verb", "POST"))]
        many = [{**one, "id": f"{source}-{turn % 2}-{one['id']}", "group": "none"} for one in deployments(1_500)]
        return json.dumps({"deployments": few + many, "more": [turn] * 8_000})

    process = agent.start()
    try:
        for turn in range(5):
            for name in ("cfn", "heat"):
                server.documents[name] = listed(name, turn)
            server.deliver(listed("request", turn))
            time.sleep(2)
        wait_for(lambda: agent.said().count("HNA-0403") >= 3 and "HNA-0811" in agent.said(), 300, "scripts that ran, and one without room for its result")

        def is_full() -> bool:
            """The page is written once in a while; whenever that is, nothing is above its limit."""
            status = agent.status()
            assert {one["name"]: one["failures"] for one in status["sources"] if one["name"] in server.documents} == dict.fromkeys(server.documents, 0), status["sources"]
            above.extend(one for one in status["budgets"] if one["used"] > one["limit"])
            used = {one["name"]: one["used"] for one in status["budgets"]}
            assert used["metadata in memory"] > 6 << 20 and used["signals on disk"] > 40 << 20 and used["output of deployments on disk"] > 40 << 20, used
            return True
        above: list[dict] = []
        wait_for(is_full, 300, "full budgets on the page")
        assert not above, above
        # Jobs, signals, the sources' last documents, and records.
        assert bytes_below(agent.state) < (128 + 48 + 3 * 3 + 40) << 20
        assert fits(agent, process), f"{peak_kib(process.pid)} KiB"
    finally:
        stop(process)
