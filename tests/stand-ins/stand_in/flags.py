"""Command lines as pflag (kube-*) and Go's flag package (flanneld) read them, and what single values must look like.

Known from: pflag's and Go's documentation for the forms; [memory] for the error texts and exit statuses: 2 where pflag ended the
program itself (all up to 1.6; kube-proxy from 1.7, kube-scheduler from 1.9, the rest from 1.10 on have cobra, which says "Error:"
and 1), and the kubelet's own ways. Names of types come from no list: the sets below say which flags are switches, numbers and so on,
and a flag in none of them is taken as text. Not imitated: the text of --help.
"""
import ipaddress
import re

from stand_in import Refused, tables

SWITCHES = set("""
    add-dir-header aggregator-reject-forwarding-redirect allocate-node-cidrs allow-privileged allow-untagged-cloud alsologtostderr
    anonymous-auth audit-dynamic-configuration audit-log-batch-throttle-enable audit-log-compress audit-log-truncate-enabled
    audit-webhook-batch-throttle-enable audit-webhook-truncate-enabled authentication-skip-lookup authentication-token-webhook
    authentication-tolerate-lookup-failure authorization-rbac-super-user babysit-daemons bind-address-hard-fail cgroups-per-qos
    cleanup cleanup-iptables cleanup-ipvs configure-cbr0 configure-cloud-routes conntrack-tcp-be-liberal containerized
    contention-profiling cpu-cfs-quota disable-attach-detach-reconcile-sync disable-force-detach-on-timeout disable-http2-serving
    docker-disable-shared-pid docker-only docker-tls enable-aggregator-routing enable-bootstrap-token-auth
    enable-cadvisor-json-endpoints enable-controller-attach-detach enable-custom-metrics enable-debugging-handlers
    enable-dynamic-provisioning enable-garbage-collector enable-hostpath-provisioner enable-inflight-quota-handler
    enable-leader-migration enable-load-reader enable-logs-handler enable-priority-and-fairness enable-server enable-swagger-ui
    enable-taint-manager encryption-provider-config-automatic-reload etcd-quorum-read exit-on-lock-contention
    experimental-allocatable-ignore-eviction experimental-bootstrap-token-auth experimental-cgroups-per-qos
    experimental-check-node-capabilities-before-mount experimental-cri experimental-dockershim experimental-fail-swap-on
    experimental-flannel-overlay experimental-kernel-memcg-notification experimental-logging-sanitization fail-swap-on help
    horizontal-pod-autoscaler-use-rest-clients init-only insecure-allow-any-token iptables-localhost-nodeports ipvs-strict-arp
    keep-terminated-pod-volumes kernel-memcg-notification kubelet-https leader-elect local-storage-capacity-isolation
    log-cadvisor-usage log-json-split-stream log-text-split-stream logtostderr make-iptables-util-chains masquerade-all one-output
    permit-address-sharing permit-port-sharing profiling protect-kernel-defaults really-crash-for-testing reconcile-cidr
    redirect-container-streaming register-node register-schedulable repair-malformed-updates require-kubeconfig rotate-certificates
    rotate-server-certificates runonce seccomp-default serialize-image-pulls service-account-extend-token-expiration
    service-account-lookup shutdown-send-retry-after skip-headers skip-log-headers storage-driver-secure use-legacy-policy-config
    use-service-account-credentials version volume-host-allow-local-loopback watch-cache
    kube-subnet-mgr ip-masq iptables-forward-rules set-node-network-unavailable listen-tls ip-blackhole-route
    ip-masq-fully-random-disable""".split())
NUMBERS = set("""
    apiserver-count audit-log-maxage audit-log-maxbackup audit-log-maxsize cadvisor-port concurrent-deployment-syncs
    concurrent-endpoint-syncs concurrent-gc-syncs concurrent-namespace-syncs concurrent-replicaset-syncs concurrent-service-syncs
    container-log-max-files conntrack-max conntrack-max-per-core conntrack-min delete-collection-workers event-burst
    healthz-port http2-max-streams-per-connection image-gc-high-threshold image-gc-low-threshold insecure-port iptables-drop-bit
    iptables-masquerade-bit kube-api-burst kubelet-port kubernetes-service-node-port max-mutating-requests-inflight max-open-files
    max-pods max-requests-inflight maximum-dead-containers maximum-dead-containers-per-container metrics-port min-request-timeout
    network-plugin-mtu node-cidr-mask-size oom-score-adj pod-max-pids pods-per-core port read-only-port registry-burst secure-port
    target-ram-mb terminated-pod-gc-threshold v subnet-lease-renew-margin iptables-resync""".split())
