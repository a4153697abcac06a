//! How each component of a node in place is, from what systemd says of its unit and what its gates answer: pure. The edge is
//! `monitor.rs`.
//!
//! What is wrong for a moment is no news: a state counts once it has lasted, and that one is over is news only once it has stayed away,
//! each time longer.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::backoff::{Backoff, spread};
use crate::clock::{Clock, Timestamp};
use crate::converge::diagnosis::CrashCause;
use crate::converge::gates::BadAnswer;
use crate::desired::{Dependency, Desired, Gate, GateProbe};
use crate::error::remedy::Remedy;
use crate::gather::Gather;
use crate::kubernetes::awaited_store;
use crate::report::Code;
use crate::report::component::{ComponentState, ComponentStatus};
use crate::report::follow_up::FollowUp;
use crate::report::reported_once::ReportedOnce;
use crate::storage::health::LEAST_FREE;
use crate::systemd::{Departure, UnitState};

/// Between two measurements of a healthy node, at the most: one that hangs is seen at the second bad answer, each of which may take
/// 5 s, and that is less than a minute and a half after it hung.
const EVERY: Duration = Duration::from_secs(40);
/// Between two where something is wrong: what recovers without a word of systemd's is seen soon, and not asked forever so often.
const PROBLEM_INTERVALS: Backoff = Backoff::new(Duration::from_secs(5), EVERY);
/// Until the second look at what may be wrong.
const RECHECK_DELAY: Duration = Duration::from_secs(3);
/// So many looks are sure together, whatever goes on changing.
const LOOKS: u32 = 3;
/// When somebody who put a component right sees that at the latest.
const AT_LATEST: Duration = Duration::from_mins(1);
/// Bad answers in a row that count.
const BAD_ANSWERS: u32 = 2;
/// So many restarts within this time are a crash loop. Every component starts again after 5 s or less.
const CRASH_LOOP: (u32, Duration) = (3, Duration::from_mins(10));
/// How long a process must have stayed up before a crash loop counts as over: twice as long as it did before, and within these.
const STAYS_UP: (Duration, Duration) = (Duration::from_secs(30), Duration::from_mins(5));
/// So many restarts within this time are one too many of a process that stays up for minutes between them: of one that loses its lease, or
/// runs out of memory.
const UNSTABLE: (u32, Duration) = (4, Duration::from_hours(1));
/// Restarts of which it is known when.
const KNOWN_RESTARTS: usize = 20;
/// Before it is asked again why a process dies that still does.
const EXPLAINED_FOR: Duration = Duration::from_mins(5);
/// How long what came back has to stay away before that is news, each time longer.
const RECOVERY_PERIODS: Backoff = Backoff::new(Duration::from_secs(30), Duration::from_mins(30));
/// What comes back after this long is something else.
const FORGOTTEN: Duration = Duration::from_hours(1);
/// A process younger than this may still be reading what it keeps.
const STARTUP_PERIOD: Duration = Duration::from_mins(1);
/// How long something may be on its way up, or be asked for in vain, before that is news.
const PATIENCE: Duration = Duration::from_mins(5);

/// What is wrong with a component.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ProblemKind {
    /// It is on its way up.
    Starting,
    /// It died, and systemd is about to start it again.
    Restarting,
    /// A gate that asks others has failed, or one of its own that waits for what has failed.
    Waits,
    /// It is up, and has died too often for that to mean much.
    Unstable,
    /// It is up and does not answer as it should.
    Wrong,
    /// It is up and does not answer at all.
    Hanging,
    /// It does not run although it did not fail: somebody stopped or masked it.
    Stopped,
    /// It failed, and systemd does nothing more about it.
    Down,
    /// It dies again and again.
    Looping,
}

impl ProblemKind {
    pub(super) fn state(self) -> ComponentState {
        match self {
            Self::Starting | Self::Restarting | Self::Waits | Self::Unstable => ComponentState::Degraded,
            Self::Wrong | Self::Hanging | Self::Stopped | Self::Down | Self::Looping => ComponentState::Failed,
        }
    }

    /// How long it must last before it counts.
    fn counts_after(self) -> Duration {
        match self {
            // Of a restart by hand nobody need hear.
            Self::Starting | Self::Stopped => RECHECK_DELAY,
            Self::Restarting | Self::Waits | Self::Unstable | Self::Wrong | Self::Hanging | Self::Down | Self::Looping => {
                Duration::ZERO
            }
        }
    }

    /// How long it must have counted before it is news.
    fn reported_after(self) -> Duration {
        match self {
            Self::Starting | Self::Restarting | Self::Waits => PATIENCE,
            Self::Unstable | Self::Wrong | Self::Hanging | Self::Stopped | Self::Down | Self::Looping => Duration::ZERO,
        }
    }

