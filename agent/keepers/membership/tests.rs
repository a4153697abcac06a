//! The looks and changes against scripted servers: what etcd is asked, in which order, and what lies in the environment file before.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};

use super::*;
use crate::clock::Clock;
use crate::http::Tls;
use crate::http::fake::{Act, Fake, ok, status};

const OWN: &str = "http://192.0.2.11:2380";

/// A run for a deployment, which has looked for the first time.
const DEPLOYMENT: MemberSituation =
    MemberSituation { unheard: Duration::ZERO, unmounted: None, is_running: false, is_up: false, may_change: true };

/// One other member, which serves peers and clients at one address; etcd has two.
struct Stage {
    _dir: tempfile::TempDir,
    root: Arc<Tree>,
    http: Http,
    join: EtcdJoin,
    other: Fake,
}

impl Stage {
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let root = Arc::new(Tree::open(dir.path()).unwrap());
        root.create_dir_all(Path::new("/etc/etcd"), Attributes::mode(0o755)).unwrap();
        let http = Http::new(Tls::default(), Arc::clone(&root), Clock::system());
        let other = Fake::start(vec![]).await;
        let third = other.base.replace("127.0.0.1", "localhost");
        let members = vec![("m1".into(), OWN.into()), ("m2".into(), other.base.clone()), ("m3".into(), third)];
        let join = EtcdJoin::first_of(members);
        Self { _dir: dir, root, http, join, other }
    }

    fn file(&self) -> Option<String> {
        self.root.read(Path::new(&self.join.file), 4096).unwrap().map(|bytes| String::from_utf8(bytes).unwrap())
    }

    fn asked(&self) -> Vec<String> {
        let of = |request: &String| {
            let line = request.split(" HTTP/").next().unwrap_or_default();
            let body = request.split("\r\n\r\n").nth(1).unwrap_or_default();
            if line.ends_with("/members") || line.ends_with("/health") || line.ends_with("/version") || line.ends_with("/list") {
                return String::new();
            }
            format!("{line} {body}")
        };
        self.other.requests().iter().map(of).filter(|line| !line.is_empty()).collect()
    }
}

/// What keeps etcd from starting without data.
fn blocked() -> String {
    format!("\nETCD_INITIAL_CLUSTER=\"m1={OWN}\"\nETCD_INITIAL_CLUSTER_STATE=\"existing\"\n")
}

#[tokio::test]
async fn a_member_that_runs_with_its_data_asks_nobody_and_never_starts_without_it() {
    let stage = Stage::new().await;
    let wal = format!("{}/member/wal", stage.join.data);
    stage.root.create_dir_all(Path::new(&wal), Attributes::mode(0o700)).unwrap();
    assert_eq!(data(&stage.root, &stage.join.data).unwrap(), MemberData::Blank);
    assert!(foretold(&stage.root, &stage.join).unwrap().unwrap().contains("m1 has no data in /var/lib/etcd/default.etcd"));
    stage.http.protect(&stage.root, &stage.join).unwrap();
    assert_eq!(stage.file(), None, "it has none yet");
    stage.root.write(Path::new(&format!("{wal}/0-0.wal")), wal::tests::LOG, Attributes::mode(0o600)).unwrap();
    assert_eq!(data(&stage.root, &stage.join.data).unwrap(), MemberData::Present(Some(wal::tests::IDS)));
    assert_eq!(foretold(&stage.root, &stage.join).unwrap(), None);
    // The list that it joined by would let it start with its old id once its data is lost again.
    let places: Vec<(String, String)> = (2..9).map(|id| (format!("member-{id}"), format!("https://192.0.2.{id}:2380"))).collect();
    write(&stage.root, &stage.join, MADE, &places).unwrap();
    stage.http.protect(&stage.root, &stage.join).unwrap();
    assert!(stage.file().unwrap().ends_with(&blocked()));
    stage.root.remove(Path::new(&stage.join.file)).unwrap();
    let running = MemberSituation { is_running: true, ..DEPLOYMENT };
    assert_eq!(stage.http.settle(&stage.root, &stage.join, &running).await.unwrap(), MemberStep::Start);
    assert!(stage.file().unwrap().ends_with(&blocked()));
    assert!(stage.other.requests().is_empty());
    // Before it starts, what the others say is compared with it.
    stage.other.play(vec![listed(7, &json!([{"id": 5, "name": "m2", "peerURLs": [stage.other.base]}]))]);
    let error = stage.http.settle(&stage.root, &stage.join, &DEPLOYMENT).await.unwrap_err();
    assert!(error.to_string().contains("is of etcd's cluster fff0d3975212fd16, and the member at"), "{error}");
}

