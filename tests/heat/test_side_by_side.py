"""The replaced tools of PyPI on one host and the agent on another, both servers of one stack of a real Heat: what Heat stores of each deployment,
what is written down of it, and the files of scripts and hooks are the same, but for what docs/legacy.md names."""
import json
import re
from pathlib import Path

import pytest

from lib.common import REPO, SUITE, run, wait_for
from lib.legacy import AGENTS, IN_AGENTS, REAL
from lib.node import UNIT

# The original tools are of this machine's Python.
pytestmark = pytest.mark.skipif(SUITE != "bookworm", reason="the replaced tools are this machine's")

SIDES = ("real", "ours")
TRANSPORTS = {"cfn": "POLL_SERVER_CFN", "heat": "POLL_SERVER_HEAT", "request": "POLL_TEMP_URL"}
# How each is seen by the services of the cloud: (service, requests by GET).
POLLS = {"cfn": ("heat-api-cfn", "DescribeStackResource"), "heat": ("heat-api", "/resources/[a-z]+/metadata$"), "request": ("swift", "^/v1/AUTH_")}
ADDRESSES = {"real": "10.77.0.11", "ours": "10.77.0.12"}
ALL = ["CREATE", "UPDATE", "DELETE"]
SCRIPT = """\
#!/bin/sh
echo "out $deploy_action $text|$map|$list|$unset|$flag"
echo "err wörld" >&2
mkdir -p /var/lib/side
echo "$deploy_action $text" >>/var/lib/side/$name
printf '%s\\n' "$text" >"${heat_outputs_path}.text"
printf '%s' "$PWD" >"${heat_outputs_path}.where"
"""
HOOK = """\
#!/usr/bin/python3
import json, pathlib, sys
given = json.load(sys.stdin)
folder = pathlib.Path("/var/lib/side")
folder.mkdir(exist_ok=True)
(folder / "hook").write_text(given["config"] + json.dumps(sorted(given)))
print(json.dumps({"deploy_stdout": "by a hook of the image", "deploy_stderr": "", "deploy_status_code": 0, "more": [1, {"a": None}]}))
"""
GROUPS = {"side-hook": HOOK}
TEMPLATES = {"mustache": ("{{side.text}}\n{{#side.list}}<{{.}}>{{/side.list}}{{^side.none}}\nnone{{/side.none}}\n", 0o644),
             "program": ("#!/bin/sh\ntr a-z A-Z | tr -d ' \\n' | grep -o '\"SIDE\":{[^}]*}' || :\n", 0o755)}
RECORD = r"/var/lib/heat-config/deployed/[^./]+\.json"
# Where what is compared lies.
FOLDERS = ("/var/lib/side", "/etc/side", "/etc/puppet", "/var/lib/heat-config", "/run/heat-config")


def config(group: str, config, outputs=(), inputs=()) -> dict:
    kind = "SoftwareConfig" if isinstance(config, str) else "StructuredConfig"
    properties = {"group": group, "config": config, "outputs": list(outputs), "inputs": [i if isinstance(i, dict) else {"name": i} for i in inputs]}
    return {"type": f"OS::Heat::{kind}", "properties": properties}


def component() -> dict:
    steps = [{"actions": [action], "tool": "script", "config": SCRIPT.replace("out ", f"out of {action.lower()} ")} for action in ALL]
    return {"type": "OS::Heat::SoftwareComponent", "properties": {"configs": steps, "inputs": [{"name": n} for n in ("text", "name")],
                                                                  "outputs": [{"name": n} for n in ("text", "where")]}}


TYPED = [{"name": "text"}, {"name": "name"}, {"name": "map", "type": "Json"}, {"name": "list", "type": "CommaDelimitedList"},
         {"name": "unset", "default": ""}, {"name": "flag", "type": "String"}]
