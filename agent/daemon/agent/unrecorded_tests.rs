//! A node's failure while its record cannot be written, with a scripted Heat.

use std::path::PathBuf;

use futures_util::StreamExt as _;

use super::freshness::{asked, lists, open_at, run_of};
use super::*;
use crate::daemon::node::Wait;
use crate::report::reason::FailureReason;
use crate::signal::{Handle, WaitSignal, WaitStatus};

/// Writes fail there as on a full disk: nothing can be made over a directory.
struct Obstacle {
    tree: Tree,
    path: PathBuf,
    kept: Option<Vec<u8>>,
}

impl Obstacle {
    fn at(dir: &Path, path: &str) -> Self {
        let (tree, path) = (Tree::open(&dir.join("state")).unwrap(), PathBuf::from(path));
        let kept = tree.read(&path, 1 << 20).unwrap();
        tree.remove(&path).unwrap();
        tree.create_dir(&path, Attributes::mode(0o700)).unwrap();
        Self { tree, path, kept }
    }

    fn goes(self) {
        self.tree.remove_dir_all(&self.path).unwrap();
        if let Some(kept) = self.kept {
            self.tree.write(&self.path, &kept, Attributes::mode(0o600)).unwrap();
        }
    }
}

/// A minion's deployment whose result and wait condition go to `base`.
fn minion(base: &str, n: u32, created: &str) -> Value {
    let mut node = run_of(base, "n", n);
    let config = json!({"ROLE": "minion", "KUBE_MASTER_IP": "192.0.2.1", "KUBE_NODE_IP": "192.0.2.2", "TLS_DISABLED": true,
        "WAIT_TIMEOUT": 600, "WAIT_HANDLE": format!("{base}/wait")});
    (node["group"], node["config"], node["creation_time"]) = (json!("kubernetes-node"), config, json!(created));
    node
}

/// A master's deployment of this action.
fn master(base: &str, action: &str) -> Value {
    let mut node = run_of(base, "m", 1);
    let config = json!({"ROLE": "master", "INSTANCE_NAME": "m", "KUBE_NODE_IP": "192.0.2.2", "TLS_DISABLED": true});
    (node["group"], node["config"], node["inputs"][0]["value"]) = (json!("kubernetes-node"), config, json!(action));
    node["id"] = json!(format!("id-{action}"));
    node
}

fn failed(base: &str) -> Done {
    let signal = WaitSignal { status: WaitStatus::Failure, id: "n".into(), reason: "etcd died".into(), data: Value::Null };
    let wait = Wait { handle: Handle::parse(&json!(format!("{base}/wait"))).unwrap(), signal };
    Done {
        outcome: DeploymentOutcome::refused(FailureReason::from("etcd died")),
        step_timings: Vec::new(),
        wait: Some(wait),
        changed_machine: true,
        restored: false,
    }
}

/// Waits until the node is in place, or is not, and takes that in.
async fn bring_up_ends(agent: &mut Agent) {
    let (id, done) = agent.node_task.bring_up.ended().await;
    agent.node_ended(&id, done);
}

/// Polls, and sends what may be sent, whatever cannot be begun.
async fn poll(agent: &mut Agent, fake: &Fake, deployments: &[Value]) {
    fake.play(vec![lists(&fake.base, deployments)]);
    let change = agent.collector.poll_once().await;
    agent.received(change);
    if let Err(error) = agent.decide() {
        agent.trouble.record("processing the deployments", &error);
    }
    fake.play(vec![ok("")]);
    while let Some(sent) = agent.ledger.sending.next().await {
        agent.sent(sent);
    }
}

fn signals(fake: &Fake) -> Vec<String> {
    let mut signals: Vec<_> = asked(fake).into_iter().filter(|line| !line.starts_with("GET")).collect();
    signals.sort_unstable();
    signals
}

