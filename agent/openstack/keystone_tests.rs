//! Tokens against a scripted Keystone.

use std::path::Path;

use futures_util::future::join_all;

use super::*;
use crate::files::{Attributes, Tree};
use crate::http::Tls;
use crate::http::fake::{Act, Fake, TestCa, ok, status};

/// A net: nobody waits for it.
const DEADLINE: Duration = Duration::from_mins(2);

/// An answer as Keystone 27 gives it, cut down to what matters.
fn token(name: &str, issued: &str, expires: &str, catalog: &Value) -> Act {
    let body = json!({"token": {"methods": ["password"], "issued_at": issued, "expires_at": expires, "catalog": catalog}});
    Act::Answer("201 CREATED", vec![format!("X-Subject-Token: {name}")], body.to_string().into_bytes())
}

/// One that lasts four hours, with Heat at `base`.
fn good(name: &str, base: &str) -> Act {
    let heat = json!({"type": "orchestration", "endpoints": [
        {"interface": "admin", "region": "RegionOne", "region_id": "RegionOne", "url": "http://admin.example"},
        {"interface": "public", "region": "RegionOne", "region_id": "RegionOne", "url": format!("{base}/v1/p/")},
        {"interface": "public", "region": "Two", "region_id": null, "url": format!("{base}/two/p")},
    ]});
    token(name, "2026-11-21T09:03:26.000000Z", "2026-11-21T13:03:26.000000Z", &json!([{"type": "key-manager"}, heat]))
}

fn refused() -> Act {
    status("401 UNAUTHORIZED", r#"{"error":{"code":401,"message":"The request you have made requires authentication."}}"#)
}

fn user(base: &str, id: &str) -> Credentials {
    let (auth_url, user_id) = (format!("{base}/v3/"), id.to_owned());
    Credentials { auth_url, user_id, password: "hush".to_owned(), scope: Scope::Project("p".to_owned()), region: None }
}

/// A node whose clock stands at 1970.
struct Node {
    dir: tempfile::TempDir,
    clock: Clock,
    http: Http,
    keystone: Keystone,
}

impl Node {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let clock = Clock::manual(Timestamp(0));
        let http = Http::new(Tls::default(), Arc::new(Tree::open(dir.path()).unwrap()), clock.clone());
        Self { dir, keystone: Keystone::new(clock.clone()), http, clock }
    }

    async fn token(&self, credentials: &Credentials) -> String {
        self.keystone.session(&self.http, credentials, DEADLINE).await.unwrap().token
    }

    async fn error(&self, credentials: &Credentials) -> Error {
        self.keystone.session(&self.http, credentials, DEADLINE).await.unwrap_err()
    }

    async fn get(&self, credentials: &Credentials, url: &str) -> Result<Response> {
        self.keystone.request(&self.http, credentials, "orchestration", Request::new("GET", url, DEADLINE)).await
    }
}

/// Waits until a request has come.
async fn is_asked(server: &Fake) {
    while server.requests().is_empty() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_token_is_used_until_shortly_before_its_end_whatever_the_wall_clock_says() {
    let keystone = Fake::start(vec![good("one", "http://h"), good("two", "http://h")]).await;
    let node = Node::new();
    let credentials = user(&keystone.base, "u");
    assert_eq!(node.token(&credentials).await, "one");
    let request = keystone.requests().remove(0);
    let (head, body) = request.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("POST /v3/auth/tokens HTTP/1.1\r\n"), "{head}");
    assert!(head.to_lowercase().contains("content-type: application/json"));
    assert_eq!(
        body,
        r#"{"auth":{"identity":{"methods":["password"],"password":{"user":{"id":"u","password":"hush"}}},"scope":{"project":{"id":"p"}}}}"#
    );
    node.clock.advance(Duration::from_secs(4 * 3600 - 121));
    assert_eq!(node.token(&credentials).await, "one");
    assert_eq!(keystone.requests().len(), 1);
    node.clock.advance(Duration::from_secs(1));
    assert_eq!(node.token(&credentials).await, "two");
    // Clones share it; another project or another Keystone does not.
    let other = Credentials { scope: Scope::Project("q".to_owned()), ..credentials.clone() };
    assert_eq!(node.keystone.clone().session(&node.http, &credentials, DEADLINE).await.unwrap().token, "two");
    node.token(&other).await;
    assert_eq!(keystone.requests().len(), 3);
}

