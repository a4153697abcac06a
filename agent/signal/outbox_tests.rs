//! What is sent when, and what is not; what is kept.

use serde_json::json;
use tokio::sync::Notify;

use super::*;
use crate::freshness::ListAnswer;
use crate::http::fake::{Act, Fake, ok, status, token, zaqar_token};
use crate::http::{Http, Tls};
use crate::openstack::aws_signature::Keys;
use crate::openstack::keystone::{Credentials, Keystone, Scope};
use crate::signal::{Handle, WaitSignal, WaitStatus};

fn outbox(dir: &Path, clock: &Clock, report: &Report) -> Rc<Outbox> {
    let state = Arc::new(Tree::open(dir).unwrap());
    let http = Http::new(Tls::default(), Arc::new(Tree::open(Path::new("/")).unwrap()), clock.clone());
    let sender = Sender::new(http, Keystone::new(clock.clone()), clock.clone());
    Rc::new(Outbox::open(state, sender, clock.clone(), report.clone()).unwrap())
}

fn about(id: &str) -> SignalSubject {
    SignalSubject { id: id.into(), name: "n".into(), resource: Some(("s/1".into(), "r".into())), result: true }
}

fn entry(id: &str, now: Timestamp) -> QueuedSignal {
    // Port 9 (discard) of the loopback: nothing listens there.
    let destination = Destination::Url {
        url: "http://127.0.0.1:9/v1/signal/a%3Ab?Timestamp=1970-01-01T00%3A00%3A01Z&Signature=x".into(),
        verb: "POST".into(),
        insecure: false,
    };
    QueuedSignal::new(format!("deployment {id}"), Some(about(id)), destination, json!({"deploy_status_code": 0}), now)
}

/// An answer to a poll that began now, and came at once.
fn answered(clock: &Clock) -> Freshness {
    Freshness::Answered(ListAnswer::new(clock.moment(), [Duration::ZERO; 2]))
}

/// What a poll that began now says.
fn view(ids: &[&str], newest: &str, clock: &Clock) -> MetadataView {
    MetadataView {
        listed: Some(Arc::new(ids.iter().map(|id| (*id).to_owned()).collect())),
        newest: Arc::new([(("s/1".to_owned(), "r".to_owned()), [newest.to_owned()].into())].into()),
        freshness: answered(clock),
        asked_keystone: true,
        own: OwnCredentials::default(),
        node_file: None,
    }
}

/// The outbox when it has heard this.
fn received<'outbox>(outbox: &'outbox Rc<Outbox>, view: &MetadataView) -> &'outbox Rc<Outbox> {
    outbox.receive(view.clone());
    outbox
}

/// One signal a place is sent, to its end.
async fn sent(outbox: &Rc<Outbox>) -> Departures {
    let all = futures_util::future::join_all(outbox.start()).await;
    let (gone, kept): (Vec<_>, Vec<_>) = all.into_iter().unzip();
    (gone.into_iter().flatten().collect(), kept.into_iter().collect())
}

fn refused(code: u16) -> SignalResponse {
    SignalResponse::status(code, None, "")
}

#[test]
fn a_try_needs_an_answer_to_a_poll_that_began_after_the_fact_and_a_stale_result_is_never_sent() {
    let (dir, clock, report) = (tempfile::tempdir().unwrap(), Clock::manual(Timestamp(10_000)), Report::kept());
    let outbox = outbox(dir.path(), &clock, &report);
    // The poll is answered, then the job ends: Heat may ask for something newer since.
    let before = view(&["a"], "a", &clock);
    outbox.put(entry("a", clock.now())).unwrap();
    let mut entry = outbox.waiting().remove(0);
    let none = MetadataView::default();
    let step = |entry: &QueuedSignal, view: &MetadataView| outbox.next_action(entry, view);
    assert_eq!(step(&entry, &none), NextAction::NeedPoll, "nobody answered in this run");
    assert_eq!(step(&entry, &before), NextAction::NeedPoll);
    assert_eq!((received(&outbox, &before).needs_answer(), outbox.due()), (Some(entry.since), None));
    assert_eq!(step(&entry, &view(&["a"], "a", &clock)), NextAction::Send);
    assert_eq!(step(&entry, &view(&["b"], "b", &clock)), NextAction::Superseded);
    assert_eq!(step(&entry, &view(&["a", "b"], "b", &clock)), NextAction::Superseded);
    // An answer of before does not know of it either.
    assert_eq!(step(&entry, &MetadataView { listed: Some(Arc::default()), ..before }), NextAction::NeedPoll);
    // The same once more after each try.
    let first = view(&["a"], "a", &clock);
    let none_came = SignalResponse::unanswered(&Error::transient("refused"), "refused");
    assert_eq!(outbox.apply_answer(&mut entry, &none_came, SignalVerdict::Retry(None), true), None);
    assert!(matches!(step(&entry, &first), NextAction::Wait(_)));
    clock.advance(Duration::from_mins(10));
    assert_eq!(step(&entry, &first), NextAction::NeedPoll);
    assert_eq!(step(&entry, &none), NextAction::NeedPoll);
    assert_eq!(step(&entry, &view(&["a"], "a", &clock)), NextAction::Send);
    let unasked = MetadataView { freshness: Freshness::Unasked, ..MetadataView::default() };
    assert_eq!(step(&entry, &unasked), NextAction::Send, "no source could ever answer");
    entry.about = None;
    assert_eq!(step(&entry, &first), NextAction::Send, "it is about no deployment");
    clock.advance(LIFE);
    assert_eq!(step(&entry, &none), NextAction::Expired);
}

#[test]
fn one_answer_serves_all_that_ended_before_its_request() {
    let (dir, clock, report) = (tempfile::tempdir().unwrap(), Clock::manual(Timestamp(10_000)), Report::kept());
    let outbox = outbox(dir.path(), &clock, &report);
    for id in ["a", "b"] {
        let mut entry = entry(id, clock.now());
        entry.about.as_mut().unwrap().resource = None;
        outbox.put(entry).unwrap();
    }
    let fresh = view(&["a", "b"], "a", &clock);
    assert!(outbox.waiting().iter().all(|entry| outbox.next_action(entry, &fresh) == NextAction::Send));
    assert_eq!(received(&outbox, &fresh).needs_answer(), None);
    assert_eq!(
        received(&outbox, &MetadataView::default()).needs_answer(),
        outbox.waiting().iter().map(|entry| entry.since).max()
    );
}