PORTS = {n for n in NUMBERS if n.endswith("port")} - {"kubernetes-service-node-port"}
DURATIONS = set("""
    authentication-token-webhook-cache-ttl cluster-signing-duration config-sync-period conntrack-tcp-timeout-close-wait
    conntrack-tcp-timeout-established cpu-cfs-quota-period etcd-compaction-interval event-ttl eviction-pressure-transition-period
    experimental-cluster-signing-duration file-check-frequency horizontal-pod-autoscaler-sync-period http-check-frequency
    iptables-min-sync-period iptables-sync-period ipvs-min-sync-period ipvs-sync-period leader-elect-lease-duration
    leader-elect-renew-deadline leader-elect-retry-period log-flush-frequency min-resync-period minimum-container-ttl-duration
    minimum-image-ttl-duration node-monitor-grace-period node-monitor-period node-startup-grace-period node-status-update-frequency
    pod-eviction-timeout request-timeout runtime-request-timeout service-account-max-token-expiration shutdown-delay-duration
    streaming-connection-idle-timeout sync-frequency udp-timeout volume-stats-agg-period""".split())
ADDRESSES = {"address", "advertise-address", "bind-address", "insecure-bind-address", "public-address-override"}
ADDRESS_LISTS = {"cluster-dns", "node-ip"}
ADDRESSES_WITH_PORT = {"metrics-bind-address"}
NETWORKS = {"service-cluster-ip-range", "cluster-cidr", "pod-cidr", "non-masquerade-cidr", "portal-net"}
MAPS = {"eviction-hard", "eviction-minimum-reclaim", "eviction-soft", "eviction-soft-grace-period", "feature-gates", "kube-reserved",
        "node-labels", "qos-reserved", "runtime-config", "system-reserved"}
REPEATED = {"service-account-key-file", "service-account-issuer", "api-audiences", "tls-sni-cert-key", "register-with-taints",
            "enable-admission-plugins", "disable-admission-plugins", "cluster-dns"} | MAPS

TRUE, FALSE = {"1", "t", "T", "TRUE", "true", "True"}, {"0", "f", "F", "FALSE", "false", "False"}
DURATION = re.compile(r"[-+]?(0|((\d+\.?\d*|\.\d+)(ns|us|µs|ms|s|m|h))+)")


def is_true(text: str) -> bool:
    return text in TRUE


class Flags:
    """What a command line said: the last value of each flag, or all of those that may be repeated."""

    def __init__(self):
        self.all: dict[str, list[str]] = {}

    def put(self, name: str, value: str):
        self.all.setdefault(name, []).append(value)

    def get(self, name: str, default: str = "") -> str:
        return self.all[name][-1] if name in self.all else default

    def every(self, name: str) -> list[str]:
        """All items of a flag that may be repeated or hold several with commas between."""
        return [item for value in self.all.get(name, []) for item in value.split(",") if item]

    def on(self, name: str, default: bool = False) -> bool:
        return is_true(self.get(name)) if name in self.all else default

    def number(self, name: str, default: int) -> int:
        return int(self.all[name][-1], 0) if name in self.all else default

    def pairs(self, name: str) -> dict[str, str]:
        return dict(item.partition("=")[::2] for item in self.every(name))

    def __contains__(self, name: str) -> bool:
        return name in self.all


def unknown(component: str, minor: int, text: str) -> Refused:
    """The way in which a program of that age says that its command line is wrong. [memory]"""
    if component == "kubelet" and minor >= 10:
        if minor < 20:
            return Refused(f"F0101 00:00:00.000000       1 server.go:156] {text}", 255)
        return Refused(f'E0101 00:00:00.000000       1 run.go:74] "command failed" err="failed to parse kubelet flag: {text}"')
    if minor >= {"kube-proxy": 7, "kube-scheduler": 9}.get(component, 10):
        return Refused(f"Error: {text}")
    return Refused(f"{text}\nUsage of {component}:", 2)


