//! The description in etcd by both of its APIs, and the node's own files, against a scripted server and a directory.

use std::path::Path;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};

use super::inspection::{check_subnet, inspect};
use super::{Leases, PodNetwork};
use crate::clock::Clock;
use crate::desired::{ClientIdentity, EtcdAccess, FlannelStore, Peer, Peers, PodRoutes};
use crate::error::{ErrorKind, Result};
use crate::files::{Attributes, Tree};
use crate::http::fake::{Act, Fake, TestCa, ok, status};
use crate::http::{Http, Tls};
use crate::network::flannel::Version;

const WANTED: &str = r#"{"Network":"10.100.0.0/16","SubnetLen":24,"Backend":{"Type":"host-gw"}}"#;
const V2: Option<Version> = Some((0, 17));
const V3: Option<Version> = Some((0, 20));

fn http(root: &Arc<Tree>) -> Http {
    Http::new(Tls::default(), Arc::clone(root), Clock::system())
}

fn store(endpoint: &str, writes: bool) -> FlannelStore {
    let etcd = EtcdAccess { endpoint: endpoint.to_owned(), identity: None };
    FlannelStore { etcd, prefix: "/coreos.com/network".to_owned(), description: WANTED.to_owned(), writes }
}

/// One look at an etcd that plays a script; what it was asked, request line and body.
async fn play(script: Vec<Act>, writes: bool, flanneld: Option<Version>) -> (Result<bool>, Vec<String>) {
    let dir = tempfile::tempdir().unwrap();
    let root = Arc::new(Tree::open(dir.path()).unwrap());
    let server = Fake::start(script).await;
    let result = http(&root).describe(&store(&server.base, writes), flanneld).await;
    (result, asked(&server))
}

fn asked(server: &Fake) -> Vec<String> {
    let short = |request: &String| {
        let line = request.split(" HTTP/").next().unwrap_or_default();
        format!("{line} {}", request.split("\r\n\r\n").nth(1).unwrap_or_default())
    };
    server.requests().iter().map(short).collect()
}

/// As etcd 2.3 and 3.4 with `--enable-v2` answer.
fn v2_key(value: &str) -> Act {
    ok(json!({"action": "get", "node": {"key": "/coreos.com/network/config", "value": value, "modifiedIndex": 4, "createdIndex": 4}})
        .to_string())
}

fn v2_error(line: &'static str, code: u16, message: &str) -> Act {
    status(line, json!({"errorCode": code, "message": message, "cause": "/coreos.com/network/config", "index": 7}).to_string())
}

fn v2_leases(leases: &[(&str, &str)]) -> Act {
    let nodes: Vec<Value> = leases
        .iter()
        .map(|(subnet, node)| {
            let value = json!({"PublicIP": node, "BackendType": "host-gw"}).to_string();
            json!({"key": format!("/coreos.com/network/subnets/{subnet}"), "value": value, "ttl": 86000, "modifiedIndex": 9})
        })
        .collect();
    ok(json!({"action": "get", "node": {"key": "/coreos.com/network/subnets", "dir": true, "nodes": nodes}}).to_string())
}

/// As etcd 3.4's gateway answers: numbers of 64 bits as strings, members of no value left out.
fn v3_keys(keys: &[(&str, &str)]) -> Act {
    let kvs: Vec<Value> = keys
        .iter()
        .map(|(key, value)| {
            json!({"key": BASE64.encode(key), "create_revision": "5", "mod_revision": "6", "version": "2", "value": BASE64.encode(value)})
        })
        .collect();
    let header =
        json!({"cluster_id": "14841639068965178418", "member_id": "10276657743932975437", "revision": "8", "raft_term": "2"});
    if kvs.is_empty() {
        return ok(json!({"header": header}).to_string());
    }
    ok(json!({"header": header, "kvs": kvs, "count": kvs.len().to_string()}).to_string())
}

fn server(version: &str) -> Act {
    ok(json!({"etcdserver": version, "etcdcluster": version}).to_string())
}

fn txn(succeeded: bool) -> Act {
    let mut answer = json!({"header": {"revision": "9"}});
    if succeeded {
        answer["succeeded"] = json!(true);
        answer["responses"] = json!([{"response_put": {"header": {"revision": "9"}}}]);
    }
    ok(answer.to_string())
}

fn lease_v3(subnet: &str, node: &str) -> (String, String) {
    let value = json!({"PublicIP": node, "PublicIPv6": null, "BackendType": "host-gw", "BackendData": null});
    (format!("/coreos.com/network/subnets/{subnet}"), value.to_string())
}