#[test]
fn after_a_restart_nothing_is_sent_before_the_metadata_was_read() {
    let (dir, clock, report) = (tempfile::tempdir().unwrap(), Clock::manual(Timestamp(10_000)), Report::kept());
    outbox(dir.path(), &clock, &report).put(entry("a", clock.now())).unwrap();
    // Another run has an order of events of its own.
    let clock = Clock::manual(Timestamp(20_000));
    let outbox = outbox(dir.path(), &clock, &report);
    let stored = outbox.waiting().remove(0);
    let none = MetadataView::default();
    assert_eq!(outbox.next_action(&stored, &none), NextAction::NeedPoll);
    assert!(received(&outbox, &none).needs_answer().is_some() && outbox.due().is_none());
    assert_eq!(outbox.next_action(&stored, &view(&["a"], "a", &clock)), NextAction::Send);
}

#[test]
fn a_clock_that_is_set_makes_no_answer_fresh_and_none_stale() {
    let (dir, clock, report) = (tempfile::tempdir().unwrap(), Clock::manual(Timestamp(10_000)), Report::kept());
    let outbox = outbox(dir.path(), &clock, &report);
    let mut entry = entry("a", clock.now());
    let before = view(&["a"], "a", &clock);
    outbox.apply_answer(&mut entry, &refused(500), SignalVerdict::Retry(None), true);
    // The try was at 999 s, then the clock was set back.
    (entry.last_try, entry.pause) = (Some(Timestamp(999_000)), HoldBack::default());
    assert_eq!(outbox.next_action(&entry, &before), NextAction::NeedPoll);
    assert_eq!(outbox.next_action(&entry, &view(&["a"], "a", &clock)), NextAction::Send);
}

#[test]
fn a_wait_conditions_signal_is_kept_for_a_deployment_that_comes_back() {
    let (dir, clock, report) = (tempfile::tempdir().unwrap(), Clock::manual(Timestamp(10_000)), Report::kept());
    let first = outbox(dir.path(), &clock, &report);
    for (key, result) in [("wait", false), ("result", true)] {
        let mut entry = entry("a", clock.now());
        (entry.key, entry.about.as_mut().unwrap().result) = (key.to_owned(), result);
        first.put(entry).unwrap();
    }
    let mut gone = Vec::new();
    for entry in first.waiting() {
        first.leave(entry, Disposition::Superseded, &mut gone).unwrap();
    }
    assert!(first.is_empty() && Outbox::inspect(&first.state).unwrap().is_empty(), "it waits no more");
    let stale = MetadataView {
        freshness: Freshness::Answered(ListAnswer::new(Moment::EARLIER, [Duration::ZERO; 2])),
        ..view(&["a"], "a", &clock)
    };
    for nothing in [stale, view(&["b"], "b", &clock), view(&["a", "b"], "b", &clock), MetadataView::default()] {
        received(&first, &nothing).take_back().1.unwrap();
        assert!(first.is_empty(), "{nothing:?}");
    }
    // By the next run of the agent, too. The result is made again from the deployment's record.
    let clock = Clock::manual(Timestamp(20_000));
    let second = outbox(dir.path(), &clock, &report);
    assert!(second.is_empty());
    let back = view(&["a"], "a", &clock);
    received(&second, &back).take_back().1.unwrap();
    let keys: Vec<_> = second.waiting().iter().map(|entry| entry.key.clone()).collect();
    assert_eq!((keys, second.needs_answer().is_some()), (vec!["wait".to_owned()], true), "not on that same answer");
    second.leave(second.waiting().remove(0), Disposition::Superseded, &mut gone).unwrap();
    second.discard_for("a").unwrap();
    received(&second, &view(&["a"], "a", &clock)).take_back().1.unwrap();
    assert!(second.is_empty() && dir.path().join(DIRECTORY).read_dir().unwrap().next().is_none());
}

#[test]
fn of_what_is_kept_for_later_there_is_a_bound_and_an_end() {
    let (dir, clock, report) = (tempfile::tempdir().unwrap(), Clock::manual(Timestamp(10_000)), Report::kept());
    let (outbox, mut gone) = (outbox(dir.path(), &clock, &report), Vec::new());
    for n in 0..PARKED + 3 {
        let mut entry = entry(&format!("{n:03}"), clock.now());
        entry.about.as_mut().unwrap().result = false;
        outbox.store(&mut entry, json!({})).unwrap();
        outbox.leave(entry, Disposition::Superseded, &mut gone).unwrap();
        clock.advance(Duration::from_secs(1));
    }
    let files = || dir.path().join(DIRECTORY).read_dir().unwrap().count();
    assert_eq!((files(), outbox.parked.borrow().contains_key("deployment 002")), (PARKED, false));
    let dropped = report
        .events()
        .iter()
        .filter(|event| event.cause.as_ref().is_some_and(|why| why.contains("newer ones are kept")))
        .count();
    assert_eq!(dropped, 3, "nothing goes in silence");
    clock.advance(LIFE);
    let (expired, done) = received(&outbox, &MetadataView::default()).take_back();
    done.unwrap();
    assert!(expired.len() == PARKED && expired.iter().all(|(_, end)| *end == Disposition::Expired), "none is said to be lost");
    assert_eq!(files(), 0);
}

/// A full disk: the signal that is kept for a deployment is what it was before, and known.
#[test]
fn a_signal_that_cannot_be_kept_for_later_is_not_forgotten() {
    let (dir, clock, report) = (tempfile::tempdir().unwrap(), Clock::manual(Timestamp(10_000)), Report::kept());
    let (outbox, mut gone) = (outbox(dir.path(), &clock, &report), Vec::new());
    let mut entry = entry("a", clock.now());
    entry.about.as_mut().unwrap().result = false;
    outbox.put(entry.clone()).unwrap();
    let in_the_way = Path::new(DIRECTORY).join(format!(".{}.json.hna-new", key_of(&entry.key)));
    let tree = Tree::open(dir.path()).unwrap();
    tree.create_dir_all(&in_the_way.join("x"), Attributes::mode(0o700)).unwrap();
    assert!(outbox.leave(outbox.waiting().remove(0), Disposition::Superseded, &mut gone).is_err());
    assert!(outbox.keeps(&entry.key));
    tree.remove_dir_all(&in_the_way).unwrap();
    clock.advance(Duration::from_secs(1));
    received(&outbox, &view(&["a"], "a", &clock)).take_back().1.unwrap();
    assert!(outbox.has(&entry.key), "it is sent once Heat lists its deployment again");
}