#[tokio::test]
async fn a_short_or_unknown_life_neither_asks_at_each_poll_nor_for_ever() {
    for (issued, expires, life) in [
        ("2026-11-21T09:00:00.000000Z", "2026-11-21T09:01:00.000000Z", 60),
        ("2026-11-21T09:00:00.000000Z", "2026-11-21T08:00:00.000000Z", 3600),
        ("now", "2026-11-21T08:00:00.000000Z", 3600),
    ] {
        let keystone = Fake::start(vec![token("t", issued, expires, &json!([]))]).await;
        let node = Node::new();
        let credentials = user(&keystone.base, "u");
        for (seconds, requests) in [(0, 1), (life / 2, 1), (life / 2, 2)] {
            node.clock.advance(Duration::from_secs(seconds));
            node.token(&credentials).await;
            assert_eq!(keystone.requests().len(), requests, "{issued} {expires}");
        }
    }
}

#[tokio::test]
async fn every_spelling_of_auth_url_leads_to_version_3_without_discovery() {
    for path in ["", "/", "/v3", "/v3/", "/v2.0", "/v2.0/", "/identity", "/identity/v3", "/v3//"] {
        let keystone = Fake::start(vec![good("t", "http://h")]).await;
        let credentials = Credentials { auth_url: format!("{}{path}", keystone.base), ..user("", "u") };
        Node::new().token(&credentials).await;
        let prefix = if path.starts_with("/identity") { "/identity" } else { "" };
        assert_eq!(keystone.requests().len(), 1);
        assert!(keystone.requests()[0].starts_with(&format!("POST {prefix}/v3/auth/tokens ")), "{path}");
    }
}

#[tokio::test]
async fn simultaneous_callers_share_one_request_and_its_failure() {
    let slow = |act| Act::Slow(Duration::from_millis(100), Box::new(act));
    let keystone =
        Fake::start(vec![slow(status("503 Service Unavailable", "")), slow(good("one", "http://h")), good("two", "http://h")])
            .await;
    let node = Node::new();
    let credentials = user(&keystone.base, "u");
    let all = || join_all((0..5).map(|_| node.keystone.session(&node.http, &credentials, DEADLINE)));
    assert!(all().await.iter().all(|answer| answer.as_ref().unwrap_err().cause().contains("503")));
    assert_eq!(keystone.requests().len(), 1);
    let sessions: Vec<_> = all().await.into_iter().map(Result::unwrap).collect();
    assert!(sessions.iter().all(|session| session.token == "one"));
    assert_eq!(keystone.requests().len(), 2);
    // Two find out that the token is dead; the second one comes when the new one is there.
    node.keystone.refused(&credentials, &sessions[0]);
    assert_eq!(node.token(&credentials).await, "two");
    node.keystone.refused(&credentials, &sessions[1]);
    assert_eq!(node.token(&credentials).await, "two");
    assert_eq!(keystone.requests().len(), 3);
}

#[tokio::test]
async fn who_waits_for_the_request_of_another_one_has_a_deadline_of_its_own() {
    let keystone = Fake::start(vec![Act::Slow(DEADLINE * 2, Box::new(Act::Close))]).await;
    let node = Node::new();
    let credentials = user(&keystone.base, "u");
    let long = node.keystone.session(&node.http, &credentials, DEADLINE);
    let short = async {
        is_asked(&keystone).await;
        node.keystone.session(&node.http, &credentials, Duration::from_millis(500)).await.unwrap_err()
    };
    let error = tokio::select! {
        ended = long => panic!("before the one that waits for it: {ended:?}"),
        error = short => error,
    };
    assert!(error.to_string().contains("user u from Keystone: no answer from Keystone"), "{error}");
    assert_eq!(keystone.requests().len(), 1);
}

