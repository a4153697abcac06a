//! Scripts that hang while a scripted heat-api-cfn says what it asks for. None of them really runs: the state directory is as
//! an agent leaves it that started one.

use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use serde_json::{Value, json};

use super::super::completions::tests::{BOOT, open_in};
use super::*;
use crate::daemon::order_files::DIRECTORY;
use crate::files::Attributes;
use crate::http::fake::{Act, Fake, ok, status};
use crate::metadata::Deployment;
use crate::programs::{Job, runner};
use crate::report::Report;

/// The task has a script that goes on and on.
fn hang(agent: &mut Agent, id: &str) {
    agent.job_task.keep(id);
}

/// An entry of a deployment of the one resource; the later the letter, the newer.
fn entry(id: &str) -> Value {
    let inputs = [("deploy_stack_id", "s/1"), ("deploy_resource_name", "r"), ("deploy_signal_id", "http://192.0.2.1/")];
    let inputs = inputs.map(|(name, value)| json!({"name": name, "value": value}));
    json!({"id": id, "name": format!("n-{id}"), "group": "script", "config": "x", "inputs": inputs, "creation_time": format!("2026-{id}")})
}

fn answer(ids: &[&str]) -> Act {
    let deployments: Vec<Value> = ids.iter().map(|id| entry(id)).collect();
    let detail = json!({"Metadata": json!({"deployments": deployments}).to_string()});
    let result = json!({"DescribeStackResourceResult": {"StackResourceDetail": detail}});
    ok(json!({"DescribeStackResourceResponse": result}).to_string())
}

struct Scene {
    dir: tempfile::TempDir,
    fake: Fake,
    boot: Value,
}

impl Scene {
    /// Heat gives these answers.
    async fn new(answers: Vec<Act>) -> Self {
        let fake = Fake::start(answers).await;
        let cfn = json!({"metadata_url": format!("{}/v1/", fake.base), "access_key_id": "a", "secret_access_key": "b",
            "stack_name": "s", "path": "server.Metadata"});
        let boot = json!({"os-collect-config": {"cfn": cfn, "collectors": ["cfn"]}, "deployments": []});
        Self { dir: tempfile::tempdir().unwrap(), fake, boot }
    }

    async fn agent(&self, grace: Duration) -> (Agent, Report) {
        let (mut agent, report) = open_in(self.dir.path(), BOOT, &self.boot).await;
        let settings = &mut Rc::make_mut(&mut agent.host).settings;
        settings.deploy.groups = Some(vec!["script".to_owned()]);
        settings.deploy.replaced_grace = grace;
        (agent, report)
    }

    /// As an agent leaves it that runs this deployment.
    fn begin(&self, agent: &mut Agent, id: &str) {
        agent.ledger.register(&Deployment::parse(&entry(id)).unwrap().unwrap(), None).unwrap();
        agent.ledger.journal.start(id, entry(id)).unwrap();
        let job = Job {
            argv: ["/bin/sh", "-c", "touch ran"].map(str::to_owned).to_vec(),
            directory: Some(self.at("")),
            ..Job::default()
        };
        agent.programs.prepare(&agent.ledger.journal.get(id).unwrap().job(), &job).unwrap();
    }

    fn at(&self, path: &str) -> String {
        self.dir.path().join(path).display().to_string()
    }
}

/// The task's end is taken in, as `turn` does.
async fn task_ends(agent: &mut Agent) {
    let (id, ran) = agent.job_task.ended().await;
    agent.job_ended(&id, ran);
}

fn says(report: &Report, code: Code) -> usize {
    report.events().iter().filter(|event| event.code == code).count()
}

