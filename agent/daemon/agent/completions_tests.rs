//! Results on their way to a scripted Keystone and Heat. The group is forbidden, so that every deployment has its result at once.

#[path = "freshness_tests.rs"]
mod freshness;
#[path = "unrecorded_tests.rs"]
mod unrecorded;

use std::collections::BTreeSet;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use serde_json::{Value, json};

use super::*;
use crate::clock::{Clock, Timestamp};
use crate::daemon::host::Host;
use crate::deploy;
use crate::files::{Attributes, Tree};
use crate::http::fake::{Act, Fake, ok, status, token};
use crate::metadata::Deployment;
use crate::report::Report;
use crate::settings::{NodeSource, Settings};
use crate::signal::{Destination, SignalSubject};

/// Where a pass reads its document: what `--metadata` names, or what cloud-init left.
const GIVEN: &str = "document.json";
pub(in crate::daemon::agent) const BOOT: &str = "var/lib/heat-cfntools/cfn-init-data";

/// One full pass with this document; the state it leaves, what it said, and the records.
async fn pass(place: &str, document: &Value) -> (tempfile::TempDir, Vec<Event>, Vec<DeploymentRecord>) {
    let dir = tempfile::tempdir().unwrap();
    let (events, records) = pass_in(dir.path(), place, document).await;
    (dir, events, records)
}

/// The same on what an earlier pass left.
async fn pass_in(dir: &Path, place: &str, document: &Value) -> (Vec<Event>, Vec<DeploymentRecord>) {
    let (agent, report) = open_in(dir, place, document).await;
    run(agent, report).await
}

/// One pass of an agent; what it said, and the records that it leaves.
async fn run(agent: Agent, report: Report) -> (Vec<Event>, Vec<DeploymentRecord>) {
    let (state, settings) = (Arc::clone(&agent.host.state), agent.host.settings.clone());
    Box::pin(agent.run_once()).await.unwrap();
    let (deployed, keep) = (Some(settings.deploy.deployed_dir.as_path()), settings.deploy.keep);
    let journal = deploy::Journal::open(state, deployed, keep, Clock::system(), &report).unwrap();
    (report.events(), journal.all().into_iter().cloned().collect())
}

/// An agent before its first poll.
pub(in crate::daemon::agent) async fn open_in(dir: &Path, place: &str, document: &Value) -> (Agent, Report) {
    open_with(dir, place, document, NodeSource::Deployment).await
}

async fn open_with(dir: &Path, place: &str, document: &Value, node_source: NodeSource) -> (Agent, Report) {
    let tree = Arc::new(Tree::open(dir).unwrap());
    tree.create_dir_all(Path::new("var/lib/heat-cfntools"), Attributes::mode(0o755)).unwrap();
    tree.write(Path::new(place), document.to_string().as_bytes(), Attributes::mode(0o600)).unwrap();
    let state = Arc::new(Tree::open_or_create(&dir.join("state"), 0o700).unwrap());
    let mut settings = Settings { state_dir: dir.join("state"), run_dir: dir.join("run"), node_source, ..Settings::default() };
    // Sources are asked once in a pass, however long it takes.
    (settings.polling_interval, settings.min_polling_interval) = (Duration::from_hours(1), Duration::from_hours(1));
    settings.sources.timeout = Duration::from_mins(2);
    settings.deploy.deployed_dir = dir.join("deployed");
    settings.deploy.groups = Some(Vec::new());
    let (report, metadata) = (Report::kept(), (place == GIVEN).then(|| dir.join(GIVEN)));
    tree.create_dir_all(Path::new("run/cloud-init"), Attributes::mode(0o755)).unwrap();
    tree.write(Path::new("run/cloud-init/.instance-id"), b"i-1\n", Attributes::mode(0o644)).unwrap();
    let host = Host { settings, root: tree, state, systemd: None, clock: Clock::system(), report: report.clone() };
    let instance = host.settle(true).await.unwrap().unwrap();
    (Agent::open(host, metadata, instance).unwrap(), report)
}

fn deployment(name: &str, inputs: &[(&str, &str)]) -> Value {
    let all = [("deploy_action", "CREATE"), ("deploy_stack_id", "s/0a1b"), ("deploy_resource_name", name)];
    let inputs: Vec<_> =
        all.iter().chain(inputs).map(|(name, value)| json!({"name": name, "type": "String", "value": value})).collect();
    json!({"id": format!("id-{name}"), "name": name, "group": "none", "creation_time": "2026-03-01T12:00:00Z", "inputs": inputs})
}

