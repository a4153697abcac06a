//! Empties the node of pods before its runtime restarts, as `kubectl drain` does, by the Eviction API; and has it take pods again.
//!
//! In: the node's object, and as whom its kubelet asks. Out: which pods are left, and why. Never: a pod of a DaemonSet, a mirror pod, or one
//! that no controller makes anew; a pod that is deleted past its PodDisruptionBudget. Node authorizer and `NodeRestriction` let a kubelet list
//! the pods of its own node, evict them, and change that node but for its taints and some labels (Kubernetes' sources,
//! plugin/pkg/admission/noderestriction, `admitPodEviction` and `admitNode`).

use std::time::Duration;

use serde_json::{Value, json};

use super::api;
use super::node_conditions::{NodeObject, PATCH};
use super::objects::{error_message, until_deadline};
use crate::budgets::json;
use crate::clock::patience;
use crate::concurrent;
use crate::error::{Context, Error, ErrorKind, Result};
use crate::http::{Http, Response};

/// An API that does not answer one request for so long is away.
const LIMIT: Duration = patience(Duration::from_secs(10));
const DOING: &str = "draining this node";
/// Between two looks at the pods that are left: as kubectl has it for an eviction that a budget holds up.
const PAUSE: Duration = Duration::from_secs(5);
/// Pods in one answer of the API, which may be large, and pods that are evicted side by side.
const CHUNK: usize = 10;
/// What is read of a pod is its metadata: an API since 1.15 sends no more.
const METADATA: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";
/// The first minor with an Eviction of policy/v1.
const FIRST_STABLE: u16 = 22;

/// A pod that is to go.
struct Pod {
    namespace: String,
    name: String,
    is_leaving: bool,
}

impl Pod {
    /// Nothing of one that stays.
    fn of(pod: &Value) -> Option<Self> {
        let metadata = pod.get("metadata")?;
        let text = |key: &str| metadata.get(key)?.as_str().map(str::to_owned);
        let is_mirror = metadata.pointer("/annotations/kubernetes.io~1config.mirror").is_some();
        let owners = metadata.get("ownerReferences").and_then(Value::as_array);
        let controller = owners.into_iter().flatten().find(|owner| owner.get("controller") == Some(&Value::Bool(true)))?;
        let is_daemon = controller.get("kind").and_then(Value::as_str) == Some("DaemonSet");
        let is_leaving = metadata.get("deletionTimestamp").is_some();
        (!is_mirror && !is_daemon).then_some(Self { namespace: text("namespace")?, name: text("name")?, is_leaving })
    }
}

/// A node that is drained.
pub(crate) struct Drain<'a> {
    http: Http,
    node: &'a NodeObject,
    /// The API, and the node's name there.
    server: &'a str,
    name: &'a str,
}

impl<'a> Drain<'a> {
    /// As the kubelet, by the certificate that it has now.
    pub(crate) fn of(http: &Http, node: &'a NodeObject) -> Self {
        let (server, name) = node.url.rsplit_once("/api/v1/nodes/").unwrap_or((&node.url, ""));
        Self { http: http.identified_by(node.identity.as_ref()), node, server, name }
    }

    /// Whether pods are kept off the node; nothing where the API does not have the node.
    ///
    /// # Errors
    /// If the API does not say.
    pub(crate) async fn is_cordoned(&self, limit: Duration) -> Result<Option<bool>> {
        let read = async |limit| {
            let answer = self.send("GET", &self.node.url, None, limit).await?;
            match answer.status {
                200 => Ok(Some(read(&answer)?.pointer("/spec/unschedulable") == Some(&Value::Bool(true)))),
                404 => Ok(None),
                _ => Err(refusal("GET", &answer)),
            }
        };
        until_deadline(&self.http, limit, read, &|_, _, _| {}).await
    }

    /// Keeps pods off the node, or has it take them again.
    ///
    /// # Errors
    /// If the API refuses that, or is away for so long.
    pub(crate) async fn cordon(&self, cordoned: bool, limit: Duration) -> Result<()> {
        // As kubectl does: what is false is not there.
        let patch = json!({"spec": {"unschedulable": cordoned.then_some(true)}});
        let write = async |limit| {
            let answer = self.send("PATCH", &self.node.url, Some(&patch), limit).await?;
            if answer.status == 200 { Ok(()) } else { Err(refusal("PATCH", &answer)) }
        };
        until_deadline(&self.http, limit, write, &|_, _, _| {}).await
    }

