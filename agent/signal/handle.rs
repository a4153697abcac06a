//! What a wait condition's handle is and what its signals' bodies look like (heat-protocol.md 7.6-7.8).

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::curl_line::CurlLine;
use super::destination::Destination;
use crate::budgets::STATUS_REASON;
use crate::budgets::json::{self, JsonRejection};
use crate::error::{Error, Result};
use crate::openstack::keystone::{Credentials, Scope};
use crate::openstack::zaqar::{MESSAGE_LIMIT, Queue};
use crate::programs::json_size;
use crate::report::text::storable;

/// SUCCESS or FAILURE.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum WaitStatus {
    /// It succeeded.
    Success,
    /// It failed.
    Failure,
}

impl WaitStatus {
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

/// What a wait condition is sent.
#[derive(Clone, Debug, PartialEq)]
pub struct WaitSignal {
    /// How it went.
    pub status: WaitStatus,
    /// One entry per id: the same id overwrites, so a retry is harmless (R49).
    pub id: String,
    /// One sentence.
    pub reason: String,
    /// Any JSON.
    pub data: Value,
}

impl Handle {
    /// Understands WAIT_HANDLE: the URL that `{get_resource: handle}` or `{get_attr: [swift_handle, endpoint]}` gives, the
    /// JSON of `{get_attr: [handle, signal]}` (as text or map), a map `{endpoint, token}`, or a curl line (`curl_cli`,
    /// WAIT_CURL), which is read and never run.
    ///
    /// # Errors
    /// If it is none of these, with what is accepted. Refused: a handle that takes no signal.
    pub fn parse(value: &Value) -> Result<Self> {
        match value {
            Value::String(text) => Self::parse_text(text.trim()),
            Value::Object(map) => Self::parse_map(map),
            _ => Err(not_understood()),
        }
    }

    fn parse_text(text: &str) -> Result<Self> {
        if text == "null" {
            return Err(not_understood().context("a TOKEN_SIGNAL handle has no signal attribute: its value is null"));
        }
        if text.starts_with('{') {
            // The parser's words could show parts of the handle.
            let value = json::answer(text.as_bytes()).map_err(|rejection| match rejection {
                JsonRejection::Json(error) => not_understood().context(format!("reading it as JSON, column {}", error.column())),
                JsonRejection::TooLarge(_) | JsonRejection::TooDeep => {
                    not_understood().context("reading it as JSON, which is far larger than any handle")
                }
            })?;
            return value.as_object().ok_or_else(not_understood).and_then(Self::parse_map);
        }
        if CurlLine::looks_like_curl(text) {
            return Self::parse_curl(text);
        }
        Self::from_url(text, false)
    }

    fn parse_map(map: &Map<String, Value>) -> Result<Self> {
        let text = |key: &str| text_of(map, key);
        if map.is_empty() {
            return Err(Error::refused("the handle is NO_SIGNAL")
                .rule("Heat polls such a handle itself and accepts no signal")
                .remedy("set another signal_transport on the OS::Heat::WaitConditionHandle"));
        }
        if text("queue_id").is_some() {
            return Self::of_user(map, "ZAQAR_SIGNAL", "queue_id");
        }
        if let (Some(endpoint), Some(token)) = (text("endpoint"), text("token")) {
            return Self::from_token(endpoint, token, false);
        }
        if let Some(curl) = text("curl_cli") {
            return Self::parse_curl(curl);
        }
        if text("auth_url").is_some() {
            return Self::of_user(map, "HEAT_SIGNAL", "alarm_url");
        }
        if let Some(url) = text("alarm_url") {
            check_url(url)?;
            // Inside the attribute `signal` a CFN URL is that of an OS::Heat handle.
            return Ok(Self::Heat(Destination::Url { url: url.to_owned(), verb: "PUT".to_owned(), insecure: false }));
        }
        text("url").or_else(|| text("endpoint")).ok_or_else(not_understood).and_then(|url| Self::from_url(url, false))
    }