#[tokio::test]
async fn every_transport_gets_its_result_or_is_reported_once_as_impossible() {
    let fake = Fake::start(vec![ok("")]).await;
    fake.play(vec![token("tok", &fake.base), ok("null")]);
    let auth_url = format!("{}/v3", fake.base);
    let user = [
        ("deploy_auth_url", auth_url.as_str()),
        ("deploy_user_id", "u"),
        ("deploy_password", "hush"),
        ("deploy_project_id", "p"),
    ];
    let mut deployments: Vec<_> = (0..10).map(|n| deployment(&format!("heat{n}"), &user)).collect();
    deployments.push(deployment("half", &user[..2]));
    deployments.push(deployment("zaqar", &[&user[..], &[("deploy_queue_id", "q")]].concat()));
    deployments.push(deployment("queue", &[("deploy_queue_id", "q")]));
    deployments.push(deployment("none", &[]));
    let (dir, events, records) = pass(GIVEN, &json!({ "deployments": deployments })).await;
    let requests = fake.requests();
    let tokens = requests.iter().filter(|request| request.starts_with("POST /v3/auth/tokens ")).count();
    assert_eq!((tokens, requests.len()), (1, 12), "one token for eleven results");
    assert!(requests[10].starts_with("POST /v1/p/stacks/s/0a1b/resources/heat9/signal "), "{}", requests[10]);
    assert!(requests[11].starts_with("POST /v1/p/stacks/s/0a1b/resources/zaqar/signal "), "{}", requests[11]);
    for record in &records {
        let note = match record.name.as_str() {
            "half" => Some("HEAT_SIGNAL without deploy_password, deploy_project_id cannot be sent"),
            "queue" => Some("ZAQAR_SIGNAL without deploy_auth_url cannot be sent"),
            "none" => Some("no signal requested"),
            _ => None,
        };
        assert_eq!((record.state, record.note.as_deref()), (DeploymentState::Signalled, note), "{}", record.name);
    }
    let impossible: Vec<_> = events.iter().filter(|event| event.code == Code::SignalUndeliverable).collect();
    assert_eq!(impossible.len(), 2);
    assert!(impossible.iter().all(|event| event.remedy.as_ref().unwrap().contains("signal_transport")));
    assert!(!format!("{events:?} {records:?}").contains("hush"));
    let status = Tree::open(dir.path()).unwrap().read(Path::new("run/status.json"), 1 << 20).unwrap().unwrap();
    assert!(!String::from_utf8_lossy(&status).contains("hush"));
}

#[tokio::test]
async fn what_an_older_agent_took_up_goes_where_this_one_can_send_it() {
    let fake = Fake::start(vec![ok("")]).await;
    fake.play(vec![token("tok", &fake.base), ok("null")]);
    let auth_url = format!("{}/v3", fake.base);
    let user =
        [("deploy_auth_url", auth_url.as_str()), ("deploy_user_id", "u"), ("deploy_password", "p"), ("deploy_project_id", "p")];
    let (dir, _, records) = pass(GIVEN, &json!({"deployments": [deployment("late", &[])]})).await;
    let path = format!("state/deployments/{}.json", records[0].key());
    let tree = Tree::open(dir.path()).unwrap();
    // As a version before HEAT_SIGNAL left it.
    let mut record: Value = tree.read_json(Path::new(&path)).unwrap().unwrap();
    record["target"] = json!({"transport": "unsupported", "name": "HEAT_SIGNAL"});
    // An entry that it found malformed has no group, by which the hook's output is understood.
    (record["state"], record["note"], record["group"]) = (json!("seen"), Value::Null, json!(""));
    tree.write_json(Path::new(&path), &record, Attributes::mode(0o600)).unwrap();
    let (_, records) = pass_in(dir.path(), GIVEN, &json!({"deployments": [deployment("late", &user)]})).await;
    assert_eq!((records[0].state, records[0].note.as_deref()), (DeploymentState::Signalled, None));
    assert_eq!(records[0].group, "none");
    assert!(fake.requests()[1].starts_with("POST /v1/p/stacks/s/0a1b/resources/late/signal "), "{:?}", fake.requests());
}

#[tokio::test]
async fn a_node_that_was_cut_off_after_it_failed_stays_failed() {
    let handle = json!({"name": "WAIT_HANDLE", "value": "http://192.0.2.1/v1/waitcondition/arn%3Ax?Signature=x"});
    let config = json!({"ROLE": "minion", "KUBE_MASTER_IP": "192.0.2.1", "KUBE_NODE_IP": "192.0.2.2", "TLS_DISABLED": true});
    let entry = json!({"id": "n", "group": "kubernetes-node", "config": config, "inputs": [handle]});
    let (dir, document) = (tempfile::tempdir().unwrap(), json!({"deployments": [entry]}));
    let node = Deployment::parse(&document["deployments"][0]).unwrap().unwrap();
    let failed = |agent: &mut Agent| {
        agent.ledger.register(&node, None).unwrap();
        agent.ledger.journal.start("n", json!({})).unwrap();
        agent.ledger.generations.begin("digest", "n", json!({})).unwrap();
        agent.ledger.generations.end(GenerationState::Rejected, Some("HNA-0502 why".into()), Vec::new()).unwrap();
    };
    failed(&mut open_in(dir.path(), GIVEN, &document).await.0);
    // The next run of the agent.
    let (mut agent, _) = open_in(dir.path(), GIVEN, &document).await;
    Rc::make_mut(&mut agent.host).settings.deploy.groups = None;
    agent.collector.poll_once().await;
    agent.decide().unwrap();
    assert!(!agent.node_task.bring_up.is_busy() && agent.ledger.journal.get("n").unwrap().failed());
    let waiting = agent.ledger.outbox.waiting();
    let body = agent.ledger.outbox.body(&waiting[0]).unwrap().unwrap();
    assert_eq!((waiting.len(), &body["Status"], &body["Reason"]), (1, &json!("FAILURE"), &json!("HNA-0502 why")));
    // By order of the operator it is tried again.
    agent.ledger.journal.rerun("n", "1").unwrap();
    agent.ledger.sending.clear();
    agent.decide().unwrap();
    assert!(!agent.node_task.bring_up.is_busy(), "what Heat said before the order may be out of date");
    agent.collector.poll_once().await;
    let (tree, file) = (Tree::open(dir.path()).unwrap(), Path::new("state/node.json"));
    let kept = tree.read(file, 1 << 20).unwrap().unwrap();
    tree.remove(file).unwrap();
    tree.create_dir(file, Attributes::mode(0o700)).unwrap();
    agent.decide().unwrap_err();
    tree.remove_dir_all(file).unwrap();
    tree.write(file, &kept, Attributes::mode(0o600)).unwrap();
    agent.decide().unwrap();
    assert!(agent.node_task.bring_up.is_busy(), "a disk that was full in between changes nothing");
}