/// Attack: the state directory had become read-only when an update had failed: Heat heard nothing for as long as it stayed so.
#[tokio::test]
async fn heat_hears_of_a_node_that_failed_although_that_cannot_be_recorded_and_once() {
    let fake = Fake::start(vec![ok("")]).await;
    for path in ["node.json", "deployments"] {
        let dir = tempfile::tempdir().unwrap();
        let before = signals(&fake).len();
        let node = [minion(&fake.base, 1, "2026-03-01T12:00:01Z")];
        let mut agent = open_at(dir.path(), &fake, &[]).await;
        poll(&mut agent, &fake, &node).await;
        assert!(agent.node_task.bring_up.is_busy(), "{path}");
        agent.node_task.bring_up.stop();
        let record = agent.ledger.journal.get("id-n1").cloned().unwrap();
        let path = if path == "deployments" { format!("{path}/{}.json", crate::digest::key_of(&record.id)) } else { path.into() };
        let obstacle = Obstacle::at(dir.path(), &path);
        agent.node_ended("id-n1", failed(&fake.base));
        assert!(agent.trouble.is_paused(), "{path}: it is said");
        for _ in 0..5 {
            poll(&mut agent, &fake, &node).await;
        }
        let sent = signals(&fake);
        assert_eq!(sent.iter().filter(|line| line.starts_with("PUT")).count() * 2, sent.len(), "{path}: {sent:?}");
        assert_eq!(sent.len(), before + 2, "{path}: {sent:?}");
        assert!(fake.requests().iter().any(|request| request.contains("etcd died")), "{path}");
        assert!(!agent.node_task.bring_up.is_busy(), "{path}: nothing is begun with the node");
        assert_eq!(agent.ledger.journal.get("id-n1").unwrap().state, DeploymentState::Running, "{path}");
        obstacle.goes();
        agent.retry_unrecorded();
        poll(&mut agent, &fake, &node).await;
        poll(&mut agent, &fake, &node).await;
        let record = agent.ledger.journal.get("id-n1").cloned().unwrap();
        assert_eq!((record.state, record.failed()), (DeploymentState::Signalled, true), "{path}");
        assert_eq!((record.wait_signal, record.wait_note), (None, None), "{path}");
        assert_eq!(agent.ledger.generations.current().unwrap().state, GenerationState::Rejected, "{path}");
        assert_eq!(signals(&fake).len(), before + 2, "{path}: nothing is sent twice");
        assert!(agent.ledger.outbox.is_empty() && !agent.node_task.bring_up.is_busy(), "{path}");
    }
}

/// Review: a node that came up, and whose end could not be recorded, was brought up again, or failed by its time being over.
#[tokio::test]
async fn heat_hears_of_a_node_that_came_up_although_that_cannot_be_recorded() {
    let fake = Fake::start(vec![ok("")]).await;
    let dir = tempfile::tempdir().unwrap();
    let mut agent = open_at(dir.path(), &fake, &[]).await;
    let created = Timestamp(agent.host.clock.now().0 - 590_000).rfc3339();
    let node = [minion(&fake.base, 1, &created)];
    poll(&mut agent, &fake, &node).await;
    agent.node_task.bring_up.stop();
    let obstacle = Obstacle::at(dir.path(), "node.json");
    let Done { wait, .. } = failed(&fake.base);
    let wait = wait.map(|wait| Wait { signal: WaitSignal { status: WaitStatus::Success, ..wait.signal }, ..wait });
    agent.node_ended("id-n1", Done { outcome: DeploymentOutcome::default(), wait, ..failed(&fake.base) });
    for _ in 0..5 {
        poll(&mut agent, &fake, &node).await;
        assert!(!agent.node_task.bring_up.is_busy());
    }
    let both = ["POST /signal/n1", "PUT /wait"];
    assert_eq!(signals(&fake), both);
    assert!(!fake.requests().iter().any(|request| request.contains("FAILURE")), "{:?}", fake.requests());
    obstacle.goes();
    agent.retry_unrecorded();
    poll(&mut agent, &fake, &node).await;
    let record = agent.ledger.journal.get("id-n1").unwrap();
    assert_eq!((record.state, record.failed()), (DeploymentState::Signalled, false));
    assert_eq!(agent.ledger.generations.current().unwrap().state, GenerationState::Applied);
    assert_eq!(signals(&fake), both, "nothing is sent twice");
}

