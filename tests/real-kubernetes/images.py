#!/usr/bin/python3 -B
"""Images of pods, by hand: archives that both `docker load` and `ctr images import` take.

    images.py FOLDER pause=FILE busybox=FILE agnhost=FILE add-ons=FILE
        pause.tar, busybox.tar and agnhost.tar in FOLDER; in FOLDER/add-ons what stands in for CoreDNS and metrics-server
    images.py FOLDER cloud=FILE
        the cloud controller manager in FOLDER/add-ons
    images.py FOLDER/e2e busybox=FILE agnhost=FILE etcd=FILE sample-apiserver=FILE nnp=FILE tree=FOLDER
        what else Kubernetes' own tests ask for, or what stands in for it

They carry the names by which the tests, the kubelet and the container runtimes ask for them, none of which is downloaded. Programs of this machine's
Debian come with their libraries.
"""
import hashlib
import io
import json
import shutil
import sys
import tarfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from lib.common import run, with_libraries  # noqa: E402

# The registry of a cluster with CONTAINER_INFRA_PREFIX (nobody answers there), and the tags that the manifests of image-build/addons default to.
REGISTRY = "registry.example.org/kubernetes/"
ADD_ONS = {"coredns": "1.9.4", "metrics-server": "v0.6.4"}
# For Kubernetes 1.20.
CLOUD_PROVIDER = "v1.20.0"
# By whom they are asked for: docker's kubelet of 1.20, containerd 1.6, and the agent for a cluster with a registry of its own.
PAUSE = ["k8s.gcr.io/pause:3.2", "registry.k8s.io/pause:3.6", "k8s.gcr.io/pause:3.6", f"{REGISTRY}pause:3.1"]
AGNHOST = ["k8s.gcr.io/e2e-test-images/agnhost:2.21"]
BUSYBOX = ["docker.io/library/busybox:1.29"]
# Its other name, by which tests tell one entry point from another.
AGNHOST_LINK = {"agnhost-2": "agnhost"}
# What the real agnhost's image has for the tests that run a shell in it, and busybox has not or in another way. The shell is none of busybox's, which
# takes its own nc before any other.
TOOLS = ("curl", "dash", "dig", "getent", "nc")
# Web servers, by where each has its pages: busybox's serves them here.
SERVERS = {"/usr/local/apache2/htdocs": ["docker.io/library/httpd:2.4.38-alpine", "docker.io/library/httpd:2.4.39-alpine"],
           "/usr/share/nginx/html": ["docker.io/library/nginx:1.14-alpine", "docker.io/library/nginx:1.15-alpine"]}
E2E = "gcr.io/kubernetes-e2e-test-images/"
ACCOUNTS = {"etc/passwd": b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n", "etc/group": b"root:x:0:\nnogroup:x:65534:\n",
            "etc/nsswitch.conf": b"hosts: files dns\n"}


