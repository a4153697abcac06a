"""Fixtures of the stand-ins' own tests. etcd is the real one, from PATH or from the root that hosts are made of."""
import json
import shutil
import subprocess

import pytest
from lib.certificates import Authority, public_key
from lib.common import TESTHOST, run, wait_for
from lib.stand_ins import Running, free_port, get, kubeconfig


@pytest.fixture(scope="session")
def pki(tmp_path_factory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("pki")
    ca = Authority(folder)
    made = {"ca": str(ca.certificate), "cakey": str(ca.private), "dir": str(folder)}
    for name, more in (("server", {}), ("other", {}), ("expired", {"days": -1}),
                       ("node", {"subject": "/O=system:nodes/CN=system:node:node-1"}),
                       ("manager", {"subject": "/CN=system:kube-controller-manager"}),
                       ("admin", {"subject": "/O=system:masters/CN=admin"})):
        made[name], made[f"{name}key"] = map(str, ca.sign(name, **more))
    made["sapub"] = str(folder / "sa.pub")
    public_key(ca.private, folder / "sa.pub")
    (folder / "garbage").write_text("-----BEGIN CERTIFICATE-----\nMIIBqqqq\n-----END CERTIFICATE-----\n")
    made["garbage"] = str(folder / "garbage")
    second = Authority(folder / "second")
    (folder / "bundle").write_bytes(ca.certificate.read_bytes() + second.certificate.read_bytes())
    run("openssl", "pkcs8", "-topk8", "-nocrypt", "-in", ca.private, "-out", folder / "ecpkcs8")
    run("openssl", "genpkey", "-algorithm", "RSA", "-out", folder / "rsapkcs8")
    (folder / "mislabelled").write_text((folder / "ecpkcs8").read_text().replace("PRIVATE", "EC PRIVATE"))
    made |= {name: str(folder / name) for name in ("bundle", "ecpkcs8", "rsapkcs8", "mislabelled")}
    (folder / "empty").mkdir()
    made["empty"] = str(folder / "empty")
    for name, text in {
        "config": kubeconfig(made), "token": kubeconfig(made, user={"token": "abc.def"}),
        "http": kubeconfig(made, server="http://192.0.2.1:8080"),
        "bad-server": kubeconfig(made, server="192.0.2.1:6443"), "bad-ca": kubeconfig(made, ca="/nowhere/ca.crt"),
        "bad-pair": kubeconfig(made, user={"client-certificate": made["node"], "client-key": made["otherkey"]}),
        "bad-context": {**kubeconfig(made), "current-context": "gone"}, "bad-field": kubeconfig(made, cluster={"cert-authority": "x"}),
    }.items():
        (folder / name).write_text(json.dumps(text))
        made[name] = str(folder / name)
    return made


@pytest.fixture
def running(tmp_path):
    """running(programs, name, *words) starts one; all are ended."""
    made: list[Running] = []

    def start(programs, name, *words, **more) -> Running:
        made.append(Running(programs, name, *words, control=tmp_path, **more))
        return made[-1]
    yield start
    for one in made:
        one.end()


@pytest.fixture
def etcd(tmp_path):
    """A real etcd 3.4 with both of its APIs; the address of its clients."""
    program = shutil.which("etcd") or TESTHOST / "cache/node/usr/bin/etcd"
    client, peer = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
    with open(tmp_path / "etcd.log", "wb") as log:
        process = subprocess.Popen([program, "--data-dir", tmp_path / "etcd", "--enable-v2", "--listen-client-urls", client,
                                    "--advertise-client-urls", client,
                                    "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster",
                                    f"default={peer}"],
                                   stdout=log, stderr=log)
    wait_for(lambda: get(client, "/health")[0] == 200, 300, "etcd")
    yield client
    process.terminate()
    process.wait(300)
