"""The sample for Ignition, which does not run here: it is held against the keys of specification 3.3.0, and against what Heat
makes of it."""
import json
import re
import textwrap
from urllib.parse import unquote

from lib.cloud_init import UNIT
from lib.common import REPO
from lib.config_drive import heat_user_data

SAMPLE = (REPO / "examples/ignition.json").read_text()
TEXT, FLAG, NUMBER = str, bool, int
RESOURCE = {"source": TEXT, "compression": TEXT, "httpHeaders": [{"name": TEXT, "value": TEXT}], "verification": {"hash": TEXT}}
OWNER = {"id": NUMBER, "name": TEXT}
# The part of the specification that the sample may use.
SPECIFICATION = {
    "ignition": {"version": TEXT},
    "storage": {"files": [{"path": TEXT, "overwrite": FLAG, "mode": NUMBER, "user": OWNER, "group": OWNER, "contents": RESOURCE,
                           "append": [RESOURCE]}]},
    "systemd": {"units": [{"name": TEXT, "enabled": FLAG, "mask": FLAG, "contents": TEXT, "dropins": [{"name": TEXT, "contents": TEXT}]}]},
}


def unknown(value, allowed, at: str = "$") -> list[str]:
    """Where a document leaves the specification."""
    if isinstance(allowed, dict):
        if not isinstance(value, dict):
            return [f"{at}: not a map"]
        return [found for key, one in value.items()
                for found in (unknown(one, allowed[key], f"{at}.{key}") if key in allowed else [f"{at}.{key}"])]
    if isinstance(allowed, list):
        return [found for i, one in enumerate(value) for found in unknown(one, allowed[0], f"{at}[{i}]")]
    return [] if type(value) is allowed else [f"{at}: {value!r} is not of {allowed.__name__}"]


def content(file: dict) -> str:
    scheme, _, data = file["contents"]["source"].partition(",")
    assert scheme == "data:" and re.fullmatch(r"[\w.~%/:-]*", data), "escaped as a URL must be"
    return unquote(data)


def test_the_sample_keeps_to_the_specification_and_to_butanes_form():
    document = json.loads(SAMPLE)
    assert unknown(document, SPECIFICATION) == []
    assert document["ignition"]["version"] == "3.3.0"
    assert document["systemd"]["units"] == [{"name": UNIT, "enabled": True}]
    [file] = document["storage"]["files"]
    # JSON has no octal numbers: 600 would be 01130.
    assert (file["path"], oct(file["mode"]), file["overwrite"]) == ("/etc/os-collect-config.conf", "0o600", True)
    butane = (REPO / "examples/ignition.bu").read_text()
    inline = re.search(r"inline: \|\n((?: {10}.*\n)+)", butane)[1]
    assert content(file) == textwrap.dedent(inline) and content(file).startswith("[cfn]\n")
    assert "mode: 0600" in butane and f"- name: {UNIT}\n      enabled: true" in butane and "version: 1.4.0" in butane  # 1.4.0: spec 3.3.0


def test_heat_adds_the_metadata_to_it_as_it_does_to_cloud_init():
    settings = {"cfn": {"metadata_url": "http://heat.example.org:8000/v1/", "path": "server.Metadata", "stack_name": "ü, %2C \"x\""}}
    document = json.loads(heat_user_data(settings, SAMPLE))
    own, *added = document["storage"]["files"]
    assert own == json.loads(SAMPLE)["storage"]["files"][0] and document["systemd"] == json.loads(SAMPLE)["systemd"]
    assert [file["path"] for file in added] == ["/var/lib/heat-cfntools/cfn-init-data", "/var/lib/cloud/data/cfn-init-data"]
    for file in added:
        assert json.loads(content(file)) == {"os-collect-config": settings, "deployments": []}
        # Root's, and not for others. One key is left over of specification 2: Ignition warns of it and goes on.
        assert (oct(file["mode"]), file["user"], file["group"]) == ("0o640", {"name": "root"}, {"name": "root"})
        assert unknown({"storage": {"files": [file]}}, SPECIFICATION) == ["$.storage.files[0].filesystem"]
