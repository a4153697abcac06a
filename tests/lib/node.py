"""A node as the host tests want it: its parameters, and the agent started with the signal server as its only source."""
import json
import uuid

from lib.common import in_lab, run, wait_for

IP = "10.77.0.11"
VDB = "7c1f4d0e-93a2-4b86-8d55-2f60c6b1a9e4"
VDC = "e41b7f92-0c6d-4f0a-b1d7-58a2f3c9d610"
UNIT = "heat-node-agent.service"
NODE = {"ROLE": "master", "INSTANCE_NAME": "node-1", "KUBE_NODE_IP": IP, "CLUSTER_UUID": "5f1c3a52-8d0e-4c61-9b0e-2f6f6e1d7a10",
        "TLS_DISABLED": "True", "DOCKER_VOLUME": VDB, "ETCD_VOLUME": VDC, "WAIT_TIMEOUT": 600}
# A net: later than the agent itself gives up, which then says why.
SIGNALLED = 700


def start(host, server, settings: str = ""):
    host.install_agent()
    cfn = server.settings()["cfn"]
    host.write("/etc/os-collect-config.conf", "[cfn]\n" + "".join(f"{k} = {v}\n" for k, v in cfn.items()), 0o600)
    if settings:
        host.sh("mkdir -p /etc/heat-node-agent")
        host.write("/etc/heat-node-agent/agent.toml", settings)
    host.exec("systemctl", "enable", "--now", UNIT)


def signalled(server, name: str) -> dict:
    """The one accepted result of a deployment: what of an earlier one of this name comes once more is none of it."""
    url = server.url_of(name)
    found = wait_for(lambda: [s for s in server.signals(name, accepted=True) if url in (None, server.base + s.target)], SIGNALLED, f"signal of {name}")
    assert len({s.body for s in found}) == 1
    return found[0].json()


def be_patient(host):
    """systemd does not kill an agent that is slow to end, and a stop that ends well shows that it ended by itself."""
    host.sh(f"mkdir -p /etc/systemd/system/{UNIT}.d; printf '[Service]\\nTimeoutStopSec=600\\n' >/etc/systemd/system/{UNIT}.d/patient.conf; "
            "systemctl daemon-reload")


def heard_out(server):
    """Waits until the server has recorded all that came to it: what somebody sent who is dead now may still be on its way."""
    wait_for(lambda: not in_lab("ss", "-Htn", "state", "established", "state", "close-wait", "sport", "=", f":{server.port}", lab=server.lab).stdout,
             300, "the end of all connections")


def status_of(host) -> dict:
    """Whatever its exit code says of the node."""
    return json.loads(host.exec("heat-node-agent", "status", "--json", check=False).stdout)


def is_steady(host) -> bool:
    """Whether the agent that runs now says so, and not one before it."""
    status = status_of(host)
    return str(status["agent"]["pid"]) == host.show(UNIT, "MainPID")["MainPID"] and status["phase"] == "steady"


def says_little(host):
    """A healthy first boot takes a reader's minute: at most 40 lines in the journal at info, 15 on the console."""
    journal = [e["MESSAGE"] for e in host.journal(**{"_SYSTEMD_UNIT": UNIT}) if e.get("SYSLOG_IDENTIFIER") == "heat-node-agent" and int(e["PRIORITY"]) <= 6]
    console = [line for line in host.read("/dev/console").splitlines() if line.startswith("heat-node-agent ")]
    print(f"a first boot: {len(journal)} lines in the journal, {len(console)} on the console")
    assert 0 < len(journal) <= 40, "\n".join(journal)
    assert 0 < len(console) <= 15, "\n".join(console)


def ended(server) -> str:
    """How the node's deployment ended, as Heat hears it: nothing, or the cause."""
    status = signalled(server, "node")["deploy_status_code"]
    return "" if status == 0 else str(status)


def bring_up(host, server, inputs: dict = NODE, settings: str = "") -> str:
    """The first deployment of a node, and the agent; how that ended."""
    server.deploy(server.deployment("node", group="kubernetes-node", inputs=inputs))
    start(host, server, settings)
    return ended(server)


def ask(host, server, inputs: dict, action: str = "UPDATE"):
    """A new deployment in the place of all others, as any stack update makes one; an agent that runs learns of it at once."""
    server.forget()
    server.document["deployments"] = [server.deployment("node", group="kubernetes-node", inputs=inputs, action=action)]
    server.publish()
    host.exec("systemctl", "kill", "-s", "HUP", UNIT, check=False)


def once(host, *prefix: str, deployment: str = "", **inputs) -> int:
    """One pass of an agent that knows of no Heat, over a node with these parameters, as a new deployment or that of an id; its exit
    status."""
    id = deployment or str(uuid.uuid4())
    entries = [{"name": name, "value": value} for name, value in (inputs | {"deploy_signal_transport": "NO_SIGNAL"}).items()]
    entry = {"id": id, "name": "node", "group": "kubernetes-node", "config": "", "inputs": entries, "outputs": [], "options": {}}
    host.write("/var/tmp/document.json", json.dumps({"deployments": [entry]}))
    return host.exec(*prefix, "/usr/bin/heat-node-agent", "run", "--once", "--metadata", "/var/tmp/document.json", check=False).returncode


def extend(loop: str, size: str):
    """What Cinder does to an attached volume, by its device: the disk is larger from now on."""
    run("truncate", "-s", size, run("losetup", "-nO", "BACK-FILE", loop).stdout.strip())
    run("losetup", "-c", loop)


def loop_of(host, dev: str) -> str:
    """The device of this machine that is a volume of the host."""
    device = host.sh(f"readlink -f /dev/{dev}").strip()
    # Tests write to it from outside, where such a name could be a disk of the machine itself.
    assert device.startswith("/dev/loop"), device
    return device
