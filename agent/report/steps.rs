//! How far the steps of bringing the node up are: what `status` and `explain` show of them.
//!
//! Who carries them out says when a step begins and ends; what one waits for is taken from the events about it. The
//! other way round an event about a step gets what that waited for.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use super::catalog::{Code, Priority};
use super::condition_state::ConditionState;
use super::event::{Event, Phase};
use super::lap::Lap;
use super::status::Condition;
use super::text::duration;
use crate::clock::Timestamp;

/// The steps of the newest run.
#[derive(Debug, Default)]
pub(super) struct Steps {
    list: Mutex<Vec<Condition>>,
    laps: Mutex<Vec<Lap>>,
    news: Notify,
}

impl Steps {
    fn list(&self) -> MutexGuard<'_, Vec<Condition>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn all(&self) -> Vec<Condition> {
        self.list().clone()
    }

    /// A run begins: these are its steps.
    pub(super) fn expect(&self, names: Vec<String>) {
        *self.list() = names.into_iter().map(|name| Condition { name, ..Condition::default() }).collect();
        self.news.notify_one();
    }

    /// A step enters a state. One that nobody expected stands before those that did not begin.
    pub(super) fn set(&self, name: &str, state: ConditionState, now: Timestamp, cause: Option<&str>, remedy: Option<&str>) {
        let mut list = self.list();
        let at = list.iter().position(|step| step.name == name).unwrap_or_else(|| {
            let at = list.iter().position(|step| step.state == ConditionState::Pending).unwrap_or(list.len());
            list.insert(at, Condition { name: name.to_owned(), ..Condition::default() });
            at
        });
        if let Some(step) = list.get_mut(at) {
            let attempt = if state == ConditionState::Ok { 0 } else { step.attempt };
            *step = Condition {
                name: name.to_owned(),
                state,
                since: Some(now.rfc3339()),
                attempt,
                cause: cause.map(str::to_owned),
                remedy: remedy.map(str::to_owned),
                ..Condition::default()
            };
        }
        drop(list);
        self.news.notify_one();
    }

    /// A step that is worked on is given up then.
    pub(super) fn until(&self, name: &str, then: Timestamp) {
        if let Some(step) = self.list().iter_mut().find(|step| step.name == name) {
            step.given_up = Some(then.rfc3339());
        }
    }

    /// A run ended at a failure of this step: `volume runtime: mkfs` is one of `volume runtime`.
    pub(super) fn fail(&self, step: &str, now: Timestamp, cause: &str, remedy: &str) {
        let owner = {
            let list = self.list();
            let is_part = |name: &str| step.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with(':'));
            let file = step.starts_with("file ") || step.starts_with("directory ");
            let owner = list.iter().find(|one| is_part(&one.name) || (file && one.name == "files"));
            owner.map_or_else(|| step.to_owned(), |one| one.name.clone())
        };
        self.set(&owner, ConditionState::Failed, now, Some(cause), Some(remedy));
    }

    /// Takes from an event what a step waits for.
    pub(super) fn hear(&self, event: &Event) {
        if !matches!(event.code.entry().priority, Priority::Warning | Priority::Notice) {
            return;
        }
        let Some(name) = about(event) else { return };
        let mut list = self.list();
        let Some(step) = list.iter_mut().find(|step| step.name == name && step.state == ConditionState::Waiting) else { return };
        let cause = Some(event.cause.as_ref().unwrap_or(&event.message).clone());
        let remedy = event.remedy.clone().or_else(|| Some(event.code.entry().remedy.to_owned()));
        step.attempt = event.attempt.unwrap_or(step.attempt);
        if (&step.cause, &step.remedy) != (&cause, &remedy) {
            (step.cause, step.remedy) = (cause, remedy);
            drop(list);
            self.news.notify_one();
        }
    }

    pub(super) async fn changed(&self) {
        self.news.notified().await;
    }

    /// Of steps that did not begin: what they wait for now.
    pub(super) fn wait(&self, needs: &[(String, Vec<String>)]) {
        for step in self.list().iter_mut() {
            let known = needs.iter().find(|(name, _)| *name == step.name);
            step.waits_for = known.map(|(_, needs)| needs.clone()).unwrap_or_default();
        }
    }

    fn lock_laps(&self) -> MutexGuard<'_, Vec<Lap>> {
        self.laps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn laps(&self) -> Vec<Lap> {
        self.lock_laps().clone()
    }

    pub(super) fn begin_laps(&self) {
        self.lock_laps().clear();
    }

    pub(super) fn lap_begins(&self, step: &str, at_ms: u64, after: Vec<String>) {
        let lap = Lap { step: step.to_owned(), began_ms: at_ms, took_ms: 0, after, state: ConditionState::Waiting };
        let mut laps = self.lock_laps();
        go_on(&mut laps, at_ms);
        laps.push(lap);
    }

    pub(super) fn lap_ends(&self, step: &str, at_ms: u64, state: ConditionState) {
        let mut laps = self.lock_laps();
        go_on(&mut laps, at_ms);
        let is_it = |lap: &&mut Lap| lap.step == step && lap.state == ConditionState::Waiting;
        if let Some(lap) = laps.iter_mut().find(is_it) {
            lap.state = state;
        }
    }

    /// Tells with the good news of a step what it waited for, last and how long.
    pub(super) fn place(&self, event: &mut Event) {
        if event.code.entry().priority != Priority::Info {
            return;
        }
        let Some(name) = about(event) else { return };
        let laps = self.lock_laps();
        let lap = laps.iter().find(|lap| lap.step == name && lap.state == ConditionState::Waiting);
        let Some((lap, need)) = lap.and_then(|lap| Some((lap, lap.after.last()?))) else { return };
        let waited = Duration::from_millis(lap.began_ms);
        // A disk that is found is not the end of its step.
        if let Some(took) = event.duration.filter(|_| event.code != Code::VolumeFound) {
            event.message.push_str(&format!(" ({}, waited {} for {need})", duration(took), duration(waited)));
        }
        event.waited = Some(waited);
        event.waited_for = Some(need.clone());
    }
}

