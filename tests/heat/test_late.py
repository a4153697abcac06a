"""Keystone and Heat when they say no, or nothing: late signals, revoked tokens, a start without them."""
import json
import re
import time

import pytest
from lib.common import wait_for
from lib.heat import LONG
from lib.node import status_of

SOURCES = {"cfn": "POLL_SERVER_CFN", "heat": "POLL_SERVER_HEAT", "request": "POLL_TEMP_URL"}
VDB = "7c1f4d0e-93a2-4b86-8d55-2f60c6b1a9e4"
IP = "10.77.0.11"


def template(servers: dict[str, tuple[str, str, str]]) -> dict:
    """server: (how it polls, how its deployment signals, the script). The deployment's name is the server's with _d."""
    resources, outputs = {}, {}
    for name, (transport, signal, script) in servers.items():
        resources[f"{name}_c"] = {"type": "OS::Heat::SoftwareConfig", "properties": {
            "group": "script", "config": f"#!/bin/sh\n{script}\n", "inputs": [{"name": "text"}, {"name": "gate"}], "outputs": [{"name": "out"}]}}
        resources[name] = {"type": "OS::Heat::DeployedServer", "depends_on": f"{name}_c", "properties": {"software_config_transport": transport}}
        resources[f"{name}_d"] = {"type": "OS::Heat::SoftwareDeployment", "properties": {
            "name": f"{name}_d", "server": {"get_resource": name}, "config": {"get_resource": f"{name}_c"}, "signal_transport": signal,
            "input_values": {"text": {"get_param": "text"}, "gate": {"get_param": "gate"}}}}
        outputs[f"occ_{name}"] = {"value": {"get_attr": [name, "os_collect_config"]}}
        outputs[name] = {"value": {"get_attr": [f"{name}_d", "out"]}}
    parameters = {"text": {"type": "string", "default": "one"}, "gate": {"type": "string", "default": ""}}
    return {"heat_template_version": "rocky", "parameters": parameters, "resources": resources, "outputs": outputs}


ECHO = 'printf "%s" "$text" >"${heat_outputs_path}.out"'
GATED = 'until [ -e "$gate" ]; do sleep 0.1; done; printf late >"${heat_outputs_path}.out"'


@pytest.fixture
def keystone_limit(heat):
    """Keystone's limit for pre-signed URLs as the test wants it; as it was, afterwards."""
    yield heat.auth_ttl
    heat.auth_ttl(240)


def test_a_result_later_than_keystone_allows_takes_another_way_or_says_why_not(heat, agents, stack_name, tmp_path, keystone_limit):
    gate, file = tmp_path / "gate", tmp_path / "template.json"
    made = template({name: (transport, "CFN_SIGNAL", GATED) for name, transport in SOURCES.items()})
    made["resources"] |= {"os_handle": {"type": "OS::Heat::WaitConditionHandle", "properties": {"signal_transport": "CFN_SIGNAL"}},
                          "aws_handle": {"type": "AWS::CloudFormation::WaitConditionHandle"}}
    made["outputs"] |= {"os_handle": {"value": {"get_attr": ["os_handle", "signal"]}}, "aws_handle": {"value": {"get_resource": "aws_handle"}}}
    file.write_text(json.dumps(made))
    heat.create(stack_name, file, gate=str(gate))
    nodes = {name: agents(name, heat.server_settings(stack_name, f"occ_{name}")).start() for name in SOURCES}
    for agent in nodes.values():
        agent.hears("HNA-0402")
    known = wait_for(lambda: (o := heat.outputs(stack_name)) and all("http" in (o[k] or "") for k in ("os_handle", "aws_handle")) and o, 300)
    handles = [known[k] for k in ("os_handle", "aws_handle")]
    keystone_limit(0)
    mark = heat.mark()
    gate.touch()

    # By the server's own keys, and by a token of the server's own user.
    for name in ("cfn", "heat"):
        wait_for(lambda: heat.resource_status(stack_name, f"{name}_d") == "CREATE_COMPLETE", 300, name)
        assert heat.outputs(stack_name)[name] == "late"

    def ways(name: str) -> tuple[list[int], list[int]]:
        """What heat-api-cfn and heat-api answered."""
        return tuple([r.status for r in heat.asked(service, mark, "POST", f"/{name}_d")] for service in ("heat-api-cfn", "heat-api"))
    # Heat may have done it before the line about its answer is there. Who had no answer in time began from the start.
    cfn, none = wait_for(lambda: (w := ways("cfn")) and 200 in w[0] and w, 300)
    assert not none and (cfn in ([403, 200], [200]) or (set(cfn) <= {403, 200} and nodes["cfn"].sent_again())), cfn
    refused, taken = wait_for(lambda: (w := ways("heat")) and 200 in w[1] and w, 300)
    assert set(refused) <= {403} and set(taken) == {200}, (refused, taken)
    assert (len(refused) <= 1 and len(taken) == 1) or nodes["heat"].sent_again(), (refused, taken)
    # A server that has neither says so, with what the operator can do.
    line = nodes["request"].hears("(?i)expired")
    assert "auth_ttl" in line or "auth_ttl" in json.dumps(nodes["request"].status()), line
    assert heat.resource_status(stack_name, "request_d") == "CREATE_IN_PROGRESS"
    for agent in nodes.values():
        assert not agent.said("Signature=|temp_url_sig=")

    # Handles are as old as the stack.
    for handle in handles:
        for name in ("cfn", "heat"):
            nodes[name].command("signal", "SUCCESS", "--id", name, "--url", "-", input=handle)
        assert "auth_ttl" in nodes["request"].command("signal", "SUCCESS", "--id", "r", "--url", "-", input=handle, check=False).stderr
    for handle in ("os_handle", "aws_handle"):
        # heat-api answers before the engine has taken it.
        wait_for(lambda: {"cfn", "heat"} <= set(heat.meta(stack_name, handle)), 300, handle)
        assert set(heat.meta(stack_name, handle)) == {"cfn", "heat"}


