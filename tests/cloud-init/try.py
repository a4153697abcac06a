"""One host with a real cloud-init, to look at; started by tests/cloud-init/try."""
import argparse
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

# Hosts and a network of its own: it may run beside tests.
os.environ.update(HNA_TEST_SET="try", HB_LAB="try", HB_IP="10.79.0.1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from lib import cloud_init, config_drive  # noqa: E402
from lib.common import GATEWAY, REPO, Failed  # noqa: E402
from lib.hosts import Host, lab_down, lab_up  # noqa: E402
from lib.signal_server import SignalServer  # noqa: E402

NAME, LAB, ADDRESS = "try-cloud", "try", "10.79.0.11"
PATIENCE = 300


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests/cloud-init/try")
    parser.add_argument("user_data", nargs="?", type=Path)
    parser.add_argument("--heat", action="store_true")
    agent = parser.add_mutually_exclusive_group()
    agent.add_argument("--image", action="store_true")
    agent.add_argument("--not-enabled", action="store_true")
    parser.add_argument("--binary", type=Path)
    parser.add_argument("--metadata", type=Path)
    parser.add_argument("--keep", action="store_true")
    return parser.parse_args()


def deployments(server: SignalServer, path: Path | None) -> list[dict]:
    if path is None:
        return [server.deployment("hello", config="#!/bin/sh\necho \"hello from $(hostname)\"\n")]
    document = json.loads(path.read_text())
    return document["deployments"] if isinstance(document, dict) else document


def heading(text: str):
    print(f"\n{'=' * 100}\n{text}\n{'=' * 100}", flush=True)


def look(host: Host, server: SignalServer, awaited: list[str]) -> int:
    """Shows the journal until cloud-init is through and Heat has heard of the deployments; 0 if both went well."""
    units = ["heat-node-agent", "heat-node-agent-guard", "cloud-init-local", cloud_init.NETWORK_STAGE, "cloud-config", "cloud-final"]
    # From 24.3 on one process has all stages, and says what becomes of them.
    units += ["cloud-init-main"]
    follow = host.popen("journalctl", "-f", "-n", "all", "-q", "-o", "short-precise", "--no-hostname", *(f"--unit={u}" for u in units),
                        stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        code, through = cloud_init.status(host)
        end = time.monotonic() + PATIENCE
        while not all(server.signals(name, accepted=True) for name in awaited) and time.monotonic() < end:
            time.sleep(0.2)
        time.sleep(0.5)
    finally:
        # all of it: a journalctl that is left would keep the host's namespaces, and the host would not go down
        os.killpg(follow.pid, signal.SIGTERM)
        follow.wait()
    heading("# cloud-init status --long")
    print(through, flush=True)
    heading("# heat-node-agent status; heat-node-agent explain")
    for command in ("status", "explain"):
        print(host.exec("heat-node-agent", command, check=False).stdout, flush=True)
    heading("# systemd-analyze critical-chain cloud-final.service; systemctl --failed")
    for command in (["systemd-analyze", "critical-chain", "cloud-final.service", "multi-user.target"], ["systemctl", "--failed"]):
        print(host.exec(*command, "--no-pager", check=False).stdout, flush=True)
    heading("what Heat got")
    for one in server.signals():
        print(f"{one.method} {one.target.split('?')[0]}\n  answered {one.status}; {one.body.decode(errors='replace')}", flush=True)
    missing = [name for name in awaited if not server.signals(name, accepted=True)]
    if missing:
        print(f"nothing within {PATIENCE} s of: {', '.join(missing)}")
    return 1 if missing or code == 1 else 0


def main() -> int:
    def end(*_):
        raise KeyboardInterrupt
    signal.signal(signal.SIGTERM, end)
    args = arguments()
    folder = REPO / "target/cloud-init/try"
    folder.mkdir(parents=True, exist_ok=True)
    host = Host(NAME)
    server = SignalServer(folder / "heat", ip=GATEWAY, port=8000, lab=LAB)
    Host.down_all()  # of an earlier run that was killed
    server.forget()
    try:
        lab_up(LAB, f"{GATEWAY}/24")
        server.start()
        given = deployments(server, args.metadata)
        server.deploy(*given)
        text = args.user_data.read_text().replace(cloud_init.EXAMPLE_HEAT, server.base) if args.user_data else ""
        if args.heat or not text:
            text = config_drive.heat_user_data(server.settings(), text)
        base, instance, volumes = cloud_init.BASE, str(uuid.uuid4()), {}
        if args.image:
            base = "image"
            # Its own cloud-init looks for what the image was built to look for: a config drive.
            volumes = {"vdb": ("16M", instance)}
            cloud_init.config_drive(folder, instance, text, instance)
            files = {"/usr/bin/heat-node-agent": args.binary} if args.binary else {}
        else:
            files = cloud_init.image(folder, enabled=not args.not_enabled, binary=args.binary)
            files |= cloud_init.seed(folder / "seed", text, instance)
        begun = time.monotonic()
        host.up(base=base, ip=ADDRESS, lab=LAB, instance_id="", files=files, volumes=volumes, expect="")
        print(f"booted in {time.monotonic() - begun:.1f} s", flush=True)
        # Heat hears only of what asks for a signal to here.
        code = look(host, server, [d["name"] for d in given if server.base in json.dumps(d)])
        if args.keep:
            print(f"the host is up: HNA_TEST_SET=try tests/host/host.sh exec {NAME} bash; Ctrl-C takes it down", flush=True)
            signal.pause()
    except (Failed, AssertionError, OSError, ValueError) as error:
        print(error, file=sys.stderr)
        code = 1
    except KeyboardInterrupt:
        code = 130
    finally:
        server.stop()
        Host.down_all()
        lab_down(LAB)
    return code


if __name__ == "__main__":
    sys.exit(main())
