use std::path::Path;
use std::sync::Arc;

use super::*;
use crate::clock::Timestamp;
use crate::collect::Snapshot;
use crate::daemon::of_state;
use crate::files::Tree;
use crate::http::fake::{Fake, ok, status};
use crate::report::component::ComponentStatus;
use crate::report::status::{NodeState, NodeStatus};
use crate::settings::Settings;

fn condition(is_problem: bool, message: &str) -> NodeCondition {
    NodeCondition { kind: "HeatNodeDriftProblem", is_problem, reason: "Reason", message: message.to_owned() }
}

#[test]
fn a_change_is_written_soon_words_later_and_a_heartbeat_every_five_minutes() {
    let clock = Clock::manual(Timestamp(0));
    let mut schedule = Schedule::new();
    let fine = [condition(false, "none")];
    assert_eq!(schedule.until_due(&fine), Duration::ZERO);
    schedule.wrote(fine.to_vec(), &clock);
    let due = |schedule: &Schedule, wanted: &[NodeCondition]| schedule.until_due(wanted).as_secs();
    assert_eq!(due(&schedule, &fine), 300);
    assert_eq!(due(&schedule, &[condition(false, "other words")]), 60);
    assert_eq!((due(&schedule, &[condition(true, "none")]), due(&schedule, &[])), (5, 5));
    clock.advance(Duration::from_secs(7));
    assert_eq!((due(&schedule, &fine), due(&schedule, &[condition(true, "none")])), (293, 0));
}

#[test]
fn what_fails_is_tried_ever_more_slowly_and_not_before_the_api_wants_that() {
    let clock = Clock::manual(Timestamp(0));
    let mut schedule = Schedule::new();
    let (error, wanted) = (Error::transient("away"), [condition(true, "x")]);
    let pauses: Vec<u64> = (0..8)
        .map(|_| {
            schedule.failed(&error, &clock);
            schedule.until_due(&wanted).as_secs()
        })
        .collect();
    assert_eq!(pauses, [5, 10, 20, 40, 80, 160, 300, 300]);
    schedule.wrote(wanted.to_vec(), &clock);
    schedule.failed(&Error::transient("busy").retry_after(Some(Duration::from_secs(90))), &clock);
    assert_eq!(schedule.until_due(&wanted).as_secs(), 90);
    schedule.failed(&Error::transient("busy").retry_after(Some(Duration::from_hours(9))), &clock);
    assert_eq!(schedule.until_due(&wanted), HEARTBEAT);
}

/// A task whose node is this object.
fn task(dir: &Path, is_on: bool, url: &str) -> NodeConditions {
    let tree = Arc::new(Tree::open(dir).unwrap());
    let settings = Settings { node_conditions: is_on, ..Settings::default() };
    let clock = Clock::manual(Timestamp(0));
    let http = Rc::new(Http::new(settings.tls.clone(), Arc::clone(&tree), clock.clone()));
    let host = Host { settings, ..Host::in_directory(tree, clock) };
    let mut task = NodeConditions::new(Rc::new(host), http);
    let object = NodeObject { url: format!("{url}/api/v1/nodes/n"), identity: None };
    task.node = Subject::found((1, AppliedExtent::Whole), Some(object));
    task
}

/// A page with a node whose components were measured.
fn page(dir: &Path) -> StatusDocument {
    let node = NodeStatus { components: vec![ComponentStatus::default()], state: NodeState::Applied, ..NodeStatus::default() };
    let page = of_state(&Snapshot::default(), &[], None, &[], &Tree::open(dir).unwrap());
    StatusDocument { node: Some(node), ..page }
}

#[test]
fn what_is_known_of_one_object_says_nothing_of_another() {
    let dir = tempfile::tempdir().unwrap();
    let mut task = task(dir.path(), true, "http://api");
    let object = |name: &str| Some(NodeObject { url: format!("http://api/{name}"), identity: None });
    let wanted = [condition(true, "x")];
    task.write_to((1, AppliedExtent::Whole), object("a"));
    task.schedule.wrote(wanted.to_vec(), &task.host.clock);
    task.known = Some(Transitions::default());
    for (generation, name, is_kept) in [(2, "a", true), (3, "b", false)] {
        task.write_to((generation, AppliedExtent::Whole), object(name));
        assert_eq!((task.known.is_some(), task.schedule.until_due(&wanted) == HEARTBEAT), (is_kept, is_kept), "{name}");
    }
}