#[tokio::test]
async fn a_hung_script_that_heat_replaced_is_ended_once_heat_says_so_after_the_grace_and_is_never_signalled() {
    let scene = Scene::new(vec![answer(&["1"]), answer(&["2"]), answer(&["2"])]).await;
    let (mut agent, report) = scene.agent(Duration::ZERO).await;
    agent.collector.poll_once().await;
    scene.begin(&mut agent, "1");
    hang(&mut agent, "1");
    agent.decide().unwrap();
    assert_eq!(says(&report, Code::DeploymentReplaced), 0, "Heat asks for it");
    agent.collector.poll_once().await;
    for _ in 0..3 {
        agent.decide().unwrap();
    }
    let ending = |agent: &Agent| agent.ledger.journal.get("1").unwrap().ending.clone();
    assert_eq!((says(&report, Code::DeploymentReplaced), ending(&agent)), (1, None), "not on one answer alone");
    assert!(
        agent
            .job_task
            .planned_stop(agent.running().unwrap(), Duration::ZERO)
            .unwrap()
            .starts_with("Heat replaced it by 2; it is stopped")
    );
    agent.collector.poll_once().await;
    agent.decide().unwrap();
    assert_eq!(ending(&agent), Some(Ending::Replaced("Heat replaced it by 2".to_owned())));
    assert!(agent.job_task.is_ending && agent.ledger.journal.get("2").is_none(), "the newer one waits for its turn");
    task_ends(&mut agent).await;
    let record = agent.ledger.journal.get("1").unwrap();
    assert_eq!((record.state, says(&report, Code::ReplacedDeploymentStopped)), (DeploymentState::Signalled, 1));
    assert!(record.note.as_ref().unwrap().contains("Heat replaced it by 2"), "{record:?}");
    assert!(agent.ledger.outbox.waiting().is_empty());
    // A runner that was on its way finds the job begun already.
    runner::run(&agent.programs.directory(&record.job()), &agent.host.clock).unwrap();
    assert!(!Path::new(&scene.at("ran")).exists());
    agent.decide().unwrap();
    assert_eq!(agent.job_task.id(), Some("2"));
    assert_eq!(scene.fake.requests().len(), 3);
}

/// Attack: of one that was ended and then listed again Heat never heard anything.
#[tokio::test]
async fn of_one_that_was_ended_and_is_listed_again_heat_hears_that_it_failed_and_it_is_not_run_again() {
    let scene = Scene::new(vec![answer(&["1"]), answer(&[]), answer(&[]), answer(&["1"])]).await;
    let (mut agent, report) = scene.agent(Duration::ZERO).await;
    agent.collector.poll_once().await;
    scene.begin(&mut agent, "1");
    hang(&mut agent, "1");
    for _ in 0..2 {
        agent.collector.poll_once().await;
        for _ in 0..3 {
            agent.decide().unwrap();
        }
    }
    task_ends(&mut agent).await;
    assert_eq!(
        (agent.ledger.journal.get("1").unwrap().state, says(&report, Code::ReplacedDeploymentStopped)),
        (DeploymentState::Signalled, 1)
    );
    assert!(agent.ledger.outbox.waiting().is_empty(), "nobody waits for it");
    let change = agent.collector.poll_once().await;
    agent.polled(change);
    agent.decide().unwrap();
    let record = agent.ledger.journal.get("1").unwrap();
    assert_eq!((record.state, record.failed(), agent.job_task.id()), (DeploymentState::Finished, true, None), "{record:?}");
    assert!(record.outcome.as_ref().unwrap().reason.as_ref().unwrap().why().contains("removed from the metadata"), "{record:?}");
    assert_eq!(agent.ledger.outbox.waiting().len(), 1);
    assert!(!Path::new(&scene.at("ran")).exists());
}

