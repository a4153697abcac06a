"""Hosts whose PID 1 is a real systemd (tests/host/host.sh), as objects."""
import functools
import io
import json
import os
import re
import subprocess
import tarfile
import time
from pathlib import Path

from lib.common import LAB, MACHINE, REPO, SET, SUITE, TESTHOST, TESTS, Failed, run, wait_for

HOST_SH = TESTS / "host/host.sh"
# As host.sh enters a host, without its shell: tests ask hosts thousands of times.
ENTER = ("-m", "-u", "-i", "-n", "-p", "-C", "-r", "-w", "--", "env", "-i", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
         "HOME=/root", "TERM=dumb", "LANG=C.UTF-8")
# The root with LVM's and btrfs's programs, or without: see give().
TOOLS = "node" if SUITE == MACHINE else "tools"
# A net under what hangs: longer than whatever the agent or systemd wait for by themselves.
NET = 900

# where an image gets what lies in units/: by suffix, else by the folder it lies in
BY_SUFFIX = {suffix: "/usr/lib/systemd/system" for suffix in (
    ".service", ".socket", ".target", ".timer", ".path", ".mount", ".slice", ".scope")}
BY_SUFFIX |= {".preset": "/usr/lib/systemd/system-preset", ".catalog": "/usr/lib/systemd/catalog", ".rules": "/usr/lib/udev/rules.d"}
BY_FOLDER = {name: f"/usr/lib/{name}" for name in ("tmpfiles.d", "sysusers.d", "sysctl.d", "modules-load.d", "tmpfiles", "sysusers")}
BY_FOLDER |= {"tmpfiles": "/usr/lib/tmpfiles.d", "sysusers": "/usr/lib/sysusers.d"}


@functools.cache
def packages() -> dict[str, str]:
    """Those of the roots `node` and `cloud`, and of each the version by which its authors call it: 1:1.6.20~ds1-1+b1 is 1.6.20."""
    lines = run(HOST_SH, "versions").stdout.splitlines()
    return {name.split(":")[0]: upstream(version) for name, version in (line.split() for line in lines)}


def upstream(version: str) -> str:
    return re.sub(r"[+~-].*", "", version.split(":")[-1])


def lent(*names: str) -> dict[str, Path]:
    """Of the release of the hosts, so that they can run it: path there → file here, of the programs with their libraries, and all files of folders."""
    lines = run(HOST_SH, "lent", *names).stdout.splitlines()
    return {name: Path(file) for name, file in (line.split(" ", 1) for line in lines)}


def give(host: "Host", *programs: str):
    """Files, the libraries that programs among them need, and folders, as far as the host's root lacks them."""
    host.put({path: (file, file.stat().st_mode & 0o777) for path, file in lent(*programs).items() if not host.exists(path)})
    host.sh("ldconfig")


def agent_binary() -> Path:
    """HNA_BINARY, else the newest of the release build and the debug build."""
    given = os.environ.get("HNA_BINARY")
    candidates = [Path(given)] if given else [REPO / f"target/{folder}/heat-node-agent" for folder in ("image/usr/bin", "debug")]
    built = [path for path in candidates if path.is_file()]
    if not built:
        raise FileNotFoundError(f"no agent binary: {', '.join(map(str, candidates))}")
    return max(built, key=lambda path: path.stat().st_mtime).resolve()


def unit_files(folder: Path = REPO / "units") -> dict[str, Path]:
    """Destination → source of everything in units/."""
    files = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        parent, stem = path.parent.name, path.stem
        if parent in BY_FOLDER:
            files[f"{BY_FOLDER[parent]}/{path.name}"] = path
        elif path.suffix == ".conf" and parent.endswith(".d"):  # a drop-in
            files[f"/usr/lib/systemd/system/{parent}/{path.name}"] = path
        elif path.suffix in BY_SUFFIX:
            files[f"{BY_SUFFIX[path.suffix]}/{path.name}"] = path
        elif path.suffix == ".conf" and ("tmpfiles" in stem or "sysusers" in stem):
            kind = "tmpfiles" if "tmpfiles" in stem else "sysusers"
            files[f"/usr/lib/{kind}.d/heat-node-agent.conf"] = path
        elif path.suffix in (".tmpfiles", ".sysusers"):
            files[f"/usr/lib/{path.suffix[1:]}.d/{stem}.conf"] = path
    return files


