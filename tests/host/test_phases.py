"""`[legacy] phases`: the daemon runs the image's phases of os-refresh-config, by links to the agent and programs as diskimage-builder's elements lay them out."""

from lib.node import IP, UNIT, signalled, start, status_of

BASE = "/usr/libexec/os-refresh-config"
RAN = "/var/tmp/phases"
# The second one fails, or waits, as long as the test wants it to.
SCRIPTS = {
    "pre-configure.d/10-count": f"echo pre >>{RAN}\n",
    "configure.d/20-os-apply-config": "exec os-apply-config\n",
    "post-configure.d/10-check": "[ ! -e /run/broken ] || { echo no such package >&2; exit 3; }\ntouch /run/checked; while [ -e /run/hold ]; do sleep 0.1; done\n",
    "migration.d/90-end": f"echo \"end $(cat /etc/role)\" >>{RAN}\n",
}
TEMPLATES = {"etc/role": "{{role}}\n", "var/run/heat-config/heat-config": "{{deployments}}\n"}
# What a deployment finds: how often it ran, for which role, and whether the phases run beside it.
LOOK = "#!/bin/sh\necho \"$deploy_resource_name $(cat /etc/role) $(systemctl is-active heat-phases.service)\" >>/var/tmp/deployed\n"
SETTINGS = "polling_interval = 2\n[legacy]\nphases = true\n"


def image(host):
    host.put({f"{BASE}/{name}": (f"#!/bin/sh\nset -e\n{text}".encode(), 0o755) for name, text in SCRIPTS.items()}
             | {f"/usr/libexec/os-apply-config/templates/{name}": (text.encode(), 0o644) for name, text in TEMPLATES.items()})
    host.sh(f"ln -s heat-node-agent /usr/bin/os-apply-config; ln -s /usr/bin/heat-node-agent {BASE}/configure.d/55-heat-config")


def role(server, role: str, *deployments: dict):
    """Heat's metadata change."""
    server.document["role"] = role
    server.deploy(*deployments)


def polled(host, server):
    """What was answered twice since was acted on once."""
    since = len(server.polls())
    host.wait_for(lambda: len(server.polls()) > since + 2)


def ran(host) -> str:
    return host.read(RAN) if host.exists(RAN) else ""


def shown(host) -> dict:
    [phases] = [one for one in status_of(host)["conditions"] if one["name"] == "phases"]
    return phases


def test_phases_run_where_the_metadata_changed_and_again_while_they_fail(hosts, signal_server):
    server = signal_server()
    host = hosts("n1", ip=IP)
    image(host)
    role(server, "db", server.deployment("one", config="#!/bin/sh\necho one >>/var/tmp/deployed\n"))
    start(host, server, "polling_interval = 2\n")
    assert signalled(server, "one")["deploy_status_code"] == 0
    polled(host, server)
    assert ran(host) == "" and not host.exists("/etc/role")

    host.write("/etc/heat-node-agent/agent.toml", SETTINGS)
    host.exec("systemctl", "restart", UNIT)
    host.reported("PhasesSucceeded")
    host.wait_for(lambda: shown(host)["state"] == "ok")
    polled(host, server)
    assert ran(host) == "pre\nend db\n", "nothing changed"
    host.exec("systemctl", "restart", UNIT)
    polled(host, server)
    assert ran(host) == "pre\nend db\n", "nothing changed over a restart"

    # They come before the deployments of the same metadata, which 55-heat-config leaves to the daemon.
    role(server, "web", server.deployment("two", config=LOOK))
    assert signalled(server, "two")["deploy_status_code"] == 0
    assert ran(host) == "pre\nend db\npre\nend web\n"
    assert "the deployments are left to heat-node-agent.service" in host.sh("journalctl -u heat-phases.service")
    assert host.read("/var/tmp/deployed") == "one\ntwo web inactive\n" and len(server.signals("one")) == 1

    host.write("/run/broken", "")
    role(server, "broken", server.deployment("three", config=LOOK))
    [failed] = host.reported("PhasesFailed")
    assert failed["HNA_CAUSE"] == f"phase post-configure ended with status 3, in {BASE}/post-configure.d/10-check; last output: no such package"
    host.wait_for(lambda: shown(host)["attempt"] > 1, what="another try")
    headline = host.exec("heat-node-agent", "status", check=False)
    assert "10-check" in headline.stdout and headline.returncode == 2, headline
    # It waits for what they prepare.
    assert "three" not in host.read("/var/tmp/deployed") and not server.signals("three")
    host.remove("/run/broken")
    assert signalled(server, "three")["deploy_status_code"] == 0
    assert ran(host).endswith("pre\nend broken\n") and ran(host).count("end") == 3
    host.wait_for(lambda: shown(host)["state"] == "ok")
    assert host.read("/var/tmp/deployed") == "one\ntwo web inactive\nthree broken inactive\n"


def test_phases_outlive_the_agent_and_do_not_run_twice(hosts, signal_server):
    server = signal_server()
    host = hosts("n1", ip=IP)
    image(host)
    host.write("/run/hold", "")
    role(server, "db", server.deployment("one", config=LOOK))
    start(host, server, SETTINGS)
    host.wait_for(lambda: host.exists("/run/checked"))
    host.exec("systemctl", "kill", "-s", "KILL", UNIT)
    host.reported("PhasesStarted", words="outlived the agent")
    polled(host, server)
    assert ran(host) == "pre\n" and not server.signals("one"), "deployments wait for those that run"
    host.remove("/run/hold")
    assert signalled(server, "one")["deploy_status_code"] == 0
    host.reported("PhasesSucceeded")
    host.exec("systemctl", "kill", "-s", "KILL", UNIT)
    polled(host, server)
    assert ran(host) == "pre\nend db\n"

    # They end while nobody is there.
    host.write("/run/hold", "")
    host.remove("/run/checked")
    role(server, "web")
    host.wait_for(lambda: host.exists("/run/checked"))
    host.exec("systemctl", "stop", UNIT)
    host.remove("/run/hold")
    host.wait_for("! systemctl is-active -q heat-phases.service")
    host.exec("systemctl", "start", UNIT)
    host.reported("PhasesSucceeded", 2)
    polled(host, server)
    assert ran(host) == "pre\nend db\npre\nend web\n" and host.read("/var/tmp/deployed") == "one db inactive\n"
