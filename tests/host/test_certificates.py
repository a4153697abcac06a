"""Certificates on real systemd hosts: a Magnum that signs, the real etcd, programs that read what they are given as the real ones do."""
import json
import re

import pytest
import yaml
from lib import stand_ins
from lib.certificates import CA, aged
from lib.cluster import ETCD, KUBERNETES, VERSION, Node, parameters
from lib.common import Failed, run, wait_for
from lib.node import UNIT, VDB, is_steady, start

M1, W1 = "10.77.0.21", "10.77.0.31"


@pytest.fixture
def cluster(hosts, signal_server):
    """cluster(role, magnum, ...) boots a host and makes a node of it."""
    ports = iter(range(18000, 18010))

    def make(role: str, magnum=None, settings: str = "", up: bool = True, **more) -> Node:
        name, ip = ("m1", M1) if role == "master" else ("w1", W1)
        given = magnum.parameters() if magnum else {}
        volumes = {"vdb": ("1G", VDB)} if "DOCKER_VOLUME" in more else {}
        node = Node(hosts(name, ip=ip, volumes=volumes), signal_server(port=next(ports)), parameters(role, name, ip, M1, **given) | more)
        return node.up(settings) if up else node
    return make


class SecondMember:
    """An etcd that an operator starts by hand beside the node's own, with certificates of the same CA."""

    def __init__(self, node: Node, ca: CA):
        self.node, self.ip = node, node.inputs["KUBE_NODE_IP"]
        node.host.sh("mkdir -p /srv/etcd2")
        self.trust(ca)
        self.show(ca)

    def show(self, ca: CA):
        """Its own certificate is signed by this one."""
        for path, target in zip(ca.sign("second", subject="/CN=etcd", names=f"IP:{self.ip},IP:127.0.0.1"), ("member.crt", "member.key")):
            self.node.host.write(f"/srv/etcd2/{target}", path.read_text(), 0o600)

    def trust(self, *cas: CA):
        self.node.host.write("/srv/etcd2/ca.crt", "".join(a.certificate.read_text().strip() + "\n" for a in cas))

    def join(self):
        added = self.node.etcdctl("member", "add", "second", f"--peer-urls=https://{self.ip}:2480", seconds=60)
        members = re.search(r'ETCD_INITIAL_CLUSTER="(.*)"', added)[1]
        self.words = [f"--initial-cluster={members}", "--initial-cluster-state=existing"]
        self.start()
        self.healthy()

    def start(self):
        peer, client = f"https://{self.ip}:2480", f"https://{self.ip}:2479"
        tls = [f"--{who}{what}=/srv/etcd2/{file}" for who in ("", "peer-") for what, file in (
            ("cert-file", "member.crt"), ("key-file", "member.key"), ("trusted-ca-file", "ca.crt"))]
        self.node.host.exec(
            "systemd-run", "-q", "--unit=etcd2", "etcd", "--name=second", "--data-dir=/srv/etcd2/data", f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}", f"--listen-client-urls={client}", f"--advertise-client-urls={client}", *tls,
            "--client-cert-auth", "--peer-client-cert-auth", *self.words)

    def restart(self):
        self.node.host.exec("systemctl", "stop", "etcd2")
        self.start()

    def healthy(self):
        """Both answer a client of the node's, which takes both of them."""
        self.node.host.sh(f"cat /srv/etcd2/ca.crt {ETCD}/ca.crt >/run/both.crt")
        for port in (2379, 2479):
            wait_for(lambda: "is healthy" in self.node.host.sh(
                f"ETCDCTL_API=3 etcdctl --command-timeout=3s --endpoints https://{self.ip}:{port} --cacert /run/both.crt "
                f"--cert {ETCD}/admin.crt --key {ETCD}/admin.key endpoint health 2>&1"), 300, f"etcd at {port}")


def ca_of(magnum, kind: str, folder) -> CA:
    """The CA that signs now, for who signs by hand."""
    certificate = magnum.cas()[kind]
    return CA.there(folder, certificate, certificate.with_suffix(".key"))


def refused_without_a_certificate(node: Node):
    with pytest.raises(Failed) as error:
        node.etcdctl("endpoint", "health", certificate="", seconds=10)
    assert "unhealthy" in str(error.value)
    assert node.host.exec("curl", "-s", "--cacert", f"{ETCD}/ca.crt", f"https://{M1}:2379/health", check=False).returncode != 0


