//! Against an API that merges as the real one does: lists with a merge key by that key, members one by one, anything else as a whole.

use std::sync::Arc;

use super::*;
use crate::clock::Clock;
use crate::files::Tree;
use crate::http::Tls;
use crate::http::fake::{Act, Fake, ok, status};

const NOW: Timestamp = Timestamp(1_772_366_400_000);
const KIND: &str = "HeatNodeComponentProblem";

fn condition(kind: &'static str, is_problem: bool, message: &str) -> NodeCondition {
    NodeCondition { kind, is_problem, reason: "Reason", message: message.to_owned() }
}

/// A registered node, as its kubelet and a cloud controller left it.
fn registered() -> Value {
    json!({"kind": "Node", "metadata": {"name": "n", "labels": {"a": "b"}}, "spec": {"podCIDR": "10.100.1.0/24"}, "status": {
    "nodeInfo": {"kubeletVersion": "v1.28.9"},
    "conditions": [
        {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastTransitionTime": "2026-01-01T00:00:00Z"},
        {"type": "NetworkUnavailable", "status": "False", "lastTransitionTime": "2026-01-01T00:00:00Z"},
    ]}})
}

/// Kubernetes' strategic merge of a node: `conditions` has the merge key `type` (API reference, core/v1 `NodeStatus`).
fn merge(into: &mut Value, patch: &Value) {
    let (Some(members), Some(changes)) = (into.as_object_mut(), patch.as_object()) else {
        *into = patch.clone();
        return;
    };
    for (key, change) in changes {
        match members.get_mut(key) {
            Some(Value::Array(list)) if key == "conditions" => {
                for one in change.as_array().unwrap() {
                    match list.iter_mut().find(|known| known["type"] == one["type"]) {
                        Some(known) => merge(known, one),
                        None => list.push(one.clone()),
                    }
                }
            }
            Some(member) => merge(member, change),
            None => drop(members.insert(key.clone(), change.clone())),
        }
    }
}

/// The API: its node, and what asks it.
struct Api {
    fake: Fake,
    http: Http,
    clock: Clock,
    _dir: tempfile::TempDir,
    node: Value,
}

impl Api {
    async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let clock = Clock::manual(NOW);
        let http = Http::new(Tls::default(), Arc::new(Tree::open(dir.path()).unwrap()), clock.clone());
        Self { fake: Fake::start(vec![ok("")]).await, http, clock, _dir: dir, node: registered() }
    }

    fn object(&self) -> NodeObject {
        NodeObject { url: format!("{}/api/v1/nodes/n", self.fake.base), identity: None }
    }

    /// Writes, and merges what came as the API does; with the answer to a question before it where one is expected.
    async fn write(&mut self, all: &[NodeCondition], known: Option<Transitions>) -> Result<Transitions> {
        let before = self.fake.requests().len();
        let asks = known.is_none();
        let answer = ok(self.node.to_string());
        self.fake.play(if asks { vec![answer, ok("{}")] } else { vec![ok("{}")] });
        let after = write(&self.http, &self.object(), all, known).await;
        let requests = self.fake.requests().split_off(before);
        assert_eq!(requests.len(), 1 + usize::from(asks), "{requests:?}");
        let (head, body) = requests.last().unwrap().split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("PATCH /api/v1/nodes/n/status HTTP/1.1\r\n"), "{head}");
        assert!(head.to_lowercase().contains("\r\ncontent-type: application/strategic-merge-patch+json"), "{head}");
        let patch: Value = json::typed(body).unwrap();
        assert_eq!(patch.as_object().unwrap().keys().collect::<Vec<_>>(), ["status"]);
        assert_eq!(patch["status"].as_object().unwrap().keys().collect::<Vec<_>>(), ["conditions"]);
        merge(&mut self.node, &patch);
        after
    }

    fn condition(&self, kind: &str) -> Value {
        let all = self.node["status"]["conditions"].as_array().unwrap();
        let mut found = all.iter().filter(|one| one["type"] == kind);
        let one = found.next().unwrap().clone();
        assert!(found.next().is_none(), "{kind} twice");
        one
    }
}

#[tokio::test]
async fn conditions_are_written_beside_those_of_the_kubelet_and_nothing_else_of_the_node_is_touched() {
    let mut api = Api::start().await;
    let before = api.node.clone();
    let all = [condition(KIND, true, "kubelet crash-looping"), condition("HeatNodeDriftProblem", false, "none")];
    api.write(&all, None).await.unwrap();
    assert_eq!(
        api.condition(KIND),
        json!({"type": KIND, "status": "True", "reason": "Reason", "message": "kubelet crash-looping",
            "lastHeartbeatTime": "2026-03-01T12:00:00Z", "lastTransitionTime": "2026-03-01T12:00:00Z"})
    );
    assert_eq!(api.condition("HeatNodeDriftProblem")["status"], "False");
    for kind in ["Ready", "NetworkUnavailable"] {
        let old = before["status"]["conditions"].as_array().unwrap().iter().find(|one| one["type"] == kind).unwrap();
        assert_eq!(api.condition(kind), *old);
    }
    assert_eq!(api.node["status"]["conditions"].as_array().unwrap().len(), 4);
    assert_eq!((&api.node["spec"], &api.node["metadata"]), (&before["spec"], &before["metadata"]));
    assert_eq!(api.node["status"]["nodeInfo"], before["status"]["nodeInfo"]);
}

