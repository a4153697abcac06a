//! The node's member of etcd leaves its cluster, for a deployment that Heat deletes: the server goes next, and a member that is gone without
//! leaving counts against the quorum.

use std::time::Duration;

use super::Node;
use super::bring_up::Done;
use crate::backoff::Backoff;
use crate::clock::{Clock, Stopwatch};
use crate::daemon::reason::reason;
use crate::deploy::DeploymentOutcome;
use crate::desired::Desired;
use crate::error::{Error, ErrorKind, Result};
use crate::keepers::membership::leave::{EtcdDeparture, Member, OnUnable};
use crate::kubernetes::ETCD_UNIT;
use crate::report::{Code, Event, Phase};

/// Between two tries.
const PAUSES: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(10));

/// How long a member waits that cannot leave: for the lock of one that died with it, which lives for 15 minutes, and for anything else.
const LIMIT: Duration = Duration::from_mins(16);
/// The same while the others would have no quorum: for others that leave, restart or elect a leader.
const REFUSED_LIMIT: Duration = Duration::from_mins(3);

/// How long a member has waited.
struct Waiting {
    all: Stopwatch,
    /// Since it is refused, without anything else in between.
    refused: Option<Stopwatch>,
}

impl Waiting {
    fn start(clock: &Clock) -> Self {
        Self { all: clock.start(), refused: None }
    }

    /// Whether it has waited long enough, now that it cannot leave for an error of this kind.
    fn is_over(&mut self, kind: ErrorKind, clock: &Clock) -> bool {
        self.refused = (kind == ErrorKind::Refused).then(|| self.refused.take().unwrap_or_else(|| clock.start()));
        let is_refused_for_long = self.refused.as_ref().is_some_and(|since| since.elapsed() >= REFUSED_LIMIT);
        kind == ErrorKind::Permanent || is_refused_for_long || self.all.elapsed() >= LIMIT
    }
}

impl Node {
    /// Gives up the node's member of etcd, where it is not the only one. Each try finds what one before it did, also in another run of
    /// the agent.
    ///
    /// Heat deletes the server next. It is kept from that, once, only by a member that its cluster has a quorum by: else a stack whose
    /// etcd never came up, or has lost its quorum, could not be deleted.
    pub(in crate::daemon) async fn leave_etcd(&self, asked: Vec<Desired>) -> Done {
        let mut done = Done {
            outcome: DeploymentOutcome::default(),
            step_timings: Vec::new(),
            wait: None,
            changed_machine: false,
            restored: false,
        };
        let (http, host) = (&self.http, &self.host);
        let departure = EtcdDeparture::of(http, &host.root, &host.state, &self.programs, &asked);
        let Some(departure) = departure else { return done };
        let event = |code, line: &str| Event::new(code, line).phase(Phase::Units);
        let (mut waiting, mut pauses) = (Waiting::start(&host.clock), PAUSES);
        loop {
            let error = match self.try_to_leave(&departure).await {
                Ok(true) => {
                    let line = "this node has left etcd's cluster: its deployment was deleted";
                    host.report.emit(event(Code::EtcdMemberChanged, line));
                    done.outcome.stdout += line;
                    done.changed_machine = true;
                    return done;
                }
                Ok(false) => {
                    done.outcome.stdout += "etcd: nothing was done; this node has no member, or the only one of its cluster";
                    return done;
                }
                Err(error) => error.context("leaving etcd's cluster"),
            };
            // Whether others cannot leave either is asked at each try; what counts is who has not been healthy all the time.
            let all_leave = error.kind() == ErrorKind::Refused && departure.all_leave().await.unwrap_or_default();
            if waiting.is_over(error.kind(), &host.clock) {
                // Whether it is a member still decides whether it is looked after.
                let member = departure.look().await;
                done.changed_machine = member == Member::None;
                let is_moot = all_leave || error.kind() == ErrorKind::Permanent || matches!(member, Member::Unknown(_));
                let may_go = is_moot || !departure.is_healthy().await;
                let goes = may_go || !self.refuse_deletion_once();
                let error = if goes {
                    error
                } else {
                    error.remedy(
                        "repair the other members of etcd and delete again; deleted again this node goes in any case, and its \
                         member stays in the list of members",
                    )
                };
                host.report.emit(event(Code::EtcdMemberFailed, "this node could not leave etcd's cluster").error(&error));
                let why = reason(&host.report, Code::EtcdMemberFailed, &error);
                done.outcome = if goes { DeploymentOutcome::success_despite(why) } else { DeploymentOutcome::refused(why) };
                return done;
            }
            let pause = pauses.next_pause();
            let waits = event(Code::EtcdMemberWaiting, "this node cannot leave etcd's cluster yet");
            host.report.emit(waits.next_try(pause).error(&error));
            host.clock.wait(pause).await;
        }
    }

    /// Whether the deletion of this node is to be refused, which is so once in a run of the agent: each later call says no, until a deployment
    /// asks for the node again.
    pub(in crate::daemon) fn refuse_deletion_once(&self) -> bool {
        !self.known.was_deletion_refused.replace(true)
    }

    /// Whether the member has left, and its etcd does not run any more.
    async fn try_to_leave(&self, departure: &EtcdDeparture<'_>) -> Result<bool> {
        if !departure.leave(OnUnable::Alone).await? && !departure.has_left()? {
            return Ok(false);
        }
        // It ends by itself, and would be started again and again.
        let systemd = self.host.systemd.as_ref().ok_or_else(|| Error::transient("no systemd answers on the system bus"))?;
        let outcome = systemd.stop(ETCD_UNIT).await?;
        if !outcome.is_done() {
            return Err(Error::transient(format!("{ETCD_UNIT} cannot be stopped: systemd says {}", outcome.result)));
        }
        systemd.disable(&[ETCD_UNIT.to_owned()]).await?;
        departure.end().map(|()| true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Timestamp;

    /// After minutes of waiting for the lock, one look while another master restarted its etcd was the last word.
    #[test]
    fn a_refusal_has_its_time_however_long_the_lock_took() {
        let clock = Clock::manual(Timestamp(0));
        let minutes = |minutes| clock.advance(Duration::from_mins(minutes));
        let mut waiting = Waiting::start(&clock);
        assert!(!waiting.is_over(ErrorKind::Transient, &clock));
        minutes(4);
        assert!(!waiting.is_over(ErrorKind::Transient, &clock) && !waiting.is_over(ErrorKind::Refused, &clock));
        minutes(2);
        assert!(!waiting.is_over(ErrorKind::Refused, &clock) && !waiting.is_over(ErrorKind::Transient, &clock));
        minutes(2);
        assert!(!waiting.is_over(ErrorKind::Refused, &clock));
        minutes(3);
        assert!(waiting.is_over(ErrorKind::Refused, &clock) && !waiting.is_over(ErrorKind::Transient, &clock));
        minutes(5);
        assert!(waiting.is_over(ErrorKind::Transient, &clock));
        assert!(Waiting::start(&clock).is_over(ErrorKind::Permanent, &clock), "nobody mends that by waiting");
    }
}