#[tokio::test]
async fn a_generation_that_nobody_goes_on_with_is_not_on_its_way_for_ever() {
    let config = json!({"ROLE": "minion", "KUBE_MASTER_IP": "192.0.2.1", "KUBE_NODE_IP": "192.0.2.2", "TLS_DISABLED": true});
    let entry = |config: &Value| json!({"id": "n", "group": "kubernetes-node", "config": config, "inputs": []});
    // Gone from the list, or refused by a newer agent, while nobody was at work.
    for (is_listed, why) in [(false, "removed from the metadata"), (true, "ROLE")] {
        let dir = tempfile::tempdir().unwrap();
        let document = json!({"deployments": [entry(&config)]});
        let (mut agent, _) = open_in(dir.path(), GIVEN, &document).await;
        let node = Deployment::parse(&document["deployments"][0]).unwrap().unwrap();
        agent.ledger.register(&node, None).unwrap();
        agent.ledger.journal.start("n", json!({})).unwrap();
        agent.ledger.generations.begin("digest", "n", json!({})).unwrap();
        drop(agent);
        let document = json!({"deployments": [entry(&json!({"ROLE": "odd"}))]});
        let (mut agent, _) = open_in(dir.path(), GIVEN, &document).await;
        Rc::make_mut(&mut agent.host).settings.deploy.groups = None;
        agent.collector.poll_once().await;
        if is_listed {
            agent.decide().unwrap();
        } else {
            agent.withdraw_unlisted(&BTreeSet::new());
        }
        let current = agent.ledger.generations.current().unwrap();
        assert_eq!(current.state, GenerationState::Rejected);
        assert!(current.reason.as_ref().unwrap().why().contains(why), "{current:?}");
    }
}

/// Attack: Heat refused signals until the outbox was full, and its list changed every few seconds: records of ended deployments that it
/// did not list any more piled up, in memory and on disk.
#[tokio::test]
async fn a_result_that_found_no_room_in_the_outbox_is_let_go_once_its_deployment_is_listed_no_more() {
    let dir = tempfile::tempdir().unwrap();
    let transport = [("deploy_signal_transport", "CFN_SIGNAL"), ("deploy_signal_id", "https://192.0.2.1/signal")];
    let (mut agent, _) = open_in(dir.path(), GIVEN, &json!({"deployments": []})).await;
    for name in ["gone", "stored", "listed"] {
        let entry = Deployment::parse(&deployment(name, &transport)).unwrap().unwrap();
        agent.ledger.register(&entry, None).unwrap();
        agent.ledger.journal.start(&entry.id, json!({})).unwrap();
        agent.ledger.journal.finish(&entry.id, DeploymentOutcome::default()).unwrap();
    }
    agent.ledger.store_result_of("id-stored");
    let state =
        |agent: &Agent, name: &str| agent.ledger.journal.get(&format!("id-{name}")).map(|one| (one.state, one.withdrawn_from));
    let listed = BTreeSet::from(["id-listed".to_owned()]);
    agent.withdraw_unlisted(&listed);
    assert_eq!(state(&agent, "gone"), Some((DeploymentState::Finished, None)), "no answer is newer than its end");
    agent.collector.poll_once().await;
    agent.withdraw_unlisted(&listed);
    assert_eq!(state(&agent, "gone"), Some((DeploymentState::Signalled, Some(DeploymentState::Finished))));
    for name in ["stored", "listed"] {
        assert_eq!(state(&agent, name), Some((DeploymentState::Finished, None)), "{name}");
    }
}

