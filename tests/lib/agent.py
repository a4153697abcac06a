"""The agent as a plain process beside the real Heat: no host, no systemd, so that many of them run side by side.

Scripts run as its children, and what it would tell the journal goes to a file: `<5>HNA-0401 message: cause`. Each has a
/run of its own (`ip netns exec` gives a mount namespace): without the systemd and journald of the machine that tests
run on, and with cloud-init's word for the instance; and a /var/lib/heat-config, where scripts work."""
import json
import re
import subprocess
from pathlib import Path

from lib.common import LAB, run, wait_for
from lib.heat import Heat
from lib.hosts import agent_binary


class Agent:
    """One node: folder holds all that it would have on a disk of its own."""

    def __init__(self, folder: Path, os_collect_config: dict, **settings):
        """settings: keys of agent.toml with __ for the dot, over those that make a quick test."""
        self.folder = folder
        self.name = folder.name
        folder.mkdir(parents=True)
        self.log = folder / "log"
        self.process: subprocess.Popen | None = None
        (folder / "root-run/cloud-init").mkdir(parents=True)
        (folder / "heat-config").mkdir()
        (folder / "root-run/cloud-init/.instance-id").write_text(f"i-{self.name}\n")
        # In its own /run, because nobody but root may write the directories above.
        self.conf = folder / "root-run/os-collect-config.conf"
        self.conf.write_text(Heat.conf(os_collect_config))
        self.conf.chmod(0o600)
        values = {"polling_interval": 2, "state__dir": folder / "state", "run__dir": folder / "run", "sources__cfn_init_data": [],
                  "sources__os_collect_config": "/run/os-collect-config.conf", "deploy__deployed_dir": folder / "deployed", "report__console": False, **settings}
        self.toml = folder / "agent.toml"
        self.toml.write_text("".join(f"{k.replace('__', '.')} = {json.dumps(v if isinstance(v, (bool, int, list)) else str(v))}\n" for k, v in values.items()))

    def _line(self, *args) -> list[str]:
        own = 'mount --bind "$0/root-run" /run && mount --bind "$0/heat-config" /var/lib/heat-config && exec "$@"'
        return ["ip", "netns", "exec", f"lab-{LAB}", "sh", "-c", own, str(self.folder),
                str(agent_binary()), "--settings", str(self.toml), *map(str, args)]

    def start(self) -> "Agent":
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(self._line("run"), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        return self

    def stop(self):
        if self.process and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(120)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.process = None

    def command(self, *args, check: bool = True, input: str | None = None) -> subprocess.CompletedProcess:
        """Another command of the same node."""
        return run(*self._line(*args), check=check, input=input)

    def status(self) -> dict:
        return json.loads(self.command("status", "--json", check=False).stdout)

    def said(self, pattern: str = "") -> list[str]:
        """Lines of its log that match; the last may be half written and does not count."""
        lines = self.log.read_text(errors="replace").rpartition("\n")[0].splitlines() if self.log.exists() else []
        return [line for line in lines if re.search(pattern, line)]

    def sent_again(self) -> bool:
        """Whether a signal was not taken at its first try: of such a one Heat may have more than one request."""
        return bool(self.said("HNA-0803|HNA-0810"))

    def missed_answers(self) -> bool:
        """Whether an answer came too late for it, or none: it asks once more for what it may have been given."""
        return bool(self.said("no answer from|closed the connection"))

    def hears(self, pattern: str, seconds: float = 300) -> str:
        """The first line that matches, once it is there."""
        return wait_for(lambda: self.said(pattern), seconds, f"{pattern!r} in the log of {self.name}")[0]

    def result(self, deployment_id: str) -> dict:
        """What it recorded as the result of a deployment, without what it keeps there for itself."""
        kept = json.loads((self.folder / f"deployed/{deployment_id}.notify.json").read_text())
        kept.pop("heat_node_agent")
        return kept