#[tokio::test]
async fn with_the_setting_off_nothing_is_ever_sent() {
    let dir = tempfile::tempdir().unwrap();
    assert!(!Settings::default().node_conditions);
    let fake = Fake::start(vec![ok("{}")]).await;
    let mut off = task(dir.path(), false, &fake.base);
    off.follow(&page(dir.path()));
    off.start();
    assert!(off.until_due().is_none() && !off.task.is_busy());
    let mut on = task(dir.path(), true, &fake.base);
    on.start();
    assert!(!on.task.is_busy(), "nothing was measured");
    on.follow(&page(dir.path()));
    assert_eq!(on.until_due(), Some(FIRST_REPORT_DELAY));
    on.start();
    assert!(!on.task.is_busy(), "nobody calls healthy what was seen once");
    on.host.clock.advance(FIRST_REPORT_DELAY);
    on.follow(&page(dir.path()));
    on.start();
    assert!(on.task.is_busy() && on.until_due().is_none(), "one at a time");
    let (written, result) = on.ended().await;
    on.record_write(written, result);
    assert_eq!((fake.requests().len(), on.until_due()), (2, Some(HEARTBEAT)));
    // A node whose kubelet does not register itself has no object of ours.
    on.node = Subject::found((2, AppliedExtent::Whole), None);
    assert!(on.until_due().is_none());
    // A bring-up measures anew.
    on.node = task(dir.path(), true, &fake.base).node;
    let unmeasured = StatusDocument { node: None, ..page(dir.path()) };
    on.follow(&unmeasured);
    assert!(on.until_due().is_none());
    on.host.clock.advance(HEARTBEAT);
    on.follow(&page(dir.path()));
    assert_eq!(on.until_due(), Some(FIRST_REPORT_DELAY));
}

#[tokio::test]
async fn a_failure_is_reported_once_as_long_as_its_cause_stays_and_so_is_its_end() {
    let dir = tempfile::tempdir().unwrap();
    let fake = Fake::start(vec![ok("{}")]).await;
    let mut task = task(dir.path(), true, &fake.base);
    task.follow(&page(dir.path()));
    task.host.clock.advance(FIRST_REPORT_DELAY);
    let gone = || vec![status("404 Not Found", "{}")];
    let forbidden = || vec![status("403 Forbidden", r#"{"message": "is forbidden"}"#)];
    let away = || vec![status("503 Service Unavailable", "{}")];
    let fine = || vec![ok("{}"), ok("{}")];
    let mut reported = Vec::new();
    for (script, pause) in [(gone(), 0), (forbidden(), 5), (forbidden(), 10), (away(), 20), (fine(), 40), (fine(), 300)] {
        assert_eq!(task.until_due(), Some(Duration::from_secs(pause)));
        task.host.clock.advance(Duration::from_secs(pause));
        fake.play(script);
        task.start();
        assert!(task.task.is_busy());
        let (written, result) = task.ended().await;
        task.record_write(written, result);
        reported.push(task.host.report.events().iter().map(|event| event.code.entry().code).collect::<Vec<_>>());
    }
    let (failed, written) = ("HNA-0731", "HNA-0730");
    let all = [failed, failed, written];
    assert_eq!(reported, [&[][..], &all[..1], &all[..1], &all[..2], &all, &all]);
    let events = task.host.report.events();
    let cause = events[0].cause.as_deref().unwrap();
    assert!(cause.contains("403 to GET: is forbidden") && events[0].remedy.is_some(), "{cause}");
    // A heartbeat is one request: since when it is so is known.
    assert_eq!(fake.requests().iter().filter(|request| request.starts_with("GET")).count(), 5);
}

/// An agent that has just begun would call a component healthy whose unit it has never seen up, and take back what the one before it wrote.
#[tokio::test]
async fn a_problem_is_written_at_once_and_what_is_fine_once_that_is_certain() {
    let dir = tempfile::tempdir().unwrap();
    let fake = Fake::start(vec![ok("{}")]).await;
    let mut task = task(dir.path(), true, &fake.base);
    let mut drifted = page(dir.path());
    drifted.node.as_mut().unwrap().drifted = true;
    task.follow(&drifted);
    let mut kinds = Vec::new();
    for pause in [0, FIRST_REPORT_DELAY.as_secs()] {
        assert_eq!(task.until_due(), Some(Duration::from_secs(pause)));
        task.host.clock.advance(Duration::from_secs(pause));
        task.start();
        assert!(task.task.is_busy());
        let (written, result) = task.ended().await;
        kinds.push(written.iter().map(|one| (one.kind, one.is_problem)).collect::<Vec<_>>());
        task.record_write(written, result);
    }
    assert_eq!(kinds[0], [("HeatNodeDriftProblem", true)]);
    assert!(kinds[1].len() > 3 && kinds[1].contains(&("HeatNodeComponentProblem", false)), "{kinds:?}");
    assert_eq!(task.until_due(), Some(HEARTBEAT));
}
