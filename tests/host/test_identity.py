"""Which instance this is: the first boot, a restart, a copy of the disk, a boot in which nobody says.

A host here is a container, so the instance is what cloud-init says at the boot; the file that it says it in is written by
the host's init (host.sh). A copy of a disk is the same disk booted as another instance.
"""
import json
import time

from lib.common import wait_for
from lib.node import IP, NODE, UNIT, VDB, VDC, be_patient, bring_up, heard_out, is_steady, signalled, start, status_of

STATE = "/var/lib/heat-node-agent"
GUARD = "heat-node-agent-guard.service"
MEMBERS = "etcdctl --dial-timeout=60s --command-timeout=60s --endpoints http://127.0.0.1:2379 member list | cut -d, -f1"


def record(host) -> dict:
    return json.loads(host.read(f"{STATE}/identity.json"))


def events(host, event: str, boot: str = "0") -> list[dict]:
    return host.journal(boot=boot, HNA_EVENT=event)


def conf(server) -> str:
    return "[cfn]\n" + "".join(f"{k} = {v}\n" for k, v in server.settings()["cfn"].items())


def test_a_copied_disk_sends_nothing_runs_nothing_old_and_joins_nothing(hosts, signal_server):
    server = signal_server()
    host = hosts("n1", ip=IP, instance_id="original", volumes={"vdb": ("2G", VDB)})
    # etcd's store is on the root disk, as it would be copied.
    inputs = {k: v for k, v in NODE.items() if k != "ETCD_VOLUME"}
    server.deploy(server.deployment("script", config="#!/bin/sh\necho ran >>/var/tmp/ran\n"),
                  server.deployment("node", group="kubernetes-node", inputs=inputs))
    start(host, server)
    assert signalled(server, "script")["deploy_status_code"] == 0
    assert signalled(server, "node")["deploy_status_code"] == 0
    assert record(host)["instance"] == {"origin": "cloud-init", "value": "original"}
    member = host.sh(MEMBERS).strip()
    assert member
    the_same_instance_goes_on(host)
    before = copied_while_busy(host, server)
    the_copy_runs_and_sends_nothing(host, server, before)
    all_of_the_original_is_kept(host)
    the_next_boot_is_no_better(host, server)
    the_copy_gets_a_node_of_its_own(host, server, inputs, before)
    assert host.sh(MEMBERS).strip() != member


def the_same_instance_goes_on(host):
    """Nothing is set aside, units come up by themselves, the guard lets them."""
    host.reboot()
    host.wait_for(lambda: host.is_active("etcd.service") and host.is_active("docker.service"))
    # However often they are started: a guard that met a start limit would keep them down.
    host.sh(f"for i in $(seq 8); do systemctl start {GUARD} || exit; done")
    host.wait_for(lambda: events(host, "AgentStarted"))
    assert host.show(GUARD, "Result")["Result"] == "success" and not host.exists(f"{STATE}/aside")
    assert not events(host, "IdentityChanged")


def copied_while_busy(host, server) -> str:
    """A signal waits, a script is in its middle, and in that moment the disk is copied; what ran until then."""
    server.answer(503, method="POST")
    server.deploy(server.deployment("quick", config="#!/bin/sh\necho quick >>/var/tmp/ran\n"),
                  server.deployment("long", config="#!/bin/sh\necho long >>/var/tmp/ran\nsleep 6000\n"))
    host.exec("systemctl", "kill", "-s", "HUP", UNIT)
    wait_for(lambda: [s for s in server.signals("quick") if s.status == 503], 300, "a refused signal")
    host.wait_for(lambda: "long\n" in host.read("/var/tmp/ran"))
    before = host.read("/var/tmp/ran")
    host.be_instance("copy")
    host.cut()
    server.behave()
    return before


def the_copy_runs_and_sends_nothing(host, server, before: str):
    heard_out(server)
    server.forget()
    host.boot(expect="")
    host.wait_for(lambda: events(host, "IdentityChanged"))
    host.wait_for(lambda: events(host, "SourceLeftOver"))
    # It knows no source of its own: not one request in a time in which the original would poll many times.
    time.sleep(12)
    assert not server.requests(), [r.target for r in server.requests()]
    assert host.read("/var/tmp/ran") == before
    assert not host.sh("systemctl list-units --all --no-legend 'heat-deployment-*'").strip()
    # systemd wanted etcd and docker before the agent ran; neither has run for a moment.
    for unit in ("etcd.service", "docker.service"):
        assert not host.is_active(unit)
        assert host.show(unit, "ExecMainStartTimestampMonotonic")["ExecMainStartTimestampMonotonic"] == "0", unit


