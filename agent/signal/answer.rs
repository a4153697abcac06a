//! What an answer of Heat means for a signal: pure (design.md 4, Outbox).

use std::time::Duration;

/// What came back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// An HTTP answer.
    Status {
        /// Its code.
        code: u16,
        /// Retry-After.
        retry_after: Option<Duration>,
        /// What it said, shortened.
        said: String,
    },
    /// No answer: refused, timed out, TLS.
    None(String),
}

/// What follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Heat has it.
    Delivered,
    /// It may go better later, at the earliest after this time.
    Retry(Option<Duration>),
    /// Heat refuses it: final after 3 of these over 15 minutes (design.md 4, Outbox).
    Refused,
}

/// So many refusals …
pub(super) const REFUSALS: u32 = 3;
/// … over this time make a signal undeliverable: a stack may be suspended or not yet created.
pub(super) const REFUSAL_SPAN: Duration = Duration::from_mins(15);

/// Judges an answer.
#[must_use]
pub fn judge(answer: &Answer) -> Verdict {
    match answer {
        Answer::Status { code: 200..=299, .. } => Verdict::Delivered,
        // 401: the token of a handle cannot be renewed by us, but Keystone itself may answer so while it restarts.
        Answer::Status { code: 400 | 401 | 403 | 404 | 405 | 410 | 413, .. } => Verdict::Refused,
        Answer::Status { retry_after, .. } => Verdict::Retry(*retry_after),
        Answer::None(_) => Verdict::Retry(None),
    }
}

impl Answer {
    /// In the operator's words.
    #[must_use]
    pub fn cause(&self) -> String {
        match self {
            Self::Status { code, said, .. } if said.is_empty() => format!("the answer was {code}"),
            Self::Status { code, said, .. } => format!("the answer was {code}: {said}"),
            Self::None(cause) => cause.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_mean_what_the_design_says() {
        for (code, verdict) in [
            (200, Verdict::Delivered),
            (201, Verdict::Delivered),
            (204, Verdict::Delivered),
            (400, Verdict::Refused),
            (401, Verdict::Refused),
            (403, Verdict::Refused),
            (404, Verdict::Refused),
            (409, Verdict::Retry(None)),
            (429, Verdict::Retry(None)),
            (500, Verdict::Retry(None)),
            (503, Verdict::Retry(None)),
            (302, Verdict::Retry(None)),
        ] {
            assert_eq!(judge(&Answer::Status { code, retry_after: None, said: String::new() }), verdict, "{code}");
        }
        let later = Some(Duration::from_secs(7));
        assert_eq!(judge(&Answer::Status { code: 503, retry_after: later, said: String::new() }), Verdict::Retry(later));
        assert_eq!(judge(&Answer::None("refused".into())), Verdict::Retry(None));
    }
}
