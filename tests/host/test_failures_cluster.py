"""What goes wrong with the certificates and the kubelet of a Kubernetes node, one failure after the other on one host: a master of real etcd and
containerd, with stand-ins for Kubernetes' programs and for Magnum."""
import json

from lib import stand_ins
from lib.certificates import CA
from lib.cluster import VERSION, Node, parameters
from lib.common import GATEWAY
from lib.failures import HANGS
from lib.node import start

MASTER = GATEWAY.rsplit(".", 1)[0] + ".21"
KUBELET, CONTAINERD = "kubelet.service", "containerd.service"
# Of the stand-in's: what is in it is obeyed.
ORDERS, ORDERS_OF_PROXY = (f"{stand_ins.CONTROL}/{name}" for name in ("kubelet", "kube-proxy"))
DIES = 'die 7 failed to run Kubelet: mountpoint for cpu not found'
NO_SPACE = "die 1 unable to take the lock: open /var/lib/kubelet/kube-proxy.lock: no space left on device"
CERTIFICATES = "/v1/certificates"
# The node's: it has every name itself, and nothing at that port.
NAME_SERVER = """import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("127.0.0.2", 53))
while True:
    asked, by = s.recvfrom(512)
    question = asked[12:asked.index(0, 12) + 5]
    known = question[-4:-2] == bytes([0, 1])
    answer = bytes([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 1, 0, 4]) + bytes([127, 0, 0, 1]) if known else b""
    s.sendto(asked[:2] + bytes([0x81, 0x80, 0, 1, 0, known, 0, 0, 0, 0]) + question + answer, by)
"""
# Magnum's own words.
SAYS = {403: "Policy doesn't allow certificate:get to be performed.", 500: "An unknown exception occurred."}
REQUEST = "req-3f5b0c4e-1d2a-4c8e-9b7f-60a1c2d3e4f5"
UNAUTHORIZED = json.dumps({"error": {"code": 401, "message": "The request you have made requires authentication."}})
SETTINGS = "polling_interval = 5\nmin_polling_interval = 5\n"


def certificates(node: Node, stage, magnum, tmp_path):
    """The source of the certificates fails in one way after the other, before there is a node."""
    other = CA(tmp_path / "other", "other-ca").certificate.read_text()
    right = {name: node.inputs[name] for name in ("OPENSTACK_CA", "AUTH_URL")}
    failure = stage.failure("wrong-ca")
    node.update(OPENSTACK_CA=other)
    failure.shows("FAILED", "at certificates", "signed by a CA", heat="node", failed=True)
    failure.mended("update the stack with the right OPENSTACK_CA", lambda: node.update(**right | {"AUTH_URL": "https://keystone.invalid:5000/v3"}),
                   until=("WAITING for certificates", "keystone.invalid"), runs=("openstack ", "openssl "))

    failure = stage.failure("dns", after=failure)
    failure.shows("WAITING for certificates", "keystone.invalid")

    def name_server():
        node.host.exec("systemd-run", "-q", "--unit=names", "python3", "-c", NAME_SERVER)
        node.host.wait_for("getent ahostsv4 keystone.invalid -s dns || { echo nameserver 127.0.0.2 >/etc/resolv.conf; false; }")
    failure.way("lists other name servers than your cloud's, correct the Neutron subnet", "give the node a name server that knows the name", name_server,
                runs=("resolvectl ", "getent "),
                until=("WAITING for certificates", "connection refused by keystone.invalid:5000"))
    magnum.answer(401, path="^/identity", body=UNAUTHORIZED)
    failure.mended("update the stack with the right AUTH_URL", lambda: node.update(**right), until=("FAILED", "401"), runs=("openstack ",))

    failure = stage.failure("keystone-401", after=failure)
    failure.shows("FAILED", "at certificates", "401", heat="node", failed=True)

    def then(status: int):
        """What is next goes wrong as soon as this is put right."""
        magnum.behave()
        magnum.answer(status, path=CERTIFICATES, body=json.dumps({"errors": [{"status": status, "detail": SAYS[status]}]}),
                      headers={"X-Openstack-Request-Id": REQUEST})

    def refused():
        """It has a token by now."""
        magnum.behave()
        magnum.answer(401, path="^/identity", body=UNAUTHORIZED)
        magnum.revoke()
        node.update()
    failure.way("If the user is disabled", "enable the user", lambda: then(403), refused, runs=("openstack user", "heat-node-agent rerun"),
                until=("FAILED", "403"))

    def credentials():
        then(403)
        node.update()
    failure.mended("update the stack with the cluster's present trustee", credentials, until=("FAILED", "403"), runs=("openstack ",))

    failure = stage.failure("magnum-403", after=failure)
    failure.shows("FAILED", "at certificates", "403", heat="node", failed=True)

    def updated():
        then(500)
        node.update()
    failure.way("set CLUSTER_UUID, TRUSTEE_USER_ID, TRUSTEE_PASSWORD and TRUST_ID to those in",
                "update the stack with the cluster's own trustee", updated, lambda: then(403), until=("WAITING for certificates", "500"))
    failure.mended("correct Magnum's policy", lambda: then(500), until=("WAITING for certificates", "500"))

    failure = stage.failure("magnum-500", after=failure)
    failure.shows("WAITING for certificates", "500")

    def early():
        magnum.behave()
        magnum.spoil("not-yet-valid")
    failure.mended("end the fault in Magnum", early, until=("FAILED", "not valid"))

    failure = stage.failure("certificate-not-yet-valid", after=failure)
    failure.shows("FAILED", "at certificates", "not valid", heat="node", failed=True)
    failure.mended("set the clock that is wrong", magnum.behave)