    /// A handle with a user of its own. `place`: what says where its signals go.
    fn of_user(map: &Map<String, Value>, transport: &str, place: &str) -> Result<Self> {
        let wanted = ["auth_url", place, "user_id", "password", "project_id"];
        let [Some(auth_url), Some(to), Some(user_id), Some(password), Some(project_id)] = wanted.map(|key| text_of(map, key))
        else {
            let missing: Vec<_> = wanted.into_iter().filter(|key| text_of(map, key).is_none()).collect();
            return Err(not_understood().context(format!("it requires {transport} but lacks {}", missing.join(", "))));
        };
        check_url(auth_url)?;
        let credentials = Credentials {
            auth_url: auth_url.to_owned(),
            user_id: user_id.to_owned(),
            password: password.to_owned(),
            scope: Scope::Project(project_id.to_owned()),
            region: text_of(map, "region_name").map(str::to_owned),
        };
        if place == "queue_id" {
            return Ok(Self::Heat(Destination::Queue(Queue { credentials, name: to.to_owned() })));
        }
        check_url(to)?;
        Ok(Self::Heat(Destination::User { credentials, to: to.to_owned() }))
    }

    fn parse_curl(line: &str) -> Result<Self> {
        let CurlLine { url, token, insecure } =
            CurlLine::parse(line).ok_or_else(|| not_understood().context("reading it as a curl command line"))?;
        match token {
            Some(token) => Self::from_token(&url, &token, insecure),
            None => Self::from_url(&url, insecure),
        }
    }

    fn from_token(endpoint: &str, token: &str, insecure: bool) -> Result<Self> {
        check_url(endpoint)?;
        if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'$') {
            return Err(not_understood().context("reading its token"));
        }
        Ok(Self::Heat(Destination::Token { endpoint: endpoint.to_owned(), token: token.to_owned(), insecure }))
    }

    fn from_url(url: &str, insecure: bool) -> Result<Self> {
        check_url(url)?;
        let query = url.split_once('?').map_or("", |(_, query)| query);
        if url.ends_with("/signal") && query.is_empty() {
            return Err(not_understood().context("this URL accepts signals only with a token"));
        }
        let destination = Destination::Url { url: url.to_owned(), verb: "PUT".to_owned(), insecure };
        // A pre-signed wait condition URL given as such is what AWS handles resolve to; those of OS::Heat handles
        // come inside the `signal` attribute.
        Ok(if url.contains("/waitcondition/") { Self::Aws(destination) } else { Self::Heat(destination) })
    }

    /// Where it goes.
    #[must_use]
    pub fn destination(&self) -> &Destination {
        match self {
            Self::Heat(destination) | Self::Aws(destination) => destination,
        }
    }

    /// The body for this handle. What is longer than a queue takes is cut, both ends kept. Heat makes the reason of a failure the status reason of
    /// its wait condition.
    #[must_use]
    pub fn body(&self, signal: &WaitSignal) -> Value {
        let reason = json_size::cut(&storable(&signal.reason), STATUS_REASON);
        match self {
            Self::Heat(Destination::Queue(_)) => {
                let mut parts = [Value::String(reason), signal.data.clone()];
                let rest = json!({"status": signal.status, "reason": "", "data": "", "id": signal.id});
                let space = MESSAGE_LIMIT.saturating_sub(json_size::size_of_value(&rest));
                let each = json_size::share(parts.iter().map(json_size::size_of_value), space);
                for part in &mut parts {
                    json_size::cut_value(part, each);
                }
                let [reason, data] = parts;
                json!({"status": signal.status, "reason": reason, "data": data, "id": signal.id})
            }
            Self::Heat(_) => json!({"status": signal.status, "reason": reason, "data": signal.data, "id": signal.id}),
            Self::Aws(_) => json!({"Status": signal.status, "Reason": reason, "Data": signal.data, "UniqueId": signal.id}),
        }
    }
}

