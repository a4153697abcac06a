"""What a server is given at its start: user data as Heat makes it, and the config drive as Nova makes it."""
import json
import shutil
from contextlib import contextmanager
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