def test_a_master_and_a_worker_get_their_whole_set_once(cluster, magnum):
    server = magnum()
    master = cluster("master", server)
    assert not master.mistakes()
    assert server.count() == {"tokens": 1, "cas": 3, "signed": 9, "refused": 0}
    # Three CAs of one name: each of its own.
    assert len({master.read(f"{folder}/ca.crt") for folder in (KUBERNETES, f"{KUBERNETES}/front-proxy", ETCD)}) == 3
    server.forget()
    worker = cluster("worker", server)
    assert not worker.mistakes()
    assert server.count() == {"tokens": 1, "cas": 1, "signed": 2, "refused": 0}
    print(f"certificates: master {master.milliseconds('certificates')} ms, worker {worker.milliseconds('certificates')} ms")

    # etcd speaks to nobody without a certificate of its CA.
    assert "is healthy" in master.etcdctl("endpoint", "health", seconds=60)
    refused_without_a_certificate(master)
    with pytest.raises(Failed):
        master.etcdctl("endpoint", "health", certificate=f"{KUBERNETES}/admin", seconds=10)

    # A second update asks whether the CA is another one, and nothing else; a restart of the agent and a reboot ask nobody.
    for node in (master, worker):
        server.forget()
        before, keys, issued, files = node.started(), node.keys(), node.issued(), node.checksums()
        node.update(WAIT_TIMEOUT=601)
        node.succeeds()
        assert server.count() == {"tokens": 0, "cas": 3 if node is master else 1, "signed": 0, "refused": 0}
        server.forget()
        node.host.exec("systemctl", "restart", UNIT)
        wait_for(lambda: is_steady(node.host), 300, "the restarted agent's steady state")
        assert not node.restarted(before) and node.checksums() == files
        node.host.reboot()
        wait_for(lambda: node.host.is_active("kubelet.service") and is_steady(node.host), 300, "the node after a reboot")
        assert (node.keys(), node.issued(), node.checksums()) == (keys, issued, files)
        assert not server.requests(), [f"{r.method} {r.target}" for r in server.requests()]
        assert not node.mistakes()


def test_the_magnum_of_bays_has_one_ca_and_the_creator_s_token(cluster, magnum):
    server = magnum(release=2)
    master = cluster("master", server)
    assert not master.mistakes()
    said = server.count()
    assert said["tokens"] == 0 and said["signed"] == 9 and said["cas"] >= 1, said
    assert len({master.read(f"{folder}/ca.crt") for folder in (KUBERNETES, f"{KUBERNETES}/front-proxy", ETCD)}) == 1
    assert all(r.json().keys() == {"bay_uuid", "csr"} for r in server.requests("POST"))
    print(f"certificates: {master.milliseconds('certificates')} ms, {said}")


def turned_away(master: Node, certificate: str):
    """By both of etcd's listeners, and because of its name."""
    with pytest.raises(Failed):
        master.etcdctl("get", "/registry", "--prefix", certificate=certificate, seconds=5)
    for port, path in ((2379, "health"), (2380, "members")):
        asked = master.host.exec("curl", "-s", "--http1.1", "--cacert", f"{ETCD}/ca.crt", "--cert", f"{certificate}.crt", "--key",
                                 f"{certificate}.key", f"https://{M1}:{port}/{path}", check=False)
        assert asked.returncode != 0, f"{certificate} at {port}: {asked.stdout}"


