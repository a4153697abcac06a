"""The replaced tools of PyPI on one host and the agent on another, both servers of one stack of a real Heat: what Heat stores of each deployment,
what is written down of it, and the files of scripts and hooks are the same, but for what docs/legacy.md names."""
import json
import re
from pathlib import Path

import pytest

from lib.common import MACHINE, REPO, SUITE, run, wait_for
from lib.legacy import AGENTS, IN_AGENTS, REAL
from lib.node import UNIT

# The original tools are of this machine's Python.
pytestmark = pytest.mark.skipif(SUITE != MACHINE, reason="the replaced tools are installed by this machine's Python, and the hosts' is another")

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
RUBBISH = """\
#!/bin/sh
echo "not { JSON"
echo "said by the hook" >&2
exit $(sed -n 's/.*"config": *"exit \\([0-9]*\\)".*/\\1/p')
"""
ANSWER = """\
#!/bin/sh
echo '{"deploy_stdout": "all is well", "deploy_stderr": "", "deploy_status_code": 0}'
exit 3
"""
GROUPS = {"side-hook": HOOK, "side-rubbish": RUBBISH, "side-answer": ANSWER}
TEMPLATES = {"mustache": ("{{side.text}}\n{{#side.list}}<{{.}}>{{/side.list}}{{^side.none}}\nnone{{/side.none}}\n", 0o644),
             "program": ("#!/bin/sh\ntr a-z A-Z | tr -d ' \\n' | grep -o '\"SIDE\":{[^}]*}' || :\n", 0o755)}
ID = "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
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


ENDS = """\
#!/bin/sh
printf 'text of an output' >"${heat_outputs_path}.text"
echo "out $deploy_action"
echo "first line" >&2
echo "last wörds" >&2
exit 3
"""
RAW = b"a\1b\33[31mred\33[0m\bc\r\nd\0e\t\177\xc2\x85\n\xff\xfe \xc3( \xe2\x82 \xed\xa0\x80\n"
BYTES = "#!/bin/sh\nbytes() { printf '" + "".join(f"\\{byte:03o}" for byte in RAW) + "'; }\nbytes\nbytes >&2\nexit $status\n"
ERROR = """\
#!/bin/sh
printf 'the reason is here' >"${heat_outputs_path}.error"
"""
TOP = "/usr/libexec/os-apply-config/templates/etc/side"
LAY = f"#!/bin/sh\nmkdir -p {TOP}\necho '<{{{{side.absent}}}}>' >{TOP}/absent\n"
# It does not find itself in the metadata.
WANTS = f"#!/bin/sh\nprintf '#!/bin/sh\\ngrep -q no[-]such[-]data || {{ echo no data >&2; exit 5; }}\\n' >{TOP}/wants\nchmod 755 {TOP}/wants\n"
CONFIGS |= {
    "ends": config("script", ENDS, OUTPUTS),
    "bytes": config("script", BYTES, inputs=["status"]),
    "bytes-output": config("script", "#!/bin/sh\nprintf 'a\\377b' >$heat_outputs_path.text\n", OUTPUTS),
    "number": config("script", "#!/bin/sh\necho $number\n", inputs=[{"name": "number", "type": "Number"}]),
    "killed": config("script", "#!/bin/sh\necho so far\nkill -9 $$\n"),
    "nowhere": config("script", "#!/no/such/interpreter\n"),
    "silent": config("script", "#!/bin/sh\nexit 1\n"),
    # A character of four bytes in UTF-8: no MySQL whose character set is utf8 takes it as a status_reason.
    "astral": config("script", "#!/bin/sh\nprintf 'so \\360\\237\\230\\200\\n' >&2\nexit 1\n"),
    "error": config("script", ERROR, [{"name": "error", "error_output": True}]),
    "rubbish-0": config("side-rubbish", "exit 0"),
    "rubbish-4": config("side-rubbish", "exit 4"),
    "answer": config("side-answer", "text"),
    "no-hook": config("side-none", "text"),
    "lay": config("script", LAY),
    "wants": config("script", WANTS),
    "apply": config("apply-config", {"a": 1}),
}
FAILING = {
    **{of: (of, signal, {}, ["CREATE"]) for of, signal in (
        ("ends", "CFN_SIGNAL"), ("bytes-output", "CFN_SIGNAL"), ("killed", "HEAT_SIGNAL"), ("nowhere", "CFN_SIGNAL"), ("silent", "HEAT_SIGNAL"), ("astral", "CFN_SIGNAL"), ("error", "CFN_SIGNAL"),
        ("rubbish-0", "CFN_SIGNAL"), ("rubbish-4", "CFN_SIGNAL"), ("answer", "CFN_SIGNAL"), ("no-hook", "CFN_SIGNAL"))},
    "ends-temp": ("ends", "TEMP_URL_SIGNAL", {}, ["CREATE"]),
    "zaqar": ("bytes", "ZAQAR_SIGNAL", {"status": "0"}, ["CREATE"]),
    "bytes-0": ("bytes", "CFN_SIGNAL", {"status": "0"}, ["CREATE"]),
    "bytes-1": ("bytes", "HEAT_SIGNAL", {"status": "1"}, ["CREATE"]),
    "number": ("number", "CFN_SIGNAL", {"number": 5}, ["CREATE"]),
    # Heat lists them in the order of their names: while a template fails, the replaced tools begin no deployment at all.
    "z-1-lay": ("lay", "CFN_SIGNAL", {}, ["CREATE"]),
    "z-2-absent": ("apply", "CFN_SIGNAL", {}, ["CREATE"]),
    "z-3-lay": ("wants", "CFN_SIGNAL", {}, ["CREATE"]),
    "z-4-wants": ("apply", "CFN_SIGNAL", {}, ["CREATE"]),
}
SUCCEEDING = {"bytes-0", "z-1-lay", "z-2-absent", "z-3-lay"}
# What the replaced tools never answer.
UNANSWERED = {"no-hook", "zaqar"}
PENDING = ("IN_PROGRESS", None, None)


