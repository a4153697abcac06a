"""The RPM package: what it holds is the Debian package's; installed, upgraded, erased on a host by a real rpm, without a distribution that uses it."""
import gzip
import re
import shutil
import stat
from pathlib import Path

import pytest

from lib.common import MACHINE, REPO, SUITE, run
from lib.hosts import give
from lib.node import IP, UNIT, signalled
from lib.packages import COUNT, GUARD, PACKAGE_ONLY, STAND_IN, deb, files_of, is_enabled, job_of, pids, prepare, rpm  # noqa: F401

# Of another system's package manager. --nodeps: on these hosts no package of systemd is known to rpm.
RPM = ("rpm", "--dbpath", "/var/lib/rpm", "--force-debian", "--nodeps")


def install(host, package: Path, *options: str, check: bool = True):
    host.put({f"/var/tmp/{package.name}": (package, 0o644)})
    return host.exec(*RPM, *(options or ("-U",)), f"/var/tmp/{package.name}", check=check)


def newer(rpm: Path, folder: Path, version: str) -> Path:
    """The same package with a higher version, quickly packed."""
    made = rpm.parent / "rpm"
    spec = folder / f"{version}.spec"
    spec.write_text(re.sub(r"(?m)^Version: .*", f"Version: {version}", (made / "heat-node-agent.spec").read_text()))
    run("cp", "-a", made / "root", folder / f"root-{version}")
    nil = (word for name in ("__spec_install_pre", "__spec_install_post", "debug_package") for word in ("--define", f"{name} %{{nil}}"))
    run("rpmbuild", "--quiet", "-bb", "--target", "x86_64-linux", "--buildroot", folder / f"root-{version}", "--define", f"_topdir {folder}", *nil,
        "--define", f"_builddir {made}/build", "--define", "_build_id_links none", "--define", "_binary_payload w0.gzdio",
        "--define", "_rpmfilename %{NAME}-%{VERSION}.rpm", "--define", f"_rpmdir {folder}", spec)
    return folder / f"heat-node-agent-{version}.rpm"


def test_it_holds_what_the_debian_package_holds(rpm, deb, tmp_path):
    root = ("--root", tmp_path / "root", *RPM[1:3])
    if MACHINE in ("bullseye", "bookworm"):  # rpm of a later release asks for no such word, and knows none
        root += RPM[3:4]
    (tmp_path / "root").mkdir()
    run("rpm", *root, "-i", "--nodeps", "--noscripts", rpm)
    assert run("rpm", *root, "-V", "--nodeps", "heat-node-agent").stdout == ""
    found = {}
    for path in (tmp_path / "root").rglob("*"):
        name = str(path.relative_to(tmp_path / "root"))
        if path.is_dir() or name.startswith("var/"):
            continue
        content = path.read_bytes()
        if name.startswith("usr/share/man/"):
            name, content = name.removesuffix(".gz"), gzip.decompress(content)
        found[name] = stat.S_IMODE(path.stat().st_mode), content
    package = {name: content for name, content in files_of(deb).items() if name not in PACKAGE_ONLY}
    assert found == package and len(found) > 30
    said = run("rpm", "-qp", "--queryformat", "%{NAME} %{VERSION} %{ARCH} %{LICENSE} %{BUILDHOST}", rpm).stdout
    version = run("dpkg-deb", "-f", deb, "Version").stdout.strip().removesuffix("-1")
    assert said == f"heat-node-agent {version} x86_64 Apache-2.0 heat-node-agent"
    assert set(run("rpm", "-qp", "--queryformat", "[%{FILEUSERNAME}:%{FILEGROUPNAME}\\n]", rpm).stdout.split()) == {"root:root"}
    requires = run("rpm", "-qp", "--requires", rpm).stdout
    needed = re.search(r"libc6 \(>= ", run("dpkg-deb", "-f", deb, "Depends").stdout)
    assert "systemd >= 219\n" in requires and bool(needed) == ("libc.so.6(GLIBC_" in requires), requires
    # Licences are there where documentation is left out.
    assert run("rpm", "-qpL", rpm).stdout == "/usr/share/doc/heat-node-agent/third-party-notices.gz\n"


def test_the_same_sources_give_the_same_rpm_in_any_folder(rpm, tmp_path):
    folder = tmp_path / "with a blank"
    shutil.copytree(rpm.parent / "usr", folder / "image/usr")
    again = run("sh", "-c", 'umask 077; exec "$0"', REPO / "image-build/rpm", env={"TZ": "Pacific/Apia", "CARGO_TARGET_DIR": str(folder)}).stdout
    assert Path(again.strip()).read_bytes() == rpm.read_bytes() and Path(again.strip()).parent == folder / "image"


