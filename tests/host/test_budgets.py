"""The agent's memory on documents and states that were made to be large, as a plain process: 64 MiB is the most that it takes
(agent/budgets/mod.rs), whatever it is given."""
import hashlib
import http.server
import json
import threading
import time

import pytest
from lib.common import wait_for
from lib.plain import Plain, deployments, peak_kib

LIMIT = 64 * 1024
GOOD = {"deployments": [], "greeting": "good"}


class Server:
    """One document, on the loopback."""

    def __init__(self):
        self.document, self.asked, outer = json.dumps(GOOD), 0, self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                outer.asked += 1
                body = outer.document.encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                try:
                    self.wfile.write(body)
                except OSError:
                    pass  # the agent had enough

            def log_message(self, *_):
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def deliver(self, document: str):
        """Until the agent asked for it and once more."""
        self.document, before = document, self.asked
        wait_for(lambda: self.asked >= before + 2, 60, "two polls")


@pytest.fixture
def server():
    server = Server()
    yield server
    server.http.shutdown()
    server.http.server_close()


@pytest.fixture
def agent(tmp_path, server):
    agent = Plain(tmp_path / "agent")
    agent.conf.write_text(f"[request]\nmetadata_url = http://127.0.0.1:{server.http.server_port}/object\n")
    agent.conf.chmod(0o600)
    yield agent


def fits(agent, process) -> bool:
    """A debug build is larger at rest by its own file; what it takes beside that is the same."""
    at_rest = max(0, agent.binary.stat().st_size // 1024 - 10 * 1024) // 4
    return peak_kib(process.pid) <= LIMIT + at_rest


def stop(process):
    process.terminate()
    assert process.wait(30) == 0


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
        wait_for(lambda: "HNA-0204" in agent.said(), 60, "the first document")
        server.deliver(document)
        wait_for(lambda: source(agent)["failures"] > 0, 30, "the failure")
        said = [line for line in agent.said().splitlines() if "HNA-0202" in line]
        assert cause in said[0], said
        assert agent.said().count("HNA-0204") == 1, "the last good document stays"
        assert '"greeting":"good"' in (agent.state / "cache/request.json").read_text()
        budgets = {budget["name"]: budget for budget in agent.status()["budgets"]}
        assert budgets["memory"]["limit"] == LIMIT * 1024 and budgets["metadata in memory"]["used"] < 4096
        assert fits(agent, process), f"{name}: {peak_kib(process.pid)} KiB"
        # It recovers by itself.
        server.deliver(json.dumps(GOOD))
        wait_for(lambda: source(agent)["failures"] == 0, 60, "recovery")
    finally:
        stop(process)


@pytest.mark.parametrize("name", TAKEN)
def test_the_largest_documents_that_are_taken_fit(agent, server, name):
    document = TAKEN[name]
    process = agent.start()
    try:
        wait_for(lambda: "HNA-0204" in agent.said(), 60, "the first document")
        server.deliver(document)
        wait_for(lambda: agent.said().count("HNA-0204") == 2, 60, "the second document")
        wait_for(lambda: len(list((agent.state / "deployments").iterdir())) == 2_400, 120, "the records")
        # Another one of the same size while this one is held.
        server.deliver(document.replace("m1", "n1").replace("d1", "e1"))
        time.sleep(1)
        assert fits(agent, process), f"{peak_kib(process.pid)} KiB"
    finally:
        stop(process)


def test_a_state_with_large_results_fits(agent, server):
    """As an earlier version left it: 200 results of 500 KB in the records, 50 signals of 900 KB."""
    text = "x" * 500_000
    for folder, count in (("deployments", 200), ("outbox", 50)):
        (agent.state / folder).mkdir(parents=True)
        for n in range(count):
            entry_id = f"old-{n}"
            record = {"schema": 1, "id": entry_id, "name": "old", "group": "script", "action": "CREATE", "state": "signalled", "resource": None,
                      "target": {"transport": "none"}, "outputs": [["o", False]], "seen": 1000 + n,
                      "outcome": {"status": 0, "stdout": "", "stderr": "", "outputs": {"o": text}}}
            signal = {"schema": 1, "key": f"result {entry_id}", "about": None, "created": 1000 + n, "body": {"deploy_stdout": "y" * 900_000},
                      "destination": {"kind": "url", "url": "http://127.0.0.1:9/v1/signal/x", "verb": "POST"}}
            stored = record if folder == "deployments" else signal
            name = hashlib.sha256(stored.get("key", entry_id).encode()).hexdigest()[:32]
            (agent.state / folder / f"{name}.json").write_text(json.dumps(stored))
    process = agent.start()
    try:
        wait_for(lambda: "HNA-0204" in agent.said(), 60, "the first document")
        wait_for(lambda: "HNA-0803" in agent.said(), 60, "a try to send")
        assert "HNA-0107" not in agent.said() and "HNA-0807" not in agent.said(), agent.said()[:2000]
        used = {budget["name"]: budget["used"] for budget in agent.status()["budgets"]}
        assert used["records in memory"] < 1 << 20 and used["signals on disk"] > 40 << 20
        assert fits(agent, process), f"{peak_kib(process.pid)} KiB"
    finally:
        stop(process)
