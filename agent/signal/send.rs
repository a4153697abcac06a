//! One signal as one HTTP request, and the other ways to Heat where its own address is refused.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::Value;

use super::answer::{SignalResponse, SignalVerdict, judge};
use super::cfn_url::{URL_LIFE, made, native_path, resigned_url};
use super::destination::Destination;
use crate::backoff::Backoff;
use crate::budgets::json;
use crate::clock::{Clock, patience};
use crate::collect::OwnCredentials;
use crate::error::ErrorKind;
use crate::error::remedy::Remedy;
use crate::http::{Http, Request, Response, SendGuard, split};
use crate::openstack::keystone::Keystone;
use crate::openstack::zaqar::{self, Queue};
use crate::report::Code;
use crate::report::text::{duration, escaped, shortened};

/// Time for one signal, from the connection to the end of the answer. Heat itself takes up to a second or two. Short,
/// because a request that hangs in a broken network arrives when the metadata that allowed it may be out of date.
const DEADLINE: Duration = patience(Duration::from_secs(10));
/// An answer to a signal is short; more is not read.
const ANSWER_LIMIT: usize = 64 * 1024;

/// In the operator's words.
const KEYSTONE_LIMIT: &str =
    "by default Keystone refuses pre-signed URLs 15 minutes after their Timestamp ([credential] auth_ttl)";

/// A bare URL does not show its handle's type. Heat 27 does not answer to keys of the other type for a minute, then 500.
const PERHAPS_ANOTHER_TYPE: &str = "check that heat-api-cfn and heat-engine answer; for an OS::Heat::WaitConditionHandle, pass {get_attr: \
     [handle, signal]}, not a bare URL, which is treated as an AWS handle's";

/// How a signal is addressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeliveryMethod {
    /// As Heat gave it.
    AsGiven,
    /// By the same URL, re-signed with the server's own keys.
    ResignedUrl,
    /// By Heat's native API, with a token of the server's own user.
    OwnToken,
}

impl DeliveryMethod {
    /// For people.
    #[must_use]
    pub fn shown(self) -> &'static str {
        match self {
            Self::AsGiven => "as Heat gave it",
            Self::ResignedUrl => "re-signed with the server's own keys",
            Self::OwnToken => "with a token of the server's own user",
        }
    }
}

/// Other ways to the same resource, by the server's own credentials. Heat checks that the server is of the stack, not whose handle
/// it is.
///
/// The URL decides only which resource is meant: a signature is made only for the host of the server's own settings,
/// a token is sent only to the endpoint in Keystone's catalog.
fn other_ways(own: &OwnCredentials, destination: &Destination) -> Vec<(DeliveryMethod, Destination)> {
    let mut ways = Vec::new();
    if let (Some((base, keys)), Destination::Url { url: given, verb, insecure }) = (&own.cfn, destination)
        && let Some(url) = resigned_url(given, verb, base, keys)
    {
        // What a curl line says of its own host's certificate says nothing of another host's.
        let insecure = *insecure && split(&url).map(|parts| parts.authority) == split(given).map(|parts| parts.authority);
        ways.push((DeliveryMethod::ResignedUrl, Destination::Url { url, verb: verb.clone(), insecure }));
    }
    if let (Some(credentials), Destination::Url { url, .. } | Destination::Token { endpoint: url, .. }) = (&own.user, destination)
        && let Some(to) = native_path(url)
    {
        ways.push((DeliveryMethod::OwnToken, Destination::User { credentials: credentials.clone(), to }));
    }
    ways
}

/// What sends: the HTTP client and the tokens.
#[derive(Clone, Debug)]
pub struct Sender {
    http: Http,
    keystone: Keystone,
    clock: Clock,
    /// The client for the endpoints' own CAs, kept so that its connections stay open.
    endpoint: Arc<Mutex<Option<(PathBuf, Http)>>>,
}

impl Sender {
    /// With tokens that may be shared with the sources.
    #[must_use]
    pub fn new(http: Http, keystone: Keystone, clock: Clock) -> Self {
        Self { http, keystone, clock, endpoint: Arc::default() }
    }

