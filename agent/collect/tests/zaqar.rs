//! The source `zaqar`.

use super::replaced::{count, naming, pass, whole};
use super::transports::header;
use super::*;
use crate::freshness::Freshness;
use crate::openstack::keystone::Scope;

/// The metadata that Heat writes for ZAQAR_MESSAGE.
pub(super) fn keys_of(keystone: &str) -> Value {
    json!({"user_id": "u", "password": "hush-hush", "auth_url": format!("{keystone}/v3/"), "project_id": "p", "queue_id": "q 1",
        "region_name": "RegionOne"})
}

/// A token that lasts an hour, with Zaqar at `base`.
pub(super) fn token(name: &str, base: &str) -> Act {
    let zaqar = json!({"interface": "public", "region": "RegionOne", "region_id": "RegionOne", "url": base});
    let body = json!({"token": {"issued_at": "2026-11-21T09:00:00.000000Z", "expires_at": "2026-11-21T10:00:00.000000Z",
        "catalog": [{"type": "messaging", "endpoints": [zaqar]}]}});
    Act::Answer("201 Created", vec![format!("X-Subject-Token: {name}")], body.to_string().into_bytes())
}

/// A list of messages with these ids and bodies, as Zaqar answers it.
pub(super) fn list(messages: &[(&str, &Value)]) -> Act {
    let next =
        messages.last().map(|(id, _)| format!("/v2/queues/q%201/messages?marker={id}&limit=4&echo=true&include_delayed=true"));
    let messages: Vec<_> = messages
        .iter()
        .map(|(id, body)| json!({"id": id, "href": format!("/v2/queues/q 1/messages/{id}"), "ttl": 3600, "age": 3, "body": body}))
        .collect();
    let links: Vec<_> = next.iter().map(|href| json!({"rel": "next", "href": href})).collect();
    ok(json!({"messages": messages, "links": links}).to_string())
}

fn empty() -> Act {
    list(&[])
}

fn listed(id: &str) -> Value {
    json!({"deployments": [{"id": id}]})
}

/// As many messages with these ids, each listing a deployment of its own id.
fn page(ids: std::ops::Range<usize>) -> Act {
    let messages: Vec<_> = ids.map(|n| (format!("m{n}"), listed(&format!("m{n}")))).collect();
    list(&messages.iter().map(|(id, body)| (id.as_str(), body)).collect::<Vec<_>>())
}

fn deleted() -> Act {
    status("204 No Content", "")
}

/// A server with ZAQAR_MESSAGE: Zaqar, Keystone, and the machine as cloud-init leaves it.
pub(super) async fn polling_zaqar(script: Vec<Act>) -> (Fake, Fake, Machine) {
    let zaqar = Fake::start(script).await;
    let keystone = Fake::start(vec![token("one", &zaqar.base), token("two", &zaqar.base), token("three", &zaqar.base)]).await;
    let machine = Machine::new();
    let conf = json!({"collectors": ["ec2", "zaqar", "local"], "zaqar": keys_of(&keystone.base)});
    machine.put(BOOT, &json!({"deployments": [], "os-collect-config": conf}).to_string());
    (zaqar, keystone, machine)
}

/// Method and path of each request, without what is the same in all.
fn asked(zaqar: &Fake) -> Vec<String> {
    let of = |request: &String| {
        let (method, rest) = request.split_once(' ').unwrap();
        let path = rest.split(' ').next().unwrap().strip_prefix("/v2/queues/q%201/messages").unwrap_or("elsewhere");
        format!("{method} {}", path.replace("?echo=true&limit=4", "list"))
    };
    zaqar.requests().iter().map(of).collect()
}

