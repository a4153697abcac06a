//! Objects at a scripted API server.

use std::path::Path;
use std::sync::Arc;

use serde_json::json;

use super::*;
use crate::clock::Clock;
use crate::desired::{ClientIdentity, Material};
use crate::files::{Attributes, Tree};
use crate::http::Tls;
use crate::http::fake::{Act, Fake, TestCa, ok, status};

const DEADLINE: Duration = Duration::from_mins(5);
const PATH: &str = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";

fn binding() -> Value {
    json!({
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "heat-node-agent:x"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "r"},
        "subjects": [{"kind": "Group", "name": "g"}],
    })
}

/// The same as the API keeps it, changed at these places.
fn kept(changes: &[(&str, Value)]) -> Value {
    let mut all = binding();
    all["metadata"]["resourceVersion"] = json!("7");
    all["metadata"]["labels"] = json!({"theirs": "1"});
    all["subjects"][0]["apiGroup"] = json!("rbac.authorization.k8s.io");
    for (pointer, value) in changes {
        *all.pointer_mut(pointer).unwrap() = value.clone();
    }
    all
}

fn answer(line: &'static str, body: &Value) -> Act {
    status(line, body.to_string())
}

/// As the API answers where something failed.
fn refused(line: &'static str, message: &str) -> Act {
    answer(line, &json!({"kind": "Status", "status": "Failure", "message": message}))
}

fn absent() -> Act {
    refused("404 Not Found", "clusterrolebindings \"heat-node-agent:x\" not found")
}

/// A master with its own certificate.
struct Master {
    _dir: tempfile::TempDir,
    ca: TestCa,
    clock: Clock,
    http: Http,
}

impl Master {
    fn new(clock: Clock) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let root = Arc::new(Tree::open(dir.path()).unwrap());
        let ca = TestCa::new("blue");
        let (certificate, key) = ca.client("admin");
        for (path, text) in [("/admin.crt", certificate), ("/admin.key", key), ("/ca.crt", ca.pem())] {
            root.write(Path::new(path), text.as_bytes(), Attributes::mode(0o600)).unwrap();
        }
        Self { _dir: dir, ca, http: Http::new(Tls::default(), root, clock.clone()), clock }
    }

    async fn serve(&self, script: Vec<Act>) -> Fake {
        Fake::start_tls(script, self.ca.identity_for_clients_of(&self.ca)).await
    }

    async fn ensure(&self, server: &Fake, body: &Value) -> Result<bool> {
        self.ensure_after(server, body, None).await
    }

    async fn ensure_after(&self, server: &Fake, body: &Value, before: Option<&Value>) -> Result<bool> {
        let [certificate, key, ca] = ["/admin.crt", "/admin.key", "/ca.crt"].map(str::to_owned);
        let object = Object {
            name: "clusterrolebinding heat-node-agent:x".to_owned(),
            server: server.base.clone(),
            collection: PATH.to_owned(),
            object: "heat-node-agent:x".to_owned(),
            body: Material::Text(body.to_string()),
            identity: Some(ClientIdentity { certificate, key, ca }),
            before: before.map(Value::to_string),
            needs: std::collections::BTreeSet::new(),
        };
        ensure(&self.http, &object, DEADLINE).await
    }
}

/// Method and path of each request.
fn lines(server: &Fake) -> Vec<String> {
    server.requests().iter().map(|request| request.split(" HTTP").next().unwrap().replace(PATH, "…")).collect()
}

fn body(server: &Fake, index: usize) -> Value {
    json::typed(server.requests()[index].split_once("\r\n\r\n").unwrap().1).unwrap()
}

#[tokio::test]
async fn what_is_absent_is_made_and_what_is_right_is_left_alone() {
    let master = Master::new(Clock::system());
    let kept = kept(&[]);
    let server = master.serve(vec![absent(), answer("201 Created", &kept), ok(kept.to_string())]).await;
    assert!(master.ensure(&server, &binding()).await.unwrap());
    assert!(!master.ensure(&server, &binding()).await.unwrap());
    assert_eq!(lines(&server), ["GET …/heat-node-agent:x", "POST …", "GET …/heat-node-agent:x"]);
    assert_eq!(body(&server, 1), binding());
}

