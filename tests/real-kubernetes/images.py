#!/usr/bin/python3 -B
"""Images of static programs, by hand: an archive that both `docker load` and `ctr images import` take.

    images.py FOLDER PAUSE BUSYBOX AGNHOST ADD-ONS     pause.tar, busybox.tar and agnhost.tar in FOLDER; in FOLDER/e2e what stands in for the
                                                       web servers that Kubernetes' own tests ask for, in FOLDER/add-ons for CoreDNS and
                                                       metrics-server

They carry the names by which the tests, the kubelet and the container runtimes ask for them, none of which is downloaded.
"""
import hashlib
import io
import json
import subprocess
import sys
import tarfile
from pathlib import Path

# The registry of a cluster with CONTAINER_INFRA_PREFIX (nobody answers there), and the tags that the manifests of image-build/addons default to.
REGISTRY = "registry.example.org/kubernetes/"
ADD_ONS = {"coredns": "1.9.4", "metrics-server": "v0.6.4"}
# By whom they are asked for: docker's kubelet of 1.20, containerd 1.6, and the agent for a cluster with a registry of its own.
PAUSE = ["k8s.gcr.io/pause:3.2", "registry.k8s.io/pause:3.6", "k8s.gcr.io/pause:3.6", f"{REGISTRY}pause:3.1"]
AGNHOST = ["k8s.gcr.io/e2e-test-images/agnhost:2.21"]
BUSYBOX = ["docker.io/library/busybox:1.29"]
# Web servers, by where each has its pages: busybox's serves them here.
SERVERS = {"/usr/local/apache2/htdocs": ["docker.io/library/httpd:2.4.38-alpine", "docker.io/library/httpd:2.4.39-alpine"],
           "/usr/share/nginx/html": ["docker.io/library/nginx:1.14-alpine", "docker.io/library/nginx:1.15-alpine"]}
ACCOUNTS = {"etc/passwd": b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n", "etc/group": b"root:x:0:\nnogroup:x:65534:\n",
            "etc/nsswitch.conf": b"hosts: files dns\n"}


def layer(programs: dict[str, Path], links: dict[str, str], files: dict[str, bytes]) -> bytes:
    """The only one of an image."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        def add(name: str, mode: int, kind: bytes = tarfile.REGTYPE, data: bytes = b"", to: str = ""):
            info = tarfile.TarInfo(name)
            info.type, info.mode, info.size, info.linkname = kind, mode, len(data), to
            tar.addfile(info, io.BytesIO(data))
        folders = {"bin", "etc", "root", "tmp", "usr", "usr/bin", "var", *(str(parent) for name in files for parent in Path(name).parents)} - {"."}
        for name in sorted(folders):
            add(name, 0o1777 if name == "tmp" else 0o755, tarfile.DIRTYPE)
        for name, path in programs.items():
            add(name, 0o755, data=path.read_bytes())
        for name, to in links.items():
            add(name, 0o777, tarfile.SYMTYPE, to=to)
        for name, data in files.items():
            add(name, 0o644, data=data)
    return out.getvalue()


def image(path: Path, names: list[str], entry: list[str], command: list[str], content: bytes):
    """The archive of one image."""
    config = json.dumps({
        "architecture": "amd64", "os": "linux", "config": {"Entrypoint": entry or None, "Cmd": command or None, "WorkingDir": "/",
                                                           "Env": ["PATH=/usr/bin:/bin:/"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(content).hexdigest()}"]}}).encode()
    config_name = f"{hashlib.sha256(config).hexdigest()}.json"
    manifest = json.dumps([{"Config": config_name, "RepoTags": names, "Layers": ["layer.tar"]}]).encode()
    with tarfile.open(path.with_suffix(".new"), "w") as tar:
        for name, data in (("layer.tar", content), (config_name, config), ("manifest.json", manifest)):
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), 0o644
            tar.addfile(info, io.BytesIO(data))
    path.with_suffix(".new").rename(path)


def main(folder: Path, pause: Path, busybox: Path, agnhost: Path, add_ons: Path):
    tools = subprocess.run([busybox, "--list"], capture_output=True, check=True, text=True).stdout.split()
    shell = {f"bin/{tool}": "busybox" for tool in tools if tool != "busybox"}
    image(folder / "pause.tar", PAUSE, ["/pause"], [], layer({"pause": pause}, {}, {}))
    image(folder / "busybox.tar", BUSYBOX, [], ["sh"], layer({"bin/busybox": busybox}, shell, ACCOUNTS))
    (folder / "e2e").mkdir(exist_ok=True)
    for pages, names in SERVERS.items():
        kind = names[0].rsplit("/", 1)[1].split(":")[0]
        content = layer({"bin/busybox": busybox}, shell, {**ACCOUNTS, f"{pages[1:]}/index.html": b"<html><body><h1>It works!</h1></body></html>\n"})
        image(folder / f"e2e/{kind}.tar", names, ["/bin/busybox"], ["httpd", "-f", "-p", "80", "-h", pages], content)
    (folder / "add-ons").mkdir(exist_ok=True)
    for name, tag in ADD_ONS.items():
        # As the real ones: one program at the root, no shell, and no account of its own.
        image(folder / f"add-ons/{name}.tar", [f"{REGISTRY}{name}:{tag}"], [f"/{name}"], [], layer({name: add_ons}, {}, {}))
    # Its own image has a shell with tools, too, which tests run inside it.
    image(folder / "agnhost.tar", AGNHOST, ["/agnhost"], ["pause"], layer({"agnhost": agnhost, "bin/busybox": busybox}, shell, ACCOUNTS))


if __name__ == "__main__":
    if len(sys.argv) != 6:
        sys.exit(__doc__)
    main(*map(Path, sys.argv[1:]))