def test_a_certificate_of_the_cluster_is_no_key_to_etcd(cluster, magnum, tmp_path):
    """One CA for all: Magnum before 13.0, or CA_* without ETCD_CA_*."""
    server = magnum(release=2)
    master = cluster("master", server)
    assert not master.mistakes()
    assert master.etcdctl("put", "/registry/x", "1").strip() == "OK"
    others = [f"{KUBERNETES}/{name}" for name in ("kubelet", "proxy", "admin", "server", "scheduler", "front-proxy/server")]
    for certificate in others:
        turned_away(master, certificate)
    assert "client certificate authentication failed" in master.host.sh("journalctl -u etcd --no-pager")
    # The others are of the same CA, and etcd's own peers come in.
    shown = ["curl", "-sf", "--http1.1", "--cacert", f"{ETCD}/ca.crt", "--cert", f"{ETCD}/server.crt", "--key", f"{ETCD}/server.key"]
    assert "m1" in master.host.exec(*shown, f"https://{M1}:2380/members").stdout

    # A master of an older agent: the client's certificate has no name, and nobody asks for one.
    ca = ca_of(server, "etcd", tmp_path / "ca")
    key, extensions = master.at(f"{ETCD}/admin.key"), tmp_path / "extensions"
    extensions.write_text("extendedKeyUsage=clientAuth\n")
    request = run("openssl", "req", "-new", "-key", key, "-subj", "/CN=etcd").stdout
    old = run("openssl", "x509", "-req", "-in", "/dev/stdin", "-CA", ca.certificate, "-CAkey", ca.private, "-days", 30,
              "-set_serial", 7, "-extfile", extensions, input=request).stdout
    master.at(f"{ETCD}/admin.crt").write_text(old)
    master.host.sh("rm -r /etc/etcd/allowed; systemctl restart etcd")
    wait_for(lambda: "is healthy" in master.etcdctl("endpoint", "health", seconds=5), 300, "etcd as it was")
    # While Magnum signs nothing, nothing asks for what is not there: not after a restart either.
    keys = master.keys()
    server.answer(403, path="/v1/certificates", method="POST")
    master.update(WAIT_TIMEOUT=701)
    assert "403" in master.result()
    master.host.sh("systemctl restart etcd")
    wait_for(lambda: "is healthy" in master.etcdctl("endpoint", "health", seconds=5), 300, "etcd while Magnum refuses")
    server.behave()
    master.update(WAIT_TIMEOUT=702)
    master.succeeds()
    assert not master.mistakes() and master.keys() == keys
    assert "is healthy" in master.etcdctl("endpoint", "health", seconds=30)
    turned_away(master, f"{KUBERNETES}/kubelet")


def test_a_token_for_joining_needs_an_etcd_that_knows_names(cluster, magnum):
    """The installed etcd says that it is 3.3; nothing is begun on this node."""
    server = magnum(release=2)
    node = cluster("master", server, up=False, BOOTSTRAP_TOKEN="abcdef.0123456789abcdef", CA_KEY="/etc/ca.key")
    stand_ins.into(node.host, VERSION)
    node.host.sh("printf '#!/bin/sh\\necho etcd Version: 3.3.25\\n' >/usr/local/bin/etcd; chmod 755 /usr/local/bin/etcd; "
                 "mkdir -p /etc/systemd/system/etcd.service.d; "
                 "printf '[Service]\\nExecStart=\\nExecStart=/usr/local/bin/etcd\\n' >/etc/systemd/system/etcd.service.d/10-old.conf")
    node.publish()
    start(node.host, node.server, "")
    cause = node.result()
    assert "ETCD_CLIENT_CERT_ALLOWED_HOSTNAME" in cause and "ETCD_CA_CERTIFICATE" in cause, cause
    assert not node.host.is_active("etcd.service")


# What is done to Magnum, what Heat hears of it.
BAD = [("spoil", "expired", "expired"), ("spoil", "not-yet-valid", "not valid before"),
       ("spoil", "wrong-ca", "not signed by the CA"), ("spoil", "foreign-key", "the key does not match"),
       ("spoil", "wrong-name", "its subject is"), ("spoil", "truncated", "truncated"),
       ("spoil", "html", "Magnum"), ("spoil", "empty", "pem"), ("spoil", "null", "pem"), ("status", 401, "401"), ("status", 403, "403")]


