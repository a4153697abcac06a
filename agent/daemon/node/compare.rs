//! A node that has all that was asked is compared with its parameters, and put right: the edge of `decision.rs`.

use std::collections::BTreeSet;
use std::time::Duration;

use super::Node;
use super::bring_up::{RunOptions, error_of};
use super::decision::{DriftFacts, DriftVerdict, FirstAction, Repairs};
use super::drift::{self, Cause, SortedCauses};
use super::inspection::MachineInspection;
use super::renewal::{self, WaitReason};
use crate::converge::waiting_restarts;
use crate::daemon::pause::{AttemptOutcome, LastAttempt, TouchReason};
use crate::daemon::reason::REASON_LIMIT;
use crate::desired::Desired;
use crate::error::remedy::Remedy;
use crate::error::{Error, Result};
use crate::keepers::certificates::quorum::{self, Permission, RenewalLease};
use crate::keepers::certificates::{self, Due};
use crate::kubernetes::NodeSpec;
use crate::report::status::DRIFT_REMEDY;
use crate::report::{Code, Event, Phase};
use crate::systemd::Systemd;

impl Node {
    /// Whether the node differs from its parameters; with DRIFT=repair it is put back.
    pub(super) async fn compare(&self, spec: &NodeSpec, desired: &Desired, systemd: &Systemd, generation: u64) -> Result<bool> {
        let volumes = self.volumes(systemd);
        let Some(inspection) = self.inspect_machine(desired, &volumes, systemd, generation).await? else { return Ok(true) };
        self.known.differences.replace(inspection.found.clone());
        let due = self.renewal.due(inspection.certificates.as_deref(), desired, inspection.is_arriving, self.host.clock.now());
        let MachineInspection { found, mut asking, is_arriving, is_unhealthy, is_flawed, certificates, mounted, disks } =
            inspection;
        // What the operator asks for by name is put back whoever else writes it, and however young the last try is.
        let is_asked = self.repair.is_begun();
        let sorted = self.remembered.sorted(&found, spec.repair && !is_asked);
        let repairs = spec.repair || is_asked;
        if repairs {
            asking.extend(renewal::asking_restarts(desired, &sorted.repairs));
        }
        let record = certificates::CertificateRecord::inspect(&self.host.state);
        let ordered = record.ordered.filter(|_| !is_arriving && record.is_ordered());
        let facts = DriftFacts { asking, found, sorted, is_arriving, is_unhealthy, due, is_ordered: ordered.is_some(), repairs };
        if facts.asking.is_empty() {
            self.renewal.restarts_begin();
        }
        if facts.is_early() {
            return Ok(false);
        }
        self.repair.finds(&facts.found);
        let SortedCauses { contested, repairs } = &facts.sorted;
        let reason =
            TouchReason { generation, ordered, renews: due.is_now(), drifted: is_flawed, beside: drift::digest(repairs) };
        let last = self.pause.last_attempt(reason);
        let tried = LastAttempt { holds: last.holds && !is_asked, ..last };
        match facts.first(tried) {
            FirstAction::Order => {
                return Ok(!self.put_back(spec, &without(desired, contested), reason, repairs).await || facts.has_left_over());
            }
            FirstAction::Renewal { stays, repairs } => {
                // Restarts that are pending are left to it.
                self.renewal.restarts_begin();
                let remaining = renewal::leaving(desired, &stays);
                let succeeded = if let Due::Now { late } = due {
                    self.renew(spec, &remaining, reason, &repairs, late).await
                } else {
                    let held = renewal::held_beside_expired(desired, certificates.as_deref());
                    let asking = facts.asking.iter().any(|unit| held.contains(unit));
                    Some(self.put_back_expired(spec, &renewal::none(remaining), reason, &repairs, (asking, &held)).await)
                };
                if let Some(succeeded) = succeeded {
                    return Ok(!succeeded || !stays.is_empty() || facts.has_left_over());
                }
            }
            FirstAction::Nothing => {}
        }
        let mut too_small = Vec::new();
        for volume in mounted {
            // Whoever extends a volume asks for it, whatever DRIFT says.
            too_small.extend(volumes.grow(volume, &disks).await.err().map(|failure| failure.cause));
        }
        match facts.verdict(tried, too_small) {
            DriftVerdict::Same { drifted, repaired } => {
                if repaired {
                    self.progress.expect(Vec::new());
                }
                Ok(drifted)
            }
            DriftVerdict::Differs { differences, repairs, rest } => {
                let done = self.put_back_differences(spec, desired, reason, &facts, (repairs, &differences)).await;
                Ok(!done || rest)
            }
        }
    }

