"""The Debian package on real systemd hosts: installed, upgraded in the middle of a deployment, removed, purged."""
import gzip
import json
import os
import re
import stat
from pathlib import Path

import pytest

from lib.common import REPO, Failed, run
from lib.node import IP, NODE, UNIT, VDB, VDC, heard_out, is_steady, signalled
from lib.packages import COUNT, GUARD, PACKAGE_ONLY, STAND_IN, deb, files_of, is_enabled, job_of, pids, prepare  # noqa: F401

SERVICES = ("etcd.service", "docker.service")
DROP_INS = [f"/etc/systemd/system/{unit}.d/50-heat-node-agent.conf" for unit in sorted(SERVICES)]


def newer(deb: Path, folder: Path, version: str) -> Path:
    """The same package with a higher version."""
    run("dpkg-deb", "-R", deb, folder / version)
    control = folder / version / "DEBIAN/control"
    control.write_text(re.sub(r"(?m)^Version: .*", f"Version: {version}", control.read_text()))
    run("dpkg-deb", "-Zgzip", "-z1", "-b", folder / version, folder / f"{version}.deb")
    return folder / f"{version}.deb"


def install(host, deb: Path, check: bool = True):
    host.put({f"/var/tmp/{deb.name}": (deb, 0o644)})
    return host.exec("dpkg", "-i", f"/var/tmp/{deb.name}", check=check)


def is_healthy(host) -> bool:
    return host.exec("heat-node-agent", "status", check=False).returncode == 0


def test_a_package_holds_what_an_image_gets(deb, tmp_path):
    run(REPO / "image-build/stage", tmp_path)
    image = {str(path.relative_to(tmp_path)): (stat.S_IMODE(path.stat().st_mode), path.read_bytes())
             for path in tmp_path.rglob("*") if path.is_file()}
    package = files_of(deb)
    assert sorted(package) == sorted(PACKAGE_ONLY | set(image))
    assert {name: package[name] for name in image} == image
    fields = dict(re.findall(r"(?m)^([\w-]+): (.*)", run("dpkg-deb", "-f", deb).stdout))
    assert [fields[key] for key in ("Package", "Architecture", "Section", "Priority")] == ["heat-node-agent", "amd64", "admin", "optional"]
    # Where Rust has musl's library it is linked with nothing of the host's.
    needed = re.findall(r"NEEDED.*\[(.*)\]", run("readelf", "-dW", tmp_path / "usr/bin/heat-node-agent").stdout)
    library = Path(run("rustc", "--print", "target-libdir", "--target", "x86_64-unknown-linux-musl").stdout.strip())
    assert not needed or not library.is_dir(), needed
    # Whose work it is linked with, down to the texts that only one of them has.
    notices = gzip.decompress(image["usr/share/doc/heat-node-agent/third-party-notices.gz"][1]).decode()
    for words in ("\n  ring 0.", "\n  tokio 1.", "\n  subtle 2.", "BoringSSL", "Neither the name of the copyright holder", "APPENDIX: How to apply"):
        assert words in notices, words
    assert "  proptest " not in notices and "  serde_derive " not in notices
    # Settings in /etc are the operator's.
    assert "conffiles" not in run("dpkg-deb", "-I", deb).stdout