    /// Evicts the node's pods and waits until they are gone; those that are left after `limit`, each with the reason.
    ///
    /// # Errors
    /// If the API refuses evictions at all, or is away for so long.
    pub(crate) async fn evict(&self, minor: u16, limit: Duration) -> Result<Vec<String>> {
        let running = self.http.clock().start();
        loop {
            let left = limit.saturating_sub(running.elapsed());
            let list = async |_| self.pods(limit.saturating_sub(running.elapsed())).await;
            let pods = until_deadline(&self.http, left, list, &|_, _, _| {}).await?;
            let mut remaining = Vec::new();
            for some in pods.chunks(CHUNK) {
                // Each may take as long as the API is given for an answer.
                let left = limit.saturating_sub(running.elapsed());
                let evictions = concurrent::all(some.iter().map(|pod| self.evict_one(pod, minor, left))).await;
                for (Pod { namespace, name, .. }, why) in some.iter().zip(evictions) {
                    remaining.push(format!("{namespace}/{name}: {}", why?.as_deref().unwrap_or("it is ending")));
                }
            }
            if remaining.is_empty() || running.elapsed() + PAUSE >= limit {
                return Ok(remaining);
            }
            self.http.clock().wait(PAUSE).await;
        }
    }

    /// The pods that are to go; `limit`: for all pages of the list.
    async fn pods(&self, limit: Duration) -> Result<Vec<Pod>> {
        let running = self.http.clock().start();
        let (mut pods, mut next) = (Vec::new(), String::new());
        loop {
            let left = limit.saturating_sub(running.elapsed());
            let url = format!("{}/api/v1/pods?fieldSelector=spec.nodeName%3D{}&limit={CHUNK}{next}", self.server, self.name);
            let answer = self.send("GET", &url, None, left).await?;
            if answer.status != 200 {
                return Err(refusal("GET", &answer));
            }
            let list = read(&answer)?;
            let items = list.get("items").and_then(Value::as_array);
            pods.extend(items.into_iter().flatten().filter_map(Pod::of));
            match list.pointer("/metadata/continue").and_then(Value::as_str) {
                Some(token) if !token.is_empty() => next = format!("&continue={token}"),
                _ => return Ok(pods),
            }
        }
    }

    /// Why a pod is not evicted yet; nothing where it is.
    async fn evict_one(&self, pod: &Pod, minor: u16, limit: Duration) -> Result<Option<String>> {
        let Pod { namespace, name, is_leaving } = pod;
        if *is_leaving || limit.is_zero() {
            return Ok((!is_leaving).then(|| "there was no time to evict it".to_owned()));
        }
        let url = format!("{}/api/v1/namespaces/{namespace}/pods/{name}/eviction", self.server);
        let version = if minor < FIRST_STABLE { "policy/v1beta1" } else { "policy/v1" };
        let body = json!({"apiVersion": version, "kind": "Eviction", "metadata": {"name": name, "namespace": namespace}});
        let answer = match self.send("POST", &url, Some(&body), limit).await {
            Ok(answer) => answer,
            Err(error) if error.kind() == ErrorKind::Transient => return Ok(Some(error.cause_first())),
            Err(error) => return Err(error),
        };
        match answer.status {
            200 | 201 | 404 => Ok(None),
            // A budget, or one of those that contradict each other.
            429 | 500.. => Ok(Some(error_message(&answer))),
            _ => Err(refusal("POST", &answer)),
        }
    }

    async fn send(&self, method: &str, url: &str, body: Option<&Value>, limit: Duration) -> Result<Response> {
        let accept = if method == "GET" && url.contains('?') { METADATA } else { api::JSON };
        let kind = if method == "PATCH" { PATCH } else { api::JSON };
        let request = api::request((method, url), accept, body.map(|body| (kind, body)), limit.min(LIMIT));
        self.http.request(request).await.context(|| DOING)
    }
}

fn read(answer: &Response) -> Result<Value> {
    json::answer(&answer.body).map_err(|rejection| Error::from(rejection).context(DOING))
}

