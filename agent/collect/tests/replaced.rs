//! A source that is to be replaced by another one, and documents that must not lead anywhere.

use super::transports::{heat_keys, metadata, token};
use super::*;
use crate::http::fake::TestCa;

const CA: &str = "/etc/throw-away-ca.pem";

/// An answer that lists one deployment and says this of the sources.
pub(super) fn naming(id: &str, config: &Value) -> Value {
    json!({"deployments": [{"id": id}], "os-collect-config": config})
}

pub(super) fn whole(source: &str, keys: &Value) -> Value {
    json!({"collectors": ["ec2", source, "local"], source: keys})
}

/// Lets this much time pass, with whatever polls fall due.
pub(super) async fn pass(collector: &mut Collector, machine: &Machine, time: Duration) {
    let until = machine.clock.now().after(time);
    while machine.clock.now() < until {
        machine.clock.advance(Duration::from_secs(5));
        collector.start(false);
        while let Some(polled) = collector.in_flight.join_next().await {
            collector.handle_poll(polled);
        }
    }
}

pub(super) fn count(machine: &Machine, code: Code) -> usize {
    machine.codes().into_iter().filter(|one| *one == code).count()
}

#[tokio::test]
async fn no_answer_brings_one_documents_password_to_another_documents_address() {
    let evil = Fake::start(vec![status("401 Unauthorized", "")]).await;
    let heat = Fake::start(vec![]).await;
    let keystone = Fake::start(vec![token("one", &heat.base)]).await;
    let other = format!("{}/v3", evil.base);
    let partial = [
        json!({"collectors": ["heat"], "heat": {"auth_url": other}}),
        json!({"heat": {"auth_url": other, "user_id": "u", "stack_id": "s/1", "resource_name": "r", "project_id": "p"}}),
        json!({"collectors": ["cfn"], "cfn": {"metadata_url": format!("{}/v1/", evil.base)}}),
        json!({"cfn": {"metadata_url": format!("{}/v1/", evil.base), "access_key_id": "AK", "path": "srv.Metadata"}}),
    ];
    for config in partial {
        let machine = Machine::new();
        let cfn = Fake::start(vec![answer(&naming("a", &config))]).await;
        heat.play(vec![metadata(&naming("a", &config))]);
        let both = json!({"cfn": keys(&cfn.base, "AK", "SK"), "heat": heat_keys(&keystone.base)});
        machine.put(BOOT, &json!({"os-collect-config": both}).to_string());
        for _ in 0..2 {
            let mut collector = machine.collector();
            collector.poll_once().await;
            let began = machine.clock.moment();
            pass(&mut collector, &machine, Duration::from_mins(10)).await;
            let asked: Vec<_> = evil.requests();
            assert!(asked.is_empty(), "{config}: {asked:?}");
            assert!(collector.snapshot().lists("a") && collector.snapshot().freshness().covers(began));
            let credentials = &collector.snapshot().own_credentials;
            assert!(!format!("{credentials:?}").contains(&evil.base), "{config}: {credentials:?}");
        }
        let reported: Vec<_> = machine.report.events().into_iter().filter(|event| event.code == Code::SourceIncomplete).collect();
        // Once in each of the two processes, for each source that brings it.
        assert!((2..=4).contains(&reported.len()), "{config}: {} times", reported.len());
        assert!(
            reported[0].message.contains("lack") && reported[0].message.contains("the newest answer of source"),
            "{reported:?}"
        );
        assert!(reported[0].remedy.as_ref().unwrap().contains("os-collect-config"));
        let shown = format!("{:?} {:?}", machine.report.events(), machine.collector());
        assert!(!shown.contains("hush") && !shown.contains("\"SK\""), "{shown}");
    }
}

