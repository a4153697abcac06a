//! Measurements that must be good before Heat hears SUCCESS.
//!
//! A gate is measured at each event of its unit and, as the net, after a pause that grows. It has two points in time: its first
//! good answer releases who waits for it, and it has passed after as many good answers in a row, a second apart, of one and the same
//! process as it asks for. Where systemd restarted the unit meanwhile, its process must also have stayed up for a while; and what
//! this run started is looked at once more before the run ends (`engine.rs`). So a unit that starts and dies every few seconds is
//! no success.

use std::path::Path;
use std::time::Duration;

use futures_util::stream::BoxStream;
use serde_json::Value;

use super::flannel::PodNetwork;
use super::flannel::inspection::{check_subnet, code, inspect};
use super::flannel::packets::{self, PacketVerdict};
use super::units::news_of;
use super::{Failure, Prober, UnitManager, add_ons, store};
use crate::backoff::Backoff;
use crate::clock::{Clock, Stopwatch};
use crate::desired::{Gate, GateProbe, Peers, PodRoutes};
use crate::error::{ConnectFailure, Error};
use crate::files::Tree;
use crate::network::flannel::Version;
use crate::network::routes::RouteProblem;
use crate::progress::{Progress, StepId};
use crate::report::text::{escaped, shortened};
use crate::report::{Code, Event, Phase};

/// After bad answers; they start again at each event.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const PAUSES: Backoff = Backoff::new(FIRST_PAUSE, Duration::from_secs(2));
/// Between good answers.
const GOOD_PAUSE: Duration = Duration::from_secs(1);
/// How long a process must have been good whose unit systemd restarted while its gate was measured: longer than the 5 s of
/// RestartSec= and the few for which a service runs that exits because of its environment.
const STAYS_UP: Duration = Duration::from_secs(15);
/// A measurement that takes longer is a bad one.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
/// To wait no longer than this for a service is normal, and logged as a detail.
const NORMAL_STARTUP: Duration = Duration::from_secs(10);
/// The most that is quoted of an unexpected answer.
const QUOTED: usize = 200;

/// What a gate is measured with.
pub(crate) struct Measure<'a, U, P> {
    pub(crate) root: &'a Tree,
    pub(crate) units: &'a U,
    pub(crate) prober: &'a P,
    pub(crate) clock: &'a Clock,
    pub(crate) progress: &'a Progress,
    pub(crate) generation: u64,
    /// Since when the whole run goes on, and how long it may.
    pub(crate) running: &'a Stopwatch,
    pub(crate) deadline: Duration,
    /// How many times its own deadline a gate may be measured.
    pub(crate) patience: u32,
    /// The installed release, where it is known.
    pub(crate) flanneld: Option<Version>,
}

/// Why a measurement is bad.
#[derive(Debug)]
struct FailedMeasurement {
    cause: String,
    /// The message of its own, where it has one.
    code: Option<Code>,
    /// Waiting longer is of no use.
    at_once: bool,
}

impl From<BadAnswer> for FailedMeasurement {
    fn from(answer: BadAnswer) -> Self {
        answer.cause.into()
    }
}

impl From<String> for FailedMeasurement {
    fn from(cause: String) -> Self {
        Self { cause, code: None, at_once: false }
    }
}

/// Main process and number of restarts of a gate's unit; nothing where it speaks for none.
pub(crate) type Process = Option<(u32, u32)>;

/// How far a gate is.
#[derive(Debug)]
pub(crate) struct GateProgress {
    /// Since it is measured.
    taken: Stopwatch,
    attempt: u32,
    /// Good answers in a row of this process.
    good: u32,
    process: Process,
    /// Since the first of them.
    good_since: Stopwatch,
    /// Since the first of the bad answers that came last, and how often systemd restarted the unit before and since.
    bad_since: Option<Stopwatch>,
    restarts: Option<(u32, u32)>,
    /// Whether the process was replaced while the gate was measured.
    replaced: bool,
}

impl GateProgress {
    /// It begins. `again`: its process was another one before, in this run.
    fn new(again: bool, clock: &Clock) -> Self {
        Self {
            taken: clock.start(),
            attempt: 0,
            good: 0,
            process: None,
            good_since: clock.start(),
            bad_since: None,
            restarts: None,
            replaced: again,
        }
    }

    /// The process that answered.
    pub(crate) fn process(&self) -> Process {
        self.process
    }

    /// Since when this process passes.
    pub(crate) fn good_since(&self) -> &Stopwatch {
        &self.good_since
    }

