"""The commands, beside a running daemon and without one; their documents against docs/schemas."""
import json
import re

import jsonschema
from lib.common import REPO, TESTHOST, run
from lib.node import IP, NODE, UNIT, VDB, signalled, start

WORKER = {"ROLE": "worker", "INSTANCE_NAME": "w-1", "KUBE_NODE_IP": IP, "CLUSTER_UUID": NODE["CLUSTER_UUID"], "DOCKER_VOLUME": VDB,
          "WAIT_TIMEOUT": 600}
SECRET = "canary-password"


def hna(host, *args, code: int = 0, **options):
    """One command of the agent; its standard output, or with a code other than 0 both streams."""
    done = host.exec("heat-node-agent", *args, check=False, **options)
    assert done.returncode == code, f"{args}: {done.returncode}\n{done.stdout}{done.stderr}"
    assert SECRET not in done.stdout + done.stderr, args
    return done.stdout if code == 0 else done.stdout + done.stderr


def document(host, command: str, *args, code: int = 0) -> dict:
    """A --json document, valid by its schema."""
    schema = json.loads((REPO / f"docs/schemas/{command}.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    value = json.loads(host.exec("heat-node-agent", command, "--json", *args, check=False).stdout)
    jsonschema.Draft202012Validator(schema).validate(value)
    assert SECRET not in json.dumps(value)
    hna(host, command, "--json", *args, code=code)
    return value


def first(tree: list[dict]) -> list[str]:
    """Names from the root to the condition that explain marks."""
    for one in tree:
        if one.get("first"):
            return [one["name"]]
        if below := first(one.get("parts", [])):
            return [one["name"], *below]
    return []


def test_every_command_beside_the_daemon_and_without_it(hosts, signal_server, tmp_path):
    server = signal_server()
    host = hosts("n1", ip=IP, volumes={"vdb": ("1G", VDB)})
    host.sh("mkfs.ext4 -q -L old /dev/vdb; sync")
    host.install_agent()
    nothing_ever_ran(host)
    ids = begun(host, server)
    what_runs_is_left_alone(host, server, ids)
    run_again_once_by_order(host, server, ids)
    a_failed_node_is_explained_and_tried_again(host, server, ids)
    certificates_of_a_node_without_any(host)
    what_was_collected(host)
    what_others_read(host)
    what_is_for_root_alone(host)
    every_mistake_at_once(host, server)
    watch = a_failing_source_is_seen(host, server, tmp_path / "watched")
    without_the_daemon(host, server, ids, watch)
    forgotten_and_ordered_ones_run(host, server, ids)


def nothing_ever_ran(host):
    """Each command says so; usage is 64."""
    assert "FAILED at daemon" in hna(host, "explain", code=1)
    assert hna(host, "status", code=2).startswith("NOT RUNNING: the agent has not run since boot\n")
    hna(host, "status", "--wait=0", code=75)
    assert "unrecognized subcommand" in hna(host, "expalin", code=64)
    assert "unexpected argument" in hna(host, "status", "--jsn", code=64)
    forged = host.exec("heat-node-agent", "status", "--x\x1b[2Jy", check=False)
    assert forged.returncode == 64 and "\x1b" not in forged.stderr and "\\u{1b}[2Jy" in forged.stderr, forged.stderr


def begun(host, server) -> list[str]:
    """Four deployments, of which the second runs on; their ids."""
    count = "#!/bin/sh\necho ran >>/var/tmp/ran; echo out $n; echo $deploy_password; n=$(wc -l </var/tmp/ran); exit $((2 - n))\n"
    long = "#!/bin/sh\necho begun; while [ ! -e /run/go ]; do sleep 0.1; done; echo done\n"
    server.deploy(server.deployment("count", config=count, inputs={"n": 5, "deploy_password": SECRET}),
                  server.deployment("twin", config=long), server.deployment("twin", config="#!/bin/sh\necho second\n", signal="NO_SIGNAL"),
                  server.deployment("node", group="kubernetes-node", inputs=WORKER))
    ids = [d["id"] for d in server.document["deployments"]]
    start(host, server)
    host.wait_for(lambda: "begun" in hna(host, "logs", ids[1]))
    return ids


def what_runs_is_left_alone(host, server, ids: list[str]):
    """What is meant must be clear."""
    assert "is running now" in hna(host, "rerun", ids[1], code=1)
    assert "is running now" in hna(host, "forget", ids[1][:8], code=1)
    assert "no deployment" in hna(host, "forget", "nobody", code=1)
    assert hna(host, "logs", "count").splitlines() == ["out 5", "******"]
    # The page is written a moment after the next one has begun.
    host.wait_for(lambda: first(document(host, "explain", code=1)["conditions"]) == ["deployments", "count"], what="a failure on the page")
    tree = document(host, "explain", code=1)
    assert [c["state"] for c in tree["conditions"] if c["name"] in ("settings", "daemon", "bus", "sources")] == ["ok"] * 4
    assert signalled(server, "count")["deploy_status_code"].startswith("1 (HNA-0404 exit status 1; last output: ")


def run_again_once_by_order(host, server, ids: list[str]):
    """Run once, signalled once more; the twin goes on beside it."""
    server.forget()
    follow = host.popen("heat-node-agent", "logs", "--follow", ids[1], stdout=-1, text=True)
    assert "is run again" in hna(host, "rerun", "count")
    assert "waits for its turn" in hna(host, "rerun", "count", code=1)
    host.write("/run/go", "")
    assert signalled(server, "count")["deploy_status_code"] == 0
    assert follow.communicate(timeout=300)[0] == "begun\ndone\n"
    assert host.read("/var/tmp/ran") == "ran\nran\n"
    assert "2 deployments match" in hna(host, "rerun", "twin", code=1)
    host.wait_for(lambda: hna(host, "logs", "twin") == "second\n", what="the second twin")  # its turn comes after count's
    # Its last line is there before its end is.
    host.wait_for(lambda: all(i in hna(host, "logs") for i in ids), what="a record of each deployment")
    nothing = hna(host, "logs", "kubelet", code=1)
    assert "there is no deployment and no component \"kubelet\"" in nothing and "runtime (docker)" in nothing and "count" in nothing
    for name in ("docker", "runtime", "docker.service"):
        # journalctl finds nothing while journald replaces its file.
        host.wait_for(lambda one=name: "]: enabled docker.service\n" in hna(host, "logs", one), what=f"the journal of {name}")
    assert "heat-node-agent[" in hna(host, "logs", "agent", "--lines", "3")
    # A program's own words about a secret that the metadata masks.
    host.exec("systemd-run", "--wait", "--quiet", "--unit", "cloud-final", "echo", f"tok {SECRET} end")
    host.wait_for(lambda: any(line.endswith("tok ****** end") for line in hna(host, "logs", "cloud-final").splitlines()), what="the words of cloud-final")
    host.exec("systemd-run", "--quiet", "--unit", "following", "--property=StandardOutput=file:/run/followed",
              "heat-node-agent", "logs", "--follow", "cloud-final")
    host.wait_for("grep -q 'tok .* end' /run/followed")
    host.exec("systemd-run", "--wait", "--quiet", "--unit", "cloud-final", "echo", f"later {SECRET} end")
    host.wait_for("grep -q 'later .* end' /run/followed")
    assert host.is_active("following.service") and SECRET not in host.read("/run/followed"), host.read("/run/followed")
    host.exec("systemctl", "stop", "following.service")
    assert "shown whole" in hna(host, "logs", "--lines", "3", "count", code=1)


def a_failed_node_is_explained_and_tried_again(host, server, ids: list[str]):
    """A foreign volume: the step, the cause and the remedy in a page that fits the screen."""
    assert "HNA-0306" in str(signalled(server, "node")["deploy_status_code"])
    hna(host, "status", "--wait=300", code=1)
    page = hna(host, "explain", code=1)
    assert first(document(host, "explain", code=1)["conditions"]) == ["deployments", "node", "node", "volume runtime"], page
    assert "=> FAILED" in page and "ext4" in page and "remedy: " in page and 5 <= len(page.splitlines()) <= 25, page
    assert document(host, "status", code=2)["node"]["state"] == "rejected"
    what_a_terminal_gets(host)
    # Put right and tried again, without a new deployment.
    host.sh("wipefs -qa /dev/vdb; blkdiscard -fz /dev/vdb; sync")
    server.forget()
    hna(host, "rerun", ids[3])
    assert hna(host, "status", "--wait=600") == "OK: every condition is met\n"
    assert signalled(server, "node")["deploy_status_code"] == 0
    assert document(host, "explain")["failed"] is False
    status = document(host, "status")
    assert {s["state"] for s in status["node"]["steps"]} == {"ok"} and status["node"]["generation"] == 1
    assert "=>" not in hna(host, "explain")


def certificates_of_a_node_without_any(host):
    """CAs are made anywhere, by anybody, once."""
    assert document(host, "certificates") == {"schema_version": 1, "summary": "the node's parameters require no certificates", "ok": True,
                                              "first_expiry": None, "rotation": None, "pending_restarts": [], "certificates": []}
    assert "no CA rotation is in progress" in hna(host, "certificates", "rotate", code=1)
    new_ca = ("runuser", "-u", "nobody", "--", "heat-node-agent", "certificates", "new-ca", "--out", "/var/tmp/ca")
    assert "/var/tmp/ca/parameters.yaml" in host.exec(*new_ca).stdout
    assert "PRIVATE KEY" in host.read("/var/tmp/ca/parameters.yaml")
    assert host.sh("stat -c %a /var/tmp/ca /var/tmp/ca/ca.key /var/tmp/ca/ca.crt").split() == ["700", "600", "644"]
    again = host.exec(*new_ca, check=False)
    assert again.returncode == 1 and "would be overwritten" in again.stderr


def what_was_collected(host):
    assert hna(host, "metadata", "--key", "deployments.0.name") == "count\n"
    assert hna(host, "metadata", "--key", "os-collect-config.cfn.stack_name", "--source", "cfn") == "stack\n"
    assert "it has os-collect-config" in hna(host, "metadata", "--key", "os-collect-confi.cfn", code=1)
    assert "there is no source" in hna(host, "metadata", "--source", "ec2", code=1)
    assert document(host, "metadata", "--key", "deployments.-1.group")["value"] == "kubernetes-node"
    assert SECRET in host.exec("heat-node-agent", "metadata", "--show-secrets").stdout


def what_a_terminal_gets(host):
    """Its width, and colours where nothing speaks against them; a pipe gets neither."""
    def shown(columns: int, *command: str) -> str:
        words = f"stty cols {columns}; {' '.join(command)}"
        return host.sh(f"script -qec '{words}' /dev/null || :").replace("\r", "")
    color = "\x1b["
    wide, narrow = (shown(columns, "TERM=xterm NO_COLOR=1 heat-node-agent status") for columns in (200, 90))
    assert max(map(len, narrow.splitlines())) <= 90 < max(map(len, wide.splitlines()))
    assert color not in wide + narrow + host.sh("TERM=xterm heat-node-agent status || :")
    assert color in shown(200, "TERM=xterm heat-node-agent status")
    assert color not in shown(200, "TERM=dumb heat-node-agent status")
    assert ", pid " in hna(host, "status", "-v", code=host.exec("heat-node-agent", "status", check=False).returncode)
    assert ", pid " not in wide


def what_others_read(host):
    """A program, Prometheus, and whoever helps, who get no secret."""
    plan = document(host, "plan")
    assert (plan["changes"], plan["summary"]) == (False, "Nothing to do")
    assert hna(host, "repair", "--dry-run") == "nothing differs from the node's parameters\n"
    metrics = host.read("/run/heat-node-agent/heat-node-agent.prom")
    assert 'heat_node_agent_node_state{state="applied"} 1\n' in metrics and "heat_node_agent_signals_waiting 0\n" in metrics
    run(TESTHOST / "promtool", "check", "metrics", input=metrics)
    host.sh(f"printf '10.9.9.9 {SECRET}\\n' >>/etc/hosts; printf '# password=hidden-as-well\\n' >>/etc/hosts")
    hna(host, "support", "--out", "/var/tmp/support.tar")
    assert "exists" in hna(host, "support", "--out", "/var/tmp/support.tar", code=1)
    assert host.sh("stat -c %a /var/tmp/support.tar").strip() == "600"
    names = host.sh("tar -tf /var/tmp/support.tar").replace("heat-node-agent-support/", "").split()
    assert {"CONTENTS", "status.json", "metadata.json", "network/hosts", "journal/docker.service.txt", "journal/heat-node-agent.service.txt"} <= set(names)
    text = host.sh("tar -xOf /var/tmp/support.tar")
    assert SECRET not in text and "hidden-as-well" not in text and "10.9.9.9 ******" in text


def what_is_for_root_alone(host):
    for command in (("status",), ("explain",)):
        host.exec("runuser", "-u", "nobody", "--", "heat-node-agent", *command)
    for command in (("logs",), ("rerun", "x"), ("forget", "x"), ("metadata",), ("certificates",), ("certificates", "rotate"),
                    ("repair",), ("repair", "--dry-run"), ("support",)):
        said = host.exec("runuser", "-u", "nobody", "--", "heat-node-agent", *command, check=False)
        assert (said.returncode, said.stderr.count("\n")) == (1, 1) and "as root" in said.stderr, said.stderr


def every_mistake_at_once(host, server):
    """A skipped drop-in is one."""
    assert "no mistakes" in hna(host, "verify")
    host.sh("mkdir -p /etc/heat-node-agent/agent.toml.d")
    host.write("/etc/heat-node-agent/agent.toml", "polling_interval = 0\n")
    host.write("/etc/heat-node-agent/agent.toml.d/1.toml", "[deploy]\nkeep = 'many'\n")
    bad = dict(server.deployment("bad"), outputs="none")
    wrong = WORKER | {"KUBE_NODE_IP": "nowhere", "DOCKER_VOLUME": "vdb", "TLS_DISABLD": "True", "HTTP_PROXY": SECRET}
    wrong |= {"WAIT_HANDLE": f"ftp://{SECRET}"}
    host.write("/tmp/m.json", json.dumps({"deployments": [bad, server.deployment("n", group="kubernetes-node", inputs=wrong)]}), 0o600)
    found = {m["key"] for m in document(host, "verify", "--metadata", "/tmp/m.json", code=1)["mistakes"]}
    assert found >= {"polling_interval", "deploy.keep", "outputs", "KUBE_NODE_IP", "DOCKER_VOLUME", "TLS_DISABLD", "WAIT_HANDLE"}, found
    assert "FAILED at settings" in hna(host, "explain", code=64)
    host.remove("/etc/heat-node-agent/agent.toml")


def a_failing_source_is_seen(host, server, watched):
    """By who watches, whose process this is; an order that nobody understands is quarantined and logged."""
    host.write("/var/lib/heat-node-agent/requests/1.json", '{"schema": 1, "order": "reboot", "deployment": "x"}')
    host.reported("RequestUnreadable")
    host.wait_for(lambda: host.exists("/var/lib/heat-node-agent/requests/1.unreadable"))
    with open(watched, "w") as pages:
        watch = host.popen("heat-node-agent", "status", "--watch", stdout=pages)
    host.wait_for(lambda: ", running for " in watched.read_text(), what="the first page")
    server.stop()
    host.exec("systemctl", "reload", UNIT)
    host.wait_for(lambda: "cfn     FAILED" in watched.read_text(), what="a page of the source that fails")
    tree = document(host, "explain", code=1)
    assert first(tree["conditions"]) == ["sources", "cfn"], tree["summary"]
    document(host, "status", code=2)
    return watch


def without_the_daemon(host, server, ids: list[str], watch):
    """The same page, and orders are carried out by the command itself, before the daemon runs again."""
    host.exec("systemctl", "stop", UNIT)
    host.sh("pkill -x heat-node-agent")  # the one that watches: it alone is left
    watch.wait(300)
    assert first(document(host, "explain", code=1)["conditions"]) == ["daemon"]
    document(host, "status", code=2)
    host.sh("mv /run/heat-node-agent/status.json /run/saved")
    assert "twin" in hna(host, "status", "-v", code=2) and "FAILED at daemon" in hna(host, "explain", code=1)
    assert document(host, "status", code=2)["agent"]["pid"] == 0
    assert "the daemon is down" in hna(host, "rerun", ids[2])
    assert "is forgotten" in hna(host, "forget", ids[0])
    assert not host.exists(f"/var/lib/heat-config/deployed/{ids[0]}.json")
    host.remove("/run/go")
    server.start()
    server.forget()
    host.exec("systemctl", "start", UNIT)


def forgotten_and_ordered_ones_run(host, server, ids: list[str]):
    """The forgotten one as a new one, the other once more, and nothing else does."""
    assert signalled(server, "count")["deploy_status_code"] != 0
    host.reported("DeploymentStarted", 2, HNA_DEPLOYMENT_ID=ids[2])
    host.wait_for(lambda: hna(host, "logs", ids[2]) == "second\n")
    assert host.read("/var/tmp/ran") == "ran\n" * 3
    assert len(host.journal(HNA_EVENT="DeploymentStarted", HNA_DEPLOYMENT_ID=ids[1])) == 1
    assert not re.findall(SECRET, "\n".join(e.get("MESSAGE", "") for e in host.journal(unit=UNIT)))
    left = host.sh("ls /var/lib/heat-node-agent/requests").split()
    assert left == ["1.unreadable"], left