    /// The message that reports it.
    pub(super) fn code(self) -> Code {
        match self {
            Self::Starting | Self::Restarting | Self::Waits | Self::Unstable => Code::ComponentDegraded,
            Self::Wrong | Self::Down => Code::ComponentFailed,
            Self::Hanging => Code::ComponentHangs,
            Self::Stopped => Code::ComponentStopped,
            Self::Looping => Code::ComponentCrashLoops,
        }
    }

    /// Whether its last lines say why.
    pub(super) fn quotes_last_lines(self) -> bool {
        matches!(self, Self::Down | Self::Looping | Self::Restarting | Self::Unstable)
    }

    /// Whether a closer look at it says why.
    fn is_explained(self) -> bool {
        self == Self::Hanging || self.quotes_last_lines()
    }
}

/// What is wrong, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Problem {
    pub(super) kind: ProblemKind,
    summary: String,
    cause: String,
    remedy: Remedy,
}

/// Each of these events once: while a node is changed for long, the same happens again and again.
pub(super) fn fold(events: &mut Vec<HealthEvent>) {
    let mut seen: Vec<HealthEvent> = Vec::new();
    events.retain(|event| {
        let is_news = !seen.contains(event);
        if is_news {
            seen.push(event.clone());
        }
        is_news
    });
}

/// What a judgement leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum HealthEvent {
    /// Something is wrong with this component, and that was not reported yet.
    Report(String, ProblemKind),
    /// It is healthy again.
    Recovered(String),
    /// It is otherwise than before, which is no news (yet).
    Unreported(String, Option<ProblemKind>),
}

/// A gate of a component.
#[derive(Debug)]
struct ComponentGate {
    gate: Gate,
    /// A bad answer is the component's own fault.
    is_own: bool,
    bad: Option<Bad>,
    /// This process passed it before.
    has_passed: bool,
}

/// Bad answers in a row.
#[derive(Debug)]
struct Bad {
    times: u32,
    answer: BadAnswer,
}

impl ComponentGate {
    fn of(gate: &Gate) -> Self {
        // Without a deadline another machine decides when it passes: `registration`; but for what is asked how it is itself.
        let is_itself = gate.unit.as_ref().is_none_or(|unit| unit.trim_end_matches(".service").ends_with(&gate.name));
        // Whether the cluster's nodes can run an add-on is no fault of this one.
        let is_own = (is_itself || gate.deadline.is_some()) && !matches!(gate.probe, GateProbe::AddOn(_));
        Self { gate: gate.clone(), is_own, bad: None, has_passed: false }
    }

    fn has_failed(&self) -> bool {
        self.bad.as_ref().is_some_and(|bad| bad.times >= BAD_ANSWERS)
    }
}

/// How often systemd restarted a component.
#[derive(Debug, Default)]
struct Restarts {
    /// When, of the newest.
    recent: Vec<Timestamp>,
    /// How many there were since it was stable.
    count: u32,
    /// How many of them were reported.
    reported: u32,
}

/// How a component that recovered is trusted again.
#[derive(Debug)]
struct Recovery {
    /// When it last recovered.
    at: Option<Timestamp>,
    /// What that has to last from then on, each time longer.
    quiet_period: Backoff,
    hold: Duration,
}

/// A closer look at what is wrong.
#[derive(Debug)]
struct Explained {
    kind: ProblemKind,
    restarts: u32,
    at: Timestamp,
    why: CrashCause,
}

/// What became of measurements.
#[derive(Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
struct Measured {
    /// A look at all components has been at it.
    is_known: bool,
    /// What systemd says of it was judged before, by this run of the agent.
    is_judged: bool,
    /// Who brought the node up, or put it back, has touched it: what was wrong before is not shown until it was measured again.
    is_touched: bool,
    /// It was healthy once, while this run of the agent looked.
    was_healthy: bool,
}

/// What its unit waits for before its program starts.
#[derive(Debug, Default)]
struct Needs {
    gates: Vec<String>,
    /// The store of which some has to be free.
    store: Option<String>,
}

/// A component and what was seen of it.
#[derive(Debug)]
struct MonitoredComponent {
    name: String,
    unit: Option<String>,
    parts: Vec<ComponentGate>,
    needs: Needs,
    /// As systemd said last.
    state: Option<UnitState>,
    /// Since when its process is up.
    up: Option<Timestamp>,
    measured: Measured,
    restarts: Restarts,
    problem: Option<Problem>,
    since: Timestamp,
    /// What may follow the problem, or the lack of one, since then.
    pending_change: Option<(Option<ProblemKind>, Timestamp)>,
    reported_once: ReportedOnce<ProblemKind>,
    recovery: Recovery,
    /// Why it is as it is.
    explained: Option<Explained>,
    /// How its process ended last.
    last_end: Option<String>,
}