def test_one_request_a_poll_one_token_for_its_life_and_a_new_one_when_it_is_revoked(heat, agents, stack_name, tmp_path):
    file = tmp_path / "template.json"
    signals = {"cfn": "CFN_SIGNAL", "heat": "HEAT_SIGNAL", "request": "TEMP_URL_SIGNAL"}
    file.write_text(json.dumps(template({name: (SOURCES[name], signals[name], ECHO) for name in SOURCES})))
    heat.create(stack_name, file)
    settings = {name: heat.server_settings(stack_name, f"occ_{name}") for name in SOURCES}
    mark = heat.mark()
    nodes = [agents(name, settings[name], polling_interval=1).start() for name in SOURCES]

    def two_tokens():
        # The server's user has one and the deployment's; more only where an answer did not come in time.
        given = [r.status for r in heat.tokens(mark) if r.status != 401]
        assert set(given) == {201} and (len(given) == 2 or len(given) > 2 and any(agent.missed_answers() for agent in nodes)), given
    heat.wait(stack_name)
    two_tokens()

    # Nothing happens, and is asked for: one request a poll. A slow Heat makes polls fewer, never more.
    polls = {"cfn": ("heat-api-cfn", "Action=DescribeStackResource", 200), "heat": ("heat-api", "/resources/heat/metadata$", 200), "request": ("swift", "", 304)}
    for name, (service, _, status) in polls.items():
        mark = heat.mark()
        wait_for(lambda: [(r.method, r.status) for r in heat.asked(service, mark)][-2:] == [("GET", status)] * 2, LONG, f"{name} polls and nothing else")
    mark, since = heat.mark(), time.monotonic()
    wait_for(lambda: all(len(heat.asked(service, mark)) >= 6 for service, _, _ in polls.values()), LONG, "six polls of each")
    assert heat.tokens(mark) == []
    seen, seconds = {name: heat.asked(service, mark) for name, (service, _, _) in polls.items()}, time.monotonic() - since
    for name, (_, path, status) in polls.items():
        assert all(r.method == "GET" and r.status == status and re.search(path, r.target) for r in seen[name]), seen[name]
        assert len(seen[name]) <= seconds + 2, (name, seconds, seen[name])  # and one that was under way

    # Keystone revokes what it gave: the next poll gets a new token, and so does the next signal.
    user = {i["name"]: i["value"] for i in heat.entry(stack_name, "heat", "heat_d")["inputs"]}["deploy_user_id"]
    mark = heat.mark()
    heat.revoke_tokens(settings["heat"]["heat"]["user_id"], user)
    time.sleep(6)  # so long heat-api remembers tokens
    heat.update(stack_name, file, text="two")
    heat.wait(stack_name, "UPDATE_COMPLETE")
    assert {name: heat.outputs(stack_name)[name] for name in SOURCES} == dict.fromkeys(SOURCES, "two")
    two_tokens()
    # Heat may be done before heat-api has written its line.
    wait_for(lambda: [r.status for r in heat.asked("heat-api", mark, "POST", "/heat_d/signal$")][-1:] == [200], 300, "a signal by the new token")


