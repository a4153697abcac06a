"""Commands for the cloud, as remedies and pages give them: OpenStack's own client takes them as they stand, and a real Heat those of a remedy."""
import json
import re
import shlex

import pytest
from lib.common import TESTS, run, wait_for
from lib.failures import commands
from lib.given_commands import code_of, given_commands, in_text, sources
from lib.heat import HEAT_DIR

IN_TEXT = in_text("openstack")
# What stands for a value, and a value of its kind.
# Of a copied disk the agent has stack and resource as one word.
VALUES = [(r"resource show \{resource\}", "resource show stack resource"), (r"\{[^{}]*\}(?!')", "value"), (r"<[^<>]*>", "value"), (r"\bGIB\b", "20")]
# The program's name, where a command of it follows, outside of backticks.
BARE = re.compile(r"openstack (?:--|(?:stack|server|volume|coe|port|endpoint|user|trust|orchestration|image|console|subnet|network|security) )")


def words_of(command: str) -> list[str]:
    for pattern, value in VALUES:
        command = re.sub(pattern, value, command)
    return shlex.split(command)[1:]


@pytest.fixture(scope="module")
def complaints():
    """The client, which takes what is wrong with each command."""
    run(TESTS / "heat/up.sh", "venv", timeout=1800)

    def ask(*given: list[str]) -> list[str]:
        return json.loads(run(HEAT_DIR / "cache/venv/bin/python", "-B", TESTS / "heat/client.py", input=json.dumps(given)).stdout)
    return ask


def test_the_client_refuses_what_it_does_not_know(complaints):
    unknown, short, wrong, right = complaints(["stack", "heal", "x"], ["stack", "show"], ["volume", "set", "--size", "GIB", "x"], ["stack", "show", "x"])
    assert "Unknown command" in unknown and "<stack>" in short and "--size" in wrong and right == ""


def test_every_command_for_the_cloud_is_one_of_the_client(complaints):
    given = given_commands("openstack")
    # In remedies as they are shown, in the agent's code, and on pages.
    assert len(given) >= 30 and {"runbook.md", "magnum.rs", "heat-templates.md"} <= set(given.values())
    said = complaints(*(words_of(command) for command in given))
    assert not {f"{where}: {command}": wrong for (command, where), wrong in zip(given.items(), said) if wrong}


def test_every_command_for_the_cloud_is_marked_as_one():
    """In backticks, as the others are, so that one sees where it ends."""
    texts = {path.name: code_of(path) for path in sources()}
    assert not {name for name, text in texts.items() if BARE.search(IN_TEXT.sub("", text))}


SCRIPT = '#!/bin/sh\nuntil [ -e "$gate" ]; do sleep 0.1; done\n'
STACK = {"heat_template_version": "rocky", "parameters": {"gate": {"type": "string"}}, "resources": {
    "server": {"type": "OS::Heat::DeployedServer", "properties": {"software_config_transport": "POLL_SERVER_CFN"}},
    "config": {"type": "OS::Heat::SoftwareConfig", "depends_on": "server", "properties": {
        "group": "script", "config": SCRIPT, "inputs": [{"name": "gate"}]}},
    "quick": {"type": "OS::Heat::SoftwareDeployment", "properties": {
        "name": "quick", "server": {"get_resource": "server"}, "config": {"get_resource": "config"}, "signal_transport": "CFN_SIGNAL",
        "input_values": {"gate": {"get_param": "gate"}}}}},
    "outputs": {"occ": {"value": {"get_attr": ["server", "os_collect_config"]}}}}


def test_the_remedy_of_a_suspended_stack_is_one_for_heat(heat, agents, stack_name, tmp_path):
    """The stack is suspended while a script runs: the commands, as `status` has them, by its owner."""
    file, gate = tmp_path / "template.json", tmp_path / "gate"
    file.write_text(json.dumps(STACK))
    gate.touch()
    heat.create(stack_name, file, gate=str(gate))
    agent = agents("node", heat.server_settings(stack_name), polling_interval=1).start()
    heat.wait(stack_name)
    # What runs when the stack is suspended ends while it is.
    gate.unlink()
    # Heat shows the end a moment before the agent has its answer.
    wait_for(lambda: [d["state"] for d in agent.status()["deployments"]] == ["signalled"], 300, "the answer to the signal")
    (before,) = agent.status()["deployments"]
    agent.command("rerun", before["id"])
    wait_for(lambda: len(agent.said("HNA-0402")) == 2, 300, "a second run")
    heat.action(stack_name, "suspend")
    heat.wait(stack_name, "SUSPEND_COMPLETE")
    gate.touch()

    def refused() -> str:
        """The metadata is asked for first, and that is refused already."""
        status = agent.status()
        (source,), (_,) = status["sources"], status["signals"]
        assert "403" in source["cause"] or "401" in source["cause"], source
        return source["remedy"]
    show, resume = commands(wait_for(refused, 300, "refused metadata"))
    assert "SUSPEND_COMPLETE" in heat.openstack(show).stdout
    heat.openstack(resume)
    heat.wait(stack_name, "RESUME_COMPLETE")
    wait_for(lambda: agent.status()["deployments"][0]["state"] == "signalled" and not agent.status()["signals"], 300, "the signal")
    # What the remedy of a refused signal tells besides, for one whose user is gone: it is run again.
    heat.openstack(f"openstack stack resource mark unhealthy {stack_name} quick")
    heat.update(stack_name, file, gate=str(gate))
    heat.wait(stack_name, "UPDATE_COMPLETE")
    wait_for(lambda: [d["state"] for d in agent.status()["deployments"] if d["listed"] and d["id"] != before["id"]] == ["signalled"], 300,
             "the answer to the newer one's signal")
    # Of a copied disk: which server the resource is, and what its file has to say.
    shown = heat.openstack(f"openstack stack resource show {stack_name} server --with-attr os_collect_config -f json").stdout
    assert json.loads(shown)["physical_resource_id"] and heat.server_settings(stack_name)["cfn"]["access_key_id"] in shown
    # What its owner may ask, and what an administrator.
    assert "cloudformation" in heat.openstack("openstack catalog list").stdout
    assert heat.openstack("openstack endpoint list", check=False).returncode != 0
    assert "heat-engine" in heat.openstack("openstack orchestration service list", admin=True).stdout
