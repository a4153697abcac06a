//! What is begun, given up and sent rests on an answer to a request that began after the fact: against a scripted Heat.

use std::rc::Rc;

use futures_util::StreamExt;

use super::*;
use crate::daemon::agent::job::JobTask;
use crate::programs::RESULT;

/// What cloud-init leaves of a server that reads its metadata at `base`.
fn boot(base: &str, deployments: &[Value]) -> Value {
    let request = json!({"metadata_url": format!("{base}/metadata")});
    json!({"os-collect-config": {"collectors": ["request"], "request": request}, "deployments": deployments})
}

/// Heat's answer with this list.
pub(super) fn lists(base: &str, deployments: &[Value]) -> Act {
    ok(boot(base, deployments).to_string())
}

/// The `n`th run of the resource `name`, whose result goes to `base`.
pub(super) fn run_of(base: &str, name: &str, n: u32) -> Value {
    let mut entry = deployment(name, &[("deploy_signal_id", &format!("{base}/signal/{name}{n}"))]);
    entry["id"] = json!(format!("id-{name}{n}"));
    entry["creation_time"] = json!(format!("2026-03-01T12:00:0{n}Z"));
    entry
}

/// Method and path of all requests.
pub(super) fn asked(fake: &Fake) -> Vec<String> {
    let words = |request: String| request.split(" HTTP/").next().unwrap_or_default().to_owned();
    fake.requests().into_iter().map(words).collect()
}

/// An agent of a server that reads its metadata at `fake`, where every group may run.
pub(super) async fn open_at(dir: &Path, fake: &Fake, deployments: &[Value]) -> Agent {
    let (mut agent, _) = open_in(dir, BOOT, &boot(&fake.base, deployments)).await;
    Rc::make_mut(&mut agent.host).settings.deploy.groups = None;
    agent
}

/// One poll that lists these, and what follows from it at once.
async fn poll(agent: &mut Agent, fake: &Fake, deployments: &[Value]) {
    fake.play(vec![lists(&fake.base, deployments)]);
    let change = agent.collector.poll_once().await;
    agent.received(change);
    agent.decide().unwrap();
    fake.play(vec![ok("")]);
    while let Some(sent) = agent.ledger.sending.next().await {
        agent.sent(sent);
    }
}

#[tokio::test]
async fn a_result_is_not_sent_on_an_answer_that_is_older_than_it() {
    let fake = Fake::start(vec![ok("")]).await;
    let (old, new) = (run_of(&fake.base, "r", 1), run_of(&fake.base, "r", 2));
    let list = |entry: &Value| lists(&fake.base, std::slice::from_ref(entry));
    // The poll is answered, the deployment ends, and meanwhile Heat asks for another run of the same resource.
    fake.play(vec![list(&old), list(&new), list(&new), ok("")]);
    let (_dir, _, records) = pass(BOOT, &boot(&fake.base, &[])).await;
    // One look more before the result of each, and no word of the old one.
    assert_eq!(asked(&fake), ["GET /metadata", "GET /metadata", "GET /metadata", "POST /signal/r2"]);
    let notes: Vec<_> = records.iter().map(|record| (record.state, record.note.as_deref())).collect();
    assert_eq!(
        notes,
        [(DeploymentState::Signalled, Some("superseded before it was reported to Heat")), (DeploymentState::Signalled, None)]
    );
}

#[tokio::test]
async fn one_look_serves_all_results_and_a_retry_needs_another() {
    let fake = Fake::start(vec![ok("")]).await;
    let both = [run_of(&fake.base, "a", 1), run_of(&fake.base, "b", 1)];
    let list = || lists(&fake.base, &both);
    fake.play(vec![list(), list(), ok(""), status("503 Busy", "")]);
    let dir = tempfile::tempdir().unwrap();
    pass_in(dir.path(), BOOT, &boot(&fake.base, &[])).await;
    assert_eq!(asked(&fake), ["GET /metadata", "GET /metadata", "POST /signal/a1", "POST /signal/b1"]);
    // Its pause is over.
    let tree = Tree::open(dir.path()).unwrap();
    let stored = Path::new("state/outbox").join(&tree.list(Path::new("state/outbox")).unwrap()[0]);
    let mut entry: Value = tree.read_json(&stored).unwrap().unwrap();
    entry["not_before"] = json!(0);
    tree.write_json(&stored, &entry, Attributes::mode(0o600)).unwrap();
    // The next run of the agent reads the metadata once, and that is after all that is stored.
    fake.play(vec![list(), ok("")]);
    pass_in(dir.path(), BOOT, &boot(&fake.base, &[])).await;
    assert_eq!(asked(&fake)[4..], ["GET /metadata", "POST /signal/b1"]);
}

