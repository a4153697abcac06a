"""An update that fails on its way: the node goes back to the generation before, or says why it does not. A master of real etcd and containerd,
with stand-ins for Kubernetes' programs."""
import json

import pytest

from lib import stand_ins
from lib.cluster import Node, parameters
from lib.common import GATEWAY, wait_for
from lib.failures import slack
from lib.node import UNIT, is_steady

MASTER = GATEWAY.rsplit(".", 1)[0] + ".21"
# The API server dies of it at once, again and again.
BAD = {"KUBEAPI_OPTIONS": "--no-such-flag=1"}
# A firewall that drops what nobody accepts.
OWN = """table inet own {
 chain input { type filter hook input priority 0; policy accept; ct state established accept; iif lo accept; ip saddr 10.77.0.0/16 accept; }
 chain last { type filter hook input priority 10; policy accept; ct state established accept; iif lo accept; ip saddr 10.77.0.0/16 accept; drop; }
}
"""
# All that an update writes, but for what is there while it goes on, and for who takes the firewall's rules away at the next boot too.
FILES = "find /etc/systemd/system /etc/kubernetes /etc/etcd /etc/containerd /etc/sysctl.d /etc/modules-load.d /etc/cni -type f -not -path '*/..*' " \
        "-exec sha256sum {} + | sort -k 2; find /etc/systemd/system -type l -not -name 'heat-node-firewall*' | sort"
# Of the stand-ins: what is in it is obeyed.
ORDERS, ORDERS_OF_KUBELET = (f"{stand_ins.CONTROL}/{name}" for name in ("kube-scheduler", "kubelet"))


def short() -> dict:
    """A failed update is given up after a quarter of this: half is what the node has in all, half of that is kept for going back."""
    return {"WAIT_TIMEOUT": 60 * min(slack(), 2)}


def state(host) -> dict:
    return json.loads(host.read("/var/lib/heat-node-agent/node.json"))


def command(host, *args, code: int = 0) -> str:
    done = host.exec("heat-node-agent", *args, check=False)
    assert done.returncode == code, f"{args}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def put_back_by_hand(host, node: Node, files: str):
    """A good update, taken back by the operator in spite of kills: it stays so until Heat or `rerun` says otherwise."""
    assert "no generation before 1 is kept" in command(host, "rollback", code=1)
    proxy = {"HTTP_PROXY": "http://192.0.2.1:3128"}
    node.update(KUBELET_OPTIONS="--v=3", **proxy)
    node.succeeds()
    assert host.sh("stat -c %a /var/lib/heat-node-agent/former.json").strip() == "600"
    preview = command(host, "rollback", "--dry-run", code=2)
    assert "back to generation 1: " in preview and "remove /etc/containerd/proxy.env" in preview, preview
    assert "is in place already" in command(host, "rollback", "2", code=1) and "are not kept" in command(host, "rollback", "7", code=1)
    # It does not end before both kills: the kubelet says that it is not healthy.
    host.sh(f"mkdir -p {stand_ins.CONTROL}; echo unhealthy >{ORDERS_OF_KUBELET}")
    host.sh("(heat-node-agent rollback 1 >/run/rollback.out 2>&1; echo $? >>/run/rollback.out) >/dev/null 2>&1 &")
    for kill in range(2):
        host.wait_for(lambda: len(host.journal(HNA_EVENT="RollbackBegun")) > kill, what="the rollback")
        assert state(host)["state"] == "restoring"
        host.exec("systemctl", "kill", "-s", "KILL", UNIT)
    host.remove(ORDERS_OF_KUBELET)
    host.sh("(heat-node-agent status --wait=300 >/run/wait.out 2>&1 || echo $? >>/run/wait.out) >/dev/null 2>&1 &")
    host.wait_for(lambda: host.read("/run/rollback.out").endswith("0\n"), what="the end of the command")
    assert "generation 1 is in place again, and healthy" in host.read("/run/rollback.out")
    assert host.sh(FILES) == files and node.healthy()
    # Who waits for what Heat asks for waits until the node is back, and then in vain.
    host.wait_for(lambda: host.read("/run/wait.out").endswith("\n1\n"), what="the end of the wait")
    assert "DEGRADED at node" in host.read("/run/wait.out") and "DEGRADED at node" in command(host, "status", "--wait=60", code=1)
    # Neither a poll nor a restart applies it again, and Heat hears nothing more.
    host.exec("systemctl", "stop", UNIT)
    said = command(host, "rollback", code=1)
    assert "the daemon is down" in said and "systemctl start heat-node-agent" in said, said
    host.exec("systemctl", "start", UNIT)
    host.wait_for(lambda: is_steady(host), what="a steady node")
    host.exec("systemctl", "kill", "-s", "HUP", UNIT)
    words = "generation 1 is in place by `rollback`, Heat asks for generation 2"
    assert node.status()["node"]["reason"].startswith(words), node.status()["node"]
    for page in ("explain", "status"):
        text = " ".join(host.exec("heat-node-agent", page, check=False).stdout.split())
        assert words in text and "`heat-node-agent rerun " in text, text
    assert host.sh(FILES) == files and len(node.server.signals("node", accepted=True)) == 1
    listed = json.loads(command(host, "generations", "--json"))
    assert (listed["in_place"], [one["changes"] for one in listed["generations"]]) == (1, [["HTTP_PROXY", "KUBELET_OPTIONS"], []]), listed
    # It is looked after as any other node.
    host.sh("echo '# somebody' >>/etc/kubernetes/kubelet")
    host.exec("systemctl", "kill", "-s", "HUP", UNIT)
    host.wait_for(lambda: node.status()["node"]["differences"], what="drift")
    assert "put back: " in command(host, "repair") and host.sh(FILES) == files
    host.wait_for(lambda: node.status()["node"]["components"], what="its components are measured")
    command(host, "rerun", state(host)["deployment"])
    host.wait_for(lambda: state(host)["state"] == "applied", what="generation 2")
    assert host.sh(FILES) != files
    command(host, "status", "--wait=60")
    command(host, "rollback")
    assert host.sh(FILES) == files