#[tokio::test]
async fn the_newest_message_is_the_document_and_what_is_older_is_removed() {
    let (zaqar, keystone, machine) = polling_zaqar(vec![page(1..3), deleted(), page(2..3)]).await;
    let mut collector = machine.collector();
    let began = machine.clock.moment();
    assert_eq!(collector.poll_once().await, SnapshotChange { metadata: true, answered: true, sources: true });
    let snapshot = collector.snapshot();
    assert!(snapshot.lists("m2") && !snapshot.lists("m1") && snapshot.freshness().covers(began));
    assert_eq!(snapshot.authority.as_ref().unwrap().source, "zaqar");
    assert_eq!(asked(&zaqar), ["GET list", "DELETE ?ids=m1"]);
    for request in zaqar.requests() {
        let client = header(&request, "client-id").unwrap();
        assert!(client.len() == 32 && client.bytes().all(|byte| byte.is_ascii_hexdigit()), "{client}");
        assert_eq!(header(&request, "x-auth-token").as_deref(), Some("one"));
        assert_eq!(header(&request, "x-project-id").as_deref(), Some("p"));
    }
    // With it goes what the server may speak to Heat with.
    let user = snapshot.own_credentials.user.clone().unwrap();
    assert_eq!((user.user_id.as_str(), user.scope), ("u", Scope::Project("p".to_owned())));
    let events = machine.report.events().len();
    for _ in 0..50 {
        machine.clock.advance(Duration::from_mins(1));
        assert_eq!(collector.poll_once().await, SnapshotChange { answered: true, ..SnapshotChange::default() });
    }
    assert_eq!((zaqar.requests().len(), keystone.requests().len(), zaqar.connections()), (52, 1, 1));
    assert_eq!(machine.report.events().len(), events, "a steady poll is silent");
    let shown = format!("{:?} {:?} {collector:?}", machine.report.events(), collector.snapshot());
    assert!(!shown.contains("hush") && collector.snapshot().sources["zaqar"].place.ends_with(", queue q 1"), "{shown}");
}

/// A message's id, its deployments, and its age in seconds.
type Dated<'a> = (&'a str, &'a [(&'a str, u64)], u64);