#[tokio::test]
async fn what_differs_is_put_right_and_what_others_added_stays() {
    let master = Master::new(Clock::system());
    for (pointer, value) in [
        ("/subjects/0/name", json!("somebody")),
        ("/subjects", json!([])),
        ("/subjects", json!([{"kind": "Group", "name": "g"}, {"kind": "User", "name": "u"}])),
        ("/subjects", json!(null)),
    ] {
        let found = kept(&[(pointer, value.clone())]);
        let server = master.serve(vec![ok(found.to_string()), ok("{}")]).await;
        assert!(master.ensure(&server, &binding()).await.unwrap(), "{pointer} {value}");
        assert_eq!(lines(&server)[1], "PUT …/heat-node-agent:x");
        let sent = body(&server, 1);
        assert_eq!(sent["metadata"], kept(&[])["metadata"], "the version that was seen, and others' labels");
        assert_eq!(sent["subjects"], binding()["subjects"]);
    }
}

/// The node's own object: its labels, taints and annotations, and its version.
fn node(labels: &Value, taints: &Value, notes: &Value) -> Value {
    json!({"kind": "Node", "metadata": {"labels": labels, "annotations": notes, "resourceVersion": "7"}, "spec": {"taints": taints}})
}

#[tokio::test]
async fn of_a_node_only_the_agents_own_labels_and_taints_are_removed() {
    let master = Master::new(Clock::system());
    let taint = |key: &str, value: Option<&str>| match value {
        Some(value) => json!({"key": key, "value": value, "effect": "NoSchedule"}),
        None => json!({"key": key, "effect": "NoSchedule"}),
    };
    let foreign = json!({"key": "node.kubernetes.io/unreachable", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"});
    let own = |labels: &str, taints: &str| json!({"heat-node-agent/labels": labels, "heat-node-agent/taints": taints});
    let wanted = |labels: &Value, taints: &[Value], notes: &Value| {
        let mut node = json!({"kind": "Node", "metadata": {"annotations": notes, "labels": labels}});
        if !taints.is_empty() {
            node["spec"] = json!({"taints": taints});
        }
        node
    };
    let theirs = json!({"volumes": "1"});
    for (what, found, wanted, expected) in [
        (
            "a label changes, one goes, and others' stay",
            node(&json!({"a": "1", "b": "1", "theirs": "1"}), &json!([foreign]), &own("a,b", "")),
            wanted(&json!({"a": "2"}), &[], &own("a", "")),
            Some(node(&json!({"a": "2", "theirs": "1"}), &json!([foreign]), &json!({"heat-node-agent/labels": "a"}))),
        ),
        (
            "the last goes, and the annotations with it",
            node(&json!({"b": "1"}), &json!([taint("x", None), foreign]), &own("b", "x:NoSchedule")),
            wanted(&json!({}), &[], &own("", "")),
            Some(node(&json!({}), &json!([foreign]), &json!({}))),
        ),
        (
            "a taint comes, one changes, one goes",
            node(
                &json!({}),
                &json!([taint("x", Some("1")), foreign, taint("y", Some("1"))]),
                &own("", "x:NoSchedule,y:NoSchedule"),
            ),
            wanted(&json!({}), &[taint("x", None), taint("z", None)], &own("", "x:NoSchedule,z:NoSchedule")),
            Some(node(
                &json!({}),
                &json!([foreign, taint("x", None), taint("z", None)]),
                &json!({"heat-node-agent/taints": "x:NoSchedule,z:NoSchedule"}),
            )),
        ),
        (
            "a value alone",
            node(&json!({}), &json!([taint("x", Some("1"))]), &json!({"heat-node-agent/taints": "x:NoSchedule"})),
            wanted(&json!({}), &[taint("x", None)], &own("", "x:NoSchedule")),
            Some(node(&json!({}), &json!([taint("x", None)]), &json!({"heat-node-agent/taints": "x:NoSchedule"}))),
        ),
        (
            "all is as it should be, in whatever order",
            node(
                &json!({"a": "1"}),
                &json!([foreign, taint("y", Some("")), taint("x", None)]),
                &own("a", "x:NoSchedule,y:NoSchedule"),
            ),
            wanted(&json!({"a": "1"}), &[taint("x", None), taint("y", None)], &own("a", "x:NoSchedule,y:NoSchedule")),
            None,
        ),
        (
            "nothing is asked for",
            node(&json!({"a": "1"}), &json!([foreign]), &theirs),
            wanted(&json!({}), &[], &own("", "")),
            None,
        ),
    ] {
        let server = master.serve(vec![ok(found.to_string()), ok("{}")]).await;
        assert_eq!(master.ensure(&server, &wanted).await.unwrap(), expected.is_some(), "{what}");
        if let Some(expected) = expected {
            assert_eq!(body(&server, 1), expected, "{what}");
        }
    }
}

/// Attack: a kubelet that registers its node anew gives the labels of its parameters, but no annotations; those that left the parameters stayed.
#[tokio::test]
async fn of_a_node_that_was_registered_anew_what_the_parameters_gave_before_is_removed() {
    let master = Master::new(Clock::system());
    let taint = |key: &str| json!({"key": key, "effect": "NoSchedule"});
    let own = |labels: &str, taints: &str| json!({"heat-node-agent/labels": labels, "heat-node-agent/taints": taints});
    let wanted = json!({"kind": "Node", "metadata": {"labels": {"a": "1"}, "annotations": own("a", "")}});
    let before = json!({"kind": "Node", "metadata": {"labels": {"a": "1", "b": "1"}, "annotations": own("a,b", "x:NoSchedule")}});
    let labels = json!({"a": "1", "b": "1", "theirs": "1"});
    for (notes, after) in [
        (json!({}), node(&json!({"a": "1", "theirs": "1"}), &json!([taint("y")]), &json!({"heat-node-agent/labels": "a"}))),
        // Where the annotations are there they count: `b` is somebody else's meanwhile.
        (own("a", "x:NoSchedule"), node(&labels, &json!([taint("y")]), &json!({"heat-node-agent/labels": "a"}))),
    ] {
        let found = node(&labels, &json!([taint("x"), taint("y")]), &notes);
        let server = master.serve(vec![ok(found.to_string()), ok("{}")]).await;
        assert!(master.ensure_after(&server, &wanted, Some(&before)).await.unwrap());
        assert_eq!(body(&server, 1), after, "{notes}");
    }
}

/// A node without a kubelet would be kept for one that takes pods.
#[tokio::test]
async fn a_node_that_is_gone_is_not_made_but_waited_for() {
    let master = Master::new(Clock::system());
    let wanted = json!({"kind": "Node", "metadata": {"annotations": {"heat-node-agent/labels": "a"}, "labels": {"a": "1"}}});
    let found = node(&json!({"a": "1"}), &json!([]), &json!({"heat-node-agent/labels": "a"}));
    let server = master.serve(vec![absent(), ok(found.to_string())]).await;
    assert!(!master.ensure(&server, &wanted).await.unwrap());
    assert_eq!(lines(&server), ["GET …/heat-node-agent:x"; 2]);
}

/// `0.1` of a CPU is `100m` to the API: it is written again and again, and nothing changes.
#[tokio::test]
async fn what_the_api_writes_in_another_way_is_no_change() {
    let master = Master::new(Clock::system());
    let found = kept(&[("/subjects/0/name", json!("G"))]);
    let server = master.serve(vec![ok(found.to_string()), ok(found.to_string())]).await;
    assert!(!master.ensure(&server, &binding()).await.unwrap());
    assert_eq!(lines(&server)[1], "PUT …/heat-node-agent:x");
    let changed = kept(&[("/metadata/resourceVersion", json!("8"))]);
    let server = master.serve(vec![ok(found.to_string()), ok(changed.to_string())]).await;
    assert!(master.ensure(&server, &binding()).await.unwrap());
}

#[tokio::test]
async fn a_service_account_that_is_not_there_yet_is_waited_for() {
    let master = Master::new(Clock::manual(crate::clock::Timestamp(0)));
    let early = refused("403 Forbidden", "error looking up service account dns/default: serviceaccount \"default\" not found");
    let server = master.serve(vec![absent(), early, absent(), answer("201 Created", &kept(&[]))]).await;
    assert!(master.ensure(&server, &binding()).await.unwrap());
}

#[test]
fn an_object_is_named_as_kubectl_takes_it() {
    let of = |name: &str, collection: &str, object: &str| {
        deletion(&Object {
            name: name.into(),
            server: String::new(),
            collection: collection.into(),
            object: object.into(),
            body: Material::Text(String::new()),
            identity: None,
            before: None,
            needs: std::collections::BTreeSet::new(),
        })
    };
    assert_eq!(of("clusterrole a:b", "/apis/rbac.authorization.k8s.io/v1/clusterroles", "a:b"), "clusterrole a:b");
    assert_eq!(of("deployment dns/a", "/apis/apps/v1/namespaces/dns/deployments", "a"), "-n dns deployment a");
    // A namespace is none in one.
    assert_eq!(of("namespace dns", "/api/v1/namespaces", "dns"), "namespace dns");
}

#[tokio::test]
async fn who_came_first_is_inspected_again() {
    let master = Master::new(Clock::system());
    let exists = || refused("409 Conflict", "clusterrolebindings \"heat-node-agent:x\" already exists");
    let server = master.serve(vec![absent(), exists(), ok(kept(&[]).to_string())]).await;
    assert!(!master.ensure(&server, &binding()).await.unwrap());
    let other = kept(&[("/subjects", json!([]))]);
    let script = vec![ok(other.to_string()), exists(), ok(other.to_string()), ok("{}")];
    let server = master.serve(script).await;
    assert!(master.ensure(&server, &binding()).await.unwrap());
    assert_eq!(lines(&server).len(), 4);
}

#[tokio::test]
async fn an_api_that_is_away_is_waited_for_until_the_deadline() {
    let master = Master::new(Clock::manual(crate::clock::Timestamp(0)));
    let busy = Act::Answer("503 Service Unavailable", vec!["Retry-After: 30".to_owned()], Vec::new());
    let no_namespace = refused("404 Not Found", "namespaces \"kube-system\" not found");
    let script =
        vec![Act::Close, busy.clone(), ok("<html>"), absent(), no_namespace, absent(), answer("201 Created", &kept(&[]))];
    let server = master.serve(script).await;
    let since = master.clock.start();
    assert!(master.ensure(&server, &binding()).await.unwrap());
    assert!(since.elapsed() > Duration::from_secs(30) && lines(&server).len() == 7, "{:?}", since.elapsed());
    let server = master.serve(vec![status("503 Service Unavailable", "")]).await;
    let since = master.clock.start();
    let error = master.ensure(&server, &binding()).await.unwrap_err();
    // The last try has but the seconds that are left, by the machine's clock, which may stand still as long.
    let reported = |words| error.cause().contains(words);
    assert!(error.kind() == ErrorKind::Transient && (reported("the API answered 503") || reported("no answer from")), "{error}");
    assert!(since.elapsed() <= DEADLINE && since.elapsed() + Duration::from_secs(6) > DEADLINE, "{:?}", since.elapsed());
}

#[tokio::test]
async fn what_is_refused_is_reported_once_with_what_to_do() {
    let master = Master::new(Clock::system());
    let other = ok(kept(&[("/roleRef/name", json!("another"))]).to_string());
    for (script, kind, words, remedy) in [
        (
            vec![refused("401 Unauthorized", "Unauthorized")],
            ErrorKind::Permanent,
            "inspecting clusterrolebinding heat-node-agent:x",
            "--client-ca-file",
        ),
        (
            vec![refused("403 Forbidden", "User \"admin\" cannot get")],
            ErrorKind::Permanent,
            "403: User \"admin\" cannot get",
            "RBAC does not allow this to the subject of /admin.crt",
        ),
        (
            vec![absent(), refused("403 Forbidden", "no")],
            ErrorKind::Permanent,
            "making clusterrolebinding heat-node-agent:x",
            "system:masters",
        ),
        (
            vec![other, refused("422 Unprocessable Entity", "roleRef: Invalid value: cannot change roleRef")],
            ErrorKind::Refused,
            "cannot change roleRef",
            "kubectl delete clusterrolebinding heat-node-agent:x",
        ),
        (vec![absent(), refused("400 Bad Request", "no kind")], ErrorKind::Permanent, "400: no kind", "this Kubernetes version"),
        (
            vec![absent(), refused("422 Unprocessable Entity", "data: bad aHVzaC1odXNoLW5vdw==")],
            ErrorKind::Permanent,
            "422: data: bad ******",
            "version",
        ),
        (
            // An admission webhook that decodes it.
            vec![absent(), refused("400 Bad Request", "admission webhook denied: the password hush-hush-now is too short")],
            ErrorKind::Permanent,
            "denied: the password ****** is too short",
            "version",
        ),
        (
            vec![absent(), refused("400 Bad Request", "illegal base64 data near aHVzaC1od")],
            ErrorKind::Permanent,
            "400: illegal base64 data near ******",
            "version",
        ),
        (
            // The words of 1.20, which quote what stands before the mistake.
            vec![
                absent(),
                refused(
                    "400 Bad Request",
                    "Secret in version \"v1\" cannot be handled as a Secret: v1.Secret.Data: base64Codec: invalid input, error found in \
                     #10 byte of ...|zaA==\",\"port\":5432},|..., bigger context ...|VzaA==\",\"port\":5432},\"kind\":\"Secret\"|...",
                ),
            ],
            ErrorKind::Permanent,
            "cannot be handled as a Secret: v1.Secret.Data: base64Codec: invalid input",
            "version",
        ),
        (vec![ok("x".repeat(OBJECT_BYTES + 1))], ErrorKind::Permanent, "larger than", ""),
    ] {
        let count = script.len();
        let server = master.serve(script).await;
        let mut wanted = binding();
        (wanted["kind"], wanted["data"]) = (json!("Secret"), json!({"token-secret": "aHVzaC1odXNoLW5vdw==", "port": "NQ=="}));
        let error = master.ensure(&server, &wanted).await.unwrap_err();
        assert!(error.to_string().contains(words) && error.kind() == kind, "{error:?}");
        assert!(error.suggested_remedy().unwrap_or_default().contains(remedy), "{error:?}");
        assert!(["aHVzaC1", "zaA=", "hush"].iter().all(|part| !format!("{error:?}").contains(part)), "{error:?}");
        assert_eq!(server.requests().len(), count);
    }
    let unrelated = TestCa::new("blue");
    let server = Fake::start_tls(vec![ok("{}")], unrelated.identity_for_clients_of(&master.ca)).await;
    let error = master.ensure(&server, &binding()).await.unwrap_err();
    assert!(error.cause().contains("is not signed by the CA in /ca.crt"), "{error}");
}

/// As large as etcd takes them: the definitions of a network's resources.
#[tokio::test]
async fn an_object_of_almost_a_mebibyte_is_made_compared_and_changed() {
    let master = Master::new(Clock::system());
    let mut wanted = binding();
    let field = |n: usize| (format!("field-{n}"), json!({"type": "string", "description": "What a field is for. ".repeat(6)}));
    wanted["spec"] = json!({"properties": (0..5_000).map(field).collect::<Map<_, _>>()});
    assert!((700_000..1_000_000).contains(&wanted.to_string().len()));
    let mut found = wanted.clone();
    found["metadata"]["resourceVersion"] = json!("7");
    // The API adds who owns which field.
    let owned = |n: usize| (format!("f:field-{n}"), json!({".": {}, "f:type": {}, "f:description": {}}));
    found["metadata"]["managedFields"] = json!([{"fieldsV1": (0..5_000).map(owned).collect::<Map<_, _>>()}]);
    let mut other = found.clone();
    other["spec"]["properties"]["field-4999"]["type"] = json!("number");
    let mut written = found.clone();
    written["metadata"]["resourceVersion"] = json!("8");
    for (script, expected) in [
        (vec![absent(), answer("201 Created", &written)], true),
        (vec![answer("200 OK", &found)], false),
        (vec![answer("200 OK", &other), answer("200 OK", &written)], true),
        // It is stored as it was.
        (vec![answer("200 OK", &other), answer("200 OK", &found)], false),
    ] {
        let server = master.serve(script).await;
        assert_eq!(master.ensure(&server, &wanted).await.unwrap(), expected);
    }
}

#[tokio::test]
async fn an_object_that_takes_more_memory_than_one_may_is_refused_by_that_rule() {
    let master = Master::new(Clock::system());
    let server = master.serve(Vec::new()).await;
    let mut wanted = binding();
    wanted["spec"] = json!(vec![0; 200_000]);
    let error = master.ensure(&server, &wanted).await.unwrap_err();
    assert!(error.to_string().contains("would take more than 6144 KiB of memory"), "{error}");
    assert!(error.suggested_remedy().unwrap().contains("divide the object"), "{error:?}");
}

/// Attack: a value of one letter hid every cause, and one of a mebibyte would have taken 20 MiB to look for.
#[tokio::test]
async fn short_values_hide_nothing_and_of_a_large_secret_nothing_is_quoted() {
    let master = Master::new(Clock::system());
    let large = "c2VjcmV0".repeat(SECRETS / 8 + 1);
    for (kind, value, said, expected) in [
        ("ConfigMap", "a", "an annotation is too long", "400: an annotation is too long"),
        ("Secret", "YQ==", "an annotation is too long", "400: an annotation is too long"),
        ("Secret", "", "an annotation is too long", "400: an annotation is too long"),
        ("Secret", &*large, "bad data secretsecret", "400: not shown, as it may quote the secret"),
    ] {
        let server = master.serve(vec![absent(), refused("400 Bad Request", said)]).await;
        let mut wanted = binding();
        (wanted["kind"], wanted["data"]) = (json!(kind), json!({"key": value}));
        let error = master.ensure(&server, &wanted).await.unwrap_err().to_string();
        assert!(error.contains(expected), "{kind}: {error}");
    }
    // base64 of "a password that nobody may see", in lines as base64(1) makes them.
    let server = master.serve(vec![absent(), refused("400 Bad Request", "denied: a password that nobody may see")]).await;
    let mut wanted = binding();
    let lines = "YSBwYXNzd29yZCB0aGF0IG5v\nYm9keSBtYXkgc2Vl\n";
    (wanted["kind"], wanted["data"]) = (json!("Secret"), json!({"key": lines}));
    let error = master.ensure(&server, &wanted).await.unwrap_err().to_string();
    assert!(error.contains("denied") && !error.contains("password"), "{error}");
}

/// Review: a controller took a taint of the node away in between, and the whole update failed.
#[tokio::test]
async fn a_node_that_others_change_meanwhile_is_looked_at_again() {
    let master = Master::new(Clock::system());
    let refused = "nodes \"n\" is forbidden: node \"n\" is not allowed to modify taints";
    let found = ok(node(&json!({}), &json!([]), &json!({})).to_string());
    let said = json!({"kind": "Status", "message": refused}).to_string();
    let server = Fake::start(vec![found.clone(), status("403 Forbidden", said), found, ok("{}")]).await;
    let wanted = json!({"kind": "Node", "metadata": {"labels": {"a": "1"}, "annotations": {"heat-node-agent/labels": "a"}}});
    assert!(master.ensure(&server, &wanted).await.unwrap());
    assert_eq!(server.requests().len(), 4);
}