def goes_back(host, node: Node, files: str, units):
    """A flag that no table knows, and beside it a file and rules of the firewall that the generation before does not have."""
    host.write("/run/own.nft", OWN)
    host.exec("nft", "-f", "/run/own.nft")
    node.update(**BAD, **short(), KUBELET_OPTIONS=None, HTTP_PROXY="http://192.0.2.1:3128", FIREWALL="nftables")
    host.wait_for(lambda: "heat-node-agent:" in host.exec("nft", "list", "ruleset").stdout, what="the agent's rules")
    cause = node.result()
    rules = host.exec("nft", "list", "ruleset").stdout
    assert "heat-node-agent:" not in rules and "chain last" in rules, rules
    assert "kube-apiserver" in cause and "--no-such-flag" in cause, cause
    assert "rolled back: generation 1 is in place again, and healthy" in cause, cause
    assert host.sh(FILES) == files and node.healthy()
    # Only who read what was changed, there and back.
    assert node.restarted(units) <= {"kube-apiserver", "containerd"}
    begun, done = (host.reported(event)[-1] for event in ("RollbackBegun", "RolledBack"))
    assert begun["HNA_GENERATION"] == done["HNA_GENERATION"] == "1"
    assert "generation 3 failed" in begun["MESSAGE"] and "--no-such-flag" in begun["HNA_CAUSE"]
    host.wait_for(lambda: is_steady(host), what="a steady node")
    assert (state(host)["state"], state(host)["touched"], state(host)["before"]["number"]) == ("rejected", False, 1)
    page = " ".join(host.exec("heat-node-agent", "status", check=False).stdout.split())
    assert page.startswith("FAILED generation 3 (HNA-0") and "generation 3 failed, generation 1 is in place" in page, page
    assert "--no-such-flag" in page and "rolled back: generation 1 is in place again, and healthy" in page, page
    assert "kube-apiserver healthy" in page and "remedy: correct --no-such-flag in KUBEAPI_OPTIONS" in page, page


def goes_on_after_a_kill(host, node: Node, files: str):
    """Killed while the node goes back: whoever comes next goes on with that, and Heat hears what failed first."""
    count = len(host.journal(HNA_EVENT="RollbackBegun"))
    node.update(**BAD, **short(), KUBELET_OPTIONS="--v=3", HTTP_PROXY=None)
    host.wait_for(lambda: len(host.journal(HNA_EVENT="RollbackBegun")) > count, what="the rollback")
    host.exec("systemctl", "kill", "-s", "KILL", UNIT)
    cause = node.result()
    assert "--no-such-flag" in cause and "rolled back: generation 1 is in place again" in cause, cause
    assert host.sh(FILES) == files and node.healthy()
    assert len(node.server.signals("node", accepted=True)) == 1