    /// Takes in a good answer.
    fn take(&mut self, process: Process, clock: &Clock) {
        self.note(process.map(|(_, restarts)| restarts));
        if self.good == 0 || process != self.process {
            self.replaced |= self.process.is_some_and(|before| Some(before) != process);
            (self.good, self.good_since) = (0, clock.start());
        }
        self.good += 1;
        (self.process, self.bad_since) = (process, None);
    }

    /// Notes how often systemd restarted the unit.
    fn note(&mut self, restarts: Option<u32>) {
        let Some(now) = restarts else { return };
        let (first, _) = self.restarts.unwrap_or((now, now));
        self.replaced |= now > first;
        self.restarts = Some((first, now));
    }

    /// Whether the gate has passed.
    fn has_passed(&self, gate: &Gate) -> bool {
        self.good >= wanted(gate) && (!self.replaced || wanted(gate) == 1 || self.good_since.elapsed() >= STAYS_UP)
    }

    /// What was measured last, since when, and how often the unit was restarted meanwhile.
    fn cause(&self, last: &str, unit: Option<&str>) -> String {
        let mut cause = last.to_owned();
        if let Some(since) = self.bad_since.as_ref().filter(|since| since.elapsed() >= Duration::from_secs(1)) {
            cause.push_str(&format!(", for {} s", since.elapsed().as_secs()));
        }
        if let (Some((first, now)), Some(unit)) = (self.restarts, unit)
            && now > first
        {
            cause.push_str(&format!("; meanwhile systemd restarted {unit} {} times", now - first));
        }
        cause
    }
}

fn wanted(gate: &Gate) -> u32 {
    u32::from(gate.consecutive.max(1))
}