#[tokio::test]
async fn the_name_of_a_user_alone_gets_no_token() {
    let elsewhere = Fake::start(vec![ok("")]).await;
    let keystone = Fake::start(vec![good("one", "http://h"), refused()]).await;
    let node = Node::new();
    let own = user(&keystone.base, "u");
    assert_eq!(node.token(&own).await, "one");
    let guessed = Credentials { password: "guessed".to_owned(), ..own };
    let error = node.get(&guessed, &format!("{}/x", elsewhere.base)).await.unwrap_err();
    assert!(error.cause().contains("Keystone answered 401") && elsewhere.requests().is_empty(), "{error}");
}

#[tokio::test]
async fn each_scope_has_a_token_of_its_own() {
    let keystone = Fake::start(vec![good("project", "http://h"), good("trust", "http://h"), good("none", "http://h")]).await;
    let node = Node::new();
    let of = |scope| Credentials { scope, ..user(&keystone.base, "u") };
    let all = [Scope::Project("p".into()), Scope::Trust("p".into()), Scope::None].map(of);
    for _ in 0..2 {
        for (credentials, name) in all.iter().zip(["project", "trust", "none"]) {
            assert_eq!(node.token(credentials).await, name);
        }
    }
    let asked = |index: usize| -> Value { json::typed(keystone.requests()[index].split_once("\r\n\r\n").unwrap().1).unwrap() };
    let scope = |index| asked(index)["auth"].get("scope").cloned();
    assert_eq!(scope(0), Some(json!({"project": {"id": "p"}})));
    assert_eq!(scope(1), Some(json!({"OS-TRUST:trust": {"id": "p"}})));
    assert_eq!((scope(2), keystone.requests().len()), (None, 3));
}

/// Entries of the outbox outlive an upgrade of the agent.
#[test]
fn credentials_are_stored_as_ever_and_only_those_of_a_project() {
    let stored = json!({"auth_url": "http://k/v3/", "user_id": "u", "password": "hush", "project_id": "p", "region": null});
    let credentials = user("http://k", "u");
    assert_eq!(serde_json::to_value(&credentials).unwrap(), stored);
    assert_eq!(serde_json::from_value::<Credentials>(stored).unwrap(), credentials);
    for scope in [Scope::Trust("t".into()), Scope::None] {
        let error = serde_json::to_value(Credentials { scope, ..credentials.clone() }).unwrap_err().to_string();
        assert!(error.contains("only a user with a project is stored"), "{error}");
    }
}

#[tokio::test]
async fn a_caller_that_gives_up_leaves_no_lock_behind() {
    let keystone = Fake::start(vec![Act::Slow(DEADLINE * 2, Box::new(Act::Close)), good("one", "http://h")]).await;
    let node = Node::new();
    let credentials = user(&keystone.base, "u");
    tokio::select! {
        ended = node.keystone.session(&node.http, &credentials, DEADLINE) => panic!("{ended:?}"),
        () = is_asked(&keystone) => {}
    }
    assert_eq!(node.token(&credentials).await, "one");
}

#[tokio::test]
async fn the_number_of_tokens_is_bounded_and_the_one_in_use_stays() {
    let keystone = Fake::start(vec![good("t", "http://h")]).await;
    let node = Node::new();
    let polled = user(&keystone.base, "server");
    for n in 0..200 {
        node.token(&polled).await;
        node.token(&user(&keystone.base, &format!("deployment{n}"))).await;
    }
    assert_eq!(keystone.requests().len(), 201);
    assert_eq!(node.keystone.slots.lock().unwrap().len(), KEPT);
}

/// An answer with so many endpoints of Heat, each with an address of so many bytes.
fn with_endpoints(number: usize, bytes: usize) -> Act {
    let endpoint =
        |n: usize| json!({"interface": "public", "region": n.to_string(), "url": format!("http://{}", "h".repeat(bytes))});
    let catalog = json!([{"type": "orchestration", "endpoints": (0..number).map(endpoint).collect::<Vec<_>>()}]);
    token("t", "2026-11-21T09:03:26.000000Z", "2026-11-21T13:03:26.000000Z", &catalog)
}

