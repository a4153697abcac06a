use std::collections::BTreeSet;

use super::*;
use crate::desired::{AddOn, Unit};

const ETCD: &str = "etcd.service";

fn unit(name: &str) -> Unit {
    Unit {
        name: name.to_owned(),
        enable: true,
        restart_on: BTreeSet::new(),
        needs: BTreeSet::new(),
        applies_files: name.starts_with("systemd-"),
    }
}

fn gate(name: &str, unit: Option<&str>, needs: &[&str], deadline: Option<Duration>) -> Gate {
    Gate {
        name: name.to_owned(),
        unit: unit.map(str::to_owned),
        probe: GateProbe::Socket("/run/x".to_owned()),
        consecutive: 3,
        deadline,
        needs: needs.iter().map(|gate| Dependency::Gate((*gate).to_owned())).collect(),
        remedy: format!("`look at {name}`"),
    }
}

/// A master's: etcd, an API server that needs it, a kubelet that another machine registers, and settings of the kernel.
fn node() -> Desired {
    let own = Some(Duration::from_mins(10));
    Desired {
        units: [ETCD, "kube-apiserver.service", "kubelet.service", "systemd-sysctl.service"].map(unit).into(),
        gates: vec![
            gate("etcd", Some(ETCD), &[], None),
            gate("apiserver", Some("kube-apiserver.service"), &["etcd"], own),
            gate("kubelet", Some("kubelet.service"), &[], own),
            gate("registration", Some("kubelet.service"), &[], None),
            gate("sysctl", Some("systemd-sysctl.service"), &[], own),
        ],
        ..Desired::default()
    }
}

/// A node that is measured, with a clock that the test sets.
struct Watch {
    health: ComponentHealth,
    now: Timestamp,
    states: BTreeMap<String, UnitState>,
    failed: BTreeMap<&'static str, &'static str>,
}

impl Watch {
    /// One that has been healthy for two minutes.
    fn new() -> Self {
        let mut health = ComponentHealth::default();
        let now = Timestamp(0);
        health.begin(&node(), now);
        let up = |name: String| (name.clone(), state(&name, "active", "running", 0));
        let states = health.units().into_iter().map(up).collect();
        let mut watch = Self { health, now, states, failed: BTreeMap::new() };
        assert!(watch.measure(0).is_empty() && watch.measure(120).is_empty());
        assert!(watch.is_healthy());
        watch
    }

    /// So many seconds later everything is measured; what of it is news.
    fn measure(&mut self, after: u64) -> Vec<HealthEvent> {
        self.now = self.now.after(Duration::from_secs(after));
        for state in self.states.values() {
            self.health.record_state(state.clone(), self.now);
        }
        for name in self.health.gates(None) {
            let bad = |cause: &&str| BadAnswer { cause: (*cause).to_owned(), is_silence: cause.starts_with("no answer") };
            let answer = self.failed.get(name.as_str()).map_or(Ok(()), |cause| Err(bad(cause)));
            self.health.record_gate_answer(&name, &answer);
        }
        self.health.complete();
        self.news()
    }

    /// systemd reports on a unit.
    fn receive(&mut self, after: u64, state: UnitState) -> Vec<HealthEvent> {
        self.now = self.now.after(Duration::from_secs(after));
        self.states.insert(state.name.clone(), state.clone());
        self.health.record_state(state, self.now);
        self.news()
    }

    fn news(&mut self) -> Vec<HealthEvent> {
        let mut events = self.all_events();
        events.retain(|event| !matches!(event, HealthEvent::Unreported(..)));
        events
    }

    /// With what is no news.
    fn all_events(&mut self) -> Vec<HealthEvent> {
        self.health.judge(self.now)
    }

    /// etcd dies, and is restarted 5 s later for the `count`th time.
    fn die(&mut self, count: u32) -> Vec<HealthEvent> {
        let mut died = state(ETCD, "activating", "auto-restart", count - 1);
        (died.result, died.exec_main_status) = ("exit-code".to_owned(), 1);
        let mut effects = self.receive(1, died);
        effects.extend(self.receive(5, state(ETCD, "active", "running", count)));
        effects
    }

    fn of(&self, name: &str) -> (ComponentState, String) {
        let component = self.health.of(name, &self.clock()).unwrap();
        (component.state, component.problem.unwrap_or_default())
    }

    fn clock(&self) -> Clock {
        Clock::manual(self.now)
    }

    fn is_healthy(&self) -> bool {
        let all = self.health.status(&self.clock());
        !all.is_empty() && all.iter().all(|one| one.state == ComponentState::Healthy)
    }
}

fn state(name: &str, active: &str, sub: &str, n_restarts: u32) -> UnitState {
    UnitState {
        name: name.to_owned(),
        load_state: "loaded".to_owned(),
        active_state: active.to_owned(),
        sub_state: sub.to_owned(),
        result: "success".to_owned(),
        main_pid: if active == "active" { 100 + n_restarts } else { 0 },
        n_restarts,
        ..UnitState::default()
    }
}

