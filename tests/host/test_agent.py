"""The agent on a real systemd host; its metadata comes from a small server that speaks Heat's CFN API."""
import json
import re

from lib.common import REPO
from lib.node import IP, NODE, UNIT, VDB, VDC, be_patient, bring_up, signalled, start


def test_scripts_hooks_and_mistakes_are_all_answered(hosts, signal_server):
    server = signal_server()
    host = hosts("n1", ip=IP)
    host.sh("mkdir -p /usr/libexec/heat-config/hooks")
    host.write("/usr/libexec/heat-config/hooks/custom",
               "#!/usr/bin/python3\nimport json, sys\nd = json.load(sys.stdin)\n"
               "v = {i['name']: i['value'] for i in d['inputs']}\n"
               "print(json.dumps({'deploy_stdout': d['config'], 'deploy_status_code': 0, 'sum': v['a'] + v['b']}))\n", 0o755)
    host.write("/usr/libexec/heat-config/hooks/sloppy", "#!/bin/sh\necho container-id\n", 0o755)
    broken = server.deployment("broken", outputs=[])
    broken["outputs"] = "none"
    server.deploy(
        server.deployment("10-script", config="#!/bin/sh\necho $n; printf '%s' \"$deploy_action\" >$heat_outputs_path.o\nexit 3\n",
                          inputs={"n": 5}, outputs=["o", {"name": "error", "error_output": True}]),
        server.deployment("20-hook", group="custom", config="what", inputs={"a": 1, "b": 2}, outputs=["sum"]),
        server.deployment("30-sloppy", group="sloppy"),
        server.deployment("40-none", group="no-such-hook"),
        server.deployment("60-noexec", config="echo no interpreter\n"),
        server.deployment("70-forbidden", group="forbidden"),
        server.deployment("80-quiet", config="#!/bin/sh\ntouch /run/quiet\n", signal="NO_SIGNAL"), broken)
    settings = "[deploy]\ngroups = ['script', 'custom', 'sloppy', 'no-such-hook']\n"
    start(host, server, settings)
    one = signalled(server, "10-script")
    assert (one["deploy_status_code"], one["deploy_stdout"], one["o"], "error" in one) == (3, "5\n", "CREATE", False)
    two = signalled(server, "20-hook")
    assert (two["deploy_status_code"], two["sum"], two["deploy_stdout"]) == (0, 3, "what")
    for name, words in (("30-sloppy", "not a single JSON object"), ("40-none", "no hook for group"),
                        ("60-noexec", "could not be started"), ("70-forbidden", "not allowed"), ("broken", "outputs: not a list")):
        assert words in str(signalled(server, name)["deploy_status_code"]), name
    host.wait_for(lambda: host.exists("/run/quiet"))
    # Byte for byte: a pre-signed URL may not change by a letter.
    for name in ("10-script", "20-hook"):
        assert server.base + server.signals(name)[0].target == server.url_of(name)
    heads = server.signals("10-script")[0]
    assert heads.header("content-type") == "application/json" and int(heads.header("content-length")) == len(heads.body)
    assert all("ContentType=JSON" in p.target for p in server.polls())
    # A limit, for the slow one alone: its whole process group goes.
    host.write("/etc/heat-node-agent/agent.toml", f"{settings}time_limit = 2\n")
    host.exec("systemctl", "restart", UNIT)
    server.deploy(server.deployment("90-slow", config="#!/bin/sh\nsleep 6000 & sleep 6000\n"))
    assert "time limit" in str(signalled(server, "90-slow")["deploy_status_code"])
    host.wait_for(lambda: host.sh("pgrep -c -x sleep || :").strip() == "0", what="the end of the whole process group")


