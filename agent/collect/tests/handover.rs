//! When a source that takes another one's place has answered, and what stays true afterwards: two never replace each other forever.

use super::replaced::{count, naming, pass, whole};
use super::transports::{header, heat_keys};
use super::*;

fn request(base: &str) -> Value {
    json!({"metadata_url": format!("{base}/o?temp_url_sig=hush")})
}

#[tokio::test]
async fn an_answer_that_leads_nowhere_or_back_does_not_replace_the_old_way() {
    for same in [false, true] {
        for case in ["nothing", "an empty list", "back"] {
            let (old, new) = (Fake::start(vec![]).await, Fake::start(vec![]).await);
            let machine = Machine::new();
            machine.put(CONF, &section(&old.base, "s", "AK"));
            let there = if same { whole("cfn", &keys(&new.base, "AK2", "SK2")) } else { whole("request", &request(&new.base)) };
            let back = whole("cfn", &keys(&old.base, "AK", "SK"));
            let reported = match case {
                "nothing" => json!({}),
                "an empty list" => json!({"deployments": []}),
                _ => naming("back", &back),
            };
            old.play(vec![answer(&naming("a", &there))]);
            new.play(vec![if same { answer(&reported) } else { ok(reported.to_string()) }]);
            let mut asked = (0, 0);
            for _ in 0..2 {
                let mut collector = machine.collector();
                pass(&mut collector, &machine, Duration::from_hours(1)).await;
                let now = (old.requests().len(), new.requests().len());
                // The old way at a quarter of the pace, the new one as one that fails.
                assert!(now.0 - asked.0 <= 35 && now.1 - asked.1 <= 90 && now.1 > asked.1, "{same} {case}: {asked:?} {now:?}");
                asked = now;
                let snapshot = collector.snapshot();
                assert!(snapshot.lists("a") && !snapshot.lists("back"), "{same} {case}");
                let cause = snapshot.sources[if same { "cfn" } else { "request" }].cause.clone().unwrap();
                assert!(cause.contains(if case == "back" { "leads back" } else { "names no source" }), "{cause}");
                let credentials = format!("{:?}", snapshot.own_credentials);
                assert!(credentials.contains(&old.base) && !credentials.contains(&new.base), "{credentials}");
            }
            assert_eq!(
                (count(&machine, Code::SourceRetired), count(&machine, Code::SourceReplacementPending)),
                (0, 2),
                "{same} {case}"
            );
            // What corrects the mistake arrives by the old way.
            old.play(vec![answer(&naming("corrected", &back))]);
            let mut collector = machine.collector();
            pass(&mut collector, &machine, Duration::from_mins(10)).await;
            assert!(collector.snapshot().lists("corrected"), "{same} {case}");
            assert!(collector.snapshot().sources["cfn"].cause.is_none(), "{same} {case}");
        }
    }
}

#[tokio::test]
async fn an_answer_that_names_no_source_changes_nothing_of_what_led_to_it() {
    // The files name the old way alone, or both and Heat only the new one.
    for both in [false, true] {
        for same in [false, true].into_iter().filter(|same| !(both && *same)) {
            let (old, new) = (Fake::start(vec![]).await, Fake::start(vec![]).await);
            let machine = Machine::new();
            let mut conf = section(&old.base, "s", "AK");
            if both {
                conf += &format!("[request]\nmetadata_url = {}/o?temp_url_sig=hush\n", new.base);
            }
            machine.put(CONF, &conf);
            let there = if same { whole("cfn", &keys(&new.base, "AK2", "SK2")) } else { whole("request", &request(&new.base)) };
            old.play(vec![answer(&naming("a", &there))]);
            let silent = json!({"deployments": [{"id": "b"}]});
            new.play(vec![if same { answer(&silent) } else { ok(silent.to_string()) }]);
            let mut collector = machine.collector();
            pass(&mut collector, &machine, Duration::from_mins(10)).await;
            for _ in 0..2 {
                let asked = (old.requests().len(), new.requests().len());
                pass(&mut collector, &machine, Duration::from_hours(1)).await;
                let now = (old.requests().len() - asked.0, new.requests().len() - asked.1);
                assert!(now.0 <= 2 && (50..=75).contains(&now.1), "{both} {same}: {now:?}");
                assert!(collector.snapshot().lists("b") && !collector.snapshot().lists("a"), "{both} {same}");
                collector = machine.collector();
                pass(&mut collector, &machine, Duration::from_mins(10)).await;
            }
            // Somebody points the server back by hand.
            old.play(vec![listing(&["c"])]);
            machine.put(CONF, &section(&old.base, "s", "AK3"));
            pass(&mut collector, &machine, Duration::from_mins(10)).await;
            assert!(collector.snapshot().lists("c"), "{both} {same}");
        }
    }
}

