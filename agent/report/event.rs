//! A typed event: what a module reports; how it looks is [`super`]'s business.

use std::borrow::Cow;
use std::time::Duration;

use super::catalog::{Code, ID, UNIT};
use super::text::argument;
use crate::error::Error;
use crate::error::remedy::Remedy;
use crate::http::without_userinfo;

/// Where in its life the node is: a closed list (design.md 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Settings are read.
    Settings,
    /// Metadata is waited for or read.
    Metadata,
    /// A deployment is running.
    Deploy,
    /// Parameters are checked and the difference to the machine is worked out.
    Plan,
    /// Volumes are found, checked, formatted, mounted.
    Volume,
    /// Certificates are looked at, made and put in place.
    Certificates,
    /// Files are written.
    Files,
    /// Units are started.
    Units,
    /// Health is measured.
    Gates,
    /// A signal is being sent to Heat.
    Signal,
    /// Nothing is left to do; the agent keeps watch.
    Steady,
}

impl Phase {
    /// All of them, in their order.
    pub(super) const ALL: [Self; 11] = [
        Self::Settings,
        Self::Metadata,
        Self::Deploy,
        Self::Plan,
        Self::Volume,
        Self::Certificates,
        Self::Files,
        Self::Units,
        Self::Gates,
        Self::Signal,
        Self::Steady,
    ];

    /// The word that journal, status and console use.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Settings => "settings",
            Self::Metadata => "metadata",
            Self::Deploy => "deploy",
            Self::Plan => "plan",
            Self::Volume => "volume",
            Self::Certificates => "certificates",
            Self::Files => "files",
            Self::Units => "units",
            Self::Gates => "gates",
            Self::Signal => "signal",
            Self::Steady => "steady",
        }
    }
}

impl Code {
    /// The message for a failure of the agent's own: which one depends on what refused.
    #[must_use]
    pub fn of_trouble(error: &Error) -> Self {
        if error.is_bus_error() {
            Self::BusUnreachable
        } else if error.is_kernel_error() {
            Self::StateWriteFailed
        } else {
            Self::StepFailed
        }
    }
}

/// One event with the journal fields that it carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Which message.
    pub code: Code,
    /// One line for people.
    pub message: String,
    /// `HNA_PHASE`.
    pub phase: Option<Phase>,
    /// `HNA_STEP`: what exactly, e.g. `mkfs`, `start`.
    pub step: Option<String>,
    /// `HNA_GENERATION`.
    pub generation: Option<u64>,
    /// `HNA_DEPLOYMENT_ID`.
    pub deployment_id: Option<String>,
    /// `HNA_DEPLOYMENT_NAME`.
    pub deployment_name: Option<String>,
    /// `HNA_SOURCE`.
    pub source: Option<String>,
    /// `HNA_UNIT`.
    pub unit: Option<String>,
    /// Whether the unit is one of our own Desired, so that `journalctl -u UNIT` may show the line.
    pub own_unit: bool,
    /// `HNA_GATE`.
    pub gate: Option<String>,
    /// `HNA_ATTEMPT`.
    pub attempt: Option<u32>,
    /// `HNA_NEXT_TRY_MS`.
    pub next_try: Option<Duration>,
    /// `HNA_DURATION_MS`.
    pub duration: Option<Duration>,
    /// `HNA_WAITED_FOR`: the last thing that its step waited for. [`super`] knows it.
    pub waited_for: Option<String>,
    /// `HNA_WAITED_MS`: how long its step waited, from the beginning of the run.
    pub waited: Option<Duration>,
    /// `HNA_CAUSE`.
    pub cause: Option<String>,
    /// `HNA_REMEDY`.
    pub remedy: Option<Remedy>,
    /// Whether it is written at the priority of debug messages: one of many of its kind.
    pub is_detail: bool,
}

