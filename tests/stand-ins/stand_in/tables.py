"""Which flags and fields a version has.

Known from: the lists (see lists/renew). For each minor all of its lists together; reference pages are what they are, so:
 - they leave out flags that are deprecated (hidden): a flag which an earlier and a later list have was there in between;
 - up to 1.10 they leave out the flags of the logging library;
 - from 1.18 on the kubelet's page was kept by hand: what the program 1.21 had and the page of 1.21 lacks went on, until noted;
 - three pages of 1.10 are copies of those of 1.9, and the kubelet's page of 1.11 is lost: there only what an earlier and a later list
   have is believed;
 - the programs 1.2 to 1.21 whose --help was read are a fork's: its own flags are left out (FORK), and those of its 1.2 that the page of
   1.2 lacks and the page of 1.3 has (EARLY).
1.32 and later: the list of 1.31 and noted changes. Not known: flags that came new with 1.32 or later; flags that the program 1.22 or
later has and its page does not show, unless noted.
"""
import re
from functools import lru_cache
from pathlib import Path

LISTS = Path(__file__).resolve().parent.parent / "lists"
FIRST, LAST, LISTED = 2, 37, 31
COMPONENTS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy")

# [spec] README of the lists; the first is Hypernetes' and KubeStack's, which an installation of that fork has (version suffix -hyper)
HYPER = "network-provider"
FORK = {HYPER, "advertise-port", "cinder-config", "disable-hyper-internal-service", "hyper-root"}
EARLY = {"etcd-cafile", "etcd-certfile", "etcd-keyfile", "daemonset-lookup-cache-size"}
NO_PAGE = {("kube-apiserver", 10), ("kube-scheduler", 10), ("kube-proxy", 10), ("kubelet", 11)}

ALWAYS = {"help", "version", "v", "vmodule"}  # [list] wherever a real program was asked
KLOG = {"alsologtostderr", "log-backtrace-at", "log-dir", "logtostderr", "stderrthreshold"}  # [list] 1.2 on, [spec] gone 1.26
KLOG_LATER = {"add-dir-header", "log-file", "log-file-max-size", "skip-headers", "skip-log-headers"}  # [list] 1.16 on
KLOG_LAST = {"one-output"}  # [list] 1.20 on

# (program, flag, first minor, last minor): there although no list of those minors shows it. [spec] section 5 if nothing else is said.
NOTED = (
    ("kube-apiserver", "insecure-port", 2, 23), ("kube-apiserver", "insecure-bind-address", 2, 23),
    ("kube-apiserver", "kubelet-https", 2, 21), ("kube-apiserver", "master-service-namespace", 2, 26),
    ("kube-apiserver", "cloud-provider", 2, 32), ("kube-apiserver", "cloud-config", 2, 32),
    ("kube-apiserver", "service-account-api-audiences", 10, 22), ("kube-apiserver", "enable-admission-plugins", 10, LAST),
    ("kube-apiserver", "disable-admission-plugins", 10, LAST), ("kube-apiserver", "service-account-issuer", 10, LAST),
    ("kube-apiserver", "service-account-signing-key-file", 10, LAST), ("kube-apiserver", "etcd-quorum-read", 2, 12),
    ("kube-apiserver", "admission-control", 2, LAST), ("kube-apiserver", "portal-net", 2, 8),
    ("kube-apiserver", "public-address-override", 2, 9),
    ("kube-apiserver", "repair-malformed-updates", 2, 13), ("kube-apiserver", "tls-ca-file", 5, 10),
    ("kube-controller-manager", "port", 2, 23), ("kube-controller-manager", "address", 2, 23),
    ("kube-controller-manager", "pod-eviction-timeout", 2, 26), ("kube-controller-manager", "enable-taint-manager", 6, 26),
    ("kube-controller-manager", "experimental-cluster-signing-duration", 7, 24),
    ("kube-scheduler", "port", 2, 23), ("kube-scheduler", "address", 2, 23),
    ("kubelet", "cadvisor-port", 2, 11), ("kubelet", "api-servers", 2, 7), ("kubelet", "require-kubeconfig", 4, 9),
    ("kubelet", "allow-privileged", 2, 14), ("kubelet", "register-schedulable", 2, 33), ("kubelet", "cloud-config", 2, 33),
    ("kubelet", "pod-infra-container-image", 2, 34), ("kubelet", "container-runtime", 2, 26),
    ("kubelet", "configure-cbr0", 2, 4), ("kubelet", "network-plugin-dir", 2, 8), ("kubelet", "non-masquerade-cidr", 2, 23),
    ("kubelet", "register-with-taints", 6, LAST),
    ("kube-proxy", "cleanup-iptables", 2, 13), ("kube-proxy", "conntrack-max", 2, 15),
)
# (program, flag, first minor without it): what later lists or the rule above would still give. [spec] section 5.
GONE = (
    ("kubelet", "keep-terminated-pod-volumes", 31), ("kubelet", "cloud-config", 34), ("kubelet", "register-schedulable", 34),
    ("kubelet", "pod-infra-container-image", 35), ("kubelet", "docker", 24), ("kubelet", "docker-only", 24),
    ("kubelet", "docker-root", 24), ("kubelet", "docker-tls", 24), ("kubelet", "docker-tls-ca", 24),
    ("kubelet", "docker-tls-cert", 24), ("kubelet", "docker-tls-key", 24), ("kubelet", "docker-env-metadata-whitelist", 24),
    ("kubelet", "experimental-dockershim-root-directory", 24), ("kubelet", "redirect-container-streaming", 23),
    ("kubelet", "experimental-logging-sanitization", 24), ("kubelet", "one-output", 26),
    ("kube-apiserver", "cloud-provider", 33), ("kube-apiserver", "cloud-config", 33),
    *(("kube-proxy", flag, 26) for flag in sorted(KLOG | KLOG_LATER | KLOG_LAST)),  # its pages go on showing them
)