/// Attack: an update came while the disk was full, and Heat's timeout was the first news of that.
#[tokio::test]
async fn a_node_that_cannot_be_begun_in_its_time_fails_by_what_keeps_it_from_that() {
    let fake = Fake::start(vec![ok("")]).await;
    for (ago, heard) in [(Duration::from_mins(1), false), (Duration::from_secs(590), true), (Duration::from_hours(2), false)] {
        let dir = tempfile::tempdir().unwrap();
        let before = signals(&fake).len();
        let mut agent = open_at(dir.path(), &fake, &[]).await;
        let now = agent.host.clock.now();
        let created = Timestamp(now.0 - u64::try_from(ago.as_millis()).unwrap()).rfc3339();
        let node = [minion(&fake.base, 1, &created)];
        let obstacle = Obstacle::at(dir.path(), &format!("deployments/{}.json", crate::digest::key_of("id-n1")));
        for _ in 0..5 {
            poll(&mut agent, &fake, &node).await;
        }
        let sent = signals(&fake).len() - before;
        assert_eq!(sent, if heard { 2 } else { 0 }, "{ago:?}: {:?}", signals(&fake));
        obstacle.goes();
        agent.retry_unrecorded();
        poll(&mut agent, &fake, &node).await;
        let record = agent.ledger.journal.get("id-n1").cloned().unwrap();
        assert_eq!(agent.node_task.bring_up.is_busy(), !heard, "{ago:?}");
        assert_eq!(record.failed(), heard, "{ago:?}");
        if heard {
            assert_eq!(record.state, DeploymentState::Signalled);
            assert_eq!(signals(&fake).len() - before, 2, "nothing is sent twice");
            assert!(fake.requests().last().is_some());
        }
    }
}

/// Heat gives one update up and asks for the next while nothing can be recorded: it hears of both.
#[tokio::test]
async fn each_update_that_cannot_be_begun_in_its_time_is_heard_of() {
    let fake = Fake::start(vec![ok("")]).await;
    let dir = tempfile::tempdir().unwrap();
    let mut agent = open_at(dir.path(), &fake, &[]).await;
    let created = Timestamp(agent.host.clock.now().0 - 590_000).rfc3339();
    let key = |n: u32| format!("deployments/{}.json", crate::digest::key_of(&format!("id-n{n}")));
    let obstacles = [1, 2].map(|n| Obstacle::at(dir.path(), &key(n)));
    for n in [1, 2] {
        for _ in 0..5 {
            poll(&mut agent, &fake, &[minion(&fake.base, n, &created)]).await;
        }
    }
    let both = ["POST /signal/n1", "POST /signal/n2", "PUT /wait", "PUT /wait"];
    assert_eq!(signals(&fake), both);
    obstacles.into_iter().for_each(Obstacle::goes);
    agent.retry_unrecorded();
    poll(&mut agent, &fake, &[minion(&fake.base, 2, &created)]).await;
    assert_eq!(signals(&fake), both, "nothing is sent twice");
    let state = |id: &str| agent.ledger.journal.get(id).map(|record| (record.state, record.failed()));
    assert_eq!(
        (state("id-n1"), state("id-n2")),
        (Some((DeploymentState::Signalled, true)), Some((DeploymentState::Signalled, true)))
    );
}

/// What was held in memory is stored with the record, and sent by the next run of the agent.
#[tokio::test]
async fn a_failure_that_could_not_be_sent_either_outlives_the_agent_once_it_is_recorded() {
    let fake = Fake::start(vec![ok("")]).await;
    let dir = tempfile::tempdir().unwrap();
    let node = [minion(&fake.base, 1, "2026-03-01T12:00:01Z")];
    let mut agent = open_at(dir.path(), &fake, &[]).await;
    poll(&mut agent, &fake, &node).await;
    agent.node_task.bring_up.stop();
    let obstacle = Obstacle::at(dir.path(), "node.json");
    agent.node_ended("id-n1", failed(&fake.base));
    assert_eq!(agent.ledger.outbox.waiting().len(), 2);
    obstacle.goes();
    agent.retry_unrecorded();
    drop(agent);
    let mut agent = open_at(dir.path(), &fake, &[]).await;
    assert_eq!(agent.ledger.outbox.waiting().len(), 2);
    for _ in 0..5 {
        poll(&mut agent, &fake, &node).await;
    }
    assert_eq!(signals(&fake), ["POST /signal/n1", "PUT /wait"]);
}