OUTPUTS = [{"name": n} for n in ("text", "where", "missing")]
CONFIGS = {
    "script": config("script", SCRIPT, OUTPUTS, TYPED),
    "json-file": config("json-file", {"/etc/side/json/one.json": {"b": [1, 2.5, None, True], "a": {"get_input": "text"}}, "/etc/side/two.json": "wörld"}, inputs=["text"]),
    "apply-config": config("apply-config", {"a": {"get_input": "text"}}, inputs=["text"]),
    "data": config("os-apply-config", {"side": {"text": {"get_input": "text"}, "list": ["a", "b"]}}, inputs=["text"]),
    "hiera": config("hiera", {"hierarchy": ["one", "two"], "datafiles": {"one": {"key": {"get_input": "text"}}, "two": {}}}, inputs=["text"]),
    "hook": config("side-hook", "text of the config", inputs=["text"]),
    "component": component(),
}
# name: (config, how it signals, its inputs, its actions)
TEXT = {"text": {"get_param": "text"}}
WORKING = {
    **{f"script-by-{signal}": ("script", f"{signal.upper()}_SIGNAL", {**TEXT, "map": {"b": [1, "ü"], "a": None}, "list": ["x", "y"], "flag": True}, ALL)
       for signal in ("cfn", "heat", "temp_url", "no")},
    "json-file": ("json-file", "CFN_SIGNAL", TEXT, ["CREATE", "UPDATE"]),
    "data": ("data", "NO_SIGNAL", TEXT, ["CREATE", "UPDATE"]),
    "apply-config": ("apply-config", "CFN_SIGNAL", TEXT, ["CREATE", "UPDATE"]),
    "hiera": ("hiera", "HEAT_SIGNAL", TEXT, ["CREATE", "UPDATE"]),
    "hook": ("hook", "CFN_SIGNAL", TEXT, ALL),
    "component": ("component", "CFN_SIGNAL", TEXT, ALL),
}


def template(transport: str, deployments: dict) -> dict:
    resources: dict = {f"{of}-config": CONFIGS[of] for of, *_ in deployments.values()}
    for side in SIDES:
        resources[side] = {"type": "OS::Heat::DeployedServer", "depends_on": list(resources)[0], "properties": {"software_config_transport": TRANSPORTS[transport]}}
        for name, (of, signal, values, actions) in deployments.items():
            named = {"name": name} if any(i["name"] == "name" for i in CONFIGS[of]["properties"]["inputs"]) else {}
            kind = "StructuredDeployment" if CONFIGS[of]["type"].endswith("StructuredConfig") else "SoftwareDeployment"
            resources[f"{side}-{name}"] = {"type": f"OS::Heat::{kind}", "properties": {
                "name": name, "server": {"get_resource": side}, "config": {"get_resource": f"{of}-config"}, "signal_transport": signal,
                "actions": actions, "input_values": {**values, **named}}}
            if of == "apply-config":
                resources[f"{side}-{name}"]["depends_on"] = f"{side}-data"
    return {"heat_template_version": "rocky", "parameters": {"text": {"type": "string"}}, "resources": resources,
            "outputs": {f"occ_{side}": {"value": {"get_attr": [side, "os_collect_config"]}} for side in SIDES}}


HOOKS = ("script", "json-file", "apply-config", "hiera")
# With their programs first: the shebangs of heat-agents ask PATH for a Python. As Magnum's: the source `local` reads in no other locale (R3).
SERVICE = f"""[Service]
Environment=LC_ALL=C PATH={REAL}:/usr/sbin:/usr/bin:/sbin:/bin
ExecStart={REAL}/os-collect-config --polling-interval 2
Restart=on-failure
"""
LOOK = """\
import json, os, sys
found = {}
for top in sys.argv[1:]:
    for folder, _, names in os.walk(top):
        for path in [folder, *(os.path.join(folder, n) for n in names)]:
            mode = os.lstat(path).st_mode
            found[path] = [oct(mode), "" if path == folder else open(path, encoding="utf-8").read()]
print(json.dumps(found))
"""
# What of the files of one side the other has not, each with its row of docs/legacy.md or what is not a file of the replaced tools.
ONLY = {
    "real": {
        r"/run/heat-config/heat-config": "the daemon needs no list of deployments in a file: `the command, phases, templates`",
    },
    "ours": {
        r"/run/heat-config/metadata(/\d+\.json)?": "what OS_CONFIG_FILES names: the environment of hooks",
        r"/var/lib/heat-config/deployed/\.heat-node-agent(-instance|\.lock)": "R16, R41",
        r"/var/lib/heat-config/deployed/\S+\.begun": "R30",
    },
}


