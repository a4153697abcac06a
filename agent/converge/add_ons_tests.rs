//! Workloads and pods as the API shows them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::json;

use super::*;
use crate::desired::ClientIdentity;
use crate::files::Attributes;
use crate::machine::add_ons::PLACE;

/// Answers by path.
struct Api(BTreeMap<&'static str, Value>);

impl Prober for Api {
    async fn get_json(&self, url: &str, _identity: Option<&ClientIdentity>) -> Result<Value> {
        let path = url.strip_prefix("https://127.0.0.1:6443").unwrap();
        let answer = self.0.get(path).cloned();
        answer.ok_or_else(|| Error::transient(format!("{url} answered 404")).with_status(404))
    }

    async fn get_text(&self, _url: &str, _ca: Option<&str>, _identity: Option<&ClientIdentity>) -> Result<String> {
        unreachable!()
    }

    async fn docker(&self, _socket: &str, _path: &str) -> Result<Value> {
        unreachable!()
    }

    async fn answers_grpc(&self, _socket: &str) -> Result<()> {
        unreachable!()
    }
}

const DEPLOYMENT: &str = "/apis/apps/v1/namespaces/kube-system/deployments/dns";
const DAEMON_SET: &str = "/apis/apps/v1/namespaces/kube-system/daemonsets/net";
const JOB: &str = "/apis/batch/v1/namespaces/default/jobs/once";
const PODS: &str = "/api/v1/namespaces/kube-system/pods?limit=10&labelSelector=k8s-app=dns";

fn deployment(updated: u64, available: u64) -> Value {
    json!({"metadata": {"generation": 2}, "spec": {"replicas": 2, "selector": {"matchLabels": {"k8s-app": "dns"}}},
        "status": {"observedGeneration": 2, "updatedReplicas": updated, "availableReplicas": available}})
}

fn pod(status: &Value) -> Value {
    json!({"metadata": {"name": "dns-x"}, "spec": {"nodeName": "worker-0"}, "status": status})
}

async fn asked(answers: &[(&'static str, Value)]) -> std::result::Result<(), String> {
    let dir = tempfile::tempdir().unwrap();
    let root = Tree::open(dir.path()).unwrap();
    let folder = format!("{PLACE}/dns");
    root.create_dir_all(Path::new(&folder), Attributes::mode(0o755)).unwrap();
    let text = "{apiVersion: apps/v1, kind: Deployment, metadata: {name: dns, namespace: kube-system}}\n---\n\
                {apiVersion: apps/v1, kind: DaemonSet, metadata: {name: net, namespace: kube-system}}\n---\n\
                {apiVersion: v1, kind: ConfigMap, metadata: {name: dns}}\n---\n\
                {apiVersion: batch/v1, kind: Job, metadata: {name: once}}\n";
    root.write(Path::new(&format!("{folder}/a.yaml")), text.as_bytes(), Attributes::mode(0o644)).unwrap();
    let server = "https://127.0.0.1:6443".to_owned();
    let add_on =
        AddOn { name: "dns".into(), server, identity: None, facts: Vec::new(), secrets: Vec::new(), needs: BTreeSet::new() };
    let fine = [
        (DEPLOYMENT, deployment(2, 2)),
        // No node takes it.
        (DAEMON_SET, json!({"metadata": {"generation": 1}, "status": {"observedGeneration": 1}})),
        (JOB, json!({"status": {"conditions": [{"type": "Complete", "status": "True"}]}})),
        ("/api/v1/namespaces/kube-system/pods?limit=10", json!({"items": []})),
        ("/api/v1/namespaces/default/pods?limit=10", json!({"items": []})),
        (PODS, json!({"items": []})),
    ];
    let api = Api(fine.into_iter().chain(answers.iter().filter(|(_, value)| !value.is_null()).cloned()).collect());
    let gone: Vec<_> = answers.iter().filter(|(_, value)| value.is_null()).map(|(path, _)| *path).collect();
    let api = Api(api.0.into_iter().filter(|(path, _)| !gone.contains(path)).collect());
    ready(&root, &api, &add_on).await.map_err(|error| error.cause_first())
}

#[tokio::test]
async fn an_add_on_is_ready_when_each_of_its_workloads_is() {
    assert_eq!(asked(&[]).await, Ok(()));
    for (path, answer, expected) in [
        (DEPLOYMENT, Value::Null, "deployment kube-system/dns does not exist"),
        (DEPLOYMENT, deployment(2, 1), "deployment kube-system/dns: 1 of 2 pods are available"),
        // Those of the form before are still there.
        (DEPLOYMENT, deployment(0, 2), "deployment kube-system/dns: 0 of 2 pods are available"),
        (
            DEPLOYMENT,
            json!({"metadata": {"generation": 2}, "status": {"observedGeneration": 1, "updatedReplicas": 1, "availableReplicas": 1}}),
            "deployment kube-system/dns: its controller has not looked at it yet: check the controller manager",
        ),
        (
            DAEMON_SET,
            json!({"status": {"desiredNumberScheduled": 3, "updatedNumberScheduled": 3, "numberAvailable": 2}}),
            "daemonset kube-system/net: 2 of 3 pods are available",
        ),
        (JOB, json!({"status": {}}), "job default/once: it has not completed"),
        (
            JOB,
            json!({"status": {"conditions": [{"type": "Failed", "status": "True", "message": "BackoffLimit\nexceeded"}]}}),
            "job default/once: BackoffLimit",
        ),
    ] {
        assert_eq!(asked(&[(path, answer)]).await, Err(expected.to_owned()));
    }
}

#[tokio::test]
async fn why_an_image_cannot_be_pulled_stands_at_the_end_and_is_not_cut_off() {
    // As containerd 1.6 says it to a kubelet of 1.20.
    let image = "registry.example.org/kubernetes/metrics-server";
    let message = format!(
        "rpc error: code = Unknown desc = failed to pull and unpack image \"{image}:v0.6.4\": failed to resolve reference \
         \"{image}:v0.6.4\": failed to do request: Head \"https://registry.example.org/v2/kubernetes/metrics-server/manifests/v0.6.4\": \
         dial tcp: lookup registry.example.org on 10.77.0.1:53: read udp 10.77.0.31:43412->10.77.0.1:53: read: connection refused"
    );
    let one = json!({"phase": "Pending", "containerStatuses": [{"state": {"waiting": {"reason": "ErrImagePull", "message": message}}}]});
    let found = asked(&[(DEPLOYMENT, deployment(0, 0)), (PODS, json!({"items": [pod(&one)]}))]).await;
    assert_eq!(found, Err(format!("deployment kube-system/dns: 0 of 2 pods are available: pod dns-x: ErrImagePull: {message}")));
}

#[tokio::test]
async fn a_pod_that_does_not_run_is_named_with_its_reason() {
    let waiting = |reason: &str, message: &str| json!([{"state": {"waiting": {"reason": reason, "message": message}}}]);
    let unschedulable = json!({"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
        "message": "0/1 nodes are available: 1 node(s) were unschedulable."}]});
    let ready = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]});
    for (pods, expected) in [
        (
            vec![unschedulable.clone()],
            "pod dns-x is Pending: Unschedulable: 0/1 nodes are available: 1 node(s) were unschedulable.",
        ),
        (
            vec![
                json!({"phase": "Pending", "containerStatuses": waiting("ImagePullBackOff", "Back-off pulling image \"a/dns:9\"")}),
            ],
            "pod dns-x: ImagePullBackOff: Back-off pulling image \"a/dns:9\"",
        ),
        (
            vec![
                unschedulable,
                json!({"phase": "Running", "containerStatuses": waiting("CrashLoopBackOff", "back-off 10s")}),
                ready,
            ],
            "pod dns-x: CrashLoopBackOff: back-off 10s",
        ),
        (
            vec![
                json!({"phase": "Pending", "initContainerStatuses": waiting("CreateContainerConfigError", "secret \"x\" not found")}),
            ],
            "pod dns-x: CreateContainerConfigError: secret \"x\" not found",
        ),
        (
            vec![json!({"phase": "Pending", "containerStatuses": waiting("ContainerCreating", "")})],
            "pod dns-x on worker-0: its containers are being made; a node makes none without a pod network or its sandbox image",
        ),
        (vec![json!({"phase": "Running"})], "pod dns-x on worker-0: it runs and is not ready"),
    ] {
        let pods: Vec<Value> = pods.iter().map(pod).collect();
        let found = asked(&[(DEPLOYMENT, deployment(1, 1)), (PODS, json!({"items": pods}))]).await;
        assert_eq!(found, Err(format!("deployment kube-system/dns: 1 of 2 pods are available: {expected}")));
    }
    let mut refused = deployment(0, 0);
    refused["status"]["conditions"] =
        json!([{"type": "ReplicaFailure", "status": "True", "message": "pods \"dns-\" is forbidden: quota"}]);
    let found = asked(&[(DEPLOYMENT, refused)]).await;
    let expected =
        "deployment kube-system/dns: 0 of 2 pods are available: its pods cannot be made: pods \"dns-\" is forbidden: quota";
    assert_eq!(found, Err(expected.to_owned()));
}
