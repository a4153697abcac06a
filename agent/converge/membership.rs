//! Waits until it is settled how this node's member of etcd starts, and has its cluster changed for it where its place is a dead one's.

use std::path::Path;
use std::time::Duration;

use super::units::Starter;
use super::{EtcdMembership, Failure, MemberChange, MemberSituation, MemberStep, UnitManager};
use crate::backoff::Backoff;
use crate::clock::Stopwatch;
use crate::desired::{EtcdJoin, Unit};
use crate::error::{Error, ErrorKind};
use crate::files::Tree;
use crate::progress::{Progress, StepId};
use crate::report::{Code, Event};
use crate::systemd::mount_unit;

/// Between two looks.
const PAUSES: Backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(5));
/// Between two looks while etcd starts: the list that it joins by may have changed, or it may have its data.
const RENEWAL: Duration = Duration::from_secs(10);
/// Between two tries to promote a learner.
const PROMOTION: Duration = Duration::from_secs(1);

/// What the step works with.
pub(crate) struct MemberWaiter<'a, U, P> {
    pub(crate) members: &'a P,
    pub(crate) root: &'a Tree,
    pub(crate) progress: &'a Progress,
    pub(crate) generation: u64,
    pub(crate) starter: Starter<'a, U>,
    /// Whether this run may change the cluster's members.
    pub(crate) may_change: bool,
}