def test_the_agent_is_the_hook_of_the_usual_groups_itself(hosts, signal_server):
    """No hook is in the image, and nothing of the replaced tools."""
    server = signal_server()
    host = hosts("n1", ip=IP)
    host.write("/usr/libexec/os-apply-config/templates/etc/role", "{{role}}\n", 0o644)
    server.document["role"] = "compute"
    component = {"configs": [{"actions": ["CREATE"], "config": "#!/bin/sh\necho created\n", "tool": "script"},
                             {"actions": ["DELETE"], "config": "#!/bin/sh\necho deleted\n", "tool": "script"}]}
    server.deploy(
        server.deployment("10-file", group="json-file", config={"/srv/app/settings.json": {"b": [1, "x"], "a": None}}),
        server.deployment("20-apply", group="apply-config"),
        server.deployment("30-hiera", group="hiera", config={"hierarchy": ["common"], "datafiles": {"common": {"k": "v"}}}),
        server.deployment("40-component", group="component", config=component))
    start(host, server)
    answers = {name: signalled(server, name) for name in ("10-file", "20-apply", "30-hiera", "40-component")}
    assert {name: answer["deploy_status_code"] for name, answer in answers.items()} == dict.fromkeys(answers, 0), answers
    assert json.loads(host.read("/srv/app/settings.json")) == {"a": None, "b": [1, "x"]}
    assert host.read("/etc/role") == "compute\n"
    assert json.loads(host.read("/etc/puppet/hieradata/common.json")) == {"k": "v"} and "  - common\n" in host.read("/etc/puppet/hiera.yaml")
    assert answers["40-component"]["deploy_stdout"] == "created\n"


def test_a_script_outlives_a_restart_of_the_agent_and_is_answered_once(hosts, signal_server):
    server = signal_server()
    host = hosts("n1", ip=IP)
    server.deploy(server.deployment("long", config="#!/bin/sh\necho begin >>/var/tmp/ran\nwhile [ ! -e /run/go ]; do sleep 0.1; done\necho end >>/var/tmp/ran\n"))
    start(host, server)
    host.wait_for(lambda: host.exists("/var/tmp/ran"))
    host.exec("systemctl", "restart", UNIT)
    host.reported("DeploymentReattached")
    host.exec("systemctl", "kill", "-s", "KILL", UNIT)
    host.wait_for(lambda: len({e["_PID"] for e in host.journal(HNA_EVENT="DeploymentReattached")}) == 2, what="a second agent that takes it up")
    assert not server.signals("long")
    host.write("/run/go", "")
    assert signalled(server, "long")["deploy_status_code"] == 0
    assert host.read("/var/tmp/ran") == "begin\nend\n"


def test_a_power_cut_in_a_script_is_reported_as_interrupted_and_it_does_not_run_again(hosts, signal_server):
    server = signal_server()
    host = hosts("n1", ip=IP)
    server.deploy(server.deployment("cut", config="#!/bin/sh\necho ran >>/var/tmp/ran; sync\nsleep 600\n"))
    start(host, server)
    host.wait_for(lambda: host.read("/var/tmp/ran") == "ran\n")
    host.cut()
    host.boot()
    assert "interrupted" in str(signalled(server, "cut")["deploy_status_code"])
    assert host.read("/var/tmp/ran") == "ran\n"


def test_a_signal_is_sent_until_it_is_taken(hosts, signal_server):
    server = signal_server()
    host = hosts("n1", ip=IP)
    server.answer(503, times=2, method="POST")
    server.answer(close=True, times=1, method="POST")
    server.deploy(server.deployment("d", config="#!/bin/sh\necho out\n"))
    start(host, server)
    assert signalled(server, "d")["deploy_stdout"] == "out\n"
    tried = server.signals("d")
    # Where an answer comes too late it is sent once more.
    assert [t.status for t in tried][:4] == [503, 503, 0, 200] and {t.status for t in tried[3:]} == {200} and len({t.body for t in tried}) == 1
    # Between two tries lies a look at the metadata.
    polls = [p.time for p in server.polls()]
    for before, after in zip(tried, tried[1:]):
        assert any(before.time < at < after.time for at in polls)