#[tokio::test]
async fn a_pass_does_not_wait_for_an_answer_that_does_not_come() {
    let fake = Fake::start(vec![ok("")]).await;
    let one = [run_of(&fake.base, "a", 1)];
    fake.play(vec![lists(&fake.base, &one), status("503 Busy", "")]);
    let (_dir, _, records) = pass(BOOT, &boot(&fake.base, &[])).await;
    assert_eq!((asked(&fake), records[0].state), (vec!["GET /metadata".to_owned(); 2], DeploymentState::Finished));
}

/// An agent whose two scripts ended, with their results on their way to two places: one answers, the other as `slow` says.
async fn two_on_their_way(dir: &Path, [fast, slow]: [&Fake; 2], answer: Act) -> Agent {
    let both = [run_of(&fast.base, "a", 1), run_of(&slow.base, "b", 1)];
    let mut agent = open_at(dir, fast, &[]).await;
    let list = || lists(&fast.base, &both);
    fast.play(vec![list()]);
    let change = agent.collector.poll_once().await;
    agent.received(change);
    agent.decide().unwrap();
    while agent.ledger.outbox.waiting().len() < 2 {
        agent.turn().await;
        agent.decide().unwrap();
    }
    fast.play(vec![list(), ok("")]);
    slow.play(vec![answer]);
    let change = agent.collector.poll_once().await;
    agent.received(change);
    agent.decide().unwrap();
    assert_eq!(agent.ledger.sending.len(), 2);
    agent
}

fn is_signalled(agent: &Agent, id: &str) -> bool {
    agent.ledger.journal.get(id).unwrap().state == DeploymentState::Signalled
}

#[tokio::test]
async fn an_agent_that_is_to_stop_waits_a_moment_for_the_answer_to_a_signal() {
    let (fast, slow) = (Fake::start(vec![ok("")]).await, Fake::start(vec![ok("")]).await);
    for (answer, is_known) in
        [(Act::Slow(Duration::from_millis(20), Box::new(ok(""))), true), (Act::Held(Arc::default(), Box::new(ok(""))), false)]
    {
        let dir = tempfile::tempdir().unwrap();
        let mut agent = two_on_their_way(dir.path(), [&fast, &slow], answer).await;
        agent.finish_sending().await;
        // Of what was answered the next run knows, whoever else did not answer.
        assert_eq!((is_signalled(&agent, "id-a1"), is_signalled(&agent, "id-b1")), (true, is_known));
        let waiting = agent.ledger.outbox.waiting().len();
        drop(agent);
        let stored = Tree::open(dir.path()).unwrap().list(Path::new("state/outbox")).unwrap().len();
        assert_eq!((waiting, stored), (usize::from(!is_known), usize::from(!is_known)));
    }
}

#[tokio::test]
async fn a_place_that_does_not_answer_holds_up_no_other_one() {
    let (fast, slow) = (Fake::start(vec![ok("")]).await, Fake::start(vec![ok("")]).await);
    let dir = tempfile::tempdir().unwrap();
    let mut agent = two_on_their_way(dir.path(), [&fast, &slow], Act::Held(Arc::default(), Box::new(ok("")))).await;
    while !is_signalled(&agent, "id-a1") {
        agent.turn().await;
    }
    // Another script ends while the other place is still silent.
    let all = [run_of(&fast.base, "a", 1), run_of(&slow.base, "b", 1), run_of(&fast.base, "c", 1)];
    for _ in 0..2 {
        fast.play(vec![lists(&fast.base, &all), ok("")]);
        let change = agent.collector.poll_once().await;
        agent.received(change);
        agent.decide().unwrap();
        while agent.job_task.id().is_some() {
            agent.turn().await;
        }
        agent.decide().unwrap();
    }
    while !is_signalled(&agent, "id-c1") {
        agent.turn().await;
    }
    assert_eq!((agent.ledger.sending.len(), slow.requests().len(), agent.ledger.outbox.waiting().len()), (1, 1, 1));
    agent.decide().unwrap();
    assert_eq!(agent.ledger.sending.len(), 1, "one a place");
}

#[tokio::test]
async fn what_leaves_the_list_for_one_answer_is_reported_when_it_comes_back() {
    let fake = Fake::start(vec![ok("")]).await;
    let one = [run_of(&fake.base, "a", 1)];
    for restarts in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let before = asked(&fake).len();
        let mut agent = open_in(dir.path(), BOOT, &boot(&fake.base, &[])).await.0;
        poll(&mut agent, &fake, &one).await;
        assert_eq!(agent.ledger.outbox.waiting().len(), 1);
        poll(&mut agent, &fake, &[]).await;
        let record = agent.ledger.journal.get("id-a1").unwrap();
        assert_eq!(
            (record.state, record.withdrawn_from, agent.ledger.outbox.is_empty()),
            (DeploymentState::Signalled, Some(DeploymentState::Finished), true)
        );
        if restarts {
            agent = open_in(dir.path(), BOOT, &boot(&fake.base, &[])).await.0;
        }
        poll(&mut agent, &fake, &one).await;
        assert_eq!(agent.ledger.outbox.waiting().len(), 1, "on that same answer it is not sent");
        poll(&mut agent, &fake, &one).await;
        let polls = ["GET /metadata"; 4];
        assert_eq!(asked(&fake)[before..], [&polls[..], &["POST /signal/a1"]].concat(), "{restarts}");
        let record = agent.ledger.journal.get("id-a1").unwrap();
        assert_eq!((record.state, record.withdrawn_from, record.note.as_deref()), (DeploymentState::Signalled, None, None));
        // Told once: whatever leaves and comes back now is done.
        for list in [&[][..], &one, &one] {
            poll(&mut agent, &fake, list).await;
        }
        assert_eq!(asked(&fake).iter().filter(|line| *line == "POST /signal/a1").count(), 1 + usize::from(restarts));
    }
}

