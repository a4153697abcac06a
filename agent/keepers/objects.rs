//! Makes objects of the cluster's API what they should be.
//!
//! In: an [`Object`], whole. Out: whether anything was written. Only what the object says is looked at: what the API or somebody
//! else adds to it stays.

use std::time::Duration;

use serde_json::Value;

use crate::backoff::{Backoff, pause_before_deadline};
use crate::budgets::json;
use crate::clock::patience;
use crate::converge::Objects;
use crate::desired::Object;
use crate::error::{Context, Error, ErrorKind, Result};
use crate::http::{Http, Request, Response};
use crate::report::text::{escaped, shortened};

/// An API that does not answer one request for so long is away.
const REQUEST_LIMIT: Duration = patience(Duration::from_secs(10));
/// Between two tries.
const PAUSES: Backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(5));
/// An object is short; more is not read.
const ANSWER_LIMIT: usize = 1024 * 1024;

impl Objects for Http {
    async fn ensure(&self, object: &Object, deadline: Duration) -> Result<bool> {
        let api = Api::new(self, object)?;
        let running = self.clock().start();
        let mut pauses = PAUSES;
        loop {
            let left = deadline.saturating_sub(running.elapsed());
            let error = match api.settle(left.min(REQUEST_LIMIT)).await {
                Ok(written) => return Ok(written),
                Err(error) => error,
            };
            let left = deadline.saturating_sub(running.elapsed());
            match pause_before_deadline(pauses.next_pause(), error.asked_pause(), left) {
                Some(pause) if error.kind() == ErrorKind::Transient => self.clock().wait(pause).await,
                _ => return Err(error),
            }
        }
    }
}

/// One object of an API, and as whom that is asked.
struct Api<'a> {
    http: Http,
    object: &'a Object,
    wanted: Value,
}

impl<'a> Api<'a> {
    fn new(http: &Http, object: &'a Object) -> Result<Self> {
        let body = http.read(&object.body)?;
        // The parser's words could show a part of it.
        let wanted =
            json::answer(&body).map_err(|_| Error::permanent("the object is not JSON").context(doing(object, "reading")))?;
        Ok(Self { http: http.with_identity(&object.identity), object, wanted })
    }

    /// Looks, and writes what is not as it should be.
    async fn settle(&self, limit: Duration) -> Result<bool> {
        let inspected = self.send("GET", None, limit).await?;
        let (method, body) = match inspected.status {
            404 => ("POST", self.wanted.clone()),
            200 => {
                let found = json::answer(&inspected.body)
                    .map_err(|_| Error::transient("the answer is not JSON").context(doing(self.object, "GET")))?;
                if covers(&found, &self.wanted) {
                    return Ok(false);
                }
                // With the resourceVersion that was seen: who changed it meanwhile is not overruled.
                ("PUT", merged(found, &self.wanted))
            }
            _ => return Err(self.refusal("GET", &inspected)),
        };
        let written = self.send(method, Some(&body), limit).await?;
        match written.status {
            200 | 201 => Ok(true),
            _ => Err(self.refusal(method, &written)),
        }
    }

    async fn send(&self, method: &str, body: Option<&Value>, limit: Duration) -> Result<Response> {
        let Object { server, collection, object, .. } = self.object;
        let name = if method == "POST" { String::new() } else { format!("/{object}") };
        let url = format!("{server}{collection}{name}");
        let mut request = Request::new(method, &url, limit).header("accept", "application/json");
        request.body_limit = ANSWER_LIMIT;
        if let Some(body) = body {
            request = request.json(body.to_string().into_bytes());
        }
        self.http.request(request).await.context(|| doing(self.object, method))
    }

    fn refusal(&self, method: &str, response: &Response) -> Error {
        let status = response.status;
        let certificate = &self.object.identity.certificate;
        let (kind, remedy) = match (status, method) {
            (401, _) => (
                ErrorKind::Permanent,
                format!("the API server does not trust {certificate}: compare the CA that signed it with --client-ca-file"),
            ),
            (403, _) => (
                ErrorKind::Permanent,
                format!(
                    "RBAC does not allow this to the subject of {certificate}; members of the group system:masters may do everything"
                ),
            ),
            // Made or changed by somebody else at the same time; or its namespace is not there yet.
            (404 | 409, _) => (ErrorKind::Transient, "the agent checks again".to_owned()),
            (422, "PUT") => (
                ErrorKind::Refused,
                format!(
                    "a part of it is immutable, such as a binding's roleRef: inspect it with kubectl and remove it (kubectl delete {}); \
                         the agent recreates it",
                    self.object.name
                ),
            ),
            (408 | 429 | 500.., _) => (ErrorKind::Transient, "check the journals of the API server and etcd".to_owned()),
            _ => (
                ErrorKind::Permanent,
                "check the API server's journal; it does not accept the object in the form of this Kubernetes version".to_owned(),
            ),
        };
        Error::new(kind, format!("the API answered {status}: {}", self.error_message(response)))
            .remedy(remedy)
            .retry_after(response.retry_after())
            .with_status(status)
            .context(doing(self.object, method))
    }

    /// The message of the API's Status, unless it repeats a part of a secret.
    fn error_message(&self, response: &Response) -> String {
        let secrets = self.wanted.get("data").and_then(Value::as_object).into_iter().flatten();
        error_message(response, secrets.filter_map(|(_, value)| value.as_str()))
    }
}

/// What the API says of a failure (`message` of its Status), unless it repeats one of these.
pub(super) fn error_message<'a>(response: &Response, mut secrets: impl Iterator<Item = &'a str>) -> String {
    let body = json::small(&response.body);
    let message = body.as_ref().and_then(|body| body.get("message")?.as_str()).unwrap_or("no details");
    if secrets.any(|secret| message.contains(secret)) {
        return "a message that contains a secret, not shown".to_owned();
    }
    escaped(&shortened(message.lines().next().unwrap_or_default(), 300))
}

fn doing(object: &Object, method: &str) -> String {
    let verb = match method {
        "GET" => "inspecting",
        "POST" => "making",
        "PUT" => "changing",
        other => other,
    };
    format!("{verb} {} in the cluster's API", object.name)
}

/// Whether all that is wanted is there; lists have to be of one length.
fn covers(found: &Value, wanted: &Value) -> bool {
    match (found, wanted) {
        (Value::Object(found), Value::Object(wanted)) => {
            wanted.iter().all(|(key, wanted)| found.get(key).is_some_and(|found| covers(found, wanted)))
        }
        (Value::Array(found), Value::Array(wanted)) => {
            found.len() == wanted.len() && found.iter().zip(wanted).all(|(found, wanted)| covers(found, wanted))
        }
        _ => found == wanted,
    }
}

/// What is there with all that is wanted.
fn merged(found: Value, wanted: &Value) -> Value {
    match (found, wanted) {
        (Value::Object(mut found), Value::Object(wanted)) => {
            for (key, wanted) in wanted {
                let before = found.get_mut(key).map(Value::take).unwrap_or_default();
                found.insert(key.clone(), merged(before, wanted));
            }
            Value::Object(found)
        }
        (_, wanted) => wanted.clone(),
    }
}

#[cfg(test)]
#[path = "objects_tests.rs"]
mod tests;
