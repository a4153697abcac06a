"""The element heat-node-kubernetes: what it refuses before an image is built, and what its hooks do to a root of Debian, with programs
that are thrown away afterwards; with the real ones where tests/real-kubernetes/up.sh or HNA_KUBERNETES has them."""
import functools
import hashlib
import http.server
import io
import json
import os
import re
import shutil
import ssl
import tarfile
import threading
from pathlib import Path

import pytest

from lib.common import REPO, SUITE, TESTHOST, run
from lib.hosts import agent_binary, unit_files

ELEMENT = REPO / "image-build/elements/heat-node-kubernetes"
PAGE = REPO / "docs/heat-templates.md"
VERSION = "1.31.4"
NODE, MASTER = ("kubelet", "kube-proxy"), ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
PLUGINS = ("bridge", "host-local", "loopback", "portmap")
# What programs say of themselves.
SAID = {name: f"Kubernetes v{VERSION}" for name in (*NODE, *MASTER)} | {
    "kubectl": f"Client Version: v{VERSION}", "crictl": "crictl version v1.31.1", "etcd": "etcd Version: 3.5.16", "etcdctl": "etcdctl version: 3.5.16",
    "containerd": "containerd github.com/containerd/containerd v1.7.24 0123456", "containerd-shim-runc-v2": "", "ctr": "", "runc": "runc version 1.1.14"}
OF_CONTAINERD, OF_ETCD = ("containerd", "containerd-shim-runc-v2", "ctr", "runc"), ("etcd", "etcdctl")
VARIABLES = re.findall(r"(?m)^(DIB_KUBERNETES_\w+)=\$\{\w+:-(.*)\}$", (ELEMENT / "environment.d/10-heat-node-kubernetes").read_text())
# The root of a host with all packages that a node has, in a mount namespace that ends with the script; the agent, as its own element brings
# it; then the hooks as diskimage-builder runs them. $5: what is done to the root before, $6: what is looked at afterwards.
HOOKS = r"""
mount -t tmpfs none "$1"; cd "$1"; mkdir upper work root
mount -t overlay none -o "lowerdir=$2,upperdir=upper,workdir=work" root
mount -t proc none root/proc
tar -C root -xf "$3"
mkdir root/tmp/in_target.d
cp -a "$4"/. root/tmp/in_target.d/
chroot root systemctl enable --no-reload --quiet heat-node-agent
target() {
  chroot root env -i PATH=/tmp/in_target.d/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin DIB_HEAT_NODE_AGENT_VERIFY=1 "${given[@]}" "$@" >&2
}
all() { for hook in root/tmp/in_target.d/{install.d/65,post-install.d/82,finalise.d/99}-*; do target "${hook#root}"; done; }
given=("${@:7}")
eval "$5"
eval "$6"
"""


def script(said: str) -> bytes:
    return f"#!/bin/sh\necho '{said}'\n".encode()


def archive(files: dict[str, bytes]) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(data), 0o755 if data.startswith(b"#!") else 0o644
            tar.addfile(member, io.BytesIO(data))
    return made.getvalue()


def programs(*names: str, **said: str) -> dict[str, bytes]:
    return {name: script(said.get(name.replace("-", "_"), SAID[name])) for name in names}


def plain(**said: str) -> dict[str, bytes]:
    """A source with each program as a file."""
    return programs(*SAID, **said) | {f"cni/{name}": script(name) for name in PLUGINS}


def published() -> dict[str, bytes]:
    """A source with the archives under the names and with the folders of their projects."""
    server = {f"kubernetes/server/bin/{n}": d for n, d in (programs(*NODE, *MASTER, "kubectl") | {"kubeadm": script("kubeadm")}).items()}
    return {"kubernetes-server-linux-amd64.tar.gz": archive(server | {"kubernetes/server/bin/kube-proxy.tar": b"an image", "kubernetes/LICENSES": b"x"}),
            "kubernetes-server-linux-arm64.tar.gz": b"of another architecture",
            "cni-plugins-linux-amd64-v1.6.0.tgz": archive({f"./{n}": script(n) for n in PLUGINS} | {"./README.md": b"x"}),
            "crictl-v1.31.1-linux-amd64.tar.gz": archive(programs("crictl")),
            "containerd-1.7.24-linux-amd64.tar.gz": archive({f"bin/{n}": d for n, d in programs("containerd", "containerd-shim-runc-v2", "ctr").items()}),
            "runc.amd64": programs("runc")["runc"],
            "etcd-v3.5.16-linux-amd64.tar.gz": archive({f"etcd-v3.5.16-linux-amd64/{n}": d for n, d in programs(*OF_ETCD).items()}),
            "README.md": b"not a program"}


