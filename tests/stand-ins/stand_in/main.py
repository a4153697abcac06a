"""From a name, a version and a command line to a program that serves, or to its last words."""
import os
import sys

from stand_in import Refused, flags, flannel, kubernetes, serve, tables


def version_text(component: str, version: str) -> str:
    return version if component == "flanneld" else f"Kubernetes v{version.removeprefix('v')}"


def checked(component: str, version: str, words: list[str], environment: dict[str, str]):
    """The program that this command line makes; Refused if the real one would not run."""
    if component == "flanneld":
        return flannel.check(version, flags.parse_flannel(version, words, environment))
    given = flags.parse(component, version, words)
    if "version" in given or given.on("help"):
        return None
    return kubernetes.check(component, version, tables.minor_of(version), given)


def main(component: str, version: str, words: list[str]) -> int:
    if component == "flanneld" and any(w in ("-version", "--version") for w in words):
        print(version, file=sys.stderr)  # [tried] on stderr
        return 0
    try:
        program = checked(component, version, words, dict(os.environ))
        if program is None:
            print(version_text(component, version) if any("version" in w for w in words) else f"Usage:\n  {component} [flags]")
            return 0
        if os.environ.get("HNA_STAND_IN_CHECK"):
            print("ok")
            return 0
        return flannel.run(program) if component == "flanneld" else serve.run(program)
    except Refused as refused:
        print(refused, file=sys.stderr)
        return refused.status
