"""What kube-apiserver, kube-controller-manager, kube-scheduler, kubelet and kube-proxy refuse, by version, and where they serve.

Known from: as each rule says ([spec] section 5 where a minor is named and nothing else is said). Not imitated: whether a feature gate, an
API group of --runtime-config, a controller's name or an eviction signal exists; swap; cgroups; what needs the network to be found out.
"""
from __future__ import annotations

import ipaddress
import os
import re
from dataclasses import dataclass, field

from stand_in import Refused, documents, files, flags
from stand_in.flags import Flags


@dataclass
class Port:
    """Where something listens. open: paths that need no credentials."""
    address: str
    number: int
    tls: bool = False


@dataclass
class Program:
    """A command line that was found good: what serving needs of it."""
    component: str
    version: str
    minor: int
    flags: Flags
    ports: list[Port] = field(default_factory=list)
    certificate: tuple[str, str] | None = None
    client_ca: str = ""
    anonymous: bool = True
    authorization: set[str] = field(default_factory=set)
    server: files.Kubeconfig | str | None = None  # where the API is
    document: dict = field(default_factory=dict)
    bootstrap: files.Kubeconfig | None = None


def check(component: str, version: str, minor: int, given: Flags) -> Program:
    program = Program(component, version, minor, given)
    given_pairs(program)
    given_files(program)
    {"kube-apiserver": apiserver, "kube-controller-manager": controller_manager, "kube-scheduler": scheduler,
     "kubelet": kubelet, "kube-proxy": proxy}[component](program)
    return program


# --- files, the same for all ----------------------------------------------------------------------
PAIRS = (("tls-cert-file", "tls-private-key-file"), ("kubelet-client-certificate", "kubelet-client-key"), ("etcd-certfile", "etcd-keyfile"),
         ("proxy-client-cert-file", "proxy-client-key-file"), ("cluster-signing-cert-file", "cluster-signing-key-file"))
BUNDLES = ("client-ca-file", "kubelet-certificate-authority", "etcd-cafile", "requestheader-client-ca-file", "root-ca-file", "oidc-ca-file",
           "tls-ca-file", "experimental-keystone-ca-file")
READABLE = ("audit-policy-file", "encryption-provider-config", "experimental-encryption-provider-config", "basic-auth-file",
            "token-auth-file", "admission-control-config-file", "authorization-policy-file", "egress-selector-config-file",
            "policy-config-file", "tracing-config-file", "authentication-config", "authorization-config",
            "image-credential-provider-config")
KUBECONFIGS = ("authentication-kubeconfig", "authorization-kubeconfig", "authentication-token-webhook-config-file",
               "authorization-webhook-config-file", "audit-webhook-config-file")


def given_pairs(p: Program):
    for certificate, key in PAIRS:
        given = p.flags.get(certificate), p.flags.get(key)
        if any(given):
            if not all(given):
                raise Refused(f"--{certificate} and --{key} must be specified together")
            files.pair(*given, f"--{certificate}, --{key}")


def given_files(p: Program):
    for name in BUNDLES:
        if path := p.flags.get(name):  # the seed gives --root-ca-file= empty with TLS off [spec] 1.9
            files.certificates(path, f"--{name}")
    for name in READABLE:
        if path := p.flags.get(name):
            text = files.read(path, f"--{name}")
            if name == "audit-policy-file":
                audit_policy(text)
    for name in KUBECONFIGS:
        if path := p.flags.get(name):
            files.Kubeconfig(path, f"--{name}")
    for path in p.flags.every("service-account-key-file"):
        files.verifying_key(path, "--service-account-key-file", p.minor)
    for name in ("service-account-private-key-file", "service-account-signing-key-file"):
        if path := p.flags.get(name):
            files.key(path, f"--{name}")


def audit_policy(text: str):
    """As the real 1.20.2 refuses it (docs/agreement.md)."""
    import yaml
    document = yaml.safe_load(text) or {}
    kind, version = (document.get(name) if isinstance(document, dict) else None for name in ("kind", "apiVersion"))
    if kind != "Policy" or not str(version).startswith("audit.k8s.io/"):
        raise Refused(f'loading audit policy file: failed decoding: no kind "{kind}" is registered for version "{version}"')


