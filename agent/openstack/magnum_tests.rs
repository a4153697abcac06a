//! Certificates from a scripted Magnum.

use std::sync::Arc;

use futures_util::future::join_all;

use super::*;
use crate::clock::{Clock, Timestamp};
use crate::desired::Material;
use crate::files::Tree;
use crate::http::Tls;
use crate::http::fake::{Act, Fake, TestCa, ok, status};

/// A net: nobody waits for it.
const DEADLINE: Duration = Duration::from_mins(2);
const LEAF: &str = "-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----";

fn token(name: &str) -> Act {
    let body = json!({"token": {"issued_at": "2026-11-21T09:00:00.000000Z", "expires_at": "2026-11-21T10:00:00.000000Z"}});
    Act::Answer("201 Created", vec![format!("X-SUBJECT-TOKEN:  {name} ")], body.to_string().into_bytes())
}

fn signed() -> Act {
    Act::Answer("201 Created", Vec::new(), json!({"cluster_uuid": "c", "csr": "R", "pem": LEAF}).to_string().into_bytes())
}

/// As Magnum's middleware writes it.
fn refused(line: &'static str, detail: &str) -> Act {
    status(line, json!({"errors": [{"request_id": "", "code": "client", "title": "T", "detail": detail}]}).to_string())
}

/// WSME's words before 13.0.
fn no_such_argument() -> Act {
    refused("400 Bad Request", "Unknown argument: \"ca_cert_type\"")
}

fn trustee(keystone: &Fake, trust_id: Option<&str>) -> MagnumUser {
    let (auth_url, trust_id) = (format!("{}/v3", keystone.base), trust_id.map(str::to_owned));
    MagnumUser::Trustee { auth_url, user_id: "u".to_owned(), password: "hush".to_owned(), trust_id }
}

fn access_to(magnum: &Fake, user: MagnumUser) -> MagnumAccess {
    let bay = matches!(user, MagnumUser::Token(_));
    MagnumAccess { url: format!("{}/v1", magnum.base), cluster: "c".to_owned(), bay, user, ca: None, insecure: false }
}

struct Node {
    _dir: tempfile::TempDir,
    http: Http,
    keystone: Keystone,
}

impl Node {
    fn new(tls: Tls) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let clock = Clock::manual(Timestamp(0));
        let http = Http::new(tls, Arc::new(Tree::open(dir.path()).unwrap()), clock.clone());
        Self { _dir: dir, http, keystone: Keystone::new(clock) }
    }

    fn magnum<'a>(&'a self, access: &'a MagnumAccess) -> Magnum<'a> {
        Magnum::new(&self.http, &self.keystone, access)
    }
}

fn body(request: &str) -> Value {
    json::typed(request.split_once("\r\n\r\n").unwrap().1).unwrap()
}

fn path(request: &str) -> String {
    request.split(" HTTP").next().unwrap().to_owned()
}

#[tokio::test]
async fn one_token_of_the_trust_serves_requests_that_go_side_by_side() {
    let (keystone, magnum) = (Fake::start(vec![token("t")]).await, Fake::start(vec![signed()]).await);
    let (node, access) = (Node::new(Tls::default()), access_to(&magnum, trustee(&keystone, Some("trust"))));
    let asked = node.magnum(&access);
    let signers = [Signer::Kubernetes, Signer::Etcd, Signer::FrontProxy];
    for answer in join_all(signers.map(|signer| asked.fetch_ca(signer, DEADLINE))).await {
        assert_eq!(answer.unwrap(), format!("{LEAF}\n"));
    }
    assert_eq!(asked.sign(Signer::FrontProxy, "R", DEADLINE).await.unwrap(), format!("{LEAF}\n"));
    assert_eq!(keystone.requests().len(), 1);
    let identity = json!({"methods": ["password"], "password": {"user": {"id": "u", "password": "hush"}}});
    assert_eq!(
        body(&keystone.requests()[0]),
        json!({"auth": {"identity": identity, "scope": {"OS-TRUST:trust": {"id": "trust"}}}})
    );
    let mut seen = magnum.requests();
    assert!(seen.iter().all(|request| {
        let head = request.to_lowercase();
        head.contains("x-auth-token: t\r\n") && head.contains("openstack-api-version: container-infra latest\r\n")
    }));
    let last = seen.pop().unwrap();
    assert_eq!(
        (path(&last).as_str(), body(&last)),
        ("POST /v1/certificates", json!({"cluster_uuid": "c", "csr": "R", "ca_cert_type": "front-proxy"}))
    );
    let mut asked: Vec<_> = seen.iter().map(|request| path(request)).collect();
    asked.sort();
    assert_eq!(asked, ["etcd", "front-proxy", "kubernetes"].map(|kind| format!("GET /v1/certificates/c?ca_cert_type={kind}")));
}