#[test]
fn a_403_that_may_be_keystones_trouble_is_never_final() {
    let (dir, clock, report) = (tempfile::tempdir().unwrap(), Clock::manual(Timestamp(10_000)), Report::kept());
    let outbox = outbox(dir.path(), &clock, &report);
    let arn = "arn%3Aopenstack%3Aheat%3A%3Ap%3Astacks/s/u/resources/r";
    let cfn = format!("http://127.0.0.1:9/v1/signal/{arn}?Signature=x");
    let swift = "http://127.0.0.1:9/v1/AUTH_p/c/o?temp_url_sig=x".to_owned();
    // Where the metadata comes from Swift, nothing shows that Keystone answers; whoever asks Heat for it has its requests checked.
    for (url, code, keystone_answers, is_final) in
        [(&cfn, 403, false, false), (&cfn, 403, true, true), (&cfn, 404, false, true), (&swift, 403, false, true)]
    {
        let mut entry = entry("a", clock.now());
        entry.destination = Destination::Url { url: url.clone(), verb: "POST".into(), insecure: false };
        let mut disposition = None;
        for _ in 0..20 {
            disposition = outbox.apply_answer(&mut entry, &refused(code), judge(&refused(code)), keystone_answers);
            if disposition.is_some() {
                break;
            }
            let pause = entry.not_before.since(clock.now());
            assert!(pause >= Duration::from_mins(7) && pause <= REFUSAL_SPAN, "{pause:?}");
            clock.advance(pause);
        }
        assert_eq!(disposition.is_some(), is_final, "{url} {code} {keystone_answers}");
        assert_eq!(entry.cause.unwrap().contains("a Keystone failure looks the same"), !is_final);
    }
}

#[test]
fn three_refusals_over_a_quarter_of_an_hour_are_final_not_three_in_a_moment() {
    let (dir, clock, report) = (tempfile::tempdir().unwrap(), Clock::manual(Timestamp(10_000)), Report::kept());
    let outbox = outbox(dir.path(), &clock, &report);
    let mut entry = entry("a", clock.now());
    for _ in 0..4 {
        assert_eq!(outbox.apply_answer(&mut entry, &refused(403), SignalVerdict::Refused, true), None);
    }
    clock.advance(REFUSAL_SPAN);
    assert_eq!(
        outbox.apply_answer(&mut entry, &refused(404), SignalVerdict::Refused, true),
        Some(Disposition::Undeliverable("Heat answered 404".into()))
    );
}

#[test]
fn pauses_grow_with_jitter_and_respect_retry_after() {
    let (dir, clock, report) = (tempfile::tempdir().unwrap(), Clock::manual(Timestamp(10_000)), Report::kept());
    let outbox = outbox(dir.path(), &clock, &report);
    let mut entry = entry("a", clock.now());
    let mut longest = Duration::ZERO;
    for _ in 0..12 {
        outbox.apply_answer(&mut entry, &refused(500), SignalVerdict::Retry(None), true);
        longest = longest.max(entry.not_before.since(clock.now()));
    }
    assert!(longest > LONGEST_PAUSE / 3 && longest <= LONGEST_PAUSE, "{longest:?}");
    for (asked, least) in [(20, 20), (30, 30), (300, 30), (u64::MAX, 30)] {
        let mut entry = self::entry("b", clock.now());
        outbox.apply_answer(&mut entry, &refused(503), SignalVerdict::Retry(Some(Duration::from_secs(asked))), true);
        let (pause, least) = (entry.not_before.since(clock.now()), Duration::from_secs(least));
        assert!(pause >= least && pause <= least.mul_f64(1.11), "{asked}: {pause:?}: Heat may wait for no more than a minute");
    }
}

#[tokio::test]
async fn an_unreachable_place_keeps_the_signal_and_says_why() {
    let (dir, clock, report) = (tempfile::tempdir().unwrap(), Clock::manual(Timestamp(10_000_000)), Report::kept());
    let outbox = outbox(dir.path(), &clock, &report);
    outbox.put(entry("a", clock.now())).unwrap();
    outbox.put(entry("a", clock.now())).unwrap();
    assert!(sent(received(&outbox, &view(&["a"], "a", &clock))).await.0.is_empty());
    let waiting = outbox.waiting();
    assert_eq!((waiting.len(), waiting[0].tries), (1, 1));
    let codes: Vec<_> = report.events().iter().map(|event| event.code).collect();
    assert_eq!(codes, [Code::SignalQueued, Code::SignalUrlOld, Code::SignalRetry]);
    assert!(!format!("{:?}", report.events()).contains("Signature=x"));
    assert_eq!(sent(received(&outbox, &view(&["b"], "b", &clock))).await.0[0].1, Disposition::Superseded);
    assert!(outbox.waiting().is_empty() && dir.path().join(DIRECTORY).read_dir().unwrap().next().is_none());
}

#[test]
fn a_clock_that_is_set_makes_no_signal_older_but_time_with_the_agent_does() {
    let (dir, clock, report) = (tempfile::tempdir().unwrap(), Clock::manual(Timestamp(5_000)), Report::kept());
    let first = outbox(dir.path(), &clock, &report);
    first.put(entry("a", clock.now())).unwrap();
    let mut stored = first.waiting().remove(0);
    clock.advance(LIFE / 2);
    first.apply_answer(&mut stored, &refused(500), SignalVerdict::Retry(None), true);
    let body = first.body(&stored).unwrap().unwrap();
    first.store(&mut stored, body).unwrap();
    // Rebooted, and the clock was set from 1970 to now.
    let clock = Clock::manual(Timestamp::parse_rfc3339("2026-03-01T12:00:00Z").unwrap());
    let second = outbox(dir.path(), &clock, &report);
    let stored = second.waiting().remove(0);
    let fresh = view(&["a"], "a", &clock);
    assert_eq!((stored.created, second.next_action(&stored, &fresh)), (Timestamp(5_000), NextAction::Send));
    clock.advance(LIFE / 2);
    let fresh = view(&["a"], "a", &clock);
    assert_eq!(second.next_action(&stored, &fresh), NextAction::Send);
    clock.advance(Duration::from_secs(1));
    assert_eq!(second.next_action(&stored, &fresh), NextAction::Expired);
}