/// Attack: an update that waited for a disk and was broken off left a node that nobody repaired, whose certificates nobody renewed.
#[tokio::test]
async fn an_update_that_is_broken_off_before_its_first_change_leaves_the_node_whole() {
    let fake = Fake::start(vec![ok("")]).await;
    let created = "2026-03-01T12:00:01Z";
    let other = |n: u32, proxy: &str| {
        let mut node = minion(&fake.base, n, created);
        node["config"]["HTTP_PROXY"] = json!(proxy);
        node
    };
    for has_changed in [false, true] {
        for next in [vec![], vec![other(3, "x y")], vec![other(3, "http://192.0.2.4:3128")]] {
            let dir = tempfile::tempdir().unwrap();
            let mut agent = open_at(dir.path(), &fake, &[]).await;
            poll(&mut agent, &fake, &[minion(&fake.base, 1, created)]).await;
            agent.node_task.bring_up.stop();
            agent.node_ended("id-n1", Done { outcome: DeploymentOutcome::default(), wait: None, ..failed(&fake.base) });
            poll(&mut agent, &fake, &[other(2, "http://192.0.2.3:3128")]).await;
            assert!(agent.node_task.bring_up.is_busy());
            if has_changed {
                let mark = b"{\"generation\": 2}";
                agent.host.state.write(Path::new("changed.json"), mark, Attributes::mode(0o600)).unwrap();
            }
            if !next.is_empty() {
                // What this one replaced cannot be forgotten at first.
                let obstacle = Obstacle::at(dir.path(), "replaced.json");
                poll(&mut agent, &fake, &next).await;
                obstacle.goes();
                agent.retry_unrecorded();
            }
            for _ in 0..2 {
                poll(&mut agent, &fake, &next).await;
            }
            if agent.node_task.bring_up.is_busy() {
                agent.node_task.bring_up.stop();
                agent.node_ended("id-n3", Done { changed_machine: false, ..failed(&fake.base) });
            }
            let current = agent.ledger.generations.current().unwrap();
            let in_place = if has_changed { None } else { Some(1) };
            assert_eq!((current.state, current.in_place()), (GenerationState::Rejected, in_place), "{has_changed} {next:?}");
        }
    }
}

/// Attack: an agent that was killed right before it forgot what the update had replaced left that on disk for good, others' secrets among it.
#[tokio::test]
async fn what_an_update_replaced_is_forgotten_by_the_next_agent_too() {
    let fake = Fake::start(vec![ok("")]).await;
    let dir = tempfile::tempdir().unwrap();
    let created = "2026-03-01T12:00:01Z";
    let mut second = minion(&fake.base, 2, created);
    second["config"]["HTTP_PROXY"] = json!("http://192.0.2.3:3128");
    let mut agent = open_at(dir.path(), &fake, &[]).await;
    poll(&mut agent, &fake, &[minion(&fake.base, 1, created)]).await;
    agent.node_task.bring_up.stop();
    agent.node_ended("id-n1", Done { outcome: DeploymentOutcome::default(), wait: None, ..failed(&fake.base) });
    poll(&mut agent, &fake, &[second.clone()]).await;
    agent.node_task.bring_up.stop();
    let obstacle = Obstacle::at(dir.path(), "replaced.json");
    agent.node_ended("id-n2", Done { restored: true, ..failed(&fake.base) });
    obstacle.goes();
    let (state, file) = (Arc::clone(&agent.host.state), Path::new("replaced.json"));
    drop(agent);
    state.write(file, b"{\"generation\": 2}", Attributes::mode(0o600)).unwrap();
    let mut agent = open_at(dir.path(), &fake, &[]).await;
    agent.forget_ended_rollback();
    poll(&mut agent, &fake, &[second]).await;
    assert!(!agent.node_task.bring_up.is_busy() && agent.ledger.journal.get("id-n2").unwrap().failed());
    assert_eq!(state.facts(file).unwrap(), None);
    // By the operator's order, from an update that had succeeded.
    let mut third = minion(&fake.base, 3, created);
    third["config"]["HTTP_PROXY"] = json!("http://192.0.2.4:3128");
    poll(&mut agent, &fake, &[third]).await;
    agent.node_task.bring_up.stop();
    agent.node_ended("id-n3", Done { outcome: DeploymentOutcome::default(), wait: None, ..failed(&fake.base) });
    let write = |name: &str| state.write(Path::new(name), b"{\"generation\": 3}", Attributes::mode(0o600)).unwrap();
    write("former.json");
    agent.forget_ended_rollback();
    assert!(state.facts(Path::new("former.json")).unwrap().is_some(), "it is what the operator goes back by");
    agent.ledger.generations.restore().unwrap();
    agent.ledger.generations.put_back(None, Vec::new()).unwrap();
    write("rollback.json");
    drop(agent);
    open_at(dir.path(), &fake, &[]).await.forget_ended_rollback();
    assert!(["former.json", "rollback.json"].iter().all(|name| state.facts(Path::new(name)).unwrap().is_none()));
}

