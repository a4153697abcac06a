//! The collector against a scripted Heat.
//!
//! In: answers, delays and failures as a test wants them. Out: what the collector asked, kept and reported. Never: another address than
//! the loopback.

mod awaited;
mod bad_answers;
mod former_lists;
mod handover;
mod node_file;
mod replaced;
mod transports;
mod user_data;
mod zaqar;

use std::path::Path;

use serde_json::{Value, json};
use tokio::sync::Notify;

use super::*;
use crate::clock::{Moment, Timestamp};
use crate::files::Attributes;
use crate::http::fake::{Act, Fake, ok, status};
use crate::identity::{Identity, IdentityOrigin, LEARNT, Leftovers, Predecessor};
use crate::settings::ExplicitSettings;

const BOOT: &str = "/var/lib/cloud/data/cfn-init-data";
const CONF: &str = "/etc/os-collect-config.conf";

/// A machine: its files, its state, what was reported.
struct Machine {
    _dirs: [tempfile::TempDir; 2],
    root: Arc<Tree>,
    state: Arc<Tree>,
    report: Report,
    clock: Clock,
    settings: Settings,
}

impl Machine {
    fn new() -> Self {
        let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let tree = |dir: &tempfile::TempDir| Arc::new(Tree::open(dir.path()).unwrap());
        let (root, state) = (tree(&dirs[0]), tree(&dirs[1]));
        let mut settings = Settings::default();
        // Time enough for a machine that stands still: who waits for it says so.
        settings.sources.timeout = Duration::from_mins(2);
        settings.explicit.timeout = true;
        Self { _dirs: dirs, root, state, report: Report::kept(), clock: Clock::manual(Timestamp(1_000_000)), settings }
    }

    fn put(&self, path: &str, content: &str) {
        let path = Path::new(path);
        self.root.create_dir_all(path.parent().unwrap(), Attributes::mode(0o755)).unwrap();
        self.root.write(path, content.as_bytes(), Attributes::mode(0o600)).unwrap();
    }

    fn collector(&self) -> Collector {
        self.collector_with(None)
    }

    fn collector_with(&self, metadata: Option<PathBuf>) -> Collector {
        let (root, state) = (Arc::clone(&self.root), Arc::clone(&self.state));
        let http = Http::new(self.settings.tls.clone(), Arc::clone(&root), self.clock.clone());
        let mut collector =
            Collector::new(self.settings.clone(), root, state, http, self.clock.clone(), self.report.clone(), metadata);
        collector.quarantine_unreadable();
        collector
    }

    fn codes(&self) -> Vec<Code> {
        self.report.events().iter().map(|event| event.code).collect()
    }

    /// Which file it is and when it changed: the time alone is too coarse for two writes of one test.
    fn stamp(&self, path: &str) -> (u64, i64, i64) {
        self.state.facts(Path::new(path)).unwrap().unwrap().stamp
    }
}

fn boot(base: &str) -> String {
    json!({"deployments": [], "os-collect-config": {"collectors": ["ec2", "cfn", "local"], "cfn": keys(base, "AK", "SK")}})
        .to_string()
}

fn keys(base: &str, access: &str, secret: &str) -> Value {
    json!({"metadata_url": format!("{base}/v1/"), "access_key_id": access, "secret_access_key": secret, "stack_name": "s", "path": "srv.Metadata"})
}

/// os-collect-config.conf with a whole section.
fn section(base: &str, stack: &str, access: &str) -> String {
    format!(
        "[cfn]\nmetadata_url = {base}/v1/\nstack_name = {stack}\naccess_key_id = {access}\nsecret_access_key = SK\npath = srv.Metadata\n"
    )
}

fn answer(metadata: &Value) -> Act {
    ok(json!({"DescribeStackResourceResponse": {"DescribeStackResourceResult": {"StackResourceDetail": {"Metadata": metadata}}}})
        .to_string())
}

fn listing(ids: &[&str]) -> Act {
    answer(&json!({"deployments": ids.iter().map(|id| json!({"id": id})).collect::<Vec<_>>()}))
}