/// Attack: the agent was killed while the node went back from an update, and Heat's list had another deployment, or none, at the next
/// start: the rollback was dropped half way.
#[tokio::test]
async fn a_rollback_that_has_begun_is_gone_on_with_although_heat_lists_its_deployment_no_more() {
    let entry = |id: &str, options: &str| {
        let config = json!({"ROLE": "minion", "KUBE_MASTER_IP": "192.0.2.1", "KUBE_NODE_IP": "192.0.2.2", "TLS_DISABLED": true,
            "KUBELET_OPTIONS": options});
        json!({"id": id, "name": id, "group": "kubernetes-node", "config": config, "inputs": []})
    };
    for listed in [vec![], vec![entry("newer", "--v=4")]] {
        let dir = tempfile::tempdir().unwrap();
        let update = Deployment::parse(&entry("update", "--v=3")).unwrap().unwrap();
        let document = json!({ "deployments": listed });
        let (mut agent, _) = open_in(dir.path(), GIVEN, &document).await;
        agent.ledger.generations.begin("1", "first", entry("first", "--v=2")).unwrap();
        agent.ledger.generations.end(GenerationState::Applied, None, Vec::new()).unwrap();
        agent.ledger.register(&update, None).unwrap();
        agent.ledger.journal.start("update", json!({})).unwrap();
        agent.ledger.generations.begin("2", "update", update.to_hook_json()).unwrap();
        let record = json!({"generation": 2, "deployment": "update", "code": "HNA-0502", "step": {"gate": "kubelet"}, "unit": null,
            "cause": "no answer", "rule": null, "remedy": serde_json::to_value(Remedy::said("look at it")).unwrap()});
        agent.host.state.write_json(Path::new("rollback.json"), &record, Attributes::mode(0o600)).unwrap();
        drop(agent);
        let (mut agent, report) = open_in(dir.path(), GIVEN, &document).await;
        Rc::make_mut(&mut agent.host).settings.deploy.groups = None;
        let change = agent.collector.poll_once().await;
        agent.received(change);
        agent.withdraw_unlisted(&BTreeSet::new());
        assert_eq!(agent.ledger.journal.get("update").unwrap().state, DeploymentState::Running, "it is not withdrawn");
        agent.resume_rollback();
        agent.decide().unwrap();
        assert_eq!(agent.node_task.bring_up.about().map(String::as_str), Some("update"));
        // How that ends is a matter for a machine with systemd; here what failed is all that is known.
        while agent.node_task.bring_up.is_busy() {
            agent.turn().await;
        }
        let current = agent.ledger.generations.current().unwrap().clone();
        assert_eq!((current.number, current.state), (2, GenerationState::Rejected));
        assert!(current.reason.unwrap().why().contains("no answer"));
        assert!(report.events().iter().any(|event| event.code == Code::NodeFailed));
        // Once, and whoever is newer comes next.
        agent.resume_rollback();
        assert!(!agent.node_task.bring_up.is_busy());
        agent.collector.poll_once().await;
        agent.decide().unwrap();
        assert_eq!(agent.node_task.bring_up.about().map(String::as_str), (!listed.is_empty()).then_some("newer"));
    }
}

#[tokio::test]
async fn a_wait_condition_that_is_never_signalled_is_noted_and_fails_no_deployment() {
    let document = json!({"deployments": [deployment("node", &[])]});
    let (dir, _, records) = pass(GIVEN, &document).await;
    let (mut agent, _) = open_in(dir.path(), GIVEN, &document).await;
    let about = SignalSubject { id: records[0].id.clone(), name: "node".into(), resource: None, result: false };
    let to = Destination::Url { url: "http://192.0.2.1/".into(), verb: "PUT".into(), insecure: false };
    let entry = QueuedSignal::new("wait".into(), Some(about), to, json!({}), agent.host.clock.now());
    let sent = |agent: &mut Agent, disposition| agent.sent((vec![(entry.clone(), disposition)], Ok(())));
    let note = |agent: &Agent| agent.ledger.journal.get("id-node").unwrap().notes().unwrap().to_owned();
    let (before, delivered) = (note(&agent), Disposition::Delivered);
    sent(&mut agent, delivered);
    assert_eq!(note(&agent), before);
    sent(&mut agent, Disposition::Undeliverable("the answer was 403".into()));
    agent.ledger.journal.signalled("id-node", None).unwrap();
    assert_eq!(note(&agent), "Heat refused the signal to the wait condition: the answer was 403");
    assert!(!agent.ledger.journal.get("id-node").unwrap().undelivered);
}