def goes_back_while_heat_lists_nothing(host, node: Node, files: str):
    """Heat's list lacks the deployment for one answer meanwhile: the node goes back all the same."""
    count = len(host.journal(HNA_EVENT="RollbackBegun"))
    node.update(**BAD, **short(), KUBELET_OPTIONS="--v=4")  # one like the last would be folded into what was said of that
    host.wait_for(lambda: len(host.journal(HNA_EVENT="RollbackBegun")) > count, what="the rollback")
    listed = node.server.document["deployments"]
    for deployments in ([], listed):
        polls = len(node.server.polls())
        node.server.document["deployments"] = deployments
        node.server.publish()
        host.exec("systemctl", "reload", UNIT)
        wait_for(lambda: len(node.server.polls()) > polls, 300, "a poll")
    cause = node.result()
    assert "--no-such-flag" in cause and "rolled back: generation 1 is in place again" in cause, cause
    assert host.sh(FILES) == files and node.healthy()


def goes_back_although_heat_withdrew_it(host, node: Node, files: str):
    """Killed while the node goes back, and Heat does not list the deployment any more when the next agent asks: the node is not left half way."""
    begun, done = (len(host.journal(HNA_EVENT=event)) for event in ("RollbackBegun", "RolledBack"))
    node.update(**BAD, **short(), KUBELET_OPTIONS="--v=5")
    host.wait_for(lambda: len(host.journal(HNA_EVENT="RollbackBegun")) > begun, what="the rollback")
    node.server.document["deployments"] = []
    node.server.publish()
    host.exec("systemctl", "kill", "-s", "KILL", UNIT)
    host.wait_for(lambda: len(host.journal(HNA_EVENT="RolledBack")) > done, what="the end of the rollback")
    host.wait_for(lambda: state(host)["state"] == "rejected", what="its record")
    assert (state(host)["touched"], state(host)["back"]) == (False, {"to": 1, "by_hand": False})
    assert host.sh(FILES) == files and node.healthy()
    assert "failed, rolled back to 1" in command(host, "generations")


def goes_back_once_for_the_same_parameters(host, node: Node, files: str):
    """The same parameters once more, while they are being applied: it is the same update."""
    node.update(**BAD, **short())
    host.wait_for(lambda: "--no-such-flag" in host.read("/etc/kubernetes/apiserver"), what="the update")
    node.update()
    assert "rolled back: generation 1 is in place again" in node.result()
    assert host.sh(FILES) == files and node.healthy()

    # Killed on its way there: the update is tried again, and then taken back.
    node.update(**BAD, **short())
    host.wait_for(lambda: "--no-such-flag" in host.read("/etc/kubernetes/apiserver"), what="the update")
    host.exec("systemctl", "kill", "-s", "KILL", UNIT)
    assert "rolled back: generation 1 is in place again" in node.result()
    assert host.sh(FILES) == files and node.healthy()


def stays_where_the_update_is_not_to_blame(host, node: Node):
    """What failed has nothing to do with the update."""
    host.sh(f"mkdir -p {stand_ins.CONTROL}; echo die 7 told to die >{ORDERS}")
    host.wait_for(lambda: any(one["state"] == "failed" for one in node.status()["node"]["components"]), what="a scheduler that dies")
    node.update(KUBEAPI_OPTIONS=None, KUBELET_OPTIONS="--v=4", **short())
    cause = node.result()
    assert "kube-scheduler" in cause and "not rolled back to generation 1: what failed does not depend on what the update changed" in cause, cause
    host.remove(ORDERS)
    node.update(WAIT_TIMEOUT=600)
    node.succeeds()


def stays_where_nothing_takes_it_back(host, node: Node):
    """Certificates for another name are part of it: nothing takes that back, and a good update leads on."""
    node.update(**BAD, **short(), MASTER_HOSTNAME="api.example.org")
    cause = node.result()
    assert "the update changes certificates or keys, which is never taken back automatically" in cause, cause
    assert state(host)["touched"]
    node.update(KUBEAPI_OPTIONS=None, WAIT_TIMEOUT=600)
    node.succeeds()
    wait_for(node.healthy, 300, "a healthy node")