#[tokio::test]
async fn a_node_finds_heat_by_what_cloud_init_left_and_follows_its_list() {
    let heat = Fake::start(vec![listing(&["a"]), listing(&["a"]), listing(&["a", "b"])]).await;
    let machine = Machine::new();
    machine.put(BOOT, &boot(&heat.base));
    let mut collector = machine.collector();
    let began = machine.clock.moment();
    assert_eq!(collector.poll_once().await, SnapshotChange { metadata: true, answered: true, sources: true });
    assert!(collector.snapshot().lists("a") && collector.snapshot().freshness().covers(began));
    assert_eq!(collector.snapshot().authority.as_ref().unwrap().source, "cfn");
    assert!(collector.snapshot().metadata.contains_key("os-collect-config"));
    let request = heat.requests().remove(0);
    assert!(
        request.starts_with("GET /v1/?AWSAccessKeyId=AK&Action=DescribeStackResource&ContentType=JSON&LogicalResourceId=srv&"),
        "{request}"
    );
    let events = machine.report.events().len();

    machine.clock.advance(Duration::from_mins(1));
    assert_eq!(collector.poll_once().await, SnapshotChange { metadata: false, answered: true, sources: false });
    assert_eq!(machine.report.events().len(), events, "a steady poll is silent");
    assert!(!collector.snapshot().freshness().covers(machine.clock.moment()));
    assert!(collector.poll_once().await.metadata);
    assert!(collector.snapshot().lists("b"));
    assert_eq!((heat.requests().len(), heat.connections()), (3, 1), "one request a poll, over one connection");
    assert_eq!(
        machine.codes(),
        [Code::SourceInUse, Code::MetadataChanged, Code::SourceInUse, Code::MetadataChanged, Code::MetadataChanged]
    );
}

#[tokio::test]
async fn odd_parts_are_named_once_and_the_rest_is_used() {
    let heat = Fake::start(vec![answer(&json!({"deployments": {"id": 1}, "os-collect-config": 7, "x": 1}))]).await;
    let machine = Machine::new();
    machine.put(BOOT, &boot(&heat.base));
    let mut collector = machine.collector();
    collector.poll_once().await;
    collector.poll_once().await;
    assert_eq!(machine.codes().iter().filter(|code| **code == Code::MetadataPartInvalid).count(), 2);
    assert_eq!(collector.snapshot().metadata["x"], 1);
    // Not a list is not an empty list, and the boot copy does not come back.
    assert!(collector.snapshot().deployments.is_none());
}

#[tokio::test]
async fn what_was_learnt_outlives_the_process_but_is_no_answer() {
    let heat = Fake::start(vec![listing(&["a"])]).await;
    let machine = Machine::new();
    machine.put(BOOT, &boot(&heat.base));
    machine.collector().poll_once().await;
    assert_eq!(machine.state.facts(Path::new("cache/cfn.json")).unwrap().unwrap().mode, 0o600);

    heat.play(vec![status("503 Service Unavailable", "")]);
    let mut collector = machine.collector();
    assert!(collector.snapshot().lists("a") && collector.snapshot().authority.is_none());
    let digest = collector.snapshot().digest.clone();
    collector.poll_once().await;
    assert!(collector.snapshot().lists("a"), "the empty list of the boot copy must not win");
    assert!(!collector.snapshot().freshness().covers(Moment::EARLIER));
    heat.play(vec![listing(&["a"])]);
    let before = machine.stamp("cache/cfn.json");
    collector.poll_once().await;
    assert!(collector.snapshot().freshness().covers(Moment::EARLIER));
    assert_ne!(collector.snapshot().digest, digest, "the boot copy's own keys are back");
    assert_eq!(machine.stamp("cache/cfn.json"), before, "nothing is written where nothing changed");

    machine.state.write(Path::new("cache/cfn.json"), b"{", Attributes::mode(0o600)).unwrap();
    assert!(!machine.collector().snapshot().lists("a"));
    assert_eq!(machine.codes().pop(), Some(Code::StateFileQuarantined));
}