/// Attack: a replica of the object store that lagged behind answered once with the run that Heat had replaced, and its result was sent: Heat took it
/// for that of the new one.
#[tokio::test]
async fn a_source_that_goes_back_to_a_replaced_run_for_one_answer_has_no_result_of_it_sent() {
    let fake = Fake::start(vec![ok("")]).await;
    let (old, new) = ([run_of(&fake.base, "r", 1)], [run_of(&fake.base, "r", 2)]);
    for restarts in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let before = asked(&fake).len();
        let mut agent = open_at(dir.path(), &fake, &[]).await;
        poll(&mut agent, &fake, &old).await;
        poll(&mut agent, &fake, &new).await;
        assert_eq!(agent.ledger.outbox.waiting().len(), 1);
        if restarts {
            agent = open_at(dir.path(), &fake, &[]).await;
        }
        for list in [&old, &old, &new, &old, &new] {
            poll(&mut agent, &fake, list).await;
        }
        let signals: Vec<_> = asked(&fake)[before..].iter().filter(|line| !line.starts_with("GET")).cloned().collect();
        assert_eq!(signals, ["POST /signal/r2"], "{restarts}");
        let replaced = agent.ledger.journal.get("id-r1").unwrap();
        assert_eq!(replaced.note.as_deref(), Some("superseded before it was reported to Heat"));
    }
}

/// Attack: 300 results waited for Heat, one answer had no deployments and the next one all of them again: of the 100 beyond `keep` Heat
/// never heard, and the replaced tools were said to have run them.
#[tokio::test]
async fn more_results_than_records_to_keep_outlast_an_answer_without_deployments() {
    let fake = Fake::start(vec![ok("")]).await;
    let dir = tempfile::tempdir().unwrap();
    let list: Vec<Value> = ["a", "b", "c", "d"].iter().map(|name| run_of(&fake.base, name, 1)).collect();
    let (mut agent, report) = open_in(dir.path(), BOOT, &boot(&fake.base, &[])).await;
    let (state, deployed) = (Arc::clone(&agent.host.state), agent.host.settings.deploy.deployed_dir.clone());
    agent.ledger.journal = deploy::Journal::open(state, Some(&deployed), 1, agent.host.clock.clone(), &report).unwrap();
    poll(&mut agent, &fake, &list).await;
    assert_eq!(agent.ledger.outbox.waiting().len(), 4);
    for _ in 0..3 {
        poll(&mut agent, &fake, &[]).await;
    }
    assert_eq!((agent.ledger.journal.len(), agent.ledger.outbox.is_empty()), (4, true));
    for _ in 0..6 {
        poll(&mut agent, &fake, &list).await;
    }
    let mut signals: Vec<_> = asked(&fake).into_iter().filter(|line| !line.starts_with("GET")).collect();
    signals.sort_unstable();
    assert_eq!(signals, ["a", "b", "c", "d"].map(|name| format!("POST /signal/{name}1")));
    assert!(report.events().iter().all(|event| event.code != Code::DeploymentAlreadyRun));
}

#[tokio::test]
async fn a_wait_condition_hears_of_a_node_that_leaves_and_comes_back() {
    let fake = Fake::start(vec![ok("")]).await;
    let dir = tempfile::tempdir().unwrap();
    let mut node = run_of(&fake.base, "n", 1);
    (node["group"], node["config"]) =
        (json!("kubernetes-node"), json!({"ROLE": "odd", "WAIT_HANDLE": format!("{}/wait", fake.base)}));
    let node = [node];
    let mut agent = open_at(dir.path(), &fake, &[]).await;
    for list in [&node[..], &[], &node, &node, &node] {
        poll(&mut agent, &fake, list).await;
    }
    let signals: Vec<_> = asked(&fake).into_iter().filter(|line| !line.starts_with("GET")).collect();
    assert_eq!(signals, ["PUT /wait", "POST /signal/n1"]);
}

