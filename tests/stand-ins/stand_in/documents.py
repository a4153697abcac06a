"""KubeletConfiguration, KubeProxyConfiguration and KubeSchedulerConfiguration files.

Known from: the Go structs of the last tag of each minor, 1.12 to 1.36 [list]; 1.10 and 1.11 are taken as 1.12 less what is noted below,
1.37 as 1.36. Structs of other packages: [source], as they are today, so a field of them is taken in every minor.
Strictness: [source] before 1.17 unknown fields were ignored in silence; since then kubelet and kube-proxy try strictly and fall back
with a warning for these two API versions; the scheduler falls back for v1alpha1 only. A field that is ignored is a setting that does not
hold, so a stand-in refuses it, with the words of the strict decoder. Not imitated: defaulting, unknown feature gates, the fields inside
KubeSchedulerConfiguration.
"""
from __future__ import annotations

import os

from stand_in import Refused, files, flags, tables

CLIENT = {"kubeconfig": "string", "acceptContentTypes": "string", "contentType": "string", "qps": "float32", "burst": "int32"}
OTHERS = {
    "ClientConnectionConfiguration": CLIENT,
    "LoggingConfiguration": {"format": "string", "flushFrequency": "any", "verbosity": "uint32", "vmodule": "any", "options": "any",
                             "sanitization": "bool"},
    "TracingConfiguration": {"endpoint": "*string", "samplingRatePerMillion": "*int32"},
    "Taint": {"key": "string", "value": "string", "effect": "string", "timeAdded": "string"},
    "NodeConfigSource": {"configMap": "any"},
}
# Fields of 1.12 that are not believed of 1.10 and 1.11. [memory]
LATER = dict.fromkeys(("configMapAndSecretChangeDetectionStrategy", "cpuCFSQuotaPeriod", "nodeLeaseDurationSeconds", "qosReserved",
                       "rotateCertificates", "serverTLSBootstrap"), 12)
CHOICES = {
    "cgroupDriver": {"cgroupfs", "systemd"}, "hairpinMode": {"promiscuous-bridge", "hairpin-veth", "none"},
    "KubeletAuthorization.mode": {"AlwaysAllow", "Webhook"}, "cpuManagerPolicy": {"none", "static"},
    "topologyManagerPolicy": {"none", "best-effort", "restricted", "single-numa-node"},
    "configMapAndSecretChangeDetectionStrategy": {"Get", "Cache", "Watch"}, "swapBehavior": {"", "LimitedSwap", "UnlimitedSwap", "NoSwap"},
    "detectLocalMode": {"", "ClusterCIDR", "NodeCIDR", "BridgeInterface", "InterfaceNamePrefix"},
}
# [spec] 5.4: first and last minor of each API version
SCHEDULER = {"componentconfig/v1alpha1": (9, 11), "kubescheduler.config.k8s.io/v1alpha1": (12, 18),
             "kubescheduler.config.k8s.io/v1alpha2": (18, 18), "kubescheduler.config.k8s.io/v1beta1": (19, 22),
             "kubescheduler.config.k8s.io/v1beta2": (22, 27), "kubescheduler.config.k8s.io/v1beta3": (23, 28),
             "kubescheduler.config.k8s.io/v1": (25, tables.LAST)}


def api_versions(kind: str, minor: int) -> set[str]:
    if kind == "KubeletConfiguration":
        return {"kubelet.config.k8s.io/v1beta1"} if minor >= 10 else set()  # [spec] 5.1
    if kind == "KubeProxyConfiguration":
        return {"kubeproxy.config.k8s.io/v1alpha1"} if minor >= 9 else {"componentconfig/v1alpha1"} if minor >= 7 else set()  # [spec] 5.5
    return {name for name, (first, last) in SCHEDULER.items() if first <= minor <= last}


def load(path: str, kind: str, minor: int) -> dict:
    """The document, once it is known to be good."""
    import yaml

    class Unique(yaml.SafeLoader):
        """The strict decoder refuses a key that stands twice. [source]"""

        def construct_mapping(self, node, deep=False):
            keys = [k.value for k, _ in node.value]
            if twice := {k for k in keys if keys.count(k) > 1}:
                raise yaml.constructor.ConstructorError(None, None, f'key "{twice.pop()}" already set in map', node.start_mark)
            return super().construct_mapping(node, deep)

    what = f"failed to load {kind} file {path}"
    try:
        document = yaml.load(files.read(path, what), Unique)
    except yaml.YAMLError as error:
        raise Refused(f"{what}: strict decoding error: {error}") from error
    if not isinstance(document, dict):
        raise Refused(f"{what}: not a mapping")
    version, kind_given = document.get("apiVersion"), document.get("kind")
    if kind_given != kind or version not in api_versions(kind, minor):
        raise Refused(f'{what}: no kind "{kind_given}" is registered for version "{version}" in scheme')
    body = {k: v for k, v in document.items() if k not in ("apiVersion", "kind")}
    if kind != "KubeSchedulerConfiguration":
        _struct(kind, body, tables.structs(kind, minor), minor, "", what)
    return document


def _struct(name: str, value: object, structs: dict, minor: int, path: str, what: str):
    if not isinstance(value, dict):
        raise Refused(f"{what}: json: cannot unmarshal {type(value).__name__} into Go struct {name}")
    fields = structs.get(name) or OTHERS[name]
    for key, item in value.items():
        here = f"{path}.{key}".lstrip(".")
        if key not in fields or (minor < LATER.get(key, 0) and not path):
            raise Refused(f'{what}: strict decoding error: unknown field "{here}"')
        if item is not None:
            _value(fields[key], item, structs, minor, here, what, CHOICES.get(f"{name}.{key}") or CHOICES.get(key))