#[test]
fn what_is_on_its_way_up_at_a_boot_did_not_get_worse() {
    let unit_of = |active, sub| state(ETCD, active, sub, 0);
    let mut watch = Watch { health: ComponentHealth::default(), ..Watch::new() };
    watch.health.begin(&node(), watch.now);
    // Longer than a restart by hand may take unnoticed.
    for (after, unit) in
        [(0, unit_of("activating", "start")), (5, unit_of("activating", "start")), (30, unit_of("active", "running"))]
    {
        watch.now = watch.now.after(Duration::from_secs(after));
        watch.health.record_state(unit, watch.now);
        watch.health.record_gate_answer("etcd", &Ok(()));
        assert_eq!(watch.all_events(), [], "after {after} s");
        assert_eq!(watch.of("etcd").0, if after == 5 { ComponentState::Degraded } else { ComponentState::Healthy });
    }
    // The same later is another matter.
    for after in [100, 5] {
        watch.now = watch.now.after(Duration::from_secs(after));
        watch.health.record_state(unit_of("activating", "start"), watch.now);
        let expected = [HealthEvent::Unreported("etcd".to_owned(), Some(ProblemKind::Starting))];
        assert_eq!(watch.all_events(), expected[usize::from(after == 100)..], "after {after} s more");
    }
}

#[test]
fn what_could_not_be_reported_is_if_it_still_holds_once_it_was_measured_again() {
    let mut watch = Watch::new();
    let down = |kind| HealthEvent::Report("etcd".to_owned(), kind);
    let mut events = watch.receive(1, state(ETCD, "failed", "failed", 0));
    assert_eq!(events, [down(ProblemKind::Down)]);
    // Meanwhile somebody touched the node: what is known is from before.
    watch.health.forget();
    assert_eq!(watch.health.sort_out(&mut events), []);
    assert_eq!(events.len(), 1, "it stays");
    assert_eq!(watch.measure(1), []);
    assert_eq!(watch.health.sort_out(&mut events), [down(ProblemKind::Down)]);
    assert_eq!(events, []);
    // What was never said to be wrong does not recover.
    let mut events = vec![down(ProblemKind::Looping), HealthEvent::Recovered("etcd".to_owned())];
    watch.receive(1, state(ETCD, "active", "running", 0));
    watch.measure(60);
    assert_eq!(watch.health.sort_out(&mut events), []);
    assert_eq!(events, []);
}

/// Attack: what happened again and again while the node was being changed was reported as often after that.
#[test]
fn what_could_not_be_reported_is_reported_once_however_often_it_happened() {
    let mut watch = Watch::new();
    let down = HealthEvent::Report("etcd".to_owned(), ProblemKind::Down);
    watch.receive(1, state(ETCD, "failed", "failed", 0));
    let mut events: Vec<HealthEvent> = (0..50).flat_map(|_| [recovered("etcd").remove(0), down.clone()]).collect();
    watch.health.forget();
    assert_eq!(watch.health.sort_out(&mut events), []);
    assert_eq!(events.len(), 2, "nor is it kept so often");
    watch.measure(1);
    assert_eq!(watch.health.sort_out(&mut events), [down]);
}

/// Attack: in the first seconds after each start of the agent `status` said READY of a node that was DEGRADED before.
#[test]
fn nothing_is_said_to_be_healthy_before_a_look_that_is_sure() {
    let up = || UnitState { up_for: Some(Duration::from_mins(5)), ..state(ETCD, "active", "running", 0) };
    for (unit, answer) in [
        (state(ETCD, "activating", "start", 0), None),
        (up(), Some(BadAnswer { cause: "503".to_owned(), is_silence: false })),
        (up(), None),
    ] {
        let mut health = ComponentHealth::default();
        health.begin(&node(), Timestamp(0));
        let is_sure = unit.is_active() && answer.is_none();
        for look in 0..2 {
            let now = Timestamp(3_600_000 + look * 3_000);
            health.record_state(unit.clone(), now);
            health.record_gate_answer("etcd", &answer.clone().map_or(Ok(()), Err));
            health.complete();
            health.judge(now);
            let shown = health.status(&Clock::manual(now));
            let etcd = shown.iter().find(|one| one.name == "etcd").map(|one| one.state == ComponentState::Healthy);
            assert_eq!(etcd, (is_sure || look > 0).then_some(is_sure), "look {look}: {unit:?} {answer:?}");
            assert_eq!(health.is_settled(), etcd.is_some());
        }
    }
}

fn report(name: &str, kind: ProblemKind) -> Vec<HealthEvent> {
    vec![HealthEvent::Report(name.to_owned(), kind)]
}

fn recovered(name: &str) -> Vec<HealthEvent> {
    vec![HealthEvent::Recovered(name.to_owned())]
}