def stays_where_the_image_says_so(host, node: Node):
    """Where the image says so, a failed update stays for whoever looks at it."""
    files = host.sh(FILES)
    host.sh("mkdir -p /etc/heat-node-agent/agent.toml.d; printf '[node]\\nrollback = false\\n' >/etc/heat-node-agent/agent.toml.d/50-test.toml")
    host.exec("systemctl", "restart", UNIT)
    node.update(**BAD, **short())
    cause = node.result()
    assert "agent.toml says [node] rollback = false" in cause and host.sh(FILES) != files, cause


def test_a_failed_update_is_rolled_back(hosts, signal_server, magnum):
    host = hosts("m1", ip=MASTER)
    node = Node(host, signal_server(), parameters("master", "m1", MASTER, MASTER, **magnum().parameters())).up()
    host.wait_for(lambda: is_steady(host), what="a steady node")
    files, units = host.sh(FILES), node.started()

    put_back_by_hand(host, node, files)
    files, units = host.sh(FILES), node.started()

    goes_back(host, node, files, units)
    goes_on_after_a_kill(host, node, files)
    goes_back_while_heat_lists_nothing(host, node, files)
    goes_back_although_heat_withdrew_it(host, node, files)
    goes_back_once_for_the_same_parameters(host, node, files)
    stays_where_the_update_is_not_to_blame(host, node)
    stays_where_nothing_takes_it_back(host, node)
    stays_where_the_image_says_so(host, node)


def cut_where(host, condition: str, go) -> str:
    """A power cut as soon as the shell's condition is true, and the files of that moment. The agent is stopped first, so that it does not go on; and it
    takes its time to put a file in its place, so that it is not stopped too late."""
    pid = host.show(UNIT, "MainPID")["MainPID"]
    host.exec("systemd-run", "-q", "strace", "-f", "-qq", "-o", "/dev/null", "-p", pid, "-e", "trace=renameat", "-e", "inject=renameat:delay_enter=300000")
    host.wait_for(f"grep -q 'TracerPid:.*[1-9]' /proc/{pid}/status")
    stopped = host.popen("bash", "-c", f"until {condition}; do :; done; kill -STOP {pid}")
    go()
    assert stopped.wait(600) == 0
    files = host.sh(FILES)
    host.cut()
    return files


def ends_after_a_power_cut(host, node: Node, before: str):
    """Cut when the first file of a good update is there: the next boot goes on with it."""
    host.sh("touch -d '1 second ago' /run/before")
    cut = cut_where(host, "[ /etc/kubernetes/kubelet -nt /run/before -o /etc/containerd/config.toml -nt /run/before -o -e /etc/containerd/proxy.env ]",
                    lambda: node.update(KUBELET_OPTIONS="--v=3", HTTP_PROXY="http://192.0.2.1:3128", SANDBOX_IMAGE="pause:3.9"))
    assert not node.server.signals("node", accepted=True)
    host.boot(expect="")
    node.succeeds()
    assert node.healthy() and (state(host)["state"], len(node.server.signals("node", accepted=True))) == ("applied", 1)
    # Nothing of it is missing, which it was.
    assert cut not in (before, host.sh(FILES))
    assert "Nothing to do." in command(host, "plan") and host.exists("/etc/containerd/proxy.env")


def ends_rolled_back_after_a_power_cut(host, node: Node, files: str):
    """Cut when the node is about to go back."""
    cut = cut_where(host, "[ -e /var/lib/heat-node-agent/rollback.json ]",
                    lambda: node.update(**BAD, **short(), KUBELET_OPTIONS="--v=4", HTTP_PROXY=None))
    assert cut != files and not node.server.signals("node", accepted=True)
    host.boot(expect="")
    cause = node.result()
    assert "--no-such-flag" in cause and "rolled back: generation 2 is in place again, and healthy" in cause, cause
    assert host.sh(FILES) == files and node.healthy() and len(node.server.signals("node", accepted=True)) == 1
    host.wait_for(lambda: is_steady(host), what="a steady node")
    assert (state(host)["state"], state(host)["touched"]) == ("rejected", False)


@pytest.mark.longer
def test_a_power_cut_ends_in_one_of_two_generations(hosts, signal_server, magnum):
    host = hosts("m1", ip=MASTER)
    node = Node(host, signal_server(), parameters("master", "m1", MASTER, MASTER, **magnum().parameters())).up()
    host.wait_for(lambda: is_steady(host), what="a steady node")
    before = host.sh(FILES)
    ends_after_a_power_cut(host, node, before)
    files = host.sh(FILES)
    ends_rolled_back_after_a_power_cut(host, node, files)
