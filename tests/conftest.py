"""Fixtures of the host and Heat tests. Everything that a fixture brings up, its finalizer takes down; what a
killed session left is swept when the next one starts.

    python3 -B -m pytest tests/host          systemd hosts only
    python3 -B -m pytest tests               with a real Heat (HNA_KEEP_HEAT=1 leaves it running at the end)
"""
import fcntl
import os
import re
import signal
import sys
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))

import pytest  # noqa: E402

from lib import hosts as hosts_module  # noqa: E402
from lib.agent import Agent  # noqa: E402
from lib.common import GATEWAY, SET, TESTHOST  # noqa: E402
from lib.failures import Stage  # noqa: E402
from lib.heat import Heat, unique  # noqa: E402
from lib.hosts import Host  # noqa: E402
from lib.magnum import Magnum  # noqa: E402
from lib.signal_server import SignalServer  # noqa: E402
from lib.stash import AGENTS, HOSTS  # noqa: E402
from lib.sweep import share  # noqa: E402


def pytest_configure():
    if os.geteuid():
        raise pytest.UsageError("these tests boot hosts: run them as root")

    def end(*_):
        raise KeyboardInterrupt  # so that finalizers run
    signal.signal(signal.SIGTERM, end)


def pytest_report_header() -> str:
    return "kill sweeps: every point" if share()[1] == 1 else "kill sweeps: HNA_SWEEP={}/{}".format(*share())


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    if report.when == "call" and report.failed:
        folder = TESTHOST / "failed" / re.sub(r"[^\w.-]+", "_", item.nodeid)
        for host in item.stash.get(HOSTS, []):
            report.sections.append((f"journal of {host.name} (all of it in {folder})", host.save_failure(folder)))
        for agent in item.stash.get(AGENTS, []):
            report.sections.append((f"log of {agent.name}", "\n".join(agent.said()[-40:])))


def pytest_terminal_summary(terminalreporter):
    """How long staged failures took to be shown: for a person to read."""
    reports = [r for outcome in ("passed", "failed") for r in terminalreporter.getreports(outcome) if r.when == "call"]
    rows = [value for report in reports for name, value in report.user_properties if name == "shown"]
    if rows:
        terminalreporter.section("seconds until status shows a failure")
        for name, seconds, within in rows:
            terminalreporter.line(f"{name:<32} {seconds:6.1f} of {within}")


@pytest.fixture(scope="session")
def testhost():
    """Roots are there, nothing of an earlier session is, and no other session of this machine runs hosts of this set."""
    with open(f"/run/hna-testhost-{SET}.lock", "w") as lock, open("/run/hna-testhost.lock", "w") as roots:
        fcntl.flock(lock, fcntl.LOCK_EX)
        fcntl.flock(roots, fcntl.LOCK_EX)
        hosts_module.prepare()
        fcntl.flock(roots, fcntl.LOCK_UN)
        Host.down_all()
        yield
        Host.down_all()


@pytest.fixture(scope="session")
def lab(testhost) -> str:
    """The bridge that hosts, signal servers and Heat share; GATEWAY is its address."""
    hosts_module.lab_up(address=f"{GATEWAY}/24")
    yield hosts_module.LAB
    hosts_module.lab_down()


@pytest.fixture
def hosts(lab, request):
    """hosts("n1", ip="10.77.0.11", volumes={...}, ...) boots one; see Host.up."""
    made: list[Host] = []
    request.node.stash[HOSTS] = made

    def make(name: str = "n1", **options) -> Host:
        host = Host(name)
        made.append(host)
        return host.up(**options)
    yield make
    for host in reversed(made):
        host.down()


@pytest.fixture
def signal_server(lab, tmp_path):
    """signal_server(port=18000) starts one on the bridge."""
    made: list[SignalServer] = []

    def make(port: int = 18000, **options) -> SignalServer:
        server = SignalServer(tmp_path / f"signals-{port}", port=port, **options)
        made.append(server)
        return server.start()
    yield make
    for server in made:
        server.stop()


@pytest.fixture
def magnum(lab, tmp_path):
    """magnum(release=22) starts a Keystone with a Magnum on the bridge."""
    made: list[Magnum] = []

    def make(**options) -> Magnum:
        made.append(Magnum(tmp_path / f"magnum-{len(made)}", port=19511 + len(made), **options))
        return made[-1].start()
    yield make
    for server in made:
        server.stop()


@pytest.fixture(scope="session")
def heat_services(lab):
    Heat.up()
    yield
    Heat.start()
    Heat().sweep_all()
    if not os.environ.get("HNA_KEEP_HEAT"):
        Heat.down()


@pytest.fixture
def heat(heat_services) -> Heat:
    """A real Heat; stacks that are made through it are deleted, services that were stopped are started."""
    heat = Heat()
    yield heat
    Heat.start()
    heat.sweep()


@pytest.fixture
def agents(lab, tmp_path, request):
    """agents("name", os_collect_config, **settings) makes an agent as a plain process; start() starts it."""
    made: list[Agent] = []
    request.node.stash[AGENTS] = made
    point = Path("/var/lib/heat-config")  # only the place of a mount
    missing = not point.exists()
    point.mkdir(exist_ok=True)

    def make(name: str, os_collect_config: dict, **settings) -> Agent:
        made.append(Agent(tmp_path / name, os_collect_config, **settings))
        return made[-1]
    yield make
    for agent in made:
        agent.stop()
    if missing:
        point.rmdir()


@pytest.fixture
def stages(record_property):
    """stages(host, server) makes a Stage, on which failures are staged; what is wrong with their pages is said at the end."""
    made: list[Stage] = []

    def make(host: Host, server: SignalServer) -> Stage:
        made.append(Stage(host, server, lambda name, seconds, within: record_property("shown", [name, round(seconds, 1), within])))
        return made[-1]
    yield make
    mistakes = [mistake for stage in made for mistake in stage.mistakes]
    assert not mistakes, "\n\n".join(mistakes)


@pytest.fixture
def stack_name(request) -> str:
    # Short: Heat names a queue after stack and resource, and Zaqar takes no name of more than 64 characters.
    return unique(re.sub(r"[^a-zA-Z0-9]+", "-", request.node.name)[:20])