    /// Reports what differs and puts it back; whether all of it was. Restarts that etcd's members do not allow stay pending.
    async fn put_back_differences(
        &self,
        spec: &NodeSpec,
        desired: &Desired,
        reason: TouchReason,
        facts: &DriftFacts,
        (repairs, differences): (Repairs, &[String]),
    ) -> bool {
        let turn = match repairs {
            Repairs::Asking => self.ask_for_restarts(desired, reason.generation).await,
            Repairs::All => Some(RenewalLease::Nothing),
            Repairs::Nothing | Repairs::Rest => None,
        };
        let waits = turn.is_none() && repairs != Repairs::Nothing;
        if waits {
            self.explain_restarts(&facts.asking);
        }
        let SortedCauses { contested, repairs } = &facts.sorted;
        self.explain_contested(contested);
        self.report_drift(reason.generation, differences, contested);
        let desired = without(desired, contested);
        if let Some(turn) = turn {
            return self.put_back_in_turn(turn, spec, &desired, reason, repairs).await;
        }
        if waits {
            self.put_back_rest(spec, &desired, reason, &facts.rest()).await;
        }
        false
    }

    /// Nothing of the node is looked at: an operator has to know that it is on its own.
    pub(super) fn report_unaccepted(&self, generation: u64, error: &Error) {
        let (found, texts) = ([Cause::of_parameters(error)], [error.cause_first()]);
        self.repair.finds(&found);
        self.repair.fails(error.clone());
        self.known.differences.replace(found.into());
        self.report_drift(generation, &texts, &[]);
    }

    fn report_drift(&self, generation: u64, differences: &[String], contested: &[Cause]) {
        let emit = |code: Code, message, texts: &[&str]| {
            let remedy = match self.difference_remedy() {
                _ if code != Code::NodeDrift => code.remedy(),
                Some(remedy) => Remedy::said(remedy),
                None => Remedy::said(DRIFT_REMEDY),
            };
            let cause = self.host.report.cut(&texts.join(", "), REASON_LIMIT);
            self.host.report.emit(
                Event::new(code, message).generation(generation).step("drift").phase(Phase::Steady).cause(cause).remedy(remedy),
            );
        };
        let differences: Vec<&str> = differences.iter().map(String::as_str).collect();
        emit(Code::NodeDrift, "the node differs from its parameters", &differences);
        if !contested.is_empty() {
            let texts: Vec<&str> = contested.iter().map(|cause| cause.text.as_str()).collect();
            emit(Code::DriftNotRepaired, "another tool keeps reverting the agent's repair", &texts);
        }
    }

    /// Makes the node what it should be; whether that succeeded. Where certificates are the reason, the next try is held back.
    pub(super) async fn put_back(&self, spec: &NodeSpec, desired: &Desired, reason: TouchReason, repairs: &[Cause]) -> bool {
        self.put_back_by(repair_options(spec.deadline, reason), spec, desired, reason, repairs).await
    }

    /// Puts this back, if it is anything, while all restarts wait that ask.
    pub(super) async fn put_back_rest(&self, spec: &NodeSpec, desired: &Desired, reason: TouchReason, rest: &[Cause]) {
        if !rest.is_empty() {
            // What a certificate that is signed anew changes is known only then: who reads another one waits as well.
            self.put_back_holding(&renewal::asking_units(desired), spec, desired, reason, rest).await;
        }
    }

    /// Puts these back while the restarts of these units wait; whether that succeeded.
    pub(super) async fn put_back_holding(
        &self,
        held: &BTreeSet<String>,
        spec: &NodeSpec,
        desired: &Desired,
        reason: TouchReason,
        rest: &[Cause],
    ) -> bool {
        let options = RunOptions { held: held.clone(), ..repair_options(spec.deadline, reason) };
        self.put_back_by(options, spec, desired, reason, rest).await
    }

