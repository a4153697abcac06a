"""The main job on one throw-away host; started by tests/demo."""
import json
import os
import re
import signal
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

# Hosts and a network of its own: it may run beside tests.
os.environ.update(HNA_TEST_SET="demo", HB_LAB="demo", HB_IP="10.78.0.1")
sys.path.insert(0, str(Path(__file__).resolve().parent))

from lib import flanneld, real_kubernetes, stand_ins  # noqa: E402
from lib.common import GATEWAY, REPO, Failed  # noqa: E402
from lib.hosts import Host, lab_down, lab_up  # noqa: E402
from lib.magnum import Magnum  # noqa: E402
from lib.signal_server import SignalServer  # noqa: E402

NAME, ADDRESS = "demo-master", "10.78.0.11"
REAL = "--stand-ins" not in sys.argv[1:]
# What users look at when they want to know more.
PAGES = ["heat-node-agent timeline", "heat-node-agent certificates", "journalctl -x -q --no-pager --no-hostname -u heat-node-agent"]
PATIENCE = 600
GREETED = "Heat"
SCRIPT = """#!/bin/sh
echo "hello $who, this is $(hostname)"
printf 'hello %s' "$who" >"$heat_outputs_path.greeting"
"""


def master() -> tuple[dict, list]:
    """Parameters and outputs of the example's master."""
    [example] = json.loads((REPO / "examples/master.json").read_text())["deployments"]
    inputs = {i["name"]: i["value"] for i in example["inputs"] if not i["name"].startswith("deploy_")}
    inputs |= {"INSTANCE_NAME": NAME, "KUBE_NODE_IP": ADDRESS, "KUBE_API_PRIVATE_ADDRESS": ADDRESS}
    if REAL:
        inputs = {name: value for name, value in inputs.items() if not name.startswith("FLANNEL_")}
        inputs |= {"KUBE_TAG": f"v{real_kubernetes.version()}", "ETCD_TAG": "v3.4.23", **real_kubernetes.HOSTS_OWN,
                   **real_kubernetes.network({ADDRESS: "10.100.1.0/24"})}
    else:
        inputs["FLANNEL_TAG"] = f"v{flanneld.version_like(inputs['FLANNEL_TAG'].removeprefix('v'))}"
    return inputs, example["outputs"]


def boot(host: Host, parameters: dict):
    """With two blank volumes, and what an image has: etcd and containerd are Debian's."""
    host.up(base="node", ip=ADDRESS, lab="demo",
            volumes={"vdb": ("4G", parameters["DOCKER_VOLUME"]), "vdc": ("2G", parameters["ETCD_VOLUME"])}, **(real_kubernetes.seen() if REAL else {}))
    if REAL:
        real_kubernetes.install(host, parameters["CONTAINER_RUNTIME"])
    else:
        stand_ins.into(host, parameters["KUBE_TAG"].removeprefix("v"), f"flanneld={parameters['FLANNEL_TAG'].removeprefix('v')}")
        host.put(stand_ins.CNI_PROGRAMS)


def run_a_pod(host: Host, parameters: dict) -> list[str]:
    """On the real master; what is not as it should be."""
    kubectl = ("kubectl", "--kubeconfig", real_kubernetes.ADMIN)
    real_kubernetes.load_images(host, parameters["CONTAINER_RUNTIME"])
    host.exec(*kubectl, "apply", "-f", "-", input=json.dumps(real_kubernetes.pod("hello", NAME, "netexec", "--http-port=8080")))
    host.exec(*kubectl, "wait", "--for=condition=Ready", f"--timeout={PATIENCE}s", "pod/hello", check=False, timeout=PATIENCE + 10)
    heading("kubectl get nodes,pods -o wide")
    print(host.exec(*kubectl, "get", "nodes,pods", "-o", "wide").stdout.rstrip(), flush=True)
    said = host.exec(*kubectl, "exec", "hello", "--", "hostname", check=False)
    print(f"\n$ kubectl exec hello -- hostname\n{(said.stdout + said.stderr).rstrip()}", flush=True)
    return [] if said.stdout.strip() == "hello" else ["the pod does not run"]