#[tokio::test]
async fn a_transition_is_a_change_of_the_status_alone_and_outlives_a_restart() {
    let mut api = Api::start().await;
    let known = api.write(&[condition(KIND, true, "one")], None).await.unwrap();
    api.clock.advance(Duration::from_mins(5));
    let known = api.write(&[condition(KIND, true, "another")], Some(known)).await.unwrap();
    let times = |api: &Api| {
        let one = api.condition(KIND);
        (one["lastHeartbeatTime"].as_str().unwrap().to_owned(), one["lastTransitionTime"].as_str().unwrap().to_owned())
    };
    let at = |beat: &str, turn: &str| (beat.to_owned(), turn.to_owned());
    assert_eq!(times(&api), at("2026-03-01T12:05:00Z", "2026-03-01T12:00:00Z"));
    // A restart: the API says since when.
    api.clock.advance(Duration::from_mins(5));
    let restarted = api.write(&[condition(KIND, true, "another")], None).await.unwrap();
    assert_eq!(times(&api), at("2026-03-01T12:10:00Z", "2026-03-01T12:00:00Z"));
    assert_eq!(restarted.0.get(KIND), known.0.get(KIND));
    api.clock.advance(Duration::from_mins(5));
    api.write(&[condition(KIND, false, "none")], Some(restarted)).await.unwrap();
    assert_eq!(times(&api), at("2026-03-01T12:15:00Z", "2026-03-01T12:15:00Z"));
    // What changed while the agent was off changed now.
    api.clock.advance(Duration::from_mins(5));
    api.write(&[condition(KIND, true, "again")], None).await.unwrap();
    assert_eq!(times(&api), at("2026-03-01T12:20:00Z", "2026-03-01T12:20:00Z"));
}

#[test]
fn what_the_api_has_that_is_no_condition_of_ours_is_passed_over() {
    let odd = json!({"status": {"conditions": [{"type": KIND, "status": "Unknown", "lastTransitionTime": "2026-01-01T00:00:00Z"},
        {"type": "A", "status": "True", "lastTransitionTime": null}, {"status": "True"}, 3, null]}});
    assert_eq!(Transitions::of_node(&odd), Transitions::default());
    for no in [json!(null), json!({"status": {"conditions": {}}}), json!([])] {
        assert_eq!(Transitions::of_node(&no), Transitions::default());
    }
}

#[tokio::test]
async fn a_refusal_says_what_the_api_says_and_which_rule_it_is() {
    let api = Api::start().await;
    let reported = r#"{"kind": "Status", "message": "nodes \"n\" is forbidden:\u0007 node \"m\" is not allowed\nmore"}"#;
    for (act, kind, answered, words) in [
        (status("403 Forbidden", reported), ErrorKind::Permanent, Some(403), "403 to GET: nodes \"n\" is forbidden:"),
        (status("401 Unauthorized", "Unauthorized"), ErrorKind::Permanent, Some(401), "401 to GET: no details"),
        (status("404 Not Found", "{}"), ErrorKind::Transient, Some(404), "404"),
        (status("503 Service Unavailable", "{}"), ErrorKind::Transient, Some(503), "503"),
        (status("302 Found", ""), ErrorKind::Permanent, Some(302), "302"),
        (ok("no JSON"), ErrorKind::Transient, None, "not JSON"),
        (Act::Close, ErrorKind::Transient, None, "writing conditions"),
    ] {
        api.fake.play(vec![act]);
        let error = write(&api.http, &api.object(), &[condition(KIND, true, "x")], None).await.unwrap_err();
        assert_eq!((error.kind(), error.answered()), (kind, answered), "{error}");
        assert!(error.to_string().contains(words) && !error.to_string().contains(['\u{7}', '\n']), "{error}");
        assert_eq!(answered.is_some(), error.broken_rule().is_some_and(|rule| rule.contains("NodeRestriction")), "{error}");
    }
    // What has no end is not read to its end.
    api.fake.play(vec![Act::Endless(b"HTTP/1.1 200 OK\r\n\r\n".to_vec(), b'x')]);
    assert!(write(&api.http, &api.object(), &[condition(KIND, true, "x")], None).await.is_err());
    assert!(api.fake.bytes_sent() < 64 * ANSWER_LIMIT);
}
