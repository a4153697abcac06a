//! Where a signal goes and what its body looks like (heat-protocol.md 7.1, 7.6, 7.7).

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::error::{Error, Result};
use crate::http::redacted;

/// An address that takes signals.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Destination {
    /// A URL that carries its own authority (CFN_SIGNAL, TEMP_URL_SIGNAL): called byte for byte.
    Url {
        /// The URL.
        url: String,
        /// `POST` or `PUT`.
        verb: String,
    },
    /// A token of the handle (TOKEN_SIGNAL).
    Token {
        /// The resource's signal URL.
        endpoint: String,
        /// X-Auth-Token.
        token: String,
    },
}

impl Destination {
    /// Scheme, host and resource: what may be shown, and short enough to be read.
    #[must_use]
    pub fn shown(&self) -> String {
        let (Self::Url { url, .. } | Self::Token { endpoint: url, .. }) = self;
        let whole = redacted(url);
        let Some((before, resource)) = whole.split_once("/resources/") else { return whole };
        let authority_end = before.find("://").and_then(|at| before.get(at + 3..)?.find('/').map(|end| at + 3 + end));
        format!("{}/…/resources/{resource}", before.get(..authority_end.unwrap_or(before.len())).unwrap_or_default())
    }

    /// Host and port: signals for one place wait for each other, those for different places do not.
    #[must_use]
    pub fn place(&self) -> String {
        let (Self::Url { url, .. } | Self::Token { endpoint: url, .. }) = self;
        let after_scheme = url.split_once("://").map_or(url.as_str(), |(_, rest)| rest);
        let authority = after_scheme.split(['/', '?', '#']).next().unwrap_or_default();
        authority.rsplit('@').next().unwrap_or_default().to_ascii_lowercase()
    }
}

/// SUCCESS or FAILURE.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Status {
    /// All is well.
    Success,
    /// It is not.
    Failure,
}

impl Status {
    /// Heat's word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Success => "SUCCESS",
            Self::Failure => "FAILURE",
        }
    }
}

/// A wait condition's handle: the type of the resource decides the body, not the transport.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Handle {
    /// `OS::Heat::WaitConditionHandle`: lower-case keys.
    Heat(Destination),
    /// `AWS::CloudFormation::WaitConditionHandle` and `OS::Heat::UpdateWaitConditionHandle`: four capitalised keys.
    Aws(Destination),
}

/// What a wait condition is told.
#[derive(Clone, Debug, PartialEq)]
pub struct WaitSignal {
    /// How it went.
    pub status: Status,
    /// One entry per id: the same id overwrites, so a retry is harmless (R49).
    pub id: String,
    /// One sentence.
    pub reason: String,
    /// Any JSON.
    pub data: Value,
}

impl Handle {
    /// Understands WAIT_HANDLE: the URL that `{get_resource: aws_handle}` gives, the JSON that `{get_attr: [handle,
    /// signal]}` gives (as text or map), a map `{endpoint, token}`, or the `curl_cli` line of a token handle, parsed and
    /// never run.
    ///
    /// # Errors
    /// If it is none of these, with what is accepted.
    pub fn parse(value: &Value) -> Result<Self> {
        match value {
            Value::String(text) => Self::parse_text(text.trim()),
            Value::Object(map) => Self::parse_map(map),
            _ => Err(not_understood()),
        }
    }

    fn parse_text(text: &str) -> Result<Self> {
        if text.starts_with('{') {
            let value: Value =
                serde_json::from_str(text).map_err(|error| not_understood().context(format!("reading it as JSON: {error}")))?;
            return value.as_object().ok_or_else(not_understood).and_then(Self::parse_map);
        }
        if text.starts_with("curl ") {
            return parse_curl(text).map(Self::Heat);
        }
        if !is_url(text) {
            return Err(not_understood());
        }
        let url = Destination::Url { url: text.to_owned(), verb: "PUT".to_owned() };
        // A pre-signed wait condition URL given as such is what AWS handles resolve to; those of OS::Heat handles
        // come inside the `signal` attribute.
        Ok(if text.contains("/waitcondition/") { Self::Aws(url) } else { Self::Heat(url) })
    }