def test_one_cause_each_and_nothing_is_replaced(cluster, magnum, tmp_path):
    server = magnum()
    # No API is there; the volume is another keeper's matter, and nothing of it is touched.
    worker = cluster("worker", server, KUBELET_OPTIONS="--register-node=false", DOCKER_VOLUME=VDB)
    files, before = worker.checksums(), worker.started()
    codes = {"not-yet-valid": "HNA-0629", 401: "HNA-0627", 403: "HNA-0627"}
    for number, (how, what, words) in enumerate(BAD):
        server.behave()
        if how == "spoil":
            server.spoil(what)
        else:
            server.answer(what, path="/v1/certificates", method="POST")
        # A name more is a new certificate.
        worker.update(KUBE_NODE_PUBLIC_IP="203.0.113.7", WAIT_TIMEOUT=700 + number)
        cause = worker.result()
        assert words in cause and cause.count(codes.get(what, "HNA-0613")) == 1, f"{what}: {cause}"
        assert worker.checksums() == files, what
    assert not worker.restarted(before)
    # A deployment that failed ends no certificate later: the next agent looks at them, too.
    worker.host.exec("systemctl", "restart", UNIT)

    def node() -> dict:
        status = json.loads(worker.host.exec("heat-node-agent", "status", "--json", check=False).stdout)
        return status["node"] if status["agent"]["pid"] == int(worker.host.show(UNIT, "MainPID")["MainPID"]) else {}
    worker.host.wait_for(lambda: node()["state"] == "rejected" and node()["certificates"]["first_expiry"], what="a look at the certificates")
    # What may pass is waited for, visibly.
    server.behave()
    keys = worker.keys()
    server.answer(409, path="/v1/certificates", method="POST", times=1)  # the cluster is being changed
    server.answer(500, path="/v1/certificates", method="POST", times=1)
    server.answer(delay=3, path="/v1/certificates", method="POST", times=1)
    worker.update(WAIT_TIMEOUT=800)
    worker.succeeds()
    worker.host.reported("CertificatesWaiting")
    assert not worker.mistakes() and worker.keys() == keys
    assert "203.0.113.7" in worker.host.sh(f"openssl x509 -in {KUBERNETES}/kubelet.crt -noout -ext subjectAltName")
    assert worker.restarted(before) == {"kubelet"}
    only_what_has_expired_is_renewed_after_a_failed_update(worker, ca_of(server, "kubernetes", tmp_path / "now"))


def only_what_has_expired_is_renewed_after_a_failed_update(worker: Node, ca: CA):
    """Near its end it is not; what else the update left undone stays so."""
    host = worker.host
    host.exec("systemctl", "mask", "-q", "--runtime", "containerd")
    worker.update(HTTP_PROXY="http://192.0.2.9:3128", WAIT_TIMEOUT=900)
    assert "containerd" in worker.result()
    host.wait_for(lambda: host.journal(HNA_EVENT="UpdateIncomplete"), what="what the update left")
    mounted = host.sh("findmnt -no SOURCE /var/lib/containerd").strip()
    for left_days, is_renewed in ((40, False), (-1, True)):
        host.exec("systemctl", "stop", UNIT)
        for path, *_ in worker.certificates():
            aged(worker.at(f"{path}.crt"), ca, since_days=200, left_days=left_days)
        issued, before = worker.issued(), worker.started()
        host.exec("systemctl", "start", UNIT)
        if is_renewed:
            host.wait_for(lambda: all(worker.issued()[path] != one for path, one in issued.items()), what="renewed certificates")
            wait_for(lambda: "kubelet" in worker.restarted(before), 60, "a kubelet that reads its new certificate")
            assert worker.restarted(before) <= {"kubelet", "kube-proxy"}, worker.restarted(before)
            assert host.sh("findmnt -no SOURCE /var/lib/containerd").strip() == mounted
        else:
            host.wait_for(lambda: host.journal(HNA_EVENT="CertificateNearExpiry"), what="that nothing is renewed")
            assert worker.issued() == issued
    assert host.show("containerd.service", "LoadState")["LoadState"] == "masked"
    assert "192.0.2.9" not in host.sh("systemctl show -P Environment containerd")
    host.exec("systemctl", "unmask", "-q", "--runtime", "containerd")