def sums(files: dict[str, bytes]) -> str:
    return "".join(f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in files.items())


def lay(folder: Path, files: dict[str, bytes], listed: str | None = None) -> Path:
    for name, data in (files | {"SHA256SUMS": (sums(files) if listed is None else listed).encode()}).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def variables(**given) -> dict[str, str]:
    """As environment.d of the element leaves them."""
    return dict(VARIABLES) | {"DIB_KUBERNETES_VERSION": VERSION} | {f"DIB_KUBERNETES_{k}": str(v) for k, v in given.items()}


def bring(hooks: Path, environment: dict | None = None, **given):
    """extra-data.d, as diskimage-builder runs it outside of the chroot."""
    hooks.mkdir(exist_ok=True)
    return run(ELEMENT / "extra-data.d/55-heat-node-kubernetes", check=False,
               env={"TMP_HOOKS_PATH": str(hooks), "DIB_IMAGE_CACHE": "", "ARCH": "amd64"} | variables(**given) | (environment or {}))


def tree(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {str(p.relative_to(folder)): (p.stat().st_mode, p.read_bytes()) for p in folder.rglob("*") if p.is_file()}


def refused(done, words: str):
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1, done.stdout + done.stderr
    assert done.stderr.startswith("heat-node-kubernetes element: ") and words in done.stderr, done.stderr


# --- outside of the image ---------------------------------------------------------------------------
def without(name: str) -> dict[str, bytes]:
    return {n: d for n, d in plain().items() if n != name}


KUBELET = hashlib.sha256(b"x").hexdigest() + "  kubelet\n"
# name → (files of the source, its SHA256SUMS where that is not what they have, variables, words of the message)
REFUSED = {
    "no version": ({}, None, {"VERSION": ""}, "DIB_KUBERNETES_VERSION= is no release"),
    "half a version": ({}, None, {"VERSION": "1.31"}, "DIB_KUBERNETES_VERSION=1.31 is no release"),
    "no source": ({}, None, {"SOURCE": ""}, "set DIB_KUBERNETES_SOURCE"),
    "absent directory": ({}, None, {"SOURCE": "/var/empty/programs"}, "DIB_KUBERNETES_SOURCE=/var/empty/programs is no directory"),
    "another protocol": ({}, None, {"SOURCE": "ftp://192.0.2.1/"}, "https://, http:// or a directory"),
    "sums without protection": ({}, None, {"SOURCE": "http://192.0.2.1/"}, "set DIB_KUBERNETES_CHECKSUMS"),
    "no role": ({}, None, {"ROLES": " "}, "DIB_KUBERNETES_ROLES is empty"),
    "unknown role": ({}, None, {"ROLES": "master worker"}, "worker is no role"),
    "unknown runtime": ({}, None, {"RUNTIME": "rkt"}, "DIB_KUBERNETES_RUNTIME=rkt is not known"),
    "unknown network": ({}, None, {"NETWORK_DRIVER": "weave"}, "DIB_KUBERNETES_NETWORK_DRIVER=weave is not known"),
    "absent metadata": ({}, None, {"METADATA": "/var/empty/node.json"}, "/var/empty/node.json is no file"),
    "absent checksums": ({}, None, {"CHECKSUMS": "/var/empty/SUMS"}, "DIB_KUBERNETES_CHECKSUMS=/var/empty/SUMS is no file"),
    "wrong sum": (plain() | {"kubelet": script("changed")}, sums(plain()), {}, "kubelet is not the file whose SHA-256 is "),
    "no sum of a program": (plain(), sums(without("kube-proxy")), {}, "has no sum of kube-proxy, a file in "),
    "no sum of a plugin": (plain(), sums(without("cni/bridge")), {}, "has no sum of cni/bridge, a file in "),
    "two sums": (plain(), sums(plain()) + KUBELET, {}, "has two sums of kubelet"),
    "no sum at all": (plain(), "kubelet\n", {}, "not a line of sha256sum: kubelet"),
    "a place elsewhere": (plain(), sums(plain()) + KUBELET.replace("kubelet", "../kubelet"), {}, "../kubelet is not below the source"),
    "absent program": (without("kube-scheduler"), sums(plain()), {}, "kube-scheduler is in the list of sums, but not in "),
    "needed program": (without("kube-scheduler"), None, {}, "names no kube-scheduler, nor an archive with it"),
    "a program twice": (plain() | published(), None, {}, "is in the source twice"),
    "a broken archive": (plain() | {"x.tgz": b"no archive"}, None, {}, "x.tgz cannot be unpacked"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_brought_is_said_by_one_message_before_the_image_is_built(tmp_path, name):
    files, listed, given, words = REFUSED[name]
    refused(bring(tmp_path / "hooks", **{"SOURCE": lay(tmp_path / "source", files, listed), **given}), words)


def test_a_directory_without_sums_is_refused(tmp_path):
    (lay(tmp_path / "source", plain()) / "SHA256SUMS").unlink()
    refused(bring(tmp_path / "hooks", SOURCE=tmp_path / "source"), "has no SHA256SUMS")
    (tmp_path / "SUMS").write_text(sums(plain()))
    done = bring(tmp_path / "hooks", SOURCE=tmp_path / "source", CHECKSUMS=tmp_path / "SUMS")
    assert done.returncode == 0, done


def test_archives_as_they_are_published_give_what_single_files_give(tmp_path):
    for name, files in (("single", plain()), ("archives", published())):
        done = bring(tmp_path / f"{name}-hooks", SOURCE=lay(tmp_path / name, files))
        assert done.returncode == 0, done
    made = tree(tmp_path / "single-hooks")
    assert {name.removeprefix("heat-node-kubernetes/") for name in made} == {f"bin/{n}" for n in SAID} | {f"cni/{n}" for n in PLUGINS}
    assert tree(tmp_path / "archives-hooks") == made
    # The other architecture's was left alone, and what is no program is named.
    assert "README.md is not used" in done.stdout, done.stdout
    # Once more: nothing of a run before is in the way, or stays.
    assert bring(tmp_path / "archives-hooks", SOURCE=lay(tmp_path / "archives", published())).returncode == 0
    assert tree(tmp_path / "archives-hooks") == made


@pytest.fixture
def served(tmp_path):
    """served(folder, tls) → its URL at the loopback address, what was asked for, and how it ends."""
    made = []

    def serve(folder: Path, certificate: Path | None = None):
        asked = []

        class Handler(http.server.SimpleHTTPRequestHandler):
            def log_request(self, *_):
                asked.append(self.path)

            def log_message(self, *_):
                pass
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=folder))
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        made.append(server)

        def end():
            server.shutdown()
            server.server_close()
            made.remove(server)
        return f"http{'s' if certificate else ''}://127.0.0.1:{server.server_port}/", asked, end
    yield serve
    for server in made:
        server.shutdown()
        server.server_close()


def test_a_url_gives_what_its_directory_gives(tmp_path, served):
    source = lay(tmp_path / "source", published())
    assert bring(tmp_path / "expected", SOURCE=source).returncode == 0
    certificate = tmp_path / "certificate.pem"
    run("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", certificate, "-out", tmp_path / "c.crt",
        "-subj", "/CN=programs", "-addext", "subjectAltName=IP:127.0.0.1")
    with open(certificate, "a") as both:
        both.write((tmp_path / "c.crt").read_text())
    url, asked, _ = served(source, certificate)
    refused(bring(tmp_path / "hooks", SOURCE=url), "SHA256SUMS cannot be had: ")
    assert not asked
    done = bring(tmp_path / "hooks", {"CURL_CA_BUNDLE": str(tmp_path / "c.crt")}, SOURCE=url)
    assert done.returncode == 0, done
    assert tree(tmp_path / "hooks") == tree(tmp_path / "expected")
    assert asked[0] == "/SHA256SUMS" and "/kubernetes-server-linux-arm64.tar.gz" not in asked and "/README.md" not in asked, asked


def test_a_url_without_tls_gives_what_ones_own_sums_say_and_only_once(tmp_path, served):
    source = lay(tmp_path / "source", published(), "")
    own, cache = tmp_path / "SUMS", {"DIB_IMAGE_CACHE": str(tmp_path / "cache")}
    own.write_text(sums(published()))
    url, asked, end = served(source)
    (source / "runc.amd64").write_bytes(b"another")
    refused(bring(tmp_path / "hooks", cache, SOURCE=url, CHECKSUMS=own), "runc.amd64 is not the file whose SHA-256 is ")
    (source / "runc.amd64").unlink()
    refused(bring(tmp_path / "hooks", cache, SOURCE=url, CHECKSUMS=own), "/runc.amd64 cannot be had: ")
    lay(source, published(), "")
    asked.clear()
    assert bring(tmp_path / "hooks", cache, SOURCE=url, CHECKSUMS=own).returncode == 0
    # What came before the one that was wrong was kept.
    assert asked == ["/runc.amd64"], asked
    made = tree(tmp_path / "hooks")
    # A damaged copy is asked for again; without a server, it is an error and not a program.
    end()
    assert bring(tmp_path / "hooks", cache, SOURCE=url, CHECKSUMS=own).returncode == 0 and tree(tmp_path / "hooks") == made
    (tmp_path / "cache/heat-node-kubernetes" / hashlib.sha256(published()["runc.amd64"]).hexdigest()).write_bytes(b"damaged")
    refused(bring(tmp_path / "hooks", cache, SOURCE=url, CHECKSUMS=own), "/runc.amd64 cannot be had: ")


# --- in the image -----------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def layers(testhost) -> str:
    cache = TESTHOST / ("cache" if SUITE == "bookworm" else f"cache-{SUITE}")
    return ":".join(str(cache / name) for name in ("cloud", "node", "base"))


@pytest.fixture(scope="module")
def agent(tmp_path_factory) -> Path:
    """What the element heat-node-agent brings, as an archive."""
    made = tmp_path_factory.mktemp("agent") / "agent.tar"
    with tarfile.open(made, "w") as tar:
        files = {"usr/bin/heat-node-agent": agent_binary()} | {p.lstrip("/"): s for p, s in unit_files(REPO / "units").items()}
        files |= {f"usr/share/heat-node-agent/units/{s.name}": s for s in (REPO / "units/components").iterdir()}
        for path, source in files.items():
            if path.startswith("usr/lib/systemd/system/") and source.parent.name == "components":
                continue
            member = tar.gettarinfo(source, path)
            member.uid = member.gid = 0
            member.mode = 0o755 if path.startswith("usr/bin/") else 0o644
            with open(source, "rb") as data:
                tar.addfile(member, data)
    return made


# Docker's own containerd, etcd and their units are in that root, from packages.
BARE = r"""rm -f root/usr/bin/{containerd*,ctr,etcd,etcdctl,docker} root/usr/sbin/{runc,dockerd}
for unit in containerd etcd docker; do rm -f root/{usr/,}lib/systemd/system/$unit.{service,socket}; done
sed -i /^etcd:/d root/etc/passwd root/etc/group root/etc/shadow root/etc/gshadow"""
# Says what it was asked for; a test gives it more to do.
INSTALL = "#!/bin/sh\necho \"$*\" >>/run/asked\n"


@pytest.fixture
def built(layers, agent, tmp_path):
    """built(files of the source, before, after, **variables) → what the hooks ended with, after those outside."""
    def make(files: dict[str, bytes], before: str = BARE, after: str = "all", install: str = "", **given):
        hooks = tmp_path / "hooks"
        shutil.rmtree(tmp_path / "source", ignore_errors=True)
        brought = bring(hooks, SOURCE=lay(tmp_path / "source", files), **given)
        assert brought.returncode == 0, brought
        return within(hooks, before, after, install, **given)

    def within(hooks: Path, before: str, after: str, install: str = "", **given):
        for folder in ("bin", "install.d", "post-install.d", "finalise.d"):
            run("cp", "-a", ELEMENT / folder, hooks) if (ELEMENT / folder).is_dir() else None
        (hooks / "bin/install-packages").write_text(INSTALL + install)
        (hooks / "bin/install-packages").chmod(0o755)
        place = tmp_path / "mount"
        place.mkdir(exist_ok=True)
        return run("unshare", "--mount", "bash", "-euo", "pipefail", "-c", HOOKS, "-", place, layers, agent, hooks, before, after,
                   *(f"{k}={v}" for k, v in variables(**given).items()), check=False, timeout=900)
    make.within = within
    return make


LIST = r"""find upper ! -type d ! -path '*/tmp/*' -printf '%P %m %l ' \( -type f -exec sh -c 'sha256sum <"$1"' - {} \; -o -printf '\n' \) | sort"""


def test_an_image_gets_all_from_the_source_and_is_fit_for_both_roles(built):
    done = built(plain(), after=f"all; {LIST} >list; all; {LIST} | diff list -; cat list; grep ^etcd: root/etc/passwd; "
                 "grep ExecStart= root/etc/systemd/system/containerd.service; ls root/run/asked 2>/dev/null || echo no packages")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr.count("settings, the image and what 1 kubernetes-node deployments") == 4 and done.stderr.count(": no mistakes") == 4, done.stderr
    made = {line.split()[0]: line.split()[1] for line in done.stdout.splitlines() if re.match(r"\S+ [0-7]{3} ", line)}
    for name in (*SAID, *(f"../../../opt/cni/bin/{p}" for p in PLUGINS)):
        place = os.path.normpath(f"usr/local/bin/{name}")
        assert made.get(place) == "755", (place, made)
    for unit in (*NODE, *MASTER, "containerd", "etcd"):
        assert made[f"etc/systemd/system/{unit}.service"] == "644"
        assert not any(name.endswith(f".wants/{unit}.service") for name in made), f"{unit} is enabled"
    assert "etc/systemd/system/flanneld.service" not in made
    rest = done.stdout.splitlines()[-3:]
    assert re.match(r"etcd:x:\d+:\d+::/var/lib/etcd:/usr/sbin/nologin$", rest[0]), rest
    assert rest[1:] == ["ExecStart=/usr/local/bin/containerd", "no packages"], rest


def test_a_minion_s_image_has_no_master_in_it(built):
    names = (*NODE, *OF_CONTAINERD)
    files = programs(*names) | {f"cni/{name}": script(name) for name in PLUGINS}
    done = built(files, after="all; ls root/etc/systemd/system root/usr/local/bin", ROLES="minion")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "kubelet.service" in done.stdout and "kube-apiserver" not in done.stdout and "etcd" not in done.stdout, done.stdout
    assert done.stderr.count(": no mistakes") == 1, done.stderr


def test_what_the_source_lacks_is_a_package_or_in_the_image_already(built):
    files = programs(*NODE, *MASTER, "kubectl")
    plugins = f"mkdir -p /usr/lib/cni; for n in {' '.join(PLUGINS)}; do printf '#!/bin/sh\\n' >/usr/lib/cni/$n; chmod 755 /usr/lib/cni/$n; done"
    # In the image: containerd and etcd, by packages of the root.
    done = built(files, before=":", install=plugins, after="all; cat root/run/asked; readlink root/opt/cni/bin; ls root/etc/systemd/system")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[:2] == ["-m heat-node-kubernetes cni-plugins", "/usr/lib/cni"], done.stdout
    assert "containerd.service" not in done.stdout and "etcd.service" not in done.stdout
    # In none: asked for by the names that pkg-map translates.
    done = built(files, after="target /tmp/in_target.d/install.d/65-heat-node-kubernetes || :; cat root/run/asked")
    assert done.stdout == "-m heat-node-kubernetes containerd etcd cni-plugins\n", done.stdout + done.stderr
    done = built({name: data for name, data in plain().items() if name != "runc"}, after="target /tmp/in_target.d/install.d/65-heat-node-kubernetes; cat root/run/asked")
    assert done.stdout == "-m heat-node-kubernetes runc\n", done.stdout + done.stderr
    # Each has a name in every distribution.
    known = json.loads((ELEMENT / "pkg-map").read_text())
    assert {"containerd", "etcd", "cni-plugins", "docker", "runc"} <= set(known["default"])
    asked = {line.rstrip(":") for line in (ELEMENT / "package-installs.yaml").read_text().splitlines() if not line.startswith("#")}
    assert asked <= set(known["default"])
    done = built(files, RUNTIME="docker", after="target /tmp/in_target.d/install.d/65-heat-node-kubernetes || :; cat root/run/asked")
    assert done.stdout == "-m heat-node-kubernetes docker etcd cni-plugins\n", done.stdout + done.stderr


# name → (files of the source, the root before, variables, words of the one message)
REFUSED_WITHIN = {
    "not served": (plain(), BARE, {"VERSION": "1.38.0"}, "KUBE_TAG: selects 1.38, which this agent does not support"),
    "not for this runtime": (plain(), BARE, {"VERSION": "1.6.1"}, "before 1.7 the kubelet supports only docker"),
    "another release": (plain(kubelet="Kubernetes v1.31.3"), BARE, {}, f"kubelet is not v{VERSION}: Kubernetes v1.31.3"),
    "nearly the same release": (plain(kube_proxy="Kubernetes v1.31.40"), BARE, {}, f"kube-proxy is not v{VERSION}: Kubernetes v1.31.40"),
    "another kubectl": (plain(kubectl="Client Version: v1.30.0"), BARE, {}, f"kubectl is not v{VERSION}: Client Version: v1.30.0"),
    "does not start": (plain() | {"kube-scheduler": b"#!/bin/sh\necho broken >&2; exit 3\n"}, BARE, {}, "kube-scheduler does not start in the image: broken"),
    "a second runtime": (plain(), ":", {}, "containerd is in the source, and the image has /usr/bin/containerd already"),
}


@pytest.mark.parametrize("name", REFUSED_WITHIN)
def test_what_does_not_fit_is_refused_by_one_message_before_it_is_in_the_image(built, name):
    files, before, given, words = REFUSED_WITHIN[name]
    done = built(files, before, f"{LIST} >list; code=0; target /tmp/in_target.d/install.d/65-heat-node-kubernetes || code=1; {LIST} | diff list -; exit $code", **given)
    refused(done, words)


def test_the_last_step_refuses_what_a_node_lacks(built, tmp_path):
    done = built({n: d for n, d in plain().items() if n != "cni/bridge"})
    assert done.returncode == 1 and re.search(r"(?m)^/opt/cni/bin/bridge: .*missing.*needed by deployment master", done.stdout + done.stderr), done.stderr
    # By an operator's own document instead: flannel as a unit needs a program that is not there.
    own = {"ROLE": "minion", "KUBE_TAG": f"v{VERSION}", "INSTANCE_NAME": "own", "KUBE_NODE_IP": "192.0.2.31", "KUBE_MASTER_IP": "192.0.2.5",
           "CERTIFICATES": "bootstrap", "BOOTSTRAP_TOKEN": "abcdef.0123456789abcdef", "CA_CERTIFICATE": "/given/ca.crt", "CONTAINER_RUNTIME": "cri-o",
           "NETWORK_DRIVER": "none"}
    document = tmp_path / "own.json"
    document.write_text(json.dumps({"deployments": [{"id": "1", "name": "own", "group": "kubernetes-node", "config": own}]}))
    done = built(plain(), METADATA=document)
    assert done.returncode == 1 and "crio" in done.stderr and "needed by deployment own" in done.stderr, done.stderr
    assert "deployment master" not in done.stderr


def real() -> Path | None:
    for folder in (os.environ.get("HNA_KUBERNETES"), REPO / "target/real-kubernetes/programs"):
        if folder and os.access(Path(folder) / "kubelet", os.X_OK):
            return Path(folder)
    return None


def test_the_real_programs(built, tmp_path):
    """With etcd, containerd and the plugins of Debian."""
    folder = real()
    if not folder:
        pytest.skip("no real programs: tests/real-kubernetes/up.sh makes them, or HNA_KUBERNETES names them")
    version = run(folder / "kubelet", "--version").stdout.split()[1]
    source = tmp_path / "source"
    source.mkdir()
    for name in (*NODE, *MASTER, "kubectl"):
        # A folder on another file system would be copied, and is large.
        (source / name).symlink_to((folder / name).resolve())
    (source / "SHA256SUMS").write_text(run("sha256sum", *(source / n for n in (*NODE, *MASTER, "kubectl"))).stdout.replace(f"{source}/", ""))
    given = {"SOURCE": source, "VERSION": version}
    done = bring(tmp_path / "hooks", **given)
    assert done.returncode == 0, done
    plugins = "".join(f"install -D -m 755 root/usr/lib/cni/{n} root/opt/cni/bin/{n}; " for n in PLUGINS)
    done = built.within(tmp_path / "hooks", f"cp -a /usr/lib/cni root/usr/lib/; {plugins}", "all; chroot root kubelet --version", **given)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == f"Kubernetes {version}\n" and done.stderr.count(": no mistakes") == 2, done.stderr


# --- the page ---------------------------------------------------------------------------------------
# As diskimage-builder as far as it is ours: elements with those that they depend on, their environment, their hooks outside of the image.
BUILDER = """#!/bin/bash
set -euo pipefail
echo "$*" >words
export TMP_HOOKS_PATH=$PWD/hooks DIB_IMAGE_CACHE=
mkdir hooks
ours=()
add() {
  if [ ! -d "$ELEMENTS_PATH/$1" ] || [[ " ${ours[*]} " == *" $1 "* ]]; then return; fi
  for one in $(cat "$ELEMENTS_PATH/$1/element-deps"); do add "$one"; done
  ours+=("$1")
}
for word in "${@:3}"; do add "$word"; done
echo "${ours[*]}" >ours
for one in "${ours[@]}"; do . "$ELEMENTS_PATH/$one"/environment.d/*; done
for one in "${ours[@]}"; do "$ELEMENTS_PATH/$one"/extra-data.d/*; done
: >"$2.qcow2"
"""


def test_the_image_that_the_page_makes(tmp_path, agent):
    """By its commands, word by word. HNA_REAL_BUILD=1: with the real diskimage-builder, which takes minutes; without its own, that of tests/image/up.sh."""
    step = re.search(r"(?ms)^1\. \*\*An image\*\*.*?(?=^2\. )", PAGE.read_text())[0]
    first, *commands, upload = re.findall(r"(?m)^       (\S.*)$", step)
    assert all(os.access(REPO / word, os.X_OK) for word in first.split(" && ")), first
    assert f"DIB_KUBERNETES_VERSION={VERSION} " in step
    lay(tmp_path / "programs", plain())
    (tmp_path / "image-build").symlink_to(REPO / "image-build")
    (tmp_path / "target/image/root").mkdir(parents=True)
    run("tar", "-C", tmp_path / "target/image/root", "-xf", agent)
    (tmp_path / "bin").mkdir()
    path = [tmp_path / "bin"]
    environment = {}
    if os.environ.get("HNA_REAL_BUILD"):
        cache = tmp_path / "cache"
        cache.mkdir()
        uris = re.findall(r"(?m)^URIs: *(\S+)", Path("/etc/apt/sources.list.d/debian.sources").read_text())
        environment = {"DIB_DISTRIBUTION_MIRROR": uris[0], "DIB_DEBIAN_SECURITY_MIRROR": uris[-1], "DIB_DEBIAN_USE_DEBOOTSTRAP_CACHE": "1",
                       "TMP_DIR": str(tmp_path), "DIB_IMAGE_CACHE": str(cache), "DIB_NO_TMPFS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        path = [*([] if "device-mapper" in Path("/proc/misc").read_text() else [REPO / "tests/image/tools"]),
                Path(os.environ.get("HNA_DIB") or REPO / "target/image/venv") / "bin"]
    else:
        (tmp_path / "bin/disk-image-create").write_text(BUILDER)
        (tmp_path / "bin/disk-image-create").chmod(0o755)
    environment["PATH"] = ":".join([*map(str, path), os.environ["PATH"]])
    done = run("bash", "-euo", "pipefail", "-c", f"cd {tmp_path}\n" + "\n".join(commands), env=environment, check=False, timeout=7200)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    made = re.search(r"--file (\S+)", upload)[1]
    assert upload.startswith("openstack image create ") and (tmp_path / made).exists(), upload
    if not environment.get("DIB_IMAGE_CACHE"):
        assert (tmp_path / "ours").read_text() == "heat-node-agent heat-node-kubernetes\n"
        assert {n for n in tree(tmp_path / "hooks/heat-node-kubernetes") if n.startswith("bin/")} == {f"bin/{n}" for n in SAID}
    else:
        assert done.stdout.count("settings, the image and what 1 kubernetes-node deployments") == 2, done.stdout[-5000:]
        assert "file format: qcow2" in run("qemu-img", "info", tmp_path / made).stdout