impl Event {
    /// Masks user names and passwords of URLs, and what else must not be shown, wherever the text came from.
    pub(super) fn mask(&mut self, hidden: impl for<'a> Fn(&'a str) -> Cow<'a, str>) {
        // An id and a name are a template's, too.
        let named = [&mut self.deployment_id, &mut self.deployment_name];
        // By values first: they were learnt as they are.
        let masked = |text: &str| without_userinfo(&hidden(text)).into_owned();
        let optional = [&mut self.step, &mut self.cause].into_iter().chain(named).filter_map(Option::as_mut);
        for text in optional.chain([&mut self.message]) {
            *text = masked(text);
        }
        self.remedy = self.remedy.as_ref().map(|remedy| remedy.with_text(masked(remedy)));
    }

    /// An event with a line for people and no fields yet.
    #[must_use]
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            phase: None,
            step: None,
            generation: None,
            deployment_id: None,
            deployment_name: None,
            source: None,
            unit: None,
            own_unit: false,
            gate: None,
            attempt: None,
            next_try: None,
            duration: None,
            waited_for: None,
            waited: None,
            cause: None,
            remedy: None,
            is_detail: false,
        }
    }

    /// Sets the phase; the console gets a line where it changes.
    #[must_use]
    pub fn phase(mut self, phase: Phase) -> Self {
        self.phase = Some(phase);
        self
    }

    /// Sets the step.
    #[must_use]
    pub fn step(mut self, step: impl Into<String>) -> Self {
        self.step = Some(step.into());
        self
    }

    /// Sets the generation.
    #[must_use]
    pub fn generation(mut self, generation: u64) -> Self {
        self.generation = Some(generation);
        self
    }

    /// Sets id and name of the deployment.
    #[must_use]
    pub fn deployment(mut self, id: &str, name: &str) -> Self {
        self.deployment_id = Some(id.to_owned());
        self.deployment_name = Some(name.to_owned());
        self
    }

    /// Sets the source.
    #[must_use]
    pub fn source(mut self, source: impl Into<String>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Sets the unit: one of our own Desired.
    #[must_use]
    pub fn unit(mut self, unit: impl Into<String>) -> Self {
        self.unit = Some(unit.into());
        self.own_unit = true;
        self
    }

    /// Sets a unit whose own journal the line must not be mixed into (deployments, helpers).
    #[must_use]
    pub fn foreign_unit(mut self, unit: impl Into<String>) -> Self {
        self.unit = Some(unit.into());
        self.own_unit = false;
        self
    }

    /// Sets the gate.
    #[must_use]
    pub fn gate(mut self, gate: impl Into<String>) -> Self {
        self.gate = Some(gate.into());
        self
    }

    /// Sets the number of the try, from 1.
    #[must_use]
    pub fn attempt(mut self, attempt: u32) -> Self {
        self.attempt = Some(attempt);
        self
    }

    /// Sets when it is tried again.
    #[must_use]
    pub fn next_try(mut self, after: Duration) -> Self {
        self.next_try = Some(after);
        self
    }

    /// Sets how long it took.
    #[must_use]
    pub fn duration(mut self, duration: Duration) -> Self {
        self.duration = Some(duration);
        self
    }

    /// It is one of many of its kind, which another message sums up.
    #[must_use]
    pub fn detail(mut self) -> Self {
        self.is_detail = true;
        self
    }

    /// Sets the cause.
    #[must_use]
    pub fn cause(mut self, cause: impl Into<String>) -> Self {
        self.cause = Some(cause.into());
        self
    }

    /// Sets the remedy.
    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<Remedy>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }

    /// What to do about it: its own remedy, or else the catalog's. A command that takes an id or a unit has this event's.
    pub(super) fn remedy_in_words(&self) -> Cow<'_, str> {
        let words = self.remedy.as_deref().unwrap_or(self.code.entry().remedy);
        let words = match &self.deployment_id {
            Some(id) if words.contains(ID) => Cow::from(words.replace(ID, &format!(" {}`", argument(id)))),
            _ => words.into(),
        };
        match &self.unit {
            Some(unit) if words.contains(UNIT) => words.replace(UNIT, unit).into(),
            _ => words,
        }
    }

    /// Takes cause and remedy from an error.
    #[must_use]
    pub fn error(mut self, error: &Error) -> Self {
        self.cause = Some(match error.broken_rule() {
            Some(rule) => format!("{} (rule: {rule})", error.cause_first()),
            None => error.cause_first(),
        });
        if let Some(remedy) = error.typed_remedy() {
            self.remedy = Some(remedy.clone());
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_of_the_catalog_has_the_id_of_the_deployment_that_the_message_is_about() {
        let stopped = Event::new(Code::DeploymentStopped, "stopped");
        assert!(stopped.remedy_in_words().ends_with("or `heat-node-agent rerun ID`."));
        let of_one = Event { deployment_id: Some("a b".to_owned()), ..stopped };
        let remedy = of_one.remedy_in_words();
        assert!(remedy.starts_with("`heat-node-agent logs 'a b'` shows") && remedy.ends_with("rerun 'a b'`."), "{remedy}");
        let hangs = Event::new(Code::ComponentHangs, "hangs").unit("kubelet.service");
        assert!(hangs.remedy_in_words().contains("`systemctl restart kubelet.service` ends the hang"));
    }

    #[test]
    fn a_failure_of_our_own_is_named_after_what_refused() {
        let full: Error = std::io::Error::from_raw_os_error(28).into();
        let bus = Error::transient("the system bus cannot be reached").as_bus_error();
        for (error, code) in [
            (full.context("recording a result"), Code::StateWriteFailed),
            (bus.context("comparing the node with its parameters"), Code::BusUnreachable),
            (Error::permanent("no such deployment"), Code::StepFailed),
        ] {
            assert_eq!(Code::of_trouble(&error), code, "{error}");
        }
    }
}
