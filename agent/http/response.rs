//! The answer to a request.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use reqwest::header::{DATE, HeaderMap, RETRY_AFTER};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::echo_filter::Echoes;
use crate::clock::Timestamp;
use crate::error::{Error, Result};

/// A complete answer.
#[derive(Clone)]
pub struct Response {
    /// HTTP status, e.g. 200.
    pub status: u16,
    headers: HeaderMap,
    /// As it came.
    pub body: Vec<u8>,
    /// Held for a body beyond its limit.
    _permit: Option<Arc<SemaphorePermit<'static>>>,
}

impl fmt::Debug for Response {
    /// Without headers and body, which hold tokens and metadata.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Response({})", self.status)
    }
}

/// The longest pause that a server may ask for: as long as the agent pauses by itself at most. A proxy that asks for an hour during a
/// restart must not keep a result from Heat, whose usual timeout is an hour.
pub const LONGEST_ASKED: Duration = Duration::from_mins(5);

impl Response {
    /// Whether the status is 2xx.
    #[must_use]
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// The first header of this name that is plain text.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// The server's own time (RFC 9110 6.6.1).
    #[must_use]
    pub fn date(&self) -> Option<Timestamp> {
        Timestamp::parse_http_date(self.header(DATE.as_str())?)
    }

    /// Takes what the server repeats of the request out of an answer that stands for a failure, or leads elsewhere: its text becomes a cause.
    pub(super) fn hide(&mut self, echoes: &Echoes) {
        self.body = echoes.hidden(&self.body);
    }

    /// How long the server asks us to wait (RFC 9110 10.2.3), in seconds or as a date, at most [`LONGEST_ASKED`]. The date is
    /// measured against the server's own `Date`, because this node's clock may be wrong.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        let text = self.header(RETRY_AFTER.as_str())?.trim();
        let asked = if let Ok(seconds) = text.parse() {
            Duration::from_secs(seconds)
        } else {
            Timestamp::parse_http_date(text)?.since(self.date()?)
        };
        Some(asked.min(LONGEST_ASKED))
    }
}

/// What is read of the body of an error: its first lines become a cause, and hiding what it repeats of the request takes much memory.
const ERROR_BODY: usize = 64 * 1024;

/// Reads the body: a larger one than `limit` bytes is an error, or waits for the permit of `large`, and one of an error is read up to [`ERROR_BODY`] alone.
pub(super) async fn read(
    mut answer: reqwest::Response,
    limit: usize,
    large: Option<(usize, &'static Semaphore)>,
    describe: impl Fn(reqwest::Error) -> Error,
) -> Result<Response> {
    let most = large.map_or(limit, |(most, _)| most);
    let too_large =
        || Error::permanent(format!("the answer is larger than {most} bytes")).rule("what comes from outside is bounded in size");
    let is_error = !answer.status().is_success();
    if !is_error && answer.content_length().is_some_and(|length| length > most as u64) {
        return Err(too_large());
    }
    let mut limit = if is_error { most.min(ERROR_BODY) } else { limit };
    let mut large = large.filter(|_| !is_error);
    let mut permit = None;
    let mut body = Vec::new();
    while let Some(chunk) = answer.chunk().await.map_err(&describe)? {
        if chunk.len() > limit - body.len()
            && let Some((most, semaphore)) = large.take()
        {
            // Nobody closes it.
            permit = semaphore.acquire().await.ok().map(Arc::new);
            limit = most;
            // At once: a body that grows may be twice as large.
            body.reserve_exact(most - body.len());
        }
        let left = limit - body.len();
        if chunk.len() > left && !is_error {
            return Err(too_large());
        }
        body.extend_from_slice(chunk.get(..left).unwrap_or(&chunk));
        if is_error && body.len() == limit {
            break;
        }
    }
    let headers = std::mem::take(answer.headers_mut());
    Ok(Response { status: answer.status().as_u16(), headers, body, _permit: permit })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_read_in_both_forms_and_nothing_secret_is_shown() {
        let response = |headers: &[(&'static str, &'static str)]| {
            let headers = headers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect();
            Response { status: 503, headers, body: b"hush".to_vec(), _permit: None }
        };
        assert_eq!(format!("{:?}", response(&[("x-subject-token", "hush")])), "Response(503)");
        let date = ("date", "Sat, 21 Nov 2026 09:03:20 GMT");
        for (headers, expected) in [
            (vec![("retry-after", "7")], Some(7)),
            (vec![("retry-after", "Sat, 21 Nov 2026 09:04:20 GMT"), date], Some(60)),
            (vec![("retry-after", "Sat, 21 Nov 2026 09:00:00 GMT"), date], Some(0)),
            (vec![("retry-after", "Sat, 21 Nov 2026 09:04:20 GMT")], None),
            (vec![("retry-after", "3600")], Some(300)),
            (vec![("retry-after", "18446744073709551615")], Some(300)),
            (vec![("retry-after", "Sun, 22 Nov 2026 09:04:20 GMT"), date], Some(300)),
            (vec![("retry-after", "-1")], None),
            (vec![("retry-after", "soon, or later"), date], None),
            (vec![date], None),
        ] {
            assert_eq!(response(&headers).retry_after(), expected.map(Duration::from_secs), "{headers:?}");
        }
    }
}