impl MonitoredComponent {
    fn new(name: String, unit: Option<String>, now: Timestamp) -> Self {
        Self {
            name,
            unit,
            parts: Vec::new(),
            needs: Needs::default(),
            state: None,
            up: None,
            measured: Measured::default(),
            restarts: Restarts::default(),
            problem: None,
            since: now,
            pending_change: None,
            reported_once: ReportedOnce::default(),
            recovery: Recovery { at: None, quiet_period: RECOVERY_PERIODS, hold: Duration::ZERO },
            explained: None,
            last_end: None,
        }
    }

    fn record_state(&mut self, state: UnitState, now: Timestamp) {
        let before = self.state.as_ref().map(|before| (before.n_restarts, before.main_pid));
        match before {
            Some((restarts, _)) if state.n_restarts > restarts => {
                let more = state.n_restarts - restarts;
                self.restarts.count = self.restarts.count.saturating_add(more);
                self.restarts.recent.extend((0..more).map(|_| now).take(KNOWN_RESTARTS));
                self.restarts.recent.drain(..self.restarts.recent.len().saturating_sub(KNOWN_RESTARTS));
            }
            // Somebody started it by hand.
            Some((restarts, _)) if state.n_restarts < restarts => self.forget_restarts(),
            _ => {}
        }
        let is_same = before.is_none_or(|(restarts, pid)| (restarts, pid) == (state.n_restarts, state.main_pid));
        if !state.is_active() {
            self.up = None;
        } else if self.up.is_none() || !is_same {
            // Of one that was up before anybody looked systemd knows since when.
            let up_for = state.up_for.filter(|_| self.up.is_none()).unwrap_or_default();
            self.up = Some(now.before(up_for));
            self.parts.iter_mut().for_each(|part| part.has_passed = false);
        }
        if self.up.is_none() {
            // Who is down does not answer; what it answers once it is up is another matter.
            self.parts.iter_mut().for_each(|part| part.bad = None);
        }
        if state.sub_state == "auto-restart" || state.is_failed() {
            self.last_end = Some(ended(&state));
        }
        self.state = Some(state);
    }

    fn forget_restarts(&mut self) {
        self.restarts = Restarts::default();
    }

    /// How far apart its newest restarts were, on average, if so many were within this time.
    fn restarted(&self, (times, within): (u32, Duration), now: Timestamp) -> Option<Duration> {
        let recent = &self.restarts.recent;
        let first =
            recent.len().checked_sub(times as usize).and_then(|at| recent.get(at)).filter(|first| now.since(**first) < within)?;
        let last = recent.last()?;
        Some(last.since(*first) / times.saturating_sub(1).max(1))
    }

    /// Whether it has died so often that its being up now says little.
    fn is_looping(&self, now: Timestamp) -> bool {
        let apart = self.restarted(CRASH_LOOP, now);
        apart.is_some_and(|apart| self.has_been_up(now) < (apart * 2).clamp(STAYS_UP.0, STAYS_UP.1))
    }

    fn is_unstable(&self, now: Timestamp) -> bool {
        let apart = self.restarted(UNSTABLE, now);
        apart.is_some_and(|apart| self.has_been_up(now) < (apart * 2).max(STAYS_UP.0))
    }

    /// Whether its gates say anything now.
    fn is_measured(&self) -> bool {
        self.unit.is_none() || self.up.is_some()
    }

    fn has_been_up(&self, now: Timestamp) -> Duration {
        self.up.map(|up| now.since(up)).unwrap_or_default()
    }

    fn is_young(&self, now: Timestamp) -> bool {
        self.unit.is_some() && self.has_been_up(now) < STARTUP_PERIOD
    }

    /// What is wrong at this moment. `failed`: gates that do not pass.
    fn problem_now(&self, failed: &[String], now: Timestamp) -> Option<Problem> {
        let of_unit = self.unit.as_ref().zip(self.state.as_ref()).and_then(|(unit, state)| self.of_unit(unit, state, now));
        if of_unit.as_ref().is_some_and(|one| one.kind != ProblemKind::Unstable) {
            return of_unit;
        }
        let of_gates = self.parts.iter().filter_map(|part| self.of_gate(part, failed, now));
        of_gates.chain(of_unit).max_by_key(|one| one.kind)
    }