/// Attack: a wait condition's signal whose file was lost while the agent was down was neither sent nor named.
#[tokio::test]
async fn a_wait_conditions_signal_that_is_gone_after_a_restart_is_noted_once() {
    let document = json!({"deployments": [deployment("node", &[])]});
    let (dir, _, records) = pass(GIVEN, &document).await;
    let id = records[0].id.clone();
    let (mut agent, _) = open_in(dir.path(), GIVEN, &document).await;
    let about = SignalSubject { id: id.clone(), name: "node".into(), resource: None, result: false };
    let to = Destination::Url { url: "http://192.0.2.1/".into(), verb: "PUT".into(), insecure: false };
    let entry = QueuedSignal::new("wait".into(), Some(about), to, json!({}), agent.host.clock.now());
    agent.ledger.outbox.put(entry).unwrap();
    agent.ledger.journal.keep_wait_signal(&id, "wait".into()).unwrap();
    drop(agent);
    let lost = |report: &Report| report.events().iter().filter(|event| event.code == Code::OutboxEntryCorrupt).count();
    // It is there.
    let (mut agent, report) = open_in(dir.path(), GIVEN, &document).await;
    agent.ledger.store_missing_signals();
    assert_eq!(lost(&report), 0);
    agent.ledger.outbox.discard_for(&id).unwrap();
    drop(agent);
    let is_named = |agent: &Agent| {
        let notes = agent.ledger.journal.get(&id).unwrap().notes();
        notes.is_some_and(|notes| notes.contains("was lost: `heat-node-agent rerun`"))
    };
    // Where it cannot be recorded, the agent starts all the same, and tries again.
    let key = crate::digest::key_of(&id);
    let in_the_way = Path::new("state/deployments").join(format!(".{key}.json.hna-new"));
    let tree = Tree::open(dir.path()).unwrap();
    tree.create_dir_all(&in_the_way.join("x"), Attributes::mode(0o700)).unwrap();
    let (mut agent, report) = open_in(dir.path(), GIVEN, &document).await;
    agent.ledger.store_missing_signals();
    assert_eq!((lost(&report), is_named(&agent), agent.ledger.unstored.is_paused()), (0, false, true));
    assert!(!agent.trouble.is_paused());
    tree.remove_dir_all(&in_the_way).unwrap();
    agent.ledger.store_missing_signals();
    assert!(!is_named(&agent), "not at each turn");
    agent.ledger.unstored = crate::daemon::agent::failure_pause::FailurePause::new(Rc::clone(&agent.host));
    agent.ledger.store_missing_signals();
    assert_eq!((lost(&report), is_named(&agent)), (1, true));
    drop(agent);
    let (mut agent, report) = open_in(dir.path(), GIVEN, &document).await;
    agent.ledger.store_missing_signals();
    assert_eq!((lost(&report), is_named(&agent)), (0, true));
    // Heat lists the deployment no more for one answer: what was lost stays lost.
    let withdraw = |agent: &mut Agent| {
        let record = agent.ledger.journal.get(&id).unwrap().clone();
        agent.ledger.mark_withdrawn(&record, "Heat does not list it").unwrap();
    };
    withdraw(&mut agent);
    agent.ledger.take_back(&id).unwrap();
    assert!(is_named(&agent));
    // One that is lost meanwhile is named when the deployment is back.
    agent.ledger.journal.keep_wait_signal(&id, "wait".into()).unwrap();
    withdraw(&mut agent);
    agent.ledger.store_missing_signals();
    assert_eq!((lost(&report), is_named(&agent)), (0, false));
    agent.ledger.take_back(&id).unwrap();
    agent.ledger.store_missing_signals();
    assert_eq!((lost(&report), is_named(&agent)), (1, true));
}

#[tokio::test]
async fn what_heat_took_is_not_sent_again_because_it_could_not_be_recorded() {
    let document = json!({"deployments": [deployment("late", &[("deploy_signal_id", "http://192.0.2.1/")])]});
    let (dir, tree) = (tempfile::tempdir().unwrap(), |dir: &Path| Tree::open(dir).unwrap());
    let (mut agent, _) = open_in(dir.path(), GIVEN, &document).await;
    let entry = document["deployments"][0].clone();
    agent.ledger.register(&Deployment::parse(&entry).unwrap().unwrap(), None).unwrap();
    agent.ledger.end("id-late", DeploymentOutcome::default()).unwrap();
    let sent = agent.ledger.outbox.waiting().remove(0);
    agent.ledger.outbox.discard_for("id-late").unwrap();
    // Nothing can be renamed over a directory.
    let path = Path::new("state/deployments").join(format!("{}.json", agent.ledger.journal.get("id-late").unwrap().key()));
    tree(dir.path()).remove(&path).unwrap();
    tree(dir.path()).create_dir(&path, Attributes::mode(0o700)).unwrap();
    agent.sent((vec![(sent, Disposition::Delivered)], Ok(())));
    assert!(agent.trouble.is_paused());
    agent.ledger.store_missing_signals();
    assert!(agent.ledger.outbox.waiting().is_empty());
    tree(dir.path()).remove_dir_all(&path).unwrap();
    agent.retry_unrecorded();
    agent.ledger.store_missing_signals();
    assert_eq!(
        (agent.ledger.journal.get("id-late").unwrap().state, agent.ledger.outbox.waiting().len()),
        (DeploymentState::Signalled, 0)
    );
}