#[tokio::test]
async fn without_a_trust_the_token_has_no_scope() {
    for trust in [None, Some("")] {
        let (keystone, magnum) = (Fake::start(vec![token("t")]).await, Fake::start(vec![signed()]).await);
        let (node, access) = (Node::new(Tls::default()), access_to(&magnum, trustee(&keystone, trust)));
        node.magnum(&access).fetch_ca(Signer::Etcd, DEADLINE).await.unwrap();
        assert_eq!(
            body(&keystone.requests()[0])["auth"].as_object().unwrap().keys().collect::<Vec<_>>(),
            ["identity"],
            "{trust:?}"
        );
    }
}

#[tokio::test]
async fn a_magnum_that_knows_no_types_is_not_sent_them_again() {
    let keystone = Fake::start(vec![token("t")]).await;
    for begin in ["CA", "sign"] {
        let magnum = Fake::start(vec![no_such_argument(), signed()]).await;
        let (node, access) = (Node::new(Tls::default()), access_to(&magnum, trustee(&keystone, None)));
        let asked = node.magnum(&access);
        if begin == "sign" {
            asked.sign(Signer::Etcd, "R", DEADLINE).await.unwrap();
        } else {
            asked.fetch_ca(Signer::Etcd, DEADLINE).await.unwrap();
        }
        asked.fetch_ca(Signer::FrontProxy, DEADLINE).await.unwrap();
        asked.sign(Signer::FrontProxy, "R", DEADLINE).await.unwrap();
        let seen = magnum.requests();
        assert_eq!(seen.len(), 4, "{begin}");
        assert!(seen[0].contains("ca_cert_type") && seen[1..].iter().all(|request| !request.contains("ca_cert_type")), "{begin}");
        assert_eq!(body(&seen[3]), json!({"cluster_uuid": "c", "csr": "R"}));
    }
    // Another mistake is not taken for it.
    let magnum = Fake::start(vec![refused("400 Bad Request", "Cluster c could not be found."), signed()]).await;
    let (node, access) = (Node::new(Tls::default()), access_to(&magnum, trustee(&keystone, None)));
    assert!(node.magnum(&access).sign(Signer::Etcd, "R", DEADLINE).await.is_err());
    assert_eq!(magnum.requests().len(), 1);
}

#[tokio::test]
async fn a_bay_is_asked_for_with_the_creators_token_and_no_type() {
    let magnum = Fake::start(vec![signed()]).await;
    let (node, access) = (Node::new(Tls::default()), access_to(&magnum, MagnumUser::Token("geheim".to_owned())));
    let asked = node.magnum(&access);
    asked.fetch_ca(Signer::Etcd, DEADLINE).await.unwrap();
    asked.sign(Signer::Etcd, "R", DEADLINE).await.unwrap();
    let seen = magnum.requests();
    assert_eq!(path(&seen[0]), "GET /v1/certificates/c");
    assert_eq!(body(&seen[1]), json!({"bay_uuid": "c", "csr": "R"}));
    assert!(seen.iter().all(|request| request.to_lowercase().contains("x-auth-token: geheim\r\n")));
    magnum.play(vec![refused("401 Unauthorized", "")]);
    let error = asked.sign(Signer::Etcd, "R", DEADLINE).await.unwrap_err();
    assert!(error.suggested_remedy().unwrap().starts_with("USER_TOKEN has expired"), "{error:?}");
    assert_eq!(magnum.requests().len(), 3, "there is no other token to try");
    assert!(!format!("{error:?} {asked:?}").contains("geheim"));
}

