"""Some of Kubernetes' own conformance tests on the cluster of this part, of each group, a few minutes of them. All are in conformance.py beside this, and
those that ask for services by name are there alone: here nothing serves names."""
from lib import conformance
from lib.pod_network import together
from lib.real_kubernetes import MADE

CORE = """
[k8s.io] Container Lifecycle Hook when create a pod with lifecycle hook should execute prestop exec hook properly [NodeConformance] [Conformance]
[k8s.io] InitContainer [NodeConformance] should invoke init containers on a RestartNever pod [Conformance]
[k8s.io] KubeletManagedEtcHosts should test kubelet managed /etc/hosts file [LinuxOnly] [NodeConformance] [Conformance]
[k8s.io] Lease lease API should be available [Conformance]
[k8s.io] Pods should support remote command execution over websockets [NodeConformance] [Conformance]
[k8s.io] Pods should support retrieving logs from the container over websockets [NodeConformance] [Conformance]
[k8s.io] Probing container should be restarted with a /healthz http liveness probe [NodeConformance] [Conformance]
[k8s.io] Security Context When creating a container with runAsUser should run the container with uid 65534 [LinuxOnly] [NodeConformance] [Conformance]
[k8s.io] Security Context when creating containers with AllowPrivilegeEscalation should not allow privilege escalation when false [LinuxOnly] [NodeConformance] [Conformance]
[k8s.io] [sig-node] Events should be sent by kubelets and the scheduler about pods scheduling and running [Conformance]
[k8s.io] [sig-node] PreStop should call prestop when killing a pod [Conformance]
[sig-api-machinery] AdmissionWebhook [Privileged:ClusterAdmin] should mutate pod and apply defaults after mutation [Conformance]
[sig-api-machinery] AdmissionWebhook [Privileged:ClusterAdmin] should be able to deny attaching pod [Conformance]
[sig-api-machinery] Aggregator Should be able to support the 1.17 Sample API Server using the current Aggregator [Conformance]
[sig-api-machinery] CustomResourceConversionWebhook [Privileged:ClusterAdmin] should be able to convert from CR v1 to CR v2 [Conformance]
[sig-api-machinery] Garbage collector should delete pods created by rc when not orphaning [Conformance]
[sig-api-machinery] ResourceQuota should create a ResourceQuota and capture the life of a pod. [Conformance]
[sig-api-machinery] Watchers should be able to restart watching from the last resource version observed by the previous watch [Conformance]
[sig-api-machinery] server version should find the server version [Conformance]
[sig-apps] Deployment should run the lifecycle of a Deployment [Conformance]
[sig-apps] Job should run a job to completion when tasks sometimes fail and are locally restarted [Conformance]
[sig-apps] ReplicaSet should serve a basic image on each replica with a public image [Conformance]
[sig-auth] Certificates API [Privileged:ClusterAdmin] should support CSR API operations [Conformance]
[sig-auth] ServiceAccounts should mount an API token into pods [Conformance]
[sig-auth] ServiceAccounts should mount projected service account token [Conformance]
[sig-cli] Kubectl client Kubectl expose should create services for rc [Conformance]
[sig-cli] Kubectl client Kubectl logs should be able to retrieve and filter logs [Conformance]
[sig-cli] Kubectl client Proxy server should support --unix-socket=/path [Conformance]
[sig-instrumentation] Events API should ensure that an event can be fetched, patched, deleted, and listed [Conformance]
[sig-network] Ingress API should support creating Ingress API operations [Conformance]
[sig-network] Networking Granular Checks: Pods should function for intra-pod communication: udp [NodeConformance] [Conformance]
[sig-network] Networking Granular Checks: Pods should function for node-pod communication: http [LinuxOnly] [NodeConformance] [Conformance]
[sig-network] Proxy version v1 should proxy through a service and a pod [Conformance]
[sig-storage] EmptyDir volumes should support (non-root,0644,tmpfs) [LinuxOnly] [NodeConformance] [Conformance]
[sig-storage] Projected secret should be consumable from pods in volume as non-root with defaultMode and fsGroup set [LinuxOnly] [NodeConformance] [Conformance]
[sig-storage] Subpath Atomic writer volumes should support subpaths with downward pod [LinuxOnly] [Conformance]
"""
# Of the images that stand in for those that the suite asks for, what these need.
IMAGES = ("agnhost", "etcd", "httpd", "nginx", "nonewprivs", "sample-apiserver")


def test_kubernetes_own_tests_of_each_group_pass(suite, cluster, tmp_path):
    wanted = {conformance.plain(line) for line in CORE.strip().splitlines()}
    assert wanted <= set(conformance.names())
    together(*(lambda n=node: n.load_images(*(f"/srv/images/e2e/{name}.tar" for name in IMAGES)) for node in cluster.nodes.values()))
    outcome = conformance.execute(cluster, tmp_path, MADE / "conformance-core.log", conformance.exactly(sorted(wanted)), minutes=20)
    print(*(f"{seconds:6.1f} s  {name}" for name, seconds in sorted(outcome.seconds.items(), key=lambda one: -one[1])), sep="\n")
    assert outcome.passed == wanted, {name: outcome.failed.get(name, "did not end") for name in wanted - outcome.passed}