#[tokio::test]
async fn one_that_was_missing_from_an_answer_or_whose_source_fails_goes_on() {
    let scene = Scene::new(vec![answer(&["1"]), answer(&[]), answer(&["1"]), answer(&["2"]), status("503 Busy", "")]).await;
    let (mut agent, report) = scene.agent(Duration::ZERO).await;
    agent.collector.poll_once().await;
    scene.begin(&mut agent, "1");
    hang(&mut agent, "1");
    for replaced in [1, 1, 2, 2] {
        agent.collector.poll_once().await;
        for _ in 0..2 {
            agent.decide().unwrap();
        }
        assert_eq!(says(&report, Code::DeploymentReplaced), replaced);
        assert_eq!((&agent.ledger.journal.get("1").unwrap().ending, agent.job_task.is_ending), (&None, false));
    }
    // Nor within its grace, however often Heat says the same.
    let scene = Scene::new(vec![answer(&["2"])]).await;
    let (mut agent, _) = scene.agent(Duration::from_hours(1)).await;
    scene.begin(&mut agent, "1");
    hang(&mut agent, "1");
    for _ in 0..3 {
        agent.collector.poll_once().await;
        agent.decide().unwrap();
    }
    assert!(
        agent.ledger.journal.get("1").unwrap().ending.is_none()
            && agent.job_task.until_grace_is_over(Duration::from_hours(1)).unwrap() > Duration::from_mins(59)
    );
}

#[tokio::test]
async fn a_cut_off_at_any_step_of_an_ending_ends_in_the_same_record() {
    // Decided; no runner let in any more; its unit ended; and the entry gone, replaced, or listed again meanwhile.
    for steps in 0..3 {
        for listed in [&[][..], &["2"], &["1"]] {
            let scene = Scene::new(vec![answer(listed)]).await;
            let (mut agent, _) = scene.agent(Duration::ZERO).await;
            scene.begin(&mut agent, "1");
            agent.ledger.journal.end_early("1", Ending::Replaced("why".to_owned()), &agent.host.report);
            let key = agent.ledger.journal.get("1").unwrap().job();
            if steps > 0 {
                let started = Path::new("work").join(&key).join("started");
                agent.host.state.write(&started, b"", Attributes::mode(0o600)).unwrap();
            }
            if steps > 1 {
                agent.programs.end(&key).await.unwrap();
            }
            drop(agent);
            let (mut agent, report) = scene.agent(Duration::ZERO).await;
            agent.collector.poll_once().await;
            agent.decide().unwrap();
            assert_eq!(agent.job_task.id(), Some("1"), "before anything else is begun");
            task_ends(&mut agent).await;
            agent.decide().unwrap();
            let record = agent.ledger.journal.get("1").unwrap();
            assert_eq!(
                (record.state, says(&report, Code::DeploymentStarted) > 0),
                (DeploymentState::Signalled, listed == ["2"]),
                "{steps} {listed:?}"
            );
            assert!(agent.ledger.outbox.waiting().is_empty() && !Path::new(&scene.at("ran")).exists(), "{steps} {listed:?}");
        }
    }
}

#[tokio::test]
async fn one_that_was_left_running_and_is_listed_no_more_is_watched_and_never_started() {
    let scene = Scene::new(vec![answer(&["2"])]).await;
    let (mut agent, _) = scene.agent(Duration::ZERO).await;
    scene.begin(&mut agent, "1");
    let job = agent.ledger.journal.get("1").unwrap().job();
    let held = agent.host.state.lock(&Path::new("work").join(&job).join("lock")).unwrap().unwrap();
    drop(agent);
    let (mut agent, report) = scene.agent(Duration::ZERO).await;
    agent.collector.poll_once().await;
    agent.polled(crate::collect::SnapshotChange { metadata: true, ..Default::default() });
    agent.decide().unwrap();
    assert_eq!((agent.job_task.id(), agent.ledger.journal.get("2")), (Some("1"), None));
    assert_eq!((says(&report, Code::DeploymentReattached), says(&report, Code::DeploymentReplaced)), (1, 1));
    // It ends by itself, without a result.
    drop(held);
    task_ends(&mut agent).await;
    let record = agent.ledger.journal.get("1").unwrap();
    assert_eq!((record.state, record.outcome.is_some()), (DeploymentState::Signalled, false));
    assert_eq!(record.note.as_deref(), Some("Heat replaced it by 2, before it ended"));
    assert!(agent.ledger.outbox.waiting().is_empty() && !Path::new(&scene.at("ran")).exists());
}

