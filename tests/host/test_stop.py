"""Scripts that hang and take no notice of SIGTERM: Heat replaces them, beside the daemon and while it is away, and the operator stops them."""

from lib.node import IP, UNIT, signalled, start, status_of

# One child in the background, another one in a session of its own.
HANGS = """#!/bin/bash
trap '' TERM
echo begun
sleep 9000 &
setsid sleep 9001 &
touch /run/$deploy_resource_name
while :; do sleep 1; done
"""


def begun(host, name: str):
    host.wait_for(lambda: host.exists(f"/run/{name}"), what=f"the beginning of {name}")
    host.wait_for(lambda: len(host.sh("pgrep -fx 'sleep 900[01]' || :").split()) == 2, what="its children")
    assert "activating" in host.sh("systemctl list-units --all --no-legend 'heat-deployment-*'")


def gone(host):
    """Nothing of it is left."""
    assert host.sh("pgrep -fx 'sleep 900[01]' || :") == ""
    assert host.sh("pgrep -f 'heat-config-scrip[t]/' || :") == ""


def replace(server, name: str) -> str:
    """Heat asks for something newer of the resource; the id of what it had asked for."""
    [old] = [d["id"] for d in server.document["deployments"] if d["name"] == name]
    server.forget()
    newer = server.deployment(name, config=f"#!/bin/sh\necho new {name}\n", action="UPDATE")
    server.document["deployments"] = [d for d in server.document["deployments"] if d["name"] != name] + [newer]
    server.publish()
    return old


def record(host, id: str) -> dict:
    status = status_of(host)
    [one] = [d for d in status["deployments"] if d["id"] == id]
    return one


def test_a_hung_script_is_ended_when_heat_replaced_it_and_by_order_of_the_operator(hosts, signal_server):
    server = signal_server()
    host = hosts("n1", ip=IP)
    server.deploy(server.deployment("one", config=HANGS))
    start(host, server, "polling_interval = 2\n[deploy]\nreplaced_grace = 3\n")
    begun(host, "one")
    [id] = [d["id"] for d in server.document["deployments"]]
    page = host.exec("heat-node-agent", "status", check=False).stdout
    words = " ".join(page.split())
    assert "has been running for " in words and f"`heat-node-agent stop {id}` ends it now" in words, page

    # Heat replaces it: every process of its unit goes, the newer one runs, and no signal speaks of the old one.
    old = replace(server, "one")
    assert old == id
    [said] = host.reported("DeploymentReplaced")
    assert f"heat-node-agent stop {old}" in said["HNA_REMEDY"]
    assert signalled(server, "one")["deploy_stdout"] == "new one\n"
    gone(host)
    assert {s.json()["deploy_stdout"] for s in server.signals("one")} == {"new one\n"}
    host.wait_for(lambda: record(host, old)["state"] == "signalled", what="its end on the page")
    assert "Heat replaced it by" in record(host, old)["note"]
    assert host.reported("ReplacedDeploymentStopped")

    # The same while the agent is away.
    server.deploy(server.deployment("two", config=HANGS))
    begun(host, "two")
    host.exec("systemctl", "stop", UNIT)
    old = replace(server, "two")
    host.exec("systemctl", "start", UNIT)
    assert signalled(server, "two")["deploy_stdout"] == "new two\n"
    gone(host)
    # The same once more where an answer came too late.
    assert len({s.body for s in server.signals("two")}) == 1
    host.wait_for(lambda: record(host, old)["state"] == "signalled", what="its end on the page")

    # By order, beside the daemon and without it: Heat, which still waits, hears of a failure.
    server.deploy(server.deployment("three", config=HANGS), server.deployment("after", config="#!/bin/sh\necho after\n"))
    begun(host, "three")
    assert "every process of its unit is killed" in host.exec("heat-node-agent", "stop", "three").stdout
    assert "stopped by the operator after" in str(signalled(server, "three")["deploy_status_code"])
    gone(host)
    assert signalled(server, "after")["deploy_stdout"] == "after\n"
    again = host.exec("heat-node-agent", "stop", "after", check=False)
    assert again.returncode == 1 and "has already ended" in again.stderr

    server.deploy(server.deployment("four", config=HANGS))
    begun(host, "four")
    host.exec("systemctl", "stop", UNIT)
    assert "the daemon is down" in host.exec("heat-node-agent", "stop", "four").stdout
    gone(host)
    assert not server.signals("four")
    host.exec("systemctl", "start", UNIT)
    assert "stopped by the operator after" in str(signalled(server, "four")["deploy_status_code"])
    assert {s.json()["deploy_stdout"] for s in server.signals("one") + server.signals("two")} <= {"new one\n", "new two\n"}
