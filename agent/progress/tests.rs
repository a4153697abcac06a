use super::*;

fn progress() -> (Progress, Clock) {
    let clock = Clock::manual(Timestamp(0));
    (Progress::new(Report::kept(), clock.clone()), clock)
}

fn gate(name: &str) -> StepId {
    StepId::Gate(name.to_owned())
}

fn unit(name: &str) -> StepId {
    StepId::Unit(name.to_owned())
}

const ETCD: StepId = StepId::Volume(crate::desired::VolumeRole::Etcd);
const RUNTIME: StepId = StepId::Volume(crate::desired::VolumeRole::Runtime);

fn shown(progress: &Progress) -> Vec<String> {
    let line =
        |step: &Condition| format!("{} {:?} {} {}", step.name, step.state, step.attempt, step.cause.as_deref().unwrap_or("-"));
    progress.steps().iter().map(line).collect()
}

#[test]
fn a_step_begins_waits_for_what_events_say_and_ends() {
    let (progress, clock) = progress();
    progress.expect(vec![StepId::Files, ETCD, gate("etcd")]);
    let waits = |attempt| {
        let event = Event::new(Code::GateWaiting, "not green").attempt(attempt).cause("refused");
        progress.emit(&gate("etcd"), event);
    };
    // Before it begins nothing is waited for.
    waits(1);
    assert_eq!(shown(&progress), ["files Pending 0 -", "volume etcd Pending 0 -", "gate etcd Pending 0 -"]);
    progress.end(&StepId::Files);
    clock.advance(Duration::from_secs(1));
    progress.begin(&gate("etcd"), vec![]);
    progress.begin_early(&ETCD);
    waits(31);
    progress.emit(&ETCD, Event::new(Code::VolumeWaiting, "no disk has it"));
    progress.emit(&gate("etcd"), Event::new(Code::GatePassed, "green"));
    assert_eq!(shown(&progress), ["files Ok 0 -", "volume etcd Waiting 0 no disk has it", "gate etcd Waiting 31 refused"]);
    assert_eq!(progress.steps()[2].since.as_deref(), Some("1970-01-01T00:00:01Z"));
    progress.give_up_after(&gate("etcd"), Duration::from_mins(10));
    progress.give_up_after(&gate("x"), Duration::from_mins(10));
    let ends = || progress.steps().into_iter().map(|step| step.given_up).collect::<Vec<_>>();
    assert_eq!(ends(), [None, None, Some("1970-01-01T00:10:01Z".to_owned())]);
    waits(32);
    assert!(ends()[2].is_some(), "news change nothing of it");
    progress.end(&gate("etcd"));
    assert_eq!(ends(), [None, None, None], "it is over");
    progress.fail(&ETCD, &ETCD, "no room", "make room");
    assert_eq!(shown(&progress), ["files Ok 0 -", "volume etcd Failed 0 no room", "gate etcd Ok 0 -"]);
}

#[test]
fn good_news_of_a_step_say_what_it_waited_for_and_complaints_do_not() {
    let (progress, clock) = progress();
    let last = || {
        let event = progress.report().events().pop().unwrap();
        (event.message, event.waited_for, event.waited.map(|waited| waited.as_millis()))
    };
    let passed = || {
        progress.emit(&gate("etcd"), Event::new(Code::GatePassed, "gate etcd passed").duration(Duration::from_millis(800)));
        last()
    };
    progress.begin_run(None);
    clock.advance(Duration::from_millis(100));
    progress.begin(&unit("etcd.service"), vec![]);
    progress.emit(&unit("etcd.service"), Event::new(Code::UnitStarted, "started"));
    assert_eq!(last().1, None);
    clock.advance(Duration::from_millis(14_200));
    progress.end(&unit("etcd.service"));
    assert_eq!(passed(), ("gate etcd passed".into(), None, None), "it has not begun");
    progress.begin(&gate("etcd"), vec![StepId::Certificates, unit("etcd.service")]);
    let reported = "gate etcd passed (800ms, waited 14.3s for unit etcd.service)";
    assert_eq!(passed(), (reported.into(), Some("unit etcd.service".into()), Some(14_300)));
    progress.emit(&gate("etcd"), Event::new(Code::GateWaiting, "not green"));
    assert_eq!(last(), ("not green".into(), None, None));
}