#[tokio::test]
async fn a_source_whose_settings_are_nowhere_whole_takes_no_server_off_heat() {
    let config = json!({"collectors": ["heat"], "heat": {"auth_url": "http://192.0.2.1/v3"}});
    let cfn = Fake::start(vec![answer(&naming("a", &config))]).await;
    let machine = Machine::new();
    machine.put(BOOT, &boot(&cfn.base));
    let mut collector = machine.collector();
    for _ in 0..2 {
        collector.poll_once().await;
    }
    let cause = collector.snapshot().sources["heat"].cause.clone().unwrap();
    assert!(cause.starts_with("the settings of heat lack user_id, password"), "{cause}");
    assert!(cause.contains("reading the newest answer of source cfn"), "{cause}");
    cfn.play(vec![listing(&["b"])]);
    pass(&mut collector, &machine, Duration::from_mins(10)).await;
    assert!(collector.snapshot().lists("b"));
}

/// Who is asked before, and what is said of it.
async fn followed(machine: &Machine, cfn: &Fake) -> Collector {
    machine.put(BOOT, &boot(&cfn.base));
    let mut collector = machine.collector();
    collector.poll_once().await;
    assert!(collector.snapshot().lists("before"));
    collector
}

#[tokio::test]
async fn one_that_is_replaced_by_one_that_never_answers_is_followed_on_over_restarts_too() {
    // Another source, and the same one elsewhere.
    for same in [false, true] {
        let (dead, new) = (Fake::start(vec![Act::Close]).await, Fake::start(vec![]).await);
        let cfn = Fake::start(vec![listing(&["before"])]).await;
        let machine = Machine::new();
        let mut collector = followed(&machine, &cfn).await;
        let wrong = if same { whole("cfn", &keys(&dead.base, "AK2", "SK2")) } else { whole("heat", &heat_keys(&dead.base)) };
        cfn.play(vec![answer(&naming("wrong", &wrong))]);
        collector.poll_once().await;
        assert!(collector.snapshot().lists("wrong"));
        pass(&mut collector, &machine, Duration::from_secs(30)).await;
        assert!(!dead.requests().is_empty(), "the new one is asked first");
        assert_eq!(count(&machine, Code::SourceReplacementPending), 1);
        let failing = if same { "cfn" } else { "heat" };
        assert!(collector.snapshot().sources[failing].failures > 0, "and its failure is said");
        let signals_go_the_proven_way = |collector: &Collector| {
            let credentials = format!("{:?}", collector.snapshot().own_credentials);
            assert!(credentials.contains(&cfn.base) && !credentials.contains(&dead.base), "{credentials}");
        };
        signals_go_the_proven_way(&collector);
        // At rest it is asked less often than a source in force, and followed.
        pass(&mut collector, &machine, Duration::from_hours(1)).await;
        let before = cfn.requests().len();
        pass(&mut collector, &machine, Duration::from_hours(1)).await;
        let hourly = cfn.requests().len() - before;
        assert!((10..=30).contains(&hourly), "{hourly} in an hour");
        let began = machine.clock.moment();
        cfn.play(vec![answer(&naming("after", &wrong))]);
        // Somebody waits for a fresh answer: a signal.
        collector.ask(machine.clock.moment());
        pass(&mut collector, &machine, Duration::from_secs(15)).await;
        assert!(collector.snapshot().lists("after") && collector.snapshot().freshness().covers(began));
        // After a restart, too, with nothing but what is on disk.
        cfn.play(vec![answer(&naming("restarted", &wrong))]);
        let mut collector = machine.collector();
        let began = machine.clock.moment();
        collector.poll_once().await;
        pass(&mut collector, &machine, Duration::from_mins(10)).await;
        assert!(collector.snapshot().lists("restarted") && collector.snapshot().freshness().covers(began));
        signals_go_the_proven_way(&collector);
        assert_eq!(machine.state.facts(Path::new("cache/cfn.json")).unwrap().unwrap().mode, 0o600);
        // What corrects the mistake comes by the old way.
        let right = if same {
            whole("cfn", &keys(&new.base, "AK3", "SK3"))
        } else {
            whole("request", &json!({"metadata_url": format!("{}/o", new.base)}))
        };
        new.play(vec![if same { answer(&naming("new", &right)) } else { ok(naming("new", &right).to_string()) }]);
        cfn.play(vec![answer(&naming("corrected", &right))]);
        pass(&mut collector, &machine, Duration::from_mins(10)).await;
        assert!(collector.snapshot().lists("new"), "{same}");
        // And now it is let go.
        let asked = cfn.requests().len();
        pass(&mut collector, &machine, Duration::from_mins(30)).await;
        let mut collector = machine.collector();
        collector.poll_once().await;
        pass(&mut collector, &machine, Duration::from_mins(30)).await;
        assert_eq!(cfn.requests().len(), asked, "{same}");
        assert!(collector.snapshot().lists("new"));
        let cache = if same { "cache/cfn.json" } else { "cache/request.json" };
        let kept = String::from_utf8(machine.state.read(Path::new(cache), 1 << 20).unwrap().unwrap()).unwrap();
        assert!(!kept.contains(&cfn.base), "nothing of the old way is kept: {kept}");
    }
}