const CONFIG: &str = "/coreos.com/network/config";

#[tokio::test]
async fn a_master_writes_what_is_not_there_or_differs_and_nothing_else() {
    let absent = || v2_error("404 Not Found", 100, "Key not found");
    let created = || status("201 Created", r#"{"action":"create","node":{"modifiedIndex":5}}"#);
    let same = r#"{"network": "10.100.0.0/16", "Backend": {"type": "host-gw"}, "EnableIPv4": true}"#;
    let vxlan = WANTED.replace("host-gw", "vxlan");
    let wider = WANTED.replace("10.100.0.0/16", "10.0.0.0/8");
    let get = "GET /v2/keys/coreos.com/network/config?quorum=true ".to_owned();
    let list = "GET /v2/keys/coreos.com/network/subnets?quorum=true ".to_owned();
    let range = |key: &str| format!("POST /v3/kv/range {{\"key\":\"{}\"}}", BASE64.encode(key));
    let put = |condition: &str| {
        format!("PUT /v2/keys/coreos.com/network/config?{condition} value=%7B%22Network%22%3A%2210.100.0.0%2F16")
    };
    let swap = |revision: &str| {
        let key = BASE64.encode(CONFIG);
        format!(
            "POST /v3/kv/txn {{\"compare\":[{{\"key\":\"{key}\",\"target\":\"MOD\",\"result\":\"EQUAL\",\"mod_revision\":\"{revision}\"}}]"
        )
    };
    let version = "GET /version ".to_owned();
    for (case, flanneld, script, wrote, requests) in [
        ("v2, absent", V2, vec![absent(), created()], true, vec![get.clone(), put("prevExist=false")]),
        ("v2, equal in meaning", V2, vec![v2_key(same)], false, vec![get.clone()]),
        ("v2, another backend", V2, vec![v2_key(&vxlan), ok("{}")], true, vec![get.clone(), put("prevIndex=4")]),
        (
            "v2, another range, no lease",
            V2,
            vec![v2_key(&wider), v2_leases(&[]), ok("{}")],
            true,
            vec![get.clone(), list, put("prevIndex=4")],
        ),
        (
            "v3, absent",
            V3,
            vec![server("3.4.23"), v3_keys(&[]), txn(true)],
            true,
            vec![version.clone(), range(CONFIG), swap("0")],
        ),
        ("v3, equal", V3, vec![server("3.5.9"), v3_keys(&[(CONFIG, same)])], false, vec![version.clone(), range(CONFIG)]),
        (
            "v3, rubbish",
            V3,
            vec![server("3.4.23"), v3_keys(&[(CONFIG, "x")]), v3_keys(&[]), txn(true)],
            true,
            vec![version.clone(), range(CONFIG), "POST /v3/kv/range ".to_owned(), swap("6")],
        ),
        (
            "an old gateway",
            V3,
            vec![server("3.2.32"), v3_keys(&[(CONFIG, WANTED)])],
            false,
            vec![version, "POST /v3alpha/kv/range ".to_owned()],
        ),
    ] {
        let (result, asked) = play(script, true, flanneld).await;
        assert_eq!(result, Ok(wrote), "{case}");
        assert_eq!(asked.len(), requests.len(), "{case}: {asked:?}");
        for (asked, expected) in asked.iter().zip(&requests) {
            assert!(asked.starts_with(expected.as_str()), "{case}: {asked}, not {expected}");
        }
    }
}

#[tokio::test]
async fn a_flanneld_of_unknown_release_gets_both_keys() {
    let absent = v2_error("404 Not Found", 100, "Key not found");
    let script = vec![
        ok(r#"{"action":"get","node":{"dir":true}}"#),
        server("3.4.23"),
        absent,
        status("201 Created", "{}"),
        v3_keys(&[]),
        txn(true),
    ];
    let (result, asked) = play(script, true, None).await;
    assert_eq!(result, Ok(true));
    assert!(asked[3].starts_with("PUT /v2/keys/") && asked[5].starts_with("POST /v3/kv/txn"), "{asked:?}");
    // Where v2 is off, v3 alone.
    let script = vec![status("404 Not Found", "404 page not found\n"), server("3.5.1"), v3_keys(&[]), txn(true)];
    let (result, asked) = play(script, true, None).await;
    assert_eq!((result, asked.len()), (Ok(true), 4));
}

#[tokio::test]
async fn another_range_is_refused_while_nodes_have_leases_of_the_old_one() {
    let old = WANTED.replace("10.100.0.0/16", "10.32.0.0/12");
    let leases = [
        ("10.32.1.0-24", "192.0.2.11"),
        ("10.32.2.0-24", "192.0.2.12"),
        ("10.32.3.0-24", "192.0.2.13"),
        ("10.32.4.0-24", "192.0.2.14"),
    ];
    let of_v3: Vec<_> = leases.iter().map(|(subnet, node)| lease_v3(subnet, node)).collect();
    let of_v3: Vec<_> = of_v3.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    for (flanneld, script, remedy) in [
        (V2, vec![v2_key(&old), v2_leases(&leases)], "etcdctl rm --recursive /coreos.com/network/subnets"),
        (
            V3,
            vec![server("3.4.23"), v3_keys(&[(CONFIG, &old)]), v3_keys(&of_v3)],
            "etcdctl del --prefix /coreos.com/network/subnets/",
        ),
    ] {
        let (result, asked) = play(script, true, flanneld).await;
        let error = result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Refused);
        assert_eq!(
            error.to_string(),
            "the pod network cannot change from 10.32.0.0/12 in subnets of /24 to 10.100.0.0/16 in subnets of /24 while nodes have \
             subnets in it: 10.32.1.0/24 of node 192.0.2.11, 10.32.2.0/24 of node 192.0.2.12, 10.32.3.0/24 of node 192.0.2.13 and 1 more"
        );
        assert!(error.suggested_remedy().unwrap().contains(remedy), "{:?}", error.suggested_remedy());
        assert!(!asked.iter().any(|one| one.starts_with("PUT") || one.contains("/txn")), "{asked:?}");
    }
    // The same, found before anything is changed; an etcd that is not there refuses nothing.
    let dir = tempfile::tempdir().unwrap();
    let root = Arc::new(Tree::open(dir.path()).unwrap());
    for (script, refused) in [
        (vec![v2_key(&old), v2_leases(&leases)], true),
        (vec![v2_key(&old), v2_leases(&[])], false),
        (vec![v2_key(WANTED)], false),
    ] {
        let server = Fake::start(script).await;
        let result = http(&root).refuse(&store(&server.base, true), V2).await;
        assert_eq!(result.is_err_and(|error| error.kind() == ErrorKind::Refused), refused);
    }
    http(&root).refuse(&store("http://127.0.0.1:9", true), None).await.unwrap();
    // Their length is a part of the range.
    let shorter = WANTED.replace("24", "25");
    let (result, _) = play(vec![v2_key(&shorter), v2_leases(&leases[..1])], true, V2).await;
    assert!(result.unwrap_err().to_string().contains("in subnets of /25 to"));
}

#[tokio::test]
async fn a_race_that_is_lost_is_inspected_again() {
    let lost = [
        (
            V2,
            vec![v2_error("404 Not Found", 100, "Key not found"), v2_error("412 Precondition Failed", 105, "Key already exists")],
        ),
        (V2, vec![v2_key(&WANTED.replace("host-gw", "udp")), v2_error("412 Precondition Failed", 101, "Compare failed")]),
        (V3, vec![server("3.4.23"), v3_keys(&[]), txn(false)]),
    ];
    for (flanneld, script) in lost {
        let (result, _) = play(script, true, flanneld).await;
        let error = result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Transient, "{error}");
        assert!(error.to_string().contains("another master wrote /coreos.com/network/config"), "{error}");
    }
}