/// Whoever starts etcd, a boot among them: it does not start without data before it is settled how.
#[tokio::test]
async fn a_member_without_data_is_kept_from_starting_until_it_may() {
    let mut stage = Stage::new().await;
    stage.http.hold(&stage.root, &stage.join).unwrap();
    let held = stage.file().unwrap();
    assert!(held.starts_with(HELD) && held.ends_with(&blocked()));
    // Nothing is known of a cluster: the same is held.
    stage.other.play(vec![status("503 Service Unavailable", "")]);
    stage.http.settle(&stage.root, &stage.join, &DEPLOYMENT).await.unwrap_err();
    assert_eq!(stage.file().unwrap(), held);
    // The others list it as one that has run, and cannot replace it now.
    let id = decision::first_id(&[OWN.to_owned()], "c");
    let own = json!({"id": id, "name": "m1", "peerURLs": [OWN], "clientURLs": ["http://127.0.0.1:1"]});
    let list = json!([own, {"id": 5, "name": "m2", "peerURLs": [stage.other.base], "clientURLs": ["http://127.0.0.1:1"]}]);
    stage.other.play(vec![listed(7, &list)]);
    stage.http.settle(&stage.root, &stage.join, &DEPLOYMENT).await.unwrap_err();
    let known = stage.file().unwrap();
    assert!(!known.starts_with(HELD) && known.ends_with(&blocked()));
    stage.http.hold(&stage.root, &stage.join).unwrap();
    assert_eq!(stage.file().unwrap(), known, "what is known is kept");
    // The parameters say that the cluster is there.
    stage.root.remove(Path::new(&stage.join.file)).unwrap();
    (stage.join.existing, stage.join.members[1].1) = (true, "http://127.0.0.1:1".into());
    stage.join.members.truncate(2);
    let long = MemberSituation { unheard: Duration::from_mins(10), ..DEPLOYMENT };
    stage.http.settle(&stage.root, &stage.join, &long).await.unwrap_err();
    assert_eq!(stage.file().unwrap(), known);
}

/// What a run that failed, or was cut off, leaves: systemd starts etcd again and again by what the file says.
#[tokio::test]
async fn a_list_to_join_by_is_taken_back_with_and_without_data() {
    let stage = Stage::new().await;
    let joins = || write(&stage.root, &stage.join, MADE, &[("m1".into(), OWN.into()), ("m2".into(), stage.other.base.clone())]);
    joins().unwrap();
    stage.http.hold(&stage.root, &stage.join).unwrap();
    let held = stage.file().unwrap();
    assert!(held.starts_with(MADE) && held.ends_with(&blocked()), "its cluster is known, and not forgotten: {held}");
    let wal = format!("{}/member/wal", stage.join.data);
    stage.root.create_dir_all(Path::new(&wal), Attributes::mode(0o700)).unwrap();
    stage.root.write(Path::new(&format!("{wal}/0-0.wal")), wal::tests::LOG, Attributes::mode(0o600)).unwrap();
    joins().unwrap();
    stage.http.hold(&stage.root, &stage.join).unwrap();
    assert_eq!(stage.file().unwrap(), held);
    // Of a new cluster there is no file.
    stage.root.remove(Path::new(&stage.join.file)).unwrap();
    stage.http.hold(&stage.root, &stage.join).unwrap();
    assert_eq!(stage.file().unwrap(), held);
}