def normal(name: str) -> str:
    """The programs take _ for - in names of flags. [tried] 1.2, [spec] to this day."""
    return name.replace("_", "-")


def minor_of(version: str) -> int:
    found = re.match(r"v?1\.(\d+)(\.|$|-|\+)", version)
    if not found or not FIRST <= int(found[1]) <= LAST:
        raise SystemExit(f"stand-in: no version 1.{FIRST} to 1.{LAST}: {version}")
    return int(found[1])


@lru_cache
def table(name: str) -> tuple[list[str], dict[str, str]]:
    """Columns, and for each row its marks."""
    _, columns, *rows = (LISTS / f"{name}.txt").read_text().splitlines()
    return columns.lstrip("# ").split(), {row.split(" ", 1)[1]: row.split(" ", 1)[0] for row in rows}


@lru_cache
def listed(component: str) -> dict[str, set[int]]:
    """For each flag the minors of which any list has it."""
    columns, rows = table(component)
    minors = [int(c.split("-")[0].split(".")[1]) for c in columns]
    flags: dict[str, set[int]] = {}
    for name, marks in rows.items():
        flags.setdefault(normal(name), set()).update(m for m, mark in zip(minors, marks) if mark == "x")
    return flags


@lru_cache
def _only_in_program_1_21() -> set[str]:
    columns, rows = table("kubelet")
    page, program, hidden = (columns.index(c) for c in ("1.21-docs", "1.21.2", "1.21.2.hidden"))
    return {normal(n) for n, marks in rows.items() if "x" in (marks[program], marks[hidden]) and marks[page] != "x"}


@lru_cache
def flags(component: str, version: str) -> frozenset[str]:
    """All flags that this version takes."""
    minor = minor_of(version)
    near = min(minor, LISTED)
    has = {name for name, minors in listed(component).items() if minors and min(minors) <= near <= max(minors)}
    if (component, minor) in NO_PAGE:
        has = {n for n in has if min(listed(component)[n]) < minor < max(listed(component)[n])}
    if minor == 2:
        has -= EARLY
    if component == "kubelet":
        # --config was a directory up to 1.5 and a file from 1.10 on, and nothing in between. [list] [spec]
        if 6 <= minor <= 9:
            has.discard("config")
        if minor > 21:
            has |= _only_in_program_1_21()
    has |= ALWAYS
    if minor < 26:
        has |= KLOG
    if 16 <= minor < 26:
        has |= KLOG_LATER
    if 20 <= minor < 26:
        has |= KLOG_LAST
    has |= {flag for program, flag, first, last in NOTED if program == component and first <= minor <= last}
    # A removal that is noted wins over lists: the page of a later minor was copied, or only describes. [spec]
    has -= {flag for program, flag, since in GONE if program == component and minor >= since}
    for program, flag, _, last in NOTED:
        if program == component and minor > last and last < LAST:
            has.discard(flag)
    has -= FORK
    if version.endswith("-hyper") and minor <= 3 and component in ("kubelet", "kube-controller-manager"):
        has.add(HYPER)  # [tried] forks of 1.2 and 1.3
    return frozenset(has)


# flanneld: the list of the nearest version at or below, where the notes do not say that a later list is nearer. [list], [spec] 8f
FLANNELD = (((0, 5, 0), "0.5.0"), ((0, 5, 1), "0.5.6"), ((0, 7, 0), "0.7.1"), ((0, 8, 0), "0.9.1"), ((0, 11, 0), "0.11.0"),
            ((0, 13, 0), "0.14.0"), ((0, 15, 0), "0.17.0"), ((0, 20, 0), "0.20.2"))
FLANNELD_NOTED = {(0, 27, 0): {"ip-blackhole-route", "ip-masq-fully-random-disable"}}


def flannel_version(version: str) -> tuple[int, ...]:
    found = re.match(r"v?(\d+)\.(\d+)\.(\d+)", version)
    if not found or tuple(map(int, found.groups())) < (0, 5, 0):
        raise SystemExit(f"stand-in: no version of flanneld from 0.5.0 on: {version}")
    return tuple(map(int, found.groups()))


def flannel_flags(version: str) -> frozenset[str]:
    number = flannel_version(version)
    column = [name for since, name in FLANNELD if since <= number][-1]
    columns, rows = table("flanneld")
    has = {flag for flag, marks in rows.items() if marks[columns.index(column)] == "x"} | {"help", "version"}
    for since, more in FLANNELD_NOTED.items():
        if number >= since:
            has |= more
    return frozenset(has)


@lru_cache
def structs(kind: str, minor: int) -> dict[str, dict[str, str]]:
    """Go structs of a configuration file's kind: fields with their types. [list] 1.12 to 1.36; see documents.py for the rest."""
    columns, rows = table(kind)
    column = columns.index(f"1.{min(max(minor, 12), 36)}")
    found: dict[str, dict[str, str]] = {}
    for row, marks in rows.items():
        if marks[column] == "x":
            field, kind_of = row.split(" ", 1)
            struct, name = field.split(".", 1)
            found.setdefault(struct, {})[name] = kind_of
    return found