#[test]
fn components_are_the_units_that_run_and_gates_that_speak_for_none_of_them() {
    let mut health = ComponentHealth::default();
    health.begin(&node(), Timestamp(0));
    assert!(health.status(&Clock::manual(Timestamp(0))).is_empty(), "nothing is known before the first measurement");
    health.complete();
    health.judge(Timestamp(0));
    let names = |health: &ComponentHealth| {
        health.status(&Clock::manual(Timestamp(0))).into_iter().map(|one| (one.name, one.unit.is_some())).collect::<Vec<_>>()
    };
    let expected =
        [("etcd", true), ("kube-apiserver", true), ("kubelet", true), ("sysctl", false)].map(|(name, of)| (name.to_owned(), of));
    assert_eq!(names(&health), expected);
    // What is down is not asked, and what speaks for no unit always is.
    assert_eq!(health.gates(None), ["sysctl"]);
    assert!(health.record_state(state("kubelet.service", "active", "running", 0), Timestamp(0)), "it came up");
    assert!(!health.record_state(state("kubelet.service", "active", "running", 0), Timestamp(1)), "it is the same process");
    assert_eq!(health.gates(Some("kubelet.service")), ["kubelet", "registration"]);
    // Another generation, which has no kubelet.
    let mut other = node();
    other.units.remove(2);
    other.gates.drain(2..4);
    health.begin(&other, Timestamp(2));
    assert_eq!(names(&health).len(), 3);
    // And one that has it again: nobody knows how it is before it was measured.
    health.begin(&node(), Timestamp(3));
    assert_eq!(names(&health).len(), 3);
    health.complete();
    health.judge(Timestamp(4));
    assert_eq!(names(&health), expected);
}

#[test]
fn what_systemd_says_of_a_unit_is_a_verdict() {
    for (active, sub, load, job, expected, at_once) in [
        ("active", "running", "loaded", false, (ComponentState::Healthy, ""), true),
        ("reloading", "reload", "loaded", false, (ComponentState::Healthy, ""), true),
        ("activating", "start", "loaded", false, (ComponentState::Degraded, "starting"), false),
        ("inactive", "dead", "loaded", true, (ComponentState::Degraded, "starting"), false),
        ("activating", "auto-restart", "loaded", false, (ComponentState::Degraded, "restarting"), true),
        ("inactive", "dead", "loaded", false, (ComponentState::Failed, "not running"), false),
        ("inactive", "dead", "masked", false, (ComponentState::Failed, "masked"), false),
        ("failed", "failed", "loaded", false, (ComponentState::Failed, "failed"), true),
    ] {
        let mut watch = Watch::new();
        let mut found = state(ETCD, active, sub, 0);
        (found.load_state, found.job_queued) = (load.to_owned(), job);
        watch.receive(1, found);
        let expected = (expected.0, expected.1.to_owned());
        assert_eq!(watch.of("etcd") == expected, at_once, "{active} {sub}: {:?}", watch.of("etcd"));
        if !at_once {
            assert_eq!(watch.health.pause(0.5), RECHECK_DELAY, "it is looked at again soon");
        }
        watch.measure(3);
        assert_eq!(watch.of("etcd"), expected, "{active} {sub}");
    }
}

#[test]
fn what_was_stopped_is_started_by_its_remedy_after_a_look_and_its_last_lines_are_no_cause() {
    let mut watch = Watch::new();
    watch.receive(1, state(ETCD, "inactive", "dead", 0));
    watch.measure(3);
    let why = CrashCause { quote: " (last lines of etcd.service: serving)".to_owned(), ..CrashCause::default() };
    watch.health.explain("etcd", ProblemKind::Stopped, why, watch.now);
    let found = watch.health.of("etcd", &watch.clock()).unwrap();
    assert_eq!(found.cause.unwrap(), "etcd.service is inactive (dead): it was not started since boot");
    assert!(
        found.remedy.unwrap().contains("Unless somebody needs it down for work on this node, `systemctl start etcd.service`")
    );
}

#[test]
fn how_a_unit_went_down_is_named() {
    for (left, words) in [(Departure::Stopped, "it was stopped"), (Departure::Ended, "its process ended without an error")] {
        let mut watch = Watch::new();
        watch.receive(1, UnitState { left: Some(left), ..state(ETCD, "inactive", "dead", 0) });
        watch.measure(3);
        let cause = watch.health.of("etcd", &watch.clock()).unwrap().cause.unwrap();
        assert_eq!(cause, format!("etcd.service is inactive (dead): {words}"));
    }
}

#[test]
fn what_comes_before_a_program_says_itself_what_it_waits_for() {
    let mut watch = Watch::new();
    watch.receive(1, state(ETCD, "activating", "start-pre", 0));
    watch.measure(3);
    let found = watch.health.of("etcd", &watch.clock()).unwrap();
    assert_eq!(found.cause.unwrap(), "etcd.service runs a command that comes before its program (start-pre)");
    assert!(found.remedy.unwrap().starts_with("`systemctl status etcd.service` shows what that waits for. "));
}

