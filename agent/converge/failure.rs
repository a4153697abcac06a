//! How bringing a node up ends.

use crate::error::Error;
use crate::error::remedy::Remedy;
use crate::progress::StepId;
use crate::report::{Code, Event, Phase};

/// The node is as it should be, and measured as good.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Converged {
    /// Whether anything was written, mounted, started or restarted.
    pub changed: bool,
}

/// Why the node could not be brought up: the first thing that is fatal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Which message of the catalog it is.
    pub code: Code,
    /// What was being done.
    pub step: StepId,
    /// Which part of that, where it has parts: `mkfs`.
    pub part: Option<&'static str>,
    /// The unit that it is about, one of our own.
    pub unit: Option<String>,
    /// systemd cannot start that unit at all: what it said last is of an earlier life.
    pub unstartable: bool,
    /// Why.
    pub cause: String,
    /// By whose rule.
    pub rule: Option<String>,
    /// What the operator can do.
    pub remedy: Remedy,
    /// Whether anything of the machine may have been changed before it.
    pub changed_machine: bool,
}

impl Failure {
    /// A failure with the remedy that the catalog has for its code.
    #[must_use]
    pub fn new(code: Code, step: impl Into<StepId>, cause: impl Into<String>) -> Self {
        Self {
            code,
            step: step.into(),
            part: None,
            unit: None,
            unstartable: false,
            cause: cause.into(),
            rule: None,
            remedy: code.remedy(),
            changed_machine: true,
        }
    }

    /// A failure whose cause, rule and remedy are an error's.
    #[must_use]
    pub fn from_error(code: Code, step: impl Into<StepId>, error: &Error) -> Self {
        let mut failure = Self::new(code, step, error.cause_first());
        failure.rule = error.broken_rule().map(str::to_owned);
        if let Some(remedy) = error.typed_remedy() {
            failure.remedy.clone_from(remedy);
        }
        failure
    }

    /// Names the unit that it is about.
    #[must_use]
    pub fn unit(mut self, unit: impl Into<String>) -> Self {
        self.unit = Some(unit.into());
        self
    }

    /// Names a unit that systemd cannot start at all.
    #[must_use]
    pub fn unstartable(mut self, unit: impl Into<String>) -> Self {
        self.unstartable = true;
        self.unit(unit)
    }

    /// Says that it came before the first change.
    #[must_use]
    pub fn untouched(mut self) -> Self {
        self.changed_machine = false;
        self
    }

    /// Names the rule behind it.
    #[must_use]
    pub fn rule(mut self, rule: impl Into<String>) -> Self {
        self.rule = Some(rule.into());
        self
    }

    /// Says what the operator can do.
    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<Remedy>) -> Self {
        self.remedy = remedy.into();
        self
    }

    /// Says of which step the work was a part that failed.
    #[must_use]
    pub fn part_of(mut self, step: StepId) -> Self {
        if let StepId::Work(part) = self.step {
            self.part = Some(part);
        }
        self.step = step;
        self
    }

    /// What was being done, for people: `volume runtime: mkfs`.
    #[must_use]
    pub fn doing(&self) -> String {
        match self.part {
            Some(part) => format!("{}: {part}", self.step),
            None => self.step.to_string(),
        }
    }

    /// The event that reports it.
    #[must_use]
    pub fn event(&self) -> Event {
        let cause = match &self.rule {
            Some(rule) => format!("{} (rule: {rule})", self.cause),
            None => self.cause.clone(),
        };
        let doing = self.doing();
        let event = Event::new(self.code, format!("{doing}: {}", self.cause)).phase(self.phase()).step(doing);
        let mut event = event.cause(cause).remedy(&self.remedy);
        if let StepId::Gate(gate) = &self.step {
            event = event.gate(gate);
        }
        match &self.unit {
            Some(unit) => event.unit(unit),
            None => event,
        }
    }

    /// Where in the node's life it happened.
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.step.phase()
    }
}

/// What a run of `converge` ends with.
pub type ConvergeResult = Result<Converged, Failure>;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::desired::VolumeRole;

    #[test]
    fn a_failure_contains_everything_that_an_operator_needs() {
        let error = Error::refused("an ext4 file system is on it")
            .rule("a signature is never overwritten")
            .remedy("wipefs -a /dev/vdb")
            .context("checking");
        let failure = Failure::from_error(Code::VolumeRefused, StepId::Volume(VolumeRole::Runtime), &error);
        let event = failure.event();
        assert_eq!(event.message, "volume runtime: an ext4 file system is on it (while checking)");
        assert_eq!(
            event.cause.as_deref(),
            Some("an ext4 file system is on it (while checking) (rule: a signature is never overwritten)")
        );
        assert_eq!(event.remedy.as_deref(), Some("wipefs -a /dev/vdb"));
        let plain = Failure::new(Code::UnitMissing, StepId::Unit("x.service".into()), "no such unit").unit("x.service");
        assert!(plain.event().own_unit && plain.remedy.starts_with("Install the component"));
        // Its line is on the console by its phase, and names the gate.
        assert_eq!((plain.event().phase, plain.event().gate), (Some(Phase::Units), None));
        let failed = Failure::new(Code::GateTimedOut, StepId::Gate("etcd".into()), "no answer").event();
        assert_eq!((failed.phase, failed.gate.as_deref()), (Some(Phase::Gates), Some("etcd")));
        assert_eq!((event.phase, event.gate), (Some(Phase::Volume), None));
    }
}