class Heat(SignalServer):
    """With URLs that were signed just now."""

    def signal_url(self, *args, **options) -> str:
        now = time.strftime("%Y-%m-%dT%H%%3A%M%%3A%SZ", time.gmtime())
        return re.sub(r"Timestamp=[^&]*", f"Timestamp={now}", super().signal_url(*args, **options))


def say(text: str):
    print(f"{time.strftime('%T')} {text}", flush=True)


def heading(text: str):
    print(f"\n--- {text} {'-' * (95 - len(text))}", flush=True)


def follow(host: Host, server: Heat, expected: list[str]) -> bool:
    """Until Heat has a signal of every resource; says what the agent says meanwhile."""
    end, last = time.monotonic() + PATIENCE, None
    while time.monotonic() < end:
        done = host.exec("heat-node-agent", "status", "--json", check=False)
        try:
            status = json.loads(done.stdout)
            line = f"{status['phase']}: {status['summary']}"
        except (ValueError, KeyError):
            line = "the agent has not said anything yet"
        if line != last:
            say(f"  {line}")
            last = line
        if all(server.signals(name, accepted=True) for name in expected):
            return True
        time.sleep(0.2)
    return False


def settled(host: Host) -> int:
    """Exit code of `status` once the agent knows that Heat has everything; a node that failed stays so."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        done = host.exec("heat-node-agent", "status", "--json", check=False)
        if not done.returncode or json.loads(done.stdout)["node"]["state"] == "rejected":
            break
        time.sleep(0.2)
    return done.returncode


def verdicts(server: Heat, expected: list[str]) -> list[str]:
    """What is not as it should be."""
    wrong = []
    for name in expected:
        signals = server.signals(name, accepted=True)
        # Who had no answer in time sends the same once more.
        if len({one.body for one in signals}) != 1:
            wrong.append(f"{name}: {len(signals)} signals, not one")
        for one in signals:
            body = one.json()
            good = body.get("status") == "SUCCESS" if "status" in body else str(body.get("deploy_status_code")) == "0"
            if not good:
                wrong.append(f"{name}: not a success: {json.dumps(body)[:300]}")
    return wrong


def ran(parameters: dict) -> str:
    """Which programs were real."""
    real, stood_in = ["systemd", "etcd", "containerd"], ["Heat's API", "Keystone", "Magnum"]
    (real if REAL else stood_in).append(f"Kubernetes {parameters['KUBE_TAG']}")
    if parameters["NETWORK_DRIVER"] == "flannel":
        program, tag = flanneld.given(), parameters["FLANNEL_TAG"]
        (real if program and tag == f"v{program.version}" else stood_in).append(f"flanneld {tag}")
        stood_in.append("flannel's CNI plugin")
    return f"real       {', '.join(real)}\nstand-ins  {', '.join(stood_in)}"


def show(host: Host, server: Heat, parameters: dict, expected: list[str]):
    """One screen: what was asked, which programs were real, what `status` says, what Heat heard."""
    heading("what was asked, in the metadata of the server")
    print(f"hello             script           prints a greeting for who={GREETED}, and gives it back as an output\n"
          f"configure-master  kubernetes-node  ROLE=master KUBE_TAG={parameters['KUBE_TAG']} NETWORK_DRIVER={parameters['NETWORK_DRIVER']},\n"
          f"{'':35}{len(parameters)} parameters, two volumes, certificates signed by Magnum")
    heading("which programs were real")
    print(ran(parameters))
    heading("heat-node-agent status")
    print(host.exec("heat-node-agent", "status", check=False).stdout.rstrip(), flush=True)
    heading("what Heat heard")
    for name in expected:
        for one in server.signals(name, accepted=True):
            print(f"{name:17} {heard(one.json())}")


def heard(body: dict) -> str:
    """A signal in a line, without what the agent adds for people."""
    if "status" in body:
        return f"{body['status']}: {body.get('reason', '')}"
    outputs = {name: value for name, value in body.items() if not name.startswith("deploy_")}
    texts = [f"{name}={value}" for name, value in outputs.items() if isinstance(value, str) and value and len(value) < 40]
    return f"exit status {body.get('deploy_status_code')}" + "".join(f", {text}" for text in texts[:3])


def show_all(host: Host, server: Heat):
    for page in PAGES:
        heading(page)
        print(host.exec(*page.split(), check=False).stdout, flush=True)
    heading("what Heat got, word for word")
    for one in server.signals():
        print(f"{one.method} {urlsplit(one.target).path}\n  answered {one.status}; {one.header('content-type') or 'no content type'}")
        try:
            print("  " + json.dumps(one.json(), indent=2, ensure_ascii=False).replace("\n", "\n  ") + "\n", flush=True)
        except ValueError:
            print(f"  {one.body!r}\n", flush=True)


def work(host: Host, server: Heat, magnum: Magnum, folder: Path, verbose: bool) -> int:
    parameters, outputs = master()
    say("a network, stand-ins for heat-api-cfn, Keystone and Magnum, a host with two blank volumes (vdb, vdc)")
    lab_up("demo", f"{GATEWAY}/24")
    server.start()
    parameters |= magnum.start().parameters()
    handle = json.dumps({"alarm_url": server.signal_url("wait_handle", "waitcondition")})
    server.deploy(
        server.deployment("hello", config=SCRIPT, inputs={"who": GREETED}, outputs=["greeting"]),
        server.deployment("configure-master", group="kubernetes-node", inputs=parameters | {"WAIT_HANDLE": handle}, outputs=outputs),
    )
    expected = ["hello", "configure-master", "wait_handle"]
    boot(host, parameters)
    # What cloud-init leaves of Heat's user data: the only thing that the agent is given.
    host.write("/var/lib/heat-cfntools/cfn-init-data", json.dumps({"deployments": [], "os-collect-config": server.settings()}), 0o600)
    host.install_agent()
    # as a package does
    host.sh("systemd-tmpfiles --create heat-node-agent.conf; systemctl preset -q heat-node-agent.service")
    say("the agent starts")
    host.sh("systemctl start heat-node-agent.service")
    heard = follow(host, server, expected)
    code = settled(host)
    host.exec("journalctl", "--sync")

    if verbose:
        show_all(host, server)
    show(host, server, parameters, expected)
    wrong = verdicts(server, expected)
    if not heard:
        wrong.insert(0, f"Heat did not hear everything within {PATIENCE} s")
    if code:
        wrong.append(f"heat-node-agent status ended with {code}")
    if REAL and not wrong:
        wrong += run_a_pod(host, parameters)
    if not wrong:
        print("\nsucceeded: Heat heard SUCCESS for the script, the master and the wait condition" + ("; the pod runs" if REAL else ""))
        return 0
    host.save_failure(folder)
    say(f"FAILED (journal and console of the host are in {folder.relative_to(REPO)}):")
    print("\n".join(f"  {one}" for one in wrong), flush=True)
    return 1


def main() -> int:
    def end(*_):
        raise KeyboardInterrupt
    signal.signal(signal.SIGTERM, end)
    keep, verbose = ("--keep" in sys.argv[1:]), ("--verbose" in sys.argv[1:])
    folder = REPO / "target/demo"
    host = Host(NAME)
    server = Heat(folder / "heat", ip=GATEWAY, port=8000, lab="demo")
    magnum = Magnum(folder / "magnum", ip=GATEWAY, lab="demo")
    Host.down_all()  # of an earlier run that was killed
    server.forget()
    magnum.forget()
    try:
        code = work(host, server, magnum, folder, verbose)
    except (Failed, AssertionError, OSError) as error:
        print(error, file=sys.stderr)
        code = 1
    except KeyboardInterrupt:
        code, keep = 130, False
    finally:
        if keep:
            say(f"the host is up: HNA_TEST_SET=demo tests/host/host.sh exec {NAME} bash; Ctrl-C takes it down")
            try:
                signal.pause()
            except KeyboardInterrupt:
                pass
        server.stop()
        magnum.stop()
        Host.down_all()
        lab_down("demo")
    return code


if __name__ == "__main__":
    sys.exit(main())