    fn of_unit(&self, unit: &str, state: &UnitState, now: Timestamp) -> Option<Problem> {
        let looks = format!("`systemctl status {unit}`; `journalctl -u {unit} -n 50`");
        // Of one that is being stopped, or was, its earlier deaths say nothing.
        let is_stopped = matches!(state.active_state.as_str(), "deactivating" | "inactive");
        let (kind, summary, cause, remedy) = if !is_stopped && self.is_looping(now) {
            let summary = format!("crash-looping ({} restarts)", state.n_restarts);
            let died = self.last_end.as_deref().unwrap_or("exited");
            let cause = format!("{unit} {died} again and again; systemd has restarted it {} times", state.n_restarts);
            (ProblemKind::Looping, summary, cause, crash_remedy(unit))
        } else if state.load_state == "masked" && !state.may_run() {
            let remedy = format!(
                "somebody has masked it, so it cannot start. Unless it is meant to stay down for work on this node, `systemctl unmask {unit}`, then `systemctl start {unit}`"
            );
            (ProblemKind::Stopped, "masked".to_owned(), format!("{unit} is masked"), remedy.into())
        } else if state.is_active() {
            if !self.is_unstable(now) {
                return None;
            }
            let times = self.restarts.recent.iter().filter(|at| now.since(**at) < UNSTABLE.1).count();
            let died = self.last_end.as_deref().unwrap_or("exited");
            let cause = format!("{unit} runs, but {died} {times} times in the last hour");
            (ProblemKind::Unstable, format!("restarted {times} times in the last hour"), cause, crash_remedy(unit))
        } else if state.sub_state == "auto-restart" {
            let cause = format!("{unit} {} and is about to be restarted", ended(state));
            (ProblemKind::Restarting, "restarting".to_owned(), cause, crash_remedy(unit))
        } else if state.is_settling() {
            let (cause, remedy) = if state.sub_state == "start-pre" {
                match &self.needs.store {
                    Some(store) => (
                        format!("{unit} is down: it waits until {store} has {} MiB of free space", LEAST_FREE >> 20),
                        "it starts by itself once there is room".to_owned(),
                    ),
                    None => (
                        format!("{unit} runs a command that comes before its program (start-pre)"),
                        format!("`systemctl status {unit}` shows what that waits for"),
                    ),
                }
            } else {
                (format!("{unit} is {}", state.describe()), format!("`systemctl list-jobs`; {looks}"))
            };
            let lacks_space = state.sub_state == "start-pre" && self.needs.store.is_some();
            let summary = if lacks_space { "down for lack of space" } else { "starting" };
            (ProblemKind::Starting, summary.to_owned(), cause, remedy.into())
        } else if state.is_failed() {
            let cause = format!("{unit} is {}", state.describe());
            (ProblemKind::Down, "failed".to_owned(), cause, format!("{looks}; `systemctl start {unit}` starts it").into())
        } else {
            let cause = format!("{unit} is {}: {}", state.describe(), departure(state));
            let remedy = format!(
                "`journalctl -u {unit} -n 50` shows when. Unless somebody needs it down for work on this node, `systemctl start {unit}`"
            );
            (ProblemKind::Stopped, "not running".to_owned(), cause, remedy.into())
        };
        Some(Problem { kind, summary, cause, remedy })
    }

    fn of_gate(&self, part: &ComponentGate, failed: &[String], now: Timestamp) -> Option<Problem> {
        let Bad { answer: BadAnswer { cause, is_silence }, .. } =
            part.bad.as_ref().filter(|_| part.has_failed() && self.is_measured())?;
        let name = &part.gate.name;
        let need = gates_of(&part.gate.needs).chain(&self.needs.gates).find(|gate| *gate != name && failed.contains(gate));
        let text = format!("gate {name}: {cause}");
        let (kind, summary, cause) = match need {
            Some(need) => {
                (ProblemKind::Waits, format!("waiting for {need}"), format!("{text}; it needs {need}, which does not pass"))
            }
            None if self.is_young(now) && !part.has_passed => (ProblemKind::Starting, "starting".to_owned(), text),
            None if !part.is_own => (ProblemKind::Waits, format!("gate {name} does not pass"), text),
            None if *is_silence => {
                let runs = self.unit.iter().map(|unit| format!("{unit} hangs: ")).collect::<String>();
                (ProblemKind::Hanging, "not answering".to_owned(), format!("{runs}{cause}"))
            }
            None => (ProblemKind::Wrong, format!("gate {name} does not pass"), text),
        };
        let remedy = match (kind, &self.unit) {
            // What did not answer the gate answers nobody else.
            (ProblemKind::Hanging, Some(unit)) => format!(
                "if the first load figure of `uptime` is over twice what `nproc` prints, the node is overloaded: `top` shows by what, stop that. If not, the \
                 program is stuck: `systemctl kill --kill-who=main -s QUIT {unit}` ends it, `journalctl -u {unit} -n 100` then shows where (for a \
                 bug report), `systemctl restart {unit}` starts it again"
            ),
            (ProblemKind::Wrong, Some(unit)) => {
                format!("{}. Then `systemctl restart {unit}` restarts it", part.gate.remedy.trim_end_matches('.'))
            }
            _ => part.gate.remedy.clone(),
        }
        .into();
        Some(Problem { kind, summary, cause, remedy })
    }