def test_a_result_of_before_a_restart_is_not_sent_for_something_newer(hosts, signal_server):
    server = signal_server()
    host = hosts("n1", ip=IP)
    old = server.deployment("d", config="#!/bin/sh\ntouch /run/begun\nwhile [ ! -e /run/go ]; do sleep 0.1; done\necho old\n")
    server.deploy(old)
    start(host, server)
    host.wait_for(lambda: host.exists("/run/begun"))
    # The agent is away while the script ends and Heat asks for something newer of the same resource.
    host.exec("systemctl", "stop", UNIT)
    host.write("/run/go", "")
    host.wait_for(lambda: host.sh("ls /var/lib/heat-node-agent/work/*/result.json", check=False))
    server.document["deployments"] = [server.deployment("d", config="#!/bin/sh\necho new\n", action="UPDATE")]
    server.publish()
    host.exec("systemctl", "start", UNIT)
    assert signalled(server, "d")["deploy_stdout"] == "new\n"
    assert {s.json()["deploy_stdout"] for s in server.signals("d")} == {"new\n"}


def test_a_result_is_not_sent_for_what_heat_moved_on_to_since_the_last_poll(hosts, signal_server):
    server = signal_server()
    host = hosts("n1", ip=IP)
    old = server.deployment("d", config="#!/bin/sh\ntouch /run/begun\nwhile [ ! -e /run/go ]; do sleep 0.1; done\necho old\n")
    server.deploy(old)
    # Long enough that no poll of the usual pace falls between the change and the end of the script.
    start(host, server, "polling_interval = 600\nmin_polling_interval = 600\n")
    host.wait_for(lambda: host.exists("/run/begun"))
    polled = len(server.polls())
    server.document["deployments"] = [server.deployment("d", config="#!/bin/sh\necho new\n", action="UPDATE")]
    server.publish()
    host.write("/run/go", "")
    assert signalled(server, "d")["deploy_stdout"] == "new\n"
    assert {s.json()["deploy_stdout"] for s in server.signals("d")} == {"new\n"}
    # Asked at once when the old one ended, and once more when the new one did.
    assert len([p for p in server.polls()[polled:] if p.time < server.signals("d")[0].time]) == 2


def test_mistakes_are_reported_while_a_long_script_runs(hosts, signal_server):
    server = signal_server()
    host = hosts("n1", ip=IP)
    wait = {"WAIT_HANDLE": json.dumps({"alarm_url": server.signal_url("handle", kind="waitcondition")})}
    server.deploy(server.deployment("10-long", config="#!/bin/sh\nwhile [ ! -e /run/go ]; do sleep 0.1; done\n"),
                  server.deployment("20-node", group="kubernetes-node", inputs=wait | {"KUBE_NODE_IP": "nowhere"}),
                  server.deployment("30-after", config="#!/bin/sh\ntouch /run/after\n"))
    start(host, server)
    assert "KUBE_NODE_IP" in str(signalled(server, "20-node")["deploy_status_code"])
    handle = signalled(server, "handle")
    assert handle["status"] == "FAILURE" and "KUBE_NODE_IP" in handle["reason"]
    # What is not wrong keeps its turn.
    assert not server.signals("10-long") and not host.exists("/run/after")
    host.write("/run/go", "")
    assert signalled(server, "30-after")["deploy_status_code"] == 0


def test_an_update_during_a_bring_up_is_taken_at_once(hosts, signal_server):
    server = signal_server()
    host = hosts("n1", ip=IP, volumes={"vdb": ("2G", VDB), "vdc": ("1G", VDC)})
    wrong = NODE | {"ETCD_VOLUME": "00000000-1111-4222-8333-444455556666"}
    server.deploy(server.deployment("node", group="kubernetes-node", inputs=wrong))
    start(host, server)
    host.reported("VolumeWaiting")
    server.document["deployments"] = [server.deployment("node", group="kubernetes-node", inputs=NODE, action="UPDATE")]
    server.publish()
    assert signalled(server, "node")["deploy_status_code"] == 0
    assert host.sh("findmnt -no SOURCE /var/lib/etcd").strip()