def said(stderr, stdout="", **outputs) -> dict:
    return {**outputs, "deploy_stdout": stdout, "deploy_stderr": stderr}


def like(pattern: str) -> re.Pattern:
    return re.compile(pattern, re.S)


# Those that Heat stores in another way, by the rows of docs/legacy.md: of each side its status, its number, and the other outputs.
# A hook of the replaced tools that crashes has said its inputs, signed URLs too, which Heat shows (R52).
DIFFERENT = {
    "answer": ("R13, R34", ("COMPLETE", 0, said("", "all is well")), ("FAILED", 3, said("", "all is well"))),
    "rubbish-0": ("R13, R34", ("COMPLETE", 0, said("said by the hook\n", "not { JSON\n")), ("FAILED", 1, said("said by the hook\n", "not { JSON\n"))),
    "no-hook": ("R33", PENDING, ("FAILED", 1, said(like('HNA-0407 no hook for group "side-none" in .*; remedy: .*')))),
    "zaqar": ("R48", PENDING, ("COMPLETE", 0, said(RAW.decode(errors="replace"), RAW.decode(errors="replace")))),
    "bytes-output": ("R33", ("FAILED", 1, said(like(".*&Signature=.*\nUnicodeDecodeError: .*"))), ("COMPLETE", 0, said("", text="a\ufffdb"))),
    "number": ("R35", ("FAILED", 1, said(like(".*&Signature=.*\nTypeError: .*"))), ("COMPLETE", 0, said("", "5\n"))),
    "nowhere": ("R33", ("FAILED", 1, said(like(".*&Signature=.*\nFileNotFoundError: .*"))),
                ("FAILED", 127, said(like("its interpreter /no/such/interpreter is not installed; remedy: .*")))),
    "z-4-wants": ("R1, R52", ("FAILED", 1, said(like(r"\[[^]]*\] \[ERROR\] \(.config script failed: .*/wants.*no data.*"))),
                  ("FAILED", 1, said(like(r"\[[^]]*\] \[ERROR\] rendering \S+/wants\n\[[^]]*\] \[ERROR\] it ended with status 5: no data\n")))),
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
    return {"heat_template_version": "rocky", "parameters": {"text": {"type": "string", "default": ""}}, "resources": resources,
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
            found[path] = [oct(mode), "" if path == folder else open(path, encoding="utf-8", errors="backslashreplace").read()]
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


def number_of(result: dict | None):
    """The status code, which for a failure of the agent's is a text that begins with it (docs/legacy.md: the result of a script that failed)."""
    code = (result or {}).get("deploy_status_code")
    if isinstance(code, str):
        code = int(re.fullmatch(r"(-?[1-9]\d*) \(.+; remedy: .+\)", code, re.S)[1])
    return code


def is_as(value, expected) -> bool:
    return bool(expected.fullmatch(value)) if isinstance(expected, re.Pattern) else value == expected


def compare_failures(real: dict, ours: dict):
    """What Heat stores of FAILING."""
    assert set(real) == set(ours) == set(FAILING)
    for name, one in [*real.items(), *ours.items()]:
        values = one["output_values"] or {}
        reason = {"IN_PROGRESS": "Deploy data available", "COMPLETE": "Outputs received",
                  "FAILED": f"deploy_status_code : Deployment exited with non-zero status code: {values.get('deploy_status_code')}"}[one["status"]]
        assert one["action"] == "CREATE" and (one["status_reason"] == reason or name == "error"), (name, one)
    for name, (_, *sides) in DIFFERENT.items():
        for one, (status, number, outputs) in zip((real[name], ours[name]), sides):
            values = one["output_values"]
            assert (one["status"], number_of(values)) == (status, number), (name, one)
            left = None if values is None else {k: v for k, v in values.items() if k != "deploy_status_code"}
            assert left == outputs or left and outputs and left.keys() == outputs.keys() and all(is_as(left[k], v) for k, v in outputs.items()), (name, one)
    assert "is not a single JSON object" in ours["rubbish-0"]["status_reason"]
    for name in FAILING.keys() - DIFFERENT.keys():
        one, other = real[name], ours[name]
        if name == "z-2-absent":
            for side in (one, other):
                side["output_values"]["deploy_stderr"] = without_times(side["output_values"]["deploy_stderr"])
        # Heat shows the text behind the number as the reason.
        code = other["output_values"]["deploy_status_code"]
        if code != 0:
            assert isinstance(code, str) and other["status_reason"] == one["status_reason"] + code.removeprefix(str(number_of(other["output_values"]))), name
            other["output_values"]["deploy_status_code"], other["status_reason"] = number_of(other["output_values"]), one["status_reason"]
        assert other == one and one["status"] == ("COMPLETE" if name in SUCCEEDING else "FAILED"), (name, one)


def compare_files(hosts: dict, only=ONLY, results=None):
    """results: of these what is written down is not the same; it is what Heat has of each."""
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
    for name, stored_of in (results or {}).items():
        for side, values in zip((real, ours), stored_of):
            mode, written = side.pop(f"/var/lib/heat-config/deployed/{name}-CREATE.notify.json")
            # The id is replaced in what is written.
            texts = [re.sub(f"{ID}|{name}-CREATE", "", json.dumps({**one, "deploy_status_code": 0}, sort_keys=True)) for one in (written, values)]
            assert mode == "0o100600" and texts[0] == texts[1], name
            assert int(re.match(r"-?\d+", str(written["deploy_status_code"]))[0]) == number_of(values), name
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


def test_what_fails_by_the_replaced_tools_fails_by_the_agent(heat, hosts, stack_name, tmp_path):
    """All deployments are in the metadata before anybody asks: Heat begins none once one has failed, but takes the results of those that wait."""
    begin(heat, stack_name, tmp_path, "cfn", FAILING)
    both = two_hosts(heat, hosts, stack_name, tmp_path)
    wait_for(lambda: all(len(heat.meta(stack_name, side)["deployments"]) == len(FAILING) for side in SIDES), 300, "all deployments")
    settle_tools(both["real"])
    settle_agent(both["ours"])
    found = {}

    def in_progress() -> dict[str, set]:
        found.update({side: stored(heat, stack_name, side) for side in SIDES})
        return {side: {name for name, one in found[side].items() if one["status"] == "IN_PROGRESS"} for side in SIDES}
    # Behind those that are never answered in the list are others that are.
    wait_for(lambda: in_progress() == {"real": UNANSWERED, "ours": set()}, 900, "all results", every=1)
    assert heat.status(stack_name) == "CREATE_FAILED"
    compare_failures(found["real"], found["ours"])
    # Without a hook there is no record; the result is written down all the same (R33).
    ours = ONLY["ours"] | {rf"/var/lib/heat-config/deployed/{ID}\.notify\.json": "R33"}
    compare_files(both, {**ONLY, "ours": ours}, {name: [found[side][name]["output_values"] for side in SIDES] for name in DIFFERENT.keys() - UNANSWERED})
    # Of ZAQAR_SIGNAL the files are the same, but python-zaqarclient has no queues/v1 any more: heat-config-notify of heat-agents 13.0.0 ends in line 155.
    log = both["real"].sh("journalctl -qo cat -u os-collect-config.service")
    assert "heat-config-notify\", line 155, in main" in log and "AttributeError: \\'NoneType\\' object has no attribute \\'Client\\'" in log
    assert "Skipping group side-none with no hook script" in log
