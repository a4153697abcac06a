//! The node's member of etcd leaves its cluster, for a deployment that Heat deletes: the server goes next, and a member that is gone without
//! leaving counts against the quorum.

use std::time::Duration;

use super::Node;
use super::bring_up::Done;
use crate::backoff::Backoff;
use crate::daemon::reason::reason;
use crate::deploy::DeploymentOutcome;
use crate::desired::Desired;
use crate::error::{Error, Result};
use crate::keepers::membership::leave::{Departure, Member, Unable, has_left};
use crate::kubernetes::ETCD_UNIT;
use crate::report::{Code, Event, Phase};

/// How long the others are waited for: another one that leaves or restarts, an election, the lock of one that died with it.
const LIMIT: Duration = Duration::from_mins(3);
/// Between two tries.
const PAUSES: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(10));

impl Node {
    /// Gives up the node's member of etcd, where it is not the only one. Each try finds what one before it did, also in another run of
    /// the agent.
    pub(in crate::daemon) async fn leave_etcd(&self, asked: Vec<Desired>) -> Done {
        let mut done =
            Done { outcome: DeploymentOutcome::default(), step_timings: Vec::new(), wait: None, changed_machine: false, restored: false };
        let Some(departure) = Departure::of(&self.http, &self.host.root, &self.host.state, &asked) else { return done };
        let event = |code, line: &str| Event::new(code, line).phase(Phase::Units);
        let (waiting, mut pauses) = (self.host.clock.start(), PAUSES);
        loop {
            let error = match self.try_to_leave(&departure).await {
                Ok(true) => {
                    let line = "this node has left etcd's cluster: its deployment was deleted";
                    self.host.report.emit(event(Code::EtcdMemberChanged, line));
                    done.outcome.stdout += line;
                    done.changed_machine = true;
                    break;
                }
                Ok(false) => {
                    done.outcome.stdout += "etcd: nothing was done; this node has no member, or the only one of its cluster";
                    break;
                }
                Err(error) => error.context("leaving etcd's cluster"),
            };
            if waiting.elapsed() > LIMIT {
                // Whether it is a member still decides whether it is looked after.
                done.changed_machine = !matches!(departure.look().await, Ok(Member::Of(_) | Member::Unknown(_)));
                self.host.report.emit(event(Code::EtcdMemberFailed, "this node could not leave etcd's cluster").error(&error));
                done.outcome = DeploymentOutcome::refused(reason(&self.host.report, Code::EtcdMemberFailed, &error));
                break;
            }
            let pause = pauses.next_pause();
            self.host
                .report
                .emit(event(Code::EtcdMemberWaiting, "this node cannot leave etcd's cluster yet").next_try(pause).error(&error));
            self.host.clock.wait(pause).await;
        }
        done
    }

    /// Whether the member has left, and its etcd does not run any more.
    async fn try_to_leave(&self, departure: &Departure<'_>) -> Result<bool> {
        if !departure.leave(Unable::Alone).await? && !has_left(&self.host.state)? {
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
