//! The file that configures the node, alone and beside Heat.

use super::*;
use crate::freshness::Freshness;

/// `NAME=value` a line; a `!` is a mistake.
fn read(text: &str) -> crate::error::Result<(Map<String, Value>, Vec<String>)> {
    if text.contains('!') {
        return Err(Error::permanent("line 1 is not an assignment"));
    }
    let lines = text.lines().filter_map(|line| line.split_once('='));
    Ok((lines.map(|(name, value)| (name.to_owned(), json!(value))).collect(), vec!["NAME: unknown".to_owned()]))
}

fn machine() -> Machine {
    let mut machine = Machine::new();
    machine.settings.node_source = NodeSource::HeatParams;
    machine
}

fn ids(collector: &Collector) -> Vec<String> {
    let list = collector.snapshot().deployments.clone().unwrap_or_default();
    list.values().map(|entry| entry["id"].as_str().unwrap().to_owned()).collect()
}

fn file_id(collector: &Collector) -> String {
    collector.snapshot().node_file.as_ref().unwrap().id.clone().unwrap_or_default()
}

#[tokio::test]
async fn the_file_is_the_only_deployment_where_nobody_speaks_for_heat_and_a_broken_one_changes_nothing() {
    let machine = machine();
    let mut collector = machine.collector().with_node_file(read);
    collector.poll_once().await;
    let failure = collector.node_file_failure().unwrap();
    assert!(failure.to_string().starts_with("there is no such file (while reading /etc/sysconfig/heat-params)"), "{failure}");
    assert!(failure.suggested_remedy().unwrap().contains("write_files"), "{failure:?}");
    assert!(ids(&collector).is_empty());

    machine.put(HEAT_PARAMS, "ROLE=master\n");
    let fact = machine.clock.moment();
    assert_eq!(collector.poll_once().await, SnapshotChange { metadata: true, answered: true, sources: true });
    let first = file_id(&collector);
    assert_eq!(ids(&collector), [first.as_str()]);
    assert!(is_of_file(&first) && collector.node_file_failure().is_none());
    let snapshot = collector.snapshot();
    assert_eq!(snapshot.document()["deployments"][0]["config"], json!({"ROLE": "master"}));
    assert!(snapshot.freshness_of(&first).covers(fact) && snapshot.freshness() == Freshness::Unasked);
    assert!(snapshot.authority.is_none() && snapshot.listing.is_none(), "it is no word of Heat's");

    for broken in ["reboot!", ""] {
        machine.put(HEAT_PARAMS, broken);
        let fact = machine.clock.moment();
        collector.poll_once().await;
        assert_eq!(ids(&collector), [first.as_str()], "the last good one stays");
        assert!(!collector.snapshot().freshness_of(&first).covers(fact), "but nothing leaves on it");
    }
    machine.put(HEAT_PARAMS, "ROLE=minion\n");
    collector.poll_once().await;
    assert!(collector.snapshot().file_of(&first).is_some() && !collector.snapshot().lists(&first));
    assert!(machine.codes().contains(&Code::SourceRecovered) && machine.codes().contains(&Code::MetadataPartInvalid));
}

#[tokio::test]
async fn beside_heat_the_file_comes_first_and_each_is_as_new_as_its_own_reading() {
    let heat = Fake::start(vec![listing(&["a"]), listing(&["a", "b"]), Act::Close]).await;
    let machine = machine();
    machine.put(BOOT, &boot(&heat.base));
    machine.put(HEAT_PARAMS, "ROLE=master\n");
    let mut collector = machine.collector().with_node_file(read);
    collector.poll_once().await;
    let file = file_id(&collector);
    assert_eq!(ids(&collector), [file.as_str(), "a"]);
    collector.poll_once().await;
    assert_eq!(ids(&collector), [file.as_str(), "a", "b"]);
    let fact = machine.clock.moment();
    collector.poll_once().await;
    let snapshot = collector.snapshot();
    assert!(snapshot.freshness_of(&file).covers(fact) && !snapshot.freshness_of("a").covers(fact), "Heat did not answer");
    assert_eq!(snapshot.listing.as_ref().map(|listing| listing.source), Some("cfn"));
    let other = machine_id_of("ROLE=minion\n").await;
    machine.put(HEAT_PARAMS, "ROLE=minion\n");
    collector.poll_once().await;
    assert_eq!(ids(&collector), [other.as_str(), "a", "b"]);
}

/// The id that such a file has by itself.
async fn machine_id_of(text: &str) -> String {
    let machine = machine();
    machine.put(HEAT_PARAMS, text);
    let mut collector = machine.collector().with_node_file(read);
    collector.poll_once().await;
    file_id(&collector)
}

#[tokio::test]
async fn a_file_that_others_may_write_or_that_the_disk_brought_along_is_not_used() {
    let machine = machine();
    machine.put(HEAT_PARAMS, "ROLE=master\n");
    std::fs::set_permissions(
        machine.root.base().join("etc/sysconfig/heat-params"),
        std::os::unix::fs::PermissionsExt::from_mode(0o666),
    )
    .unwrap();
    let mut collector = machine.collector().with_node_file(read);
    collector.poll_once().await;
    assert!(ids(&collector).is_empty());
    let failure = collector.node_file_failure().unwrap();
    assert!(failure.suggested_remedy().unwrap().contains("chmod go-w"), "{failure:?}");

    machine.put(HEAT_PARAMS, "ROLE=master\n");
    let files = [(HEAT_PARAMS.to_owned(), crate::digest::hex(b"ROLE=master\n"))].into();
    collector.files.origins.predecessors = files;
    collector.poll_once().await;
    assert!(ids(&collector).is_empty() && machine.codes().contains(&Code::SourceLeftOver));
    machine.put(HEAT_PARAMS, "ROLE=minion\n");
    collector.poll_once().await;
    assert_eq!(ids(&collector).len(), 1, "it was written for this one");
}

#[tokio::test]
async fn without_the_setting_or_beside_a_given_document_the_file_is_not_read() {
    let mut machine = machine();
    machine.put(HEAT_PARAMS, "ROLE=master\n");
    machine.put("/given.json", "[]");
    let given = Some(machine.root.base().join("given.json"));
    let mut collector = machine.collector_with(given).with_node_file(read);
    collector.poll_once().await;
    assert!(ids(&collector).is_empty() && collector.snapshot().node_file.is_none());
    machine.settings.node_source = NodeSource::Deployment;
    let mut collector = machine.collector().with_node_file(read);
    collector.poll_once().await;
    assert!(ids(&collector).is_empty() && collector.snapshot().node_file.is_none());
}