#[test]
fn a_unit_that_waits_for_free_space_names_the_store() {
    let mut watch = Watch::new();
    watch.health.components.iter_mut().find(|one| one.name == "etcd").unwrap().needs.store = Some("/var/lib/etcd".to_owned());
    watch.receive(1, state(ETCD, "activating", "start-pre", 0));
    watch.measure(3);
    assert_eq!(
        watch.health.of("etcd", &watch.clock()).unwrap().cause.unwrap(),
        "etcd.service is down: it waits until /var/lib/etcd has 64 MiB of free space"
    );
}

#[test]
fn why_a_process_hangs_comes_before_that_it_does_and_has_its_own_remedy() {
    let mut watch = Watch::new();
    watch.failed.insert("etcd", "no answer within 5 s");
    watch.measure(1);
    watch.measure(3);
    assert_eq!(watch.health.main_process("etcd"), Some(100));
    let why =
        CrashCause { fact: "its process is stopped".to_owned(), remedy: Some("`continue it`".into()), ..CrashCause::default() };
    watch.health.explain("etcd", ProblemKind::Hanging, why, watch.now);
    let found = watch.health.of("etcd", &watch.clock()).unwrap();
    assert_eq!(found.cause.unwrap(), "its process is stopped; etcd.service hangs: no answer within 5 s");
    assert_eq!(found.remedy.unwrap(), "`continue it`. The agent will notice within 60 s");
}

#[test]
fn a_component_whose_unit_needs_one_that_is_down_waits_for_it() {
    let mut needing = node();
    for unit in needing.units.iter_mut().filter(|unit| unit.name == "kubelet.service") {
        unit.needs = BTreeSet::from([Dependency::Gate("etcd".to_owned())]);
    }
    let mut watch = Watch::new();
    watch.health.begin(&needing, watch.now);
    watch.receive(1, state(ETCD, "inactive", "dead", 0));
    watch.failed.insert("kubelet", "answered 500");
    watch.measure(3);
    watch.measure(3);
    assert_eq!(watch.of("kubelet"), (ComponentState::Degraded, "waiting for etcd".to_owned()));
}

#[test]
fn a_restart_by_hand_is_no_news() {
    let mut watch = Watch::new();
    assert!(watch.receive(1, state(ETCD, "deactivating", "stop-sigterm", 0)).is_empty());
    assert!(watch.receive(1, state(ETCD, "inactive", "dead", 0)).is_empty());
    assert!(watch.receive(1, state(ETCD, "activating", "start", 0)).is_empty());
    assert!(watch.receive(1, UnitState { main_pid: 7, ..state(ETCD, "active", "running", 0) }).is_empty());
    assert!(watch.measure(3).is_empty() && watch.is_healthy());
}

#[test]
fn a_unit_that_is_stopped_is_reported_and_its_return_too() {
    let mut watch = Watch::new();
    let stopped = || state(ETCD, "inactive", "dead", 0);
    assert!(watch.receive(1, stopped()).is_empty());
    assert_eq!(watch.measure(3), report("etcd", ProblemKind::Stopped));
    assert!(watch.measure(40).is_empty() && watch.receive(5, stopped()).is_empty());
    assert_eq!(watch.receive(1, state(ETCD, "active", "running", 0)), recovered("etcd"));
    assert!(watch.measure(40).is_empty());
}

#[test]
fn the_third_restart_is_a_crash_loop_until_the_process_stays_up() {
    let mut watch = Watch::new();
    assert!(watch.die(1).is_empty() && watch.is_healthy(), "one death is no news");
    assert!(watch.die(2).is_empty());
    assert_eq!(watch.die(3), report("etcd", ProblemKind::Looping));
    assert_eq!(watch.of("etcd"), (ComponentState::Failed, "crash-looping (3 restarts)".to_owned()));
    let status = watch.health.of("etcd", &watch.clock()).unwrap();
    assert_eq!((status.restarts, status.unit.as_deref()), (3, Some(ETCD)));
    assert!(watch.health.status(&watch.clock()).iter().filter(|one| one.is_unhealthy()).count() == 1);
    // It is reported again each time the number has doubled.
    let reported: Vec<u32> = (4..=13).filter(|count| !watch.die(*count).is_empty()).collect();
    assert_eq!(reported, [6, 12]);
    assert!(watch.measure(29).is_empty() && !watch.is_healthy(), "it was up for 29 s before, too");
    assert_eq!(watch.measure(1), recovered("etcd"));
    assert!(watch.is_healthy());
}

