//! The first answers after the agent has taken the place of another collector, which was told of newer runs.

use super::replaced::count;
use super::*;

const KEPT: &str = "/var/lib/os-collect-config/cfn.json";

/// A server's metadata with the run of resource `r` that was made in this second.
fn run(second: u64) -> Value {
    json!({"deployments": [{"id": format!("r{second}"), "creation_time": Timestamp(second * 1000).rfc3339(), "inputs": [
        {"name": "deploy_stack_id", "value": "s/1"}, {"name": "deploy_resource_name", "value": "r"}]}]})
}

/// Another life of the agent.
fn life(machine: &Machine) -> Collector {
    let mut collector = machine.collector();
    collector.belong_to(&instance("i"), None);
    collector
}

/// The run that is in force after another poll.
async fn polled(collector: &mut Collector) -> Option<u64> {
    collector.poll_once().await;
    (1..40).find(|second| collector.snapshot().lists(&format!("r{second}")))
}

/// Attack: the replaced collector had listed the newer run and left a result that waits; the first answer to the agent was that of a replica that lagged,
/// and the result went out.
#[tokio::test]
async fn no_answer_is_older_than_what_the_replaced_collector_listed() {
    let heat = Fake::start(vec![]).await;
    for (conf, path, key) in [
        ("", KEPT, "deployments"),
        ("[DEFAULT]\ncachedir = /run/occ\n", "/run/occ/request.json", "deployments"),
        ("[heat]\ndeployment_key = m\n", "/var/lib/os-collect-config/heat.json", "m"),
    ] {
        let machine = Machine::new();
        machine.put(BOOT, &boot(&heat.base));
        machine.put(CONF, conf);
        machine.put(path, &run(20).to_string().replace("deployments", key));
        heat.play(vec![answer(&run(10)), answer(&run(20))]);
        // Nothing is in force only because it stands there: Heat may have withdrawn it.
        assert_eq!(polled(&mut life(&machine)).await, None, "{path}");
        assert_eq!(polled(&mut life(&machine)).await, Some(20), "{path}");
    }
}

/// Attack: os-collect-config.conf, which says where that is, could not be read at first.
#[tokio::test]
async fn what_the_replaced_collector_listed_is_read_once_it_is_known_where_it_is() {
    let heat = Fake::start(vec![status("503 Service Unavailable", "")]).await;
    let machine = Machine::new();
    machine.put(BOOT, &boot(&heat.base));
    machine.put("/run/occ/cfn.json", &run(20).to_string());
    let mut collector = life(&machine);
    assert_eq!(polled(&mut collector).await, None);
    machine.put(CONF, "[DEFAULT]\ncachedir = /run/occ\n");
    heat.play(vec![answer(&run(10)), answer(&run(20))]);
    assert_eq!(polled(&mut collector).await, None);
    assert_eq!(polled(&mut collector).await, Some(20));
}

/// Attack: beside the agent os-collect-config was run by hand and was told of a newer run; the agent's next answer lagged behind that.
#[tokio::test]
async fn what_is_listed_to_os_collect_config_beside_the_agent_counts_too() {
    let heat = Fake::start(vec![answer(&run(10))]).await;
    let machine = Machine::new();
    machine.put(BOOT, &boot(&heat.base));
    let mut collector = life(&machine);
    assert_eq!(polled(&mut collector).await, Some(10));
    machine.put(KEPT, &run(20).to_string());
    heat.play(vec![answer(&run(11)), answer(&run(21))]);
    assert_eq!(polled(&mut collector).await, Some(10), "refused: what was listed stays in force");
    assert_eq!(polled(&mut collector).await, Some(21));
    // The same of the record of `os-collect-config` by link.
    let below = Entries::below(&["deployments".to_owned()], [&run(30)]).unwrap();
    let directory = machine.root.subtree(Path::new(KEPT).parent().unwrap()).unwrap();
    RunOrder::of_lists([below]).keep(&directory, &machine.clock).unwrap();
    heat.play(vec![answer(&run(22)), answer(&run(31))]);
    assert_eq!(polled(&mut collector).await, Some(21));
    assert_eq!(polled(&mut collector).await, Some(31));
}

#[tokio::test]
async fn what_heat_has_rolled_back_since_is_taken_over_no_more() {
    let heat = Fake::start(vec![]).await;
    let machine = Machine::new();
    machine.put(BOOT, &boot(&heat.base));
    machine.put(KEPT, &json!({}).to_string());
    // As the agent keeps it in the place of os-collect-config.
    let below = Entries::below(&["deployments".to_owned()], [&run(20)]).unwrap();
    let directory = machine.root.subtree(Path::new(KEPT).parent().unwrap()).unwrap();
    RunOrder::of_lists([below]).keep(&directory, &machine.clock).unwrap();
    heat.play(vec![answer(&run(10))]);
    let mut collector = life(&machine);
    for _ in 0..3 {
        assert_eq!(polled(&mut collector).await, None);
        machine.clock.advance(Duration::from_secs(100));
    }
    assert_eq!(polled(&mut collector).await, Some(10));
    assert_eq!(polled(&mut life(&machine)).await, Some(10), "at the next start too");
    // For a while os-collect-config was in its place again.
    machine.put(KEPT, &run(30).to_string());
    heat.play(vec![answer(&run(25)), answer(&run(31))]);
    assert_eq!(polled(&mut life(&machine)).await, Some(10), "what was listed stays in force");
    assert_eq!(polled(&mut life(&machine)).await, Some(31));
}

#[tokio::test]
async fn a_record_that_is_damaged_is_said_and_the_lists_count() {
    let heat = Fake::start(vec![answer(&run(20))]).await;
    let machine = Machine::new();
    machine.put(BOOT, &boot(&heat.base));
    assert_eq!(polled(&mut life(&machine)).await, Some(20));
    machine.put(KEPT, "{");
    machine.state.write(Path::new(run_order::STATE), b"{", Attributes::mode(0o600)).unwrap();
    heat.play(vec![answer(&run(10))]);
    assert_eq!(polled(&mut life(&machine)).await, Some(20), "refused: the newest list is kept as well");
    assert_eq!((count(&machine, Code::StateFileQuarantined), count(&machine, Code::FormerListUnread)), (1, 1));
    assert!(machine.state.facts(Path::new("cache/order.unreadable")).unwrap().is_some());
    assert!(machine.state.facts(Path::new(run_order::STATE)).unwrap().is_some(), "written anew");
}
