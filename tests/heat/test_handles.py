"""Every kind of wait condition takes the signals of three nodes from us."""
import json
import re

from lib.common import wait_for
from lib.heat import NET

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
        "zaqar": [out["zaqar_signal"]] * 3,
        "aws": [out["aws_url"]] * 3,
        "swift": [out["swift_url"]] * 2 + [out["swift_curl"]],
    }
    agent = agents("node", {})
    secrets = [out["token"], *(json.loads(out[key])["password"] for key in ("heat_signal", "zaqar_signal")), "Signature=", "temp_url_sig="]

    def signal(handle: str, id: str, data: str = json.dumps(DATA)):
        mark = heat.mark()
        said = agent.command("signal", "SUCCESS", "--id", id, "--data", data, "--reason", "r", "--url", "-", input=handle)
        assert re.match(r"SUCCESS accepted by (Zaqar through )?http://10\.77\.0\.1:\d+/", said.stdout), said.stdout
        assert not [s for s in secrets if s in said.stdout + said.stderr]
        if handle == out["temp_signal"]:
            heat.consumed(json.loads(handle)["alarm_url"], mark)
    # Of what is longer than Zaqar takes, six bytes a character, both ends arrive; the same id overwrites it below.
    signal(out["zaqar_signal"], "node-0", "BEGIN" + "\x01" * 100_000 + "END")
    kept = wait_for(lambda: heat.meta(stack_name, "zaqar_handle").get("node-0"), 300, "what Heat has of the queue")["data"]
    assert kept.startswith("BEGIN\x01") and kept.endswith("\x01END") and "cut by heat-node-agent" in kept, len(kept)
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
    for handle in (out["heat_signal"], out["temp_signal"], out["zaqar_signal"], out["aws_url"]):
        agent.command("signal", "FAILURE", "--id", "node-1", "--reason", "etcd läuft nicht", "--url", "-", input=handle)

    def failed(kind: str) -> bool:
        found = heat.resources(stack_name)[f"{kind}_wait"]
        return found["resource_status"] == "CREATE_FAILED" and "etcd läuft nicht" in found["resource_status_reason"]
    wait_for(lambda: any(map(failed, ("heat", "temp", "zaqar", "aws"))), 300)


class Nodes:
    """Two nodes of templates/repaired.yaml, whose signals are sent by hand."""

    def __init__(self, heat, agent, stack: str):
        self.heat, self.agent, self.stack = heat, agent, stack

    def tell(self, **nodes: str):
        """Each node's SUCCESS or FAILURE to the handle."""
        handle = wait_for(lambda: self.heat.output(self.stack, "handle"), NET)
        for node, status in nodes.items():
            self.agent.command("signal", status, "--id", node, "--reason", f"{node} says {status}", "--url", "-", input=handle)

    def say(self, **nodes: str):
        """The same, and then for its deployment, once Heat waits for that."""
        self.tell(**nodes)
        for node, status in nodes.items():
            # In progress before it is there, a deployment loses what is sent to it.
            wait_for(lambda: self.heat.resource_status(self.stack, node).endswith("IN_PROGRESS") and self.heat.resources(self.stack)[node]["physical_resource_id"],
                     NET, f"deployment {node}", every=0.3)
            self.heat._client("signal", self.stack, node, json.dumps({"deploy_status_code": 0 if status == "SUCCESS" else 1}))

    def speak_for(self, node: str):
        """As the stack's owner: `openstack stack resource signal`."""
        self.heat._client("signal", self.stack, "handle", json.dumps({"id": node, "status": "SUCCESS", "reason": "removed"}))

    def update(self, status: str, said: dict[str, str] | None = None, **parameters) -> str:
        self.heat.update(self.stack, "repaired", **parameters)
        self.say(**said or {})
        self.heat.wait(self.stack, status, seconds=NET)
        [found] = [r for r in self.heat.resources(self.stack).values() if r["resource_type"] == "OS::Heat::WaitCondition"]
        return f"{found['resource_status']} {found['resource_status_reason']}"


def test_what_a_node_said_stays_in_the_handle(heat, agents, stack_name):
    """Heat's own ways that the wait condition of examples/heat has to live with."""
    nodes = Nodes(heat, agents("node", {}), stack_name)
    before = {"waits_before": True, "count": 2}
    heat.create(stack_name, "repaired", **before)
    nodes.tell(second="FAILURE", first="SUCCESS")
    heat.wait(stack_name, "CREATE_FAILED", NET)
    # A condition that does not wait for the nodes fails again, by what was said before, and before the nodes can say anything else.
    assert "CREATE_FAILED" in (said := nodes.update("UPDATE_FAILED", text="two", **before)) and "second says FAILURE" in said
    # So it does if the node is no longer there, until somebody speaks in its place.
    assert "second says FAILURE" in nodes.update("UPDATE_FAILED", text="two", has_second=False, **before | {"count": 1})


def test_a_wait_condition_behind_the_nodes_lets_a_stack_be_repaired(heat, agents, stack_name):
    nodes = Nodes(heat, agents("node", {}), stack_name)
    heat.create(stack_name, "repaired")
    nodes.say(second="FAILURE", first="SUCCESS")
    heat.wait(stack_name, "CREATE_FAILED", NET)
    # The node is corrected, and says so.
    assert nodes.update("UPDATE_COMPLETE", {"first": "SUCCESS", "second": "SUCCESS"}, text="two").startswith("CREATE_COMPLETE")
    # An update fails by a node, which is then taken away: the condition has not changed, and nobody looks at the handle.
    nodes.update("UPDATE_FAILED", {"first": "SUCCESS", "second": "FAILURE"}, text="three")
    assert nodes.update("UPDATE_COMPLETE", text="three", has_second=False).startswith("CREATE_COMPLETE")
    assert set(json.loads(heat.output(stack_name, "data"))) == {"first", "second"}
    # One whose timeout changes is made anew, and looks.
    assert "second says FAILURE" in nodes.update("UPDATE_FAILED", text="three", has_second=False, timeout=601)


def test_who_takes_a_failed_node_away_speaks_for_it(heat, agents, stack_name):
    nodes = Nodes(heat, agents("node", {}), stack_name)
    heat.create(stack_name, "repaired")
    nodes.say(second="FAILURE", first="SUCCESS")
    heat.wait(stack_name, "CREATE_FAILED", NET)
    assert "second says FAILURE" in nodes.update("UPDATE_FAILED", has_second=False)
    nodes.speak_for("second")
    assert nodes.update("UPDATE_COMPLETE", has_second=False).startswith("CREATE_COMPLETE")