def test_a_full_disk_loses_nothing(hosts, signal_server):
    server = signal_server()
    host = hosts("n1", ip=IP)
    # A state directory of its own, small, filled while the script runs.
    host.sh("mkdir -p /var/lib/heat-node-agent && mount -t tmpfs -o size=1m,mode=700 tmpfs /var/lib/heat-node-agent")
    server.deploy(server.deployment("d", config="#!/bin/sh\ntouch /run/begun\nwhile [ ! -e /run/go ]; do sleep 0.1; done\nhead -c 100000 /dev/zero | tr '\\0' x\n"))
    start(host, server)
    host.wait_for(lambda: host.exists("/run/begun"))
    host.sh("head -c 900000 /dev/zero >/var/lib/heat-node-agent/ballast || :")
    host.write("/run/go", "")
    host.wait_for(lambda: not host.sh("systemctl list-units --no-legend 'heat-deployment-*'").strip())
    host.sh("rm /var/lib/heat-node-agent/ballast")
    body = signalled(server, "d")
    # The result itself may have found no room: then Heat gets that as the result, and the script did not run twice.
    assert body["deploy_status_code"] == 0 or "interrupted" in str(body["deploy_status_code"])


def test_without_room_for_its_files_a_script_begins_once_there_is_some(hosts, signal_server):
    server = signal_server()
    host = hosts("n1", ip=IP)
    place = "/var/lib/heat-config/heat-config-script"
    host.sh(f"mkdir -p {place} && mount -t tmpfs -o size=16k,mode=700 tmpfs {place}; head -c 16384 /dev/zero >{place}/ballast || :")
    for name in ("d", "e"):
        server.deploy(server.deployment(name, config=f"#!/bin/sh\necho {name} >>/run/ran\n"))
    start(host, server)

    def tries():
        return [entry for entry in host.journal(**{"_SYSTEMD_UNIT": UNIT}) if "no space for its files" in entry.get("HNA_CAUSE", "")]
    # More often than a job may end before its program for reasons that nobody knows.
    host.wait_for(lambda: len(tries()) > 5, what="more than five tries")
    page = host.exec("heat-node-agent", "status", check=False).stdout
    assert "no space for its files" in page and "df -h" in page, page
    assert not server.signals() and not host.exists("/run/ran")
    host.sh(f"rm {place}/ballast")
    for name in ("d", "e"):
        assert signalled(server, name)["deploy_status_code"] == 0
    assert host.read("/run/ran") == "d\ne\n"


