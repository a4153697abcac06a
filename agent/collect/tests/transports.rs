//! The sources `heat` and `request`, and changes from one transport to another.

use super::replaced::pass;
use super::*;

/// The metadata that Heat writes for POLL_SERVER_HEAT.
pub(super) fn heat_keys(keystone: &str) -> Value {
    json!({"user_id": "u", "password": "hush", "auth_url": format!("{keystone}/v3/"), "project_id": "p", "stack_id": "my-stack/1f-2",
        "resource_name": "srv 0", "region_name": "RegionOne"})
}

fn nothing_of(keys: &Value) -> Value {
    Value::Object(keys.as_object().unwrap().keys().map(|key| (key.clone(), Value::Null)).collect())
}

/// A token that lasts an hour, with Heat at `base`.
pub(super) fn token(name: &str, base: &str) -> Act {
    let heat = json!({"interface": "public", "region": "RegionOne", "region_id": "RegionOne", "url": format!("{base}/v1/p")});
    let body = json!({"token": {"issued_at": "2026-11-21T09:00:00.000000Z", "expires_at": "2026-11-21T10:00:00.000000Z",
        "catalog": [{"type": "orchestration", "endpoints": [heat]}]}});
    Act::Answer("201 Created", vec![format!("X-Subject-Token: {name}")], body.to_string().into_bytes())
}

pub(super) fn metadata(document: &Value) -> Act {
    ok(json!({"metadata": document}).to_string())
}

fn listed(ids: &[&str]) -> Value {
    json!({"deployments": ids.iter().map(|id| json!({"id": id})).collect::<Vec<_>>()})
}

