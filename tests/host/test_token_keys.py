"""Keys of service accounts compared between masters: a master of real etcd and containerd with stand-ins for Kubernetes' programs, whose API has
the node of another master, with what its agent would have written there."""
import base64
import hashlib

from lib.cluster import Node, parameters
from lib.common import GATEWAY
from lib.node import status_of
from lib.node_objects import ask, notes, patch

MASTER = GATEWAY.rsplit(".", 1)[0] + ".21"
KEY = "/etc/kubernetes/certs/service_account_private.key"
NOTE = "heat-node-agent/service-account-keys"
THEIRS = "0123456789abcdef"


def test_masters_with_other_service_account_keys_are_named(hosts, signal_server, magnum):
    host = hosts("m1", ip=MASTER)
    # Else its kubelet is never Ready, which is degraded, too.
    host.write("/etc/cni/net.d/10-any.conf", "{}")
    master = Node(host, signal_server(), parameters("master", "m1", MASTER, MASTER, **magnum().parameters())).up()

    def keys() -> dict | None:
        return (status_of(host)["node"] or {}).get("service_account_keys")

    # --- it says its keys, by digests that openssl agrees with ---
    public = base64.b64decode(host.sh(f"openssl pkey -in {KEY} -pubout -outform DER | base64"))
    own = hashlib.sha256(public).hexdigest()[:16]
    host.wait_for(lambda: NOTE in notes(host, "m1"), what="the annotation")
    assert notes(host, "m1")[NOTE] == f"signs={own} verifies={own}"
    assert keys() is None, "without another master there is nothing to compare"
    # --- another one with another pair, in one step: neither verifies the other's ---
    meta = {"name": "m2", "labels": {"node-role.kubernetes.io/master": ""}, "annotations": {NOTE: f"signs={THEIRS} verifies={THEIRS}"}}
    ask(host, "", "-X", "POST", "-H", "content-type: application/json", body={
        "kind": "Node", "apiVersion": "v1", "metadata": meta, "status": {"conditions": [{"type": "Ready", "status": "True"}]}})
    # No update fails because of it; after each it is looked at soon.
    master.update(KUBESCHEDULER_OPTIONS="--v=3")
    master.succeeds()
    host.wait_for(lambda: (keys() or {}).get("wrong"), what="what differs")
    [wrong] = keys()["wrong"]
    for words in ("service account keys differ from those of m2", f"does not verify tokens that this master signs (key {own})",
                  f"signs tokens that this master does not verify (key {THEIRS})", "expected while the masters are updated one after the other"):
        assert words in wrong, wrong
    host.wait_for("heat-node-agent status | grep -q '^DEGRADED: masters'", what="its headline")
    page = host.exec("heat-node-agent", "status", check=False)
    assert page.returncode == 2 and "DEGRADED: masters do not verify each other's service account tokens" in page.stdout, page
    assert "KUBE_SERVICE_ACCOUNT_PRIVATE_KEY" in page.stdout and "compared with 1 other master" in page.stdout, page
    [said] = host.journal(HNA_EVENT="TokenKeysDiffer")
    assert wrong in said["MESSAGE"] and "KUBE_SERVICE_ACCOUNT_KEY hold both" in said["HNA_REMEDY"], said
    # --- it verifies by both, and still signs by its own: one direction is left ---
    patch(host, "m2", {"metadata": {"annotations": {NOTE: f"signs={THEIRS} verifies={own},{THEIRS}"}}})
    host.wait_for(lambda: "that this master signs" not in "".join((keys() or {}).get("wrong", ["that this master signs"])), what="the other half")
    host.wait_for(lambda: (keys() or {}).get("wrong"), what="what is left")
    assert [one for one in keys()["wrong"] if "signs tokens that this master does not verify" in one], keys()
    # --- it signs by the same, too ---
    patch(host, "m2", {"metadata": {"annotations": {NOTE: f"signs={own} verifies={own},{THEIRS}"}}})
    host.wait_for(lambda: host.journal(HNA_EVENT="TokenKeysAgree"), what="the end of it")
    assert keys()["wrong"] == [] and keys()["masters"] == 1
    host.wait_for("heat-node-agent status", what="nothing degraded")
    # --- one that left is none: its node stays until somebody deletes it ---
    patch(host, "m2", {"metadata": {"annotations": {NOTE: f"signs={THEIRS} verifies={THEIRS}"}}})
    patch(host, "m2", {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}, "/status")
    master.update(KUBESCHEDULER_OPTIONS="--v=3")
    master.succeeds()
    host.wait_for(lambda: keys() is None, what="one master alone")
    # --- a key that cannot be read is said, and is no difference ---
    assert host.journal(HNA_EVENT="TokenKeysNotCompared") == []
    private = host.read(KEY)
    # Kubernetes takes a key of that size, the agent's library does not.
    short = host.sh("openssl genrsa -traditional 1024 | tee /root/short.key")
    master.update(KUBE_SERVICE_ACCOUNT_PRIVATE_KEY=short, KUBE_SERVICE_ACCOUNT_KEY=host.sh("openssl pkey -in /root/short.key -pubout"))
    master.succeeds()
    host.wait_for(lambda: host.journal(HNA_EVENT="TokenKeysNotCompared"), what="why it is not compared")
    assert KEY in host.journal(HNA_EVENT="TokenKeysNotCompared")[0]["MESSAGE"] and keys()["wrong"] == []
    # Nothing of a key is anywhere in what was said.
    assert private.splitlines()[3] not in str(host.journal(extended=True)) and base64.b64encode(public).decode()[40:80] not in str(host.journal(extended=True))