def settle_tools(host):
    """As heat-agents' elements lay them out."""
    conf, libexec = AGENTS / "heat-config/os-apply-config", "/usr/libexec"
    phase = "os-refresh-config/configure.d"
    host.put({
        f"{libexec}/{phase}/20-os-apply-config": (AGENTS / "heat-config" / phase / "20-os-apply-config", 0o755),
        f"{libexec}/{phase}/55-heat-config": (AGENTS / IN_AGENTS["55-heat-config"], 0o755),
        **{f"{libexec}/heat-config/hooks/{group}": (AGENTS / IN_AGENTS[f"hook-{group}.py"], 0o755) for group in HOOKS},
        "/usr/bin/heat-config-notify": (AGENTS / IN_AGENTS["heat-config-notify"], 0o755),
        **{f"{libexec}/os-apply-config/templates/{path.relative_to(conf)}": (path, 0o644) for path in conf.rglob("*") if path.is_file()},
        "/etc/os-collect-config.conf": (b"[DEFAULT]\ncommand = os-refresh-config\n", 0o600),
        "/etc/systemd/system/os-collect-config.service": (SERVICE.encode(), 0o644)})
    host.sh("systemctl daemon-reload; systemctl start os-collect-config.service")


def settle_agent(host):
    host.install_agent()
    host.write("/etc/heat-node-agent/agent.toml", "polling_interval = 2\n")
    host.exec("systemctl", "enable", "--now", UNIT)


def stored(heat, stack: str, side: str) -> dict[str, dict]:
    """name: what Heat stores of a deployment of this server."""
    server = heat.resources(stack)[side]["physical_resource_id"]
    names = {d["id"]: d["name"] for d in heat.meta(stack, side)["deployments"]}
    found = json.loads(heat._client("get", "orchestration", f"software_deployments?server_id={server}").stdout)["software_deployments"]
    return {names[d["config_id"]]: {k: d[k] for k in ("action", "status", "status_reason", "output_values")} for d in found}


def without_times(log: str) -> set[str]:
    """Lines of os-apply-config's log: its times are UTC here (R8), templates come in the order of their directory there, and there are two more of
    heat-agents' own."""
    lines = {re.sub(r"^\[[^\]]*\] ", "", line) for line in log.splitlines()}
    return {line for line in lines if not line.endswith((" /etc/os-collect-config.conf", " /var/run/heat-config/heat-config"))}


def files(host) -> dict[str, list]:
    """path: mode and content; ids in names and records are replaced by the deployment's name and action, and what Heat names differently for each server is left out."""
    there = json.loads(host.exec("/usr/bin/python3", "-", *FOLDERS, input=LOOK).stdout)
    ids = {}
    for path, (_, text) in there.items():
        if (m := re.fullmatch(r"/var/lib/heat-config/deployed/([0-9a-f-]{36})\.json", path)):
            record = json.loads(text)
            action = next(i["value"] for i in record["inputs"] if i["name"] == "deploy_action")
            ids[m[1]] = f"{record['name']}-{action}"
    found = {}
    for path, (mode, text) in there.items():
        for id, name in ids.items():
            path, text = path.replace(id, name), text.replace(id, name)
        if re.fullmatch(r"/var/lib/heat-config/deployed/[^.]+(\.notify)?\.json", path):
            text = same_record(json.loads(text))
        found[path] = [mode, text]
    return found


def same_record(record: dict) -> dict:
    """A record or a result of either side: without the agent's mark; of an apply-config's log see without_times."""
    record.pop("heat_node_agent", None)
    record.pop("creation_time", None)
    record.pop("more", None)  # an output that the config does not declare: Heat ignores it, and the agent does not keep it
    for kind in ("inputs", "outputs"):
        for one in record.get(kind, []):
            if one["name"].startswith("deploy_") and one["name"] != "deploy_action":
                one["value"] = "its own"
    if "writing /etc/side/" in record.get("deploy_stderr", ""):
        record["deploy_stderr"] = sorted(without_times(record["deploy_stderr"]))
    return record


def polled(heat, since) -> dict[str, set[str]]:
    """side: the ways by which it asked for metadata."""
    return {side: {transport for transport, (service, path) in POLLS.items() if any(r.method == "GET" for r in heat.requests(service, since, address, path))}
            for side, address in ADDRESSES.items()}