impl<U: UnitManager, P: Prober + PodNetwork> Measure<'_, U, P> {
    /// Waits for the gate's first good answer. `again`: its process was another one before, in this run.
    ///
    /// # Errors
    /// At its own deadline or the run's, with the last answer; before, if the gate's unit failed and systemd leaves it at that.
    pub(crate) async fn until_answer(&self, gate: &Gate, again: bool) -> Result<GateProgress, Failure> {
        let mut gate_progress = GateProgress::new(again, self.clock);
        if let GateProbe::Store(store) = &gate.probe {
            // Nothing of it passes by waiting.
            store::check(self.root, store, None).map_err(|error| store::unsuitable_store(&error))?;
            gate_progress.good = wanted(gate);
        } else {
            self.until(gate, &mut gate_progress, |gate_progress| gate_progress.good > 0).await?;
        }
        Ok(gate_progress)
    }

    /// Waits until a gate that answered has passed.
    ///
    /// # Errors
    /// As [`Measure::until_answer`]; also where it answers, but never often enough in a row.
    pub(crate) async fn until_passed(&self, gate: &Gate, gate_progress: &mut GateProgress) -> Result<(), Failure> {
        if !gate_progress.has_passed(gate) {
            self.clock.wait(GOOD_PAUSE).await;
            self.until(gate, gate_progress, |gate_progress| gate_progress.has_passed(gate)).await?;
        }
        let event = Event::new(Code::GatePassed, format!("gate {} passed", gate.name));
        self.emit(gate, event.duration(gate_progress.taken.elapsed()));
        Ok(())
    }

    /// Which process the gate's unit has now, where it is up.
    pub(crate) async fn process_now(&self, gate: &Gate) -> Result<Process, String> {
        let Some(unit) = &gate.unit else { return Ok(None) };
        let state = self.units.unit(unit).await.map_err(|error| error.cause_first())?;
        Ok(Some((state.main_pid, state.n_restarts)))
    }

    /// What is left for a gate, and its own deadline where that comes before the run's.
    fn left(&self, gate: &Gate, gate_progress: &GateProgress) -> (Duration, Option<Duration>) {
        let of_run = self.deadline.saturating_sub(self.running.elapsed());
        let own = gate.deadline.map(|own| own.saturating_mul(self.patience));
        let left = own.map_or(of_run, |own| own.saturating_sub(gate_progress.taken.elapsed()));
        if left < of_run { (left, own) } else { (of_run, None) }
    }

    async fn until(
        &self,
        gate: &Gate,
        gate_progress: &mut GateProgress,
        enough: impl Fn(&GateProgress) -> bool,
    ) -> Result<(), Failure> {
        let unit = gate.unit.as_deref();
        let mut changes: Option<BoxStream<'static, String>> = None;
        let mut pauses = PAUSES;
        let (left, _) = self.left(gate, gate_progress);
        self.progress.give_up_after(&StepId::Gate(gate.name.clone()), left);
        loop {
            gate_progress.attempt += 1;
            let cause = match self.clock.limit(ANSWER_LIMIT, self.measure(gate)).await {
                Some(Ok(process)) => {
                    gate_progress.take(process, self.clock);
                    if enough(gate_progress) {
                        return Ok(());
                    }
                    None
                }
                Some(Err(failed)) => Some(failed),
                None => Some(format!("no answer within {} s", ANSWER_LIMIT.as_secs()).into()),
            };
            let (left, own) = self.left(gate, gate_progress);
            let Some(FailedMeasurement { cause, code, at_once }) = cause else {
                if left.is_zero() {
                    let last = "it passed, but not for long enough without a restart";
                    return Err(failed(gate, late(&gate_progress.cause(last, unit), own), None));
                }
                self.clock.wait(GOOD_PAUSE.min(left)).await;
                continue;
            };
            gate_progress.good = 0;
            gate_progress.bad_since.get_or_insert_with(|| self.clock.start());
            if let Some(unit) = unit
                && let Ok(state) = self.units.unit(unit).await
            {
                gate_progress.note(Some(state.n_restarts));
                // Waiting longer is of no use: systemd does not start it again, or cannot.
                if state.is_failed() || state.cannot_be_run() {
                    let cause =
                        format!("{unit} is {}; gate {}: {}", state.describe(), gate.name, gate_progress.cause(&cause, None));
                    return Err(Failure::new(Code::UnitFailed, StepId::Gate(gate.name.clone()), cause).unit(unit));
                }
            }
            if at_once {
                return Err(failed(gate, gate_progress.cause(&cause, unit), code));
            }
            if left.is_zero() {
                return Err(failed(gate, late(&gate_progress.cause(&cause, unit), own), code));
            }
            let pause = pauses.next_pause();
            let line = format!("gate {} has not passed yet: {cause}", gate.name);
            let waits = Event::new(Code::GateWaiting, line).attempt(gate_progress.attempt).next_try(pause).cause(cause);
            // Every service takes a moment until it answers. Later on, the message is the agent's: in the unit's own journal it would
            // bury what the unit says.
            self.emit(gate, if gate_progress.taken.elapsed() < NORMAL_STARTUP { waits.detail() } else { waits });
            if changes.is_none() && gate.unit.is_some() {
                changes = self.units.changes().await.ok();
            }
            if self.wait(gate, &mut changes, pause.min(left)).await {
                pauses.reset();
            }
        }
    }

    /// Waits for news of the gate's unit, or for the pause to end; true if there was news.
    async fn wait(&self, gate: &Gate, changes: &mut Option<BoxStream<'static, String>>, pause: Duration) -> bool {
        let received = news_of(self.clock, changes, gate.unit.as_deref().unwrap_or_default(), pause).await;
        if received {
            // systemd reports one change in several signals: measure once for all of them.
            self.clock.wait(FIRST_PAUSE.min(pause) / 2).await;
        }
        received
    }

    fn emit(&self, gate: &Gate, event: Event) {
        let event = event.phase(Phase::Gates).generation(self.generation).gate(&gate.name);
        let event = match &gate.unit {
            Some(unit) if event.code == Code::GateWaiting => event.foreign_unit(unit),
            Some(unit) => event.unit(unit),
            None => event,
        };
        self.progress.emit(&StepId::Gate(gate.name.clone()), event);
    }

    /// One measurement, good: main process and number of restarts of the gate's unit, because good answers count together
    /// only while these stay. Bad: the cause in words.
    async fn measure(&self, gate: &Gate) -> Result<Process, FailedMeasurement> {
        match &gate.probe {
            GateProbe::PodRoutes(pods) => self.pod_routes(pods).await?,
            probe => ask(self.root, self.prober, probe).await?,
        }
        let Some(unit) = &gate.unit else { return Ok(None) };
        let state = self.units.unit(unit).await.map_err(|error| error.cause_first())?;
        // Somebody else may answer in its place. A unit that applied settings has done its work and may be down.
        if !matches!(gate.probe, GateProbe::Sysctl(_)) && !state.is_active() {
            return Err(format!("the check passed, but {unit} is {}", state.describe()).into());
        }
        Ok(Some((state.main_pid, state.n_restarts)))
    }

    /// Routes to the pods of everybody, and whether packets arrive. A route that is left over harms nobody who is there.
    async fn pod_routes(&self, pods: &PodRoutes) -> Result<(), FailedMeasurement> {
        let words = |error: Error| error.to_string();
        let leases = match &pods.peers {
            Peers::Leases(store) => self.prober.leases(store, self.flanneld).await.map_err(words)?,
            Peers::Given(_) => Vec::new(),
        };
        let inspection = inspect(self.root, pods, &leases).map_err(words)?;
        let off_segment = |wrong: &&RouteProblem| matches!(wrong, RouteProblem::OffSegment { .. });
        let strangers = inspection.wrong.iter().filter(off_segment).count();
        // Whoever has neighbours is in its place: a stranger among them is refused itself, and reported here.
        if let Some(wrong) = inspection.wrong.iter().find(off_segment) {
            if strangers == inspection.others.len() {
                return Err(FailedMeasurement { cause: wrong.to_string(), code: Some(code(wrong)), at_once: true });
            }
            self.progress
                .report()
                .emit(Event::new(code(wrong), wrong.to_string()).phase(Phase::Gates).generation(self.generation));
        }
        let wrong = inspection.wrong.iter().find(|wrong| !off_segment(wrong) && !matches!(wrong, RouteProblem::LeftOver(_)));
        if let Some(wrong) = wrong {
            return Err(FailedMeasurement { cause: wrong.to_string(), code: Some(code(wrong)), at_once: false });
        }
        let questions = inspection.questions(self.root, 0).map_err(words)?;
        match packets::verdict(&self.prober.send(&questions).await) {
            PacketVerdict::Ok => Ok(()),
            PacketVerdict::Lost(peers) => Err(FailedMeasurement {
                cause: packets::lost(pods.network, &peers),
                code: Some(Code::PodPacketsLost),
                at_once: false,
            }),
            PacketVerdict::Silent(peers) => {
                let line = format!("pod traffic does not reach {}", packets::named(&peers));
                self.progress.report().emit(Event::new(Code::PeerSilent, line).phase(Phase::Gates).generation(self.generation));
                Ok(())
            }
        }
    }
}