class Host:
    """One host. Everything it makes is gone after down(), or after Host.down_all()."""

    def __init__(self, name: str):
        self.name = name
        self.ip: str | None = None

    # --- life ---------------------------------------------------------------------------------
    def up(self, *, base: str = "node", ip: str | None = None, prefix: int = 24, lab: str = LAB, gateway: str | None = None,
           volumes: dict[str, tuple[str, str]] | None = None, files: dict[str, str | Path] | None = None,
           binds: dict[str, str] | None = None, binds_ro: dict[str, str] | None = None, instance_id: str | None = None,
           cgroup: int = 1, upper: str = "tmpfs", expect: str = "running") -> "Host":
        """Boot. volumes: {"vdb": ("4G", volume id)}; files: {path in the host: path here}; binds: {path here: path in the host}.

        instance_id is what cloud-init would say of the instance at each boot (a fresh one by default); see be_instance."""
        args = ["--base", base, "--cgroup", cgroup, "--upper", upper]
        if ip:
            self.ip = ip
            args += ["--net", f"{lab}:{ip}/{prefix}"]
        if gateway:
            args += ["--gw", gateway]
        if instance_id is not None:
            args += ["--instance-id", instance_id]
        for dev, (size, volume_id) in (volumes or {}).items():
            args += [f"--{dev}", f"{size}:{volume_id}"]
        for dst, src in (files or {}).items():
            args += ["--file", f"{dst}={src}"]
        for option, pairs in (("--bind", binds), ("--bind-ro", binds_ro)):
            for src, dst in (pairs or {}).items():
                args += [option, f"{src}:{dst}"]
        return self._booted(run(HOST_SH, "up", self.name, *args, timeout=NET), expect)

    def _booted(self, done, expect: str) -> "Host":
        state = done.stdout.split()[1]
        if expect and state != expect:
            raise AssertionError(f"{self.name} is {state}, not {expect}:\n{self.exec('systemctl', '--failed', '--no-legend', check=False).stdout}")
        return self

    def boot(self, expect: str = "running") -> "Host":
        return self._booted(run(HOST_SH, "boot", self.name, timeout=NET), expect)

    def be_instance(self, instance_id: str | None):
        """From the next boot on this disk is that of another instance; None: cloud-init does not say of which."""
        self.write("/usr/local/share/testhost-instance-id", f"{instance_id}\n" if instance_id else "")

    def reboot(self, expect: str = "running") -> "Host":
        """Orderly power-off, then boot from the same disks."""
        return self._booted(run(HOST_SH, "reboot", self.name, timeout=NET), expect)

    def cut(self):
        """Power cut: SIGKILL for all of it. The disks stay, with all that was written (page cache included)."""
        run(HOST_SH, "cut", self.name, timeout=NET)

    def down(self, keep_volumes: bool = False):
        """keep_volumes: a later host may take a volume over by its id."""
        run(HOST_SH, "down", self.name, *(["--keep-volumes"] if keep_volumes else []), timeout=NET)

    @staticmethod
    def down_all():
        run(HOST_SH, "down-all", timeout=NET)

    def attach(self, dev: str, size: str, volume_id: str):
        run(HOST_SH, "attach", self.name, dev, f"{size}:{volume_id}")

    def detach(self, dev: str):
        run(HOST_SH, "detach", self.name, dev)

    def link(self, up: bool):
        """Its network cable."""
        run(HOST_SH, "link", self.name, "up" if up else "down")

    # --- inside -------------------------------------------------------------------------------
    def exec(self, *args, check: bool = True, input: str | bytes | None = None, timeout: float = NET) -> subprocess.CompletedProcess:
        leader = self._leader()
        # Where it has none host.sh says so.
        inside = [HOST_SH, "exec", self.name] if leader is None else ["nsenter", "-t", leader, *ENTER]
        done = run(*inside, *args, check=False, input=input, timeout=timeout)
        if done.returncode < 0:  # as a shell has it
            done.returncode = 128 - done.returncode
        if check and done.returncode:
            raise Failed(done)
        return done

    def _leader(self) -> str | None:
        """The host's PID 1 as this machine numbers it, asked afresh each time as host.sh does: supervisor, systemd-nspawn, PID 1."""
        try:
            pid, since = (TESTHOST / SET / "run" / self.name / "nspawn.pid").read_text().split()
            if Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[19] != since:
                return None
            for _ in range(2):
                pid = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0]
            return pid
        except (OSError, ValueError, IndexError):
            return None

    def sh(self, script: str, check: bool = True, timeout: float = NET) -> str:
        """stdout of a shell script."""
        return self.exec("bash", "-euo", "pipefail", "-c", script, check=check, timeout=timeout).stdout

    def popen(self, *args, **options) -> subprocess.Popen:
        return subprocess.Popen([str(HOST_SH), "exec", self.name, *map(str, args)], **options)

    def exists(self, path: str) -> bool:
        return self.exec("test", "-e", path, check=False).returncode == 0

    def read(self, path: str) -> str:
        return self.exec("cat", "--", path).stdout

    def write(self, path: str, content: str | bytes, mode: int = 0o644):
        self.put({path: (content if isinstance(content, bytes) else content.encode(), mode)})

    def put(self, files: dict[str, tuple[bytes | Path, int]]):
        """Files into the host by one command: {path: (content or path here, mode)}, owner root."""
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w") as tar:
            for path, (content, mode) in files.items():
                data = content.read_bytes() if isinstance(content, Path) else content
                info = tarfile.TarInfo(path.lstrip("/"))
                info.size, info.mode, info.mtime = len(data), mode, time.time()
                tar.addfile(info, io.BytesIO(data))
        # folders on the way that are links stay links; a file that runs is replaced, not written into
        self.exec("tar", "-x", "-C", "/", "--keep-directory-symlink", "--unlink-first", "-f", "-", input=out.getvalue())

    def remove(self, *paths: str):
        self.exec("rm", "-rf", "--", *paths)

    def sha256(self, *paths: str) -> dict[str, str]:
        """To compare before and after."""
        lines = self.exec("sha256sum", "--", *paths).stdout.splitlines()
        return {line.split("  ", 1)[1]: line.split("  ", 1)[0] for line in lines}

    def show(self, unit: str, *properties: str) -> dict[str, str]:
        """systemctl show."""
        args = [f"--property={','.join(properties)}"] if properties else []
        lines = self.exec("systemctl", "show", *args, "--", unit).stdout.splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)

    def is_active(self, unit: str) -> bool:
        return self.exec("systemctl", "is-active", "-q", unit, check=False).returncode == 0

    def console(self) -> str:
        """What went to /dev/console, of all boots."""
        return (TESTHOST / SET / "run" / self.name / "console.log").read_text(errors="replace")

    def boot_ids(self) -> list[str]:
        """Of the boots in the journal, oldest first."""
        return [line.split()[1] for line in self.exec("journalctl", "--list-boots", "-q").stdout.splitlines()
                if line.split()[0].lstrip("-").isdigit()]

    def verified(self, *units: str) -> str:
        """What `systemd-analyze verify` says of our units; it reads others beside them, and complains of the distribution's own."""
        done = self.exec("systemd-analyze", "verify", "--man=no", *units, check=False)
        lines = (done.stdout + done.stderr).splitlines()
        return "\n".join(line for line in lines if not re.match(r"(/usr)?/lib/systemd/system/(?!heat-node)\S+?:\d+: ", line))

    def journal(self, unit: str | None = None, boot: int | str | None = None, extended: bool = False, **fields) -> list[dict]:
        """Entries as dicts. fields are journal matches (HNA_EVENT="..."; _TRANSPORT needs **{"_TRANSPORT": ...}).

        unit: with systemd's own lines about it, as journalctl -u. extended: only those with an HNA_EVENT field."""
        args = ["sh", "-c", 'journalctl --sync && exec "$@"', "sh", "journalctl", "-q", "--no-pager", "--all", "-o", "json"]
        if unit:
            args += ["-u", unit]
        if boot is not None:
            args += [f"--boot={boot}"]
        entries = [json.loads(line) for line in self.exec(*args, *(f"{k}={v}" for k, v in fields.items())).stdout.splitlines()]
        for e in entries:
            for k, v in e.items():
                if isinstance(v, list) and v and all(isinstance(x, int) for x in v):  # not printable: bytes
                    e[k] = bytes(v).decode(errors="replace")
        return [e for e in entries if not extended or "HNA_EVENT" in e]

    def reported(self, event: str, count: int = 1, words: str = "", **fields) -> list[dict]:
        """The journal's lines about this event, once there are so many: the agent does not wait for the journal, and goes on before they are there."""
        def found() -> list[dict]:
            entries = [e for e in self.journal(HNA_EVENT=event, **fields) if words in e["MESSAGE"]]
            return entries if len(entries) >= count else []
        return self.wait_for(found, what=f"{event} {words} of {self.name}, {count} of them")

    def wait_for(self, condition, seconds: float = 300, what: str = ""):
        """condition: a callable without arguments, or a shell script that must succeed inside."""
        if isinstance(condition, str):
            script = condition
            return wait_for(lambda: self.exec("bash", "-c", script), seconds, what or script)
        return wait_for(condition, seconds, what)

    # --- the agent ----------------------------------------------------------------------------
    def install_agent(self, binary: str | Path | None = None):
        """As an image has it: the binary, and units/ where they belong; not enabled, not started."""
        path = Path(binary) if binary else agent_binary()
        files: dict[str, tuple[bytes | Path, int]] = {"/usr/bin/heat-node-agent": (path, 0o755)}
        files |= {dst: (src, 0o644) for dst, src in unit_files().items()}
        self.put(files)
        self.sh("systemd-sysusers; [ ! -e /usr/lib/tmpfiles.d/heat-node-agent.conf ] || systemd-tmpfiles --create heat-node-agent.conf; journalctl --update-catalog; systemctl daemon-reload")

    def save_failure(self, folder: Path) -> str:
        """Journal, console and units of a failed test into a folder; the end of the journal as text, without the kernel's lines: all hosts share
        one kernel, and those of other tests would push out what this host said."""
        folder.mkdir(parents=True, exist_ok=True)
        try:
            text = self.exec("journalctl", "-q", "--no-pager", "--all", "-o", "short-precise").stdout
            units = self.exec("systemctl", "--no-pager", "list-units", "--all", check=False).stdout
            (folder / f"{self.name}.units").write_text(units)
        except (Failed, OSError, subprocess.TimeoutExpired) as e:
            text = str(e)
        (folder / f"{self.name}.journal").write_text(text)
        try:
            (folder / f"{self.name}.console").write_text(self.console())
        except OSError:
            pass
        return "\n".join([line for line in text.splitlines() if " kernel: " not in line][-60:])


def lab_up(lab: str = LAB, address: str | None = None):
    run(HOST_SH, "lab", "up", lab, *([address] if address else []))


def lab_down(lab: str = LAB):
    run(HOST_SH, "lab", "down", lab)


def prepare():
    """Packages and cached roots: minutes the first time, then a moment."""
    run(TESTS / "host/up.sh", timeout=1800)