fn refused() -> Act {
    status("401 Unauthorized", r#"{"error": {"code": 401, "message": "The request you have made requires authentication."}}"#)
}

/// A server with POLL_SERVER_HEAT: Heat, Keystone, and the machine as cloud-init leaves it.
async fn polling_heat() -> (Fake, Fake, Machine) {
    let heat = Fake::start(vec![metadata(&listed(&["a"]))]).await;
    let keystone = Fake::start(vec![token("one", &heat.base), token("two", &heat.base), token("three", &heat.base)]).await;
    let machine = Machine::new();
    let conf = json!({"collectors": ["ec2", "heat", "local"], "heat": heat_keys(&keystone.base)});
    machine.put(BOOT, &json!({"deployments": [], "os-collect-config": conf}).to_string());
    (heat, keystone, machine)
}

/// What follows `name: ` in the head of a request.
pub(super) fn header(request: &str, name: &str) -> Option<String> {
    let (head, _) = request.split_once("\r\n\r\n").unwrap();
    head.lines().find_map(|line| line.strip_prefix(&format!("{name}: "))).map(str::to_owned)
}

#[tokio::test]
async fn heat_is_asked_once_a_poll_and_keystone_once_a_life_of_a_token() {
    let (heat, keystone, machine) = polling_heat().await;
    let mut collector = machine.collector();
    let began = machine.clock.moment();
    assert_eq!(collector.poll_once().await, SnapshotChange { metadata: true, answered: true, sources: true });
    assert!(collector.snapshot().lists("a") && collector.snapshot().freshness().covers(began));
    assert_eq!(collector.snapshot().authority.as_ref().unwrap().source, "heat");
    let events = machine.report.events().len();
    for _ in 0..50 {
        machine.clock.advance(Duration::from_mins(1));
        assert_eq!(collector.poll_once().await, SnapshotChange { answered: true, ..SnapshotChange::default() });
    }
    assert_eq!((heat.requests().len(), keystone.requests().len()), (51, 1));
    assert_eq!((heat.connections(), keystone.connections(), machine.report.events().len()), (1, 1, events));
    for request in heat.requests() {
        assert!(request.starts_with("GET /v1/p/stacks/my-stack/1f-2/resources/srv%200/metadata HTTP/1.1\r\n"), "{request}");
        assert_eq!(header(&request, "x-auth-token").as_deref(), Some("one"));
    }
    machine.clock.advance(Duration::from_mins(8));
    collector.poll_once().await;
    assert_eq!((heat.requests().len(), keystone.requests().len()), (52, 2));
    // Said, kept and shown without secrets, and there after a restart with Heat down.
    let shown = format!("{:?} {:?} {collector:?}", machine.report.events(), collector.snapshot());
    assert!(
        !shown.contains("hush") && collector.snapshot().sources["heat"].place.contains("stack my-stack/1f-2 srv 0"),
        "{shown}"
    );
    assert_eq!(machine.state.facts(Path::new("cache/heat.json")).unwrap().unwrap().mode, 0o600);
    keystone.play(vec![status("503 Service Unavailable", "")]);
    let mut collector = machine.collector();
    collector.poll_once().await;
    assert!(collector.snapshot().lists("a") && collector.snapshot().authority.is_none());
    assert!(collector.snapshot().sources["heat"].cause.as_ref().unwrap().contains("Keystone answered 503"));
}

#[tokio::test]
async fn a_revoked_token_costs_one_new_one_and_no_failure() {
    let (heat, keystone, machine) = polling_heat().await;
    let mut collector = machine.collector();
    collector.poll_once().await;
    let events = machine.report.events().len();
    heat.play(vec![refused(), metadata(&listed(&["a", "b"]))]);
    assert_eq!(collector.poll_once().await, SnapshotChange { metadata: true, answered: true, sources: false });
    assert!(collector.snapshot().lists("b"));
    assert_eq!(machine.report.events().len(), events + 1, "that the metadata changed, nothing else");
    collector.poll_once().await;
    let tokens: Vec<_> = heat.requests().iter().filter_map(|request| header(request, "x-auth-token")).collect();
    assert_eq!((tokens, keystone.requests().len()), (["one", "one", "two", "two"].map(str::to_owned).to_vec(), 2));
}

#[tokio::test]
async fn whatever_goes_wrong_with_heat_is_said_and_the_last_good_document_stays() {
    let fault = |line, what: &str| {
        status(
            line,
            json!({"code": 1, "title": "x", "explanation": "y", "error": {"message": what, "traceback": null}}).to_string(),
        )
    };
    let elsewhere = Act::Answer("302 Found", vec!["Location: http://evil.example/".into()], vec![]);
    let busy = Act::Answer("503 Service Unavailable", vec!["Retry-After: 600".into()], vec![]);
    for (act, words, remedy) in [
        (Act::Close, "127.0.0.1", ""),
        (Act::Cut(5000, b"{\"metadata\": {".to_vec()), "closed the connection before its answer was complete", ""),
        (
            Act::Slow(Duration::from_mins(10), Box::new(ok("{}"))),
            "no answer from 127.0.0.1",
            "check route, security groups and load",
        ),
        (elsewhere, "redirected to http://evil.example/", "catalog"),
        (ok("<html>"), "is an HTML page, not JSON", "not to a proxy"),
        (ok("{}"), "the answer has no metadata", "orchestration endpoint"),
        (ok("{\"metadata\": [1]}"), "the metadata is a list, not an object", ""),
        (ok("{\"metadata\": null}"), "the metadata is null, not an object", ""),
        (refused(), "Heat answered 401 The request you have made", "keystone_authtoken"),
        (fault("403 Forbidden", "no\nTraceback"), "Heat answered 403 no", "user_id is not that of the server srv 0"),
        (fault("404 Not Found", "The Stack (x) could not be found."), "Heat answered 404 The Stack (x)", "openstack stack show"),
        (status("500 Internal Server Error", "oops"), "Heat answered 500 no details", "log of heat-api"),
        (busy, "Heat answered 503 no details", "retries"),
    ] {
        let (heat, _keystone, machine) = polling_heat().await;
        let mut collector = machine.collector();
        collector.poll_once().await;
        let (before, good) = (collector.snapshot().digest.clone(), collector.snapshot().sources["heat"].last_good);
        heat.play(vec![act]);
        machine.clock.advance(Duration::from_mins(1));
        let patience = collector.settings.sources.timeout;
        if words.starts_with("no answer") {
            collector.settings.sources.timeout = Duration::from_millis(500);
        }
        assert_eq!(collector.poll_once().await, SnapshotChange { sources: true, ..SnapshotChange::default() }, "{words}");
        collector.settings.sources.timeout = patience;
        let state = &collector.snapshot().sources["heat"];
        assert!(state.cause.as_ref().unwrap().contains(words), "{words}: {:?}", state.cause);
        assert!(state.remedy.as_deref().unwrap_or_default().contains(remedy), "{words}: {:?}", state.remedy);
        assert_eq!((state.failures, state.last_good), (1, good));
        assert!(!words.contains("503") || state.next_try.unwrap().since(machine.clock.now()) >= Duration::from_mins(5));
        assert!(collector.snapshot().lists("a") && collector.snapshot().digest == before, "{words}");
        assert!(!format!("{:?}", machine.report.events()).contains("hush"));
        heat.play(vec![metadata(&listed(&["a"]))]);
        assert_eq!(collector.poll_once().await, SnapshotChange { metadata: false, answered: true, sources: true });
        assert_eq!(machine.codes().pop(), Some(Code::SourceRecovered));
    }
}

#[tokio::test]
async fn keystones_refusal_an_unknown_region_and_old_urls() {
    for (key, value, answers, words) in [
        ("user_id", "u", vec![refused()], Err("Keystone answered 401")),
        ("region_name", "Two", vec![], Err("no orchestration endpoint in region Two; there is one in RegionOne")),
        ("region_name", "", vec![], Ok(())),
        ("auth_url", "/v2.0", vec![], Ok(())),
        ("auth_url", "", vec![], Ok(())),
        ("auth_url", "/v3", vec![], Ok(())),
    ] {
        let (heat, keystone, machine) = polling_heat().await;
        let mut keys = heat_keys(&keystone.base);
        keys[key] = json!(if key == "auth_url" { format!("{}{value}", keystone.base) } else { value.to_owned() });
        machine.put(BOOT, &json!({"os-collect-config": {"heat": keys}}).to_string());
        if !answers.is_empty() {
            keystone.play(answers);
        }
        let mut collector = machine.collector();
        for _ in 0..2 {
            collector.poll_once().await;
        }
        let cause = collector.snapshot().sources["heat"].cause.clone();
        match words {
            Err(words) => assert!(cause.as_ref().unwrap().contains(words) && heat.requests().is_empty(), "{cause:?}"),
            Ok(()) => assert!(collector.snapshot().lists("a") && keystone.requests().len() == 1, "{cause:?}"),
        }
        assert!(keystone.requests().iter().all(|request| request.starts_with("POST /v3/auth/tokens ")));
    }
}

#[tokio::test]
async fn a_suspended_stack_costs_keystone_some_two_dozen_requests_an_hour() {
    let (heat, keystone, machine) = polling_heat().await;
    let mut collector = machine.collector();
    collector.poll_once().await;
    heat.play(vec![refused()]);
    keystone.play(vec![refused()]);
    let pause = |collector: &Collector| {
        let next = collector.snapshot().sources["heat"].next_try.unwrap();
        next.since(machine.clock.now())
    };
    // Until the pauses have grown.
    for _ in 0..10 {
        collector.poll_once().await;
    }
    let (began, polls) = (machine.clock.now(), 300);
    for _ in 0..polls {
        machine.clock.advance(pause(&collector));
        collector.poll_once().await;
        assert!(pause(&collector) <= Duration::from_mins(5));
    }
    assert_eq!((heat.requests().len(), keystone.requests().len()), (2, 1 + 10 + polls), "Heat is not asked without a token");
    let hourly = f64::from(u32::try_from(polls).unwrap()) * 3600.0 / machine.clock.now().since(began).as_secs_f64();
    assert!((18.0..30.0).contains(&hourly), "{hourly}");
    keystone.play(vec![token("new", &heat.base)]);
    heat.play(vec![metadata(&listed(&["resumed"]))]);
    assert!(collector.poll_once().await.answered && collector.snapshot().lists("resumed"));
}

#[tokio::test]
async fn a_stack_named_by_half_is_looked_for_once() {
    let (heat, keystone, machine) = polling_heat().await;
    let mut keys = heat_keys(&keystone.base);
    keys["stack_id"] = json!("my-stack");
    machine.put(BOOT, &json!({"os-collect-config": {"heat": keys}}).to_string());
    let found = |place: &str| Act::Answer("302 Found", vec![format!("Location: {}/v1/p/stacks/{place}", heat.base)], vec![]);
    let gone = status("404 Not Found", "");
    let document = metadata(&listed(&["a"]));
    heat.play(vec![found("my-stack/77"), document.clone(), document.clone(), gone, found("my-stack/88"), document]);
    let mut collector = machine.collector();
    for _ in 0..4 {
        collector.poll_once().await;
    }
    let paths: Vec<_> =
        heat.requests().iter().map(|request| request.split(' ').nth(1).unwrap().replace("/v1/p/stacks/", "")).collect();
    let (first, second) = ("my-stack/77/resources/srv%200/metadata", "my-stack/88/resources/srv%200/metadata");
    assert_eq!(paths, ["my-stack", first, first, first, "my-stack", second]);
    assert_eq!(collector.snapshot().sources["heat"].failures, 0);
    for answer in
        [status("200 OK", "{}"), found("../../x"), found("a/b/c"), found("a/b?x"), Act::Answer("302 Found", vec![], vec![])]
    {
        heat.play(vec![answer]);
        let mut collector = machine.collector();
        collector.poll_once().await;
        let cause = collector.snapshot().sources["heat"].cause.clone().unwrap();
        assert!(cause.contains("looking up the stack my-stack)"), "{cause}");
    }
}

#[tokio::test]
async fn only_the_source_that_os_collect_config_names_is_asked() {
    let (heat, keystone, machine) = polling_heat().await;
    let cfn = Fake::start(vec![listing(&["b"])]).await;
    let both = json!({"cfn": keys(&cfn.base, "AK", "SK"), "heat": heat_keys(&keystone.base)});
    machine.put(BOOT, &json!({"os-collect-config": both}).to_string());
    machine.put(CONF, "[DEFAULT]\ncollectors = [\"heat\", \"local\"]\n");
    let mut collector = machine.collector();
    collector.poll_once().await;
    assert_eq!((heat.requests().len(), cfn.requests().len()), (1, 0));
    assert!(!collector.snapshot().sources.contains_key("cfn"), "not asked is not failed");
    machine.put(CONF, "[DEFAULT]\ncollectors = cfn\n");
    collector.poll_once().await;
    assert_eq!((heat.requests().len(), cfn.requests().len()), (1, 1));
    assert!(collector.snapshot().lists("b") && !collector.snapshot().lists("a"));
    assert!(machine.codes().contains(&Code::SourceRetired));
    machine.put(CONF, "");
    collector.poll_once().await;
    assert_eq!((heat.requests().len(), cfn.requests().len()), (2, 2), "who names none leaves it open");
}

#[tokio::test]
async fn a_change_of_transport_is_followed_there_and_back_and_over_a_restart() {
    let (heat, keystone, machine) = polling_heat().await;
    let cfn = Fake::start(vec![listing(&["old", "shared"])]).await;
    let (cfn_keys, keys) = (keys(&cfn.base, "AK", "SK"), heat_keys(&keystone.base));
    let to_heat = |ids| {
        let mut document = listed(ids);
        document["os-collect-config"] =
            json!({"collectors": ["ec2", "heat", "local"], "cfn": nothing_of(&cfn_keys), "heat": keys});
        document
    };
    let to_cfn = |ids| {
        let mut document = listed(ids);
        document["os-collect-config"] =
            json!({"collectors": ["ec2", "cfn", "local"], "heat": nothing_of(&keys), "cfn": cfn_keys});
        document
    };
    machine.put(BOOT, &boot(&cfn.base));
    let mut collector = machine.collector();
    collector.poll_once().await;
    let mut old = to_heat(&["shared"]);
    old["only-in-cfn"] = json!(1);
    cfn.play(vec![answer(&old)]);
    collector.poll_once().await;
    assert_eq!((cfn.requests().len(), heat.requests().len()), (2, 0));
    // Until Heat answers over the new transport, what came over the old one stays.
    heat.play(vec![status("503 Service Unavailable", ""), metadata(&to_heat(&["new", "shared"]))]);
    collector.poll_once().await;
    assert!(collector.snapshot().lists("shared") && collector.snapshot().metadata.contains_key("only-in-cfn"));
    collector.poll_once().await;
    assert_eq!((cfn.requests().len(), heat.requests().len()), (2, 2));
    assert!(collector.snapshot().lists("new"));
    assert!(!collector.snapshot().metadata.contains_key("only-in-cfn"), "nobody says that any more");
    assert!(!collector.snapshot().sources.contains_key("cfn"));
    assert_eq!(machine.state.facts(Path::new("cache/cfn.json")).unwrap(), None);
    assert_eq!(machine.codes().iter().filter(|code| **code == Code::SourceRetired).count(), 1);
    // The boot copy still names cfn: the answer of Heat is newer.
    let mut collector = machine.collector();
    assert!(collector.snapshot().lists("new"));
    collector.poll_once().await;
    assert_eq!((cfn.requests().len(), heat.requests().len()), (2, 3));
    // And back again: the list of the retired source must not win over the fresh one.
    heat.play(vec![metadata(&to_cfn(&["stale"]))]);
    cfn.play(vec![answer(&to_cfn(&["back"]))]);
    collector.poll_once().await;
    assert!(collector.snapshot().lists("stale"));
    collector.poll_once().await;
    assert_eq!((cfn.requests().len(), heat.requests().len()), (3, 4));
    assert!(collector.snapshot().lists("back") && !collector.snapshot().lists("stale"));
    assert_eq!(collector.snapshot().authority.as_ref().unwrap().source, "cfn");
    let mut collector = machine.collector();
    assert!(collector.snapshot().lists("back"));
    collector.poll_once().await;
    assert_eq!((cfn.requests().len(), heat.requests().len()), (4, 4));
}

/// Polls a source as if it were due, and no other one for that.
async fn poll(collector: &mut Collector, name: SourceName, clock: &Clock) {
    for source in collector.sources.iter_mut().filter(|source| source.name == name) {
        source.at_most(Duration::ZERO, clock);
    }
    collector.start(false);
    while let Some(polled) = collector.in_flight.join_next().await {
        collector.handle_poll(polled);
    }
}

#[tokio::test]
async fn another_transport_is_taken_up_at_the_next_poll_of_the_old_one() {
    let (heat, keystone, machine) = polling_heat().await;
    let cfn = Fake::start(vec![listing(&["a"])]).await;
    machine.put(BOOT, &boot(&cfn.base));
    let mut collector = machine.collector();
    collector.poll_once().await;
    let conf = json!({"collectors": ["heat"], "heat": heat_keys(&keystone.base)});
    cfn.play(vec![answer(&json!({"os-collect-config": conf}))]);
    for asked in [(2, 0), (2, 1)] {
        poll(&mut collector, SourceName::Cfn, &machine.clock).await;
        assert_eq!((cfn.requests().len(), heat.requests().len()), asked);
    }
    assert!(collector.snapshot().lists("a") && machine.codes().contains(&Code::SourceRetired));
}

#[tokio::test]
async fn the_old_transports_list_stays_on_disk_until_the_new_ones_is_there() {
    let (heat, keystone, machine) = polling_heat().await;
    let conf = json!({"collectors": ["heat"], "heat": heat_keys(&keystone.base)});
    let cfn = Fake::start(vec![answer(&json!({"deployments": [{"id": "old"}], "os-collect-config": conf}))]).await;
    machine.put(BOOT, &boot(&cfn.base));
    let mut collector = machine.collector();
    // As a full disk: the new answer cannot be stored.
    machine.state.create_dir_all(Path::new("cache/heat.json/x"), Attributes::mode(0o700)).unwrap();
    for _ in 0..2 {
        collector.poll_once().await;
    }
    assert!(heat.requests().len() == 1 && collector.snapshot().lists("a") && !collector.snapshot().lists("old"));
    assert!(machine.codes().contains(&Code::StateWriteFailed) && machine.collector().snapshot().lists("old"));
    // That start quarantined what was in the way.
    machine.collector().poll_once().await;
    assert!(machine.collector().snapshot().lists("a") && !machine.collector().snapshot().lists("old"));
    assert_eq!(machine.state.facts(Path::new("cache/cfn.json")).unwrap(), None);
}

#[tokio::test]
async fn of_two_sources_the_one_that_answered_last_says_with_which_keys_to_ask() {
    let (heat, keystone, machine) = polling_heat().await;
    let cfn = Fake::start(vec![]).await;
    let reported = |access| json!({"os-collect-config": {"cfn": keys(&cfn.base, access, "SK")}});
    cfn.play(vec![answer(&reported("FROM-CFN"))]);
    heat.play(vec![metadata(&reported("FROM-HEAT"))]);
    let both = json!({"cfn": keys(&cfn.base, "AK", "SK"), "heat": heat_keys(&keystone.base)});
    machine.put(BOOT, &json!({"os-collect-config": both}).to_string());
    let mut collector = machine.collector();
    collector.poll_once().await;
    let is_asked_with = |key: &str| cfn.requests().last().unwrap().contains(&format!("AWSAccessKeyId={key}&"));
    for (last, key) in [(SourceName::Cfn, "FROM-CFN"), (SourceName::Heat, "FROM-HEAT")] {
        poll(&mut collector, last, &machine.clock).await;
        poll(&mut collector, SourceName::Cfn, &machine.clock).await;
        assert!(is_asked_with(key), "{last:?}");
    }
    // What it answers by the keys that the other one names leads back to those that it had: until both agree, it is asked by both.
    assert!(collector.snapshot().sources["cfn"].cause.as_ref().unwrap().contains("leads back"));
    cfn.play(vec![answer(&reported("FROM-HEAT"))]);
    pass(&mut collector, &machine, Duration::from_mins(10)).await;
    assert!(is_asked_with("FROM-HEAT") && collector.snapshot().sources["cfn"].cause.is_none());
}

/// An object in Swift.
fn object(headers: &[&str], document: &Value) -> Act {
    Act::Answer("200 OK", headers.iter().map(|header| (*header).to_owned()).collect(), document.to_string().into_bytes())
}

fn polling_request(swift: &Fake) -> Machine {
    let machine = Machine::new();
    let url = format!("{}/v1/AUTH_9/c/o?temp_url_sig=hush&temp_url_expires=2147483647", swift.base);
    let conf = json!({"collectors": ["ec2", "request", "local"], "request": {"metadata_url": url}});
    machine.put(BOOT, &json!({"deployments": [], "os-collect-config": conf}).to_string());
    machine
}

#[tokio::test]
async fn the_object_is_fetched_once_a_poll_and_only_if_it_changed() {
    let unchanged = || Act::Answer("304 Not Modified", vec![], vec![]);
    let (date, later) = ("Last-Modified: Sat, 21 Nov 2026 09:03:20 GMT", "Last-Modified: Sat, 21 Nov 2026 09:03:21 GMT");
    let swift = Fake::start(vec![
        object(&["Etag: 0123abcd", date], &listed(&["a"])),
        unchanged(),
        object(&["Etag: 4567cdef", date], &listed(&["a", "b"])),
        object(&[later], &listed(&["a", "b"])),
        unchanged(),
        object(&[], &listed(&["c"])),
        object(&[], &listed(&["c"])),
        unchanged(),
    ])
    .await;
    let machine = polling_request(&swift);
    let mut collector = machine.collector();
    let mut changes = Vec::new();
    for _ in 0..7 {
        machine.clock.advance(Duration::from_mins(1));
        let began = machine.clock.moment();
        let change = collector.poll_once().await;
        assert!(change.answered && collector.snapshot().freshness().covers(began));
        changes.push(change.metadata);
    }
    assert_eq!(changes, [true, false, true, false, false, true, false]);
    assert_eq!(collector.snapshot().authority.as_ref().unwrap().source, "request");
    let sent: Vec<_> = swift.requests();
    assert!(sent.iter().all(|request| request.starts_with("GET /v1/AUTH_9/c/o?temp_url_sig=hush&temp_url_expires=2147483647 ")));
    let conditions: Vec<_> =
        sent.iter().map(|request| (header(request, "if-none-match"), header(request, "if-modified-since"))).collect();
    let tag = |text: &str| (Some(text.to_owned()), None);
    let since = (None, Some("Sat, 21 Nov 2026 09:03:21 GMT".to_owned()));
    assert_eq!(
        conditions,
        [(None, None), tag("0123abcd"), tag("0123abcd"), tag("4567cdef"), since.clone(), since, (None, None)],
        "never both: dates go by whole seconds"
    );
    // Without a question, 304 is no answer.
    collector.poll_once().await;
    assert!(collector.snapshot().sources["request"].cause.as_ref().unwrap().contains("answered 304"));
    let shown = format!("{:?} {:?} {collector:?}", machine.report.events(), collector.snapshot());
    assert!(!shown.contains("hush") && shown.contains("/v1/AUTH_9/c/o?…"), "{shown}");
    // Another process, or another object, has nothing to compare with.
    swift.play(vec![object(&["Etag: 1"], &listed(&["c"]))]);
    let mut collector = machine.collector();
    collector.poll_once().await;
    machine.put(CONF, &format!("[request]\nmetadata_url = {}/other?temp_url_sig=hush\n", swift.base));
    collector.poll_once().await;
    let last = swift.requests().split_off(8);
    assert!(
        last.iter().all(|request| header(request, "if-none-match").is_none()) && last[1].starts_with("GET /other?"),
        "{last:?}"
    );
}

#[tokio::test]
async fn whatever_the_object_store_answers_the_last_good_document_stays() {
    for (act, words, remedy) in [
        (status("401 Unauthorized", "Temp URL invalid"), "the object store answered 401", "has expired"),
        (status("404 Not Found", ""), "answered 404", "openstack stack show"),
        (status("503 Service Unavailable", ""), "answered 503", "retries"),
        (ok("[1]"), "the metadata is a list, not an object", ""),
        (ok(""), "the document is empty", ""),
        (Act::Cut(900, b"{\"deployments\": []".to_vec()), "closed the connection", ""),
        (
            Act::Answer("302 Found", vec!["Location: http://evil.example/?x".into()], vec![]),
            "redirected to http://evil.example/?…",
            "",
        ),
    ] {
        let swift = Fake::start(vec![object(&["Etag: 1"], &listed(&["a"]))]).await;
        let machine = polling_request(&swift);
        let mut collector = machine.collector();
        collector.poll_once().await;
        swift.play(vec![act]);
        assert_eq!(collector.poll_once().await, SnapshotChange { sources: true, ..SnapshotChange::default() }, "{words}");
        let state = &collector.snapshot().sources["request"];
        assert!(state.cause.as_ref().unwrap().contains(words), "{words}: {:?}", state.cause);
        assert!(state.remedy.as_deref().unwrap_or_default().contains(remedy), "{words}: {:?}", state.remedy);
        assert!(collector.snapshot().lists("a") && !format!("{:?}", machine.report.events()).contains("hush"));
        // What was bad is not taken for the state of affairs.
        swift.play(vec![Act::Answer("304 Not Modified", vec![], vec![])]);
        assert!(collector.poll_once().await.answered);
        assert_eq!(header(swift.requests().last().unwrap(), "if-none-match").as_deref(), Some("1"));
        assert!(collector.snapshot().lists("a"));
    }
}

#[tokio::test]
async fn an_endpoints_own_ca_is_used_for_it() {
    let keys = heat_keys("https://127.0.0.1:1");
    let heat = json!({"os-collect-config": {"heat": keys}}).to_string();
    let request = json!({"os-collect-config": {"request": {"metadata_url": "https://127.0.0.1:1/o"}}}).to_string();
    let cfn = boot("https://127.0.0.1:1");
    let zaqar = json!({"os-collect-config": {"zaqar": zaqar::keys_of("https://127.0.0.1:1")}}).to_string();
    for (name, boot) in [("heat", heat), ("request", request), ("zaqar", zaqar), ("cfn", cfn)] {
        let machine = Machine::new();
        machine.put(BOOT, &boot);
        machine.put(CONF, &format!("[{name}]\nca_certificate = /etc/pki/cloud.pem\n"));
        let mut collector = machine.collector();
        collector.poll_once().await;
        let cause = collector.snapshot().sources[name].cause.clone().unwrap();
        assert!(cause.contains("reading the certificate authorities in /etc/pki/cloud.pem"), "{cause}");
    }
}

#[tokio::test]
async fn deployments_under_other_keys_are_found_and_kept() {
    let document = json!({"deployments": [{"id": "no"}], "first": [{"id": "a"}], "second": [{"id": "b"}], "third": 7});
    let swift = Fake::start(vec![object(&[], &document)]).await;
    let machine = polling_request(&swift);
    machine.put(CONF, "[DEFAULT]\ndeployment_key = first\ndeployment_key = second\ndeployment_key = third\n");
    let ids = |collector: &Collector| {
        let list = collector.snapshot().deployments.clone().unwrap_or_default();
        list.values().map(|entry| entry["id"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let mut collector = machine.collector();
    collector.poll_once().await;
    assert_eq!(ids(&collector), ["a", "b"]);
    let odd = machine.report.events().into_iter().find(|event| event.code == Code::MetadataPartInvalid).unwrap();
    assert!(odd.cause.unwrap().contains("third is a number, not a list"));
    assert_eq!(ids(&machine.collector()), ["a", "b"], "from the cache");
    swift.play(vec![object(&[], &json!({"deployments": [{"id": "no"}]}))]);
    collector.poll_once().await;
    assert!(collector.snapshot().deployments.is_none() && machine.collector().snapshot().deployments.is_none());
    machine.put(CONF, "");
    collector.poll_once().await;
    assert_eq!(ids(&collector), ["no"]);
}

#[tokio::test]
async fn a_source_that_is_not_due_yet_keeps_what_it_said() {
    let (heat, keystone, mut machine) = polling_heat().await;
    let cfn = Fake::start(vec![answer(&json!({"of-cfn": 1}))]).await;
    let both = json!({"cfn": keys(&cfn.base, "AK", "SK"), "heat": heat_keys(&keystone.base)});
    machine.put(BOOT, &json!({"os-collect-config": both}).to_string());
    machine.collector().poll_once().await;
    machine.settings.splay = Duration::from_hours(1);
    let mut collector = machine.collector();
    poll(&mut collector, SourceName::Heat, &machine.clock).await;
    assert_eq!((heat.requests().len(), cfn.requests().len()), (2, 1));
    assert!(collector.snapshot().lists("a") && collector.snapshot().metadata.contains_key("of-cfn"));
    assert!(machine.state.facts(Path::new("cache/cfn.json")).unwrap().is_some());
}

/// A machine with one source over the network, and the server that it asks.
struct Rig {
    source: &'static str,
    server: Fake,
    machine: Machine,
    /// The server's answer with a document.
    good: fn(&Value) -> Act,
}

/// Each of the four, listing the deployment `a`.
async fn rigs() -> Vec<Rig> {
    let (server, _, machine) = polling_heat().await;
    let heat = Rig { source: "heat", server, machine, good: metadata };
    let server = Fake::start(vec![listing(&["a"])]).await;
    let machine = Machine::new();
    machine.put(BOOT, &boot(&server.base));
    let cfn = Rig { source: "cfn", server, machine, good: answer };
    let server = Fake::start(vec![object(&[], &listed(&["a"]))]).await;
    let request = Rig { source: "request", machine: polling_request(&server), server, good: |document| object(&[], document) };
    let (server, _, machine) = zaqar::polling_zaqar(vec![zaqar::list(&[("a", &listed(&["a"]))])]).await;
    let zaqar = Rig { source: "zaqar", server, machine, good: |document| zaqar::list(&[("m", document)]) };
    vec![cfn, heat, request, zaqar]
}

#[tokio::test]
async fn every_source_heeds_what_the_server_asks_for_and_takes_one_request_a_poll() {
    for Rig { source, server, machine, good } in rigs().await {
        let mut collector = machine.collector();
        collector.poll_once().await;
        assert!(collector.snapshot().lists("a"), "{source}");
        let busy = Act::Answer("429 Too Many Requests", vec!["Retry-After: 600".into()], vec![]);
        let moved = Act::Answer("307 Temporary Redirect", vec!["Location: /moved?x".into()], vec![]);
        server.play(vec![busy, moved, good(&listed(&["b"])), good(&listed(&["b"]))]);
        collector.poll_once().await;
        let state = &collector.snapshot().sources[source];
        assert!(state.next_try.unwrap().since(machine.clock.now()) >= Duration::from_mins(5), "{source}");
        collector.poll_once().await;
        assert!(collector.snapshot().lists("b") && server.requests()[3].starts_with("GET /moved?x "), "{source}");
        for _ in 0..10 {
            collector.poll_once().await;
        }
        assert_eq!(server.requests().len(), 14, "{source}");
    }
}

#[tokio::test]
async fn a_way_back_from_a_transport_that_cannot_be_reached() {
    let (_heat, keystone, machine) = polling_heat().await;
    let cfn = Fake::start(vec![]).await;
    let naming = |collectors, id: &str| {
        let all = json!({"collectors": [collectors], "cfn": keys(&cfn.base, "AK", "SK"), "heat": heat_keys(&keystone.base)});
        answer(&json!({"deployments": [{"id": id}], "os-collect-config": all}))
    };
    keystone.play(vec![status("503 Service Unavailable", "")]);
    cfn.play(vec![naming("heat", "a")]);
    machine.put(BOOT, &boot(&cfn.base));
    let mut collector = machine.collector();
    for _ in 0..3 {
        collector.poll_once().await;
    }
    cfn.play(vec![naming("cfn", "b")]);
    collector.poll_once().await;
    assert!(cfn.requests().len() == 1 && collector.snapshot().lists("a"));
    machine.put(CONF, "[DEFAULT]\ncollectors = cfn\n");
    for _ in 0..3 {
        collector.poll_once().await;
    }
    assert!(cfn.requests().len() == 4 && collector.snapshot().lists("b"));
    assert!(!collector.snapshot().sources.contains_key("heat"), "what is not asked has not failed");
}