#[test]
fn a_pause_is_as_long_as_it_is_whatever_the_clock_is_set_to_and_a_restart_keeps_at_most_the_whole_of_it() {
    let start = Timestamp::parse_rfc3339("2026-03-01T12:00:00Z").unwrap();
    let (hour, second) = (Duration::from_hours(1), Duration::from_secs(1));
    let jumps = [start.after(hour), Timestamp(start.0 - 600_000), Timestamp(0)];
    for (case, jump) in jumps.iter().copied().flat_map(|jump| [("first", jump), ("retry", jump)]) {
        let (dir, clock, report) = (tempfile::tempdir().unwrap(), Clock::manual(start), Report::kept());
        let first = outbox(dir.path(), &clock, &report);
        let mut stored = entry("a", clock.now());
        // A changed deployment's result, and one that waits for a retry.
        stored.hold(second * 2, &clock);
        first.put(stored).unwrap();
        let mut stored = first.waiting().remove(0);
        let pause = if case == "first" {
            second * 2
        } else {
            clock.advance(second * 2);
            first.apply_answer(&mut stored, &refused(503), SignalVerdict::Retry(Some(second * 30)), true);
            let pause = stored.not_before.since(clock.now());
            assert!((second * 30..second * 34).contains(&pause), "{pause:?}");
            pause
        };
        let body = first.body(&stored).unwrap().unwrap();
        first.store(&mut stored, body).unwrap();
        clock.set(jump);
        let asks = || view(&["a"], "a", &clock);
        assert_eq!(first.next_action(&stored, &asks()), NextAction::Wait(pause), "{case} {jump:?}");
        clock.advance(pause.saturating_sub(second));
        assert_eq!(first.next_action(&stored, &asks()), NextAction::Wait(second), "{case} {jump:?}");
        clock.advance(second);
        assert_eq!(first.next_action(&stored, &asks()), NextAction::Send, "{case} {jump:?}");
        // Another run of the agent knows no more than the wall clock.
        let clock = Clock::manual(jump);
        let second_run = outbox(dir.path(), &clock, &report);
        let stored = second_run.waiting().remove(0);
        let left = second_run.next_action(&stored, &view(&["a"], "a", &clock));
        let is_later = jump > start;
        let expected = if case == "retry" && is_later { NextAction::Send } else { NextAction::Wait(pause) };
        assert_eq!(left, expected, "{case} {jump:?}");
        assert_eq!(second_run.holds_a_first_try(), case == "first");
        clock.advance(pause);
        assert_eq!(second_run.next_action(&stored, &view(&["a"], "a", &clock)), NextAction::Send);
    }
}

/// Attack: a signal that was kept for a deployment, and was gone when that one was listed again, held up all that were.
#[test]
fn of_signals_that_are_asked_for_again_one_that_is_lost_holds_up_no_other() {
    let (dir, clock, report) = (tempfile::tempdir().unwrap(), Clock::manual(Timestamp(10_000)), Report::kept());
    let outbox = outbox(dir.path(), &clock, &report);
    for id in ["a", "b"] {
        // A wait condition's: a result would be made again.
        let about = SignalSubject { result: false, resource: Some(("s/1".into(), id.into())), ..about(id) };
        let mut one = QueuedSignal { about: Some(about), ..entry(id, clock.now()) };
        outbox.store(&mut one, json!({})).unwrap();
        outbox.keep_or_remove(&one, &Disposition::Superseded).unwrap();
    }
    Tree::open(dir.path()).unwrap().remove(&path_of("deployment a")).unwrap();
    clock.advance(Duration::from_secs(1));
    let newest = ["a", "b"].map(|id| (("s/1".to_owned(), id.to_owned()), [id.to_owned()].into()));
    let view = MetadataView { newest: Arc::new(newest.into()), ..view(&["a", "b"], "b", &clock) };
    let (gone, done) = received(&outbox, &view).take_back();
    done.unwrap();
    assert_eq!((gone.len(), gone[0].0.key.as_str(), &gone[0].1), (1, "deployment a", &Disposition::Unreadable));
    assert!(outbox.has("deployment b") && !outbox.has("deployment a") && outbox.parked.borrow().is_empty());
}

/// Attack: signals to 300 places, each of which answered without an end, took 128 MiB.
#[tokio::test]
async fn four_signals_are_on_their_way_at_one_time_however_many_places_there_are() {
    let (dir, clock, report) = (tempfile::tempdir().unwrap(), Clock::manual(Timestamp(10_000)), Report::kept());
    let (outbox, until) = (outbox(dir.path(), &clock, &report), Arc::new(Notify::new()));
    let mut places = Vec::new();
    for n in 0..7 {
        let heat = Fake::start(vec![Act::Held(Arc::clone(&until), Box::new(ok("")))]).await;
        let destination = Destination::Url { url: format!("{}/signal", heat.base), verb: "POST".into(), insecure: false };
        outbox.put(QueuedSignal { about: None, destination, ..entry(&n.to_string(), clock.now()) }).unwrap();
        places.push(heat);
    }
    let real = Clock::system();
    let asked = || places.iter().filter(|heat| !heat.requests().is_empty()).count();
    let watched = async {
        while asked() < 4 {
            real.wait(Duration::from_millis(5)).await;
        }
        real.wait(Duration::from_millis(200)).await;
        assert_eq!(asked(), 4);
        while asked() < 7 {
            until.notify_waiters();
            real.wait(Duration::from_millis(5)).await;
        }
        for _ in 0..20 {
            until.notify_waiters();
            real.wait(Duration::from_millis(5)).await;
        }
    };
    let ((gone, done), ()) = tokio::join!(sent(received(&outbox, &view(&["a"], "a", &clock))), watched);
    done.unwrap();
    assert_eq!(gone.len(), 7);
}