@pytest.mark.skipif(SUITE != "bookworm", reason="run with the rpm of bookworm only")
def test_install_upgrade_and_erase_do_what_the_debian_package_does(rpm, hosts, signal_server, tmp_path):
    server = signal_server()
    host = hosts("n1", ip=IP, base="base")
    prepare(host, server)
    give(host, "/usr/bin/rpm", "/usr/lib/rpm")
    # Beside the replaced collector it is not installed.
    host.write("/etc/systemd/system/os-collect-config.service", "[Service]\nExecStart=/bin/sleep infinity\n")
    host.sh("systemctl daemon-reload; systemctl start os-collect-config.service")
    refused = install(host, rpm, check=False)
    assert refused.returncode and "systemctl disable --now os-collect-config.service" in refused.stderr and not host.exists("/usr/bin/heat-node-agent")
    host.sh("systemctl stop os-collect-config.service; rm /etc/systemd/system/os-collect-config.service; systemctl daemon-reload")

    server.deploy(server.deployment("long", config=f"{COUNT}while [ ! -e /run/go ]; do sleep 0.1; done\necho $$ >>/var/tmp/ended\n"))
    install(host, rpm)
    assert host.is_active(UNIT) and is_enabled(host) == "enabled"
    assert host.sh("stat -c '%a %U:%G' /srv/kubernetes") == "755 root:root\n"
    assert "Defined-By: heat-node-agent" in host.exec("journalctl", "-q", "-x", f"MESSAGE_ID={host.reported('DeploymentStarted')[0]['MESSAGE_ID']}").stdout
    host.wait_for(lambda: host.exists("/var/tmp/ran"))
    job = job_of(host)
    before = pids(host, UNIT, job)
    # The new one's scripts run before the old one's last ones: it is neither stopped nor disabled by them.
    install(host, newer(rpm, tmp_path, "0.99.0"))
    assert host.exec(*RPM[:3], "-q", "heat-node-agent").stdout == "heat-node-agent-0.99.0-1.x86_64\n"
    after = pids(host, UNIT, job)
    assert after[job] == before[job] != "0" and after[UNIT] not in ("0", before[UNIT]) and is_enabled(host) == "enabled"
    host.reported("DeploymentReattached")
    host.write("/run/go", "")
    assert signalled(server, "long")["deploy_status_code"] == 0 and host.read("/var/tmp/ran") == "ran\n"
    # What an operator switched off stays off.
    host.exec("systemctl", "disable", "--now", UNIT)
    install(host, newer(rpm, tmp_path, "0.99.1"))
    assert is_enabled(host) == "disabled" and not host.is_active(UNIT)

    # Erased, the node's services can start, and its state is kept.
    host.sh("mkdir -p /etc/systemd/system/etcd.service.d; systemctl enable --now heat-node-agent.service")
    host.write("/etc/systemd/system/etcd.service.d/50-heat-node-agent.conf", f"# Made by heat-node-agent.\n[Unit]\nRequires={GUARD}\nAfter={GUARD}\n")
    host.exec(*RPM, "-e", "heat-node-agent")
    assert not host.is_active(UNIT) and is_enabled(host) != "enabled" and not host.exists("/usr/bin/heat-node-agent")
    assert host.read(STAND_IN).startswith("# Made by the removal of heat-node-agent.") and host.exists("/var/lib/heat-node-agent")
    assert host.sh("find /usr/share /usr/lib/systemd /usr/lib/tmpfiles.d -name '*heat-node*'") == ""
    install(host, rpm, "-i")
    assert host.is_active(UNIT) and not host.exists(STAND_IN)
    host.wait_for(lambda: server.polls())
    assert host.read("/var/tmp/ran") == "ran\n"


@pytest.mark.skipif(SUITE != "bookworm", reason="run with the rpm of bookworm only")
def test_in_an_image_it_is_enabled_as_the_presets_say_and_nothing_starts(rpm, hosts):
    host = hosts("n1", ip=IP, base="base")
    give(host, "/usr/bin/rpm", "/usr/lib/rpm")
    host.put({f"/var/tmp/{rpm.name}": (rpm, 0o644)})
    host.sh("""mount -t tmpfs tmpfs /mnt
        for image in plain preset; do
          mkdir -p /mnt/$image/{upper,work,root}
          mount -t overlay overlay -o lowerdir=/,upperdir=/mnt/$image/upper,workdir=/mnt/$image/work /mnt/$image/root
          rm -rf /mnt/$image/root/run; mkdir /mnt/$image/root/run
        done
        mkdir -p /mnt/preset/root/etc/systemd/system-preset
        echo 'disable heat-node-agent.service' >/mnt/preset/root/etc/systemd/system-preset/10-operator.preset""")
    for image, enabled in (("plain", True), ("preset", False)):
        root = f"/mnt/{image}/root"
        host.exec("chroot", root, *RPM, "-i", f"/var/tmp/{rpm.name}")
        wanted = f"{root}/etc/systemd/system/multi-user.target.wants/{UNIT}"
        assert host.exec("test", "-L", wanted, check=False).returncode == (0 if enabled else 1)
        assert not host.exists(f"{root}/var/lib/heat-node-agent")
    assert host.exec("pgrep", "-x", "heat-node-agent", check=False).returncode == 1
