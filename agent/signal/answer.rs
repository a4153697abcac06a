//! What an answer of Heat means for a signal: pure (design.md 4, Outbox).

use std::time::Duration;

use crate::error::Error;
use crate::error::remedy::Remedy;

/// How a signal that waits leaves without its pause.
pub(super) const RESEND: &str = "The agent then sends the signal by itself; `systemctl reload heat-node-agent` sends it at once";

/// What came back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignalResponse {
    /// The HTTP status, of Heat or Zaqar, or of Keystone before them; none where nobody answered: refused, timed out, TLS.
    pub code: Option<u16>,
    /// Retry-After.
    pub retry_after: Option<Duration>,
    /// Whether the request did not even reach Heat: no connection, or no token for it.
    pub unsent: bool,
    /// In the operator's words.
    pub cause: String,
    /// What to do, where it is known.
    pub remedy: Option<Remedy>,
}

/// What follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SignalVerdict {
    /// Heat has it.
    Delivered,
    /// It may go better later, at the earliest after this time.
    Retry(Option<Duration>),
    /// Heat refuses it. In the outbox this is final after 3 of these over 15 minutes (design.md 4, Outbox). For the command `signal`, which
    /// keeps no outbox, the first is: somebody waits for the command's answer, and can repeat it.
    Refused,
}

/// So many refusals …
pub(crate) const REFUSALS: u32 = 3;
/// … over this time make a signal undeliverable: a stack may be suspended or not yet created.
pub(crate) const REFUSAL_SPAN: Duration = Duration::from_mins(15);

/// Judges an answer.
#[must_use]
pub(super) fn judge(answer: &SignalResponse) -> SignalVerdict {
    match answer.code {
        Some(200..=299) => SignalVerdict::Delivered,
        // 401: what can be renewed was renewed before it came to this; but Keystone itself may answer so while it restarts.
        Some(400 | 401 | 403 | 404 | 405 | 410 | 413) => SignalVerdict::Refused,
        _ => SignalVerdict::Retry(answer.retry_after),
    }
}

impl SignalResponse {
    /// An HTTP answer of Heat with what it said.
    #[must_use]
    pub fn status(code: u16, retry_after: Option<Duration>, message: &str) -> Self {
        Self::of("Heat", code, retry_after, message)
    }

    /// The same of another service.
    #[must_use]
    pub(super) fn of(service: &str, code: u16, retry_after: Option<Duration>, message: &str) -> Self {
        let colon = if message.is_empty() { "" } else { ": " };
        let cause = format!("{service} answered {code}{colon}{message}");
        Self { code: Some(code), retry_after, unsent: false, cause, remedy: None }
    }

    /// What to do where the service at this address has trouble of its own.
    #[must_use]
    pub(super) fn with_service_remedy(mut self, origin: &str, service: &str) -> Self {
        if self.code.is_some_and(|code| code >= 500) {
            self.remedy = Some(Remedy::said(format!(
                "if `curl -sS -m 5 {origin}/` cannot connect, start what listens there: {service}, or the load balancer in front of it. If it \
                 prints an error, start {service} behind the load balancer. If it prints a list of versions, `openstack orchestration service \
                 list` shows whether heat-engine is down: start it; if it is up, the log of {service} names the fault. {RESEND}"
            )));
        }
        self
    }

    /// A request that got no answer of Heat.
    #[must_use]
    pub fn unanswered(error: &Error, cause: impl Into<String>) -> Self {
        let remedy = error.typed_remedy().cloned();
        let (code, retry_after) = (error.answered(), error.asked_pause());
        Self { code, retry_after, unsent: error.is_unsent(), cause: cause.into(), remedy }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_mean_what_the_design_says() {
        for (code, verdict) in [
            (200, SignalVerdict::Delivered),
            (201, SignalVerdict::Delivered),
            (204, SignalVerdict::Delivered),
            (400, SignalVerdict::Refused),
            (401, SignalVerdict::Refused),
            (403, SignalVerdict::Refused),
            (404, SignalVerdict::Refused),
            (409, SignalVerdict::Retry(None)),
            (429, SignalVerdict::Retry(None)),
            (500, SignalVerdict::Retry(None)),
            (503, SignalVerdict::Retry(None)),
            (302, SignalVerdict::Retry(None)),
        ] {
            assert_eq!(judge(&SignalResponse::status(code, None, "")), verdict, "{code}");
        }
        let later = Some(Duration::from_secs(7));
        assert_eq!(judge(&SignalResponse::status(503, later, "")), SignalVerdict::Retry(later));
        let unreachable = Error::transient("refused");
        assert_eq!(judge(&SignalResponse::unanswered(&unreachable, "refused")), SignalVerdict::Retry(None));
        let untrusted = Error::permanent("the certificate is signed by a CA that this node does not know");
        assert_eq!(judge(&SignalResponse::unanswered(&untrusted, "TLS")), SignalVerdict::Retry(None), "certificates are renewed");
    }
}
