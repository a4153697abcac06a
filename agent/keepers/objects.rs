//! Makes objects of the cluster's API what they should be.
//!
//! In: an [`Object`], whole. Out: whether anything was written. Only what the object says is looked at: what the API or somebody
//! else adds to it stays. Of an object that somebody else makes the agent owns labels and taints, whose names it keeps in annotations.

use std::borrow::Cow;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Map, Value};

use crate::backoff::{Backoff, pause_before_deadline};
use crate::budgets::json::{self, JsonRejection};
use crate::budgets::{OBJECT_BYTES, OBJECT_MEMORY};
use crate::clock::patience;
use crate::desired::{Material, OWN_LABELS, OWN_TAINTS, Object};
use crate::error::{Context, Error, ErrorKind, Result};
use crate::http::{Http, Request, Response};
use crate::report::text::{escaped, shortened};

/// An API that does not answer one request for so long is away.
const REQUEST_LIMIT: Duration = patience(Duration::from_secs(10));
/// Between two tries.
const PAUSES: Backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(5));
/// Where an API before 1.23 cannot read an object, its words go on with a piece of the object, which may be a piece of a secret
/// (json-iterator, `Iterator.ReportError`).
const QUOTATION: &str = ", error found in #";
/// Bytes of a Secret's values that are looked for in what the API says. The search takes twenty times as much memory.
const SECRETS: usize = 64 * 1024;

/// Makes sure that the API holds the object; true if something was written.
///
/// # Errors
/// Transient: the API was away until the deadline. Else what it says.
pub(super) async fn ensure(http: &Http, object: &Object, deadline: Duration) -> Result<bool> {
    let api = Api::new(&http.identified_by(object.identity.as_ref()), object)?;
    let settled = until_deadline(http, deadline, async |limit| api.settle(limit).await, &|_, _, _| {}).await?;
    Ok(settled != Settled::Unchanged)
}

/// Tries again and again what fails for now.
pub(super) async fn until_deadline<T>(
    http: &Http,
    deadline: Duration,
    mut attempt: impl AsyncFnMut(Duration) -> Result<T>,
    waits: &impl Fn(&Error, u32, Duration),
) -> Result<T> {
    let running = http.clock().start();
    let (mut pauses, mut attempts) = (PAUSES, 0);
    loop {
        let left = deadline.saturating_sub(running.elapsed());
        let error = match attempt(left.min(REQUEST_LIMIT)).await {
            Ok(done) => return Ok(done),
            Err(error) => error,
        };
        let left = deadline.saturating_sub(running.elapsed());
        match pause_before_deadline(pauses.next_pause(), error.asked_pause(), left) {
            Some(pause) if error.kind() == ErrorKind::Transient => {
                attempts += 1;
                waits(&error, attempts, pause);
                http.clock().wait(pause).await;
            }
            _ => return Err(error),
        }
    }
}

/// What became of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Settled {
    Made,
    Changed,
    Unchanged,
}

/// What is to be written, and the version of the object that it is made from.
struct Replacement {
    body: Vec<u8>,
    seen: Option<String>,
}

/// One object of an API. It is held as text: as values it would take six times as much memory for as long as the API takes to answer.
pub(super) struct Api<'a> {
    http: Http,
    object: &'a Object,
    wanted: Cow<'a, [u8]>,
    /// Whether it is left as it is once it is there.
    made_once: bool,
}

impl<'a> Api<'a> {
    /// `http` shows the API who asks.
    pub(super) fn new(http: &Http, object: &'a Object) -> Result<Self> {
        let wanted = match &object.body {
            Material::Text(text) => Cow::Borrowed(text.as_bytes()),
            file @ Material::File(_) => Cow::Owned(http.read(file)?),
        };
        let api = Self { http: http.clone(), object, wanted, made_once: false };
        api.wanted().map(|_| api)
    }

    /// An object that is somebody else's as soon as it is there.
    pub(super) fn made_once(self, made_once: bool) -> Self {
        Self { made_once, ..self }
    }

    /// Looks, and writes what is not as it should be.
    pub(super) async fn settle(&self, limit: Duration) -> Result<Settled> {
        let inspected = self.send("GET", None, limit).await?;
        let (method, body, seen) = match inspected.status {
            404 if !is_shared(&self.wanted()?) => ("POST", self.wanted.to_vec(), None),
            200 if self.made_once => return Ok(Settled::Unchanged),
            200 => match self.replacement(&inspected.body)? {
                None => return Ok(Settled::Unchanged),
                Some(Replacement { body, seen }) => ("PUT", body, seen),
            },
            _ => return Err(self.refusal("GET", &inspected)),
        };
        drop(inspected);
        let written = self.send(method, Some(body), limit).await?;
        match (written.status, method) {
            (200 | 201, "POST") => Ok(Settled::Made),
            // The API writes some values in another way (`0.1` of a CPU is `100m`): then nothing has changed.
            (200 | 201, _)
                if seen.is_some() && self.read("PUT", &written.body).ok().as_ref().and_then(version) == seen.as_deref() =>
            {
                Ok(Settled::Unchanged)
            }
            (200 | 201, _) => Ok(Settled::Changed),
            _ => Err(self.refusal(method, &written)),
        }
    }