#[tokio::test]
async fn what_flanneld_would_not_take_is_refused_before_etcd_is_asked() {
    let dir = tempfile::tempdir().unwrap();
    let root = Arc::new(Tree::open(dir.path()).unwrap());
    let server = Fake::start(vec![v2_key(WANTED)]).await;
    let narrow = FlannelStore { description: WANTED.replace("24", "17"), ..store(&server.base, true) };
    let error = http(&root).describe(&narrow, V2).await.unwrap_err();
    assert_eq!((error.kind(), server.requests().len()), (ErrorKind::Refused, 0), "{error}");
    assert!(error.to_string().contains("SubnetLen") && error.broken_rule().is_some());
}

#[tokio::test]
async fn others_wait_until_it_is_there_and_means_the_same() {
    let gone = || v2_error("404 Not Found", 100, "Key not found");
    for (script, flanneld, words) in [
        (vec![v2_key(r#"{"Network":"10.100.0.0/16","SubnetLen":25,"Backend":{"Type":"host-gw"}}"#)], V2, None),
        (vec![gone()], V2, Some("etcd has no /coreos.com/network/config, which the first master writes")),
        (vec![server("3.4.0"), v3_keys(&[])], V3, Some("etcd has no /coreos.com/network/config")),
        (
            vec![v2_key(r#"{"Network":"10.100.0.0/16"}"#)],
            V2,
            Some("config is {\"Network\":\"10.100.0.0/16\"}, but this node's parameters say {"),
        ),
        (vec![v2_key(&WANTED.replace("10.100", "10.32"))], V2, Some("10.32.0.0/16")),
        // The one that waits does not know which API its master's flanneld reads.
        (vec![ok(r#"{"node":{}}"#), server("3.4.0"), gone(), v3_keys(&[(CONFIG, WANTED)])], None, None),
        (vec![ok(r#"{"node":{}}"#), server("3.4.0"), v2_key(WANTED)], None, None),
    ] {
        let (result, asked) = play(script, false, flanneld).await;
        assert!(!asked.iter().any(|one| one.starts_with("PUT") || one.contains("/txn")), "{asked:?}");
        match words {
            None => assert_eq!(result, Ok(false), "{asked:?}"),
            Some(words) => {
                let error = result.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Transient);
                assert!(error.to_string().contains(words), "{error}");
            }
        }
    }
}

#[tokio::test]
async fn an_etcd_without_the_api_that_flanneld_reads_is_reported_by_name() {
    for (flanneld, script, words, remedy) in [
        (V2, vec![status("404 Not Found", "404 page not found\n")], "does not serve the v2 API", "--enable-v2"),
        (V3, vec![server("2.3.8")], "does not serve the v3 API", "3.0"),
        (V2, vec![status("401 Unauthorized", r#"{"message":"Insufficient credentials"}"#)], "answered 401", "grant-permission"),
    ] {
        let error = play(script, true, flanneld).await.0.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Permanent, "{error}");
        assert!(error.to_string().contains(words) && error.suggested_remedy().unwrap().contains(remedy), "{error:?}");
    }
    let error = play(vec![status("500 Internal Server Error", "etcdserver: no leader")], true, V2).await.0.unwrap_err();
    assert_eq!((error.kind(), error.cause()), (ErrorKind::Transient, "it answered 500: etcdserver: no leader"));
}

#[tokio::test]
async fn etcd_is_shown_the_nodes_certificate_and_leases_are_read_over_one_connection() {
    let dir = tempfile::tempdir().unwrap();
    let root = Arc::new(Tree::open(dir.path()).unwrap());
    let ours = TestCa::new("etcd");
    let (certificate, key) = ours.client("flanneld");
    for (path, text) in [("/ca.crt", &ours.pem()), ("/c.crt", &certificate), ("/c.key", &key)] {
        root.write(Path::new(path), text.as_bytes(), Attributes::mode(0o600)).unwrap();
    }
    let leases = [lease_v3("10.100.1.0-24", "192.0.2.11"), lease_v3("10.100.2.0-24&fd00::-64", "192.0.2.12")];
    let keys: Vec<_> = leases.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    let server = Fake::start_tls(vec![server("3.4.23"), v3_keys(&keys)], ours.identity_for_clients_of(&ours)).await;
    let mut store = store(&server.base, false);
    let [certificate, key, ca] = ["/c.crt", "/c.key", "/ca.crt"].map(str::to_owned);
    store.etcd.identity = Some(ClientIdentity { certificate, key, ca });
    let leases = Leases::open(&http(&root), &store, V3);
    for _ in 0..3 {
        assert_eq!(leases.read().await.unwrap(), [peer("10.100.1.0/24", "192.0.2.11"), peer("10.100.2.0/24", "192.0.2.12")]);
    }
    assert_eq!((server.connections(), server.requests().len()), (1, 4), "where the gateway is, and each time one question");
    // Everything below the directory: up to what comes after "/".
    let [first, end] = ["/coreos.com/network/subnets/", "/coreos.com/network/subnets0"].map(|key| BASE64.encode(key));
    assert_eq!(asked(&server)[3], format!("POST /v3/kv/range {{\"key\":\"{first}\",\"range_end\":\"{end}\"}}"));
}

fn peer(subnet: &str, node: &str) -> Peer {
    Peer { subnet: subnet.parse().unwrap(), node: node.parse().unwrap() }
}

/// A node's files of /run and /proc: eth0 and docker0, a route to 10.100.2.0/24 by way of 192.0.2.12.
fn machine() -> (tempfile::TempDir, Tree) {
    let dir = tempfile::tempdir().unwrap();
    let root = Tree::open(dir.path()).unwrap();
    let routes = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n\
        eth0\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n\
        docker0\t0001640A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n\
        eth0\t0002640A\t0C0200C0\t0003\t0\t0\t0\t00FFFFFF\t0\t0\t0\n";
    let trie = "Local:\n  |-- 10.100.1.1\n    /32 host LOCAL\n  |-- 192.0.2.11\n    /32 host LOCAL\n";
    let subnet = "FLANNEL_NETWORK=10.100.0.0/16\nFLANNEL_SUBNET=10.100.1.1/24\nFLANNEL_MTU=1500\nFLANNEL_IPMASQ=true\n";
    write(&root, "/proc/net/route", routes);
    write(&root, "/proc/net/fib_trie", trie);
    write(&root, "/run/flannel/subnet.env", subnet);
    (dir, root)
}

fn write(root: &Tree, path: &str, text: &str) {
    root.create_dir_all(Path::new(path).parent().unwrap(), Attributes::mode(0o755)).unwrap();
    root.write(Path::new(path), text.as_bytes(), Attributes::mode(0o644)).unwrap();
}

#[test]
fn the_subnet_is_flannels_and_the_bridge_has_it() {
    let network = "10.100.0.0/16".parse().unwrap();
    let (_dir, root) = machine();
    assert_eq!(check_subnet(&root, network, Some("docker0")), Ok(()));
    let cause = |network: &str, bridge| check_subnet(&root, network.parse().unwrap(), bridge).unwrap_err().to_string();
    assert_eq!(
        cause("10.32.0.0/12", None),
        "flanneld has the subnet 10.100.1.1/24 of 10.100.0.0/16, but the pod network is 10.32.0.0/12"
    );
    assert_eq!(cause("10.100.0.0/16", Some("cni0")), "cni0 does not have the address 10.100.1.1/24 that flannel gave this node");
    // Its network is right, its address is another's.
    write(&root, "/proc/net/fib_trie", "Local:\n  |-- 10.100.1.2\n    /32 host LOCAL\n");
    assert!(cause("10.100.0.0/16", Some("docker0")).starts_with("docker0 does not have"));
    root.remove(Path::new("/run/flannel/subnet.env")).unwrap();
    assert_eq!(
        cause("10.100.0.0/16", None),
        "flanneld has not written a subnet yet (neither /run/flannel/subnet.env nor /run/flanneld/subnet.env)"
    );
    write(&root, "/run/flanneld/subnet.env", "FLANNEL_SUBNET=10.100.1.1/24\nFLANNEL_MTU=1450\n");
    assert_eq!(check_subnet(&root, network, None), Ok(()));
    write(&root, "/run/flanneld/subnet.env", "rubbish");
    assert!(cause("10.100.0.0/16", None).starts_with("reading /run/flanneld/subnet.env: rubbish"));
}

#[test]
fn those_are_asked_for_packets_whose_routes_are_right() {
    let (_dir, root) = machine();
    let pods = |peers| PodRoutes { network: "10.100.0.0/16".parse().unwrap(), peers, address: None, bridge: "docker0".into() };
    let own = peer("10.100.1.0/24", "192.0.2.11");
    let (right, missing) = (peer("10.100.2.0/24", "192.0.2.12"), peer("10.100.3.0/24", "192.0.2.13"));
    let of_flannel = pods(Peers::Leases(store("http://192.0.2.11:2379", false)));
    let inspection = inspect(&root, &of_flannel, &[own, right, missing]).unwrap();
    assert_eq!((inspection.others.len(), inspection.wrong.len()), (2, 1));
    let questions = inspection.questions(&root, 7).unwrap();
    let asked: Vec<_> = questions.iter().map(|one| (one.peer, one.bridge.to_string(), one.node.to_string())).collect();
    assert_eq!(asked, [(right, "10.100.1.1".to_owned(), "192.0.2.11".to_owned())]);
    let cause = inspect(&root, &of_flannel, &[right]).unwrap_err().to_string();
    assert!(
        cause.contains("no host-gw lease under /coreos.com/network/subnets is for this node's subnet 10.100.1.0/24"),
        "{cause}"
    );
    // Static routes: the own subnet is the bridge's, the own address the one on the segment of the others.
    let given = inspect(&root, &pods(Peers::Given(vec![right])), &[]).unwrap();
    assert_eq!((given.subnet, given.wrong.len()), (Some(own.subnet), 0));
    assert_eq!(given.questions(&root, 0).unwrap(), questions);
    // Before the bridge is there nobody can be asked.
    write(&root, "/proc/net/fib_trie", "");
    assert_eq!(given.questions(&root, 0), Ok(vec![]));
}