def test_a_node_comes_up_waits_for_late_volumes_and_repairs_itself_only_when_asked(hosts, signal_server):
    server = signal_server()
    host = hosts("n1", ip=IP, volumes={"vdc": ("1G", VDC)})
    host.sh(": >/dev/console")  # these hosts have no console: a file takes what would go to it
    wait = {"WAIT_HANDLE": json.dumps({"alarm_url": server.signal_url("handle", kind="waitcondition")})}
    server.deploy(server.deployment("node", group="kubernetes-node", inputs=NODE | wait, outputs=["node_name", "timings"]))
    start(host, server)
    host.reported("VolumeWaiting")
    # What does not depend on the absent volume goes on: etcd has its own.
    host.reported("GatePassed", HNA_GATE="etcd")
    assert not server.signals()
    host.attach("vdb", "2G", VDB)
    assert signalled(server, "node")["deploy_status_code"] == 0
    handle = signalled(server, "handle")
    assert (handle["status"], handle["id"], handle["data"]["node_name"]) == ("SUCCESS", "node-1", "node-1")
    assert server.signals("handle")[0].method == "PUT"
    # journalctl -u etcd shows what the agent did to it; the console has a line a phase.
    host.wait_for(lambda: "GatePassed" in [e.get("HNA_EVENT") for e in host.journal(unit="etcd.service")])
    for phase in ("settings", "plan", "volume", "gates", "steady"):
        host.wait_for(lambda: f"heat-node-agent phase={phase} state=" in host.read("/dev/console"), what=f"the console's line of {phase}")
    # Every line of the agent has a MESSAGE_ID that the catalog knows.
    known = set(re.findall(r"\b[0-9a-f]{32}\b", host.sh("journalctl --list-catalog")))
    lines = [e for e in host.journal(**{"_SYSTEMD_UNIT": UNIT}) if e.get("SYSLOG_IDENTIFIER") == "heat-node-agent"]
    assert lines and all(e.get("MESSAGE_ID") in known for e in lines), [e for e in lines if e.get("MESSAGE_ID") not in known]

    what_fails_on_a_steady_node_is_seen_and_its_end_too(host, server)

    # Somebody stops etcd: it is said, and with DRIFT=repair it comes back.
    host.exec("systemctl", "stop", "etcd.service")
    host.exec("systemctl", "kill", "-s", "HUP", UNIT)
    host.reported("NodeDrift")
    assert host.exec("heat-node-agent", "plan", check=False).returncode == 2
    assert not host.is_active("etcd.service")
    host.wait_for(lambda: host.exec("heat-node-agent", "status", check=False).returncode == 2, what="the drift on the status page")
    server.forget()
    server.document["deployments"] = [server.deployment("node", group="kubernetes-node", inputs=NODE | wait | {"DRIFT": "repair"}, action="UPDATE")]
    server.publish()
    assert signalled(server, "node")["deploy_status_code"] == 0 and host.is_active("etcd.service")
    host.exec("systemctl", "stop", "etcd.service")
    host.exec("systemctl", "kill", "-s", "HUP", UNIT)
    host.wait_for(lambda: host.is_active("etcd.service"))


def what_fails_on_a_steady_node_is_seen_and_its_end_too(host, server):
    """docker hangs and etcd dies again and again: status, exit code, status.json, explain, systemd's line, the console and the journal say
    so, nothing is repaired, and Heat is not told again."""
    def status() -> tuple[int, dict]:
        done = host.exec("heat-node-agent", "status", "--json", check=False)
        return done.returncode, json.loads(done.stdout)

    def component(name: str) -> dict:
        return next((one for one in status()[1]["node"]["components"] if one["name"] == name), {})

    def is_healthy() -> bool:
        code, page = status()
        components = page["node"]["components"]
        return code == 0 and bool(components) and {one["state"] for one in components} == {"healthy"}
    host.wait_for(is_healthy, what="a node all of whose components are healthy")
    signals = len(server.signals())
    host.exec("systemctl", "kill", "-s", "STOP", "docker.service")
    etcd = host.show("etcd.service", "MainPID")["MainPID"]
    for restarts in ("1", "2", "3"):
        host.exec("systemctl", "kill", "-s", "KILL", "etcd.service")
        host.wait_for(lambda: host.show("etcd.service", "NRestarts", "ActiveState") == {"NRestarts": restarts, "ActiveState": "active"})

    def is_looping() -> bool:
        """Half a minute after the last restart it is over: all of it is looked at in one go."""
        code, page = status()
        etcd = next((one for one in page["node"]["components"] if one["name"] == "etcd"), {})
        assert etcd["problem"] == "crash-looping (3 restarts)" and etcd["state"] == "failed" and "(last lines of etcd.service: " in etcd["cause"], etcd
        assert code == 2 and page["summary"].startswith("DEGRADED: etcd crash-looping (3 restarts)"), page["summary"]
        return host.show(UNIT, "StatusText")["StatusText"].startswith("DEGRADED: etcd")
    host.wait_for(is_looping, what="the crash loop in the status document")
    failures = host.reported("ComponentCrashLoops", HNA_UNIT="etcd.service")
    assert [e["HNA_CODE"] for e in failures] == ["HNA-0725"] and "crash-looping" in failures[0]["MESSAGE"], failures
    host.wait_for(lambda: "state=failed code=HNA-0725 unit=etcd.service" in host.read("/dev/console"), what="the console's line of the failure")

    host.wait_for(lambda: component("docker").get("problem", "") == "not answering", what="the hung docker")
    explained = host.exec("heat-node-agent", "explain", check=False)
    assert explained.returncode == 1 and "component docker: not answering" in explained.stdout, explained.stdout
    assert host.is_active("docker.service") and host.show("etcd.service", "MainPID")["MainPID"] not in ("0", etcd)

    host.exec("systemctl", "kill", "-s", "CONT", "docker.service")
    host.wait_for(is_healthy, what="healthy components again")
    host.reported("ComponentRecovered", HNA_UNIT="etcd.service")
    host.reported("ComponentRecovered", HNA_UNIT="docker.service")
    assert len(server.signals()) == signals and not host.journal(HNA_EVENT="UnitRestarted", HNA_UNIT="docker.service")