def parse(component: str, version: str, words: list[str]) -> Flags:
    """kube-*: --name=value, --name value, --switch, -v 2; _ is -."""
    minor = tables.minor_of(version)
    known = tables.flags(component, version)
    flags = Flags()
    words = list(words)
    while words:
        word = words.pop(0)
        if word == "--":
            raise unknown(component, minor, f"unknown command {words[0]!r}" if words else "unknown command ''")
        short = re.fullmatch(r"-([vh])(=?)(.*)", word)
        if short and not word.startswith("--"):
            word = f"--{'help' if short[1] == 'h' else 'v'}" + (f"={short[3]}" if short[2] or short[3] else "")
        if not word.startswith("--"):
            # [source] kubelet and later all: "unknown command"; before that a word without dashes was ignored. Whoever writes one
            # has split a value in two, so it is refused in all.
            short = f"unknown shorthand flag: {word[1:2]!r} in {word}"
            raise unknown(component, minor, short if word.startswith("-") else f"unknown command {word!r} for {component!r}")
        name, equals, value = word[2:].partition("=")
        name = tables.normal(name)
        if not name:
            raise unknown(component, minor, f"bad flag syntax: {word}")
        if name not in known:
            raise unknown(component, minor, f"unknown flag: --{name}")
        if not equals:
            if name in SWITCHES:
                value = "true"
            elif words:
                value = words.pop(0)
            else:
                raise unknown(component, minor, f"flag needs an argument: --{name}")
        if wrong := wrong_value(component, name, value):
            raise unknown(component, minor, f'invalid argument "{value}" for "--{name}" flag: {wrong}')
        flags.put(name, value)
    return flags


def parse_flannel(version: str, words: list[str], environment: dict[str, str]) -> Flags:
    """Go's flag package: -name=value, -name value, --name; FLANNELD_NAME for what is not given."""
    known = tables.flannel_flags(version)
    flags = Flags()
    words = list(words)
    while words:
        word = words.pop(0)
        if not re.match(r"--?[^-=]", word):
            raise Refused(f"bad flag syntax or stray argument: {word}\nUsage: flanneld [OPTION]...", 2)
        name, equals, value = word.lstrip("-").partition("=")
        if name not in known:  # _ is not - here [list]
            raise Refused(f"flag provided but not defined: -{name}\nUsage: flanneld [OPTION]...", 2)
        if not equals:
            if name in SWITCHES:
                value = "true"
            elif words:
                value = words.pop(0)
            else:
                raise Refused(f"flag needs an argument: -{name}\nUsage: flanneld [OPTION]...", 2)
        if wrong := wrong_value("flanneld", name, value):
            raise Refused(f'invalid value "{value}" for flag -{name}: {wrong}', 2)
        flags.put(name, value)
    for variable, value in environment.items():
        name = variable.removeprefix("FLANNELD_").lower().replace("_", "-")
        if variable.startswith("FLANNELD_") and name in known and name not in flags:
            if wrong := wrong_value("flanneld", name, value):
                raise Refused(f'invalid value "{value}" for {variable}: {wrong}', 2)
            flags.put(name, value)
    return flags


def wrong_value(component: str, name: str, value: str) -> str:
    """Why this flag cannot have this value, or nothing."""
    if name == "version" and value == "raw":
        return ""
    if name in SWITCHES:
        return "" if value in TRUE | FALSE else f'strconv.ParseBool: parsing "{value}": invalid syntax'
    if name in NUMBERS:
        if not re.fullmatch(r"[-+]?(\d+|0x[0-9a-fA-F]+)", value):
            return f'strconv.ParseInt: parsing "{value}": invalid syntax'
        return "must be between 0 and 65535, inclusive" if name in PORTS and not 0 <= int(value, 0) <= 65535 else ""
    if name in DURATIONS:
        return "" if DURATION.fullmatch(value) else f'time: invalid duration "{value}"'
    if name in ADDRESSES:
        return "" if is_address(value) else f"failed to parse IP: {value!r}"
    if name in ADDRESS_LISTS:
        return "" if not value or all(is_address(a) for a in value.split(",")) else f"failed to parse IP: {value!r}"
    if name in ADDRESSES_WITH_PORT or (name == "healthz-bind-address" and component == "kube-proxy"):
        return "" if is_address(value) or is_address(value.rsplit(":", 1)[0].strip("[]")) else f"must be IP:port: {value!r}"
    if name == "healthz-bind-address":
        return "" if is_address(value) else f"failed to parse IP: {value!r}"
    if name in NETWORKS:
        return "" if not value or all(is_network(n) for n in value.split(",")) else f"invalid CIDR address: {value}"
    if name in MAPS:
        separators = "=<" if name.startswith("eviction") else "="
        for item in filter(None, value.split(",")):
            if not any(s in item for s in separators) and name != "runtime-config":
                return f"malformed pair, expect string=string: {item}"
            if name == "feature-gates" and item.partition("=")[2] not in TRUE | FALSE:
                return f"invalid value of {item}: not a boolean"
    return ""


def is_address(text: str) -> bool:
    try:
        return bool(ipaddress.ip_address(text))
    except ValueError:
        return False


def is_network(text: str) -> bool:
    try:
        return "/" in text and bool(ipaddress.ip_network(text, strict=False))
    except ValueError:
        return False