def cloud(p: Program):
    """[spec] 5.1-5.3: from 1.32 on nothing but external; the OpenStack provider inside Kubernetes ended with 1.25."""
    name = p.flags.get("cloud-provider")
    known = {"", "external"}
    if p.minor < 32:
        known |= {"aws", "azure", "gce", "vsphere", "openstack", "cloudstack", "ovirt", "photon", "mesos", "rackspace", "fake"}
    if p.minor >= 26:
        known -= {"openstack", "cloudstack", "ovirt", "photon", "mesos", "rackspace"}
    if name not in known:
        raise Refused(f'unknown cloud provider "{name}"')
    if name == "external" and p.minor < 6:
        raise Refused(f'unknown cloud provider "{name}"')  # [spec] 5.3: 1.6
    path = p.flags.get("cloud-config")
    if path and (name == "openstack" or p.flags.get("external-cloud-volume-plugin") == "openstack"):
        files.openstack_config(path, p.minor)
    elif path:
        files.read(path, "--cloud-config")


def api(p: Program, needed: bool = True):
    """--kubeconfig and --master of those that are clients of the API."""
    if path := p.flags.get("kubeconfig"):
        p.server = files.Kubeconfig(path)
    if master := p.flags.get("master"):
        if not re.fullmatch(r"(https?://)?[^\s/]+(:\d+)?/?", master):
            raise Refused(f"invalid --master: {master!r}")
        if p.server is None and p.minor >= 20:
            # [spec] 5.3: the port without TLS that --master alone needs is gone
            raise Refused("--master without --kubeconfig: unable to load client CA provider or authenticate to the API server")
        p.server = p.server or (master if "://" in master else f"http://{master}")
    if p.server is None and needed:
        raise Refused("invalid configuration: no configuration has been provided, try setting KUBERNETES_MASTER environment variable")


LOCKS = {"endpoints": (2, 23), "configmaps": (8, 23), "leases": (14, 99), "endpointsleases": (17, 26), "configmapsleases": (17, 26)}


def leader_election(p: Program):
    """[spec] 5.3 for leases from 1.14 on, [memory] for the rest."""
    if (lock := p.flags.get("leader-elect-resource-lock")) and not LOCKS.get(lock, (99, 0))[0] <= p.minor <= LOCKS[lock][1]:
        raise Refused(f"Invalid lock-type {lock}")


def old_port(p: Program, default: int, gone: int):
    """--port and --address of the controller manager and the scheduler: HTTP without credentials, gone with 1.24."""
    if p.minor < gone and (number := p.flags.number("port", default)):
        p.ports.append(Port(p.flags.get("address", "127.0.0.1" if p.minor >= 13 else "0.0.0.0"), number))


def secure_port(p: Program, default: int, since: int):
    if number := p.flags.number("secure-port", default if p.minor >= since else 0):
        p.ports.append(Port(p.flags.get("bind-address", "0.0.0.0"), number, tls=True))
    if p.flags.get("tls-cert-file"):
        p.certificate = files.at(p.flags.get("tls-cert-file")), files.at(p.flags.get("tls-private-key-file"))
    p.client_ca = files.at(p.flags.get("client-ca-file")) if p.flags.get("client-ca-file") else ""


