"""tests/stand-ins as tests use them: asked inside this process, or installed and run."""
import http.client
import os
import ssl
import subprocess
import sys
import tempfile
from pathlib import Path

from lib import flanneld
from lib.common import PYTHON, TESTS, free_port, run

sys.path.insert(0, str(TESTS / "stand-ins"))

from stand_in import Refused, tables  # noqa: E402
from stand_in.main import checked  # noqa: E402

# Where one on a host looks for orders: a file of its name, which it obeys.
CONTROL = "/run/heat-node-agent-stand-ins"
# By their places on a host: Debian's containernetworking-plugins, which host.sh installs, and flannel's own, which has no package.
CNI_PROGRAMS = {f"/opt/cni/bin/{name}": (Path("/usr/lib/cni") / name, 0o755) for name in ("bridge", "host-local", "loopback", "portmap")} | \
    {"/opt/cni/bin/flannel": (TESTS / "stand-ins/cni-flannel", 0o755)}


def accepts(component: str, version: str, *words: str, environment: dict | None = None):
    """What the program makes of this command line; Refused if it would not run."""
    return checked(component, version, list(words), environment or {})


def refusal(component: str, version: str, *words: str) -> str:
    """Its last words, or nothing."""
    try:
        accepts(component, version, *words)
    except Refused as refused:
        return str(refused)
    return ""


def install(folder: Path, *versions: str) -> Path:
    run(PYTHON, "-B", TESTS / "stand-ins/install", folder, *versions)
    return folder


def into(host, *versions: str):
    """Installs them on a host."""
    host.put(files(*versions))


def files(*versions: str) -> dict[str, tuple[bytes | Path, int]]:
    """As Host.put takes them: the programs, and PyYAML, which no host's root has. flanneld is the one that HNA_FLANNELD gives, where that is of the
    version: on this machine itself, where install() is for, it would change routes and firewall."""
    import yaml
    with tempfile.TemporaryDirectory() as folder:
        install(Path(folder), *versions)
        made = {f"/usr/local/bin/{p.relative_to(folder)}": (p.read_bytes(), p.stat().st_mode & 0o777) for p in Path(folder).rglob("*")
                 if p.is_file()}
    program = flanneld.given()
    if program and f"flanneld={program.version}" in versions:
        made["/usr/local/bin/flanneld"] = program.path, 0o755
    library = Path(yaml.__file__).parent
    return made | {f"/usr/lib/python3/dist-packages/yaml/{p.name}": (p, 0o644) for p in library.glob("*.py")}


class Running:
    """A stand-in as a process of its own; output in a file beside its control folder."""

    def __init__(self, programs: Path, name: str, *words, notify: Path | None = None, control: Path):
        self.log = control / f"{name}-{len(list(control.glob('*.log')))}.log"
        environment = {**os.environ, "HNA_STAND_IN_CONTROL": str(control), "HNA_STAND_IN_PATIENCE": "300"}
        environment.pop("NOTIFY_SOCKET", None)
        if notify:
            environment["NOTIFY_SOCKET"] = str(notify)
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen([programs / name, *map(str, words)], env=environment, stdin=subprocess.DEVNULL, stdout=log,
                                            stderr=log)

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def wait(self, seconds: float = 300) -> int:
        return self.process.wait(seconds)

    def end(self) -> int:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(300)
            except subprocess.TimeoutExpired:
                self.process.kill()
        return self.process.wait()


def get(url: str, path: str, pki: dict | None = None, who: str = "", method: str = "GET", body: str | None = None,
        kind: str = "") -> tuple[int, str]:
    host = url.split("//")[1]
    if url.startswith("https"):
        context = ssl.create_default_context(cafile=pki["ca"])
        if who:
            context.load_cert_chain(pki[who], pki[f"{who}key"])
        connection = http.client.HTTPSConnection(host, timeout=300, context=context)
    else:
        connection = http.client.HTTPConnection(host, timeout=300)
    try:
        connection.request(method, path, body, {"Content-Type": kind} if kind else {})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def kubeconfig(pki: dict, server: str = "https://192.0.2.1:6443", ca: str = "", user: dict | None = None,
               cluster: dict | None = None) -> dict:
    user = user or {"client-certificate": pki["node"], "client-key": pki["nodekey"]}
    return {"apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "k", "cluster": {"server": server, "certificate-authority": ca or pki["ca"], **(cluster or {})}}],
            "users": [{"name": "u", "user": user}], "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}]}


__all__ = ["Refused", "Running", "accepts", "files", "free_port", "get", "install", "into", "kubeconfig", "refusal", "tables"]