    /// Takes over what is wrong at this moment once it has lasted, and says what is news.
    fn judge(&mut self, failed: &[String], now: Timestamp) -> Option<HealthEvent> {
        let is_first = self.state.is_some() && !std::mem::replace(&mut self.measured.is_judged, true);
        let seen = self.problem_now(failed, now);
        let (shown, kind) = (self.problem.as_ref().map(|one| one.kind), seen.as_ref().map(|one| one.kind));
        // What was not measured since, or has just answered badly once, is not healthy again.
        let is_unknown = (self.unit.is_some() && self.state.is_none()) || self.parts.iter().any(|part| part.bad.is_some());
        if shown.is_some() && kind.is_none() && is_unknown {
            return None;
        }
        let lasts = match self.pending_change {
            Some((of, since)) if of == kind => now.since(since),
            _ => {
                self.pending_change = Some((kind, now));
                Duration::ZERO
            }
        };
        let needed = match kind {
            // What systemd says first, once the agent runs, is so already: at a boot what waits for its turn has a job.
            Some(ProblemKind::Stopped) if is_first => Duration::ZERO,
            Some(kind) => kind.counts_after(),
            None => Duration::ZERO,
        };
        if kind != shown && lasts < needed {
            return None;
        }
        let is_changed = seen.as_ref().map(|one| one.kind.state()) != self.problem.as_ref().map(|one| one.kind.state());
        if is_changed {
            self.since = now;
        }
        // At a boot everything is on its way up for a while: nothing became worse, and nothing recovers.
        let is_first_start = !self.measured.was_healthy && kind.or(shown) == Some(ProblemKind::Starting);
        self.measured.was_healthy |= kind.is_none() && self.is_measured() && self.parts.iter().all(|part| part.has_passed);
        self.problem = seen;
        self.measured.is_touched = false;
        let news = match kind {
            Some(kind) => self.news_of(kind, lasts, now),
            None => self.recover(lasts, now),
        };
        news.or_else(|| (is_changed && !is_first_start).then(|| HealthEvent::Unreported(self.name.clone(), kind)))
    }

    fn news_of(&mut self, kind: ProblemKind, lasts: Duration, now: Timestamp) -> Option<HealthEvent> {
        if lasts < kind.reported_after() {
            return None;
        }
        let is_more = kind == ProblemKind::Looping
            && self.restarts.reported > 0
            && self.restarts.count >= self.restarts.reported.saturating_mul(2);
        let is_first = self.reported_once.reported().is_empty();
        if !self.reported_once.mark_reported(&kind) && !is_more {
            return None;
        }
        if kind == ProblemKind::Looping {
            self.restarts.reported = self.restarts.count;
        }
        if is_first {
            match self.recovery.at {
                Some(at) if now.since(at) < FORGOTTEN => self.recovery.hold = self.recovery.quiet_period.next_pause(),
                _ => {
                    self.recovery.quiet_period.reset();
                    self.recovery.hold = Duration::ZERO;
                }
            }
        }
        Some(HealthEvent::Report(self.name.clone(), kind))
    }

    /// What is over is so at once, and is news once that has lasted.
    fn recover(&mut self, lasts: Duration, now: Timestamp) -> Option<HealthEvent> {
        self.explained = None;
        if lasts < self.recovery.hold {
            return None;
        }
        if self.restarts.recent.last().is_some_and(|last| now.since(*last) >= UNSTABLE.1) {
            self.forget_restarts();
        }
        let was_reported = !self.reported_once.reported().is_empty();
        self.reported_once.clear();
        self.recovery.hold = Duration::ZERO;
        was_reported.then(|| {
            self.recovery.at = Some(now);
            HealthEvent::Recovered(self.name.clone())
        })
    }

    /// What is wrong, if a closer look says why and there was none, or it has died again since.
    fn unexplained(&self, now: Timestamp) -> Option<ProblemKind> {
        let kind = self.problem.as_ref().map(|one| one.kind).filter(|kind| kind.is_explained())?;
        let is_due = self.explained.as_ref().is_none_or(|explained| {
            explained.kind != kind || (explained.restarts != self.n_restarts() && now.since(explained.at) >= EXPLAINED_FOR)
        });
        is_due.then_some(kind)
    }

    fn n_restarts(&self) -> u32 {
        self.state.as_ref().map(|state| state.n_restarts).unwrap_or_default()
    }

    /// Whether another look will show more, soon.
    fn is_unsure(&self) -> bool {
        let shown = self.problem.as_ref().map(|one| one.kind);
        self.pending_change.is_some_and(|(kind, _)| kind != shown)
            || self.parts.iter().any(|part| part.bad.as_ref().is_some_and(|bad| bad.times < BAD_ANSWERS))
    }

    /// What is wrong with it; what was wrong before the node was touched last is measured anew.
    fn current_problem(&self) -> Option<&Problem> {
        self.problem.as_ref().filter(|_| !self.measured.is_touched)
    }