def test_a_ca_rotation_takes_three_steps(cluster, magnum, tmp_path):
    server = magnum()
    master = cluster("master", server)
    old = ca_of(server, "etcd", tmp_path / "old")
    second = SecondMember(master, old)
    second.join()
    assert len(master.etcdctl("member", "list", seconds=60).splitlines()) == 2
    keys, issued = master.keys(), master.issued()
    cas = {folder: master.read(f"{folder}/ca.crt") for folder in (KUBERNETES, f"{KUBERNETES}/front-proxy", ETCD)}
    everything = {"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy"}

    server.rotate()
    new = ca_of(server, "etcd", tmp_path / "new")
    before = master.started()
    master.update(WAIT_TIMEOUT=601)
    master.succeeds()
    for folder, one in cas.items():
        bundle = master.read(f"{folder}/ca.crt")
        assert bundle.count(b"BEGIN CERTIFICATE") == 2 and one.strip() in bundle, folder
    assert (master.keys(), master.issued()) == (keys, issued) and not master.mistakes()
    assert master.restarted(before) == everything
    master.host.reported("RotationWaiting")
    second.healthy()
    # The same parameters again change nothing.
    before, files = master.started(), master.checksums()
    master.update(WAIT_TIMEOUT=602)
    master.succeeds()
    assert not master.restarted(before) and master.checksums() == files
    second.trust(old, new)
    second.restart()
    second.healthy()

    # One step by the command.
    master.host.exec("heat-node-agent", "certificates", "rotate")
    wait_for(lambda: all(master.issued()[path] != issued[path] for path in issued), 300, "certificates by the new CA")
    wait_for(lambda: master.restarted(before) == everything and master.healthy(), 300, "the end of the step")
    assert master.keys() == keys and not master.mistakes()
    second.healthy()
    second.show(new)
    second.restart()
    second.healthy()

    before = master.started()
    master.update(CA_ROTATION="drop-old")
    master.succeeds()
    for folder, one in cas.items():
        bundle = master.read(f"{folder}/ca.crt")
        assert bundle.count(b"BEGIN CERTIFICATE") == 1 and one.strip() not in bundle, folder
    assert master.keys() == keys and not master.mistakes() and master.restarted(before) == everything
    second.trust(new)
    second.restart()
    second.healthy()
    # Who still shows the old one is nobody.
    second.show(old)
    second.restart()
    wait_for(lambda: "certificate signed by unknown authority" in master.host.sh("journalctl -u etcd -u etcd2 --no-pager | tail -n 50"), 300,
             "the refusal of a certificate by the old CA")


def test_keys_by_openssl_and_a_worker_that_joins_by_a_token(cluster, magnum, tmp_path):
    server = magnum()
    token = "abcdef.0123456789abcdef"
    ca = server.cas()["kubernetes"]
    master = cluster("master", server, BOOTSTRAP_TOKEN=token, MASTER_INDEX=0, CERT_MANAGER_API="True",
                     CA_KEY=ca.with_suffix(".key").read_text(), CERTIFICATE_KEYS="rsa-2048")
    assert not master.mistakes()
    texts = [master.host.sh(f"openssl pkey -in {path}.key -noout -text") for path, *_ in master.certificates()]
    sizes = {re.search(r"\((\d+) bit", text)[1] for text in texts}
    assert sizes == {"2048"}
    written = len(master.host.reported("ObjectWritten", 6))
    print(f"certificates with RSA: {master.milliseconds('certificates')} ms")

    worker = cluster("worker", CERTIFICATES="bootstrap", BOOTSTRAP_TOKEN=token, CA_CERTIFICATE=ca.read_text())
    client = "/var/lib/kubelet/pki/kubelet-client-current.pem"
    worker.host.wait_for(lambda: "registered node w1" in worker.host.sh("journalctl -u kubelet --no-pager"), 300, "registration")
    assert "system:node:w1" in worker.host.sh(f"openssl x509 -in {client} -noout -subject")
    assert worker.host.sh(f"openssl verify -CAfile {KUBERNETES}/ca.crt {client}").endswith("OK\n")
    assert server.count()["signed"] == 9  # none for the worker
    # The token and its bindings were written once, and the node again for its label.
    master.update(NODE_LABELS="step=1")
    master.succeeds()
    assert (written, len(master.host.journal(HNA_EVENT="ObjectWritten"))) == (6, 7)

    # Without openssl there is no RSA, and nothing else is made in its place.
    files = master.checksums()
    master.host.sh("mv /usr/bin/openssl /usr/bin/openssl.away")
    master.update(CERTIFICATE_KEYS="rsa-3072")
    cause = master.result()
    master.host.sh("mv /usr/bin/openssl.away /usr/bin/openssl")
    assert "openssl" in cause and master.checksums() == files, cause
    # A key that belongs to none of the CAs is refused before the controller manager reads it.
    other = CA(tmp_path / "other")
    master.update(CERTIFICATE_KEYS="rsa-2048", CA_KEY=other.private.read_text())
    assert "CA_KEY" in master.result() and master.checksums() == files