#[test]
fn laps_know_who_goes_on_and_who_failed() {
    let (progress, clock) = progress();
    let at = |millis| clock.advance(Duration::from_millis(millis).saturating_sub(clock.now().since(Timestamp(0))));
    progress.begin_run(None);
    progress.begin(&unit("a"), vec![]);
    at(10);
    progress.begin(&unit("b"), vec![]);
    at(30);
    progress.end(&unit("a"));
    at(35);
    progress.end(&unit("a"));
    at(40);
    progress.begin(&unit("c"), vec![unit("a")]);
    let step_timings = || progress.step_timings().iter().map(|timing| (timing.took_ms, timing.state)).collect::<Vec<_>>();
    assert_eq!(step_timings(), [(30, ConditionState::Ok), (30, ConditionState::Waiting), (0, ConditionState::Waiting)]);
    at(60);
    progress.fail(&unit("b"), &unit("b"), "why", "what");
    assert_eq!(step_timings(), [(30, ConditionState::Ok), (50, ConditionState::Failed), (20, ConditionState::Waiting)]);
    progress.begin_run(None);
    assert!(progress.step_timings().is_empty());
}

#[test]
fn what_is_done_one_after_the_other_comes_before_all_that_waits_for_nothing() {
    let (progress, _) = progress();
    progress.begin_run(None);
    let checks = progress.begin_next(StepId::Checks);
    progress.end(&checks);
    progress.begin_next("plan");
    progress.begin(&unit("a"), vec![]);
    progress.begin(&gate("a"), vec![unit("a")]);
    let after: Vec<_> = progress.step_timings().into_iter().map(|timing| timing.after.join(", ")).collect();
    assert_eq!(after, ["", "checks", "plan", "unit a"]);
}

#[test]
fn a_step_that_did_not_begin_says_what_it_waits_for_until_it_begins() {
    let (progress, _) = progress();
    progress.expect(vec![ETCD, unit("etcd")]);
    progress.wait_for(vec![(unit("etcd"), vec![ETCD])]);
    assert_eq!(progress.steps().iter().map(|step| step.waits_for.join(", ")).collect::<Vec<_>>(), ["", "volume etcd"]);
    progress.wait_for(vec![]);
    assert!(progress.steps().iter().all(|step| step.waits_for.is_empty()));
}

#[test]
fn a_failure_belongs_to_the_step_that_it_speaks_of() {
    for (step, owner) in [
        (StepId::File("/etc/x".into()), "files"),
        (unit("etcd.service"), "unit etcd.service"),
        (RUNTIME, "volume runtime"),
        ("reading the units' states".into(), "reading the units' states"),
    ] {
        let (progress, _) = progress();
        progress.expect(vec![StepId::Files, RUNTIME, ETCD, unit("etcd.service")]);
        progress.end(&StepId::Files);
        progress.fail(&StepId::Checks, &step, "why", "what");
        let failed: Vec<_> = progress.steps().into_iter().filter(|step| step.state == ConditionState::Failed).collect();
        assert_eq!(failed.iter().map(|step| step.name.as_str()).collect::<Vec<_>>(), [owner]);
    }
}

#[test]
fn the_phase_is_that_of_what_is_waited_for() {
    let etcd = || unit("etcd.service");
    for (done, waiting, pending, phase) in [
        (vec![], vec![], vec![], Phase::Plan),
        (vec![StepId::Files], vec![ETCD, gate("etcd")], vec![], Phase::Volume),
        (vec![StepId::Files], vec![StepId::Certificates, etcd()], vec![], Phase::Certificates),
        (vec![StepId::Files], vec![etcd()], vec![], Phase::Units),
        (vec![etcd()], vec![gate("etcd")], vec![], Phase::Gates),
        (vec![etcd(), gate("etcd")], vec![], vec![], Phase::Gates),
        (vec![], vec![], vec![StepId::Files, gate("etcd")], Phase::Plan),
    ] {
        let (progress, _) = progress();
        progress.expect([done.clone(), waiting.clone(), pending].concat());
        for step in &done {
            progress.end(step);
        }
        for step in &waiting {
            progress.begin(step, vec![]);
        }
        assert_eq!(progress.phase(), phase, "{done:?} {waiting:?}");
    }
}
