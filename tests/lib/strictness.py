"""What Kubernetes' programs take and refuse, as a table: for the stand-ins' own tests, and for the real programs that must agree with them."""
import json
from pathlib import Path

from lib.certificates import CA, public_key
from lib.common import run
from lib.stand_ins import kubeconfig

SERVICES = "--service-cluster-ip-range=10.254.0.0/16"
ETCD = "--etcd-servers=http://127.0.0.1:2379"


def apiserver(pki: dict, minor: int) -> list[str]:
    words = [ETCD, SERVICES]
    if minor >= 20:
        words += ["--service-account-issuer=https://kubernetes.default.svc.cluster.local",
                  f"--service-account-signing-key-file={pki['cakey']}", f"--service-account-key-file={pki['sapub']}"]
    return words


def usual(pki: dict, component: str, minor: int) -> list[str]:
    """The least that makes the program run."""
    if component == "kube-apiserver":
        return apiserver(pki, minor)
    if component == "kubelet":
        return []
    return [f"--kubeconfig={pki['config']}"]


def command_line(pki: dict, component: str, minor: int, words: str, replaces: bool = False) -> list[str]:
    """The least that makes the program run, and these words; replaces: in the place of what they have in common."""
    least = usual(pki, component, minor)
    if replaces:
        least = [w for w in least if w.split("=")[0] not in {b.split("=")[0] for b in words.split()}]
    return [*least, *([words.format(**pki)] if "a b" in words else words.format(**pki).split(" "))]