/// Attack: 64 catalogs of 2 MiB were kept.
#[tokio::test]
async fn the_memory_of_tokens_is_bounded() {
    let answer = with_endpoints(3, 20_000);
    let server = Fake::start((0..22).map(|_| answer.clone()).collect::<Vec<_>>()).await;
    let node = Node::new();
    for id in 0..20 {
        node.token(&user(&server.base, &id.to_string())).await;
        let sum: usize = node.keystone.slots.lock().unwrap().iter().map(|slot| slot.weight()).sum();
        assert!(sum <= SESSIONS_MEMORY, "{sum}");
    }
    node.token(&user(&server.base, "19")).await;
    assert_eq!(server.requests().len(), 20, "the one in use stays");
    assert_eq!(node.keystone.slots.lock().unwrap().len(), 17);
}

/// Attack: a catalog beyond its limit was called no JSON.
#[tokio::test]
async fn a_catalog_that_would_take_too_much_memory_has_its_own_cause() {
    for (endpoints, bytes, is_taken) in [(300, 30, true), (4, 20_000, false), (1, 70_000, false), (5_000, 0, false)] {
        let keystone = Fake::start(vec![with_endpoints(endpoints, bytes)]).await;
        let answer = Node::new().keystone.session(&Node::new().http, &user(&keystone.base, "u"), DEADLINE).await;
        assert_eq!(answer.is_ok(), is_taken, "{endpoints} {bytes}: {answer:?}");
        if let Err(error) = answer {
            assert!(error.cause().contains("a catalog that would take more than 64 KiB of memory"), "{error}");
        }
    }
}

/// Clouds with catalogs between 512 KiB and 2 MiB were refused; side by side such answers would take more memory than there is for them.
#[tokio::test]
async fn one_large_catalog_at_a_time_is_read_and_no_small_one_waits_for_it() {
    let service = |n: usize| json!({"type": "x".repeat(100), "name": n.to_string(), "endpoints": [{"interface": "public", "url": "http://h"}]});
    let of = |bytes: usize| {
        let mut services: Vec<_> = (0..bytes / 175).map(service).collect();
        services.push(json!({"type": "orchestration", "endpoints": [{"interface": "public", "url": "http://heat"}]}));
        token("t", "2026-11-21T09:00:00.000000Z", "2026-11-21T10:00:00.000000Z", &json!(services))
    };
    let (small, large, huge) = (of(100 << 10), of(1900 << 10), of(2200 << 10));
    let ask = async |act: &Act, limit: Duration| {
        let keystone = Fake::start(vec![act.clone()]).await;
        let node = Node::new();
        let clock = Clock::system();
        let http = Http::new(Tls::default(), Arc::new(Tree::open(node.dir.path()).unwrap()), clock.clone());
        let session = Keystone::new(clock).session(&http, &user(&keystone.base, "u"), limit).await?;
        session.endpoint("orchestration", None)
    };
    for act in [&small, &large] {
        assert_eq!(ask(act, DEADLINE).await.unwrap(), "http://heat");
    }
    let error = ask(&huge, DEADLINE).await.unwrap_err();
    assert!(error.cause().contains("larger than 2097152 bytes"), "{error}");
    let other = LARGE.acquire().await.unwrap();
    assert!(ask(&small, DEADLINE).await.is_ok());
    let error = ask(&large, Duration::from_secs(2)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Transient, "{error}");
    drop(other);
    assert!(ask(&large, DEADLINE).await.is_ok());
}