/// A list of messages with these deployments, as `NAME` and the second of its `creation_time`, and their ages at 09:03:20.
fn dated(messages: &[Dated<'_>]) -> Act {
    let entry = |(name, second): &(&str, u64)| {
        json!({"id": format!("{name}{second}"), "creation_time": format!("2026-11-21T09:00:{second:02}Z"),
            "inputs": [{"name": "deploy_stack_id", "value": "s/1"}, {"name": "deploy_resource_name", "value": name}]})
    };
    let of = |(id, entries, age): &Dated<'_>| json!({"id": id, "age": age, "body": {"deployments": entries.iter().map(entry).collect::<Vec<_>>()}});
    let messages: Vec<_> = messages.iter().map(of).collect();
    Act::Answer(
        "200 OK",
        vec!["Date: Sat, 21 Nov 2026 09:03:20 GMT".to_owned()],
        json!({"messages": messages}).to_string().into_bytes(),
    )
}

#[tokio::test]
async fn a_message_that_heat_posted_late_replaces_no_newer_one() {
    let both: Dated<'_> = ("m1", &[("a", 50), ("b", 50)], 149);
    let late = |id, age| (id, &[("a", 50), ("b", 10)][..], age);
    // `b` has just been changed, and the last message, which an engine made before, does not know of it.
    let (zaqar, _keystone, machine) =
        polling_zaqar(vec![dated(&[both, late("m2", 148)]), deleted(), dated(&[both, late("m3", 147)]), deleted()]).await;
    let mut collector = machine.collector();
    assert!(collector.poll_once().await.metadata);
    assert!(collector.snapshot().lists("b50") && !collector.snapshot().lists("b10"));
    // Nor does one that comes in behind what was read, after a restart too.
    let mut collector = machine.collector();
    assert!(collector.poll_once().await.answered);
    assert!(collector.snapshot().lists("b50") && collector.snapshot().lists("a50"));
    // `c` is new, and not in the next one; much later it is gone.
    let new: Dated<'_> = ("m4", &[("a", 50), ("b", 50), ("c", 58)], 142);
    zaqar.play(vec![dated(&[both, new, ("m5", both.1, 140)]), deleted(), dated(&[new, ("m6", both.1, 12)]), deleted()]);
    for has_new in [true, false] {
        assert!(collector.poll_once().await.metadata);
        assert_eq!(collector.snapshot().lists("c58"), has_new);
    }
    let removed = |ids| format!("DELETE ?ids={ids}");
    let expected = ["m2", "m3", "m1,m5", "m4"].map(removed);
    assert_eq!(asked(&zaqar).into_iter().filter(|line| line.starts_with("DELETE")).collect::<Vec<_>>(), expected);
}

#[tokio::test]
async fn a_message_is_there_until_it_is_stored_and_read_again_it_changes_nothing() {
    let (zaqar, _keystone, machine) = polling_zaqar(vec![page(1..3), deleted(), page(2..3)]).await;
    // The answer is here, and the agent dies before it is stored.
    let mut collector = machine.collector();
    collector.start(true);
    let polled = collector.in_flight.join_next().await.unwrap().unwrap();
    assert!(
        matches!(polled.outcome, PollOutcome::Unread(_)) && machine.state.facts(Path::new("cache/zaqar.json")).unwrap().is_none()
    );
    drop((polled, collector));
    let mut collector = machine.collector();
    assert!(collector.poll_once().await.metadata && collector.snapshot().lists("m2"));
    let (digest, stamp) = (collector.snapshot().digest.clone(), machine.stamp("cache/zaqar.json"));
    // It dies behind that: the same message is no news.
    let mut collector = machine.collector();
    let began = machine.clock.moment();
    assert!(collector.poll_once().await.answered);
    assert!(collector.snapshot().lists("m2") && collector.snapshot().freshness().covers(began));
    assert_eq!((&collector.snapshot().digest, machine.stamp("cache/zaqar.json")), (&digest, stamp));
    assert_eq!(asked(&zaqar), ["GET list", "DELETE ?ids=m1", "GET list", "GET list"], "the newest one stays until it expires");
}

#[tokio::test]
async fn an_empty_queue_says_that_what_was_delivered_last_is_in_force() {
    let (zaqar, keystone, machine) = polling_zaqar(vec![empty()]).await;
    let mut collector = machine.collector();
    // Before any message that is no list without deployments.
    assert!(!collector.poll_once().await.answered);
    let state = collector.snapshot().sources["zaqar"].clone();
    assert!(state.cause.unwrap().contains("the queue is empty, and nothing was ever read from it"));
    assert!(state.remedy.unwrap().contains("stack update") && collector.snapshot().listing.is_none());
    assert_eq!(collector.snapshot().freshness(), Freshness::Awaited);
    zaqar.play(vec![page(1..2), empty()]);
    collector.poll_once().await;
    for restarts in [false, true, true] {
        if restarts {
            collector = machine.collector();
        }
        let began = machine.clock.moment();
        let change = collector.poll_once().await;
        assert!(change.answered && collector.snapshot().sources["zaqar"].failures == 0, "{change:?}");
        assert!(collector.snapshot().lists("m1") && collector.snapshot().freshness().covers(began));
    }
    // A queue elsewhere was never read.
    let elsewhere = Fake::start(vec![token("other", &zaqar.base)]).await;
    machine
        .put(CONF, &format!("[zaqar]\nauth_url = {}\nuser_id = u\npassword = p\nproject_id = p\nqueue_id = r\n", elsewhere.base));
    let mut collector = machine.collector();
    collector.poll_once().await;
    assert!(collector.snapshot().sources["zaqar"].cause.as_ref().unwrap().contains("nothing was ever read"));
    assert!(collector.snapshot().lists("m1") && keystone.requests().len() > 1, "the old one is asked on");
    // Nor is there anything to be in force where the cache is lost.
    machine.put(CONF, "");
    machine.state.remove(Path::new("cache/zaqar.json")).unwrap();
    let mut collector = machine.collector();
    assert!(!collector.poll_once().await.answered && !collector.snapshot().lists("m1"));
}

#[tokio::test]
async fn many_messages_are_read_to_the_last_one() {
    let ids = |ids: std::ops::Range<usize>| ids.map(|n| format!("m{n}")).collect::<Vec<_>>().join(",");
    let one = |n: usize| {
        ok(json!({"id": format!("m{n}"), "href": "x", "ttl": 3600, "age": 1, "body": listed(&format!("m{n}"))}).to_string())
    };
    let (next, delete) = (|n: usize| format!("GET list&marker=m{n}"), |older| format!("DELETE ?ids={}", ids(older)));
    for (case, script, newest, expected) in [
        ("a last page that is not full", vec![page(1..5), page(5..7), deleted()], 6, vec![next(4), delete(1..6)]),
        (
            "a last page that is",
            vec![page(1..5), empty(), one(4), deleted()],
            4,
            vec![next(4), "GET /m4".to_owned(), delete(1..4)],
        ),
        // As Zaqar does it with Redis, where what was before the marker has expired meanwhile.
        (
            "the last one again",
            vec![page(1..5), page(4..5), one(4), deleted()],
            4,
            vec![next(4), "GET /m4".to_owned(), delete(1..4)],
        ),
        ("again, and more", vec![page(1..5), page(4..7), deleted()], 6, vec![next(4), delete(1..6)]),
    ] {
        let (zaqar, _keystone, machine) = polling_zaqar(script).await;
        let mut collector = machine.collector();
        collector.poll_once().await;
        assert!(collector.snapshot().lists(&format!("m{newest}")), "{case}: {:?}", collector.snapshot());
        let requests: Vec<_> = asked(&zaqar)[1..].iter().map(|line| line.replace("m4,m4,", "m4,")).collect();
        assert_eq!(requests, expected, "{case}");
    }
    let pages = (0..25).map(|n| page(4 * n..4 * n + 4));
    let (zaqar, _keystone, machine) = polling_zaqar(pages.chain([deleted()]).collect()).await;
    let mut collector = machine.collector();
    collector.poll_once().await;
    assert!(collector.snapshot().sources["zaqar"].cause.as_ref().unwrap().contains("holds more than 100 messages"));
    let requests = asked(&zaqar);
    assert_eq!((requests.len(), &requests[25], &requests[29]), (30, &delete(0..20), &delete(80..99)), "the last one stays");
}

#[tokio::test]
async fn older_messages_that_cannot_be_removed_cost_nothing_and_are_tried_again() {
    for (refusal, again) in [
        (status("503 Service Unavailable", ""), true),
        (status("403 Forbidden", ""), true),
        (Act::Close, true),
        (status("404 Not Found", ""), false),
    ] {
        let left = if again { page(1..3) } else { page(2..3) };
        let (zaqar, _keystone, machine) = polling_zaqar(vec![page(1..3), refusal, left.clone(), deleted(), page(2..3)]).await;
        let mut collector = machine.collector();
        for _ in 0..2 {
            assert!(collector.poll_once().await.answered);
            assert!(collector.snapshot().lists("m2") && collector.snapshot().sources["zaqar"].failures == 0);
        }
        let removals = asked(&zaqar).iter().filter(|line| *line == "DELETE ?ids=m1").count();
        assert_eq!(removals, 1 + usize::from(again));
        assert_eq!(count(&machine, Code::SourceFailed), 0);
    }
    // What cannot be used takes no other one's place.
    let (zaqar, _keystone, machine) = polling_zaqar(vec![list(&[("m1", &listed("a")), ("m2", &json!("text"))])]).await;
    let mut collector = machine.collector();
    collector.poll_once().await;
    let state = &collector.snapshot().sources["zaqar"];
    assert!(state.cause.as_ref().unwrap().contains("the metadata is a string, not an object"), "{state:?}");
    assert!(state.remedy.as_ref().unwrap().contains("something else than Heat posts to this queue"), "{state:?}");
    assert_eq!(asked(&zaqar), ["GET list"]);
}

#[tokio::test]
async fn tokens_versions_and_refusals() {
    // The endpoint in the catalog may end with the version.
    for ending in ["", "/", "/v2", "/v2/"] {
        let (zaqar, keystone, machine) = polling_zaqar(vec![page(1..2)]).await;
        keystone.play(vec![token("one", &format!("{}{ending}", zaqar.base))]);
        let mut collector = machine.collector();
        collector.poll_once().await;
        assert!(collector.snapshot().lists("m1") && asked(&zaqar) == ["GET list"], "{ending}: {:?}", zaqar.requests());
    }
    let refused = status("401 Unauthorized", "{\"title\": \"Unauthorized\", \"description\": \"no \\u001b[2J\"}");
    let (zaqar, keystone, machine) = polling_zaqar(vec![page(1..2), refused.clone(), page(2..3), refused.clone()]).await;
    let mut collector = machine.collector();
    for _ in 0..2 {
        assert!(collector.poll_once().await.answered);
    }
    let tokens: Vec<_> = zaqar.requests().iter().filter_map(|request| header(request, "x-auth-token")).collect();
    assert_eq!((tokens, keystone.requests().len()), (["one", "one", "two"].map(str::to_owned).to_vec(), 2));
    for (act, words, remedy) in [
        (refused, "Zaqar answered 401 no \\u{1b}[2J", "keystone_authtoken"),
        (status("403 Forbidden", ""), "Zaqar answered 403 no details", "project_id"),
        // Attack: both places were one's, who showed the password of the one at the other.
        (status("403 Forbidden", "{\"title\": \"hush-hush\"}"), "Zaqar answered 403 ******", "project_id"),
        (status("404 Not Found", ""), "Zaqar answered 404 no details", "messaging endpoint"),
        (status("400 Bad Request", "{\"title\": \"odd\"}"), "Zaqar answered 400 odd", "openstack messaging queue stats"),
        (ok("{\"messages\": 7}"), "the answer is not a list of messages", "leads to Zaqar"),
    ] {
        zaqar.play(vec![act]);
        machine.clock.advance(Duration::from_mins(1));
        collector.poll_once().await;
        let state = &collector.snapshot().sources["zaqar"];
        assert!(state.cause.as_ref().unwrap().contains(words), "{words}: {state:?}");
        assert!(state.remedy.as_ref().unwrap().contains(remedy), "{words}: {state:?}");
        assert!(collector.snapshot().lists("m2") && !format!("{:?}", machine.report.events()).contains("hush"));
    }
}

#[tokio::test]
async fn another_transport_is_left_for_a_queue_once_that_has_a_message() {
    let (zaqar, keystone, machine) = polling_zaqar(vec![empty()]).await;
    let there = whole("zaqar", &keys_of(&keystone.base));
    let cfn = Fake::start(vec![answer(&naming("old", &there))]).await;
    machine.put(BOOT, &boot(&cfn.base));
    let mut collector = machine.collector();
    collector.poll_once().await;
    pass(&mut collector, &machine, Duration::from_mins(10)).await;
    assert!(
        !zaqar.requests().is_empty() && collector.snapshot().lists("old") && collector.snapshot().sources.contains_key("cfn")
    );
    assert_eq!(count(&machine, Code::SourceRetired), 0, "an empty queue replaces nobody");
    zaqar.play(vec![list(&[("m", &naming("new", &there))]), empty()]);
    pass(&mut collector, &machine, Duration::from_mins(10)).await;
    assert!(collector.snapshot().lists("new") && !collector.snapshot().sources.contains_key("cfn"));
    assert_eq!(count(&machine, Code::SourceRetired), 1);
    let polls = (cfn.requests().len(), machine.clock.moment());
    pass(&mut collector, &machine, Duration::from_mins(10)).await;
    assert!(cfn.requests().len() == polls.0 && collector.snapshot().freshness().covers(polls.1));
}

#[tokio::test]
async fn the_password_goes_to_no_address_that_its_own_document_does_not_name() {
    let evil = Fake::start(vec![status("401 Unauthorized", "")]).await;
    let (zaqar, keystone, machine) = polling_zaqar(vec![]).await;
    let mut other = keys_of(&evil.base);
    other.as_object_mut().unwrap().remove("password");
    zaqar.play(vec![list(&[("m", &naming("a", &whole("zaqar", &other)))])]);
    let mut collector = machine.collector();
    let began = machine.clock.moment();
    pass(&mut collector, &machine, Duration::from_mins(10)).await;
    assert!(collector.snapshot().lists("a") && collector.snapshot().freshness().covers(began));
    assert!(evil.requests().is_empty() && keystone.requests().len() == 1 && count(&machine, Code::SourceIncomplete) == 1);
    let user = collector.snapshot().own_credentials.user.clone().unwrap();
    assert_eq!(user.auth_url, format!("{}/v3/", keystone.base));
}
