//! One signal as one HTTP request.

use std::time::Duration;

use super::answer::Answer;
use super::handle::Destination;
use crate::http::{Http, Request};
use crate::report::text::{escaped, shortened};

/// Time for one signal, from the connection to the end of the answer. Heat itself takes up to a second or two. Short,
/// because a request that hangs in a broken network arrives when the metadata that allowed it may be out of date.
const DEADLINE: Duration = Duration::from_secs(10);
/// An answer to a signal is short; more is not read.
const ANSWER_LIMIT: usize = 64 * 1024;

/// Sends a body. It always starts with `{`, has a Content-Length and the type JSON: else Heat takes it as success
/// without details (heat-protocol.md 7.0, R46).
pub async fn send(http: &Http, destination: &Destination, body: &serde_json::Value) -> Answer {
    let (verb, url, token) = match destination {
        Destination::Url { url, verb } => (verb.as_str(), url.as_str(), None),
        Destination::Token { endpoint, token } => ("POST", endpoint.as_str(), Some(token)),
    };
    let mut request = Request::new(verb, url, DEADLINE).header("accept", "application/json").json(body.to_string().into_bytes());
    request.body_limit = ANSWER_LIMIT;
    if let Some(token) = token {
        request = request.header("x-auth-token", token.clone());
    }
    match http.request(request).await {
        Ok(response) => Answer::Status { code: response.status, retry_after: response.retry_after(), said: said(&response.body) },
        Err(error) => Answer::None(error.cause().to_owned()),
    }
}

/// The message inside an error of Heat's CFN API (XML) or native API (JSON), else nothing.
fn said(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let between = |open: &str, close: &str| {
        let start = text.find(open)? + open.len();
        let end = text.get(start..)?.find(close)? + start;
        text.get(start..end).map(str::to_owned)
    };
    let message = between("<Message>", "</Message>").or_else(|| {
        let value: serde_json::Value = serde_json::from_str(&text).ok()?;
        value.get("error").and_then(|error| error.get("message")).and_then(|message| message.as_str()).map(str::to_owned)
    });
    // Heat appends a traceback after the first line.
    message.map(|message| shortened(&escaped(message.lines().next().unwrap_or_default()), 200)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_of_heats_own_words_is_taken() {
        let xml = b"<ErrorResponse><Error><Type>Sender</Type><Code>X</Code><Message>The Stack (s) could not be found.\nTraceback</Message></Error></ErrorResponse>";
        assert_eq!(said(xml), "The Stack (s) could not be found.");
        assert_eq!(said(br#"{"code": 404, "error": {"message": "gone", "type": "EntityNotFound"}}"#), "gone");
        assert_eq!(said(b"<html>"), "");
        assert_eq!(said(&[0xff, 0xfe]), "");
    }
}
