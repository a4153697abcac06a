//! Makes a [`Desired`](crate::desired::Desired) true.
//!
//! In: a `Desired` and what is there ([`Observed`]). Out: a [`Plan`] (pure, and what the command `plan` shows), and the
//! outcome of carrying it out: [`Converged`] or the first [`Failure`]. Steps that do not depend on each other run
//! side by side; waits are for events, with a poll as the net.
//!
//! It never starts a program, never talks to Heat, and knows nothing of Kubernetes: what a node needs is in the
//! `Desired`, whether a volume may be touched is behind [`Volumes`].

pub mod engine;
#[cfg(test)]
mod engine_tests;
mod gates;
mod graph;
mod install;
pub mod observed;
pub mod offline;
mod owners;
mod pending;
pub mod plan;
mod prober;
mod render;
mod unified;
mod units;
pub mod volumes;
mod write;

use std::time::Duration;

use futures_util::stream::BoxStream;
use serde_json::Value;

pub use engine::{Context, converge};
pub use observed::{Observed, observe, observe_files};
pub use owners::Owners;
pub use plan::{Plan, plan};

use crate::desired::Volume;
use crate::error::{Error, Result};
use crate::report::{Code, Event};
use crate::systemd::{JobOutcome, Systemd, UnitState};

/// The node is as it should be, and measured as good.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Converged {
    /// Whether anything was written, mounted, started or restarted.
    pub changed: bool,
    /// How long each step took, in milliseconds, in the order of their ends.
    pub timings: Vec<(String, u64)>,
}

/// Why the node could not be brought up: the first thing that is fatal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Which message of the catalog it is.
    pub code: Code,
    /// What was being done: `unit etcd.service`, `volume runtime`, `gate docker`.
    pub step: String,
    /// The unit that it is about, one of our own.
    pub unit: Option<String>,
    /// Why.
    pub cause: String,
    /// By whose rule.
    pub rule: Option<String>,
    /// What the operator can do.
    pub remedy: String,
}

impl Failure {
    /// A failure with the remedy that the catalog has for its code.
    #[must_use]
    pub fn new(code: Code, step: impl Into<String>, cause: impl Into<String>) -> Self {
        Self { code, step: step.into(), unit: None, cause: cause.into(), rule: None, remedy: code.entry().remedy.to_owned() }
    }

    /// A failure whose cause, rule and remedy are an error's.
    #[must_use]
    pub fn from_error(code: Code, step: impl Into<String>, error: &Error) -> Self {
        let mut failure = Self::new(code, step, error.to_string());
        failure.rule = error.broken_rule().map(str::to_owned);
        if let Some(remedy) = error.suggested_remedy() {
            remedy.clone_into(&mut failure.remedy);
        }
        failure
    }

    /// Names the unit that it is about.
    #[must_use]
    pub fn unit(mut self, unit: impl Into<String>) -> Self {
        self.unit = Some(unit.into());
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
    pub fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = remedy.into();
        self
    }

    /// The event that tells of it.
    #[must_use]
    pub fn event(&self) -> Event {
        let cause = match &self.rule {
            Some(rule) => format!("{} (rule: {rule})", self.cause),
            None => self.cause.clone(),
        };
        let event =
            Event::new(self.code, format!("{}: {}", self.step, self.cause)).step(&self.step).cause(cause).remedy(&self.remedy);
        match &self.unit {
            Some(unit) => event.unit(unit),
            None => event,
        }
    }
}

/// What a run of [`converge`] ends with.
pub type Outcome = std::result::Result<Converged, Failure>;

/// Finds, checks, perhaps formats, and mounts volumes.
pub trait Volumes {
    /// Makes sure that the volume is mounted and ours; true if that changed anything. It waits for an absent disk for
    /// `deadline` at most, tells of its own failure, and may be dropped at any moment.
    fn bring_up(&self, volume: &Volume, deadline: Duration) -> impl Future<Output = std::result::Result<bool, Failure>>;
}

/// Asks the services that gates measure.
pub trait Prober {
    /// GETs a URL; the JSON of a 2xx answer.
    fn get_json(&self, url: &str) -> impl Future<Output = Result<Value>>;
    /// GETs a URL, the server signed by the authority in a file where one is given; the text of a 2xx answer.
    fn get_text(&self, url: &str, authority: Option<&str>) -> impl Future<Output = Result<String>>;
    /// GETs a path from the docker engine behind a socket; the JSON of a 2xx answer.
    fn docker(&self, socket: &str, path: &str) -> impl Future<Output = Result<Value>>;
}

/// What converge asks of systemd. [`Systemd`] is the one implementation outside tests.
pub trait Units {
    /// [`Systemd::unit`].
    fn unit(&self, name: &str) -> impl Future<Output = Result<UnitState>>;
    /// [`Systemd::start`].
    fn start(&self, name: &str) -> impl Future<Output = Result<JobOutcome>>;
    /// [`Systemd::restart`].
    fn restart(&self, name: &str) -> impl Future<Output = Result<JobOutcome>>;
    /// [`Systemd::reset_failed`].
    fn reset_failed(&self, name: &str) -> impl Future<Output = Result<()>>;
    /// [`Systemd::reload`].
    fn reload(&self) -> impl Future<Output = Result<()>>;
    /// [`Systemd::enable`].
    fn enable(&self, names: &[&str]) -> impl Future<Output = Result<bool>>;
    /// [`Systemd::changes`].
    fn changes(&self) -> impl Future<Output = Result<BoxStream<'static, String>>>;
}

impl Units for Systemd {
    async fn unit(&self, name: &str) -> Result<UnitState> {
        Self::unit(self, name).await
    }

    async fn start(&self, name: &str) -> Result<JobOutcome> {
        Self::start(self, name).await
    }

    async fn restart(&self, name: &str) -> Result<JobOutcome> {
        Self::restart(self, name).await
    }

    async fn reset_failed(&self, name: &str) -> Result<()> {
        Self::reset_failed(self, name).await
    }

    async fn reload(&self) -> Result<()> {
        Self::reload(self).await
    }

    async fn enable(&self, names: &[&str]) -> Result<bool> {
        Self::enable(self, names).await
    }

    async fn changes(&self) -> Result<BoxStream<'static, String>> {
        Self::changes(self).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_tells_everything_that_an_operator_needs() {
        let error =
            Error::refused("an ext4 file system is on it").rule("design.md 6").remedy("wipefs -a /dev/vdb").context("checking");
        let failure = Failure::from_error(Code::VolumeRefused, "volume runtime", &error);
        let event = failure.event();
        assert_eq!(event.message, "volume runtime: checking: an ext4 file system is on it");
        assert_eq!(event.cause.as_deref(), Some("checking: an ext4 file system is on it (rule: design.md 6)"));
        assert_eq!(event.remedy.as_deref(), Some("wipefs -a /dev/vdb"));
        let plain = Failure::new(Code::UnitMissing, "unit x.service", "no such unit").unit("x.service");
        assert!(plain.event().own_unit && plain.remedy.starts_with("Install the component"));
    }
}
