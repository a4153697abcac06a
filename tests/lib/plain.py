"""The agent as a plain process in a mount namespace of its own, without a host, a network or Heat: for what it costs and for what
it does not take."""
import json
import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from lib.hosts import agent_binary


class Plain:
    """folder holds all that it would have on a disk of its own."""

    def __init__(self, folder: Path, binary: Path | None = None, **settings):
        """settings: keys of agent.toml with __ for the dot."""
        self.folder, self.binary = folder, binary or agent_binary()
        (folder / "root-run/cloud-init").mkdir(parents=True)
        (folder / "root-run/cloud-init/.instance-id").write_text("i-1\n")
        # In its own /run, because nobody but root may write the directories above.
        self.conf, self.log, self.state = folder / "root-run/os-collect-config.conf", folder / "log", folder / "state"
        values = {"polling_interval": 1, "state__dir": self.state, "run__dir": folder / "run", "sources__cfn_init_data": [],
                  "sources__os_collect_config": "/run/os-collect-config.conf", "deploy__deployed_dir": folder / "deployed", "report__console": False, **settings}
        self.toml = folder / "agent.toml"
        self.toml.write_text("".join(f"{k.replace('__', '.')} = {json.dumps(v if isinstance(v, (bool, int, list)) else str(v))}\n" for k, v in values.items()))

    def start(self, *args: str) -> subprocess.Popen:
        """`run` and these: what it says goes to the log. The process that is given back is the agent's own."""
        own = ('mount --bind "$0/root-run" /run && mount -t tmpfs own /var/lib && mkdir /var/lib/heat-config && exec "$@"')
        line = ["unshare", "--mount", "sh", "-c", own, self.folder, self.binary, "--settings", self.toml, "run", *args]
        with open(self.log, "ab") as log:
            return subprocess.Popen([str(word) for word in line], stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def said(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def status(self) -> dict:
        return json.loads((self.folder / "run/status.json").read_text())


def peak_kib(pid: int) -> int:
    """The most memory that a process had resident."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def cpu_seconds(pid: int) -> float:
    """Time on a processor of the process itself, not of those that it started."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def deployments(count: int) -> list[dict]:
    """Scripts that do nothing and of which Heat wants to hear nothing, as Heat lists them."""
    inputs = {"deploy_server_id": "b1a6a2f0-0000-4000-8000-000000000000", "deploy_action": "CREATE",
              "deploy_stack_id": "stack/b1a6a2f0-0000-4000-8000-000000000001", "deploy_signal_transport": "NO_SIGNAL"}
    listed = []
    for n in range(count):
        all_inputs = {**inputs, "deploy_resource_name": f"resource-{n}"}
        listed.append({"id": f"b1a6a2f0-0000-4000-8000-{n:012d}", "name": f"d{n}", "group": "script", "config": "#!/bin/sh\n:\n", "options": {},
                       "creation_time": "2026-03-01T12:00:00Z", "outputs": [],
                       "inputs": [{"name": k, "type": "String", "description": "", "value": v} for k, v in all_inputs.items()]})
    return listed


@dataclass
class Cost:
    """Of `run --once`: of the agent's own process, not of those that it started."""
    cpu_seconds: float
    seconds: float
    peak_mib: float
    # Bytes and calls by which it read and wrote (proc_pid_io(5)): the same on a busy machine.
    io_bytes: int
    io_calls: int


def cost_of(count: int, folder: Path) -> Cost:
    """Of so many such scripts."""
    document = folder / "document.json"
    document.write_text(json.dumps({"deployments": deployments(count)}))
    agent = Plain(folder / "agent")
    began, peak = time.monotonic(), 0
    process = agent.start("--once", "--metadata", str(document))
    # Not reaped yet, it shows all that it used but its memory.
    while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        try:
            peak = peak_kib(process.pid)
        except (OSError, StopIteration):
            pass  # it has just ended
        time.sleep(0.02)
    seconds, cpu = time.monotonic() - began, cpu_seconds(process.pid)
    io = dict(line.split(": ") for line in Path(f"/proc/{process.pid}/io").read_text().splitlines())
    assert process.wait() == 0 and agent.said().count("HNA-0403") == count, f"{count}: exit {process.returncode}\n{agent.said()[-2000:]}"
    return Cost(cpu, seconds, peak / 1024, int(io["rchar"]) + int(io["wchar"]), int(io["syscr"]) + int(io["syscw"]))