/// etcd with users answers nobody about its keys, and its list of members all the same.
#[tokio::test]
async fn a_member_that_is_listed_starts_where_keys_may_not_be_read() {
    let mut stage = Stage::new().await;
    stage.join.members.truncate(2);
    let first = decision::first_id(&[OWN.to_owned()], "c");
    for (id, name) in [(first, "m1"), (9, "")] {
        let list = json!([
            {"id": id, "name": name, "peerURLs": [OWN]},
            {"id": 255, "name": "m2", "peerURLs": [stage.other.base], "clientURLs": [stage.other.base]},
        ]);
        stage.other.play(vec![listed(7, &list), ok(r#"{"health":"true"}"#), status("401 Unauthorized", "")]);
        assert_eq!(stage.http.settle(&stage.root, &stage.join, &DEPLOYMENT).await.unwrap(), MemberStep::Start, "{name}");
        assert!(stage.asked().is_empty(), "{:?}", stage.asked());
    }
}

#[tokio::test]
async fn a_snapshot_without_its_log_is_neither_blank_nor_there() {
    let stage = Stage::new().await;
    let snap = format!("{}/member/snap", stage.join.data);
    stage.root.create_dir_all(Path::new(&snap), Attributes::mode(0o700)).unwrap();
    // What etcd leaves that refused to start.
    stage.root.write(Path::new(&format!("{snap}/db")), b"", Attributes::mode(0o600)).unwrap();
    assert_eq!(data(&stage.root, &stage.join.data).unwrap(), MemberData::Blank);
    stage.root.write(Path::new(&format!("{snap}/1-2.snap")), b"", Attributes::mode(0o600)).unwrap();
    assert_eq!(data(&stage.root, &stage.join.data).unwrap(), MemberData::Damaged);
    assert!(stage.http.settle(&stage.root, &stage.join, &DEPLOYMENT).await.unwrap_err().to_string().contains("no log"));
}

fn listed(cluster: u64, members: &Value) -> Act {
    Act::Answer("200 OK", vec![format!("X-Etcd-Cluster-Id: {cluster:x}")], members.to_string().into_bytes())
}

/// Who is there and cannot be asked may be the cluster that this node has left.
#[tokio::test]
async fn nobody_is_there_only_where_nobody_takes_a_connection() {
    let mut stage = Stage::new().await;
    let long = MemberSituation { unheard: Duration::from_mins(1), ..DEPLOYMENT };
    for answer in [
        status("503 Service Unavailable", ""),
        status("404 Not Found", ""),
        Act::Close,
        ok("no json"),
        // Of no cluster.
        ok("[]"),
    ] {
        stage.other.play(vec![answer.clone()]);
        let error = stage.http.settle(&stage.root, &stage.join, &long).await.unwrap_err();
        assert!(error.to_string().contains("it is not known what etcd's other members are"), "{answer:?}: {error}");
    }
    // Over TLS, without a certificate of its own: the other takes a connection all the same.
    let (members, own) = (
        stage.join.members.clone(),
        ClientIdentity { certificate: "/none.crt".into(), key: "/none.key".into(), ca: "/none-ca.crt".into() },
    );
    stage.join.identity = Some(own);
    stage.join.members[1].1 = stage.other.base.replace("http://", "https://");
    let error = stage.http.settle(&stage.root, &stage.join, &long).await.unwrap_err();
    assert!(error.to_string().contains("it is not known what etcd's other members are"), "{error}");
    (stage.join.members, stage.join.identity) = (members, None);
    for (_, peer) in &mut stage.join.members[1..] {
        *peer = "http://127.0.0.1:1".into();
    }
    stage.http.hold(&stage.root, &stage.join).unwrap();
    assert_eq!(stage.http.settle(&stage.root, &stage.join, &DEPLOYMENT).await.unwrap(), MemberStep::Unheard);
    assert!(stage.file().is_some());
    assert_eq!(stage.http.settle(&stage.root, &stage.join, &long).await.unwrap(), MemberStep::Start);
    assert_eq!(stage.file(), None);
    // Once its cluster is known, nobody's silence makes a new one.
    stage.root.write(Path::new(&stage.join.file), b"begun", Attributes::mode(0o644)).unwrap();
    assert!(stage.http.settle(&stage.root, &stage.join, &long).await.is_err());
    assert_eq!(stage.file().as_deref(), Some("begun"));
}

#[tokio::test]
async fn a_first_start_is_no_longer_held() {
    let stage = Stage::new().await;
    stage.http.hold(&stage.root, &stage.join).unwrap();
    let id = decision::first_id(&[OWN.to_owned()], "c");
    let forming = json!([{"id": id, "name": "m1", "peerURLs": [OWN]}, {"id": 5, "name": "m2", "peerURLs": [stage.other.base]}]);
    stage.other.play(vec![listed(7, &forming)]);
    assert_eq!(stage.http.settle(&stage.root, &stage.join, &DEPLOYMENT).await.unwrap(), MemberStep::Start);
    assert_eq!(stage.file(), None);
}

fn entry(value: &str) -> Act {
    ok(json!({"kvs": [{"key": BASE64.encode("k"), "mod_revision": "6", "value": BASE64.encode(value)}]}).to_string())
}

/// A member that was added joins.
#[tokio::test]
async fn one_that_was_added_joins_by_the_clusters_own_list() {
    let mut stage = Stage::new().await;
    stage.join.members.truncate(2);
    let list = json!([
        {"id": 9, "name": "", "peerURLs": [OWN]},
        {"id": 255, "name": "m2", "peerURLs": [stage.other.base], "clientURLs": [stage.other.base]},
    ]);
    let healthy = || ok(r#"{"health":"true"}"#);
    stage.other.play(vec![listed(7, &list), healthy()]);
    assert_eq!(stage.http.settle(&stage.root, &stage.join, &DEPLOYMENT).await.unwrap(), MemberStep::Start);
    let file = stage.file().unwrap();
    assert!(file.contains(&format!(
        "\nETCD_INITIAL_CLUSTER=\"m1={OWN},member-ff={}\"\nETCD_INITIAL_CLUSTER_STATE=\"existing\"\n",
        stage.other.base
    )));
    assert!(stage.asked().is_empty(), "{:?}", stage.asked());
}

#[tokio::test]
async fn without_the_gateway_an_operator_is_told_what_to_type() {
    let mut stage = Stage::new().await;
    // Three members of one address: one etcd answers for both of the others.
    stage.join.members.truncate(2);
    let id = decision::first_id(&[OWN.to_owned()], "c");
    let base = stage.other.base.clone();
    let other = |id: u64, name: &str, peer: &str| json!({"id": id, "name": name, "peerURLs": [peer], "clientURLs": [base]});
    let list = json!([
        {"id": id, "name": "m1", "peerURLs": [OWN], "clientURLs": ["http://127.0.0.1:1"]},
        other(decision::first_id(std::slice::from_ref(&base), "c"), "m2", &base),
        other(3, "m3", "http://192.0.2.13:2380"),
    ]);
    let healthy = || ok(r#"{"health":"true"}"#);
    stage.other.play(vec![listed(7, &list), healthy(), ok(r#"{"etcdserver":"2.3.8"}"#)]);
    let error = stage.http.settle(&stage.root, &stage.join, &DEPLOYMENT).await.unwrap_err();
    let remedy = error.suggested_remedy().unwrap_or_default();
    assert!(remedy.contains(&format!("etcdctl --endpoints {base} member remove {id:x}`, then `")), "{error} {remedy}");
    assert!(remedy.contains(&format!("member add m1 --peer-urls={OWN}`")), "{remedy}");
    assert!(stage.asked().is_empty() && stage.file().unwrap().ends_with(&blocked()));
}

/// The file is there before the member is removed, and that is done under the lock.
#[tokio::test]
async fn a_removal_is_prepared_and_made_under_the_lock() {
    let mut stage = Stage::new().await;
    stage.join.members.truncate(2);
    let id = decision::first_id(&[OWN.to_owned()], "c");
    let base = stage.other.base.clone();
    let other = |id: u64, name: &str, peer: &str| json!({"id": id, "name": name, "peerURLs": [peer], "clientURLs": [base]});
    let list = || {
        listed(
            7,
            &json!([
                {"id": id, "name": "m1", "peerURLs": [OWN], "clientURLs": ["http://127.0.0.1:1"]},
                other(decision::first_id(std::slice::from_ref(&base), "c"), "m2", &base),
                other(3, "m3", "http://192.0.2.13:2380"),
            ]),
        )
    };
    let look = || vec![list(), ok(r#"{"health":"true"}"#)];
    let (version, none) = (|| ok(r#"{"etcdserver":"3.4.23"}"#), || ok(r#"{"header":{}}"#));
    let (granted, done) = (|| ok(r#"{"ID":"75","TTL":"120"}"#), || ok(r#"{"succeeded":true}"#));
    let taken = || vec![version(), none(), granted(), done()];
    let script = [look(), taken(), look(), vec![ok("{}")]].concat();
    stage.other.play(script);
    assert!(stage.http.change(&stage.root, &stage.join, &DEPLOYMENT, MemberChange::Remove(id)).await.unwrap());
    let asked = stage.asked();
    let short: Vec<&str> = asked.iter().map(|line| line.split(' ').nth(1).unwrap_or_default()).collect();
    let (range, grant, txn) = ("/v3/kv/range", "/v3/lease/grant", "/v3/kv/txn");
    // It keeps the lock: nobody else comes between the removal and the addition.
    assert_eq!(short, [range, grant, txn, "/v3/cluster/member/remove"]);
    assert!(asked[3].contains(&id.to_string()), "{asked:?}");
    assert!(stage.file().unwrap().ends_with(&blocked()));

    // Somebody else's turn: nothing but the lock is looked at.
    stage.other.play([look(), vec![version(), entry("m3 joins etcd")]].concat());
    let before = stage.asked().len();
    let error = stage.http.change(&stage.root, &stage.join, &DEPLOYMENT, MemberChange::Remove(id)).await.unwrap_err();
    assert!(error.to_string().contains("m3 joins etcd changes or restarts its member"), "{error}");
    assert_eq!(stage.asked().len(), before + 1);
    // It is not what comes next any more: under the lock nothing is changed, and the lock is given back.
    stage.other.play([look(), taken(), look(), vec![done()]].concat());
    let before = stage.asked().len();
    assert!(!stage.http.change(&stage.root, &stage.join, &DEPLOYMENT, MemberChange::Add).await.unwrap());
    assert!(stage.asked()[before..].iter().all(|line| !line.contains("/cluster/member/")), "{:?}", stage.asked());
}

/// What a removal left, found in the list by whoever is there now: a node that was killed, or replaced once more.
#[tokio::test]
async fn a_member_that_the_cluster_does_not_have_is_added_once() {
    let mut stage = Stage::new().await;
    stage.join.members.truncate(2);
    let base = stage.other.base.clone();
    let list = |id: u64| {
        listed(
            7,
            &json!([
                {"id": id, "name": "m2", "peerURLs": [base], "clientURLs": [base]},
                {"id": 3, "name": "m3", "peerURLs": ["http://192.0.2.13:2380"], "clientURLs": [base]},
            ]),
        )
    };
    let version = || ok(r#"{"etcdserver":"3.4.23"}"#);
    let ours = decision::first_id(std::slice::from_ref(&base), "c");
    let look = |id: u64| vec![list(id), ok(r#"{"health":"true"}"#)];
    let done = || ok(r#"{"succeeded":true}"#);
    let taken = || vec![version(), ok(r#"{"header":{}}"#), ok(r#"{"ID":"75","TTL":"120"}"#), done()];
    stage.other.play([look(ours), vec![version(), ok("{}")]].concat());
    assert_eq!(stage.http.settle(&stage.root, &stage.join, &DEPLOYMENT).await.unwrap(), MemberStep::Change(MemberChange::Add));
    stage.other.play([look(ours), taken(), look(ours), vec![ok("{}"), done()]].concat());
    let before = stage.asked().len();
    assert!(stage.http.change(&stage.root, &stage.join, &DEPLOYMENT, MemberChange::Add).await.unwrap());
    let asked = stage.asked().split_off(before);
    let added: Vec<&String> = asked.iter().filter(|line| line.contains("/cluster/member/")).collect();
    assert_eq!(added, [&format!("POST /v3/cluster/member/add {}", json!({"peerURLs": [OWN]}))]);
    // With no id that is made of its token this may be any cluster: an operator gets the commands.
    stage.other.play(look(2));
    let error = stage.http.settle(&stage.root, &stage.join, &DEPLOYMENT).await.unwrap_err();
    assert!(error.suggested_remedy().unwrap_or_default().contains("member add m1 --peer-urls="), "{error}");
}

/// Beside a single one, which stays writable: not before etcd 3.4.
#[tokio::test]
async fn a_second_member_comes_as_a_learner_where_etcd_has_them() {
    let mut stage = Stage::new().await;
    stage.join.members.truncate(2);
    let base = stage.other.base.clone();
    let ours = decision::first_id(std::slice::from_ref(&base), "c");
    let look = || {
        let list = json!([{"id": ours, "name": "m2", "peerURLs": [base], "clientURLs": [base]}]);
        vec![listed(7, &list), ok(r#"{"health":"true"}"#)]
    };
    let version = |cluster: &str| ok(json!({"etcdserver": "3.4.23", "etcdcluster": cluster}).to_string());
    for old in ["3.3.0", "not_decided"] {
        stage.other.play([look(), vec![version(old), ok("{}")]].concat());
        let error = stage.http.settle(&stage.root, &stage.join, &DEPLOYMENT).await.unwrap_err();
        assert!(error.to_string().contains("etcd's cluster has no member"), "{error}");
        assert!(error.suggested_remedy().unwrap_or_default().contains("member add m1 --peer-urls="), "{error}");
    }
    stage.other.play([look(), vec![version("3.4.0"), ok("{}")]].concat());
    assert_eq!(stage.http.settle(&stage.root, &stage.join, &DEPLOYMENT).await.unwrap(), MemberStep::Change(MemberChange::Add));
    let done = || ok(r#"{"succeeded":true}"#);
    for (cluster, is_added) in [("3.3.0", false), ("3.4.0", true)] {
        let taken = vec![version(cluster), ok(r#"{"header":{}}"#), ok(r#"{"ID":"75","TTL":"120"}"#), done()];
        let changed = if is_added { vec![ok("{}"), done()] } else { vec![done()] };
        stage.other.play([look(), taken, look(), changed].concat());
        let before = stage.asked().len();
        assert_eq!(stage.http.change(&stage.root, &stage.join, &DEPLOYMENT, MemberChange::Add).await.unwrap(), is_added);
        let asked = stage.asked().split_off(before);
        let added: Vec<&String> = asked.iter().filter(|line| line.contains("/cluster/member/")).collect();
        let body = format!("POST /v3/cluster/member/add {}", json!({"peerURLs": [OWN], "isLearner": true}));
        assert_eq!(added, if is_added { vec![&body] } else { vec![] });
    }
}

#[tokio::test]
async fn a_learner_is_promoted_by_one_that_votes_under_the_lock() {
    let mut stage = Stage::new().await;
    let own = Fake::start(vec![]).await;
    stage.join.peer.clone_from(&own.base);
    let list = |is_learner: bool| {
        listed(
            7,
            &json!([
                {"id": 9, "name": "m1", "peerURLs": [own.base], "clientURLs": [own.base], "isLearner": is_learner},
                {"id": 5, "name": "m2", "peerURLs": [stage.other.base], "clientURLs": [stage.other.base]},
            ]),
        )
    };
    let (healthy, version) = (|| ok(r#"{"health":"true"}"#), || ok(r#"{"etcdserver":"3.4.23","etcdcluster":"3.4.0"}"#));
    let done = || ok(r#"{"succeeded":true}"#);
    // One that votes, and one whose only other member is not healthy.
    own.play(vec![list(false)]);
    assert!(!stage.http.promote(&stage.join).await.unwrap());
    own.play(vec![list(true)]);
    stage.other.play(vec![ok(r#"{"health":"false"}"#)]);
    assert!(stage.http.promote(&stage.join).await.is_err());
    // Somebody else's turn; the gateway is off; it has not caught up; it is promoted.
    let taken = || vec![healthy(), version(), ok("{}"), ok(r#"{"header":{}}"#), ok(r#"{"ID":"75","TTL":"120"}"#), done()];
    let behind = r#"{"error":"etcdserver: can only promote a learner member which is in sync with leader","code":9}"#;
    for (acts, expected, promotions) in [
        (vec![healthy(), version(), ok("{}"), entry("m3 joins etcd")], Some("m3 joins etcd changes or restarts"), 0),
        (vec![healthy(), version(), status("404 Not Found", "")], Some("is a learner, and etcd serves no v3 API"), 0),
        ([taken(), vec![status("412 Precondition Failed", behind), done()]].concat(), Some("in sync with leader"), 1),
        ([taken(), vec![ok("{}"), done()]].concat(), None, 1),
    ] {
        own.play(vec![list(true)]);
        stage.other.play(acts);
        let before = stage.asked().len();
        match (stage.http.promote(&stage.join).await, expected) {
            (Ok(is_promoted), None) => assert!(is_promoted),
            (Err(error), Some(words)) => {
                assert!(error.to_string().contains(words) && error.kind() == ErrorKind::Transient, "{error}");
            }
            (other, _) => panic!("{expected:?}: {other:?}"),
        }
        let asked = stage.asked().split_off(before);
        let body = format!("POST /v3/cluster/member/promote {}", json!({"ID": "9"}));
        assert_eq!(asked.iter().filter(|line| **line == body).count(), promotions, "{asked:?}");
        // The lock is given back whatever came of it.
        assert!(promotions == 0 || asked.last().unwrap().contains("request_delete_range"), "{asked:?}");
    }
}

/// What was taken out by a deployment that was deleted, or by an operator, comes back as a new member, and never with its data.
#[tokio::test]
async fn the_data_of_a_member_that_was_removed_is_put_aside_once() {
    let mut stage = Stage::new().await;
    stage.join.members.truncate(2);
    let wal = format!("{}/member/wal", stage.join.data);
    let log = |bytes: &[u8]| {
        stage.root.create_dir_all(Path::new(&wal), Attributes::mode(0o700)).unwrap();
        stage.root.write(Path::new(&format!("{wal}/0-0.wal")), bytes, Attributes::mode(0o600)).unwrap();
    };
    let base = &stage.other.base;
    let other = json!({"id": 2, "name": "m2", "peerURLs": [base], "clientURLs": [base]});
    let look = |members: Value| vec![listed(wal::tests::IDS.cluster, &members), ok(r#"{"health":"true"}"#)];
    for round in 0..2 {
        log(wal::tests::LOG);
        stage.other.play(look(json!([other])));
        let step = MemberStep::Change(MemberChange::SetAside);
        assert_eq!(stage.http.settle(&stage.root, &stage.join, &DEPLOYMENT).await.unwrap(), step, "{round}");
        stage.other.play(look(json!([other])));
        assert!(stage.http.change(&stage.root, &stage.join, &DEPLOYMENT, MemberChange::SetAside).await.unwrap());
        assert_eq!(data(&stage.root, &stage.join.data).unwrap(), MemberData::Blank);
        assert!(stage.file().unwrap().ends_with(&blocked()), "etcd does not start without data");
        let aside = format!("{}/member.removed/wal/0-0.wal", stage.join.data);
        assert!(stage.root.facts(Path::new(&aside)).unwrap().is_some());
    }
    // It is a member after all.
    log(wal::tests::LOG);
    let own = json!({"id": wal::tests::IDS.member, "name": "m1", "peerURLs": [OWN]});
    stage.other.play(look(json!([other, own])));
    assert!(!stage.http.change(&stage.root, &stage.join, &DEPLOYMENT, MemberChange::SetAside).await.unwrap());
    assert!(data(&stage.root, &stage.join.data).unwrap().is_present());
}