# --- kube-apiserver -------------------------------------------------------------------------------
# Admission plugins: first and last minor. [spec] 3.2 for PodSecurityPolicy, SecurityContextDeny, Initializers, DenyEscalatingExec;
# [source] that the names without an end are there today; [memory] of release notes and of the reference pages for the rest.
ADMISSION = {
    "AlwaysAdmit": (2, 99), "AlwaysDeny": (2, 99), "AlwaysPullImages": (2, 99), "LimitRanger": (2, 99), "NamespaceAutoProvision": (2, 99),
    "NamespaceExists": (2, 99), "NamespaceLifecycle": (2, 99), "ResourceQuota": (2, 99), "ServiceAccount": (2, 99),
    "DenyEscalatingExec": (2, 20), "DenyExecOnPrivileged": (2, 20), "InitialResources": (2, 9), "PersistentVolumeLabel": (2, 30),
    "SecurityContextDeny": (2, 29), "PodSecurityPolicy": (3, 24), "LimitPodHardAntiAffinityTopology": (3, 99),
    "ImagePolicyWebhook": (4, 99),
    "DefaultStorageClass": (4, 99), "OwnerReferencesPermissionEnforcement": (5, 99), "PodNodeSelector": (5, 99), "PodPreset": (6, 19),
    "DefaultTolerationSeconds": (6, 99), "PodTolerationRestriction": (7, 99), "NodeRestriction": (7, 99), "Initializers": (7, 13),
    "GenericAdmissionWebhook": (7, 8), "Priority": (8, 99), "PersistentVolumeClaimResize": (8, 99), "EventRateLimit": (8, 99),
    "PVCProtection": (9, 9), "ExtendedResourceToleration": (9, 99), "MutatingAdmissionWebhook": (9, 99),
    "ValidatingAdmissionWebhook": (9, 99),
    "StorageObjectInUseProtection": (10, 99), "TaintNodesByCondition": (12, 99), "RuntimeClass": (14, 99), "CertificateApproval": (18, 99),
    "CertificateSigning": (18, 99), "CertificateSubjectRestriction": (18, 99), "DefaultIngressClass": (18, 99),
    "DenyServiceExternalIPs": (21, 99), "PodSecurity": (22, 99), "ValidatingAdmissionPolicy": (26, 99),
    "ClusterTrustBundleAttest": (27, 99),
    "MutatingAdmissionPolicy": (32, 99), "PodTopologyLabels": (33, 99),
}


def apiserver(p: Program):
    f, minor = p.flags, p.minor
    etcd = f.every("etcd-servers")
    if not etcd:
        raise Refused("--etcd-servers must be specified")
    for url in etcd:
        if not re.fullmatch(r"(https?|unixs?)://(\[[0-9a-fA-F:.]+\]|[^\s/:\[\]]+):\d+/?", url):
            raise Refused(f"--etcd-servers: {url!r} is no URL with scheme, host and port")
    # stricter than the real one, which would fail to connect, or leave the files unread
    if any(url.startswith("https") for url in etcd) != any(f.get(n) for n in ("etcd-cafile", "etcd-certfile")):
        raise Refused("--etcd-servers and --etcd-cafile, --etcd-certfile do not fit together: one speaks of TLS and the other does not")
    if (backend := f.get("storage-backend")) and backend not in ({"etcd2", "etcd3"} if minor < 13 else {"etcd3"}):
        raise Refused(f'--storage-backend invalid, allowed values: etcd3{", etcd2" if minor < 13 else ""}: {backend!r}')
    services = f.every("service-cluster-ip-range") + f.every("portal-net")
    if not services and minor < 16:
        raise Refused("No --service-cluster-ip-range specified")  # [spec] a default that is deprecated since 1.16; older ones [memory]
    for network in services:
        parsed = ipaddress.ip_network(network, strict=False)
        if parsed.max_prefixlen - parsed.prefixlen > 20:
            raise Refused(f"specified --service-cluster-ip-range is too large: {network}")  # [memory]
    insecure = f.number("insecure-port", 8080 if minor < 20 else 0)
    if minor >= 20 and insecure:
        raise Refused(f"--insecure-port: invalid port value {insecure}: only zero is allowed")
    secure = f.number("secure-port", 6443)
    if minor >= 20 and not secure:
        raise Refused("--secure-port 0 must be between 1 and 65535, inclusive. It cannot be turned off with 0")
    if insecure == secure and insecure:
        raise Refused("--secure-port and --insecure-port cannot use the same port")
    if minor >= 20 and not (f.get("service-account-issuer") and f.get("service-account-signing-key-file")):
        raise Refused("service-account-issuer is a required flag, "
                      "--service-account-signing-key-file and --service-account-issuer are required flags")
    if minor >= 20 and not f.every("service-account-key-file"):
        raise Refused("--service-account-key-file is a required flag")
    for issuer in f.all.get("service-account-issuer", []):
        if ":" in issuer and not re.fullmatch(r"https?://[^\s/]+(/\S*)?", issuer):
            raise Refused(f"--service-account-issuer contained a ':' but was not a valid URL: {issuer!r}")
    authorization(p)
    admission(p)
    types = {"Hostname", "InternalDNS", "InternalIP", "ExternalDNS", "ExternalIP"} | ({"LegacyHostIP"} if minor < 8 else set())
    if stray := set(f.every("kubelet-preferred-address-types")) - types:
        raise Refused(f"--kubelet-preferred-address-types: unknown {', '.join(stray)}")
    cloud(p)
    if insecure:
        p.ports.append(Port(f.get("insecure-bind-address", "127.0.0.1"), insecure))
    # [memory] requests without credentials are anonymous from 1.5 on; [tried] 1.2 answers them 401
    p.anonymous = minor >= 5 and f.on("anonymous-auth", True)
    secure_port(p, 6443, 2)