/// Attack: that the first try of a generation had changed the node, before it was rolled back, was taken for its second try's doing.
#[tokio::test]
async fn a_second_try_that_changes_nothing_leaves_a_node_whole_that_was_rolled_back() {
    let fake = Fake::start(vec![ok("")]).await;
    let dir = tempfile::tempdir().unwrap();
    let created = "2026-03-01T12:00:01Z";
    let other = |n: u32| {
        let mut node = minion(&fake.base, n, created);
        node["config"]["HTTP_PROXY"] = json!("http://192.0.2.3:3128");
        node
    };
    let mut agent = open_at(dir.path(), &fake, &[]).await;
    poll(&mut agent, &fake, &[minion(&fake.base, 1, created)]).await;
    agent.node_task.bring_up.stop();
    agent.node_ended("id-n1", Done { outcome: DeploymentOutcome::default(), wait: None, ..failed(&fake.base) });
    poll(&mut agent, &fake, &[other(2)]).await;
    agent.host.state.write(Path::new("changed.json"), b"{\"generation\": 2}", Attributes::mode(0o600)).unwrap();
    agent.node_task.bring_up.stop();
    agent.node_ended("id-n2", Done { restored: true, ..failed(&fake.base) });
    poll(&mut agent, &fake, &[other(3)]).await;
    assert!(agent.node_task.bring_up.is_busy());
    for _ in 0..2 {
        poll(&mut agent, &fake, &[]).await;
    }
    let current = agent.ledger.generations.current().unwrap();
    assert_eq!((current.number, current.state, current.in_place()), (2, GenerationState::Rejected, Some(1)));
}

fn script(base: &str, name: &str) -> Value {
    let mut script = run_of(base, name, 1);
    (script["group"], script["config"]) = (json!("script"), json!("#!/bin/true"));
    script
}

/// Review: with a full state directory a script that was first seen then never failed, and Heat heard nothing.
#[tokio::test]
async fn heat_hears_of_a_script_that_there_is_no_room_for_and_it_does_not_run_later() {
    let fake = Fake::start(vec![ok("")]).await;
    let dir = tempfile::tempdir().unwrap();
    let mut agent = open_at(dir.path(), &fake, &[]).await;
    let obstacle = Obstacle::at(dir.path(), &format!("deployments/{}.json", crate::digest::key_of("id-first1")));
    let both = [script(&fake.base, "first"), script(&fake.base, "next")];
    poll(&mut agent, &fake, &both).await;
    assert!(agent.trouble.is_paused() && agent.job_task.id().is_none(), "it waits, and those behind it do");
    let deployment = Deployment::parse(&both[0]).unwrap().unwrap();
    let full = Error::from(nix::errno::Errno::ENOSPC).context("writing deployments/x.json");
    agent.give_up(&deployment, &full).unwrap();
    poll(&mut agent, &fake, &both).await;
    poll(&mut agent, &fake, &both).await;
    assert_eq!(signals(&fake), ["POST /signal/first1"]);
    assert!(fake.requests().iter().any(|request| request.contains("HNA-0414") && request.contains("ENOSPC")));
    assert_eq!(agent.job_task.id(), Some("id-next1"), "the next one has its turn");
    agent.job_task.ended().await.1.unwrap_err();
    obstacle.goes();
    poll(&mut agent, &fake, &both).await;
    poll(&mut agent, &fake, &both).await;
    let record = agent.ledger.journal.get("id-first1").unwrap();
    assert_eq!((record.state, record.failed(), record.group.as_str()), (DeploymentState::Signalled, true, "script"));
    assert!(agent.ledger.unrecorded_ends.is_empty());
    assert_eq!(signals(&fake), ["POST /signal/first1"], "nothing is sent twice");
    // Where the end can be recorded it is.
    agent.give_up(&Deployment::parse(&both[1]).unwrap().unwrap(), &full).unwrap();
    assert!(agent.ledger.journal.get("id-next1").unwrap().failed() && agent.ledger.unrecorded_ends.is_empty());
}