/// Attack: two files that changed places sent each result to the other's URL.
#[tokio::test]
async fn a_file_that_is_not_the_signal_of_its_name_is_not_sent() {
    let (dir, clock, report) = (tempfile::tempdir().unwrap(), Clock::manual(Timestamp(10_000)), Report::kept());
    let tree = Tree::open(dir.path()).unwrap();
    for is_running in [true, false] {
        let first_run = outbox(dir.path(), &clock, &report);
        let [one, other] = ["a", "b"].map(|id| entry(id, clock.now()));
        first_run.put(one.clone()).unwrap();
        first_run.put(other.clone()).unwrap();
        let text = tree.read(&path_of(&one.key), 1 << 20).unwrap().unwrap();
        tree.write(&path_of(&other.key), &text, Attributes::mode(0o600)).unwrap();
        let outbox = if is_running { first_run } else { outbox(dir.path(), &clock, &report) };
        let mut gone = Vec::new();
        // The other one's turn comes when it is recorded that the first was superseded.
        for _ in 0..if is_running { 2 } else { 0 } {
            gone.extend(sent(received(&outbox, &view(&["b"], "b", &clock))).await.0);
        }
        assert!(
            gone.iter().any(|(entry, end)| entry.key == other.key && *end == Disposition::Unreadable) == is_running,
            "{gone:?}"
        );
        assert!(!outbox.has(&other.key) && tree.facts(&path_of(&other.key)).unwrap().is_none());
        outbox.discard_for("a").unwrap();
    }
}

/// Attack: files of two signals changed places while a try was under way; the one was stored again with the other's body.
#[tokio::test]
async fn a_signal_is_stored_again_with_the_body_that_was_sent() {
    let (dir, clock, report) = (tempfile::tempdir().unwrap(), Clock::manual(Timestamp(10_000)), Report::kept());
    let outbox = outbox(dir.path(), &clock, &report);
    let [one, other] = ["a", "b"].map(|id| QueuedSignal { body: json!({"of": id}), ..entry(id, clock.now()) });
    outbox.put(one.clone()).unwrap();
    outbox.put(other.clone()).unwrap();
    let (tree, view) = (Tree::open(dir.path()).unwrap(), view(&["a", "b"], "a", &clock));
    received(&outbox, &view);
    // Nobody answers there: it is sent again later.
    let mut sending = outbox.start();
    let swap = async {
        let text = tree.read(&path_of(&other.key), 1 << 20).unwrap().unwrap();
        tree.write(&path_of(&one.key), &text, Attributes::mode(0o600)).unwrap();
    };
    let send = async {
        for one in &mut sending {
            assert!(one.await.0.is_empty());
        }
    };
    // The first poll of a try reads its body; then its file is another's.
    tokio::join!(biased; send, swap);
    assert_eq!(outbox.body(&one).unwrap(), Some(one.body.clone()));
}

/// Attack: one signal whose file was gone, or partially written, held up every other one to the same host until the agent was restarted.
#[tokio::test]
async fn a_signal_that_cannot_be_read_leaves_and_those_behind_it_have_their_turn() {
    for torn in [false, true] {
        let (dir, clock, report) = (tempfile::tempdir().unwrap(), Clock::manual(Timestamp(10_000)), Report::kept());
        let (outbox, heat) = (outbox(dir.path(), &clock, &report), Fake::start(vec![ok("")]).await);
        for id in ["a", "b"] {
            let url = format!("{}/v1/signal/{id}", heat.base);
            let destination = Destination::Url { url, verb: "POST".into(), insecure: false };
            // Each of a resource of its own, so that neither takes the other's place.
            let about = SignalSubject { resource: Some(("s/1".into(), id.into())), ..about(id) };
            outbox.put(QueuedSignal { destination, about: Some(about), ..entry(id, clock.now()) }).unwrap();
            clock.advance(Duration::from_secs(1));
        }
        let first = outbox.waiting().remove(0);
        let (tree, path) = (Tree::open(dir.path()).unwrap(), path_of(&first.key));
        tree.write(&path, b"{torn", Attributes::mode(0o600)).unwrap();
        assert!(torn || tree.remove(&path).unwrap());
        let newest = ["a", "b"].map(|id| (("s/1".to_owned(), id.to_owned()), [id.to_owned()].into()));
        let view = MetadataView { newest: Arc::new(newest.into()), ..view(&["a", "b"], "b", &clock) };
        let gone = sent(received(&outbox, &view)).await.0;
        assert_eq!((gone.len(), &gone[0].0.key, &gone[0].1), (1, &first.key, &Disposition::Unreadable), "torn: {torn}");
        assert_eq!(dir.path().join(path_of(&first.key)).with_extension("unreadable").exists(), torn);
        let gone = sent(received(&outbox, &view)).await.0;
        assert_eq!((gone.len(), &gone[0].1), (1, &Disposition::Delivered), "torn: {torn}");
        assert!(outbox.waiting().is_empty() && report.events().iter().any(|event| event.code == Code::OutboxEntryCorrupt));
    }
}

#[tokio::test]
async fn an_expired_url_goes_another_way_once_and_by_the_rules_of_the_outbox() {
    let (dir, clock, report) = (tempfile::tempdir().unwrap(), Clock::manual(Timestamp(10_000)), Report::kept());
    let (outbox, heat) = (outbox(dir.path(), &clock, &report), Fake::start(vec![status("403 Forbidden", "")]).await);
    let keys = Keys { access: "AK1".into(), secret: "hush".into() };
    let own = OwnCredentials { cfn: Some((format!("{}/v1/", heat.base), keys)), ..OwnCredentials::default() };
    let view = |ids: &[&str], newest| MetadataView { own: own.clone(), ..view(ids, newest, &clock) };
    let mut entry = entry("a", clock.now());
    let arn = "arn%3Aopenstack%3Aheat%3A%3Ap%3Astacks/s/u/resources/r";
    let url = format!("{}/v1/signal/{arn}?Timestamp=1970-01-01T00%3A00%3A01Z&Signature=hush", heat.base);
    entry.destination = Destination::Url { url, verb: "POST".into(), insecure: false };
    outbox.put(entry.clone()).unwrap();
    let stale = view(&["a"], "a");
    assert!(sent(received(&outbox, &stale)).await.0.is_empty());
    assert_eq!(heat.requests().len(), 2, "the URL, and once another way");
    // Refused by both: the next try has to wait for its pause and for a fresh look at the metadata.
    for _ in 0..3 {
        assert!(sent(received(&outbox, &stale)).await.0.is_empty());
        clock.advance(REFUSAL_SPAN / 2);
    }
    assert!(received(&outbox, &stale).needs_answer().is_some());
    assert_eq!(heat.requests().len(), 2);
    // Heat asks for something newer meanwhile: nothing is sent any way.
    let dispositions = sent(received(&outbox, &view(&["b"], "b"))).await.0;
    assert_eq!((dispositions[0].1.clone(), heat.requests().len()), (Disposition::Superseded, 2));
    // The same with keys that fit; the URL is old by now.
    outbox.put(entry).unwrap();
    heat.play(vec![ok("")]);
    let dispositions = sent(received(&outbox, &view(&["a"], "a"))).await.0;
    assert_eq!((dispositions[0].1.clone(), heat.requests().len()), (Disposition::Delivered, 3));
    let codes: Vec<_> = report.events().iter().map(|event| event.code).collect();
    let (first, second) = (
        [Code::SignalQueued, Code::SignalRefused, Code::SignalSuperseded],
        [Code::SignalQueued, Code::SignalUrlOld, Code::SignalFallback, Code::SignalDelivered],
    );
    assert_eq!(codes, [&first[..], &second[..]].concat());
    assert!(!format!("{:?}", report.events()).contains("hush"));
}

