"""Virtual machines of Nova's shape under software emulation (QEMU, TCG), as objects.

Never KVM: a /dev/kvm inside a virtual machine may be there and not get a kernel to run, and figures would not compare.

One processor each: with two of them every atomic operation is emulated at a cost. virtio-blk root, volumes with the Cinder
id as serial (its first 20 characters, as libvirt gives it), a config drive, SMBIOS of Nova, serial console to a file, ssh
through QEMU's user network. A VM started in the lab's namespace reaches Heat there."""
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import time
import uuid
from contextlib import suppress
from pathlib import Path

from lib.common import LAB, REPO, Failed, run, wait_for
from lib.config_drive import make_iso, tree

# Nets under a test that hangs: software emulation is slow, and slower beside other work.
NET = 1800
VMS = Path(os.environ.get("HNA_VM_DIR") or REPO / "target/image/vms").resolve()


def config_drive(out: Path, instance: str, name: str, user_data: str, keys: dict[str, str]):
    """As Nova makes it."""
    with tree(out.with_suffix(".d"), instance, name, user_data, keys) as files:
        make_iso(out, files)


class Vm:
    """One machine. stop() and cut() leave its disks; remove() does not."""

    def __init__(self, name: str, image: Path, *, user_data: str = "", instance: str | None = None, memory: int = 1024,
                 volumes: dict[str, str] | None = None, lab: str = LAB):
        self.name, self.lab, self.memory = name, lab, memory
        self.instance = instance or str(uuid.uuid4())
        self.folder = VMS / name
        self.process: subprocess.Popen | None = None
        self._sweep()
        self.remove()
        self.folder.mkdir(parents=True)
        self.volumes = volumes or {}  # Cinder id → size
        self.port = 10022 + sum(name.encode()) % 500
        self.since = 0.0
        run("qemu-img", "create", "-q", "-f", "qcow2", "-b", image.resolve(), "-F", "raw", self.folder / "root.qcow2")
        for volume, size in self.volumes.items():
            run("qemu-img", "create", "-q", "-f", "qcow2", self.folder / f"{volume}.qcow2", size)
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", self.folder / "key")
        self.give_user_data(user_data)

    def give_user_data(self, user_data: str):
        """From the next boot on."""
        config_drive(self.folder / "config.iso", self.instance, self.name, user_data, {"test": (self.folder / "key.pub").read_text()})

    # --- life ---------------------------------------------------------------------------------
    def start(self, *extra: str, attached: list[str] | None = None, takes: dict[str, int] | None = None) -> "Vm":
        """Power on; attached: the volumes that are there from the start (all of them by default); takes: the bytes that a volume takes
        at full speed; each further one takes a second."""
        drive = "if=none,format=qcow2,cache=unsafe,discard=unmap"
        args = ["qemu-system-x86_64", "-name", self.name, "-M", "pc", "-accel", "tcg,thread=multi,tb-size=512", "-cpu", "max",
                "-pidfile", f"{self.folder}/pid", "-smp", "1", "-m", str(self.memory), "-display", "none", "-nodefaults", "-no-user-config",
                "-smbios", f"type=1,manufacturer=OpenStack Foundation,product=OpenStack Nova,version=27.0.0,uuid={self.instance}",
                "-uuid", self.instance,
                "-chardev", f"file,id=serial,path={self.folder}/console.log,append=on", "-serial", "chardev:serial",
                "-qmp", f"unix:{self.folder}/qmp,server=on,wait=off",
                "-drive", f"file={self.folder}/root.qcow2,id=root,{drive}", "-device", "virtio-blk-pci,drive=root,bootindex=1",
                "-drive", f"file={self.folder}/config.iso,id=cd,if=ide,media=cdrom,format=raw,readonly=on",
                "-device", "virtio-scsi-pci,id=scsi",
                "-object", "rng-random,id=rng,filename=/dev/urandom", "-device", "virtio-rng-pci,rng=rng",
                "-netdev", f"user,id=net,hostfwd=tcp:127.0.0.1:{self.port}-:22", "-device", "virtio-net-pci,netdev=net"]
        for volume in self.volumes if attached is None else attached:
            limit = f",throttling.bps-write=1,throttling.bps-write-max={takes[volume]}" if takes and volume in takes else ""
            args += ["-drive", f"file={self.folder}/{volume}.qcow2,id=v{volume[:8]},{drive}{limit}",
                     "-device", f"virtio-blk-pci,drive=v{volume[:8]},serial={volume[:20]}"]
        self.since = time.monotonic()
        with open(self.folder / "qemu.log", "ab") as log:
            self.process = subprocess.Popen(["ip", "netns", "exec", f"lab-{self.lab}", *args, *extra],
                                            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        return self

    def cut(self):
        """Power cut: what the guest had not synced to its disk is lost with its memory."""
        if self.process and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        if self.process:
            self.process.wait(NET)
        self.process = None

    def stop(self, seconds: float = NET):
        """The power button, then the plug."""
        if self.process and self.process.poll() is None:
            self.qmp("system_powerdown")
            try:
                self.process.wait(seconds)
            except subprocess.TimeoutExpired:
                pass
        self.cut()

    def _sweep(self):
        """End the machine of this name that a killed session left."""
        try:
            pid = int((self.folder / "pid").read_text())
        except (OSError, ValueError):
            return

        def is_ours() -> bool:
            try:
                return str(self.folder) in Path(f"/proc/{pid}/cmdline").read_text()
            except OSError:
                return False
        if is_ours():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            wait_for(lambda: not is_ours(), NET, f"the end of the {self.name} of before")  # its port is free then

    def remove(self):
        self.cut()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _alive(self):
        if self.process is None or self.process.poll() is not None:
            raise RuntimeError(f"{self.name} ended: {(self.folder / 'qemu.log').read_text()[-500:]}")

    def qmp(self, command: str, **arguments):
        """One command to the machine's monitor."""
        self._alive()
        with socket.socket(socket.AF_UNIX) as s:
            s.settimeout(NET)
            s.connect(str(self.folder / "qmp"))
            lines = s.makefile("rw")
            answers = []
            lines.readline()  # the greeting
            for one in ({"execute": "qmp_capabilities"}, {"execute": command, "arguments": arguments}):
                lines.write(json.dumps(one) + "\n")
                lines.flush()
                while True:
                    answer = json.loads(lines.readline())
                    if "event" not in answer:
                        break
                answers.append(answer)
        if "error" in answers[-1]:
            raise ValueError(f"{command}: {answers[-1]['error']}")
        return answers[-1].get("return")

    def attach(self, volume: str, size: str, bus: str = "virtio"):
        """A volume comes late, as by `openstack server add volume`."""
        path = self.folder / f"{volume}.qcow2"
        if not path.exists():
            run("qemu-img", "create", "-q", "-f", "qcow2", path, size)
        node = f"v{volume[:8]}"
        self.qmp("blockdev-add", **{"driver": "qcow2", "node-name": node, "file": {"driver": "file", "filename": str(path)}})
        if driver := {"virtio": "virtio-blk-pci", "nvme": "nvme"}.get(bus):
            self.qmp("device_add", driver=driver, drive=node, id=f"d{volume[:8]}", serial=volume[:20])
        else:
            self.qmp("device_add", driver="scsi-hd", bus="scsi.0", drive=node, id=f"d{volume[:8]}", serial=volume)

    def written(self, volume: str) -> int:
        """How many bytes a volume that was there from the start has taken since then."""
        for device in self.qmp("query-blockstats"):
            if device.get("device") == f"v{volume[:8]}":
                return device["stats"]["wr_bytes"]
        raise LookupError(f"{self.name} has no {volume}")

    # --- inside -------------------------------------------------------------------------------
    def console(self) -> str:
        path = self.folder / "console.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def wait_console(self, text: str, seconds: float, after: int = 0) -> float:
        """Seconds since power-on until the console says it."""
        def seen():
            self._alive()
            return text in self.console()[after:]
        wait_for(seen, seconds, f"{text!r} on the console of {self.name}")
        return time.monotonic() - self.since

    def wait_ssh(self, seconds: float):
        """Until root can log in."""
        def is_in() -> bool:
            self._alive()
            # QEMU takes the connection also where nobody in the machine does.
            return self.sh("echo yes", connect=60) == "yes\n"
        wait_for(is_in, seconds, f"ssh to {self.name}", every=1)

    def sh(self, script: str, check: bool = True, timeout: float = NET, connect: int = 600) -> str:
        """stdout of a shell script run by root inside; connect: seconds for ssh's first words."""
        done = run("ip", "netns", "exec", f"lab-{self.lab}", "ssh", "-q", "-i", self.folder / "key", "-p", self.port,
                   "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", f"ConnectTimeout={connect}",
                   "-o", "BatchMode=yes", "root@127.0.0.1", "bash -euo pipefail -s", input=script, check=check, timeout=timeout)
        return done.stdout

    def journal(self, *arguments: str) -> list[dict]:
        """Entries of the guest's journal, by arguments of journalctl."""
        fields = "__MONOTONIC_TIMESTAMP,_SOURCE_MONOTONIC_TIMESTAMP,MESSAGE,PRIORITY,HNA_EVENT,HNA_CODE,HNA_PHASE,HNA_STEP,HNA_DURATION_MS"
        words = " ".join(shlex.quote(one) for one in arguments)
        script = f"journalctl --sync || :; journalctl -q --no-pager -o json --output-fields={fields} {words}"
        return [json.loads(line) for line in self.sh(script).splitlines()]

    def save_failure(self, folder: Path) -> str:
        """Keeps console and journal there, and gives back their ends."""
        folder.mkdir(parents=True, exist_ok=True)
        console = self.console()
        (folder / f"{self.name}.console").write_text(console)
        try:
            journal = self.sh("journalctl --no-pager -o short-monotonic", timeout=300, connect=60)
        except (Failed, subprocess.TimeoutExpired) as e:
            journal = f"no journal: {e}\n"
        (folder / f"{self.name}.journal").write_text(journal)
        ours = [line for line in journal.splitlines() if "heat-node-agent" in line] or journal.splitlines()
        return "\n".join([*console.splitlines()[-20:], "", *ours[-60:]])
