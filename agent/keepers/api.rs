//! A request to the cluster's API by a keeper that writes to it in its own words.

use std::time::Duration;

use serde_json::Value;

use crate::budgets::OBJECT_BYTES;
use crate::http::Request;

/// What `accept` names where nothing else is wanted.
pub(super) const JSON: &str = "application/json";

/// One whose redirects are not followed: nobody else is to get what it carries. `body`: what it is, and the body.
pub(super) fn request<'a>(
    (method, url): (&'a str, &'a str),
    accept: &str,
    body: Option<(&str, &Value)>,
    deadline: Duration,
) -> Request<'a> {
    let mut request = Request::new(method, url, deadline).header("accept", accept);
    (request.body_limit, request.follow) = (OBJECT_BYTES, false);
    if let Some((kind, body)) = body {
        request.body = Some(body.to_string().into_bytes());
        request = request.header("content-type", kind);
    }
    request
}