/// Attack: what lost its lease every minute and a half was healthy for ever, as each look at a process that was up forgot that it had died.
#[test]
fn a_slow_crash_loop_is_one_as_well() {
    let mut watch = Watch::new();
    let mut effects = Vec::new();
    for count in 1..=4 {
        effects.extend(watch.die(count));
        effects.extend([40, 40].iter().flat_map(|after| watch.measure(*after)).collect::<Vec<_>>());
    }
    assert_eq!(effects, report("etcd", ProblemKind::Looping));
    assert_eq!(watch.of("etcd"), (ComponentState::Failed, "crash-looping (4 restarts)".to_owned()));
    assert!(watch.measure(80).is_empty() && !watch.is_healthy(), "it is up twice as long as before");
    // From then on it is one that died often.
    watch.measure(15);
    assert_eq!(watch.of("etcd"), (ComponentState::Healthy, String::new()));
}

/// Attack: a restart by hand minutes after a crash loop was reported as one, and a stop as well.
#[test]
fn what_is_stopped_after_a_crash_loop_is_stopped() {
    let mut watch = Watch::new();
    for count in 1..=3 {
        watch.die(count);
    }
    watch.measure(30);
    assert!(watch.is_healthy());
    watch.measure(120);
    assert!(watch.receive(1, state(ETCD, "deactivating", "stop-sigterm", 3)).is_empty());
    assert!(watch.receive(1, state(ETCD, "inactive", "dead", 3)).is_empty());
    assert_eq!(watch.measure(3), report("etcd", ProblemKind::Stopped));
}

/// Attack: the clock was hours ahead at boot, and whatever was wrong then lasted no time at all until those hours were over.
#[test]
fn a_clock_that_is_set_moves_what_is_shown_and_nothing_else() {
    let mut watch = Watch::new();
    watch.measure(3 * 3600);
    watch.receive(1, state(ETCD, "inactive", "dead", 0));
    assert_eq!(watch.measure(60), report("etcd", ProblemKind::Stopped));
    watch.measure(100);
    let clock = watch.clock();
    let since = watch.health.of("etcd", &clock).unwrap().since;
    for by in [Duration::from_hours(3), Duration::ZERO] {
        clock.set(watch.now.before(by));
        assert_eq!(
            watch.health.of("etcd", &clock).unwrap().since,
            Timestamp::parse_rfc3339(&since).unwrap().before(by).rfc3339()
        );
    }
}

/// Attack: one that hung was restarted, hung on, and was reported as recovered at its first bad answer.
#[test]
fn what_was_not_seen_to_be_well_is_not_well() {
    let mut watch = Watch::new();
    watch.failed.insert("etcd", "no answer within 5 s");
    watch.measure(40);
    assert_eq!(watch.measure(3), report("etcd", ProblemKind::Hanging));
    watch.measure(100);
    watch.health.forget();
    assert!(watch.news().is_empty(), "nobody has measured it");
    assert_ne!(watch.measure(90), recovered("etcd"));
    assert_ne!(watch.measure(3), recovered("etcd"));
    assert_ne!(watch.measure(3), recovered("etcd"));
    assert!(!watch.is_healthy());
    watch.failed.clear();
    assert_eq!(watch.measure(10), recovered("etcd"));
}

#[test]
fn what_dies_every_few_minutes_is_unstable_until_it_stays_up() {
    let mut watch = Watch::new();
    for count in 1..=4 {
        watch.measure(8 * 60);
        assert!(watch.is_healthy(), "{count}");
        let effects = watch.die(count);
        assert_eq!(effects, if count == 4 { report("etcd", ProblemKind::Unstable) } else { Vec::new() }, "{count}");
    }
    assert_eq!(watch.of("etcd"), (ComponentState::Degraded, "restarted 4 times in the last hour".to_owned()));
    let cause = watch.health.of("etcd", &watch.clock()).unwrap().cause.unwrap();
    assert_eq!(cause, "etcd.service runs, but exited with status 1 4 times in the last hour");
    // One that is up and does not answer is worse.
    watch.measure(60);
    watch.failed.insert("etcd", "no answer within 5 s");
    watch.measure(3);
    watch.measure(3);
    assert_eq!(watch.of("etcd"), (ComponentState::Failed, "not answering".to_owned()));
    watch.failed.clear();
    assert!(watch.measure(14 * 60).is_empty() && !watch.is_healthy());
    assert_eq!(watch.measure(120), recovered("etcd"));
    // Who restarts it by hand begins anew.
    watch.measure(8 * 60);
    watch.die(5);
    watch.receive(1, UnitState { main_pid: 7, ..state(ETCD, "active", "running", 0) });
    assert!(watch.is_healthy());
}

