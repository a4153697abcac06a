"""The real Heat of tests/heat/, as an object. Tests run outside its network namespace; every call goes in."""
import json
import os
import re
import shlex
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from lib.common import PYTHON, REPO, TESTS, in_lab, run, wait_for
from lib.hosts import Host

HEAT_DIR = Path(os.environ.get("HNA_HEAT_DIR") or REPO / "target/heat").resolve()
TEMPLATES = TESTS / "heat/templates"
SERVICES = ("keystone", "heat-api", "heat-api-cfn", "heat-engine")
LOGGED = (*SERVICES[:3], "swift", "zaqar")
OURS = "heat-node-agent/"  # how the agent names itself
# Nets under a test that hangs. Agents that have failed for long pause up to five minutes.
NET, LONG = 300, 900


@dataclass
class Access:
    """One line of a service's access log; target is path and query as the service decoded them."""
    time: float
    ms: int
    status: int
    bytes_in: int
    bytes_out: int
    method: str
    target: str
    agent: str
    client: str


class Heat:
    def __init__(self):
        self.stacks: list[str] = []  # of this object: sweep() deletes them
        self._poll_urls: dict[tuple[str, str], str] = {}

    # --- life ---------------------------------------------------------------------------------
    @staticmethod
    def up():
        run(TESTS / "heat/up.sh", timeout=1800)

    @staticmethod
    def down(purge: bool = False):
        run(TESTS / "heat/down.sh", *(["--purge"] if purge else []))

    @staticmethod
    def stop(*services: str):
        """Heat is down: connections to these (by default all but Keystone) are refused."""
        run(TESTS / "heat/service.sh", "stop", *(services or SERVICES[1:]))

    @staticmethod
    def start(*services: str):
        """And up again; those that run are left alone."""
        run(TESTS / "heat/service.sh", "start", *(services or SERVICES), timeout=1800)

    @classmethod
    def auth_ttl(cls, minutes: int):
        """How long Keystone takes a pre-signed URL after its Timestamp; 0 refuses even a fresh one. Restarts Keystone."""
        conf = HEAT_DIR / "state/etc/keystone/keystone.conf"
        conf.write_text(re.sub(r"(?m)^auth_ttl = .*", f"auth_ttl = {minutes}", conf.read_text()))
        cls.stop("keystone")
        cls.start("keystone")

    def revoke_tokens(self, *users: str):
        """All tokens that these users have now."""
        self._client("revoke", *users, env=self._as_admin() | {"HB_TOKEN_FILE": ""})

    # --- stacks -------------------------------------------------------------------------------
    @staticmethod
    def _as_demo() -> dict[str, str]:
        words = [w.removeprefix("export ") for w in (HEAT_DIR / "state/openrc").read_text().split("\n")]
        return dict(pair.split("=", 1) for w in words for pair in w.split() if "=" in pair)

    @staticmethod
    def _as_admin() -> dict[str, str]:
        secrets = dict(line.split("=", 1) for line in (HEAT_DIR / "state/secrets").read_text().splitlines())
        return {"OS_USERNAME": "admin", "OS_PROJECT_NAME": "admin", "OS_PASSWORD": secrets["ADMIN_PASS"]}

    def _client(self, *args, check: bool = True, timeout: float = LONG, env: dict | None = None):
        given = self._as_demo() | {"HB_TOKEN_FILE": str(HEAT_DIR / "state/token")} | (env or {})
        return in_lab(PYTHON, "-B", TESTS / "heat/stack.py", *args, check=check, timeout=timeout, env=given)

    def openstack(self, command: str, admin: bool = False, check: bool = True):
        """A command line of OpenStack's own client, by the stacks' owner."""
        program, *words = shlex.split(command)
        return in_lab(HEAT_DIR / "cache/venv/bin" / program, *words, check=check, env=self._as_demo() | (self._as_admin() if admin else {}))

    @staticmethod
    def _parameters(parameters: dict) -> list[str]:
        return [f"{k}={v if isinstance(v, str) else json.dumps(v)}" for k, v in parameters.items()]

    @staticmethod
    def _template(template: str | Path) -> Path:
        """A name means tests/heat/templates/NAME.yaml."""
        return TEMPLATES / f"{template}.yaml" if isinstance(template, str) and "/" not in template else Path(template)

    def create(self, stack: str, template: str | Path, **parameters) -> str:
        """Starts it and gives back its id; wait() waits."""
        self.stacks.append(stack)
        return self._client("create", stack, self._template(template), *self._parameters(parameters)).stdout.strip()

    def update(self, stack: str, template: str | Path, **parameters):
        self._client("update", stack, self._template(template), *self._parameters(parameters))

    def action(self, stack: str, action: str):
        """suspend or resume; wait() waits."""
        self._client("action", stack, action)
        # Heat may answer before it begins, and who waits then would see the end of the action before.
        wait_for(lambda: self.status(stack).startswith(action.upper()), NET, f"begin of {action} of {stack}", every=0.3)

    def wait(self, stack: str, status: str = "CREATE_COMPLETE", seconds: float = LONG) -> str:
        """Wait for the end of the running action, which must be `status`; gives back the reason."""
        said = self._client("wait", stack, seconds, check=False, timeout=seconds + NET).stdout.strip()
        got, _, reason = said.partition(" ")
        if got != status:
            failed = [f"{r['resource_name']} {r['resource_status']} {r['resource_status_reason']}" for r in self.resources(stack).values()
                      if not r["resource_status"].endswith("_COMPLETE")]
            raise AssertionError(f"stack {stack}: {said}, not {status}\n" + "\n".join(failed))
        return reason

    def status(self, stack: str) -> str:
        """Without the outputs, which Heat would work out each time."""
        return self._client("wait", stack, 0, check=False).stdout.removeprefix("timeout ").split()[0]

    def show(self, stack: str) -> dict:
        return json.loads(self._client("show", stack).stdout)

    def resources(self, stack: str) -> dict[str, dict]:
        return {r["resource_name"]: r for r in json.loads(self._client("resources", stack).stdout)}

    def resource_status(self, stack: str, resource: str) -> str:
        return self.resources(stack)[resource]["resource_status"]

    def output(self, stack: str, key: str):
        return json.loads(self._client("output", stack, key).stdout)

    def outputs(self, stack: str) -> dict:
        return json.loads(self._client("outputs", stack).stdout)

    def meta(self, stack: str, resource: str = "server") -> dict:
        """Resource metadata as the stack's owner sees it."""
        return json.loads(self._client("meta", stack, resource).stdout)

    def poll(self, stack: str, output: str = "occ") -> dict:
        """As the server sees it: a signed DescribeStackResource with its own keys."""
        url = self._poll_urls.get((stack, output)) or self.poll_url(stack, output)
        answer = json.loads(in_lab("curl", "-sf", url).stdout)
        self._poll_urls[stack, output] = url
        metadata = answer["DescribeStackResourceResponse"]["DescribeStackResourceResult"]["StackResourceDetail"]["Metadata"]
        return json.loads(metadata) if isinstance(metadata, str) else metadata

    def poll_url(self, stack: str, output: str = "occ") -> str:
        return self._client("poll-url", stack, output).stdout.strip()

    def deployment(self, stack: str, name: str, output: str = "occ", seconds: float = NET) -> dict:
        """The entry of that name in the server's metadata, once it is there."""
        return wait_for(lambda: next((d for d in self.poll(stack, output).get("deployments", []) if d["name"] == name), None),
                        seconds, f"deployment {name} in the metadata of {stack}")

    def entry(self, stack: str, server: str, name: str) -> dict:
        """The entry of that name in a server's metadata as the stack's owner sees it, whatever the server polls."""
        return next((d for d in self.meta(stack, server).get("deployments", []) if d["name"] == name), {})

    def server_settings(self, stack: str, output: str = "occ") -> dict:
        """os_collect_config of a server, once Heat has made its keys."""
        def ready():
            occ = self.output(stack, output)
            return occ if occ and any(occ.get(k) for k in ("cfn", "heat", "request", "zaqar")) else None
        return wait_for(ready, NET, f"os_collect_config of {stack}")

    def hand_over(self, host: Host, stack: str, output: str = "occ"):
        """What cloud-init leaves on a server."""
        document = {"os-collect-config": self.server_settings(stack, output), "deployments": []}
        host.sh("mkdir -p -m 700 /var/lib/heat-cfntools")
        host.write("/var/lib/heat-cfntools/cfn-init-data", json.dumps(document), 0o600)

    def handles(self, stack: str) -> dict:
        """Outputs of templates/wait.yaml once all handles are there: before, a handle's reference is just its name."""
        texts = ("token", "endpoint", "cfn_signal", "heat_signal", "temp_signal", "zaqar_signal", "no_signal")
        return wait_for(lambda: (o := self.outputs(stack)) and all(o[k] for k in texts) and all(o[k].startswith("http") for k in ("aws_url", "swift_url")) and o,
                        NET, f"handles of {stack}")

    @staticmethod
    def conf(settings: dict, **default) -> str:
        """/etc/os-collect-config.conf as the replaced agent's own template writes it."""
        lines = ["[DEFAULT]", "command = os-refresh-config"]
        lines += [f"collectors = {c}" for c in settings.get("collectors", [])]
        lines += [f"{k} = {v}" for k, v in default.items()]
        for section, values in settings.items():
            if isinstance(values, dict):
                lines += ["", f"[{section}]"] + [f"{k} = {v}" for k, v in values.items()]
        return "\n".join(lines) + "\n"

    def delete(self, stack: str, seconds: float = NET):
        """Delete and wait. Deployments with a DELETE action are answered here if nobody else does."""
        def gone() -> bool:
            if "could not be found" in self._client("show", stack, check=False).stderr:
                return True
            for name, resource in self.resources(stack).items():
                if resource["resource_type"].endswith("Deployment") and resource["resource_status"] == "DELETE_IN_PROGRESS":
                    self._client("signal", stack, name, '{"deploy_status_code": 0}', check=False)
            return False
        if self._client("delete", stack, 8, check=False).returncode:
            # Asking again would begin again.
            wait_for(gone, seconds, f"end of {stack}", every=2)
        if stack in self.stacks:
            self.stacks.remove(stack)

    def delete_by_agents(self, stack: str, seconds: float = LONG):
        """Delete and wait; every deployment with a DELETE action is for the agents to answer."""
        self._client("delete", stack, seconds, timeout=seconds + NET)
        self.stacks.remove(stack)

    def sweep(self):
        """Begin to delete what this object made; sweep_all() at the end of the session waits. (Heat gives itself
        5 s and more for each stack that is still in progress.)"""
        for stack in self.stacks:
            self._client("delete", stack, 0, check=False)
        self.stacks.clear()

    def sweep_all(self):
        """Delete every stack there is, and wait."""
        for stack in json.loads(self._client("list").stdout):
            self.delete(stack)

    # --- by hand ------------------------------------------------------------------------------
    def signal(self, url: str, body: dict | str, method: str = "POST", headers: dict | None = None) -> int:
        """One request by curl from Heat's own namespace; the status, 0 without an answer."""
        data = body if isinstance(body, str) else json.dumps(body)
        args = [a for k, v in {"Content-Type": "application/json", "Accept": "application/json", **(headers or {})}.items() for a in ("-H", f"{k}: {v}")]
        return int(in_lab("curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "-X", method, *args, "--data-binary", "@-", url, input=data, check=False).stdout)

    def consumed(self, url: str, since: dict[str, int]):
        """Wait until Heat has read and deleted what was put at a temporary URL after that mark. It deletes by name: what
        another node puts there in between is deleted unread, and the wait condition waits for it until its time is up."""
        path = re.escape(urlsplit(url).path)

        def read() -> bool:
            # A PUT that nobody answered in time is made once more.
            return [r.method for r in self.requests("swift", since, path=path) if r.method in ("PUT", "DELETE")][-1:] == ["DELETE"]
        wait_for(read, NET, f"Heat's DELETE of {path}", every=0.3)

    def answer(self, stack: str, deployment: str, output: str = "occ", **outputs) -> int:
        """Signal a deployment of the stack's server by hand, with deploy_status_code 0 unless given."""
        url = inputs(self.deployment(stack, deployment, output))["deploy_signal_id"]
        return self.signal(url, {"deploy_stdout": "", "deploy_stderr": "", "deploy_status_code": 0, **outputs})

    # --- access logs --------------------------------------------------------------------------
    @staticmethod
    def mark() -> dict[str, int]:
        """This moment in all access logs."""
        marks = {}
        for service in LOGGED:
            path = HEAT_DIR / f"state/log/access-{service}.log"
            marks[service] = path.read_bytes().rfind(b"\n") + 1 if path.exists() else 0
        return marks

    @staticmethod
    def requests(service: str, since: dict[str, int] | None = None, client: str | None = None, path: str | None = None) -> list[Access]:
        """Requests to one of LOGGED since a mark; from one client address; target matching a regex."""
        with open(HEAT_DIR / f"state/log/access-{service}.log", "rb") as f:
            f.seek((since or {}).get(service, 0))
            lines = f.read().rpartition(b"\n")[0].decode(errors="replace").splitlines()  # the last may be half written
        found = []
        for line in lines:
            m = re.fullmatch(r"(\S+) (\S+) (\S+) (\S+) (\S+) (\S+) (.*) (\S+) (\S+)", line)
            found.append(Access(float(m[1]), int(m[2]), int(m[3]), int(m[4]), int(m[5]), m[6], m[7], m[8], m[9]))
        return [a for a in found if (not client or a.client == client) and (not path or re.search(path, a.target))]

    @classmethod
    def asked(cls, service: str, since: dict[str, int] | None = None, method: str = "", path: str | None = None) -> list[Access]:
        """Requests of agents, whatever their address."""
        return [a for a in cls.requests(service, since, path=path) if a.agent.startswith(OURS) and method in ("", a.method)]

    @classmethod
    def tokens(cls, since: dict[str, int] | None = None) -> list[Access]:
        """Tokens that agents asked for."""
        return cls.asked("keystone", since, "POST", "/v3/auth/tokens$")


def inputs(deployment: dict) -> dict:
    """name → value of a deployment's inputs."""
    return {i["name"]: i.get("value") for i in deployment["inputs"]}


def unique(prefix: str) -> str:
    """A stack name that no earlier run of this Heat has used."""
    return f"{prefix}-{time.time_ns() // 1_000_000:x}"
