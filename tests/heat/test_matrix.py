"""Every source with every way to signal, on a real Heat: deployments from CREATE to DELETE, their results compared."""
import json
import re
from collections import Counter

from lib.common import wait_for
from lib.heat import inputs

SOURCES = {"cfn": "POLL_SERVER_CFN", "heat": "POLL_SERVER_HEAT", "request": "POLL_TEMP_URL", "zaqar": "ZAQAR_MESSAGE"}
SIGNALS = {"cfn": "CFN_SIGNAL", "heat": "HEAT_SIGNAL", "temp": "TEMP_URL_SIGNAL", "zaqar": "ZAQAR_SIGNAL", "no": "NO_SIGNAL"}
TEXT = "wörld ☃ \"quoted\" \\ 'so'"
SCRIPT = """\
#!/bin/sh
echo "out $deploy_action $text"
echo "err $text" >&2
echo "$deploy_action $text" >>"$record/$deploy_resource_name"
printf '%s' "$text" >"${heat_outputs_path}.text"
printf '%s' "$number" >"${heat_outputs_path}.number"
printf '%s' "$deploy_action" >"${heat_outputs_path}.action"
"""


def template(sources) -> dict:
    """Servers of all these sources, each with a deployment for every way to signal."""
    resources: dict = {"config": {"type": "OS::Heat::SoftwareConfig", "properties": {
        "group": "script", "config": SCRIPT,
        "inputs": [{"name": "text"}, {"name": "record"}, {"name": "number", "type": "Number"}],
        "outputs": [{"name": n} for n in ("text", "number", "action")] + [{"name": "error", "error_output": True}]}}}
    outputs = {}
    for source in sources:
        resources[source] = {"type": "OS::Heat::DeployedServer", "depends_on": "config",
                             "properties": {"software_config_transport": SOURCES[source]}}
        outputs[f"occ_{source}"] = {"value": {"get_attr": [source, "os_collect_config"]}}
        for signal, transport in SIGNALS.items():
            name = f"{source}_by_{signal}"
            resources[name] = {"type": "OS::Heat::SoftwareDeployment", "properties": {
                "name": name, "server": {"get_resource": source}, "config": {"get_resource": "config"}, "signal_transport": transport,
                "actions": ["CREATE", "UPDATE", "DELETE"],
                "input_values": {"text": {"get_param": "text"}, "number": {"get_param": "number"}, "record": {"get_param": "record"}}}}
            outputs[name] = {"value": {key: {"get_attr": [name, key]} for key in (
                "text", "number", "action", "deploy_stdout", "deploy_stderr", "deploy_status_code")}}
    parameters = {"text": {"type": "string"}, "number": {"type": "number"}, "record": {"type": "string"}}
    return {"heat_template_version": "rocky", "parameters": parameters, "resources": resources, "outputs": outputs}


def test_every_source_with_every_signal_from_create_to_delete(heat, agents, stack_name, tmp_path):
    sources = list(SOURCES)
    file, record = tmp_path / "template.json", tmp_path / "record"
    record.mkdir()
    file.write_text(json.dumps(template(sources)))
    heat.create(stack_name, file, text=TEXT, number=7, record=str(record))
    mark = heat.mark()
    nodes = {source: agents(source, heat.server_settings(stack_name, f"occ_{source}")).start() for source in sources}
    names = [f"{source}_by_{signal}" for source in sources for signal in SIGNALS]

    def check(action: str, text: str, number: str, before: list[str]):
        expected = {"text": text, "number": number, "action": action, "deploy_stdout": f"out {action} {text}\n",
                    "deploy_stderr": f"err {text}\n", "deploy_status_code": 0}
        # What nobody waits for may come a little later.
        wait_for(lambda: all((record / n).exists() and len((record / n).read_text().splitlines()) > len(before) for n in names),
                 300, f"{action} of {names}")
        ran = {n: (record / n).read_text().splitlines() for n in names}
        assert ran == {n: [*before, f"{action} {text}"] for n in names}
        out = heat.outputs(stack_name)
        assert {n: out[n] for n in names if not n.endswith("_no")} == {n: expected for n in names if not n.endswith("_no")}
        # Heat stores nothing of NO_SIGNAL; the result is the same, on the node.
        for source, agent in nodes.items():
            no = heat.entry(stack_name, source, f"{source}_by_no")
            assert inputs(no)["deploy_action"] == action
            assert wait_for(lambda: agent.result(no["id"]), 300) == expected

    heat.wait(stack_name)
    check("CREATE", TEXT, "7", [])
    heat.update(stack_name, file, text="zwei", number=8.5, record=str(record))
    heat.wait(stack_name, "UPDATE_COMPLETE")
    check("UPDATE", "zwei", "8.5", [f"CREATE {TEXT}"])

    # Nobody but the agents answers. An entry of NO_SIGNAL is gone from the metadata as soon as it is there.
    heat.delete_by_agents(stack_name)
    for name in names:
        if not name.endswith("_no"):
            assert (record / name).read_text().splitlines() == [f"CREATE {TEXT}", "UPDATE zwei", "DELETE zwei"], name

    # One signal each, by the way that Heat asked for, and none for NO_SIGNAL. Who had no answer in time sent it again.
    def signalled(service: str, method: str, path: str) -> Counter:
        found = heat.asked(service, mark, method, path)
        assert all(r.status in (200, 201) for r in found), found
        return Counter(re.search(r"[a-z]+_by_[a-z]+", r.target)[0] for r in found)
    # That of ZAQAR_SIGNAL is Heat's own API, too.
    for service, method, signals in (("heat-api-cfn", "POST", ["cfn"]), ("heat-api", "POST", ["heat", "zaqar"]), ("swift", "PUT", ["temp"])):
        wanted = Counter({f"{s}_by_{signal}": 3 for s in sources for signal in signals})
        # The line of the last one comes when its answer goes out, and the stack may have ended by then.
        got = wait_for(lambda: (seen := signalled(service, method, stack_name)) >= wanted and seen, 300, f"{wanted} at {service}")
        assert set(got) == set(wanted), got
        assert [n for n in got if got[n] > 3 and not nodes[n.partition("_by_")[0]].sent_again()] == [], got
    # One Keystone token a user: each deployment of HEAT_SIGNAL or ZAQAR_SIGNAL has one, and so have the servers of POLL_SERVER_HEAT and
    # ZAQAR_MESSAGE, until they go with the stack.
    users = 2 * len(sources) + 2
    given = [r.status for r in heat.tokens(mark) if r.status != 401]
    assert set(given) == {201} and len(given) >= users, given
    assert len(given) == users or any(agent.missed_answers() for agent in nodes.values()), given
