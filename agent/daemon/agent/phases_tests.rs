use std::path::Path;
use std::sync::Arc;

use serde_json::json;

use super::*;
use crate::clock::{Clock, Timestamp};
use crate::collect::SourceState;
use crate::files::Tree;
use crate::report::Report;
use crate::settings::{Legacy, Settings};

/// A state that agents come and go on.
struct Fixture {
    _dir: tempfile::TempDir,
    tree: Arc<Tree>,
    clock: Clock,
    report: Report,
}

impl Fixture {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let tree = Arc::new(Tree::open(dir.path()).unwrap());
        Self { _dir: dir, tree, clock: Clock::manual(Timestamp(1_772_366_400_000)), report: Report::kept() }
    }

    /// The phases of an agent that starts now.
    fn open(&self, phases: bool) -> Phases {
        let programs = Rc::new(Programs::new(Arc::clone(&self.tree), None, self.clock.clone()).unwrap());
        let host = Host {
            settings: Settings { legacy: Legacy { phases }, ..Settings::default() },
            report: self.report.clone(),
            ..Host::in_directory(Arc::clone(&self.tree), self.clock.clone())
        };
        Phases::open(Rc::new(host), programs).unwrap()
    }

    fn told(&self, code: Code) -> usize {
        self.report.events().iter().filter(|event| event.code == code).count()
    }

    /// The runner began, and left this result.
    fn leave(&self, result: Option<&JobResult>) {
        let directory = Path::new("work/phases");
        self.tree.create_new(&directory.join("started"), b"", Attributes::mode(0o600)).unwrap();
        if let Some(result) = result {
            self.tree.write_json(&directory.join("result.json"), result, Attributes::mode(0o600)).unwrap();
        }
    }
}

fn snapshot(digest: &str) -> Snapshot {
    let tried = SourceState { last_try: Some(Timestamp(0)), ..SourceState::default() };
    let metadata = json!({"role": "db", "admin_password": "hush-hush"});
    Snapshot {
        metadata: metadata.as_object().unwrap().clone(),
        sources: [("cfn", tried)].into(),
        digest: digest.to_owned(),
        ..Snapshot::default()
    }
}

fn ended(status: i32, stderr: &str) -> JobResult {
    JobResult { status, stderr: stderr.to_owned(), ..JobResult::default() }
}

/// Whether they were begun, and whether deployments wait.
fn begin(phases: &mut Phases, digest: &str) -> (bool, bool) {
    let waits = phases.begin(&snapshot(digest), || true);
    (std::mem::take(&mut phases.task).is_busy(), waits)
}

#[test]
fn they_run_once_for_each_metadata_where_the_settings_say_so_and_nothing_else_runs() {
    let fixture = Fixture::new();
    assert_eq!(begin(&mut fixture.open(false), "a"), (false, false), "by default");
    let mut phases = fixture.open(true);
    assert!(!phases.begin(&snapshot("a"), || false) && !phases.is_busy(), "a script runs");
    let unasked = Snapshot { sources: [("cfn", SourceState::default())].into(), ..snapshot("a") };
    assert!(phases.begin(&unasked, || true) && !phases.is_busy(), "a source has not been asked");
    assert_eq!((begin(&mut phases, "a"), fixture.told(Code::PhasesStarted)), ((true, true), 1));
    let job = phases.programs.prepared(KEY).unwrap().unwrap();
    assert_eq!((job.called.as_deref(), job.time_limit_ms), (Some("os-refresh-config"), Some(50 * 60 * 1000)));
    let of = |name: &str| job.environment[name].as_str();
    assert_eq!((of(PHASES), of("OS_CONFIG_FILES")), ("a", "/run/heat-config/metadata/0.json"));
    assert!(job.files[0].content.contains("\"role\":\"db\"") && job.secrets.contains(&"hush-hush".to_owned()));
    phases.record("a", Ok(Some(ended(0, "")))).unwrap();
    assert_eq!(begin(&mut phases, "a"), (false, false), "they have run for it");
    assert!(!phases.programs.directory(KEY).exists(), "it holds the metadata");
    assert_eq!(phases.condition().unwrap().state, ConditionState::Ok);
    assert_eq!(begin(&mut fixture.open(true), "a"), (false, false), "a restart changes nothing");
    assert_eq!(begin(&mut phases, "b"), (true, true), "a change");
    // It changed back before they were done.
    phases.record("b", Ok(Some(ended(0, "")))).unwrap();
    assert_eq!(begin(&mut phases, "a"), (true, true));
}