    /// The client that knows the CAs of the server's endpoints: what polls trust, signals trust too
    /// (heat-protocol.md R26).
    fn http(&self, own: &OwnCredentials) -> Http {
        let Some(ca) = &own.ca else { return self.http.clone() };
        let mut kept = self.endpoint.lock().unwrap_or_else(PoisonError::into_inner);
        match &*kept {
            Some((known, http)) if known == ca => http.clone(),
            _ => kept.insert((ca.clone(), self.http.with_endpoint_ca(ca))).1.clone(),
        }
    }

    /// Sends a body until Heat takes or refuses it, `tries` times at most: for whoever keeps no outbox. Retry-After is heeded up to four
    /// pauses.
    ///
    /// # Errors
    /// What was answered last; permanent where it is a refusal. The first one is final: whoever keeps no outbox waits for the answer and can
    /// repeat the call, and does not wait for 15 minutes.
    pub async fn deliver(
        &self,
        destination: &Destination,
        body: &Value,
        own: &OwnCredentials,
        mut pauses: Backoff,
        tries: u32,
    ) -> Result<DeliveryMethod, (ErrorKind, SignalResponse)> {
        let mut attempt = 0;
        loop {
            let (answer, way) = self.send(destination, body, own, None).await;
            attempt += 1;
            let asked = match judge(&answer) {
                SignalVerdict::Delivered => return Ok(way),
                SignalVerdict::Retry(asked) if attempt < tries => asked,
                SignalVerdict::Refused => return Err((ErrorKind::Permanent, answer)),
                SignalVerdict::Retry(_) => return Err((ErrorKind::Transient, answer)),
            };
            let pause = pauses.next_pause();
            self.clock.wait(pause.max(asked.unwrap_or_default().min(pause * 4))).await;
        }
    }

    /// Sends a body; returns the answer, and the way by which it came. Where each way was refused or closed, the answer is the one that
    /// leaves most hope, and the way is always [`DeliveryMethod::AsGiven`]. The body always starts with `{`, has a Content-Length and the
    /// type JSON: else Heat takes it as success without details (heat-protocol.md 7.0, R46).
    ///
    /// What Keystone does not accept any more is sent once more at once, another way: nothing of a refused request was
    /// done. A URL that is too old by this node's clock is tried last: it would cost Heat and Keystone a request for
    /// nothing, but clock and limit may be others than is thought.
    ///
    /// `guard` is asked before each of the requests that carry the body.
    pub async fn send(
        &self,
        destination: &Destination,
        body: &Value,
        own: &OwnCredentials,
        guard: Option<SendGuard>,
    ) -> (SignalResponse, DeliveryMethod) {
        let started = self.clock.start();
        let mut ways = other_ways(own, destination);
        let at = if self.is_old(destination) { ways.len() } else { 0 };
        let is_only_way = ways.is_empty();
        ways.insert(at, (DeliveryMethod::AsGiven, destination.clone()));
        let (mut best, mut causes, http) = (None::<SignalResponse>, Vec::new(), self.http(own));
        for (place, (method, to)) in ways.into_iter().enumerate() {
            let left = DEADLINE.saturating_sub(started.elapsed());
            // What is tried before Heat's own address must leave time for that.
            let limit = if place < at { left.mul_f32(0.6) } else { left };
            let mut answer = self.once(&http, &to, body, limit, guard.clone()).await;
            let verdict = judge(&answer);
            // heat-api-cfn answers 500 to keys that are gone. What did not reach Heat did nothing there. But where it may have
            // and there is no answer, nobody knows what was done: a fresh look at the metadata comes first.
            let is_closed = method != DeliveryMethod::AsGiven && (answer.unsent || answer.code == Some(500));
            let mut goes_on = verdict == SignalVerdict::Refused || is_closed;
            if method != DeliveryMethod::AsGiven {
                // Said of the first request, too, where the URL as given is too old to come first.
                answer.cause = format!("tried again, {}: {}", method.shown(), answer.cause);
            } else if let Some((why, remedy)) =
                self.unaccepted(&to, &answer, is_only_way).filter(|_| verdict == SignalVerdict::Refused)
            {
                answer.cause = format!("{}; {why}", answer.cause);
                answer.remedy = Some(remedy);
            } else {
                goes_on = false;
            }
            causes.push(std::mem::take(&mut answer.cause));
            if !goes_on {
                answer.cause = causes.join("; ");
                return (answer, method);
            }
            // A way that may be open later counts; where all are refused, what is said of Heat's own address.
            let retry = |answer: &SignalResponse| matches!(judge(answer), SignalVerdict::Retry(_));
            if best.as_ref().is_none_or(|best| !retry(best) && (method == DeliveryMethod::AsGiven || retry(&answer))) {
                best = Some(answer);
            }
        }
        let mut answer = best.unwrap_or_else(|| SignalResponse::status(403, None, ""));
        answer.cause = causes.join("; ");
        (answer, DeliveryMethod::AsGiven)
    }