def authorization(p: Program):
    f = p.flags
    modes = f.every("authorization-mode") or (["AlwaysAllow"] if not f.get("authorization-config") else [])
    known = {"AlwaysAllow", "AlwaysDeny", "ABAC", "Webhook"} | ({"RBAC"} if p.minor >= 3 else set()) | ({"Node"} if p.minor >= 7 else set())
    for mode in modes:
        if mode not in known:
            raise Refused(f"authorization-mode {mode!r} is not a valid mode")
        if modes.count(mode) > 1:
            raise Refused(f"authorization-mode {mode!r} has mode specified more than once")
    for mode, file in (("ABAC", "authorization-policy-file"), ("Webhook", "authorization-webhook-config-file")):
        if (mode in modes) != bool(f.get(file)):
            raise Refused(f"authorization-mode {mode} and --{file} go together")
    p.authorization = set(modes)


def admission(p: Program):
    f = p.flags
    old, new, off = f.every("admission-control"), f.every("enable-admission-plugins"), f.every("disable-admission-plugins")
    if old and (new or off):
        raise Refused("admission-control and enable-admission-plugins/disable-admission-plugins flags are mutually exclusive")
    if both := set(new) & set(off):
        raise Refused(f"{', '.join(both)} in enable-admission-plugins and disable-admission-plugins overlapped")
    for name in old + new + off:
        first, last = ADMISSION.get(name, (99, 0))
        if not first <= p.minor <= last:
            # [tried by others] up to 1.8 it ends as a fatal log line does
            raise Refused(f"unknown admission plugin: {name}", 255 if p.minor < 8 else 1)


# --- kube-controller-manager, kube-scheduler ------------------------------------------------------
def controller_manager(p: Program):
    f = p.flags
    if (path := f.get("cluster-signing-cert-file")) and (count := len(files.certificates(path, "--cluster-signing-cert-file"))) != 1:
        # [source] pkg/controller/certificates/signer: a bundle is none, at the start and whenever the file changes
        raise Refused(f'error reading CA cert file "{path}": expected 1 certificate, found {count}')
    api(p)
    leader_election(p)
    networks = [ipaddress.ip_network(n, strict=False) for n in f.every("cluster-cidr")]
    if f.on("allocate-node-cidrs"):
        if not networks:
            raise Refused("--allocate-node-cidrs needs --cluster-cidr")
        mask = f.number("node-cidr-mask-size", 24)
        if any(n.version == 4 and n.prefixlen > mask for n in networks):
            raise Refused(f"New CIDR set failed; the node CIDR size is too big: /{mask} in {networks[0]}")  # [memory]
    cloud(p)
    old_port(p, 10252, 24)
    secure_port(p, 10257, 12)  # [memory] the flag is there from 1.11 on [list], the port by default from 1.12 on