    fn status(&self, clock: &Clock) -> ComponentStatus {
        let problem = self.current_problem();
        let is_why = problem.is_some_and(|one| one.kind.is_explained());
        let why = self.explained.as_ref().map(|explained| &explained.why).filter(|_| is_why);
        ComponentStatus {
            name: self.name.clone(),
            unit: self.unit.clone(),
            state: problem.map(|one| one.kind.state()).unwrap_or_default(),
            since: clock.shown(self.since).rfc3339(),
            restarts: self.n_restarts(),
            problem: problem.map(|one| one.summary.clone()),
            cause: problem.map(|one| why.map_or_else(|| one.cause.clone(), |why| why.with(&one.cause))),
            remedy: problem.map(|one| {
                let remedy = match why.and_then(|why| why.remedy.as_ref()) {
                    None => one.remedy.clone(),
                    // systemd starts it no more.
                    Some(first) if one.kind == ProblemKind::Down => one.remedy.with_text(format!("{first} {}", one.remedy)),
                    Some(first) => first.clone(),
                };
                FollowUp::IsMeasured(AT_LATEST).of(&remedy).to_string()
            }),
        }
    }
}

fn gates_of(needs: &BTreeSet<Dependency>) -> impl Iterator<Item = &String> {
    needs.iter().filter_map(|need| if let Dependency::Gate(gate) = need { Some(gate) } else { None })
}

/// Every component of a node. Times are those of [`Clock::steady`]: a clock that is set makes nothing healthy or unhealthy.
#[derive(Debug, Default)]
pub(super) struct ComponentHealth {
    components: Vec<MonitoredComponent>,
    /// How often all of them were measured.
    measured: u32,
    /// They were, and another look would not have shown more; or it was taken.
    is_settled: bool,
    pauses: Option<Backoff>,
}

impl ComponentHealth {
    /// The components of a node. What was seen of one before stays, where it is still one.
    pub(super) fn begin(&mut self, desired: &Desired, now: Timestamp) {
        let mut before: BTreeMap<String, MonitoredComponent> =
            std::mem::take(&mut self.components).into_iter().map(|one| (one.name.clone(), one)).gather();
        let mut take = |name: &str, unit: Option<&str>| {
            let mut component =
                before.remove(name).unwrap_or_else(|| MonitoredComponent::new(name.to_owned(), unit.map(str::to_owned), now));
            component.parts.clear();
            component
        };
        for unit in desired.units.iter().filter(|unit| !unit.applies_files) {
            let mut component = take(unit.name.trim_end_matches(".service"), Some(&unit.name));
            component.needs = Needs {
                gates: gates_of(&unit.needs).cloned().collect(),
                store: awaited_store(desired, &unit.name).map(str::to_owned),
            };
            self.components.push(component);
        }
        // Routes to pods are watched by `pods.rs`.
        for gate in desired.gates.iter().chain(&desired.watched).filter(|gate| !matches!(gate.probe, GateProbe::PodRoutes(_))) {
            let at = self.components.iter().position(|one| one.unit.is_some() && one.unit == gate.unit);
            let at = at.unwrap_or_else(|| {
                self.components.push(take(&gate.name, None));
                self.components.len() - 1
            });
            if let Some(component) = self.components.get_mut(at) {
                component.parts.push(ComponentGate::of(gate));
            }
        }
    }

    /// The node was just touched: what its units did meanwhile was reported there.
    pub(super) fn forget(&mut self) {
        for component in &mut self.components {
            (component.state, component.up, component.pending_change) = (None, None, None);
            component.measured.is_touched = true;
            component.forget_restarts();
            component.parts.iter_mut().for_each(|part| part.bad = None);
        }
    }

    /// The units that are asked about.
    pub(super) fn units(&self) -> Vec<String> {
        self.components.iter().filter_map(|one| one.unit.clone()).collect()
    }

    /// The gates that say something now; of one unit alone, or of all.
    pub(super) fn gates(&self, unit: Option<&str>) -> Vec<String> {
        let wanted = self.components.iter().filter(|one| one.is_measured() && (unit.is_none() || one.unit.as_deref() == unit));
        wanted.flat_map(|one| one.parts.iter().map(|part| part.gate.name.clone())).collect()
    }

    /// What systemd says of a unit. True: it came up, or another process did.
    pub(super) fn record_state(&mut self, state: UnitState, now: Timestamp) -> bool {
        let Some(component) = self.components.iter_mut().find(|one| one.unit.as_ref() == Some(&state.name)) else { return false };
        let before = component.up;
        component.record_state(state, now);
        component.up.is_some() && component.up != before
    }