    /// Time since a pre-signed URL was made, if it says so.
    pub(super) fn age(&self, destination: &Destination) -> Option<Duration> {
        let Destination::Url { url, .. } = destination else { return None };
        Some(self.clock.now().since(made(url)?))
    }

    /// Whether Keystone refuses the URL by its defaults and this node's clock.
    pub(super) fn is_old(&self, destination: &Destination) -> bool {
        self.age(destination).is_some_and(|age| age > URL_LIFE)
    }

    /// Whether Keystone's own trouble looks like this answer: heat-api-cfn has Keystone check a pre-signed URL, and answers with
    /// the same 403 whether Keystone refused the signature or failed.
    pub(crate) fn is_doubtful(destination: &Destination, answer: &SignalResponse) -> bool {
        let Destination::Url { url, .. } = destination else { return false };
        answer.code == Some(403) && native_path(url).is_some()
    }

    /// Why an address is not accepted any more, and what to do: where it is that and not the signal that was refused. `is_only_way`: no
    /// other way to Heat shows whether the URL has expired.
    fn unaccepted(&self, destination: &Destination, answer: &SignalResponse, is_only_way: bool) -> Option<(String, Remedy)> {
        let handle =
            Remedy::stack_update("update the stack to get a new handle; for long waits set signal_transport: HEAT_SIGNAL on it");
        let (why, remedy) = match (destination, answer.code?) {
            (Destination::Url { url, .. }, 403) if native_path(url).is_some() => {
                let old = Code::SignalUrlOld.remedy();
                let Some(age) = self.age(destination) else {
                    return Some(("the signal URL was revoked, or its signature does not match".to_owned(), old));
                };
                let made = format!("it was made {} ago", duration(age));
                return Some(if age > URL_LIFE {
                    (format!("the signal URL has expired or was revoked: {made}, and {KEYSTONE_LIMIT}"), old)
                } else {
                    // The answer is the same for a shorter limit of Keystone's and for a user who is gone.
                    let expired = if is_only_way { ", or the URL has expired by a shortened [credential] auth_ttl" } else { "" };
                    let who = "the stack is suspended or deleted, or the user who signed the URL";
                    (format!("{who} {} ago is gone{expired}", duration(age)), of_stack(url))
                });
            }
            (Destination::Url { .. }, 401 | 403) => {
                ("the temporary URL has expired, or the key that signed it was changed", handle)
            }
            (Destination::Token { .. }, 401) => {
                ("the handle's token has expired or was revoked; it was issued together with the handle", handle)
            }
            _ => return None,
        };
        Some((why.to_owned(), remedy))
    }