#[tokio::test]
async fn the_same_document_after_a_restart_is_no_change() {
    // As Heat writes it: the deployments first.
    let heat = Fake::start(vec![answer(&json!({"deployments": [{"id": "a"}], "os-collect-config": {"command": "x"}}))]).await;
    let machine = Machine::new();
    machine.put(BOOT, &boot(&heat.base));
    machine.collector().poll_once().await;
    let before = machine.stamp("cache/cfn.json");
    let mut collector = machine.collector();
    let digest = collector.snapshot().sources["cfn"].digest.clone();
    collector.poll_once().await;
    assert_eq!(collector.snapshot().sources["cfn"].digest, digest);
    assert_eq!(machine.stamp("cache/cfn.json"), before, "nothing is written where nothing changed");
}

#[tokio::test]
async fn new_keys_in_the_metadata_are_followed_and_survive_a_restart() {
    let heat = Fake::start(vec![]).await;
    heat.play(vec![answer(&json!({"os-collect-config": {"cfn": keys(&heat.base, "AK2", "SK2")}}))]);
    let machine = Machine::new();
    machine.put(BOOT, &boot(&heat.base));
    let mut collector = machine.collector();
    collector.poll_once().await;
    collector.poll_once().await;
    machine.collector().poll_once().await;
    let access: Vec<_> = heat
        .requests()
        .iter()
        .map(|request| request[request.find("KeyId=").unwrap() + 6..].split('&').next().unwrap().to_owned())
        .collect();
    assert_eq!(access, ["AK", "AK2", "AK2"]);
    // Somebody points the server to another stack by hand: what the old one said of itself does not hold any more.
    machine.put(CONF, &section(&heat.base, "other", "AK3"));
    machine.collector().poll_once().await;
    // Beside the new one the old place is asked until that answers: both at once here, because nothing was asked before.
    let asked = |access: &str, stack: &str| {
        let fits =
            |request: &&String| request.contains(&format!("KeyId={access}&")) && request.contains(&format!("StackName={stack}&"));
        heat.requests().iter().filter(fits).count()
    };
    assert_eq!((asked("AK3", "other"), asked("AK2", "s")), (1, 3));
    // The files are gone: what Heat said last is whole.
    machine.root.remove(Path::new(CONF)).unwrap();
    machine.root.remove(Path::new(BOOT)).unwrap();
    machine.collector().poll_once().await;
    assert!(asked("AK2", "s") > 3);
}

#[tokio::test]
async fn what_heat_said_is_enough_where_a_power_cut_emptied_the_boot_copy() {
    // Nobody syncs what cloud-init writes: a cut at the first boot leaves its files there and empty.
    let heat = Fake::start(vec![]).await;
    let whole = json!({"deployments": [{"id": "a"}], "os-collect-config": {"collectors": ["ec2", "cfn", "local"], "cfn": keys(&heat.base, "AK", "SK")}});
    heat.play(vec![answer(&whole)]);
    let machine = Machine::new();
    machine.put(BOOT, &boot(&heat.base));
    machine.collector().poll_once().await;
    machine.put(BOOT, "");
    let began = machine.clock.moment();
    let mut collector = machine.collector();
    assert!(collector.poll_once().await.answered);
    assert!(collector.snapshot().lists("a") && collector.snapshot().freshness().covers(began));
    let asked = heat.requests().pop().unwrap();
    assert!(asked.contains("AWSAccessKeyId=AK&") && asked.contains("StackName=s&"), "{asked}");
}

#[tokio::test]
async fn several_paths_are_asked_side_by_side_and_all_must_answer() {
    let heat = Fake::start(vec![
        answer(&json!({"a": 1})),
        answer(&json!({"b": 2})),
        answer(&json!({"a": 1})),
        status("403 AccessDenied", ""),
    ])
    .await;
    let machine = Machine::new();
    let conf = format!(
        "[cfn]\nmetadata_url = {}/v1/\naccess_key_id = A\nsecret_access_key = S\nstack_name = s\npath = one.Metadata\npath = two.Metadata\n",
        heat.base
    );
    machine.put(CONF, &conf);
    let mut collector = machine.collector();
    collector.poll_once().await;
    let snapshot = Value::Object(collector.snapshot().document());
    assert_eq!((snapshot["a"].clone(), snapshot["b"].clone()), (json!(1), json!(2)));
    assert!(heat.requests().iter().any(|request| request.contains("LogicalResourceId=two&")));
    collector.poll_once().await;
    assert_eq!(collector.snapshot().sources["cfn"].failures, 1);
    assert_eq!(Value::Object(collector.snapshot().document()), snapshot);
}