#[test]
fn a_failure_is_shown_and_tried_again_and_deployments_wait_for_a_while_only() {
    let fixture = Fixture::new();
    let mut phases = fixture.open(true);
    assert_eq!(begin(&mut phases, "a"), (true, true));
    phases.record("a", Ok(Some(ended(1, "apt: no network\n")))).unwrap();
    assert_eq!((begin(&mut phases, "a"), phases.until_due()), ((false, true), Some(Duration::from_secs(1))));
    let shown = phases.condition().unwrap();
    assert_eq!(
        (shown.state, shown.attempt, shown.next_try.as_deref()),
        (ConditionState::Failed, 1, Some("2026-03-01T12:00:01Z"))
    );
    assert!(shown.cause.unwrap().contains("apt: no network") && shown.remedy.unwrap().contains("heat-phases.service"));
    for attempt in 2..5 {
        fixture.clock.advance(phases.damper.left());
        assert_eq!(begin(&mut phases, "a"), (true, true));
        phases.record("a", Ok(Some(ended(1, "apt: no network\n")))).unwrap();
        assert_eq!(phases.condition().unwrap().attempt, attempt);
    }
    assert_eq!((fixture.told(Code::PhasesStarted), fixture.told(Code::PhasesFailed)), (1, 1), "once a cause");
    // Something newer need not wait for the next try of the older.
    assert_eq!(begin(&mut phases, "b"), (true, true));
    phases.record("b", Ok(Some(ended(1, "apt: no space\n")))).unwrap();
    assert_eq!(fixture.told(Code::PhasesFailed), 2);
    fixture.clock.advance(HOLD);
    assert_eq!(begin(&mut phases, "b"), (true, true), "the next try");
    phases.record("b", Ok(Some(ended(1, "apt: no space\n")))).unwrap();
    assert_eq!(begin(&mut phases, "b"), (false, false), "the deployments have waited long enough");
    fixture.clock.advance(phases.damper.left());
    assert_eq!(begin(&mut phases, "b"), (true, true));
    phases.record("b", Ok(Some(ended(0, "")))).unwrap();
    assert_eq!((phases.condition().unwrap().state, phases.until_due()), (ConditionState::Ok, None));
    assert!(!phases.is_failing() && phases.damper.left().is_zero());
}

#[tokio::test]
async fn what_an_agent_before_began_is_taken_up_and_its_end_counts() {
    for is_wanted_still in [true, false] {
        let fixture = Fixture::new();
        assert_eq!(begin(&mut fixture.open(true), "a"), (true, true));
        fixture.leave(Some(&JobResult::default()));
        let mut phases = fixture.open(is_wanted_still);
        // Also beside what the settings say now, and for metadata that has changed since.
        assert!(phases.begin(&snapshot("b"), || panic!("it is not asked")) && phases.is_busy());
        let (digest, ran) = phases.ended().await;
        assert_eq!(digest, "a");
        phases.record(&digest, ran).unwrap();
        assert_eq!(begin(&mut fixture.open(true), "a"), (false, false), "it is not run again");
        assert_eq!(begin(&mut phases, "b"), (is_wanted_still, is_wanted_still));
    }
    // Attack: the machine lost its power in the middle.
    let fixture = Fixture::new();
    assert_eq!(begin(&mut fixture.open(true), "a"), (true, true));
    fixture.leave(None);
    let mut phases = fixture.open(true);
    assert!(phases.begin(&snapshot("a"), || true));
    let (digest, ran) = phases.ended().await;
    phases.record(&digest, ran).unwrap();
    assert!(phases.condition().unwrap().cause.unwrap().starts_with("interrupted: "));
    fixture.clock.advance(phases.damper.left());
    assert_eq!(begin(&mut phases, "a"), (true, true), "it is run again");
    // What was only prepared has not begun: it is prepared anew, for what the metadata says now.
    assert_eq!(begin(&mut fixture.open(true), "b"), (true, true));
    assert_eq!(phases.programs.prepared(KEY).unwrap().unwrap().environment[PHASES], "b");
}

#[test]
fn the_cause_names_the_program_that_failed_and_its_last_words() {
    let log = |level: &str, text: &str| format!("[2026-03-01T12:00:00Z] (os-refresh-config) [{level}] {text}\n");
    let parts = |text: &str| format!("dib-run-parts 2026-03-01T12:00:00Z {text}\n");
    let failed = log("ERROR", "phase configure ended with status 3: the phases after it are not run");
    let one = log("INFO", "starting phase configure")
        + &parts("Running /p/configure.d/10-a")
        + &parts("10-a completed")
        + &parts("Running /p/configure.d/20-b");
    let more = log("INFO", "starting what error.d has for this") + &parts("Running /p/error.d/10-clean") + "cleaned\n";
    for (stderr, expected) in [
        (
            one.clone() + "E: no such package\n" + &failed + &more,
            "phase configure ended with status 3, in /p/configure.d/20-b; last output: E: no such package",
        ),
        (one + &failed, "phase configure ended with status 3, in /p/configure.d/20-b"),
        (
            "dib-run-parts: /p/configure.d/20-b can be changed by users other than root\n".to_owned() + &failed,
            "phase configure ended with status 3; last output: dib-run-parts: /p/configure.d/20-b can be changed by users other than root",
        ),
        (log("ERROR", "another one runs: /run/l is locked"), "another one runs: /run/l is locked"),
        ("told\n".to_owned(), "exit status 1; last output: told"),
        (String::new(), "exit status 1"),
    ] {
        let outcome = DeploymentOutcome::of_script(JobResult { status: 1, stderr, ..JobResult::default() });
        assert_eq!(cause(&outcome), expected);
    }
    let overrun = JobResult { status: -15, timed_out: true, duration_ms: 9000, ..JobResult::default() };
    assert!(cause(&DeploymentOutcome::of_script(overrun)).starts_with("it exceeded its time limit"));
}