#[tokio::test]
async fn two_that_the_files_name_and_that_name_each_other_do_not_take_turns() {
    let (cfn, swift) = (Fake::start(vec![]).await, Fake::start(vec![]).await);
    let machine = Machine::new();
    machine.put(CONF, &format!("{}[request]\nmetadata_url = {}/o\n", section(&cfn.base, "s", "AK"), swift.base));
    cfn.play(vec![answer(&naming("a", &json!({"collectors": ["request"]})))]);
    swift.play(vec![ok(naming("a", &json!({"collectors": ["cfn"]})).to_string())]);
    let mut collector = machine.collector();
    pass(&mut collector, &machine, Duration::from_mins(10)).await;
    let asked = (cfn.requests().len(), swift.requests().len());
    pass(&mut collector, &machine, Duration::from_hours(1)).await;
    let now = (cfn.requests().len() - asked.0, swift.requests().len() - asked.1);
    assert!(now.0 <= 90 && now.1 <= 90 && now.0.min(now.1) <= 35, "{now:?}");
    assert!(collector.snapshot().lists("a") && count(&machine, Code::SourceRetired) <= 2);
}

#[tokio::test]
async fn a_source_that_fails_leaves_its_list_in_force_until_another_one_answers_anew() {
    let (cfn, swift) = (Fake::start(vec![]).await, Fake::start(vec![]).await);
    let machine = Machine::new();
    machine.put(CONF, &format!("{}[request]\nmetadata_url = {}/o\n", section(&cfn.base, "s", "AK"), swift.base));
    let answers = Arc::new(Notify::new());
    let object =
        |ids: &[&str]| ok(json!({"deployments": ids.iter().map(|id| json!({"id": id})).collect::<Vec<_>>()}).to_string());
    // Heat replaces the one by the other; of that request hears first, and cfn's next answer is late.
    cfn.play(vec![listing(&["old"]), Act::Held(Arc::clone(&answers), Box::new(listing(&["old"]))), listing(&["newest"])]);
    swift.play(vec![object(&["old"]), object(&["new"]), status("503 Service Unavailable", "")]);
    let mut collector = machine.collector();
    while !collector.snapshot().lists("new") {
        collector.changed().await;
    }
    let newest = collector.snapshot().listing.clone();
    while collector.snapshot().sources["request"].failures == 0 || cfn.requests().len() < 2 {
        collector.changed().await;
    }
    let snapshot = collector.snapshot();
    assert!(snapshot.lists("new") && !snapshot.lists("old"), "an older list is in force again: {snapshot:?}");
    assert_eq!((snapshot.listing.clone(), snapshot.awaited), (newest, Some("cfn")));
    assert_eq!(count(&machine, Code::SourceAnswerOlder), 1);
    answers.notify_one();
    while !collector.snapshot().lists("newest") {
        collector.changed().await;
    }
    assert_eq!((collector.snapshot().listing.as_ref().unwrap().source, collector.snapshot().awaited), ("cfn", None));
}

/// Attack: the answer that was refused the first time was asked for with the old place's ETag, and its 304 counted as an answer.
#[tokio::test]
async fn what_was_refused_is_not_accepted_as_unchanged() {
    let tagged = |document: &Value| Act::Answer("200 OK", vec!["Etag: 0123abcd".to_owned()], document.to_string().into_bytes());
    let unchanged = || Act::Answer("304 Not Modified", vec![], vec![]);
    let (old, new) = (Fake::start(vec![]).await, Fake::start(vec![]).await);
    let machine = Machine::new();
    machine.put(CONF, &format!("[request]\nmetadata_url = {}/o\n", old.base));
    let there = whole("request", &request(&new.base));
    old.play(vec![tagged(&naming("a", &there)), unchanged()]);
    new.play(vec![tagged(&json!({})), unchanged(), tagged(&json!({})), unchanged()]);
    let mut collector = machine.collector();
    pass(&mut collector, &machine, Duration::from_mins(10)).await;
    let asked = new.requests();
    assert!(asked.len() >= 4 && asked.iter().all(|request| header(request, "if-none-match").is_none()), "{asked:?}");
    let snapshot = collector.snapshot();
    assert!(snapshot.lists("a") && snapshot.sources["request"].failures > 0, "{snapshot:?}");
    old.play(vec![tagged(&naming("corrected", &whole("request", &json!({"metadata_url": format!("{}/o", old.base)}))))]);
    pass(&mut collector, &machine, Duration::from_mins(10)).await;
    assert!(collector.snapshot().lists("corrected") && collector.snapshot().sources["request"].cause.is_none());
}

