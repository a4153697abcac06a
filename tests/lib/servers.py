"""The servers of the cloud's stand-in (tests/heat/cloud.py) as hosts: what Nova would boot from an image of Kubernetes' real programs.

Each is booted by a real cloud-init with the id, name and user data that Heat gave Nova, has its port's address, and its volumes once they are
attached. What Nova has no more is gone, with its disks."""
import base64
import json
from pathlib import Path
from threading import Event, Thread

from lib import cloud_init
from lib.cloud import Cloud
from lib.common import GATEWAY, REPO, TESTS, Failed
from lib.hosts import Host
from lib.real_kubernetes import FOLDER, NAMES, load_images, may_shield, seen

ADD_ONS = "/usr/share/heat-node-agent/addons"


def image(folder: Path) -> dict[str, Path]:
    """Files of an image: {path in it: path here}. The programs are links to where all hosts see them."""
    files = cloud_init.image(folder, enabled=True)
    for name in NAMES:
        link = folder / name
        link.symlink_to(f"{FOLDER}/{name}")
        files[f"/usr/local/bin/{name}"] = link
    manifest = REPO / "image-build/addons/coredns/coredns.yaml"
    made = {f"{ADD_ONS}/coredns/coredns.yaml": (manifest.read_text(), 0o644), "/etc/resolv.conf": (f"nameserver {GATEWAY}\n", 0o644)}
    if not may_shield():
        made["/usr/local/sbin/runc"] = (TESTS / "real-kubernetes/runc").read_text(), 0o755
    for number, (path, (text, mode)) in enumerate(made.items()):
        files[path] = folder / f"file-{number}"
        files[path].write_text(text)
        files[path].chmod(mode)
    return files


class Server(Thread):
    """One of them, from its creation to its deletion."""

    def __init__(self, cloud: Cloud, server: dict, folder: Path):
        super().__init__(name=server["name"], daemon=True)
        self.cloud, self.server, self.folder = cloud, server, folder
        self.host = Host(server["name"])
        self.given: list[str] = []  # ids of its volumes, in the order of their devices
        self.has_images = False
        self.ended = Event()
        self.error: Exception | None = None

    def run(self):
        try:
            self.boot()
            while not self.ended.wait(1):
                for device, size, volume in self.new_volumes():
                    self.host.attach(device, size, volume)
                self.has_images = self.has_images or self.load_images()
        except Exception as error:  # told by Servers.check
            self.error = error

    def boot(self):
        self.folder.mkdir()
        user_data = base64.b64decode(self.server["user_data"]).decode()
        files = image(self.folder) | cloud_init.seed(self.folder / "seed", user_data, self.server["id"])
        about = {"instance-id": self.server["id"], "local-hostname": self.server["name"]}
        (self.folder / "seed/meta-data").write_text(json.dumps(about))
        [address] = [ip["addr"] for ips in self.server["addresses"].values() for ip in ips]
        volumes = {device: (size, volume) for device, size, volume in self.new_volumes()}
        self.host.up(base=cloud_init.BASE, ip=address, instance_id="", files=files, volumes=volumes, expect="", **seen())

    def new_volumes(self) -> list[tuple[str, str, str]]:
        """Device, size and id of those that it has not got yet."""
        found = []
        for volume in self.cloud.kept("volume", "volumes"):
            if volume["id"] not in self.given and self.server["id"] in {of["server_id"] for of in volume["attachments"]}:
                self.given.append(volume["id"])
                found.append((f"vd{'bcdef'[len(self.given) - 1]}", f"{volume['size']}G", volume["id"]))
        return found

    def load_images(self) -> bool:
        """Into the runtime, once there is one: no registry is asked."""
        if self.host.exec("ctr", "-n", "k8s.io", "version", check=False).returncode:
            return False
        try:
            load_images(self.host, "containerd", "/srv/images/*.tar", "/srv/images/add-ons/coredns.tar")
        except Failed:  # it may just have been started anew
            return False
        return True

    def end(self):
        self.ended.set()
        self.join()
        self.host.down()


class Servers:
    """All that Nova's stand-in has, at each moment."""

    def __init__(self, cloud: Cloud, folder: Path, hosts: list[Host]):
        self.cloud, self.folder, self.hosts = cloud, folder, hosts
        self.there: dict[str, Server] = {}
        self.errors: list[Exception] = []
        self.ended = Event()
        self.thread = Thread(target=self.follow, daemon=True)

    def __enter__(self) -> "Servers":
        self.folder.mkdir()
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.thread.join()
        for server in self.there.values():
            server.end()

    def follow(self):
        while not self.ended.wait(1):
            try:
                self.look()
            except Exception as error:  # told by check()
                self.errors.append(error)

    def look(self):
        found = {server["id"]: server for server in self.cloud.kept("compute", "servers")}
        for gone in self.there.keys() - found.keys():
            self.there[gone].end()
            self.hosts.remove(self.there.pop(gone).host)
        for new in found.keys() - self.there.keys():
            self.there[new] = Server(self.cloud, found[new], self.folder / new)
            self.hosts.append(self.there[new].host)
            self.there[new].start()

    def check(self):
        """What went wrong where nobody saw it."""
        errors = self.errors + [server.error for server in list(self.there.values()) if server.error]
        if errors:
            raise errors[0]

    def named(self) -> dict[str, Host]:
        return {server.name: server.host for server in list(self.there.values())}
