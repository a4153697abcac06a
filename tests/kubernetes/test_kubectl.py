"""Commands for the cluster, as remedies and pages give them: kubectl's verbs, their arguments and options.

kubectl is not asked: the table is of `kubectl help VERB` of 1.31, with what is used of it.
"""
import re
import shlex

import pytest
from lib.given_commands import given_commands

# Of each verb: how many words follow it at least, and which options it takes; `=`: with a value.
ALL = ("-n=", "--namespace=", "--kubeconfig=")
TABLE = {
    "certificate approve": (1, ()),
    "config view": (0, ("--raw", "--flatten", "--minify", "-o=", "--output=")),
    "create": (0, ("-f=", "--filename=", "--dry-run=", "--validate=", "-o=")),
    "delete": (2, ("-l=", "--selector=", "-A", "--all-namespaces", "--all", "--ignore-not-found")),
    "describe": (1, ("-l=", "-A")),
    "drain": (1, ("--ignore-daemonsets", "--timeout=", "--delete-emptydir-data", "--force", "--disable-eviction", "--grace-period=")),
    "exec": (1, ("-i", "-t", "-it", "-c=")),
    "get": (1, ("-A", "--all-namespaces", "-o=", "--output=", "-l=", "--selector=", "-w", "--show-labels")),
    "label": (3, ("--all", "--overwrite", "-l=", "--selector=")),
    "logs": (1, ("-c=", "-f", "--tail=", "--previous")),
    "patch": (2, ("--subresource=", "--type=", "-p=", "--patch=", "--patch-file=")),
    "port-forward": (2, ()),
    "rollout restart": (1, ("-l=", "--selector=")),
    "taint": (3, ("--all", "--overwrite", "-l=", "--selector=")),
    "top": (1, ("-A",)),
    "uncordon": (1, ()),
}
# What stands for a value.
VALUES = [(r"\{[^{}]*\}", "value"), (r"<[^<>]*>", "value")]


def complaint(command: str) -> str:
    """What kubectl would say to it, or nothing."""
    for pattern, value in VALUES:
        command = re.sub(pattern, value, command)
    words, given, options = shlex.split(command)[1:], [], []
    known = {option.rstrip("="): option.endswith("=") for option in ALL}
    while words and words[0].split("=")[0] in known:
        words = words[1 if "=" in words[0] else 2:]
    verb = next((verb for verb in TABLE if words[:len(verb.split())] == verb.split()), None)
    if verb is None:
        return f"unknown command: {words[:2]}"
    least, own = TABLE[verb]
    known |= {option.rstrip("="): option.endswith("=") for option in own}
    words = words[len(verb.split()):]
    # A verb alone is spoken of, not given.
    if not words:
        return ""
    while words:
        word = words.pop(0)
        if word == "--":
            break
        if not word.startswith("-"):
            given.append(word)
            continue
        name, _, value = word.partition("=")
        if name not in known:
            return f"unknown option of {verb}: {name}"
        # An option that may stand alone takes a value behind a `=` only.
        if known[name] and not value and name != "--dry-run":
            if not words or words[0].startswith("-"):
                return f"{name} needs a value"
            words.pop(0)
        options.append(name)
    by_file = {"-f", "--filename"} & set(options)
    by_label = {"-l", "--selector", "--all"} & set(options)
    if len(given) < least - bool(by_label) and not by_file:
        return f"{verb} needs {least} words: {given}"
    return "create needs a file or a resource" if verb == "create" and not by_file and not given else ""


@pytest.mark.parametrize(("command", "said"), [
    ("kubectl drain NODE --ignore-daemonsets --timeout=2m", ""),
    ("kubectl drain NODE --ignore-daemonset", "unknown option of drain"),
    ("kubectl drain --ignore-daemonsets", "drain needs 1 words"),
    ("kubectl uncordon", ""),
    ("kubectl label nodes --all a=b", ""),
    ("kubectl taint nodes NODE", "taint needs 3 words"),
    ("kubectl uncordn NODE", "unknown command"),
    ("kubectl delete node", "delete needs 2 words"),
    ("kubectl delete pods -l a=b", ""),
    ("kubectl get pods -A -o", "-o needs a value"),
])
def test_what_is_wrong_is_found(command, said):
    assert complaint(command).startswith(said) and bool(said) == bool(complaint(command))


def test_every_command_for_the_cluster_is_one_of_kubectl():
    given = given_commands("kubectl")
    assert len(given) >= 15 and {"runbook.md", "diagnosis.rs", "heat-templates.md"} <= set(given.values())
    assert not {f"{where}: {command}": wrong for command, where in given.items() if (wrong := complaint(command))}