/// What goes on has taken so long by now.
fn go_on(laps: &mut [Lap], at_ms: u64) {
    for lap in laps.iter_mut().filter(|lap| lap.state == ConditionState::Waiting) {
        lap.took_ms = at_ms.saturating_sub(lap.began_ms);
    }
}

/// The step that an event is about.
fn about(event: &Event) -> Option<String> {
    Some(match (&event.gate, &event.unit, event.phase, &event.step) {
        (Some(gate), ..) => format!("gate {gate}"),
        (_, _, Some(Phase::Volume), Some(role)) => format!("volume {role}"),
        (_, _, Some(Phase::Certificates), _) => "certificates".to_owned(),
        (_, Some(unit), Some(Phase::Units), _) => format!("unit {unit}"),
        (_, None, Some(Phase::Units), Some(step)) => step.clone(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(steps: &Steps) -> Vec<String> {
        let line = |step: &Condition| {
            format!("{} {:?} {} {}", step.name, step.state, step.attempt, step.cause.as_deref().unwrap_or("-"))
        };
        steps.all().iter().map(line).collect()
    }

    #[test]
    fn a_step_begins_waits_for_what_events_say_and_ends() {
        let steps = Steps::default();
        steps.expect(["files", "volume etcd", "gate etcd"].map(str::to_owned).to_vec());
        let gate = |attempt| {
            Event::new(Code::GateWaiting, "not green")
                .phase(Phase::Gates)
                .gate("etcd")
                .unit("etcd.service")
                .attempt(attempt)
                .cause("refused")
        };
        // Before it begins nothing is waited for.
        steps.hear(&gate(1));
        assert_eq!(shown(&steps), ["files Pending 0 -", "volume etcd Pending 0 -", "gate etcd Pending 0 -"]);
        steps.set("files", ConditionState::Ok, Timestamp(0), None, None);
        steps.set("gate etcd", ConditionState::Waiting, Timestamp(1000), None, None);
        steps.set("volume etcd", ConditionState::Waiting, Timestamp(1000), None, None);
        steps.hear(&gate(31));
        steps.hear(&Event::new(Code::VolumeWaiting, "no disk has it").phase(Phase::Volume).step("etcd"));
        steps.hear(&Event::new(Code::GateGreen, "green").phase(Phase::Gates).gate("etcd"));
        assert_eq!(shown(&steps), ["files Ok 0 -", "volume etcd Waiting 0 no disk has it", "gate etcd Waiting 31 refused"]);
        assert_eq!(steps.all()[2].since.as_deref(), Some("1970-01-01T00:00:01Z"));
        steps.until("gate etcd", Timestamp(601_000));
        steps.until("gate x", Timestamp(601_000));
        let ends = || steps.all().into_iter().map(|step| step.given_up).collect::<Vec<_>>();
        assert_eq!(ends(), [None, None, Some("1970-01-01T00:10:01Z".to_owned())]);
        steps.hear(&gate(32));
        assert!(ends()[2].is_some(), "news change nothing of it");
        steps.set("gate etcd", ConditionState::Ok, Timestamp(2000), None, None);
        assert_eq!(ends(), [None, None, None], "it is over");
        steps.fail("volume etcd: mkfs", Timestamp(3000), "no room", "make room");
        assert_eq!(shown(&steps), ["files Ok 0 -", "volume etcd Failed 0 no room", "gate etcd Ok 0 -"]);
    }

    #[test]
    fn good_news_of_a_step_say_what_it_waited_for_and_complaints_do_not() {
        let steps = Steps::default();
        let green = || Event::new(Code::GateGreen, "gate etcd passed").gate("etcd").duration(Duration::from_millis(800));
        let placed = |mut event: Event| {
            steps.place(&mut event);
            (event.message, event.waited_for, event.waited.map(|waited| waited.as_millis()))
        };
        steps.lap_begins("unit etcd.service", 100, vec![]);
        assert_eq!(placed(Event::new(Code::UnitStarted, "started").phase(Phase::Units).unit("etcd.service")).1, None);
        steps.lap_ends("unit etcd.service", 14_300, ConditionState::Ok);
        assert_eq!(placed(green()), ("gate etcd passed".into(), None, None), "it has not begun");
        steps.lap_begins("gate etcd", 14_300, vec!["certificates".into(), "unit etcd.service".into()]);
        let said = "gate etcd passed (800ms, waited 14.3s for unit etcd.service)";
        assert_eq!(placed(green()), (said.into(), Some("unit etcd.service".into()), Some(14_300)));
        assert_eq!(placed(Event::new(Code::GateWaiting, "not green").gate("etcd")), ("not green".into(), None, None));
    }

    #[test]
    fn laps_know_who_goes_on_and_who_failed() {
        let steps = Steps::default();
        steps.lap_begins("a", 0, vec![]);
        steps.lap_begins("b", 10, vec![]);
        steps.lap_ends("a", 30, ConditionState::Ok);
        steps.lap_ends("a", 35, ConditionState::Failed);
        steps.lap_begins("c", 40, vec!["a".into()]);
        let shown = || steps.laps().iter().map(|lap| (lap.took_ms, lap.state)).collect::<Vec<_>>();
        assert_eq!(shown(), [(30, ConditionState::Ok), (30, ConditionState::Waiting), (0, ConditionState::Waiting)]);
        steps.lap_ends("b", 60, ConditionState::Failed);
        assert_eq!(shown(), [(30, ConditionState::Ok), (50, ConditionState::Failed), (20, ConditionState::Waiting)]);
        steps.begin_laps();
        assert!(steps.laps().is_empty());
    }

    #[test]
    fn a_step_that_did_not_begin_says_what_it_waits_for_until_it_begins() {
        let steps = Steps::default();
        steps.expect(["volume etcd", "unit etcd"].map(str::to_owned).to_vec());
        steps.wait(&[("unit etcd".to_owned(), vec!["volume etcd".to_owned()])]);
        assert_eq!(steps.all().iter().map(|step| step.waits_for.len()).collect::<Vec<_>>(), [0, 1]);
        steps.wait(&[]);
        assert!(steps.all().iter().all(|step| step.waits_for.is_empty()));
    }

    #[test]
    fn a_failure_belongs_to_the_step_that_it_speaks_of() {
        for (step, owner) in [
            ("file /etc/x", "files"),
            ("unit etcd.service", "unit etcd.service"),
            ("volume runtime: find: deadline", "volume runtime"),
            ("reading the units' states", "reading the units' states"),
        ] {
            let steps = Steps::default();
            steps.expect(["files", "volume runtime", "volume run", "unit etcd.service"].map(str::to_owned).to_vec());
            steps.set("files", ConditionState::Ok, Timestamp(0), None, None);
            steps.fail(step, Timestamp(0), "why", "what");
            let failed: Vec<_> = steps.all().into_iter().filter(|step| step.state == ConditionState::Failed).collect();
            assert_eq!(failed.iter().map(|step| step.name.as_str()).collect::<Vec<_>>(), [owner]);
        }
    }
}