#[tokio::test]
async fn a_machine_without_any_source_says_so_once_and_goes_on_looking() {
    let machine = Machine::new();
    machine.put(CONF, "[DEFAULT]\ncollectors = [\"ec2\", \"another\"]\n");
    let mut collector = machine.collector();
    for _ in 0..3 {
        assert_eq!(collector.poll_once().await, SnapshotChange::default());
    }
    let events = machine.report.events();
    assert_eq!(events.iter().map(|event| event.code).collect::<Vec<_>>(), [Code::NoSource]);
    assert!(collector.snapshot().sources.is_empty() && collector.snapshot().deployments.is_none());
    let heat = Fake::start(vec![listing(&["a"])]).await;
    machine.put(BOOT, &boot(&heat.base));
    let before = machine.clock.now();
    assert!(collector.changed().await.sources && collector.snapshot().sources.contains_key("cfn"));
    assert!(machine.clock.now().since(before) <= FILE_POLL, "{:?}", machine.clock.now().since(before));
    while !collector.snapshot().lists("a") {
        collector.changed().await;
    }
}

#[tokio::test]
async fn a_file_is_a_source_of_its_own() {
    let machine = Machine::new();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("list.json");
    let outside = Tree::open(dir.path()).unwrap();
    outside.write(Path::new("list.json"), b"[{\"id\": \"x\"}]", Attributes::mode(0o600)).unwrap();
    let mut collector = machine.collector_with(Some(path));
    assert!(collector.poll_once().await.answered);
    assert!(collector.snapshot().lists("x"));
    assert_eq!(collector.snapshot().authority.as_ref().unwrap().source, "file");
    outside.write(Path::new("list.json"), b"[", Attributes::mode(0o600)).unwrap();
    collector.poll_once().await;
    assert!(
        collector.snapshot().lists("x") && collector.snapshot().sources["file"].cause.as_ref().unwrap().contains("list.json")
    );
}

#[tokio::test]
async fn waiting_can_be_dropped_at_any_time_without_a_second_request() {
    let answers = Arc::new(Notify::new());
    let heat = Fake::start(vec![Act::Held(Arc::clone(&answers), Box::new(listing(&["a"]))), listing(&["a"])]).await;
    let machine = Machine::new();
    machine.put(BOOT, &boot(&heat.base));
    let mut collector = machine.collector();
    let mut dropped = 0;
    while heat.requests().is_empty() || dropped < 3 {
        tokio::select! {
            _ = collector.changed() => {}
            () = tokio::task::yield_now() => dropped += 1,
        }
    }
    assert!(!collector.snapshot().lists("a"));
    answers.notify_one();
    while !collector.snapshot().lists("a") {
        collector.changed().await;
    }
    assert_eq!(heat.requests().len(), 1);
    collector.poll_now();
    let nudged = machine.clock.now();
    while heat.requests().len() == 1 || collector.snapshot().sources["cfn"].last_try < Some(nudged) {
        collector.changed().await;
    }
    let waited = collector.snapshot().sources["cfn"].last_try.unwrap().since(nudged);
    assert!(waited >= Duration::from_secs(1) && waited < Duration::from_secs(3), "{waited:?}");
}