#[tokio::test]
async fn the_endpoint_is_public_and_of_the_region() {
    let keystone = Fake::start(vec![good("t", "http://heat")]).await;
    let node = Node::new();
    let session = node.keystone.session(&node.http, &user(&keystone.base, "u"), DEADLINE).await.unwrap();
    let url = |region| session.endpoint("orchestration", region).unwrap();
    assert_eq!((url(None), url(Some("")), url(Some("Two"))), ("http://heat/v1/p".into(), url(None), "http://heat/two/p".into()));
    let error = session.endpoint("orchestration", Some("Three")).unwrap_err();
    assert!(error.cause().contains("in region Three; there is one in RegionOne, Two"), "{error}");
    assert!(error.suggested_remedy().unwrap().contains("region_name"));
    for region in [None, Some("RegionOne")] {
        let error = session.endpoint("messaging", region).unwrap_err();
        assert!(error.cause().contains("no public messaging endpoint"), "{error}");
    }
}

#[tokio::test]
async fn of_a_large_catalog_only_what_is_spoken_to_is_kept() {
    let url = "http://h";
    let mut services: Vec<Value> = (0..500)
        .map(
            |n| json!({"type": format!("service{n}"), "endpoints": [{"interface": "public", "region": "RegionOne", "url": url}]}),
        )
        .collect();
    services.push(json!({"type": "orchestration", "endpoints": [
        {"interface": "internal", "url": "http://inside"}, {"interface": "public", "url": url}, null, 7,
    ]}));
    let act = token("t", "2026-11-21T09:00:00.000000Z", "2026-11-21T10:00:00.000000Z", &json!(services));
    let keystone = Fake::start(vec![act]).await;
    let node = Node::new();
    let session = node.keystone.session(&node.http, &user(&keystone.base, "u"), DEADLINE).await.unwrap();
    assert_eq!((session.endpoints.len(), session.endpoint("orchestration", None).unwrap()), (1, url.to_owned()));
}

#[tokio::test]
async fn an_endpoint_that_is_registered_later_is_found_before_the_token_ends() {
    let heat = Fake::start(vec![ok("1")]).await;
    let without = token("one", "2026-11-21T09:00:00.000000Z", "2026-11-22T09:00:00.000000Z", &json!([]));
    let keystone = Fake::start(vec![without, good("two", &heat.base)]).await;
    let node = Node::new();
    let credentials = user(&keystone.base, "u");
    // Not a token a try.
    for seconds in [0, 100, 199] {
        node.clock.advance(Duration::from_secs(seconds));
        let error = node.get(&credentials, "/x").await.unwrap_err();
        assert!(error.cause().contains("no public orchestration endpoint"), "{error}");
    }
    assert_eq!(keystone.requests().len(), 1);
    node.clock.advance(Duration::from_secs(1));
    assert!(node.get(&credentials, "/x").await.is_err());
    assert_eq!(node.get(&credentials, "/x").await.unwrap().body, b"1");
    assert_eq!(keystone.requests().len(), 2);
}