fn refusal(method: &str, answer: &Response) -> Error {
    let kind = if matches!(answer.status, 408 | 429 | 500..) { ErrorKind::Transient } else { ErrorKind::Permanent };
    Error::new(kind, format!("the API answered {} to {method}: {}", answer.status, error_message(answer)))
        .rule("Kubernetes: Node authorization and NodeRestriction, nodes and pods/eviction")
        .retry_after(answer.retry_after())
        .context(DOING)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::clock::{Clock, Timestamp};
    use crate::files::Tree;
    use crate::http::Tls;
    use crate::http::fake::{Act, Fake, ok, status};

    const LONG: Duration = Duration::from_mins(1);

    struct Api {
        fake: Fake,
        http: Http,
        _dir: tempfile::TempDir,
    }

    impl Api {
        async fn start(script: Vec<Act>) -> Self {
            let dir = tempfile::tempdir().unwrap();
            let clock = Clock::manual(Timestamp(1_772_366_400_000));
            let http = Http::new(Tls::default(), Arc::new(Tree::open(dir.path()).unwrap()), clock);
            Self { fake: Fake::start(script).await, http, _dir: dir }
        }

        fn node(&self) -> NodeObject {
            NodeObject { url: format!("{}/api/v1/nodes/n", self.fake.base), identity: None }
        }

        /// What was asked for, each with its body.
        fn asked(&self) -> Vec<(String, String)> {
            let all = self.fake.requests();
            let parts = all.iter().map(|request| request.split_once("\r\n\r\n").unwrap());
            parts.map(|(head, body)| (head.split(" HTTP/").next().unwrap().to_owned(), body.to_owned())).collect()
        }
    }

    fn pod(name: &str, more: &Value) -> Value {
        let mut metadata = json!({"name": name, "namespace": "web",
            "ownerReferences": [{"kind": "ReplicaSet", "name": "r", "controller": true}]});
        metadata.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"metadata": metadata})
    }

    fn list(pods: &[Value], next: &str) -> Act {
        ok(json!({"kind": "PodList", "metadata": {"continue": next}, "items": pods}).to_string())
    }

    fn refused(line: &'static str, why: &str) -> Act {
        status(line, json!({"kind": "Status", "message": why}).to_string())
    }

    #[tokio::test]
    async fn pods_that_a_controller_makes_anew_are_evicted_and_no_others() {
        let stay = [
            pod("daemon", &json!({"ownerReferences": [{"kind": "DaemonSet", "controller": true}]})),
            pod(
                "static",
                &json!({"annotations": {"kubernetes.io/config.mirror": "x"},
                "ownerReferences": [{"kind": "Node", "controller": true}]}),
            ),
            pod("bare", &json!({"ownerReferences": []})),
        ];
        let (first, last) = (pod("a", &json!({})), pod("b", &json!({})));
        let ending = pod("b", &json!({"deletionTimestamp": "2026-03-01T12:00:00Z"}));
        for (minor, version) in [(21, "policy/v1beta1"), (22, "policy/v1")] {
            let script = vec![
                list(&[&stay[..], std::slice::from_ref(&first)].concat(), "next="),
                list(std::slice::from_ref(&last), ""),
                status("201 Created", "{}"),
                refused("404 Not Found", "gone"),
                list(std::slice::from_ref(&ending), ""),
                list(&stay, ""),
            ];
            let api = Api::start(script).await;
            let left = Drain::of(&api.http, &api.node()).evict(minor, LONG).await.unwrap();
            assert!(left.is_empty(), "{left:?}");
            let asked = api.asked();
            let pods = "GET /api/v1/pods?fieldSelector=spec.nodeName%3Dn&limit=10";
            let evict = |name: &str| format!("POST /api/v1/namespaces/web/pods/{name}/eviction");
            let lines: Vec<&str> = asked.iter().map(|(line, _)| line.as_str()).collect();
            assert_eq!(lines, [pods, &format!("{pods}&continue=next="), &evict("a"), &evict("b"), pods, pods]);
            let body: Value = json::typed(&asked[2].1).unwrap();
            let metadata = json!({"name": "a", "namespace": "web"});
            assert_eq!(body, json!({"apiVersion": version, "kind": "Eviction", "metadata": metadata}));
        }
    }

    #[tokio::test]
    async fn a_budget_is_respected_for_as_long_as_there_is_time_and_then_said() {
        let budget = || refused("429 Too Many Requests", "Cannot evict pod as it would violate the pod's disruption budget.");
        let one = || list(&[pod("a", &json!({}))], "");
        let api = Api::start(vec![one(), budget(), one(), budget(), one(), status("201 Created", "{}"), list(&[], "")]).await;
        assert!(Drain::of(&api.http, &api.node()).evict(22, LONG).await.unwrap().is_empty());
        let api = Api::start(vec![one(), budget(), one(), budget(), one(), budget()]).await;
        let left = Drain::of(&api.http, &api.node()).evict(22, PAUSE * 3).await.unwrap();
        assert_eq!(left, ["web/a: Cannot evict pod as it would violate the pod's disruption budget."]);
        assert_eq!(api.asked().len(), 6);
    }

    /// Attack: a webhook that hung held each pod up for ten seconds, one after the other, and the update beyond its time.
    #[tokio::test]
    async fn an_api_that_does_not_answer_takes_no_longer_than_there_is_time() {
        let pods: Vec<_> = (0..25).map(|n| pod(&format!("p{n}"), &json!({}))).collect();
        let api = Api::start(vec![list(&pods, ""), Act::Slow(Duration::from_hours(1), Box::new(Act::Close))]).await;
        let node = api.node();
        let passes = async {
            // Ten evictions side by side have ten seconds, and the next ten what is left of the fifteen.
            for (asked, passed) in [(11, LIMIT), (21, LIMIT / 2)] {
                while api.asked().len() < asked {
                    tokio::task::yield_now().await;
                }
                api.http.clock().advance(passed);
                tokio::time::pause();
                tokio::time::advance(passed).await;
                tokio::time::resume();
            }
        };
        let drain = Drain::of(&api.http, &node);
        let (left, ()) = tokio::join!(drain.evict(22, LIMIT * 3 / 2), passes);
        let left = left.unwrap();
        assert!(left[0].contains("no answer from") && left[19].contains("no answer from"), "{left:?}");
        assert_eq!((left.len(), &*left[24]), (25, "web/p24: there was no time to evict it"));
        assert_eq!(api.asked().len(), 21);
    }

    /// Attack: a list in many pages, of which each took a while, held the update up beyond its time.
    #[tokio::test]
    async fn a_list_that_comes_slowly_takes_no_longer_than_there_is_time() {
        // So that the clock's steps are not behind the requests.
        let page = || Act::Slow(Duration::from_millis(50), Box::new(list(&[pod("p", &json!({}))], "more")));
        let api = Api::start((0..20).map(|_| page()).chain([Act::Close]).collect()).await;
        let node = api.node();
        let passes = async {
            for asked in 1..=2 {
                while api.asked().len() < asked {
                    tokio::task::yield_now().await;
                }
                api.http.clock().advance(LIMIT / 2);
            }
        };
        let drain = Drain::of(&api.http, &node);
        let (left, ()) = tokio::join!(drain.evict(22, LIMIT * 4 / 5), passes);
        assert!(left.is_err());
        assert!(api.asked().len() < 10, "{:?}", api.asked());
    }

    #[tokio::test]
    async fn what_the_api_does_not_allow_ends_it_at_once() {
        let api = Api::start(vec![list(&[pod("a", &json!({}))], ""), refused("403 Forbidden", "no")]).await;
        let error = Drain::of(&api.http, &api.node()).evict(22, LONG).await.unwrap_err();
        assert!(error.to_string().contains("the API answered 403 to POST: no"), "{error}");
        let api = Api::start(vec![refused("403 Forbidden", "no")]).await;
        let error = Drain::of(&api.http, &api.node()).cordon(true, LONG).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Permanent);
    }

    #[tokio::test]
    async fn a_node_is_kept_free_and_takes_pods_again() {
        let node = |spec: Value| ok(json!({"kind": "Node", "spec": spec}).to_string());
        let script = vec![
            node(json!({})),
            node(json!({"unschedulable": true})),
            refused("404 Not Found", "no node"),
            refused("503 Service Unavailable", "soon"),
            ok("{}"),
            ok("{}"),
        ];
        let api = Api::start(script).await;
        let object = api.node();
        let drain = Drain::of(&api.http, &object);
        for expected in [Some(false), Some(true), None] {
            assert_eq!(drain.is_cordoned(LONG).await.unwrap(), expected);
        }
        drain.cordon(true, LONG).await.unwrap();
        drain.cordon(false, LONG).await.unwrap();
        let asked = api.asked().split_off(3);
        let patch = |value: &str| ("PATCH /api/v1/nodes/n".to_owned(), format!(r#"{{"spec":{{"unschedulable":{value}}}}}"#));
        assert_eq!(asked, [patch("true"), patch("true"), patch("null")]);
    }
}