/// A member that is a text and not empty.
fn text_of<'a>(map: &'a Map<String, Value>, key: &str) -> Option<&'a str> {
    map.get(key).and_then(Value::as_str).filter(|text| !text.is_empty())
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
    Error::permanent("the wait condition handle is invalid")
        .rule("a URL, the JSON of the handle's signal attribute, {endpoint, token}, or a curl command line")
        .remedy(
            "use WAIT_HANDLE: {get_attr: [handle, signal]}; for a TOKEN_SIGNAL handle {endpoint: {get_attr: [handle, endpoint]}, \
             token: {get_attr: [handle, token]}}, or {get_attr: [handle, curl_cli]}",
        )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn url(url: &str) -> Destination {
        Destination::Url { url: url.into(), verb: "PUT".into(), insecure: false }
    }

    #[test]
    fn every_form_that_heat_hands_out_is_understood() {
        let wait = "http://10.0.0.1:8000/v1/waitcondition/arn%3Aopenstack%3Aheat%3A%3Ap%3Astacks/s/u/resources/h?Signature=x%3D";
        let swift = "https://swift/v1/AUTH_1/s/h?temp_url_sig=x&temp_url_expires=2147483587";
        let native = "http://10.0.0.1:8004/v1/p/stacks/s/u/resources/h/signal";
        let token = |insecure| Handle::Heat(Destination::Token { endpoint: native.into(), token: "gAAA_-".into(), insecure });
        let heat = json!({"auth_url": "http://k:5000/v3", "username": "n", "user_id": "u", "password": "p w'\"", "project_id": "j",
            "domain_id": "d", "region_name": null, "alarm_url": native});
        let credentials = Credentials {
            auth_url: "http://k:5000/v3".into(),
            user_id: "u".into(),
            password: "p w'\"".into(),
            scope: Scope::Project("j".into()),
            region: None,
        };
        let zaqar = json!({"auth_url": "http://k:5000/v3", "username": "n", "user_id": "u", "password": "p w'\"", "project_id": "j",
            "domain_id": "d", "region_name": null, "queue_id": "s-handle-x"});
        let queue = Handle::Heat(Destination::Queue(Queue { credentials: credentials.clone(), name: "s-handle-x".into() }));
        let user = Handle::Heat(Destination::User { credentials, to: native.into() });
        for (given, handle) in [
            (json!(wait), Handle::Aws(url(wait))),
            (json!(format!("  {wait}\n")), Handle::Aws(url(wait))),
            (json!({"url": wait}), Handle::Aws(url(wait))),
            (json!(format!("{{\"alarm_url\": \"{wait}\"}}")), Handle::Heat(url(wait))),
            (json!({"alarm_url": wait}), Handle::Heat(url(wait))),
            (json!({"alarm_url": swift}), Handle::Heat(url(swift))),
            (json!(swift), Handle::Heat(url(swift))),
            (json!({"endpoint": swift, "token": ""}), Handle::Heat(url(swift))),
            (json!(format!("curl -i -X PUT '{swift}'")), Handle::Heat(url(swift))),
            (json!(format!("curl -X PUT -H 'Content-Type:' --data-binary '{{}}' \"{wait}\"")), Handle::Aws(url(wait))),
            (json!({"endpoint": native, "token": "gAAA_-"}), token(false)),
            (
                json!(format!("curl --insecure -i -X POST -H 'X-Auth-Token: gAAA_-' -H 'Accept: application/json' {native}")),
                token(true),
            ),
            (json!({"curl_cli": format!("curl -i -X POST -H 'X-Auth-Token: gAAA_-' {native}")}), token(false)),
            (json!(heat.to_string()), user.clone()),
            (heat, user),
            (json!(zaqar.to_string()), queue.clone()),
            (zaqar, queue),
        ] {
            assert_eq!(Handle::parse(&given).unwrap(), handle, "{given}");
        }
    }

    #[test]
    fn anything_else_is_refused_with_what_is_accepted() {
        for bad in [
            json!("ftp://x"),
            json!(7),
            json!("curl -X POST"),
            json!("curl -X POST http://h/v1/p/stacks/s/u/resources/r/signal"),
            json!("curl -H 'X-Auth-Token: $TOKEN' http://h/v1/p/stacks/s/u/resources/r/signal"),
            json!("http://h/v1/p/stacks/s/u/resources/r/signal"),
            json!({"url": "http://a b"}),
            json!({"token": "hush"}),
            json!({"auth_url": "http://k", "alarm_url": "http://h", "password": "hush"}),
            json!("{\"password\": \"hush\""),
            json!(""),
        ] {
            let error = Handle::parse(&bad).unwrap_err();
            assert!(error.suggested_remedy().unwrap().contains("WAIT_HANDLE"), "{bad}");
            assert!(!error.lines().join(" ").contains("hush"), "{bad}");
        }
        assert!(Handle::parse(&json!("null")).unwrap_err().to_string().contains("TOKEN_SIGNAL handle has no signal attribute"));
        let missing = Handle::parse(&json!({"auth_url": "http://k", "alarm_url": "http://h"})).unwrap_err();
        assert!(missing.to_string().contains("lacks user_id, password, project_id"), "{missing}");
        let missing = Handle::parse(&json!({"queue_id": "q", "user_id": "u"})).unwrap_err();
        assert!(missing.to_string().contains("ZAQAR_SIGNAL but lacks auth_url, password, project_id"), "{missing}");
        let none = Handle::parse(&json!({})).unwrap_err();
        assert!(none.cause().contains("NO_SIGNAL") && none.suggested_remedy().unwrap().contains("signal_transport"), "{none}");
    }

    #[test]
    fn a_handle_that_would_take_too_much_memory_is_not_read() {
        let large = format!("{{\"url\": \"http://h/v1/waitcondition/x\", \"x\": [{}0]}}", "0,".repeat(100_000));
        let error = Handle::parse(&json!(large)).unwrap_err();
        assert!(error.to_string().contains("far larger than any handle"), "{error}");
    }

    #[test]
    fn the_resource_type_decides_the_body() {
        let signal = WaitSignal { status: WaitStatus::Failure, id: "node-1".into(), reason: "why".into(), data: json!({"a": 1}) };
        assert_eq!(
            Handle::Heat(url("http://h")).body(&signal),
            json!({"status": "FAILURE", "reason": "why", "data": {"a": 1}, "id": "node-1"})
        );
        assert_eq!(
            Handle::Aws(url("http://h")).body(&signal),
            json!({"Status": "FAILURE", "Reason": "why", "Data": {"a": 1}, "UniqueId": "node-1"})
        );
        // Heat had answered 200, and its database refused the condition's reason.
        let reason = format!("so \u{1f600}\0{}", "\u{20ac}".repeat(60_000));
        let body = Handle::Aws(url("http://h")).body(&WaitSignal { reason, ..signal });
        let reason = body["Reason"].as_str().unwrap();
        assert!(
            reason.starts_with("so \\u{1f600}\\u{0}\u{20ac}") && reason.len() <= STATUS_REASON,
            "{} {reason:.40}",
            reason.len()
        );
    }

    fn queue() -> Handle {
        let handle = json!({"auth_url": "http://k/v3", "user_id": "u", "password": "p", "project_id": "j", "queue_id": "q"});
        Handle::parse(&handle).unwrap()
    }

    #[test]
    fn what_is_longer_than_a_queue_takes_is_cut_with_both_ends_kept() {
        let long = |begin: &str| format!("{begin}{}END", "\u{1}x".repeat(200_000));
        let signal = |reason: &str, data: Value| {
            let (reason, id) = (reason.to_owned(), "node-1".to_owned());
            WaitSignal { status: WaitStatus::Success, id, reason, data }
        };
        // What fits is as it is for every handle.
        let short = signal("why", json!({"a": [1, "wörld"]}));
        assert_eq!(queue().body(&short), Handle::Heat(url("http://h")).body(&short));
        // A reason alone is as long as Heat's database takes it.
        for (reason, data, kept, least) in [
            (long("WHY"), json!(long("DATA")), false, 200),
            ("why".to_owned(), json!(long("DATA")), true, 200),
            ("why".to_owned(), json!({"a": long("DATA")}), true, 200),
            (long("WHY"), json!({"a": 1}), false, 45),
        ] {
            let body = queue().body(&signal(&reason, data.clone()));
            let message = crate::openstack::zaqar::message(&body);
            assert!((least * 1024..=256 * 1024).contains(&message.len()), "{}", message.len());
            let read = json::answer(message.as_bytes()).unwrap();
            assert_eq!(read["messages"][0]["body"], body);
            assert_eq!((&body["status"], &body["id"]), (&json!("SUCCESS"), &json!("node-1")));
            assert_eq!(body["reason"] == json!(reason), kept);
            for (name, given) in
                [("reason", json!(reason)), ("data", data)].into_iter().filter(|(name, given)| body[*name] != *given)
            {
                let text = body[name].as_str().unwrap();
                let (begins, ends) = match &given {
                    Value::String(_) => ("", "END"),
                    _ => ("{\"a\":", "END\"}"),
                };
                assert!(text.contains("cut by") && text.starts_with(begins) && text.ends_with(ends), "{name}");
                assert!(text.contains("WHY") || text.contains("DATA"), "{name}");
            }
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in ".{0,200}") {
            let _ = Handle::parse(&Value::String(format!("curl {text}")));
            let _ = Handle::parse(&Value::String(text));
        }
    }
}
