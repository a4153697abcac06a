"""Fixtures of the stand-ins' own tests. etcd is the real one, from PATH or from the root that hosts are made of."""
import shutil
import subprocess

import pytest
from lib.common import TESTHOST, wait_for
from lib.stand_ins import Running, free_port, get
from lib.strictness import certificates_and_files


@pytest.fixture(scope="session")
def pki(tmp_path_factory) -> dict[str, str]:
    return certificates_and_files(tmp_path_factory.mktemp("pki"))


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