def scheduler(p: Program):
    if path := p.flags.get("config"):
        p.document = documents.load(path, "KubeSchedulerConfiguration", p.minor)
        if kubeconfig := (p.document.get("clientConnection") or {}).get("kubeconfig"):
            p.server = files.Kubeconfig(kubeconfig)
    api(p, needed=p.server is None)
    leader_election(p)
    old_port(p, 10251, 24)
    secure_port(p, 10259, 13)


# --- kubelet --------------------------------------------------------------------------------------
LABELS = {"kubernetes.io/hostname", "kubernetes.io/instance-type", "kubernetes.io/os", "kubernetes.io/arch",
          "beta.kubernetes.io/instance-type",
          "beta.kubernetes.io/os", "beta.kubernetes.io/arch", "failure-domain.beta.kubernetes.io/zone",
          "failure-domain.beta.kubernetes.io/region", "failure-domain.kubernetes.io/zone", "failure-domain.kubernetes.io/region",
          "topology.kubernetes.io/zone", "topology.kubernetes.io/region",
          "node.kubernetes.io/instance-type"}  # [memory] of the reference page
NAME = re.compile(r"[A-Za-z0-9]([\w.-]{0,61}[A-Za-z0-9])?")
DOMAIN = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")


def kubelet(p: Program):
    f, minor = p.flags, p.minor
    if path := f.get("config"):
        if minor < 6:
            files.directory(path, "--config")  # a directory of manifests up to 1.5
        else:
            p.document = documents.load(path, "KubeletConfiguration", minor)
            documents.check_kubelet(p.document, minor)
    if path := f.get("pod-manifest-path"):
        files.directory(path, "--pod-manifest-path")  # stricter than the real one, which logs it and goes on
    kubelet_api(p)
    labels(p)
    for taint in f.every("register-with-taints"):
        found = re.fullmatch(r"([^=:\s]+)(=([^:\s]*))?:(NoSchedule|PreferNoSchedule|NoExecute)", taint)
        if not found or not label_key(found[1]) or (found[3] and not NAME.fullmatch(found[3])):
            raise unknown_value("register-with-taints", taint, minor)
    if (name := f.get("hostname-override")) and not (DOMAIN.fullmatch(name) and len(name) <= 253):
        raise Refused(f'Node "{name}" is invalid: metadata.name: a DNS-1123 subdomain must consist of lower case alphanumeric characters')
    runtime(p)
    for name, allowed in (("cgroup-driver", {"cgroupfs", "systemd"}), ("authorization-mode", {"AlwaysAllow", "Webhook"}),
                          ("network-plugin", {"", "cni", "kubenet"} | ({"exec"} if minor < 9 else set())),
                          ("hairpin-mode", documents.CHOICES["hairpinMode"])):
        if name in f and f.get(name) not in allowed:
            raise Refused(f"--{name}: invalid value {f.get(name)!r}")
    addresses = f.every("node-ip")
    if any(ipaddress.ip_address(a).is_loopback or ipaddress.ip_address(a).is_multicast for a in addresses) or (len(addresses) > 1
                                                                                                               and minor < 20):
        raise Refused(f"bad --node-ip {f.get('node-ip')!r}: nodeIP can't be loopback or multicast address, and one before 1.20")  # [memory]
    if f.on("runonce") and minor >= 32:
        raise Refused("invalid configuration: runOnce is no longer supported")
    authentication = p.document.get("authentication") or {}
    mode = (p.document.get("authorization") or {}).get("mode") or f.get("authorization-mode") or ("Webhook" if p.document
                                                                                                  else "AlwaysAllow")
    webhook = f.on("authentication-token-webhook", (authentication.get("webhook") or {}).get("enabled", bool(p.document)))
    if not p.server and not p.bootstrap and (mode == "Webhook" or webhook) and ("authorization-mode" in f or p.document):
        raise Refused("no client provided, cannot use webhook authorization")  # [memory]
    cloud(p)
    kubelet_ports(p, authentication)