#[test]
fn why_a_process_dies_is_looked_at_at_once_and_again_while_it_does() {
    let mut watch = Watch::new();
    let mut died = state(ETCD, "activating", "auto-restart", 0);
    (died.result, died.exec_main_status) = ("exit-code".to_owned(), 1);
    watch.receive(1, died);
    let look = |watch: &mut Watch| {
        let found = watch.health.unexplained(watch.now);
        for (name, _, kind) in &found {
            watch.health.explain(name, *kind, CrashCause { quote: " (why)".to_owned(), ..CrashCause::default() }, watch.now);
        }
        found.into_iter().map(|(_, unit, kind)| (unit, kind)).collect::<Vec<_>>()
    };
    assert_eq!(look(&mut watch), [(ETCD.to_owned(), ProblemKind::Restarting)]);
    assert!(watch.health.of("etcd", &watch.clock()).unwrap().cause.unwrap().ends_with("about to be restarted (why)"));
    assert!(look(&mut watch).is_empty());
    watch.receive(5, state(ETCD, "active", "running", 1));
    assert!(look(&mut watch).is_empty());
    let looks: Vec<usize> = (2..=60)
        .map(|count| {
            watch.die(count);
            look(&mut watch).len()
        })
        .collect();
    assert_eq!(looks.iter().sum::<usize>(), 2, "{looks:?}");
}

#[test]
fn that_something_is_over_is_news_once_it_stays_away_each_time_longer() {
    let mut watch = Watch::new();
    let mut held = Vec::new();
    for _ in 0..4 {
        watch.receive(1, state(ETCD, "failed", "failed", 0));
        let since = watch.now;
        let mut effects = watch.receive(1, state(ETCD, "active", "running", 0));
        while effects.is_empty() {
            assert!(watch.is_healthy(), "what is over is over at once, though it is no news yet");
            effects = watch.measure(1);
        }
        assert_eq!(effects, recovered("etcd"));
        held.push(watch.now.since(since).as_secs());
    }
    assert_eq!(held, [1, 31, 61, 121]);
    // An hour later it is another matter.
    watch.measure(3600);
    watch.receive(1, state(ETCD, "failed", "failed", 0));
    assert_eq!(watch.receive(1, state(ETCD, "active", "running", 0)), recovered("etcd"));
}

#[test]
fn a_process_that_hangs_is_reported_at_its_second_bad_answer() {
    let mut watch = Watch::new();
    watch.failed.insert("etcd", "no answer within 5 s");
    assert!(watch.measure(40).is_empty() && watch.is_healthy());
    assert_eq!(watch.health.pause(0.5), RECHECK_DELAY);
    // Who needs it is not blamed, and not reported beside it.
    watch.failed.insert("apiserver", "answered 500");
    assert_eq!(watch.measure(3), report("etcd", ProblemKind::Hanging));
    assert_eq!(watch.of("etcd"), (ComponentState::Failed, "not answering".to_owned()));
    let status = watch.health.of("etcd", &watch.clock()).unwrap();
    assert_eq!(status.cause.as_deref(), Some("etcd.service hangs: no answer within 5 s"));
    let remedy = status.remedy.unwrap();
    assert!(
        remedy.contains("`uptime`") && remedy.contains("-s QUIT etcd.service`") && !remedy.contains("look at etcd"),
        "{remedy}"
    );
    assert!(watch.measure(5).is_empty());
    assert_eq!(watch.of("kube-apiserver"), (ComponentState::Degraded, "waiting for etcd".to_owned()));
    watch.failed.clear();
    // Of a process that was young and answered nobody says that it is starting.
    watch.receive(1, UnitState { main_pid: 7, ..state("kubelet.service", "active", "running", 0) });
    assert_eq!(watch.measure(10), recovered("etcd"));
    watch.failed.insert("kubelet", "connection refused");
    assert!(watch.measure(10).is_empty());
    assert_eq!(watch.measure(3), report("kubelet", ProblemKind::Wrong));
    watch.failed.clear();
    assert_eq!(watch.measure(10), recovered("kubelet"));
    assert!(watch.is_healthy());
}

#[test]
fn it_is_seen_within_90_seconds_that_a_process_hangs() {
    let answer = Duration::from_secs(5);
    assert!(EVERY + answer + RECHECK_DELAY + answer < Duration::from_secs(90));
    let mut watch = Watch::new();
    let pauses = [0.0, 0.999].map(|random| watch.health.pause(random).as_secs());
    assert_eq!(pauses, [20, 39]);
    // While something is wrong it is looked at more often, and less and less.
    watch.receive(1, state(ETCD, "failed", "failed", 0));
    assert_eq!([(); 5].map(|()| watch.health.pause(0.5).as_secs()), [5, 10, 20, 40, 40]);
}

#[test]
fn a_process_that_hung_before_the_agent_was_restarted_is_not_taken_as_one_that_starts() {
    for (up_for, expected) in [(None, "starting"), (Some(3600), "not answering"), (Some(20), "starting")] {
        let mut watch = Watch { health: ComponentHealth::default(), ..Watch::new() };
        watch.health.begin(&node(), watch.now);
        for state in watch.states.values_mut() {
            state.up_for = up_for.map(Duration::from_secs);
        }
        watch.failed.insert("etcd", "no answer within 5 s");
        watch.measure(0);
        watch.measure(3);
        watch.measure(3);
        assert_eq!(watch.of("etcd").1, expected, "{up_for:?}");
    }
}

