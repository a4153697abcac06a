"""Every kind of wait condition takes the signals of three nodes from us."""
import json
import re

from lib.common import wait_for

DATA = {"n": 1, "text": "wörld"}


def test_three_nodes_complete_a_wait_condition_of_every_kind(heat, agents, stack_name):
    heat.create(stack_name, "wait")
    out = heat.handles(stack_name)
    # Each as a template hands it on: the attribute, the curl line, or both parts of it.
    handles = {
        "token": [json.dumps({"endpoint": out["endpoint"], "token": out["token"]}), out["curl_cli"], out["curl_cli"]],
        "cfn": [out["cfn_signal"]] * 3,
        "heat": [out["heat_signal"]] * 3,
        "temp": [out["temp_signal"]] * 3,
        "aws": [out["aws_url"]] * 3,
        "swift": [out["swift_url"]] * 2 + [out["swift_curl"]],
    }
    agent = agents("node", {})
    secrets = [out["token"], json.loads(out["heat_signal"])["password"], "Signature=", "temp_url_sig="]

    def signal(handle: str, id: str):
        mark = heat.mark()
        said = agent.command("signal", "SUCCESS", "--id", id, "--data", json.dumps(DATA), "--reason", "r", "--url", "-", input=handle)
        assert re.match(r"SUCCESS accepted by http://10\.77\.0\.1:\d+/", said.stdout), said.stdout
        assert not [s for s in secrets if s in said.stdout + said.stderr]
        if handle == out["temp_signal"]:
            heat.consumed(json.loads(handle)["alarm_url"], mark)
    for kind, given in handles.items():
        for n, handle in enumerate(given):
            signal(handle, f"node-{n}")
            if n == 1:
                signal(handle, "node-1")  # once more: the same id counts once
                assert heat.resource_status(stack_name, f"{kind}_wait") == "CREATE_IN_PROGRESS"
    # There is nothing to send: Heat counts by itself.
    said = agent.command("signal", "SUCCESS", "--url", "-", input=out["no_signal"], check=False)
    assert said.returncode == 1 and "accepts no signal" in said.stderr, said

    heat.wait(stack_name)
    done = heat.outputs(stack_name)
    for kind in handles:
        data = done[f"{kind}_data"]
        assert (json.loads(data) if isinstance(data, str) else data) == {f"node-{n}": DATA for n in range(3)}, kind


def test_one_node_that_fails_fails_the_wait_condition(heat, agents, stack_name):
    heat.create(stack_name, "wait")
    out = heat.handles(stack_name)
    agent = agents("node", {})
    for handle in (out["heat_signal"], out["temp_signal"], out["aws_url"]):
        agent.command("signal", "FAILURE", "--id", "node-1", "--reason", "etcd läuft nicht", "--url", "-", input=handle)

    def failed(kind: str) -> bool:
        found = heat.resources(stack_name)[f"{kind}_wait"]
        return found["resource_status"] == "CREATE_FAILED" and "etcd läuft nicht" in found["resource_status_reason"]
    wait_for(lambda: failed("heat") or failed("temp") or failed("aws"), 300)