def kubelet_api(p: Program):
    f, minor = p.flags, p.minor
    for url in f.every("api-servers"):
        if not re.fullmatch(r"(https?://)?[^\s/]+(:\d+)?/?", url):
            raise Refused(f"--api-servers: {url!r}")
        p.server = p.server or (url if "://" in url else f"http://{url}")
    kubeconfig, bootstrap = f.get("kubeconfig"), f.get("bootstrap-kubeconfig") or f.get("experimental-bootstrap-kubeconfig")
    if kubeconfig and not os.path.exists(files.at(kubeconfig)) and bootstrap:
        p.bootstrap = files.Kubeconfig(bootstrap, "--bootstrap-kubeconfig")
        if not p.bootstrap.token and not p.bootstrap.certificate:
            raise Refused(f"--bootstrap-kubeconfig {bootstrap}: no token and no certificate")
    elif kubeconfig:
        config = files.Kubeconfig(kubeconfig)
        # [spec] 5.1: with --api-servers it only carries credentials; from 1.4 on --require-kubeconfig takes the server from it
        config.server = p.server if isinstance(p.server, str) else config.server
        p.server = config if minor >= 8 or f.on("require-kubeconfig") or p.server else None
    if f.on("require-kubeconfig") and minor < 8 and not p.server:
        raise Refused("invalid kubeconfig: no server")
    if minor < 8 and kubeconfig and not p.server:
        # stricter than the real one, which warns and stands alone
        raise Refused("--kubeconfig without --require-kubeconfig or --api-servers: the kubelet would stand alone")


def label_key(key: str) -> bool:
    prefix, slash, name = key.rpartition("/")
    return bool(NAME.fullmatch(name)) and (not slash or bool(DOMAIN.fullmatch(prefix)))


def labels(p: Program):
    """[spec] 5.1: from 1.16 on labels of Kubernetes' own domains stop the kubelet, but for a list."""
    for key, value in p.flags.pairs("node-labels").items():
        if not label_key(key) or (value and not NAME.fullmatch(value)):
            raise unknown_value("node-labels", f"{key}={value}", p.minor)
        domain = key.rpartition("/")[0]
        own = any(domain == d or domain.endswith(f".{d}") for d in ("kubernetes.io", "k8s.io"))
        allowed = key in LABELS or any(domain == d or domain.endswith(f".{d}") for d in ("kubelet.kubernetes.io", "node.kubernetes.io"))
        if own and not allowed and p.minor >= 16:
            raise Refused(f"unknown 'kubernetes.io' or 'k8s.io' labels specified with --node-labels: [{key}]")


def unknown_value(name: str, value: str, minor: int) -> Refused:
    return flags.unknown("kubelet", minor, f'invalid argument "{value}" for "--{name}" flag')


def runtime(p: Program):
    """[spec] 5.1: docker, rkt and remote; only remote from 1.24 on, no flag from 1.27 on. Any CRI socket before 1.24 needs remote."""
    f, minor = p.flags, p.minor
    kind = f.get("container-runtime", "remote" if minor >= 24 else "docker")
    allowed = {"remote"} if minor >= 24 else {"docker"} | ({"remote"} if minor >= 5 else set()) | ({"rkt"} if minor < 10 else set())
    if kind not in allowed:
        raise Refused(f"unsupported CRI runtime: {kind!r}, only {', '.join(sorted(allowed))} is currently supported")
    endpoint = p.document.get("containerRuntimeEndpoint") or f.get("container-runtime-endpoint")
    if endpoint and not re.match(r"(unix://)?/", endpoint):
        raise Refused(f"unable to determine runtime API version: protocol or path not supported: {endpoint!r}")
    if endpoint and kind != "remote" and "dockershim" not in endpoint:
        raise Refused("--container-runtime-endpoint without --container-runtime=remote: the kubelet would take docker all the same")
    if kind == "remote" and not endpoint and minor < 24:
        raise Refused("--container-runtime=remote without --container-runtime-endpoint")