#[test]
fn a_bad_answer_counts_by_whose_fault_it_is() {
    for (gate, name, young, expected) in [
        ("kubelet", "kubelet", false, (ComponentState::Failed, "gate kubelet does not pass")),
        ("kubelet", "kubelet", true, (ComponentState::Degraded, "starting")),
        ("registration", "kubelet", false, (ComponentState::Degraded, "gate registration does not pass")),
        ("apiserver", "kube-apiserver", false, (ComponentState::Failed, "gate apiserver does not pass")),
        ("sysctl", "sysctl", false, (ComponentState::Failed, "gate sysctl does not pass")),
    ] {
        let mut watch = Watch::new();
        if young {
            watch.receive(1, UnitState { main_pid: 7, ..state("kubelet.service", "active", "running", 0) });
        }
        watch.failed.insert(gate, "answered 500");
        watch.measure(30);
        let effects = [watch.measure(3), watch.measure(3)].concat();
        assert_eq!(watch.of(name), (expected.0, expected.1.to_owned()), "{gate} {young}");
        assert_eq!(effects.is_empty(), expected.0 == ComponentState::Degraded, "what may pass by itself is no news yet");
        // It lasts.
        let reported: usize = effects.len() + [290, 11, 40].map(|after| watch.measure(after).len()).iter().sum::<usize>();
        assert_eq!(reported, 1, "{gate} {young}");
    }
}

#[test]
fn what_systemd_says_first_after_a_restart_of_the_agent_counts_at_once() {
    for (first, expected, reported) in [
        (state(ETCD, "inactive", "dead", 0), ComponentState::Failed, true),
        (state(ETCD, "failed", "failed", 0), ComponentState::Failed, true),
        (state(ETCD, "active", "running", 0), ComponentState::Healthy, false),
        // At a boot its turn has not come.
        (UnitState { job_queued: true, ..state(ETCD, "inactive", "dead", 0) }, ComponentState::Healthy, false),
    ] {
        let mut health = ComponentHealth::default();
        health.begin(&node(), Timestamp(0));
        health.record_state(first.clone(), Timestamp(0));
        let effects = health.judge(Timestamp(0));
        assert_eq!(health.of("etcd", &Clock::manual(Timestamp(0))).unwrap().state, expected, "{first:?}");
        assert_eq!(!effects.is_empty(), reported, "{effects:?}");
        // A restart by hand, later, is no news before it lasts.
        if expected == ComponentState::Healthy && !first.job_queued {
            health.record_state(state(ETCD, "inactive", "dead", 0), Timestamp(10_000));
            assert!(health.judge(Timestamp(10_000)).is_empty());
            assert_eq!(health.judge(Timestamp(13_000)), report("etcd", ProblemKind::Stopped));
        }
    }
}

/// A node that was just brought up was shown as DEGRADED for a moment, by what was found before that.
#[test]
fn what_was_wrong_before_a_node_was_touched_is_shown_again_only_once_it_was_measured() {
    let mut health = ComponentHealth::default();
    health.begin(&node(), Timestamp(0));
    let stopped = || state(ETCD, "inactive", "dead", 0);
    health.record_state(stopped(), Timestamp(0));
    health.judge(Timestamp(0));
    let shown = |health: &ComponentHealth| health.of("etcd", &Clock::manual(Timestamp(0))).unwrap().state;
    assert_eq!(shown(&health), ComponentState::Failed);
    health.forget();
    assert_eq!(shown(&health), ComponentState::Healthy);
    health.record_state(stopped(), Timestamp(1_000));
    health.judge(Timestamp(1_000));
    health.judge(Timestamp(5_000));
    assert_eq!(shown(&health), ComponentState::Failed);
}

#[test]
fn a_node_that_was_touched_is_looked_at_anew() {
    let mut watch = Watch::new();
    watch.die(1);
    watch.die(2);
    watch.health.forget();
    assert!(watch.die(12).is_empty(), "what it did meanwhile was reported by whoever touched the node");
    assert!(watch.measure(40).is_empty() && watch.is_healthy());
}

