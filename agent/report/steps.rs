//! How far the steps of bringing the node up are: what `status` and `explain` show of them.
//!
//! Who carries them out says when a step begins and ends; what one waits for is taken from the events about it.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::catalog::Priority;
use super::event::{Event, Phase};
use super::status::{Condition, ConditionState};
use crate::clock::Timestamp;

/// The steps of the newest run.
#[derive(Debug, Default)]
pub(super) struct Steps {
    list: Mutex<Vec<Condition>>,
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
        let name = match (&event.gate, &event.unit, event.phase, &event.step) {
            (Some(gate), ..) => format!("gate {gate}"),
            (_, _, Some(Phase::Volume), Some(role)) => format!("volume {role}"),
            (_, Some(unit), Some(Phase::Units), _) => format!("unit {unit}"),
            _ => return,
        };
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Code;

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
        steps.set("gate etcd", ConditionState::Ok, Timestamp(2000), None, None);
        steps.fail("volume etcd: mkfs", Timestamp(3000), "no room", "make room");
        assert_eq!(shown(&steps), ["files Ok 0 -", "volume etcd Failed 0 no room", "gate etcd Ok 0 -"]);
    }

    #[test]
    fn a_failure_belongs_to_the_step_that_it_speaks_of() {
        for (step, owner) in [
            ("file /etc/x", "files"),
            ("unit etcd.service", "unit etcd.service"),
            ("volume runtime: find: deadline", "volume runtime"),
            ("looking at units", "looking at units"),
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