def layer(programs: dict[str, Path], links: dict[str, str], files: dict[str, bytes], setuid: tuple[str, ...] = ()) -> bytes:
    """The only one of an image."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        def add(name: str, mode: int, kind: bytes = tarfile.REGTYPE, data: bytes = b"", to: str = ""):
            info = tarfile.TarInfo(name)
            info.type, info.mode, info.size, info.linkname = kind, mode, len(data), to
            tar.addfile(info, io.BytesIO(data))
        folders = {"bin", "etc", "root", "tmp", "usr", "usr/bin", "var", *(str(parent) for name in (*programs, *files) for parent in Path(name).parents)} - {"."}
        for name in sorted(folders):
            add(name, 0o1777 if name == "tmp" else 0o755, tarfile.DIRTYPE)
        for name, path in programs.items():
            add(name, 0o4755 if name in setuid else 0o755, data=path.read_bytes())
        for name, to in links.items():
            add(name, 0o777, tarfile.SYMTYPE, to=to)
        for name, data in files.items():
            add(name, 0o644, data=data)
    return out.getvalue()


def image(path: Path, names: list[str], entry: list[str], command: list[str], content: bytes):
    """The archive of one image."""
    config = json.dumps({
        "architecture": "amd64", "os": "linux", "config": {"Entrypoint": entry or None, "Cmd": command or None, "WorkingDir": "/",
                                                           "Env": ["PATH=/usr/local/bin:/usr/bin:/bin:/"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(content).hexdigest()}"]}}).encode()
    config_name = f"{hashlib.sha256(config).hexdigest()}.json"
    manifest = json.dumps([{"Config": config_name, "RepoTags": names, "Layers": ["layer.tar"]}]).encode()
    with tarfile.open(path.with_suffix(".new"), "w") as tar:
        for name, data in (("layer.tar", content), (config_name, config), ("manifest.json", manifest)):
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), 0o644
            tar.addfile(info, io.BytesIO(data))
    path.with_suffix(".new").rename(path)


def shell(busybox: Path) -> dict[str, str]:
    """Links to all that it can be called as."""
    tools = run(busybox, "--list").stdout.split()
    return {f"bin/{tool}": "busybox" for tool in tools if tool != "busybox"}


def tools(*names: str) -> dict[str, Path]:
    """Programs of this machine below /usr/bin, with their libraries."""
    found: dict[str, Path] = {}
    for name in names:
        path, *libraries = with_libraries(shutil.which(name) or sys.exit(f"this machine has no program {name}"))
        found |= {f"usr/bin/{name}": Path(path), **{one[1:]: Path(one) for one in libraries}}
    return found


def own_images(folder: Path, pause: Path, busybox: Path, agnhost: Path, add_ons: Path):
    image(folder / "pause.tar", PAUSE, ["/pause"], [], layer({"pause": pause}, {}, {}))
    image(folder / "busybox.tar", BUSYBOX, [], ["sh"], layer({"bin/busybox": busybox}, shell(busybox), ACCOUNTS))
    (folder / "add-ons").mkdir(exist_ok=True)
    for name, tag in ADD_ONS.items():
        # As the real ones: one program at the root, no shell, and no account of its own.
        image(folder / f"add-ons/{name}.tar", [f"{REGISTRY}{name}:{tag}"], [f"/{name}"], [], layer({name: add_ons}, {}, {}))
    # Its own image has a shell with tools, too, which tests run inside it.
    image(folder / "agnhost.tar", AGNHOST, ["/agnhost"], ["pause"], layer({"agnhost": agnhost, "bin/busybox": busybox}, AGNHOST_LINK | shell(busybox), ACCOUNTS))


def cloud_images(folder: Path, cloud: Path):
    (folder / "add-ons").mkdir(exist_ok=True)
    name = "openstack-cloud-controller-manager"
    image(folder / f"add-ons/{name}.tar", [f"{REGISTRY}{name}:{CLOUD_PROVIDER}"], [], [], layer({f"bin/{name}": cloud}, {}, {}))


def images_of_e2e(folder: Path, busybox: Path, agnhost: Path, etcd: Path, sample_apiserver: Path, nnp: Path, tree: Path):
    links = shell(busybox)
    # Whole: with the key of its own server of TLS as well.
    own_shell = {**links, **AGNHOST_LINK, "bin/sh": "/usr/bin/dash"}
    key = {path.name: path.read_bytes() for path in (tree / "test/images/agnhost/porter").glob("localhost.*")}
    content = layer({"agnhost": agnhost, "bin/busybox": busybox, **tools(*TOOLS)}, own_shell, {**ACCOUNTS, **key})
    image(folder / "agnhost.tar", AGNHOST, ["/agnhost"], ["pause"], content)
    for pages, names in SERVERS.items():
        kind = names[0].rsplit("/", 1)[1].split(":")[0]
        content = layer({"bin/busybox": busybox}, links, {**ACCOUNTS, f"{pages[1:]}/index.html": b"<html><body><h1>It works!</h1></body></html>\n"})
        image(folder / f"{kind}.tar", names, ["/bin/busybox"], ["httpd", "-f", "-p", "80", "-h", pages], content)
    for kind in ("nautilus", "kitten"):
        html = tree / f"test/images/{kind}/html"
        files = {path.name: path.read_bytes() for path in html.iterdir()}
        image(folder / f"{kind}.tar", [f"{E2E}{kind}:1.0"], ["/agnhost"], ["test-webserver"], layer({"agnhost": agnhost}, {}, files))
    # Debian's own tools for names, newer than jessie's.
    image(folder / "dnsutils.tar", [f"{E2E}jessie-dnsutils:1.0"], [], ["sh"], layer({"bin/busybox": busybox, **tools("dig", "getent")}, links, ACCOUNTS))
    image(folder / "nonewprivs.tar", [f"{E2E}nonewprivs:1.0"], [], ["nnp"], layer({"usr/local/bin/nnp": nnp}, {}, ACCOUNTS, ("usr/local/bin/nnp",)))
    image(folder / "sample-apiserver.tar", [f"{E2E}sample-apiserver:1.17"], ["/sample-apiserver"], [], layer({"sample-apiserver": sample_apiserver}, {}, {}))
    libraries = {one[1:]: Path(one) for one in with_libraries(etcd)[1:]}
    # Debian's, a little newer than its name says.
    image(folder / "etcd.tar", ["k8s.gcr.io/etcd:3.4.13-0"], [], ["etcd"], layer({"usr/local/bin/etcd": etcd, **libraries}, {}, ACCOUNTS))


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    target = Path(sys.argv[1])
    given = {name.replace("-", "_"): Path(path) for name, path in (word.split("=", 1) for word in sys.argv[2:])}
    target.mkdir(parents=True, exist_ok=True)
    make = images_of_e2e if "tree" in given else cloud_images if "cloud" in given else own_images
    make(target, **given)