#[tokio::test]
async fn what_keystone_refuses_is_said_without_a_secret() {
    let page = status("404 Not Found", "<html>");
    let busy = Act::Answer("429 Too Many Requests", vec!["Retry-After: 77".to_owned()], Vec::new());
    let echo = status("400 Bad Request", r#"{"error":{"message":"Invalid input for field 'identity/password': hush"}}"#);
    let bare = |body: &str| Act::Answer("201 Created", vec!["X-Subject-Token: geheim".to_owned()], body.as_bytes().to_vec());
    for (act, kind, words, remedy, pause) in [
        (
            refused(),
            ErrorKind::Permanent,
            "token for user u from Keystone: Keystone answered 401: The request you",
            "suspended",
            None,
        ),
        (page, ErrorKind::Permanent, "Keystone answered 404: no details", "correct it", None),
        (echo, ErrorKind::Permanent, "Keystone answered 400: a message that contains a secret, not shown", "user_id", None),
        (busy, ErrorKind::Transient, "Keystone answered 429", "retries", Some(77)),
        (status("503 Service Unavailable", ""), ErrorKind::Transient, "Keystone answered 503", "retries", None),
        (ok("{}"), ErrorKind::Permanent, "the answer contains no token", "Keystone itself", None),
        (bare("hush"), ErrorKind::Permanent, "the answer is not JSON", "Keystone itself", None),
        (Act::Cut(900, b"{\"token\":".to_vec()), ErrorKind::Transient, "closed the connection", "", None),
    ] {
        let keystone = Fake::start(vec![act]).await;
        let error = Node::new().error(&user(&keystone.base, "u")).await;
        assert_eq!((error.kind(), error.asked_pause()), (kind, pause.map(Duration::from_secs)), "{error}");
        assert!(error.to_string().contains(words), "{error}");
        assert!(error.suggested_remedy().unwrap_or_default().contains(remedy), "{error}: {:?}", error.suggested_remedy());
        let all = format!("{error:?}");
        assert!(!all.contains("hush") && !all.contains("geheim"), "{all}");
    }
    let node = Node::new();
    let keystone = Fake::start(vec![good("geheim", "http://h")]).await;
    let credentials = user(&keystone.base, "u");
    let session = node.keystone.session(&node.http, &credentials, DEADLINE).await.unwrap();
    let shown = format!("{:?} {credentials:?} {session:?}", node.keystone);
    assert!(!shown.contains("hush") && !shown.contains("geheim"), "{shown}");
}

#[tokio::test]
async fn a_request_carries_the_token_and_a_revoked_one_is_replaced_once() {
    let heat = Fake::start(vec![ok("1"), refused(), ok("2"), refused(), refused()]).await;
    let keystone = Fake::start(vec![good("one", &heat.base), good("two", &heat.base), good("three", &heat.base)]).await;
    let node = Node::new();
    let credentials = user(&keystone.base, "u");
    assert_eq!(node.get(&credentials, "/stacks/s/1").await.unwrap().body, b"1");
    assert!(heat.requests()[0].starts_with("GET /v1/p/stacks/s/1 ") && heat.requests()[0].contains("x-auth-token: one\r\n"));
    let absolute = format!("{}/elsewhere", heat.base);
    assert_eq!(node.get(&credentials, &absolute).await.unwrap().body, b"2");
    assert!(heat.requests()[2].starts_with("GET /elsewhere ") && heat.requests()[2].contains("x-auth-token: two\r\n"));
    assert_eq!(keystone.requests().len(), 2);
    // A service that refuses every token gets two requests, not more.
    assert_eq!(node.get(&credentials, "/x").await.unwrap().status, 401);
    assert_eq!((heat.requests().len(), keystone.requests().len()), (5, 3));
    let elsewhere = Credentials { region: Some("Three".to_owned()), ..credentials };
    assert!(node.get(&elsewhere, "/x").await.unwrap_err().cause().contains("Three"));
    assert_eq!((heat.requests().len(), keystone.requests().len()), (5, 3), "the token is good for every region");
}

#[tokio::test]
async fn a_token_got_over_https_is_not_sent_in_clear_because_the_catalog_says_so() {
    let ca = TestCa::new("known");
    let heat = Fake::start(vec![ok("hi")]).await;
    let secure = Fake::start_tls(vec![good("one", &heat.base)], ca.identity("127.0.0.1", (2020, 2100))).await;
    let plain = Fake::start(vec![good("two", &heat.base)]).await;
    for (keystone, allow_insecure, taken) in [(&secure, false, false), (&secure, true, true), (&plain, false, true)] {
        let dir = tempfile::tempdir().unwrap();
        let root = Arc::new(Tree::open(dir.path()).unwrap());
        root.write(Path::new("ca.pem"), ca.pem().as_bytes(), Attributes::mode(0o644)).unwrap();
        let clock = Clock::system();
        let http = Http::new(Tls { ca_file: Some("/ca.pem".into()), allow_insecure }, root, clock.clone());
        let asked = heat.requests().len();
        let answer = Keystone::new(clock)
            .request(&http, &user(&keystone.base, "u"), "orchestration", Request::new("GET", "/x", DEADLINE))
            .await;
        assert_eq!((answer.is_ok(), heat.requests().len() > asked), (taken, taken), "{answer:?}");
        if let Err(error) = answer {
            assert!(error.kind() == ErrorKind::Refused && error.cause().contains("its token would travel in clear"), "{error}");
            assert!(error.suggested_remedy().unwrap().contains("allow_insecure"));
        }
    }
}