#[tokio::test]
async fn who_is_pointed_elsewhere_by_hand_is_not_led_back_by_the_old_place() {
    let cfn = Fake::start(vec![listing(&["before"])]).await;
    let other = Fake::start(vec![Act::Close]).await;
    let machine = Machine::new();
    let mut collector = followed(&machine, &cfn).await;
    cfn.play(vec![answer(&naming("old", &whole("cfn", &keys(&cfn.base, "AK", "SK"))))]);
    machine.put(CONF, &section(&other.base, "other", "AK3"));
    pass(&mut collector, &machine, Duration::from_hours(1)).await;
    assert!(collector.snapshot().lists("old") && other.requests().len() > 5, "both are asked");
    other.play(vec![listing(&["other"])]);
    pass(&mut collector, &machine, Duration::from_mins(20)).await;
    assert!(collector.snapshot().lists("other"));
    let asked = cfn.requests().len();
    pass(&mut collector, &machine, Duration::from_mins(20)).await;
    assert_eq!(cfn.requests().len(), asked);
}

#[tokio::test]
async fn a_source_that_names_itself_again_goes_on_at_its_usual_pace() {
    let (cfn, dead) = (Fake::start(vec![listing(&["before"])]).await, Fake::start(vec![Act::Close]).await);
    let machine = Machine::new();
    let mut collector = followed(&machine, &cfn).await;
    cfn.play(vec![answer(&naming("wrong", &whole("heat", &heat_keys(&dead.base))))]);
    collector.poll_once().await;
    pass(&mut collector, &machine, Duration::from_mins(10)).await;
    cfn.play(vec![answer(&naming("right", &whole("cfn", &keys(&cfn.base, "AK", "SK"))))]);
    pass(&mut collector, &machine, Duration::from_mins(10)).await;
    assert!(collector.snapshot().lists("right") && !collector.snapshot().sources.contains_key("heat"));
    let (asked, missed) = (cfn.requests().len(), dead.requests().len());
    pass(&mut collector, &machine, Duration::from_mins(30)).await;
    let often = cfn.requests().len() - asked;
    assert!((25..=35).contains(&often) && dead.requests().len() == missed, "{often}");
}