    fn parse_map(map: &Map<String, Value>) -> Result<Self> {
        let text = |key: &str| map.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
        if let (Some(endpoint), Some(token)) = (text("endpoint"), text("token")) {
            check_url(endpoint)?;
            return Ok(Self::Heat(Destination::Token { endpoint: endpoint.to_owned(), token: token.to_owned() }));
        }
        if let Some(curl) = text("curl_cli") {
            return parse_curl(curl).map(Self::Heat);
        }
        if text("auth_url").is_some() {
            return Err(Error::permanent("WAIT_HANDLE asks for HEAT_SIGNAL or ZAQAR_SIGNAL")
                .rule("this version signals wait conditions by token, CFN URL or temporary URL")
                .remedy("set signal_transport: CFN_SIGNAL or TOKEN_SIGNAL on the OS::Heat::WaitConditionHandle"));
        }
        if let Some(url) = text("alarm_url") {
            check_url(url)?;
            return Ok(Self::Heat(Destination::Url { url: url.to_owned(), verb: "PUT".to_owned() }));
        }
        if let Some(url) = text("url") {
            check_url(url)?;
            return Ok(Self::Aws(Destination::Url { url: url.to_owned(), verb: "PUT".to_owned() }));
        }
        Err(not_understood())
    }

    /// Where it goes.
    #[must_use]
    pub fn destination(&self) -> &Destination {
        match self {
            Self::Heat(destination) | Self::Aws(destination) => destination,
        }
    }

    /// The body for this handle.
    #[must_use]
    pub fn body(&self, signal: &WaitSignal) -> Value {
        match self {
            Self::Heat(_) => json!({"status": signal.status, "reason": signal.reason, "data": signal.data, "id": signal.id}),
            Self::Aws(_) => json!({"Status": signal.status, "Reason": signal.reason, "Data": signal.data, "UniqueId": signal.id}),
        }
    }
}

/// Splits the handle's `curl_cli` line: the X-Auth-Token header and the URL are all that is in it.
fn parse_curl(line: &str) -> Result<Destination> {
    let words = shell_words(line);
    let token = words.iter().find_map(|word| {
        let (name, value) = word.split_once(':')?;
        name.trim().eq_ignore_ascii_case("x-auth-token").then(|| value.trim().to_owned())
    });
    let endpoint = words.iter().find(|word| is_url(word));
    match (token, endpoint) {
        (Some(token), Some(endpoint)) if !token.is_empty() => Ok(Destination::Token { endpoint: endpoint.clone(), token }),
        _ => Err(not_understood().context("reading it as a curl command line")),
    }
}

/// Words of a command line with single and double quotes; nothing is expanded.
fn shell_words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote, mut open) = (Vec::new(), String::new(), None, false);
    for c in line.chars() {
        match (quote, c) {
            (None, '\'' | '"') => {
                quote = Some(c);
                open = true;
            }
            (Some(q), c) if q == c => quote = None,
            (None, c) if c.is_whitespace() => {
                if open || !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
                open = false;
            }
            (_, c) => word.push(c),
        }
    }
    if open || !word.is_empty() {
        words.push(word);
    }
    words
}

fn is_url(text: &str) -> bool {
    (text.starts_with("http://") || text.starts_with("https://"))
        && !text.contains(char::is_whitespace)
        && !text.contains(char::is_control)
}

fn check_url(text: &str) -> Result<()> {
    if is_url(text) { Ok(()) } else { Err(not_understood().context("reading its URL")) }
}

