//! A node that has only a part of what was asked, because its last update failed on the way: it is looked at like any other, and
//! nothing is put back. That would carry out the update that failed.

use serde_json::Value;

use super::Node;
use super::drift::{Cause, UpdateRemains};
use super::renewal::{self, WaitReason};
use crate::deploy::Reference;
use crate::desired::Desired;
use crate::error::Result;
use crate::error::remedy::Remedy;
use crate::keepers::certificates::{CertificateInspection, first_end};
use crate::report::{Code, Event, Phase};
use crate::systemd::Systemd;

/// What is listed of it.
const LIMIT: usize = 2000;

impl Node {
    /// Whether somebody changed the node since its update failed. What the update left undone is reported once.
    pub(super) async fn compare_part(&self, desired: &Desired, systemd: &Systemd, generation: u64) -> Result<bool> {
        let volumes = self.volumes(systemd);
        let Some(inspection) = self.inspect_machine(desired, &volumes, systemd, generation).await? else { return Ok(true) };
        let (is_whole, is_unhealthy) = (!inspection.is_arriving, inspection.is_unhealthy);
        let UpdateRemains { left, news } = self.remembered.separate_remains(generation, inspection.found, is_whole)?;
        let emit = |code, message, causes: &[Cause]| {
            let texts: Vec<&str> = causes.iter().map(|cause| cause.text.as_str()).collect();
            let event = Event::new(code, message).generation(generation).step("drift");
            self.host.report.emit(event.cause(self.host.report.cut(&texts.join(", "), LIMIT)));
        };
        if !left.is_empty() {
            emit(Code::UpdateIncomplete, "the failed update left the node different from its parameters", &left);
        }
        if !news.is_empty() {
            emit(Code::NodeDrift, "the node was changed after its update failed", &news);
        }
        Ok(is_unhealthy || !news.is_empty())
    }

    /// What a renewal that is due waits for, which is reported: the node may run well for months, and would fail at the end of a
    /// certificate.
    pub(super) fn report_unrenewed(
        &self,
        inspection: &CertificateInspection,
        desired: &Desired,
        reference: &Reference,
    ) -> Option<WaitReason> {
        let deployment = reference.entry.get("id").and_then(Value::as_str).unwrap_or_default();
        let now = self.host.clock.now();
        let reason = renewal::awaits_deployment(first_end(inspection, desired, now)?, deployment, now);
        if self.renewal.waits_for(reason.clone())
            && let WaitReason::Deployment { cause, remedy } = &reason
        {
            let event = Event::new(Code::CertificateNearExpiry, "certificates that near their ends are not renewed");
            let event = event.generation(reference.generation).phase(Phase::Certificates).cause(cause);
            self.host.report.emit(event.remedy(Remedy::said(remedy)));
        }
        Some(reason)
    }
}