#[tokio::test]
async fn one_that_the_operator_stops_fails_and_heat_hears_of_it() {
    for was_cut_off in [false, true] {
        let scene = Scene::new(vec![answer(&["1"])]).await;
        let (mut agent, _) = scene.agent(Duration::ZERO).await;
        agent.collector.poll_once().await;
        scene.begin(&mut agent, "1");
        hang(&mut agent, "1");
        agent.ledger.journal.end_early("1", Ending::Stopped, &agent.host.report);
        if was_cut_off {
            agent = scene.agent(Duration::ZERO).await.0;
        }
        agent.decide().unwrap();
        task_ends(&mut agent).await;
        let record = agent.ledger.journal.get("1").unwrap();
        assert_eq!((record.state, record.failed()), (DeploymentState::Finished, true));
        let waiting = agent.ledger.outbox.waiting();
        let kept = agent.host.state.list(Path::new("outbox")).unwrap();
        let signal = agent.host.state.read(&Path::new("outbox").join(&kept[0]), 1 << 20).unwrap().unwrap();
        let signal = String::from_utf8_lossy(&signal);
        assert!(waiting.len() == 1 && signal.contains("HNA-0481 stopped by the operator after"), "{signal}");
    }
    // One that had ended by itself before that has its own result.
    let scene = Scene::new(vec![answer(&["1"])]).await;
    let (mut agent, _) = scene.agent(Duration::ZERO).await;
    scene.begin(&mut agent, "1");
    runner::run(&agent.programs.directory(&agent.ledger.journal.get("1").unwrap().job()), &agent.host.clock).unwrap();
    agent.ledger.journal.end_early("1", Ending::Stopped, &agent.host.report);
    agent.decide().unwrap();
    task_ends(&mut agent).await;
    assert!(Path::new(&scene.at("ran")).exists() && !agent.ledger.journal.get("1").unwrap().failed());
}

#[test]
fn how_long_one_ran_is_no_matter_of_the_wall_clock_and_not_said_where_nobody_knows() {
    let dir = tempfile::tempdir().unwrap();
    let state = std::sync::Arc::new(crate::files::Tree::open(dir.path()).unwrap());
    let start = crate::clock::Timestamp(1_772_366_400_000);
    let open = |clock: &Clock| {
        let (state, report) = (std::sync::Arc::clone(&state), Report::kept());
        crate::deploy::Journal::open(state, None, 9, clock.clone(), &report).unwrap()
    };
    let (clock, second, month) = (Clock::manual(start), Duration::from_secs(1), Duration::from_hours(720));
    let mut journal = open(&clock);
    journal.register(&Deployment::parse(&entry("1")).unwrap().unwrap()).unwrap();
    journal.start("1", json!({})).unwrap();
    clock.advance(second * 7);
    clock.set(start.after(month));
    assert_eq!(ran_for(journal.get("1").unwrap(), &clock), " after 7.0s");
    // By another run of the agent.
    for (jump, reported) in [(None, " after 10.0s"), (Some(month), "")] {
        let clock = Clock::manual(start.after(second * 9));
        let journal = open(&clock);
        clock.advance(second);
        if let Some(jump) = jump {
            clock.set(start.after(jump));
        }
        assert_eq!(ran_for(journal.get("1").unwrap(), &clock), reported);
    }
}

/// What the writes of a record fail on, as on a full disk: nothing can be made over a directory.
fn in_the_way(agent: &Agent, id: &str) -> std::path::PathBuf {
    let path = Path::new("deployments").join(format!(".{}.json.hna-new", agent.ledger.journal.get(id).unwrap().key()));
    agent.host.state.create_dir(&path, Attributes::mode(0o700)).unwrap();
    path
}

