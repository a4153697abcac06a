//! A node that has all that was asked is compared with its parameters, and put right.

use std::time::Duration;

use super::Node;
use super::bring_up::Course;
use super::drift::{self, Cause, Sorted};
use super::look::Sight;
use super::renewal;
use crate::daemon::pause::Reason;
use crate::daemon::reason::REASON_LIMIT;
use crate::desired::Desired;
use crate::error::Result;
use crate::keepers::certificates::quorum::{self, Answer, Held};
use crate::keepers::certificates::{self, Due};
use crate::kubernetes::NodeSpec;
use crate::report::text::shortened;
use crate::report::{Code, Event, Phase};
use crate::systemd::Systemd;

impl Node {
    /// Whether the node differs from its parameters; with DRIFT=repair it is put back.
    pub(super) async fn compare(&self, spec: &NodeSpec, desired: &Desired, systemd: &Systemd, generation: u64) -> Result<bool> {
        let volumes = self.volumes(systemd);
        let Some(sight) = self.see(desired, &volumes, systemd, generation).await? else { return Ok(true) };
        let due = self.renewal.due(sight.certificates.as_deref(), desired, sight.is_arriving, self.host.clock.now());
        let Sight { found, is_arriving, is_sick, is_flawed, mounted, disks, .. } = sight;
        if is_arriving && found.is_empty() && !due.is_now() {
            return Ok(false);
        }
        let Sorted { fought, repairs } = self.remembered.sorted(&found, spec.repair);
        let record = certificates::Record::look(&self.host.state);
        let ordered = record.ordered.filter(|_| !is_arriving && record.is_ordered());
        let reason = Reason { generation, ordered, renews: due.is_now(), drifted: is_flawed, beside: drift::digest(&repairs) };
        let had_failed = self.pause.has_failed();
        let held = self.pause.holds(reason);
        // A file that another tool writes stays as that tool wants it. Certificates are renewed in their own time.
        let without_fought = || renewal::none(renewal::leaving(desired, &fought));
        // An order of the operator is carried out whatever else is found, and puts that right, too.
        if !held && ordered.is_some() {
            return Ok(!self.put_back(spec, &without_fought(), reason, &repairs).await);
        }
        if !held && due.is_now() && (repairs.is_empty() || due == Due::Expired) {
            let (left, repairs) = if spec.repair { (&fought, repairs.as_slice()) } else { (&found, &[][..]) };
            if let Some(succeeded) = self.renew(spec, &renewal::leaving(desired, left), reason, repairs, due).await {
                return Ok(!succeeded);
            }
        }
        let is_left = is_sick || found.iter().any(Cause::is_foreign);
        let mut texts: Vec<String> = found.into_iter().map(|cause| cause.text).collect();
        if due.is_now() && !repairs.is_empty() && !spec.repair {
            texts.push("no certificate is renewed until this is fixed".to_owned());
        }
        let mut is_too_small = false;
        for volume in mounted {
            // Whoever extends a volume asks for it, whatever DRIFT says.
            if let Err(failure) = volumes.grow(volume, &disks).await {
                is_too_small = true;
                texts.push(failure.cause);
            }
        }
        // What is left of a plan then (unit files that systemd is to read again) changes nothing that runs.
        if texts.is_empty() {
            if had_failed && !held {
                // Somebody else put it right: no step of the try that failed is waited for any more.
                self.progress.expect(Vec::new());
            }
            return Ok(held && had_failed);
        }
        let event = |code, message, texts: &[String]| {
            let cause = shortened(&texts.join(", "), REASON_LIMIT);
            Event::new(code, message).generation(generation).step("drift").cause(cause)
        };
        self.host.report.emit(event(Code::NodeDrift, "the node differs from its parameters", &texts));
        if !fought.is_empty() {
            let texts: Vec<String> = fought.iter().map(|cause| cause.text.clone()).collect();
            self.host.report.emit(event(Code::DriftHeld, "another tool keeps reverting the agent's repair", &texts));
        }
        // A volume that is too small grows at its own time, and nothing that is put back makes it.
        if !spec.repair || held || repairs.is_empty() {
            return Ok(true);
        }
        let failed = !self.put_back(spec, &without_fought(), reason, &repairs).await;
        Ok(failed || is_too_small || is_left || !fought.is_empty())
    }

    /// Makes the node what it should be; whether that went well. Where certificates are the reason, the next try is held back.
    async fn put_back(&self, spec: &NodeSpec, desired: &Desired, reason: Reason, repairs: &[Cause]) -> bool {
        self.put_back_within(spec.deadline, spec, desired, reason, repairs).await
    }

    /// The same within another time.
    async fn put_back_within(
        &self,
        deadline: Duration,
        spec: &NodeSpec,
        desired: &Desired,
        reason: Reason,
        repairs: &[Cause],
    ) -> bool {
        self.pause.begin(reason, &self.host.clock);
        let course = Course { deadline, settles: Duration::ZERO, generation: reason.generation, is_update: false };
        let failed = self.converge(spec, desired, course).await.is_err();
        // What only passes by itself, and was not put back, is not tried at each look.
        let is_idle = !reason.is_about_certificates() && repairs.iter().all(Cause::is_effect);
        self.pause.end(failed || is_idle, &self.host.clock);
        if !failed {
            self.remembered.repaired(repairs);
        }
        !failed
    }

    /// Renews what is due, and puts these back with it; whether that succeeded. Nothing where it has to wait, which is told.
    async fn renew(&self, spec: &NodeSpec, desired: &Desired, reason: Reason, repairs: &[Cause], due: Due) -> Option<bool> {
        let Due::Now { late } = due else {
            // Only what has expired: nothing else is restarted beside it, and nobody is asked.
            return Some(self.put_back(spec, &renewal::none(desired.clone()), reason, repairs).await);
        };
        let held = match &desired.etcd {
            Some(etcd) => match quorum::ask(&self.http, etcd, late).await {
                Ok(Answer::Go(held)) => held,
                Ok(Answer::Wait(cause)) => return self.renewal_waits(&cause, reason.generation),
                Err(error) => return self.renewal_waits(&error.to_string(), reason.generation),
            },
            None => Held::Nothing,
        };
        self.renewal.begins();
        if !held.is_something() {
            return Some(self.put_back(spec, desired, reason, repairs).await);
        }
        let limit = spec.deadline.min(quorum::RUN_LIMIT);
        let succeeded = self.put_back_within(limit, spec, desired, reason, repairs).await;
        if let Some(etcd) = &desired.etcd
            && let Err(error) = quorum::give_back(&self.http, etcd, held).await
        {
            // The others wait until the key's life is over.
            let line = "the renewal lock in etcd is left to expire";
            self.host.report.emit(renewal_event(line, reason.generation).error(&error));
        }
        Some(succeeded)
    }

    /// Tells of a cause once.
    fn renewal_waits(&self, cause: &str, generation: u64) -> Option<bool> {
        if self.renewal.waits_for(cause) {
            let line = format!("the certificate renewal is waiting: {cause}");
            self.host.report.emit(renewal_event(&line, generation).cause(cause));
        }
        None
    }
}

fn renewal_event(line: &str, generation: u64) -> Event {
    Event::new(Code::RenewalWaits, line).phase(Phase::Certificates).generation(generation)
}