#[tokio::test]
async fn a_signal_to_a_queue_is_kept_over_a_restart_and_delivered_once_zaqar_takes_it() {
    let (dir, clock, report) = (tempfile::tempdir().unwrap(), Clock::manual(Timestamp(10_000)), Report::kept());
    let (zaqar, keystone) = (Fake::start(vec![status("503 Busy", "")]).await, Fake::start(vec![ok("")]).await);
    keystone.play(vec![zaqar_token("one", &zaqar.base)]);
    let handle = json!({"auth_url": format!("{}/v3", keystone.base), "user_id": "u", "password": "hush", "project_id": "p",
        "queue_id": "s-handle-x", "region_name": null});
    let handle = Handle::parse(&handle).unwrap();
    let signal =
        WaitSignal { status: WaitStatus::Failure, id: "node-1".into(), reason: "etcd died".into(), data: json!({"a": 1}) };
    let (body, destination) = (handle.body(&signal), handle.destination().clone());
    let first = outbox(dir.path(), &clock, &report);
    first.put(QueuedSignal::new("wait node-1".into(), None, destination.clone(), body.clone(), clock.now())).unwrap();
    assert!(sent(&first).await.0.is_empty());
    drop(first);
    let again = outbox(dir.path(), &clock, &report);
    assert_eq!(again.waiting()[0].destination, destination);
    clock.advance(Duration::from_mins(5));
    zaqar.play(vec![status("201 Created", "")]);
    let gone = sent(&again).await.0;
    assert_eq!((gone.len(), &gone[0].1), (1, &Disposition::Delivered));
    assert!(again.waiting().is_empty() && sent(&again).await.0.is_empty());
    let requests = zaqar.requests();
    let message = json!({"messages": [{"body": body, "ttl": 86400}]});
    let is_message = |request: &String| {
        let (head, body) = request.split_once("\r\n\r\n").unwrap();
        head.starts_with("POST /v2/queues/s-handle-x/messages ")
            && crate::budgets::json::answer(body.as_bytes()).unwrap() == message
    };
    assert!(requests.len() == 2 && requests.iter().all(is_message), "{requests:?}");
    let events = report.events();
    assert_eq!(
        events.iter().map(|event| event.code).collect::<Vec<_>>(),
        [Code::SignalQueued, Code::SignalRetry, Code::SignalDelivered]
    );
    let shown = format!("{events:?}");
    assert!(shown.contains("Zaqar accepted the signal (Zaqar through http://127.0.0.1:") && !shown.contains("hush"), "{shown}");
}

/// What a server may speak to Heat with: a key pair and a user.
fn own(keys_at: Option<&str>, user_at: Option<&str>) -> OwnCredentials {
    let keys = Keys { access: "AK1".into(), secret: "hush".into() };
    let user = |base: &str| Credentials {
        auth_url: format!("{base}/v3"),
        user_id: "u".into(),
        password: "hush".into(),
        scope: Scope::Project("p".into()),
        region: None,
    };
    OwnCredentials {
        cfn: keys_at.map(|base| (format!("{base}/v1/"), keys)),
        user: user_at.map(user),
        ..OwnCredentials::default()
    }
}

/// One try is several requests, and Heat may move on between them: what is heard meanwhile counts for the next one.
#[tokio::test]
async fn no_further_request_of_a_try_leaves_once_heat_is_heard_to_have_moved_on() {
    let resource = "/stacks/s/u/resources/r/signal";
    let arn = "arn%3Aopenstack%3Aheat%3A%3Ap%3Astacks/s/u/resources/r";
    let held = |until: &Arc<Notify>, act: Act| Act::Held(Arc::clone(until), Box::new(act));
    let nothing = |clock: &Clock| MetadataView { freshness: Freshness::Awaited, ..view(&["a"], "a", clock) };
    for (case, moves_on) in (0..4).flat_map(|case| [(case, true), (case, false)]) {
        let (dir, clock, report) = (tempfile::tempdir().unwrap(), Clock::manual(Timestamp(10_000)), Report::kept());
        let (outbox, heat, until) =
            (outbox(dir.path(), &clock, &report), Fake::start(vec![ok("")]).await, Arc::new(Notify::new()));
        let url = format!("{}/v1/signal/{arn}?Timestamp=1970-01-01T00%3A00%3A01Z&Signature=hush", heat.base);
        let url = Destination::Url { url, verb: "POST".into(), insecure: false };
        let user = own(None, Some(&heat.base));
        let by_user = Destination::User { credentials: user.user.clone().unwrap(), to: resource.into() };
        let refused = |line| status(line, "");
        let (own, destination, script) = match case {
            0 => (OwnCredentials::default(), by_user, vec![held(&until, token("one", &heat.base)), ok("")]),
            1 => (own(Some(&heat.base), None), url, vec![held(&until, refused("403 Forbidden")), ok("")]),
            2 => (user, url, vec![refused("403 Forbidden"), held(&until, token("one", &heat.base)), ok("")]),
            _ => {
                let old = token("old", &heat.base);
                (
                    OwnCredentials::default(),
                    by_user,
                    vec![old, held(&until, refused("401 Unauthorized")), token("new", &heat.base), ok("")],
                )
            }
        };
        heat.play(script.clone());
        let before = script.iter().position(|act| matches!(act, Act::Held(..))).unwrap() + 1;
        let mut entry = entry("a", clock.now());
        entry.destination = destination;
        outbox.put(entry).unwrap();
        let asks = MetadataView { own: own.clone(), ..view(&["a"], "a", &clock) };
        received(&outbox, &asks);
        let news = async {
            while heat.requests().len() < before {
                tokio::task::yield_now().await;
            }
            // What says the same holds nothing up.
            outbox.receive(MetadataView { own: own.clone(), ..view(&["a"], "a", &clock) });
            tokio::task::yield_now().await;
            outbox.receive(if moves_on { view(&["b"], "b", &clock) } else { nothing(&clock) });
            until.notify_one();
        };
        let ((gone, kept), ()) = tokio::join!(sent(&outbox), news);
        kept.unwrap();
        // A request that left nevertheless would be there by now. A token may still have been asked for.
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        let signals = |requests: &[String]| requests.iter().filter(|request| request.contains("/signal")).count();
        let all = heat.requests();
        assert_eq!(signals(&all), signals(&all[..before]), "case {case}, moves on: {moves_on}");
        let dispositions: Vec<_> = gone.into_iter().map(|(_, disposition)| disposition).collect();
        let last = report.events().last().unwrap().code;
        if moves_on {
            assert_eq!((dispositions, outbox.is_empty(), last), (vec![Disposition::Superseded], true, Code::SignalSuperseded));
            continue;
        }
        assert_eq!((dispositions, outbox.waiting()[0].tries, last), (vec![], 1, Code::SignalRetry));
        assert!(outbox.waiting()[0].cause.as_ref().unwrap().contains("no answer of Heat says yet"));
        // The next answer with a list lets it go.
        heat.play(vec![ok("")]);
        clock.advance(LONGEST_PAUSE);
        let asks = MetadataView { own: own.clone(), ..view(&["a"], "a", &clock) };
        heat.play(if case == 0 || case == 3 { vec![token("two", &heat.base), ok("")] } else { vec![ok("")] });
        assert_eq!(sent(received(&outbox, &asks)).await.0[0].1, Disposition::Delivered, "case {case}");
    }
}