#[tokio::test]
async fn an_end_that_cannot_be_recorded_comes_all_the_same_and_is_recorded_once_it_can_be() {
    for cut_off in [false, true] {
        let scene = Scene::new(vec![answer(&["1"]), answer(&["2"])]).await;
        let (mut agent, mut report) = scene.agent(Duration::ZERO).await;
        agent.collector.poll_once().await;
        scene.begin(&mut agent, "1");
        hang(&mut agent, "1");
        let in_the_way = in_the_way(&agent, "1");
        for _ in 0..2 {
            agent.collector.poll_once().await;
            for _ in 0..2 {
                agent.decide().unwrap();
            }
        }
        assert!(
            agent.job_task.is_ending && agent.ledger.journal.get("1").unwrap().ending.is_some(),
            "it may be what fills the disk"
        );
        for _ in 0..2 {
            task_ends(&mut agent).await;
            agent.decide().unwrap();
        }
        assert_eq!(
            (agent.job_task.id(), agent.ledger.journal.get("2")),
            (Some("1"), None),
            "nothing new before that is recorded"
        );
        let reported = |report: &Report, words| report.events().iter().filter(|event| event.message.contains(words)).count();
        assert_eq!(
            (reported(&report, "although that cannot be recorded yet"), says(&report, Code::ReplacedDeploymentStopped)),
            (1, 0)
        );
        agent.host.state.remove_dir_all(&in_the_way).unwrap();
        if cut_off {
            drop(agent);
            (agent, report) = scene.agent(Duration::ZERO).await;
            agent.collector.poll_once().await;
            agent.decide().unwrap();
        }
        task_ends(&mut agent).await;
        let record = agent.ledger.journal.get("1").unwrap();
        assert_eq!(
            (record.state, says(&report, Code::ReplacedDeploymentStopped)),
            (DeploymentState::Signalled, usize::from(!cut_off))
        );
        assert!(record.note.as_ref().unwrap().contains("Heat replaced it by 2"), "{record:?}");
        runner::run(&agent.programs.directory(&record.job()), &agent.host.clock).unwrap();
        assert!(agent.ledger.outbox.waiting().is_empty() && !Path::new(&scene.at("ran")).exists());
        agent.decide().unwrap();
        assert_eq!(agent.job_task.id(), Some("2"));
    }
}

#[tokio::test]
async fn an_order_to_stop_needs_no_room_and_waits_for_no_signal() {
    let scene = Scene::new(vec![answer(&["1"])]).await;
    let (mut agent, _) = scene.agent(Duration::ZERO).await;
    agent.collector.poll_once().await;
    scene.begin(&mut agent, "1");
    hang(&mut agent, "1");
    in_the_way(&agent, "1");
    let destination = crate::signal::Destination::Url { url: "http://192.0.2.1/".into(), verb: "POST".into(), insecure: false };
    let sent = crate::signal::QueuedSignal::new("result 0".into(), None, destination, Value::Null, crate::clock::Timestamp(1));
    agent.ledger.unrecorded.push((sent, crate::signal::Disposition::Delivered));
    let order = |order: &str| json!({"schema": 1, "order": order, "deployment": "n-1"});
    let at = |name: &str| Path::new(DIRECTORY).join(name);
    let run_dir = crate::files::Tree::open(&agent.host.settings.run_dir).unwrap();
    run_dir.write_json(&at("1.json"), &order("stop"), Attributes::mode(0o600)).unwrap();
    agent.host.state.write_json(&at("2.json"), &order("forget"), Attributes::mode(0o600)).unwrap();
    agent.serve_orders();
    let answer: Value = run_dir.read_json(&at("1.answer")).unwrap().unwrap();
    assert!(answer["done"] == true && run_dir.facts(&at("1.json")).unwrap().is_none(), "{answer}");
    assert!(agent.host.state.facts(&at("2.json")).unwrap().is_some(), "what may change a result waits");
    assert_eq!(agent.ledger.journal.get("1").unwrap().ending, Some(Ending::Stopped));
    agent.decide().unwrap();
    assert!(agent.job_task.is_ending);
}