/// Whether a gate passes now, whoever waits for it or not; else the cause in words. Routes to pods are watched by whoever mends them.
pub(crate) async fn passes(root: &Tree, prober: &impl Prober, clock: &Clock, gate: &Gate) -> Result<(), BadAnswer> {
    let answer = clock.limit(ANSWER_LIMIT, ask(root, prober, &gate.probe)).await;
    let late = || BadAnswer { cause: format!("no answer within {} s", ANSWER_LIMIT.as_secs()), is_silence: true };
    answer.unwrap_or_else(|| Err(late()))
}

/// Why a gate does not pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BadAnswer {
    /// In words.
    pub(crate) cause: String,
    /// Whether whoever was asked accepts questions and answers none in time.
    pub(crate) is_silence: bool,
}

impl From<String> for BadAnswer {
    fn from(cause: String) -> Self {
        Self { cause, is_silence: false }
    }
}

impl From<Error> for BadAnswer {
    fn from(error: Error) -> Self {
        Self { cause: error.cause_first(), is_silence: matches!(error.connect_failure(), Some(ConnectFailure::Silence)) }
    }
}

/// One question: whether the answer is as it should be, else the cause in words.
async fn ask(root: &Tree, prober: &impl Prober, probe: &GateProbe) -> Result<(), BadAnswer> {
    match probe {
        GateProbe::HttpJson { url, key, value, identity } => {
            let answer = prober.get_json(url, identity.as_ref()).await?;
            Ok(expect(&answer, key, value)?)
        }
        GateProbe::NodeReady { url, identity } => {
            let answer = prober.get_json(url, identity.as_ref()).await?;
            Ok(is_ready(&answer)?)
        }
        GateProbe::NoPendingRequests { url, identity } => {
            let answer = prober.get_json(url, identity.as_ref()).await?;
            Ok(none_pending(&answer)?)
        }
        GateProbe::AddOn(add_on) => Ok(add_ons::ready(root, prober, add_on).await?),
        GateProbe::File(path) => match root.facts_followed(Path::new(path)) {
            Ok(Some(_)) => Ok(()),
            Ok(None) => Err(format!("there is no {path}").into()),
            Err(error) => Err(error.into()),
        },
        GateProbe::Docker { socket, storage_driver, data_root } => {
            let info = prober.docker(socket, "/info").await?;
            expect(&info, "Driver", storage_driver)?;
            Ok(expect(&info, "DockerRootDir", data_root)?)
        }
        GateProbe::Http { url, body, ca, identity } => {
            let answer = prober.get_text(url, ca.as_deref(), identity.as_ref()).await?;
            match body {
                Some(body) if answer.trim() != body => {
                    Err(format!("the answer was {}, not {body}", quoted(answer.trim())).into())
                }
                _ => Ok(()),
            }
        }
        GateProbe::Socket(path) => prober.answers_grpc(path).await.map_err(|error| error.to_string().into()),
        GateProbe::Store(store) => store::check(root, store, None).map_err(|error| error.to_string().into()),
        GateProbe::FlannelSubnet { network, bridge } => {
            check_subnet(root, *network, bridge.as_deref()).map_err(|error| error.to_string().into())
        }
        // Measured with the leases, above.
        GateProbe::PodRoutes(_) => Ok(()),
        GateProbe::Sysctl(settings) => Ok(settings.iter().try_for_each(|(key, least)| at_least(root, key, *least))?),
    }
}