def all_of_the_original_is_kept(host):
    now = record(host)
    assert (now["instance"]["value"], now["predecessor"]["instance"]["value"], now["predecessor"]["aside"]) == ("copy", "original", 1)
    assert host.sh(f"ls {STATE}/aside/1/outbox/ {STATE}/aside/1/deployments/ | grep -c json").strip() != "0"
    assert host.exists("/var/lib/heat-config/deployed.aside-1") and host.exists("/var/lib/etcd/default.etcd.aside-1/member")
    assert not host.exists("/var/lib/etcd/default.etcd")
    assert host.sh("ls -A /var/lib/heat-config/deployed").split() == [".heat-node-agent-instance", ".heat-node-agent.lock"]
    status = host.exec("heat-node-agent", "status", check=False)
    assert status.returncode == 2
    for words in ("instance      copy (cloud-init)", "this disk was copied from that", "instance original (cloud-init)", "/etc/os-collect-config.conf is ignored", "remedy:"):
        assert words in status.stdout, status.stdout


def the_next_boot_is_no_better(host, server):
    """What is configured is still the original's: it starts nothing of it, nor can anybody."""
    host.reboot(expect="")
    host.wait_for(lambda: host.is_active(UNIT))
    for unit in ("etcd.service", "docker.service"):
        assert host.exec("systemctl", "is-enabled", unit, check=False).stdout.strip() == "disabled"
        assert host.exec("systemctl", "start", unit, check=False).returncode and not host.is_active(unit)
    # Nor is a disk of the original waited for.
    assert not host.exists("/etc/systemd/system/var-lib-docker.mount")
    assert host.show(GUARD, "Result")["Result"] == "exit-code" and not server.requests()


def the_copy_gets_a_node_of_its_own(host, server, inputs: dict, before: str):
    """Its own metadata comes: a new member of a new cluster."""
    mine = dict(inputs, INSTANCE_NAME="node-2", CLUSTER_UUID="0e9f3a52-8d0e-4c61-9b0e-2f6f6e1d7a11")
    del mine["DOCKER_VOLUME"]  # still attached here, as no real copy's would be: the marker is another cluster's
    mine |= {"ROLE": "master"}
    server.document["deployments"] = [server.deployment("own", config="#!/bin/sh\necho own >>/var/tmp/ran\n")]
    server.publish()
    host.write("/etc/os-collect-config.conf", "# of the copy\n" + conf(server), 0o600)
    assert signalled(server, "own")["deploy_status_code"] == 0
    assert {s.target.split("/resources/")[1].split("?")[0] for s in server.signals()} == {"own"}
    assert host.read("/var/tmp/ran") == before + "own\n"
    assert not host.is_active("etcd.service")
    server.deploy(server.deployment("node", group="kubernetes-node", inputs=mine))
    host.wait_for(lambda: events(host, "GatePassed") and host.is_active("etcd.service"), 700)