/// Attack: an answer of a place that Heat had named by mistake arrived after the correction, and was taken as the one of the corrected place.
#[tokio::test]
async fn an_answer_that_arrives_after_its_way_was_taken_back_counts_for_nothing() {
    for same in [false, true] {
        for reported in [json!({}), json!({"deployments": [{"id": "foreign"}]})] {
            let (old, new) = (Fake::start(vec![]).await, Fake::start(vec![]).await);
            let machine = Machine::new();
            machine.put(CONF, &section(&old.base, "s", "AK"));
            let there = if same { whole("cfn", &keys(&new.base, "AK2", "SK2")) } else { whole("request", &request(&new.base)) };
            let back = whole("cfn", &keys(&old.base, "AK", "SK"));
            let late = Arc::new(Notify::new());
            old.play(vec![answer(&naming("a", &there)), answer(&naming("corrected", &back))]);
            let says = || if same { answer(&reported) } else { ok(reported.to_string()) };
            new.play(vec![Act::Held(Arc::clone(&late), Box::new(says())), says()]);
            let mut collector = machine.collector();
            while new.requests().is_empty() || !collector.snapshot().lists("corrected") {
                machine.clock.advance(Duration::from_secs(30));
                collector.changed().await;
            }
            late.notify_one();
            while let Some(polled) = collector.in_flight.join_next().await {
                collector.handle_poll(polled);
            }
            for _ in 0..2 {
                let asked = (old.requests().len(), new.requests().len());
                pass(&mut collector, &machine, Duration::from_mins(30)).await;
                assert!(collector.snapshot().lists("corrected") && !collector.snapshot().lists("foreign"), "{same} {reported}");
                assert!(old.requests().len() > asked.0 && new.requests().len() == asked.1, "{same} {reported}");
                let credentials = format!("{:?}", collector.snapshot().own_credentials);
                assert!(credentials.contains(&old.base) && !credentials.contains(&new.base), "{credentials}");
                collector = machine.collector();
            }
        }
    }
}

/// It was worked out twice for each poll.
#[tokio::test]
async fn what_leads_to_the_sources_is_worked_out_once_for_a_poll_and_anew_after_each_answer() {
    let fake = Fake::start(vec![answer(&naming("a", &json!({}))), answer(&naming("b", &json!({})))]).await;
    let machine = Machine::new();
    machine.put(CONF, &section(&fake.base, "s", "AK"));
    let mut collector = machine.collector();
    for listed in ["a", "b"] {
        collector.start(true);
        let known = Arc::clone(collector.known.as_ref().unwrap());
        let polled = collector.in_flight.join_next().await.unwrap().unwrap();
        collector.standing_of(&polled);
        assert!(collector.known.as_ref().is_some_and(|now| Arc::ptr_eq(&known, now)), "worked out again");
        collector.settle(polled);
        assert!(collector.in_flight.is_empty() && collector.known.is_none());
        assert!(collector.snapshot().lists(listed));
    }
}

/// Lets 30 s pass, and takes what has arrived: a request that is not answered is not waited for.
async fn step(collector: &mut Collector, machine: &Machine) {
    machine.clock.advance(Duration::from_secs(30));
    collector.start(false);
    Clock::system().wait(Duration::from_millis(20)).await;
    while let Some(poll_result) = collector.in_flight.try_join_next() {
        collector.handle_poll(poll_result);
    }
}

/// Attack: the answer of a source arrived after another one had named a third, which did not answer: both were forgotten, and the server was
/// off Heat for good, although Heat took that back.
#[tokio::test]
async fn an_answer_of_a_way_that_is_to_be_replaced_retires_nobody() {
    let [old, cfn, swift, keystone] = [(); 4].map(|()| async { Fake::start(vec![]).await });
    let (old, cfn, swift, keystone) = (old.await, cfn.await, swift.await, keystone.await);
    let machine = Machine::new();
    machine.put(CONF, &section(&old.base, "s", "AK"));
    let both = json!({"collectors": ["cfn", "request"], "cfn": keys(&cfn.base, "AK2", "SK2"), "request": request(&swift.base)});
    let away = json!({"collectors": ["heat"], "heat": heat_keys(&keystone.base)});
    let unavailable = || status("503 Service Unavailable", "");
    let (late, mistaken) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let held = |until: &Arc<Notify>, act| Act::Held(Arc::clone(until), Box::new(act));
    old.play(vec![answer(&naming("a", &both)), unavailable()]);
    keystone.play(vec![unavailable()]);
    let reported = || answer(&naming("a", &both));
    cfn.play(vec![reported(), held(&late, reported()), answer(&naming("b", &both))]);
    let object = |config: &Value| ok(naming("a", config).to_string());
    swift.play(vec![object(&both), held(&mistaken, object(&away)), ok(naming("b", &both).to_string())]);
    let mut collector = machine.collector();
    while cfn.requests().len() < 2 || swift.requests().len() < 2 {
        step(&mut collector, &machine).await;
    }
    mistaken.notify_one();
    while keystone.requests().is_empty() {
        step(&mut collector, &machine).await;
    }
    late.notify_one();
    while !collector.in_flight.is_empty() {
        let poll_result = collector.in_flight.join_next().await.unwrap();
        collector.handle_poll(poll_result);
    }
    for _ in 0..2 {
        let asked = (cfn.requests().len(), swift.requests().len());
        pass(&mut collector, &machine, Duration::from_mins(30)).await;
        assert!(cfn.requests().len() > asked.0 && swift.requests().len() > asked.1);
        assert!(collector.snapshot().lists("b"), "{:?}", collector.snapshot());
        collector = machine.collector();
    }
}