    async fn once(
        &self,
        http: &Http,
        destination: &Destination,
        body: &Value,
        deadline: Duration,
        guard: Option<SendGuard>,
    ) -> SignalResponse {
        let place;
        let (verb, url, insecure) = match destination {
            Destination::Url { url, verb, insecure } => (verb.as_str(), url, *insecure),
            Destination::Token { endpoint, insecure, .. } => ("POST", endpoint, *insecure),
            Destination::User { to, .. } => ("POST", to, false),
            Destination::Queue(queue) => {
                place = queue.messages("");
                ("POST", &place, false)
            }
        };
        let whole = if matches!(destination, Destination::Queue(_)) { zaqar::message(body) } else { body.to_string() };
        let mut request = Request::new(verb, url, deadline).json(whole.into_bytes());
        (request.body_limit, request.guard) = (ANSWER_LIMIT, guard);
        // A curl line alone turns nothing off (design.md 7).
        request.insecure = insecure && http.may_skip_verification();
        let answer = match destination {
            Destination::User { credentials, .. } => {
                Box::pin(self.keystone.request(http, credentials, "orchestration", request)).await
            }
            Destination::Queue(queue) => Box::pin(queue.request(http, &self.keystone, request)).await,
            Destination::Token { token, .. } => {
                http.request(request.header("accept", "application/json").header("x-auth-token", token.clone())).await
            }
            Destination::Url { .. } => http.request(request.header("accept", "application/json")).await,
        };
        let mut answer = match (answer, destination) {
            (Ok(response), Destination::Queue(queue)) => of_zaqar(queue, &response),
            (Ok(response), _) => {
                let service = if native_path(url).is_some() && matches!(destination, Destination::Url { .. }) {
                    "heat-api-cfn"
                } else {
                    "heat-api"
                };
                let origin = split(url).map(|parts| format!("{}://{}", parts.scheme, parts.authority)).unwrap_or_default();
                SignalResponse::status(response.status, response.retry_after(), &error_message(&response.body))
                    .with_service_remedy(&origin, service)
            }
            // With Keystone in between it matters who did not answer.
            (Err(error), Destination::User { .. } | Destination::Queue(_)) => {
                SignalResponse::unanswered(&error, error.to_string())
            }
            (Err(error), _) => SignalResponse::unanswered(&error, error.cause()),
        };
        if matches!(answer.code, None | Some(500)) && url.contains("/waitcondition/") && body.get("UniqueId").is_some() {
            answer.remedy = Some(PERHAPS_ANOTHER_TYPE.into());
        }
        answer
    }
}

/// Zaqar's answer to a signal.
fn of_zaqar(queue: &Queue, response: &Response) -> SignalResponse {
    let remedy = match response.status {
        403 => "Zaqar's policy forbids users of stacks to post messages (messages:create): correct it, or set signal_transport: HEAT_SIGNAL on \
                the handle"
            .to_owned(),
        status => queue.remedy(status),
    };
    let answer = SignalResponse::of("Zaqar", response.status, response.retry_after(), &zaqar::said(&response.body));
    SignalResponse { remedy: Some(remedy.into()), ..answer }
}

/// What to do about a refused URL that is not old: it names its stack and the deployment, whose user signed it.
fn of_stack(url: &str) -> Remedy {
    let path = native_path(url).unwrap_or_default();
    let part = |at: usize| path.split('/').nth(at).unwrap_or_default();
    let (stack, resource) = (part(3), part(5));
    Remedy::said(format!(
        "see stack_status in `openstack stack show {stack}`. DELETE_*, or no stack: do nothing. SUSPEND_*: `openstack stack resume {stack}`, \
         then here `systemctl reload heat-node-agent`. Else the user is gone: once no update runs, `openstack stack resource mark unhealthy \
         {stack} {resource}` and update the stack, which runs {resource} again"
    ))
}

/// The message inside an error of Heat's CFN API (XML) or native API (JSON), else nothing.
fn error_message(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let between = |open: &str, close: &str| {
        let start = text.find(open)? + open.len();
        let end = text.get(start..)?.find(close)? + start;
        text.get(start..end).map(str::to_owned)
    };
    let message = between("<Message>", "</Message>").or_else(|| {
        let value = json::small(body)?;
        value.get("error").and_then(|error| error.get("message")).and_then(|message| message.as_str()).map(str::to_owned)
    });
    // Heat appends a traceback after the first line.
    message.map(|message| shortened(&escaped(message.lines().next().unwrap_or_default()), 200)).unwrap_or_default()
}

#[cfg(test)]
#[path = "send_tests.rs"]
mod tests;