def _value(kind: str, value: object, structs: dict, minor: int, path: str, what: str, choices: set | None):
    def wrong(expected: str) -> Refused:
        return Refused(f"{what}: json: cannot unmarshal {value!r} into Go struct field {path} of type {expected}")
    kind = kind.lstrip("*")
    if kind.startswith("[]"):
        if not isinstance(value, list):
            raise wrong(kind)
        for i, item in enumerate(value):
            _value(kind[2:], item, structs, minor, f"{path}[{i}]", what, None)
        return
    if kind.startswith("map[string]"):
        if not isinstance(value, dict) or not all(isinstance(k, str) for k in value):
            raise wrong(kind)
        for k, item in value.items():
            _value(kind.removeprefix("map[string]"), item, structs, minor, f"{path}.{k}", what, None)
        return
    kind = kind.rsplit(".", 1)[-1]
    if kind == "any":
        return
    if kind in structs or kind in OTHERS:
        _struct(kind, value, structs, minor, path, what)
    elif kind == "bool":
        if not isinstance(value, bool):
            raise wrong(kind)
    elif kind.startswith(("int", "uint")):
        if not isinstance(value, int) or isinstance(value, bool) or (kind.endswith("32") and abs(value) >= 2 ** 31):
            raise wrong(kind)
        if path.lower().endswith("port") and not 0 <= value <= 65535:
            raise Refused(f"{what}: invalid configuration: {path} must be between 0 and 65535, inclusive")
    elif kind.startswith("float"):
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise wrong(kind)
    elif kind == "ResourceList":
        if not isinstance(value, dict):
            raise wrong(kind)
    else:  # string, Duration, and types that are strings by another name
        if not isinstance(value, str):
            raise wrong(kind)
        if kind == "Duration" and not flags.DURATION.fullmatch(value):
            raise Refused(f'{what}: time: invalid duration "{value}" ({path})')
        if choices is not None and value not in choices:
            raise Refused(f"{what}: invalid configuration: {path} must be one of {', '.join(sorted(choices))}, not {value!r}")


def check_kubelet(document: dict, minor: int):
    """What the kubelet validates of its file and is cheap to know. [memory] of its validation, which the fields' names tell too"""
    what = "failed to validate kubelet configuration"
    for field in ("address", "healthzBindAddress"):
        if (value := document.get(field)) and not flags.is_address(value):
            raise Refused(f"{what}: {field} {value!r} is no IP address")
    for value in document.get("clusterDNS") or []:
        if not flags.is_address(value):
            raise Refused(f"{what}: invalid IP in clusterDNS: {value}")
    if document.get("podCIDR") and not all(flags.is_network(n) for n in document["podCIDR"].split(",")):
        raise Refused(f"{what}: podCIDR {document['podCIDR']!r}")
    low, high = document.get("imageGCLowThresholdPercent", 80), document.get("imageGCHighThresholdPercent", 85)
    if not 0 <= low < high <= 100:
        raise Refused(f"{what}: imageGCLowThresholdPercent {low} and imageGCHighThresholdPercent {high} must be in order, 0 to 100")
    enforce = set(document.get("enforceNodeAllocatable") or [])
    if stray := enforce - {"pods", "system-reserved", "kube-reserved", "system-reserved-compressible", "kube-reserved-compressible",
                           "none"}:
        raise Refused(f"{what}: invalid enforceNodeAllocatable: {', '.join(stray)}")
    for name, group in (("system-reserved", "systemReservedCgroup"), ("kube-reserved", "kubeReservedCgroup")):
        if name in enforce and not document.get(group):
            raise Refused(f"{what}: enforceNodeAllocatable {name} needs {group}")
    if ca := ((document.get("authentication") or {}).get("x509") or {}).get("clientCAFile"):
        files.certificates(ca, "unable to load client CA file")
    certificate, key = document.get("tlsCertFile"), document.get("tlsPrivateKeyFile")
    if bool(certificate) != bool(key):
        raise Refused(f"{what}: tlsCertFile and tlsPrivateKeyFile belong together")
    if certificate:
        files.pair(certificate, key, "kubelet")
    if (path := document.get("staticPodPath")) and not os.path.isabs(path):
        raise Refused(f"{what}: staticPodPath {path!r} is not absolute")
    # Stricter than the real one, which logs that the path is not there and waits for it.
    if path:
        files.directory(path, "staticPodPath")


def check_proxy(document: dict, minor: int):
    what = "invalid kube-proxy configuration"
    modes = {"", "iptables", "ipvs"} | ({"userspace"} if minor < 26 else set()) | ({"nftables"} if minor >= 29 else set())  # [spec] 5.5
    if document.get("mode", "") not in modes:
        raise Refused(f"{what}: mode must be one of {sorted(modes)}, not {document['mode']!r}")
    if (value := document.get("clusterCIDR")) and not all(flags.is_network(n) for n in value.split(",")):
        raise Refused(f"{what}: clusterCIDR: must be a valid CIDR block: {value}")
    if (value := document.get("bindAddress")) and not flags.is_address(value):
        raise Refused(f"{what}: bindAddress {value!r}")
    for field in ("healthzBindAddress", "metricsBindAddress"):
        if (value := document.get(field)) and flags.wrong_value("kube-proxy", "healthz-bind-address", value):
            raise Refused(f"{what}: {field} {value!r} must be IP:port")
    if path := (document.get("clientConnection") or {}).get("kubeconfig"):
        files.Kubeconfig(path)
