//! What the engine asks of other modules: volumes, certificates, the API, services, systemd.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::stream::BoxStream;
use serde_json::Value;

use super::failure::Failure;
use crate::desired::{AddOn, ClientIdentity, Desired, EtcdJoin, Object, Volume};
use crate::error::{Error, Result};
use crate::files::Tree;
use crate::machine::listeners::Holder;
use crate::systemd::{Enabled, JobOutcome, Systemd, UnitState};

/// Finds, checks, perhaps formats, and mounts volumes.
pub trait Volumes {
    /// Checks what can be known of the stores before anything is touched: refuses, or is transient.
    fn check_stores(&self, desired: &Desired) -> impl Future<Output = Result<()>>;
    /// Waits for the disks of what runs without them and is to have them, for `deadline` at most, and refuses what cannot come
    /// into its place, before a file is written. It reports its own failure.
    ///
    /// `is_deployment`: a disk that was in use before is waited for, too. A repair leaves it to its step, beside which the others go on.
    fn check_places(
        &self,
        desired: &Desired,
        deadline: Duration,
        is_deployment: bool,
    ) -> impl Future<Output = std::result::Result<(), Failure>>;
    /// Makes sure that the volume is mounted and ours; true if that changed anything. It waits for an absent disk for
    /// `deadline` at most, reports its own failure, and may be dropped at any moment.
    fn bring_up(&self, volume: &Volume, deadline: Duration) -> impl Future<Output = std::result::Result<bool, Failure>>;
}

/// Looks at, makes and puts in place a node's certificates.
pub trait Certificates {
    /// What is remembered once they are in place.
    type Record;

    /// Makes ready, beside what is in place, whatever has to change: keys, certificates, CAs, all checked to belong
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
    /// Makes sure that the API holds every object of an add-on of the image in `root`, one after the other. It waits for an API that is
    /// away, and for what an object needs, until the deadline; `waits` hears of each try that failed, of the how many-th it was, and of the pause after it.
    fn apply(
        &self,
        add_on: &AddOn,
        root: &Tree,
        deadline: Duration,
        waits: &impl Fn(&Error, u32, Duration),
    ) -> impl Future<Output = Result<Applied>>;
}

/// Settles how this node's member of etcd starts, before it does: a member without data takes the place that its cluster has for it.
pub trait EtcdMembership {
    /// Has etcd not start without data until that is settled, whoever starts it: before a run, and after it whatever came of it.
    ///
    /// # Errors
    /// If its environment file cannot be written.
    fn hold(&self, root: &Tree, join: &EtcdJoin) -> Result<()>;
    /// Has etcd never start without data again, if it has some.
    ///
    /// # Errors
    /// As above.
    fn protect(&self, root: &Tree, join: &EtcdJoin) -> Result<()>;
    /// Looks once. Where the member may start, the environment file that it reads then says how. Nothing of the cluster's members changes.
    ///
    /// # Errors
    /// Transient while the cluster has to be waited for; refused where this node must not take the place.
    fn settle(&self, root: &Tree, join: &EtcdJoin, situation: &MemberSituation) -> impl Future<Output = Result<MemberStep>>;
    /// Has this node's member vote where it runs as a learner that has caught up; true if it was promoted now, false if it votes.
    ///
    /// # Errors
    /// Transient where its list, or a member that votes, cannot be asked, or it has not caught up, or another node has its turn.
    fn promote(&self, join: &EtcdJoin) -> impl Future<Output = Result<bool>>;
    /// Changes the cluster's members, one node at a time: it looks again once it is its turn. True if it is done, false if it is not
    /// needed any more. The member's unit must not run meanwhile.
    ///
    /// # Errors
    /// As above; in whatever state that leaves the cluster, the next look goes on.
    fn change(
        &self,
        root: &Tree,
        join: &EtcdJoin,
        situation: &MemberSituation,
        change: MemberChange,
    ) -> impl Future<Output = Result<bool>>;
}