def test_certificates_that_the_parameters_give(cluster, tmp_path):
    """A CA by new-ca; pairs by content and by path; an end that is near."""
    worker = cluster("worker", up=False)
    worker.host.install_agent()
    worker.host.exec("heat-node-agent", "certificates", "new-ca", "--out", "/root/ca", "--name", "blue")
    modes = dict(line.split()[::-1] for line in worker.host.sh("cd /root/ca; stat -c '%a %n' . *").splitlines())
    assert modes["."] == "700" and all(
        mode == ("644" if name.endswith(".crt") or name == "service_account.key" else "600") for name, mode in modes.items() if name != "."), modes
    given = yaml.safe_load(worker.host.read("/root/ca/parameters.yaml"))["parameters"]
    again = worker.host.exec("heat-node-agent", "certificates", "new-ca", "--out", "/root/ca", check=False)
    assert again.returncode == 1 and "/root/ca" in again.stderr, again

    master = cluster("master", **given)
    assert not master.mistakes()
    # etcd has a CA of its own, which alone decides: nothing is asked of names, and the cluster's is nobody there.
    assert "etcd-client" not in master.host.sh(f"openssl x509 -in {ETCD}/admin.crt -noout -text; ls /etc/etcd")
    with pytest.raises(Failed):
        master.etcdctl("get", "/registry", certificate=f"{KUBERNETES}/kubelet", seconds=5)
    keys, issued = master.keys(), master.issued()
    master.update(NODE_LABELS="step=1")
    master.succeeds()
    assert (master.keys(), master.issued()) == (keys, issued)

    # A worker gets no CA's key: its own pairs are given, one as text, one by path.
    for name in ("CA_CERTIFICATE", "CA_KEY"):
        (tmp_path / name).write_text(given[name])
    ca = CA.there(tmp_path / "given", tmp_path / "CA_CERTIFICATE", tmp_path / "CA_KEY")
    kubelet = ca.sign("kubelet", subject="/O=system:nodes/CN=system:node:w1", names=f"DNS:w1,IP:{W1}")
    proxy = ca.sign("proxy", subject="/O=system:node-proxier/CN=system:kube-proxy", names="DNS:nobody.invalid")

    def put():
        for path, target in zip(proxy, ("proxy.crt", "proxy.key")):
            worker.host.write(f"/etc/pki/{target}", path.read_text(), 0o600)
    put()
    worker.inputs |= {"CERTIFICATES": "given", "CA_CERTIFICATE": given["CA_CERTIFICATE"], "KUBELET_CERTIFICATE": kubelet[0].read_text(),
                      "KUBELET_KEY": kubelet[1].read_text(), "PROXY_CERTIFICATE": "/etc/pki/proxy.crt", "PROXY_KEY": "/etc/pki/proxy.key"}
    worker.up()
    for path, given in ((f"{KUBERNETES}/kubelet", kubelet), (f"{KUBERNETES}/proxy", proxy)):
        assert [worker.read(f"{path}.{end}") for end in ("crt", "key")] == [p.read_bytes() for p in given]
    listed = worker.host.exec("heat-node-agent", "certificates", check=False)
    assert listed.returncode == 0 and "system:node:w1" in listed.stdout, listed.stdout
    page = worker.host.exec("heat-node-agent", "certificates", "--json").stdout
    assert json.loads(page)["schema_version"] and "PRIVATE" not in page
    # What a path names is read again with a stack update.
    aged(proxy[0], ca, since_days=20, left_days=5)
    put()
    worker.update(NODE_LABELS="step=1")
    worker.succeeds()
    assert worker.read(f"{KUBERNETES}/proxy.crt") == proxy[0].read_bytes()
    assert worker.host.exec("heat-node-agent", "certificates", check=False).returncode == 2
    worker.host.reported("CertificateNearExpiry")
    worker.host.wait_for(lambda: worker.status()["phase"] == "steady", what="a steady state")
