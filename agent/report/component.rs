//! How a component of a node in place is now, as it was measured last: a part of the status document.

use serde::{Deserialize, Serialize};

use super::condition::{Condition, ConditionId};
use super::condition_state::ConditionState;

/// How a component is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ComponentState {
    /// It runs, and every gate of its own passes.
    #[default]
    Healthy,
    /// It is on its way up, or what it needs is not there.
    Degraded,
    /// It does not run, dies again and again, or does not answer.
    Failed,
}

impl ComponentState {
    /// The word that status and journal use.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::Degraded => "degraded",
            Self::Failed => "failed",
        }
    }
}

/// A unit that is to run with the gates that speak for it, or a gate that speaks for none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ComponentStatus {
    /// `kubelet`.
    pub name: String,
    /// Its unit, where it has one.
    pub unit: Option<String>,
    /// How it is.
    pub state: ComponentState,
    /// Since when it is in this state (RFC 3339).
    pub since: String,
    /// How often systemd restarted it by itself since somebody started it.
    pub restarts: u32,
    /// What is wrong, in a few words: `crash-looping (11 restarts)`.
    pub problem: Option<String>,
    /// Why, in one sentence, with the unit's last lines where it died.
    pub cause: Option<String>,
    /// What to do about it.
    pub remedy: Option<String>,
}

impl ComponentStatus {
    /// Whether something is wrong with it.
    #[must_use]
    pub fn is_unhealthy(&self) -> bool {
        self.state != ComponentState::Healthy
    }

    /// In a few words: `kubelet crash-looping (11 restarts)`.
    #[must_use]
    pub fn headline(&self) -> String {
        format!("{} {}", self.name, self.problem.as_deref().unwrap_or(self.state.as_str()))
    }

    /// For the tree of conditions, where something is wrong.
    #[must_use]
    pub fn condition(&self) -> Option<Condition> {
        let state = match self.state {
            ComponentState::Healthy => return None,
            ComponentState::Degraded => ConditionState::Waiting,
            ComponentState::Failed => ConditionState::Failed,
        };
        Some(Condition {
            name: ConditionId::Named(format!("component {}", self.name)),
            state,
            detail: self.problem.clone(),
            since: Some(self.since.clone()),
            cause: self.cause.clone(),
            remedy: self.remedy.clone(),
            ..Condition::default()
        })
    }
}

/// The component of storage: a gate, which no unit has.
const STORAGE: &str = "storage";

/// Takes in that a volume is full or away: the gate of storage asks for the store of the runtime alone, but storage is not healthy then.
pub fn take_in_volume_problem(components: &mut [ComponentStatus]) {
    if let Some(storage) = components.iter_mut().find(|one| one.name == STORAGE && !one.is_unhealthy()) {
        (storage.state, storage.problem) = (ComponentState::Degraded, Some("a volume needs an operator".to_owned()));
    }
}

/// The components that are not healthy, without storage where that has no cause of its own: a volume is why, and has it.
pub(super) fn unhealthy(components: &[ComponentStatus]) -> impl Iterator<Item = &ComponentStatus> {
    components.iter().filter(|one| one.is_unhealthy() && (one.name != STORAGE || one.cause.is_some()))
}

/// The component that is worst, the first of several; nothing where all are healthy.
#[must_use]
pub fn worst(components: &[ComponentStatus]) -> Option<&ComponentStatus> {
    // Of equals the first one is the least.
    unhealthy(components).min_by_key(|component| std::cmp::Reverse(component.state))
}

/// The components that are not healthy in a few words, of which the worst is named; nothing where all are.
#[must_use]
pub fn headline(components: &[ComponentStatus]) -> Option<String> {
    let first = worst(components)?.headline();
    Some(match unhealthy(components).count() {
        1 => first,
        more => format!("{first}, and {} more", more - 1),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn component(name: &str, state: ComponentState, problem: &str) -> ComponentStatus {
        ComponentStatus { name: name.into(), state, problem: Some(problem.into()), ..ComponentStatus::default() }
    }

    #[test]
    fn the_headline_names_the_worst_and_counts_the_rest() {
        let healthy = ComponentStatus { name: "etcd".into(), ..ComponentStatus::default() };
        let slow = component("docker", ComponentState::Degraded, "starting");
        let dead = component("kubelet", ComponentState::Failed, "crash-looping (11 restarts)");
        assert_eq!(headline(std::slice::from_ref(&healthy)), None);
        assert_eq!(headline(&[healthy.clone(), slow.clone()]).as_deref(), Some("docker starting"));
        assert_eq!(headline(&[slow, healthy, dead.clone()]).as_deref(), Some("kubelet crash-looping (11 restarts), and 1 more"));
        // A volume that is full is said of the volume.
        let mut all = [ComponentStatus { name: STORAGE.into(), ..ComponentStatus::default() }, dead];
        take_in_volume_problem(&mut all);
        assert_eq!((all[0].state, all[0].headline().as_str()), (ComponentState::Degraded, "storage a volume needs an operator"));
        assert_eq!(headline(&all[..1]), None);
        assert_eq!(headline(&all).as_deref(), Some("kubelet crash-looping (11 restarts)"));
    }

    #[test]
    fn what_is_wrong_is_a_condition_with_its_cause_and_remedy() {
        assert_eq!(ComponentStatus::default().condition(), None);
        let mut dead = component("kubelet", ComponentState::Failed, "not running");
        (dead.cause, dead.remedy) = (Some("why".into()), Some("do".into()));
        let condition = dead.condition().unwrap();
        assert_eq!((condition.name.as_str(), condition.state), ("component kubelet", ConditionState::Failed));
        assert_eq!((condition.detail, condition.remedy), (Some("not running".into()), Some("do".into())));
        let slow = component("docker", ComponentState::Degraded, "starting");
        assert_eq!(slow.condition().unwrap().state, ConditionState::Waiting);
    }
}