    async fn put_back_by(
        &self,
        options: RunOptions,
        spec: &NodeSpec,
        desired: &Desired,
        reason: TouchReason,
        repairs: &[Cause],
    ) -> bool {
        self.pause.begin(reason, &self.host.clock);
        let failure = self.converge(spec, desired, options).await.err();
        let failed = failure.is_some();
        if let Some(failure) = failure {
            self.repair.fails(error_of(&failure));
        }
        let is_idle = !reason.is_about_certificates() && repairs.iter().all(Cause::is_effect);
        let outcome = match failed {
            true => AttemptOutcome::Failed,
            false if is_idle => AttemptOutcome::Idle,
            false => AttemptOutcome::Succeeded,
        };
        self.pause.end(outcome, &self.host.clock);
        if !failed {
            self.remembered.repaired(repairs);
        }
        !failed
    }

    /// Renews what has expired, for which nobody is asked, and puts these back with it; whether all of it succeeded. `held`: whose restarts wait for
    /// etcd's members, who are asked where any of those is pending.
    async fn put_back_expired(
        &self,
        spec: &NodeSpec,
        desired: &Desired,
        reason: TouchReason,
        repairs: &[Cause],
        (asking, held): (bool, &BTreeSet<String>),
    ) -> bool {
        if !asking {
            return self.put_back_holding(held, spec, desired, reason, repairs).await;
        }
        if let Some(turn) = self.ask_for_restarts(desired, reason.generation).await {
            return self.put_back_in_turn(turn, spec, desired, reason, repairs).await;
        }
        let rest: Vec<Cause> = repairs.iter().filter(|cause| cause.pending_restart().is_none()).cloned().collect();
        self.put_back_holding(held, spec, desired, reason, &rest).await;
        false
    }

    /// Renews what is due, and puts these back with it; whether that succeeded. Nothing where it has to wait, which is reported.
    async fn renew(
        &self,
        spec: &NodeSpec,
        desired: &Desired,
        reason: TouchReason,
        repairs: &[Cause],
        late: bool,
    ) -> Option<bool> {
        match self.permission(desired, late).await {
            Permission::Go(turn) => {
                self.renewal.begins();
                Some(self.put_back_in_turn(turn, spec, desired, reason, repairs).await)
            }
            Permission::Wait(cause) => {
                let line = format!("the certificate renewal is waiting: {cause}");
                self.report_wait(WaitReason::For(cause.clone()), &line, &cause, reason.generation);
                None
            }
        }
    }

    /// This master's turn to make restarts that ask; nothing where they have to wait, which is reported.
    pub(super) async fn ask_for_restarts(&self, desired: &Desired, generation: u64) -> Option<RenewalLease> {
        // Nobody knows how long the certificates live that a process still has in memory: a spare member is not waited for.
        match self.permission(desired, true).await {
            Permission::Go(turn) => {
                self.renewal.restarts_begin();
                Some(turn)
            }
            Permission::Wait(_) if self.may_heal_member(desired).await => {
                self.renewal.restarts_begin();
                Some(RenewalLease::Nothing)
            }
            Permission::Wait(cause) => {
                let line = format!("restarts of etcd or of readers of certificates are waiting: {cause}");
                self.report_wait(WaitReason::Restarts(cause.clone()), &line, &cause, generation);
                None
            }
        }
    }

    /// Whether etcd's other members can spare this one now.
    async fn permission(&self, desired: &Desired, late: bool) -> Permission {
        let Some(etcd) = &desired.etcd else { return Permission::Go(RenewalLease::Nothing) };
        quorum::ask(&self.http, etcd, late).await.unwrap_or_else(|error| Permission::without_answer(&error))
    }

    /// Whose pending restarts go on waiting during an update or a rollback, which asks nobody for what it restarts: they may wait on every
    /// master, and one stack update reaches all of them at once.
    pub(super) async fn restarts_that_wait(&self, desired: &Desired) -> BTreeSet<String> {
        let waiting = waiting_restarts(&self.host.root);
        if waiting.is_empty() || self.may_heal_member(desired).await { BTreeSet::new() } else { waiting }
    }