#[tokio::test]
async fn whoever_wants_a_fresh_answer_gets_one_at_once_and_one_serves_all() {
    let answers = Arc::new(Notify::new());
    let heat = Fake::start(vec![listing(&["a"])]).await;
    let machine = Machine::new();
    machine.put(BOOT, &boot(&heat.base));
    let mut collector = machine.collector();
    // Who has not answered yet is asked at its own pace.
    collector.ask(machine.clock.moment());
    assert!(!collector.is_answering());
    collector.poll_once().await;
    heat.play(vec![Act::Held(Arc::clone(&answers), Box::new(listing(&["a"]))), listing(&["b"])]);
    let facts = [machine.clock.moment(), machine.clock.moment()];
    for fact in facts {
        collector.ask(fact);
    }
    let (mut dropped, polled) = (0, machine.clock.now());
    while heat.requests().len() < 2 || dropped < 3 {
        tokio::select! {
            _ = collector.changed() => {}
            () = tokio::task::yield_now() => dropped += 1,
        }
    }
    // This one comes while the request is under way: its answer may be older.
    let late = machine.clock.moment();
    collector.ask(late);
    answers.notify_one();
    collector.changed().await;
    let last_try = |collector: &Collector| collector.snapshot().sources["cfn"].last_try;
    let (poll_result, covered) = (machine.clock.now(), collector.snapshot().freshness());
    assert_eq!(last_try(&collector), Some(polled), "without a pause");
    assert!(facts.iter().all(|fact| covered.covers(*fact)) && !covered.covers(late) && collector.is_answering());
    collector.changed().await;
    assert!(collector.snapshot().freshness().covers(late) && collector.snapshot().lists("b") && !collector.is_answering());
    assert_eq!((heat.requests().len(), last_try(&collector)), (3, Some(poll_result)));
    // The newest answer has grown too old: another one is wanted, once.
    let newest = collector.snapshot().listing.as_ref().unwrap().list_answer.began;
    for asked in [3, 4] {
        collector.ask(newest);
        assert_eq!((heat.requests().len(), collector.is_answering()), (asked, asked == 3));
        if asked == 3 {
            collector.changed().await;
        }
    }
    // One that fails keeps its pause.
    heat.play(vec![status("503 Service Unavailable", "")]);
    collector.poll_once().await;
    collector.ask(machine.clock.moment());
    assert!(!collector.is_answering());
    heat.play(vec![listing(&["b"])]);
    while !collector.changed().await.answered {}
    assert!(machine.clock.now() > polled && collector.snapshot().freshness().covers(late));
}

#[tokio::test]
async fn a_server_that_asks_for_a_pause_gets_it() {
    let heat = Fake::start(vec![Act::Answer("503 Service Unavailable", vec!["Retry-After: 120".into()], vec![])]).await;
    let machine = Machine::new();
    machine.put(BOOT, &boot(&heat.base));
    let mut collector = machine.collector();
    collector.poll_once().await;
    let state = &collector.snapshot().sources["cfn"];
    assert!(state.next_try.unwrap().since(machine.clock.now()) >= Duration::from_mins(2));
    let event = machine.report.events().pop().unwrap();
    assert!(event.next_try.unwrap() >= Duration::from_mins(2));
}

#[tokio::test]
async fn the_first_request_of_many_nodes_is_splayed_and_settings_that_change_are_used_at_once() {
    let heat = Fake::start(vec![listing(&["a"])]).await;
    let mut machine = Machine::new();
    machine.settings.splay = Duration::from_hours(1);
    machine.put(BOOT, &boot(&heat.base));
    let mut collector = machine.collector();
    assert!(collector.changed().await.metadata, "files are read at once");
    assert!(heat.requests().is_empty());
    collector.poll_once().await;
    for _ in 0..20 {
        machine.clock.advance(Duration::from_secs(70));
        collector.poll_once().await;
    }
    machine.put(CONF, &section(&heat.base, "t", "AK"));
    collector.poll_now();
    let before = heat.requests().len();
    while heat.requests().len() == before {
        collector.changed().await;
    }
    assert!(heat.requests().pop().unwrap().contains("StackName=t&"));
}

#[test]
fn a_command_reads_what_is_on_this_machine_and_asks_nobody() {
    let machine = Machine::new();
    machine.put(BOOT, &boot("http://192.0.2.1"));
    machine.put(CONF, "[cfn]\nthis is no setting\n");
    // No runtime is there: a request could not even begin.
    let mut collector = machine.collector();
    assert_eq!(collector.last_document(SourceName::HeatLocal), None);
    collector.read_boot_copy();
    let reported = collector.last_document(SourceName::HeatLocal).unwrap();
    assert!(reported.contains_key("os-collect-config") && reported["deployments"] == json!([]));
    assert_eq!((collector.last_document(SourceName::Cfn), collector.snapshot().document()), (None, reported));
    assert!(machine.codes().contains(&Code::MetadataPartInvalid), "{:?}", machine.codes());
}

