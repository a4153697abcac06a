//! Signals against a scripted Heat and Keystone.

use std::path::Path;
use std::sync::Arc;

use serde_json::json;

use super::*;
use crate::clock::Timestamp;
use crate::error::Error;
use crate::files::{Attributes, Tree};
use crate::http::Tls;
use crate::http::fake::{Act, Fake, TestCa, ok, status, token, zaqar_token};
use crate::openstack::aws_signature::Keys;
use crate::openstack::keystone::{Credentials, Scope};

const HANDLE: &str = "arn%3Aopenstack%3Aheat%3A%3Ap%3Astacks/s/u/resources/r";

fn forbidden() -> Act {
    let body = "<ErrorResponse><Error><Type>Sender</Type><Code>AccessDenied</Code><Message>User is not authorized to perform action</Message></Error></ErrorResponse>";
    status("403 Forbidden", body)
}

fn unauthorized() -> Act {
    status("401 Unauthorized", r#"{"error": {"code": 401, "message": "The request you have made requires authentication."}}"#)
}

fn user(base: &str) -> Credentials {
    let (auth_url, user_id) = (format!("{base}/v3"), "u1".to_owned());
    Credentials { auth_url, user_id, password: "hush".to_owned(), scope: Scope::Project("p".to_owned()), region: None }
}

fn keys(base: &str) -> OwnCredentials {
    OwnCredentials {
        cfn: Some((format!("{base}/v1/"), Keys { access: "AK1".to_owned(), secret: "hush".to_owned() })),
        ..OwnCredentials::default()
    }
}

/// A URL of 2026-03-01T11:59:58Z.
fn url(base: &str) -> Destination {
    let url = format!("{base}/v1/signal/{HANDLE}?Timestamp=2026-03-01T11%3A59%3A58Z&Signature=hush%3D");
    Destination::Url { url, verb: "POST".to_owned(), insecure: false }
}

fn sender(now: &str) -> Sender {
    let clock = Clock::manual(Timestamp::parse_rfc3339(now).unwrap());
    let http = Http::new(Tls::default(), Arc::new(Tree::open(Path::new("/")).unwrap()), clock.clone());
    Sender::new(http, Keystone::new(clock.clone()), clock)
}

/// Method and target of each request, and its token.
fn seen(fake: &Fake) -> Vec<String> {
    let line = |request: &String| {
        let head = request.split("\r\n\r\n").next().unwrap();
        let token = head.lines().find_map(|line| line.strip_prefix("x-auth-token: ")).map(|token| format!(" {token}"));
        let target: Vec<_> = head.split(' ').take(2).collect();
        format!("{}{}", target.join(" ").split('?').next().unwrap(), token.unwrap_or_default())
    };
    fake.requests().iter().map(line).collect()
}

fn body() -> Value {
    json!({"deploy_status_code": 0})
}

#[tokio::test]
async fn heat_signal_asks_for_one_token_and_uses_it_for_every_deployment_of_its_user() {
    let fake = Fake::start(vec![ok("")]).await;
    fake.play(vec![token("one", &fake.base), ok("null")]);
    let sender = sender("1970-01-01T00:00:07Z");
    for resource in 0..10 {
        let to = format!("/stacks/my%20stack/0a1b/resources/r{resource}/signal");
        let destination = Destination::User { credentials: user(&fake.base), to };
        let (answer, way) = sender.send(&destination, &body(), &OwnCredentials::default(), None).await;
        assert_eq!((judge(&answer), way), (SignalVerdict::Delivered, DeliveryMethod::AsGiven), "{answer:?}");
    }
    let seen = seen(&fake);
    assert_eq!(seen.len(), 11);
    assert_eq!(seen[0], "POST /v3/auth/tokens");
    assert_eq!(seen[1], "POST /v1/p/stacks/my%20stack/0a1b/resources/r0/signal one");
    assert_eq!(seen[10], "POST /v1/p/stacks/my%20stack/0a1b/resources/r9/signal one");
    let request = fake.requests().remove(1);
    let lower = request.to_lowercase();
    assert!(lower.contains("content-type: application/json\r\n") && lower.contains("content-length: 24\r\n"), "{request}");
    assert!(request.ends_with("\r\n\r\n{\"deploy_status_code\":0}"), "{request}");
}

#[tokio::test]
async fn a_dead_token_costs_one_new_one_and_then_heat_is_believed() {
    let fake = Fake::start(vec![ok("")]).await;
    let native = format!("{}/v1/p/stacks/s/u/resources/h/signal", fake.base);
    fake.play(vec![token("one", &fake.base), ok("null"), unauthorized(), token("two", &fake.base), ok("null"), unauthorized()]);
    let sender = sender("2026-11-21T09:03:26Z");
    let destination = Destination::User { credentials: user(&fake.base), to: native };
    for verdict in [SignalVerdict::Delivered, SignalVerdict::Delivered] {
        assert_eq!(judge(&sender.send(&destination, &body(), &OwnCredentials::default(), None).await.0), verdict);
    }
    let path = "POST /v1/p/stacks/s/u/resources/h/signal";
    let expected =
        ["POST /v3/auth/tokens", &format!("{path} one"), &format!("{path} one"), "POST /v3/auth/tokens", &format!("{path} two")];
    assert_eq!(seen(&fake), expected);
    // From here on Heat and Keystone answer 401 to everything: the user is disabled.
    let (answer, _) = sender.send(&destination, &body(), &OwnCredentials::default(), None).await;
    assert_eq!(judge(&answer), SignalVerdict::Refused, "{answer:?}");
    assert!(answer.cause.contains("Keystone answered 401") && answer.remedy.is_some(), "{answer:?}");
    assert_eq!(fake.requests().len(), 7, "one try with the old token, one for a new one");
}

#[tokio::test]
async fn keystone_that_is_down_or_busy_is_waited_for() {
    let fake = Fake::start(vec![Act::Answer("503 Busy", vec!["Retry-After: 9".to_owned()], Vec::new())]).await;
    let sender = sender("2026-11-21T09:03:26Z");
    let to = |base: &str| Destination::User { credentials: user(base), to: "/stacks/s/u/resources/r/signal".to_owned() };
    let (answer, _) = sender.send(&to(&fake.base), &body(), &OwnCredentials::default(), None).await;
    assert_eq!(judge(&answer), SignalVerdict::Retry(Some(Duration::from_secs(9))));
    // Port 9 (discard): nothing listens there.
    let (answer, _) = sender.send(&to("http://127.0.0.1:9"), &body(), &OwnCredentials::default(), None).await;
    assert_eq!(judge(&answer), SignalVerdict::Retry(None));
    assert!(answer.cause.contains("from Keystone") && !format!("{answer:?}").contains("hush"), "{answer:?}");
}

/// The handle of ZAQAR_SIGNAL whose user is known to the Keystone at `base`.
fn queue(base: &str) -> Destination {
    Destination::Queue(Queue { credentials: user(base), name: "s-handle x".to_owned() })
}

fn posted() -> Act {
    status("201 Created", r#"{"resources": ["/v2/queues/s-handle x/messages/1"]}"#)
}

#[tokio::test]
async fn zaqar_signal_is_a_message_to_the_queue_at_the_endpoint_of_its_own_catalog() {
    let (zaqar, keystone) = (Fake::start(vec![posted()]).await, Fake::start(vec![]).await);
    keystone.play(vec![zaqar_token("one", &zaqar.base)]);
    let sender = sender("2026-11-21T09:03:26Z");
    let signal = json!({"status": "SUCCESS", "reason": "r", "data": {"a": "wörld"}, "id": "n"});
    for _ in 0..3 {
        let (answer, way) = sender.send(&queue(&keystone.base), &signal, &keys(&zaqar.base), None).await;
        assert_eq!((judge(&answer), way), (SignalVerdict::Delivered, DeliveryMethod::AsGiven), "{answer:?}");
    }
    assert_eq!(seen(&keystone), ["POST /v3/auth/tokens"]);
    assert!(keystone.requests()[0].contains(r#""scope":{"project":{"id":"p"}}"#));
    assert_eq!(seen(&zaqar), ["POST /v2/queues/s-handle%20x/messages one"; 3]);
    let request = zaqar.requests().remove(0);
    let (head, body) = request.split_once("\r\n\r\n").unwrap();
    let header = |name: &str| head.lines().find_map(|line| line.strip_prefix(&format!("{name}: "))).unwrap_or_default();
    assert_eq!((header("x-project-id"), header("content-type")), ("p", "application/json"));
    let client = header("client-id");
    assert!(client.len() == 32 && client.bytes().all(|byte| byte.is_ascii_hexdigit()), "{head}");
    assert!(!request.contains("hush"), "{head}");
    // Heat reads what is in `body` as it reads a request to its own API.
    let message = json::answer(body.as_bytes()).unwrap();
    assert_eq!(message, json!({"messages": [{"body": signal, "ttl": 86400}]}));
}

#[tokio::test]
async fn a_queue_has_one_way_and_what_zaqar_answers_counts_as_heats_own_answers_do() {
    let refused = r#"{"title": "Invalid API request", "description": "Message collection size is too large. Max size 262144"}"#;
    for (act, verdict, cause, remedy) in [
        (
            status("400 Bad Request", refused),
            SignalVerdict::Refused,
            "Zaqar answered 400: Message collection size is too",
            "queue stats",
        ),
        (status("403 Forbidden", ""), SignalVerdict::Refused, "Zaqar answered 403", "messages:create"),
        (status("404 Not Found", ""), SignalVerdict::Refused, "Zaqar answered 404", "Keystone's catalog"),
        (status("500 Oops", ""), SignalVerdict::Retry(None), "Zaqar answered 500", "Zaqar's log"),
        (
            Act::Answer("503 Busy", vec!["Retry-After: 9".to_owned()], Vec::new()),
            SignalVerdict::Retry(Some(Duration::from_secs(9))),
            "Zaqar answered 503",
            "overloaded",
        ),
        (Act::Close, SignalVerdict::Retry(None), "closed the connection", ""),
    ] {
        let (zaqar, keystone) = (Fake::start(vec![act]).await, Fake::start(vec![]).await);
        keystone.play(vec![zaqar_token("one", &zaqar.base)]);
        // The server's own keys and user are for Heat.
        let own = OwnCredentials { user: Some(user(&zaqar.base)), ..keys(&zaqar.base) };
        let (answer, way) = sender("2026-03-01T12:20:00Z").send(&queue(&keystone.base), &body(), &own, None).await;
        assert_eq!((judge(&answer), way, zaqar.requests().len()), (verdict, DeliveryMethod::AsGiven, 1), "{answer:?}");
        assert!(answer.cause.contains(cause) && !answer.unsent, "{answer:?}");
        assert!(answer.remedy.as_ref().is_none_or(|said| said.contains(remedy)), "{answer:?}");
        assert_eq!(answer.remedy.is_none(), remedy.is_empty(), "{answer:?}");
    }
    // A token that is refused costs a new one; then Zaqar is believed.
    let (zaqar, keystone) = (Fake::start(vec![unauthorized(), posted()]).await, Fake::start(vec![]).await);
    keystone.play(vec![zaqar_token("one", &zaqar.base), zaqar_token("two", &zaqar.base)]);
    let sender = sender("2026-11-21T09:03:26Z");
    let answer = sender.send(&queue(&keystone.base), &body(), &OwnCredentials::default(), None).await.0;
    assert_eq!(judge(&answer), SignalVerdict::Delivered, "{answer:?}");
    let path = "POST /v2/queues/s-handle%20x/messages";
    assert_eq!(seen(&zaqar), [format!("{path} one"), format!("{path} two")]);
    zaqar.play(vec![unauthorized()]);
    let answer = sender.send(&queue(&keystone.base), &body(), &OwnCredentials::default(), None).await.0;
    assert!(judge(&answer) == SignalVerdict::Refused && answer.cause.contains("401"), "{answer:?}");
}

#[tokio::test]
async fn what_cannot_reach_the_queue_is_not_sent_anywhere() {
    // A catalog without Zaqar.
    let keystone = Fake::start(vec![ok("")]).await;
    keystone.play(vec![token("one", &keystone.base)]);
    let answer = sender("2026-11-21T09:03:26Z").send(&queue(&keystone.base), &body(), &OwnCredentials::default(), None).await.0;
    assert!(judge(&answer) == SignalVerdict::Retry(None) && answer.unsent && answer.cause.contains("messaging"), "{answer:?}");
    assert_eq!(keystone.requests().len(), 1);
    // One that leads from https to http.
    let (ca, zaqar) = (TestCa::new("throw-away"), Fake::start(vec![posted()]).await);
    let keystone = Fake::start_tls(vec![zaqar_token("one", &zaqar.base)], ca.identity("127.0.0.1", (2020, 2100))).await;
    let dir = tempfile::tempdir().unwrap();
    let tree = Arc::new(Tree::open(dir.path()).unwrap());
    tree.write(Path::new("ca.pem"), ca.pem().as_bytes(), Attributes::mode(0o644)).unwrap();
    let clock = Clock::manual(Timestamp::parse_rfc3339("2026-03-01T12:00:00Z").unwrap());
    let sender = Sender::new(Http::new(Tls::default(), tree, clock.clone()), Keystone::new(clock.clone()), clock);
    let own = OwnCredentials { ca: Some("/ca.pem".into()), ..OwnCredentials::default() };
    let (answer, _) = sender.send(&queue(&keystone.base), &body(), &own, None).await;
    assert!(answer.unsent && answer.cause.contains("clear text"), "{answer:?}");
    assert_eq!((zaqar.requests().len(), keystone.requests().len()), (0, 1));
    // Metadata that has changed meanwhile stops the message, too.
    let keystone = Fake::start(vec![zaqar_token("one", &zaqar.base)]).await;
    let guard: SendGuard = Arc::new(|| Err(Error::transient("Heat asks for something newer by now")));
    let (answer, _) = self::sender("2026-11-21T09:03:26Z").send(&queue(&keystone.base), &body(), &own, Some(guard)).await;
    assert!(answer.cause.contains("something newer") && zaqar.requests().is_empty(), "{answer:?}");
}

#[tokio::test]
async fn a_refused_url_is_signed_afresh_at_once_with_the_servers_own_keys() {
    // Two minutes old by this clock, and refused all the same.
    let fake = Fake::start(vec![forbidden(), ok("")]).await;
    let (answer, way) = sender("2026-03-01T12:02:00Z").send(&url(&fake.base), &body(), &keys(&fake.base), None).await;
    assert_eq!((judge(&answer), way), (SignalVerdict::Delivered, DeliveryMethod::ResignedUrl));
    let requests = fake.requests();
    assert!(
        requests[0].contains("Signature=hush%3D") && requests[0].starts_with(&format!("POST /v1/signal/{HANDLE}?Timestamp="))
    );
    assert!(requests[1].starts_with(&format!("POST /v1/signal/{HANDLE}?AWSAccessKeyId=AK1&")), "{}", requests[1]);
    assert!(!requests[1].contains("Timestamp") && requests[1].ends_with("{\"deploy_status_code\":0}"));
    assert_eq!(requests.len(), 2);
}

#[tokio::test]
async fn a_url_that_is_too_old_is_not_tried_first_but_tried() {
    let now = "2026-03-01T12:20:00Z";
    let fake = Fake::start(vec![ok("")]).await;
    assert_eq!(sender(now).send(&url(&fake.base), &body(), &keys(&fake.base), None).await.1, DeliveryMethod::ResignedUrl);
    assert_eq!(fake.requests().len(), 1, "one request did it");
    // The server's keys are of another stack, and Keystone takes URLs for a day.
    let fake = Fake::start(vec![status("400 Bad Request", ""), ok("")]).await;
    let (answer, way) = sender(now).send(&url(&fake.base), &body(), &keys(&fake.base), None).await;
    assert_eq!((judge(&answer), way), (SignalVerdict::Delivered, DeliveryMethod::AsGiven));
    // Without keys of its own it is just sent.
    let fake = Fake::start(vec![ok("")]).await;
    assert_eq!(sender(now).send(&url(&fake.base), &body(), &OwnCredentials::default(), None).await.1, DeliveryMethod::AsGiven);
}

#[tokio::test]
async fn a_server_that_polls_heat_itself_sends_by_its_own_user() {
    let fake = Fake::start(vec![ok("")]).await;
    fake.play(vec![forbidden(), token("one", &fake.base), ok("null")]);
    let own = OwnCredentials { user: Some(user(&fake.base)), ..OwnCredentials::default() };
    let (answer, way) = sender("2026-03-01T12:02:00Z").send(&url(&fake.base), &body(), &own, None).await;
    assert_eq!((judge(&answer), way), (SignalVerdict::Delivered, DeliveryMethod::OwnToken));
    assert_eq!(
        seen(&fake),
        [format!("POST /v1/signal/{HANDLE}").as_str(), "POST /v3/auth/tokens", "POST /v1/p/stacks/s/u/resources/r/signal one"]
    );
    // A handle's token that ended.
    fake.play(vec![unauthorized(), ok("null")]);
    let endpoint = "http://heat.invalid:8004/v1/x/stacks/s/u/resources/h/signal".replace("http://heat.invalid:8004", &fake.base);
    let handle = Destination::Token { endpoint, token: "old".to_owned(), insecure: false };
    assert_eq!(
        sender("2026-03-01T12:02:00Z").send(&handle, &body(), &OwnCredentials::default(), None).await.1,
        DeliveryMethod::AsGiven
    );
    fake.play(vec![unauthorized(), token("two", &fake.base), ok("null")]);
    let (answer, way) = sender("2026-03-01T12:02:00Z").send(&handle, &body(), &own, None).await;
    assert_eq!((judge(&answer), way), (SignalVerdict::Delivered, DeliveryMethod::OwnToken), "{answer:?}");
}

#[tokio::test]
async fn where_no_way_is_open_the_cause_names_them_all_and_no_secret() {
    let fake = Fake::start(vec![forbidden()]).await;
    let (answer, way) = sender("2026-03-01T12:20:00Z").send(&url(&fake.base), &body(), &keys(&fake.base), None).await;
    assert_eq!((judge(&answer), way), (SignalVerdict::Refused, DeliveryMethod::AsGiven));
    assert_eq!(
        answer.cause,
        "tried again, re-signed with the server's own keys: Heat answered 403: User is not authorized to perform action; Heat answered 403: User is \
         not authorized to perform action; the signal URL has expired or was revoked: it was made 20m02s ago, and by default Keystone refuses \
         pre-signed URLs 15 minutes after their Timestamp ([credential] auth_ttl)"
    );
    assert!(answer.remedy.as_ref().unwrap().contains("auth_ttl"), "{answer:?}");
    assert!(!format!("{answer:?} {:?}", keys(&fake.base)).contains("hush"));
    assert_eq!(fake.requests().len(), 2);
    // Keys that were deleted: heat-api-cfn answers 500 to them.
    let fake = Fake::start(vec![forbidden(), status("500 Internal Server Error", "")]).await;
    let (answer, _) = sender("2026-03-01T12:02:00Z").send(&url(&fake.base), &body(), &keys(&fake.base), None).await;
    assert_eq!(judge(&answer), SignalVerdict::Retry(None));
    assert!(
        answer.cause.contains("or the user who signed the URL 2m02s ago is gone")
            && answer.cause.ends_with("own keys: Heat answered 500"),
        "{answer:?}"
    );
}

#[tokio::test]
async fn keys_that_are_gone_close_no_other_way() {
    let broken = || status("500 Internal Server Error", "");
    // By a clock that is wrong the URL is old, and Keystone would still take it.
    let fake = Fake::start(vec![broken(), ok("")]).await;
    let (answer, way) = sender("2026-03-01T12:20:00Z").send(&url(&fake.base), &body(), &keys(&fake.base), None).await;
    assert_eq!((judge(&answer), way), (SignalVerdict::Delivered, DeliveryMethod::AsGiven), "{answer:?}");
    let fake = Fake::start(vec![ok("")]).await;
    fake.play(vec![forbidden(), broken(), token("one", &fake.base), ok("null")]);
    let own = OwnCredentials { user: Some(user(&fake.base)), ..keys(&fake.base) };
    let (answer, way) = sender("2026-03-01T12:02:00Z").send(&url(&fake.base), &body(), &own, None).await;
    assert_eq!((judge(&answer), way), (SignalVerdict::Delivered, DeliveryMethod::OwnToken), "{answer:?}");
    // The 500 may as well be Heat's trouble: what is refused beside it is not final.
    let fake = Fake::start(vec![broken(), forbidden()]).await;
    let (answer, _) = sender("2026-03-01T12:20:00Z").send(&url(&fake.base), &body(), &keys(&fake.base), None).await;
    assert_eq!((judge(&answer), fake.requests().len()), (SignalVerdict::Retry(None), 2), "{answer:?}");
}

#[tokio::test]
async fn a_way_that_does_not_reach_heat_closes_no_other_one() {
    // Port 9 (discard): nothing listens there.
    let nowhere = "http://127.0.0.1:9";
    let keystone = Fake::start(vec![status("503 Busy", "")]).await;
    for own in [
        keys(nowhere),
        OwnCredentials { user: Some(user(nowhere)), ..OwnCredentials::default() },
        OwnCredentials { user: Some(user(&keystone.base)), ..keys(nowhere) },
    ] {
        let fake = Fake::start(vec![ok("")]).await;
        let (answer, way) = sender("2026-03-01T12:20:00Z").send(&url(&fake.base), &body(), &own, None).await;
        assert_eq!((judge(&answer), way), (SignalVerdict::Delivered, DeliveryMethod::AsGiven), "{answer:?}");
        // Heat's own address is refused: the other way may be open later.
        let fake = Fake::start(vec![forbidden()]).await;
        let (answer, _) = sender("2026-03-01T12:20:00Z").send(&url(&fake.base), &body(), &own, None).await;
        assert_eq!(judge(&answer), SignalVerdict::Retry(None), "{answer:?}");
    }
    // Heat may have taken what it did not answer to.
    let (silent, fake) = (Fake::start(vec![Act::Close]).await, Fake::start(vec![ok("")]).await);
    let (answer, way) = sender("2026-03-01T12:20:00Z").send(&url(&fake.base), &body(), &keys(&silent.base), None).await;
    assert_eq!((judge(&answer), way), (SignalVerdict::Retry(None), DeliveryMethod::ResignedUrl), "{answer:?}");
    assert_eq!(fake.requests().len(), 0);
}

#[test]
fn a_curl_line_speaks_of_the_certificate_of_its_own_host_alone() {
    let line = |base: &str| {
        let url = format!("{base}/v1/waitcondition/{HANDLE}?Signature=hush");
        Destination::Url { url, verb: "PUT".to_owned(), insecure: true }
    };
    for (base, expected) in [("https://heat.example:8000", true), ("https://elsewhere.example:8000", false)] {
        let ways = other_ways(&keys("https://heat.example:8000"), &line(base));
        assert!(
            matches!(ways[..], [(DeliveryMethod::ResignedUrl, Destination::Url { insecure, .. })] if insecure == expected),
            "{ways:?}"
        );
    }
}

#[tokio::test]
async fn a_curl_line_turns_no_verification_off_by_itself() {
    // Port 9 (discard): nothing listens there. Had it been sent unverified, the settings would have forbidden it.
    let endpoint = "https://127.0.0.1:9/v1/p/stacks/s/u/resources/h/signal".to_owned();
    let destination = Destination::Token { endpoint, token: "hush".to_owned(), insecure: true };
    let (answer, _) = sender("2026-03-01T12:02:00Z").send(&destination, &body(), &OwnCredentials::default(), None).await;
    assert!(answer.cause.contains("connection refused"), "{answer:?}");
}

#[tokio::test]
async fn what_heat_says_of_the_signal_itself_is_not_sent_another_way() {
    for line in ["400 Bad Request", "404 Not Found", "500 Oops", "409 Conflict"] {
        let fake = Fake::start(vec![status(line, "")]).await;
        let (answer, way) = sender("2026-03-01T12:02:00Z").send(&url(&fake.base), &body(), &keys(&fake.base), None).await;
        assert_eq!((way, fake.requests().len()), (DeliveryMethod::AsGiven, 1), "{answer:?}");
    }
}

#[tokio::test]
async fn a_temporary_url_is_put_and_nothing_else_gets_the_servers_keys() {
    let fake = Fake::start(vec![unauthorized()]).await;
    let swift = format!("{}/v1/AUTH_1/stacks/o?temp_url_sig=hush&temp_url_expires=1", fake.base);
    let destination = Destination::Url { url: swift, verb: "PUT".to_owned(), insecure: false };
    let own = OwnCredentials { user: Some(user(&fake.base)), ..keys(&fake.base) };
    let (answer, _) = sender("2026-03-01T12:02:00Z").send(&destination, &body(), &own, None).await;
    assert_eq!((judge(&answer), fake.requests().len()), (SignalVerdict::Refused, 1));
    assert!(answer.cause.contains("temporary URL has expired"), "{answer:?}");
    assert!(fake.requests()[0].starts_with("PUT /v1/AUTH_1/stacks/o?temp_url_sig=hush&"));
}

#[tokio::test]
async fn no_answer_to_an_aws_body_may_mean_another_type_of_handle() {
    let wait = |base: &str| {
        let url = format!("{base}/v1/waitcondition/{HANDLE}?Signature=hush");
        Destination::Url { url, verb: "PUT".to_owned(), insecure: false }
    };
    let (aws, native) = (json!({"Status": "SUCCESS", "UniqueId": "n"}), json!({"status": "SUCCESS", "id": "n"}));
    for (act, body, hinted) in [
        (Act::Close, &aws, true),
        (status("500 Internal Server Error", ""), &aws, true),
        (status("503 Busy", ""), &aws, false),
        (Act::Close, &native, false),
    ] {
        let fake = Fake::start(vec![act]).await;
        let (answer, _) = sender("2026-03-01T12:02:00Z").send(&wait(&fake.base), body, &OwnCredentials::default(), None).await;
        assert_eq!(judge(&answer), SignalVerdict::Retry(None));
        assert_eq!(answer.remedy.is_some_and(|remedy| remedy.contains("get_attr: [handle, signal]")), hinted, "{}", answer.cause);
    }
}

#[test]
fn the_first_line_of_heats_own_words_is_taken() {
    let xml = b"<ErrorResponse><Error><Type>Sender</Type><Code>X</Code><Message>The Stack (s) could not be found.\nTraceback</Message></Error></ErrorResponse>";
    assert_eq!(error_message(xml), "The Stack (s) could not be found.");
    assert_eq!(error_message(br#"{"code": 404, "error": {"message": "gone", "type": "EntityNotFound"}}"#), "gone");
    assert_eq!(error_message(b"<html>"), "");
    assert_eq!(error_message(&[0xff, 0xfe]), "");
}

#[tokio::test]
async fn the_ca_of_the_servers_endpoints_is_trusted_for_signals_too() {
    let ca = TestCa::new("throw-away");
    let fake = Fake::start_tls(vec![ok("")], ca.identity("127.0.0.1", (2020, 2100))).await;
    let dir = tempfile::tempdir().unwrap();
    let tree = Arc::new(Tree::open(dir.path()).unwrap());
    tree.write(Path::new("ca.pem"), ca.pem().as_bytes(), Attributes::mode(0o644)).unwrap();
    let clock = Clock::manual(Timestamp::parse_rfc3339("2026-03-01T12:00:00Z").unwrap());
    let sender = Sender::new(Http::new(Tls::default(), tree, clock.clone()), Keystone::new(clock.clone()), clock);
    let (refused, _) = sender.send(&url(&fake.base), &json!({}), &OwnCredentials::default(), None).await;
    assert!(refused.cause.contains("signed by a CA"), "{}", refused.cause);
    let own = OwnCredentials { ca: Some("/ca.pem".into()), ..OwnCredentials::default() };
    for _ in 0..2 {
        assert_eq!(sender.send(&url(&fake.base), &json!({}), &own, None).await.0.code, Some(200));
    }
    assert_eq!(fake.connections(), 2, "one was refused, one is kept");
}
