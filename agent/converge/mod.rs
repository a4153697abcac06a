//! Makes a [`Desired`] true.
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
pub(crate) mod etcd;
pub mod flannel;
mod gates;
pub(crate) mod graph;
pub mod health;
mod install;
pub mod observed;
pub mod offline;
mod owners;
mod pending;
pub mod plan;
mod prober;
mod render;
pub mod store;
mod units;
mod write;

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::stream::BoxStream;
use serde_json::Value;

pub use engine::{Context, converge};
pub use observed::{Observed, observe, observe_files};
pub use owners::Owners;
pub use plan::{Plan, plan};

use crate::desired::{ClientIdentity, Desired, Object, Volume};
use crate::error::{Error, Result};
use crate::files::Tree;
use crate::machine::listeners::Holder;
use crate::progress::StepId;
use crate::report::{Code, Event, Phase};
use crate::systemd::{Enabled, JobOutcome, Systemd, UnitState};

/// Whether a file that this unit reads was written and the unit was not restarted since.
#[must_use]
pub fn is_owed_a_restart(root: &Tree, unit: &str) -> bool {
    pending::read(root).contains(unit)
}

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
    pub remedy: String,
    /// Whether anything of the machine may have been changed before it.
    pub touched: bool,
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
            remedy: code.entry().remedy.to_owned(),
            touched: true,
        }
    }

    /// A failure whose cause, rule and remedy are an error's.
    #[must_use]
    pub fn from_error(code: Code, step: impl Into<StepId>, error: &Error) -> Self {
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

    /// Names a unit that systemd cannot start at all.
    #[must_use]
    pub fn unstartable(mut self, unit: impl Into<String>) -> Self {
        self.unstartable = true;
        self.unit(unit)
    }

    /// Says that it came before the first change.
    #[must_use]
    pub fn untouched(mut self) -> Self {
        self.touched = false;
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

    /// The event that tells of it.
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

/// What a run of [`converge`] ends with.
pub type Outcome = std::result::Result<Converged, Failure>;

/// Finds, checks, perhaps formats, and mounts volumes.
pub trait Volumes {
    /// Checks what can be known of the stores before anything is touched: refuses, or is transient.
    fn check_stores(&self, desired: &Desired) -> impl Future<Output = Result<()>>;
    /// Waits for the disks of what runs without them and is to have them, for `deadline` at most, and refuses what cannot come
    /// into its place, before a file is written. It tells of its own failure.
    fn check_places(&self, desired: &Desired, deadline: Duration) -> impl Future<Output = std::result::Result<(), Failure>>;
    /// Makes sure that the volume is mounted and ours; true if that changed anything. It waits for an absent disk for
    /// `deadline` at most, tells of its own failure, and may be dropped at any moment.
    fn bring_up(&self, volume: &Volume, deadline: Duration) -> impl Future<Output = std::result::Result<bool, Failure>>;
}

/// Looks at, makes and puts in place a node's certificates.
pub trait Certificates {
    /// What is remembered once they are in place.
    type Record;

    /// Makes ready, beside what is in place, whatever has to change: keys, certificates, authorities, all checked to belong
    /// together. Nothing that is in use changes. It asks nobody where everything is right.
    ///
    /// # Errors
    /// In words, with the first cause; everything stays as it was.
    fn prepare(
        &self,
        desired: &Desired,
        deadline: Duration,
    ) -> impl Future<Output = std::result::Result<Prepared<Self::Record>, Failure>>;

    /// Puts in place what was made ready: the files of one directory by one rename.
    ///
    /// # Errors
    /// If something cannot be written; the next run finishes it.
    fn commit(&self, prepared: &Prepared<Self::Record>) -> std::result::Result<(), Failure>;
}

/// Certificates that are ready to be put in place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prepared<R> {
    /// Absolute paths of the files whose content changes: those who read them are restarted.
    pub changes: BTreeSet<String>,
    /// Directories that get a new set: the directory, and the name of the set in it.
    pub sets: Vec<(String, String)>,
    /// What is remembered once they are in place.
    pub record: Option<R>,
}

/// Makes objects of the cluster's API what they should be.
pub trait Objects {
    /// Makes sure that the API holds the object; true if something was written. It waits for an API that is away until the
    /// deadline.
    fn ensure(&self, object: &Object, deadline: Duration) -> impl Future<Output = Result<bool>>;
}

/// Asks the services that gates measure.
pub trait Prober {
    /// GETs a URL, shown to the server as this identity where one is given; the JSON of a 2xx answer.
    fn get_json(&self, url: &str, identity: Option<&ClientIdentity>) -> impl Future<Output = Result<Value>>;
    /// GETs a URL, shown to the server as this identity where one is given, else the server signed by the authority in a file
    /// where one is given; the text of a 2xx answer.
    fn get_text(
        &self,
        url: &str,
        authority: Option<&str>,
        identity: Option<&ClientIdentity>,
    ) -> impl Future<Output = Result<String>>;
    /// GETs a path from the docker engine behind a socket; the JSON of a 2xx answer.
    fn docker(&self, socket: &str, path: &str) -> impl Future<Output = Result<Value>>;
    /// Connects to a socket, and that is all.
    fn connect(&self, socket: &str) -> impl Future<Output = Result<()>>;
}

/// Finds out why a unit failed: what it said last, and who is in its way.
pub trait LastWords {
    /// The last lines of a unit's own processes and of what systemd could not run for it, oldest first, secrets masked; none
    /// where the journal does not tell. It takes a few seconds at most.
    fn last_words(&self, unit: &str) -> impl Future<Output = Vec<String>>;
    /// Who listens on these TCP ports; nobody where that cannot be told. It takes a few seconds at most.
    fn holders(&self, ports: &BTreeSet<u16>) -> impl Future<Output = Vec<Holder>>;
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
    fn enable(&self, names: &[&str]) -> impl Future<Output = Result<Enabled>>;
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

    async fn enable(&self, names: &[&str]) -> Result<Enabled> {
        Self::enable(self, names).await
    }

    async fn changes(&self) -> Result<BoxStream<'static, String>> {
        Self::changes(self).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::desired::VolumeRole;

    #[test]
    fn a_failure_tells_everything_that_an_operator_needs() {
        let error = Error::refused("an ext4 file system is on it")
            .rule("a signature is never overwritten")
            .remedy("wipefs -a /dev/vdb")
            .context("checking");
        let failure = Failure::from_error(Code::VolumeRefused, StepId::Volume(VolumeRole::Runtime), &error);
        let event = failure.event();
        assert_eq!(event.message, "volume runtime: checking: an ext4 file system is on it");
        assert_eq!(
            event.cause.as_deref(),
            Some("checking: an ext4 file system is on it (rule: a signature is never overwritten)")
        );
        assert_eq!(event.remedy.as_deref(), Some("wipefs -a /dev/vdb"));
        let plain = Failure::new(Code::UnitMissing, StepId::Unit("x.service".into()), "no such unit").unit("x.service");
        assert!(plain.event().own_unit && plain.remedy.starts_with("Install the component"));
        // Its line is on the console by its phase, and names the gate.
        assert_eq!((plain.event().phase, plain.event().gate), (Some(Phase::Units), None));
        let red = Failure::new(Code::GateRed, StepId::Gate("etcd".into()), "no answer").event();
        assert_eq!((red.phase, red.gate.as_deref()), (Some(Phase::Gates), Some("etcd")));
        assert_eq!((event.phase, event.gate), (Some(Phase::Volume), None));
    }
}
