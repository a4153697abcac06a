//! Sources that answer badly: whatever comes, the source is marked failed with a cause that a person
//! understands, the last good document stays, polls come less often, and a good answer ends it.

use super::*;
use crate::http::fake::TestCa;

/// A source over the network: how the machine learns of it, and how it answers.
struct Way {
    source: &'static str,
    configure: fn(&Machine, &str),
    /// Everything that the server says up to the first metadata.
    first: fn(&str, Act) -> Vec<Act>,
    /// An answer that brings this as the metadata.
    answer: fn(&Value) -> Act,
}

const WAYS: &[Way] = &[
    Way { source: "cfn", configure: |machine, base| machine.put(BOOT, &boot(base)), first: |_, answer| vec![answer], answer },
    Way {
        source: "heat",
        // Keystone and Heat are one server here.
        configure: |machine, base| machine.put(BOOT, &section("heat", &transports::heat_keys(base))),
        first: |base, answer| vec![closing(transports::token("one", base)), answer],
        answer: transports::metadata,
    },
    Way {
        source: "request",
        configure: |machine, base| {
            let url = format!("{base}/v1/AUTH_p/s/o?temp_url_sig=hush&temp_url_expires=2147483647");
            machine.put(BOOT, &section("request", &json!({"metadata_url": url})));
        },
        first: |_, answer| vec![answer],
        answer: |metadata| ok(metadata.to_string()),
    },
    Way {
        source: "zaqar",
        // Keystone and Zaqar are one server here.
        configure: |machine, base| machine.put(BOOT, &section("zaqar", &zaqar::keys_of(base))),
        first: |base, answer| vec![closing(zaqar::token("one", base)), answer],
        answer: |metadata| zaqar::list(&[("m", metadata)]),
    },
];

fn section(name: &str, keys: &Value) -> String {
    json!({"deployments": [], "os-collect-config": {name: keys}}).to_string()
}

/// A machine that read a good document over one way.
struct Scene {
    way: &'static Way,
    server: Fake,
    machine: Machine,
    collector: Collector,
    digest: String,
}

impl Scene {
    async fn new(way: &'static Way, server: Fake, machine: Machine) -> Self {
        (way.configure)(&machine, &server.base);
        // Each answer is asked for on a connection of its own.
        server.play((way.first)(&server.base, closing(way.good())));
        let mut collector = machine.collector();
        collector.poll_once().await;
        let digest = collector.snapshot().digest.clone();
        let scene = Self { way, server, machine, collector, digest };
        assert!(scene.collector.snapshot().lists("a"), "{:?}", scene.state());
        scene
    }

    async fn plain(way: &'static Way) -> Self {
        Self::new(way, Fake::start(Vec::new()).await, Machine::new()).await
    }

    fn state(&self) -> &SourceState {
        &self.collector.snapshot().sources[self.way.source]
    }

    /// Polls once more and looks at what came of it.
    async fn fails(&mut self, row: &str, cause: &str, remedy: &str) {
        let (good, failures) = (self.state().last_good, self.state().failures);
        self.machine.clock.advance(Duration::from_mins(1));
        let began = self.machine.clock.moment();
        let change = self.collector.poll_once().await;
        let row = format!("{} {row}", self.way.source);
        assert_eq!(change, SnapshotChange { sources: true, ..SnapshotChange::default() }, "{row}");
        let (state, now) = (self.state(), self.machine.clock.now());
        let shown = state.cause.as_deref().unwrap_or_default();
        assert!(shown.contains(cause), "{row}: {shown}");
        let shown = state.remedy.as_deref().unwrap_or_default();
        assert!(shown.contains(remedy), "{row}: {shown}");
        assert_eq!((state.failures, state.last_good), (failures + 1, good), "{row}");
        assert!(state.next_try.unwrap() > now, "{row}");
        let snapshot = self.collector.snapshot();
        assert!(snapshot.lists("a") && snapshot.digest == self.digest && !snapshot.freshness().covers(began), "{row}");
        let event = self.machine.report.events().pop().unwrap();
        assert_eq!((event.code, event.attempt), (Code::SourceFailed, Some(failures + 1)), "{row}");
        let shown = format!("{event:?} {state:?}");
        assert!(!["Signature=", "SK", "hush"].iter().any(|secret| shown.contains(secret)), "{row}: {shown}");
        // What is not printable never reaches a terminal.
        assert!(!state.cause.iter().any(|cause| cause.chars().any(char::is_control)), "{row}");
    }