def compare_heat(heat, stack: str, names):
    real, ours = (stored(heat, stack, side) for side in SIDES)
    assert set(real) == set(ours) == set(names)
    for name in names:
        for one in (real, ours):
            if name == "apply-config":
                one[name]["output_values"]["deploy_stderr"] = without_times(one[name]["output_values"]["deploy_stderr"])
        assert ours[name] == real[name], name


def compare_files(hosts: dict, only=ONLY):
    real, ours = (files(hosts[side]) for side in SIDES)
    for side, one, other in (("real", real, ours), ("ours", ours, real)):
        left = one.keys() - other.keys()
        assert [path for path in left if not any(re.fullmatch(known, path) for known in only[side])] == [], side
        # Every difference that is named is one.
        assert [known for known in only[side] if not any(re.fullmatch(known, path) for path in left)] == [], side
        assert {one[path][0] for path in left} <= {"0o100600", "0o40700"}, {path: one[path][0] for path in left}
    # What ran has its mark (R30).
    assert {path.removesuffix(".begun") for path in ours if path.endswith(".begun")} == {path.removesuffix(".json") for path in ours if re.fullmatch(RECORD, path)}
    both = real.keys() & ours.keys()
    # 0700 here (R51).
    assert real.pop("/run/heat-config")[0] == "0o40755" and ours.pop("/run/heat-config")[0] == "0o40700"
    assert {path: ours[path] for path in both if path in ours} == {path: real[path] for path in both if path in real}


def two_hosts(heat, hosts, stack: str, tmp_path) -> dict:
    """side: its host, which knows its Heat and has not begun to ask."""
    run(REPO / "tests/legacy/up.sh", timeout=1800)
    (tmp_path / "empty").touch()
    both = {}
    for side in SIDES:
        host = both[side] = hosts(side, ip=ADDRESSES[side], base="cloud", binds_ro={str(AGENTS.parent): str(AGENTS.parent)},
                                  files={"/etc/cloud/cloud-init.disabled": tmp_path / "empty"}, expect="")
        host.put({f"/usr/libexec/heat-config/hooks/{group}": (text.encode(), 0o755) for group, text in GROUPS.items()})
        heat.hand_over(host, stack, f"occ_{side}")
    return both


def begin(heat, stack: str, tmp_path, transport: str, deployments: dict, **parameters) -> Path:
    file = tmp_path / "template.json"
    file.write_text(json.dumps(template(transport, deployments)))
    heat.create(stack, file, **parameters)
    return file


# Beyond the first: `tests/run heat-longer`.
@pytest.mark.parametrize("transport", [t if t == "cfn" else pytest.param(t, marks=pytest.mark.longer) for t in TRANSPORTS])
def test_the_replaced_tools_and_the_agent_give_the_same_results_and_files(heat, hosts, stack_name, tmp_path, transport):
    since = heat.mark()
    file = begin(heat, stack_name, tmp_path, transport, WORKING, text="wörld")
    both = two_hosts(heat, hosts, stack_name, tmp_path)
    for host in both.values():
        host.put({f"/usr/libexec/os-apply-config/templates/etc/side/{name}": (text.encode(), mode) for name, (text, mode) in TEMPLATES.items()})
    settle_tools(both["real"])
    settle_agent(both["ours"])

    heat.wait(stack_name)
    compare_heat(heat, stack_name, WORKING)
    wait_for(lambda: compare_files(both) is None, 60, "the same files")
    heat.update(stack_name, file, text="zwei")
    heat.wait(stack_name, "UPDATE_COMPLETE")
    compare_heat(heat, stack_name, WORKING)
    wait_for(lambda: compare_files(both) is None, 60, "the same files")

    assert polled(heat, since) == dict.fromkeys(SIDES, {transport})
    # An entry of NO_SIGNAL is gone from the metadata as soon as it is there.
    heat.delete_by_agents(stack_name)
    for host in both.values():
        assert host.sh("cd /var/lib/side; tail -qn1 component script-by-cfn script-by-heat script-by-temp_url").split() == ["DELETE", "zwei"] * 4