fn instance(value: &str) -> InstanceRecord {
    InstanceRecord::new(Identity { origin: IdentityOrigin::Smbios, value: value.to_owned() }, Timestamp(0))
}

#[tokio::test]
async fn with_heat_down_at_boot_the_last_good_list_is_in_force_and_no_answer_is_made_up() {
    let heat = Fake::start(vec![listing(&["a"])]).await;
    let machine = Machine::new();
    machine.put(BOOT, &boot(&heat.base));
    machine.collector().poll_once().await;
    // The next boot: Heat's port is there, but nobody answers; then a 503 storm; then it is back.
    heat.play(vec![Act::Close, Act::Close, status("503 Service Unavailable", ""), listing(&["a", "b"])]);
    let mut collector = machine.collector();
    collector.belong_to(&instance("i"), None);
    let mut failures = 0;
    while !collector.snapshot().lists("b") {
        assert!(collector.snapshot().lists("a") && collector.snapshot().authority.is_none());
        collector.changed().await;
        failures = failures.max(collector.snapshot().sources["cfn"].failures);
    }
    assert_eq!(failures, 3);
    assert_eq!(collector.snapshot().authority.as_ref().unwrap().source, "cfn");
    // R7: fast again, because it had changed.
    let next = collector.snapshot().sources["cfn"].next_try.unwrap();
    assert!(next.since(machine.clock.now()) <= Duration::from_secs(2));
}

#[tokio::test]
async fn a_source_that_hangs_holds_up_only_itself() {
    let heat = Fake::start(vec![Act::Slow(Duration::from_mins(10), Box::new(ok("{}")))]).await;
    let mut machine = Machine::new();
    machine.clock = Clock::system();
    machine.put(BOOT, &boot(&heat.base));
    let mut collector = machine.collector();
    collector.changed().await;
    machine.put("/var/lib/os-collect-config/local-data/one", "{\"mine\": 1}");
    while !collector.snapshot().metadata.contains_key("mine") {
        collector.changed().await;
    }
    assert_eq!(collector.snapshot().sources["cfn"].failures, 0, "its own deadline is still to come");
    machine.settings.sources.timeout = Duration::from_secs(1);
    let mut collector = machine.collector();
    let started = machine.clock.start();
    while collector.snapshot().sources.get("cfn").is_none_or(|source| source.failures == 0) {
        collector.changed().await;
    }
    assert!(started.elapsed() >= Duration::from_secs(1));
    assert!(collector.snapshot().sources["cfn"].cause.as_ref().unwrap().contains("no answer from 127.0.0.1"));
}

#[tokio::test]
async fn a_copied_disk_does_not_ask_the_other_servers_heat() {
    let heat = Fake::start(vec![listing(&["a"])]).await;
    let machine = Machine::new();
    machine.put(BOOT, &boot(&heat.base));
    let mut collector = machine.collector();
    collector.belong_to(&instance("original"), None);
    collector.poll_once().await;
    assert_eq!(heat.requests().len(), 1);
    // As identity does it: the state is gone, and what the sources were learnt from is remembered.
    let known_sources = machine.state.read_json::<Leftovers>(Path::new(LEARNT)).unwrap().unwrap();
    assert_eq!(known_sources.keys().collect::<Vec<_>>(), [BOOT]);
    machine.state.remove_dir_all(Path::new("cache")).unwrap();
    let mut copy = instance("copy");
    let before = instance("original").instance;
    copy.predecessor = Some(Predecessor { instance: before, until: Timestamp(0), aside: 1, files: known_sources });
    let mut collector = machine.collector();
    collector.belong_to(&copy, None);
    for _ in 0..5 {
        machine.clock.advance(Duration::from_mins(2));
        collector.poll_once().await;
    }
    assert_eq!(heat.requests().len(), 1, "nothing was asked");
    assert!(collector.snapshot().deployments.is_none() && collector.left_over() == [BOOT]);
    assert_eq!(machine.codes().iter().filter(|code| **code == Code::SourceLeftOver).count(), 1, "said once");
    machine.put(BOOT, &format!("{} ", boot(&heat.base)));
    collector.poll_once().await;
    assert!(collector.snapshot().lists("a") && collector.left_over().is_empty());
}