def test_heat_and_keystone_are_away_at_the_start_and_come_later(heat, agents, hosts, stack_name, tmp_path):
    file, other = tmp_path / "template.json", f"{stack_name}-node"
    file.write_text(json.dumps(template({"cfn": (SOURCES["cfn"], "CFN_SIGNAL", ECHO), "heat": (SOURCES["heat"], "HEAT_SIGNAL", ECHO)})))
    heat.create(stack_name, file)
    heat.create(other, "node", docker_volume=VDB, docker_volume_size=4)
    host = hosts("n1", ip=IP, volumes={"vdb": ("4G", VDB)})
    nodes = [agents(name, heat.server_settings(stack_name, f"occ_{name}"), polling_interval=60) for name in ("cfn", "heat")]
    host.install_agent()
    host.write("/etc/os-collect-config.conf", heat.conf(heat.server_settings(other)), 0o600)
    host.exec("systemctl", "enable", "heat-node-agent.service")
    for name in ("script", "node"):
        heat.deployment(other, name)
    for name in ("cfn", "heat"):
        wait_for(lambda: heat.entry(stack_name, name, f"{name}_d"), 300)
    wait_for(lambda: heat.resource_status(other, "wait") == "CREATE_IN_PROGRESS", 300)
    heat.stop("heat-api-cfn", "heat-api", "keystone")
    host.reboot()
    for agent in nodes:
        agent.start()
    for agent in nodes:
        agent.hears("HNA-0202")
    # Nobody gives up, and nobody is silent; who pauses for long by now is not away when Heat comes.
    for status in (*(agent.status for agent in nodes), lambda: status_of(host)):
        wait_for(lambda: max(s["failures"] for s in status()["sources"]) >= 6, 900, "a sixth failure", every=1)
    assert host.show("heat-node-agent.service", "ActiveState", "NRestarts") == {"ActiveState": "active", "NRestarts": "0"}
    assert host.journal(HNA_EVENT="SourceFailed")
    heat.start()
    heat.wait(stack_name)
    heat.wait(other)
    assert (heat.outputs(stack_name)["cfn"], heat.outputs(stack_name)["heat"], heat.outputs(other)["node_name"]) == ("one", "one", "node-1")


def test_a_stack_that_is_suspended_or_gone_leaves_what_it_said_in_force(heat, agents, stack_name, tmp_path):
    # Not POLL_TEMP_URL: Heat 27 cannot suspend such a server (KeyError: 'user').
    names, file = ("cfn", "heat"), tmp_path / "template.json"
    file.write_text(json.dumps(template({name: (SOURCES[name], "NO_SIGNAL", ECHO) for name in names})))
    heat.create(stack_name, file)
    nodes = {name: agents(name, heat.server_settings(stack_name, f"occ_{name}"), polling_interval=1).start() for name in names}
    heat.wait(stack_name)

    def source(name: str) -> dict:
        return next(s for s in nodes[name].status()["sources"] if s["name"] == name)

    def is_in_force(name: str) -> bool:
        (one,) = nodes[name].status()["deployments"]
        return one["listed"] and one["state"] == "signalled"

    def fails(name: str, cause: str):
        def failing() -> bool:
            """By this cause at last: on the way there others may pass."""
            found = source(name)
            assert found["failures"] and cause in found["cause"] and found["remedy"], found
            return True
        wait_for(failing, LONG, name)
    for name in names:
        wait_for(lambda: is_in_force(name), 300, name)

    # Heat disables the users of a suspended stack: heat-api-cfn answers 403, or 401 where it has just checked the keys.
    heat.action(stack_name, "suspend")
    heat.wait(stack_name, "SUSPEND_COMPLETE")
    for name, cause in (("cfn", "Heat answered 40"), ("heat", "Keystone answered 401")):
        fails(name, cause)
        assert is_in_force(name)
    heat.action(stack_name, "resume")
    heat.wait(stack_name, "RESUME_COMPLETE")
    for name in names:
        wait_for(lambda: not source(name)["failures"], LONG, name)

    # Of a stack that goes Heat empties the list first. Keys that are gone give 500.
    heat.delete(stack_name)
    for name, cause in (("cfn", "Heat answered 500"), ("heat", "answered 40")):
        fails(name, cause)