fn not_understood() -> Error {
    Error::permanent("the wait condition handle cannot be understood")
        .rule("a URL, the JSON of the handle's signal attribute, {endpoint, token}, or its curl_cli line (heat-protocol.md 7.6)")
        .remedy("use WAIT_HANDLE: {get_attr: [handle, signal]}, or {endpoint: {get_attr: [handle, endpoint]}, token: {get_attr: [handle, token]}}")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn url(url: &str) -> Destination {
        Destination::Url { url: url.into(), verb: "PUT".into() }
    }

    #[test]
    fn every_form_that_heat_hands_out_is_understood() {
        let wait = "http://10.0.0.1:8000/v1/waitcondition/arn%3Aopenstack%3Aheat%3A%3Ap%3Astacks/s/u/resources/h?Signature=x%3D";
        let token = Destination::Token {
            endpoint: "http://10.0.0.1:8004/v1/p/stacks/s/u/resources/h/signal".into(),
            token: "gAAA_-".into(),
        };
        for (given, handle) in [
            (json!(wait), Handle::Aws(url(wait))),
            (json!({"url": wait}), Handle::Aws(url(wait))),
            (json!(format!("{{\"alarm_url\": \"{wait}\"}}")), Handle::Heat(url(wait))),
            (json!({"alarm_url": wait}), Handle::Heat(url(wait))),
            (
                json!({"endpoint": "http://10.0.0.1:8004/v1/p/stacks/s/u/resources/h/signal", "token": "gAAA_-"}),
                Handle::Heat(token.clone()),
            ),
            (
                json!(
                    "curl --insecure -i -X POST -H 'X-Auth-Token: gAAA_-' -H 'Content-Type: application/json' -H 'Accept: application/json' \
                       http://10.0.0.1:8004/v1/p/stacks/s/u/resources/h/signal"
                ),
                Handle::Heat(token),
            ),
        ] {
            assert_eq!(Handle::parse(&given).unwrap(), handle, "{given}");
        }
    }

    #[test]
    fn anything_else_is_refused_with_what_is_accepted() {
        for bad in [
            json!("ftp://x"),
            json!({}),
            json!(7),
            json!("curl -X POST http://x"),
            json!({"url": "http://a b"}),
            json!("{\"a\""),
            json!(""),
        ] {
            let error = Handle::parse(&bad).unwrap_err();
            assert!(error.suggested_remedy().unwrap().contains("WAIT_HANDLE"), "{bad}");
        }
        let error = Handle::parse(&json!({"auth_url": "http://k", "alarm_url": "http://h"})).unwrap_err();
        assert!(error.suggested_remedy().unwrap().contains("TOKEN_SIGNAL"));
    }

    #[test]
    fn the_resource_type_decides_the_body() {
        let signal = WaitSignal { status: Status::Failure, id: "node-1".into(), reason: "why".into(), data: json!({"a": 1}) };
        assert_eq!(
            Handle::Heat(url("http://h")).body(&signal),
            json!({"status": "FAILURE", "reason": "why", "data": {"a": 1}, "id": "node-1"})
        );
        assert_eq!(
            Handle::Aws(url("http://h")).body(&signal),
            json!({"Status": "FAILURE", "Reason": "why", "Data": {"a": 1}, "UniqueId": "node-1"})
        );
    }

    #[test]
    fn places_are_hosts_with_ports_and_nothing_secret_is_shown() {
        let destination = url("http://user:pw@Heat.example:8000/v1/x?Signature=secret");
        assert_eq!(destination.place(), "heat.example:8000");
        assert!(!destination.shown().contains("secret") && !destination.shown().contains("pw"));
        let signal = url("http://10.0.0.1:8000/v1/signal/arn%3Aopenstack%3Astacks/s/u/resources/node?Signature=secret");
        assert_eq!(signal.shown(), "http://10.0.0.1:8000/…/resources/node?…");
    }

    proptest! {
        #[test]
        fn no_text_panics(text in ".{0,200}") {
            let _ = Handle::parse(&Value::String(format!("curl {text}")));
            let _ = Handle::parse(&Value::String(text));
        }
    }
}