/// Attack: while the state directory was full, an end that could not be recorded was reported every few seconds.
#[tokio::test]
async fn an_end_is_reported_once_and_after_it_was_recorded() {
    let dir = tempfile::tempdir().unwrap();
    let mut script = deployment("s", &[]);
    (script["group"], script["config"]) = (json!("script"), json!("#!/bin/sh\n"));
    let (mut agent, report) = open_in(dir.path(), GIVEN, &json!({"deployments": [script]})).await;
    Rc::make_mut(&mut agent.host).settings.deploy.groups = None;
    agent.collector.poll_once().await;
    agent.decide().unwrap();
    let record = agent.ledger.journal.get("id-s").unwrap().clone();
    let result = Path::new("work").join(record.job()).join(crate::programs::RESULT);
    agent.host.state.write_json(&result, &JobResult::default(), Attributes::mode(0o600)).unwrap();
    let in_the_way = Path::new("deployments").join(format!(".{}.json.hna-new", record.key()));
    agent.host.state.create_dir(&in_the_way, Attributes::mode(0o700)).unwrap();
    let count = |code| report.events().iter().filter(|event| event.code == code).count();
    let ends = async |agent: &mut Agent| {
        let (id, ran) = agent.job_task.ended().await;
        agent.job_ended(&id, ran);
    };
    for _ in 0..3 {
        ends(&mut agent).await;
        agent.decide().unwrap();
    }
    assert_eq!((count(Code::DeploymentSucceeded), count(Code::DeploymentReattached)), (0, 1));
    std::fs::remove_dir(dir.path().join("state").join(in_the_way)).unwrap();
    ends(&mut agent).await;
    assert_eq!((count(Code::DeploymentSucceeded), count(Code::DeploymentReattached)), (1, 1));
}

#[tokio::test]
async fn a_result_that_cannot_be_stored_holds_nothing_else_up() {
    let signal = [("deploy_signal_id", "http://192.0.2.1/")];
    let document =
        json!({"deployments": [deployment("first", &signal), deployment("next", &signal), deployment("other", &signal)]});
    let (dir, entries) = (tempfile::tempdir().unwrap(), document["deployments"].as_array().unwrap());
    let (mut agent, report) = open_in(dir.path(), GIVEN, &document).await;
    let key = crate::digest::key_of(&super::super::view::result_key("id-first"));
    let in_the_way = Path::new("outbox").join(format!(".{key}.json.hna-new"));
    agent.host.state.create_dir(&in_the_way, Attributes::mode(0o700)).unwrap();
    agent.collector.poll_once().await;
    for entry in &entries[..2] {
        agent.ledger.register(&Deployment::parse(entry).unwrap().unwrap(), None).unwrap();
        agent.ledger.journal.finish(entry["id"].as_str().unwrap(), DeploymentOutcome::default()).unwrap();
    }
    agent.decide().unwrap();
    let stored = |agent: &Agent| {
        ["id-first", "id-next", "id-other"].map(|id| agent.ledger.outbox.has(&super::super::view::result_key(id)))
    };
    // The third one is refused by this very turn.
    assert_eq!((stored(&agent), agent.trouble.is_paused()), ([false, true, true], false));
    let reported = |event: &Event| event.message.contains("storing the result of deployment first");
    assert!(report.events().iter().filter(|event| reported(event)).count() == 1 && agent.ledger.unstored.condition().is_some());
    agent.host.state.remove_dir_all(&in_the_way).unwrap();
    agent.decide().unwrap();
    assert_eq!(stored(&agent), [false, true, true], "not at each turn");
    agent.ledger.unstored = crate::daemon::agent::failure_pause::FailurePause::new(Rc::clone(&agent.host));
    agent.decide().unwrap();
    assert_eq!(stored(&agent), [true; 3]);
}

/// Attack: a script larger than the space of /var/lib/heat-config was tried forever, and Heat heard nothing.
#[tokio::test]
async fn a_script_that_finds_no_space_for_its_files_fails_in_time() {
    let document = json!({"deployments": [deployment("large", &[("deploy_signal_id", "http://192.0.2.1/")])]});
    let (dir, entry) = (tempfile::tempdir().unwrap(), document["deployments"][0].clone());
    let (mut agent, report) = open_in(dir.path(), GIVEN, &document).await;
    agent.ledger.register(&Deployment::parse(&entry).unwrap().unwrap(), None).unwrap();
    agent.ledger.journal.start("id-large", entry).unwrap();
    let job = Path::new("work").join(agent.ledger.journal.get("id-large").unwrap().job());
    agent.host.state.create_dir(&job, Attributes::mode(0o700)).unwrap();
    let why = json!({"cause": "it was not started, because there is no space for its files: ENOSPC", "remedy": "make room"});
    let postponed = |agent: &mut Agent| {
        let error = Error::transient(why["cause"].as_str().unwrap()).remedy("make room");
        agent.job_ended("id-large", Err(error));
        agent.ledger.journal.get("id-large").unwrap().state
    };
    let long_ago = |agent: &mut Agent, minutes: u64| {
        let path = Path::new("deployments").join(format!("{}.json", crate::digest::key_of("id-large")));
        let mut record: Value = agent.host.state.read_json(&path).unwrap().unwrap();
        record["seen"] = json!(agent.host.clock.now().0 - minutes * 60_000);
        agent.host.state.write_json(&path, &record, Attributes::mode(0o600)).unwrap();
        let (state, deployed) = (Arc::clone(&agent.host.state), agent.host.settings.deploy.deployed_dir.clone());
        agent.ledger.journal = deploy::Journal::open(state, Some(&deployed), 9, agent.host.clock.clone(), &report).unwrap();
    };
    long_ago(&mut agent, 120);
    // Another trouble than that is none of the script's.
    for _ in 0..9 {
        assert_eq!(postponed(&mut agent), DeploymentState::Running);
    }
    agent.host.state.write_json(&job.join("postponed.json"), &why, Attributes::mode(0o600)).unwrap();
    long_ago(&mut agent, 45);
    for _ in 0..9 {
        assert_eq!(postponed(&mut agent), DeploymentState::Running, "space may come");
    }
    let condition = agent.trouble.condition().unwrap();
    assert!(condition.cause.as_ref().unwrap().contains("running deployment large"), "{condition:?}");
    long_ago(&mut agent, 51);
    assert_eq!(postponed(&mut agent), DeploymentState::Finished);
    let record = agent.ledger.journal.get("id-large").unwrap();
    let reason = record.outcome.as_ref().unwrap().reason.clone().unwrap().to_string();
    assert!(
        reason.starts_with("HNA-0414 ") && reason.contains("no space for its files") && reason.contains("make room"),
        "{reason}"
    );
    assert_eq!(agent.ledger.outbox.waiting().len(), 1);
    assert!(report.events().iter().any(|event| event.code == Code::DeploymentNotStarted));
}