@pytest.mark.parametrize(("flags", "libc"), [(["-static"], False), ([], True)], ids=["static", "dynamic"])
def test_a_package_asks_for_the_libc_that_its_program_needs(tmp_path, flags, libc):
    made = tmp_path / "image"
    (made / "usr/bin").mkdir(parents=True)
    for name, text in (("man/man8/heat-node-agent.8", b".TH a 8\n"), ("doc/heat-node-agent/third-party-notices.gz", gzip.compress(b"a\n"))):
        (made / "usr/share" / name).parent.mkdir(parents=True)
        (made / "usr/share" / name).write_bytes(text)
    # getrandom is of glibc 2.25.
    run("cc", *flags, "-x", "c", "-o", made / "usr/bin/heat-node-agent", "-",
        input="#include <sys/random.h>\nint main(void) { char c; return getrandom(&c, 1, 0) < 0; }\n")
    found = Path(run(REPO / "image-build/deb", env={"CARGO_TARGET_DIR": str(tmp_path)}).stdout.strip())
    depends = run("dpkg-deb", "-f", found, "Depends").stdout.strip().split(", ")
    needed = re.search(r"libc6 \(>= ([\d.]+)\)", ", ".join(depends))
    assert bool(needed) == libc and "systemd (>= 219)" in depends and "" not in depends, depends
    if needed:
        assert tuple(map(int, needed[1].split("."))) >= (2, 25)
        # Where dpkg-shlibdeps says nothing there is no package.
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin/dpkg-shlibdeps").write_text("#!/bin/sh\nexit 1\n")
        (tmp_path / "bin/dpkg-shlibdeps").chmod(0o755)
        found.unlink()
        refused = run(REPO / "image-build/deb", check=False, env={"CARGO_TARGET_DIR": str(tmp_path), "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"})
        assert refused.returncode == 1 and "libc.so.6" in refused.stderr and not found.exists(), refused


def test_the_same_sources_give_the_same_package(deb):
    before = deb.read_bytes()
    again = Path(run("sh", "-c", 'umask 077; exec taskset -c "$1" "$0"', REPO / "image-build/deb", min(os.sched_getaffinity(0))).stdout.strip())
    assert again.read_bytes() == before


def test_on_a_running_host_it_is_enabled_and_runs(deb, hosts, signal_server):
    server = signal_server()
    host = hosts("n1", ip=IP, base="base")
    prepare(host, server)
    server.deploy(server.deployment("d", config="#!/bin/sh\necho out\n"))
    install(host, deb)
    assert host.is_active(UNIT) and is_enabled(host) == "enabled"
    assert signalled(server, "d")["deploy_stdout"] == "out\n"
    # The guard is asked for by others, never started by itself.
    assert host.show(GUARD, "ActiveState", "Result") == {"ActiveState": "inactive", "Result": "success"}
    assert host.verified(UNIT, GUARD) == ""
    said = host.exec("systemd-tmpfiles", "--create", "heat-node-agent.conf")
    assert said.stdout + said.stderr == ""
    made = host.sh("stat -c '%a %U:%G' /run/heat-node-agent /srv/kubernetes /var/lib/heat-node-agent")
    assert made == "755 root:root\n755 root:root\n700 root:root\n"
    # The catalog speaks.
    line = host.reported("DeploymentStarted")[0]
    text = host.exec("journalctl", "-q", "-x", f"MESSAGE_ID={line['MESSAGE_ID']}").stdout
    assert "Defined-By: heat-node-agent" in text and f"Subject: A deployment is running [{line['HNA_CODE']}]" in text, text
    # Manual pages and completions lie where they are looked for.
    for page in ("man8/heat-node-agent.8", "man5/heat-node-agent.toml.5", "man7/heat-node-agent-parameters.7", "man7/heat-node-agent-messages.7"):
        assert ".TH " in host.sh(f"zcat /usr/share/man/{page}.gz")
    assert host.sh("""set +u; . /usr/share/bash-completion/completions/heat-node-agent
        COMP_WORDS=(heat-node-agent stat); COMP_CWORD=1; _heat__node__agent heat-node-agent stat heat-node-agent
        echo "${COMPREPLY[@]}\"""").strip() == "status"
    for path in ("/usr/share/zsh/vendor-completions/_heat-node-agent", "/usr/share/fish/vendor_completions.d/heat-node-agent.fish"):
        assert host.exists(path)
    # dpkg finds every file as it was packed.
    assert host.exec("dpkg", "--verify", "heat-node-agent").stdout == ""
    assert host.exec("dpkg", "--audit").stdout == ""