/// Review: a deletion that could not be recorded was never answered: each `stack delete` ran into its timeout.
#[tokio::test]
async fn heat_hears_of_a_deletion_that_cannot_be_recorded_and_is_kept_from_a_member_once() {
    let fake = Fake::start(vec![ok("")]).await;
    let (master, minion) =
        (json!({"ROLE": "master", "INSTANCE_NAME": "m"}), json!({"ROLE": "minion", "KUBE_MASTER_IP": "192.0.2.1"}));
    for (role, expected) in [(minion, [false, false]), (master, [true, false])] {
        let dir = tempfile::tempdir().unwrap();
        let mut agent = open_at(dir.path(), &fake, &[]).await;
        let ago = |minutes: u64| Timestamp(agent.host.clock.now().0 - minutes * 60_000).rfc3339();
        let node = |n: u32, action: &str, created: &str| {
            let (mut node, mut config) = (run_of(&fake.base, "d", n), role.clone());
            (config["KUBE_NODE_IP"], config["TLS_DISABLED"]) = (json!("192.0.2.2"), json!(true));
            (node["group"], node["config"], node["creation_time"]) = (json!("kubernetes-node"), config, json!(created));
            node["inputs"][0]["value"] = json!(action);
            node
        };
        let (recent, overdue) = (ago(1), ago(6));
        poll(&mut agent, &fake, &[node(1, "CREATE", &overdue)]).await;
        bring_up_ends(&mut agent).await;
        poll(&mut agent, &fake, &[node(1, "CREATE", &overdue)]).await;
        for (n, is_refused) in [(2, expected[0]), (3, expected[1])] {
            let before = fake.requests().len();
            let id = format!("id-d{n}");
            let obstacle = Obstacle::at(dir.path(), &format!("deployments/{}.json", crate::digest::key_of(&id)));
            let heard =
                || fake.requests().split_off(before).into_iter().filter(|request| request.contains(&format!("/signal/d{n} ")));
            for _ in 0..3 {
                poll(&mut agent, &fake, &[node(n, "DELETE", &recent)]).await;
            }
            assert_eq!(heard().count(), 0, "{id}: it may pass");
            // The entry grows older here in place of the clock.
            agent.collector.forget_order();
            for _ in 0..3 {
                poll(&mut agent, &fake, &[node(n, "DELETE", &overdue)]).await;
            }
            let heard: Vec<_> = heard().collect();
            assert!(heard.len() == 1 && heard[0].contains("could not be recorded within 300 s"), "{id}: {heard:?}");
            assert_eq!(heard[0].contains("delete again"), is_refused, "{id}: {heard:?}");
            obstacle.goes();
            poll(&mut agent, &fake, &[node(n, "DELETE", &overdue)]).await;
            poll(&mut agent, &fake, &[node(n, "DELETE", &overdue)]).await;
            let record = agent.ledger.journal.get(&id).unwrap();
            assert_eq!((record.state, record.failed()), (DeploymentState::Signalled, is_refused), "{id}");
            assert!(!agent.ledger.generations.current().unwrap().departed && !agent.node_task.bring_up.is_busy(), "{id}");
        }
    }
}