/// A cause with the deadline that passed: the gate's own, else the run's.
fn late(cause: &str, own: Option<Duration>) -> String {
    match own {
        Some(own) => format!("{cause}; given up after {} s, its own deadline", own.as_secs()),
        None => format!("{cause}; given up at the deadline of the run"),
    }
}

/// Time is up. What has a message of its own has its remedy, too.
fn failed(gate: &Gate, cause: String, code: Option<Code>) -> Failure {
    let remedy = code.map_or_else(|| gate.remedy.as_str().into(), Code::remedy);
    let failure = Failure::new(code.unwrap_or(Code::GateTimedOut), StepId::Gate(gate.name.clone()), cause).remedy(remedy);
    match &gate.unit {
        Some(unit) => failure.unit(unit),
        None => failure,
    }
}

/// The member `key` of an answer must be `value`, as text: etcd's health is a string in one version, a boolean in another.
fn expect(answer: &Value, key: &str, value: &str) -> Result<(), String> {
    let found = match answer.get(key) {
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
        None => return Err(format!("the answer lacks {key}: {}", quoted(&answer.to_string()))),
    };
    if found == value { Ok(()) } else { Err(format!("{key} is {}, not {value}", quoted(&found))) }
}

/// What the API says of a node's condition Ready.
fn is_ready(node: &Value) -> Result<(), String> {
    let conditions = node.pointer("/status/conditions").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let text = |condition: &Value, key: &str| condition.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let Some(ready) = conditions.iter().find(|condition| text(condition, "type") == "Ready") else {
        return Err("the node is not Ready: its kubelet has not reported yet".to_owned());
    };
    match text(ready, "status").as_str() {
        "True" => Ok(()),
        status => {
            let state = if status == "False" { "not Ready" } else { "not known to be Ready" };
            Err(format!("the node is {state}: {}: {}", quoted(&text(ready, "reason")), quoted(&text(ready, "message"))))
        }
    }
}

/// The most requests that are named.
const NAMED: usize = 3;