def test_in_an_image_it_is_enabled_as_the_presets_say_and_nothing_starts(deb, hosts):
    host = hosts("n1", ip=IP, base="base")
    host.put({"/var/tmp/agent.deb": (deb, 0o644)})
    # A root of its own without a running systemd, /proc or /dev.
    host.sh("""mount -t tmpfs tmpfs /mnt
        for image in plain preset; do
          mkdir -p /mnt/$image/{upper,work,root}
          mount -t overlay overlay -o lowerdir=/,upperdir=/mnt/$image/upper,workdir=/mnt/$image/work /mnt/$image/root
          rm -rf /mnt/$image/root/run; mkdir /mnt/$image/root/run
          : >/mnt/$image/root/etc/machine-id
          rm -f /mnt/$image/root/var/lib/dbus/machine-id
        done
        mkdir -p /mnt/preset/root/etc/systemd/system-preset
        echo 'disable heat-node-agent.service' >/mnt/preset/root/etc/systemd/system-preset/10-operator.preset""")
    for image, enabled in (("plain", True), ("preset", False)):
        root = f"/mnt/{image}/root"
        done = host.exec("chroot", root, "dpkg", "-i", "/var/tmp/agent.deb", check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        wanted = f"{root}/etc/systemd/system/multi-user.target.wants/{UNIT}"
        assert host.exec("test", "-L", wanted, check=False).returncode == (0 if enabled else 1)
        found = host.exec("chroot", root, "heat-node-agent", "verify", "--image", "--json", check=False)
        ours = [f["place"] for f in json.loads(found.stdout)["mistakes"] if "heat-node-agent" in f["place"]]
        assert ours == ([] if enabled else [f"/etc/systemd/system/multi-user.target.wants/{UNIT}"]), found.stdout
        assert not host.exists(f"{root}/var/lib/heat-node-agent")
    assert host.exec("pgrep", "-x", "heat-node-agent", check=False).returncode == 1
    assert host.sh("systemctl list-unit-files --no-legend 'heat-node-agent*' || :") == ""


def test_beside_the_replaced_collector_it_is_not_installed(deb, hosts, tmp_path):
    host = hosts("n1", ip=IP, base="base")
    service = "[Service]\nExecStart=/bin/sleep infinity\n[Install]\nWantedBy=multi-user.target\n"
    host.write("/etc/systemd/system/os-collect-config.service", service)
    host.sh("systemctl daemon-reload; systemctl start os-collect-config.service")
    refused = install(host, deb, check=False)
    assert refused.returncode == 1 and "systemctl disable --now os-collect-config.service" in refused.stderr, refused.stderr
    assert not host.exists("/usr/bin/heat-node-agent") and not host.exists("/var/lib/heat-node-agent")
    # Enabled only: said, and left to the operator.
    host.sh("systemctl enable os-collect-config.service; systemctl stop os-collect-config.service")
    assert "is enabled" in install(host, deb).stderr and host.is_active(UNIT)
    host.exec("dpkg", "-P", "heat-node-agent")
    host.sh("systemctl disable os-collect-config.service; rm /etc/systemd/system/os-collect-config.service; systemctl daemon-reload")
    # A package of that name makes room.
    other = tmp_path / "other"
    (other / "DEBIAN").mkdir(parents=True)
    (other / "usr/lib/systemd/system").mkdir(parents=True)
    (other / "usr/lib/systemd/system/os-collect-config.service").write_text(service)
    fields = "Package: os-collect-config\nVersion: 1\nArchitecture: all\nMaintainer: a <a@b.invalid>\nDescription: collects\n"
    (other / "DEBIAN/control").write_text(fields)
    for name, words in (("postinst", "daemon-reload; systemctl enable --now"), ("prerm", "disable --now")):
        (other / "DEBIAN" / name).write_text(f"#!/bin/sh\nset -e\nsystemctl {words} os-collect-config.service\n")
        (other / "DEBIAN" / name).chmod(0o755)
    run("dpkg-deb", "-b", other, tmp_path / "os-collect-config.deb")
    install(host, tmp_path / "os-collect-config.deb")
    assert host.is_active("os-collect-config.service")
    done = install(host, deb)
    assert host.is_active(UNIT) and not host.is_active("os-collect-config.service"), done.stdout + done.stderr
    assert not host.exists("/usr/lib/systemd/system/os-collect-config.service")


def test_an_upgrade_in_the_middle_of_a_deployment_disturbs_nothing(deb, hosts, signal_server, tmp_path):
    server = signal_server()
    host = hosts("n1", ip=IP, base="base")
    prepare(host, server)
    server.deploy(server.deployment("long", config=f"{COUNT}while [ ! -e /run/go ]; do sleep 0.1; done\necho $$ >>/var/tmp/ended\n"),
                  server.deployment("next", config="#!/bin/sh\necho after\n"))
    install(host, deb)
    host.wait_for(lambda: host.exists("/var/tmp/ran"))
    job = job_of(host)
    before = pids(host, UNIT, job)
    install(host, newer(deb, tmp_path, "0.99.0-1"))
    assert host.sh("dpkg-query -W -f '${Version}' heat-node-agent") == "0.99.0-1"
    after = pids(host, UNIT, job)
    assert after[job] == before[job] != "0" and after[UNIT] not in ("0", before[UNIT])
    assert host.sh(f"readlink /proc/{after[UNIT]}/exe").strip() == "/usr/bin/heat-node-agent"
    host.reported("DeploymentReattached")
    assert not server.signals()
    host.write("/run/go", "")
    assert signalled(server, "long")["deploy_status_code"] == 0 and signalled(server, "next")["deploy_stdout"] == "after\n"
    assert host.read("/var/tmp/ran") == "ran\n" and len(host.read("/var/tmp/ended").split()) == 1
    # The same once more where an answer came too late.
    assert len({s.body for s in server.signals("long")}) == 1
    # Removed in the middle of one: it ends by itself, and whoever installs the package again hears of it.
    server.deploy(server.deployment("away", config=f"{COUNT}while [ ! -e /run/go-on ]; do sleep 0.1; done\necho away\n"))
    host.exec("systemctl", "kill", "-s", "HUP", UNIT)
    host.wait_for(lambda: host.read("/var/tmp/ran") == "ran\nran\n")
    host.exec("dpkg", "-r", "heat-node-agent")
    job = job_of(host)
    host.write("/run/go-on", "")
    host.wait_for(lambda: not host.is_active(job) and host.show(job, "ActiveState")["ActiveState"] == "inactive")
    install(host, newer(deb, tmp_path, "0.99.1-1"))
    assert signalled(server, "away")["deploy_stdout"] == "away\n" and len({s.body for s in server.signals("away")}) == 1
    assert host.read("/var/tmp/ran") == "ran\nran\n"
    # What an operator switched off stays off.
    host.exec("systemctl", "disable", "--now", UNIT)
    install(host, newer(deb, tmp_path, "0.99.2-1"))
    assert is_enabled(host) == "disabled" and not host.is_active(UNIT)


def test_what_a_node_runs_outlives_removal_and_purge(deb, hosts, signal_server):
    server = signal_server()
    host = hosts("n1", ip=IP, volumes={"vdb": ("2G", VDB), "vdc": ("1G", VDC)})
    prepare(host, server)
    server.deploy(server.deployment("10-once", config=COUNT), server.deployment("20-node", group="kubernetes-node", inputs=NODE))
    install(host, deb)
    assert signalled(server, "10-once")["deploy_status_code"] == 0
    assert signalled(server, "20-node")["deploy_status_code"] == 0
    host.wait_for(lambda: is_steady(host))  # what Heat took is noted, and not sent again
    running = pids(host, *SERVICES)
    node = {path: host.read(path) for path in DROP_INS}
    mounts = host.sh("findmnt -rno SOURCE,TARGET /var/lib/etcd; findmnt -rno SOURCE,TARGET /var/lib/docker")
    state = host.sh("cd /var/lib/heat-node-agent && find . -type f | sort")
    server.forget()

    host.exec("dpkg", "-r", "heat-node-agent")
    assert not host.is_active(UNIT) and is_enabled(host) != "enabled" and not host.exists("/usr/bin/heat-node-agent")
    assert host.sh("cd /var/lib/heat-node-agent && find . -type f | sort") == state
    assert pids(host, *SERVICES) == running and {path: host.read(path) for path in DROP_INS} == node
    host.exec("systemctl", "restart", *SERVICES)
    # The next boot brings the node up without the agent.
    host.reboot()
    host.wait_for(lambda: all(host.is_active(unit) for unit in SERVICES))
    assert host.exec("pgrep", "-x", "heat-node-agent", check=False).returncode == 1
    assert {path: host.read(path) for path in DROP_INS} == node

    running = pids(host, *SERVICES)
    heard_out(server)
    server.forget()
    install(host, deb)
    assert host.is_active(UNIT) and is_enabled(host) == "enabled"
    assert not host.exists(STAND_IN) and host.show(GUARD, "FragmentPath")["FragmentPath"].endswith(f"/lib/systemd/system/{GUARD}")
    host.wait_for(lambda: server.polls())
    host.wait_for(lambda: is_healthy(host))
    assert host.exec("heat-node-agent", "plan", check=False).returncode == 0
    assert host.read("/var/tmp/ran") == "ran\n" and not server.signals() and pids(host, *SERVICES) == running

    host.exec("dpkg", "-P", "heat-node-agent")
    assert not host.exists("/var/lib/heat-node-agent") and not host.exists("/run/heat-node-agent")
    assert host.sh("find /etc/systemd /var/lib/systemd -name '*heat-node-agent*' | sort").split() == sorted(DROP_INS)
    for path in DROP_INS:
        without = "".join(line for line in node[path].splitlines(True) if GUARD not in line and "if this disk is a copy" not in line)
        assert host.read(path) == without != node[path]
    assert pids(host, *SERVICES) == running
    assert all(host.show(unit, "NeedDaemonReload")["NeedDaemonReload"] == "no" for unit in SERVICES)
    assert host.sh("findmnt -rno SOURCE,TARGET /var/lib/etcd; findmnt -rno SOURCE,TARGET /var/lib/docker") == mounts
    host.exec("systemctl", "restart", *SERVICES)
    # Whoever installs it again runs no script a second time: the record that it shares with the replaced tools is kept. That Heat has heard
    # of it, nobody knows any more: it hears the same again.
    heard_out(server)
    server.forget()
    install(host, deb)
    host.wait_for(lambda: server.polls())
    host.wait_for(lambda: is_healthy(host))
    assert host.read("/var/tmp/ran") == "ran\n"
    assert {s.json()["deploy_status_code"] for s in server.signals("10-once")} <= {0}


def test_a_guard_of_the_operators_own_outlives_removal(deb, hosts):
    host = hosts("n1", ip=IP, base="base")
    own = "[Service]\nType=oneshot\nExecStart=/bin/true\n"
    install(host, deb)
    host.sh("mkdir -p /etc/systemd/system/etcd.service.d")
    host.write(DROP_INS[1], f"# Made by heat-node-agent.\n[Unit]\nRequires={GUARD}\nAfter={GUARD}\n")
    host.write("/etc/systemd/system/etcd.service.d/90-own.conf", f"[Unit]\nRequires={GUARD}\n")
    host.write(STAND_IN, own)
    host.exec("dpkg", "-P", "heat-node-agent")
    assert host.read(STAND_IN) == own and host.read(DROP_INS[1]) == "# Made by heat-node-agent.\n[Unit]\n"
    assert GUARD in host.read("/etc/systemd/system/etcd.service.d/90-own.conf")
    install(host, deb)
    assert host.read(STAND_IN) == own
    # Without one, what takes its place stays as long as somebody asks for it.
    host.remove(STAND_IN)
    host.exec("dpkg", "-P", "heat-node-agent")
    assert host.read(STAND_IN).startswith("# Made by the removal of heat-node-agent.")
    with pytest.raises(Failed):
        host.exec("dpkg", "-L", "heat-node-agent")
