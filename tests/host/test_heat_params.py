"""A node that Magnum's /etc/sysconfig/heat-params configures, and no deployment of Heat's."""

from lib.common import wait_for
from lib.node import IP, NODE, SIGNALLED, UNIT, VDB, VDC, signalled, start, status_of

FILE = "/etc/sysconfig/heat-params"
SOURCE = "[node]\nsource = 'heat-params'\n"


def wait_curl(server) -> str:
    """As Magnum writes it, here for the handle of the signal server."""
    url = f"{server.base}/v1/8d2b7a61/stacks/bay/2f7a9d6e/resources/handle/signal"
    return f"curl -i -X POST -H 'X-Auth-Token: 5f0e1d2c3b4a' -H 'Content-Type: application/json' -H 'Accept: application/json' {url}"


def heard(server) -> list[dict]:
    """What the handle was sent and took."""
    return [one.json() for one in server.requests(path="/resources/handle/signal$") if one.method == "POST" and one.status == 200]


def proxy_of_docker(host) -> str:
    """What the docker that runs was started with."""
    return host.sh("tr '\\0' '\\n' <\"/proc/$(systemctl show -p MainPID --value docker.service)/environ\" | grep -i proxy || :")


def waited_for(server) -> dict:
    return wait_for(lambda: heard(server), SIGNALLED, "the wait condition's signal")[0]


def write(host, parameters: dict, head: str = ""):
    """The file as cloud-init's write_files leaves it, and the agent is told to look."""
    host.sh("mkdir -p /etc/sysconfig")
    host.write(FILE, head + "".join(f'{name}="{value}"\n' for name, value in parameters.items()), 0o600)
    host.exec("systemctl", "kill", "-s", "HUP", UNIT, check=False)


def status(host) -> dict:
    return status_of(host)


def generation(host) -> tuple[int, str]:
    node = status(host).get("node") or {}
    return node.get("generation", 0), node.get("state", "")