#[tokio::test]
async fn a_dead_token_is_replaced_once() {
    let keystone = Fake::start(vec![token("one"), token("two")]).await;
    let magnum = Fake::start(vec![refused("401 Unauthorized", ""), signed(), refused("401 Unauthorized", "no")]).await;
    let (node, access) = (Node::new(Tls::default()), access_to(&magnum, trustee(&keystone, None)));
    let asked = node.magnum(&access);
    asked.sign(Signer::Kubernetes, "R", DEADLINE).await.unwrap();
    assert!(magnum.requests()[1].to_lowercase().contains("x-auth-token: two\r\n"));
    let error = asked.sign(Signer::Kubernetes, "R", DEADLINE).await.unwrap_err();
    assert_eq!((magnum.requests().len(), keystone.requests().len(), error.answered()), (4, 3, Some(401)));
    assert!(error.suggested_remedy().unwrap().contains("keystone_authtoken"), "{error:?}");
}

#[tokio::test]
async fn whatever_magnum_says_there_is_one_cause_and_a_remedy() {
    let keystone = Fake::start(vec![token("geheim")]).await;
    let (permanent, transient) = (ErrorKind::Permanent, ErrorKind::Transient);
    let with_id = |id: &str| Act::Answer("500 Oops", vec![format!("X-Openstack-Request-Id: {id}")], Vec::new());
    let busy = Act::Answer("503 Service Unavailable", vec!["Retry-After: 7".to_owned()], Vec::new());
    for (act, kind, cause, remedy) in [
        (
            refused("400 Bad Request", "Received invalid csr"),
            permanent,
            "Magnum answered 400: Received invalid csr",
            "magnum.conf",
        ),
        (refused("403 Forbidden", "Policy doesn't allow"), permanent, "Magnum answered 403: Policy doesn't allow", "TRUST_ID"),
        (refused("404 Not Found", "Cluster c could not"), permanent, "Magnum answered 404: Cluster c could not", "MAGNUM_URL"),
        (status("404 Not Found", "<html>"), permanent, "Magnum answered 404: no details", "MAGNUM_URL"),
        (refused("406 Not Acceptable", "Invalid service"), permanent, "Magnum answered 406: Invalid service", "version"),
        (refused("409 Conflict", "Conflict."), transient, "Magnum answered 409: Conflict.", "magnum-conductor"),
        (refused("500 Internal Server Error", "x"), transient, "Magnum answered 500: x", "magnum-conductor"),
        (busy, transient, "Magnum answered 503: no details", "the error of this time in the logs"),
        // The id differs from try to try: in the cause it would be news each time.
        (with_id("req-1f0e"), transient, "Magnum answered 500: no details", "the lines with req-1f0e in the logs"),
        (with_id("req-`rm`"), transient, "Magnum answered 500: no details", "the error of this time in the logs"),
        (status("302 Found", ""), permanent, "Magnum answered 302: no details", "proxy"),
        (ok("<html>hush</html>"), permanent, "the answer is not JSON", "MAGNUM_URL leads to Magnum itself"),
        (ok(""), permanent, "the answer is not JSON", "MAGNUM_URL leads to Magnum itself"),
        (ok("{}"), permanent, "the answer contains no certificate", "proxy"),
        (ok("[]"), permanent, "the answer contains no certificate", "proxy"),
        (ok(r#"{"pem": null}"#), permanent, "the answer contains no certificate", "proxy"),
        (ok(r#"{"pem": " \n"}"#), permanent, "the answer contains no certificate", "proxy"),
        (Act::Cut(900, b"{\"pem\":".to_vec()), transient, "closed the connection before its answer was complete", ""),
        (
            Act::Endless(b"HTTP/1.1 200 OK\r\n\r\n".to_vec(), b' '),
            permanent,
            "the answer is larger than 1048576 bytes",
            "an admin of Magnum",
        ),
    ] {
        let magnum = Fake::start(vec![act]).await;
        let (node, access) = (Node::new(Tls::default()), access_to(&magnum, trustee(&keystone, None)));
        let error = node.magnum(&access).sign(Signer::Etcd, "R", DEADLINE).await.unwrap_err();
        let shown = format!("{error:?}");
        assert!(error.to_string().starts_with("requesting a certificate signed by Magnum's CA etcd: "), "{error}");
        assert!(error.cause().contains(cause) && error.kind() == kind, "{shown}");
        assert!(error.suggested_remedy().unwrap_or_default().contains(remedy), "{shown}");
        assert!(!shown.contains("hush") && !shown.contains("geheim"), "{shown}");
        assert_eq!(magnum.requests().len(), 1, "{shown}");
    }
}

#[tokio::test]
async fn what_is_slow_ends_at_the_deadline_and_what_keystone_refuses_is_reported() {
    let (keystone, slow) =
        (Fake::start(vec![token("t")]).await, Fake::start(vec![Act::Slow(DEADLINE * 2, Box::new(signed()))]).await);
    let (node, access) = (Node::new(Tls::default()), access_to(&slow, trustee(&keystone, None)));
    // The token is there already: what takes too long is Magnum's answer.
    let asked = node.magnum(&access);
    node.keystone.session(&node.http, asked.user.as_ref().unwrap(), DEADLINE).await.unwrap();
    let error = asked.fetch_ca(Signer::Etcd, Duration::from_millis(300)).await.unwrap_err();
    assert_eq!(keystone.requests().len(), 1);
    assert!(error.cause().contains("no answer from") && error.kind() == ErrorKind::Transient, "{error}");
    let refusal = |line, message: &str| status(line, json!({"error": {"message": message}}).to_string());
    for (act, cause) in [
        (refusal("401 Unauthorized", "The request you have made requires authentication."), "Keystone answered 401: The request"),
        (refusal("403 Forbidden", "Trustee has no delegated roles."), "Keystone answered 403: Trustee has"),
        (refusal("404 Not Found", "Could not find trust: t."), "Keystone answered 404: Could not find trust"),
    ] {
        let keystone = Fake::start(vec![act]).await;
        let access = access_to(&slow, trustee(&keystone, Some("t")));
        let error = node.magnum(&access).fetch_ca(Signer::Etcd, DEADLINE).await.unwrap_err();
        assert!(error.cause().starts_with(cause) && error.kind() == ErrorKind::Permanent, "{error}");
        let remedy = error.suggested_remedy().unwrap();
        assert!(["TRUST_ID", "TRUSTEE_PASSWORD", "table cluster"].iter().all(|part| remedy.contains(part)), "{remedy}");
    }
}

#[tokio::test]
async fn the_ca_of_the_parameters_is_believed_by_magnum_and_keystone_alike() {
    let ca = TestCa::new("cloud");
    let identity = || ca.identity("127.0.0.1", (2020, 2100));
    let (keystone, magnum) =
        (Fake::start_tls(vec![token("t")], identity()).await, Fake::start_tls(vec![signed()], identity()).await);
    let mut access = access_to(&magnum, trustee(&keystone, None));
    let node = Node::new(Tls::default());
    let error = node.magnum(&access).fetch_ca(Signer::Etcd, DEADLINE).await.unwrap_err();
    assert!(error.suggested_remedy().unwrap().contains("OPENSTACK_CA"), "{error:?}");
    access.ca = Some(Material::Text(ca.pem()));
    node.magnum(&access).fetch_ca(Signer::Etcd, DEADLINE).await.unwrap();
    // Parameters alone do not turn verification off.
    (access.ca, access.insecure) = (None, true);
    assert_eq!(node.magnum(&access).fetch_ca(Signer::Etcd, DEADLINE).await.unwrap_err().kind(), ErrorKind::Refused);
    let node = Node::new(Tls { ca_file: None, allow_insecure: true });
    node.magnum(&access).fetch_ca(Signer::Etcd, DEADLINE).await.unwrap();
    assert_eq!(keystone.requests().len(), 2);
}