#[tokio::test]
async fn who_waited_long_for_a_token_looks_at_the_metadata_once_more() {
    let second = Duration::from_secs(1);
    for (waited, tries) in [(ANSWER_VALIDITY.saturating_sub(second), 1), (ANSWER_VALIDITY + second, 2)] {
        let (dir, clock, report) = (tempfile::tempdir().unwrap(), Clock::manual(Timestamp(10_000)), Report::kept());
        let (outbox, until) = (outbox(dir.path(), &clock, &report), Arc::new(Notify::new()));
        let heat = Fake::start(vec![ok("")]).await;
        heat.play(vec![Act::Held(Arc::clone(&until), Box::new(token("one", &heat.base))), ok("")]);
        let credentials = own(None, Some(&heat.base)).user.unwrap();
        let destination = Destination::User { credentials, to: "/stacks/s/u/resources/r/signal".into() };
        outbox.put(QueuedSignal { destination, ..entry("a", clock.now()) }).unwrap();
        let slow = async {
            while heat.requests().is_empty() {
                tokio::task::yield_now().await;
            }
            clock.advance(waited);
            until.notify_one();
        };
        let ((mut gone, kept), ()) = tokio::join!(sent(received(&outbox, &view(&["a"], "a", &clock))), slow);
        kept.unwrap();
        if tries == 2 {
            let waiting = outbox.waiting();
            assert_eq!((gone.len(), heat.requests().len(), waiting[0].tries), (0, 1, 1));
            assert!(waiting[0].cause.as_ref().unwrap().contains("read again first"), "{:?}", waiting[0].cause);
            clock.advance(LONGEST_PAUSE);
            assert!(outbox.needs_answer().is_some());
            gone = sent(received(&outbox, &view(&["a"], "a", &clock))).await.0;
        }
        assert_eq!((gone[0].1.clone(), heat.requests().len()), (Disposition::Delivered, 2), "one token, one signal");
    }
}

#[tokio::test]
async fn a_signal_leaves_only_on_a_look_that_began_just_before_first_tries_and_retries_alike() {
    let (dir, clock, report) = (tempfile::tempdir().unwrap(), Clock::manual(Timestamp(10_000)), Report::kept());
    let (outbox, until) = (outbox(dir.path(), &clock, &report), Arc::new(Notify::new()));
    let heat = Fake::start(vec![Act::Held(Arc::clone(&until), Box::new(status("503 Busy", ""))), ok("")]).await;
    for id in ["a", "b"] {
        let destination = Destination::Url { url: format!("{}/signal/{id}", heat.base), verb: "POST".into(), insecure: false };
        let mut entry = QueuedSignal { destination, ..entry(id, clock.now()) };
        entry.about.as_mut().unwrap().resource = None;
        outbox.put(entry).unwrap();
        clock.advance(Duration::from_millis(1));
    }
    let both = || view(&["a", "b"], "a", &clock);
    // One look serves both, but the place is slow: the look is old when the second one's turn comes.
    let slow = async {
        while heat.requests().is_empty() {
            tokio::task::yield_now().await;
        }
        assert!(outbox.needs_answer().is_none(), "fresh enough");
        clock.advance(ANSWER_VALIDITY + Duration::from_secs(1));
        assert!(outbox.needs_answer().is_none(), "while the place is busy another look would serve nobody");
        until.notify_one();
    };
    let ((gone, kept), ()) = tokio::join!(sent(received(&outbox, &both())), slow);
    kept.unwrap();
    assert!(gone.is_empty() && outbox.due().is_some_and(|due| !due.is_zero()), "the first one's pause is not over");
    assert!(outbox.needs_answer().is_some(), "the second one waits for a look");
    assert!(sent(&outbox).await.0.is_empty());
    assert_eq!(heat.requests().len(), 1);
    // A retry: its pause outlasts the look that began after the first try.
    outbox.receive(both());
    assert_eq!(sent(&outbox).await.0[0].0.key, "deployment b");
    clock.advance(LONGEST_PAUSE);
    assert!(outbox.needs_answer().is_some());
    assert!(sent(&outbox).await.0.is_empty());
    assert_eq!(heat.requests().len(), 2);
    assert_eq!(sent(received(&outbox, &both())).await.0[0].0.key, "deployment a");
}