#[tokio::test]
async fn https_is_not_left_for_http_and_a_restart_does_not_forget_it() {
    let ca = TestCa::new("known");
    let identity = ca.identity("127.0.0.1", (2020, 2100));
    for allowed in [false, true] {
        let plain = Fake::start(vec![answer(&json!({"deployments": [{"id": "plain"}]}))]).await;
        let secure = Fake::start_tls(vec![], Arc::clone(&identity)).await;
        // The boot copy is of a time before TLS; Heat's own answer led to https.
        let boot_copy = boot(&plain.base);
        let to_https = answer(&naming("told", &whole("cfn", &keys(&secure.base, "AK", "SK"))));
        secure.play(vec![to_https.clone()]);
        plain.play(vec![to_https]);
        let mut machine = Machine::new();
        machine.settings.tls.ca_file = Some(CA.into());
        machine.settings.tls.allow_insecure = allowed;
        machine.put(CA, &ca.pem());
        machine.put(BOOT, &boot_copy);
        let mut collector = machine.collector();
        for _ in 0..2 {
            collector.poll_once().await;
        }
        assert_eq!(secure.requests().len(), 1, "{:?}", collector.snapshot());
        let asked = plain.requests().len();
        for config in [
            whole("cfn", &keys(&plain.base, "AK", "SK")),
            whole("heat", &heat_keys(&plain.base)),
            whole("request", &json!({"metadata_url": format!("{}/o", plain.base)})),
            // What led to https is not said any more.
            json!({}),
        ] {
            secure.play(vec![answer(&naming("still", &config))]);
            let mut collector = machine.collector();
            for _ in 0..2 {
                collector.poll_once().await;
            }
            pass(&mut collector, &machine, Duration::from_mins(10)).await;
            if allowed {
                assert!(plain.requests().len() > asked, "{config}");
                break;
            }
            assert_eq!(plain.requests().len(), asked, "{config}");
            assert!(collector.snapshot().lists("still"), "{config}");
            assert!(machine.codes().contains(&Code::SourceDowngrade), "{config}");
            let credentials = format!("{:?}", collector.snapshot().own_credentials);
            assert!(!credentials.contains(&plain.base), "{config}: {credentials}");
        }
    }
}

#[tokio::test]
async fn plain_http_is_not_taken_up_beside_https_either() {
    let ca = TestCa::new("known");
    let identity = ca.identity("127.0.0.1", (2020, 2100));
    for (allowed, collectors) in
        [(false, json!(["cfn", "request"])), (false, json!([])), (false, json!(["nothing"])), (true, json!(["cfn", "request"]))]
    {
        let plain = Fake::start(vec![ok(json!({"deployments": [{"id": "plain"}]}).to_string())]).await;
        let secure = Fake::start_tls(vec![], Arc::clone(&identity)).await;
        let config = json!({"collectors": collectors, "cfn": keys(&secure.base, "AK2", "SK2"),
            "request": {"metadata_url": format!("{}/o", plain.base)}});
        secure.play(vec![answer(&naming("secure", &config))]);
        let mut machine = Machine::new();
        machine.settings.tls.ca_file = Some(CA.into());
        machine.settings.tls.allow_insecure = allowed;
        machine.put(CA, &ca.pem());
        machine.put(CONF, &section(&secure.base, "s", "AK"));
        for _ in 0..2 {
            let mut collector = machine.collector();
            for _ in 0..2 {
                collector.poll_once().await;
            }
            pass(&mut collector, &machine, Duration::from_mins(10)).await;
            assert_eq!(plain.requests().is_empty(), !allowed, "{collectors}");
            assert_eq!(collector.snapshot().lists("plain"), allowed, "{collectors}");
            assert_eq!(collector.snapshot().lists("secure"), !allowed, "{collectors}");
        }
        // The rest of the document is followed: new keys for https.
        assert!(secure.requests().pop().unwrap().contains("AWSAccessKeyId=AK2&"), "{collectors}");
        let reported: Vec<_> = machine.report.events().into_iter().filter(|event| event.code == Code::SourceDowngrade).collect();
        // Once in each of the two processes.
        assert_eq!(reported.len(), if allowed { 0 } else { 2 }, "{collectors}: {reported:?}");
        assert!(reported.iter().all(|event| event.message.contains(&plain.base) && event.remedy.is_some()), "{reported:?}");
    }
}