def kubelet(node: Node, stage):
    host = node.host
    failure = stage.failure("kubelet-crash-loop", 3 * 10)  # three restarts, with five seconds between them
    host.sh(f"mkdir -p {stand_ins.CONTROL}; echo {DIES} >{ORDERS}")
    failure.shows("DEGRADED: kubelet crash-looping", failed=True)
    failure.mended("mount the cgroup again", lambda: host.remove(ORDERS))

    failure = stage.failure("kube-proxy-no-space", 3 * 10)
    # It says what the C library says, and where that is so can be seen.
    host.sh(f"head -c 8M /dev/zero >/var/lib/kubelet/full || :; echo '{NO_SPACE}' >{ORDERS_OF_PROXY}")
    host.exec("systemctl", "restart", "kube-proxy.service", check=False)
    failure.shows("DEGRADED: kube-proxy crash-looping", "no space is left on /var/lib/kubelet", failed=True)
    failure.mended("make room", lambda: host.sh(f"rm /var/lib/kubelet/full {ORDERS_OF_PROXY}"), first=False)

    failure = stage.failure("kubelet-hangs", HANGS)
    host.sh(f"echo mute >{ORDERS}")  # as by a deadlock: it sleeps, takes connections, and says nothing
    failure.shows("DEGRADED: kubelet not answering", failed=True)
    failure.mended()

    failure = stage.failure("containerd-hangs", HANGS)
    host.exec("systemctl", "kill", "--kill-who=main", "-s", "STOP", CONTAINERD)
    failure.shows("DEGRADED: containerd not answering", failed=True)
    failure.mended()

    failure = stage.failure("kubelet-stopped")
    host.exec("systemctl", "stop", KUBELET)
    failure.shows("DEGRADED: kubelet not running", failed=True)
    failure.mended()

    failure = stage.failure("kubelet-flag")
    node.update(KUBELET_OPTIONS="--no-such-flag=1")
    failure.shows("WAITING for", "kubelet", "correct --no-such-flag in KUBELET_OPTIONS", "gives up in")
    failure.mended("update the stack without the flag", lambda: node.update(KUBELET_OPTIONS=None))


def test_failures_of_certificates_and_kubelet(hosts, signal_server, magnum, stages, tmp_path):
    source = magnum()
    host, server = hosts("m1", ip=MASTER), signal_server()
    node = Node(host, server, parameters("master", "m1", MASTER, MASTER, **source.parameters()))
    stand_ins.into(host, VERSION)
    # A small file system of its own, which will be full.
    host.sh("mkdir -p /var/lib/kubelet; mount -t tmpfs -o size=4m kubelet /var/lib/kubelet")
    # In the place of the add-on: without a network a node is not Ready.
    host.sh("mkdir -p /etc/cni/net.d")
    host.write("/etc/cni/net.d/10-pods.conflist", '{"name": "pods", "cniVersion": "0.3.1", "plugins": [{"type": "loopback"}]}')
    stage = stages(host, server)
    start(host, server, SETTINGS)
    certificates(node, stage, source, tmp_path)
    kubelet(node, stage)