#[tokio::test]
async fn a_script_that_leaves_and_comes_back_is_taken_up_where_it_was() {
    let fake = Fake::start(vec![ok("")]).await;
    let dir = tempfile::tempdir().unwrap();
    let mut script = run_of(&fake.base, "s", 1);
    (script["group"], script["config"]) = (json!("script"), json!("#!/bin/sh\n"));
    let parsed = Deployment::parse(&script).unwrap().unwrap();
    let script = [script];
    let mut agent = open_at(dir.path(), &fake, &[]).await;
    agent.ledger.register(&parsed, None).unwrap();
    poll(&mut agent, &fake, &[]).await;
    let withdrawn_from = |agent: &Agent| agent.ledger.journal.get("id-s1").unwrap().withdrawn_from;
    assert_eq!(withdrawn_from(&agent), Some(DeploymentState::Seen), "it never ran");
    poll(&mut agent, &fake, &script).await;
    assert!(agent.job_task.id().is_none(), "not on that same answer");
    poll(&mut agent, &fake, &script).await;
    assert_eq!(agent.job_task.id(), Some("id-s1"));
    // By another run of the agent that finds it running. It ended while nobody looked.
    drop(agent);
    let mut agent = open_at(dir.path(), &fake, &[]).await;
    poll(&mut agent, &fake, &[]).await;
    let watched = (withdrawn_from(&agent), agent.job_task.id());
    assert_eq!(watched, (None, Some("id-s1")), "it is watched as long as it may run, and not let go before");
    let job = Path::new("state/work").join(agent.ledger.journal.get("id-s1").unwrap().job());
    let ran = JobResult { stdout: "once\n".into(), ..JobResult::default() };
    Tree::open(dir.path()).unwrap().write_json(&job.join(RESULT), &ran, Attributes::mode(0o600)).unwrap();
    poll(&mut agent, &fake, &script).await;
    let (id, ran) = agent.job_task.ended().await;
    agent.job_ended(&id, ran);
    poll(&mut agent, &fake, &script).await;
    assert!(fake.requests().last().unwrap().contains(r#""deploy_stdout":"once\n""#));
}

#[tokio::test]
async fn a_node_that_leaves_and_comes_back_is_brought_up_from_the_beginning() {
    let fake = Fake::start(vec![ok("")]).await;
    let dir = tempfile::tempdir().unwrap();
    let mut node = run_of(&fake.base, "n", 1);
    let config = json!({"ROLE": "minion", "KUBE_MASTER_IP": "192.0.2.1", "KUBE_NODE_IP": "192.0.2.2", "TLS_DISABLED": true});
    (node["group"], node["config"]) = (json!("kubernetes-node"), config);
    let node = [node];
    let mut agent = open_at(dir.path(), &fake, &[]).await;
    poll(&mut agent, &fake, &node).await;
    assert!(agent.node_task.bring_up.is_busy());
    poll(&mut agent, &fake, &[]).await;
    let state = |agent: &Agent| agent.ledger.generations.current().unwrap().state;
    assert_eq!((agent.node_task.bring_up.is_busy(), state(&agent)), (false, GenerationState::Rejected));
    for begins in [false, true] {
        poll(&mut agent, &fake, &node).await;
        assert_eq!(agent.node_task.bring_up.is_busy(), begins);
    }
    assert_eq!(state(&agent), GenerationState::Applying);
    assert!(agent.ledger.outbox.is_empty(), "no failure was reported");
}

#[tokio::test]
async fn nothing_is_begun_on_what_a_cache_or_a_boot_copy_says_while_heat_can_be_asked() {
    let fake = Fake::start(vec![status("503 Busy", "")]).await;
    let dir = tempfile::tempdir().unwrap();
    let mut script = run_of(&fake.base, "s", 1);
    (script["group"], script["config"]) = (json!("script"), json!("#!/bin/sh\n"));
    let script = [script];
    let mut agent = open_at(dir.path(), &fake, &script).await;
    agent.collector.poll_once().await;
    assert!(agent.collector.snapshot().lists("id-s1"));
    agent.decide().unwrap();
    assert!(agent.job_task.id().is_none() && agent.ledger.journal.get("id-s1").is_none());
    poll(&mut agent, &fake, &script).await;
    assert!(agent.job_task.id().is_some());
    // One that was forgotten by order runs anew only if Heat still lists it.
    agent.job_task = JobTask::new(Rc::clone(&agent.programs));
    agent.programs.forget(&agent.ledger.journal.get("id-s1").unwrap().job()).unwrap();
    agent.ledger.journal.forget("id-s1").unwrap();
    agent.decide().unwrap();
    assert!(agent.job_task.id().is_none() && agent.collector.is_answering());
    poll(&mut agent, &fake, &[]).await;
    assert!(agent.job_task.id().is_none());
}

#[tokio::test]
async fn whoever_has_only_the_boot_copy_waits_for_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let mut script = deployment("s", &[]);
    (script["group"], script["config"]) = (json!("script"), json!("#!/bin/sh\n"));
    let (mut agent, _) = open_in(dir.path(), BOOT, &json!({"deployments": [script]})).await;
    Rc::make_mut(&mut agent.host).settings.deploy.groups = None;
    agent.collector.poll_once().await;
    agent.decide().unwrap();
    assert!(agent.job_task.id().is_some());
}

/// Attack: Heat took no signal, scripts ran on, and their results piled up in the directories of their jobs.
#[tokio::test]
async fn nothing_is_begun_whose_result_has_no_room_in_the_outbox() {
    let fake = Fake::start(vec![ok("")]).await;
    let script = |name: &str| {
        let mut script = run_of(&fake.base, name, 1);
        (script["group"], script["config"]) = (json!("script"), json!("#!/bin/sh\n"));
        script
    };
    let (s, mut silent, mut node, mut large) = (script("s"), script("silent"), script("node"), script("large"));
    silent["inputs"] = json!([]);
    let config = json!({"ROLE": "minion", "KUBE_MASTER_IP": "192.0.2.1", "KUBE_NODE_IP": "192.0.2.2", "TLS_DISABLED": true});
    (node["group"], node["config"]) = (json!("kubernetes-node"), config);
    large["group"] = json!("os-apply-config");
    let dir = tempfile::tempdir().unwrap();
    let (mut agent, report) = open_in(dir.path(), BOOT, &boot(&fake.base, &[])).await;
    Rc::make_mut(&mut agent.host).settings.deploy.groups = None;
    let to = Destination::Url { url: "http://192.0.2.1/".into(), verb: "PUT".into(), insecure: false };
    let body = json!({"x": "y".repeat(crate::budgets::OUTBOX_DISK - (2 << 20))});
    let about = SignalSubject { id: "id-large1".into(), name: "large".into(), resource: None, result: true };
    let mut waiting = QueuedSignal::new("large".into(), Some(about), to, body, agent.host.clock.now());
    waiting.tries = 1;
    waiting.hold(Duration::from_hours(1), &agent.host.clock);
    agent.ledger.outbox.put(waiting).unwrap();
    let has_begun = |agent: &Agent| agent.job_task.id().is_some() || agent.node_task.bring_up.is_busy();
    let held = |agent: &Agent| {
        crate::daemon::page::of(agent)
            .conditions
            .into_iter()
            .find(|one| one.name.as_str() == "room for results")
            .map(|one| one.cause.unwrap())
    };
    for entry in [&s, &node] {
        let mut data = run_of(&fake.base, "data", 1);
        data["group"] = json!("os-apply-config");
        for list in
            [vec![large.clone(), entry.clone()], vec![large.clone(), entry.clone(), data], vec![large.clone(), entry.clone()]]
        {
            poll(&mut agent, &fake, &list).await;
            assert_eq!((has_begun(&agent), agent.is_idle()), (false, true), "{entry}");
        }
        let silent = Deployment::parse(&silent).unwrap().unwrap();
        assert!(agent.ledger.has_space(&silent, false) && held(&agent).is_some(), "what needs no room says nothing of it");
        let (cause, name) = (held(&agent).unwrap(), entry["name"].as_str().unwrap());
        assert!(cause.contains(&format!("deployment {name} is not begun: ")) && cause.contains("1 signals of "), "{cause}");
    }
    let told: Vec<_> = report.events().into_iter().filter(|event| event.code == Code::OutboxFull).collect();
    let ids: Vec<_> = told.iter().filter_map(|event| event.deployment_id.as_deref()).collect();
    assert_eq!(ids, ["id-s1", "id-node1"], "each is reported once");
    // What has no signal needs no room.
    poll(&mut agent, &fake, &[large.clone(), silent]).await;
    assert_eq!((agent.job_task.id(), held(&agent)), (Some("id-silent1"), None));
    // Heat waits for the large one no more.
    for begins in [false, true] {
        poll(&mut agent, &fake, std::slice::from_ref(&node)).await;
        assert_eq!(agent.node_task.bring_up.is_busy(), begins);
    }
    assert_eq!(held(&agent), None);
}

#[tokio::test]
async fn a_malformed_entry_with_the_id_of_what_runs_changes_nothing_of_it() {
    let fake = Fake::start(vec![ok("")]).await;
    let dir = tempfile::tempdir().unwrap();
    let mut script = run_of(&fake.base, "s", 1);
    (script["group"], script["config"]) = (json!("script"), json!("#!/bin/sh\n"));
    let mut bad = script.clone();
    bad["outputs"] = json!(5);
    let (script, bad) = (std::slice::from_ref(&script), std::slice::from_ref(&bad));
    let (mut agent, report) = open_in(dir.path(), BOOT, &boot(&fake.base, &[])).await;
    Rc::make_mut(&mut agent.host).settings.deploy.groups = None;
    for list in [script.to_vec(), [script, bad].concat(), [bad, script].concat(), bad.to_vec()] {
        poll(&mut agent, &fake, &list).await;
        let state = agent.ledger.journal.get("id-s1").unwrap().state;
        assert_eq!((agent.job_task.id(), state), (Some("id-s1"), DeploymentState::Running), "{list:?}");
    }
    let reported = report.events().into_iter().filter(|event| event.code == Code::DeploymentMalformed);
    assert_eq!(reported.count(), 1);
    // It outlives the agent, too.
    let job = Path::new("state/work").join(agent.ledger.journal.get("id-s1").unwrap().job());
    drop(agent);
    let mut agent = open_at(dir.path(), &fake, &[]).await;
    Tree::open(dir.path()).unwrap().write_json(&job.join(RESULT), &JobResult::default(), Attributes::mode(0o600)).unwrap();
    poll(&mut agent, &fake, bad).await;
    let (id, ran) = agent.job_task.ended().await;
    agent.job_ended(&id, ran);
    assert!(!agent.ledger.journal.get("id-s1").unwrap().failed());
}

#[tokio::test]
async fn a_node_takes_over_from_one_that_ended_and_is_still_listed() {
    let fake = Fake::start(vec![ok("")]).await;
    let dir = tempfile::tempdir().unwrap();
    let node = |name: &str| {
        let mut node = run_of(&fake.base, name, 1);
        let config = json!({"ROLE": "minion", "KUBE_MASTER_IP": "192.0.2.1", "KUBE_NODE_IP": "192.0.2.2", "TLS_DISABLED": true});
        (node["group"], node["config"]) = (json!("kubernetes-node"), config);
        node
    };
    let (old, new) = (node("old"), node("new"));
    let mut agent = open_at(dir.path(), &fake, &[]).await;
    poll(&mut agent, &fake, std::slice::from_ref(&old)).await;
    let (id, done) = agent.node_task.bring_up.ended().await;
    agent.node_ended(&id, done);
    // Renamed in the template: Heat makes the new one first, and removes the old one when that has succeeded.
    poll(&mut agent, &fake, &[old, new]).await;
    assert_eq!(agent.node_task.bring_up.about().map(String::as_str), Some("id-new1"));
    assert_eq!(agent.ledger.generations.current().unwrap().deployment, "id-new1");
}

/// Heat deletes the old one of two that ask for the node in turn, too.
#[tokio::test]
async fn a_deleted_deployment_gives_up_the_nodes_member_of_etcd_unless_another_one_asks_for_the_node() {
    let fake = Fake::start(vec![ok("")]).await;
    let dir = tempfile::tempdir().unwrap();
    let node = |name: &str, action: &str| {
        let mut node = run_of(&fake.base, name, 1);
        let config = json!({"ROLE": "master", "INSTANCE_NAME": "m", "KUBE_NODE_IP": "192.0.2.2", "TLS_DISABLED": true});
        (node["group"], node["config"], node["inputs"][0]["value"]) = (json!("kubernetes-node"), config, json!(action));
        node
    };
    let mut agent = open_at(dir.path(), &fake, &[]).await;
    let end = async |agent: &mut Agent| {
        let (id, done) = agent.node_task.bring_up.ended().await;
        agent.node_ended(&id, done);
    };
    poll(&mut agent, &fake, &[node("old", "CREATE")]).await;
    end(&mut agent).await;
    poll(&mut agent, &fake, &[node("end", "DELETE"), node("new", "CREATE")]).await;
    let ended = agent.ledger.journal.get("id-end1").unwrap();
    assert!(ended.state >= DeploymentState::Finished && !ended.failed());
    assert!(!agent.ledger.generations.current().unwrap().departed);
    end(&mut agent).await;
    let leaves = |agent: &Agent| {
        assert_eq!(agent.node_task.bring_up.about().map(String::as_str), Some("id-last1"));
        assert!(agent.ledger.generations.current().unwrap().departed && agent.ledger.reference().is_none());
    };
    // Of a deployment that was resumed Heat lists that.
    poll(&mut agent, &fake, &[node("other", "DELETE"), node("resumed", "RESUME")]).await;
    let ended = agent.ledger.journal.get("id-other1").unwrap();
    assert!(ended.state >= DeploymentState::Finished && !agent.ledger.generations.current().unwrap().departed);
    poll(&mut agent, &fake, &[node("last", "DELETE")]).await;
    leaves(&agent);
    // Killed, and listed no more: what was begun goes on.
    drop(agent);
    let mut agent = open_at(dir.path(), &fake, &[]).await;
    poll(&mut agent, &fake, &[node("last", "DELETE")]).await;
    leaves(&agent);
    poll(&mut agent, &fake, &[]).await;
    leaves(&agent);
    for changed_machine in [true, false] {
        let outcome = DeploymentOutcome::default();
        agent.node_ended("id-last1", Done { outcome, step_timings: Vec::new(), wait: None, changed_machine, restored: false });
        assert_eq!(agent.ledger.generations.current().unwrap().departed, changed_machine, "it is a member still");
    }
}

/// Attack: what Heat had replaced was applied until its deadline, because Heat lists it until its replacement has succeeded.
#[tokio::test]
async fn a_node_that_heat_replaced_gives_way_although_it_is_listed_still() {
    let fake = Fake::start(vec![ok("")]).await;
    let dir = tempfile::tempdir().unwrap();
    let [old, new] = [1, 2].map(|n| {
        let mut node = run_of(&fake.base, "r", n);
        let config = json!({"ROLE": "minion", "KUBE_MASTER_IP": "192.0.2.1", "KUBE_NODE_IP": "192.0.2.2", "TLS_DISABLED": true});
        (node["group"], node["config"]) = (json!("kubernetes-node"), config);
        node
    });
    let mut agent = open_at(dir.path(), &fake, &[]).await;
    let brings_up = |agent: &Agent| agent.node_task.bring_up.about().map(String::as_str).unwrap_or_default().to_owned();
    for _ in 0..2 {
        poll(&mut agent, &fake, std::slice::from_ref(&old)).await;
        assert_eq!(brings_up(&agent), "id-r1");
    }
    for _ in 0..2 {
        poll(&mut agent, &fake, &[old.clone(), new.clone()]).await;
        assert_eq!(brings_up(&agent), "id-r2");
    }
    let record = agent.ledger.journal.get("id-r1").unwrap();
    assert_eq!((record.state, record.withdrawn_from), (DeploymentState::Signalled, Some(DeploymentState::Seen)));
    assert!(agent.ledger.outbox.waiting().is_empty(), "Heat hears nothing of it");
}

/// Attack: the deployment was renamed in the template before the server's first boot, and Heat lists both until the new one has succeeded:
/// both were refused for good.
#[tokio::test]
async fn of_two_nodes_that_have_not_begun_the_newer_one_is_brought_up_and_the_older_one_waits() {
    let fake = Fake::start(vec![ok("")]).await;
    let node = |name: &str, n| {
        let mut node = run_of(&fake.base, name, n);
        let config = json!({"ROLE": "minion", "KUBE_MASTER_IP": "192.0.2.1", "KUBE_NODE_IP": "192.0.2.2", "TLS_DISABLED": true});
        (node["group"], node["config"]) = (json!("kubernetes-node"), config);
        node
    };
    let (mut old, new, newest) = (node("old", 1), node("new", 2), node("newest", 3));
    // Heat waits for no word of it.
    old["inputs"] = json!([]);
    let brings_up = |agent: &Agent| agent.node_task.bring_up.about().map(String::as_str).unwrap_or_default().to_owned();
    let ends = async |agent: &mut Agent| {
        let (id, done) = agent.node_task.bring_up.ended().await;
        agent.node_ended(&id, done);
        agent.decide().unwrap();
        agent.decide().unwrap();
    };
    let waits = |agent: &Agent| crate::daemon::page::of(agent).conditions.iter().any(|one| one.name.as_str() == "second node");
    let dir = tempfile::tempdir().unwrap();
    let (mut agent, report) = open_in(dir.path(), BOOT, &boot(&fake.base, &[])).await;
    Rc::make_mut(&mut agent.host).settings.deploy.groups = None;
    for _ in 0..2 {
        poll(&mut agent, &fake, &[old.clone(), new.clone()]).await;
        assert_eq!((&*brings_up(&agent), waits(&agent)), ("id-new2", true));
    }
    // A newer one comes while it is brought up: that is not cut off, and the newer one has its turn after it.
    poll(&mut agent, &fake, &[old.clone(), new.clone(), newest.clone()]).await;
    assert_eq!(brings_up(&agent), "id-new2");
    ends(&mut agent).await;
    poll(&mut agent, &fake, &[old.clone(), new.clone(), newest.clone()]).await;
    assert_eq!(brings_up(&agent), "id-newest3");
    ends(&mut agent).await;
    assert_eq!((&*brings_up(&agent), waits(&agent)), ("", true), "the old one waits for the word of Heat");
    let state = |agent: &Agent| agent.ledger.journal.get("id-old1").unwrap().state;
    assert_eq!(state(&agent), DeploymentState::Seen);
    let told = report.events().iter().filter(|event| event.code == Code::DuplicateNodeDeployment).count();
    assert_eq!(told, 2, "the old one and the newest one, each once");
    // Heat went back to it.
    for _ in 0..2 {
        poll(&mut agent, &fake, std::slice::from_ref(&old)).await;
    }
    assert_eq!((&*brings_up(&agent), waits(&agent)), ("id-old1", false));
    let signalled = asked(&fake).into_iter().filter(|line| line.starts_with("POST /signal/old")).count();
    assert_eq!(signalled, 0, "Heat heard nothing of it");
}

/// Attack: a template with two by mistake ended in Heat's own timeout, and nothing there said why.
#[tokio::test]
async fn of_two_nodes_in_a_template_heat_hears_which_one_was_taken_once_that_has_begun() {
    let fake = Fake::start(vec![ok("")]).await;
    let [older, newer] = [("older", 1), ("newer", 2)].map(|(name, n)| {
        let mut node = run_of(&fake.base, name, n);
        let config = json!({"ROLE": "minion", "KUBE_MASTER_IP": "192.0.2.1", "KUBE_NODE_IP": "192.0.2.2", "TLS_DISABLED": true});
        (node["group"], node["config"]) = (json!("kubernetes-node"), config);
        node
    });
    let dir = tempfile::tempdir().unwrap();
    let mut agent = open_at(dir.path(), &fake, &[]).await;
    for _ in 0..3 {
        poll(&mut agent, &fake, &[older.clone(), newer.clone()]).await;
    }
    assert_eq!(agent.node_task.bring_up.about().map(String::as_str), Some("id-newer2"));
    let record = agent.ledger.journal.get("id-older1").unwrap();
    let why = record.outcome.as_ref().and_then(|outcome| outcome.reason.as_ref()).unwrap().to_string();
    assert!(record.failed() && why.contains("newer") && why.contains("one kubernetes-node deployment"), "{why}");
    let signalled = asked(&fake).into_iter().filter(|line| line.starts_with("POST /signal/older")).count();
    assert_eq!(signalled, 1);
}

#[tokio::test]
async fn how_long_heat_waits_is_counted_from_when_it_made_the_deployment() {
    let (dir, document) = (tempfile::tempdir().unwrap(), json!({"deployments": []}));
    let (mut agent, _) = open_in(dir.path(), GIVEN, &document).await;
    let mut entry = deployment("n", &[]);
    let made = Timestamp(agent.host.clock.now().0 - 600_000);
    entry["creation_time"] = json!(made.rfc3339());
    let node = Deployment::parse(&entry).unwrap().unwrap();
    agent.ledger.register(&node, None).unwrap();
    let ago = |agent: &Agent| agent.ledger.heat_waiting_for(&node, Duration::from_hours(1)).as_secs() / 60;
    assert_eq!(ago(&agent), 10);
    // What the operator has run again is nothing that Heat waits for.
    agent.ledger.journal.rerun("id-n", "1").unwrap();
    assert_eq!(ago(&agent), 0);
}

#[tokio::test]
async fn an_answer_without_a_list_is_nobodys_word_on_a_result() {
    let fake = Fake::start(vec![ok("")]).await;
    let dir = tempfile::tempdir().unwrap();
    let (old, new) = ([run_of(&fake.base, "r", 1)], [run_of(&fake.base, "r", 2)]);
    let mut agent = open_in(dir.path(), BOOT, &boot(&fake.base, &[])).await.0;
    poll(&mut agent, &fake, &old).await;
    assert_eq!(agent.ledger.outbox.waiting().len(), 1, "it ended after that answer began");
    // Heat has replaced it, but these answers do not say so.
    for document in ["{}", r#"{"deployments": "none"}"#] {
        fake.play(vec![ok(document)]);
        let change = agent.collector.poll_once().await;
        agent.received(change);
        agent.decide().unwrap();
        assert!(agent.ledger.sending.is_empty() && agent.is_idle(), "{document}: nothing is sent, and nothing spins");
    }
    poll(&mut agent, &fake, &new).await;
    poll(&mut agent, &fake, &new).await;
    let signals: Vec<_> = asked(&fake).into_iter().filter(|line| line.starts_with("POST")).collect();
    assert_eq!(signals, ["POST /signal/r2"]);
}

#[tokio::test]
async fn a_server_whose_metadata_has_no_list_waits_for_nothing() {
    let fake = Fake::start(vec![ok("{}")]).await;
    let dir = tempfile::tempdir().unwrap();
    let (agent, _) = open_in(dir.path(), BOOT, &boot(&fake.base, &[])).await;
    let url = format!("{}/wait", fake.base);
    let to = Destination::Url { url, verb: "PUT".into(), insecure: false };
    agent.ledger.outbox.put(QueuedSignal::new("wait".into(), None, to, json!({}), agent.host.clock.now())).unwrap();
    let code = Box::pin(agent.run_once()).await.unwrap();
    assert_eq!(format!("{code:?}"), format!("{:?}", std::process::ExitCode::SUCCESS));
    assert_eq!(asked(&fake)[..2], ["GET /metadata", "PUT /wait"]);
}

/// Attack: `run --once` took whatever it was told first, although it had a record of the newer run.
#[tokio::test]
async fn a_single_pass_sends_no_result_on_the_word_of_an_older_list_either() {
    let fake = Fake::start(vec![ok("")]).await;
    let dir = tempfile::tempdir().unwrap();
    let (old, new) = ([run_of(&fake.base, "r", 1)], [run_of(&fake.base, "r", 2)]);
    let mut agent = open_at(dir.path(), &fake, &[]).await;
    poll(&mut agent, &fake, &old).await;
    poll(&mut agent, &fake, &new).await;
    // The newer one was listed last by an answer of which nothing is left.
    poll(&mut agent, &fake, &[]).await;
    drop(agent);
    fake.play(vec![lists(&fake.base, &old), lists(&fake.base, &old), ok("")]);
    let (_, records) = pass_in(dir.path(), BOOT, &boot(&fake.base, &[])).await;
    assert!(asked(&fake).iter().all(|line| line.starts_with("GET")), "{:?}", asked(&fake));
    assert_eq!(records.len(), 2);
}