    /// What a gate answered.
    pub(super) fn record_gate_answer(&mut self, gate: &str, answer: &Result<(), BadAnswer>) {
        let parts = self.components.iter_mut().flat_map(|one| one.parts.iter_mut());
        for part in parts.filter(|part| part.gate.name == gate) {
            part.has_passed |= answer.is_ok();
            part.bad = answer.as_ref().err().map(|answer| {
                let times = part.bad.as_ref().map_or(0, |bad| bad.times);
                Bad { times: times.saturating_add(1), answer: answer.clone() }
            });
        }
    }

    /// Every component was measured since the beginning.
    pub(super) fn complete(&mut self) {
        self.measured = self.measured.saturating_add(1);
        self.components.iter_mut().for_each(|one| one.measured.is_known = true);
    }

    /// Takes over what was seen; what of it is news.
    pub(super) fn judge(&mut self, now: Timestamp) -> Vec<HealthEvent> {
        // A gate of a unit that is down does not pass either.
        let has_failed = |one: &MonitoredComponent, part: &ComponentGate| part.has_failed() || !one.is_measured();
        let failed: Vec<String> = self
            .components
            .iter()
            .flat_map(|one| one.parts.iter().filter(|part| has_failed(one, part)).map(|part| part.gate.name.clone()))
            .collect();
        let events = self.components.iter_mut().filter_map(|one| one.judge(&failed, now)).collect();
        // One bad answer is no verdict, but that the component is healthy would be one.
        let is_sure = || self.measured > 0 && !self.components.iter().any(MonitoredComponent::is_unsure);
        self.is_settled = self.is_settled || self.measured > LOOKS || is_sure();
        events
    }

    /// Whether it is known how they are.
    pub(super) fn is_settled(&self) -> bool {
        self.is_settled
    }

    /// Which of these events of judgements are what the components are now, each of them once. Of components that were not measured since somebody touched
    /// them nothing is known: their events stay. That something recovered is no news where what was wrong never was.
    pub(super) fn sort_out(&self, events: &mut Vec<HealthEvent>) -> Vec<HealthEvent> {
        let (mut held, mut dropped) = (Vec::new(), BTreeSet::new());
        fold(events);
        events.retain(|event| {
            let (name, kind) = match event {
                HealthEvent::Report(name, kind) => (name, Some(*kind)),
                HealthEvent::Recovered(name) => (name, None),
                HealthEvent::Unreported(name, kind) => (name, *kind),
            };
            let Some(component) = self.components.iter().find(|one| one.name == *name) else { return false };
            if component.measured.is_touched {
                return true;
            }
            let holds = component.problem.as_ref().map(|problem| problem.kind) == kind;
            if !holds {
                dropped.insert(name.clone());
            } else if kind.is_some() || !dropped.contains(name) {
                held.push(event.clone());
            }
            false
        });
        held
    }

    /// The main process of a component, where it has one.
    pub(super) fn main_process(&self, name: &str) -> Option<u32> {
        let component = self.components.iter().find(|one| one.name == name)?;
        component.state.as_ref().map(|state| state.main_pid).filter(|pid| *pid > 0)
    }

    /// The components of which a closer look says why they are as they are: name, unit, and what is wrong.
    pub(super) fn unexplained(&self, now: Timestamp) -> Vec<(String, String, ProblemKind)> {
        let of = |one: &MonitoredComponent| Some((one.name.clone(), one.unit.clone()?, one.unexplained(now)?));
        self.components.iter().filter_map(of).collect()
    }

    /// What a closer look said of that, which is shown with the component.
    pub(super) fn explain(&mut self, name: &str, kind: ProblemKind, why: CrashCause, now: Timestamp) {
        if let Some(component) = self.components.iter_mut().find(|one| one.name == name) {
            component.explained = Some(Explained { kind, restarts: component.n_restarts(), at: now, why });
        }
    }

    /// How long until everything is measured again; `random` is in `0.0..1.0`.
    pub(super) fn pause(&mut self, random: f64) -> Duration {
        if self.components.iter().any(MonitoredComponent::is_unsure) {
            return RECHECK_DELAY;
        }
        if self.components.iter().any(|one| one.problem.is_some()) {
            return self.pauses.get_or_insert(PROBLEM_INTERVALS).next_pause();
        }
        self.pauses = None;
        spread(EVERY, random)
    }

    /// How they are; nothing before that is known of all of them.
    pub(super) fn status(&self, clock: &Clock) -> Vec<ComponentStatus> {
        // One that is new is not healthy before it was measured.
        let known = self.components.iter().filter(|one| self.is_settled && one.measured.is_known);
        known.map(|one| one.status(clock)).collect()
    }