/// Requests for certificates without a condition: neither approved, nor denied, nor failed.
fn none_pending(list: &Value) -> Result<(), String> {
    let Some(items) = list.get("items").and_then(Value::as_array) else {
        return Err(format!("the answer lacks items: {}", quoted(&list.to_string())));
    };
    let is_open = |item: &&Value| item.pointer("/status/conditions").and_then(Value::as_array).is_none_or(Vec::is_empty);
    let named = |item: &Value| {
        let text = |pointer: &str| quoted(item.pointer(pointer).and_then(Value::as_str).unwrap_or_default());
        format!("{} of {}", text("/metadata/name"), text("/spec/username"))
    };
    let open: Vec<&Value> = items.iter().filter(is_open).collect();
    if open.is_empty() {
        return Ok(());
    }
    let first: Vec<String> = open.iter().take(NAMED).map(|item| named(item)).collect();
    let more = open.len().saturating_sub(NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let what = if open.len() == 1 { "certificate request is" } else { "certificate requests are" };
    Err(format!("{} {what} pending: {}{more}", open.len(), first.join(", ")))
}

fn quoted(text: &str) -> String {
    shortened(&escaped(text), QUOTED)
}

fn at_least(root: &Tree, key: &str, least: u64) -> Result<(), String> {
    const LIMIT: u64 = 4096;
    let bytes = root.read(&Path::new("/proc/sys").join(key), LIMIT).map_err(|error| error.cause_first())?;
    let Some(bytes) = bytes else { return Err(format!("the kernel has no setting {key}")) };
    let text = String::from_utf8_lossy(&bytes);
    match text.trim().parse::<u64>() {
        Ok(number) if number >= least => Ok(()),
        _ => Err(format!("{key} is {}, not {least} or more", quoted(text.trim()))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use std::sync::Arc;

    use super::*;
    use crate::clock::Timestamp;
    use crate::desired::ClientIdentity;
    use crate::files::Attributes;
    use crate::http::fake::{Fake, TestCa, ok, status};
    use crate::http::{Http, Tls};

    fn gate(consecutive: u8) -> Gate {
        Gate {
            name: "g".into(),
            unit: None,
            probe: GateProbe::Sysctl(vec![]),
            consecutive,
            deadline: None,
            needs: [].into(),
            remedy: String::new(),
        }
    }

    /// A good answer of this process, after so many seconds.
    fn answer(gate_progress: &mut GateProgress, clock: &Clock, after: u64, process: Process) {
        clock.advance(Duration::from_secs(after));
        gate_progress.take(process, clock);
    }

    #[test]
    fn good_answers_count_in_a_row_and_of_one_process() {
        let clock = Clock::manual(Timestamp(1_000_000));
        let passed = |gate_progress: &GateProgress| [1, 2, 3].map(|wanted| gate_progress.has_passed(&gate(wanted)));
        let mut gate_progress = GateProgress::new(false, &clock);
        assert_eq!(passed(&gate_progress), [false; 3]);
        assert!(!gate_progress.has_passed(&gate(0)), "one at least");
        answer(&mut gate_progress, &clock, 5, Some((10, 0)));
        assert_eq!(passed(&gate_progress), [true, false, false]);
        answer(&mut gate_progress, &clock, 1, Some((10, 0)));
        assert_eq!(passed(&gate_progress), [true, true, false]);
        answer(&mut gate_progress, &clock, 1, Some((10, 0)));
        assert_eq!(passed(&gate_progress), [true; 3]);
        assert_eq!(
            (gate_progress.process(), gate_progress.good_since().elapsed().as_secs()),
            (Some((10, 0)), 2),
            "since the first of them"
        );
        assert_eq!(gate_progress.taken.elapsed().as_secs(), 7);
        // A bad one between: from the start, but nobody was replaced.
        gate_progress.good = 0;
        for answers in [[true, false, false], [true, true, false], [true; 3]] {
            answer(&mut gate_progress, &clock, 1, Some((10, 0)));
            assert_eq!(passed(&gate_progress), answers);
        }
        assert_eq!((gate_progress.good_since().elapsed().as_secs(), gate_progress.replaced), (2, false));
    }

    #[test]
    fn a_process_in_the_place_of_another_has_to_stay_up() {
        // By its number, by systemd's count of restarts, both, or in the same run before.
        for (before, after) in [
            (Some((10, 0)), Some((11, 0))),
            (Some((10, 0)), Some((10, 1))),
            (Some((10, 0)), Some((11, 1))),
            (None, Some((11, 1))),
        ] {
            let clock = Clock::manual(Timestamp(1_000_000));
            let mut gate_progress = GateProgress::new(before.is_none(), &clock);
            if before.is_some() {
                for _ in 0..3 {
                    answer(&mut gate_progress, &clock, 1, before);
                }
                assert!(gate_progress.has_passed(&gate(3)), "the first process of all");
            }
            answer(&mut gate_progress, &clock, 1, after);
            assert_eq!(gate_progress.good, 1, "{after:?}");
            for second in 1..=15 {
                answer(&mut gate_progress, &clock, 1, after);
                assert_eq!(gate_progress.has_passed(&gate(3)), second == 15, "{after:?} after {second} s");
            }
            // What asks for one answer alone is no service that could die.
            gate_progress.good_since = clock.start();
            assert!(gate_progress.has_passed(&gate(1)) && !gate_progress.has_passed(&gate(2)));
        }
        // What has no process, and a unit that systemd forgot the restarts of, were not replaced.
        let clock = Clock::manual(Timestamp(1_000_000));
        let mut gate_progress = GateProgress::new(false, &clock);
        for process in [None, None, Some((10, 4)), Some((10, 4))] {
            answer(&mut gate_progress, &clock, 0, process);
        }
        assert!(!gate_progress.replaced);
        for restarts in [None, Some(0), Some(4), None] {
            gate_progress.note(restarts);
            assert!(!gate_progress.replaced, "{restarts:?}");
        }
        // It counts from the first time that it was looked at.
        gate_progress.note(Some(5));
        assert!(gate_progress.replaced);
        assert_eq!(gate_progress.restarts, Some((4, 5)));
    }

    #[test]
    fn a_cause_says_since_when_and_how_many_restarts_there_were() {
        let clock = Clock::manual(Timestamp(1_000_000));
        let mut gate_progress = GateProgress::new(false, &clock);
        let unit = Some("x.service");
        assert_eq!(gate_progress.cause("refused", unit), "refused");
        gate_progress.bad_since = Some(clock.start());
        for (after, reported) in [(999, "refused"), (1, "refused, for 1 s"), (65_900, "refused, for 66 s")] {
            clock.advance(Duration::from_millis(after));
            assert_eq!(gate_progress.cause("refused", unit), reported);
        }
        for (restarts, reported) in [
            (2, "refused, for 66 s"),
            (5, "refused, for 66 s; meanwhile systemd restarted x.service 3 times"),
            (1, "refused, for 66 s"),
        ] {
            gate_progress.note(Some(restarts));
            assert_eq!(gate_progress.cause("refused", unit), reported);
        }
        gate_progress.note(Some(5));
        assert_eq!(gate_progress.cause("refused", None), "refused, for 66 s");
        // A good answer ends it.
        gate_progress.take(None, &clock);
        assert_eq!(gate_progress.cause("dead", None), "dead");
    }

    #[test]
    fn an_answer_is_compared_as_text() {
        for (answer, bad) in [
            (json!({"health": "true"}), None),
            (json!({"health": true, "reason": ""}), None),
            (json!({"health": "false"}), Some("health is false, not true")),
            (json!({"x": "\u{1b}"}), Some("the answer lacks health: {\"x\":\"\\u001b\"}")),
            (json!("OK"), Some("the answer lacks health: \"OK\"")),
        ] {
            assert_eq!(expect(&answer, "health", "true").err().as_deref(), bad, "{answer}");
        }
    }

    /// The API server is believed by the cluster's CA alone, and only while it reports that it is healthy.
    #[test]
    fn the_apis_word_on_a_node_and_on_requests_is_put_in_words() {
        let node = |ready: Value| json!({"kind": "Node", "status": {"conditions": [{"type": "DiskPressure", "status": "False"}, ready]}});
        let lacks_network =
            json!({"type": "Ready", "status": "False", "reason": "KubeletNotReady", "message": "cni plugin not initialized"});
        let lost =
            json!({"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "message": "Kubelet stopped posting"});
        for (node, expected) in [
            (node(json!({"type": "Ready", "status": "True", "reason": "KubeletReady"})), None),
            (node(lacks_network), Some("the node is not Ready: KubeletNotReady: cni plugin not initialized")),
            (node(lost), Some("the node is not known to be Ready: NodeStatusUnknown: Kubelet stopped posting")),
            (json!({"kind": "Node"}), Some("the node is not Ready: its kubelet has not reported yet")),
        ] {
            assert_eq!(is_ready(&node).err().as_deref(), expected);
        }
        let request = |name: &str, status: Value| json!({"metadata": {"name": name}, "spec": {"username": "system:node:n1"}, "status": status});
        let open = |name: &str| request(name, json!({}));
        let approved = request("csr-0", json!({"conditions": [{"type": "Approved"}]}));
        for (items, expected) in [
            (vec![], None),
            (vec![approved.clone()], None),
            (vec![approved, open("csr-1")], Some("1 certificate request is pending: csr-1 of system:node:n1")),
            (
                (1..6).map(|at| open(&format!("csr-{at}"))).collect(),
                Some(
                    "5 certificate requests are pending: csr-1 of system:node:n1, csr-2 of system:node:n1, csr-3 of system:node:n1 and 2 more",
                ),
            ),
        ] {
            assert_eq!(none_pending(&json!({"items": items})).err().as_deref(), expected);
        }
        assert!(none_pending(&json!({"kind": "Status"})).unwrap_err().contains("lacks items"));
    }

    #[tokio::test]
    async fn an_https_gate_believes_the_ca_in_its_file_and_nobody_else() {
        let dir = tempfile::tempdir().unwrap();
        let root = Arc::new(Tree::open(dir.path()).unwrap());
        let ours = TestCa::new("blue");
        for (path, ca) in [("/ca.crt", &ours), ("/other.crt", &TestCa::new("blue"))] {
            root.write(Path::new(path), ca.pem().as_bytes(), Attributes::mode(0o644)).unwrap();
        }
        let starting = || status("500 Internal Server Error", "[-]etcd failed: reason withheld\nhealthz check failed");
        let unknown = status("401 Unauthorized", "ok");
        let server =
            Fake::start_tls(vec![starting(), unknown, ok("not ok"), ok("ok\n")], ours.identity("127.0.0.1", (2020, 2090))).await;
        let http = Http::new(Tls::default(), root, Clock::system());
        let url = format!("{}/readyz", server.base);
        let question = |file: Option<&str>| GateProbe::Http {
            url: url.clone(),
            body: Some("ok".to_owned()),
            ca: file.map(str::to_owned),
            identity: None,
        };
        let tree = Tree::open(dir.path()).unwrap();
        for unrelated in [None, Some("/other.crt"), Some("/absent.crt")] {
            let cause = ask(&tree, &http, &question(unrelated)).await.unwrap_err().cause;
            assert!(server.requests().is_empty(), "{unrelated:?}: {cause}");
        }
        for cause in ["500", "401"] {
            assert_eq!(ask(&tree, &http, &question(Some("/ca.crt"))).await.unwrap_err().cause, format!("{url} answered {cause}"));
        }
        assert_eq!(ask(&tree, &http, &question(Some("/ca.crt"))).await.unwrap_err().cause, "the answer was not ok, not ok");
        assert_eq!(ask(&tree, &http, &question(Some("/ca.crt"))).await, Ok(()));
        assert!(server.requests().iter().all(|request| request.starts_with("GET /readyz ")));
        // A name that the certificate does not have.
        server.present(Some(ours.identity("192.0.2.11", (2020, 2090))));
        let another = Http::new(Tls::default(), Arc::new(Tree::open(dir.path()).unwrap()), Clock::system());
        let cause = ask(&tree, &another, &question(Some("/ca.crt"))).await.unwrap_err().cause;
        assert!(!cause.contains("answer"), "{cause}");
    }

    /// etcd serves /health to its own clients alone, whose certificates change; an API server may answer only those it knows.
    #[tokio::test]
    async fn an_https_gate_shows_its_certificate_as_it_is_now() {
        let dir = tempfile::tempdir().unwrap();
        let root = Arc::new(Tree::open(dir.path()).unwrap());
        let ours = TestCa::new("etcd");
        let write = |path: &str, text: &str| root.write(Path::new(path), text.as_bytes(), Attributes::mode(0o600)).unwrap();
        let renew = |ca: &TestCa| {
            let (certificate, key) = ca.client("etcd");
            write("/admin.crt", &certificate);
            write("/admin.key", &key);
        };
        write("/ca.crt", &ours.pem());
        let server = Fake::start_tls(vec![ok("{\"health\": \"true\"}"), ok("ok")], ours.identity_for_clients_of(&ours)).await;
        let http = Http::new(Tls::default(), Arc::clone(&root), Clock::system());
        let [certificate, key, ca] = ["/admin.crt", "/admin.key", "/ca.crt"].map(str::to_owned);
        let question = |identity| GateProbe::HttpJson {
            url: format!("{}/health", server.base),
            key: "health".to_owned(),
            value: "true".to_owned(),
            identity,
        };
        let known = question(Some(ClientIdentity { certificate, key, ca }));
        renew(&TestCa::new("etcd"));
        let cause = ask(&root, &http, &known).await.unwrap_err().cause;
        assert!(cause.contains("does not accept this node's certificate /admin.crt"), "{cause}");
        renew(&ours);
        assert_eq!(ask(&root, &http, &known).await, Ok(()));
        assert!(ask(&root, &http, &question(None)).await.is_err());
        assert_eq!(server.requests().len(), 1);
        let GateProbe::HttpJson { url, identity, .. } = known else { panic!() };
        let text = |identity| GateProbe::Http {
            url: url.clone(),
            body: Some("ok".to_owned()),
            ca: Some("/ca.crt".to_owned()),
            identity,
        };
        assert!(ask(&root, &http, &text(None)).await.is_err());
        assert_eq!(ask(&root, &http, &text(identity)).await, Ok(()));
        assert_eq!(server.requests().len(), 2);
    }

    #[test]
    fn kernel_settings_are_read_below_the_root() {
        let dir = tempfile::tempdir().unwrap();
        let tree = Tree::open(dir.path()).unwrap();
        tree.create_dir_all(Path::new("/proc/sys/net/ipv4"), Attributes::mode(0o755)).unwrap();
        tree.write(Path::new("/proc/sys/net/ipv4/ip_forward"), b"1\n", Attributes::mode(0o644)).unwrap();
        assert_eq!(at_least(&tree, "net/ipv4/ip_forward", 1), Ok(()));
        assert_eq!(at_least(&tree, "net/ipv4/ip_forward", 2).unwrap_err(), "net/ipv4/ip_forward is 1, not 2 or more");
        assert_eq!(at_least(&tree, "net/bridge/x", 1).unwrap_err(), "the kernel has no setting net/bridge/x");
    }
}