def test_while_nobody_says_which_instance_this_is_the_agent_waits_and_says_so(hosts, signal_server):
    server = signal_server()
    host = hosts("n1", ip=IP, instance_id="original", volumes={"vdb": ("2G", VDB), "vdc": ("1G", VDC)})
    assert bring_up(host, server) == ""
    host.be_instance(None)
    host.wait_for(lambda: is_steady(host))  # what Heat took is noted, and not sent again
    host.exec("systemctl", "stop", UNIT)  # it is not to hear of the script before the reboot
    heard_out(server)
    server.document["deployments"].append(server.deployment("script", config="#!/bin/sh\necho ran >>/var/tmp/ran\n"))
    server.publish()
    server.forget()
    host.reboot(expect="")
    # The word of the boot before lies on the disk, and does not count.
    assert host.read("/var/lib/cloud/data/instance-id") == "original\n"
    host.wait_for(lambda: events(host, "IdentityUnknown"))

    def is_shown() -> bool:
        """A moment after the journal has it."""
        assert host.show(UNIT, "ActiveState", "SubState") == {"ActiveState": "active", "SubState": "running"}
        status = host.exec("heat-node-agent", "status", check=False)
        assert status.returncode == 2 and "UNKNOWN, so nothing is run or sent" in status.stdout and "cloud-init status --long" in status.stdout
        return "waiting for the identity of this instance" in host.show(UNIT, "StatusText")["StatusText"]
    host.wait_for(is_shown)
    assert host.exec("heat-node-agent", "run", "--once", "--state", "/var/tmp/other", check=False).returncode == 1
    time.sleep(3)
    assert not server.requests() and not host.is_active("etcd.service") and host.show(UNIT, "NRestarts")["NRestarts"] == "0"
    # It ends when told to, without being killed, and waits again.
    host.sh(": >/dev/console")  # these hosts have no console: a file takes what would go to it
    be_patient(host)
    host.exec("systemctl", "restart", UNIT)
    assert not [e for e in host.journal(unit=UNIT, boot=0) if "timed out" in e["MESSAGE"]]
    host.wait_for(lambda: "heat-node-agent phase=settings state=waiting code=HNA-0112" in host.read("/dev/console"))
    # cloud-init says it late: the agent goes on, and starts what the guard kept down.
    host.sh("mkdir -p /run/cloud-init; echo original >/run/cloud-init/.instance-id")
    assert signalled(server, "script")["deploy_status_code"] == 0
    host.wait_for(lambda: host.is_active("etcd.service") and host.is_active("docker.service"))
    assert not events(host, "IdentityChanged") and not server.signals("node")
    assert "waiting for the identity" not in host.show(UNIT, "StatusText")["StatusText"]

    # Said while the agent is away, it is known when the agent starts: what the guard kept down starts all the same. And a
    # mistake in the settings keeps the agent down, not the node.
    host.reboot(expect="")
    host.wait_for(lambda: events(host, "IdentityUnknown"))
    host.exec("systemctl", "stop", UNIT)
    host.sh("mkdir -p /run/cloud-init; echo original >/run/cloud-init/.instance-id")
    host.exec("systemctl", "start", UNIT)
    host.wait_for(lambda: host.is_active("etcd.service") and host.is_active("docker.service"))
    host.write("/etc/heat-node-agent/agent.toml", "polling_interval = never\n")
    host.exec("systemctl", "restart", "etcd.service")
    host.remove("/etc/heat-node-agent/agent.toml")

    # Another identity without a boot. Until the agent has put the state aside, no command uses it.
    host.exec("systemctl", "stop", UNIT)
    heard_out(server)
    host.sh("echo another >/run/cloud-init/.instance-id")
    server.forget()
    for command in (["status"], ["plan"], ["metadata"], ["signal", "SUCCESS"]):
        done = host.exec("heat-node-agent", *command, check=False)
        assert done.returncode and "belongs to instance original (cloud-init); this machine is another" in done.stderr, done
    host.exec("systemctl", "start", UNIT)
    host.wait_for(lambda: events(host, "IdentityChanged"))
    host.wait_for(lambda: {e["HNA_UNIT"] for e in events(host, "IdentityUnitStopped")} == {"etcd.service", "docker.service"})
    assert not host.is_active("etcd.service") and not host.is_active("docker.service") and not server.requests()
    # On a volume a membership stays: whether it may be used says the volume's marker.
    assert host.exists("/var/lib/etcd/default.etcd/member")


def test_a_node_comes_up_with_heat_down_and_reports_later(hosts, signal_server):
    server = signal_server()
    host = hosts("n1", ip=IP, volumes={"vdb": ("2G", VDB)})
    node = server.deployment("node", group="kubernetes-node", inputs=NODE | {"DRIFT": "repair"})
    server.deploy(node)
    start(host, server)
    # Heat has been heard, but the node is not up: a volume is missing when the power goes, and Heat goes with it.
    host.wait_for(lambda: host.journal(HNA_EVENT="VolumeWaiting"))
    host.cut()
    server.stop()
    host.attach("vdc", "1G", VDC)
    host.boot(expect="")
    host.wait_for(lambda: events(host, "NodeConverged"), 700)
    host.wait_for(lambda: events(host, "SourceFailed"))
    assert host.is_active("etcd.service") and host.is_active("docker.service")

    def status() -> dict:
        return status_of(host)
    host.wait_for(lambda: status()["signals"] and status()["node"]["state"] == "applied", what="a signal that waits")

    # What a node needs goes missing while Heat is still away: it is put back from what Heat said last.
    host.exec("systemctl", "stop", UNIT, "etcd.service")
    host.sh("rm -rf /etc/etcd/etcd.conf /etc/docker/daemon.json /etc/systemd/system/etcd.service.d")
    host.exec("systemctl", "daemon-reload")
    host.exec("systemctl", "start", UNIT)
    host.wait_for(lambda: host.exists("/etc/etcd/etcd.conf") and host.is_active("etcd.service"))
    host.wait_for("curl -sf http://127.0.0.1:2379/health | grep -q true")
    host.wait_for(lambda: host.exists("/etc/docker/daemon.json"))
    # Nothing was sent without a look at the metadata, and nothing lost.
    polled = len(server.polls())
    assert not server.signals()
    server.start()
    assert signalled(server, "node")["deploy_status_code"] == 0
    first = server.signals()[0]
    assert any(p.status == 200 and p.time < first.time for p in server.polls()[polled:]), "a fresh poll comes first"
    host.wait_for(lambda: status()["signals"] == [])