/// Attack: `run --once` succeeded with metadata whose list of deployments is no list.
#[tokio::test]
async fn a_pass_with_metadata_that_cannot_be_understood_fails() {
    for (deployments, is_good) in [(json!("none"), false), (json!([]), true), (Value::Null, true)] {
        let dir = tempfile::tempdir().unwrap();
        let (agent, report) = open_in(dir.path(), GIVEN, &json!({"deployments": deployments})).await;
        let code = Box::pin(agent.run_once()).await.unwrap();
        assert_eq!(code == std::process::ExitCode::SUCCESS, is_good, "{deployments}");
        assert_eq!(report.events().iter().any(|event| event.code == Code::MetadataPartInvalid), !is_good);
    }
}

#[tokio::test]
async fn an_expired_url_is_signed_with_the_keys_of_the_metadata() {
    let forbidden = status("403 Forbidden", "<Message>User is not authorized to perform action</Message>");
    let fake = Fake::start(vec![forbidden, ok("")]).await;
    let arn = "arn%3Aopenstack%3Aheat%3A%3Ap%3Astacks/s/0a1b/resources/late";
    let cfn = json!({"metadata_url": format!("{}/v1/", fake.base), "access_key_id": "AK", "secret_access_key": "hush"});
    let url = format!("{}/v1/signal/{arn}?Signature=hush", fake.base);
    let deployments = [deployment("late", &[("deploy_signal_id", &url), ("deploy_signal_verb", "POST")])];
    let (_dir, events, records) = pass(GIVEN, &json!({"os-collect-config": {"cfn": cfn}, "deployments": deployments})).await;
    assert!(fake.requests()[1].starts_with(&format!("POST /v1/signal/{arn}?AWSAccessKeyId=AK&")));
    assert_eq!((records[0].state, records[0].note.as_deref()), (DeploymentState::Signalled, None));
    assert!(events.iter().any(|event| event.code == Code::SignalFallback));
    assert!(!format!("{events:?}").contains("hush"));
}

#[tokio::test]
async fn a_server_that_polls_heat_with_a_token_signals_with_the_same_one() {
    let fake = Fake::start(vec![ok("")]).await;
    let heat = json!({"auth_url": format!("{}/v3", fake.base), "user_id": "u", "password": "hush", "project_id": "p", "stack_id": "s/0a1b",
        "resource_name": "server", "region_name": null});
    let boot = json!({"os-collect-config": {"collectors": ["heat"], "heat": heat}, "deployments": []});
    let url = format!("{}/v1/signal/arn%3Aopenstack%3Aheat%3A%3Ap%3Astacks/s/0a1b/resources/late?Signature=hush", fake.base);
    let mut newest = boot.clone();
    newest["deployments"] = json!([deployment("late", &[("deploy_signal_id", &url), ("deploy_signal_verb", "POST")])]);
    let metadata = json!({ "metadata": newest }).to_string();
    fake.play(vec![token("tok", &fake.base), ok(metadata.clone()), ok(metadata), status("403 Forbidden", ""), ok("null")]);
    let (_dir, events, records) = pass(BOOT, &boot).await;
    let seen: Vec<String> =
        fake.requests().iter().map(|request| request.split(['?', '\r']).next().unwrap().replace(" HTTP/1.1", "")).collect();
    let expected = [
        "POST /v3/auth/tokens",
        "GET /v1/p/stacks/s/0a1b/resources/server/metadata",
        // The first answer is older than the result.
        "GET /v1/p/stacks/s/0a1b/resources/server/metadata",
        "POST /v1/signal/arn%3Aopenstack%3Aheat%3A%3Ap%3Astacks/s/0a1b/resources/late",
        "POST /v1/p/stacks/s/0a1b/resources/late/signal",
    ];
    assert_eq!(seen, expected);
    assert!(fake.requests()[4].contains("x-auth-token: tok\r\n"));
    assert_eq!((records[0].state, records[0].note.as_deref()), (DeploymentState::Signalled, None));
    assert!(events.iter().any(|event| event.code == Code::SignalFallback));
}