/// What a run knows when it looks at a member that is to start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemberSituation {
    /// For how long nobody was there, at any other member's address, in looks one after the other.
    pub unheard: Duration,
    /// A mount unit of the data's directory, or of one above it, that is not active.
    pub unmounted: Option<String>,
    /// Whether the member's unit runs.
    pub is_running: bool,
    /// Whether it runs, or is about to: systemd starts it again and again.
    pub is_up: bool,
    /// Whether the run may change the cluster's members.
    pub may_change: bool,
}

/// What comes next for a member that is to start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberStep {
    /// It may.
    Start,
    /// Nobody else is there yet: it may, as a member of a new cluster, once that has lasted.
    Unheard,
    /// The cluster's members are to be changed first.
    Change(MemberChange),
}

/// A change of a cluster's members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberChange {
    /// The member of this id goes: it was this node's, and its data is gone.
    Remove(u64),
    /// A member of this node's comes.
    Add,
    /// The data of this node's member, which was removed, is put aside. Refused where the run must not, or another machine has the place.
    SetAside,
}

/// What became of the objects of an add-on: how many were made, changed, or as they should be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Absent before.
    pub made: usize,
    /// They differed.
    pub changed: usize,
    /// Nothing was written.
    pub unchanged: usize,
}

/// Asks the services that gates measure.
pub trait Prober {
    /// GETs a URL, shown to the server as this identity where one is given; the JSON of a 2xx answer.
    fn get_json(&self, url: &str, identity: Option<&ClientIdentity>) -> impl Future<Output = Result<Value>>;
    /// GETs a URL, shown to the server as this identity where one is given, else the server signed by the CA in a file
    /// where one is given; the text of a 2xx answer.
    fn get_text(&self, url: &str, ca: Option<&str>, identity: Option<&ClientIdentity>) -> impl Future<Output = Result<String>>;
    /// GETs a path from the docker engine behind a socket; the JSON of a 2xx answer.
    fn docker(&self, socket: &str, path: &str) -> impl Future<Output = Result<Value>>;
    /// Whether whoever serves gRPC at a socket answers a client that connects.
    fn answers_grpc(&self, socket: &str) -> impl Future<Output = Result<()>>;
}

/// Finds out why a unit failed: what it said last, and who is in its way.
pub trait FailureDetails {
    /// The last lines of a unit's own processes and of what systemd could not run for it, oldest first, secrets masked; none
    /// where the journal does not say. It takes a few seconds at most.
    fn failure_details(&self, unit: &str) -> impl Future<Output = Vec<String>>;
    /// Who listens on these TCP ports; nobody where that is unknown. It takes a few seconds at most.
    fn holders(&self, ports: &BTreeSet<u16>) -> impl Future<Output = Vec<Holder>>;
}

/// What converge asks of systemd. [`Systemd`] is the one implementation outside tests.
pub trait UnitManager {
    /// [`Systemd::unit`].
    fn unit(&self, name: &str) -> impl Future<Output = Result<UnitState>>;
    /// [`Systemd::is_active`].
    fn is_active(&self, name: &str) -> impl Future<Output = Result<bool>> {
        async move { Ok(self.unit(name).await?.is_active()) }
    }
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
    /// [`Systemd::stop`].
    fn stop(&self, name: &str) -> impl Future<Output = Result<JobOutcome>>;
    /// [`Systemd::disable`].
    fn disable(&self, names: &[String]) -> impl Future<Output = Result<()>>;
    /// [`Systemd::changes`].
    fn changes(&self) -> impl Future<Output = Result<BoxStream<'static, String>>>;
}

impl UnitManager for Systemd {
    async fn unit(&self, name: &str) -> Result<UnitState> {
        Self::unit(self, name).await
    }

    async fn is_active(&self, name: &str) -> Result<bool> {
        Self::is_active(self, name).await
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

    async fn stop(&self, name: &str) -> Result<JobOutcome> {
        Self::stop(self, name).await
    }

    async fn disable(&self, names: &[String]) -> Result<()> {
        Self::disable(self, names).await
    }

    async fn changes(&self) -> Result<BoxStream<'static, String>> {
        Self::changes(self).await
    }
}