    /// The object that is wanted.
    fn wanted(&self) -> Result<Value> {
        json::value(&self.wanted, OBJECT_MEMORY / 2)
            .map_err(|rejection| self.unreadable("reading", ErrorKind::Permanent, rejection))
    }

    /// An object in an answer of the API.
    fn read(&self, method: &str, answer: &[u8]) -> Result<Value> {
        json::value(answer, OBJECT_MEMORY).map_err(|rejection| self.unreadable(method, ErrorKind::Transient, rejection))
    }

    /// The parser's words could show a part of a secret.
    fn unreadable(&self, doing_what: &str, kind: ErrorKind, rejection: JsonRejection) -> Error {
        let error = match rejection {
            JsonRejection::Json(_) => Error::new(kind, "the object is not JSON"),
            limit @ (JsonRejection::TooLarge(_) | JsonRejection::TooDeep) => {
                Error::from(limit).remedy("divide the object into several, or apply it without the agent")
            }
        };
        error.context(doing(self.object, doing_what))
    }

    /// What takes the place of the object that was found; nothing where that is as it should be.
    fn replacement(&self, found: &[u8]) -> Result<Option<Replacement>> {
        let (mut found, mut wanted) = (self.read("GET", found)?, self.wanted()?);
        let before = self.object.before.as_deref().and_then(|before| json::value(before.as_bytes(), OBJECT_MEMORY / 2).ok());
        if !share(&mut found, &mut wanted, before.unwrap_or_default()) && covers(&found, &wanted) {
            return Ok(None);
        }
        // With the resourceVersion that was seen: who changed it meanwhile is not overruled.
        let seen = version(&found).map(str::to_owned);
        Ok(Some(Replacement { body: merged(found, wanted).to_string().into_bytes(), seen }))
    }

    async fn send(&self, method: &str, body: Option<Vec<u8>>, limit: Duration) -> Result<Response> {
        let Object { server, collection, object, .. } = self.object;
        let name = if method == "POST" { String::new() } else { format!("/{object}") };
        let url = format!("{server}{collection}{name}");
        let mut request = Request::new(method, &url, limit).header("accept", "application/json");
        request.body_limit = OBJECT_BYTES;
        let secrets = if body.is_some() { secrets(&self.wanted()?) } else { Vec::new() };
        request.secrets = secrets.iter().map(String::as_str).collect();
        if let Some(body) = body {
            request = request.json(body);
        }
        self.http.request(request).await.context(|| doing(self.object, method))
    }

    fn refusal(&self, method: &str, response: &Response) -> Error {
        let has_many = || self.wanted().is_ok_and(|wanted| values(&wanted).map(str::len).sum::<usize>() > SECRETS);
        let message = if has_many() { "not shown, as it may quote the secret".to_owned() } else { error_message(response) };
        let status = response.status;
        let certificate = self.object.identity.as_ref().map_or("nobody", |identity| identity.certificate.as_str());
        let (kind, remedy) = match (status, method) {
            (401, _) => (
                ErrorKind::Permanent,
                format!("the API server does not trust {certificate}: compare the CA that signed it with --client-ca-file"),
            ),
            // Admission looks for the service account of a pod, which the controller manager makes a moment later.
            (403, "POST") if message.contains("serviceaccount") && message.contains("not found") => {
                (ErrorKind::Transient, "the agent checks again".to_owned())
            }
            // NodeRestriction compares what a kubelet writes with what others have changed meanwhile, before the API compares versions.
            (403, "PUT") if message.contains("not allowed to modify") => {
                (ErrorKind::Transient, "the agent checks again".to_owned())
            }
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
                    deletion(self.object)
                ),
            ),
            (408 | 429 | 500.., _) => (ErrorKind::Transient, "check the journals of the API server and etcd".to_owned()),
            _ => (
                ErrorKind::Permanent,
                "check the API server's journal; it does not accept the object in the form of this Kubernetes version".to_owned(),
            ),
        };
        Error::new(kind, format!("the API answered {status}: {message}"))
            .remedy(remedy)
            .retry_after(response.retry_after())
            .with_status(status)
            .context(doing(self.object, method))
    }
}

/// The values of a Secret, as base64.
fn values(object: &Value) -> impl Iterator<Item = &str> {
    let data = object.get("data").filter(|_| object.get("kind").is_some_and(|kind| kind == "Secret"));
    data.and_then(Value::as_object).into_iter().flatten().filter_map(|(_, value)| value.as_str())
}

/// The same, and what they stand for: an admission webhook may quote either. Of one with more of them nothing is quoted at all.
fn secrets(object: &Value) -> Vec<String> {
    if values(object).map(str::len).sum::<usize>() > SECRETS {
        return Vec::new();
    }
    // The API takes base64 in lines, too.
    let decoded = |value: &str| {
        let value: String = value.split_ascii_whitespace().collect();
        String::from_utf8(BASE64_STANDARD.decode(value).ok()?).ok()
    };
    values(object).flat_map(|value| [Some(value.to_owned()), decoded(value)]).flatten().collect()
}