#[tokio::test]
async fn a_temporary_url_of_a_changed_deployment_is_not_written_in_the_second_of_the_change() {
    let put = |name: &str, action: &str| {
        let signal = [("deploy_signal_id", "http://192.0.2.1/v1/AUTH_p/c/o?temp_url_sig=x"), ("deploy_signal_verb", "PUT")];
        let mut entry = deployment(name, &signal);
        entry["inputs"][0]["value"] = json!(action);
        entry
    };
    let document = json!({"deployments": [put("made", "CREATE"), put("changed", "UPDATE")]});
    let dir = tempfile::tempdir().unwrap();
    let (mut agent, _) = open_in(dir.path(), GIVEN, &document).await;
    agent.collector.poll_once().await;
    agent.decide().unwrap();
    let held = |name: &str| {
        let entries = agent.ledger.outbox.waiting();
        entries.iter().find(|entry| entry.about.as_ref().unwrap().name == name).unwrap().not_before
    };
    let seen = agent.ledger.journal.get("id-changed").unwrap().seen;
    // To the millisecond by two clocks.
    assert_eq!((held("made"), held("changed").since(seen).as_millis() > 1_990), (Timestamp(0), true));
    agent.ledger.sending.clear();
    let idle = agent.is_idle();
    assert!(!idle || agent.host.clock.now() >= held("changed"), "a single pass waits for it");
}

/// With a wait condition that nobody answers for: its signal is that of the parameters in force, or gone.
#[tokio::test]
async fn what_the_file_said_before_is_forgotten_with_its_signal_and_may_be_asked_for_anew() {
    let dir = tempfile::tempdir().unwrap();
    let (tree, path) = (Tree::open(dir.path()).unwrap(), Path::new(crate::collect::HEAT_PARAMS));
    tree.create_dir_all(path.parent().unwrap(), Attributes::mode(0o755)).unwrap();
    let mut ids = Vec::new();
    for (role, is_news) in [("master", true), ("master", false), ("minion", true), ("master", true)] {
        let text = format!("ROLE={role}\nWAIT_HANDLE=http://127.0.0.1:9/v1/waitcondition/a\n");
        tree.write(path, text.as_bytes(), Attributes::mode(0o600)).unwrap();
        let (agent, report) = open_with(dir.path(), BOOT, &json!({}), NodeSource::HeatParams).await;
        let (events, records) = run(agent, report).await;
        let refused = events.iter().filter(|event| event.code == Code::DeploymentForbidden).count();
        assert_eq!((refused, records.len()), (usize::from(is_news), 1), "{role}: {events:?}");
        let signals = std::fs::read_dir(dir.path().join("state/outbox")).unwrap();
        let texts: Vec<String> = signals.map(|entry| std::fs::read_to_string(entry.unwrap().path()).unwrap()).collect();
        assert!(texts.len() == 1 && texts[0].contains(&records[0].id), "{texts:?}");
        ids.push(records[0].id.clone());
    }
    assert!(ids[0] == ids[1] && ids[1] != ids[2] && ids[2] != ids[3] && ids[0] == ids[3], "{ids:?}");
}

/// Review: what the replaced tools had run was refused, and Heat heard of a failure, where this image does not permit its group.
#[tokio::test]
async fn what_was_run_before_is_not_refused() {
    let dir = tempfile::tempdir().unwrap();
    let tree = Tree::open(dir.path()).unwrap();
    tree.create_dir_all(Path::new("deployed"), Attributes::mode(0o700)).unwrap();
    for name in ["id-old.json", "id-old.notify.json"] {
        tree.write(&Path::new("deployed").join(name), b"{}", Attributes::mode(0o600)).unwrap();
    }
    let both = json!({"deployments": [deployment("old", &[]), deployment("new", &[])]});
    let (agent, report) = open_with(dir.path(), BOOT, &both, NodeSource::Deployment).await;
    let (events, records) = run(agent, report).await;
    let mut failed: Vec<_> = records.iter().map(|record| (record.name.as_str(), record.failed())).collect();
    failed.sort_unstable();
    assert_eq!(failed, [("new", true), ("old", false)], "{records:?}");
    assert_eq!(events.iter().filter(|event| event.code == Code::DeploymentForbidden).count(), 1);
}

#[tokio::test]
async fn where_the_file_configures_the_node_heat_hears_so_of_its_own_deployment() {
    let dir = tempfile::tempdir().unwrap();
    let node =
        json!({"id": "a", "name": "n", "group": "kubernetes-node", "inputs": [{"name": "deploy_action", "value": "CREATE"}]});
    let (agent, report) = open_with(dir.path(), BOOT, &json!({"deployments": [node]}), NodeSource::HeatParams).await;
    let (_, records) = run(agent, report).await;
    let outcome = records[0].outcome.as_ref().unwrap().reason.as_ref().unwrap().to_string();
    assert!(records.len() == 1 && outcome.contains("the node is configured by /etc/sysconfig/heat-params"), "{outcome}");
}