#[test]
fn deaths_while_the_node_is_brought_up_are_reported_at_the_first_and_third_and_each_time_they_doubled() {
    let mut deaths = Deaths::default();
    let mut reported = Vec::new();
    for count in 0..13 {
        let (_, up) = deaths.record_state(&state(ETCD, "active", "running", count));
        let (died, down) = deaths.record_state(&state(ETCD, "activating", "auto-restart", count));
        reported.extend((up || down).then_some(died));
    }
    assert_eq!(reported, [1, 3, 6, 12]);
    // Up twice in a row with the same count: it has calmed.
    let up = state(ETCD, "active", "running", 13);
    assert!(!deaths.has_stabilised(&up) && deaths.has_stabilised(&up));
    assert!(!deaths.has_stabilised(&state(ETCD, "activating", "auto-restart", 13)) && !deaths.has_stabilised(&up));
    // Somebody starts it by hand; it was looping before anybody looked.
    assert_eq!(deaths.record_state(&state(ETCD, "active", "running", 0)), (0, false));
    assert_eq!(deaths.record_state(&state(ETCD, "activating", "auto-restart", 0)), (1, true));
    assert_eq!(Deaths::default().record_state(&state(ETCD, "active", "running", 40)), (0, false));
    let failed = UnitState { result: "exit-code".into(), exec_main_status: 7, ..state(ETCD, "activating", "auto-restart", 2) };
    deaths.record_state(&failed);
    deaths.record_state(&state(ETCD, "active", "running", 3));
    assert_eq!(deaths.words(ETCD, 3), "etcd.service is crash-looping: 3 times it exited with status 7");
    assert_eq!(deaths.words(ETCD, 1), "etcd.service exited with status 7 and systemd restarts it");
}

/// Whether the cluster's nodes take its pods is no failure of this one, and not news while they are on their way.
#[test]
fn an_add_on_that_does_not_run_degrades_the_node_and_is_news_after_minutes() {
    let name = "add-on dns";
    let add_on = AddOn {
        name: "dns".into(),
        server: String::new(),
        identity: None,
        facts: Vec::new(),
        secrets: Vec::new(),
        needs: BTreeSet::new(),
    };
    for deadline in [None, Some(Duration::from_mins(2))] {
        let gate = Gate { probe: GateProbe::AddOn(add_on.clone()), ..gate(name, None, &["apiserver"], deadline) };
        let mut watch = Watch::new();
        watch.health.begin(&Desired { watched: vec![gate], ..node() }, watch.now);
        watch.failed.insert(name, "deployment dns: 0 of 2 pods are available: pod dns-x: ImagePullBackOff");
        assert!(watch.measure(1).is_empty() && watch.measure(4).is_empty());
        assert_eq!(watch.of(name), (ComponentState::Degraded, format!("gate {name} does not pass")));
        assert!(watch.measure(200).is_empty());
        assert_eq!(watch.measure(120), report(name, ProblemKind::Waits));
        assert!(watch.health.of(name, &watch.clock()).unwrap().cause.unwrap().contains("ImagePullBackOff"));
        // An API that is away says nothing of it.
        watch.failed.insert("apiserver", "connection refused");
        watch.measure(40);
        watch.measure(40);
        assert_eq!(watch.of(name).1, "waiting for apiserver");
        watch.failed.clear();
        watch.measure(40);
        assert!(watch.measure(60).is_empty() || watch.is_healthy());
        assert!(watch.is_healthy());
    }
}

/// A node that has no pod network, looked at twelve times, every so many seconds; and the gate that says so.
fn without_pod_network(seconds: u64) -> (Watch, Gate) {
    let mut watch = Watch::new();
    let ready = gate("ready", Some("kubelet.service"), &[], None);
    watch.health.begin(&Desired { watched: vec![ready.clone()], ..node() }, watch.now);
    watch.failed.insert("ready", "no pod network");
    for _ in 0..12 {
        watch.measure(seconds);
    }
    assert_ne!(watch.of("kubelet").0, ComponentState::Healthy);
    (watch, ready)
}

/// Attack: so it was for a minute after each start of the kubelet, and until the first measurements after an update.
#[test]
fn what_no_update_waits_for_is_no_fault_while_the_kubelet_is_young_or_was_just_touched() {
    let (mut watch, ready) = without_pod_network(3);
    assert_eq!(watch.health.unhealthy_beside(std::slice::from_ref(&ready)), BTreeSet::new(), "it has just started");
    watch.failed.insert("kubelet", "no answer");
    for _ in 0..12 {
        watch.measure(60);
    }
    assert_eq!(watch.health.unhealthy_beside(std::slice::from_ref(&ready)), BTreeSet::from(["kubelet".to_owned()]));
    watch.health.forget();
    assert_eq!(watch.health.unhealthy_beside(&[ready]), BTreeSet::new(), "it was touched");
}

/// On a node without a pod network each change of the kubelet that failed stayed: the gate that failed had passed before.
#[test]
fn what_no_update_waits_for_is_no_fault_before_it() {
    let (mut watch, ready) = without_pod_network(60);
    assert_eq!(watch.health.unhealthy_beside(&[]), BTreeSet::from(["kubelet".to_owned()]));
    assert_eq!(watch.health.unhealthy_beside(std::slice::from_ref(&ready)), BTreeSet::new());
    watch.failed.insert("kubelet", "no answer");
    for _ in 0..4 {
        watch.measure(60);
    }
    assert_eq!(watch.health.unhealthy_beside(&[ready]), BTreeSet::from(["kubelet".to_owned()]));
}
