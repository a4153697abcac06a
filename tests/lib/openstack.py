"""The real services of tests/cloud, told as lib.cloud tells their stand-in."""
import base64
import json
import subprocess
from pathlib import Path

from lib.cloud import Cloud
from lib.common import TESTS, in_lab, run
from lib.heat import HEAT_DIR, NET, Heat

# A net: eleven services and three of Nova's hosts begin on a machine that may be busy.
UP = 3600
# kind → type of the service, path
PATHS = {"ports": ("network", "v2.0/ports"), "networks": ("network", "v2.0/networks"), "security_groups": ("network", "v2.0/security-groups"),
         "security_group_rules": ("network", "v2.0/security-group-rules"), "floatingips": ("network", "v2.0/floatingips"),
         "routers": ("network", "v2.0/routers"), "subnets": ("network", "v2.0/subnets"), "servers": ("compute", "servers/detail?all_tenants=1"),
         "server_groups": ("compute", "os-server-groups?all_projects=1"), "volumes": ("volumev3", "volumes/detail?all_tenants=1"),
         "images": ("image", "v2/images"), "flavors": ("compute", "flavors/detail")}


def up():
    run(TESTS / "cloud/up.sh", timeout=UP)


def down():
    run(TESTS / "cloud/down.sh", timeout=NET)


class OpenStack(Cloud):
    # Each look is a question to seven services that are at work.
    pause, patience = 5, 1800

    def start(self) -> "OpenStack":
        return self

    def stop(self):
        pass

    @staticmethod
    def as_admin() -> dict[str, str]:
        secrets = dict(line.split("=", 1) for line in (HEAT_DIR / "state/secrets").read_text().splitlines())
        return {"OS_USERNAME": "admin", "OS_PROJECT_NAME": "admin", "OS_PASSWORD": secrets["ADMIN_PASS"], "HB_TOKEN_FILE": str(HEAT_DIR / "state/admin-token")}

    def get(self, service: str, path: str, *version: str) -> dict:
        """As the cloud's administrator."""
        return json.loads(self.heat._client("get", service, path, *version, env=self.as_admin()).stdout)

    def kept(self, kind: str) -> list[dict]:
        """All that the services have of a kind, as their administrator sees it."""
        return self.get(*PATHS[kind])[kind]

    def named(self, kind: str) -> dict[str, dict]:
        return {one["name"]: one for one in self.kept(kind)}

    def attachments(self, server: str) -> list[dict]:
        return self.get("compute", f"servers/{server}/os-volume_attachments")["volumeAttachments"]

    def user_data(self, server: str) -> str:
        """As Nova has it for the server's metadata service and its config drive."""
        return base64.b64decode(self.get("compute", f"servers/{server}", "2.3")["server"]["OS-EXT-SRV-ATTR:user_data"]).decode()

    def everything(self) -> dict[str, set[str]]:
        """Ids of all that a stack might leave behind."""
        return {kind: {one["id"] for one in self.kept(kind)} for kind in PATHS}

    def client(self, *words, folder: Path, check: bool = True, timeout: float = NET) -> subprocess.CompletedProcess:
        """`openstack …` as an operator of the project demo types it."""
        return in_lab("env", "-C", folder, "bash", "-c", f'. "{HEAT_DIR}/state/openrc" && exec "$@"', "-", HEAT_DIR / "cache/venv/bin/openstack", *words,
                      check=check, timeout=timeout)