impl<U: UnitManager, P: EtcdMembership> MemberWaiter<'_, U, P> {
    /// Waits until the member may start; true if the cluster's members were changed for it.
    ///
    /// # Errors
    /// At once where this node must not take the place, else at the deadline with the last cause.
    pub(crate) async fn until_settled(&self, join: &EtcdJoin) -> Result<bool, Failure> {
        let mut pauses = PAUSES;
        let (mut attempt, mut has_changed) = (0, false);
        let mut unheard: Option<Stopwatch> = None;
        loop {
            attempt += 1;
            let situation = self.situation(join, unheard.as_ref()).await?;
            let settled = self.members.settle(self.root, join, &situation).await;
            // Whoever is heard, or may be there, ends the silence.
            let silence = unheard.take();
            let mut is_told = true;
            let error = match settled {
                Ok(MemberStep::Start) => return Ok(has_changed),
                Ok(MemberStep::Unheard) => {
                    // Once: a new cluster begins like this.
                    is_told = silence.is_none();
                    unheard = silence.or_else(|| Some(self.starter.clock.start()));
                    Error::transient("nobody is there yet at the addresses of etcd's other members")
                        .remedy("none, where the cluster is new: it is begun soon; else start etcd on the other masters")
                }
                Ok(MemberStep::Change(change)) => match self.change(join, &situation, change).await? {
                    Ok(changed) => {
                        (has_changed, is_told) = (has_changed | changed, false);
                        pauses.reset();
                        Error::transient("etcd's members have just changed")
                    }
                    Err(error) => error,
                },
                Err(error) => error,
            };
            let left = self.starter.left();
            if error.kind() != ErrorKind::Transient || left.is_zero() {
                return Err(Failure::from_error(Code::EtcdMemberFailed, StepId::EtcdMember, &error));
            }
            let pause = pauses.next_pause();
            if is_told {
                let line = "the node's member of etcd cannot start yet";
                self.emit(Event::new(Code::EtcdMemberWaiting, line).attempt(attempt).next_try(pause).error(&error));
            }
            self.starter.clock.wait(pause.min(left)).await;
        }
    }

    /// Carries out the start of the member's unit. Meanwhile the list that it joins by is renewed: it is tried again and again by
    /// what the file says then. Once it has data it never starts without.
    pub(crate) async fn start(&self, join: &EtcdJoin, unit: &Unit, pending: bool) -> Result<bool, Failure> {
        loop {
            let started = tokio::select! {
                biased;
                started = self.starter.keep_running(unit, pending) => started?,
                () = self.until_removed(join) => {
                    self.until_settled(join).await?;
                    continue;
                }
            };
            self.protect(join)?;
            return Ok(started);
        }
    }

    /// Waits for the first answer of a member that was started. One that was removed hears so from the others, who may have been away
    /// before: it says that it has started, ends, and would be started again and again.
    pub(crate) async fn beside<T>(
        &self,
        join: &EtcdJoin,
        unit: &Unit,
        answer: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let anew = async {
            loop {
                self.until_removed(join).await;
                let settled = self.until_settled(join).await;
                if let Err(failure) = match settled {
                    Ok(_) => self.start(join, unit, false).await,
                    Err(failure) => Err(failure),
                } {
                    return failure;
                }
            }
        };
        let answer = async { tokio::try_join!(answer, self.until_it_votes(join)).map(|(answer, ())| answer) };
        tokio::select! {
            biased;
            answer = answer => answer,
            failure = anew => Err(failure),
        }
    }

    /// Has a learner vote as soon as it can: who starts behind its gate reads and writes there. It ends what a deployment has begun, and so
    /// is done by every run.
    async fn until_it_votes(&self, join: &EtcdJoin) -> Result<(), Failure> {
        let mut told = None;
        loop {
            let error = match self.members.promote(join).await {
                Ok(is_promoted) => {
                    if is_promoted {
                        let line = format!("etcd's member {} has caught up with the others, and votes", join.name);
                        self.emit(Event::new(Code::EtcdMemberChanged, line));
                    }
                    return Ok(());
                }
                Err(error) => error,
            };
            let left = self.starter.left();
            if error.kind() != ErrorKind::Transient || left.is_zero() {
                return Err(Failure::from_error(Code::EtcdMemberFailed, StepId::EtcdMember, &error));
            }
            // One that does not listen yet is its gate's matter.
            if error.connect_failure().is_none() && told.as_ref() != Some(&error.to_string()) {
                told = Some(error.to_string());
                let line = "the node's member of etcd does not vote yet";
                self.emit(Event::new(Code::EtcdMemberWaiting, line).next_try(PROMOTION).error(&error));
            }
            self.starter.clock.wait(PROMOTION.min(left)).await;
        }
    }

    /// Looks again and again, until the data turns out to be that of a member which was removed.
    async fn until_removed(&self, join: &EtcdJoin) {
        loop {
            self.starter.clock.wait(RENEWAL).await;
            // What it cannot find out now, or must not do, the next run does.
            let Ok(situation) = self.situation(join, None).await else { continue };
            let settled = self.members.settle(self.root, join, &situation).await;
            if matches!(settled, Ok(MemberStep::Change(MemberChange::SetAside))) {
                return;
            }
        }
    }

    fn protect(&self, join: &EtcdJoin) -> Result<(), Failure> {
        let protected = self.members.protect(self.root, join);
        protected.map_err(|error| Failure::from_error(Code::EtcdMemberFailed, StepId::EtcdMember, &error))
    }

    async fn situation(&self, join: &EtcdJoin, unheard: Option<&Stopwatch>) -> Result<MemberSituation, Failure> {
        let mut unmounted = None;
        for folder in Path::new(&join.data).ancestors().filter_map(Path::to_str).filter(|folder| *folder != "/") {
            let state = self.starter.inspect(&mount_unit(folder)).await?;
            if !matches!(state.load_state.as_str(), "not-found" | "masked") && !state.is_active() {
                unmounted = Some(state.name);
            }
        }
        let unit = self.starter.inspect(&join.unit).await?;
        Ok(MemberSituation {
            unheard: unheard.map(Stopwatch::elapsed).unwrap_or_default(),
            unmounted,
            is_running: unit.is_active(),
            is_up: unit.may_run(),
            may_change: self.may_change,
        })
    }

    /// A unit that systemd starts again and again by what it read before must not find the cluster's new list.
    async fn change(
        &self,
        join: &EtcdJoin,
        situation: &MemberSituation,
        change: MemberChange,
    ) -> Result<Result<bool, Error>, Failure> {
        self.starter.stop(&join.unit).await?;
        let changed = self.members.change(self.root, join, situation, change).await;
        if matches!(changed, Ok(true)) {
            let line = match change {
                MemberChange::Remove(id) => {
                    format!("removed etcd's member {} {id:x}, whose data is gone: this node takes its place", join.name)
                }
                MemberChange::Add => format!("added this node to etcd's cluster as {}", join.peer),
                MemberChange::SetAside => {
                    let moved = join.removed_data();
                    format!("moved the data of etcd's member {}, which was removed from its cluster, to {moved}", join.name)
                }
            };
            self.emit(Event::new(Code::EtcdMemberChanged, line));
        }
        Ok(changed)
    }

    fn emit(&self, event: Event) {
        let step = StepId::EtcdMember;
        self.progress.emit(&step, event.phase(step.phase()).step(step.to_string()).generation(self.generation));
    }
}