def test_a_master_comes_up_is_updated_and_outlives_a_broken_file(hosts, signal_server):
    server = signal_server()
    host = hosts("n1", ip=IP, volumes={"vdb": ("2G", VDB), "vdc": ("1G", VDC)})
    host.install_agent()
    host.sh("mkdir -p /etc/heat-node-agent")
    host.write("/etc/heat-node-agent/agent.toml", SOURCE)
    host.exec("systemctl", "enable", "--now", UNIT)
    # Without the file there is one error, which says what to do.
    host.reported("SourceFailed", words="heat-params")
    page = host.exec("heat-node-agent", "status", check=False)
    assert page.returncode == 2 and f"there is no such file (while reading {FILE})" in page.stdout and "write_files" in page.stdout, page.stdout
    plan = host.exec("heat-node-agent", "plan", check=False)
    assert plan.returncode == 1 and "there is no such file" in plan.stderr, plan.stderr

    first = NODE | {"WAIT_CURL": wait_curl(server)}
    write(host, first)
    handle = waited_for(server)
    assert (handle["status"], handle["id"]) == ("SUCCESS", "node-1")
    assert server.requests("POST")[0].header("x-auth-token") == "5f0e1d2c3b4a"
    host.wait_for(lambda: generation(host) == (1, "applied"))
    assert host.is_active("etcd.service") and host.sh("findmnt -no SOURCE /var/lib/etcd").strip()
    assert not server.polls(), "nobody is asked where Heat is not known"
    host.wait_for(lambda: host.exec("heat-node-agent", "status", check=False).returncode == 0, what="a healthy node")
    page = host.exec("heat-node-agent", "status").stdout
    print(page, host.exec("heat-node-agent", "explain", check=False).stdout)
    assert "heat-params" in page, page
    for command in ("plan", "verify"):
        done = host.exec("heat-node-agent", command, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    # What says the same is no change: nor is a comment, another order, or a restart of the agent.
    write(host, dict(reversed(first.items())), "# written again\n")
    host.exec("systemctl", "restart", UNIT)
    host.wait_for(lambda: host.exec("heat-node-agent", "status", check=False).returncode == 0, what="a healthy node")
    assert generation(host) == (1, "applied") and len(heard(server)) == 1

    # One parameter is an update, and the handle hears of it once more, by the same id.
    second = first | {"HTTP_PROXY": "http://proxy.example.org:3128"}
    write(host, second)
    host.wait_for(lambda: generation(host) == (2, "applied"), what="the second generation")
    assert "proxy.example.org" in proxy_of_docker(host)
    host.wait_for(lambda: len(heard(server)) == 2)
    assert len({one["id"] for one in heard(server)}) == 1

    # A lost quote: the error names the line and shows no secret, and the node stays as it is.
    host.write(FILE, host.read(FILE).replace('ROLE="master"', 'ROLE="master').replace("WAIT_CURL", 'PASSWORD="hush-hush"\nWAIT_CURL'), 0o600)
    host.exec("systemctl", "kill", "-s", "HUP", UNIT)
    host.reported("SourceFailed", words="heat-params", count=2)
    page = host.exec("heat-node-agent", "status", check=False)
    assert page.returncode == 2 and "ROLE cannot be parsed at line 1" in page.stdout and "hush" not in page.stdout, page.stdout
    assert generation(host) == (2, "applied") and host.is_active("etcd.service") and host.is_active("docker.service")
    assert host.exec("heat-node-agent", "verify", check=False).returncode == 1
    # The agent that starts with it leaves the node alone.
    host.exec("systemctl", "restart", UNIT)
    host.reported("SourceFailed", words="heat-params", count=3)
    assert generation(host) == (2, "applied") and host.is_active("etcd.service")

    # Wrong parameters are refused, by name, to Heat as well.
    write(host, second | {"KUBE_NODE_IP": "nowhere"})
    host.wait_for(lambda: len(heard(server)) == 3)
    told = heard(server)[-1]
    assert told["status"] == "FAILURE" and "KUBE_NODE_IP" in told["reason"], told
    assert generation(host) == (2, "applied")

    # Back to what it said at first: that is asked for anew.
    write(host, first)
    host.wait_for(lambda: generation(host) == (3, "applied"), what="the third generation")
    assert "proxy.example.org" not in proxy_of_docker(host)
    host.wait_for(lambda: len(heard(server)) == 4)
    assert heard(server)[-1]["status"] == "SUCCESS"


def test_beside_heat_the_file_alone_configures_the_node(hosts, signal_server):
    server = signal_server()
    host = hosts("n1", ip=IP, volumes={"vdb": ("2G", VDB), "vdc": ("1G", VDC)})
    server.deploy(server.deployment("10-script", config="#!/bin/sh\necho ran\n"),
                  server.deployment("20-node", group="kubernetes-node", inputs=NODE | {"INSTANCE_NAME": "not-me"}))
    host.sh("mkdir -p /etc/sysconfig /etc/docker")
    host.write(FILE, "".join(f'{name}="{value}"\n' for name, value in (NODE | {"WAIT_CURL": wait_curl(server)}).items()), 0o600)
    start(host, server, SOURCE)
    assert signalled(server, "10-script")["deploy_stdout"] == "ran\n"
    refused = str(signalled(server, "20-node")["deploy_status_code"])
    assert f"the node is configured by {FILE}" in refused and "remove" in refused, refused
    handle = waited_for(server)
    assert (handle["status"], handle["id"]) == ("SUCCESS", "node-1")
    assert generation(host) == (1, "applied")
    # Heat's list goes on to be followed.
    server.deploy(server.deployment("30-after", config="#!/bin/sh\necho after\n"))
    assert signalled(server, "30-after")["deploy_stdout"] == "after\n"
    done = host.exec("heat-node-agent", "verify", check=False)
    assert done.returncode == 1 and f"the node is configured by {FILE}" in done.stdout, done.stdout