    async fn recovers(&mut self, row: &str) {
        self.server.play(vec![self.way.good()]);
        let change = self.collector.poll_once().await;
        assert_eq!(change, SnapshotChange { metadata: false, answered: true, sources: true }, "{row}: {:?}", self.state());
        assert_eq!(self.machine.codes().pop(), Some(Code::SourceRecovered), "{row}");
        assert_eq!((self.state().failures, &self.state().cause), (0, &None), "{row}");
    }
}

impl Way {
    fn good(&self) -> Act {
        (self.answer)(&json!({"deployments": [{"id": "a"}]}))
    }
}

/// A complete answer, byte by byte.
fn raw(text: impl AsRef<[u8]>) -> Act {
    Act::Raw(text.as_ref().to_vec())
}

fn closing(act: Act) -> Act {
    match act {
        Act::Answer(line, mut headers, body) => {
            headers.push("Connection: close".to_owned());
            Act::Answer(line, headers, body)
        }
        other => other,
    }
}

fn redirect(location: &str) -> Act {
    Act::Answer("302 Found", vec![format!("Location: {location}")], Vec::new())
}

const CHUNKED: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
const TOO_LARGE: &str = "larger than 3145728 bytes";
const CUT: &str = "closed the connection before its answer was complete";

#[tokio::test]
async fn whatever_a_source_answers_the_last_good_document_stays() {
    let deep = |open: &str, close: &str| format!("{}1{}", open.repeat(500), close.repeat(500));
    let gzip = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\xab\xae\x05\x00\x43\xbf\xa6\xa3\x02\x00\x00\x00";
    let page = "<!DOCTYPE html>\n<html><title>Sign in, hush</title></html>";
    let table = [
        // Connections that break.
        ("nothing", Act::Close, "127.0.0.1", ""),
        ("a cut body", Act::Cut(5000, b"{\"Describe".to_vec()), CUT, ""),
        ("a cut chunk", raw(format!("{CHUNKED}1000\r\n{{\"Describe")), CUT, ""),
        ("a cut head", raw("HTTP/1.1 200 OK\r\nContent-Le"), CUT, ""),
        ("no end but 100 Continue", raw("HTTP/1.1 100 Continue\r\n\r\n".repeat(1000)), CUT, ""),
        // What is not HTTP.
        ("another protocol", raw("SSH-2.0-OpenSSH_9.2\r\n"), "does not speak HTTP", "port"),
        ("a bad chunk", raw(format!("{CHUNKED}zz\r\n")), "does not speak HTTP", ""),
        ("two lengths", raw("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n{}"), "does not speak HTTP", ""),
        ("a length that is none", raw("HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n{}"), "does not speak HTTP", ""),
        (
            "a head without end",
            Act::Endless(b"HTTP/1.1 200 OK\r\nX: ".to_vec(), b'x'),
            "more than 408 KiB or more than 100 lines",
            "",
        ),
        // Too much.
        ("100 MB, said before", raw("HTTP/1.1 200 OK\r\nContent-Length: 104857600\r\n\r\n"), TOO_LARGE, ""),
        ("a body without end", Act::Endless(b"HTTP/1.1 200 OK\r\n\r\n".to_vec(), b' '), TOO_LARGE, ""),
        ("100 MB in a chunk", Act::Endless(format!("{CHUNKED}6400000\r\n").into_bytes(), b' '), TOO_LARGE, ""),
        // Redirects.
        ("another host", redirect("http://evil.example/"), "redirected to http://evil.example/", "correct the endpoint"),
        ("another port", redirect("http://127.0.0.1:1/?hush"), "redirected to http://127.0.0.1:1/?…", ""),
        ("another protocol", redirect("https://127.0.0.1/"), "redirected to https://127.0.0.1/", ""),
        ("a file", redirect("file:///etc/shadow"), "cannot be called", ""),
        ("itself", redirect("/again"), "more than 3 redirects", ""),
        // What is not JSON.
        ("nothing in it", ok(""), "the document is empty", ""),
        ("blanks", ok("  \n"), "the document is empty", ""),
        ("half of it", ok("{\"a\": "), "the JSON ends too early", ""),
        ("words", ok("not json"), "the JSON is broken at line 1", ""),
        ("a number that is none", ok("{\"a\": nan}"), "the JSON is broken at line 1", ""),
        ("lists in lists", ok(deep("[", "]")), "nested more than 96 levels deep", ""),
        ("maps in maps", ok(deep("{\"a\":", "}")), "nested more than 96 levels deep", ""),
        ("Latin-1", ok(b"{\"name\": \"caf\xe9\"}".to_vec()), "is not UTF-8", ""),
        ("an escape that is none", ok(r#"{"a": "\ud8"}"#), "the JSON is broken at line 1", ""),
        ("XML", ok("<Metadata/>"), "the document is XML, not JSON", "and not to a proxy"),
        ("a proxy's page", ok(page), "an HTML page, not JSON", "and not to a proxy"),
        ("a proxy's page with status", status("502 Bad Gateway", page), "502", "retries"),
        (
            "what was compressed",
            Act::Answer("200 OK", vec!["Content-Encoding: gzip".into()], gzip.to_vec()),
            "is compressed (gzip)",
            "and not to a proxy",
        ),
        // A server that fails.
        ("500", status("500 Internal Server Error", "oops"), "500", ""),
        ("503", status("503 Service Unavailable", ""), "503", "retries"),
        ("429", status("429 Too Many Requests", ""), "429", "retries"),
        ("204", raw("HTTP/1.1 204 No Content\r\n\r\n"), "204", ""),
        ("304", raw("HTTP/1.1 304 Not Modified\r\n\r\n"), "304", ""),
        ("999", status("999 Odd", "\x1b[2J"), "999", ""),
        ("a status that turns the screen off", status("503 \x1b[2J", ""), "does not speak HTTP", "port"),
        ("404", status("404 Not Found", "<html>"), "404", ""),
    ];
    for way in WAYS {
        for (row, act, cause, remedy) in table.clone() {
            let mut scene = Scene::plain(way).await;
            scene.server.play(vec![act]);
            let is_page = cause == TOO_LARGE && way.source == "zaqar";
            scene.fails(row, if is_page { "larger than 2097152 bytes" } else { cause }, remedy).await;
            // The rest lies in the buffers of the two sockets.
            assert!(scene.server.bytes_sent() < 28 << 20, "{row}: {} bytes were taken", scene.server.bytes_sent());
            scene.recovers(row).await;
        }
    }
}

#[tokio::test]
async fn metadata_that_is_no_object_is_named() {
    for way in WAYS {
        for (metadata, cause) in [
            (json!(null), "the metadata is null, not an object"),
            (json!(["hush"]), "the metadata is a list, not an object"),
            (json!(7), "the metadata is a number, not an object"),
            (json!(true), "the metadata is true or false, not an object"),
        ] {
            let mut scene = Scene::plain(way).await;
            scene.server.play(vec![(way.answer)(&metadata)]);
            scene.fails(cause, cause, "").await;
            scene.recovers(cause).await;
        }
    }
}

#[tokio::test]
async fn heat_api_cfn_refuses_in_words_that_lead_somewhere() {
    let error = |line, code| {
        status(line, format!("<ErrorResponse><Error><Code>{code}</Code><Message>no\nTraceback</Message></Error></ErrorResponse>"))
    };
    for (act, cause, remedy) in [
        (error("403 AccessDenied", "AccessDenied"), "Heat answered 403 AccessDenied: no", "keys were revoked"),
        (
            error("400 InvalidParameterValue", "InvalidParameterValue"),
            "Heat answered 400 InvalidParameterValue: no",
            "stack s or its resource srv does not exist any more",
        ),
        (error("400 IncompleteSignature", "IncompleteSignature"), "Heat answered 400 IncompleteSignature", "proxy"),
        (error("403 Forbidden", "\x1b[2J"), "Heat answered 403 \\u{1b}[2J: no", "keys were revoked"),
        (status("401 Unauthorized", ""), "Heat answered 401 no details", "keys were revoked"),
        (status("404 Not Found", "<html>"), "Heat answered 404 no details", "metadata_url"),
        (status("500 Internal Server Error", "oops"), "Heat answered 500 no details", "no longer exists"),
        (ok("[1]"), "not a DescribeStackResource response", "metadata_url"),
        (ok("{\"DescribeStackResourceResponse\": null}"), "not a DescribeStackResource response", "metadata_url"),
        (answer(&json!("x")), "the JSON is broken", ""),
        (answer(&json!("")), "the document is empty", ""),
    ] {
        let mut scene = Scene::plain(&WAYS[0]).await;
        scene.server.play(vec![act]);
        scene.fails(cause, cause, remedy).await;
        scene.recovers(cause).await;
    }
}

#[tokio::test]
async fn certificates_that_do_not_hold_are_refused_by_name() {
    const CA: &str = "/etc/throw-away-ca.pem";
    let (known, foreign, remade) = (TestCa::new("known"), TestCa::new("foreign"), TestCa::new("known"));
    let good = known.identity("127.0.0.1", (2020, 2100));
    let table = [
        (
            "unknown CA",
            Some(foreign.identity("127.0.0.1", (2020, 2100))),
            "signed by a CA that this node does not trust",
            "ca_file",
        ),
        ("a CA made anew", Some(remade.identity("127.0.0.1", (2020, 2100))), "by a different CA with the same name", "ca_file"),
        ("another address", Some(known.identity("127.0.0.2", (2020, 2100))), "is for another name", "name"),
        ("another host", Some(known.identity("heat.example", (2020, 2100))), "is for another name", "name"),
        ("expired", Some(known.identity("127.0.0.1", (2020, 2021))), "has expired", "renew"),
        ("not yet valid", Some(known.identity("127.0.0.1", (2090, 2100))), "is not valid yet", "clock"),
        ("no TLS at all", None, "TLS with 127.0.0.1", "speaks https"),
    ];
    for way in WAYS {
        for (row, identity, cause, remedy) in table.clone() {
            let mut machine = Machine::new();
            machine.settings.tls.ca_file = Some(CA.into());
            machine.put(CA, &known.pem());
            let mut scene = Scene::new(way, Fake::start_tls(Vec::new(), Arc::clone(&good)).await, machine).await;
            scene.server.present(identity);
            scene.fails(row, cause, remedy).await;
            scene.server.present(Some(Arc::clone(&good)));
            scene.recovers(row).await;
        }
        // Nobody told this node about the CA.
        let server = Fake::start_tls(vec![way.good()], Arc::clone(&good)).await;
        let machine = Machine::new();
        (way.configure)(&machine, &server.base);
        let mut collector = machine.collector();
        collector.poll_once().await;
        assert_eq!((collector.snapshot().sources[way.source].failures, server.requests().len()), (1, 0));
    }
}

#[tokio::test]
async fn a_server_that_is_slow_costs_its_deadline_and_no_more() {
    let slow = |begin: &str| Act::Drip(begin.as_bytes().to_vec(), Duration::from_millis(20));
    let head = "HTTP/1.1 200 OK\r\n";
    let mut scenes = Vec::new();
    for way in WAYS {
        for (row, act) in [
            ("a late answer", Act::Slow(Duration::from_mins(10), Box::new(way.good()))),
            ("a head, byte by byte", slow(&format!("{head}X: "))),
            ("a body, byte by byte", slow(&format!("{head}Content-Length: 9999\r\n\r\n{{"))),
            ("chunks, byte by byte", slow(&format!("{CHUNKED}270f\r\n{{"))),
        ] {
            scenes.push(async move {
                let mut scene = Scene::plain(way).await;
                scene.server.play(vec![act]);
                let patience = std::mem::replace(&mut scene.collector.settings.sources.timeout, Duration::from_secs(2));
                scene.fails(row, "no answer from 127.0.0.1", "check route, security groups and load").await;
                assert!(scene.state().cause.as_ref().unwrap().contains(" within 2 s"), "{row}: {:?}", scene.state());
                scene.collector.settings.sources.timeout = patience;
                scene.recovers(row).await;
            });
        }
    }
    // Side by side: each waits for its deadline.
    futures_util::future::join_all(scenes).await;
}

#[tokio::test]
async fn a_storm_of_failures_is_met_with_fewer_and_fewer_polls() {
    for way in WAYS {
        let mut scene = Scene::plain(way).await;
        let mut longest = Duration::ZERO;
        for turn in 0..12 {
            let line =
                ["500 Internal Server Error", "502 Bad Gateway", "503 Service Unavailable", "504 Gateway Timeout"][turn % 4];
            scene.server.play(vec![status(line, "<html>storm</html>")]);
            scene.fails(line, &line[..3], "").await;
            longest = longest.max(scene.state().next_try.unwrap().since(scene.machine.clock.now()));
        }
        // Drawn at random below a ceiling that doubles up to five minutes: all twelve being short does not happen.
        assert!(longest > Duration::from_secs(10) && longest <= Duration::from_mins(5), "{longest:?}");
        for (line, asked, least) in [
            ("503 Service Unavailable", "240", 240),
            ("429 Too Many Requests", "900", 300),
            // Nobody is made to wait forever.
            ("503 Service Unavailable", "99999999999", 300),
        ] {
            scene.server.play(vec![Act::Answer(line, vec![format!("Retry-After: {asked}")], Vec::new())]);
            scene.fails(line, &line[..3], "retries").await;
            let pause = scene.state().next_try.unwrap().since(scene.machine.clock.now());
            let least = Duration::from_secs(least);
            assert!(pause >= least && pause <= least.mul_f64(1.11).max(Duration::from_mins(5)), "{line}: {pause:?}");
        }
        scene.recovers("the storm").await;
    }
}

#[tokio::test]
async fn a_redirect_within_the_host_is_followed() {
    for way in WAYS {
        let mut scene = Scene::plain(way).await;
        scene.server.play(vec![redirect("/elsewhere?a=b"), way.good()]);
        assert!(scene.collector.poll_once().await.answered, "{:?}", scene.state());
        assert!(scene.server.requests().pop().unwrap().starts_with("GET /elsewhere?a=b "));
    }
}

/// Every value below this one, by its JSON pointer.
fn places(value: &Value, at: &str, found: &mut Vec<String>) {
    let mut below = |key: &str, value: &Value| {
        let at = format!("{at}/{key}");
        found.push(at.clone());
        places(value, &at, found);
    };
    match value {
        Value::Object(map) => map.iter().for_each(|(key, value)| below(key, value)),
        Value::Array(list) => list.iter().enumerate().for_each(|(n, value)| below(&n.to_string(), value)),
        _ => {}
    }
}

#[tokio::test]
async fn a_wrong_type_anywhere_in_the_metadata_ends_nothing() {
    for way in WAYS {
        let whole = json!({
            "deployments": [{"id": "a", "name": "n", "group": "script", "config": "#!/bin/sh\n", "options": {},
                "inputs": [{"name": "deploy_action", "type": "String", "value": "CREATE"}], "outputs": [{"name": "x", "error_output": true}]}],
            "os-collect-config": {"collectors": [way.source], "polling_interval": 60,
                way.source: {"path": ["srv.Metadata"], "metadata_url": null, "auth_url": null, "stack_id": null}},
        });
        let mut found = Vec::new();
        places(&whole, "", &mut found);
        assert!(found.len() > 15);
        let mut scene = Scene::plain(way).await;
        for place in &found {
            for wrong in [json!(null), json!(true), json!(-1.5e300), json!([]), json!([null]), json!({}), json!({"": {"": null}})]
            {
                let mut document = whole.clone();
                *document.pointer_mut(place).unwrap() = wrong.clone();
                scene.server.play(vec![(way.answer)(&document)]);
                let change = scene.collector.poll_once().await;
                assert!(change.answered, "{place} = {wrong}: {:?}", scene.state());
                for entry in scene.collector.snapshot().deployments.iter().flat_map(|list| list.values()) {
                    if let Err(malformed) = crate::metadata::Deployment::parse(&entry) {
                        assert!(!malformed.mistakes.is_empty(), "{place} = {wrong}");
                    }
                }
            }
        }
    }
}