/// Review: a refused deletion whose end could not be recorded began anew, and was let go then.
#[tokio::test]
async fn a_member_that_is_kept_is_kept_although_that_cannot_be_recorded() {
    let fake = Fake::start(vec![ok("")]).await;
    let dir = tempfile::tempdir().unwrap();
    let node = |action: &str| master(&fake.base, action);
    let mut agent = open_at(dir.path(), &fake, &[]).await;
    poll(&mut agent, &fake, &[node("CREATE")]).await;
    bring_up_ends(&mut agent).await;
    poll(&mut agent, &fake, &[node("DELETE")]).await;
    assert_eq!(agent.node_task.bring_up.about().map(String::as_str), Some("id-DELETE"));
    agent.node_task.bring_up.stop();
    let obstacle = Obstacle::at(dir.path(), &format!("deployments/{}.json", crate::digest::key_of("id-DELETE")));
    let kept = Done { wait: None, changed_machine: false, ..failed(&fake.base) };
    let before = signals(&fake).len();
    agent.node_ended("id-DELETE", kept);
    for _ in 0..3 {
        poll(&mut agent, &fake, &[node("DELETE")]).await;
        assert!(!agent.node_task.bring_up.is_busy(), "it is not tried again");
    }
    assert_eq!(signals(&fake).len(), before + 1, "Heat hears that it is kept");
    obstacle.goes();
    poll(&mut agent, &fake, &[node("DELETE")]).await;
    poll(&mut agent, &fake, &[node("DELETE")]).await;
    let record = agent.ledger.journal.get("id-DELETE").unwrap();
    assert_eq!((record.state, record.failed()), (DeploymentState::Signalled, true));
    assert_eq!(signals(&fake).len(), before + 1, "nothing is sent twice");
}

/// Review: a deletion that Heat gave up while the agent was away left a member that nobody looked after.
#[tokio::test]
async fn a_node_whose_deletion_is_withdrawn_is_looked_after_again() {
    let fake = Fake::start(vec![ok("")]).await;
    let dir = tempfile::tempdir().unwrap();
    let node = |action: &str| master(&fake.base, action);
    for (has_left, departed) in [(false, false), (true, true)] {
        let mut agent = open_at(dir.path(), &fake, &[]).await;
        poll(&mut agent, &fake, &[node("CREATE")]).await;
        if agent.node_task.bring_up.is_busy() {
            bring_up_ends(&mut agent).await;
        }
        poll(&mut agent, &fake, &[node("DELETE")]).await;
        assert!(agent.ledger.generations.current().unwrap().departed);
        agent.node_task.bring_up.stop();
        if has_left {
            agent.host.state.write(Path::new("etcd-leaving"), b"7", Attributes::mode(0o600)).unwrap();
        }
        // The agent is killed, and Heat has given up meanwhile.
        drop(agent);
        let mut agent = open_at(dir.path(), &fake, &[]).await;
        poll(&mut agent, &fake, &[]).await;
        assert_eq!(agent.ledger.generations.current().unwrap().departed, departed, "{has_left}");
    }
}

/// Review: after a deletion that had begun was refused from memory nobody looked after the member.
#[tokio::test]
async fn a_node_whose_deletion_is_refused_from_memory_is_looked_after_again() {
    let fake = Fake::start(vec![ok("")]).await;
    let dir = tempfile::tempdir().unwrap();
    let mut agent = open_at(dir.path(), &fake, &[]).await;
    poll(&mut agent, &fake, &[master(&fake.base, "CREATE")]).await;
    bring_up_ends(&mut agent).await;
    poll(&mut agent, &fake, &[master(&fake.base, "CREATE")]).await;
    agent.ledger.generations.depart(true).unwrap();
    let before = fake.requests().len();
    let overdue = Timestamp(agent.host.clock.now().0 - 6 * 60_000).rfc3339();
    let mut deletion = master(&fake.base, "DELETE");
    deletion["creation_time"] = json!(overdue);
    let obstacle = Obstacle::at(dir.path(), &format!("deployments/{}.json", crate::digest::key_of("id-DELETE")));
    for _ in 0..4 {
        poll(&mut agent, &fake, &[deletion.clone()]).await;
    }
    let requests = fake.requests().split_off(before);
    let heard: Vec<_> = requests.iter().filter(|request| request.starts_with("POST")).collect();
    assert!(heard.len() == 1 && heard[0].contains("delete again"), "{heard:?}");
    obstacle.goes();
    poll(&mut agent, &fake, &[deletion.clone()]).await;
    let record = agent.ledger.journal.get("id-DELETE").unwrap();
    assert!(record.failed() && !agent.ledger.generations.current().unwrap().departed);
}