    /// Names of those with which something is wrong that these gates, for which no update waits, do not say alone.
    pub(super) fn unhealthy_beside(&self, watched: &[Gate]) -> BTreeSet<String> {
        let is_watched = |part: &ComponentGate| watched.iter().any(|gate| gate.name == part.gate.name);
        let by_these_alone = |one: &MonitoredComponent, problem: &Problem| {
            let mut failed = one.parts.iter().filter(|part| part.has_failed()).peekable();
            let is_of_gates =
                matches!(problem.kind, ProblemKind::Waits | ProblemKind::Starting | ProblemKind::Wrong | ProblemKind::Hanging);
            is_of_gates && failed.peek().is_some() && failed.all(is_watched)
        };
        let known = self.components.iter().filter(|one| self.is_settled && one.measured.is_known);
        let counts = |one: &&MonitoredComponent| one.current_problem().is_some_and(|problem| !by_these_alone(one, problem));
        known.filter(counts).map(|one| one.name.clone()).gather()
    }

    /// How one of them is.
    pub(super) fn of(&self, name: &str, clock: &Clock) -> Option<ComponentStatus> {
        self.components.iter().find(|one| one.name == name).map(|one| one.status(clock))
    }
}

/// Units that die while the node is brought up.
#[derive(Debug, Default)]
pub(super) struct Deaths(BTreeMap<String, FailingUnit>);

#[derive(Debug)]
struct FailingUnit {
    /// systemd's count when it was first looked at.
    first: u32,
    last: u32,
    reported: u32,
    /// What it was up with at the last look at all of them.
    up_with: Option<u32>,
    /// How its process ended last.
    end: Option<String>,
}

impl Deaths {
    /// What is seen of a unit: how often it died since the first look, and whether that is news: the first time, from the third on as a
    /// crash loop, and then each time the number has doubled.
    pub(super) fn record_state(&mut self, state: &UnitState) -> (u32, bool) {
        let new = FailingUnit { first: state.n_restarts, last: state.n_restarts, reported: 0, up_with: None, end: None };
        let dying = self.0.entry(state.name.clone()).or_insert(new);
        if state.n_restarts < dying.last {
            // Somebody started it anew.
            (dying.first, dying.reported) = (0, 0);
        }
        dying.last = state.n_restarts;
        if state.sub_state == "auto-restart" {
            dying.end = Some(ended(state));
        }
        let died = state.n_restarts.saturating_sub(dying.first) + u32::from(state.sub_state == "auto-restart");
        let next = match dying.reported {
            0 => 1,
            reported if reported < CRASH_LOOP.0 => CRASH_LOOP.0,
            reported => reported.saturating_mul(2),
        };
        let is_news = died >= next;
        if is_news {
            dying.reported = died;
        }
        (died, is_news)
    }

    /// In words, what was seen of a unit that died so often.
    pub(super) fn words(&self, unit: &str, times: u32) -> String {
        died(unit, self.0.get(unit).and_then(|dying| dying.end.as_deref()).unwrap_or("ended"), times)
    }

    /// Whether it was up at this look and at the one before it, and did not die between them.
    pub(super) fn has_stabilised(&mut self, state: &UnitState) -> bool {
        let Some(dying) = self.0.get_mut(&state.name) else { return false };
        let up_with = state.is_active().then_some(state.n_restarts);
        let before = std::mem::replace(&mut dying.up_with, up_with);
        up_with.is_some() && before == up_with
    }
}

/// What to do about a unit that dies and whose last lines are quoted beside this.
pub(super) fn crash_remedy(unit: &str) -> Remedy {
    Remedy::said(format!(
        "`journalctl -u {unit} -n 50` shows more than its last lines. If they complain of this node (a mount, a file, a port), mend that here; \
         if of a flag or a setting, correct its parameter in the template and update the stack. systemd restarts the unit, and the agent \
         will notice by itself"
    ))
}

/// How a unit went down that did not fail.
fn departure(state: &UnitState) -> &'static str {
    match state.left {
        Some(Departure::Stopped) => "it was stopped",
        Some(Departure::Ended) => "its process ended without an error",
        None => "it was not started since boot",
    }
}

/// In words, how often a unit died while the node was brought up, and how it ended last.
fn died(unit: &str, end: &str, times: u32) -> String {
    if times >= CRASH_LOOP.0 {
        format!("{unit} is crash-looping: {times} times it {end}")
    } else {
        format!("{unit} {end} and systemd restarts it")
    }
}

/// How its process ended last, in words.
fn ended(state: &UnitState) -> String {
    if state.cannot_be_run() {
        let program = if state.program.is_empty() { "its program" } else { &state.program };
        return format!("cannot start, as {program} does not exist or cannot be run,");
    }
    match (state.is_active(), state.result.as_str(), state.exec_main_status) {
        (false, "exit-code", status @ 1..) => format!("exited with status {status}"),
        (false, "" | "success" | "exit-code", _) | (true, ..) => "exited".to_owned(),
        (false, "signal" | "core-dump", signal) => format!("was killed by signal {signal}"),
        (false, result, _) => format!("ended ({result})"),
    }
}

#[cfg(test)]
#[path = "health_tests.rs"]
mod tests;