    /// Whether restarts may be made that heal the own member, which cannot be asked.
    async fn may_heal_member(&self, desired: &Desired) -> bool {
        let Some(etcd) = &desired.etcd else { return false };
        let members = desired.etcd_join.iter().flat_map(|join| &join.members);
        let peers: Vec<&str> = members.map(|(_, peer)| peer.as_str()).filter(|peer| *peer != etcd.peer).collect();
        quorum::may_restart_unhealthy(&self.http, etcd, &peers).await
    }

    /// Puts these back in this master's turn, which is over then.
    pub(super) async fn put_back_in_turn(
        &self,
        turn: RenewalLease,
        spec: &NodeSpec,
        desired: &Desired,
        reason: TouchReason,
        repairs: &[Cause],
    ) -> bool {
        if !turn.has_lease() {
            return self.put_back(spec, desired, reason, repairs).await;
        }
        let options = repair_options(spec.deadline.min(quorum::RUN_LIMIT), reason);
        let succeeded = self.put_back_by(options, spec, desired, reason, repairs).await;
        self.renewal.unreleased.replace(Some(turn));
        self.release(desired, reason.generation).await;
        succeeded
    }

    /// Ends the turn of this master, if that is over and has not been ended: right behind its restart etcd may not answer.
    pub(super) async fn release(&self, desired: &Desired, generation: u64) {
        let Some(turn) = self.renewal.unreleased.take() else { return };
        let Some(etcd) = &desired.etcd else { return };
        match quorum::release_lease(&self.http, etcd, &turn).await {
            Ok(true) => return,
            Ok(false) => {}
            Err(error) => {
                let line = "the renewal lock in etcd cannot be released yet: the next look does it, or the lock expires";
                self.host.report.emit(renewal_event(line, generation).error(&error));
            }
        }
        self.renewal.unreleased.replace(Some(turn));
    }

    /// Reports what is waited for once.
    fn report_wait(&self, reason: WaitReason, line: &str, cause: &str, generation: u64) {
        if self.renewal.waits_for(reason) {
            self.host.report.emit(renewal_event(line, generation).cause(cause));
        }
    }

    /// What to do about what another tool keeps writing: to repair it once more is of no use.
    fn explain_contested(&self, contested: &[Cause]) {
        for cause in self.known.differences.borrow_mut().iter_mut().filter(|cause| contested.contains(cause)) {
            cause.remedy = Some(Code::DriftNotRepaired.entry().remedy.to_owned());
        }
    }

    /// What to do about restarts of these units that wait: an order to repair the node makes none of them.
    fn explain_restarts(&self, waiting: &BTreeSet<String>) {
        let remedy = Code::RenewalWaiting.entry().remedy;
        for cause in self.known.differences.borrow_mut().iter_mut() {
            if cause.pending_restart().is_some_and(|unit| waiting.contains(unit)) {
                cause.remedy = Some(remedy.to_owned());
            }
        }
        let why = match self.renewal.waits() {
            Some(WaitReason::For(cause) | WaitReason::Restarts(cause)) => cause,
            _ => "certificates are due for a renewal, which makes these restarts".to_owned(),
        };
        let units = waiting.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
        self.repair.fails(Error::permanent(why).context(format!("restarting {units}")).remedy(remedy));
    }
}

/// A file that another tool writes stays as that tool wants it. Certificates are renewed in their own time.
fn without(desired: &Desired, contested: &[Cause]) -> Desired {
    renewal::none(renewal::leaving(desired, contested))
}

fn repair_options(deadline: Duration, reason: TouchReason) -> RunOptions {
    RunOptions {
        deadline,
        stability_period: Duration::ZERO,
        generation: reason.generation,
        deployment: None,
        retired: None,
        held: BTreeSet::new(),
        held_unless_changed: BTreeSet::new(),
        takes_step: reason.ordered.is_some(),
    }
}

fn renewal_event(line: &str, generation: u64) -> Event {
    Event::new(Code::RenewalWaiting, line).phase(Phase::Certificates).generation(generation)
}