#[tokio::test]
async fn a_signal_that_has_left_is_waited_for_whatever_is_heard_meanwhile() {
    for meanwhile in [MetadataView::default(), MetadataView { listed: Some(Arc::default()), ..MetadataView::default() }] {
        let (dir, clock, report) = (tempfile::tempdir().unwrap(), Clock::manual(Timestamp(10_000)), Report::kept());
        let (outbox, until) = (outbox(dir.path(), &clock, &report), Arc::new(Notify::new()));
        let heat = Fake::start(vec![Act::Held(Arc::clone(&until), Box::new(ok("")))]).await;
        let url = format!("{}/signal", heat.base);
        let destination = Destination::Url { url, verb: "POST".into(), insecure: false };
        outbox.put(QueuedSignal { destination, ..entry("a", clock.now()) }).unwrap();
        let news = async {
            while heat.requests().is_empty() {
                tokio::task::yield_now().await;
            }
            let freshness = answered(&clock);
            outbox.receive(if meanwhile.listed.is_some() {
                MetadataView { freshness, ..meanwhile.clone() }
            } else {
                meanwhile.clone()
            });
            until.notify_one();
        };
        let ((gone, kept), ()) = tokio::join!(sent(received(&outbox, &view(&["a"], "a", &clock))), news);
        kept.unwrap();
        assert_eq!((gone[0].1.clone(), gone.len(), outbox.is_empty()), (Disposition::Delivered, 1, true));
    }
}

#[tokio::test]
async fn a_users_password_is_stored_for_root_alone_and_never_said() {
    let (dir, clock, report) = (tempfile::tempdir().unwrap(), Clock::manual(Timestamp(10_000)), Report::kept());
    let outbox = outbox(dir.path(), &clock, &report);
    let credentials = Credentials {
        auth_url: "http://user:hush@127.0.0.1:9/v3".into(),
        user_id: "u".into(),
        password: "hush".into(),
        scope: Scope::Project("p".into()),
        region: None,
    };
    let mut entry = entry("a", clock.now());
    entry.destination = Destination::User { credentials, to: "/stacks/s/u/resources/r/signal".into() };
    outbox.put(entry.clone()).unwrap();
    let mode = || Tree::open(dir.path()).unwrap().facts(&path_of(&entry.key)).unwrap().unwrap().mode & 0o7777;
    assert_eq!(mode(), 0o600);
    assert!(sent(received(&outbox, &view(&["a"], "a", &clock))).await.0.is_empty());
    assert_eq!(mode(), 0o600, "written again after a try");
    let file = dir.path().join(path_of(&entry.key));
    assert!(std::fs::read_to_string(&file).unwrap().contains("hush"), "a later run needs it");
    let reported = format!("{:?} {:?} {outbox:?}", report.events(), outbox.waiting());
    assert!(reported.contains("from Keystone") && !reported.contains("hush"), "{reported}");
}

#[test]
fn a_corrupt_entry_is_quarantined_and_logged() {
    let (dir, clock, report) = (tempfile::tempdir().unwrap(), Clock::manual(Timestamp(10_000)), Report::kept());
    outbox(dir.path(), &clock, &report).put(entry("a", clock.now())).unwrap();
    let file = dir.path().join(path_of("deployment a"));
    Tree::open(dir.path()).unwrap().write(&path_of("deployment a"), b"{", Attributes::mode(0o600)).unwrap();
    assert!(outbox(dir.path(), &clock, &report).waiting().is_empty());
    assert!(file.with_extension("unreadable").exists());
    // A whole one that a crash left beside its name.
    let (state, torn) = (Tree::open(dir.path()).unwrap(), Path::new(DIRECTORY).join(".x.json.hna-new"));
    state.write_json(&torn, &entry("a", clock.now()), Attributes::mode(0o600)).unwrap();
    assert!(Outbox::inspect(&state).unwrap().is_empty());
    assert_eq!(report.events().last().unwrap().code, Code::OutboxEntryCorrupt);
}

#[test]
fn bodies_are_on_disk_alone_and_bounded_in_sum() {
    let (dir, clock, report) = (tempfile::tempdir().unwrap(), Clock::manual(Timestamp(10_000)), Report::kept());
    let first = outbox(dir.path(), &clock, &report);
    let large = |id: usize| QueuedSignal { body: json!({"x": "y".repeat(900_000)}), ..entry(&format!("d{id:02}"), clock.now()) };
    let taken = (0..100).take_while(|id| first.put(large(*id)).is_ok()).count();
    assert!((50..56).contains(&taken) && first.bytes() <= OUTBOX_DISK, "{taken}");
    assert!(first.check_space(1, 900_000).is_err() && first.check_space(1, 9).is_ok() && first.check_space(BOUND, 9).is_err());
    let second = outbox(dir.path(), &clock, &report);
    assert_eq!(second.bytes(), first.bytes());
    for outbox in [&first, &second] {
        let mut waiting = outbox.waiting();
        assert!(waiting.iter().all(|entry| entry.body.is_null()));
        waiting[0].tries = 7;
        let body = outbox.body(&waiting[0]).unwrap().unwrap();
        outbox.store(&mut waiting[0], body).unwrap();
        assert_eq!(outbox.body(&waiting[0]).unwrap(), Some(large(0).body), "it stays when something else is written");
    }
    assert_eq!(outbox(dir.path(), &clock, &report).waiting()[0].tries, 7);
    assert!(Outbox::inspect(&first.state).unwrap()[0].body.is_null());
}

#[tokio::test]
async fn a_signal_of_the_file_rests_on_the_file_whatever_heat_lists() {
    let clock = Clock::manual(Timestamp(10_000));
    let (old, new) = ("heat-params-1", "heat-params-2");
    let file = |answer| Some(NodeFile { id: Some(new.to_owned()), answer });
    let queued = |id: &str| {
        let mut entry = entry(id, Timestamp(10_000));
        entry.since = clock.moment();
        entry
    };
    let (one, former, heats) = (queued(new), queued(old), queued("a"));
    let read_now = Some(ListAnswer::new(clock.moment(), [Duration::ZERO; 2]));
    let demand = |entry: &QueuedSignal, view: &MetadataView| Outbox::heat_demand(entry, view, &clock);
    for listed in [None, Some(view(&["a"], "a", &clock))] {
        let heat = listed.unwrap_or_else(|| MetadataView { freshness: Freshness::Unasked, ..MetadataView::default() });
        let unread = MetadataView { node_file: file(None), ..heat.clone() };
        assert_eq!(demand(&one, &unread), HeatDemand::Unknown, "it was not read since");
        let read = MetadataView { node_file: file(read_now), ..heat };
        assert_eq!(demand(&one, &read), HeatDemand::Asked);
        assert_eq!(demand(&former, &read), HeatDemand::Superseded);
        assert_eq!(demand(&heats, &read), HeatDemand::Asked);
    }
}