def test_a_worker_comes_up_without_etcd(hosts, signal_server):
    server = signal_server()
    host = hosts("n1", ip=IP, volumes={"vdb": ("2G", VDB)})
    inputs = {"ROLE": "worker", "INSTANCE_NAME": "w-1", "KUBE_NODE_IP": IP, "KUBE_MASTER_IP": "10.77.0.9", "DOCKER_VOLUME": VDB,
              "CLUSTER_UUID": NODE["CLUSTER_UUID"]}
    server.deploy(server.deployment("node", group="kubernetes-node", inputs=inputs, outputs=["node_name"]))
    start(host, server)
    body = signalled(server, "node")
    assert (body["deploy_status_code"], body["node_name"]) == (0, "w-1")
    assert host.is_active("docker.service") and not host.is_active("etcd.service") and not host.exists("/etc/etcd/etcd.conf")


def test_without_room_for_overlay2_the_gate_says_so_at_its_deadline(hosts, signal_server):
    server = signal_server()
    host = hosts("n1", ip=IP)
    # Without a volume docker's store is on the host's own overlay, where it silently falls back to vfs.
    inputs = {"ROLE": "worker", "INSTANCE_NAME": "w-1", "KUBE_NODE_IP": IP, "CLUSTER_UUID": NODE["CLUSTER_UUID"], "WAIT_TIMEOUT": 90}
    reason = bring_up(host, server, inputs)
    assert "HNA-0" in reason and "docker" in reason, reason


def test_no_secret_leaves_its_place(hosts, signal_server):
    server = signal_server()
    host = hosts("n1", ip=IP)
    canary = "c4n4ry-5ecret-value"
    server.settings()  # the document is what the server gives
    server.document["os-collect-config"]["cfn"]["secret_access_key"] = canary + "-key"
    entry = server.deployment("d", config="#!/bin/sh\necho \"$deploy_password\" \"$deploy_signal_id\"\n", inputs={"deploy_password": canary + "-pw"})
    node = server.deployment("node", group="kubernetes-node", inputs=NODE | {"TRUSTEE_PASSWORD": canary + "-trustee", "KUBE_NODE_IP": "no"})
    server.deploy(entry, node)
    server.publish()
    start(host, server)
    body = signalled(server, "d")
    signalled(server, "node")
    assert canary not in json.dumps(body) and "Signature=" not in json.dumps(body)
    for what in (host.sh("journalctl -o export --no-pager | tr -cd '[:print:]\\n'"), host.read("/run/heat-node-agent/status.json"),
                 host.exec("heat-node-agent", "metadata").stdout, host.exec("heat-node-agent", "status", check=False).stdout,
                 host.sh("cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' || :"), host.sh("systemctl show 'heat-*'"), host.console()):
        assert canary not in what and "02nEKWQfhXQfCvZ" not in what
    assert canary in host.exec("heat-node-agent", "metadata", "--show-secrets").stdout
    modes = host.sh("find /var/lib/heat-node-agent /var/lib/heat-config -type f -perm /077 -printf '%p %m\\n'")
    assert modes == "", modes