/// What the API says of a failure (`message` of its Status); what it quotes of the object is left out.
pub(crate) fn error_message(response: &Response) -> String {
    let body = json::small(&response.body);
    let message = body.as_ref().and_then(|body| body.get("message")?.as_str()).unwrap_or("no details");
    let message = message.split_once(QUOTATION).map_or(message, |(words, _)| words);
    escaped(&shortened(message.lines().next().unwrap_or_default(), 300))
}

fn version(object: &Value) -> Option<&str> {
    object.pointer("/metadata/resourceVersion")?.as_str()
}

fn annotations(object: &mut Value) -> Option<&mut Map<String, Value>> {
    object.pointer_mut("/metadata/annotations")?.as_object_mut()
}

/// Whether it is somebody else's, who makes it.
fn is_shared(wanted: &Value) -> bool {
    wanted.pointer("/metadata/annotations").is_some_and(|all| all.get(OWN_LABELS).is_some())
}

/// `key:effect`.
fn taint_name(taint: &Value) -> String {
    let text = |key: &str| taint.get(key).and_then(Value::as_str).unwrap_or_default();
    format!("{}:{}", text("key"), text("effect"))
}

/// As kubectl takes it: `key=value:effect`, or `key:effect`.
pub(super) fn taint_text(taint: &Value) -> String {
    let value = taint.get("value").and_then(Value::as_str).filter(|value| !value.is_empty());
    let name = taint_name(taint);
    value.map_or_else(|| name.clone(), |value| name.replacen(':', &format!("={value}:"), 1))
}

/// Takes out of an object what is the agent's own and no longer wanted, and adds to what is wanted the taints that are others'. True if
/// what was found has to be written whatever is wanted. A kubelet that registers its node anew gives labels and taints and no annotations: then counts what was
/// wanted `before`.
fn share(found: &mut Value, wanted: &mut Value, mut before: Value) -> bool {
    let mut is_left = false;
    for name in [OWN_LABELS, OWN_TAINTS] {
        let note = |object: &mut Value| Some(annotations(object)?.get(name)?.as_str()?.to_owned());
        let Some(now) = note(wanted) else { continue };
        let before = note(found).or_else(|| note(&mut before)).unwrap_or_default();
        let is_gone = |one: &str| before.split(',').any(|own| own == one) && now.split(',').all(|own| own != one);
        if let Some(labels) = found.pointer_mut("/metadata/labels").and_then(Value::as_object_mut).filter(|_| name == OWN_LABELS)
        {
            labels.retain(|key, _| !is_gone(key));
        }
        if let Some(taints) = found.pointer_mut("/spec/taints").and_then(Value::as_array_mut).filter(|_| name == OWN_TAINTS) {
            taints.retain(|taint| !is_gone(&taint_name(taint)));
        }
        if now.is_empty() {
            annotations(wanted).and_then(|all| all.remove(name));
            is_left |= annotations(found).and_then(|all| all.remove(name)).is_some();
        }
    }
    if annotations(wanted).is_some_and(|all| all.is_empty()) {
        wanted.pointer_mut("/metadata").and_then(Value::as_object_mut).and_then(|metadata| metadata.remove("annotations"));
    }
    let Some(Value::Array(own)) = wanted.pointer_mut("/spec/taints").map(Value::take) else { return is_left };
    let before = found.pointer("/spec/taints").and_then(Value::as_array).cloned().unwrap_or_default();
    let is_kept = |one: &&Value| own.iter().all(|own| taint_name(own) != taint_name(one) || taint_text(own) == taint_text(one));
    let mut all: Vec<Value> = before.iter().filter(is_kept).cloned().collect();
    is_left |= all.len() < before.len();
    for own in own {
        if all.iter().all(|one| taint_name(one) != taint_name(&own)) {
            all.push(own);
        }
    }
    if let Some(taints) = wanted.pointer_mut("/spec/taints") {
        *taints = Value::Array(all);
    }
    is_left
}

/// The object as kubectl takes it.
fn deletion(object: &Object) -> String {
    let namespace = object.collection.split_once("/namespaces/").and_then(|(_, rest)| rest.split('/').next());
    let kind = object.name.split(' ').next().unwrap_or_default();
    namespace.map_or_else(|| object.name.clone(), |namespace| format!("-n {namespace} {kind} {}", object.object))
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
fn merged(found: Value, wanted: Value) -> Value {
    match (found, wanted) {
        (Value::Object(mut found), Value::Object(wanted)) => {
            for (key, wanted) in wanted {
                let before = found.get_mut(&key).map(Value::take).unwrap_or_default();
                found.insert(key, merged(before, wanted));
            }
            Value::Object(found)
        }
        (_, wanted) => wanted,
    }
}

#[cfg(test)]
#[path = "objects_tests.rs"]
mod tests;
