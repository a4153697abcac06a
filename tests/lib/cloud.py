"""The stand-in for Nova, Neutron, Cinder, Glance and Octavia beside the real Heat (tests/heat/cloud.py), in Keystone's catalog while it runs."""
import json
import os
import signal
import subprocess
from pathlib import Path

from lib.common import GATEWAY, LAB, PYTHON, TESTS, in_lab, wait_for
from lib.heat import HEAT_DIR, NET, Heat

PORT = 8900
EXAMPLES = TESTS.parent / "examples/heat"
ENVIRONMENTS = sorted((EXAMPLES / "environments").glob("*.yaml"))


class Cloud:
    pause, patience = 0.5, NET  # between two looks at a stack; until its action must have ended

    def __init__(self, heat: Heat, folder: Path):
        self.heat, self.log = heat, folder / "cloud.log"
        self.process: subprocess.Popen | None = None

    def start(self) -> "Cloud":
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(
                ["ip", "netns", "exec", f"lab-{LAB}", PYTHON, "-B", TESTS / "heat/cloud.py", GATEWAY, str(PORT)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        wait_for(lambda: in_lab("curl", "-sf", f"http://{GATEWAY}:{PORT}/network/", check=False).returncode == 0, 300, "the cloud's stand-in")
        self._in_catalog(True)
        return self

    def stop(self):
        self._in_catalog(False)
        if self.process:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def _in_catalog(self, there: bool):
        secrets = dict(line.split("=", 1) for line in (HEAT_DIR / "state/secrets").read_text().splitlines())
        self.heat._client("cloud", f"http://{GATEWAY}:{PORT}" if there else "-",
                          env={"OS_USERNAME": "admin", "OS_PROJECT_NAME": "admin", "OS_PASSWORD": secrets["ADMIN_PASS"], "HB_TOKEN_FILE": ""})
        # It holds a catalog, too.
        (HEAT_DIR / "state/token").unlink(missing_ok=True)

    # --- stacks of examples/heat ---
    @staticmethod
    def arguments(environments, **parameters) -> list[str]:
        return [*(f"-e={path}" for path in environments), *Heat._parameters(parameters)]

    def validate(self, template: Path, *environments, **parameters) -> dict:
        return json.loads(self.heat._client("validate", template, *self.arguments(environments, **parameters)).stdout)

    def preview(self, template: Path, *environments, **parameters) -> dict:
        return json.loads(self.heat._client("preview", "preview", template, *self.arguments(environments, **parameters)).stdout)

    def create(self, stack: str, template: Path, *environments, **parameters):
        self.heat.stacks.append(stack)
        self.heat._client("create", stack, template, *self.arguments(environments, **parameters))

    def update(self, stack: str, template: Path, *environments, **parameters):
        self.heat._client("update", stack, template, *self.arguments(environments, **parameters))

    def ends(self, stack: str, status: str, **failing: str) -> list[str]:
        """Answers as the nodes until the stack's action ends, which must be by `status`: nodes that are named fail with that reason. Who answered, in
        turn."""
        answered: list[str] = []

        def ended() -> bool:
            answered.extend(json.loads(self.heat._client("answer", stack, *(f"{name}={why}" for name, why in failing.items())).stdout))
            return not self.heat.status(stack).endswith("IN_PROGRESS")
        wait_for(ended, self.patience, f"end of {stack}", every=self.pause)
        self.heat.wait(stack, status)
        return answered

    def unhealthy(self, stack: str, server: str):
        self.heat._client("unhealthy", stack, server)

    def kept(self, service: str, kind: str) -> list[dict]:
        """What the cloud holds of a kind, e.g. Neutron's ports."""
        return json.loads(in_lab("curl", "-sf", f"http://{GATEWAY}:{PORT}/{service}/{kind}").stdout)[kind.replace("-", "_")]

    def servers(self, stack: str) -> dict[str, dict]:
        """What Heat tells each server of the stack that has a deployment, by the node's name."""
        found = json.loads(self.heat._client("servers", stack).stdout)
        named = {}
        for metadata in found:
            for deployment in metadata.get("deployments", []):
                named |= {i["value"]: metadata for i in deployment["inputs"] if i["name"] == "INSTANCE_NAME"}
        return named