def kubelet_ports(p: Program, authentication: dict):
    f, d = p.flags, p.document
    address = f.get("address") or d.get("address") or "0.0.0.0"
    if number := f.number("healthz-port", d.get("healthzPort", 10248)):
        p.ports.append(Port(f.get("healthz-bind-address") or d.get("healthzBindAddress") or "127.0.0.1", number))
    p.ports.append(Port(address, f.number("port", d.get("port") or 10250), tls=True))
    # [memory] the read-only port is on by default with flags and off with a file
    if number := f.number("read-only-port", d.get("readOnlyPort", 0) if d else 10255):
        p.ports.append(Port(address, number))
    if p.minor < 12 and (number := f.number("cadvisor-port", 4194)):
        p.ports.append(Port(address, number))
    certificate = f.get("tls-cert-file") or d.get("tlsCertFile")
    if certificate:
        p.certificate = files.at(certificate), files.at(f.get("tls-private-key-file") or d["tlsPrivateKeyFile"])
    ca = f.get("client-ca-file") or (authentication.get("x509") or {}).get("clientCAFile")
    p.client_ca = files.at(ca) if ca else ""
    p.anonymous = f.on("anonymous-auth", (authentication.get("anonymous") or {}).get("enabled", not d))


# --- kube-proxy -----------------------------------------------------------------------------------
BESIDE_CONFIG = {"config", "v", "vmodule", "logtostderr", "alsologtostderr", "log-dir", "stderrthreshold", "log-flush-frequency",
                 "hostname-override", "logging-format", "log-backtrace-at"}


def proxy(p: Program):
    f, minor = p.flags, p.minor
    if path := f.get("config"):
        p.document = documents.load(path, "KubeProxyConfiguration", minor)
        documents.check_proxy(p.document, minor)
        if kubeconfig := (p.document.get("clientConnection") or {}).get("kubeconfig"):
            p.server = files.Kubeconfig(kubeconfig)
        # [spec] 5.5: with a file it does not look at the flags (at --hostname-override from 1.14 on [memory]). Flags that do not
        # hold are a mistake of whoever wrote them, so a stand-in refuses what the real one ignores.
        if ignored := set(f.all) - BESIDE_CONFIG | ({"hostname-override"} & set(f.all) if minor < 14 else set()):
            raise Refused(f"--config and {', '.join(f'--{n}' for n in sorted(ignored))}: flags beside a configuration file are ignored")
    api(p, needed=p.server is None)
    modes = {"", "iptables", "userspace"} | ({"ipvs"} if minor >= 8 else set()) | ({"nftables"} if minor >= 29 else set())
    if f.get("proxy-mode") not in modes - ({"userspace"} if minor >= 26 else set()):
        raise Refused(f"unknown proxy-mode: {f.get('proxy-mode')!r}")
    if f.get("detect-local-mode") not in documents.CHOICES["detectLocalMode"]:
        raise Refused(f"unknown detect-local-mode: {f.get('detect-local-mode')!r}")
    # [spec] seed-systems 5: 10249 /proxyMode, 10256 /healthz; [memory] two ports from 1.7 on, before that one, 10249, for both
    if f.on("init-only"):
        return
    own = p.document.get("healthzBindAddress") or f.get("healthz-bind-address")
    if minor < 7:
        p.ports.append(Port(own or "127.0.0.1", f.number("healthz-port", 10249)))
    else:
        p.ports.append(host_and_port(f.get("metrics-bind-address") or p.document.get("metricsBindAddress") or "127.0.0.1:10249", 10249))
        health = host_and_port(own or "0.0.0.0:10256", 10256)
        p.ports.append(Port(health.address, f.number("healthz-port", health.number)))
    p.ports = [port for port in p.ports if port.number]


def host_and_port(text: str, default: int) -> Port:
    """1.2.3.4, 1.2.3.4:10249, [::1]:10249, ::1"""
    if flags.is_address(text):
        return Port(text, default)
    host, _, number = text.rpartition(":")
    return Port(host.strip("[]"), int(number))
