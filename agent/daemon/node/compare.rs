//! A node that has all that was asked is compared with its parameters, and put right: the edge of `decision.rs`.

use std::time::Duration;

use super::Node;
use super::bring_up::{RunOptions, error_of};
use super::decision::{DriftFacts, DriftVerdict, FirstAction};
use super::drift::{self, Cause, SortedCauses};
use super::inspection::MachineInspection;
use super::renewal;
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
        let MachineInspection { found, is_arriving, is_unhealthy, is_flawed, mounted, disks, .. } = inspection;
        // What the operator asks for by name is put back whoever else writes it, and however young the last try is.
        let is_asked = self.repair.is_begun();
        let sorted = self.remembered.sorted(&found, spec.repair && !is_asked);
        let record = certificates::CertificateRecord::inspect(&self.host.state);
        let ordered = record.ordered.filter(|_| !is_arriving && record.is_ordered());
        let facts = DriftFacts {
            found,
            sorted,
            is_arriving,
            is_unhealthy,
            due,
            is_ordered: ordered.is_some(),
            repairs: spec.repair || is_asked,
        };
        if facts.is_early() {
            return Ok(false);
        }
        self.repair.finds(&facts.found);
        let SortedCauses { contested, repairs } = &facts.sorted;
        let reason =
            TouchReason { generation, ordered, renews: due.is_now(), drifted: is_flawed, beside: drift::digest(repairs) };
        let last = self.pause.last_attempt(reason);
        let tried = LastAttempt { holds: last.holds && !is_asked, ..last };
        // A file that another tool writes stays as that tool wants it. Certificates are renewed in their own time.
        let without_contested = || renewal::none(renewal::leaving(desired, contested));
        match facts.first(tried) {
            FirstAction::Order => {
                return Ok(!self.put_back(spec, &without_contested(), reason, repairs).await || facts.has_left_over());
            }
            FirstAction::Renewal { stays, repairs } => {
                if let Some(succeeded) = self.renew(spec, &renewal::leaving(desired, &stays), reason, &repairs, due).await {
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
            DriftVerdict::Differs { differences, repairs: false, .. } => {
                self.report_drift(generation, &differences, contested);
                Ok(true)
            }
            DriftVerdict::Differs { differences, repairs: true, rest } => {
                self.report_drift(generation, &differences, contested);
                Ok(!self.put_back(spec, &without_contested(), reason, repairs).await || rest)
            }
        }
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
        self.put_back_within(spec.deadline, spec, desired, reason, repairs).await
    }

    /// The same within another time.
    async fn put_back_within(
        &self,
        deadline: Duration,
        spec: &NodeSpec,
        desired: &Desired,
        reason: TouchReason,
        repairs: &[Cause],
    ) -> bool {
        self.pause.begin(reason, &self.host.clock);
        let options = RunOptions {
            deadline,
            stability_period: Duration::ZERO,
            generation: reason.generation,
            deployment: None,
            retired: None,
        };
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

    /// Renews what is due, and puts these back with it; whether that succeeded. Nothing where it has to wait, which is reported.
    async fn renew(&self, spec: &NodeSpec, desired: &Desired, reason: TouchReason, repairs: &[Cause], due: Due) -> Option<bool> {
        let Due::Now { late } = due else {
            // Only what has expired: nothing else is restarted beside it, and nobody is asked.
            return Some(self.put_back(spec, &renewal::none(desired.clone()), reason, repairs).await);
        };
        let held = match &desired.etcd {
            Some(etcd) => match quorum::ask(&self.http, etcd, late).await {
                Ok(Permission::Go(held)) => held,
                Ok(Permission::Wait(cause)) => return self.renewal_waits(&cause, reason.generation),
                Err(error) => return self.renewal_waits(&error.to_string(), reason.generation),
            },
            None => RenewalLease::Nothing,
        };
        self.renewal.begins();
        if !held.has_lease() {
            return Some(self.put_back(spec, desired, reason, repairs).await);
        }
        let limit = spec.deadline.min(quorum::RUN_LIMIT);
        let succeeded = self.put_back_within(limit, spec, desired, reason, repairs).await;
        if let Some(etcd) = &desired.etcd
            && let Err(error) = quorum::release_lease(&self.http, etcd, held).await
        {
            // The others wait until the key's life is over.
            let line = "the renewal lock in etcd is left to expire";
            self.host.report.emit(renewal_event(line, reason.generation).error(&error));
        }
        Some(succeeded)
    }

    /// Reports a cause once.
    fn renewal_waits(&self, cause: &str, generation: u64) -> Option<bool> {
        if self.renewal.waits_for(renewal::WaitReason::For(cause.to_owned())) {
            let line = format!("the certificate renewal is waiting: {cause}");
            self.host.report.emit(renewal_event(&line, generation).cause(cause));
        }
        None
    }
}

fn renewal_event(line: &str, generation: u64) -> Event {
    Event::new(Code::RenewalWaiting, line).phase(Phase::Certificates).generation(generation)
}