def test_a_kill_while_the_state_is_put_aside_loses_nothing_of_it(hosts):
    """The agent is killed at every call by which it changes the disk, on a disk that was copied; a fresh one ends the work."""
    host = hosts("n1", ip=IP, base="node", instance_id="copy")
    host.install_agent()
    old = json.dumps({"schema": 1, "instance": {"origin": "cloud-init", "value": "original"}, "since": 1})
    host.sh(f"""
        mkdir -p /var/tmp/disk{STATE}/{{outbox,deployments,work/job,cache}} /var/tmp/disk/var/lib/{{heat-config/deployed,etcd/default.etcd/member}}
        cd /var/tmp/disk{STATE}
        for f in outbox/1.json deployments/1.json work/job/job.json cache/cfn.json node.json lock; do echo "old $f" >$f; done
        echo '{{"/etc/os-collect-config.conf": "digest"}}' >learnt.json
        echo '{old}' >identity.json
        echo old >/var/tmp/disk/var/lib/heat-config/deployed/1.json
        echo old >/var/tmp/disk/var/lib/etcd/default.etcd/member/db
        mkdir -p /var/tmp/disk/etc/systemd/system/etcd.service.d
        : >/var/tmp/disk/etc/systemd/system/etcd.service.d/50-heat-node-agent.conf""")
    copy = f"rm -rf {STATE} /var/lib/heat-config /var/lib/etcd/*; cp -a /var/tmp/disk/. /"
    agent = "heat-node-agent run --once >/dev/null 2>&1"
    calls = "openat mkdirat write fsync fchmod renameat unlinkat"
    # Everything old is in one place, whole, and nowhere else.
    verdict = f"""
        cd {STATE}
        [ "$(ls aside)" = 1 ] && [ "$(ls -A /var/lib/heat-config)" = "$(printf 'deployed\ndeployed.aside-1')" ]
        for f in outbox/1.json deployments/1.json work/job/job.json cache/cfn.json node.json; do grep -qx "old $f" aside/1/$f; done
        grep -qx old /var/lib/heat-config/deployed.aside-1/1.json && grep -qx old /var/lib/etcd/default.etcd.aside-1/member/db
        [ "$(ls -A /var/lib/heat-config/deployed)" = .heat-node-agent-instance ] && [ -z "$(ls -A outbox deployments)" ] && [ ! -e node.json ] && [ ! -e /var/lib/etcd/default.etcd ]
        grep -q '"original"' aside/1/identity.json
        jq -e '.instance.value == "copy" and .predecessor.instance.value == "original" and .predecessor.aside == 1 and
               .predecessor.files["/etc/os-collect-config.conf"] == "digest" and .leaving == null' identity.json >/dev/null"""
    host.write("/var/tmp/verdict", f"set -eu\n{verdict}\n")
    host.write("/var/tmp/sweep", f"""
        cd /
        for call in {calls}; do
            at=1 kills=0
            while :; do
                {copy}
                code=0
                strace -qq -o /dev/null -e trace=$call -e inject=$call:signal=KILL:when=$at {agent} || code=$?
                {agent} || :
                bash /var/tmp/verdict || echo "WRONG after a kill at $call no. $at"
                [ $code = 137 ] || break
                at=$((at + 1)) kills=$((kills + 1))
            done
            echo "$call $kills"
        done""")
    said = host.exec("bash", "/var/tmp/sweep", timeout=3600).stdout
    assert "WRONG" not in said, said
    kills = dict(line.split() for line in said.splitlines())
    # Six renames of the state, two beside it, and three writes of the record: fewer would prove nothing.
    assert int(kills["renameat"]) >= 11 and all(int(count) for call, count in kills.items() if call != "fchmod"), kills
    print(kills)