def test_the_unit_is_sandboxed_and_orders_without_a_cycle(hosts):
    host = hosts("n1", ip=IP)
    host.install_agent()
    assert host.verified(UNIT) == ""
    host.exec("systemctl", "enable", "--now", UNIT)
    score = host.exec("systemd-analyze", "security", "--no-pager", UNIT).stdout.strip().splitlines()[-1]
    assert float(re.search(r"([\d.]+) ", score.split("exposure level for")[1].split(":")[1].strip() + " ")[1]) <= 2.7, score
    # No source yet: it says so, stays up, and ends when told to, without being killed.
    host.reported("NoSource")
    assert host.show(UNIT, "ActiveState", "SubState") == {"ActiveState": "active", "SubState": "running"}
    be_patient(host)
    host.exec("systemctl", "stop", UNIT)
    assert host.show(UNIT, "Result")["Result"] == "success"
    assert "NOT RUNNING" in host.exec("heat-node-agent", "status", check=False).stdout


def test_wrong_usage_and_wrong_settings_are_distinguished_from_failure(hosts):
    host = hosts("n1", ip=IP)
    host.install_agent()
    assert host.exec("heat-node-agent", "no-such-command", check=False).returncode == 64
    host.sh("mkdir -p /etc/heat-node-agent/agent.toml.d")
    host.write("/etc/heat-node-agent/agent.toml.d/10-bad.toml", "polling_intervall = 5\n[deploy\n")
    host.write("/etc/heat-node-agent/agent.toml.d/20-typo.toml", "polling_intervall = 5\n")
    verify = host.exec("heat-node-agent", "verify", check=False)
    assert verify.returncode == 1 and "10-bad.toml" in verify.stdout and "polling_interval" in verify.stdout, verify.stdout
    host.exec("systemctl", "start", UNIT)
    for event in ("SettingsFileSkipped", "SettingsUnknownKey"):
        host.reported(event)
    bad = host.exec("heat-node-agent", "run", "--once", "--settings", "/etc/heat-node-agent/agent.toml.d/10-bad.toml", check=False)
    assert bad.returncode == 64, bad


def test_examples_apply_and_plan_as_they_are_without_root(hosts):
    host = hosts("n1", ip=IP)
    host.install_agent()
    for example, written in (("master", "etc/containerd/config.toml"), ("minion", "etc/docker/daemon.json")):
        host.put({f"/var/tmp/{example}.json": (REPO / f"examples/{example}.json", 0o644)})
        as_nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
        host.sh(f"install -d -o 65534 /var/tmp/root-{example}")
        metadata = ["--metadata", f"/var/tmp/{example}.json", "--root", f"/var/tmp/root-{example}"]
        assert host.exec(*as_nobody, "heat-node-agent", "plan", *metadata, check=False).returncode == 2
        host.exec(*as_nobody, "heat-node-agent", "apply", *metadata)
        assert host.exists(f"/var/tmp/root-{example}/{written}")
        times = host.sh(f"find /var/tmp/root-{example} -printf '%p %i %T@\\n' | sort")
        host.exec(*as_nobody, "heat-node-agent", "apply", *metadata)
        assert host.sh(f"find /var/tmp/root-{example} -printf '%p %i %T@\\n' | sort") == times
        refused = host.exec("heat-node-agent", "apply", "--metadata", f"/var/tmp/{example}.json", "--root", "/", check=False)
        assert refused.returncode == 1