#[tokio::test]
async fn the_first_poll_is_splayed_once_a_boot_and_the_replaced_collectors_pace_counts() {
    let heat = Fake::start(vec![listing(&["a"])]).await;
    let mut machine = Machine::new();
    machine.put(BOOT, &boot(&heat.base));
    machine.put(CONF, "[DEFAULT]\nsplay = 3600\npolling_interval = 7\nmin_polling_interval = 5.5\n[cfn]\ntimeout = 33\n");
    let run = tempfile::tempdir().unwrap();
    let run = Tree::open(run.path()).unwrap();
    let waits = |collector: &Collector| {
        let cfn = collector.sources.iter().find(|source| source.name == SourceName::Cfn).unwrap();
        cfn.due_in().unwrap() > Duration::ZERO
    };
    let mut collector = machine.collector();
    assert!(!waits(&collector));
    collector.belong_to(&instance("i"), Some(&run));
    assert!(waits(&collector), "the first start of a boot");
    let mut collector = machine.collector();
    collector.belong_to(&instance("i"), Some(&run));
    assert!(!waits(&collector), "the second start");
    // A timeout is that of its section.
    assert_eq!(collector.deadline(SourceName::Cfn), machine.settings.sources.timeout, "agent.toml wins");
    machine.settings.explicit = ExplicitSettings::default();
    let mut collector = machine.collector();
    collector.belong_to(&instance("i"), Some(&run));
    assert_eq!(collector.deadline(SourceName::Cfn), Duration::from_secs(33));
    assert_eq!(collector.deadline(SourceName::File), machine.settings.sources.timeout);
    collector.poll_once().await;
    for _ in 0..9 {
        let pause = collector.snapshot().sources["cfn"].next_try.unwrap().since(machine.clock.now());
        assert!(pause >= Duration::from_millis(3150) && pause <= Duration::from_millis(10_850), "{pause:?}");
        machine.clock.advance(pause);
        collector.poll_once().await;
    }
    machine.settings.explicit =
        ExplicitSettings { polling_interval: true, min_polling_interval: true, splay: true, timeout: true };
    let mut collector = machine.collector();
    collector.belong_to(&instance("i"), None);
    assert!(!waits(&collector), "agent.toml says no splay");
    for _ in 0..9 {
        machine.clock.advance(Duration::from_mins(2));
        collector.poll_once().await;
    }
    let pause = collector.snapshot().sources["cfn"].next_try.unwrap().since(machine.clock.now());
    assert!(pause >= Duration::from_secs(27), "{pause:?}");
}

#[tokio::test]
async fn local_data_is_weaker_than_heat_and_asks_for_nothing() {
    let heat = Fake::start(vec![answer(&json!({"deployments": [], "a": "heat"}))]).await;
    let machine = Machine::new();
    machine.put("/var/lib/os-collect-config/local-data/mine", "{\"a\": \"mine\", \"b\": 1, \"deployments\": [{\"id\": \"x\"}]}");
    let mut collector = machine.collector();
    assert_eq!(collector.poll_once().await, SnapshotChange { metadata: true, answered: false, sources: true });
    let snapshot = collector.snapshot();
    assert!(snapshot.deployments.is_none() && snapshot.authority.is_none() && snapshot.metadata["a"] == "mine");
    assert!(machine.codes().contains(&Code::MetadataPartInvalid));
    machine.put(BOOT, &boot(&heat.base));
    collector.poll_once().await;
    let snapshot = collector.snapshot();
    assert_eq!((snapshot.metadata["a"].clone(), snapshot.metadata["b"].clone()), (json!("heat"), json!(1)));
    machine.root.set_attributes(Path::new("/var/lib/os-collect-config/local-data/mine"), Attributes::mode(0o666)).unwrap();
    collector.poll_once().await;
    let state = &collector.snapshot().sources["local"];
    assert!(
        state.failures == 1 && state.cause.as_ref().unwrap().contains("can be changed by users other than root"),
        "{state:?}"
    );
    assert_eq!(collector.snapshot().metadata["b"], 1, "what it said last stays");
}
