"""What a server is given at its start: user data as Heat makes it, and the config drive as Nova makes it."""
import json
import shutil
from contextlib import contextmanager
from email.mime.multipart import MIMEMultipart
from email.mime.text import MIMEText
from pathlib import Path

from lib.common import TESTS, run
from lib.heat import HEAT_DIR


def heat_user_data(settings: dict, user_data: str = "", deployments: list | None = None) -> str:
    """What Heat makes of a template's user data for `user_data_format: SOFTWARE_CONFIG`."""
    venv = HEAT_DIR / "cache/venv"
    if not (venv / ".lock").exists() or (venv / ".lock").read_text() != (TESTS / "heat/heat.lock").read_text():
        run(TESTS / "heat/up.sh", "venv", timeout=1800)
    given = {"metadata": {"os-collect-config": settings, "deployments": deployments or []}, "user_data": user_data}
    return run(venv / "bin/python", "-B", TESTS / "heat/user_data.py", input=json.dumps(given)).stdout


def with_first_metadata(metadata: dict) -> str:
    """User data as Heat makes it for SOFTWARE_CONFIG, without what Heat's own code is needed for."""
    parts = MIMEMultipart()
    for text, kind, name in (("#cloud-config\n", "cloud-config", "cloud-config"), ("#part-handler\n", "part-handler", "part-handler.py"),
                             (json.dumps(metadata), "x-cfninitdata", "cfn-init-data")):
        part = MIMEText(text, _subtype=kind)
        part.add_header("Content-Disposition", f'attachment; filename="{name}"')
        parts.attach(part)
    return parts.as_string()


def make_iso(image: Path, files: Path):
    """Nova's usual format."""
    run("genisoimage", "-quiet", "-ldots", "-allow-lowercase", "-allow-multidot", "-l", "-J", "-r", "-V", "config-2", "-o", image, files)


def make_vfat(image: Path, files: Path, label: str = "config-2"):
    """As with `config_drive_format = vfat`; Nova mounts it to copy the files, for which a kernel needs vfat."""
    with open(image, "wb") as made:
        made.truncate(64 << 20)  # Nova's size
    run("mkfs.vfat", "-n", label, image)
    run("mcopy", "-s", "-i", image, *files.iterdir(), "::")


@contextmanager
def tree(folder: Path, instance: str, name: str, user_data: str, keys: dict[str, str] | None = None):
    """The files of a config drive in a folder, for as long as it takes to make a file system of them."""
    shutil.rmtree(folder, ignore_errors=True)
    meta = {"uuid": instance, "name": name, "hostname": name, "availability_zone": "nova", "launch_index": 0, "devices": [],
            "public_keys": keys or {}, "project_id": "p", "meta": {}}
    for version in ("latest", "2018-08-27"):
        part = folder / "openstack" / version
        part.mkdir(parents=True)
        (part / "meta_data.json").write_text(json.dumps(meta))
        (part / "user_data").write_text(user_data)
        (part / "vendor_data.json").write_text("{}")
    yield folder
    shutil.rmtree(folder)