def certificates_and_files(folder: Path) -> dict[str, str]:
    """What command lines and configuration files name: {name: path}."""
    ca = CA(folder)
    made = {"ca": str(ca.certificate), "cakey": str(ca.private), "dir": str(folder)}
    for name, more in (("server", {}), ("other", {}), ("expired", {"days": -1}),
                       ("node", {"subject": "/O=system:nodes/CN=system:node:node-1"}),
                       ("manager", {"subject": "/CN=system:kube-controller-manager"}),
                       ("admin", {"subject": "/O=system:masters/CN=admin"})):
        made[name], made[f"{name}key"] = map(str, ca.sign(name, **more))
    made["sapub"] = str(folder / "sa.pub")
    public_key(ca.private, folder / "sa.pub")
    (folder / "garbage").write_text("-----BEGIN CERTIFICATE-----\nMIIBqqqq\n-----END CERTIFICATE-----\n")
    made["garbage"] = str(folder / "garbage")
    second = CA(folder / "second")
    (folder / "bundle").write_bytes(ca.certificate.read_bytes() + second.certificate.read_bytes())
    run("openssl", "pkcs8", "-topk8", "-nocrypt", "-in", ca.private, "-out", folder / "ecpkcs8")
    run("openssl", "genpkey", "-algorithm", "RSA", "-out", folder / "rsapkcs8")
    (folder / "mislabelled").write_text((folder / "ecpkcs8").read_text().replace("PRIVATE", "EC PRIVATE"))
    made |= {name: str(folder / name) for name in ("bundle", "ecpkcs8", "rsapkcs8", "mislabelled")}
    (folder / "empty").mkdir()
    made["empty"] = str(folder / "empty")
    for name, text in {
        "config": kubeconfig(made), "token": kubeconfig(made, user={"token": "abc.def"}),
        "http": kubeconfig(made, server="http://192.0.2.1:8080"),
        "bad-server": kubeconfig(made, server="192.0.2.1:6443"), "bad-ca": kubeconfig(made, ca="/nowhere/ca.crt"),
        "bad-pair": kubeconfig(made, user={"client-certificate": made["node"], "client-key": made["otherkey"]}),
        "audit": {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": [{"level": "Metadata"}]},
        "bad-context": {**kubeconfig(made), "current-context": "gone"}, "bad-field": kubeconfig(made, cluster={"cert-authority": "x"}),
    }.items():
        (folder / name).write_text(json.dumps(text))
        made[name] = str(folder / name)
    return made


# --- values, files and what belongs together: component, minor, what is there besides the least, good, bad, what it says ------------
RULES = [
    ("kubelet", 20, "--register-node=true", "--register-node=yes", "ParseBool"),
    ("kubelet", 20, "--port=10250", "--port=70000", "between 0 and 65535"),
    ("kubelet", 20, "--max-pods=110", "--max-pods=many", "ParseInt"),
    ("kubelet", 20, "--sync-frequency=1m30s", "--sync-frequency=90", "invalid duration"),
    ("kubelet", 20, "--address=::", "--address=all", "failed to parse IP"),
    ("kubelet", 20, "--cluster-dns=10.0.0.1,10.0.0.2", "--cluster-dns=dns.example", "failed to parse IP"),
    ("kubelet", 20, "--pod-cidr=10.0.0.0/24", "--pod-cidr=10.0.0.0", "invalid CIDR"),
    ("kubelet", 20, "--feature-gates=A=true,B=false", "--feature-gates=A", "malformed pair"),
    ("kubelet", 20, "--feature-gates=A=true", "--feature-gates=A=on", "not a boolean"),
    ("kubelet", 20, "--eviction-hard=memory.available<100Mi", "--eviction-hard=memory", "malformed pair"),
    ("kubelet", 20, "--kubeconfig={config}", "--kubeconfig=/nowhere", "no such file"),
    ("kubelet", 20, "--kubeconfig={token}", "--kubeconfig={bad-server}", "bad server"),
    ("kubelet", 20, "--kubeconfig={http}", "--kubeconfig={bad-ca}", "no such file"),
    ("kubelet", 20, "--kubeconfig={config}", "--kubeconfig={bad-pair}", "does not match"),
    ("kubelet", 20, "--kubeconfig={config}", "--kubeconfig={bad-context}", "context was not found"),
    ("kubelet", 20, "--kubeconfig={config}", "--kubeconfig={bad-field}", "unknown field"),
    ("kubelet", 20, "--bootstrap-kubeconfig={token} --kubeconfig={dir}/later",
     "--bootstrap-kubeconfig={bad-context} --kubeconfig={dir}/later", "context"),
    ("kubelet", 20, "--client-ca-file={ca}", "--client-ca-file={garbage}", "malformed"),
    ("kubelet", 20, "--client-ca-file={ca}", "--client-ca-file={cakey}", "does not contain any valid"),
    ("kubelet", 20, "--tls-cert-file={server} --tls-private-key-file={serverkey}", "--tls-cert-file={server}", "together"),
    ("kubelet", 20, "--tls-cert-file={server} --tls-private-key-file={serverkey}",
     "--tls-cert-file={server} --tls-private-key-file={otherkey}", "does not match"),
    ("kubelet", 20, "--tls-cert-file={server} --tls-private-key-file={serverkey}",
     "--tls-cert-file={expired} --tls-private-key-file={expiredkey}", "expired"),
    ("kubelet", 20, "--pod-manifest-path={empty}", "--pod-manifest-path={dir}/nowhere", "no such directory"),
    ("kubelet", 7, "--kubeconfig={config} --require-kubeconfig", "--kubeconfig={config}", "stand alone"),
    ("kubelet", 15, "--node-labels=node-role.kubernetes.io/master=", "--node-labels=a b=c", "invalid argument"),
    ("kubelet", 16, "--node-labels=node.kubernetes.io/x=1,magnum.openstack.org/role=worker",
     "--node-labels=node-role.kubernetes.io/master=", "unknown 'kubernetes.io'"),
    ("kubelet", 20, "--register-with-taints=node-role.kubernetes.io/master=:NoSchedule", "--register-with-taints=x=y:Never",
     "invalid argument"),
    ("kubelet", 20, "--hostname-override=node-1.example", "--hostname-override=node_1", "DNS-1123"),
    ("kubelet", 20, "--container-runtime=remote --container-runtime-endpoint=unix:///run/containerd/containerd.sock",
     "--container-runtime-endpoint=unix:///run/containerd/containerd.sock", "would take docker"),
    ("kubelet", 20, "--container-runtime=docker", "--container-runtime=remote", "without --container-runtime-endpoint"),
    ("kubelet", 24, "--container-runtime=remote --container-runtime-endpoint=/run/crio/crio.sock", "--container-runtime=docker",
     "unsupported CRI runtime"),
    ("kubelet", 24, "--container-runtime-endpoint=unix:///x", "--container-runtime-endpoint=tcp://x", "not supported"),
    ("kubelet", 20, "--cgroup-driver=systemd", "--cgroup-driver=native.cgroupdriver=systemd", "invalid value"),
    ("kubelet", 20, "--network-plugin=cni", "--network-plugin=flannel", "invalid value"),
    ("kubelet", 20, "--node-ip=192.0.2.5", "--node-ip=127.0.0.1", "loopback"),
    ("kubelet", 20, "--node-ip=192.0.2.5,2001:db8::5", "--node-ip=192.0.2.5,", None),
    ("kubelet", 19, "--node-ip=192.0.2.5", "--node-ip=192.0.2.5,2001:db8::5", "before 1.20"),
    ("kubelet", 31, "--runonce=true", None, ""), ("kubelet", 32, "--runonce=false", "--runonce=true", "runOnce"),
    ("kubelet", 20, "--kubeconfig={config} --authorization-mode=Webhook", "--authorization-mode=Webhook", "no client provided"),
    ("kubelet", 25, "--cloud-provider=openstack", None, ""),
    ("kubelet", 26, "--cloud-provider=aws", "--cloud-provider=openstack", "unknown cloud provider"),
    ("kubelet", 32, "--cloud-provider=external", "--cloud-provider=aws", "unknown cloud provider"),
    ("kubelet", 6, "--cloud-provider=external", None, ""),
    ("kubelet", 5, "--cloud-provider=", "--cloud-provider=external", "unknown cloud provider"),
    ("kube-apiserver", 19, "--insecure-port=8080", None, ""),
    ("kube-apiserver", 20, "--insecure-port=0", "--insecure-port=8080", "only zero is allowed"),
    ("kube-apiserver", 19, "--secure-port=0", None, ""),
    ("kube-apiserver", 20, "--secure-port=6443", "--secure-port=0", "cannot be turned off"),
    ("kube-apiserver", 15, "--secure-port=6443", "--secure-port=8080", "same port"),
    ("kube-apiserver", 20, "--etcd-servers=http://a:2379,http://b:2379", "--etcd-servers=a:2379", "no URL"),
    ("kube-apiserver", 20, "--etcd-servers=https://a:2379 --etcd-cafile={ca}", "--etcd-servers=https://a:2379", "do not fit together"),
    ("kube-apiserver", 20, "--etcd-servers=https://a:2379 --etcd-cafile={ca}", "--etcd-cafile={ca}", "do not fit together"),
    ("kube-apiserver", 12, "--storage-backend=etcd2", "--storage-backend=etcd1", "storage-backend"),
    ("kube-apiserver", 13, "--storage-backend=etcd3", "--storage-backend=etcd2", "storage-backend"),
    ("kube-apiserver", 20, "--service-cluster-ip-range=10.0.0.0/12", "--service-cluster-ip-range=10.0.0.0/8", "too large"),
    ("kube-apiserver", 20, "--service-account-issuer=kubernetes/serviceaccount", "--service-account-issuer=x:y", "not a valid URL"),
    ("kube-apiserver", 20, "--service-account-key-file={sapub}", "--service-account-key-file={garbage}", "valid RSA or ECDSA"),
    ("kube-apiserver", 20, "--service-account-key-file={cakey}", "--service-account-key-file={ecpkcs8}", "any valid RSA or ECDSA public"),
    ("kube-apiserver", 20, "--service-account-signing-key-file={ecpkcs8}", "--service-account-signing-key-file={mislabelled}",
     "valid RSA or ECDSA private"),
    ("kube-apiserver", 5, "--service-account-key-file={rsapkcs8}", "--service-account-key-file={cakey}", "any valid RSA or ECDSA public"),
    ("kube-apiserver", 20, "--service-account-signing-key-file={cakey}", "--service-account-signing-key-file={sapub}", "private key"),
    ("kube-apiserver", 7, "--authorization-mode=Node,RBAC", "--authorization-mode=Node,Node", "more than once"),
    ("kube-apiserver", 6, "--authorization-mode=RBAC", "--authorization-mode=Node,RBAC", "not a valid mode"),
    ("kube-apiserver", 20, "--authorization-mode=Webhook --authorization-webhook-config-file={http}", "--authorization-mode=Webhook",
     "go together"),
    ("kube-apiserver", 10, "--admission-control=NodeRestriction",
     "--admission-control=NodeRestriction --enable-admission-plugins=ServiceAccount", "mutually exclusive"),
    ("kube-apiserver", 20, "--enable-admission-plugins=NodeRestriction", "--enable-admission-plugins=Nonsense",
     "unknown admission plugin: Nonsense"),
    ("kube-apiserver", 24, "--enable-admission-plugins=PodSecurityPolicy", None, ""),
    ("kube-apiserver", 25, "--enable-admission-plugins=PodSecurity", "--enable-admission-plugins=PodSecurityPolicy",
     "unknown admission plugin"),
    ("kube-apiserver", 20, "--enable-admission-plugins=Priority",
     "--enable-admission-plugins=Priority --disable-admission-plugins=Priority", "overlapped"),
    ("kube-apiserver", 20, "--kubelet-preferred-address-types=InternalIP,Hostname", "--kubelet-preferred-address-types=IP", "unknown IP"),
    ("kube-apiserver", 20, "--kubelet-client-certificate={node} --kubelet-client-key={nodekey}", "--kubelet-client-key={nodekey}",
     "together"),
    ("kube-apiserver", 20, "--audit-policy-file={audit}", "--audit-policy-file=/nowhere", "no such file"),
    ("kube-apiserver", 20, "--audit-policy-file={audit}", "--audit-policy-file={config}", "no kind"),
    ("kube-controller-manager", 20, "--allocate-node-cidrs=true --cluster-cidr=10.0.0.0/16", "--allocate-node-cidrs=true",
     "needs --cluster-cidr"),
    ("kube-controller-manager", 20, "--allocate-node-cidrs --cluster-cidr=10.0.0.0/16", "--allocate-node-cidrs --cluster-cidr=10.0.0.0/25",
     "too big"),
    ("kube-controller-manager", 20, "--root-ca-file=", "--root-ca-file={cakey}", "does not contain any valid"),
    ("kube-controller-manager", 20, "--cluster-signing-cert-file={ca} --cluster-signing-key-file={cakey}",
     "--cluster-signing-cert-file={ca} --cluster-signing-key-file={otherkey}", "does not match"),
    ("kube-controller-manager", 20, "--root-ca-file={bundle} --cluster-signing-cert-file={ca} --cluster-signing-key-file={cakey}",
     "--cluster-signing-cert-file={bundle} --cluster-signing-key-file={cakey}", "expected 1 certificate, found 2"),
    ("kube-controller-manager", 20, "--leader-elect-resource-lock=leases", "--leader-elect-resource-lock=lease", "Invalid lock-type"),
    ("kube-controller-manager", 13, "--leader-elect-resource-lock=endpoints", "--leader-elect-resource-lock=leases", "Invalid lock-type"),
    ("kube-scheduler", 20, "--leader-elect=true", "--leader-elect=ja", "ParseBool"),
    ("kube-proxy", 8, "--proxy-mode=ipvs", "--proxy-mode=nftables", "unknown proxy-mode"),
    ("kube-proxy", 25, "--proxy-mode=userspace", None, ""),
    ("kube-proxy", 26, "--proxy-mode=iptables", "--proxy-mode=userspace", "unknown proxy-mode"),
    ("kube-proxy", 20, "--metrics-bind-address=0.0.0.0:10249", "--metrics-bind-address=all:10249", "IP:port"),
    ("kube-proxy", 20, "--detect-local-mode=ClusterCIDR", "--detect-local-mode=Cluster", "detect-local-mode"),
]

# --- configuration files --------------------------------------------------------------------------
KUBELET = {"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration"}
PROXY = {"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration"}
SCHEDULER = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
NO_WEBHOOK = {"authentication": {"webhook": {"enabled": False}}, "authorization": {"mode": "AlwaysAllow"}}
# Component, minor, what a good file has besides its head, a bad one, what is said of that.
CONFIGURATIONS = [
    ("kubelet", 10, KUBELET | NO_WEBHOOK, {"kind": "KubeletConfiguration", "apiVersion": "kubelet.config.k8s.io/v1"}, "no kind"),
    ("kubelet", 20, {"failSwapOn": False}, {"failSwapOff": False}, 'unknown field "failSwapOff"'),
    ("kubelet", 20, {"failSwapOn": True}, {"failSwapOn": "true"}, "cannot unmarshal"),
    ("kubelet", 20, {"maxPods": 110}, {"maxPods": 110.5}, "cannot unmarshal"),
    ("kubelet", 20, {"clusterDNS": ["10.0.0.1"]}, {"clusterDNS": "10.0.0.1"}, "cannot unmarshal"),
    ("kubelet", 20, {"clusterDNS": ["10.0.0.1"]}, {"clusterDNS": ["dns"]}, "invalid IP"),
    ("kubelet", 20, {"syncFrequency": "1m"}, {"syncFrequency": "60"}, "invalid duration"),
    ("kubelet", 20, {"evictionHard": {"memory.available": "100Mi"}}, {"evictionHard": {"memory.available": 100}}, "cannot unmarshal"),
    ("kubelet", 20, {"featureGates": {"X": True}}, {"featureGates": {"X": "true"}}, "cannot unmarshal"),
    ("kubelet", 20, {"authentication": {"webhook": {"enabled": False}, "anonymous": {"enabled": False}}},
     {"authentication": {"webhook": {"enabled": False, "mode": 1}}}, 'unknown field "authentication.webhook.mode"'),
    ("kubelet", 20, {"authentication": {"webhook": {"enabled": False}, "x509": {"clientCAFile": "{ca}"}}},
     {"authentication": {"webhook": {"enabled": False}, "x509": {"clientCAFile": "/nowhere"}}}, "no such file"),
    ("kubelet", 20, {"tlsCertFile": "{server}", "tlsPrivateKeyFile": "{serverkey}"},
     {"tlsCertFile": "{server}", "tlsPrivateKeyFile": "{otherkey}"}, "not match"),
    ("kubelet", 20, {"cgroupDriver": "systemd"}, {"cgroupDriver": "native"}, "must be one of"),
    ("kubelet", 20, {"staticPodPath": "{empty}"}, {"staticPodPath": "{dir}/nowhere"}, "no such directory"),
    ("kubelet", 20, {"imageGCHighThresholdPercent": 90}, {"imageGCHighThresholdPercent": 70}, "in order"),
    ("kubelet", 20, {"enforceNodeAllocatable": ["pods"]}, {"enforceNodeAllocatable": ["kube-reserved"]}, "kubeReservedCgroup"),
    ("kubelet", 20, {"readOnlyPort": 0}, {"readOnlyPort": 65536}, "between 0 and 65535"),
    ("kubelet", 22, {"memorySwap": {"swapBehavior": "LimitedSwap"}}, {"memorySwap": {"swapBehaviour": "x"}}, "unknown field"),
    ("kubelet", 23, {"registerWithTaints": [{"key": "a", "effect": "NoSchedule"}]}, {"registerWithTaints": [{"name": "a"}]},
     "unknown field"),
    ("kubelet", 22, {"maxPods": 10}, {"registerWithTaints": []}, "unknown field"),
    ("kubelet", 19, {"volumePluginDir": "/x"}, {"volumePluginDirs": "/x"}, "unknown field"),
    ("kubelet", 18, {"maxPods": 10}, {"volumePluginDir": "/x"}, "unknown field"),
    ("kubelet", 27, {"containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock"}, {"containerRuntimeEndpoint": "tcp://x"},
     "not supported"),
    ("kubelet", 26, {"maxPods": 10}, {"containerRuntimeEndpoint": "unix:///x"}, "unknown field"),
    ("kubelet", 36, {"failCgroupV1": True}, {"failCgroupV2": True}, "unknown field"),
    ("kubelet", 37, {"failCgroupV1": True}, {"x": 1}, "unknown field"),
    ("kube-proxy", 9, PROXY, {"apiVersion": "componentconfig/v1alpha1", "kind": "KubeProxyConfiguration"}, "no kind"),
    ("kube-proxy", 20, {"mode": "ipvs", "clusterCIDR": "10.0.0.0/16"}, {"mode": "nftables"}, "mode must be one of"),
    ("kube-proxy", 29, {"mode": "nftables"}, {"mode": "kernel"}, "mode must be one of"),
    ("kube-proxy", 20, {"conntrack": {"min": 1}}, {"conntrack": {"maximum": 1}}, 'unknown field "conntrack.maximum"'),
    ("kube-proxy", 20, {"hostnameOverride": "node-1"}, {"clusterCIDR": "10.0.0.0"}, "CIDR"),
    ("kube-proxy", 20, {"healthzBindAddress": "0.0.0.0:10256"}, {"healthzBindAddress": "here:10256"}, "IP:port"),
    ("kube-scheduler", 25, SCHEDULER, {**SCHEDULER, "apiVersion": "kubescheduler.config.k8s.io/v1alpha1"}, "no kind"),
    ("kube-scheduler", 28, {**SCHEDULER, "apiVersion": "kubescheduler.config.k8s.io/v1beta3"},
     {**SCHEDULER, "apiVersion": "kubescheduler.config.k8s.io/v1beta2"}, "no kind"),
]


def configuration(pki: dict, component: str, document: dict) -> str:
    """The text of a component's file with this in it."""
    head, more = {"kubelet": (KUBELET | NO_WEBHOOK, {}), "kube-proxy": (PROXY, {"clientConnection": {"kubeconfig": pki["http"]}}),
                  "kube-scheduler": (SCHEDULER, {"clientConnection": {"kubeconfig": pki["http"]}})}[component]
    text = json.dumps({**head, **more, **document})
    for name, value in pki.items():
        text = text.replace(f"{{{name}}}", value)
    return text
